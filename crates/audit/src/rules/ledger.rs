//! The ledger: its chain, its entries, the order of steps, and the files that it names.

use crate::canonical::{hash, is_hash, text};
use crate::record::{Entry, Record};
use crate::verdict::{Checks, Rule};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Fields of the body of each kind that hold a hash.
const HASHES: [(&str, &[&str]); 8] = [
    ("open", &["study_sha256", "machine_sha256", "identity_sha256"]),
    ("search", &["sha256"]),
    ("calibration", &["profile_sha256"]),
    ("freeze", &["protocol_sha256", "profile_sha256"]),
    ("labels", &["sha256", "freeze"]),
    ("replay", &["sha256", "freeze"]),
    ("results", &["sha256"]),
    ("change", &[]),
];

/// Checks the ledger and the hashes of the files that it names.
pub fn check(record: &Record, checks: &mut Checks) {
    chain(record, checks);
    for entry in &record.ledger {
        body(entry, checks);
    }
    files(record, checks);
    order(record, checks);
    freezes(record, checks);
    finished(record, checks);
}

fn chain(record: &Record, checks: &mut Checks) {
    let mut prev = "0".repeat(64);
    for (position, entry) in record.ledger.iter().enumerate() {
        let fault = |what: &str| format!("entry {position} ({}): {what}", entry.kind);
        checks.that(Rule::LedgerChain, entry.index == position as u64, || {
            fault(&format!("its index is {}", entry.index))
        });
        checks.that(Rule::LedgerChain, entry.prev == prev, || {
            fault("`prev` isn't the hash of the entry before")
        });
        let content = json!({
            "body": entry.body, "index": entry.index, "kind": entry.kind, "prev": entry.prev,
        });
        checks.that(Rule::LedgerChain, hash(text(&content).as_bytes()) == entry.hash, || {
            fault("`hash` isn't the hash of the entry")
        });
        prev.clone_from(&entry.hash);
    }
}

fn has_float(value: &Value) -> bool {
    match value {
        Value::Number(n) => n.is_f64(),
        Value::Array(items) => items.iter().any(has_float),
        Value::Object(members) => members.values().any(has_float),
        _ => false,
    }
}

fn body(entry: &Entry, checks: &mut Checks) {
    let place = || format!("entry {} ({})", entry.index, entry.kind);
    let fields = HASHES.iter().find(|(kind, _)| *kind == entry.kind);
    checks.that(Rule::LedgerEntries, fields.is_some(), || format!("{}: unknown kind", place()));
    for field in fields.map_or(&[][..], |f| f.1) {
        checks.that(Rule::LedgerEntries, entry.text(field).is_some_and(is_hash), || {
            format!("{}: `{field}` is no hash", place())
        });
    }
    checks.that(Rule::LedgerEntries, !has_float(&entry.body), || {
        format!("{}: the body holds a float", place())
    });
    let names_files = match entry.kind.as_str() {
        "search" | "labels" | "replay" | "results" => Some(entry.body.get("file").is_some()),
        "calibration" => Some(entry.body.get("families").is_some_and(Value::is_array)),
        "freeze" => Some(entry.body.get("plans").is_some_and(Value::is_array)),
        _ => None,
    };
    checks.that(Rule::LedgerEntries, names_files != Some(false), || {
        format!("{}: it names no file", place())
    });
}

fn files(record: &Record, checks: &mut Checks) {
    let mut hash_is = |path: &str, stated: &str, place: String| {
        let own = record.hashes.get(path);
        checks.that(Rule::FilesHash, own.is_some_and(|own| own == stated), || match own {
            Some(own) => format!("{path}: {own}, but {place} says {stated}"),
            None => format!("{path}, named by {place}, couldn't be read"),
        });
    };
    let last_freeze = record.freeze().map(|e| e.index);
    let last_results = record.entries("results").next_back().map(|e| e.index);
    for entry in &record.ledger {
        let place = || format!("entry {} ({})", entry.index, entry.kind);
        // Results that were replaced by later ones: the file is that of the last entry.
        let replaced = entry.kind == "results" && last_results != Some(entry.index);
        if !replaced {
            for (path, stated) in crate::record::named_files(entry) {
                hash_is(&path, &stated, place());
            }
        }
        let fixed: &[(&str, &str)] = match entry.kind.as_str() {
            "open" => &[("study.toml", "study_sha256"), ("machine.json", "machine_sha256")],
            "calibration" => &[("profile.json", "profile_sha256")],
            // An earlier freeze's protocol was replaced by the last one's.
            "freeze" if last_freeze == Some(entry.index) => {
                &[("protocol.json", "protocol_sha256"), ("profile.json", "profile_sha256")]
            }
            _ => &[],
        };
        for (path, field) in fixed {
            hash_is(path, entry.text(field).unwrap_or_default(), place());
        }
    }
}

/// Files of one step that a later step rests on.
fn order(record: &Record, checks: &mut Checks) {
    let first = |kind: &str| record.entries(kind).next().map(|e| e.index);
    let place = |e: &Entry| format!("entry {} ({})", e.index, e.kind);
    if let Some(entry) = record.ledger.first() {
        checks.that(Rule::LedgerOrder, entry.kind == "open", || "entry 0 is no `open`".to_string());
    }
    for entry in record.entries("open").skip(1) {
        checks.fail(Rule::LedgerOrder, format!("{}: the record was opened before", place(entry)));
    }
    let calibration = first("calibration");
    for entry in record.entries("search") {
        checks.that(Rule::LedgerOrder, calibration.is_none_or(|c| entry.index < c), || {
            format!("{}: after the calibration", place(entry))
        });
    }
    for entry in record.entries("freeze") {
        checks.that(Rule::LedgerOrder, calibration.is_some_and(|c| c < entry.index), || {
            format!("{}: before the calibration", place(entry))
        });
    }
    for entry in record.ledger.iter().filter(|e| e.kind == "labels" || e.kind == "replay") {
        let freeze =
            record.entries("freeze").find(|f| Some(f.hash.as_str()) == entry.text("freeze"));
        checks.that(Rule::LedgerOrder, freeze.is_some_and(|f| f.index < entry.index), || {
            format!("{}: no freeze before it has the hash that it names", place(entry))
        });
    }
    // A path is written once: a second entry of one step and file would hide the first.
    let mut seen = BTreeSet::new();
    for entry in record.ledger.iter().filter(|e| e.kind != "results") {
        for (path, _) in crate::record::named_files(entry) {
            checks.that(Rule::LedgerOrder, seen.insert(path.clone()), || {
                format!("{}: {path} was named before", place(entry))
            });
        }
    }
}

fn freezes(record: &Record, checks: &mut Checks) {
    for (i, entry) in record.entries("freeze").enumerate() {
        let number = entry.body.get("number").and_then(Value::as_u64);
        checks.that(Rule::LedgerFreezes, number == Some(i as u64 + 1), || {
            format!("entry {}: freeze number {number:?}, not {}", entry.index, i + 1)
        });
    }
    let count = record.entries("freeze").count();
    if count > 1 {
        checks.note(Rule::LedgerFreezes, format!("{count} freezes: the earlier ones are spent"));
    }
}

fn finished(record: &Record, checks: &mut Checks) {
    for kind in ["open", "search", "calibration", "freeze", "labels", "replay", "results"] {
        checks.that(Rule::LedgerFinished, record.entries(kind).next().is_some(), || {
            format!("no `{kind}` entry")
        });
    }
    let last = record.ledger.last().map(|e| e.kind.as_str());
    checks.that(Rule::LedgerFinished, last == Some("results"), || {
        format!("the last entry is {last:?}, not `results`")
    });
}
