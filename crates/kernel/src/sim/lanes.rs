//! Elementwise operations on registers.

use crate::flat::{Class, Reg};
use tilewright_ir::DType;
use tilewright_ir::interp::scalar;
use tilewright_ir::program::MapOp;

/// Rounds a binary64 to a binary32 value, as the machine does.
#[inline]
fn f32_of(x: f64) -> f64 {
    f64::from(x as f32)
}

/// `a·b + c` rounded once to the type.
///
/// For f32 the product is exact in binary64; the sum is rounded to odd there, which leaves enough
/// digits for one correct rounding to binary32 (Boldo and Melquiond 2008).
#[inline]
pub(super) fn fma(dtype: DType, a: f64, b: f64, c: f64) -> f64 {
    if dtype == DType::F64 {
        return a.mul_add(b, c);
    }
    let product = a * b;
    let sum = product + c;
    // The exact error of the sum (Knuth's two-sum).
    let part = sum - product;
    let error = (product - (sum - part)) + (c - part);
    let bits = sum.to_bits();
    if error != 0.0 && bits & 1 == 0 && sum.is_finite() {
        let away = (error > 0.0) == (sum > 0.0);
        let odd = if away { bits + 1 } else { bits - 1 };
        return f32_of(f64::from_bits(odd));
    }
    f32_of(sum)
}

#[inline]
fn each1(regs: &mut [u64], n: usize, dst: Reg, a: Reg, f: impl Fn(u64) -> u64) {
    for lane in 0..n {
        regs[dst.slot(lane)] = f(regs[a.slot(lane)]);
    }
}

#[inline]
fn each2(regs: &mut [u64], n: usize, dst: Reg, args: [Reg; 3], f: impl Fn(u64, u64) -> u64) {
    for lane in 0..n {
        regs[dst.slot(lane)] = f(regs[args[0].slot(lane)], regs[args[1].slot(lane)]);
    }
}

fn float2(
    regs: &mut [u64],
    n: usize,
    dst: Reg,
    args: [Reg; 3],
    single: bool,
    f: impl Fn(f64, f64) -> f64,
) {
    if single {
        each2(regs, n, dst, args, |a, b| f32_of(f(f64::from_bits(a), f64::from_bits(b))).to_bits());
    } else {
        each2(regs, n, dst, args, |a, b| f(f64::from_bits(a), f64::from_bits(b)).to_bits());
    }
}

/// Computes `op` for `n` lanes.
pub(super) fn map(regs: &mut [u64], n: usize, op: MapOp, class: Class, dst: Reg, args: [Reg; 3]) {
    if op == MapOp::Select {
        for lane in 0..n {
            let pick = if regs[args[0].slot(lane)] != 0 { args[1] } else { args[2] };
            regs[dst.slot(lane)] = regs[pick.slot(lane)];
        }
        return;
    }
    match class {
        Class::Float(dtype) => float(regs, n, op, dtype, dst, args),
        Class::Index | Class::I32 | Class::Bool => integer(regs, n, op, class, dst, args),
    }
}

fn float(regs: &mut [u64], n: usize, op: MapOp, dtype: DType, dst: Reg, args: [Reg; 3]) {
    let single = dtype == DType::F32;
    let compare =
        |f: fn(f64, f64) -> bool| move |a, b| u64::from(f(f64::from_bits(a), f64::from_bits(b)));
    match op {
        MapOp::Add => float2(regs, n, dst, args, single, |a, b| a + b),
        MapOp::Sub => float2(regs, n, dst, args, single, |a, b| a - b),
        MapOp::Mul => float2(regs, n, dst, args, single, |a, b| a * b),
        MapOp::Div => float2(regs, n, dst, args, single, |a, b| a / b),
        MapOp::Eq => each2(regs, n, dst, args, compare(|a, b| a == b)),
        MapOp::Ne => each2(regs, n, dst, args, compare(|a, b| a != b)),
        MapOp::Lt => each2(regs, n, dst, args, compare(|a, b| a < b)),
        MapOp::Le => each2(regs, n, dst, args, compare(|a, b| a <= b)),
        MapOp::Gt => each2(regs, n, dst, args, compare(|a, b| a > b)),
        MapOp::Ge => each2(regs, n, dst, args, compare(|a, b| a >= b)),
        _ if op.arity() == 1 => each1(regs, n, dst, args[0], |a| {
            dtype.round(scalar::map(op, dtype, &[f64::from_bits(a)])).to_bits()
        }),
        _ => float2(regs, n, dst, args, single, |a, b| scalar::map(op, dtype, &[a, b])),
    }
}

