//! Host buffers: typed, aligned to a cache line, with a guard zone on either side that tells
//! when somebody wrote past an end.

use crate::element::Element;
use crate::error::RuntimeError;
use crate::memory;
use half::{bf16, f16};
use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use tilewright_ir::{DType, parallel};

/// Alignment of the first element, in bytes.
pub const ALIGN: usize = 64;
/// Allocations of this size or more start at a multiple of it, so that all large buffers have the
/// same offset in a page. A load then doesn't share the low twelve address bits of a store to another
/// buffer shortly before it, which processors take for a dependency until they compare the rest
/// ("4K aliasing"). A loop that normalises 23 rows of 769 took 11 to 18 % longer on a Zen 4 with
/// the output 192 bytes after or 64 before the input, modulo a page, than with equal offsets.
const PAGE: u64 = 4096;
/// Bytes of each guard zone.
pub const GUARD: usize = 64;
/// Content of the guard zones.
pub(crate) const GUARD_BYTE: u8 = 0xA5;

/// An owned host buffer of `len` elements of one [`DType`].
///
/// The first element is aligned to [`ALIGN`] bytes. [`GUARD`] bytes before the first and after
/// the last element hold a pattern that [`Buffer::guards_intact`] checks.
pub struct Buffer {
    base: NonNull<u8>,
    layout: Layout,
    dtype: DType,
    len: usize,
}

