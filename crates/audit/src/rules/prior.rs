//! Fits that stay near a prior: what it adds to their rows, and whether its strength is the one that
//! leaving shapes out chooses.

use super::calibration::{Row, picks, relative};
use crate::fit::{nonnegative, reduced};
use crate::math::mean;
use crate::record::{Calibration, Prior};
use crate::verdict::{Checks, Rule};
use std::collections::{BTreeMap, BTreeSet};

/// Most strengths, and most shapes among which they are tried.
const MAX_STRENGTHS: usize = 16;
const MAX_SHAPES: usize = 200;

/// Mean regrets and errors that differ by less are equal: the fitting code and the audit solve by
/// different methods.
const EQUAL: f64 = 1e-6;

/// Rows of a fit and their targets.
pub(super) type System = (Vec<Vec<f64>>, Vec<f64>);

/// A fit's rows with those of the prior: one a coefficient, that weighs strength times as much as all
/// rows of the fit, whose targets are the square roots of their weights.
pub(super) fn with(prior: Option<&Prior>, strength: f64, system: System, weight: f64) -> System {
    let (mut rows, mut targets) = system;
    let (Some(prior), Some(columns)) = (prior, rows.first().map(Vec::len)) else {
        return (rows, targets);
    };
    let root = (strength * weight).sqrt();
    for j in 0..columns {
        rows.push((0..columns).map(|i| if i == j { root } else { 0.0 }).collect());
        targets.push(root * prior.toward);
    }
    (rows, targets)
}

/// Square roots of the weights of some rows.
pub(super) fn roots<'a>(rows: impl Iterator<Item = &'a Row<'a>>) -> Vec<f64> {
    rows.map(|r| r.root).collect()
}

/// The sum of weights by their square roots.
pub(super) fn weight(roots: &[f64]) -> f64 {
    roots.iter().map(|root| root * root).sum()
}

/// Whether a prior can be used at all.
pub(super) fn whole(prior: &Prior) -> bool {
    let positive = |s: &f64| s.is_finite() && *s > 0.0;
    prior.toward.is_finite()
        && prior.toward >= 0.0
        && !prior.strengths.is_empty()
        && prior.strengths.len() <= MAX_STRENGTHS
        && prior.strengths.iter().all(positive)
        && prior.strengths.is_sorted_by(|a, b| a > b)
}

/// A shape's rows of every design, reduced, and the sum of their weights.
struct Part {
    systems: Vec<System>,
    weight: f64,
    rows: Vec<usize>,
}

/// What leaving shapes out says of each strength of a prior.
pub(super) struct Choice<'a> {
    prior: &'a Prior,
    parts: BTreeMap<&'a str, Part>,
}