fn integer(regs: &mut [u64], n: usize, op: MapOp, class: Class, dst: Reg, args: [Reg; 3]) {
    let wrap = |x: i64| if class == Class::I32 { i64::from(x as i32) } else { x };
    let two = |f: fn(i64, i64) -> i64| move |a, b| wrap(f(a as i64, b as i64)) as u64;
    let flag = |f: fn(i64, i64) -> bool| move |a, b| u64::from(f(a as i64, b as i64));
    match op {
        MapOp::Add => each2(regs, n, dst, args, two(i64::wrapping_add)),
        MapOp::Sub => each2(regs, n, dst, args, two(i64::wrapping_sub)),
        MapOp::Mul => each2(regs, n, dst, args, two(i64::wrapping_mul)),
        MapOp::Div => {
            each2(regs, n, dst, args, two(|a, b| if b == 0 { 0 } else { a.wrapping_div(b) }));
        }
        MapOp::Mod => {
            each2(regs, n, dst, args, two(|a, b| if b == 0 { 0 } else { a.wrapping_rem(b) }));
        }
        MapOp::Min | MapOp::MinNum => each2(regs, n, dst, args, two(Ord::min)),
        MapOp::Max | MapOp::MaxNum => each2(regs, n, dst, args, two(Ord::max)),
        MapOp::Eq => each2(regs, n, dst, args, flag(|a, b| a == b)),
        MapOp::Ne => each2(regs, n, dst, args, flag(|a, b| a != b)),
        MapOp::Lt => each2(regs, n, dst, args, flag(|a, b| a < b)),
        MapOp::Le => each2(regs, n, dst, args, flag(|a, b| a <= b)),
        MapOp::Gt => each2(regs, n, dst, args, flag(|a, b| a > b)),
        MapOp::Ge => each2(regs, n, dst, args, flag(|a, b| a >= b)),
        MapOp::And => each2(regs, n, dst, args, |a, b| a & b),
        MapOp::Or => each2(regs, n, dst, args, |a, b| a | b),
        MapOp::Not => each1(regs, n, dst, args[0], |a| a ^ 1),
        MapOp::Neg => each1(regs, n, dst, args[0], |a| wrap((a as i64).wrapping_neg()) as u64),
        MapOp::Abs => each1(regs, n, dst, args[0], |a| wrap((a as i64).wrapping_abs()) as u64),
        // Float operations; the validator keeps them out.
        MapOp::Select | MapOp::Exp | MapOp::Log | MapOp::Sqrt | MapOp::Tanh | MapOp::Erf => {}
    }
}

/// Computes the fused multiply-add for `n` lanes.
pub(super) fn fma_lanes(regs: &mut [u64], n: usize, dtype: DType, dst: Reg, args: [Reg; 3]) {
    for lane in 0..n {
        let [a, b, c] = args.map(|arg| f64::from_bits(regs[arg.slot(lane)]));
        regs[dst.slot(lane)] = fma(dtype, a, b, c).to_bits();
    }
}

/// A slot's bits as a value in memory.
#[inline]
pub(super) fn to_memory(dtype: DType, bits: u64) -> f64 {
    if dtype.is_float() { f64::from_bits(bits) } else { bits as i64 as f64 }
}

