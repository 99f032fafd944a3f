//! calibration/FAMILY.json: the rows, the fit, what leaving shapes out says of it.

use super::further;
use super::prior;
use super::timing::Metric;
use crate::canonical::hash;
use crate::fit::{nonnegative, violation};
use crate::math::{close, first_smallest, largest, mean, median, quantile};
use crate::record::{Calibration, Confidence, Design, Record, Search, Trial};
use crate::terms::values;
use crate::verdict::{Checks, Rule};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Largest relative gradient of coefficients that count as a minimum. The fitting code and the
/// audit solve by different methods.
const OPTIMAL: f64 = 1e-6;

/// Figures of folds agree within this: they come from two solutions of one minimisation.
const REFIT: f64 = 1e-6;

/// A pick that is slower than the incumbent by no more than this counts as a tie.
const TIE: f64 = 0.02;

/// Share of the larger spread of both labels within which a slower pick counts as a tie, too.
const BY_CHANCE: f64 = 0.5;

/// A smaller predicted gain counts as none.
const GAIN: f64 = 0.01;

/// Share of the accepted training cases that may have lost.
const LOST: f64 = 0.05;

/// Spread of a label's rounds at which its row counts half.
const STEADY: f64 = 0.1;

/// A row with its inputs.
pub(super) struct Row<'a> {
    case: &'a str,
    pub(super) shape: String,
    pub(super) label: f64,
    /// Square root of its weight.
    pub(super) root: f64,
    /// Values of the terms.
    pub(super) values: Vec<f64>,
    names: &'a [String],
    inputs: &'a [f64],
}

impl Row<'_> {
    /// Whether it counts half or more.
    fn steady(&self) -> bool {
        self.root * self.root >= 0.5
    }

    /// How far the rounds of its label lie apart, as its weight has it.
    fn spread(&self) -> f64 {
        STEADY * ((self.root * self.root).recip() - 1.0).max(0.0).sqrt()
    }
}

/// Checks every family.
pub fn check(record: &Record, checks: &mut Checks) {
    for calibration in &record.calibrations {
        let place = format!("calibration/{}", calibration.family);
        rows(record, calibration, &place, checks);
        profile(record, calibration, &place, checks);
        let Some(rows) = resolve(record, calibration) else {
            checks.fail(Rule::CalibrationFit, format!("{place}: a row or a term without a value"));
            continue;
        };
        if designs(calibration, &rows, &place, checks) {
            leave_out(calibration, &rows, &place, checks);
        }
    }
    if let Some(profile) = &record.profile {
        let families: BTreeSet<&str> =
            record.calibrations.iter().map(|c| c.family.as_str()).collect();
        for fit in &profile.fits {
            checks.that(Rule::CalibrationProfile, families.contains(fit.family.as_str()), || {
                format!("profile.json: {} has no calibration", fit.family)
            });
        }
    }
}

