//! Tile programs: what a kernel computes, with nothing said about the machine.

pub mod builder;
pub mod entity;
pub mod facts;
pub mod interp;
pub mod ops;
pub mod program;
pub mod types;

pub use program::Program;
pub use types::DType;
