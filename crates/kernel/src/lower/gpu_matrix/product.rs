//! The pipeline over K: copies in flight, elements of the next K on their way to registers, and
//! the products of this one.
//!
//! Step t is read from stage t mod S while the copies of steps t + 1 … t + S − 1 are in flight. A
//! lane holds its elements of A and B for two K: those it multiplies and the next ones. Before
//! the last K of a step it waits for the copies of the next step and for the other subgroups, so
//! one barrier per step makes the next stage readable and the one before free: everybody has read
//! the last elements of a stage before it arrives.

use tilewright_ir::DType;
use tilewright_ir::program::MapOp;

use super::copy::{Staged, Target};
use super::{Depth, GpuMatrix, LowerError, Position};
use crate::kernel::*;

/// Steps up to which a pipeline of known length is placed without a loop.
const STRAIGHT: u64 = 4;

/// Elements of A and B: of the K to multiply, and of those that were read with it.
#[derive(Clone, Debug)]
struct Elements([Vec<Vec<ValueId>>; 2]);

/// The state between steps.
struct State {
    sums: Vec<ValueId>,
    now: Elements,
    /// Tokens of the copies in flight, oldest step first.
    flight: Vec<Vec<ValueId>>,
}

/// The state between trips of a loop.
struct Ring {
    state: State,
    /// Where in A and B the next copies begin.
    offsets: [ValueId; 2],
}

/// What a step does beside its products.
struct Plan {
    /// Stage offsets of A and B that are read.
    stage: [ValueId; 2],
    /// The stage offsets of the next step, unless this is the last.
    next: Option<[ValueId; 2]>,
    /// Copies to start: one target per operand.
    copies: Option<[Target; 2]>,
    /// Elements of K that a subgroup multiplies.
    trips: u32,
}

impl GpuMatrix<'_> {
    /// Products over the group's part of K: the sums of every lane's tile, row by row.
    pub(super) fn pipeline(
        &mut self,
        staged: [&Staged; 2],
        position: &Position,
        depth: &Depth,
    ) -> Result<Vec<ValueId>, LowerError> {
        let barrier = self.barrier;
        let mut pipe = Pipe { this: self, staged, position, depth, barrier };
        let [rows, columns] = pipe.this.mapping.tile;
        let zero = pipe.this.cx.b.literal(0.0, DType::F32);
        let zeros = vec![zero; (rows * columns) as usize];
        Ok(match depth.steps {
            Some(0) => zeros,
            Some(n) if n <= STRAIGHT.max(u64::from(pipe.stages() - 1)) => pipe.straight(n, zeros),
            _ => pipe.looped(zeros),
        })
    }
}

struct Pipe<'p, 'a> {
    this: &'p mut GpuMatrix<'a>,
    staged: [&'p Staged; 2],
    position: &'p Position,
    depth: &'p Depth,
    barrier: BarrierId,
}

impl Pipe<'_, '_> {
    fn stages(&self) -> u32 {
        self.this.mapping.stages
    }

    /// Elements of K of one step that the subgroup multiplies.
    fn trips(&self) -> u32 {
        self.this.mapping.depth / self.this.mapping.warps[2]
    }

    /// Elements of K of the last step that any subgroup has to multiply, where they are known and
    /// no more than half of a step's: it is worth a text of its own then.
    fn short(&self) -> Option<u32> {
        let rest = self.depth.rest.filter(|rest| *rest > 0)?;
        u32::try_from(rest).ok().filter(|rest| *rest <= self.trips() / 2)
    }

    fn step(&self) -> u64 {
        u64::from(self.this.mapping.depth)
    }

    fn copies(&self) -> u32 {
        self.staged.iter().map(|s| s.copies()).sum()
    }

    /// Stage offsets of a stage whose number is known.
    fn stage(&mut self, number: u64) -> [ValueId; 2] {
        self.staged.map(|s| self.this.cx.b.int((number * s.stage) as i64))
    }

    /// Copies of step `t` of known number.
    fn target(&mut self, t: u64) -> [Target; 2] {
        let ahead = (t * self.step()) as i64;
        let k = self.this.cx.b.add_int(self.depth.first, ahead);
        let known = self.this.cx.program.known(self.this.facts.size[2]);
        // The last slice may have less of K than the others.
        let whole = self.this.mapping.slices == 1
            && known.is_some_and(|k| (t + 1) * self.step() <= k)
            || self.depth.whole && self.depth.steps.is_some_and(|n| t < n);
        let stage = self.stage(t % u64::from(self.stages()));
        let staged = self.staged;
        [0, 1].map(|i| {
            let offset = staged[i].offset(self.this, ahead);
            Target { k, offset, stage: stage[i], whole }
        })
    }

    fn issue(&mut self, targets: &[Target; 2]) -> Vec<ValueId> {
        let mut tokens = Vec::new();
        for (staged, target) in self.staged.into_iter().zip(targets) {
            tokens.extend(staged.issue(self.this, target, self.depth));
        }
        tokens
    }

