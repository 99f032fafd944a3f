//! The walk over the body: definitions, dominance, control flow, barriers and roles. Types,
//! scopes, memory and matrix rules are called from here, statement by statement.

use super::scope::Known;
use super::{At, Checker, Rule};
use crate::kernel::*;
use tilewright_ir::entity::Id;

/// Where the walk is.
pub(super) struct Walk<'c, 'a> {
    pub c: &'c mut Checker<'a>,
    pub known: Known,
    number: usize,
    /// Values whose definition has run on every path to here.
    available: Vec<bool>,
    defined: Vec<bool>,
    /// Whether lanes of a subgroup may be elsewhere.
    pub lane_varying: bool,
    /// Subgroups that may be here, one bit each.
    subgroups: u64,
    in_role: bool,
    /// Per barrier: subgroups that can reach it.
    reach: Vec<u64>,
    mbarriers: Vec<MbarrierUse>,
}

#[derive(Clone, Copy, Default)]
struct MbarrierUse {
    init: bool,
    arrive: bool,
    wait: bool,
}

pub(super) fn check(c: &mut Checker<'_>) {
    let k = c.kernel;
    let mut walk = Walk {
        known: Known::default(),
        number: 0,
        available: vec![false; k.values.len()],
        defined: vec![false; k.values.len()],
        lane_varying: false,
        subgroups: mask(0, k.subgroups),
        in_role: false,
        reach: vec![0; k.barriers.len()],
        mbarriers: vec![MbarrierUse::default(); k.mbarriers.len()],
        c,
    };
    walk.block(&k.body, &[]);
    let (reach, mbarriers) = (walk.reach, walk.mbarriers);
    for ((_, barrier), reach) in k.barriers.iter().zip(reach) {
        let need = match barrier.scope {
            Scope::Subgroup => continue,
            _ => barrier.participants.unwrap_or(k.subgroups),
        };
        if reach != 0 && reach.count_ones() < need {
            let message = format!(
                "{} subgroups can reach the barrier, but it waits for {need}",
                reach.count_ones()
            );
            c.declaration(Rule::BarrierParticipants, &barrier.name, message);
        }
    }
    for ((_, mbarrier), used) in k.mbarriers.iter().zip(mbarriers) {
        if (used.wait || used.arrive) && !used.init {
            let message = "the mbarrier is used and never initialised";
            c.declaration(Rule::MbarrierUse, &mbarrier.name, message);
        }
        if used.wait && !used.arrive {
            let message = "somebody waits at the mbarrier and nobody arrives";
            c.declaration(Rule::MbarrierUse, &mbarrier.name, message);
        }
    }
}

/// Bits `first .. first + count`.
fn mask(first: u32, count: u32) -> u64 {
    let ones = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
    ones.checked_shl(first).unwrap_or(0)
}

