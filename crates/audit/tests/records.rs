//! Whole records: a valid one passes every rule, one that was changed afterwards doesn't.

mod common;

use common::{Directory, Record, canonical, schema, sha};
use serde_json::{Value, json};
use tilewright_audit::{Audit, AuditError, Limits, Outcome, audit};

fn check(dir: &Directory) -> Audit {
    audit(dir.path(), &Limits::default()).unwrap()
}

/// Changes a valid record in place; these rules must fail, and no others.
fn changed(name: &str, rules: &[&str], change: impl Fn(&Directory)) {
    let dir = Record::valid().write(name);
    change(&dir);
    let audit = check(&dir);
    assert_eq!(audit.failed(), rules, "{name}: {audit:#?}");
}

/// Replaces text that must be there once or more.
fn replace(dir: &Directory, path: &str, from: &str, to: &str) {
    let text = dir.read(path);
    assert!(text.contains(from), "{path} has no {from}");
    dir.write(path, text.replacen(from, to, 1));
}

const SEARCH: &str = "search/softmax-f32-128x2048.json";

#[test]
fn a_valid_record_passes_every_rule() {
    let dir = Record::valid().write("valid");
    let audit = check(&dir);
    assert!(audit.passed(), "{:?}", audit.failed());
    for rule in &audit.rules {
        let expected = match rule.rule {
            // The record has no interruption.
            "interruptions" => Outcome::NotApplicable,
            _ => Outcome::Pass,
        };
        assert_eq!(rule.verdict, expected, "{rule:?}");
    }
}

#[test]
fn verdicts_and_results_follow_the_published_schemas() {
    let record = Record::valid();
    let mut audit = serde_json::to_value(check(&record.write("schema"))).unwrap();
    assert_eq!(schema::check("audit", &audit), [""; 0]);
    audit["rules"][3]["verdict"] = json!("fine");
    audit["extra"] = json!(1);
    assert_eq!(schema::check("audit", &audit).len(), 2);

    let mut results = record.json("results.json");
    assert_eq!(schema::check("results", &results), [""; 0]);
    results["freeze"] = json!("x");
    results["cases"][0].as_object_mut().unwrap().remove("floor");
    results["families"][0]["guarded"]["losers"] = json!(-1);
    assert_eq!(schema::check("results", &results).len(), 3);
}

#[test]
fn nothing_there_is_an_error() {
    let dir = Directory::new("empty");
    assert!(matches!(audit(dir.path(), &Limits::default()), Err(AuditError::NoRecord(_))));
    let missing = dir.path().join("nothing");
    assert!(matches!(audit(&missing, &Limits::default()), Err(AuditError::Missing { .. })));
}

#[test]
fn a_changed_sample_or_hash_is_found() {
    changed("sample", &["files.hash", "search.labels"], |dir| {
        let mut file: Value = serde_json::from_str(&dir.read(SEARCH)).unwrap();
        for round in file["trials"][2]["rounds"].as_array_mut().unwrap() {
            for ns in round["batch_ns"].as_array_mut().unwrap() {
                *ns = json!(ns.as_u64().unwrap() + 100);
            }
        }
        dir.write(SEARCH, canonical(&file) + "\n");
    });
    changed("space", &["files.canonical", "files.hash"], |dir| replace(dir, SEARCH, ":", ": "));
    changed("toml", &["files.hash", "search.seeds", "frozen.protocol"], |dir| {
        replace(dir, "study.toml", "small", "large");
    });
    changed("kernel", &["frozen.kernels"], |dir| {
        let path = Record::valid().files.keys().find(|p| p.starts_with("kernels/")).cloned();
        replace(dir, &path.unwrap(), "kernel", "colonel");
    });
}

