//! The tile program: what is computed, without a word on how it is mapped to a machine.
//!
//! A program has *dimensions* (sizes), *tensors* over them, a *grid* of independent program
//! instances, and one body that every instance runs. Values in the body are immutable *tiles*.
//! A tile's type is its dtype and a list of *axes*; an axis is an identity with an extent, so
//! two axes of the same length are different axes. Elementwise operations need operands over the
//! same axes ([`Op::Broadcast`] adds axes), [`Op::Reduce`] removes one, and [`Op::Mma`] contracts
//! the axes of its operands that its accumulator lacks. A transposed operand is simply one whose
//! tensor coordinates name the axes in the other order.
//!
//! Everything is held in index-keyed arenas; [`crate::verify`] states the rules that a program
//! obeys, and every other part of the workspace may assume a verified program.

use crate::entity::Arena;
use crate::entity_id;
use crate::types::DType;

entity_id!(/** A dimension. */ DimId, "d");
entity_id!(/** A tensor parameter. */ TensorId, "t");
entity_id!(/** A run-time scalar parameter. */ ScalarId, "s");
entity_id!(/** A tile axis. */ AxisId, "a");
entity_id!(/** An index variable: a grid axis or a loop counter. */ IndexId, "i");
entity_id!(/** A tile value. */ ValueId, "v");
entity_id!(/** An operation. */ OpId, "op");

/// How the size of a dimension is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DimKind {
    /// Known now.
    Static(u64),
    /// Known at launch; the facts are preconditions of the launch, checked there.
    Symbolic {
        /// The size is a multiple of this (1 when nothing is known). Never 0.
        divisor: u64,
        /// The size is at most this.
        max: u64,
    },
    /// A schedule constant (a block extent) that the plan chooses; the default serves the oracle.
    Block {
        /// Extent used where no plan chose one. Never 0.
        default: u64,
    },
}

/// A named dimension.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Dim {
    /// Name in the text form and in messages.
    pub name: String,
    /// How its size is known.
    pub kind: DimKind,
}

/// A size: a number or a dimension.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Extent {
    /// A literal size.
    Const(u64),
    /// The size of a dimension.
    Dim(DimId),
}

/// How a tensor is used by the program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Read only. Inputs are assumed not to alias any output.
    In,
    /// Written only; every element exactly once (see the coverage fact).
    Out,
    /// Read and written (an in-place accumulator such as C of a GEMM with beta). An element is
    /// read only by the program instance that later writes it.
    InOut,
}

/// Strides of a tensor, in elements.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Strides {
    /// Row-major without padding.
    Packed,
    /// One stride per dimension, outermost first. A stride may be a symbolic dimension.
    Explicit(Vec<Extent>),
}

/// A tensor parameter.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Tensor {
    /// Name in the text form and in messages.
    pub name: String,
    /// Element type (never [`DType::Bool`]).
    pub dtype: DType,
    /// Sizes, outermost first. Empty for a single element.
    pub shape: Vec<Extent>,
    /// Strides in elements.
    pub strides: Strides,
    /// The base address is a multiple of this many bytes: a power of two, at least the element
    /// size. A launch precondition.
    pub align: u64,
    /// Direction of use.
    pub access: Access,
}

/// A scalar passed by value at launch.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Scalar {
    /// Name in the text form and in messages.
    pub name: String,
    /// Its type.
    pub dtype: DType,
    /// Launch precondition: the value isn't zero (beta of a GEMM that reads C).
    pub nonzero: bool,
}

/// A tile axis: an identity with an extent.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Axis {
    /// Name in the text form and in messages.
    pub name: String,
    /// Length of the axis. Static after blocks are bound, or a symbolic dimension.
    pub extent: Extent,
}

/// An index variable. It takes the values 0, step, 2·step, … below `extent`; it is an *origin*
/// in elements, not a block number.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct IndexVar {
    /// Name in the text form and in messages.
    pub name: String,
    /// Upper end, exclusive.
    pub extent: Extent,
    /// Distance of successive values. Never 0.
    pub step: Extent,
}

