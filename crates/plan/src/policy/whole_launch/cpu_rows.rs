//! Row programs on CPUs. Threads are known, so each term is an input of its own: what the busiest
//! thread does over all of its rows.
//!
//! The inputs follow the loops that the lowering makes (kernel crate, `lower::rows`): one for each
//! domain, or for several that are fused; full vectors in steps of A accumulators, then the full
//! vectors that are left, one by one in the first accumulator, then a partial vector under a mask.
//! What overlaps is resolved here, since a sum of terms can't: a chain counts by what it exceeds
//! the loop's arithmetic.

use tilewright_ir::program::{MapOp, ReduceOp, ValueId};

use super::{Inputs, NAME, TermInfo, padded, share_beyond, term};
use crate::mapping::{CpuIsa, Mapping, RowMapping};
use crate::policy::{CandidateFacts, CandidateView, PolicyError, cpu_rows, unsupported};
use crate::problem::mix::OpMix;
use crate::problem::rows::ReductionNumbers;
use crate::problem::{DomainNumbers, Problem, RowProblem};
use crate::target::CpuFacts;

pub(super) const INPUTS: [&str; 12] = [
    "launch",
    "other_threads",
    "arithmetic",
    "wide_arithmetic",
    "divisions",
    "chain",
    "combines",
    "collectives",
    "stripe_vectors",
    "chunks",
    "l2_bytes",
    "far_bytes",
];

pub(super) const TERMS: [TermInfo; 12] = [
    term("launch", false, "a launch"),
    term("other_threads", false, "a thread that has to be woken"),
    term(
        "arithmetic",
        false,
        "a cycle of vector arithmetic, loads and stores at full rate, divisions apart",
    ),
    term("wide_arithmetic", false, "a cycle of it in vectors of 64 bytes, half of functions"),
    term("divisions", false, "a division of 32 bytes, which is as much as a divider takes at once"),
    term("chain", false, "a cycle that a reduction's chain, or a stripe's end, is waited for"),
    term("combines", false, "an operation that joins two partial accumulators"),
    term("collectives", false, "a cycle of latency in folding the lanes of a reduction"),
    term("stripe_vectors", false, "a vector that is written to a stripe"),
    term(
        "chunks",
        false,
        "a chunk of groups that a thread takes where there are more than one each",
    ),
    term("l2_bytes", false, "a byte from the second-level cache"),
    term("far_bytes", false, "a byte from the last-level cache; one from memory counts as three"),
];

/// Bytes of a vector that cores with units of half its width take in two halves.
const WIDE: u64 = 64;
/// Bytes from the last-level cache in the time of one from memory: 2.0 in the roofline of a Zen 5
/// machine, 4.6 in that of a Zen 4 machine. No training shape is so large that a fit could tell.
const MEMORY: f64 = 3.0;
/// Bytes that a divider takes at once.
const DIVIDER: f64 = 32.0;
/// Latency in cycles of moving half of a vector's lanes under the other half.
const SHUFFLE: f64 = 4.0;

/// What two threads or more take longer for the work of the busiest than one alone would: they share
/// caches and power, and the later one decides. Measured on Zen 3 and Zen 4 machines, rounded.
pub(super) const SHARED: f64 = 1.05;

/// What it takes longer where each thread has one group: nobody takes over from one that started late
/// or was interrupted. On Zen 3, launches of one group a thread take 2 % longer than those of many,
/// unless they are so short that taking chunks costs more.
const NO_HELP: f64 = 1.02;
/// Chunks that the pool (cpu crate) cuts a thread's share of the groups into, at most.
const CHUNKS: f64 = 4.0;

/// What differs between instruction sets.
#[derive(Clone, Copy)]
struct Prices {
    /// Cycles of functions over those with AVX-512, which has a table look-up and a scaling by
    /// powers of two in one instruction each.
    functions: f64,
    /// Latency in cycles of a maximum that keeps NaN.
    maximum: f64,
}

impl Prices {
    /// Measured on Zen 3 (AVX2), Zen 4 and Zen 5 cores, rounded.
    fn of(cpu: &CpuFacts) -> Self {
        match cpu.isa {
            CpuIsa::Avx512 => Prices { functions: 1.0, maximum: 5.0 },
            CpuIsa::Avx2 | CpuIsa::Portable => Prices { functions: 2.0, maximum: 3.0 },
        }
    }
}

