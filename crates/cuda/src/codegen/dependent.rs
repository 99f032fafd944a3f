//! Programmatic dependent launches: a launch may begin while the one ahead of it in the stream
//! ends. Every thread waits for that end, and for its writes, before it touches memory; what
//! overlaps is the start of groups and the arithmetic of coordinates.
//!
//! A launch lets the next one begin when each of its groups has said so or has ended. Groups say
//! so before their first store, when what is left is to write results: earlier, groups of the next
//! launch would be placed on whichever cores are free then, several on one (128×2048 rows took 2.1 µs
//! that way, 1.3 this way, 1.7 without; benches/cuda/RESULTS.md). To say so costs the device about a
//! nanosecond a group, so launches of very many small groups only end.
//!
//! Inputs are read by ordinary loads: those of the non-coherent path (`ld.global.nc`) may be served
//! from before the wait, and the assembler moves them there. It doesn't move ordinary loads past
//! stores either, so stores to outputs, which no load of the kernel reads, are held back behind the
//! loads of the next few.

use std::collections::HashMap;

use tilewright_kernel::kernel::{
    ArgKind, Block, Kernel, Literal, Memory, Op, Place, Stmt, ValueId,
};

use super::emitter::{Class, Emitter};

/// Bytes that a group stores from which on it takes the device longer than a nanosecond a group.
const LARGE: u64 = 4096;
/// Groups of a launch up to which saying so costs nothing that counts.
const FEW: u64 = 1024;

/// Where a kernel says that the next launch may begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Release {
    /// Before this statement.
    before: *const Stmt,
    /// Whether only launches of few groups say so.
    few: bool,
}

fn is_global(place: &Place) -> bool {
    matches!(place.memory, Memory::Global(_))
}

/// Whether a statement has an operation for which a test holds.
fn has(stmt: &Stmt, test: fn(&Op) -> bool) -> bool {
    let any = |block: &Block| block.stmts.iter().any(|s| has(s, test));
    test(&stmt.op)
        || match &stmt.op {
            Op::For { body, .. } | Op::InRole { body, .. } => any(body),
            Op::If { then, otherwise, .. } => any(then) || any(otherwise),
            _ => false,
        }
}

fn reads(op: &Op) -> bool {
    match op {
        Op::Load { place, .. } => is_global(place),
        Op::CopyAsync { .. } => true,
        _ => false,
    }
}

fn writes(op: &Op) -> bool {
    match op {
        Op::Store { place, .. } | Op::Atomic { place, .. } => is_global(place),
        _ => false,
    }
}

/// The statement before which nothing is written and something has been read.
fn first_store(block: &Block, mut read: bool) -> Option<&Stmt> {
    for stmt in &block.stmts {
        if has(stmt, writes) {
            return match &stmt.op {
                // The rows of a group with several lie in a branch each.
                Op::If { then, .. } if !read => first_store(then, read),
                _ => read.then_some(stmt),
            };
        }
        read |= has(stmt, reads);
    }
    None
}

/// Integers that the kernel states.
fn constants(kernel: &Kernel) -> HashMap<ValueId, i64> {
    let mut all = HashMap::new();
    kernel.body.walk(&mut |stmt| {
        if let (Op::Const(Literal::Int(n)), Some(result)) = (&stmt.op, stmt.results.first()) {
            all.insert(*result, *n);
        }
    });
    all
}

/// Bytes that a group stores to global memory; `None` where that depends on run-time numbers.
fn stored(kernel: &Kernel, block: &Block, known: &HashMap<ValueId, i64>) -> Option<u64> {
    let mut bytes = 0u64;
    for stmt in &block.stmts {
        let own = match &stmt.op {
            Op::Store { place, values, .. } => match place.memory {
                Memory::Global(arg) => {
                    let one = place.lane_stride == 0 && place.index.is_none();
                    let lanes = if one { 1 } else { u64::from(kernel.lanes) };
                    let dtype = match kernel.args[arg].kind {
                        ArgKind::Buffer { dtype, .. } => dtype.bytes(),
                        _ => 0,
                    };
                    values.len() as u64 * dtype * lanes * u64::from(kernel.subgroups)
                }
                _ => 0,
            },
            Op::For { lo, hi, step, body, .. } => match stored(kernel, body, known)? {
                0 => 0,
                inside => {
                    let length = known.get(hi)?.saturating_sub(*known.get(lo)?).max(0) as u64;
                    inside.saturating_mul(length.div_ceil((*step).max(1)))
                }
            },
            Op::If { then, otherwise, .. } => {
                stored(kernel, then, known)?.max(stored(kernel, otherwise, known)?)
            }
            Op::InRole { body, .. } => stored(kernel, body, known)?,
            _ => 0,
        };
        bytes = bytes.saturating_add(own);
    }
    Some(bytes)
}

/// Where a kernel says that the next launch may begin; none where the end of its groups does.
pub(super) fn release(kernel: &Kernel) -> Option<Release> {
    let before = std::ptr::from_ref(first_store(&kernel.body, false)?);
    let bytes = stored(kernel, &kernel.body, &constants(kernel));
    Some(Release { before, few: bytes.is_some_and(|bytes| bytes < LARGE) })
}

/// Stores that are held back.
const HELD: usize = 3;

impl Emitter<'_> {
    /// Holds a store to an output back behind the loads of the next few.
    pub(super) fn hold(&mut self, store: String) {
        self.held.push_back(store);
        while self.held.len() > HELD {
            self.write_held();
        }
    }

    /// Appends every store that is held back: before control leaves the straight line.
    pub(super) fn flush(&mut self) {
        while !self.held.is_empty() {
            self.write_held();
        }
    }

    fn write_held(&mut self) {
        if let Some(store) = self.held.pop_front() {
            self.inst(format_args!("{store}"));
        }
    }

    /// Says that the next launch may begin, if this is the place.
    pub(super) fn release(&mut self, stmt: &Stmt) {
        let Some(Release { before, few }) = self.release else { return };
        if !std::ptr::eq(before, stmt) {
            return;
        }
        if !few {
            self.inst(format_args!("griddepcontrol.launch_dependents"));
            return;
        }
        let [x, y, z, xy] = [(); 4].map(|()| self.reg(Class::B32));
        for (reg, axis) in [(x, "x"), (y, "y"), (z, "z")] {
            self.inst(format_args!("mov.u32 {reg}, %nctaid.{axis}"));
        }
        // Neither y nor z is 65536 or more, so a saturated x keeps the product from wrapping.
        let few = self.reg(Class::B32);
        self.inst(format_args!("min.u32 {few}, {x}, {}", FEW + 1));
        self.inst(format_args!("mul.lo.u32 {xy}, {few}, {y}"));
        let [wide, depth, all] = [(); 3].map(|()| self.reg(Class::B64));
        self.inst(format_args!("cvt.u64.u32 {wide}, {xy}"));
        self.inst(format_args!("cvt.u64.u32 {depth}, {z}"));
        self.inst(format_args!("mul.lo.u64 {all}, {wide}, {depth}"));
        let p = self.reg(Class::Pred);
        self.inst(format_args!("setp.le.u64 {p}, {all}, {FEW}"));
        self.inst(format_args!("@{p} griddepcontrol.launch_dependents"));
    }
}
