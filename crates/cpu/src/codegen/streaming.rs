//! Loops whose whole-vector stores go past the caches.

use iced_x86::Code;

use super::control::Loop;
use super::lir::{Cc, Item, Operand, V, W, inst, r, rw};
use super::select::{Res, ScopeKind, Select, Streamed};
use super::value::Ix;
use tilewright_kernel::kernel::ValueId;

impl Select<'_> {
    /// A loop in two versions: one whose whole-vector stores go past the caches, which needs
    /// aligned addresses, and the ordinary one. Which runs is decided before the loop.
    pub(super) fn streaming_loop(
        &mut self,
        parts: &Loop<'_>,
        results: &[ValueId],
        step: i64,
    ) -> Res<()> {
        let (lo, hi) = (self.uniform_index(parts.lo)?, self.uniform_index(parts.hi)?);
        let range = (lo.clone(), hi, step);
        let outer = self.level();
        self.push_scope(ScopeKind::Branch, None);
        let level = self.level();
        self.streamed = Some(Streamed { level, addresses: Vec::new(), counters: Vec::new() });
        self.plain_for(parts, results, range.clone())?;
        let (addresses, counters) = match self.streamed.take() {
            Some(streamed) => (streamed.addresses, streamed.counters),
            None => (Vec::new(), Vec::new()),
        };
        let stream = self.pop_scope()?;
        // Addresses at the first trip; what else varies in the loop must keep the alignment.
        let align = self.isa.vector_bytes() as i64;
        let mut sums: Vec<Ix> = Vec::new();
        let mut provable = true;
        for address in addresses {
            let mut first = Ix::konst(address.konst);
            for (v, factor) in address.terms {
                if counters.contains(&v) {
                    first = first.plus(&lo, factor);
                    provable &= factor.wrapping_mul(step) % align == 0;
                } else if self.levels[v.0 as usize] <= outer {
                    first = first.plus(&Ix::reg(v), factor);
                } else {
                    provable = false;
                }
            }
            first.konst = first.konst.rem_euclid(align);
            if !sums.contains(&first) {
                sums.push(first);
            }
        }
        let level = outer as usize;
        if sums.is_empty() {
            self.scopes[level].items.extend(stream.items);
            return Ok(());
        }
        self.push_scope(ScopeKind::Branch, None);
        self.plain_for(parts, results, range)?;
        let plain = self.pop_scope()?;
        if !provable {
            self.scopes[level].items.extend(plain.items);
            return Ok(());
        }
        let mut all: Option<V> = None;
        for sum in &sums {
            let v = self.in_register(sum);
            all = Some(match all {
                None => self.copy(v),
                Some(all) => {
                    self.emit(inst(Code::Or_r64_rm64, &[rw(all, W::R64), r(v, W::R64)]));
                    all
                }
            });
        }
        let (other, done) = (self.label(), self.label());
        if let Some(all) = all {
            let test = [r(all, W::R64), Operand::Imm(align - 1)];
            self.emit(inst(Code::Test_rm64_imm32, &test));
            self.emit(Item::Branch(Cc::Ne, other));
        }
        self.scopes[level].items.extend(stream.items);
        self.emit(Item::Jump(done));
        self.emit(Item::Label(other));
        self.scopes[level].items.extend(plain.items);
        self.emit(Item::Label(done));
        Ok(())
    }
}
