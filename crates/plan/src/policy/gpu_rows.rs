//! Closed-form counts of row programs on GPUs whose register file is known.

use std::collections::HashSet;

use tilewright_ir::program::{MapOp, ValueId};

use crate::mapping::{Residency, RowMapping};
use crate::problem::mix::OpMix;
use crate::problem::{DomainNumbers, RowProblem};
use crate::rows::{RowCounts, slots};
use crate::target::GpuFacts;

/// Registers that addresses, counters, conditions and scalars take.
const ADDRESSES: u64 = 24;
/// Most groups that a core holds.
const GROUPS: u64 = 32;
/// Time of memory traffic with hints to the second-level cache over that without, as seen on an H200
/// with blocks of one row (benches/cuda/RESULTS.md): where it is told to keep inputs, and where everything
/// is streamed, which is faster in short runs and slower in long ones.
const KEEP: f64 = 0.97;
const STREAM: f64 = 1.02;
/// What is saved where it is told to keep a part of the inputs, for inputs and outputs of 1.07 times its
/// size, that size, and the power of the size by which less is saved: a twentieth at 2.13 times.
const PART: [f64; 3] = [0.14, 1.07, 1.5];
/// Cycles from an addition to the use of its sum.
const ADD: f64 = 4.0;

/// Time of the memory traffic of a program with hints over that without.
fn share(problem: &RowProblem, gpu: &GpuFacts, residency: Residency) -> f64 {
    match residency {
        Residency::Normal => 1.0,
        Residency::Keep => KEEP,
        Residency::Stream => STREAM,
        Residency::Part => {
            let cache = gpu.l2_bytes.unwrap_or(0).max(1) as f64;
            let size = (distinct_bytes(problem) / cache).max(PART[1]);
            1.0 - PART[0] * libm::pow(PART[1] / size, PART[2])
        }
    }
}

/// Registers of a thread at a row length, from above: stripes that are alive at the same time, two
/// chunks of values, addresses.
///
/// A stripe that is made from another takes its place element by element, so only one is counted.
pub fn registers(problem: &RowProblem, mapping: &RowMapping, columns: u64) -> u64 {
    let words = problem.compute.bytes().div_ceil(4);
    let whole = mapping.split == 1 && !mapping.stage;
    let striped = whole && problem.variant(mapping.cache).striped_tiles > 0;
    let slots = slots(columns, mapping.workers(), mapping.vector.into());
    let ahead = if mapping.ahead { problem.variant(mapping.cache).ahead_scalars } else { 0 };
    let batch = u64::from(mapping.batch);
    let kept = slots.saturating_mul(batch * if striped { words } else { 0 } + ahead);
    let chunks = 2 * u64::from(mapping.vector) * u64::from(mapping.accumulators) * words;
    kept.saturating_add(chunks + ADDRESSES).next_multiple_of(8)
}

/// Groups that a core can hold by registers, shared memory and threads, at least 1.
pub fn resident(gpu: &GpuFacts, problem: &RowProblem, mapping: &RowMapping) -> u64 {
    let threads = mapping.threads().max(1);
    let by = |all: Option<u64>, each: u64| all.map_or(1, |all| all / each.max(1));
    let mut each = registers(problem, mapping, problem.columns);
    if let (Some(all), true) = (gpu.registers_per_core, mapping.resident > 0) {
        // The assembler keeps to the share.
        each = each.min(all / (threads * u64::from(mapping.resident)).max(1));
    }
    let registers = threads * each;
    let shared = crate::rows::shared_bytes(problem, mapping) + super::gpu_matrix::RESERVED_BYTES;
    by(gpu.registers_per_core, registers)
        .min(by(gpu.shared_bytes_per_core, shared))
        .min(by(gpu.threads_per_core, threads))
        .clamp(1, GROUPS)
}

