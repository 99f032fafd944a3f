//! Dense linear least squares by Householder QR with column pivoting: small systems (tens of
//! unknowns, thousands of rows), deterministic, no parallel sums.

/// A dense column-major matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    rows: usize,
    columns: Vec<Vec<f64>>,
}

impl Matrix {
    /// From columns of equal length; an empty list gives a 0×0 matrix.
    ///
    /// # Errors
    /// [`ShapeError`] when the columns differ in length.
    pub fn from_columns(columns: Vec<Vec<f64>>) -> Result<Self, ShapeError> {
        let rows = columns.first().map_or(0, Vec::len);
        if let Some(bad) = columns.iter().position(|c| c.len() != rows) {
            return Err(ShapeError { column: bad, found: columns[bad].len(), expected: rows });
        }
        Ok(Matrix { rows, columns })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.columns.len()
    }

    /// A column.
    pub fn column(&self, index: usize) -> &[f64] {
        &self.columns[index]
    }

    /// The matrix of the listed columns, in that order.
    pub fn select(&self, columns: &[usize]) -> Matrix {
        Matrix {
            rows: self.rows,
            columns: columns.iter().map(|c| self.columns[*c].clone()).collect(),
        }
    }

    /// `self · x`, summed column by column.
    pub fn times(&self, x: &[f64]) -> Vec<f64> {
        let mut out = vec![0.0; self.rows];
        for (column, factor) in self.columns.iter().zip(x) {
            for (o, c) in out.iter_mut().zip(column) {
                *o += c * factor;
            }
        }
        out
    }
}

/// Columns of different lengths.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column} has {found} rows where the first has {expected}")]
pub struct ShapeError {
    /// The first column that differs.
    pub column: usize,
    /// Its length.
    pub found: usize,
    /// Length of the first column.
    pub expected: usize,
}

/// Relative size of a pivot below which a column counts as dependent on the earlier ones.
const RANK_TOLERANCE: f64 = 1e-12;

/// Minimises `‖a·x − b‖₂`. A column that depends on the others (pivot below 1e-12 of the largest)
/// gets coefficient 0. `b` has one entry per row of `a`.
pub fn solve(a: &Matrix, b: &[f64]) -> Vec<f64> {
    let (m, n) = (a.rows(), a.cols());
    let mut q: Vec<Vec<f64>> = a.columns.clone();
    let mut rhs = b.to_vec();
    let mut order: Vec<usize> = (0..n).collect();
    let mut diagonal: Vec<f64> = Vec::with_capacity(n);
    let mut largest = 0.0f64;
    for k in 0..n.min(m) {
        let norm = |c: &Vec<f64>| c[k..].iter().map(|v| v * v).sum::<f64>().sqrt();
        // The remaining column of largest norm; the first of equals.
        let mut pivot = k;
        for j in k + 1..n {
            if norm(&q[j]) > norm(&q[pivot]) {
                pivot = j;
            }
        }
        q.swap(k, pivot);
        order.swap(k, pivot);
        let length = norm(&q[k]);
        largest = largest.max(length);
        if length <= largest * RANK_TOLERANCE {
            break;
        }
        // v = x + sign(x₀)‖x‖e₀, kept in place of the column; R's diagonal is kept apart.
        let alpha = if q[k][k] > 0.0 { -length } else { length };
        q[k][k] -= alpha;
        let reflector = q[k].clone();
        let scale: f64 = reflector[k..].iter().map(|v| v * v).sum();
        let reflect = |target: &mut [f64]| {
            let dot: f64 = reflector[k..].iter().zip(&target[k..]).map(|(v, t)| v * t).sum();
            let factor = 2.0 * dot / scale;
            for (t, v) in target[k..].iter_mut().zip(&reflector[k..]) {
                *t -= factor * v;
            }
        };
        for column in q.iter_mut().skip(k + 1) {
            reflect(column);
        }
        reflect(&mut rhs);
        diagonal.push(alpha);
    }
    let rank = diagonal.len();
    let mut x = vec![0.0; n];
    for k in (0..rank).rev() {
        let mut value = rhs[k];
        for j in k + 1..rank {
            value -= q[j][k] * x[order[j]];
        }
        x[order[k]] = value / diagonal[k];
    }
    x
}

