//! The check has teeth: a result that lacks one term of a sum fails.

mod common;

use common::{engine, isas};
use tilewright::check::{LaunchValues, reference, run_against};
use tilewright::program::Extent;
use tilewright::{Buffer, DType, Task, inputs};
use tilewright_ir::ops::{OpRequest, find};

/// What a kernel computes that drops one k of a product: the full product's reference against a
/// launch whose A has zeros in that column.
#[test]
fn a_product_that_drops_one_k_fails() {
    let (m, n, k) = (24usize, 40, 256);
    for isa in isas() {
        let engine = engine(isa);
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let request = OpRequest::shaped(dtype, &[m as u64, n as u64, k as u64]);
            let program = find("gemm").unwrap().build(&request).unwrap();
            let values = LaunchValues::default();
            let compiled = Task::new(program.clone()).plan(&engine).unwrap().compile().unwrap();
            for dropped in [None, Some(0), Some(k / 2), Some(k - 1)] {
                let contents = inputs::random(&program, &values, 7).unwrap();
                let full = reference(&program, &values, &contents.inputs, &[]).unwrap();
                let mut a = contents.inputs[0].to_f64();
                if let Some(column) = dropped {
                    (0..m).for_each(|row| a[row * k + column] = 0.0);
                }
                let b = contents.inputs[1].to_f64();
                let given = [&a, &b].map(|data| Buffer::from_f64(dtype, data).unwrap()).into();
                let checked = run_against(&compiled, &full, &values, given, vec![]).unwrap();
                assert_eq!(
                    checked.report.passed(),
                    dropped.is_none(),
                    "{isa:?} {dtype} {dropped:?}"
                );
            }
        }
    }
}

/// A program whose rows are one element short, against the reference of the whole rows.
#[test]
fn a_sum_that_drops_one_element_fails() {
    for isa in isas() {
        let engine = engine(isa);
        for op in ["row_sum", "row_mean", "row_max"] {
            let request = OpRequest::shaped(DType::F32, &[64, 100]);
            let program = find(op).unwrap().build(&request).unwrap();
            let mut mutant = program.clone();
            for (_, axis) in mutant.axes.iter_mut() {
                axis.extent = Extent::Const(99);
            }
            for (code, whole) in [(&program, true), (&mutant, false)] {
                let values = LaunchValues::default();
                let contents = inputs::random(&program, &values, 7).unwrap();
                let full = reference(&program, &values, &contents.inputs, &[]).unwrap();
                let compiled = Task::new(code.clone()).plan(&engine).unwrap().compile().unwrap();
                let checked = run_against(&compiled, &full, &values, contents.inputs, vec![]);
                assert_eq!(checked.unwrap().report.passed(), whole, "{isa:?} {op}");
            }
        }
    }
}
