//! Elementwise operations on typed register files.

use tilewright_ir::DType;
use tilewright_ir::interp::scalar;
use tilewright_ir::program::{MapOp, ReduceOp};
use tilewright_kernel::flat::{Class, Reg};

use super::{DOUBLES, INTS, SINGLES};

/// The registers of a subgroup.
#[derive(Debug, Default)]
pub struct Files {
    pub ints: Vec<i64>,
    pub singles: Vec<f32>,
    pub doubles: Vec<f64>,
}

/// The slots of a destination, and what is left and right of it. Values are defined once, so no
/// operand overlaps it.
fn split<T>(file: &mut [T], dst: Reg, n: usize) -> (&[T], &mut [T], &[T]) {
    let (left, rest) = file.split_at_mut(dst.at as usize);
    let (middle, right) = rest.split_at_mut(dst.slots(n));
    (left, middle, right)
}

/// The slots of an operand.
fn part<'a, T>(left: &'a [T], right: &'a [T], end: usize, reg: Reg, n: usize) -> &'a [T] {
    let (at, len) = (reg.at as usize, reg.slots(n));
    if at < left.len() { &left[at..at + len] } else { &right[at - end..at - end + len] }
}

fn one<T: Copy>(file: &mut [T], n: usize, dst: Reg, a: Reg, f: impl Fn(T) -> T) {
    let end = dst.at as usize + dst.slots(n);
    let (left, out, right) = split(file, dst, n);
    match part(left, right, end, a, n) {
        [a] => out.fill(f(*a)),
        a => out.iter_mut().zip(a).for_each(|(out, &a)| *out = f(a)),
    }
}

fn two<T: Copy>(file: &mut [T], n: usize, dst: Reg, args: [Reg; 3], f: impl Fn(T, T) -> T) {
    let end = dst.at as usize + dst.slots(n);
    let (left, out, right) = split(file, dst, n);
    let a = part(left, right, end, args[0], n);
    let b = part(left, right, end, args[1], n);
    apply(a, b, out, f);
}

/// `out = f(a, b)`, where an operand of one element is repeated.
fn apply<T: Copy, U: Copy>(a: &[T], b: &[T], out: &mut [U], f: impl Fn(T, T) -> U) {
    match (a, b) {
        ([a], [b]) => out.fill(f(*a, *b)),
        ([a], b) => out.iter_mut().zip(b).for_each(|(out, &b)| *out = f(*a, b)),
        (a, [b]) => out.iter_mut().zip(a).for_each(|(out, &a)| *out = f(a, *b)),
        (a, b) => {
            out.iter_mut().zip(a).zip(b).for_each(|((out, &a), &b)| *out = f(a, b));
        }
    }
}

fn slots<T>(file: &[T], reg: Reg, n: usize) -> &[T] {
    &file[reg.at as usize..reg.at as usize + reg.slots(n)]
}

/// IEEE 754-2019 maximum: NaN propagates, −0 is less than +0.
macro_rules! maximum {
    ($name:ident, $t:ty) => {
        fn $name(a: $t, b: $t) -> $t {
            if a > b || a.is_nan() || (a == b && a.is_sign_positive()) { a } else { b }
        }
    };
}
maximum!(max32, f32);
maximum!(max64, f64);

/// Float operations, on values of one file.
macro_rules! float {
    ($name:ident, $t:ty, $max:ident) => {
        fn $name(file: &mut [$t], n: usize, op: MapOp, dtype: DType, dst: Reg, args: [Reg; 3]) {
            match op {
                MapOp::Add => two(file, n, dst, args, |a, b| a + b),
                MapOp::Sub => two(file, n, dst, args, |a, b| a - b),
                MapOp::Mul => two(file, n, dst, args, |a, b| a * b),
                MapOp::Div => two(file, n, dst, args, |a, b| a / b),
                MapOp::Neg => one(file, n, dst, args[0], |a| -a),
                MapOp::Abs => one(file, n, dst, args[0], <$t>::abs),
                MapOp::Sqrt => one(file, n, dst, args[0], <$t>::sqrt),
                MapOp::Max => two(file, n, dst, args, $max),
                MapOp::Min => two(file, n, dst, args, |a, b| -$max(-a, -b)),
                _ if op.arity() == 1 => {
                    one(file, n, dst, args[0], |a| scalar::map(op, dtype, &[f64::from(a)]) as $t)
                }
                _ => two(file, n, dst, args, |a, b| {
                    scalar::map(op, dtype, &[f64::from(a), f64::from(b)]) as $t
                }),
            }
        }
    };
}
float!(single, f32, max32);
float!(double, f64, max64);

