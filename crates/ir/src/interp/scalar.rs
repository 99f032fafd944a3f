//! The meaning of one elementwise operation and of one fold, on values held as f64.
//!
//! Every dtype's values are f64s exactly, so one representation serves them all. Float results
//! are *not* rounded to the dtype: who wants them rounded applies [`DType::round`] once, which is
//! the correctly rounded result for `add`, `sub`, `mul`, `div` and `sqrt` in every narrower type
//! (binary64 has more than 2p + 2 digits for p ≤ 24). Integer and Bool results are exact in their
//! type.

use crate::program::{MapOp, ReduceOp};
use crate::types::DType;

/// The value of `op` on `args`, whose dtype is `dtype`.
///
/// `dtype` is the type of the *operands*, also for comparisons; for `select` it is the type of
/// the second and third operand. Floats follow IEEE 754 in binary64; `min` and `max` are NaN if
/// an operand is and order −0 below +0; `minnum` and `maxnum` give the other operand. `i32`
/// wraps, division by zero is 0, `abs(i32::MIN)` is `i32::MIN`. Bool is 0 or 1, and any nonzero
/// argument counts as true. A missing operand reads as NaN; the verifier rules that out.
pub fn map(op: MapOp, dtype: DType, args: &[f64]) -> f64 {
    let arg = |i: usize| args.get(i).copied().unwrap_or(f64::NAN);
    match op {
        MapOp::Select => return if arg(0) != 0.0 { arg(1) } else { arg(2) },
        _ if op.is_comparison() => return flag(compare(op, arg(0), arg(1))),
        MapOp::And => return flag(arg(0) != 0.0 && arg(1) != 0.0),
        MapOp::Or => return flag(arg(0) != 0.0 || arg(1) != 0.0),
        MapOp::Not => return flag(arg(0) == 0.0),
        _ => {}
    }
    match dtype {
        DType::I32 | DType::Bool => integer(op, arg(0) as i32, arg(1) as i32) as f64,
        _ if op.arity() == 1 => unary(op, arg(0)),
        _ => binary(op, arg(0), arg(1)),
    }
}

fn flag(b: bool) -> f64 {
    b as u8 as f64
}

fn compare(op: MapOp, a: f64, b: f64) -> bool {
    match op {
        MapOp::Eq => a == b,
        MapOp::Ne => a != b,
        MapOp::Lt => a < b,
        MapOp::Le => a <= b,
        MapOp::Gt => a > b,
        _ => a >= b,
    }
}

/// A float operation with one operand. NaN for an operation that has another arity.
pub(crate) fn unary(op: MapOp, a: f64) -> f64 {
    match op {
        MapOp::Neg => -a,
        MapOp::Abs => a.abs(),
        MapOp::Exp => libm::exp(a),
        MapOp::Log => libm::log(a),
        MapOp::Sqrt => a.sqrt(),
        MapOp::Tanh => libm::tanh(a),
        MapOp::Erf => libm::erf(a),
        _ => f64::NAN,
    }
}

/// A float operation with two operands. NaN for an operation that has another arity.
pub(crate) fn binary(op: MapOp, a: f64, b: f64) -> f64 {
    match op {
        MapOp::Add => a + b,
        MapOp::Sub => a - b,
        MapOp::Mul => a * b,
        MapOp::Div => a / b,
        MapOp::Mod => a % b,
        MapOp::Min => minimum(a, b),
        MapOp::Max => -minimum(-a, -b),
        MapOp::MinNum if a.is_nan() => b,
        MapOp::MinNum if b.is_nan() => a,
        MapOp::MinNum => minimum(a, b),
        MapOp::MaxNum if a.is_nan() => b,
        MapOp::MaxNum if b.is_nan() => a,
        MapOp::MaxNum => -minimum(-a, -b),
        _ => f64::NAN,
    }
}

/// IEEE 754-2019 `minimum`: NaN propagates and −0 is less than +0.
fn minimum(a: f64, b: f64) -> f64 {
    if a < b || (a == b && a.is_sign_negative()) {
        a
    } else if a >= b {
        b
    } else {
        f64::NAN
    }
}

/// Two's complement arithmetic that wraps. Float-only operations give 0; the verifier rules them
/// out.
fn integer(op: MapOp, a: i32, b: i32) -> i32 {
    match op {
        MapOp::Add => a.wrapping_add(b),
        MapOp::Sub => a.wrapping_sub(b),
        MapOp::Mul => a.wrapping_mul(b),
        MapOp::Div if b == 0 => 0,
        MapOp::Div => a.wrapping_div(b),
        MapOp::Mod if b == 0 => 0,
        MapOp::Mod => a.wrapping_rem(b),
        MapOp::Neg => a.wrapping_neg(),
        MapOp::Abs => a.wrapping_abs(),
        MapOp::Min | MapOp::MinNum => a.min(b),
        MapOp::Max | MapOp::MaxNum => a.max(b),
        _ => 0,
    }
}

