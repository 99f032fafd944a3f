//! The portable path: bit for bit what the simulator computes for rows, within the bound of the
//! oracle for products; errors instead of wrong addresses.

#[allow(dead_code)]
#[path = "../../kernel/tests/lower/common.rs"]
mod oracle;

use oracle::{Launch, Tolerance, compare, launch, simulate};
use tilewright_cpu::portable::Portable;
use tilewright_cpu::{CpuDevice, CpuError, CpuOptions};
use tilewright_ir::analysis::facts;
use tilewright_ir::entity::Id;
use tilewright_ir::ops::{GemmSpec, OpRequest, ShapeForm, Trans, catalog, find, gemm};
use tilewright_ir::{DType, Program, interp};
use tilewright_kernel::kernel::{ArgKind, ArgSource, Elem, Kernel};
use tilewright_kernel::lower::{Options, lower, lower_any};
use tilewright_kernel::sim::{LaneOrder, Order, SimOptions};
use tilewright_kernel::text::parse;
use tilewright_plan::mapping::{CpuIsa, CpuMatrixMapping, Mapping, RowMapping};
use tilewright_runtime::ArgValue;

/// Elements of a buffer in memory.
fn pack(dtype: DType, data: &[f64]) -> Vec<u8> {
    let bytes = data.iter().flat_map(|&x| match dtype {
        DType::F64 => x.to_le_bytes().to_vec(),
        DType::F32 => (x as f32).to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f64(x).to_le_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f64(x).to_le_bytes().to_vec(),
        DType::I32 | DType::Bool => (x as i32).to_le_bytes().to_vec(),
    });
    bytes.collect()
}

fn unpack(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let element = |c: &[u8]| match dtype {
        DType::F64 => f64::from_le_bytes(c.try_into().unwrap()),
        DType::F32 => f64::from(f32::from_le_bytes(c.try_into().unwrap())),
        DType::F16 => half::f16::from_le_bytes(c.try_into().unwrap()).to_f64(),
        DType::BF16 => half::bf16::from_le_bytes(c.try_into().unwrap()).to_f64(),
        DType::I32 | DType::Bool => f64::from(i32::from_le_bytes(c.try_into().unwrap())),
    };
    bytes.chunks_exact(dtype.bytes() as usize).map(element).collect()
}

fn buffer(memory: &mut [u8]) -> ArgValue {
    ArgValue::Buffer { ptr: memory.as_mut_ptr(), bytes: memory.len() }
}

/// Runs all groups of a lowered kernel; gives the tensors' elements in the order of arguments.
fn portable(program: &Program, kernel: &Kernel, launch: &Launch) -> Vec<(String, Vec<f64>)> {
    let layouts = interp::layouts(program, &launch.dims).unwrap();
    let mut memory: Vec<Vec<u8>> = Vec::new();
    let mut args = Vec::new();
    for (_, arg) in kernel.args.iter() {
        let mut bytes = Vec::new();
        args.push(match (arg.source, arg.kind) {
            (ArgSource::Tensor(id), _) => {
                let tensor = &program.tensors[id];
                let fill = if tensor.dtype.is_float() { f64::NAN } else { 0.0 };
                let span = layouts[id.index()].span() as usize;
                let data = launch.tensors.get(&tensor.name).cloned();
                bytes = pack(tensor.dtype, &data.unwrap_or_else(|| vec![fill; span]));
                buffer(&mut bytes)
            }
            (ArgSource::Scalar(id), _) => {
                let scalar = &program.scalars[id];
                let value = launch.scalars[&scalar.name];
                match scalar.dtype.is_float() {
                    true => ArgValue::Float(value),
                    false => ArgValue::Index(value as i64),
                }
            }
            (ArgSource::Dim(id), ArgKind::Number(Elem::Index)) => {
                ArgValue::Index(launch.dims[&program.dims[id].name] as i64)
            }
            other => panic!("argument {other:?}"),
        });
        memory.push(bytes);
    }
    let groups = kernel.grid.iter().map(|dim| {
        let size = match dim.size {
            tilewright_kernel::kernel::Size::Const(n) => n,
            tilewright_kernel::kernel::Size::Arg(id) => match args[id.index()] {
                ArgValue::Index(n) => n as u64,
                other => panic!("{other:?} is no size"),
            },
        };
        size.div_ceil(dim.step)
    });
    let groups = groups.product();
    let compiled = Portable::new(kernel).unwrap_or_else(|e| panic!("{e}\n{kernel}"));
    // SAFETY: the buffers live on and nobody else uses them.
    let run = unsafe { compiled.run_groups(&args, 0..groups) };
    run.unwrap_or_else(|e| panic!("{e}\n{kernel}"));
    let mut tensors = Vec::new();
    for ((_, arg), bytes) in kernel.args.iter().zip(&memory) {
        if let ArgSource::Tensor(id) = arg.source {
            let tensor = &program.tensors[id];
            tensors.push((tensor.name.clone(), unpack(tensor.dtype, bytes)));
        }
    }
    tensors
}

