//! The mapped kernel: what every lane of every subgroup of every group does.
//!
//! A kernel is SPMD and structured. It is launched over a grid of groups; a group has
//! `subgroups` subgroups of `lanes` lanes; `cluster` groups may form a cluster. Every lane runs
//! the same body. A value has an element type and a *scope*: the widest rung of the ladder
//! (lane, subgroup, subgroup block, group, cluster, grid) over which it is the same. A `lane`
//! value differs from lane to lane.
//!
//! Memory is reached through a [`Place`]: a base that is uniform over the subgroup, plus a
//! constant stride per lane. So a backend sees without analysis which accesses are contiguous
//! vectors, which are broadcasts and which are gathers, and a [`Guard`] by count is a tail mask.
//!
//! [`mod@crate::validate`] states the rules; `crate::text` prints and parses; `crate::sim`
//! executes.

use tilewright_ir::DType;
use tilewright_ir::entity::Arena;
use tilewright_ir::entity_id;
use tilewright_ir::program::{Access, DimId, MapOp, ReduceOp, ScalarId, TensorId};

entity_id!(/** A kernel argument. */ ArgId, "arg");
entity_id!(/** A shared buffer. */ SharedId, "sh");
entity_id!(/** A per-lane private array. */ PrivateId, "pr");
entity_id!(/** A barrier. */ BarrierId, "bar");
entity_id!(/** An array of transaction barriers in shared memory. */ MbarrierId, "mbar");
entity_id!(/** A role: a set of subgroups of the group. */ RoleId, "role");
entity_id!(/** A value. */ ValueId, "v");

/// A rung of the scope ladder, narrowest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Scope {
    /// One lane.
    Lane,
    /// One subgroup (warp, simdgroup, SIMD vector).
    Subgroup,
    /// That many aligned subgroups (a warpgroup has 4).
    SubgroupBlock(u32),
    /// One group (CTA, threadgroup, task).
    Group,
    /// A cluster of groups.
    Cluster,
    /// All groups of the launch.
    Grid,
}

/// Element type of a value or a buffer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Elem {
    /// 64-bit signed integer: sizes, offsets, counters. Never stored in a tensor.
    Index,
    /// A data type.
    Data(DType),
}

/// A matrix atom: the unit in which a target multiplies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Atom {
    /// 8×8×8 on fragments that a subgroup of 32 lanes holds.
    Simdgroup8x8,
    /// `rows` × `vectors`·lanes accumulators in vector registers; operands are memory views, and
    /// K is any number of rank-1 updates.
    OuterProduct {
        /// Accumulator rows (mr).
        rows: u32,
        /// Accumulator vectors per row (nv).
        vectors: u32,
    },
    /// Metal `matmul2d` of one subgroup over memory views: `rows` × `cols`, any K.
    Mpp {
        /// Accumulator rows, a multiple of 8.
        rows: u32,
        /// Accumulator columns, a multiple of 8.
        cols: u32,
    },
    /// PTX `mma.sync` m×n×k of one warp.
    MmaSync {
        /// Rows.
        m: u32,
        /// Columns.
        n: u32,
        /// Depth.
        k: u32,
    },
    /// PTX `wgmma` m×n×k of a warpgroup; B (and optionally A) from shared memory; asynchronous.
    Wgmma {
        /// Rows (64).
        m: u32,
        /// Columns, a multiple of 8 up to 256.
        n: u32,
        /// Depth: 32 bytes of operand.
        k: u32,
    },
}

impl Atom {
    /// Accumulator extents in elements for a given subgroup width.
    pub fn accumulator(self, lanes: u32) -> (u32, u32) {
        match self {
            Atom::Simdgroup8x8 => (8, 8),
            Atom::OuterProduct { rows, vectors } => (rows, vectors * lanes),
            Atom::Mpp { rows, cols } => (rows, cols),
            Atom::MmaSync { m, n, .. } | Atom::Wgmma { m, n, .. } => (m, n),
        }
    }

    /// The scope that executes the atom together.
    pub fn scope(self) -> Scope {
        match self {
            Atom::Wgmma { .. } => Scope::SubgroupBlock(4),
            _ => Scope::Subgroup,
        }
    }
}

/// What a fragment holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FragmentRole {
    /// Left operand.
    A,
    /// Right operand.
    B,
    /// Accumulator.
    Accumulator,
}

