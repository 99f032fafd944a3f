//! The row family.

use tilewright_ir::DType;
use tilewright_ir::Program;
use tilewright_ir::analysis::facts;
use tilewright_ir::builder::ProgramBuilder;
use tilewright_ir::facts::Family;
use tilewright_ir::ops::{OpRequest, catalog, find};
use tilewright_ir::program::*;
use tilewright_kernel::kernel::{Kernel, Op as KernelOp};
use tilewright_kernel::lower::{
    Join, LowerError, Lowered, Options, Pack, Rule, Sums, Tail, lower, lower_any,
};
use tilewright_kernel::sim::Order;
use tilewright_plan::mapping::{Mapping, RowMapping};

use crate::common::*;

pub fn mapping(lanes: u32, subgroups: u32, vector: u32) -> RowMapping {
    RowMapping {
        lanes,
        subgroups,
        vector,
        unroll: 1,
        accumulators: 1,
        pack: 1,
        cache: false,
        fuse: false,
        ..RowMapping::ONE
    }
}

fn lowered(program: &Program, mapping: RowMapping) -> Result<Lowered, LowerError> {
    joined(program, mapping, Join::Collective)
}

fn joined(program: &Program, mapping: RowMapping, join: Join) -> Result<Lowered, LowerError> {
    with(program, mapping, Options { join, ..Options::default() })
}

fn with(program: &Program, m: RowMapping, options: Options) -> Result<Lowered, LowerError> {
    lower(program, &facts(program), &Mapping::Rows(m), &options)
}

/// Names of the row ops.
fn row_ops() -> Vec<&'static str> {
    let rows = tilewright_ir::ops::ShapeForm::Rows;
    catalog().iter().filter(|op| op.form == rows).map(|op| op.name).collect()
}

fn program(op: &str, columns: u64, dtype: DType, strided: bool) -> Program {
    let mut program =
        find(op).unwrap().build(&OpRequest { strided, ..OpRequest::generic(dtype) }).unwrap();
    program.bind("cols", columns).unwrap();
    program
}

/// Sizes of a row program's symbolic dimensions.
fn sizes(program: &Program, rows: u64, columns: u64) -> Vec<(String, u64)> {
    program
        .dims
        .iter()
        .map(|(_, d)| (d.name.clone(), if d.name == "rows" { rows } else { columns }))
        .collect()
}

fn run(op: &str, rows: u64, columns: u64, dtype: DType, m: RowMapping, pad: Option<u64>) {
    let program = program(op, columns, dtype, pad.is_some());
    let default = Options::default();
    let mut choices = vec![default, Options { tail: Tail::Packs, ..default }];
    if m.subgroups > 1 && m.cluster == 1 {
        // One subgroup has nothing to join.
        choices.push(Options { join: Join::Lane, ..default });
    }
    if m.pack > 1 {
        choices.push(Options { pack: Pack::InTurn, sums: Sums::Blocks, ..default });
    }
    for options in choices {
        let context = format!("{op} {rows}x{columns} {dtype} {m:?} pad {pad:?} {options:?}");
        let kernels = with(&program, m, options).unwrap_or_else(|e| panic!("{context}: {e}"));
        let beside = if options.pack == Pack::Beside { m.pack } else { 1 };
        assert_eq!(kernels.launches[0].subgroups, m.subgroups * beside, "{context}");
        closed_form(&program, m, &kernels.launches[0], &context);
        let sizes = sizes(&program, rows, columns);
        let dims: Vec<(&str, u64)> = sizes.iter().map(|(n, s)| (n.as_str(), *s)).collect();
        let launch = launch(&program, &dims, pad.unwrap_or(0), rows * 7919 + columns);
        let several = m.subgroups > 1 || m.cluster > 1;
        let orders: &[Order] = if several { &Order::ALL } else { &[Order::Forward] };
        let tolerance = Tolerance::rows(columns, dtype);
        let report = check(&program, &kernels, &launch, tolerance, orders, &context);
        let groups = rows.div_ceil(u64::from(m.pack));
        assert_eq!(report.groups, groups * u64::from(m.cluster), "{context}");
        assert_eq!(report.barriers, groups * barriers(&program, m), "{context}");
    }
}

