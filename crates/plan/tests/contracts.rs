//! What planning promises: legality first, whole-launch scores, nothing dropped, nothing silent.

mod common;

use common::*;
use tilewright_ir::ops::{self, OpRequest};
use tilewright_ir::{DType, analysis};
use tilewright_plan::json::PlanObject;
use tilewright_plan::mapping::{CpuIsa, Mapping, RowMapping};
use tilewright_plan::policy::cpu::Cpu;
use tilewright_plan::policy::matrix_mpp_v2::MatrixMppV2;
use tilewright_plan::policy::matrix_mpp_v3::MatrixMppV3;
use tilewright_plan::policy::reduction_service::{ReductionService, ServiceCoefficients};
use tilewright_plan::policy::reduction_v1::ReductionV1;
use tilewright_plan::policy::{self, CandidateFacts, CandidateView, Unit};
use tilewright_plan::rows::RowCounts;
use tilewright_plan::target::{CpuFacts, TargetKind};
use tilewright_plan::{
    PlanError, Policy, PolicyError, Ranking, Request, Rule, Score, SpaceOptions, Target, plan,
};

fn try_plan(
    op: &str,
    shape: &[u64],
    target: &Target,
    policy: &dyn Policy,
    options: SpaceOptions,
) -> Result<Ranking, PlanError> {
    let program = program(op, shape);
    let facts = analysis::facts(&program);
    plan(&Request::new(&program, &facts).options(options), target, policy)
}

fn cpu(isa: CpuIsa, cores: u32) -> Target {
    Target::cpu(CpuFacts::modest(isa, cores))
}

/// A policy of a user: a closure over (threads, scalar rounds).
struct Own<F>(F);

impl<F: Fn(&RowCounts) -> Score + Send + Sync> Policy for Own<F> {
    fn name(&self) -> &str {
        "own"
    }
    fn unit(&self) -> Unit {
        Unit::Other("coins".to_string())
    }
    fn parameters(&self) -> String {
        String::new()
    }
    fn score(&self, candidate: &CandidateView<'_>) -> Result<Score, PolicyError> {
        match candidate.facts {
            CandidateFacts::Rows(counts) => Ok((self.0)(counts)),
            _ => Err(PolicyError::Unknown { name: "own".to_string() }),
        }
    }
}

#[test]
fn the_cheapest_launch_wins_even_if_its_program_is_the_dearest() {
    let policy = Own(|c: &RowCounts| Score {
        program: if c.threads == 608 { 1e9 } else { 1.0 },
        waves: 1.0,
        kernel: if c.threads == 608 { 1.0 } else { 2.0 + c.threads as f64 },
    });
    let ranking = ranked("softmax", &[37, 1537], &policy, SpaceOptions::default());
    assert_eq!(rows(ranking.winner().expect("legal")).1.threads, 608);
    assert_eq!(ranking.unit.name(), "coins");
}

#[test]
fn scores_that_cannot_be_ranked_fail_the_plan() {
    let usable = Score { program: 1.0, waves: 1.0, kernel: 1.0 };
    for bad in [
        Score { kernel: f64::NAN, ..usable },
        Score { kernel: -1.0, ..usable },
        Score { kernel: f64::INFINITY, ..usable },
        Score { program: f64::NAN, ..usable },
        Score { program: -1.0, ..usable },
        Score { waves: 0.5, ..usable },
        Score { waves: f64::NAN, ..usable },
    ] {
        // One bad score among good ones is enough.
        let policy = Own(move |c: &RowCounts| if c.threads == 320 { bad } else { usable });
        let apple = Target::apple_m1_max();
        let result = try_plan("softmax", &[37, 1537], &apple, &policy, SpaceOptions::default());
        let is_score = matches!(result, Err(PlanError::Policy(PolicyError::Score { .. })));
        assert!(is_score, "{bad:?}: {result:?}");
    }
}

#[test]
fn ties_keep_the_order_of_the_space() {
    let policy = Own(|_: &RowCounts| Score { program: 1.0, waves: 1.0, kernel: 1.0 });
    let ranking = ranked("softmax", &[37, 1537], &policy, SpaceOptions::default());
    let mut sorted = ranking.order.clone();
    sorted.sort();
    assert_eq!(ranking.order, sorted);
}

