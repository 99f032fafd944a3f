//! The mapped kernel IR.
pub mod kernel;
pub mod builder;
pub mod text;
pub mod visit;
pub mod lower;
pub mod validate;
pub mod sim;
pub mod flat;
pub mod layout;
