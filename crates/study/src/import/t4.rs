//! T4 results ("Open Autotuning Results Schema", version 1.0.0). The rules are written down in
//! `docs/formats/import.md`; [`validate`] checks them one by one.

use serde_json::Value;

use super::kernel_tuner::{fault, number, numbers, object, param};
use super::space::{Failure, Overheads, Space, TimeUnit, Trial};
use super::{ImportError, Limits};

/// A rule of the schema that a file breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Where, as a path.
    pub place: String,
    /// The rule.
    pub rule: &'static str,
}

/// Words of `invalidity`.
const INVALIDITY: [&str; 6] =
    ["timeout", "compile", "runtime", "correctness", "constraints", "correct"];

/// Checks a file against the schema. Empty where it holds.
pub fn validate(value: &Value) -> Vec<Violation> {
    let mut out = Vec::new();
    let mut check = |holds: bool, place: &str, rule: &'static str| {
        if !holds {
            out.push(Violation { place: place.to_string(), rule });
        }
        holds
    };
    if !check(value.is_object(), "$", "root-object") {
        return out;
    }
    if let Some(version) = value.get("schema_version") {
        let parts: Vec<&str> = version.as_str().unwrap_or("").split('.').collect();
        let digits = |p: &&str| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit());
        check(parts.len() == 3 && parts.iter().all(digits), "$.schema_version", "version-pattern");
    }
    let results = value.get("results").cloned().unwrap_or(Value::Array(Vec::new()));
    let Some(results) = results.as_array() else {
        check(false, "$.results", "results-list");
        return out;
    };
    for (i, result) in results.iter().enumerate() {
        let place = format!("$.results[{i}]");
        if !check(result.is_object(), &place, "result-object") {
            continue;
        }
        for key in ["configuration", "times", "invalidity", "correctness"] {
            check(result.get(key).is_some(), &format!("{place}.{key}"), "required");
        }
        let mut typed = |key: &str, is: fn(&Value) -> bool, rule: &'static str| {
            if let Some(v) = result.get(key) {
                check(is(v), &format!("{place}.{key}"), rule);
            }
        };
        typed("timestamp", Value::is_string, "timestamp-text");
        typed("configuration", Value::is_object, "configuration-object");
        typed("objectives", Value::is_array, "objectives-list");
        typed("times", Value::is_object, "times-object");
        typed("correctness", Value::is_number, "correctness-number");
        typed("measurements", Value::is_array, "measurements-list");
        typed(
            "invalidity",
            |v| v.as_str().is_some_and(|w| INVALIDITY.contains(&w)),
            "invalidity-word",
        );
        for key in ["compilation_time", "framework", "search_algorithm", "validation"] {
            if let Some(v) = result["times"].get(key) {
                check(v.is_number(), &format!("{place}.times.{key}"), "times-number");
            }
        }
        if let Some(v) = result["times"].get("runtimes") {
            check(v.is_array(), &format!("{place}.times.runtimes"), "runtimes-list");
        }
        for (j, m) in result["measurements"].as_array().into_iter().flatten().enumerate() {
            let place = format!("{place}.measurements[{j}]");
            if !check(m.is_object(), &place, "measurement-object") {
                continue;
            }
            for key in ["name", "unit"] {
                let holds = m.get(key).is_none_or(Value::is_string);
                check(holds, &format!("{place}.{key}"), "measurement-text");
            }
            let value = m.get("value");
            let holds = value.is_none_or(|v| v.is_number() || v.is_string() || v.is_array());
            check(holds, &format!("{place}.value"), "measurement-value");
        }
    }
    out
}

