//! Fitting and choosing by regret.
//!
//! The fit minimises Σ weight·(prediction/label − 1)² with nonnegative coefficients. A design is chosen
//! by the *regret* of its picks on held-out groups, not by its fit error: what counts is which
//! candidate a model picks. The nested protocol repeats that choice inside every outer fold, so
//! that the reported regret owes nothing to the held-out labels.

use super::data::{DataError, Dataset, Split};
use super::{anchor, nnls};

/// How the designs of a dataset become one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// The design with the smallest mean held-out regret; ties to the earlier (simpler) one.
    Select,
    /// Every design, fitted, with equal weight: the mean of their predictions.
    Average,
}

/// One fitted design.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    /// Index of the design in its dataset.
    pub design: usize,
    /// One nonnegative coefficient per feature.
    pub coefficients: Vec<f64>,
    /// √(weighted mean (prediction/label − 1)²) over the training rows.
    pub relative_rmse: f64,
    /// How strongly the coefficients were kept near 1 ([`super::anchor`]); `None` where they were free.
    pub strength: Option<f64>,
}

impl Fitted {
    /// The predicted time of a feature row in microseconds, summed in feature order.
    pub fn predict(&self, features: &[f64]) -> f64 {
        features.iter().zip(&self.coefficients).map(|(f, c)| f * c).sum()
    }
}

/// Fits one design to the given rows.
///
/// # Errors
/// [`DataError`] when there is nothing to fit.
pub fn fit(data: &Dataset, design: usize, rows: &[usize]) -> Result<Fitted, DataError> {
    let matrix = data.relative(design, rows)?;
    let targets = data.targets(rows);
    let solution = nnls::solve(&matrix, &targets)?;
    let weights: f64 = targets.iter().map(|root| root * root).sum();
    Ok(Fitted {
        design,
        coefficients: solution.coefficients,
        relative_rmse: (solution.loss / weights).sqrt(),
        strength: None,
    })
}

/// A pick in one case.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// The case.
    pub case: String,
    /// Row of the chosen sample: smallest prediction, the first of equals.
    pub row: usize,
    /// Its predicted time.
    pub prediction: f64,
    /// Its label.
    pub label: f64,
    /// Smallest label of the case.
    pub best: f64,
    /// Smallest label among the three smallest predictions.
    pub best_of_three: f64,
}

impl Pick {
    /// Measured(pick)/measured(best) − 1.
    pub fn regret(&self) -> f64 {
        self.label / self.best - 1.0
    }

    /// Regret when the three best-ranked candidates are measured.
    pub fn top3_regret(&self) -> f64 {
        self.best_of_three / self.best - 1.0
    }
}

/// The mean of some numbers; 0 of none.
pub fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = values.len();
    if n == 0 { 0.0 } else { values.sum::<f64>() / n as f64 }
}

/// The predicted time of a row in microseconds: the mean over the fitted designs.
pub fn predict(data: &Dataset, models: &[Fitted], row: usize) -> f64 {
    mean(models.iter().map(|m| m.predict(&data.designs()[m.design].rows[row])))
}

/// Picks of one or more fitted designs in every case among `rows`.
pub fn picks(data: &Dataset, models: &[Fitted], rows: &[usize]) -> Vec<Pick> {
    picks_by(data, rows, |row| predict(data, models, row))
}

/// Picks by any score: in every case the smallest, the first of equals.
pub fn picks_by(data: &Dataset, rows: &[usize], predict: impl Fn(usize) -> f64) -> Vec<Pick> {
    let mut out = Vec::new();
    for (case, rows) in data.cases(rows) {
        let mut ranked: Vec<(f64, usize)> = rows.iter().map(|r| (predict(*r), *r)).collect();
        // A stable sort: of equal predictions the earlier row wins.
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        let label = |row: usize| data.samples()[row].label;
        let best = rows.iter().map(|r| label(*r)).fold(f64::INFINITY, f64::min);
        let best_of_three =
            ranked.iter().take(3).map(|(_, r)| label(*r)).fold(f64::INFINITY, f64::min);
        if let Some((prediction, row)) = ranked.first().copied() {
            out.push(Pick { case, row, prediction, label: label(row), best, best_of_three });
        }
    }
    out
}

