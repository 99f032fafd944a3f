//! Nonnegative least squares of our own, by Lawson and Hanson (1974), on a triangular factor.
//!
//! A fit of times minimises Σ weight·(prediction/label − 1)², so the rows here are inputs/label and
//! the right-hand side is ones, both times the square root of the weight.

/// Diagonal of a factor, relative to its largest, under which columns count as dependent.
const DEPENDENT: f64 = 1e-9;

/// Gradients under this, relative to the lengths of column and residual, count as zero.
const FLAT: f64 = 1e-9;

/// A minimum.
#[derive(Clone, PartialEq, Debug)]
pub struct Minimum {
    /// One coefficient per column.
    pub coefficients: Vec<f64>,
    /// Whether it is the only one as far as the numbers tell: predictions of other rows follow
    /// from it only then.
    pub unique: bool,
}

/// Minimises ‖A·x − b‖ over x ≥ 0, with the targets b. `None` for rows of other lengths than
/// `columns`, another number of targets, or no end of the iteration.
pub fn nonnegative(rows: &[Vec<f64>], targets: &[f64], columns: usize) -> Option<Minimum> {
    if targets.len() != rows.len() || targets.iter().any(|t| !t.is_finite()) {
        return None;
    }
    let norms = column_norms(rows, columns)?;
    // [A | b] with scaled columns, reduced to a triangle: the minimum stays where it is.
    let mut matrix: Vec<Vec<f64>> = rows
        .iter()
        .zip(targets)
        .map(|(row, target)| {
            let scaled = row.iter().zip(&norms).map(|(v, n)| if *n > 0.0 { v / n } else { 0.0 });
            scaled.chain([*target]).collect()
        })
        .collect();
    triangulate(&mut matrix, columns + 1);
    let (factor, target): (Vec<Vec<f64>>, Vec<f64>) =
        matrix.into_iter().filter_map(|mut row| row.pop().map(|t| (row, t))).unzip();

    let mut passive = vec![false; columns];
    let mut blocked = vec![false; columns];
    let mut x = vec![0.0; columns];
    let mut unique = true;
    for _ in 0..10 * (columns + 1) {
        let gradient = gradient(&factor, &target, &x, columns);
        let steepest = (0..columns)
            .filter(|j| !passive[*j] && !blocked[*j] && norms[*j] > 0.0 && gradient[*j] > FLAT)
            .max_by(|a, b| gradient[*a].total_cmp(&gradient[*b]));
        let Some(entering) = steepest else {
            // A column left out that depends on those taken could stand in for one of them.
            for j in (0..columns).filter(|j| !passive[*j] && norms[*j] > 0.0) {
                let taken = (0..columns).filter(|i| passive[*i]).chain([j]).collect::<Vec<_>>();
                let flat = gradient[j] > -DEPENDENT.sqrt();
                unique &= !flat || least_squares(&factor, &target, &taken).is_some();
            }
            for (value, norm) in x.iter_mut().zip(&norms) {
                *value = if *norm > 0.0 { *value / norm } else { 0.0 };
            }
            return Some(Minimum { coefficients: x, unique });
        };
        passive[entering] = true;
        loop {
            let chosen: Vec<usize> = (0..columns).filter(|j| passive[*j]).collect();
            let Some(solution) = least_squares(&factor, &target, &chosen) else {
                // The entering column depends on the others: it can't lower the loss.
                passive[entering] = false;
                blocked[entering] = true;
                unique = false;
                break;
            };
            if solution.iter().all(|v| *v > 0.0) {
                x.fill(0.0);
                for (j, value) in chosen.iter().zip(solution) {
                    x[*j] = value;
                }
                break;
            }
            // Go towards the solution until the first coefficient would turn negative.
            let step = chosen
                .iter()
                .zip(&solution)
                .filter(|(_, v)| **v <= 0.0)
                .map(|(j, v)| x[*j] / (x[*j] - v))
                .fold(1.0, f64::min);
            for (j, value) in chosen.iter().zip(&solution) {
                x[*j] += step * (value - x[*j]);
                if x[*j] <= 1e-15 || (*value <= 0.0 && step == 0.0) {
                    x[*j] = 0.0;
                    passive[*j] = false;
                }
            }
        }
    }
    None
}

