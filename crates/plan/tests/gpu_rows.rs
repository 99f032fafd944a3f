//! Row mappings for GPUs beyond the reference's space: clusters and loads ahead of a reduction.

use tilewright_ir::facts::Family;
use tilewright_ir::ops::catalog::{OpRequest, build};
use tilewright_ir::{DType, analysis};
use tilewright_plan::Target;
use tilewright_plan::legality::{Rejection, Rule, gpu_rows, rows};
use tilewright_plan::mapping::{Mapping, Residency, RowMapping};
use tilewright_plan::policy;
use tilewright_plan::problem::RowProblem;
use tilewright_plan::ranking::plan;
use tilewright_plan::request::Request;
use tilewright_plan::rows::RowCounts;

fn problem(op: &str, shape: [u64; 2]) -> RowProblem {
    let program = build(op, &OpRequest::shaped(DType::F32, &shape)).unwrap();
    let facts = analysis::facts(&program);
    let Family::Rows(rows) = &facts.family else { panic!("{op}") };
    RowProblem::new(&Request::new(&program, &facts), rows).unwrap()
}

fn verdict(problem: &RowProblem, target: &Target, mapping: RowMapping) -> Result<(), Rejection> {
    let counts = RowCounts::new(problem, &mapping);
    rows::check(problem, target.gpu_facts().unwrap(), &mapping, &counts)
}

const BASE: RowMapping = RowMapping { subgroups: 16, vector: 4, cache: true, ..RowMapping::ONE };

#[test]
fn a_cluster_is_as_large_as_the_target_allows() {
    let softmax = problem("softmax", [4096, 131_072]);
    let h200 = Target::nvidia_h200();
    let rule = |target: &Target, m| verdict(&softmax, target, m).unwrap_err().rule;
    for cluster in [8, 16] {
        verdict(&softmax, &h200, RowMapping { cluster, subgroups: 32, ..BASE }).unwrap();
    }
    for cluster in [0, 17] {
        assert_eq!(rule(&h200, RowMapping { cluster, ..BASE }), Rule::ClusterRange);
    }
    let packed = RowMapping { cluster: 8, pack: 2, subgroups: 1, ..BASE };
    assert_eq!(rule(&h200, packed), Rule::ClusterRange);
    let pair = RowMapping { cluster: 2, ..BASE };
    assert_eq!(rule(&Target::apple_m1_max(), pair), Rule::ClusterRange);
    // Half the groups hold twice as much each: over the budget.
    assert_eq!(rule(&h200, RowMapping { cluster: 4, ..BASE }), Rule::PrivateBudget);
}

#[test]
fn counts_of_a_cluster() {
    let softmax = problem("softmax", [4096, 131_072]);
    let counts = RowCounts::new(&softmax, &RowMapping { cluster: 8, ..BASE });
    assert_eq!((counts.threads, counts.groups), (512, 8 * 4096));
    assert_eq!(counts.slots, 131_072 / (8 * 512));
    // Partial results of both reductions from 8·16 subgroups; a barrier each, and one to start.
    assert_eq!((counts.shared_bytes, counts.barriers), (2 * 4 * 128, 3));
}

#[test]
fn loading_ahead_needs_something_to_load() {
    let h200 = Target::nvidia_h200();
    let ahead = RowMapping { ahead: true, ..BASE };
    let error = verdict(&problem("softmax", [64, 2048]), &h200, ahead).unwrap_err();
    assert_eq!(error.rule, Rule::AheadLoads);
    let layernorm = problem("layernorm", [64, 2048]);
    verdict(&layernorm, &h200, ahead).unwrap();
    // Weight and bias are kept beside the stripes: two scalars more per slot.
    let scalars = |m| RowCounts::new(&layernorm, &m).private_scalars;
    assert_eq!(scalars(ahead), scalars(BASE) + 2 * 4);
    // At 32 slots, stripes of 32 scalars each fit the budget of 64 and three times that doesn't.
    let wide = problem("layernorm", [64, 16384]);
    let error = verdict(&wide, &h200, ahead).unwrap_err();
    assert_eq!(error.rule, Rule::PrivateBudget);
}

#[test]
fn defaults_are_left_out_of_the_text() {
    let text = serde_json::to_string(&BASE).unwrap();
    assert!(!text.contains("cluster") && !text.contains("ahead"), "{text}");
    assert_eq!(serde_json::from_str::<RowMapping>(&text).unwrap(), BASE);
    let mapping = RowMapping { cluster: 8, ahead: true, ..BASE };
    let text = serde_json::to_string(&mapping).unwrap();
    assert_eq!(serde_json::from_str::<RowMapping>(&text).unwrap(), mapping);
}

