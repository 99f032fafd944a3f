//! What all tile statements share: vector instructions of the instruction set and element type,
//! addresses of views, and column masks.
//!
//! Vector instructions are built as raw [`Instruction`]s because one code path serves zmm and
//! ymm registers; general registers go through the assembler's methods.

use iced_x86::code_asm::{AsmRegister64, CodeAssembler, ptr, qword_ptr, rsp};
use iced_x86::{Code, Instruction, MemoryOperand, Register};
use tilewright_ir::DType;
use tilewright_plan::mapping::CpuIsa;

use super::{Loc, Tile, TileContext, TileView};
use crate::error::CpuError;

/// Which lanes of one vector of columns an access touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Columns {
    /// All.
    Full,
    /// Those of a mask: a k register (AVX-512) or a vector register of sign bits (AVX2).
    Masked(Register),
    /// None: the vector is left out.
    Empty,
}

/// The instructions of one instruction set for one element type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Codes {
    load: Code,
    store: Code,
    stream: Code,
    mask_load: Code,
    mask_store: Code,
    broadcast: Code,
    fma: Code,
    pub(super) add: Code,
    pub(super) sub: Code,
    pub(super) mul: Code,
    pub(super) div: Code,
}

const AVX512_F32: Codes = Codes {
    load: Code::EVEX_Vmovups_zmm_k1z_zmmm512,
    store: Code::EVEX_Vmovups_zmmm512_k1z_zmm,
    stream: Code::EVEX_Vmovntps_m512_zmm,
    mask_load: Code::EVEX_Vmovups_zmm_k1z_zmmm512,
    mask_store: Code::EVEX_Vmovups_zmmm512_k1z_zmm,
    broadcast: Code::EVEX_Vbroadcastss_zmm_k1z_xmmm32,
    fma: Code::EVEX_Vfmadd231ps_zmm_k1z_zmm_zmmm512b32_er,
    add: Code::EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er,
    sub: Code::EVEX_Vsubps_zmm_k1z_zmm_zmmm512b32_er,
    mul: Code::EVEX_Vmulps_zmm_k1z_zmm_zmmm512b32_er,
    div: Code::EVEX_Vdivps_zmm_k1z_zmm_zmmm512b32_er,
};

const AVX512_F64: Codes = Codes {
    load: Code::EVEX_Vmovupd_zmm_k1z_zmmm512,
    store: Code::EVEX_Vmovupd_zmmm512_k1z_zmm,
    stream: Code::EVEX_Vmovntpd_m512_zmm,
    mask_load: Code::EVEX_Vmovupd_zmm_k1z_zmmm512,
    mask_store: Code::EVEX_Vmovupd_zmmm512_k1z_zmm,
    broadcast: Code::EVEX_Vbroadcastsd_zmm_k1z_xmmm64,
    fma: Code::EVEX_Vfmadd231pd_zmm_k1z_zmm_zmmm512b64_er,
    add: Code::EVEX_Vaddpd_zmm_k1z_zmm_zmmm512b64_er,
    sub: Code::EVEX_Vsubpd_zmm_k1z_zmm_zmmm512b64_er,
    mul: Code::EVEX_Vmulpd_zmm_k1z_zmm_zmmm512b64_er,
    div: Code::EVEX_Vdivpd_zmm_k1z_zmm_zmmm512b64_er,
};

const AVX2_F32: Codes = Codes {
    load: Code::VEX_Vmovups_ymm_ymmm256,
    store: Code::VEX_Vmovups_ymmm256_ymm,
    stream: Code::VEX_Vmovntps_m256_ymm,
    mask_load: Code::VEX_Vmaskmovps_ymm_ymm_m256,
    mask_store: Code::VEX_Vmaskmovps_m256_ymm_ymm,
    broadcast: Code::VEX_Vbroadcastss_ymm_m32,
    fma: Code::VEX_Vfmadd231ps_ymm_ymm_ymmm256,
    add: Code::VEX_Vaddps_ymm_ymm_ymmm256,
    sub: Code::VEX_Vsubps_ymm_ymm_ymmm256,
    mul: Code::VEX_Vmulps_ymm_ymm_ymmm256,
    div: Code::VEX_Vdivps_ymm_ymm_ymmm256,
};

