//! Mappings: how a program runs on a machine. A mapping is plain data; whether it is legal is
//! decided in `crate::legality`, what it costs in `crate::policy`, and what code it becomes in
//! the `kernel` crate. Two equal mappings of one program on one target give the same kernel.

use serde::{Deserialize, Serialize};

/// A row mapping (reference 5.1). S = `subgroups`, L = `lanes`, C = `cluster`, G = `split`,
/// W = G·C·S·L workers per program.
///
/// Element `e` of a row belongs to worker `w` with `e = (chunk·W + w)·V + v`, `0 ≤ v < V`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RowMapping {
    /// Lanes of one subgroup: 32 on GPUs, the elements of a SIMD vector on CPUs.
    pub lanes: u32,
    /// Subgroups of one group that share one program (row).
    pub subgroups: u32,
    /// Groups that share one program: a cluster, where there are several.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub cluster: u32,
    /// Groups that share one program without a cluster: they meet between launches. Each loop over
    /// the columns is a launch of its own that leaves partial results of its reductions in scratch,
    /// where the next launch folds them. For few, very long rows.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub split: u32,
    /// Consecutive elements per worker and access (V).
    pub vector: u32,
    /// Chunks per trip of a column loop (U).
    pub unroll: u32,
    /// Independent partial accumulators per reduction and worker element, at most U. 1 keeps the
    /// order of a single chain; more need a reduction that permits an unordered tree.
    pub accumulators: u32,
    /// Programs per group (P): on GPUs side by side, each with subgroups of its own; on CPUs one
    /// after another, so that P sets the size of the tasks that threads take.
    pub pack: u32,
    /// Copy inputs that several phases read into stripes.
    pub cache: bool,
    /// Fold a reduction of a striped tile into the loop that computes the tile.
    pub fuse: bool,
    /// Load what the phases after a reduction read, and no phase before, ahead of the reduction's
    /// end, into stripes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ahead: bool,
    /// What the second-level cache of a GPU is told to keep.
    #[serde(default, skip_serializing_if = "Residency::is_normal")]
    pub residency: Residency,
    /// Bring the inputs that several phases read to shared memory by asynchronous copies, and keep
    /// no stripes in registers: what later phases need of an earlier one is computed again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub stage: bool,
    /// Programs that the same workers compute side by side (B): what all rows share is loaded once
    /// for all of them, and they meet at the same barriers.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub batch: u32,
    /// Groups that one core is to hold at the same time, which limits registers to their share.
    /// 0: as it comes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resident: u32,
    /// In a cluster, one subgroup of each group, its leader, takes the partial results of all of its
    /// subgroups to the other groups, behind a barrier of the group. So one subgroup of a group
    /// waits until the others can see what it wrote to them, instead of every one.
    #[serde(default, skip_serializing_if = "is_false")]
    pub leader: bool,
}

/// Which lines the second-level cache of a GPU is told to give up first: hints, which change no
/// result. They concern what each row has of its own; what all rows share stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Residency {
    /// Whatever the cache does by itself.
    #[default]
    Normal,
    /// Inputs stay, outputs go: lines that were written make room before lines that were read.
    Keep,
    /// Inputs and outputs go: neither is read again soon.
    Stream,
    /// The first rows of the inputs stay, [`Residency::HEAD`] bytes of all inputs together; the
    /// others and the outputs go. What stays is found again by the next launch over the same inputs,
    /// which a cache that gives up the oldest lines of more than it holds never does.
    Part,
}

impl Residency {
    /// Every choice.
    pub const ALL: [Residency; 4] =
        [Residency::Normal, Residency::Keep, Residency::Stream, Residency::Part];

    /// Bytes that stay with [`Residency::Part`]: about a quarter of the cache of an H200. Where more
    /// stays, what is written finds too little room (benches/cuda/RESULTS.md).
    pub const HEAD: u64 = 16 << 20;

    /// Whether there are no hints.
    pub fn is_normal(&self) -> bool {
        *self == Residency::Normal
    }

