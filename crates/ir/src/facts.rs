//! What is proved about a program. A fact that can't be proved is [`Fact::Unknown`] with the
//! reason; nothing downstream may read an unknown fact as zero or as true.
//!
//! The analyses that produce these facts are in `crate::analysis`; this file is their vocabulary.

use crate::program::{AxisId, Extent, OpId, ReduceOp, TensorId, ValueId};
use crate::types::DType;

/// A proved statement, or the reason why it isn't proved.
#[derive(Clone, PartialEq, Debug)]
pub enum Fact<T> {
    /// Proved.
    Proved(T),
    /// Not proved, with the reason in words.
    Unknown(String),
}

impl<T> Fact<T> {
    /// The proved value.
    pub fn proved(&self) -> Option<&T> {
        match self {
            Fact::Proved(value) => Some(value),
            Fact::Unknown(_) => None,
        }
    }

    /// Whether the fact is proved.
    pub fn is_proved(&self) -> bool {
        self.proved().is_some()
    }
}

/// Everything proved about one program.
#[derive(Clone, PartialEq, Debug)]
pub struct Facts {
    /// Per written tensor: every element is written exactly once over the grid.
    pub coverage: Vec<(TensorId, Fact<Coverage>)>,
    /// Per read tensor: it is never written, so a load may be replaced by reading it at the use.
    pub read_only: Vec<(TensorId, Fact<()>)>,
    /// What the program is to a planner.
    pub family: Family,
}

/// How an output is covered.
#[derive(Clone, PartialEq, Debug)]
pub struct Coverage {
    /// The store that covers it.
    pub store: OpId,
    /// Whether some tile may stick out of the tensor (its store is clipped).
    pub clipped: bool,
}

/// The planner's families.
#[derive(Clone, PartialEq, Debug)]
pub enum Family {
    /// One program instance per row (or per position), element domains and reductions over one
    /// axis.
    Rows(Box<RowFacts>),
    /// A tiled matrix product with one accumulator.
    Matrix(Box<MatrixFacts>),
    /// Neither, with the reason. Such a program still runs on the portable path.
    Other(String),
}

/// A reduction matched to its exact identity (reference 1.4 rule 8).
#[derive(Clone, PartialEq, Debug)]
pub struct ReductionFact {
    /// The reduce operation.
    pub op: OpId,
    /// The fold.
    pub fold: ReduceOp,
    /// Type in which it accumulates.
    pub dtype: DType,
}

/// One distributed element domain: a loop over the columns that the workers of a program share.
#[derive(Clone, PartialEq, Debug)]
pub enum DomainKind {
    /// Copies an input load that several phases read into the workers' stripes.
    Copy(ValueId),
    /// Computes a shared tile into the workers' stripes.
    Materialize(ValueId),
    /// A reduction over the columns.
    Reduce(OpId),
    /// A store of one element per column.
    Store(OpId),
}

/// A domain with what one element of it touches. Bytes are per element.
#[derive(Clone, PartialEq, Debug)]
pub struct Domain {
    /// What it does.
    pub kind: DomainKind,
    /// Distinct column-wise input loads that it evaluates from global memory.
    pub loads: Vec<ValueId>,
    /// Striped tiles that it reads.
    pub stripes: Vec<ValueId>,
    /// Distinct per-row scalars that it reads (row maximum, 1/σ, …).
    pub scalars: Vec<ValueId>,
}

/// Bytes that payload statements read and write; carries, scalar set-up and collectives are
/// excluded (reference 5.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Payload {
    /// Bytes read from tensors.
    pub global_read: u64,
    /// Bytes written to tensors.
    pub global_write: u64,
    /// Bytes read from worker-private storage, broadcast scalars included.
    pub private_read: u64,
    /// Bytes written to worker-private storage.
    pub private_write: u64,
}

