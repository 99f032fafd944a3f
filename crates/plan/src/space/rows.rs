//! The row space on GPUs (reference 5.1): every width, both reuse choices, V = 4, U = 1, P = 1
//! unless the options say otherwise.

use super::Unscored;
use crate::legality::{self, Rule};
use crate::mapping::{Mapping, RowMapping};
use crate::policy::CandidateFacts;
use crate::problem::RowProblem;
use crate::request::{PlanError, SpaceOptions};
use crate::rows::RowCounts;
use crate::target::GpuFacts;

/// Default vector width (all the reference's experiments).
pub const DEFAULT_VECTOR: u32 = 4;

/// Every candidate, in this order: reuse choice (reload, then cache), V, U, P, width. The options'
/// lists keep their order; widths by default ascend. Ties in score keep the earlier one.
///
/// # Errors
/// A width that is no multiple of a subgroup or over the target's limit; a V, U or P outside its
/// range; more widths or candidates than the budget.
pub fn candidates(
    problem: &RowProblem,
    gpu: &GpuFacts,
    options: &SpaceOptions,
) -> Result<Vec<Unscored>, PlanError> {
    let caches: &[bool] = match options.cache {
        None => &[false, true],
        Some(false) => &[false],
        Some(true) => &[true],
    };
    let one = |list: &Option<Vec<u32>>, default| list.clone().unwrap_or_else(|| vec![default]);
    let vectors = one(&options.vector, DEFAULT_VECTOR);
    let unrolls = one(&options.unroll, 1);
    let packs = one(&options.pack, 1);
    if let Some(v) = vectors.iter().find(|v| ![1, 2, 4, 8].contains(*v)) {
        return Err(PlanError::illegal(Rule::VectorChoice, format!("V = {v}")));
    }
    if let Some(u) = unrolls.iter().find(|u| !(1..=16).contains(*u)) {
        return Err(PlanError::illegal(Rule::UnrollRange, format!("U = {u}")));
    }
    if let Some(p) = packs.iter().find(|p| !(1..=legality::rows::MAX_PACK).contains(*p)) {
        return Err(PlanError::illegal(Rule::PackRange, format!("P = {p}")));
    }

    // Most widths have eight choices or fewer; candidates are large, so their list shouldn't grow often.
    let choices = caches.len() * vectors.len() * unrolls.len() * packs.len() * 8;
    let mut out = Vec::with_capacity(choices.min(options.max_candidates));
    for &cache in caches {
        for &vector in &vectors {
            for &unroll in &unrolls {
                for &pack in &packs {
                    for subgroups in widths(gpu, options, pack)? {
                        if out.len() == options.max_candidates {
                            let budget = options.max_candidates;
                            return Err(PlanError::illegal(
                                Rule::SearchBudget,
                                format!("more than {budget} candidates"),
                            ));
                        }
                        let mapping = RowMapping {
                            lanes: gpu.lanes,
                            subgroups,
                            vector,
                            unroll,
                            accumulators: 1,
                            pack,
                            cache,
                            fuse: false,
                            ..RowMapping::ONE
                        };
                        let counts = RowCounts::new(problem, &mapping);
                        out.push(Unscored {
                            verdict: legality::rows::check(problem, gpu, &mapping, &counts),
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

/// Subgroups per program, S. Threads asked for fix S = T/(lanes·P); else every S for P = 1, and
/// S = 1 for an explicit P > 1 (reference 5.1).
fn widths(gpu: &GpuFacts, options: &SpaceOptions, pack: u32) -> Result<Vec<u32>, PlanError> {
    let widths: Vec<u32> = match &options.threads {
        Some(threads) => threads
            .iter()
            .map(|&t| {
                let unit = gpu.lanes.saturating_mul(pack).max(1);
                if t > gpu.max_threads {
                    let limit = gpu.max_threads;
                    let detail = format!("{t} threads, at most {limit}");
                    Err(PlanError::illegal(Rule::ThreadsLimit, detail))
                } else if t == 0 || !t.is_multiple_of(unit) {
                    let detail = format!("{t} threads, not a multiple of {unit}");
                    Err(PlanError::illegal(Rule::ThreadsMultiple, detail))
                } else {
                    Ok(t / unit)
                }
            })
            .collect::<Result<_, _>>()?,
        None if pack > 1 => vec![1],
        None => (1..=gpu.max_row_subgroups()).collect(),
    };
    if widths.len() > options.max_thread_candidates {
        let (count, budget) = (widths.len(), options.max_thread_candidates);
        let detail = format!("{count} widths, at most {budget}");
        return Err(PlanError::illegal(Rule::SearchBudget, detail));
    }
    Ok(widths)
}