impl<'a> Choice<'a> {
    /// Of a family's rows; `None` without a prior, or of one that can't be tried.
    pub(super) fn new(
        calibration: &'a Calibration,
        rows: &'a [Row<'a>],
        place: &str,
        checks: &mut Checks,
    ) -> Option<Self> {
        let prior = calibration.prior.as_ref()?;
        let shapes: BTreeSet<&str> = rows.iter().map(|r| r.shape.as_str()).collect();
        if shapes.len() > MAX_SHAPES {
            let why = format!("{place}: strengths of a prior among {} shapes", shapes.len());
            checks.fail(Rule::CalibrationFolds, why);
            return None;
        }
        let mut parts = BTreeMap::new();
        for shape in shapes {
            let own: Vec<usize> = (0..rows.len()).filter(|i| rows[*i].shape == shape).collect();
            let of = || own.iter().map(|i| &rows[*i]);
            let targets = roots(of());
            let systems = calibration
                .designs
                .iter()
                .map(|d| reduced(&relative(of(), d), &targets, d.terms.len()));
            let part = Part { systems: systems.collect(), weight: weight(&targets), rows: own };
            parts.insert(shape, part);
        }
        Some(Choice { prior, parts })
    }

    /// Whether a strength is the choice of all shapes but one: its fits without each of them pick with
    /// the smallest mean regret there; of equal ones with the smallest error, then it is the first.
    /// Gives it, or the choice where there is none stated that was tried.
    pub(super) fn check(
        &self,
        calibration: &Calibration,
        rows: &[Row<'_>],
        without: Option<&str>,
        stated: Option<f64>,
        place: &str,
        checks: &mut Checks,
    ) -> f64 {
        let what = without.map_or(String::new(), |shape| format!(" without {shape}"));
        let index = self.prior.strengths.iter().position(|s| Some(*s) == stated);
        let found = self.figures(calibration, rows, without);
        let (Some(index), Some(found)) = (index, &found) else {
            let why = format!("{place}: the strength{what} is {stated:?}, which wasn't tried");
            checks.fail(Rule::CalibrationFolds, why);
            let first = |best: usize, other: usize, all: &[[f64; 2]]| match all[other] < all[best] {
                true => other,
                false => best,
            };
            let all = found.unwrap_or_default();
            let best = (1..all.len()).fold(0, |best, other| first(best, other, &all));
            return self.prior.strengths.get(best).copied().unwrap_or(self.prior.strength);
        };
        let [regret, error] = found[index];
        let better = found.iter().enumerate().find(|(other, f)| {
            let equal = (f[0] - regret).abs() <= EQUAL;
            let closer = (f[1] - error).abs() <= EQUAL;
            f[0] < regret - EQUAL
                || equal && f[1] < error - EQUAL
                || equal && closer && *other < index && (f[0], f[1]) == (regret, error)
        });
        checks.that(Rule::CalibrationFolds, better.is_none(), || {
            let (own, other) = (self.prior.strengths[index], better.map(|(i, _)| i));
            let other = other.map(|i| (self.prior.strengths[i], found[i]));
            format!(
                "{place}: the strength{what} is {own} ({:?}), better is {other:?}",
                found[index]
            )
        });
        self.prior.strengths[index]
    }

    /// Mean regret and mean square error of every strength.
    fn figures(
        &self,
        calibration: &Calibration,
        rows: &[Row<'_>],
        without: Option<&str>,
    ) -> Option<Vec<[f64; 2]>> {
        let used = || self.parts.iter().filter(|(shape, _)| Some(**shape) != without);
        let strengths = &self.prior.strengths;
        let mut predictions = vec![vec![0.0; rows.len()]; strengths.len()];
        for (shape, held) in used() {
            let others = || used().filter(|(other, _)| *other != shape).map(|(_, part)| part);
            let weight: f64 = others().map(|part| part.weight).sum();
            for (d, design) in calibration.designs.iter().enumerate() {
                let lines = others().flat_map(|p| p.systems[d].0.iter().cloned()).collect();
                let targets = others().flat_map(|p| &p.systems[d].1).copied().collect();
                for (strength, predictions) in strengths.iter().zip(&mut predictions) {
                    let system: System = (Vec::clone(&lines), Vec::clone(&targets));
                    let (lines, targets) = with(Some(self.prior), *strength, system, weight);
                    let fit = nonnegative(&lines, &targets, design.terms.len())?.coefficients;
                    for i in &held.rows {
                        let values = design.terms.iter().map(|t| rows[*i].values[*t]);
                        let own: f64 = values.zip(&fit).map(|(v, c)| v * c).sum();
                        predictions[*i] += own / calibration.designs.len() as f64;
                    }
                }
            }
        }
        let held: Vec<usize> = used().flat_map(|(_, part)| &part.rows).copied().collect();
        let weight: f64 = used().map(|(_, part)| part.weight).sum();
        let figures = |predictions: &Vec<f64>| {
            let regrets: Vec<f64> = picks(rows, &held, predictions)
                .iter()
                .map(|(pick, best)| rows[*pick].label / rows[*best].label - 1.0)
                .collect();
            let square =
                |i: &usize| (rows[*i].root * (predictions[*i] / rows[*i].label - 1.0)).powi(2);
            Some([mean(&regrets)?, held.iter().map(square).sum::<f64>() / weight])
        };
        predictions.iter().map(figures).collect()
    }
}
