//! Rows over the groups of several launches.

use tilewright_ir::analysis::facts;
use tilewright_ir::interp;
use tilewright_ir::ops::{OpRequest, ShapeForm, build, catalog};
use tilewright_ir::{DType, Program};
use tilewright_kernel::lower::{Lowered, Options, Rule, lower};
use tilewright_kernel::sim::Order;
use tilewright_kernel::validate::validate;
use tilewright_plan::mapping::{Mapping, RowMapping};

use crate::common::*;

const BASE: RowMapping = RowMapping { subgroups: 2, split: 3, fuse: true, ..RowMapping::ONE };

fn program(op: &str, shape: &[u64], dtype: DType) -> Program {
    build(op, &OpRequest::shaped(dtype, shape)).unwrap()
}

fn lowered(program: &Program, m: RowMapping) -> Result<Lowered, Rule> {
    let made = lower(program, &facts(program), &Mapping::Rows(m), &Options::default());
    made.map_err(|e| e.rule)
}

/// Simulates and compares every element; gives the number of launches.
fn run(program: &Program, columns: u64, dtype: DType, m: RowMapping) -> usize {
    let context = format!("{} {columns} {dtype} {m:?}", program.name);
    let lowered = lowered(program, m).unwrap_or_else(|e| panic!("{context}: {e}"));
    for kernel in &lowered.launches {
        validate(kernel).unwrap_or_else(|e| panic!("{context}: {}", e[0]));
        round_trips(kernel);
    }
    let launch = launch(program, &[], 0, columns);
    let expected = interp::magnitude(program, &launch.bindings()).unwrap();
    for order in Order::ALL {
        let found = simulate_all(program, &lowered, &launch, order)
            .unwrap_or_else(|e| panic!("{context} {order:?}: {e}"));
        for output in &expected {
            compare(program, output, &found[&output.name], Tolerance::rows(columns, dtype))
                .unwrap_or_else(|e| panic!("{context} {order:?}: {e}"));
        }
    }
    lowered.launches.len()
}

#[test]
fn every_row_op_in_every_type() {
    for op in catalog().iter().filter(|op| op.form == ShapeForm::Rows) {
        // Both sides of a chunk of 2·3 subgroups of one and of four elements a lane.
        for (columns, vector) in [(191, 1), (192, 1), (193, 1), (1540, 4), (1536, 4), (7, 1)] {
            for dtype in [DType::F32, DType::BF16] {
                let program = program(op.name, &[3, columns], dtype);
                run(&program, columns, dtype, RowMapping { vector, ..BASE });
            }
        }
    }
}

#[test]
fn a_launch_for_each_loop_and_one_for_results_of_whole_rows() {
    let cases = [
        ("softmax", 3),
        ("rmsnorm", 2),
        ("layernorm", 3),
        ("row_sum", 2),
        ("relu", 1),
        ("log_softmax", 3),
    ];
    for (op, launches) in cases {
        let program = program(op, &[2, 700], DType::F32);
        assert_eq!(run(&program, 700, DType::F32, BASE), launches, "{op}");
    }
}

#[test]
fn accumulators_many_groups_and_one_subgroup() {
    for m in [
        RowMapping { subgroups: 1, ..BASE },
        RowMapping { split: 40, subgroups: 1, ..BASE },
        RowMapping { unroll: 4, accumulators: 4, ..BASE },
        RowMapping { unroll: 2, fuse: false, vector: 2, ..BASE },
    ] {
        for op in ["softmax", "cross_entropy", "residual_layernorm", "row_max"] {
            let Ok(program) = build(op, &OpRequest::shaped(DType::F32, &[2, 3001])) else {
                continue;
            };
            run(&program, 3001, DType::F32, m);
        }
    }
}

#[test]
fn what_it_has_no_place_for_is_refused() {
    let softmax = program("softmax", &[2, 700], DType::F32);
    for m in [
        RowMapping { cluster: 2, ..BASE },
        RowMapping { cache: true, ..BASE },
        RowMapping { pack: 2, subgroups: 1, ..BASE },
        RowMapping { split: 0, ..BASE },
    ] {
        assert_eq!(lowered(&softmax, m), Err(Rule::MappingRange), "{m:?}");
    }
    // Without the number of rows there is no size for the scratch.
    let open = OpRequest::generic(DType::F32);
    let mut open = build("softmax", &open).unwrap();
    open.bind("cols", 700).unwrap();
    assert_eq!(lowered(&open, BASE), Err(Rule::ExtentKnown));
}
