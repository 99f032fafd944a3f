//! Mappings that spread a row over groups of several launches, for few, very long rows.

use crate::mapping::RowMapping;
use crate::problem::RowProblem;
use crate::target::GpuFacts;

/// Columns from which on they are tried for any number of rows, and for at most [`FEW`]: a cluster
/// of 16 groups for each row then leaves cores idle.
const LONG: u64 = 1 << 18;
const LONG_OF_FEW: u64 = 1 << 16;
const FEW: u64 = 8;
/// Columns from which on they are tried where nothing is reduced and there are fewer rows than
/// four a core: then one launch does it.
const FLAT: u64 = 1 << 13;
/// Subgroups of a group.
const SUBGROUPS: [u32; 3] = [4, 8, 16];
/// Groups a row that are tried for any number of rows.
const FEWEST: [u64; 3] = [2, 4, 8];
/// Groups of a launch, as multiples of the cores.
const FILLS: [u64; 6] = [1, 2, 4, 8, 16, 32];
/// Most groups a row where their results are folded: each group of the next launch reads them.
const MOST_FOLDED: u64 = 1024;

/// The mappings, in this order: subgroups, vector width from the widest down, groups per row,
/// accumulators. `alone` says that nothing else is legal, for whatever length. Nothing is kept, so
/// rows of any length have one.
///
/// There are 2, 4, 8, or as many groups a row as fill the cores 1 to 32 times, each with a vector for
/// each of its workers; at most 1024 where there are reductions.
pub fn mappings(
    problem: &RowProblem,
    gpu: &GpuFacts,
    vectors: &[u32],
    accumulators: &[u32],
    alone: bool,
) -> Vec<RowMapping> {
    let (rows, columns) = (problem.programs.max(1), problem.columns);
    let flat = problem.reductions.is_empty();
    let cores = u64::from(gpu.cores.max(1));
    let wanted = columns >= LONG
        || columns >= LONG_OF_FEW && rows <= FEW
        || columns >= FLAT && flat && rows < 4 * cores;
    let ordered = problem.reductions.iter().any(|r| !r.unordered);
    let mut out: Vec<RowMapping> = Vec::new();
    if !(wanted || alone) || ordered || !problem.static_grid {
        return out;
    }
    for subgroups in SUBGROUPS {
        for &vector in vectors {
            let base =
                RowMapping { lanes: gpu.lanes, subgroups, vector, fuse: true, ..RowMapping::ONE };
            let room = columns / (base.group_workers() * u64::from(vector)).max(1);
            let most = if flat { room } else { room.min(MOST_FOLDED) };
            let filling = FILLS.iter().map(|fill| (fill * cores).div_ceil(rows));
            for split in FEWEST.into_iter().chain(filling).map(|split| split.min(most)) {
                // A launch has at most 2^31 groups, and so has a row.
                let Ok(split) = u32::try_from(split) else { continue };
                for &sets in accumulators {
                    let workers = base.group_workers() * u64::from(split);
                    let chunks = columns / (workers * u64::from(vector)).max(1);
                    let accumulators = if flat { 1 } else { sets };
                    let mapping = RowMapping { split, unroll: sets, accumulators, ..base };
                    if split >= 2
                        && (sets == 1 || chunks >= u64::from(sets))
                        && !out.contains(&mapping)
                    {
                        out.push(mapping);
                    }
                }
            }
        }
    }
    out
}
