//! The emitter's state: registers, values, labels and the text so far.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Write as _;

use tilewright_ir::DType;
use tilewright_ir::entity::Id as _;
use tilewright_ir::program::Access;
use tilewright_kernel::kernel::{
    ArgId, ArgKind, Barrier, BarrierId, Block, Collective, Elem, Evict, GridDim, Kernel, Literal,
    Memory, Op, PrivateId, Scope, Size, Stmt, Type, ValueId,
};

use super::async_copy::{Commits, group_size};
use super::cluster::{Arrivals, arrivals};
use super::dependent::{Release, release};
use super::{CodegenError, PtxTarget, grid};

/// Register classes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Class {
    /// 64-bit integers and addresses.
    B64,
    /// 32-bit integers.
    B32,
    /// 16-bit floats, untyped.
    B16,
    /// f32.
    F32,
    /// f64.
    F64,
    /// Predicates.
    Pred,
}

impl Class {
    pub(super) const ALL: [Class; 6] =
        [Class::B64, Class::B32, Class::B16, Class::F32, Class::F64, Class::Pred];

    pub(super) fn prefix(self) -> &'static str {
        match self {
            Class::B64 => "%rd",
            Class::B32 => "%r",
            Class::B16 => "%h",
            Class::F32 => "%f",
            Class::F64 => "%fd",
            Class::Pred => "%p",
        }
    }

    fn declaration(self) -> &'static str {
        match self {
            Class::B64 => ".b64",
            Class::B32 => ".b32",
            Class::B16 => ".b16",
            Class::F32 => ".f32",
            Class::F64 => ".f64",
            Class::Pred => ".pred",
        }
    }

    /// The type suffix of a plain `mov`.
    pub(super) fn mov(self) -> &'static str {
        match self {
            Class::F32 => "f32",
            Class::F64 => "f64",
            Class::Pred => "pred",
            Class::B64 => "b64",
            Class::B32 => "b32",
            Class::B16 => "b16",
        }
    }

    pub(super) fn of(elem: Elem) -> Class {
        match elem {
            Elem::Index => Class::B64,
            Elem::Data(DType::F32) => Class::F32,
            Elem::Data(DType::F64) => Class::F64,
            Elem::Data(DType::F16 | DType::BF16) => Class::B16,
            Elem::Data(DType::I32) => Class::B32,
            Elem::Data(DType::Bool) => Class::Pred,
        }
    }
}

/// A register.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Reg {
    pub(super) class: Class,
    pub(super) number: u32,
}

impl std::fmt::Display for Reg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Most of a text is names of registers: digit by digit, without what padding costs.
        let mut digits = [b'0'; 10];
        let (mut first, mut rest) = (digits.len(), self.number);
        loop {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        f.write_str(self.class.prefix())?;
        f.write_str(std::str::from_utf8(&digits[first..]).unwrap_or_default())
    }
}

/// Registers as one operand: a name, or a list in braces.
pub(super) struct List<'a>(pub(super) &'a [Reg]);

impl std::fmt::Display for List<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let [only] = self.0 {
            return only.fmt(f);
        }
        for (i, reg) in self.0.iter().enumerate() {
            f.write_str(if i == 0 { "{" } else { ", " })?;
            reg.fmt(f)?;
        }
        f.write_str("}")
    }
}

/// What an instruction is subject to: nothing, or `@p `.
#[derive(Clone, Copy)]
pub(super) struct If(pub(super) Option<Reg>);

impl std::fmt::Display for If {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            None => Ok(()),
            Some(predicate) => {
                f.write_str("@")?;
                predicate.fmt(f)?;
                f.write_str(" ")
            }
        }
    }
}

/// Hashing of small keys: multiply and rotate, word by word. Keys are numbers that the emitter gave
/// out itself.
#[derive(Clone, Copy, Default)]
pub(super) struct Mixer(u64);

impl std::hash::Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        // Odd, with its bits spread: the golden ratio's.
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_i64(&mut self, n: i64) {
        self.write_u64(n as u64);
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn write_isize(&mut self, n: isize) {
        self.write_u64(n as u64);
    }
}

