//! Products with register tiles as PTX, assembled.

mod common;

use tilewright_cuda::{Ptx, PtxTarget, emit_resident};
use tilewright_ir::ops::{GemmSpec, Trans};
use tilewright_ir::{DType, analysis};
use tilewright_kernel::lower::{Options, lower};
use tilewright_plan::mapping::{GpuMatrixMapping, Mapping};

fn kernels(size: [u64; 3], trans: Trans, mapping: GpuMatrixMapping) -> Vec<Ptx> {
    let spec = GemmSpec { trans, ..GemmSpec::plain(DType::F32) };
    let mut program = spec.sized(size.map(Some)).unwrap();
    let ids: Vec<_> = program.tensors.iter().map(|(id, _)| id).collect();
    ids.into_iter().for_each(|id| program.tensors[id].align = 16);
    let facts = analysis::facts(&program);
    let lowered =
        lower(&program, &facts, &Mapping::GpuMatrix(mapping), &Options::default()).unwrap();
    lowered
        .launches
        .iter()
        .map(|kernel| emit_resident(kernel, PtxTarget::BASE, Some(mapping.resident)).unwrap())
        .collect()
}

const LARGE: GpuMatrixMapping = GpuMatrixMapping {
    warps: [4, 2, 1],
    lanes: [4, 8],
    tile: [8, 8],
    depth: 8,
    stages: 4,
    unroll: 4,
    slices: 1,
    copy: [1, 4],
    resident: 2,
};

#[test]
fn tiles_stay_in_registers() {
    let small = GpuMatrixMapping {
        warps: [1, 1, 8],
        lanes: [4, 8],
        tile: [8, 8],
        depth: 32,
        stages: 3,
        unroll: 3,
        resident: 2,
        ..LARGE
    };
    let sliced = GpuMatrixMapping { slices: 4, resident: 1, ..LARGE };
    let ragged = GpuMatrixMapping { copy: [1, 1], resident: 1, ..LARGE };
    let wide = GpuMatrixMapping {
        warps: [2, 4, 1],
        tile: [16, 8],
        stages: 3,
        unroll: 3,
        resident: 1,
        ..LARGE
    };
    for (name, size, mapping, most) in [
        ("large", [4096, 4096, 4096], LARGE, 128),
        ("small", [512, 512, 512], small, 128),
        ("sliced", [1024, 1024, 1024], sliced, 168),
        ("ragged", [4095, 4097, 4093], ragged, 184),
        ("wide", [4096, 4096, 4096], wide, 255),
    ] {
        for (number, ptx) in kernels(size, Trans::Nn, mapping).iter().enumerate() {
            if let Some(folder) = std::env::var_os("TILEWRIGHT_PTX") {
                let path = std::path::Path::new(&folder).join(format!("{name}{number}.ptx"));
                std::fs::write(path, &ptx.text).unwrap();
            }
            assert!(!ptx.text.contains(".local"), "{name}");
            for sm in ["sm_80", "sm_90"] {
                if let Some((registers, spills)) = common::assemble(&ptx.text, sm) {
                    println!("{name} {number} {sm}: {registers} registers, {spills} spilled");
                    assert_eq!(spills, 0, "{name} {sm}");
                    assert!(registers <= most, "{name} {sm}: {registers} registers");
                }
            }
        }
    }
}

/// Sizes that no block divides, with copies of single elements: two groups of 256 threads on a core
/// leave 128 registers, which took spills while every copy had a test of its own.
#[test]
fn ragged_tiles_stay_in_registers_too() {
    let ragged = GpuMatrixMapping { copy: [1, 1], ..LARGE };
    for trans in [Trans::Nn, Trans::Tn] {
        for ptx in kernels([4095, 4097, 4093], trans, ragged) {
            if let Some((registers, spills)) = common::assemble(&ptx.text, "sm_90") {
                assert_eq!((spills, registers <= 128), (0, true), "{trans:?}: {registers}");
            }
        }
    }
}

#[test]
fn waits_count_groups_of_copies() {
    let text = &kernels([4096, 4096, 4096], Trans::Nn, LARGE)[0].text;
    // 4 copies of A and 1 of B per step; two of three steps stay in flight.
    assert!(text.contains("cp.async.wait_group 2;"), "{text}");
    // Three steps before the loops, four in the unrolled one, one in the other.
    assert_eq!(text.matches("cp.async.commit_group").count(), 3 + 4 + 1);
    assert_eq!(text.matches("cp.async.cg").count(), 3 + 4 + 1);
    assert_eq!(text.matches("fma.rn.f32").count(), 5 * 8 * 64);
}
