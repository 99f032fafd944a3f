//! Runs one subgroup until its turn ends, it waits, or it traps.

use super::clock::{Clock, Foreign, View, join, join_foreign};
use super::error::{FaultKind, Step, trap};
use super::fragment::Fragment;
use super::memory::{ALL_LANES, Buffer, Reads};
use super::sync::{Group, Syncs};
use super::{LaneOrder, SimReport, lanes};
use crate::flat::{Class, Code, Inst, Moves, Reg, Slot};
use crate::kernel::{BarrierId, Collective, Kernel, Scope};
use tilewright_ir::entity::Id;
use tilewright_ir::program::MapOp;

/// What a subgroup waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Status {
    Ready,
    /// Waits at a barrier.
    AtBarrier(BarrierId),
    /// Has just arrived at a barrier at which it will wait later.
    Arrived(BarrierId),
    /// At an mbarrier whose phase isn't over: its number in the group.
    AtMbarrier(usize),
    /// At an atom of a block of subgroups.
    AtBlock,
    Done,
}

/// An arrival at a cluster barrier.
#[derive(Debug)]
pub(super) struct Arrival {
    pub barrier: BarrierId,
    pub statement: u32,
    /// What was ordered before the arrival; once all have arrived, what is before the wait.
    pub clock: Clock,
    pub fenced: Clock,
    pub foreign: Option<Foreign>,
    /// All have arrived.
    pub complete: bool,
}

/// A private array: `len` times the lanes.
#[derive(Debug, Default)]
pub(super) struct PrivateArray {
    pub data: Vec<u64>,
    pub defined: Vec<bool>,
}

/// One subgroup.
#[derive(Debug, Default)]
pub(super) struct Subgroup {
    /// Its group's rank in the cluster, and its number in the group.
    pub rank: usize,
    pub number: u32,
    pub pc: usize,
    pub status: Option<Status>,
    /// Lanes that run; and of each open split, the lanes before it and those of its condition.
    pub mask: u64,
    pub splits: Vec<(u64, u64)>,
    pub regs: Vec<u64>,
    pub tokens: Vec<u64>,
    pub fragments: Vec<Fragment>,
    pub private: Vec<PrivateArray>,
    pub view: View,
    /// An arrival at a cluster barrier for which the subgroup hasn't waited yet.
    pub arrival: Option<Arrival>,
    /// Asynchronous copies and atoms issued so far.
    pub copies: u32,
    pub atoms: u32,
    /// The block has assembled for the atom at `pc`.
    pub assembled: bool,
    /// Waits at an mbarrier and was found waiting since anybody last made progress.
    pub tried: bool,
}

/// What all subgroups share.
pub(super) struct Shared<'a> {
    pub kernel: &'a Kernel,
    pub code: &'a Code,
    /// Bits of the number arguments, by argument.
    pub numbers: Vec<u64>,
    pub lane_order: LaneOrder,
    pub globals: Vec<Buffer>,
    pub maps: Vec<Option<super::agents::Map>>,
    pub groups: Vec<Group>,
    pub reads: Reads,
    pub syncs: Syncs,
    pub report: SimReport,
    pub reverse_lanes: bool,
}

impl Shared<'_> {
    /// All lanes.
    pub fn full(&self) -> u64 {
        u64::MAX >> (64 - self.kernel.lanes)
    }

    /// How a lane is recorded in the shadow.
    #[inline]
    pub fn lane(&self, lane: usize) -> u16 {
        match self.lane_order {
            LaneOrder::Lockstep => 0,
            LaneOrder::Independent => lane as u16,
        }
    }

    /// How several lanes together are recorded.
    pub fn lanes(&self, mask: u64) -> u16 {
        if self.lane_order == LaneOrder::Lockstep {
            0
        } else if mask.count_ones() == 1 {
            mask.trailing_zeros() as u16
        } else {
            ALL_LANES
        }
    }
}

impl Subgroup {
    #[inline]
    pub fn index(&self, reg: Reg) -> i64 {
        self.regs[reg.at as usize] as i64
    }

    fn fill(&mut self, n: usize, dst: Reg, value: impl Fn(usize) -> u64) {
        let n = if dst.step == 0 { 1 } else { n };
        for lane in 0..n {
            self.regs[dst.slot(lane)] = value(lane);
        }
    }

