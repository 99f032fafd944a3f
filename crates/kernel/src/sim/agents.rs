//! Asynchronous copies, tokens, bulk tensor copies and transaction barriers.

use super::clock::join;
use super::error::{FaultKind, Step, trap};
use super::exec::{Shared, Subgroup};
use super::memory::{ALL_LANES, Kind, Who};
use super::sync::{Landing, mbarrier_number, mbarriers};
use crate::flat::{At, Reg, TensorCopy};
use crate::kernel::{ArgKind, MbarrierId, Memory};
use tilewright_ir::entity::Id;

/// The tensor behind a tensor map.
#[derive(Debug)]
pub(super) struct Map {
    pub data: Vec<f64>,
    pub dims: Vec<u64>,
    pub strides: Vec<u64>,
}

/// Kinds of work that tokens stand for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    Copy,
    Atom,
}

/// The bits of a token: the kind and the number of the work in its subgroup.
pub(super) fn token(work: Work, number: u32) -> u64 {
    (work as u64) << 32 | u64::from(number)
}

impl Subgroup {
    pub fn copy_async(
        &mut self,
        shared: &mut Shared<'_>,
        to: &At,
        from: &At,
        slot: u32,
    ) -> Step<()> {
        let kernel = shared.kernel;
        self.copies += 1;
        let mut who = Who::own(&self.view, 0);
        who.thread = (self.view.subgroups + self.view.thread) as u16;
        who.epoch = self.copies;
        for lane in self.running(kernel.lanes as usize) {
            who.lane = shared.lane(lane);
            let parts = self.parts(from, lane);
            if parts != 0 && parts != from.width {
                let detail = format!("the guard splits a copy of {} elements", from.width);
                return trap(FaultKind::Misaligned, detail).map_err(|t: Box<_>| {
                    t.locate(kernel, from.memory, self.element(from, lane), Some(lane))
                });
            }
            let (source, target) = (self.element(from, lane), self.element(to, lane));
            let mut values = [0.0; 8];
            if parts > 0 {
                let first = shared
                    .vector(from.memory, from.dtype, source, from.width)
                    .map_err(|t| t.locate(kernel, from.memory, source, Some(lane)))?;
                for (v, value) in values.iter_mut().enumerate().take(parts as usize) {
                    *value = shared.read(&who, self.rank, from.memory, first + v).map_err(|t| {
                        t.locate(kernel, from.memory, source + v as i64, Some(lane))
                    })?;
                }
                shared.count_read(from.memory, u64::from(parts) * from.dtype.bytes());
            }
            let first = shared
                .vector(to.memory, to.dtype, target, to.width)
                .map_err(|t| t.locate(kernel, to.memory, target, Some(lane)))?;
            for (v, &value) in values.iter().enumerate().take(to.width as usize) {
                shared
                    .write(&who, self.rank, to.memory, first + v, (value, Kind::Plain, false))
                    .map_err(|t| t.locate(kernel, to.memory, target + v as i64, Some(lane)))?;
            }
            shared.count_write(to.memory, u64::from(to.width) * to.dtype.bytes());
        }
        self.tokens[slot as usize] = token(Work::Copy, self.copies);
        Ok(())
    }

    pub fn wait(&mut self, tokens: &[u32], pending: u32) -> Step<()> {
        for work in [Work::Copy, Work::Atom] {
            let numbers = tokens
                .iter()
                .map(|&slot| self.tokens[slot as usize])
                .filter(|bits| bits >> 32 == work as u64)
                .map(|bits| bits as u32);
            let Some(newest) = numbers.max() else { continue };
            let (issued, agent) = match work {
                Work::Copy => (self.copies, self.view.subgroups + self.view.thread),
                Work::Atom => (self.atoms, 2 * self.view.subgroups + self.view.thread),
            };
            let finished = issued.saturating_sub(pending);
            if newest > finished {
                let detail = format!(
                    "the wait leaves {pending} in flight, and a token is among the newest {}",
                    issued - newest + 1
                );
                return trap(FaultKind::WaitOrder, detail);
            }
            let clock = &mut self.view.clock[agent];
            *clock = (*clock).max(finished);
        }
        Ok(())
    }

