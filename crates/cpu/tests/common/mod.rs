//! Running hand-built kernels on both instruction sets.
#![allow(dead_code)]

use tilewright_cpu::codegen::{self, Options};
use tilewright_cpu::exec::ExecutableCode;
use tilewright_ir::DType;
use tilewright_ir::program::Access;
use tilewright_kernel::builder::KernelBuilder;
use tilewright_kernel::kernel::*;
use tilewright_plan::mapping::CpuIsa;

/// A launch argument.
#[derive(Clone, PartialEq, Debug)]
pub enum Data {
    Buffer(DType, Vec<f64>),
    Index(i64),
    Number(DType, f64),
}

impl Data {
    pub fn f32(data: Vec<f32>) -> Data {
        Data::Buffer(DType::F32, data.into_iter().map(f64::from).collect())
    }

    pub fn out(dtype: DType, len: usize) -> Data {
        Data::Buffer(dtype, vec![if dtype.is_float() { f64::NAN } else { 77.0 }; len])
    }

    pub fn data(&self) -> &[f64] {
        match self {
            Data::Buffer(_, data) => data,
            _ => &[],
        }
    }
}

/// Bytes of elements.
pub fn pack(dtype: DType, data: &[f64]) -> Vec<u8> {
    data.iter()
        .flat_map(|x| match dtype {
            DType::F64 => x.to_le_bytes().to_vec(),
            DType::F32 => (*x as f32).to_le_bytes().to_vec(),
            DType::F16 => half::f16::from_f64(*x).to_le_bytes().to_vec(),
            DType::BF16 => half::bf16::from_f64(*x).to_le_bytes().to_vec(),
            _ => (*x as i32).to_le_bytes().to_vec(),
        })
        .collect()
}

/// Elements of bytes.
pub fn unpack(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    bytes
        .chunks_exact(dtype.bytes() as usize)
        .map(|c| match dtype {
            DType::F64 => f64::from_le_bytes(c.try_into().unwrap()),
            DType::F32 => f64::from(f32::from_le_bytes(c.try_into().unwrap())),
            DType::F16 => half::f16::from_le_bytes(c.try_into().unwrap()).to_f64(),
            DType::BF16 => half::bf16::from_le_bytes(c.try_into().unwrap()).to_f64(),
            _ => f64::from(i32::from_le_bytes(c.try_into().unwrap())),
        })
        .collect()
}

/// Number of groups of a kernel for its arguments.
pub fn groups(kernel: &Kernel, args: &[Data]) -> u64 {
    kernel
        .grid
        .iter()
        .map(|dim| {
            let size = match dim.size {
                Size::Const(n) => n,
                Size::Arg(arg) => {
                    use tilewright_ir::entity::Id;
                    match &args[arg.index()] {
                        Data::Index(n) => *n as u64,
                        other => panic!("{other:?} is no size"),
                    }
                }
            };
            size.div_ceil(dim.step)
        })
        .product()
}

const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xa5;

/// Which instruction sets this machine can run.
pub fn isas() -> Vec<CpuIsa> {
    let mut all = Vec::new();
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        all.push(CpuIsa::Avx2);
    }
    if is_x86_feature_detected!("avx512f") {
        all.push(CpuIsa::Avx512);
    }
    assert!(!all.is_empty(), "the tests need AVX2");
    all
}

/// Compiles and runs; buffers stand between guard bytes that must survive.
pub fn run(kernel: &Kernel, isa: CpuIsa, args: &[Data]) -> Vec<Data> {
    let total = groups(kernel, args);
    run_groups(kernel, isa, args, 0..total)
}

/// The same with stores past the caches.
pub fn run_streaming(kernel: &Kernel, isa: CpuIsa, args: &[Data]) -> Vec<Data> {
    let total = groups(kernel, args);
    run_with(kernel, Options { isa, streaming_stores: true }, args, 0..total)
}

/// The same for some groups only.
pub fn run_groups(
    kernel: &Kernel,
    isa: CpuIsa,
    args: &[Data],
    range: std::ops::Range<u64>,
) -> Vec<Data> {
    run_with(kernel, Options { isa, streaming_stores: false }, args, range)
}

