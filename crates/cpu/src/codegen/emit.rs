//! From the linear form to bytes: registers are filled in, spilled operands are folded or
//! reloaded, labels and the constant pool are resolved here rather than by the encoder's block
//! pass (half the time per instruction).

use std::collections::HashMap;

use iced_x86::{Code, Encoder, Instruction, OpKind, Register};
use tilewright_plan::mapping::CpuIsa;

use super::alloc::{Allocation, Files, Place, allocate, spill_width};
use super::lir::{Bank, Base, Cc, Inst, Item, Konst, Label, Lir, Mem, Operand, Role, V, W};
use super::ops;
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

pub(super) const RAX: u8 = 0;
pub(super) const RCX: u8 = 1;
pub(super) const RDX: u8 = 2;
/// Registers that the caller expects unchanged: rbx, rbp, r12 to r15.
pub(super) const CALLEE_SAVED: [u8; 6] = [3, 5, 12, 13, 14, 15];

/// General registers in order of preference: the first four receive the parameters (`end`
/// arrives in rdx, which is a scratch register), callee-saved ones come last.
pub(super) const GPR_ORDER: [u8; 13] = [7, 6, 8, RCX, 9, 10, 11, 3, 5, 12, 13, 14, 15];

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

pub(super) struct Emitter<'a> {
    pub(super) lir: &'a Lir,
    pub(super) isa: CpuIsa,
    pub(super) allocation: Allocation,
    encoder: Encoder,
    /// Bytes written so far.
    pub(super) at: u64,
    pool: Vec<u8>,
    pool_at: HashMap<Konst, u64>,
    pub(super) frame_at: Vec<u32>,
    pub(super) frame_bytes: u32,
    /// Where registers are kept around calls and tiles.
    pub(super) save_at: u32,
    labels: Vec<Option<u64>>,
    fixups: Vec<(u64, Label)>,
    statements: Vec<(u32, usize)>,
    pub(super) saved: Vec<u8>,
    scratch: [u8; 3],
}

pub(super) fn gpr(number: u8, width: W) -> Register {
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

pub(super) fn physical(bank: Bank, number: u8, width: W) -> Register {
    match bank {
        Bank::Gpr => gpr(number, width),
        Bank::Vec => vector(number, width),
        Bank::Mask => Register::K0 + u32::from(number),
    }
}

/// How an encoding holds its immediate. Vector instructions have a plain byte.
fn immediate(code: Code) -> OpKind {
    match code {
        Code::Add_rm64_imm8 | Code::And_rm64_imm8 | Code::Xor_rm64_imm8 => OpKind::Immediate8to64,
        Code::Add_rm64_imm32
        | Code::And_rm64_imm32
        | Code::Sub_rm64_imm32
        | Code::Cmp_rm64_imm32
        | Code::Test_rm64_imm32
        | Code::Mov_rm64_imm32
        | Code::Imul_r64_rm64_imm32 => OpKind::Immediate32to64,
        Code::Mov_r32_imm32 | Code::Test_rm32_imm32 => OpKind::Immediate32,
        Code::Mov_r64_imm64 => OpKind::Immediate64,
        _ => OpKind::Immediate8,
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
            if let (Some(konst), true) = (info.konst, self.allocation.places[v] != Place::Nowhere) {
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
            Konst::Exp2 => (0..vector as u32 / 4)
                .flat_map(|j| (libm::exp2(f64::from(j) / 16.0) as f32).to_le_bytes())
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

    pub(super) fn place(&self, v: V) -> Place {
        self.allocation.places[v.0 as usize]
    }

    pub(super) fn raw(&mut self, instruction: &Instruction) -> Result<(), CpuError> {
        self.at += self.encoder.encode(instruction, self.at)? as u64;
        Ok(())
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
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
        let number = choices.get(self.scratch[at] as usize).copied();
        self.scratch[at] += 1;
        number.ok_or_else(|| {
            CpuError::unsupported(
                "an instruction with more spilled operands than scratch registers",
            )
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
    pub(super) fn load(&mut self, bank: Bank, number: u8, place: Place) -> Result<(), CpuError> {
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

    pub(super) fn store(&mut self, bank: Bank, number: u8, object: u32) -> Result<(), CpuError> {
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
    pub(super) fn encode_one(
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
                    let kind = immediate(code);
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
            Place::Reg(number) => Ok(physical(self.lir.regs[v.0 as usize].bank, number, width)),
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

    /// An instruction over virtual registers.
    pub(super) fn inst(&mut self, inst: &Inst) -> Result<(), CpuError> {
        self.scratch = [0; 3];
        let mut operands = inst.ops.clone();
        let mut memory_free = !inst.ops.iter().any(|o| matches!(o, Operand::Mem(_)));
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
                if role == Role::Use
                    && memory_free
                    && inst.memory == Some(n as u8)
                    && let Some(mem) = self.fold(inst, place)
                {
                    memory_free = false;
                    *operand = Operand::Mem(mem);
                    continue;
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
    fn fold(&self, inst: &Inst, place: Place) -> Option<Mem> {
        match place {
            Place::Frame(object) => Some(Mem::frame(object, 0)),
            Place::Pool(konst) => {
                let mem = self.pool_mem(konst);
                let bytes = if matches!(konst, Konst::B32(_)) { 4 } else { 8 };
                (!mem.broadcast || inst.repeats == bytes).then_some(mem)
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
        Ok(Blob { bytes, entry, statements: self.statements, spills: self.allocation.spills })
    }
}
