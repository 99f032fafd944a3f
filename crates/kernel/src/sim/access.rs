//! Loads and stores by place.

use super::error::{FaultKind, Step, Trap, trap};
use super::exec::{Shared, Subgroup};
use super::lanes::{from_memory, to_memory};
use super::memory::{Buffer, Kind, Who};
use super::sync::Group;
use crate::flat::{At, Reg, Test};
use crate::kernel::{ArgKind, Kernel, Memory};
use tilewright_ir::DType;
use tilewright_ir::entity::Id;

/// The longest access that a machine makes in one piece, in bytes.
const PIECE: u64 = 16;

/// The name of a memory.
pub(super) fn name(kernel: &Kernel, memory: Memory) -> String {
    match memory {
        Memory::Global(id) => kernel.args[id].name.clone(),
        Memory::Shared(id) | Memory::Cluster(id) => kernel.shared[id].name.clone(),
        Memory::Private(id) => kernel.private[id].name.clone(),
    }
}

impl Trap {
    /// Adds where it happened, unless that is known.
    pub fn locate(
        mut self: Box<Self>,
        kernel: &Kernel,
        memory: Memory,
        element: i64,
        lane: Option<usize>,
    ) -> Box<Self> {
        self.address.get_or_insert_with(|| (name(kernel, memory), element));
        self.lane = self.lane.or(lane.map(|l| l as u32));
        self
    }
}

/// A buffer of global or shared memory, and the fault of reading what nobody wrote.
#[inline]
fn buffer<'b>(
    globals: &'b mut [Buffer],
    groups: &'b mut [Group],
    rank: usize,
    memory: Memory,
) -> Step<(&'b mut Buffer, FaultKind)> {
    match memory {
        Memory::Global(id) => Ok((&mut globals[id.index()], FaultKind::Poisoned)),
        Memory::Shared(id) => Ok((&mut groups[rank].shared[id.index()], FaultKind::Uninitialised)),
        // Positions across a cluster are taken apart before (see `Shared::owner`).
        Memory::Cluster(_) => trap(FaultKind::OutOfBounds, "an element of no group"),
        // The validator keeps private arrays out of what several lanes reach.
        Memory::Private(_) => trap(FaultKind::OutOfBounds, "a private array has no address"),
    }
}

