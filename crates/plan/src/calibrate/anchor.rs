//! Fits that stay near the prices that the terms of a family have already.
//!
//! The inputs of some families are microseconds at prices that were fitted to many shapes
//! ([`Family::is_priced`](crate::policy::whole_launch::Family::is_priced)), so that coefficients of 1
//! are an estimate. A study measures few shapes; a free fit to them picks worse in others than these
//! prices do. So a fit minimises
//!
//! > Σ w·(prediction/label − 1)² + λ·Σw·Σ(coefficient − 1)²
//!
//! over nonnegative coefficients: ridge regression (Hoerl and Kennard, 1970) toward 1 instead of 0. Its
//! strength λ is the one of [`STRENGTHS`] whose fits pick with the smallest mean regret where each group of the
//! training rows is left out once; of equal regrets the one with the smaller relative error, then
//! the stronger.

use super::data::{DataError, Dataset, Split};
use super::fit::{Fitted, Pick, mean, picks_by};
use super::lstsq::{self, Matrix};
use super::nnls;

/// What coefficients stay near.
pub const TOWARD: f64 = 1.0;

/// Strengths that are tried, the strongest first: with the last a coefficient that is off by 1
/// costs as much as a relative error of 3 % in every row.
pub const STRENGTHS: [f64; 7] = [1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001];

/// Rows of a design, reduced to a triangle with the same residuals, and the sum of their weights.
struct Part {
    matrix: Matrix,
    targets: Vec<f64>,
    weight: f64,
}

impl Part {
    fn of(data: &Dataset, design: usize, rows: &[usize]) -> Result<Self, DataError> {
        let all = data.targets(rows);
        let weight = all.iter().map(|root| root * root).sum();
        let (matrix, targets) = lstsq::reduce(&data.relative(design, rows)?, &all);
        Ok(Part { matrix, targets, weight })
    }

    /// Some parts as one.
    fn joined<'a>(parts: impl Iterator<Item = &'a Part> + Clone) -> Result<Self, DataError> {
        let columns = parts.clone().next().map_or(0, |p| p.matrix.cols());
        let column = |j: usize| parts.clone().flat_map(|p| p.matrix.column(j)).copied().collect();
        let matrix = Matrix::from_columns((0..columns).map(column).collect());
        // A column has an entry a row in every part.
        let matrix = matrix.map_err(|_| DataError::Empty)?;
        let targets: Vec<f64> = parts.clone().flat_map(|p| &p.targets).copied().collect();
        let (matrix, targets) = lstsq::reduce(&matrix, &targets);
        Ok(Part { matrix, targets, weight: parts.map(|p| p.weight).sum() })
    }

    /// The coefficients of a strength.
    fn fit(&self, strength: f64) -> Result<Vec<f64>, DataError> {
        let root = (strength * self.weight).sqrt();
        let columns = self.matrix.cols();
        let column = |j: usize| {
            let near = (0..columns).map(move |i| if i == j { root } else { 0.0 });
            self.matrix.column(j).iter().copied().chain(near).collect()
        };
        let matrix = Matrix::from_columns((0..columns).map(column).collect());
        let matrix = matrix.map_err(|_| DataError::Empty)?;
        let mut targets = self.targets.clone();
        targets.extend(std::iter::repeat_n(root * TOWARD, columns));
        Ok(nnls::solve_convex(&matrix, &targets)?.coefficients)
    }
}

/// Fits every design to the rows with the strength that leaving out groups chooses.
///
/// # Errors
/// [`DataError::Groups`] with fewer than two groups, or there is nothing to fit.
pub(super) fn train(
    data: &Dataset,
    rows: &[usize],
    split: Split,
) -> Result<Vec<Fitted>, DataError> {
    let groups = data.groups(rows, split);
    if groups.len() < 2 {
        return Err(DataError::Groups { groups: groups.len() });
    }
    let designs = 0..data.designs().len();
    let mut parts = Vec::new();
    for design in designs.clone() {
        let own = groups.iter().map(|(_, rows)| Part::of(data, design, rows));
        parts.push(own.collect::<Result<Vec<_>, _>>()?);
    }
    let strength = choose(data, &groups, &parts)?;
    let fitted = designs.map(|design| {
        let coefficients = Part::joined(parts[design].iter())?.fit(strength)?;
        let mut fitted =
            Fitted { design, coefficients, relative_rmse: 0.0, strength: Some(strength) };
        let error = squares(data, rows, |row| fitted.predict(&data.designs()[design].rows[row]));
        fitted.relative_rmse = error.sqrt();
        Ok(fitted)
    });
    fitted.collect()
}

/// The weighted mean of (prediction/label − 1)².
fn squares(data: &Dataset, rows: &[usize], predict: impl Fn(usize) -> f64) -> f64 {
    let roots = data.targets(rows);
    let weights: f64 = roots.iter().map(|root| root * root).sum();
    let square = |(row, root): (&usize, &f64)| {
        (root * (predict(*row) / data.samples()[*row].label - 1.0)).powi(2)
    };
    rows.iter().zip(&roots).map(square).sum::<f64>() / weights
}