    /// Runs at most `turn` instructions.
    pub fn run(&mut self, shared: &mut Shared<'_>, turn: u64) -> Step<u64> {
        let code = shared.code;
        let n_lanes = shared.kernel.lanes as usize;
        let mut done = 0;
        while done < turn {
            done += 1;
            let inst = &code.insts[self.pc];
            let mut next = self.pc + 1;
            match inst {
                Inst::Fill { dst, bits, .. } => self.fill(n_lanes, *dst, |_| *bits),
                Inst::Arg { dst, arg, .. } => {
                    let bits = shared.numbers[arg.index()];
                    self.fill(n_lanes, *dst, |_| bits);
                }
                Inst::GroupId { dst, dim } => {
                    let id = shared.groups[self.rank].coords[*dim as usize];
                    self.fill(n_lanes, *dst, |_| id);
                }
                Inst::ClusterRank { dst } => {
                    let rank = self.rank as u64;
                    self.fill(n_lanes, *dst, |_| rank);
                }
                Inst::SubgroupId { dst } => {
                    let number = u64::from(self.number);
                    self.fill(n_lanes, *dst, |_| number);
                }
                Inst::Lane { dst } => self.fill(n_lanes, *dst, |lane| lane as u64),
                Inst::Map { op, class, dst, args } => {
                    let n = if dst.step == 0 { 1 } else { n_lanes };
                    lanes::map(&mut self.regs, n, *op, *class, *dst, *args);
                    if let Class::Float(_) = class
                        && *op != MapOp::Select
                    {
                        shared.report.flops += n as u64;
                    }
                }
                Inst::Fma { dtype, dst, args } => {
                    let n = if dst.step == 0 { 1 } else { n_lanes };
                    lanes::fma_lanes(&mut self.regs, n, *dtype, *dst, *args);
                    shared.report.flops += 2 * n as u64;
                }
                Inst::Cast { dst, to, src, from } => {
                    let n = if dst.step == 0 { 1 } else { n_lanes };
                    for lane in 0..n {
                        let bits = self.regs[src.slot(lane)];
                        self.regs[dst.slot(lane)] = lanes::cast(*to, *from, bits);
                    }
                }
                Inst::Load { at, dst, fill } => self.load(shared, at, dst, *fill)?,
                Inst::Store { at, src } => self.store(shared, at, src)?,
                Inst::Atomic { at, op, value, dst, order, scope } => {
                    self.atomic(shared, at, *op, *value, *dst, (*order, *scope))?;
                }
                Inst::Collective { op, class, dst, src } => {
                    self.collective(shared, *op, *class, *dst, *src)?;
                }
                Inst::Barrier(id) => {
                    if shared.kernel.barriers[*id].scope == Scope::Subgroup {
                        self.view.sync_lanes();
                        shared.report.subgroup_barriers += 1;
                    } else {
                        self.status = Some(Status::AtBarrier(*id));
                        return Ok(done);
                    }
                }
                Inst::BarrierArrive(id) => {
                    self.arrive(shared, *id)?;
                    return Ok(done);
                }
                Inst::BarrierWait(id) => {
                    if !self.pass(*id)? {
                        self.status = Some(Status::AtBarrier(*id));
                        return Ok(done);
                    }
                }
                Inst::ProxyFence => self.view.fence(),
                Inst::LoopEnter(l) => {
                    let lo = self.index(l.lo);
                    self.fill(n_lanes, l.index, |_| lo as u64);
                    self.moves(shared, &l.enter);
                    if lo >= self.index(l.hi) {
                        self.moves(shared, &l.leave);
                        next = l.exit;
                    }
                }
                Inst::LoopAgain(l) => {
                    self.moves(shared, &l.again);
                    let index = self.index(l.index).checked_add(l.step);
                    match index {
                        Some(index) if index < self.index(l.hi) => {
                            self.fill(n_lanes, l.index, |_| index as u64);
                            next = l.body;
                        }
                        _ => self.moves(shared, &l.leave),
                    }
                }
                Inst::Branch { cond, otherwise } => {
                    if self.index(*cond) == 0 {
                        next = *otherwise;
                    }
                }
                Inst::Jump(to) => next = *to,
                Inst::Move(moves) => self.moves(shared, moves),
                Inst::Split { cond, otherwise } => {
                    let mut holds = 0;
                    for lane in 0..n_lanes {
                        holds |= u64::from(self.regs[cond.slot(lane)] != 0) << lane;
                    }
                    self.splits.push((self.mask, holds));
                    self.mask &= holds;
                    if self.mask == 0 {
                        next = *otherwise;
                    }
                }
                Inst::Other { exit } => {
                    if let Some(&(before, holds)) = self.splits.last() {
                        self.mask = before & !holds;
                    }
                    if self.mask == 0 {
                        next = *exit;
                    }
                }
                Inst::Rejoin => {
                    if let Some((before, _)) = self.splits.pop() {
                        self.mask = before;
                    }
                }
                Inst::Role { first, count, exit } => {
                    if self.number < *first || self.number - first >= *count {
                        next = *exit;
                    }
                }
                Inst::FragmentFill { dst, shape, value } => {
                    self.fragment_fill(*dst, *shape, shared.kernel.lanes, *value);
                }
                Inst::FragmentLoad { dst, shape, window } => {
                    self.fragment_load(shared, *dst, *shape, window)?;
                }
                Inst::FragmentStore { src, shape, window } => {
                    self.fragment_store(shared, *src, *shape, window)?;
                }
                Inst::FragmentMap { op, dst, shape, args } => {
                    self.fragment_map(shared, *op, *dst, *shape, args)?;
                }
                Inst::FragmentCast { dst, src, dtype } => {
                    self.fragment_cast(*dst, *src, *dtype)?;
                }
                Inst::Multiply(multiply) => {
                    if multiply.token.is_some() && !std::mem::take(&mut self.assembled) {
                        self.status = Some(Status::AtBlock);
                        return Ok(done - 1);
                    }
                    self.multiply(shared, multiply)?;
                }
                Inst::CopyAsync { to, from, token } => self.copy_async(shared, to, from, *token)?,
                Inst::CopyTensor(copy) => self.copy_tensor(shared, copy)?,
                Inst::MbarrierInit { mbarrier, stage } => {
                    self.mbarrier_init(shared, *mbarrier, *stage)?;
                }
                Inst::MbarrierArrive { mbarrier, stage, expect } => {
                    self.mbarrier_arrive(shared, *mbarrier, *stage, *expect)?;
                }
                Inst::MbarrierWait { mbarrier, stage, parity } => {
                    if let Some(number) = self.mbarrier_wait(shared, *mbarrier, *stage, *parity)? {
                        self.status = Some(Status::AtMbarrier(number));
                        return Ok(done - 1);
                    }
                }
                Inst::Wait { tokens, pending } => self.wait(tokens, *pending)?,
                Inst::End => {
                    self.status = Some(Status::Done);
                    return Ok(done);
                }
            }
            self.pc = next;
        }
        Ok(done)
    }

