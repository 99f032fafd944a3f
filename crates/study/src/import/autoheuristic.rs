//! Text logs of PyTorch's AutoHeuristic: a line of JSON (`numerical_features`,
//! `categorical_features`, device facts), a CSV header that ends in `choice,feedback`, and one
//! line a measurement. The features are the problem, the choice is the configuration, the
//! feedback its time in milliseconds; an infinite feedback is a failure.

use serde_json::Value;

use super::kernel_tuner::fault;
use super::space::{Failure, Overheads, ParamValue, Space, TimeUnit, Trial};
use super::{ImportError, Limits, file};

/// Whether a text starts like such a log.
pub fn looks_like(text: &str) -> bool {
    let first = text.lines().next().unwrap_or("");
    first.starts_with('{') && first.contains("\"numerical_features\"")
}

/// Reads a log: one space for each distinct problem, in order of first appearance.
///
/// # Errors
/// The first line isn't the JSON, the header lacks a column, or a line doesn't fit it.
pub fn parse(text: &str, limits: &Limits) -> Result<Vec<Space>, ImportError> {
    let (first, table) = text.split_once('\n').ok_or_else(|| fault("line 2", "no header"))?;
    let metadata = file::json(first.trim().as_bytes(), limits)?;
    for key in ["numerical_features", "categorical_features"] {
        if !metadata[key].is_array() {
            return Err(fault("line 1", &format!("`{key}` must be a list of names")));
        }
    }
    let mut reader = csv::ReaderBuilder::new().has_headers(true).from_reader(table.as_bytes());
    let header = reader.headers().map_err(|e| fault("line 2", &e.to_string()))?.clone();
    let column = |name: &str| {
        let place = header.iter().position(|h| h == name);
        place.ok_or_else(|| fault("line 2", &format!("no column `{name}`")))
    };
    let (choice, feedback) = (column("choice")?, column("feedback")?);
    let listed = ["numerical_features", "categorical_features"];
    let named = listed.iter().flat_map(|key| metadata[*key].as_array().into_iter().flatten());
    for name in named.filter_map(Value::as_str) {
        column(name)?;
    }
    let mut spaces: Vec<Space> = Vec::new();
    let mut index: std::collections::HashMap<String, usize> = Default::default();
    let mut rows = 0usize;
    for (i, record) in reader.records().enumerate() {
        let place = format!("line {}", i + 3);
        let record = record.map_err(|e| fault(&place, &e.to_string()))?;
        rows += 1;
        if rows > limits.trials {
            return Err(ImportError::TooMany { what: "rows", limit: limits.trials });
        }
        let cell = |at: usize| record.get(at).unwrap_or("");
        let features: Vec<String> = (0..header.len())
            .filter(|at| *at != choice && *at != feedback)
            .map(|at| format!("{}={}", header.get(at).unwrap_or(""), cell(at)))
            .collect();
        let problem = features.join(", ");
        let time: f64 = cell(feedback)
            .trim()
            .parse()
            .map_err(|_| fault(&place, "its feedback is no number"))?;
        let time = if time.is_finite() && time > 0.0 {
            Ok(time)
        } else if time == f64::INFINITY || time.is_nan() {
            Err(Failure::Runtime)
        } else {
            return Err(fault(&place, "its feedback isn't positive"));
        };
        if cell(choice).len() > super::names::MAX_NAME {
            return Err(fault(&place, "its choice is too long"));
        }
        let at = *index.entry(problem.clone()).or_insert_with(|| {
            spaces.push(Space {
                device: None,
                kernel: metadata["name"].as_str().map(str::to_string),
                problem: Some(problem.clone()),
                parameters: vec!["choice".to_string()],
                objective: "time".to_string(),
                unit: TimeUnit::Milliseconds,
                trials: Vec::new(),
            });
            spaces.len() - 1
        });
        spaces[at].trials.push(Trial {
            configuration: vec![ParamValue::Text(cell(choice).to_string())],
            time,
            samples: Vec::new(),
            timestamp: None,
            overheads: Overheads::default(),
        });
    }
    Ok(spaces)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "{\"shared_memory\": 166912, \"device_capa\": [8, 0], \"name\": \"mm\", \
        \"numerical_features\": [\"m\", \"k\"], \"categorical_features\": [\"dtype\"]}\n\
        m,k,dtype,choice,feedback\n\
        16,32,f16,extern_mm,0.5\n\
        16,32,f16,type=triton_BLOCK-M=16,0.25\n\
        64,32,f16,extern_mm,inf\n";

    #[test]
    fn a_log_reads_problem_by_problem() {
        assert!(looks_like(LOG));
        let spaces = parse(LOG, &Limits::default()).unwrap();
        assert_eq!(spaces.len(), 2);
        assert_eq!(spaces[0].problem.as_deref(), Some("m=16, k=32, dtype=f16"));
        let (best, time) = spaces[0].best().unwrap();
        assert_eq!(
            (best.configuration[0].to_string().as_str(), time),
            ("type=triton_BLOCK-M=16", 0.25)
        );
        assert_eq!(spaces[1].trials[0].time, Err(Failure::Runtime));
    }

    #[test]
    fn faults_name_their_line() {
        let broken = |from: &str, to: &str| {
            parse(&LOG.replace(from, to), &Limits::default()).unwrap_err().to_string()
        };
        assert!(broken("feedback", "time").contains("line 2"));
        assert!(broken("m,k,dtype", "m,j,dtype").contains("column `k`"));
        assert!(broken("0.25", "fast").contains("line 4"));
        assert!(broken("0.25", "-1").contains("line 4"));
        assert!(broken("extern_mm,0.5", "0.5").contains("line 3"));
        assert!(broken("[\"m\", \"k\"]", "7").contains("line 1"));
    }
}