pub(super) type Mixed = std::hash::BuildHasherDefault<Mixer>;
type Map<K, V> = HashMap<K, V, Mixed>;
type Set<K> = HashSet<K, Mixed>;

/// What a value is while emitting: a register, or a number known now.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Val {
    Reg(Reg),
    /// An index: register plus number. Keeps constant distances out of registers, where they
    /// become the immediate offsets of addresses.
    Sum(Reg, i64),
    /// Index or i32 (sign-extended), or bool as 0 and 1.
    Int(i64),
    /// f32 or f64; f32 values are exactly representable.
    Float(f64, DType),
}

/// An operand of an instruction: what its text is made of.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Operand {
    Reg(Reg),
    Int(i64),
    /// The bits of an f32.
    Single(u32),
    /// The bits of an f64.
    Double(u64),
}

impl std::fmt::Display for Operand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Operand::Reg(reg) => reg.fmt(f),
            Operand::Int(n) => n.fmt(f),
            Operand::Single(bits) => write!(f, "0f{bits:08X}"),
            Operand::Double(bits) => write!(f, "0d{bits:016X}"),
        }
    }
}

/// Results that later code in the same straight line may use again.
#[derive(Clone, Default)]
pub(super) struct Reuse {
    /// Register sums.
    pub(super) sums: Map<(Reg, Reg), Reg>,
    /// Register times number.
    pub(super) products: Map<(Reg, i64), Reg>,
    /// Addresses by memory, base register, lane stride and index register.
    pub(super) addresses: Map<(Memory, Option<Reg>, i64, Option<Reg>), Reg>,
    /// Policies of accesses through an address register whose priority depends on the address.
    pub(super) policies: Map<Reg, Reg>,
    /// 64-bit registers, clamped to ±[`SMALL`], as 32-bit registers.
    pub(super) narrow: Map<Reg, Reg>,
    /// Guard predicates: element offset of the lane's first element, register, number.
    pub(super) predicates: Map<(u32, u32, Option<Reg>, i64), Reg>,
    /// Reciprocals of divisors: 1/m and the power of two that completes it.
    pub(super) reciprocals: Map<Reg, (Reg, Reg)>,
}

/// No cluster has more groups.
const LARGEST_CLUSTER: u64 = 16;
/// Indices of a smaller magnitude are compared as 32-bit numbers.
pub(super) const SMALL: u64 = 1 << 30;
/// Bytes of the text of an instruction with three operands; most values are of one.
const LINE: usize = 48;
/// Bytes that a module has beside its instructions, and more.
const HEADER: usize = 16 << 10;

/// Most statements that unrolling may produce.
pub(super) const STATEMENT_LIMIT: usize = 200_000;

/// Emits one kernel.
pub struct Emitter<'a> {
    pub(super) kernel: &'a Kernel,
    #[allow(dead_code)]
    pub(super) target: PtxTarget,
    /// Whether launches are programmatic dependent ones.
    pub(super) dependent: bool,
    /// Where the kernel says that the next launch may begin.
    pub(super) release: Option<Release>,
    /// What arrivals at the cluster's barrier publish.
    pub(super) arrivals: Arrivals,
    /// Stores that loads may still go before.
    pub(super) held: VecDeque<String>,
    pub(super) text: String,
    /// Registers of each class so far.
    counts: [u32; Class::ALL.len()],
    /// Values by number.
    values: Vec<Option<Val>>,
    /// Registers of private array elements: one per (array, element).
    pub(super) private: Map<(PrivateId, u64), Reg>,
    labels: u32,
    pub(super) statements: usize,
    /// Global base address per buffer argument.
    pub(super) bases: Map<ArgId, Reg>,
    /// Policies of the second-level cache that the kernel uses.
    pub(super) policies: Map<Evict, Reg>,
    /// Where the part of a buffer ends whose lines stay in the second-level cache.
    pub(super) heads: Map<ArgId, Reg>,
    /// Lane number as a 64-bit register.
    pub(super) lane: Option<Reg>,
    /// Subgroup number as a 64-bit register.
    pub(super) subgroup: Option<Reg>,
    /// Lane number as a 32-bit register.
    pub(super) lane32: Option<Reg>,
    /// Address of the group's shared memory.
    pub(super) shared: Option<Reg>,
    /// What may be used again here.
    pub(super) reuse: Reuse,
    /// Asynchronous copies between commits.
    pub(super) commits: Commits,
    /// The f32 registers that 16-bit registers were rounded from: pairs are rounded together.
    pub(super) narrowed: Map<Reg, Reg>,
    /// Differences to a value that the subgroup shares.
    pub(super) offsets: Set<ValueId>,
    /// Whether every output is bf16.
    pub(super) coarse: bool,
    /// 64-bit registers that are surely not negative.
    pub(super) naturals: Set<Reg>,
    /// What 64-bit registers are surely multiples of, where that is more than 1; 0 of a zero.
    pub(super) multiples: Map<Reg, u64>,
    /// The largest magnitude of 64-bit registers, where it is known and less than [`SMALL`].
    pub(super) magnitudes: Map<Reg, u64>,
}

