//! Any verified program, correctly and slowly: one subgroup per program instance runs the
//! operations in order.
//!
//! Elementwise values are computed where they are used. Reductions, products, carried tiles and
//! snapshots of tensors that are also written are kept in shared memory; the lanes share the
//! innermost axis of a tile, the other axes are loops. Folds go element by element, first to last
//! (or last to first where that is asked for), except that one over everything in any order is
//! split over the lanes.

use tilewright_ir::Program;
use tilewright_ir::program as ir;
use tilewright_ir::program::{AxisId, IndexId, MapOp, OrderPolicy};

use super::access::{Frame, Pos};
use super::tile::TileId;
use super::{Context, LowerError, Rule, Source};
use crate::builder::KernelBuilder;
use crate::kernel::*;

/// The most elements that a kept tile may have.
const MAX_TILE: u64 = 1 << 26;

/// A fallback lowering in progress.
struct Fallback<'a> {
    cx: Context<'a>,
    lanes: u32,
    barrier: BarrierId,
}

/// Lowers any program with subgroups of `lanes` lanes.
///
/// # Errors
/// A kept tile has an axis whose extent has no usable bound.
pub(super) fn lower(program: &Program, lanes: u32) -> Result<Kernel, LowerError> {
    if lanes == 0 {
        return Err(LowerError {
            program: program.name.clone(),
            rule: Rule::MappingRange,
            detail: "no lanes".to_string(),
        });
    }
    let mut bound = program.clone();
    bound.bind_default_blocks();
    let mut b = KernelBuilder::new(&program.name, lanes, 1);
    let barrier = b.group_barrier("all");
    let cx = Context::new(&bound, b);
    let mut this = Fallback { cx, lanes, barrier };
    this.instances()?;
    Ok(this.cx.b.finish())
}

