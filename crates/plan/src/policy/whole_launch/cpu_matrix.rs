//! Matrix products of register tiles on CPUs. Threads are known, so each term is an input of its
//! own: what the busiest thread does over all of its groups.

use super::cpu_rows::level;
use super::{Inputs, NAME, TermInfo, padded, term};
use crate::mapping::Mapping;
use crate::policy::{CandidateFacts, CandidateView, PolicyError, unsupported};
use crate::problem::Problem;

pub(super) const INPUTS: [&str; 12] = [
    "launch",
    "other_threads",
    "tiles",
    "products",
    "stalls",
    "reloads",
    "packed_vectors",
    "gathered_vectors",
    "epilogue",
    "l2_bytes",
    "l3_bytes",
    "memory_bytes",
];

pub(super) const TERMS: [TermInfo; 12] = [
    term("launch", false, "a launch"),
    term("other_threads", false, "a thread that has to be woken"),
    term("tiles", false, "a register tile in a K step, or the start of a group"),
    term("products", false, "a cycle of full-rate multiply-adds, padding of tiles included"),
    term("stalls", false, "a cycle by which loads or latency exceed the multiply-adds"),
    term("reloads", false, "a vector of sums that is read back for a further K step"),
    term("packed_vectors", false, "a vector that is copied to a packed operand"),
    term("gathered_vectors", false, "a vector that is gathered from a transposed operand"),
    term("epilogue", false, "a vector operation or load between the sums and the store"),
    term("l2_bytes", false, "a byte from the second-level cache"),
    term("l3_bytes", false, "a byte from the last-level cache"),
    term("memory_bytes", false, "a byte from memory"),
];

pub(super) fn inputs(view: &CandidateView<'_>) -> Result<Inputs, PolicyError> {
    let (
        Some(cpu),
        Problem::Matrix(problem),
        Mapping::CpuMatrix(mapping),
        CandidateFacts::CpuMatrix(counts),
    ) = (view.target.cpu_facts(), view.problem, view.mapping, view.facts)
    else {
        return Err(unsupported(NAME, view));
    };
    let [m, n, k] = problem.size.map(|s| s as f64);
    let rows = f64::from(mapping.tile[0]);
    let vectors = f64::from(mapping.tile[1]);
    let lanes = f64::from(mapping.lanes.max(1));
    let (tiles, steps) = (counts.tiles as f64, counts.steps as f64);
    let threads = f64::from(mapping.threads.max(1)).min((counts.groups as f64).max(1.0));
    let groups = (counts.groups as f64 / threads).ceil();

    // One K element of a tile: multiply-adds at full rate; two loads a cycle (a row of B vectors
    // and a broadcast a row of A); a chain of dependent multiply-adds of latency 4.
    let multiply = rows * vectors / f64::from(cpu.fma_per_cycle.max(1));
    let stall = ((rows + vectors) / 2.0).max(4.0) - multiply;

    let gm = m.min(mapping.group[0] as f64);
    let gn = n.min(mapping.group[1] as f64);
    let depth = k.min(mapping.depth as f64);
    let bytes = problem.accumulator.bytes() as f64;
    let operand = problem.operand.bytes() as f64;
    let packed_a = if mapping.pack_a { gm * k / lanes } else { 0.0 };
    let packed_b = if mapping.pack_b { gn * k / lanes } else { 0.0 };
    let gathered = if mapping.pack_b && problem.transposed[1] { packed_b } else { 0.0 };
    let epilogue_steps = (problem.epilogue_ops + problem.epilogue_loads) as f64;

    // A panel of B (one K step of a block of columns) is read for every row of tiles, from the
    // level that holds it. Its rows of A are in the first level meanwhile; all of A's step is read
    // again for every further block of columns.
    let mut level_bytes = [0.0; 4];
    let tile_rows = (gm / rows).ceil();
    let block_columns = gn.min(mapping.columns as f64).max(1.0);
    let column_blocks = (gn / block_columns).ceil();
    let panel = depth * block_columns * bytes;
    let step_of_a = gm * depth * bytes;
    level_bytes[level(cpu, panel)] += (tile_rows - 1.0).max(0.0) * gn * k * bytes;
    level_bytes[level(cpu, step_of_a)] += (column_blocks - 1.0).max(0.0) * gm * k * bytes;
    // The first touch of operands comes from the level that holds the launch. A result that goes
    // around the caches is written to memory once; any other is fetched and written back.
    let output = problem.output.bytes() as f64;
    let launch = level(cpu, (m * k + k * n) * operand + m * n * output);
    level_bytes[launch] += (gm * k + gn * k) * operand;
    let (to, times) = if mapping.stream { (3, 1.0) } else { (launch, 2.0) };
    level_bytes[to] += times * gm * gn * output;
    Ok(padded(&[
        1.0,
        threads - 1.0,
        groups * (tiles * steps + 1.0),
        groups * tiles * k * multiply,
        groups * tiles * k * stall.max(0.0),
        groups * tiles * (steps - 1.0).max(0.0) * rows * vectors,
        groups * (packed_a + packed_b - gathered),
        groups * gathered,
        groups * epilogue_steps * gm * (gn / lanes).ceil(),
        groups * level_bytes[1],
        groups * level_bytes[2],
        groups * level_bytes[3],
    ]))
}
