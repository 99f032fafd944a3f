//! Space, legality and estimate of register-tile products on GPUs.

use tilewright_ir::DType;
use tilewright_plan::SpaceOptions;
use tilewright_plan::legality::gpu_matrix::check;
use tilewright_plan::mapping::{GpuMatrixMapping, Mapping};
use tilewright_plan::policy::gpu_matrix::{estimate, registers, shared_bytes, shortlist};
use tilewright_plan::problem::MatrixProblem;
use tilewright_plan::space::gpu_matrix::{candidates, space};
use tilewright_plan::target::{GpuFacts, Target};

fn gpu() -> GpuFacts {
    Target::nvidia_h200().gpu_facts().cloned().unwrap()
}

const SIZES: [[u64; 3]; 6] = [
    [32, 32, 32],
    [127, 193, 61],
    [512, 512, 512],
    [16, 4096, 4096],
    [4096, 4096, 64],
    [4095, 4097, 4093],
];

#[test]
fn every_case_has_a_hundred_legal_candidates() {
    for [m, n, k] in SIZES {
        let problem = MatrixProblem::plain(m, n, k);
        let all = candidates(&problem, &gpu(), [1, 1]);
        let legal = all.iter().filter(|c| check(&problem, &gpu(), c, [1, 1]).is_ok());
        assert!(legal.clone().count() >= 100, "{m}x{n}x{k}: {}", legal.count());
        let mut seen = std::collections::HashSet::new();
        assert!(all.iter().all(|c| seen.insert(*c)), "{m}x{n}x{k} has one twice");
        for c in &all {
            let us = estimate(&problem, &gpu(), c);
            assert!(us.is_finite() && us > 0.0, "{c:?}: {us}");
        }
    }
}

#[test]
fn a_short_list_is_in_order_and_varied() {
    let problem = MatrixProblem::plain(1024, 1024, 1024);
    let list = shortlist(&problem, &gpu(), [1, 4], 24);
    assert_eq!(list.len(), 24);
    assert!(list.windows(2).all(|w| w[0].0 <= w[1].0));
    let tiles: std::collections::HashSet<_> = list.iter().map(|(_, m)| m.tile).collect();
    assert!(tiles.len() >= 3, "{tiles:?}");
}

#[test]
fn rules_have_names() {
    let good = GpuMatrixMapping {
        warps: [4, 2, 1],
        tile: [8, 8],
        stages: 4,
        unroll: 4,
        copy: [1, 4],
        resident: 2,
        ..GpuMatrixMapping::ONE
    };
    // A turned on its way has padded rows: 8 of 132, B 8 of 128 elements, four stages.
    assert_eq!(shared_bytes(&good, [false, false]), 4 * 8 * (132 + 128) * 4);
    let plain = MatrixProblem::plain(4096, 4096, 4096);
    let rule = |problem: &MatrixProblem, mapping: GpuMatrixMapping| {
        check(problem, &gpu(), &mapping, [1, 4]).map_err(|r| r.rule.name())
    };
    assert_eq!(rule(&plain, good), Ok(()));
    let doubles = MatrixProblem { operand: DType::F64, ..MatrixProblem::plain(64, 64, 64) };
    assert_eq!(rule(&doubles, good), Err("target-dtype"));
    let of = |change: fn(&mut GpuMatrixMapping)| {
        let mut mapping = good;
        change(&mut mapping);
        rule(&plain, mapping)
    };
    assert_eq!(of(|m| m.slices = 0), Err("empty-tile"));
    assert_eq!(of(|m| m.lanes = [8, 8]), Err("lane-width"));
    assert_eq!(of(|m| m.tile = [6, 8]), Err("tile-multiple"));
    assert_eq!(of(|m| m.stages = 0), Err("stage-range"));
    assert_eq!(of(|m| m.stages = 9), Err("stage-range"));
    assert_eq!(of(|m| (m.stages, m.unroll) = (1, 1)), Err("lane-width"));
    assert_eq!(of(|m| m.unroll = 3), Err("unroll-range"));
    assert_eq!(of(|m| m.copy = [2, 4]), Err("unproved-realisation"));
    assert_eq!(of(|m| m.warps = [8, 8, 1]), Err("threads-limit"));
    assert_eq!(of(|m| m.resident = 3), Err("register-budget"));
    let deep = |m: &mut GpuMatrixMapping| (m.depth, m.stages, m.unroll) = (128, 4, 1);
    assert_eq!(of(deep), Err("shared-memory"));
    let mut ordered = plain.clone();
    ordered.reassociable = false;
    assert_eq!(rule(&ordered, GpuMatrixMapping { slices: 2, ..good }), Err("accumulator-order"));
}