impl<'a> Emitter<'a> {
    pub(super) fn new(kernel: &'a Kernel, target: PtxTarget, dependent: bool) -> Self {
        Emitter {
            kernel,
            target,
            dependent,
            release: if dependent { release(kernel) } else { None },
            arrivals: arrivals(kernel, target),
            held: VecDeque::new(),
            text: String::with_capacity(kernel.values.len() * LINE + HEADER),
            counts: [0; Class::ALL.len()],
            values: vec![None; kernel.values.len()],
            private: Map::default(),
            labels: 0,
            statements: 0,
            bases: Map::default(),
            policies: Map::default(),
            heads: Map::default(),
            lane: None,
            subgroup: None,
            lane32: None,
            shared: None,
            reuse: Reuse::default(),
            commits: Commits { size: group_size(kernel), open: 0 },
            narrowed: Map::default(),
            offsets: Set::default(),
            coarse: writes_only(kernel, DType::BF16),
            naturals: Set::default(),
            multiples: Map::default(),
            magnitudes: Map::default(),
        }
    }

    /// A fresh register.
    pub(super) fn reg(&mut self, class: Class) -> Reg {
        let count = &mut self.counts[class as usize];
        *count += 1;
        Reg { class, number: *count - 1 }
    }

    /// A fresh label.
    pub(super) fn label(&mut self, what: &str) -> String {
        self.labels += 1;
        format!("$L{}_{what}", self.labels)
    }

    /// Appends one instruction.
    pub(super) fn inst(&mut self, text: std::fmt::Arguments<'_>) {
        self.text.push_str("    ");
        // Writing to a String cannot fail.
        let _ = self.text.write_fmt(text);
        self.text.push_str(";\n");
    }

    pub(super) fn place_label(&mut self, label: &str) {
        self.flush();
        let _ = writeln!(self.text, "{label}:");
    }

    pub(super) fn unsupported(&self, construct: impl Into<String>) -> CodegenError {
        CodegenError::Unsupported { kernel: self.kernel.name.clone(), construct: construct.into() }
    }

    /// The element type of a value.
    pub(super) fn elem(&self, value: ValueId) -> Result<Elem, CodegenError> {
        match self.kernel.values[value].ty {
            Type::Elem(elem) => Ok(elem),
            Type::Fragment { .. } => Err(self.unsupported("a matrix fragment")),
            Type::Token => Err(self.unsupported("an asynchronous token")),
        }
    }

    pub(super) fn class(&self, value: ValueId) -> Result<Class, CodegenError> {
        Ok(Class::of(self.elem(value)?))
    }

    pub(super) fn val(&self, value: ValueId) -> Result<Val, CodegenError> {
        let known = self.values.get(value.index()).copied().flatten();
        known.ok_or_else(|| CodegenError::Undefined {
            kernel: self.kernel.name.clone(),
            value: format!("{value:?}"),
        })
    }

    /// An operand: a register or an immediate. Predicates and 16-bit values are moved to a register
    /// first.
    pub(super) fn operand(&mut self, value: ValueId) -> Result<Operand, CodegenError> {
        let class = self.class(value)?;
        let val = self.val(value)?;
        Ok(self.text_of(val, class))
    }