    /// Waits until the copies of a step have arrived, everybody's, with `newer` steps in flight.
    fn arrive(&mut self, tokens: &[ValueId], newer: u32) {
        let pending = newer * self.copies();
        self.this.cx.b.wait(tokens, pending);
        self.this.cx.b.barrier(self.barrier);
    }

    /// The lane's elements at trip `trip` of a step: those that came with the ones `before`, or
    /// read.
    fn read(&mut self, before: Option<&Elements>, stage: [ValueId; 2], trip: u32) -> Elements {
        let staged = self.staged;
        Elements([0, 1].map(|i| match before {
            Some(Elements(before)) if !trip.is_multiple_of(staged[i].at_once()) => {
                before[i].iter().skip(1).cloned().collect()
            }
            _ => staged[i].read(self.this, i, self.position, stage[i], trip),
        }))
    }

    /// Adds the products of one K. The order goes to and fro, so that neighbours share an
    /// element.
    fn multiply(&mut self, sums: &mut [ValueId], Elements([a, b]): &Elements) {
        let ([a, ..], [b, ..]) = (a.as_slice(), b.as_slice()) else { return };
        for (i, a) in a.iter().enumerate() {
            for j in 0..b.len() {
                let j = if i % 2 == 0 { j } else { b.len() - 1 - j };
                let sum = &mut sums[i * b.len() + j];
                *sum = self.this.cx.b.fma(*a, b[j], *sum);
            }
        }
    }

    /// One step: reads ahead, starts copies, multiplies.
    fn one(&mut self, state: &mut State, plan: &Plan) {
        for trip in 0..plan.trips {
            let last = trip + 1 == plan.trips;
            let mut next = None;
            if !last {
                next = Some(self.read(Some(&state.now), plan.stage, trip + 1));
            }
            if let (0, Some(copies)) = (trip, &plan.copies) {
                let tokens = self.issue(copies);
                state.flight.push(tokens);
            }
            if let (true, Some(stage)) = (last, plan.next) {
                let tokens = state.flight.remove(0);
                self.arrive(&tokens, state.flight.len() as u32);
                next = Some(self.read(None, stage, 0));
            }
            let now = state.now.clone();
            self.multiply(&mut state.sums, &now);
            if let Some(next) = next {
                state.now = next;
            }
        }
    }

    /// The copies before the first step, and its first elements.
    fn begin(&mut self, first: u64, sums: Vec<ValueId>) -> State {
        let mut flight = Vec::new();
        for t in 0..first {
            let target = self.target(t);
            flight.push(self.issue(&target));
        }
        let tokens = flight.remove(0);
        self.arrive(&tokens, flight.len() as u32);
        let stage = self.stage(0);
        let now = self.read(None, stage, 0);
        State { sums, now, flight }
    }

    /// A known, small number of steps without a loop.
    fn straight(&mut self, steps: u64, sums: Vec<ValueId>) -> Vec<ValueId> {
        let stages = u64::from(self.stages());
        let ahead = stages - 1;
        let mut state = self.begin(steps.min(ahead), sums);
        for t in 0..steps {
            let stage = self.stage(t % stages);
            let next = (t + 1 < steps).then(|| self.stage((t + 1) % stages));
            let copies = (t + ahead < steps).then(|| self.target(t + ahead));
            let trips = self.short().filter(|_| next.is_none()).unwrap_or(self.trips());
            self.one(&mut state, &Plan { stage, next, copies, trips });
        }
        state.sums
    }

    /// Any number of steps: first as many trips of `unroll` steps as have nothing but whole copies
    /// to start, in which all stages are known; then step by step; a short last step by itself.
    fn looped(&mut self, sums: Vec<ValueId>) -> Vec<ValueId> {
        let ahead = u64::from(self.stages() - 1);
        let state = self.begin(ahead, sums);
        let staged = self.staged;
        let offsets = staged.map(|s| s.offset(self.this, (ahead * self.step()) as i64));
        let mut ring = Ring { state, offsets };
        let (first, end) = (self.depth.first, self.depth.end);
        let mut rest = first;
        if self.this.mapping.unroll > 1 {
            let unroll = u64::from(self.this.mapping.unroll);
            let b = &mut self.this.cx.b;
            let all = b.sub(end, first);
            let step = b.int(i64::from(self.this.mapping.depth));
            let whole = b.div(all, step);
            let (ahead, zero, each) = (b.int(ahead as i64), b.int(0), b.int(unroll as i64));
            let free = b.sub(whole, ahead);
            let free = b.max(free, zero);
            let trips = b.div(free, each);
            let distance = b.mul_int(trips, (unroll * u64::from(self.this.mapping.depth)) as i64);
            rest = b.add(first, distance);
            if b.known(trips) != Some(0) {
                let start = (ring, Vec::new());
                (ring, _) = self.around((first, rest, unroll), start, Self::unrolled);
            }
        }
        let b = &mut self.this.cx.b;
        let stages = vec![b.int(0), b.int(ahead as i64)];
        let short = self.short();
        let whole = match (short, self.depth.rest) {
            (Some(_), Some(rest)) => self.this.cx.b.add_int(end, -(rest as i64)),
            _ => end,
        };
        let (mut ring, numbers) = self.around((rest, whole, 1), (ring, stages), Self::single);
        if let (Some(trips), Some(number)) = (short, numbers.first()) {
            let stage = self.staged.map(|s| self.this.cx.b.mul_int(*number, s.stage as i64));
            let last = Plan { stage, next: None, copies: None, trips };
            self.one(&mut ring.state, &last);
        }
        // What is still in flight belongs to steps beyond the end.
        let tokens: Vec<ValueId> = ring.state.flight.into_iter().flatten().collect();
        if !tokens.is_empty() {
            self.this.cx.b.wait(&tokens, 0);
        }
        ring.state.sums
    }

