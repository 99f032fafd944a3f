//! The row space of GPUs whose register file is known: groups and subgroups per row, rows per
//! group, vector width, partial accumulators, loads ahead of a reduction, and inputs kept in
//! registers or read again.

use super::{Unscored, split_rows};
use crate::legality::{self, Rule};
use crate::mapping::{Mapping, Residency, RowMapping};
use crate::policy::CandidateFacts;
use crate::policy::gpu_matrix::RESERVED_BYTES;
use crate::policy::gpu_rows::{distinct_bytes, registers};
use crate::problem::RowProblem;
use crate::request::{PlanError, SpaceOptions};
use crate::rows::RowCounts;
use crate::target::GpuFacts;

/// Subgroups per row and group that are tried.
const SUBGROUPS: [u32; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32];
/// Rows per group where a row has one subgroup.
const PACKS: [u32; 4] = [1, 2, 4, 8];
/// Partial accumulators, each with a chunk of its own in a trip.
const ACCUMULATORS: [u32; 2] = [1, 4];
/// Groups per row, by length: beyond the second length one group can't hold a row.
const CLUSTERS: [(u64, &[u32]); 3] =
    [(8192, &[1]), (65_536, &[1, 2, 4, 8]), (u64::MAX, &[1, 4, 8, 16])];
/// Fewest subgroups of a group in a cluster.
const CLUSTERED: u32 = 4;
/// Most elements of a worker for which several accumulators, and loads ahead, are tried.
const SHORT: u64 = 32;
/// Most elements of a worker.
const LONGEST: u64 = 128;
/// Shortest rows of 16-bit elements that are staged in shared memory.
const STAGED: u64 = 16_384;
/// Fewest registers of a worker of those: with 40, LayerNorm of 32768 columns took 9 % longer.
const HELD: u64 = 64;
/// Rows side by side of those.
const BATCHES: [u32; 2] = [1, 2];
/// Share of the second-level cache that tensors take of which launches are told how many groups a
/// core holds, and the most such groups.
const NEAR: f64 = 0.6;
const MOST: u64 = 32;
/// Most bytes of inputs and outputs, in sizes of the second-level cache, for which it is told to keep a
/// part of the inputs: at 1.07 that took 11 to 20 % less time than keeping all, at 2.13 1.5 to 3 %
/// less, at 4.27 as long or up to 1 % more.
const PARTED: f64 = 3.0;
/// Bytes of the widest access.
const WIDEST: u64 = 16;

/// Every candidate, in this order: groups per row, reuse choice (cache, then reload), subgroups,
/// rows per group, vector width from the widest down, registers before shared memory, loads ahead
/// (with, then without), accumulators, registers as the assembler likes, then by the groups that a core
/// holds. Loops over the columns are fused, so that a value is used
/// while it is in a register. Ties in score keep the earlier one.
///
/// - Vectors are whole accesses (16 bytes, 8 bytes) where the columns are a multiple of them; else
///   two elements or one, of long rows one.
/// - Every subgroup of a row has an element, and no worker more than 128.
/// - Clusters are for rows from 8192 columns on, in groups of at least 4 subgroups, and keep their
///   inputs.
/// - Several accumulators are for workers of 4 to 8 chunks or more elements, up to 32; loads ahead
///   for workers of at most 32 elements.
/// - Rows from 16384 columns on of 16-bit elements, and longer than 65536 of others, are staged in
///   shared memory too, one or two at once: in registers, few groups fit a core at the same time. In
///   clusters, every subgroup exchanges its partial results itself, or a leader does, which is
///   priced lower.
/// - The second-level cache is told to keep inputs where it can't hold all inputs and outputs, for
///   the widest vectors and rows in registers; where they are at most three times as large, also to
///   keep a part of the inputs (benches/cuda/RESULTS.md).
/// - Where a core can take twice its groups of a launch at once, one set of accumulators comes with and
///   without that number, of rows in registers, of tensors that the second-level cache holds.
/// - Rows over several launches come last: see [`split_rows::mappings`].
///
/// # Errors
/// A V, U or P outside its range; more candidates than the budget.
pub fn candidates(
    problem: &RowProblem,
    gpu: &GpuFacts,
    options: &SpaceOptions,
) -> Result<Vec<Unscored>, PlanError> {
    let vectors = options.vector.clone().unwrap_or_else(|| vectors(problem));
    if let Some(v) = vectors.iter().find(|v| ![1, 2, 4, 8].contains(*v)) {
        return Err(PlanError::illegal(Rule::VectorChoice, format!("V = {v}")));
    }
    let accumulators = options.unroll.clone().unwrap_or_else(|| ACCUMULATORS.to_vec());
    if let Some(u) = accumulators.iter().find(|u| !(1..=16).contains(*u)) {
        return Err(PlanError::illegal(Rule::UnrollRange, format!("U = {u}")));
    }
    let packs = options.pack.clone().unwrap_or_else(|| PACKS.to_vec());
    if let Some(p) = packs.iter().find(|p| !(1..=legality::rows::MAX_PACK).contains(*p)) {
        return Err(PlanError::illegal(Rule::PackRange, format!("P = {p}")));
    }
    let caches = match options.cache {
        None if problem.reuses => vec![true, false],
        None => vec![false],
        Some(one) => vec![one],
    };
    let choices = Choices { vectors, accumulators, packs, caches };
    let mut out = Vec::new();
    judge(problem, gpu, options, mappings(problem, gpu, &choices), &mut out)?;
    let none = out.iter().all(|c| c.verdict.is_err());
    if choices.caches.contains(&false) && choices.packs.contains(&1) {
        let Choices { vectors, accumulators, .. } = &choices;
        let split = split_rows::mappings(problem, gpu, vectors, accumulators, none);
        judge(problem, gpu, options, split, &mut out)?;
    }
    Ok(out)
}

