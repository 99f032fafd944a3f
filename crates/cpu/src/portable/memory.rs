//! Memory of a kernel: typed elements at checked addresses.

use half::{bf16, f16};
use tilewright_ir::entity::Id;
use tilewright_kernel::flat::{At, Reg, Test};
use tilewright_kernel::kernel::Memory;
use tilewright_runtime::ArgValue;

use super::exec::{Machine, Stop, Subgroup};
use super::lanes::Files;

/// An element type in memory and the slots that hold it.
pub trait Element {
    /// What a register slot holds.
    type Slot: Copy;
    /// Size in memory.
    const BYTES: usize;

    /// Reads an element.
    ///
    /// # Safety
    /// `at` is readable for [`Self::BYTES`].
    unsafe fn read(at: *const u8) -> Self::Slot;

    /// Writes an element.
    ///
    /// # Safety
    /// `at` is writable for [`Self::BYTES`].
    unsafe fn write(at: *mut u8, value: Self::Slot);

    /// The register file.
    fn file(files: &mut Files) -> &mut Vec<Self::Slot>;

    /// A fill value.
    fn of(value: f64) -> Self::Slot;
}

macro_rules! element {
    ($name:ident, $raw:ty, $slot:ty, $file:ident, $load:expr, $store:expr, $of:expr) => {
        /// The element type of that name.
        pub struct $name;

        impl Element for $name {
            type Slot = $slot;
            const BYTES: usize = size_of::<$raw>();

            #[inline]
            unsafe fn read(at: *const u8) -> $slot {
                // SAFETY: as promised by the caller; any alignment will do.
                let raw = unsafe { at.cast::<$raw>().read_unaligned() };
                $load(raw)
            }

            #[inline]
            unsafe fn write(at: *mut u8, value: $slot) {
                // SAFETY: as promised by the caller; any alignment will do.
                unsafe { at.cast::<$raw>().write_unaligned($store(value)) }
            }

            fn file(files: &mut Files) -> &mut Vec<$slot> {
                &mut files.$file
            }

            fn of(value: f64) -> $slot {
                $of(value)
            }
        }
    };
}

element!(F32, f32, f32, singles, |x| x, |x| x, |x: f64| x as f32);
element!(F64, f64, f64, doubles, |x| x, |x| x, |x: f64| x);
element!(
    F16,
    u16,
    f32,
    singles,
    |x| f16::from_bits(x).to_f32(),
    |x| f16::from_f32(x).to_bits(),
    |x: f64| x as f32
);
element!(
    BF16,
    u16,
    f32,
    singles,
    |x| bf16::from_bits(x).to_f32(),
    |x| bf16::from_f32(x).to_bits(),
    |x: f64| x as f32
);
element!(I32, i32, i64, ints, i64::from, |x: i64| x as i32, |x: f64| x as i64);

/// Calls a function with the element type of a dtype; bool has no storage and is read as i32.
macro_rules! for_dtype {
    ($dtype:expr, $e:ident => $body:expr) => {
        match $dtype {
            tilewright_ir::DType::F32 => {
                type $e = $crate::portable::memory::F32;
                $body
            }
            tilewright_ir::DType::F64 => {
                type $e = $crate::portable::memory::F64;
                $body
            }
            tilewright_ir::DType::F16 => {
                type $e = $crate::portable::memory::F16;
                $body
            }
            tilewright_ir::DType::BF16 => {
                type $e = $crate::portable::memory::BF16;
                $body
            }
            tilewright_ir::DType::I32 | tilewright_ir::DType::Bool => {
                type $e = $crate::portable::memory::I32;
                $body
            }
        }
    };
}
pub(super) use for_dtype;

/// A memory that all lanes reach.
#[derive(Clone, Copy)]
pub struct Region {
    ptr: *mut u8,
    bytes: usize,
}