fn barriers(program: &Program, m: RowMapping) -> u64 {
    let Family::Rows(facts) = facts(program).family else {
        panic!("{} is no row program", program.name)
    };
    let reductions = facts.reductions.len() as u64;
    match (m.subgroups, m.cluster) {
        (1, 1) => 0,
        (_, 1) => reductions,
        _ => reductions + u64::from(reductions > 0),
    }
}

/// Shared bytes, barriers and stripes are what the reference's closed forms say.
fn closed_form(program: &Program, m: RowMapping, kernel: &Kernel, context: &str) {
    let Family::Rows(facts) = facts(program).family else { panic!("{context}: no row program") };
    let bytes: u64 = facts.reductions.iter().map(|r| r.dtype.bytes()).sum();
    let sharers = u64::from(m.subgroups) * u64::from(m.cluster);
    let shared = if sharers > 1 { bytes * sharers } else { 0 };
    assert_eq!(kernel.shared_bytes(), shared, "{context}");
    let mut sites = 0;
    kernel.body.walk(&mut |s| {
        sites += u64::from(matches!(s.op, KernelOp::Barrier(_) | KernelOp::BarrierWait(_)));
    });
    assert_eq!(sites, barriers(program, m), "{context}");
    if !m.fuse && !m.ahead {
        let variant = if m.cache { &facts.cache } else { &facts.reload };
        let columns = program.known(facts.columns).unwrap();
        let slots = tilewright_plan::rows::slots(columns, m.workers(), m.vector.into());
        let stripes = if slots > 0 { variant.striped_tiles() } else { 0 };
        assert_eq!(kernel.private.len() as u64, stripes, "{context}");
        assert!(kernel.private.iter().all(|(_, p)| p.len == slots), "{context}");
    }
    round_trips(kernel);
}

/// Columns on both sides of every threshold of a mapping.
fn columns(m: RowMapping) -> Vec<u64> {
    let (v, w) = (u64::from(m.vector), m.workers());
    let chunk = w * v;
    let mut columns = vec![0, 1, v - 1, v, v + 1, w - 1, w + 1];
    columns.extend([chunk - 1, chunk, chunk + 1, 2 * chunk + v + 1, 3 * chunk, 37]);
    columns.sort_unstable();
    columns.dedup();
    columns
}

#[test]
fn every_op_on_gpu_mappings() {
    for op in row_ops() {
        for base in [mapping(32, 1, 4), mapping(32, 3, 2), mapping(32, 2, 1)] {
            for n in columns(base) {
                for cache in [false, true] {
                    run(op, 3, n, DType::F32, RowMapping { cache, ..base }, None);
                }
            }
        }
    }
}

#[test]
fn every_op_on_clusters() {
    for op in row_ops() {
        for (cluster, subgroups, vector) in [(2, 1, 4), (4, 3, 1), (8, 4, 2), (16, 9, 1)] {
            let base = RowMapping { cluster, fuse: true, ..mapping(32, subgroups, vector) };
            let chunk = base.workers() * u64::from(vector);
            for n in [0, 1, 37, chunk - 1, chunk, chunk + 1, 2 * chunk + u64::from(vector) + 1] {
                let cache = n % 2 == 0;
                run(op, 2, n, DType::F32, RowMapping { cache, ..base }, None);
            }
        }
    }
    let base = RowMapping { cluster: 2, ..mapping(32, 2, 4) };
    for dtype in [DType::F64, DType::F16, DType::BF16] {
        run("softmax", 3, 515, dtype, base, None);
        run("layernorm", 3, 1024, dtype, base, Some(3));
    }
}

#[test]
fn what_later_phases_read_is_loaded_ahead() {
    for op in row_ops() {
        for base in [mapping(32, 1, 4), mapping(32, 3, 2)] {
            for (n, cache, fuse) in [(1, true, true), (131, false, true), (768, true, false)] {
                let m = RowMapping { ahead: true, cache, fuse, ..base };
                run(op, 3, n, DType::F32, m, None);
                run(op, 3, n, DType::BF16, RowMapping { cluster: 2, ..m }, None);
            }
        }
    }
    // Both inputs of a column come before the barrier, and neither after.
    let program = program("layernorm", 1024, DType::F32, false);
    let m = RowMapping { ahead: true, cache: true, fuse: true, ..mapping(32, 2, 4) };
    let kernels = lowered(&program, m).unwrap();
    let text = tilewright_kernel::text::print(&kernels.launches[0]);
    let (before, after) = text.split_once("barrier all\n").unwrap();
    assert!(before.contains("load gamma[") && before.contains("load beta["), "{text}");
    assert!(!after.contains("load gamma[") && !after.contains("load beta["), "{text}");
}

