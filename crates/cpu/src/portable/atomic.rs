//! Atomics, by the machine's compare-and-exchange.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tilewright_ir::DType;
use tilewright_ir::interp::scalar;
use tilewright_ir::program::ReduceOp;
use tilewright_kernel::flat::{At, Reg};
use tilewright_kernel::kernel::Order;

use super::exec::{Machine, Stop, Subgroup};
use super::memory::{F32, F64, I32};

/// `old ∘ operand`, rounded to the type.
fn combine(op: Option<ReduceOp>, dtype: DType, old: f64, operand: f64) -> f64 {
    match op {
        None => operand,
        Some(op) => dtype.round(scalar::map(op.combine(), dtype, &[old, operand])),
    }
}

impl Subgroup {
    /// One read-modify-write per lane.
    ///
    /// # Safety
    /// Buffers are writable for their bytes; others touch the elements by atomics only.
    pub unsafe fn atomic(
        &mut self,
        machine: &mut Machine<'_>,
        at: &At,
        op: Option<ReduceOp>,
        value: Reg,
        dst: Reg,
        order: Order,
    ) -> Result<(), Stop> {
        let success = match order {
            Order::Relaxed => Ordering::Relaxed,
            Order::Acquire => Ordering::Acquire,
            Order::Release => Ordering::Release,
            Order::AcqRel => Ordering::AcqRel,
        };
        let region = machine.region(at.memory);
        for lane in self.running(machine.lanes) {
            if self.parts(at, lane) == 0 {
                continue;
            }
            let element = self.element(at, lane);
            let aligned = |ptr: *mut u8, to: usize| {
                if (ptr as usize).is_multiple_of(to) {
                    Ok(ptr)
                } else {
                    Err(Stop::new("an atomic's buffer isn't aligned to its elements"))
                }
            };
            match at.dtype {
                DType::F64 => {
                    let ptr = machine.address::<F64>(region, at.memory, element)?;
                    let ptr = aligned(ptr, 8)?.cast::<u64>();
                    let operand = self.files.doubles[value.slot(lane)];
                    // SAFETY: the element is inside its buffer and aligned; others use atomics.
                    let cell = unsafe { AtomicU64::from_ptr(ptr) };
                    let update = |old: u64| {
                        Some(combine(op, DType::F64, f64::from_bits(old), operand).to_bits())
                    };
                    let old = cell.fetch_update(success, Ordering::Relaxed, update);
                    let (Ok(old) | Err(old)) = old;
                    self.files.doubles[dst.slot(lane)] = f64::from_bits(old);
                }
                DType::F32 => {
                    let ptr = machine.address::<F32>(region, at.memory, element)?;
                    let ptr = aligned(ptr, 4)?.cast::<u32>();
                    let operand = f64::from(self.files.singles[value.slot(lane)]);
                    // SAFETY: as above.
                    let cell = unsafe { AtomicU32::from_ptr(ptr) };
                    let update = |old: u32| {
                        let old = f64::from(f32::from_bits(old));
                        Some((combine(op, DType::F32, old, operand) as f32).to_bits())
                    };
                    let old = cell.fetch_update(success, Ordering::Relaxed, update);
                    let (Ok(old) | Err(old)) = old;
                    self.files.singles[dst.slot(lane)] = f32::from_bits(old);
                }
                _ => {
                    let ptr = machine.address::<I32>(region, at.memory, element)?;
                    let ptr = aligned(ptr, 4)?.cast::<u32>();
                    let operand = self.files.ints[value.slot(lane)] as f64;
                    // SAFETY: as above.
                    let cell = unsafe { AtomicU32::from_ptr(ptr) };
                    let update = |old: u32| {
                        let new = combine(op, DType::I32, f64::from(old as i32), operand);
                        Some(new as i32 as u32)
                    };
                    let old = cell.fetch_update(success, Ordering::Relaxed, update);
                    let (Ok(old) | Err(old)) = old;
                    self.files.ints[dst.slot(lane)] = i64::from(old as i32);
                }
            }
        }
        Ok(())
    }
}
