//! Bool values and which lanes take part.
//!
//! AVX-512: a lane mask is one mask register whose bits beyond the lanes are 0. AVX2: vector
//! registers with 32 equal bits per lane, eight lanes each (four in an xmm register).

use iced_x86::Code;
use tilewright_kernel::kernel::*;
use tilewright_plan::mapping::CpuIsa;

use super::index::{cc_of, cmov};
use super::lir::{Bank, Cc, Item, Konst, Operand, V, W, d, inst, r, rw, vinst};
use super::ops;
use super::select::{Res, Select};
use super::value::{Active, Flag, Ix, Mask, Val};
use crate::error::CpuError;
use tilewright_ir::program::MapOp;

impl Select<'_> {
    /// Whether masks are mask registers.
    pub fn avx512(&self) -> bool {
        self.isa == CpuIsa::Avx512
    }

    /// Bits of all lanes.
    fn all_bits(&self) -> i64 {
        if self.lanes >= 64 { -1 } else { (1i64 << self.lanes) - 1 }
    }

    /// A mask register from the low bits of a general register.
    fn mask_from_gpr(&mut self, level: u32, v: V) -> V {
        let k = self.fresh_at(Bank::Mask, level);
        self.emit_at(level, inst(Code::VEX_Kmovq_kr_r64, &[d(k, W::K), r(v, W::R64)]));
        k
    }

    /// An operation on two mask registers.
    fn k2(&mut self, code: Code, a: V, b: V) -> V {
        let to = self.fresh(Bank::Mask);
        self.emit(inst(code, &[d(to, W::K), r(a, W::K), r(b, W::K)]));
        to
    }

    // ---- masks -----------------------------------------------------------------------------

    /// The mask of the first `limit` lanes, kept where `limit` is known.
    pub fn count_mask(&mut self, limit: &Ix) -> Mask {
        let level = limit.terms.iter().map(|(v, _)| self.levels[v.0 as usize]).max().unwrap_or(0);
        if let Some(mask) = self.scopes[level as usize].counts.get(limit) {
            return mask.clone();
        }
        let lanes = i64::from(self.lanes);
        let parts = if let (Some(n), true) = (limit.known(), self.avx512()) {
            let bits = if n >= lanes { self.all_bits() } else { (1i64 << n.max(0)) - 1 };
            let v = self.in_register(&Ix::konst(bits));
            vec![self.mask_from_gpr(level, v)]
        } else if let Some(n) = limit.known() {
            let n = n.clamp(0, lanes) as i32;
            let full: Vec<V> = (0..self.parts(4) as i32)
                .map(|p| {
                    let first = self.konst(Konst::Iota32(8 * p, 1));
                    let limit = self.bits32(n as u32);
                    let to = self.fresh_at(Bank::Vec, 0);
                    let w = self.width(4);
                    let ops = [d(to, w), r(limit, w), r(first, w)];
                    self.emit_at(0, vinst(ops::PCMPGTD, self.isa, w, &ops));
                    to
                })
                .collect();
            full
        } else {
            let x = self.in_register(limit);
            let (zero, top) =
                (self.in_register(&Ix::konst(0)), self.in_register(&Ix::konst(lanes)));
            let n = self.fresh_at(Bank::Gpr, level);
            self.emit_at(level, Item::Move { to: n, from: x });
            for (cc, bound) in [(Cc::Lt, zero), (Cc::Gt, top)] {
                let ops = [r(n, W::R64), r(bound, W::R64)];
                self.emit_at(level, inst(Code::Cmp_r64_rm64, &ops));
                self.emit_at(level, inst(cmov(cc), &[rw(n, W::R64), r(bound, W::R64)]));
            }
            if self.avx512() {
                let ones = self.in_register(&Ix::konst(self.all_bits()));
                let bits = self.fresh_at(Bank::Gpr, level);
                let ops = [d(bits, W::R64), r(ones, W::R64), r(n, W::R64)];
                self.emit_at(level, inst(Code::VEX_Bzhi_r64_rm64_r64, &ops));
                vec![self.mask_from_gpr(level, bits)]
            } else {
                let w = self.width(4);
                let low = self.fresh_at(Bank::Vec, level);
                let mov = [d(low, W::X), r(n, W::R32)];
                self.emit_at(level, inst(Code::VEX_Vmovd_xmm_rm32, &mov));
                let wide = self.fresh_at(Bank::Vec, level);
                let bc = vinst(ops::PBROADCASTD, self.isa, w, &[d(wide, w), r(low, W::X)]);
                self.emit_at(level, bc);
                (0..self.parts(4) as i32)
                    .map(|p| {
                        let iota = self.konst(Konst::Iota32(8 * p, 1));
                        let to = self.fresh_at(Bank::Vec, level);
                        let ops = [d(to, w), r(wide, w), r(iota, w)];
                        self.emit_at(level, vinst(ops::PCMPGTD, self.isa, w, &ops));
                        to
                    })
                    .collect()
            }
        };
        let mask = Mask { parts };
        self.scopes[level as usize].counts.insert(limit.clone(), mask.clone());
        mask
    }

    /// The mask of all lanes.
    pub fn full_mask(&mut self) -> Mask {
        let lanes = i64::from(self.lanes);
        self.count_mask(&Ix::konst(lanes))
    }

    /// A flag repeated for all lanes.
    pub fn mask_of_flag(&mut self, flag: &Flag) -> Mask {
        if let Flag::Known(on) = flag {
            return self.count_mask(&Ix::konst(if *on { i64::from(self.lanes) } else { 0 }));
        }
        let v = self.flag_register(flag);
        let minus = self.copy(v);
        self.emit(inst(Code::Neg_rm64, &[rw(minus, W::R64)]));
        if !self.avx512() {
            let part = self.broadcast_gpr(minus, 4);
            return Mask { parts: vec![part; self.parts(4)] };
        }
        if self.lanes < 64 {
            let all = self.in_register(&Ix::konst(self.all_bits()));
            self.emit(inst(Code::And_r64_rm64, &[rw(minus, W::R64), r(all, W::R64)]));
        }
        let level = self.level();
        Mask { parts: vec![self.mask_from_gpr(level, minus)] }
    }

    /// Bool value as a mask.
    pub fn mask(&mut self, value: ValueId) -> Res<Mask> {
        match self.get(value)? {
            Val::Mask(mask) => Ok(mask),
            Val::Flag(flag) => Ok(self.mask_of_flag(&flag)),
            _ => Err(CpuError::malformed(format!("{value:?} is no bool"))),
        }
    }

    /// `a op b` for `and`, `or`, and `and not` (of the first).
    pub fn mask_op(&mut self, op: MaskOp, a: &Mask, b: &Mask) -> Mask {
        let pairs: Vec<(V, V)> = a.parts.iter().copied().zip(b.parts.iter().copied()).collect();
        let w = self.width(4);
        let parts = pairs
            .into_iter()
            .map(|(x, y)| match (op, self.avx512()) {
                (MaskOp::And, true) => self.k2(Code::VEX_Kandq_kr_kr_kr, x, y),
                (MaskOp::Or, true) => self.k2(Code::VEX_Korq_kr_kr_kr, x, y),
                (MaskOp::NotAnd, true) => self.k2(Code::VEX_Kandnq_kr_kr_kr, x, y),
                (MaskOp::And, false) => self.v2(ops::ANDPS, w, x, y),
                (MaskOp::Or, false) => self.v2(ops::ORPS, w, x, y),
                (MaskOp::NotAnd, false) => self.v2(ops::ANDNPS, w, x, y),
            })
            .collect();
        Mask { parts }
    }

    /// The lanes of `mask` that are off.
    pub fn mask_not(&mut self, mask: &Mask) -> Mask {
        let full = self.full_mask();
        self.mask_op(MaskOp::NotAnd, mask, &full)
    }

    /// The mask register or vector for part `n` of a value with elements of that size.
    pub fn mask_part(&mut self, mask: &Mask, bytes: u32, n: usize) -> V {
        if self.avx512() {
            let k = mask.parts[0];
            let shift = n as i64 * i64::from(self.part_lanes(bytes));
            if shift == 0 {
                return k;
            }
            let to = self.fresh(Bank::Mask);
            let ops = [d(to, W::K), r(k, W::K), Operand::Imm(shift)];
            self.emit(inst(Code::VEX_Kshiftrq_kr_kr_imm8, &ops));
            return to;
        }
        match bytes {
            4 => mask.parts[n.min(mask.parts.len() - 1)],
            8 => {
                // Part n has as many lanes as half a 32-bit part.
                let source = mask.parts[(n / 2).min(mask.parts.len() - 1)];
                let half = if n.is_multiple_of(2) { source } else { self.upper_half(source) };
                let w = self.width(8);
                self.v1(ops::PMOVSXDQ, w, half, W::X)
            }
            _ => {
                if self.lanes <= 4 {
                    let zero = self.bits32(0);
                    return self.v2(ops::PACKSSDW, W::X, mask.parts[0], zero);
                }
                if self.lanes <= 8 {
                    let high = self.upper_half(mask.parts[0]);
                    return self.v2(ops::PACKSSDW, W::X, mask.parts[0], high);
                }
                let (low, high) = (mask.parts[2 * n], mask.parts[2 * n + 1]);
                let packed = self.v2(ops::PACKSSDW, W::Y, low, high);
                self.v1i(ops::PERMQ, W::Y, packed, 0xd8)
            }
        }
    }

    /// Upper 128 bits of a ymm register.
    pub fn upper_half(&mut self, v: V) -> V {
        let to = self.fresh(Bank::Vec);
        let code = if self.avx512() {
            Code::EVEX_Vextractf32x4_xmmm128_k1z_ymm_imm8
        } else {
            Code::VEX_Vextractf128_xmmm128_ymm_imm8
        };
        self.emit(inst(code, &[d(to, W::X), r(v, W::Y), Operand::Imm(1)]));
        to
    }

    /// A mask from the comparison results of each part of values with elements of that size.
    pub fn mask_from_parts(&mut self, bytes: u32, parts: &[V]) -> Mask {
        if self.avx512() {
            let per = self.part_lanes(bytes);
            let mut all = parts[0];
            for (n, part) in parts.iter().enumerate().skip(1) {
                let shifted = self.fresh(Bank::Mask);
                let ops =
                    [d(shifted, W::K), r(*part, W::K), Operand::Imm(n as i64 * i64::from(per))];
                self.emit(inst(Code::VEX_Kshiftlq_kr_kr_imm8, &ops));
                all = self.k2(Code::VEX_Korq_kr_kr_kr, all, shifted);
            }
            return Mask { parts: vec![all] };
        }
        if bytes == 4 {
            return Mask { parts: parts.to_vec() };
        }
        if self.lanes == 4 {
            // ymm of 64-bit masks to xmm of 32-bit masks.
            let high = self.upper_half(parts[0]);
            return Mask { parts: vec![self.v2i(ops::SHUFPS, W::X, parts[0], high, 0x88)] };
        }
        let parts = parts
            .chunks(2)
            .map(|pair| {
                let mixed = self.v2i(ops::SHUFPS, W::Y, pair[0], pair[pair.len() - 1], 0x88);
                self.v1i(ops::PERMQ, W::Y, mixed, 0xd8)
            })
            .collect();
        Mask { parts }
    }

    /// Bits of the lanes in a general register.
    pub fn mask_bits(&mut self, mask: &Mask) -> V {
        if self.avx512() {
            return self.scalar(Code::VEX_Kmovq_r64_kr, W::R64, &[r(mask.parts[0], W::K)]);
        }
        let w = self.width(4);
        let code =
            if w == W::Y { Code::VEX_Vmovmskps_r32_ymm } else { Code::VEX_Vmovmskps_r32_xmm };
        let mut bits: Option<V> = None;
        for (n, part) in mask.parts.clone().into_iter().enumerate() {
            let to = self.scalar(code, W::R32, &[r(part, w)]);
            bits = Some(match bits {
                None => to,
                Some(low) => {
                    let high = self.copy(to);
                    let shift = Operand::Imm(8 * n as i64);
                    self.emit(inst(Code::Shl_rm64_imm8, &[rw(high, W::R64), shift]));
                    self.emit(inst(Code::Or_r64_rm64, &[rw(high, W::R64), r(low, W::R64)]));
                    high
                }
            });
        }
        bits.unwrap_or_else(|| self.in_register(&Ix::konst(0)))
    }

    // ---- flags -----------------------------------------------------------------------------

    /// A flag as 0 or 1 in a general register.
    pub fn flag_register(&mut self, flag: &Flag) -> V {
        match flag {
            Flag::Known(on) => self.in_register(&Ix::konst(i64::from(*on))),
            Flag::Reg(v) => *v,
            Flag::Compare(cc, a, b) => {
                let (one, zero) =
                    (self.in_register(&Ix::konst(1)), self.in_register(&Ix::konst(0)));
                self.compare(a, b);
                let to = self.fresh(Bank::Gpr);
                self.emit(Item::Move { to, from: zero });
                self.emit(inst(cmov(*cc), &[rw(to, W::R64), r(one, W::R64)]));
                to
            }
        }
    }

    /// Sets the processor's flags from two sums.
    fn compare(&mut self, a: &Ix, b: &Ix) {
        let x = self.in_register(a);
        match b.known().map(i32::try_from) {
            Some(Ok(n)) => {
                self.emit(inst(Code::Cmp_rm64_imm32, &[r(x, W::R64), Operand::Imm(i64::from(n))]));
            }
            _ => {
                let y = self.in_register(b);
                self.emit(inst(Code::Cmp_r64_rm64, &[r(x, W::R64), r(y, W::R64)]));
            }
        }
    }

    /// Sets the processor's flags from a flag; the condition that then means true.
    pub fn test(&mut self, flag: &Flag) -> Cc {
        match flag {
            Flag::Compare(cc, a, b) => {
                self.compare(a, b);
                *cc
            }
            other => {
                let v = self.flag_register(other);
                self.emit(inst(Code::Test_rm64_r64, &[r(v, W::R64), r(v, W::R64)]));
                Cc::Ne
            }
        }
    }

    /// The flag of one bit: bit 0 of a mask that is the same for all lanes.
    pub fn flag_of_uniform(&mut self, part: V) -> Flag {
        let to = if self.avx512() {
            self.scalar(Code::VEX_Kmovd_r32_kr, W::R32, &[r(part, W::K)])
        } else {
            self.scalar(Code::VEX_Vmovd_rm32_xmm, W::R32, &[r(part, W::X)])
        };
        self.emit(inst(Code::And_rm64_imm8, &[rw(to, W::R64), Operand::Imm(1)]));
        Flag::Reg(to)
    }

    /// The opposite flag.
    pub fn flag_not(&mut self, flag: &Flag) -> Flag {
        match flag {
            Flag::Known(on) => Flag::Known(!on),
            Flag::Compare(cc, a, b) => Flag::Compare(cc.negated(), a.clone(), b.clone()),
            Flag::Reg(v) => {
                let to = self.copy(*v);
                self.emit(inst(Code::Xor_rm64_imm8, &[rw(to, W::R64), Operand::Imm(1)]));
                Flag::Reg(to)
            }
        }
    }

    /// Whether any lane of a mask is on.
    pub fn any(&mut self, mask: &Mask) -> Flag {
        let bits = self.mask_bits(mask);
        Flag::Compare(Cc::Ne, Ix::reg(bits), Ix::konst(0))
    }

    // ---- operations on bools -----------------------------------------------------------------

    /// An operation on bool values.
    pub fn map_bool(&mut self, op: MapOp, args: &[Val]) -> Res<Val> {
        let flags: Option<Vec<Flag>> = args
            .iter()
            .map(|a| if let Val::Flag(f) = a { Some(f.clone()) } else { None })
            .collect();
        if let Some(flags) = flags {
            return self.map_flags(op, &flags);
        }
        let mut masks = Vec::new();
        for arg in args {
            masks.push(match arg {
                Val::Flag(flag) => self.mask_of_flag(flag),
                Val::Mask(mask) => mask.clone(),
                _ => return Err(CpuError::malformed("a logical operation on no bool")),
            });
        }
        let mask = match (op, masks.as_slice()) {
            (MapOp::Not, [a]) => self.mask_not(a),
            (MapOp::And | MapOp::Min | MapOp::Mul, [a, b]) => self.mask_op(MaskOp::And, a, b),
            (MapOp::Or | MapOp::Max, [a, b]) => self.mask_op(MaskOp::Or, a, b),
            (MapOp::Ne | MapOp::Eq, [a, b]) => {
                let (x, y) =
                    (self.mask_op(MaskOp::NotAnd, a, b), self.mask_op(MaskOp::NotAnd, b, a));
                let differ = self.mask_op(MaskOp::Or, &x, &y);
                if op == MapOp::Ne { differ } else { self.mask_not(&differ) }
            }
            (MapOp::Select, [c, a, b]) => {
                let x = self.mask_op(MaskOp::And, c, a);
                let y = self.mask_op(MaskOp::NotAnd, c, b);
                self.mask_op(MaskOp::Or, &x, &y)
            }
            _ => return Err(CpuError::unsupported(format!("`{}` on bool values", op.name()))),
        };
        Ok(Val::Mask(mask))
    }

    fn map_flags(&mut self, op: MapOp, flags: &[Flag]) -> Res<Val> {
        if let (MapOp::Not, [a]) = (op, flags) {
            return Ok(Val::Flag(self.flag_not(a)));
        }
        if let (MapOp::Select, [c, a, b]) = (op, flags) {
            let (x, y) = (self.flag_register(a), self.flag_register(b));
            let to = self.fresh(Bank::Gpr);
            self.emit(Item::Move { to, from: y });
            let cc = self.test(c);
            self.emit(inst(cmov(cc), &[rw(to, W::R64), r(x, W::R64)]));
            return Ok(Val::Flag(Flag::Reg(to)));
        }
        let [a, b] = flags else {
            return Err(CpuError::malformed("a logical operation with that many operands"));
        };
        match (op, a, b) {
            (MapOp::And, Flag::Known(true), other) | (MapOp::And, other, Flag::Known(true)) => {
                return Ok(Val::Flag(other.clone()));
            }
            (MapOp::Or, Flag::Known(false), other) | (MapOp::Or, other, Flag::Known(false)) => {
                return Ok(Val::Flag(other.clone()));
            }
            (MapOp::And, Flag::Known(false), _) | (MapOp::And, _, Flag::Known(false)) => {
                return Ok(Val::Flag(Flag::Known(false)));
            }
            (MapOp::Or, Flag::Known(true), _) | (MapOp::Or, _, Flag::Known(true)) => {
                return Ok(Val::Flag(Flag::Known(true)));
            }
            _ => {}
        }
        let (x, y) = (self.flag_register(a), self.flag_register(b));
        let code = match op {
            MapOp::And => Code::And_r64_rm64,
            MapOp::Or => Code::Or_r64_rm64,
            MapOp::Eq | MapOp::Ne => {
                let cc = cc_of(op);
                return Ok(Val::Flag(Flag::Compare(cc, Ix::reg(x), Ix::reg(y))));
            }
            _ => return Err(CpuError::unsupported(format!("`{}` on bool values", op.name()))),
        };
        let to = self.copy(x);
        self.emit(inst(code, &[rw(to, W::R64), r(y, W::R64)]));
        Ok(Val::Flag(Flag::Reg(to)))
    }

    // ---- guards ------------------------------------------------------------------------------

    /// The lanes for which element `element` of `width` consecutive ones is accessed.
    pub fn active(&mut self, guard: Option<&Guard>, width: usize, element: usize) -> Res<Active> {
        let lanes = i64::from(self.lanes);
        let active = match guard.map(|g| g.test) {
            None => Active::All,
            Some(GuardTest::Count(limit)) => {
                // l·width + v < limit  ⇔  l < ⌈(limit - v) / width⌉
                let mut limit = self.uniform_index(limit)?.offset(-(element as i64));
                if width > 1 {
                    let up = limit.offset(width as i64 - 1);
                    let shift = i64::from(width.trailing_zeros());
                    limit = match up.known() {
                        Some(n) => Ix::konst(n >> shift),
                        None => {
                            let x = self.in_register(&up);
                            let to = self.copy(x);
                            let ops = [rw(to, W::R64), Operand::Imm(shift)];
                            self.emit(inst(Code::Sar_rm64_imm8, &ops));
                            Ix::reg(to)
                        }
                    };
                }
                match limit.known() {
                    Some(n) if n >= lanes => Active::All,
                    Some(n) if n <= 0 => Active::Nobody,
                    _ if self.lanes == 1 => {
                        Active::Flag(Flag::Compare(Cc::Gt, limit, Ix::konst(0)))
                    }
                    _ => Active::Mask(self.count_mask(&limit)),
                }
            }
            Some(GuardTest::Mask(value)) => match self.get(value)? {
                Val::Flag(Flag::Known(true)) => Active::All,
                Val::Flag(Flag::Known(false)) => Active::Nobody,
                Val::Flag(flag) => Active::Flag(flag),
                Val::Mask(mask) => Active::Mask(mask),
                _ => return Err(CpuError::malformed("a guard that is no bool")),
            },
        };
        let Some(predicate) = self.predicate.clone() else { return Ok(active) };
        Ok(match active {
            Active::All => Active::Mask(predicate),
            Active::Nobody => Active::Nobody,
            Active::Flag(flag) => {
                let mask = self.mask_of_flag(&flag);
                Active::Mask(self.mask_op(MaskOp::And, &mask, &predicate))
            }
            Active::Mask(mask) => Active::Mask(self.mask_op(MaskOp::And, &mask, &predicate)),
        })
    }

    /// Lanes whose index `a` compares with `b`. Where the difference is the lane number plus
    /// something uniform, that is a count of leading lanes.
    pub fn compare_lanes(&mut self, cc: Cc, a: &Ix, b: &Ix) -> Res<Mask> {
        let difference = a.plus(b, -1);
        let u = difference.uniform();
        let count = match (difference.lane, cc) {
            (1, Cc::Lt) => Some((u.times(-1), false)),
            (1, Cc::Le) => Some((u.times(-1).offset(1), false)),
            (1, Cc::Ge) => Some((u.times(-1), true)),
            (1, Cc::Gt) => Some((u.times(-1).offset(1), true)),
            (-1, Cc::Gt) => Some((u.clone(), false)),
            (-1, Cc::Ge) => Some((u.offset(1), false)),
            (-1, Cc::Le) => Some((u.clone(), true)),
            (-1, Cc::Lt) => Some((u.offset(1), true)),
            _ => None,
        };
        if let Some((limit, inverse)) = count {
            let mask = self.count_mask(&limit);
            return Ok(if inverse { self.mask_not(&mask) } else { mask });
        }
        let (x, y) = (self.index_lanes(a), self.index_lanes(b));
        self.compare_index_vectors(cc, &x, &y)
    }

    /// Compares 64-bit elements.
    pub fn compare_index_vectors(&mut self, cc: Cc, x: &[V], y: &[V]) -> Res<Mask> {
        let w = self.width(8);
        let parts: Vec<V> =
            x.iter().zip(y).map(|(a, b)| self.compare_ints(cc, 8, w, *a, *b)).collect();
        Ok(self.mask_from_parts(8, &parts))
    }

    /// Compares integers of 4 or 8 bytes in one part.
    pub fn compare_ints(&mut self, cc: Cc, bytes: u32, w: W, a: V, b: V) -> V {
        if self.avx512() {
            let imm = match cc {
                Cc::Eq => 0,
                Cc::Lt => 1,
                Cc::Le => 2,
                Cc::Ne => 4,
                Cc::Ge => 5,
                Cc::Gt => 6,
            };
            let op = if bytes == 8 { ops::PCMPQ } else { ops::PCMPD };
            let to = self.fresh(Bank::Mask);
            let operands = [d(to, W::K), r(a, w), r(b, w), Operand::Imm(imm)];
            self.emit(vinst(op, self.isa, w, &operands));
            return to;
        }
        let (eq, gt) =
            if bytes == 8 { (ops::PCMPEQQ, ops::PCMPGTQ) } else { (ops::PCMPEQD, ops::PCMPGTD) };
        let (raw, invert) = match cc {
            Cc::Eq => (self.v2(eq, w, a, b), false),
            Cc::Ne => (self.v2(eq, w, a, b), true),
            Cc::Gt => (self.v2(gt, w, a, b), false),
            Cc::Le => (self.v2(gt, w, a, b), true),
            Cc::Lt => (self.v2(gt, w, b, a), false),
            Cc::Ge => (self.v2(gt, w, b, a), true),
        };
        if !invert {
            return raw;
        }
        let ones = self.bits32(u32::MAX);
        self.v2(ops::XORPS, w, raw, ones)
    }
}

/// A logical operation on masks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MaskOp {
    /// Both.
    And,
    /// Either.
    Or,
    /// The second without the first.
    NotAnd,
}
