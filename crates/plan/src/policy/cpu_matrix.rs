//! The matrix part of the `cpu` policy: closed-form counts and an estimate in cycles.
//!
//! The estimate adds, for every group, what its register tiles compute, what they wait for, and
//! what is copied; then it deals the groups out to the threads. Prices are measurements of a
//! Zen 5 core with full-width AVX-512, rounded; they order candidates and predict no time.

use tilewright_ir::DType;

use super::cpu::CpuCoefficients;
use super::{PolicyError, Score, Term};
use crate::mapping::CpuMatrixMapping;
use crate::problem::MatrixProblem;
use crate::target::CpuFacts;

/// What a register-tile mapping amounts to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CpuMatrixCounts {
    /// Groups of the launch, batch included.
    pub groups: u64,
    /// K steps of a group.
    pub steps: u64,
    /// Register tiles of one group and K step.
    pub tiles: u64,
    /// Whether sums are kept in the output between K steps and before the epilogue.
    pub in_place: bool,
    /// Scratch bytes of one thread: [`scratch_bytes`].
    pub scratch_bytes: u64,
}

impl CpuMatrixCounts {
    /// Counts a mapping of a problem.
    pub fn new(problem: &MatrixProblem, mapping: &CpuMatrixMapping) -> Self {
        let [m, n, k] = problem.size;
        let [gm, gn] = mapping.group.map(|g| g.max(1));
        let depth = mapping.depth.max(1);
        let rows = u64::from(mapping.tile[0]).max(1);
        let width = (u64::from(mapping.tile[1]) * u64::from(mapping.lanes)).max(1);
        let steps = k.div_ceil(depth).max(1);
        let in_place = problem.sums_in_output();
        let single = problem.is_static[2] && steps == 1;
        CpuMatrixCounts {
            groups: problem.batch.saturating_mul(m.div_ceil(gm)).saturating_mul(n.div_ceil(gn)),
            steps,
            tiles: gm.min(m).div_ceil(rows).saturating_mul(gn.min(n).div_ceil(width)),
            in_place,
            scratch_bytes: scratch_bytes(
                mapping,
                problem.accumulator,
                problem.transposed[0],
                in_place,
                single,
            ),
        }
    }
}

/// Scratch of one group in bytes, as the lowering declares it: packed A with 16 to 31 elements of
/// padding after each row, packed B in whole panels, and sums where the output can't hold them
/// (of one strip of tiles if `single` says that one K step covers K).
pub fn scratch_bytes(
    mapping: &CpuMatrixMapping,
    accumulator: DType,
    a_transposed: bool,
    in_place: bool,
    single: bool,
) -> u64 {
    let [gm, gn] = mapping.group;
    let width = u64::from(mapping.tile[1]).saturating_mul(u64::from(mapping.lanes));
    let (outer, inner) = if a_transposed { (mapping.depth, gm) } else { (gm, mapping.depth) };
    let padded = inner.div_ceil(16).saturating_add(1).saturating_mul(16);
    let packed_a = if mapping.pack_a { outer.saturating_mul(padded) } else { 0 };
    let panels = mapping.columns.min(gn).div_ceil(width.max(1));
    let panel = mapping.depth.saturating_mul(width);
    let packed_b = if mapping.pack_b { panels.saturating_mul(panel) } else { 0 };
    let strip = if single { u64::from(mapping.tile[0]) } else { gm };
    let sums = if in_place { 0 } else { strip.saturating_mul(gn) };
    packed_a.saturating_add(packed_b).saturating_add(sums).saturating_mul(accumulator.bytes())
}

