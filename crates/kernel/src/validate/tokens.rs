//! Tokens are consumed exactly once; what is in flight isn't read.
//!
//! A token is consumed by a wait that lists it, by a loop that carries it in or on, or by a
//! branch that hands it over. A fragment that an asynchronous atom gives stays in flight until a
//! wait consumes its token; carried together with its token, it is in flight with the carried
//! token. The simulator checks the same on the path that runs.

use super::{At, Checker, Rule};
use crate::kernel::*;
use std::collections::{HashMap, HashSet};
use tilewright_ir::entity::Id;

#[derive(Clone, Default)]
struct State {
    /// Tokens that exist and aren't consumed.
    open: HashSet<ValueId>,
    /// Fragments in flight, with their token.
    flight: HashMap<ValueId, ValueId>,
    /// Accumulators that an asynchronous atom took over.
    taken: HashSet<ValueId>,
}

struct Pass<'c, 'a> {
    c: &'c mut Checker<'a>,
    number: usize,
}

pub(super) fn check(c: &mut Checker<'_>) {
    let kernel = c.kernel;
    let mut any = false;
    kernel.body.walk(&mut |s| {
        any |= matches!(s.op, Op::MmaAsync { .. } | Op::CopyAsync { .. } | Op::Wait { .. });
    });
    if any {
        Pass { c, number: 0 }.block(&kernel.body, &mut State::default(), &[], None);
    }
}

impl Pass<'_, '_> {
    /// Walks a block. `yields` leave it; all other tokens that it makes must be consumed in it.
    fn block(
        &mut self,
        block: &Block,
        state: &mut State,
        yields: &[ValueId],
        owner: Option<At<'_>>,
    ) {
        let outer = state.open.clone();
        let mut last = owner;
        for stmt in &block.stmts {
            let at = At { stmt, number: self.number };
            self.number += 1;
            self.stmt(at, state);
            last = Some(at);
        }
        for &value in yields {
            if self.c.ty(value) == Type::Token
                && let Some(at) = owner
            {
                self.consume(at, state, value);
            }
        }
        let mut left: Vec<ValueId> =
            state.open.iter().copied().filter(|t| !outer.contains(t)).collect();
        left.sort();
        for token in left {
            state.open.remove(&token);
            if let Some(at) = last {
                let message = format!("no wait consumes %{}, made in this block", token.index());
                self.c.statement(Rule::TokenOnce, at, message);
            }
        }
    }

    fn consume(&mut self, at: At<'_>, state: &mut State, token: ValueId) {
        if !state.open.remove(&token) {
            let message = format!("%{} is already consumed", token.index());
            self.c.statement(Rule::TokenOnce, at, message);
        }
    }

    /// A fragment is read by `at`.
    fn read(&mut self, at: At<'_>, state: &State, value: ValueId) {
        if state.flight.contains_key(&value) {
            let message = format!("%{} is in flight: wait for its token", value.index());
            self.c.statement(Rule::InFlight, at, message);
        }
        if state.taken.contains(&value) {
            let message =
                format!("an asynchronous atom took over %{}: read its result", value.index());
            self.c.statement(Rule::AccumulatorReuse, at, message);
        }
    }

    fn stmt(&mut self, at: At<'_>, state: &mut State) {
        match &at.stmt.op {
            Op::MmaAsync { a, b, c } => {
                for operand in [a, b] {
                    if let Operand::Fragment(value) = operand {
                        self.read(at, state, *value);
                    }
                }
                // Chaining in flight on one accumulator is in order; reading it is not.
                if !state.taken.insert(*c) {
                    let message = format!("%{} is already taken over", c.index());
                    self.c.statement(Rule::AccumulatorReuse, at, message);
                }
                if let &[result, token] = at.stmt.results.as_slice() {
                    state.open.insert(token);
                    state.flight.insert(result, token);
                }
            }
            Op::CopyAsync { .. } => state.open.extend(&at.stmt.results),
            Op::Wait { tokens, .. } => {
                for &token in tokens {
                    self.consume(at, state, token);
                }
                state.flight.retain(|_, token| !tokens.contains(token));
            }
            Op::For { carries, body, .. } => self.for_loop(at, state, carries, body),
            Op::If { then, then_values, otherwise, else_values, .. } => {
                self.branch(at, state, [(then, then_values), (otherwise, else_values)]);
            }
            Op::InRole { body, .. } => self.block(body, state, &[], Some(at)),
            op => op.for_each_operand(&mut |v| self.read(at, state, v)),
        }
    }