fn integer(file: &mut [i64], n: usize, op: MapOp, class: Class, dst: Reg, args: [Reg; 3]) {
    let wrap = |x: i64| if class == Class::I32 { i64::from(x as i32) } else { x };
    match op {
        MapOp::Add => two(file, n, dst, args, |a, b| wrap(a.wrapping_add(b))),
        MapOp::Sub => two(file, n, dst, args, |a, b| wrap(a.wrapping_sub(b))),
        MapOp::Mul => two(file, n, dst, args, |a, b| wrap(a.wrapping_mul(b))),
        MapOp::Div => {
            two(file, n, dst, args, |a, b| if b == 0 { 0 } else { wrap(a.wrapping_div(b)) });
        }
        MapOp::Mod => {
            two(file, n, dst, args, |a, b| if b == 0 { 0 } else { wrap(a.wrapping_rem(b)) });
        }
        MapOp::Min | MapOp::MinNum => two(file, n, dst, args, Ord::min),
        MapOp::Max | MapOp::MaxNum => two(file, n, dst, args, Ord::max),
        MapOp::And => two(file, n, dst, args, |a, b| a & b),
        MapOp::Or => two(file, n, dst, args, |a, b| a | b),
        MapOp::Not => one(file, n, dst, args[0], |a| a ^ 1),
        MapOp::Neg => one(file, n, dst, args[0], |a| wrap(a.wrapping_neg())),
        MapOp::Abs => one(file, n, dst, args[0], |a| wrap(a.wrapping_abs())),
        MapOp::Eq => two(file, n, dst, args, |a, b| i64::from(a == b)),
        MapOp::Ne => two(file, n, dst, args, |a, b| i64::from(a != b)),
        MapOp::Lt => two(file, n, dst, args, |a, b| i64::from(a < b)),
        MapOp::Le => two(file, n, dst, args, |a, b| i64::from(a <= b)),
        MapOp::Gt => two(file, n, dst, args, |a, b| i64::from(a > b)),
        MapOp::Ge => two(file, n, dst, args, |a, b| i64::from(a >= b)),
        // Float operations and select, which isn't here; the validator keeps them out.
        MapOp::Select | MapOp::Exp | MapOp::Log | MapOp::Sqrt | MapOp::Tanh | MapOp::Erf => {}
    }
}

fn compare<T: PartialOrd + Copy>(a: &[T], b: &[T], out: &mut [i64], op: MapOp) {
    match op {
        MapOp::Eq => apply(a, b, out, |a, b| i64::from(a == b)),
        MapOp::Ne => apply(a, b, out, |a, b| i64::from(a != b)),
        MapOp::Lt => apply(a, b, out, |a, b| i64::from(a < b)),
        MapOp::Le => apply(a, b, out, |a, b| i64::from(a <= b)),
        MapOp::Gt => apply(a, b, out, |a, b| i64::from(a > b)),
        _ => apply(a, b, out, |a, b| i64::from(a >= b)),
    }
}

fn select<T: Copy>(file: &mut [T], cond: &[i64], n: usize, dst: Reg, args: [Reg; 3]) {
    for lane in 0..dst.slots(n) {
        let pick = if cond[lane.min(cond.len() - 1)] != 0 { args[1] } else { args[2] };
        file[dst.slot(lane)] = file[pick.slot(lane)];
    }
}

