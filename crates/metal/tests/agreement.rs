//! What a plan counts and what the emitted text has are the same: for the twelve held-out row
//! cases and the 145 legal products of the reference record, at full size.

mod common;

use common::*;
use serde_json::Value;
use tilewright_ir::ops::OpRequest;
use tilewright_ir::{DType, Program, analysis, ops};
use tilewright_metal::Sites;
use tilewright_plan::mapping::Mapping;
use tilewright_plan::policy::CandidateFacts;
use tilewright_plan::{Candidate, Profile, Request, SpaceOptions, Target, plan, policy};

fn record(name: &str) -> Value {
    let path = format!("{}/../plan/tests/data/m1max/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn integer(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no integer `{key}` in {value}"))
}

fn rows_program(entry: &Value) -> Program {
    let op = entry["operation"].as_str().expect("an operation");
    let shape = [integer(entry, "rows"), integer(entry, "columns")];
    ops::build(op, &OpRequest::shaped(DType::F32, &shape)).unwrap_or_else(|e| panic!("{e}"))
}

/// The candidate's text against the closed forms of reference 5.1 and the planner's counts.
fn check_rows(program: &Program, candidate: &Candidate, what: &str) -> Sites {
    let (Mapping::Rows(m), CandidateFacts::Rows(c)) = (&candidate.mapping, &candidate.facts) else {
        panic!("{what}: {candidate:?}")
    };
    let module = module(&candidate_kernel(program, candidate));
    let sites = module.sites();
    let subgroups = u64::from(m.subgroups);
    assert_eq!(u64::from(module.threads), c.threads, "{what}");
    assert_eq!(u64::from(module.threads), 32 * subgroups * u64::from(m.pack), "{what}");
    let joined = u64::from(subgroups > 1);
    assert_eq!(sites.threadgroup_bytes, 4 * c.reductions * subgroups * joined, "{what}");
    assert_eq!(sites.threadgroup_bytes, c.shared_bytes, "{what}");
    assert_eq!(module.threadgroup_bytes, c.shared_bytes, "{what}");
    assert_eq!(sites.threadgroup_barriers, c.reductions * joined, "{what}");
    assert_eq!(sites.threadgroup_barriers, c.barriers, "{what}");
    assert_eq!(sites.collectives, c.reductions * (1 + joined), "{what}");
    assert_eq!(sites.private_scalars, c.private_scalars, "{what}");
    assert_eq!((sites.simdgroup_multiplies, sites.tensor_operations), (0, 0), "{what}");
    let groups = module.groups(|_| None).expect("static sizes");
    assert_eq!(groups.map(u64::from).iter().product::<u64>(), c.groups, "{what}");
    sites
}

