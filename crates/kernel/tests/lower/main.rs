//! Every op of the library, lowered with many mappings and run in the simulator against the
//! float64 interpreter.

mod batches;
mod common;
mod fallback;
mod matrix;
mod moments;
mod planned;
mod programs;
mod rows;
mod split;
