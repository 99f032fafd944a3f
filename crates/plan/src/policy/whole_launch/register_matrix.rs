//! Matrix products of register tiles on GPUs whose register file is known. Each term is an input;
//! the time of a step goes to the one resource that bounds it.

use super::{Inputs, NAME, TermInfo, padded, term};
use crate::mapping::Mapping;
use crate::policy::gpu_matrix::{Bound, Steps};
use crate::policy::{CandidateView, PolicyError, unsupported};
use crate::problem::Problem;

pub(super) const INPUTS: [&str; 12] = [
    "launch", "second", "combined", "starts", "issue", "shared", "cache", "chain", "arrival",
    "meeting", "output", "memory",
];

pub(super) const TERMS: [TermInfo; 12] = [
    term("launch", false, "a launch"),
    term("second", false, "a second launch that adds slices"),
    term("combined", false, "a megabyte of sums that it reads and writes"),
    term("starts", false, "a round of groups: first loads and last stores"),
    term("issue", false, "a microsecond of steps bound by what schedulers issue"),
    term("shared", false, "a microsecond of steps bound by shared memory"),
    term("cache", false, "a microsecond of steps bound by the second-level cache"),
    term("chain", false, "a microsecond of steps bound by a lane's chain of products"),
    term("arrival", false, "a microsecond of steps bound by the arrival of copies"),
    term("meeting", false, "a microsecond of sets that meet in shared memory"),
    term("output", false, "a microsecond of stores"),
    term("memory", false, "a megabyte from and to memory"),
];

pub(super) fn inputs(view: &CandidateView<'_>) -> Result<Inputs, PolicyError> {
    let (Some(gpu), Problem::Matrix(problem), Mapping::GpuMatrix(m)) =
        (view.target.gpu_facts(), view.problem, view.mapping)
    else {
        return Err(unsupported(NAME, view));
    };
    let s = Steps::new(problem, gpu, m);
    let bound = |which: Bound| if s.bound == which { s.rounds * s.steps * s.step } else { 0.0 };
    let second = f64::from(m.slices > 1);
    Ok(padded(&[
        1.0,
        second,
        second * s.combined * 1e-6,
        s.rounds,
        bound(Bound::Issue),
        bound(Bound::Shared),
        bound(Bound::Cache),
        bound(Bound::Chain),
        bound(Bound::Arrival),
        s.rounds * s.meeting,
        s.rounds * s.output,
        s.bytes * 1e-6,
    ]))
}
