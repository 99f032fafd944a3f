//! Evaluates tile expressions for the elements at which the lanes stand.
//!
//! Every elementwise operation of a program is pure, so a value may be computed again wherever it
//! is needed; what was computed before and kept is found in [`super::Source`] or among the
//! scalars.

use tilewright_ir::DType;
use tilewright_ir::program as ir;
use tilewright_ir::program::{AxisId, MapOp, ReduceOp};

use super::access::Frame;
use super::{Context, LowerError, Rule, Source, Staged};
use crate::kernel::*;

/// The element type of data.
pub(super) fn data(dtype: DType) -> Elem {
    Elem::Data(dtype)
}

fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

impl Context<'_> {
    /// Dtype of a program value.
    pub(super) fn dtype(&self, value: ir::ValueId) -> DType {
        self.program.values[value].ty.dtype
    }

    /// Axes of a program value.
    pub(super) fn axes(&self, value: ir::ValueId) -> &[AxisId] {
        &self.program.values[value].ty.axes
    }

    /// A tile without axes, evaluated here and remembered.
    pub(super) fn scalar(&mut self, value: ir::ValueId) -> Result<ValueId, LowerError> {
        if let Some(known) = self.scalars.get(&value) {
            return Ok(*known);
        }
        let result = self.compute(value, &mut Frame::scalar())?[0];
        self.scalars.insert(value, result);
        Ok(result)
    }

    /// Evaluates, and remembers, every tile without axes that the expression of `value` uses, so
    /// that a loop over its elements finds them ready.
    pub(super) fn prepare(&mut self, value: ir::ValueId) -> Result<(), LowerError> {
        let mut seen = std::collections::HashSet::new();
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            if !seen.insert(value) || self.sources.contains_key(&value) {
                continue;
            }
            if self.axes(value).is_empty() {
                self.scalar(value)?;
                continue;
            }
            if let Some(op) = self.definitions.get(&value) {
                open.extend(operands(&self.program.ops[*op].op));
            }
        }
        Ok(())
    }

    /// The value at the frame's positions: one kernel value where lanes and vector elements
    /// agree, else one per vector element.
    pub(super) fn eval(
        &mut self,
        value: ir::ValueId,
        frame: &mut Frame,
    ) -> Result<Vec<ValueId>, LowerError> {
        if let Some(known) = frame.memo.get(&value) {
            return Ok(known.clone());
        }
        if let Some(known) = self.scalars.get(&value) {
            return Ok(vec![*known]);
        }
        let result = match self.sources.get(&value).copied() {
            // Stripes are found by their owners only; who stands elsewhere computes again.
            Some(Source::Stripe(array)) if frame.slot.is_some() => self.read_stripe(array, frame),
            Some(Source::Staged(staged)) if frame.slot.is_some() => {
                self.read_staged(&staged, frame)
            }
            Some(Source::Tile(tile)) => self.read_tile(tile, frame)?,
            _ => self.compute(value, frame)?,
        };
        frame.memo.insert(value, result.clone());
        Ok(result)
    }

    fn stripe_place(&mut self, array: PrivateId, frame: &Frame, v: u32) -> (Place, Option<Guard>) {
        let zero = self.b.int(0);
        let slot = self.b.add_int(frame.slot.unwrap_or(zero), i64::from(v));
        let guard = frame.limit.map(|limit| Guard::count(limit, 0.0));
        (Place::uniform(Memory::Private(array), slot), guard)
    }

    fn read_stripe(&mut self, array: PrivateId, frame: &Frame) -> Vec<ValueId> {
        let (place, guard) = self.stripe_place(array, frame, 0);
        self.b.load(place, frame.vector, guard)
    }

    fn read_staged(&mut self, staged: &Staged, frame: &Frame) -> Vec<ValueId> {
        let zero = self.b.int(0);
        let place = self.staged_place(staged, frame.slot.unwrap_or(zero));
        let guard = frame.limit.map(|limit| Guard::count(limit, 0.0));
        self.b.load(place, frame.vector, guard)
    }

    /// Where a lane's element of a slot is: the element of its pack in its chunk.
    pub(super) fn staged_place(&mut self, staged: &Staged, slot: ValueId) -> Place {
        let b = &mut self.b;
        let wide = b.int(i64::from(staged.vector));
        let (chunk, element) = (b.div(slot, wide), b.rem(slot, wide));
        let begin = b.mul_int(chunk, staged.chunk as i64);
        let base = b.add_int(begin, staged.first as i64);
        let base = b.add(base, element);
        let base = b.add(base, staged.own);
        Place::strided(Memory::Shared(staged.shared), base, i64::from(staged.vector))
    }

    /// Keeps the lanes' elements in a private array.
    pub(super) fn write_stripe(&mut self, array: PrivateId, frame: &Frame, values: &[ValueId]) {
        let (place, guard) = self.stripe_place(array, frame, 0);
        let last = values.len() - 1;
        let values: Vec<ValueId> =
            (0..frame.vector as usize).map(|v| values[v.min(last)]).collect();
        self.b.store(place, &values, guard);
    }

    /// Evaluates the operation that defines a value.
    pub(super) fn compute(
        &mut self,
        value: ir::ValueId,
        frame: &mut Frame,
    ) -> Result<Vec<ValueId>, LowerError> {
        let Some(op) = self.definitions.get(&value) else {
            let name = &self.program.values[value].name;
            return Err(self.error(Rule::Operation, format!("`%{name}` is carried by a loop")));
        };
        let program = self.program;
        let dtype = self.dtype(value);
        match &program.ops[*op].op {
            ir::Op::Const { value } => Ok(vec![self.b.literal(*value, dtype)]),
            ir::Op::Scalar(scalar) => {
                let arg = self.args.scalar(*scalar);
                Ok(vec![self.b.arg(arg)])
            }
            ir::Op::Size(extent) => {
                let size = self.extent(*extent);
                Ok(vec![self.b.cast(size, data(dtype))])
            }
            ir::Op::Index { origin, axis } => {
                let at = self.position(frame, origin, *axis)?;
                Ok(at.into_iter().map(|i| self.b.cast(i, data(dtype))).collect())
            }
            ir::Op::Load { tensor, coords, bounds } => {
                let dims = self.tensor_dims(frame, *tensor, coords, *bounds)?;
                let t = &program.tensors[*tensor];
                let memory = Memory::Global(self.args.tensor(*tensor));
                let alignment = t.align / t.dtype.bytes().max(1);
                let access = self.access(frame, memory, &dims, alignment);
                let fill = match bounds {
                    ir::Bounds::Fill(fill) => *fill,
                    ir::Bounds::Assume => 0.0,
                };
                Ok(self.read(&access, fill))
            }
            ir::Op::Map { op, args } => self.map(*op, args, frame),
            ir::Op::Cast(from) => {
                let values = self.eval(*from, frame)?;
                Ok(values.into_iter().map(|v| self.convert(v, dtype)).collect())
            }
            ir::Op::Broadcast(from) => self.eval(*from, frame),
            ir::Op::Reindex { value: from, axes } => {
                // Where the old axis stands is where the new one does.
                let mut inner = Frame::at(frame.axes.clone(), frame.vector);
                for (old, new) in axes {
                    let pos = frame.pos(*new);
                    inner.axes.retain(|(a, _)| a != old);
                    inner.axes.extend(pos.map(|p| (*old, p)));
                }
                inner.limit = frame.limit;
                inner.mask = frame.mask;
                inner.inside = frame.inside;
                self.eval(*from, &mut inner)
            }
            other => {
                let name = &program.values[value].name;
                let what = match other {
                    ir::Op::Reduce { .. } => "a reduction",
                    ir::Op::Mma { .. } => "a matrix product",
                    _ => "a loop",
                };
                Err(self.error(
                    Rule::Operation,
                    format!("`%{name}` is {what} in the middle of an elementwise expression"),
                ))
            }
        }
    }

    fn map(
        &mut self,
        op: MapOp,
        args: &[ir::ValueId],
        frame: &mut Frame,
    ) -> Result<Vec<ValueId>, LowerError> {
        let mut operands = Vec::new();
        for arg in args {
            operands.push(self.eval(*arg, frame)?);
        }
        let width = operands.iter().map(Vec::len).max().unwrap_or(1);
        Ok((0..width)
            .map(|v| {
                let args: Vec<ValueId> = operands.iter().map(|o| o[v.min(o.len() - 1)]).collect();
                self.apply(op, &args)
            })
            .collect())
    }

    /// One elementwise operation. Those of 16-bit types are done in f32 and rounded once more,
    /// which gives the correctly rounded result for `add`, `sub`, `mul`, `div` and `sqrt`
    /// because binary32 has 2·11 + 2 digits.
    pub(super) fn apply(&mut self, op: MapOp, args: &[ValueId]) -> ValueId {
        let narrow = args.iter().find_map(|a| match self.b.elem(*a) {
            Elem::Data(dtype) if is_narrow(dtype) => Some(dtype),
            _ => None,
        });
        let (Some(dtype), true) = (narrow, op != MapOp::Select) else {
            return self.b.map(op, args);
        };
        let wide: Vec<ValueId> = args.iter().map(|a| self.b.cast(*a, data(DType::F32))).collect();
        let result = self.b.map(op, &wide);
        if op.is_comparison() { result } else { self.b.cast(result, data(dtype)) }
    }

    /// Conversion between data types. Bool becomes 1 or 0; a number becomes whether it isn't 0.
    pub(super) fn convert(&mut self, value: ValueId, to: DType) -> ValueId {
        let from = match self.b.elem(value) {
            Elem::Data(dtype) => dtype,
            Elem::Index => return self.b.cast(value, data(to)),
        };
        match (from, to) {
            (DType::Bool, DType::Bool) => value,
            (DType::Bool, _) => {
                let (one, zero) = (self.b.literal(1.0, to), self.b.literal(0.0, to));
                self.b.map(MapOp::Select, &[value, one, zero])
            }
            (_, DType::Bool) => {
                let zero = self.b.literal(0.0, from);
                self.apply(MapOp::Ne, &[value, zero])
            }
            _ => self.b.cast(value, data(to)),
        }
    }

    /// Combines two partial results of a fold, whose type isn't a 16-bit one.
    pub(super) fn combine(&mut self, fold: ReduceOp, a: ValueId, b: ValueId) -> ValueId {
        self.b.map(fold.combine(), &[a, b])
    }
}

/// Values that an operation reads, those inside a loop's body excepted.
pub(super) fn operands(op: &ir::Op) -> Vec<ir::ValueId> {
    match op {
        ir::Op::Const { .. } | ir::Op::Scalar(_) | ir::Op::Size(_) | ir::Op::Index { .. } => {
            Vec::new()
        }
        ir::Op::Load { coords, .. } => coords.iter().filter_map(|c| c.gather).collect(),
        ir::Op::Store { coords, value, .. } => {
            coords.iter().filter_map(|c| c.gather).chain([*value]).collect()
        }
        ir::Op::Map { args, .. } => args.clone(),
        ir::Op::Cast(v) | ir::Op::Broadcast(v) => vec![*v],
        ir::Op::Reduce { value, .. } | ir::Op::Reindex { value, .. } => vec![*value],
        ir::Op::Mma { a, b, c, .. } => vec![*a, *b, *c],
        ir::Op::Loop { carries, .. } => carries.iter().map(|c| c.init).collect(),
    }
}
