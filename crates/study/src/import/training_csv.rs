//! Our training CSV: one line that names the family and the target, a header, one line a
//! candidate. `crate::export::training_csv` writes it.
//!
//! ```text
//! #tilewright-training-v1,gpu-rows,apple-m1-max
//! case,shape,operator,candidate,incumbent,label_us,samples_us,programs,subgroups,…
//! softmax_23x769,23x769,softmax,"256 threads, cache",0,3.25,3.2;3.25;3.5,23,8,…
//! ```

use tilewright_plan::calibrate::Sample;
use tilewright_plan::policy::whole_launch::{Family, MAX_INPUTS};

use super::kernel_tuner::fault;
use super::{ImportError, Limits, Training, TrainingRow};

/// What the file starts with.
pub const MAGIC: &str = "#tilewright-training-v1,";

/// Columns before the family's inputs.
pub const COLUMNS: [&str; 7] =
    ["case", "shape", "operator", "candidate", "incumbent", "label_us", "samples_us"];

/// Reads a training file.
///
/// # Errors
/// Another header, a cell that is no number, a case with two incumbents, or too many rows. Labels
/// are checked where the rows become a dataset.
pub fn parse(text: &str, limits: &Limits) -> Result<Training, ImportError> {
    let (first, table) = text.split_once('\n').ok_or_else(|| fault("line 2", "no header"))?;
    let head: Vec<&str> = first.trim_end().split(',').collect();
    let [_, family, target] = head.as_slice() else {
        return Err(fault("line 1", "it must be the format, the family and the target"));
    };
    let family = Family::by_name(family).ok_or_else(|| {
        let known = Family::ALL.map(Family::name).join(", ");
        fault("line 1", &format!("no family of that name: use {known}"))
    })?;
    let mut reader = csv::ReaderBuilder::new().has_headers(true).from_reader(table.as_bytes());
    let header = reader.headers().map_err(|e| fault("line 2", &e.to_string()))?;
    let wanted: Vec<&str> = COLUMNS.iter().chain(family.inputs()).copied().collect();
    if !header.iter().eq(wanted.iter().copied()) {
        return Err(fault("line 2", &format!("the columns must be {}", wanted.join(","))));
    }
    let mut rows: Vec<TrainingRow> = Vec::new();
    for (i, record) in reader.records().enumerate() {
        let place = format!("line {}", i + 3);
        let record = record.map_err(|e| fault(&place, &e.to_string()))?;
        if rows.len() == limits.trials {
            return Err(ImportError::TooMany { what: "rows", limit: limits.trials });
        }
        let cell = |at: usize| record.get(at).unwrap_or("");
        let number = |text: &str, name: &str| -> Result<f64, ImportError> {
            let value: Option<f64> = text.parse().ok().filter(|v: &f64| v.is_finite());
            value.ok_or_else(|| fault(&place, &format!("`{name}` is no finite number")))
        };
        let samples = cell(6).split(';').filter(|s| !s.is_empty());
        let samples: Result<Vec<f64>, _> = samples.map(|s| number(s, "samples_us")).collect();
        let mut inputs = [0.0; MAX_INPUTS];
        for (at, (slot, name)) in inputs.iter_mut().zip(family.inputs()).enumerate() {
            *slot = number(cell(COLUMNS.len() + at), name)?;
            if *slot < 0.0 {
                return Err(fault(&place, &format!("`{name}` is negative")));
            }
        }
        let text = |at: usize| cell(at).to_string();
        let incumbent = match cell(4) {
            "0" => false,
            "1" => true,
            _ => return Err(fault(&place, "`incumbent` must be 0 or 1")),
        };
        if incumbent && rows.iter().any(|r| r.incumbent && r.sample.case == cell(0)) {
            return Err(fault(&place, "the case has an incumbent already"));
        }
        rows.push(TrainingRow {
            sample: Sample {
                case: text(0),
                shape: text(1),
                operator: text(2),
                candidate: text(3),
                label: number(cell(5), "label_us")?,
                samples: samples?,
            },
            inputs,
            incumbent,
        });
    }
    Ok(Training { family, target: target.to_string(), rows })
}
