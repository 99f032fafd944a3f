//! Typed buffers in a device's memory, with guard zones like those of host buffers.

use crate::buffer::{Buffer, GUARD_BYTE};
use crate::error::RuntimeError;
use crate::queue::{Memory, MemorySpace, Queue};
use std::sync::Arc;
use tilewright_ir::DType;

/// Bytes of each guard zone: a whole alignment unit of device memory.
pub const DEVICE_GUARD: usize = 256;

/// An owned buffer of `len` elements of one [`DType`] in a device's memory.
///
/// The first element is aligned to 256 bytes. [`DEVICE_GUARD`] bytes before the first and after
/// the last element hold a pattern that [`DeviceBuffer::guards_intact`] checks.
pub struct DeviceBuffer {
    memory: Box<dyn Memory>,
    queue: Arc<dyn Queue>,
    dtype: DType,
    len: usize,
    bytes: usize,
}

impl DeviceBuffer {
    /// A buffer whose elements are poisoned; see [`DeviceBuffer::poison`].
    ///
    /// # Errors
    /// [`RuntimeError::OutOfMemory`], or the device's words.
    pub fn new(queue: &Arc<dyn Queue>, dtype: DType, len: usize) -> Result<Self, RuntimeError> {
        let mut buffer = DeviceBuffer::unset(queue, dtype, len)?;
        buffer.poison()?;
        Ok(buffer)
    }

    /// A buffer with the elements of a host buffer.
    ///
    /// # Errors
    /// [`RuntimeError::OutOfMemory`], or the device's words.
    pub fn from_host(queue: &Arc<dyn Queue>, host: &Buffer) -> Result<Self, RuntimeError> {
        let mut buffer = DeviceBuffer::unset(queue, host.dtype(), host.len())?;
        buffer.upload(host)?;
        Ok(buffer)
    }

    /// A buffer with the elements that these bytes hold.
    ///
    /// # Errors
    /// [`RuntimeError::Length`] when they are no whole elements; as [`DeviceBuffer::from_host`].
    pub fn from_bytes(
        queue: &Arc<dyn Queue>,
        dtype: DType,
        from: &[u8],
    ) -> Result<Self, RuntimeError> {
        let len = from.len() / (dtype.bytes() as usize).max(1);
        let mut buffer = DeviceBuffer::unset(queue, dtype, len)?;
        buffer.write(from)?;
        Ok(buffer)
    }

    /// A buffer with its guard zones and elements of any content.
    fn unset(queue: &Arc<dyn Queue>, dtype: DType, len: usize) -> Result<Self, RuntimeError> {
        let bytes = len.checked_mul(dtype.bytes() as usize);
        let total = bytes.and_then(|b| b.checked_add(2 * DEVICE_GUARD));
        let (Some(bytes), Some(total)) = (bytes, total) else {
            return Err(RuntimeError::OutOfMemory {
                what: format!("a device buffer of {len} {dtype} elements"),
                needed: u64::MAX,
                available: 0,
            });
        };
        let mut memory = queue.alloc(total)?;
        memory.fill(0, DEVICE_GUARD, GUARD_BYTE)?;
        memory.fill(DEVICE_GUARD + bytes, DEVICE_GUARD, GUARD_BYTE)?;
        Ok(DeviceBuffer { memory, queue: queue.clone(), dtype, len, bytes })
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
        self.bytes
    }

    /// The space that the address lies in.
    pub fn space(&self) -> MemorySpace {
        self.queue.space()
    }

    /// Device address of the first element. Nothing that the host may follow.
    pub fn address(&self) -> *mut u8 {
        self.memory.address().wrapping_add(DEVICE_GUARD)
    }

    /// Sets all elements from a host buffer; returns when done.
    ///
    /// # Errors
    /// Another type or length, or the device's words.
    pub fn upload(&mut self, host: &Buffer) -> Result<(), RuntimeError> {
        self.matches(host)?;
        self.write(host.as_bytes())
    }

    /// Sets all elements from bytes; returns when done.
    ///
    /// # Errors
    /// [`RuntimeError::Length`], or the device's words.
    pub fn write(&mut self, from: &[u8]) -> Result<(), RuntimeError> {
        self.same_bytes(from.len())?;
        self.memory.write(DEVICE_GUARD, from)
    }

    /// Copies all elements to a host buffer; returns when done.
    ///
    /// # Errors
    /// Another type or length, or the device's words.
    pub fn download(&self, host: &mut Buffer) -> Result<(), RuntimeError> {
        self.matches(host)?;
        self.read(host.as_bytes_mut())
    }

    /// Copies all elements to bytes; returns when done.
    ///
    /// # Errors
    /// [`RuntimeError::Length`], or the device's words.
    pub fn read(&self, to: &mut [u8]) -> Result<(), RuntimeError> {
        self.same_bytes(to.len())?;
        self.memory.read(DEVICE_GUARD, to)
    }

    /// Fills the elements with what no correct kernel produces by leaving them alone: NaN in
    /// float buffers, 0xa6a6a6a6 in integer ones.
    ///
    /// # Errors
    /// The device's words.
    pub fn poison(&mut self) -> Result<(), RuntimeError> {
        let byte = if self.dtype.is_float() { 0xff } else { 0xa6 };
        self.memory.fill(DEVICE_GUARD, self.bytes, byte)
    }

    /// Whether both guard zones still hold their pattern.
    ///
    /// # Errors
    /// The device's words.
    pub fn guards_intact(&self) -> Result<bool, RuntimeError> {
        for offset in [0, DEVICE_GUARD + self.bytes] {
            let mut zone = [0u8; DEVICE_GUARD];
            self.memory.read(offset, &mut zone)?;
            if zone.iter().any(|b| *b != GUARD_BYTE) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn matches(&self, host: &Buffer) -> Result<(), RuntimeError> {
        if host.dtype() != self.dtype {
            return Err(RuntimeError::DType { holds: self.dtype, asked: host.dtype() });
        }
        self.same_bytes(host.bytes())
    }

    fn same_bytes(&self, bytes: usize) -> Result<(), RuntimeError> {
        if bytes == self.bytes {
            return Ok(());
        }
        let width = (self.dtype.bytes() as usize).max(1);
        Err(RuntimeError::Length { has: self.len, asked: bytes / width })
    }
}

impl std::fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceBuffer({} {}, {})", self.len, self.dtype, self.space())
    }
}
