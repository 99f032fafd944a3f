//! NVIDIA GPUs: PTX from the kernel IR, and a device that runs it. Nothing but the driver is
//! needed to assemble and run the text, and it is loaded at run time: the same program starts on a
//! machine without one.

pub mod codegen;
mod device;
pub mod driver;
mod exec;
mod queue;
pub mod residency;
mod roofline;
pub mod target;

pub use codegen::{CodegenError, Ptx, PtxTarget, emit, emit_for};
pub use device::CudaDevice;
pub use exec::limit_of;
