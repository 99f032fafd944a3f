//! Matrix products of register tiles on CPUs. Threads are known, so each term is an input of its
//! own: what the busiest thread does over all of its groups.

use super::cpu_rows::SHARED;
use super::{Inputs, MAX_INPUTS, NAME, TermInfo, share_beyond, term};
use crate::mapping::{CpuMatrixMapping, Mapping};
use crate::policy::cpu_matrix::CpuMatrixCounts;
use crate::policy::{CandidateFacts, CandidateView, PolicyError, unsupported};
use crate::problem::{MatrixProblem, Problem};
use crate::target::CpuFacts;

pub(super) const INPUTS: [&str; 12] = [
    "launch",
    "other_threads",
    "results",
    "products",
    "stalls",
    "loads",
    "copied_vectors",
    "translations",
    "far_rows",
    "l2_bytes",
    "l3_bytes",
    "memory_bytes",
];

pub(super) const TERMS: [TermInfo; 12] = [
    term("launch", false, "a launch"),
    term("other_threads", false, "a thread that has to be woken"),
    term(
        "results",
        false,
        "a vector of sums that a tile writes, or reads back in a further K step, and each operation \
         or load of an epilogue on it",
    ),
    term("products", false, "a cycle of full-rate multiply-adds, padding of tiles included"),
    term(
        "stalls",
        false,
        "a cycle by which loads, latency or the second level exceed the products",
    ),
    term("loads", false, "a load of a tile: a vector of B or a broadcast of A"),
    term("copied_vectors", false, "a vector that is copied to a packed operand"),
    term("translations", false, "a page of B whose translation has to be looked up again"),
    term("far_rows", false, "a tile's row of B that comes from beyond the second level"),
    term("l2_bytes", false, "a byte from the second-level cache"),
    term("l3_bytes", false, "a byte from the last-level cache"),
    term("memory_bytes", false, "a byte from memory"),
];

const RESULTS: usize = 2;
const PRODUCTS: usize = 3;
const STALLS: usize = 4;
const LOADS: usize = 5;
const COPIED: usize = 6;
const TRANSLATIONS: usize = 7;
const FAR_ROWS: usize = 8;
const BYTES: usize = 9;

/// Latency of a multiply-add in cycles.
const LATENCY: f64 = 4.0;
/// Bytes per cycle that one core gets from its second level while it computes, of panels and of rows
/// that lie apart: measured on Zen 5 (512³ by tiles of 1 and 2 rows) and Zen 3 cores, rounded.
const L2_PANELS: f64 = 32.0;
const L2_ROWS: f64 = 24.0;
/// Cycles that a row of B from the second level waits for each cache line that it touches and doesn't
/// fill: measured on a Zen 3 core (40x205x405 takes 1.4 times as long as 40x208x405 by the same
/// tiles), rounded.
const PARTIAL_FROM_L2: f64 = 6.0;
/// A vector that is gathered from a transposed operand takes as long as so many that are copied.
const GATHERED: f64 = 12.0;
/// Rows of A that fit one set of the first level beside B, and the cycles that each row of a tile
/// with more of them waits for per K element.
const SET_ROWS: u64 = 9;
const CROWDED: f64 = 0.25;

/// Bytes after which addresses share a set of the first level: its size over its ways.
const L1_SPAN: u64 = 4096;
/// Ways of the second level.
const L2_WAYS: u64 = 8;
/// Bytes of a cache line, and of a page.
const LINE: u64 = 64;
const PAGE: f64 = 4096.0;
/// Loads that a row of B within a tile costs more for a cache line that it touches and doesn't
/// fill. Fitted on training labels of Zen 3 and Zen 4 machines, rounded.
const PARTIAL_LINE: f64 = 0.75;
/// Rows of B that the prefetchers follow at once: of so few, tiles side by side read on in streams.
const STREAMS: f64 = 8.0;

struct Model<'a> {
    problem: &'a MatrixProblem,
    cpu: &'a CpuFacts,
    mapping: &'a CpuMatrixMapping,
    counts: &'a CpuMatrixCounts,
    /// Bytes that a thread touches in a launch.
    footprint: f64,
    /// Share of the loads of B that cross a cache line, and take the time of two.
    split: f64,
    /// Cache lines that a tile's row of B touches beyond those that it could fill.
    partial_lines: f64,
    /// Pages of A and B that a thread visits in a launch.
    pages_of_launch: f64,
}

