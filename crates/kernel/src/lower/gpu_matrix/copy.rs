//! The way of an operand from global memory to the ring of shared buffers.
//!
//! Both operands lie in shared memory with K outermost: element (x, k), x a row of A or a column
//! of B, is at `k·pitch + x`. A subgroup copies patches of `patch_k` × `patch_x` elements. Where x
//! is innermost in global memory too, a patch is a stretch of a row, and a lane copies as many
//! consecutive elements as the mapping says. Where K is innermost, a patch has 8 elements of K
//! (32 bytes, a sector) by 4 rows, one element per lane; `pitch` is an odd multiple of 4, so that
//! the 32 elements go to 32 banks.

use tilewright_ir::DType;
use tilewright_ir::program::MapOp;

use super::{Depth, GpuMatrix, LANES, LowerError, Matrix, Rule};
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
            if width != 4 || turned || !matrix.has_vectors(4) || !divides(which) {
                let name = ["A", "B"][which];
                let detail = format!("copies of {width} elements of {name} along K's other axis");
                return Err(this.cx.error(Rule::UnprovedFact, detail));
            }
            if extent < 4 {
                let detail = format!("a block of {extent} for copies of {width}");
                return Err(this.cx.error(Rule::ExactCover, detail));
            }
        }
        let subgroups = u64::from(this.mapping.warps.iter().product::<u32>());
        let wide = u64::from(width);
        let lanes = u64::from(LANES);
        let lanes_x = if turned { extent.min(4) } else { (extent / wide).min(lanes) };
        let lanes_k = lanes / lanes_x;
        let patch_x = lanes_x * wide;
        // Patches of the step, K first.
        let (across, along) = (extent / patch_x, steps.div_ceil(lanes_k));
        let total = across * along;
        let pitch = if turned && extent > 4 { extent + 4 } else { extent };
        let b = &mut this.cx.b;
        let id = b.subgroup_id();
        let lane = b.lane();
        let (n, zero) = (b.int(if turned { lanes_k } else { lanes_x } as i64), b.int(0));
        let (low, high) = (b.rem(lane, n), b.div(lane, n));
        let lane = if turned { [high, low] } else { [b.mul_int(low, wide as i64), high] };
        let mut patches = Vec::new();
        let scaled = |b: &mut KernelBuilder, x: ValueId, k: ValueId| {
            [b.mul_int(x, patch_x as i64), b.mul_int(k, lanes_k as i64)]
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
                patches.push((i / per * patch_x, i % per * subgroups * lanes_k));
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
        let rows = lanes_k * if subgroups <= total { along } else { subgroups / across };
        let stage = rows * pitch;
        let stages = u64::from(this.mapping.stages);
        let shared = b.shared(["a", "b"][which], DType::F32, stages * rows, pitch, Layout::Plain);
        let whole = this.cx.program.divisor(this.facts.size[which]).is_multiple_of(extent);
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
            surplus: rows > steps,
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
        let to = b.mul_int(subgroup_k, pitch);
        let to = b.add(to, subgroup_x);
        let to = b.add(to, at.stage);
        let to_lane = b.mul_int(lane_k, pitch);
        let to_lane = b.add(to_lane, lane_x);
        let place =
            |memory, base, index| Place { memory, base, lane_stride: 0, index: Some(index) };
        let mut tokens = Vec::with_capacity(self.patches.len());
        for patch in &self.patches {
            let x = b.mul_int(row_stride, patch.x as i64);
            let k = b.mul_int(col_stride, patch.k as i64);
            let base = b.add(from, x);
            let base = b.add(base, k);
            let source = place(memory, base, from_lane);
            let base = b.add_int(to, patch.k as i64 * pitch + patch.x as i64);
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
}
