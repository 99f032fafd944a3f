//! Memory with a shadow: who read and wrote each element last.

use super::clock::View;
use super::error::{FaultKind, Step, Trap};

/// All lanes of a subgroup.
pub(super) const ALL_LANES: u16 = u16::MAX;

/// One access.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Access {
    pub cluster: u32,
    /// Epoch of the thread; 0: there was none.
    pub epoch: u32,
    pub thread: u16,
    /// A lane, [`ALL_LANES`], or the unknown lane of a fragment's element.
    pub lane: u16,
}

/// How a write was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Kind {
    #[default]
    Plain,
    /// An atomic ordered over its group only.
    GroupAtomic,
    /// An atomic ordered over a cluster or the grid.
    WideAtomic,
}

/// The shadow of an element.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    write: Access,
    read: Access,
    /// If not 0: position + 1 of a list of reads that aren't ordered among themselves.
    reads: u32,
    kind: Kind,
    /// Whether the element has a value.
    pub defined: bool,
}

impl Cell {
    /// The last accesses that a group's end must come after.
    pub fn last(&self, reads: &Reads) -> impl Iterator<Item = Access> {
        let list = match self.reads {
            0 => Vec::new(),
            list => reads.lists[list as usize - 1].clone(),
        };
        [self.write, self.read].into_iter().chain(list).filter(|a| a.epoch != 0)
    }
}

/// Lists of concurrent reads.
#[derive(Debug, Default)]
pub(super) struct Reads {
    lists: Vec<Vec<Access>>,
    free: Vec<u32>,
}

impl Reads {
    fn start(&mut self, first: Access, second: Access) -> u32 {
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.lists.push(Vec::new());
                self.lists.len() as u32 - 1
            }
        };
        self.lists[at as usize].extend([first, second]);
        at + 1
    }

    fn clear(&mut self, list: u32) {
        self.lists[list as usize - 1].clear();
        self.free.push(list - 1);
    }
}

/// Who makes an access.
#[derive(Clone, Copy)]
pub(super) struct Who<'a> {
    pub view: &'a View,
    /// The thread that the access is recorded for: the subgroup or one of its agents.
    pub thread: u16,
    pub epoch: u32,
    pub lane: u16,
}

impl<'a> Who<'a> {
    /// The subgroup itself.
    pub fn own(view: &'a View, lane: u16) -> Self {
        Who { view, thread: view.thread as u16, epoch: view.now(), lane }
    }

    fn access(&self) -> Access {
        Access {
            cluster: self.view.cluster,
            epoch: self.epoch,
            thread: self.thread,
            lane: self.lane,
        }
    }

    /// Whether an access of another thread is over before this one.
    fn ordered(&self, other: Access) -> bool {
        if other.epoch == 0 {
            return true;
        }
        let (cluster, thread) = (other.cluster, usize::from(other.thread));
        if cluster == self.view.cluster {
            return thread == self.view.thread || self.view.clock[thread] >= other.epoch;
        }
        let known = self.view.foreign.as_ref().and_then(|f| f.get(&cluster));
        known.and_then(|clock| clock.get(thread)).is_some_and(|&e| e >= other.epoch)
    }

    /// Whether an access of the same subgroup was made by another lane with no barrier since.
    fn lanes_apart(&self, other: Access) -> bool {
        if other.epoch == 0 || other.cluster != self.view.cluster || other.lane == self.lane {
            return false;
        }
        let thread = usize::from(other.thread);
        if thread == self.view.thread {
            other.epoch >= self.view.lane_floor
        } else {
            thread == self.view.subgroups + self.view.thread && other.epoch > self.view.copy_floor
        }
    }

    /// The party of a conflict in words.
    fn describe(&self, other: Access) -> String {
        let t = self.view.subgroups;
        let per_group = self.view.per_group.max(1);
        let subgroup = |s: usize| match t / per_group {
            1 => format!("subgroup {s}"),
            _ => format!("subgroup {} of rank {}", s % per_group, s / per_group),
        };
        let mut text = match usize::from(other.thread) {
            s if s < t => subgroup(s),
            s if s < 2 * t => format!("an asynchronous copy of {}", subgroup(s - t)),
            s if s < 3 * t => format!("an asynchronous atom of {}", subgroup(s - 2 * t)),
            s => format!("a bulk copy to mbarrier number {}", s - 3 * t),
        };
        if other.cluster != self.view.cluster {
            text += &format!(" of cluster {}", other.cluster);
        }
        if other.lane < 0x8000 {
            text += &format!(", lane {}", other.lane);
        }
        text
    }
}

fn conflict(kind: FaultKind, detail: String) -> Step<()> {
    Err(Box::new(Trap { kind, lane: None, address: None, detail }))
}

impl Cell {
    /// Of an element that nobody has touched.
    pub fn new(defined: bool) -> Self {
        Cell { defined, ..Cell::default() }
    }

