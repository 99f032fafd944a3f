//! Measured ceilings of a GPU: multiply-adds in registers, and a copy that no cache holds.

use crate::device::CudaDevice;
use cudarc::driver::result;
use tilewright_ir::DType;
use tilewright_ir::program::Access;
use tilewright_kernel::builder::KernelBuilder;
use tilewright_kernel::kernel::{ArgSource, Guard, Kernel, Memory, Place, Size};
use tilewright_runtime::{ArgValue, Device, DeviceBuffer, Roofline};

/// Bytes of each of the two buffers of the copy: several times any second-level cache.
const COPY_BYTES: usize = 1 << 30;
/// Independent chains of multiply-adds of one thread.
const CHAINS: i64 = 16;
/// Multiply-adds of one chain.
const LENGTH: i64 = 2048;
/// Subgroups of a group, groups of a core.
const SUBGROUPS: u32 = 8;
const GROUPS_PER_CORE: u64 = 4;
/// Repetitions of a batch, and batches; the fastest counts.
const REPETITIONS: u64 = 4;
const BATCHES: usize = 3;

/// Ceilings for a type of computation, or `None` where something isn't to be had.
pub(crate) fn measure(device: &CudaDevice, dtype: DType) -> Option<Roofline> {
    let flops_per_second = flops(device, dtype)?;
    let bytes_per_second = copy(device)?;
    Some(Roofline { flops_per_second, bytes_per_second })
}

/// Chains of multiply-adds in registers; the sums are stored so that they must be computed.
fn kernel(dtype: DType, groups: u64) -> Kernel {
    let mut b = KernelBuilder::new("multiply_adds", 32, SUBGROUPS);
    let y = b.buffer("y", dtype, Access::Out, 16, ArgSource::Free);
    let group = b.grid(Size::Const(groups), 1);
    let subgroup = b.subgroup_id();
    let first = b.mul_int(group, i64::from(32 * SUBGROUPS));
    let own = b.mul_int(subgroup, 32);
    let base = b.add(first, own);
    let factor = b.literal(0.5, dtype);
    let init: Vec<_> = (0..CHAINS).map(|i| b.literal(i as f64, dtype)).collect();
    let (lo, hi) = (b.int(0), b.int(LENGTH));
    let sums = b.for_loop((lo, hi, 1), 8, &init, |b, _, sums| {
        sums.iter().map(|sum| b.fma(*sum, factor, factor)).collect()
    });
    let mut total = sums[0];
    for sum in &sums[1..] {
        total = b.map(tilewright_ir::program::MapOp::Add, &[total, *sum]);
    }
    let limit = b.int(32);
    let guard = Some(Guard::count(limit, 0.0));
    b.store(Place::strided(Memory::Global(y), base, 1), &[total], guard);
    b.finish()
}

fn flops(device: &CudaDevice, dtype: DType) -> Option<f64> {
    let queue = device.queue()?;
    let cores = u64::from(device.context().facts().cores);
    let groups = cores * GROUPS_PER_CORE;
    let threads = groups * u64::from(32 * SUBGROUPS);
    let y = DeviceBuffer::new(queue, dtype, threads as usize).ok()?;
    let executable = device.compile(&[kernel(dtype, groups)]).ok()?;
    let args = [ArgValue::Buffer { ptr: y.address(), bytes: y.bytes() }];
    // SAFETY: `y` has an element for every thread of the launch and outlives the batch.
    let mut launch = unsafe { executable.prepare(&args) }.ok()??;
    let mut batch = queue
        .batch(
            REPETITIONS,
            // SAFETY: as above.
            Box::new(move || unsafe { launch.enqueue() }),
        )
        .ok()?;
    let work = 2.0 * threads as f64 * (CHAINS * LENGTH) as f64 * REPETITIONS as f64;
    let mut best = 0.0f64;
    for _ in 0..BATCHES + 1 {
        best = best.max(work / (batch.run().ok()? * 1e-9));
    }
    Some(best)
}

fn copy(device: &CudaDevice) -> Option<f64> {
    let queue = device.queue()?;
    let context = device.context();
    // Less where there is less.
    let free = context.memory_info().ok()?.0;
    let bytes = COPY_BYTES.min(free / 4);
    let from = DeviceBuffer::new(queue, DType::F32, bytes / 4).ok()?;
    let to = DeviceBuffer::new(queue, DType::F32, bytes / 4).ok()?;
    let mut best = 0.0f64;
    for _ in 0..BATCHES + 1 {
        let us = context
            .time(|| {
                let (to, from) = (to.address() as u64, from.address() as u64);
                for _ in 0..REPETITIONS {
                    // SAFETY: both buffers have that many bytes and outlive the timing, which
                    // waits.
                    unsafe { result::memcpy_dtod_async(to, from, bytes / 4 * 4, context.stream()) }
                        .map_err(|e| crate::driver::CudaError::of("cuMemcpyDtoDAsync", e))?;
                }
                Ok(())
            })
            .ok()?;
        best = best.max((REPETITIONS as usize * 2 * (bytes / 4 * 4)) as f64 / (us * 1e-6));
    }
    Some(best)
}
