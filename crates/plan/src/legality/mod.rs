//! Legality: which candidates may run. Decided before any policy is asked for a score, by hard
//! limits and proved facts alone.
//!
//! Each rule has a name; a rejected candidate stays in the ranking with the name of the rule that
//! rejected it and the numbers that broke it.

pub mod cpu_matrix;
pub mod cpu_rows;
pub mod gpu_matrix;
pub mod gpu_rows;
pub mod matrix;
pub mod rows;

use std::fmt;

/// A rule of legality. [`Rule::ALL`] lists them for the documentation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rule {
    /// More threads in a group than the target has, or another group width than it can run.
    ThreadsLimit,
    /// A group width that is no multiple of the subgroup.
    ThreadsMultiple,
    /// More candidates than the search budget.
    SearchBudget,
    /// A vector width outside the target's choices.
    VectorChoice,
    /// An unroll factor outside 1..=16.
    UnrollRange,
    /// A pipeline window outside 1..=2.
    StageRange,
    /// The target doesn't compute in the program's element type.
    TargetDtype,
    /// More subgroups share a row than a subgroup has lanes.
    SubgroupLimit,
    /// Several programs in a group whose programs have more than one subgroup.
    PackWidth,
    /// More than 8 programs in a group, or more than there are.
    PackRange,
    /// Input caching where no input is read by several phases.
    CacheReuse,
    /// Stripes larger than the private budget of a worker.
    PrivateBudget,
    /// More shared memory than a group may have.
    SharedMemory,
    /// The target has no such matrix atom.
    MatrixAtom,
    /// A block extent that the program fixes at another value.
    BlockFixed,
    /// A block extent that is zero or no multiple of 8.
    BlockMultiple,
    /// Subgroups that don't cover the block exactly.
    SubgroupCover,
    /// An MPP local matrix whose extents are both odd multiples of 8.
    MppLocalMultiple,
    /// More fragments per lane than the budget.
    FragmentBudget,
    /// A score that isn't finite.
    FiniteScore,
    /// More scratch than a worker may have.
    ScratchBudget,
    /// Several partial accumulators for a reduction whose order is stated.
    AccumulatorOrder,
    /// More partial accumulators than the unroll factor, or none.
    AccumulatorRange,
    /// Loop fusion where no reduction reads the tile of the loop before it.
    FuseReduction,
    /// Another number of lanes than the vector register has.
    LaneWidth,
    /// A register tile that doesn't fit the vector registers.
    RegisterBudget,
    /// An operand whose layout or type needs a packed copy that the mapping lacks.
    PackRequired,
    /// A tile, step or group of zero extent.
    EmptyTile,
    /// A realisation that needs a proof that wasn't made.
    UnprovedRealisation,
    /// A copy batch outside 1..=16.
    CopyBatch,
    /// A group or column block that isn't a multiple of the register tile.
    TileMultiple,
    /// Streaming stores of an output that is written more than once.
    StreamOutput,
    /// More groups in a cluster than the target has, or a cluster of groups that pack programs.
    ClusterRange,
    /// Loads ahead of a reduction where no later phase loads anything new.
    AheadLoads,
    /// Hints to a second-level cache on a target that takes none.
    CacheHints,
    /// Rows in shared memory that can't come there by whole asynchronous copies.
    StageCopies,
    /// Rows side by side that have to follow one another, or more than 8.
    BatchRange,
    /// More groups at the same time than a core holds.
    ResidentRange,
    /// Groups that share a row over several launches where that isn't possible.
    SplitRange,
    /// More groups than a launch can have.
    GroupsLimit,
    /// A kernel that its compiler reports to spill many registers, where another candidate stands.
    ResourceSpills,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 41] = [
        Rule::ThreadsLimit,
        Rule::ThreadsMultiple,
        Rule::SearchBudget,
        Rule::VectorChoice,
        Rule::UnrollRange,
        Rule::StageRange,
        Rule::TargetDtype,
        Rule::SubgroupLimit,
        Rule::PackWidth,
        Rule::PackRange,
        Rule::CacheReuse,
        Rule::PrivateBudget,
        Rule::SharedMemory,
        Rule::MatrixAtom,
        Rule::BlockFixed,
        Rule::BlockMultiple,
        Rule::SubgroupCover,
        Rule::MppLocalMultiple,
        Rule::FragmentBudget,
        Rule::FiniteScore,
        Rule::ScratchBudget,
        Rule::AccumulatorOrder,
        Rule::AccumulatorRange,
        Rule::FuseReduction,
        Rule::LaneWidth,
        Rule::RegisterBudget,
        Rule::PackRequired,
        Rule::EmptyTile,
        Rule::UnprovedRealisation,
        Rule::CopyBatch,
        Rule::TileMultiple,
        Rule::StreamOutput,
        Rule::ClusterRange,
        Rule::AheadLoads,
        Rule::CacheHints,
        Rule::StageCopies,
        Rule::BatchRange,
        Rule::ResidentRange,
        Rule::SplitRange,
        Rule::GroupsLimit,
        Rule::ResourceSpills,
    ];

    /// The name in reports and messages.
    pub fn name(self) -> &'static str {
        match self {
            Rule::ThreadsLimit => "threads-limit",
            Rule::ThreadsMultiple => "threads-multiple",
            Rule::SearchBudget => "search-budget",
            Rule::VectorChoice => "vector-choice",
            Rule::UnrollRange => "unroll-range",
            Rule::StageRange => "stage-range",
            Rule::TargetDtype => "target-dtype",
            Rule::SubgroupLimit => "subgroup-limit",
            Rule::PackWidth => "pack-width",
            Rule::PackRange => "pack-range",
            Rule::CacheReuse => "cache-reuse",
            Rule::PrivateBudget => "private-budget",
            Rule::SharedMemory => "shared-memory",
            Rule::MatrixAtom => "matrix-atom",
            Rule::BlockFixed => "block-fixed",
            Rule::BlockMultiple => "block-multiple",
            Rule::SubgroupCover => "subgroup-cover",
            Rule::MppLocalMultiple => "mpp-local-multiple",
            Rule::FragmentBudget => "fragment-budget",
            Rule::FiniteScore => "finite-score",
            Rule::ScratchBudget => "scratch-budget",
            Rule::AccumulatorOrder => "accumulator-order",
            Rule::AccumulatorRange => "accumulator-range",
            Rule::FuseReduction => "fuse-reduction",
            Rule::LaneWidth => "lane-width",
            Rule::RegisterBudget => "register-budget",
            Rule::PackRequired => "pack-required",
            Rule::EmptyTile => "empty-tile",
            Rule::UnprovedRealisation => "unproved-realisation",
            Rule::CopyBatch => "copy-batch",
            Rule::TileMultiple => "tile-multiple",
            Rule::StreamOutput => "stream-output",
            Rule::ClusterRange => "cluster-range",
            Rule::AheadLoads => "ahead-loads",
            Rule::CacheHints => "cache-hints",
            Rule::StageCopies => "stage-copies",
            Rule::BatchRange => "batch-range",
            Rule::ResidentRange => "resident-range",
            Rule::SplitRange => "split-range",
            Rule::GroupsLimit => "groups-limit",
            Rule::ResourceSpills => "resource-spills",
        }
    }

    /// The rule in words.
    pub fn explanation(self) -> &'static str {
        match self {
            Rule::ThreadsLimit => {
                "a group has at most the target's threads; on a CPU it is one vector wide"
            }
            Rule::ThreadsMultiple => {
                "a group's threads are a multiple of the subgroup's lanes times the packed programs"
            }
            Rule::SearchBudget => {
                "a space over its candidate budget is an error; it is never cut short"
            }
            Rule::VectorChoice => "a vector has 1, 2, 4 or 8 elements, on a CPU 1",
            Rule::UnrollRange => "the unroll factor is 1 to 16",
            Rule::StageRange => "the pipeline window is 1 or 2",
            Rule::TargetDtype => "the target computes in the program's element type",
            Rule::SubgroupLimit => {
                "at most as many subgroups share a row as a subgroup has lanes, because one lane \
                 reads each subgroup's partial result"
            }
            Rule::PackWidth => "several programs share a group only if each has one subgroup",
            Rule::PackRange => {
                "a group has 1 to 8 programs on a GPU, any number on a CPU, at most as many as the launch"
            }
            Rule::CacheReuse => "inputs are cached only if several phases read one",
            Rule::PrivateBudget => "a worker's stripes fit its private budget",
            Rule::SharedMemory => "a group's shared memory fits the target's",
            Rule::MatrixAtom => "the target has the matrix atom",
            Rule::BlockFixed => "a block extent that the program fixes is not the plan's to choose",
            Rule::BlockMultiple => "block extents are nonzero multiples of 8",
            Rule::SubgroupCover => {
                "the grid of subgroups divides the block's 8x8 atoms exactly in both directions"
            }
            Rule::MppLocalMultiple => {
                "one extent of an MPP operation's local matrix is a multiple of 16"
            }
            Rule::FragmentBudget => "a lane's fragments fit its register budget",
            Rule::FiniteScore => "a score is finite and not negative, with at least one wave",
            Rule::ScratchBudget => "a worker's scratch fits the target's limit",
            Rule::AccumulatorOrder => {
                "several partial accumulators need reductions that permit any order"
            }
            Rule::AccumulatorRange => {
                "there are 1 to U partial accumulators, and more than one only for a reduction"
            }
            Rule::FuseReduction => {
                "a reduction is fused only into the loop right before it, whose tile it reads"
            }
            Rule::LaneWidth => {
                "a subgroup has the lanes of a vector register, or of half of one (with AVX2 of at least 4 lanes)"
            }
            Rule::RegisterBudget => {
                "accumulators, a row of B vectors and a broadcast of A fit the vector registers"
            }
            Rule::PackRequired => {
                "an operand that is transposed or narrower than the accumulator is packed as needed"
            }
            Rule::EmptyTile => "tiles, steps and groups have nonzero extents",
            Rule::UnprovedRealisation => {
                "persistent accumulators, direct output and overwriting need their proofs"
            }
            Rule::CopyBatch => "a copy moves 1 to 16 elements",
            Rule::TileMultiple => {
                "groups and column blocks of a CPU product are multiples of its register tile"
            }
            Rule::StreamOutput => {
                "an output goes around the caches only if each element is written once, by a tile"
            }
            Rule::ClusterRange => {
                "a row is shared by 1 to the target's number of groups of a cluster, each with one \
                 program"
            }
            Rule::AheadLoads => {
                "inputs are loaded ahead of a reduction only if a phase after it reads one that \
                 none before does"
            }
            Rule::CacheHints => {
                "only a GPU whose register file is known takes hints about which rows its \
                 second-level cache keeps"
            }
            Rule::StageCopies => {
                "rows are staged in shared memory only where inputs are cached and every copy of \
                 them is proved whole: 4, 8 or 16 aligned bytes"
            }
            Rule::BatchRange => {
                "a group has 1 to 8 rows side by side, each row alone in its subgroups, all \
                 reductions in any order, no tensor both read and written, no loads ahead"
            }
            Rule::ResidentRange => {
                "a core holds the groups that are to be on it at the same time, by threads and \
                 shared memory"
            }
            Rule::SplitRange => {
                "several groups share a row over several launches only on a GPU that states its \
                 registers, for a known number of rows, with nothing kept, no cluster, one row a \
                 group, and reductions in any order"
            }
            Rule::GroupsLimit => "a launch has at most 2147483647 groups",
            Rule::ResourceSpills => {
                "a kernel whose compiler reports more than 64 bytes of spilled registers a thread is \
                 taken only where none of the next in rank does with less"
            }
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a candidate was rejected.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{rule}: {detail}")]
pub struct Rejection {
    /// The rule that it breaks.
    pub rule: Rule,
    /// The numbers that break it.
    pub detail: String,
}

impl Rejection {
    /// A rejection by a rule with its numbers.
    pub fn new(rule: Rule, detail: impl Into<String>) -> Self {
        Rejection { rule, detail: detail.into() }
    }
}

/// `Ok` if the condition holds, else a rejection.
pub(crate) fn require(
    holds: bool,
    rule: Rule,
    detail: impl FnOnce() -> String,
) -> Result<(), Rejection> {
    if holds { Ok(()) } else { Err(Rejection::new(rule, detail())) }
}

/// Most groups of one launch on a GPU that states its registers: CUDA programming guide, technical
/// specifications per compute capability (the x dimension of a grid).
pub(crate) const MOST_GROUPS: u64 = (1 << 31) - 1;

/// Whether a launch can have that many groups.
fn check_groups(groups: u64) -> Result<(), Rejection> {
    require(groups <= MOST_GROUPS, Rule::GroupsLimit, || {
        format!("{groups} groups, at most {MOST_GROUPS}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_kebab_case() {
        let mut names: Vec<&str> = Rule::ALL.iter().map(|r| r.name()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), Rule::ALL.len());
        assert!(names.iter().all(|n| n.chars().all(|c| c.is_ascii_lowercase() || c == '-')));
    }
}
