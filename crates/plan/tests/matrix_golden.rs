//! Matrix planning against the published figures of the reference system.

mod common;

use common::*;
use serde_json::Value;
use tilewright_plan::policy::matrix_mpp_v1::MatrixMppV1;
use tilewright_plan::policy::matrix_mpp_v2::MatrixMppV2;
use tilewright_plan::policy::matrix_simdgroup_v1::MatrixSimdgroupV1;
use tilewright_plan::{Policy, Ranking, SpaceOptions};

const SHAPES: [[u64; 3]; 8] = [
    [32, 32, 32],
    [128, 128, 128],
    [512, 512, 512],
    [1024, 1024, 1024],
    [256, 1024, 128],
    [1024, 128, 256],
    [127, 193, 61],
    [513, 257, 129],
];

fn shape(trial: &Value) -> [u64; 3] {
    [integer(trial, "m"), integer(trial, "n"), integer(trial, "k")]
}

fn block(trial: &Value) -> [u64; 3] {
    let block: Vec<u64> = list(trial, "block").iter().filter_map(|x| x.as_u64()).collect();
    block.try_into().expect("three extents")
}

fn gemm(shape: [u64; 3], policy: &dyn Policy) -> Ranking {
    ranked("gemm", &shape, policy, SpaceOptions::default())
}

/// `gemm_search.json`: legality of all 360 trials; every feature, plan fact and both scores of
/// the 145 legal ones, bit for bit; legal counts per shape.
#[test]
fn gemm_trials() {
    let record = data("gemm_search.json");
    let trials = list(&record, "trials");
    assert_eq!(trials.len(), 360);
    let mut legal = [0; 8];
    for (s, shape_) in SHAPES.iter().enumerate() {
        let ranking = gemm(*shape_, &MatrixMppV2::default());
        assert_eq!(ranking.candidates.len(), 45);
        for trial in trials.iter().filter(|t| shape(t) == *shape_) {
            let threads = integer(trial, "threads") as u32;
            let candidate = matrix_candidate(&ranking, block(trial), threads);
            let what = format!("{shape_:?} {:?} {threads}", block(trial));
            assert_eq!(candidate.verdict.is_ok(), flag(trial, "valid"), "{what}");
            let Ok(score) = &candidate.verdict else { continue };
            legal[s] += 1;
            let (m, c) = matrix(candidate);
            assert_eq!(score.program.to_bits(), number(trial, "normalized_cost").to_bits());
            let kernel = number(trial, "normalized_kernel_cost");
            assert_eq!(score.kernel.to_bits(), kernel.to_bits(), "{what}");
            let waves = number(trial, "concurrent_waves");
            assert_eq!(score.waves.to_bits(), waves.to_bits(), "{what}");
            for (name, value) in c.features.named() {
                assert_eq!(value.to_bits(), number(trial, name).to_bits(), "{what} {name}");
            }
            for (name, value) in [
                ("programs", c.programs),
                ("shared_memory_bytes", c.shared_bytes),
                ("independent_elements", c.independent_elements),
                ("fragment_scalars_per_lane", c.fragment_scalars_per_lane),
            ] {
                assert_eq!(value, integer(trial, name), "{what} {name}");
            }
            let distribution =
                serde_json::json!([[m.subgroups[0], m.subgroups[1], m.atoms[0], m.atoms[1]]]);
            assert_eq!(distribution, trial["matrices"], "{what}");
        }
    }
    assert_eq!(legal, [11, 17, 28, 34, 17, 22, 8, 8]);
}

/// Best measured time of a shape and the time of one of its candidates.
fn measured(trials: &[Value], shape_: [u64; 3], pick: ([u64; 3], u64)) -> (f64, f64) {
    let of_shape = trials.iter().filter(|t| shape(t) == shape_ && flag(t, "valid"));
    let mut best = f64::INFINITY;
    let mut picked = f64::NAN;
    for trial in of_shape {
        let time = number(trial, "native_p50_us");
        best = best.min(time);
        if (block(trial), integer(trial, "threads")) == pick {
            picked = time;
        }
    }
    (best, picked)
}

/// Block, threads and regret of a pick.
type Pick = ([u64; 3], u32, f64);

