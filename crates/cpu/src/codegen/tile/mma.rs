//! `acc += A·B` as rank-1 updates: for each k, the B row is loaded into vector registers and each
//! A element of the column is broadcast and multiplied with it.
//!
//! Broadcasting into a register is 5 to 25 % faster than an embedded broadcast per multiplication
//! on the machines measured (Zen 5: 2 loads and 2 multiply-adds a cycle), and it works in place
//! on either storage order of A, so A needs no transposing copy.

use iced_x86::Register;
use iced_x86::code_asm::AsmRegister64;
use tilewright_plan::mapping::CpuIsa;

use super::emitter::{Address, Codes, Columns, Emitter, Stride};
use super::memory::{check_contiguous, valid_rows};
use super::{Loc, Tile, TileView};
use crate::error::CpuError;

/// Rank-1 updates per trip of the K loop.
const UNROLL: u32 = 4;

/// The same where rows of B are a page or more apart and so few that they stay in the second
/// level: each load instruction then steps from row to row in strides that the first level's
/// prefetcher follows (267 against 232 GFLOP/s for 256x1024x128 on Zen 5). With more rows, B comes
/// from memory, and more of them at once are better (108 against 87 GFLOP/s for 8x4096x4096).
const UNROLL_PAGED: u32 = 2;
const PAGE: i64 = 4096;
const PAGED_DEPTH: i64 = 256;

/// A known depth is laid out without a loop up to this many multiply-adds.
const STRAIGHT: u64 = 144;

/// Registers for broadcast A elements, if there are so many.
const A_REGISTERS: u32 = 4;

/// Rows whose A pointers one base register serves when the row stride is in a register.
const ROWS_PER_BASE: u32 = 4;

fn varies(loc: Loc) -> usize {
    usize::from(!matches!(loc, Loc::Const(_)))
}

/// General registers: pointers and strides of A and B, and a counter.
pub(super) fn temps(acc: Tile, a: &TileView, b: &TileView, depth: Loc) -> usize {
    let rows =
        if varies(a.row_stride) == 0 { 1 } else { 2 + acc.rows.div_ceil(ROWS_PER_BASE) as usize };
    // While addresses are made one more is in use; the counter isn't yet.
    let _ = depth;
    rows + varies(a.col_stride) + 1 + varies(b.row_stride) + 1
}

/// Vector registers: the B row, `masks` for partial vectors, and those for broadcasts.
pub(super) fn scratch(acc: Tile, isa: CpuIsa, masks: u32) -> u32 {
    let fixed = acc.vectors + masks;
    let left = isa.registers().saturating_sub((acc.slot + 1) * acc.rows * acc.vectors + fixed);
    fixed + left.clamp(1, A_REGISTERS)
}

/// The A operand while the K loop runs.
struct Left {
    /// One pointer per [`ROWS_PER_BASE`] rows, or a single one if the row stride is known.
    bases: Vec<Address>,
    rows: LeftRows,
    step: Stride,
}

enum LeftRows {
    /// Bytes from row to row.
    Const(i64),
    /// The row stride and three times it, in registers.
    Registers(AsmRegister64, AsmRegister64),
}

impl Left {
    fn new(e: &mut Emitter<'_>, view: &TileView, rows: u32) -> Result<Left, CpuError> {
        let start = e.address(view, true)?;
        let mut bases = vec![start];
        let rows = match e.stride(view.row_stride, view.dtype)? {
            Stride::Const(bytes) => LeftRows::Const(bytes),
            Stride::Register(stride) => {
                for group in 1..rows.div_ceil(ROWS_PER_BASE) {
                    let base = e.temp()?;
                    let before: AsmRegister64 = bases[group as usize - 1].base;
                    e.asm.lea(base, iced_x86::code_asm::ptr(before + stride * 4))?;
                    bases.push(Address { base, ..start });
                }
                let triple = e.temp()?;
                e.asm.lea(triple, iced_x86::code_asm::ptr(stride + stride * 2))?;
                LeftRows::Registers(stride, triple)
            }
        };
        let step = e.stride(view.col_stride, view.dtype)?;
        Ok(Left { bases, rows, step })
    }