impl<'a> Model<'a> {
    fn new(
        problem: &'a MatrixProblem,
        cpu: &'a CpuFacts,
        mapping: &'a CpuMatrixMapping,
        counts: &'a CpuMatrixCounts,
        threads: f64,
    ) -> Self {
        let [m, n, k] = problem.size.map(|s| s as f64);
        let row_groups = (m / mapping.group[0].max(1) as f64).ceil();
        // Threads take runs of groups, which follow each other row by row.
        let [rows, columns] =
            if row_groups >= threads { [1.0 / threads, 1.0] } else { [1.0, 1.0 / threads] };
        let operands = (m * k * rows + k * n * columns) * problem.operand.bytes() as f64;
        let footprint = operands + m * n / threads * problem.output.bytes() as f64;
        let pitch = n * problem.operand.bytes() as f64 / PAGE;
        let rows_of_b = k * (pitch * columns).max(pitch.min(1.0));
        let pages_of_launch = rows_of_b + m * k * rows * problem.operand.bytes() as f64 / PAGE;
        let (split, partial_lines) = (split(problem, mapping), partial_lines(problem, mapping));
        Model { problem, cpu, mapping, counts, footprint, split, partial_lines, pages_of_launch }
    }

    /// The share of a working set beyond the second level.
    fn far(&self, working_set: f64) -> f64 {
        share_beyond(0.9 * self.cpu.l2_bytes as f64, working_set)
    }

    /// Adds bytes of which a share comes from beyond the second level.
    fn bytes(&self, out: &mut Inputs, bytes: f64, far: f64) {
        let memory = far.min(share_beyond(0.9 * self.cpu.l3_bytes as f64, self.footprint));
        out[BYTES] += bytes * (1.0 - far);
        out[BYTES + 1] += bytes * (far - memory);
        out[BYTES + 2] += bytes * memory;
    }

    /// Cycles beyond the products for one K element of a tile whose row of B comes from the
    /// first level, or else from beyond.
    fn stall(&self, rows: f64, vectors: f64, near: bool) -> f64 {
        let products = rows * vectors / f64::from(self.cpu.fma_per_cycle.max(1));
        let loaded = if self.cpu.takes_halves() { 1.0 } else { 2.0 };
        let ports = products.max(self.loads(rows, vectors) / loaded).max(LATENCY);
        let bytes = vectors * f64::from(self.mapping.lanes) * self.element(self.mapping.pack_b);
        let waits = match (near, self.mapping.pack_b) {
            (true, _) => 0.0,
            (false, true) => bytes / L2_PANELS,
            (false, false) => bytes / L2_ROWS + PARTIAL_FROM_L2 * self.partial_lines,
        };
        ports.max(waits) - products
    }

    /// Pages on which so many rows of B lie; a transposed B lies along K, a page after the other.
    fn pages(&self, rows: f64) -> f64 {
        if self.problem.transposed[1] {
            return 0.0;
        }
        let pitch = self.problem.size[1].saturating_mul(self.problem.operand.bytes());
        rows * (pitch as f64 / PAGE).min(1.0)
    }

    /// Loads for one K element of a tile. Widening 16-bit elements takes an instruction each, what
    /// crosses a line is loaded twice, and a line that is touched in part costs more.
    fn loads(&self, rows: f64, vectors: f64) -> f64 {
        let narrow = self.problem.operand != self.problem.accumulator;
        let times = |packed: bool| if narrow && !packed { 2.0 } else { 1.0 };
        let vectors = vectors * (times(self.mapping.pack_b) + self.split);
        rows * times(self.mapping.pack_a) + vectors + PARTIAL_LINE * self.partial_lines
    }

    /// Bytes of an element of an operand where it is read.
    fn element(&self, packed: bool) -> f64 {
        let dtype = if packed { self.problem.accumulator } else { self.problem.operand };
        dtype.bytes() as f64
    }

