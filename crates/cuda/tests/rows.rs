//! Row programs of the op library as PTX, assembled.

mod common;

use tilewright_cuda::{PtxTarget, emit};
use tilewright_ir::ops::catalog::{OpRequest, build};
use tilewright_ir::{DType, analysis};
use tilewright_kernel::lower::{Options, lower};
use tilewright_plan::mapping::{Mapping, RowMapping};

#[test]
fn softmax_and_norms_assemble_without_local_memory() {
    for (op, columns) in [("softmax", 769), ("rmsnorm", 2048), ("layernorm", 1537)] {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let request = OpRequest::shaped(dtype, &[64, columns]);
            let program = build(op, &request).unwrap();
            let mut program = program;
            program.bind("rows", 64).ok();
            program.bind("cols", columns).ok();
            let facts = analysis::facts(&program);
            let mapping = Mapping::Rows(RowMapping {
                subgroups: 4,
                vector: 4,
                cache: true,
                fuse: true,
                ..RowMapping::ONE
            });
            let lowered = lower(&program, &facts, &mapping, &Options::default()).unwrap();
            for kernel in &lowered.launches {
                let ptx = emit(kernel, PtxTarget::BASE).unwrap();
                if std::env::var_os("SHOW").is_some() {
                    println!("{}", ptx.text);
                }
                for sm in ["sm_80", "sm_90"] {
                    if let Some((registers, spills)) = common::assemble(&ptx.text, sm) {
                        assert_eq!(spills, 0);
                        assert!(registers <= 128, "{op} {dtype} {sm}: {registers} registers");
                        println!("{op} {dtype} {sm}: {registers} registers");
                    }
                }
            }
        }
    }
}

#[test]
fn clusters_assemble_for_the_targets_that_have_them() {
    for (op, dtype, cluster, subgroups) in [
        ("softmax", DType::F32, 8, 16),
        ("layernorm", DType::BF16, 16, 12),
        ("rmsnorm", DType::F32, 2, 1),
    ] {
        let columns = 131_072 / 16 * u64::from(cluster.min(8));
        let mut program = build(op, &OpRequest::shaped(dtype, &[64, columns])).unwrap();
        for (_, tensor) in program.tensors.iter_mut() {
            tensor.align = 16;
        }
        let facts = analysis::facts(&program);
        let vector = 16 / dtype.bytes() as u32;
        let mapping = Mapping::Rows(RowMapping {
            subgroups,
            cluster,
            vector,
            cache: columns <= 65536,
            fuse: true,
            ..RowMapping::ONE
        });
        let lowered = lower(&program, &facts, &mapping, &Options::default()).unwrap();
        let ptx = emit(&lowered.launches[0], PtxTarget::BASE).unwrap();
        assert_eq!(ptx.cluster, cluster);
        assert!(ptx.text.starts_with(".version 7.8\n.target sm_90\n"), "{}", ptx.text);
        assert!(ptx.text.contains(&format!(".reqnctapercluster {cluster}, 1, 1")));
        for sm in ["sm_90", "sm_90a"] {
            if let Some((registers, spills)) = common::assemble(&ptx.text, sm) {
                println!("{op} {dtype} C{cluster} {sm}: {registers} registers, {spills} spilled");
            }
        }
    }
}