/// Cycles that each load instruction of a product costs beyond the multiply-adds that hide it.
const LOAD_ISSUE: f64 = 0.02;
/// Cycles to start a tile, and per accumulator vector to store it.
const TILE_START: f64 = 5.0;
const TILE_VECTOR: f64 = 0.3;
/// Cycles that a tile waits when it reads its sums back first, and per vector read.
const RELOAD_START: f64 = 25.0;
const RELOAD_VECTOR: f64 = 0.4;
/// Cycles to pack one vector of B, and one that is gathered from a transposed B.
const PACK_VECTOR: f64 = 3.4;
const GATHER_VECTOR: f64 = 40.0;
/// Cycles of one vector of an epilogue, and more per operation and per tile that it loads.
const EPILOGUE_VECTOR: f64 = 4.0;
const EPILOGUE_OP: f64 = 3.0;
/// Bytes per cycle of one core: from the second level, the last level, and memory.
const L2: f64 = 48.0;
const L3: f64 = 20.0;
const MEMORY: f64 = 10.0;
/// All cores together get this much more from memory than one.
const MEMORY_SHARE: f64 = 1.7;
/// Bytes that each stretch of consecutive elements of B costs beyond its own when it comes from
/// memory, because the prefetchers start anew.
const STRETCH: f64 = 1024.0;
/// Rows of B in pages of their own, many of them in flight, a tile's row of each at a time: the
/// most of the speed of memory that is reached, and the bytes of a tile's row at which half of
/// that is. Single lines come at a tenth (16x4096x4096 by tiles of 16x16: 17 ms; of 8x48: 5).
const SCATTERED_MOST: f64 = 0.8;
const SCATTERED: f64 = 120.0;
/// Up to this many rows at once are followed by the prefetchers, each as a stretch of its own.
const STREAMS: f64 = 8.0;
/// Pages that are visited again before their translations are lost, and the part of the speed that
/// is left when they are.
const TRANSLATIONS: f64 = 2048.0;
const LOST: f64 = 0.95;
const PAGE: f64 = 4096.0;
/// Part of a wait for the second level, and for what lies beyond, that computing doesn't hide.
const EXPOSED_L2: f64 = 0.08;
const EXPOSED: f64 = 0.12;
const EXPOSED_LOST: f64 = 1.0;
/// Rows of A in one set of the first level that leave room for B, and what more of them cost, as
/// a part of the computing.
const SET_ROWS: u64 = 9;
const CROWDED: f64 = 0.05;
/// What a page per row of B costs, as a part of the computing.
const PAGED: f64 = 0.02;
/// Part of the largest group by which threads finish apart.
const UNEVEN: f64 = 0.03;

/// One estimate in progress.
struct Model<'a> {
    c: &'a CpuCoefficients,
    problem: &'a MatrixProblem,
    cpu: &'a CpuFacts,
    mapping: &'a CpuMatrixMapping,
    counts: &'a CpuMatrixCounts,
    /// Bytes per cycle from memory for each of the threads.
    memory: f64,
}

/// Cycles of one group, by part.
#[derive(Clone, Copy, Default)]
struct Parts {
    products: f64,
    packing: f64,
    result: f64,
    epilogue: f64,
}

impl Parts {
    fn total(&self) -> f64 {
        self.products + self.packing + self.result + self.epilogue
    }
}

impl<'a> Model<'a> {
    fn new(
        c: &'a CpuCoefficients,
        problem: &'a MatrixProblem,
        cpu: &'a CpuFacts,
        mapping: &'a CpuMatrixMapping,
        counts: &'a CpuMatrixCounts,
    ) -> Self {
        let threads = f64::from(mapping.threads.max(1));
        let memory = MEMORY * MEMORY_SHARE.min(threads) / threads;
        Model { c, problem, cpu, mapping, counts, memory }
    }

    fn lanes(&self) -> f64 {
        f64::from(self.mapping.lanes.max(1))
    }

    /// Bytes per cycle of the level that holds a working set, the first level left out.
    fn speed(&self, bytes: f64) -> f64 {
        let holds = |size: u64| bytes <= size as f64 * 0.75;
        if holds(self.cpu.l2_bytes) {
            L2
        } else if holds(self.cpu.l3_bytes) {
            L3
        } else {
            self.memory
        }
    }

    /// Cycles of one rank-1 update of a tile.
    fn update(&self, rows: f64, vectors: f64) -> f64 {
        let fma = rows * vectors / f64::from(self.cpu.fma_per_cycle.max(1));
        // Widening 16-bit elements takes an instruction per load.
        let narrow = self.problem.operand != self.problem.accumulator;
        let a = if narrow && !self.mapping.pack_a { 2.0 * rows } else { rows };
        let b = if narrow && !self.mapping.pack_b { 2.0 * vectors } else { vectors };
        let loads = a + b;
        fma.max(loads / 2.0).max(self.c.fma_latency) + LOAD_ISSUE * loads
    }

    /// Cycles of a tile over `depth` K elements.
    fn tile(&self, rows: f64, vectors: f64, depth: f64) -> f64 {
        let several = self.counts.steps > 1;
        let registers = rows * vectors;
        let reload = if several { RELOAD_START + RELOAD_VECTOR * registers } else { 0.0 };
        depth * self.update(rows, vectors) + TILE_START + TILE_VECTOR * registers + reload
    }

    /// Cycles of the tiles of one strip of rows over `columns` columns.
    fn strip(&self, rows: f64, columns: f64, depth: f64) -> f64 {
        if rows <= 0.0 || columns <= 0.0 {
            return 0.0;
        }
        let vectors = f64::from(self.mapping.tile[1]);
        let width = vectors * self.lanes();
        let whole = (columns / width).floor();
        let rest = ((columns - whole * width) / self.lanes()).ceil();
        let tail = if rest <= 0.0 {
            0.0
        } else if self.problem.is_static[1] {
            self.tile(rows, rest, depth)
        } else {
            rest * self.tile(rows, 1.0, depth)
        };
        whole * self.tile(rows, vectors, depth) + tail
    }

