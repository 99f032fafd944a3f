//! The shipped studies for a CUDA device, planned for an H200 without one: their hold-outs follow
//! from the rules that they state, and every case has the candidates that they ask for.

use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use tilewright_plan::Target;
use tilewright_plan::mapping::Mapping;
use tilewright_study::case::CaseSet;
use tilewright_study::spec::{Metric, Study};
use tilewright_study::subject::Subject;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// low·(high/low)^u, rounded, u the first 64 bits of the text's SHA-256 over 2^64.
fn draw(text: &str, low: f64, high: f64) -> u64 {
    let hash = Sha256::digest(text.as_bytes());
    let bits = hash.iter().take(8).fold(0u64, |bits, byte| bits << 8 | u64::from(*byte));
    let u = bits as f64 / 2f64.powi(64);
    (low * (high / low).powf(u)).round() as u64
}

/// Shapes among the labels of an operation: products, or rows.
fn labelled(products: bool) -> HashSet<Vec<u64>> {
    let mut shapes = HashSet::new();
    for set in ["train", "hold-out"] {
        let path = root().join(format!("benches/cuda/labels/h200-{set}.jsonl.gz"));
        let mut text = String::new();
        GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
        for line in text.lines() {
            let case: serde_json::Value = serde_json::from_str(line).unwrap();
            if (case["op"] == "gemm") == products {
                shapes.insert(serde_json::from_value(case["shape"].clone()).unwrap());
            }
        }
    }
    shapes
}

/// Checks a study: `attempt` is its rule's i-th shape, if it fits.
fn check(name: &str, count: usize, least: usize, attempt: impl Fn(u64) -> Option<Vec<u64>>) {
    let study = Study::read(&root().join("studies").join(name), false).unwrap();
    assert_eq!(study.metric, Metric::Device);
    // Operations of a shape follow each other.
    let mut held_out: Vec<Vec<u64>> =
        study.set(CaseSet::Holdout).map(|c| c.shape.clone()).collect();
    held_out.dedup();
    let training: HashSet<Vec<u64>> =
        study.set(CaseSet::Training).map(|c| c.shape.clone()).collect();
    let labelled = labelled(name == "cuda-gemm.toml");
    let free = |shape: &Vec<u64>| !training.contains(shape) && !labelled.contains(shape);
    let due: Vec<Vec<u64>> = (0..).filter_map(attempt).filter(free).take(count).collect();
    assert_eq!(held_out, due, "{name}");
    let target = Target::nvidia_h200();
    for set in [CaseSet::Training, CaseSet::Holdout] {
        for case in study.set(set) {
            let subject = Subject::new(case, &target, &study.space).unwrap();
            assert!(subject.legal() >= least, "{}: {}", case.id, subject.legal());
            let measured = subject.candidates(&target, &study.space, &[]).unwrap();
            assert_eq!(measured.list.len(), subject.legal(), "{}", case.id);
        }
    }
}

fn rounded(i: u64, n: u64) -> u64 {
    if i.is_multiple_of(2) { n.next_multiple_of(16) } else { n }
}

#[test]
fn products_follow_their_rule_and_have_a_hundred_candidates() {
    check("cuda-gemm.toml", 12, 100, |i| {
        let of = |name: &str, low, high| draw(&format!("cuda-gemm/3/{i}/{name}"), low, high);
        let [m, n, k] = [of("m", 16.0, 1024.0), of("n", 32.0, 4096.0), of("k", 32.0, 4096.0)];
        let (n, k) = (rounded(i, n), rounded(i, k));
        let fits = (262_144..=500_000_000).contains(&(m * n * k)) && m * n <= 500_000;
        fits.then(|| vec![m, n, k])
    });
}

#[test]
fn rows_follow_their_rule_and_have_thirty_candidates() {
    check("cuda-rows.toml", 6, 30, |i| {
        let of = |name: &str, low, high| draw(&format!("cuda-rows/2/{i}/{name}"), low, high);
        let [rows, columns] = [of("rows", 16.0, 4096.0), of("columns", 256.0, 16384.0)];
        let columns = rounded(i, columns);
        (16_384..=2_000_000).contains(&(rows * columns)).then(|| vec![rows, columns])
    });
}

#[test]
fn the_ablation_has_four_cells_of_each_op() {
    let path = root().join("studies/cuda-width-reuse.toml");
    let study = Study::read(&path, false).unwrap();
    let target = Target::nvidia_h200();
    assert_eq!(study.set(CaseSet::Training).count(), 3);
    for case in study.set(CaseSet::Training) {
        let subject = Subject::new(case, &target, &study.space).unwrap();
        let ranking = &subject.plan.ranking;
        let cells: BTreeSet<(u64, bool)> = ranking
            .order
            .iter()
            .filter_map(|i| match ranking.candidates[*i].mapping {
                Mapping::Rows(m) => Some((m.threads(), m.cache)),
                _ => None,
            })
            .collect();
        let expected = [(192, false), (192, true), (384, false), (384, true)];
        assert_eq!(cells, BTreeSet::from(expected), "{}", case.id);
    }
}