/// Instructions that one element of an operation costs.
fn map_instructions(op: MapOp) -> f64 {
    match op {
        MapOp::Exp => 5.0,
        MapOp::Log | MapOp::Sqrt => 8.0,
        // A divisor that a row shares is inverted once.
        MapOp::Div => 2.0,
        MapOp::Tanh | MapOp::Erf => 16.0,
        MapOp::Mod => 20.0,
        MapOp::Max | MapOp::Min => 1.0,
        _ => 1.0,
    }
}

fn mix_instructions(mix: &OpMix) -> f64 {
    let maps = mix.maps.iter().fold(0.0, |sum, (op, n)| sum + map_instructions(*op) * *n as f64);
    maps + (mix.casts + mix.indices) as f64
}

/// What a launch amounts to. Bytes are of the whole launch, cycles of one group alone.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct GpuRowCounts {
    /// Groups that a core holds at the same time, from above.
    pub resident: f64,
    /// Waves in which the cores take the groups.
    pub waves: f64,
    /// Groups of the busiest core.
    pub groups_per_core: f64,
    /// Loads of a lane that wait for one another: one a loop that reads own inputs into registers,
    /// one a trip where a loop reads them again.
    pub rounds: f64,
    /// Instructions of a lane, one after another.
    pub chain: f64,
    /// Folds over the lanes of a subgroup.
    pub folds: f64,
    /// Folds over the subgroups of a row, each with a barrier.
    pub joins: f64,
    /// Instructions that one scheduler of the busiest core issues.
    pub issue: f64,
    /// Accesses to memory that the busiest core issues, one a subgroup.
    pub accesses: f64,
    /// Subgroups that the busiest core runs, one after another or at once.
    pub subgroups: f64,
    /// Loops over the columns.
    pub loops: f64,
    /// Loads, by a lane, of what all rows share, that wait for a reduction.
    pub shared_loads: f64,
    /// Bytes of the tensors, each counted once.
    pub distinct: f64,
    /// Bytes that are read again.
    pub again: f64,
    /// Launches, one after another.
    pub launches: f64,
    /// Whether the second-level cache holds the tensors.
    pub near: bool,
    /// Whether a last chunk is guarded.
    pub ragged: bool,
    /// Time of memory traffic over that without hints to the second-level cache.
    pub share: f64,
}

/// Bytes of the tensors of a launch, each counted once: what memory moves at least.
pub fn distinct_bytes(problem: &RowProblem) -> f64 {
    let (rows, columns) = (problem.programs as f64, problem.columns as f64);
    let mut seen: HashSet<ValueId> = HashSet::new();
    problem.reload.domains.iter().fold(0.0, |sum, domain| {
        let loads = domain.loads.iter().filter(|l| seen.insert(l.value));
        let read = loads.fold(0.0, |sum, load| {
            sum + load.bytes as f64 * columns * if load.shared { 1.0 } else { rows }
        });
        sum + read + domain.store_bytes as f64 * columns * rows
    })
}

/// Loops of a row, as the lowering fuses domains: a domain that reads the result of a reduction of
/// the loop starts another.
fn loops(domains: &[DomainNumbers], fuse: bool) -> Vec<Vec<&DomainNumbers>> {
    let mut out: Vec<Vec<&DomainNumbers>> = Vec::new();
    let mut pending = false;
    for domain in domains {
        let joins = fuse && !(pending && domain.scalars > 0);
        match out.last_mut() {
            Some(last) if joins => last.push(domain),
            _ => {
                out.push(vec![domain]);
                pending = false;
            }
        }
        pending |= domain.is_reduction();
    }
    out
}

