//! Legality of row mappings on GPUs (reference 5.1 and 5.4).

use super::{Rejection, Rule, require};
use crate::mapping::RowMapping;
use crate::problem::RowProblem;
use crate::rows::RowCounts;
use crate::target::GpuFacts;

/// Most programs that one group packs (reference 1.6).
pub const MAX_PACK: u32 = 8;

/// Checks a row mapping, rules in this order: target-dtype, vector-choice, unroll-range,
/// accumulator rules, fuse-reduction, cache-reuse, ahead-loads, pack-range, pack-width,
/// cluster-range, split-range, lane-width, subgroup-limit, threads-limit, cache-hints,
/// private-budget, shared-memory.
///
/// # Errors
/// Names the first rule that the mapping breaks.
pub fn check(
    problem: &RowProblem,
    gpu: &GpuFacts,
    mapping: &RowMapping,
    counts: &RowCounts,
) -> Result<(), Rejection> {
    check_mapping(gpu, problem, mapping, counts, false)?;
    require(counts.private_scalars_max <= gpu.private_scalars, Rule::PrivateBudget, || {
        format!("{} scalars a worker, at most {}", counts.private_scalars_max, gpu.private_scalars)
    })?;
    require(counts.shared_bytes <= gpu.shared_bytes, Rule::SharedMemory, || {
        format!("{} bytes, at most {}", counts.shared_bytes, gpu.shared_bytes)
    })
}

/// The rules that hold on every GPU, whatever it states of its registers; `wide` says whether its
/// space fuses loops and has hints to the second-level cache.
pub(super) fn check_mapping(
    gpu: &GpuFacts,
    problem: &RowProblem,
    mapping: &RowMapping,
    counts: &RowCounts,
    wide: bool,
) -> Result<(), Rejection> {
    let RowMapping { lanes, subgroups, vector, pack, cluster, .. } = *mapping;
    require(gpu.f64 || problem.compute != tilewright_ir::DType::F64, Rule::TargetDtype, || {
        "the target has no f64 arithmetic".to_string()
    })?;
    require([1, 2, 4, 8].contains(&vector), Rule::VectorChoice, || format!("V = {vector}"))?;
    check_loop(problem, mapping)?;
    require(wide || !mapping.fuse, Rule::FuseReduction, || {
        "loops are not fused on this target".to_string()
    })?;
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
    let several = cluster > 1 && subgroups > 1 && wide;
    require(!mapping.leader || several, Rule::ClusterRange, || {
        format!("a leader among S = {subgroups} subgroups for C = {cluster} groups")
    })?;
    check_split(problem, mapping, wide)?;
    require(lanes == gpu.lanes, Rule::LaneWidth, || {
        format!("{lanes} lanes, the subgroup has {}", gpu.lanes)
    })?;
    require(subgroups >= 1 && subgroups <= lanes, Rule::SubgroupLimit, || {
        format!("S = {subgroups}, at most {lanes}")
    })?;
    require(counts.threads <= gpu.max_threads.into(), Rule::ThreadsLimit, || {
        format!("{} threads, at most {}", counts.threads, gpu.max_threads)
    })?;
    require(wide || mapping.residency.is_normal(), Rule::CacheHints, || {
        format!("residency {}", mapping.residency.name())
    })?;
    if !wide {
        check_plain(mapping)?;
    }
    Ok(())
}

/// The rules of targets that neither stage rows nor run several side by side.
pub(super) fn check_plain(mapping: &RowMapping) -> Result<(), Rejection> {
    let RowMapping { stage, batch, resident, .. } = *mapping;
    require(!stage, Rule::StageCopies, || "rows aren't staged on this target".to_string())?;
    require(batch == 1, Rule::BatchRange, || format!("B = {batch}, at most 1 on this target"))?;
    require(resident == 0, Rule::ResidentRange, || {
        format!("{resident} groups a core on a target that has no such limit")
    })
}

/// Whether groups may share a row over several launches; `registers` says whether the target states
/// its registers.
fn check_split(
    problem: &RowProblem,
    mapping: &RowMapping,
    registers: bool,
) -> Result<(), Rejection> {
    let RowMapping { split, cluster, pack, batch, cache, ahead, stage, .. } = *mapping;
    if split == 1 {
        return Ok(());
    }
    let alone = cluster == 1 && pack == 1 && batch == 1 && !cache && !ahead && !stage;
    require(split > 0 && registers && alone, Rule::SplitRange, || {
        format!("G = {split} with C = {cluster}, P = {pack}, cache {cache}, loads ahead {ahead}")
    })?;
    require(problem.static_grid, Rule::SplitRange, || {
        "scratch of partial results needs the number of rows".to_string()
    })?;
    require(problem.reductions.iter().all(|r| r.unordered), Rule::SplitRange, || {
        "a reduction states its order".to_string()
    })
}

/// The rules of unroll factor and partial accumulators, common to GPUs and CPUs.
pub(super) fn check_loop(problem: &RowProblem, mapping: &RowMapping) -> Result<(), Rejection> {
    let RowMapping { unroll, accumulators, .. } = *mapping;
    require((1..=16).contains(&unroll), Rule::UnrollRange, || format!("U = {unroll}"))?;
    require(accumulators >= 1 && accumulators <= unroll, Rule::AccumulatorRange, || {
        format!("{accumulators} accumulators with U = {unroll}")
    })?;
    if accumulators > 1 {
        require(!problem.reductions.is_empty(), Rule::AccumulatorRange, || {
            format!("{accumulators} accumulators and no reduction")
        })?;
        require(problem.reductions.iter().all(|r| r.unordered), Rule::AccumulatorOrder, || {
            format!("{accumulators} accumulators with a stated order")
        })?;
    }
    Ok(())
}
