//! Asynchronous copies to shared memory (`cp.async`) and the waits for them.
//!
//! Hardware waits count commit groups, the kernel's waits count copies. All copies between two
//! commits form a group; the number of copies per group is the greatest common divisor of every
//! run of copies and of every number of copies that a wait leaves in flight, so each wait leaves
//! whole groups.

use tilewright_kernel::kernel::{ArgKind, Block, Guard, GuardTest, Kernel, Memory, Op, Place};

use super::CodegenError;
use super::emitter::{Class, Emitter, Reg, Val};
use super::memory::{At, shared_offset};

pub(super) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Copies per commit group; 0 where there are no copies.
pub(super) fn group_size(kernel: &Kernel) -> u64 {
    fn scan(block: &Block, size: &mut u64) {
        let mut run = 0u64;
        let close = |run: &mut u64, size: &mut u64| {
            *size = gcd(*size, *run);
            *run = 0;
        };
        for stmt in &block.stmts {
            match &stmt.op {
                Op::CopyAsync { .. } => run += 1,
                Op::Wait { pending, .. } => {
                    close(&mut run, size);
                    *size = gcd(*size, u64::from(*pending));
                }
                Op::For { body, .. } | Op::InRole { body, .. } => {
                    close(&mut run, size);
                    scan(body, size);
                }
                Op::If { then, otherwise, .. } => {
                    close(&mut run, size);
                    scan(then, size);
                    scan(otherwise, size);
                }
                _ => {}
            }
        }
        close(&mut run, size);
    }
    let mut size = 0;
    scan(&kernel.body, &mut size);
    size
}

/// Copies that are emitted but not committed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Commits {
    /// Copies per group.
    pub(super) size: u64,
    /// Copies since the last commit.
    pub(super) open: u64,
}

impl Emitter<'_> {
    /// Starts a copy; the last one of a group commits it.
    pub(super) fn copy_async(
        &mut self,
        to: &Place,
        from: &Place,
        width: u32,
        guard: Option<&Guard>,
    ) -> Result<(), CodegenError> {
        let Memory::Global(arg) = from.memory else {
            return Err(self.unsupported("an asynchronous copy that isn't from global memory"));
        };
        let ArgKind::Buffer { dtype, .. } = self.kernel.args[arg].kind else {
            return Err(self.unsupported("a copy from an argument that is no buffer"));
        };
        let bytes = dtype.bytes() * u64::from(width);
        let base = self.bases.get(&arg).copied();
        let base = base.ok_or_else(|| self.unsupported("a copy from an unknown buffer"))?;
        let source = self.lane_address(from, base, 0, dtype.bytes() as i64)?;
        let Memory::Shared(buffer) = to.memory else {
            return Err(self.unsupported("an asynchronous copy that isn't to shared memory"));
        };
        let start = shared_offset(self.kernel, Some(buffer)) as i64;
        let base = self.shared.ok_or_else(|| self.unsupported("a copy to no shared memory"))?;
        let target = self.lane_address(to, base, start, dtype.bytes() as i64)?;
        // Only whole 16-byte copies can go around the first-level cache.
        let level = if bytes == 16 { "cg" } else { "ca" };
        if let Some(guard) = guard {
            let all = self.copy_guard(guard, width)?;
            let size = self.reg(Class::B32);
            self.inst(format_args!("selp.b32 {size}, {bytes}, 0, {all}"));
            self.inst(format_args!(
                "cp.async.{level}.shared.global {target}, {source}, {bytes}, {size}"
            ));
        } else {
            self.inst(format_args!("cp.async.{level}.shared.global {target}, {source}, {bytes}"));
        }
        self.commits.open += 1;
        if self.commits.open >= self.commits.size {
            self.inst(format_args!("cp.async.commit_group"));
            self.commits.open = 0;
        }
        Ok(())
    }

    fn copy_guard(&mut self, guard: &Guard, width: u32) -> Result<Reg, CodegenError> {
        match guard.test {
            GuardTest::Mask(mask) => {
                let val = self.val(mask)?;
                Ok(self.in_reg(val, Class::Pred))
            }
            GuardTest::Count(_) => Ok(self.guard(guard, width as usize)?.0),
        }
    }

    /// Waits until at most `pending` copies are in flight.
    pub(super) fn wait_async(&mut self, pending: u32) -> Result<(), CodegenError> {
        if self.commits.open != 0 {
            return Err(self.unsupported("a wait in the middle of a commit group"));
        }
        let groups = u64::from(pending) / self.commits.size.max(1);
        self.inst(format_args!("cp.async.wait_group {groups}"));
        Ok(())
    }

    /// The address of a lane's element: first what doesn't change in a loop, then the base.
    fn lane_address(
        &mut self,
        place: &Place,
        memory: Reg,
        start: i64,
        size: i64,
    ) -> Result<At, CodegenError> {
        let (base, constant, index) = self.parts(place)?;
        let fixed = (place.memory, None, place.lane_stride, index);
        let mut at = match self.reuse.addresses.get(&fixed) {
            Some(reg) => *reg,
            None => {
                let mut at = memory;
                if place.lane_stride != 0 {
                    let lane = self.lane()?;
                    let lanes = self.product(lane, place.lane_stride * size);
                    at = self.add(Some(at), lanes);
                }
                if let Some(index) = index {
                    let bytes = self.product(index, size);
                    at = self.add(Some(at), bytes);
                }
                self.reuse.addresses.insert(fixed, at);
                at
            }
        };
        if let Some(base) = base {
            let key = (place.memory, Some(base), place.lane_stride, index);
            at = match self.reuse.addresses.get(&key) {
                Some(reg) => *reg,
                None => {
                    let bytes = self.product(base, size);
                    let at = self.add(Some(at), bytes);
                    self.reuse.addresses.insert(key, at);
                    at
                }
            };
        }
        Ok(At(at, constant * size + start))
    }

    /// A quotient or remainder of a number that isn't negative by a power of two: a shift or a
    /// mask.
    pub(super) fn split(&mut self, quotient: bool, a: Val, n: i64) -> Option<Reg> {
        let Val::Reg(reg) = a else { return None };
        if n <= 0 || n & (n - 1) != 0 || !self.naturals.contains(&reg) {
            return None;
        }
        let out = self.reg(Class::B64);
        if quotient {
            self.inst(format_args!("shr.u64 {out}, {reg}, {}", n.trailing_zeros()));
        } else {
            self.inst(format_args!("and.b64 {out}, {reg}, {}", n - 1));
        }
        self.naturals.insert(out);
        Some(out)
    }
}