impl Shared<'_> {
    /// Position in storage of a logical element of global or shared memory.
    #[inline]
    pub fn position(&self, memory: Memory, element: i64) -> Step<usize> {
        let (position, len) = match memory {
            Memory::Global(id) => {
                let len = self.globals[id.index()].data.len();
                (usize::try_from(element).ok().filter(|&e| e < len), len as u64)
            }
            Memory::Shared(id) => {
                let buffer = &self.kernel.shared[id];
                (buffer.position(element), buffer.rows * buffer.cols)
            }
            Memory::Cluster(id) => {
                let buffer = &self.kernel.shared[id];
                let len = buffer.rows * buffer.cols * u64::from(self.kernel.cluster);
                (usize::try_from(element).ok().filter(|&e| (e as u64) < len), len)
            }
            Memory::Private(_) => (None, 0),
        };
        match position {
            Some(position) => Ok(position),
            None => trap(FaultKind::OutOfBounds, format!("the memory has {len} elements")),
        }
    }

    /// The group and memory that a position belongs to: a position across a cluster is one of the
    /// memory of one of its groups.
    #[inline]
    fn owner(&self, rank: usize, memory: Memory, at: usize) -> (usize, Memory, usize) {
        let Memory::Cluster(id) = memory else { return (rank, memory, at) };
        let buffer = &self.kernel.shared[id];
        let len = ((buffer.rows * buffer.cols) as usize).max(1);
        (at / len, Memory::Shared(id), at % len)
    }

    /// Whether the group that owns a position surely runs: it has passed a barrier with the
    /// subgroup since it started.
    fn reachable(&self, who: &Who<'_>, owner: usize, memory: Memory) -> Step<()> {
        if let Memory::Cluster(_) = memory {
            let first = owner * who.view.per_group;
            let own = who.view.thread / who.view.per_group.max(1) == owner;
            let seen = (first..first + who.view.per_group).any(|t| who.view.clock[t] > 0);
            if !own && !seen {
                let detail = "no barrier of the cluster says that the group has started";
                return trap(FaultKind::DataRace, detail);
            }
        }
        Ok(())
    }

    /// Reads an element of global or shared memory.
    #[inline]
    pub fn read(&mut self, who: &Who<'_>, rank: usize, memory: Memory, at: usize) -> Step<f64> {
        let (owner, place, at) = self.owner(rank, memory, at);
        self.reachable(who, owner, memory)?;
        let (rank, memory) = (owner, place);
        let Shared { globals, groups, reads, .. } = self;
        let (buffer, undefined) = buffer(globals, groups, rank, memory)?;
        if let Some(cell) = buffer.cells.get_mut(at) {
            cell.read(who, reads, undefined)?;
        }
        Ok(buffer.data[at])
    }

    /// Reads an element of global or shared memory as an asynchronous atom does.
    pub fn read_async(
        &mut self,
        who: &Who<'_>,
        rank: usize,
        memory: Memory,
        at: usize,
    ) -> Step<f64> {
        let Shared { globals, groups, reads, .. } = self;
        let (buffer, undefined) = buffer(globals, groups, rank, memory)?;
        if let Some(cell) = buffer.cells.get_mut(at) {
            cell.read_async(who, reads, undefined)?;
        }
        Ok(buffer.data[at])
    }

    /// Reads an element for an atomic, whose write checks the order.
    pub fn read_atomic(&mut self, rank: usize, memory: Memory, at: usize) -> Step<f64> {
        let Shared { globals, groups, .. } = self;
        let (buffer, undefined) = buffer(globals, groups, rank, memory)?;
        if buffer.cells.get(at).is_some_and(|cell| !cell.defined) {
            return trap(undefined, "the atomic reads an element that nothing wrote");
        }
        Ok(buffer.data[at])
    }

    /// Writes an element of global or shared memory. In flight it gets its value later.
    #[inline]
    pub fn write(
        &mut self,
        who: &Who<'_>,
        rank: usize,
        memory: Memory,
        at: usize,
        (value, kind, in_flight): (f64, Kind, bool),
    ) -> Step<()> {
        let (owner, place, at) = self.owner(rank, memory, at);
        self.reachable(who, owner, memory)?;
        let (rank, memory) = (owner, place);
        let Shared { globals, groups, reads, .. } = self;
        let (buffer, _) = buffer(globals, groups, rank, memory)?;
        let Some(cell) = buffer.cells.get_mut(at) else {
            return trap(FaultKind::DataRace, "this writes an input");
        };
        cell.write(who, reads, kind, in_flight)?;
        if !in_flight {
            buffer.data[at] = value;
        }
        Ok(())
    }

    /// The position of the first of `width` consecutive elements, which must be one aligned
    /// vector in storage.
    pub fn vector(&self, memory: Memory, dtype: DType, element: i64, width: u32) -> Step<usize> {
        let first = self.position(memory, element)?;
        if width == 1 {
            return Ok(first);
        }
        for v in 1..width as usize {
            let next = self.position(memory, element + v as i64)?;
            if next != first + v {
                let detail = "the vector isn't contiguous in the buffer's layout";
                return trap(FaultKind::Misaligned, detail);
            }
        }
        let bytes = dtype.bytes();
        let piece = (u64::from(width) * bytes).min(PIECE);
        let byte = first as u64 * bytes;
        let base = match memory {
            Memory::Global(id) => match self.kernel.args[id].kind {
                ArgKind::Buffer { align, .. } => align,
                ArgKind::Number(_) | ArgKind::TensorMap { .. } => 1,
            },
            // Shared buffers start at multiples of 1024 bytes.
            Memory::Shared(_) | Memory::Cluster(_) | Memory::Private(_) => 1024,
        };
        if !byte.is_multiple_of(piece) || !base.is_multiple_of(piece) {
            let detail = format!(
                "{width} elements of {dtype} need a multiple of {piece} bytes; this is byte \
                 {byte} of a buffer aligned to {base}"
            );
            return trap(FaultKind::Misaligned, detail);
        }
        Ok(first)
    }

    pub fn count_read(&mut self, memory: Memory, bytes: u64) {
        match memory {
            Memory::Global(_) => self.report.global.read += bytes,
            Memory::Shared(_) | Memory::Cluster(_) => self.report.shared.read += bytes,
            Memory::Private(_) => self.report.private.read += bytes,
        }
    }

    pub fn count_write(&mut self, memory: Memory, bytes: u64) {
        match memory {
            Memory::Global(_) => self.report.global.write += bytes,
            Memory::Shared(_) | Memory::Cluster(_) => self.report.shared.write += bytes,
            Memory::Private(_) => self.report.private.write += bytes,
        }
    }
}

impl Subgroup {
    /// How many of a lane's elements, from the first, take part.
    #[inline]
    pub fn parts(&self, at: &At, lane: usize) -> u32 {
        match at.guard {
            None => at.width,
            Some(Test::Count(limit)) => {
                let before = lane as i64 * i64::from(at.width);
                let left = self.index(limit).saturating_sub(before);
                left.clamp(0, i64::from(at.width)) as u32
            }
            Some(Test::Mask(mask)) => {
                if self.regs[mask.slot(lane)] != 0 {
                    at.width
                } else {
                    0
                }
            }
        }
    }

