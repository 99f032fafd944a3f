//! Designs and models of the `whole-launch` policy.
//!
//! A family has one or two *feature sets*, and on GPUs each at several capacities, since nobody
//! knows how many subgroups the machine runs at once. All of them are fitted and averaged without
//! weights: the mean of sums of terms is again a sum of terms, which is the policy's [`Model`],
//! with at most 12 coefficients.

use super::bands::quantile;
use super::data::{DataError, Dataset, Design, Sample, Split};
use super::fit::{Fitted, OuterFold, Strategy, nested, picks_by, train};
use super::guard;
use crate::policy::whole_launch::{
    Confidence, Family, FamilyFit, Inputs, Model, ModelError, WeightedTerm, label,
};

/// Share of labels that an interval is to cover.
pub const LEVEL: f64 = 0.9;

/// Labels that differ by no more are as good: a shortlist need not hold the best of them.
pub const TOLERANCE: f64 = 0.02;

/// A feature: a term, at a capacity if it saturates.
pub type Feature = (usize, Option<u32>);

/// Feature sets of a family, by term name, the simpler first.
///
/// The sets of the GPU families differ in one term each whose worth the data can't decide: the
/// depth of a reduction's tree beside its width, and operand reads beside the footprint.
///
/// Beside them the capacities that are tried, in subgroups per core.
fn feature_sets(family: Family) -> (&'static [&'static [&'static str]], &'static [u32]) {
    match family {
        Family::GpuRows => (
            &[
                &["launch", "distinct_bytes", "reread_bytes", "rounds", "collective_width"],
                &["launch", "distinct_bytes", "reread_bytes", "rounds", "collective_depth"],
            ],
            &[8, 16, 32],
        ),
        Family::GpuMatrix => (
            &[
                &["launch", "footprint", "issues", "elements"],
                &["launch", "footprint", "reads", "issues", "elements"],
            ],
            &[4, 8, 16, 32],
        ),
        // One set each, and no capacity: the threads are known.
        Family::CpuRows => (
            &[&[
                "launch",
                "other_threads",
                "arithmetic",
                "wide_arithmetic",
                "divisions",
                "chain",
                "combines",
                "collectives",
                "stripe_vectors",
                "chunks",
                "l2_bytes",
                "far_bytes",
            ]],
            &[],
        ),
        Family::GpuRegisterRows => (
            &[&[
                "launch", "text", "wait", "loads", "elements", "chains", "folds", "joins",
                "clusters", "reload", "shared", "stores",
            ]],
            &[],
        ),
        Family::GpuRegisterMatrix => (
            &[&[
                "launch", "text", "second", "lanes", "steps", "start", "sets", "products", "reads",
                "copies", "sums", "bytes",
            ]],
            &[],
        ),
        Family::CpuMatrix => (
            &[&[
                "launch",
                "other_threads",
                "results",
                "products",
                "stalls",
                "loads",
                "copied_vectors",
                "translations",
                "far_rows",
                "l2_bytes",
                "l3_bytes",
                "memory_bytes",
            ]],
            &[],
        ),
    }
}

/// The features of every design of a family on a machine of so many cores (which count for GPUs
/// only), in the order of [`designs`].
pub fn features(family: Family, cores: u32) -> Vec<Vec<Feature>> {
    let (sets, capacities) = feature_sets(family);
    let mut out = Vec::new();
    for set in sets {
        let at = |capacity: Option<u32>| -> Vec<Feature> {
            let named = set.iter().filter_map(|name| family.term(name));
            named
                .map(|term| {
                    let saturates = family.terms().get(term).is_some_and(|t| t.saturates);
                    (term, if saturates { capacity } else { None })
                })
                .collect()
        };
        if capacities.is_empty() {
            out.push(at(None));
        }
        out.extend(capacities.iter().map(|c| at(Some(c.saturating_mul(cores).max(1)))));
    }
    out
}

/// The designs of a family: each feature set at each capacity.
pub fn designs(family: Family, cores: u32, rows: &[Inputs]) -> Vec<Design> {
    let value = |f: &Feature, inputs: &Inputs| family.value(f.0, f.1, inputs);
    features(family, cores)
        .into_iter()
        .map(|features| {
            let names: Vec<String> = features.iter().map(|f| label(family, f.0, f.1)).collect();
            Design {
                name: names.join(" + "),
                rows: rows
                    .iter()
                    .map(|inputs| features.iter().map(|f| value(f, inputs)).collect())
                    .collect(),
                features: names,
            }
        })
        .collect()
}

/// Samples with the designs of a family; fits of priced terms stay near their prices.
///
/// # Errors
/// As [`Dataset::new`].
pub fn dataset(
    family: Family,
    cores: u32,
    samples: Vec<Sample>,
    rows: &[Inputs],
) -> Result<Dataset, DataError> {
    let data = Dataset::new(samples, designs(family, cores, rows))?;
    Ok(if family.is_priced() { data.anchored() } else { data })
}

/// The feature of that label, as [`label`] writes it.
fn feature(family: Family, text: &str) -> Option<Feature> {
    match text.split_once('@') {
        Some((name, capacity)) => Some((family.term(name)?, Some(capacity.parse().ok()?))),
        None => Some((family.term(text)?, None)),
    }
}

/// The mean of fitted designs as one model: each term's coefficients added up and divided by the
/// number of designs. Terms stand in the family's order, capacities ascending.
///
/// # Errors
/// The fits make no model, as when every coefficient is zero.
pub fn model(family: Family, data: &Dataset, fitted: &[Fitted]) -> Result<Model, ModelError> {
    let mut sums: std::collections::BTreeMap<Feature, f64> = Default::default();
    for fit in fitted {
        let Some(design) = data.designs().get(fit.design) else { continue };
        for (name, coefficient) in design.features.iter().zip(&fit.coefficients) {
            let feature = feature(family, name)
                .ok_or_else(|| ModelError::Term { family: family.name(), term: name.clone() })?;
            *sums.entry(feature).or_default() += coefficient / fitted.len() as f64;
        }
    }
    let terms = sums.into_iter().map(|((term, capacity), coefficient)| WeightedTerm {
        term,
        capacity,
        coefficient,
    });
    Model::new(family, terms.collect())
}

/// Fits a family on all rows and sets its confidence by nested leave-one-shape-out.
///
/// `incumbents` are rows, at most one a case, whose schedule would be used without the model; the
/// guard's margin is set on them. Without any the best constant rule stands in.
///
/// # Errors
/// [`DataError`] when there is nothing to fit or fewer than two shapes.
pub fn fit_family(
    family: Family,
    data: &Dataset,
    rows: &[Inputs],
    incumbents: &[usize],
) -> Result<FamilyFit, DataError> {
    let fitted = train(data, &data.all(), Split::Shape, Strategy::Average)?;
    let folds = nested(data, Split::Shape, Strategy::Average)?;
    Ok(FamilyFit {
        model: model(family, data, &fitted)?,
        confidence: confidence(family, data, rows, &folds, incumbents),
    })
}

/// The quantile of sorted values that covers a share of new ones: the ⌈(n+1)·share⌉-th smallest,
/// the largest where there are too few.
fn covering(sorted: &[f64], share: f64) -> f64 {
    let rank = ((sorted.len() + 1) as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).or(sorted.last()).copied().unwrap_or(1.0)
}

/// The interval of label/prediction that is to hold [`LEVEL`] of new labels, from the ratios of
/// held-out rows; it always holds 1.
pub fn interval(mut ratios: Vec<f64>) -> [f64; 2] {
    let tail = (1.0 - LEVEL) / 2.0;
    ratios.sort_by(f64::total_cmp);
    let high = covering(&ratios, 1.0 - tail);
    // The lower end by the same rule on the reciprocals.
    let mut inverse: Vec<f64> = ratios.iter().map(|r| 1.0 / r).collect();
    inverse.sort_by(f64::total_cmp);
    let low = 1.0 / covering(&inverse, 1.0 - tail);
    [low.min(1.0), high.max(1.0)]
}

/// The share of held-out labels inside an interval that was made without their own fold. Rows that
/// were disturbed while they were measured make no interval.
pub fn coverage(data: &Dataset, folds: &[OuterFold]) -> f64 {
    let ratio = |(row, prediction): &(usize, f64)| data.samples()[*row].label / prediction;
    let (mut inside, mut all) = (0usize, 0usize);
    for (i, fold) in folds.iter().enumerate() {
        let others = folds.iter().enumerate().filter(|(j, _)| *j != i);
        let steady =
            others.flat_map(|(_, f)| f.predictions.iter().filter(move |p| data.steady(p.0)));
        let [low, high] = interval(steady.map(ratio).collect());
        all += fold.predictions.len();
        inside += fold.predictions.iter().map(ratio).filter(|r| (low..=high).contains(r)).count();
    }
    inside as f64 / all.max(1) as f64
}

fn confidence(
    family: Family,
    data: &Dataset,
    rows: &[Inputs],
    folds: &[OuterFold],
    incumbents: &[usize],
) -> Confidence {
    let mut predictions = vec![f64::NAN; data.samples().len()];
    for (row, prediction) in folds.iter().flat_map(|f| &f.predictions) {
        predictions[*row] = *prediction;
    }
    // In doubt the guard keeps the incumbent: disturbed labels count for it too.
    let cases = guard::training_cases(data, &predictions, incumbents);
    let margin = guard::covering_margin(&cases);
    // Labels that were disturbed say nothing of the model, unless there are no others.
    let disturbed: Vec<usize> = data.all().into_iter().filter(|r| !data.steady(*r)).collect();
    if disturbed.len() < predictions.len() {
        for row in disturbed {
            predictions[row] = f64::NAN;
        }
    }
    let held: Vec<usize> = data.all().into_iter().filter(|r| predictions[*r] > 0.0).collect();
    let label = |row: usize| data.samples()[row].label;
    let ratios = held.iter().map(|r| label(*r) / predictions[*r]).collect();
    let [low, high] = interval(ratios);

    let mut slacks: Vec<f64> = picks_by(data, &held, |r| predictions[r])
        .iter()
        .filter_map(|pick| {
            let case = || held.iter().filter(|r| data.samples()[**r].case == pick.case);
            let good = pick.best * (1.0 + TOLERANCE);
            let good = case().filter(|r| label(**r) <= good).map(|r| predictions[*r]);
            Some(good.min_by(f64::total_cmp)? / pick.prediction)
        })
        .collect();
    slacks.sort_by(f64::total_cmp);

    let ranges = (0..family.inputs().len()).map(|i| {
        let column = || rows.iter().map(|r| r[i]);
        [column().fold(f64::INFINITY, f64::min), column().fold(0.0, f64::max)]
    });
    let all = data.all();
    Confidence {
        level: LEVEL,
        low,
        high,
        slack: quantile(&slacks, LEVEL).max(1.0),
        margin,
        ranges: ranges.collect(),
        rows: data.samples().len() as u64,
        cases: data.cases(&all).len() as u64,
        shapes: data.groups(&all, Split::Shape).len() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::super::bands::Random;
    use super::super::fit::predict;
    use super::*;
    use crate::policy::whole_launch::{MAX_COEFFICIENTS, MAX_INPUTS};

    #[test]
    fn every_family_stays_within_the_limit_of_coefficients() {
        for family in Family::ALL {
            let mut all: Vec<Feature> = features(family, 32).into_iter().flatten().collect();
            all.sort();
            all.dedup();
            assert!(all.len() <= MAX_COEFFICIENTS, "{}: {}", family.name(), all.len());
            let (sets, _) = feature_sets(family);
            for name in sets.iter().flat_map(|set| set.iter()) {
                assert!(family.term(name).is_some(), "{name}");
            }
        }
    }

    /// Candidates whose times follow a known model with 5 % noise.
    fn synthetic(family: Family) -> (Vec<Sample>, Vec<Inputs>) {
        let mut random = Random::new(11);
        let mut unit = move || (random.bits() >> 11) as f64 / (1u64 << 53) as f64;
        let (mut samples, mut rows) = (Vec::new(), Vec::new());
        for case in 0..10 {
            let size = (1 << case) as f64;
            for _ in 0..12 {
                let mut inputs = [0.0; MAX_INPUTS];
                for value in inputs.iter_mut().take(family.inputs().len()) {
                    *value = (1.0 + 31.0 * unit()).floor() * size;
                }
                // The second number is subgroups on GPUs.
                inputs[1] = (1.0 + 7.0 * unit()).floor();
                let capacity = |t: usize| family.terms()[t].saturates.then_some(512);
                let terms = 0..family.terms().len();
                // Of priced terms something near their prices.
                let share = if family.is_priced() { 0.05 } else { 1.0 };
                let price = |t: usize| 1.0 + share * t as f64;
                let time: f64 =
                    terms.map(|t| price(t) * family.value(t, capacity(t), &inputs)).sum();
                samples.push(Sample {
                    case: format!("{case}"),
                    shape: format!("{case}"),
                    label: time * (0.95 + 0.1 * unit()),
                    ..Sample::default()
                });
                rows.push(inputs);
            }
        }
        (samples, rows)
    }

    #[test]
    fn the_model_is_the_mean_of_its_fits_and_predicts_what_it_was_made_of() {
        for family in Family::ALL {
            let (samples, rows) = synthetic(family);
            let data = dataset(family, 16, samples, &rows).unwrap();
            let fitted = train(&data, &data.all(), Split::Shape, Strategy::Average).unwrap();
            let fit = fit_family(family, &data, &rows, &[]).unwrap();
            for (row, inputs) in rows.iter().enumerate() {
                let mean = predict(&data, &fitted, row);
                let model = fit.model.predict(inputs);
                assert!((mean - model).abs() <= 1e-12 * mean, "{}: {mean} {model}", family.name());
            }
            let c = &fit.confidence;
            assert!(c.low > 0.5 && c.high < 2.0, "{}: {c:?}", family.name());
            let inside = rows.iter().zip(data.samples()).filter(|(inputs, s)| {
                let [low, high] = c.interval(fit.model.predict(inputs));
                (low..=high).contains(&s.label)
            });
            assert!(inside.count() as f64 >= 0.9 * rows.len() as f64, "{}", family.name());
        }
    }

    #[test]
    fn covering_ranks() {
        let values: Vec<f64> = (1..=19).map(f64::from).collect();
        assert_eq!(covering(&values, 0.95), 19.0);
        assert_eq!(covering(&values, 0.5), 10.0);
        assert_eq!(covering(&[2.0], 0.95), 2.0);
    }
}
