//! Row programs on GPUs whose register file is known. Each term is an input: waves, occupancy and
//! the level that holds the tensors have closed forms there.
//!
//! A launch takes about the longer of its path and its traffic. So terms of the path are weighted
//! by path/(path + traffic) and terms of traffic by traffic/(path + traffic), both as
//! `crate::policy::gpu_rows` estimates them: their sum is then about the larger.

use super::{Inputs, NAME, TermInfo, padded, term};
use crate::mapping::Mapping;
use crate::policy::gpu_rows::GpuRowCounts;
use crate::policy::{CandidateFacts, CandidateView, PolicyError, unsupported};
use crate::problem::Problem;

pub(super) const INPUTS: [&str; 12] = [
    "launch",
    "rounds",
    "chain",
    "folds",
    "joins",
    "join_width",
    "groups",
    "issue",
    "accesses",
    "near_bytes",
    "far_bytes",
    "starved",
];

pub(super) const TERMS: [TermInfo; 12] = [
    term("launch", false, "a launch"),
    term("rounds", false, "a round of dependent loads, a wave"),
    term("chain", false, "an instruction of a lane, a wave"),
    term("folds", false, "a fold over a subgroup's lanes, a wave"),
    term("joins", false, "a fold over subgroups with its barrier, a wave"),
    term("join_width", false, "a subgroup's result that such a fold reads, a wave"),
    term("groups", false, "a group of the busiest core"),
    term("issue", false, "an instruction that a scheduler of the busiest core issues"),
    term("accesses", false, "a subgroup's access to global memory on the busiest core"),
    term("near_bytes", false, "a megabyte through the second-level cache"),
    term("far_bytes", false, "a megabyte from and to memory"),
    term("starved", false, "a megabyte that too few loads in flight hold up"),
];

/// Bytes that must be in flight on the whole machine for its memory to be busy: bandwidth times
/// latency, 4.2 TB/s for 0.8 microseconds.
const IN_FLIGHT: f64 = 3.4e6;

pub(super) fn inputs(view: &CandidateView<'_>) -> Result<Inputs, PolicyError> {
    let (Some(gpu), Problem::Rows(problem), Mapping::Rows(m), CandidateFacts::Rows(counts)) =
        (view.target.gpu_facts(), view.problem, view.mapping, view.facts)
    else {
        return Err(unsupported(NAME, view));
    };
    let c = GpuRowCounts::new(problem, gpu, m, counts);
    let (path, traffic) = (c.path(m.subgroups), c.traffic());
    let slow = path / (path + traffic).max(f64::MIN_POSITIVE);
    let busy = 1.0 - slow;
    let mega = 1e-6;
    let far = if c.near { 0.0 } else { c.distinct * mega };
    let wanting = (IN_FLIGHT / c.in_flight.max(1.0) - 1.0).max(0.0);
    Ok(padded(&[
        1.0,
        c.waves * c.rounds * slow,
        c.waves * c.chain * slow,
        c.waves * c.folds * slow,
        c.waves * c.joins * slow,
        c.waves * c.joins * f64::from(m.subgroups) * slow,
        c.groups_per_core,
        c.issue * busy,
        c.accesses,
        (c.distinct + c.again) * mega * busy,
        far * busy,
        far * wanting.min(8.0),
    ]))
}