/// As many rows as there are columns and one more, at most, with their targets, whose residuals have
/// the same length for every x as those of the rows: `rows` reduced to a triangle.
pub fn reduced(rows: &[Vec<f64>], targets: &[f64], columns: usize) -> (Vec<Vec<f64>>, Vec<f64>) {
    let line = |(row, target): (&Vec<f64>, &f64)| row.iter().copied().chain([*target]).collect();
    let mut matrix: Vec<Vec<f64>> = rows.iter().zip(targets).map(line).collect();
    triangulate(&mut matrix, columns + 1);
    matrix.into_iter().filter_map(|mut row| row.pop().map(|target| (row, target))).unzip()
}

/// How far a point is from the minimum: the largest violation of the conditions that a minimum
/// meets, relative to the lengths of column and residual. Zero for the minimum itself.
pub fn violation(rows: &[Vec<f64>], targets: &[f64], coefficients: &[f64]) -> Option<f64> {
    if targets.len() != rows.len() {
        return None;
    }
    let norms = column_norms(rows, coefficients.len())?;
    let residual: Vec<f64> = rows
        .iter()
        .zip(targets)
        .map(|(row, t)| t - row.iter().zip(coefficients).map(|(a, x)| a * x).sum::<f64>())
        .collect();
    let length = residual.iter().map(|r| r * r).sum::<f64>().sqrt();
    // A perfect fit has no gradient; measure against the right-hand side then.
    let length = length.max(1e-6 * targets.iter().map(|t| t * t).sum::<f64>().sqrt());
    let mut largest: f64 = 0.0;
    for (j, (norm, x)) in norms.iter().zip(coefficients).enumerate() {
        if *norm == 0.0 {
            continue;
        }
        let along: f64 =
            rows.iter().zip(&residual).map(|(row, r)| row.get(j).unwrap_or(&0.0) * r).sum();
        let relative = along / (norm * length);
        largest = largest.max(if *x > 0.0 { relative.abs() } else { relative });
    }
    Some(largest)
}

fn column_norms(rows: &[Vec<f64>], columns: usize) -> Option<Vec<f64>> {
    let mut squares = vec![0.0; columns];
    for row in rows {
        if row.len() != columns || row.iter().any(|v| !v.is_finite()) {
            return None;
        }
        for (sum, value) in squares.iter_mut().zip(row) {
            *sum += value * value;
        }
    }
    Some(squares.into_iter().map(f64::sqrt).collect())
}

/// Aᵀ(b − A·x).
fn gradient(factor: &[Vec<f64>], target: &[f64], x: &[f64], columns: usize) -> Vec<f64> {
    let mut out = vec![0.0; columns];
    for (row, t) in factor.iter().zip(target) {
        let residual = t - row.iter().zip(x).map(|(a, x)| a * x).sum::<f64>();
        for (sum, value) in out.iter_mut().zip(row) {
            *sum += value * residual;
        }
    }
    out
}

/// Reduces to upper triangular form by Householder reflections, and drops the zero rows.
fn triangulate(matrix: &mut Vec<Vec<f64>>, columns: usize) {
    let rows = matrix.len();
    for k in 0..columns.min(rows) {
        let length = matrix[k..].iter().map(|row| row[k] * row[k]).sum::<f64>().sqrt();
        if length == 0.0 {
            continue;
        }
        let mut reflector: Vec<f64> = matrix[k..].iter().map(|row| row[k]).collect();
        // The sign that doesn't cancel.
        reflector[0] += if reflector[0] >= 0.0 { length } else { -length };
        let square: f64 = reflector.iter().map(|v| v * v).sum();
        for j in k..columns {
            let along: f64 = matrix[k..].iter().zip(&reflector).map(|(row, v)| row[j] * v).sum();
            let factor = 2.0 * along / square;
            for (row, v) in matrix[k..].iter_mut().zip(&reflector) {
                row[j] -= factor * v;
            }
        }
        for row in &mut matrix[k + 1..] {
            row[k] = 0.0;
        }
    }
    matrix.truncate(columns);
}

