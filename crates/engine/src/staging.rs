//! Host tensors of a launch on a device with memory of its own: copied there and back.

use crate::signature::Signature;
use crate::tensor::TensorArg;
use std::sync::Arc;
use tilewright_ir::program::Access;
use tilewright_runtime::{DeviceBuffer, MemorySpace, Queue, RuntimeError};

/// Device copies of a launch's host tensors.
pub(crate) struct Staged {
    copies: Vec<DeviceBuffer>,
    /// Where outputs go: the copy, and the host address of its bytes.
    back: Vec<(usize, *mut u8)>,
}

impl Staged {
    /// Copies every tensor in host memory to the device and makes the argument point there.
    /// Outputs are copied too: gaps between their rows keep what they hold.
    ///
    /// # Errors
    /// [`RuntimeError::OutOfMemory`], or the device's words.
    pub(crate) fn upload(
        queue: &Arc<dyn Queue>,
        signature: &Signature,
        tensors: &mut [TensorArg<'_>],
    ) -> Result<Self, RuntimeError> {
        let mut staged = Staged { copies: Vec::new(), back: Vec::new() };
        for (sig, tensor) in signature.tensors.iter().zip(tensors) {
            if tensor.space != MemorySpace::Host {
                continue;
            }
            let bytes = tensor.len * tensor.dtype.bytes() as usize;
            let from: &[u8] = if bytes == 0 {
                &[]
            } else {
                // SAFETY: a host tensor is `len` initialised elements of its type, borrowed by
                // the caller of the launch for longer than this call.
                unsafe { std::slice::from_raw_parts(tensor.ptr, bytes) }
            };
            let copy = DeviceBuffer::from_bytes(queue, tensor.dtype, from)?;
            if sig.access != Access::In {
                staged.back.push((staged.copies.len(), tensor.ptr));
            }
            (tensor.ptr, tensor.space) = (copy.address(), copy.space());
            staged.copies.push(copy);
        }
        Ok(staged)
    }

    /// Copies the outputs back.
    ///
    /// # Errors
    /// The device's words.
    ///
    /// # Safety
    /// The host outputs that [`Staged::upload`] was given are still borrowed exclusively by the
    /// caller, and nobody else reads or writes them.
    pub(crate) unsafe fn download(self) -> Result<(), RuntimeError> {
        for (at, ptr) in self.back {
            let copy = &self.copies[at];
            if copy.bytes() == 0 {
                continue;
            }
            // SAFETY: the output has exactly the copy's bytes; the rest is the caller's promise.
            let to = unsafe { std::slice::from_raw_parts_mut(ptr, copy.bytes()) };
            copy.read(to)?;
        }
        Ok(())
    }
}