impl Files {
    /// Computes `op` for `n` lanes.
    pub fn map(&mut self, n: usize, op: MapOp, class: Class, dst: Reg, args: [Reg; 3]) {
        let Files { ints, singles, doubles } = self;
        if op == MapOp::Select {
            if dst.file == INTS {
                // The condition is in the same file: copy it out.
                let cond = slots(ints, args[0], n).to_vec();
                select(ints, &cond, n, dst, args);
            } else if dst.file == SINGLES {
                select(singles, slots(ints, args[0], n), n, dst, args);
            } else {
                select(doubles, slots(ints, args[0], n), n, dst, args);
            }
            return;
        }
        match class {
            Class::Float(_) if op.is_comparison() => {
                let out = &mut ints[dst.at as usize..dst.at as usize + dst.slots(n)];
                if args[0].file == SINGLES {
                    compare(slots(singles, args[0], n), slots(singles, args[1], n), out, op);
                } else {
                    compare(slots(doubles, args[0], n), slots(doubles, args[1], n), out, op);
                }
            }
            Class::Float(dtype) if dst.file == SINGLES => {
                single(singles, n, op, dtype, dst, args);
            }
            Class::Float(dtype) => double(doubles, n, op, dtype, dst, args),
            Class::Index | Class::I32 | Class::Bool => integer(ints, n, op, class, dst, args),
        }
    }

    /// The fused multiply-add for `n` lanes.
    pub fn fma(&mut self, n: usize, dst: Reg, [a, b, c]: [Reg; 3]) {
        for lane in 0..dst.slots(n) {
            if dst.file == SINGLES {
                let f = &mut self.singles;
                f[dst.slot(lane)] = f[a.slot(lane)].mul_add(f[b.slot(lane)], f[c.slot(lane)]);
            } else {
                let f = &mut self.doubles;
                f[dst.slot(lane)] = f[a.slot(lane)].mul_add(f[b.slot(lane)], f[c.slot(lane)]);
            }
        }
    }

    /// A conversion for `n` lanes: to nearest even; to integers toward zero, saturating.
    pub fn cast(&mut self, n: usize, dst: Reg, to: Class, src: Reg) {
        for lane in 0..dst.slots(n) {
            let slot = src.slot(lane);
            match to {
                Class::Float(to) => {
                    let value = match src.file {
                        // A narrow float is exact here, and an integer is rounded once: through
                        // binary64 only where that is exact.
                        INTS => return self.cast_ints(n, dst, to, src),
                        SINGLES => f64::from(self.singles[slot]),
                        _ => self.doubles[slot],
                    };
                    self.put(dst, lane, to.round(value));
                }
                Class::Index | Class::I32 | Class::Bool => {
                    let value = match src.file {
                        INTS => self.ints[slot],
                        SINGLES => integer_of(to, f64::from(self.singles[slot])),
                        _ => integer_of(to, self.doubles[slot]),
                    };
                    self.ints[dst.slot(lane)] = match to {
                        Class::I32 => i64::from(value as i32),
                        Class::Bool => i64::from(value != 0),
                        Class::Index | Class::Float(_) => value,
                    };
                }
            }
        }
    }

    fn cast_ints(&mut self, n: usize, dst: Reg, to: DType, src: Reg) {
        for lane in 0..dst.slots(n) {
            let x = self.ints[src.slot(lane)];
            match to {
                DType::F32 => self.singles[dst.slot(lane)] = x as f32,
                DType::F64 => self.doubles[dst.slot(lane)] = x as f64,
                _ => self.put(dst, lane, to.round(sticky(x))),
            }
        }
    }

    fn put(&mut self, dst: Reg, lane: usize, value: f64) {
        if dst.file == DOUBLES {
            self.doubles[dst.slot(lane)] = value;
        } else {
            self.singles[dst.slot(lane)] = value as f32;
        }
    }

