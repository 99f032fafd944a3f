//! From the lanes' sums to the output: sets of subgroups meet in shared memory, then what follows
//! the product is evaluated element by element and whole vectors are stored where they fit.

use tilewright_ir::DType;
use tilewright_ir::program as ir;
use tilewright_ir::program::{AxisId, MapOp};

use super::{Context, GpuMatrix, LowerError, Matrix, Position, Rule, VECTOR, piece};
use crate::kernel::*;
use crate::lower::access::{Frame, Pos};

/// Consecutive elements of a row of the output.
pub(super) struct Piece {
    /// Row: what differs from lane to lane, and the rest.
    pub(super) row: [ValueId; 2],
    /// First column, likewise.
    pub(super) column: [ValueId; 2],
    /// Whether the lane has the piece at all.
    pub(super) mask: Option<ValueId>,
    pub(super) sums: Vec<ValueId>,
}

/// How pieces become the output.
pub(super) struct Output<'f> {
    pub(super) facts: &'f tilewright_ir::facts::MatrixFacts,
    pub(super) axes: [AxisId; 2],
    pub(super) product: ir::ValueId,
    /// The value that is stored; `None` for the sums themselves.
    pub(super) stored: Option<ir::ValueId>,
    pub(super) c: Matrix,
    /// M and N.
    pub(super) size: [ValueId; 2],
    /// The rows and columns of a group, all pieces of which may stick out.
    pub(super) block: [u64; 2],
    /// The first row and column that are stored, where a block begins before and ends with the output.
    pub(super) own: [Option<ValueId>; 2],
    /// Whether a piece that starts inside may be stored whole although columns end in it.
    pub(super) padded: bool,
}

impl Output<'_> {
    /// Stores one piece.
    pub(super) fn store(&self, cx: &mut Context<'_>, at: &Piece) -> Result<(), LowerError> {
        let program = cx.program;
        let width = at.sums.len() as u64;
        let divides = |d: usize, by: u64| program.divisor(self.facts.size[d]).is_multiple_of(by);
        let b = &mut cx.b;
        let row = b.add(at.row[0], at.row[1]);
        let column = b.add(at.column[0], at.column[1]);
        let rows = match self.own[0] {
            Some(first) => Some(b.compare(MapOp::Ge, row, first)),
            None => (!divides(0, self.block[0])).then(|| b.compare(MapOp::Lt, row, self.size[0])),
        };
        let rows = b.both(at.mask, rows);
        // A piece is inside as a whole if the row's length is a multiple of it.
        let together = divides(1, width) || self.padded;
        let mut masks = Vec::new();
        for e in 0..width as i64 {
            let test = (!divides(1, self.block[1]) && (e == 0 || !together)).then(|| {
                let column = b.add_int(column, e);
                match self.own[1] {
                    Some(first) => b.compare(MapOp::Ge, column, first),
                    None => b.compare(MapOp::Lt, column, self.size[1]),
                }
            });
            masks.push(match (e, test) {
                (_, Some(_)) => b.both(rows, test),
                (0, None) => rows,
                (_, None) => masks[0],
            });
        }
        let values = match self.stored {
            Some(stored) if stored != self.product => {
                self.epilogue(cx, at, &masks, together, stored)?
            }
            _ => at.sums.clone(),
        };
        let b = &mut cx.b;
        let Matrix { memory, origin, row_stride, col_stride, .. } = self.c;
        let base_row = b.mul(at.row[1], row_stride);
        let base_column = b.mul(at.column[1], col_stride);
        let base = b.add(origin, base_row);
        let base = b.add(base, base_column);
        let lane_row = b.mul(at.row[0], row_stride);
        let lane_column = b.mul(at.column[0], col_stride);
        let index = b.add(lane_row, lane_column);
        let place = |base| Place { memory, base, lane_stride: 0, index: Some(index) };
        let guard = |mask: Option<ValueId>| mask.map(|mask| Guard::mask(mask, 0.0));
        let consecutive = b.known(col_stride) == Some(1);
        if consecutive && together && self.c.has_vectors(width) {
            b.store(place(base), &values, guard(masks[0]));
            return Ok(());
        }
        for (e, (value, mask)) in values.iter().zip(masks).enumerate() {
            let offset = b.mul_int(col_stride, e as i64);
            let base = b.add(base, offset);
            b.store(place(base), &[*value], guard(mask));
        }
        Ok(())
    }

    /// What the program makes of the sums of a piece: at once where it is inside as a whole, so that
    /// what it loads comes in vectors, else element by element.
    fn epilogue(
        &self,
        cx: &mut Context<'_>,
        at: &Piece,
        masks: &[Option<ValueId>],
        together: bool,
        stored: ir::ValueId,
    ) -> Result<Vec<ValueId>, LowerError> {
        let parts = if together { 1 } else { at.sums.len() };
        let width = at.sums.len() / parts.max(1);
        let mut out = Vec::with_capacity(at.sums.len());
        for (part, sums) in at.sums.chunks(width.max(1)).enumerate() {
            let b = &mut cx.b;
            let row = b.add(at.row[0], at.row[1]);
            let column = b.add(at.column[0], at.column[1]);
            let column = b.add_int(column, (part * width) as i64);
            let positions =
                vec![(self.axes[0], Pos::PerLane(row)), (self.axes[1], Pos::Piece(column))];
            let mut frame = Frame::at(positions, width as u32);
            frame.inside = true;
            frame.mask = masks.get(part).copied().flatten();
            frame.memo.insert(self.product, sums.to_vec());
            let values = cx.eval(stored, &mut frame)?;
            let Some(last) = values.last() else {
                return Err(cx.error(Rule::Operation, "an epilogue without a value"));
            };
            out.extend((0..width).map(|v| *values.get(v).unwrap_or(last)));
        }
        Ok(out)
    }
}

