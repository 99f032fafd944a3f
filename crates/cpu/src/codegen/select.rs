//! Instruction selection: walks the kernel's statements once and appends the linear form.
//!
//! Items are collected per scope (the function, the loop over groups, loops, branches). Pure
//! index arithmetic is appended to the outermost scope that has its operands, which is at that
//! moment the place just before the inner scope will stand: so addresses leave loops without a
//! later pass.

use std::collections::HashMap;

use tilewright_ir::DType;
use tilewright_ir::entity::Id;
use tilewright_kernel::kernel::*;
use tilewright_plan::mapping::CpuIsa;

use super::fragment::Fragments;
use super::lir::{Bank, Item, Konst, Label, Lir, Mem, Operand, V, VInfo, W, d, inst, r, rw, vinst};
use super::ops::VOp;
use super::value::{Data, Flag, Ix, Mask, Val};
use crate::error::CpuError;

/// Result of selection steps.
pub type Res<T> = Result<T, CpuError>;

/// Choices of code generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Options {
    /// Instruction set: AVX-512 or AVX2.
    pub isa: CpuIsa,
    /// Write whole-vector outputs past the caches where the address is known to be aligned.
    pub streaming_stores: bool,
}

/// What a scope is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScopeKind {
    /// The function.
    Root,
    /// A loop.
    Loop,
    /// A side of a branch.
    Branch,
}

/// A derived counter of a loop: the loop's counter times a coefficient.
#[derive(Clone, Copy, Debug)]
pub struct Derived {
    /// The register.
    pub v: V,
    /// The coefficient.
    pub factor: i64,
}

/// An open scope.
#[derive(Debug)]
pub struct Scope {
    /// Its kind.
    pub kind: ScopeKind,
    /// Items so far.
    pub items: Vec<Item>,
    /// Index values that are in registers here.
    pub held: HashMap<Ix, V>,
    /// Lane masks that are in registers here, by number of leading lanes.
    pub counts: HashMap<Ix, Mask>,
    /// Counter of a loop.
    pub counter: Option<V>,
    /// Multiples of the counter.
    pub derived: Vec<Derived>,
}

/// The result of selection.
#[derive(Clone, Debug)]
pub struct Selected {
    /// The function.
    pub lir: Lir,
    /// Scratch memory per worker in bytes.
    pub scratch_bytes: u64,
    /// Whether any store goes past the caches.
    pub streams: bool,
}

/// Whole-vector stores past the caches in a loop.
#[derive(Clone, Debug)]
pub struct Streamed {
    /// Scope around the loop.
    pub level: u32,
    /// Addresses.
    pub addresses: Vec<Ix>,
    /// Counters of the loop (of its main part and of the rest).
    pub counters: Vec<V>,
}

/// The state of selection.
pub struct Select<'k> {
    /// The kernel.
    pub kernel: &'k Kernel,
    /// Options.
    pub options: Options,
    /// Instruction set.
    pub isa: CpuIsa,
    /// Lanes of the subgroup.
    pub lanes: u32,
    /// The function under construction; its items are those of the finished root scope.
    pub lir: Lir,
    /// Open scopes, outermost first.
    pub scopes: Vec<Scope>,
    /// Scope in which each register is defined.
    pub levels: Vec<u32>,
    /// Values that are in view.
    pub values: Vec<Option<Val>>,
    /// Lanes that are on inside a lane-varying branch.
    pub predicate: Option<Mask>,
    /// Where results of a value are wanted: the registers of the carry that it becomes.
    pub wanted: HashMap<ValueId, Val>,
    /// Registers of carried values of open loops.
    pub carried: Vec<V>,
    /// Inside a loop whose whole-vector stores go past the caches: what was stored.
    pub streamed: Option<Streamed>,
    /// Whether any store goes past the caches.
    pub streams: bool,
    /// Byte offset of each shared buffer and private array in the scratch.
    pub shared_at: Vec<u64>,
    /// See `shared_at`.
    pub private_at: Vec<u64>,
    /// Bytes of scratch per worker.
    pub scratch_bytes: u64,
    /// Coordinates of the group.
    pub groups: Vec<V>,
    /// Fragments.
    pub fragments: Fragments,
    /// Scope and number of items there when the statement at hand began.
    start: (usize, usize),
    /// Number of each statement, in pre-order, by address.
    numbers: HashMap<usize, u32>,
    konsts: HashMap<Konst, V>,
}

