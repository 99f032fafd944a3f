//! Types and numbers of operands and results, and where values must be uniform.

use super::{At, Checker, Rule};
use crate::kernel::*;
use tilewright_ir::DType;
use tilewright_ir::entity::Id;
use tilewright_ir::program::{MapOp, ReduceOp};

const BOOL: Type = Type::Elem(Elem::Data(DType::Bool));
const INDEX: Type = Type::Elem(Elem::Index);

/// Whether values of the type may be computed with, not only moved.
fn computes(elem: Elem) -> bool {
    !matches!(elem, Elem::Data(DType::F16 | DType::BF16))
}

fn is_float(elem: Elem) -> bool {
    matches!(elem, Elem::Data(d) if d.is_float())
}

impl Checker<'_> {
    /// The element type of a value that is no fragment or token.
    fn elem(&self, id: ValueId) -> Option<Elem> {
        match self.ty(id) {
            Type::Elem(elem) => Some(elem),
            _ => None,
        }
    }

    pub(super) fn operand_type(&mut self, at: At<'_>, message: impl Into<String>) {
        self.statement(Rule::OperandType, at, message);
    }

    /// Demands a type of a value.
    fn expect(&mut self, at: At<'_>, value: ValueId, ty: Type, what: &str) {
        let found = self.ty(value);
        if found != ty {
            let message = format!("{what} %{} is {found}, not {ty}", value.index());
            self.operand_type(at, message);
        }
    }

    /// Demands an index value that is uniform at least over `scope`.
    pub(super) fn uniform_index(&mut self, at: At<'_>, value: ValueId, scope: Scope, what: &str) {
        self.expect(at, value, INDEX, what);
        self.uniform(at, value, scope, what);
    }

    pub(super) fn uniform(&mut self, at: At<'_>, value: ValueId, scope: Scope, what: &str) {
        if self.scope(value) < self.canonical(scope) {
            let message = format!(
                "{what} %{} has scope {}; it must be uniform over the {scope}",
                value.index(),
                self.value(value).scope
            );
            self.statement(Rule::Uniform, at, message);
        }
    }

    /// Checks what doesn't concern memory or fragments.
    pub(super) fn types(&mut self, at: At<'_>) {
        let results = at.stmt.results.as_slice();
        if let Some(count) = result_count(&at.stmt.op)
            && results.len() != count
        {
            let message = format!("the operation gives {count} values, not {}", results.len());
            self.statement(Rule::ResultCount, at, message);
            return;
        }
        match (&at.stmt.op, results) {
            (Op::Const(literal), &[r]) => self.literal(at, *literal, r),
            (Op::Arg(id), &[r]) => match self.kernel.args[*id].kind {
                ArgKind::Number(elem) => self.expect(at, r, Type::Elem(elem), "the result"),
                _ => self.operand_type(at, "only a number argument has a value"),
            },
            (Op::GroupId(dim), &[r]) => {
                if *dim as usize >= self.kernel.grid.len() {
                    let message = format!("the grid has {} dimensions", self.kernel.grid.len());
                    self.operand_type(at, message);
                }
                self.expect(at, r, INDEX, "the result");
            }
            (Op::ClusterRank | Op::SubgroupId | Op::Lane, &[r]) => {
                self.expect(at, r, INDEX, "the result");
            }
            (Op::Map { op, args }, &[r]) => self.map(at, *op, args, r),
            (Op::Fma { a, b, c }, &[r]) => {
                let ty = self.ty(r);
                if !matches!(ty, Type::Elem(Elem::Data(DType::F32 | DType::F64))) {
                    self.operand_type(at, format!("fma is on f32 or f64, not {ty}"));
                }
                for value in [*a, *b, *c] {
                    self.expect(at, value, ty, "the operand");
                }
            }
            (Op::Cast(value), &[r]) => {
                if let (Some(_), Some(_)) = (self.elem(*value), self.elem(r)) {
                    return;
                }
                match (self.ty(*value), self.ty(r)) {
                    (
                        Type::Fragment { atom: a, role: FragmentRole::Accumulator, .. },
                        Type::Fragment { atom: b, role: FragmentRole::Accumulator, .. },
                    ) if a == b => {}
                    (from, to) => self.operand_type(at, format!("{from} doesn't become {to}")),
                }
            }
            (Op::Collective { op, value }, &[r]) => self.collective(at, *op, *value, r),
            (Op::For { index, lo, hi, step, carries, .. }, _) => {
                if *step == 0 || i64::try_from(*step).is_err() {
                    self.statement(Rule::LoopStep, at, "a step is 1 to 2^63 - 1");
                }
                self.expect(at, *index, INDEX, "the counter");
                self.uniform_index(at, *lo, Scope::Subgroup, "the bound");
                self.uniform_index(at, *hi, Scope::Subgroup, "the bound");
                for (carry, &result) in carries.iter().zip(results) {
                    let ty = self.ty(carry.init);
                    self.expect(at, carry.inner, ty, "the carried value");
                    self.expect(at, carry.next, ty, "the next value");
                    self.expect(at, result, ty, "the result");
                }
            }
            (Op::If { cond, then_values, else_values, .. }, _) => {
                self.expect(at, *cond, BOOL, "the condition");
                if then_values.len() != else_values.len() {
                    let message = format!(
                        "the branches hand over {} and {} values",
                        then_values.len(),
                        else_values.len()
                    );
                    self.statement(Rule::ResultCount, at, message);
                }
                for ((&a, &b), &result) in then_values.iter().zip(else_values).zip(results) {
                    let ty = self.ty(result);
                    self.expect(at, a, ty, "the value of the branch");
                    self.expect(at, b, ty, "the value of the branch");
                }
            }
            (Op::MbarrierInit { stage, .. }, _) => {
                self.uniform_index(at, *stage, Scope::Subgroup, "the stage");
            }
            (Op::MbarrierArrive { stage, expect, .. }, _) => {
                self.uniform_index(at, *stage, Scope::Subgroup, "the stage");
                if let Some(bytes) = expect {
                    self.uniform_index(at, *bytes, Scope::Subgroup, "the number of bytes");
                }
            }
            (Op::MbarrierWait { stage, parity, .. }, _) => {
                self.uniform_index(at, *stage, Scope::Subgroup, "the stage");
                self.uniform_index(at, *parity, Scope::Subgroup, "the parity");
            }
            (Op::Wait { tokens, .. }, _) => {
                for &token in tokens {
                    self.expect(at, token, Type::Token, "the operand");
                }
            }
            _ => {}
        }
    }

    fn literal(&mut self, at: At<'_>, literal: Literal, result: ValueId) {
        let ok = match (self.ty(result), literal) {
            (Type::Elem(Elem::Index), Literal::Int(_)) => true,
            (BOOL, Literal::Int(n)) => n == 0 || n == 1,
            (Type::Elem(Elem::Data(DType::I32)), Literal::Int(n)) => i32::try_from(n).is_ok(),
            (Type::Elem(Elem::Data(d)), Literal::Float(x)) if d.is_float() => {
                x.is_nan() || d.round(x).to_bits() == x.to_bits()
            }
            _ => false,
        };
        if !ok {
            let message = format!(
                "the literal is no value of {}: whole numbers for index, i32 and bool (0 or 1), \
                 exact floats for float types",
                self.ty(result)
            );
            self.statement(Rule::LiteralValue, at, message);
        }
    }

    fn map(&mut self, at: At<'_>, op: MapOp, args: &[ValueId], result: ValueId) {
        if args.len() != op.arity() {
            let (name, arity) = (op.name(), op.arity());
            return self.operand_type(at, format!("{name} takes {arity} operands"));
        }
        let mut values = args;
        if op == MapOp::Select {
            self.expect(at, args[0], BOOL, "the condition");
            values = &args[1..];
        }
        let Some(elem) = self.elem(values[0]) else {
            return self.operand_type(at, "fragments have fragment_map");
        };
        for &value in values {
            self.expect(at, value, Type::Elem(elem), "the operand");
        }
        let ty = if op.is_comparison() { BOOL } else { Type::Elem(elem) };
        self.expect(at, result, ty, "the result");
        if !map_takes(op, elem) {
            self.operand_type(at, format!("{} isn't defined on {elem}", op.name()));
        }
    }

    fn collective(&mut self, at: At<'_>, op: Collective, value: ValueId, result: ValueId) {
        let Some(elem) = self.elem(value) else {
            return self.operand_type(at, "collectives are on elements");
        };
        self.expect(at, result, Type::Elem(elem), "the result");
        let is_bool = elem == Elem::Data(DType::Bool);
        match op {
            Collective::Reduce(fold) => {
                let index_mul = elem == Elem::Index && fold == ReduceOp::Mul;
                if is_bool || !computes(elem) || index_mul {
                    self.operand_type(at, format!("{} isn't defined on {elem}", fold.name()));
                }
            }
            Collective::Any if !is_bool => self.operand_type(at, "any is on bool"),
            Collective::Any => {}
            Collective::Broadcast(lane) | Collective::ShuffleXor(lane) => {
                if lane >= self.kernel.lanes {
                    let message = format!("the subgroup has {} lanes", self.kernel.lanes);
                    self.statement(Rule::LaneNumber, at, message);
                }
            }
        }
    }
}

