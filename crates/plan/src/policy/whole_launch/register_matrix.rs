//! Matrix products of register tiles on GPUs whose register file is known. Each term is an input, in
//! microseconds at the prices below; a fit scales the parts.
//!
//! The busiest core takes about the longer of two times: the *path* of its groups, one round after
//! another, and its *work*, what all of its subgroups issue; or what the second-level cache or the
//! memory delivers, where that takes longer still. "About the longer" is the p-norm
//! (`Parts::longer`) of both. It is homogeneous in the prices, so the time is the sum of each price
//! times the derivative by it (Euler): these products are the inputs, and with all coefficients 1
//! their sum is the estimate. Beside that stand the launch, the launch that adds slices, and text:
//! straight-line code that the instruction cache doesn't hold is fetched while it runs.
//!
//! The prices are those of compute capability 9.0, from training shapes.

use super::{Inputs, NAME, TermInfo, padded, term};
use crate::mapping::{GpuMatrixMapping, Mapping};
use crate::policy::gpu_matrix::{RESERVED_BYTES, registers, shared_bytes, stage};
use crate::policy::{CandidateView, PolicyError, unsupported};
use crate::problem::{MatrixProblem, Problem};
use crate::target::GpuFacts;

pub(super) const INPUTS: [&str; 12] = [
    "launch", "text", "second", "lanes", "steps", "start", "sets", "products", "reads", "copies",
    "sums", "bytes",
];

pub(super) const TERMS: [TermInfo; 12] = [
    term("launch", false, "a launch, its groups and their subgroups"),
    term("text", false, "instructions that the instruction cache doesn't hold"),
    term("second", false, "a second launch that adds slices"),
    term("lanes", false, "path: a lane's products and reads of shared memory"),
    term("steps", false, "path: copies, barriers and waits of steps"),
    term("start", false, "path: a group's first copies, and a lane's stores"),
    term("sets", false, "path: sets of subgroups meet"),
    term("products", false, "work: products"),
    term("reads", false, "work: reads of shared memory"),
    term("copies", false, "work: copies, and instructions of steps"),
    term("sums", false, "work: stores, and starts of subgroups"),
    term("bytes", false, "bytes from the second-level cache and memory"),
];

/// Cycles in a microsecond.
const CLOCK: f64 = 1755.0;
/// Schedulers of a core, and the most groups that it holds.
const SCHEDULERS: f64 = 4.0;
const GROUPS: u64 = 32;
/// Subgroups of a core up to which whole ones count: one more keeps a scheduler busy alone.
const UNEVEN: f64 = 16.0;
/// Steps up to which the loop over K is laid out without a loop.
const STRAIGHT: f64 = 4.0;

/// Microseconds of a launch, a group of the busiest core, a subgroup of it.
const LAUNCH: [f64; 3] = [0.2379, 0.002914, 0.001113];
/// Instructions beyond which text costs, how soft that edge is, and microseconds of one beyond and of
/// any.
const TEXT: [f64; 4] = [2323.0, 300.0, 0.001271, 2.27e-5];
/// Microseconds of the second launch, of a slice, of a byte that it reads or writes.
const SECOND: [f64; 3] = [1.655, 0.03746, 2.812e-7];

/// Cycles of a lane's path: a product, a read, and the least that an element of K takes.
const LANE: [f64; 3] = [0.8244, 0.3644, 8.514];
/// Cycles of a step's path: a copy of A, one of B, the rest, and a level of the barrier.
const STEP: [f64; 4] = [2.587, 4.31, 74.73, 6.454];
/// What is left of copies and of the rest in a loop of several steps a trip, and of the rest without
/// a loop.
const UNROLLED: [f64; 2] = [0.1878, 0.0594];
const UNLOOPED: f64 = 0.2256;
/// Cycles from a copy to its arrival.
const ARRIVAL: f64 = 281.6;
/// Cycles of a group's start, of a lane's store, and what a ragged block adds to its share.
const START: [f64; 3] = [250.5, 2.806, 0.4327];
/// Cycles in which sets meet, and of a sum of a set.
const SETS: [f64; 2] = [1280.0, 1.863];

/// Cycles of a scheduler: a product of a subgroup, a read, a copy of A, one of B, a step.
const PRODUCT: f64 = 0.5786;
const READ: f64 = 2.428;
const COPY: [f64; 3] = [26.4, 3.782, 15.98];
/// What is left of copies and of a step in a loop of several steps a trip.
const COPY_UNROLLED: [f64; 2] = [0.6321, 0.1465];
/// Cycles of a scheduler: a sum of a subgroup, a subgroup's start, and what a ragged block adds.
const SUM: [f64; 3] = [7.386, 497.4, 0.6976];
/// Cycles of 128 bytes of shared memory, and of a byte of operands from the second-level cache.
const SHARED: f64 = 1.212;
const OPERAND: f64 = 0.02837;
/// Microseconds of a byte of the matrices.
const MEMORY: f64 = 1.102e-7;
/// Share by which a lack of 32 registers lengthens steps.
const SPILL: f64 = 0.1279;
/// Part of a last round that counts as a whole one.
const ROUND: f64 = 2.848 / 3.848;
/// Exponents: path and work, issue and shared memory, the core and its operands, the core and
/// memory, a wait and its step, products and the least time of an element.
const NORMS: [f64; 6] = [1.3031, 3.107, 3.116, 3.0, 3.0, 4.0];

