//! Legality of row mappings on GPUs whose register file is known.

use super::rows::{MAX_PACK, check_loop};
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
    let RowMapping { lanes, subgroups, vector, pack, cluster, .. } = *mapping;
    require(gpu.f64 || problem.compute != tilewright_ir::DType::F64, Rule::TargetDtype, || {
        "the target has no f64 arithmetic".to_string()
    })?;
    require([1, 2, 4, 8].contains(&vector), Rule::VectorChoice, || format!("V = {vector}"))?;
    check_loop(problem, mapping)?;
    require(!mapping.cache || problem.reuses, Rule::CacheReuse, || {
        "every input is read by one phase only".to_string()
    })?;
    let ahead = problem.variant(mapping.cache).ahead_scalars > 0;
    require(!mapping.ahead || ahead, Rule::AheadLoads, || {
        "no phase after a reduction loads what none before does".to_string()
    })?;
    let most = problem.programs.min(MAX_PACK.into()).max(1);
    require(pack >= 1 && u64::from(pack) <= most, Rule::PackRange, || {
        format!("P = {pack}, at most {most}")
    })?;
    require(pack == 1 || subgroups == 1, Rule::PackWidth, || {
        format!("P = {pack} with S = {subgroups}")
    })?;
    let groups = 1..=gpu.max_cluster.max(1);
    require(groups.contains(&cluster) && (cluster == 1 || pack == 1), Rule::ClusterRange, || {
        format!("C = {cluster} with P = {pack}, at most {}", gpu.max_cluster)
    })?;
    require(lanes == gpu.lanes, Rule::LaneWidth, || {
        format!("{lanes} lanes, the subgroup has {}", gpu.lanes)
    })?;
    require(subgroups >= 1 && subgroups <= lanes, Rule::SubgroupLimit, || {
        format!("S = {subgroups}, at most {lanes}")
    })?;
    require(counts.threads <= gpu.max_threads.into(), Rule::ThreadsLimit, || {
        format!("{} threads, at most {}", counts.threads, gpu.max_threads)
    })?;
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
