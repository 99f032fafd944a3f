//! Loops, conditions and roles, each as a closure form and as a begin/end pair.

use std::convert::Infallible;

use super::{KernelBuilder, scope};
use crate::kernel::*;

/// A loop whose body is being built.
#[derive(Debug)]
#[must_use = "close it with `end_for`"]
pub struct OpenLoop {
    index: ValueId,
    lo: ValueId,
    hi: ValueId,
    step: u64,
    unroll: u32,
    init: Vec<ValueId>,
    inner: Vec<ValueId>,
}

impl OpenLoop {
    /// The counter.
    pub fn index(&self) -> ValueId {
        self.index
    }

    /// The carried values as the body sees them.
    pub fn inner(&self) -> &[ValueId] {
        &self.inner
    }
}

/// A condition whose branches are being built.
#[derive(Debug)]
#[must_use = "close it with `end_if`"]
pub struct OpenIf {
    cond: ValueId,
    then: Option<(Block, Vec<ValueId>)>,
}

/// A role's block that is being built.
#[derive(Debug)]
#[must_use = "close it with `end_role`"]
pub struct OpenBlock {
    role: RoleId,
    registers: Option<u32>,
}

/// The result of something that can't fail.
fn never<T>(result: Result<T, Infallible>) -> T {
    match result {
        Ok(value) => value,
        Err(e) => match e {},
    }
}

impl KernelBuilder {
    fn open(&mut self) {
        self.blocks.push(Block::default());
        self.shared_ops.push(Default::default());
    }

    fn close(&mut self) -> Block {
        self.shared_ops.pop();
        self.blocks.pop().unwrap_or_default()
    }

    /// Opens a loop over `lo, lo + step, …` below `hi`.
    pub fn begin_for(
        &mut self,
        lo: ValueId,
        hi: ValueId,
        step: u64,
        unroll: u32,
        init: &[ValueId],
    ) -> OpenLoop {
        self.open();
        let depth = self.blocks.len() - 1;
        let index = self.fresh(Type::Elem(Elem::Index));
        self.kernel.values[index].scope = self.scope(lo).min(self.scope(hi));
        self.depth.insert(index, depth);
        let inner = init
            .iter()
            .map(|v| {
                let inner = self.fresh(self.ty(*v));
                self.kernel.values[inner].scope = self.scope(*v);
                self.depth.insert(inner, depth);
                inner
            })
            .collect();
        OpenLoop { index, lo, hi, step, unroll, init: init.to_vec(), inner }
    }

    /// Closes a loop; `next` is handed to the next trip. Returns the final values.
    pub fn end_for(&mut self, open: OpenLoop, next: &[ValueId]) -> Vec<ValueId> {
        let mut body = self.close();
        let carries: Vec<Carry> = open
            .init
            .iter()
            .zip(&open.inner)
            .zip(next)
            .map(|((init, inner), next)| Carry { init: *init, inner: *inner, next: *next })
            .collect();
        scope::settle(&mut self.kernel, &carries, &mut body);
        let types: Vec<_> = carries.iter().map(|c| self.ty(c.init)).collect();
        let OpenLoop { index, lo, hi, step, unroll, .. } = open;
        self.emit(Op::For { index, lo, hi, step, unroll, carries, body }, &types)
    }

    /// A loop over `lo, lo + step, …` below `hi`. `body` gets the builder, the counter and the
    /// carried values and returns the next ones. A loop that surely has no trip is left out, one
    /// that surely has one trip is placed as its body.
    ///
    /// # Errors
    /// Those of `body`.
    pub fn try_for<E>(
        &mut self,
        (lo, hi, step): (ValueId, ValueId, u64),
        unroll: u32,
        init: &[ValueId],
        body: impl FnOnce(&mut Self, ValueId, &[ValueId]) -> Result<Vec<ValueId>, E>,
    ) -> Result<Vec<ValueId>, E> {
        if let (Some(first), Some(end)) = (self.known(lo), self.known(hi)) {
            if first >= end {
                return Ok(init.to_vec());
            }
            if end - first <= step as i64 {
                return body(self, lo, init);
            }
        }
        let open = self.begin_for(lo, hi, step, unroll, init);
        let next = body(self, open.index, &open.inner)?;
        Ok(self.end_for(open, &next))
    }