fn aligned(op: &str, shape: [u64; 2], dtype: DType) -> RowProblem {
    let mut program = build(op, &OpRequest::shaped(dtype, &shape)).unwrap();
    for (_, tensor) in program.tensors.iter_mut() {
        tensor.align = 16;
    }
    let facts = analysis::facts(&program);
    let Family::Rows(rows) = &facts.family else { panic!("{op}") };
    RowProblem::new(&Request::new(&program, &facts), rows).unwrap()
}

fn gpu_verdict(problem: &RowProblem, mapping: RowMapping) -> Result<(), Rule> {
    let h200 = Target::nvidia_h200();
    let counts = RowCounts::new(problem, &mapping);
    gpu_rows::check(problem, h200.gpu_facts().unwrap(), &mapping, &counts).map_err(|e| e.rule)
}

const STAGED: RowMapping = RowMapping { fuse: true, stage: true, ..BASE };

#[test]
fn rows_are_staged_by_whole_copies() {
    let f32s = aligned("softmax", [64, 16384], DType::F32);
    assert_eq!(gpu_verdict(&f32s, STAGED), Ok(()));
    // 16 bytes are four f32 or eight bf16, 2 bytes are no copy.
    let bf16 = aligned("softmax", [64, 16384], DType::BF16);
    for (problem, vector, legal) in
        [(&f32s, 1, true), (&f32s, 8, false), (&bf16, 8, true), (&bf16, 2, true), (&bf16, 1, false)]
    {
        let verdict = gpu_verdict(problem, RowMapping { vector, ..STAGED });
        let expected = if legal { Ok(()) } else { Err(Rule::StageCopies) };
        assert_eq!(verdict, expected, "V = {vector} of {}", problem.dtype);
    }
    // A row that starts anywhere: aligned for one element only.
    let odd = aligned("softmax", [64, 16385], DType::F32);
    assert_eq!(gpu_verdict(&odd, STAGED), Err(Rule::StageCopies));
    let even = aligned("softmax", [64, 16386], DType::F32);
    assert_eq!(gpu_verdict(&even, STAGED), Err(Rule::StageCopies));
    assert_eq!(gpu_verdict(&even, RowMapping { vector: 2, ..STAGED }), Ok(()));
    assert_eq!(gpu_verdict(&f32s, RowMapping { cache: false, ..STAGED }), Err(Rule::StageCopies));
    let error = verdict(&f32s, &Target::nvidia_h200(), STAGED).unwrap_err();
    assert_eq!(error.rule, Rule::FuseReduction);
    let plain = RowMapping { fuse: false, ..STAGED };
    assert_eq!(verdict(&f32s, &Target::apple_m1_max(), plain).unwrap_err().rule, Rule::StageCopies);
}

#[test]
fn staged_rows_take_shared_memory_and_no_registers() {
    let problem = aligned("softmax", [64, 16384], DType::F32);
    let bytes = |m| RowCounts::new(&problem, &m).shared_bytes;
    let joins = 2 * 4 * 16;
    assert_eq!(bytes(BASE), joins);
    assert_eq!(bytes(STAGED), 4 * 16384 + joins);
    assert_eq!(bytes(RowMapping { batch: 2, ..STAGED }), 2 * (4 * 16384 + joins));
    // A cluster shares the row; each group has all partial results.
    assert_eq!(bytes(RowMapping { cluster: 4, ..STAGED }), 4 * 4096 + 4 * joins);
    assert_eq!(RowCounts::new(&problem, &STAGED).private_scalars, 0);
    // Three of 66 KB fit a core of 228 KB, four don't.
    let resident = |resident| gpu_verdict(&problem, RowMapping { resident, ..STAGED });
    assert_eq!(resident(3), Ok(()));
    assert_eq!(resident(4), Err(Rule::ResidentRange));
    // 2048 threads a core.
    let light = RowMapping { subgroups: 32, ..STAGED };
    assert_eq!(gpu_verdict(&problem, RowMapping { resident: 2, ..light }), Ok(()));
    assert_eq!(
        gpu_verdict(&problem, RowMapping { resident: 3, ..light }),
        Err(Rule::ResidentRange)
    );
}