#[test]
fn every_op_on_cpu_mappings() {
    for op in row_ops() {
        for (unroll, accumulators, cache, fuse) in
            [(1, 1, false, true), (4, 4, true, true), (4, 2, false, false), (8, 1, true, false)]
        {
            let m = RowMapping { unroll, accumulators, cache, fuse, ..mapping(16, 1, 1) };
            for n in [0, 1, 15, 16, 17, 31, 33, 64, 67, 131] {
                run(op, 2, n, DType::F32, m, None);
            }
        }
    }
}

#[test]
fn every_op_in_every_dtype() {
    for op in row_ops() {
        for dtype in [DType::F64, DType::F16, DType::BF16] {
            for m in [mapping(32, 2, 4), RowMapping { fuse: true, ..mapping(8, 1, 1) }] {
                for n in [1, 7, 8, 129, 261] {
                    run(op, 2, n, dtype, m, None);
                }
            }
        }
    }
}

#[test]
fn packed_programs_share_a_group() {
    for op in row_ops() {
        for (rows, pack) in [(1, 4), (7, 4), (8, 4), (5, 8)] {
            run(op, rows, 37, DType::F32, RowMapping { pack, ..mapping(32, 1, 4) }, None);
        }
    }
}

#[test]
fn padded_strides() {
    for op in row_ops() {
        for pad in [1, 4] {
            run(op, 3, 45, DType::F32, mapping(32, 2, 4), Some(pad));
            run(op, 3, 45, DType::F32, mapping(16, 1, 1), Some(pad));
        }
    }
}

#[test]
fn no_rows() {
    run("softmax", 0, 17, DType::F32, mapping(32, 2, 4), None);
}

#[test]
fn random_mappings() {
    let mut random = Random(0x7117);
    let ops = row_ops();
    for _ in 0..150 {
        let op = random.pick(&ops);
        let lanes = random.pick(&[4, 8, 16, 32]);
        let subgroups = if random.below(2) == 0 { 1 } else { 1 + random.below(4) as u32 };
        let unroll = random.pick(&[1, 2, 4, 8]);
        let m = RowMapping {
            lanes,
            subgroups,
            vector: random.pick(&[1, 2, 4, 8]),
            unroll,
            accumulators: 1 + random.below(unroll.into()) as u32,
            pack: if subgroups == 1 { 1 + random.below(3) as u32 } else { 1 },
            cache: random.below(2) == 0,
            fuse: random.below(2) == 0,
            ..RowMapping::ONE
        };
        let dtype = random.pick(&[DType::F32, DType::F64, DType::F16, DType::BF16]);
        let pad = if random.below(3) == 0 { Some(random.below(9)) } else { None };
        run(op, random.below(6), random.below(600), dtype, m, pad);
    }
}

/// Columns that stay symbolic: no stripe, or a bounded one.
#[test]
fn symbolic_columns() {
    for (op, m) in [
        ("row_sum", mapping(32, 2, 4)),
        ("row_max", mapping(16, 1, 1)),
        ("rmsnorm", mapping(32, 2, 2)),
        ("relu", mapping(16, 1, 1)),
    ] {
        let program = find(op).unwrap().build(&OpRequest::generic(DType::F32)).unwrap();
        let kernels = lowered(&program, m).unwrap();
        for n in [0, 1, 16, 100, 256, 300] {
            let launch = launch(&program, &[("rows", 3), ("cols", n)], 0, n);
            let context = format!("{op} with {n} symbolic columns");
            let tolerance = Tolerance::rows(n, DType::F32);
            check(&program, &kernels, &launch, tolerance, &[Order::Forward], &context);
        }
    }
    // A stripe has a size.
    let program = find("softmax").unwrap().build(&OpRequest::generic(DType::F32)).unwrap();
    let error = lowered(&program, mapping(32, 2, 4)).unwrap_err();
    assert_eq!(error.rule, Rule::ExtentKnown);
}

