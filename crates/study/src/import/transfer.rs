//! Across devices: what a choice that was made on one device is worth on another that ran the same
//! space.

use std::collections::{BTreeMap, HashMap};

use tilewright_plan::calibrate::lstsq::{self, Matrix};
use tilewright_plan::calibrate::mean;

use super::{ImportError, Space};

/// How picks made with one device's times do on another device.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct TransferReport {
    /// Configurations that both devices measured.
    pub common: usize,
    /// Rank correlation (Spearman) of the two devices' times.
    pub rank_correlation: f64,
    /// Regret on the second device of the first one's fastest configuration.
    pub best_of_first: f64,
    /// The same when the first device's three and ten fastest are measured on the second.
    pub best_of_first_three: f64,
    /// See `best_of_first_three`.
    pub best_of_first_ten: f64,
    /// Regret on the second device of the pick of a model fitted on the first: the logarithm of
    /// the time as a sum of one effect per value of each parameter.
    pub model: f64,
    /// The same when the model's three and ten best are measured on the second.
    pub model_three: f64,
    /// See `model_three`.
    pub model_ten: f64,
    /// Regret on the first device of the same model's pick, for comparison.
    pub model_at_home: f64,
    /// Mean and median regret of the space on the second device: a blind pick.
    pub blind_mean: f64,
    /// See `blind_mean`.
    pub blind_median: f64,
    /// The configuration that is fastest on the first device, and on the second.
    pub fastest: [String; 2],
}

/// Picks with the first device's times and measures on the second.
///
/// # Errors
/// The spaces have other parameters, or fewer than two configurations in common.
pub fn transfer(first: &Space, second: &Space) -> Result<TransferReport, ImportError> {
    if first.parameters != second.parameters {
        return Err(ImportError::format("parameters", "the two spaces have different ones"));
    }
    let times: HashMap<String, f64> = second.measured().map(|(t, v)| (second.key(t), v)).collect();
    let mut common = Vec::new();
    for (trial, time) in first.measured() {
        if let Some(other) = times.get(&first.key(trial)) {
            common.push((trial, time, *other));
        }
    }
    if common.len() < 2 {
        return Err(ImportError::format("trials", "fewer than two measured on both devices"));
    }
    let home: Vec<f64> = common.iter().map(|c| c.1).collect();
    let away: Vec<f64> = common.iter().map(|c| c.2).collect();
    let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let (best_home, best_away) = (least(&home), least(&away));
    let regret_of = |order: &[usize], top: usize| {
        let tried: Vec<f64> = order.iter().take(top).map(|i| away[*i]).collect();
        least(&tried) / best_away - 1.0
    };
    let by_home = order(&home);
    let codes: Vec<Vec<String>> = common
        .iter()
        .map(|(trial, _, _)| trial.configuration.iter().map(|v| v.to_string()).collect())
        .collect();
    let predictions = main_effects(&codes, &home);
    let by_model = order(&predictions);
    let mut blind: Vec<f64> = away.iter().map(|t| t / best_away - 1.0).collect();
    blind.sort_by(f64::total_cmp);
    let fastest = |order: &[usize], space: &Space| {
        order.first().map_or(String::new(), |i| space.describe(common[*i].0))
    };
    Ok(TransferReport {
        common: common.len(),
        rank_correlation: correlation(&ranks(&home), &ranks(&away)),
        best_of_first: regret_of(&by_home, 1),
        best_of_first_three: regret_of(&by_home, 3),
        best_of_first_ten: regret_of(&by_home, 10),
        model: regret_of(&by_model, 1),
        model_three: regret_of(&by_model, 3),
        model_ten: regret_of(&by_model, 10),
        model_at_home: by_model.first().map_or(0.0, |i| home[*i] / best_home - 1.0),
        blind_mean: mean(blind.iter().copied()),
        blind_median: tilewright_plan::calibrate::bands::quantile(&blind, 0.5),
        fastest: [fastest(&by_home, first), fastest(&order(&away), second)],
    })
}

/// Indices by ascending value, the first of equals first.
fn order(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    order
}

