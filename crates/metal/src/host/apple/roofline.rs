//! Measured ceilings: a loop of FMAs in registers, and a copy far larger than every cache.

use super::device::MetalDevice;
use super::pipeline::Text;
use crate::codegen::Language;
use tilewright_ir::DType;
use tilewright_runtime::{Device, DeviceBuffer, Roofline, RuntimeError};

/// Groups of the arithmetic loop for one core.
const GROUPS_PER_CORE: u32 = 16;
/// Threads of a threadgroup.
const THREADS: u32 = 256;
/// Rounds of the arithmetic loop; each has 16 independent FMAs of 4 elements.
const ROUNDS: u32 = 2048;
/// Vectors of 4 floats that the copy reads: 256 MiB.
const VECTORS: u32 = 1 << 24;
/// Runs of which the best counts.
const RUNS: usize = 5;

const TEXT: &str = "#include <metal_stdlib>
using namespace metal;

kernel void arithmetic(device float4* out [[buffer(0)]], constant uint& rounds [[buffer(1)]],
                       uint i [[thread_position_in_grid]]) {
    float4 x[16];
    for (uint j = 0; j < 16; ++j) { x[j] = float4{float(i), float(j), 1.0f, 0.5f}; }
    const float4 a = float4{0.999f, 0.998f, 0.997f, 0.996f};
    for (uint r = 0; r < rounds; ++r) {
        for (uint j = 0; j < 16; ++j) { x[j] = fma(x[j], a, a); }
    }
    float4 sum = x[0];
    for (uint j = 1; j < 16; ++j) { sum += x[j]; }
    out[i] = sum;
}

kernel void copy(device const float4* from [[buffer(0)]], device float4* to [[buffer(1)]],
                 uint i [[thread_position_in_grid]]) {
    to[i] = from[i];
}
";

/// The ceilings for a type of computation; `None` for types other than f32, which are not
/// measured, and where a measurement fails.
pub(super) fn measure(device: &MetalDevice, dtype: DType) -> Option<Roofline> {
    if dtype != DType::F32 {
        return None;
    }
    let flops_per_second = arithmetic(device).ok()?;
    let bytes_per_second = copy(device).ok()?;
    Some(Roofline { flops_per_second, bytes_per_second })
}

fn arithmetic(device: &MetalDevice) -> Result<f64, RuntimeError> {
    let groups = GROUPS_PER_CORE * device.facts().cores;
    let elements = 4 * groups as usize * THREADS as usize;
    let flops = 2.0 * 16.0 * f64::from(ROUNDS) * elements as f64;
    let queue = device.queue().ok_or_else(no_queue)?;
    let out = DeviceBuffer::new(queue, DType::F32, elements)?;
    let seconds = best(device, "arithmetic", &[&out], &[ROUNDS], groups)?;
    Ok(flops / seconds)
}

fn copy(device: &MetalDevice) -> Result<f64, RuntimeError> {
    let queue = device.queue().ok_or_else(no_queue)?;
    let elements = 4 * VECTORS as usize;
    let from = DeviceBuffer::new(queue, DType::F32, elements)?;
    let to = DeviceBuffer::new(queue, DType::F32, elements)?;
    let seconds = best(device, "copy", &[&from, &to], &[], VECTORS / THREADS)?;
    Ok(2.0 * from.bytes() as f64 / seconds)
}

fn no_queue() -> RuntimeError {
    super::failed("metal", tilewright_runtime::Stage::Open, "the device has no queue")
}

/// Seconds of the fastest run.
fn best(
    device: &MetalDevice,
    entry: &str,
    buffers: &[&DeviceBuffer],
    numbers: &[u32],
    groups: u32,
) -> Result<f64, RuntimeError> {
    let text = Text { text: TEXT, entry, language: Language::BASE, threads: THREADS };
    let kernel = device.compile_text(&text)?;
    let queue = device.queue().ok_or_else(no_queue)?;
    let work = || {
        // SAFETY: every thread touches one element of buffers that have one for each; they are
        // borrowed until the batch is dropped.
        unsafe { kernel.enqueue(buffers, numbers, [groups, 1, 1]) }
    };
    let mut batch = queue.batch(1, Box::new(work))?;
    let mut least = f64::INFINITY;
    for _ in 0..RUNS {
        least = least.min(batch.run()? * 1e-9);
    }
    Ok(least)
}
