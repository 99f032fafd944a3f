//! Kernel Tuner cache files: `tune_params_keys`, `tune_params`, and `cache`, an object of one
//! member per configuration whose key joins the values by commas.

use super::rows::Row;
use crate::verdict::{Checks, Rule};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Fields of a row that are no rates.
const KNOWN: [&str; 9] = [
    "time",
    "times",
    "compile_time",
    "verification_time",
    "benchmark_time",
    "strategy_time",
    "framework_time",
    "timestamp",
    "__error__",
];

/// Reads the rows and checks format and configurations.
pub fn rows(file: &Value, checks: &mut Checks) -> Vec<Row> {
    let Some(cache) = file.get("cache").and_then(Value::as_object) else {
        checks.fail(Rule::ForeignFormat, "`cache` is no object");
        return Vec::new();
    };
    let keys: Option<Vec<&str>> = file
        .get("tune_params_keys")
        .and_then(Value::as_array)
        .and_then(|keys| keys.iter().map(Value::as_str).collect());
    checks.that(Rule::ForeignFormat, keys.is_some(), || {
        "`tune_params_keys` is no list of names".to_string()
    });
    let keys = keys.unwrap_or_default();
    let space = file.get("tune_params").and_then(Value::as_object);
    let objective = file.get("objective").and_then(Value::as_str).unwrap_or("time");
    let mut rows = Vec::with_capacity(cache.len());
    let mut seen: BTreeMap<String, &String> = BTreeMap::new();
    for (key, value) in cache {
        let place = format!("configuration {key}");
        let Some(members) = value.as_object() else {
            checks.fail(Rule::ForeignFormat, format!("{place} is no object"));
            continue;
        };
        let own = configuration(&keys, members);
        checks.that(Rule::ForeignConfigurations, own.as_ref() == Some(key), || {
            format!("{place} holds the values {own:?}")
        });
        if let Some(own) = own
            && let Some(other) = seen.insert(own, key)
        {
            checks.fail(Rule::ForeignConfigurations, format!("{place} is also {other}"));
        }
        for name in &keys {
            let allowed = space.and_then(|s| s.get(*name)).and_then(Value::as_array);
            if let (Some(allowed), Some(value)) = (allowed, members.get(*name)) {
                checks.that(Rule::ForeignConfigurations, allowed.contains(value), || {
                    format!("{place}: {name} = {value} isn't in `tune_params`")
                });
            }
        }
        rows.push(row(place, members, objective, &keys, checks));
    }
    rows
}

/// The key that a row's values make.
fn configuration(keys: &[&str], members: &Map<String, Value>) -> Option<String> {
    let text = |key: &&str| {
        Some(match members.get(*key)? {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        })
    };
    Some(keys.iter().map(text).collect::<Option<Vec<_>>>()?.join(","))
}

fn row(
    place: String,
    members: &Map<String, Value>,
    objective: &str,
    keys: &[&str],
    checks: &mut Checks,
) -> Row {
    // A failed configuration has the name of its error instead of a time.
    let label = members.get("time").or_else(|| members.get(objective));
    let failed = label.is_some_and(|l| l.is_string() || l.as_f64().is_some_and(|l| l >= 1e20));
    checks.that(Rule::ForeignFormat, failed || label.is_some_and(Value::is_number), || {
        format!("{place}: neither a time nor an error")
    });
    if failed {
        return Row { place, ..Row::default() };
    }
    let samples = members.get("times").and_then(Value::as_array);
    checks.that(Rule::ForeignFormat, samples.is_some(), || format!("{place}: no `times`"));
    let rates = members.iter().filter(|(name, _)| {
        name.contains("/s") && !KNOWN.contains(&name.as_str()) && !keys.contains(&name.as_str())
    });
    Row {
        label: label.and_then(Value::as_f64),
        samples: samples.into_iter().flatten().map(|v| v.as_f64().unwrap_or(f64::NAN)).collect(),
        wall: members.get("benchmark_time").and_then(Value::as_f64),
        rates: rates.filter_map(|(n, v)| Some((n.clone(), v.as_f64()?))).collect(),
        place,
    }
}
