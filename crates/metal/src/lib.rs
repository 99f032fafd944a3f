//! Metal Shading Language (MSL) for Apple GPUs, from the kernel IR.

pub mod codegen;

pub use codegen::{
    Binding, BindingKind, EmitError, Feature, Language, Module, Options, Sites, emit,
};
