//! What follows the product, on vectors of a finished strip of rows.

use tilewright_ir::program as ir;

use super::pack::whole_part;
use super::tile::Step;
use super::{CpuMatrix, Matrix};
use crate::kernel::*;
use crate::lower::access::{Frame, Pos};
use crate::lower::{LowerError, Rule};

impl CpuMatrix<'_> {
    /// Stores what the program makes of the sums of `rows` rows over the block's columns.
    pub(super) fn finish(
        &mut self,
        step: &Step,
        first: ValueId,
        rows: u32,
    ) -> Result<(), LowerError> {
        let sums = self.home_matrix(first);
        let lanes = self.lanes();
        let b = &mut self.cx.b;
        let (zero, count) = (b.int(0), b.int(i64::from(rows)));
        let (open_rows, row) = self.open_loop(zero, count, 1);
        let b = &mut self.cx.b;
        let at = b.mul(row, sums.row_stride);
        let at = b.add(sums.origin, at);
        let sums = Matrix { origin: at, ..sums };
        let row = b.add(first, row);
        let whole = whole_part(b, step.width, lanes);
        if b.known(whole) != Some(0) {
            let (open, column) = self.open_loop(zero, whole, lanes);
            self.vector(step, &sums, row, column, None)?;
            self.close_loop(open);
        }
        let b = &mut self.cx.b;
        let rest = b.sub(step.width, whole);
        let divisor = self.cx.program.divisor(self.facts.size[1]);
        if b.known(rest) != Some(0) && !divisor.is_multiple_of(lanes) {
            self.vector(step, &sums, row, whole, Some(rest))?;
        }
        self.close_loop(open_rows);
        Ok(())
    }

    /// One vector at a row and a column of the block.
    fn vector(
        &mut self,
        step: &Step,
        sums: &Matrix,
        row: ValueId,
        column: ValueId,
        limit: Option<ValueId>,
    ) -> Result<(), LowerError> {
        let program = self.cx.program;
        let ir::Op::Store { tensor, coords, value, bounds } = &program.ops[self.facts.store].op
        else {
            return Err(self.cx.error(Rule::Operation, "the matrix facts name no store"));
        };
        let b = &mut self.cx.b;
        let column = b.add(step.first_column, column);
        let at = b.add(sums.origin, column);
        // Where the columns end with a whole vector, the limit is 0 and nothing is touched.
        let guard = limit.map(|limit| Guard::count(limit, 0.0));
        let sum = b.load1(Place::strided(sums.memory, at, 1), guard);
        let at_row = b.add(self.origin[0], row);
        let at_column = b.add(self.origin[1], column);
        let positions =
            vec![(self.axes[0], Pos::Uniform(at_row)), (self.axes[1], Pos::Lanes(at_column))];
        let mut frame = Frame::at(positions, 1);
        frame.inside = true;
        frame.limit = limit;
        frame.memo.insert(self.product, vec![sum]);
        let values = self.cx.eval(*value, &mut frame)?;
        let dims = self.cx.tensor_dims(&mut frame, *tensor, coords, *bounds)?;
        let memory = Memory::Global(self.cx.args.tensor(*tensor));
        let mut access = self.cx.access(&frame, memory, &dims, 1);
        self.cx.write(&mut access, &values);
        Ok(())
    }
}
