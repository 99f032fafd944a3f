//! Elementwise operations and conversions.

use tilewright_ir::DType;
use tilewright_ir::program::MapOp;
use tilewright_kernel::kernel::{Elem, ValueId};

use super::EmitError;
use super::emitter::{Emitter, type_name};
use super::helpers::Helper;
use super::index::{self, Range, Val};

impl Emitter<'_> {
    pub(super) fn map(
        &mut self,
        op: MapOp,
        args: &[ValueId],
        result: ValueId,
    ) -> Result<(), EmitError> {
        let operand = args.last().copied().ok_or_else(|| self.unsupported("an empty map"))?;
        let elem = self.elem(operand)?;
        let vals: Vec<Val> = args.iter().map(|a| self.val(*a)).collect::<Result<_, _>>()?;
        let val = match (op, vals.as_slice(), elem) {
            (MapOp::Select, [cond, a, b], Elem::Index) => index::select(cond, a, b),
            (MapOp::Select, [cond, a, b], _) => {
                let (cond, a, b) = (cond.operand(), a.operand(), b.operand());
                Val::data(format!("{cond} ? {a} : {b}"), false)
            }
            (_, [a, b], Elem::Index) if op.is_comparison() => index::compare(op, a, b)
                .ok_or_else(|| self.unsupported(format!("{} of index values", op.name())))?,
            (_, [a, b], Elem::Index) => self.index(op, a, b)?,
            (_, [a, b], _) if op.is_comparison() => {
                let sign = index::comparison(op)
                    .ok_or_else(|| self.unsupported(format!("the comparison {}", op.name())))?;
                Val::data(format!("{} {sign} {}", a.operand(), b.operand()), false)
            }
            (_, vals, Elem::Data(dtype)) => self.apply(op, dtype, vals)?,
            _ => return Err(self.unsupported(format!("{} of index values", op.name()))),
        };
        self.define(result, val)
    }

    /// An operation on data of one type.
    pub(super) fn apply(
        &mut self,
        op: MapOp,
        dtype: DType,
        vals: &[Val],
    ) -> Result<Val, EmitError> {
        match (dtype, vals) {
            (DType::F32, [a]) => self.float_unary(op, a),
            (DType::F32, [a, b]) => self.float_binary(op, a, b),
            (DType::I32, vals) => self.int(op, vals),
            (DType::Bool, [a]) if op == MapOp::Not => {
                Ok(Val::data(format!("!{}", a.operand()), false))
            }
            (DType::Bool, [a, b]) if matches!(op, MapOp::And | MapOp::Or) => {
                let sign = if op == MapOp::And { "&&" } else { "||" };
                Ok(Val::data(format!("{} {sign} {}", a.operand(), b.operand()), false))
            }
            _ => Err(self.unsupported(format!("{} of {dtype}", op.name()))),
        }
    }

    fn float_unary(&mut self, op: MapOp, a: &Val) -> Result<Val, EmitError> {
        let name = match op {
            MapOp::Neg => return Ok(Val::data(format!("-{}", a.operand()), false)),
            MapOp::Abs => "fabs",
            // By name, so that no compile option makes them fast.
            MapOp::Exp => "precise::exp",
            MapOp::Log => "precise::log",
            MapOp::Sqrt => "precise::sqrt",
            MapOp::Tanh => "precise::tanh",
            MapOp::Erf => self.helper(Helper::Erf),
            _ => return Err(self.unsupported(format!("{} of f32", op.name()))),
        };
        Ok(Val::data(format!("{name}({})", a.text), true))
    }

    fn float_binary(&mut self, op: MapOp, a: &Val, b: &Val) -> Result<Val, EmitError> {
        let sign = match op {
            MapOp::Add => '+',
            MapOp::Sub => '-',
            MapOp::Mul => '*',
            MapOp::Div => '/',
            MapOp::Min | MapOp::Max | MapOp::MinNum | MapOp::MaxNum => {
                let name = match op {
                    MapOp::Min => self.helper(Helper::Min),
                    MapOp::Max => self.helper(Helper::Max),
                    MapOp::MinNum => "fmin",
                    _ => "fmax",
                };
                return Ok(Val::data(format!("{name}({}, {})", a.text, b.text), true));
            }
            // Metal's `fmod` isn't exact for large quotients.
            _ => return Err(self.unsupported(format!("{} of f32", op.name()))),
        };
        Ok(Val::data(format!("{} {sign} {}", a.operand(), b.operand()), false))
    }

    /// i32 wraps, so sums and products are those of `uint`; division by zero is 0.
    fn int(&mut self, op: MapOp, vals: &[Val]) -> Result<Val, EmitError> {
        let text = match (op, vals) {
            (MapOp::Neg, [a]) => format!("int(0u - uint({}))", a.text),
            (MapOp::Abs, [a]) => format!("{}({})", self.helper(Helper::Abs), a.text),
            (MapOp::Add | MapOp::Sub | MapOp::Mul, [a, b]) => {
                let sign = match op {
                    MapOp::Add => '+',
                    MapOp::Sub => '-',
                    _ => '*',
                };
                format!("int(uint({}) {sign} uint({}))", a.text, b.text)
            }
            (MapOp::Div | MapOp::Mod, [a, b]) => {
                let division = op == MapOp::Div;
                let name = self.helper(Helper::Divide { wide: false, division });
                format!("{name}({}, {})", a.text, b.text)
            }
            (MapOp::Min | MapOp::MinNum, [a, b]) => format!("min({}, {})", a.text, b.text),
            (MapOp::Max | MapOp::MaxNum, [a, b]) => format!("max({}, {})", a.text, b.text),
            _ => return Err(self.unsupported(format!("{} of i32", op.name()))),
        };
        Ok(Val::data(text, true))
    }

    pub(super) fn cast(&mut self, value: ValueId, result: ValueId) -> Result<(), EmitError> {
        let (from, to, val) = (self.elem(value)?, self.elem(result)?, self.val(value)?);
        let val = self.convert(&val, from, to)?;
        self.define(result, val)
    }

    /// A value as another type: to nearest even, to integers toward zero and saturating.
    pub(super) fn convert(&mut self, val: &Val, from: Elem, to: Elem) -> Result<Val, EmitError> {
        use Elem::{Data, Index};
        let is_float = |e: Elem| matches!(e, Data(d) if d.is_float());
        let text = match (from, to) {
            _ if from == to => return Ok(val.clone()),
            // All narrow floats are f32 on the way, which holds them exactly.
            (Data(a), Data(b)) if a.is_float() && b.is_float() => {
                if a != DType::F32 && b != DType::F32 {
                    format!("{}(float({}))", type_name(b), val.text)
                } else {
                    format!("{}({})", type_name(b), val.text)
                }
            }
            (Data(d), Data(DType::I32) | Index) if d.is_float() => {
                let helper = if to == Index { Helper::ToLong } else { Helper::ToInt };
                let inner =
                    if d == DType::F32 { val.text.clone() } else { format!("float({})", val.text) };
                format!("{}({inner})", self.helper(helper))
            }
            (Data(DType::Bool), Data(d)) if d.is_float() => {
                let [one, zero] = [1.0, 0.0].map(|x| super::emitter::literal_of(x, d));
                return Ok(Val::data(format!("{} ? {one} : {zero}", val.operand()), false));
            }
            (Data(DType::Bool), _) => {
                let text = format!("{} ? 1 : 0", val.operand());
                return Ok(Val { text, tight: false, range: Range::new(0, 1) });
            }
            (_, Data(DType::Bool)) => {
                let zero = if is_float(from) { "0.0f" } else { "0" };
                let inner = match from {
                    Data(DType::F16 | DType::BF16) => format!("float({})", val.text),
                    _ => val.operand(),
                };
                return Ok(Val::data(format!("{inner} != {zero}"), false));
            }
            (Data(DType::I32), Index) => {
                let range = Range::new(i32::MIN.into(), i32::MAX.into());
                return Ok(Val { text: val.text.clone(), tight: val.tight, range });
            }
            (Index, Data(DType::I32)) if val.range.is_narrow() => {
                return Ok(Val::data(val.text.clone(), val.tight));
            }
            (Index, Data(DType::I32)) => format!("int({})", val.text),
            // Numbers of up to 24 bits are exact, and others are rounded once on the way to f32
            // and once to a 16-bit type: allowed only where the first is exact.
            (Index | Data(DType::I32), Data(DType::F32)) => {
                format!("float({})", val.text)
            }
            (Index, Data(d)) if d.is_float() && exact_in_f32(val.range) => {
                format!("{}(float({}))", type_name(d), val.text)
            }
            _ => return Err(self.unsupported(format!("a cast from {from:?} to {to:?}"))),
        };
        Ok(Val::data(text, true))
    }
}

/// Whether f32 holds every number of the range.
fn exact_in_f32(range: Range) -> bool {
    let most = 1 << 24;
    range.lo >= -most && range.hi <= most
}
