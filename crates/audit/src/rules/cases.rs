//! Training and hold-out: nothing missing, nothing more, nothing in both.

use crate::record::{Record, Search, safe_id};
use crate::verdict::{Checks, Rule};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Checks the sets of cases.
pub fn check(record: &Record, checks: &mut Checks) {
    complete(record, checks);
    disjoint(record, checks);
}

fn complete(record: &Record, checks: &mut Checks) {
    let labels: Vec<&Search> = record.current_labels().collect();
    let training: Vec<&Search> = record.searches.iter().collect();
    for (set, searches) in [("training", &training), ("holdout", &labels)] {
        let mut ids = BTreeSet::new();
        for search in searches {
            let case = &search.case;
            checks.that(Rule::CasesComplete, case.set == set, || {
                format!("{}: its set is {:?}, not {set}", case.id, case.set)
            });
            checks.that(Rule::CasesComplete, ids.insert(&case.id), || {
                format!("{}: more than once in the set {set}", case.id)
            });
            checks.that(Rule::NamesSafe, safe_id(&case.id), || format!("the id {:?}", case.id));
        }
        let mut ordinals: Vec<u64> = searches.iter().map(|s| s.case.ordinal).collect();
        ordinals.sort_unstable();
        checks.that(
            Rule::CasesComplete,
            ordinals.iter().copied().eq(0..ordinals.len() as u64),
            || format!("{set}: ordinals {ordinals:?}"),
        );
    }
    // An entry's file is of the case that it names.
    for entry in record.ledger.iter().filter(|e| e.kind == "search" || e.kind == "labels") {
        let (case, file) = (entry.text("case").unwrap_or("?"), entry.text("file").unwrap_or("?"));
        checks.that(
            Rule::CasesComplete,
            file.rsplit('/').next() == Some(&format!("{case}.json")),
            || format!("entry {}: {file} for the case {case}", entry.index),
        );
    }
    if let Some(protocol) = &record.protocol {
        same_ids("training", &protocol.training, &training, checks);
        same_ids("holdout", &protocol.holdout, &labels, checks);
        let frozen: BTreeSet<&str> = record.frozen.iter().map(|f| f.case.id()).collect();
        for id in &protocol.holdout {
            checks.that(Rule::CasesComplete, frozen.contains(id.as_str()), || {
                format!("{id}: no frozen plans")
            });
        }
        checks.that(Rule::CasesComplete, record.frozen.len() == protocol.holdout.len(), || {
            format!("{} frozen cases for {}", record.frozen.len(), protocol.holdout.len())
        });
    }
    let Some(open) = record.ledger.first() else { return };
    for (set, searches) in [("training", &training), ("holdout", &labels)] {
        let Some(list) = open.body.get(set).and_then(Value::as_array) else { continue };
        let ids: Vec<String> =
            list.iter().map(|id| id.as_str().unwrap_or_default().to_string()).collect();
        same_ids(set, &ids, searches, checks);
    }
}

/// The files of a set are those of a list, in the order of its ordinals.
fn same_ids(set: &str, ids: &[String], searches: &[&Search], checks: &mut Checks) {
    let by_id: BTreeMap<&str, u64> =
        searches.iter().map(|s| (s.case.id.as_str(), s.case.ordinal)).collect();
    for (position, id) in ids.iter().enumerate() {
        let ordinal = by_id.get(id.as_str());
        checks.that(Rule::CasesComplete, ordinal == Some(&(position as u64)), || match ordinal {
            None => format!("{set}: no file of {id}"),
            Some(ordinal) => format!("{set}: {id} is number {position}, its file says {ordinal}"),
        });
    }
    for id in by_id.keys() {
        checks.that(Rule::CasesComplete, ids.iter().any(|i| i == id), || {
            format!("{set}: {id} isn't in the list of cases")
        });
    }
}

fn disjoint(record: &Record, checks: &mut Checks) {
    let shapes: BTreeSet<(&str, &[u64])> =
        record.searches.iter().map(|s| (s.case.family.as_str(), s.case.shape.as_slice())).collect();
    for (_, search) in &record.labels {
        let case = &search.case;
        let both = shapes.contains(&(case.family.as_str(), case.shape.as_slice()));
        checks.that(Rule::CasesDisjoint, !both, || {
            format!("{}: {} is a training shape of {}", case.id, case.shape_text(), case.family)
        });
    }
    let training: BTreeSet<&str> = record.searches.iter().map(|s| s.case.id.as_str()).collect();
    for calibration in &record.calibrations {
        for (i, row) in calibration.rows.iter().enumerate() {
            checks.that(Rule::CasesDisjoint, training.contains(row.case.as_str()), || {
                format!(
                    "calibration/{} row {i}: {} is no training case",
                    calibration.family, row.case
                )
            });
        }
    }
}
