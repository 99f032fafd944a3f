//! Every op of the library in every type that it takes, planned for the shipped H200 target.

use tilewright_cuda::{PtxTarget, emit};
use tilewright_engine::{Plan, PlanOptions};
use tilewright_ir::DType;
use tilewright_ir::ops::{OpRequest, ShapeForm, build, catalog};
use tilewright_plan::target::TargetKind;
use tilewright_plan::{SpaceOptions, Target};

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

#[test]
fn a_program_without_a_legal_mapping_runs_by_the_general_lowering_which_the_plan_says() {
    let mut target = Target::nvidia_h200();
    if let TargetKind::Gpu(gpu) = &mut target.kind {
        // A GPU whose threads hold next to nothing.
        (gpu.private_scalars, gpu.registers_per_thread) = (0, Some(1));
    }
    let program = build("layernorm", &OpRequest::shaped(DType::F32, &[2, 900])).unwrap();
    let plan = Plan::new(&program, &target, &PlanOptions::default()).unwrap();
    let text = plan.explain(3);
    assert!(text.contains("general lowering") && text.contains("budget"), "{text}");
    assert!(plan.require().is_ok());
    plan.lower_general().unwrap();
    // A space that was limited stays an error.
    let space = SpaceOptions { threads: Some(vec![32]), ..SpaceOptions::default() };
    let options = PlanOptions { space, ..PlanOptions::default() };
    let plan = Plan::new(&program, &target, &options).unwrap();
    assert_eq!(plan.general, None);
    assert!(plan.require().unwrap_err().to_string().contains("no legal candidate"));
}