const AVX2_F64: Codes = Codes {
    load: Code::VEX_Vmovupd_ymm_ymmm256,
    store: Code::VEX_Vmovupd_ymmm256_ymm,
    stream: Code::VEX_Vmovntpd_m256_ymm,
    mask_load: Code::VEX_Vmaskmovpd_ymm_ymm_m256,
    mask_store: Code::VEX_Vmaskmovpd_m256_ymm_ymm,
    broadcast: Code::VEX_Vbroadcastsd_ymm_m64,
    fma: Code::VEX_Vfmadd231pd_ymm_ymm_ymmm256,
    add: Code::VEX_Vaddpd_ymm_ymm_ymmm256,
    sub: Code::VEX_Vsubpd_ymm_ymm_ymmm256,
    mul: Code::VEX_Vmulpd_ymm_ymm_ymmm256,
    div: Code::VEX_Vdivpd_ymm_ymm_ymmm256,
};

/// An address: a general register, an optional index register, and a displacement in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    /// Base register.
    pub base: AsmRegister64,
    /// Index register with its scale (1, 2, 4 or 8).
    pub index: Option<(AsmRegister64, u32)>,
    /// Displacement in bytes.
    pub disp: i64,
}

impl Address {
    /// The address that many bytes further on.
    pub fn plus(self, bytes: i64) -> Address {
        Address { disp: self.disp + bytes, ..self }
    }

    fn operand(self) -> Result<MemoryOperand, CpuError> {
        if i32::try_from(self.disp).is_err() {
            return Err(CpuError::unsupported(format!(
                "a register tile that spans a displacement of {} bytes",
                self.disp
            )));
        }
        let base: Register = self.base.into();
        let size = if self.disp == 0 { 0 } else { 1 };
        Ok(match self.index {
            None => MemoryOperand::with_base_displ_size(base, self.disp, size),
            Some((index, scale)) => MemoryOperand::with_base_index_scale_displ_size(
                base,
                index.into(),
                scale,
                self.disp,
                size,
            ),
        })
    }
}

/// Emits one tile statement.
pub(super) struct Emitter<'a> {
    pub isa: CpuIsa,
    pub lanes: u32,
    pub asm: &'a mut CodeAssembler,
    free_temps: Vec<AsmRegister64>,
    /// Vector registers below this number are untouched by the statement, except for the
    /// fragments that it names.
    top: u32,
    /// Vector registers below this number hold the fragments that the statement names.
    floor: u32,
}

impl<'a> Emitter<'a> {
    pub fn new(context: &TileContext<'_>, asm: &'a mut CodeAssembler) -> Self {
        let mut free_temps = context.temps.to_vec();
        free_temps.reverse();
        let (isa, lanes) = (context.isa, context.lanes);
        Emitter { isa, lanes, asm, free_temps, top: isa.registers(), floor: 0 }
    }

    /// A general register that may be overwritten.
    pub fn temp(&mut self) -> Result<AsmRegister64, CpuError> {
        self.free_temps
            .pop()
            .ok_or_else(|| CpuError::malformed("a register tile got too few general registers"))
    }

    /// Gives a general register back.
    pub fn release(&mut self, temp: AsmRegister64) {
        self.free_temps.push(temp);
    }

    /// The general registers that are free now, to be restored where code paths part.
    pub fn temps_left(&self) -> Vec<AsmRegister64> {
        self.free_temps.clone()
    }

    /// Makes the general registers free that were free at another place.
    pub fn restore_temps(&mut self, temps: Vec<AsmRegister64>) {
        self.free_temps = temps;
    }

    /// The instructions for accumulators of a type; checks that vectors are full.
    pub fn codes(&self, dtype: DType) -> Result<Codes, CpuError> {
        if u64::from(self.lanes) * dtype.bytes() != self.isa.vector_bytes() {
            return Err(CpuError::unsupported(format!(
                "register tiles of {} lanes of {dtype}",
                self.lanes
            )));
        }
        match (self.isa, dtype) {
            (CpuIsa::Avx512, DType::F32) => Ok(AVX512_F32),
            (CpuIsa::Avx512, DType::F64) => Ok(AVX512_F64),
            (CpuIsa::Avx2, DType::F32) => Ok(AVX2_F32),
            (CpuIsa::Avx2, DType::F64) => Ok(AVX2_F64),
            _ => Err(CpuError::unsupported(format!("register tiles of {dtype}"))),
        }
    }

