//! The CPU device from outside: launches, errors, listings, ceilings.

#![cfg(target_arch = "x86_64")]

mod common;

use common::*;
use tilewright_cpu::{CpuDevice, CpuError, CpuOptions, Streaming};
use tilewright_ir::DType;
use tilewright_ir::program::{Access, MapOp};
use tilewright_kernel::builder::KernelBuilder;
use tilewright_kernel::kernel::*;
use tilewright_plan::mapping::CpuIsa;
use tilewright_runtime::{ArgValue, Device, RuntimeError};

fn device(threads: usize) -> CpuDevice {
    CpuDevice::new(CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap()
}

/// y[i] = x[i]·s + i over `n` elements, a group per 16.
fn affine(isa: CpuIsa) -> Kernel {
    let lanes = (isa.vector_bytes() / 4) as u32;
    let mut b = KernelBuilder::new("affine", lanes, 1);
    let x = b.buffer("x", DType::F32, Access::In, 4, ArgSource::Free);
    let y = b.buffer("y", DType::F32, Access::Out, 4, ArgSource::Free);
    let n = b.number("n", Elem::Index, ArgSource::Free);
    let s = b.number("s", Elem::Data(DType::F32), ArgSource::Free);
    let group = b.grid(Size::Arg(n), u64::from(lanes));
    let at = b.mul_int(group, i64::from(lanes));
    let (n, s, lane) = (b.arg(n), b.arg(s), b.lane());
    let left = b.sub(n, at);
    let guard = Some(Guard::count(left, 0.0));
    let v = b.load1(Place::strided(Memory::Global(x), at, 1), guard);
    let position = b.add(at, lane);
    let position = b.cast(position, Elem::Data(DType::I32));
    let position = b.cast(position, Elem::Data(DType::F32));
    let v = b.fma(v, s, position);
    b.store(Place::strided(Memory::Global(y), at, 1), &[v], guard);
    b.finish()
}

fn buffer(data: &mut [f32]) -> ArgValue {
    ArgValue::Buffer { ptr: data.as_mut_ptr().cast(), bytes: std::mem::size_of_val(data) }
}

fn affine_args(x: &mut [f32], y: &mut [f32]) -> [ArgValue; 4] {
    let n = x.len() as i64;
    [buffer(x), buffer(y), ArgValue::Index(n), ArgValue::Float(2.0)]
}

#[test]
fn launches_with_any_number_of_threads_and_sizes() {
    for threads in [1, 2, 5] {
        let device = device(threads);
        let exe = device.compile(&[affine(device.isa())]).unwrap();
        for n in [0, 1, 15, 16, 17, 1000, 100_003] {
            let mut x: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let mut y = vec![f32::NAN; n];
            let args = affine_args(&mut x, &mut y);
            // SAFETY: the buffers hold n elements.
            unsafe { exe.launch(&args) }.unwrap();
            assert!(y.iter().enumerate().all(|(i, y)| *y == 3.0 * i as f32), "{threads} {n}");
        }
    }
}

#[test]
fn several_kernels_run_in_order() {
    let device = device(2);
    let kernel = affine(device.isa());
    let exe = device.compile(&[kernel.clone(), kernel]).unwrap();
    let (mut x, mut y, mut z) = (vec![1.0; 40], vec![0.0; 40], vec![0.0; 40]);
    let mut args = affine_args(&mut x, &mut y).to_vec();
    args.extend(affine_args(&mut y, &mut z));
    // SAFETY: the buffers hold 40 elements each.
    unsafe { exe.launch(&args) }.unwrap();
    assert!(z.iter().enumerate().all(|(i, z)| *z == 2.0 * (2.0 + i as f32) + i as f32));
}

#[test]
fn wrong_arguments_are_errors_that_name_them() {
    let device = device(1);
    let exe = device.compile(&[affine(device.isa())]).unwrap();
    let (mut x, mut y) = (vec![1.0f32; 8], vec![0.0f32; 8]);
    let good = affine_args(&mut x, &mut y);
    let launch = |args: &[ArgValue]| {
        // SAFETY: nothing runs: every call here is refused.
        match unsafe { exe.launch(args) } {
            Err(RuntimeError::Argument { index, name, .. }) => (index, name),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(launch(&good[..3]), (3, "s".to_string()));
    assert_eq!(launch(&[good.as_slice(), &good[..1]].concat()).0, 4);
    assert_eq!(launch(&[good[2], good[1], good[2], good[3]]), (0, "x".to_string()));
    assert_eq!(launch(&[good[0], good[1], good[0], good[3]]), (2, "n".to_string()));
    assert_eq!(launch(&[good[0], good[1], good[3], good[3]]), (2, "n".to_string()));
    let negative = ArgValue::Index(-1);
    assert_eq!(launch(&[good[0], good[1], negative, good[3]]), (2, "n".to_string()));
    let ArgValue::Buffer { ptr, bytes } = good[0] else { panic!() };
    let odd = ArgValue::Buffer { ptr: ptr.wrapping_add(1), bytes };
    assert_eq!(launch(&[odd, good[1], good[2], good[3]]), (0, "x".to_string()));
}

#[test]
fn impossible_devices_are_errors() {
    for threads in [0, 1 << 20] {
        let options = CpuOptions { threads: Some(threads), ..CpuOptions::default() };
        assert!(matches!(CpuDevice::new(options), Err(CpuError::Threads { .. })));
    }
}

#[test]
fn what_has_no_code_is_refused_by_name() {
    let device = device(1);
    let refused = |kernel: Kernel| match device.compile(&[kernel]) {
        Err(RuntimeError::Unsupported { rule, failure }) => {
            assert_eq!(rule, "cpu-codegen");
            failure.detail
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("compiled"),
    };
    let mut b = KernelBuilder::new("wide", 32, 2);
    b.grid(Size::Const(1), 1);
    assert!(refused(b.finish()).contains("2 subgroups"));
    let mut b = KernelBuilder::new("lanes", 2, 1);
    b.grid(Size::Const(1), 1);
    assert!(refused(b.finish()).contains("2 lanes"));
    let mut b = single("swizzled", 16);
    let layout = Layout::Swizzled(Swizzle::B64);
    let shared = b.shared("tile", DType::F32, 8, 16, layout);
    let zero = b.int(0);
    let one = b.literal(1.0, DType::F32);
    b.store(Place::strided(Memory::Shared(shared), zero, 1), &[one], None);
    assert!(refused(b.finish()).contains("swizzled"));
    let mut b = single("half", 16);
    let x = input(&mut b, "x", DType::F16);
    let zero = b.int(0);
    let v = b.load1(Place::strided(x, zero, 1), None);
    let v = b.collective(Collective::ShuffleXor(1), v);
    let y = output(&mut b, "y", DType::F16);
    b.store(Place::strided(y, zero, 1), &[v], None);
    assert!(refused(b.finish()).contains("shuffle of 16-bit"));
}

#[test]
fn listings_show_statements_and_instructions() {
    for isa in isas() {
        let options = CpuOptions { isa: Some(isa), threads: Some(1), ..CpuOptions::default() };
        let device = CpuDevice::new(options).unwrap();
        let exe = device.compile(&[affine(isa)]).unwrap();
        let text = exe.disassembly();
        let register = if isa == CpuIsa::Avx512 { "zmm" } else { "ymm" };
        for part in ["kernel affine", "= load x[", "vfmadd", register, "store y[", "ret"] {
            assert!(text.contains(part), "{isa:?}: no {part:?} in\n{text}");
        }
        let load = text.find("= load x[").unwrap();
        assert!(load < text.find("vfmadd").unwrap());
        assert!(!text.contains("(bad)"));
        let report = exe.report();
        assert!(report.code_bytes > 50 && report.spills == 0 && report.scratch_bytes == 0);
    }
}

/// More values at once than there are registers of any kind: vectors, masks, indices.
#[test]
fn values_beyond_the_registers_survive_in_memory() {
    let count = 40i64;
    for isa in isas() {
        let lanes = (isa.vector_bytes() / 4) as u32;
        let mut b = KernelBuilder::new("pressure", lanes, 1);
        b.grid(Size::Const(1), 1);
        let (x, y) = (input(&mut b, "x", DType::F32), output(&mut b, "y", DType::F32));
        let n = b.number("n", Elem::Index, ArgSource::Free);
        let n = b.arg(n);
        let mut vectors = Vec::new();
        let mut masks = Vec::new();
        let mut indices = Vec::new();
        for i in 0..count {
            let base = b.int(i * i64::from(lanes));
            let v = b.load1(Place::strided(x, base, 1), None);
            let w = b.map(MapOp::Mul, &[v, v]);
            masks.push(b.compare(MapOp::Lt, v, w));
            vectors.push(w);
            let (seven, small) = (b.int(7), b.int(i + 1));
            // Not affine, so that each needs a register.
            let q = b.div(n, small);
            indices.push(b.min(q, seven));
        }
        // A call in the middle: everything lives across it.
        let m = b.map(MapOp::Mod, &[vectors[0], vectors[1]]);
        for i in 0..count as usize {
            let other = (i * 7 + 3) % count as usize;
            let v = b.map(MapOp::Select, &[masks[other], vectors[i], m]);
            let at = b.add_int(indices[i], i as i64 * i64::from(lanes + 8));
            b.store(Place::strided(y, at, 1), &[v], None);
        }
        let kernel = b.finish();
        let len = count as usize * (lanes as usize + 8);
        let data: Vec<f64> = (0..count * i64::from(lanes))
            .map(|i| f64::from(((i * 37 % 101) as f32 - 50.0) / 16.0))
            .collect();
        let n = 60;
        let args =
            [Data::Buffer(DType::F32, data.clone()), Data::out(DType::F32, len), Data::Index(n)];
        let found = run(&kernel, isa, &args);
        let mut expected = vec![f64::NAN; len];
        let square = |i: usize, l: usize| data[i * lanes as usize + l].powi(2);
        for i in 0..count as usize {
            let other = (i * 7 + 3) % count as usize;
            let at = i * (lanes as usize + 8) + (n / (i as i64 + 1)).min(7) as usize;
            for l in 0..lanes as usize {
                let v = data[other * lanes as usize + l];
                let m = square(0, l) % square(1, l);
                expected[at + l] = if v < v * v { square(i, l) } else { m };
            }
        }
        assert!(same(found[1].data(), &expected), "{isa:?}");
        let options = CpuOptions { isa: Some(isa), threads: Some(1), ..CpuOptions::default() };
        let device = CpuDevice::new(options).unwrap();
        let report = device.compile_kernel(&kernel).unwrap().report();
        assert!(report.spills > 0, "{isa:?}: {report:?}");
    }
}

#[test]
fn outputs_past_the_caches_are_the_same() {
    let isa = tilewright_cpu::host::best_isa();
    if isa == CpuIsa::Portable {
        return;
    }
    let lanes = (isa.vector_bytes() / 4) as u32;
    let mut b = KernelBuilder::new("double", lanes, 1);
    let (rows, columns) = (50u64, 333i64);
    let row = b.grid(Size::Const(rows), 1);
    let x = b.buffer("x", DType::F32, Access::In, 4, ArgSource::Free);
    let y = b.buffer("y", DType::F32, Access::Out, 4, ArgSource::Free);
    let stride = b.number("stride", Elem::Index, ArgSource::Free);
    let stride = b.arg(stride);
    let base = b.mul(row, stride);
    let (lo, hi) = (b.int(0), b.int(columns / i64::from(lanes) * i64::from(lanes)));
    let open = b.begin_for(lo, hi, u64::from(lanes), 3, &[]);
    let at = b.add(base, open.index());
    let v = b.load1(Place::strided(Memory::Global(x), at, 1), None);
    let v = b.map(MapOp::Add, &[v, v]);
    b.store(Place::strided(Memory::Global(y), at, 1), &[v], None);
    b.end_for(open, &[]);
    let kernel = b.finish();
    for streaming in [Streaming::Always, Streaming::Never, Streaming::Auto] {
        let options = CpuOptions { threads: Some(2), streaming, ..CpuOptions::default() };
        let device = CpuDevice::new(options).unwrap();
        let compiled = device.compile(std::slice::from_ref(&kernel)).unwrap();
        let listed = compiled.disassembly().contains("vmovntps");
        assert_eq!(listed, streaming == Streaming::Always);
        // Aligned rows, and rows that are aligned by turns.
        for stride in [336usize, 333] {
            let len = stride * rows as usize;
            let mut x: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let mut y = vec![-1.0f32; len + 16];
            let skip = y.as_ptr().align_offset(64);
            // A claim of more bytes than the caches hold asks for the streaming version.
            let ArgValue::Buffer { ptr, .. } = buffer(&mut x) else { panic!() };
            let x_arg = ArgValue::Buffer { ptr, bytes: 1 << 40 };
            let args = [x_arg, buffer(&mut y[skip..skip + len]), ArgValue::Index(stride as i64)];
            // SAFETY: the kernel touches less than `len` elements of each buffer.
            unsafe { compiled.launch(&args) }.unwrap();
            let whole = columns as usize / lanes as usize * lanes as usize;
            for i in 0..len {
                let expected = if i % stride < whole { 2.0 * i as f32 } else { -1.0 };
                assert_eq!(y[skip + i], expected, "{streaming:?} stride {stride} element {i}");
            }
        }
    }
}

#[test]
fn ceilings_are_measured_and_kept() {
    let device = device(2);
    for dtype in [DType::F32, DType::F64] {
        let first = device.roofline(dtype, 1).unwrap();
        assert!(first.flops_per_second > 1e8 && first.bytes_per_second > 1e7);
        assert_eq!(device.roofline(dtype, 1), Some(first));
    }
}

#[test]
fn perf_maps_name_the_functions() {
    let device =
        CpuDevice::new(CpuOptions { threads: Some(1), perf_map: true, ..CpuOptions::default() })
            .unwrap();
    device.compile_kernel(&affine(device.isa())).unwrap();
    let path = std::env::temp_dir().join(format!("perf-{}.map", std::process::id()));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(text.lines().any(|l| l.ends_with("tilewright::affine")), "{text}");
}