/// An affine origin: a constant plus index variables times integer coefficients.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Origin {
    /// Constant term.
    pub constant: i64,
    /// Terms in order of first mention, no variable twice, no zero coefficient.
    pub terms: Vec<(IndexId, i64)>,
}

impl Origin {
    /// The origin that is one index variable.
    pub fn var(index: IndexId) -> Self {
        Origin { constant: 0, terms: vec![(index, 1)] }
    }

    /// A constant origin.
    pub fn constant(constant: i64) -> Self {
        Origin { constant, terms: Vec::new() }
    }
}

/// One coordinate of a tensor access: origin, plus the position along `axis`, plus the value of a
/// gathered index tile.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Coord {
    /// Where the tile starts in this dimension.
    pub origin: Origin,
    /// The tile axis that runs along this dimension, if any.
    pub axis: Option<AxisId>,
    /// An i32 tile of data-dependent indices (gather). Its axes join the axes of the result.
    pub gather: Option<ValueId>,
}

impl Coord {
    /// A coordinate at an index variable, with no axis.
    pub fn at(index: IndexId) -> Self {
        Coord { origin: Origin::var(index), ..Coord::default() }
    }

    /// A coordinate along an axis from 0.
    pub fn along(axis: AxisId) -> Self {
        Coord { axis: Some(axis), ..Coord::default() }
    }

    /// A coordinate along an axis from an index variable.
    pub fn tile(index: IndexId, axis: AxisId) -> Self {
        Coord { origin: Origin::var(index), axis: Some(axis), gather: None }
    }

    /// A coordinate read from an index tile.
    pub fn gathered(index: ValueId) -> Self {
        Coord { gather: Some(index), ..Coord::default() }
    }
}

/// What happens where a load's coordinates leave the tensor.
#[derive(Clone, Copy, Debug)]
pub enum Bounds {
    /// They never do; the verifier or a launch precondition shows it.
    Assume,
    /// The element is this value instead and memory isn't touched. A store skips the element.
    Fill(f64),
}

impl PartialEq for Bounds {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Bounds::Assume, Bounds::Assume) => true,
            (Bounds::Fill(a), Bounds::Fill(b)) => a.to_bits() == b.to_bits(),
            _ => false,
        }
    }
}

/// An elementwise operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
pub enum MapOp {
    Add,
    Sub,
    Mul,
    /// IEEE division; integer division truncates and division by zero gives 0.
    Div,
    /// Remainder with the sign of the dividend (C `fmod`, integer `%`; by zero gives NaN, 0).
    Mod,
    Neg,
    Abs,
    /// Minimum that is NaN if either operand is NaN.
    Min,
    /// Maximum that is NaN if either operand is NaN.
    Max,
    /// IEEE `minNum`: the other operand where one is NaN.
    MinNum,
    /// IEEE `maxNum`: the other operand where one is NaN.
    MaxNum,
    /// `select(condition, then, else)`.
    Select,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or,
    Not,
    Exp,
    Log,
    Sqrt,
    Tanh,
    /// The error function (exact GELU).
    Erf,
}

impl MapOp {
    /// Every operation, in text order.
    pub const ALL: [MapOp; 26] = [
        MapOp::Add,
        MapOp::Sub,
        MapOp::Mul,
        MapOp::Div,
        MapOp::Mod,
        MapOp::Neg,
        MapOp::Abs,
        MapOp::Min,
        MapOp::Max,
        MapOp::MinNum,
        MapOp::MaxNum,
        MapOp::Select,
        MapOp::Eq,
        MapOp::Ne,
        MapOp::Lt,
        MapOp::Le,
        MapOp::Gt,
        MapOp::Ge,
        MapOp::And,
        MapOp::Or,
        MapOp::Not,
        MapOp::Exp,
        MapOp::Log,
        MapOp::Sqrt,
        MapOp::Tanh,
        MapOp::Erf,
    ];