impl GpuRowCounts {
    /// Counts a mapping of a problem.
    pub fn new(
        problem: &RowProblem,
        gpu: &GpuFacts,
        mapping: &RowMapping,
        counts: &RowCounts,
    ) -> Self {
        let all = problem.variant(mapping.cache);
        let apart = (mapping.split > 1).then(|| all.without_stripes());
        let variant = apart.as_ref().unwrap_or(all);
        let cores = f64::from(gpu.cores.max(1));
        let (rows, columns) = (problem.programs as f64, problem.columns as f64);
        let vector = f64::from(mapping.vector.max(1));
        let slots = counts.slots as f64;
        let chunks = (slots / vector).ceil();
        let resident = resident(gpu, problem, mapping) as f64;
        let groups = counts.groups as f64;
        let subgroups = f64::from(mapping.subgroups) * f64::from(mapping.pack);
        let striped = variant.striped_tiles > 0;
        let batch = f64::from(mapping.batch.max(1));
        let mut out = GpuRowCounts {
            resident,
            waves: (groups / (cores * resident)).ceil().max(1.0),
            groups_per_core: (groups / cores).ceil(),
            folds: problem.reductions.len() as f64,
            share: share(problem, gpu, mapping.residency),
            ragged: !problem.columns.is_multiple_of(mapping.workers() * u64::from(mapping.vector)),
            ..Self::default()
        };
        if mapping.subgroups > 1 || mapping.cluster > 1 {
            out.joins = out.folds;
        }
        let mut seen: HashSet<ValueId> = HashSet::new();
        let (mut shared_bytes, mut operations, mut accesses) = (0.0, 0.0, 0.0);
        for domains in loops(&variant.domains, mapping.fuse) {
            out.loops += 1.0;
            let (mut own, mut loads, mut work) = (0.0, 0.0, 0.0);
            let mut here: HashSet<ValueId> = HashSet::new();
            for domain in domains {
                work += mix_instructions(&domain.mix) + f64::from(domain.is_reduction());
                if domain.is_reduction() {
                    // Each set of accumulators is a chain over its chunks, then they meet.
                    let sets = f64::from(mapping.accumulators.max(1));
                    out.chain += ADD * ((chunks / sets).ceil() + (sets - 1.0));
                }
                for load in domain.loads.iter().filter(|l| here.insert(l.value)) {
                    loads += 1.0;
                    let bytes = load.bytes as f64;
                    match (load.shared, seen.insert(load.value)) {
                        (true, true) => {
                            shared_bytes += bytes * columns;
                            out.shared_loads += if mapping.ahead { 0.0 } else { chunks };
                        }
                        // Once a core at least, from the second-level cache.
                        (true, false) => {}
                        (false, first) => {
                            own += bytes;
                            *(if first { &mut out.distinct } else { &mut out.again }) +=
                                bytes * columns * rows;
                        }
                    }
                }
                if domain.store_bytes > 0 {
                    loads += 1.0;
                    out.distinct += domain.store_bytes as f64 * columns * rows;
                }
            }
            if own > 0.0 {
                let trips = (chunks / f64::from(mapping.unroll.max(1))).ceil();
                // A loop that fills or reads stripes is straight-line code, all loads first.
                out.rounds += if striped { 1.0 } else { trips.max(1.0) };
            }
            operations += slots * work;
            accesses += chunks * loads;
            out.chain += slots * work + chunks * loads * 2.0;
        }
        // A group's rows follow one another, but for their folds.
        out.chain *= batch;
        (operations, accesses) = (operations * batch, accesses * batch);
        out.distinct += shared_bytes;
        out.subgroups = out.groups_per_core * subgroups;
        out.issue = out.subgroups * operations / 4.0;
        out.accesses = out.subgroups * accesses;
        let cache = gpu.l2_bytes.unwrap_or(0) as f64;
        out.near = out.distinct <= cache * 0.6;
        out.launches = 1.0;
        if mapping.split > 1 {
            // A launch for each loop, and a last one where nothing is stored but a row's results.
            let stores = variant.domains.iter().any(|d| d.store_bytes > 0);
            out.launches = out.loops + if stores { 0.0 } else { 1.0 };
            // What a launch reads again the cache has lost, unless it holds everything.
            if !out.near {
                (out.distinct, out.again) = (out.distinct + out.again, 0.0);
            }
        }
        out
    }
}
