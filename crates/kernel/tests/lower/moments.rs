//! A sum and the squares about its mean, exchanged at once.

use tilewright_ir::analysis::facts;
use tilewright_ir::ops::{OpRequest, build};
use tilewright_ir::{DType, Program};
use tilewright_kernel::kernel::{Kernel, Op, Scope};
use tilewright_kernel::lower::{Options, lower};
use tilewright_kernel::sim::Order;
use tilewright_plan::mapping::{Mapping, RowMapping};

use crate::common::*;

const BASE: RowMapping =
    RowMapping { subgroups: 3, vector: 4, cache: true, fuse: true, stage: true, ..RowMapping::ONE };

fn program(op: &str, columns: u64, dtype: DType) -> Program {
    let mut program = build(op, &OpRequest::shaped(dtype, &[3, columns])).unwrap();
    for (_, tensor) in program.tensors.iter_mut() {
        tensor.align = 16;
    }
    program
}

fn barriers(kernel: &Kernel) -> usize {
    let mut count = 0;
    kernel.body.walk(&mut |s| {
        let Op::Barrier(id) = s.op else { return };
        count += usize::from(kernel.barriers[id].scope != Scope::Subgroup);
    });
    count
}

/// Simulates rows that `change` made of random ones; gives the number of barriers that meet all.
fn run(op: &str, columns: u64, dtype: DType, m: RowMapping, change: fn(&mut [f64])) -> usize {
    let context = format!("{op} {columns} {dtype} {m:?}");
    let program = program(op, columns, dtype);
    let kernels = lower(&program, &facts(&program), &Mapping::Rows(m), &Options::default())
        .unwrap_or_else(|e| panic!("{context}: {e}"));
    round_trips(&kernels.launches[0]);
    let mut launch = launch(&program, &[], 0, columns);
    if let Some(x) = launch.tensors.get_mut("x") {
        change(x);
        x.iter_mut().for_each(|v| *v = dtype.round(*v));
    }
    check(&program, &kernels, &launch, Tolerance::rows(columns, dtype), &Order::ALL, &context);
    barriers(&kernels.launches[0])
}

#[test]
fn rows_meet_once() {
    let same: fn(&mut [f64]) = |_| {};
    for (op, dtype) in [
        ("layernorm", DType::F32),
        ("layernorm", DType::BF16),
        ("layernorm", DType::F16),
        ("residual_layernorm", DType::F32),
    ] {
        for m in [
            BASE,
            RowMapping { batch: 2, ..BASE },
            RowMapping { cluster: 2, ..BASE },
            RowMapping { cluster: 4, subgroups: 1, batch: 2, ..BASE },
            RowMapping { cluster: 8, subgroups: 4, unroll: 2, accumulators: 2, ..BASE },
            RowMapping { subgroups: 32, fuse: false, ..BASE },
        ] {
            let chunk = m.workers() * u64::from(m.vector);
            assert_eq!(run(op, 2 * chunk, dtype, m, same), 1, "{op} {m:?}");
        }
    }
    // Subgroups with fewer elements than others, one subgroup, and rows in registers.
    assert_eq!(run("layernorm", 388, DType::F32, BASE, same), 2);
    assert_eq!(run("layernorm", 384, DType::F32, RowMapping { subgroups: 1, ..BASE }, same), 0);
    assert_eq!(run("layernorm", 384, DType::F32, RowMapping { stage: false, ..BASE }, same), 2);
    // Other pairs of reductions.
    assert_eq!(run("softmax", 384, DType::F32, BASE, same), 2);
    assert_eq!(run("rmsnorm", 384, DType::F32, BASE, same), 1);
}

/// A leader exchanges what its group's subgroups left: the group meets before the cluster does.
#[test]
fn leaders_exchange_for_their_groups() {
    let same: fn(&mut [f64]) = |_| {};
    let base = RowMapping { cluster: 2, leader: true, ..BASE };
    for m in [
        base,
        RowMapping { batch: 2, ..base },
        RowMapping { cluster: 8, subgroups: 4, unroll: 2, accumulators: 2, ..base },
        RowMapping { cluster: 16, subgroups: 8, ..base },
    ] {
        let columns = 2 * m.workers() * u64::from(m.vector);
        for dtype in [DType::F32, DType::BF16] {
            assert_eq!(run("layernorm", columns, dtype, m, same), 2, "{m:?}");
            assert_eq!(run("softmax", columns, dtype, m, same), 4, "{m:?}");
        }
    }
    // Rows in registers, and subgroups with fewer elements than others.
    for columns in [1536, 1540] {
        let m = RowMapping { stage: false, ..base };
        assert_eq!(run("layernorm", columns, DType::F32, m, same), 4);
        assert_eq!(run("rmsnorm", columns, DType::F32, m, same), 2);
    }
}

/// Without the meeting of its group a leader reads what may not be there yet.
#[test]
fn a_leader_waits_for_its_group() {
    let program = program("softmax", 1536, DType::F32);
    let m = RowMapping { cluster: 2, leader: true, ..BASE };
    let mut lowered =
        lower(&program, &facts(&program), &Mapping::Rows(m), &Options::default()).unwrap();
    let kernel = &mut lowered.launches[0];
    let barriers = kernel.barriers.clone();
    kernel.body.stmts.retain(|s| match s.op {
        Op::Barrier(id) => barriers[id].scope != Scope::Group,
        _ => true,
    });
    let launch = launch(&program, &[], 0, 1536);
    for order in [Order::Forward, Order::Reverse] {
        let outcome = simulate_all(&program, &lowered, &launch, order);
        let error = outcome.err().unwrap_or_else(|| panic!("{order:?}: nobody noticed"));
        let words = error.to_string();
        assert!(words.contains("race") || words.contains("uninitialised"), "{order:?}: {words}");
    }
}

/// Means far from zero, subgroups whose means differ by all of the spread, and rows of one value.
#[test]
fn rows_that_cancel() {
    for m in [BASE, RowMapping { cluster: 2, ..BASE }] {
        let changes: [fn(&mut [f64]); 4] = [
            |x| x.iter_mut().for_each(|v| *v += 1000.0),
            |x| x.sort_by(f64::total_cmp),
            |x| {
                x.sort_by(f64::total_cmp);
                x.iter_mut().for_each(|v| *v = *v * 100.0 - 300.0);
            },
            |x| x.fill(3.25),
        ];
        for change in changes {
            for dtype in [DType::F32, DType::BF16] {
                assert_eq!(run("layernorm", 1536, dtype, m, change), 1);
            }
        }
    }
}