    /// Cycles of a group of `rows` × `columns`.
    fn group(&self, rows: f64, columns: f64) -> Parts {
        if rows <= 0.0 || columns <= 0.0 {
            return Parts::default();
        }
        let [m, n, k] = self.problem.size.map(|s| s as f64);
        let (operand, accumulator) =
            (self.problem.operand.bytes() as f64, self.problem.accumulator.bytes() as f64);
        let output = self.problem.output.bytes() as f64;
        let unit = f64::from(self.mapping.tile[0].max(1));
        let steps = self.counts.steps as f64;
        let depth = k / steps;
        let blocks = (columns / self.mapping.columns.max(1) as f64).ceil().max(1.0);
        let block = columns / blocks;
        let strips = (rows / unit).floor();
        let last = rows - strips * unit;
        let compute = strips * self.strip(unit, block, depth) + self.strip(last, block, depth);

        // B of one block and step: from where it is to the first strip, then again for each.
        let pitch = if self.problem.transposed[1] { k } else { n } * operand;
        let scattered = pitch >= PAGE && depth > STREAMS;
        let stretch = block * operand;
        let mut source = self.speed(k * n * operand);
        if source <= self.memory {
            source *= if scattered {
                let row = f64::from(self.mapping.tile[1]) * self.lanes() * operand;
                let found = if depth > TRANSLATIONS { LOST } else { 1.0 };
                let share = (row / SCATTERED) * (row / SCATTERED) * (row / SCATTERED);
                found * SCATTERED_MOST * share / (share + 1.0)
            } else {
                stretch / (stretch + STRETCH)
            };
        }
        let first = depth * block * operand / source;
        let each = if self.mapping.pack_b { accumulator } else { operand };
        let held = depth * block * each;
        // Rows of B in place share cache sets if their pitch is a multiple of a large power of two:
        // of a level with that many bytes, only so many rows find room at once.
        let room = |bytes: u64| {
            let shift = (pitch as u64).trailing_zeros().min(63);
            if self.mapping.pack_b { f64::INFINITY } else { (bytes >> shift) as f64 }
        };
        let near = held + unit * depth * operand <= 0.75 * self.cpu.l1_bytes as f64
            && depth <= room(self.cpu.l1_bytes);
        let level = self.speed(held);
        let level = if depth <= room(self.cpu.l2_bytes) { level } else { level.min(L3) };
        let again = if near { 0.0 } else { held / level };
        // Beyond the second level the prefetchers don't follow rows that are a page apart.
        let far = level < L2;
        let lost = far && !self.mapping.pack_b && pitch >= PAGE;
        let exposed = match (far, lost) {
            (false, _) => EXPOSED_L2,
            (true, false) => EXPOSED,
            (true, true) => EXPOSED_LOST,
        };
        let passes = (rows / unit).ceil().max(1.0);
        let one = compute / passes;
        let products = if self.mapping.pack_b {
            passes * (one.max(again) + exposed * again)
        } else {
            one.max(first) + (passes - 1.0) * (one.max(again) + exposed * again)
        };
        // Rows of B in a page each take a translation each.
        let paged = !self.mapping.pack_b && pitch >= PAGE && passes > 1.0;
        let conflicts = if paged { PAGED * compute } else { 0.0 };

        let vectors = (block / self.lanes()).ceil() * depth;
        let mut packing = 0.0;
        if self.mapping.pack_b {
            let price = if self.problem.transposed[1] { GATHER_VECTOR } else { PACK_VECTOR };
            packing += vectors * price + first;
        }
        let a_bytes = rows * depth * operand;
        let from_a = a_bytes / self.speed(m * k * operand);
        if self.mapping.pack_a {
            packing += rows * depth / self.lanes() * PACK_VECTOR + from_a;
        }
        // A is read once per block, by one element at a time, mostly ahead of its use. A stored
        // transposed has each K element on lines of its own.
        let apart = if self.problem.transposed[0] && !self.mapping.pack_a {
            let aliased = (m * operand) % PAGE == 0.0;
            passes * depth * (block / self.lanes()).ceil() * if aliased { 0.5 } else { 0.1 }
        } else {
            0.0
        };
        // Rows of A whose pitch is a multiple of a large power of two share a set of the first
        // level, which has room for few of them.
        let a_pitch = self.problem.size[2].saturating_mul(self.problem.operand.bytes());
        let sets = 4096 >> a_pitch.trailing_zeros().min(12);
        let crowded = !self.problem.transposed[0]
            && !self.mapping.pack_a
            && u64::from(self.mapping.tile[0]) > SET_ROWS * sets;
        let crowding = if crowded { CROWDED * compute } else { 0.0 };
        let products = products + conflicts + crowding + 0.5 * from_a + apart;

        // Sums: read and written once per step, from the level that holds the block's.
        let sums = rows * block * accumulator;
        let exchange = if self.counts.in_place { m * n * output } else { sums };
        let between = 2.0 * (steps - 1.0) * sums / self.speed(exchange.min(sums * blocks)) * 0.5;
        // The finished output: read before it is written, unless it goes around the caches.
        let written = rows * block * output;
        let out = if self.mapping.stream {
            written / self.memory
        } else {
            let speed = self.speed(m * n * output);
            if speed > self.memory { 0.5 * written / speed } else { 2.0 * written / speed }
        };
        let operations = self.problem.epilogue_ops + self.problem.epilogue_loads;
        let epilogue = if operations == 0 && self.counts.in_place {
            0.0
        } else {
            let price = EPILOGUE_VECTOR + EPILOGUE_OP * operations as f64;
            rows * (block / self.lanes()).ceil() * price
        };
        Parts {
            products: blocks * steps * products,
            packing: blocks * steps * packing,
            result: blocks * (between + out),
            epilogue: blocks * epilogue,
        }
    }