impl Machine<'_> {
    /// The bytes of a global or shared buffer.
    pub fn region(&mut self, memory: Memory) -> Region {
        match memory {
            Memory::Global(id) => match self.args[id.index()] {
                ArgValue::Buffer { ptr, bytes } => Region { ptr, bytes },
                // Checked before the launch.
                ArgValue::Index(_) | ArgValue::Float(_) => {
                    Region { ptr: std::ptr::null_mut(), bytes: 0 }
                }
            },
            Memory::Shared(id) => {
                let words = &mut self.shared[id.index()];
                Region { ptr: words.as_mut_ptr().cast(), bytes: words.len() * 8 }
            }
            // Private arrays have a path of their own; a CPU has no clusters.
            Memory::Private(_) | Memory::Cluster(_) => {
                Region { ptr: std::ptr::null_mut(), bytes: 0 }
            }
        }
    }

    /// The address of a logical element, checked.
    #[inline]
    pub fn address<E: Element>(
        &self,
        region: Region,
        memory: Memory,
        element: i64,
    ) -> Result<*mut u8, Stop> {
        let position = match memory {
            Memory::Shared(id) => self.kernel.shared[id].position(element),
            Memory::Global(_) | Memory::Private(_) | Memory::Cluster(_) => {
                usize::try_from(element).ok()
            }
        };
        match position.and_then(|p| p.checked_mul(E::BYTES)) {
            Some(at) if at.checked_add(E::BYTES).is_some_and(|end| end <= region.bytes) => {
                // SAFETY: the whole element is inside the region.
                Ok(unsafe { region.ptr.add(at) })
            }
            _ => Err(Stop::outside(self.kernel, memory, element)),
        }
    }
}

/// A private array: `len` times the lanes, in words of 8 bytes.
#[derive(Debug, Default)]
pub struct PrivateArray {
    pub words: Vec<u64>,
}

impl Subgroup {
    #[inline]
    pub fn int(&self, reg: Reg) -> i64 {
        self.files.ints[reg.at as usize]
    }

    /// How many of a lane's elements, from the first, take part.
    #[inline]
    pub fn parts(&self, at: &At, lane: usize) -> u32 {
        match at.guard {
            None => at.width,
            Some(Test::Count(limit)) => {
                let before = lane as i64 * i64::from(at.width);
                self.int(limit).saturating_sub(before).clamp(0, i64::from(at.width)) as u32
            }
            Some(Test::Mask(mask)) => {
                if self.files.ints[mask.slot(lane)] != 0 {
                    at.width
                } else {
                    0
                }
            }
        }
    }

    /// The first element of a lane. Saturation leaves what is outside there.
    #[inline]
    pub fn element(&self, at: &At, lane: usize) -> i64 {
        let index = at.index.map_or(0, |i| self.files.ints[i.slot(lane)]);
        self.int(at.base)
            .saturating_add(at.lane_stride.saturating_mul(lane as i64))
            .saturating_add(index)
    }

    /// Whether all lanes run and touch consecutive elements of plain memory.
    fn consecutive(&self, machine: &Machine<'_>, at: &At) -> bool {
        let plain = match at.memory {
            Memory::Global(_) => true,
            Memory::Shared(id) => {
                machine.kernel.shared[id].layout == tilewright_kernel::kernel::Layout::Plain
            }
            Memory::Private(_) | Memory::Cluster(_) => false,
        };
        plain
            && at.width == 1
            && at.lane_stride == 1
            && at.index.is_none()
            && !matches!(at.guard, Some(Test::Mask(_)))
            && self.mask == machine.full
    }

    /// Loads into the registers of `dst`.
    ///
    /// # Safety
    /// Buffers are readable for their bytes and nobody writes what is read.
    pub unsafe fn load(
        &mut self,
        machine: &mut Machine<'_>,
        at: &At,
        dst: &[Reg],
        fill: f64,
    ) -> Result<(), Stop> {
        // SAFETY: as promised by the caller.
        unsafe { for_dtype!(at.dtype, E => self.load_as::<E>(machine, at, dst, fill)) }
    }