fn same_as_the_simulator(program: &Program, kernel: &Kernel, launch: &Launch, context: &str) {
    let order = if kernel.subgroups == 1 { LaneOrder::Lockstep } else { LaneOrder::Independent };
    let options = SimOptions { order: Order::Forward, lanes: order, ..SimOptions::default() };
    let (want, _) = simulate(program, kernel, launch, &options)
        .unwrap_or_else(|e| panic!("{context}: {e}\n{kernel}"));
    for (name, found) in portable(program, kernel, launch) {
        for (i, (x, y)) in found.iter().zip(&want[&name]).enumerate() {
            let same = x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
            assert!(same, "{context}: {name}[{i}] is {x:e}, simulated {y:e}\n{kernel}");
        }
    }
}

fn row_program(op: &str, columns: u64, dtype: DType) -> Program {
    let mut program = find(op).unwrap().build(&OpRequest::generic(dtype)).unwrap();
    program.bind("cols", columns).unwrap();
    program
}

fn row_launch(program: &Program, rows: u64, columns: u64, seed: u64) -> Launch {
    let size = |name: &str| if name == "rows" { rows } else { columns };
    let sizes: Vec<(&str, u64)> =
        program.dims.iter().map(|(_, d)| (d.name.as_str(), size(&d.name))).collect();
    launch(program, &sizes, 0, seed)
}

#[test]
fn every_row_op_is_the_simulators_bit_for_bit() {
    let base = RowMapping {
        lanes: 4,
        subgroups: 1,
        vector: 1,
        unroll: 1,
        accumulators: 1,
        pack: 1,
        cache: false,
        fuse: true,
        ..RowMapping::ONE
    };
    let mappings = [
        base,
        RowMapping { lanes: 16, unroll: 4, accumulators: 2, cache: true, ..base },
        RowMapping { lanes: 32, subgroups: 3, vector: 4, fuse: false, ..base },
        RowMapping { lanes: 32, vector: 2, pack: 2, fuse: false, ..base },
    ];
    for op in catalog().iter().filter(|op| op.form == ShapeForm::Rows).map(|op| op.name) {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            for m in mappings {
                for columns in [0, 1, 5, 33, 131] {
                    let program = row_program(op, columns, dtype);
                    let context = format!("{op} {dtype} {columns} columns, {m:?}");
                    let options = Options::default();
                    let lowered = lower(&program, &facts(&program), &Mapping::Rows(m), &options);
                    let lowered = lowered.unwrap_or_else(|e| panic!("{context}: {e}"));
                    let launch = row_launch(&program, 3, columns, columns + 1);
                    same_as_the_simulator(&program, &lowered.launches[0], &launch, &context);
                }
            }
        }
    }
}

#[test]
fn programs_without_a_plan_run_too() {
    for op in catalog().iter().filter(|op| op.form == ShapeForm::Rows).map(|op| op.name) {
        let program = row_program(op, 19, DType::F32);
        let lowered =
            lower_any(&program, 4, &Options::default()).unwrap_or_else(|e| panic!("{op}: {e}"));
        let launch = row_launch(&program, 2, 19, 7);
        same_as_the_simulator(&program, &lowered.launches[0], &launch, op);
    }
}

fn product_mapping(lanes: u32) -> CpuMatrixMapping {
    CpuMatrixMapping {
        lanes,
        group: [12, u64::from(4 * lanes)],
        tile: [6, 2],
        depth: 16,
        columns: u64::from(2 * lanes),
        pack_a: true,
        pack_b: true,
        stream: false,
        threads: 1,
    }
}

#[test]
fn products_are_within_the_bound() {
    for trans in Trans::ALL {
        for (dtype, lanes) in [(DType::F32, 4), (DType::F64, 2), (DType::F16, 8)] {
            for (m, n, k) in [(1, 1, 1), (6, 16, 16), (13, 37, 41), (25, 9, 0)] {
                let mut program = gemm(&GemmSpec { trans, ..GemmSpec::plain(dtype) }).unwrap();
                for (name, size) in [("m", m), ("n", n), ("k", k)] {
                    program.bind(name, size).unwrap();
                }
                let mapping = Mapping::CpuMatrix(product_mapping(lanes));
                let context = format!("{trans:?} {dtype} {m}×{n}×{k}");
                let options = Options::default();
                let lowered = lower(&program, &facts(&program), &mapping, &options);
                let lowered = lowered.unwrap_or_else(|e| panic!("{context}: {e}"));
                let launch = launch(&program, &[], 0, m + n + k);
                let expected = interp::magnitude(&program, &launch.bindings()).unwrap();
                let found = portable(&program, &lowered.launches[0], &launch);
                for output in &expected {
                    let (_, data) = found.iter().find(|(name, _)| *name == output.name).unwrap();
                    compare(&program, output, data, Tolerance::matrix(k, dtype))
                        .unwrap_or_else(|e| panic!("{context}: {e}"));
                }
            }
        }
    }
}

