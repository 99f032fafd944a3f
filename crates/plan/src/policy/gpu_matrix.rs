//! Closed-form counts of register-tile products on GPUs.

use std::collections::BTreeMap;

use super::gpu::{PRICES, price};
use super::gpu_apart;
use super::whole_launch::register_matrix;
use crate::mapping::GpuMatrixMapping;
use crate::problem::MatrixProblem;
use crate::target::GpuFacts;

/// Whether copies of operand A (0) or B (1) to shared memory are vectors along K: it is innermost
/// in memory and stays so.
pub fn copies_depth(mapping: &GpuMatrixMapping, transposed: [bool; 2], which: usize) -> bool {
    let turned = (which == 0) != transposed[which];
    turned && mapping.stages > 1 && mapping.copy[which] > 1
}

/// Registers of a thread, from above: sums, elements of two K (of five where reads are vectors along
/// K), and addresses.
pub fn registers(mapping: &GpuMatrixMapping, transposed: [bool; 2]) -> u64 {
    let [rows, columns] = mapping.tile.map(u64::from);
    if mapping.stages == 1 {
        return (rows * columns + held(mapping) * (rows + columns) + ADDRESSES).next_multiple_of(8);
    }
    let held: u64 = (0..2)
        .map(|i| if copies_depth(mapping, transposed, i) { 5 } else { 2 } * [rows, columns][i])
        .sum();
    (rows * columns + held + ADDRESSES).next_multiple_of(8)
}

/// Elements of one row (or column) that a lane holds at once where operands are read in place.
pub(super) fn held(mapping: &GpuMatrixMapping) -> u64 {
    let share = u64::from(mapping.depth / mapping.warps[2].max(1));
    if mapping.lanes == [1, 1] { share.div_ceil(32) } else { share }
}

/// Registers that addresses, counters and conditions take.
const ADDRESSES: u64 = 32;

/// One stage of an operand in shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stage {
    /// Elements of K that are copied, those beyond the step included.
    pub depth: u64,
    /// Elements from one K (from one row where K is consecutive) to the next.
    pub pitch: u64,
    /// Elements of all.
    pub elements: u64,
}

/// One stage of operand A (0) or B (1), as the lowering lays it out.
pub fn stage(mapping: &GpuMatrixMapping, transposed: [bool; 2], which: usize) -> Stage {
    let extent = mapping.block()[which].max(1);
    let turned = (which == 0) != transposed[which];
    let width = u64::from(mapping.copy[which]).max(1);
    let depth = u64::from(mapping.depth);
    let along_depth = copies_depth(mapping, transposed, which);
    // Lanes of a patch over rows (or columns), and the elements of K that it has.
    let lanes = match (along_depth, turned) {
        (true, _) => extent.min(32 / depth.div_ceil(width).clamp(1, 8)),
        (_, true) => extent.min(4),
        _ => (extent / width).clamp(1, 32),
    };
    let patch = 32 / lanes * if along_depth { width } else { 1 };
    let along = depth.div_ceil(patch);
    let across = extent / (lanes * if turned { 1 } else { width }).max(1);
    let subgroups = mapping.threads() / 32;
    let patches = if subgroups <= across * along { along } else { subgroups / across.max(1) };
    let depth = patch * patches;
    if along_depth {
        // An odd number of vectors from row to row: eight neighbours lie in all banks.
        let pitch = width * ((depth / width) | 1);
        return Stage { depth, pitch, elements: extent * pitch };
    }
    let pitch = if turned && extent > 4 { extent + 4 } else { extent };
    Stage { depth, pitch, elements: depth * pitch }
}

/// Bytes of shared memory of a group.
pub fn shared_bytes(mapping: &GpuMatrixMapping, transposed: [bool; 2]) -> u64 {
    let in_place = mapping.stages == 1;
    let ring: u64 = (0..if in_place { 0 } else { 2 })
        .map(|i| u64::from(mapping.stages) * stage(mapping, transposed, i).elements * 4)
        .sum();
    let [bm, bn] = mapping.block();
    let sets = u64::from(mapping.warps[2]);
    ring + if sets > 1 { sets * bm * bn * 4 } else { 0 }
}

