//! Elementwise chains over matrices: every element of the output depends on the same element of
//! each input.

use super::rows::{RowProgram, RowSpec};
use super::{OpError, activation};
use crate::builder::ProgramBuilder;
use crate::program::{MapOp, Program, ValueId};

/// An elementwise program of any chain: `f` gets one tile per input, in the compute type, and
/// returns the tile of the output `y`. All tensors are rows×cols.
///
/// # Errors
/// The dtype isn't a float.
pub fn chain(
    name: &str,
    spec: RowSpec,
    inputs: &[&str],
    f: impl FnOnce(&mut ProgramBuilder, &[ValueId]) -> ValueId,
) -> Result<Program, OpError> {
    let mut p = RowProgram::new(name, spec)?;
    let values: Vec<ValueId> = inputs.iter().map(|name| p.input(name)).collect();
    let y = f(&mut p.b, &values);
    Ok(p.store("y", y))
}

/// `y = a + b`.
///
/// # Errors
/// The dtype isn't a float.
pub fn add(spec: RowSpec) -> Result<Program, OpError> {
    chain("add", spec, &["a", "b"], |b, v| b.map(MapOp::Add, v))
}

/// `y = a · b`.
///
/// # Errors
/// The dtype isn't a float.
pub fn mul(spec: RowSpec) -> Result<Program, OpError> {
    chain("mul", spec, &["a", "b"], |b, v| b.map(MapOp::Mul, v))
}

/// `y = max(x, 0)`; NaN stays NaN.
///
/// # Errors
/// The dtype isn't a float.
pub fn relu(spec: RowSpec) -> Result<Program, OpError> {
    chain("relu", spec, &["x"], |b, v| activation::relu(b, v[0]))
}

/// `y = 0.5·x·(1 + erf(x/√2))`.
///
/// # Errors
/// The dtype isn't a float.
pub fn gelu(spec: RowSpec) -> Result<Program, OpError> {
    chain("gelu", spec, &["x"], |b, v| activation::gelu(b, v[0]))
}

/// `y = x / (1 + exp(−x))`.
///
/// # Errors
/// The dtype isn't a float.
pub fn silu(spec: RowSpec) -> Result<Program, OpError> {
    chain("silu", spec, &["x"], |b, v| activation::silu(b, v[0]))
}

/// `y = gelu(x) + residual`.
///
/// # Errors
/// The dtype isn't a float.
pub fn gelu_residual(spec: RowSpec) -> Result<Program, OpError> {
    chain("gelu_residual", spec, &["x", "residual"], |b, v| {
        let g = activation::gelu(b, v[0]);
        b.map(MapOp::Add, &[g, v[1]])
    })
}

/// `y = silu(x) · gate`.
///
/// # Errors
/// The dtype isn't a float.
pub fn swiglu(spec: RowSpec) -> Result<Program, OpError> {
    chain("swiglu", spec, &["x", "gate"], |b, v| {
        let s = activation::silu(b, v[0]);
        b.map(MapOp::Mul, &[s, v[1]])
    })
}
