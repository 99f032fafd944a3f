//! Closed forms of matrix mappings with subgroups and fragments (reference 2 and 4). Lowering
//! asserts that what it emits equals them.

use crate::mapping::{MatrixBasis, MatrixMapping};
use crate::problem::MatrixProblem;

/// Bytes of shared memory of one group (reference 2 rule 5): staged operands, one copy per
/// pipeline stage, plus the buffers of C and D, minus what fragments release: both with direct
/// output, one with only a persistent accumulator.
pub fn shared_bytes(problem: &MatrixProblem, mapping: &MatrixMapping) -> u64 {
    let [bm, bn, bk] = mapping.block;
    let operand = problem.operand.bytes();
    let stages = u64::from(mapping.stages.max(1));
    let staged = |forwarded: bool, rows: u64, columns: u64| {
        if forwarded { 0 } else { area(rows, columns).saturating_mul(operand * stages) }
    };
    let result = area(bm, bn).saturating_mul(problem.accumulator.bytes());
    let buffers = match (mapping.direct, mapping.persistent) {
        (true, _) => 0,
        (false, true) => result,
        (false, false) => result.saturating_mul(2),
    };
    staged(mapping.forward_a, bm, bk)
        .saturating_add(staged(mapping.forward_b, bk, bn))
        .saturating_add(buffers)
}

/// Barrier sites of one group: places in the kernel's text, whatever the trip count of a K loop
/// that has at least one trip.
///
/// Staged operands need two in the K loop: every copy is complete before a fragment is loaded, and
/// every fragment is loaded before the next copies; with two pipeline stages the next copies go
/// elsewhere, and one is enough. A result that isn't stored directly needs one more before the
/// shared result is copied out. An accumulator that isn't persistent passes through shared memory
/// in every iteration: copies and the old result are complete before the products, and the new
/// result before it is copied back.
pub fn barriers(mapping: &MatrixMapping) -> u64 {
    let staged = !mapping.forward_a || !mapping.forward_b;
    match (mapping.direct, mapping.persistent) {
        (false, false) => 2,
        (direct, _) => {
            let each = if mapping.stages > 1 { 1 } else { 2 };
            each * u64::from(staged) + u64::from(!direct)
        }
    }
}

/// [`barriers`] of a problem, of which a K of 0 leaves no K loop.
pub fn barrier_sites(problem: &MatrixProblem, mapping: &MatrixMapping) -> u64 {
    if problem.is_static[2] && problem.size[2] == 0 {
        u64::from(mapping.persistent && !mapping.direct)
    } else {
        barriers(mapping)
    }
}

fn area(rows: u64, columns: u64) -> u64 {
    rows.saturating_mul(columns)
}

/// The features that the matrix policies price (reference 4), of one program instance.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct MatrixFeatures {
    /// 8×8×8 products, A·Q·E.
    pub matrix_issues: f64,
    /// 8×8 fragments moved between registers and shared memory.
    pub shared_fragment_transfers: f64,
    /// 8×8 fragments stored straight to the output.
    pub direct_fragment_stores: f64,
    /// MPP tensor operations.
    pub metal_mpp_operations: f64,
    /// Operand fragments that MPP operations read.
    pub memory_fragment_reads: f64,
    /// Fragments of A's footprint.
    pub lhs_footprint_fragments: f64,
    /// Fragments of B's footprint.
    pub rhs_footprint_fragments: f64,
    /// Accumulator fragments that are initialised.
    pub accumulator_initializations: f64,
    /// Fragments times how far the block is from a square.
    pub tile_aspect_fragments: f64,
    /// Issues times how far a subgroup's tile is from square, if it is tall.
    pub local_row_aspect_issues: f64,
    /// Issues times how far a subgroup's tile is from square, if it is wide.
    pub local_column_aspect_issues: f64,
}

impl MatrixFeatures {
    /// Names and values in the order of reference 4.
    pub fn named(&self) -> [(&'static str, f64); 11] {
        [
            ("matrix_issues", self.matrix_issues),
            ("shared_fragment_transfers", self.shared_fragment_transfers),
            ("direct_fragment_stores", self.direct_fragment_stores),
            ("metal_mpp_operations", self.metal_mpp_operations),
            ("memory_fragment_reads", self.memory_fragment_reads),
            ("lhs_footprint_fragments", self.lhs_footprint_fragments),
            ("rhs_footprint_fragments", self.rhs_footprint_fragments),
            ("accumulator_initializations", self.accumulator_initializations),
            ("tile_aspect_fragments", self.tile_aspect_fragments),
            ("local_row_aspect_issues", self.local_row_aspect_issues),
            ("local_column_aspect_issues", self.local_column_aspect_issues),
        ]
    }
}

/// What a matrix mapping amounts to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MatrixCounts {
    /// Program instances, P.
    pub programs: u64,
    /// K iterations, E.
    pub executions: u64,
    /// Σ min(BK, K − k0) over the K iterations: the physical K; only if K is static.
    pub physical_k: Option<u64>,
    /// Subgroups of a group, G.
    pub subgroups: u64,
    /// Elements that scalar loops touch in one program (reference 4): fill, store, yield copies
    /// and staged copies, plus one per epilogue operation or load. Counted even where the
    /// realisation elides the loop.
    pub independent_elements: u64,
    /// Of these, elements of loops that the realisation removes: yield copies of a persistent
    /// accumulator, and fill and store with direct output.
    pub removed_elements: u64,
    /// Shared bytes of a group.
    pub shared_bytes: u64,
    /// Barrier sites of a group.
    pub barriers: u64,
    /// Accumulator and, on the simdgroup basis, operand scalars per lane.
    pub fragment_scalars_per_lane: u64,
    /// Features.
    pub features: MatrixFeatures,
}

