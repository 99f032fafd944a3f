//! results.json against what is derived.

use crate::derive;
use crate::math::close;
use crate::record::Record;
use crate::verdict::{Checks, Rule};
use serde_json::Value;

/// Checks every member of the results.
pub fn check(record: &Record, checks: &mut Checks) {
    let Some(stated) = &record.results else { return };
    match derive::results(record) {
        Some(derived) => compare(stated, &derived, "", Rule::ResultsSummary, checks),
        None => checks.fail(
            Rule::ResultsSummary,
            "results.json can't be derived: a file that it needs is missing, or the protocol has \
             an acceptance rule that nobody can check",
        ),
    }
}

/// The rule that a member belongs to; members of unknown names belong to the rule around them.
fn rule_of(name: &str, around: Rule) -> Rule {
    match name {
        "regret" => Rule::ResultsRegret,
        "coverage" | "half_width" => Rule::ResultsCoverage,
        "paths" | "gain" | "metrics" => Rule::ResultsRatios,
        "floor" | "sign_p" | "holm_p" | "verdict" => Rule::ResultsVerdicts,
        "accepted" | "predicted_gain" | "shortlist" | "abstains" | "loser" | "losers" | "wins"
        | "kept" | "always_incumbent" | "always_challenger" | "guarded" => Rule::ResultsGuard,
        "gate" | "default_ok" => Rule::ResultsGate,
        _ => around,
    }
}

fn compare(stated: &Value, derived: &Value, place: &str, rule: Rule, checks: &mut Checks) {
    match (stated, derived) {
        (Value::Object(a), Value::Object(b)) => {
            for (name, derived) in b {
                let place = format!("{place}/{name}");
                let rule = rule_of(name, rule);
                match a.get(name) {
                    Some(stated) => compare(stated, derived, &place, rule, checks),
                    None => checks.fail(rule, format!("results.json {place} is missing")),
                }
            }
            for name in a.keys().filter(|name| !b.contains_key(*name)) {
                let rule = rule_of(name, rule);
                checks.fail(rule, format!("results.json {place}/{name}: nothing gives it"));
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            checks.that(rule, a.len() == b.len(), || {
                format!("results.json {place}: {} items, not {}", a.len(), b.len())
            });
            for (i, (stated, derived)) in a.iter().zip(b).enumerate() {
                compare(stated, derived, &format!("{place}/{i}"), rule, checks);
            }
        }
        _ => {
            let same = match (stated.as_f64(), derived.as_f64()) {
                (Some(a), Some(b)) => close(a, b),
                _ => stated == derived,
            };
            checks.that(rule, same, || {
                format!("results.json {place} is {stated}, derived is {derived}")
            });
        }
    }
}
