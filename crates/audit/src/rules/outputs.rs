//! Outputs that were compared with the oracle.

use crate::record::OutputCheck;
use crate::verdict::{Checks, Rule};

/// A valid measurement was compared, and its outputs hold; a wrong one says what was wrong.
pub fn check(
    rule: Rule,
    outcome: &str,
    output: Option<&OutputCheck>,
    place: impl Fn() -> String,
    checks: &mut Checks,
) {
    match outcome {
        "valid" | "refused" => {
            let fault = match output {
                None => Some("never compared".to_string()),
                Some(output) => output.fault(),
            };
            checks.that(rule, fault.is_none(), || {
                format!("{}: {outcome}, but {}", place(), fault.unwrap_or_default())
            });
        }
        "wrong" => {
            checks.that(rule, output.is_none_or(|o| o.fault().is_some()), || {
                format!("{}: wrong, but its outputs hold", place())
            });
        }
        _ => {}
    }
}
