//! Emitted texts in `tests/filetests/metal/*.metal` of the workspace, one per realisation and
//! kind of shape. TILEWRIGHT_BLESS=1 rewrites them.

mod common;

use std::path::Path;

use common::*;
use tilewright_ir::DType;
use tilewright_ir::ops::{self, EpilogueStep, OpRequest, Trans};
use tilewright_kernel::lower;
use tilewright_kernel::validate::validate;
use tilewright_metal::Module;
use tilewright_plan::{SpaceOptions, Target};

fn threads(n: u32) -> SpaceOptions {
    SpaceOptions { threads: Some(vec![n]), ..SpaceOptions::default() }
}

fn block(block: [u64; 3], n: u32) -> SpaceOptions {
    SpaceOptions { blocks: Some(vec![block]), ..threads(n) }
}

/// The first choice of a policy among few candidates.
fn planned(op: &str, shape: &[u64], dtype: DType, policy: &str, options: SpaceOptions) -> Module {
    let program = program(op, shape, dtype);
    let ranking = ranked(&program, policy, options);
    let winner = ranking.winner().unwrap_or_else(|e| panic!("{op} {shape:?}: {e}"));
    module(&candidate_kernel(&program, winner))
}

/// As [`planned`], of a product with options.
fn product(request: &OpRequest, policy: &str, options: SpaceOptions) -> Module {
    let program = ops::build("gemm", request).unwrap_or_else(|e| panic!("{e}"));
    let program = lower::resident(&program, &Target::apple_m1_max());
    let ranking = ranked(&program, policy, options);
    let winner = ranking.winner().unwrap_or_else(|e| panic!("{request:?}: {e}"));
    module(&candidate_kernel(&program, winner))
}

fn cases() -> Vec<(&'static str, Module)> {
    use DType::{BF16, F16, F32};
    let rows = "reduction-v1";
    let cached = |n| SpaceOptions { cache: Some(true), ..threads(n) };
    let (mpp, fragments) = ("matrix-mpp-v2", "matrix-simdgroup-v1");
    let shaped = OpRequest::shaped(F32, &[64, 64, 64]);
    let transposed = OpRequest { trans: Trans::Tt, ..shaped.clone() };
    let epilogue = vec![EpilogueStep::Bias, EpilogueStep::Gelu, EpilogueStep::Residual];
    let fused = OpRequest { epilogue, alpha: 2.0, ..OpRequest::shaped(F16, &[40, 48, 64]) };
    vec![
        ("gemm_64x64x64_tt_simdgroup", product(&transposed, fragments, block([32, 32, 32], 64))),
        ("gemm_64x64x64_tt_mpp_views", product(&transposed, mpp, block([32, 32, 32], 64))),
        ("gemm_40x48x64_f16_epilogue_mpp", product(&fused, mpp, block([32, 32, 32], 64))),
        (
            "gemm_40x48x64_f16_epilogue_simdgroup",
            product(&fused, fragments, block([32, 32, 32], 64)),
        ),
        ("softmax_3x769_t96", planned("softmax", &[3, 769], F32, rows, threads(96))),
        ("softmax_3x769_t96_cache", planned("softmax", &[3, 769], F32, rows, cached(96))),
        ("softmax_2x768_t32", planned("softmax", &[2, 768], F32, rows, threads(32))),
        ("rmsnorm_5x1537_t128_f16", planned("rmsnorm", &[5, 1537], F16, rows, threads(128))),
        ("layernorm_2x100_t64_bf16", planned("layernorm", &[2, 100], BF16, rows, threads(64))),
        ("cross_entropy_2x65_t32", planned("cross_entropy", &[2, 65], F32, rows, threads(32))),
        (
            "gemm_64x64x64_simdgroup",
            planned("gemm", &[64, 64, 64], F32, fragments, block([32, 32, 32], 64)),
        ),
        (
            "gemm_33x65x61_simdgroup",
            planned("gemm", &[33, 65, 61], F32, fragments, block([32, 32, 32], 128)),
        ),
        (
            "gemm_64x64x64_simdgroup_bf16",
            planned("gemm", &[64, 64, 64], BF16, fragments, block([32, 32, 32], 64)),
        ),
        (
            "gemm_64x64x64_simdgroup_f16",
            planned("gemm", &[64, 64, 64], F16, fragments, block([32, 32, 32], 64)),
        ),
        (
            "gemm_64x64x64_mpp_views",
            planned("gemm", &[64, 64, 64], F32, mpp, block([32, 32, 32], 64)),
        ),
        (
            "gemm_64x64x32_mpp_overwrite",
            planned("gemm", &[64, 64, 32], F32, mpp, block([32, 64, 32], 64)),
        ),
        ("gemm_33x65x61_mpp", planned("gemm", &[33, 65, 61], F32, mpp, block([32, 32, 32], 64))),
        ("row_sum_3x40_general", module(&general(&program("row_sum", &[3, 40], F32)))),
        ("gemm_5x7x9_general", module(&general(&program("gemm", &[5, 7, 9], F32)))),
        ("gelu_3x5_general", module(&general(&program("gelu", &[3, 5], F32)))),
    ]
}

#[test]
fn texts_are_as_expected() {
    let bless = std::env::var_os("TILEWRIGHT_BLESS").is_some_and(|v| v == "1");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/filetests/metal");
    let mut wrong = String::new();
    let constructs = constructs::all().into_iter().map(|(name, kernel)| {
        validate(&kernel).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        (name, module(&kernel))
    });
    for (name, module) in cases().into_iter().chain(constructs) {
        let path = folder.join(format!("{name}.metal"));
        if bless {
            std::fs::write(&path, &module.text).expect("the expected text is written");
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        if kept != module.text {
            wrong += &format!("{} has changed; found:\n{}\n", path.display(), module.text);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
