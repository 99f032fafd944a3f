//! Coverage: every element of an output is written exactly once over the grid.
//!
//! The proof asks for one store per output whose coordinates are, dimension by dimension, a
//! mixed-radix number: the tile covers `len` positions, the innermost index variable steps by
//! `len` over its extent, the next one steps by that extent, and so on up to the size of the
//! dimension. Then tiles neither overlap nor leave gaps. Every index variable that takes more
//! than one value must be a digit of exactly one dimension, and so must every axis of the tile.

use super::extents::{coord_text, divides, extent_text, fixed, same, single};
use super::uses::Uses;
use crate::facts::{Coverage, Fact};
use crate::program::*;

/// Coverage of every tensor that isn't an input, in launch order.
pub(super) fn coverage(program: &Program, uses: &Uses) -> Vec<(TensorId, Fact<Coverage>)> {
    program
        .tensors
        .iter()
        .filter(|(_, tensor)| tensor.access != Access::In)
        .map(|(id, _)| {
            let fact = match covered(program, uses, id) {
                Ok(coverage) => Fact::Proved(coverage),
                Err(reason) => Fact::Unknown(reason),
            };
            (id, fact)
        })
        .collect()
}

fn covered(program: &Program, uses: &Uses, tensor: TensorId) -> Result<Coverage, String> {
    let stores: Vec<OpId> = uses
        .order
        .iter()
        .copied()
        .filter(|op| matches!(program.ops[*op].op, Op::Store { tensor: t, .. } if t == tensor))
        .collect();
    let store = match stores.as_slice() {
        [] => return Err("nothing stores to it".to_string()),
        [store] => *store,
        several => return Err(format!("{} stores write to it", several.len())),
    };
    let Op::Store { coords, value, bounds, .. } = &program.ops[store].op else {
        return Err("nothing stores to it".to_string());
    };
    let shape = &program.tensors[tensor].shape;
    if shape.len() != coords.len() {
        return Err("the store has the wrong number of coordinates".to_string());
    }
    injective_strides(program, tensor)?;
    every_index_once(program, uses, store, coords)?;
    for axis in &program.values[*value].ty.axes {
        let times = coords.iter().filter(|c| c.axis == Some(*axis)).count();
        if times != 1 {
            let name = &program.axes[*axis].name;
            return Err(format!("axis {name} runs along {times} of its dimensions"));
        }
    }
    let mut clipped = false;
    for (coord, size) in coords.iter().zip(shape) {
        clipped |= digits(program, coord, *size)?;
    }
    if clipped && *bounds == Bounds::Assume {
        return Err("a tile may stick out of it, and the store assumes that none does".to_string());
    }
    own_elements(program, uses, tensor, store, coords)?;
    Ok(Coverage { store, clipped })
}

/// Every grid and loop variable around the store is in one coordinate, or takes one value.
fn every_index_once(
    program: &Program,
    uses: &Uses,
    store: OpId,
    coords: &[Coord],
) -> Result<(), String> {
    let mut variables = program.grid.clone();
    let mut around = uses.parent(store);
    while let Some(op) = around {
        if let Op::Loop { index, .. } = program.ops[op].op {
            variables.push(index);
        }
        around = uses.parent(op);
    }
    for index in variables {
        let times =
            coords.iter().filter(|c| c.origin.terms.iter().any(|(i, _)| *i == index)).count();
        let name = &program.indices[index].name;
        if times > 1 {
            return Err(format!("{name} moves {times} of its coordinates at once"));
        }
        if times == 0 && !single(program, index) {
            return Err(format!("the stores of different {name} overlap"));
        }
    }
    Ok(())
}

