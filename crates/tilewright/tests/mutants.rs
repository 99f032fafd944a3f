//! The check has teeth: a program that drops one term of a sum fails against the reference of the
//! program that doesn't.

mod common;

use common::{engine, isas};
use tilewright::check::{LaunchValues, reference, run_against};
use tilewright::program::{Extent, Op};
use tilewright::{CpuIsa, DType, Program, Task, inputs};
use tilewright_ir::ops::{OpRequest, find};

/// Whether code of `mutant` passes against the reference of `program`.
fn passes(isa: CpuIsa, program: &Program, mutant: &Program) -> bool {
    let engine = engine(isa);
    let values = LaunchValues::default();
    let contents = inputs::random(program, &values, 7).unwrap();
    let reference = reference(program, &values, &contents.inputs, &contents.initial).unwrap();
    let compiled = Task::new(mutant.clone()).plan(&engine).unwrap().compile().unwrap();
    let checked = run_against(&compiled, &reference, &values, contents.inputs, contents.initial);
    checked.unwrap().report.passed()
}

#[test]
fn a_product_that_drops_one_k_fails() {
    for isa in isas() {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let request = OpRequest::shaped(dtype, &[24, 40, 256]);
            let program = find("gemm").unwrap().build(&request).unwrap();
            let mut mutant = program.clone();
            let counter = mutant.ops.iter().find_map(|(_, op)| match op.op {
                Op::Loop { index, .. } => Some(index),
                _ => None,
            });
            // K as the tensors have it, one less in the loop, block by block of 1.
            let counter = counter.unwrap();
            mutant.indices[counter].extent = Extent::Const(255);
            mutant.indices[counter].step = Extent::Const(1);
            for (_, axis) in mutant.axes.iter_mut() {
                if axis.name == "l" {
                    axis.extent = Extent::Const(1);
                }
            }
            assert!(passes(isa, &program, &program), "{isa:?} {dtype}");
            assert!(!passes(isa, &program, &mutant), "{isa:?} {dtype}: the mutant passed");
        }
    }
}

#[test]
fn a_sum_that_drops_one_element_fails() {
    for isa in isas() {
        for op in ["row_sum", "row_mean", "row_max"] {
            let request = OpRequest::shaped(DType::F32, &[64, 100]);
            let program = find(op).unwrap().build(&request).unwrap();
            let mut mutant = program.clone();
            for (_, axis) in mutant.axes.iter_mut() {
                axis.extent = Extent::Const(99);
            }
            assert!(passes(isa, &program, &program), "{isa:?} {op}");
            assert!(!passes(isa, &program, &mutant), "{isa:?} {op}: the mutant passed");
        }
    }
}
