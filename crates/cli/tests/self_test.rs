//! The self-test, on the CPU of this machine: every verdict reaches the report.

mod common;

use common::Directory;
use common::schema::{faults, schema};
use serde_json::Value;

fn report(d: &Directory, name: &str) -> Value {
    let text = std::fs::read_to_string(d.path().join(name)).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap();
    let schema = schema("self-test");
    let mut found = Vec::new();
    faults(&schema, &schema, &report, "report", &mut found);
    assert!(found.is_empty(), "{found:?}");
    report
}

#[test]
fn cases_are_checked_and_reported() {
    let d = Directory::new("self-test");
    let run = d.run("self-test --brief --case softmax-f32 -o r.json");
    let out = run.ok();
    assert!(out.contains("cases passed"), "{out}");
    assert_eq!(d.files(), ["r.json"]);
    let report = report(&d, "r.json");
    assert_eq!(report["device"]["name"], "cpu");
    let cases = report["cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    assert_eq!(report["totals"]["passed"], cases.len());
    for case in cases {
        assert_eq!(case["verdict"], "passed", "{case}");
        assert!(case["error_ratio"].as_f64().unwrap() <= 1.0, "{case}");
        // Plain numbers, NaN, low and large maxima, −∞, the end of the range, subnormal numbers.
        assert!(case["inputs"].as_u64().unwrap() >= 7, "{case}");
        assert!(case["launch_us"].as_f64().unwrap() > 0.0, "{case}");
        assert_eq!(case["clock"], "host");
        assert!(case["id"].as_str().unwrap().contains("softmax-f32"), "{case}");
    }
    // The printed report is the written one.
    let printed = d.run("self-test --brief --case softmax-f32 -o r.json --json").ok();
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(printed["list"], report["list"]);
}

#[test]
fn every_op_takes_special_numbers() {
    let d = Directory::new("self-test-special");
    d.run("self-test --brief -o r.json").ok();
    let report = report(&d, "r.json");
    for case in report["cases"].as_array().unwrap() {
        assert_eq!(case["verdict"], "passed", "{case}");
        assert!(case["inputs"].as_u64().unwrap() >= 3, "{case}");
    }
}

#[test]
fn bad_requests_have_one_sentence() {
    let d = Directory::new("self-test-bad");
    d.run("self-test --case nothing-like-this").fails(2, "no case has a name with");
    d.run("self-test --device tpu").fails(2, "unknown device `tpu`");
    d.run("self-test --deadline 0").fails(2, "");
    d.run("self-test -o missing/r.json").fails(4, "can't write missing/r.json");
    if !cfg!(target_os = "macos") {
        d.run("self-test --device metal").fails(3, "Metal is a part of macOS");
    }
    assert!(d.files().is_empty());
}
