//! The row space of GPUs whose register file is known: subgroups per row, rows per group, vector
//! width, partial accumulators, and inputs kept in registers or read again.

use super::Unscored;
use crate::legality::{self, Rule};
use crate::mapping::{Mapping, RowMapping};
use crate::policy::CandidateFacts;
use crate::problem::RowProblem;
use crate::request::{PlanError, SpaceOptions};
use crate::rows::RowCounts;
use crate::target::GpuFacts;

/// Subgroups per row that are tried.
const SUBGROUPS: [u32; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32];
/// Rows per group where a row has one subgroup.
const PACKS: [u32; 4] = [1, 2, 4, 8];
/// Partial accumulators, each with a chunk of its own in a trip.
const ACCUMULATORS: [u32; 3] = [1, 2, 4];
/// Bytes of the widest access.
const WIDEST: u64 = 16;

/// Every candidate, in this order: reuse choice (cache, then reload), subgroups, rows per group,
/// vector width from the widest down, accumulators. Loops over the columns are fused, so that a
/// value is used while it is in a register. Ties in score keep the earlier one.
///
/// Vectors are whole accesses (16 bytes, 8 bytes) where the columns are a multiple of them, and
/// one or two elements where they aren't. A group has at least one element for every worker of all
/// but its last subgroup.
///
/// # Errors
/// A V, U or P outside its range; more candidates than the budget.
pub fn candidates(
    problem: &RowProblem,
    gpu: &GpuFacts,
    options: &SpaceOptions,
) -> Result<Vec<Unscored>, PlanError> {
    let columns = problem.columns;
    let widest = (WIDEST / problem.dtype.bytes().max(1)).clamp(1, 8);
    let narrow = (widest / 2).max(1);
    let vectors = match &options.vector {
        Some(list) => list.clone(),
        None if columns.is_multiple_of(widest) => vec![widest as u32, narrow as u32],
        None if columns.is_multiple_of(narrow) && narrow > 2 => vec![narrow as u32, 2],
        None => vec![2, 1],
    };
    if let Some(v) = vectors.iter().find(|v| ![1, 2, 4, 8].contains(*v)) {
        return Err(PlanError::illegal(Rule::VectorChoice, format!("V = {v}")));
    }
    let accumulators = options.unroll.clone().unwrap_or_else(|| ACCUMULATORS.to_vec());
    if let Some(u) = accumulators.iter().find(|u| !(1..=16).contains(*u)) {
        return Err(PlanError::illegal(Rule::UnrollRange, format!("U = {u}")));
    }
    let packs = options.pack.clone().unwrap_or_else(|| PACKS.to_vec());
    if let Some(p) = packs.iter().find(|p| !(1..=legality::rows::MAX_PACK).contains(*p)) {
        return Err(PlanError::illegal(Rule::PackRange, format!("P = {p}")));
    }
    let caches = match options.cache {
        None if problem.reuses => vec![true, false],
        None => vec![false],
        Some(one) => vec![one],
    };
    let mut out = Vec::new();
    for cache in caches {
        for subgroups in SUBGROUPS {
            for &pack in packs.iter().filter(|p| **p == 1 || subgroups == 1) {
                for &vector in &vectors {
                    for &sets in &accumulators {
                        let workers = 32 * u64::from(subgroups);
                        let chunk = workers * u64::from(vector);
                        // A last subgroup without an element would only meet at the barriers.
                        let idle = 32 * u64::from(subgroups - 1) * u64::from(vector) >= columns;
                        // Sets of accumulators need a trip of as many whole chunks.
                        let short = sets > 1 && columns / chunk < u64::from(sets);
                        let ordered = problem.reductions.iter().any(|r| !r.unordered);
                        let folds = !problem.reductions.is_empty() && !ordered;
                        let threads = workers * u64::from(pack);
                        let wanted = options
                            .threads
                            .as_ref()
                            .is_none_or(|list| list.iter().any(|t| u64::from(*t) == threads));
                        if idle && subgroups > 1 || short || !wanted {
                            continue;
                        }
                        if out.len() == options.max_candidates {
                            let detail = format!("more than {} candidates", options.max_candidates);
                            return Err(PlanError::illegal(Rule::SearchBudget, detail));
                        }
                        let mapping = RowMapping {
                            lanes: gpu.lanes,
                            subgroups,
                            vector,
                            unroll: sets,
                            accumulators: if folds { sets } else { 1 },
                            pack,
                            cache,
                            fuse: true,
                        };
                        let counts = RowCounts::new(problem, &mapping);
                        out.push(Unscored {
                            verdict: legality::gpu_rows::check(problem, gpu, &mapping, &counts),
                            mapping: Mapping::Rows(mapping),
                            facts: CandidateFacts::Rows(counts),
                        });
                    }
                }
            }
        }
    }
    Ok(out)
}
