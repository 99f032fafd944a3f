//! Matrix products of MPP operations on GPUs.

use super::{Inputs, NAME, TermInfo, padded, term};
use crate::policy::matrix_mpp_v2::mpp_counts;
use crate::policy::{CandidateView, PolicyError};

/// Numbers that a candidate is described by; fragments and elements are of one program.
pub(super) const INPUTS: [&str; 7] = [
    "programs",
    "subgroups",
    "fragment_scalars",
    "matrix_issues",
    "footprint_fragments",
    "fragment_reads",
    "independent_elements",
];

pub(super) const TERMS: [TermInfo; 5] = [
    term("launch", false, "a launch"),
    term("footprint", false, "an operand fragment that some program needs, counted once a program"),
    term("reads", false, "an operand fragment that a subgroup reads"),
    term("issues", true, "an 8x8x8 product of a subgroup"),
    term("elements", true, "a subgroup's share in an element of a scalar loop"),
];

pub(super) fn once(term: usize, inputs: &Inputs) -> f64 {
    let [programs, subgroups, _, issues, footprint, reads, elements, ..] = *inputs;
    match term {
        0 => 1.0,
        1 => footprint * programs,
        2 => reads * programs,
        3 => issues / subgroups,
        4 => elements / subgroups,
        _ => 0.0,
    }
}

pub(super) fn inputs(view: &CandidateView<'_>) -> Result<Inputs, PolicyError> {
    let counts = mpp_counts(NAME, view)?;
    let f = &counts.features;
    Ok(padded(&[
        counts.programs as f64,
        (counts.subgroups as f64).max(1.0),
        counts.fragment_scalars_per_lane as f64,
        f.matrix_issues,
        f.lhs_footprint_fragments + f.rhs_footprint_fragments,
        f.memory_fragment_reads,
        counts.independent_elements as f64,
    ]))
}
