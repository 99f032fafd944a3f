//! Gathers and scatters.

use iced_x86::Code;
use tilewright_ir::DType;

use super::index::Address;
use super::lir::{Bank, Item, Konst, Mem, Operand, V, W, d, inst, masked, r, rw, vinst};
use super::memory::Offsets;
use super::ops;
use super::select::{Res, Select};
use super::value::{Active, Data, Ix};
use crate::error::CpuError;

impl Select<'_> {
    /// Elements from places of their own.
    pub(super) fn gather(
        &mut self,
        dtype: DType,
        address: &Address,
        offsets: &Offsets,
        active: &Active,
        filler: Data,
    ) -> Res<Data> {
        let bytes = Self::size(dtype);
        if bytes == 2 {
            return self.gather_by_lane(dtype, address, offsets, active, filler);
        }
        let mem = self.flat_operand(address);
        let w = self.width(bytes);
        let mut parts = Vec::new();
        for p in 0..self.parts(bytes) {
            let (op, index, index_width, chunks) = self.gather_index(offsets, bytes, p)?;
            let mut pieces = Vec::new();
            for (n, index) in index.into_iter().enumerate() {
                let lanes_at = p * chunks + n;
                let (mask, piece_width) = if chunks == 1 {
                    let m = self.gather_mask(active, bytes, p);
                    (m, w)
                } else {
                    // 64-bit offsets of 32-bit data: each register of offsets serves half.
                    (self.gather_mask_half(active, lanes_at), half(index_width))
                };
                let to = self.copy(filler.part(0));
                let mem = Mem { index: Some((index, bytes as u8)), index_width, ..mem };
                self.emit_gather(op, index_width, piece_width, to, mem, mask);
                pieces.push(to);
            }
            parts.push(self.join(&pieces, w));
        }
        Ok(Data { dtype, parts, uniform: false, literal: None })
    }

    /// The gather instruction, its offset registers for part `p`, their width, and how many of
    /// them make one part.
    fn gather_index(
        &mut self,
        offsets: &Offsets,
        bytes: u32,
        p: usize,
    ) -> Res<(ops::VOp, Vec<V>, W, usize)> {
        let per = i64::from(self.part_lanes(bytes));
        Ok(match (offsets, bytes) {
            (Offsets::Stride(stride), _) => {
                let step = i32::try_from(*stride)
                    .ok()
                    .filter(|s| s.checked_mul(self.lanes as i32).is_some())
                    .ok_or_else(|| CpuError::unsupported("a lane stride beyond 31 bits"))?;
                let first = (per * p as i64) as i32 * step;
                let iota = self.konst(Konst::Iota32(first, step));
                if bytes == 4 {
                    (ops::GATHERDPS, vec![iota], self.width(4), 1)
                } else {
                    (ops::GATHERDPD, vec![iota], half(self.width(8)), 1)
                }
            }
            (Offsets::Narrow(parts), 4) => (ops::GATHERDPS, vec![parts[p]], self.width(4), 1),
            (Offsets::Narrow(parts), _) => {
                // Part p of 8-byte data uses half of a register of 4-byte offsets.
                let source = parts[p / 2];
                let whole = self.parts(8) == 1;
                let w = half(self.width(8));
                let index =
                    if whole || p.is_multiple_of(2) { source } else { self.upper(source, w) };
                (ops::GATHERDPD, vec![index], w, 1)
            }
            (Offsets::Wide(parts), 8) => (ops::GATHERQPD, vec![parts[p]], self.width(8), 1),
            (Offsets::Wide(parts), _) => {
                let per_part = self.parts(8) / self.parts(4);
                let index = parts[p * per_part..(p + 1) * per_part].to_vec();
                let op = ops::GATHERQPS;
                (op, index, self.width(8), per_part)
            }
        })
    }

    /// A mask that a gather may destroy.
    fn gather_mask(&mut self, active: &Active, bytes: u32, p: usize) -> V {
        let mask = match active {
            Active::Mask(mask) => mask.clone(),
            _ => self.full_mask(),
        };
        let part = self.mask_part(&mask, bytes, p);
        self.copy(part)
    }

    /// The same for the 32-bit elements that go with one register of 64-bit offsets.
    fn gather_mask_half(&mut self, active: &Active, piece: usize) -> V {
        let mask = match active {
            Active::Mask(mask) => mask.clone(),
            _ => self.full_mask(),
        };
        if self.avx512() {
            let part = self.mask_part(&mask, 8, piece);
            return self.copy(part);
        }
        let source = mask.parts[piece / 2];
        if piece.is_multiple_of(2) { self.copy(source) } else { self.upper_half(source) }
    }

    fn emit_gather(&mut self, op: ops::VOp, index_width: W, w: W, to: V, mem: Mem, mask: V) {
        // The table's width is the wider of index and data.
        let table = if index_width > w { index_width } else { w };
        let avx512 = self.avx512();
        let mut operands = vec![rw(to, w), Operand::Mem(mem)];
        if !avx512 {
            operands.push(rw(mask, w));
        }
        self.emit(masked(op, self.isa, table, &operands, avx512.then_some(mask), false));
    }

    /// Upper half of a register, of the given width.
    fn upper(&mut self, v: V, w: W) -> V {
        if w == W::X {
            return self.upper_half(v);
        }
        let to = self.fresh(Bank::Vec);
        let ops = [d(to, W::Y), r(v, W::Z), Operand::Imm(1)];
        self.emit(inst(Code::EVEX_Vextractf64x4_ymmm256_k1z_zmm_imm8, &ops));
        to
    }

    /// One register from two halves.
    pub fn join(&mut self, pieces: &[V], w: W) -> V {
        let [low, high] = *pieces else { return pieces[0] };
        let to = self.fresh(Bank::Vec);
        let (code, half) = match (w, self.avx512()) {
            (W::Z, _) => (Code::EVEX_Vinsertf64x4_zmm_k1z_zmm_ymmm256_imm8, W::Y),
            (_, true) => (Code::EVEX_Vinsertf32x4_ymm_k1z_ymm_xmmm128_imm8, W::X),
            (_, false) => (Code::VEX_Vinsertf128_ymm_ymm_xmmm128_imm8, W::X),
        };
        self.emit(inst(code, &[d(to, w), r(low, w), r(high, half), Operand::Imm(1)]));
        to
    }

    /// Calls `each` per lane with a register that holds the lane's offset in elements, or with a
    /// known one; lanes that are off are skipped.
    fn by_lane(
        &mut self,
        offsets: &Offsets,
        active: &Active,
        mut each: impl FnMut(&mut Self, u32, Ix),
    ) -> Res<()> {
        let bits = match active {
            Active::Mask(mask) => Some(self.mask_bits(&mask.clone())),
            _ => None,
        };
        let (parts, bytes) = match offsets {
            Offsets::Stride(_) => (Vec::new(), 0),
            Offsets::Narrow(parts) => (parts.clone(), 4),
            Offsets::Wide(parts) => (parts.clone(), 8),
        };
        let object = self.frame(64 * parts.len().max(1) as u32);
        let w = self.width(bytes.max(4));
        for (p, part) in parts.iter().enumerate() {
            let step = self.part_lanes(bytes) * bytes;
            let mem = Operand::Mem(Mem::frame(object, (p as u32 * step) as i32));
            self.emit(vinst(ops::MOVUPS_ST, self.isa, w, &[mem, r(*part, w)]));
        }
        for l in 0..self.lanes {
            let skip = self.label();
            if let Some(bits) = bits {
                self.test_bit(bits, l, skip);
            }
            let offset = match offsets {
                Offsets::Stride(stride) => Ix::konst(stride * i64::from(l)),
                _ => {
                    let mem = Operand::Mem(Mem::frame(object, (l * bytes) as i32));
                    let code = if bytes == 4 { Code::Movsxd_r64_rm32 } else { Code::Mov_r64_rm64 };
                    Ix::reg(self.scalar(code, W::R64, &[mem]))
                }
            };
            each(self, l, offset);
            self.emit(Item::Label(skip));
        }
        Ok(())
    }

    fn lane_operand(&self, mem: Mem, offset: &Ix, bytes: u32) -> Mem {
        match offset.known() {
            Some(n) => mem.plus((n * i64::from(bytes)) as i32),
            None => Mem { index: offset.single().map(|v| (v, bytes as u8)), ..mem },
        }
    }

    fn gather_by_lane(
        &mut self,
        dtype: DType,
        address: &Address,
        offsets: &Offsets,
        active: &Active,
        filler: Data,
    ) -> Res<Data> {
        let bytes = Self::size(dtype);
        let w = self.width(bytes);
        let mem = self.flat_operand(address);
        let count = self.parts(bytes);
        let object = self.frame(64 * count as u32);
        let step = (self.part_lanes(bytes) * bytes) as i32;
        for p in 0..count {
            let to = Operand::Mem(Mem::frame(object, step * p as i32));
            self.emit(vinst(ops::MOVUPS_ST, self.isa, w, &[to, r(filler.part(p), w)]));
        }
        self.by_lane(offsets, active, |select, l, offset| {
            let from = Operand::Mem(select.lane_operand(mem, &offset, bytes));
            let x = select.fresh(Bank::Gpr);
            select.emit(inst(Code::Movzx_r32_rm16, &[d(x, W::R32), from]));
            select.store_word(x, Mem::frame(object, (l * bytes) as i32));
        })?;
        let parts = (0..count)
            .map(|p| self.vload(ops::MOVUPS, w, Mem::frame(object, step * p as i32)))
            .collect();
        Ok(Data { dtype, parts, uniform: false, literal: None })
    }

    /// Every lane to a place of its own. Lane by lane: scatter instructions are no faster, and
    /// AVX2 has none.
    pub(super) fn scatter(
        &mut self,
        data: &Data,
        address: &Address,
        offsets: &Offsets,
        active: &Active,
    ) -> Res<()> {
        let bytes = Self::size(data.dtype);
        let w = self.width(bytes);
        let mem = self.flat_operand(address);
        let count = self.parts(bytes);
        let object = self.frame(64 * count as u32);
        let step = (self.part_lanes(bytes) * bytes) as i32;
        for p in 0..count {
            let to = Operand::Mem(Mem::frame(object, step * p as i32));
            self.emit(vinst(ops::MOVUPS_ST, self.isa, w, &[to, r(data.part(p), w)]));
        }
        self.by_lane(offsets, active, |select, l, offset| {
            let to = select.lane_operand(mem, &offset, bytes);
            let from = Operand::Mem(Mem::frame(object, (l * bytes) as i32));
            let x = select.fresh(Bank::Gpr);
            match bytes {
                2 => {
                    select.emit(inst(Code::Movzx_r32_rm16, &[d(x, W::R32), from]));
                    select.store_word(x, to);
                }
                4 => {
                    select.emit(inst(Code::Mov_r32_rm32, &[d(x, W::R32), from]));
                    select.emit(inst(Code::Mov_rm32_r32, &[Operand::Mem(to), r(x, W::R32)]));
                }
                _ => {
                    select.emit(inst(Code::Mov_r64_rm64, &[d(x, W::R64), from]));
                    select.emit(inst(Code::Mov_rm64_r64, &[Operand::Mem(to), r(x, W::R64)]));
                }
            }
        })
    }
}

/// Half the width.
fn half(w: W) -> W {
    match w {
        W::Z => W::Y,
        _ => W::X,
    }
}
