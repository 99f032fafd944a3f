//! Loads, stores, collectives and barriers.

use super::KernelBuilder;
use crate::kernel::*;

impl Place {
    /// Consecutive lanes at a constant distance from a base.
    pub fn strided(memory: Memory, base: ValueId, lane_stride: i64) -> Place {
        Place { memory, base, lane_stride, index: None }
    }

    /// One element for all lanes (or, in a private array, each lane's own).
    pub fn uniform(memory: Memory, base: ValueId) -> Place {
        Place::strided(memory, base, 0)
    }
}

impl Guard {
    /// Takes part where `lane·width + v < limit`.
    pub fn count(limit: ValueId, fill: f64) -> Guard {
        Guard { test: GuardTest::Count(limit), fill }
    }

    /// Takes part where the bool value is true.
    pub fn mask(mask: ValueId, fill: f64) -> Guard {
        Guard { test: GuardTest::Mask(mask), fill }
    }
}

impl KernelBuilder {
    /// Type of the elements of a memory.
    pub fn element(&self, memory: Memory) -> Type {
        let dtype = match memory {
            Memory::Shared(id) | Memory::Cluster(id) => self.kernel.shared[id].dtype,
            Memory::Private(id) => self.kernel.private[id].dtype,
            Memory::Global(id) => match self.kernel.args[id].kind {
                ArgKind::Buffer { dtype, .. } | ArgKind::TensorMap { dtype, .. } => dtype,
                ArgKind::Number(Elem::Data(dtype)) => dtype,
                ArgKind::Number(Elem::Index) => return Type::Elem(Elem::Index),
            },
        };
        Type::Elem(Elem::Data(dtype))
    }

    /// Reads `width` consecutive elements per lane.
    pub fn load(&mut self, place: Place, width: u32, guard: Option<Guard>) -> Vec<ValueId> {
        let ty = self.element(place.memory);
        self.emit(Op::Load { place, guard }, &vec![ty; width as usize])
    }

    /// Reads one element per lane.
    pub fn load1(&mut self, place: Place, guard: Option<Guard>) -> ValueId {
        let ty = self.element(place.memory);
        self.emit1(Op::Load { place, guard }, ty)
    }

    /// Writes consecutive elements per lane.
    pub fn store(&mut self, place: Place, values: &[ValueId], guard: Option<Guard>) {
        self.emit(Op::Store { place, values: values.to_vec(), guard }, &[]);
    }

    /// A collective over the subgroup.
    pub fn collective(&mut self, op: Collective, value: ValueId) -> ValueId {
        let ty = self.ty(value);
        self.emit1(Op::Collective { op, value }, ty)
    }

    /// Starts an asynchronous copy of `width` elements per lane from global to shared memory: its
    /// token.
    pub fn copy_async(
        &mut self,
        to: Place,
        from: Place,
        width: u32,
        guard: Option<Guard>,
    ) -> ValueId {
        self.emit1(Op::CopyAsync { to, from, width, guard }, Type::Token)
    }

    /// Waits for asynchronous work, all but the newest `pending` of the subgroup's.
    pub fn wait(&mut self, tokens: &[ValueId], pending: u32) {
        self.emit(Op::Wait { tokens: tokens.to_vec(), pending }, &[]);
    }

    /// Waits at a barrier.
    pub fn barrier(&mut self, barrier: BarrierId) {
        self.emit(Op::Barrier(barrier), &[]);
    }

    /// Arrives at a cluster barrier and goes on.
    pub fn barrier_arrive(&mut self, barrier: BarrierId) {
        self.emit(Op::BarrierArrive(barrier), &[]);
    }

    /// Waits at a cluster barrier at which the subgroup has arrived.
    pub fn barrier_wait(&mut self, barrier: BarrierId) {
        self.emit(Op::BarrierWait(barrier), &[]);
    }
}
