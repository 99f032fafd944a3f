//! Loops and branches.

use iced_x86::Code;
use tilewright_kernel::kernel::*;

use super::lir::{Bank, Cc, Item, Operand, V, W, inst, r, rw};
use super::mask::MaskOp;
use super::select::{Res, ScopeKind, Select};
use super::value::{Active, Data, Flag, Ix, Mask, Val};
use crate::error::CpuError;

/// A `for` statement.
#[derive(Clone, Copy, Debug)]
pub struct Loop<'a> {
    /// Counter.
    pub index: ValueId,
    /// First value.
    pub lo: ValueId,
    /// End, exclusive.
    pub hi: ValueId,
    /// Distance.
    pub step: u64,
    /// Trips in a row.
    pub unroll: u32,
    /// Carried values.
    pub carries: &'a [Carry],
    /// One trip.
    pub body: &'a Block,
}

/// Most copies of a body that full unrolling makes.
const FULL_UNROLL: i64 = 64;

impl Select<'_> {
    /// Adds a constant to a register.
    pub fn add_constant(&mut self, v: V, n: i64) {
        match (i8::try_from(n), i32::try_from(n)) {
            (Ok(n), _) => {
                let ops = [rw(v, W::R64), Operand::Imm(i64::from(n))];
                self.emit(inst(Code::Add_rm64_imm8, &ops));
            }
            (_, Ok(n)) => {
                let ops = [rw(v, W::R64), Operand::Imm(i64::from(n))];
                self.emit(inst(Code::Add_rm64_imm32, &ops));
            }
            _ => {
                let big = self.in_register(&Ix::konst(n));
                self.emit(inst(Code::Add_r64_rm64, &[rw(v, W::R64), r(big, W::R64)]));
            }
        }
    }

    // ---- for -------------------------------------------------------------------------------

    /// A `for` statement: straight code, or a main loop of several trips and the rest.
    pub fn for_stmt(&mut self, parts: &Loop<'_>, results: &[ValueId]) -> Res<()> {
        let lo = self.uniform_index(parts.lo)?;
        let hi = self.uniform_index(parts.hi)?;
        let step = i64::try_from(parts.step.max(1))
            .map_err(|_| CpuError::unsupported("a loop step beyond 63 bits"))?;
        let streams = self.options.streaming_stores && self.fragments.is_empty();
        if streams && self.streamed.is_none() && parts.carries.is_empty() {
            return self.streaming_loop(parts, results, step);
        }
        self.plain_for(parts, results, (lo, hi, step))
    }

    /// A `for` statement without streaming.
    pub(super) fn plain_for(
        &mut self,
        parts: &Loop<'_>,
        results: &[ValueId],
        (lo, hi, step): (Ix, Ix, i64),
    ) -> Res<()> {
        let span = hi.plus(&lo, -1).known();
        let trips = span.map(|s| if s <= 0 { 0 } else { (s - 1) / step + 1 });
        let mut states = Vec::new();
        for carry in parts.carries {
            let state = self.get(carry.init)?;
            states.push(self.shape_like(carry.inner, state)?);
        }
        let fragments = self.fragments.enter_loop();
        let most = if parts.unroll == 0 { FULL_UNROLL } else { i64::from(parts.unroll) };
        let states = match trips {
            Some(n) if n <= most.clamp(1, FULL_UNROLL) => {
                self.straight(parts, &lo, step, n, states)?
            }
            Some(n) => {
                let copies = if parts.unroll == 0 { 1 } else { most.min(FULL_UNROLL) };
                let main = n / copies;
                let middle = lo.offset(main * copies * step);
                let states = self.counted(parts, &lo, &middle, step, copies, true, states)?.1;
                match n % copies {
                    rest @ (0 | 1) => self.straight(parts, &middle, step, rest, states)?,
                    // More than one: a loop of its own, so that code doesn't double.
                    _ => self.counted(parts, &middle, &hi, step, 1, true, states)?.1,
                }
            }
            None => {
                let copies = if parts.unroll == 0 { 1 } else { most.min(FULL_UNROLL) };
                if copies == 1 {
                    self.counted(parts, &lo, &hi, step, 1, false, states)?.1
                } else {
                    // The main loop runs while all of its trips are in range.
                    let end = hi.offset(-(copies - 1) * step);
                    let (at, states) =
                        self.counted(parts, &lo, &end, step, copies, false, states)?;
                    self.counted(parts, &at, &hi, step, 1, false, states)?.1
                }
            }
        };
        self.fragments.leave_loop(&fragments, parts.body, parts.carries);
        for (result, state) in results.iter().zip(states) {
            self.bind(*result, state)?;
        }
        Ok(())
    }

    /// The value in the shape of another: lane-varying where the kernel says that one varies.
    fn shape_like(&mut self, like: ValueId, val: Val) -> Res<Val> {
        let varies = self.varies(like);
        Ok(match val {
            Val::Data(data) if varies && data.uniform => {
                let parts = vec![data.parts[0]; self.parts(Self::size(data.dtype))];
                Val::Data(Data { parts, uniform: false, ..data })
            }
            Val::Data(data) if !varies && !data.uniform => {
                let parts = vec![data.parts[0]];
                Val::Data(Data { parts, uniform: true, ..data })
            }
            Val::Flag(flag) if varies => Val::Mask(self.mask_of_flag(&flag)),
            Val::Mask(mask) if !varies => Val::Flag(self.flag_of_uniform(mask.parts[0])),
            Val::Index(ix) if varies => Val::IndexLanes(self.index_lanes(&ix)),
            Val::IndexLanes(parts) if !varies => {
                let v = self.first_element(parts[0], 8);
                Val::Index(Ix::reg(v))
            }
            other => other,
        })
    }

    /// Runs the body a known number of times without a loop.
    fn straight(
        &mut self,
        parts: &Loop<'_>,
        lo: &Ix,
        step: i64,
        trips: i64,
        mut states: Vec<Val>,
    ) -> Res<Vec<Val>> {
        for trip in 0..trips {
            for (carry, state) in parts.carries.iter().zip(&states) {
                self.bind(carry.inner, state.clone())?;
            }
            self.bind(parts.index, Val::Index(lo.offset(trip * step)))?;
            self.block(parts.body)?;
            let mut next = Vec::new();
            for carry in parts.carries {
                let state = self.get(carry.next)?;
                next.push(self.shape_like(carry.inner, state)?);
            }
            states = next;
        }
        Ok(states)
    }

    /// A loop of `copies` bodies per round. Returns the counter after the loop and the states.
    #[allow(clippy::too_many_arguments)]
    fn counted(
        &mut self,
        parts: &Loop<'_>,
        lo: &Ix,
        hi: &Ix,
        step: i64,
        copies: i64,
        runs: bool,
        states: Vec<Val>,
    ) -> Res<(Ix, Vec<Val>)> {
        let (top, done) = (self.label(), self.label());
        let counter = self.fresh(Bank::Gpr);
        let level = self.level();
        if let Some(streamed) = self.streamed.as_mut().filter(|s| s.level == level) {
            streamed.counters.push(counter);
        }
        let mut registers: Vec<V> = vec![counter];
        let mut carried: Vec<Val> = Vec::new();
        for state in &states {
            carried.push(self.carry_registers(state, &mut registers)?);
        }
        self.push_scope(ScopeKind::Loop, Some(counter));
        let level = self.level();
        registers.iter().for_each(|v| self.levels[v.0 as usize] = level);
        let outer_carried = self.carried.len();
        self.carried.extend(registers.iter().skip(1));

        let mut current = carried.clone();
        for copy in 0..copies {
            for (carry, state) in parts.carries.iter().zip(&current) {
                self.bind(carry.inner, state.clone())?;
            }
            let at = Ix::reg(counter).offset(copy * step);
            self.bind(parts.index, Val::Index(at))?;
            let wanted = self.wanted.clone();
            for (carry, to) in parts.carries.iter().zip(&carried) {
                // Every copy of the body, or at least the last, leaves the state in the carry's
                // own registers.
                let every = may_redirect(parts, carry, 1);
                let last = copy + 1 == copies && may_redirect(parts, carry, copies);
                if (every || last) && matches!(to, Val::Data(_)) {
                    self.wanted.insert(carry.next, to.clone());
                }
            }
            self.block(parts.body)?;
            self.wanted = wanted;
            let mut next = Vec::new();
            for carry in parts.carries {
                let state = self.get(carry.next)?;
                next.push(self.shape_like(carry.inner, state)?);
            }
            current = next;
        }
        self.hand_over(&carried, &current, &registers)?;
        self.carried.truncate(outer_carried);
        let scope = self.pop_scope()?;
        let outer = self.level();
        registers.iter().for_each(|v| self.levels[v.0 as usize] = outer);

        // Where only a multiple of the counter is used, that multiple counts the trips too.
        let control = match (lo.known(), hi.known()) {
            (Some(_), Some(end)) if runs && !mentions_register(&scope.items, counter) => scope
                .derived
                .iter()
                .filter(|d| d.factor > 0)
                .find_map(|d| Some((d.v, i32::try_from(end.checked_mul(d.factor)?).ok()?))),
            _ => None,
        };

        // What stands before the loop: the counter, its multiples and the initial states.
        if control.is_none() {
            let start = self.in_register(lo);
            self.emit(Item::Move { to: counter, from: start });
        }
        for derived in &scope.derived {
            let start = self.in_register(&lo.times(derived.factor));
            self.emit(Item::Move { to: derived.v, from: start });
        }
        for (to, from) in carried.iter().zip(&states) {
            self.move_val(to, from)?;
        }
        let end = match (control, hi.known().map(i32::try_from)) {
            (Some((_, end)), _) | (None, Some(Ok(end))) => Operand::Imm(i64::from(end)),
            _ => r(self.in_register(hi), W::R64),
        };
        let counts = control.map_or(counter, |c| c.0);
        let compare = match end {
            Operand::Imm(_) => inst(Code::Cmp_rm64_imm32, &[r(counts, W::R64), end]),
            _ => inst(Code::Cmp_r64_rm64, &[r(counts, W::R64), end]),
        };
        if !runs {
            self.emit(compare.clone());
            self.emit(Item::Branch(Cc::Ge, done));
        }
        self.emit(Item::LoopStart);
        self.emit(Item::Label(top));
        self.scopes[outer as usize].items.extend(scope.items);
        if control.is_none() {
            self.add_constant(counter, step * copies);
        }
        for derived in &scope.derived {
            if Some(derived.v) != control.map(|c| c.0) {
                self.add_constant(derived.v, derived.factor.wrapping_mul(step * copies));
            }
        }
        if let Some((v, _)) = control {
            let factor = scope.derived.iter().find(|d| d.v == v).map_or(1, |d| d.factor);
            self.add_constant(v, factor.wrapping_mul(step * copies));
        }
        self.emit(compare);
        self.emit(Item::Branch(Cc::Lt, top));
        self.emit(Item::LoopEnd);
        self.emit(Item::Label(done));
        Ok((Ix::reg(counter), carried))
    }

    /// Registers for a carried state.
    fn carry_registers(&mut self, state: &Val, all: &mut Vec<V>) -> Res<Val> {
        let mut take = |bank: Bank, select: &mut Self| {
            let v = select.fresh(bank);
            all.push(v);
            v
        };
        Ok(match state {
            Val::Index(_) => Val::Index(Ix::reg(take(Bank::Gpr, self))),
            Val::IndexLanes(parts) => {
                Val::IndexLanes(parts.iter().map(|_| take(Bank::Vec, self)).collect())
            }
            Val::Flag(_) => Val::Flag(Flag::Reg(take(Bank::Gpr, self))),
            Val::Mask(mask) => {
                let bank = if self.avx512() { Bank::Mask } else { Bank::Vec };
                Val::Mask(Mask { parts: mask.parts.iter().map(|_| take(bank, self)).collect() })
            }
            Val::Data(data) => {
                let parts = data.parts.iter().map(|_| take(Bank::Vec, self)).collect();
                Val::Data(Data { parts, literal: None, ..data.clone() })
            }
            Val::Fragment(n) => Val::Fragment(*n),
        })
    }

    /// Registers and sources of a move between states of one shape.
    fn pairs(&mut self, to: &Val, from: &Val) -> Res<Vec<(V, V)>> {
        Ok(match (to, from) {
            (Val::Index(to), Val::Index(from)) => match to.single() {
                Some(v) => vec![(v, self.in_register(from))],
                None => Vec::new(),
            },
            (Val::Flag(Flag::Reg(v)), Val::Flag(from)) => vec![(*v, self.flag_register(from))],
            (Val::IndexLanes(to), Val::IndexLanes(from)) => {
                to.iter().copied().zip(from.iter().copied()).collect()
            }
            (Val::Mask(to), Val::Mask(from)) => {
                to.parts.iter().copied().zip(from.parts.iter().copied()).collect()
            }
            (Val::Data(to), Val::Data(from)) => {
                to.parts.iter().enumerate().map(|(n, v)| (*v, from.part(n))).collect()
            }
            (Val::Fragment(a), Val::Fragment(b)) if a == b => Vec::new(),
            (Val::Fragment(_), Val::Fragment(_)) => {
                return Err(CpuError::unsupported("a loop that exchanges fragments"));
            }
            _ => return Err(CpuError::malformed("a carried value that changes its kind")),
        })
    }

    fn move_val(&mut self, to: &Val, from: &Val) -> Res<()> {
        for (to, from) in self.pairs(to, from)? {
            if to != from {
                self.emit(Item::Move { to, from });
            }
        }
        Ok(())
    }

    /// At the end of a trip: all carries take their next states at once.
    fn hand_over(&mut self, carried: &[Val], next: &[Val], registers: &[V]) -> Res<()> {
        let mut moves: Vec<(V, V)> = Vec::new();
        for (to, from) in carried.iter().zip(next) {
            // An index that only grows by a constant is added in place.
            if let (Val::Index(to), Val::Index(from)) = (to, from) {
                let others = carried.len() > 1;
                if let (Some(v), [(x, 1)], false) = (to.single(), from.terms.as_slice(), others)
                    && v == *x
                    && from.lane == 0
                {
                    self.add_constant(v, from.konst);
                    continue;
                }
            }
            moves.extend(self.pairs(to, from)?);
        }
        moves.retain(|(to, from)| to != from);
        // A source that is another carry's register would be overwritten: copy such ones first.
        for (_, from) in &mut moves {
            if registers.contains(from) {
                *from = self.copy(*from);
            }
        }
        for (to, from) in moves {
            self.emit(Item::Move { to, from });
        }
        Ok(())
    }

    // ---- if --------------------------------------------------------------------------------

    /// An `if` statement: a branch, or both sides under masks where the condition varies.
    pub fn if_stmt(
        &mut self,
        cond: ValueId,
        then: (&Block, &[ValueId]),
        otherwise: (&Block, &[ValueId]),
        results: &[ValueId],
    ) -> Res<()> {
        let flag = match self.get(cond)? {
            Val::Flag(Flag::Known(on)) => {
                let (block, values) = if on { then } else { otherwise };
                self.block(block)?;
                for (result, value) in results.iter().zip(values) {
                    let val = self.get(*value)?;
                    self.bind(*result, val)?;
                }
                self.tiles_joined(then.1, otherwise.1);
                return Ok(());
            }
            Val::Flag(flag) => flag,
            Val::Mask(mask) => return self.masked_if(&mask, then, otherwise, results),
            _ => return Err(CpuError::malformed("a condition that is no bool")),
        };
        // A lazily compared flag reads its registers here, before any side can change them.
        let (other, done) = (self.label(), self.label());
        let mut targets: Vec<Val> = Vec::new();
        let mut sides = Vec::new();
        for (n, (block, values)) in [then, otherwise].into_iter().enumerate() {
            self.push_scope(ScopeKind::Branch, None);
            let wanted = std::mem::take(&mut self.wanted);
            self.block(block)?;
            self.wanted = wanted;
            for (at, (result, value)) in results.iter().zip(values).enumerate() {
                let val = self.get(*value)?;
                let val = self.shape_like(*result, val)?;
                if n == 0 {
                    let mut all = Vec::new();
                    let target = self.carry_registers(&val, &mut all)?;
                    let outer = self.level() - 1;
                    all.iter().for_each(|v| self.levels[v.0 as usize] = outer);
                    targets.push(target);
                }
                let target = targets[at].clone();
                self.move_val(&target, &val)?;
            }
            sides.push(self.pop_scope()?.items);
        }
        let cc = self.test(&flag);
        self.emit(Item::Branch(cc.negated(), other));
        let level = self.level() as usize;
        let mut sides = sides.into_iter();
        self.scopes[level].items.extend(sides.next().unwrap_or_default());
        let second = sides.next().unwrap_or_default();
        if second.iter().any(|item| !matches!(item, Item::Stmt(_))) {
            self.emit(Item::Jump(done));
        }
        self.emit(Item::Label(other));
        self.scopes[level].items.extend(second);
        self.emit(Item::Label(done));
        for (result, target) in results.iter().zip(targets) {
            self.bind(*result, target)?;
        }
        self.tiles_joined(then.1, otherwise.1);
        Ok(())
    }

    /// Runs both sides; memory is touched only by the lanes of each.
    fn masked_if(
        &mut self,
        mask: &Mask,
        then: (&Block, &[ValueId]),
        otherwise: (&Block, &[ValueId]),
        results: &[ValueId],
    ) -> Res<()> {
        let before = self.predicate.clone();
        let mut ends: Vec<Vec<Val>> = Vec::new();
        for ((block, values), on) in [(then, true), (otherwise, false)] {
            let side = if on { mask.clone() } else { self.mask_not(mask) };
            self.predicate = Some(match &before {
                None => side,
                Some(outer) => self.mask_op(MaskOp::And, &side, outer),
            });
            self.block(block)?;
            let mut vals = Vec::new();
            for value in values {
                vals.push(self.get(*value)?);
            }
            ends.push(vals);
        }
        self.predicate = before;
        let otherwise = ends.pop().unwrap_or_default();
        let then = ends.pop().unwrap_or_default();
        for ((result, a), b) in results.iter().zip(then).zip(otherwise) {
            let val = self.choose(&Active::Mask(mask.clone()), &a, &b)?;
            self.bind(*result, val)?;
        }
        Ok(())
    }
}

