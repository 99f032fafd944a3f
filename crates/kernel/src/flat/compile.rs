//! The flattening itself.

use super::*;
use tilewright_ir::entity::Id;

struct Compiler<'a> {
    kernel: &'a Kernel,
    slots: Vec<Slot>,
    code: Code,
    statement: u32,
}

/// Flattens a valid kernel. `file` says in which register file the values of a class live; its
/// numbers start at 0 and are small.
pub fn flatten(kernel: &Kernel, file: impl Fn(Class) -> u16) -> Code {
    let mut registers: Vec<usize> = vec![0];
    let (mut fragments, mut tokens) = (0u32, 0u32);
    let slots = (kernel.values.iter())
        .map(|(_, value)| match value.ty {
            Type::Elem(elem) => {
                let step = u16::from(value.scope == Scope::Lane);
                let file = file(Class::of(elem));
                if usize::from(file) >= registers.len() {
                    registers.resize(usize::from(file) + 1, 0);
                }
                let size = &mut registers[usize::from(file)];
                let at = *size as u32;
                *size += if step == 1 { kernel.lanes as usize } else { 1 };
                Slot::Reg(Reg { at, step, file })
            }
            Type::Fragment { .. } => {
                fragments += 1;
                Slot::Fragment(fragments - 1)
            }
            Type::Token => {
                tokens += 1;
                Slot::Token(tokens - 1)
            }
        })
        .collect();
    let mut compiler = Compiler {
        kernel,
        slots,
        code: Code {
            insts: Vec::new(),
            statements: Vec::new(),
            registers,
            fragments: fragments as usize,
            tokens: tokens as usize,
        },
        statement: 0,
    };
    compiler.block(&kernel.body);
    compiler.push(Inst::End);
    compiler.code
}

