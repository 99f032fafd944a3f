//! What follows the product, on vectors of a finished tile.

use tilewright_ir::program as ir;

use super::CpuMatrix;
use super::tile::Tile;
use crate::kernel::*;
use crate::lower::access::{Frame, Pos};
use crate::lower::{LowerError, Rule};

impl CpuMatrix<'_> {
    /// Writes the finished sums to scratch and stores what the program makes of them, vector by
    /// vector.
    pub(super) fn finish(&mut self, tile: &Tile, sums: ValueId) -> Result<(), LowerError> {
        let Some(shared) = self.finished else {
            return Err(self.cx.error(Rule::Operation, "an epilogue without scratch"));
        };
        let memory = Memory::Shared(shared);
        let width = self.tile_columns() as i64;
        let b = &mut self.cx.b;
        let (zero, one, stride) = (b.int(0), b.int(1), b.int(width));
        b.fragment_store(sums, View::whole(memory, zero, stride, one));
        let rows = b.int(i64::from(tile.rows));
        let (open, row) = self.open_loop(zero, rows, 1);
        for vector in 0..tile.vectors {
            let offset = i64::from(vector) * i64::from(self.mapping.lanes);
            let at = self.cx.b.mul_int(row, width);
            let at = self.cx.b.add_int(at, offset);
            let sum = self.cx.b.load1(Place::strided(memory, at, 1), None);
            self.store_vector(tile, row, offset, sum)?;
        }
        self.close_loop(open);
        Ok(())
    }

    fn store_vector(
        &mut self,
        tile: &Tile,
        row: ValueId,
        offset: i64,
        sum: ValueId,
    ) -> Result<(), LowerError> {
        let program = self.cx.program;
        let ir::Op::Store { tensor, coords, value, bounds } = &program.ops[self.facts.store].op
        else {
            return Err(self.cx.error(Rule::Operation, "the matrix facts name no store"));
        };
        let b = &mut self.cx.b;
        let group_row = b.add(self.origin[0], tile.row);
        let at_row = b.add(group_row, row);
        let group_column = b.add(self.origin[1], tile.column);
        let at_column = b.add_int(group_column, offset);
        let positions =
            vec![(self.axes[0], Pos::Uniform(at_row)), (self.axes[1], Pos::Lanes(at_column))];
        let mut frame = Frame::at(positions, 1);
        frame.inside = true;
        let lanes = i64::from(self.mapping.lanes);
        frame.limit = tile.limit.and_then(|limit| match b.known(limit) {
            Some(limit) if limit >= offset + lanes => None,
            _ => Some(b.add_int(limit, -offset)),
        });
        frame.memo.insert(self.product, vec![sum]);
        let values = self.cx.eval(*value, &mut frame)?;
        let dims = self.cx.tensor_dims(&mut frame, *tensor, coords, *bounds)?;
        let memory = Memory::Global(self.cx.args.tensor(*tensor));
        let mut access = self.cx.access(&frame, memory, &dims, 1);
        self.cx.write(&mut access, &values);
        Ok(())
    }
}
