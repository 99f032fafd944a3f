//! The linear intermediate form between kernel statements and machine code: x86 instructions
//! over virtual registers, with structured loops.

use iced_x86::{Code, Register};
use tilewright_plan::mapping::CpuIsa;

use super::ops::VOp;
use super::tile::TileOp;

/// A virtual register.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct V(pub u32);

/// A register file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bank {
    /// General registers, 64 bits.
    Gpr,
    /// Vector registers.
    Vec,
    /// Mask registers.
    Mask,
}

/// The width at which an instruction names a register.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum W {
    /// General, 16 bits (stores only).
    R16,
    /// General, 32 bits.
    R32,
    /// General, 64 bits.
    R64,
    /// xmm.
    X,
    /// ymm.
    Y,
    /// zmm.
    Z,
    /// k.
    K,
}

impl W {
    /// Bytes of a vector register of this width.
    pub fn bytes(self) -> u32 {
        match self {
            W::R16 => 2,
            W::R32 => 4,
            W::R64 | W::K => 8,
            W::X => 16,
            W::Y => 32,
            W::Z => 64,
        }
    }

    /// The narrowest vector register that has at least that many bytes.
    pub fn vector(bytes: u32) -> W {
        match bytes {
            0..=16 => W::X,
            17..=32 => W::Y,
            _ => W::Z,
        }
    }
}

/// How an instruction uses a register operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Read.
    Use,
    /// Written, after all operands were read.
    Def,
    /// Read and written.
    UseDef,
    /// Written; must differ from every operand (gathers).
    EarlyDef,
}

/// A constant in the pool that precedes the code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Konst {
    /// A 4-byte pattern in every element.
    B32(u32),
    /// An 8-byte pattern in every element.
    B64(u64),
    /// 32-bit `first + l·step` in lane `l`.
    Iota32(i32, i32),
    /// 64-bit `first + l·step` in element `l` of the register.
    Iota64(i64, i64),
    /// 32-bit elements with the values of successive 4-bit digits.
    Words(u64),
    /// 2^(j/16) as f32 in element j.
    Exp2,
}

/// Base of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// None: the displacement is the address.
    None,
    /// A register.
    Reg(V),
    /// An object in the stack frame.
    Frame(u32),
    /// A constant.
    Pool(Konst),
}

/// A memory operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mem {
    /// Base.
    pub base: Base,
    /// Index register and scale (1, 2, 4, 8). A vector register for gathers.
    pub index: Option<(V, u8)>,
    /// Width of the index register.
    pub index_width: W,
    /// Displacement.
    pub disp: i32,
    /// Whether one element is repeated over the vector.
    pub broadcast: bool,
}

impl Mem {
    /// `[base + disp]`.
    pub fn at(base: V, disp: i32) -> Mem {
        Mem { base: Base::Reg(base), index: None, index_width: W::R64, disp, broadcast: false }
    }

    /// An object of the stack frame.
    pub fn frame(object: u32, disp: i32) -> Mem {
        Mem { base: Base::Frame(object), index: None, index_width: W::R64, disp, broadcast: false }
    }

    /// The same place, `bytes` further on.
    pub fn plus(self, bytes: i32) -> Mem {
        Mem { disp: self.disp + bytes, ..self }
    }
}

/// An operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    /// A virtual register.
    Reg(V, W, Role),
    /// Memory.
    Mem(Mem),
    /// An immediate.
    Imm(i64),
    /// A physical register outside allocation (rax, rdx, rsp).
    Phys(Register),
}

/// One machine instruction.
#[derive(Clone, PartialEq, Debug)]
pub struct Inst {
    /// Encoding.
    pub code: Code,
    /// Operands in the encoding's order.
    pub ops: Vec<Operand>,
    /// Write mask (a mask register; EVEX only).
    pub mask: Option<V>,
    /// With a mask: masked elements become 0 instead of keeping their value.
    pub zeroing: bool,
    /// Which operand may be memory instead of a register.
    pub memory: Option<u8>,
    /// Bytes of an element that the memory operand may repeat (EVEX); 0 for none.
    pub repeats: u8,
}

/// A jump target.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Label(pub u32);

/// A condition of a jump, set or move. The integer conditions are signed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Cc {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Cc {
    /// The opposite condition.
    pub fn negated(self) -> Cc {
        match self {
            Cc::Eq => Cc::Ne,
            Cc::Ne => Cc::Eq,
            Cc::Lt => Cc::Ge,
            Cc::Ge => Cc::Lt,
            Cc::Le => Cc::Gt,
            Cc::Gt => Cc::Le,
        }
    }

    /// Whether it holds.
    pub fn holds(self, a: i64, b: i64) -> bool {
        match self {
            Cc::Eq => a == b,
            Cc::Ne => a != b,
            Cc::Lt => a < b,
            Cc::Le => a <= b,
            Cc::Gt => a > b,
            Cc::Ge => a >= b,
        }
    }
}