/// Type of a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Type {
    /// One element per lane (equal over the value's scope).
    Elem(Elem),
    /// A matrix fragment distributed over the atom's scope in a layout that only the atom knows.
    Fragment {
        /// The atom.
        atom: Atom,
        /// Operand or accumulator.
        role: FragmentRole,
        /// Element type.
        dtype: DType,
    },
    /// Completion of asynchronous work; only a wait consumes it.
    Token,
}

/// A value.
#[derive(Clone, PartialEq, Debug)]
pub struct Value {
    /// Its type.
    pub ty: Type,
    /// The widest scope over which it is uniform. Fragments and tokens have their atom's or
    /// issuer's scope.
    pub scope: Scope,
}

/// A size that is known now or at launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Size {
    /// Known.
    Const(u64),
    /// The value of an index argument.
    Arg(ArgId),
}

/// A grid extent: ⌈`size`/`step`⌉ groups.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GridDim {
    /// Size to cover.
    pub size: Size,
    /// Elements per group.
    pub step: u64,
}

/// Where an argument's value comes from at launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ArgSource {
    /// The tensor of the program.
    Tensor(TensorId),
    /// The run-time scalar of the program.
    Scalar(ScalarId),
    /// The size of a symbolic dimension of the program.
    Dim(DimId),
    /// Scratch that the launch allocates: that many elements.
    Scratch(u64),
    /// A kernel that stands alone (hand-written text): arguments are given in order.
    Free,
}

/// When a shared cache gives up the lines of a buffer, before or after those of others. Only a
/// hint: a backend without such hints leaves it out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Evict {
    /// By the cache's own rule.
    #[default]
    Normal,
    /// Before others: nobody reads the lines soon.
    First,
    /// After others.
    Last,
    /// Those of the first so many bytes after others, those beyond before others.
    Head(u64),
}

/// What an argument is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ArgKind {
    /// Base of a buffer in global memory.
    Buffer {
        /// Element type.
        dtype: DType,
        /// How the kernel uses it.
        access: Access,
        /// Base alignment in bytes.
        align: u64,
        /// Which of its lines the second-level cache gives up first: a hint.
        evict: Evict,
    },
    /// A number: an index, or a data scalar.
    Number(Elem),
    /// A tensor map for bulk tensor copies (TMA): a 2-D window of `box_rows` × `box_cols`.
    TensorMap {
        /// Element type.
        dtype: DType,
        /// Rows of one copied box.
        box_rows: u32,
        /// Columns of one copied box.
        box_cols: u32,
        /// Swizzle of the destination.
        swizzle: Swizzle,
    },
}

/// A kernel argument.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Arg {
    /// Name in the text form.
    pub name: String,
    /// What it is.
    pub kind: ArgKind,
    /// Where its value comes from.
    pub source: ArgSource,
}

/// XOR swizzle of a shared tile's 16-byte chunks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Swizzle {
    /// None.
    #[default]
    None,
    /// Rows of 32 bytes.
    B32,
    /// Rows of 64 bytes.
    B64,
    /// Rows of 128 bytes.
    B128,
}

/// Layout of a shared buffer of logical `rows` × `cols` elements. Offsets in the kernel are
/// logical row-major (`row·cols + col`); the layout maps them to storage.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Layout {
    /// Row-major.
    Plain,
    /// Row-major with that many unused elements after each row.
    Padded(u32),
    /// Row-major with swizzled 16-byte chunks.
    Swizzled(Swizzle),
}

/// A buffer in group-shared memory (on a CPU: the task's scratch).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Shared {
    /// Name in the text form.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Logical rows.
    pub rows: u64,
    /// Logical columns.
    pub cols: u64,
    /// Storage layout.
    pub layout: Layout,
}

impl Shared {
    /// Bytes of storage, padding included.
    pub fn bytes(&self) -> u64 {
        let pad = match self.layout {
            Layout::Padded(pad) => u64::from(pad),
            Layout::Plain | Layout::Swizzled(_) => 0,
        };
        self.rows * (self.cols + pad) * self.dtype.bytes()
    }
}

/// A per-lane array (registers on a GPU, `len` vectors of stack on a CPU).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Private {
    /// Name in the text form.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Elements per lane.
    pub len: u64,
}

/// A barrier and the subgroups that take part.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Barrier {
    /// Name in the text form.
    pub name: String,
    /// Group for all subgroups of the group, Cluster for all of the cluster, or Subgroup.
    pub scope: Scope,
    /// Number of participating subgroups if fewer than the scope has (named barriers of roles).
    pub participants: Option<u32>,
}