    /// The first element of a lane. Saturation leaves what is out of bounds there.
    #[inline]
    pub fn element(&self, at: &At, lane: usize) -> i64 {
        let index = at.index.map_or(0, |i| self.regs[i.slot(lane)] as i64);
        self.index(at.base)
            .saturating_add(at.lane_stride.saturating_mul(lane as i64))
            .saturating_add(index)
    }

    /// The lanes that run, ascending.
    pub fn running(&self, n_lanes: usize) -> impl Iterator<Item = usize> + use<> {
        let mask = self.mask;
        (0..n_lanes).filter(move |lane| mask >> lane & 1 == 1)
    }

    pub fn load(&mut self, shared: &mut Shared<'_>, at: &At, dst: &[Reg], fill: f64) -> Step<()> {
        let n_lanes = shared.kernel.lanes as usize;
        if let Memory::Private(_) = at.memory {
            return self.load_private(shared, at, dst, fill);
        }
        if at.uniform {
            let parts = self.parts(at, 0);
            let lane = shared.lanes(self.mask);
            let mut values = [fill; 8];
            self.load_vector(shared, at, (0, lane), parts, &mut values)?;
            for (reg, value) in dst.iter().zip(values) {
                let bits = from_memory(at.dtype, value);
                let n = if reg.step == 0 { 1 } else { n_lanes };
                for lane in 0..n {
                    self.regs[reg.slot(lane)] = bits;
                }
            }
            return Ok(());
        }
        for lane in self.running(n_lanes) {
            let parts = self.parts(at, lane);
            let mut values = [fill; 8];
            self.load_vector(shared, at, (lane, shared.lane(lane)), parts, &mut values)?;
            for (reg, value) in dst.iter().zip(values) {
                self.regs[reg.slot(lane)] = from_memory(at.dtype, value);
            }
        }
        Ok(())
    }

    fn load_vector(
        &self,
        shared: &mut Shared<'_>,
        at: &At,
        (lane, token): (usize, u16),
        parts: u32,
        values: &mut [f64; 8],
    ) -> Step<()> {
        if parts == 0 {
            return Ok(());
        }
        let who = Who::own(&self.view, token);
        let first = self.element(at, lane);
        let vector = if parts == at.width { parts } else { 1 };
        let kernel = shared.kernel;
        let start = shared
            .vector(at.memory, at.dtype, first, vector)
            .map_err(|t| t.locate(kernel, at.memory, first, Some(lane)))?;
        for (v, value) in values.iter_mut().enumerate().take(parts as usize) {
            let element = first + v as i64;
            let position = if vector > 1 || v == 0 {
                Ok(start + v)
            } else {
                shared.position(at.memory, element)
            };
            *value = position
                .and_then(|p| shared.read(&who, self.rank, at.memory, p))
                .map_err(|t| t.locate(kernel, at.memory, element, Some(lane)))?;
        }
        shared.count_read(at.memory, u64::from(parts) * at.dtype.bytes());
        Ok(())
    }

    /// Index of a lane's element in a private array.
    fn private_at(
        &self,
        shared: &Shared<'_>,
        memory: Memory,
        element: i64,
        lane: usize,
    ) -> Step<(usize, usize)> {
        let Memory::Private(id) = memory else {
            return trap(FaultKind::OutOfBounds, "not a private array");
        };
        let len = shared.kernel.private[id].len;
        match u64::try_from(element) {
            Ok(e) if e < len => Ok((id.index(), e as usize * shared.kernel.lanes as usize + lane)),
            _ => trap(FaultKind::OutOfBounds, format!("the array has {len} elements"))
                .map_err(|t: Box<Trap>| t.locate(shared.kernel, memory, element, Some(lane))),
        }
    }

    fn load_private(
        &mut self,
        shared: &mut Shared<'_>,
        at: &At,
        dst: &[Reg],
        fill: f64,
    ) -> Step<()> {
        let mut count = 0;
        for lane in self.running(shared.kernel.lanes as usize) {
            let (parts, first) = (self.parts(at, lane), self.element(at, lane));
            for (v, reg) in dst.iter().enumerate() {
                let mut bits = from_memory(at.dtype, fill);
                if (v as u32) < parts {
                    let element = first.saturating_add(v as i64);
                    let (array, slot) = self.private_at(shared, at.memory, element, lane)?;
                    if !self.private[array].defined[slot] {
                        return trap(FaultKind::Uninitialised, "the lane never wrote the element")
                            .map_err(|t: Box<Trap>| {
                                t.locate(shared.kernel, at.memory, element, Some(lane))
                            });
                    }
                    bits = self.private[array].data[slot];
                    count += 1;
                }
                self.regs[reg.slot(lane)] = bits;
            }
        }
        shared.count_read(at.memory, count * at.dtype.bytes());
        Ok(())
    }