/// Whether the statement that computes a carry's next state may write the carry's registers:
/// it stands directly in the body, and nothing reads the state of this trip after it.
fn may_redirect(parts: &Loop<'_>, carry: &Carry, copies: i64) -> bool {
    let Some(at) = parts.body.stmts.iter().position(|s| s.results.contains(&carry.next)) else {
        return false;
    };
    let simple = matches!(parts.body.stmts[at].op, Op::Map { .. } | Op::Fma { .. });
    let shared =
        parts.carries.iter().filter(|c| c.next == carry.next || c.next == carry.inner).count();
    let rest = &parts.body.stmts[at + 1..];
    simple && shared == 1 && (copies > 1 || !rest.iter().any(|s| mentions(s, carry.inner)))
}

/// Whether any item reads or writes a register.
fn mentions_register(items: &[Item], v: V) -> bool {
    let mut found = false;
    for item in items {
        super::alloc::each_reg(item, &mut |x, _| found |= x == v);
    }
    found
}

/// Whether a statement, nested blocks included, reads a value.
fn mentions(stmt: &Stmt, value: ValueId) -> bool {
    let mut found = false;
    stmt.op.for_each_operand(&mut |v| found |= v == value);
    let inside = |block: &Block| block.stmts.iter().any(|s| mentions(s, value));
    found
        || match &stmt.op {
            Op::For { carries, body, .. } => {
                carries.iter().any(|c| c.next == value) || inside(body)
            }
            Op::If { then, then_values, otherwise, else_values, .. } => {
                then_values.contains(&value)
                    || else_values.contains(&value)
                    || inside(then)
                    || inside(otherwise)
            }
            Op::InRole { body, .. } => inside(body),
            _ => false,
        }
}
