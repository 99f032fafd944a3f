//! The verifier. Every rule has a name ([`Rule`]); an error says which rule, where, and the fix.
//! All errors of a program are reported, not only the first.
//!
//! What it doesn't prove: that the grid's instances are independent and that every output element
//! is written exactly once (facts, see `crate::analysis`; the interpreter checks it on a given
//! shape), and that an access with assumed bounds stays inside for *symbolic* sizes (a launch
//! precondition).

mod bounds;
mod declarations;
mod rule;
mod structure;
mod typing;

use std::fmt;

use crate::entity::Id;
use crate::program::*;
use crate::text::Places;

pub use rule::Rule;

/// What an error is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// The program as a whole.
    Program,
    /// A dimension.
    Dim(DimId),
    /// A tensor.
    Tensor(TensorId),
    /// A scalar parameter.
    Scalar(ScalarId),
    /// An axis.
    Axis(AxisId),
    /// An index variable.
    Index(IndexId),
    /// A value; it is where its definition is.
    Value(ValueId),
    /// An operation.
    Op(OpId),
}

/// A broken rule.
#[derive(Clone, PartialEq, Debug)]
pub struct VerifyError {
    /// Which rule.
    pub rule: Rule,
    /// What broke it.
    pub place: Place,
    /// Where it was written; line 0 if the program was built in Rust.
    pub loc: Loc,
    /// What is wrong and how to put it right.
    pub message: String,
}

impl VerifyError {
    /// Fills in the place of a declaration in the source that the program was parsed from.
    pub(crate) fn locate(&mut self, places: &Places) {
        let loc = match self.place {
            Place::Dim(d) => places.dims.get(d.index()),
            Place::Tensor(t) => places.tensors.get(t.index()),
            Place::Scalar(s) => places.scalars.get(s.index()),
            Place::Axis(a) => places.axes.get(a.index()),
            Place::Index(i) => places.indices.get(i.index()),
            Place::Program | Place::Value(_) | Place::Op(_) => None,
        };
        if let Some(loc) = loc {
            self.loc = *loc;
        }
    }
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.loc.line > 0 {
            write!(f, "{}:{}: ", self.loc.line, self.loc.column)?;
        }
        write!(f, "[{}] {}", self.rule, self.message)
    }
}

impl std::error::Error for VerifyError {}

/// Checks every rule.
///
/// # Errors
/// All broken rules, declarations first, then operations in execution order. Errors of structure
/// (an id that opens nothing, an operation in two blocks) are reported alone, since the other
/// rules can't be asked then.
pub fn verify(program: &Program) -> Result<(), Vec<VerifyError>> {
    let mut definitions = vec![None; program.values.len()];
    for (id, data) in program.ops.iter() {
        for value in &data.results {
            // A dangling result is reported by `structure::ids`.
            if let Some(definition) = definitions.get_mut(value.index()) {
                *definition = Some(id);
            }
        }
    }
    let mut check = Check { program, definitions, errors: Vec::new() };
    structure::ids(&mut check);
    if check.errors.is_empty() {
        declarations::check(&mut check);
        structure::check(&mut check);
        typing::check(&mut check);
        bounds::check(&mut check);
    }
    match check.errors.is_empty() {
        true => Ok(()),
        false => Err(check.errors),
    }
}

/// The program and the errors found so far.
struct Check<'a> {
    program: &'a Program,
    /// The operation that defines each value, as far as one does.
    definitions: Vec<Option<OpId>>,
    errors: Vec<VerifyError>,
}

impl Check<'_> {
    fn error(&mut self, rule: Rule, place: Place, message: String) {
        let loc = match place {
            Place::Op(op) => self.program.ops.get(op).map(|o| o.loc).unwrap_or_default(),
            Place::Value(value) => {
                let op = self.definitions.get(value.index()).copied().flatten();
                op.map(|op| self.program.ops[op].loc).unwrap_or_default()
            }
            _ => Loc::default(),
        };
        self.errors.push(VerifyError { rule, place, loc, message });
    }

    fn require(&mut self, holds: bool, rule: Rule, place: Place, message: impl FnOnce() -> String) {
        if !holds {
            self.error(rule, place, message());
        }
    }

    fn value(&self, value: ValueId) -> String {
        format!("`%{}`", self.program.values[value].name)
    }

    fn axes(&self, axes: &[AxisId]) -> String {
        let names: Vec<&str> = axes.iter().map(|a| self.program.axes[*a].name.as_str()).collect();
        format!("[{}]", names.join(", "))
    }
}

/// Whether two axis lists hold the same axes in any order.
fn same_axes(a: &[AxisId], b: &[AxisId]) -> bool {
    a.len() == b.len() && a.iter().all(|x| b.contains(x))
}

#[cfg(test)]
mod tests;