/// What a register-tile mapping amounts to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuMatrixCounts {
    /// Threads of a group.
    pub threads: u64,
    /// Groups of the launch, slices and batch included.
    pub groups: u64,
    /// Steps of a group over its part of K.
    pub steps: u64,
    /// Registers of a thread, from above.
    pub registers: u64,
    /// Bytes of shared memory of a group.
    pub shared_bytes: u64,
    /// Groups that a core holds at the same time, from above.
    pub resident: u64,
    /// Rounds in which the cores take the groups.
    pub waves: u64,
    /// Bytes of scratch that the partial sums of slices take.
    pub scratch_bytes: u64,
}

impl GpuMatrixCounts {
    /// Counts a mapping of a problem.
    pub fn new(problem: &MatrixProblem, gpu: &GpuFacts, mapping: &GpuMatrixMapping) -> Self {
        let [m, n, k] = problem.size;
        let [bm, bn] = mapping.block().map(|b| b.max(1));
        let slices = u64::from(mapping.slices.max(1));
        let tiles = problem.batch.saturating_mul(m.div_ceil(bm)).saturating_mul(n.div_ceil(bn));
        let groups = tiles.saturating_mul(slices);
        let held = u64::from(resident(gpu, problem.transposed, mapping));
        let elements = problem.batch.saturating_mul(m).saturating_mul(n);
        GpuMatrixCounts {
            threads: mapping.threads(),
            groups,
            steps: k.div_ceil(slices.saturating_mul(u64::from(mapping.depth.max(1)))),
            registers: registers(mapping, problem.transposed),
            shared_bytes: shared_bytes(mapping, problem.transposed),
            resident: held,
            waves: groups.div_ceil((held * u64::from(gpu.cores)).max(1)),
            scratch_bytes: if slices > 1 { elements.saturating_mul(4 * slices) } else { 0 },
        }
    }
}

/// Groups that a core can hold by registers, shared memory and threads, at least 1, at most 8.
pub fn resident(gpu: &GpuFacts, transposed: [bool; 2], mapping: &GpuMatrixMapping) -> u32 {
    let threads = mapping.threads().max(1);
    let by = |all: Option<u64>, each: u64| all.map_or(1, |all| all / each.max(1));
    let registers = by(gpu.registers_per_core, threads * registers(mapping, transposed));
    let shared = by(gpu.shared_bytes_per_core, shared_bytes(mapping, transposed) + RESERVED_BYTES);
    let resident = registers.min(shared).min(by(gpu.threads_per_core, threads));
    resident.clamp(1, 8) as u32
}

/// Shared memory that the system takes of every group.
pub(crate) const RESERVED_BYTES: u64 = 1024;

/// Estimated microseconds of a launch, as the policy `gpu` prices it.
pub fn estimate(problem: &MatrixProblem, gpu: &GpuFacts, m: &GpuMatrixMapping) -> f64 {
    if m.stages == 1 {
        return gpu_apart::in_place(problem, gpu, m);
    }
    price(&PRICES, &register_matrix::of(problem, gpu, m))
}

/// The best `count` legal candidates, best first; ties keep the order of the space. Of one block,
/// number of sets and number of slices no more than [`KIN`] are taken, and of one lane tile no
/// more than a third: so a short list has different ones.
pub fn shortlist(
    problem: &MatrixProblem,
    gpu: &GpuFacts,
    copies: [u32; 2],
    count: usize,
) -> Vec<(f64, GpuMatrixMapping)> {
    let all = crate::space::gpu_matrix::candidates(problem, gpu, copies);
    let mut legal: Vec<(f64, GpuMatrixMapping)> = all
        .into_iter()
        .filter(|m| crate::legality::gpu_matrix::check(problem, gpu, m, copies).is_ok())
        .map(|m| (estimate(problem, gpu, &m), m))
        .collect();
    legal.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut kin: BTreeMap<([u64; 2], u32, u32), usize> = BTreeMap::new();
    let mut tiles: BTreeMap<[u32; 2], usize> = BTreeMap::new();
    legal.retain(|(_, m)| {
        let kin = kin.entry((m.block(), m.warps[2], m.slices)).or_default();
        let tile = tiles.entry(m.tile).or_default();
        if *kin >= KIN || *tile >= count.div_ceil(3) {
            return false;
        }
        (*kin, *tile) = (*kin + 1, *tile + 1);
        true
    });
    legal.truncate(count);
    legal
}

/// Candidates of one block, number of sets and number of slices in a short list.
pub const KIN: usize = 3;