    /// The name in every text form.
    pub fn name(self) -> &'static str {
        match self {
            MapOp::Add => "add",
            MapOp::Sub => "sub",
            MapOp::Mul => "mul",
            MapOp::Div => "div",
            MapOp::Mod => "mod",
            MapOp::Neg => "neg",
            MapOp::Abs => "abs",
            MapOp::Min => "min",
            MapOp::Max => "max",
            MapOp::MinNum => "minnum",
            MapOp::MaxNum => "maxnum",
            MapOp::Select => "select",
            MapOp::Eq => "eq",
            MapOp::Ne => "ne",
            MapOp::Lt => "lt",
            MapOp::Le => "le",
            MapOp::Gt => "gt",
            MapOp::Ge => "ge",
            MapOp::And => "and",
            MapOp::Or => "or",
            MapOp::Not => "not",
            MapOp::Exp => "exp",
            MapOp::Log => "log",
            MapOp::Sqrt => "sqrt",
            MapOp::Tanh => "tanh",
            MapOp::Erf => "erf",
        }
    }

    /// The operation of that name.
    pub fn from_name(name: &str) -> Option<MapOp> {
        MapOp::ALL.into_iter().find(|op| op.name() == name)
    }

    /// Number of operands.
    pub fn arity(self) -> usize {
        match self {
            MapOp::Neg
            | MapOp::Abs
            | MapOp::Not
            | MapOp::Exp
            | MapOp::Log
            | MapOp::Sqrt
            | MapOp::Tanh
            | MapOp::Erf => 1,
            MapOp::Select => 3,
            _ => 2,
        }
    }

    /// Whether the result is [`DType::Bool`] whatever the operands.
    pub fn is_comparison(self) -> bool {
        matches!(self, MapOp::Eq | MapOp::Ne | MapOp::Lt | MapOp::Le | MapOp::Gt | MapOp::Ge)
    }

    /// Whether operands and result are [`DType::Bool`].
    pub fn is_logical(self) -> bool {
        matches!(self, MapOp::And | MapOp::Or | MapOp::Not)
    }

    /// Whether the operation is defined on floats only.
    pub fn is_float_only(self) -> bool {
        matches!(self, MapOp::Exp | MapOp::Log | MapOp::Sqrt | MapOp::Tanh | MapOp::Erf)
    }
}

/// An algebraic fold over one axis.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
pub enum ReduceOp {
    /// Identity +0.
    Add,
    /// Identity −∞ (integers: the smallest). NaN propagates.
    Max,
    /// Identity +∞ (integers: the largest). NaN propagates.
    Min,
    /// Identity 1.
    Mul,
}

impl ReduceOp {
    /// Every fold.
    pub const ALL: [ReduceOp; 4] = [ReduceOp::Add, ReduceOp::Max, ReduceOp::Min, ReduceOp::Mul];

    /// The name in every text form.
    pub fn name(self) -> &'static str {
        match self {
            ReduceOp::Add => "add",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
            ReduceOp::Mul => "mul",
        }
    }

    /// The exact identity, which an empty axis gives.
    pub fn identity(self, dtype: DType) -> f64 {
        match (self, dtype) {
            (ReduceOp::Add, _) => 0.0,
            (ReduceOp::Mul, _) => 1.0,
            (ReduceOp::Max, DType::I32) => i32::MIN as f64,
            (ReduceOp::Min, DType::I32) => i32::MAX as f64,
            (ReduceOp::Max, _) => f64::NEG_INFINITY,
            (ReduceOp::Min, _) => f64::INFINITY,
        }
    }

    /// The elementwise operation that combines two partial results.
    pub fn combine(self) -> MapOp {
        match self {
            ReduceOp::Add => MapOp::Add,
            ReduceOp::Max => MapOp::Max,
            ReduceOp::Min => MapOp::Min,
            ReduceOp::Mul => MapOp::Mul,
        }
    }
}

