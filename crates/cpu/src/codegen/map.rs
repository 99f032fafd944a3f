//! Elementwise operations.

use iced_x86::Code;
use tilewright_ir::DType;
use tilewright_ir::program::MapOp;
use tilewright_kernel::kernel::*;

use super::helper::{self, Helper};
use super::index::{cc_of, cmov};
use super::lir::{Bank, Call, Cc, Item, Operand, V, W, d, inst, masked, r, rw, vinst};
use super::ops::{self, VOp};
use super::select::{Res, Select};
use super::value::{Active, Data, Flag, Ix, Val};
use crate::error::CpuError;

/// Predicates of vector float comparisons: ordered and quiet, except that "not equal" holds for
/// NaN.
fn predicate(op: MapOp) -> i64 {
    match op {
        MapOp::Eq => 0x00,
        MapOp::Ne => 0x04,
        MapOp::Lt => 0x11,
        MapOp::Le => 0x12,
        MapOp::Gt => 0x1e,
        _ => 0x1d,
    }
}

/// "Either is NaN".
const UNORDERED: i64 = 0x03;

impl Select<'_> {
    /// A map statement.
    pub fn map(&mut self, result: ValueId, op: MapOp, args: &[ValueId]) -> Res<()> {
        let vals: Vec<Val> = args.iter().map(|a| self.get(*a)).collect::<Res<_>>()?;
        if vals.len() != op.arity() {
            return Err(CpuError::malformed(format!(
                "`{}` with {} operands",
                op.name(),
                vals.len()
            )));
        }
        let val = match (op, vals.as_slice()) {
            (MapOp::Select, [c, a, b]) if !matches!(a, Val::Flag(_) | Val::Mask(_)) => {
                let active = match c {
                    Val::Flag(flag) => Active::Flag(flag.clone()),
                    Val::Mask(mask) => Active::Mask(mask.clone()),
                    _ => return Err(CpuError::malformed("`select` on no bool")),
                };
                self.choose(&active, a, b)?
            }
            (_, [Val::Flag(_) | Val::Mask(_), ..]) => self.map_bool(op, &vals)?,
            (_, [Val::Index(_) | Val::IndexLanes(_), ..]) => self.map_index(op, &vals)?,
            (_, [Val::Data(_), ..]) => {
                let mut data = Vec::new();
                for val in vals {
                    match val {
                        Val::Data(x) => data.push(x),
                        _ => return Err(CpuError::malformed("operands of different kinds")),
                    }
                }
                self.map_data(op, &data)?
            }
            _ => return Err(CpuError::malformed("`map` on a fragment")),
        };
        self.bind(result, val)
    }

    /// A fused multiply-add statement.
    pub fn fma_stmt(&mut self, result: ValueId, a: ValueId, b: ValueId, c: ValueId) -> Res<()> {
        let (a, b, c) = (self.data(a)?, self.data(b)?, self.data(c)?);
        let dtype = c.dtype;
        let (op213, op231) = match dtype {
            DType::F32 => (ops::FMADD213PS, ops::FMADD231PS),
            DType::F64 => (ops::FMADD213PD, ops::FMADD231PD),
            _ => return Err(CpuError::unsupported(format!("`fma` on {dtype}"))),
        };
        let w = self.width(Self::size(dtype));
        let uniform = a.uniform && b.uniform && c.uniform;
        let count = if uniform { 1 } else { self.parts(Self::size(dtype)) };
        let mut parts = Vec::new();
        for p in 0..count {
            let (x, y, z) = (a.part(p), b.part(p), c.part(p));
            // The destination replaces an operand: a carried factor, else the addend, unless that
            // is a constant.
            parts.push(if self.is_carried(y) && !self.is_carried(z) {
                self.v3(op213, w, y, x, z)
            } else if c.literal.is_some() || (self.is_carried(x) && !self.is_carried(z)) {
                self.v3(op213, w, x, y, z)
            } else {
                self.v3(op231, w, z, x, y)
            });
        }
        self.bind(result, Val::Data(Data { dtype, parts, uniform, literal: None }))
    }

    // ---- data --------------------------------------------------------------------------------

    fn map_data(&mut self, op: MapOp, args: &[Data]) -> Res<Val> {
        let dtype = args[0].dtype;
        if args.iter().any(|a| a.dtype != dtype) {
            return Err(CpuError::malformed("operands of different types"));
        }
        let bytes = Self::size(dtype);
        let uniform = args.iter().all(|a| a.uniform);
        let count = if uniform { 1 } else { self.parts(bytes) };
        let w = self.width(bytes);
        if op.is_comparison() {
            let mut parts = Vec::new();
            for p in 0..count {
                let (a, b) = (args[0].part(p), args[1].part(p));
                parts.push(match dtype {
                    DType::I32 => self.compare_ints(cc_of(op), 4, w, a, b),
                    DType::F32 | DType::F64 => self.compare_floats(dtype, w, a, b, predicate(op)),
                    _ => return Err(unsupported(op, dtype)),
                });
            }
            return Ok(if uniform {
                Val::Flag(self.flag_of_uniform(parts[0]))
            } else {
                Val::Mask(self.mask_from_parts(bytes, &parts))
            });
        }
        if let Some(which) = Helper::for_op(op, dtype) {
            return self.call_helper(which, args, dtype).map(Val::Data);
        }
        let mut parts = Vec::new();
        for p in 0..count {
            let operands: Vec<V> = args.iter().map(|a| a.part(p)).collect();
            parts.push(match dtype {
                DType::F32 | DType::F64 => self.map_float(op, dtype, w, &operands)?,
                DType::I32 => self.map_int(op, w, &operands)?,
                _ => return Err(unsupported(op, dtype)),
            });
        }
        Ok(Val::Data(Data { dtype, parts, uniform, literal: None }))
    }

    /// Whether a register is a carry of an open loop: the operand on the critical path.
    fn is_carried(&self, v: V) -> bool {
        self.carried.contains(&v)
    }

    fn map_float(&mut self, op: MapOp, dtype: DType, w: W, args: &[V]) -> Res<V> {
        let double = dtype == DType::F64;
        let pick = |single: VOp, wide: VOp| if double { wide } else { single };
        Ok(match (op, args) {
            (MapOp::Add, [a, b]) => self.v2(pick(ops::ADDPS, ops::ADDPD), w, *a, *b),
            (MapOp::Sub, [a, b]) => self.v2(pick(ops::SUBPS, ops::SUBPD), w, *a, *b),
            (MapOp::Mul, [a, b]) => self.v2(pick(ops::MULPS, ops::MULPD), w, *a, *b),
            (MapOp::Div, [a, b]) => self.v2(pick(ops::DIVPS, ops::DIVPD), w, *a, *b),
            (MapOp::Sqrt, [a]) => self.v1(pick(ops::SQRTPS, ops::SQRTPD), w, *a, w),
            (MapOp::Neg, [a]) => {
                let sign = if double { self.f64(-0.0) } else { self.f32(-0.0) };
                self.v2(ops::XORPS, w, *a, sign)
            }
            (MapOp::Abs, [a]) => {
                let sign = if double { self.f64(-0.0) } else { self.f32(-0.0) };
                self.v2(ops::ANDNPS, w, sign, *a)
            }
            (MapOp::Max | MapOp::Min | MapOp::MaxNum | MapOp::MinNum, [a, b]) => {
                self.extremum(op, dtype, w, *a, *b)
            }
            (MapOp::Exp, [a]) if double => self.exp_f64(w, *a),
            (MapOp::Exp, [a]) => self.exp_f32(w, *a),
            (MapOp::Log, [a]) if double => self.log_f64(w, *a),
            (MapOp::Log, [a]) => self.log_f32(w, *a),
            (MapOp::Tanh, [a]) if !double => self.tanh_f32(w, *a),
            (MapOp::Erf, [a]) if !double => self.erf_f32(w, *a),
            _ => return Err(unsupported(op, dtype)),
        })
    }

    /// Maximum or minimum. The instruction gives its second source where either is NaN; the
    /// operand that this gets wrong is put in place by an unordered comparison with itself. A
    /// loop's carry takes the role whose NaN needs no comparison, so that the comparison is not
    /// on the loop's critical path.
    pub fn extremum(&mut self, op: MapOp, dtype: DType, w: W, a: V, b: V) -> V {
        let double = dtype == DType::F64;
        let greater = matches!(op, MapOp::Max | MapOp::MaxNum);
        let instruction = match (greater, double) {
            (true, false) => ops::MAXPS,
            (true, true) => ops::MAXPD,
            (false, false) => ops::MINPS,
            (false, true) => ops::MINPD,
        };
        if matches!(op, MapOp::Max | MapOp::Min) {
            // NaN in `second` comes through by itself; NaN in `first` is put back.
            let (first, second) = if self.is_carried(a) { (b, a) } else { (a, b) };
            let best = self.v2(instruction, w, first, second);
            let nan = self.compare_floats(dtype, w, first, first, UNORDERED);
            return self.blend_parts(dtype.bytes() as u32, w, nan, first, best);
        }
        // NaN in `first` already gives `second`; NaN in `second` must give `first`.
        let (first, second) = if self.is_carried(b) { (b, a) } else { (a, b) };
        let best = self.v2(instruction, w, first, second);
        let nan = self.compare_floats(dtype, w, second, second, UNORDERED);
        self.blend_parts(dtype.bytes() as u32, w, nan, first, best)
    }

    /// Compares floats of one part: a mask register, or a vector of masks of the element's size.
    pub fn compare_floats(&mut self, dtype: DType, w: W, a: V, b: V, imm: i64) -> V {
        let op = if dtype == DType::F64 { ops::CMPPD } else { ops::CMPPS };
        let operands = [r(a, w), r(b, w), Operand::Imm(imm)];
        if self.avx512() {
            let to = self.fresh(Bank::Mask);
            let mut all = vec![d(to, W::K)];
            all.extend(operands);
            self.emit(vinst(op, self.isa, w, &all));
            return to;
        }
        let to = self.fresh(Bank::Vec);
        let mut all = vec![d(to, w)];
        all.extend(operands);
        self.emit(vinst(op, self.isa, w, &all));
        to
    }

    /// `on` where the part's mask is on, else `off`. The mask is as [`Self::compare_floats`]
    /// gives it.
    pub fn blend_parts(&mut self, bytes: u32, w: W, mask: V, on: V, off: V) -> V {
        let op = match (bytes, self.avx512()) {
            (2, true) => ops::PBLENDW,
            (2, false) => ops::PBLENDVB,
            (4, _) => ops::BLENDPS,
            _ => ops::BLENDPD,
        };
        let to = self.fresh(Bank::Vec);
        if self.avx512() {
            let operands = [d(to, w), r(off, w), r(on, w)];
            self.emit(masked(op, self.isa, w, &operands, Some(mask), false));
        } else {
            let operands = [d(to, w), r(off, w), r(on, w), r(mask, w)];
            self.emit(vinst(op, self.isa, w, &operands));
        }
        to
    }

    fn map_int(&mut self, op: MapOp, w: W, args: &[V]) -> Res<V> {
        Ok(match (op, args) {
            (MapOp::Add, [a, b]) => self.v2(ops::PADDD, w, *a, *b),
            (MapOp::Sub, [a, b]) => self.v2(ops::PSUBD, w, *a, *b),
            (MapOp::Mul, [a, b]) => self.v2(ops::PMULLD, w, *a, *b),
            (MapOp::Min | MapOp::MinNum, [a, b]) => self.v2(ops::PMINSD, w, *a, *b),
            (MapOp::Max | MapOp::MaxNum, [a, b]) => self.v2(ops::PMAXSD, w, *a, *b),
            (MapOp::Neg, [a]) => {
                let zero = self.bits32(0);
                self.v2(ops::PSUBD, w, zero, *a)
            }
            (MapOp::Abs, [a]) => {
                let zero = self.bits32(0);
                let minus = self.v2(ops::PSUBD, w, zero, *a);
                self.v2(ops::PMAXSD, w, *a, minus)
            }
            _ => return Err(unsupported(op, DType::I32)),
        })
    }

    // ---- selection -----------------------------------------------------------------------------

    /// `a` where the condition holds, else `b`; values of any kind.
    pub fn choose(&mut self, condition: &Active, a: &Val, b: &Val) -> Res<Val> {
        match condition {
            Active::All => return Ok(a.clone()),
            Active::Nobody => return Ok(b.clone()),
            Active::Flag(Flag::Known(on)) => return Ok(if *on { a.clone() } else { b.clone() }),
            Active::Flag(_) | Active::Mask(_) => {}
        }
        if a == b {
            return Ok(a.clone());
        }
        match (a, b, condition) {
            (Val::Index(x), Val::Index(y), Active::Flag(flag)) if x.lane == y.lane => {
                let (p, q) = (self.in_register(x), self.in_register(y));
                let to = self.copy(q);
                let cc = self.test(flag);
                self.emit(inst(cmov(cc), &[rw(to, W::R64), r(p, W::R64)]));
                Ok(Val::Index(Ix { lane: x.lane, ..Ix::reg(to) }))
            }
            (Val::Index(_) | Val::IndexLanes(_), Val::Index(_) | Val::IndexLanes(_), _) => {
                let mask = self.condition_mask(condition);
                let (x, y) = (self.lanes_of(a)?, self.lanes_of(b)?);
                let w = self.width(8);
                let mut parts = Vec::new();
                for (p, (x, y)) in x.into_iter().zip(y).enumerate() {
                    let m = self.mask_part(&mask, 8, p);
                    parts.push(self.blend_parts(8, w, m, x, y));
                }
                Ok(Val::IndexLanes(parts))
            }
            (Val::Data(x), Val::Data(y), _) if x.dtype == y.dtype => {
                let bytes = Self::size(x.dtype);
                let w = self.width(bytes);
                let mask = self.condition_mask(condition);
                let uniform = x.uniform && y.uniform && matches!(condition, Active::Flag(_));
                let count = if uniform { 1 } else { self.parts(bytes) };
                let mut parts = Vec::new();
                for p in 0..count {
                    let m = self.mask_part(&mask, bytes, p);
                    parts.push(self.blend_parts(bytes, w, m, x.part(p), y.part(p)));
                }
                Ok(Val::Data(Data { dtype: x.dtype, parts, uniform, literal: None }))
            }
            (Val::Flag(_) | Val::Mask(_), Val::Flag(_) | Val::Mask(_), _) => {
                let c = match condition {
                    Active::Flag(flag) => Val::Flag(flag.clone()),
                    Active::Mask(mask) => Val::Mask(mask.clone()),
                    Active::All | Active::Nobody => Val::Flag(Flag::Known(true)),
                };
                self.map_bool(MapOp::Select, &[c, a.clone(), b.clone()])
            }
            _ => Err(CpuError::malformed("a choice between values of different kinds")),
        }
    }

    fn condition_mask(&mut self, condition: &Active) -> super::value::Mask {
        match condition {
            Active::Mask(mask) => mask.clone(),
            Active::Flag(flag) => self.mask_of_flag(&flag.clone()),
            Active::All => self.full_mask(),
            Active::Nobody => self.count_mask(&Ix::konst(0)),
        }
    }

    /// An index value as 64-bit elements.
    pub fn lanes_of(&mut self, val: &Val) -> Res<Vec<V>> {
        match val {
            Val::Index(ix) => Ok(self.index_lanes(&ix.clone())),
            Val::IndexLanes(parts) => Ok(parts.clone()),
            _ => Err(CpuError::malformed("no index value")),
        }
    }

    /// An operation on indices that differ from lane to lane in no simple way.
    pub fn map_index_lanes(&mut self, op: MapOp, args: &[Val]) -> Res<Val> {
        let [a, b] = args else {
            return Err(CpuError::unsupported(format!("`{}` on index values", op.name())));
        };
        if self.lanes == 1 {
            return Err(CpuError::unsupported(format!("`{}` on index values", op.name())));
        }
        let (x, y) = (self.lanes_of(a)?, self.lanes_of(b)?);
        let w = self.width(8);
        if op.is_comparison() {
            return Ok(Val::Mask(self.compare_index_vectors(cc_of(op), &x, &y)?));
        }
        if let Some(which) = Helper::for_index(op) {
            return Ok(Val::IndexLanes(self.call_parts(which, &[(&x, w), (&y, w)], x.len(), w)));
        }
        let mut parts = Vec::new();
        for (a, b) in x.into_iter().zip(y) {
            parts.push(match op {
                MapOp::Add => self.v2(ops::PADDQ, w, a, b),
                MapOp::Sub => self.v2(ops::PSUBQ, w, a, b),
                MapOp::Mul => self.multiply_wide(w, a, b),
                MapOp::Min | MapOp::Max if self.avx512() => {
                    let op = if op == MapOp::Min { ops::PMINSQ } else { ops::PMAXSQ };
                    self.v2(op, w, a, b)
                }
                MapOp::Min | MapOp::Max => {
                    let cc = if op == MapOp::Min { Cc::Lt } else { Cc::Gt };
                    let m = self.compare_ints(cc, 8, w, a, b);
                    self.blend_parts(8, w, m, a, b)
                }
                _ => {
                    return Err(CpuError::unsupported(format!("`{}` on index values", op.name())));
                }
            });
        }
        Ok(Val::IndexLanes(parts))
    }

    /// Low 64 bits of 64-bit products.
    fn multiply_wide(&mut self, w: W, a: V, b: V) -> V {
        if self.avx512() {
            return self.v2(ops::PMULLQ, w, a, b);
        }
        // a·b = lo·lo + ((hi_a·lo_b + lo_a·hi_b) << 32)
        let (ah, bh) = (self.v1i(ops::PSRLQ, w, a, 32), self.v1i(ops::PSRLQ, w, b, 32));
        let low = self.v2(ops::PMULUDQ, w, a, b);
        let (x, y) = (self.v2(ops::PMULUDQ, w, ah, b), self.v2(ops::PMULUDQ, w, a, bh));
        let cross = self.v2(ops::PADDQ, w, x, y);
        let cross = self.v1i(ops::PSLLQ, w, cross, 32);
        self.v2(ops::PADDQ, w, low, cross)
    }

    // ---- helpers -------------------------------------------------------------------------------

    /// A helper call on data: every lane through memory.
    fn call_helper(&mut self, which: Helper, args: &[Data], dtype: DType) -> Res<Data> {
        let bytes = Self::size(dtype);
        let w = self.width(bytes);
        let uniform = args.iter().all(|a| a.uniform);
        let count = if uniform { 1 } else { self.parts(bytes) };
        let operands: Vec<Vec<V>> =
            args.iter().map(|a| (0..count).map(|p| a.part(p)).collect()).collect();
        let operands: Vec<(&[V], W)> = operands.iter().map(|o| (o.as_slice(), w)).collect();
        let parts = self.call_parts(which, &operands, count, w);
        Ok(Data { dtype, parts, uniform, literal: None })
    }

    /// A helper call on registers; `count` result registers of width `to`.
    pub fn call_parts(&mut self, which: Helper, args: &[(&[V], W)], count: usize, to: W) -> Vec<V> {
        // All elements of the registers: a uniform value has more of them than one lane.
        let held = args.iter().map(|(parts, w)| w.bytes() * parts.len() as u32).min().unwrap_or(0);
        let lanes =
            (to.bytes() * count as u32 / which.result_bytes()).min(held / which.operand_bytes());
        let args: Vec<(Vec<(V, W)>, u32)> = args
            .iter()
            .map(|(parts, w)| {
                let object = self.frame(w.bytes() * parts.len() as u32);
                (parts.iter().map(|v| (*v, *w)).collect(), object)
            })
            .collect();
        let results: Vec<(V, W)> = (0..count).map(|_| (self.fresh(Bank::Vec), to)).collect();
        let object = self.frame(to.bytes() * count as u32);
        self.emit(Item::Call(Box::new(Call {
            target: helper::address(which),
            args,
            results: (results.clone(), object),
            lanes,
        })));
        results.into_iter().map(|(v, _)| v).collect()
    }

    /// A multiply-add in place of `p`: `p·x + c`.
    pub fn horner(&mut self, double: bool, w: W, p: V, x: V, c: V) -> V {
        let op = if double { ops::FMADD213PD } else { ops::FMADD213PS };
        self.v3(op, w, p, x, c)
    }

    /// Stores an element that a fragment statement will read to its frame object.
    pub fn spill_element(&mut self, object: u32, val: &Val) -> Res<()> {
        match val {
            Val::Data(data) => {
                let w = self.width(Self::size(data.dtype));
                let mem = Operand::Mem(super::lir::Mem::frame(object, 0));
                self.emit(vinst(ops::MOVUPS_ST, self.isa, w, &[mem, r(data.part(0), w)]));
            }
            Val::Flag(flag) => {
                let v = self.flag_register(flag);
                let mem = Operand::Mem(super::lir::Mem::frame(object, 0));
                self.emit(inst(Code::Mov_rm64_r64, &[mem, r(v, W::R64)]));
            }
            _ => return Err(CpuError::malformed("a fragment operand that is no element")),
        }
        Ok(())
    }
}

fn unsupported(op: MapOp, dtype: DType) -> CpuError {
    CpuError::unsupported(format!("`{}` on {dtype}", op.name()))
}
