//! State of a running cluster: groups with their shared memory, barriers, mbarriers.

use super::atomic::Published;
use super::clock::Clock;
use super::memory::{Buffer, Cell};
use crate::kernel::{Kernel, MbarrierId, SharedId};
use tilewright_ir::entity::Id;

/// A bulk copy that hasn't landed: storage positions and values.
#[derive(Debug)]
pub(super) struct Landing {
    pub to: SharedId,
    pub elements: Vec<(usize, f64)>,
    pub bytes: i64,
}

/// One transaction barrier.
#[derive(Debug, Default)]
pub(super) struct Mbarrier {
    /// Who initialised it: thread and epoch.
    pub init: Option<(usize, u32)>,
    /// Phases that are over.
    pub phase: u32,
    /// Arrivals and bytes that the phase still needs.
    pub arrivals: i64,
    pub bytes: i64,
    /// What arrivals have published, for the phase and for those that are over.
    pub clock: Clock,
    pub fenced: Clock,
    pub done: (Clock, Clock),
    pub landing: Vec<Landing>,
}

/// One group of the cluster.
#[derive(Debug)]
pub(super) struct Group {
    /// Linear number in the launch, and coordinates.
    pub linear: u64,
    pub coords: [u64; 3],
    /// Shared buffers, in storage order.
    pub shared: Vec<Buffer>,
    /// All barriers of all arrays, one array after another.
    pub mbarriers: Vec<Mbarrier>,
}

/// What outlives a cluster.
#[derive(Debug, Default)]
pub(super) struct Syncs {
    pub published: Published,
}

impl Group {
    pub fn new(kernel: &Kernel) -> Self {
        let shared = (kernel.shared.iter())
            .map(|(_, s)| {
                let n = s.storage() as usize;
                Buffer { data: vec![0.0; n], cells: vec![Cell::default(); n] }
            })
            .collect();
        let mbarriers = (0..mbarriers(kernel)).map(|_| Mbarrier::default()).collect();
        Group { linear: 0, coords: [0; 3], shared, mbarriers }
    }

    /// Makes it another group: all shared memory is undefined again.
    pub fn reset(&mut self, linear: u64, coords: [u64; 3]) {
        (self.linear, self.coords) = (linear, coords);
        for shared in &mut self.shared {
            shared.cells.fill(Cell::default());
        }
        for mbarrier in &mut self.mbarriers {
            *mbarrier = Mbarrier::default();
        }
    }
}

/// Transaction barriers of a group.
pub(super) fn mbarriers(kernel: &Kernel) -> usize {
    kernel.mbarriers.iter().map(|(_, m)| m.len as usize).sum()
}

/// The number of a transaction barrier in its group.
pub(super) fn mbarrier_number(kernel: &Kernel, id: MbarrierId, stage: u32) -> usize {
    let before: usize = kernel.mbarriers.iter().take(id.index()).map(|(_, m)| m.len as usize).sum();
    before + stage as usize
}
