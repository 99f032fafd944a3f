//! What a caller hands to a launch: borrowed memory of the host or of a device with a type and, if
//! it isn't packed, a shape and strides.

use tilewright_ir::DType;
use tilewright_runtime::{Buffer, DeviceBuffer, Element, MemorySpace};

/// One tensor of a launch: memory, type, and what the caller says about its shape.
#[derive(Clone, Copy, Debug)]
pub struct TensorArg<'a> {
    /// Address of the first element. Only written through if the tensor is an output.
    pub ptr: *mut u8,
    /// The memory that the address lies in.
    pub space: MemorySpace,
    /// Elements that may be touched from `ptr` on.
    pub len: usize,
    /// Element type.
    pub dtype: DType,
    /// Sizes, outermost first; `None` leaves them to be inferred from `len`.
    pub shape: Option<&'a [u64]>,
    /// Strides in elements, outermost first; `None` means packed rows.
    pub strides: Option<&'a [u64]>,
}

mod sealed {
    /// Implementors hand out memory that they really borrow; the launch relies on that.
    pub trait Sealed {}
    impl<T> Sealed for &[T] {}
    impl<T> Sealed for &mut [T] {}
    impl<T> Sealed for Vec<T> {}
    impl<T, const N: usize> Sealed for [T; N] {}
    impl Sealed for super::Buffer {}
    impl Sealed for super::DeviceBuffer {}
    impl<T> Sealed for super::View<'_, T> {}
    impl<T> Sealed for super::ViewMut<'_, T> {}
    impl Sealed for super::DeviceView<'_> {}
    impl Sealed for super::DeviceViewMut<'_> {}
}

/// Something that a launch reads: slices, vectors, arrays, [`Buffer`]s, [`DeviceBuffer`]s and
/// [`View`]s.
pub trait Input: sealed::Sealed {
    /// The tensor, to be read only.
    fn tensor(&self) -> TensorArg<'_>;
}

/// Something that a launch writes: slices, vectors, arrays, [`Buffer`]s, [`DeviceBuffer`]s and
/// [`ViewMut`]s.
pub trait Output: sealed::Sealed {
    /// The tensor, to be written.
    fn tensor_mut(&mut self) -> TensorArg<'_>;
}

fn read<T: Element>(slice: &[T]) -> TensorArg<'_> {
    TensorArg {
        ptr: slice.as_ptr().cast_mut().cast(),
        space: MemorySpace::Host,
        len: slice.len(),
        dtype: T::DTYPE,
        shape: None,
        strides: None,
    }
}

fn write<T: Element>(slice: &mut [T]) -> TensorArg<'_> {
    TensorArg {
        ptr: slice.as_mut_ptr().cast(),
        space: MemorySpace::Host,
        len: slice.len(),
        dtype: T::DTYPE,
        shape: None,
        strides: None,
    }
}

impl<T: Element> Input for &[T] {
    fn tensor(&self) -> TensorArg<'_> {
        read(self)
    }
}

impl<T: Element> Input for Vec<T> {
    fn tensor(&self) -> TensorArg<'_> {
        read(self)
    }
}

impl<T: Element, const N: usize> Input for [T; N] {
    fn tensor(&self) -> TensorArg<'_> {
        read(self)
    }
}

impl Input for Buffer {
    fn tensor(&self) -> TensorArg<'_> {
        TensorArg {
            ptr: self.as_ptr().cast_mut(),
            space: MemorySpace::Host,
            len: self.len(),
            dtype: self.dtype(),
            shape: None,
            strides: None,
        }
    }
}

impl<T: Element> Output for &mut [T] {
    fn tensor_mut(&mut self) -> TensorArg<'_> {
        write(self)
    }
}

impl<T: Element> Output for Vec<T> {
    fn tensor_mut(&mut self) -> TensorArg<'_> {
        write(self)
    }
}

impl<T: Element, const N: usize> Output for [T; N] {
    fn tensor_mut(&mut self) -> TensorArg<'_> {
        write(self)
    }
}

impl Output for Buffer {
    fn tensor_mut(&mut self) -> TensorArg<'_> {
        let ptr = self.as_mut_ptr();
        let (len, dtype) = (self.len(), self.dtype());
        TensorArg { ptr, space: MemorySpace::Host, len, dtype, shape: None, strides: None }
    }
}

