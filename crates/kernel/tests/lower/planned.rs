//! Every legal candidate of the planner's default spaces lowers, with the planner's counts.

use tilewright_ir::DType;
use tilewright_ir::Program;
use tilewright_ir::analysis::facts;
use tilewright_ir::ops::{OpRequest, find};
use tilewright_kernel::kernel::Op;
use tilewright_kernel::lower::{Options, lower};
use tilewright_kernel::sim::Order;
use tilewright_plan::mapping::Mapping;
use tilewright_plan::policy::{self, CandidateFacts};
use tilewright_plan::{Request, Target, plan};

use crate::common::*;

/// The reference's row shapes.
const ROWS: [[u64; 2]; 8] = [
    [23, 769],
    [37, 1537],
    [128, 2048],
    [256, 3072],
    [1024, 4096],
    [768, 6144],
    [128, 8193],
    [64, 12289],
];

/// The reference's product shapes.
const PRODUCTS: [[u64; 3]; 8] = [
    [32, 32, 32],
    [128, 128, 128],
    [512, 512, 512],
    [1024, 1024, 1024],
    [256, 1024, 128],
    [1024, 128, 256],
    [127, 193, 61],
    [513, 257, 129],
];

/// Lowers every legal candidate; returns how many there are.
fn lower_all(program: &Program, policy_name: &str) -> usize {
    let target = Target::apple_m1_max();
    let facts = facts(program);
    let request = Request::new(program, &facts);
    let policy = policy::by_name(policy_name, None).unwrap();
    let ranking = plan(&request, &target, policy.as_ref()).unwrap();
    let shared_limit = target.gpu_facts().unwrap().shared_bytes;
    for index in &ranking.order {
        let candidate = &ranking.candidates[*index];
        let context = format!("{} {:?}", program.name, candidate.mapping);
        let lowered = lower(
            program,
            &facts,
            &candidate.mapping,
            &Options { shared_limit, ..Options::default() },
        )
        .unwrap_or_else(|e| panic!("{context}: {e}"));
        let kernel = &lowered.launches[0];
        let mut barriers = 0;
        kernel.body.walk(&mut |s| barriers += u64::from(matches!(s.op, Op::Barrier(_))));
        let threads = u64::from(kernel.lanes * kernel.subgroups);
        match (&candidate.facts, &candidate.mapping) {
            (CandidateFacts::Rows(counts), Mapping::Rows(_)) => {
                assert_eq!(kernel.shared_bytes(), counts.shared_bytes, "{context}");
                assert_eq!(barriers, counts.barriers, "{context}");
                assert_eq!(threads, counts.threads, "{context}");
                let scalars: u64 = kernel.private.iter().map(|(_, p)| p.len).sum();
                assert_eq!(scalars, counts.private_scalars, "{context}");
            }
            (CandidateFacts::Matrix(counts), Mapping::Matrix(m)) => {
                assert_eq!(kernel.shared_bytes(), counts.shared_bytes, "{context}");
                assert_eq!(barriers, counts.barriers, "{context}");
                assert_eq!(threads, u64::from(m.threads), "{context}");
            }
            other => panic!("{context}: {other:?}"),
        }
    }
    ranking.order.len()
}

fn build(op: &str, shape: &[u64], dtype: DType) -> Program {
    find(op).unwrap().build(&OpRequest::shaped(dtype, shape)).unwrap()
}

#[test]
fn every_legal_row_candidate() {
    for op in ["softmax", "rmsnorm", "layernorm", "cross_entropy", "residual_layernorm"] {
        for shape in ROWS {
            let legal = lower_all(&build(op, &shape, DType::F32), "reduction-v1");
            assert!(legal > 0, "{op} {shape:?}");
        }
    }
}

#[test]
fn every_legal_product_candidate() {
    let legal: Vec<usize> = PRODUCTS
        .iter()
        .map(|shape| lower_all(&build("gemm", shape, DType::F32), "matrix-mpp-v2"))
        .collect();
    // The counts of the reference's search.
    assert_eq!(legal, [11, 17, 28, 34, 17, 22, 8, 8]);
    for shape in PRODUCTS {
        lower_all(&build("gemm", &shape, DType::F32), "matrix-simdgroup-v1");
        lower_all(&build("gemm", &shape, DType::F16), "matrix-mpp-v3");
    }
}

/// The winners of ragged shapes give the right result.
#[test]
fn winners_run() {
    let target = Target::apple_m1_max();
    let cases = [
        ("softmax", vec![3, 769], "reduction-v1"),
        ("layernorm", vec![2, 1537], "reduction-service"),
        ("gemm", vec![33, 65, 61], "matrix-mpp-v2"),
        ("gemm", vec![64, 64, 64], "matrix-mpp-v2"),
        ("gemm", vec![64, 32, 70], "matrix-simdgroup-v1"),
    ];
    for (op, shape, policy) in cases {
        let program = build(op, &shape, DType::F32);
        let facts = facts(&program);
        let policy = policy::by_name(policy, None).unwrap();
        let ranking = plan(&Request::new(&program, &facts), &target, policy.as_ref()).unwrap();
        let winner = ranking.winner().unwrap();
        let lowered = lower(
            &program,
            &facts,
            &winner.mapping,
            &Options { shared_limit: 32 << 10, ..Options::default() },
        )
        .unwrap();
        let launch = launch(&program, &[], 0, 4);
        let last = *shape.last().unwrap();
        let tolerance = match winner.mapping {
            Mapping::Rows(_) => Tolerance::rows(last, DType::F32),
            _ => Tolerance::matrix(last, DType::F32),
        };
        check(&program, &lowered, &launch, tolerance, &Order::ALL, &format!("{op} {shape:?}"));
    }
}