#[test]
fn analytic_scores_by_hand() {
    // Reference 2.1: rounds 12, reductions 2, S = 4, P = 1.
    let ranking = ranked("softmax", &[1, 128], &ReductionV1::default(), SpaceOptions::default());
    let (_, base) = rows(&ranking.candidates[0]);
    let mut counts = RowCounts { scalar_rounds: 12, reductions: 2, ..*base };
    counts.worker_bytes = Some(tilewright_ir::facts::Payload {
        global_read: 64,
        global_write: 32,
        private_read: 96,
        private_write: 16,
    });
    assert_eq!(ReductionV1::default().program(&counts, 4, 1), 44.0);
    let priced = ReductionV1 { global_byte: 0.25, private_byte: 0.0625, ..ReductionV1::default() };
    assert_eq!(priced.program(&counts, 4, 1), 75.0);
    counts.worker_bytes = None;
    assert_eq!(priced.program(&counts, 4, 1), 44.0);
}

#[test]
fn coefficients_out_of_range_fail() {
    let c = ServiceCoefficients::APPLE_M1_MAX;
    for bad in [
        ServiceCoefficients { capacity: 0, ..c },
        ServiceCoefficients { dispatch: -1.0, ..c },
        ServiceCoefficients { scalar_round: f64::NAN, ..c },
        ServiceCoefficients { private_worker_byte: f64::INFINITY, ..c },
    ] {
        assert!(matches!(ReductionService::new(bad), Err(PolicyError::Coefficient { .. })));
    }
    let apple = Target::apple_m1_max();
    let negative = ReductionV1 { round: -1.0, ..ReductionV1::default() };
    let result = try_plan("softmax", &[4, 64], &apple, &negative, SpaceOptions::default());
    assert!(matches!(result, Err(PlanError::Policy(PolicyError::Coefficient { .. }))));
    let mut nan = MatrixMppV2::default();
    nan.prices.features[4] = f64::NAN;
    let result = try_plan("gemm", &[64, 64, 64], &apple, &nan, SpaceOptions::default());
    assert!(matches!(result, Err(PlanError::Policy(PolicyError::Coefficient { .. }))));
}

#[test]
fn a_launch_without_programs_has_no_service_score() {
    let apple = Target::apple_m1_max();
    let service = ReductionService::default();
    let result = try_plan("softmax", &[0, 64], &apple, &service, SpaceOptions::default());
    assert!(matches!(result, Err(PlanError::Policy(PolicyError::MissingFact { .. }))));
    let analytic = ReductionV1::default();
    assert!(try_plan("softmax", &[0, 64], &apple, &analytic, SpaceOptions::default()).is_ok());
}

#[test]
fn unknown_payload_bytes_fail_the_service_policy() {
    let program = program("softmax", &[37, 1537]);
    let mut facts = analysis::facts(&program);
    if let tilewright_ir::facts::Family::Rows(rows) = &mut facts.family {
        rows.cache.payload = tilewright_ir::facts::Fact::Unknown("not counted".to_string());
    }
    let request = Request::new(&program, &facts);
    let apple = Target::apple_m1_max();
    let result = plan(&request, &apple, &ReductionService::default());
    assert!(matches!(result, Err(PlanError::Policy(PolicyError::MissingFact { .. }))));
    // The analytic score needs no bytes.
    assert!(plan(&request, &apple, &ReductionV1::default()).is_ok());
}

