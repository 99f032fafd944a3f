//! Legality of row mappings on CPUs: a subgroup is one vector, a group is one row.

use super::rows::check_loop;
use super::{Rejection, Rule, require};
use crate::mapping::RowMapping;
use crate::problem::RowProblem;
use crate::rows::RowCounts;
use crate::target::CpuFacts;

/// Checks a row mapping, rules in this order: lane-width, threads-limit (one subgroup),
/// vector-choice, pack-range, the loop rules, cache-reuse, fuse-reduction, scratch-budget.
///
/// Stripes beyond the caches are slow, which is the policy's matter; only memory is a limit.
///
/// # Errors
/// Names the first rule that the mapping breaks.
pub fn check(
    problem: &RowProblem,
    cpu: &CpuFacts,
    mapping: &RowMapping,
    counts: &RowCounts,
) -> Result<(), Rejection> {
    let lanes = cpu.lanes(problem.compute.bytes());
    require(mapping.lanes == lanes, Rule::LaneWidth, || {
        format!("{} lanes, a vector of {} has {lanes}", mapping.lanes, problem.compute)
    })?;
    require(mapping.subgroups == 1, Rule::ThreadsLimit, || {
        format!("{} threads, a group is one vector of {lanes}", counts.threads)
    })?;
    require(mapping.vector == 1, Rule::VectorChoice, || format!("V = {}", mapping.vector))?;
    require(mapping.pack == 1, Rule::PackRange, || format!("P = {}, at most 1", mapping.pack))?;
    check_loop(problem, mapping)?;
    require(!mapping.cache || problem.reuses, Rule::CacheReuse, || {
        "every input is read by one phase only".to_string()
    })?;
    let fusable = problem.variant(mapping.cache).domains.iter().any(|d| d.follows_its_tile);
    require(!mapping.fuse || fusable, Rule::FuseReduction, || {
        "no reduction reads the tile of the loop right before it".to_string()
    })?;
    require(counts.stripe_bytes_max <= cpu.scratch_bytes, Rule::ScratchBudget, || {
        format!("{} bytes of stripes, at most {}", counts.stripe_bytes_max, cpu.scratch_bytes)
    })
}
