//! The candidate space of matrix products on CPUs: register tiles, K steps, column blocks,
//! groups, packing, and whether the output is written around the caches.

use crate::mapping::{CpuIsa, CpuMatrixMapping};
use crate::problem::MatrixProblem;
use crate::target::CpuFacts;

/// Register tiles (rows, vectors) that are tried for an instruction set: those that fill the
/// registers first, then smaller ones, which leave fewer rows or columns over.
fn tiles(isa: CpuIsa) -> &'static [[u32; 2]] {
    match isa {
        CpuIsa::Avx512 => &[
            [8, 3],
            [9, 3],
            [7, 3],
            [6, 4],
            [5, 5],
            [12, 2],
            [14, 2],
            [8, 2],
            [16, 1],
            [4, 6],
            [2, 8],
            [1, 16],
            [10, 2],
            [6, 3],
            [5, 4],
            [4, 4],
            [3, 6],
            [4, 3],
            [6, 2],
            [4, 2],
            [2, 6],
            [2, 4],
            [8, 1],
            [3, 8],
            [3, 4],
            [2, 3],
            [12, 1],
            [1, 8],
            [6, 1],
            [4, 1],
            [2, 2],
            [3, 3],
            [3, 2],
            [1, 4],
        ],
        CpuIsa::Avx2 | CpuIsa::Portable => {
            &[[6, 2], [5, 2], [4, 2], [4, 3], [3, 3], [8, 1], [2, 4], [1, 8]]
        }
    }
}

/// K elements per step: all of K, even splits near each of these, and steps so short that rows
/// of B are read as long streams.
const DEPTHS: [u64; 3] = [1024, 512, 256];
const STREAM_DEPTH: u64 = 8;

fn depths(k: u64, rows: u64) -> Vec<u64> {
    let mut out = Vec::new();
    for target in DEPTHS.into_iter().filter(|d| *d < k) {
        // Steps of equal length, a multiple of the K loop's unrolling.
        let steps = k.div_ceil(target);
        out.push(up(k.div_ceil(steps), 4));
    }
    if k <= DEPTHS[0] || rows == 1 {
        out.insert(0, k.max(1));
    } else {
        out.push(k);
    }
    if rows == 1 && k > STREAM_DEPTH {
        out.push(STREAM_DEPTH);
    }
    unique(out)
}

fn unique<T: PartialEq>(values: Vec<T>) -> Vec<T> {
    let mut out: Vec<T> = Vec::with_capacity(values.len());
    for value in values {
        if !out.contains(&value) {
            out.push(value);
        }
    }
    out
}

/// The smallest multiple of `unit` that is at least `value` and not 0.
fn up(value: u64, unit: u64) -> u64 {
    value.max(1).div_ceil(unit.max(1)).saturating_mul(unit.max(1))
}

/// `size` split into about `parts` equal parts, each a multiple of `unit`.
fn split(size: u64, parts: u64, unit: u64) -> u64 {
    up(size.div_ceil(parts.max(1)), unit)
}

/// How many parts rows and columns are split into, and the threads that share them.
fn partitions(threads: u32) -> Vec<(u64, u64, u32)> {
    let mut out = vec![(1, 1, 1)];
    if threads > 1 {
        let t = u64::from(threads);
        for factor in [1, 2, 4] {
            out.push((t.saturating_mul(factor), 1, threads));
            out.push((1, t.saturating_mul(factor), threads));
        }
        out.push((t, t, threads));
    }
    out
}

/// Columns of a block: as many as keep `depth` of them within half, or a quarter, of the second
/// level cache, in equal blocks; and all of the group's.
fn column_blocks(columns: u64, depth: u64, width: u64, bytes: u64, cpu: &CpuFacts) -> Vec<u64> {
    let row = depth.saturating_mul(bytes).max(1);
    let fit = |budget: u64| {
        let most = (budget / row / width).max(1).saturating_mul(width);
        split(columns, columns.div_ceil(most), width)
    };
    unique(vec![fit(cpu.l2_bytes / 2), fit(cpu.l2_bytes / 4), up(columns, width)])
}

/// Every candidate mapping for a launch that at most `threads` threads share, legal or not, in a
/// fixed order.
pub fn candidates(problem: &MatrixProblem, cpu: &CpuFacts, threads: u32) -> Vec<CpuMatrixMapping> {
    let bytes = problem.accumulator.bytes();
    let lanes = cpu.lanes(bytes);
    let [m, n, k] = problem.size.map(|s| s.max(1));
    let narrow = problem.operand != problem.accumulator;
    // A copy of A pays only where A is widened, or where its elements for one tile lie far apart.
    let copies_of_a: &[bool] =
        if narrow || problem.transposed[0] { &[false, true] } else { &[false] };
    let large = problem.output.bytes().saturating_mul(m).saturating_mul(n) > cpu.l3_bytes;
    let mut out = Vec::new();
    let tiles = tiles(cpu.isa);
    for &[rows, vectors] in tiles {
        let (rows, width) = (u64::from(rows), u64::from(vectors) * u64::from(lanes));
        // A tile with more rows than there are is another tile's remainder.
        let smallest = tiles.iter().map(|t| u64::from(t[0])).filter(|r| *r >= m).min();
        if problem.is_static[0] && smallest.is_some_and(|least| rows > least) {
            continue;
        }
        for depth in depths(k, rows) {
            for (row_parts, column_parts, threads) in partitions(threads) {
                let group = [split(m, row_parts, rows), split(n, column_parts, width)];
                for columns in column_blocks(group[1], depth, width, bytes, cpu) {
                    for pack_b in [false, true] {
                        for &pack_a in copies_of_a {
                            for stream in [false, true] {
                                if stream && (!large || depth < k) {
                                    continue;
                                }
                                out.push(CpuMatrixMapping {
                                    lanes,
                                    group,
                                    tile: [rows as u32, vectors],
                                    depth,
                                    columns,
                                    pack_a,
                                    pack_b,
                                    stream,
                                    threads,
                                });
                            }
                        }
                    }
                }
            }
        }
    }
    let mut seen = std::collections::HashSet::new();
    out.retain(|mapping| seen.insert(*mapping));
    out
}