/// The fold of `values`, whose dtype is `dtype`; the identity for none.
///
/// A float sum is compensated (error of one unit in the last place of binary64, plus n·2⁻¹⁰⁶ times
/// the sum of magnitudes); infinities and NaN come out as a plain sum gives them. `max` and `min` are NaN if any
/// value is. Integer folds wrap.
pub fn reduce(op: ReduceOp, dtype: DType, values: &[f64]) -> f64 {
    match (op, dtype) {
        (ReduceOp::Add, d) if d.is_float() => sum(values),
        _ => values.iter().fold(op.identity(dtype), |a, b| map(op.combine(), dtype, &[a, *b])),
    }
}

const LANES: usize = 8;

/// The sum of `values`, compensated: eight independent Knuth two-sum chains (which a compiler
/// turns into vectors), then the same over the chains.
pub fn sum(values: &[f64]) -> f64 {
    let mut high = [0.0f64; LANES];
    let mut low = [0.0f64; LANES];
    let (chunks, tail) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let (s, e) = two_sum(high[lane], chunk[lane]);
            high[lane] = s;
            low[lane] += e;
        }
    }
    for (lane, value) in tail.iter().enumerate() {
        let (s, e) = two_sum(high[lane], *value);
        high[lane] = s;
        low[lane] += e;
    }
    let (mut total, mut error) = (0.0, 0.0);
    for lane in 0..LANES {
        let (s, e) = two_sum(total, high[lane]);
        total = s;
        error += e + low[lane];
    }
    let compensated = total + error;
    // The error terms of an infinite sum are inf − inf; the plain sum has the right value then.
    if compensated.is_finite() { compensated } else { values.iter().sum() }
}

