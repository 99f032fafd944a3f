//! Rows side by side, rows in shared memory, and hints to the second-level cache.

use tilewright_ir::analysis::facts;
use tilewright_ir::facts::Family;
use tilewright_ir::ops::{OpRequest, ShapeForm, catalog, find};
use tilewright_ir::{DType, Program};
use tilewright_kernel::kernel::{ArgKind, Evict, Kernel, Op};
use tilewright_kernel::lower::{LowerError, Lowered, Options, Rule, lower};
use tilewright_kernel::sim::Order;
use tilewright_plan::mapping::{Mapping, Residency, RowMapping};
use tilewright_plan::problem::RowProblem;
use tilewright_plan::request::Request;
use tilewright_plan::rows::shared_bytes;

use crate::common::*;
use crate::rows::mapping;

fn program(op: &str, columns: u64, dtype: DType) -> Program {
    let mut program = find(op).unwrap().build(&OpRequest::generic(dtype)).unwrap();
    program.bind("cols", columns).unwrap();
    for (_, tensor) in program.tensors.iter_mut() {
        tensor.align = 16;
    }
    program
}

fn lowered(program: &Program, m: RowMapping) -> Result<Lowered, LowerError> {
    lower(program, &facts(program), &Mapping::Rows(m), &Options::default())
}

fn problem(program: &Program) -> RowProblem {
    let facts = facts(program);
    let Family::Rows(rows) = &facts.family else { panic!("{} is no row program", program.name) };
    RowProblem::new(&Request::new(program, &facts).size("rows", 16), rows).unwrap()
}

fn run(op: &str, rows: u64, columns: u64, dtype: DType, m: RowMapping) {
    let program = program(op, columns, dtype);
    let context = format!("{op} {rows}x{columns} {dtype} {m:?}");
    let kernels = lowered(&program, m).unwrap_or_else(|e| panic!("{context}: {e}"));
    let kernel = &kernels.launches[0];
    round_trips(kernel);
    assert_eq!(kernel.shared_bytes(), shared_bytes(&problem(&program), &m), "{context}");
    assert_eq!(kernel.resident, m.resident, "{context}");
    let launch = launch(&program, &[("rows", rows)], 0, rows * 31 + columns);
    let orders: &[Order] =
        if m.subgroups > 1 || m.cluster > 1 { &Order::ALL } else { &[Order::Forward] };
    let report =
        check(&program, &kernels, &launch, Tolerance::rows(columns, dtype), orders, &context);
    assert_eq!(report.groups, rows.div_ceil(m.programs()) * u64::from(m.cluster), "{context}");
}

fn row_ops() -> impl Iterator<Item = &'static str> {
    catalog().iter().filter(|op| op.form == ShapeForm::Rows).map(|op| op.name)
}

/// Full and partial batches, chunks on both sides of a whole number, every kind of group.
#[test]
fn every_op_side_by_side() {
    for op in row_ops() {
        for (base, batch) in [
            (mapping(32, 1, 4), 2),
            (RowMapping { fuse: true, cache: true, ..mapping(32, 3, 2) }, 3),
            (RowMapping { fuse: true, unroll: 2, accumulators: 2, ..mapping(32, 2, 1) }, 2),
            (RowMapping { cluster: 2, fuse: true, cache: true, ..mapping(32, 2, 4) }, 4),
        ] {
            let m = RowMapping { batch, ..base };
            let chunk = m.workers() * u64::from(m.vector);
            for (rows, n) in [(1, chunk), (5, chunk + 3), (6, 2 * chunk - 1), (8, 7)] {
                run(op, rows, n, DType::F32, m);
            }
            run(op, 5, chunk + 2, DType::BF16, m);
        }
    }
}

