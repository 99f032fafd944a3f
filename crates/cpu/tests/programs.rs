//! The op library through lowering and generated code, against the float64 interpreter, on both
//! instruction sets.

#![cfg(target_arch = "x86_64")]

mod common;
#[allow(dead_code)]
#[path = "../../kernel/tests/lower/common.rs"]
mod oracle;

use common::{Data, isas};
use oracle::{Launch, Random, Tolerance, compare, launch};
use tilewright_ir::DType;
use tilewright_ir::Program;
use tilewright_ir::analysis::facts;
use tilewright_ir::entity::Id;
use tilewright_ir::interp;
use tilewright_ir::ops::{OpRequest, ShapeForm, catalog, find};
use tilewright_kernel::kernel::{ArgKind, ArgSource, Elem, Kernel};
use tilewright_kernel::lower::{Options, Pack, SUM_BLOCK, Sums, lower, lower_any};
use tilewright_plan::mapping::{CpuIsa, Mapping, RowMapping};

fn row_ops() -> Vec<&'static str> {
    catalog().iter().filter(|op| op.form == ShapeForm::Rows).map(|op| op.name).collect()
}

fn program(op: &str, columns: Option<u64>, dtype: DType, strided: bool) -> Program {
    let request = OpRequest { strided, ..OpRequest::generic(dtype) };
    let mut program = find(op).unwrap().build(&request).unwrap();
    if let Some(columns) = columns {
        program.bind("cols", columns).unwrap();
    }
    program
}

fn sizes(program: &Program, rows: u64, columns: u64) -> Vec<(String, u64)> {
    let size = |name: &str| if name == "rows" { rows } else { columns };
    program.dims.iter().map(|(_, d)| (d.name.clone(), size(&d.name))).collect()
}

fn mapping(isa: CpuIsa, bytes: u64) -> RowMapping {
    RowMapping {
        lanes: (isa.vector_bytes() / bytes) as u32,
        subgroups: 1,
        vector: 1,
        unroll: 1,
        accumulators: 1,
        pack: 1,
        cache: false,
        fuse: true,
        ..RowMapping::ONE
    }
}

/// Runs a kernel with a launch's data and compares every output with the interpreter.
fn check(
    program: &Program,
    kernel: &Kernel,
    isa: CpuIsa,
    launch: &Launch,
    tolerance: Tolerance,
    context: &str,
) {
    let layouts = interp::layouts(program, &launch.dims).unwrap();
    let mut args = Vec::new();
    for (_, arg) in kernel.args.iter() {
        args.push(match (arg.source, arg.kind) {
            (ArgSource::Tensor(id), _) => {
                let tensor = &program.tensors[id];
                match launch.tensors.get(&tensor.name) {
                    Some(data) => Data::Buffer(tensor.dtype, data.clone()),
                    None => Data::out(tensor.dtype, layouts[id.index()].span() as usize),
                }
            }
            (ArgSource::Scalar(id), _) => {
                let scalar = &program.scalars[id];
                Data::Number(scalar.dtype, launch.scalars[&scalar.name])
            }
            (ArgSource::Dim(id), ArgKind::Number(Elem::Index)) => {
                Data::Index(launch.dims[&program.dims[id].name] as i64)
            }
            other => panic!("argument {other:?}"),
        });
    }
    let before = args.clone();
    let expected = interp::magnitude(program, &launch.bindings()).unwrap();
    let plain = common::run(kernel, isa, &args);
    let streaming = common::run_streaming(kernel, isa, &args);
    for (after, context) in
        [(plain, context.to_string()), (streaming, format!("{context}, streaming"))]
    {
        compare_all(program, kernel, isa, (&before, &after), &expected, tolerance, &context);
    }
}