/// The sum and its exact rounding error (Knuth). Not meaningful where the sum is infinite.
pub(crate) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let bb = s - a;
    (s, (a - (s - bb)) + (b - bb))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAN: f64 = f64::NAN;
    const INF: f64 = f64::INFINITY;

    fn f(op: MapOp, args: &[f64]) -> f64 {
        map(op, DType::F32, args)
    }

    fn i(op: MapOp, a: i32, b: i32) -> i32 {
        map(op, DType::I32, &[a as f64, b as f64]) as i32
    }

    #[test]
    fn max_and_min_propagate_nan_and_order_zeros() {
        for op in [MapOp::Max, MapOp::Min] {
            assert!(f(op, &[NAN, 1.0]).is_nan());
            assert!(f(op, &[1.0, NAN]).is_nan());
            assert!(f(op, &[-INF, NAN]).is_nan());
        }
        assert_eq!(f(MapOp::Max, &[1.0, 2.0]), 2.0);
        assert_eq!(f(MapOp::Min, &[1.0, 2.0]), 1.0);
        assert_eq!(f(MapOp::Max, &[-INF, -INF]), -INF);
        assert_eq!(f(MapOp::Min, &[INF, 3.0]), 3.0);
        assert!(f(MapOp::Max, &[-0.0, 0.0]).is_sign_positive());
        assert!(f(MapOp::Max, &[0.0, -0.0]).is_sign_positive());
        assert!(f(MapOp::Min, &[0.0, -0.0]).is_sign_negative());
        assert!(f(MapOp::Min, &[-0.0, 0.0]).is_sign_negative());
    }

    #[test]
    fn maxnum_and_minnum_drop_nan() {
        for op in [MapOp::MaxNum, MapOp::MinNum] {
            assert_eq!(f(op, &[NAN, 1.0]), 1.0);
            assert_eq!(f(op, &[1.0, NAN]), 1.0);
            assert!(f(op, &[NAN, NAN]).is_nan());
        }
        assert_eq!(f(MapOp::MaxNum, &[1.0, 2.0]), 2.0);
        assert_eq!(f(MapOp::MinNum, &[1.0, 2.0]), 1.0);
    }

    #[test]
    fn floats_follow_ieee() {
        assert_eq!(f(MapOp::Div, &[1.0, 0.0]), INF);
        assert!(f(MapOp::Div, &[0.0, 0.0]).is_nan());
        assert_eq!(f(MapOp::Mod, &[-7.5, 2.0]), -1.5);
        assert!(f(MapOp::Mod, &[1.0, 0.0]).is_nan());
        assert!(f(MapOp::Sub, &[-INF, -INF]).is_nan());
        assert_eq!(f(MapOp::Exp, &[-INF]), 0.0);
        assert!(f(MapOp::Exp, &[NAN]).is_nan());
        assert_eq!(f(MapOp::Log, &[0.0]), -INF);
        assert!(f(MapOp::Sqrt, &[-1.0]).is_nan());
        assert_eq!(f(MapOp::Tanh, &[INF]), 1.0);
        assert_eq!(f(MapOp::Erf, &[-INF]), -1.0);
        assert!((f(MapOp::Erf, &[0.5]) - 0.5204998778130465).abs() < 1e-16);
        // No rounding to the dtype.
        assert_eq!(f(MapOp::Add, &[1.0, f64::EPSILON]), 1.0 + f64::EPSILON);
    }

    #[test]
    fn comparisons_with_nan() {
        for op in [MapOp::Eq, MapOp::Lt, MapOp::Le, MapOp::Gt, MapOp::Ge] {
            assert_eq!(f(op, &[NAN, NAN]), 0.0);
        }
        assert_eq!(f(MapOp::Ne, &[NAN, NAN]), 1.0);
        assert_eq!(f(MapOp::Eq, &[0.0, -0.0]), 1.0);
        assert_eq!(f(MapOp::Ge, &[2.0, 2.0]), 1.0);
        assert_eq!(f(MapOp::Gt, &[2.0, 2.0]), 0.0);
    }

    #[test]
    fn select_ignores_the_other_arm() {
        assert_eq!(f(MapOp::Select, &[1.0, 5.0, NAN]), 5.0);
        assert_eq!(f(MapOp::Select, &[0.0, NAN, 6.0]), 6.0);
    }

    #[test]
    fn integers_wrap() {
        assert_eq!(i(MapOp::Add, i32::MAX, 1), i32::MIN);
        assert_eq!(i(MapOp::Sub, i32::MIN, 1), i32::MAX);
        assert_eq!(i(MapOp::Mul, 1 << 20, 1 << 12), 0);
        assert_eq!(i(MapOp::Mul, 65537, 65537), 65537i32.wrapping_mul(65537));
        assert_eq!(i(MapOp::Div, -7, 2), -3);
        assert_eq!(i(MapOp::Div, 7, 0), 0);
        assert_eq!(i(MapOp::Div, i32::MIN, -1), i32::MIN);
        assert_eq!(i(MapOp::Mod, -7, 2), -1);
        assert_eq!(i(MapOp::Mod, 7, 0), 0);
        assert_eq!(i(MapOp::Mod, i32::MIN, -1), 0);
        assert_eq!(map(MapOp::Neg, DType::I32, &[i32::MIN as f64]), i32::MIN as f64);
        assert_eq!(map(MapOp::Abs, DType::I32, &[i32::MIN as f64]), i32::MIN as f64);
        assert_eq!(i(MapOp::Max, -3, 2), 2);
    }

    #[test]
    fn logic() {
        let b = |op, args: &[f64]| map(op, DType::Bool, args);
        assert_eq!(b(MapOp::And, &[1.0, 0.0]), 0.0);
        assert_eq!(b(MapOp::Or, &[1.0, 0.0]), 1.0);
        assert_eq!(b(MapOp::Not, &[0.0]), 1.0);
        assert_eq!(b(MapOp::Ne, &[1.0, 0.0]), 1.0);
    }

    #[test]
    fn folds_of_nothing_are_identities() {
        for op in ReduceOp::ALL {
            for dtype in DType::TENSOR {
                let empty = reduce(op, dtype, &[]);
                assert_eq!(empty.to_bits(), op.identity(dtype).to_bits());
            }
        }
    }

    #[test]
    fn sums_are_compensated_and_keep_infinities() {
        assert_eq!(sum(&[1e16, 1.0, -1e16]), 1.0);
        // A plain sum of these is off by 1e-6.
        assert_eq!(sum(&vec![0.1; 1_000_000]), 100_000.0);
        assert_eq!(sum(&[INF, 1.0, 2.0]), INF);
        assert!(sum(&[INF, -INF]).is_nan());
        assert!(sum(&[1.0, NAN, 3.0]).is_nan());
        assert!(reduce(ReduceOp::Max, DType::F32, &[1.0, NAN, 3.0]).is_nan());
        assert_eq!(reduce(ReduceOp::Min, DType::F32, &[1.0, -2.0, 3.0]), -2.0);
        assert_eq!(reduce(ReduceOp::Mul, DType::F32, &[1.5, -2.0]), -3.0);
        assert_eq!(reduce(ReduceOp::Add, DType::I32, &[i32::MAX as f64, 1.0]), i32::MIN as f64);
    }
}
