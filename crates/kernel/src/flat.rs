//! A kernel as a flat list of instructions with jumps, its values placed in register files: what
//! interpreters run. The simulator and the portable path of the CPU both do.
//!
//! Who flattens says in which file a value of each class lives ([`flatten`]). A *uniform* value
//! (of a scope wider than the lane) has one slot, others have a slot per lane.

mod compile;

pub use compile::flatten;

use crate::kernel::*;
use tilewright_ir::DType;
use tilewright_ir::program::{MapOp, ReduceOp};

/// An element value: `lanes` slots, or one slot that all lanes share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reg {
    /// First slot in its file.
    pub at: u32,
    /// 1: a slot per lane; 0: shared.
    pub step: u16,
    /// The file.
    pub file: u16,
}

impl Reg {
    /// A shared slot of file 0.
    pub fn shared(at: u32) -> Self {
        Reg { at, step: 0, file: 0 }
    }

    /// The slot of a lane.
    #[inline]
    pub fn slot(self, lane: usize) -> usize {
        self.at as usize + lane * usize::from(self.step)
    }

    /// Number of slots for so many lanes.
    #[inline]
    pub fn slots(self, lanes: usize) -> usize {
        if self.step == 0 { 1 } else { lanes }
    }
}

/// Where a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// In a register file.
    Reg(Reg),
    /// A fragment, by number.
    Fragment(u32),
    /// A token, by number.
    Token(u32),
}

/// What an element value is to an interpreter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// A 64-bit integer.
    Index,
    /// A 32-bit integer.
    I32,
    /// 0 or 1.
    Bool,
    /// A float of the type.
    Float(DType),
}

impl Class {
    /// The class of an element type.
    pub fn of(elem: Elem) -> Class {
        match elem {
            Elem::Index => Class::Index,
            Elem::Data(DType::I32) => Class::I32,
            Elem::Data(DType::Bool) => Class::Bool,
            Elem::Data(dtype) => Class::Float(dtype),
        }
    }
}

/// Copies of values; all sources are read before any destination is written.
#[derive(Clone, Debug, Default)]
pub struct Moves {
    /// Source and destination.
    pub list: Box<[(Slot, Slot)]>,
    /// One after another gives the same: no destination is a later source.
    pub direct: bool,
}

impl Moves {
    fn new(list: Box<[(Slot, Slot)]>) -> Self {
        let direct =
            (0..list.len()).all(|i| list[i + 1..].iter().all(|(from, _)| *from != list[i].1));
        Moves { list, direct }
    }
}

/// A [`Place`] with its guard.
#[derive(Clone, Debug)]
pub struct At {
    /// The memory.
    pub memory: Memory,
    /// Its element type.
    pub dtype: DType,
    /// First element.
    pub base: Reg,
    /// Elements from lane to lane.
    pub lane_stride: i64,
    /// Added per lane.
    pub index: Option<Reg>,
    /// Elements per lane.
    pub width: u32,
    /// Which of them take part.
    pub guard: Option<Test>,
    /// One access stands for all lanes: nothing in it differs by lane.
    pub uniform: bool,
}

/// A [`GuardTest`].
#[derive(Clone, Copy, Debug)]
pub enum Test {
    /// Those whose number is below the value.
    Count(Reg),
    /// Those of lanes whose value is true.
    Mask(Reg),
}

/// A [`View`].
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The memory.
    pub memory: Memory,
    /// Its element type.
    pub dtype: DType,
    /// First element.
    pub base: Reg,
    /// Elements from row to row.
    pub row_stride: Reg,
    /// Elements from column to column.
    pub col_stride: Reg,
    /// Valid rows, if not all.
    pub rows: Option<Reg>,
    /// Valid columns, if not all.
    pub cols: Option<Reg>,
}

/// An [`Operand`].
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// A fragment, by number.
    Fragment(u32),
    /// Memory.
    Window(Window),
}

/// The type of a fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The atom.
    pub atom: Atom,
    /// Operand or accumulator.
    pub role: FragmentRole,
    /// Element type.
    pub dtype: DType,
}

/// An operand of an elementwise operation on fragments.
#[derive(Clone, Copy, Debug)]
pub enum FragmentArg {
    /// A fragment, by number.
    Fragment(u32),
    /// One value for all elements.
    Element(Reg),
}

/// `dst = a·b + c`.
#[derive(Clone, Debug)]
pub struct Multiply {
    /// Type of the accumulator.
    pub shape: Shape,
    /// Left operand.
    pub a: Source,
    /// Right operand.
    pub b: Source,
    /// Accumulator.
    pub c: u32,
    /// K of atoms that take any.
    pub depth: Option<Reg>,
    /// Result.
    pub dst: u32,
    /// The token of an asynchronous atom.
    pub token: Option<u32>,
}