/// Leaves each group out once: fits one design on the rest and picks in the group. Picks come
/// group by group.
///
/// # Errors
/// [`DataError::Groups`] with fewer than two groups.
pub fn leave_one_out(
    data: &Dataset,
    design: usize,
    rows: &[usize],
    split: Split,
) -> Result<Vec<Pick>, DataError> {
    let groups = data.groups(rows, split);
    if groups.len() < 2 {
        return Err(DataError::Groups { groups: groups.len() });
    }
    let mut out = Vec::new();
    for (_, held) in &groups {
        let train = data.without(rows, held);
        out.extend(picks(data, &[fit(data, design, &train)?], held));
    }
    Ok(out)
}

/// The design with the smallest mean leave-one-out regret on the given rows; ties to the earlier.
///
/// # Errors
/// As [`leave_one_out`].
pub fn select(data: &Dataset, rows: &[usize], split: Split) -> Result<usize, DataError> {
    let mut best: Option<(f64, usize)> = None;
    for design in 0..data.designs().len() {
        let regret = mean(leave_one_out(data, design, rows, split)?.iter().map(Pick::regret));
        if best.is_none_or(|(b, _)| regret < b) {
            best = Some((regret, design));
        }
    }
    best.map(|(_, design)| design).ok_or(DataError::NoDesign)
}

/// Fits the model of a strategy on the given rows; of anchored data every design, near what its
/// coefficients were ([`super::anchor`]).
///
/// # Errors
/// As [`leave_one_out`].
pub fn train(
    data: &Dataset,
    rows: &[usize],
    split: Split,
    strategy: Strategy,
) -> Result<Vec<Fitted>, DataError> {
    if data.is_anchored() {
        return anchor::train(data, rows, split);
    }
    match strategy {
        Strategy::Select => Ok(vec![fit(data, select(data, rows, split)?, rows)?]),
        Strategy::Average => (0..data.designs().len()).map(|d| fit(data, d, rows)).collect(),
    }
}

/// One outer fold of the nested protocol.
#[derive(Clone, Debug, PartialEq)]
pub struct OuterFold {
    /// The group that was held out.
    pub group: String,
    /// What was trained without it.
    pub models: Vec<Fitted>,
    /// Its picks in the held-out cases.
    pub picks: Vec<Pick>,
    /// Its prediction of every held-out row.
    pub predictions: Vec<(usize, f64)>,
}

/// Nested leave-one-out: the whole procedure, choice included, runs inside every outer fold.
///
/// # Errors
/// As [`leave_one_out`].
pub fn nested(
    data: &Dataset,
    split: Split,
    strategy: Strategy,
) -> Result<Vec<OuterFold>, DataError> {
    let all = data.all();
    let groups = data.groups(&all, split);
    if groups.len() < 2 {
        return Err(DataError::Groups { groups: groups.len() });
    }
    groups.into_iter().map(|(group, held)| fold(data, group, &held, split, strategy)).collect()
}

/// A frozen split: trains on every row whose shape isn't among `held`, and picks in the rest. The
/// choice of a design sees training rows only.
///
/// # Errors
/// As [`leave_one_out`]; [`DataError::NoShape`] for a shape that no row has.
pub fn frozen(data: &Dataset, held: &[String], strategy: Strategy) -> Result<OuterFold, DataError> {
    let shape = |row: &usize| &data.samples()[*row].shape;
    let all = data.all();
    if let Some(shape) = held.iter().find(|h| !all.iter().any(|r| shape(r) == *h)) {
        return Err(DataError::NoShape { shape: shape.clone() });
    }
    let rows: Vec<usize> = all.into_iter().filter(|r| held.contains(shape(r))).collect();
    fold(data, held.join(", "), &rows, Split::Shape, strategy)
}

fn fold(
    data: &Dataset,
    group: String,
    held: &[usize],
    split: Split,
    strategy: Strategy,
) -> Result<OuterFold, DataError> {
    let rows = data.without(&data.all(), held);
    let models = train(data, &rows, split, strategy)?;
    let picks = picks(data, &models, held);
    let predictions = held.iter().map(|r| (*r, predict(data, &models, *r))).collect();
    Ok(OuterFold { group, models, picks, predictions })
}
