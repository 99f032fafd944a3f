//! Buffers in storage that host and GPU share.

use super::queue::Shared;
use super::{Object, failed};
use objc2_metal::{MTLBuffer, MTLDevice, MTLResourceOptions};
use std::sync::Arc;
use tilewright_runtime::{Memory, RuntimeError, Stage};

/// Alignment that [`Memory::address`] promises.
const ALIGN: usize = 256;

/// A live allocation. The command buffers that use its object hold it, so that dropping this while
/// work is queued frees it after that work.
pub(super) struct MetalMemory {
    shared: Arc<Shared>,
    /// Holds the storage.
    _object: Object,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the pointer is to shared storage that `_object` keeps; reads and writes go through
// `&self` and `&mut self` and wait for the GPU first.
unsafe impl Send for MetalMemory {}
// SAFETY: as above; `&self` only reads.
unsafe impl Sync for MetalMemory {}

impl MetalMemory {
    pub(super) fn new(shared: &Arc<Shared>, bytes: usize) -> Result<Self, RuntimeError> {
        let facts = shared.facts();
        // Metal promises no alignment of the content, so the first usable byte is moved.
        let total = bytes.checked_add(ALIGN).unwrap_or(usize::MAX);
        let used = shared.gpu().currentAllocatedSize() as u64;
        let free = facts.memory_bytes.saturating_sub(used);
        let available = free.min(facts.buffer_bytes);
        let too_much = || RuntimeError::OutOfMemory {
            what: "a buffer on `metal`".to_string(),
            needed: total as u64,
            available,
        };
        if total as u64 > available {
            return Err(too_much());
        }
        let buffer = shared
            .gpu()
            .newBufferWithLength_options(total, MTLResourceOptions::StorageModeShared)
            .ok_or_else(too_much)?;
        let content = buffer.contents().cast::<u8>().as_ptr();
        let lead = content.align_offset(ALIGN);
        if lead > ALIGN {
            return Err(failed("metal", Stage::Allocate, "a buffer's content can't be aligned"));
        }
        let start = content.wrapping_add(lead);
        let object = Object(buffer);
        shared.allocations().insert(start as usize, bytes, lead, object.clone());
        Ok(MetalMemory { shared: shared.clone(), _object: object, start, bytes })
    }

    /// The host address of a range inside the memory, once the GPU is done with it.
    fn at(&self, offset: usize, len: usize) -> Result<*mut u8, RuntimeError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.bytes => {}
            _ => {
                let detail =
                    format!("{len} bytes from byte {offset} on leave a buffer of {}", self.bytes);
                return Err(failed("metal", Stage::Launch, detail));
            }
        }
        self.shared.wait()?;
        Ok(self.start.wrapping_add(offset))
    }
}

impl Memory for MetalMemory {
    fn address(&self) -> *mut u8 {
        self.start
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), RuntimeError> {
        let to = self.at(offset, from.len())?;
        // SAFETY: the range was checked; the GPU is done with it; a slice can't overlap memory
        // that is borrowed exclusively here.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        Ok(())
    }

    fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), RuntimeError> {
        let from = self.at(offset, to.len())?;
        // SAFETY: the range was checked; the GPU is done with it; `to` is an exclusive slice.
        unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn fill(&mut self, offset: usize, len: usize, byte: u8) -> Result<(), RuntimeError> {
        let to = self.at(offset, len)?;
        // SAFETY: the range was checked; the GPU is done with it.
        unsafe { to.write_bytes(byte, len) };
        Ok(())
    }
}

impl Drop for MetalMemory {
    fn drop(&mut self) {
        self.shared.allocations().remove(self.start as usize);
    }
}
