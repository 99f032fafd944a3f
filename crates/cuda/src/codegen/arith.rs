//! Elementwise operations, conversions and folding of values that are known while emitting.

use tilewright_ir::DType;
use tilewright_ir::program::MapOp;
use tilewright_kernel::kernel::{Elem, Scope, ValueId};

use super::CodegenError;
use super::async_copy::gcd;
use super::emitter::{Class, Emitter, Operand, Reg, SMALL, Val};

/// The PTX type of a scalar parameter.
pub(super) fn param_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => ".f32",
        DType::F64 => ".f64",
        DType::F16 | DType::BF16 => ".b16",
        DType::I32 | DType::Bool => ".s32",
    }
}

/// The value of an integer operation on known operands. Division by zero gives 0.
fn fold_int(op: MapOp, a: i64, b: i64) -> Option<i64> {
    Some(match op {
        MapOp::Add => a.wrapping_add(b),
        MapOp::Sub => a.wrapping_sub(b),
        MapOp::Mul => a.wrapping_mul(b),
        MapOp::Div => a.checked_div(b).unwrap_or(0),
        MapOp::Mod => a.checked_rem(b).unwrap_or(0),
        MapOp::Min | MapOp::MinNum => a.min(b),
        MapOp::Max | MapOp::MaxNum => a.max(b),
        MapOp::Eq => (a == b) as i64,
        MapOp::Ne => (a != b) as i64,
        MapOp::Lt => (a < b) as i64,
        MapOp::Le => (a <= b) as i64,
        MapOp::Gt => (a > b) as i64,
        MapOp::Ge => (a >= b) as i64,
        _ => return None,
    })
}

