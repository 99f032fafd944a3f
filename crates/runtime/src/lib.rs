//! What every backend offers and every launcher needs: devices, executables, buffers, the
//! memory check that comes before an allocation, and the errors that backends share.

pub mod args;
pub mod buffer;
pub mod device;
pub mod element;
pub mod error;
pub mod memory;

pub use args::ArgValue;
pub use buffer::Buffer;
pub use device::{Capabilities, Device, Executable, ResourceReport, Roofline};
pub use element::Element;
pub use error::{Failure, RuntimeError, Stage};
