//! The row space on CPUs: unroll factor, partial accumulators, reuse choice, loop fusion.

use super::Unscored;
use crate::legality::{self, Rule};
use crate::mapping::{Mapping, RowMapping};
use crate::policy::CandidateFacts;
use crate::problem::RowProblem;
use crate::request::{PlanError, SpaceOptions};
use crate::rows::RowCounts;
use crate::target::CpuFacts;

/// Every candidate, in this order: reuse choice (reload, then cache), fusion (on, then off), U
/// ascending, accumulators ascending over the powers of two up to U. Ties keep the earlier one.
///
/// # Errors
/// A width other than the vector's, V or P other than 1, U outside 1..=16, or more candidates
/// than the budget.
pub fn candidates(
    problem: &RowProblem,
    cpu: &CpuFacts,
    options: &SpaceOptions,
) -> Result<Vec<Unscored>, PlanError> {
    let lanes = cpu.lanes(problem.compute.bytes());
    for (list, only, rule, name) in [
        (&options.threads, lanes, Rule::ThreadsLimit, "threads"),
        (&options.vector, 1, Rule::VectorChoice, "V"),
        (&options.pack, 1, Rule::PackRange, "P"),
    ] {
        if let Some(other) = list.iter().flatten().find(|x| **x != only) {
            let detail = format!("{name} = {other}, on this CPU it is {only}");
            return Err(PlanError::illegal(rule, detail));
        }
    }
    let choices = |choice: Option<bool>, order: [bool; 2]| match choice {
        None => order.to_vec(),
        Some(one) => vec![one],
    };
    let unrolls = options.unroll.clone().unwrap_or_else(|| vec![1, 2, 4, 8]);
    if let Some(u) = unrolls.iter().find(|u| !(1..=16).contains(*u)) {
        return Err(PlanError::illegal(Rule::UnrollRange, format!("U = {u}")));
    }
    let mut out = Vec::new();
    for cache in choices(options.cache, [false, true]) {
        for fuse in choices(options.fuse, [true, false]) {
            for &unroll in &unrolls {
                let powers = (0..5).map(|p| 1u32 << p).filter(|a| *a <= unroll);
                for accumulators in powers {
                    let mapping =
                        RowMapping { lanes, unroll, accumulators, cache, fuse, ..RowMapping::ONE };
                    let counts = RowCounts::new(problem, &mapping);
                    out.push(Unscored {
                        verdict: legality::cpu_rows::check(problem, cpu, &mapping, &counts),
                        mapping: Mapping::Rows(mapping),
                        facts: CandidateFacts::Rows(counts),
                    });
                }
            }
        }
    }
    if out.len() > options.max_candidates {
        let (count, budget) = (out.len(), options.max_candidates);
        let detail = format!("{count} candidates, at most {budget}");
        return Err(PlanError::illegal(Rule::SearchBudget, detail));
    }
    Ok(out)
}