    /// The name in reports, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Residency::Normal => "normal",
            Residency::Keep => "keep",
            Residency::Stream => "stream",
            Residency::Part => "part",
        }
    }
}

fn one() -> u32 {
    1
}

fn is_one(n: &u32) -> bool {
    *n == 1
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

fn is_false(b: &bool) -> bool {
    !b
}

impl RowMapping {
    /// One subgroup of 32 lanes per program, one element at a time, nothing kept.
    pub const ONE: RowMapping = RowMapping {
        lanes: 32,
        subgroups: 1,
        cluster: 1,
        split: 1,
        vector: 1,
        unroll: 1,
        accumulators: 1,
        pack: 1,
        cache: false,
        fuse: false,
        ahead: false,
        residency: Residency::Normal,
        stage: false,
        batch: 1,
        resident: 0,
        leader: false,
    };

    /// Workers per program, W.
    pub fn workers(&self) -> u64 {
        self.group_workers() * u64::from(self.cluster) * u64::from(self.split)
    }

    /// Workers of one group that share a program, S·L.
    pub fn group_workers(&self) -> u64 {
        u64::from(self.subgroups) * u64::from(self.lanes)
    }

    /// Threads of one group, S·L·P.
    pub fn threads(&self) -> u64 {
        self.group_workers() * u64::from(self.pack)
    }

    /// Programs of one group, or of one cluster where groups share them: P·B.
    pub fn programs(&self) -> u64 {
        u64::from(self.pack) * u64::from(self.batch)
    }
}

/// How the groups of a matrix mapping compute their products.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MatrixBasis {
    /// 8×8 fragments per simdgroup, operands through shared memory unless forwarded.
    Simdgroup,
    /// One MPP tensor operation per subgroup and K block.
    Mpp,
}

/// A matrix mapping with subgroups and fragments (reference 2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct MatrixMapping {
    /// Atoms.
    pub basis: MatrixBasis,
    /// BM, BN, BK.
    pub block: [u64; 3],
    /// Threads per group, a multiple of 32.
    pub threads: u32,
    /// gm, gn: the grid of subgroups over the block.
    pub subgroups: [u64; 2],
    /// rm, rn: 8×8 atoms per subgroup.
    pub atoms: [u64; 2],
    /// A is read in place.
    pub forward_a: bool,
    /// B is read in place.
    pub forward_b: bool,
    /// Fragments stay in registers across K iterations.
    pub persistent: bool,
    /// Fragments are stored straight to the output.
    pub direct: bool,
    /// A single K iteration overwrites instead of accumulating.
    pub overwrite: bool,
    /// Pipeline window.
    pub stages: u32,
}

/// Instruction set of the CPU backend.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CpuIsa {
    /// Plain Rust, any architecture.
    Portable,
    /// 8 lanes of f32, 16 vector registers.
    Avx2,
    /// 16 lanes of f32, 32 vector registers, mask registers.
    Avx512,
}

impl CpuIsa {
    /// Bytes of a vector register.
    pub fn vector_bytes(self) -> u64 {
        match self {
            CpuIsa::Portable => 16,
            CpuIsa::Avx2 => 32,
            CpuIsa::Avx512 => 64,
        }
    }

    /// Number of vector registers.
    pub fn registers(self) -> u32 {
        match self {
            CpuIsa::Portable | CpuIsa::Avx2 => 16,
            CpuIsa::Avx512 => 32,
        }
    }
}

/// A matrix mapping with outer-product register tiles on a CPU.
///
/// The grid is ⌈M/`group[0]`⌉ × ⌈N/`group[1]`⌉ groups (tasks). A group walks K in steps of
/// `depth`; for each step it copies what `pack_a` and `pack_b` say into its scratch and runs
/// register tiles of `tile[0]` rows × `tile[1]` vectors over its part of the output. `group[0]` is
/// a multiple of the tile's rows; `group[1]` and `columns` are multiples of its columns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct CpuMatrixMapping {
    /// Accumulator lanes per vector.
    pub lanes: u32,
    /// Rows and columns of the output that one group computes.
    pub group: [u64; 2],
    /// mr rows, nv vectors of a register tile.
    pub tile: [u32; 2],
    /// K elements per step (kc).
    pub depth: u64,
    /// Columns per packed panel set (nc): B is packed `depth`×`columns` at a time.
    pub columns: u64,
    /// Copy A to padded rows first (16-bit inputs are widened while copying).
    pub pack_a: bool,
    /// Copy B to panels of nv vectors first (required where B is stored transposed or is 16-bit).
    pub pack_b: bool,
    /// Write the output around the caches where whole aligned vectors are written.
    pub stream: bool,
    /// Largest number of threads that share the launch.
    pub threads: u32,
}

