//! What a finished kernel leaves out: pure statements that nothing reads, and unused value
//! numbers. Values are numbered in the order of their definition.

use std::collections::HashMap;

use tilewright_ir::entity::Arena;

use crate::kernel::*;

/// Removes what nothing reads and renumbers the values.
pub(super) fn tidy(kernel: &mut Kernel) {
    let mut body = std::mem::take(&mut kernel.body);
    let mut used = vec![false; kernel.values.len()];
    sweep(&mut body, &mut used);
    let mut renumber = Renumber { old: &kernel.values, new: Arena::new(), map: HashMap::new() };
    renumber.block(&mut body);
    kernel.values = renumber.new;
    kernel.body = body;
}

fn mark(used: &mut [bool], value: ValueId) {
    use tilewright_ir::entity::Id;
    used[value.index()] = true;
}

fn is_used(used: &[bool], value: &ValueId) -> bool {
    use tilewright_ir::entity::Id;
    used[value.index()]
}

/// Whether a statement does nothing but define its results.
fn is_pure(op: &Op) -> bool {
    match op {
        Op::Const(_)
        | Op::Arg(_)
        | Op::GroupId(_)
        | Op::ClusterRank
        | Op::SubgroupId
        | Op::Lane
        | Op::Map { .. }
        | Op::Fma { .. }
        | Op::Cast(_)
        | Op::Load { .. }
        | Op::FragmentFill(_)
        | Op::FragmentLoad(_)
        | Op::FragmentMap { .. } => true,
        Op::For { body, .. } => body.stmts.is_empty(),
        Op::If { then, otherwise, .. } => then.stmts.is_empty() && otherwise.stmts.is_empty(),
        _ => false,
    }
}

/// Backwards through a block: keeps what has an effect or is read.
fn sweep(block: &mut Block, used: &mut [bool]) {
    let mut kept = Vec::new();
    for mut stmt in std::mem::take(&mut block.stmts).into_iter().rev() {
        match &mut stmt.op {
            Op::For { carries, body, .. } => {
                // A carry that is read after the loop or by the body keeps its next value, which
                // may keep others: all are kept, loops carry what they need.
                carries.iter().for_each(|c| mark(used, c.next));
                sweep(body, used);
            }
            Op::If { then, then_values, otherwise, else_values, .. } => {
                then_values.iter().chain(else_values.iter()).for_each(|v| mark(used, *v));
                sweep(then, used);
                sweep(otherwise, used);
            }
            Op::InRole { body, .. } => sweep(body, used),
            _ => {}
        }
        if is_pure(&stmt.op) && !stmt.results.iter().any(|r| is_used(used, r)) {
            continue;
        }
        stmt.op.for_each_operand(&mut |v| mark(used, v));
        kept.push(stmt);
    }
    kept.reverse();
    block.stmts = kept;
}

struct Renumber<'a> {
    old: &'a Arena<ValueId, Value>,
    new: Arena<ValueId, Value>,
    map: HashMap<ValueId, ValueId>,
}

impl Renumber<'_> {
    fn define(&mut self, value: &mut ValueId) {
        let new = self.new.push(self.old[*value].clone());
        self.map.insert(*value, new);
        *value = new;
    }

    fn read(&self, value: &mut ValueId) {
        if let Some(new) = self.map.get(value) {
            *value = *new;
        }
    }

    fn block(&mut self, block: &mut Block) {
        for stmt in &mut block.stmts {
            stmt.op.for_each_operand_mut(&mut |v| self.read(v));
            match &mut stmt.op {
                Op::For { index, carries, body, .. } => {
                    self.define(index);
                    carries.iter_mut().for_each(|c| self.define(&mut c.inner));
                    self.block(body);
                    carries.iter_mut().for_each(|c| self.read(&mut c.next));
                }
                Op::If { then, then_values, otherwise, else_values, .. } => {
                    self.block(then);
                    then_values.iter_mut().for_each(|v| self.read(v));
                    self.block(otherwise);
                    else_values.iter_mut().for_each(|v| self.read(v));
                }
                Op::InRole { body, .. } => self.block(body),
                _ => {}
            }
            stmt.results.iter_mut().for_each(|r| self.define(r));
        }
    }
}