#[test]
fn illegal_requests_name_their_rule() {
    let base = SpaceOptions::default;
    let apple = Target::apple_m1_max();
    let host = cpu(CpuIsa::Avx512, 2);
    let rule = |op: &str, target: &Target, options: SpaceOptions| {
        let shape: &[u64] = if op == "gemm" { &[64, 64, 64] } else { &[64, 512] };
        let policy = policy::by_name(policy::default_name(target, op != "gemm"), None);
        let policy = policy.unwrap_or_else(|e| panic!("{e}"));
        match try_plan(op, shape, target, policy.as_ref(), options) {
            Err(PlanError::Illegal(rejection)) => rejection.rule,
            other => panic!("not rejected: {other:?}"),
        }
    };
    let threads = |t: &[u32]| SpaceOptions { threads: Some(t.to_vec()), ..base() };
    for op in ["softmax", "gemm"] {
        assert_eq!(rule(op, &apple, threads(&[1056])), Rule::ThreadsLimit);
        assert_eq!(rule(op, &apple, threads(&[48])), Rule::ThreadsMultiple);
        assert_eq!(rule(op, &apple, threads(&[0])), Rule::ThreadsMultiple);
        let many: Vec<u32> = (0..33).map(|_| 64).collect();
        assert_eq!(rule(op, &apple, threads(&many)), Rule::SearchBudget);
    }
    assert_eq!(rule("softmax", &host, threads(&[64])), Rule::ThreadsLimit);
    for (options, expected) in [
        (SpaceOptions { vector: Some(vec![3]), ..base() }, Rule::VectorChoice),
        (SpaceOptions { unroll: Some(vec![0]), ..base() }, Rule::UnrollRange),
        (SpaceOptions { unroll: Some(vec![17]), ..base() }, Rule::UnrollRange),
        (SpaceOptions { pack: Some(vec![9]), ..base() }, Rule::PackRange),
        (SpaceOptions { pack: Some(vec![0]), ..base() }, Rule::PackRange),
        (SpaceOptions { max_candidates: 63, ..base() }, Rule::SearchBudget),
        (SpaceOptions { max_thread_candidates: 31, ..base() }, Rule::SearchBudget),
    ] {
        assert_eq!(rule("softmax", &apple, options), expected);
    }
    let blocks = Some(vec![[32, 32, 32]; 86]);
    let options = SpaceOptions { blocks, ..base() };
    assert_eq!(rule("gemm", &apple, options), Rule::SearchBudget);
    let options = SpaceOptions { stages: Some(vec![3]), ..base() };
    assert_eq!(rule("gemm", &apple, options), Rule::StageRange);
    let options = SpaceOptions { cpu_threads: Some(3), ..base() };
    assert_eq!(rule("gemm", &host, options), Rule::ThreadsLimit);
}

#[test]
fn packing() {
    let packed = |pack: u32, threads: Option<Vec<u32>>| {
        let options = SpaceOptions { pack: Some(vec![pack]), threads, ..SpaceOptions::default() };
        ranked("softmax", &[37, 512], &ReductionV1::default(), options)
    };
    // An explicit P > 1 means one subgroup a program, and T = 32·P.
    let ranking = packed(4, None);
    assert_eq!(ranking.candidates.len(), 2);
    let (m, c) = rows(&ranking.candidates[0]);
    assert_eq!((m.subgroups, c.threads, c.groups, c.shared_bytes), (1, 128, 10, 0));
    let ranking = packed(2, Some(vec![64, 128]));
    let rules: Vec<_> =
        ranking.candidates.iter().map(|c| c.verdict.as_ref().err().map(|r| r.rule)).collect();
    assert_eq!(rules, [None, Some(Rule::PackWidth), None, Some(Rule::PackWidth)]);
    // Not more than there are programs.
    let options = SpaceOptions { pack: Some(vec![8]), ..SpaceOptions::default() };
    let ranking = ranked("softmax", &[3, 512], &ReductionV1::default(), options);
    assert_eq!(ranking.rejections().get("pack-range"), Some(&2));
    assert!(matches!(ranking.winner(), Err(PlanError::NoLegalCandidate { .. })));
}

#[test]
fn caching_without_reuse_is_rejected_by_name() {
    let ranking = ranked("row_sum", &[37, 512], &ReductionV1::default(), SpaceOptions::default());
    assert_eq!(ranking.rejections().get("cache-reuse"), Some(&32));
    assert_eq!(ranking.order.len(), 32);
}