    /// The first half of a cluster barrier.
    fn arrive(&mut self, shared: &Shared<'_>, barrier: BarrierId) -> Step<()> {
        if self.arrival.is_some() {
            let detail = "the subgroup has arrived before and hasn't waited";
            return trap(FaultKind::BarrierDivergence, detail);
        }
        self.arrival = Some(Arrival {
            barrier,
            statement: shared.code.statements[self.pc],
            clock: self.view.clock.clone(),
            fenced: self.view.fenced.clone(),
            foreign: self.view.foreign.clone(),
            complete: false,
        });
        // What follows isn't ordered by the arrival.
        self.view.advance();
        self.status = Some(Status::Arrived(barrier));
        Ok(())
    }

    /// The second half of a cluster barrier: whether all have arrived.
    fn pass(&mut self, barrier: BarrierId) -> Step<bool> {
        match &self.arrival {
            Some(arrival) if arrival.barrier == barrier => {}
            _ => {
                let detail = "the subgroup waits at a barrier at which it hasn't arrived";
                return trap(FaultKind::BarrierDivergence, detail);
            }
        }
        let Some(arrival) = self.arrival.take_if(|a| a.complete) else { return Ok(false) };
        self.join(&arrival.clock, &arrival.fenced, &arrival.foreign);
        Ok(true)
    }

    /// Passes a barrier behind which all of this is over.
    pub fn join(&mut self, clock: &Clock, fenced: &Clock, foreign: &Option<Foreign>) {
        join(&mut self.view.clock, clock);
        join(&mut self.view.fenced, fenced);
        join_foreign(&mut self.view.foreign, foreign);
        self.view.sync_lanes();
    }

