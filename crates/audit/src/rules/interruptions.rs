//! interruptions.jsonl and interrupted/.

use crate::read::{Limits, read_json};
use crate::record::{Record, Search, safe_path};
use crate::verdict::{Checks, Rule};
use serde_json::Value;

/// Checks that every interruption names a unit of work, and that the unit was done again.
pub fn check(record: &Record, checks: &mut Checks) {
    let limits = Limits::default();
    let Some(bytes) = record.optional("interruptions.jsonl", &limits) else { return };
    let Ok(text) = std::str::from_utf8(&bytes) else {
        checks.fail(Rule::Interruptions, "interruptions.jsonl isn't UTF-8 text");
        return;
    };
    for (i, line) in text.lines().enumerate() {
        let place = format!("interruptions.jsonl line {i}");
        let Ok(value) = read_json(line.as_bytes(), &limits) else {
            checks.fail(Rule::Interruptions, format!("{place}: no JSON"));
            continue;
        };
        let unit = value.get("unit").and_then(Value::as_str).unwrap_or_default();
        checks.that(Rule::Interruptions, done(record, unit), || {
            format!("{place}: the unit {unit:?} isn't in the record")
        });
        match value.get("file") {
            None | Some(Value::Null) => {}
            Some(file) => {
                let path = file.as_str().unwrap_or_default();
                let inside = safe_path(path) && path.starts_with("interrupted/");
                let there = inside && record.optional(path, &limits).is_some();
                checks.that(Rule::Interruptions, there, || format!("{place}: no file {file}"));
            }
        }
    }
    let count = text.lines().count();
    checks.note(Rule::Interruptions, format!("{count} interruptions, each repeated whole"));
}

/// Whether the unit's work is in the record.
fn done(record: &Record, unit: &str) -> bool {
    let parts: Vec<&str> = unit.split('/').collect();
    let round = |name: &str| name.strip_prefix("round-").and_then(|n| n.parse::<usize>().ok());
    let has = |search: &Search, case: &str, name: &str| {
        let done = name == "checks" || round(name).is_some_and(|k| k < search.rounds.len());
        search.case.id == case && done
    };
    match parts.as_slice() {
        ["search", case, name] => record.searches.iter().any(|s| has(s, case, name)),
        ["labels", case, name] => record.labels.iter().any(|(_, s)| has(s, case, name)),
        ["replay", name] => record.rounds.iter().any(|r| round(name) == Some(r.round as usize)),
        _ => false,
    }
}
