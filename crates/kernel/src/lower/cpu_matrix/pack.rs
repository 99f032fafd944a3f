//! Copies of operands into the group's scratch, widened to the accumulator's type.
//!
//! A keeps its storage order (the register tile reads either), only its stride changes, so that
//! rows don't fall into one cache set. B becomes panels of one tile's columns: element (k, j) of
//! panel p is at `(p·depth + k)·width + j`. Columns beyond the matrix are zeros in the panel.

use tilewright_ir::DType;

use super::tile::Step;
use super::{CpuMatrix, Matrix};
use crate::builder::KernelBuilder;
use crate::kernel::*;
use crate::lower::LowerError;

impl CpuMatrix<'_> {
    /// Packs what the mapping says for one K step.
    pub(super) fn pack(&mut self, step: &Step) -> Result<(), LowerError> {
        if let Some(shared) = self.packed_a {
            self.pack_a(shared, step);
        }
        if let Some(shared) = self.packed_b {
            self.pack_b(shared, step);
        }
        Ok(())
    }

    /// The packed A with the group's rows and the step's K.
    pub(super) fn packed_a_matrix(&mut self, shared: SharedId) -> Matrix {
        let b = &mut self.cx.b;
        let one = b.int(1);
        let stride = b.int(b.kernel().shared[shared].cols as i64);
        let (row_stride, col_stride) =
            if self.facts.a.transposed { (one, stride) } else { (stride, one) };
        let origin = b.int(0);
        Matrix { memory: Memory::Shared(shared), origin, row_stride, col_stride }
    }

    fn pack_a(&mut self, shared: SharedId, step: &Step) {
        let to = self.packed_a_matrix(shared);
        let rows = self.extent[0];
        let b = &mut self.cx.b;
        let from = {
            let row = b.mul(self.origin[0], self.a.row_stride);
            let k = b.mul(step.start, self.a.col_stride);
            let origin = b.add(self.a.origin, row);
            let origin = b.add(origin, k);
            Matrix { origin, ..self.a }
        };
        let accumulator = self.facts.accumulator;
        let zero = b.int(0);
        // The inner loop runs along consecutive elements of the source.
        let (outer, inner, from, to) = if self.facts.a.transposed {
            (step.length, rows, from.transposed(), to.transposed())
        } else {
            (rows, step.length, from, to)
        };
        b.for_loop((zero, outer, 1), 1, &[], |b, row, _| {
            let at = |b: &mut KernelBuilder, m: &Matrix| {
                let offset = b.mul(row, m.row_stride);
                b.add(m.origin, offset)
            };
            let (from_row, to_row) = (at(b, &from), at(b, &to));
            copy(b, (&from, from_row), (&to, to_row), inner, accumulator);
            Vec::new()
        });
    }

    fn pack_b(&mut self, shared: SharedId, step: &Step) {
        let width = self.tile_columns() as i64;
        let lanes = self.lanes();
        let accumulator = self.facts.accumulator;
        let depth = self.mapping.depth as i64;
        let b = &mut self.cx.b;
        let first = b.add(self.origin[1], step.first_column);
        let column = b.mul(first, self.b.col_stride);
        let row = b.mul(step.start, self.b.row_stride);
        let origin = b.add(self.b.origin, column);
        let origin = b.add(origin, row);
        let zero = b.int(0);
        let to_memory = Memory::Shared(shared);
        let from = Matrix { origin, ..self.b };
        // Whether every vector of a panel is whole.
        let whole = self.cx.program.divisor(self.facts.size[1]).is_multiple_of(width as u64);
        b.for_loop((zero, step.width, width as u64), 1, &[], |b, panel, _| {
            // Panel number times its size, with panel = number · width.
            let to_panel = b.mul_int(panel, depth);
            b.for_loop((zero, step.length, 1), 4, &[], |b, k, _| {
                let from_row = b.mul(k, from.row_stride);
                let from_row = b.add(from.origin, from_row);
                let to_row = b.mul_int(k, width);
                let to_row = b.add(to_panel, to_row);
                for vector in (0..width).step_by(lanes as usize) {
                    let at = b.add_int(panel, vector);
                    let limit = (!whole).then(|| b.sub(step.width, at));
                    let value = read(b, &from, from_row, at, limit);
                    let value = b.cast(value, Elem::Data(accumulator));
                    let to = b.add_int(to_row, vector);
                    b.store(Place::strided(to_memory, to, 1), &[value], None);
                }
                Vec::new()
            });
            Vec::new()
        });
    }
}

impl Matrix {
    /// The same elements with rows and columns exchanged.
    fn transposed(self) -> Matrix {
        Matrix { row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }
}

/// A vector of elements (row, column..) of a matrix, whose row starts at `row_at`: contiguous if
/// columns are, else a gather. Lanes from `limit` on are 0.
fn read(
    b: &mut KernelBuilder,
    from: &Matrix,
    row_at: ValueId,
    column: ValueId,
    limit: Option<ValueId>,
) -> ValueId {
    let offset = b.mul(column, from.col_stride);
    let base = b.add(row_at, offset);
    let guard = limit.map(|limit| Guard::count(limit, 0.0));
    let place = match b.known(from.col_stride) {
        Some(stride) => Place::strided(from.memory, base, stride),
        None => {
            let lane = b.lane();
            let index = b.mul(lane, from.col_stride);
            Place { memory: from.memory, base, lane_stride: 0, index: Some(index) }
        }
    };
    b.load1(place, guard)
}

/// Copies one row of `count` elements.
fn copy(
    b: &mut KernelBuilder,
    (from, from_at): (&Matrix, ValueId),
    (to, to_at): (&Matrix, ValueId),
    count: ValueId,
    dtype: DType,
) {
    let lanes = u64::from(b.kernel().lanes);
    let zero = b.int(0);
    let whole = whole_part(b, count, lanes);
    let element = |b: &mut KernelBuilder, at: ValueId, limit: Option<ValueId>| {
        let value = read(b, from, from_at, at, limit);
        let value = b.cast(value, Elem::Data(dtype));
        let offset = b.mul(at, to.col_stride);
        let base = b.add(to_at, offset);
        let guard = limit.map(|limit| Guard::count(limit, 0.0));
        b.store(Place::strided(to.memory, base, 1), &[value], guard);
    };
    b.for_loop((zero, whole, lanes), 4, &[], |b, at, _| {
        element(b, at, None);
        Vec::new()
    });
    if b.known(whole).is_some() && b.known(whole) == b.known(count) {
        return;
    }
    let rest = b.sub(count, whole);
    element(b, whole, Some(rest));
}

/// The largest multiple of `unit` that is at most `count`.
pub(super) fn whole_part(b: &mut KernelBuilder, count: ValueId, unit: u64) -> ValueId {
    let divisor = b.int(unit as i64);
    let rest = b.rem(count, divisor);
    b.sub(count, rest)
}