const NEIGHBOURS: &str = "
kernel neighbours lanes 4 subgroups 2 {
  grid n step 1
  arg n: index
  arg x: buffer f32 in align 4
  arg y: buffer f32 out align 4
  arg count: buffer i32 inout align 4
  shared part: f32[2, 4] padded 1
  private keep: f32[2]
  barrier all: group
  %c0: index@grid = const 0
  %c1: index@grid = const 1
  %c3: index@grid = const 3
  %c4: index@grid = const 4
  %c8: index@grid = const 8
  %one: i32@grid = const 1
  %g: index@group = group_id 0
  %s: index@subgroup = subgroup_id
  %row: index@group = mul %g, %c8
  %off: index@subgroup = mul %s, %c4
  %b: index@subgroup = add %row, %off
  %x: f32@lane = load x[%b + lane*1]
  store part[%off + lane*1], %x
  store keep[%c1], %x
  barrier all
  %other: index@subgroup = sub %c4, %off
  %end: index@subgroup = add %other, %c3
  %v: f32@lane = load part[%end + lane*-1]
  %k: f32@lane = load keep[%c1]
  %d: f32@lane = sub %v, %k
  store y[%b + lane*1], %d
  %old: i32@lane = atomic add count[%c0], %one relaxed grid
}
";

#[test]
fn subgroups_meet_at_barriers_and_threads_at_atomics() {
    let device =
        CpuDevice::new(CpuOptions { isa: Some(CpuIsa::Portable), ..CpuOptions::default() })
            .unwrap();
    let kernel = device.compile_kernel(&parse(NEIGHBOURS).unwrap()).unwrap();
    let x: Vec<f64> = (0..80).map(f64::from).collect();
    let (mut a, mut y) = (pack(DType::F32, &x), pack(DType::F32, &[f64::NAN; 80]));
    let mut count = pack(DType::I32, &[0.0]);
    let args = [ArgValue::Index(10), buffer(&mut a), buffer(&mut y), buffer(&mut count)];
    // SAFETY: the buffers live on and nobody else uses them.
    unsafe { kernel.launch(device.pool(), &args) }.unwrap();
    let want: Vec<f64> = (0..80).map(|i| f64::from(i / 8 * 8 + 7 - i % 8 - i)).collect();
    assert_eq!(unpack(DType::F32, &y), want);
    assert_eq!(unpack(DType::I32, &count), [80.0]);
}

fn run(text: &str, args: &[ArgValue]) -> Result<(), CpuError> {
    // SAFETY: the callers' buffers live on and nobody else uses them.
    unsafe { Portable::new(&parse(text).unwrap())?.run_groups(args, 0..1) }
}

#[test]
fn wrong_addresses_and_stuck_barriers_are_errors() {
    let head = "kernel k lanes 4 subgroups 2 {\n  arg x: buffer f32 inout align 4\n  \
                shared sh: f32[1, 4]\n  private p: f32[1]\n  barrier all: group\n  \
                %c1: index@grid = const 1\n  %s: index@subgroup = subgroup_id\n  \
                %f: f32@grid = const 0.5\n  %lead: bool@subgroup = lt %s, %c1\n";
    let cases = [
        ("%v: f32@lane = load x[%c1 + lane*1]", "element 4 is outside `x`"),
        ("%n: index@grid = const -1\n%v: f32@lane = load x[%n]", "element -1 is outside `x`"),
        ("store sh[%c1 + lane*1], %f", "element 4 is outside `sh`"),
        ("%v: f32@lane = load p[%c1]", "element 1 is outside `p`"),
        ("if %lead {\n barrier all\n}", "not all participants get to the barrier"),
        ("%n: index@grid = const 9223372036854775807\nstore x[%n + lane*9], %f", "is outside `x`"),
    ];
    for (body, message) in cases {
        let mut x = pack(DType::F32, &[1.0; 4]);
        let error = run(&format!("{head}{body}\n}}\n"), &[buffer(&mut x)]).unwrap_err();
        assert!(error.to_string().contains(message), "{body}: {error}");
        assert!(matches!(error, CpuError::Run { .. }), "{body}: {error}");
    }
    let error = run(&format!("{head}}}\n"), &[ArgValue::Index(1)]).unwrap_err();
    assert!(error.to_string().contains("argument `x` is of another kind"), "{error}");
    let error = run(&format!("{head}}}\n"), &[]).unwrap_err();
    assert!(error.to_string().contains("0 arguments for 1"), "{error}");
}

#[test]
fn asynchronous_work_is_refused() {
    let ring = include_str!("../../../tests/filetests/kernel/tma_wgmma.kernel");
    let error = Portable::new(&parse(ring).unwrap()).unwrap_err();
    assert!(matches!(error, CpuError::Unsupported(_)), "{error}");
}
