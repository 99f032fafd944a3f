//! Row programs on GPUs whose register file is known. Each term is an input, in microseconds at the
//! prices below; a fit scales the parts.
//!
//! Two estimates, by where the tensors are. Rows that a group holds, of tensors that the
//! second-level cache holds, take the *phases* of a round of groups one after another: loads,
//! arithmetic, reductions, what all rows share, stores. A phase takes about the longer (a p-norm) of
//! what a lane does one thing after another and what the core issues or moves for all subgroups that
//! it runs at once; a further round of groups overlaps with the one before in part. Beside that
//! stands the launch, with its groups and subgroups, and the fetching of code that grows with the
//! elements of a worker. For longer rows and tensors in memory see `long_rows`.
//!
//! The prices are those of compute capability 9.0, from training shapes: most of `benches/cuda/labels`, and
//! four (late loads, a chain's elements, what all rows share, guarded last chunks) of a later run with the
//! present kernels, on 8 shapes in f32 and bf16. With a shape of those left out of the four's fit, picks
//! there lose 7.0 % on average (8.0 before). The kernels of two mappings that differ in nothing but the
//! number of accumulators differ by 3 to 10 %, by what the assembler makes of them, which no price knows.

use super::{Inputs, NAME, TermInfo, long_rows, padded, term};
use crate::mapping::{Mapping, RowMapping};
use crate::policy::gpu_matrix::RESERVED_BYTES;
use crate::policy::gpu_rows::{GpuRowCounts, distinct_bytes};
use crate::policy::{CandidateFacts, CandidateView, PolicyError, unsupported};
use crate::problem::{Problem, RowProblem};
use crate::rows::RowCounts;
use crate::target::GpuFacts;

pub(super) const INPUTS: [&str; 12] = [
    "launch", "text", "wait", "loads", "elements", "chains", "folds", "joins", "clusters",
    "reload", "shared", "stores",
];

pub(super) const TERMS: [TermInfo; 12] = [
    term("launch", false, "a launch, its groups and their subgroups"),
    term("text", false, "instructions of straight-line code"),
    term("wait", false, "the first loads' way"),
    term("loads", false, "loads, or the bytes that they move"),
    term("elements", false, "arithmetic of elements"),
    term("chains", false, "chains of reductions in a lane"),
    term("folds", false, "folds over the lanes of a subgroup"),
    term("joins", false, "folds over the subgroups of a row, and their barriers"),
    term("clusters", false, "folds over a cluster's groups"),
    term("reload", false, "inputs that are read again"),
    term("shared", false, "loads of what all rows share"),
    term("stores", false, "stores, or the bytes that they move"),
];

/// Columns below which the phases are the estimate.
const LONG: u64 = 16_384;
/// Part of the second-level cache that the tensors may take for the phases to be the estimate: a
/// launch finds all of it again. (`768x6144` in f32, with weights just above 0.6, where the other
/// estimate's picks lost 30 %.)
const CACHED: f64 = 0.75;
/// Microseconds of a launch, a group of the busiest core, a subgroup of it; of a cluster launch, and
/// of a group in a cluster.
const LAUNCH: [f64; 5] = [0.125, 0.0125, 0.00227, 0.238, 0.195];
/// Instructions beyond which text costs more, how soft that edge is; microseconds of an instruction
/// beyond and of any.
const TEXT: [f64; 4] = [1590.0, 60.0, 0.000253, 0.000104];
/// Microseconds until a load has arrived, and what rows that aren't whole accesses and a last chunk
/// of elements that are guarded one by one add. In the kernels of the labels a last chunk of whole
/// vectors had a second load that waited for the first: 0.118 us, and 0.243 us with loads ahead, 0.043
/// of what all rows share, 0.022 of inputs that are read again. Since then a vector is one load, so
/// these prices were fitted with the others and are left out.
const WAIT: [f64; 3] = [0.0128, 0.112, 0.0533];
/// Microseconds that it takes on average that the assembler puts some loads behind the first use of
/// others where it isn't told how many groups a core holds. It costs 0.27 in a kernel where it does so,
/// and nothing in most.
const LATE: f64 = 0.0101;
/// Microseconds of a lane's chunk: loaded, read again, of what all rows share, stored; and what loads
/// ahead of a reduction add to their share, and narrow accesses of ragged rows to theirs.
const CHUNK: [f64; 4] = [0.00275, 0.00272, 0.00909, 0.00165];
const AHEAD: f64 = 0.279;
const NARROW: [f64; 2] = [0.21, 0.444];
/// Microseconds of a guarded element of the last chunk, of a lane and of a scheduler.
const GUARDED: [f64; 2] = [0.00296, 0.000509];
/// Microseconds of a scheduler: an access of a subgroup, an element of a subgroup, a fold.
const ISSUE: [f64; 3] = [0.00132, 0.00248, 0.00667];
/// Microseconds of a byte of a core: loaded, read again, of what all rows share, stored.
const BYTE: [f64; 4] = [1.47e-5, 4.83e-6, 2.53e-6, 1.18e-5];
/// Microseconds of elements of a lane: of one, and the exponent of their number; and what elements
/// of 16 bits add to their share.
const ELEMENT: [f64; 3] = [0.094, 0.5804, 0.03];
/// Microseconds of a chain's addition, of doubling its sets, and its elements.
const CHAIN: [f64; 3] = [0.0024, 0.0322, 0.132];
/// Microseconds of a fold over lanes, of a barrier, of reading a subgroup's result, of a fold over a
/// cluster, of reading one there.
const FOLD: [f64; 5] = [0.0302, 0.0307, 0.0186, 0.306, 0.00518];
/// Microseconds until what is read again, and what all rows share, has arrived after a reduction.
const AGAIN: f64 = 0.0873;
const SHARED: f64 = 0.302;
/// Part of a last round that counts as a whole one, part of a further round that doesn't overlap,
/// and of its work that it adds.
const ROUND: [f64; 3] = [0.669 / 1.669, 1.03 / 2.03, 0.153];
/// Exponents: a lane and its core, issue and bytes.
const NORMS: [f64; 2] = [3.15, 4.0];
/// Most groups that a core holds.
const GROUPS: u64 = 32;

