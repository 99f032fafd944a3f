//! What arrivals at the barrier of a cluster publish.
//!
//! An arrival with `.release` semantics is a fence of the whole device on Hopper (`MEMBAR.ALL.GPU`),
//! paid by every subgroup. One that has nothing to publish is `.relaxed`: the first, which only says
//! that a group has started, and those behind writes that a leader made to the other groups in a
//! branch of its own. That branch ends with the fence, which the leader alone pays: a fence and a
//! relaxed arrival after it by the same thread are a release, which the others' waits acquire (PTX
//! ISA, "Memory consistency model", release patterns).

use std::collections::HashSet;

use tilewright_kernel::kernel::{
    ArgId, Barrier, BarrierId, Block, Kernel, Memory, Op, Place, Scope, SharedId, Stmt,
};

use super::PtxTarget;

/// Statements of a kernel, by their place in it.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    relaxed: HashSet<*const Stmt>,
    fenced: HashSet<*const Stmt>,
}

impl Arrivals {
    /// Whether an arrival has nothing to publish.
    pub(super) fn is_relaxed(&self, stmt: &Stmt) -> bool {
        self.relaxed.contains(&std::ptr::from_ref(stmt))
    }

    /// Whether the first block of a branch ends with a fence.
    pub(super) fn is_fenced(&self, stmt: &Stmt) -> bool {
        self.fenced.contains(&std::ptr::from_ref(stmt))
    }
}

/// Memory that statements touch.
#[derive(Default)]
struct Touched {
    /// Shared memory of the group that is read.
    reads: HashSet<SharedId>,
    /// Shared memory of the group is written.
    own: bool,
    /// Shared memory of all groups that is written.
    others: HashSet<SharedId>,
    /// Buffers that are read, and that are written.
    loaded: HashSet<ArgId>,
    stored: HashSet<ArgId>,
    /// Something whose order this can't tell.
    unknown: bool,
}

impl Touched {
    fn of(stmt: &Stmt) -> Touched {
        let mut touched = Touched::default();
        touched.visit(stmt);
        touched
    }

    fn read(&mut self, place: &Place) {
        match place.memory {
            Memory::Global(arg) => drop(self.loaded.insert(arg)),
            Memory::Shared(id) => drop(self.reads.insert(id)),
            // Others read what a group wrote to its own memory.
            Memory::Cluster(_) => self.unknown = true,
            Memory::Private(_) => {}
        }
    }

    fn write(&mut self, place: &Place) {
        match place.memory {
            Memory::Global(arg) => drop(self.stored.insert(arg)),
            Memory::Shared(_) => self.own = true,
            Memory::Cluster(id) => drop(self.others.insert(id)),
            Memory::Private(_) => {}
        }
    }

    fn visit(&mut self, stmt: &Stmt) {
        let mut all = |block: &Block| block.stmts.iter().for_each(|s| self.visit(s));
        match &stmt.op {
            Op::For { body, .. } => all(body),
            Op::If { then, otherwise, .. } => {
                all(then);
                all(otherwise);
            }
            Op::Load { place, .. } => self.read(place),
            Op::Store { place, .. } => self.write(place),
            Op::CopyAsync { to, from, .. } => {
                self.read(from);
                self.write(to);
            }
            Op::Const(_)
            | Op::Arg(_)
            | Op::GroupId(_)
            | Op::ClusterRank
            | Op::SubgroupId
            | Op::Lane
            | Op::Map { .. }
            | Op::Fma { .. }
            | Op::Cast(_)
            | Op::Collective { .. }
            | Op::Wait { .. } => {}
            // Barriers stand at the top, where nobody asks what they touch.
            _ => self.unknown = true,
        }
    }
}

/// Whether a statement is an arrival at the cluster's barrier, or at that of a group.
fn meets(kernel: &Kernel, stmt: &Stmt) -> Option<Scope> {
    let scope = |id: &BarrierId| kernel.barriers.get(*id).map(|b: &Barrier| b.scope);
    match &stmt.op {
        Op::Barrier(id) | Op::BarrierArrive(id) | Op::BarrierWait(id) => scope(id),
        _ => None,
    }
}

/// The PTX version (times ten) that has relaxed arrivals.
const RELAXED: u32 = 80;

/// The arrivals of a kernel. Nothing is relaxed where a loop or a branch holds a barrier.
pub(super) fn arrivals(kernel: &Kernel, target: PtxTarget) -> Arrivals {
    let mut out = Arrivals::default();
    if kernel.cluster == 1 || target.version < RELAXED {
        return out;
    }
    let stmts = &kernel.body.stmts;
    let touched: Vec<Option<Touched>> =
        stmts.iter().map(|stmt| meets(kernel, stmt).is_none().then(|| Touched::of(stmt))).collect();
    let all = || touched.iter().flatten();
    if all().any(|t| t.unknown) {
        return out;
    }
    let loaded: HashSet<ArgId> = all().flat_map(|t| t.loaded.iter().copied()).collect();
    // What has been written since the last arrival: to the group's own memory and not yet behind a
    // barrier of the group, by branches that can end with a fence, and anything else.
    let (mut own, mut branches, mut other) = (false, Vec::new(), false);
    let mut read: HashSet<SharedId> = HashSet::new();
    for (at, (stmt, touched_here)) in stmts.iter().zip(&touched).enumerate() {
        if let Some(touched) = touched_here {
            own |= touched.own;
            other |= touched.stored.iter().any(|arg| loaded.contains(arg));
            read.extend(&touched.reads);
            match &stmt.op {
                _ if touched.others.is_empty() => {}
                Op::If { otherwise, .. } if otherwise.stmts.is_empty() => {
                    branches.push(std::ptr::from_ref(stmt));
                }
                _ => other = true,
            }
            continue;
        }
        match meets(kernel, stmt) {
            Some(Scope::Group) => own = false,
            Some(Scope::Cluster) if !matches!(stmt.op, Op::BarrierWait(_)) => {
                // Nobody may write, once this is passed, what was read before it.
                let later = || touched[at..].iter().flatten();
                let again = later().any(|t| t.others.iter().any(|id| read.contains(id)));
                if !own && !other && !again {
                    out.relaxed.insert(std::ptr::from_ref(stmt));
                    out.fenced.extend(branches.drain(..));
                }
                (own, other) = (false, false);
                branches.clear();
            }
            _ => {}
        }
    }
    out
}
