//! Metal Shading Language (MSL) for Apple GPUs, from the kernel IR, and the GPU of a Mac as a
//! device of the engine.

pub mod cases;
pub mod codegen;
pub mod host;

pub use codegen::{
    Binding, BindingKind, EmitError, Feature, Language, Module, Options, Sites, emit,
};
