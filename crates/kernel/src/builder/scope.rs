//! The scope of a value from its operands: the widest rung over which it is surely the same.

use tilewright_ir::program::Access;

use crate::kernel::*;

/// Narrowest scope of some values; [`Scope::Grid`] for none.
fn narrowest(kernel: &Kernel, values: &[ValueId]) -> Scope {
    values.iter().map(|v| kernel.values[*v].scope).min().unwrap_or(Scope::Grid)
}

/// Scope of what a load gives.
fn load_scope(kernel: &Kernel, place: &Place, guard: Option<&Guard>) -> Scope {
    if place.lane_stride != 0 {
        return Scope::Lane;
    }
    let memory = match place.memory {
        // Each lane has its own array.
        Memory::Private(_) => return Scope::Lane,
        // What is read depends on when this subgroup reads it.
        Memory::Shared(_) | Memory::Cluster(_) => Scope::Subgroup,
        Memory::Global(arg) => match kernel.args[arg].kind {
            ArgKind::Buffer { access: Access::In, .. } => Scope::Grid,
            _ => Scope::Subgroup,
        },
    };
    let guard = match guard.map(|g| g.test) {
        Some(GuardTest::Count(_)) => Scope::Lane,
        Some(GuardTest::Mask(mask)) => kernel.values[mask].scope,
        None => Scope::Grid,
    };
    let index = place.index.map_or(Scope::Grid, |i| kernel.values[i].scope);
    memory.min(guard).min(index).min(kernel.values[place.base].scope)
}

/// The scope of the fragment's atom, or `None` for other types.
fn atom_scope(kernel: &Kernel, value: ValueId) -> Option<Scope> {
    match kernel.values[value].ty {
        Type::Fragment { atom, .. } => Some(atom.scope()),
        _ => None,
    }
}

/// Derives the scopes of a statement's results from those of its operands. For a loop and an
/// `if` the scopes inside must have been derived before.
pub(super) fn derive(kernel: &Kernel, stmt: &Stmt) -> Vec<Scope> {
    let all = |scope: Scope| vec![scope; stmt.results.len()];
    match &stmt.op {
        Op::Const(_) | Op::Arg(_) => all(Scope::Grid),
        Op::GroupId(_) | Op::ClusterRank => all(Scope::Group),
        Op::SubgroupId => all(Scope::Subgroup),
        Op::Lane => all(Scope::Lane),
        Op::Map { args, .. } => all(narrowest(kernel, args)),
        Op::Fma { a, b, c } => all(narrowest(kernel, &[*a, *b, *c])),
        Op::Cast(value) => all(narrowest(kernel, &[*value])),
        Op::Load { place, guard } => all(load_scope(kernel, place, guard.as_ref())),
        Op::Atomic { .. } => all(Scope::Lane),
        Op::Collective { op: Collective::ShuffleXor(_), value } => {
            all(narrowest(kernel, &[*value]))
        }
        Op::Collective { value, .. } => all(narrowest(kernel, &[*value]).max(Scope::Subgroup)),
        // Trips may differ where the bounds differ.
        Op::For { lo, hi, carries, .. } => {
            let bounds = narrowest(kernel, &[*lo, *hi]);
            let carried = |c: &Carry| narrowest(kernel, &[c.inner, c.next]);
            carries
                .iter()
                .map(|c| atom_scope(kernel, c.inner).unwrap_or_else(|| bounds.min(carried(c))))
                .collect()
        }
        Op::If { cond, then_values, else_values, .. } => then_values
            .iter()
            .zip(else_values)
            .map(|(a, b)| match kernel.values[*a].ty {
                Type::Fragment { atom, .. } => atom.scope(),
                _ => narrowest(kernel, &[*cond, *a, *b]),
            })
            .collect(),
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
        | Op::Wait { .. } => Vec::new(),
        Op::FragmentFill(_)
        | Op::FragmentLoad(_)
        | Op::FragmentMap { .. }
        | Op::Mma { .. }
        | Op::MmaAsync { .. } => {
            let scope = stmt.results.first().and_then(|r| atom_scope(kernel, *r));
            all(scope.unwrap_or(Scope::Subgroup))
        }
        Op::CopyAsync { .. } => all(Scope::Subgroup),
    }
}

/// Recomputes the scopes of everything in a block, in order. Scopes only get narrower.
pub(super) fn rescope(kernel: &mut Kernel, block: &mut Block) {
    for stmt in &mut block.stmts {
        match &mut stmt.op {
            Op::For { index, lo, hi, carries, body, .. } => {
                let scope = narrowest(kernel, &[*lo, *hi]);
                narrow(kernel, *index, scope);
                settle(kernel, carries, body);
            }
            Op::If { then, otherwise, .. } => {
                rescope(kernel, then);
                rescope(kernel, otherwise);
            }
            Op::InRole { body, .. } => rescope(kernel, body),
            _ => {}
        }
        let scopes = derive(kernel, stmt);
        for (result, scope) in stmt.results.iter().zip(scopes) {
            narrow(kernel, *result, scope);
        }
    }
}

fn narrow(kernel: &mut Kernel, value: ValueId, scope: Scope) {
    let value = &mut kernel.values[value];
    if scope < value.scope {
        value.scope = scope;
    }
}

/// Narrows loop-carried values until initial, inner and next values agree. The ladder is finite,
/// so this ends.
pub(super) fn settle(kernel: &mut Kernel, carries: &[Carry], body: &mut Block) {
    loop {
        let mut changed = false;
        for carry in carries {
            let scope = narrowest(kernel, &[carry.init, carry.next]);
            if scope < kernel.values[carry.inner].scope {
                kernel.values[carry.inner].scope = scope;
                changed = true;
            }
        }
        if !changed {
            return;
        }
        rescope(kernel, body);
    }
}
