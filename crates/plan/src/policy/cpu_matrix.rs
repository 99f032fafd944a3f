//! The matrix part of the `cpu` policy: closed-form counts and an estimate in cycles.

use super::cpu::CpuCoefficients;
use super::{PolicyError, Score, Term};
use crate::mapping::CpuMatrixMapping;
use crate::problem::MatrixProblem;
use crate::target::CpuFacts;

/// What a register-tile mapping amounts to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CpuMatrixCounts {
    /// Groups of the launch, batch included.
    pub groups: u64,
    /// K steps of a group.
    pub steps: u64,
    /// Register tiles of one group and K step.
    pub tiles: u64,
    /// Scratch bytes of one thread: packed A, packed B, and C where it can't accumulate in place.
    pub scratch_bytes: u64,
}

impl CpuMatrixCounts {
    /// Counts a mapping of a problem.
    pub fn new(problem: &MatrixProblem, mapping: &CpuMatrixMapping) -> Self {
        let [m, n, k] = problem.size;
        let [gm, gn] = mapping.group.map(|g| g.max(1));
        let depth = mapping.depth.max(1);
        let rows = u64::from(mapping.tile[0]).max(1);
        let width = (u64::from(mapping.tile[1]) * u64::from(mapping.lanes)).max(1);
        let bytes = problem.accumulator.bytes();
        let steps = k.div_ceil(depth);
        let packed_a = if mapping.pack_a { gm.saturating_mul(depth) } else { 0 };
        let columns = gn.min(mapping.columns).div_ceil(width).saturating_mul(width);
        let packed_b = if mapping.pack_b { columns.saturating_mul(depth) } else { 0 };
        let in_place = problem.output == problem.accumulator && problem.epilogue_ops == 0;
        let result = if steps > 1 && !in_place { gm.saturating_mul(gn) } else { 0 };
        let scratch = packed_a.saturating_add(packed_b).saturating_add(result);
        CpuMatrixCounts {
            groups: problem.batch.saturating_mul(m.div_ceil(gm)).saturating_mul(n.div_ceil(gn)),
            steps,
            tiles: gm.min(m).div_ceil(rows).saturating_mul(gn.min(n).div_ceil(width)),
            scratch_bytes: scratch.saturating_mul(bytes),
        }
    }
}

/// Cycles of one group, by part.
struct Parts {
    products: f64,
    result: f64,
    packing: f64,
    memory: f64,
}

fn parts(
    c: &CpuCoefficients,
    problem: &MatrixProblem,
    cpu: &CpuFacts,
    mapping: &CpuMatrixMapping,
    counts: &CpuMatrixCounts,
) -> Parts {
    let [m, n, k] = problem.size.map(|s| s as f64);
    let rows = f64::from(mapping.tile[0]);
    let vectors = f64::from(mapping.tile[1]);
    let (tiles, steps) = (counts.tiles as f64, counts.steps as f64);
    let fma = rows * vectors / f64::from(cpu.fma_per_cycle.max(1));
    let loads = (rows + vectors) / 2.0;
    // A chain of dependent additions per accumulator hides its latency only with enough of them.
    let chain = c.fma_latency;
    let step = fma.max(loads).max(chain);
    let products = tiles * k * step;
    let result = tiles * steps * rows * vectors * 2.0;
    let bytes = problem.accumulator.bytes() as f64;
    let gm = m.min(mapping.group[0] as f64);
    let gn = n.min(mapping.group[1] as f64);
    let a_bytes = gm * k * bytes;
    let b_bytes = gn * k * bytes;
    let copy = 2.0 / c.l2_bytes_per_cycle;
    let packing = (if mapping.pack_a { a_bytes * copy } else { 0.0 })
        + if mapping.pack_b { b_bytes * copy } else { 0.0 };
    // B passes once per row of tiles, from the level that holds one step of it.
    let panel = mapping.depth as f64 * gn * bytes;
    let passes = (gm / rows).ceil();
    let unpacked_conflicts =
        if !mapping.pack_b && (n * bytes) % 4096.0 == 0.0 && m > rows { 2.0 } else { 1.0 };
    let memory = b_bytes * passes * unpacked_conflicts / c.bytes_per_cycle(cpu, panel)
        + (a_bytes + gm * gn * bytes * 2.0) / c.bytes_per_cycle(cpu, a_bytes + gm * gn * bytes);
    Parts { products, result, packing, memory }
}

/// The score of a mapping: cycles.
///
/// # Errors
/// None at present; the signature leaves room for facts that are needed and missing.
pub fn score(
    c: &CpuCoefficients,
    problem: &MatrixProblem,
    cpu: &CpuFacts,
    mapping: &CpuMatrixMapping,
    counts: &CpuMatrixCounts,
) -> Result<Score, PolicyError> {
    let p = parts(c, problem, cpu, mapping, counts);
    let program = (p.products + p.result).max(p.memory) + p.packing + c.group;
    let threads = f64::from(mapping.threads.max(1));
    let waves = (counts.groups as f64 / threads).ceil().max(1.0);
    let launch = if mapping.threads > 1 { c.launch_threads } else { c.launch };
    Ok(Score { program, waves, kernel: launch + program * waves })
}

/// The addends of the score, for explanations.
pub fn terms(
    c: &CpuCoefficients,
    problem: &MatrixProblem,
    cpu: &CpuFacts,
    mapping: &CpuMatrixMapping,
    counts: &CpuMatrixCounts,
) -> Vec<Term> {
    let p = parts(c, problem, cpu, mapping, counts);
    vec![
        Term::new("products", p.products),
        Term::new("results", p.result),
        Term::new("packing", p.packing),
        Term::new("memory", p.memory),
    ]
}
