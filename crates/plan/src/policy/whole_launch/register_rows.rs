//! Row programs on GPUs whose register file is known. Each term is an input: waves, occupancy and
//! the level that holds the tensors have closed forms there.
//!
//! A launch takes about the longer of two times: the *path* of a group, once for every wave in
//! which the cores take the groups, and its *work*, bytes and instructions of the busiest core. So
//! terms of the path are weighted by path/T and terms of the work by work/T, T² = path² + work²,
//! with both as the prices below give them: the weighted sum is then about T. The prices are those
//! of compute capability 9.0, from training shapes; they weight terms and promise no time.

use super::{Inputs, NAME, TermInfo, padded, term};
use crate::mapping::Mapping;
use crate::policy::gpu_rows::GpuRowCounts;
use crate::policy::{CandidateFacts, CandidateView, PolicyError, unsupported};
use crate::problem::Problem;

pub(super) const INPUTS: [&str; 12] = [
    "rounds",
    "slots",
    "clusters",
    "shared_loads",
    "ragged",
    "bytes",
    "issue",
    "accesses",
    "subgroups",
    "join_width",
    "kept",
    "reload",
];

pub(super) const TERMS: [TermInfo; 12] = [
    term("rounds", false, "path: a round of loads that waits for memory"),
    term("slots", false, "path: an element of a worker"),
    term("clusters", false, "path: a fold over a cluster's groups"),
    term("shared_loads", false, "path: a load of what all rows share, after a reduction"),
    term("ragged", false, "path: a guarded element of the last chunk"),
    term("bytes", false, "work: a megabyte, read or written"),
    term("issue", false, "work: an operation of the busiest core's schedulers"),
    term("accesses", false, "work: a subgroup's access to memory on the busiest core"),
    term("subgroups", false, "a subgroup of the busiest core"),
    term("join_width", false, "a subgroup's result that a fold over subgroups reads"),
    term("kept", false, "an element of a worker, however many waves"),
    term("reload", false, "inputs that are read again"),
];

/// Microseconds of a path: a round, an element of a worker, a fold, one with a barrier, one over a
/// cluster.
const PATH: [f64; 5] = [0.3, 0.012, 0.09, 0.06, 0.8];
/// Microseconds of work: a megabyte from memory, one from the second-level cache, an operation.
const WORK: [f64; 3] = [1.0 / 4.2, 1.0 / 7.0, 1.0 / 1755.0];

pub(super) fn inputs(view: &CandidateView<'_>) -> Result<Inputs, PolicyError> {
    let (Some(gpu), Problem::Rows(problem), Mapping::Rows(m), CandidateFacts::Rows(counts)) =
        (view.target.gpu_facts(), view.problem, view.mapping, view.facts)
    else {
        return Err(unsupported(NAME, view));
    };
    let c = GpuRowCounts::new(problem, gpu, m, counts);
    let slots = counts.slots as f64 * f64::from(m.batch);
    let joined = if m.subgroups > 1 || m.cluster > 1 { c.folds } else { 0.0 };
    let clusters = if m.cluster > 1 { c.folds } else { 0.0 };
    let path = c.waves
        * (PATH[0] * c.rounds
            + PATH[1] * slots
            + PATH[2] * c.folds
            + PATH[3] * joined
            + PATH[4] * clusters);
    let mega = 1e-6;
    let far = if c.near { [0.0, 1.0] } else { [1.0, 0.0] };
    let work = c.distinct * mega * (far[0] * WORK[0] + far[1] * WORK[1]) + WORK[2] * c.issue;
    let longer = (path * path + work * work).sqrt().max(f64::MIN_POSITIVE);
    let (slow, busy) = (path / longer, work / longer);
    let ragged = if c.ragged { f64::from(m.vector) * c.loops } else { 0.0 };
    Ok(padded(&[
        c.waves * c.rounds * slow,
        c.waves * slots * slow,
        c.waves * clusters * slow,
        c.waves * c.shared_loads * slow,
        c.waves * ragged * slow,
        (c.distinct * c.share + c.again) * mega * busy,
        c.issue * busy,
        c.accesses * busy,
        c.subgroups,
        joined * f64::from(m.subgroups),
        slots,
        f64::from(!m.cache),
    ]))
}
