//! The candidate space of matrix products on CPUs: register tiles, depths, groups, packing.

use crate::mapping::{CpuIsa, CpuMatrixMapping};
use crate::problem::MatrixProblem;
use crate::target::CpuFacts;

/// Register tiles (rows, vectors) that are tried for an instruction set, largest first.
fn tiles(isa: CpuIsa) -> &'static [[u32; 2]] {
    match isa {
        CpuIsa::Avx512 => &[[14, 2], [12, 2], [8, 3], [6, 4], [4, 4], [2, 8], [1, 8]],
        CpuIsa::Avx2 | CpuIsa::Portable => &[[6, 2], [4, 2], [4, 3], [2, 4], [1, 8]],
    }
}

/// Every candidate mapping for a launch that `threads` threads share, legal or not, in a fixed
/// order.
pub fn candidates(problem: &MatrixProblem, cpu: &CpuFacts, threads: u32) -> Vec<CpuMatrixMapping> {
    let lanes = cpu.lanes(problem.accumulator.bytes());
    let [m, n, k] = problem.size.map(|s| s.max(1));
    let narrow = problem.operand != problem.accumulator;
    let mut depths: Vec<u64> = [k, 512, 384, 256].into_iter().filter(|d| *d <= k).collect();
    depths.sort();
    depths.dedup();
    let mut out = Vec::new();
    for &[rows, vectors] in tiles(cpu.isa) {
        let width = u64::from(vectors) * u64::from(lanes);
        for &depth in &depths {
            // One group, and a split over rows or columns for the threads.
            let parts = u64::from(threads.max(1));
            let split_rows = m.div_ceil(parts).next_multiple_of(u64::from(rows));
            let split_columns = n.div_ceil(parts).next_multiple_of(width);
            let mut groups = vec![[m, n], [split_rows.min(m), n], [m, split_columns.min(n)]];
            groups.dedup();
            for group in groups {
                for pack_b in [false, true] {
                    for pack_a in [false, true] {
                        out.push(CpuMatrixMapping {
                            lanes,
                            group,
                            tile: [rows, vectors],
                            depth,
                            columns: n.next_multiple_of(width),
                            pack_a: pack_a || narrow,
                            pack_b,
                            threads: threads.max(1),
                        });
                    }
                }
            }
        }
    }
    let mut seen = std::collections::HashSet::new();
    out.retain(|mapping| seen.insert(*mapping));
    out
}
