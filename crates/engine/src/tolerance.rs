//! How far a result may be from the float64 reference.
//!
//! With u the unit roundoff of the type in which the program computes, u_out that of the output,
//! and E the scale of an element's rounding error that the oracle gives (for a product
//! (|A||B|)ij, for rows the first-order error in units of u):
//!
//! - matrix products: `(8 + √K)·u·E + u_out·|ref|`;
//! - rows of N columns: `(16 + log2 N)·u·|ref| + u_out·|ref|`, or `2·u·E + u_out·|ref|` where
//!   that is more. It is more only where a sum cancels, so that E is large beside the result;
//! - integers: exact.
//!
//! Half a step of the output's subnormal numbers is always allowed, for that is what rounding a
//! result in that range costs.

use tilewright_ir::{DType, parallel};

/// A tolerance as a function of the reference and of the error scale E.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tolerance {
    /// Factor of |ref| for the arithmetic; the larger of this and the next term counts for rows,
    /// and products have 0 here.
    arithmetic: f64,
    /// Factor of E.
    scale: f64,
    /// Factor of |ref| for the rounding of the output.
    rounding: f64,
    /// Half the smallest positive number of the output type.
    absolute: f64,
    /// The output type.
    output: DType,
}

impl Tolerance {
    /// For a product with K = `depth` terms.
    pub fn matrix(depth: u64, compute: DType, output: DType) -> Self {
        Tolerance {
            arithmetic: 0.0,
            scale: (8.0 + (depth as f64).sqrt()) * compute.unit_roundoff(),
            rounding: output.unit_roundoff(),
            absolute: half_step(output),
            output,
        }
    }

    /// For rows of `columns` elements.
    pub fn rows(columns: u64, compute: DType, output: DType) -> Self {
        let u = compute.unit_roundoff();
        Tolerance {
            arithmetic: (16.0 + (columns.max(1) as f64).log2()) * u,
            scale: 2.0 * u,
            rounding: output.unit_roundoff(),
            absolute: half_step(output),
            output,
        }
    }

    /// For outputs that must be equal.
    pub fn exact(output: DType) -> Self {
        Tolerance { arithmetic: 0.0, scale: 0.0, rounding: 0.0, absolute: 0.0, output }
    }

    /// The largest |actual − reference| that is accepted where the error scale is `scale`.
    pub fn bound(&self, reference: f64, scale: f64) -> f64 {
        let reference = reference.abs();
        let arithmetic = (self.arithmetic * reference).max(self.scale * scale);
        arithmetic + self.rounding * reference + self.absolute
    }

    /// Whether an actual value is accepted. NaN is right only for NaN, an infinity only for the
    /// same infinity or for a finite value that the output type rounds to it.
    pub fn accepts(&self, actual: f64, reference: f64, scale: f64) -> bool {
        if reference.is_nan() || actual.is_nan() {
            return reference.is_nan() && actual.is_nan();
        }
        if reference.is_infinite() {
            return actual == reference;
        }
        let bound = self.bound(reference, scale);
        if actual.is_infinite() {
            return self.output.round(reference + bound.copysign(actual)) == actual;
        }
        (actual - reference).abs() <= bound
    }
}

/// Half the smallest positive (subnormal) number of a type.
fn half_step(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f64::powi(2.0, -150),
        // Its half isn't a number; the type's own products with tiny factors underflow to 0 too.
        DType::F64 => f64::from_bits(1),
        DType::F16 => f64::powi(2.0, -25),
        DType::BF16 => f64::powi(2.0, -134),
        DType::I32 | DType::Bool => 0.0,
    }
}

/// The outcome of comparing one whole output.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// Elements compared.
    pub elements: u64,
    /// Largest |actual − reference| over the elements where both are finite.
    pub max_error: f64,
    /// The bound at that element.
    pub bound_there: f64,
    /// Largest error relative to its bound: at most 1 if all elements are accepted.
    pub worst_ratio: f64,
    /// Elements that aren't accepted.
    pub failures: u64,
    /// The first of them: position, actual, reference, bound.
    pub first_failure: Option<(u64, f64, f64, f64)>,
}

/// Compares every element. The slices have one length.
pub fn compare(
    tolerance: &Tolerance,
    actual: &[f64],
    reference: &[f64],
    scale: &[f64],
) -> Comparison {
    let mut outcome = Comparison {
        elements: reference.len() as u64,
        max_error: 0.0,
        bound_there: 0.0,
        worst_ratio: 0.0,
        failures: 0,
        first_failure: None,
    };
    if actual.len() != reference.len() || scale.len() != reference.len() {
        outcome.failures = outcome.elements.max(1);
        return outcome;
    }
    let parts = parallel::parts(reference, |first, reference| {
        let here = first..first + reference.len();
        (first, Part::of(tolerance, &actual[here.clone()], reference, &scale[here]))
    });
    // In order, so that the result is the same for any number of threads.
    let mut largest: Option<(f64, f64)> = None;
    for (first, found) in parts {
        if let Some((error, _)) = found.largest
            && largest.is_none_or(|(most, _)| error > most)
        {
            largest = found.largest;
        }
        outcome.worst_ratio = outcome.worst_ratio.max(found.worst_ratio);
        outcome.failures += found.failures;
        if outcome.first_failure.is_none() {
            let first = first as u64;
            outcome.first_failure = found.first_failure.map(|(i, a, r, b)| (first + i, a, r, b));
        }
    }
    (outcome.max_error, outcome.bound_there) = largest.unwrap_or((0.0, 0.0));
    outcome
}

