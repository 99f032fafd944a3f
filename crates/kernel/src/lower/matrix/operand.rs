//! Operands of the product: copies to shared memory, views of fragments, and the products.

use tilewright_ir::facts::OperandFact;
use tilewright_ir::program as ir;
use tilewright_ir::program::AxisId;
use tilewright_plan::mapping::MatrixBasis;

use super::{ATOM, Context, Frame, LowerError, Matrix, Pos, Rule};
use crate::kernel::*;
use crate::lower::tile::TileId;

/// An operand, staged or read in place.
#[derive(Clone, Debug)]
pub(super) struct Staged {
    tensor: ir::TensorId,
    coords: Vec<ir::Coord>,
    value: ir::ValueId,
    /// Axes of the rows and columns of a fragment.
    axes: [AxisId; 2],
    /// The copy, laid out as the tensor is; `None` where the operand is read in place.
    tile: Option<TileId>,
    stages: u64,
}

impl Staged {
    pub(super) fn declare(
        cx: &mut Context<'_>,
        name: &str,
        fact: &OperandFact,
        axes: [AxisId; 2],
        stages: u64,
        forward: bool,
    ) -> Result<Staged, LowerError> {
        let program = cx.program;
        let load = &program.ops[fact.load];
        let (ir::Op::Load { tensor, coords, .. }, Some(value)) = (&load.op, load.results.first())
        else {
            return Err(cx.error(Rule::Operation, format!("operand {name} isn't a load")));
        };
        let order = if fact.transposed { [axes[1], axes[0]] } else { axes };
        let mut lengths = Vec::new();
        for axis in order {
            let extent = program.axes[axis].extent;
            let Some(length) = program.known(extent) else {
                let name = &program.axes[axis].name;
                let detail = format!("the extent of axis `{name}` isn't known");
                return Err(cx.error(Rule::ExtentKnown, detail));
            };
            lengths.push((axis, length));
        }
        let dtype = program.tensors[*tensor].dtype;
        let tile = (!forward).then(|| cx.declare_tile(name, dtype, &lengths, stages));
        let (tensor, coords, value) = (*tensor, coords.clone(), *value);
        Ok(Staged { tensor, coords, value, axes, tile, stages })
    }
}