    /// Whether more rows of A than have room fall into one set of the first level, because they
    /// are a large power of two apart.
    fn crowded(&self) -> bool {
        let pitch = self.problem.size[2].saturating_mul(self.problem.operand.bytes());
        let sets = 4096 >> pitch.trailing_zeros().min(12);
        !self.problem.transposed[0]
            && !self.mapping.pack_a
            && u64::from(self.mapping.tile[0]) > SET_ROWS * sets
    }

    /// Share of a level's sets that rows of B reach where they lie, `bytes` of each, if addresses
    /// `span` bytes apart share a set: a pitch that is a multiple of a large power of two comes
    /// back to few of them.
    fn reached(&self, span: u64, bytes: f64) -> f64 {
        let pitch = self.problem.size[1].saturating_mul(self.problem.operand.bytes());
        if self.mapping.pack_b || self.problem.transposed[1] || pitch == 0 || span == 0 {
            return 1.0;
        }
        let span = span.next_power_of_two();
        let starts = span >> pitch.trailing_zeros().min(span.trailing_zeros());
        (starts as f64 * bytes.max(LINE as f64) / span as f64).min(1.0)
    }

    /// What a row of B from afar costs more where the next one lies in another page, of which
    /// prefetchers know nothing.
    fn apart(&self) -> f64 {
        let pitch = self.problem.size[1].saturating_mul(self.problem.operand.bytes());
        1.0 + (pitch as f64 / PAGE).min(1.0)
    }

    /// Inputs of one group of that many rows and columns.
    fn group(&self, rows: u64, columns: u64) -> Inputs {
        let mut out = [0.0; MAX_INPUTS];
        let m = self.mapping;
        let k = self.problem.size[2] as f64;
        let steps = self.counts.steps.max(1) as f64;
        let depth = k / steps;
        let unit = u64::from(m.tile[0].max(1));
        let passes = rows.div_ceil(unit) as f64;
        let strips = [(rows / unit, unit), (1, rows % unit)];
        let block = m.columns.max(1);
        for (blocks, width) in [(columns / block, block), (1, columns % block)] {
            if blocks > 0 && width > 0 {
                for (count, height) in strips {
                    if count > 0 && height > 0 {
                        let count = (count as f64, blocks as f64 * steps);
                        self.strips(&mut out, count, height as f64, (width, depth, passes));
                    }
                }
                self.copies(&mut out, blocks as f64, (rows, width, depth));
            }
        }
        let (rows, columns) = (rows as f64, columns as f64);
        let vectors = (columns / f64::from(m.lanes.max(1))).ceil();
        let operations = self.problem.epilogue_ops + self.problem.epilogue_loads;
        out[RESULTS] += operations as f64 * rows * vectors;
        // Results are fetched and written back, unless they go around the caches.
        let written = rows * columns * self.problem.output.bytes() as f64;
        if m.stream {
            out[BYTES + 2] += written;
        } else {
            self.bytes(&mut out, 2.0 * written, self.far(self.footprint));
        }
        let sums = rows * columns * self.problem.accumulator.bytes() as f64;
        self.bytes(&mut out, 2.0 * (steps - 1.0) * sums, self.far(sums));
        out
    }