    /// The vector register of that number.
    pub fn vector(&self, number: u32) -> Register {
        let first = if self.isa == CpuIsa::Avx512 { Register::ZMM0 } else { Register::YMM0 };
        first + number
    }

    /// The lower half of a vector register (the part that 16-bit elements fill).
    fn half(&self, register: Register) -> Register {
        let number = register.number() as u32;
        let first = if self.isa == CpuIsa::Avx512 { Register::YMM0 } else { Register::XMM0 };
        first + number
    }

    /// The accumulator of a row and vector. All live fragments have the same shape, so the slot
    /// number places them one after another.
    pub fn accumulator(&self, tile: Tile, row: u32, vector: u32) -> Register {
        self.vector((tile.slot * tile.rows + row) * tile.vectors + vector)
    }

    /// Keeps a fragment that the statement names clear of scratch registers.
    ///
    /// # Errors
    /// The fragment needs more registers than there are.
    pub fn keep(&mut self, tile: Tile) -> Result<(), CpuError> {
        self.floor = self.floor.max((tile.slot + 1) * tile.rows * tile.vectors);
        self.check()
    }

    fn check(&self) -> Result<(), CpuError> {
        if self.floor <= self.top {
            return Ok(());
        }
        let registers = self.isa.registers();
        Err(CpuError::unsupported(format!(
            "a register tile that needs {} of {registers} vector registers",
            self.floor + registers - self.top
        )))
    }

    /// A vector register for the rest of the statement, from the highest downward.
    pub fn scratch(&mut self) -> Result<Register, CpuError> {
        self.top = self.top.saturating_sub(1);
        self.check()?;
        Ok(self.vector(self.top))
    }

    /// Vector registers that [`Self::scratch`] can still give.
    pub fn scratch_left(&self) -> u32 {
        self.top.saturating_sub(self.floor)
    }

    pub fn push(&mut self, instruction: Instruction) -> Result<(), CpuError> {
        Ok(self.asm.add_instruction(instruction)?)
    }

    /// `to = from1 ∘ from2` on registers.
    pub fn op3(
        &mut self,
        code: Code,
        to: Register,
        a: Register,
        b: Register,
    ) -> Result<(), CpuError> {
        let instruction = Instruction::with3(code, to, a, b)?;
        self.push(instruction)
    }

    /// Sets a vector register to +0.
    pub fn zero(&mut self, to: Register) -> Result<(), CpuError> {
        let code = match self.isa {
            CpuIsa::Avx512 => Code::EVEX_Vpxord_zmm_k1z_zmm_zmmm512b32,
            _ => Code::VEX_Vpxor_ymm_ymm_ymmm256,
        };
        self.op3(code, to, to, to)
    }

    /// The lowest element, given in a general register, in every lane.
    pub fn spread(
        &mut self,
        to: Register,
        from: AsmRegister64,
        dtype: DType,
    ) -> Result<(), CpuError> {
        let low = Register::XMM0 + to.number() as u32;
        if self.isa == CpuIsa::Avx512 {
            let (code, from) = if dtype == DType::F64 {
                (Code::EVEX_Vpbroadcastq_zmm_k1z_r64, Register::from(from))
            } else {
                (Code::EVEX_Vpbroadcastd_zmm_k1z_r32, Register::from(from).full_register32())
            };
            return self.push(Instruction::with2(code, to, from)?);
        }
        let instruction = Instruction::with2(Code::VEX_Vmovq_xmm_rm64, low, Register::from(from))?;
        self.push(instruction)?;
        let code = if dtype == DType::F64 {
            Code::VEX_Vbroadcastsd_ymm_xmm
        } else {
            Code::VEX_Vbroadcastss_ymm_xmm
        };
        self.push(Instruction::with2(code, to, low)?)
    }

    /// Copies a vector register.
    pub fn copy(&mut self, dtype: DType, to: Register, from: Register) -> Result<(), CpuError> {
        let codes = self.codes(dtype)?;
        self.push(Instruction::with2(codes.load, to, from)?)
    }