impl Matrix<'_> {
    /// Sets where a stage of a copy begins in its buffer.
    fn select(&mut self, operand: &Staged, tile: TileId, stage: ValueId) {
        if operand.stages > 1 {
            let size: u64 = self.cx.tiles[tile].axes.iter().map(|(_, n)| *n).product();
            let offset = self.cx.b.mul_int(stage, size as i64);
            self.cx.tiles[tile].offset = Some(offset);
        }
    }

    /// Copies the operand's block at the present indices to a stage of its buffer.
    pub(super) fn copy(&mut self, operand: &Staged, stage: ValueId) -> Result<(), LowerError> {
        let Some(tile) = operand.tile else { return Ok(()) };
        self.select(operand, tile, stage);
        let [outer, inner] = match self.cx.tiles[tile].axes[..] {
            [outer, inner] => [outer, inner],
            _ => return Err(self.cx.error(Rule::Operation, "an operand isn't two-dimensional")),
        };
        self.each_element([outer, inner], |this, frame| {
            let values = this.cx.compute(operand.value, frame)?;
            this.cx.write_tile(tile, frame, &values)
        })
    }

    /// A window of a tensor whose corner is at `place` of its tile.
    pub(super) fn global_view(
        &mut self,
        tensor: ir::TensorId,
        coords: &[ir::Coord],
        axes: [AxisId; 2],
        place: [ValueId; 2],
    ) -> Result<View, LowerError> {
        let positions = axes.iter().zip(place).map(|(axis, p)| (*axis, Pos::Uniform(p))).collect();
        let mut frame = Frame::at(positions, 1);
        let dims = self.cx.tensor_dims(&mut frame, tensor, coords, ir::Bounds::Assume)?;
        let zero = self.cx.b.int(0);
        let (mut base, mut strides) = (zero, [zero, zero]);
        for (dim, coord) in dims.iter().zip(coords) {
            let offset = self.cx.b.mul(dim.uniform, dim.stride);
            base = self.cx.b.add(base, offset);
            for (axis, stride) in axes.iter().zip(&mut strides) {
                if coord.axis == Some(*axis) {
                    *stride = self.cx.b.add(*stride, dim.stride);
                }
            }
        }
        let memory = Memory::Global(self.cx.args.tensor(tensor));
        Ok(View::whole(memory, base, strides[0], strides[1]))
    }

    /// The operand's window at a place of its block.
    fn operand_view(
        &mut self,
        operand: &Staged,
        stage: ValueId,
        place: [ValueId; 2],
    ) -> Result<View, LowerError> {
        let Some(id) = operand.tile else {
            return self.global_view(operand.tensor, &operand.coords, operand.axes, place);
        };
        self.select(operand, id, stage);
        let tile = self.cx.tiles[id].clone();
        let b = &mut self.cx.b;
        let mut base = tile.offset.unwrap_or_else(|| b.int(0));
        let mut strides = [b.int(0); 2];
        for ((axis, at), stride) in operand.axes.iter().zip(place).zip(&mut strides) {
            if let Some(i) = tile.axes.iter().position(|(a, _)| a == axis) {
                *stride = b.int(tile.stride(i) as i64);
                let offset = b.mul(at, *stride);
                base = b.add(base, offset);
            }
        }
        Ok(View::whole(Memory::Shared(tile.shared), base, strides[0], strides[1]))
    }

    /// Adds the products of one K block to the accumulators.
    pub(super) fn products(
        &mut self,
        stage: ValueId,
        accumulators: &[ValueId],
    ) -> Result<Vec<ValueId>, LowerError> {
        let depth = self.mapping.block[2];
        let zero = self.cx.b.int(0);
        let (a, b) = (self.a.clone(), self.b.clone());
        let [row, column] = self.corner;
        if self.mapping.basis == MatrixBasis::Mpp {
            let left = self.operand_view(&a, stage, [row, zero])?;
            let right = self.operand_view(&b, stage, [zero, column])?;
            let all = self.cx.b.int(depth as i64);
            let (left, right) = (Operand::View(left), Operand::View(right));
            return Ok(vec![self.cx.b.mma(left, right, accumulators[0], Some(all))]);
        }
        let [rm, rn] = self.mapping.atoms;
        let dtype = self.facts.dtype;
        let fragment = |role| Type::fragment(Atom::Simdgroup8x8, role, dtype);
        let end = self.cx.b.int(depth as i64);
        let trips = self.cx.begin((zero, end, ATOM), 1, accumulators);
        let (at, inner) = (trips.index, trips.inner.clone());
        let mut left = Vec::new();
        for i in 0..rm {
            let row = self.cx.b.add_int(row, (i * ATOM) as i64);
            let view = self.operand_view(&a, stage, [row, at])?;
            left.push(self.cx.b.fragment_load(fragment(FragmentRole::A), view));
        }
        let mut right = Vec::new();
        for j in 0..rn {
            let column = self.cx.b.add_int(column, (j * ATOM) as i64);
            let view = self.operand_view(&b, stage, [at, column])?;
            right.push(self.cx.b.fragment_load(fragment(FragmentRole::B), view));
        }
        let mut next = Vec::new();
        for (i, left) in left.iter().enumerate() {
            for (j, right) in right.iter().enumerate() {
                let c = inner[i * rn as usize + j];
                let (a, b) = (Operand::Fragment(*left), Operand::Fragment(*right));
                next.push(self.cx.b.mma(a, b, c, None));
            }
        }
        Ok(self.cx.end(trips, next))
    }
}