/// (aᵖ + bᵖ)^(1/p): about the longer of two times.
fn longer(a: f64, b: f64, p: f64) -> f64 {
    let (low, high) = (a.min(b), a.max(b));
    if high > 0.0 { high * libm::pow(1.0 + libm::pow(low / high, p), 1.0 / p) } else { 0.0 }
}

/// Inputs of a program: of its own, of all rows, and outputs.
struct Streams {
    own: f64,
    own_bytes: f64,
    shared: f64,
    stores: f64,
    store_bytes: f64,
}

impl Streams {
    fn of(problem: &RowProblem) -> Self {
        let mut out =
            Streams { own: 0.0, own_bytes: 0.0, shared: 0.0, stores: 0.0, store_bytes: 0.0 };
        let domains = &problem.reload.domains;
        for (i, domain) in domains.iter().enumerate() {
            for load in &domain.loads {
                // A handful of loads: looking back is faster than a set.
                let earlier = domains.iter().take(i).flat_map(|d| &d.loads);
                if earlier.into_iter().any(|l| l.value == load.value) {
                    continue;
                }
                if load.shared {
                    out.shared += 1.0;
                } else {
                    out.own += 1.0;
                    out.own_bytes += load.bytes as f64;
                }
            }
            if domain.store_bytes > 0 {
                out.stores += 1.0;
                out.store_bytes += domain.store_bytes as f64;
            }
        }
        out
    }
}

/// Groups that a core is likely to hold: what is kept in registers stays there, loads ahead share
/// theirs with what comes later, and 20 do for the rest.
fn held(gpu: &GpuFacts, problem: &RowProblem, m: &RowMapping, slots: f64) -> f64 {
    let all = gpu.registers_per_core.unwrap_or(0);
    let threads = m.threads().max(1);
    let words = problem.compute.bytes().div_ceil(4) as f64;
    let variant = problem.variant(m.cache);
    let kept = if variant.striped_tiles > 0 { slots * words } else { 0.0 };
    let ahead = if m.ahead { slots * variant.ahead_scalars as f64 } else { 0.0 };
    let each = ((20.0 + kept + ahead / 4.0).max(32.0) / 8.0).ceil() as u64 * 8;
    let each = each.min(255).min(all / threads / 8 * 8).max(8);
    let shared = crate::rows::shared_bytes(problem, m) + RESERVED_BYTES;
    let held = (all / (each * threads))
        .min(gpu.threads_per_core.map_or(1, |t| t / threads))
        .min(gpu.shared_bytes_per_core.map_or(1, |bytes| bytes / shared));
    held.max(m.resident.into()).clamp(1, GROUPS) as f64
}

