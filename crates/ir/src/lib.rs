//! Tile programs: what a kernel computes, with nothing said about the machine.

pub mod analysis;
pub mod builder;
pub mod entity;
pub mod facts;
pub mod interp;
pub mod ops;
pub mod oracle;
pub mod parallel;
pub mod program;
pub mod text;
pub mod types;
pub mod verify;

pub use program::Program;
pub use types::DType;
