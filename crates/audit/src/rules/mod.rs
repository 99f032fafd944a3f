//! The rules on a study's record, one module per step of a study.

mod calibration;
mod cases;
mod frozen;
mod further;
mod interruptions;
mod ledger;
mod machine;
mod order;
mod outputs;
mod prior;
mod replay;
mod results;
mod search;
mod selection;
mod study;
pub(crate) mod timing;

use crate::record::Record;
use crate::verdict::Checks;

/// Checks a record under every rule.
pub fn check(record: &Record, checks: &mut Checks) {
    ledger::check(record, checks);
    machine::check(record, checks);
    study::check(record, checks);
    cases::check(record, checks);
    for search in &record.searches {
        let basis = record.hashes.get("study.toml").map_or("", String::as_str);
        search::check(record, search, basis, "search", checks);
    }
    for (freeze, search) in &record.labels {
        search::check(record, search, freeze, "labels", checks);
    }
    further::check_all(record, checks);
    calibration::check(record, checks);
    frozen::check(record, checks);
    replay::check(record, checks);
    results::check(record, checks);
    interruptions::check(record, checks);
}