    /// Adds `count` strips of `rows` rows over a block, in each of `repeats` steps and blocks.
    fn strips(
        &self,
        out: &mut Inputs,
        (count, repeats): (f64, f64),
        rows: f64,
        (width, depth, passes): (u64, f64, f64),
    ) {
        let m = self.mapping;
        let lanes = u64::from(m.lanes.max(1));
        let vectors = u64::from(m.tile[1].max(1));
        let tile = vectors * lanes;
        let rest = (width % tile).div_ceil(lanes);
        // Columns that fill no tile: one narrow tile where their number is known, else one each.
        let tail = if self.problem.is_static[1] { (1, rest) } else { (rest, 1) };
        let element = self.element(m.pack_b);
        // A panel of B stays in the first level for the rows of tiles that follow, or beyond.
        let held = depth * width as f64 * element;
        let unit = f64::from(m.tile[0]) * depth * self.element(m.pack_a);
        let row = width as f64 * element;
        let l1 = 0.9 * self.cpu.l1_bytes as f64;
        let near = held + unit <= l1 * self.reached(L1_SPAN, row);
        let l2 = 0.9 * self.cpu.l2_bytes as f64;
        let again = share_beyond(l2 * self.reached(self.cpu.l2_bytes / L2_WAYS, row), held);
        let first = if m.pack_b { again } else { again.max(self.far(self.footprint)) };
        // Equal launches follow each other: what the first level holds is there from the start.
        let warm = near && self.footprint <= l1;
        let firsts = count / passes.max(1.0);
        let steps = self.counts.steps.max(1) as f64;
        let crowded = if self.crowded() { CROWDED * rows } else { 0.0 };
        // A stored transposed has each K element on lines of its own.
        let apart = self.problem.transposed[0] && !m.pack_a;
        let apart = if apart { 0.1 * (rows / lanes as f64).ceil() } else { 0.0 };
        if !m.pack_b {
            // Each tile goes down the rows of B. The first comes to pages that weren't visited since
            // the launch before, the others to those of the tile before them.
            let pages = self.pages(depth);
            let again = lost(pages);
            let tiles = width.div_ceil(tile) as f64 * count;
            let visits = firsts * lost(self.pages_of_launch).max(again) + (tiles - firsts) * again;
            out[TRANSLATIONS] += repeats * pages * visits;
        }
        for (tiles, vectors) in [(width / tile, vectors), tail] {
            if tiles == 0 || vectors == 0 {
                continue;
            }
            let (tiles, vectors) = (tiles as f64 * repeats, vectors as f64);
            let elements = tiles * depth;
            out[RESULTS] += tiles * count * rows * vectors * (2.0 - 1.0 / steps);
            out[PRODUCTS] +=
                elements * count * rows * vectors / f64::from(self.cpu.fma_per_cycle.max(1));
            out[LOADS] += elements * count * self.loads(rows, vectors);
            out[STALLS] += elements * count * (crowded + apart);
            let bytes = vectors * lanes as f64 * element;
            let streams = match depth <= STREAMS {
                true => 1.0 / (width / tile).max(1) as f64,
                false => self.apart(),
            };
            for (far, times, near) in [(first, firsts, warm), (again, count - firsts, near)] {
                out[STALLS] += elements * times * self.stall(rows, vectors, near);
                if !near {
                    self.bytes(out, elements * times * bytes, far);
                    if !m.pack_b {
                        out[FAR_ROWS] += elements * times * far * streams;
                    }
                }
            }
        }
    }

    /// Adds what is copied for `blocks` blocks, and the first touch of what is copied or of A. A
    /// row of a panel takes as long as a vector more.
    fn copies(&self, out: &mut Inputs, blocks: f64, (rows, width, depth): (u64, u64, f64)) {
        let m = self.mapping;
        let k = self.problem.size[2] as f64;
        let lanes = f64::from(m.lanes.max(1));
        let far = self.far(self.footprint);
        let operand = self.problem.operand.bytes() as f64;
        let price = |transposed: bool| if transposed { GATHERED } else { 1.0 };
        if m.pack_b {
            let tile = u64::from(m.tile[1].max(1)) * u64::from(m.lanes.max(1));
            let panels = width.div_ceil(tile);
            let vectors = panels.saturating_mul(tile) as f64 / lanes;
            let price = price(self.problem.transposed[1]);
            let pages = self.pages(k);
            out[TRANSLATIONS] += blocks * pages * lost(self.pages_of_launch.max(pages));
            out[COPIED] += blocks * k * (vectors * price + panels as f64);
            self.bytes(out, blocks * width as f64 * k * operand, far);
            // Copies that the second level doesn't hold are fetched and written back.
            let bytes = width as f64 * self.element(true);
            self.bytes(out, 2.0 * blocks * k * bytes, self.far(depth * bytes));
        }
        if m.pack_a {
            out[COPIED] += blocks * rows as f64 * k / lanes;
        }
        self.bytes(out, blocks * rows as f64 * k * operand, far);
    }