/// A system of as many rows as there are columns and one more, at most, whose residuals have the
/// same norms for every `x`: the triangle of the QR decomposition of `a` with `b` beside it. What is
/// solved for many subsets of the columns needs the long rows once.
pub fn reduce(a: &Matrix, b: &[f64]) -> (Matrix, Vec<f64>) {
    let n = a.cols();
    let rows = a.rows().min(n + 1);
    let mut q: Vec<Vec<f64>> = a.columns.clone();
    q.push(b.to_vec());
    for k in 0..=n {
        let Some(tail) = q[k].get(k..) else { break };
        let length = tail.iter().map(|v| v * v).sum::<f64>().sqrt();
        if length == 0.0 || tail.len() < 2 {
            continue;
        }
        let alpha = if tail[0] > 0.0 { -length } else { length };
        let (reflected, rest) = q.split_at_mut(k + 1);
        let reflector = &mut reflected[k][k..];
        reflector[0] -= alpha;
        let scale: f64 = reflector.iter().map(|v| v * v).sum();
        for column in rest {
            let target = &mut column[k..];
            let dot: f64 = reflector.iter().zip(target.iter()).map(|(v, t)| v * t).sum();
            let factor = 2.0 * dot / scale;
            for (t, v) in target.iter_mut().zip(reflector.iter()) {
                *t -= factor * v;
            }
        }
        reflector.fill(0.0);
        reflector[0] = alpha;
    }
    for column in &mut q {
        column.truncate(rows);
    }
    let targets = q.pop().unwrap_or_default();
    (Matrix { rows, columns: q }, targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reduced_system_has_the_same_residuals() {
        // Tall, square, wide, and with a column of zeros.
        for (rows, zero) in [(30, None), (5, None), (4, None), (2, None), (30, Some(1))] {
            let entry = |i: usize, j: usize| ((i * (j + 3) + 7 * j) % 11) as f64 - 4.5;
            let column = |j: usize| -> Vec<f64> {
                (0..rows).map(|i| if zero == Some(j) { 0.0 } else { entry(i, j) }).collect()
            };
            let a = Matrix::from_columns((0..4).map(column).collect()).unwrap();
            let b: Vec<f64> = (0..rows).map(|i| ((i * i) % 17) as f64).collect();
            let (small, targets) = reduce(&a, &b);
            assert_eq!((small.rows(), small.cols(), targets.len()), (rows.min(5), 4, rows.min(5)));
            let norm = |a: &Matrix, b: &[f64], x: &[f64]| -> f64 {
                a.times(x).iter().zip(b).map(|(f, b)| (f - b) * (f - b)).sum()
            };
            for x in [[0.0; 4], [1.0, 0.0, 0.0, 0.0], [0.3, -2.0, 1.5, 0.7]] {
                let (whole, part) = (norm(&a, &b, &x), norm(&small, &targets, &x));
                assert!((whole - part).abs() <= 1e-12 * (1.0 + whole), "{rows}: {whole} {part}");
            }
        }
    }

    #[test]
    fn solves_a_square_system() {
        let a = Matrix::from_columns(vec![vec![2.0, 1.0], vec![1.0, 3.0]]).unwrap();
        let x = solve(&a, &[3.0, 5.0]);
        assert!((x[0] - 0.8).abs() < 1e-14 && (x[1] - 1.4).abs() < 1e-14, "{x:?}");
    }

    #[test]
    fn residual_is_orthogonal_to_the_columns() {
        let columns: Vec<Vec<f64>> = (0..4)
            .map(|j| (0..30).map(|i| ((i * (j + 3) + 7 * j) % 11) as f64 - 4.5).collect())
            .collect();
        let b: Vec<f64> = (0..30).map(|i| ((i * i) % 17) as f64).collect();
        let a = Matrix::from_columns(columns.clone()).unwrap();
        let fitted = a.times(&solve(&a, &b));
        for column in &columns {
            let dot: f64 =
                column.iter().zip(b.iter().zip(&fitted)).map(|(c, (b, f))| c * (b - f)).sum();
            assert!(dot.abs() < 1e-10, "{dot}");
        }
    }

    #[test]
    fn dependent_columns_get_zero() {
        let c: Vec<f64> = (0..10).map(|i| i as f64 + 1.0).collect();
        let double: Vec<f64> = c.iter().map(|v| 2.0 * v).collect();
        let a = Matrix::from_columns(vec![c.clone(), double]).unwrap();
        let x = solve(&a, &c);
        assert_eq!(x.iter().filter(|v| **v == 0.0).count(), 1);
        assert!(a.times(&x).iter().zip(&c).all(|(f, b)| (f - b).abs() < 1e-12));
    }

    #[test]
    fn unequal_columns_are_refused() {
        let error = Matrix::from_columns(vec![vec![1.0], vec![1.0, 2.0]]).unwrap_err();
        assert_eq!(error.column, 1);
    }
}
