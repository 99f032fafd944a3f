//! Nonnegative least squares.
//!
//! Up to [`ENUMERATION_LIMIT`] unknowns every subset of active columns is solved exactly and the
//! feasible one with the smallest loss wins, so the result is the optimum and doesn't depend on an
//! iteration's path. Beyond, the Lawson–Hanson active-set iteration is used.

use super::lstsq::{self, Matrix};

/// Most unknowns for which all active sets are enumerated.
pub const ENUMERATION_LIMIT: usize = 12;

/// An active set is discarded if it wants a coefficient below this; tiny negatives become 0.
const NEGATIVE_TOLERANCE: f64 = -1e-10;

/// A solution.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// One coefficient per column, none negative.
    pub coefficients: Vec<f64>,
    /// `‖a·x − b‖²`.
    pub loss: f64,
}

/// The columns cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum NnlsError {
    /// Nothing to fit or to fit with.
    #[error("a fit needs at least one row and one column (got {rows}×{columns})")]
    Empty { rows: usize, columns: usize },
    /// A NaN or infinity.
    #[error("column {column} holds a value that isn't finite")]
    NotFinite { column: usize },
    /// The right-hand side has another length.
    #[error("{rows} rows but {targets} targets")]
    Targets { rows: usize, targets: usize },
}

/// Minimises `‖a·x − b‖₂` with `x ≥ 0`. Columns are scaled to unit norm first and the
/// coefficients scaled back; a zero column gets 0.
///
/// # Errors
/// [`NnlsError`] for empty, mismatched or non-finite input.
pub fn solve(a: &Matrix, b: &[f64]) -> Result<Solution, NnlsError> {
    let few = a.cols() <= ENUMERATION_LIMIT;
    solve_by(a, b, if few { enumerate } else { lawson_hanson })
}

fn solve_by(
    a: &Matrix,
    b: &[f64],
    method: fn(&Matrix, &[f64]) -> Solution,
) -> Result<Solution, NnlsError> {
    if a.rows() == 0 || a.cols() == 0 {
        return Err(NnlsError::Empty { rows: a.rows(), columns: a.cols() });
    }
    if b.len() != a.rows() {
        return Err(NnlsError::Targets { rows: a.rows(), targets: b.len() });
    }
    if b.iter().any(|v| !v.is_finite()) {
        return Err(NnlsError::NotFinite { column: a.cols() });
    }
    let mut scales = Vec::with_capacity(a.cols());
    let mut columns = Vec::with_capacity(a.cols());
    for j in 0..a.cols() {
        let column = a.column(j);
        if column.iter().any(|v| !v.is_finite()) {
            return Err(NnlsError::NotFinite { column: j });
        }
        let norm = column.iter().map(|v| v * v).sum::<f64>().sqrt();
        let scale = if norm > 0.0 { norm } else { 1.0 };
        scales.push(scale);
        columns.push(column.iter().map(|v| v / scale).collect());
    }
    // Equal lengths by construction.
    let Ok(scaled) = Matrix::from_columns(columns) else {
        return Err(NnlsError::Empty { rows: a.rows(), columns: a.cols() });
    };
    // Thousands of rows count once, not once for every active set.
    let (small, targets) = lstsq::reduce(&scaled, b);
    let mut solution = method(&small, &targets);
    solution.loss = loss(&scaled, &solution.coefficients, b);
    for (coefficient, scale) in solution.coefficients.iter_mut().zip(&scales) {
        *coefficient /= scale;
    }
    Ok(solution)
}

/// As [`solve`], for columns of which none depends on the others: the optimum is one point then, and
/// the iteration finds it however many unknowns there are.
///
/// # Errors
/// As [`solve`].
pub fn solve_convex(a: &Matrix, b: &[f64]) -> Result<Solution, NnlsError> {
    solve_by(a, b, lawson_hanson)
}

fn loss(a: &Matrix, x: &[f64], b: &[f64]) -> f64 {
    a.times(x).iter().zip(b).map(|(f, b)| (f - b) * (f - b)).sum()
}

/// Every nonempty subset, small ones first and in lexicographic order within a size; a later
/// subset must be strictly better.
fn enumerate(a: &Matrix, b: &[f64]) -> Solution {
    let n = a.cols();
    let mut best = Solution { coefficients: vec![0.0; n], loss: loss(a, &vec![0.0; n], b) };
    let mut subsets: Vec<Vec<usize>> = (1u32..1 << n)
        .map(|mask| (0..n).filter(|j| mask >> j & 1 == 1).collect::<Vec<usize>>())
        .collect();
    subsets.sort_by(|p, q| p.len().cmp(&q.len()).then_with(|| p.cmp(q)));
    for subset in subsets {
        let x = lstsq::solve(&a.select(&subset), b);
        if x.iter().any(|v| *v < NEGATIVE_TOLERANCE) {
            continue;
        }
        let mut full = vec![0.0; n];
        for (j, v) in subset.iter().zip(&x) {
            full[*j] = v.max(0.0);
        }
        let loss = loss(a, &full, b);
        if loss < best.loss {
            best = Solution { coefficients: full, loss };
        }
    }
    best
}