#[test]
fn rows_go_side_by_side_where_nothing_orders_them() {
    let softmax = aligned("softmax", [64, 4096], DType::F32);
    let batch = |batch| RowMapping { batch, fuse: true, ..BASE };
    for (b, legal) in [(0, false), (1, true), (8, true), (9, false)] {
        let verdict = gpu_verdict(&softmax, batch(b));
        assert_eq!(verdict.is_ok(), legal, "B = {b}: {verdict:?}");
    }
    assert_eq!(RowCounts::new(&softmax, &batch(4)).groups, 16);
    assert_eq!(RowCounts::new(&softmax, &batch(3)).groups, 22);
    let packed = RowMapping { pack: 2, subgroups: 1, vector: 4, ..batch(2) };
    assert_eq!(gpu_verdict(&softmax, packed), Err(Rule::BatchRange));
    let layernorm = aligned("layernorm", [64, 4096], DType::F32);
    let ahead = RowMapping { ahead: true, ..batch(2) };
    assert_eq!(gpu_verdict(&layernorm, ahead), Err(Rule::BatchRange));
}

/// A part of the inputs is kept where inputs and outputs are at most three times as large as the cache,
/// and that is the default but for the largest of those.
#[test]
fn hints_are_for_what_the_cache_cannot_hold() {
    use Residency::{Keep, Normal, Part};
    for (rows, dtype, hinted, default) in [
        (1024, DType::F32, &[][..], Normal),
        (4096, DType::F32, &[Keep, Part], Part),
        (4096, DType::BF16, &[Keep, Part], Part),
        (8192, DType::BF16, &[Keep, Part], Part),
        (11_520, DType::BF16, &[Keep, Part], Keep),
        (11_521, DType::BF16, &[Keep], Keep),
    ] {
        let mut program = build("softmax", &OpRequest::shaped(dtype, &[rows, 4096])).unwrap();
        for (_, tensor) in program.tensors.iter_mut() {
            tensor.align = 16;
        }
        let facts = analysis::facts(&program);
        let request = Request::new(&program, &facts);
        let policy = policy::by_name("gpu", None).unwrap();
        let ranking = plan(&request, &Target::nvidia_h200(), policy.as_ref()).unwrap();
        let of = |at: usize| match ranking.candidates[at].mapping {
            Mapping::Rows(m) => m.residency,
            _ => Normal,
        };
        for hint in [Keep, Residency::Stream, Part] {
            let found = ranking.order.iter().any(|at| of(*at) == hint);
            assert_eq!(found, hinted.contains(&hint), "{rows} rows of {dtype}: {hint:?}");
        }
        assert_eq!(of(ranking.order[0]), default, "{rows} rows of {dtype}");
        let words = ranking.explain(1);
        let said = words.contains("part of the inputs kept in cache");
        assert_eq!(said, default == Part, "{words}");
    }
    let m1 = Target::apple_m1_max();
    let keep = RowMapping { residency: Residency::Keep, ..BASE };
    let softmax = problem("softmax", [64, 2048]);
    assert_eq!(verdict(&softmax, &m1, keep).unwrap_err().rule, Rule::CacheHints);
}

/// Long rows are staged where the copies are proved whole, in as many groups as leave 64 registers a
/// worker, and every such candidate is legal.
#[test]
fn the_space_stages_long_rows() {
    let staged = |dtype, columns, align| {
        let mut program = build("layernorm", &OpRequest::shaped(dtype, &[64, columns])).unwrap();
        for (_, tensor) in program.tensors.iter_mut() {
            tensor.align = align;
        }
        let facts = analysis::facts(&program);
        let policy = policy::by_name("gpu", None).unwrap();
        let request = Request::new(&program, &facts);
        let ranking = plan(&request, &Target::nvidia_h200(), policy.as_ref()).unwrap();
        let mappings = ranking.candidates.iter().filter_map(|c| match c.mapping {
            Mapping::Rows(m) if m.stage => {
                assert!(c.verdict.is_ok(), "{m:?}: {:?}", c.verdict);
                Some(m)
            }
            _ => None,
        });
        mappings.collect::<Vec<RowMapping>>()
    };
    for (dtype, columns, align, some) in [
        (DType::BF16, 16_384, 16, true),
        (DType::BF16, 16_384, 8, false),
        (DType::BF16, 16_376, 16, false),
        (DType::F32, 65_536, 16, false),
        (DType::F32, 131_072, 16, true),
    ] {
        let found = staged(dtype, columns, align);
        assert_eq!(!found.is_empty(), some, "{dtype} {columns} {align}");
        for m in found {
            assert!((1..=2).contains(&m.batch) && m.resident >= 2, "{m:?}");
            assert!(u64::from(m.resident) * m.threads() * 64 <= 65_536, "{m:?}");
        }
    }
    // The fastest of those measured: three groups of 8 subgroups for rows of 64 KB.
    let best = RowMapping { vector: 8, subgroups: 8, resident: 3, ..STAGED };
    assert!(staged(DType::BF16, 32_768, 16).contains(&best));
}