    /// Address of element (row, k) where `k` counts from the pointers' place.
    fn at(&self, row: u32, k: u32) -> Address {
        let along = match self.step {
            Stride::Const(step) => i64::from(k) * step,
            // The pointers move after every k.
            Stride::Register(_) => 0,
        };
        match self.rows {
            LeftRows::Const(stride) => self.bases[0].plus(i64::from(row) * stride + along),
            LeftRows::Registers(stride, triple) => {
                let base = self.bases[(row / ROWS_PER_BASE) as usize].plus(along);
                let index = match row % ROWS_PER_BASE {
                    0 => None,
                    1 => Some((stride, 1)),
                    2 => Some((stride, 2)),
                    _ => Some((triple, 1)),
                };
                Address { index, ..base }
            }
        }
    }

    /// Moves on after one k if the step is in a register.
    fn after_k(&self, e: &mut Emitter<'_>) -> Result<(), CpuError> {
        if let Stride::Register(step) = self.step {
            for base in &self.bases {
                e.asm.add(base.base, step)?;
            }
        }
        Ok(())
    }

    /// Moves on after `count` k's if the step is known.
    fn after_trip(&self, e: &mut Emitter<'_>, count: u32) -> Result<(), CpuError> {
        if let Stride::Const(step) = self.step {
            for base in &self.bases {
                advance(e, base.base, i64::from(count) * step)?;
            }
        }
        Ok(())
    }
}

/// Adds a number of bytes to a pointer.
fn advance(e: &mut Emitter<'_>, pointer: AsmRegister64, bytes: i64) -> Result<(), CpuError> {
    let bytes = i32::try_from(bytes)
        .map_err(|_| CpuError::unsupported("a register tile with a stride beyond 2 GiB"))?;
    if bytes != 0 {
        e.asm.add(pointer, bytes)?;
    }
    Ok(())
}

/// One product while it is emitted.
struct Product<'v> {
    acc: Tile,
    codes: Codes,
    a: &'v TileView,
    b: &'v TileView,
    rows: u32,
    columns: Vec<Columns>,
    /// Vector registers of the B row; `None` where each B vector is used once, straight from
    /// memory.
    b_registers: Option<Vec<Register>>,
    /// Registers for broadcast A elements, used in turn.
    a_registers: Vec<Register>,
    left: Left,
    right: Address,
    right_step: Stride,
}

impl Product<'_> {
    /// The rank-1 update of the k-th element from the pointers' place.
    fn update(&self, e: &mut Emitter<'_>, k: u32) -> Result<(), CpuError> {
        let along = match self.right_step {
            Stride::Const(step) => i64::from(k) * step,
            Stride::Register(_) => 0,
        };
        let width = i64::from(e.lanes) * self.b.dtype.bytes() as i64;
        let from = |vector: usize| self.right.plus(along + vector as i64 * width);
        if let Some(registers) = &self.b_registers {
            for (vector, register) in registers.iter().enumerate() {
                let columns = self.columns[vector];
                e.load_operand(&self.codes, *register, from(vector), self.b.dtype, columns)?;
            }
        }
        for row in 0..self.rows {
            let turn = (k * self.rows + row) as usize % self.a_registers.len();
            let factor = self.a_registers[turn];
            e.broadcast(&self.codes, factor, self.left.at(row, k), self.a.dtype)?;
            for (vector, columns) in self.columns.iter().enumerate() {
                if *columns == Columns::Empty {
                    continue;
                }
                let acc = e.accumulator(self.acc, row, vector as u32);
                match &self.b_registers {
                    Some(registers) => e.fma(&self.codes, acc, factor, registers[vector])?,
                    None => e.fma_memory(&self.codes, acc, factor, from(vector), *columns)?,
                }
            }
        }
        self.left.after_k(e)?;
        if let Stride::Register(step) = self.right_step {
            e.asm.add(self.right.base, step)?;
        }
        Ok(())
    }

    /// `count` updates, then the pointers move past them.
    fn trip(&self, e: &mut Emitter<'_>, count: u32, more: bool) -> Result<(), CpuError> {
        for k in 0..count {
            self.update(e, k)?;
        }
        if more {
            self.left.after_trip(e, count)?;
            if let Stride::Const(step) = self.right_step {
                advance(e, self.right.base, i64::from(count) * step)?;
            }
        }
        Ok(())
    }
}

