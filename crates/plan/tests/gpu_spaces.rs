//! The spaces of GPUs whose register file is known: how many candidates, which rules reject, and
//! what the model sees of them.

mod common;

use std::collections::HashSet;

use common::*;
use tilewright_ir::DType;
use tilewright_ir::analysis;
use tilewright_ir::ops::{self, OpRequest};
use tilewright_plan::mapping::{Mapping, RowMapping};
use tilewright_plan::policy::gpu::Gpu;
use tilewright_plan::policy::gpu_rows::{GpuRowCounts, registers};
use tilewright_plan::policy::whole_launch::Family;
use tilewright_plan::policy::{CandidateFacts, CandidateView, by_name, default_name};
use tilewright_plan::problem::{MatrixProblem, Problem, RowProblem};
use tilewright_plan::ranking::plan_matrix;
use tilewright_plan::{Ranking, Request, SpaceOptions, Target, plan};

const PRODUCTS: [[u64; 3]; 16] = [
    [32, 32, 32],
    [128, 128, 128],
    [127, 193, 61],
    [256, 1024, 128],
    [513, 257, 129],
    [1024, 128, 256],
    [512, 512, 512],
    [1024, 1024, 1024],
    [2048, 2048, 2048],
    [4096, 4096, 4096],
    [16, 4096, 4096],
    [64, 4096, 4096],
    [4096, 4096, 64],
    [4095, 4097, 4093],
    [1, 4096, 4096],
    [8, 1024, 1024],
];

const ROWS: [[u64; 2]; 13] = [
    [23, 769],
    [37, 1537],
    [128, 2048],
    [256, 3072],
    [1024, 4096],
    [768, 6144],
    [128, 8193],
    [64, 12289],
    [4096, 4096],
    [32768, 1024],
    [16384, 8192],
    [8192, 32768],
    [4096, 131072],
];

fn rows_on_h200(op: &str, shape: &[u64], dtype: DType) -> Ranking {
    let program = ops::build(op, &OpRequest::shaped(dtype, shape)).unwrap();
    let facts = analysis::facts(&program);
    plan(&Request::new(&program, &facts), &Target::nvidia_h200(), &Gpu).unwrap()
}

fn distinct(ranking: &Ranking) -> bool {
    let mut seen = HashSet::new();
    ranking.candidates.iter().all(|c| seen.insert(c.mapping))
}

#[test]
fn products_have_a_hundred_legal_candidates_and_no_more_than_the_budget() {
    let target = Target::nvidia_h200();
    let mut counts = Vec::new();
    for [m, n, k] in PRODUCTS {
        let problem = MatrixProblem::plain(m, n, k);
        let ranking = plan_matrix(&problem, &target, &Gpu, &SpaceOptions::default()).unwrap();
        let (legal, all) = (ranking.order.len(), ranking.candidates.len());
        println!("{m}x{n}x{k}: {legal} of {all}");
        counts.push(legal);
        assert!(distinct(&ranking), "{m}x{n}x{k} has one twice");
    }
    assert!(counts.iter().all(|n| (100..=256).contains(n)), "{counts:?}");
}

#[test]
fn rows_have_thirty_legal_candidates() {
    let mut counts = Vec::new();
    for op in ["softmax", "rmsnorm", "layernorm"] {
        for dtype in [DType::F32, DType::BF16] {
            for shape in ROWS {
                let ranking = rows_on_h200(op, &shape, dtype);
                let (legal, all) = (ranking.order.len(), ranking.candidates.len());
                println!("{op} {dtype} {shape:?}: {legal} of {all}");
                counts.push(legal);
                assert!(distinct(&ranking), "{op} {dtype} {shape:?} has one twice");
                let rules = ranking.rejections();
                assert!(rules.keys().all(|r| *r == "register-budget"), "{rules:?}");
            }
        }
    }
    assert!(counts.iter().all(|n| *n >= 30), "{counts:?}");
}

