//! Legality of row mappings on CPUs: a subgroup is one vector, a group is a task of one or more rows.

use super::rows::{check_loop, check_plain};
use super::{Rejection, Rule, require};
use crate::mapping::RowMapping;
use crate::problem::RowProblem;
use crate::rows::RowCounts;
use crate::target::CpuFacts;

/// Checks a row mapping, rules in this order: lane-width, threads-limit (one subgroup),
/// vector-choice, pack-range, the loop rules, cache-reuse, fuse-reduction, cache-hints,
/// scratch-budget.
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
    let widths = cpu.widths(problem.compute.bytes());
    require(widths.contains(&mapping.lanes), Rule::LaneWidth, || {
        format!("{} lanes, a vector of {} has {widths:?}", mapping.lanes, problem.compute)
    })?;
    require(mapping.subgroups == 1, Rule::ThreadsLimit, || {
        format!("{} subgroups, a group is one vector", mapping.subgroups)
    })?;
    require(mapping.vector == 1, Rule::VectorChoice, || format!("V = {}", mapping.vector))?;
    let most = problem.inner.max(1);
    require(mapping.pack >= 1 && u64::from(mapping.pack) <= most, Rule::PackRange, || {
        format!("P = {}, at most {most}", mapping.pack)
    })?;
    check_loop(problem, mapping)?;
    require(!mapping.cache || problem.reuses, Rule::CacheReuse, || {
        "every input is read by one phase only".to_string()
    })?;
    let fusable = problem.variant(mapping.cache).domains.iter().any(|d| d.follows_its_tile);
    require(!mapping.fuse || fusable, Rule::FuseReduction, || {
        "no reduction reads the tile of the loop right before it".to_string()
    })?;
    require(mapping.residency.is_normal(), Rule::CacheHints, || {
        format!("residency {}", mapping.residency.name())
    })?;
    check_plain(mapping)?;
    require(counts.stripe_bytes_max <= cpu.scratch_bytes, Rule::ScratchBudget, || {
        format!("{} bytes of stripes, at most {}", counts.stripe_bytes_max, cpu.scratch_bytes)
    })
}