/// The pick of every shape; mean, median and maximum of the regrets; the number of zeros.
fn regrets(policy: &dyn Policy) -> (Vec<Pick>, [f64; 3], usize) {
    let record = data("gemm_search.json");
    let trials = list(&record, "trials");
    let mut picks = Vec::new();
    for shape_ in SHAPES {
        let ranking = gemm(shape_, policy);
        let (m, _) = matrix(ranking.winner().expect("legal"));
        let (best, picked) = measured(trials, shape_, (m.block, m.threads.into()));
        picks.push((m.block, m.threads, picked / best - 1.0));
    }
    let mut sorted: Vec<f64> = picks.iter().map(|p| p.2).collect();
    sorted.sort_by(f64::total_cmp);
    let mean = sorted.iter().sum::<f64>() / 8.0;
    let median = (sorted[3] + sorted[4]) / 2.0;
    let exact = sorted.iter().filter(|r| **r == 0.0).count();
    (picks, [mean, median, sorted[7]], exact)
}

fn percent(value: f64) -> String {
    format!("{:.2}", 100.0 * value)
}

/// Reference 4: the v2 pick of every shape with its regret, and their summary.
#[test]
fn v2_picks() {
    let (picks, [mean, median, max], exact) = regrets(&MatrixMppV2::default());
    let expected = [
        ([32, 32, 32], 256, "5.18"),
        ([32, 32, 128], 256, "0.00"),
        ([64, 64, 512], 256, "13.81"),
        ([128, 32, 1024], 128, "0.00"),
        ([64, 64, 128], 256, "0.00"),
        ([32, 32, 256], 128, "17.17"),
        ([32, 32, 32], 256, "0.00"),
        ([32, 32, 32], 128, "34.37"),
    ];
    for (pick, expected) in picks.iter().zip(expected) {
        assert_eq!((pick.0, pick.1, percent(pick.2).as_str()), expected);
    }
    assert_eq!([percent(mean), percent(median), percent(max)], ["8.82", "2.59", "34.37"]);
    assert_eq!(exact, 4);
}

/// Reference 3.2: the v1 picks of the reconstruction. The published regrets (mean 74.18 %, median
/// 43.05 %, maximum 239.58 %, one of eight exact) were measured in an earlier search whose times
/// aren't in this record: no candidate of any shape has the published maximum here. What must
/// agree is the picks, and so the number of exact ones; the regrets below are this record's.
#[test]
fn v1_picks() {
    let (picks, [mean, median, max], exact) = regrets(&MatrixMppV1::default());
    let expected = [
        ([32, 32, 32], 64),
        ([32, 32, 128], 64),
        ([64, 64, 512], 128),
        ([128, 32, 1024], 128),
        ([64, 64, 128], 128),
        ([32, 64, 32], 64),
        ([32, 32, 32], 64),
        ([32, 64, 32], 64),
    ];
    for (pick, expected) in picks.iter().zip(expected) {
        assert_eq!((pick.0, pick.1), expected);
    }
    assert_eq!(exact, 1);
    assert_eq!([percent(mean), percent(median), percent(max)], ["85.36", "60.58", "243.53"]);
}

/// Reference 4: the worked example, and other published scores.
#[test]
fn worked_examples() {
    let scores = |shape, block, threads| {
        let ranking = gemm(shape, &MatrixMppV2::default());
        let candidate = matrix_candidate(&ranking, block, threads);
        let score = candidate.verdict.as_ref().expect("legal");
        let (m, c) = matrix(candidate);
        ((score.program, score.kernel, score.waves), m.subgroups, m.atoms, *c)
    };
    let (score, subgroups, atoms, c) = scores([1024; 3], [64, 64, 128], 128);
    assert_eq!((score, subgroups, atoms), ((3624.0, 7248.0, 2.0), [2, 2], [4, 4]));
    assert_eq!((c.executions, c.programs, c.independent_elements), (8, 256, 40960));
    let f = c.features;
    assert_eq!((f.matrix_issues, f.metal_mpp_operations), (8192.0, 32.0));
    assert_eq!((f.memory_fragment_reads, f.lhs_footprint_fragments), (4096.0, 1024.0));
    let (score, subgroups, atoms, _) = scores([32; 3], [32, 32, 32], 128);
    assert_eq!((score.0, subgroups, atoms), (78.0, [2, 2], [2, 2]));
    let (score, subgroups, atoms, _) = scores([32; 3], [32, 32, 32], 64);
    assert_eq!((score.0, subgroups, atoms), (136.0, [2, 1], [2, 4]));
    let (score, subgroups, _, _) = scores([1024; 3], [64, 64, 128], 256);
    assert_eq!((score.0, score.1, subgroups), (2232.0, 8928.0, [4, 2]));
    let (score, ..) = scores([513, 257, 129], [32, 32, 32], 64);
    assert_eq!((score.0, score.1), (664.0, 664.0));
    let (score, _, _, c) = scores([513, 257, 129], [32, 32, 32], 128);
    assert_eq!(score, (366.0, 437.484375, 1.1953125));
    assert_eq!(c.shared_bytes, 12288);
}

