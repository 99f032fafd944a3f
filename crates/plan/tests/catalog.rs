//! Every op of the library has a plan on every kind of target.

use tilewright_ir::facts::Family;
use tilewright_ir::ops::{self, EpilogueStep, OpRequest, ShapeForm, Trans};
use tilewright_ir::{DType, Program, analysis};
use tilewright_plan::mapping::CpuIsa;
use tilewright_plan::target::CpuFacts;
use tilewright_plan::{PlanError, Ranking, Request, Target, plan, policy};

fn rank(program: &Program, target: &Target) -> Result<Ranking, PlanError> {
    let facts = analysis::facts(program);
    let rows = !matches!(facts.family, Family::Matrix(_));
    let policy = policy::by_name(policy::default_name(target, rows), None)?;
    plan(&Request::new(program, &facts), target, policy.as_ref())
}

/// Programs of an op over shapes and options that it takes; types that it lacks are skipped.
fn programs(op: &ops::OpInfo, dtype: DType) -> Vec<Program> {
    let shapes: Vec<Vec<u64>> = match op.form {
        ShapeForm::Rows => vec![vec![37, 1537], vec![1, 1], vec![4, 17], vec![64, 12289]],
        ShapeForm::Matrix => vec![vec![64, 96, 128], vec![127, 193, 61], vec![1, 1, 1]],
        ShapeForm::BatchedMatrix => vec![vec![3, 64, 64, 64], vec![2, 33, 17, 5]],
    };
    let mut requests = Vec::new();
    for shape in shapes {
        let plain = OpRequest::shaped(dtype, &shape);
        if op.form == ShapeForm::Rows {
            requests.push(OpRequest { strided: true, ..plain.clone() });
        } else {
            for trans in [Trans::Nt, Trans::Tn, Trans::Tt] {
                requests.push(OpRequest { trans, ..plain.clone() });
            }
            let epilogue = vec![EpilogueStep::Bias, EpilogueStep::Gelu];
            requests.push(OpRequest { epilogue, beta: 0.5, alpha: 2.0, ..plain.clone() });
        }
        requests.push(plain);
    }
    requests.iter().filter_map(|request| op.build(request).ok()).collect()
}

#[test]
fn every_op_has_a_plan() {
    let cpus = [CpuIsa::Avx512, CpuIsa::Avx2, CpuIsa::Portable]
        .map(|isa| Target::cpu(CpuFacts::modest(isa, 2)));
    let mut planned = 0;
    for op in ops::catalog() {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            for program in programs(op, dtype) {
                let what = format!("{} {dtype}", program.name);
                for target in &cpus {
                    let ranking = rank(&program, target);
                    let ranking = ranking.unwrap_or_else(|e| panic!("{what}: {e}"));
                    assert!(ranking.chosen().is_some(), "{what}: {:?}", ranking.rejections());
                    planned += 1;
                }
                let apple = Target::apple_m1_max();
                let ranking = rank(&program, &apple).unwrap_or_else(|e| panic!("{what}: {e}"));
                if dtype == DType::F64 {
                    assert_eq!(ranking.rejections().len(), 1, "{what}");
                    assert!(ranking.rejections().contains_key("target-dtype"), "{what}");
                } else {
                    assert!(ranking.chosen().is_some(), "{what}: {:?}", ranking.rejections());
                    planned += 1;
                }
            }
        }
    }
    assert!(planned > 500, "{planned}");
}