/// What some consecutive elements give.
struct Part {
    /// The largest finite error, the first of equal ones, with the bound there.
    largest: Option<(f64, f64)>,
    worst_ratio: f64,
    failures: u64,
    /// Position in the part, actual, reference, bound.
    first_failure: Option<(u64, f64, f64, f64)>,
}

impl Part {
    fn of(tolerance: &Tolerance, actual: &[f64], reference: &[f64], scale: &[f64]) -> Part {
        let mut part = Part { largest: None, worst_ratio: 0.0, failures: 0, first_failure: None };
        for (i, ((actual, reference), scale)) in actual.iter().zip(reference).zip(scale).enumerate()
        {
            let bound = tolerance.bound(*reference, *scale);
            let error = (actual - reference).abs();
            if error.is_finite() {
                if part.largest.is_none_or(|(most, _)| error > most) {
                    part.largest = Some((error, bound));
                }
                if error > 0.0 {
                    part.worst_ratio = part.worst_ratio.max(error / bound);
                }
            }
            if !tolerance.accepts(*actual, *reference, *scale) {
                part.failures += 1;
                part.worst_ratio = part.worst_ratio.max(1.0);
                part.first_failure.get_or_insert((i as u64, *actual, *reference, bound));
            }
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const U: f64 = 1.0 / (1u64 << 24) as f64;

    #[test]
    fn the_bounds_are_the_stated_formulas() {
        let tiny = f64::powi(2.0, -150);
        let gemm = Tolerance::matrix(64, DType::F32, DType::F32);
        assert_eq!(gemm.bound(2.0, 10.0), 16.0 * U * 10.0 + U * 2.0 + tiny);
        let rows = Tolerance::rows(1024, DType::F32, DType::F32);
        assert_eq!(rows.bound(-2.0, 0.0), 26.0 * U * 2.0 + U * 2.0 + tiny);
        // A scale of 13·|ref| is what the relative term covers; beyond it a sum has cancelled.
        assert_eq!(rows.bound(2.0, 26.0), rows.bound(2.0, 0.0));
        assert_eq!(rows.bound(2.0, 100.0), 2.0 * U * 100.0 + U * 2.0 + tiny);
        let half = Tolerance::rows(1, DType::F32, DType::F16);
        let expected = 16.0 * U + f64::powi(2.0, -11) + f64::powi(2.0, -25);
        assert_eq!(half.bound(1.0, 1.0), expected);
    }

    #[test]
    fn special_values_must_match() {
        let t = Tolerance::rows(16, DType::F32, DType::F16);
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        assert!(t.accepts(nan, nan, 0.0));
        assert!(!t.accepts(1.0, nan, 0.0));
        assert!(!t.accepts(nan, 1.0, 1.0));
        assert!(t.accepts(inf, inf, 0.0));
        assert!(!t.accepts(-inf, inf, 0.0));
        assert!(!t.accepts(65504.0, inf, 0.0));
        assert!(t.accepts(inf, 65520.0, 65520.0), "f16 rounds it to infinity");
        assert!(!t.accepts(inf, 60000.0, 60000.0));
        assert!(!t.accepts(-inf, 65520.0, 65520.0));
    }

    #[test]
    fn every_element_counts() {
        let t = Tolerance::rows(4, DType::F32, DType::F32);
        let reference = [1.0, 2.0, 3.0, 4.0];
        let good = compare(&t, &reference, &reference, &reference);
        assert_eq!((good.failures, good.worst_ratio, good.elements), (0, 0.0, 4));
        for i in 0..4 {
            let mut wrong = reference;
            wrong[i] *= 1.0 + 20.0 * U;
            let outcome = compare(&t, &wrong, &reference, &reference);
            assert_eq!(outcome.failures, 1);
            assert_eq!(outcome.first_failure.map(|f| f.0), Some(i as u64));
            assert!(outcome.worst_ratio > 1.0);
            wrong[i] = f64::NAN;
            assert_eq!(compare(&t, &wrong, &reference, &reference).failures, 1);
        }
        assert_eq!(compare(&t, &reference[..3], &reference, &reference).failures, 4);
    }

    #[test]
    fn integers_are_exact() {
        let t = Tolerance::exact(DType::I32);
        assert!(t.accepts(7.0, 7.0, 0.0));
        assert!(!t.accepts(7.0, 8.0, 8.0));
    }

    #[test]
    fn many_elements_are_compared_in_parts_as_few_are() {
        let n = 3 * parallel::LEAST + 17;
        let reference: Vec<f64> = (0..n).map(|i| 1.0 + i as f64 * 1e-6).collect();
        let scale = vec![0.0; n];
        let mut actual = reference.clone();
        let wrong = [n - 5, 2 * parallel::LEAST + 1, 70];
        for (k, at) in wrong.into_iter().enumerate() {
            actual[at] += 1.0 + k as f64;
        }
        actual[n - 1] += 2.5;
        let tolerance = Tolerance::rows(16, DType::F32, DType::F32);
        let found = compare(&tolerance, &actual, &reference, &scale);
        assert_eq!((found.elements, found.failures), (n as u64, 4));
        assert_eq!(found.first_failure.map(|f| f.0), Some(70));
        let bound = tolerance.bound(reference[70], 0.0);
        assert!((found.max_error - 3.0).abs() < 1e-9 && found.bound_there == bound, "{found:?}");
    }

    #[test]
    fn the_largest_error_of_exact_types_is_the_largest() {
        let exact = Tolerance::exact(DType::I32);
        let found = compare(&exact, &[5.0, 1.0, 2.0], &[1.0, 1.0, 1.0], &[0.0; 3]);
        assert_eq!((found.max_error, found.failures), (4.0, 2));
    }
}