/// An array of transaction barriers (`mbarrier`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Mbarrier {
    /// Name in the text form.
    pub name: String,
    /// Number of barriers (one per stage).
    pub len: u32,
    /// Arrivals that complete a phase.
    pub arrivals: u32,
}

/// A role: subgroups `first .. first + count` of the group.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Role {
    /// Name in the text form.
    pub name: String,
    /// First subgroup.
    pub first: u32,
    /// Number of subgroups.
    pub count: u32,
}

/// What a place is in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Memory {
    /// A buffer argument.
    Global(ArgId),
    /// A shared buffer.
    Shared(SharedId),
    /// A shared buffer of every group of the cluster, one after another by rank: element `e` of
    /// the group of rank `r` is `r·rows·cols + e`. Only plain layouts. A group's memory may be
    /// reached from its start (see [`Op::BarrierWait`]) to its end.
    Cluster(SharedId),
    /// A private array; the base is an index into it and the lane stride is 0.
    Private(PrivateId),
}

/// Where lanes access memory. Lane `l`, vector element `v` touches element
/// `base + l·lane_stride + index + v`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// The memory.
    pub memory: Memory,
    /// First element: an index value, uniform at least over the subgroup.
    pub base: ValueId,
    /// Elements from one lane to the next.
    pub lane_stride: i64,
    /// An index (or i32) value that differs per lane, added to the rest: gather and scatter.
    pub index: Option<ValueId>,
}

/// Which accesses of a load or store take place. The others touch nothing; a load gives the
/// fill value there.
#[derive(Clone, Copy, Debug)]
pub struct Guard {
    /// The condition.
    pub test: GuardTest,
    /// Value of a load where the condition fails.
    pub fill: f64,
}

impl PartialEq for Guard {
    fn eq(&self, other: &Self) -> bool {
        self.test == other.test && self.fill.to_bits() == other.fill.to_bits()
    }
}

/// The condition of a guard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GuardTest {
    /// Lane `l`, vector element `v` takes part iff `l·width + v < limit`; `limit` is an index
    /// value uniform over the subgroup (it may be negative: nobody takes part).
    Count(ValueId),
    /// The lane takes part iff its bool value is true (all vector elements together).
    Mask(ValueId),
}

/// A two-dimensional window of memory for fragments: element (r, c) is
/// `base + r·row_stride + c·col_stride`. Beyond the valid extents a load gives 0 and a store
/// does nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct View {
    /// The memory (global or shared).
    pub memory: Memory,
    /// First element: an index value, uniform over the atom's scope.
    pub base: ValueId,
    /// Elements from row to row: an index value.
    pub row_stride: ValueId,
    /// Elements from column to column: an index value.
    pub col_stride: ValueId,
    /// Number of valid rows, if not all.
    pub rows: Option<ValueId>,
    /// Number of valid columns, if not all.
    pub cols: Option<ValueId>,
}

/// An operand of a matrix atom.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operand {
    /// A fragment.
    Fragment(ValueId),
    /// Memory.
    View(View),
}

/// A collective over a subgroup.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Collective {
    /// Fold over all lanes; every lane gets the result. The order is a tree over lanes.
    Reduce(ReduceOp),
    /// The value of one lane, for all.
    Broadcast(u32),
    /// The value of the lane whose number differs by this XOR mask.
    ShuffleXor(u32),
    /// Whether the bool value holds in any lane.
    Any,
}

/// Memory order of an atomic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Order {
    Relaxed,
    Acquire,
    Release,
    AcqRel,
}

/// A literal.
#[derive(Clone, Copy, Debug)]
pub enum Literal {
    /// For index and i32 values; bool is 0 or 1.
    Int(i64),
    /// For float values.
    Float(f64),
}

impl PartialEq for Literal {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Literal::Int(a), Literal::Int(b)) => a == b,
            (Literal::Float(a), Literal::Float(b)) => a.to_bits() == b.to_bits(),
            _ => false,
        }
    }
}

/// A value carried through a loop.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Carry {
    /// Before the first trip.
    pub init: ValueId,
    /// As the body sees it.
    pub inner: ValueId,
    /// Handed to the next trip.
    pub next: ValueId,
}

/// Statements in execution order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Block {
    /// The statements.
    pub stmts: Vec<Stmt>,
}

/// An operation with the values it defines.
#[derive(Clone, PartialEq, Debug)]
pub struct Stmt {
    /// What it does.
    pub op: Op,
    /// What it defines.
    pub results: Vec<ValueId>,
}

