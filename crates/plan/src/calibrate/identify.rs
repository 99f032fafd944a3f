//! Which coefficients mean something: correlation of features, condition of the fit, and how
//! coefficients move when a group of rows is left out.

use super::data::{DataError, Dataset, Split};
use super::fit::{fit, mean};
use super::lstsq::Matrix;

/// Cosine from which two columns count as the same one.
const DUPLICATE: f64 = 1.0 - 1e-9;

/// What can be said of one coefficient.
#[derive(Clone, Debug, PartialEq)]
pub enum Meaning {
    /// Positive on all rows and without any group.
    Identified,
    /// Zero on all rows: the fit has no use for the feature, which doesn't make it free.
    Zero,
    /// Its column is a multiple of an earlier one's; only the sum of both means anything.
    Duplicate {
        /// The earlier feature.
        of: String,
    },
    /// Every value is zero.
    Absent,
    /// Positive with all rows, but zero without some group.
    Unstable,
}

impl Meaning {
    /// In words.
    pub fn describe(&self) -> String {
        match self {
            Meaning::Identified => "identified".to_string(),
            Meaning::Zero => "zero: no meaning".to_string(),
            Meaning::Duplicate { of } => format!("same column as {of}: no meaning of its own"),
            Meaning::Absent => "never occurs in the data: no meaning".to_string(),
            Meaning::Unstable => "zero without some group: no stable meaning".to_string(),
        }
    }
}

/// One coefficient.
#[derive(Clone, Debug, PartialEq)]
pub struct CoefficientReport {
    /// The feature.
    pub feature: String,
    /// Its coefficient on all rows.
    pub coefficient: f64,
    /// Smallest and largest coefficient over the fits that each leave one group out.
    pub range: [f64; 2],
    /// Mean share of the prediction.
    pub share: f64,
    /// What it means.
    pub meaning: Meaning,
}

/// The report on one design.
#[derive(Clone, Debug, PartialEq)]
pub struct Identifiability {
    /// The design.
    pub design: String,
    /// One entry a feature.
    pub coefficients: Vec<CoefficientReport>,
    /// Cosines between the columns that the fit sees (feature/label), row by row; 0 for a column
    /// of zeros.
    pub correlation: Vec<Vec<f64>>,
    /// Largest over smallest singular value of those columns at unit norm, zero columns left out;
    /// infinite for dependent columns.
    pub condition: f64,
}

/// Looks at one design.
///
/// # Errors
/// [`DataError`] when it can't be fitted or there are fewer than two groups.
pub fn identify(data: &Dataset, design: usize, split: Split) -> Result<Identifiability, DataError> {
    let Some(info) = data.designs().get(design) else { return Err(DataError::NoDesign) };
    let all = data.all();
    let full = fit(data, design, &all)?;
    let groups = data.groups(&all, split);
    if groups.len() < 2 {
        return Err(DataError::Groups { groups: groups.len() });
    }
    let mut without = Vec::with_capacity(groups.len());
    for (_, held) in &groups {
        let rest = data.without(&all, held);
        without.push(fit(data, design, &rest)?.coefficients);
    }
    let matrix = data.relative(design, &all)?;
    let correlation = cosines(&matrix);
    let n = info.features.len();
    let coefficients = (0..n)
        .map(|j| {
            let coefficient = full.coefficients[j];
            let moved = || without.iter().map(|c| c[j]);
            let range = [moved().fold(f64::INFINITY, f64::min), moved().fold(0.0, f64::max)];
            let duplicate = (0..j).find(|i| correlation[*i][j] >= DUPLICATE);
            let meaning = if correlation[j][j] == 0.0 {
                Meaning::Absent
            } else if let Some(i) = duplicate {
                Meaning::Duplicate { of: info.features[i].clone() }
            } else if coefficient == 0.0 {
                Meaning::Zero
            } else if range[0] == 0.0 {
                Meaning::Unstable
            } else {
                Meaning::Identified
            };
            let shares = info.rows.iter().map(|row| {
                let total = full.predict(row);
                if total > 0.0 { coefficient * row[j] / total } else { 0.0 }
            });
            CoefficientReport {
                feature: info.features[j].clone(),
                coefficient,
                range,
                share: mean(shares),
                meaning,
            }
        })
        .collect();
    Ok(Identifiability {
        design: info.name.clone(),
        coefficients,
        condition: condition(&correlation),
        correlation,
    })
}

fn cosines(matrix: &Matrix) -> Vec<Vec<f64>> {
    let n = matrix.cols();
    let norm = |j: usize| matrix.column(j).iter().map(|v| v * v).sum::<f64>().sqrt();
    let norms: Vec<f64> = (0..n).map(norm).collect();
    let cosine = |i: usize, j: usize| {
        if norms[i] == 0.0 || norms[j] == 0.0 {
            return 0.0;
        }
        if i == j {
            return 1.0;
        }
        let dot: f64 = matrix.column(i).iter().zip(matrix.column(j)).map(|(a, b)| a * b).sum();
        dot / (norms[i] * norms[j])
    };
    (0..n).map(|i| (0..n).map(|j| cosine(i, j)).collect()).collect()
}

