//! The widest scope over which a result is surely uniform.

use super::Checker;
use crate::kernel::*;
use std::collections::HashMap;
use tilewright_ir::program::{Access, MapOp};

/// Facts of values that scopes are derived from.
#[derive(Default)]
pub(super) struct Known {
    /// Values that are the subgroup's number plus this constant.
    subgroup_plus: HashMap<ValueId, i64>,
    /// Index constants.
    constants: HashMap<ValueId, i64>,
}

impl Known {
    /// Notes what a statement says of its result.
    pub(super) fn note(&mut self, stmt: &Stmt) {
        let &[result] = stmt.results.as_slice() else { return };
        match &stmt.op {
            Op::Const(Literal::Int(n)) => {
                self.constants.insert(result, *n);
            }
            Op::SubgroupId => {
                self.subgroup_plus.insert(result, 0);
            }
            Op::Map { op: op @ (MapOp::Add | MapOp::Sub), args } => {
                if let &[a, b] = args.as_slice()
                    && let Some(&plus) = self.subgroup_plus.get(&a)
                    && let Some(&n) = self.constants.get(&b)
                    && let Some(sum) = match op {
                        MapOp::Add => plus.checked_add(n),
                        _ => plus.checked_sub(n),
                    }
                {
                    self.subgroup_plus.insert(result, sum);
                }
            }
            _ => {}
        }
    }

    /// The block of subgroups over which `args[0] / args[1]` is uniform: (s + c) / k with
    /// c a multiple of k. Truncation can only merge blocks: it is uniform there all the same.
    fn block_of_division(&self, args: &[ValueId]) -> Option<u32> {
        let &[a, b] = args else { return None };
        let plus = *self.subgroup_plus.get(&a)?;
        let k = u32::try_from(*self.constants.get(&b)?).ok()?;
        (k > 1 && plus % i64::from(k) == 0).then_some(k)
    }
}

impl Checker<'_> {
    /// A scope written in the one way that the kernel's shape leaves: a subgroup of one lane is
    /// the lane, a group of one subgroup is the subgroup, and so on up.
    pub(super) fn canonical(&self, scope: Scope) -> Scope {
        let k = self.kernel;
        let mut scope = scope;
        if scope == Scope::Lane && k.lanes == 1 {
            scope = Scope::Subgroup;
        }
        match scope {
            Scope::SubgroupBlock(n) if n <= 1 => scope = Scope::Subgroup,
            Scope::SubgroupBlock(n) if n >= k.subgroups => scope = Scope::Group,
            _ => {}
        }
        if scope == Scope::Subgroup && k.subgroups == 1 {
            scope = Scope::Group;
        }
        if scope == Scope::Group && k.cluster == 1 {
            scope = Scope::Cluster;
        }
        if scope == Scope::Cluster && k.grid.is_empty() {
            scope = Scope::Grid;
        }
        scope
    }

    /// The canonical scope of a value.
    pub(super) fn scope(&self, id: ValueId) -> Scope {
        self.canonical(self.value(id).scope)
    }

    fn narrowest(&self, values: &[ValueId]) -> Scope {
        values.iter().map(|&v| self.scope(v)).min().unwrap_or(Scope::Grid)
    }

    /// Scope of what a load gives.
    fn load_scope(&self, place: &Place, guard: Option<&Guard>) -> Scope {
        if place.lane_stride != 0 {
            return Scope::Lane;
        }
        let memory = match place.memory {
            // Each lane has its own array.
            Memory::Private(_) => return Scope::Lane,
            // Other memory may be written between the loads of two subgroups.
            Memory::Shared(_) | Memory::Cluster(_) => Scope::Subgroup,
            Memory::Global(arg) => match self.kernel.args[arg].kind {
                ArgKind::Buffer { access: Access::In, .. } => Scope::Grid,
                _ => Scope::Subgroup,
            },
        };
        let guard = match guard.map(|g| g.test) {
            // The lane's number takes part in the test.
            Some(GuardTest::Count(_)) => Scope::Lane,
            Some(GuardTest::Mask(mask)) => self.scope(mask),
            None => Scope::Grid,
        };
        let index = place.index.map_or(Scope::Grid, |i| self.scope(i));
        memory.min(guard).min(index).min(self.scope(place.base))
    }

    /// The widest scope that each result may declare.
    pub(super) fn derive(&self, known: &Known, stmt: &Stmt) -> Vec<Scope> {
        let all = |scope: Scope| vec![scope; stmt.results.len()];
        match &stmt.op {
            Op::Const(_) | Op::Arg(_) => all(Scope::Grid),
            Op::GroupId(_) | Op::ClusterRank => all(Scope::Group),
            Op::SubgroupId => all(Scope::Subgroup),
            Op::Lane => all(Scope::Lane),
            Op::Map { op, args } => {
                let scope = self.narrowest(args);
                match (op, known.block_of_division(args)) {
                    (MapOp::Div, Some(k)) => all(scope.max(Scope::SubgroupBlock(k))),
                    _ => all(scope),
                }
            }
            Op::Fma { a, b, c } => all(self.narrowest(&[*a, *b, *c])),
            Op::Cast(value) => all(self.fragment_scope(*value).unwrap_or(self.scope(*value))),
            Op::Load { place, guard } => all(self.load_scope(place, guard.as_ref())),
            Op::Atomic { .. } => all(Scope::Lane),
            Op::Collective { op: Collective::ShuffleXor(_), value } => all(self.scope(*value)),
            Op::Collective { value, .. } => all(self.scope(*value).max(Scope::Subgroup)),
            // Trips may differ where the bounds differ.
            Op::For { lo, hi, carries, .. } => {
                let bounds = self.narrowest(&[*lo, *hi]);
                carries
                    .iter()
                    .map(|c| match self.fragment_scope(c.inner) {
                        Some(scope) => scope,
                        None => bounds.min(self.narrowest(&[c.inner, c.next])),
                    })
                    .collect()
            }
            Op::If { cond, then_values, else_values, .. } => then_values
                .iter()
                .zip(else_values)
                .map(|(&a, &b)| match self.fragment_scope(a) {
                    Some(scope) => scope,
                    None => self.narrowest(&[*cond, a, b]),
                })
                .collect(),
            Op::MmaAsync { c, .. } => all(self.fragment_scope(*c).unwrap_or(Scope::Subgroup)),
            Op::CopyAsync { .. } => all(Scope::Subgroup),
            Op::FragmentFill(_) | Op::FragmentLoad(_) | Op::FragmentMap { .. } | Op::Mma { .. } => {
                stmt.results
                    .iter()
                    .map(|&r| self.fragment_scope(r).unwrap_or(Scope::Subgroup))
                    .collect()
            }
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
        }
    }

    /// The scope of a fragment's atom; `None` for other values. Tokens have the scope that they
    /// declare.
    pub(super) fn fragment_scope(&self, id: ValueId) -> Option<Scope> {
        match self.ty(id) {
            Type::Fragment { atom, .. } => Some(self.canonical(atom.scope())),
            Type::Token => Some(self.scope(id)),
            Type::Elem(_) => None,
        }
    }
}