impl Compiler<'_> {
    fn push(&mut self, inst: Inst) -> usize {
        self.code.insts.push(inst);
        self.code.statements.push(self.statement);
        self.code.insts.len() - 1
    }

    fn here(&self) -> usize {
        self.code.insts.len()
    }

    fn reg(&self, id: ValueId) -> Reg {
        match self.slots[id.index()] {
            Slot::Reg(reg) => reg,
            // Only in a kernel that the validator rejects.
            Slot::Fragment(_) | Slot::Token(_) => Reg::default(),
        }
    }

    fn token(&self, id: ValueId) -> u32 {
        match self.slots[id.index()] {
            Slot::Token(at) => at,
            Slot::Reg(_) | Slot::Fragment(_) => 0,
        }
    }

    fn fragment(&self, id: ValueId) -> u32 {
        match self.slots[id.index()] {
            Slot::Fragment(at) => at,
            Slot::Reg(_) | Slot::Token(_) => 0,
        }
    }

    fn class(&self, id: ValueId) -> Class {
        match self.kernel.values[id].ty {
            Type::Elem(elem) => Class::of(elem),
            Type::Fragment { dtype, .. } => Class::Float(dtype),
            Type::Token => Class::Index,
        }
    }

    fn shape(&self, id: ValueId) -> Shape {
        match self.kernel.values[id].ty {
            Type::Fragment { atom, role, dtype } => Shape { atom, role, dtype },
            Type::Elem(_) | Type::Token => Shape {
                atom: Atom::Simdgroup8x8,
                role: FragmentRole::Accumulator,
                dtype: DType::F32,
            },
        }
    }

    fn dtype(&self, memory: Memory) -> DType {
        match memory {
            Memory::Global(id) => match self.kernel.args[id].kind {
                ArgKind::Buffer { dtype, .. } | ArgKind::TensorMap { dtype, .. } => dtype,
                ArgKind::Number(_) => DType::F32,
            },
            Memory::Shared(id) | Memory::Cluster(id) => self.kernel.shared[id].dtype,
            Memory::Private(id) => self.kernel.private[id].dtype,
        }
    }

    fn at(&self, place: &Place, guard: Option<&Guard>, width: usize) -> At {
        let guard = guard.map(|g| match g.test {
            GuardTest::Count(limit) => Test::Count(self.reg(limit)),
            GuardTest::Mask(mask) => Test::Mask(self.reg(mask)),
        });
        let index = place.index.map(|i| self.reg(i));
        let same_guard = match guard {
            None => true,
            Some(Test::Count(_)) => false,
            Some(Test::Mask(mask)) => mask.step == 0,
        };
        let same_index = index.is_none_or(|i| i.step == 0);
        let global = !matches!(place.memory, Memory::Private(_));
        At {
            memory: place.memory,
            dtype: self.dtype(place.memory),
            base: self.reg(place.base),
            lane_stride: place.lane_stride,
            index,
            width: width as u32,
            guard,
            uniform: place.lane_stride == 0 && same_guard && same_index && global,
        }
    }

    fn window(&self, view: &View) -> Window {
        Window {
            memory: view.memory,
            dtype: self.dtype(view.memory),
            base: self.reg(view.base),
            row_stride: self.reg(view.row_stride),
            col_stride: self.reg(view.col_stride),
            rows: view.rows.map(|v| self.reg(v)),
            cols: view.cols.map(|v| self.reg(v)),
        }
    }

    fn source(&self, operand: &Operand) -> Source {
        match operand {
            Operand::Fragment(id) => Source::Fragment(self.fragment(*id)),
            Operand::View(view) => Source::Window(self.window(view)),
        }
    }

    fn moves(&self, pairs: impl Iterator<Item = (ValueId, ValueId)>) -> Moves {
        Moves::new(pairs.map(|(a, b)| (self.slots[a.index()], self.slots[b.index()])).collect())
    }

    fn block(&mut self, block: &Block) {
        for stmt in &block.stmts {
            let statement = self.statement;
            self.stmt(stmt);
            // Statements of inner blocks have taken the numbers after this one.
            if self.statement == statement {
                self.statement += 1;
            }
        }
    }

    fn stmt(&mut self, stmt: &Stmt) {
        let number = self.statement;
        match &stmt.op {
            Op::For { index, lo, hi, step, carries, body, .. } => {
                let mut l = Loop {
                    index: self.reg(*index),
                    lo: self.reg(*lo),
                    hi: self.reg(*hi),
                    step: *step as i64,
                    enter: self.moves(carries.iter().map(|c| (c.init, c.inner))),
                    again: self.moves(carries.iter().map(|c| (c.next, c.inner))),
                    leave: self.moves(
                        carries.iter().zip(&stmt.results).map(|(c, &result)| (c.inner, result)),
                    ),
                    body: 0,
                    exit: 0,
                };
                let enter = self.push(Inst::Jump(0));
                l.body = self.here();
                self.statement += 1;
                self.block(body);
                let after = std::mem::replace(&mut self.statement, number);
                l.exit = self.here() + 1;
                self.push(Inst::LoopAgain(Box::new(l.clone())));
                self.code.insts[enter] = Inst::LoopEnter(Box::new(l));
                self.statement = after;
            }
            Op::If { cond, then, then_values, otherwise, else_values } => {
                let cond = self.reg(*cond);
                let results = stmt.results.iter().copied();
                let then_moves = self.moves(then_values.iter().copied().zip(results.clone()));
                let else_moves = self.moves(else_values.iter().copied().zip(results));
                let split = self.push(Inst::Jump(0));
                self.statement += 1;
                self.block(then);
                let after_then = std::mem::replace(&mut self.statement, number);
                self.push(Inst::Move(then_moves));
                let middle = self.push(Inst::Jump(0));
                self.statement = after_then;
                let start = self.here();
                self.block(otherwise);
                let after = std::mem::replace(&mut self.statement, number);
                self.push(Inst::Move(else_moves));
                let exit = self.here();
                if cond.step == 0 {
                    self.code.insts[split] = Inst::Branch { cond, otherwise: start };
                    self.code.insts[middle] = Inst::Jump(exit);
                } else {
                    self.push(Inst::Rejoin);
                    self.code.insts[split] = Inst::Split { cond, otherwise: middle };
                    self.code.insts[middle] = Inst::Other { exit };
                }
                self.statement = after;
            }
            Op::InRole { role, body, .. } => {
                let role = &self.kernel.roles[*role];
                let (first, count) = (role.first, role.count);
                let enter = self.push(Inst::Jump(0));
                self.statement += 1;
                self.block(body);
                self.code.insts[enter] = Inst::Role { first, count, exit: self.here() };
            }
            _ => {
                let inst = self.simple(stmt);
                self.push(inst);
            }
        }
    }

    /// An operation without blocks.
    fn simple(&self, stmt: &Stmt) -> Inst {
        let result = stmt.results.first().copied();
        let dst = result.map_or(Reg::default(), |r| self.reg(r));
        let class = result.map_or(Class::Index, |r| self.class(r));
        let fragment = result.map_or(0, |r| self.fragment(r));
        let args3 = |args: &[ValueId]| {
            let mut regs = [Reg::default(); 3];
            for (reg, &arg) in regs.iter_mut().zip(args) {
                *reg = self.reg(arg);
            }
            regs
        };
        match &stmt.op {
            Op::Const(Literal::Int(n)) => Inst::Fill { dst, class, bits: *n as u64 },
            Op::Const(Literal::Float(x)) => Inst::Fill { dst, class, bits: x.to_bits() },
            Op::Arg(id) => Inst::Arg { dst, class, arg: *id },
            Op::GroupId(dim) => Inst::GroupId { dst, dim: *dim },
            Op::ClusterRank => Inst::ClusterRank { dst },
            Op::SubgroupId => Inst::SubgroupId { dst },
            Op::Lane => Inst::Lane { dst },
            Op::Map { op, args } => {
                let class = self.class(args[usize::from(*op == MapOp::Select)]);
                Inst::Map { op: *op, class, dst, args: args3(args) }
            }
            Op::Fma { a, b, c } => {
                let dtype = match self.class(*a) {
                    Class::Float(dtype) => dtype,
                    Class::Index | Class::I32 | Class::Bool => DType::F64,
                };
                Inst::Fma { dtype, dst, args: args3(&[*a, *b, *c]) }
            }
            Op::Cast(value) => match (self.slots[value.index()], result) {
                (Slot::Fragment(src), Some(r)) => {
                    Inst::FragmentCast { dst: fragment, src, dtype: self.shape(r).dtype }
                }
                (_, r) => Inst::Cast {
                    dst,
                    to: r.map_or(Class::Index, |r| self.class(r)),
                    src: self.reg(*value),
                    from: self.class(*value),
                },
            },
            Op::Load { place, guard } => {
                let regs: Box<[Reg]> = stmt.results.iter().map(|&r| self.reg(r)).collect();
                let at = self.at(place, guard.as_ref(), regs.len());
                Inst::Load { at: Box::new(at), dst: regs, fill: guard.map_or(0.0, |g| g.fill) }
            }
            Op::Store { place, values, guard } => {
                let src: Box<[Reg]> = values.iter().map(|&v| self.reg(v)).collect();
                let mut at = self.at(place, guard.as_ref(), src.len());
                at.uniform &= src.iter().all(|r| r.step == 0);
                Inst::Store { at: Box::new(at), src }
            }
            Op::Atomic { op, place, value, order, scope, guard } => Inst::Atomic {
                at: Box::new(At { uniform: false, ..self.at(place, guard.as_ref(), 1) }),
                op: *op,
                value: self.reg(*value),
                dst,
                order: *order,
                scope: *scope,
            },
            Op::Collective { op, value } => {
                Inst::Collective { op: *op, class: self.class(*value), dst, src: self.reg(*value) }
            }
            Op::Barrier(id) => Inst::Barrier(*id),
            Op::BarrierArrive(id) => Inst::BarrierArrive(*id),
            Op::BarrierWait(id) => Inst::BarrierWait(*id),
            Op::ProxyFence => Inst::ProxyFence,
            Op::FragmentFill(value) => Inst::FragmentFill {
                dst: fragment,
                shape: result.map_or_else(|| self.shape(ValueId::from_index(0)), |r| self.shape(r)),
                value: *value,
            },
            Op::FragmentLoad(view) => Inst::FragmentLoad {
                dst: fragment,
                shape: result.map_or_else(|| self.shape(ValueId::from_index(0)), |r| self.shape(r)),
                window: self.window(view),
            },
            Op::FragmentStore { fragment, view, .. } => Inst::FragmentStore {
                src: self.fragment(*fragment),
                shape: self.shape(*fragment),
                window: self.window(view),
            },
            Op::FragmentMap { op, args } => Inst::FragmentMap {
                op: *op,
                dst: fragment,
                shape: result.map_or_else(|| self.shape(ValueId::from_index(0)), |r| self.shape(r)),
                args: args
                    .iter()
                    .map(|&a| match self.slots[a.index()] {
                        Slot::Fragment(at) => FragmentArg::Fragment(at),
                        Slot::Reg(reg) => FragmentArg::Element(reg),
                        Slot::Token(at) => FragmentArg::Element(Reg::shared(at)),
                    })
                    .collect(),
            },
            Op::Mma { a, b, c, depth } => Inst::Multiply(Box::new(Multiply {
                shape: self.shape(*c),
                a: self.source(a),
                b: self.source(b),
                c: self.fragment(*c),
                depth: depth.map(|d| self.reg(d)),
                dst: fragment,
                token: None,
            })),
            Op::MmaAsync { a, b, c } => Inst::Multiply(Box::new(Multiply {
                shape: self.shape(*c),
                a: self.source(a),
                b: self.source(b),
                c: self.fragment(*c),
                depth: None,
                dst: fragment,
                token: stmt.results.get(1).map(|&t| self.token(t)),
            })),
            Op::CopyAsync { to, from, width, guard } => Inst::CopyAsync {
                to: Box::new(At { uniform: false, ..self.at(to, guard.as_ref(), *width as usize) }),
                from: Box::new(At {
                    uniform: false,
                    ..self.at(from, guard.as_ref(), *width as usize)
                }),
                token: result.map_or(0, |r| self.token(r)),
            },
            Op::CopyTensor { map, coords, to, offset, mbarrier, stage } => {
                Inst::CopyTensor(Box::new(TensorCopy {
                    map: *map,
                    coords: coords.iter().map(|&c| self.reg(c)).collect(),
                    to: *to,
                    offset: self.reg(*offset),
                    mbarrier: *mbarrier,
                    stage: self.reg(*stage),
                }))
            }
            Op::MbarrierInit { mbarrier, stage } => {
                Inst::MbarrierInit { mbarrier: *mbarrier, stage: self.reg(*stage) }
            }
            Op::MbarrierArrive { mbarrier, stage, expect } => Inst::MbarrierArrive {
                mbarrier: *mbarrier,
                stage: self.reg(*stage),
                expect: expect.map(|e| self.reg(e)),
            },
            Op::MbarrierWait { mbarrier, stage, parity } => Inst::MbarrierWait {
                mbarrier: *mbarrier,
                stage: self.reg(*stage),
                parity: self.reg(*parity),
            },
            Op::Wait { tokens, pending } => Inst::Wait {
                tokens: tokens.iter().map(|&t| self.token(t)).collect(),
                pending: *pending,
            },
            // Structured operations have blocks.
            Op::For { .. } | Op::If { .. } | Op::InRole { .. } => Inst::Jump(self.here() + 1),
        }
    }
}