    pub(super) fn text_of(&mut self, val: Val, class: Class) -> Operand {
        match (val, class) {
            (Val::Reg(reg), _) => Operand::Reg(reg),
            (Val::Sum(reg, n), _) => {
                let out = self.reg(Class::B64);
                self.inst(format_args!("add.s64 {out}, {reg}, {n}"));
                Operand::Reg(out)
            }
            (Val::Int(v), Class::Pred) => {
                let p = self.reg(Class::Pred);
                self.inst(format_args!("setp.ne.s32 {p}, {}, 0", i32::from(v != 0)));
                Operand::Reg(p)
            }
            (Val::Int(v), _) => Operand::Int(v),
            (Val::Float(v, _), Class::F64) => Operand::Double(v.to_bits()),
            (Val::Float(v, dtype), Class::B16) => {
                let bits = half_bits(v, dtype);
                let h = self.reg(Class::B16);
                self.inst(format_args!("mov.b16 {h}, 0x{bits:04X}"));
                Operand::Reg(h)
            }
            (Val::Float(v, _), _) => Operand::Single((v as f32).to_bits()),
        }
    }

    /// A value in a register.
    pub(super) fn in_reg(&mut self, val: Val, class: Class) -> Reg {
        if let Val::Reg(reg) = val {
            return reg;
        }
        if let Val::Sum(reg, n) = val {
            let out = self.reg(Class::B64);
            self.inst(format_args!("add.s64 {out}, {reg}, {n}"));
            return out;
        }
        let text = self.text_of(val, class);
        let reg = self.reg(class);
        self.inst(format_args!("mov.{} {reg}, {text}", class.mov()));
        reg
    }

    pub(super) fn define(&mut self, value: ValueId, val: Val) {
        if let Some(known) = self.values.get_mut(value.index()) {
            *known = Some(val);
        }
    }

    /// Makes the policy for a hint to the second-level cache, once.
    fn policy(&mut self, evict: Evict) {
        let name = match evict {
            Evict::Normal => return,
            Evict::First => "evict_first",
            Evict::Last => "evict_last",
            Evict::Head(_) => {
                self.policy(Evict::First);
                return self.policy(Evict::Last);
            }
        };
        if !self.policies.contains_key(&evict) {
            let reg = self.reg(Class::B64);
            self.inst(format_args!("createpolicy.fractional.L2::{name}.b64 {reg}, 1.0"));
            self.policies.insert(evict, reg);
        }
    }

    /// Loads arguments and the lane's coordinates.
    pub(super) fn prologue(&mut self) -> Result<(), CodegenError> {
        for (id, arg) in self.kernel.args.iter() {
            match arg.kind {
                ArgKind::Buffer { evict, .. } => {
                    self.policy(evict);
                    let (generic, global) = (self.reg(Class::B64), self.reg(Class::B64));
                    self.inst(format_args!("ld.param.u64 {generic}, [p_{}]", arg.name));
                    self.inst(format_args!("cvta.to.global.u64 {global}, {generic}"));
                    self.bases.insert(id, global);
                    if let Evict::Head(bytes) = evict {
                        let end = self.reg(Class::B64);
                        self.inst(format_args!("add.s64 {end}, {global}, {bytes}"));
                        self.heads.insert(id, end);
                    }
                }
                ArgKind::Number(_) => {}
                ArgKind::TensorMap { .. } => return Err(self.unsupported("a tensor map")),
            }
        }
        let (tid, lane, lane64) =
            (self.reg(Class::B32), self.reg(Class::B32), self.reg(Class::B64));
        self.inst(format_args!("mov.u32 {tid}, %tid.x"));
        self.inst(format_args!("and.b32 {lane}, {tid}, 31"));
        self.inst(format_args!("cvt.u64.u32 {lane64}, {lane}"));
        self.lane = Some(lane64);
        self.lane32 = Some(lane);
        let (warp, warp64) = (self.reg(Class::B32), self.reg(Class::B64));
        self.inst(format_args!("shr.u32 {warp}, {tid}, 5"));
        self.inst(format_args!("cvt.u64.u32 {warp64}, {warp}"));
        self.subgroup = Some(warp64);
        self.naturals.extend([lane64, warp64]);
        self.reuse.narrow.extend([(lane64, lane), (warp64, warp)]);
        self.magnitudes.extend([(lane64, 31), (warp64, u64::from(self.kernel.subgroups))]);
        if self.kernel.shared_bytes() > 0 {
            let base = self.reg(Class::B64);
            self.inst(format_args!("mov.u64 {base}, shared_memory"));
            self.shared = Some(base);
        }
        if self.dependent {
            self.inst(format_args!("griddepcontrol.wait"));
        }
        Ok(())
    }

