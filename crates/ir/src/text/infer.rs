//! The type that an operation gives its result where the text doesn't say: the printer leaves out
//! what the parser would infer. Total: on ill-typed operands it gives some type, and the verifier
//! complains.

use crate::program::*;
use crate::types::DType;

/// The inferred type of the result of `op`. `explicit` is the type that `const`, `cast` and
/// `broadcast` state themselves. `None` for operations without a single result.
pub fn result_type(program: &Program, op: &Op, explicit: &TileType) -> Option<TileType> {
    let ty = |v: &ValueId| match program.values.get(*v) {
        Some(value) => value.ty.clone(),
        None => TileType { dtype: DType::F32, axes: Vec::new() },
    };
    let result = match op {
        Op::Const { .. } => TileType { dtype: explicit.dtype, axes: Vec::new() },
        Op::Scalar(s) => TileType {
            dtype: program.scalars.get(*s).map_or(DType::F32, |s| s.dtype),
            axes: Vec::new(),
        },
        Op::Size(_) => TileType { dtype: DType::I32, axes: Vec::new() },
        Op::Index { axis, .. } => {
            TileType { dtype: DType::I32, axes: axis.iter().copied().collect() }
        }
        Op::Load { tensor, coords, .. } => {
            let mut axes: Vec<AxisId> = Vec::new();
            for coord in coords {
                let gathered = coord.gather.as_ref().map(|g| ty(g).axes).unwrap_or_default();
                for axis in coord.axis.into_iter().chain(gathered) {
                    if !axes.contains(&axis) {
                        axes.push(axis);
                    }
                }
            }
            TileType { dtype: program.tensors.get(*tensor).map_or(DType::F32, |t| t.dtype), axes }
        }
        Op::Map { op, args } => {
            let dtype = match if *op == MapOp::Select { args.last() } else { args.first() } {
                _ if op.is_comparison() || op.is_logical() => DType::Bool,
                Some(v) => ty(v).dtype,
                None => DType::F32,
            };
            TileType { dtype, axes: args.first().map(|v| ty(v).axes).unwrap_or_default() }
        }
        Op::Cast(v) => TileType { dtype: explicit.dtype, axes: ty(v).axes },
        Op::Broadcast(v) => TileType { dtype: ty(v).dtype, axes: explicit.axes.clone() },
        Op::Reduce { value, axis, .. } => {
            let mut ty = ty(value);
            ty.axes.retain(|a| a != axis);
            ty
        }
        Op::Mma { c, .. } => ty(c),
        Op::Reindex { value, axes } => {
            let mut ty = ty(value);
            for axis in &mut ty.axes {
                if let Some((_, new)) = axes.iter().find(|(old, _)| old == axis) {
                    *axis = *new;
                }
            }
            ty
        }
        Op::Store { .. } | Op::Loop { .. } => return None,
    };
    Some(result)
}