    /// The number of a transaction barrier whose initialisation is visible here.
    fn mbarrier(&self, shared: &Shared<'_>, id: MbarrierId, stage: Reg) -> Step<usize> {
        let number = self.mbarrier_slot(shared, id, stage)?;
        match shared.groups[self.rank].mbarriers[number].init {
            None => trap(FaultKind::Mbarrier, "the mbarrier isn't initialised"),
            Some((thread, epoch)) => {
                if thread != self.view.thread && self.view.clock[thread] < epoch {
                    let detail = "no barrier makes the initialisation visible here";
                    return trap(FaultKind::Mbarrier, detail);
                }
                Ok(number)
            }
        }
    }

    fn mbarrier_slot(&self, shared: &Shared<'_>, id: MbarrierId, stage: Reg) -> Step<usize> {
        let len = shared.kernel.mbarriers[id].len;
        let stage = self.index(stage);
        match u32::try_from(stage) {
            Ok(stage) if stage < len => Ok(mbarrier_number(shared.kernel, id, stage)),
            _ => {
                let detail = format!("stage {stage} of {len} mbarriers");
                trap(FaultKind::OutOfBounds, detail)
            }
        }
    }

    pub fn mbarrier_init(
        &mut self,
        shared: &mut Shared<'_>,
        id: MbarrierId,
        stage: Reg,
    ) -> Step<()> {
        let number = self.mbarrier_slot(shared, id, stage)?;
        let arrivals = i64::from(shared.kernel.mbarriers[id].arrivals);
        let threads = self.view.clock.len();
        let mbarrier = &mut shared.groups[self.rank].mbarriers[number];
        if mbarrier.init.is_some() {
            return trap(FaultKind::Mbarrier, "the mbarrier is initialised twice");
        }
        mbarrier.init = Some((self.view.thread, self.view.now()));
        mbarrier.arrivals = arrivals;
        mbarrier.clock = vec![0; threads];
        mbarrier.fenced = vec![0; threads];
        mbarrier.done = (vec![0; threads], vec![0; threads]);
        Ok(())
    }

    pub fn mbarrier_arrive(
        &mut self,
        shared: &mut Shared<'_>,
        id: MbarrierId,
        stage: Reg,
        expect: Option<Reg>,
    ) -> Step<()> {
        let number = self.mbarrier(shared, id, stage)?;
        let expect = expect.map_or(0, |reg| self.index(reg));
        if !(0..1 << 20).contains(&expect) {
            let detail = format!("{expect} bytes: a phase takes 0 to 2^20 - 1");
            return trap(FaultKind::Mbarrier, detail);
        }
        let mbarrier = &mut shared.groups[self.rank].mbarriers[number];
        if mbarrier.arrivals == 0 {
            let detail = format!(
                "the phase has all its arrivals already and waits for {} bytes",
                mbarrier.bytes
            );
            return trap(FaultKind::Mbarrier, detail);
        }
        mbarrier.bytes += expect;
        mbarrier.arrivals -= 1;
        join(&mut mbarrier.clock, &self.view.clock);
        join(&mut mbarrier.fenced, &self.view.fenced);
        self.view.advance();
        self.complete(shared, id, number);
        Ok(())
    }

    /// Ends the phase if nothing is missing.
    fn complete(&self, shared: &mut Shared<'_>, id: MbarrierId, number: usize) {
        let arrivals = i64::from(shared.kernel.mbarriers[id].arrivals);
        let agent = self.bulk_agent(shared, number);
        let mbarrier = &mut shared.groups[self.rank].mbarriers[number];
        if mbarrier.arrivals == 0 && mbarrier.bytes == 0 {
            mbarrier.phase += 1;
            mbarrier.arrivals = arrivals;
            mbarrier.clock[agent] = mbarrier.phase;
            mbarrier.done = (mbarrier.clock.clone(), mbarrier.fenced.clone());
        }
    }

    /// Thread number of the bulk copies to an mbarrier of this group.
    fn bulk_agent(&self, shared: &Shared<'_>, number: usize) -> usize {
        3 * self.view.subgroups + self.rank * mbarriers(shared.kernel) + number
    }