    /// Emits every statement of a block.
    pub(super) fn block(&mut self, block: &Block) -> Result<(), CodegenError> {
        block.stmts.iter().try_for_each(|stmt| self.stmt(stmt))
    }

    fn stmt(&mut self, stmt: &Stmt) -> Result<(), CodegenError> {
        self.statements += 1;
        if self.statements > STATEMENT_LIMIT {
            return Err(CodegenError::TooLong {
                kernel: self.kernel.name.clone(),
                limit: STATEMENT_LIMIT,
            });
        }
        self.release(stmt);
        let result = stmt.results.first().copied();
        match (&stmt.op, result) {
            (Op::Const(literal), Some(result)) => {
                let val = match (literal, self.elem(result)?) {
                    (Literal::Int(v), Elem::Data(d)) if d.is_float() => Val::Float(*v as f64, d),
                    (Literal::Int(v), _) => Val::Int(*v),
                    (Literal::Float(v), Elem::Data(d)) => Val::Float(*v, d),
                    (Literal::Float(v), Elem::Index) => Val::Int(*v as i64),
                };
                self.define(result, val);
                Ok(())
            }
            (Op::Arg(arg), Some(result)) => self.arg(*arg, result),
            (Op::GroupId(dim), Some(result)) => self.group_id(*dim, result),
            (Op::SubgroupId, Some(result)) => {
                let val = self.subgroup.map_or(Val::Int(0), Val::Reg);
                let val = if self.kernel.subgroups == 1 { Val::Int(0) } else { val };
                self.define(result, val);
                Ok(())
            }
            (Op::Lane, Some(result)) => {
                let val = self.lane.map_or(Val::Int(0), Val::Reg);
                self.define(result, val);
                Ok(())
            }
            (Op::Map { op, args }, Some(result)) => self.map(*op, args, result),
            (Op::Fma { a, b, c }, Some(result)) => self.fma(*a, *b, *c, result),
            (Op::Cast(value), Some(result)) => self.cast(*value, result),
            (Op::Load { place, guard }, Some(_)) => self.load(place, guard.as_ref(), &stmt.results),
            (Op::Store { place, values, guard }, _) => self.store(place, values, guard.as_ref()),
            (Op::Collective { op, value }, Some(result)) => self.collective(*op, *value, result),
            (Op::Barrier(id), _) => self.barrier(*id, stmt),
            // All barriers of a cluster are its one: subgroups arrive in one order.
            (Op::BarrierArrive(_), _) => {
                self.flush();
                self.arrive(stmt);
                Ok(())
            }
            (Op::BarrierWait(_), _) => {
                self.inst(format_args!("barrier.cluster.wait.aligned"));
                Ok(())
            }
            (Op::ClusterRank, Some(result)) => {
                let (rank, wide) = (self.reg(Class::B32), self.reg(Class::B64));
                self.inst(format_args!("mov.u32 {rank}, %cluster_ctarank"));
                self.inst(format_args!("cvt.u64.u32 {wide}, {rank}"));
                self.naturals.insert(wide);
                self.magnitudes.insert(wide, LARGEST_CLUSTER);
                self.define(result, Val::Reg(wide));
                Ok(())
            }
            (Op::CopyAsync { to, from, width, guard }, _) => {
                self.copy_async(to, from, *width, guard.as_ref())
            }
            (Op::Wait { pending, .. }, _) if self.commits.size > 0 => self.wait_async(*pending),
            (Op::For { .. }, _) => self.for_loop(stmt),
            (Op::If { .. }, _) => self.branch(stmt),
            (op, _) => Err(self.unsupported(format!("{op:?}"))),
        }
    }