    /// Checks that the last write is over for `who`.
    fn after_write(&self, who: &Who<'_>, what: &str) -> Step<()> {
        if !who.ordered(self.write) {
            let agent = self.write.cluster == who.view.cluster
                && usize::from(self.write.thread) >= who.view.subgroups;
            let kind = if agent { FaultKind::InFlight } else { FaultKind::DataRace };
            let detail = format!(
                "{what}, but nothing orders it after the write by {}",
                who.describe(self.write)
            );
            return conflict(kind, detail);
        }
        Ok(())
    }

    /// A read. `undefined` is the kind of fault if the element has no value.
    pub fn read(&mut self, who: &Who<'_>, reads: &mut Reads, undefined: FaultKind) -> Step<()> {
        self.after_write(who, "this reads")?;
        if !self.defined {
            return conflict(undefined, "this reads an element that nothing wrote".into());
        }
        // All lanes wrote one value: each may read its own.
        if self.write.lane != ALL_LANES && who.lanes_apart(self.write) {
            let detail = format!(
                "this reads what {} wrote, with no barrier between",
                who.describe(self.write)
            );
            return conflict(FaultKind::LaneRace, detail);
        }
        self.note_read(who, reads);
        Ok(())
    }

    /// A read by an asynchronous atom: generic writes must be fenced.
    pub fn read_async(
        &mut self,
        who: &Who<'_>,
        reads: &mut Reads,
        undefined: FaultKind,
    ) -> Step<()> {
        self.read(who, reads, undefined)?;
        let write = self.write;
        let thread = usize::from(write.thread);
        // Copies of cp.async are generic writes too; bulk copies are not.
        let generic = thread < 2 * who.view.subgroups;
        if write.epoch > 0
            && write.cluster == who.view.cluster
            && generic
            && who.view.fenced.get(thread).is_none_or(|&e| e < write.epoch)
        {
            let detail = format!(
                "the asynchronous atom reads what {} wrote, with no proxy_fence between",
                who.describe(write)
            );
            return conflict(FaultKind::ProxyFence, detail);
        }
        Ok(())
    }

    fn note_read(&mut self, who: &Who<'_>, reads: &mut Reads) {
        let access = who.access();
        let same = |old: &Access| old.thread == access.thread && old.cluster == access.cluster;
        if self.reads != 0 {
            let list = &mut reads.lists[self.reads as usize - 1];
            match list.iter_mut().find(|a| same(a)) {
                Some(old) => merge(old, access, who),
                None => list.push(access),
            }
            return;
        }
        if same(&self.read) {
            merge(&mut self.read, access, who);
        } else if who.ordered(self.read) {
            self.read = access;
        } else {
            let old = std::mem::take(&mut self.read);
            self.reads = reads.start(old, access);
        }
    }

    /// A write, after which the element has a value unless it is `in_flight`.
    pub fn write(
        &mut self,
        who: &Who<'_>,
        reads: &mut Reads,
        kind: Kind,
        in_flight: bool,
    ) -> Step<()> {
        let atomics = kind != Kind::Plain
            && self.kind != Kind::Plain
            && (self.write.cluster == who.view.cluster
                || (kind == Kind::WideAtomic && self.kind == Kind::WideAtomic));
        if !atomics {
            self.after_write(who, "this writes")?;
            if who.lanes_apart(self.write) || self.lanes_overwrite(who) {
                let detail = format!(
                    "this overwrites what {} wrote, with no barrier between",
                    who.describe(self.write)
                );
                return conflict(FaultKind::LaneRace, detail);
            }
        }
        if self.reads != 0 {
            for &read in &reads.lists[self.reads as usize - 1] {
                self.after_read(who, read)?;
            }
            reads.clear(self.reads);
            self.reads = 0;
        } else {
            self.after_read(who, self.read)?;
        }
        self.read = Access::default();
        self.write = who.access();
        self.kind = kind;
        self.defined = !in_flight;
        Ok(())
    }

    /// Whether all lanes wrote the element before and now write again: one lane may be late.
    fn lanes_overwrite(&self, who: &Who<'_>) -> bool {
        let old = self.write;
        who.lane == ALL_LANES
            && old.lane == ALL_LANES
            && old.epoch >= who.view.lane_floor
            && old.cluster == who.view.cluster
            && usize::from(old.thread) == who.view.thread
            && old.epoch > 0
    }

    fn after_read(&self, who: &Who<'_>, read: Access) -> Step<()> {
        if !who.ordered(read) {
            let detail = format!(
                "this writes, but nothing orders it after the read by {}",
                who.describe(read)
            );
            return conflict(FaultKind::DataRace, detail);
        }
        if who.lanes_apart(read) {
            let detail = format!(
                "this overwrites what {} reads, with no barrier between",
                who.describe(read)
            );
            return conflict(FaultKind::LaneRace, detail);
        }
        Ok(())
    }
}

/// Two reads of one thread: the newer epoch; the lanes together if no barrier is between.
fn merge(old: &mut Access, new: Access, who: &Who<'_>) {
    let lane = if old.lane != new.lane && who.lanes_apart(*old) { ALL_LANES } else { new.lane };
    *old = Access { lane, ..new };
}

/// A buffer with its shadow. Elements are in storage order.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    pub data: Vec<f64>,
    /// One per element; none for inputs, which nobody writes.
    pub cells: Vec<Cell>,
}
