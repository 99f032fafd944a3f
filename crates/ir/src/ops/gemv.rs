//! Matrix times vector, as a row program.

use super::OpError;
use super::rows::{RowProgram, RowSpec};
use crate::program::*;

/// `y = A·x`: one dot product per row.
///
/// Tensors: `a` rows×cols, `x` cols, `y` rows. Products and sums are in f32 for f16 and bf16. For
/// `xᵀ·B` use [`super::gemm()`] with m = 1.
///
/// # Errors
/// The dtype isn't a float.
pub fn gemv(spec: RowSpec) -> Result<Program, OpError> {
    let mut p = RowProgram::new("gemv", spec)?;
    let a = p.input("a");
    let x = p.vector("x");
    let product = p.b.map(MapOp::Mul, &[a, x]);
    let y = p.reduce(ReduceOp::Add, product);
    Ok(p.store_per_row("y", y))
}