/// Both sides of the register budget: 1024 threads leave 64 registers each.
#[test]
fn a_row_that_does_not_fit_the_registers_is_rejected_by_name() {
    let ranking = rows_on_h200("softmax", &[64, 24 * 1024], DType::F32);
    let widest = |ranking: &Ranking, cache: bool| {
        let found = ranking.candidates.iter().find(|c| {
            let (m, _) = rows(c);
            m.subgroups == 32 && m.cache == cache && m.accumulators == 1
        });
        found.unwrap().verdict.as_ref().map(|_| ()).map_err(|r| r.rule.name())
    };
    assert_eq!(widest(&ranking, true), Ok(()));
    let ranking = rows_on_h200("softmax", &[64, 40 * 1024], DType::F32);
    assert_eq!(widest(&ranking, true), Err("register-budget"));
    // A row that is read again keeps nothing, where nothing is computed once and used twice.
    let ranking = rows_on_h200("rmsnorm", &[64, 40 * 1024], DType::F32);
    assert_eq!(widest(&ranking, false), Ok(()));
}

/// Two candidates with equal inputs can't be told apart by any fit.
#[test]
fn few_candidates_coincide() {
    let target = Target::nvidia_h200();
    let gpu = target.gpu_facts().unwrap();
    for (op, shape) in [("softmax", [128, 2048]), ("layernorm", [4096, 4096])] {
        let program = ops::build(op, &OpRequest::shaped(DType::F32, &shape)).unwrap();
        let facts = analysis::facts(&program);
        let request = Request::new(&program, &facts);
        let tilewright_ir::facts::Family::Rows(found) = &facts.family else { panic!("rows") };
        let problem = RowProblem::new(&request, found).unwrap();
        let ranking = plan(&request, &target, &Gpu).unwrap();
        let mut seen = Vec::new();
        for c in ranking.candidates.iter().filter(|c| c.verdict.is_ok()) {
            let view = CandidateView {
                target: &target,
                problem: Problem::Rows(&problem),
                mapping: &c.mapping,
                facts: &c.facts,
                cpu_threads: 1,
            };
            let (family, inputs) = Family::of(&view).unwrap();
            assert_eq!(family, Family::GpuRegisterRows);
            assert!(inputs.iter().all(|v| v.is_finite() && *v >= 0.0), "{inputs:?}");
            seen.push(inputs.map(f64::to_bits));
            let (m, counts) = rows(c);
            let whole = GpuRowCounts::new(&problem, gpu, m, counts);
            assert!(whole.resident * m.threads() as f64 <= 2048.0);
            assert!(registers(&problem, m, problem.columns) <= 255);
        }
        let all = seen.len();
        seen.sort();
        seen.dedup();
        println!("{op} {shape:?}: {} of {all} distinct", seen.len());
        assert!(seen.len() * 2 > all, "{op}: {} of {all}", seen.len());
    }
}

#[test]
fn the_default_policy_of_such_a_gpu_ranks_its_spaces() {
    let target = Target::nvidia_h200();
    for (op, shape) in [("gemm", &[64, 64, 64][..]), ("rmsnorm", &[64, 1000][..])] {
        let policy = by_name(default_name(&target, op != "gemm"), None).unwrap();
        let ranking = ranked_on(&target, op, shape, policy.as_ref(), SpaceOptions::default());
        let winner = ranking.winner().unwrap();
        match (&winner.mapping, &winner.facts) {
            (Mapping::GpuMatrix(m), CandidateFacts::GpuMatrix(c)) => {
                assert_eq!(m.threads(), c.threads);
            }
            (Mapping::Rows(m), CandidateFacts::Rows(_)) => assert!(m.fuse),
            other => panic!("{other:?}"),
        }
        assert!(ranking.explain(3).contains("us"), "{}", ranking.explain(3));
        let object =
            tilewright_plan::json::PlanObject::new(&ranking, [op, "", "f32"], None, None, None);
        assert_eq!(object.candidates.len(), ranking.candidates.len());
        let text = serde_json::to_string(&object).unwrap();
        let read: tilewright_plan::json::PlanObject = serde_json::from_str(&text).unwrap();
        assert_eq!(read, object);
    }
}