/// Cycles in which a core with AVX-512 starts one vector operation, with two vector units: measured
/// on Zen 4 and Zen 5 cores, rounded.
fn map_cycles(op: MapOp) -> f64 {
    match op {
        MapOp::Exp => 5.0,
        MapOp::Log => 6.0,
        MapOp::Tanh | MapOp::Erf | MapOp::Mod => 8.5,
        MapOp::Sqrt => 6.0,
        // Counted by themselves ([`DIVIDE`]).
        MapOp::Div => 0.0,
        // A maximum that keeps NaN needs a comparison and a blend beside it.
        MapOp::Max | MapOp::Min => 1.5,
        _ => 0.5,
    }
}

/// Cycles of a division, where it passes the time of something else.
const DIVIDE: f64 = 4.5;

/// Share of a function's cycles (an exponential, say) that its chain of operations takes: the same
/// whether a core takes the vector in halves or not.
const FUNCTION_CHAIN: f64 = 0.5;

/// Cycles of functions, which are long chains of operations.
fn function_cycles(mix: &OpMix) -> f64 {
    let functions = [MapOp::Exp, MapOp::Log, MapOp::Tanh, MapOp::Erf, MapOp::Mod];
    let count = |op: &MapOp| mix.maps.get(op).copied().unwrap_or(0) as f64;
    functions.iter().fold(0.0, |sum, op| sum + map_cycles(*op) * count(op))
}

fn mix_cycles(mix: &OpMix, prices: Prices) -> f64 {
    let maps = mix.maps.iter().fold(0.0, |sum, (op, n)| sum + map_cycles(*op) * *n as f64);
    maps + (prices.functions - 1.0) * function_cycles(mix) + (mix.casts + mix.indices) as f64
}

/// What folding one vector takes: cycles at full rate, latency, operations of a fold.
#[derive(Clone, Copy)]
struct Fold {
    cycles: f64,
    latency: f64,
    operations: f64,
}

/// Latency of an addition in cycles.
const ADD_LATENCY: f64 = 3.0;

fn fold(reduction: Option<&ReductionNumbers>, domain: &DomainNumbers, prices: Prices) -> Fold {
    match reduction.map(|r| r.fold) {
        Some(ReduceOp::Max | ReduceOp::Min) => {
            Fold { cycles: map_cycles(MapOp::Max), latency: prices.maximum, operations: 3.0 }
        }
        // A sum of products takes the product with the addition.
        _ if !domain.reads_its_root && domain.mix.maps.contains_key(&MapOp::Mul) => {
            Fold { cycles: 0.0, latency: 4.0, operations: 1.0 }
        }
        _ => Fold { cycles: map_cycles(MapOp::Add), latency: ADD_LATENCY, operations: 1.0 },
    }
}

/// Cycles until a partial vector that was stored under a mask can be read back: the store isn't
/// forwarded to the load. Measured on a Zen 5 core (2048x33), rounded.
const MASKED: f64 = 100.0;
/// The share of them that is left after a reduction has been folded between store and load.
const MASKED_LATER: f64 = 0.5;

/// One column loop, per vector.
#[derive(Default)]
struct Loop {
    cycles: f64,
    functions: f64,
    divisions: f64,
    loads: f64,
    stores: f64,
    latency: f64,
    /// Operations of a fold, over all reductions of the loop.
    operations: f64,
    /// Latency of a step of folding lanes, over all reductions of the loop.
    step: f64,
    reduces: bool,
    writes_stripe: bool,
    reads_stripe: bool,
    /// It is the first to load what belongs to the row.
    fresh: bool,
}

impl Loop {
    /// Cycles of a vector at full rate, divisions apart: two loads and one store a cycle beside the
    /// arithmetic.
    fn work(&self) -> f64 {
        self.cycles.max(self.loads / 2.0).max(self.stores)
    }

    /// The same with divisions.
    fn rate(&self) -> f64 {
        (self.cycles + DIVIDE * self.divisions).max(self.work())
    }
}

/// Cycles after which the next vector is there that comes from beyond the first level: a chain of
/// less isn't waited for.
const FRESH: f64 = 1.0;

/// Cycles of a trip of a loop: what the arithmetic beside it doesn't hide.
const TRIP: f64 = 0.05;

/// Trips of a loop over `n` chunks of which `copies` stand in one trip: what is left over is
/// another loop. Few chunks stand without a loop, and run no faster than one by one.
fn trips(n: f64, copies: f64) -> f64 {
    if n <= copies { n } else { (n / copies).floor() + n % copies }
}

