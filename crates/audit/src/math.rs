//! Medians, quantiles, tests.

/// Floats that follow from others in a record agree within this, relative.
const TOLERANCE: f64 = 1e-9;

/// Whether two floats agree as a stated and a derived one must.
pub fn close(a: f64, b: f64) -> bool {
    // Values near zero (regrets of best candidates) are differences of numbers near 1.
    a == b || (a - b).abs() <= TOLERANCE * a.abs().max(b.abs()).max(1e-3)
}

/// Linear interpolation at position q·(n−1) of the sorted numbers, q brought to 0 … 1; `None` of
/// none or of NaN.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    if values.iter().any(|v| v.is_nan()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let position = q.clamp(0.0, 1.0) * (sorted.len().checked_sub(1)?) as f64;
    let below = *sorted.get(position.floor() as usize)?;
    let above = *sorted.get(position.ceil() as usize)?;
    Some(below + (above - below) * position.fract())
}

/// The middle, or the mean of the two middle ones.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// Two-sided exact binomial p of `wins` in `n` fair tosses.
pub fn sign_test(wins: usize, n: usize) -> f64 {
    // ln C(n, k) by sums of logarithms: n is a number of rounds, at most a few thousand.
    let ln_factorial = |m: usize| (2..=m).map(|i| (i as f64).ln()).sum::<f64>();
    let few = wins.min(n.saturating_sub(wins));
    let tail: f64 = (0..=few)
        .map(|k| {
            let ln = ln_factorial(n) - ln_factorial(k) - ln_factorial(n - k);
            (ln - n as f64 * std::f64::consts::LN_2).exp()
        })
        .sum();
    (2.0 * tail).min(1.0)
}

/// Holm's step-down adjustment, in the order of the argument.
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let mut out = vec![0.0; p.len()];
    let mut floor: f64 = 0.0;
    for (rank, index) in order.iter().enumerate() {
        floor = floor.max((p[*index] * (p.len() - rank) as f64).min(1.0));
        out[*index] = floor;
    }
    out
}

/// The mean; `None` of none.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The largest; `None` of none.
pub fn largest(values: &[f64]) -> Option<f64> {
    values.iter().copied().reduce(f64::max)
}

/// The smallest; `None` of none.
pub fn smallest(values: &[f64]) -> Option<f64> {
    values.iter().copied().reduce(f64::min)
}

/// The first index of the smallest value that is no NaN.
pub fn first_smallest(values: impl IntoIterator<Item = f64>) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for (index, value) in values.into_iter().enumerate() {
        if !value.is_nan() && best.is_none_or(|(_, least)| value < least) {
            best = Some((index, value));
        }
    }
    best.map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(quantile(&[0.0, 10.0], 0.95), Some(9.5));
        assert_eq!(quantile(&[7.0], 0.95), Some(7.0));
        assert_eq!(quantile(&[0.0, 10.0], -0.15), Some(0.0));
        assert_eq!(quantile(&[0.0, 10.0], 1.1), Some(10.0));
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn sign_test_and_holm() {
        // 14 of 14: 2/2^14; 7 of 14: capped at 1; 10 of 12: 2·(1+12+66)/4096.
        assert!((sign_test(14, 14) - 2.0 / 16384.0).abs() < 1e-15);
        assert_eq!(sign_test(7, 14), 1.0);
        assert!((sign_test(10, 12) - 2.0 * 79.0 / 4096.0).abs() < 1e-12);
        assert_eq!(sign_test(0, 0), 1.0);
        // Holm's own example: sorted p times 3, 2, 1, made monotone.
        let adjusted = holm(&[0.03, 0.01, 0.04]);
        let expected = [0.06, 0.03, 0.06];
        assert!(adjusted.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12));
    }

    #[test]
    fn the_first_of_equals_is_the_smallest() {
        assert_eq!(first_smallest([f64::NAN, 2.0, 1.0, 1.0]), Some(2));
        assert_eq!(first_smallest([f64::NAN]), None);
    }
}