/// The order in which a reduction may combine its elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OrderPolicy {
    /// Any tree over any permutation.
    #[default]
    UnorderedTree,
    /// Any tree over the elements in order.
    OrderedTree,
    /// Strictly first to last.
    FoldLeft,
    /// Strictly last to first.
    FoldRight,
}

impl OrderPolicy {
    /// The name in every text form.
    pub fn name(self) -> &'static str {
        match self {
            OrderPolicy::UnorderedTree => "unordered_tree",
            OrderPolicy::OrderedTree => "ordered_tree",
            OrderPolicy::FoldLeft => "fold_left",
            OrderPolicy::FoldRight => "fold_right",
        }
    }
}

/// Whether the iterations of a loop may overlap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LoopKind {
    /// Strictly one after another.
    Serial,
    /// Ordered iterations whose loads may be issued up to `window` iterations ahead (1: none).
    Pipeline {
        /// Number of iterations in flight. Never 0.
        window: u32,
    },
}

/// A value carried from one iteration to the next.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Carry {
    /// Value before the first iteration.
    pub init: ValueId,
    /// The value as the body sees it.
    pub inner: ValueId,
    /// Value that the body hands to the next iteration.
    pub next: ValueId,
}

/// A list of operations in execution order.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Block {
    /// The operations.
    pub ops: Vec<OpId>,
}

/// What an operation does.
#[derive(Clone, Debug)]
pub enum Op {
    /// A scalar tile (no axes) of a literal.
    Const {
        /// The literal, exactly representable in the result's dtype.
        value: f64,
    },
    /// A scalar tile of a run-time scalar parameter.
    Scalar(ScalarId),
    /// An i32 scalar tile: the size of an extent as it is at launch (N of a mean). The extent is
    /// at most 2^31 − 1.
    Size(Extent),
    /// An i32 tile: `origin`, plus the position along `axis` (an iota).
    Index {
        /// First value.
        origin: Origin,
        /// Axis along which it counts.
        axis: Option<AxisId>,
    },
    /// Reads a tile of a tensor. The result is a snapshot.
    Load {
        /// The tensor, not [`Access::Out`].
        tensor: TensorId,
        /// One per dimension of the tensor.
        coords: Vec<Coord>,
        /// What an element outside the tensor is.
        bounds: Bounds,
    },
    /// Writes a tile to a tensor. With [`Bounds::Fill`] elements outside the tensor are skipped
    /// (the fill value is ignored and is 0).
    Store {
        /// The tensor, not [`Access::In`].
        tensor: TensorId,
        /// One per dimension of the tensor; no gather.
        coords: Vec<Coord>,
        /// The tile. Its dtype is the tensor's: nothing narrows silently.
        value: ValueId,
        /// What happens outside the tensor.
        bounds: Bounds,
    },
    /// Elementwise operation on tiles over the same axes.
    Map {
        /// The operation.
        op: MapOp,
        /// Operands.
        args: Vec<ValueId>,
    },
    /// Conversion to the result's dtype, to nearest even.
    Cast(ValueId),
    /// The tile repeated along the axes of the result that it lacks.
    Broadcast(ValueId),
    /// Folds one axis away.
    Reduce {
        /// The fold.
        op: ReduceOp,
        /// The tile.
        value: ValueId,
        /// The axis that disappears.
        axis: AxisId,
        /// Permitted orders.
        order: OrderPolicy,
    },
    /// `a·b + c`. The axes of `a` and `b` that `c` lacks are contracted. The products are exact
    /// to the accumulator's precision; inputs are never narrowed.
    Mma {
        /// Left operand.
        a: ValueId,
        /// Right operand, of the same dtype.
        b: ValueId,
        /// Accumulator: f32 for f16, bf16 and f32 operands, f64 for f64.
        c: ValueId,
        /// Whether the products may be summed in any order.
        allow_reassociation: bool,
    },
    /// The tile with some of its axes replaced by others of the same extent (a new identity for
    /// the same elements).
    Reindex {
        /// The tile.
        value: ValueId,
        /// Old axis, new axis.
        axes: Vec<(AxisId, AxisId)>,
    },
    /// A loop. Its results are the carried values after the last iteration, or the initial
    /// values if there is none.
    Loop {
        /// Overlap.
        kind: LoopKind,
        /// Counter.
        index: IndexId,
        /// Carried values.
        carries: Vec<Carry>,
        /// One iteration.
        body: Block,
    },
}

