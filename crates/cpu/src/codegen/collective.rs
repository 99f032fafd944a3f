//! Collectives over the lanes of the subgroup: within vector registers.

use tilewright_ir::DType;
use tilewright_ir::program::{MapOp, ReduceOp};
use tilewright_kernel::kernel::*;

use super::lir::{Konst, V, W};
use super::ops;
use super::select::{Res, Select};
use super::value::{Data, Flag, Ix, Val};
use crate::error::CpuError;

impl Select<'_> {
    /// A collective statement.
    pub fn collective(&mut self, result: ValueId, op: Collective, value: ValueId) -> Res<()> {
        let val = self.get(value)?;
        let val = match op {
            Collective::Any => match val {
                Val::Flag(flag) => Val::Flag(flag),
                Val::Mask(mask) => {
                    let bits = self.mask_bits(&mask);
                    Val::Flag(Flag::Compare(super::lir::Cc::Ne, Ix::reg(bits), Ix::konst(0)))
                }
                _ => return Err(CpuError::malformed("`any` of no bool")),
            },
            Collective::Reduce(fold) => match val {
                Val::Data(data) => Val::Data(self.reduce(fold, &data)?),
                _ => return Err(CpuError::unsupported("a reduction of index or bool values")),
            },
            Collective::Broadcast(lane) => self.permute(val, &|_| lane, true)?,
            Collective::ShuffleXor(mask) => self.permute(val, &|l| l ^ mask, false)?,
        };
        self.bind(result, val)
    }

    /// Folds the lanes. The order: parts in order, then halves of the register, halves of the
    /// halves, and so on; every lane computes the same commutative tree, so all get one result.
    fn reduce(&mut self, fold: ReduceOp, data: &Data) -> Res<Data> {
        let dtype = data.dtype;
        if !matches!(dtype, DType::F32 | DType::F64 | DType::I32) {
            return Err(CpuError::unsupported(format!("a reduction of {dtype}")));
        }
        if self.lanes == 1 {
            return Ok(data.clone());
        }
        let bytes = Self::size(dtype);
        let w = self.width(bytes);
        let count = self.parts(bytes);
        let mut acc = data.part(0);
        for p in 1..count {
            acc = self.combine(fold, dtype, w, acc, data.part(p))?;
        }
        let mut distance = self.part_lanes(bytes) * bytes / 2;
        while distance >= bytes {
            let other = self.exchange(acc, w, distance);
            acc = self.combine(fold, dtype, w, acc, other)?;
            distance /= 2;
        }
        Ok(Data { dtype, parts: vec![acc], uniform: true, literal: None })
    }

    fn combine(&mut self, fold: ReduceOp, dtype: DType, w: W, a: V, b: V) -> Res<V> {
        let (single, double, int) = match fold {
            ReduceOp::Add => (ops::ADDPS, ops::ADDPD, ops::PADDD),
            ReduceOp::Mul => (ops::MULPS, ops::MULPD, ops::PMULLD),
            ReduceOp::Max => (ops::MAXPS, ops::MAXPD, ops::PMAXSD),
            ReduceOp::Min => (ops::MINPS, ops::MINPD, ops::PMINSD),
        };
        Ok(match (dtype, fold) {
            (DType::I32, _) => self.v2(int, w, a, b),
            (_, ReduceOp::Max) => self.extremum(MapOp::Max, dtype, w, a, b),
            (_, ReduceOp::Min) => self.extremum(MapOp::Min, dtype, w, a, b),
            (DType::F64, _) => self.v2(double, w, a, b),
            _ => self.v2(single, w, a, b),
        })
    }

    /// The register with pieces of `distance` bytes exchanged pairwise.
    fn exchange(&mut self, v: V, w: W, distance: u32) -> V {
        match (distance, w) {
            (32, _) => self.v2i(ops::SHUFF32X4, w, v, v, 0x4e),
            (16, W::Z) => self.v2i(ops::SHUFF32X4, w, v, v, 0xb1),
            (16, _) => self.v1i(ops::PERMQ, W::Y, v, 0x4e),
            (8, _) => self.v1i(ops::PERMILPS, w, v, 0x4e),
            _ => self.v1i(ops::PERMILPS, w, v, 0xb1),
        }
    }

    /// Lanes exchanged by number: lane `l` gets the value of lane `source(l)`.
    fn permute(&mut self, val: Val, source: &dyn Fn(u32) -> u32, uniform: bool) -> Res<Val> {
        let data = match val {
            Val::Data(data) if data.uniform || self.lanes == 1 => return Ok(Val::Data(data)),
            Val::Data(data) => data,
            Val::Index(ix) if ix.lane == 0 => return Ok(Val::Index(ix)),
            Val::Index(ix) if uniform => {
                let lane = i64::from(source(0));
                return Ok(Val::Index(ix.uniform().offset(ix.lane.wrapping_mul(lane))));
            }
            Val::Flag(flag) => return Ok(Val::Flag(flag)),
            _ => return Err(CpuError::unsupported("a shuffle of index or bool values")),
        };
        let bytes = Self::size(data.dtype);
        if bytes == 2 {
            return Err(CpuError::unsupported("a shuffle of 16-bit elements"));
        }
        let w = self.width(bytes);
        let per = self.part_lanes(bytes);
        if (0..self.lanes).any(|l| source(l) >= self.lanes) {
            return Err(CpuError::malformed("a shuffle from a lane that isn't there"));
        }
        let count = if uniform { 1 } else { self.parts(bytes) };
        let mut parts = Vec::new();
        for p in 0..count as u32 {
            // Both collectives take a whole part from one part.
            let from = data.part((source(p * per) / per) as usize);
            let lanes: Vec<u32> = (0..per).map(|l| source(p * per + l) % per).collect();
            parts.push(self.permute_part(from, bytes, w, &lanes)?);
        }
        Ok(Val::Data(Data { parts, uniform, literal: None, ..data }))
    }

    /// Permutes the elements of one register by a constant pattern (a broadcast or an exchange).
    fn permute_part(&mut self, v: V, bytes: u32, w: W, lanes: &[u32]) -> Res<V> {
        let words = bytes / 4;
        let pattern: Vec<u32> =
            lanes.iter().flat_map(|l| (0..words).map(move |k| l * words + k)).collect();
        if w == W::X {
            let imm =
                pattern.iter().enumerate().fold(0, |imm, (n, p)| imm | i64::from(*p) << (2 * n));
            return Ok(self.v1i(ops::PERMILPS, W::X, v, imm));
        }
        let index = self.konst(Konst::Words(pack(&pattern)));
        Ok(self.v2(ops::PERMPS, w, index, v))
    }
}

/// Up to 16 indices below 16, four bits each.
fn pack(pattern: &[u32]) -> u64 {
    pattern.iter().enumerate().fold(0, |all, (n, p)| all | u64::from(p & 15) << (4 * n))
}
