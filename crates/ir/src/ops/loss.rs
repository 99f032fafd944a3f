//! Losses per row.

use super::OpError;
use super::rows::{RowProgram, RowSpec};
use crate::program::*;
use crate::types::DType;

/// Cross-entropy of each row of logits with its label: `log Σ exp(x − m) + m − x[label]`, with
/// m = max x.
///
/// Tensors: `x` rows×cols, `label` rows (i32), `loss` rows. A label outside 0..cols reads no
/// memory and gives NaN; so does an empty row.
///
/// # Errors
/// The dtype isn't a float.
pub fn cross_entropy(spec: RowSpec) -> Result<Program, OpError> {
    let mut p = RowProgram::new("cross_entropy", spec)?;
    let logits = p.declare("x");
    let x = p.read(logits);
    let label = p.per_row("label", DType::I32);
    let picked = p.pick(logits, label);
    let m = p.reduce(ReduceOp::Max, x);
    let d = p.b.map(MapOp::Sub, &[x, m]);
    let e = p.b.map(MapOp::Exp, &[d]);
    let s = p.reduce(ReduceOp::Add, e);
    let log = p.b.map(MapOp::Log, &[s]);
    let loss = p.b.map(MapOp::Add, &[log, m]);
    let loss = p.b.map(MapOp::Sub, &[loss, picked]);
    Ok(p.store_per_row("loss", loss))
}
