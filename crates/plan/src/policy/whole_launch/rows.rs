//! Row programs on GPUs.

use super::{Inputs, NAME, TermInfo, padded, term};
use crate::policy::reduction_v1::gpu_rows;
use crate::policy::{CandidateView, PolicyError};
use crate::problem::{Problem, RowProblem};

/// Numbers that a candidate is described by. Bytes are of the whole launch.
pub(super) const INPUTS: [&str; 7] = [
    "programs",
    "subgroups",
    "private_scalars",
    "scalar_rounds",
    "reductions",
    "distinct_bytes",
    "global_bytes",
];

pub(super) const TERMS: [TermInfo; 6] = [
    term("launch", false, "a launch"),
    term("distinct_bytes", false, "a byte of the tensors, counted once however often it is read"),
    term("reread_bytes", false, "a global byte that is read again"),
    term("rounds", true, "a scalar round of the busiest worker"),
    term("collective_width", true, "a subgroup's share in a reduction"),
    term("collective_depth", true, "a level of a reduction's tree over subgroups"),
];

pub(super) fn once(term: usize, inputs: &Inputs) -> f64 {
    let [_, subgroups, _, rounds, reductions, distinct, global, ..] = *inputs;
    match term {
        0 => 1.0,
        1 => distinct,
        2 => (global - distinct).max(0.0),
        3 => rounds,
        4 => reductions * subgroups,
        5 => reductions * (1.0 + levels(subgroups)),
        _ => 0.0,
    }
}

/// ⌈log₂ n⌉ of a small count, without a logarithm.
fn levels(n: f64) -> f64 {
    let mut levels = 0.0;
    let mut reach = 1.0;
    while reach < n {
        reach *= 2.0;
        levels += 1.0;
    }
    levels
}

/// Bytes that a launch must move at least: own inputs and outputs of every program, and inputs
/// that all programs share, once.
fn distinct_bytes(problem: &RowProblem, cache: bool) -> f64 {
    let domains = &problem.variant(cache).domains;
    let (mut own, mut shared) = (0u64, 0u64);
    for (i, domain) in domains.iter().enumerate() {
        for load in &domain.loads {
            // A handful of loads: looking back is faster than a set, and this runs for every
            // candidate.
            let earlier = domains.iter().take(i).flat_map(|d| &d.loads);
            if !earlier.into_iter().any(|l| l.value == load.value) {
                *(if load.shared { &mut shared } else { &mut own }) += load.bytes;
            }
        }
        own += domain.store_bytes;
    }
    problem.columns as f64 * (problem.programs as f64 * own as f64 + shared as f64)
}

pub(super) fn inputs(view: &CandidateView<'_>) -> Result<Inputs, PolicyError> {
    let (mapping, counts) = gpu_rows(NAME, view)?;
    let missing = |fact: &str, reason: &str| PolicyError::MissingFact {
        policy: NAME.to_string(),
        fact: fact.to_string(),
        reason: reason.to_string(),
    };
    let Problem::Rows(problem) = view.problem else {
        return Err(missing("the row problem", "the candidate is of another family"));
    };
    let Some(bytes) = &counts.program_bytes else {
        return Err(missing("payload bytes", "they are unknown for this program"));
    };
    let programs = counts.programs as f64;
    Ok(padded(&[
        programs,
        f64::from(mapping.subgroups),
        counts.private_scalars as f64,
        counts.scalar_rounds as f64,
        counts.reductions as f64,
        distinct_bytes(problem, mapping.cache),
        programs * (bytes.global_read + bytes.global_write) as f64,
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_the_depth_of_a_binary_tree() {
        for (n, depth) in [(1.0, 0.0), (2.0, 1.0), (3.0, 2.0), (4.0, 2.0), (5.0, 3.0), (32.0, 5.0)]
        {
            assert_eq!(levels(n), depth);
        }
    }
}
