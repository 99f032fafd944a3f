//! Measurements for others: T4 results, and CSV of spaces and of training rows.

use serde_json::{Map, Value, json};

use crate::import::{ParamValue, Space, Training, training_csv};

/// A value of a tuning parameter in JSON.
fn param(value: &ParamValue) -> Value {
    match value {
        ParamValue::Int(v) => json!(v),
        ParamValue::Float(v) => json!(v),
        ParamValue::Text(v) => json!(v),
        ParamValue::Bool(v) => json!(v),
    }
}

/// A space as T4 results, version 1.0.0. It validates against the schema and reads back the same.
pub fn t4(space: &Space) -> Value {
    let mut metadata = Map::new();
    metadata.insert("timeunit".to_string(), json!(space.unit.name()));
    metadata.insert("parameters".to_string(), json!(space.parameters));
    let texts = [("device", &space.device), ("kernel", &space.kernel), ("problem", &space.problem)];
    for (key, value) in texts {
        if let Some(value) = value {
            metadata.insert(key.to_string(), json!(value));
        }
    }
    let results: Vec<Value> = space
        .trials
        .iter()
        .map(|trial| {
            let pairs = space.parameters.iter().zip(&trial.configuration);
            let configuration: Map<String, Value> =
                pairs.map(|(name, value)| (name.clone(), param(value))).collect();
            let mut times = Map::new();
            times.insert("runtimes".to_string(), json!(trial.samples));
            for (key, value) in [
                ("compilation_time", trial.overheads.compilation),
                ("framework", trial.overheads.framework),
                ("search_algorithm", trial.overheads.search_algorithm),
                ("validation", trial.overheads.validation),
            ] {
                if let Some(value) = value {
                    times.insert(key.to_string(), json!(value));
                }
            }
            let mut result = Map::new();
            result.insert("configuration".to_string(), Value::Object(configuration));
            result.insert("times".to_string(), Value::Object(times));
            result.insert("objectives".to_string(), json!([space.objective]));
            let measurements = match trial.time {
                Ok(time) => {
                    json!([{"name": space.objective, "value": time, "unit": space.unit.name()}])
                }
                Err(_) => json!([]),
            };
            result.insert("measurements".to_string(), measurements);
            let word = trial.time.map_or_else(|failure| failure.name(), |_| "correct");
            result.insert("invalidity".to_string(), json!(word));
            result.insert("correctness".to_string(), json!(u8::from(trial.time.is_ok())));
            if let Some(timestamp) = &trial.timestamp {
                result.insert("timestamp".to_string(), json!(timestamp));
            }
            Value::Object(result)
        })
        .collect();
    json!({"schema_version": "1.0.0", "metadata": metadata, "results": results})
}

/// Why a CSV can't be written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The writer failed.
    #[error("can't write CSV: {0}")]
    Csv(#[from] csv::Error),
    /// The target's name would break the first line.
    #[error("a target's name in a training file has no comma or line break: `{0}`")]
    Target(String),
}

fn text(writer: csv::Writer<Vec<u8>>) -> String {
    // Everything written was text.
    writer.into_inner().ok().and_then(|b| String::from_utf8(b).ok()).unwrap_or_default()
}

/// A space as CSV: the parameters, then `result` (`correct` or the failure), `time`, `samples`
/// (joined by `;`), in the space's unit.
///
/// # Errors
/// The writer fails.
pub fn space_csv(space: &Space) -> Result<String, ExportError> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let time = format!("time_{}", space.unit.name());
    let samples = format!("samples_{}", space.unit.name());
    let heading = space.parameters.iter().map(String::as_str);
    writer.write_record(heading.chain(["result", time.as_str(), samples.as_str()]))?;
    for trial in &space.trials {
        let mut cells: Vec<String> = trial.configuration.iter().map(|v| v.to_string()).collect();
        cells.push(trial.time.map_or_else(|f| f.name(), |_| "correct").to_string());
        cells.push(trial.time.map_or(String::new(), |t| t.to_string()));
        cells.push(joined(&trial.samples));
        writer.write_record(&cells)?;
    }
    Ok(text(writer))
}

fn joined(values: &[f64]) -> String {
    values.iter().map(|v| v.to_string()).collect::<Vec<_>>().join(";")
}

/// Training rows as our CSV, which [`training_csv::parse`] reads back the same: numbers are
/// written with the fewest digits that identify them.
///
/// # Errors
/// The target's name has a comma or line break, or the writer fails.
pub fn training(training: &Training) -> Result<String, ExportError> {
    if training.target.contains([',', '\n', '\r']) {
        return Err(ExportError::Target(training.target.clone()));
    }
    let mut writer = csv::Writer::from_writer(Vec::new());
    let inputs = training.family.inputs();
    writer.write_record(training_csv::COLUMNS.iter().chain(inputs))?;
    for row in &training.rows {
        let s = &row.sample;
        let mut cells = vec![
            s.case.clone(),
            s.shape.clone(),
            s.operator.clone(),
            s.candidate.clone(),
            u8::from(row.incumbent).to_string(),
            s.label.to_string(),
            joined(&s.samples),
        ];
        cells.extend(row.inputs.iter().take(inputs.len()).map(|v| v.to_string()));
        writer.write_record(&cells)?;
    }
    let head = format!("{}{},{}\n", training_csv::MAGIC, training.family.name(), training.target);
    Ok(head + &text(writer))
}