/// Ranks from 0; equal values share the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let order = order(values);
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    while start < order.len() {
        let value = values[order[start]];
        let end = order[start..].iter().take_while(|i| values[**i] == value).count() + start;
        for i in &order[start..end] {
            ranks[*i] = (start + end - 1) as f64 / 2.0;
        }
        start = end;
    }
    ranks
}

fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let (ma, mb) = (mean(a.iter().copied()), mean(b.iter().copied()));
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (x, y) in a.iter().zip(b) {
        ab += (x - ma) * (y - mb);
        aa += (x - ma) * (x - ma);
        bb += (y - mb) * (y - mb);
    }
    if aa == 0.0 || bb == 0.0 { 0.0 } else { ab / (aa * bb).sqrt() }
}

/// Predicted log times: least squares with one effect per value of each parameter, the first
/// value of each being the base.
fn main_effects(codes: &[Vec<String>], times: &[f64]) -> Vec<f64> {
    let parameters = codes.first().map_or(0, Vec::len);
    let mut columns = vec![vec![1.0; codes.len()]];
    for p in 0..parameters {
        let mut values: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for code in codes {
            values.entry(&code[p]).or_insert_with(|| vec![0.0; codes.len()]);
        }
        for (row, code) in codes.iter().enumerate() {
            if let Some(column) = values.get_mut(code[p].as_str()) {
                column[row] = 1.0;
            }
        }
        columns.extend(values.into_values().skip(1));
    }
    let logs: Vec<f64> = times.iter().map(|t| t.ln()).collect();
    // Columns of equal length by construction.
    match Matrix::from_columns(columns) {
        Ok(matrix) => matrix.times(&lstsq::solve(&matrix, &logs)),
        Err(_) => logs,
    }
}

#[cfg(test)]
mod tests {
    use super::super::space::{Overheads, ParamValue, TimeUnit, Trial};
    use super::*;

    fn space(time: impl Fn(i64, i64) -> f64) -> Space {
        let mut trials = Vec::new();
        for a in 0..4 {
            for b in 0..5 {
                trials.push(Trial {
                    configuration: vec![ParamValue::Int(a), ParamValue::Int(b)],
                    time: Ok(time(a, b)),
                    samples: Vec::new(),
                    timestamp: None,
                    overheads: Overheads::default(),
                });
            }
        }
        Space {
            device: None,
            kernel: None,
            problem: None,
            parameters: vec!["a".to_string(), "b".to_string()],
            objective: "time".to_string(),
            unit: TimeUnit::Milliseconds,
            trials,
        }
    }

    #[test]
    fn a_device_transfers_to_itself() {
        let own = space(|a, b| (1.0 + a as f64) * (2.0 + b as f64));
        let report = transfer(&own, &own).unwrap();
        assert_eq!(report.common, 20);
        assert!((report.rank_correlation - 1.0).abs() < 1e-12);
        assert_eq!((report.best_of_first, report.model, report.model_at_home), (0.0, 0.0, 0.0));
        assert_eq!(report.fastest, ["a=0 b=0", "a=0 b=0"]);
    }

    #[test]
    fn the_opposite_device_gets_the_worst_pick() {
        let first = space(|a, b| (1.0 + a as f64) * (2.0 + b as f64));
        let second = space(|a, b| 1.0 / ((1.0 + a as f64) * (2.0 + b as f64)));
        let report = transfer(&first, &second).unwrap();
        assert!((report.rank_correlation + 1.0).abs() < 1e-12);
        // 1/2 where 1/24 is best.
        assert!((report.best_of_first - 11.0).abs() < 1e-9);
        assert!(report.model_three < report.model);
    }

    #[test]
    fn spaces_must_match() {
        let own = space(|_, _| 1.0);
        let mut other = own.clone();
        other.parameters[0] = "c".to_string();
        assert!(transfer(&own, &other).is_err());
        let mut few = own.clone();
        few.trials.truncate(1);
        assert!(transfer(&own, &few).is_err());
    }

    #[test]
    fn equal_values_share_their_rank() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [2.5, 0.0, 2.5, 1.0]);
    }
}
