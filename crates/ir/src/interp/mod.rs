//! The float64 interpreter: what a program means, element by element. It is the oracle that every
//! backend's output is checked against.

pub mod scalar;
