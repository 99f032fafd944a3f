//! The matrix problem.

use tilewright_ir::DType;
use tilewright_ir::Program;
use tilewright_ir::facts::{MatrixDim, MatrixFacts, OperandFact};
use tilewright_ir::program::{Access, DimKind, Extent, Op, Strides};

use crate::request::{PlanError, Request};

/// Numbers of a tiled matrix product D = A·B + C.
#[derive(Clone, PartialEq, Debug)]
pub struct MatrixProblem {
    /// Number of products (1 without a batch axis), nominal.
    pub batch: u64,
    /// M, N, K, nominal.
    pub size: [u64; 3],
    /// Numbers that every possible M, N, K is a multiple of; the size itself where it is static.
    pub divisor: [u64; 3],
    /// Whether M, N, K are static.
    pub is_static: [bool; 3],
    /// Block extents that the program fixes.
    pub fixed_block: [Option<u64>; 3],
    /// Type of the operands.
    pub operand: DType,
    /// Type of the accumulator.
    pub accumulator: DType,
    /// Type of the output tensor.
    pub output: DType,
    /// The output is written only, with consecutive columns.
    pub output_free: bool,
    /// Whether A, B are stored transposed.
    pub transposed: [bool; 2],
    /// Elements of A, B that one aligned access may bring along the output's extent: 4 where that
    /// is proved, else 1.
    pub copies: [u32; 2],
    /// Elements of A, B that one aligned access may bring along K: 4 or 1; 0 where K isn't
    /// consecutive in memory.
    pub along: [u32; 2],
    /// Dimensions that a block must divide for A, B to be read in place; `None`: never.
    pub forward: [Option<Vec<MatrixDim>>; 2],
    /// The accumulator is a closed recurrence.
    pub recurrence: bool,
    /// Dimensions that a block must divide for direct output; `None`: never.
    pub direct: Option<Vec<MatrixDim>>,
    /// The accumulator starts at +0 everywhere.
    pub zero_init: bool,
    /// Products may be summed in any order.
    pub reassociable: bool,
    /// Elementwise operations between the loop and the store.
    pub epilogue_ops: u64,
    /// Tiles that the epilogue loads (bias, residual, C).
    pub epilogue_loads: u64,
}

impl MatrixProblem {
    /// Takes the numbers of a matrix program.
    ///
    /// # Errors
    /// A size isn't known and the request has no nominal size for it.
    pub fn new(request: &Request<'_>, facts: &MatrixFacts) -> Result<Self, PlanError> {
        let program = request.program;
        let [m, n, k] = facts.size;
        let is_static = |extent: Extent| match extent {
            Extent::Const(_) => true,
            Extent::Dim(d) => {
                program.dims.get(d).is_some_and(|d| !matches!(d.kind, DimKind::Symbolic { .. }))
            }
        };
        let fixed = |extent: Extent| match extent {
            Extent::Const(n) => Some(n),
            Extent::Dim(d) => match program.dims.get(d).map(|d| d.kind) {
                Some(DimKind::Static(n)) => Some(n),
                _ => None,
            },
        };
        let [bm, bn, bk] = facts.block;
        let forward = |operand: &OperandFact| operand.forward.proved().cloned();
        let count = |wanted: fn(&Op) -> bool| {
            let ops = facts.epilogue.iter().filter_map(|op| program.ops.get(*op));
            ops.filter(|data| wanted(&data.op)).count() as u64
        };
        Ok(MatrixProblem {
            batch: facts.batch.map_or(Ok(1), |b| request.resolve(b))?,
            size: [request.resolve(m)?, request.resolve(n)?, request.resolve(k)?],
            divisor: [program.divisor(m), program.divisor(n), program.divisor(k)],
            is_static: [is_static(m), is_static(n), is_static(k)],
            fixed_block: [fixed(bm), fixed(bn), fixed(bk)],
            operand: facts.dtype,
            accumulator: facts.accumulator,
            output: facts.output,
            output_free: output_free(program, facts),
            transposed: [facts.a.transposed, facts.b.transposed],
            copies: crate::space::gpu_matrix::copies(program, facts),
            along: crate::space::thin_matrix::along(program, facts),
            forward: [forward(&facts.a), forward(&facts.b)],
            recurrence: facts.recurrence.is_proved(),
            direct: facts.direct_output.proved().cloned(),
            zero_init: facts.zero_init.is_proved(),
            reassociable: facts.reassociable,
            epilogue_ops: count(|op| matches!(op, Op::Map { .. } | Op::Cast(_))),
            epilogue_loads: count(|op| matches!(op, Op::Load { .. })),
        })
    }