    /// A loop from K to K whose trips take `steps` steps: the ring and more numbers are carried.
    fn around(
        &mut self,
        (lo, hi, steps): (ValueId, ValueId, u64),
        (ring, more): (Ring, Vec<ValueId>),
        body: fn(&mut Self, ValueId, &mut Ring, &mut [ValueId]),
    ) -> (Ring, Vec<ValueId>) {
        let tile = self.this.mapping.tile.map(|n| n as usize);
        let at_once = self.staged.map(|s| s.at_once() as usize);
        let sums = ring.state.sums.len();
        let per = self.copies() as usize;
        let pack = |ring: Ring, more: &[ValueId]| {
            let Ring { state: State { sums, now, flight }, offsets } = ring;
            let mut all = sums;
            all.extend(now.0.iter().flatten().flatten());
            all.extend(offsets);
            all.extend(more);
            all.extend(flight.iter().flatten());
            all
        };
        let unpack = |all: &[ValueId]| {
            let mut rest = all;
            let mut take = |n: usize| {
                let (taken, left) = rest.split_at(n);
                rest = left;
                taken.to_vec()
            };
            let sums = take(sums);
            let now = [0, 1].map(|i| (0..at_once[i]).map(|_| take(tile[i])).collect());
            let now = Elements(now);
            let offsets = [take(1)[0], take(1)[0]];
            let numbers = take(more.len());
            let flight = rest.chunks(per.max(1)).map(<[_]>::to_vec).collect();
            (Ring { state: State { sums, now, flight }, offsets }, numbers)
        };
        let init = pack(ring, &more);
        let step = steps * self.step();
        let open = self.this.cx.b.begin_for(lo, hi, step, 1, &init);
        let (mut ring, mut numbers) = unpack(open.inner());
        body(self, open.index(), &mut ring, &mut numbers);
        for (s, offset) in self.staged.into_iter().zip(&mut ring.offsets) {
            let distance = s.offset(self.this, step as i64);
            *offset = self.this.cx.b.add(*offset, distance);
        }
        let next = pack(ring, &numbers);
        unpack(&self.this.cx.b.end_for(open, &next))
    }

    /// `unroll` steps whose copies are whole. Stages are a multiple of them, or the other way.
    fn unrolled(&mut self, k: ValueId, ring: &mut Ring, _: &mut [ValueId]) {
        let stages = u64::from(self.stages());
        for u in 0..u64::from(self.this.mapping.unroll) {
            let stage = self.stage(u % stages);
            let next = Some(self.stage((u + 1) % stages));
            let filled = self.stage((u + stages - 1) % stages);
            let staged = self.staged;
            let copies = [0, 1].map(|i| {
                let distance = staged[i].offset(self.this, (u * self.step()) as i64);
                let offset = self.this.cx.b.add(ring.offsets[i], distance);
                Target { k, offset, stage: filled[i], whole: true }
            });
            let trips = self.trips();
            self.one(&mut ring.state, &Plan { stage, next, copies: Some(copies), trips });
        }
    }

    /// One step from a stage whose number is carried, beside that of the stage to fill.
    fn single(&mut self, k: ValueId, ring: &mut Ring, numbers: &mut [ValueId]) {
        let stages = u64::from(self.stages());
        let staged = self.staged;
        let step = self.step();
        let b = &mut self.this.cx.b;
        let k = b.add_int(k, ((stages - 1) * step) as i64);
        let (zero, all) = (b.int(0), b.int(stages as i64));
        let mut at = |number: ValueId| staged.map(|s| b.mul_int(number, s.stage as i64));
        let (stage, filled) = (at(numbers[0]), at(numbers[1]));
        for number in numbers.iter_mut() {
            let next = b.add_int(*number, 1);
            let wraps = b.compare(MapOp::Eq, next, all);
            *number = b.map(MapOp::Select, &[wraps, zero, next]);
        }
        let next = staged.map(|s| b.mul_int(numbers[0], s.stage as i64));
        let offsets = ring.offsets;
        let copies =
            [0, 1].map(|i| Target { k, offset: offsets[i], stage: filled[i], whole: false });
        let trips = self.trips();
        self.one(&mut ring.state, &Plan { stage, next: Some(next), copies: Some(copies), trips });
    }
}