#[test]
fn policies_price_their_own_family_only() {
    let apple = Target::apple_m1_max();
    let unsupported = |op: &str, shape: &[u64], target: &Target, name: &str| {
        let policy = policy::by_name(name, None).unwrap_or_else(|e| panic!("{e}"));
        let result = try_plan(op, shape, target, policy.as_ref(), SpaceOptions::default());
        matches!(result, Err(PlanError::Policy(PolicyError::Unsupported { .. })))
    };
    // `whole-launch` prices what its profile has a fit of, and has no coefficients without one.
    let needed = policy::by_name("whole-launch", None).map(|p| p.name().to_string());
    assert!(matches!(needed, Err(PolicyError::Profile(_))), "{needed:?}");
    for name in policy::NAMES.into_iter().filter(|n| *n != "whole-launch") {
        let rows = name.starts_with("reduction");
        let matrix = name.starts_with("matrix");
        assert_eq!(unsupported("softmax", &[8, 64], &apple, name), !rows, "{name}");
        assert_eq!(unsupported("gemm", &[64, 64, 64], &apple, name), !matrix, "{name}");
        let host = cpu(CpuIsa::Avx512, 2);
        assert_eq!(unsupported("softmax", &[8, 64], &host, name), name != "cpu", "{name}");
        assert_eq!(unsupported("gemm", &[64, 64, 64], &host, name), name != "cpu", "{name}");
    }
    assert!(matches!(policy::by_name("best", None), Err(PolicyError::Unknown { .. })));
}

#[test]
fn a_fit_for_one_target_prices_no_other() {
    let nvidia = Target::nvidia_h200();
    let default = ReductionService::default();
    let result = try_plan("softmax", &[8, 64], &nvidia, &default, SpaceOptions::default());
    assert!(matches!(result, Err(PlanError::Policy(PolicyError::Profile(_)))), "{result:?}");
    // Coefficients without a stated target are the caller's responsibility.
    let own = ReductionService::new(ServiceCoefficients::APPLE_M1_MAX);
    let own = own.unwrap_or_else(|e| panic!("{e}"));
    assert!(try_plan("softmax", &[8, 64], &nvidia, &own, SpaceOptions::default()).is_ok());
}

#[test]
fn profiles_go_with_their_policy() {
    use tilewright_plan::Profile;
    let service = Profile::from_string("service-v1,512,1,1,1,1,1,1").ok();
    let analytic = Profile::from_string("analytic").ok();
    let name = |policy: &str, profile: &Option<Profile>| {
        policy::by_name(policy, profile.as_ref()).map(|p| p.name().to_string()).ok()
    };
    assert_eq!(name("reduction-service", &service).as_deref(), Some("reduction-service"));
    assert_eq!(name("reduction-service", &analytic).as_deref(), Some("reduction-v1"));
    assert_eq!(name("reduction-v1", &analytic).as_deref(), Some("reduction-v1"));
    assert_eq!(name("reduction-v1", &service), None);
    assert_eq!(name("matrix-mpp-v2", &analytic), None);
    assert_eq!(name("cpu", &service), None);
}

/// Extents that overflow products are rejected, not wrapped.
#[test]
fn huge_blocks_are_rejected() {
    for block in [[1 << 40; 3], [u64::MAX - 7; 3], [8, 8, 1 << 62]] {
        let options = SpaceOptions { blocks: Some(vec![block]), ..SpaceOptions::default() };
        for policy in [&MatrixMppV2::default() as &dyn Policy, &MatrixMppV3::default()] {
            let ranking = ranked("gemm", &[127, 127, 127], policy, options.clone());
            assert_eq!(ranking.chosen(), None, "{block:?}");
        }
    }
}

#[test]
fn a_target_without_the_atom_rejects_every_block_by_name() {
    let ranking = ranked_on(
        &Target::nvidia_h200(),
        "gemm",
        &[128, 128, 128],
        &MatrixMppV2::default(),
        SpaceOptions::default(),
    );
    assert_eq!(ranking.rejections().get("matrix-atom"), Some(&45));
    assert_eq!(ranking.chosen(), None);
    let ranking = ranked_on(
        &Target::nvidia_h200(),
        "softmax",
        &[128, 4096],
        &ReductionV1::default(),
        SpaceOptions::default(),
    );
    assert!(ranking.chosen().is_some());
}

#[test]
fn f64_needs_a_target_that_has_it() {
    let request = OpRequest::shaped(DType::F64, &[16, 256]);
    let program = ops::build("softmax", &request).unwrap_or_else(|e| panic!("{e}"));
    let facts = analysis::facts(&program);
    let request = Request::new(&program, &facts);
    let on = |target: &Target| {
        plan(&request, target, &ReductionV1::default()).unwrap_or_else(|e| panic!("{e}"))
    };
    let apple = on(&Target::apple_m1_max());
    assert_eq!(apple.rejections().get("target-dtype"), Some(&64));
    // An f64 stripe takes two 4-byte scalars a slot.
    let nvidia = on(&Target::nvidia_h200());
    let (_, c) = rows(row_candidate(&nvidia, 32, false));
    assert_eq!((c.slots, c.private_scalars), (8, 16));
    let (_, c) = rows(row_candidate(&nvidia, 64, false));
    assert_eq!(c.shared_bytes, 8 * 2 * 2);
}