/// Sums over the loops of one row.
#[derive(Default)]
struct Row {
    arithmetic: f64,
    functions: f64,
    divisions: f64,
    chain: f64,
    combines: f64,
    collectives: f64,
}

impl Row {
    /// Adds a loop over so many columns; `pace` is what a vector takes longer than a core of full
    /// width would need, and `least` the cycles that any vector takes to arrive.
    fn add(
        &mut self,
        before: Option<&Loop>,
        each: &Loop,
        (columns, pace, least): (u64, f64, f64),
        m: &RowMapping,
    ) {
        let lanes = u64::from(m.lanes.max(1));
        let (full, partial) = ((columns / lanes) as f64, !columns.is_multiple_of(lanes));
        let (unroll, accumulators) = (f64::from(m.unroll.max(1)), f64::from(m.accumulators.max(1)));
        let vectors = full + f64::from(u8::from(partial));
        let rate = each.rate();
        self.arithmetic += each.work() * vectors;
        self.functions += each.functions * vectors;
        self.divisions += each.divisions * vectors;
        if partial && before.is_some_and(|b| b.writes_stripe) && each.reads_stripe {
            let folds = before.is_some_and(|b| b.reduces);
            let wait = MASKED * if folds { MASKED_LATER } else { 1.0 };
            // The full vectors before it pass the time.
            self.chain += (wait - full * rate).max(0.0);
        }
        if !each.reduces {
            self.arithmetic += TRIP * trips(full, unroll);
            return;
        }
        let steps = if m.accumulators > 1 { (full / accumulators).floor() } else { 0.0 };
        let rest = full - steps * accumulators;
        let copies = (unroll / accumulators).floor().max(1.0);
        self.arithmetic += TRIP * (trips(steps, copies) + trips(rest, unroll));
        let hidden = (pace * rate).max(least);
        self.chain += steps * accumulators * (each.latency / accumulators - hidden).max(0.0)
            + rest * (each.latency - hidden).max(0.0);
        self.combines += (accumulators - 1.0) * each.operations;
        // Lanes are a power of two: each step folds one half onto the other.
        self.collectives += f64::from(m.lanes.max(1).ilog2()) * each.step;
    }
}

/// Bytes of one row, per column, by where they come from.
struct Bytes {
    /// First touched in this launch.
    first: f64,
    /// Touched again, or by every row.
    again: f64,
}

/// The loops of a row and the bytes that they move.
fn loops(problem: &RowProblem, m: &RowMapping, prices: Prices) -> (Vec<Loop>, Bytes) {
    let element = problem.compute.bytes().max(1) as f64;
    let mut reductions = problem.reductions.iter();
    let mut touched: Vec<ValueId> = Vec::new();
    let mut bytes = Bytes { first: 0.0, again: 0.0 };
    let mut out: Vec<Loop> = Vec::new();
    for domain in &problem.variant(m.cache).domains {
        let fused = m.fuse && domain.follows_its_tile && !out.is_empty();
        if !fused {
            out.push(Loop::default());
        }
        let Some(each) = out.last_mut() else { continue };
        for load in &domain.loads {
            let first = !load.shared && !touched.contains(&load.value);
            touched.push(load.value);
            each.fresh |= first;
            *(if first { &mut bytes.first } else { &mut bytes.again }) += load.bytes as f64;
            each.loads += 1.0;
        }
        bytes.first += domain.store_bytes as f64;
        if !fused {
            bytes.again += domain.stripe_read_bytes as f64;
            each.loads += domain.stripe_read_bytes as f64 / element;
            each.reads_stripe |= domain.stripe_read_bytes > 0;
        }
        each.writes_stripe |= domain.stripe_write_bytes > 0;
        each.stores += f64::from(u8::from(domain.store_bytes > 0))
            + domain.stripe_write_bytes as f64 / element;
        if !domain.reads_its_root {
            each.cycles += mix_cycles(&domain.mix, prices);
            each.functions += prices.functions * function_cycles(&domain.mix);
            each.divisions += domain.mix.maps.get(&MapOp::Div).copied().unwrap_or(0) as f64;
        }
        if domain.is_reduction() {
            let fold = fold(reductions.next(), domain, prices);
            each.reduces = true;
            each.cycles += fold.cycles;
            each.latency = each.latency.max(fold.latency);
            each.operations += fold.operations;
            // Lanes are folded without products.
            each.step += SHUFFLE + if fold.operations > 1.0 { fold.latency } else { ADD_LATENCY };
        }
    }
    (out, bytes)
}