    unsafe fn load_as<E: Element>(
        &mut self,
        machine: &mut Machine<'_>,
        at: &At,
        dst: &[Reg],
        fill: f64,
    ) -> Result<(), Stop> {
        let fill = E::of(fill);
        let n = machine.lanes;
        if let Memory::Private(id) = at.memory {
            for lane in self.running(n) {
                let (parts, first) = (self.parts(at, lane), self.element(at, lane));
                for (v, reg) in dst.iter().enumerate() {
                    let mut value = fill;
                    if (v as u32) < parts {
                        let slot =
                            self.private_slot(machine, id.index(), first + v as i64, lane)?;
                        // SAFETY: a word has room for any element.
                        value = unsafe { E::read((&raw const *slot).cast()) };
                    }
                    E::file(&mut self.files)[reg.slot(lane)] = value;
                }
            }
            return Ok(());
        }
        let region = machine.region(at.memory);
        if let (&[dst], true) = (dst, self.consecutive(machine, at)) {
            let count = (0..n).take_while(|&lane| self.parts(at, lane) == 1).count();
            let out = dst.at as usize..dst.at as usize + n;
            if count > 0 && dst.step == 1 {
                let first = self.int(at.base);
                machine.address::<E>(region, at.memory, first.saturating_add(count as i64 - 1))?;
                let start = machine.address::<E>(region, at.memory, first)?;
                let out = &mut E::file(&mut self.files)[out];
                for (lane, slot) in out.iter_mut().enumerate() {
                    // SAFETY: elements from the first to number `count` are inside.
                    *slot = if lane < count {
                        unsafe { E::read(start.add(lane * E::BYTES)) }
                    } else {
                        fill
                    };
                }
                return Ok(());
            }
        }
        if at.uniform {
            let (parts, first) = (self.parts(at, 0), self.element(at, 0));
            for (v, reg) in dst.iter().enumerate() {
                let mut value = fill;
                if (v as u32) < parts {
                    let from = machine.address::<E>(region, at.memory, first + v as i64)?;
                    // SAFETY: the address is checked.
                    value = unsafe { E::read(from) };
                }
                let end = reg.at as usize + reg.slots(n);
                E::file(&mut self.files)[reg.at as usize..end].fill(value);
            }
            return Ok(());
        }
        for lane in self.running(n) {
            let (parts, first) = (self.parts(at, lane), self.element(at, lane));
            for (v, reg) in dst.iter().enumerate() {
                let mut value = fill;
                if (v as u32) < parts {
                    let from =
                        machine.address::<E>(region, at.memory, first.saturating_add(v as i64))?;
                    // SAFETY: the address is checked.
                    value = unsafe { E::read(from) };
                }
                E::file(&mut self.files)[reg.slot(lane)] = value;
            }
        }
        Ok(())
    }

    /// Stores the registers of `src`.
    ///
    /// # Safety
    /// Buffers are writable for their bytes and nobody else touches what is written.
    pub unsafe fn store(
        &mut self,
        machine: &mut Machine<'_>,
        at: &At,
        src: &[Reg],
    ) -> Result<(), Stop> {
        // SAFETY: as promised by the caller.
        unsafe { for_dtype!(at.dtype, E => self.store_as::<E>(machine, at, src)) }
    }

    unsafe fn store_as<E: Element>(
        &mut self,
        machine: &mut Machine<'_>,
        at: &At,
        src: &[Reg],
    ) -> Result<(), Stop> {
        let n = machine.lanes;
        let region = machine.region(at.memory);
        for lane in self.running(n) {
            let (parts, first) = (self.parts(at, lane), self.element(at, lane));
            for (v, reg) in src.iter().enumerate().take(parts as usize) {
                let value = E::file(&mut self.files)[reg.slot(lane)];
                let element = first.saturating_add(v as i64);
                if let Memory::Private(id) = at.memory {
                    let slot = self.private_slot(machine, id.index(), element, lane)?;
                    // SAFETY: a word has room for any element.
                    unsafe { E::write((&raw mut *slot).cast(), value) };
                } else {
                    let to = machine.address::<E>(region, at.memory, element)?;
                    // SAFETY: the address is checked.
                    unsafe { E::write(to, value) };
                }
            }
            if at.uniform && src.iter().all(|r| r.step == 0) {
                break;
            }
        }
        Ok(())
    }

    fn private_slot(
        &mut self,
        machine: &Machine<'_>,
        id: usize,
        element: i64,
        lane: usize,
    ) -> Result<&mut u64, Stop> {
        let slot = usize::try_from(element)
            .ok()
            .and_then(|e| e.checked_mul(machine.lanes))
            .and_then(|e| self.private[id].words.get_mut(e + lane));
        let memory = || Memory::Private(Id::from_index(id));
        slot.ok_or_else(|| Stop::outside(machine.kernel, memory(), element))
    }
}