impl Fallback<'_> {
    /// The grid: up to three dimensions of groups, the others as loops.
    fn instances(&mut self) -> Result<(), LowerError> {
        let program = self.cx.program;
        let mut looped = Vec::new();
        let mut launched = 0;
        for index in &program.grid {
            let var = &program.indices[*index];
            match program.known(var.step) {
                Some(step) if launched < 3 => {
                    let size = self.cx.args.size(program, var.extent);
                    let group = self.cx.b.grid(size, step);
                    let origin = self.cx.b.mul_int(group, step as i64);
                    self.cx.indices.insert(*index, origin);
                    launched += 1;
                }
                _ => looped.push(*index),
            }
        }
        if launched == 0 {
            self.cx.b.grid(Size::Const(1), 1);
        }
        self.nest(&looped)
    }

    fn nest(&mut self, looped: &[IndexId]) -> Result<(), LowerError> {
        let Some((first, rest)) = looped.split_first() else {
            return self.block(&self.cx.program.body);
        };
        let kept = self.cx.scalars.clone();
        let (trips, step) = self.trips(*first);
        let zero = self.cx.b.int(0);
        let open = self.cx.b.begin_for(zero, trips, 1, 1, &[]);
        let origin = self.cx.b.mul(open.index(), step);
        self.cx.indices.insert(*first, origin);
        self.nest(rest)?;
        self.cx.b.end_for(open, &[]);
        self.cx.indices.remove(first);
        self.cx.scalars = kept;
        Ok(())
    }

    /// Number of values of an index variable, and its step.
    fn trips(&mut self, index: IndexId) -> (ValueId, ValueId) {
        let var = &self.cx.program.indices[index];
        let extent = self.cx.extent(var.extent);
        let step = self.cx.extent(var.step);
        // A symbolic step is at least 1 at launch; the division is safe without that too.
        let one = self.cx.b.int(1);
        let step = self.cx.b.max(step, one);
        let rounded = self.cx.b.add(extent, step);
        let rounded = self.cx.b.add_int(rounded, -1);
        (self.cx.b.div(rounded, step), step)
    }

    fn wait(&mut self) {
        self.cx.b.barrier(self.barrier);
    }

    fn block(&mut self, block: &ir::Block) -> Result<(), LowerError> {
        for op in &block.ops {
            self.op(*op)?;
        }
        Ok(())
    }

    fn op(&mut self, op: ir::OpId) -> Result<(), LowerError> {
        let program = self.cx.program;
        let data = &program.ops[op];
        match (&data.op, data.results.as_slice()) {
            (ir::Op::Load { tensor, .. }, [result]) => {
                if program.tensors[*tensor].access != ir::Access::In {
                    self.keep(*result, *result)?;
                }
                Ok(())
            }
            (ir::Op::Store { tensor, coords, value, bounds }, _) => {
                self.cx.prepare(*value)?;
                self.each_element(*value, |this, frame| {
                    let values = this.cx.eval(*value, frame)?;
                    this.cx.write_tensor(frame, *tensor, coords, *bounds, &values)
                })?;
                self.wait();
                Ok(())
            }
            (ir::Op::Reduce { op, value, axis, order }, [result]) => {
                self.reduce(*op, *value, *axis, *order, *result)
            }
            (ir::Op::Mma { a, b, c, .. }, [result]) => self.product(*a, *b, *c, *result),
            // Iterations run one after another, whether or not they might overlap.
            (ir::Op::Loop { index, carries, body, .. }, results) => {
                self.repeat(*index, carries, body, results)
            }
            // Everything else is computed where it is used.
            _ => Ok(()),
        }
    }

    /// Axes of a value with their largest lengths, for storage.
    fn lengths(&self, value: ir::ValueId) -> Result<Vec<(AxisId, u64)>, LowerError> {
        let program = self.cx.program;
        let mut total = 1u64;
        let mut lengths = Vec::new();
        for axis in self.cx.axes(value) {
            let length = program.max_size(program.axes[*axis].extent);
            total = total.saturating_mul(length.max(1));
            lengths.push((*axis, length));
        }
        if total > MAX_TILE {
            let name = &program.values[value].name;
            let detail = format!("tile `%{name}` has up to {total} elements: bind its dimensions");
            return Err(self.cx.error(Rule::ExtentKnown, detail));
        }
        Ok(lengths)
    }

    fn declare(&mut self, value: ir::ValueId) -> Result<TileId, LowerError> {
        let lengths = self.lengths(value)?;
        let name = self.cx.program.values[value].name.clone();
        let dtype = self.cx.dtype(value);
        Ok(self.cx.declare_tile(&name, dtype, &lengths, 1))
    }

    /// Calls `body` at the elements of a tile with the type of `shape`: the lanes along its last
    /// axis, loops over the others.
    fn each_element(
        &mut self,
        shape: ir::ValueId,
        mut body: impl FnMut(&mut Self, &mut Frame) -> Result<(), LowerError>,
    ) -> Result<(), LowerError> {
        let axes = self.cx.axes(shape).to_vec();
        let Some((inner, outer)) = axes.split_last() else {
            return body(self, &mut Frame::scalar());
        };
        let zero = self.cx.b.int(0);
        let mut positions = Vec::new();
        let mut loops = Vec::new();
        for axis in outer {
            let extent = self.cx.extent(self.cx.program.axes[*axis].extent);
            let open = self.cx.b.begin_for(zero, extent, 1, 1, &[]);
            positions.push((*axis, Pos::Uniform(open.index())));
            loops.push(open);
        }
        let extent = self.cx.extent(self.cx.program.axes[*inner].extent);
        let open = self.cx.b.begin_for(zero, extent, u64::from(self.lanes), 1, &[]);
        positions.push((*inner, Pos::Lanes(open.index())));
        let mut frame = Frame::at(positions, 1);
        frame.limit = Some(self.cx.b.sub(extent, open.index()));
        body(self, &mut frame)?;
        self.cx.b.end_for(open, &[]);
        for open in loops.into_iter().rev() {
            self.cx.b.end_for(open, &[]);
        }
        Ok(())
    }

    /// Computes `value` now and keeps it for `name`.
    fn keep(&mut self, name: ir::ValueId, value: ir::ValueId) -> Result<(), LowerError> {
        if self.cx.axes(value).is_empty() {
            let scalar = self.cx.scalar(value)?;
            self.cx.scalars.insert(name, scalar);
            return Ok(());
        }
        let tile = self.declare(name)?;
        self.fill(tile, value)?;
        self.cx.sources.insert(name, Source::Tile(tile));
        Ok(())
    }

    /// Writes a value to a tile whose axes are the value's.
    fn fill(&mut self, tile: TileId, value: ir::ValueId) -> Result<(), LowerError> {
        self.cx.prepare(value)?;
        self.each_element(value, |this, frame| {
            let values = this.cx.eval(value, frame)?;
            this.cx.write_tile(tile, frame, &values)
        })?;
        self.wait();
        Ok(())
    }

    fn reduce(
        &mut self,
        fold: ir::ReduceOp,
        value: ir::ValueId,
        axis: AxisId,
        order: OrderPolicy,
        result: ir::ValueId,
    ) -> Result<(), LowerError> {
        self.cx.prepare(value)?;
        let dtype = self.cx.dtype(value).accumulator();
        let extent = self.cx.extent(self.cx.program.axes[axis].extent);
        let zero = self.cx.b.int(0);
        let identity = self.cx.b.literal(fold.identity(dtype), dtype);
        if self.cx.axes(result).is_empty() {
            let free = order == OrderPolicy::UnorderedTree && self.lanes > 1;
            let step = if free { u64::from(self.lanes) } else { 1 };
            let open = self.cx.b.begin_for(zero, extent, step, 1, &[identity]);
            let (index, partial) = (open.index(), open.inner()[0]);
            let next = if free {
                let mut frame = Frame::at(vec![(axis, Pos::Lanes(index))], 1);
                let limit = self.cx.b.sub(extent, index);
                frame.limit = Some(limit);
                let value = self.cx.eval(value, &mut frame)?[0];
                let value = self.cx.convert(value, dtype);
                let inside = self.cx.below(1, 0, limit);
                let value = self.cx.b.map(MapOp::Select, &[inside, value, identity]);
                self.cx.combine(fold, partial, value)
            } else {
                let along = Along { axis, index, extent, order };
                self.fold(fold, value, along, partial, &Frame::scalar())?
            };
            let mut total = self.cx.b.end_for(open, &[next])[0];
            if free {
                total = self.cx.b.collective(Collective::Reduce(fold), total);
            }
            let total = self.cx.convert(total, self.cx.dtype(result));
            self.cx.scalars.insert(result, total);
            return Ok(());
        }
        let tile = self.declare(result)?;
        self.each_element(result, |this, frame| {
            let open = this.cx.b.begin_for(zero, extent, 1, 1, &[identity]);
            let (index, partial) = (open.index(), open.inner()[0]);
            let along = Along { axis, index, extent, order };
            let next = this.fold(fold, value, along, partial, frame)?;
            let total = this.cx.b.end_for(open, &[next])[0];
            let total = this.cx.convert(total, this.cx.dtype(result));
            this.cx.write_tile(tile, frame, &[total])
        })?;
        self.wait();
        self.cx.sources.insert(result, Source::Tile(tile));
        Ok(())
    }

    /// One step of a fold in order, at the positions of a frame along the other axes.
    fn fold(
        &mut self,
        fold: ir::ReduceOp,
        value: ir::ValueId,
        along: Along,
        partial: ValueId,
        around: &Frame,
    ) -> Result<ValueId, LowerError> {
        let backwards = along.order == OrderPolicy::FoldRight;
        let at = if backwards {
            let last = self.cx.b.add_int(along.extent, -1);
            self.cx.b.sub(last, along.index)
        } else {
            along.index
        };
        let mut axes = around.axes.clone();
        axes.push((along.axis, Pos::Uniform(at)));
        let mut frame = Frame::at(axes, 1);
        frame.limit = around.limit;
        let value = self.cx.eval(value, &mut frame)?[0];
        let (Type::Elem(Elem::Data(dtype)) | Type::Fragment { dtype, .. }) = self.cx.b.ty(partial)
        else {
            return Err(self.cx.error(Rule::Operation, "a fold of index values"));
        };
        let value = self.cx.convert(value, dtype);
        let (first, second) = if backwards { (value, partial) } else { (partial, value) };
        Ok(self.cx.combine(fold, first, second))
    }

    /// `a·b + c`, every element on its own, the contracted axes in nested loops.
    fn product(
        &mut self,
        a: ir::ValueId,
        b: ir::ValueId,
        c: ir::ValueId,
        result: ir::ValueId,
    ) -> Result<(), LowerError> {
        for operand in [a, b, c] {
            self.cx.prepare(operand)?;
        }
        let free = self.cx.axes(c).to_vec();
        let contracted: Vec<AxisId> =
            self.cx.axes(a).iter().copied().filter(|axis| !free.contains(axis)).collect();
        let dtype = self.cx.dtype(c);
        let tile = if free.is_empty() { None } else { Some(self.declare(result)?) };
        let mut scalar = None;
        self.each_element(c, |this, frame| {
            let start = this.cx.eval(c, frame)?[0];
            let zero = this.cx.b.int(0);
            let mut inner = Frame::at(frame.axes.clone(), 1);
            inner.limit = frame.limit;
            let mut sum = start;
            let mut loops = Vec::new();
            for axis in &contracted {
                let extent = this.cx.extent(this.cx.program.axes[*axis].extent);
                let open = this.cx.b.begin_for(zero, extent, 1, 1, &[sum]);
                sum = open.inner()[0];
                inner.axes.push((*axis, Pos::Uniform(open.index())));
                loops.push(open);
            }
            let left = this.cx.eval(a, &mut inner)?[0];
            let right = this.cx.eval(b, &mut inner)?[0];
            let (left, right) = (this.cx.convert(left, dtype), this.cx.convert(right, dtype));
            sum = this.cx.b.fma(left, right, sum);
            for open in loops.into_iter().rev() {
                sum = this.cx.b.end_for(open, &[sum])[0];
            }
            match tile {
                Some(tile) => this.cx.write_tile(tile, frame, &[sum]),
                None => {
                    scalar = Some(sum);
                    Ok(())
                }
            }
        })?;
        match (tile, scalar) {
            (Some(tile), _) => {
                self.wait();
                self.cx.sources.insert(result, Source::Tile(tile));
            }
            (None, Some(sum)) => {
                self.cx.scalars.insert(result, sum);
            }
            (None, None) => {}
        }
        Ok(())
    }

    /// A loop. Carried scalars are carried by the kernel's loop; a carried tile has a buffer, and
    /// its next value another, because it may be an expression of the old one at other positions.
    fn repeat(
        &mut self,
        index: IndexId,
        carries: &[ir::Carry],
        body: &ir::Block,
        results: &[ir::ValueId],
    ) -> Result<(), LowerError> {
        let mut init = Vec::new();
        let mut tiles = Vec::new();
        for carry in carries {
            if self.cx.axes(carry.init).is_empty() {
                init.push(self.cx.scalar(carry.init)?);
                tiles.push(None);
            } else {
                let now = self.declare(carry.inner)?;
                self.fill(now, carry.init)?;
                tiles.push(Some(now));
            }
        }
        let kept = self.cx.scalars.clone();
        let (trips, step) = self.trips(index);
        let zero = self.cx.b.int(0);
        let open = self.cx.b.begin_for(zero, trips, 1, 1, &init);
        let at = self.cx.b.mul(open.index(), step);
        self.cx.indices.insert(index, at);
        let mut inner = open.inner().iter().copied();
        for (carry, tile) in carries.iter().zip(&tiles) {
            match tile {
                Some(now) => {
                    self.cx.sources.insert(carry.inner, Source::Tile(*now));
                }
                None => {
                    if let Some(value) = inner.next() {
                        self.cx.scalars.insert(carry.inner, value);
                    }
                }
            }
        }
        self.block(body)?;
        // All next values before any is taken over: one may be an expression of another carry.
        let mut next = Vec::new();
        let mut copies = Vec::new();
        for (carry, tile) in carries.iter().zip(&tiles) {
            let Some(now) = tile else {
                next.push(self.cx.scalar(carry.next)?);
                continue;
            };
            let from = match self.cx.sources.get(&carry.next) {
                Some(Source::Tile(kept)) if !tiles.contains(&Some(*kept)) => *kept,
                _ => {
                    let tile = self.declare(carry.next)?;
                    self.fill(tile, carry.next)?;
                    tile
                }
            };
            copies.push((carry, from, *now));
        }
        for (carry, from, now) in copies {
            self.each_element(carry.init, |this, frame| {
                let values = this.cx.read_tile(from, frame)?;
                this.cx.write_tile(now, frame, &values)
            })?;
            self.wait();
        }
        let last = self.cx.b.end_for(open, &next);
        self.cx.indices.remove(&index);
        self.cx.scalars = kept;
        let mut last = last.into_iter();
        for (result, tile) in results.iter().zip(&tiles) {
            match tile {
                Some(now) => {
                    self.cx.sources.insert(*result, Source::Tile(*now));
                }
                None => {
                    if let Some(value) = last.next() {
                        self.cx.scalars.insert(*result, value);
                    }
                }
            }
        }
        Ok(())
    }
}

/// One step of a fold.
struct Along {
    axis: AxisId,
    index: ValueId,
    extent: ValueId,
    order: OrderPolicy,
}
