//! The loop over groups, the group's coordinates, and the launch's numbers.

use iced_x86::Code;
use tilewright_ir::DType;
use tilewright_ir::program::MapOp;
use tilewright_kernel::kernel::*;

use super::lir::{Bank, Cc, Item, Operand, V, W, d, inst, r, rw};
use super::select::{Res, ScopeKind, Select};
use super::value::{Data, Flag, Ix, Val};
use crate::error::CpuError;

impl Select<'_> {
    /// The function's outer loop: groups `first .. end` in linear order, with their coordinates
    /// in the grid kept as counters.
    pub fn group_loop(&mut self) -> Res<()> {
        let [_, first, end, _] = self.lir.params;
        let dims = self.kernel.grid.len();
        if dims > 3 {
            return Err(CpuError::malformed("a grid of more than three dimensions"));
        }
        // Extents and first coordinates of a grid of two or three dimensions.
        let mut coords: Vec<V> = Vec::new();
        let mut extents: Vec<Ix> = Vec::new();
        if dims > 1 {
            for dim in self.kernel.grid.clone() {
                let extent = self.grid_extent(dim)?;
                extents.push(extent);
            }
            let mut rest = Ix::reg(first);
            for extent in extents.iter().skip(1).rev() {
                let (q, m) = self.divide_groups(&rest, extent)?;
                coords.push(self.in_register(&m));
                rest = q;
            }
            coords.push(self.in_register(&rest));
            coords.reverse();
        }
        let done = self.label();
        let top = self.label();
        let g = self.fresh(Bank::Gpr);
        let coords: Vec<V> = coords.into_iter().map(|c| self.copy(c)).collect();
        self.push_scope(ScopeKind::Loop, Some(g));
        let level = self.level();
        self.levels[g.0 as usize] = level;
        coords.iter().for_each(|c| self.levels[c.0 as usize] = level);
        self.groups = if dims > 1 { coords.clone() } else { vec![g; dims] };
        let body = &self.kernel.body;
        self.block(body)?;
        // Coordinates count like an odometer.
        if coords.len() > 1 {
            let next = self.label();
            for n in (0..coords.len()).rev() {
                let add = [rw(coords[n], W::R64), Operand::Imm(1)];
                self.emit(inst(Code::Add_rm64_imm8, &add));
                if n == 0 {
                    break;
                }
                let limit = self.in_register(&extents[n]);
                let cmp = [r(coords[n], W::R64), r(limit, W::R64)];
                self.emit(inst(Code::Cmp_r64_rm64, &cmp));
                self.emit(Item::Branch(Cc::Lt, next));
                let zero = [d(coords[n], W::R32), Operand::Imm(0)];
                self.emit(inst(Code::Mov_r32_imm32, &zero));
            }
            self.emit(Item::Label(next));
        }
        self.emit(inst(Code::Add_rm64_imm8, &[rw(g, W::R64), Operand::Imm(1)]));
        let scope = self.pop_scope()?;
        self.emit(Item::Move { to: g, from: first });
        let mut steps = Vec::new();
        for derived in &scope.derived {
            let start = self.in_register(&Ix::reg(first).times(derived.factor));
            self.emit(Item::Move { to: derived.v, from: start });
            steps.push((derived.v, derived.factor));
        }
        self.emit(inst(Code::Cmp_r64_rm64, &[r(g, W::R64), r(end, W::R64)]));
        self.emit(Item::Branch(Cc::Ge, done));
        self.emit(Item::LoopStart);
        self.emit(Item::Label(top));
        let root = self.level();
        self.scopes[root as usize].items.extend(scope.items);
        for (v, factor) in steps {
            self.add_constant(v, factor);
        }
        self.emit(inst(Code::Cmp_r64_rm64, &[r(g, W::R64), r(end, W::R64)]));
        self.emit(Item::Branch(Cc::Lt, top));
        self.emit(Item::LoopEnd);
        self.emit(Item::Label(done));
        if self.streams {
            // Streamed lines are seen by other threads only after a fence.
            self.emit(inst(Code::Sfence, &[]));
        }
        Ok(())
    }

    fn divide_groups(&mut self, a: &Ix, b: &Ix) -> Res<(Ix, Ix)> {
        let args = [Val::Index(a.clone()), Val::Index(b.clone())];
        let q = self.map_index(MapOp::Div, &args)?;
        let m = self.map_index(MapOp::Mod, &args)?;
        match (q, m) {
            (Val::Index(q), Val::Index(m)) => Ok((q, m)),
            _ => Err(CpuError::malformed("a grid extent that is no index")),
        }
    }

    /// ⌈size / step⌉ of a grid dimension.
    fn grid_extent(&mut self, dim: GridDim) -> Res<Ix> {
        let step = dim.step.max(1) as i64;
        let size = match dim.size {
            Size::Const(n) => Ix::konst(n as i64),
            Size::Arg(arg) => Ix::reg(self.argument_word(arg)),
        };
        let args = [Val::Index(size.offset(step - 1)), Val::Index(Ix::konst(step))];
        match self.map_index(MapOp::Div, &args)? {
            Val::Index(ix) => Ok(ix),
            _ => Err(CpuError::malformed("a grid extent that is no index")),
        }
    }

    /// The group's coordinate.
    pub fn group_id(&mut self, result: ValueId, dim: u32) -> Res<()> {
        let v = *self
            .groups
            .get(dim as usize)
            .ok_or_else(|| CpuError::malformed("a group coordinate beyond the grid"))?;
        self.bind(result, Val::Index(Ix::reg(v)))
    }

    /// A number argument.
    pub fn arg(&mut self, result: ValueId, arg: ArgId) -> Res<()> {
        let word = self.argument_word(arg);
        let val = match self.elem(result)? {
            Elem::Index => Val::Index(Ix::reg(word)),
            Elem::Data(DType::Bool) => {
                Val::Flag(Flag::Compare(Cc::Ne, Ix::reg(word), Ix::konst(0)))
            }
            Elem::Data(dtype) => {
                let part = if dtype.bytes() == 2 {
                    let low = self.broadcast_gpr(word, 4);
                    let w = self.width(2);
                    self.v1(super::ops::PBROADCASTW, w, low, W::X)
                } else {
                    self.broadcast_gpr(word, dtype.bytes() as u32)
                };
                Val::Data(Data { dtype, parts: vec![part], uniform: true, literal: None })
            }
        };
        self.bind(result, val)
    }
}