/// Reads T4 results. The objective's measurement is the time; without one, the mean of the
/// runtimes.
///
/// # Errors
/// The file breaks a rule of the schema, configurations have different parameters, or a correct
/// result has no time.
pub fn parse(value: &Value, limits: &Limits) -> Result<Space, ImportError> {
    if let Some(v) = validate(value).first() {
        return Err(fault(&v.place, &format!("it breaks the T4 rule `{}`", v.rule)));
    }
    let empty = Vec::new();
    let results = value["results"].as_array().unwrap_or(&empty);
    if results.len() > limits.trials {
        return Err(ImportError::TooMany { what: "trials", limit: limits.trials });
    }
    let metadata = value.get("metadata").and_then(Value::as_object);
    let text =
        |key: &str| metadata.and_then(|m| m.get(key)).and_then(Value::as_str).map(str::to_string);
    let unit = match text("timeunit") {
        None => TimeUnit::Milliseconds,
        Some(name) => TimeUnit::by_name(&name)
            .ok_or_else(|| fault("$.metadata.timeunit", "no unit of time"))?,
    };
    // Objects keep no order here; our own files state it.
    let order = metadata.and_then(|m| m.get("parameters")).and_then(Value::as_array);
    let mut parameters: Option<Vec<String>> =
        order.map(|names| names.iter().filter_map(|n| n.as_str().map(str::to_string)).collect());
    let mut objective: Option<String> = None;
    let mut trials = Vec::with_capacity(results.len());
    for (i, result) in results.iter().enumerate() {
        let place = format!("$.results[{i}]");
        let configuration = object(&result["configuration"], &place)?;
        let parameters = parameters.get_or_insert_with(|| configuration.keys().cloned().collect());
        if parameters.len() != configuration.len() {
            return Err(fault(&place, "its parameters aren't those of the first result"));
        }
        let objectives = result.get("objectives").and_then(Value::as_array);
        let own = match objectives.map(Vec::as_slice) {
            None | Some([]) => "time",
            Some([one]) => one.as_str().unwrap_or("time"),
            Some(_) => return Err(fault(&place, "several objectives")),
        };
        let objective = objective.get_or_insert_with(|| own.to_string());
        if objective != own {
            return Err(fault(&place, "its objective isn't that of the first result"));
        }
        let samples = numbers(result["times"].get("runtimes"), &format!("{place}.times.runtimes"))?;
        let word = result["invalidity"].as_str().unwrap_or("runtime");
        let time = match Failure::by_name(word) {
            Some(failure) => Err(failure),
            None => {
                let mut measured = result["measurements"].as_array().into_iter().flatten();
                let named = measured.find(|m| m["name"].as_str() == Some(own));
                let mean = || {
                    let sum: f64 = samples.iter().sum();
                    (!samples.is_empty()).then(|| sum / samples.len() as f64)
                };
                let time = named.and_then(|m| m["value"].as_f64()).or_else(mean);
                Ok(time
                    .filter(|t| t.is_finite() && *t > 0.0)
                    .ok_or_else(|| fault(&place, "a correct result without a positive time"))?)
            }
        };
        let times = object(&result["times"], &place)?;
        let values = parameters
            .iter()
            .map(|name| param(configuration.get(name), &format!("{place}.configuration.{name}")));
        trials.push(Trial {
            configuration: values.collect::<Result<_, _>>()?,
            time,
            samples,
            timestamp: result.get("timestamp").and_then(Value::as_str).map(str::to_string),
            overheads: Overheads {
                // The schema says `compilation_time`; published files have `compilation`.
                compilation: number(times, "compilation_time")
                    .or_else(|| number(times, "compilation")),
                framework: number(times, "framework"),
                search_algorithm: number(times, "search_algorithm"),
                validation: number(times, "validation"),
            },
        });
    }
    Ok(Space {
        device: text("device"),
        kernel: text("kernel"),
        problem: text("problem"),
        parameters: parameters.unwrap_or_default(),
        objective: objective.unwrap_or_else(|| "time".to_string()),
        unit,
        trials,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample() -> Value {
        json!({
            "schema_version": "1.0.0", "metadata": {"timeunit": "miliseconds"},
            "results": [
                {"configuration": {"x": 1}, "times": {"runtimes": [1.0, 3.0], "compilation": 9.0},
                 "invalidity": "correct", "correctness": 1, "objectives": ["time"],
                 "measurements": [{"name": "time", "value": 2.5, "unit": ""}]},
                {"configuration": {"x": 2}, "times": {"runtimes": [1.0, 2.0]},
                 "invalidity": "correct", "correctness": 1},
                {"configuration": {"x": 4}, "times": {}, "invalidity": "timeout", "correctness": 0}
            ]
        })
    }

    #[test]
    fn results_read() {
        let space = parse(&sample(), &Limits::default()).unwrap();
        assert_eq!(space.unit, TimeUnit::Milliseconds);
        let times: Vec<_> = space.trials.iter().map(|t| t.time).collect();
        assert_eq!(times, [Ok(2.5), Ok(1.5), Err(Failure::Timeout)]);
        assert_eq!(space.trials[0].overheads.compilation, Some(9.0));
    }

    #[test]
    fn every_rule_of_the_schema_is_checked() {
        let broken = |change: fn(&mut Value)| {
            let mut value = sample();
            change(&mut value);
            let found = validate(&value);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(parse(&value, &Limits::default()).is_err());
            found[0].rule
        };
        assert!(validate(&sample()).is_empty());
        assert_eq!(broken(|v| *v = json!([])), "root-object");
        assert_eq!(broken(|v| v["schema_version"] = json!("1.0")), "version-pattern");
        assert_eq!(broken(|v| v["results"] = json!({})), "results-list");
        assert_eq!(broken(|v| v["results"][0] = json!(1)), "result-object");
        assert_eq!(broken(|v| v["results"][0]["times"] = json!(1)), "times-object");
        assert_eq!(broken(|v| v["results"][0]["configuration"] = json!(1)), "configuration-object");
        assert_eq!(broken(|v| v["results"][0]["invalidity"] = json!("odd")), "invalidity-word");
        assert_eq!(broken(|v| v["results"][0]["correctness"] = json!("1")), "correctness-number");
        assert_eq!(broken(|v| v["results"][0]["timestamp"] = json!(1)), "timestamp-text");
        assert_eq!(broken(|v| v["results"][0]["objectives"] = json!(1)), "objectives-list");
        assert_eq!(broken(|v| v["results"][0]["measurements"] = json!(1)), "measurements-list");
        assert_eq!(broken(|v| v["results"][0]["measurements"][0] = json!(1)), "measurement-object");
        assert_eq!(
            broken(|v| v["results"][0]["measurements"][0]["value"] = json!(true)),
            "measurement-value"
        );
        assert_eq!(
            broken(|v| v["results"][0]["measurements"][0]["unit"] = json!(1)),
            "measurement-text"
        );
        assert_eq!(broken(|v| v["results"][0]["times"]["runtimes"] = json!(1)), "runtimes-list");
        assert_eq!(broken(|v| v["results"][0]["times"]["framework"] = json!("1")), "times-number");
        let required = broken(|v| {
            v["results"][0].as_object_mut().map(|o| o.remove("invalidity"));
        });
        assert_eq!(required, "required");
    }
}
