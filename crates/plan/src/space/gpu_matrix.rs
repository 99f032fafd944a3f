//! Candidates of matrix products with register tiles on GPUs: lane tiles, subgroups over rows,
//! columns and K, steps, stages and slices.
//!
//! [`candidates`] is the whole product of choices, thousands of mappings: what an exhaustive
//! search draws from. [`space`] is the space that a plan ranks: the same lane tiles and subgroups,
//! with the choices that follow from them by rule.

use std::collections::HashMap;

use tilewright_ir::Program;
use tilewright_ir::facts::{MatrixFacts, OperandFact};
use tilewright_ir::program::{Extent, Strides};

use super::{Unscored, thin_matrix};
use crate::legality::{self, Rule};
use crate::mapping::{GpuMatrixMapping, Mapping};
use crate::policy::CandidateFacts;
use crate::policy::gpu_matrix::{GpuMatrixCounts, resident};
use crate::problem::MatrixProblem;
use crate::request::{PlanError, SpaceOptions};
use crate::target::GpuFacts;

/// Lane tiles and lane grids that are tried. A subgroup's tile is the product of both.
const TILES: [([u32; 2], [u32; 2]); 22] = [
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
    ([1, 2], [4, 8]),
    ([2, 1], [8, 4]),
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

/// Most elements of K per step.
const DEEPEST: u32 = 128;

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

/// Elements per copy of A and of B for a block, where `copies` are proved along the output.
///
/// Where K is innermost they are vectors along K if those are proved, but for A of a product that
/// transposes neither operand: all labels are of such products, with single elements of A.
fn widths(problem: &MatrixProblem, copies: [u32; 2], block: [u64; 2]) -> [u32; 2] {
    [0, 1].map(|i| {
        let turned = (i == 0) != problem.transposed[i];
        match turned && problem.transposed != [false; 2] && problem.along[i] == 4 {
            true => 4,
            false if block[i] < 4 => 1,
            false => copies[i],
        }
    })
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
            let base = GpuMatrixMapping { copy: copies, ..block(warps, lanes, tile) };
            let block = base.block();
            // A block twice as long as the output computes nothing more than half of it does.
            if [m, n].iter().zip(block).any(|(size, b)| b > 16 && b / 2 >= *size) {
                continue;
            }
            let copy = widths(problem, copies, block);
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
                        let resident = u64::from(resident(gpu, problem.transposed, &mapping))
                            .min(needed)
                            .max(1);
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

/// Most subgroups of a group in [`space`], and at its widest: wider groups wait longer at their
/// barriers.
const WIDEST: [u32; 2] = [8, 16];
/// Most groups a core, and cores that one group at least is there for.
const CROWD: u64 = 48;
const IDLE: u64 = 4;
/// Elements of an output for which lane tiles of two elements are tried.
const SMALL: u64 = 128 * 128;
/// Candidates that [`space`] has at most.
pub const SPACE: usize = 256;

/// How many choices a block leaves, widest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Choices {
    /// Groups of up to 16 subgroups, and blocks that leave cores idle.
    wide: bool,
    /// Elements of K that a subgroup multiplies per step.
    trips: &'static [u32],
    stages: &'static [u32],
    /// Loops of one step a trip beside longer trips.
    short_trips: bool,
    /// Mappings of one block, number of sets and number of slices.
    kin: usize,
    /// Numbers of slices.
    slices: usize,
}

const ALL: usize = usize::MAX;

/// Every choice, for outputs of a few blocks.
const EVERY: Choices = Choices {
    wide: true,
    trips: &[4, 8, 16],
    stages: &[2, 3, 4],
    short_trips: true,
    kin: ALL,
    slices: ALL,
};
/// Two steps for a block with its subgroups and slices.
const FEW: Choices = Choices {
    wide: false,
    trips: &[8, 16],
    stages: &[4],
    short_trips: false,
    kin: ALL,
    slices: ALL,
};

const WIDTHS: [Choices; 13] = [
    EVERY,
    Choices { short_trips: false, ..EVERY },
    Choices { trips: &[8, 16], short_trips: false, ..EVERY },
    Choices { trips: &[8, 16], stages: &[2, 4], short_trips: false, ..EVERY },
    Choices { wide: false, trips: &[8, 16], short_trips: false, ..EVERY },
    Choices { stages: &[2, 4], ..FEW },
    FEW,
    Choices { kin: 4, ..FEW },
    Choices { kin: 3, ..FEW },
    Choices { kin: 2, ..FEW },
    Choices { kin: 2, slices: 2, ..FEW },
    Choices { kin: 1, slices: 2, ..FEW },
    Choices { trips: &[16], kin: 1, slices: 2, ..FEW },
];

/// The candidates that a plan ranks, each with its verdict, in a fixed order; at most [`SPACE`].
///
/// Of the product of lane tiles and subgroups it takes those whose block
/// - is less than twice as long as the output in either direction, unless it is short,
/// - gives a group at most 8 subgroups (16 at the widest),
/// - isn't 8 times as long as wide, unless the output is that narrow,
/// - leaves at most 48 groups a core, unless every block leaves more, and with slices at least one for every 4 cores (or an eighth
///   of those that the smallest block gives, one at the widest).
///
/// What else a mapping says has the more choices the fewer blocks there are: the widest of these
/// that keeps the space within its size. At the widest a subgroup multiplies 4, 8 or 16 elements
/// of K per step, with 2 to 4 stages, one step a trip or as many as there are stages; at the
/// narrowest 8 or 16, 4 stages as far as there are steps and a long trip has room for, and of the
/// mappings of one block those with the largest lane tiles. Slices: one, and those that fill the
/// cores half to twice while each keeps four steps.
///
/// Thin outputs have mappings that read their operands in place beside them, last: see
/// [`thin_matrix::mappings`].
///
/// # Errors
/// More candidates than the request's budget.
pub fn space(
    problem: &MatrixProblem,
    gpu: &GpuFacts,
    options: &SpaceOptions,
) -> Result<Vec<Unscored>, PlanError> {
    let bases = bases(problem);
    let thin = thin_matrix::mappings(problem, gpu);
    let mut found = Vec::new();
    // Of an output of very many blocks there is nothing with few groups.
    for crowd in [CROWD, u64::MAX] {
        for choices in &WIDTHS {
            found = mappings(problem, gpu, &bases, choices, crowd);
            if found.len() + thin.len() <= SPACE {
                break;
            }
        }
        if !found.is_empty() {
            break;
        }
    }
    found.extend(thin);
    let mut out = Vec::new();
    for mapping in found {
        let [bm, bn] = mapping.block();
        let block = [bm, bn, u64::from(mapping.depth)];
        let threads = |list: &Vec<u32>| list.iter().any(|t| u64::from(*t) == mapping.threads());
        let wanted = options.blocks.as_ref().is_none_or(|list| list.contains(&block))
            && options.threads.as_ref().is_none_or(threads)
            && options.stages.as_ref().is_none_or(|list| list.contains(&mapping.stages));
        if !wanted {
            continue;
        }
        if out.len() == options.max_candidates {
            let detail = format!("more than {} candidates", options.max_candidates);
            return Err(PlanError::illegal(Rule::SearchBudget, detail));
        }
        out.push(Unscored {
            verdict: legality::gpu_matrix::check(problem, gpu, &mapping, problem.copies),
            facts: CandidateFacts::GpuMatrix(GpuMatrixCounts::new(problem, gpu, &mapping)),
            mapping: Mapping::GpuMatrix(mapping),
        });
    }
    Ok(out)
}

/// Lane tiles and subgroups whose blocks suit the output, the largest lane tiles first.
fn bases(problem: &MatrixProblem) -> Vec<GpuMatrixMapping> {
    let [m, n, _] = problem.size.map(|s| s.max(1));
    let mut out = Vec::new();
    for (tile, lanes) in TILES {
        for warps in WARPS {
            let base = block(warps, lanes, tile);
            let block = base.block();
            let longer = [m, n].iter().zip(block).any(|(size, b)| b > 8 && b / 2 >= *size);
            let narrow = (0..2).any(|i| block[i] * 8 <= block[1 - i] && [m, n][i] > 2 * block[i]);
            let tiny = tile[0] * tile[1] < 4 && m.saturating_mul(n) > SMALL;
            if !(longer || narrow || tiny) {
                out.push(base);
            }
        }
    }
    if out.is_empty() {
        out = smallest(problem);
    }
    out.sort_by_key(|b| std::cmp::Reverse(b.tile[0] * b.tile[1]));
    out
}

/// One subgroup with the lane tiles whose blocks cover an output of a few elements with the least
/// beyond it: for outputs that are smaller than every block.
fn smallest(problem: &MatrixProblem) -> Vec<GpuMatrixMapping> {
    let [m, n, _] = problem.size.map(|s| s.max(1));
    let covered = |b: &GpuMatrixMapping| {
        let [bm, bn] = b.block();
        m.next_multiple_of(bm) * n.next_multiple_of(bn)
    };
    let all: Vec<GpuMatrixMapping> =
        TILES.iter().map(|(tile, lanes)| block([1; 3], *lanes, *tile)).collect();
    let least = all.iter().map(covered).min().unwrap_or(0);
    all.into_iter().filter(|b| covered(b) <= 2 * least).collect()
}

/// A mapping of a block, with the rest to be chosen.
fn block(warps: [u32; 3], lanes: [u32; 2], tile: [u32; 2]) -> GpuMatrixMapping {
    GpuMatrixMapping { warps, lanes, tile, ..GpuMatrixMapping::ONE }
}

/// Register tile of a worker and the group's warps.
type Shape = ([u32; 2], [u32; 3]);

/// The mappings of [`space`] with some choices.
fn mappings(
    problem: &MatrixProblem,
    gpu: &GpuFacts,
    bases: &[GpuMatrixMapping],
    choices: &Choices,
    crowd: u64,
) -> Vec<GpuMatrixMapping> {
    let [m, n, k] = problem.size.map(|s| s.max(1));
    let cores = u64::from(gpu.cores.max(1));
    let groups_of = |[bm, bn]: [u64; 2]| problem.batch.max(1) * m.div_ceil(bm) * n.div_ceil(bn);
    let most = bases.iter().map(|b| groups_of(b.block())).max().unwrap_or(1);
    let useful = if choices.wide { 1 } else { (cores / IDLE).min(most.div_ceil(2 * IDLE)) };
    let mut kin: HashMap<([u64; 2], u32, u32), Vec<Shape>> = HashMap::new();
    let mut out = Vec::new();
    for base in bases {
        let (block, groups) = (base.block(), groups_of(base.block()));
        let widest = WIDEST[usize::from(choices.wide)];
        if base.threads() > u64::from(32 * widest) {
            continue;
        }
        let copy = widths(problem, problem.copies, block);
        let fewest = choices.trips.iter().copied().min().unwrap_or(TRIPS[0]);
        for &trips in choices.trips {
            let depth = trips * base.warps[2];
            // A step beyond K brings nothing, unless it is the shortest there is.
            if depth > DEEPEST || trips > fewest && u64::from(depth) / 2 >= k {
                continue;
            }
            for slices in slices(problem, groups, cores, depth).into_iter().take(choices.slices) {
                let all = groups * u64::from(slices);
                if groups > crowd.saturating_mul(cores) || all < useful {
                    continue;
                }
                let kin = kin.entry((block, base.warps[2], slices)).or_default();
                if !kin.contains(&(base.tile, base.warps)) {
                    if kin.len() >= choices.kin {
                        continue;
                    }
                    kin.push((base.tile, base.warps));
                }
                let steps = k.div_ceil(u64::from(slices) * u64::from(depth));
                for &stages in choices.stages {
                    // No more stages than there are steps, nor than a long trip has room for.
                    let room = (LONGEST_TRIP / (trips * base.tile[0] * base.tile[1])).max(2);
                    let room = if choices.short_trips { stages } else { room };
                    let stages = u64::from(stages.min(room)).min(steps + 1).max(2) as u32;
                    let products = trips * base.tile[0] * base.tile[1] * stages;
                    let looped = steps >= 4 * u64::from(stages) && products <= LONGEST_TRIP;
                    let unrolls = match (looped, choices.short_trips) {
                        (true, true) => vec![1, stages],
                        (true, false) => vec![stages],
                        (false, _) => vec![1],
                    };
                    for unroll in unrolls {
                        let mapping =
                            GpuMatrixMapping { depth, stages, unroll, slices, copy, ..*base };
                        let held = u64::from(resident(gpu, problem.transposed, &mapping))
                            .min(all.div_ceil(cores));
                        let mapping = GpuMatrixMapping { resident: held.max(1) as u32, ..mapping };
                        if !out.contains(&mapping) {
                            out.push(mapping);
                        }
                    }
                }
            }
        }
    }
    out
}

/// Numbers of slices that are tried: one, and powers of two that fill the cores half to twice
/// while each slice keeps at least four steps; the one that fills them once comes second.
pub(super) fn slices(problem: &MatrixProblem, groups: u64, cores: u64, depth: u32) -> Vec<u32> {
    let mut out = vec![1];
    if !(problem.reassociable && problem.is_static[0] && problem.is_static[1]) {
        return out;
    }
    for slices in SLICES.into_iter().skip(1) {
        let all = groups * u64::from(slices);
        let short = problem.size[2] < u64::from(slices) * u64::from(depth) * 4;
        if 2 * all > cores && all <= 2 * cores && !short {
            out.push(slices);
        }
    }
    out
}
