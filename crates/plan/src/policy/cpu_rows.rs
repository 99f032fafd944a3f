//! The row part of the `cpu` policy.
//!
//! A program's cycles are the sum over its loops of the larger of arithmetic and memory time, a
//! share of the smaller, and the loop's own cost. Arithmetic of a reduction is at least its latency chain over the partial accumulators.
//! The first loop that reads an input pays for the level that holds the whole launch's data;
//! later ones, and stripes, pay for the level that holds the row.

use std::collections::HashSet;

use tilewright_ir::program::{MapOp, ValueId};

use super::cpu::CpuCoefficients;
use super::{Score, Term};
use crate::mapping::RowMapping;
use crate::problem::mix::OpMix;
use crate::problem::{DomainNumbers, RowProblem};
use crate::rows::RowCounts;
use crate::target::CpuFacts;

/// Cycles in which a core starts one vector operation, with two vector units.
fn map_cycles(op: MapOp) -> f64 {
    match op {
        MapOp::Exp => 10.0,
        MapOp::Log => 12.0,
        MapOp::Tanh => 16.0,
        MapOp::Erf => 16.0,
        MapOp::Sqrt => 12.0,
        MapOp::Div => 10.0,
        MapOp::Mod => 20.0,
        // A maximum that keeps NaN needs a comparison and a blend beside it.
        MapOp::Max | MapOp::Min => 1.5,
        _ => 0.5,
    }
}

pub(crate) fn mix_cycles(mix: &OpMix) -> f64 {
    let maps = mix.maps.iter().fold(0.0, |sum, (op, n)| sum + map_cycles(*op) * *n as f64);
    maps + (mix.casts + mix.indices) as f64
}

/// Cycles of one program.
struct Parts {
    arithmetic: f64,
    memory: f64,
    loops: f64,
    collectives: f64,
    /// What the program takes: arithmetic and memory overlapped per loop, and the rest.
    total: f64,
}

fn parts(c: &CpuCoefficients, problem: &RowProblem, cpu: &CpuFacts, mapping: &RowMapping) -> Parts {
    let variant = problem.variant(mapping.cache);
    let columns = problem.columns as f64;
    let vectors = (columns / f64::from(mapping.lanes.max(1))).ceil();
    // Vectors that the unrolled loop takes, and the rest, which goes one at a time.
    let unroll = f64::from(mapping.unroll.max(1));
    let steps = (vectors / unroll).floor();
    let rest = vectors - steps * unroll;
    let trips = steps + rest;

    // Distinct bytes per column: per-program inputs, shared inputs, outputs, stripes.
    let mut seen: HashSet<ValueId> = HashSet::new();
    let (mut own, mut shared, mut stores) = (0u64, 0u64, 0u64);
    for domain in &variant.domains {
        for load in &domain.loads {
            if seen.insert(load.value) {
                *(if load.shared { &mut shared } else { &mut own }) += load.bytes;
            }
        }
        stores += domain.store_bytes;
    }
    let launch_bytes = columns * (problem.programs as f64 * (own + stores) as f64 + shared as f64);
    let row_bytes = columns * (own + shared + stores + variant.slot_bytes) as f64;
    let far = c.bytes_per_cycle(cpu, launch_bytes);
    let near = c.bytes_per_cycle(cpu, row_bytes);

    let mut touched: HashSet<ValueId> = HashSet::new();
    let mut parts =
        Parts { arithmetic: 0.0, memory: 0.0, loops: 0.0, collectives: 0.0, total: 0.0 };
    let mut pending: Option<(f64, f64)> = None;
    for domain in &variant.domains {
        let fused = mapping.fuse && domain.follows_its_tile;
        let mut far_bytes = domain.store_bytes;
        let mut near_bytes = domain.stripe_write_bytes;
        for load in &domain.loads {
            let first = touched.insert(load.value) && !load.shared;
            *(if first { &mut far_bytes } else { &mut near_bytes }) += load.bytes;
        }
        if !fused {
            near_bytes += domain.stripe_read_bytes;
        }
        let memory = columns * (far_bytes as f64 / far + near_bytes as f64 / near);
        let arithmetic = steps * unroll * domain_cycles(c, mapping.accumulators, domain)
            + rest * domain_cycles(c, 1, domain);
        parts.arithmetic += arithmetic;
        parts.memory += memory;
        if domain.is_reduction() {
            parts.collectives += c.collective;
        }
        if fused && let Some((a, m)) = pending {
            // One loop does both: their arithmetic adds up, and their bytes do.
            pending = Some((a + arithmetic, m + memory));
            continue;
        }
        if let Some((a, m)) = pending.take() {
            parts.total += overlapped(c, a, m);
        }
        parts.loops += c.loop_start + trips * c.loop_step;
        pending = Some((arithmetic, memory));
    }
    if let Some((a, m)) = pending {
        parts.total += overlapped(c, a, m);
    }
    parts.total += parts.loops + parts.collectives + c.group;
    parts
}

/// Cycles of a loop whose arithmetic and memory traffic overlap, but not perfectly.
fn overlapped(c: &CpuCoefficients, arithmetic: f64, memory: f64) -> f64 {
    arithmetic.max(memory) + c.unhidden * arithmetic.min(memory)
}

/// Cycles of one vector of a domain.
fn domain_cycles(c: &CpuCoefficients, accumulators: u32, domain: &DomainNumbers) -> f64 {
    let work = mix_cycles(&domain.mix);
    if domain.is_reduction() {
        (work + 1.0).max(c.fma_latency / f64::from(accumulators.max(1)))
    } else {
        work
    }
}

/// Rows of the busiest thread, and threads that have any: groups are dealt out whole.
pub(crate) fn shares(
    problem: &RowProblem,
    mapping: &RowMapping,
    counts: &RowCounts,
    threads: u32,
) -> (u64, u64) {
    let threads = u64::from(threads.max(1)).min(counts.groups.max(1));
    let rows = counts.groups.div_ceil(threads).saturating_mul(mapping.pack.max(1).into());
    (rows.min(problem.programs), threads)
}

/// The score of a mapping: cycles. A launch of a single group stays on the calling thread; one of
/// more wakes the others.
pub fn score(
    c: &CpuCoefficients,
    problem: &RowProblem,
    cpu: &CpuFacts,
    mapping: &RowMapping,
    counts: &RowCounts,
    threads: u32,
) -> Score {
    let program = parts(c, problem, cpu, mapping).total;
    let (rows, threads) = shares(problem, mapping, counts, threads);
    let waves = rows.max(1) as f64;
    let launch = if threads > 1 { c.launch_threads } else { c.launch };
    Score { program, waves, kernel: launch + program * waves }
}

/// The addends of a program's score, for explanations.
pub fn terms(
    c: &CpuCoefficients,
    problem: &RowProblem,
    cpu: &CpuFacts,
    mapping: &RowMapping,
) -> Vec<Term> {
    let p = parts(c, problem, cpu, mapping);
    vec![
        Term::new("arithmetic", p.arithmetic),
        Term::new("memory", p.memory),
        Term::new("loops", p.loops),
        Term::new("collectives", p.collectives),
    ]
}
