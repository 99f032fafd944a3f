//! Devices with memory of their own: their memory, the queue that orders their work, and their
//! clock.
//!
//! A device whose kernels read and write host memory (the CPU) has none of this.

use crate::error::RuntimeError;

/// Which memory an address lies in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MemorySpace {
    /// The host's.
    #[default]
    Host,
    /// That of a device, by a number that is unique in this process.
    Device(u32),
}

impl std::fmt::Display for MemorySpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MemorySpace::Host => f.write_str("host memory"),
            MemorySpace::Device(n) => write!(f, "the memory of device {n}"),
        }
    }
}

/// Bytes that a device owns; freed on drop, after the work that was given to the queue before.
pub trait Memory: Send + Sync {
    /// Address of the first byte as kernels get it: aligned to 256 bytes, and nothing that the
    /// host may follow.
    fn address(&self) -> *mut u8;

    /// Size.
    fn bytes(&self) -> usize;

    /// Copies from the host; returns when done. The copy comes after all queued work.
    ///
    /// # Errors
    /// The range leaves the memory, or the device's words.
    fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), RuntimeError>;

    /// Copies to the host; returns when done. The copy comes after all queued work.
    ///
    /// # Errors
    /// The range leaves the memory, or the device's words.
    fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), RuntimeError>;

    /// Sets `len` bytes from `offset` on, after all queued work and before what is queued later.
    ///
    /// # Errors
    /// The range leaves the memory, or the device's words.
    fn fill(&mut self, offset: usize, len: usize, byte: u8) -> Result<(), RuntimeError>;
}

/// What a batch repeats: gives work to the queue and returns without waiting for it.
pub type Work<'a> = Box<dyn FnMut() -> Result<(), RuntimeError> + 'a>;

/// A number of repetitions of some work, ready to be timed again and again.
pub trait Batch {
    /// Runs all repetitions, one after another, and waits for them.
    ///
    /// Gives the time from the first one's start to the last one's end by the device's clock, in
    /// nanoseconds.
    ///
    /// # Errors
    /// The work failed.
    fn run(&mut self) -> Result<f64, RuntimeError>;
}

/// The memory of a device and the queue that orders its work.
///
/// Work runs in the order in which it was queued, each piece after the one before has ended and
/// its writes are visible. So buffers of one device need no other ordering.
pub trait Queue: Send + Sync {
    /// The space that its addresses lie in.
    fn space(&self) -> MemorySpace;

    /// Allocates memory, its content undefined.
    ///
    /// # Errors
    /// [`RuntimeError::OutOfMemory`] with both numbers; the device's words for anything else.
    fn alloc(&self, bytes: usize) -> Result<Box<dyn Memory>, RuntimeError>;

    /// Waits until all queued work has ended.
    ///
    /// # Errors
    /// The first failure of that work.
    fn wait(&self) -> Result<(), RuntimeError>;

    /// Queues what takes away the marks by which earlier work, of any process, keeps lines in a
    /// cache after it has ended, so that a measurement doesn't depend on what was measured before. A
    /// device without such marks has nothing to do.
    ///
    /// # Errors
    /// The device's words; no memory for it.
    fn reset_residency(&self) -> Result<(), RuntimeError> {
        Ok(())
    }

    /// Records `repetitions` calls of `work` as one batch. The host's time for queuing is no part
    /// of what the batch measures, as far as the device allows: with CUDA it is one graph.
    ///
    /// # Errors
    /// `work` failed, or the device can't record it.
    fn batch<'a>(
        &self,
        repetitions: u64,
        work: Work<'a>,
    ) -> Result<Box<dyn Batch + 'a>, RuntimeError>;
}

/// Arguments that were checked and put in place once, for repeated launches on a queue. It holds
/// what it needs of the executable.
pub trait PreparedLaunch: Send {
    /// Gives all kernels to the queue and returns without waiting for them.
    ///
    /// # Errors
    /// The device's words. A failure of the running kernels shows at the next wait.
    ///
    /// # Safety
    /// What [`Executable::launch`](crate::Executable::launch) asks of the arguments still holds,
    /// and goes on holding until the queue has passed the kernels.
    unsafe fn enqueue(&mut self) -> Result<(), RuntimeError>;
}