impl PartialEq for Op {
    fn eq(&self, other: &Self) -> bool {
        use Op::*;
        match (self, other) {
            (Const { value: a }, Const { value: b }) => a.to_bits() == b.to_bits(),
            (Scalar(a), Scalar(b)) => a == b,
            (Size(a), Size(b)) => a == b,
            (Index { origin: a, axis: b }, Index { origin: c, axis: d }) => a == c && b == d,
            (
                Load { tensor: a, coords: b, bounds: c },
                Load { tensor: d, coords: e, bounds: f },
            ) => a == d && b == e && c == f,
            (
                Store { tensor: a, coords: b, value: c, bounds: d },
                Store { tensor: e, coords: f, value: g, bounds: h },
            ) => a == e && b == f && c == g && d == h,
            (Map { op: a, args: b }, Map { op: c, args: d }) => a == c && b == d,
            (Cast(a), Cast(b)) | (Broadcast(a), Broadcast(b)) => a == b,
            (
                Reduce { op: a, value: b, axis: c, order: d },
                Reduce { op: e, value: f, axis: g, order: h },
            ) => a == e && b == f && c == g && d == h,
            (
                Mma { a, b, c, allow_reassociation: d },
                Mma { a: e, b: f, c: g, allow_reassociation: h },
            ) => a == e && b == f && c == g && d == h,
            (Reindex { value: a, axes: b }, Reindex { value: c, axes: d }) => a == c && b == d,
            (
                Loop { kind: a, index: b, carries: c, body: d },
                Loop { kind: e, index: f, carries: g, body: h },
            ) => a == e && b == f && c == g && d == h,
            _ => false,
        }
    }
}

/// A place in a source text. Places never make two programs different.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loc {
    /// Line, from 1; 0 for a program that was built in Rust.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

impl PartialEq for Loc {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// An operation with its results.
#[derive(Clone, PartialEq, Debug)]
pub struct OpData {
    /// What it does.
    pub op: Op,
    /// The values that it defines: one per carry for a loop, none for a store, else one.
    pub results: Vec<ValueId>,
    /// Where it was written.
    pub loc: Loc,
}

/// The type of a tile.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TileType {
    /// Element type.
    pub dtype: DType,
    /// The axes, no axis twice. The order only matters to printers; `[i, j]` and `[j, i]` hold
    /// the same elements.
    pub axes: Vec<AxisId>,
}

/// A tile value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Value {
    /// Name in the text form, without `%`. Unique in the program.
    pub name: String,
    /// Its type.
    pub ty: TileType,
}

/// A tile program. Build it with [`crate::builder::ProgramBuilder`] or parse it with
/// [`crate::text::parse`].
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Program {
    /// Name: an identifier.
    pub name: String,
    /// Dimensions.
    pub dims: Arena<DimId, Dim>,
    /// Tensors, in launch order.
    pub tensors: Arena<TensorId, Tensor>,
    /// Run-time scalars, in launch order.
    pub scalars: Arena<ScalarId, Scalar>,
    /// Tile axes.
    pub axes: Arena<AxisId, Axis>,
    /// Index variables of the grid and of loops.
    pub indices: Arena<IndexId, IndexVar>,
    /// The grid, outermost first. Instances are independent and run in any order.
    pub grid: Vec<IndexId>,
    /// Tile values.
    pub values: Arena<ValueId, Value>,
    /// Operations of all blocks.
    pub ops: Arena<OpId, OpData>,
    /// What each program instance runs.
    pub body: Block,
}

