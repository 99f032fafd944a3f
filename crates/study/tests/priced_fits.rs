//! Fits of terms that have prices, from searches of a record: what this crate writes of them the audit
//! derives again.

use std::fs;
use std::path::{Path, PathBuf};
use tilewright_audit::Limits;
use tilewright_plan::Target;
use tilewright_study::fit::calibrate;
use tilewright_study::record::SearchFile;

/// The folders and files of a record up to its calibration.
const PARTS: [&str; 3] = ["ledger.jsonl", "machine.json", "study.toml"];

fn searches(record: &Path) -> Vec<(PathBuf, SearchFile)> {
    let entries = fs::read_dir(record.join("search")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    paths.sort();
    let read = |path: &PathBuf| serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let files: Vec<SearchFile> = paths.iter().map(read).collect();
    paths.into_iter().zip(files).collect()
}

#[test]
fn the_audit_derives_strengths_coefficients_and_folds() {
    let record = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../evidence/cuda-gemm");
    let found = searches(&record);
    let files: Vec<SearchFile> = found.iter().map(|(_, file)| file.clone()).collect();
    let made = calibrate(&files, &Target::nvidia_h200()).unwrap();
    let [family] = &made.families[..] else { panic!("one family") };
    let prior = family.prior.clone().unwrap();
    assert!(prior.strengths.contains(&prior.strength));

    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("priced-fits");
    for part in ["search", "calibration"] {
        fs::create_dir_all(dir.join(part)).unwrap();
    }
    for part in PARTS {
        fs::copy(record.join(part), dir.join(part)).unwrap();
    }
    for (path, _) in &found {
        let to = dir.join("search").join(path.file_name().unwrap());
        fs::copy(path, to).unwrap();
    }
    let audited = |family: &tilewright_study::record::CalibrationFile| -> Vec<(String, u64)> {
        let path = dir.join(format!("calibration/{}.json", family.family));
        fs::write(path, serde_json::to_vec(family).unwrap()).unwrap();
        fs::write(dir.join("profile.json"), made.profile.to_json()).unwrap();
        let audit = tilewright_audit::audit(&dir, &Limits::default()).unwrap();
        let rules = audit.rules.iter().filter(|v| v.rule.starts_with("calibration."));
        rules
            .inspect(|v| assert!(v.checked > 0, "{v:?}"))
            .map(|v| (v.rule.to_string(), v.failures))
            .filter(|(_, failures)| *failures > 0)
            .collect()
    };
    assert_eq!(audited(family), []);
    let mut other = family.clone();
    let stated = other.prior.as_mut().unwrap();
    stated.strength = if stated.strength == 1.0 { 0.001 } else { 1.0 };
    let failed: Vec<String> = audited(&other).into_iter().map(|(rule, _)| rule).collect();
    assert_eq!(failed, ["calibration.fit", "calibration.folds"]);
}