fn phases(
    problem: &RowProblem,
    gpu: &GpuFacts,
    m: &RowMapping,
    counts: &RowCounts,
    c: &GpuRowCounts,
) -> Inputs {
    let flag = |is: bool| f64::from(u8::from(is));
    let streams = Streams::of(problem);
    let (e, vector) = (counts.slots as f64, f64::from(m.vector.max(1)));
    let chunks = (e / vector).ceil();
    let held = held(gpu, problem, m, e);
    let taken = (counts.groups as f64 / f64::from(gpu.cores.max(1))).ceil();
    let filled = taken / held;
    let at_once = taken.min(held);
    let subgroups = f64::from(m.subgroups) * f64::from(m.pack);
    // Subgroups of a scheduler at once, and bytes of a tensor of one byte an element.
    let busy = at_once * subgroups / 4.0;
    let elements =
        at_once * f64::from(m.pack) / f64::from(m.cluster.max(1)) * problem.columns as f64;
    let bytes = problem.dtype.bytes();
    let odd = flag(!(problem.columns * bytes).is_multiple_of(16));
    let ragged = flag(c.ragged);
    let guarded = ragged * vector;
    let narrow = NARROW.map(|n| 1.0 + odd * n);
    let access = chunks * ISSUE[0];
    let moved = |issue: f64, bytes: f64| longer(busy * issue, bytes, NORMS[1]);

    let alone = m.vector == 1 || !problem.columns.is_multiple_of(m.vector.into());
    let first = WAIT[0] + flag(m.resident == 0) * LATE;
    let wait = first + odd * WAIT[1] + ragged * flag(alone) * WAIT[2];
    // Streams of a row's own elements: how many, their bytes, prices of a chunk and of a byte.
    let own = |count: f64, bytes: f64, chunk: f64, byte: f64| {
        let path = chunks * chunk * narrow[0] + guarded * GUARDED[0];
        let issue = access * narrow[1] + guarded * GUARDED[1];
        count * longer(path, moved(issue, elements * bytes / count.max(1.0) * byte), NORMS[0])
    };
    let loads = own(streams.own, streams.own_bytes, CHUNK[0], BYTE[0]);
    let each = 1.0 + flag(bytes == 2) * ELEMENT[2];
    let issued = busy * e * each * ISSUE[1];
    let arithmetic = longer(ELEMENT[0] * each * libm::pow(e, ELEMENT[1]), issued, NORMS[0]);
    let sets = f64::from(m.accumulators.max(1));
    let chains = c.folds
        * (CHAIN[0] * (chunks / sets).ceil()
            + CHAIN[1] * libm::log2(sets)
            + CHAIN[2] * libm::log2(vector));
    let folds = c.folds * longer(FOLD[0], busy * ISSUE[2], NORMS[0]);
    let (wide, clustered) = (f64::from(m.subgroups), flag(m.cluster > 1));
    let joins = flag(c.joins > 0.0) * c.folds * (FOLD[1] + FOLD[2] * wide);
    let clusters = clustered * c.folds * (FOLD[3] + FOLD[4] * f64::from(m.cluster) * wide);
    let read = elements * streams.own_bytes;
    let reload = flag(!m.cache)
        * (AGAIN
            + streams.own
                * longer(
                    chunks * CHUNK[1],
                    moved(access, read / streams.own.max(1.0) * BYTE[1]),
                    NORMS[0],
                ));
    let once = elements / f64::from(m.pack.max(1)) * bytes as f64 * BYTE[2];
    let shared = flag(streams.shared > 0.0 && !m.ahead) * SHARED
        + streams.shared
            * longer(
                chunks * CHUNK[2] * (1.0 + flag(m.ahead) * AHEAD),
                moved(access, once),
                NORMS[0],
            );
    let stores = own(streams.stores, streams.store_bytes, CHUNK[3], BYTE[3]);
    // Further rounds overlap in part, and add work.
    let more =
        ROUND[0] * (filled.ceil() - 1.0).max(0.0) + (1.0 - ROUND[0]) * (filled - 1.0).max(0.0);
    let round = 1.0 + more * ROUND[1];
    let work = ROUND[2] * (filled - 1.0).max(0.0);

    let text = c.loops * (chunks * 2.0 * (1.0 + odd) + e * 2.0 + guarded * 6.0) + 60.0;
    let beyond = super::soft((text - TEXT[0]) / TEXT[1]) * TEXT[1];
    let launch = LAUNCH[0]
        + LAUNCH[1] * taken
        + LAUNCH[2] * taken * subgroups
        + clustered * (LAUNCH[3] + LAUNCH[4] * taken);
    padded(&[
        launch,
        TEXT[3] * text + TEXT[2] * beyond,
        wait * round + (wait - first) * work,
        loads * (round + work),
        arithmetic * round + issued * work,
        chains * round,
        folds * round,
        joins * round,
        clusters * round,
        reload * round,
        shared * round,
        stores * (round + work),
    ])
}

pub(super) fn inputs(view: &CandidateView<'_>) -> Result<Inputs, PolicyError> {
    let (Some(gpu), Problem::Rows(problem), Mapping::Rows(m), CandidateFacts::Rows(counts)) =
        (view.target.gpu_facts(), view.problem, view.mapping, view.facts)
    else {
        return Err(unsupported(NAME, view));
    };
    let c = GpuRowCounts::new(problem, gpu, m, counts);
    // Of all candidates of a problem or of none.
    let cached = distinct_bytes(problem) <= gpu.l2_bytes.unwrap_or(0) as f64 * CACHED;
    let short = cached && problem.columns < LONG && !problem.reductions.is_empty();
    Ok(match short {
        true => phases(problem, gpu, m, counts, &c),
        false => long_rows::inputs(m, counts, &c),
    })
}
