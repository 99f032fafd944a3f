//! Every op of the library in every type that it takes, planned for the shipped H200 target.

use tilewright_cuda::{PtxTarget, emit};
use tilewright_engine::{Plan, PlanOptions};
use tilewright_ir::DType;
use tilewright_ir::ops::{OpRequest, ShapeForm, catalog};
use tilewright_plan::Target;

/// Ops that need a function which f64 doesn't have on a GPU.
const WITHOUT_F64: [&str; 9] = [
    "softmax",
    "masked_softmax",
    "causal_softmax",
    "log_softmax",
    "cross_entropy",
    "gelu",
    "silu",
    "gelu_residual",
    "swiglu",
];

#[test]
fn every_op_has_ptx_by_its_best_plan_and_by_the_general_lowering() {
    let target = Target::nvidia_h200();
    let mut without = Vec::new();
    for op in catalog() {
        for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
            let shapes: &[&[u64]] = match op.form {
                ShapeForm::Rows => &[&[37, 1537], &[64, 2048]],
                ShapeForm::Matrix => &[&[127, 193, 61], &[256, 256, 128]],
                ShapeForm::BatchedMatrix => &[&[3, 65, 33, 17], &[2, 64, 64, 32]],
            };
            for shape in shapes {
                let what = format!("{} {dtype} {shape:?}", op.name);
                let program = op.build(&OpRequest::shaped(dtype, shape)).unwrap();
                let plan = Plan::new(&program, &target, &PlanOptions::default()).unwrap();
                plan.require().unwrap_or_else(|e| panic!("{what}: {e}"));
                let mut ways = vec![plan.lower_general()];
                ways.extend(plan.ranking.chosen().map(|best| plan.lower(best)));
                for lowered in ways {
                    let lowered = lowered.unwrap_or_else(|e| panic!("{what}: {e}"));
                    for kernel in &lowered.launches {
                        match emit(kernel, PtxTarget::BASE) {
                            Ok(ptx) => assert!(ptx.text.contains(".visible .entry"), "{what}"),
                            Err(error) if dtype == DType::F64 => {
                                assert!(error.to_string().contains("has no PTX form"), "{error}");
                                without.push(op.name);
                            }
                            Err(error) => panic!("{what}: {error}"),
                        }
                    }
                }
            }
        }
    }
    without.dedup();
    assert_eq!(without, WITHOUT_F64, "in the catalog's order");
}
