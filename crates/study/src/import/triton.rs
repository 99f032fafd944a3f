//! `*.autotune.json` of Triton's on-disk cache:
//! `{"key": …, "configs_timings": [[configuration, time], …]}`, where the configuration is an
//! object (`kwargs` and launch options) or text, and the time is milliseconds: one number, or the
//! median followed by the 20th and 80th percentile. An infinite time is a failure.

use serde_json::Value;
use std::collections::BTreeMap;

use super::kernel_tuner::{fault, object, param};
use super::space::{Failure, Overheads, ParamValue, Space, TimeUnit, Trial};
use super::{ImportError, Limits};

/// Reads an autotune file.
///
/// # Errors
/// A field is missing or of another type, or there are more trials than the limit.
pub fn parse(value: &Value, limits: &Limits) -> Result<Space, ImportError> {
    let list = value["configs_timings"].as_array();
    let list = list.ok_or_else(|| fault("configs_timings", "it must be a list"))?;
    if list.len() > limits.trials {
        return Err(ImportError::TooMany { what: "trials", limit: limits.trials });
    }
    let mut rows: Vec<(BTreeMap<String, ParamValue>, Result<f64, Failure>)> = Vec::new();
    for (i, entry) in list.iter().enumerate() {
        let place = format!("configs_timings[{i}]");
        let Some([configuration, timing]) = entry.as_array().map(Vec::as_slice) else {
            return Err(fault(&place, "it must be a pair"));
        };
        let time = match timing {
            Value::Array(quantiles) => quantiles.first().unwrap_or(&Value::Null),
            other => other,
        };
        let time = match time {
            // Infinity was read as null.
            Value::Null => Err(Failure::Runtime),
            other => match other.as_f64() {
                Some(t) if t.is_finite() && t > 0.0 => Ok(t),
                _ => return Err(fault(&place, "its time isn't a positive number")),
            },
        };
        rows.push((flatten(configuration, &place)?, time));
    }
    // Options that some configurations leave out stand there as empty text.
    let mut parameters: Vec<String> = rows.iter().flat_map(|(c, _)| c.keys().cloned()).collect();
    parameters.sort();
    parameters.dedup();
    let trials = rows
        .into_iter()
        .map(|(mut configuration, time)| Trial {
            configuration: parameters
                .iter()
                .map(|name| configuration.remove(name).unwrap_or(ParamValue::Text(String::new())))
                .collect(),
            time,
            samples: Vec::new(),
            timestamp: None,
            overheads: Overheads::default(),
        })
        .collect();
    let problem = match &value["key"] {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let words = parts.iter().map(|p| p.as_str().map_or(p.to_string(), str::to_string));
            Some(words.collect::<Vec<_>>().join(", "))
        }
        other => Some(other.to_string()),
    };
    Ok(Space {
        device: None,
        kernel: None,
        problem,
        parameters,
        objective: "time".to_string(),
        unit: TimeUnit::Milliseconds,
        trials,
    })
}

/// The options of a configuration, `kwargs` lifted to the top; options that are null are unset.
fn flatten(value: &Value, place: &str) -> Result<BTreeMap<String, ParamValue>, ImportError> {
    let mut out = BTreeMap::new();
    if let Value::String(_) = value {
        out.insert("config".to_string(), param(Some(value), place)?);
        return Ok(out);
    }
    let fields = object(value, place)?;
    let kwargs = fields.get("kwargs").and_then(Value::as_object);
    let options = fields.iter().filter(|(name, _)| name.as_str() != "kwargs");
    for (name, value) in kwargs.into_iter().flatten().chain(options) {
        if value.is_null() {
            continue;
        }
        let value = param(Some(value), &format!("{place}.{}", super::names::printable(name)))?;
        if out.insert(name.clone(), value).is_some() {
            return Err(fault(place, "an option stands both in kwargs and beside it"));
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::super::file::json;
    use super::*;

    #[test]
    fn an_autotune_file_reads() {
        let text = br#"{"key": [1024, "torch.float16"], "configs_timings": [
            [{"kwargs": {"BLOCK_M": 64}, "num_warps": 4, "maxnreg": null}, [0.5, 0.4, 0.6]],
            [{"kwargs": {"BLOCK_M": 128}, "num_warps": 8, "num_ctas": 1}, [Infinity, Infinity, 1]],
            [{"kwargs": {"BLOCK_M": 32}, "num_warps": 4}, 0.25]]}"#;
        let value = json(text, &Limits::default()).unwrap();
        let space = parse(&value, &Limits::default()).unwrap();
        assert_eq!(space.problem.as_deref(), Some("1024, torch.float16"));
        assert_eq!(space.parameters, ["BLOCK_M", "num_ctas", "num_warps"]);
        let (best, time) = space.best().unwrap();
        assert_eq!(time, 0.25);
        assert_eq!(best.configuration[0], ParamValue::Int(32));
        assert_eq!(space.trials[1].time, Err(Failure::Runtime));
    }

    #[test]
    fn faults_name_their_place() {
        for bad in [
            &br#"{"configs_timings": 1}"#[..],
            br#"{"configs_timings": [[{}]]}"#,
            br#"{"configs_timings": [[{"kwargs": {"a": 1}, "a": 2}, 1.0]]}"#,
            br#"{"configs_timings": [[{"a": [1]}, 1.0]]}"#,
            br#"{"configs_timings": [["c", -1.0]]}"#,
        ] {
            let value = json(bad, &Limits::default()).unwrap();
            let error = parse(&value, &Limits::default()).unwrap_err().to_string();
            assert!(error.starts_with("configs_timings"), "{error}");
        }
    }
}
