//! Who has seen what: vector clocks of the threads of a cluster.
//!
//! A *thread* is a subgroup of a group of the running cluster, or an *agent* that works for one:
//! its asynchronous copies, its asynchronous atoms, or the bulk copies to one mbarrier. Thread
//! numbers of a cluster of T subgroups: `0..T` the subgroups, `T..2T` their copy agents, `2T..3T`
//! their atom agents, then one per mbarrier and stage.

use std::collections::HashMap;
use std::rc::Rc;

/// Entry per thread: the newest epoch of it that is known to be over or begun here.
pub(super) type Clock = Vec<u32>;

/// `a[i] = max(a[i], b[i])`.
pub(super) fn join(a: &mut [u32], b: &[u32]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a = (*a).max(*b);
    }
}

/// Known clocks of other clusters, by cluster number.
pub(super) type Foreign = Rc<HashMap<u32, Clock>>;

/// Adds what `from` knows.
pub(super) fn join_foreign(to: &mut Option<Foreign>, from: &Option<Foreign>) {
    let Some(from) = from else { return };
    let Some(to) = to else {
        *to = Some(Rc::clone(from));
        return;
    };
    if Rc::ptr_eq(to, from) {
        return;
    }
    let map = Rc::make_mut(to);
    for (&cluster, clock) in from.iter() {
        add_foreign(map, cluster, clock);
    }
}

/// Adds the clock of one cluster.
pub(super) fn add_foreign(map: &mut HashMap<u32, Clock>, cluster: u32, clock: &Clock) {
    match map.get_mut(&cluster) {
        Some(known) => join(known, clock),
        None => {
            map.insert(cluster, clock.clone());
        }
    }
}

/// What a subgroup has seen.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// Number of its cluster in the launch.
    pub cluster: u32,
    /// Its own number as a thread.
    pub thread: usize,
    /// Subgroups in the cluster (T), and in one group of it.
    pub subgroups: usize,
    pub per_group: usize,
    /// Epochs that are ordered before now.
    pub clock: Clock,
    /// Epochs whose generic writes asynchronous atoms see (behind a proxy fence).
    pub fenced: Clock,
    /// Epochs of other clusters.
    pub foreign: Option<Foreign>,
    /// First own epoch after the last barrier: earlier accesses of its lanes are ordered.
    pub lane_floor: u32,
    /// Copies that were complete at the last barrier: all lanes see them.
    pub copy_floor: u32,
}

impl View {
    /// The own current epoch.
    pub fn now(&self) -> u32 {
        self.clock[self.thread]
    }

    /// Starts a new epoch.
    pub fn advance(&mut self) {
        self.clock[self.thread] += 1;
    }

    /// A barrier among lanes.
    pub fn sync_lanes(&mut self) {
        self.advance();
        self.lane_floor = self.now();
        let copies = self.subgroups + self.thread;
        self.copy_floor = self.clock.get(copies).copied().unwrap_or(0);
    }

    /// Makes everything ordered before now visible to asynchronous atoms.
    pub fn fence(&mut self) {
        let View { clock, fenced, .. } = self;
        join(fenced, clock);
        self.advance();
    }
}