    /// Arrives at the barrier of the cluster. An arrival releases and a wait acquires unless said
    /// otherwise.
    fn arrive(&mut self, stmt: &Stmt) {
        let order = if self.arrivals.is_relaxed(stmt) { ".relaxed" } else { "" };
        self.inst(format_args!("barrier.cluster.arrive{order}.aligned"));
    }

    fn barrier(&mut self, id: BarrierId, stmt: &Stmt) -> Result<(), CodegenError> {
        self.flush();
        let group = |(_, b): (BarrierId, &Barrier)| b.scope == Scope::Group;
        match self.kernel.barriers[id].scope {
            Scope::Subgroup => self.inst(format_args!("bar.warp.sync 0xffffffff")),
            Scope::Cluster => {
                self.arrive(stmt);
                self.inst(format_args!("barrier.cluster.wait.aligned"));
            }
            _ if self.kernel.barriers.iter().filter(|b| group(*b)).count() > 1 => {
                return Err(self.unsupported("more than one barrier of a group"));
            }
            Scope::Group if self.kernel.barriers[id].participants.is_none() => {
                self.inst(format_args!("bar.sync 0"));
            }
            scope => return Err(self.unsupported(format!("a barrier of scope {scope}"))),
        }
        Ok(())
    }

    fn arg(&mut self, arg: ArgId, result: ValueId) -> Result<(), CodegenError> {
        let class = self.class(result)?;
        let reg = self.reg(class);
        let name = &self.kernel.args[arg].name;
        let ty = match class {
            Class::B64 => "s64",
            Class::B32 => "s32",
            Class::B16 => "b16",
            Class::F32 => "f32",
            Class::F64 => "f64",
            Class::Pred => return Err(self.unsupported("a bool argument")),
        };
        self.inst(format_args!("ld.param.{ty} {reg}, [p_{name}]"));
        self.define(result, Val::Reg(reg));
        Ok(())
    }

    fn group_id(&mut self, dim: u32, result: ValueId) -> Result<(), CodegenError> {
        // The innermost grid dimension is PTX's x, which has the largest limit.
        let inner = self.kernel.grid.len() as u32 - 1 - dim.min(2);
        let narrow = match (grid::is_folded(&self.kernel.grid), inner) {
            (true, _) => self.folded_group(inner as usize),
            (false, axis) => {
                let axis = ["x", "y", "z"][axis as usize % 3];
                let id = self.reg(Class::B32);
                self.inst(format_args!("mov.u32 {id}, %ctaid.{axis}"));
                id
            }
        };
        let wide = self.reg(Class::B64);
        self.inst(format_args!("cvt.u64.u32 {wide}, {narrow}"));
        self.naturals.insert(wide);
        self.define(result, Val::Reg(wide));
        Ok(())
    }

    /// The group's coordinate in a dimension of a folded grid, by its distance from the innermost:
    /// all dimensions are x, the innermost the fastest.
    fn folded_group(&mut self, inner: usize) -> Reg {
        let kernel = self.kernel;
        let rest = self.reg(Class::B32);
        self.inst(format_args!("mov.u32 {rest}, %ctaid.x"));
        let mut rest = rest;
        let dims: Vec<GridDim> = kernel.grid.iter().rev().copied().collect();
        for dim in &dims[..inner] {
            let (groups, next) = (self.groups(dim), self.reg(Class::B32));
            self.inst(format_args!("div.u32 {next}, {rest}, {groups}"));
            rest = next;
        }
        if inner + 1 == dims.len() {
            return rest;
        }
        let (groups, id) = (self.groups(&dims[inner]), self.reg(Class::B32));
        self.inst(format_args!("rem.u32 {id}, {rest}, {groups}"));
        id
    }

    /// The number of groups along a dimension, as an operand. A launch has checked that all groups
    /// together fit 31 bits.
    fn groups(&mut self, dim: &GridDim) -> String {
        let step = dim.step.max(1);
        match dim.size {
            Size::Const(size) => size.div_ceil(step).to_string(),
            Size::Arg(arg) => {
                let (size, groups) = (self.reg(Class::B64), self.reg(Class::B32));
                let name = &self.kernel.args[arg].name;
                self.inst(format_args!("ld.param.s64 {size}, [p_{name}]"));
                self.inst(format_args!("add.s64 {size}, {size}, {}", step - 1));
                self.inst(format_args!("div.u64 {size}, {size}, {step}"));
                self.inst(format_args!("cvt.u32.u64 {groups}, {size}"));
                groups.to_string()
            }
        }
    }