/// A value in memory as a slot's bits.
#[inline]
pub(super) fn from_memory(dtype: DType, value: f64) -> u64 {
    if dtype.is_float() { value.to_bits() } else { value as i64 as u64 }
}

/// Converts one slot: to nearest even, to integers toward zero and saturating (NaN to 0).
pub(super) fn cast(to: Class, from: Class, bits: u64) -> u64 {
    match (to, from) {
        (Class::Float(to), Class::Float(_)) => to.round(f64::from_bits(bits)).to_bits(),
        (Class::Float(to), _) => round_integer(to, bits as i64).to_bits(),
        (Class::Index, Class::Float(_)) => f64::from_bits(bits) as i64 as u64,
        (Class::I32, Class::Float(_)) => i64::from(f64::from_bits(bits) as i32) as u64,
        (Class::Bool, Class::Float(_)) => u64::from(f64::from_bits(bits) != 0.0),
        (Class::I32, _) => i64::from(bits as i64 as i32) as u64,
        (Class::Bool, _) => u64::from(bits != 0),
        (Class::Index, _) => bits,
    }
}

/// An integer as the nearest value of a float type. Beyond 2⁵³ the way over binary64 would round
/// twice, so the low bits are made sticky first.
fn round_integer(to: DType, n: i64) -> f64 {
    let magnitude = n.unsigned_abs();
    if to == DType::F64 || magnitude < 1 << 53 {
        return to.round(n as f64);
    }
    let shift = 64 - 53 - magnitude.leading_zeros();
    let sticky = u64::from(magnitude & ((1 << shift) - 1) != 0);
    let rounded = to.round((((magnitude >> shift) | sticky) as f64) * f64::powi(2.0, shift as i32));
    if n < 0 { -rounded } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The trick with rounding to odd against the machine's (or libm's) f32 fma.
    #[test]
    fn fma_rounds_once() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            f32::from_bits((state >> 32) as u32)
        };
        let mut double_roundings = 0;
        for i in 0..300_000 {
            let (mut a, mut b) = (random(), random());
            let c = match i % 3 {
                0 => random(),
                1 => -(a * b),
                // A hair below the middle between two floats: (1 + ε)(1 − ε)·2⁻²⁴ beside an odd
                // mantissa.
                _ => {
                    let epsilon = f32::powi(2.0, -15 - i % 8);
                    (a, b) = (1.0 + epsilon, (1.0 - epsilon) * f32::powi(2.0, -24));
                    f32::from_bits(1f32.to_bits() | random().to_bits() >> 9 | 1)
                }
            };
            let want = a.mul_add(b, c);
            let got = fma(DType::F32, a.into(), b.into(), c.into());
            assert!(got == f64::from(want) || (got.is_nan() && want.is_nan()), "{a} {b} {c}");
            let twice = (f64::from(a) * f64::from(b) + f64::from(c)) as f32;
            double_roundings += u32::from(twice != want && !want.is_nan());
        }
        assert!(double_roundings > 0, "the cases must contain some that round twice");
    }

    #[test]
    fn casts_saturate_and_round_to_even() {
        let f32_ = Class::Float(DType::F32);
        let to_i32 = |x: f64| cast(Class::I32, f32_, x.to_bits()) as i64;
        assert_eq!(to_i32(3e9), i64::from(i32::MAX));
        assert_eq!(to_i32(-1.9), -1);
        assert_eq!(to_i32(f64::NAN), 0);
        let half = |x: f64| f64::from_bits(cast(Class::Float(DType::F16), f32_, x.to_bits()));
        assert_eq!(half(2049.0), 2048.0);
        assert_eq!(half(2051.0), 2052.0);
        let index = |n: i64| f64::from_bits(cast(f32_, Class::Index, n as u64));
        for n in [(1 << 60) + (1 << 36) + 1, -(1 << 60) - (1 << 36) - 1, i64::MAX, i64::MIN, 7] {
            assert_eq!(index(n), f64::from(n as f32), "{n}");
        }
    }
}