#[test]
fn vectors_along_k_by_proof_and_with_their_registers() {
    let tile = GpuMatrixMapping {
        warps: [2, 2, 1],
        tile: [4, 8],
        depth: 16,
        stages: 3,
        copy: [4, 4],
        ..GpuMatrixMapping::ONE
    };
    let turned = |k: u64| MatrixProblem {
        transposed: [false, true],
        copies: [1, 1],
        along: [if k.is_multiple_of(4) { 4 } else { 1 }; 2],
        ..MatrixProblem::plain(512, 512, k)
    };
    let rule = |k: u64, mapping| {
        let problem = turned(k);
        check(&problem, &gpu(), &mapping, problem.copies).map_err(|r| r.rule.name())
    };
    assert_eq!(rule(512, tile), Ok(()));
    assert_eq!(rule(511, tile), Err("unproved-realisation"));
    assert_eq!(rule(512, GpuMatrixMapping { depth: 2, ..tile }), Err("tile-multiple"));
    // 64 sums, five K of 8 + 8 elements and 32 more are 176 registers: two groups of 256 threads
    // on a core have 128 each.
    let large = GpuMatrixMapping { warps: [4, 2, 1], tile: [8, 8], resident: 2, ..tile };
    assert_eq!(registers(&large, [false, true]), 176);
    assert_eq!(rule(512, large), Err("register-budget"));
    assert_eq!(rule(512, GpuMatrixMapping { resident: 1, ..large }), Ok(()));
    // Rows of 16 elements of K and 4 more: 32 rows of A and 64 columns of B, three stages.
    let small = GpuMatrixMapping { warps: [2, 1, 1], ..tile };
    assert_eq!(shared_bytes(&small, [false, true]), 3 * (32 + 64) * 20 * 4);
    // Every candidate of such a product copies so, those of an untransposed one don't.
    for (problem, copies) in [(turned(512), [4, 4]), (turned(510), [1, 1])] {
        let found = space(&problem, &gpu(), &SpaceOptions::default()).unwrap();
        assert!(found.len() > 100);
        for candidate in found {
            let Mapping::GpuMatrix(m) = candidate.mapping else { panic!() };
            assert_eq!(m.copy, copies);
        }
    }
}

#[test]
fn thin_products_read_in_place_by_proof() {
    let split = GpuMatrixMapping {
        warps: [1, 4, 2],
        lanes: [1, 1],
        tile: [1, 2],
        depth: 2 * 32 * 4 * 2,
        stages: 1,
        copy: [4, 4],
        ..GpuMatrixMapping::ONE
    };
    // Nothing but the sums of two sets: one row of 4 subgroups' 2 columns each.
    assert_eq!(shared_bytes(&split, [false, true]), 2 * 8 * 4);
    let turned = MatrixProblem {
        transposed: [false, true],
        copies: [1, 1],
        along: [4, 4],
        ..MatrixProblem::plain(1, 4096, 4096)
    };
    let rule = |problem: &MatrixProblem, mapping| {
        check(problem, &gpu(), &mapping, problem.copies).map_err(|r| r.rule.name())
    };
    assert_eq!(rule(&turned, split), Ok(()));
    let plain = MatrixProblem::plain(1, 4096, 4096);
    assert_eq!(rule(&plain, split), Err("unproved-realisation"), "K isn't innermost of B");
    assert_eq!(rule(&turned, GpuMatrixMapping { depth: 64, ..split }), Err("tile-multiple"));
    let ordered = MatrixProblem { reassociable: false, ..turned.clone() };
    let alone = GpuMatrixMapping { warps: [1, 4, 1], depth: 256, ..split };
    assert_eq!(rule(&ordered, alone), Err("accumulator-order"));
    let spread =
        GpuMatrixMapping { lanes: [1, 32], warps: [1, 1, 8], tile: [1, 4], depth: 64, ..split };
    assert_eq!(rule(&plain, spread), Ok(()));
    assert_eq!(rule(&turned, spread), Err("unproved-realisation"), "nor are columns there");
    let wide = GpuMatrixMapping { tile: [1, 8], ..spread };
    assert_eq!(rule(&plain, wide), Err("tile-multiple"));
    for (problem, lanes) in [(&turned, [1, 1]), (&plain, [1, 32])] {
        let found = tilewright_plan::space::thin_matrix::mappings(problem, &gpu());
        assert!(found.len() >= 10 && found.iter().all(|m| m.lanes == lanes), "{found:?}");
        for mapping in &found {
            assert_eq!(rule(problem, *mapping), Ok(()), "{mapping:?}");
            let us = estimate(problem, &gpu(), mapping);
            assert!(us.is_finite() && us > 0.0, "{mapping:?}: {us}");
        }
    }
    // Both sides of the longest short side.
    let count = |m| {
        let problem = MatrixProblem::plain(m, 4096, 4096);
        tilewright_plan::space::thin_matrix::mappings(&problem, &gpu()).len()
    };
    assert!(count(4) > 0 && count(5) == 0);
}