    fn collective(
        &mut self,
        op: Collective,
        value: ValueId,
        result: ValueId,
    ) -> Result<(), CodegenError> {
        let elem = self.elem(value)?;
        let class = Class::of(elem);
        let val = self.val(value)?;
        let out = match op {
            Collective::Any => {
                let p = self.in_reg(val, Class::Pred);
                let any = self.reg(Class::Pred);
                self.inst(format_args!("vote.sync.any.pred {any}, {p}, 0xffffffff"));
                any
            }
            Collective::Reduce(fold) => {
                let mut acc = self.in_reg(val, class);
                for mask in [16, 8, 4, 2, 1] {
                    let other = self.shuffle(acc, &format!("{mask}"), "bfly")?;
                    acc = self.arith(fold.combine(), elem, acc, other)?;
                }
                acc
            }
            Collective::Broadcast(lane) => {
                let reg = self.in_reg(val, class);
                self.shuffle(reg, &format!("{lane}"), "idx")?
            }
            Collective::ShuffleXor(mask) => {
                let reg = self.in_reg(val, class);
                self.shuffle(reg, &format!("{mask}"), "bfly")?
            }
        };
        self.define(result, Val::Reg(out));
        Ok(())
    }

    /// Exchanges a register between lanes; 64-bit values go in two halves.
    fn shuffle(&mut self, from: Reg, lane: &str, mode: &str) -> Result<Reg, CodegenError> {
        let to = self.reg(from.class);
        match from.class {
            Class::F32 | Class::B32 => {
                self.inst(format_args!(
                    "shfl.sync.{mode}.b32 {to}, {from}, {lane}, 31, 0xffffffff"
                ));
            }
            Class::F64 | Class::B64 => {
                let halves: Vec<Reg> = (0..4).map(|_| self.reg(Class::B32)).collect();
                let (lo, hi, lo2, hi2) = (halves[0], halves[1], halves[2], halves[3]);
                self.inst(format_args!("mov.b64 {{{lo}, {hi}}}, {from}"));
                for (a, b) in [(lo, lo2), (hi, hi2)] {
                    self.inst(format_args!(
                        "shfl.sync.{mode}.b32 {b}, {a}, {lane}, 31, 0xffffffff"
                    ));
                }
                self.inst(format_args!("mov.b64 {to}, {{{lo2}, {hi2}}}"));
            }
            Class::B16 | Class::Pred => {
                return Err(self.unsupported("a shuffle of 16-bit or bool values"));
            }
        }
        Ok(to)
    }

    /// The finished module: its head, register declarations, the code.
    pub(super) fn finish(mut self, mut head: String) -> String {
        self.flush();
        self.inst(format_args!("ret"));
        for class in Class::ALL {
            let count = self.counts[class as usize];
            if count > 0 {
                let (of, prefix) = (class.declaration(), class.prefix());
                let _ = writeln!(head, "    .reg {of} {prefix}<{count}>;");
            }
        }
        self.text.push_str("}\n");
        // Moves the code within its memory: a text of another megabyte would cost more.
        self.text.insert_str(0, &head);
        self.text
    }
}

/// Whether every buffer that a kernel may write is of one type.
fn writes_only(kernel: &Kernel, wanted: DType) -> bool {
    kernel.args.iter().all(|(_, arg)| match arg.kind {
        ArgKind::Buffer { dtype, access, .. } => access == Access::In || dtype == wanted,
        ArgKind::Number(_) | ArgKind::TensorMap { .. } => true,
    })
}

/// The 16 bits of a float rounded to a 16-bit type.
fn half_bits(v: f64, dtype: DType) -> u16 {
    match dtype {
        DType::BF16 => half::bf16::from_f64(v).to_bits(),
        _ => half::f16::from_f64(v).to_bits(),
    }
}
