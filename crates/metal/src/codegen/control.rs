//! Loops and branches.

use std::collections::HashSet;

use tilewright_ir::program::MapOp;
use tilewright_kernel::kernel::{Block, Carry, Elem, Memory, Op, Place, Stmt, Type, ValueId};

use super::EmitError;
use super::emitter::{Emitter, type_name};
use super::fragment::Fragment;
use super::index::{Range, Val};

/// Most trips of a loop that is unrolled because it indexes a private array.
const UNROLL: i64 = 128;

impl Emitter<'_> {
    pub(super) fn for_loop(&mut self, stmt: &Stmt) -> Result<(), EmitError> {
        let Op::For { index, lo, hi, step, unroll, carries, body } = &stmt.op else {
            return Err(self.unsupported("a loop without a body"));
        };
        let (lo, hi) = (self.val(*lo)?, self.val(*hi)?);
        let step = i64::try_from(*step).unwrap_or(i64::MAX);
        let mut variables = Vec::with_capacity(carries.len());
        for carry in carries {
            variables.push(self.carry(carry)?);
        }
        self.pragma(*unroll, (&lo, &hi, step), *index, body);
        // The counter passes the last trip by a step.
        let end = Val::int(step);
        let past = self.index(MapOp::Add, &hi, &end)?.range;
        let ty = if lo.range.join(past).is_narrow() { "int" } else { "long" };
        let name = Self::name(*index);
        let range = Range::new(lo.range.lo, hi.range.hi.saturating_sub(1));
        let range = if ty == "long" && range.is_narrow() {
            // The variable is wide, so expressions of it are.
            Range::FULL
        } else {
            range
        };
        let advance = if step == 1 { format!("++{name}") } else { format!("{name} += {step}") };
        self.open(format!(
            "for ({ty} {name} = {}; {name} < {}; {advance}) {{",
            lo.text,
            hi.operand()
        ));
        self.values.insert(*index, Val::name(name, range));
        self.block(body)?;
        self.advance(carries, &variables)?;
        self.close("}");
        for (variable, result) in variables.iter().zip(&stmt.results) {
            match variable {
                Variable::Element(name) => {
                    self.values.insert(*result, Val::name(name.clone(), Range::FULL));
                }
                Variable::Fragment(name) => {
                    self.fragments.insert(*result, Fragment::Variable(name.clone()));
                }
            }
        }
        Ok(())
    }

    /// Declares the variable of a carried value.
    fn carry(&mut self, carry: &Carry) -> Result<Variable, EmitError> {
        match self.kernel.values[carry.inner].ty {
            Type::Elem(elem) => {
                let (init, name) = (self.val(carry.init)?, Self::name(carry.inner));
                let ty = match elem {
                    Elem::Index => "long",
                    Elem::Data(dtype) => type_name(dtype),
                };
                self.line(format!("{ty} {name} = {};", init.text));
                self.values.insert(carry.inner, Val::name(name.clone(), Range::FULL));
                Ok(Variable::Element(name))
            }
            Type::Fragment { .. } => {
                let name = self.own(carry.init, carry.inner)?;
                self.fragments.insert(carry.inner, Fragment::Variable(name.clone()));
                Ok(Variable::Fragment(name))
            }
            Type::Token => Err(self.unsupported("asynchronous work")),
        }
    }

    /// Gives the carried variables their next values, all at once.
    fn advance(&mut self, carries: &[Carry], variables: &[Variable]) -> Result<(), EmitError> {
        let fragments: Vec<&String> = variables
            .iter()
            .filter_map(|v| match v {
                Variable::Fragment(name) => Some(name),
                Variable::Element(_) => None,
            })
            .collect();
        let mut assignments = Vec::new();
        for (carry, variable) in carries.iter().zip(variables) {
            match variable {
                Variable::Element(name) => {
                    let next = self.val(carry.next)?;
                    if next.text != *name {
                        assignments.push((name.clone(), next.text, carry));
                    }
                }
                Variable::Fragment(name) => {
                    // One assignment after another, so none may read what another has written.
                    if let Fragment::Variable(next) = self.fragment(carry.next)?
                        && next != *name
                        && fragments.contains(&&next)
                    {
                        return Err(self.unsupported("fragments that change places in a loop"));
                    }
                    self.carry_fragment(name, carry.next)?;
                }
            }
        }
        let targets: HashSet<String> = assignments.iter().map(|a| a.0.clone()).collect();
        // A value that is another variable is taken before that changes.
        for (_, next, carry) in &mut assignments {
            if targets.contains(next) {
                let name = Self::temporary('n', carry.inner);
                let ty = match self.elem(carry.inner)? {
                    Elem::Index => "long",
                    Elem::Data(dtype) => type_name(dtype),
                };
                self.line(format!("const {ty} {name} = {next};"));
                *next = name;
            }
        }
        for (name, next, _) in assignments {
            self.line(format!("{name} = {next};"));
        }
        Ok(())
    }

    /// How the compiler should unroll: as the kernel asks, and fully where a private array is
    /// indexed by the counter, so that it can live in registers.
    fn pragma(
        &mut self,
        unroll: u32,
        (lo, hi, step): (&Val, &Val, i64),
        index: ValueId,
        body: &Block,
    ) {
        let few = lo
            .known()
            .zip(hi.known())
            .is_some_and(|(lo, hi)| hi.saturating_sub(lo) / step.max(1) <= UNROLL);
        if unroll == 0 || (few && indexes_private(body, index)) {
            self.line("#pragma clang loop unroll(full)");
        } else if unroll > 1 {
            self.line(format!("#pragma clang loop unroll_count({unroll})"));
        }
    }

    pub(super) fn branch(&mut self, stmt: &Stmt) -> Result<(), EmitError> {
        let Op::If { cond, then, then_values, otherwise, else_values } = &stmt.op else {
            return Err(self.unsupported("a branch without blocks"));
        };
        let cond = self.val(*cond)?;
        let mut names = Vec::new();
        for result in &stmt.results {
            let ty = match self.kernel.values[*result].ty {
                Type::Elem(Elem::Index) => "long",
                Type::Elem(Elem::Data(dtype)) => type_name(dtype),
                Type::Fragment { .. } => {
                    return Err(self.unsupported("a fragment that a branch gives"));
                }
                Type::Token => return Err(self.unsupported("asynchronous work")),
            };
            let name = Self::name(*result);
            self.line(format!("{ty} {name};"));
            names.push(name);
        }
        self.open(format!("if ({}) {{", cond.text));
        self.arm(then, then_values, &names)?;
        if !otherwise.stmts.is_empty() || !else_values.is_empty() {
            self.close("} else {");
            self.depth_in();
            self.arm(otherwise, else_values, &names)?;
        }
        self.close("}");
        for (result, name) in stmt.results.iter().zip(names) {
            self.values.insert(*result, Val::name(name, Range::FULL));
        }
        Ok(())
    }

    fn arm(
        &mut self,
        block: &Block,
        values: &[ValueId],
        names: &[String],
    ) -> Result<(), EmitError> {
        self.block(block)?;
        for (name, value) in names.iter().zip(values) {
            let val = self.val(*value)?;
            self.line(format!("{name} = {};", val.text));
        }
        Ok(())
    }
}

/// A carried value in the text.
enum Variable {
    Element(String),
    Fragment(String),
}

/// Whether a private array is indexed by something that the loop counter determines.
fn indexes_private(body: &Block, index: ValueId) -> bool {
    let mut derived = HashSet::from([index]);
    scan(body, &mut derived)
}

fn scan(block: &Block, derived: &mut HashSet<ValueId>) -> bool {
    let private = |place: &Place, derived: &HashSet<ValueId>| {
        matches!(place.memory, Memory::Private(_)) && derived.contains(&place.base)
    };
    for stmt in &block.stmts {
        match &stmt.op {
            Op::Map { args, .. } if args.iter().any(|a| derived.contains(a)) => {
                derived.extend(stmt.results.iter().copied());
            }
            Op::Load { place, .. } | Op::Store { place, .. } if private(place, derived) => {
                return true;
            }
            _ => {
                if stmt.op.blocks().into_iter().flatten().any(|b| scan(b, derived)) {
                    return true;
                }
            }
        }
    }
    false
}
