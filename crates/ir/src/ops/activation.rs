//! Activations on tiles, for elementwise ops and for epilogues.

use crate::builder::ProgramBuilder;
use crate::program::{MapOp, ValueId};

fn constant(b: &mut ProgramBuilder, value: f64, like: ValueId) -> ValueId {
    let dtype = b.ty(like).dtype;
    b.constant(dtype.round(value), dtype)
}

/// `max(x, 0)`; NaN stays NaN.
pub fn relu(b: &mut ProgramBuilder, x: ValueId) -> ValueId {
    let zero = constant(b, 0.0, x);
    b.map(MapOp::Max, &[x, zero])
}

/// `0.5·x·(1 + erf(x/√2))`, the exact form; NaN at −∞ (0 · ∞), as PyTorch has it.
pub fn gelu(b: &mut ProgramBuilder, x: ValueId) -> ValueId {
    let half = constant(b, 0.5, x);
    let one = constant(b, 1.0, x);
    let factor = constant(b, std::f64::consts::FRAC_1_SQRT_2, x);
    let scaled = b.map(MapOp::Mul, &[x, factor]);
    let erf = b.map(MapOp::Erf, &[scaled]);
    let weight = b.map(MapOp::Add, &[one, erf]);
    let halved = b.map(MapOp::Mul, &[half, x]);
    b.map(MapOp::Mul, &[halved, weight])
}

/// `x / (1 + exp(−x))`; NaN at −∞ (−∞ / ∞), as PyTorch has it.
pub fn silu(b: &mut ProgramBuilder, x: ValueId) -> ValueId {
    let one = constant(b, 1.0, x);
    let negated = b.map(MapOp::Neg, &[x]);
    let e = b.map(MapOp::Exp, &[negated]);
    let denominator = b.map(MapOp::Add, &[one, e]);
    b.map(MapOp::Div, &[x, denominator])
}