impl GpuMatrix<'_> {
    /// Stores the sums of every lane's tile.
    pub(super) fn store(
        &mut self,
        position: &Position,
        sums: Vec<ValueId>,
    ) -> Result<(), LowerError> {
        let slices = self.mapping.slices > 1;
        let output = Output {
            facts: self.facts,
            axes: self.shape.axes,
            product: self.shape.product,
            stored: (!slices).then_some(self.shape.stored),
            c: self.c,
            size: [self.size[0], self.size[1]],
            block: self.mapping.block(),
            own: self.own,
            padded: slices,
        };
        if self.mapping.warps[2] > 1 {
            return self.meet(position, &sums, &output);
        }
        let [rows, columns] = self.mapping.tile;
        // Of lanes that share a tile one stores it.
        let mask = self.lanes_split_depth().then(|| {
            let b = &mut self.cx.b;
            let (lane, zero) = (b.lane(), b.int(0));
            b.compare(MapOp::Eq, lane, zero)
        });
        for i in 0..rows {
            let row = self.place(position, 0, i);
            let width = piece(columns) as u32;
            for j in (0..columns).step_by(width as usize) {
                let column = self.place(position, 1, j);
                let first = (i * columns + j) as usize;
                let sums = sums[first..first + width as usize].to_vec();
                output.store(&mut self.cx, &Piece { row, column, mask, sums })?;
            }
        }
        Ok(())
    }

    /// Row (0) or column (1) number `i` of a lane in the output: what differs from lane to lane,
    /// and the rest.
    fn place(&mut self, position: &Position, which: usize, i: u32) -> [ValueId; 2] {
        let width = piece(self.mapping.tile[which]);
        let (part, rest) = (i64::from(i) / width, i64::from(i) % width);
        let b = &mut self.cx.b;
        let base = b.add(self.origin[which], position.corner[which]);
        let lanes = i64::from(self.mapping.lanes[which]);
        [position.lane[which], b.add_int(base, part * lanes * width + rest)]
    }

    /// Adds the sums of all sets of subgroups in shared memory and stores them.
    fn meet(
        &mut self,
        position: &Position,
        sums: &[ValueId],
        output: &Output<'_>,
    ) -> Result<(), LowerError> {
        let [bm, bn] = self.mapping.block();
        let sets = u64::from(self.mapping.warps[2]);
        let [rows, columns] = self.mapping.tile;
        let plane = (bm * bn) as i64;
        let b = &mut self.cx.b;
        let shared = b.shared("sums", DType::F32, sets * bm, bn, Layout::Plain);
        let memory = Memory::Shared(shared);
        let from = b.mul_int(position.set, plane);
        let corner = b.mul_int(position.corner[0], bn as i64);
        let from = b.add(from, corner);
        let from = b.add(from, position.corner[1]);
        let index = b.mul_int(position.lane[0], bn as i64);
        let index = b.add(index, position.lane[1]);
        let [piece_m, piece_n] = [piece(rows), piece(columns)];
        let alone = self.lanes_split_depth();
        let b = &mut self.cx.b;
        for i in 0..i64::from(rows) {
            let row = i / piece_m * i64::from(self.mapping.lanes[0]) * piece_m + i % piece_m;
            for j in (0..i64::from(columns)).step_by(piece_n as usize) {
                let column = j * i64::from(self.mapping.lanes[1]);
                let base = b.add_int(from, row * bn as i64 + column);
                let place = Place { memory, base, lane_stride: 0, index: Some(index) };
                let first = (i * i64::from(columns) + j) as usize;
                let sums = &sums[first..first + piece_n as usize];
                let guard = alone.then(|| Guard::count(b.int(sums.len() as i64), 0.0));
                b.store(place, sums, guard);
            }
        }
        b.barrier(self.barrier);
        // Piece number p of the row-major block belongs to thread p mod T.
        let threads = self.mapping.threads();
        let width = VECTOR.min(bn).min((bm * bn / threads).max(1)).max(1);
        let pieces = bm * bn / width;
        let per_row = (bn / width) as i64;
        let subgroup = b.subgroup_id();
        let thread = b.mul_int(subgroup, i64::from(super::LANES));
        let lane = b.lane();
        let thread = b.add(thread, lane);
        let mask = (pieces < threads).then(|| {
            let all = b.int(pieces as i64);
            b.compare(MapOp::Lt, thread, all)
        });
        let across = b.int(per_row);
        let (row, column) = (b.div(thread, across), b.rem(thread, across));
        let column = b.mul_int(column, width as i64);
        let lane_at = b.mul_int(row, bn as i64);
        let lane_at = b.add(lane_at, column);
        for first in (0..pieces).step_by(threads as usize) {
            let b = &mut self.cx.b;
            // Thread number and `first` are powers of two or less than a row: rows add exactly.
            let (skip_rows, skip_columns) =
                (first as i64 / per_row, first as i64 % per_row * width as i64);
            let at = skip_rows * bn as i64 + skip_columns;
            let mut total: Option<Vec<ValueId>> = None;
            for set in 0..sets as i64 {
                let base = b.int(set * plane + at);
                let place = Place { memory, base, lane_stride: 0, index: Some(lane_at) };
                let part = b.load(place, width as u32, mask.map(|m| Guard::mask(m, 0.0)));
                total = Some(match total {
                    None => part,
                    Some(total) => {
                        total.iter().zip(part).map(|(a, c)| b.map(MapOp::Add, &[*a, c])).collect()
                    }
                });
            }
            let row = [row, b.add_int(self.origin[0], skip_rows)];
            let column = [column, b.add_int(self.origin[1], skip_columns)];
            let sums = total.unwrap_or_default();
            output.store(&mut self.cx, &Piece { row, column, mask, sums })?;
        }
        Ok(())
    }
}