/// The strength to fit with.
fn choose(
    data: &Dataset,
    groups: &[(String, Vec<usize>)],
    parts: &[Vec<Part>],
) -> Result<f64, DataError> {
    let mut predictions = vec![vec![0.0; data.samples().len()]; STRENGTHS.len()];
    for (index, (_, held)) in groups.iter().enumerate() {
        for (design, parts) in parts.iter().enumerate() {
            let others = parts.iter().enumerate().filter(|(i, _)| *i != index);
            let rest = Part::joined(others.map(|(_, part)| part))?;
            for (strength, predictions) in STRENGTHS.iter().zip(&mut predictions) {
                let coefficients = rest.fit(*strength)?;
                for row in held {
                    let features = data.designs()[design].rows[*row].iter();
                    let own: f64 = features.zip(&coefficients).map(|(f, c)| f * c).sum();
                    predictions[*row] += own / data.designs().len() as f64;
                }
            }
        }
    }
    let rows: Vec<usize> = groups.iter().flat_map(|(_, rows)| rows).copied().collect();
    let mut best: Option<([f64; 2], f64)> = None;
    for (strength, predictions) in STRENGTHS.iter().zip(&predictions) {
        let picks = picks_by(data, &rows, |row| predictions[row]);
        let regret = mean(picks.iter().map(Pick::regret));
        let found = [regret, squares(data, &rows, |row| predictions[row])];
        if best.is_none_or(|(best, _)| found < best) {
            best = Some((found, *strength));
        }
    }
    best.map(|(_, strength)| strength).ok_or(DataError::NoDesign)
}

#[cfg(test)]
mod tests {
    use super::super::{Design, Sample, Strategy, nested, train};
    use super::*;

    /// Two shapes' rows whose labels are `truth` times the features, and noise of a pattern.
    fn data(truth: [f64; 2], noise: f64, shapes: usize) -> Dataset {
        let (mut samples, mut rows) = (Vec::new(), Vec::new());
        for shape in 0..shapes {
            for i in 0..8usize {
                let features = vec![1.0 + (i * (shape + 3) % 7) as f64, 1.0 + (i * 5 % 8) as f64];
                let label: f64 = features.iter().zip(truth).map(|(f, c)| f * c).sum();
                let sign = if (i + shape) % 2 == 0 { 1.0 } else { -1.0 };
                samples.push(Sample {
                    case: format!("{shape}"),
                    shape: format!("{shape}"),
                    candidate: format!("{i}"),
                    label: label * (1.0 + sign * noise),
                    ..Sample::default()
                });
                rows.push(features);
            }
        }
        let names = vec!["a".to_string(), "b".to_string()];
        let design = Design { name: "both".to_string(), features: names, rows };
        Dataset::new(samples, vec![design]).unwrap().anchored()
    }

    #[test]
    fn the_gradient_of_the_penalised_loss_is_zero() {
        let data = data([1.4, 0.8], 0.1, 3);
        let part = Part::of(&data, 0, &data.all()).unwrap();
        for strength in STRENGTHS {
            let x = part.fit(strength).unwrap();
            for j in 0..2 {
                let own = |row: usize| data.designs()[0].rows[row].clone();
                let slope: f64 = data
                    .all()
                    .into_iter()
                    .map(|row| {
                        let (f, label) = (own(row), data.samples()[row].label);
                        let error = (f[0] * x[0] + f[1] * x[1]) / label - 1.0;
                        error * f[j] / label
                    })
                    .sum();
                let slope = slope + strength * 24.0 * (x[j] - TOWARD);
                assert!(slope.abs() < 1e-9, "{strength} {j}: {slope}");
            }
        }
    }

    #[test]
    fn a_coefficient_of_nothing_stays_where_it_was() {
        let mut one = data([1.2, 1.0], 0.0, 3);
        let mut design = one.designs()[0].clone();
        design.rows.iter_mut().for_each(|row| row[1] = 0.0);
        let labels = design.rows.iter().map(|row| 1.2 * row[0]);
        let samples = one.samples().iter().zip(labels);
        let samples = samples.map(|(s, label)| Sample { label, ..s.clone() }).collect();
        one = Dataset::new(samples, vec![design]).unwrap().anchored();
        let fitted = train(&one, &one.all(), Split::Shape, Strategy::Average).unwrap();
        assert!((fitted[0].coefficients[1] - TOWARD).abs() < 1e-12, "{fitted:?}");
        // No noise and much to say of the other: the weakest strength has the smallest error.
        assert_eq!(fitted[0].strength, Some(0.001));
        assert!((fitted[0].coefficients[0] - 1.2).abs() < 0.01, "{fitted:?}");
    }

    #[test]
    fn each_outer_fold_chooses_its_own_strength_on_its_own_rows() {
        let data = data([1.0, 1.6], 0.05, 5);
        let folds = nested(&data, Split::Shape, Strategy::Average).unwrap();
        for fold in &folds {
            let all = data.all();
            let rest: Vec<usize> =
                all.into_iter().filter(|r| data.samples()[*r].shape != fold.group).collect();
            let alone = train(&data, &rest, Split::Shape, Strategy::Average).unwrap();
            assert_eq!(alone, fold.models);
        }
        let two = self::data([1.0, 1.0], 0.0, 1);
        let error = train(&two, &two.all(), Split::Shape, Strategy::Average).unwrap_err();
        assert_eq!(error, DataError::Groups { groups: 1 });
    }
}
