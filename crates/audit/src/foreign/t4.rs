//! Kernel Tuner T4 files: `results`, a list of {configuration, times {runtimes, …}, invalidity,
//! correctness, measurements [{name, value, unit}], objectives}.

use super::rows::Row;
use crate::canonical;
use crate::verdict::{Checks, Rule};
use serde_json::Value;
use std::collections::BTreeMap;

/// Why a configuration has no time.
const INVALIDITY: [&str; 6] =
    ["correct", "compile", "runtime", "timeout", "constraints", "correctness"];

/// Reads the rows and checks format and configurations.
pub fn rows(file: &Value, checks: &mut Checks) -> Vec<Row> {
    let Some(results) = file.get("results").and_then(Value::as_array) else {
        checks.fail(Rule::ForeignFormat, "`results` is no list");
        return Vec::new();
    };
    let version = file.get("schema_version").and_then(Value::as_str);
    checks.that(Rule::ForeignFormat, version.is_some_and(|v| v.starts_with("1.")), || {
        format!("`schema_version` is {version:?}, not 1.x")
    });
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut parameters: Option<Vec<&String>> = None;
    let mut rows = Vec::with_capacity(results.len());
    for (index, result) in results.iter().enumerate() {
        let place = format!("result {index}");
        let Some(configuration) = result.get("configuration").and_then(Value::as_object) else {
            checks.fail(Rule::ForeignFormat, format!("{place}: no `configuration`"));
            continue;
        };
        let names: Vec<&String> = configuration.keys().collect();
        let due = parameters.get_or_insert_with(|| names.clone());
        checks.that(Rule::ForeignConfigurations, *due == names, || {
            format!("{place}: other parameters than result 0")
        });
        let text = canonical::text(&Value::Object(configuration.clone()));
        if let Some(other) = seen.insert(text, index) {
            checks.fail(Rule::ForeignConfigurations, format!("{place} is also result {other}"));
        }
        rows.push(row(place, result, checks));
    }
    rows
}

fn row(place: String, result: &Value, checks: &mut Checks) -> Row {
    let invalidity = result.get("invalidity").and_then(Value::as_str).unwrap_or_default();
    checks.that(Rule::ForeignFormat, INVALIDITY.contains(&invalidity), || {
        format!("{place}: `invalidity` is {invalidity:?}")
    });
    if invalidity != "correct" {
        return Row { place, ..Row::default() };
    }
    let correct = result.get("correctness").and_then(Value::as_f64);
    checks.that(Rule::ForeignFormat, correct.is_some_and(|c| c > 0.0), || {
        format!("{place}: correct with a correctness of {correct:?}")
    });
    let measurements = result.get("measurements").and_then(Value::as_array);
    let named = |name: &str| {
        let found = measurements?.iter().find(|m| m.get("name").is_some_and(|n| n == name))?;
        found.get("value")?.as_f64()
    };
    for objective in result.get("objectives").and_then(Value::as_array).into_iter().flatten() {
        let there = objective.as_str().is_some_and(|name| named(name).is_some());
        checks.that(Rule::ForeignFormat, there, || format!("{place}: no measurement {objective}"));
    }
    let label = named("time");
    checks.that(Rule::ForeignFormat, label.is_some(), || format!("{place}: no `time`"));
    let samples = result.pointer("/times/runtimes").and_then(Value::as_array);
    checks.that(Rule::ForeignFormat, samples.is_some(), || format!("{place}: no `runtimes`"));
    let rates = measurements.into_iter().flatten().filter_map(|m| {
        let name = m.get("name")?.as_str().filter(|n| n.contains("/s"))?;
        Some((name.to_string(), m.get("value")?.as_f64()?))
    });
    Row {
        label,
        samples: samples.into_iter().flatten().map(|v| v.as_f64().unwrap_or(f64::NAN)).collect(),
        wall: None,
        rates: rates.collect(),
        place,
    }
}
