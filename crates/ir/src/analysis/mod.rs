//! Analyses: what can be proved about a verified program. The vocabulary is in [`crate::facts`].
//!
//! Nothing here looks at names: a program that a user wrote is treated as the library's are. A
//! proof is by the structure of the program and by extents: two extents are equal if they are the
//! same dimension or the same known size. A block dimension that no plan has bound has no known
//! size. Tensors that are only read are assumed not to alias tensors that are written (a launch
//! precondition), and symbolic strides are assumed not to make elements of an output overlap (a
//! launch precondition as well).

mod coverage;
mod extents;
mod matrix;
mod payload;
mod print;
mod rows;
mod uses;

pub use print::print;

use crate::facts::{Fact, Facts, Family};
use crate::program::{Access, Op, Program, TensorId};
use uses::Uses;

/// Proves what can be proved about a verified program.
pub fn facts(program: &Program) -> Facts {
    let uses = Uses::of(program);
    let coverage = coverage::coverage(program, &uses);
    let read_only = read_only(program, &uses);
    let uncovered = coverage.iter().find_map(|(tensor, fact)| match fact {
        Fact::Proved(_) => None,
        Fact::Unknown(reason) => {
            let name = &program.tensors[*tensor].name;
            Some(format!("`{name}` isn't proved to be written exactly once: {reason}"))
        }
    });
    let has_mma = uses.order.iter().any(|op| matches!(program.ops[*op].op, Op::Mma { .. }));
    let family = match uncovered {
        Some(reason) => Family::Other(reason),
        None if has_mma => match matrix::matrix(program, &uses, &read_only) {
            Ok(facts) => Family::Matrix(Box::new(facts)),
            Err(reason) => Family::Other(reason),
        },
        None => match rows::rows(program, &uses) {
            Ok(facts) => Family::Rows(Box::new(facts)),
            Err(reason) => Family::Other(reason),
        },
    };
    Facts { coverage, read_only, family }
}

/// Per tensor that some operation loads: nothing writes it.
fn read_only(program: &Program, uses: &Uses) -> Vec<(TensorId, Fact<()>)> {
    let touched = |tensor: TensorId, store: bool| {
        uses.order.iter().any(|op| match program.ops[*op].op {
            Op::Load { tensor: t, .. } => !store && t == tensor,
            Op::Store { tensor: t, .. } => store && t == tensor,
            _ => false,
        })
    };
    program
        .tensors
        .iter()
        .filter(|(id, _)| touched(*id, false))
        .map(|(id, tensor)| {
            let fact = if touched(id, true) {
                Fact::Unknown("the program stores to it".to_string())
            } else if tensor.access != Access::In {
                Fact::Unknown("it isn't declared as an input, so it may alias one".to_string())
            } else {
                Fact::Proved(())
            };
            (id, fact)
        })
        .collect()
}