    /// Passes, or gives the number of the mbarrier to wait for.
    pub fn mbarrier_wait(
        &mut self,
        shared: &mut Shared<'_>,
        id: MbarrierId,
        stage: Reg,
        parity: Reg,
    ) -> Step<Option<usize>> {
        let number = self.mbarrier(shared, id, stage)?;
        let parity = self.index(parity);
        if !(0..=1).contains(&parity) {
            return trap(FaultKind::Mbarrier, format!("parity {parity}: use 0 or 1"));
        }
        // Bulk copies land as late as they can: now.
        let group = &mut shared.groups[self.rank];
        for landing in std::mem::take(&mut group.mbarriers[number].landing) {
            let buffer = &mut group.shared[landing.to.index()];
            for (position, value) in landing.elements {
                buffer.data[position] = value;
                buffer.cells[position].defined = true;
            }
            group.mbarriers[number].bytes -= landing.bytes;
        }
        self.complete(shared, id, number);
        let mbarrier = &shared.groups[self.rank].mbarriers[number];
        if i64::from(mbarrier.phase & 1) == parity {
            return Ok(Some(number));
        }
        join(&mut self.view.clock, &mbarrier.done.0);
        join(&mut self.view.fenced, &mbarrier.done.1);
        Ok(None)
    }

    pub fn copy_tensor(&mut self, shared: &mut Shared<'_>, copy: &TensorCopy) -> Step<()> {
        let kernel = shared.kernel;
        let memory = Memory::Shared(copy.to);
        let ArgKind::TensorMap { dtype, box_rows, box_cols, .. } = kernel.args[copy.map].kind
        else {
            return trap(FaultKind::OutOfBounds, "the source is no tensor map");
        };
        let number = self.mbarrier(shared, copy.mbarrier, copy.stage)?;
        let offset = self.index(copy.offset);
        if offset.saturating_mul(dtype.bytes() as i64) % 128 != 0 {
            let detail = "a bulk copy's destination is a multiple of 128 bytes";
            return trap(FaultKind::Misaligned, detail)
                .map_err(|t: Box<_>| t.locate(kernel, memory, offset, None));
        }
        let Some(map) = &shared.maps[copy.map.index()] else {
            return trap(FaultKind::OutOfBounds, "the tensor map has no tensor");
        };
        if map.dims.len() != copy.coords.len() {
            let detail =
                format!("the tensor has {} dimensions, not {}", map.dims.len(), copy.coords.len());
            return trap(FaultKind::OutOfBounds, detail);
        }
        let origin: Vec<i64> = copy.coords.iter().map(|&reg| self.index(reg)).collect();
        let cols = i64::from(box_cols);
        let mut values = Vec::with_capacity((box_rows * box_cols) as usize);
        for row in 0..i64::from(box_rows) {
            for col in 0..cols {
                values.push((offset + row * cols + col, map.value(&origin, row, col)));
            }
        }
        let phase = shared.groups[self.rank].mbarriers[number].phase;
        let mut who = Who::own(&self.view, ALL_LANES);
        who.thread = self.bulk_agent(shared, number) as u16;
        who.epoch = phase + 1;
        who.lane = shared.lanes(shared.full());
        let bytes = values.len() as u64 * dtype.bytes();
        let mut elements = Vec::with_capacity(values.len());
        for (element, value) in values {
            let position = shared
                .position(memory, element)
                .and_then(|p| {
                    let write = (value, Kind::Plain, true);
                    shared.write(&who, self.rank, memory, p, write).map(|()| p)
                })
                .map_err(|t| t.locate(kernel, memory, element, None))?;
            elements.push((position, value));
        }
        shared.report.global.read += bytes;
        shared.count_write(memory, bytes);
        let landing = Landing { to: copy.to, elements, bytes: bytes as i64 };
        shared.groups[self.rank].mbarriers[number].landing.push(landing);
        Ok(())
    }
}

impl Map {
    /// The element at the origin plus a row and a column of the two innermost dimensions; 0
    /// outside the tensor.
    fn value(&self, origin: &[i64], row: i64, col: i64) -> f64 {
        let last = origin.len() - 1;
        let mut at = 0u64;
        for (i, ((&start, &dim), &stride)) in
            origin.iter().zip(&self.dims).zip(&self.strides).enumerate()
        {
            let plus = if i == last {
                col
            } else if i + 1 == last {
                row
            } else {
                0
            };
            match u64::try_from(start.saturating_add(plus)) {
                Ok(x) if x < dim => at += x * stride,
                _ => return 0.0,
            }
        }
        self.data.get(at as usize).copied().unwrap_or(0.0)
    }
}