/// Legality holds for every size that a symbolic dimension allows.
#[test]
fn symbolic_sizes() {
    let request = OpRequest { dynamic: true, ..OpRequest::shaped(DType::F32, &[128, 128, 128]) };
    let program = ops::build("gemm", &request).unwrap_or_else(|e| panic!("{e}"));
    let facts = analysis::facts(&program);
    let apple = Target::apple_m1_max();
    let policy = MatrixMppV2::default();
    let missing = plan(&Request::new(&program, &facts), &apple, &policy);
    assert_eq!(missing.err(), Some(PlanError::MissingSize("m".to_string())));
    let nominal = Request::new(&program, &facts).size("m", 128);
    let ranking = plan(&nominal, &apple, &policy).unwrap_or_else(|e| panic!("{e}"));
    for candidate in &ranking.candidates {
        let (m, _) = matrix(candidate);
        // Nothing is known of M but its bound, so nothing that needs BM | M may be assumed.
        assert!(!m.direct && !m.forward_a && !m.overwrite);
    }
    assert!(ranking.candidates.iter().any(|c| matrix(c).0.forward_b));
    let fixed = ranked("gemm", &[128, 128, 128], &policy, SpaceOptions::default());
    assert!(fixed.candidates.iter().any(|c| matrix(c).0.direct && matrix(c).0.forward_a));

    let request = OpRequest { dynamic: true, ..OpRequest::shaped(DType::F32, &[37, 1537]) };
    let program = ops::build("softmax", &request).unwrap_or_else(|e| panic!("{e}"));
    let facts = analysis::facts(&program);
    let service = ReductionService::default();
    let dynamic = plan(&Request::new(&program, &facts).size("rows", 37), &apple, &service);
    let dynamic = dynamic.unwrap_or_else(|e| panic!("{e}"));
    let fixed = ranked("softmax", &[37, 1537], &service, SpaceOptions::default());
    assert_eq!(dynamic.order, fixed.order);
    assert_ne!(dynamic.key, fixed.key);
}

#[test]
fn v3_prices_what_remains_and_admits_more() {
    let v2 = ranked("gemm", &[1024; 3], &MatrixMppV2::default(), SpaceOptions::default());
    let v3 = ranked("gemm", &[1024; 3], &MatrixMppV3::default(), SpaceOptions::default());
    let at = |r: &Ranking| {
        let candidate = matrix_candidate(r, [64, 64, 128], 128);
        candidate.verdict.as_ref().map(|s| s.program).ok()
    };
    // Direct output: fill, store and yield copies are gone, 40960·0.03125/4 = 320.
    assert_eq!((at(&v2), at(&v3)), (Some(3624.0), Some(3304.0)));
    // 64x64 at 64 threads: 8x4 atoms, 44 fragments with operands, 32 without.
    let wide = matrix_candidate(&v3, [64, 64, 128], 64);
    assert!(wide.verdict.is_ok());
    let rule = matrix_candidate(&v2, [64, 64, 128], 64).verdict.as_ref().err().map(|r| r.rule);
    assert_eq!(rule, Some(Rule::FragmentBudget));
    // 127x193x61: the physical K of two blocks of 32 is 61, not 64.
    let ragged = ranked("gemm", &[127, 193, 61], &MatrixMppV3::default(), Default::default());
    let candidate = matrix_candidate(&ragged, [32, 32, 32], 256);
    let (m, c) = matrix(candidate);
    let features = policy::matrix_mpp_v3::physical_features(c, m);
    assert_eq!(features.matrix_issues, 16.0 * 61.0 / 8.0);
    assert_eq!(c.features.matrix_issues, 128.0);
    assert_eq!(c.removed_elements, 2 * 1024);
}

