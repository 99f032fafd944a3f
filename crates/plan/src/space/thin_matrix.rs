//! Mappings of thin products on GPUs, whose operands are read where they lie.

use tilewright_ir::Program;
use tilewright_ir::facts::{MatrixFacts, OperandFact};
use tilewright_ir::program::{Extent, Strides};

use super::gpu_matrix::slices;
use crate::mapping::GpuMatrixMapping;
use crate::policy::gpu_matrix::resident;
use crate::problem::MatrixProblem;
use crate::target::GpuFacts;

/// The longest short side.
const THIN: u64 = 4;
/// Subgroups over the long side, and sets that split K.
const SPLIT: [[u32; 2]; 5] = [[4, 1], [8, 1], [4, 2], [2, 4], [1, 8]];
/// Sets that split K where lanes lie along the long side.
const SPREAD: [u32; 3] = [4, 8, 16];
/// Elements of K that a set takes in a trip there.
const SHARES: [u32; 3] = [4, 8, 16];
/// Most elements of both operands that a lane holds.
const HELD: u32 = 96;

/// The widest reads of A and of B along K for which alignment is proved: 4 elements or 1, 0 where K
/// isn't consecutive.
pub fn along(program: &Program, facts: &MatrixFacts) -> [u32; 2] {
    let width = |operand: &OperandFact, rows: usize| {
        let Some(tensor) = program.tensors.get(operand.tensor) else { return 0 };
        // K is innermost of A as it is written and of B transposed; else it is where the rows have
        // one element.
        let turned = (rows == 0) != operand.transposed;
        let vectors = |extent: Extent| program.divisor(extent).is_multiple_of(4);
        let row = program.known(facts.size[rows]);
        let (consecutive, aligned) = match &tensor.strides {
            Strides::Packed => (turned || row == Some(1), vectors(facts.size[2])),
            Strides::Explicit(strides) => {
                let inner = strides.last().and_then(|s| program.known(*s)) == Some(1);
                let outer = strides.iter().take(strides.len().saturating_sub(1));
                let aligned = vectors(facts.size[2]) && outer.clone().all(|s| vectors(*s));
                (turned && inner, aligned)
            }
        };
        let aligned = aligned && tensor.align.is_multiple_of(4 * tensor.dtype.bytes());
        match (consecutive, aligned) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => 4,
        }
    };
    [width(&facts.a, 0), width(&facts.b, 1)]
}

/// The mappings, in this order: lanes that split K, then lanes along the long side; lane tiles;
/// subgroups; elements of K a trip; slices. None where the short side is longer than 4.
///
/// Lanes split K where it is consecutive in both operands, and lie along the long side where that
/// is consecutive in its operand.
pub fn mappings(problem: &MatrixProblem, gpu: &GpuFacts) -> Vec<GpuMatrixMapping> {
    let [m, n, k] = problem.size.map(|s| s.max(1));
    let mut out = Vec::new();
    if m.min(n) > THIN || gpu.lanes != 32 {
        return out;
    }
    let long = usize::from(n >= m);
    let short = problem.size[1 - long].max(1).next_power_of_two() as u32;
    let pair = |at_long: u32, at_short: u32| {
        let mut pair = [at_short; 2];
        pair[long] = at_long;
        pair
    };
    let mut add = |mapping: GpuMatrixMapping, held: u32| {
        let block = mapping.block();
        let groups = problem.batch.max(1) * m.div_ceil(block[0]) * n.div_ceil(block[1]);
        // A trip beyond K brings nothing, unless it is the shortest there is.
        let longer = u64::from(mapping.depth) / 2 >= k && mapping.depth > 32 * mapping.warps[2];
        let few = groups < u64::from(gpu.cores) / 4 && mapping.warps[2] == 1;
        if held * (mapping.tile[0] + mapping.tile[1]) > HELD || longer || few {
            return;
        }
        for slices in slices(problem, groups, gpu.cores.into(), mapping.depth).into_iter().take(2) {
            let mapping = GpuMatrixMapping { slices, ..mapping };
            let each = (groups * u64::from(slices)).div_ceil(gpu.cores.into());
            let held =
                u64::from(resident(gpu, problem.transposed, &mapping)).min(each).max(1) as u32;
            out.push(GpuMatrixMapping { resident: held, ..mapping });
        }
    };
    let base =
        GpuMatrixMapping { lanes: [1, 1], tile: [short; 2], stages: 1, ..GpuMatrixMapping::ONE };
    let width = problem.along[0].min(problem.along[1]);
    if width > 0 && problem.reassociable {
        for tile in [1, 2, 4] {
            for [over, sets] in SPLIT {
                for chunks in if width == 4 { [1, 2, 4] } else { [2, 4, 8] } {
                    let [warps_m, warps_n] = pair(over, 1);
                    let mapping = GpuMatrixMapping {
                        warps: [warps_m, warps_n, sets],
                        tile: pair(tile, short),
                        depth: 32 * width * chunks * sets,
                        copy: [width; 2],
                        ..base
                    };
                    add(mapping, width * chunks);
                }
            }
        }
    }
    // Consecutive along the output: what a copy to shared memory needn't turn.
    let turned = (long == 0) != problem.transposed[long];
    if !turned {
        for tile in [1, 2, 4] {
            for sets in SPREAD.into_iter().filter(|sets| *sets == 1 || problem.reassociable) {
                for share in SHARES {
                    let wide = if problem.copies[long].is_multiple_of(tile) { tile } else { 1 };
                    let common = if problem.along[1 - long] == 4 { 4 } else { 1 };
                    let mapping = GpuMatrixMapping {
                        warps: [1, 1, sets],
                        lanes: pair(32, 1),
                        tile: pair(tile, short),
                        depth: share * sets,
                        copy: pair(wide, common),
                        ..base
                    };
                    add(mapping, share);
                }
            }
        }
    }
    out
}
