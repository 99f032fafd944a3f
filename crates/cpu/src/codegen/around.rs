//! What stands around the generated instructions: entry and exit of the function, and the code
//! that keeps registers across helper calls and register tiles.

use iced_x86::code_asm::{AsmRegister64, CodeAssembler, get_gpr64};
use iced_x86::{Code, Instruction, OpKind, Register};

use super::alloc::{Place, each_reg, spill_width};
use super::emit::{CALLEE_SAVED, Emitter, GPR_ORDER, RAX, RCX, RDX, gpr, physical};
use super::lir::{Bank, Call, Item, Mem, Operand, Role, TileInput, W, inst};
use super::ops;
use super::tile::{self, Loc, TileArg, TileContext, TileOp};
use crate::error::CpuError;

impl Emitter<'_> {
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
    pub(super) fn call(&mut self, i: usize, call: &Call) -> Result<(), CpuError> {
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
            if let Item::Inst(load) = &inst(code, &[Operand::Reg(*v, *width, Role::Def), mem]) {
                self.inst(load)?;
            }
            disp += width.bytes() as i32;
        }
        Ok(())
    }

    /// A register-tile statement: temps are general registers that hold no operand; those that
    /// live on are saved around it.
    pub(super) fn tile(&mut self, i: usize, op: &TileOp<TileInput>) -> Result<(), CpuError> {
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
    pub(super) fn prologue(&mut self) -> Result<(), CpuError> {
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
            if let Place::Reg(to) = self.place(v)
                && to != from
            {
                let ops = [Operand::Phys(gpr(to, W::R64)), Operand::Phys(gpr(from, W::R64))];
                self.encode_one(Code::Mov_r64_rm64, &ops, None, false)?;
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

    pub(super) fn epilogue(&mut self) -> Result<(), CpuError> {
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
}