/// Reference 3.1: 32x64x32, 32 iterations, 128 threads, gm = 1, gn = 4.
#[test]
fn simdgroup_example() {
    let options = SpaceOptions {
        blocks: Some(vec![[32, 64, 32]]),
        threads: Some(vec![128]),
        ..SpaceOptions::default()
    };
    let resident = |options: SpaceOptions| {
        let policy = MatrixSimdgroupV1::default();
        let ranking = ranked("gemm", &[32, 256, 1024], &policy, options);
        let (m, c) = matrix(&ranking.candidates[0]);
        (*m, *c)
    };
    let (m, c) = resident(options.clone());
    assert_eq!((m.subgroups, m.atoms), ([1, 4], [4, 2]));
    assert_eq!(c.features.matrix_issues, 4096.0);
    assert_eq!(c.features.shared_fragment_transfers, 3072.0);
    assert_eq!(c.features.direct_fragment_stores, 32.0);
    assert_eq!(c.fragment_scalars_per_lane, 28);
    let kept = SpaceOptions { direct_output: false, ..options.clone() };
    assert_eq!(resident(kept).1.features.shared_fragment_transfers, 3072.0 + 64.0);
    let neither = SpaceOptions { direct_output: false, retain_accumulators: false, ..options };
    assert_eq!(resident(neither).1.features.shared_fragment_transfers, 3072.0 + 2048.0);
}

/// The planner of coupled products, given one, agrees with the ranking of every legal candidate.
#[test]
fn a_single_coupled_product_agrees_with_the_ranking() {
    use tilewright_plan::Target;
    use tilewright_plan::coupled::{
        CoupledMatrix, CoupledOptions, CoupledProgram, Distribution, plan_coupled,
    };
    let target = Target::apple_m1_max();
    let gpu = target.gpu_facts().expect("a GPU");
    let policies = [&MatrixMppV2::default() as &dyn Policy, &MatrixSimdgroupV1::default()];
    let mut compared = 0;
    for policy in policies {
        for shape in SHAPES {
            let ranking = gemm(shape, policy);
            for index in &ranking.order {
                let candidate = &ranking.candidates[*index];
                let (m, c) = matrix(candidate);
                let released = match (m.direct, m.persistent) {
                    (true, _) => 8,
                    (false, true) => 4,
                    (false, false) => 0,
                } * m.block[0]
                    * m.block[1];
                let program = CoupledProgram {
                    matrices: vec![CoupledMatrix {
                        block: m.block,
                        executions: c.executions,
                        recurrence: true,
                        direct: m.direct,
                        overwrite: m.overwrite,
                    }],
                    programs: c.programs,
                    shared_bytes: c.shared_bytes + released,
                    independent_elements: c.independent_elements,
                };
                let basis = policy.matrix_rules().basis;
                let options =
                    CoupledOptions { threads: Some(m.threads), ..CoupledOptions::new(basis) };
                let plan = plan_coupled(&program, gpu, &options).expect("legal");
                let score = candidate.verdict.as_ref().expect("legal");
                let found = plan.score.expect("optimized");
                // The reference realisation, which the ranking doesn't offer, may be cheaper.
                if plan.distributions[0] == Distribution::Reference {
                    assert!(found.kernel <= score.kernel);
                    continue;
                }
                assert_eq!(found.kernel, score.kernel, "{shape:?} {m:?}");
                let Distribution::Rectangular { subgroups, atoms, .. } = plan.distributions[0]
                else {
                    continue;
                };
                assert_eq!((subgroups, atoms), (m.subgroups, m.atoms));
                assert_eq!(plan.shared_bytes, c.shared_bytes);
                compared += 1;
            }
        }
    }
    assert!(compared > 145, "{compared}");
}