    /// Loads a vector of elements of the accumulator's type; lanes outside the mask become 0.
    pub fn load(
        &mut self,
        codes: &Codes,
        to: Register,
        from: Address,
        columns: Columns,
    ) -> Result<(), CpuError> {
        let from = from.operand()?;
        let instruction = match (columns, self.isa) {
            (Columns::Empty, _) => return Ok(()),
            (Columns::Full, _) => Instruction::with2(codes.load, to, from)?,
            (Columns::Masked(mask), CpuIsa::Avx512) => {
                masked(Instruction::with2(codes.mask_load, to, from)?, mask, true)
            }
            (Columns::Masked(mask), _) => Instruction::with3(codes.mask_load, to, mask, from)?,
        };
        self.push(instruction)
    }

    /// Stores a vector.
    pub fn store(
        &mut self,
        codes: &Codes,
        from: Register,
        to: Address,
        columns: Columns,
        stream: bool,
    ) -> Result<(), CpuError> {
        let to = to.operand()?;
        let instruction = match (columns, self.isa) {
            (Columns::Empty, _) => return Ok(()),
            (Columns::Full, _) => {
                Instruction::with2(if stream { codes.stream } else { codes.store }, to, from)?
            }
            (Columns::Masked(mask), CpuIsa::Avx512) => {
                masked(Instruction::with2(codes.mask_store, to, from)?, mask, false)
            }
            (Columns::Masked(mask), _) => Instruction::with3(codes.mask_store, to, mask, from)?,
        };
        self.push(instruction)
    }

    /// `acc += factor · register`.
    pub fn fma(
        &mut self,
        codes: &Codes,
        acc: Register,
        factor: Register,
        register: Register,
    ) -> Result<(), CpuError> {
        self.op3(codes.fma, acc, factor, register)
    }

    /// `acc += factor · memory` in the lanes of the columns (AVX2: full vectors only).
    pub fn fma_memory(
        &mut self,
        codes: &Codes,
        acc: Register,
        factor: Register,
        from: Address,
        columns: Columns,
    ) -> Result<(), CpuError> {
        let instruction = Instruction::with3(codes.fma, acc, factor, from.operand()?)?;
        match columns {
            Columns::Empty => Ok(()),
            Columns::Full => self.push(instruction),
            Columns::Masked(mask) => self.push(masked(instruction, mask, false)),
        }
    }

    /// One element of memory in every lane, widened to the accumulator's type.
    pub fn broadcast(
        &mut self,
        codes: &Codes,
        to: Register,
        from: Address,
        dtype: DType,
    ) -> Result<(), CpuError> {
        let from = from.operand()?;
        let wide = self.isa == CpuIsa::Avx512;
        match dtype {
            DType::F32 | DType::F64 => self.push(Instruction::with2(codes.broadcast, to, from)?),
            DType::F16 => {
                let half = self.half(to);
                let (repeat, widen) = if wide {
                    (
                        Code::EVEX_Vpbroadcastw_ymm_k1z_xmmm16,
                        Code::EVEX_Vcvtph2ps_zmm_k1z_ymmm256_sae,
                    )
                } else {
                    (Code::VEX_Vpbroadcastw_xmm_xmmm16, Code::VEX_Vcvtph2ps_ymm_xmmm128)
                };
                self.push(Instruction::with2(repeat, half, from)?)?;
                self.push(Instruction::with2(widen, to, half)?)
            }
            DType::BF16 => {
                // Each 32-bit lane gets the element twice; the shift leaves the upper copy.
                let repeat = if wide {
                    Code::EVEX_Vpbroadcastw_zmm_k1z_xmmm16
                } else {
                    Code::VEX_Vpbroadcastw_ymm_xmmm16
                };
                self.push(Instruction::with2(repeat, to, from)?)?;
                self.shift_left_16(to)
            }
            DType::I32 | DType::Bool => {
                Err(CpuError::unsupported(format!("register tiles with an operand of {dtype}")))
            }
        }
    }

    fn shift_left_16(&mut self, register: Register) -> Result<(), CpuError> {
        let code = if self.isa == CpuIsa::Avx512 {
            Code::EVEX_Vpslld_zmm_k1z_zmmm512b32_imm8
        } else {
            Code::VEX_Vpslld_ymm_ymm_imm8
        };
        self.push(Instruction::with3(code, register, register, 16)?)
    }

