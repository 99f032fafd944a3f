//! The CPU backend: x86-64 machine code from the kernel IR, in process, and the CPU device.

#[cfg(target_arch = "x86_64")]
pub mod codegen;
pub mod error;
#[cfg(target_arch = "x86_64")]
pub mod exec;
pub mod pool;
pub mod scratch;

pub use error::CpuError;
