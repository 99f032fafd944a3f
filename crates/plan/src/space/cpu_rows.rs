//! The row space on CPUs: vector width, rows per task, reuse choice, loop fusion, unroll factor,
//! partial accumulators.

use super::Unscored;
use crate::legality::{self, Rule};
use crate::mapping::{Mapping, RowMapping};
use crate::policy::CandidateFacts;
use crate::problem::RowProblem;
use crate::request::{PlanError, SpaceOptions};
use crate::rows::RowCounts;
use crate::target::CpuFacts;

/// How many rows a task may take: one (the pool then deals out runs of them), a thread's equal
/// share, and all, which keeps the launch on the calling thread.
fn packs(rows: u64, threads: u32) -> Vec<u32> {
    let most = u32::try_from(rows).unwrap_or(u32::MAX).max(1);
    let mut out = vec![1, most.div_ceil(threads.max(1)), most];
    out.dedup();
    out
}

/// Every candidate for a launch that at most `threads` threads share, in this order: vector width
/// (as listed; by default the widest alone), rows per task P ascending, reuse choice (reload, then
/// cache), fusion (on, then off), U ascending, accumulators ascending over the powers of two up to
/// U. Ties keep the earlier one.
///
/// # Errors
/// A width that the CPU's vectors don't come in, V other than 1, P of 0 or more than the rows, U
/// outside 1..=16, or more candidates than the budget.
pub fn candidates(
    problem: &RowProblem,
    cpu: &CpuFacts,
    options: &SpaceOptions,
    threads: u32,
) -> Result<Vec<Unscored>, PlanError> {
    let widths = cpu.widths(problem.compute.bytes());
    if let Some(other) = options.threads.iter().flatten().find(|x| !widths.contains(x)) {
        let detail = format!("threads = {other}, on this CPU a vector has {widths:?}");
        return Err(PlanError::illegal(Rule::ThreadsLimit, detail));
    }
    let lanes = options.threads.clone().unwrap_or_else(|| widths[..1].to_vec());
    if let Some(other) = options.vector.iter().flatten().find(|x| **x != 1) {
        let detail = format!("V = {other}, on this CPU it is 1");
        return Err(PlanError::illegal(Rule::VectorChoice, detail));
    }
    let most = problem.inner.max(1);
    if let Some(p) = options.pack.iter().flatten().find(|p| **p == 0 || u64::from(**p) > most) {
        let detail = format!("P = {p}, at least 1 and at most {most}");
        return Err(PlanError::illegal(Rule::PackRange, detail));
    }
    let packs = options.pack.clone().unwrap_or_else(|| packs(most, threads));
    let choices = |choice: Option<bool>, order: [bool; 2]| match choice {
        None => order.to_vec(),
        Some(one) => vec![one],
    };
    let unrolls = options.unroll.clone().unwrap_or_else(|| vec![1, 2, 4, 8]);
    if let Some(u) = unrolls.iter().find(|u| !(1..=16).contains(*u)) {
        return Err(PlanError::illegal(Rule::UnrollRange, format!("U = {u}")));
    }
    let mut out = Vec::new();
    for &lanes in &lanes {
        for &pack in &packs {
            for cache in choices(options.cache, [false, true]) {
                for fuse in choices(options.fuse, [true, false]) {
                    for &unroll in &unrolls {
                        let powers = (0..5).map(|p| 1u32 << p).filter(|a| *a <= unroll);
                        let base =
                            RowMapping { lanes, unroll, pack, cache, fuse, ..RowMapping::ONE };
                        out.extend(powers.map(|accumulators| RowMapping { accumulators, ..base }));
                    }
                }
            }
        }
    }
    if out.len() > options.max_candidates {
        let (count, budget) = (out.len(), options.max_candidates);
        let detail = format!("{count} candidates, at most {budget}");
        return Err(PlanError::illegal(Rule::SearchBudget, detail));
    }
    let unscored = |mapping: RowMapping| {
        let counts = RowCounts::new(problem, &mapping);
        Unscored {
            verdict: legality::cpu_rows::check(problem, cpu, &mapping, &counts),
            mapping: Mapping::Rows(mapping),
            facts: CandidateFacts::Rows(counts),
        }
    };
    Ok(out.into_iter().map(unscored).collect())
}