/// Width, reuse, shared bytes, barriers and collectives of what both sides of the replay chose.
#[test]
fn the_twelve_held_out_rows() {
    let calibration = record("calibration_record.json");
    let argument = calibration["native_argument"].as_str().expect("a profile string");
    let profile = Profile::from_string(argument).unwrap_or_else(|e| panic!("{e}"));
    let service = policy::by_name("reduction-service", Some(&profile));
    let service = service.unwrap_or_else(|e| panic!("{e}"));
    let analytic = policy::by_name("reduction-v1", None).unwrap_or_else(|e| panic!("{e}"));
    let replay = record("heldout_replay.json");
    let cases = replay["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 12);
    for entry in cases {
        let program = rows_program(entry);
        let facts = analysis::facts(&program);
        for (policy, side) in [(&service, "candidate"), (&analytic, "reference")] {
            let what = format!("{} {side}", entry["case"]);
            let request = Request::new(&program, &facts);
            let ranking = plan(&request, &Target::apple_m1_max(), policy.as_ref())
                .unwrap_or_else(|e| panic!("{what}: {e}"));
            let winner = ranking.winner().unwrap_or_else(|e| panic!("{what}: {e}"));
            let Mapping::Rows(m) = &winner.mapping else { panic!("{what}") };
            assert_eq!(m.threads(), integer(&entry[side], "threads"), "{what}");
            assert_eq!(Some(m.cache), entry[side]["cache"].as_bool(), "{what}");
            let sites = check_rows(&program, winner, &what);
            let scalars = integer(&entry[side], "private_scalars");
            assert_eq!(sites.private_scalars, scalars, "{what}");
        }
    }
}

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

/// Rows × columns of every `matmul2d_descriptor` in a text.
fn descriptors(text: &str) -> Vec<u64> {
    let numbers = |line: &str| {
        let inner = line.split_once("matmul2d_descriptor(")?.1;
        let mut parts = inner.split(", ").map(str::parse::<u64>);
        Some(parts.next()?.ok()? * parts.next()?.ok()?)
    };
    text.lines().filter_map(numbers).collect()
}

/// Call sites, shared bytes, barriers and fragments of all legal MPP candidates.
#[test]
fn the_legal_products_with_tensor_operations() {
    let search = record("gemm_search.json");
    let trials = search["trials"].as_array().expect("trials");
    let mut checked = 0;
    for shape in SHAPES {
        let program = program("gemm", &shape, DType::F32);
        let ranking = ranked(&program, "matrix-mpp-v2", SpaceOptions::default());
        for index in &ranking.order {
            let candidate = &ranking.candidates[*index];
            let (Mapping::Matrix(m), CandidateFacts::Matrix(c)) =
                (&candidate.mapping, &candidate.facts)
            else {
                panic!("{candidate:?}")
            };
            let what = format!("{shape:?} {m:?}");
            let trial = trials.iter().find(|t| {
                let sizes = ["m", "n", "k"].map(|key| integer(t, key));
                sizes == shape
                    && t["block"] == serde_json::json!(m.block)
                    && integer(t, "threads") == u64::from(m.threads)
            });
            let trial = trial.unwrap_or_else(|| panic!("{what} isn't recorded"));
            let module = module(&candidate_kernel(&program, candidate));
            let sites = module.sites();
            assert_eq!(module.threads, m.threads, "{what}");
            assert_eq!((sites.tensor_operations, sites.cooperative_tensors), (1, 1), "{what}");
            assert_eq!((sites.simdgroup_multiplies, sites.simdgroup_fragments), (0, 0), "{what}");
            // One K block into a fresh accumulator overwrites; the plan proves it for direct
            // output only, the emitter sees it of every accumulator.
            assert_eq!(sites.tensor_overwrites, u64::from(c.executions == 1), "{what}");
            assert!(!m.overwrite || c.executions == 1, "{what}");
            assert_eq!(sites.threadgroup_bytes, integer(trial, "shared_memory_bytes"), "{what}");
            assert_eq!(sites.threadgroup_barriers, c.barriers, "{what}");
            // A lane of 32 holds its part of the accumulator.
            let tile = descriptors(&module.text);
            assert_eq!(tile, [32 * integer(trial, "fragment_scalars_per_lane")], "{what}");
            let groups = module.groups(|_| None).expect("static sizes");
            let programs = groups.map(u64::from).iter().product::<u64>();
            assert_eq!(programs, integer(trial, "programs"), "{what}");
            // Operands are read in place exactly where that is planned.
            let forwarded = [m.forward_a, m.forward_b];
            for (name, forwarded) in ["left", "right"].into_iter().zip(forwarded) {
                let space = if forwarded { "device" } else { "threadgroup" };
                let found = module.text.lines().any(|line| {
                    line.trim().starts_with(&format!("tensor<{space} "))
                        && line.contains(&format!(" {name}("))
                });
                assert!(found, "{what}: {name} isn't in {space} memory\n{}", module.text);
            }
            checked += 1;
        }
    }
    assert_eq!(checked, 145);
}

/// The same of 8×8 fragments, over all candidates that are legal with them.
#[test]
fn the_legal_products_with_fragments() {
    let mut checked = 0;
    for shape in SHAPES {
        let program = program("gemm", &shape, DType::F32);
        let ranking = ranked(&program, "matrix-simdgroup-v1", SpaceOptions::default());
        for index in &ranking.order {
            let candidate = &ranking.candidates[*index];
            let (Mapping::Matrix(m), CandidateFacts::Matrix(c)) =
                (&candidate.mapping, &candidate.facts)
            else {
                panic!("{candidate:?}")
            };
            let what = format!("{shape:?} {m:?}");
            let module = module(&candidate_kernel(&program, candidate));
            let sites = module.sites();
            let [rm, rn] = m.atoms;
            assert_eq!(sites.simdgroup_multiplies, rm * rn, "{what}");
            // A lane of 32 holds two elements of every fragment.
            assert_eq!(2 * sites.simdgroup_fragments, c.fragment_scalars_per_lane, "{what}");
            assert_eq!((sites.tensor_operations, sites.cooperative_tensors), (0, 0), "{what}");
            assert_eq!(sites.threadgroup_bytes, c.shared_bytes, "{what}");
            assert_eq!(sites.threadgroup_barriers, c.barriers, "{what}");
            assert_eq!(module.threads, m.threads, "{what}");
            checked += 1;
        }
    }
    assert!(checked > 100, "{checked}");
}

/// Every legal row candidate of the reference's shapes, not only the winners.
#[test]
fn every_legal_row_candidate() {
    let mut checked = 0;
    for op in ["softmax", "rmsnorm", "layernorm", "cross_entropy", "residual_layernorm"] {
        for shape in [[23, 769], [37, 1537], [128, 2048], [64, 12289]] {
            let program = program(op, &shape, DType::F32);
            let ranking = ranked(&program, "reduction-v1", SpaceOptions::default());
            for index in &ranking.order {
                let candidate = &ranking.candidates[*index];
                let what = format!("{op} {shape:?} {:?}", candidate.mapping);
                check_rows(&program, candidate, &what);
                checked += 1;
            }
        }
    }
    assert!(checked > 500, "{checked}");
}