fn place_mut(place: &mut Place, f: &mut impl FnMut(&mut ValueId)) {
    f(&mut place.base);
    place.index.iter_mut().for_each(f);
}

fn guard_mut(guard: &mut Option<Guard>, f: &mut impl FnMut(&mut ValueId)) {
    if let Some(guard) = guard {
        match &mut guard.test {
            GuardTest::Count(value) | GuardTest::Mask(value) => f(value),
        }
    }
}

fn view_mut(view: &mut View, f: &mut impl FnMut(&mut ValueId)) {
    f(&mut view.base);
    f(&mut view.row_stride);
    f(&mut view.col_stride);
    view.rows.iter_mut().for_each(&mut *f);
    view.cols.iter_mut().for_each(f);
}

fn operand_mut(operand: &mut Operand, f: &mut impl FnMut(&mut ValueId)) {
    match operand {
        Operand::Fragment(value) => f(value),
        Operand::View(view) => view_mut(view, f),
    }
}

impl Op {
    /// As [`Op::for_each_operand`], to change the operands.
    pub fn for_each_operand_mut(&mut self, f: &mut impl FnMut(&mut ValueId)) {
        match self {
            Op::Const(_)
            | Op::Arg(_)
            | Op::GroupId(_)
            | Op::ClusterRank
            | Op::SubgroupId
            | Op::Lane
            | Op::Barrier(_)
            | Op::BarrierArrive(_)
            | Op::BarrierWait(_)
            | Op::ProxyFence
            | Op::InRole { .. }
            | Op::FragmentFill(_) => {}
            Op::Map { args, .. } | Op::FragmentMap { args, .. } => args.iter_mut().for_each(f),
            Op::Fma { a, b, c } => [a, b, c].into_iter().for_each(f),
            Op::Cast(value) => f(value),
            Op::Load { place, guard } => {
                place_mut(place, f);
                guard_mut(guard, f);
            }
            Op::Store { place, values, guard } => {
                place_mut(place, f);
                values.iter_mut().for_each(&mut *f);
                guard_mut(guard, f);
            }
            Op::Atomic { place, value, guard, .. } => {
                place_mut(place, f);
                f(value);
                guard_mut(guard, f);
            }
            Op::Collective { value, .. } => f(value),
            Op::For { lo, hi, carries, .. } => {
                f(lo);
                f(hi);
                carries.iter_mut().for_each(|c| f(&mut c.init));
            }
            Op::If { cond, .. } => f(cond),
            Op::FragmentLoad(view) => view_mut(view, f),
            Op::FragmentStore { fragment, view, .. } => {
                f(fragment);
                view_mut(view, f);
            }
            Op::Mma { a, b, c, depth } => {
                operand_mut(a, f);
                operand_mut(b, f);
                f(c);
                depth.iter_mut().for_each(f);
            }
            Op::MmaAsync { a, b, c } => {
                operand_mut(a, f);
                operand_mut(b, f);
                f(c);
            }
            Op::CopyAsync { to, from, guard, .. } => {
                place_mut(to, f);
                place_mut(from, f);
                guard_mut(guard, f);
            }
            Op::CopyTensor { coords, offset, stage, .. } => {
                coords.iter_mut().for_each(&mut *f);
                f(offset);
                f(stage);
            }
            Op::MbarrierInit { stage, .. } => f(stage),
            Op::MbarrierArrive { stage, expect, .. } => {
                f(stage);
                expect.iter_mut().for_each(f);
            }
            Op::MbarrierWait { stage, parity, .. } => {
                f(stage);
                f(parity);
            }
            Op::Wait { tokens, .. } => tokens.iter_mut().for_each(f),
        }
    }
}
