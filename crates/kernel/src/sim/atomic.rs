//! Atomics: one element per lane, with the order that they bring.

use super::clock::{Clock, add_foreign, join};
use super::error::Step;
use super::exec::{Shared, Subgroup};
use super::lanes::{self, from_memory, to_memory};
use super::memory::{Kind, Who};
use crate::flat::{At, Class, Reg};
use crate::kernel::{Elem, Memory, Order, Scope};
use std::collections::HashMap;
use std::rc::Rc;
use tilewright_ir::DType;
use tilewright_ir::entity::Id;
use tilewright_ir::program::ReduceOp;

/// What releases at each atomic element have published, by cluster.
#[derive(Debug, Default)]
pub(super) struct Published {
    clocks: HashMap<(Place, usize), HashMap<u32, Clock>>,
}

/// An atomic's memory, and the group that its order is limited to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Place {
    shared: bool,
    id: usize,
    /// Of shared memory, and of an order over the group only.
    group: Option<u64>,
}

/// `old ∘ operand` on values in memory.
fn combine(op: Option<ReduceOp>, dtype: DType, old: f64, operand: f64) -> f64 {
    let Some(op) = op else { return operand };
    let reg = Reg::shared;
    let mut file = [from_memory(dtype, old), from_memory(dtype, operand), 0];
    let class = Class::of(Elem::Data(dtype));
    lanes::map(&mut file, 1, op.combine(), class, reg(2), [reg(0), reg(1), reg(1)]);
    to_memory(dtype, file[2])
}

impl Subgroup {
    pub fn atomic(
        &mut self,
        shared: &mut Shared<'_>,
        at: &At,
        op: Option<ReduceOp>,
        value: Reg,
        dst: Reg,
        (order, scope): (Order, Scope),
    ) -> Step<()> {
        let kernel = shared.kernel;
        let kind = if scope == Scope::Group { Kind::GroupAtomic } else { Kind::WideAtomic };
        let mut lanes: Vec<usize> = self.running(kernel.lanes as usize).collect();
        if shared.reverse_lanes {
            lanes.reverse();
        }
        let mut count = 0;
        let mut released = false;
        for lane in lanes {
            if self.parts(at, lane) == 0 {
                self.regs[dst.slot(lane)] = 0;
                continue;
            }
            count += at.dtype.bytes();
            let element = self.element(at, lane);
            let position = shared
                .position(at.memory, element)
                .map_err(|t| t.locate(kernel, at.memory, element, Some(lane)))?;
            let (is_shared, id) = match at.memory {
                // The validator keeps atomics off other groups' memory.
                Memory::Shared(id) | Memory::Cluster(id) => (true, id.index()),
                Memory::Global(id) => (false, id.index()),
                // The validator keeps atomics off private arrays.
                Memory::Private(id) => (true, id.index()),
            };
            let narrow = is_shared || scope == Scope::Group;
            let group = narrow.then_some(shared.groups[self.rank].linear);
            let place = Place { shared: is_shared, id, group };
            if matches!(order, Order::Acquire | Order::AcqRel) {
                self.acquire(shared, (place, position));
            }
            let old = shared
                .read_atomic(self.rank, at.memory, position)
                .map_err(|t| t.locate(kernel, at.memory, element, Some(lane)))?;
            let new = combine(op, at.dtype, old, to_memory(at.dtype, self.regs[value.slot(lane)]));
            let who = Who::own(&self.view, shared.lane(lane));
            shared
                .write(&who, self.rank, at.memory, position, (new, kind, false))
                .map_err(|t| t.locate(kernel, at.memory, element, Some(lane)))?;
            self.regs[dst.slot(lane)] = from_memory(at.dtype, old);
            if matches!(order, Order::Release | Order::AcqRel) {
                let clocks = shared.syncs.published.clocks.entry((place, position)).or_default();
                add_foreign(clocks, self.view.cluster, &self.view.clock);
                if let Some(foreign) = &self.view.foreign {
                    for (&cluster, clock) in foreign.iter() {
                        add_foreign(clocks, cluster, clock);
                    }
                }
                released = true;
            }
        }
        if released {
            self.view.advance();
        }
        shared.count_read(at.memory, count);
        shared.count_write(at.memory, count);
        Ok(())
    }

    fn acquire(&mut self, shared: &Shared<'_>, key: (Place, usize)) {
        let Some(clocks) = shared.syncs.published.clocks.get(&key) else { return };
        for (&cluster, clock) in clocks {
            if cluster == self.view.cluster {
                join(&mut self.view.clock, clock);
            } else {
                let foreign = self.view.foreign.get_or_insert_default();
                add_foreign(Rc::make_mut(foreign), cluster, clock);
            }
        }
    }
}
