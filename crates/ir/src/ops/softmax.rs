//! Softmax and its relatives, over the rows of a matrix.

use super::OpError;
use super::rows::{RowProgram, RowSpec};
use crate::program::*;

/// Softmax of each row: m = max x, e = exp(x − m), `y = e / Σe`.
///
/// Tensors: `x`, `y`, rows×cols. A row that holds NaN or +∞, and a row of −∞ alone, gives NaN
/// everywhere.
///
/// # Errors
/// The dtype isn't a float.
pub fn softmax(spec: RowSpec) -> Result<Program, OpError> {
    let mut p = RowProgram::new("softmax", spec)?;
    let x = p.input("x");
    let m = p.reduce(ReduceOp::Max, x);
    let d = p.b.map(MapOp::Sub, &[x, m]);
    let e = p.b.map(MapOp::Exp, &[d]);
    let s = p.reduce(ReduceOp::Add, e);
    let y = p.b.map(MapOp::Div, &[e, s]);
    Ok(p.store("y", y))
}

/// Log-softmax of each row: `y = (x − m) − log Σ exp(x − m)` with m = max x.
///
/// Tensors: `x`, `y`, rows×cols. A −∞ beside finite elements gives −∞; NaN rules as softmax's.
///
/// # Errors
/// The dtype isn't a float.
pub fn log_softmax(spec: RowSpec) -> Result<Program, OpError> {
    let mut p = RowProgram::new("log_softmax", spec)?;
    let x = p.input("x");
    let m = p.reduce(ReduceOp::Max, x);
    let d = p.b.map(MapOp::Sub, &[x, m]);
    let e = p.b.map(MapOp::Exp, &[d]);
    let s = p.reduce(ReduceOp::Add, e);
    let log = p.b.map(MapOp::Log, &[s]);
    // Subtracted anew: sharing `d` with the sum would keep a tile that one subtraction replaces.
    let d = p.b.map(MapOp::Sub, &[x, m]);
    let y = p.b.map(MapOp::Sub, &[d, log]);
    Ok(p.store("y", y))
}

/// Softmax of the kept columns: m = max of kept x, e = exp(x − m) where kept and 0 elsewhere,
/// y = e / Σe where kept and 0 elsewhere.
///
/// The selects make every corner right with no special case: a row with no kept column gives
/// zeros, a hidden NaN doesn't count, and a row whose kept columns are all −∞ gives NaN there.
fn over_kept(p: &mut RowProgram, x: ValueId, keep: impl Fn(&mut RowProgram) -> ValueId) -> ValueId {
    let hidden = p.constant(f64::NEG_INFINITY);
    let zero = p.constant(0.0);
    let kept = keep(p);
    let candidates = p.b.map(MapOp::Select, &[kept, x, hidden]);
    let m = p.reduce(ReduceOp::Max, candidates);
    let d = p.b.map(MapOp::Sub, &[x, m]);
    let e = p.b.map(MapOp::Exp, &[d]);
    let e = p.b.map(MapOp::Select, &[kept, e, zero]);
    let s = p.reduce(ReduceOp::Add, e);
    let y = p.b.map(MapOp::Div, &[e, s]);
    p.b.map(MapOp::Select, &[kept, y, zero])
}

/// Softmax over the columns whose mask is nonzero; 0 elsewhere.
///
/// Tensors: `x`, `mask` (i32), `y`, all rows×cols. A row that the mask hides entirely gives
/// zeros; a hidden NaN doesn't count; kept columns that are all −∞ give NaN.
///
/// # Errors
/// The dtype isn't a float.
pub fn masked_softmax(spec: RowSpec) -> Result<Program, OpError> {
    let mut p = RowProgram::new("masked_softmax", spec)?;
    let x = p.input("x");
    let kept = p.mask("mask");
    let y = over_kept(&mut p, x, |_| kept);
    Ok(p.store("y", y))
}

/// Softmax in which row i keeps the columns j ≤ i + (cols − rows); 0 elsewhere.
///
/// The last row keeps every column, as in attention with cached keys. Tensors: `x`, `y`,
/// rows×cols. Corners as in [`masked_softmax`]; where rows > cols the first rows are hidden
/// entirely and give zeros.
///
/// # Errors
/// The dtype isn't a float.
pub fn causal_softmax(spec: RowSpec) -> Result<Program, OpError> {
    let mut p = RowProgram::new("causal_softmax", spec)?;
    let x = p.input("x");
    let y = over_kept(&mut p, x, |p| {
        // j − cols ≤ i − rows: both sides lie in [−2^31 + 1, −1], so i32 can't overflow.
        let (row, axis) = (p.r, p.j);
        let j = p.b.index(Origin::default(), Some(axis));
        let cols = p.b.size(p.cols);
        let column = p.b.map(MapOp::Sub, &[j, cols]);
        let i = p.b.index(Origin::var(row), None);
        let rows = p.b.size(p.rows);
        let row = p.b.map(MapOp::Sub, &[i, rows]);
        p.b.map(MapOp::Le, &[column, row])
    });
    Ok(p.store("y", y))
}
