//! Conversions: to nearest even; to integers toward zero, saturating, NaN to 0.

use iced_x86::Code;
use tilewright_ir::DType;
use tilewright_ir::program::MapOp;
use tilewright_kernel::kernel::*;

use super::helper::Helper;
use super::lir::{Bank, Konst, Operand, V, W, d, inst, r};
use super::ops::{self, VOp};
use super::select::{Res, Select};
use super::value::{Active, Data, Ix, Val};
use crate::error::CpuError;

/// Half the width of a register; an xmm register's half is its lower part.
fn half(w: W) -> W {
    if w == W::Z { W::Y } else { W::X }
}

impl Select<'_> {
    /// A cast statement.
    pub fn cast(&mut self, result: ValueId, from: ValueId) -> Res<()> {
        let val = self.get(from)?;
        let to = self.elem(result)?;
        let val = match to {
            Elem::Index => self.index_from(val)?,
            Elem::Data(DType::Bool) => self.bool_from(val)?,
            Elem::Data(dtype) => match val {
                Val::Index(ix) => Val::Data(self.index_to_data(&ix, dtype)?),
                Val::IndexLanes(parts) => Val::Data(self.index_lanes_to_data(&parts, dtype)?),
                Val::Flag(_) | Val::Mask(_) => {
                    let active = match val {
                        Val::Flag(flag) => Active::Flag(flag),
                        Val::Mask(mask) => Active::Mask(mask),
                        _ => Active::All,
                    };
                    let one = Val::Data(self.splat(dtype, 1.0));
                    let zero = Val::Data(self.splat(dtype, 0.0));
                    self.choose(&active, &one, &zero)?
                }
                Val::Data(data) => Val::Data(self.convert(&data, dtype)?),
                Val::Fragment(_) => return Err(CpuError::malformed("a cast of a fragment")),
            },
        };
        self.bind(result, val)
    }

    fn bool_from(&mut self, val: Val) -> Res<Val> {
        Ok(match val {
            Val::Flag(_) | Val::Mask(_) => val,
            Val::Index(_) | Val::IndexLanes(_) => {
                self.map_index(MapOp::Ne, &[val, Val::Index(Ix::konst(0))])?
            }
            Val::Data(data) => {
                let data = match data.dtype {
                    DType::F16 | DType::BF16 => self.convert(&data, DType::F32)?,
                    _ => data,
                };
                let bytes = Self::size(data.dtype);
                let w = self.width(bytes);
                let zero = self.splat(data.dtype, 0.0);
                let mut parts = Vec::new();
                for part in &data.parts {
                    parts.push(if data.dtype == DType::I32 {
                        self.compare_ints(super::lir::Cc::Ne, 4, w, *part, zero.part(0))
                    } else {
                        self.compare_floats(data.dtype, w, *part, zero.part(0), 0x04)
                    });
                }
                if data.uniform {
                    Val::Flag(self.flag_of_uniform(parts[0]))
                } else {
                    Val::Mask(self.mask_from_parts(bytes, &parts))
                }
            }
            Val::Fragment(_) => return Err(CpuError::malformed("a cast of a fragment")),
        })
    }

    fn index_from(&mut self, val: Val) -> Res<Val> {
        match val {
            Val::Index(_) | Val::IndexLanes(_) => Ok(val),
            Val::Flag(flag) => {
                let v = self.flag_register(&flag);
                Ok(Val::Index(Ix::reg(v)))
            }
            Val::Mask(mask) => {
                let (one, zero) = (Val::Index(Ix::konst(1)), Val::Index(Ix::konst(0)));
                self.choose(&Active::Mask(mask), &one, &zero)
            }
            Val::Data(data) => match data.dtype {
                DType::I32 if data.uniform => {
                    if let Some(n) = data.literal {
                        return Ok(Val::Index(Ix::konst(n as i64)));
                    }
                    let v = self.first_element(data.parts[0], 4);
                    Ok(Val::Index(Ix::reg(v)))
                }
                DType::I32 => Ok(Val::IndexLanes(self.widen(&data.parts, 4, ops::PMOVSXDQ))),
                DType::F16 | DType::BF16 => {
                    let single = self.convert(&data, DType::F32)?;
                    self.index_from(Val::Data(single))
                }
                dtype => {
                    let (which, bytes) = match dtype {
                        DType::F64 => (Helper::F64ToIndex, 8),
                        _ => (Helper::F32ToIndex, 4),
                    };
                    let count = if data.uniform { 1 } else { self.parts(8) };
                    let (w, to) = (self.width(bytes), self.width(8));
                    let parts = self.call_parts(which, &[(&data.parts, w)], count, to);
                    if data.uniform {
                        let v = self.first_element(parts[0], 8);
                        return Ok(Val::Index(Ix::reg(v)));
                    }
                    Ok(Val::IndexLanes(parts))
                }
            },
            Val::Fragment(_) => Err(CpuError::malformed("a cast of a fragment")),
        }
    }

    /// A number that is affine in the lane, as data.
    fn index_to_data(&mut self, ix: &Ix, dtype: DType) -> Res<Data> {
        if let Some(n) = ix.known() {
            let exact = if dtype == DType::I32 { f64::from(n as i32) } else { n as f64 };
            return Ok(self.splat(dtype, exact));
        }
        if dtype == DType::I32 {
            let w = self.width(4);
            let known = ix.uniform().known();
            let base = match known {
                Some(_) => None,
                None => {
                    let v = self.in_register(&ix.uniform());
                    Some(self.broadcast_gpr(v, 4))
                }
            };
            if ix.lane == 0 {
                let parts = base.into_iter().collect();
                return Ok(Data { dtype, parts, uniform: true, literal: None });
            }
            let per = self.part_lanes(4) as i32;
            let step = ix.lane as i32;
            let start = known.unwrap_or(0) as i32;
            let parts = (0..self.parts(4) as i32)
                .map(|p| {
                    let first = start.wrapping_add(per.wrapping_mul(p).wrapping_mul(step));
                    let iota = self.konst(Konst::Iota32(first, step));
                    match base {
                        Some(base) => self.v2(ops::PADDD, w, base, iota),
                        None => iota,
                    }
                })
                .collect();
            return Ok(Data { dtype, parts, uniform: false, literal: None });
        }
        if ix.lane != 0 {
            let parts = self.index_lanes(ix);
            return self.index_lanes_to_data(&parts, dtype);
        }
        let v = self.in_register(ix);
        let double = matches!(dtype, DType::F64 | DType::BF16);
        let code = match (double, self.avx512()) {
            (true, true) => Code::EVEX_Vcvtsi2sd_xmm_xmm_rm64_er,
            (true, false) => Code::VEX_Vcvtsi2sd_xmm_xmm_rm64,
            (false, true) => Code::EVEX_Vcvtsi2ss_xmm_xmm_rm64_er,
            (false, false) => Code::VEX_Vcvtsi2ss_xmm_xmm_rm64,
        };
        let zero = self.bits32(0);
        let low = self.fresh(Bank::Vec);
        self.emit(inst(code, &[d(low, W::X), r(zero, W::X), r(v, W::R64)]));
        let (wide, op, bytes) = if double {
            (DType::F64, ops::PBROADCASTQ, 8)
        } else {
            (DType::F32, ops::PBROADCASTD, 4)
        };
        let w = self.width(bytes);
        let part = self.v1(op, w, low, W::X);
        let data = Data { dtype: wide, parts: vec![part], uniform: true, literal: None };
        self.convert(&data, dtype)
    }

    fn index_lanes_to_data(&mut self, parts: &[V], dtype: DType) -> Res<Data> {
        let (w8, w4) = (self.width(8), self.width(4));
        let data = |dtype, parts| Data { dtype, parts, uniform: false, literal: None };
        let (count8, count4) = (self.parts(8), self.parts(4));
        match dtype {
            DType::I32 if self.avx512() => {
                Ok(data(dtype, self.narrow(parts, 8, ops::PMOVQD, None)))
            }
            DType::I32 => {
                // Even 32-bit elements of each half.
                let mut out = Vec::new();
                for part in parts {
                    let high = self.upper_half(*part);
                    out.push(self.v2i(ops::SHUFPS, W::X, *part, high, 0x88));
                }
                Ok(data(dtype, self.join_pairs(&out, 4)))
            }
            DType::F64 | DType::BF16 => {
                let doubles = if self.avx512() {
                    parts.iter().map(|p| self.v1(ops::CVTQQ2PD, w8, *p, w8)).collect()
                } else {
                    self.call_parts(Helper::IndexToF64, &[(parts, w8)], count8, w8)
                };
                self.convert(&data(DType::F64, doubles), dtype)
            }
            _ => {
                let singles = if self.avx512() {
                    self.narrow(parts, 8, ops::CVTQQ2PS, None)
                } else {
                    self.call_parts(Helper::IndexToF32, &[(parts, w8)], count4, w4)
                };
                self.convert(&data(DType::F32, singles), dtype)
            }
        }
    }

    /// Twice as wide elements by an instruction that reads half as many bytes.
    fn widen(&mut self, parts: &[V], bytes: u32, op: VOp) -> Vec<V> {
        let w = self.width(2 * bytes);
        let count = self.parts(2 * bytes);
        let same = parts.len() >= count;
        (0..count)
            .map(|p| {
                let source = match (same, p % 2) {
                    (true, _) => parts[p],
                    (false, 0) => parts[p / 2],
                    (false, _) => self.upper_of(parts[p / 2], half(w)),
                };
                self.v1(op, w, source, half(w))
            })
            .collect()
    }

    /// Upper half of a register, of the given width.
    fn upper_of(&mut self, v: V, w: W) -> V {
        if w == W::X {
            return self.upper_half(v);
        }
        let to = self.fresh(Bank::Vec);
        let ops = [d(to, W::Y), r(v, W::Z), Operand::Imm(1)];
        self.emit(inst(Code::EVEX_Vextractf64x4_ymmm256_k1z_zmm_imm8, &ops));
        to
    }

    /// Half as wide elements by an instruction that writes half as many bytes.
    fn narrow(&mut self, parts: &[V], bytes: u32, op: VOp, imm: Option<i64>) -> Vec<V> {
        let w = self.width(bytes);
        let code = op.code(self.isa, w);
        let pieces: Vec<V> = parts
            .iter()
            .map(|part| {
                let to = self.fresh(Bank::Vec);
                let mut ops = vec![d(to, half(w)), r(*part, w)];
                ops.extend(imm.map(Operand::Imm));
                self.emit(inst(code, &ops));
                to
            })
            .collect();
        self.join_pairs(&pieces, bytes / 2)
    }

    /// Joins pieces to full parts of elements of that size.
    fn join_pairs(&mut self, pieces: &[V], bytes: u32) -> Vec<V> {
        let count = self.parts(bytes);
        if pieces.len() <= count {
            return pieces.to_vec();
        }
        let w = self.width(bytes);
        pieces.chunks(2).map(|pair| self.join(pair, w)).collect()
    }

    /// One type to another.
    pub fn convert(&mut self, data: &Data, to: DType) -> Res<Data> {
        use DType::*;
        if data.dtype == to {
            return Ok(data.clone());
        }
        if let Some(x) = data.literal {
            return Ok(self.splat(to, to.round(x)));
        }
        let parts = match (data.dtype, to) {
            (F16, F32) => self.widen_some(data, 2, ops::CVTPH2PS),
            (BF16, F32) => {
                let w = self.width(4);
                let wide = self.widen_some(data, 2, ops::PMOVZXWD);
                wide.into_iter().map(|v| self.v1i(ops::PSLLD, w, v, 16)).collect()
            }
            (F32, F64) => self.widen_some(data, 4, ops::CVTPS2PD),
            (I32, F64) => self.widen_some(data, 4, ops::CVTDQ2PD),
            (F64, F32) => self.narrow(&data.parts, 8, ops::CVTPD2PS, None),
            (F32, F16) => self.narrow(&data.parts, 4, ops::CVTPS2PH, Some(0)),
            (F32, BF16) => self.round_to_bf16(&data.parts),
            (I32, F32) => {
                let w = self.width(4);
                data.parts.iter().map(|v| self.v1(ops::CVTDQ2PS, w, *v, w)).collect()
            }
            (F32, I32) => data.parts.iter().map(|v| self.f32_to_i32(*v)).collect(),
            (F64, I32) => self.f64_to_i32(&data.parts),
            (F64, F16) => self.halve_by_call(data, Helper::F64ToF16, 8),
            (F64, BF16) => self.halve_by_call(data, Helper::F64ToBf16, 8),
            (I32, BF16) => self.halve_by_call(data, Helper::I32ToBf16, 4),
            (F16 | BF16, _) | (I32, F16) => {
                let single = self.convert(data, F32)?;
                return self.convert(&single, to);
            }
            (from, to) => return Err(CpuError::unsupported(format!("a cast from {from} to {to}"))),
        };
        let parts = if data.uniform {
            // Narrowing fills only part of the register: repeat the element.
            let bytes = Self::size(to);
            let w = self.width(bytes);
            let op = match bytes {
                2 => ops::PBROADCASTW,
                4 => ops::PBROADCASTD,
                _ => ops::PBROADCASTQ,
            };
            let narrows = bytes < Self::size(data.dtype);
            vec![if narrows { self.v1(op, w, parts[0], W::X) } else { parts[0] }]
        } else {
            parts
        };
        Ok(Data { dtype: to, parts, uniform: data.uniform, literal: None })
    }

    fn widen_some(&mut self, data: &Data, bytes: u32, op: VOp) -> Vec<V> {
        if data.uniform {
            let w = self.width(2 * bytes);
            return vec![self.v1(op, w, data.parts[0], half(w))];
        }
        self.widen(&data.parts, bytes, op)
    }

    fn halve_by_call(&mut self, data: &Data, which: Helper, bytes: u32) -> Vec<V> {
        let (w, to) = (self.width(bytes), self.width(2));
        let count = if data.uniform { 1 } else { self.parts(2) };
        self.call_parts(which, &[(&data.parts, w)], count, to)
    }

    /// To nearest even on the upper half of the bits; NaN keeps its upper payload and is quiet.
    fn round_to_bf16(&mut self, parts: &[V]) -> Vec<V> {
        let w = self.width(4);
        let (one, bias) = (self.bits32(1), self.bits32(0x7fff));
        let quiet = self.bits32(0x40);
        let halves: Vec<V> = parts
            .iter()
            .map(|v| {
                let high = self.v1i(ops::PSRLD, w, *v, 16);
                let odd = self.v2(ops::ANDPS, w, high, one);
                let sum = self.v2(ops::PADDD, w, *v, bias);
                let sum = self.v2(ops::PADDD, w, sum, odd);
                let rounded = self.v1i(ops::PSRLD, w, sum, 16);
                let nan = self.v2(ops::ORPS, w, high, quiet);
                let is_nan = self.compare_floats(DType::F32, w, *v, *v, 0x03);
                self.blend_parts(4, w, is_nan, nan, rounded)
            })
            .collect();
        if self.avx512() {
            return self.narrow(&halves, 4, ops::PMOVDW, None);
        }
        if self.lanes <= 4 {
            let zero = self.bits32(0);
            return halves.iter().map(|v| self.v2(ops::PACKUSDW, W::X, *v, zero)).collect();
        }
        // Packing works within 128-bit halves.
        let mut out = Vec::new();
        for pair in halves.chunks(2) {
            let packed = self.v2(ops::PACKUSDW, W::Y, pair[0], pair[pair.len() - 1]);
            out.push(self.v1i(ops::PERMQ, W::Y, packed, 0xd8));
        }
        out
    }

    fn f32_to_i32(&mut self, v: V) -> V {
        let w = self.width(4);
        // The instruction gives the smallest integer for everything it can't represent.
        let raw = self.v1(ops::CVTTPS2DQ, w, v, w);
        let (limit, top) = (self.f32(2_147_483_648.0), self.bits32(i32::MAX as u32));
        let zero = self.bits32(0);
        let large = self.compare_floats(DType::F32, w, v, limit, 0x1d);
        let some = self.blend_parts(4, w, large, top, raw);
        let nan = self.compare_floats(DType::F32, w, v, v, 0x03);
        self.blend_parts(4, w, nan, zero, some)
    }

    fn f64_to_i32(&mut self, parts: &[V]) -> Vec<V> {
        let w = self.width(8);
        let (low, high) = (self.f64(-2_147_483_648.0), self.f64(2_147_483_647.0));
        let zero = self.f64(0.0);
        let clamped: Vec<V> = parts
            .iter()
            .map(|v| {
                let nan = self.compare_floats(DType::F64, w, *v, *v, 0x03);
                let x = self.blend_parts(8, w, nan, zero, *v);
                let x = self.v2(ops::MAXPD, w, x, low);
                self.v2(ops::MINPD, w, x, high)
            })
            .collect();
        self.narrow(&clamped, 8, ops::CVTTPD2DQ, None)
    }
}
