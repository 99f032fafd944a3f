//! Scratch memory of one thread: private arrays and shared buffers of the groups that it runs.

use std::alloc::{Layout, alloc, dealloc};

use crate::error::CpuError;

/// Alignment in bytes: a cache line, and the widest vector.
pub const ALIGN: usize = 64;

/// Memory that only grows. Its contents are undefined at the start of every group.
#[derive(Debug)]
pub struct Scratch {
    memory: *mut u8,
    bytes: usize,
}

impl Scratch {
    /// No memory yet.
    pub const fn new() -> Self {
        Scratch { memory: std::ptr::null_mut(), bytes: 0 }
    }

    /// A pointer to at least `bytes` bytes, aligned to [`ALIGN`]. Valid until the next call.
    ///
    /// # Errors
    /// [`CpuError::System`] where there isn't that much memory.
    pub fn at_least(&mut self, bytes: usize) -> Result<*mut u8, CpuError> {
        if bytes > self.bytes || self.memory.is_null() {
            self.grow(bytes.max(4096))?;
        }
        Ok(self.memory)
    }

    #[cold]
    fn grow(&mut self, bytes: usize) -> Result<(), CpuError> {
        let refused = || CpuError::System {
            what: format!("allocating {bytes} bytes of scratch memory"),
            source: std::io::ErrorKind::OutOfMemory.into(),
        };
        let layout = Layout::from_size_align(bytes, ALIGN).map_err(|_| refused())?;
        // SAFETY: the layout has a nonzero size.
        let memory = unsafe { alloc(layout) };
        if memory.is_null() {
            return Err(refused());
        }
        self.release();
        (self.memory, self.bytes) = (memory, bytes);
        Ok(())
    }

    fn release(&mut self) {
        if self.memory.is_null() {
            return;
        }
        if let Ok(layout) = Layout::from_size_align(self.bytes, ALIGN) {
            // SAFETY: `memory` came from `alloc` with this layout.
            unsafe { dealloc(self.memory, layout) };
        }
        (self.memory, self.bytes) = (std::ptr::null_mut(), 0);
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.release();
    }
}
