//! A GPU's memory, its stream as a queue, and batches as CUDA graphs timed by events.

use crate::device::failed;
use crate::driver::{Context, CudaError, DeviceBuffer, Graph};
use crate::residency::ResidencyReset;
use crate::{PtxTarget, target};
use cudarc::driver::result;
use std::sync::{Arc, Mutex, PoisonError};
use tilewright_runtime::{Batch, Memory, MemorySpace, Queue, RuntimeError, Stage, Work};

/// Most repetitions of one graph; a longer batch launches it several times.
const GRAPH_REPETITIONS: u64 = 1024;

/// A stream of a GPU.
pub(crate) struct CudaQueue {
    name: String,
    ordinal: u32,
    context: Arc<Context>,
    /// Made when it is first asked for: it takes memory.
    reset: Mutex<Option<ResidencyReset>>,
}

impl CudaQueue {
    pub(crate) fn new(name: &str, ordinal: u32, context: Arc<Context>) -> Self {
        CudaQueue { name: name.to_string(), ordinal, context, reset: Mutex::new(None) }
    }
}

impl Queue for CudaQueue {
    fn space(&self) -> MemorySpace {
        MemorySpace::Device(self.ordinal)
    }

    fn alloc(&self, bytes: usize) -> Result<Box<dyn Memory>, RuntimeError> {
        match self.context.alloc(bytes) {
            Ok(buffer) => Ok(Box::new(CudaMemory {
                name: self.name.clone(),
                context: self.context.clone(),
                buffer,
            })),
            Err(error) => {
                // The driver has one code for memory that isn't there; then it also says how much
                // is.
                let free = self.context.memory_info().map(|(free, _)| free as u64);
                match free {
                    Ok(available) if available < bytes as u64 => Err(RuntimeError::OutOfMemory {
                        what: format!("a buffer on `{}`", self.name),
                        needed: bytes as u64,
                        available,
                    }),
                    _ => Err(failed(&self.name, Stage::Allocate, &error)),
                }
            }
        }
    }

    fn wait(&self) -> Result<(), RuntimeError> {
        self.context.synchronize().map_err(|e| failed(&self.name, Stage::Launch, &e))
    }

    fn reset_residency(&self) -> Result<(), RuntimeError> {
        // A GPU or driver without the hints has kernels without them, too.
        if !target::limit(self.context.facts()).covers(PtxTarget::CACHE_HINTS) {
            return Ok(());
        }
        let mut reset = self.reset.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = match reset.as_ref() {
            Some(ready) => Ok(ready),
            None => match ResidencyReset::new(&self.context) {
                Ok(new) => Ok(&*reset.insert(new)),
                // Tensors that leave so little memory displace all lines of the cache themselves.
                Err(error) => match self.context.memory_info() {
                    Ok((free, _)) if (free as u64) < ResidencyReset::bytes(&self.context) => {
                        return Ok(());
                    }
                    _ => Err(error),
                },
            },
        };
        let queued = ready.and_then(ResidencyReset::queue);
        queued.map_err(|e| failed(&self.name, Stage::Launch, &e))
    }

    fn batch<'a>(
        &self,
        repetitions: u64,
        mut work: Work<'a>,
    ) -> Result<Box<dyn Batch + 'a>, RuntimeError> {
        let mut record = |count: u64| -> Result<Graph, RuntimeError> {
            // An error of the work itself is the one to tell.
            let mut fault = None;
            let graph = self.context.capture(|| {
                for _ in 0..count {
                    if let Err(error) = work() {
                        fault = Some(error);
                        return Ok(());
                    }
                }
                Ok(())
            });
            match fault {
                Some(error) => Err(error),
                None => graph.map_err(|e| failed(&self.name, Stage::Launch, &e)),
            }
        };
        let (whole, rest) = (repetitions / GRAPH_REPETITIONS, repetitions % GRAPH_REPETITIONS);
        let whole = match whole {
            0 => None,
            times => Some((record(GRAPH_REPETITIONS)?, times)),
        };
        let rest = if rest == 0 { None } else { Some(record(rest)?) };
        let (name, context) = (self.name.clone(), self.context.clone());
        Ok(Box::new(CudaBatch { name, context, whole, rest, _work: work }))
    }
}

