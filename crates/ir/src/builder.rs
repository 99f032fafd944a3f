//! Builds programs in Rust. Methods append to the innermost open block and give types to results;
//! they don't judge: [`crate::verify`] does, on the finished program.

use crate::entity::Id;
use crate::program::*;
use crate::types::DType;

/// Builds one [`Program`].
///
/// Names given to values are made unique by a numeric suffix, so helper functions can reuse them.
#[derive(Debug)]
pub struct ProgramBuilder {
    program: Program,
    blocks: Vec<Block>,
}

impl ProgramBuilder {
    /// Starts a program.
    pub fn new(name: &str) -> Self {
        ProgramBuilder {
            program: Program { name: name.to_string(), ..Program::default() },
            blocks: vec![Block::default()],
        }
    }

    /// Declares a dimension.
    pub fn dim(&mut self, name: &str, kind: DimKind) -> Extent {
        Extent::Dim(self.program.dims.push(Dim { name: name.to_string(), kind }))
    }

    /// Declares a packed tensor aligned to its element size.
    pub fn tensor(
        &mut self,
        name: &str,
        access: Access,
        dtype: DType,
        shape: &[Extent],
    ) -> TensorId {
        self.program.tensors.push(Tensor {
            name: name.to_string(),
            dtype,
            shape: shape.to_vec(),
            strides: Strides::Packed,
            align: dtype.bytes().max(1),
            access,
        })
    }

    /// Gives a tensor explicit strides, in elements.
    pub fn strides(&mut self, tensor: TensorId, strides: &[Extent]) {
        self.program.tensors[tensor].strides = Strides::Explicit(strides.to_vec());
    }

    /// Declares a run-time scalar.
    pub fn scalar(&mut self, name: &str, dtype: DType, nonzero: bool) -> ScalarId {
        self.program.scalars.push(Scalar { name: name.to_string(), dtype, nonzero })
    }

    /// Declares a tile axis.
    pub fn axis(&mut self, name: &str, extent: Extent) -> AxisId {
        self.program.axes.push(Axis { name: name.to_string(), extent })
    }

    /// Adds a grid axis.
    pub fn grid(&mut self, name: &str, extent: Extent, step: Extent) -> IndexId {
        let index = self.program.indices.push(IndexVar { name: name.to_string(), extent, step });
        self.program.grid.push(index);
        index
    }

    /// The type of a value built so far.
    pub fn ty(&self, value: ValueId) -> &TileType {
        &self.program.values[value].ty
    }

    /// The program built so far, for look-ups.
    pub fn program(&self) -> &Program {
        &self.program
    }

    fn value(&mut self, name: &str, ty: TileType) -> ValueId {
        let taken = |n: &str| self.program.values.iter().any(|(_, v)| v.name == n);
        let mut unique = name.to_string();
        let mut suffix = 1;
        while taken(&unique) {
            suffix += 1;
            unique = format!("{name}{suffix}");
        }
        self.program.values.push(Value { name: unique, ty })
    }

    fn push(&mut self, op: Op, results: Vec<ValueId>) -> OpId {
        let id = self.program.ops.push(OpData { op, results, loc: Loc::default() });
        match self.blocks.last_mut() {
            Some(block) => block.ops.push(id),
            None => self.program.body.ops.push(id),
        }
        id
    }

    fn define(&mut self, name: &str, ty: TileType, op: Op) -> ValueId {
        let value = self.value(name, ty);
        self.push(op, vec![value]);
        value
    }

    /// A literal.
    pub fn constant(&mut self, value: f64, dtype: DType) -> ValueId {
        self.define("c", TileType { dtype, axes: vec![] }, Op::Const { value })
    }

    /// A literal repeated along axes.
    pub fn fill(&mut self, value: f64, dtype: DType, axes: &[AxisId]) -> ValueId {
        let c = self.constant(value, dtype);
        self.broadcast(c, axes)
    }

    /// The value of a run-time scalar.
    pub fn scalar_value(&mut self, scalar: ScalarId) -> ValueId {
        let s = self.program.scalars[scalar].clone();
        self.define(&s.name, TileType { dtype: s.dtype, axes: vec![] }, Op::Scalar(scalar))
    }

    /// The size of an extent, as an i32 scalar tile.
    pub fn size(&mut self, extent: Extent) -> ValueId {
        self.define("size", TileType { dtype: DType::I32, axes: vec![] }, Op::Size(extent))
    }

    /// An i32 tile that counts along an axis from an origin.
    pub fn index(&mut self, origin: Origin, axis: Option<AxisId>) -> ValueId {
        let ty = TileType { dtype: DType::I32, axes: axis.into_iter().collect() };
        self.define("idx", ty, Op::Index { origin, axis })
    }

    /// Loads a tile, named after the tensor.
    pub fn load(&mut self, tensor: TensorId, coords: Vec<Coord>, bounds: Bounds) -> ValueId {
        let t = self.program.tensors[tensor].clone();
        let mut axes: Vec<AxisId> = Vec::new();
        for coord in &coords {
            let gathered = coord.gather.map(|g| self.ty(g).axes.clone()).unwrap_or_default();
            for axis in coord.axis.into_iter().chain(gathered) {
                if !axes.contains(&axis) {
                    axes.push(axis);
                }
            }
        }
        let ty = TileType { dtype: t.dtype, axes };
        self.define(&t.name, ty, Op::Load { tensor, coords, bounds })
    }