    /// Loads a vector of an operand's elements, widened to the accumulator's type.
    pub fn load_operand(
        &mut self,
        codes: &Codes,
        to: Register,
        from: Address,
        dtype: DType,
        columns: Columns,
    ) -> Result<(), CpuError> {
        let wide = self.isa == CpuIsa::Avx512;
        let code = match dtype {
            DType::F32 | DType::F64 => return self.load(codes, to, from, columns),
            DType::F16 if wide => Code::EVEX_Vcvtph2ps_zmm_k1z_ymmm256_sae,
            DType::F16 => Code::VEX_Vcvtph2ps_ymm_xmmm128,
            DType::BF16 if wide => Code::EVEX_Vpmovzxwd_zmm_k1z_ymmm256,
            DType::BF16 => Code::VEX_Vpmovzxwd_ymm_xmmm128,
            DType::I32 | DType::Bool => {
                return Err(CpuError::unsupported(format!(
                    "register tiles with an operand of {dtype}"
                )));
            }
        };
        let instruction = Instruction::with2(code, to, from.operand()?)?;
        match columns {
            Columns::Empty => return Ok(()),
            Columns::Full => self.push(instruction)?,
            Columns::Masked(mask) if wide => self.push(masked(instruction, mask, true))?,
            // AVX2 has no masked access to 16-bit elements.
            Columns::Masked(_) => {
                return Err(CpuError::unsupported(format!(
                    "AVX2 register tiles with a partial vector of {dtype}"
                )));
            }
        }
        if dtype == DType::BF16 { self.shift_left_16(to) } else { Ok(()) }
    }

    /// Reads a location into a register of its own.
    pub fn move_to(&mut self, to: AsmRegister64, from: Loc) -> Result<(), CpuError> {
        match from {
            Loc::Reg(register) if register == to => {}
            Loc::Reg(register) => self.asm.mov(to, register)?,
            Loc::Slot(offset) => self.asm.mov(to, qword_ptr(rsp + offset))?,
            Loc::Const(value) => self.asm.mov(to, value)?,
        }
        Ok(())
    }

    /// The address of a view's first element, in a fresh temp unless the pointer's own register
    /// and a displacement do.
    pub fn address(&mut self, view: &TileView, writable: bool) -> Result<Address, CpuError> {
        let bytes = view.dtype.bytes() as i64;
        if let (Loc::Reg(pointer), Loc::Const(base), false) = (view.pointer, view.base, writable) {
            return Ok(Address { base: pointer, index: None, disp: view.offset + base * bytes });
        }
        let base = self.temp()?;
        let mut disp = view.offset;
        match (view.pointer, view.base) {
            (pointer, Loc::Const(first)) => {
                self.move_to(base, pointer)?;
                disp += first * bytes;
            }
            (Loc::Reg(pointer), Loc::Reg(first)) => {
                self.asm.lea(base, ptr(pointer + first * bytes as i32))?;
            }
            (Loc::Reg(pointer), first) => {
                self.move_to(base, first)?;
                self.asm.lea(base, ptr(pointer + base * bytes as i32))?;
            }
            (pointer, Loc::Reg(first)) => {
                self.move_to(base, pointer)?;
                self.asm.lea(base, ptr(base + first * bytes as i32))?;
            }
            (pointer, first) => {
                let index = self.temp()?;
                self.move_to(base, pointer)?;
                self.move_to(index, first)?;
                self.asm.lea(base, ptr(base + index * bytes as i32))?;
                self.release(index);
            }
        }
        Ok(Address { base, index: None, disp })
    }

    /// A stride in bytes: a constant, or a register.
    pub fn stride(&mut self, stride: Loc, dtype: DType) -> Result<Stride, CpuError> {
        let bytes = dtype.bytes();
        if let Loc::Const(elements) = stride {
            return Ok(Stride::Const(elements * bytes as i64));
        }
        let register = self.temp()?;
        self.move_to(register, stride)?;
        if bytes > 1 {
            self.asm.shl(register, bytes.trailing_zeros())?;
        }
        Ok(Stride::Register(register))
    }