/// Adds mappings with their verdicts.
fn judge(
    problem: &RowProblem,
    gpu: &GpuFacts,
    options: &SpaceOptions,
    mappings: Vec<RowMapping>,
    out: &mut Vec<Unscored>,
) -> Result<(), PlanError> {
    for mapping in mappings {
        let threads = |list: &Vec<u32>| list.iter().any(|t| u64::from(*t) == mapping.threads());
        if !options.threads.as_ref().is_none_or(threads) {
            continue;
        }
        if out.len() == options.max_candidates {
            let detail = format!("more than {} candidates", options.max_candidates);
            return Err(PlanError::illegal(Rule::SearchBudget, detail));
        }
        let counts = RowCounts::new(problem, &mapping);
        out.push(Unscored {
            verdict: legality::gpu_rows::check(problem, gpu, &mapping, &counts),
            mapping: Mapping::Rows(mapping),
            facts: CandidateFacts::Rows(counts),
        });
    }
    Ok(())
}

/// Choices of a request.
struct Choices {
    vectors: Vec<u32>,
    accumulators: Vec<u32>,
    packs: Vec<u32>,
    caches: Vec<bool>,
}

fn vectors(problem: &RowProblem) -> Vec<u32> {
    let widest = (WIDEST / problem.dtype.bytes().max(1)).clamp(1, 8);
    let narrow = (widest / 2).max(1);
    match problem.columns {
        n if n.is_multiple_of(widest) => vec![widest as u32, narrow as u32],
        n if n.is_multiple_of(narrow) && narrow > 2 => vec![narrow as u32, 2],
        n if n < CLUSTERS[0].0 => vec![2, 1],
        _ => vec![1],
    }
}

fn mappings(problem: &RowProblem, gpu: &GpuFacts, choices: &Choices) -> Vec<RowMapping> {
    let columns = problem.columns;
    let clusters = CLUSTERS.iter().find(|(end, _)| columns < *end).map_or(&[1][..], |(_, c)| c);
    let ordered = problem.reductions.iter().any(|r| !r.unordered);
    let folds = !problem.reductions.is_empty() && !ordered;
    let sizes = gpu.l2_bytes.map_or(0.0, |all| distinct_bytes(problem) / all as f64);
    let hints: &[Residency] = match sizes {
        ..=1.0 => &[Residency::Normal],
        ..=PARTED => &[Residency::Keep, Residency::Part],
        _ => &[Residency::Keep],
    };
    let mut out = Vec::new();
    for &cluster in clusters.iter().filter(|c| **c == 1 || folds && **c <= gpu.max_cluster) {
        for &cache in choices.caches.iter().filter(|c| **c || cluster == 1) {
            for subgroups in SUBGROUPS.into_iter().filter(|s| cluster == 1 || *s >= CLUSTERED) {
                let alone = subgroups == 1 && cluster == 1;
                for &pack in choices.packs.iter().filter(|p| **p == 1 || alone) {
                    for &vector in &choices.vectors {
                        let base = RowMapping {
                            lanes: gpu.lanes,
                            subgroups,
                            cluster,
                            vector,
                            pack,
                            cache,
                            fuse: true,
                            ..RowMapping::ONE
                        };
                        // A last subgroup without an element would only meet at the barriers.
                        let others = base.workers().saturating_sub(gpu.lanes.into());
                        let idle = others > 0 && others * u64::from(vector) >= columns;
                        if idle || columns.div_ceil(base.workers()) > LONGEST {
                            continue;
                        }
                        let widest = choices.vectors.iter().max() == Some(&vector);
                        for &residency in if widest { hints } else { &[Residency::Normal] } {
                            let hinted = RowMapping { residency, ..base };
                            variants((problem, gpu), choices, hinted, folds, &mut out);
                        }
                        staged(problem, gpu, base, folds, &mut out);
                    }
                }
            }
        }
    }
    out
}

