//! Products with register tiles as PTX, assembled.

mod common;

use tilewright_cuda::{Ptx, PtxTarget, emit_for};
use tilewright_ir::ops::{GemmSpec, Trans};
use tilewright_ir::{DType, analysis};
use tilewright_kernel::lower::{Options, lower};
use tilewright_plan::mapping::{GpuMatrixMapping, Mapping};

/// Dependent launches where the GPU takes them.
const LIMITS: [(&str, PtxTarget); 2] =
    [("sm_80", PtxTarget::BASE), ("sm_90", PtxTarget::DEPENDENT_LAUNCHES)];

fn kernels(size: [u64; 3], trans: Trans, mapping: GpuMatrixMapping, limit: PtxTarget) -> Vec<Ptx> {
    let spec = GemmSpec { trans, ..GemmSpec::plain(DType::F32) };
    let mut program = spec.sized(size.map(Some)).unwrap();
    let ids: Vec<_> = program.tensors.iter().map(|(id, _)| id).collect();
    ids.into_iter().for_each(|id| program.tensors[id].align = 16);
    let facts = analysis::facts(&program);
    let lowered =
        lower(&program, &facts, &Mapping::GpuMatrix(mapping), &Options::default()).unwrap();
    lowered.launches.iter().map(|kernel| emit_for(kernel, limit).unwrap()).collect()
}

const LARGE: GpuMatrixMapping = GpuMatrixMapping {
    warps: [4, 2, 1],
    tile: [8, 8],
    stages: 4,
    unroll: 4,
    copy: [1, 4],
    resident: 2,
    ..GpuMatrixMapping::ONE
};

#[test]
fn tiles_stay_in_registers() {
    let small = GpuMatrixMapping { warps: [1, 1, 8], depth: 32, stages: 3, unroll: 3, ..LARGE };
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
        for (sm, limit) in LIMITS {
            for (number, ptx) in kernels(size, Trans::Nn, mapping, limit).iter().enumerate() {
                assert_eq!(ptx.dependent, sm == "sm_90", "{name}");
                if let Some(folder) = std::env::var_os("TILEWRIGHT_PTX") {
                    let path =
                        std::path::Path::new(&folder).join(format!("{name}{number}-{sm}.ptx"));
                    std::fs::write(path, &ptx.text).unwrap();
                }
                assert!(!ptx.text.contains(".local"), "{name}");
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
        let [_, (sm, limit)] = LIMITS;
        for ptx in kernels([4095, 4097, 4093], trans, ragged, limit) {
            if let Some((registers, spills)) = common::assemble(&ptx.text, sm) {
                assert_eq!((spills, registers <= 128), (0, true), "{trans:?}: {registers}");
            }
        }
    }
}

#[test]
fn waits_count_groups_of_copies() {
    let text = &kernels([4096, 4096, 4096], Trans::Nn, LARGE, PtxTarget::BASE)[0].text;
    // 4 copies of A and 1 of B per step; two of three steps stay in flight.
    assert!(text.contains("cp.async.wait_group 2;"), "{text}");
    // Three steps before the loops, four in the unrolled one, one in the other.
    assert_eq!(text.matches("cp.async.commit_group").count(), 3 + 4 + 1);
    assert_eq!(text.matches("cp.async.cg").count(), 3 + 4 + 1);
    assert_eq!(text.matches("fma.rn.f32").count(), 5 * 8 * 64);
}