impl<'k> Select<'k> {
    /// Starts a function for a kernel.
    pub fn new(kernel: &'k Kernel, options: Options) -> Res<Select<'k>> {
        let lanes = kernel.lanes;
        let widest = options.isa.vector_bytes() as u32 / 4;
        if kernel.subgroups != 1 {
            return Err(CpuError::unsupported(format!(
                "{} subgroups in a group (a group on a CPU has one)",
                kernel.subgroups
            )));
        }
        if !lanes.is_power_of_two() || lanes == 2 || lanes > 2 * widest {
            return Err(CpuError::unsupported(format!(
                "subgroups of {lanes} lanes (1, or a power of two from 4 to {})",
                2 * widest
            )));
        }
        let mut scratch_bytes = 0u64;
        let mut place = |bytes: u64| {
            let at = scratch_bytes;
            scratch_bytes = (at + bytes).next_multiple_of(64);
            at
        };
        let shared_at = kernel.shared.iter().map(|(_, s)| place(s.bytes())).collect();
        let private_at = kernel
            .private
            .iter()
            .map(|(_, p)| place(p.len * u64::from(lanes) * p.dtype.bytes()))
            .collect();
        let mut numbers = HashMap::new();
        number(&kernel.body, &mut numbers);
        let mut select = Select {
            kernel,
            options,
            isa: options.isa,
            lanes,
            lir: Lir { lanes, ..Lir::default() },
            scopes: Vec::new(),
            levels: Vec::new(),
            values: vec![None; kernel.values.len()],
            predicate: None,
            wanted: HashMap::new(),
            carried: Vec::new(),
            streamed: None,
            streams: false,
            shared_at,
            private_at,
            scratch_bytes,
            groups: Vec::new(),
            fragments: Fragments::new(kernel)?,
            start: (0, 0),
            numbers,
            konsts: HashMap::new(),
        };
        select.push_scope(ScopeKind::Root, None);
        for n in 0..4 {
            select.lir.params[n] = select.fresh(Bank::Gpr);
        }
        Ok(select)
    }

    /// Walks the whole kernel.
    ///
    /// # Errors
    /// [`CpuError::Unsupported`] names the construct without code.
    pub fn run(mut self) -> Res<Selected> {
        self.group_loop()?;
        let root = self.scopes.pop().ok_or_else(|| CpuError::malformed("no root scope"))?;
        self.lir.items = root.items;
        let Select { lir, scratch_bytes, streams, .. } = self;
        Ok(Selected { lir, scratch_bytes, streams })
    }

    // ---- scopes and items ----------------------------------------------------------------

    /// Opens a scope.
    pub fn push_scope(&mut self, kind: ScopeKind, counter: Option<V>) {
        self.scopes.push(Scope {
            kind,
            items: Vec::new(),
            held: HashMap::new(),
            counts: HashMap::new(),
            counter,
            derived: Vec::new(),
        });
    }

    /// Closes the innermost scope.
    pub fn pop_scope(&mut self) -> Res<Scope> {
        self.scopes.pop().ok_or_else(|| CpuError::malformed("unbalanced scopes"))
    }

    /// Number of the innermost scope.
    pub fn level(&self) -> u32 {
        self.scopes.len() as u32 - 1
    }

    /// A new register that is defined in the innermost scope.
    pub fn fresh(&mut self, bank: Bank) -> V {
        let level = self.level();
        self.fresh_at(bank, level)
    }

    /// A new register that is defined in the given scope.
    pub fn fresh_at(&mut self, bank: Bank, level: u32) -> V {
        self.lir.regs.push(VInfo { bank, konst: None });
        self.levels.push(level);
        V(self.lir.regs.len() as u32 - 1)
    }

    /// Appends to the innermost scope.
    pub fn emit(&mut self, item: Item) {
        let level = self.level();
        self.emit_at(level, item);
    }

    /// Appends to a scope.
    pub fn emit_at(&mut self, level: u32, item: Item) {
        self.scopes[level as usize].items.push(item);
    }

    /// A new label.
    pub fn label(&mut self) -> Label {
        self.lir.labels += 1;
        Label(self.lir.labels - 1)
    }

    /// A new frame object.
    pub fn frame(&mut self, bytes: u32) -> u32 {
        self.lir.frame.push((bytes, 64));
        self.lir.frame.len() as u32 - 1
    }

    /// A constant in a vector register.
    pub fn konst(&mut self, konst: Konst) -> V {
        if let Some(v) = self.konsts.get(&konst) {
            return *v;
        }
        self.lir.regs.push(VInfo { bank: Bank::Vec, konst: Some(konst) });
        self.levels.push(0);
        let v = V(self.lir.regs.len() as u32 - 1);
        self.konsts.insert(konst, v);
        v
    }

    /// An f32 constant in every element.
    pub fn f32(&mut self, x: f32) -> V {
        self.konst(Konst::B32(x.to_bits()))
    }

    /// An f64 constant in every element.
    pub fn f64(&mut self, x: f64) -> V {
        self.konst(Konst::B64(x.to_bits()))
    }

    /// A 32-bit pattern in every element.
    pub fn bits32(&mut self, bits: u32) -> V {
        self.konst(Konst::B32(bits))
    }

    /// A copy of a register.
    pub fn copy(&mut self, from: V) -> V {
        let to = self.fresh(self.lir.regs[from.0 as usize].bank);
        self.emit(Item::Move { to, from });
        to
    }

    // ---- vector instructions -------------------------------------------------------------

    /// `op dst, a`.
    pub fn v1(&mut self, op: VOp, w: W, a: V, source: W) -> V {
        let to = self.fresh(Bank::Vec);
        self.emit(vinst(op, self.isa, w, &[d(to, w), r(a, source)]));
        to
    }

    /// `op dst, a, imm`.
    pub fn v1i(&mut self, op: VOp, w: W, a: V, imm: i64) -> V {
        let to = self.fresh(Bank::Vec);
        self.emit(vinst(op, self.isa, w, &[d(to, w), r(a, w), Operand::Imm(imm)]));
        to
    }

    /// `op dst, a, b`.
    pub fn v2(&mut self, op: VOp, w: W, a: V, b: V) -> V {
        let to = self.fresh(Bank::Vec);
        self.emit(vinst(op, self.isa, w, &[d(to, w), r(a, w), r(b, w)]));
        to
    }

    /// `op dst, a, b, imm`.
    pub fn v2i(&mut self, op: VOp, w: W, a: V, b: V, imm: i64) -> V {
        let to = self.fresh(Bank::Vec);
        self.emit(vinst(op, self.isa, w, &[d(to, w), r(a, w), r(b, w), Operand::Imm(imm)]));
        to
    }

    /// `op dst, a, b` where the destination is also the first operand: the result is a new
    /// register.
    pub fn v3(&mut self, op: VOp, w: W, first: V, a: V, b: V) -> V {
        let to = self.copy(first);
        self.emit(vinst(op, self.isa, w, &[rw(to, w), r(a, w), r(b, w)]));
        to
    }

    /// `op dst, [mem]`.
    pub fn vload(&mut self, op: VOp, w: W, mem: Mem) -> V {
        let to = self.fresh(Bank::Vec);
        self.emit(vinst(op, self.isa, w, &[d(to, w), Operand::Mem(mem)]));
        to
    }

    /// A scalar instruction with a general result: `code dst, operands…`.
    pub fn scalar(&mut self, code: iced_x86::Code, w: W, operands: &[Operand]) -> V {
        let to = self.fresh(Bank::Gpr);
        let mut all = vec![d(to, w)];
        all.extend_from_slice(operands);
        self.emit(inst(code, &all));
        to
    }

    // ---- shapes --------------------------------------------------------------------------

    /// Register width of one part of a value of that element size.
    pub fn width(&self, bytes: u32) -> W {
        W::vector((self.lanes * bytes).min(self.isa.vector_bytes() as u32))
    }

    /// Number of registers of a lane-varying value of that element size.
    pub fn parts(&self, bytes: u32) -> usize {
        (self.lanes * bytes).div_ceil(self.isa.vector_bytes() as u32) as usize
    }

    /// Lanes in one part of a value of that element size.
    pub fn part_lanes(&self, bytes: u32) -> u32 {
        self.lanes.min(self.isa.vector_bytes() as u32 / bytes)
    }

    /// Size of an element in a register.
    pub fn size(dtype: DType) -> u32 {
        dtype.bytes().max(1) as u32
    }

    // ---- values --------------------------------------------------------------------------

    /// A value in view.
    pub fn get(&self, value: ValueId) -> Res<Val> {
        self.values
            .get(value.index())
            .cloned()
            .flatten()
            .ok_or_else(|| CpuError::malformed(format!("{value:?} is used before it is defined")))
    }

    /// An index value that is affine in the lane.
    pub fn index(&self, value: ValueId) -> Res<Ix> {
        match self.get(value)? {
            Val::Index(ix) => Ok(ix),
            _ => Err(CpuError::malformed(format!("{value:?} is no index known per subgroup"))),
        }
    }

    /// An index value that is the same for all lanes.
    pub fn uniform_index(&self, value: ValueId) -> Res<Ix> {
        let ix = self.index(value)?;
        if ix.lane != 0 {
            return Err(CpuError::malformed(format!("{value:?} differs from lane to lane")));
        }
        Ok(ix)
    }

    /// A data value.
    pub fn data(&self, value: ValueId) -> Res<Data> {
        match self.get(value)? {
            Val::Data(data) => Ok(data),
            _ => Err(CpuError::malformed(format!("{value:?} is no data"))),
        }
    }

    /// Element type of a value.
    pub fn elem(&self, value: ValueId) -> Res<Elem> {
        match self.kernel.values.get(value).map(|v| v.ty) {
            Some(Type::Elem(elem)) => Ok(elem),
            _ => Err(CpuError::malformed(format!("{value:?} has no element type"))),
        }
    }

    /// Whether the kernel says that a value differs from lane to lane.
    pub fn varies(&self, value: ValueId) -> bool {
        let lane = tilewright_kernel::kernel::Scope::Lane;
        self.lanes > 1 && self.kernel.values.get(value).is_some_and(|v| v.scope == lane)
    }

    /// Defines a value. Where its registers are the next state of a carry, the instructions that
    /// computed it are redirected to the carry's registers if nothing reads those in between.
    pub fn bind(&mut self, value: ValueId, val: Val) -> Res<()> {
        let mut val = val;
        if let Some(wanted) = self.wanted.get(&value).cloned()
            && let (Val::Data(to), Val::Data(from)) = (&wanted, &val)
        {
            let to_count = to.parts.len();
            for (n, to) in to.parts.iter().enumerate() {
                self.redirect(from.part(n), *to, from.uniform && to_count > 1);
            }
            val = wanted;
        }
        let at = value.index();
        if at >= self.values.len() {
            return Err(CpuError::malformed(format!("{value:?} is of another kernel")));
        }
        if self.fragments.reads_element(value) {
            let object = match self.fragments.element_slot(value) {
                Some(object) => object,
                None => self.frame(64),
            };
            self.fragments.set_element(value, object);
            self.spill_element(object, &val)?;
        }
        self.values[at] = Some(val);
        Ok(())
    }

    /// Makes `to` hold what `from` holds, at best by renaming the freshly computed `from`.
    fn redirect(&mut self, from: V, to: V, shared: bool) {
        use super::alloc::each_reg;
        use super::lir::Role;
        let konst = self.lir.regs[from.0 as usize].konst.is_some();
        let level = self.level() as usize;
        let items = &mut self.scopes[level].items;
        let mentions = |item: &Item, v: V| {
            let mut found = false;
            each_reg(item, &mut |x, _| found |= x == v);
            found
        };
        // What this statement has appended: older items can't mention a fresh register.
        let start = if self.start.0 == level { self.start.1.min(items.len()) } else { 0 };
        let first = items[start..].iter().position(|item| mentions(item, from));
        let first = first.map(|at| at + start);
        let renamed = match first {
            Some(first) if !konst && !shared && self.levels[from.0 as usize] as usize == level => {
                // `from` must be written first, and `to` not be read after that.
                let mut defines = false;
                each_reg(&items[first], &mut |x, role| defines |= x == from && role == Role::Def);
                let safe = defines
                    && items[first + 1..].iter().all(|item| !mentions(item, to))
                    && items[first..]
                        .iter()
                        .all(|i| matches!(i, Item::Inst(_) | Item::Move { .. } | Item::Stmt(_)));
                if safe {
                    for item in &mut items[first..] {
                        rename(item, from, to);
                    }
                }
                safe
            }
            _ => false,
        };
        if !renamed {
            self.emit(Item::Move { to, from });
        }
    }

    // ---- statements ----------------------------------------------------------------------

    /// Walks a block.
    pub fn block(&mut self, block: &Block) -> Res<()> {
        for stmt in &block.stmts {
            let number = self.numbers.get(&(std::ptr::from_ref(stmt) as usize)).copied();
            if let Some(number) = number {
                self.emit(Item::Stmt(number));
            }
            self.stmt(stmt)?;
        }
        Ok(())
    }

    fn stmt(&mut self, stmt: &Stmt) -> Res<()> {
        let level = self.level() as usize;
        self.start = (level, self.scopes[level].items.len());
        let result = || {
            stmt.results
                .first()
                .copied()
                .ok_or_else(|| CpuError::malformed("a statement without its result"))
        };
        match &stmt.op {
            Op::Const(literal) => self.literal(result()?, *literal),
            Op::Arg(arg) => self.arg(result()?, *arg),
            Op::GroupId(dim) => self.group_id(result()?, *dim),
            Op::ClusterRank | Op::SubgroupId => self.bind(result()?, Val::Index(Ix::konst(0))),
            Op::Lane => {
                let lane = i64::from(self.lanes > 1);
                self.bind(result()?, Val::Index(Ix { lane, ..Ix::default() }))
            }
            Op::Map { op, args } => self.map(result()?, *op, args),
            Op::Fma { a, b, c } => self.fma_stmt(result()?, *a, *b, *c),
            Op::Cast(from) => self.cast(result()?, *from),
            Op::Load { place, guard } => self.load_stmt(&stmt.results, place, guard.as_ref()),
            Op::Store { place, values, guard } => self.store_stmt(place, values, guard.as_ref()),
            Op::Collective { op, value } => self.collective(result()?, *op, *value),
            // One subgroup runs everything in order.
            Op::Barrier(_) | Op::ProxyFence => Ok(()),
            Op::BarrierArrive(_) | Op::BarrierWait(_) => {
                Err(CpuError::unsupported("barriers of clusters"))
            }
            Op::For { index, lo, hi, step, unroll, carries, body } => {
                let parts = super::control::Loop {
                    index: *index,
                    lo: *lo,
                    hi: *hi,
                    step: *step,
                    unroll: *unroll,
                    carries,
                    body,
                };
                self.for_stmt(&parts, &stmt.results)
            }
            Op::If { cond, then, then_values, otherwise, else_values } => self.if_stmt(
                *cond,
                (then, then_values.as_slice()),
                (otherwise, else_values.as_slice()),
                &stmt.results,
            ),
            Op::InRole { role, body, .. } => match self.kernel.roles.get(*role) {
                Some(role) if role.first == 0 && role.count > 0 => self.block(body),
                Some(_) => Ok(()),
                None => Err(CpuError::malformed("an unknown role")),
            },
            Op::FragmentFill(_)
            | Op::FragmentLoad(_)
            | Op::FragmentStore { .. }
            | Op::FragmentMap { .. }
            | Op::Mma { .. } => self.fragment_stmt(stmt),
            Op::Atomic { .. } => Err(CpuError::unsupported("atomic operations")),
            Op::MmaAsync { .. } => Err(CpuError::unsupported("asynchronous matrix atoms")),
            Op::CopyAsync { .. } => Err(CpuError::unsupported("asynchronous copies")),
            Op::CopyTensor { .. } => Err(CpuError::unsupported("tensor-map copies")),
            Op::MbarrierInit { .. } | Op::MbarrierArrive { .. } | Op::MbarrierWait { .. } => {
                Err(CpuError::unsupported("transaction barriers"))
            }
            Op::Wait { .. } => Err(CpuError::unsupported("tokens")),
        }
    }

    fn literal(&mut self, result: ValueId, literal: Literal) -> Res<()> {
        let number = match literal {
            Literal::Int(n) => n as f64,
            Literal::Float(x) => x,
        };
        let val = match (self.elem(result)?, literal) {
            (Elem::Index, Literal::Int(n)) => Val::Index(Ix::konst(n)),
            (Elem::Index, Literal::Float(_)) => {
                return Err(CpuError::malformed("a float literal of index type"));
            }
            (Elem::Data(DType::Bool), _) => Val::Flag(Flag::Known(number != 0.0)),
            (Elem::Data(dtype), Literal::Int(n)) if dtype == DType::I32 => {
                Val::Data(self.splat(dtype, n as f64))
            }
            (Elem::Data(dtype), _) => Val::Data(self.splat(dtype, number)),
        };
        self.bind(result, val)
    }

    /// A literal of a data type, rounded to it.
    pub fn splat(&mut self, dtype: DType, x: f64) -> Data {
        let twice = |half: u16| u32::from(half) << 16 | u32::from(half);
        let konst = match dtype {
            DType::F64 => Konst::B64(x.to_bits()),
            DType::F32 => Konst::B32((x as f32).to_bits()),
            DType::F16 => Konst::B32(twice(half::f16::from_f64(x).to_bits())),
            DType::BF16 => Konst::B32(twice(half::bf16::from_f64(x).to_bits())),
            DType::I32 | DType::Bool => Konst::B32(x as i32 as u32),
        };
        Data { dtype, parts: vec![self.konst(konst)], uniform: true, literal: Some(x) }
    }
}

fn number(block: &Block, numbers: &mut HashMap<usize, u32>) {
    for stmt in &block.stmts {
        let next = numbers.len() as u32;
        numbers.insert(std::ptr::from_ref(stmt) as usize, next);
        match &stmt.op {
            Op::For { body, .. } | Op::InRole { body, .. } => number(body, numbers),
            Op::If { then, otherwise, .. } => {
                number(then, numbers);
                number(otherwise, numbers);
            }
            _ => {}
        }
    }
}

/// Replaces a register in an item.
fn rename(item: &mut Item, from: V, to: V) {
    let swap = |v: &mut V| {
        if *v == from {
            *v = to;
        }
    };
    match item {
        Item::Inst(inst) => {
            for op in &mut inst.ops {
                if let Operand::Reg(v, ..) = op {
                    swap(v);
                }
            }
        }
        Item::Move { to: a, from: b } => {
            swap(a);
            swap(b);
        }
        _ => {}
    }
}