/// Least squares with some of the columns; `None` if they depend on each other.
fn least_squares(factor: &[Vec<f64>], target: &[f64], chosen: &[usize]) -> Option<Vec<f64>> {
    let n = chosen.len();
    let mut matrix: Vec<Vec<f64>> = factor
        .iter()
        .zip(target)
        .map(|(row, t)| chosen.iter().map(|j| row[*j]).chain([*t]).collect())
        .collect();
    triangulate(&mut matrix, n + 1);
    let largest = (0..n).map(|i| matrix.get(i).map_or(0.0, |r| r[i].abs())).fold(0.0, f64::max);
    let mut x = vec![0.0; n];
    for i in (0..n).rev() {
        let row = matrix.get(i)?;
        if row[i].abs() <= DEPENDENT * largest {
            return None;
        }
        let rest: f64 = (i + 1..n).map(|j| row[j] * x[j]).sum();
        x[i] = (row[n] - rest) / row[i];
    }
    Some(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exact_model_is_found() {
        // Rows divided by labels 3 + 2a + 5b.
        let mut rows = Vec::new();
        for a in 0..4 {
            for b in 0..4 {
                let (a, b) = (f64::from(a), f64::from(b));
                let label = 3.0 + 2.0 * a + 5.0 * b;
                rows.push(vec![1.0 / label, a / label, b / label]);
            }
        }
        let ones = vec![1.0; rows.len()];
        let minimum = nonnegative(&rows, &ones, 3).unwrap();
        assert!(minimum.unique);
        let expected = [3.0, 2.0, 5.0];
        assert!(minimum.coefficients.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12));
        assert!(violation(&rows, &ones, &minimum.coefficients).unwrap() < 1e-9);
        assert!(violation(&rows, &ones, &[3.0, 2.0, 5.001]).unwrap() > 1e-3);
        assert_eq!(nonnegative(&rows, &ones[1..], 3), None);
        assert_eq!(violation(&rows, &ones[1..], &minimum.coefficients), None);
    }

    #[test]
    fn a_negative_slope_becomes_zero() {
        // 1 falls with a: the best nonnegative slope is 0.
        let rows = vec![vec![1.0, 0.0], vec![1.3, 1.0], vec![1.6, 2.0]];
        let minimum = nonnegative(&rows, &[1.0; 3], 2).unwrap();
        let mean = (1.0 + 1.3 + 1.6) / (1.0 + 1.3 * 1.3 + 1.6 * 1.6);
        assert!((minimum.coefficients[0] - mean).abs() < 1e-12);
        assert_eq!(minimum.coefficients[1], 0.0);
        assert!(violation(&rows, &[1.0; 3], &minimum.coefficients).unwrap() < 1e-9);
    }

    #[test]
    fn rows_count_by_their_weights() {
        // Labels 1 and 2 of one candidate, the second with a weight of 1/9: the minimum of
        // (x − 1)² + (x/2 − 1)²/9 is at (1 + 1/18)/(1 + 1/36).
        let (rows, roots) = (vec![vec![1.0], vec![0.5 / 3.0]], [1.0, 1.0 / 3.0]);
        let minimum = nonnegative(&rows, &roots, 1).unwrap();
        let due = (1.0 + 1.0 / 18.0) / (1.0 + 1.0 / 36.0);
        assert!((minimum.coefficients[0] - due).abs() < 1e-12);
        assert!(violation(&rows, &roots, &[due]).unwrap() < 1e-9);
    }

    #[test]
    fn equal_columns_have_no_unique_minimum() {
        let rows = vec![vec![1.0, 1.0], vec![2.0, 2.0], vec![0.5, 0.5]];
        let minimum = nonnegative(&rows, &[1.0; 3], 2).unwrap();
        assert!(violation(&rows, &[1.0; 3], &minimum.coefficients).unwrap() < 1e-9);
        assert!(!minimum.unique);
    }
}