/// Shows that a coordinate covers `size` positions exactly; whether the last tile may stick out.
fn digits(program: &Program, coord: &Coord, size: Extent) -> Result<bool, String> {
    let text = coord_text(program, coord);
    if coord.gather.is_some() {
        return Err(format!("the coordinate `{text}` depends on data"));
    }
    if coord.origin.constant != 0 {
        return Err(format!("the coordinate `{text}` doesn't start at 0"));
    }
    // The positions covered so far, and whether they are a multiple of the last step.
    let mut span = coord.axis.map_or(Extent::Const(1), |axis| program.axes[axis].extent);
    let mut last_step = None;
    let mut rest = coord.origin.terms.clone();
    while !rest.is_empty() {
        if last_step.is_some_and(|step| !divides(program, step, span)) {
            return Err(format!("the inner tiles of `{text}` don't fill the step of the outer"));
        }
        let digit = rest.iter().position(|(index, coefficient)| {
            scaled(program, program.indices[*index].step, *coefficient)
                .is_some_and(|step| same(program, step, span))
        });
        let Some(digit) = digit else {
            let covered = extent_text(program, span);
            return Err(format!(
                "in `{text}` the tiles cover {covered} but no index steps by that: they overlap \
                 or leave gaps"
            ));
        };
        let (index, coefficient) = rest.remove(digit);
        last_step = Some(span);
        span = scaled(program, program.indices[index].extent, coefficient)
            .ok_or_else(|| format!("the size that `{text}` covers isn't known"))?;
    }
    if same(program, span, size) {
        // The tiles end where the dimension ends, up to one that sticks out.
        return Ok(last_step.is_some_and(|step| !divides(program, step, size)));
    }
    let short = || {
        let (span, size) = (extent_text(program, span), extent_text(program, size));
        format!("the coordinate `{text}` covers {span} of {size} elements")
    };
    let (Some(span), Some(size)) = (fixed(program, span), fixed(program, size)) else {
        return Err(short());
    };
    let reached = match last_step.map(|step| fixed(program, step)) {
        None => span,
        Some(Some(step)) if step > 0 => span.div_ceil(step).saturating_mul(step),
        Some(_) => return Err(short()),
    };
    if reached < size { Err(short()) } else { Ok(reached > size) }
}

/// An extent times a coefficient; `None` if the product isn't known or not positive.
fn scaled(program: &Program, extent: Extent, coefficient: i64) -> Option<Extent> {
    match coefficient {
        1 => Some(extent),
        c if c > 1 => Some(Extent::Const(fixed(program, extent)?.checked_mul(c as u64)?)),
        _ => None,
    }
}

/// Known strides don't make elements overlap. Symbolic ones are a launch precondition.
fn injective_strides(program: &Program, tensor: TensorId) -> Result<(), String> {
    let tensor = &program.tensors[tensor];
    let Strides::Explicit(strides) = &tensor.strides else { return Ok(()) };
    let mut known = Vec::new();
    for (stride, size) in strides.iter().zip(&tensor.shape) {
        match (fixed(program, *stride), fixed(program, *size)) {
            (_, Some(0 | 1)) => {}
            (Some(0), _) => return Err("a stride of 0 makes its elements overlap".to_string()),
            (Some(stride), Some(size)) => known.push((stride, size)),
            _ => {}
        }
    }
    known.sort_unstable();
    let mut reach: u128 = 0;
    for (stride, size) in known {
        if u128::from(stride) <= reach {
            return Err("its strides make elements overlap".to_string());
        }
        reach += u128::from(stride) * u128::from(size - 1);
    }
    Ok(())
}

/// A tensor that is read and written is read only where the same instance writes it later.
fn own_elements(
    program: &Program,
    uses: &Uses,
    tensor: TensorId,
    store: OpId,
    written: &[Coord],
) -> Result<(), String> {
    for op in &uses.order {
        let Op::Load { tensor: t, coords, .. } = &program.ops[*op].op else { continue };
        if *t != tensor {
            continue;
        }
        if coords != written {
            return Err("it is read at other coordinates than it is written".to_string());
        }
        if uses.position(*op) > uses.position(store) {
            return Err("it is read after it is written".to_string());
        }
        if uses.parent(*op) != uses.parent(store) {
            return Err("it is read in another loop than it is written".to_string());
        }
    }
    Ok(())
}
