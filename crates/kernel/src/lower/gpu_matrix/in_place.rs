//! Thin products, whose operands are read where they lie: each element of the longer one is needed
//! once, so a copy in shared memory would only be passed on.
//!
//! Either the lanes of a subgroup share its tile and split K (`lanes` is 1×1): both operands have
//! consecutive K, of which a lane takes vectors, and the lanes' sums meet at the end. Or the lanes
//! lie along the longer side of the output, each with columns (or rows) of its own, and what the
//! other operand has of one K is the same for all of them. A trip loads everything that it needs,
//! then multiplies.

use tilewright_ir::DType;
use tilewright_ir::program::{MapOp, ReduceOp};

use super::{Depth, GpuMatrix, LANES, LowerError, Matrix, Position, Rule};
use crate::kernel::*;
use crate::lower::args::stride_divisor;

/// Operands as x by K, and where the group's subgroup stands.
struct Reader<'p> {
    operands: [Matrix; 2],
    position: &'p Position,
    /// Which operand the lanes lie along; `None` where they split K.
    along: Option<usize>,
    /// Elements of K that a subgroup takes in one trip.
    share: u64,
}

/// Elements of A and B by row (or column) and K of a trip.
type Elements = [Vec<Vec<ValueId>>; 2];

impl GpuMatrix<'_> {
    /// Whether operands are read where they lie.
    pub(super) fn is_in_place(&self) -> bool {
        self.mapping.stages == 1
    }

    /// Whether the lanes of a subgroup share its tile.
    pub(super) fn lanes_split_depth(&self) -> bool {
        self.mapping.lanes == [1, 1]
    }

    /// Products over the group's part of K: the sums of every lane's tile, row by row.
    pub(super) fn in_place(
        &mut self,
        operands: [Matrix; 2],
        position: &Position,
        depth: &Depth,
    ) -> Result<Vec<ValueId>, LowerError> {
        let along = match self.mapping.lanes {
            [1, 1] => None,
            [1, _] => Some(1),
            _ => Some(0),
        };
        let step = u64::from(self.mapping.depth);
        let reader =
            Reader { operands, position, along, share: step / u64::from(self.mapping.warps[2]) };
        if along.is_none() {
            let width = u64::from(self.mapping.copy[0]);
            if (0..2).any(|which| !self.has_vectors_of_depth(&operands[which], which, width)) {
                let detail = format!("vectors of {width} along K, which isn't proved consecutive");
                return Err(self.cx.error(Rule::UnprovedFact, detail));
            }
        }
        let [rows, columns] = self.mapping.tile;
        let b = &mut self.cx.b;
        let (zero, unit) = (b.int(0), b.int(step as i64));
        let span = b.sub(depth.end, depth.first);
        // The last slices may have nothing.
        let span = b.max(span, zero);
        let (full, rest) = (b.div(span, unit), b.rem(span, unit));
        let nothing = b.literal(0.0, DType::F32);
        let zeros = vec![nothing; (rows * columns) as usize];
        let trips = self.cx.begin((zero, full, 1), 1, &zeros);
        let mut sums = zeros;
        if !trips.is_never() {
            let first = self.cx.b.mul_int(trips.index, step as i64);
            let first = self.cx.b.add(depth.first, first);
            let next = self.trip(&reader, first, None, &trips.inner.clone());
            sums = self.cx.end(trips, next);
        }
        if !depth.whole && self.cx.b.known(rest) != Some(0) {
            let b = &mut self.cx.b;
            let first = b.mul(full, unit);
            let first = b.add(depth.first, first);
            let some = b.compare(MapOp::Lt, zero, rest);
            if b.known(some) == Some(1) {
                sums = self.trip(&reader, first, Some(depth.end), &sums);
            } else {
                let mut open = b.begin_if(some);
                let next = self.trip(&reader, first, Some(depth.end), &sums);
                self.cx.b.begin_else(&mut open, &next);
                sums = self.cx.b.end_if(open, &sums);
            }
        }
        if along.is_none() {
            let fold = Collective::Reduce(ReduceOp::Add);
            sums = sums.into_iter().map(|sum| self.cx.b.collective(fold, sum)).collect();
        }
        Ok(sums)
    }

    /// One trip from K `first` on, as far as `end` where it may lie before the trip's.
    fn trip(
        &mut self,
        reader: &Reader<'_>,
        first: ValueId,
        end: Option<ValueId>,
        sums: &[ValueId],
    ) -> Vec<ValueId> {
        let own = self.cx.b.mul_int(reader.position.set, reader.share as i64);
        let first = self.cx.b.add(first, own);
        let elements: Elements = [0, 1].map(|which| match reader.along {
            None => self.split(reader, which, first, end),
            Some(along) if along == which => self.spread(reader, which, first, end),
            Some(_) => self.common(reader, which, first, end),
        });
        let [a, b] = &elements;
        let mut sums = sums.to_vec();
        for (i, a) in a.iter().enumerate() {
            for (j, b) in b.iter().enumerate() {
                let at = i * self.mapping.tile[1] as usize + j;
                for (x, y) in a.iter().zip(b) {
                    sums[at] = self.cx.b.fma(*x, *y, sums[at]);
                }
            }
        }
        sums
    }

    /// The subgroup's first row (0) or column (1).
    fn corner(&mut self, reader: &Reader<'_>, which: usize) -> ValueId {
        self.cx.b.add(self.origin[which], reader.position.corner[which])
    }

    /// Whether K is consecutive in an operand, and vectors of `width` of it are aligned.
    fn has_vectors_of_depth(&self, matrix: &Matrix, which: usize, width: u64) -> bool {
        let program = self.cx.program;
        let consecutive = self.cx.b.known(matrix.col_stride) == Some(1);
        let fact = if which == 0 { &self.facts.a } else { &self.facts.b };
        // The only row begins where the matrix does.
        let divisor = match program.known(self.facts.size[which]) {
            Some(1) if self.batch.is_none() => 0,
            Some(1) => stride_divisor(program, fact.tensor, 0),
            _ => matrix.divisor,
        };
        consecutive && divisor.is_multiple_of(width) && matrix.align.is_multiple_of(width)
    }

    /// Whether rows or columns end inside a group's block.
    fn is_ragged(&self, which: usize) -> bool {
        let divisor = self.cx.program.divisor(self.facts.size[which]);
        !divisor.is_multiple_of(self.mapping.block()[which])
    }

    /// Where row (or column) `i` of the tile begins in its operand, and whether it is inside, if that
    /// isn't known.
    fn row(&mut self, reader: &Reader<'_>, which: usize, i: u32) -> (ValueId, Option<ValueId>) {
        let Matrix { origin, row_stride, .. } = reader.operands[which];
        let corner = self.corner(reader, which);
        let ragged = self.is_ragged(which);
        let b = &mut self.cx.b;
        let x = b.add_int(corner, i.into());
        let inside = ragged.then(|| b.compare(MapOp::Lt, x, self.size[which]));
        let row = b.mul(x, row_stride);
        (b.add(origin, row), inside)
    }

    /// `limit` where the condition holds, else 0.
    fn unless(&mut self, limit: ValueId, holds: Option<ValueId>) -> ValueId {
        let b = &mut self.cx.b;
        match holds {
            None => limit,
            Some(holds) => {
                let zero = b.int(0);
                b.map(MapOp::Select, &[holds, limit, zero])
            }
        }
    }

    /// Each lane's vectors of K, for every row of the tile: lanes split K.
    fn split(
        &mut self,
        reader: &Reader<'_>,
        which: usize,
        first: ValueId,
        end: Option<ValueId>,
    ) -> Vec<Vec<ValueId>> {
        let memory = reader.operands[which].memory;
        let width = self.mapping.copy[which];
        let chunk = u64::from(LANES * width);
        let mut out = Vec::new();
        for i in 0..self.mapping.tile[which] {
            let (row, inside) = self.row(reader, which, i);
            let mut elements = Vec::new();
            for at in (0..reader.share).step_by(chunk as usize) {
                let b = &mut self.cx.b;
                let k = b.add_int(first, at as i64);
                let base = b.add(row, k);
                let limit = match (end, inside) {
                    (None, None) => None,
                    (Some(end), _) => Some(b.sub(end, k)),
                    (None, Some(_)) => Some(b.int(chunk as i64)),
                };
                let limit = limit.map(|limit| self.unless(limit, inside));
                let guard = limit.map(|limit| Guard::count(limit, 0.0));
                let place = Place::strided(memory, base, width.into());
                elements.extend(self.cx.b.load(place, width, guard));
            }
            out.push(elements);
        }
        out
    }

    /// Each lane's own rows or columns, for every K of the trip: consecutive ones of consecutive
    /// lanes.
    fn spread(
        &mut self,
        reader: &Reader<'_>,
        which: usize,
        first: ValueId,
        end: Option<ValueId>,
    ) -> Vec<Vec<ValueId>> {
        let matrix = reader.operands[which];
        let Matrix { memory, origin, row_stride, col_stride, .. } = matrix;
        let tile = self.mapping.tile[which];
        let corner = self.corner(reader, which);
        let ragged = self.is_ragged(which);
        let left = ragged.then(|| self.cx.b.sub(self.size[which], corner));
        let consecutive = self.cx.b.known(row_stride) == Some(1);
        let whole = tile > 1
            && self.mapping.copy[which] == tile
            && consecutive
            && matrix.has_vectors(tile.into());
        let mut out = vec![Vec::new(); tile as usize];
        for at in 0..reader.share as i64 {
            let b = &mut self.cx.b;
            let k = b.add_int(first, at);
            let inside = end.map(|end| b.compare(MapOp::Lt, k, end));
            let all = b.int(i64::from(LANES * tile));
            let limit = match (left, inside) {
                (None, None) => None,
                (left, inside) => Some(self.unless(left.unwrap_or(all), inside)),
            };
            let b = &mut self.cx.b;
            let offset = b.mul(k, col_stride);
            let base = b.add(origin, offset);
            if whole {
                let base = b.add(base, corner);
                let guard = limit.map(|limit| Guard::count(limit, 0.0));
                let loaded = b.load(Place::strided(memory, base, tile.into()), tile, guard);
                for (list, value) in out.iter_mut().zip(loaded) {
                    list.push(value);
                }
                continue;
            }
            for (v, list) in out.iter_mut().enumerate() {
                let b = &mut self.cx.b;
                let x = b.add_int(corner, v as i64);
                let x = b.mul(x, row_stride);
                let base = b.add(base, x);
                let place = match b.known(row_stride) {
                    Some(stride) => Place::strided(memory, base, stride * i64::from(tile)),
                    None => {
                        let lane = b.lane();
                        let lane = b.mul_int(lane, tile.into());
                        let index = Some(b.mul(lane, row_stride));
                        Place { memory, base, lane_stride: 0, index }
                    }
                };
                // l·tile + v < limit  ⇔  l < ⌈(limit − v)/tile⌉
                let guard = limit.map(|limit| {
                    let up = b.add_int(limit, i64::from(tile) - 1 - v as i64);
                    let by = b.int(tile.into());
                    Guard::count(b.div(up, by), 0.0)
                });
                list.push(b.load1(place, guard));
            }
        }
        out
    }

    /// What all lanes need of the other operand: every row of the tile and K of the trip.
    fn common(
        &mut self,
        reader: &Reader<'_>,
        which: usize,
        first: ValueId,
        end: Option<ValueId>,
    ) -> Vec<Vec<ValueId>> {
        let matrix = reader.operands[which];
        let Matrix { memory, col_stride, .. } = matrix;
        let width = u64::from(self.mapping.copy[which]).max(1);
        let width = match self.has_vectors_of_depth(&matrix, which, width) {
            true if reader.share.is_multiple_of(width) => width,
            _ => 1,
        };
        let mut out = Vec::new();
        for i in 0..self.mapping.tile[which] {
            let (row, inside) = self.row(reader, which, i);
            let mut elements = Vec::new();
            for at in (0..reader.share as i64).step_by(width as usize) {
                let b = &mut self.cx.b;
                let k = b.add_int(first, at);
                let offset = b.mul(k, col_stride);
                let base = b.add(row, offset);
                let below = end.map(|end| b.compare(MapOp::Lt, k, end));
                let guard = b.both(inside, below).map(|mask| Guard::mask(mask, 0.0));
                elements.extend(b.load(Place::uniform(memory, base), width as u32, guard));
            }
            out.push(elements);
        }
        out
    }
}
