//! How much of a result's size was cancelled away: a program that computes, in place of every
//! output, the *magnitude* of what was summed up to it.
//!
//! The rounding error of a value v is bounded by a small multiple of u·M(v). Where nothing
//! cancels M(v) = |v|, and the error is relative. Where a sum cancels, M(v) is larger: for
//! `a + b` it is M(a) + M(b), for a sum Σ M, for `log a` it is M(a)/|a| (an error relative to a
//! is an absolute error of its logarithm), and products and quotients scale it. Loaded values
//! are exact: they add nothing, and a single operation on exact values has M(v) = |v|.

use std::collections::HashMap;
use tilewright_ir::DType;
use tilewright_ir::program::{
    Block, Carry, Loc, MapOp, Op, OpData, OpId, OrderPolicy, Program, ReduceOp, TileType, Value,
    ValueId,
};

/// The program with each stored value replaced by its magnitude. Tensors, scalars, dimensions
/// and grid are the same.
pub fn magnitude_program(program: &Program) -> Program {
    let mut transform =
        Transform { program: program.clone(), magnitudes: HashMap::new(), named: 0 };
    let body = transform.block(&program.body.ops);
    transform.program.body.ops = body;
    transform.program
}

/// A relative error below this many units of the bound is absorbed by the bound's constant part.
const SLACK: f64 = 16.0;
/// The largest slope of the error function, 2/√π, rounded up to an exact binary fraction.
const ERF_SLOPE: f64 = 1.1328125;

struct Transform {
    program: Program,
    /// Magnitude of each inexact value. A value that isn't here is exact.
    magnitudes: HashMap<ValueId, ValueId>,
    named: usize,
}

impl Transform {
    fn block(&mut self, ops: &[OpId]) -> Vec<OpId> {
        let mut out = Vec::new();
        for id in ops {
            match self.program.ops[*id].op.clone() {
                Op::Store { tensor, coords, value, bounds } => {
                    let value = self.or_abs(&mut out, value);
                    self.program.ops[*id].op = Op::Store { tensor, coords, value, bounds };
                    out.push(*id);
                }
                Op::Loop { kind, index, mut carries, body } => {
                    let added = self.enter(&mut out, &carries);
                    let mut ops = self.block(&body.ops);
                    for (carry, (inner, init)) in carries.clone().iter().zip(&added) {
                        let next = self.or_abs(&mut ops, carry.next);
                        carries.push(Carry { init: *init, inner: *inner, next });
                    }
                    let body = Block { ops };
                    let results = self.program.ops[*id].results.clone();
                    for result in results {
                        let ty = self.program.values[result].ty.clone();
                        let magnitude = self.value(ty);
                        self.program.ops[*id].results.push(magnitude);
                        self.magnitudes.insert(result, magnitude);
                    }
                    self.program.ops[*id].op = Op::Loop { kind, index, carries, body };
                    out.push(*id);
                }
                op => {
                    out.push(*id);
                    let result = self.program.ops[*id].results.first().copied();
                    if let Some(result) = result
                        && self.program.values[result].ty.dtype.is_float()
                        && let Some(magnitude) = self.magnitude(&mut out, &op, result)
                    {
                        self.magnitudes.insert(result, magnitude);
                    }
                }
            }
        }
        out
    }

    /// Adds a carried magnitude for each carry; returns inner and initial values.
    fn enter(&mut self, out: &mut Vec<OpId>, carries: &[Carry]) -> Vec<(ValueId, ValueId)> {
        let mut added = Vec::new();
        for carry in carries {
            let init = self.or_abs(out, carry.init);
            let inner = self.value(self.program.values[carry.inner].ty.clone());
            self.magnitudes.insert(carry.inner, inner);
            added.push((inner, init));
        }
        added
    }

    fn value(&mut self, ty: TileType) -> ValueId {
        loop {
            self.named += 1;
            let name = format!("magnitude{}", self.named);
            if self.program.values.iter().all(|(_, v)| v.name != name) {
                return self.program.values.push(Value { name, ty });
            }
        }
    }

    fn emit(&mut self, out: &mut Vec<OpId>, op: Op, ty: TileType) -> ValueId {
        let value = self.value(ty);
        out.push(self.program.ops.push(OpData { op, results: vec![value], loc: Loc::default() }));
        value
    }

