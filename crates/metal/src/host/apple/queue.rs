//! A command queue: work in order, failures kept for whoever waits, batches timed by the GPU.

use super::memory::MetalMemory;
use super::{CommandBuffer, Encoder, Gpu, Object, Pipeline, failed, words};
use crate::host::arrange::{Dispatch, Placed};
use crate::host::facts::DeviceFacts;
use crate::host::space::Allocations;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue,
    MTLComputeCommandEncoder, MTLDevice, MTLSize,
};
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;
use tilewright_runtime::{Batch, Memory, MemorySpace, Queue, RuntimeError, Stage, Work};

/// Dispatches of one command buffer. A longer batch has several, one right after another.
const DISPATCHES: usize = 2048;
/// Command buffers of a batch that are encoded before the first one is committed, so that the GPU
/// never waits for the host.
const HELD: usize = 32;
/// Command buffers that may be under way at the same time: Metal blocks at this number.
const UNDER_WAY: usize = 256;
/// Queued command buffers after which finished ones are let go.
const TRIM: usize = 64;

/// Numbers of memory spaces. CUDA's are small ordinals.
static SPACES: AtomicU32 = AtomicU32::new(1 << 16);

/// A kernel with everything in place.
pub(super) struct Ready {
    pub pipeline: Pipeline,
    pub dispatch: Dispatch<Object>,
}

/// A command buffer that was committed.
struct Committed {
    number: u64,
    op: String,
    buffer: CommandBuffer,
}

/// A batch that one thread encodes.
#[derive(Default)]
struct Recording {
    /// The open command buffer.
    open: Option<(CommandBuffer, Encoder)>,
    dispatches: usize,
    op: String,
    /// Encoded and not yet committed.
    held: Vec<CommandBuffer>,
    /// Whether command buffers are committed as soon as they are full.
    flowing: bool,
    first: Option<CommandBuffer>,
    last: Option<CommandBuffer>,
}

#[derive(Default)]
struct State {
    next: u64,
    committed: Vec<Committed>,
    recordings: HashMap<ThreadId, Recording>,
}

/// State that any thread may hold behind a lock.
struct Locked(Mutex<State>);

// SAFETY: command buffers and encoders may be used from any thread, by one at a time. Encoders and
// open command buffers are used by the thread that records them; committed ones are only waited
// for and asked, which Metal allows from every thread.
unsafe impl Send for Locked {}
// SAFETY: as above; all access goes through the mutex.
unsafe impl Sync for Locked {}

/// What a device's queue, memory and executables share.
pub(super) struct Shared {
    gpu: Gpu,
    facts: Arc<DeviceFacts>,
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    allocations: Allocations<Object>,
    space: MemorySpace,
    state: Locked,
}