/// A matrix mapping with register tiles on a GPU.
///
/// The grid is ⌈M/BM⌉ × ⌈N/BN⌉ groups, times `slices` and the batch. A group walks its part of K in
/// steps of BK: asynchronous copies bring A and B to a ring of `stages` shared buffers, both with
/// K outermost, so that an operand whose K is innermost is transposed on the way, or, where its
/// copies are vectors along K, stays as it is and is transposed when it is read. The BK elements
/// of a step are split among `warps[2]` sets of `warps[0]` × `warps[1]` subgroups, whose sums meet
/// in shared memory at the end. The lanes of a subgroup form a grid of `lanes`; each has a tile of
/// `tile` elements in registers, in pieces of at most 4 rows and columns so that a grid of lanes
/// reads consecutive 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct GpuMatrixMapping {
    /// Subgroups over rows, over columns and over the BK elements of a step.
    pub warps: [u32; 3],
    /// Lanes over rows and over columns: 32 in all, or one of each where operands are read in place
    /// and the lanes of a subgroup share its tile and split K.
    pub lanes: [u32; 2],
    /// Rows and columns of one lane's tile: each 1, 2, or a multiple of 4.
    pub tile: [u32; 2],
    /// BK: elements of K per step, a multiple of `warps[2]`.
    pub depth: u32,
    /// Shared buffers of the ring, at least 2; 1 where operands are read where they lie, with `depth`
    /// elements of K a trip.
    pub stages: u32,
    /// Steps per trip of the loop over K: 1, or a multiple of `stages` (then every stage is known
    /// where it is used).
    pub unroll: u32,
    /// Groups that share one block of the output, each with a part of K. More than 1: partial
    /// sums go to scratch, and a second launch adds them.
    pub slices: u32,
    /// Elements per asynchronous copy, or read in place, of A and of B: 4 where 16-byte alignment is
    /// proved along the access, else 1 (in place also 2). Copies run along what is innermost in
    /// memory, reads in place along K where the lanes don't lie along the operand.
    pub copy: [u32; 2],
    /// Groups that one core is to hold at the same time: limits registers to their share.
    pub resident: u32,
}

impl GpuMatrixMapping {
    /// One subgroup of 4 × 8 lanes with an element of the output each, 8 elements of K a step, two
    /// stages, copies of single elements.
    pub const ONE: GpuMatrixMapping = GpuMatrixMapping {
        warps: [1, 1, 1],
        lanes: [4, 8],
        tile: [1, 1],
        depth: 8,
        stages: 2,
        unroll: 1,
        slices: 1,
        copy: [1, 1],
        resident: 1,
    };

    /// BM, BN.
    pub fn block(&self) -> [u64; 2] {
        [0, 1]
            .map(|d| u64::from(self.warps[d]) * u64::from(self.lanes[d]) * u64::from(self.tile[d]))
    }

    /// Threads of one group.
    pub fn threads(&self) -> u64 {
        32 * self.warps.iter().map(|w| u64::from(*w)).product::<u64>()
    }
}

/// A mapping of either family.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(tag = "family", rename_all = "kebab-case")]
pub enum Mapping {
    /// Rows.
    Rows(RowMapping),
    /// Subgroup fragments.
    Matrix(MatrixMapping),
    /// CPU register tiles.
    CpuMatrix(CpuMatrixMapping),
    /// GPU register tiles.
    GpuMatrix(GpuMatrixMapping),
}
