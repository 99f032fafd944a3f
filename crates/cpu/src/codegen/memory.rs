//! Loads and stores: contiguous vectors, one element for all lanes, and gathers.

use iced_x86::Code;
use tilewright_ir::DType;
use tilewright_ir::program::Access;
use tilewright_kernel::kernel::*;

use super::index::Address;
use super::lir::{Bank, Cc, Item, Konst, Mem, Operand, Role, V, W, d, inst, masked, r, vinst};
use super::ops;
use super::select::{Res, Select};
use super::value::{Active, Data, Flag, Ix, Mask, Val};
use crate::error::CpuError;

/// How the lanes of an access spread over memory.
pub(super) enum Spread {
    /// One element for all.
    Same,
    /// Consecutive elements.
    Consecutive,
    /// At element offsets per lane.
    Offsets(Offsets),
}

/// Element offsets per lane.
pub(super) enum Offsets {
    /// The lane number times a constant.
    Stride(i64),
    /// 32-bit offsets in vector registers.
    Narrow(Vec<V>),
    /// 64-bit offsets in vector registers.
    Wide(Vec<V>),
}

impl Select<'_> {
    /// A load statement.
    pub fn load_stmt(
        &mut self,
        results: &[ValueId],
        place: &Place,
        guard: Option<&Guard>,
    ) -> Res<()> {
        for (element, result) in results.iter().enumerate() {
            let active = self.active(guard, results.len(), element)?;
            let (address, spread, dtype) = self.spread(place, results.len(), element)?;
            let fill = guard.map_or(0.0, |g| g.fill);
            let data = self.load(dtype, &address, &spread, &active, fill)?;
            self.bind(*result, Val::Data(data))?;
        }
        Ok(())
    }

    /// A store statement.
    pub fn store_stmt(
        &mut self,
        place: &Place,
        values: &[ValueId],
        guard: Option<&Guard>,
    ) -> Res<()> {
        for (element, value) in values.iter().enumerate() {
            let active = self.active(guard, values.len(), element)?;
            let (address, spread, dtype) = self.spread(place, values.len(), element)?;
            let data = self.data(*value)?;
            if data.dtype != dtype {
                return Err(CpuError::malformed("a store of another type than the memory's"));
            }
            let output = match place.memory {
                Memory::Global(arg) => matches!(
                    self.kernel.args.get(arg).map(|a| a.kind),
                    Some(ArgKind::Buffer { access: Access::Out, .. })
                ),
                Memory::Shared(_) | Memory::Cluster(_) | Memory::Private(_) => false,
            };
            let whole = matches!((&active, &spread), (Active::All, Spread::Consecutive));
            if !(output && whole && self.stream(&data, &address)) {
                self.store(&data, &address, &spread, &active)?;
            }
        }
        Ok(())
    }

    /// Address of lane 0 and how the other lanes follow.
    fn spread(
        &mut self,
        place: &Place,
        width: usize,
        element: usize,
    ) -> Res<(Address, Spread, DType)> {
        let mut base = self.index(place.base)?.offset(element as i64);
        let mut stride = place.lane_stride.wrapping_add(base.lane);
        base.lane = 0;
        if let Memory::Private(_) = place.memory {
            let (address, dtype) = self.address(place.memory, &base)?;
            if place.index.is_some() || stride != 0 {
                return Err(CpuError::unsupported("a private array indexed per lane"));
            }
            let spread = if self.lanes == 1 { Spread::Same } else { Spread::Consecutive };
            return Ok((address, spread, dtype));
        }
        let mut offsets = None;
        match place.index.map(|index| self.get(index)).transpose()? {
            None => {}
            Some(Val::Index(ix)) => {
                base = base.plus(&ix.uniform(), 1);
                stride = stride.wrapping_add(ix.lane);
            }
            Some(Val::IndexLanes(parts)) => {
                let parts = if stride == 0 {
                    parts
                } else {
                    let iota = self.index_lanes(&Ix { lane: stride, ..Ix::default() });
                    let w = self.width(8);
                    let pairs: Vec<(V, V)> = parts.into_iter().zip(iota).collect();
                    pairs.into_iter().map(|(a, b)| self.v2(ops::PADDQ, w, a, b)).collect()
                };
                offsets = Some(Offsets::Wide(parts));
            }
            Some(Val::Data(data)) if data.dtype == DType::I32 => {
                if data.uniform {
                    let v = self.first_element(data.parts[0], 4);
                    base = base.plus(&Ix::reg(v), 1);
                } else {
                    let w = self.width(4);
                    let per = self.part_lanes(4) as i32;
                    let mut parts = Vec::new();
                    for (p, part) in data.parts.iter().enumerate() {
                        parts.push(if stride == 0 {
                            *part
                        } else {
                            let step = i32::try_from(stride).map_err(|_| {
                                CpuError::unsupported("a lane stride beyond 31 bits")
                            })?;
                            let first = per.wrapping_mul(p as i32).wrapping_mul(step);
                            let iota = self.konst(Konst::Iota32(first, step));
                            self.v2(ops::PADDD, w, *part, iota)
                        });
                    }
                    offsets = Some(Offsets::Narrow(parts));
                }
            }
            Some(_) => return Err(CpuError::malformed("a gather index that is no index")),
        }
        let (address, dtype) = self.address(place.memory, &base)?;
        if let Memory::Shared(id) = place.memory {
            let shared = &self.kernel.shared[id];
            if matches!(shared.layout, Layout::Padded(_)) && self.lanes > 1 {
                // The padding stands between rows: lanes must stay in the row of the first.
                let cols = shared.cols as i64;
                let starts_row = base.terms.iter().all(|t| t.1 % cols.max(1) == 0);
                let column = base.konst.rem_euclid(cols.max(1));
                let last = column + (i64::from(self.lanes) - 1) * stride;
                let inside = stride == 0 || (starts_row && stride > 0 && last < cols);
                if offsets.is_some() || !inside {
                    return Err(CpuError::unsupported(
                        "lanes in more than one row of a padded shared buffer",
                    ));
                }
            }
        }
        let spread = match offsets {
            Some(offsets) => Spread::Offsets(offsets),
            None if self.lanes == 1 || stride == 0 => Spread::Same,
            None if stride == 1 && width == 1 => Spread::Consecutive,
            None => Spread::Offsets(Offsets::Stride(stride)),
        };
        Ok((address, spread, dtype))
    }

    // ---- loads -----------------------------------------------------------------------------

    fn load(
        &mut self,
        dtype: DType,
        address: &Address,
        spread: &Spread,
        active: &Active,
        fill: f64,
    ) -> Res<Data> {
        let filler = self.splat(dtype, fill);
        match active {
            Active::Nobody => return Ok(filler),
            Active::Flag(flag) => {
                // All or none: a branch around the access.
                return self.guarded(&flag.clone(), filler, |select| {
                    select.load(dtype, address, spread, &Active::All, fill)
                });
            }
            Active::All | Active::Mask(_) => {}
        }
        match spread {
            Spread::Same => self.load_same(dtype, address, active, filler),
            Spread::Consecutive => self.load_consecutive(dtype, address, active, filler),
            Spread::Offsets(offsets) => self.gather(dtype, address, offsets, active, filler),
        }
    }

    /// Runs `access` if the flag holds; else the value is `filler`.
    fn guarded(
        &mut self,
        flag: &Flag,
        filler: Data,
        access: impl FnOnce(&mut Self) -> Res<Data>,
    ) -> Res<Data> {
        let (done, skip) = (self.label(), self.label());
        self.push_scope(super::select::ScopeKind::Branch, None);
        let data = access(self)?;
        let scope = self.pop_scope()?;
        let to: Vec<V> = data.parts.iter().map(|_| self.fresh(Bank::Vec)).collect();
        // Only now: what the access needs from further out stands before the test.
        let cc = self.test(flag);
        self.emit(Item::Branch(cc.negated(), skip));
        let level = self.level() as usize;
        self.scopes[level].items.extend(scope.items);
        for (to, from) in to.iter().zip(&data.parts) {
            self.emit(Item::Move { to: *to, from: *from });
        }
        self.emit(Item::Jump(done));
        self.emit(Item::Label(skip));
        for (n, to) in to.iter().enumerate() {
            self.emit(Item::Move { to: *to, from: filler.part(n) });
        }
        self.emit(Item::Label(done));
        Ok(Data { parts: to, ..data })
    }

    fn load_same(
        &mut self,
        dtype: DType,
        address: &Address,
        active: &Active,
        filler: Data,
    ) -> Res<Data> {
        let bytes = Self::size(dtype);
        if let Active::Mask(mask) = active {
            let any = self.any(mask);
            let loaded = self.guarded(&any, filler.clone(), |select| {
                let unused = select.splat(dtype, 0.0);
                select.load_same(dtype, address, &Active::All, unused)
            })?;
            let (loaded, filler) = (Val::Data(loaded), Val::Data(filler));
            return match self.choose(active, &loaded, &filler)? {
                Val::Data(data) => Ok(data),
                _ => Err(CpuError::malformed("a load of no data")),
            };
        }
        let mem = self.operand(address);
        let (op, w) = match bytes {
            2 => (ops::PBROADCASTW, self.width(2)),
            4 => (ops::PBROADCASTD, self.width(4)),
            _ => (ops::PBROADCASTQ, self.width(8)),
        };
        let part = self.vload(op, w, mem);
        Ok(Data { dtype, parts: vec![part], uniform: true, literal: None })
    }

    fn load_consecutive(
        &mut self,
        dtype: DType,
        address: &Address,
        active: &Active,
        filler: Data,
    ) -> Res<Data> {
        let bytes = Self::size(dtype);
        let w = self.width(bytes);
        let mem = self.operand(address);
        let step = (self.part_lanes(bytes) * bytes) as i32;
        let mut parts = Vec::new();
        for p in 0..self.parts(bytes) {
            let mem = mem.plus(step * p as i32);
            let part = match active {
                Active::Mask(mask) => self.load_masked(bytes, w, mem, &mask.clone(), p, &filler)?,
                _ if step < 16 => self.load_quarter(step, mem)?,
                _ => self.vload(ops::MOVUPS, w, mem),
            };
            parts.push(part);
        }
        Ok(Data { dtype, parts, uniform: false, literal: None })
    }

    /// Fewer than 16 bytes into an xmm register.
    fn load_quarter(&mut self, bytes: i32, mem: Mem) -> Res<V> {
        let code = match (bytes, self.avx512()) {
            (8, true) => Code::EVEX_Vmovq_xmm_xmmm64,
            (8, false) => Code::VEX_Vmovq_xmm_xmmm64,
            (4, true) => Code::EVEX_Vmovd_xmm_rm32,
            (4, false) => Code::VEX_Vmovd_xmm_rm32,
            _ => return Err(CpuError::unsupported("vectors of fewer than 4 bytes")),
        };
        let to = self.fresh(Bank::Vec);
        self.emit(inst(code, &[d(to, W::X), Operand::Mem(mem)]));
        Ok(to)
    }

    fn load_masked(
        &mut self,
        bytes: u32,
        w: W,
        mem: Mem,
        mask: &Mask,
        part: usize,
        filler: &Data,
    ) -> Res<V> {
        if !self.avx512() {
            if bytes == 2 {
                return self.load_by_lane(w, mem, mask, part, filler);
            }
            let m = self.mask_part(mask, bytes, part);
            let op = if bytes == 8 { ops::MASKMOVPD } else { ops::MASKMOVPS };
            let to = self.fresh(Bank::Vec);
            self.emit(vinst(op, self.isa, w, &[d(to, w), r(m, w), Operand::Mem(mem)]));
            if filler.literal.is_some_and(|x| x == 0.0 && x.is_sign_positive()) {
                return Ok(to);
            }
            let blend = if bytes == 8 { ops::BLENDPD } else { ops::BLENDPS };
            let out = self.fresh(Bank::Vec);
            let operands = [d(out, w), r(filler.part(0), w), r(to, w), r(m, w)];
            self.emit(vinst(blend, self.isa, w, &operands));
            return Ok(out);
        }
        let k = self.mask_part(mask, bytes, part);
        let op = match bytes {
            2 => ops::MOVDQU16,
            4 => ops::MOVUPS,
            _ => ops::MOVUPD,
        };
        let zero = filler.literal.is_some_and(|x| x == 0.0 && x.is_sign_positive());
        let (to, role) = if zero {
            (self.fresh(Bank::Vec), Role::Def)
        } else {
            (self.copy(filler.part(0)), Role::UseDef)
        };
        let operands = [Operand::Reg(to, w, role), Operand::Mem(mem)];
        self.emit(masked(op, self.isa, w, &operands, Some(k), zero));
        Ok(to)
    }

    /// Element by element through the stack frame: 16-bit elements under a mask with AVX2.
    fn load_by_lane(&mut self, w: W, mem: Mem, mask: &Mask, part: usize, filler: &Data) -> Res<V> {
        let per = self.part_lanes(2);
        let object = self.frame(64);
        let bits = self.mask_bits(mask);
        let frame = Mem::frame(object, 0);
        let fill = [Operand::Mem(frame), r(filler.part(0), w)];
        self.emit(vinst(ops::MOVUPS_ST, self.isa, w, &fill));
        for l in 0..per {
            let skip = self.label();
            self.test_bit(bits, part as u32 * per + l, skip);
            let at = 2 * l as i32;
            let x = self.fresh(Bank::Gpr);
            self.emit(inst(Code::Movzx_r32_rm16, &[d(x, W::R32), Operand::Mem(mem.plus(at))]));
            self.store_word(x, frame.plus(at));
            self.emit(Item::Label(skip));
        }
        Ok(self.vload(ops::MOVUPS, w, frame))
    }

    /// Jumps to `skip` unless the lane's bit is set.
    pub fn test_bit(&mut self, bits: V, lane: u32, skip: super::lir::Label) {
        let test = [r(bits, W::R32), Operand::Imm(1 << lane)];
        self.emit(inst(Code::Test_rm32_imm32, &test));
        self.emit(Item::Branch(Cc::Eq, skip));
    }

    /// Low 16 bits of a general register to memory.
    pub fn store_word(&mut self, x: V, mem: Mem) {
        self.emit(inst(
            Code::Mov_rm16_r16,
            &[Operand::Mem(mem), Operand::Reg(x, W::R16, Role::Use)],
        ));
    }

    /// Stores whole vectors past the caches, if the loop at hand does so. See
    /// [`Select::streaming_loop`].
    fn stream(&mut self, data: &Data, address: &Address) -> bool {
        let bytes = Self::size(data.dtype);
        let w = self.width(bytes);
        if self.streamed.is_none() || u64::from(w.bytes()) != self.isa.vector_bytes() {
            return false;
        }
        if let Some(streamed) = &mut self.streamed {
            streamed.addresses.push(address.0.clone());
        }
        let mem = self.operand(address);
        for p in 0..self.parts(bytes) {
            let mem = Operand::Mem(mem.plus((w.bytes() as usize * p) as i32));
            self.emit(vinst(ops::MOVNTPS, self.isa, w, &[mem, r(data.part(p), w)]));
        }
        self.streams = true;
        true
    }

    // ---- stores ----------------------------------------------------------------------------

    fn store(
        &mut self,
        data: &Data,
        address: &Address,
        spread: &Spread,
        active: &Active,
    ) -> Res<()> {
        match (active, spread) {
            (Active::Nobody, _) => Ok(()),
            (Active::Flag(flag), _) => {
                let flag = flag.clone();
                self.store_if(&flag, |select| select.store(data, address, spread, &Active::All))
            }
            (_, Spread::Same) => self.store_same(data, address, active),
            (_, Spread::Consecutive) => self.store_consecutive(data, address, active),
            (_, Spread::Offsets(offsets)) => self.scatter(data, address, offsets, active),
        }
    }

    /// Runs `access` if the flag holds.
    fn store_if(&mut self, flag: &Flag, access: impl FnOnce(&mut Self) -> Res<()>) -> Res<()> {
        let skip = self.label();
        self.push_scope(super::select::ScopeKind::Branch, None);
        access(self)?;
        let scope = self.pop_scope()?;
        let cc = self.test(flag);
        self.emit(Item::Branch(cc.negated(), skip));
        let level = self.level() as usize;
        self.scopes[level].items.extend(scope.items);
        self.emit(Item::Label(skip));
        Ok(())
    }

    /// One element for all lanes. Lanes that write different values to one place race, so at
    /// most one lane takes part or all values are equal: the first lane that takes part writes.
    fn store_same(&mut self, data: &Data, address: &Address, active: &Active) -> Res<()> {
        let bytes = Self::size(data.dtype);
        let Active::Mask(mask) = active else {
            let mem = self.operand(address);
            self.store_first(data.parts[0], bytes, mem);
            return Ok(());
        };
        let mask = mask.clone();
        let bits = self.mask_bits(&mask);
        let any = Flag::Compare(Cc::Ne, Ix::reg(bits), Ix::konst(0));
        if data.uniform {
            return self.store_if(&any, |select| {
                let mem = select.operand(address);
                select.store_first(data.parts[0], bytes, mem);
                Ok(())
            });
        }
        let w = self.width(bytes);
        let object = self.frame(64 * data.parts.len() as u32);
        self.store_if(&any, |select| {
            let step = (select.part_lanes(bytes) * bytes) as i32;
            for (p, part) in data.parts.iter().enumerate() {
                let to = Operand::Mem(Mem::frame(object, step * p as i32));
                select.emit(vinst(ops::MOVUPS_ST, select.isa, w, &[to, r(*part, w)]));
            }
            let lane = select.scalar(Code::Tzcnt_r64_rm64, W::R64, &[r(bits, W::R64)]);
            let from = Mem { index: Some((lane, bytes as u8)), ..Mem::frame(object, 0) };
            let mem = select.operand(address);
            let x = select.fresh(Bank::Gpr);
            match bytes {
                2 => {
                    select.emit(inst(Code::Movzx_r32_rm16, &[d(x, W::R32), Operand::Mem(from)]));
                    select.store_word(x, mem);
                }
                4 => {
                    select.emit(inst(Code::Mov_r32_rm32, &[d(x, W::R32), Operand::Mem(from)]));
                    select.emit(inst(Code::Mov_rm32_r32, &[Operand::Mem(mem), r(x, W::R32)]));
                }
                _ => {
                    select.emit(inst(Code::Mov_r64_rm64, &[d(x, W::R64), Operand::Mem(from)]));
                    select.emit(inst(Code::Mov_rm64_r64, &[Operand::Mem(mem), r(x, W::R64)]));
                }
            }
            Ok(())
        })
    }

    /// Element 0 to memory.
    fn store_first(&mut self, v: V, bytes: u32, mem: Mem) {
        let mem = Operand::Mem(mem);
        let item = match (bytes, self.avx512()) {
            (2, true) => {
                inst(Code::EVEX_Vpextrw_r32m16_xmm_imm8, &[mem, r(v, W::X), Operand::Imm(0)])
            }
            (2, false) => {
                inst(Code::VEX_Vpextrw_r32m16_xmm_imm8, &[mem, r(v, W::X), Operand::Imm(0)])
            }
            (4, true) => inst(Code::EVEX_Vmovss_m32_k1_xmm, &[mem, r(v, W::X)]),
            (4, false) => inst(Code::VEX_Vmovss_m32_xmm, &[mem, r(v, W::X)]),
            (_, true) => inst(Code::EVEX_Vmovsd_m64_k1_xmm, &[mem, r(v, W::X)]),
            (_, false) => inst(Code::VEX_Vmovsd_m64_xmm, &[mem, r(v, W::X)]),
        };
        self.emit(item);
    }

    fn store_consecutive(&mut self, data: &Data, address: &Address, active: &Active) -> Res<()> {
        let bytes = Self::size(data.dtype);
        let w = self.width(bytes);
        let mem = self.operand(address);
        let step = (self.part_lanes(bytes) * bytes) as i32;
        for p in 0..self.parts(bytes) {
            let mem = mem.plus(step * p as i32);
            let v = data.part(p);
            match active {
                Active::Mask(mask) => self.store_masked(bytes, w, mem, &mask.clone(), p, v),
                _ if step < 16 => {
                    let code = match (step, self.avx512()) {
                        (8, true) => Code::EVEX_Vmovq_xmmm64_xmm,
                        (8, false) => Code::VEX_Vmovq_xmmm64_xmm,
                        _ => return Err(CpuError::unsupported("vectors of fewer than 8 bytes")),
                    };
                    self.emit(inst(code, &[Operand::Mem(mem), r(v, W::X)]));
                }
                _ => self.emit(vinst(ops::MOVUPS_ST, self.isa, w, &[Operand::Mem(mem), r(v, w)])),
            }
        }
        Ok(())
    }

    fn store_masked(&mut self, bytes: u32, w: W, mem: Mem, mask: &Mask, p: usize, v: V) {
        if self.avx512() {
            let k = self.mask_part(mask, bytes, p);
            let op = match bytes {
                2 => ops::MOVDQU16_ST,
                4 => ops::MOVUPS_ST,
                _ => ops::MOVUPD_ST,
            };
            self.emit(masked(op, self.isa, w, &[Operand::Mem(mem), r(v, w)], Some(k), false));
            return;
        }
        if bytes == 2 {
            let per = self.part_lanes(2);
            let object = self.frame(64);
            let bits = self.mask_bits(mask);
            let frame = Mem::frame(object, 0);
            self.emit(vinst(ops::MOVUPS_ST, self.isa, w, &[Operand::Mem(frame), r(v, w)]));
            for l in 0..per {
                let skip = self.label();
                self.test_bit(bits, p as u32 * per + l, skip);
                let x = self.fresh(Bank::Gpr);
                let at = 2 * l as i32;
                let from = Operand::Mem(frame.plus(at));
                self.emit(inst(Code::Movzx_r32_rm16, &[d(x, W::R32), from]));
                self.store_word(x, mem.plus(at));
                self.emit(Item::Label(skip));
            }
            return;
        }
        let m = self.mask_part(mask, bytes, p);
        let op = if bytes == 8 { ops::MASKMOVPD_ST } else { ops::MASKMOVPS_ST };
        self.emit(vinst(op, self.isa, w, &[Operand::Mem(mem), r(m, w), r(v, w)]));
    }
}