impl Shared {
    pub(super) fn new(gpu: Gpu, facts: Arc<DeviceFacts>) -> Result<Self, RuntimeError> {
        let queue = gpu
            .newCommandQueueWithMaxCommandBufferCount(UNDER_WAY)
            .ok_or_else(|| failed("metal", Stage::Open, "Metal gave no command queue"))?;
        Ok(Shared {
            gpu,
            facts,
            queue,
            allocations: Allocations::default(),
            space: MemorySpace::Device(SPACES.fetch_add(1, Ordering::Relaxed)),
            state: Locked(Mutex::default()),
        })
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(super) fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    pub(super) fn allocations(&self) -> &Allocations<Object> {
        &self.allocations
    }

    fn state<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives kernels to the queue, or to the batch that this thread records.
    ///
    /// # Safety
    /// The kernels stay inside what their slots hold, and nobody else writes it until the queue
    /// has passed them.
    pub(super) unsafe fn submit(&self, op: &str, ready: &[Ready]) -> Result<(), RuntimeError> {
        if ready.is_empty() {
            return Ok(());
        }
        autoreleasepool(|_| {
            let thread = std::thread::current().id();
            // The recording is taken out while it is encoded: opening a command buffer may block
            // until the GPU has finished one, and nobody else should wait for that.
            let recording = self.state(|state| state.recordings.remove(&thread));
            if let Some(mut recording) = recording {
                // SAFETY: as promised by the caller.
                let outcome = unsafe { self.record(&mut recording, op, ready) };
                self.state(|state| state.recordings.insert(thread, recording));
                return outcome;
            }
            let (buffer, encoder) = self.open(op)?;
            for one in ready {
                // SAFETY: as promised by the caller.
                unsafe { encode(&encoder, one) };
            }
            encoder.endEncoding();
            self.commit(op, buffer);
            Ok(())
        })
    }

    /// A command buffer with an encoder whose dispatches run one after another.
    fn open(&self, op: &str) -> Result<(CommandBuffer, Encoder), RuntimeError> {
        let none = |what: &str| failed(op, Stage::Launch, format!("Metal gave no {what}"));
        let buffer = self.queue.commandBuffer().ok_or_else(|| none("command buffer"))?;
        buffer.setLabel(Some(&NSString::from_str(op)));
        let encoder = buffer.computeCommandEncoder().ok_or_else(|| none("compute encoder"))?;
        Ok((buffer, encoder))
    }

    fn commit(&self, op: &str, buffer: CommandBuffer) {
        buffer.commit();
        self.state(|state| {
            let number = state.next;
            state.next += 1;
            state.committed.push(Committed { number, op: op.to_string(), buffer });
            if state.committed.len() > TRIM {
                // Failed ones stay until somebody waits and is told.
                state.committed.retain(|c| c.buffer.status() != MTLCommandBufferStatus::Completed);
            }
        });
    }

    /// Waits until everything that was committed has ended.
    ///
    /// # Errors
    /// The first failure, in Metal's words.
    pub(super) fn wait(&self) -> Result<(), RuntimeError> {
        autoreleasepool(|_| {
            let thread = std::thread::current().id();
            // What is waited for stays listed meanwhile, so that another thread waits for it too.
            let (recording, waited): (bool, Vec<(u64, String, CommandBuffer)>) =
                self.state(|state| {
                    let all = state.committed.iter();
                    let all = all.map(|c| (c.number, c.op.clone(), c.buffer.clone())).collect();
                    (state.recordings.contains_key(&thread), all)
                });
            if recording {
                let detail = "work of a batch can't wait for the queue that records it";
                return Err(failed("metal", Stage::Launch, detail));
            }
            let mut first = Ok(());
            let mut last = None;
            for (number, op, buffer) in waited {
                buffer.waitUntilCompleted();
                if first.is_ok() {
                    first = outcome(&op, &buffer);
                }
                last = Some(number);
            }
            self.state(|state| state.committed.retain(|c| last.is_none_or(|n| c.number > n)));
            first
        })
    }

    /// Adds kernels to a recording.
    ///
    /// # Safety
    /// As [`Shared::submit`].
    unsafe fn record(
        &self,
        recording: &mut Recording,
        op: &str,
        ready: &[Ready],
    ) -> Result<(), RuntimeError> {
        for one in ready {
            if recording.dispatches == DISPATCHES {
                self.close(recording);
            }
            if recording.open.is_none() {
                recording.open = Some(self.open(op)?);
                recording.op = op.to_string();
            }
            if let Some((_, encoder)) = &recording.open {
                // SAFETY: as promised by the caller.
                unsafe { encode(encoder, one) };
                recording.dispatches += 1;
            }
        }
        Ok(())
    }

    /// Ends the open command buffer of a recording, and commits once enough are held.
    fn close(&self, recording: &mut Recording) {
        let Some((buffer, encoder)) = recording.open.take() else { return };
        encoder.endEncoding();
        recording.dispatches = 0;
        recording.first.get_or_insert_with(|| buffer.clone());
        recording.last = Some(buffer.clone());
        recording.held.push(buffer);
        if recording.flowing || recording.held.len() == HELD {
            self.flow(recording);
        }
    }

    /// Commits what a recording holds, and what follows as soon as it is full.
    fn flow(&self, recording: &mut Recording) {
        recording.flowing = true;
        for buffer in recording.held.drain(..) {
            self.commit(&recording.op, buffer);
        }
    }

    /// Runs a batch: encodes all of it, commits, waits; the time from the first start to the last
    /// end, in nanoseconds.
    fn run_batch(
        &self,
        repetitions: u64,
        work: &mut (dyn FnMut() -> Result<(), RuntimeError> + '_),
    ) -> Result<f64, RuntimeError> {
        autoreleasepool(|_| {
            let thread = std::thread::current().id();
            if self.state(|state| state.recordings.contains_key(&thread)) {
                return Err(failed("metal", Stage::Launch, "a batch inside a batch"));
            }
            self.state(|state| state.recordings.insert(thread, Recording::default()));
            let mut fault = None;
            for _ in 0..repetitions {
                if let Err(error) = work() {
                    fault = Some(error);
                    break;
                }
            }
            let recording = self.state(|state| state.recordings.remove(&thread));
            let Some(mut recording) = recording else {
                let lost = failed("metal", Stage::Launch, "the batch was lost");
                return Err(fault.unwrap_or(lost));
            };
            if let Some(error) = fault {
                // An encoder must be ended before it goes; nothing of it was committed.
                if let Some((_, encoder)) = recording.open.take() {
                    encoder.endEncoding();
                }
                return Err(error);
            }
            self.close(&mut recording);
            self.flow(&mut recording);
            let (Some(first), Some(last)) = (&recording.first, &recording.last) else {
                // A batch of empty grids takes no time.
                return Ok(0.0);
            };
            self.wait()?;
            let (start, end) = (first.GPUStartTime(), last.GPUEndTime());
            if start > 0.0 && end > start {
                return Ok((end - start) * 1e9);
            }
            let detail = format!("Metal tells no times: start {start} s, end {end} s");
            Err(failed(&recording.op, Stage::Launch, detail))
        })
    }
}

/// Puts one dispatch into an encoder.
///
/// # Safety
/// The kernel stays inside what its slots hold.
unsafe fn encode(encoder: &Encoder, ready: &Ready) {
    let Dispatch { slots, groups, threads } = &ready.dispatch;
    encoder.setComputePipelineState(&ready.pipeline);
    for (slot, placed) in slots {
        let index = *slot as usize;
        match placed {
            Placed::Buffer { object, offset } => {
                // SAFETY: the offset lies inside the object, as `Allocations::find` checked.
                unsafe { encoder.setBuffer_offset_atIndex(Some(&object.0), *offset, index) };
            }
            Placed::Number { bytes, len } => {
                let bytes = NonNull::from(bytes).cast::<c_void>();
                // SAFETY: `len` is at most 8; Metal copies the bytes during the call.
                unsafe { encoder.setBytes_length_atIndex(bytes, *len, index) };
            }
        }
    }
    let size =
        |[x, y, z]: [u32; 3]| MTLSize { width: x as usize, height: y as usize, depth: z as usize };
    encoder.dispatchThreadgroups_threadsPerThreadgroup(size(*groups), size([*threads, 1, 1]));
}

/// Whether a finished command buffer succeeded.
fn outcome(op: &str, buffer: &CommandBuffer) -> Result<(), RuntimeError> {
    if buffer.status() != MTLCommandBufferStatus::Error {
        return Ok(());
    }
    let detail = buffer.error().map_or_else(
        || "the command buffer failed, and Metal doesn't say why".to_string(),
        |error| words(&error),
    );
    Err(failed(op, Stage::Launch, detail))
}

/// The queue of a device.
pub(super) struct MetalQueue {
    shared: Arc<Shared>,
}

impl MetalQueue {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        MetalQueue { shared }
    }
}

impl Queue for MetalQueue {
    fn space(&self) -> MemorySpace {
        self.shared.space
    }

    fn alloc(&self, bytes: usize) -> Result<Box<dyn Memory>, RuntimeError> {
        autoreleasepool(|_| Ok(Box::new(MetalMemory::new(&self.shared, bytes)?) as Box<dyn Memory>))
    }

    fn wait(&self) -> Result<(), RuntimeError> {
        self.shared.wait()
    }

    fn batch<'a>(
        &self,
        repetitions: u64,
        work: Work<'a>,
    ) -> Result<Box<dyn Batch + 'a>, RuntimeError> {
        Ok(Box::new(MetalBatch { shared: self.shared.clone(), repetitions, work }))
    }
}

/// Repetitions that are encoded anew for each run: a command buffer can't be committed twice. The
/// host encodes before the GPU starts, so its time is no part of the result.
struct MetalBatch<'a> {
    shared: Arc<Shared>,
    repetitions: u64,
    work: Work<'a>,
}

impl Batch for MetalBatch<'_> {
    fn run(&mut self) -> Result<f64, RuntimeError> {
        self.shared.run_batch(self.repetitions, &mut self.work)
    }
}
