//! Training data: labelled candidates with their feature values under one or more designs.

use super::lstsq::Matrix;

/// A measured candidate.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Sample {
    /// The problem: candidates of one case compete with each other.
    pub case: String,
    /// Shape of the problem. Folds of [`Split::Shape`] hold out all cases of a shape.
    pub shape: String,
    /// Operator of the problem. Folds of [`Split::Operator`] hold out all cases of an operator.
    pub operator: String,
    /// The schedule choice, by a name that means the same in every case, as `256 threads, cache`.
    pub candidate: String,
    /// Measured time in microseconds, positive: the median of `samples` where there are any.
    pub label: f64,
    /// Single measurements in microseconds, for resampling; may be empty.
    pub samples: Vec<f64>,
}

/// One way to turn candidates into features: a feature set at one value of its hyperparameter
/// (such as the machine's capacity). Rows run parallel to the samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Design {
    /// Name, for reports.
    pub name: String,
    /// One name per feature.
    pub features: Vec<String>,
    /// One row of feature values per sample.
    pub rows: Vec<Vec<f64>>,
}

/// Spread of a label's repetitions at which its row counts half.
pub const STEADY: f64 = 0.1;

/// What a row counts in a fit whose label comes from repetitions that lie so far apart, relative to
/// the label: 1 / (1 + (spread / [`STEADY`])²). A label that was disturbed
/// while it was measured says little, and a case that was disturbed from its first candidate to its
/// last shouldn't bend the fit of all others.
pub fn weight(spread: f64) -> f64 {
    let relative = spread / STEADY;
    1.0 / (1.0 + relative * relative)
}

/// What is held out together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// All cases of one shape.
    Shape,
    /// All cases of one operator.
    Operator,
}

/// Data that can't be fitted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum DataError {
    /// No samples.
    #[error("no training rows")]
    Empty,
    /// A label that is no time.
    #[error("row {row} ({case}): label {label} isn't a positive number of microseconds")]
    Label { row: usize, case: String, label: f64 },
    /// A design with another number of rows.
    #[error("design `{design}` has {rows} rows for {samples} samples")]
    Rows { design: String, rows: usize, samples: usize },
    /// A row with another number of features, or one that isn't finite.
    #[error("design `{design}`, row {row}: needs {features} finite feature values")]
    Features { design: String, row: usize, features: usize },
    /// Weights that don't fit the rows.
    #[error("row {row}: the weights must be over 0 and at most 1, one for each of {rows} rows")]
    Weights { row: usize, rows: usize },
    /// Too few groups to hold one out.
    #[error("{groups} group(s) to hold out; at least 2 are needed")]
    Groups { groups: usize },
    /// Nothing to choose from.
    #[error("no design to choose from")]
    NoDesign,
    /// A shape that no sample has.
    #[error("no training row has the shape `{shape}`")]
    NoShape { shape: String },
    /// A GPU of which the number of cores isn't known, and with it the capacities to try.
    #[error("target `{target}` isn't known, and its number of cores is needed")]
    Target { target: String },
    /// Fits that make no usable model.
    #[error(transparent)]
    Model(#[from] crate::policy::whole_launch::ModelError),
    /// The fit itself failed.
    #[error(transparent)]
    Fit(#[from] super::nnls::NnlsError),
}

/// Samples with their designs, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    samples: Vec<Sample>,
    designs: Vec<Design>,
    weights: Vec<f64>,
    anchored: bool,
}

impl Dataset {
    /// Checks that labels are positive and every design fits the samples.
    ///
    /// # Errors
    /// [`DataError`] names the first row that doesn't fit.
    pub fn new(samples: Vec<Sample>, designs: Vec<Design>) -> Result<Self, DataError> {
        if samples.is_empty() {
            return Err(DataError::Empty);
        }
        if designs.is_empty() {
            return Err(DataError::NoDesign);
        }
        for (row, s) in samples.iter().enumerate() {
            if !(s.label.is_finite() && s.label > 0.0) {
                return Err(DataError::Label { row, case: s.case.clone(), label: s.label });
            }
        }
        for d in &designs {
            if d.rows.len() != samples.len() {
                return Err(DataError::Rows {
                    design: d.name.clone(),
                    rows: d.rows.len(),
                    samples: samples.len(),
                });
            }
            for (row, values) in d.rows.iter().enumerate() {
                if values.len() != d.features.len() || values.iter().any(|v| !v.is_finite()) {
                    return Err(DataError::Features {
                        design: d.name.clone(),
                        row,
                        features: d.features.len(),
                    });
                }
            }
        }
        let weights = vec![1.0; samples.len()];
        Ok(Dataset { samples, designs, weights, anchored: false })
    }

    /// The same rows with a weight each, over 0 and at most 1 ([`weight`]); without, all count 1.
    ///
    /// # Errors
    /// [`DataError::Weights`] names the first row whose weight is missing or out of range.
    pub fn weighted(self, weights: Vec<f64>) -> Result<Self, DataError> {
        let rows = self.samples.len();
        let wrong = weights.iter().position(|w| !(*w > 0.0 && *w <= 1.0));
        let missing = (weights.len() != rows).then_some(weights.len().min(rows));
        match wrong.or(missing) {
            Some(row) => Err(DataError::Weights { row, rows }),
            None => Ok(Dataset { weights, ..self }),
        }
    }

