//! PTX generation for NVIDIA GPUs from the kernel IR. Nothing but the driver is needed to
//! assemble and run the text.

pub mod codegen;
pub mod driver;

pub use codegen::{CodegenError, Ptx, PtxTarget, emit, emit_resident};