/// Whether an elementwise operation takes operands of the type (of `select`: the last two).
pub(super) fn map_takes(op: MapOp, elem: Elem) -> bool {
    use MapOp::*;
    let is_bool = elem == Elem::Data(DType::Bool);
    match op {
        Select => true,
        Eq | Ne => computes(elem),
        _ if op.is_comparison() => computes(elem) && !is_bool,
        _ if op.is_logical() => is_bool,
        _ if op.is_float_only() => is_float(elem) && computes(elem),
        Add | Sub | Mul | Div | Mod | Min | Max => computes(elem) && !is_bool,
        _ => computes(elem) && !is_bool && elem != Elem::Index,
    }
}

/// Number of results; `None` where the memory rules say.
fn result_count(op: &Op) -> Option<usize> {
    Some(match op {
        Op::Load { .. } => return None,
        Op::For { carries, .. } => carries.len(),
        Op::If { then_values, .. } => then_values.len(),
        Op::MmaAsync { .. } => 2,
        Op::Store { .. }
        | Op::Barrier(_)
        | Op::BarrierArrive(_)
        | Op::BarrierWait(_)
        | Op::ProxyFence
        | Op::InRole { .. }
        | Op::FragmentStore { .. }
        | Op::CopyTensor { .. }
        | Op::MbarrierInit { .. }
        | Op::MbarrierArrive { .. }
        | Op::MbarrierWait { .. }
        | Op::Wait { .. } => 0,
        _ => 1,
    })
}
