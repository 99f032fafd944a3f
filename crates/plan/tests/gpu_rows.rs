//! Row mappings for GPUs beyond the reference's space: clusters and loads ahead of a reduction.

use tilewright_ir::facts::Family;
use tilewright_ir::ops::catalog::{OpRequest, build};
use tilewright_ir::{DType, analysis};
use tilewright_plan::Target;
use tilewright_plan::legality::{Rejection, Rule, rows};
use tilewright_plan::mapping::RowMapping;
use tilewright_plan::problem::RowProblem;
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