#[test]
fn a_moved_or_edited_entry_is_found() {
    let lines = |dir: &Directory| -> Vec<String> {
        dir.read("ledger.jsonl").lines().map(|l| format!("{l}\n")).collect()
    };
    changed("moved", &["ledger.chain"], |dir| {
        let mut lines = lines(dir);
        lines.swap(1, 2);
        dir.write("ledger.jsonl", lines.concat());
    });
    changed("edited", &["ledger.chain"], |dir| {
        replace(dir, "ledger.jsonl", "\"version\":\"0.1.0\"", "\"version\":\"0.1.1\"");
    });
    let rules =
        ["files.named", "ledger.chain", "ledger.finished", "replay.rounds", "replay.balance"];
    changed("removed", &rules, |dir| {
        let mut lines = lines(dir);
        lines.pop();
        lines.remove(lines.len() - 3);
        dir.write("ledger.jsonl", lines.concat());
    });
    changed("cut", &["files.read", "files.canonical", "files.named", "ledger.finished"], |dir| {
        let text = dir.read("ledger.jsonl");
        dir.write("ledger.jsonl", &text[..text.len() - 40]);
    });
    changed("hash", &["files.hash", "ledger.chain"], |dir| {
        let path = dir.read(SEARCH);
        replace(dir, "ledger.jsonl", &sha(path), &sha("other"));
    });
    changed("float", &["ledger.chain", "ledger.entries"], |dir| {
        replace(dir, "ledger.jsonl", "\"format\":1", "\"format\":1.5");
    });
}

#[test]
fn files_that_are_broken_too_large_or_too_deep_are_refused() {
    let without = |rules: &[&str], limits: &Limits, name: &str, bytes: &[u8]| {
        let dir = Record::valid().write(name);
        dir.write(SEARCH, bytes);
        let failed = audit(dir.path(), limits).unwrap().failed();
        for rule in rules {
            assert!(failed.contains(rule), "{name}: {failed:?}");
        }
    };
    let text = Record::valid().files[SEARCH].clone();
    let rules = ["files.read", "files.hash", "cases.complete", "calibration.rows"];
    without(&rules, &Limits::default(), "truncated", &text[..text.len() / 2]);
    without(&rules, &Limits::default(), "deep", "[".repeat(100_000).as_bytes());
    without(&rules, &Limits::default(), "binary", b"\xff\xfe\x00");
    let small = Limits { file_bytes: 100_000, ..Limits::default() };
    without(&["files.read", "cases.complete"], &small, "large", &b" ".repeat(100_001));
    let few = Limits { values: 1000, ..Limits::default() };
    without(&["files.read"], &few, "many", &text);
}

#[test]
fn files_beside_the_record_are_found() {
    changed("stray", &["files.named"], |dir| dir.write("replay/round-14.json", "{}\n"));
    changed("stray kernel", &["frozen.kernels"], |dir| dir.write("kernels/x.txt", "kernel"));
    changed("journal", &["ledger.finished"], |dir| dir.write("journal/x.json", "{}\n"));
    // Reports lie in the record and are no part of it.
    changed("report", &[], |dir| dir.write("report.html", "<p>"));
    let dir = Record::valid().write("link");
    let kept = Directory::new("elsewhere");
    kept.write("study.toml", dir.read("study.toml"));
    std::fs::remove_file(dir.path().join("study.toml")).unwrap();
    std::os::unix::fs::symlink(kept.path().join("study.toml"), dir.path().join("study.toml"))
        .unwrap();
    let failed = check(&dir).failed();
    assert!(failed.contains(&"files.read") && failed.contains(&"files.hash"), "{failed:?}");
}

#[test]
fn interruptions_must_have_been_repeated() {
    changed("repeated", &[], |dir| {
        dir.write("interrupted/a.jsonl", "{}\n{\"torn");
        let line = json!({"unit": "replay/round-03", "file": "interrupted/a.jsonl"});
        dir.write("interruptions.jsonl", canonical(&line) + "\n");
    });
    changed("left out", &["interruptions"], |dir| {
        let line = json!({"unit": "replay/round-14", "file": null});
        dir.write("interruptions.jsonl", canonical(&line) + "\n");
    });
    changed("no file", &["interruptions"], |dir| {
        let line = json!({"unit": "replay/round-03", "file": "../ledger.jsonl"});
        dir.write("interruptions.jsonl", canonical(&line) + "\n");
    });
}
