//! What every backend offers and every launcher needs: devices, executables, buffers of the host
//! and of devices, queues with their clock, the memory check that comes before an allocation, and
//! the errors that backends share.

pub mod args;
pub mod buffer;
pub mod device;
pub mod device_buffer;
pub mod element;
pub mod error;
pub mod memory;
pub mod queue;
pub mod queued;

pub use args::ArgValue;
pub use buffer::Buffer;
pub use device::{Capabilities, CompilerReport, Device, Executable, ResourceReport, Roofline};
pub use device_buffer::{DEVICE_GUARD, DeviceBuffer};
pub use element::Element;
pub use error::{Failure, RuntimeError, Stage};
pub use queue::{Batch, Memory, MemorySpace, PreparedLaunch, Queue, Work};
pub use queued::{QueuedExecutable, QueuedKernel};
