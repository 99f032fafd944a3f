//! The text form of tile programs (`.tile`): a printer, a parser, and [`read`], which parses and
//! verifies.
//!
//! ```text
//! program softmax {
//!   dim rows: symbolic max 2147483647
//!   dim cols: symbolic divisor 4 max 16777216
//!   dim ldx: symbolic max 16777216
//!   in x: f32[rows, cols] strides [ldx, 1] align 16
//!   out y: f32[rows, cols]
//!   axis j: cols
//!   grid r: rows step 1
//!
//!   %x = load x[r, :j]                     // a coordinate: origin, `:` axis
//!   %m = reduce max %x over j
//!   %mb = broadcast %m to [j]
//!   %d = sub %x, %mb
//!   %e = exp %d
//!   %s = reduce add %e over j
//!   %sb = broadcast %s to [j]
//!   %y = div %e, %sb
//!   store y[r, :j], %y
//! }
//! ```
//!
//! One declaration or operation a line; `//` starts a comment. The grammar, with `[x]` for an
//! optional `x` and `x, …` for a list:
//!
//! ```text
//! dim NAME: static N | symbolic [divisor N] max N | block N
//! in|out|inout NAME: DTYPE[EXTENT, …] [strides [EXTENT, …]] [align BYTES]
//! scalar NAME: DTYPE [nonzero]
//! axis NAME: EXTENT
//! grid NAME: EXTENT step EXTENT
//!
//! %V[: TYPE] = const NUMBER DTYPE
//! %V = scalar NAME
//! %V = size EXTENT
//! %V = index COORD
//! %V = load TENSOR[COORD, …] [fill NUMBER]
//! store TENSOR[COORD, …], %V [clip]
//! %V = MAP %V, …
//! %V = cast %V to DTYPE
//! %V = broadcast %V to [AXIS, …]
//! %V = reduce FOLD %V over AXIS [order ORDER]
//! %V = mma %A, %B, %C [ordered]
//! %V = reindex %V [AXIS -> AXIS, …]
//! [%V, … =] for serial|pipeline N NAME in EXTENT step EXTENT [carry %V = %INIT, …] {
//!   …
//!   [yield %V, …]
//! }
//! ```
//!
//! An `EXTENT` is a number or a dimension; a `COORD` is a sum of index variables times integers,
//! an integer and at most one `%value` (a gather), then `:AXIS` if an axis runs along it. Types of
//! values follow from the operation; an annotation `%v: f32[j, i]` overrides (the order of axes).
//! Floats are printed as the shortest decimal that reads back as the same value; `inf`, `-inf` and
//! `nan` are numbers.
//!
//! Printing then parsing gives an equal [`Program`] when its arenas are in text order, which is
//! how the builder and the parser fill them; printing what was parsed is a fixed point.

mod infer;
mod lex;
mod op;
mod parse;
mod print;

use crate::program::{Loc, Program};
use crate::verify::{VerifyError, verify};

pub use parse::parse;
pub use print::print;

/// Longest source accepted, in bytes.
pub const MAX_SOURCE: usize = 1 << 20;
/// Deepest nesting of loops accepted, here and by the verifier.
pub const MAX_NESTING: usize = 16;
/// Longest name accepted, here and by the verifier.
pub const MAX_NAME: usize = 128;
/// Most entries of a bracketed list (sizes, coordinates, axes).
pub const MAX_LIST: usize = 32;
/// Number of errors after which the parser gives up.
pub const MAX_ERRORS: usize = 20;

/// A place where a source isn't a program.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("{}:{}: {message}", loc.line, loc.column)]
pub struct ParseError {
    /// Where.
    pub loc: Loc,
    /// What was expected, what was found, and the fix.
    pub message: String,
}

/// Places of the declarations of a parsed program, indexed as its arenas.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Of the dimensions.
    pub dims: Vec<Loc>,
    /// Of the tensors.
    pub tensors: Vec<Loc>,
    /// Of the scalars.
    pub scalars: Vec<Loc>,
    /// Of the axes.
    pub axes: Vec<Loc>,
    /// Of the index variables.
    pub indices: Vec<Loc>,
}

/// Why a source isn't a verified program.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ReadError {
    /// It doesn't parse. At least one error, in order.
    #[error("{}", lines(.0))]
    Parse(Vec<ParseError>),
    /// It breaks rules. At least one error, each with its place.
    #[error("{}", lines(.0))]
    Verify(Vec<VerifyError>),
}

fn lines<T: std::fmt::Display>(errors: &[T]) -> String {
    errors.iter().map(T::to_string).collect::<Vec<_>>().join("\n")
}

/// Parses and verifies a program.
///
/// # Errors
/// Syntax errors, else broken rules; each with line and column.
pub fn read(source: &str) -> Result<Program, ReadError> {
    let (program, places) = parse::parse_with_places(source).map_err(ReadError::Parse)?;
    match verify(&program) {
        Ok(()) => Ok(program),
        Err(mut errors) => {
            for error in &mut errors {
                error.locate(&places);
            }
            errors.sort_by_key(|error| (error.loc.line, error.loc.column));
            Err(ReadError::Verify(errors))
        }
    }
}

#[cfg(test)]
mod tests;