/// Condition number from the Gram matrix of unit columns.
fn condition(gram: &[Vec<f64>]) -> f64 {
    let present: Vec<usize> = (0..gram.len()).filter(|i| gram[*i][*i] > 0.0).collect();
    let square: Vec<Vec<f64>> =
        present.iter().map(|i| present.iter().map(|j| gram[*i][*j]).collect()).collect();
    let values = eigenvalues(square);
    let largest = values.iter().copied().fold(0.0, f64::max);
    let smallest = values.iter().copied().fold(f64::INFINITY, f64::min);
    // Squares of singular values: below 1e-14 of the largest is rounding.
    if smallest <= largest * 1e-14 { f64::INFINITY } else { (largest / smallest).sqrt() }
}

/// Eigenvalues of a symmetric matrix by Jacobi rotations.
fn eigenvalues(mut a: Vec<Vec<f64>>) -> Vec<f64> {
    let n = a.len();
    for _ in 0..100 {
        let mut off = 0.0;
        for (i, row) in a.iter().enumerate() {
            off += row.iter().skip(i + 1).map(|v| v * v).sum::<f64>();
        }
        if off < 1e-30 {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                if a[p][q] == 0.0 {
                    continue;
                }
                let theta = (a[q][q] - a[p][p]) / (2.0 * a[p][q]);
                let sign = if theta >= 0.0 { 1.0 } else { -1.0 };
                let t = sign / (theta.abs() + (theta * theta + 1.0).sqrt());
                let c = 1.0 / (t * t + 1.0).sqrt();
                let s = t * c;
                for row in a.iter_mut() {
                    let (x, y) = (row[p], row[q]);
                    row[p] = c * x - s * y;
                    row[q] = s * x + c * y;
                }
                let (upper, lower) = a.split_at_mut(q);
                for (x, y) in upper[p].iter_mut().zip(lower[0].iter_mut()) {
                    (*x, *y) = (c * *x - s * *y, s * *x + c * *y);
                }
            }
        }
    }
    (0..n).map(|i| a[i][i]).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Design, Sample};
    use super::*;

    #[test]
    fn eigenvalues_of_a_known_matrix() {
        let mut values =
            eigenvalues(vec![vec![2.0, -1.0, 0.0], vec![-1.0, 2.0, -1.0], vec![0.0, -1.0, 2.0]]);
        values.sort_by(f64::total_cmp);
        let root = 2.0f64.sqrt();
        for (value, want) in values.iter().zip([2.0 - root, 2.0, 2.0 + root]) {
            assert!((value - want).abs() < 1e-12, "{values:?}");
        }
    }

    #[test]
    fn each_kind_of_meaning_is_found() {
        // label = 1 + 2x; y only helps in group 2 and 3; copy = 3x; absent = 0; useless opposes.
        let rows: Vec<(f64, f64)> = (0..24).map(|i| (1.0 + i as f64, (i % 8) as f64)).collect();
        let samples = rows.iter().enumerate().map(|(i, (x, _))| Sample {
            case: format!("{}", i / 8),
            shape: format!("{}", i / 8),
            label: 1.0 + 2.0 * x,
            ..Sample::default()
        });
        let names = ["one", "x", "copy", "absent"];
        let design = Design {
            name: "d".to_string(),
            features: names.map(str::to_string).to_vec(),
            rows: rows.iter().map(|(x, _)| vec![1.0, *x, 3.0 * x, 0.0]).collect(),
        };
        let data = Dataset::new(samples.collect(), vec![design]).unwrap();
        let report = identify(&data, 0, Split::Shape).unwrap();
        let meaning = |j: usize| &report.coefficients[j].meaning;
        assert_eq!(*meaning(0), Meaning::Identified);
        assert_eq!(*meaning(2), Meaning::Duplicate { of: "x".to_string() });
        assert_eq!(*meaning(3), Meaning::Absent);
        assert_eq!(report.condition, f64::INFINITY);
        let shares: f64 = report.coefficients.iter().map(|c| c.share).sum();
        assert!((shares - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_coefficient_that_one_group_carries_is_unstable() {
        // Only group 1 has anything to do with y.
        let samples = (0..20).map(|i| Sample {
            case: format!("{}", i / 10),
            shape: format!("{}", i / 10),
            label: if i < 10 { 5.0 } else { 5.0 + (i % 10) as f64 },
            ..Sample::default()
        });
        let design = Design {
            name: "d".to_string(),
            features: vec!["one".to_string(), "y".to_string()],
            rows: (0..20).map(|i| vec![1.0, (i % 10) as f64]).collect(),
        };
        let data = Dataset::new(samples.collect(), vec![design]).unwrap();
        let report = identify(&data, 0, Split::Shape).unwrap();
        assert_eq!(report.coefficients[1].meaning, Meaning::Unstable);
    }
}