    /// An elementwise operation on values of one type.
    fn map(&mut self, out: &mut Vec<OpId>, op: MapOp, args: &[ValueId]) -> ValueId {
        let operand = if op == MapOp::Select { args.last() } else { args.first() };
        let ty = operand.map_or(TileType { dtype: DType::F64, axes: Vec::new() }, |v| {
            self.program.values[*v].ty.clone()
        });
        self.emit(out, Op::Map { op, args: args.to_vec() }, ty)
    }

    /// A literal shaped like a value.
    fn literal(&mut self, out: &mut Vec<OpId>, value: f64, like: ValueId) -> ValueId {
        let ty = self.program.values[like].ty.clone();
        let scalar = TileType { dtype: ty.dtype, axes: Vec::new() };
        let constant = self.emit(out, Op::Const { value }, scalar);
        if ty.axes.is_empty() { constant } else { self.emit(out, Op::Broadcast(constant), ty) }
    }

    fn abs(&mut self, out: &mut Vec<OpId>, value: ValueId) -> ValueId {
        self.map(out, MapOp::Abs, &[value])
    }

    /// The magnitude, or |v| of an exact value.
    fn or_abs(&mut self, out: &mut Vec<OpId>, value: ValueId) -> ValueId {
        match self.magnitudes.get(&value) {
            Some(magnitude) => *magnitude,
            None => self.abs(out, value),
        }
    }

    /// The larger of both; the other one where one is NaN.
    fn larger(&mut self, out: &mut Vec<OpId>, a: ValueId, b: ValueId) -> ValueId {
        self.map(out, MapOp::MaxNum, &[a, b])
    }

    fn magnitude(&mut self, out: &mut Vec<OpId>, op: &Op, result: ValueId) -> Option<ValueId> {
        let known = |t: &Self, v: &ValueId| t.magnitudes.get(v).copied();
        let ty = self.program.values[result].ty.clone();
        match op {
            Op::Cast(value) => {
                let from = known(self, value);
                match from {
                    Some(m) => Some(self.emit(out, Op::Cast(m), ty)),
                    // Widening is exact; narrowing costs one rounding.
                    None if self.widens(*value, ty.dtype) => None,
                    None => Some(self.abs(out, result)),
                }
            }
            Op::Broadcast(value) => {
                let m = known(self, value)?;
                Some(self.emit(out, Op::Broadcast(m), ty))
            }
            Op::Reindex { value, axes } => {
                let m = known(self, value)?;
                Some(self.emit(out, Op::Reindex { value: m, axes: axes.clone() }, ty))
            }
            Op::Reduce { op, value, axis, .. } => {
                let exact = known(self, value).is_none();
                let order = OrderPolicy::default();
                match op {
                    ReduceOp::Add => {
                        let m = self.or_abs(out, *value);
                        let sum = Op::Reduce { op: ReduceOp::Add, value: m, axis: *axis, order };
                        Some(self.emit(out, sum, ty))
                    }
                    ReduceOp::Max | ReduceOp::Min if exact => None,
                    ReduceOp::Max | ReduceOp::Min => {
                        let m = self.or_abs(out, *value);
                        let max = Op::Reduce { op: ReduceOp::Max, value: m, axis: *axis, order };
                        Some(self.emit(out, max, ty))
                    }
                    ReduceOp::Mul => {
                        // Relative errors add up, one per factor.
                        let m = self.or_abs(out, *value);
                        let size = self.abs(out, *value);
                        let relative = self.map(out, MapOp::Div, &[m, size]);
                        let sum =
                            Op::Reduce { op: ReduceOp::Add, value: relative, axis: *axis, order };
                        let sum = self.emit(out, sum, ty);
                        Some(self.scaled(out, result, sum))
                    }
                }
            }
            Op::Mma { a, b, c, .. } => {
                let (a, b) = (self.abs(out, *a), self.abs(out, *b));
                let c = self.or_abs(out, *c);
                Some(self.emit(out, Op::Mma { a, b, c, allow_reassociation: true }, ty))
            }
            Op::Map { op, args } => self.map_magnitude(out, *op, args, result),
            _ => None,
        }
    }

    fn widens(&self, value: ValueId, to: DType) -> bool {
        let from = self.program.values[value].ty.dtype;
        !from.is_float() || from.unit_roundoff() >= to.unit_roundoff()
    }