/// What a statement does. "Index" operands are values of [`Elem::Index`].
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    /// A literal of the result's type.
    Const(Literal),
    /// The value of a number argument.
    Arg(ArgId),
    /// The group's coordinate in a grid dimension (not multiplied by the step).
    GroupId(u32),
    /// The group's rank in its cluster.
    ClusterRank,
    /// The subgroup's number in its group.
    SubgroupId,
    /// The lane's number in its subgroup: the only source of lane-varying indices.
    Lane,
    /// Elementwise operation. Operands and result have one element type (comparisons give bool,
    /// `select` takes a bool first). f16 and bf16 values can only be cast, moved and selected.
    /// Index values have add, sub, mul, div, mod (both truncating), min, max and comparisons.
    Map {
        /// The operation.
        op: MapOp,
        /// Operands.
        args: Vec<ValueId>,
    },
    /// Fused multiply-add `a·b + c` with one rounding, f32 or f64.
    Fma {
        /// Left factor.
        a: ValueId,
        /// Right factor.
        b: ValueId,
        /// Addend.
        c: ValueId,
    },
    /// Conversion to the result's element type, to nearest even; to integers toward zero.
    Cast(ValueId),
    /// Reads `results.len()` consecutive elements per lane (1, 2, 4 or 8).
    Load {
        /// Where.
        place: Place,
        /// Which lanes.
        guard: Option<Guard>,
    },
    /// Writes `values.len()` consecutive elements per lane (1, 2, 4 or 8).
    Store {
        /// Where.
        place: Place,
        /// What.
        values: Vec<ValueId>,
        /// Which lanes.
        guard: Option<Guard>,
    },
    /// An atomic read-modify-write of one element per lane; the result is the old value.
    Atomic {
        /// How old and operand combine; `None` exchanges.
        op: Option<ReduceOp>,
        /// Where.
        place: Place,
        /// Operand.
        value: ValueId,
        /// Memory order.
        order: Order,
        /// Scope of the order: Group, Cluster or Grid.
        scope: Scope,
        /// Which lanes.
        guard: Option<Guard>,
    },
    /// A collective over the subgroup. All lanes take part.
    Collective {
        /// Which.
        op: Collective,
        /// Operand.
        value: ValueId,
    },
    /// Waits until all participants have arrived, and orders their shared and global accesses.
    Barrier(BarrierId),
    /// The first half of a cluster barrier: says that the subgroup has come, and goes on. What it
    /// did before is ordered before what others do after their wait.
    BarrierArrive(BarrierId),
    /// The second half of a cluster barrier: waits until all have arrived. Between the halves a
    /// subgroup arrives at no barrier of the cluster. After the first, every group has started,
    /// so that others may reach its shared memory.
    BarrierWait(BarrierId),
    /// Makes earlier generic shared-memory writes visible to asynchronous copies and atoms.
    ProxyFence,
    /// `for index in (lo .. hi).step_by(step)`, bounds uniform over the subgroup.
    For {
        /// Counter: an index value with the bounds' scope.
        index: ValueId,
        /// First value.
        lo: ValueId,
        /// End, exclusive.
        hi: ValueId,
        /// Distance, at least 1.
        step: u64,
        /// How many trips an emitter may place in a row. 0: all.
        unroll: u32,
        /// Carried values; the results are their final states.
        carries: Vec<Carry>,
        /// One trip.
        body: Block,
    },
    /// Runs one of two blocks. A lane-varying condition permits no barrier, collective or
    /// fragment inside.
    If {
        /// A bool value.
        cond: ValueId,
        /// Where true.
        then: Block,
        /// Values of the results where true.
        then_values: Vec<ValueId>,
        /// Where false.
        otherwise: Block,
        /// Values of the results where false.
        else_values: Vec<ValueId>,
    },
    /// Runs a block in the subgroups of a role only.
    InRole {
        /// The role.
        role: RoleId,
        /// Registers per lane that the role keeps (a hint; `setmaxnreg`).
        registers: Option<u32>,
        /// What it runs.
        body: Block,
    },
    /// A fragment with every element equal.
    FragmentFill(f64),
    /// A fragment read from memory.
    FragmentLoad(View),
    /// A fragment written to memory.
    FragmentStore {
        /// The fragment.
        fragment: ValueId,
        /// Where.
        view: View,
        /// A hint: nobody reads the memory soon, so it may be written around the caches.
        stream: bool,
    },
    /// Elementwise operation on fragments of one type; element operands uniform over the atom's
    /// scope are repeated.
    FragmentMap {
        /// The operation.
        op: MapOp,
        /// Operands.
        args: Vec<ValueId>,
    },
    /// `a·b + c` by a synchronous atom; the result is the new accumulator.
    Mma {
        /// Left operand.
        a: Operand,
        /// Right operand.
        b: Operand,
        /// Accumulator; its type names the atom.
        c: ValueId,
        /// K for atoms that take any (index value).
        depth: Option<ValueId>,
    },
    /// Starts an asynchronous atom; results: accumulator (in flight until waited for), token.
    MmaAsync {
        /// Left operand.
        a: Operand,
        /// Right operand.
        b: Operand,
        /// Accumulator.
        c: ValueId,
    },
    /// Copies 4, 8 or 16 bytes per lane from global to shared memory asynchronously
    /// (`cp.async`). Where the guard fails the destination is filled with zeros. Result: token.
    CopyAsync {
        /// Destination.
        to: Place,
        /// Source.
        from: Place,
        /// Elements per lane.
        width: u32,
        /// Which lanes.
        guard: Option<Guard>,
    },
    /// Copies a box of a tensor map to shared memory asynchronously (TMA); one lane issues it.
    /// Completion adds its bytes to a transaction barrier.
    CopyTensor {
        /// The tensor map argument.
        map: ArgId,
        /// Coordinates of the box, outermost first (index values).
        coords: Vec<ValueId>,
        /// Destination buffer.
        to: SharedId,
        /// First element in the destination (index value).
        offset: ValueId,
        /// Barrier array.
        mbarrier: MbarrierId,
        /// Which of its barriers (index value).
        stage: ValueId,
    },
    /// Initialises a transaction barrier (once, by one lane, before a group barrier).
    MbarrierInit {
        /// Barrier array.
        mbarrier: MbarrierId,
        /// Which of its barriers (index value).
        stage: ValueId,
    },
    /// Arrives at a transaction barrier; with bytes, also expects that many.
    MbarrierArrive {
        /// Barrier array.
        mbarrier: MbarrierId,
        /// Which of its barriers (index value).
        stage: ValueId,
        /// Bytes that asynchronous copies will bring in this phase (index value).
        expect: Option<ValueId>,
    },
    /// Waits until the phase of the given parity has completed.
    MbarrierWait {
        /// Barrier array.
        mbarrier: MbarrierId,
        /// Which of its barriers (index value).
        stage: ValueId,
        /// 0 or 1 (index value).
        parity: ValueId,
    },
    /// Waits until at most `pending` of the issuer's newest tokens are unfinished. Consumes the
    /// older ones; accumulators of asynchronous atoms become readable.
    Wait {
        /// Tokens that must be finished afterwards.
        tokens: Vec<ValueId>,
        /// Newer tokens of the same kind that may still be in flight.
        pending: u32,
    },
}