    fn for_loop(&mut self, at: At<'_>, state: &mut State, carries: &[Carry], body: &Block) {
        // The token that flies a carried fragment is carried beside it, or the fragment is read
        // at the loop.
        let partner = |state: &State, pick: fn(&Carry) -> ValueId, fragment: ValueId| {
            let token = state.flight.get(&fragment)?;
            carries.iter().position(|c| pick(c) == *token)
        };
        let entry: Vec<Option<usize>> =
            carries.iter().map(|c| partner(state, |c| c.init, c.init)).collect();
        for (carry, with) in carries.iter().zip(&entry) {
            if with.is_none() {
                self.read(at, state, carry.init);
            }
            if self.c.ty(carry.init) == Type::Token {
                self.consume(at, state, carry.init);
            }
        }
        let mut inside = state.clone();
        let before = inside.open.clone();
        for (carry, with) in carries.iter().zip(&entry) {
            if self.c.ty(carry.inner) == Type::Token {
                inside.open.insert(carry.inner);
            }
            if let Some(with) = with {
                inside.flight.insert(carry.inner, carries[*with].inner);
            }
        }
        let next: Vec<ValueId> = carries.iter().map(|c| c.next).collect();
        self.block(body, &mut inside, &next, Some(at));
        let mut uneven: Vec<_> = before.symmetric_difference(&inside.open).collect();
        uneven.sort();
        for token in uneven {
            let message = format!("%{} is consumed in some trips only: carry it", token.index());
            self.c.statement(Rule::TokenOnce, at, message);
        }
        let reuse = |v: &ValueId| inside.taken.contains(v) && !state.taken.contains(v);
        for carry in carries {
            if reuse(&carry.next) {
                let message = format!("%{} is taken over and yet carried on", carry.next.index());
                self.c.statement(Rule::AccumulatorReuse, at, message);
            }
        }
        for (i, carry) in carries.iter().enumerate() {
            let leaves = partner(&inside, |c| c.next, carry.next);
            if leaves != entry[i] {
                let message = "a carried fragment is in flight at the start or at the end of a \
                               trip, but not at both with the same carried token";
                self.c.statement(Rule::InFlight, at, message);
            }
            if let Some(&result) = at.stmt.results.get(i) {
                if self.c.ty(result) == Type::Token {
                    state.open.insert(result);
                }
                if let Some(&token) = leaves.and_then(|with| at.stmt.results.get(with)) {
                    state.flight.insert(result, token);
                }
            }
        }
    }

    fn branch(&mut self, at: At<'_>, state: &mut State, branches: [(&Block, &Vec<ValueId>); 2]) {
        let mut after = Vec::new();
        for (block, yields) in branches {
            let mut inside = state.clone();
            self.block(block, &mut inside, yields, Some(at));
            for &value in yields {
                if let Type::Fragment { .. } = self.c.ty(value) {
                    self.read(at, &inside, value);
                }
            }
            after.push(inside);
        }
        let (b, a) = (after.pop().unwrap_or_default(), after.pop().unwrap_or_default());
        if a.open != b.open {
            let message = "a token is consumed in one branch only";
            self.c.statement(Rule::TokenOnce, at, message);
        }
        state.open = a.open.intersection(&b.open).copied().collect();
        state.flight.extend(a.flight);
        state.flight.extend(b.flight);
        state.flight.retain(|_, token| state.open.contains(token));
        state.taken.extend(a.taken);
        state.taken.extend(b.taken);
        for &result in &at.stmt.results {
            if self.c.ty(result) == Type::Token {
                state.open.insert(result);
            }
        }
    }
}