    /// Which lanes of each vector of a tile are valid under a view's column limit.
    ///
    /// Masks take k registers from k1 (AVX-512), or scratch vector registers (AVX2).
    pub fn columns(
        &mut self,
        vectors: u32,
        limit: Option<Loc>,
        dtype: DType,
    ) -> Result<Vec<Columns>, CpuError> {
        let lanes = i64::from(self.lanes);
        let mut columns = Vec::with_capacity(vectors as usize);
        let mut masks = 0;
        for vector in 0..vectors {
            let start = i64::from(vector) * lanes;
            columns.push(match limit {
                None => Columns::Full,
                Some(Loc::Const(limit)) if limit >= start + lanes => Columns::Full,
                Some(Loc::Const(limit)) if limit <= start => Columns::Empty,
                Some(limit) => {
                    masks += 1;
                    Columns::Masked(self.mask(limit, start, dtype, masks)?)
                }
            });
        }
        Ok(columns)
    }

    /// The mask of lanes `l` with `start + l < limit`.
    fn mask(
        &mut self,
        limit: Loc,
        start: i64,
        dtype: DType,
        number: u32,
    ) -> Result<Register, CpuError> {
        let lanes = i64::from(self.lanes);
        let count = self.temp()?;
        // The number of valid lanes, between 0 and all.
        if let Loc::Const(limit) = limit {
            self.asm.mov(count, (limit - start).clamp(0, lanes))?;
        } else {
            let bound = self.temp()?;
            self.move_to(count, limit)?;
            self.asm.sub(count, i32::try_from(start).unwrap_or(i32::MAX))?;
            self.asm.xor(bound, bound)?;
            self.asm.cmp(count, bound)?;
            self.asm.cmovl(count, bound)?;
            self.asm.mov(bound, lanes)?;
            self.asm.cmp(count, bound)?;
            self.asm.cmovg(count, bound)?;
            self.release(bound);
        }
        let mask = if self.isa == CpuIsa::Avx512 {
            if number > 7 {
                return Err(CpuError::unsupported("a register tile with more than 7 masks"));
            }
            let ones = self.temp()?;
            self.asm.mov(ones, -1_i64)?;
            self.asm.bzhi(ones, ones, count)?;
            let mask = Register::K0 + number;
            let low = Register::from(ones).full_register32();
            self.push(Instruction::with2(Code::VEX_Kmovw_kr_r32, mask, low)?)?;
            self.release(ones);
            mask
        } else {
            let mask = self.scratch()?;
            // The counts are needed for a moment only.
            let counts = self.scratch()?;
            self.top += 1;
            let (low_mask, low_counts) = (self.half(mask), self.half(counts));
            let iota = self.temp()?;
            self.asm.mov(iota, 0x0706_0504_0302_0100_i64)?;
            self.push(Instruction::with2(
                Code::VEX_Vmovq_xmm_rm64,
                low_mask,
                Register::from(iota),
            )?)?;
            self.push(Instruction::with2(
                Code::VEX_Vmovq_xmm_rm64,
                low_counts,
                Register::from(count),
            )?)?;
            let (extend, repeat, greater) = if dtype == DType::F64 {
                (
                    Code::VEX_Vpmovzxbq_ymm_xmmm32,
                    Code::VEX_Vpbroadcastq_ymm_xmmm64,
                    Code::VEX_Vpcmpgtq_ymm_ymm_ymmm256,
                )
            } else {
                (
                    Code::VEX_Vpmovzxbd_ymm_xmmm64,
                    Code::VEX_Vpbroadcastd_ymm_xmmm32,
                    Code::VEX_Vpcmpgtd_ymm_ymm_ymmm256,
                )
            };
            self.push(Instruction::with2(extend, mask, low_mask)?)?;
            self.push(Instruction::with2(repeat, counts, low_counts)?)?;
            self.op3(greater, mask, counts, mask)?;
            self.release(iota);
            mask
        };
        self.release(count);
        Ok(mask)
    }
}

/// A stride in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stride {
    /// Known.
    Const(i64),
    /// In a general register.
    Register(AsmRegister64),
}

fn masked(mut instruction: Instruction, mask: Register, zeroing: bool) -> Instruction {
    instruction.set_op_mask(mask);
    instruction.set_zeroing_masking(zeroing);
    instruction
}