fn compare_all(
    program: &Program,
    kernel: &Kernel,
    isa: CpuIsa,
    (before, after): (&[Data], &[Data]),
    expected: &[interp::Output],
    tolerance: Tolerance,
    context: &str,
) {
    for (((_, arg), value), old) in kernel.args.iter().zip(after).zip(before) {
        let ArgSource::Tensor(id) = arg.source else { continue };
        match expected.iter().find(|o| o.tensor == id) {
            Some(output) => {
                if let Err(e) = compare(program, output, value.data(), tolerance) {
                    panic!("{context} on {isa:?}: {e}\n{}", tilewright_kernel::text::print(kernel));
                }
                // Gaps between strided rows stay as they were.
                let written: std::collections::HashSet<usize> = output.layout.offsets().collect();
                for (at, (x, y)) in value.data().iter().zip(old.data()).enumerate() {
                    let kept = x == y || (x.is_nan() && y.is_nan());
                    assert!(written.contains(&at) || kept, "{context}: wrote the gap at {at}");
                }
            }
            None => assert!(common::same(value.data(), old.data()), "{context}: wrote an input"),
        }
    }
}

fn rows(
    op: &str,
    rows: u64,
    columns: u64,
    dtype: DType,
    isa: CpuIsa,
    m: RowMapping,
    pad: Option<u64>,
) {
    let program = program(op, Some(columns), dtype, pad.is_some());
    let context = format!("{op} {rows}x{columns} {dtype} {m:?} pad {pad:?}");
    let options = Options { pack: Pack::InTurn, sums: Sums::Blocks, ..Options::default() };
    let lowered = lower(&program, &facts(&program), &Mapping::Rows(m), &options)
        .unwrap_or_else(|e| panic!("{context}: {e}"));
    let sizes = sizes(&program, rows, columns);
    let dims: Vec<(&str, u64)> = sizes.iter().map(|(n, s)| (n.as_str(), *s)).collect();
    let launch = launch(&program, &dims, pad.unwrap_or(0), rows * 7919 + columns);
    let tolerance = Tolerance::rows(columns, dtype);
    check(&program, &lowered.launches[0], isa, &launch, tolerance, &context);
}

#[test]
fn every_row_op_over_many_widths() {
    for isa in isas() {
        for op in row_ops() {
            for (unroll, accumulators, cache, fuse) in
                [(1, 1, false, true), (4, 4, true, true), (4, 2, false, false), (8, 1, true, false)]
            {
                let m = RowMapping { unroll, accumulators, cache, fuse, ..mapping(isa, 4) };
                for n in [0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 64, 67, 131, 769, 1537] {
                    rows(op, 3, n, DType::F32, isa, m, None);
                }
            }
        }
    }
}

#[test]
fn every_row_op_in_every_dtype() {
    for isa in isas() {
        for op in row_ops() {
            for dtype in [DType::F64, DType::F16, DType::BF16] {
                for bytes in [4, 8] {
                    for (unroll, accumulators) in [(1, 1), (4, 2)] {
                        let m = RowMapping { unroll, accumulators, ..mapping(isa, bytes) };
                        for n in [0, 1, 7, 8, 17, 31, 129, 261] {
                            rows(op, 2, n, dtype, isa, m, None);
                        }
                    }
                }
            }
        }
    }
}

/// Rows of blocks, of blocks of blocks, and with all that can be left after them.
#[test]
fn long_rows_are_summed_in_blocks() {
    for isa in isas() {
        for op in row_ops() {
            for (unroll, accumulators) in [(1, 1), (4, 3), (8, 1)] {
                let m = RowMapping { lanes: 4, unroll, accumulators, ..mapping(isa, 4) };
                for trips in [127, 128, 129, 200] {
                    let n = u64::from(4 * accumulators) * trips;
                    for n in [n, n + 5] {
                        rows(op, 2, n, DType::F32, isa, m, None);
                    }
                }
            }
            let m = RowMapping { lanes: 4, ..mapping(isa, 4) };
            rows(op, 1, 4 * (2 * SUM_BLOCK * SUM_BLOCK + SUM_BLOCK + 1), DType::F32, isa, m, None);
        }
    }
}

