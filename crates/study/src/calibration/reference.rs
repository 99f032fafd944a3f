//! The reference system's procedure: six features at six capacities, the capacity with the
//! smallest mean leave-one-shape-out regret, refitted on all rows.

use std::collections::BTreeMap;

use serde::Serialize;
use tilewright_plan::calibrate::service::{CAPACITIES, FEATURES, RowCounts, designs};
use tilewright_plan::calibrate::{
    DataError, Dataset, Evaluation, Pick, Split, fit as fit_design, leave_one_out, picks, predict,
    select,
};
use tilewright_plan::policy::reduction_service::ServiceCoefficients;

use crate::import::Training;

/// The fit at one capacity.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CapacityReport {
    /// Subgroups that the machine is taken to run at once.
    pub capacity: u64,
    /// Coefficients in microseconds, by name.
    pub coefficients: BTreeMap<String, f64>,
    /// Mean regret over the folds.
    pub cv_mean_regret: f64,
    /// Largest regret over the folds.
    pub cv_max_regret: f64,
    /// √(mean (prediction/label − 1)²) on the training rows.
    pub training_relative_rmse: f64,
    /// Picks of the fits that each leave a shape out.
    pub folds: Vec<FoldReport>,
    /// Picks of the fit on all rows.
    pub training_picks: Vec<FoldReport>,
}

/// A pick.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FoldReport {
    /// The case.
    pub case: String,
    /// The candidate picked.
    pub candidate: String,
    /// Its predicted time.
    pub prediction_us: f64,
    /// Its label.
    pub measured_us: f64,
    /// Smallest label of the case.
    pub best_measured_us: f64,
    /// measured/best − 1.
    pub regret: f64,
}

/// All capacities.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ReferenceReport {
    /// The capacity chosen.
    pub chosen: u64,
    /// The fit at each capacity.
    pub capacities: Vec<CapacityReport>,
}

/// The rows with the reference's designs.
pub(super) fn dataset(training: &Training, counts: &[RowCounts]) -> Result<Dataset, DataError> {
    let samples = training.rows.iter().map(|r| r.sample.clone()).collect();
    Dataset::new(samples, designs(counts, &CAPACITIES))
}

/// Fits every capacity and chooses one.
pub(super) fn fit(data: &Dataset) -> Result<(ReferenceReport, ServiceCoefficients), DataError> {
    let all = data.all();
    let mut capacities = Vec::with_capacity(CAPACITIES.len());
    for (design, capacity) in CAPACITIES.into_iter().enumerate() {
        let fitted = fit_design(data, design, &all)?;
        let folds = leave_one_out(data, design, &all, Split::Shape)?;
        let report = |p: &Pick| FoldReport {
            case: p.case.clone(),
            candidate: data.samples()[p.row].candidate.clone(),
            prediction_us: p.prediction,
            measured_us: p.label,
            best_measured_us: p.best,
            regret: p.regret(),
        };
        let names = FEATURES.iter().map(|f| f.to_string());
        let worth = Evaluation { name: String::new(), picks: folds };
        capacities.push(CapacityReport {
            capacity,
            coefficients: names.zip(fitted.coefficients.iter().copied()).collect(),
            cv_mean_regret: worth.mean(),
            cv_max_regret: worth.max(),
            training_relative_rmse: fitted.relative_rmse,
            folds: worth.picks.iter().map(report).collect(),
            training_picks: picks(data, &[fitted], &all).iter().map(report).collect(),
        });
    }
    let chosen = select(data, &all, Split::Shape)?;
    let capacity = CAPACITIES.get(chosen).copied().unwrap_or(0);
    let values = fit_design(data, chosen, &all)?.coefficients;
    let at = |i: usize| values.get(i).copied().unwrap_or(0.0);
    let coefficients = ServiceCoefficients {
        capacity: capacity as u32,
        dispatch: at(0),
        scalar_round: at(1),
        collective: at(2),
        global_program_byte: at(3),
        global_worker_byte: at(4),
        private_worker_byte: at(5),
    };
    Ok((ReferenceReport { chosen: capacity, capacities }, coefficients))
}

/// Every row's prediction at a capacity by the fit that left its shape out.
pub(super) fn folds_of(data: &Dataset, capacity: u64) -> Result<Vec<f64>, DataError> {
    let design = CAPACITIES.iter().position(|c| *c == capacity).ok_or(DataError::NoDesign)?;
    let all = data.all();
    let mut predictions = vec![0.0; all.len()];
    for (_, held) in data.groups(&all, Split::Shape) {
        let rest: Vec<usize> = all.iter().copied().filter(|r| !held.contains(r)).collect();
        let fitted = [fit_design(data, design, &rest)?];
        for row in held {
            predictions[row] = predict(data, &fitted, row);
        }
    }
    Ok(predictions)
}
