//! Every id exists and blocks aren't too deep. After this, the other checks index freely.

use super::{At, Checker, MAX_DEPTH, Rule};
use crate::kernel::*;

pub(super) fn check(c: &mut Checker<'_>) {
    let mut number = 0;
    let kernel = c.kernel;
    block(c, &kernel.body, 0, &mut number);
}

fn block(c: &mut Checker<'_>, block_: &Block, depth: usize, number: &mut usize) {
    for stmt in &block_.stmts {
        let at = At { stmt, number: *number };
        *number += 1;
        if let Some(what) = missing(c.kernel, stmt) {
            c.statement(Rule::Id, at, format!("there is no such {what}"));
        }
        for inner in stmt.op.blocks().into_iter().flatten() {
            if depth >= MAX_DEPTH {
                c.statement(Rule::Depth, at, format!("blocks are over {MAX_DEPTH} deep"));
            } else {
                block(c, inner, depth + 1, number);
            }
        }
    }
}

/// What kind of id a statement has that names nothing.
fn missing(k: &Kernel, stmt: &Stmt) -> Option<&'static str> {
    let mut values = stmt.results.clone();
    stmt.op.for_each_operand(&mut |v| values.push(v));
    let mut memories = Vec::new();
    let mut args = Vec::new();
    match &stmt.op {
        Op::Arg(id) => args.push(*id),
        Op::Load { place, .. } | Op::Store { place, .. } | Op::Atomic { place, .. } => {
            memories.push(place.memory);
        }
        Op::CopyAsync { to, from, .. } => memories.extend([to.memory, from.memory]),
        Op::FragmentLoad(view) | Op::FragmentStore { view, .. } => memories.push(view.memory),
        Op::Mma { a, b, .. } | Op::MmaAsync { a, b, .. } => {
            for operand in [a, b] {
                if let Operand::View(view) = operand {
                    memories.push(view.memory);
                }
            }
        }
        Op::For { index, carries, .. } => {
            values.push(*index);
            values.extend(carries.iter().flat_map(|c| [c.inner, c.next]));
        }
        Op::If { then_values, else_values, .. } => {
            values.extend(then_values.iter().chain(else_values));
        }
        Op::Barrier(id) | Op::BarrierArrive(id) | Op::BarrierWait(id)
            if k.barriers.get(*id).is_none() =>
        {
            return Some("barrier");
        }
        Op::InRole { role, .. } if k.roles.get(*role).is_none() => return Some("role"),
        Op::CopyTensor { map, to, mbarrier, .. } => {
            args.push(*map);
            memories.push(Memory::Shared(*to));
            if k.mbarriers.get(*mbarrier).is_none() {
                return Some("mbarrier");
            }
        }
        Op::MbarrierInit { mbarrier, .. }
        | Op::MbarrierArrive { mbarrier, .. }
        | Op::MbarrierWait { mbarrier, .. }
            if k.mbarriers.get(*mbarrier).is_none() =>
        {
            return Some("mbarrier");
        }
        _ => {}
    }
    let reached = |memory: &Memory| match *memory {
        Memory::Global(id) => k.args.get(id).is_some(),
        Memory::Shared(id) | Memory::Cluster(id) => k.shared.get(id).is_some(),
        Memory::Private(id) => k.private.get(id).is_some(),
    };
    if !memories.iter().all(reached) {
        Some("memory")
    } else if !args.iter().all(|id| k.args.get(*id).is_some()) {
        Some("argument")
    } else if !values.iter().all(|id| k.values.get(*id).is_some()) {
        Some("value")
    } else {
        None
    }
}
