//! Proofs that a coordinate stays inside its dimension. What isn't proved is guarded at run time
//! (loads and stores with a fill) or becomes a launch precondition (assumed bounds).

use tilewright_ir::Program;
use tilewright_ir::program::{Coord, Extent, IndexId, Origin, TensorId};

/// What is proved of a coordinate over the whole grid and all loops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Proved {
    /// Never below 0.
    pub lower: bool,
    /// Never at or above the dimension's size.
    pub upper: bool,
}

/// Largest value of an index variable, if its range is known and not empty.
fn largest(program: &Program, index: IndexId) -> Option<i128> {
    let var = &program.indices[index];
    let extent = i128::from(program.known(var.extent)?);
    let step = i128::from(program.known(var.step)?).max(1);
    Some(((extent - 1) / step * step).max(0))
}

/// Largest value of an origin, if known.
fn largest_origin(program: &Program, origin: &Origin) -> Option<i128> {
    let mut sum = i128::from(origin.constant);
    for (index, coefficient) in &origin.terms {
        if *coefficient > 0 {
            sum += i128::from(*coefficient) * largest(program, *index)?;
        }
    }
    Some(sum)
}

fn same(program: &Program, a: Extent, b: Extent) -> bool {
    a == b || (program.known(a).is_some() && program.known(a) == program.known(b))
}

/// Whether coordinate `dim` of an access to `tensor` is an index variable that runs over the
/// size of that dimension, plus a position along an axis.
pub(super) fn spans(program: &Program, tensor: TensorId, dim: usize, coord: &Coord) -> bool {
    match coord.origin.terms.as_slice() {
        [(index, 1)] if coord.origin.constant == 0 && coord.gather.is_none() => {
            same(program, program.indices[*index].extent, program.tensors[tensor].shape[dim])
        }
        _ => false,
    }
}

/// Whether coordinate `dim` of an access to `tensor` is proved in bounds.
pub(super) fn proved(program: &Program, tensor: TensorId, dim: usize, coord: &Coord) -> Proved {
    if coord.gather.is_some() {
        return Proved { lower: false, upper: false };
    }
    let origin = &coord.origin;
    let lower = origin.constant >= 0 && origin.terms.iter().all(|(_, c)| *c >= 0);
    let size = program.tensors[tensor].shape[dim];
    Proved { lower, upper: upper(program, size, coord) }
}

fn upper(program: &Program, size: Extent, coord: &Coord) -> bool {
    let origin = &coord.origin;
    let axis = coord.axis.map(|a| program.axes[a].extent);
    // An empty axis or grid has no access at all, so the largest positions suffice.
    let length = match axis {
        Some(extent) => program.known(extent),
        None => Some(1),
    };
    if let (Some(first), Some(length), Some(size)) =
        (largest_origin(program, origin), length, program.known(size))
    {
        return first + i128::from(length) <= i128::from(size);
    }
    if origin.constant != 0 {
        return false;
    }
    match (origin.terms.as_slice(), axis) {
        ([], Some(extent)) => same(program, extent, size),
        ([(index, 1)], axis) => {
            let var = &program.indices[*index];
            if !same(program, var.extent, size) {
                return false;
            }
            match axis {
                // A multiple of the step that is below the size.
                None => true,
                Some(_) => match (length, program.known(var.step)) {
                    (Some(length), Some(step)) => {
                        step > 0 && length <= step && program.divisor(size).is_multiple_of(step)
                    }
                    _ => false,
                },
            }
        }
        _ => false,
    }
}