    /// Folds the lanes of a value, halves onto halves; all slots of `dst` get the result.
    pub fn reduce(&mut self, n: usize, fold: ReduceOp, class: Class, dst: Reg, src: Reg) {
        match src.file {
            INTS => {
                let op = |a: i64, b: i64| {
                    let x = match fold {
                        ReduceOp::Add => a.wrapping_add(b),
                        ReduceOp::Mul => a.wrapping_mul(b),
                        ReduceOp::Max => a.max(b),
                        ReduceOp::Min => a.min(b),
                    };
                    if class == Class::I32 { i64::from(x as i32) } else { x }
                };
                tree(&mut self.ints, n, dst, src, op);
            }
            SINGLES => tree(&mut self.singles, n, dst, src, |a, b| match fold {
                ReduceOp::Add => a + b,
                ReduceOp::Mul => a * b,
                ReduceOp::Max => max32(a, b),
                ReduceOp::Min => -max32(-a, -b),
            }),
            _ => tree(&mut self.doubles, n, dst, src, |a, b| match fold {
                ReduceOp::Add => a + b,
                ReduceOp::Mul => a * b,
                ReduceOp::Max => max64(a, b),
                ReduceOp::Min => -max64(-a, -b),
            }),
        }
    }

    /// Gives every lane the value of the lane that `from` names.
    pub fn permute(&mut self, n: usize, dst: Reg, src: Reg, from: impl Fn(usize) -> usize) {
        match dst.file {
            INTS => shuffle(&mut self.ints, n, dst, src, from),
            SINGLES => shuffle(&mut self.singles, n, dst, src, from),
            _ => shuffle(&mut self.doubles, n, dst, src, from),
        }
    }

    /// Copies a value in the lanes of `mask`.
    pub fn copy(&mut self, n: usize, mask: u64, dst: Reg, src: Reg) {
        for lane in 0..dst.slots(n) {
            if dst.step == 0 || mask >> lane & 1 == 1 {
                let (to, from) = (dst.slot(lane), src.slot(lane));
                match dst.file {
                    INTS => self.ints[to] = self.ints[from],
                    SINGLES => self.singles[to] = self.singles[from],
                    _ => self.doubles[to] = self.doubles[from],
                }
            }
        }
    }

    /// Sets all slots of a value to a number: an integer, or a float rounded already.
    pub fn fill(&mut self, n: usize, dst: Reg, int: i64, float: f64) {
        let range = dst.at as usize..dst.at as usize + dst.slots(n);
        match dst.file {
            INTS => self.ints[range].fill(int),
            SINGLES => self.singles[range].fill(float as f32),
            _ => self.doubles[range].fill(float),
        }
    }
}

/// An integer as binary64, rounded to odd so that one more rounding to a narrower type is right
/// (to binary64 itself, for which it isn't meant, small integers are exact).
fn sticky(x: i64) -> f64 {
    let size = x.unsigned_abs();
    if size < 1 << 53 {
        return x as f64;
    }
    let odd = ((size >> 11) | u64::from(size & 0x7ff != 0)) as f64 * 2048.0;
    if x < 0 { -odd } else { odd }
}

fn integer_of(to: Class, x: f64) -> i64 {
    match to {
        Class::Bool => i64::from(x != 0.0),
        Class::I32 => i64::from(x as i32),
        Class::Index | Class::Float(_) => x as i64,
    }
}

fn tree<T: Copy>(file: &mut [T], n: usize, dst: Reg, src: Reg, f: impl Fn(T, T) -> T) {
    let first = file[src.at as usize];
    let mut values = [first; 64];
    for (lane, value) in values.iter_mut().enumerate().take(n) {
        *value = file[src.slot(lane)];
    }
    let mut half = n / 2;
    while half > 0 {
        for lane in 0..half {
            values[lane] = f(values[lane], values[lane + half]);
        }
        half /= 2;
    }
    let end = dst.at as usize + dst.slots(n);
    file[dst.at as usize..end].fill(values[0]);
}

fn shuffle<T: Copy>(file: &mut [T], n: usize, dst: Reg, src: Reg, from: impl Fn(usize) -> usize) {
    let first = file[src.at as usize];
    let mut values = [first; 64];
    for (lane, value) in values.iter_mut().enumerate().take(n) {
        *value = file[src.slot(from(lane) % n)];
    }
    for lane in 0..dst.slots(n) {
        file[dst.slot(lane)] = values[lane];
    }
}