/// Legal candidates of a row case, and those of them that share rows over several launches.
fn split(op: &str, shape: [u64; 2], dtype: DType) -> (usize, usize) {
    let ranking = rows_on_h200(op, &shape, dtype);
    assert!(distinct(&ranking), "{op} {shape:?} has one twice");
    let legal = ranking.order.iter().map(|i| rows(&ranking.candidates[*i]).0);
    (ranking.order.len(), legal.filter(|m| m.split > 1).count())
}

#[test]
fn rows_of_any_length_have_candidates() {
    let mega = 1 << 20;
    for dtype in [DType::F32, DType::BF16] {
        for op in ["softmax", "layernorm", "row_sum", "relu"] {
            for shape in [[1, 16 * mega], [4, mega], [4096, mega], [3, 300_001]] {
                let (legal, split) = split(op, shape, dtype);
                assert!(legal >= 30 && split > 0, "{op} {dtype} {shape:?}: {split} of {legal}");
            }
        }
    }
    for (op, shape) in [("layernorm", [2, 40_000]), ("row_sum", [3, 40_001])] {
        assert!(split(op, shape, DType::F64).0 > 0, "{op} {shape:?}");
    }
    assert!(split("residual_layernorm", [2, 400_001], DType::F32).0 > 0);
}

/// Both sides of the lengths and numbers of rows from which on rows are shared over launches.
#[test]
fn long_rows_are_shared_where_little_else_fills_the_cores() {
    for (op, shape, some) in [
        ("softmax", [9, (1 << 18) - 1], false),
        ("softmax", [9, 1 << 18], true),
        ("softmax", [8, (1 << 16) - 1], false),
        ("softmax", [8, 1 << 16], true),
        ("softmax", [9, 1 << 16], false),
        ("relu", [527, 8191], false),
        ("relu", [527, 8192], true),
        ("relu", [528, 8192], false),
    ] {
        assert_eq!(split(op, shape, DType::F32).1 > 0, some, "{op} {shape:?}");
    }
    for shape in ROWS {
        assert_eq!(split("layernorm", shape, DType::BF16).1, 0, "{shape:?}");
    }
}

/// Outputs that are smaller than every block, and outputs of more blocks than cores can hold.
#[test]
fn products_of_every_size_have_candidates() {
    let target = Target::nvidia_h200();
    for (batch, [m, n, k]) in
        [(1, [1, 1, 1]), (70_000, [8, 8, 8]), (1, [9_000_000, 4, 4]), (3, [5, 3, 7])]
    {
        let problem = MatrixProblem { batch, ..MatrixProblem::plain(m, n, k) };
        let ranking = plan_matrix(&problem, &target, &Gpu, &SpaceOptions::default()).unwrap();
        assert!(ranking.order.len() >= 2, "{batch} {m}x{n}x{k}: {:?}", ranking.rejections());
        assert!(ranking.candidates.len() <= 256 && distinct(&ranking), "{batch} {m}x{n}x{k}");
    }
}

#[test]
fn launches_of_one_wave_also_come_with_the_groups_that_a_core_holds() {
    let rows = |shape: &[u64]| -> Vec<(RowMapping, f64)> {
        let ranking = rows_on_h200("softmax", shape, DType::F32);
        let ranked = ranking.order.iter().map(|i| &ranking.candidates[*i]);
        ranked
            .filter_map(|c| match c.mapping {
                Mapping::Rows(m) => Some((m, c.verdict.as_ref().ok()?.kernel)),
                _ => None,
            })
            .collect()
    };
    // 220 rows on 132 cores: two on a core, and room for two of the next launch.
    let all = rows(&[220, 2816]);
    let told: Vec<_> = all.iter().filter(|(m, _)| m.resident > 0).collect();
    assert!(told.len() >= 10, "{}", told.len());
    for (m, score) in told {
        assert!(m.resident == 4 && m.cache && m.accumulators == 1, "{m:?}");
        assert!(m.threads() * u64::from(m.resident) <= 2048);
        let free = RowMapping { resident: 0, ..*m };
        let other = all.iter().find(|(other, _)| *other == free);
        assert!(other.is_some_and(|(_, other)| score < other), "{m:?}");
    }
    // In several waves registers decide how many groups there are at once.
    assert!(rows(&[32_768, 1024]).iter().all(|(m, _)| m.resident == 0));
}