/// A time as a sum of parts, one an input.
#[derive(Clone, Copy, Debug, Default)]
struct Parts([f64; 12]);

/// Places of parts.
const LANES_PART: usize = 3;
const STEPS_PART: usize = 4;
const START_PART: usize = 5;
const SETS_PART: usize = 6;
const PRODUCTS_PART: usize = 7;
const READS_PART: usize = 8;
const COPIES_PART: usize = 9;
const SUMS_PART: usize = 10;
const BYTES_PART: usize = 11;

impl Parts {
    fn of(parts: &[(usize, f64)]) -> Self {
        let mut out = Parts::default();
        for (place, value) in parts {
            out.0[*place] += value;
        }
        out
    }

    fn total(&self) -> f64 {
        self.0.iter().sum()
    }

    fn map(self, each: impl Fn(f64) -> f64) -> Self {
        Parts(self.0.map(each))
    }

    fn plus(self, other: Parts) -> Self {
        let mut out = self;
        out.0.iter_mut().zip(other.0).for_each(|(a, b)| *a += b);
        out
    }

    /// About the longer of both times: v = (aᵖ + bᵖ)^(1/p), in which a part x of a has
    /// x·∂v/∂a = x·(a/v)^(p−1).
    fn longer(self, other: Parts, p: f64) -> Self {
        let (a, b) = (self.total(), other.total());
        if a <= 0.0 {
            return other;
        }
        if b <= 0.0 {
            return self;
        }
        // Of the ratio, so that no power overflows.
        let (low, high) = (a.min(b), a.max(b));
        let v = high * libm::pow(1.0 + libm::pow(low / high, p), 1.0 / p);
        let share = |x: f64| libm::pow(x / v, p - 1.0);
        self.map(|x| x * share(a)).plus(other.map(|x| x * share(b)))
    }
}

/// Registers that the assembler is to give a thread, by the share of a core's groups.
fn share(gpu: &GpuFacts, m: &GpuMatrixMapping) -> u64 {
    let all = gpu.registers_per_core.unwrap_or(0);
    all / (m.threads().max(1) * u64::from(m.resident.max(1)))
}

/// Groups that a core holds, by the registers that the assembler may give a thread.
fn held(gpu: &GpuFacts, problem: &MatrixProblem, m: &GpuMatrixMapping) -> u64 {
    let threads = m.threads().max(1);
    let each = registers(m, problem.transposed).min(share(gpu, m)).max(1);
    let shared = shared_bytes(m, problem.transposed) + RESERVED_BYTES;
    (gpu.registers_per_core.unwrap_or(0) / (threads * each))
        .min(gpu.threads_per_core.map_or(1, |t| t / threads))
        .min(gpu.shared_bytes_per_core.map_or(1, |bytes| bytes / shared))
        .clamp(1, GROUPS)
}

pub(super) fn inputs(view: &CandidateView<'_>) -> Result<Inputs, PolicyError> {
    let (Some(gpu), Problem::Matrix(problem), Mapping::GpuMatrix(m)) =
        (view.target.gpu_facts(), view.problem, view.mapping)
    else {
        return Err(unsupported(NAME, view));
    };
    Ok(of(problem, gpu, m))
}