/// A call of a helper that works on arrays of lanes.
#[derive(Clone, PartialEq, Debug)]
pub struct Call {
    /// Address of an `extern "sysv64" fn(dst, a, b, n)`.
    pub target: u64,
    /// Operand vectors, with the frame objects they are stored to first.
    pub args: Vec<(Vec<(V, W)>, u32)>,
    /// Result vectors, loaded from the frame object afterwards.
    pub results: (Vec<(V, W)>, u32),
    /// Number of lanes.
    pub lanes: u32,
}

/// A 64-bit integer operand of a tile statement before allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TileInput {
    /// A general register.
    Reg(V),
    /// Known.
    Const(i64),
}

/// One item of the linear form.
#[derive(Clone, PartialEq, Debug)]
pub enum Item {
    /// A machine instruction.
    Inst(Inst),
    /// Register copy; disappears where both get one register.
    Move {
        /// Destination.
        to: V,
        /// Source.
        from: V,
    },
    /// Signed 64-bit division, truncating; `Div` or `Rem` of x86 `idiv`.
    Divide {
        /// Destination.
        to: V,
        /// Dividend.
        a: V,
        /// Divisor.
        b: V,
        /// The remainder instead of the quotient.
        remainder: bool,
    },
    /// A jump target.
    Label(Label),
    /// A jump.
    Jump(Label),
    /// A conditional jump on the flags.
    Branch(Cc, Label),
    /// The items up to the matching end form a loop.
    LoopStart,
    /// End of a loop (after its backward jump).
    LoopEnd,
    /// Items from here on come from the statement with this number in pre-order.
    Stmt(u32),
    /// A helper call.
    Call(Box<Call>),
    /// A fragment becomes live: until the matching close no vector register is free.
    TileOpen,
    /// A fragment is dead.
    TileClose,
    /// A register-tile statement. [`super::tile::TileArg::Slot`] holds a frame object here.
    Tile(Box<TileOp<TileInput>>),
}

/// What is known of a virtual register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VInfo {
    /// Register file.
    pub bank: Bank,
    /// Set for constants: they have no defining item and may be used from the pool.
    pub konst: Option<Konst>,
}

/// A function in the linear form.
#[derive(Clone, Debug, Default)]
pub struct Lir {
    /// Virtual registers.
    pub regs: Vec<VInfo>,
    /// Items in order.
    pub items: Vec<Item>,
    /// Frame objects: bytes and alignment.
    pub frame: Vec<(u32, u32)>,
    /// Number of labels.
    pub labels: u32,
    /// Lanes of a subgroup.
    pub lanes: u32,
    /// The four argument registers of the function in ABI order.
    pub params: [V; 4],
}

impl Default for V {
    fn default() -> Self {
        V(u32::MAX)
    }
}

/// A register read.
pub fn r(v: V, w: W) -> Operand {
    Operand::Reg(v, w, Role::Use)
}

/// A register written.
pub fn d(v: V, w: W) -> Operand {
    Operand::Reg(v, w, Role::Def)
}

/// A register read and written.
pub fn rw(v: V, w: W) -> Operand {
    Operand::Reg(v, w, Role::UseDef)
}

/// An instruction by its encoding.
pub fn inst(code: Code, ops: &[Operand]) -> Item {
    use Code::*;
    let memory = match code {
        Add_r64_rm64
        | And_r64_rm64
        | Or_r64_rm64
        | Cmp_r64_rm64
        | Imul_r64_rm64
        | Imul_r64_rm64_imm32
        | Movsxd_r64_rm32
        | Tzcnt_r64_rm64
        | VEX_Bzhi_r64_rm64_r64
        | Cmove_r64_rm64
        | Cmovne_r64_rm64
        | Cmovl_r64_rm64
        | Cmovle_r64_rm64
        | Cmovg_r64_rm64
        | Cmovge_r64_rm64 => Some(1),
        Cmp_rm64_imm32 => Some(0),
        _ => None,
    };
    Item::Inst(Inst { code, ops: ops.to_vec(), mask: None, zeroing: false, memory, repeats: 0 })
}

/// A vector instruction by name and width.
pub fn vinst(op: VOp, isa: CpuIsa, width: W, ops: &[Operand]) -> Item {
    masked(op, isa, width, ops, None, false)
}

/// A vector instruction under a write mask.
pub fn masked(
    op: VOp,
    isa: CpuIsa,
    width: W,
    ops: &[Operand],
    mask: Option<V>,
    zeroing: bool,
) -> Item {
    let (code, ops) = (op.code(isa, width), ops.to_vec());
    Item::Inst(Inst { code, ops, mask, zeroing, memory: op.memory(isa), repeats: op.repeats })
}
