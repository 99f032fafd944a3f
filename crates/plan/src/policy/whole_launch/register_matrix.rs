//! Matrix products of register tiles on GPUs whose register file is known. Each term is an input.
//!
//! The busiest core takes about the longer of two times: the *path* of its groups, one round after
//! another, and its *work*, what all of its subgroups issue. So terms of the path are weighted by
//! (path/T)² and terms of the work by (work/T)², T³ = path³ + work³, with both as the prices below
//! give them: the weighted sum is then about T. The prices are those of compute capability 9.0,
//! from training shapes; they weight terms and promise no time.

use super::{Inputs, NAME, TermInfo, padded, term};
use crate::mapping::{GpuMatrixMapping, Mapping};
use crate::policy::gpu_matrix::{RESERVED_BYTES, registers, shared_bytes, stage};
use crate::policy::{CandidateView, PolicyError, unsupported};
use crate::problem::{MatrixProblem, Problem};
use crate::target::GpuFacts;

pub(super) const INPUTS: [&str; 12] = [
    "launch", "second", "combined", "products", "reads", "arrivals", "sets", "trips", "few",
    "turned", "single", "sums",
];

pub(super) const TERMS: [TermInfo; 12] = [
    term("launch", false, "a launch"),
    term("second", false, "a second launch that adds slices"),
    term("combined", false, "a megabyte of slices' sums that it reads, and of output"),
    term("products", false, "path: a product of a lane"),
    term("reads", false, "path: a lane's read of shared memory"),
    term("arrivals", false, "path: a step's wait for copies, over the stages that hide it"),
    term("sets", false, "a round of groups whose sets of subgroups meet"),
    term("trips", false, "work: an element of K of a subgroup"),
    term("few", false, "work: a product of a subgroup, over the subgroups that a scheduler holds"),
    term("turned", false, "work: a subgroup's copy of A"),
    term("single", false, "work: a product of a subgroup where B is copied by single elements"),
    term("sums", false, "work: a sum of a subgroup"),
];

/// Microseconds of a lane's path: a product, an element of K, a step, a wait, a round.
const PATH: [f64; 5] = [0.0005, 0.0114, 0.0456, 0.02, 0.5];
/// Microseconds of a core's work: a product of a subgroup, another instruction, a byte of operands.
const WORK: [f64; 3] = [0.00047, 0.0011, 8e-6];
/// Instructions of a step beside those of its elements: in a loop of single steps, and of several.
const STEP: [f64; 2] = [40.0, 12.0];
/// Instructions of a copy, likewise.
const COPY: [f64; 2] = [3.0, 2.0];
/// Schedulers of a core, and the most groups that it holds.
const SCHEDULERS: f64 = 4.0;
const GROUPS: u64 = 32;
/// Subgroups of a core up to which whole ones count: one more keeps a scheduler busy alone.
const UNEVEN: f64 = 16.0;

/// Groups that a core holds, by the registers that the assembler may give a thread.
fn held(gpu: &GpuFacts, problem: &MatrixProblem, m: &GpuMatrixMapping) -> u64 {
    let threads = m.threads().max(1);
    let all = gpu.registers_per_core.unwrap_or(0);
    let share = all / (threads * u64::from(m.resident.max(1)));
    let each = registers(m, problem.transposed).min(share).max(1);
    let shared = shared_bytes(m, problem.transposed) + RESERVED_BYTES;
    (all / (threads * each))
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
    let groups = problem.batch.max(1) * rows.div_ceil(bm) * columns.div_ceil(bn) * slices;
    // Groups of the busiest core, and rounds in which it takes them.
    let taken = groups.div_ceil(gpu.cores.max(1).into());
    let at_once = held(gpu, problem, m);
    let rounds = taken.div_ceil(at_once) as f64;
    let steps = depth.div_ceil(slices * u64::from(m.depth)) as f64;
    let subgroups = (m.threads() / 32) as f64;
    let trips = f64::from(m.depth / m.warps[2].max(1));
    let sums = f64::from(m.tile[0] * m.tile[1]);
    let reads = f64::from(m.tile[0].div_ceil(4) + m.tile[1].div_ceil(4));
    let copies = [0, 1].map(|i| {
        let depth = stage(m, problem.transposed, i).depth;
        (depth * m.block()[i]) as f64 / (32.0 * f64::from(m.copy[i].max(1)) * subgroups)
    });
    let output = problem.batch.max(1) as f64 * rows as f64 * columns as f64;
    let loop_kind = usize::from(m.unroll > 1);

    let lane = rounds * steps * trips;
    let arrivals = rounds * steps / f64::from(m.stages.saturating_sub(1)).min(steps).max(1.0);
    let path = PATH[0] * lane * sums
        + PATH[1] * lane
        + PATH[2] * rounds * steps
        + PATH[3] * arrivals
        + PATH[4] * rounds;
    let taken = taken as f64;
    let shares = taken * subgroups / SCHEDULERS;
    let whole = if taken * subgroups <= UNEVEN { shares.ceil() } else { shares };
    let products = whole * steps * trips * sums;
    let others = trips * reads + (copies[0] + copies[1]) * COPY[loop_kind] + STEP[loop_kind];
    let operands = taken * (bm + bn) as f64 * steps * f64::from(m.depth) * 4.0;
    let work = WORK[0] * products + WORK[1] * whole * steps * others + WORK[2] * operands;

    let longer = libm::cbrt(path * path * path + work * work * work).max(f64::MIN_POSITIVE);
    let (slow, busy) = ((path / longer) * (path / longer), (work / longer) * (work / longer));
    let together = taken.min(at_once as f64) * subgroups / SCHEDULERS;
    padded(&[
        1.0,
        f64::from(m.slices > 1),
        if slices > 1 { output * (slices + 1) as f64 * 4e-6 } else { 0.0 },
        lane * sums * slow,
        lane * reads * slow,
        arrivals * slow,
        if m.warps[2] > 1 { rounds } else { 0.0 },
        shares * steps * trips * busy,
        products / together * busy,
        shares * steps * copies[0] * busy,
        if problem.copies[1] == 1 { products * busy } else { 0.0 },
        shares * sums * busy,
    ])
}
