//! Legality of matrix mappings with subgroups and fragments (reference 2).

use super::{Rejection, Rule, require};
use crate::mapping::{MatrixBasis, MatrixMapping};
use crate::matrix::shared_bytes;
use crate::policy::FragmentGate;
use crate::problem::MatrixProblem;
use crate::target::GpuFacts;

/// Most fragments of one extent of a subgroup's tile (reference 2 rule 4).
pub const MAX_EXTENT_FRAGMENTS: u64 = 32;

/// Scalars that one 8×8 fragment takes in a lane of 32.
pub const SCALARS_PER_FRAGMENT: u64 = 2;

/// The rules in the order of reference 2. A candidate that no distribution makes legal is
/// rejected by the rule that stands last here among those that any of its distributions reached.
pub const ORDER: [Rule; 6] = [
    Rule::BlockMultiple,
    Rule::SubgroupCover,
    Rule::MppLocalMultiple,
    Rule::FragmentBudget,
    Rule::SharedMemory,
    Rule::FiniteScore,
];

/// The position of a rule in [`ORDER`]; rules that precede the order come before all of it.
pub fn reach(rule: Rule) -> usize {
    ORDER.iter().position(|r| *r == rule).map_or(0, |i| i + 1)
}

/// Rules that hold for a block whatever its distribution: target-dtype, matrix-atom, block-fixed,
/// stage-range, then rule 1 (block-multiple).
///
/// # Errors
/// Names the first rule that the block breaks.
pub fn check_block(
    problem: &MatrixProblem,
    gpu: &GpuFacts,
    basis: MatrixBasis,
    block: [u64; 3],
    stages: u32,
) -> Result<(), Rejection> {
    require(problem.accumulator == tilewright_ir::DType::F32, Rule::TargetDtype, || {
        format!("the atoms accumulate f32, not {}", problem.accumulator)
    })?;
    require(gpu.matrix.contains(&basis), Rule::MatrixAtom, || {
        let name = match basis {
            MatrixBasis::Simdgroup => "8x8 simdgroup fragments",
            MatrixBasis::Mpp => "MPP operations",
        };
        format!("the target has no {name}")
    })?;
    for ((name, extent), fixed) in ["BM", "BN", "BK"].iter().zip(block).zip(problem.fixed_block) {
        require(fixed.is_none_or(|f| f == extent), Rule::BlockFixed, || {
            format!("{name} = {extent}, the program has {}", fixed.unwrap_or_default())
        })?;
    }
    require((1..=2).contains(&stages), Rule::StageRange, || format!("window {stages}"))?;
    require(block.iter().all(|b| *b != 0 && b.is_multiple_of(8)), Rule::BlockMultiple, || {
        format!("block {}x{}x{}", block[0], block[1], block[2])
    })
}

/// Rules 2 to 4 of one distribution over a block that passed [`check_block`].
///
/// # Errors
/// Names the first rule that the distribution breaks.
pub fn check_distribution(
    gpu: &GpuFacts,
    basis: MatrixBasis,
    gate: FragmentGate,
    block: [u64; 3],
    subgroups: [u64; 2],
) -> Result<[u64; 2], Rejection> {
    let (u, v) = (block[0] / 8, block[1] / 8);
    let [gm, gn] = subgroups;
    require(
        gm != 0 && gn != 0 && u.is_multiple_of(gm) && v.is_multiple_of(gn),
        Rule::SubgroupCover,
        || format!("{gm}x{gn} subgroups over {u}x{v} atoms"),
    )?;
    let (rm, rn) = (u / gm, v / gn);
    if basis == MatrixBasis::Mpp {
        require(rm.is_multiple_of(2) || rn.is_multiple_of(2), Rule::MppLocalMultiple, || {
            format!("local matrix {}x{}", 8 * rm, 8 * rn)
        })?;
    }
    let fragments = match (basis, gate) {
        (MatrixBasis::Mpp, FragmentGate::AccumulatorsOnly) => rm.saturating_mul(rn),
        _ => rm.saturating_mul(rn).saturating_add(rm).saturating_add(rn),
    };
    let budget = gpu.fragment_scalars / SCALARS_PER_FRAGMENT;
    require(
        rm <= MAX_EXTENT_FRAGMENTS && rn <= MAX_EXTENT_FRAGMENTS && fragments <= budget,
        Rule::FragmentBudget,
        || format!("{rm}x{rn} atoms take {fragments} fragments a lane, at most {budget}"),
    )?;
    Ok([rm, rn])
}

/// Rule 5: shared memory.
///
/// # Errors
/// The mapping needs more than a group may have.
pub fn check_shared(
    problem: &MatrixProblem,
    gpu: &GpuFacts,
    mapping: &MatrixMapping,
) -> Result<(), Rejection> {
    let bytes = shared_bytes(problem, mapping);
    require(bytes <= gpu.shared_bytes, Rule::SharedMemory, || {
        format!("{bytes} bytes, at most {}", gpu.shared_bytes)
    })
}
