//! The mapped kernel IR.
pub mod kernel;
