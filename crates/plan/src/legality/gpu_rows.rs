//! Legality of row mappings on GPUs whose register file is known.

use super::rows::{MAX_PACK, check_mapping};
use super::{Rejection, Rule, check_groups, require};
use crate::mapping::RowMapping;
use crate::policy::gpu_matrix::RESERVED_BYTES;
use crate::policy::gpu_rows::registers;
use crate::problem::RowProblem;
use crate::rows::RowCounts;
use crate::target::GpuFacts;

/// Checks a row mapping, rules in this order: target-dtype, vector-choice, the loop rules,
/// cache-reuse, ahead-loads, pack-range, pack-width, cluster-range, split-range, lane-width,
/// subgroup-limit, threads-limit, cache-hints, stage-copies, batch-range, resident-range,
/// groups-limit, register-budget, shared-memory.
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
    check_stage(problem, mapping)?;
    check_batch(problem, mapping)?;
    check_resident(gpu, mapping, counts)?;
    check_groups(counts.groups)?;
    let needed = registers(problem, mapping, problem.columns_max);
    let together = counts.threads.saturating_mul(mapping.resident.max(1).into());
    let share = gpu.registers_per_core.unwrap_or(0).checked_div(together).unwrap_or(0);
    let most = gpu.registers_per_thread.unwrap_or(0).min(share);
    require(needed <= most, Rule::RegisterBudget, || {
        format!("{needed} registers a thread, at most {most}")
    })?;
    require(counts.shared_bytes <= gpu.shared_bytes, Rule::SharedMemory, || {
        format!("{} bytes, at most {}", counts.shared_bytes, gpu.shared_bytes)
    })
}

/// Every input that the cache variant copies goes by copies of 4, 8 or 16 bytes to an aligned place.
fn check_stage(problem: &RowProblem, mapping: &RowMapping) -> Result<(), Rejection> {
    if !mapping.stage {
        return Ok(());
    }
    let vector = u64::from(mapping.vector);
    let copied = &problem.copied;
    require(mapping.cache && copied.bytes > 0, Rule::StageCopies, || {
        "no input is cached, or one isn't copied whole".to_string()
    })?;
    require(mapping.pack == 1, Rule::StageCopies, || format!("P = {}", mapping.pack))?;
    require(copied.aligned.is_multiple_of(vector), Rule::StageCopies, || {
        format!("copies of {vector} elements where {} are proved aligned", copied.aligned)
    })?;
    let bytes = copied.element.map(|bytes| bytes * vector);
    require(bytes.iter().all(|b| [4, 8, 16].contains(b)), Rule::StageCopies, || {
        format!("copies of {} to {} bytes", bytes[1], bytes[0])
    })
}

fn check_batch(problem: &RowProblem, mapping: &RowMapping) -> Result<(), Rejection> {
    let RowMapping { batch, pack, ahead, .. } = *mapping;
    let most = problem.inner.min(MAX_PACK.into()).max(1);
    require(batch >= 1 && u64::from(batch) <= most, Rule::BatchRange, || {
        format!("B = {batch}, at most {most}")
    })?;
    let free = problem.reductions.iter().all(|r| r.unordered) && !problem.updates;
    require(batch == 1 || (pack == 1 && !ahead && free), Rule::BatchRange, || {
        format!("B = {batch} with P = {pack}, loads ahead: {ahead}, in any order: {free}")
    })
}

fn check_resident(
    gpu: &GpuFacts,
    mapping: &RowMapping,
    counts: &RowCounts,
) -> Result<(), Rejection> {
    let groups = u64::from(mapping.resident);
    let threads = counts.threads.saturating_mul(groups);
    let shared = counts.shared_bytes.saturating_add(RESERVED_BYTES).saturating_mul(groups);
    let fits = threads <= gpu.threads_per_core.unwrap_or(0)
        && shared <= gpu.shared_bytes_per_core.unwrap_or(0);
    require(groups <= 1 || fits, Rule::ResidentRange, || {
        format!("{groups} groups a core: {threads} threads, {shared} bytes of shared memory")
    })
}