/// A loop.
#[derive(Clone, Debug)]
pub struct Loop {
    /// Counter.
    pub index: Reg,
    /// First value.
    pub lo: Reg,
    /// End, exclusive.
    pub hi: Reg,
    /// Distance.
    pub step: i64,
    /// Initial to inner.
    pub enter: Moves,
    /// Next to inner.
    pub again: Moves,
    /// Inner to results.
    pub leave: Moves,
    /// First instruction of the body.
    pub body: usize,
    /// The instruction after the loop.
    pub exit: usize,
}

/// A bulk copy.
#[derive(Clone, Debug)]
pub struct TensorCopy {
    /// The tensor map.
    pub map: ArgId,
    /// Coordinates, outermost first.
    pub coords: Box<[Reg]>,
    /// Destination.
    pub to: SharedId,
    /// First element in it.
    pub offset: Reg,
    /// Barrier array.
    pub mbarrier: MbarrierId,
    /// Which of its barriers.
    pub stage: Reg,
}

/// An instruction. Fields are those of the [`Op`] of that name.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
#[rustfmt::skip]
pub enum Inst {
    /// Sets all slots to a literal: the bits of an i64, or of an f64 for float classes.
    Fill { dst: Reg, class: Class, bits: u64 },
    /// Sets all slots to a number argument.
    Arg { dst: Reg, class: Class, arg: ArgId },
    GroupId { dst: Reg, dim: u32 },
    ClusterRank { dst: Reg },
    SubgroupId { dst: Reg },
    Lane { dst: Reg },
    /// The class is that of the operands (of `select`: of the last two).
    Map { op: MapOp, class: Class, dst: Reg, args: [Reg; 3] },
    Fma { dtype: DType, dst: Reg, args: [Reg; 3] },
    Cast { dst: Reg, to: Class, src: Reg, from: Class },
    Load { at: Box<At>, dst: Box<[Reg]>, fill: f64 },
    Store { at: Box<At>, src: Box<[Reg]> },
    Atomic { at: Box<At>, op: Option<ReduceOp>, value: Reg, dst: Reg, order: Order, scope: Scope },
    Collective { op: Collective, class: Class, dst: Reg, src: Reg },
    Barrier(BarrierId),
    BarrierArrive(BarrierId),
    BarrierWait(BarrierId),
    ProxyFence,
    LoopEnter(Box<Loop>),
    LoopAgain(Box<Loop>),
    /// Jumps to `otherwise` where the shared condition is false.
    Branch { cond: Reg, otherwise: usize },
    Jump(usize),
    Move(Moves),
    /// Splits the lanes; jumps to `otherwise` where no lane holds the condition.
    Split { cond: Reg, otherwise: usize },
    /// The other lanes take over; jumps to `exit` where there are none.
    Other { exit: usize },
    /// All lanes of before the split.
    Rejoin,
    /// Jumps to `exit` in subgroups outside `first .. first + count`.
    Role { first: u32, count: u32, exit: usize },
    FragmentFill { dst: u32, shape: Shape, value: f64 },
    FragmentLoad { dst: u32, shape: Shape, window: Window },
    FragmentStore { src: u32, shape: Shape, window: Window },
    FragmentMap { op: MapOp, dst: u32, shape: Shape, args: Box<[FragmentArg]> },
    FragmentCast { dst: u32, src: u32, dtype: DType },
    Multiply(Box<Multiply>),
    CopyAsync { to: Box<At>, from: Box<At>, token: u32 },
    CopyTensor(Box<TensorCopy>),
    MbarrierInit { mbarrier: MbarrierId, stage: Reg },
    MbarrierArrive { mbarrier: MbarrierId, stage: Reg, expect: Option<Reg> },
    MbarrierWait { mbarrier: MbarrierId, stage: Reg, parity: Reg },
    Wait { tokens: Box<[u32]>, pending: u32 },
    /// The subgroup is done.
    End,
}

/// The program of every subgroup.
#[derive(Debug)]
pub struct Code {
    /// The instructions. The first one starts, [`Inst::End`] is the last.
    pub insts: Vec<Inst>,
    /// Number of the statement of each instruction, in the order of the text.
    pub statements: Vec<u32>,
    /// Slots of each register file.
    pub registers: Vec<usize>,
    /// Number of fragments.
    pub fragments: usize,
    /// Number of tokens.
    pub tokens: usize,
}