    /// [`Self::try_for`] with a body that can't fail.
    pub fn for_loop(
        &mut self,
        range: (ValueId, ValueId, u64),
        unroll: u32,
        init: &[ValueId],
        body: impl FnOnce(&mut Self, ValueId, &[ValueId]) -> Vec<ValueId>,
    ) -> Vec<ValueId> {
        never(self.try_for(range, unroll, init, |b, i, c| Ok(body(b, i, c))))
    }

    /// Opens a condition; what follows is the branch where it holds.
    pub fn begin_if(&mut self, cond: ValueId) -> OpenIf {
        self.open();
        OpenIf { cond, then: None }
    }

    /// Ends the first branch with its values; what follows is the other branch.
    pub fn begin_else(&mut self, open: &mut OpenIf, values: &[ValueId]) {
        let then = self.close();
        open.then = Some((then, values.to_vec()));
        self.open();
    }

    /// Closes a condition. Without an else branch, `values` are those of the first branch and
    /// must be empty.
    pub fn end_if(&mut self, open: OpenIf, values: &[ValueId]) -> Vec<ValueId> {
        let last = self.close();
        let (then, then_values, otherwise, else_values) = match open.then {
            Some((then, then_values)) => (then, then_values, last, values.to_vec()),
            None => (last, Vec::new(), Block::default(), Vec::new()),
        };
        let types: Vec<_> = then_values.iter().map(|v| self.ty(*v)).collect();
        let op = Op::If { cond: open.cond, then, then_values, otherwise, else_values };
        self.emit(op, &types)
    }

    /// Runs one of two blocks and gives its values. A constant condition places only its branch.
    ///
    /// # Errors
    /// Those of the branches.
    pub fn try_if<E>(
        &mut self,
        cond: ValueId,
        then: impl FnOnce(&mut Self) -> Result<Vec<ValueId>, E>,
        otherwise: impl FnOnce(&mut Self) -> Result<Vec<ValueId>, E>,
    ) -> Result<Vec<ValueId>, E> {
        match self.known(cond) {
            Some(0) => return otherwise(self),
            Some(_) => return then(self),
            None => {}
        }
        let mut open = self.begin_if(cond);
        let values = then(self)?;
        self.begin_else(&mut open, &values);
        let values = otherwise(self)?;
        Ok(self.end_if(open, &values))
    }

    /// [`Self::try_if`] with branches that can't fail.
    pub fn if_else(
        &mut self,
        cond: ValueId,
        then: impl FnOnce(&mut Self) -> Vec<ValueId>,
        otherwise: impl FnOnce(&mut Self) -> Vec<ValueId>,
    ) -> Vec<ValueId> {
        never(self.try_if(cond, |b| Ok(then(b)), |b| Ok(otherwise(b))))
    }

    /// Runs a block where a condition holds.
    pub fn if_then(&mut self, cond: ValueId, then: impl FnOnce(&mut Self)) {
        let then = |b: &mut Self| {
            then(b);
            Vec::new()
        };
        self.if_else(cond, then, |_| Vec::new());
    }

    /// Opens a block that only the subgroups of a role run.
    pub fn begin_role(&mut self, role: RoleId, registers: Option<u32>) -> OpenBlock {
        self.open();
        OpenBlock { role, registers }
    }

    /// Closes a role's block.
    pub fn end_role(&mut self, open: OpenBlock) {
        let body = self.close();
        self.emit(Op::InRole { role: open.role, registers: open.registers, body }, &[]);
    }
}
