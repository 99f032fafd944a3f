//! Register tiles over one block of columns and one K step.

use tilewright_ir::program::MapOp;

use super::pack::whole_part;
use super::{CpuMatrix, Home, Matrix};
use crate::kernel::*;
use crate::lower::LowerError;

/// One block of columns and one K step. Columns are counted from the group's first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// First column of the block.
    pub first_column: ValueId,
    /// Columns of the block.
    pub width: ValueId,
    /// First K element.
    pub start: ValueId,
    /// K elements.
    pub length: ValueId,
}

/// One register tile. Rows and columns are counted from the group's first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    /// First row.
    pub row: ValueId,
    /// Rows.
    pub rows: u32,
    /// First column.
    pub column: ValueId,
    /// Vectors per row.
    pub vectors: u32,
    /// Valid columns, if not all.
    pub limit: Option<ValueId>,
}

impl CpuMatrix<'_> {
    /// All tiles of the block, rows outside.
    pub(super) fn tiles(&mut self, step: &Step) -> Result<(), LowerError> {
        let zero = self.cx.b.int(0);
        let unit = self.tile_rows();
        let rows = self.extent[0];
        let whole = self.whole_rows(rows, unit);
        let (open, row) = self.open_loop(zero, whole, unit);
        let none = self.cx.b.known(whole) == Some(0);
        if !none {
            self.row_of_tiles(step, row, unit as u32)?;
        }
        self.close_loop(open);
        self.remaining_rows(step, whole)
    }

    /// Rows in whole tiles. Where M is known, only the last group can have a remainder, and it
    /// is M mod unit.
    fn whole_rows(&mut self, rows: ValueId, unit: u64) -> ValueId {
        if self.cx.program.divisor(self.facts.size[0]).is_multiple_of(unit) {
            return rows;
        }
        whole_part(&mut self.cx.b, rows, unit)
    }

    fn remaining_rows(&mut self, step: &Step, whole: ValueId) -> Result<(), LowerError> {
        let unit = self.tile_rows();
        let rows = self.extent[0];
        let rest = self.cx.b.sub(rows, whole);
        if self.cx.b.known(rest) == Some(0) {
            return Ok(());
        }
        if let Some(size) = self.cx.program.known(self.facts.size[0]) {
            let exact = (size % unit) as u32;
            if exact == 0 {
                return Ok(());
            }
            let zero = self.cx.b.int(0);
            let some = self.cx.b.compare(MapOp::Gt, rest, zero);
            return self.when(some, |this| this.row_of_tiles(step, whole, exact));
        }
        // Powers of two below the tile's rows; each takes place at most once.
        let divisor = self.cx.program.divisor(self.facts.size[0]);
        let mut power = (unit.next_power_of_two() / 2).max(1);
        if power == unit {
            power /= 2;
        }
        let mut first = whole;
        while power > 0 && !divisor.is_multiple_of(2 * power) {
            let left = self.cx.b.sub(rows, first);
            let part = whole_part(&mut self.cx.b, left, power);
            let end = self.cx.b.add(first, part);
            let (open, row) = self.open_loop(first, end, power);
            self.row_of_tiles(step, row, power as u32)?;
            self.close_loop(open);
            first = end;
            power /= 2;
        }
        Ok(())
    }

    /// The tiles of `rows` rows over the block's columns, and what follows them.
    fn row_of_tiles(&mut self, step: &Step, row: ValueId, rows: u32) -> Result<(), LowerError> {
        self.row_of_products(step, row, rows)?;
        if !self.has_epilogue() {
            return Ok(());
        }
        if self.single_step() {
            return self.finish(step, row, rows);
        }
        let end = self.cx.b.add(step.start, step.length);
        let last = self.cx.b.compare(MapOp::Ge, end, self.size[2]);
        self.when(last, |this| this.finish(step, row, rows))
    }

    fn row_of_products(&mut self, step: &Step, row: ValueId, rows: u32) -> Result<(), LowerError> {
        let unit = self.tile_columns();
        let vectors = self.mapping.tile[1];
        let lanes = self.lanes();
        let zero = self.cx.b.int(0);
        let divides = self.cx.program.divisor(self.facts.size[1]).is_multiple_of(unit);
        let whole = if divides { step.width } else { whole_part(&mut self.cx.b, step.width, unit) };
        if self.cx.b.known(whole) != Some(0) {
            let (open, column) = self.open_loop(zero, whole, unit);
            let column = self.cx.b.add(step.first_column, column);
            self.tile(step, &Tile { row, rows, column, vectors, limit: None })?;
            self.close_loop(open);
        }
        let rest = self.cx.b.sub(step.width, whole);
        if divides || self.cx.b.known(rest) == Some(0) {
            return Ok(());
        }
        let column = self.cx.b.add(step.first_column, whole);
        if let Some(size) = self.cx.program.known(self.facts.size[1]) {
            // Only the last block can have a remainder, and it is N mod unit.
            let exact = size % unit;
            let vectors = exact.div_ceil(lanes) as u32;
            let limit = (!exact.is_multiple_of(lanes)).then(|| self.cx.b.int(exact as i64));
            let some = self.cx.b.compare(MapOp::Gt, rest, zero);
            let tile = Tile { row, rows, column, vectors, limit };
            return self.when(some, |this| this.tile(step, &tile));
        }
        let (open, offset) = self.open_loop(zero, rest, lanes);
        let column = self.cx.b.add(column, offset);
        let limit = Some(self.cx.b.sub(rest, offset));
        self.tile(step, &Tile { row, rows, column, vectors: 1, limit })?;
        self.close_loop(open);
        Ok(())
    }

    /// Runs `body` where a condition holds.
    pub(super) fn when(
        &mut self,
        condition: ValueId,
        body: impl FnOnce(&mut Self) -> Result<(), LowerError>,
    ) -> Result<(), LowerError> {
        match self.cx.b.known(condition) {
            Some(0) => Ok(()),
            Some(_) => body(self),
            None => {
                let open = self.cx.b.begin_if(condition);
                body(self)?;
                self.cx.b.end_if(open, &[]);
                Ok(())
            }
        }
    }

    /// One tile: sums so far, plus the step's product.
    fn tile(&mut self, step: &Step, tile: &Tile) -> Result<(), LowerError> {
        let atom = Atom::OuterProduct { rows: tile.rows, vectors: tile.vectors };
        let ty = Type::fragment(atom, FragmentRole::Accumulator, self.facts.accumulator);
        let zero = self.cx.b.int(0);
        let sums = if self.single_step() {
            self.cx.b.fragment_fill(ty, 0.0)
        } else {
            let view = self.home_view(tile);
            let first = self.cx.b.compare(MapOp::Eq, step.start, zero);
            let sums = self.cx.b.if_else(
                first,
                |b| vec![b.fragment_fill(ty, 0.0)],
                |b| vec![b.fragment_load(ty, view)],
            );
            sums[0]
        };
        let (a, b) = (self.left(step, tile), self.right(step, tile));
        let depth = Some(step.length);
        let sums = self.cx.b.mma(Operand::View(a), Operand::View(b), sums, depth);
        let view = self.home_view(tile);
        if self.mapping.stream {
            self.cx.b.fragment_stream(sums, view);
        } else {
            self.cx.b.fragment_store(sums, view);
        }
        Ok(())
    }

    /// The sums of whole vectors (scratch) or of the tile's columns (output).
    fn home_view(&mut self, tile: &Tile) -> View {
        let home = self.home_matrix(tile.row);
        let limit = if matches!(self.home, Home::Output) { tile.limit } else { None };
        let zero = self.cx.b.int(0);
        View { cols: limit, ..self.view(&home, zero, tile.column) }
    }

    /// The matrix that holds the sums, from a row and the group's first column on.
    pub(super) fn home_matrix(&mut self, row: ValueId) -> Matrix {
        match self.home {
            Home::Output => {
                let row = self.cx.b.add(self.origin[0], row);
                let c = self.c;
                let base = self.view(&c, row, self.origin[1]).base;
                Matrix { origin: base, ..c }
            }
            Home::Scratch(shared) => {
                let single = self.single_step();
                let b = &mut self.cx.b;
                let (zero, one) = (b.int(0), b.int(1));
                let row_stride = b.int(b.kernel().shared[shared].cols as i64);
                let origin = if single { zero } else { b.mul(row, row_stride) };
                let memory = Memory::Shared(shared);
                Matrix { memory, origin, row_stride, col_stride: one }
            }
        }
    }

    /// The rows of A.
    fn left(&mut self, step: &Step, tile: &Tile) -> View {
        match self.packed_a {
            Some(shared) => {
                let matrix = self.packed_a_matrix(shared);
                let zero = self.cx.b.int(0);
                self.view(&matrix, tile.row, zero)
            }
            None => {
                let row = self.cx.b.add(self.origin[0], tile.row);
                let a = self.a;
                self.view(&a, row, step.start)
            }
        }
    }

    /// The columns of B.
    fn right(&mut self, step: &Step, tile: &Tile) -> View {
        match self.packed_b {
            Some(shared) => {
                let depth = self.mapping.depth as i64;
                let b = &mut self.cx.b;
                // Panel p = column / width starts at p·depth·width. Beyond the last whole panel
                // a single vector may start inside a panel.
                let width = i64::from(self.mapping.tile[1]) * i64::from(self.mapping.lanes);
                let column = b.sub(tile.column, step.first_column);
                let unit = b.int(width);
                let inside = if tile.limit.is_some() && b.known(self.size[1]).is_none() {
                    b.rem(column, unit)
                } else {
                    b.int(0)
                };
                let panel = b.sub(column, inside);
                let base = b.mul_int(panel, depth);
                let base = b.add(base, inside);
                let one = b.int(1);
                View::whole(Memory::Shared(shared), base, unit, one)
            }
            None => {
                let column = self.cx.b.add(self.origin[1], tile.column);
                let b = self.b;
                View { cols: tile.limit, ..self.view(&b, step.start, column) }
            }
        }
    }

    fn view(&mut self, matrix: &Matrix, row: ValueId, column: ValueId) -> View {
        let b = &mut self.cx.b;
        let row = b.mul(row, matrix.row_stride);
        let column = b.mul(column, matrix.col_stride);
        let base = b.add(matrix.origin, row);
        let base = b.add(base, column);
        View::whole(matrix.memory, base, matrix.row_stride, matrix.col_stride)
    }
}