/// The inputs of a mapping of a problem.
pub(in crate::policy) fn of(
    problem: &MatrixProblem,
    gpu: &GpuFacts,
    m: &GpuMatrixMapping,
) -> Inputs {
    let [rows, columns, depth] = problem.size.map(|s| s.max(1));
    let [bm, bn] = m.block();
    let slices = u64::from(m.slices.max(1));
    let batch = problem.batch.max(1);
    let groups = batch * rows.div_ceil(bm) * columns.div_ceil(bn) * slices;
    // Groups of the busiest core, and rounds in which it takes them.
    let taken = groups.div_ceil(gpu.cores.max(1).into());
    let at_once = held(gpu, problem, m);
    let steps = depth.div_ceil(slices * u64::from(m.depth)) as f64;
    let subgroups = (m.threads() / 32) as f64;
    let trips = f64::from(m.depth / m.warps[2].max(1));
    let sums = f64::from(m.tile[0] * m.tile[1]);
    let reads = f64::from(m.tile[0].div_ceil(4) + m.tile[1].div_ceil(4));
    let [copies_a, copies_b] = [0, 1].map(|i| {
        let depth = stage(m, problem.transposed, i).depth;
        (depth * m.block()[i]) as f64 / (32.0 * f64::from(m.copy[i].max(1)) * subgroups)
    });
    let unrolled = m.unroll > 1;
    let straight = steps <= STRAIGHT.max(f64::from(m.stages) - 1.0);
    let ragged = !(rows.is_multiple_of(bm) && columns.is_multiple_of(bn));
    let ragged = f64::from(u8::from(ragged));
    let sets = f64::from(m.warps[2]);

    // What the assembler lacks of the registers that it would take: the more the larger the tile, and
    // the more copies, guards and carried numbers there are.
    let flag = |is: bool, value: f64| if is { value } else { 0.0 };
    let whole = depth.is_multiple_of(slices * u64::from(m.depth));
    let wanted = 58.3 + 1.32 * sums - 0.87 * f64::from(m.tile[0] + m.tile[1])
        + (copies_a + copies_b) * (0.59 + flag(unrolled, 1.02))
        + 12.5 * ragged
        + 1.7 * f64::from(m.stages)
        + flag(!whole, 9.0)
        - flag(straight, 27.5)
        + flag(m.warps[2] > 1, 3.0);
    let given = (share(gpu, m) / 8 * 8).min(255) as f64;
    let spill = 1.0 + SPILL * 8.0 * super::soft((wanted - given) / 8.0) / 32.0;

    // The path of a group, in cycles.
    let element = Parts::of(&[(LANES_PART, LANE[0] * sums + LANE[1] * reads)])
        .longer(Parts::of(&[(LANES_PART, LANE[2])]), NORMS[5]);
    let kept = if unrolled { UNROLLED } else { [1.0, 1.0] };
    let rest = STEP[2] * kept[1] * if straight { UNLOOPED } else { 1.0 };
    let beside = (STEP[0] * copies_a + STEP[1] * copies_b) * kept[0]
        + rest
        + STEP[3] * libm::log2(subgroups.max(1.0));
    let hidden = f64::from(m.stages.saturating_sub(1)).min(steps).max(1.0);
    let step = element
        .map(|x| x * trips)
        .plus(Parts::of(&[(STEPS_PART, beside)]))
        .longer(Parts::of(&[(STEPS_PART, ARRIVAL / hidden)]), NORMS[4]);
    let met = flag(m.warps[2] > 1, SETS[0] + SETS[1] * sets * sums);
    let fixed = START[0] + START[1] * sums * (1.0 + START[2] * ragged);
    let filled = taken as f64 / at_once as f64;
    let rounds = 1.0 + ROUND * (filled.ceil() - 1.0) + (1.0 - ROUND) * (filled - 1.0).max(0.0);
    let path = step
        .map(|x| x * steps * spill)
        .plus(Parts::of(&[(START_PART, fixed), (SETS_PART, met)]))
        .map(|x| x * rounds);

    // The work of the busiest core, in cycles of one of its schedulers.
    let taken = taken as f64;
    let shares = taken * subgroups / SCHEDULERS;
    let busy = if taken * subgroups <= UNEVEN { shares.ceil() } else { shares };
    let kept = if unrolled { COPY_UNROLLED } else { [1.0, 1.0] };
    let copying = (COPY[0] * copies_a + COPY[1] * copies_b) * kept[0] + COPY[2] * kept[1];
    let storing = SUM[0] * sums * (1.0 + SUM[2] * ragged) + SUM[1];
    let issue = Parts::of(&[
        (PRODUCTS_PART, busy * steps * spill * trips * sums * PRODUCT),
        (READS_PART, busy * steps * spill * trips * reads * READ),
        (COPIES_PART, busy * steps * spill * copying),
        (SUMS_PART, busy * storing),
    ]);
    let [lane_rows, lane_columns] = [0, 1].map(|i| f64::from(m.lanes[i] * m.tile[i]));
    let shared = (lane_rows + lane_columns) * 4.0 / 128.0;
    let shared = taken * subgroups * steps * trips * shared * SHARED;
    let work = issue.longer(Parts::of(&[(READS_PART, shared)]), NORMS[1]);

    let operands = taken * steps * (bm + bn) as f64 * f64::from(m.depth) * 4.0 * OPERAND;
    let [rows, columns, depth, batch, slices] =
        [rows, columns, depth, batch, slices].map(|n| n as f64);
    let output = batch * rows * columns * 4.0;
    let matrices = output * slices + batch * (rows * depth + columns * depth) * 4.0;
    let core = path
        .longer(work, NORMS[0])
        .longer(Parts::of(&[(BYTES_PART, operands)]), NORMS[2])
        .map(|x| x / CLOCK)
        .longer(Parts::of(&[(BYTES_PART, matrices * MEMORY)]), NORMS[3]);

    let each = trips * (sums + reads) + 3.0 * (copies_a + copies_b) + 20.0;
    let laid_out = match (straight, unrolled) {
        (true, _) => steps,
        (false, true) => f64::from(m.unroll) + 1.0,
        (false, false) => 1.0,
    };
    let text = laid_out * each + 8.0 * sums * (1.0 + ragged);
    let second = SECOND[0] + SECOND[1] * slices + SECOND[2] * output * (slices + 1.0);
    let mut parts = core.0;
    parts[0] = LAUNCH[0] + LAUNCH[1] * taken + LAUNCH[2] * taken * subgroups;
    parts[1] = TEXT[3] * text + TEXT[2] * TEXT[1] * super::soft((text - TEXT[0]) / TEXT[1]);
    parts[2] = flag(m.slices > 1, second);
    padded(&parts)
}
