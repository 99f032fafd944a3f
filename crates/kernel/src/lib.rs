//! The mapped kernel IR.
pub mod kernel;
pub mod builder;