// SAFETY: the buffer owns its memory alone and hands out references under the usual borrow rules.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference gives read access only.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer of `len` zeros.
    ///
    /// # Errors
    /// [`RuntimeError::OutOfMemory`] when the memory isn't there.
    pub fn zeros(dtype: DType, len: usize) -> Result<Self, RuntimeError> {
        let out_of_memory = |needed: u64| RuntimeError::OutOfMemory {
            what: format!("a buffer of {len} {dtype} elements"),
            needed,
            available: memory::available().unwrap_or(0),
        };
        let total = (len as u64)
            .checked_mul(dtype.bytes())
            .and_then(|bytes| bytes.checked_add(2 * GUARD as u64))
            .ok_or_else(|| out_of_memory(u64::MAX))?;
        memory::check(&format!("a buffer of {len} {dtype} elements"), total)?;
        let align = if total >= PAGE { PAGE as usize } else { ALIGN };
        let layout = usize::try_from(total)
            .ok()
            .and_then(|total| Layout::from_size_align(total, align).ok())
            .ok_or_else(|| out_of_memory(total))?;
        // SAFETY: the layout has a nonzero size (two guard zones).
        let base = NonNull::new(unsafe { alloc(layout) }).ok_or_else(|| out_of_memory(total))?;
        let end = layout.size() - GUARD;
        // SAFETY: all three ranges are inside the allocation of `layout.size()` bytes, as
        // GUARD ≤ end. Writing every byte also makes every element initialised.
        unsafe {
            base.as_ptr().write_bytes(GUARD_BYTE, GUARD);
            base.as_ptr().add(GUARD).write_bytes(0, end - GUARD);
            base.as_ptr().add(end).write_bytes(GUARD_BYTE, GUARD);
        }
        Ok(Buffer { base, layout, dtype, len })
    }

    /// A buffer with the elements of a slice.
    ///
    /// # Errors
    /// [`RuntimeError::OutOfMemory`].
    pub fn from_slice<T: Element>(values: &[T]) -> Result<Self, RuntimeError> {
        let mut buffer = Buffer::zeros(T::DTYPE, values.len())?;
        buffer.as_mut_slice::<T>()?.copy_from_slice(values);
        Ok(buffer)
    }

    /// A buffer with `values` rounded to `dtype`.
    ///
    /// # Errors
    /// [`RuntimeError::OutOfMemory`].
    pub fn from_f64(dtype: DType, values: &[f64]) -> Result<Self, RuntimeError> {
        let mut buffer = Buffer::zeros(dtype, values.len())?;
        buffer.write_f64(values)?;
        Ok(buffer)
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the elements, guards not counted.
    pub fn bytes(&self) -> usize {
        self.layout.size() - 2 * GUARD
    }

    /// Address of the first element.
    pub fn as_ptr(&self) -> *const u8 {
        // SAFETY: the elements start GUARD bytes into the allocation.
        unsafe { self.base.as_ptr().add(GUARD) }
    }

    /// Address of the first element, for writing.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        // SAFETY: as for `as_ptr`.
        unsafe { self.base.as_ptr().add(GUARD) }
    }

    /// The raw bytes of the elements.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: `bytes` initialised bytes start at `as_ptr`, borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.bytes()) }
    }

    /// The raw bytes of the elements, for writing. Any bytes are valid elements.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `as_bytes`, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.bytes()) }
    }

    fn expect_dtype(&self, asked: DType) -> Result<(), RuntimeError> {
        if self.dtype == asked {
            Ok(())
        } else {
            Err(RuntimeError::DType { holds: self.dtype, asked })
        }
    }

    /// The elements.
    ///
    /// # Errors
    /// [`RuntimeError::DType`] when they are of another type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], RuntimeError> {
        self.expect_dtype(T::DTYPE)?;
        // SAFETY: `len` elements of T's size, aligned to 64 bytes, initialised, any bits valid
        // (Element is sealed over such types).
        Ok(unsafe { std::slice::from_raw_parts(self.as_ptr().cast::<T>(), self.len) })
    }

    /// The elements, for writing.
    ///
    /// # Errors
    /// [`RuntimeError::DType`] when they are of another type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], RuntimeError> {
        self.expect_dtype(T::DTYPE)?;
        // SAFETY: as for `as_slice`, borrowed exclusively.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr().cast::<T>(), self.len) })
    }

    /// Every element as f64 (exact).
    pub fn to_f64(&self) -> Vec<f64> {
        fn read<T: Element>(buffer: &Buffer) -> Vec<f64> {
            match buffer.as_slice::<T>() {
                Ok(slice) => {
                    let mut values = vec![0.0; slice.len()];
                    parallel::convert(slice, &mut values, |x| x.to_f64());
                    values
                }
                Err(_) => Vec::new(),
            }
        }
        match self.dtype {
            DType::F32 => read::<f32>(self),
            DType::F64 => read::<f64>(self),
            DType::F16 => read::<f16>(self),
            DType::BF16 => read::<bf16>(self),
            DType::I32 => read::<i32>(self),
            DType::Bool => Vec::new(),
        }
    }

    /// Sets every element, rounded to the buffer's type.
    ///
    /// # Errors
    /// [`RuntimeError::Length`] when there are more or fewer values than elements.
    pub fn write_f64(&mut self, values: &[f64]) -> Result<(), RuntimeError> {
        if values.len() != self.len {
            return Err(RuntimeError::Length { has: self.len, asked: values.len() });
        }
        fn write<T: Element>(buffer: &mut Buffer, values: &[f64]) -> Result<(), RuntimeError> {
            parallel::convert(values, buffer.as_mut_slice::<T>()?, |x| T::from_f64(*x));
            Ok(())
        }
        match self.dtype {
            DType::F32 => write::<f32>(self, values),
            DType::F64 => write::<f64>(self, values),
            DType::F16 => write::<f16>(self, values),
            DType::BF16 => write::<bf16>(self, values),
            DType::I32 => write::<i32>(self, values),
            DType::Bool => Ok(()),
        }
    }

    /// Fills the elements with what no correct kernel produces by leaving them alone: NaN in
    /// float buffers, `i32::MIN + 0x5A5A5A` in integer ones.
    pub fn poison(&mut self) {
        fn fill<T: Element>(buffer: &mut Buffer, value: T) {
            if let Ok(slice) = buffer.as_mut_slice::<T>() {
                slice.fill(value);
            }
        }
        match self.dtype {
            DType::F32 => fill(self, f32::NAN),
            DType::F64 => fill(self, f64::NAN),
            DType::F16 => fill(self, f16::NAN),
            DType::BF16 => fill(self, bf16::NAN),
            DType::I32 => fill(self, i32::MIN + 0x5A5A5A),
            DType::Bool => {}
        }
    }

    /// Whether both guard zones still hold their pattern.
    pub fn guards_intact(&self) -> bool {
        let end = self.layout.size() - GUARD;
        // SAFETY: both zones are inside the allocation and initialised.
        let (before, after) = unsafe {
            (
                std::slice::from_raw_parts(self.base.as_ptr(), GUARD),
                std::slice::from_raw_parts(self.base.as_ptr().add(end), GUARD),
            )
        };
        before.iter().chain(after).all(|b| *b == GUARD_BYTE)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `base` came from `alloc` with this layout and is freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} {})", self.len, self.dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_was_written() {
        for dtype in DType::TENSOR {
            let values = [0.0, 1.0, -2.0, 3.0, 100.0];
            let buffer = Buffer::from_f64(dtype, &values).unwrap();
            assert_eq!(buffer.to_f64(), values);
            assert_eq!(buffer.as_ptr() as usize % ALIGN, 0);
            assert_eq!(buffer.bytes() as u64, 5 * dtype.bytes());
            assert!(buffer.guards_intact());
        }
    }

    #[test]
    fn a_write_past_either_end_is_seen() {
        for offset in [-1isize, 5 * 4] {
            let mut buffer = Buffer::zeros(DType::F32, 5).unwrap();
            let base = buffer.as_mut_ptr();
            // SAFETY: one byte before the first or after the last element is in a guard zone.
            unsafe { *base.offset(offset) = 0 };
            assert!(!buffer.guards_intact());
        }
    }

    #[test]
    fn poison_is_never_a_number() {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            let mut buffer = Buffer::zeros(dtype, 3).unwrap();
            buffer.poison();
            assert!(buffer.to_f64().iter().all(|x| x.is_nan()));
        }
    }

    #[test]
    fn wrong_types_lengths_and_sizes_are_errors() {
        let mut buffer = Buffer::zeros(DType::F32, 3).unwrap();
        assert!(matches!(buffer.as_slice::<f64>(), Err(RuntimeError::DType { .. })));
        assert!(matches!(buffer.write_f64(&[0.0]), Err(RuntimeError::Length { has: 3, asked: 1 })));
        let huge = Buffer::zeros(DType::F64, usize::MAX / 4);
        assert!(matches!(huge, Err(RuntimeError::OutOfMemory { .. })));
        assert!(Buffer::zeros(DType::F32, 0).unwrap().is_empty());
    }
}
