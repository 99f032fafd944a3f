//! Definitions, uses and order of the operations that a program reaches.

use crate::entity::Id;
use crate::program::*;

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Def {
    /// The result of an operation.
    Op(OpId),
    /// A carried value as the body of a loop sees it.
    Carry(OpId),
    /// Nothing that the program reaches.
    None,
}

/// Definitions and uses.
pub(super) struct Uses {
    /// Reachable operations in execution order; a loop comes before its body.
    pub(super) order: Vec<OpId>,
    position: Vec<usize>,
    parent: Vec<Option<OpId>>,
    def: Vec<Def>,
    users: Vec<Vec<OpId>>,
}

impl Uses {
    pub(super) fn of(program: &Program) -> Self {
        let mut uses = Uses {
            order: Vec::new(),
            position: vec![usize::MAX; program.ops.len()],
            parent: vec![None; program.ops.len()],
            def: vec![Def::None; program.values.len()],
            users: vec![Vec::new(); program.values.len()],
        };
        // An explicit stack of (block, next position, enclosing loop) instead of recursion: the
        // nesting depth is the input's.
        let mut stack = vec![(&program.body, 0, None)];
        while let Some((block, next, parent)) = stack.pop() {
            let Some(op) = block.ops.get(next).copied() else { continue };
            stack.push((block, next + 1, parent));
            uses.position[op.index()] = uses.order.len();
            uses.order.push(op);
            uses.parent[op.index()] = parent;
            for result in &program.ops[op].results {
                uses.def[result.index()] = Def::Op(op);
            }
            for operand in operands(&program.ops[op].op) {
                uses.users[operand.index()].push(op);
            }
            if let Op::Loop { carries, body, .. } = &program.ops[op].op {
                for carry in carries {
                    uses.def[carry.inner.index()] = Def::Carry(op);
                }
                stack.push((body, 0, Some(op)));
            }
        }
        uses
    }

    /// Position in execution order.
    pub(super) fn position(&self, op: OpId) -> usize {
        self.position[op.index()]
    }

    /// The innermost loop around an operation.
    pub(super) fn parent(&self, op: OpId) -> Option<OpId> {
        self.parent[op.index()]
    }

    /// Where a value comes from.
    pub(super) fn def(&self, value: ValueId) -> Def {
        self.def[value.index()]
    }

    /// The operation that defines a value.
    pub(super) fn op(&self, value: ValueId) -> Option<OpId> {
        match self.def(value) {
            Def::Op(op) => Some(op),
            Def::Carry(_) | Def::None => None,
        }
    }

    /// The operations that read a value, once per use.
    pub(super) fn users(&self, value: ValueId) -> &[OpId] {
        &self.users[value.index()]
    }
}

/// The values that an operation reads, once per use; for a loop, initial and next values.
pub(super) fn operands(op: &Op) -> Vec<ValueId> {
    let gathers = |coords: &[Coord]| coords.iter().filter_map(|c| c.gather).collect::<Vec<_>>();
    match op {
        Op::Const { .. } | Op::Scalar(_) | Op::Size(_) | Op::Index { .. } => Vec::new(),
        Op::Load { coords, .. } => gathers(coords),
        Op::Store { coords, value, .. } => {
            let mut values = gathers(coords);
            values.push(*value);
            values
        }
        Op::Map { args, .. } => args.clone(),
        Op::Cast(value) | Op::Broadcast(value) => vec![*value],
        Op::Reduce { value, .. } | Op::Reindex { value, .. } => vec![*value],
        Op::Mma { a, b, c, .. } => vec![*a, *b, *c],
        Op::Loop { carries, .. } => carries.iter().flat_map(|c| [c.init, c.next]).collect(),
    }
}