/// The same rows in shared memory, one or two side by side, in as many groups at the same time as a
/// core's shared memory and registers hold, without hints, which their copies can't carry. Long rows
/// only: short ones fit registers many times over.
fn staged(
    problem: &RowProblem,
    gpu: &GpuFacts,
    base: RowMapping,
    folds: bool,
    out: &mut Vec<RowMapping>,
) {
    let wide = u64::from(base.vector) * problem.dtype.bytes() == WIDEST;
    let each = problem.columns.div_ceil(base.workers());
    let shortest = if problem.dtype.bytes() == 2 { STAGED } else { CLUSTERS[1].0 + 1 };
    let long = problem.columns >= shortest && each >= SHORT / 2;
    let copied = problem.copied.bytes > 0
        && problem.copied.aligned.is_multiple_of(base.vector.into())
        && problem.copied.element[0] == problem.copied.element[1];
    if !(folds && long && wide && copied && base.cache && base.pack == 1 && !problem.updates) {
        return;
    }
    for batch in BATCHES.into_iter().filter(|b| u64::from(*b) <= problem.inner) {
        let m = RowMapping { stage: true, batch, ..base };
        let bytes = crate::rows::shared_bytes(problem, &m) + RESERVED_BYTES;
        let shared = gpu.shared_bytes_per_core.unwrap_or(0) / bytes.max(1);
        let threads = gpu.threads_per_core.unwrap_or(0) / m.threads().max(1);
        let held = gpu.registers_per_core.unwrap_or(0) / (m.threads() * HELD).max(1);
        let groups = shared.min(threads).min(held);
        // A single group on a core waits alone at every barrier.
        if groups >= 2 {
            let m = RowMapping { resident: groups as u32, ..m };
            out.push(m);
            if m.cluster > 1 && m.subgroups > 1 {
                out.push(RowMapping { leader: true, ..m });
            }
        }
    }
}

/// How many groups a core is told to hold where it takes all of its groups at once, with room for those
/// of the next launch, which start while they end: twice as many. Left to itself, the assembler saves
/// registers that nobody needs then, by loads that stand behind the first use of others.
fn together(problem: &RowProblem, gpu: &GpuFacts, m: RowMapping) -> Option<u32> {
    let near = distinct_bytes(problem) <= gpu.l2_bytes.unwrap_or(0) as f64 * NEAR;
    if !(near && m.cache && m.pack == 1 && m.cluster == 1 && problem.columns < STAGED) {
        return None;
    }
    let taken = problem.programs.div_ceil(gpu.cores.max(1).into());
    let each = m.threads() * registers(problem, &m, problem.columns);
    let groups = taken.saturating_mul(2);
    let fits = groups.saturating_mul(each) <= gpu.registers_per_core.unwrap_or(0)
        && groups.saturating_mul(m.threads()) <= gpu.threads_per_core.unwrap_or(0)
        && (1..=MOST).contains(&groups);
    fits.then_some(groups as u32)
}

/// The loads ahead and accumulators of a mapping, and the groups that a core holds at once.
fn variants(
    (problem, gpu): (&RowProblem, &GpuFacts),
    choices: &Choices,
    base: RowMapping,
    folds: bool,
    out: &mut Vec<RowMapping>,
) {
    let each = problem.columns.div_ceil(base.workers());
    let ahead = problem.variant(base.cache).ahead_scalars > 0 && each <= SHORT;
    for ahead in [true, false].into_iter().filter(|a| !a || ahead) {
        for &sets in &choices.accumulators {
            let chunks = problem.columns / (base.workers() * u64::from(base.vector));
            if sets > 1 && (chunks < u64::from(sets) || each > SHORT) {
                continue;
            }
            let accumulators = if folds { sets } else { 1 };
            let m = RowMapping { unroll: sets, accumulators, ahead, ..base };
            out.push(m);
            if folds && accumulators == 1 {
                out.extend(together(problem, gpu, m).map(|resident| RowMapping { resident, ..m }));
            }
        }
    }
}