    /// Stores a tile.
    pub fn store(&mut self, tensor: TensorId, coords: Vec<Coord>, value: ValueId, bounds: Bounds) {
        self.push(Op::Store { tensor, coords, value, bounds }, vec![]);
    }

    /// An elementwise operation. Operands without some axis of the others are broadcast first.
    pub fn map(&mut self, op: MapOp, args: &[ValueId]) -> ValueId {
        let mut axes: Vec<AxisId> = Vec::new();
        for arg in args {
            for axis in &self.ty(*arg).axes {
                if !axes.contains(axis) {
                    axes.push(*axis);
                }
            }
        }
        let args: Vec<ValueId> = args.iter().map(|a| self.broadcast(*a, &axes)).collect();
        let operand = if op == MapOp::Select { args.last() } else { args.first() };
        let dtype = match operand {
            _ if op.is_comparison() => DType::Bool,
            Some(v) => self.ty(*v).dtype,
            None => DType::F32,
        };
        self.define(op.name(), TileType { dtype, axes }, Op::Map { op, args })
    }

    /// Conversion; the value itself if it already has the type.
    pub fn cast(&mut self, value: ValueId, dtype: DType) -> ValueId {
        let ty = self.ty(value).clone();
        if ty.dtype == dtype {
            return value;
        }
        self.define("cast", TileType { dtype, ..ty }, Op::Cast(value))
    }

    /// Repeats a tile along the axes that it lacks; the value itself if it lacks none.
    pub fn broadcast(&mut self, value: ValueId, axes: &[AxisId]) -> ValueId {
        let ty = self.ty(value).clone();
        if axes.iter().all(|a| ty.axes.contains(a)) {
            return value;
        }
        let ty = TileType { dtype: ty.dtype, axes: axes.to_vec() };
        self.define("b", ty, Op::Broadcast(value))
    }

    /// Folds one axis away, in any order.
    pub fn reduce(&mut self, op: ReduceOp, value: ValueId, axis: AxisId) -> ValueId {
        self.reduce_ordered(op, value, axis, OrderPolicy::default())
    }

    /// Folds one axis away in a stated order.
    pub fn reduce_ordered(
        &mut self,
        op: ReduceOp,
        value: ValueId,
        axis: AxisId,
        order: OrderPolicy,
    ) -> ValueId {
        let ty = self.ty(value).clone();
        let axes = ty.axes.into_iter().filter(|a| *a != axis).collect();
        let ty = TileType { dtype: ty.dtype, axes };
        self.define(op.name(), ty, Op::Reduce { op, value, axis, order })
    }

    /// `a·b + c`.
    pub fn mma(&mut self, a: ValueId, b: ValueId, c: ValueId) -> ValueId {
        let ty = self.ty(c).clone();
        self.define("mma", ty, Op::Mma { a, b, c, allow_reassociation: true })
    }

    /// Renames axes.
    pub fn reindex(&mut self, value: ValueId, axes: &[(AxisId, AxisId)]) -> ValueId {
        let mut ty = self.ty(value).clone();
        for axis in &mut ty.axes {
            if let Some((_, new)) = axes.iter().find(|(old, _)| old == axis) {
                *axis = *new;
            }
        }
        self.define("r", ty, Op::Reindex { value, axes: axes.to_vec() })
    }

    /// A loop over `0, step, …` below `extent`. `body` gets the builder, the counter and the
    /// carried values, and returns the next ones. The results are the final ones.
    pub fn repeat(
        &mut self,
        kind: LoopKind,
        name: &str,
        extent: Extent,
        step: Extent,
        init: &[ValueId],
        body: impl FnOnce(&mut Self, IndexId, &[ValueId]) -> Vec<ValueId>,
    ) -> Vec<ValueId> {
        let index = self.program.indices.push(IndexVar { name: name.to_string(), extent, step });
        let types: Vec<TileType> = init.iter().map(|v| self.ty(*v).clone()).collect();
        let inner: Vec<ValueId> = types.iter().map(|t| self.value("acc", t.clone())).collect();
        self.blocks.push(Block::default());
        let next = body(self, index, &inner);
        let block = self.blocks.pop().unwrap_or_default();
        let carries = init
            .iter()
            .zip(&inner)
            .zip(&next)
            .map(|((init, inner), next)| Carry { init: *init, inner: *inner, next: *next })
            .collect();
        let results: Vec<ValueId> = types.iter().map(|t| self.value("out", t.clone())).collect();
        self.push(Op::Loop { kind, index, carries, body: block }, results.clone());
        results
    }

    /// The finished program, not yet verified.
    pub fn finish(mut self) -> Program {
        if let Some(block) = self.blocks.pop() {
            self.program.body = block;
        }
        debug_assert!(self.program.body.ops.iter().all(|o| o.index() < self.program.ops.len()));
        self.program
    }
}
