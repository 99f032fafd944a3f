//! A planning problem: the numbers that a planner needs of a program, taken from its facts.
//!
//! A symbolic dimension has a *nominal* size, at which candidates are scored; legality is decided
//! for every size that the dimension allows (by its divisor and its bound).

pub mod matrix;
pub mod mix;
pub mod moments;
pub mod rows;

pub use matrix::MatrixProblem;
pub use rows::{DomainNumbers, RowProblem, VariantNumbers};

/// A problem of either family.
#[derive(Clone, Copy, Debug)]
pub enum Problem<'a> {
    /// Rows.
    Rows(&'a RowProblem),
    /// Matrix product.
    Matrix(&'a MatrixProblem),
}
