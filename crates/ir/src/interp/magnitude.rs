//! The scale of rounding errors, operation by operation: see [`crate::interp::magnitude`].
//!
//! A result that isn't finite has scale 0: it is compared by equality, and an infinite scale would
//! hide everything computed from it (`exp(−∞)` is exactly 0). Casts add nothing: the rounding of
//! an output to its dtype is a term of its own in every bound.

use crate::program::{MapOp, ReduceOp};
use crate::types::DType;

/// `e·f`, where no error stays none however steep the function.
fn times(e: f64, f: f64) -> f64 {
    if e == 0.0 || f == 0.0 { 0.0 } else { e * f }
}

/// The scale of `value = op(x)` with operands of `dtype` and scales `e`. Both slices have the
/// operation's arity.
pub fn map(op: MapOp, dtype: DType, value: f64, x: &[f64], e: &[f64]) -> f64 {
    if !dtype.is_float() || op.is_comparison() || !value.is_finite() {
        return 0.0;
    }
    let at = |s: &[f64], i: usize| s.get(i).copied().unwrap_or(0.0);
    let (x0, x1, e0, e1) = (at(x, 0), at(x, 1), at(e, 0), at(e, 1));
    let v = value.abs();
    match op {
        MapOp::Add | MapOp::Sub => e0 + e1 + v,
        MapOp::Mul => times(e0, x1.abs()) + times(e1, x0.abs()) + v,
        MapOp::Div => times(e0 + times(e1, v), 1.0 / x1.abs()) + v,
        MapOp::Mod => e0 + times(e1, (x0 / x1).trunc().abs()) + v,
        MapOp::Neg | MapOp::Abs => e0,
        MapOp::Min | MapOp::Max | MapOp::MinNum | MapOp::MaxNum => e0.max(e1),
        MapOp::Select => {
            if x0 != 0.0 {
                e1
            } else {
                at(e, 2)
            }
        }
        MapOp::Exp => times(e0, v) + v,
        MapOp::Log => times(e0, 1.0 / x0.abs()) + v,
        MapOp::Sqrt => times(e0, 0.5 / v) + v,
        MapOp::Tanh => times(e0, 1.0 - v * v) + v,
        MapOp::Erf => times(e0, std::f64::consts::FRAC_2_SQRT_PI * libm::exp(-x0 * x0)) + v,
        _ => 0.0,
    }
}

/// The scale of the fold `value` of `x` with scales `e`.
pub fn reduce(op: ReduceOp, dtype: DType, value: f64, x: &[f64], e: &[f64]) -> f64 {
    if !dtype.is_float() || !value.is_finite() {
        return 0.0;
    }
    match op {
        ReduceOp::Add => x.iter().zip(e).map(|(x, e)| x.abs() + e).sum(),
        ReduceOp::Max | ReduceOp::Min => e.iter().fold(0.0, |a, b| a.max(*b)),
        ReduceOp::Mul => {
            let step = |(p, s): (f64, f64), (x, e): (&f64, &f64)| {
                let next = p * x;
                (next, times(s, x.abs()) + times(*e, p.abs()) + next.abs())
            };
            x.iter().zip(e).fold((1.0, 0.0), step).1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancelling_sum_has_a_large_scale() {
        let f = DType::F32;
        assert_eq!(map(MapOp::Sub, f, 0.0, &[1.0, 1.0], &[2.0, 3.0]), 5.0);
        assert_eq!(reduce(ReduceOp::Add, f, 0.0, &[1.0, -1.0], &[0.0, 0.5]), 2.5);
        assert_eq!(map(MapOp::Mul, f, 6.0, &[2.0, 3.0], &[1.0, 0.0]), 9.0);
        assert_eq!(map(MapOp::Div, f, 2.0, &[4.0, 2.0], &[1.0, 1.0]), 3.5);
        assert_eq!(map(MapOp::Sqrt, f, 2.0, &[4.0], &[1.0]), 2.25);
        assert_eq!(reduce(ReduceOp::Mul, f, 6.0, &[2.0, 3.0], &[0.0, 1.0]), 2.0 * 3.0 + 2.0 + 6.0);
    }

    #[test]
    fn a_masked_row_has_a_finite_scale() {
        let f = DType::F32;
        let inf = f64::INFINITY;
        let d = map(MapOp::Sub, f, -inf, &[-inf, 1.0], &[0.0, 0.0]);
        assert_eq!(d, 0.0);
        assert_eq!(map(MapOp::Exp, f, 0.0, &[-inf], &[d]), 0.0);
        assert_eq!(map(MapOp::Sqrt, f, 0.0, &[0.0], &[0.0]), 0.0);
    }
}