/// A kernel.
#[derive(Clone, PartialEq, Debug)]
pub struct Kernel {
    /// Name: an identifier.
    pub name: String,
    /// Lanes per subgroup.
    pub lanes: u32,
    /// Subgroups per group.
    pub subgroups: u32,
    /// Groups per cluster (1: none).
    pub cluster: u32,
    /// Groups that one core is to hold at the same time, which limits registers to their share
    /// (0: as it comes). A hint to the assembler of a backend that has one.
    pub resident: u32,
    /// Groups: up to three dimensions, outermost first.
    pub grid: Vec<GridDim>,
    /// Arguments, in launch order.
    pub args: Arena<ArgId, Arg>,
    /// Shared buffers.
    pub shared: Arena<SharedId, Shared>,
    /// Private arrays.
    pub private: Arena<PrivateId, Private>,
    /// Barriers.
    pub barriers: Arena<BarrierId, Barrier>,
    /// Transaction barriers.
    pub mbarriers: Arena<MbarrierId, Mbarrier>,
    /// Roles.
    pub roles: Arena<RoleId, Role>,
    /// Values.
    pub values: Arena<ValueId, Value>,
    /// What every lane runs.
    pub body: Block,
}

impl Kernel {
    /// Bytes of shared memory that a group needs, barriers of the `mbarrier` kind included
    /// (8 bytes each).
    pub fn shared_bytes(&self) -> u64 {
        let buffers: u64 = self.shared.iter().map(|(_, s)| s.bytes()).sum();
        let mbarriers: u64 = self.mbarriers.iter().map(|(_, m)| 8 * u64::from(m.len)).sum();
        buffers + mbarriers
    }
}