    /// Inputs of the thread that is done last, when threads take groups as the pool deals them out
    /// (cpu crate, `pool`): each starts with a segment of neighbours, a chunk at a time, and then
    /// helps with the others'. `None` where there are so many groups that the order doesn't matter,
    /// or one thread takes them all.
    fn dealt(&self, threads: u64) -> Option<Inputs> {
        let [m, n, _] = self.problem.size;
        let [gm, gn] = self.mapping.group.map(|g| g.max(1));
        let [rows, columns] = [m.div_ceil(gm), n.div_ceil(gn)];
        let groups = rows.saturating_mul(columns).saturating_mul(self.problem.batch);
        if threads < 2 || groups > threads.saturating_mul(MANY) {
            return None;
        }
        // Whole groups, the last of a row, the last of a column, the corner: those that there are.
        let whole = [if m < gm { 0 } else { gm }, if n < gn { 0 } else { gn }];
        let rest = [m % gm, n % gn];
        let sizes =
            [[whole[0], whole[1]], [whole[0], rest[1]], [rest[0], whole[1]], [rest[0], rest[1]]];
        let kinds = sizes.map(|[rows, columns]| match rows.saturating_mul(columns) {
            0 => [0.0; MAX_INPUTS],
            _ => self.group(rows, columns),
        });
        let costs = kinds.each_ref().map(cost);
        let kind = |group: u64| {
            let (row, column) = (group / columns % rows, group % columns);
            let last_row = row + 1 == rows && m % gm > 0;
            let last_column = column + 1 == columns && n % gn > 0;
            2 * usize::from(last_row) + usize::from(last_column)
        };
        let bound = |i: u64| groups * i / threads;
        let mut segments: Vec<(u64, u64)> =
            (0..threads).map(|i| (bound(i), bound(i + 1))).collect();
        let chunk = (groups / (threads * CHUNKS)).max(1);
        let mut taken: Vec<(f64, [u64; 4])> = vec![(0.0, [0; 4]); segments.len()];
        loop {
            // Whoever is free first takes the next chunk.
            let clocks = taken.iter().enumerate();
            let (free, _) = clocks.min_by(|a, b| a.1.0.total_cmp(&b.1.0))?;
            let mut order = (0..segments.len()).map(|turn| (free + turn) % segments.len());
            let Some(of) = order.find(|s| segments[*s].0 < segments[*s].1) else {
                break;
            };
            let (first, end) = segments[of];
            let next = end.min(first + chunk);
            segments[of].0 = next;
            let (clock, counts) = &mut taken[free];
            for group in first..next {
                *clock += costs[kind(group)];
                counts[kind(group)] += 1;
            }
        }
        let (_, counts) = taken.into_iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
        let mut out = [0.0; MAX_INPUTS];
        for (inputs, count) in kinds.iter().zip(counts) {
            for (sum, value) in out.iter_mut().zip(inputs) {
                *sum += count as f64 * value;
            }
        }
        Some(out)
    }

    /// Inputs of the busiest thread.
    fn launch(&self, threads: u64) -> Inputs {
        if let Some(inputs) = self.dealt(threads) {
            return inputs;
        }
        let [m, n, _] = self.problem.size;
        let [gm, gn] = self.mapping.group.map(|g| g.max(1));
        let batch = self.problem.batch;
        // Whole groups, the last of rows, the last of columns, the corner.
        let kinds = [
            ((m / gm).saturating_mul(n / gn), gm, gn),
            (m / gm, gm, n % gn),
            (n / gn, m % gm, gn),
            (1, m % gm, n % gn),
        ];
        let mut groups: Vec<(u64, Inputs)> = Vec::with_capacity(kinds.len());
        for (count, rows, columns) in kinds {
            if count > 0 && rows > 0 && columns > 0 && batch > 0 {
                groups.push((count.saturating_mul(batch), self.group(rows, columns)));
            }
        }
        busiest(&groups, threads)
    }
}

/// Share of the loads of B that cross a cache line: rows follow each other without padding, so that
/// their starts come in steps of the largest power of two in the pitch, up to a line.
fn split(problem: &MatrixProblem, mapping: &CpuMatrixMapping) -> f64 {
    let bytes = problem.operand.bytes();
    let pitch = problem.size[1].saturating_mul(bytes);
    if mapping.pack_b || problem.transposed[1] || pitch == 0 {
        return 0.0;
    }
    let step = 1u64 << pitch.trailing_zeros().min(LINE.trailing_zeros());
    // Of the starts within a line one in LINE/step is the line's; a shorter vector crosses its end
    // less often.
    let vector = u64::from(mapping.lanes).saturating_mul(bytes).min(LINE);
    (1.0 - step as f64 / LINE as f64) * vector as f64 / LINE as f64
}