impl Payload {
    /// The bytes of `count` such elements; `None` where they don't fit in 64 bits.
    pub fn times(self, count: u64) -> Option<Payload> {
        Some(Payload {
            global_read: self.global_read.checked_mul(count)?,
            global_write: self.global_write.checked_mul(count)?,
            private_read: self.private_read.checked_mul(count)?,
            private_write: self.private_write.checked_mul(count)?,
        })
    }
}

/// The domains of a row program under one reuse choice.
#[derive(Clone, PartialEq, Debug)]
pub struct RowVariant {
    /// Domains in execution order.
    pub domains: Vec<Domain>,
    /// Payload bytes of one column, over all domains.
    pub payload: Fact<Payload>,
}

impl RowVariant {
    /// Number of tiles that are kept as worker-private stripes.
    pub fn striped_tiles(&self) -> u64 {
        self.domains
            .iter()
            .filter(|d| matches!(d.kind, DomainKind::Copy(_) | DomainKind::Materialize(_)))
            .count() as u64
    }
}

/// Facts of a row program.
#[derive(Clone, PartialEq, Debug)]
pub struct RowFacts {
    /// Grid extents with their steps; their ceiling quotients multiply to the program count.
    pub grid: Vec<(Extent, Extent)>,
    /// The column axis. `None` when no value has an axis (a scalar per row).
    pub axis: Option<AxisId>,
    /// Length of the column axis.
    pub columns: Extent,
    /// Element type of the widest column tile that is loaded or stored; floats come before
    /// integers (a mask says nothing about the arithmetic).
    pub dtype: DType,
    /// Reductions, in execution order.
    pub reductions: Vec<ReductionFact>,
    /// Domains when every phase reads its inputs again.
    pub reload: RowVariant,
    /// Domains when inputs that several phases read are copied once. Equal to `reload` when
    /// there is no such input.
    pub cache: RowVariant,
}

/// One of the three extents of a matrix product.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
pub enum MatrixDim {
    M,
    N,
    K,
}

/// An operand of the matrix product.
#[derive(Clone, PartialEq, Debug)]
pub struct OperandFact {
    /// The tensor.
    pub tensor: TensorId,
    /// The load in the loop.
    pub load: OpId,
    /// Whether the contracted axis is the tensor's outer one for A, the inner one for B:
    /// the operand is stored transposed.
    pub transposed: bool,
    /// The load may be replaced by reading the tensor at the use, unconditionally, if in each
    /// listed dimension the block divides the size (reference 1.4 rule 6).
    pub forward: Fact<Vec<MatrixDim>>,
}

/// Facts of a tiled matrix product.
#[derive(Clone, PartialEq, Debug)]
pub struct MatrixFacts {
    /// Batch size, if there is a batch axis in the grid.
    pub batch: Option<Extent>,
    /// Sizes M, N, K.
    pub size: [Extent; 3],
    /// Block extents BM, BN, BK (usually block dimensions that a plan chooses).
    pub block: [Extent; 3],
    /// Type of the operands.
    pub dtype: DType,
    /// Type of the accumulator.
    pub accumulator: DType,
    /// Type of the output tensor.
    pub output: DType,
    /// Left operand.
    pub a: OperandFact,
    /// Right operand.
    pub b: OperandFact,
    /// The output tensor.
    pub c: TensorId,
    /// The loop over K.
    pub k_loop: OpId,
    /// The matrix operation.
    pub mma: OpId,
    /// Operations between loop and store, in order (empty for a plain product).
    pub epilogue: Vec<OpId>,
    /// The store.
    pub store: OpId,
    /// The accumulator is a closed recurrence (reference 1.4 rule 3).
    pub recurrence: Fact<()>,
    /// The result may go from fragments to memory without a shared buffer if in each listed
    /// dimension the block divides the size (reference 1.4 rule 4).
    pub direct_output: Fact<Vec<MatrixDim>>,
    /// The initial accumulator is +0 everywhere, so that a single K iteration may overwrite
    /// instead of accumulate (reference 1.4 rule 5).
    pub zero_init: Fact<()>,
    /// Products may be summed in any order.
    pub reassociable: bool,
}
