//! What the row ops share: one program instance per row, one column axis.

use super::{MAX_SIZE, OpError, require_float};
use crate::builder::ProgramBuilder;
use crate::program::*;
use crate::types::DType;

/// Choices common to the row ops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowSpec {
    /// Element type of the tensors: f32, f64, f16 or bf16.
    pub dtype: DType,
    /// Whether matrices have a run-time row stride: tensor `x` gets the dimension `ldx` (in
    /// elements, at least `cols`). Else they are packed.
    pub strided: bool,
}

impl RowSpec {
    /// Packed tensors of a dtype.
    pub fn packed(dtype: DType) -> Self {
        RowSpec { dtype, strided: false }
    }
}

/// A row program under construction: dims `rows` and `cols`, grid `r`, axis `j`.
pub(crate) struct RowProgram {
    pub(crate) b: ProgramBuilder,
    spec: RowSpec,
    pub(crate) rows: Extent,
    pub(crate) cols: Extent,
    pub(crate) r: IndexId,
    pub(crate) j: AxisId,
}

/// A size known at launch only.
pub(crate) fn symbolic() -> DimKind {
    DimKind::Symbolic { divisor: 1, max: MAX_SIZE }
}

impl RowProgram {
    pub(crate) fn new(name: &str, spec: RowSpec) -> Result<Self, OpError> {
        require_float(name, spec.dtype)?;
        let mut b = ProgramBuilder::new(name);
        let rows = b.dim("rows", symbolic());
        let cols = b.dim("cols", symbolic());
        let r = b.grid("r", rows, Extent::Const(1));
        let j = b.axis("j", cols);
        Ok(RowProgram { b, spec, rows, cols, r, j })
    }

    /// The type in which the op computes.
    pub(crate) fn compute(&self) -> DType {
        self.spec.dtype.accumulator()
    }

    /// Declares a rows×cols tensor, with its stride dimension where the spec asks for one.
    fn matrix(&mut self, name: &str, access: Access, dtype: DType) -> TensorId {
        let tensor = self.b.tensor(name, access, dtype, &[self.rows, self.cols]);
        if self.spec.strided {
            let ld = self.b.dim(&format!("ld{name}"), symbolic());
            self.b.strides(tensor, &[ld, Extent::Const(1)]);
        }
        tensor
    }

    fn row(&self) -> Vec<Coord> {
        vec![Coord::at(self.r), Coord::along(self.j)]
    }

    /// Row `r` of a rows×cols input, widened to the compute type.
    pub(crate) fn input(&mut self, name: &str) -> ValueId {
        let tensor = self.declare(name);
        self.read(tensor)
    }

    /// Declares a rows×cols input.
    pub(crate) fn declare(&mut self, name: &str) -> TensorId {
        self.matrix(name, Access::In, self.spec.dtype)
    }

    /// Row `r` of a rows×cols input that is declared already, widened to the compute type.
    pub(crate) fn read(&mut self, tensor: TensorId) -> ValueId {
        let coords = self.row();
        let value = self.b.load(tensor, coords, Bounds::Assume);
        let compute = self.compute();
        self.b.cast(value, compute)
    }

    /// Row `r` of an i32 mask: true where nonzero.
    pub(crate) fn mask(&mut self, name: &str) -> ValueId {
        let tensor = self.matrix(name, Access::In, DType::I32);
        let coords = self.row();
        let value = self.b.load(tensor, coords, Bounds::Assume);
        let zero = self.b.constant(0.0, DType::I32);
        self.b.map(MapOp::Ne, &[value, zero])
    }

    /// A vector of `cols` elements that every row shares, widened to the compute type.
    pub(crate) fn vector(&mut self, name: &str) -> ValueId {
        let tensor = self.b.tensor(name, Access::In, self.spec.dtype, &[self.cols]);
        let value = self.b.load(tensor, vec![Coord::along(self.j)], Bounds::Assume);
        let compute = self.compute();
        self.b.cast(value, compute)
    }

    /// Element `r` of a vector of `rows` elements.
    pub(crate) fn per_row(&mut self, name: &str, dtype: DType) -> ValueId {
        let tensor = self.b.tensor(name, Access::In, dtype, &[self.rows]);
        self.b.load(tensor, vec![Coord::at(self.r)], Bounds::Assume)
    }

    /// Element `index` of row `r` of a rows×cols input; NaN where the index is outside the row.
    /// Widened to the compute type.
    pub(crate) fn pick(&mut self, tensor: TensorId, index: ValueId) -> ValueId {
        let coords = vec![Coord::at(self.r), Coord::gathered(index)];
        let value = self.b.load(tensor, coords, Bounds::Fill(f64::NAN));
        let compute = self.compute();
        self.b.cast(value, compute)
    }

    /// A literal of the compute type, rounded to it.
    pub(crate) fn constant(&mut self, value: f64) -> ValueId {
        let compute = self.compute();
        self.b.constant(compute.round(value), compute)
    }

    /// N, the number of columns, in the compute type.
    pub(crate) fn columns(&mut self) -> ValueId {
        let compute = self.compute();
        let n = self.b.size(self.cols);
        self.b.cast(n, compute)
    }

    pub(crate) fn reduce(&mut self, op: ReduceOp, value: ValueId) -> ValueId {
        self.b.reduce(op, value, self.j)
    }

    /// Stores a tile as row `r` of the rows×cols output and finishes.
    pub(crate) fn store(mut self, name: &str, value: ValueId) -> Program {
        let tensor = self.matrix(name, Access::Out, self.spec.dtype);
        let value = self.b.cast(value, self.spec.dtype);
        let coords = self.row();
        self.b.store(tensor, coords, value, Bounds::Assume);
        self.b.finish()
    }

    /// Stores a scalar tile as element `r` of an output of `rows` elements and finishes.
    pub(crate) fn store_per_row(mut self, name: &str, value: ValueId) -> Program {
        let tensor = self.b.tensor(name, Access::Out, self.spec.dtype, &[self.rows]);
        let value = self.b.cast(value, self.spec.dtype);
        self.b.store(tensor, vec![Coord::at(self.r)], value, Bounds::Assume);
        self.b.finish()
    }
}
