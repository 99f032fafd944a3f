//! Normalisations of the rows of a matrix.

use super::rows::{RowProgram, RowSpec};
use super::{NORM_EPS, OpError};
use crate::program::*;

/// RMSNorm: `y = x / sqrt(Σx²/N + 1e-5) · gamma`.
///
/// Tensors: `x` rows×cols, `gamma` cols, `y` rows×cols.
///
/// # Errors
/// The dtype isn't a float.
pub fn rmsnorm(spec: RowSpec) -> Result<Program, OpError> {
    let mut p = RowProgram::new("rmsnorm", spec)?;
    let x = p.input("x");
    let sq = p.b.map(MapOp::Mul, &[x, x]);
    let sum = p.reduce(ReduceOp::Add, sq);
    let deviation = deviation(&mut p, sum);
    let gamma = p.vector("gamma");
    let y = p.b.map(MapOp::Div, &[x, deviation]);
    let y = p.b.map(MapOp::Mul, &[y, gamma]);
    Ok(p.store("y", y))
}

/// LayerNorm: mean = Σx/N, c = x − mean, `y = c / sqrt(Σc²/N + 1e-5) · gamma + beta`.
///
/// Tensors: `x` rows×cols, `gamma` and `beta` cols, `y` rows×cols.
///
/// # Errors
/// The dtype isn't a float.
pub fn layernorm(spec: RowSpec) -> Result<Program, OpError> {
    let mut p = RowProgram::new("layernorm", spec)?;
    let x = p.input("x");
    let y = normalised(&mut p, x);
    let gamma = p.vector("gamma");
    let beta = p.vector("beta");
    let y = p.b.map(MapOp::Mul, &[y, gamma]);
    let y = p.b.map(MapOp::Add, &[y, beta]);
    Ok(p.store("y", y))
}

/// Residual LayerNorm: LayerNorm of x + residual, without gamma and beta.
///
/// Tensors: `x`, `residual`, `y`, all rows×cols. The sum isn't stored.
///
/// # Errors
/// The dtype isn't a float.
pub fn residual_layernorm(spec: RowSpec) -> Result<Program, OpError> {
    let mut p = RowProgram::new("residual_layernorm", spec)?;
    let x = p.input("x");
    let residual = p.input("residual");
    let sum = p.b.map(MapOp::Add, &[x, residual]);
    let y = normalised(&mut p, sum);
    Ok(p.store("y", y))
}

/// `c / sqrt(Σc²/N + eps)` with c = x − Σx/N.
fn normalised(p: &mut RowProgram, x: ValueId) -> ValueId {
    let sum = p.reduce(ReduceOp::Add, x);
    let n = p.columns();
    let mean = p.b.map(MapOp::Div, &[sum, n]);
    let centred = p.b.map(MapOp::Sub, &[x, mean]);
    let sq = p.b.map(MapOp::Mul, &[centred, centred]);
    let sum = p.reduce(ReduceOp::Add, sq);
    let deviation = deviation(p, sum);
    p.b.map(MapOp::Div, &[centred, deviation])
}

/// `sqrt(sum/N + eps)`, a scalar of the row.
fn deviation(p: &mut RowProgram, sum: ValueId) -> ValueId {
    let n = p.columns();
    let eps = p.constant(NORM_EPS);
    let mean = p.b.map(MapOp::Div, &[sum, n]);
    let shifted = p.b.map(MapOp::Add, &[mean, eps]);
    p.b.map(MapOp::Sqrt, &[shifted])
}
