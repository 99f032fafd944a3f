//! Legality of register-tile matrix mappings on CPUs.

use tilewright_ir::DType;

use super::{Rejection, Rule, require};
use crate::mapping::{CpuIsa, CpuMatrixMapping};
use crate::policy::cpu_matrix::CpuMatrixCounts;
use crate::problem::MatrixProblem;
use crate::target::CpuFacts;

/// Vector registers that the statements of a mapping's tiles need at once: accumulators, one row
/// of B vectors, one broadcast of A, and on AVX2 the mask of a partial vector.
pub fn registers(problem: &MatrixProblem, cpu: &CpuFacts, mapping: &CpuMatrixMapping) -> u32 {
    let [rows, vectors] = mapping.tile;
    let partial = !problem.divisor[1].is_multiple_of(u64::from(mapping.lanes.max(1)));
    let mask = u32::from(partial && !mapping.pack_b && cpu.isa != CpuIsa::Avx512);
    // One row of A uses each B vector once, straight from memory.
    let row = if rows == 1 && mask == 0 { 0 } else { vectors };
    rows.saturating_mul(vectors).saturating_add(row).saturating_add(1 + mask)
}

/// Checks a register-tile mapping, rules in this order: target-dtype, empty-tile, lane-width,
/// tile-multiple, register-budget, pack-required, stream-output, threads-limit, scratch-budget.
///
/// # Errors
/// Names the first rule that the mapping breaks.
pub fn check(
    problem: &MatrixProblem,
    cpu: &CpuFacts,
    mapping: &CpuMatrixMapping,
    counts: &CpuMatrixCounts,
) -> Result<(), Rejection> {
    let accumulator = problem.accumulator;
    require(matches!(accumulator, DType::F32 | DType::F64), Rule::TargetDtype, || {
        format!("register tiles accumulate f32 or f64, not {accumulator}")
    })?;
    let [rows, vectors] = mapping.tile;
    require(
        rows > 0
            && vectors > 0
            && mapping.depth > 0
            && mapping.columns > 0
            && mapping.group.iter().all(|g| *g > 0),
        Rule::EmptyTile,
        || format!("tile {rows}x{vectors}, depth {}, group {:?}", mapping.depth, mapping.group),
    )?;
    let lanes = cpu.lanes(accumulator.bytes());
    require(mapping.lanes == lanes, Rule::LaneWidth, || {
        format!("{} lanes, a vector of {accumulator} has {lanes}", mapping.lanes)
    })?;
    let width = u64::from(vectors) * u64::from(lanes);
    require(
        mapping.group[0].is_multiple_of(u64::from(rows))
            && mapping.group[1].is_multiple_of(width)
            && mapping.columns.is_multiple_of(width),
        Rule::TileMultiple,
        || {
            format!(
                "group {:?} and blocks of {} columns for tiles of {rows}x{width}",
                mapping.group, mapping.columns
            )
        },
    )?;
    let needed = registers(problem, cpu, mapping);
    require(needed <= cpu.registers(), Rule::RegisterBudget, || {
        format!("{rows}x{vectors} tile takes {needed} vectors, at most {}", cpu.registers())
    })?;
    let narrow = problem.operand != accumulator;
    let partial = !problem.divisor[1].is_multiple_of(u64::from(lanes));
    require(mapping.pack_b || !problem.transposed[1], Rule::PackRequired, || {
        "B is transposed: its columns aren't consecutive".to_string()
    })?;
    require(
        mapping.pack_b || !narrow || !partial || cpu.isa == CpuIsa::Avx512,
        Rule::PackRequired,
        || format!("no partial vectors of {} in place", problem.operand),
    )?;
    require(!mapping.stream || counts.in_place && counts.steps == 1, Rule::StreamOutput, || {
        format!("{} K steps, sums in place: {}", counts.steps, counts.in_place)
    })?;
    require(mapping.threads >= 1 && mapping.threads <= cpu.cores, Rule::ThreadsLimit, || {
        format!("{} threads, at most {}", mapping.threads, cpu.cores)
    })?;
    require(counts.scratch_bytes <= cpu.scratch_bytes, Rule::ScratchBudget, || {
        format!("{} bytes, at most {}", counts.scratch_bytes, cpu.scratch_bytes)
    })
}
