//! The CPU matrix space and its policy: what they choose for shapes of every kind.

use tilewright_ir::DType;
use tilewright_plan::legality;
use tilewright_plan::mapping::{CpuIsa, CpuMatrixMapping};
use tilewright_plan::policy::cpu::CpuCoefficients;
use tilewright_plan::policy::cpu_matrix::{self, CpuMatrixCounts};
use tilewright_plan::problem::MatrixProblem;
use tilewright_plan::space;
use tilewright_plan::target::CpuFacts;

const SHAPES: [[u64; 3]; 11] = [
    [32, 32, 32],
    [128, 128, 128],
    [512, 512, 512],
    [1024, 1024, 1024],
    [256, 1024, 128],
    [1024, 128, 256],
    [127, 193, 61],
    [513, 257, 129],
    [1, 4096, 4096],
    [8, 4096, 4096],
    [4096, 4096, 16],
];

/// A processor of the kind that the prices were measured on.
fn cpu(isa: CpuIsa, cores: u32) -> CpuFacts {
    CpuFacts {
        l1_bytes: 48 << 10,
        l2_bytes: 1 << 20,
        l3_bytes: 32 << 20,
        ..CpuFacts::modest(isa, cores)
    }
}

fn legal(problem: &MatrixProblem, cpu: &CpuFacts, threads: u32) -> Vec<(f64, CpuMatrixMapping)> {
    let mut out = Vec::new();
    for mapping in space::cpu_matrix::candidates(problem, cpu, threads) {
        let counts = CpuMatrixCounts::new(problem, &mapping);
        if legality::cpu_matrix::check(problem, cpu, &mapping, &counts).is_err() {
            continue;
        }
        let coefficients = CpuCoefficients::default();
        let score = cpu_matrix::score(&coefficients, problem, cpu, &mapping, &counts);
        let score = score.unwrap_or_else(|e| panic!("{mapping:?}: {e}"));
        assert!(score.is_valid(), "{mapping:?}: {score:?}");
        out.push((score.kernel, mapping));
    }
    out.sort_by(|a, b| a.0.total_cmp(&b.0));
    out
}

fn pick([m, n, k]: [u64; 3], threads: u32) -> CpuMatrixMapping {
    let problem = MatrixProblem::plain(m, n, k);
    legal(&problem, &cpu(CpuIsa::Avx512, 2), threads)[0].1
}

#[test]
fn every_shape_has_dozens_of_legal_candidates() {
    for isa in [CpuIsa::Avx512, CpuIsa::Avx2] {
        for [m, n, k] in SHAPES {
            for threads in [1, 2] {
                let problem = MatrixProblem::plain(m, n, k);
                let count = legal(&problem, &cpu(isa, 2), threads).len();
                assert!(count >= 8, "{m}x{n}x{k} on {isa:?}: {count}");
            }
        }
    }
}

#[test]
fn the_estimate_is_within_reason_of_the_peak() {
    // No estimate is below what the multiply-adds alone take, and in-cache products come close.
    for [m, n, k] in SHAPES {
        let problem = MatrixProblem::plain(m, n, k);
        let (score, _) = legal(&problem, &cpu(CpuIsa::Avx512, 2), 1)[0];
        let floor = m as f64 * n as f64 * k as f64 / 32.0;
        assert!(score >= floor, "{m}x{n}x{k}: {score} cycles, the peak takes {floor}");
        if m > 8 && k > 16 {
            assert!(score <= 1.3 * floor, "{m}x{n}x{k}: {score} cycles, the peak takes {floor}");
        }
    }
}

#[test]
fn a_small_product_stays_on_one_thread() {
    assert_eq!(pick([32, 32, 32], 2).threads, 1);
    assert_eq!(pick([512, 512, 512], 2).threads, 2);
}

#[test]
fn one_row_streams_b_in_short_steps() {
    let mapping = pick([1, 4096, 4096], 1);
    assert_eq!((mapping.tile[0], mapping.pack_b), (1, false));
    assert!(mapping.depth <= 8, "{mapping:?}");
}

#[test]
fn few_rows_do_not_copy_b() {
    for rows in [2, 4, 8, 16] {
        let mapping = pick([rows, 4096, 4096], 1);
        assert!(!mapping.pack_b, "{mapping:?}");
        // Single cache lines of rows a page apart would come at a tenth of memory's speed.
        assert!(mapping.tile[1] >= 3 || mapping.depth <= 8, "{mapping:?}");
    }
}

#[test]
fn a_large_output_goes_around_the_caches() {
    assert!(pick([4096, 4096, 16], 1).stream);
    assert!(!pick([1024, 1024, 1024], 1).stream);
}

#[test]
fn large_products_pack_b_in_blocks_for_the_second_level() {
    let mapping = pick([1024, 1024, 1024], 1);
    assert!(mapping.pack_b);
    assert!(mapping.depth * mapping.columns * 4 <= (1 << 20) / 2, "{mapping:?}");
}

#[test]
fn what_b_needs_is_a_rule() {
    let base = pick([64, 64, 64], 1);
    let facts = cpu(CpuIsa::Avx512, 1);
    let rule = |problem: &MatrixProblem, mapping: CpuMatrixMapping| {
        let counts = CpuMatrixCounts::new(problem, &mapping);
        let verdict = legality::cpu_matrix::check(problem, &facts, &mapping, &counts);
        verdict.expect_err("illegal").rule.name()
    };
    let plain = MatrixProblem::plain(64, 64, 64);
    let transposed = MatrixProblem { transposed: [false, true], ..plain.clone() };
    let unpacked = CpuMatrixMapping { pack_b: false, ..base };
    assert_eq!(rule(&transposed, unpacked), "pack-required");
    let wide = CpuMatrixMapping { tile: [16, 2], group: [64, 64], columns: 64, ..base };
    assert_eq!(rule(&plain, wide), "register-budget");
    let odd = CpuMatrixMapping { group: [base.group[0] + 1, base.group[1]], ..base };
    assert_eq!(rule(&plain, odd), "tile-multiple");
    assert_eq!(rule(&plain, CpuMatrixMapping { threads: 9, ..base }), "threads-limit");
    assert_eq!(rule(&plain, CpuMatrixMapping { lanes: 8, ..base }), "lane-width");
    let halves = MatrixProblem { output: DType::F16, ..plain.clone() };
    assert_eq!(rule(&halves, CpuMatrixMapping { stream: true, ..base }), "stream-output");
}

#[test]
fn the_order_is_the_same_every_time() {
    let problem = MatrixProblem::plain(513, 257, 129);
    let facts = cpu(CpuIsa::Avx512, 2);
    assert_eq!(legal(&problem, &facts, 2), legal(&problem, &facts, 2));
}