impl Emitter<'_> {
    pub(super) fn map(
        &mut self,
        op: MapOp,
        args: &[ValueId],
        result: ValueId,
    ) -> Result<(), CodegenError> {
        if let Some(val) = self.fold(op, args, result)? {
            self.define(result, val);
            return Ok(());
        }
        if let [a, b] = args
            && self.elem(*a)? == Elem::Index
            && let Some(val) = self.affine(op, *a, *b)?
        {
            self.define(result, val);
            return Ok(());
        }
        if let (MapOp::Div, [a, b]) = (op, args)
            && self.class(*b)? == Class::F32
            && self.kernel.values[*b].scope >= Scope::Subgroup
        {
            let out = self.divide_by_uniform(*a, *b)?;
            self.define(result, Val::Reg(out));
            return Ok(());
        }
        let operand = args.last().copied().ok_or_else(|| self.unsupported("an empty map"))?;
        let elem = self.elem(operand)?;
        let class = Class::of(elem);
        let val = match (op, args) {
            (MapOp::Select, [cond, then, otherwise]) => {
                let cond = self.val(*cond)?;
                let cond = self.in_reg(cond, Class::Pred);
                self.select(class, cond, *then, *otherwise)?
            }
            (_, [a]) => {
                let shared = self.kernel.values[*a].scope >= Scope::Subgroup;
                let a = self.val(*a)?;
                let a = self.in_reg(a, class);
                let offset = self.offsets.contains(&operand);
                match (op, class) {
                    (MapOp::Sqrt, Class::F32) if shared => self.root_of_uniform(a),
                    (MapOp::Exp, Class::F32) if self.coarse && offset => self.exp_coarse(a),
                    _ => self.unary(op, elem, a)?,
                }
            }
            (_, [a, b]) if op.is_comparison() => {
                let both = (self.val(*a)?, self.val(*b)?);
                match both {
                    (a, b) if elem == Elem::Index && self.are_small([a, b]) => {
                        let (a, b) = (self.narrow(a)?, self.narrow(b)?);
                        self.compare(op, Elem::Data(DType::I32), a, b)?
                    }
                    _ => {
                        let (a, b) = (self.operand(*a)?, self.operand(*b)?);
                        self.compare(op, elem, a, b)?
                    }
                }
            }
            (_, [a, b]) => {
                let shared = self.kernel.values[*b].scope >= Scope::Subgroup;
                if op == MapOp::Sub && class == Class::F32 && shared {
                    self.offsets.insert(result);
                }
                let (a, b) = (self.val(*a)?, self.val(*b)?);
                let out = self.binary(op, elem, a, b)?;
                if elem == Elem::Index && matches!(op, MapOp::Sub | MapOp::Min | MapOp::Max) {
                    self.multiples.insert(out, gcd(self.multiple(a), self.multiple(b)));
                    self.note_magnitude(out, [a, b]);
                }
                out
            }
            _ => return Err(self.unsupported(format!("{} of {} operands", op.name(), args.len()))),
        };
        self.define(result, Val::Reg(val));
        Ok(())
    }

    fn fold(
        &self,
        op: MapOp,
        args: &[ValueId],
        result: ValueId,
    ) -> Result<Option<Val>, CodegenError> {
        if op == MapOp::Select
            && let [cond, then, otherwise] = args
            && let Val::Int(c) = self.val(*cond)?
        {
            return Ok(Some(self.val(if c != 0 { *then } else { *otherwise })?));
        }
        let [a, b] = args else { return Ok(None) };
        let index = self.elem(*a)? == Elem::Index;
        match (self.val(*a)?, self.val(*b)?) {
            (Val::Int(a), Val::Int(b)) if index => Ok(fold_int(op, a, b).map(Val::Int)),
            // Index identities keep unrolled address arithmetic short.
            (Val::Int(0), b) if index && op == MapOp::Add => Ok(Some(b)),
            (a, Val::Int(0)) if index && matches!(op, MapOp::Add | MapOp::Sub) => Ok(Some(a)),
            (a, Val::Int(1)) if index && matches!(op, MapOp::Mul | MapOp::Div) => Ok(Some(a)),
            (Val::Int(1), b) if index && op == MapOp::Mul => Ok(Some(b)),
            (Val::Int(0), _) | (_, Val::Int(0)) if index && op == MapOp::Mul => {
                Ok(Some(Val::Int(0)))
            }
            (Val::Int(a), Val::Int(b)) if self.class(result)? == Class::Pred => {
                let both = (a != 0, b != 0);
                Ok(match op {
                    MapOp::And => Some(Val::Int((both.0 && both.1) as i64)),
                    MapOp::Or => Some(Val::Int((both.0 || both.1) as i64)),
                    _ => None,
                })
            }
            _ => Ok(None),
        }
    }

    /// Index arithmetic with the constant part kept apart: (r + c) ± n, (r + c) + s, (r + c)·n.
    fn affine(&mut self, op: MapOp, a: ValueId, b: ValueId) -> Result<Option<Val>, CodegenError> {
        let split = |val: Val| match val {
            Val::Reg(r) => Some((Some(r), 0)),
            Val::Sum(r, n) => Some((Some(r), n)),
            Val::Int(n) => Some((None, n)),
            Val::Float(..) => None,
        };
        let (Some((ra, ca)), Some((rb, cb))) = (split(self.val(a)?), split(self.val(b)?)) else {
            return Ok(None);
        };
        let sum = |reg: Reg, n: i64| if n == 0 { Val::Reg(reg) } else { Val::Sum(reg, n) };
        Ok(match (op, ra, rb) {
            (MapOp::Add, Some(r), None) | (MapOp::Add, None, Some(r)) => {
                Some(sum(r, ca.wrapping_add(cb)))
            }
            (MapOp::Sub, Some(r), None) => Some(sum(r, ca.wrapping_sub(cb))),
            (MapOp::Add, Some(x), Some(y)) => {
                let key =
                    if (x.number, y.number) <= (y.number, x.number) { (x, y) } else { (y, x) };
                let reg = match self.reuse.sums.get(&key) {
                    Some(reg) => *reg,
                    None => {
                        let reg = self.reg(Class::B64);
                        self.inst(format_args!("add.s64 {reg}, {x}, {y}"));
                        self.reuse.sums.insert(key, reg);
                        let both = [x, y].map(|r| self.multiple(Val::Reg(r)));
                        self.multiples.insert(reg, gcd(both[0], both[1]));
                        self.note_magnitude(reg, [x, y].map(Val::Reg));
                        reg
                    }
                };
                Some(sum(reg, ca.wrapping_add(cb)))
            }
            (MapOp::Mul, Some(r), None) => {
                let reg = self.product(r, cb);
                Some(sum(reg, ca.wrapping_mul(cb)))
            }
            (MapOp::Mul, None, Some(r)) => {
                let reg = self.product(r, ca);
                Some(sum(reg, cb.wrapping_mul(ca)))
            }
            _ => None,
        })
    }

    /// A 64-bit register times a number.
    pub(super) fn product(&mut self, reg: Reg, n: i64) -> Reg {
        if n == 1 {
            return reg;
        }
        if let Some(out) = self.reuse.products.get(&(reg, n)) {
            return *out;
        }
        let out = self.reg(Class::B64);
        if n > 0 && n.count_ones() == 1 {
            self.inst(format_args!("shl.b64 {out}, {reg}, {}", n.trailing_zeros()));
        } else {
            self.inst(format_args!("mul.lo.s64 {out}, {reg}, {n}"));
        }
        self.reuse.products.insert((reg, n), out);
        // Products that leave 64 bits keep the powers of two of both factors, and no more.
        let multiple = self.multiple(Val::Reg(reg)).checked_mul(n.unsigned_abs());
        self.multiples.insert(out, multiple.unwrap_or(1));
        let most = self.magnitude(Val::Reg(reg)).and_then(|m| m.checked_mul(n.unsigned_abs()));
        if let Some(most) = most.filter(|m| *m < SMALL) {
            self.magnitudes.insert(out, most);
        }
        out
    }

    /// The largest magnitude that an index surely keeps to, where that is less than [`SMALL`].
    pub(super) fn magnitude(&self, val: Val) -> Option<u64> {
        let of = |reg: &Reg| self.magnitudes.get(reg).copied();
        let most = match val {
            Val::Int(n) => Some(n.unsigned_abs()),
            Val::Reg(reg) => of(&reg),
            Val::Sum(reg, n) => of(&reg).and_then(|m| m.checked_add(n.unsigned_abs())),
            Val::Float(..) => None,
        };
        most.filter(|m| *m < SMALL)
    }

    fn are_small(&self, vals: [Val; 2]) -> bool {
        vals.iter().all(|val| self.magnitude(*val).is_some())
    }

    /// A sum, a difference, or one of two indices is no larger than both together.
    fn note_magnitude(&mut self, out: Reg, parts: [Val; 2]) {
        let most = parts.iter().try_fold(0, |sum, val| Some(sum + self.magnitude(*val)?));
        if let Some(most) = most.filter(|m| *m < SMALL) {
            self.magnitudes.insert(out, most);
        }
    }

    /// An index of a small magnitude as a 32-bit operand.
    fn narrow(&mut self, val: Val) -> Result<Operand, CodegenError> {
        Ok(match val {
            Val::Int(n) => Operand::Int(n),
            Val::Reg(reg) => Operand::Reg(self.clamped(reg)),
            Val::Sum(reg, n) => {
                let (low, sum) = (self.clamped(reg), self.reg(Class::B32));
                self.inst(format_args!("add.s32 {sum}, {low}, {n}"));
                Operand::Reg(sum)
            }
            Val::Float(..) => return Err(self.unsupported("a float index")),
        })
    }

    /// A 64-bit register, clamped to ±[`SMALL`], as a 32-bit one.
    pub(super) fn clamped(&mut self, reg: Reg) -> Reg {
        if let Some(narrow) = self.reuse.narrow.get(&reg) {
            return *narrow;
        }
        let mut wide = reg;
        if self.magnitude(Val::Reg(reg)).is_none() {
            let (low, high) = (self.reg(Class::B64), self.reg(Class::B64));
            self.inst(format_args!("min.s64 {low}, {reg}, {SMALL}"));
            self.inst(format_args!("max.s64 {high}, {low}, -{SMALL}"));
            wide = high;
        }
        let narrow = self.reg(Class::B32);
        self.inst(format_args!("cvt.u32.u64 {narrow}, {wide}"));
        self.reuse.narrow.insert(reg, narrow);
        narrow
    }

    /// A number that an index is surely a multiple of; 0 of zero, of which every number is a
    /// divisor.
    pub(super) fn multiple(&self, val: Val) -> u64 {
        let of = |reg: &Reg| self.multiples.get(reg).copied().unwrap_or(1);
        match val {
            Val::Int(n) => n.unsigned_abs(),
            Val::Reg(reg) => of(&reg),
            Val::Sum(reg, n) => gcd(of(&reg), n.unsigned_abs()),
            Val::Float(..) => 1,
        }
    }

    /// x / s for an s that the whole subgroup shares: x·(1/(s·2^k))·2^k, at most 1.5 units in the
    /// last place. k is 0 unless s is so small or large that the reciprocal would leave the range
    /// of normal numbers; then neither product does, for any x. Zeros, infinities and NaN divide
    /// as they should.
    fn divide_by_uniform(&mut self, x: ValueId, s: ValueId) -> Result<Reg, CodegenError> {
        let val = self.val(s)?;
        let x = self.operand(x)?;
        if let Val::Float(s, _) = val
            && (s.abs() as f32).is_normal()
            && (1.0 / s.abs() as f32).is_normal()
        {
            let out = self.reg(Class::F32);
            let inverse =
                self.text_of(Val::Float(f64::from(1.0 / s as f32), DType::F32), Class::F32);
            self.inst(format_args!("mul.rn.f32 {out}, {x}, {inverse}"));
            return Ok(out);
        }
        let s = self.in_reg(val, Class::F32);
        let (inverse, power) = match self.reuse.reciprocals.get(&s) {
            Some(pair) => *pair,
            None => {
                let pair = self.reciprocal(s);
                self.reuse.reciprocals.insert(s, pair);
                pair
            }
        };
        let (part, out) = (self.reg(Class::F32), self.reg(Class::F32));
        self.inst(format_args!("mul.rn.f32 {part}, {x}, {inverse}"));
        self.inst(format_args!("mul.rn.f32 {out}, {part}, {power}"));
        Ok(out)
    }

    /// 1/(s·2^k) and 2^k: k is 60 below 2^-100, −60 above 2^100, else 0. Below, x/s is at least
    /// 2^-49, so x/s·2^-60 is no subnormal; above, it is at most 2^28, so x/s·2^60 is finite.
    fn reciprocal(&mut self, s: Reg) -> (Reg, Reg) {
        let (small, large) = (self.reg(Class::Pred), self.reg(Class::Pred));
        let [magnitude, low, power, scaled, inverse] = [(); 5].map(|()| self.reg(Class::F32));
        self.inst(format_args!("abs.f32 {magnitude}, {s}"));
        self.inst(format_args!("setp.lt.f32 {small}, {magnitude}, 0f0D800000"));
        self.inst(format_args!("setp.gt.f32 {large}, {magnitude}, 0f71800000"));
        self.inst(format_args!("selp.f32 {low}, 0f5D800000, 0f3F800000, {small}"));
        self.inst(format_args!("selp.f32 {power}, 0f21800000, {low}, {large}"));
        self.inst(format_args!("mul.rn.f32 {scaled}, {s}, {power}"));
        self.inst(format_args!("rcp.approx.ftz.f32 {inverse}, {scaled}"));
        (inverse, power)
    }

    /// The square root of a value that the whole subgroup shares, within 2^-23: its latency is in
    /// the way of a whole row.
    fn root_of_uniform(&mut self, x: Reg) -> Reg {
        let out = self.reg(Class::F32);
        self.inst(format_args!("sqrt.approx.f32 {out}, {x}"));
        out
    }

    fn select(
        &mut self,
        class: Class,
        cond: Reg,
        then: ValueId,
        otherwise: ValueId,
    ) -> Result<Reg, CodegenError> {
        let (a, b) = (self.operand(then)?, self.operand(otherwise)?);
        let out = self.reg(class);
        match class {
            Class::Pred => {
                let (not, left, right) =
                    (self.reg(Class::Pred), self.reg(Class::Pred), self.reg(Class::Pred));
                self.inst(format_args!("not.pred {not}, {cond}"));
                self.inst(format_args!("and.pred {left}, {cond}, {a}"));
                self.inst(format_args!("and.pred {right}, {not}, {b}"));
                self.inst(format_args!("or.pred {out}, {left}, {right}"));
            }
            _ => self.inst(format_args!("selp.{} {out}, {a}, {b}, {cond}", class.mov())),
        }
        Ok(out)
    }

    fn compare(
        &mut self,
        op: MapOp,
        elem: Elem,
        a: Operand,
        b: Operand,
    ) -> Result<Reg, CodegenError> {
        let float = matches!(elem, Elem::Data(d) if d.is_float());
        let test = match op {
            MapOp::Eq => "eq",
            // `!=` is true of NaN.
            MapOp::Ne if float => "neu",
            MapOp::Ne => "ne",
            MapOp::Lt => "lt",
            MapOp::Le => "le",
            MapOp::Gt => "gt",
            _ => "ge",
        };
        let out = self.reg(Class::Pred);
        let ty = match Class::of(elem) {
            Class::B64 => "s64",
            Class::B32 => "s32",
            Class::F32 => "f32",
            Class::F64 => "f64",
            Class::B16 | Class::Pred => {
                return Err(self.unsupported(format!("{} of {elem:?}", op.name())));
            }
        };
        self.inst(format_args!("setp.{test}.{ty} {out}, {a}, {b}"));
        Ok(out)
    }

    /// A binary operation on registers; used by collectives.
    pub(super) fn arith(
        &mut self,
        op: MapOp,
        elem: Elem,
        a: Reg,
        b: Reg,
    ) -> Result<Reg, CodegenError> {
        self.binary(op, elem, Val::Reg(a), Val::Reg(b))
    }

    fn binary(&mut self, op: MapOp, elem: Elem, a: Val, b: Val) -> Result<Reg, CodegenError> {
        let class = Class::of(elem);
        let name = match (class, op) {
            (Class::F32, MapOp::Add) => "add.rn.f32",
            (Class::F32, MapOp::Sub) => "sub.rn.f32",
            (Class::F32, MapOp::Mul) => "mul.rn.f32",
            (Class::F32, MapOp::Div) => "div.rn.f32",
            (Class::F32, MapOp::Min) => "min.NaN.f32",
            (Class::F32, MapOp::Max) => "max.NaN.f32",
            (Class::F32, MapOp::MinNum) => "min.f32",
            (Class::F32, MapOp::MaxNum) => "max.f32",
            (Class::F64, MapOp::Add) => "add.rn.f64",
            (Class::F64, MapOp::Sub) => "sub.rn.f64",
            (Class::F64, MapOp::Mul) => "mul.rn.f64",
            (Class::F64, MapOp::Div) => "div.rn.f64",
            (Class::F64, MapOp::MinNum) => "min.f64",
            (Class::F64, MapOp::MaxNum) => "max.f64",
            (Class::F64, MapOp::Min | MapOp::Max) => return Ok(self.nan_extremum(op, a, b)),
            (Class::F32 | Class::F64, MapOp::Mod) => {
                return Err(self.unsupported("a float remainder"));
            }
            (Class::B64, MapOp::Add) => "add.s64",
            (Class::B64, MapOp::Sub) => "sub.s64",
            (Class::B64, MapOp::Mul) => "mul.lo.s64",
            (Class::B64, MapOp::Div) => "div.s64",
            (Class::B64, MapOp::Mod) => "rem.s64",
            (Class::B64, MapOp::Min | MapOp::MinNum) => "min.s64",
            (Class::B64, MapOp::Max | MapOp::MaxNum) => "max.s64",
            (Class::B32, MapOp::Add) => "add.s32",
            (Class::B32, MapOp::Sub) => "sub.s32",
            (Class::B32, MapOp::Mul) => "mul.lo.s32",
            (Class::B32, MapOp::Div) => "div.s32",
            (Class::B32, MapOp::Mod) => "rem.s32",
            (Class::B32, MapOp::Min | MapOp::MinNum) => "min.s32",
            (Class::B32, MapOp::Max | MapOp::MaxNum) => "max.s32",
            (Class::Pred, MapOp::And) => "and.pred",
            (Class::Pred, MapOp::Or) => "or.pred",
            _ => return Err(self.unsupported(format!("{} of {elem:?}", op.name()))),
        };
        // Integer division by zero must give 0, not whatever the hardware leaves.
        let guarded = matches!(class, Class::B64 | Class::B32)
            && matches!(op, MapOp::Div | MapOp::Mod)
            && !matches!(b, Val::Int(n) if n != 0);
        if let (Class::B64, MapOp::Div | MapOp::Mod, Val::Int(n)) = (class, op, b)
            && let Some(out) = self.split(op == MapOp::Div, a, n)
        {
            return Ok(out);
        }
        let first = self.text_of(a, class);
        let second = self.text_of(b, class);
        let out = self.reg(class);
        self.inst(format_args!("{name} {out}, {first}, {second}"));
        if guarded {
            let zero = self.reg(Class::Pred);
            let ty = if class == Class::B64 { "s64" } else { "s32" };
            self.inst(format_args!("setp.eq.{ty} {zero}, {second}, 0"));
            self.inst(format_args!("@{zero} mov.{} {out}, 0", class.mov()));
        }
        Ok(out)
    }

    /// f64 has no NaN-keeping extremum instruction: an unordered pair gives their sum, a NaN.
    fn nan_extremum(&mut self, op: MapOp, a: Val, b: Val) -> Reg {
        let (a, b) = (self.text_of(a, Class::F64), self.text_of(b, Class::F64));
        let (plain, sum, out, nan) = (
            self.reg(Class::F64),
            self.reg(Class::F64),
            self.reg(Class::F64),
            self.reg(Class::Pred),
        );
        let name = if op == MapOp::Min { "min" } else { "max" };
        self.inst(format_args!("{name}.f64 {plain}, {a}, {b}"));
        self.inst(format_args!("setp.nan.f64 {nan}, {a}, {b}"));
        self.inst(format_args!("add.rn.f64 {sum}, {a}, {b}"));
        self.inst(format_args!("selp.f64 {out}, {sum}, {plain}, {nan}"));
        out
    }

    fn unary(&mut self, op: MapOp, elem: Elem, a: Reg) -> Result<Reg, CodegenError> {
        let class = a.class;
        let plain = match (class, op) {
            (Class::F32, MapOp::Neg) => "neg.f32",
            (Class::F32, MapOp::Abs) => "abs.f32",
            (Class::F32, MapOp::Sqrt) => "sqrt.rn.f32",
            (Class::F64, MapOp::Neg) => "neg.f64",
            (Class::F64, MapOp::Abs) => "abs.f64",
            (Class::F64, MapOp::Sqrt) => "sqrt.rn.f64",
            (Class::B32, MapOp::Neg) => "neg.s32",
            (Class::B32, MapOp::Abs) => "abs.s32",
            (Class::B64, MapOp::Neg) => "neg.s64",
            (Class::B64, MapOp::Abs) => "abs.s64",
            (Class::Pred, MapOp::Not) => "not.pred",
            (Class::F32, MapOp::Exp) => return Ok(self.exp_f32(a)),
            (Class::F32, MapOp::Log) => return Ok(self.log_f32(a)),
            (Class::F32, MapOp::Tanh) => return Ok(self.tanh_f32(a)),
            (Class::F32, MapOp::Erf) => return Ok(self.erf_f32(a)),
            _ => return Err(self.unsupported(format!("{} of {elem:?}", op.name()))),
        };
        let out = self.reg(class);
        self.inst(format_args!("{plain} {out}, {a}"));
        Ok(out)
    }

    pub(super) fn fma(
        &mut self,
        a: ValueId,
        b: ValueId,
        c: ValueId,
        result: ValueId,
    ) -> Result<(), CodegenError> {
        let class = self.class(result)?;
        let ty = match class {
            Class::F32 => "f32",
            Class::F64 => "f64",
            _ => return Err(self.unsupported("a fused multiply-add of integers")),
        };
        let (a, b, c) = (self.operand(a)?, self.operand(b)?, self.operand(c)?);
        let out = self.reg(class);
        self.inst(format_args!("fma.rn.{ty} {out}, {a}, {b}, {c}"));
        self.define(result, Val::Reg(out));
        Ok(())
    }

    pub(super) fn cast(&mut self, value: ValueId, result: ValueId) -> Result<(), CodegenError> {
        let (from, to) = (self.elem(value)?, self.elem(result)?);
        let val = self.val(value)?;
        if from == to {
            self.define(result, val);
            return Ok(());
        }
        if let (Val::Int(v), Elem::Index | Elem::Data(DType::I32)) = (val, to) {
            let v = if to == Elem::Index { v } else { i64::from(v as i32) };
            self.define(result, Val::Int(v));
            return Ok(());
        }
        if let (Val::Float(v, _), Elem::Data(d)) = (val, to)
            && d.is_float()
        {
            self.define(result, Val::Float(d.round(v), d));
            return Ok(());
        }
        let source = self.in_reg(val, Class::of(from));
        let out = self.convert(source, from, to)?;
        // The register of a private element may hold another value later.
        let lasting = !self.private.values().any(|slot| *slot == source);
        if lasting && (source.class, out.class) == (Class::F32, Class::B16) {
            self.narrowed.insert(out, source);
        }
        self.define(result, Val::Reg(out));
        Ok(())
    }

    /// Converts a register between element types.
    fn convert(&mut self, source: Reg, from: Elem, to: Elem) -> Result<Reg, CodegenError> {
        use DType::{BF16, Bool, F16, F32, F64, I32};
        use Elem::{Data, Index};
        let out = self.reg(Class::of(to));
        let name = match (from, to) {
            (Data(F16), Data(F32)) => "cvt.f32.f16",
            (Data(F32), Data(F16)) => "cvt.rn.f16.f32",
            (Data(F16), Data(F64)) => "cvt.f64.f16",
            (Data(F64), Data(F16)) => "cvt.rn.f16.f64",
            (Data(F32), Data(BF16)) => "cvt.rn.bf16.f32",
            (Data(F32), Data(F64)) => "cvt.f64.f32",
            (Data(F64), Data(F32)) => "cvt.rn.f32.f64",
            (Data(I32), Data(F32)) => "cvt.rn.f32.s32",
            (Data(I32), Data(F64)) => "cvt.rn.f64.s32",
            (Data(F32), Data(I32)) => "cvt.rzi.s32.f32",
            (Data(F64), Data(I32)) => "cvt.rzi.s32.f64",
            (Data(I32), Index) => "cvt.s64.s32",
            (Index, Data(I32)) => "cvt.u32.u64",
            (Index, Data(F32)) => "cvt.rn.f32.s64",
            (Index, Data(F64)) => "cvt.rn.f64.s64",
            (Data(BF16), Data(F32)) => {
                // A bf16 is the upper half of an f32.
                let zero = self.reg(Class::B16);
                self.inst(format_args!("mov.b16 {zero}, 0"));
                self.inst(format_args!("mov.b32 {out}, {{{zero}, {source}}}"));
                return Ok(out);
            }
            (Data(BF16), _) => {
                let wide = self.convert(source, from, Data(F32))?;
                return self.convert(wide, Data(F32), to);
            }
            (Data(F16), Data(BF16)) => {
                let wide = self.convert(source, from, Data(F32))?;
                return self.convert(wide, Data(F32), to);
            }
            (Data(Bool), Data(F32)) => {
                self.inst(format_args!("selp.f32 {out}, 0f3F800000, 0f00000000, {source}"));
                return Ok(out);
            }
            (Data(Bool), Data(F64)) => {
                self.inst(format_args!(
                    "selp.f64 {out}, 0d3FF0000000000000, 0d0000000000000000, {source}"
                ));
                return Ok(out);
            }
            (Data(Bool), Data(I32)) => {
                self.inst(format_args!("selp.b32 {out}, 1, 0, {source}"));
                return Ok(out);
            }
            (Data(I32), Data(Bool)) => {
                self.inst(format_args!("setp.ne.s32 {out}, {source}, 0"));
                return Ok(out);
            }
            (Data(F32), Data(Bool)) => {
                self.inst(format_args!("setp.neu.f32 {out}, {source}, 0f00000000"));
                return Ok(out);
            }
            _ => return Err(self.unsupported(format!("a cast from {from:?} to {to:?}"))),
        };
        self.inst(format_args!("{name} {out}, {source}"));
        Ok(out)
    }
}