fn rows(record: &Record, calibration: &Calibration, place: &str, checks: &mut Checks) {
    let mut stated: BTreeSet<(&str, usize)> = BTreeSet::new();
    let mut text = String::new();
    for (i, row) in calibration.rows.iter().enumerate() {
        checks.that(Rule::CalibrationRows, stated.insert((&row.case, row.candidate)), || {
            format!("{place} row {i}: {} candidate {} twice", row.case, row.candidate)
        });
        let search = record.searches.iter().find(|s| s.case.id == row.case);
        let label = search.and_then(|s| s.label(row.candidate));
        checks.that(
            Rule::CalibrationRows,
            label.is_some() && label == row.label_us.as_f64(),
            || {
                format!(
                    "{place} row {i}: {} candidate {} has the label {label:?}, not {}",
                    row.case, row.candidate, row.label_us
                )
            },
        );
        let mut line = format!("{},{},{}", row.case, row.candidate, row.label_us);
        if let Some(stated) = &row.spread {
            line.push_str(&format!(",{stated}"));
            let own = search.and_then(|s| spread(s, row.candidate));
            let holds = own.zip(stated.as_f64()).is_some_and(|(own, stated)| close(own, stated));
            checks.that(Rule::CalibrationRows, holds, || {
                let (case, candidate) = (&row.case, row.candidate);
                format!(
                    "{place} row {i}: {case} candidate {candidate} spreads by {own:?}, not {stated}"
                )
            });
        }
        text.push_str(&line);
        text.push('\n');
    }
    let some = calibration.rows.iter().filter(|r| r.spread.is_some()).count();
    checks.that(Rule::CalibrationRows, some == 0 || some == calibration.rows.len(), || {
        format!("{place}: {some} of {} rows state their spread", calibration.rows.len())
    });
    for search in record.searches.iter().filter(|s| s.family == calibration.family) {
        for (candidate, trial) in search.trials.iter().enumerate().filter(|t| t.1.valid()) {
            let there = stated.contains(&(search.case.id.as_str(), candidate));
            checks.that(Rule::CalibrationRows, there, || {
                let label = trial.label_us;
                format!("{place}: no row of {} candidate {candidate} ({label:?})", search.case.id)
            });
        }
    }
    let own = hash(text.as_bytes());
    checks.that(Rule::CalibrationRows, own == calibration.data_sha256, || {
        format!("{place}: the rows' hash is {own}, not {}", calibration.data_sha256)
    });
    for row in &calibration.incumbents {
        let row = calibration.rows.get(*row);
        let search = row.and_then(|r| record.searches.iter().find(|s| s.case.id == r.case));
        let holds = row.zip(search).is_some_and(|(row, search)| row.candidate == search.incumbent);
        checks.that(Rule::CalibrationRows, holds, || {
            format!("{place}: an incumbent that isn't its case's")
        });
    }
}

/// The spread of a candidate, or the median of its case's where that is larger.
fn spread(search: &Search, candidate: usize) -> Option<f64> {
    let metric = Metric::of_selection(&search.selection.metric)?;
    let of = |trial: &Trial| further::spread(&trial.rounds, metric, search.protocol.quantile());
    let valid = search.trials.iter().filter(|t| t.valid());
    let all: Vec<f64> = valid.filter_map(of).collect();
    Some(of(search.trials.get(candidate)?)?.max(median(&all)?))
}

fn profile(record: &Record, calibration: &Calibration, place: &str, checks: &mut Checks) {
    let Some(profile) = &record.profile else { return };
    let Some(fit) = profile.fit(&calibration.family) else {
        checks.fail(Rule::CalibrationProfile, format!("{place}: the profile has no such family"));
        return;
    };
    checks.that(Rule::CalibrationProfile, fit.terms == calibration.terms, || {
        format!("{place}: the profile has other coefficients")
    });
    checks.that(Rule::CalibrationProfile, fit.confidence == calibration.confidence, || {
        format!("{place}: the profile has another confidence")
    });
    for term in &calibration.terms {
        let holds = term.coefficient.is_finite() && term.coefficient >= 0.0;
        checks.that(Rule::CalibrationProfile, holds, || {
            format!("{place}: the coefficient of {} is {}", term.term, term.coefficient)
        });
    }
}

fn resolve<'a>(record: &'a Record, calibration: &'a Calibration) -> Option<Vec<Row<'a>>> {
    let searches: BTreeMap<&str, _> =
        record.searches.iter().map(|s| (s.case.id.as_str(), s)).collect();
    let row = |row: &'a crate::record::FitRow| {
        let search = searches.get(row.case.as_str())?;
        let candidate = search.candidates.get(row.candidate)?;
        Some(Row {
            case: &row.case,
            shape: search.case.shape_text(),
            label: row.label_us.as_f64().filter(|l| *l > 0.0)?,
            root: match &row.spread {
                Some(spread) => (1.0 + (spread.as_f64()? / STEADY).powi(2)).sqrt().recip(),
                None => 1.0,
            },
            values: values(
                &calibration.family,
                &calibration.terms,
                &search.input_names,
                &candidate.inputs,
            )?,
            names: &search.input_names,
            inputs: &candidate.inputs,
        })
    };
    calibration.rows.iter().map(row).collect()
}

/// Values of a design's terms / label, of each row, times the square root of its weight.
pub(super) fn relative<'a>(
    rows: impl Iterator<Item = &'a Row<'a>>,
    design: &Design,
) -> Vec<Vec<f64>> {
    let value = |row: &Row<'_>, term: &usize| row.values.get(*term).map_or(f64::NAN, |v| *v);
    rows.map(|r| design.terms.iter().map(|t| r.root * value(r, t) / r.label).collect()).collect()
}