#[test]
fn cpu_rows() {
    for (isa, lanes) in [(CpuIsa::Avx512, 16), (CpuIsa::Avx2, 8), (CpuIsa::Portable, 4)] {
        for op in ["softmax", "rmsnorm", "layernorm", "row_sum", "gelu", "cross_entropy"] {
            for shape in [[1, 1], [37, 1537], [0, 16], [16, 0], [4, 1_000_000]] {
                let target = cpu(isa, 2);
                let policy = Cpu::default();
                let ranking = ranked_on(&target, op, &shape, &policy, SpaceOptions::default());
                let winner = ranking.winner().unwrap_or_else(|e| panic!("{op} {shape:?}: {e}"));
                let (m, c) = rows(winner);
                assert_eq!((m.lanes, m.subgroups, m.vector), (lanes, 1, 1));
                // A task of everything, or rows that the threads share.
                assert!(m.pack == 1 || c.groups == 1, "{op} {shape:?}: {m:?}");
                assert_eq!((c.shared_bytes, c.barriers), (0, 0));
            }
        }
    }
    // A long reduction wants several accumulators; it may have them only if its order is free.
    let target = cpu(CpuIsa::Avx512, 1);
    let ranking = ranked_on(&target, "row_sum", &[64, 4096], &Cpu::default(), Default::default());
    assert!(rows(ranking.winner().expect("legal")).0.accumulators > 1);
}

#[test]
fn cpu_rows_come_in_tasks_and_vector_widths() {
    let target = cpu(CpuIsa::Avx512, 2);
    let space = |threads: Option<Vec<u32>>, pack: Option<Vec<u32>>| SpaceOptions {
        threads,
        pack,
        max_candidates: 1000,
        ..SpaceOptions::default()
    };
    let distinct = |ranking: &Ranking, of: &dyn Fn(&RowMapping) -> u32| {
        let mut all: Vec<u32> = ranking.candidates.iter().map(|c| of(rows(c).0)).collect();
        all.sort();
        all.dedup();
        all
    };
    let policy = Cpu::default();
    let ranking = ranked_on(&target, "softmax", &[37, 1537], &policy, space(None, None));
    assert_eq!(distinct(&ranking, &|m| m.lanes), [16]);
    assert_eq!(distinct(&ranking, &|m| m.pack), [1, 19, 37]);
    let both = space(Some(vec![16, 8]), Some(vec![2]));
    let ranking = ranked_on(&target, "softmax", &[37, 1537], &policy, both);
    assert_eq!(distinct(&ranking, &|m| m.lanes), [8, 16]);
    assert_eq!(distinct(&ranking, &|m| m.pack), [2]);
    assert!(ranking.candidates.iter().all(|c| rows(c).1.groups == 19));
    // One row is one task; a tiny launch stays on one thread, a large one doesn't.
    let one = ranked_on(&target, "softmax", &[1, 1537], &policy, space(None, None));
    assert_eq!(distinct(&one, &|m| m.pack), [1]);
    for (shape, alone) in [([4, 64], true), ([512, 4096], false)] {
        let ranking = ranked_on(&target, "softmax", &shape, &policy, space(None, None));
        assert_eq!(rows(ranking.winner().expect("legal")).1.groups == 1, alone, "{shape:?}");
    }
    // What the space doesn't hold is refused by name.
    let program = program("softmax", &[37, 1537]);
    let facts = analysis::facts(&program);
    for (threads, pack, rule) in [
        (Some(vec![32]), None, "threads-limit"),
        (None, Some(vec![38]), "pack-range"),
        (None, Some(vec![0]), "pack-range"),
    ] {
        let request = Request::new(&program, &facts).options(space(threads, pack));
        let error = plan(&request, &target, &policy).expect_err("illegal").to_string();
        assert!(error.contains(rule), "{error}");
    }
}

#[test]
fn a_stated_order_forbids_partial_accumulators() {
    use tilewright_ir::program::{Op, OrderPolicy};
    let mut program = program("row_sum", &[64, 4096]);
    for (_, data) in program.ops.iter_mut() {
        if let Op::Reduce { order, .. } = &mut data.op {
            *order = OrderPolicy::FoldLeft;
        }
    }
    let facts = analysis::facts(&program);
    let request = Request::new(&program, &facts);
    let ranking = plan(&request, &cpu(CpuIsa::Avx512, 1), &Cpu::default());
    let ranking = ranking.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(rows(ranking.winner().expect("legal")).0.accumulators, 1);
    assert!(ranking.rejections().contains_key("accumulator-order"));
}