impl MatrixCounts {
    /// Counts a mapping of a problem. The mapping should cover its block; the counts of another
    /// one mean nothing.
    pub fn new(problem: &MatrixProblem, mapping: &MatrixMapping) -> Self {
        let [bm, bn, bk] = mapping.block;
        let executions = problem.executions(mapping.block);
        let [gm, gn] = mapping.subgroups;
        let subgroups = gm.saturating_mul(gn);
        let [rm, rn] = mapping.atoms;
        let result = area(bm, bn);
        let staged = (if mapping.forward_a { 0 } else { area(bm, bk) })
            .saturating_add(if mapping.forward_b { 0 } else { area(bk, bn) });
        let yields = executions.saturating_mul(result);
        let ends = result.saturating_mul(2);
        let steps = problem.epilogue_ops.saturating_add(problem.epilogue_loads);
        let epilogue = steps.saturating_mul(result);
        let independent_elements = ends
            .saturating_add(yields)
            .saturating_add(executions.saturating_mul(staged))
            .saturating_add(epilogue);
        let removed_elements = (if mapping.persistent { yields } else { 0 })
            .saturating_add(if mapping.direct { ends } else { 0 });
        MatrixCounts {
            programs: problem.programs(mapping.block),
            executions,
            physical_k: problem.is_static[2].then_some(problem.size[2]),
            subgroups,
            independent_elements,
            removed_elements,
            shared_bytes: shared_bytes(problem, mapping),
            barriers: barrier_sites(problem, mapping),
            fragment_scalars_per_lane: match mapping.basis {
                MatrixBasis::Mpp => rm.saturating_mul(rn).saturating_mul(2),
                MatrixBasis::Simdgroup => {
                    let operands = rm.saturating_add(rn);
                    rm.saturating_mul(rn).saturating_add(operands).saturating_mul(2)
                }
            },
            features: features(mapping, executions as f64, subgroups as f64),
        }
    }
}

/// The features of reference 3.1 (simdgroup) and 4 (MPP), in a fixed order of operations.
fn features(mapping: &MatrixMapping, executions: f64, subgroups: f64) -> MatrixFeatures {
    let [bm, bn, bk] = mapping.block.map(|extent| extent as f64);
    let (u, v, q) = (bm / 8.0, bn / 8.0, bk / 8.0);
    let [rm, rn] = mapping.atoms.map(|count| count as f64);
    let atoms = u * v;
    // Iterations of the closed recurrence equal the executions, so E/L is 1.
    let accumulations = if mapping.persistent { 1.0 } else { executions };
    let matrix_issues = atoms * q * executions;
    let stores = atoms * accumulations;
    match mapping.basis {
        MatrixBasis::Simdgroup => MatrixFeatures {
            matrix_issues,
            shared_fragment_transfers: subgroups * (rm + rn) * q * executions
                + if mapping.direct { 0.0 } else { 2.0 * stores },
            direct_fragment_stores: if mapping.direct { stores } else { 0.0 },
            ..MatrixFeatures::default()
        },
        MatrixBasis::Mpp => MatrixFeatures {
            matrix_issues,
            shared_fragment_transfers: if mapping.direct { 0.0 } else { stores },
            direct_fragment_stores: if mapping.direct { stores } else { 0.0 },
            metal_mpp_operations: subgroups * executions,
            memory_fragment_reads: subgroups * (rm + rn) * q * executions,
            lhs_footprint_fragments: u * q * executions,
            rhs_footprint_fragments: v * q * executions,
            accumulator_initializations: if mapping.overwrite { 0.0 } else { stores },
            tile_aspect_fragments: atoms * executions * (bm.max(bn) / bm.min(bn) - 1.0),
            local_row_aspect_issues: if rm > rn { matrix_issues * (rm / rn - 1.0) } else { 0.0 },
            local_column_aspect_issues: if rn > rm { matrix_issues * (rn / rm - 1.0) } else { 0.0 },
        },
    }
}
