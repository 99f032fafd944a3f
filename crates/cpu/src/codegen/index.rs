//! Index arithmetic and addresses.

use iced_x86::Code;
use tilewright_ir::DType;
use tilewright_ir::program::MapOp;
use tilewright_kernel::kernel::*;

use super::lir::{Bank, Base, Cc, Item, Konst, Mem, Operand, V, W, d, inst, r, rw};
use super::ops;
use super::select::{Derived, Res, ScopeKind, Select};
use super::value::{Flag, Ix, Val};
use crate::error::CpuError;

/// A register and its coefficient in a sum.
type Term = (V, i64);

/// An address before it is put in registers: a sum in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address(pub Ix);

impl Select<'_> {
    /// Scope in which the last of a sum's registers is defined.
    fn level_of(&self, ix: &Ix) -> u32 {
        ix.terms.iter().map(|(v, _)| self.levels[v.0 as usize]).max().unwrap_or(0)
    }

    /// A register that holds a 64-bit constant, from the function's start.
    fn constant(&mut self, n: i64) -> V {
        let key = Ix::konst(n);
        if let Some(v) = self.scopes[0].held.get(&key) {
            return *v;
        }
        let v = self.fresh_at(Bank::Gpr, 0);
        let item = match i32::try_from(n) {
            Ok(0) => inst(Code::Mov_r32_imm32, &[d(v, W::R32), Operand::Imm(0)]),
            Ok(small) => {
                inst(Code::Mov_rm64_imm32, &[d(v, W::R64), Operand::Imm(i64::from(small))])
            }
            Err(_) => inst(Code::Mov_r64_imm64, &[d(v, W::R64), Operand::Imm(n)]),
        };
        self.emit_at(0, item);
        self.scopes[0].held.insert(key, v);
        v
    }

    /// A register times a constant, computed where the register is defined: for a loop's counter
    /// a second counter.
    fn scaled(&mut self, v: V, factor: i64) -> V {
        let level = self.levels[v.0 as usize];
        let key = Ix { terms: vec![(v, factor)], ..Ix::default() };
        if let Some(held) = self.scopes[level as usize].held.get(&key) {
            return *held;
        }
        let to = self.fresh_at(Bank::Gpr, level);
        if self.scopes[level as usize].counter == Some(v) {
            self.scopes[level as usize].derived.push(Derived { v: to, factor });
        } else if factor > 0 && (factor as u64).is_power_of_two() {
            let shift = i64::from(factor.trailing_zeros());
            self.emit_at(level, Item::Move { to, from: v });
            self.emit_at(level, inst(Code::Shl_rm64_imm8, &[rw(to, W::R64), Operand::Imm(shift)]));
        } else if let Ok(small) = i32::try_from(factor) {
            let ops = [d(to, W::R64), r(v, W::R64), Operand::Imm(i64::from(small))];
            self.emit_at(level, inst(Code::Imul_r64_rm64_imm32, &ops));
        } else {
            let big = self.constant(factor);
            self.emit_at(level, Item::Move { to, from: v });
            self.emit_at(level, inst(Code::Imul_r64_rm64, &[rw(to, W::R64), r(big, W::R64)]));
        }
        self.scopes[level as usize].held.insert(key, to);
        to
    }

    /// The uniform sum in a register. Parts that are defined further out are added further out.
    pub fn in_register(&mut self, ix: &Ix) -> V {
        let ix = ix.uniform();
        if let Some(v) = ix.single() {
            return v;
        }
        if let Some(n) = ix.known() {
            return self.constant(n);
        }
        let level = self.level_of(&ix);
        if let Some(v) = self.scopes[level as usize].held.get(&ix) {
            return *v;
        }
        let (here, outer): (Vec<Term>, Vec<Term>) =
            ix.terms.iter().copied().partition(|(v, _)| self.levels[v.0 as usize] == level);
        // The sum so far: a register and what is still to be added as a constant.
        let mut konst = ix.konst;
        let mut sum: Option<V> = match outer.len() {
            0 => None,
            1 if outer[0].1 == 1 => Some(outer[0].0),
            _ => {
                // Outer terms and the constant are summed once, where they are known.
                let part = Ix { terms: outer, konst, lane: 0 };
                konst = 0;
                Some(self.in_register(&part))
            }
        };
        let last = here.len();
        for (n, (v, c)) in here.into_iter().enumerate() {
            let rest = if n + 1 == last { konst } else { 0 };
            let (v, scale) = match c {
                1 | 2 | 4 | 8 => (v, c as u8),
                _ => (self.scaled(v, c), 1),
            };
            let small = i32::try_from(rest);
            let (base, disp) = match (sum, small) {
                (sum, Ok(rest)) => (sum, rest),
                (None, Err(_)) => (Some(self.constant(rest)), 0),
                (Some(sum), Err(_)) => {
                    let big = self.constant(rest);
                    (Some(self.lea(level, Some(sum), Some((big, 1)), 0)), 0)
                }
            };
            sum = Some(self.lea(level, base, Some((v, scale)), disp));
        }
        let v = sum.unwrap_or_else(|| self.constant(konst));
        self.scopes[level as usize].held.insert(ix, v);
        v
    }

    /// `base + index·scale + disp` in a register, in the given scope.
    fn lea(&mut self, level: u32, base: Option<V>, index: Option<(V, u8)>, disp: i32) -> V {
        match (base, index, disp) {
            (Some(v), None, 0) | (None, Some((v, 1)), 0) => return v,
            _ => {}
        }
        let to = self.fresh_at(Bank::Gpr, level);
        // Without a base, an unscaled index is a base (a shorter form).
        let (base, index) = match (base, index) {
            (None, Some((v, 1))) => (Some(v), None),
            other => other,
        };
        let mem = Mem {
            base: base.map_or(Base::None, Base::Reg),
            index,
            index_width: W::R64,
            disp,
            broadcast: false,
        };
        self.emit_at(level, inst(Code::Lea_r64_m, &[d(to, W::R64), Operand::Mem(mem)]));
        to
    }

    /// An index per lane: 64-bit elements in vector registers.
    pub fn index_lanes(&mut self, ix: &Ix) -> Vec<V> {
        let uniform = ix.uniform();
        let w = self.width(8);
        let per = i64::from(self.part_lanes(8));
        let parts = self.parts(8);
        let base = match uniform.known() {
            Some(_) => None,
            None => {
                let v = self.in_register(&uniform);
                Some(self.broadcast_gpr(v, 8))
            }
        };
        let konst = uniform.known().unwrap_or(0);
        (0..parts as i64)
            .map(|p| {
                let first = konst.wrapping_add(ix.lane.wrapping_mul(p * per));
                match base {
                    None => self.konst(Konst::Iota64(first, ix.lane)),
                    Some(base) if ix.lane == 0 => base,
                    Some(base) => {
                        let iota = self.konst(Konst::Iota64(first, ix.lane));
                        self.v2(ops::PADDQ, w, base, iota)
                    }
                }
            })
            .collect()
    }

    /// A general register repeated over the elements of a vector register.
    pub fn broadcast_gpr(&mut self, v: V, bytes: u32) -> V {
        let w = self.width(bytes);
        let narrow = if bytes == 8 { W::R64 } else { W::R32 };
        if self.isa == tilewright_plan::mapping::CpuIsa::Avx512 {
            let op = if bytes == 8 { ops::PBROADCASTQ_R } else { ops::PBROADCASTD_R };
            return self.v1(op, w, v, narrow);
        }
        let low = self.fresh(Bank::Vec);
        let code = if bytes == 8 { Code::VEX_Vmovq_xmm_rm64 } else { Code::VEX_Vmovd_xmm_rm32 };
        self.emit(inst(code, &[d(low, W::X), r(v, narrow)]));
        let op = if bytes == 8 { ops::PBROADCASTQ } else { ops::PBROADCASTD };
        self.v1(op, w, low, W::X)
    }

    /// Element 0 of a vector register in a general register (sign-extended from 32 bits).
    pub fn first_element(&mut self, v: V, bytes: u32) -> V {
        let avx512 = self.isa == tilewright_plan::mapping::CpuIsa::Avx512;
        let to = self.fresh(Bank::Gpr);
        let (code, w) = match (bytes, avx512) {
            (8, true) => (Code::EVEX_Vmovq_rm64_xmm, W::R64),
            (8, false) => (Code::VEX_Vmovq_rm64_xmm, W::R64),
            (_, true) => (Code::EVEX_Vmovd_rm32_xmm, W::R32),
            (_, false) => (Code::VEX_Vmovd_rm32_xmm, W::R32),
        };
        self.emit(inst(code, &[d(to, w), r(v, W::X)]));
        if bytes == 8 {
            return to;
        }
        self.scalar(Code::Movsxd_r64_rm32, W::R64, &[r(to, W::R32)])
    }

    // ---- elementwise operations on indices -------------------------------------------------

    /// An operation on index values.
    pub fn map_index(&mut self, op: MapOp, args: &[Val]) -> Res<Val> {
        let [a, b] = args else {
            return Err(CpuError::unsupported(format!("`{}` on index values", op.name())));
        };
        let (a, b) = match (a, b) {
            (Val::Index(a), Val::Index(b)) => (a.clone(), b.clone()),
            _ => return self.map_index_lanes(op, args),
        };
        let varies = a.lane != 0 || b.lane != 0;
        Ok(match op {
            MapOp::Add => Val::Index(a.plus(&b, 1)),
            MapOp::Sub => Val::Index(a.plus(&b, -1)),
            MapOp::Mul => match (a.known(), b.known()) {
                (_, Some(n)) => Val::Index(a.times(n)),
                (Some(n), _) => Val::Index(b.times(n)),
                _ if varies => return self.map_index_lanes(op, args),
                _ => {
                    let (x, y) = (self.in_register(&a), self.in_register(&b));
                    let to = self.copy(x);
                    self.emit(inst(Code::Imul_r64_rm64, &[rw(to, W::R64), r(y, W::R64)]));
                    Val::Index(Ix::reg(to))
                }
            },
            MapOp::Min | MapOp::Max => {
                if let (Some(x), Some(y)) = (a.known(), b.known()) {
                    let n = if op == MapOp::Min { x.min(y) } else { x.max(y) };
                    return Ok(Val::Index(Ix::konst(n)));
                }
                if varies {
                    return self.map_index_lanes(op, args);
                }
                let cc = if op == MapOp::Min { Cc::Gt } else { Cc::Lt };
                let (x, y) = (self.in_register(&a), self.in_register(&b));
                let to = self.copy(x);
                self.emit(inst(Code::Cmp_r64_rm64, &[r(x, W::R64), r(y, W::R64)]));
                self.emit(inst(cmov(cc), &[rw(to, W::R64), r(y, W::R64)]));
                Val::Index(Ix::reg(to))
            }
            MapOp::Div | MapOp::Mod if !varies => {
                Val::Index(self.divide(&a, &b, op == MapOp::Mod)?)
            }
            MapOp::Eq | MapOp::Ne | MapOp::Lt | MapOp::Le | MapOp::Gt | MapOp::Ge => {
                let cc = cc_of(op);
                if varies {
                    return Ok(Val::Mask(self.compare_lanes(cc, &a, &b)?));
                }
                if let (Some(x), Some(y)) = (a.known(), b.known()) {
                    return Ok(Val::Flag(Flag::Known(cc.holds(x, y))));
                }
                Val::Flag(Flag::Compare(cc, a, b))
            }
            _ => return self.map_index_lanes(op, args),
        })
    }

    /// Truncating quotient or remainder; by zero gives 0.
    fn divide(&mut self, a: &Ix, b: &Ix, remainder: bool) -> Res<Ix> {
        if let (Some(x), Some(y)) = (a.known(), b.known()) {
            let n = if remainder { x.checked_rem(y) } else { x.checked_div(y) };
            return Ok(Ix::konst(n.unwrap_or(0)));
        }
        match (b.known(), remainder) {
            (Some(0), _) | (Some(1 | -1), true) => return Ok(Ix::konst(0)),
            (Some(1), false) => return Ok(a.clone()),
            (Some(-1), false) => return Ok(a.times(-1)),
            (Some(n), _) if n > 0 && (n as u64).is_power_of_two() && n < 1 << 31 => {
                return Ok(self.divide_by_power(a, n, remainder));
            }
            _ => {}
        }
        let (x, y) = (self.in_register(a), self.in_register(b));
        if b.known().is_some() {
            let to = self.fresh(Bank::Gpr);
            self.emit(Item::Divide { to, a: x, b: y, remainder });
            return Ok(Ix::reg(to));
        }
        // idiv traps for 0 and may trap for -1: those take a way of their own.
        let (done, plain) = (self.label(), self.label());
        let to = self.fresh(Bank::Gpr);
        let one = self.fresh(Bank::Gpr);
        self.emit(Item::Move { to: one, from: y });
        self.emit(inst(Code::Add_rm64_imm8, &[rw(one, W::R64), Operand::Imm(1)]));
        self.emit(inst(Code::And_rm64_imm8, &[rw(one, W::R64), Operand::Imm(-2)]));
        self.emit(Item::Branch(Cc::Ne, plain));
        // y is 0 (result 0) or -1 (result -x, remainder 0): x·y is both quotients.
        if remainder {
            self.emit(inst(Code::Mov_r32_imm32, &[d(to, W::R32), Operand::Imm(0)]));
        } else {
            self.emit(Item::Move { to, from: x });
            self.emit(inst(Code::Imul_r64_rm64, &[rw(to, W::R64), r(y, W::R64)]));
        }
        self.emit(Item::Jump(done));
        self.emit(Item::Label(plain));
        self.emit(Item::Divide { to, a: x, b: y, remainder });
        self.emit(Item::Label(done));
        Ok(Ix::reg(to))
    }

    fn divide_by_power(&mut self, a: &Ix, n: i64, remainder: bool) -> Ix {
        let shift = i64::from(n.trailing_zeros());
        let x = self.in_register(a);
        // Negative dividends round toward zero: add n - 1 first.
        let bias = self.copy(x);
        self.emit(inst(Code::Sar_rm64_imm8, &[rw(bias, W::R64), Operand::Imm(63)]));
        self.emit(inst(Code::And_rm64_imm32, &[rw(bias, W::R64), Operand::Imm(n - 1)]));
        let sum = self.copy(x);
        self.emit(inst(Code::Add_r64_rm64, &[rw(sum, W::R64), r(bias, W::R64)]));
        if remainder {
            // x - (sum & -n)
            self.emit(inst(Code::And_rm64_imm32, &[rw(sum, W::R64), Operand::Imm(-n)]));
            return Ix::reg(x).plus(&Ix::reg(sum), -1);
        }
        self.emit(inst(Code::Sar_rm64_imm8, &[rw(sum, W::R64), Operand::Imm(shift)]));
        Ix::reg(sum)
    }

    // ---- addresses -----------------------------------------------------------------------

    /// Address of the data of an argument.
    fn pointer(&mut self, arg: ArgId) -> V {
        use tilewright_ir::entity::Id;
        let slot = self.lir.params[0];
        // Keyed by a sum that no index arithmetic makes: the argument pointer times its number.
        let key = Ix { terms: vec![(slot, 1)], konst: arg.index() as i64, lane: i64::MIN };
        if let Some(v) = self.scopes[0].held.get(&key) {
            return *v;
        }
        let to = self.fresh_at(Bank::Gpr, 0);
        let mem = Operand::Mem(Mem::at(slot, 8 * arg.index() as i32));
        self.emit_at(0, inst(Code::Mov_r64_rm64, &[d(to, W::R64), mem]));
        self.scopes[0].held.insert(key, to);
        to
    }

    /// The 64-bit word of a number argument.
    pub fn argument_word(&mut self, arg: ArgId) -> V {
        self.pointer(arg)
    }

    /// Base pointer and byte offset of a memory, with its element type.
    pub fn memory(&mut self, memory: Memory) -> Res<(V, i64, DType)> {
        use tilewright_ir::entity::Id;
        let unknown = || CpuError::malformed("a place in an unknown memory");
        match memory {
            Memory::Global(arg) => match self.kernel.args.get(arg).map(|a| a.kind) {
                Some(ArgKind::Buffer { dtype, .. }) => Ok((self.pointer(arg), 0, dtype)),
                _ => Err(CpuError::malformed("a place in an argument that is no buffer")),
            },
            Memory::Shared(id) => {
                let shared = self.kernel.shared.get(id).ok_or_else(unknown)?;
                if matches!(shared.layout, Layout::Swizzled(_)) {
                    return Err(CpuError::unsupported("swizzled shared layouts"));
                }
                Ok((self.lir.params[3], self.shared_at[id.index()] as i64, shared.dtype))
            }
            Memory::Cluster(_) => Err(CpuError::unsupported("memory across a cluster")),
            Memory::Private(id) => {
                let private = self.kernel.private.get(id).ok_or_else(unknown)?;
                Ok((self.lir.params[3], self.private_at[id.index()] as i64, private.dtype))
            }
        }
    }

    /// Address of element `base` of a memory, and the element type. A private array has one
    /// vector of lanes per element. Elements of padded shared buffers are found by division.
    pub fn address(&mut self, memory: Memory, base: &Ix) -> Res<(Address, DType)> {
        let (pointer, offset, dtype) = self.memory(memory)?;
        let bytes = dtype.bytes() as i64;
        let mut element = base.uniform();
        let scale = match memory {
            Memory::Private(_) => bytes * i64::from(self.lanes),
            Memory::Global(_) | Memory::Cluster(_) => bytes,
            Memory::Shared(id) => {
                let shared = &self.kernel.shared[id];
                if let Layout::Padded(pad) = shared.layout {
                    let cols = shared.cols as i64;
                    let row = self.divide(&element, &Ix::konst(cols), false)?;
                    element = element.plus(&row, i64::from(pad));
                }
                bytes
            }
        };
        Ok((Address(Ix::reg(pointer).offset(offset).plus(&element, scale)), dtype))
    }

    /// A memory operand for an address. Its registers are computed as far out as possible; what
    /// varies in the innermost loop is the index register.
    pub fn operand(&mut self, address: &Address) -> Mem {
        let sum = &address.0;
        let level = self.level_of(sum);
        let (disp, rest) = match i32::try_from(sum.konst) {
            Ok(disp) => (disp, 0),
            Err(_) => (0, sum.konst),
        };
        let (here, outer): (Vec<Term>, Vec<Term>) =
            sum.terms.iter().copied().partition(|(v, _)| self.levels[v.0 as usize] == level);
        let in_loop = self.scopes[level as usize].kind == ScopeKind::Loop;
        if level == 0 || !in_loop || outer.is_empty() || here.len() > 1 {
            let all = Ix { terms: sum.terms.clone(), konst: rest, lane: 0 };
            return Mem::at(self.in_register(&all), disp);
        }
        let base = self.in_register(&Ix { terms: outer, konst: rest, lane: 0 });
        let (v, factor) = here[0];
        let index = match factor {
            1 | 2 | 4 | 8 => (v, factor as u8),
            _ => (self.scaled(v, factor), 1),
        };
        Mem { index: Some(index), ..Mem::at(base, disp) }
    }

    /// A memory operand without an index register.
    pub fn flat_operand(&mut self, address: &Address) -> Mem {
        let sum = &address.0;
        match i32::try_from(sum.konst) {
            Ok(disp) => Mem::at(self.in_register(&Ix { konst: 0, ..sum.clone() }), disp),
            Err(_) => Mem::at(self.in_register(sum), 0),
        }
    }
}

/// The condition of a comparison.
pub fn cc_of(op: MapOp) -> Cc {
    match op {
        MapOp::Eq => Cc::Eq,
        MapOp::Ne => Cc::Ne,
        MapOp::Lt => Cc::Lt,
        MapOp::Le => Cc::Le,
        MapOp::Gt => Cc::Gt,
        _ => Cc::Ge,
    }
}

/// Conditional move of a 64-bit register.
pub fn cmov(cc: Cc) -> Code {
    match cc {
        Cc::Eq => Code::Cmove_r64_rm64,
        Cc::Ne => Code::Cmovne_r64_rm64,
        Cc::Lt => Code::Cmovl_r64_rm64,
        Cc::Le => Code::Cmovle_r64_rm64,
        Cc::Gt => Code::Cmovg_r64_rm64,
        Cc::Ge => Code::Cmovge_r64_rm64,
    }
}
