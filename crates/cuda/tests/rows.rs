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
                lanes: 32,
                subgroups: 4,
                vector: 4,
                unroll: 1,
                accumulators: 1,
                pack: 1,
                cache: true,
                fuse: true,
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
