//! The CPU backend: x86-64 machine code from the kernel IR, in process, and the CPU device.

#[cfg(target_arch = "x86_64")]
pub mod codegen;
pub mod device;
pub mod error;
#[cfg(target_arch = "x86_64")]
pub mod exec;
pub mod host;
#[cfg(target_arch = "x86_64")]
pub mod listing;
#[cfg(target_arch = "x86_64")]
pub mod native;
pub mod pool;
pub mod portable;
pub mod program;
pub mod roofline;
pub mod scratch;

pub use device::{CpuDevice, CpuExecutable, CpuKernel, CpuOptions};
pub use error::CpuError;
pub use program::Streaming;
