//! Loops and branches.

use std::collections::HashSet;

use tilewright_kernel::kernel::{Block, Carry, Memory, Op, Place, Stmt, Type, ValueId};

use super::CodegenError;
use super::emitter::{Class, Emitter, Reg, Val};

impl Emitter<'_> {
    pub(super) fn for_loop(&mut self, stmt: &Stmt) -> Result<(), CodegenError> {
        let Op::For { index, lo, hi, step, unroll, carries, body } = &stmt.op else {
            return Err(self.unsupported("a loop without a body"));
        };
        // Tokens order the kernel; the machine counts commit groups.
        let is_data = |v: ValueId| self.kernel.values[v].ty != Type::Token;
        let (carries, results): (Vec<Carry>, Vec<ValueId>) = carries
            .iter()
            .zip(&stmt.results)
            .filter(|(_, r)| is_data(**r))
            .map(|(c, r)| (*c, *r))
            .unzip();
        let (carries, results) = (carries.as_slice(), results.as_slice());
        let (lo, hi) = (self.val(*lo)?, self.val(*hi)?);
        if let (Val::Int(lo), Val::Int(hi)) = (lo, hi) {
            let trips = (hi - lo).max(0) as u64;
            let trips = trips.div_ceil((*step).max(1));
            if *unroll == 0 || trips <= 1 || indexes_private(body, *index) {
                for carry in carries {
                    let init = self.val(carry.init)?;
                    self.define(carry.inner, init);
                }
                for trip in 0..trips {
                    self.define(*index, Val::Int(lo + (trip * step) as i64));
                    self.trip(carries, body)?;
                }
                return self.results(carries, results);
            }
        }
        self.rolled(results, *index, lo, hi, *step, *unroll, carries, body)
    }

    /// One trip: the body, then every inner value becomes the next one.
    fn trip(&mut self, carries: &[Carry], body: &Block) -> Result<(), CodegenError> {
        self.block(body)?;
        let next: Vec<Val> = carries.iter().map(|c| self.val(c.next)).collect::<Result<_, _>>()?;
        for (carry, val) in carries.iter().zip(next) {
            self.define(carry.inner, val);
        }
        Ok(())
    }

    fn results(&mut self, carries: &[Carry], results: &[ValueId]) -> Result<(), CodegenError> {
        for (carry, result) in carries.iter().zip(results) {
            let last = self.val(carry.inner)?;
            self.define(*result, last);
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn rolled(
        &mut self,
        results: &[ValueId],
        index: ValueId,
        lo: Val,
        hi: Val,
        step: u64,
        unroll: u32,
        carries: &[Carry],
        body: &Block,
    ) -> Result<(), CodegenError> {
        let counter = self.fresh_copy(lo, Class::B64);
        let mut regs = Vec::with_capacity(carries.len());
        for carry in carries {
            let (init, class) = (self.val(carry.init)?, self.class(carry.inner)?);
            regs.push(self.fresh_copy(init, class));
        }
        let limit = self.text_of(hi, Class::B64);
        // Several trips per branch while that many remain, then one at a time.
        let many = u64::from(unroll.clamp(1, 16));
        for trips in if many > 1 { vec![many, 1] } else { vec![1] } {
            let (head, end) = (self.label("loop"), self.label("end"));
            let before = self.reuse.clone();
            self.place_label(&head);
            let (last, done) = (self.reg(Class::B64), self.reg(Class::Pred));
            self.inst(format_args!("add.s64 {last}, {counter}, {}", (trips - 1) * step));
            self.inst(format_args!("setp.ge.s64 {done}, {last}, {limit}"));
            self.inst(format_args!("@{done} bra {end}"));
            for (carry, reg) in carries.iter().zip(&regs) {
                self.define(carry.inner, Val::Reg(*reg));
            }
            for trip in 0..trips {
                if trip == 0 {
                    self.define(index, Val::Reg(counter));
                } else {
                    let at = self.reg(Class::B64);
                    self.inst(format_args!("add.s64 {at}, {counter}, {}", trip * step));
                    self.define(index, Val::Reg(at));
                }
                self.trip(carries, body)?;
            }
            let next: Vec<Val> =
                carries.iter().map(|c| self.val(c.inner)).collect::<Result<_, _>>()?;
            self.assign(&regs, &next)?;
            self.inst(format_args!("add.s64 {counter}, {counter}, {}", trips * step));
            self.flush();
            self.inst(format_args!("bra {head}"));
            self.place_label(&end);
            // What the body computed is stale or undefined after it.
            self.reuse = before;
        }
        for (result, reg) in results.iter().zip(&regs) {
            self.define(*result, Val::Reg(*reg));
        }
        Ok(())
    }

    fn fresh_copy(&mut self, val: Val, class: Class) -> Reg {
        let text = self.text_of(val, class);
        let reg = self.reg(class);
        self.inst(format_args!("mov.{} {reg}, {text}", class.mov()));
        reg
    }

    /// Assigns all at once: a source that is another target is copied first.
    fn assign(&mut self, targets: &[Reg], sources: &[Val]) -> Result<(), CodegenError> {
        let set: HashSet<Reg> = targets.iter().copied().collect();
        let mut staged = Vec::with_capacity(sources.len());
        for (target, source) in targets.iter().zip(sources) {
            let clash = matches!(source, Val::Reg(r) if r != target && set.contains(r));
            staged.push(if clash {
                Val::Reg(self.fresh_copy(*source, target.class))
            } else {
                *source
            });
        }
        for (target, source) in targets.iter().zip(staged) {
            if source != Val::Reg(*target) {
                let text = self.text_of(source, target.class);
                self.inst(format_args!("mov.{} {target}, {text}", target.class.mov()));
            }
        }
        Ok(())
    }

    pub(super) fn branch(&mut self, stmt: &Stmt) -> Result<(), CodegenError> {
        let Op::If { cond, then, then_values, otherwise, else_values } = &stmt.op else {
            return Err(self.unsupported("a branch without blocks"));
        };
        if let Val::Int(c) = self.val(*cond)? {
            let (block, values) =
                if c != 0 { (then, then_values) } else { (otherwise, else_values) };
            self.block(block)?;
            for (result, value) in stmt.results.iter().zip(values) {
                let val = self.val(*value)?;
                self.define(*result, val);
            }
            return Ok(());
        }
        let val = self.val(*cond)?;
        let p = self.in_reg(val, Class::Pred);
        let mut outs = Vec::with_capacity(stmt.results.len());
        for result in &stmt.results {
            let class = self.class(*result)?;
            outs.push(self.reg(class));
        }
        let (other, end) = (self.label("else"), self.label("endif"));
        self.flush();
        self.inst(format_args!("@!{p} bra {other}"));
        for (last, block, values) in [(false, then, then_values), (true, otherwise, else_values)] {
            let before = self.reuse.clone();
            self.block(block)?;
            for (out, value) in outs.iter().zip(values) {
                let text = self.operand(*value)?;
                self.inst(format_args!("mov.{} {out}, {text}", out.class.mov()));
            }
            self.reuse = before;
            if !last {
                self.flush();
                if self.arrivals.is_fenced(stmt) {
                    self.inst(format_args!("fence.acq_rel.cluster"));
                }
                self.inst(format_args!("bra {end}"));
                self.place_label(&other);
            }
        }
        self.place_label(&end);
        for (result, out) in stmt.results.iter().zip(outs) {
            self.define(*result, Val::Reg(out));
        }
        Ok(())
    }
}

/// Whether a private array is indexed by something that the loop counter determines.
fn indexes_private(body: &Block, index: ValueId) -> bool {
    let mut derived = HashSet::from([index]);
    scan(body, &mut derived)
}

fn scan(block: &Block, derived: &mut HashSet<ValueId>) -> bool {
    let private = |place: &Place, derived: &HashSet<ValueId>| {
        matches!(place.memory, Memory::Private(_)) && derived.contains(&place.base)
    };
    for stmt in &block.stmts {
        match &stmt.op {
            Op::Map { args, .. } if args.iter().any(|a| derived.contains(a)) => {
                derived.extend(stmt.results.iter().copied());
            }
            Op::Load { place, .. } | Op::Store { place, .. } if private(place, derived) => {
                return true;
            }
            Op::For { index, lo, hi, body, .. } => {
                if derived.contains(lo) || derived.contains(hi) {
                    derived.insert(*index);
                }
                if scan(body, derived) {
                    return true;
                }
            }
            Op::If { then, otherwise, .. } if scan(then, derived) || scan(otherwise, derived) => {
                return true;
            }
            _ => {}
        }
    }
    false
}
