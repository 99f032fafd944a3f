//! The simulator: executes a kernel lane by lane and reports what a machine would get wrong only
//! sometimes.
//!
//! # What is modelled
//! Groups run one cluster after another; the subgroups of a cluster interleave in an adversarial
//! [`Order`] and only wait for each other at barriers and mbarriers. Values are rounded to their
//! type after every operation; `fma` and the products of matrix atoms round once. `exp`, `log`,
//! `tanh` and `erf` are the binary64 functions of `libm`, rounded.
//!
//! # What is detected
//! Every [`FaultKind`], whatever the order of the run: races are found by vector clocks, not by
//! luck. Two accesses to one element of which one writes must be ordered by barriers, mbarriers or
//! release–acquire atomics. Lanes of a subgroup are not ordered among themselves either: what one
//! lane wrote another may only read after a barrier (of any scope), as on GPUs; several lanes may
//! store one same value to one element in one statement. [`LaneOrder::Lockstep`] drops the rule
//! between lanes for kernels of machines whose subgroup is a vector register. A fragment's
//! element belongs to one unknown lane, the same for all fragments of one type.
//!
//! Asynchronous work is done at its issue for the values and at its wait for the order: until the
//! wait, its destination is in flight for everybody and its source may not be overwritten. Bulk
//! tensor copies land when somebody waits for them. Asynchronous atoms see generic writes only
//! through a proxy fence between the write and the atom.
//!
//! `mbarrier_init`, `mbarrier_arrive` and `copy_tensor` count once per subgroup: one elected lane
//! issues them.

mod access;
mod agents;
mod atomic;
mod clock;
mod error;
mod exec;
mod fragment;
mod lanes;
mod matrix;
mod memory;
mod schedule;
mod setup;
mod sync;

pub use error::{Fault, FaultKind, SimError};
pub use setup::run;

use crate::kernel::ArgId;
use tilewright_ir::DType;

/// A launch argument.
#[derive(Clone, PartialEq, Debug)]
pub enum SimArg {
    /// A buffer. Every value must be one of the type.
    Buffer {
        /// Element type.
        dtype: DType,
        /// The elements.
        data: Vec<f64>,
        /// Whether the elements are undefined until the kernel writes them.
        poison: bool,
    },
    /// An index number.
    Index(i64),
    /// A number of a data type.
    Number(f64),
    /// A tensor for bulk copies, with zeros outside.
    TensorMap {
        /// Element type.
        dtype: DType,
        /// The elements.
        data: Vec<f64>,
        /// Sizes, outermost first.
        dims: Vec<u64>,
        /// Strides in elements, outermost first.
        strides: Vec<u64>,
    },
}

impl SimArg {
    /// A buffer with defined elements.
    pub fn buffer(dtype: DType, data: Vec<f64>) -> Self {
        SimArg::Buffer { dtype, data, poison: false }
    }

    /// An output of `len` elements: NaN (0 for integers), and undefined until written.
    pub fn output(dtype: DType, len: usize) -> Self {
        let fill = if dtype.is_float() { f64::NAN } else { 0.0 };
        SimArg::Buffer { dtype, data: vec![fill; len], poison: true }
    }

    /// The elements of a buffer; empty for others.
    pub fn data(&self) -> &[f64] {
        match self {
            SimArg::Buffer { data, .. } | SimArg::TensorMap { data, .. } => data,
            SimArg::Index(_) | SimArg::Number(_) => &[],
        }
    }
}

/// In which order clusters and their subgroups run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// Clusters ascending; subgroups take turns of a few statements, ascending.
    #[default]
    Forward,
    /// Both descending.
    Reverse,
    /// The first subgroup that can run does so until it must wait.
    RunAheadFirst,
    /// The last subgroup that can run does so until it must wait.
    RunAheadLast,
    /// Clusters, subgroups and lengths of turns at random, from a seed.
    Shuffled(u64),
}

impl Order {
    /// One of each, for tests that try them all.
    pub const ALL: [Order; 5] = [
        Order::Forward,
        Order::Reverse,
        Order::RunAheadFirst,
        Order::RunAheadLast,
        Order::Shuffled(0x5eed),
    ];
}

/// Whether lanes of a subgroup are ordered among themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LaneOrder {
    /// Only barriers order them.
    #[default]
    Independent,
    /// Every statement is done by all lanes before the next one starts.
    Lockstep,
}

/// How to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimOptions {
    /// Order of clusters and subgroups.
    pub order: Order,
    /// Order of lanes.
    pub lanes: LaneOrder,
    /// Most statements executed, by all subgroups together.
    pub max_steps: u64,
}

impl Default for SimOptions {
    fn default() -> Self {
        SimOptions { order: Order::Forward, lanes: LaneOrder::Independent, max_steps: 1 << 34 }
    }
}

impl SimOptions {
    /// The default with another order.
    pub fn with_order(order: Order) -> Self {
        SimOptions { order, ..SimOptions::default() }
    }
}

/// Bytes read and written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub write: u64,
}

/// What a run did, summed over all groups.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SimReport {
    /// Groups that ran.
    pub groups: u64,
    /// Statements that subgroups executed, loop trips included.
    pub steps: u64,
    /// Group and cluster barriers completed.
    pub barriers: u64,
    /// Subgroup barriers executed.
    pub subgroup_barriers: u64,
    /// Collectives that subgroups executed.
    pub collectives: u64,
    /// Global memory: of a uniform access once, else per lane.
    pub global: Traffic,
    /// Shared memory, likewise.
    pub shared: Traffic,
    /// Private arrays, per lane.
    pub private: Traffic,
    /// Matrix atoms executed (an atom of a block of subgroups counts once per subgroup).
    pub atoms: u64,
    /// Floating-point operations: 1 per lane and operation, 2 for `fma`, 2·m·n·k for an atom.
    pub flops: u64,
    /// Poisoned elements that no lane wrote: the argument, how many, and the first.
    pub unwritten: Vec<(ArgId, u64, u64)>,
}