fn run_with(
    kernel: &Kernel,
    options: Options,
    args: &[Data],
    range: std::ops::Range<u64>,
) -> Vec<Data> {
    let code = codegen::compile(kernel, options).unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
    let exec = ExecutableCode::new(&code.blob.bytes, code.blob.entry).unwrap();
    let mut memory: Vec<Vec<u64>> = Vec::new();
    let mut words: Vec<u64> = Vec::new();
    for arg in args {
        match arg {
            Data::Buffer(dtype, data) => {
                let bytes = pack(*dtype, data);
                let mut all = vec![GUARD_BYTE; GUARD];
                all.extend(&bytes);
                all.resize(all.len().next_multiple_of(64) + GUARD, GUARD_BYTE);
                // 64-byte alignment inside an over-long vector of words.
                let mut store = vec![0u64; all.len() / 8 + 8];
                let skip = store.as_ptr().align_offset(64);
                let start = store.as_mut_ptr().wrapping_add(skip).cast::<u8>();
                // SAFETY: `store` has room for `all` after at most 8 words.
                unsafe { std::ptr::copy_nonoverlapping(all.as_ptr(), start, all.len()) };
                words.push(start.wrapping_add(GUARD) as u64);
                memory.push(store);
            }
            Data::Index(n) => words.push(*n as u64),
            Data::Number(dtype, x) => {
                let mut bytes = pack(*dtype, &[*x]);
                bytes.resize(8, 0);
                words.push(u64::from_le_bytes(bytes.try_into().unwrap()));
            }
        }
    }
    let mut scratch = vec![0u64; code.scratch_bytes as usize / 8 + 16];
    let skip = scratch.as_ptr().align_offset(64);
    // SAFETY: the code was generated for these arguments; buffers are large enough (the guard
    // bytes are checked below).
    unsafe {
        let scratch = scratch.as_mut_ptr().wrapping_add(skip).cast::<u8>();
        exec.entry()(words.as_ptr(), range.start, range.end, scratch);
    }
    let mut out = Vec::new();
    for (arg, word) in args.iter().zip(&words) {
        out.push(match arg {
            Data::Buffer(dtype, data) => {
                let len = data.len() * dtype.bytes() as usize;
                let start = (*word as usize - GUARD) as *const u8;
                // SAFETY: `memory` still holds the buffers.
                let all = unsafe { std::slice::from_raw_parts(start, len + 2 * GUARD) };
                let (before, rest) = all.split_at(GUARD);
                let (bytes, after) = rest.split_at(len);
                assert!(before.iter().all(|b| *b == GUARD_BYTE), "{}: wrote before", kernel.name);
                assert!(after.iter().all(|b| *b == GUARD_BYTE), "{}: wrote after", kernel.name);
                Data::Buffer(*dtype, unpack(*dtype, bytes))
            }
            other => other.clone(),
        });
    }
    drop(memory);
    out
}

/// A builder with `lanes` lanes and one group.
pub fn single(name: &str, lanes: u32) -> KernelBuilder {
    let mut b = KernelBuilder::new(name, lanes, 1);
    b.grid(Size::Const(1), 1);
    b
}

pub fn input(b: &mut KernelBuilder, name: &str, dtype: DType) -> Memory {
    Memory::Global(b.buffer(name, dtype, Access::In, 64, ArgSource::Free))
}

pub fn output(b: &mut KernelBuilder, name: &str, dtype: DType) -> Memory {
    Memory::Global(b.buffer(name, dtype, Access::Out, 64, ArgSource::Free))
}

/// Equal, NaN equal to NaN.
pub fn same(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x == y || (x.is_nan() && y.is_nan()))
}

/// Distance in units of the last place of `dtype`.
pub fn ulps(dtype: DType, got: f64, want: f64) -> f64 {
    if (got.is_nan() && want.is_nan()) || got == want {
        return 0.0;
    }
    if !got.is_finite() || !want.is_finite() {
        let rounded = dtype.round(want);
        return if rounded == got { 0.0 } else { f64::INFINITY };
    }
    let (digits, least) = match dtype {
        DType::F64 => (52, -1074),
        DType::F32 => (23, -149),
        DType::F16 => (10, -24),
        _ => (7, -133),
    };
    let exponent = if want == 0.0 { -2000 } else { libm::ilogb(want) };
    let unit = libm::scalbn(1.0, (exponent - digits).max(least));
    (got - want).abs() / unit
}
