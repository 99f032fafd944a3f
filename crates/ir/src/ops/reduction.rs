//! One number per row.

use super::OpError;
use super::rows::{RowProgram, RowSpec};
use crate::program::*;

/// Sum of each row; 0 for an empty row.
///
/// Tensors: `x` rows×cols, `y` rows.
///
/// # Errors
/// The dtype isn't a float.
pub fn row_sum(spec: RowSpec) -> Result<Program, OpError> {
    let mut p = RowProgram::new("row_sum", spec)?;
    let x = p.input("x");
    let y = p.reduce(ReduceOp::Add, x);
    Ok(p.store_per_row("y", y))
}

/// Largest element of each row; NaN if the row holds NaN, −∞ for an empty row.
///
/// Tensors: `x` rows×cols, `y` rows.
///
/// # Errors
/// The dtype isn't a float.
pub fn row_max(spec: RowSpec) -> Result<Program, OpError> {
    let mut p = RowProgram::new("row_max", spec)?;
    let x = p.input("x");
    let y = p.reduce(ReduceOp::Max, x);
    Ok(p.store_per_row("y", y))
}

/// Mean of each row, Σx/N; NaN for an empty row.
///
/// Tensors: `x` rows×cols, `y` rows.
///
/// # Errors
/// The dtype isn't a float.
pub fn row_mean(spec: RowSpec) -> Result<Program, OpError> {
    let mut p = RowProgram::new("row_mean", spec)?;
    let x = p.input("x");
    let sum = p.reduce(ReduceOp::Add, x);
    let n = p.columns();
    let y = p.b.map(MapOp::Div, &[sum, n]);
    Ok(p.store_per_row("y", y))
}