    /// Copies values in the lanes that run.
    fn moves(&mut self, shared: &Shared<'_>, moves: &Moves) {
        if moves.list.is_empty() {
            return;
        }
        let n_lanes = shared.kernel.lanes as usize;
        if moves.direct {
            for &(from, to) in &moves.list {
                self.move_one(n_lanes, from, to);
            }
            return;
        }
        let mut bits = Vec::with_capacity(moves.list.len() * n_lanes);
        let mut fragments = Vec::new();
        for (from, _) in &moves.list {
            match from {
                Slot::Reg(reg) => bits.extend((0..n_lanes).map(|l| self.regs[reg.slot(l)])),
                Slot::Token(at) => bits.push(self.tokens[*at as usize]),
                Slot::Fragment(at) => fragments.push(self.fragments[*at as usize].clone()),
            }
        }
        let (mut bits, mut fragments) = (bits.into_iter(), fragments.into_iter());
        for (_, to) in &moves.list {
            match to {
                Slot::Reg(reg) => {
                    for (lane, value) in bits.by_ref().take(n_lanes).enumerate() {
                        if reg.step == 0 || self.mask >> lane & 1 == 1 {
                            self.regs[reg.slot(lane)] = value;
                        }
                    }
                }
                Slot::Token(at) => {
                    if let Some(value) = bits.next() {
                        self.tokens[*at as usize] = value;
                    }
                }
                Slot::Fragment(at) => {
                    if let Some(value) = fragments.next() {
                        self.fragments[*at as usize] = value;
                    }
                }
            }
        }
    }

    fn move_one(&mut self, n_lanes: usize, from: Slot, to: Slot) {
        match (from, to) {
            (Slot::Reg(from), Slot::Reg(to)) => {
                let n = if to.step == 0 { 1 } else { n_lanes };
                for lane in 0..n {
                    if to.step == 0 || self.mask >> lane & 1 == 1 {
                        self.regs[to.slot(lane)] = self.regs[from.slot(lane)];
                    }
                }
            }
            (Slot::Token(from), Slot::Token(to)) => {
                self.tokens[to as usize] = self.tokens[from as usize];
            }
            (Slot::Fragment(from), Slot::Fragment(to)) => {
                self.fragments[to as usize] = self.fragments[from as usize].clone();
            }
            // Types agree in a valid kernel.
            _ => {}
        }
    }

    fn collective(
        &mut self,
        shared: &mut Shared<'_>,
        op: Collective,
        class: Class,
        dst: Reg,
        src: Reg,
    ) -> Step<()> {
        if self.mask != shared.full() {
            return trap(FaultKind::NonUniform, "not all lanes take part in the collective");
        }
        let n = shared.kernel.lanes as usize;
        let mut values = [0u64; 64];
        for (lane, value) in values.iter_mut().take(n).enumerate() {
            *value = self.regs[src.slot(lane)];
        }
        match op {
            Collective::Reduce(fold) => {
                // A butterfly: every lane folds the same tree. Its registers are a small file.
                let combine = fold.combine();
                let mut distance = n / 2;
                while distance > 0 {
                    let old = values;
                    for lane in 0..n {
                        let mut file =
                            [old[lane.min(lane ^ distance)], old[lane.max(lane ^ distance)], 0];
                        let reg = Reg::shared;
                        let args = [reg(0), reg(1), reg(1)];
                        lanes::map(&mut file, 1, combine, class, reg(2), args);
                        values[lane] = file[2];
                    }
                    distance /= 2;
                }
                if let Class::Float(_) = class {
                    shared.report.flops += n as u64 - 1;
                }
            }
            Collective::Broadcast(lane) => values = [values[lane as usize]; 64],
            Collective::ShuffleXor(mask) => {
                let old = values;
                for lane in 0..n {
                    values[lane] = old[(lane ^ mask as usize) % n];
                }
            }
            Collective::Any => {
                let any = values.iter().take(n).any(|&v| v != 0);
                values = [u64::from(any); 64];
            }
        }
        self.fill(n, dst, |lane| values[lane]);
        shared.report.collectives += 1;
        Ok(())
    }
}
