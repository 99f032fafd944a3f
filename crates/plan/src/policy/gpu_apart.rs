//! Estimated microseconds of mappings on GPUs that the labels behind the policy `gpu`'s fitted
//! prices have none of: rows over several launches, and thin products that read their operands in
//! place.
//!
//! A launch takes the longer of two times, its *path* and its *traffic*. The path is what a group
//! does one thing after another: rounds of loads, arithmetic of a lane, folds, barriers; once for
//! every wave in which the cores take the groups. The traffic is bytes over the bandwidth of the
//! level that holds them, or what the cores have to issue if that takes longer. Prices are those
//! of compute capability 9.0, rounded; they order candidates and promise no time.

use super::gpu_matrix::{held, resident};
use super::gpu_rows::GpuRowCounts;
use crate::mapping::{GpuMatrixMapping, RowMapping};
use crate::problem::{MatrixProblem, RowProblem};
use crate::rows::RowCounts;
use crate::target::GpuFacts;

/// Cycles in a microsecond.
const CLOCK: f64 = 1755.0;
/// Microseconds of a launch.
const LAUNCH: f64 = 0.9;
/// Microseconds of a later launch, which waits for the one before, beside what it reads of it.
const NEXT_LAUNCH: f64 = 1.3;
/// Microseconds of a round of loads from the second-level cache, and of one from memory.
const NEAR_ROUND: f64 = 0.35;
const FAR_ROUND: f64 = 0.6;
/// Bytes per microsecond of memory, and of the second-level cache.
const FAR: f64 = 4.2e6;
const NEAR: f64 = 7.0e6;
/// Cycles until a group has started and its first loads have arrived, and from a load to its arrival
/// after that.
const START: f64 = 1300.0;
const FETCH: f64 = 1000.0;
/// Bytes per cycle that one core gets from the second-level cache.
const L2: f64 = 40.0;
/// Cycles of a fold over the lanes, of a barrier, and of reading a subgroup's result.
const FOLD: f64 = 150.0;
const BARRIER: f64 = 60.0;
const PARTIAL: f64 = 4.0;

/// About the larger of two times: (a² + b²)/(a + b). Where both are equal it is either of them.
fn smooth(a: f64, b: f64) -> f64 {
    if a + b > 0.0 { (a * a + b * b) / (a + b) } else { 0.0 }
}

/// Rows over several launches.
pub(super) fn split_rows(
    problem: &RowProblem,
    gpu: &GpuFacts,
    mapping: &RowMapping,
    counts: &RowCounts,
) -> f64 {
    let c = GpuRowCounts::new(problem, gpu, mapping, counts);
    let round = if c.near { NEAR_ROUND } else { FAR_ROUND };
    let subgroups = f64::from(mapping.subgroups);
    let cycles = c.chain + c.folds * FOLD + c.joins * (BARRIER + PARTIAL * subgroups);
    // What all rows share comes from the second-level cache, all of it at once.
    let shared = if c.shared_loads > 0.0 { NEAR_ROUND / 2.0 } else { 0.0 };
    let path = c.waves * (c.rounds * round + shared + cycles / CLOCK);
    let far = if c.near { 0.0 } else { c.distinct / FAR };
    let traffic = far.max((c.distinct + c.again) / NEAR).max(c.issue / CLOCK);
    let later = (c.launches - 1.0) * (NEXT_LAUNCH + NEAR_ROUND);
    LAUNCH + later + smooth(path, traffic)
}

/// Thin products: trips that wait for their loads, as many groups at once as a core holds, or what
/// the second-level cache or the memory delivers.
pub(super) fn in_place(problem: &MatrixProblem, gpu: &GpuFacts, m: &GpuMatrixMapping) -> f64 {
    let [rows, columns, depth] = problem.size.map(|s| s.max(1) as f64);
    let [bm, bn] = m.block().map(|b| b as f64);
    let (batch, slices) = (problem.batch.max(1) as f64, f64::from(m.slices));
    let groups = batch * (rows / bm).ceil() * (columns / bn).ceil() * slices;
    let cores = f64::from(gpu.cores.max(1));
    let resident =
        f64::from(resident(gpu, problem.transposed, m)).min((groups / cores).ceil()).max(1.0);
    let subgroups = m.threads() as f64 / 32.0;
    let trips = (depth / (slices * f64::from(m.depth))).ceil();
    let [tm, tn] = m.tile.map(f64::from);
    let held = held(m) as f64;
    let widths = m.copy.map(|w| f64::from(w.max(1)));
    let loads = held * (tm / widths[0] + tn / widths[1]);
    let issue = (held * tm * tn + 2.0 * loads + 20.0) * (resident * subgroups / 4.0).max(1.0);
    let bytes = (bm + bn) * f64::from(m.depth) * 4.0 * resident;
    let trip = FETCH.max(issue).max(bytes / L2);
    let lanes = if m.lanes == [1, 1] { FOLD + 10.0 * tm * tn } else { 0.0 };
    let meeting = if m.warps[2] > 1 { BARRIER } else { 0.0 };
    let rounds = (groups / (cores * resident)).ceil();
    let busy = (rounds * (trips * trip + lanes + meeting) + START / 2.0) / CLOCK;
    let output = if m.slices > 1 { 0.0 } else { rows * columns };
    let memory = 4.0 * batch * (rows * depth + columns * depth + output) / FAR + START / CLOCK;
    let combine = if m.slices > 1 {
        NEXT_LAUNCH + rows * columns * 4.0 * batch * (slices + 1.0) / FAR
    } else {
        0.0
    };
    LAUNCH + smooth(busy, memory) + combine
}