fn special(op: &str, m: RowMapping, row: &[f64], mask: Option<&[f64]>) -> Vec<f64> {
    let program = program(op, row.len() as u64, DType::F32, false);
    let mut launch = launch(&program, &[("rows", 1)], 0, 1);
    launch.tensors.insert("x".to_string(), row.to_vec());
    if let Some(mask) = mask {
        launch.tensors.insert("mask".to_string(), mask.to_vec());
    }
    let kernels = lowered(&program, m).unwrap();
    let tolerance = Tolerance::rows(row.len() as u64, DType::F32);
    check(&program, &kernels, &launch, tolerance, &[Order::Forward], op);
    let (buffers, _) =
        simulate(&program, &kernels.launches[0], &launch, &Default::default()).unwrap();
    buffers["y"].clone()
}

#[test]
fn special_values() {
    let inf = f64::INFINITY;
    for m in [mapping(32, 2, 4), RowMapping { fuse: true, ..mapping(16, 1, 1) }] {
        let mut row = vec![0.5; 40];
        row[33] = f64::NAN;
        assert!(special("softmax", m, &row, None).iter().all(|y| y.is_nan()));
        assert!(special("row_max", m, &row, None)[0].is_nan());
        assert!(special("softmax", m, &[-inf; 21], None).iter().all(|y| y.is_nan()));
        let mut mask = vec![1.0; 40];
        mask[33] = 0.0;
        let y = special("masked_softmax", m, &row, Some(&mask));
        assert!(y[33] == 0.0 && (y[0] - 1.0 / 39.0).abs() < 1e-6);
        let hidden = special("masked_softmax", m, &row, Some(&[0.0; 40]));
        assert!(hidden.iter().all(|y| *y == 0.0));
        assert!(special("row_mean", m, &[], None)[0].is_nan());
        assert_eq!(special("row_max", m, &[], None), [-inf]);
        assert_eq!(special("row_sum", m, &[], None), [0.0]);
    }
}

/// y = fold(x) in a stated order, of numbers whose sum depends on it.
fn ordered(order: OrderPolicy, op: ReduceOp, n: u64) -> Program {
    let mut b = ProgramBuilder::new("ordered");
    let rows = b.dim("rows", DimKind::Symbolic { divisor: 1, max: 100 });
    let x = b.tensor("x", Access::In, DType::F32, &[rows, Extent::Const(n)]);
    let y = b.tensor("y", Access::Out, DType::F32, &[rows]);
    let r = b.grid("r", rows, Extent::Const(1));
    let j = b.axis("j", Extent::Const(n));
    let v = b.load(x, vec![Coord::at(r), Coord::along(j)], Bounds::Assume);
    let s = b.reduce_ordered(op, v, j, order);
    b.store(y, vec![Coord::at(r)], s, Bounds::Assume);
    b.finish()
}

#[test]
fn stated_orders_are_kept() {
    let n = 300;
    let mut random = Random(6);
    let data: Vec<f64> = (0..n)
        .map(|_| DType::F32.round(random.number() * f64::powi(2.0, random.below(20) as i32)))
        .collect();
    let left = data.iter().fold(0.0f32, |s, x| s + *x as f32) as f64;
    let right = data.iter().rev().fold(0.0f32, |s, x| *x as f32 + s) as f64;
    assert_ne!(left, right);
    for (order, expected) in [
        (OrderPolicy::FoldLeft, left),
        (OrderPolicy::OrderedTree, left),
        (OrderPolicy::FoldRight, right),
    ] {
        let program = ordered(order, ReduceOp::Add, n);
        for m in [mapping(32, 2, 4), RowMapping { fuse: true, cache: true, ..mapping(16, 1, 1) }] {
            let mut launch = launch(&program, &[("rows", 1)], 0, 1);
            launch.tensors.insert("x".to_string(), data.clone());
            let kernels = lowered(&program, m).unwrap();
            let (buffers, _) =
                simulate(&program, &kernels.launches[0], &launch, &Default::default()).unwrap();
            assert_eq!(buffers["y"], [expected], "{order:?}");
            let any = lower_any(&program, 16, &Options::default()).unwrap();
            let (buffers, _) =
                simulate(&program, &any.launches[0], &launch, &Default::default()).unwrap();
            assert_eq!(buffers["y"], [expected], "{order:?} by the fallback");
        }
    }
}