/// A family of more designs, terms or shapes than this isn't fitted again: a profile has at most
/// 12 terms.
const MAX_DESIGNS: usize = 64;
const MAX_TERMS: usize = 64;
const MAX_SHAPES: usize = 1000;

/// Every design is a minimum, and the coefficients are their mean. Whether there is something to
/// leave shapes out of.
fn designs(calibration: &Calibration, rows: &[Row<'_>], place: &str, checks: &mut Checks) -> bool {
    let (designs, terms) = (&calibration.designs, calibration.terms.len());
    let whole = !designs.is_empty()
        && designs.len() <= MAX_DESIGNS
        && terms <= MAX_TERMS
        && designs.iter().all(|d| d.terms.len() == d.coefficients.len())
        && designs.iter().all(|d| d.terms.iter().all(|t| *t < terms))
        && designs.iter().all(|d| d.terms.iter().collect::<BTreeSet<_>>().len() == d.terms.len())
        && designs.iter().flat_map(|d| &d.coefficients).all(|c| c.is_finite() && *c >= 0.0)
        && calibration.prior.as_ref().is_none_or(prior::whole);
    checks.that(Rule::CalibrationFit, whole, || {
        format!("{place}: {} designs of {terms} terms that aren't whole", designs.len())
    });
    if !whole {
        return false;
    }
    let mut means = vec![0.0; terms];
    for (index, design) in designs.iter().enumerate() {
        let (lines, targets) = system(calibration, rows.iter(), design, own_strength(calibration));
        let distance = violation(&lines, &targets, &design.coefficients);
        checks.that(Rule::CalibrationFit, distance.is_some_and(|d| d <= OPTIMAL), || {
            format!("{place} design {index}: it is no minimum: relative gradient {distance:?}")
        });
        for (term, coefficient) in design.terms.iter().zip(&design.coefficients) {
            means[*term] += coefficient / designs.len() as f64;
        }
    }
    for (term, mean) in calibration.terms.iter().zip(means) {
        checks.that(Rule::CalibrationFit, close(term.coefficient, mean), || {
            let (name, own) = (&term.term, term.coefficient);
            format!("{place}: the coefficient of {name} is {own}, the designs' mean is {mean}")
        });
    }
    true
}

/// The strength that the whole fit states; 0 without a prior.
fn own_strength(calibration: &Calibration) -> f64 {
    calibration.prior.as_ref().map_or(0.0, |p| p.strength)
}

/// The rows of a fit, with what a prior adds.
fn system<'a>(
    calibration: &Calibration,
    rows: impl Iterator<Item = &'a Row<'a>> + Clone,
    design: &Design,
    strength: f64,
) -> prior::System {
    let targets = prior::roots(rows.clone());
    let weight = prior::weight(&targets);
    let system = (relative(rows, design), targets);
    prior::with(calibration.prior.as_ref(), strength, system, weight)
}