    /// Cycles of all threads together, and when the last one is done.
    fn launch(&self) -> (Parts, f64) {
        let [m, n, _] = self.problem.size;
        let [gm, gn] = self.mapping.group.map(|g| g.max(1));
        let split = |size: u64, group: u64| (size / group, (size % group) as f64);
        let ((row_groups, row_rest), (column_groups, column_rest)) = (split(m, gm), split(n, gn));
        let (rows, columns) = (gm as f64, gn as f64);
        let batch = self.problem.batch as f64;
        // The kinds of groups: whole ones, the last of rows, the last of columns, the corner.
        let kinds = [
            (row_groups as f64 * column_groups as f64, rows, columns),
            (column_groups as f64, row_rest, columns),
            (row_groups as f64, rows, column_rest),
            (1.0, row_rest, column_rest),
        ];
        let mut sum = Parts::default();
        let mut largest = 0.0_f64;
        let (mut dealt, mut gaps) = (0.0, 0.0);
        let mut groups = 0.0;
        let threads = f64::from(self.mapping.threads.max(1));
        for (count, rows, columns) in kinds {
            if count <= 0.0 || rows <= 0.0 || columns <= 0.0 {
                continue;
            }
            let parts = self.group(rows, columns);
            let count = count * batch;
            sum.products += count * parts.products;
            sum.packing += count * parts.packing;
            sum.result += count * parts.result;
            sum.epilogue += count * parts.epilogue;
            let one = parts.total() + self.c.group;
            largest = largest.max(one);
            // Groups are dealt out as threads become free: equal ones in whole rounds, smaller
            // ones into the gaps that these leave.
            if count * one <= gaps {
                gaps -= count * one;
            } else {
                let rounds = (count / threads).ceil();
                dealt += rounds * one;
                gaps += (rounds * threads - count) * one;
            }
            groups += count;
        }
        let total = sum.total() + groups * self.c.group;
        if threads <= 1.0 {
            return (sum, total);
        }
        (sum, dealt + UNEVEN * largest)
    }
}

/// The score of a mapping: cycles.
///
/// # Errors
/// None at present; the signature leaves room for facts that are needed and missing.
pub fn score(
    c: &CpuCoefficients,
    problem: &MatrixProblem,
    cpu: &CpuFacts,
    mapping: &CpuMatrixMapping,
    counts: &CpuMatrixCounts,
) -> Result<Score, PolicyError> {
    let (_, span) = Model::new(c, problem, cpu, mapping, counts).launch();
    let threads = f64::from(mapping.threads.max(1));
    let waves = (counts.groups as f64 / threads).ceil().max(1.0);
    let launch = if mapping.threads > 1 { c.launch_threads } else { c.launch };
    Ok(Score { program: span / waves, waves, kernel: launch + span })
}

/// The addends of the score over all groups and threads, for explanations.
pub fn terms(
    c: &CpuCoefficients,
    problem: &MatrixProblem,
    cpu: &CpuFacts,
    mapping: &CpuMatrixMapping,
    counts: &CpuMatrixCounts,
) -> Vec<Term> {
    let (p, _) = Model::new(c, problem, cpu, mapping, counts).launch();
    vec![
        Term::new("products", p.products),
        Term::new("packing", p.packing),
        Term::new("results", p.result),
        Term::new("epilogue", p.epilogue),
    ]
}
