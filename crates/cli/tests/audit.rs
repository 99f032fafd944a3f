//! `audit` and `report` as a user runs them, on records made from the format's text.

#[path = "../../audit/tests/common/mod.rs"]
#[allow(clippy::duplicate_mod)]
mod records;

use records::{Directory, Record, schema};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tilewright")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn path(dir: &Directory) -> &str {
    dir.path().to_str().unwrap()
}

#[test]
fn a_valid_record_passes_and_is_reported() {
    let dir = Record::valid().write("cli-valid");
    let audit = run(&["audit", path(&dir)]);
    assert!(audit.status.success(), "{}", text(&audit.stdout));
    assert!(text(&audit.stdout).contains("pass  search.labels"));
    assert!(text(&audit.stdout).contains(" 0 fail,"));

    let report = run(&["report", path(&dir)]);
    assert!(report.status.success(), "{}", text(&report.stderr));
    assert!(dir.read("report.html").starts_with("<!doctype html>"));
    assert!(dir.read("report.md").starts_with("# The gate is passed"));
    // The reports lie in the record; it still passes.
    assert!(run(&["audit", path(&dir), "--json"]).status.success());

    let other = Directory::new("cli-other");
    let report = run(&["report", path(&dir), "--json", "-o", path(&other)]);
    let value: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(schema::check("report", &value), [""; 0]);
    assert_eq!(value["audit"], "pass");
    assert!(other.read("report.html").contains("</html>"));
}

#[test]
fn a_changed_record_fails_with_code_1_and_a_witness() {
    let dir = Record::valid().write("cli-changed");
    let search = "search/softmax-f32-128x2048.json";
    dir.write(search, dir.read(search).replacen("\"label_us\":", "\"label_us\":1", 1));
    let audit = run(&["audit", path(&dir), "--json"]);
    assert_eq!(audit.status.code(), Some(1));
    let value: Value = serde_json::from_slice(&audit.stdout).unwrap();
    assert_eq!(schema::check("audit", &value), [""; 0]);
    assert_eq!(value["verdict"], "fail");
    let rules = value["rules"].as_array().unwrap();
    let labels = rules.iter().find(|r| r["rule"] == "search.labels").unwrap();
    assert_eq!(labels["verdict"], "fail");
    assert!(labels["witness"][0].as_str().unwrap().contains("softmax-f32-128x2048"));
    let message = text(&audit.stderr);
    assert!(message.starts_with("error: check failed: the audit: "), "{message}");
    assert!(message.contains("search.labels"), "{message}");

    let report = run(&["report", path(&dir)]);
    assert_eq!(report.status.code(), Some(1));
    assert!(dir.read("report.md").starts_with("# The record fails its audit"));
}

#[test]
fn nothing_to_audit_or_report_is_an_error_of_the_request() {
    let dir = Directory::new("cli-empty");
    for command in ["audit", "report"] {
        let output = run(&[command, path(&dir)]);
        assert_eq!(output.status.code(), Some(2), "{command}");
        assert!(text(&output.stderr).contains("no ledger.jsonl"), "{}", text(&output.stderr));
        let missing = Path::new(path(&dir)).join("none");
        let output = run(&[command, missing.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2), "{command}");
    }
    dir.write("tuning.json", "{\"cache\": {}");
    let file = dir.path().join("tuning.json");
    let output = run(&["audit", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("FAIL  foreign.read"));
}
