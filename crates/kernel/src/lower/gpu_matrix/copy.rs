//! The way of an operand from global memory to the ring of shared buffers.
//!
//! Both operands lie in shared memory with K outermost: element (x, k), x a row of A or a column
//! of B, is at `k·pitch + x`. A subgroup copies patches of `patch_k` × `patch_x` elements. Where x
//! is innermost in global memory too, a patch is a stretch of a row, and a lane copies as many
//! consecutive elements as the mapping says. Where K is innermost, a patch has 8 elements of K
//! (32 bytes, a sector) by 4 rows, one element per lane; `pitch` is an odd multiple of 4, so that
//! the 32 elements go to 32 banks.
//!
//! Or K stays innermost, and lanes copy and read vectors of it: element (x, k) is then at
//! `slot(x)·pitch + k`. Of the p consecutive x that are one piece of a lane the first ones of all
//! pieces come first, then the second ones: neighbouring lanes, which read the same one of their
//! pieces, read neighbouring slots. `pitch` is an odd number of vectors, so that eight of those lie
//! in all banks.

use tilewright_ir::DType;
use tilewright_ir::program::MapOp;

use super::{Depth, GpuMatrix, LANES, LowerError, Matrix, Position, Rule, piece};
use crate::builder::KernelBuilder;
use crate::kernel::*;

/// An operand and its ring of shared buffers.
#[derive(Debug)]
pub(super) struct Staged {
    matrix: Matrix,
    pub(super) shared: SharedId,
    /// Elements from one K to the next in shared memory.
    pub(super) pitch: u64,
    /// Elements from one stage to the next.
    pub(super) stage: u64,
    /// Elements per lane and copy.
    width: u32,
    /// The patches of a subgroup: their constant part of x and k.
    patches: Vec<Patch>,
    /// What differs from subgroup to subgroup, and from lane to lane.
    subgroup: [ValueId; 2],
    lane: [ValueId; 2],
    /// Whether some lanes are beyond the step's K.
    surplus: bool,
    /// Vectors of K: the elements of a piece, and the pieces of the block.
    pieces: Option<[u64; 2]>,
    /// Elements of K per step.
    depth: u64,
}

#[derive(Clone, Copy, Debug)]
struct Patch {
    x: u64,
    k: u64,
    /// Whether the lane's x is inside the matrix; `None`: all are.
    inside: Option<ValueId>,
}

/// Where copies of one step come from and go to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    /// First K of the step.
    pub(super) k: ValueId,
    /// K times the operand's K stride: offset of the step in the matrix.
    pub(super) offset: ValueId,
    /// First element of the stage in the shared buffer.
    pub(super) stage: ValueId,
    /// Whether the step surely ends within K.
    pub(super) whole: bool,
}