/// Lawson and Hanson, "Solving Least Squares Problems", chapter 23.
fn lawson_hanson(a: &Matrix, b: &[f64]) -> Solution {
    let n = a.cols();
    let mut x = vec![0.0; n];
    let mut passive: Vec<usize> = Vec::new();
    // Each round adds one column; 3n rounds are ample in exact arithmetic and bound the rest.
    for _ in 0..3 * n {
        let residual: Vec<f64> = a.times(&x).iter().zip(b).map(|(f, b)| b - f).collect();
        let gradient =
            |j: usize| a.column(j).iter().zip(&residual).map(|(c, r)| c * r).sum::<f64>();
        let entering = (0..n).filter(|j| !passive.contains(j)).map(|j| (j, gradient(j))).fold(
            None,
            |best: Option<(usize, f64)>, next| match best {
                Some(b) if b.1 >= next.1 => Some(b),
                _ => Some(next),
            },
        );
        let Some((entering, slope)) = entering else { break };
        if slope <= 1e-12 {
            break;
        }
        passive.push(entering);
        passive.sort_unstable();
        loop {
            let trial = lstsq::solve(&a.select(&passive), b);
            if trial.iter().all(|v| *v > 0.0) {
                x = vec![0.0; n];
                for (j, v) in passive.iter().zip(&trial) {
                    x[*j] = *v;
                }
                break;
            }
            // Move toward the trial until the first coefficient reaches zero.
            let mut step = 1.0f64;
            for (j, v) in passive.iter().zip(&trial) {
                if *v <= 0.0 && x[*j] - v > 0.0 {
                    step = step.min(x[*j] / (x[*j] - v));
                }
            }
            for (j, v) in passive.iter().zip(&trial) {
                x[*j] += step * (v - x[*j]);
            }
            let before = passive.len();
            passive.retain(|j| x[*j] > 1e-14);
            for (j, v) in x.iter_mut().enumerate() {
                if !passive.contains(&j) {
                    *v = 0.0;
                }
            }
            if passive.is_empty() || passive.len() == before {
                break;
            }
        }
    }
    let loss = loss(a, &x, b);
    Solution { coefficients: x, loss }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noisy(n: usize, rows: usize, seed: u64) -> (Matrix, Vec<f64>) {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as f64 / (1u64 << 31) as f64
        };
        let columns = (0..n).map(|_| (0..rows).map(|_| next()).collect()).collect();
        let b = (0..rows).map(|_| next() - 0.2).collect();
        (Matrix::from_columns(columns).unwrap(), b)
    }

    /// The Karush–Kuhn–Tucker conditions: gradient zero where positive, not descending where zero.
    fn assert_optimal(a: &Matrix, b: &[f64], x: &[f64]) {
        let residual: Vec<f64> = a.times(x).iter().zip(b).map(|(f, b)| b - f).collect();
        for (j, v) in x.iter().enumerate() {
            let slope: f64 = a.column(j).iter().zip(&residual).map(|(c, r)| c * r).sum();
            assert!(*v >= 0.0);
            if *v > 0.0 {
                assert!(slope.abs() < 1e-8, "column {j}: {slope}");
            } else {
                assert!(slope < 1e-8, "column {j}: {slope}");
            }
        }
    }

    #[test]
    fn enumeration_satisfies_the_optimality_conditions() {
        for seed in 0..20 {
            let (a, b) = noisy(6, 40, seed);
            assert_optimal(&a, &b, &solve(&a, &b).unwrap().coefficients);
        }
    }

    #[test]
    fn both_methods_agree() {
        for seed in 0..20 {
            let (a, b) = noisy(8, 30, seed + 100);
            let (exact, iterated) = (enumerate(&a, &b), lawson_hanson(&a, &b));
            assert!((exact.loss - iterated.loss).abs() < 1e-9 * (1.0 + exact.loss));
            assert_optimal(&a, &b, &iterated.coefficients);
        }
    }

    #[test]
    fn many_columns_use_the_iteration() {
        let (a, b) = noisy(20, 60, 7);
        assert_optimal(&a, &b, &solve(&a, &b).unwrap().coefficients);
    }

    #[test]
    fn bad_input_is_refused() {
        let a = Matrix::from_columns(vec![vec![1.0, f64::NAN]]).unwrap();
        assert_eq!(solve(&a, &[1.0, 1.0]), Err(NnlsError::NotFinite { column: 0 }));
        let a = Matrix::from_columns(vec![vec![1.0, 2.0]]).unwrap();
        assert_eq!(solve(&a, &[1.0]), Err(NnlsError::Targets { rows: 2, targets: 1 }));
        let a = Matrix::from_columns(vec![]).unwrap();
        assert!(matches!(solve(&a, &[]), Err(NnlsError::Empty { .. })));
    }
}
