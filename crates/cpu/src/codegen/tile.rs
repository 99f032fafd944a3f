//! Register tiles: statements on fragments of [`Atom::OuterProduct`].
//!
//! The general emitter walks the kernel, keeps index values in general registers, and hands each
//! fragment statement to [`emit`] as a [`TileOp`]. The tile emitter appends instructions to a
//! [`CodeAssembler`] of its own; the general emitter encodes them in place (so labels work, but
//! there is no constant pool). The contract:
//!
//! - While a fragment is live the general emitter places no vector or mask instruction, so every
//!   vector and mask register is free except those that hold fragments. All live fragments have
//!   one shape; fragment `slot` holds the [`registers`] from `slot · registers` on. A statement
//!   may clobber mask registers, and [`scratch`] vector registers from the highest downward.
//! - General registers: only [`TileContext::temps`] may be written ([`temps`] says how many a
//!   statement needs; at most [`MAX_TEMPS`]). Operands are read where [`Loc`] says and never lie
//!   in a temp. `rsp` stays as it is.
//! - Flags are free.
//! - Index values are in elements; `Loc::Reg` and `Loc::Slot` hold 64-bit integers.
//!
//! [`Atom::OuterProduct`]: tilewright_kernel::kernel::Atom::OuterProduct

mod emitter;
mod map;
mod memory;
mod mma;
#[cfg(test)]
mod tests;

use iced_x86::code_asm::{AsmRegister64, CodeAssembler};
use tilewright_ir::DType;
use tilewright_ir::program::MapOp;
use tilewright_plan::mapping::CpuIsa;

use crate::error::CpuError;
use emitter::Emitter;

/// Most general registers that a tile statement may ask for.
pub const MAX_TEMPS: usize = 10;

/// Where a 64-bit integer is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Loc {
    /// In a general register (never a temp; read only).
    Reg(AsmRegister64),
    /// In the stack frame at `[rsp + offset]`.
    Slot(i32),
    /// Known.
    Const(i64),
}

/// A fragment: `rows` × `vectors` accumulators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tile {
    /// Which of the fragments that are live at the same time, from 0. A carried fragment, and an
    /// accumulator before and after its `mma` or in-place map, have one number.
    pub slot: u32,
    /// Rows (mr).
    pub rows: u32,
    /// Vectors of [`TileContext::lanes`] elements per row (nv).
    pub vectors: u32,
    /// Element type.
    pub dtype: DType,
}

/// A two-dimensional window. Element (r, c) is at
/// `pointer + offset + (base + r·row_stride + c·col_stride)·dtype.bytes()`.
///
/// `L` is how a location is named: [`Loc`] for the emitter, virtual registers before allocation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TileView<L = Loc> {
    /// Address of the memory.
    pub pointer: L,
    /// Bytes to add to the pointer (the place of a shared buffer in the scratch).
    pub offset: i64,
    /// Element type in memory.
    pub dtype: DType,
    /// First element, in elements.
    pub base: L,
    /// Elements from row to row.
    pub row_stride: L,
    /// Elements from column to column.
    pub col_stride: L,
    /// Valid rows, if not all; may exceed the tile or be negative.
    pub rows: Option<L>,
    /// Valid columns, if not all; may exceed the tile or be negative.
    pub cols: Option<L>,
}

/// An operand of [`TileOp::Map`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum TileArg {
    /// A fragment.
    Tile(Tile),
    /// One element in memory at `[rsp + offset]`, the same for the whole tile (of the fragment's
    /// type; for the condition of `select` a 64-bit 0 or 1).
    Slot(i32),
}

/// A statement on register tiles.
#[derive(Clone, PartialEq, Debug)]
pub enum TileOp<L = Loc> {
    /// Every element equal.
    Fill {
        /// Destination.
        to: Tile,
        /// The value.
        value: f64,
    },
    /// Reads a tile; 0 beyond the valid extents.
    Load {
        /// Destination.
        to: Tile,
        /// Where from.
        view: TileView<L>,
    },
    /// Writes a tile; nothing beyond the valid extents.
    Store {
        /// What.
        from: Tile,
        /// Where to.
        view: TileView<L>,
        /// Write whole aligned vectors around the caches. A kernel that asks for it ends with a
        /// store fence.
        stream: bool,
    },
    /// Elementwise operation.
    Map {
        /// The operation.
        op: MapOp,
        /// Destination (may equal an operand).
        to: Tile,
        /// Operands.
        args: Vec<TileArg>,
    },
    /// `acc += a·b` over `depth` rank-1 updates: A is rows × depth, B is depth × columns.
    Mma {
        /// Accumulator.
        acc: Tile,
        /// Left operand.
        a: TileView<L>,
        /// Right operand.
        b: TileView<L>,
        /// K.
        depth: L,
    },
}

