//! The mapped kernel IR.
pub mod builder;
pub mod flat;
pub mod kernel;
pub mod layout;
pub mod lower;
pub mod sim;
pub mod text;
pub mod validate;
pub mod visit;