#[test]
fn products_and_minima() {
    for op in [ReduceOp::Mul, ReduceOp::Min, ReduceOp::Max, ReduceOp::Add] {
        for n in [0, 1, 33, 257] {
            let program = ordered(OrderPolicy::UnorderedTree, op, n);
            let launch = launch(&program, &[("rows", 4)], 0, n);
            for m in
                [mapping(32, 2, 4), RowMapping { unroll: 4, accumulators: 3, ..mapping(16, 1, 1) }]
            {
                let kernels = lowered(&program, m).unwrap();
                let context = format!("{op:?} of {n}");
                let tolerance = Tolerance::rows(n, DType::F32);
                check(&program, &kernels, &launch, tolerance, &Order::ALL, &context);
            }
        }
    }
}

/// y = y·2 + row sum of x, in place.
fn in_place() -> Program {
    let mut b = ProgramBuilder::new("in_place");
    let rows = b.dim("rows", DimKind::Symbolic { divisor: 1, max: 100 });
    let n = Extent::Const(70);
    let x = b.tensor("x", Access::In, DType::F32, &[rows, n]);
    let y = b.tensor("y", Access::InOut, DType::F32, &[rows, n]);
    let r = b.grid("r", rows, Extent::Const(1));
    let j = b.axis("j", n);
    let at = || vec![Coord::at(r), Coord::along(j)];
    let v = b.load(x, at(), Bounds::Assume);
    let s = b.reduce(ReduceOp::Add, v, j);
    let old = b.load(y, at(), Bounds::Assume);
    let two = b.constant(2.0, DType::F32);
    let new = b.map(MapOp::Mul, &[old, two]);
    let new = b.map(MapOp::Add, &[new, s]);
    b.store(y, at(), new, Bounds::Assume);
    b.finish()
}

#[test]
fn read_and_written() {
    let program = in_place();
    let launch = launch(&program, &[("rows", 3)], 0, 9);
    let tolerance = Tolerance::rows(70, DType::F32);
    for m in [mapping(32, 2, 4), RowMapping { fuse: true, cache: true, ..mapping(16, 1, 1) }] {
        let kernels = lowered(&program, m).unwrap();
        check(&program, &kernels, &launch, tolerance, &Order::ALL, "in place");
    }
    let any = lower_any(&program, 16, &Options::default()).unwrap();
    check(&program, &any, &launch, tolerance, &[Order::Forward], "in place by the fallback");
}

#[test]
fn bad_mappings_name_their_rule() {
    let program = program("softmax", 100, DType::F32, false);
    let good = mapping(32, 2, 4);
    for (m, rule) in [
        (RowMapping { vector: 3, ..good }, Rule::MappingRange),
        (RowMapping { lanes: 0, ..good }, Rule::MappingRange),
        (RowMapping { accumulators: 2, ..good }, Rule::MappingRange),
        (RowMapping { subgroups: 33, ..good }, Rule::SubgroupsPerLane),
        (RowMapping { pack: 2, ..good }, Rule::PackSingleSubgroup),
    ] {
        assert_eq!(lowered(&program, m).unwrap_err().rule, rule, "{m:?}");
    }
    let tight = Options { shared_limit: 15, ..Options::default() };
    let error = lower(&program, &facts(&program), &Mapping::Rows(good), &tight).unwrap_err();
    assert_eq!(error.rule, Rule::SharedLimit);
}

/// A kernel that leaves out one element is noticed.
#[test]
fn a_mutant_fails() {
    let program = program("row_sum", 129, DType::F32, true);
    let launch = launch(&program, &[("rows", 2), ("ldx", 129)], 2, 3);
    let kernels = lowered(&program, mapping(32, 1, 4)).unwrap();
    let expected = tilewright_ir::interp::magnitude(&program, &launch.bindings()).unwrap();
    let text = tilewright_kernel::text::print(&kernels.launches[0]);
    let run = |text: &str| {
        let kernel = tilewright_kernel::text::parse(text).unwrap();
        let (buffers, _) = simulate(&program, &kernel, &launch, &Default::default()).unwrap();
        compare(&program, &expected[0], &buffers["y"], Tolerance::rows(129, DType::F32))
    };
    assert_eq!(run(&text), Ok(()));
    // The tail has one element, which the mutant's accumulator leaves as it was.
    let line = text.lines().find(|line| line.contains("select")).unwrap();
    let [_, new, old] = line.split(", ").collect::<Vec<_>>()[..] else { panic!("{line}") };
    let mutant = text.replace(&format!("{new}, {old}"), &format!("{old}, {old}"));
    assert_ne!(text, mutant);
    assert!(run(&mutant).is_err());
}
