//! Accesses with assumed bounds where every size is known: the extremes of an affine coordinate
//! over the whole grid and its loops are attained, so leaving the tensor is certain.

use crate::program::*;
use crate::verify::declarations::known;
use crate::verify::{Check, Place, Rule};

pub fn check(check: &mut Check<'_>) {
    let p = check.program;
    // Inside a loop that never runs, or a grid that is empty, nothing is accessed.
    if p.grid.iter().all(|i| known(p, p.indices[*i].extent) != Some(0)) {
        block(check, &p.body);
    }
}

fn block(check: &mut Check<'_>, list: &Block) {
    let p = check.program;
    for id in &list.ops {
        match &p.ops[*id].op {
            Op::Loop { index, body, .. } if known(p, p.indices[*index].extent) != Some(0) => {
                block(check, body);
            }
            Op::Load { tensor, coords, bounds: Bounds::Assume }
            | Op::Store { tensor, coords, bounds: Bounds::Assume, .. } => {
                access(check, *id, *tensor, coords);
            }
            _ => {}
        }
    }
}

fn access(check: &mut Check<'_>, id: OpId, tensor: TensorId, coords: &[Coord]) {
    let p = check.program;
    // A tile without elements accesses nothing.
    let empty = |a: AxisId| known(p, p.axes[a].extent) == Some(0);
    if coords.iter().filter_map(|c| c.axis).any(empty) {
        return;
    }
    let tensor = &p.tensors[tensor];
    for (at, (coord, size)) in coords.iter().zip(&tensor.shape).enumerate() {
        let (Some((low, high)), Some(size)) = (range(p, coord), known(p, *size)) else { continue };
        let inside = low >= 0 && high < size as i128;
        check.require(inside, Rule::AssumedBounds, Place::Op(id), || {
            format!(
                "coordinate {at} of `{}` runs from {low} to {high} in a dimension of {size}; add \
                 `fill` to the load or `clip` to the store, or change the extents",
                tensor.name
            )
        });
    }
}

/// First and last position that a coordinate takes, if every size is known and nothing gathers.
fn range(p: &Program, coord: &Coord) -> Option<(i128, i128)> {
    if coord.gather.is_some() {
        return None;
    }
    let (mut low, mut high) = (coord.origin.constant as i128, coord.origin.constant as i128);
    for (index, coefficient) in &coord.origin.terms {
        let var = p.indices.get(*index)?;
        let (extent, step) = (known(p, var.extent)?, known(p, var.step)?);
        // An empty loop was left out; a step of 0 has its own rule.
        let last = extent.checked_sub(1)?.checked_div(step)? * step;
        let end = *coefficient as i128 * last as i128;
        low += end.min(0);
        high += end.max(0);
    }
    if let Some(axis) = coord.axis {
        high += known(p, p.axes.get(axis)?.extent)? as i128 - 1;
    }
    Some((low, high))
}
