//! Machine code for x86-64 from the kernel IR.

pub mod tile;