impl Walk<'_, '_> {
    /// Checks a block and takes back what it made available.
    fn block(&mut self, block: &Block, yields: &[(ValueId, At<'_>)]) {
        let mut made = Vec::new();
        for stmt in &block.stmts {
            let at = At { stmt, number: self.number };
            self.number += 1;
            self.stmt(at);
            self.known.note(stmt);
            for &result in &stmt.results {
                self.define(at, result);
                made.push(result);
            }
        }
        for &(value, at) in yields {
            self.usable(at, value);
        }
        for value in made {
            self.available[value.index()] = false;
        }
    }

    fn define(&mut self, at: At<'_>, value: ValueId) {
        if std::mem::replace(&mut self.defined[value.index()], true) {
            let message = format!("%{} is defined before", value.index());
            self.c.statement(Rule::SingleDefinition, at, message);
        }
        self.available[value.index()] = true;
    }

    fn usable(&mut self, at: At<'_>, value: ValueId) {
        if !self.available[value.index()] {
            let message = format!("%{} isn't defined on every path to here", value.index());
            self.c.statement(Rule::Dominance, at, message);
        }
    }

    fn stmt(&mut self, at: At<'_>) {
        at.stmt.op.for_each_operand(&mut |v| {
            if !self.available[v.index()] {
                let message = format!("%{} isn't defined on every path to here", v.index());
                self.c.statement(Rule::Dominance, at, message);
            }
        });
        self.control(at);
        self.c.types(at);
        self.c.memory(at);
        self.matrix(at);
        self.inner(at);
        let derived = self.c.derive(&self.known, at.stmt);
        for (&result, derived) in at.stmt.results.iter().zip(derived) {
            self.scope(at, result, derived);
        }
    }

    fn scope(&mut self, at: At<'_>, value: ValueId, derived: Scope) {
        let (declared, derived) = (self.c.scope(value), self.c.canonical(derived));
        if declared > derived {
            let message = format!(
                "%{} is declared uniform over the {declared}, but only over the {derived} is \
                 that sure",
                value.index()
            );
            self.c.statement(Rule::ScopeTooWide, at, message);
        }
        // A fragment is distributed over exactly the lanes of its atom.
        if matches!(self.c.ty(value), Type::Fragment { .. }) && declared != derived {
            let message = format!("%{} is a fragment: its scope is {derived}", value.index());
            self.c.statement(Rule::ScopeTooWide, at, message);
        }
    }

    /// What may stand under lane-varying control flow, and who reaches barriers.
    fn control(&mut self, at: At<'_>) {
        if self.lane_varying {
            let rule = match &at.stmt.op {
                Op::Collective { .. } => Some(Rule::CollectiveDivergence),
                Op::Barrier(_) | Op::BarrierArrive(_) | Op::BarrierWait(_) => {
                    Some(Rule::BarrierDivergence)
                }
                Op::FragmentFill(_)
                | Op::FragmentLoad(_)
                | Op::FragmentStore { .. }
                | Op::FragmentMap { .. }
                | Op::Mma { .. }
                | Op::MmaAsync { .. } => Some(Rule::FragmentDivergence),
                Op::ProxyFence
                | Op::CopyAsync { .. }
                | Op::CopyTensor { .. }
                | Op::MbarrierInit { .. }
                | Op::MbarrierArrive { .. }
                | Op::MbarrierWait { .. }
                | Op::Wait { .. }
                | Op::InRole { .. } => Some(Rule::AsyncDivergence),
                _ => None,
            };
            if let Some(rule) = rule {
                let message = "not all lanes of the subgroup may get here";
                self.c.statement(rule, at, message);
            }
        }
        if let Op::BarrierArrive(id) | Op::BarrierWait(id) = &at.stmt.op
            && self.c.kernel.barriers[*id].scope != Scope::Cluster
        {
            let message = "only a barrier of the cluster has two halves";
            self.c.statement(Rule::BarrierScope, at, message);
        }
        match &at.stmt.op {
            Op::Barrier(id) | Op::BarrierWait(id) => self.reach[id.index()] |= self.subgroups,
            Op::MbarrierInit { mbarrier, .. } => self.mbarriers[mbarrier.index()].init = true,
            Op::MbarrierArrive { mbarrier, .. } => self.mbarriers[mbarrier.index()].arrive = true,
            Op::MbarrierWait { mbarrier, .. } => self.mbarriers[mbarrier.index()].wait = true,
            Op::InRole { .. } if self.in_role => {
                self.c.statement(Rule::RoleNesting, at, "a role is inside a role");
            }
            _ => {}
        }
    }

    /// The blocks of a statement.
    fn inner(&mut self, at: At<'_>) {
        match &at.stmt.op {
            Op::For { index, carries, body, .. } => {
                self.define(at, *index);
                for carry in carries {
                    self.define(at, carry.inner);
                }
                let yields: Vec<_> = carries.iter().map(|c| (c.next, at)).collect();
                self.block(body, &yields);
                self.available[index.index()] = false;
                for carry in carries {
                    self.available[carry.inner.index()] = false;
                }
                self.loop_scopes(at);
            }
            Op::If { cond, then, then_values, otherwise, else_values } => {
                let outer = self.lane_varying;
                self.lane_varying |= self.c.scope(*cond) == Scope::Lane;
                let yields: Vec<_> = then_values.iter().map(|&v| (v, at)).collect();
                self.block(then, &yields);
                let yields: Vec<_> = else_values.iter().map(|&v| (v, at)).collect();
                self.block(otherwise, &yields);
                self.lane_varying = outer;
            }
            Op::InRole { role, body, .. } => {
                let role = &self.c.kernel.roles[*role];
                let outer = (self.subgroups, self.in_role);
                self.subgroups &= mask(role.first, role.count);
                self.in_role = true;
                self.block(body, &[]);
                (self.subgroups, self.in_role) = outer;
            }
            _ => {}
        }
    }

    fn loop_scopes(&mut self, at: At<'_>) {
        let Op::For { index, lo, hi, carries, .. } = &at.stmt.op else { return };
        let bounds = self.c.scope(*lo).min(self.c.scope(*hi));
        self.scope(at, *index, bounds);
        for carry in carries {
            let derived = match self.c.fragment_scope(carry.inner) {
                Some(scope) => scope,
                None => self.c.scope(carry.init).min(self.c.scope(carry.next)),
            };
            self.scope(at, carry.inner, derived);
        }
    }

    /// Whether every subgroup that may be here is in an aligned block of `size` that is all here.
    pub(super) fn in_aligned_blocks(&self, size: u32) -> bool {
        let all = self.c.kernel.subgroups;
        all.is_multiple_of(size)
            && (0..all / size).all(|b| {
                let block = mask(b * size, size);
                self.subgroups & block == 0 || self.subgroups & block == block
            })
    }
}