impl Staged {
    /// Declares the ring of operand A (0) or B (1) and deals out its patches. `matrix` has x as
    /// rows and k as columns.
    pub(super) fn new(
        this: &mut GpuMatrix<'_>,
        which: usize,
        matrix: Matrix,
        depth: &Depth,
    ) -> Result<Staged, LowerError> {
        let extent = this.mapping.block()[which];
        let steps = u64::from(this.mapping.depth);
        let width = this.mapping.copy[which];
        let b = &mut this.cx.b;
        let unit = |v: ValueId| b.known(v) == Some(1);
        // Where neither is proved consecutive, elements are copied one by one in either order.
        let turned = !unit(matrix.row_stride);
        if width != 1 {
            let divides = |d: usize| {
                this.cx.program.divisor(this.facts.size[d]).is_multiple_of(u64::from(width))
            };
            // What is consecutive in memory: K, or rows (columns).
            let (stride, inner) =
                if turned { (matrix.col_stride, 2) } else { (matrix.row_stride, which) };
            let consecutive = this.cx.b.known(stride) == Some(1);
            if width != 4 || !consecutive || !matrix.has_vectors(4) || !divides(inner) {
                let name = ["A", "B"][which];
                let detail = format!("copies of {width} elements of {name}");
                return Err(this.cx.error(Rule::UnprovedFact, detail));
            }
            if turned && !(this.mapping.depth / this.mapping.warps[2]).is_multiple_of(width) {
                let detail = format!("a step of {steps} for copies of {width} along K");
                return Err(this.cx.error(Rule::ExactCover, detail));
            }
            if extent < 4 && !turned {
                let detail = format!("a block of {extent} for copies of {width}");
                return Err(this.cx.error(Rule::ExactCover, detail));
            }
        }
        let subgroups = u64::from(this.mapping.warps.iter().product::<u32>());
        let wide = u64::from(width);
        let lanes = u64::from(LANES);
        let piece = piece(this.mapping.tile[which]) as u64;
        let pieces = (turned && width > 1).then_some([piece, extent / piece]);
        let lanes_x = match (pieces, turned) {
            // At most 8 vectors of K: 128 bytes.
            (Some(_), _) => extent.min(lanes / steps.div_ceil(wide).clamp(1, 8)),
            (_, true) => extent.min(4),
            _ => (extent / wide).min(lanes),
        };
        let lanes_k = lanes / lanes_x;
        let [patch_x, patch_k] = match turned {
            true => [lanes_x, lanes_k * wide],
            false => [lanes_x * wide, lanes_k],
        };
        // Patches of the step, K first.
        let (across, along) = (extent / patch_x, steps.div_ceil(patch_k));
        let total = across * along;
        let b = &mut this.cx.b;
        let id = b.subgroup_id();
        let lane = b.lane();
        let (n, zero) = (b.int(if turned { lanes_k } else { lanes_x } as i64), b.int(0));
        let (low, high) = (b.rem(lane, n), b.div(lane, n));
        let low = b.mul_int(low, wide as i64);
        let lane = if turned { [high, low] } else { [low, high] };
        let mut patches = Vec::new();
        let scaled = |b: &mut KernelBuilder, x: ValueId, k: ValueId| {
            [b.mul_int(x, patch_x as i64), b.mul_int(k, patch_k as i64)]
        };
        // Patch number i of subgroup w is i·W + w, K first.
        let subgroup = if subgroups > total {
            // More subgroups than patches: the last ones have nothing but rows beyond the step.
            patches.push((0, 0));
            let n = b.int(across as i64);
            let (x, k) = (b.rem(id, n), b.div(id, n));
            scaled(b, x, k)
        } else if subgroups <= along {
            let per = along / subgroups;
            for i in 0..total / subgroups {
                patches.push((i / per * patch_x, i % per * subgroups * patch_k));
            }
            scaled(b, zero, id)
        } else {
            for i in 0..total / subgroups {
                patches.push((i * (subgroups / along) * patch_x, 0));
            }
            let n = b.int(along as i64);
            let (k, x) = (b.rem(id, n), b.div(id, n));
            scaled(b, x, k)
        };
        // What of K is copied; more than the step where there are too many lanes.
        let copied = patch_k * if subgroups <= total { along } else { subgroups / across };
        let (rows, pitch) = match pieces {
            Some(_) => (extent, wide * ((copied / wide) | 1)),
            None => (copied, if turned && extent > 4 { extent + 4 } else { extent }),
        };
        let stage = rows * pitch;
        let stages = u64::from(this.mapping.stages);
        let shared = b.shared(["a", "b"][which], DType::F32, stages * rows, pitch, Layout::Plain);
        let whole = this.cx.program.divisor(this.facts.size[which]).is_multiple_of(extent)
            || this.own[which].is_some();
        let patches = patches
            .into_iter()
            .map(|(x, k)| {
                let b = &mut this.cx.b;
                let inside = (!whole).then(|| {
                    let at = b.add(this.origin[which], subgroup[0]);
                    let at = b.add(at, lane[0]);
                    let at = b.add_int(at, x as i64);
                    b.compare(MapOp::Lt, at, this.size[which])
                });
                Patch { x, k, inside }
            })
            .collect();
        let b = &mut this.cx.b;
        let start = b.mul(this.origin[which], matrix.row_stride);
        let begin = b.mul(depth.first, matrix.col_stride);
        let start = b.add(start, begin);
        let matrix = Matrix { origin: b.add(matrix.origin, start), ..matrix };
        Ok(Staged {
            matrix,
            shared,
            pitch,
            stage,
            width,
            patches,
            subgroup,
            lane,
            surplus: copied > steps,
            pieces,
            depth: steps,
        })
    }

    /// Copies per step.
    pub(super) fn copies(&self) -> u32 {
        self.patches.len() as u32
    }

    /// Offset in the matrix of a K, counted from the group's first.
    pub(super) fn offset(&self, this: &mut GpuMatrix<'_>, k: i64) -> ValueId {
        this.cx.b.mul_int(self.matrix.col_stride, k)
    }

