//! The candidate space of matrix products with register tiles on GPUs: lane tiles, subgroups over
//! rows, columns and K, steps, stages and slices.

use tilewright_ir::Program;
use tilewright_ir::facts::{MatrixFacts, OperandFact};
use tilewright_ir::program::{Extent, Strides};

use crate::mapping::GpuMatrixMapping;
use crate::policy::gpu_matrix::resident;
use crate::problem::MatrixProblem;
use crate::target::GpuFacts;

/// Lane tiles and lane grids that are tried. A subgroup's tile is the product of both.
const TILES: [([u32; 2], [u32; 2]); 20] = [
    ([8, 8], [4, 8]),
    ([16, 8], [4, 8]),
    ([8, 16], [8, 4]),
    ([8, 4], [4, 8]),
    ([4, 8], [4, 8]),
    ([4, 8], [8, 4]),
    ([4, 4], [4, 8]),
    ([4, 4], [8, 4]),
    ([2, 4], [4, 8]),
    ([4, 2], [8, 4]),
    ([2, 2], [4, 8]),
    ([4, 4], [2, 16]),
    ([8, 4], [2, 16]),
    ([8, 8], [2, 16]),
    ([4, 8], [16, 2]),
    ([8, 8], [16, 2]),
    ([1, 4], [1, 32]),
    ([2, 4], [1, 32]),
    ([4, 1], [32, 1]),
    ([4, 2], [32, 1]),
];

/// Subgroups over rows, columns and K.
const WARPS: [[u32; 3]; 24] = [
    [1, 1, 1],
    [2, 1, 1],
    [1, 2, 1],
    [1, 1, 2],
    [2, 2, 1],
    [4, 1, 1],
    [1, 4, 1],
    [1, 1, 4],
    [2, 1, 2],
    [1, 2, 2],
    [4, 2, 1],
    [2, 4, 1],
    [2, 2, 2],
    [2, 1, 4],
    [1, 2, 4],
    [1, 1, 8],
    [8, 1, 1],
    [1, 8, 1],
    [1, 4, 2],
    [4, 1, 2],
    [4, 4, 1],
    [2, 2, 4],
    [2, 1, 8],
    [1, 2, 8],
];

/// Elements of K that one subgroup multiplies per step.
const TRIPS: [u32; 3] = [4, 8, 16];
const STAGES: [u32; 3] = [2, 3, 4];
const SLICES: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// Most products of a lane in one trip of the loop over K.
const LONGEST_TRIP: u32 = 2048;

/// The widest copies of A and of B for which alignment is proved: 4 elements, or 1.
pub fn copies(program: &Program, facts: &MatrixFacts) -> [u32; 2] {
    let width = |operand: &OperandFact, rows: usize| {
        let Some(tensor) = program.tensors.get(operand.tensor) else { return 1 };
        let dims = tensor.shape.len();
        // K is innermost of A as it is written and of B transposed: then it is turned on the way.
        let turned = (rows == 0) != operand.transposed;
        let vectors = |extent: Extent| program.divisor(extent).is_multiple_of(4);
        let aligned = match &tensor.strides {
            Strides::Packed => {
                tensor.shape.iter().skip(dims.saturating_sub(1)).all(|e| vectors(*e))
            }
            Strides::Explicit(strides) => {
                strides.iter().take(dims.saturating_sub(1)).all(|s| vectors(*s))
                    && strides.last().and_then(|s| program.known(*s)) == Some(1)
            }
        };
        let wide = !turned && aligned && vectors(facts.size[rows]);
        if wide && tensor.align.is_multiple_of(4 * tensor.dtype.bytes()) { 4 } else { 1 }
    };
    [width(&facts.a, 0), width(&facts.b, 1)]
}

/// Every candidate mapping, legal or not, in a fixed order. `copies` are the proved copy widths.
pub fn candidates(
    problem: &MatrixProblem,
    gpu: &GpuFacts,
    copies: [u32; 2],
) -> Vec<GpuMatrixMapping> {
    let [m, n, k] = problem.size.map(|s| s.max(1));
    let mut out = Vec::new();
    for (tile, lanes) in TILES {
        for warps in WARPS {
            let base = GpuMatrixMapping {
                warps,
                lanes,
                tile,
                depth: 0,
                stages: 2,
                unroll: 1,
                slices: 1,
                copy: copies,
                resident: 1,
            };
            let block = base.block();
            // A block twice as long as the output computes nothing more than half of it does.
            if [m, n].iter().zip(block).any(|(size, b)| b > 16 && b / 2 >= *size) {
                continue;
            }
            let copy = [0, 1].map(|i| if block[i] < 4 { 1 } else { copies[i] });
            for trips in TRIPS {
                let depth = trips * warps[2];
                if u64::from(depth) / 2 >= k && trips > TRIPS[0] || depth > 128 {
                    continue;
                }
                let groups = problem.batch * m.div_ceil(block[0]) * n.div_ceil(block[1]);
                for slices in SLICES {
                    // Slices are for few groups, and of several steps each.
                    let crowded = groups * u64::from(slices) > 8 * u64::from(gpu.cores);
                    let short = k < u64::from(slices) * u64::from(depth) * 2;
                    if slices > 1 && (crowded || short || !problem.is_static[0]) {
                        continue;
                    }
                    let steps = k.div_ceil(u64::from(slices) * u64::from(depth));
                    for stages in STAGES {
                        if stages > 2 && u64::from(stages) > steps + 1 {
                            continue;
                        }
                        let mapping = GpuMatrixMapping { depth, stages, slices, copy, ..base };
                        // No more than the launch needs: the fewer, the more registers each has.
                        let needed = (groups * u64::from(slices)).div_ceil(gpu.cores.into());
                        let resident = u64::from(resident(gpu, &mapping)).min(needed).max(1);
                        let resident = resident as u32;
                        out.push(GpuMatrixMapping { resident, ..mapping });
                        // Longer trips pay where there are many, while their text stays short.
                        let products = trips * tile[0] * tile[1] * stages;
                        if steps >= 4 * u64::from(stages) && products <= LONGEST_TRIP {
                            out.push(GpuMatrixMapping { resident, unroll: stages, ..mapping });
                        }
                    }
                }
            }
        }
    }
    out
}