/// Emits the product.
pub(super) fn mma(
    e: &mut Emitter<'_>,
    acc: Tile,
    a: &TileView,
    b: &TileView,
    depth: Loc,
) -> Result<(), CpuError> {
    if matches!(depth, Loc::Const(n) if n <= 0) {
        return Ok(());
    }
    let codes = e.codes(acc.dtype)?;
    check_contiguous(b)?;
    if acc.dtype == tilewright_ir::DType::F64 && (a.dtype, b.dtype) != (acc.dtype, acc.dtype) {
        return Err(CpuError::unsupported(format!("products of {} in f64", a.dtype)));
    }
    let rows = valid_rows(acc, a.rows)?;
    e.keep(acc)?;
    let columns = e.columns(acc.vectors, b.cols, acc.dtype)?;
    // With one row every B vector is used once: it stays in memory. AVX2 has no masked memory
    // operands, and 16-bit elements need widening.
    let from_memory = rows == 1
        && b.dtype == acc.dtype
        && columns.iter().all(|c| match c {
            Columns::Masked(_) => e.isa == CpuIsa::Avx512,
            _ => true,
        });
    let b_registers = if from_memory {
        None
    } else {
        Some((0..acc.vectors).map(|_| e.scratch()).collect::<Result<Vec<_>, _>>()?)
    };
    let count = e.scratch_left().clamp(1, A_REGISTERS);
    let a_registers = (0..count).map(|_| e.scratch()).collect::<Result<Vec<_>, _>>()?;

    let left = Left::new(e, a, rows)?;
    let right = e.address(b, true)?;
    let right_step = e.stride(b.row_stride, b.dtype)?;
    let counter = e.temp()?;
    let product = Product {
        acc,
        codes,
        a,
        b,
        rows,
        columns,
        b_registers,
        a_registers,
        left,
        right,
        right_step,
    };
    let updates = u64::from(rows) * u64::from(acc.vectors);
    let unroll = match (product.right_step, depth) {
        (Stride::Const(step), Loc::Const(depth)) if step >= PAGE && depth <= PAGED_DEPTH => {
            UNROLL_PAGED
        }
        _ => UNROLL,
    };
    match depth {
        Loc::Const(depth) => {
            let depth = depth as u64;
            if depth * updates <= STRAIGHT || depth <= u64::from(unroll) {
                return product.trip(e, depth as u32, false);
            }
            let trips = depth / u64::from(unroll);
            let rest = (depth % u64::from(unroll)) as u32;
            if trips == 1 {
                return product.trip(e, depth as u32, false);
            }
            e.asm.mov(counter, trips as i64)?;
            let mut head = e.asm.create_label();
            e.asm.set_label(&mut head)?;
            product.trip(e, unroll, true)?;
            e.asm.dec(counter)?;
            e.asm.jne(head)?;
            product.trip(e, rest, false)
        }
        depth => {
            let mut tail = e.asm.create_label();
            let mut end = e.asm.create_label();
            let mut head = e.asm.create_label();
            let mut single = e.asm.create_label();
            e.move_to(counter, depth)?;
            e.asm.sub(counter, UNROLL as i32)?;
            e.asm.jl(tail)?;
            e.asm.set_label(&mut head)?;
            product.trip(e, UNROLL, true)?;
            e.asm.sub(counter, UNROLL as i32)?;
            e.asm.jge(head)?;
            e.asm.set_label(&mut tail)?;
            e.asm.add(counter, UNROLL as i32)?;
            e.asm.jle(end)?;
            e.asm.set_label(&mut single)?;
            product.trip(e, 1, true)?;
            e.asm.dec(counter)?;
            e.asm.jne(single)?;
            e.asm.set_label(&mut end)?;
            // A label needs an instruction of the same statement.
            e.asm.nop()?;
            Ok(())
        }
    }
}
