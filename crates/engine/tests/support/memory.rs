//! Host memory that passes for a device's.

use tilewright_runtime::{Memory, RuntimeError};

/// What a device's memory is aligned to, in bytes.
const ALIGNMENT: usize = 256;

/// Memory that starts as zeros.
pub struct Bytes {
    words: Vec<u64>,
    bytes: usize,
}

impl Bytes {
    pub fn new(bytes: usize) -> Bytes {
        Bytes { words: vec![0; (bytes + ALIGNMENT).div_ceil(8)], bytes }
    }

    fn range(&self, offset: usize, len: usize) -> Result<*mut u8, RuntimeError> {
        assert!(offset + len <= self.bytes, "{offset} + {len} of {}", self.bytes);
        Ok(self.address().wrapping_add(offset))
    }
}

impl Memory for Bytes {
    fn address(&self) -> *mut u8 {
        let start = self.words.as_ptr().cast_mut().cast::<u8>();
        start.wrapping_add(start.align_offset(ALIGNMENT))
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), RuntimeError> {
        let to = self.range(offset, from.len())?;
        // SAFETY: the range was checked, and the slices don't overlap.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        Ok(())
    }
    fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), RuntimeError> {
        let from = self.range(offset, to.len())?;
        // SAFETY: the range was checked, and the slices don't overlap.
        unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
        Ok(())
    }
    fn fill(&mut self, offset: usize, len: usize, byte: u8) -> Result<(), RuntimeError> {
        // SAFETY: the range was checked.
        unsafe { self.range(offset, len)?.write_bytes(byte, len) };
        Ok(())
    }
}
