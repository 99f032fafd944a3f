//! Legality of register-tile matrix mappings on CPUs.

use tilewright_ir::DType;

use super::{Rejection, Rule, require};
use crate::mapping::CpuMatrixMapping;
use crate::policy::cpu_matrix::CpuMatrixCounts;
use crate::problem::MatrixProblem;
use crate::target::CpuFacts;

/// Checks a register-tile mapping, rules in this order: target-dtype, empty-tile, lane-width,
/// register-budget, pack-required, threads-limit, scratch-budget.
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
    // Accumulators, one row of B vectors, one broadcast of A.
    let registers = rows.saturating_mul(vectors).saturating_add(vectors).saturating_add(1);
    require(registers <= cpu.registers(), Rule::RegisterBudget, || {
        format!("{rows}x{vectors} tile takes {registers} vectors, at most {}", cpu.registers())
    })?;
    let narrow = problem.operand != accumulator;
    require(mapping.pack_a || !narrow, Rule::PackRequired, || {
        format!("A is {}, narrower than {accumulator}", problem.operand)
    })?;
    require(mapping.pack_b || !(narrow || problem.transposed[1]), Rule::PackRequired, || {
        "B is transposed or narrower than the accumulator".to_string()
    })?;
    require(mapping.threads >= 1 && mapping.threads <= cpu.cores, Rule::ThreadsLimit, || {
        format!("{} threads, at most {}", mapping.threads, cpu.cores)
    })?;
    require(counts.scratch_bytes <= cpu.scratch_bytes, Rule::ScratchBudget, || {
        format!("{} bytes, at most {}", counts.scratch_bytes, cpu.scratch_bytes)
    })
}