    /// Starts the copies of one step: their tokens.
    pub(super) fn issue(
        &self,
        this: &mut GpuMatrix<'_>,
        at: &Target,
        depth: &Depth,
    ) -> Vec<ValueId> {
        let b = &mut this.cx.b;
        let [subgroup_x, subgroup_k] = self.subgroup;
        let [lane_x, lane_k] = self.lane;
        let Matrix { memory, origin, row_stride, col_stride, .. } = self.matrix;
        let pitch = self.pitch as i64;
        // What all patches share.
        let x = b.mul(subgroup_x, row_stride);
        let k = b.mul(subgroup_k, col_stride);
        let from = b.add(origin, x);
        let from = b.add(from, k);
        let from = b.add(from, at.offset);
        let x = b.mul(lane_x, row_stride);
        let k = b.mul(lane_k, col_stride);
        let from_lane = b.add(x, k);
        let (to, to_lane) = match self.pieces {
            None => {
                let to = b.mul_int(subgroup_k, pitch);
                let to_lane = b.mul_int(lane_k, pitch);
                (b.add(to, subgroup_x), b.add(to_lane, lane_x))
            }
            // A patch has whole pieces.
            Some([piece, pieces]) => {
                let n = b.int(piece as i64);
                let slot = b.div(subgroup_x, n);
                let to = b.mul_int(slot, pitch);
                let (rank, slot) = (b.rem(lane_x, n), b.div(lane_x, n));
                let rank = b.mul_int(rank, pieces as i64);
                let slot = b.add(rank, slot);
                let to_lane = b.mul_int(slot, pitch);
                (b.add(to, subgroup_k), b.add(to_lane, lane_k))
            }
        };
        let to = b.add(to, at.stage);
        let place =
            |memory, base, index| Place { memory, base, lane_stride: 0, index: Some(index) };
        let mut tokens = Vec::with_capacity(self.patches.len());
        for patch in &self.patches {
            let x = b.mul_int(row_stride, patch.x as i64);
            let k = b.mul_int(col_stride, patch.k as i64);
            let base = b.add(from, x);
            let base = b.add(base, k);
            let source = place(memory, base, from_lane);
            let distance = match self.pieces {
                None => patch.k * self.pitch + patch.x,
                Some([piece, _]) => patch.x / piece * self.pitch + patch.k,
            };
            let base = b.add_int(to, distance as i64);
            let target = place(Memory::Shared(self.shared), base, to_lane);
            let mut mask = patch.inside;
            if !at.whole {
                let test = if depth.whole {
                    b.compare(MapOp::Lt, at.k, depth.end)
                } else {
                    let k = b.add(at.k, subgroup_k);
                    let k = b.add(k, lane_k);
                    let k = b.add_int(k, patch.k as i64);
                    b.compare(MapOp::Lt, k, depth.end)
                };
                mask = b.both(mask, Some(test));
            }
            if self.surplus {
                let k = b.add(subgroup_k, lane_k);
                let k = b.add_int(k, patch.k as i64);
                let all = b.int(self.depth as i64);
                let test = b.compare(MapOp::Lt, k, all);
                mask = b.both(mask, Some(test));
            }
            let guard = mask.map(|mask| Guard::mask(mask, 0.0));
            tokens.push(b.copy_async(target, source, self.width, guard));
        }
        tokens
    }

    /// Elements of K that one read of a lane brings.
    pub(super) fn at_once(&self) -> u32 {
        if self.pieces.is_some() { self.width } else { 1 }
    }

    /// Reads the lane's rows (or columns) at K number `trip` of its set's in a stage, and at those
    /// that come with it: for each K its elements.
    pub(super) fn read(
        &self,
        this: &mut GpuMatrix<'_>,
        which: usize,
        position: &Position,
        stage: ValueId,
        trip: u32,
    ) -> Vec<Vec<ValueId>> {
        let share = i64::from(this.mapping.depth / this.mapping.warps[2]);
        let tile = i64::from(this.mapping.tile[which]);
        let lanes = i64::from(this.mapping.lanes[which]);
        let Position { corner, set, lane } = *position;
        let pitch = self.pitch as i64;
        let memory = Memory::Shared(self.shared);
        let b = &mut this.cx.b;
        let Some([piece, pieces]) = self.pieces.map(|p| p.map(|n| n as i64)) else {
            let first = b.mul_int(set, share * pitch);
            let first = b.add(first, corner[which]);
            let first = b.add(first, stage);
            let width = piece(this.mapping.tile[which]);
            let mut out = Vec::new();
            for part in 0..tile / width {
                let b = &mut this.cx.b;
                let base = b.add_int(first, i64::from(trip) * pitch + part * lanes * width);
                let place = Place { memory, base, lane_stride: 0, index: Some(lane[which]) };
                out.extend(b.load(place, width as u32, None));
            }
            return vec![out];
        };
        let n = b.int(piece);
        let slot = b.div(corner[which], n);
        let first = b.mul_int(slot, pitch);
        let own = b.mul_int(set, share);
        let first = b.add(first, own);
        let first = b.add(first, stage);
        let slot = b.div(lane[which], n);
        let index = b.mul_int(slot, pitch);
        let mut out = vec![Vec::new(); self.width as usize];
        for i in 0..tile {
            let slot = i % piece * pieces + i / piece * lanes;
            let base = b.add_int(first, slot * pitch + i64::from(trip));
            let place = Place { memory, base, lane_stride: 0, index: Some(index) };
            let vector = b.load(place, self.width, None);
            out.iter_mut().zip(vector).for_each(|(k, value)| k.push(value));
        }
        out
    }
}