/// Equal terms are rounded the same way each time: one after another, 8192 of them are off by far
/// more than the tolerance.
#[test]
fn a_sum_of_many_equal_terms_is_accurate() {
    for isa in isas() {
        let m = RowMapping { lanes: 8, ..mapping(isa, 4) };
        let program = program("rmsnorm", Some(1 << 16), DType::F32, false);
        let mut launch = launch(&program, &[("rows", 1), ("cols", 1 << 16)], 0, 1);
        launch.tensors.get_mut("x").unwrap().fill(f64::from(1.0_f32 / 3.0));
        let accepted = |sums: Sums| {
            let options = Options { pack: Pack::InTurn, sums, ..Options::default() };
            let mapping = Mapping::Rows(m);
            let lowered = lower(&program, &facts(&program), &mapping, &options).unwrap();
            let tolerance = Tolerance::rows(1 << 16, DType::F32);
            let kernel = &lowered.launches[0];
            let run = || check(&program, kernel, isa, &launch, tolerance, "equal terms");
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_ok()
        };
        assert!(!accepted(Sums::Running), "{isa:?}: the terms don't tell");
        assert!(accepted(Sums::Blocks), "{isa:?}");
    }
}

/// Tasks of several rows, the last of which may be short, in whole and half vectors.
#[test]
fn rows_of_a_task_run_in_turn() {
    for isa in isas() {
        let whole = mapping(isa, 4).lanes;
        for op in row_ops() {
            for lanes in [whole, (whole / 2).max(4)] {
                for (count, pack) in [(1, 1), (1, 4), (7, 4), (8, 4), (5, 5), (0, 3)] {
                    let m = RowMapping { lanes, pack, unroll: 2, ..mapping(isa, 4) };
                    for n in [1, 15, 32, 131] {
                        rows(op, count, n, DType::F32, isa, m, None);
                        rows(op, count, n, DType::F32, isa, m, Some(3));
                    }
                }
            }
        }
    }
}

#[test]
fn padded_rows() {
    for isa in isas() {
        for op in row_ops() {
            for pad in [1, 4, 16] {
                rows(op, 3, 45, DType::F32, isa, mapping(isa, 4), Some(pad));
                let m = RowMapping { unroll: 4, cache: true, ..mapping(isa, 4) };
                rows(op, 3, 161, DType::F32, isa, m, Some(pad));
            }
        }
    }
}

#[test]
fn random_row_mappings() {
    let mut random = Random(0x7117);
    let ops = row_ops();
    for _ in 0..300 {
        for isa in isas() {
            let op = random.pick(&ops);
            let unroll = random.pick(&[1, 2, 4, 8]);
            let m = RowMapping {
                lanes: random.pick(&[4, 8, 16]),
                vector: random.pick(&[1, 1, 1, 2, 4]),
                unroll,
                accumulators: 1 + random.below(unroll.into()) as u32,
                cache: random.below(2) == 0,
                fuse: random.below(2) == 0,
                pack: random.pick(&[1, 1, 2, 3, 7]),
                ..mapping(isa, 4)
            };
            let dtype = random.pick(&[DType::F32, DType::F64, DType::F16, DType::BF16]);
            let pad = if random.below(3) == 0 { Some(random.below(9)) } else { None };
            rows(op, random.below(6), random.below(600), dtype, isa, m, pad);
        }
    }
}

/// Programs without a mapping of their own, and any program by the general lowering.
#[test]
fn every_op_by_the_general_lowering() {
    for isa in isas() {
        for info in catalog() {
            let shape: Vec<u64> = match info.form {
                ShapeForm::Rows => vec![3, 21],
                ShapeForm::Matrix => vec![5, 19, 9],
                ShapeForm::BatchedMatrix => vec![2, 5, 19, 9],
            };
            for dtype in [DType::F32, DType::F16] {
                for lanes in [1, 8] {
                    let request = OpRequest::shaped(dtype, &shape);
                    let program = info.build(&request).unwrap();
                    let lowered = lower_any(&program, lanes, &Options::default()).unwrap();
                    let launch = launch(&program, &[], 0, 11);
                    let context = format!("{} {dtype}, {lanes} lanes", info.name);
                    let kernel = &lowered.launches[0];
                    check(&program, kernel, isa, &launch, Tolerance::rows(512, dtype), &context);
                }
            }
        }
    }
}
