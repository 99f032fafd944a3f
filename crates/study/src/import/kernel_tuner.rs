//! Cache files of Kernel Tuner (its schema versions 1.0.0 to 1.1.0, and the older files without
//! one). Times are milliseconds; a time may be the name of a failure.

use serde_json::{Map, Value};

use super::space::{Failure, Overheads, ParamValue, Space, TimeUnit, Trial};
use super::{ImportError, Limits};

/// Reads a cache file.
///
/// # Errors
/// A field is missing or of another type, or there are more trials than the limit.
pub fn parse(value: &Value, limits: &Limits) -> Result<Space, ImportError> {
    let root = object(value, "the file")?;
    let names = root.get("tune_params_keys").and_then(Value::as_array);
    let names = names.ok_or_else(|| fault("tune_params_keys", "it must be a list of names"))?;
    let parameters = names
        .iter()
        .map(|n| n.as_str().map(str::to_string))
        .collect::<Option<Vec<String>>>()
        .ok_or_else(|| fault("tune_params_keys", "every name must be text"))?;
    let objective = match root.get("objective") {
        None => "time".to_string(),
        Some(Value::String(name)) => name.clone(),
        Some(_) => return Err(fault("objective", "it must be text")),
    };
    if objective != "time" {
        return Err(fault("objective", "only `time` is read"));
    }
    let cache = object(root.get("cache").unwrap_or(&Value::Null), "cache")?;
    if cache.len() > limits.trials {
        return Err(ImportError::TooMany { what: "trials", limit: limits.trials });
    }
    let mut trials = Vec::with_capacity(cache.len());
    for (key, entry) in cache {
        let place = format!("cache[`{}`]", super::names::printable(key));
        let entry = object(entry, &place)?;
        let mut configuration = Vec::with_capacity(parameters.len());
        for name in &parameters {
            configuration.push(param(entry.get(name), &format!("{place}.{name}"))?);
        }
        let time = match entry.get("time") {
            Some(Value::Number(n)) => {
                let time = n.as_f64().filter(|t| t.is_finite() && *t > 0.0);
                Ok(time.ok_or_else(|| fault(&place, "its time isn't positive"))?)
            }
            Some(Value::String(word)) => Err(match word.as_str() {
                "InvalidConfig" => Failure::Constraints,
                "CompilationFailedConfig" => Failure::Compile,
                "RuntimeFailedConfig" => Failure::Runtime,
                _ => return Err(fault(&place, "its time is neither a number nor a failure")),
            }),
            Some(Value::Null) => Err(Failure::Runtime),
            _ => return Err(fault(&place, "it has no time")),
        };
        trials.push(Trial {
            configuration,
            time,
            samples: numbers(entry.get("times"), &format!("{place}.times"))?,
            timestamp: entry.get("timestamp").and_then(Value::as_str).map(str::to_string),
            overheads: Overheads {
                compilation: number(entry, "compile_time"),
                framework: number(entry, "framework_time"),
                search_algorithm: number(entry, "strategy_time"),
                validation: number(entry, "verification_time"),
            },
        });
    }
    let text = |key: &str| {
        let text = root.get(key).and_then(Value::as_str);
        text.filter(|t| !t.is_empty()).map(str::to_string)
    };
    let problem = match root.get("problem_size") {
        Some(Value::Array(sizes)) => {
            Some(sizes.iter().map(|s| s.to_string()).collect::<Vec<_>>().join("x"))
        }
        Some(Value::Null) | None => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(other) => Some(other.to_string()),
    };
    Ok(Space {
        device: text("device_name"),
        kernel: text("kernel_name"),
        problem,
        parameters,
        objective,
        unit: TimeUnit::Milliseconds,
        trials,
    })
}

/// The text of a cache file that its tuner left open: entries are appended with a comma after
/// each, and the braces are closed when tuning ends. `None` if it doesn't look like one.
pub(super) fn closed(bytes: &[u8]) -> Option<Vec<u8>> {
    let text = bytes.trim_ascii_end();
    let open = text.strip_suffix(b",")?;
    let head = open.get(..open.len().min(1 << 16)).unwrap_or_default();
    let named = head.windows(b"\"tune_params_keys\"".len()).any(|w| w == b"\"tune_params_keys\"");
    named.then(|| [open, b"}}"].concat())
}

pub(super) fn fault(place: &str, problem: &str) -> ImportError {
    ImportError::format(place, problem)
}

pub(super) fn object<'a>(
    value: &'a Value,
    place: &str,
) -> Result<&'a Map<String, Value>, ImportError> {
    value.as_object().ok_or_else(|| fault(place, "it must be an object"))
}