/// Where the planner proves the copies whole, rows lie in shared memory and nothing is kept in
/// registers; where it doesn't, lowering refuses too.
#[test]
fn every_op_in_shared_memory() {
    let mut staged = 0;
    for op in row_ops() {
        for (dtype, vector) in [(DType::F32, 4), (DType::BF16, 8), (DType::F16, 2)] {
            for (cluster, subgroups, batch) in [(1, 1, 1), (1, 3, 2), (2, 2, 1), (4, 1, 2)] {
                let base = RowMapping { fuse: true, cache: true, stage: true, ..mapping(32, 1, 1) };
                let m = RowMapping { vector, cluster, subgroups, batch, resident: cluster, ..base };
                let chunk = m.workers() * u64::from(m.vector);
                let n = 2 * chunk + 2 * u64::from(m.vector);
                let copied = problem(&program(op, n, dtype)).copied;
                if copied.bytes == 0 {
                    continue;
                }
                let bytes = copied.element.map(|b| b * u64::from(vector));
                if bytes.iter().any(|b| ![4, 8, 16].contains(b)) {
                    continue;
                }
                staged += 1;
                for (rows, n) in [(1, chunk), (3, n), (4, u64::from(vector))] {
                    run(op, rows, n, dtype, m);
                }
                let kernels = lowered(&program(op, n, dtype), m).unwrap();
                assert_eq!(kernels.launches[0].private.len(), 0, "{op} {dtype} {m:?}");
                // A length that isn't a number of vectors leaves a copy that isn't whole.
                let ragged = program(op, n + 1, dtype);
                assert_eq!(problem(&ragged).copied.aligned, 1);
                assert_eq!(lowered(&ragged, m).unwrap_err().rule, Rule::UnprovedFact);
            }
        }
    }
    assert!(staged >= 24, "{staged}");
}

/// Every lane copies what it reads itself: all copies before one wait, that before all reads.
#[test]
fn copies_come_before_their_wait() {
    let m = RowMapping { fuse: true, cache: true, stage: true, batch: 2, ..mapping(32, 2, 4) };
    let kernels = lowered(&program("layernorm", 1024, DType::F32), m).unwrap();
    let (mut copies, mut waits, mut reads) = (0, 0, 0);
    kernels.launches[0].body.walk(&mut |s| match &s.op {
        Op::CopyAsync { .. } => {
            assert_eq!((waits, reads), (0, 0));
            copies += 1;
        }
        Op::Wait { tokens, pending } => {
            assert_eq!((tokens.len(), *pending), (copies, 0));
            waits += 1;
        }
        Op::Load { .. } => reads += 1,
        _ => {}
    });
    assert_eq!((copies, waits), (2 * 1024 / (64 * 4), 1));
    // A chunk reads weight and bias once for both rows, and writes twice.
    let text = tilewright_kernel::text::print(&kernels.launches[0]);
    assert_eq!(text.matches("load gamma[").count(), 1, "{text}");
    assert_eq!(text.matches("load beta[").count(), 1, "{text}");
    assert_eq!(text.matches("store y[").count(), 2, "{text}");
}

#[test]
fn what_cannot_go_side_by_side_is_refused() {
    let softmax = program("softmax", 64, DType::F32);
    let base = mapping(32, 1, 4);
    for m in [
        RowMapping { batch: 0, ..base },
        RowMapping { batch: 2, pack: 2, ..base },
        RowMapping { batch: 2, ahead: true, ..base },
    ] {
        assert_eq!(lowered(&softmax, m).unwrap_err().rule, Rule::MappingRange, "{m:?}");
    }
}

fn evictions(kernel: &Kernel) -> Vec<Evict> {
    let of = |kind: &ArgKind| match kind {
        ArgKind::Buffer { evict, .. } => Some(*evict),
        _ => None,
    };
    kernel.args.iter().filter_map(|(_, arg)| of(&arg.kind)).collect()
}

/// Hints are for what each row has of its own: x and y, not weight and bias.
#[test]
fn hints_to_the_cache() {
    for (residency, x, y) in [
        (Residency::Normal, Evict::Normal, Evict::Normal),
        (Residency::Keep, Evict::Last, Evict::First),
        (Residency::Stream, Evict::First, Evict::First),
        (Residency::Part, Evict::Head(16 << 20), Evict::First),
    ] {
        let m = RowMapping { residency, ..mapping(32, 2, 4) };
        let kernels = lowered(&program("layernorm", 512, DType::F32), m).unwrap();
        let kernel = &kernels.launches[0];
        assert_eq!(evictions(kernel), [x, Evict::Normal, Evict::Normal, y]);
        round_trips(kernel);
        run("layernorm", 3, 512, DType::F32, m);
    }
}