    /// A plain f32 product of static sizes with every proof made: what the library's GEMM gives.
    pub fn plain(m: u64, n: u64, k: u64) -> Self {
        MatrixProblem {
            batch: 1,
            size: [m, n, k],
            divisor: [m, n, k],
            is_static: [true; 3],
            fixed_block: [None; 3],
            operand: DType::F32,
            accumulator: DType::F32,
            output: DType::F32,
            output_free: true,
            transposed: [false; 2],
            // K is innermost in A: it is turned on its way, element by element.
            copies: [1, if n.is_multiple_of(4) { 4 } else { 1 }],
            along: [
                if k.is_multiple_of(4) { 4 } else { 1 },
                match n {
                    1 if k.is_multiple_of(4) => 4,
                    1 => 1,
                    _ => 0,
                },
            ],
            forward: [
                Some(vec![MatrixDim::M, MatrixDim::K]),
                Some(vec![MatrixDim::K, MatrixDim::N]),
            ],
            recurrence: true,
            direct: Some(vec![MatrixDim::M, MatrixDim::N]),
            zero_init: true,
            reassociable: true,
            epilogue_ops: 0,
            epilogue_loads: 0,
        }
    }

    /// Whether sums may wait in the output: it has the accumulator's type, the program doesn't read
    /// it, and its columns are consecutive.
    pub fn sums_in_output(&self) -> bool {
        self.output_free && self.output == self.accumulator
    }

    /// Whether the block divides every possible size in each of these dimensions.
    pub fn divides(&self, block: [u64; 3], dims: &[MatrixDim]) -> bool {
        dims.iter().all(|dim| {
            let i = *dim as usize;
            block[i] != 0 && self.divisor[i].is_multiple_of(block[i])
        })
    }

    /// Whether A (0) or B (1) may be read in place under this block (reference 1.4 rule 6).
    pub fn forwards(&self, operand: usize, block: [u64; 3]) -> bool {
        self.forward.get(operand).and_then(|f| f.as_ref()).is_some_and(|d| self.divides(block, d))
    }

    /// Whether fragments may go straight to the output under this block (reference 1.4 rule 4).
    pub fn outputs_directly(&self, block: [u64; 3]) -> bool {
        self.recurrence && self.direct.as_ref().is_some_and(|d| self.divides(block, d))
    }

    /// Program instances under this block, nominal: batch·⌈M/BM⌉·⌈N/BN⌉.
    pub fn programs(&self, block: [u64; 3]) -> u64 {
        let [m, n, _] = self.size;
        let tiles = m.div_ceil(block[0].max(1)).saturating_mul(n.div_ceil(block[1].max(1)));
        self.batch.saturating_mul(tiles)
    }

    /// K iterations under this block, nominal: ⌈K/BK⌉.
    pub fn executions(&self, block: [u64; 3]) -> u64 {
        self.size[2].div_ceil(block[2].max(1))
    }

    /// Whether a single K iteration is certain and may overwrite (reference 1.4 rule 5).
    pub fn overwrites(&self, block: [u64; 3]) -> bool {
        self.zero_init
            && self.is_static[2]
            && self.executions(block) == 1
            && self.outputs_directly(block)
    }
}

fn output_free(program: &Program, facts: &MatrixFacts) -> bool {
    program.tensors.get(facts.c).is_some_and(|output| {
        let inner = match &output.strides {
            Strides::Packed => Some(1),
            Strides::Explicit(strides) => strides.last().and_then(|s| program.known(*s)),
        };
        output.access == Access::Out && inner == Some(1)
    })
}