/// A recorded batch.
struct CudaBatch<'a> {
    name: String,
    context: Arc<Context>,
    /// A graph and how often it is launched.
    whole: Option<(Graph, u64)>,
    /// What is left.
    rest: Option<Graph>,
    /// Holds what the recorded launches use.
    _work: Work<'a>,
}

impl Batch for CudaBatch<'_> {
    fn run(&mut self) -> Result<f64, RuntimeError> {
        let timed = self.context.time(|| {
            if let Some((graph, times)) = &self.whole {
                for _ in 0..*times {
                    graph.launch()?;
                }
            }
            match &self.rest {
                Some(graph) => graph.launch(),
                None => Ok(()),
            }
        });
        timed.map(|us| us * 1e3).map_err(|e| failed(&self.name, Stage::Launch, &e))
    }
}

/// Memory of a GPU. Copies and fills go to the stream, so they come after all that was queued
/// before and before all that is queued later.
struct CudaMemory {
    name: String,
    context: Arc<Context>,
    buffer: DeviceBuffer,
}

impl CudaMemory {
    /// The device address of a range inside the memory.
    fn at(&self, offset: usize, len: usize) -> Result<u64, RuntimeError> {
        let end = offset.checked_add(len).filter(|end| *end <= self.buffer.bytes());
        let inside = match end {
            Some(_) => Ok(self.buffer.pointer() + offset as u64),
            None => Err(CudaError::Call {
                call: "copy",
                code: format!(
                    "{len} bytes from byte {offset} on leave a buffer of {}",
                    self.buffer.bytes()
                ),
            }),
        };
        inside
            .and_then(|pointer| self.context.bind().map(|()| pointer))
            .map_err(|e| failed(&self.name, Stage::Launch, &e))
    }

    fn told(
        &self,
        call: &'static str,
        outcome: Result<(), result::DriverError>,
    ) -> Result<(), RuntimeError> {
        outcome.map_err(|e| failed(&self.name, Stage::Launch, &CudaError::of(call, e)))
    }

    fn wait(&self) -> Result<(), RuntimeError> {
        self.context.synchronize().map_err(|e| failed(&self.name, Stage::Launch, &e))
    }
}

impl Memory for CudaMemory {
    fn address(&self) -> *mut u8 {
        self.buffer.pointer() as *mut u8
    }

    fn bytes(&self) -> usize {
        self.buffer.bytes()
    }

    fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), RuntimeError> {
        if from.is_empty() {
            return Ok(());
        }
        let to = self.at(offset, from.len())?;
        // SAFETY: the destination range was checked; the source lives until the wait below.
        let copied = unsafe { result::memcpy_htod_async(to, from, self.context.stream()) };
        self.told("cuMemcpyHtoDAsync", copied)?;
        self.wait()
    }

    fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), RuntimeError> {
        if to.is_empty() {
            return Ok(());
        }
        let from = self.at(offset, to.len())?;
        // SAFETY: the source range was checked; the destination lives until the wait below.
        let copied = unsafe { result::memcpy_dtoh_async(to, from, self.context.stream()) };
        self.told("cuMemcpyDtoHAsync", copied)?;
        self.wait()
    }

    fn fill(&mut self, offset: usize, len: usize, byte: u8) -> Result<(), RuntimeError> {
        if len == 0 {
            return Ok(());
        }
        let to = self.at(offset, len)?;
        // SAFETY: the range was checked. Freeing memory waits for the device, so it outlives this.
        let filled = unsafe { result::memset_d8_async(to, byte, len, self.context.stream()) };
        self.told("cuMemsetD8Async", filled)
    }
}
