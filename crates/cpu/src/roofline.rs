//! Measured ceilings of this machine: multiply-adds in registers, and a copy beyond the caches.

use std::time::{Duration, Instant};

use tilewright_ir::DType;
use tilewright_ir::program::Access;
use tilewright_kernel::builder::KernelBuilder;
use tilewright_kernel::kernel::{ArgSource, Kernel, Memory, Place, Size};
use tilewright_plan::mapping::CpuIsa;
use tilewright_runtime::{ArgValue, Roofline};

use crate::host;
use crate::pool::Pool;
use crate::program::{Program, Streaming};

/// Independent chains: latency times throughput of the multiply-add, with room to spare.
fn chains(isa: CpuIsa) -> usize {
    if isa == CpuIsa::Avx512 { 24 } else { 12 }
}

/// Trips of the loop in one group.
const TRIPS: i64 = 4096;

/// Bytes that one group copies.
const PIECE: i64 = 1 << 16;

/// Measures with that many threads; about 10 ms for the arithmetic and as much per 100 MB of
/// cache for the copy. `None` where the kernels can't be compiled.
pub fn measure(isa: CpuIsa, dtype: DType, pool: &Pool, threads: usize) -> Option<Roofline> {
    let dtype = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    Some(Roofline {
        flops_per_second: flops(isa, dtype, pool, threads)?,
        bytes_per_second: bytes(isa, pool, threads)?,
    })
}

/// The shortest of the runs that begin within a time (at least 3).
fn shortest(within: Duration, mut run: impl FnMut() -> Option<()>) -> Option<Duration> {
    let (mut best, mut rounds, begin) = (Duration::MAX, 0, Instant::now());
    while rounds < 3 || begin.elapsed() < within {
        rounds += 1;
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed());
    }
    Some(best.max(Duration::from_nanos(1)))
}

fn launch(
    program: &Program,
    kernel: &Kernel,
    (pool, threads): (&Pool, usize),
    groups: u64,
    args: &[ArgValue],
) -> Option<()> {
    let words: Vec<u64> = args.iter().map(|a| a.word(None)).collect();
    // SAFETY: the kernels here are given buffers of the sizes that they touch.
    unsafe { program.run(kernel, pool, threads, groups, &words, args) }.ok()
}

fn flops(isa: CpuIsa, dtype: DType, pool: &Pool, threads: usize) -> Option<f64> {
    let lanes = (isa.vector_bytes() / dtype.bytes()) as u32;
    let groups = threads as u64;
    let mut b = KernelBuilder::new("multiply_add", lanes, 1);
    let group = b.grid(Size::Const(groups), 1);
    let out = b.buffer("out", dtype, Access::InOut, dtype.bytes(), ArgSource::Free);
    let base = b.mul_int(group, i64::from(lanes));
    let place = Place::strided(Memory::Global(out), base, 1);
    let start = b.load1(place, None);
    let factor = b.literal(0.5, dtype);
    let init = vec![start; chains(isa)];
    let (lo, hi) = (b.int(0), b.int(TRIPS));
    let open = b.begin_for(lo, hi, 1, 4, &init);
    let inner = open.inner().to_vec();
    let next: Vec<_> = inner.iter().map(|v| b.fma(*v, factor, start)).collect();
    let sums = b.end_for(open, &next);
    let mut sum = sums[0];
    for other in &sums[1..] {
        sum = b.map(tilewright_ir::program::MapOp::Add, &[sum, *other]);
    }
    b.store(place, &[sum], None);
    let kernel = b.finish();
    let program = Program::new(&kernel, isa, Streaming::Never, false).ok()?;
    let mut memory = vec![0u64; (groups * isa.vector_bytes() / 8) as usize];
    let bytes = memory.len() * 8;
    let args = [ArgValue::Buffer { ptr: memory.as_mut_ptr().cast(), bytes }];
    let time = shortest(Duration::from_millis(10), || {
        launch(&program, &kernel, (pool, threads), groups, &args)
    })?;
    let work = 2 * groups * u64::from(lanes) * chains(isa) as u64 * TRIPS as u64;
    Some(work as f64 / time.as_secs_f64())
}

fn bytes(isa: CpuIsa, pool: &Pool, threads: usize) -> Option<f64> {
    let size = (2 * host::caches().l3).clamp(32 << 20, 256 << 20);
    let lanes = (isa.vector_bytes() / 4) as u32;
    let pieces = size as i64 / PIECE;
    let mut b = KernelBuilder::new("copy", lanes, 1);
    let group = b.grid(Size::Const(pieces as u64), 1);
    let from = b.buffer("from", DType::F32, Access::In, 64, ArgSource::Free);
    let to = b.buffer("to", DType::F32, Access::Out, 64, ArgSource::Free);
    let base = b.mul_int(group, PIECE / 4);
    let (lo, hi) = (b.int(0), b.int(PIECE / 4));
    let open = b.begin_for(lo, hi, u64::from(lanes), 4, &[]);
    let at = b.add(base, open.index());
    let x = b.load1(Place::strided(Memory::Global(from), at, 1), None);
    b.store(Place::strided(Memory::Global(to), at, 1), &[x], None);
    b.end_for(open, &[]);
    let kernel = b.finish();
    let program = Program::new(&kernel, isa, Streaming::Always, false).ok()?;
    tilewright_runtime::memory::check("the bandwidth measurement", 2 * size).ok()?;
    let mut source = aligned(size as usize)?;
    let mut target = aligned(size as usize)?;
    let args = [source.arg(), target.arg()];
    let time = shortest(Duration::from_millis(20), || {
        launch(&program, &kernel, (pool, threads), pieces as u64, &args)
    })?;
    Some(2.0 * size as f64 / time.as_secs_f64())
}

/// Memory aligned to a cache line, touched once.
struct Aligned {
    words: Vec<u64>,
    skip: usize,
    bytes: usize,
}

impl Aligned {
    fn arg(&mut self) -> ArgValue {
        ArgValue::Buffer {
            ptr: self.words.as_mut_ptr().wrapping_add(self.skip).cast(),
            bytes: self.bytes,
        }
    }
}

fn aligned(bytes: usize) -> Option<Aligned> {
    let mut words = Vec::new();
    words.try_reserve_exact(bytes / 8 + 8).ok()?;
    // Not zero, so that every page is really there.
    words.resize(bytes / 8 + 8, 1u64);
    let skip = words.as_ptr().align_offset(64);
    Some(Aligned { words, skip, bytes })
}
