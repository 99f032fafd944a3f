//! Legality of row mappings on GPUs whose register file is known.

use super::rows::check_mapping;
use super::{Rejection, Rule, require};
use crate::mapping::RowMapping;
use crate::policy::gpu_rows::registers;
use crate::problem::RowProblem;
use crate::rows::RowCounts;
use crate::target::GpuFacts;

/// Checks a row mapping, rules in this order: target-dtype, vector-choice, the loop rules,
/// cache-reuse, ahead-loads, pack-range, pack-width, cluster-range, lane-width, subgroup-limit,
/// threads-limit, register-budget, shared-memory.
///
/// # Errors
/// Names the first rule that the mapping breaks.
pub fn check(
    problem: &RowProblem,
    gpu: &GpuFacts,
    mapping: &RowMapping,
    counts: &RowCounts,
) -> Result<(), Rejection> {
    check_mapping(gpu, problem, mapping, counts, true)?;
    let needed = registers(problem, mapping, problem.columns_max);
    let share = gpu.registers_per_core.unwrap_or(0).checked_div(counts.threads).unwrap_or(0);
    let most = gpu.registers_per_thread.unwrap_or(0).min(share);
    require(needed <= most, Rule::RegisterBudget, || {
        format!("{needed} registers a thread, at most {most}")
    })?;
    require(counts.shared_bytes <= gpu.shared_bytes, Rule::SharedMemory, || {
        format!("{} bytes, at most {}", counts.shared_bytes, gpu.shared_bytes)
    })
}