    pub fn store(&mut self, shared: &mut Shared<'_>, at: &At, src: &[Reg]) -> Step<()> {
        let n_lanes = shared.kernel.lanes as usize;
        if let Memory::Private(_) = at.memory {
            let mut count = 0;
            for lane in self.running(n_lanes) {
                let (parts, first) = (self.parts(at, lane), self.element(at, lane));
                for (v, reg) in src.iter().enumerate().take(parts as usize) {
                    let element = first.saturating_add(v as i64);
                    let (array, slot) = self.private_at(shared, at.memory, element, lane)?;
                    self.private[array].data[slot] = self.regs[reg.slot(lane)];
                    self.private[array].defined[slot] = true;
                    count += 1;
                }
            }
            shared.count_write(at.memory, count * at.dtype.bytes());
            return Ok(());
        }
        if at.uniform {
            let lane = shared.lanes(self.mask);
            return self.store_vector(shared, at, (0, lane), src);
        }
        // Lanes that may meet in one element are sorted out first.
        let apart = at.index.is_none() && at.lane_stride.unsigned_abs() >= u64::from(at.width);
        if !apart && n_lanes > 1 {
            return self.store_meeting(shared, at, src);
        }
        let mut order: Vec<usize> = self.running(n_lanes).collect();
        if shared.reverse_lanes {
            order.reverse();
        }
        for lane in order {
            self.store_vector(shared, at, (lane, shared.lane(lane)), src)?;
        }
        Ok(())
    }

    fn store_vector(
        &self,
        shared: &mut Shared<'_>,
        at: &At,
        (lane, token): (usize, u16),
        src: &[Reg],
    ) -> Step<()> {
        let parts = self.parts(at, lane);
        if parts == 0 {
            return Ok(());
        }
        let who = Who::own(&self.view, token);
        let first = self.element(at, lane);
        let kernel = shared.kernel;
        let vector = if parts == at.width { parts } else { 1 };
        shared
            .vector(at.memory, at.dtype, first, vector)
            .map_err(|t| t.locate(kernel, at.memory, first, Some(lane)))?;
        for (v, reg) in src.iter().enumerate().take(parts as usize) {
            let element = first + v as i64;
            let value = to_memory(at.dtype, self.regs[reg.slot(lane)]);
            shared
                .position(at.memory, element)
                .and_then(|p| {
                    shared.write(&who, self.rank, at.memory, p, (value, Kind::Plain, false))
                })
                .map_err(|t| t.locate(kernel, at.memory, element, Some(lane)))?;
        }
        shared.count_write(at.memory, u64::from(parts) * at.dtype.bytes());
        Ok(())
    }

    /// A store in which several lanes may name one element: they must bring the same value.
    fn store_meeting(&mut self, shared: &mut Shared<'_>, at: &At, src: &[Reg]) -> Step<()> {
        let kernel = shared.kernel;
        let mut all: Vec<(i64, usize, u64)> = Vec::new();
        for lane in self.running(kernel.lanes as usize) {
            let parts = self.parts(at, lane);
            if parts == 0 {
                continue;
            }
            let first = self.element(at, lane);
            let vector = if parts == at.width { parts } else { 1 };
            shared
                .vector(at.memory, at.dtype, first, vector)
                .map_err(|t| t.locate(kernel, at.memory, first, Some(lane)))?;
            for (v, reg) in src.iter().enumerate().take(parts as usize) {
                all.push((first + v as i64, lane, self.regs[reg.slot(lane)]));
            }
        }
        shared.count_write(at.memory, all.len() as u64 * at.dtype.bytes());
        all.sort_unstable();
        for same in all.chunk_by(|a, b| a.0 == b.0) {
            let (element, lane, bits) = same[0];
            if let Some(other) = same.iter().find(|s| s.2 != bits) {
                let detail = format!("lanes {lane} and {} store different values", other.1);
                return trap(FaultKind::LaneRace, detail)
                    .map_err(|t: Box<Trap>| t.locate(kernel, at.memory, element, Some(lane)));
            }
            let mask = same.iter().fold(0u64, |mask, s| mask | 1 << s.1);
            let token = shared.lanes(mask);
            let token = if same.len() == 1 { shared.lane(lane) } else { token };
            let who = Who::own(&self.view, token);
            let value = to_memory(at.dtype, bits);
            shared
                .position(at.memory, element)
                .and_then(|p| {
                    shared.write(&who, self.rank, at.memory, p, (value, Kind::Plain, false))
                })
                .map_err(|t| t.locate(kernel, at.memory, element, Some(lane)))?;
        }
        Ok(())
    }
}
