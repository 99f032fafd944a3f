//! From the linear form to bytes: registers are filled in, spilled operands are folded or
//! reloaded, labels and the constant pool are resolved here rather than by the encoder's block
//! pass (half the time per instruction).

use std::collections::HashMap;

use iced_x86::code_asm::{AsmRegister64, CodeAssembler, get_gpr64};
use iced_x86::{Code, Encoder, Instruction, OpCodeOperandKind, OpKind, Register};
use tilewright_plan::mapping::CpuIsa;

use super::alloc::{Allocation, Files, Place, allocate, each_reg, spill_width};
use super::lir::{
    Bank, Base, Call, Cc, Inst, Item, Konst, Label, Lir, Mem, Operand, Role, TileInput, V, W, inst,
};
use super::ops;
use super::tile::{self, Loc, TileArg, TileContext, TileOp};
use crate::error::CpuError;

/// Code with its constants. The entry is at [`Blob::entry`]; everything is position independent
/// except addresses of helpers.
#[derive(Clone, Debug, Default)]
pub struct Blob {
    /// The pool, then the code.
    pub bytes: Vec<u8>,
    /// Offset of the first instruction.
    pub entry: usize,
    /// Where the code of each statement (numbered in pre-order) begins, in order of code.
    pub statements: Vec<(u32, usize)>,
    /// Registers that live in memory: general, vector, mask.
    pub spills: [u32; 3],
}

const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
/// Registers that the caller expects unchanged: rbx, rbp, r12 to r15.
const CALLEE_SAVED: [u8; 6] = [3, 5, 12, 13, 14, 15];

/// General registers in order of preference: the first four receive the parameters (`end`
/// arrives in rdx, which is a scratch register), callee-saved ones come last.
const GPR_ORDER: [u8; 13] = [7, 6, 8, RCX, 9, 10, 11, 3, 5, 12, 13, 14, 15];

fn files(isa: CpuIsa, reserve: [bool; 3]) -> Files {
    let vectors = isa.registers() as u8;
    let top = if reserve[1] { vectors - 3 } else { vectors };
    Files {
        gpr: GPR_ORDER.iter().copied().filter(|r| !(reserve[0] && *r == RCX)).collect(),
        vec: (0..top).collect(),
        mask: (1..if reserve[2] { 6 } else { 8 }).collect(),
        vector_bytes: isa.vector_bytes() as u32,
    }
}

/// Allocates registers and encodes.
///
/// # Errors
/// [`CpuError::Unsupported`] from allocation and the tile emitter; [`CpuError::Encode`] if the
/// encoder refuses an instruction (a defect).
pub fn encode(lir: &Lir, isa: CpuIsa) -> Result<Blob, CpuError> {
    // First without scratch registers; only a bank that overflows gives some up.
    let mut reserve = [false; 3];
    loop {
        let mut trial = lir.clone();
        let allocation = allocate(&mut trial, &files(isa, reserve))?;
        let wanted = allocation.in_memory;
        if (0..3).all(|b| reserve[b] || !wanted[b]) {
            return Emitter::new(&trial, isa, allocation)?.run();
        }
        (0..3).for_each(|b| reserve[b] |= wanted[b]);
    }
}

struct Emitter<'a> {
    lir: &'a Lir,
    isa: CpuIsa,
    allocation: Allocation,
    encoder: Encoder,
    /// Bytes written so far.
    at: u64,
    pool: Vec<u8>,
    pool_at: HashMap<Konst, u64>,
    frame_at: Vec<u32>,
    frame_bytes: u32,
    /// Where registers are kept around calls and tiles.
    save_at: u32,
    labels: Vec<Option<u64>>,
    fixups: Vec<(u64, Label)>,
    statements: Vec<(u32, usize)>,
    saved: Vec<u8>,
    scratch: [u8; 3],
}

fn gpr(number: u8, width: W) -> Register {
    let base = match width {
        W::R16 => Register::AX,
        W::R32 => Register::EAX,
        _ => Register::RAX,
    };
    base + u32::from(number)
}

fn vector(number: u8, width: W) -> Register {
    let base = match width {
        W::X => Register::XMM0,
        W::Y => Register::YMM0,
        _ => Register::ZMM0,
    };
    base + u32::from(number)
}

fn physical(bank: Bank, number: u8, width: W) -> Register {
    match bank {
        Bank::Gpr => gpr(number, width),
        Bank::Vec => vector(number, width),
        Bank::Mask => Register::K0 + u32::from(number),
    }
}

