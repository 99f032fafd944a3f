//! Accesses that a program assumes in bounds and that only the sizes of a launch can vouch for.
//!
//! The facts of the row and the matrix family prove theirs, so only programs of neither family
//! have preconditions here. Divisors, bounds of sizes, strides, alignment and nonzero scalars
//! are stated by the program itself.

use tilewright_ir::Program;
use tilewright_ir::program::{Block, Bounds, Coord, DimId, Extent, IndexId, Op, TensorId};

use super::bounds;

/// Coordinate `dim` of an access to `tensor`, in the loops `loops`, is inside the tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct Precondition {
    /// The tensor.
    pub tensor: TensorId,
    /// Which of its dimensions.
    pub dim: usize,
    coord: Coord,
    /// Index variables of the grid and of the loops around: where one has no value nothing is
    /// accessed.
    around: Vec<IndexId>,
    /// Extents of the axes of the access: where one is 0 nothing is accessed.
    axes: Vec<Extent>,
}

/// A precondition that a launch breaks.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{tensor}` is accessed from {low} to {high} in dimension {dim}, which has {size} elements"
)]
#[allow(missing_docs)]
pub struct OutOfBounds {
    pub tensor: String,
    pub dim: usize,
    pub low: i128,
    pub high: i128,
    pub size: u64,
}

/// The accesses that are assumed in bounds and not proved to be.
pub fn preconditions(program: &Program) -> Vec<Precondition> {
    let mut found = Vec::new();
    let mut around = program.grid.clone();
    walk(program, &program.body, &mut around, &mut found);
    found
}

fn walk(
    program: &Program,
    block: &Block,
    around: &mut Vec<IndexId>,
    found: &mut Vec<Precondition>,
) {
    for op in &block.ops {
        match &program.ops[*op].op {
            Op::Load { tensor, coords, bounds: Bounds::Assume }
            | Op::Store { tensor, coords, bounds: Bounds::Assume, .. } => {
                let axes: Vec<Extent> = coords
                    .iter()
                    .filter_map(|c| c.axis)
                    .map(|axis| program.axes[axis].extent)
                    .collect();
                for (dim, coord) in coords.iter().enumerate() {
                    let proved = bounds::proved(program, *tensor, dim, coord);
                    if coord.gather.is_none() && !(proved.lower && proved.upper) {
                        found.push(Precondition {
                            tensor: *tensor,
                            dim,
                            coord: coord.clone(),
                            around: around.clone(),
                            axes: axes.clone(),
                        });
                    }
                }
            }
            Op::Loop { index, body, .. } => {
                around.push(*index);
                walk(program, body, around, found);
                around.pop();
            }
            _ => {}
        }
    }
}

impl Precondition {
    /// Checks the sizes of a launch. `size` gives the size of a symbolic dimension.
    ///
    /// # Errors
    /// The access leaves the tensor.
    pub fn check(&self, program: &Program, size: impl Fn(DimId) -> u64) -> Result<(), OutOfBounds> {
        let extent = |e: Extent| match (program.known(e), e) {
            (Some(n), _) | (None, Extent::Const(n)) => n,
            (None, Extent::Dim(d)) => size(d),
        };
        let variable = |index: &IndexId| &program.indices[*index];
        if self.around.iter().any(|i| extent(variable(i).extent) == 0)
            || self.axes.iter().any(|e| extent(*e) == 0)
        {
            return Ok(());
        }
        let constant = i128::from(self.coord.origin.constant);
        let (mut low, mut high) = (constant, constant);
        for (index, coefficient) in &self.coord.origin.terms {
            let var = variable(index);
            let (end, step) = (extent(var.extent), extent(var.step).max(1));
            let last = (end - 1) / step * step;
            let reach = i128::from(*coefficient) * i128::from(last);
            low += reach.min(0);
            high += reach.max(0);
        }
        if let Some(axis) = self.coord.axis {
            high += i128::from(extent(program.axes[axis].extent)) - 1;
        }
        let tensor = &program.tensors[self.tensor];
        let size = extent(tensor.shape[self.dim]);
        if low >= 0 && high < i128::from(size) {
            return Ok(());
        }
        Err(OutOfBounds { tensor: tensor.name.clone(), dim: self.dim, low, high, size })
    }
}