impl<L: Copy> TileView<L> {
    /// The view with every location renamed.
    pub fn map<M>(&self, f: &mut impl FnMut(L) -> M) -> TileView<M> {
        TileView {
            pointer: f(self.pointer),
            offset: self.offset,
            dtype: self.dtype,
            base: f(self.base),
            row_stride: f(self.row_stride),
            col_stride: f(self.col_stride),
            rows: self.rows.map(&mut *f),
            cols: self.cols.map(&mut *f),
        }
    }
}

impl<L: Copy> TileOp<L> {
    /// The statement with every location renamed.
    pub fn map<M>(&self, f: &mut impl FnMut(L) -> M) -> TileOp<M> {
        match self {
            TileOp::Fill { to, value } => TileOp::Fill { to: *to, value: *value },
            TileOp::Load { to, view } => TileOp::Load { to: *to, view: view.map(f) },
            TileOp::Store { from, view, stream } => {
                TileOp::Store { from: *from, view: view.map(f), stream: *stream }
            }
            TileOp::Map { op, to, args } => TileOp::Map { op: *op, to: *to, args: args.clone() },
            TileOp::Mma { acc, a, b, depth } => {
                TileOp::Mma { acc: *acc, a: a.map(f), b: b.map(f), depth: f(*depth) }
            }
        }
    }
}

/// What a tile statement may use.
#[derive(Clone, Copy, Debug)]
pub struct TileContext<'a> {
    /// Instruction set: AVX-512 or AVX2.
    pub isa: CpuIsa,
    /// Lanes of one vector of the kernel.
    pub lanes: u32,
    /// General registers that may be overwritten, [`temps`] of them.
    pub temps: &'a [AsmRegister64],
}

/// Vector registers that a fragment occupies. The general emitter refuses kernels whose live
/// fragments need more than the instruction set has.
pub fn registers(tile: Tile) -> u32 {
    tile.rows * tile.vectors
}

/// Vector registers that a statement clobbers, from the highest downward: `registers` times the
/// live fragments, plus this, is at most what the instruction set has.
pub fn scratch(op: &TileOp, isa: CpuIsa) -> u32 {
    // One vector per mask, and one while they are made.
    let masks = |view: &TileView, vectors: u32| match (isa, view.cols) {
        (CpuIsa::Avx512, _) | (_, None) => 0,
        (_, Some(Loc::Const(_))) => 2,
        (_, Some(_)) => vectors + 1,
    };
    match op {
        TileOp::Fill { .. } => 0,
        TileOp::Load { to: tile, view } | TileOp::Store { from: tile, view, .. } => {
            masks(view, tile.vectors)
        }
        TileOp::Map { args, .. } => {
            args.iter().filter(|a| matches!(a, TileArg::Slot(_))).count() as u32
        }
        TileOp::Mma { acc, b, .. } => mma::scratch(*acc, isa, masks(b, acc.vectors)),
    }
}

/// How many general registers a statement needs.
pub fn temps(op: &TileOp) -> usize {
    match op {
        TileOp::Fill { .. } => 1,
        TileOp::Map { .. } => 0,
        TileOp::Load { view, .. } | TileOp::Store { view, .. } => memory::temps(view),
        TileOp::Mma { a, b, depth, acc } => mma::temps(*acc, a, b, *depth),
    }
}

/// Appends the instructions of a statement.
///
/// # Errors
/// [`CpuError::Unsupported`] for element types, strides or operations that register tiles don't
/// have.
pub fn emit(
    op: &TileOp,
    context: &TileContext<'_>,
    asm: &mut CodeAssembler,
) -> Result<(), CpuError> {
    let mut emitter = Emitter::new(context, asm);
    match op {
        TileOp::Fill { to, value } => memory::fill(&mut emitter, *to, *value),
        TileOp::Load { to, view } => memory::load(&mut emitter, *to, view),
        TileOp::Store { from, view, stream } => memory::store(&mut emitter, *from, view, *stream),
        TileOp::Map { op, to, args } => map::map(&mut emitter, *op, *to, args),
        TileOp::Mma { acc, a, b, depth } => mma::mma(&mut emitter, *acc, a, b, *depth),
    }
}
