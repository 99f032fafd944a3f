//! The text form of kernels: one statement per line, values with their type and scope.
//!
//! ```text
//! kernel scale lanes 32 subgroups 1 {
//!   grid n step 32
//!   arg x: buffer f32 in align 16
//!   arg y: buffer f32 out align 16
//!   arg n: index
//!
//!   %0: index@group = group_id 0
//!   %1: index@grid = const 32
//!   %2: index@group = mul %0, %1
//!   %3: index@grid = arg n
//!   %4: index@group = sub %3, %2
//!   %5: f32@lane = load x[%2 + lane*1] where count %4
//!   %6: f32@lane = add %5, %5
//!   store y[%2 + lane*1], %6 where count %4
//! }
//! ```
//!
//! A value is written `%name`. If the names of all values are the numbers 0 … n−1, they are the
//! positions in the arena; otherwise values are numbered in the order of their definitions. The
//! printer writes numbers, so printing and parsing gives back an equal kernel.
//!
//! Arguments, shared buffers, private arrays, barriers and roles share one name space. `//`
//! starts a comment.

mod lex;
mod parse;
mod parse_op;
mod print;

pub use parse::{Limits, ParseError, parse, parse_with_limits};
pub use print::{print, statement};

use crate::kernel::{Atom, Elem, FragmentRole, Order, Scope, Swizzle, Type, Value};
use std::fmt;

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Lane => f.write_str("lane"),
            Scope::Subgroup => f.write_str("subgroup"),
            Scope::SubgroupBlock(k) => write!(f, "block{k}"),
            Scope::Group => f.write_str("group"),
            Scope::Cluster => f.write_str("cluster"),
            Scope::Grid => f.write_str("grid"),
        }
    }
}

impl fmt::Display for Elem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Elem::Index => f.write_str("index"),
            Elem::Data(dtype) => write!(f, "{dtype}"),
        }
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Atom::Simdgroup8x8 => f.write_str("simdgroup8x8"),
            Atom::OuterProduct { rows, vectors } => write!(f, "outer_product({rows}, {vectors})"),
            Atom::Mpp { rows, cols } => write!(f, "mpp({rows}, {cols})"),
            Atom::MmaSync { m, n, k } => write!(f, "mma_sync({m}, {n}, {k})"),
            Atom::Wgmma { m, n, k } => write!(f, "wgmma({m}, {n}, {k})"),
        }
    }
}

impl fmt::Display for FragmentRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FragmentRole::A => "a",
            FragmentRole::B => "b",
            FragmentRole::Accumulator => "acc",
        })
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Elem(elem) => write!(f, "{elem}"),
            Type::Fragment { atom, role, dtype } => write!(f, "fragment<{atom}, {role}, {dtype}>"),
            Type::Token => f.write_str("token"),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.ty, self.scope)
    }
}

impl fmt::Display for Swizzle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Swizzle::None => "none",
            Swizzle::B32 => "b32",
            Swizzle::B64 => "b64",
            Swizzle::B128 => "b128",
        })
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::Relaxed => "relaxed",
            Order::Acquire => "acquire",
            Order::Release => "release",
            Order::AcqRel => "acq_rel",
        })
    }
}