/// Fits every design anew without each shape; regrets and confidence follow from what these fits
/// predict of it.
fn leave_out(calibration: &Calibration, rows: &[Row<'_>], place: &str, checks: &mut Checks) {
    // Predictions of every row by fits without its shape.
    let mut held_out = vec![0.0; rows.len()];
    let shapes: BTreeSet<&str> = rows.iter().map(|r| r.shape.as_str()).collect();
    if shapes.len() > MAX_SHAPES {
        checks.fail(Rule::CalibrationFolds, format!("{place}: {} shapes", shapes.len()));
        return;
    }
    let mut derived: BTreeMap<&str, [[f64; 2]; 2]> = BTreeMap::new();
    let choice = prior::Choice::new(calibration, rows, place, checks);
    if let Some(choice) = &choice {
        let stated = calibration.prior.as_ref().map(|p| p.strength);
        choice.check(calibration, rows, None, stated, place, checks);
    }
    for shape in &shapes {
        let fold = calibration.folds.iter().find(|f| shape_text(&f.held_out) == *shape);
        let stated = fold.and_then(|f| f.strength);
        let strength = match &choice {
            Some(choice) => choice.check(calibration, rows, Some(shape), stated, place, checks),
            None => {
                checks.that(Rule::CalibrationFolds, stated.is_none(), || {
                    format!("{place}: without {shape} a strength of no prior")
                });
                0.0
            }
        };
        for (index, design) in calibration.designs.iter().enumerate() {
            let others = rows.iter().filter(|r| r.shape != *shape);
            let (training, targets) = system(calibration, others, design, strength);
            let minimum = nonnegative(&training, &targets, design.terms.len());
            let Some(minimum) = minimum.filter(|m| m.unique) else {
                let why = format!("{place} design {index}: without {shape} it isn't unique");
                checks.note(Rule::CalibrationFolds, why.clone());
                checks.note(Rule::CalibrationConfidence, why);
                return;
            };
            let held = held_out.iter_mut().zip(rows).filter(|(_, r)| r.shape == *shape);
            for (prediction, row) in held {
                let values = design.terms.iter().map(|t| row.values[*t]);
                let own: f64 = values.zip(&minimum.coefficients).map(|(v, c)| v * c).sum();
                *prediction += own / calibration.designs.len() as f64;
            }
        }
        let held: Vec<usize> = (0..rows.len()).filter(|i| rows[*i].shape == *shape).collect();
        let [least, most] = regrets(rows, &held, &held_out);
        if let (Some(means), Some(largest)) =
            (mean(&least).zip(mean(&most)), largest(&least).zip(largest(&most)))
        {
            derived.insert(shape, [means.into(), largest.into()]);
        }
    }
    folds(calibration, &derived, place, checks);
    confidence(calibration, rows, &held_out, place, checks);
}

/// The pick (smallest prediction) and the best row (smallest label) of every case.
pub(super) fn picks(rows: &[Row<'_>], held: &[usize], predictions: &[f64]) -> Vec<(usize, usize)> {
    let mut cases: Vec<&str> = Vec::new();
    for i in held {
        if !cases.contains(&rows[*i].case) {
            cases.push(rows[*i].case);
        }
    }
    let pair = |case: &&str| {
        let own: Vec<usize> = held.iter().copied().filter(|i| rows[*i].case == *case).collect();
        let pick = own.get(first_smallest(own.iter().map(|i| predictions[*i]))?)?;
        let best = own.get(first_smallest(own.iter().map(|i| rows[*i].label))?)?;
        Some((*pick, *best))
    };
    cases.iter().filter_map(pair).collect()
}

/// What the pick of every case loses, at least and at most: two programs fit alike to rounding, so where
/// predictions of several candidates are as near as that, each of them may be the pick.
fn regrets(rows: &[Row<'_>], held: &[usize], predictions: &[f64]) -> [Vec<f64>; 2] {
    let mut out = [Vec::new(), Vec::new()];
    for (pick, best) in picks(rows, held, predictions) {
        let alike = held.iter().filter(|i| {
            rows[**i].case == rows[pick].case && near(predictions[**i], predictions[pick])
        });
        let lost = alike.map(|i| rows[*i].label / rows[best].label - 1.0);
        let range = lost.fold([f64::INFINITY, 0.0f64], |[a, b], x| [a.min(x), b.max(x)]);
        out.iter_mut().zip(range).for_each(|(list, regret)| list.push(regret));
    }
    out
}

fn near(a: f64, b: f64) -> bool {
    close(a, b) || (a - b).abs() <= REFIT * a.abs().max(b.abs()).max(1.0)
}

fn shape_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(numbers) => numbers.iter().map(Value::to_string).collect::<Vec<_>>().join("x"),
        other => other.to_string(),
    }
}

fn folds(
    calibration: &Calibration,
    derived: &BTreeMap<&str, [[f64; 2]; 2]>,
    place: &str,
    checks: &mut Checks,
) {
    let mut stated = BTreeSet::new();
    for fold in &calibration.folds {
        let shape = shape_text(&fold.held_out);
        checks.that(Rule::CalibrationFolds, stated.insert(shape.clone()), || {
            format!("{place}: {shape} is left out twice")
        });
        let own = derived.get(shape.as_str());
        let within = |stated: f64, [least, most]: [f64; 2]| {
            (least..=most).contains(&stated) || near(stated, least) || near(stated, most)
        };
        let holds = own.is_some_and(|[mean, max]| {
            within(fold.regret_mean, *mean) && within(fold.regret_max, *max)
        });
        checks.that(Rule::CalibrationFolds, holds, || {
            let stated = (fold.regret_mean, fold.regret_max);
            format!("{place}: without {shape} regrets {stated:?} are stated, {own:?} derived")
        });
    }
    for shape in derived.keys().filter(|s| !stated.contains(**s)) {
        checks.fail(Rule::CalibrationFolds, format!("{place}: {shape} was never left out"));
    }
}

/// The ⌈(n+1)·share⌉-th smallest, the largest where there are too few.
fn covering(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = ((sorted.len() + 1) as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).or(sorted.last()).copied()
}

fn confidence(
    calibration: &Calibration,
    rows: &[Row<'_>],
    held_out: &[f64],
    place: &str,
    checks: &mut Checks,
) {
    let stated = &calibration.confidence;
    let Some(own) = derived_confidence(calibration, rows, held_out) else {
        checks.fail(Rule::CalibrationConfidence, format!("{place}: nothing to derive it from"));
        return;
    };
    let figures = [
        ("low", stated.low, own.low),
        ("high", stated.high, own.high),
        ("slack", stated.slack, own.slack),
        ("margin", stated.margin, own.margin),
    ];
    for (name, stated, own) in figures {
        checks.that(Rule::CalibrationConfidence, near(stated, own), || {
            format!("{place}: {name} is {stated}, not {own}")
        });
    }
    let counts = (stated.rows, stated.cases, stated.shapes);
    checks.that(Rule::CalibrationConfidence, counts == (own.rows, own.cases, own.shapes), || {
        format!("{place}: rows, cases and shapes are {counts:?}")
    });
    checks.that(Rule::CalibrationConfidence, stated.ranges == own.ranges, || {
        format!("{place}: the ranges are {:?}, not {:?}", stated.ranges, own.ranges)
    });
}

fn derived_confidence(
    calibration: &Calibration,
    rows: &[Row<'_>],
    held_out: &[f64],
) -> Option<Confidence> {
    let level = calibration.confidence.level;
    let known: Vec<usize> = (0..rows.len()).filter(|i| held_out[*i] > 0.0).collect();
    // Labels that were disturbed say nothing of the model, unless there are no others; for the
    // guard they count.
    let some = rows.iter().any(Row::steady);
    let steady: Vec<usize> = known.iter().copied().filter(|i| !some || rows[*i].steady()).collect();
    let ratios: Vec<f64> = steady.iter().map(|i| rows[*i].label / held_out[*i]).collect();
    let inverse: Vec<f64> = ratios.iter().map(|r| 1.0 / r).collect();
    let share = (1.0 + level) / 2.0;
    // A rule that takes everything for good isn't one.
    if !(0.0..=0.1).contains(&calibration.tolerance) {
        return None;
    }
    let slack = |(pick, best): &(usize, usize)| {
        let good = rows[*best].label * (1.0 + calibration.tolerance);
        let own = steady.iter().filter(|i| rows[**i].case == rows[*pick].case);
        let least = own.filter(|i| rows[**i].label <= good).map(|i| held_out[*i]);
        least.fold(f64::INFINITY, f64::min) / held_out[*pick]
    };
    let slacks: Vec<f64> = picks(rows, &steady, held_out).iter().map(slack).collect();
    // Gains of the picks over the incumbents.
    let picks = picks(rows, &known, held_out);
    let pairs = calibration.incumbents.iter().filter_map(|incumbent| {
        let row = rows.get(*incumbent).filter(|_| held_out[*incumbent] > 0.0)?;
        let (pick, _) = picks.iter().find(|(pick, _)| rows[*pick].case == row.case)?;
        let tie = TIE.max(BY_CHANCE * row.spread().max(rows[*pick].spread()));
        Some(Pair {
            predicted: held_out[*incumbent] / held_out[*pick],
            measured: row.label / rows[*pick].label,
            tie,
        })
    });
    let pairs: Vec<Pair> = pairs.collect();
    let (low, high) = (1.0 / covering(&inverse, share)?, covering(&ratios, share)?);
    let margin = match calibration.incumbents.is_empty() {
        true => calibration.confidence.margin,
        false => guard_margin(calibration, &pairs)?,
    };
    Some(Confidence {
        level,
        low: low.min(1.0),
        high: high.max(1.0),
        slack: quantile(&slacks, level)?.max(1.0),
        margin,
        ranges: ranges(rows),
        rows: rows.len() as u64,
        cases: rows.iter().map(|r| r.case).collect::<BTreeSet<_>>().len() as u64,
        shapes: rows.iter().map(|r| r.shape.as_str()).collect::<BTreeSet<_>>().len() as u64,
    })
}

/// The pick of a training case against its incumbent.
struct Pair {
    predicted: f64,
    measured: f64,
    /// A loss by no more than this is none, by the older rule.
    tie: f64,
}

/// The margin of a family by the rule that the record states.
fn guard_margin(calibration: &Calibration, pairs: &[Pair]) -> Option<f64> {
    let Some(rule) = calibration.guard else { return older_margin(&calibration.family, pairs) };
    let (least, share) = (1.0 + rule.gain, rule.covered);
    // A rule that believes every promise, or half of them, is no guard.
    if !(0.5..=1.0).contains(&share) || rule.gain.is_nan() || rule.gain < 0.0 {
        return None;
    }
    let over = |p: &Pair| match rule.kept && p.measured >= 1.0 {
        true => 1.0,
        false => p.predicted / p.measured,
    };
    let promised: Vec<f64> = pairs.iter().filter(|p| p.predicted > least).map(over).collect();
    let margin = match promised.is_empty() {
        true => pairs.iter().map(over).fold(least, f64::max),
        false => quantile(&promised, share)?,
    };
    Some(margin.max(least))
}

/// The rule of records that state none: the least of 1 + [`GAIN`] and the larger predicted gains at
/// which at most a share of [`LOST`] of the cases that gain more by prediction lost beyond a tie,
/// or, on a CPU, one of them where such a share of all cases is one or more.
fn older_margin(family: &str, pairs: &[Pair]) -> Option<f64> {
    let least = 1.0 + GAIN;
    let margins = pairs.iter().map(|p| p.predicted).filter(|m| *m > least).chain([least]);
    let noisy = family.starts_with("cpu-") && LOST * pairs.len() as f64 >= 1.0;
    let one = if noisy { 1.0 } else { 0.0 };
    let holds = |margin: &f64| {
        let accepted: Vec<&Pair> = pairs.iter().filter(|p| p.predicted > *margin).collect();
        let lost = accepted.iter().filter(|p| p.measured * (1.0 + p.tie) < 1.0).count();
        lost as f64 <= f64::max(one, LOST * accepted.len() as f64)
    };
    margins.filter(holds).min_by(f64::total_cmp)
}

/// Smallest and largest value of each input.
fn ranges(rows: &[Row<'_>]) -> BTreeMap<String, [f64; 2]> {
    let mut out: BTreeMap<String, [f64; 2]> = BTreeMap::new();
    for row in rows {
        for (name, value) in row.names.iter().zip(row.inputs) {
            let [low, high] = out.entry(name.clone()).or_insert([f64::INFINITY, 0.0]);
            *low = low.min(*value);
            *high = high.max(*value);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Candidates that the fit can't tell apart may each be the pick; others may not.
    #[test]
    fn predictions_that_differ_by_rounding_are_a_tie() {
        let row = |case, label| Row {
            case,
            shape: "4x8".to_string(),
            label,
            root: 1.0,
            values: Vec::new(),
            names: &[],
            inputs: &[],
        };
        let rows = [row("a", 1.0), row("a", 1.5), row("a", 2.0), row("b", 3.0), row("b", 6.0)];
        let held = [0, 1, 2, 3, 4];
        let predictions = [9.0, 5.0, 5.0 - 1e-12, 2.0, 2.1];
        assert_eq!(regrets(&rows, &held, &predictions), [vec![0.5, 0.0], vec![1.0, 0.0]]);
        let predictions = [9.0, 5.1, 5.0, 2.2, 2.1];
        assert_eq!(regrets(&rows, &held, &predictions), [vec![1.0, 1.0], vec![1.0, 1.0]]);
    }
}