/// Recommended multi-byte no-operations, by length.
const NOPS: [&[u8]; 9] = [
    &[0x90],
    &[0x66, 0x90],
    &[0x0f, 0x1f, 0x00],
    &[0x0f, 0x1f, 0x40, 0x00],
    &[0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
    &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
];

impl<'a> Emitter<'a> {
    fn new(lir: &'a Lir, isa: CpuIsa, allocation: Allocation) -> Result<Self, CpuError> {
        let mut emitter = Emitter {
            lir,
            isa,
            allocation,
            encoder: Encoder::try_new(64)?,
            at: 0,
            pool: Vec::new(),
            pool_at: HashMap::new(),
            frame_at: Vec::new(),
            frame_bytes: 0,
            save_at: 0,
            labels: vec![None; lir.labels as usize],
            fixups: Vec::new(),
            statements: Vec::new(),
            saved: Vec::new(),
            scratch: [0; 3],
        };
        emitter.lay_out_frame();
        emitter.lay_out_pool();
        Ok(emitter)
    }

    fn lay_out_frame(&mut self) {
        let mut order: Vec<usize> = (0..self.lir.frame.len()).collect();
        order.sort_by_key(|o| std::cmp::Reverse(self.lir.frame[*o].1));
        self.frame_at = vec![0; self.lir.frame.len()];
        let mut at = 0u32;
        let calls = self.lir.items.iter().any(|i| matches!(i, Item::Call(_)));
        let tiles = self.lir.items.iter().any(|i| matches!(i, Item::Tile(_)));
        self.save_at = at;
        if calls {
            at += self.isa.registers() * self.isa.vector_bytes() as u32 + 8 * 8 + 16 * 8;
        } else if tiles {
            at += 16 * 8;
        }
        for object in order {
            let (bytes, align) = self.lir.frame[object];
            at = at.next_multiple_of(align.max(8));
            self.frame_at[object] = at;
            at += bytes;
        }
        self.frame_bytes = at.next_multiple_of(64);
    }

    /// Every constant that any item names gets its place before the code, so that the distance is
    /// known while encoding.
    fn lay_out_pool(&mut self) {
        let mut wanted: Vec<Konst> = Vec::new();
        for (v, info) in self.lir.regs.iter().enumerate() {
            if let (Some(konst), true) =
                (info.konst, self.allocation.places[v] != Place::Nowhere)
            {
                wanted.push(konst);
            }
        }
        for item in &self.lir.items {
            if let Item::Inst(inst) = item {
                wanted.extend(inst.ops.iter().filter_map(|op| match op {
                    Operand::Mem(Mem { base: Base::Pool(konst), .. }) => Some(*konst),
                    _ => None,
                }));
            }
        }
        let vector = self.isa.vector_bytes() as usize;
        let repeat = |konst: Konst, isa: CpuIsa| match konst {
            Konst::B32(bits) => {
                let copies = if isa == CpuIsa::Avx512 { 1 } else { vector / 4 };
                bits.to_le_bytes().repeat(copies)
            }
            Konst::B64(bits) => {
                let copies = if isa == CpuIsa::Avx512 { 1 } else { vector / 8 };
                bits.to_le_bytes().repeat(copies)
            }
            Konst::Iota32(first, step) => (0..vector as i32 / 4)
                .flat_map(|l| first.wrapping_add(l.wrapping_mul(step)).to_le_bytes())
                .collect(),
            Konst::Iota64(first, step) => (0..vector as i64 / 8)
                .flat_map(|l| first.wrapping_add(l.wrapping_mul(step)).to_le_bytes())
                .collect(),
            Konst::Words(digits) => (0..vector as u32 / 4)
                .flat_map(|l| ((digits >> (4 * l)) as u32 & 15).to_le_bytes())
                .collect(),
        };
        // Full vectors first, then 8-byte and 4-byte entries: everything stays aligned.
        let key = |k: &Konst| std::cmp::Reverse(repeat(*k, self.isa).len());
        wanted.sort_by_key(key);
        for konst in wanted {
            if !self.pool_at.contains_key(&konst) {
                self.pool_at.insert(konst, self.pool.len() as u64);
                self.pool.extend(repeat(konst, self.isa));
            }
        }
        let padded = self.pool.len().next_multiple_of(64);
        self.pool.resize(padded, 0);
        self.at = padded as u64;
    }

    fn place(&self, v: V) -> Place {
        self.allocation.places[v.0 as usize]
    }

    fn raw(&mut self, instruction: &Instruction) -> Result<(), CpuError> {
        self.at += self.encoder.encode(instruction, self.at)? as u64;
        Ok(())
    }

    fn bytes(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.encoder.write_u8(*b));
        self.at += bytes.len() as u64;
    }

    fn take_scratch(&mut self, bank: Bank) -> Result<u8, CpuError> {
        let (at, choices): (usize, &[u8]) = match bank {
            Bank::Gpr => (0, &[RAX, RDX, RCX]),
            Bank::Vec if self.isa == CpuIsa::Avx512 => (1, &[31, 30, 29]),
            Bank::Vec => (1, &[15, 14, 13]),
            Bank::Mask => (2, &[7, 6]),
        };
        let number = choices.get(self.scratch[at]as usize).copied();
        self.scratch[at] += 1;
        number.ok_or_else(|| {
            CpuError::unsupported("an instruction with more spilled operands than scratch registers")
        })
    }

    /// The memory operand of a constant, with its repetition.
    fn pool_mem(&self, konst: Konst) -> Mem {
        let single = matches!(konst, Konst::B32(_) | Konst::B64(_));
        Mem {
            base: Base::Pool(konst),
            index: None,
            index_width: W::R64,
            disp: 0,
            broadcast: single && self.isa == CpuIsa::Avx512,
        }
    }

    /// Instruction that loads a register of a bank from a place in memory.
    fn load(&mut self, bank: Bank, number: u8, place: Place) -> Result<(), CpuError> {
        let width = spill_width(bank, self.isa.vector_bytes() as u32);
        let to = Operand::Phys(physical(bank, number, width));
        match (place, bank) {
            (Place::Pool(konst), _) => {
                let mem = Operand::Mem(Mem { broadcast: false, ..self.pool_mem(konst) });
                let op = match konst {
                    Konst::B32(_) if self.isa == CpuIsa::Avx512 => ops::PBROADCASTD,
                    Konst::B64(_) if self.isa == CpuIsa::Avx512 => ops::PBROADCASTQ,
                    _ => ops::MOVUPS,
                };
                self.encode_one(op.code(self.isa, width), &[to, mem], None, false)
            }
            (Place::Frame(object), bank) => {
                let mem = Operand::Mem(Mem::frame(object, 0));
                let code = match bank {
                    Bank::Gpr => Code::Mov_r64_rm64,
                    Bank::Mask => Code::VEX_Kmovq_kr_km64,
                    Bank::Vec => ops::MOVUPS.code(self.isa, width),
                };
                self.encode_one(code, &[to, mem], None, false)
            }
            _ => Ok(()),
        }
    }

    fn store(&mut self, bank: Bank, number: u8, object: u32) -> Result<(), CpuError> {
        let width = spill_width(bank, self.isa.vector_bytes() as u32);
        let from = Operand::Phys(physical(bank, number, width));
        let mem = Operand::Mem(Mem::frame(object, 0));
        let code = match bank {
            Bank::Gpr => Code::Mov_rm64_r64,
            Bank::Mask => Code::VEX_Kmovq_m64_kr,
            Bank::Vec => ops::MOVUPS_ST.code(self.isa, width),
        };
        self.encode_one(code, &[mem, from], None, false)
    }

    /// Encodes an instruction whose register operands are physical.
    fn encode_one(
        &mut self,
        code: Code,
        operands: &[Operand],
        mask: Option<u8>,
        zeroing: bool,
    ) -> Result<(), CpuError> {
        let mut out = Instruction::default();
        out.set_code(code);
        for (n, operand) in operands.iter().enumerate() {
            let n = n as u32;
            match operand {
                Operand::Phys(register) => {
                    out.try_set_op_kind(n, OpKind::Register)?;
                    out.try_set_op_register(n, *register)?;
                }
                Operand::Mem(mem) => {
                    out.try_set_op_kind(n, OpKind::Memory)?;
                    self.set_memory(&mut out, mem)?;
                }
                Operand::Imm(value) => {
                    let kind = match code.op_code().try_op_kind(n)? {
                        OpCodeOperandKind::imm8sex64 => OpKind::Immediate8to64,
                        OpCodeOperandKind::imm8sex32 => OpKind::Immediate8to32,
                        OpCodeOperandKind::imm32 => OpKind::Immediate32,
                        OpCodeOperandKind::imm32sex64 => OpKind::Immediate32to64,
                        OpCodeOperandKind::imm64 => OpKind::Immediate64,
                        _ => OpKind::Immediate8,
                    };
                    out.try_set_op_kind(n, kind)?;
                    out.try_set_immediate_i64(n, *value)?;
                }
                Operand::Reg(..) => {
                    return Err(CpuError::malformed("an operand without a register"));
                }
            }
        }
        if let Some(k) = mask {
            out.set_op_mask(Register::K0 + u32::from(k));
            out.set_zeroing_masking(zeroing);
        }
        self.raw(&out)
    }

    fn set_memory(&self, out: &mut Instruction, mem: &Mem) -> Result<(), CpuError> {
        let mut disp = i64::from(mem.disp);
        let register = |v: V, width: W| match self.place(v) {
            Place::Reg(number) => {
                Ok(physical(self.lir.regs[v.0 as usize].bank, number, width))
            }
            _ => Err(CpuError::malformed("an address register without a place")),
        };
        match mem.base {
            Base::None => {}
            Base::Reg(v) => out.set_memory_base(register(v, W::R64)?),
            Base::Frame(object) => {
                out.set_memory_base(Register::RSP);
                disp += i64::from(self.frame_at[object as usize]);
            }
            Base::Pool(konst) => {
                out.set_memory_base(Register::RIP);
                disp += *self.pool_at.get(&konst).unwrap_or(&0) as i64;
            }
        }
        if let Some((v, scale)) = mem.index {
            out.set_memory_index(register(v, mem.index_width)?);
            out.set_memory_index_scale(u32::from(scale));
        }
        out.set_memory_displacement64(disp as u64);
        let pool = matches!(mem.base, Base::Pool(_));
        let bare = matches!(mem.base, Base::None);
        out.set_memory_displ_size(if pool || bare { 8 } else { u32::from(disp != 0) });
        out.set_is_broadcast(mem.broadcast);
        Ok(())
    }

    /// Whether an operand position may be memory instead of a register.
    fn folds(code: Code, n: u32) -> bool {
        use OpCodeOperandKind::*;
        matches!(
            code.op_code().try_op_kind(n),
            Ok(xmm_or_mem | ymm_or_mem | zmm_or_mem | r32_or_mem | r64_or_mem)
        )
    }

    /// An instruction over virtual registers.
    fn inst(&mut self, inst: &Inst) -> Result<(), CpuError> {
        self.scratch = [0; 3];
        let mut operands = inst.ops.clone();
        let mut memory_free =
            !inst.ops.iter().any(|o| matches!(o, Operand::Mem(_)));
        let mut stores: Vec<(Bank, u8, u32)> = Vec::new();
        // Addresses first: their registers must not be taken by data.
        let mut address: Vec<(V, u8)> = Vec::new();
        for operand in &operands {
            if let Operand::Mem(mem) = operand {
                let base = if let Base::Reg(v) = mem.base { Some(v) } else { None };
                for v in base.into_iter().chain(mem.index.map(|i| i.0)) {
                    let bank = self.lir.regs[v.0 as usize].bank;
                    let place = self.place(v);
                    if !matches!(place, Place::Reg(_)) && !address.iter().any(|a| a.0 == v) {
                        let number = self.take_scratch(bank)?;
                        self.load(bank, number, place)?;
                        address.push((v, number));
                    }
                }
            }
        }
        // What is read first; a result may then take the scratch register of an operand.
        let mut read: Vec<(Bank, u8)> = Vec::new();
        for results in [false, true] {
            for (n, operand) in operands.iter_mut().enumerate() {
                let Operand::Reg(v, width, role) = *operand else { continue };
                if results != (role == Role::Def) {
                    continue;
                }
                let bank = self.lir.regs[v.0 as usize].bank;
                let place = self.place(v);
                if let Place::Reg(number) = place {
                    *operand = Operand::Phys(physical(bank, number, width));
                    continue;
                }
                if role == Role::Use && memory_free && Self::folds(inst.code, n as u32) {
                    if let Some(mem) = self.fold(inst.code, place) {
                        memory_free = false;
                        *operand = Operand::Mem(mem);
                        continue;
                    }
                }
                let shared = match role {
                    Role::Use => address.iter().find(|a| a.0 == v).map(|a| a.1),
                    Role::Def => read.iter().find(|r| r.0 == bank).map(|r| r.1),
                    Role::UseDef | Role::EarlyDef => None,
                };
                let number = match shared {
                    Some(number) => number,
                    None => self.take_scratch(bank)?,
                };
                if matches!(role, Role::Use | Role::UseDef) {
                    self.load(bank, number, place)?;
                }
                if role == Role::Use {
                    read.push((bank, number));
                }
                if let (true, Place::Frame(object)) = (role != Role::Use, place) {
                    stores.push((bank, number, object));
                }
                *operand = Operand::Phys(physical(bank, number, width));
            }
        }
        let mask = match inst.mask.map(|k| self.place(k)) {
            None => None,
            Some(Place::Reg(number)) => Some(number),
            Some(place) => {
                let number = self.take_scratch(Bank::Mask)?;
                self.load(Bank::Mask, number, place)?;
                Some(number)
            }
        };
        let restore: Vec<(usize, Place)> =
            address.iter().map(|(v, _)| (v.0 as usize, self.place(*v))).collect();
        for (v, number) in &address {
            self.allocation.places[v.0 as usize] = Place::Reg(*number);
        }
        self.encode_one(inst.code, &operands, mask, inst.zeroing)?;
        for (v, place) in restore {
            self.allocation.places[v] = place;
        }
        for (bank, number, object) in stores {
            self.store(bank, number, object)?;
        }
        Ok(())
    }

    /// The memory operand that stands for a spilled register in this instruction, if it has one.
    fn fold(&self, code: Code, place: Place) -> Option<Mem> {
        match place {
            Place::Frame(object) => Some(Mem::frame(object, 0)),
            Place::Pool(konst) => {
                let mem = self.pool_mem(konst);
                if !mem.broadcast {
                    return Some(mem);
                }
                let bytes = if matches!(konst, Konst::B32(_)) { 4 } else { 8 };
                let op = code.op_code();
                let fits = op.can_broadcast()
                    && op.broadcast_memory_size().element_size() == bytes;
                fits.then_some(mem)
            }
            _ => None,
        }
    }

    fn mov(&mut self, to: V, from: V) -> Result<(), CpuError> {
        let bank = self.lir.regs[to.0 as usize].bank;
        self.scratch = [0; 3];
        let (a, b) = (self.place(to), self.place(from));
        if a == b {
            return Ok(());
        }
        let width = spill_width(bank, self.isa.vector_bytes() as u32);
        match (a, b) {
            (Place::Reg(x), Place::Reg(y)) => {
                let code = match bank {
                    Bank::Gpr => Code::Mov_r64_rm64,
                    Bank::Mask => Code::VEX_Kmovq_kr_km64,
                    Bank::Vec => ops::MOVAPS.code(self.isa, width),
                };
                let (x, y) = (physical(bank, x, width), physical(bank, y, width));
                self.encode_one(code, &[Operand::Phys(x), Operand::Phys(y)], None, false)
            }
            (Place::Reg(x), from) => self.load(bank, x, from),
            (Place::Frame(object), Place::Reg(y)) => self.store(bank, y, object),
            (Place::Frame(object), from) => {
                let s = self.take_scratch(bank)?;
                self.load(bank, s, from)?;
                self.store(bank, s, object)
            }
            _ => Ok(()),
        }
    }

    fn divide(&mut self, to: V, a: V, b: V, remainder: bool) -> Result<(), CpuError> {
        let rax = Operand::Phys(Register::RAX);
        match self.place(a) {
            Place::Reg(n) => {
                let from = Operand::Phys(gpr(n, W::R64));
                self.encode_one(Code::Mov_r64_rm64, &[rax, from], None, false)?;
            }
            place => self.load(Bank::Gpr, RAX, place)?,
        }
        self.encode_one(Code::Cqo, &[], None, false)?;
        let divisor = match self.place(b) {
            Place::Reg(n) => Operand::Phys(gpr(n, W::R64)),
            Place::Frame(object) => Operand::Mem(Mem::frame(object, 0)),
            _ => return Err(CpuError::malformed("a divisor without a place")),
        };
        self.encode_one(Code::Idiv_rm64, &[divisor], None, false)?;
        let result = if remainder { RDX } else { RAX };
        match self.place(to) {
            Place::Reg(n) => {
                let ops = [Operand::Phys(gpr(n, W::R64)), Operand::Phys(gpr(result, W::R64))];
                self.encode_one(Code::Mov_r64_rm64, &ops, None, false)
            }
            Place::Frame(object) => self.store(Bank::Gpr, result, object),
            _ => Ok(()),
        }
    }

    fn jump(&mut self, code: Code, label: Label) -> Result<(), CpuError> {
        let instruction = Instruction::with_branch(code, self.at)?;
        self.raw(&instruction)?;
        self.fixups.push((self.at - 4, label));
        Ok(())
    }

    fn align(&mut self, to: u64) {
        let mut gap = (self.at.next_multiple_of(to) - self.at) as usize;
        while gap > 0 {
            let n = gap.min(NOPS.len());
            self.bytes(NOPS[n - 1]);
            gap -= n;
        }
    }

    /// `[rsp + offset]` as raw offset: the save area isn't a frame object.
    fn saved_register(&mut self, bank: Bank, number: u8, store: bool) -> Result<(), CpuError> {
        let vector_bytes = self.isa.vector_bytes() as u32;
        let masks = self.isa.registers() * vector_bytes;
        let offset = self.save_at
            + match bank {
                Bank::Vec => u32::from(number) * vector_bytes,
                Bank::Mask => masks + u32::from(number) * 8,
                Bank::Gpr => masks + 64 + u32::from(number) * 8,
            };
        self.at_offset(bank, number, offset, store)
    }

    fn at_offset(
        &mut self,
        bank: Bank,
        number: u8,
        offset: u32,
        store: bool,
    ) -> Result<(), CpuError> {
        let width = spill_width(bank, self.isa.vector_bytes() as u32);
        let code = match (bank, store) {
            (Bank::Gpr, false) => Code::Mov_r64_rm64,
            (Bank::Gpr, true) => Code::Mov_rm64_r64,
            (Bank::Mask, false) => Code::VEX_Kmovq_kr_km64,
            (Bank::Mask, true) => Code::VEX_Kmovq_m64_kr,
            (Bank::Vec, false) => ops::MOVUPS.code(self.isa, width),
            (Bank::Vec, true) => ops::MOVUPS_ST.code(self.isa, width),
        };
        let mut out = Instruction::default();
        out.set_code(code);
        let (m, r) = if store { (0, 1) } else { (1, 0) };
        out.try_set_op_kind(r, OpKind::Register)?;
        out.try_set_op_register(r, physical(bank, number, width))?;
        out.try_set_op_kind(m, OpKind::Memory)?;
        out.set_memory_base(Register::RSP);
        out.set_memory_displacement64(u64::from(offset));
        out.set_memory_displ_size(u32::from(offset != 0));
        self.raw(&out)
    }

    /// Stores operands, calls, loads results. Every caller-saved register that lives on is kept
    /// in the save area: the ABI keeps no vector or mask register.
    fn call(&mut self, i: usize, call: &Call) -> Result<(), CpuError> {
        let live: Vec<(Bank, u8)> = self
            .allocation
            .live_across(self.lir, i)
            .map(|(_, bank, n)| (bank, n))
            .filter(|(bank, n)| *bank != Bank::Gpr || !CALLEE_SAVED.contains(n))
            .collect();
        for (bank, number) in &live {
            self.saved_register(*bank, *number, true)?;
        }
        for (parts, object) in &call.args {
            let mut disp = 0;
            for (v, width) in parts {
                let code = ops::MOVUPS_ST.code(self.isa, *width);
                let mem = Operand::Mem(Mem::frame(*object, disp));
                let store = inst(code, &[mem, Operand::Reg(*v, *width, Role::Use)]);
                if let Item::Inst(store) = &store {
                    self.inst(store)?;
                }
                disp += width.bytes() as i32;
            }
        }
        self.encode_one(Code::VEX_Vzeroupper, &[], None, false)?;
        let objects: Vec<u32> = std::iter::once(call.results.1)
            .chain(call.args.iter().map(|(_, object)| *object))
            .collect();
        let registers = [Register::RDI, Register::RSI, Register::RDX, Register::RCX];
        for (n, register) in registers.iter().take(3).enumerate() {
            let object = objects.get(n).or(objects.last()).copied().unwrap_or(0);
            let mem = Operand::Mem(Mem::frame(object, 0));
            self.encode_one(Code::Lea_r64_m, &[Operand::Phys(*register), mem], None, false)?;
        }
        let lanes = [Operand::Phys(Register::ECX), Operand::Imm(i64::from(call.lanes))];
        self.encode_one(Code::Mov_r32_imm32, &lanes, None, false)?;
        let target = [Operand::Phys(Register::RAX), Operand::Imm(call.target as i64)];
        self.encode_one(Code::Mov_r64_imm64, &target, None, false)?;
        self.encode_one(Code::Call_rm64, &[Operand::Phys(Register::RAX)], None, false)?;
        for (bank, number) in &live {
            self.saved_register(*bank, *number, false)?;
        }
        let mut disp = 0;
        for (v, width) in &call.results.0 {
            let code = ops::MOVUPS.code(self.isa, *width);
            let mem = Operand::Mem(Mem::frame(call.results.1, disp));
            if let Item::Inst(load) =
                &inst(code, &[Operand::Reg(*v, *width, Role::Def), mem])
            {
                self.inst(load)?;
            }
            disp += width.bytes() as i32;
        }
        Ok(())
    }

    /// A register-tile statement: temps are general registers that hold no operand; those that
    /// live on are saved around it.
    fn tile(&mut self, i: usize, op: &TileOp<TileInput>) -> Result<(), CpuError> {
        let mut inputs: Vec<u8> = Vec::new();
        each_reg(&self.lir.items[i], &mut |v, _| {
            if let Place::Reg(n) = self.allocation.places[v.0 as usize] {
                inputs.push(n);
            }
        });
        let mut resolved = op.map(&mut |input| match input {
            TileInput::Const(n) => Loc::Const(n),
            TileInput::Reg(v) => match self.place(v) {
                Place::Reg(n) => match get_gpr64(gpr(n, W::R64)) {
                    Some(register) => Loc::Reg(register),
                    None => Loc::Const(0),
                },
                Place::Frame(object) => Loc::Slot(self.frame_at[object as usize] as i32),
                Place::Pool(_) | Place::Nowhere => Loc::Const(0),
            },
        });
        if let TileOp::Map { args, .. } = &mut resolved {
            for arg in args {
                if let TileArg::Slot(object) = arg {
                    *object = self.frame_at[*object as usize] as i32;
                }
            }
        }
        let live: Vec<u8> = self
            .allocation
            .live_across(self.lir, i)
            .filter(|(_, bank, _)| *bank == Bank::Gpr)
            .map(|(_, _, n)| n)
            .collect();
        let mut pool: Vec<u8> = [RAX, RDX].into_iter().chain(GPR_ORDER).collect();
        pool.retain(|n| !inputs.contains(n));
        pool.sort_by_key(|n| live.contains(n));
        let wanted = tile::temps(&resolved);
        if wanted > pool.len() {
            return Err(CpuError::unsupported("a tile statement with that many temporaries"));
        }
        pool.truncate(wanted);
        for number in &pool {
            if CALLEE_SAVED.contains(number) && !self.saved.contains(number) {
                return Err(CpuError::malformed("a temporary that was not saved on entry"));
            }
        }
        let temps: Vec<AsmRegister64> =
            pool.iter().filter_map(|n| get_gpr64(gpr(*n, W::R64))).collect();
        let saves: Vec<u8> = pool.iter().copied().filter(|n| live.contains(n)).collect();
        for (at, number) in saves.iter().enumerate() {
            let offset = self.save_at + 8 * at as u32;
            self.at_offset(Bank::Gpr, *number, offset, true)?;
        }
        let mut asm = CodeAssembler::new(64)?;
        let lanes = self.lir.lanes;
        let context = TileContext { isa: self.isa, lanes, temps: &temps };
        tile::emit(&resolved, &context, &mut asm)?;
        let code = asm.assemble(self.at)?;
        self.bytes(&code);
        for (at, number) in saves.iter().enumerate() {
            let offset = self.save_at + 8 * at as u32;
            self.at_offset(Bank::Gpr, *number, offset, false)?;
        }
        Ok(())
    }

    /// Pushes callee-saved registers, aligns the frame, and moves the parameters and constants
    /// to their places.
    fn prologue(&mut self) -> Result<(), CpuError> {
        let tiles = self.lir.items.iter().any(|i| matches!(i, Item::Tile(_)));
        self.saved = CALLEE_SAVED
            .into_iter()
            .filter(|n| {
                tiles
                    || self.allocation.intervals.iter().any(|life| {
                        self.lir.regs[life.v.0 as usize].bank == Bank::Gpr
                            && self.allocation.places[life.v.0 as usize] == Place::Reg(*n)
                    })
            })
            .collect();
        for number in self.saved.clone() {
            let register = Operand::Phys(gpr(number, W::R64));
            self.encode_one(Code::Push_r64, &[register], None, false)?;
        }
        if self.frame_bytes > 0 {
            // The old stack pointer is kept above the objects, so that the frame can be aligned
            // to a vector.
            let (rax, rsp) = (Operand::Phys(Register::RAX), Operand::Phys(Register::RSP));
            let bytes = i64::from(self.frame_bytes) + 64;
            self.encode_one(Code::Mov_r64_rm64, &[rax, rsp], None, false)?;
            self.encode_one(Code::Sub_rm64_imm32, &[rsp, Operand::Imm(bytes)], None, false)?;
            self.encode_one(Code::And_rm64_imm8, &[rsp, Operand::Imm(-64)], None, false)?;
            self.at_offset(Bank::Gpr, RAX, self.frame_bytes, true)?;
        }
        let abi = [7u8, 6, RDX, RCX];
        for (v, from) in self.lir.params.into_iter().zip(abi) {
            if let Place::Frame(object) = self.place(v) {
                self.store(Bank::Gpr, from, object)?;
            }
        }
        for (v, from) in self.lir.params.into_iter().zip(abi) {
            if let Place::Reg(to) = self.place(v) {
                if to != from {
                    let ops =
                        [Operand::Phys(gpr(to, W::R64)), Operand::Phys(gpr(from, W::R64))];
                    self.encode_one(Code::Mov_r64_rm64, &ops, None, false)?;
                }
            }
        }
        for v in 0..self.lir.regs.len() {
            let info = self.lir.regs[v];
            if let (Some(konst), Place::Reg(number)) = (info.konst, self.allocation.places[v]) {
                self.load(info.bank, number, Place::Pool(konst))?;
            }
        }
        Ok(())
    }

    fn epilogue(&mut self) -> Result<(), CpuError> {
        self.encode_one(Code::VEX_Vzeroupper, &[], None, false)?;
        if self.frame_bytes > 0 {
            let mut out = Instruction::default();
            out.set_code(Code::Mov_r64_rm64);
            out.try_set_op_kind(0, OpKind::Register)?;
            out.try_set_op_register(0, Register::RSP)?;
            out.try_set_op_kind(1, OpKind::Memory)?;
            out.set_memory_base(Register::RSP);
            out.set_memory_displacement64(u64::from(self.frame_bytes));
            out.set_memory_displ_size(1);
            self.raw(&out)?;
        }
        for number in self.saved.clone().into_iter().rev() {
            let register = Operand::Phys(gpr(number, W::R64));
            self.encode_one(Code::Pop_r64, &[register], None, false)?;
        }
        self.encode_one(Code::Retnq, &[], None, false)
    }

    fn run(mut self) -> Result<Blob, CpuError> {
        let entry = self.at as usize;
        self.prologue()?;
        let lir = self.lir;
        for (i, item) in lir.items.iter().enumerate() {
            match item {
                Item::Inst(inst) => self.inst(inst)?,
                Item::Move { to, from } => self.mov(*to, *from)?,
                Item::Divide { to, a, b, remainder } => self.divide(*to, *a, *b, *remainder)?,
                Item::Label(label) => self.labels[label.0 as usize] = Some(self.at),
                Item::Jump(label) => self.jump(Code::Jmp_rel32_64, *label)?,
                Item::Branch(cc, label) => {
                    let code = match cc {
                        Cc::Eq => Code::Je_rel32_64,
                        Cc::Ne => Code::Jne_rel32_64,
                        Cc::Lt => Code::Jl_rel32_64,
                        Cc::Le => Code::Jle_rel32_64,
                        Cc::Gt => Code::Jg_rel32_64,
                        Cc::Ge => Code::Jge_rel32_64,
                    };
                    self.jump(code, *label)?;
                }
                Item::LoopStart => self.align(32),
                Item::LoopEnd | Item::TileOpen | Item::TileClose => {}
                Item::Stmt(number) => self.statements.push((*number, self.at as usize)),
                Item::Call(call) => self.call(i, call)?,
                Item::Tile(op) => self.tile(i, op)?,
            }
        }
        self.epilogue()?;
        let mut bytes = std::mem::take(&mut self.pool);
        bytes.extend(self.encoder.take_buffer());
        for (at, label) in &self.fixups {
            let target = self.labels[label.0 as usize]
                .ok_or_else(|| CpuError::malformed("a jump to a label that has no place"))?;
            let distance = target as i64 - (*at as i64 + 4);
            let distance = i32::try_from(distance)
                .map_err(|_| CpuError::unsupported("a function of more than 2 GiB"))?;
            let at = *at as usize;
            bytes[at..at + 4].copy_from_slice(&distance.to_le_bytes());
        }
        Ok(Blob {
            bytes,
            entry,
            statements: self.statements,
            spills: self.allocation.spills,
        })
    }
}
