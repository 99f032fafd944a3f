//! Row programs on CPUs. Threads are known, so each term is an input of its own: what the busiest
//! thread does over all of its rows.

use std::collections::HashSet;

use super::{Inputs, NAME, TermInfo, padded, term};
use crate::mapping::Mapping;
use crate::policy::{CandidateView, PolicyError, cpu_rows, unsupported};
use crate::problem::Problem;
use crate::target::CpuFacts;

pub(super) const INPUTS: [&str; 11] = [
    "launch",
    "other_threads",
    "rows",
    "loop_trips",
    "arithmetic",
    "chain",
    "collectives",
    "l1_bytes",
    "l2_bytes",
    "l3_bytes",
    "memory_bytes",
];

pub(super) const TERMS: [TermInfo; 11] = [
    term("launch", false, "a launch"),
    term("other_threads", false, "a thread that has to be woken"),
    term("rows", false, "a row of the busiest thread"),
    term("loop_trips", false, "a trip of a column loop, starts of loops included"),
    term("arithmetic", false, "a cycle of vector arithmetic"),
    term("chain", false, "a cycle by which a reduction's chain exceeds its arithmetic"),
    term("collectives", false, "a fold of a vector into one value"),
    term("l1_bytes", false, "a byte from the first-level cache"),
    term("l2_bytes", false, "a byte from the second-level cache"),
    term("l3_bytes", false, "a byte from the last-level cache"),
    term("memory_bytes", false, "a byte from memory"),
];

/// Index of the level that holds a working set: L1, L2, L3, memory. A level counts as holding it
/// up to half its size, since other data passes through it too.
pub(super) fn level(cpu: &CpuFacts, working_set: f64) -> usize {
    let sizes = [cpu.l1_bytes, cpu.l2_bytes, cpu.l3_bytes];
    sizes.iter().position(|size| working_set <= *size as f64 / 2.0).unwrap_or(sizes.len())
}

pub(super) fn inputs(view: &CandidateView<'_>) -> Result<Inputs, PolicyError> {
    let (Some(cpu), Problem::Rows(problem), Mapping::Rows(mapping)) =
        (view.target.cpu_facts(), view.problem, view.mapping)
    else {
        return Err(unsupported(NAME, view));
    };
    let variant = problem.variant(mapping.cache);
    let columns = problem.columns as f64;
    let vectors = (columns / f64::from(mapping.lanes.max(1))).ceil();
    let trips = (vectors / f64::from(mapping.unroll.max(1))).ceil();

    let mut seen = HashSet::new();
    let (mut own, mut shared) = (0u64, 0u64);
    for domain in &variant.domains {
        for load in &domain.loads {
            if seen.insert(load.value) {
                *(if load.shared { &mut shared } else { &mut own }) += load.bytes;
            }
        }
        own += domain.store_bytes;
    }
    let launch_bytes = columns * (problem.programs as f64 * own as f64 + shared as f64);
    let row_bytes = columns * (own + shared + variant.slot_bytes) as f64;
    let (far, near) = (level(cpu, launch_bytes), level(cpu, row_bytes));

    let threads = u64::from(view.cpu_threads.max(1)).min(problem.programs.max(1));
    let rows = (problem.programs as f64 / threads as f64).ceil();
    let (mut loops, mut arithmetic, mut chain, mut collectives) = (0.0, 0.0, 0.0, 0.0);
    let mut bytes = [0.0; 4];
    let mut touched = HashSet::new();
    for domain in &variant.domains {
        let fused = mapping.fuse && domain.follows_its_tile;
        let mut near_bytes = domain.stripe_write_bytes;
        let mut far_bytes = domain.store_bytes;
        for load in &domain.loads {
            let first = touched.insert(load.value) && !load.shared;
            *(if first { &mut far_bytes } else { &mut near_bytes }) += load.bytes;
        }
        if !fused {
            near_bytes += domain.stripe_read_bytes;
            // The start and tail of a loop cost about as much as a trip.
            loops += trips + 1.0;
        }
        bytes[far] += columns * far_bytes as f64;
        bytes[near] += columns * near_bytes as f64;
        let work = cpu_rows::mix_cycles(&domain.mix);
        if domain.is_reduction() {
            let latency = 4.0 / f64::from(mapping.accumulators.max(1));
            arithmetic += vectors * (work + 1.0);
            chain += vectors * (latency - (work + 1.0)).max(0.0);
            collectives += 1.0;
        } else {
            arithmetic += vectors * work;
        }
    }
    Ok(padded(&[
        1.0,
        threads as f64 - 1.0,
        rows,
        rows * loops,
        rows * arithmetic,
        rows * chain,
        rows * collectives,
        rows * bytes[0],
        rows * bytes[1],
        rows * bytes[2],
        rows * bytes[3],
    ]))
}
