//! The Kernel Tuner and T4 files of the shared folder. They are large and not part of the
//! repository: `TILEWRIGHT_SHARED` names the folder, else it is `../shared` beside the repository.
//! Where it is missing each test says so and checks nothing; the committed samples of
//! `round_trip.rs` stand in for it.

use std::path::PathBuf;

use tilewright_study::export;
use tilewright_study::import::transfer::transfer;
use tilewright_study::import::{self, Imported, Limits, Space, t4};

fn folder() -> Option<PathBuf> {
    let shared = match std::env::var_os("TILEWRIGHT_SHARED") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
    };
    let hub = shared.join("reference/hub");
    if hub.is_dir() {
        return Some(hub);
    }
    println!("skipped: no folder reference/hub in ../shared (set TILEWRIGHT_SHARED)");
    None
}

fn space(hub: &std::path::Path, name: &str) -> Space {
    let limits = Limits::default();
    let bytes = import::read(&hub.join(name), &limits).unwrap();
    match import::detect(&bytes, &limits).unwrap() {
        Imported::Spaces(mut spaces) if spaces.len() == 1 => spaces.remove(0),
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn a_cache_file_and_its_t4_twin_hold_the_same_times() {
    let Some(hub) = folder() else { return };
    for device in ["A100", "MI250X"] {
        let cache = space(&hub, &format!("dedispersion_{device}.json.gz"));
        let twin = space(&hub, &format!("dedispersion_{device}_T4.json.gz"));
        assert_eq!((cache.trials.len(), twin.trials.len()), (11130, 11130));
        // The twin names its parameters in another order.
        let mut names = cache.parameters.clone();
        names.sort();
        let mut other = twin.parameters.clone();
        other.sort();
        assert_eq!(names, other);
        let key = |s: &Space, t: &import::Trial| {
            let pairs = s.parameters.iter().zip(&t.configuration);
            let mut words: Vec<String> = pairs.map(|(n, v)| format!("{n}={v}")).collect();
            words.sort();
            words.join(" ")
        };
        let times: std::collections::HashMap<String, &import::Trial> =
            twin.trials.iter().map(|t| (key(&twin, t), t)).collect();
        for trial in &cache.trials {
            let same = times[&key(&cache, trial)];
            assert_eq!((trial.time, &trial.samples), (same.time, &same.samples));
            assert_eq!(trial.overheads, same.overheads);
        }
    }
}

#[test]
fn what_we_write_of_them_validates_and_reads_back_the_same() {
    let Some(hub) = folder() else { return };
    for name in ["dedispersion_A100.json.gz", "gemm_clblast_4096_RTX_3090.json.gz"] {
        let own = space(&hub, name);
        let value = export::t4(&own);
        assert_eq!(t4::validate(&value), []);
        let text = value.to_string();
        let limits = Limits::default();
        let Imported::Spaces(back) = import::detect(text.as_bytes(), &limits).unwrap() else {
            panic!("a space")
        };
        assert_eq!(back, [own]);
    }
}

#[test]
fn published_t4_files_validate() {
    let Some(hub) = folder() else { return };
    let limits = Limits::default();
    for device in ["A100", "MI250X"] {
        let path = hub.join(format!("dedispersion_{device}_T4.json.gz"));
        let bytes = import::read(&path, &limits).unwrap();
        let value = import::file::json(&bytes, &limits).unwrap();
        assert_eq!(t4::validate(&value), []);
    }
}

/// Fit on one device, pick on the other, both ways for both kernels.
#[test]
fn picks_across_devices() {
    let Some(hub) = folder() else { return };
    let pairs = [
        ("dedispersion_A100.json.gz", "dedispersion_MI250X.json.gz"),
        ("gemm_clblast_4096_RTX_3090.json.gz", "gemm_clblast_4096_RTX_2080_Ti.json.gz"),
    ];
    for (a, b) in pairs {
        let (a, b) = (space(&hub, a), space(&hub, b));
        for (first, second) in [(&a, &b), (&b, &a)] {
            let report = transfer(first, second).unwrap();
            println!("{report:#?}");
            assert_eq!(report.common, first.trials.len());
            assert!(report.rank_correlation > 0.0 && report.rank_correlation < 1.0);
            // A choice made elsewhere beats a blind one.
            assert!(report.best_of_first < report.blind_median);
            assert!(report.best_of_first_ten <= report.best_of_first_three);
            assert!(report.model < report.blind_median);
        }
    }
}
