//! Checks of coefficients, common to all policies.

use super::PolicyError;

/// `Ok` if every named coefficient is finite and not negative.
///
/// # Errors
/// Names the first one that isn't.
pub fn not_negative(policy: &str, coefficients: &[(&str, f64)]) -> Result<(), PolicyError> {
    check(policy, coefficients, "not negative", |x| x >= 0.0)
}

/// `Ok` if every named quantity is finite and positive.
///
/// # Errors
/// Names the first one that isn't.
pub fn positive(policy: &str, quantities: &[(&str, f64)]) -> Result<(), PolicyError> {
    check(policy, quantities, "positive", |x| x > 0.0)
}

fn check(
    policy: &str,
    values: &[(&str, f64)],
    bound: &'static str,
    holds: fn(f64) -> bool,
) -> Result<(), PolicyError> {
    match values.iter().find(|(_, value)| !value.is_finite() || !holds(*value)) {
        None => Ok(()),
        Some((name, value)) => Err(PolicyError::Coefficient {
            policy: policy.to_string(),
            name: name.to_string(),
            value: value.to_string(),
            bound,
        }),
    }
}