/// A binding that does not fit the program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum BindError {
    /// No such dimension.
    #[error("program `{program}` has no dimension `{name}`: it has {known}")]
    Unknown { program: String, name: String, known: String },
    /// The dimension is already static.
    #[error("dimension `{name}` is fixed at {size} and can't be bound to {value}")]
    Fixed { name: String, size: u64, value: u64 },
    /// The value isn't a multiple of the divisor.
    #[error("dimension `{name}` must be a multiple of {divisor}, not {value}")]
    Divisor { name: String, divisor: u64, value: u64 },
    /// The value is over the bound.
    #[error("dimension `{name}` is at most {max}, not {value}")]
    TooLarge { name: String, max: u64, value: u64 },
    /// A block extent of zero.
    #[error("block `{name}` must be at least 1")]
    ZeroBlock { name: String },
}

impl Program {
    /// The dimension of that name.
    pub fn dim(&self, name: &str) -> Option<DimId> {
        self.dims.iter().find(|(_, d)| d.name == name).map(|(id, _)| id)
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<TensorId> {
        self.tensors.iter().find(|(_, t)| t.name == name).map(|(id, _)| id)
    }

    /// Makes a symbolic dimension static, or sets a block extent.
    ///
    /// # Errors
    /// The name is unknown, the dimension is already static with another size, or the value
    /// breaks its divisor or bound. The program is unchanged then.
    pub fn bind(&mut self, name: &str, value: u64) -> Result<(), BindError> {
        let Some(id) = self.dim(name) else {
            let known: Vec<&str> = self.dims.iter().map(|(_, d)| d.name.as_str()).collect();
            let known = if known.is_empty() { "none".to_string() } else { known.join(", ") };
            return Err(BindError::Unknown {
                program: self.name.clone(),
                name: name.to_string(),
                known,
            });
        };
        let dim = &mut self.dims[id];
        let name = dim.name.clone();
        match dim.kind {
            DimKind::Static(size) if size != value => {
                return Err(BindError::Fixed { name, size, value });
            }
            DimKind::Symbolic { divisor, .. } if !value.is_multiple_of(divisor) => {
                return Err(BindError::Divisor { name, divisor, value });
            }
            DimKind::Symbolic { max, .. } if value > max => {
                return Err(BindError::TooLarge { name, max, value });
            }
            DimKind::Block { .. } if value == 0 => return Err(BindError::ZeroBlock { name }),
            _ => dim.kind = DimKind::Static(value),
        }
        Ok(())
    }

    /// Replaces every remaining block extent by its default.
    pub fn bind_default_blocks(&mut self) {
        for (_, dim) in self.dims.iter_mut() {
            if let DimKind::Block { default } = dim.kind {
                dim.kind = DimKind::Static(default);
            }
        }
    }

    /// The size of an extent if it is known now: a literal, a static dimension or a block's
    /// default.
    pub fn known(&self, extent: Extent) -> Option<u64> {
        match extent {
            Extent::Const(n) => Some(n),
            Extent::Dim(d) => match self.dims[d].kind {
                DimKind::Static(n) | DimKind::Block { default: n } => Some(n),
                DimKind::Symbolic { .. } => None,
            },
        }
    }

    /// The largest size that an extent can have.
    pub fn max_size(&self, extent: Extent) -> u64 {
        match extent {
            Extent::Const(n) => n,
            Extent::Dim(d) => match self.dims[d].kind {
                DimKind::Static(n) | DimKind::Block { default: n } => n,
                DimKind::Symbolic { max, .. } => max,
            },
        }
    }

    /// A number that every possible size of the extent is a multiple of.
    pub fn divisor(&self, extent: Extent) -> u64 {
        match extent {
            Extent::Const(n) => n,
            Extent::Dim(d) => match self.dims[d].kind {
                DimKind::Static(n) | DimKind::Block { default: n } => n,
                DimKind::Symbolic { divisor, .. } => divisor,
            },
        }
    }

    /// The operation that defines a value, if it isn't a loop's inner carry.
    pub fn definition(&self, value: ValueId) -> Option<OpId> {
        self.ops.iter().find(|(_, op)| op.results.contains(&value)).map(|(id, _)| id)
    }
}
