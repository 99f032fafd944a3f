//! The CPU backend: x86-64 machine code from the kernel IR, in process, and the CPU device.

pub mod codegen;
pub mod error;
pub mod exec;

pub use error::CpuError;
