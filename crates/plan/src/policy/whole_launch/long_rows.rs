//! Row programs on GPUs whose rows are long or whose tensors lie in memory: parts of the inputs of
//! `gpu-register-rows`, in microseconds.
//!
//! A launch takes about the longer of two times: the *path* of a group, once for every wave in
//! which the cores take the groups, and its *work*, bytes and instructions of the busiest core. So
//! terms of the path are weighted by path/T and terms of the work by work/T, T² = path² + work²,
//! with both as the first prices below give them: the weighted sum is then about T. The second prices
//! are the nonnegative least squares of the relative error over labels of one NVIDIA H200
//! (`benches/cuda/labels`), over 0.75: the fit orders the candidates of a case, but its times of those
//! near the best are too short, by a quarter in the median case, since it has to fit all others too.

use super::{Inputs, padded};
use crate::mapping::RowMapping;
use crate::policy::gpu_rows::GpuRowCounts;
use crate::rows::RowCounts;

/// Microseconds of a path: a round, an element of a worker, a fold, one with a barrier, one over a
/// cluster.
const PATH: [f64; 5] = [0.3, 0.012, 0.09, 0.06, 0.8];
/// Microseconds of work: a megabyte from memory, one from the second-level cache, an operation.
const WORK: [f64; 3] = [1.0 / 4.2, 1.0 / 7.0, 1.0 / 1755.0];

/// Microseconds of the second prices: a round of loads, an element of a worker, a fold over a cluster, a
/// load of what all rows share, a guarded element, a megabyte, an operation of the busiest core's
/// schedulers, an access of a subgroup, a subgroup, a subgroup's result that is read, an element
/// however many waves, inputs that are read again.
const PRICES: [f64; 12] = [
    0.02577, 0.03188, 1.448, 0.01262, 0.06679, 0.2005, 6.024e-5, 0.000756, 0.01855, 0.05405,
    0.01708, 0.4383,
];

/// Groups of a cluster whose fold costs what the price says: the more meet, the longer they wait for the
/// last. And the part of it that is left where one subgroup of a group exchanges for all: as seen in
/// 98 pairs of mappings of 131072 columns (`benches/cuda/RESULTS.md`), which are 2.5 % faster so.
const MEET: f64 = 8.0;
const LEADER: f64 = 0.85;

pub(super) fn inputs(m: &RowMapping, counts: &RowCounts, c: &GpuRowCounts) -> Inputs {
    let slots = counts.slots as f64 * f64::from(m.batch);
    let joined = if m.subgroups > 1 || m.cluster > 1 { c.folds } else { 0.0 };
    let leads = if m.leader { LEADER } else { 1.0 };
    let clusters = if m.cluster > 1 { c.folds * f64::from(m.cluster) / MEET * leads } else { 0.0 };
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
    let counts = [
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
        f64::from(u8::from(!m.cache)),
    ];
    let mut parts = [0.0; 12];
    for (part, (count, price)) in parts.iter_mut().zip(counts.iter().zip(PRICES)) {
        *part = count * price;
    }
    let [
        rounds,
        elements,
        clusters,
        shared,
        guarded,
        bytes,
        issue,
        accesses,
        subgroups,
        joins,
        kept,
        reload,
    ] = parts;
    padded(&[
        subgroups,
        kept,
        rounds,
        bytes,
        elements + issue,
        0.0,
        0.0,
        joins,
        clusters,
        reload,
        shared,
        accesses + guarded,
    ])
}