/// Bytes per column that belong to one row (inputs and outputs), that all rows share, and of
/// stripes.
fn footprint(domains: &[DomainNumbers]) -> (f64, f64) {
    let mut seen: Vec<ValueId> = Vec::new();
    let (mut own, mut shared) = (0u64, 0u64);
    for domain in domains {
        for load in &domain.loads {
            if !seen.contains(&load.value) {
                seen.push(load.value);
                *(if load.shared { &mut shared } else { &mut own }) += load.bytes;
            }
        }
        own += domain.store_bytes;
    }
    (own as f64, shared as f64)
}

/// Bytes from the second level, the last level, and memory, of so many bytes of a working set.
fn levels(cpu: &CpuFacts, bytes: f64, working_set: f64) -> [f64; 3] {
    let [l1, l2, l3] = [
        // Half of the first level: other data passes through it.
        share_beyond(0.5 * cpu.l1_bytes as f64, working_set),
        share_beyond(0.9 * cpu.l2_bytes as f64, working_set),
        share_beyond(0.9 * cpu.l3_bytes as f64, working_set),
    ];
    [bytes * (l1 - l2).max(0.0), bytes * (l2 - l3).max(0.0), bytes * l3]
}

pub(super) fn inputs(view: &CandidateView<'_>) -> Result<Inputs, PolicyError> {
    let (Some(cpu), Problem::Rows(problem), Mapping::Rows(mapping), CandidateFacts::Rows(counts)) =
        (view.target.cpu_facts(), view.problem, view.mapping, view.facts)
    else {
        return Err(unsupported(NAME, view));
    };
    let variant = problem.variant(mapping.cache);
    let columns = problem.columns as f64;
    let (rows, threads) = cpu_rows::shares(problem, mapping, counts, view.cpu_threads);
    let rows = rows as f64;
    let (own, shared) = footprint(&variant.domains);
    let (loops, bytes) = loops(problem, mapping, Prices::of(cpu));
    let element = problem.compute.bytes().max(1);
    let vector_bytes = u64::from(mapping.lanes) * element;
    let wide = vector_bytes >= WIDE;
    let pace = if wide && cpu.takes_halves() { 2.0 } else { 1.0 };
    // What a thread touches before it comes back to a row in the next launch, and to a column
    // within a row.
    let launch_set = columns * (rows * own + shared);
    let far = launch_set > 0.5 * cpu.l1_bytes as f64;
    let mut row = Row::default();
    for (i, each) in loops.iter().enumerate() {
        let before = i.checked_sub(1).and_then(|b| loops.get(b));
        let least = if far && each.fresh { FRESH } else { 0.0 };
        row.add(before, each, (problem.columns, pace, least), mapping);
    }
    let row_set = columns * (own + shared + variant.slot_bytes as f64);
    let far = levels(cpu, rows * columns * bytes.first, launch_set);
    let near = levels(cpu, rows * columns * bytes.again, row_set);
    let stripes = variant.slot_bytes as f64 / element as f64;
    let each = counts.groups as f64 / threads.max(1) as f64;
    let (work, chunks) = match (threads > 1, each > 1.0) {
        (true, true) => (SHARED * rows, each.min(CHUNKS)),
        (true, false) => (SHARED * NO_HELP * rows, 0.0),
        (false, _) => (rows, 0.0),
    };
    Ok(padded(&[
        1.0,
        threads as f64 - 1.0,
        work * row.arithmetic,
        if wide { work * (row.arithmetic - FUNCTION_CHAIN * row.functions) } else { 0.0 },
        work * row.divisions * (vector_bytes as f64 / DIVIDER).max(1.0),
        work * row.chain,
        work * row.combines,
        work * row.collectives,
        work * stripes * (columns / f64::from(mapping.lanes.max(1))).ceil(),
        chunks,
        far[0] + near[0],
        far[1] + near[1] + MEMORY * (far[2] + near[2]),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_an_unrolled_loop_is_another_loop() {
        // (chunks, copies, trips): few stand without a loop, as dear as one by one.
        for (n, copies, expected) in
            [(0.0, 4.0, 0.0), (4.0, 4.0, 4.0), (5.0, 4.0, 2.0), (6.0, 4.0, 3.0), (9.0, 1.0, 9.0)]
        {
            assert_eq!(trips(n, copies), expected, "{n} by {copies}");
        }
    }
}