/// A parameter's value.
pub(super) fn param(value: Option<&Value>, place: &str) -> Result<ParamValue, ImportError> {
    Ok(match value {
        Some(Value::Number(n)) => match (n.as_i64(), n.as_f64()) {
            (Some(int), _) => ParamValue::Int(int),
            (None, Some(float)) => ParamValue::Float(float),
            (None, None) => return Err(fault(place, "a number that can't be used")),
        },
        Some(Value::String(text)) if text.len() <= super::names::MAX_NAME => {
            ParamValue::Text(text.clone())
        }
        Some(Value::String(_)) => return Err(fault(place, "its text is too long")),
        Some(Value::Bool(flag)) => ParamValue::Bool(*flag),
        Some(_) => return Err(fault(place, "a value must be a number, text or a truth value")),
        None => return Err(fault(place, "the parameter has no value")),
    })
}

/// A list of numbers, empty where there is none.
pub(super) fn numbers(value: Option<&Value>, place: &str) -> Result<Vec<f64>, ImportError> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => items
            .iter()
            .map(|v| v.as_f64().filter(|n| n.is_finite()))
            .collect::<Option<Vec<f64>>>()
            .ok_or_else(|| fault(place, "it must hold numbers only")),
        Some(_) => Err(fault(place, "it must be a list")),
    }
}

/// An optional number of an object.
pub(super) fn number(fields: &Map<String, Value>, key: &str) -> Option<f64> {
    fields.get(key).and_then(Value::as_f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample() -> Value {
        json!({
            "device_name": "G", "kernel_name": "k", "problem_size": [4096, 1],
            "tune_params_keys": ["bx", "mode"], "tune_params": {"bx": [1, 2], "mode": ["a"]},
            "objective": "time",
            "cache": {
                "1,a": {"bx": 1, "mode": "a", "time": 2.0, "times": [1.5, 2.0, 2.5],
                        "compile_time": 3.0},
                "2,a": {"bx": 2, "mode": "a", "time": "CompilationFailedConfig"}
            }
        })
    }

    #[test]
    fn a_cache_file_reads() {
        let space = parse(&sample(), &Limits::default()).unwrap();
        assert_eq!(space.problem.as_deref(), Some("4096x1"));
        assert_eq!(space.trials.len(), 2);
        let (best, time) = space.best().unwrap();
        assert_eq!((space.describe(best).as_str(), time), ("bx=1 mode=a", 2.0));
        assert_eq!(best.overheads.compilation, Some(3.0));
        assert_eq!(space.trials[1].time, Err(Failure::Compile));
    }

    #[test]
    fn a_cache_file_that_was_left_open_reads() {
        let whole = sample().to_string();
        let entry = r#""1,a":"#;
        let at = whole.find(entry).unwrap();
        let brace = at + whole[at..].find("}").unwrap() + 1;
        // serde_json sorts the keys: put the cache last, as the tuner does.
        let open = format!(
            r#"{{"device_name": "G", "kernel_name": "k", "problem_size": "", "tune_params_keys":
            ["bx", "mode"], "tune_params": {{}}, "objective": "time", "cache": {{{},
            "#,
            &whole[at..brace]
        );
        let limits = Limits::default();
        let read = super::super::detect(open.as_bytes(), &limits).unwrap();
        let super::super::Imported::Spaces(spaces) = read else { panic!("a space") };
        assert_eq!(spaces[0].trials.len(), 1);
        assert!(super::super::detect(b"{\"a\": {\"b\": 1},", &limits).is_err());
    }

    #[test]
    fn faults_name_their_place() {
        let edit = |change: fn(&mut Value)| {
            let mut value = sample();
            change(&mut value);
            parse(&value, &Limits::default()).unwrap_err().to_string()
        };
        assert!(edit(|v| v["tune_params_keys"] = json!(7)).contains("tune_params_keys"));
        assert!(edit(|v| v["cache"]["1,a"]["time"] = json!(-1)).contains("1,a"));
        assert!(edit(|v| v["cache"]["1,a"]["time"] = json!("Oops")).contains("failure"));
        assert!(edit(|v| v["cache"]["1,a"]["bx"] = json!([1])).contains("bx"));
        assert!(edit(|v| v["objective"] = json!("energy")).contains("objective"));
        let few = Limits { trials: 1, ..Limits::default() };
        assert!(matches!(parse(&sample(), &few), Err(ImportError::TooMany { .. })));
    }
}