/// A leader is for clusters of groups of several subgroups; its group meets once more before each
/// exchange. In the space it costs less than the plain exchange, so it is ahead of it.
#[test]
fn a_leader_exchanges_for_its_group() {
    let softmax = aligned("softmax", [64, 131_072], DType::F32);
    let plain = RowMapping { subgroups: 8, cluster: 8, resident: 2, ..STAGED };
    let leader = RowMapping { leader: true, ..plain };
    assert_eq!(gpu_verdict(&softmax, leader), Ok(()));
    for bad in
        [RowMapping { cluster: 1, subgroups: 32, ..leader }, RowMapping { subgroups: 1, ..leader }]
    {
        assert_eq!(gpu_verdict(&softmax, bad), Err(Rule::ClusterRange), "{bad:?}");
    }
    let [counts, led] = [plain, leader].map(|m| RowCounts::new(&softmax, &m));
    assert_eq!((counts.barriers, led.barriers), (3, 5));
    assert_eq!(counts.shared_bytes, led.shared_bytes);

    let mut program = build("softmax", &OpRequest::shaped(DType::F32, &[64, 131_072])).unwrap();
    program.tensors.iter_mut().for_each(|(_, tensor)| tensor.align = 16);
    let facts = analysis::facts(&program);
    let policy = policy::by_name("gpu", None).unwrap();
    let request = Request::new(&program, &facts);
    let ranking = plan(&request, &Target::nvidia_h200(), policy.as_ref()).unwrap();
    let of = |at: &usize| match ranking.candidates[*at].mapping {
        Mapping::Rows(m) => m,
        other => panic!("{other:?}"),
    };
    let order: Vec<RowMapping> = ranking.order.iter().map(of).collect();
    let led: Vec<usize> = (0..order.len()).filter(|at| order[*at].leader).collect();
    assert!(led.len() >= 4, "{led:?}");
    for at in led {
        let same = RowMapping { leader: false, ..order[at] };
        let first = order.iter().position(|m| *m == same).unwrap();
        assert!(first > at, "{same:?}");
    }
    let text = serde_json::to_string(&leader).unwrap();
    assert!(text.contains("\"leader\":true"), "{text}");
    assert_eq!(serde_json::from_str::<RowMapping>(&text).unwrap(), leader);
}

#[test]
fn rows_over_several_launches_keep_and_share_nothing() {
    let target = Target::nvidia_h200();
    let gpu = target.gpu_facts().unwrap();
    let softmax = problem("softmax", [4, 1 << 20]);
    let split = RowMapping { split: 264, subgroups: 8, vector: 4, ..RowMapping::ONE };
    let rule = |problem: &RowProblem, m: RowMapping| {
        let counts = RowCounts::new(problem, &m);
        tilewright_plan::legality::gpu_rows::check(problem, gpu, &m, &counts).map_err(|r| r.rule)
    };
    assert_eq!(rule(&softmax, split), Ok(()));
    for bad in [
        RowMapping { cache: true, ..split },
        RowMapping { cluster: 2, ..split },
        RowMapping { pack: 2, subgroups: 1, ..split },
        RowMapping { split: 0, ..split },
    ] {
        assert_eq!(rule(&softmax, bad), Err(Rule::SplitRange), "{bad:?}");
    }
    let mut open = softmax.clone();
    open.static_grid = false;
    assert_eq!(rule(&open, split), Err(Rule::SplitRange));
    let mut ordered = softmax.clone();
    ordered.reductions[0].unordered = false;
    assert_eq!(rule(&ordered, split), Err(Rule::SplitRange));
    // Where registers aren't stated nothing is split.
    let apple = Target::apple_m1_max();
    assert_eq!(verdict(&softmax, &apple, split).unwrap_err().rule, Rule::SplitRange);
    // Nothing is kept, and every group is counted.
    let counts = RowCounts::new(&softmax, &split);
    assert_eq!((counts.groups, counts.private_scalars), (4 * 264, 0));
    assert_eq!((counts.shared_bytes, counts.barriers), (2 * 4 * 8, 2));
}

#[test]
fn a_launch_has_as_many_groups_as_fit_31_bits() {
    let target = Target::nvidia_h200();
    let rule = |rows| {
        let problem = problem("rmsnorm", [rows, 32]);
        let pair = RowMapping { cluster: 2, ..RowMapping::ONE };
        let counts = RowCounts::new(&problem, &pair);
        let gpu = target.gpu_facts().unwrap();
        tilewright_plan::legality::gpu_rows::check(&problem, gpu, &pair, &counts)
            .map_err(|r| r.rule)
    };
    assert_eq!(rule((1 << 30) - 1), Ok(()));
    assert_eq!(rule(1 << 30), Err(Rule::GroupsLimit));
}