    /// |result| · max(1, relative/16).
    fn scaled(&mut self, out: &mut Vec<OpId>, result: ValueId, relative: ValueId) -> ValueId {
        let size = self.abs(out, result);
        let sixteenth = self.literal(out, 1.0 / SLACK, result);
        let part = self.map(out, MapOp::Mul, &[relative, sixteenth]);
        let grown = self.map(out, MapOp::Mul, &[size, part]);
        self.larger(out, size, grown)
    }

    fn map_magnitude(
        &mut self,
        out: &mut Vec<OpId>,
        op: MapOp,
        args: &[ValueId],
        result: ValueId,
    ) -> Option<ValueId> {
        let magnitudes: Vec<Option<ValueId>> =
            args.iter().map(|v| self.magnitudes.get(v).copied()).collect();
        let size = |t: &mut Self, out: &mut Vec<OpId>| t.abs(out, result);
        match (op, magnitudes.as_slice()) {
            (MapOp::Neg | MapOp::Abs, [m]) => *m,
            (MapOp::Min | MapOp::Max | MapOp::MinNum | MapOp::MaxNum, [a, b]) => match (a, b) {
                (None, None) => None,
                (Some(m), None) | (None, Some(m)) => Some(*m),
                (Some(a), Some(b)) => Some(self.larger(out, *a, *b)),
            },
            (MapOp::Select, [_, None, None]) => None,
            (MapOp::Select, _) => {
                let (a, b) = (self.or_zero(out, args[1]), self.or_zero(out, args[2]));
                Some(self.map(out, MapOp::Select, &[args[0], a, b]))
            }
            (MapOp::Exp, [Some(m)]) => Some(self.scaled(out, result, *m)),
            _ if magnitudes.iter().all(Option::is_none) => Some(size(self, out)),
            (MapOp::Add | MapOp::Sub, [a, b]) => {
                let sum = match (a, b) {
                    (Some(a), Some(b)) => self.map(out, MapOp::Add, &[*a, *b]),
                    (Some(m), None) | (None, Some(m)) => *m,
                    (None, None) => return Some(size(self, out)),
                };
                let size = size(self, out);
                Some(self.larger(out, size, sum))
            }
            (MapOp::Mul, [a, b]) => {
                let mut total = size(self, out);
                for (m, other) in [(a, args[1]), (b, args[0])] {
                    if let Some(m) = m {
                        let factor = self.abs(out, other);
                        let part = self.map(out, MapOp::Mul, &[*m, factor]);
                        total = self.larger(out, total, part);
                    }
                }
                Some(total)
            }
            (MapOp::Div | MapOp::Mod, [a, b]) => {
                let mut total = size(self, out);
                let divisor = self.abs(out, args[1]);
                if let Some(m) = a {
                    let part = self.map(out, MapOp::Div, &[*m, divisor]);
                    total = self.larger(out, total, part);
                }
                if let Some(m) = b {
                    let relative = self.map(out, MapOp::Div, &[*m, divisor]);
                    let size = self.abs(out, result);
                    let part = self.map(out, MapOp::Mul, &[size, relative]);
                    total = self.larger(out, total, part);
                }
                Some(total)
            }
            (MapOp::Log, [Some(m)]) => {
                let argument = self.abs(out, args[0]);
                let relative = self.map(out, MapOp::Div, &[*m, argument]);
                let size = size(self, out);
                Some(self.larger(out, size, relative))
            }
            (MapOp::Sqrt, [Some(m)]) => {
                let half = self.literal(out, 0.5, result);
                let part = self.map(out, MapOp::Mul, &[*m, half]);
                let size = size(self, out);
                let part = self.map(out, MapOp::Div, &[part, size]);
                Some(self.larger(out, size, part))
            }
            (MapOp::Tanh | MapOp::Erf, [Some(m)]) => {
                let slope = self.literal(out, ERF_SLOPE, result);
                let part = self.map(out, MapOp::Mul, &[*m, slope]);
                // The function is within [−1, 1], and so is what its argument can do to it.
                let one = self.literal(out, 1.0, result);
                let part = self.map(out, MapOp::Min, &[part, one]);
                let size = size(self, out);
                Some(self.larger(out, size, part))
            }
            _ => Some(size(self, out)),
        }
    }

    /// The magnitude, or 0 of an exact value.
    fn or_zero(&mut self, out: &mut Vec<OpId>, value: ValueId) -> ValueId {
        match self.magnitudes.get(&value) {
            Some(magnitude) => *magnitude,
            None => self.literal(out, 0.0, value),
        }
    }
}