#[test]
fn cpu_matrix() {
    for isa in [CpuIsa::Avx512, CpuIsa::Avx2, CpuIsa::Portable] {
        for shape in [[32, 32, 32], [127, 193, 61], [1, 4096, 4096], [0, 8, 8], [8, 8, 0]] {
            let target = cpu(isa, 2);
            let ranking =
                ranked_on(&target, "gemm", &shape, &Cpu::default(), SpaceOptions::default());
            let winner = ranking.winner().unwrap_or_else(|e| panic!("{shape:?}: {e}"));
            assert!(matches!(winner.mapping, Mapping::CpuMatrix(_)));
        }
    }
}

#[test]
fn the_key_covers_every_input() {
    let policy = ReductionV1::default();
    let base = ranked("softmax", &[37, 1537], &policy, SpaceOptions::default());
    assert_eq!(base, ranked("softmax", &[37, 1537], &policy, SpaceOptions::default()));
    let mut target = Target::apple_m1_max();
    if let TargetKind::Gpu(gpu) = &mut target.kind {
        gpu.private_scalars = 65;
    }
    let dearer = ReductionV1 { setup: 17.0, ..policy };
    let one = SpaceOptions { unroll: Some(vec![1]), ..SpaceOptions::default() };
    let mut keys = vec![
        base.key,
        ranked("softmax", &[38, 1537], &policy, SpaceOptions::default()).key,
        ranked("layernorm", &[37, 1537], &policy, SpaceOptions::default()).key,
        ranked("softmax", &[37, 1537], &dearer, SpaceOptions::default()).key,
        ranked("softmax", &[37, 1537], &policy, one).key,
        ranked_on(&target, "softmax", &[37, 1537], &policy, SpaceOptions::default()).key,
        ranked("softmax", &[37, 1537], &ReductionService::default(), Default::default()).key,
    ];
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 7);
}

#[test]
fn the_json_object_reads_back() {
    for (op, shape, text, policy) in [
        ("softmax", &[128, 8193][..], "128x8193", &ReductionV1::default() as &dyn Policy),
        ("gemm", &[128, 128, 128][..], "128x128x128", &MatrixMppV2::default()),
    ] {
        let ranking = ranked(op, shape, policy, SpaceOptions::default());
        let object = PlanObject::new(&ranking, [op, text, "f32"], None, None, None);
        let json = serde_json::to_string(&object).expect("plain data");
        assert_eq!(serde_json::from_str::<PlanObject>(&json).expect("own text"), object);
        let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(value["chosen"].as_u64(), ranking.chosen().map(|i| i as u64));
        assert_eq!(list(&value, "candidates").len(), ranking.candidates.len());
        for (entry, candidate) in list(&value, "candidates").iter().zip(&ranking.candidates) {
            assert_eq!(entry["legal"].as_bool(), Some(candidate.verdict.is_ok()));
            match &candidate.verdict {
                Ok(score) => {
                    let read = number(entry, "kernel_score");
                    assert_eq!(read.to_bits(), score.kernel.to_bits());
                    assert!(entry["rule"].is_null());
                }
                Err(rejection) => {
                    assert_eq!(text_of(entry, "rule"), rejection.rule.name());
                    for score in ["program_score", "waves", "kernel_score"] {
                        assert!(entry[score].is_null());
                    }
                }
            }
        }
        let best = PlanObject::new(&ranking, [op, text, "f32"], Some(3), None, None);
        assert_eq!((best.candidates.len(), best.chosen), (3, Some(0)));
    }
}

fn text_of<'a>(value: &'a serde_json::Value, key: &str) -> &'a str {
    text(value, key)
}

#[test]
fn the_explanation_shows_the_winner_and_the_rejections() {
    let ranking = ranked("gemm", &[1024; 3], &MatrixMppV2::default(), SpaceOptions::default());
    let text = ranking.explain(3);
    assert!(text.starts_with("34 of 45 candidates are legal"), "{text}");
    assert!(text.contains("block 128x32x1024, 128 threads"), "{text}");
    assert!(text.contains("rejected: 11 by fragment-budget"), "{text}");
    assert_eq!(text.lines().filter(|l| l.contains(". ") && l.contains("block")).count(), 3);
}