fn resident(buffer: &DeviceBuffer) -> TensorArg<'_> {
    TensorArg {
        ptr: buffer.address(),
        space: buffer.space(),
        len: buffer.len(),
        dtype: buffer.dtype(),
        shape: None,
        strides: None,
    }
}

impl Input for DeviceBuffer {
    fn tensor(&self) -> TensorArg<'_> {
        resident(self)
    }
}

impl Output for DeviceBuffer {
    fn tensor_mut(&mut self) -> TensorArg<'_> {
        resident(self)
    }
}

/// A tensor to read with an explicit shape and, optionally, strides (a padded matrix).
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T> {
    data: &'a [T],
    shape: &'a [u64],
    strides: Option<&'a [u64]>,
}

impl<'a, T: Element> View<'a, T> {
    /// Packed rows of the given shape.
    pub fn new(data: &'a [T], shape: &'a [u64]) -> Self {
        View { data, shape, strides: None }
    }

    /// With strides in elements, outermost first.
    pub fn strided(data: &'a [T], shape: &'a [u64], strides: &'a [u64]) -> Self {
        View { data, shape, strides: Some(strides) }
    }
}

impl<T: Element> Input for View<'_, T> {
    fn tensor(&self) -> TensorArg<'_> {
        TensorArg { shape: Some(self.shape), strides: self.strides, ..read(self.data) }
    }
}

/// A tensor to write with an explicit shape and, optionally, strides.
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    data: &'a mut [T],
    shape: &'a [u64],
    strides: Option<&'a [u64]>,
}

impl<'a, T: Element> ViewMut<'a, T> {
    /// Packed rows of the given shape.
    pub fn new(data: &'a mut [T], shape: &'a [u64]) -> Self {
        ViewMut { data, shape, strides: None }
    }

    /// With strides in elements, outermost first.
    pub fn strided(data: &'a mut [T], shape: &'a [u64], strides: &'a [u64]) -> Self {
        ViewMut { data, shape, strides: Some(strides) }
    }
}

impl<T: Element> Output for ViewMut<'_, T> {
    fn tensor_mut(&mut self) -> TensorArg<'_> {
        TensorArg { shape: Some(self.shape), strides: self.strides, ..write(self.data) }
    }
}

/// A device buffer to read with an explicit shape and, optionally, strides.
#[derive(Clone, Copy, Debug)]
pub struct DeviceView<'a> {
    buffer: &'a DeviceBuffer,
    shape: &'a [u64],
    strides: Option<&'a [u64]>,
}

impl<'a> DeviceView<'a> {
    /// Packed rows of the given shape.
    pub fn new(buffer: &'a DeviceBuffer, shape: &'a [u64]) -> Self {
        DeviceView { buffer, shape, strides: None }
    }

    /// With strides in elements, outermost first.
    pub fn strided(buffer: &'a DeviceBuffer, shape: &'a [u64], strides: &'a [u64]) -> Self {
        DeviceView { buffer, shape, strides: Some(strides) }
    }
}

impl Input for DeviceView<'_> {
    fn tensor(&self) -> TensorArg<'_> {
        TensorArg { shape: Some(self.shape), strides: self.strides, ..resident(self.buffer) }
    }
}

/// A device buffer to write with an explicit shape and, optionally, strides.
#[derive(Debug)]
pub struct DeviceViewMut<'a> {
    buffer: &'a mut DeviceBuffer,
    shape: &'a [u64],
    strides: Option<&'a [u64]>,
}

impl<'a> DeviceViewMut<'a> {
    /// Packed rows of the given shape.
    pub fn new(buffer: &'a mut DeviceBuffer, shape: &'a [u64]) -> Self {
        DeviceViewMut { buffer, shape, strides: None }
    }

    /// With strides in elements, outermost first.
    pub fn strided(buffer: &'a mut DeviceBuffer, shape: &'a [u64], strides: &'a [u64]) -> Self {
        DeviceViewMut { buffer, shape, strides: Some(strides) }
    }
}

impl Output for DeviceViewMut<'_> {
    fn tensor_mut(&mut self) -> TensorArg<'_> {
        TensorArg { shape: Some(self.shape), strides: self.strides, ..resident(self.buffer) }
    }
}