/// Cache lines that a tile's row of B touches beyond those that it could fill, on average: starts of
/// tiles come in steps of the largest power of two in both the pitch and the tile's width.
fn partial_lines(problem: &MatrixProblem, mapping: &CpuMatrixMapping) -> f64 {
    let bytes = problem.operand.bytes();
    let pitch = problem.size[1].saturating_mul(bytes);
    let tile = u64::from(mapping.tile[1]) * u64::from(mapping.lanes) * bytes;
    if mapping.pack_b || problem.transposed[1] || pitch == 0 || tile == 0 {
        return 0.0;
    }
    let zeros = pitch.trailing_zeros().min(tile.trailing_zeros());
    let step = 1u64 << zeros.min(LINE.trailing_zeros());
    1.0 - step as f64 / LINE as f64
}

/// Translations that the first level holds of those for 4 KiB pages, and that the second may be
/// expected to: less than its entries (2048 on Zen 3), since a guest's share them with what the walks
/// need. Chosen on labels of training and spent shapes of a Zen 3 machine.
const NEAR_TRANSLATIONS: f64 = 64.0;
const FAR_TRANSLATIONS: f64 = 512.0;
/// What a look-up in the second level takes, of one that walks the tables.
const NEAR_LOOKUP: f64 = 0.15;

/// Translations that have to be looked up, per page of so many that are visited in turn.
fn lost(pages: f64) -> f64 {
    NEAR_LOOKUP * share_beyond(NEAR_TRANSLATIONS, pages) + share_beyond(FAR_TRANSLATIONS, pages)
}

/// Groups per thread beyond which their order doesn't matter.
const MANY: u64 = 64;

/// Chunks that the pool cuts a thread's segment into.
const CHUNKS: u64 = 4;

/// Rough cycles of a group, to deal by.
fn cost(g: &Inputs) -> f64 {
    g[PRODUCTS] + g[STALLS] + 3.0 * g[COPIED] + 0.3 * g[RESULTS] + 2.0 * g[FAR_ROWS] + 20.0
}

/// What the busiest of some threads has when groups are dealt out, the dearest first, each to the
/// thread with the least.
fn busiest(groups: &[(u64, Inputs)], threads: u64) -> Inputs {
    let mut order: Vec<&(u64, Inputs)> = groups.iter().collect();
    order.sort_by(|a, b| cost(&b.1).total_cmp(&cost(&a.1)));
    let threads = threads.max(1) as usize;
    let mut loads: Vec<(f64, Inputs)> = vec![(0.0, [0.0; MAX_INPUTS]); threads];
    for (count, group) in order {
        // Whole rounds go to everyone alike.
        let rounds = count / threads as u64;
        for to in &mut loads {
            give(to, group, cost(group), rounds as f64);
        }
        for _ in 0..count % threads as u64 {
            if let Some(to) = loads.iter_mut().min_by(|a, b| a.0.total_cmp(&b.0)) {
                give(to, group, cost(group), 1.0);
            }
        }
    }
    let most = loads.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    most.map_or([0.0; MAX_INPUTS], |(_, inputs)| inputs)
}

/// Gives a thread some groups of a kind.
fn give(to: &mut (f64, Inputs), group: &Inputs, cost: f64, times: f64) {
    to.0 += times * cost;
    for (sum, value) in to.1.iter_mut().zip(group) {
        *sum += times * value;
    }
}

pub(super) fn inputs(view: &CandidateView<'_>) -> Result<Inputs, PolicyError> {
    let (
        Some(cpu),
        Problem::Matrix(problem),
        Mapping::CpuMatrix(mapping),
        CandidateFacts::CpuMatrix(counts),
    ) = (view.target.cpu_facts(), view.problem, view.mapping, view.facts)
    else {
        return Err(unsupported(NAME, view));
    };
    let threads = u64::from(mapping.threads.max(1)).min(counts.groups.max(1));
    let mut out = Model::new(problem, cpu, mapping, counts, threads as f64).launch(threads);
    if threads > 1 {
        out.iter_mut().for_each(|input| *input *= SHARED);
    }
    out[0] = 1.0;
    out[1] = threads as f64 - 1.0;
    Ok(out)
}