    /// The same rows, of whose designs a coefficient of 1 says what is known of a term: fits stay near
    /// that ([`super::anchor`]).
    pub fn anchored(self) -> Self {
        Dataset { anchored: true, ..self }
    }

    /// Whether fits stay near coefficients of 1.
    pub fn is_anchored(&self) -> bool {
        self.anchored
    }

    /// Whether a row's repetitions lie no further apart than [`STEADY`]: it counts at least half.
    pub fn steady(&self, row: usize) -> bool {
        self.weights.get(row).is_some_and(|w| *w >= 0.5)
    }

    /// The samples.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// The designs, simplest first.
    pub fn designs(&self) -> &[Design] {
        &self.designs
    }

    /// The same candidates with other labels, as resampling gives them.
    ///
    /// # Errors
    /// As [`Dataset::new`].
    pub fn relabelled(&self, labels: &[f64]) -> Result<Dataset, DataError> {
        let samples = self.samples.iter().zip(labels);
        let samples = samples.map(|(s, label)| Sample { label: *label, ..s.clone() });
        let new = Dataset::new(samples.collect(), self.designs.clone())?;
        Dataset { anchored: self.anchored, ..new }.weighted(self.weights.clone())
    }

    /// Every row number.
    pub fn all(&self) -> Vec<usize> {
        (0..self.samples.len()).collect()
    }

    /// The rows that aren't among those held out, in order.
    pub(super) fn without(&self, rows: &[usize], held: &[usize]) -> Vec<usize> {
        let mut out = vec![false; self.samples.len()];
        held.iter().for_each(|r| out[*r] = true);
        rows.iter().copied().filter(|r| !out[*r]).collect()
    }

    /// The groups among the given rows, sorted, each with its rows in order.
    pub fn groups(&self, rows: &[usize], split: Split) -> Vec<(String, Vec<usize>)> {
        self.grouped(rows, |s| match split {
            Split::Shape => &s.shape,
            Split::Operator => &s.operator,
        })
    }

    /// The cases among the given rows, sorted by name, each with its rows in order.
    pub fn cases(&self, rows: &[usize]) -> Vec<(String, Vec<usize>)> {
        self.grouped(rows, |s| &s.case)
    }

    fn grouped(
        &self,
        rows: &[usize],
        key: impl Fn(&Sample) -> &String,
    ) -> Vec<(String, Vec<usize>)> {
        let mut groups: std::collections::BTreeMap<&String, Vec<usize>> = Default::default();
        for row in rows {
            groups.entry(key(&self.samples[*row])).or_default().push(*row);
        }
        groups.into_iter().map(|(k, v)| (k.clone(), v)).collect()
    }

    /// What [`Dataset::relative`] is fitted to: the square roots of the rows' weights.
    pub(super) fn targets(&self, rows: &[usize]) -> Vec<f64> {
        rows.iter().map(|r| self.weights[*r].sqrt()).collect()
    }

    /// Features of the given rows divided by their labels, times the square roots of their weights,
    /// so that least squares against these roots minimises the weighted relative error.
    pub(super) fn relative(&self, design: usize, rows: &[usize]) -> Result<Matrix, DataError> {
        let d = &self.designs[design];
        let value =
            |r: &usize, j: usize| self.weights[*r].sqrt() * d.rows[*r][j] / self.samples[*r].label;
        let columns =
            (0..d.features.len()).map(|j| rows.iter().map(|r| value(r, j)).collect()).collect();
        Matrix::from_columns(columns).map_err(|e| DataError::Features {
            design: d.name.clone(),
            row: e.found,
            features: d.features.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_counts_half_where_its_repetitions_are_ten_percent_apart() {
        assert_eq!((weight(0.0), weight(STEADY)), (1.0, 0.5));
        assert!(weight(1.6) < 0.004 && weight(1.6) > 0.0);
        let one = |label| Sample { label, ..Sample::default() };
        let design = Design {
            name: "one".to_string(),
            features: vec!["one".to_string()],
            rows: vec![vec![1.0]; 3],
        };
        let data = Dataset::new(vec![one(1.0), one(1.0), one(2.0)], vec![design]).unwrap();
        assert!((0..3).all(|row| data.steady(row)) && !data.steady(3));
        let weights = |spreads: [f64; 3]| spreads.map(weight).to_vec();
        let some = data.clone().weighted(weights([0.0, 0.1, 0.101])).unwrap();
        assert_eq!([0, 1, 2].map(|row| some.steady(row)), [true, true, false]);
        for (wrong, row) in
            [(vec![1.0, 0.5], 2), (vec![1.0, 0.0, 1.0], 1), (vec![1.0, 1.0, f64::NAN], 2)]
        {
            let error = data.clone().weighted(wrong).unwrap_err();
            assert_eq!(error, DataError::Weights { row, rows: 3 });
        }
    }
}
