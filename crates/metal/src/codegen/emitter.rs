//! The emitter's state, the text so far, and statements that are no loop, access or fragment.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

use tilewright_ir::DType;
use tilewright_ir::entity::Id;
use tilewright_ir::program::{Access, MapOp, ReduceOp};
use tilewright_kernel::kernel::{
    ArgId, ArgKind, Barrier, BarrierId, Block, Collective, Elem, Kernel, Layout, Literal, Memory,
    Op, PrivateId, Scope, SharedId, Size, Stmt, Type, ValueId,
};

use super::fragment::Fragment;
use super::helpers::{Helper, float};
use super::index::{self, Range, Val};
use super::mpp::Operations;
use super::names::Names;
use super::uses::Uses;
use super::{Binding, BindingKind, EmitError, Language};

/// Longest expression that is written where it is used instead of getting a name.
const INLINE: usize = 60;

/// Emits one kernel.
pub(super) struct Emitter<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) uses: Uses,
    text: String,
    depth: usize,
    pub(super) values: HashMap<ValueId, Val>,
    pub(super) fragments: HashMap<ValueId, Fragment>,
    helpers: BTreeSet<Helper>,
    pub(super) operations: Operations,
    args: Vec<String>,
    shared: Vec<String>,
    private: Vec<String>,
    entry: String,
    lane: bool,
    subgroup: bool,
    groups: BTreeSet<u32>,
    most: HashMap<ArgId, i64>,
}

impl<'a> Emitter<'a> {
    pub(super) fn new(kernel: &'a Kernel) -> Self {
        let mut names = Names::default();
        let entry = names.take(&kernel.name);
        let args = kernel.args.iter().map(|(_, a)| names.take(&a.name)).collect();
        let shared = kernel.shared.iter().map(|(_, s)| names.take(&s.name)).collect();
        let private = kernel.private.iter().map(|(_, p)| names.take(&p.name)).collect();
        Emitter {
            kernel,
            uses: Uses::of(kernel),
            text: String::new(),
            depth: 1,
            values: HashMap::new(),
            fragments: HashMap::new(),
            helpers: BTreeSet::new(),
            operations: Operations::of(kernel),
            args,
            shared,
            private,
            entry,
            lane: false,
            subgroup: false,
            groups: BTreeSet::new(),
            most: HashMap::new(),
        }
    }

    /// Appends one line.
    pub(super) fn line(&mut self, text: impl AsRef<str>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{:width$}{}", "", text.as_ref(), width = 4 * self.depth);
    }

    /// Appends a line and indents what follows.
    pub(super) fn open(&mut self, text: impl AsRef<str>) {
        self.line(text);
        self.depth += 1;
    }

    /// Indents what follows.
    pub(super) fn depth_in(&mut self) {
        self.depth += 1;
    }

    /// Ends an indented block.
    pub(super) fn close(&mut self, text: &str) {
        self.depth -= 1;
        self.line(text);
    }

    pub(super) fn unsupported(&self, construct: impl Into<String>) -> EmitError {
        EmitError::Unsupported { kernel: self.kernel.name.clone(), construct: construct.into() }
    }

    pub(super) fn undefined(&self, value: ValueId) -> EmitError {
        EmitError::Undefined {
            kernel: self.kernel.name.clone(),
            value: format!("%{}", value.index()),
        }
    }

    pub(super) fn helper(&mut self, helper: Helper) -> &'static str {
        self.helpers.insert(helper);
        helper.name()
    }

    /// The element type of a value.
    pub(super) fn elem(&self, value: ValueId) -> Result<Elem, EmitError> {
        match self.kernel.values[value].ty {
            Type::Elem(elem) => Ok(elem),
            Type::Fragment { .. } => Err(self.unsupported("a matrix fragment as an element")),
            Type::Token => Err(self.unsupported("asynchronous work")),
        }
    }

    pub(super) fn val(&self, value: ValueId) -> Result<Val, EmitError> {
        self.values.get(&value).cloned().ok_or_else(|| self.undefined(value))
    }

    /// The name of a value in the text.
    pub(super) fn name(value: ValueId) -> String {
        format!("v{}", value.index())
    }

    /// The type of a value with that text.
    pub(super) fn type_of(&self, value: ValueId, val: &Val) -> Result<&'static str, EmitError> {
        Ok(match self.elem(value)? {
            Elem::Index => val.index_type(),
            Elem::Data(dtype) => type_name(dtype),
        })
    }

    /// Defines a value by an expression: it gets a name unless it is used once, here.
    pub(super) fn define(&mut self, value: ValueId, val: Val) -> Result<(), EmitError> {
        let known = self.elem(value)? == Elem::Index && val.known().is_some();
        let once = self.uses.inlined(value) && val.text.len() <= INLINE;
        if known || once || is_name(&val.text) || self.uses.unused(value) {
            self.values.insert(value, val);
            return Ok(());
        }
        self.define_named(value, &val)
    }

    /// Defines a value under its name.
    pub(super) fn define_named(&mut self, value: ValueId, val: &Val) -> Result<(), EmitError> {
        let (ty, name) = (self.type_of(value, val)?, Self::name(value));
        self.line(format!("const {ty} {name} = {};", val.text));
        self.values.insert(value, Val::name(name, val.range));
        Ok(())
    }

    pub(super) fn arg_name(&self, arg: ArgId) -> &str {
        &self.args[arg.index()]
    }

    pub(super) fn shared_name(&self, shared: SharedId) -> &str {
        &self.shared[shared.index()]
    }

    pub(super) fn private_name(&self, private: PrivateId) -> &str {
        &self.private[private.index()]
    }

    /// The lane's number as an `int`.
    pub(super) fn lane(&mut self) -> Val {
        self.lane = true;
        Val::name("lane", Range::new(0, 31))
    }

    fn subgroup(&mut self) -> Val {
        if self.kernel.subgroups == 1 {
            return Val::int(0);
        }
        self.subgroup = true;
        Val::name("subgroup", Range::new(0, i64::from(self.kernel.subgroups) - 1))
    }

    /// An index argument will surely not be more than this.
    pub(super) fn limit_arg(&mut self, arg: ArgId, most: i64) {
        let entry = self.most.entry(arg).or_insert(most);
        *entry = most.min(*entry);
    }

    pub(super) fn kernel_body(&mut self) -> Result<(), EmitError> {
        for (id, s) in self.kernel.shared.iter() {
            if let Layout::Swizzled(_) = s.layout {
                return Err(self.unsupported(format!("the swizzled buffer `{}`", s.name)));
            }
            let (ty, name) = (type_name(s.dtype), self.shared[id.index()].clone());
            self.line(format!("threadgroup {ty} {name}[{}];", s.storage()));
        }
        for (id, p) in self.kernel.private.iter() {
            let (ty, name) = (type_name(p.dtype), self.private[id.index()].clone());
            self.line(format!("{ty} {name}[{}];", p.len));
        }
        self.block(&self.kernel.body)
    }

    pub(super) fn block(&mut self, block: &Block) -> Result<(), EmitError> {
        for stmt in &block.stmts {
            self.statement(stmt)?;
        }
        Ok(())
    }

    fn statement(&mut self, stmt: &Stmt) -> Result<(), EmitError> {
        let result = stmt.results.first().copied();
        match (&stmt.op, result) {
            (Op::Const(literal), Some(result)) => self.constant(*literal, result),
            (Op::Arg(arg), Some(result)) => {
                let name = self.arg_name(*arg).to_string();
                self.values.insert(result, Val::name(name, Range::FULL));
                Ok(())
            }
            (Op::GroupId(dim), Some(result)) => {
                let range = self.group_range(*dim);
                self.groups.insert(*dim);
                self.values.insert(result, Val::name(format!("group{dim}"), range));
                Ok(())
            }
            (Op::SubgroupId, Some(result)) => {
                let val = self.subgroup();
                self.values.insert(result, val);
                Ok(())
            }
            (Op::Lane, Some(result)) => {
                let val = self.lane();
                self.values.insert(result, val);
                Ok(())
            }
            (Op::Map { op, args }, Some(result)) => self.map(*op, args, result),
            (Op::Fma { a, b, c }, Some(result)) => {
                let (a, b, c) = (self.val(*a)?, self.val(*b)?, self.val(*c)?);
                let text = format!("fma({}, {}, {})", a.text, b.text, c.text);
                self.define(result, Val::data(text, true))
            }
            (Op::Cast(value), Some(result)) => match self.kernel.values[result].ty {
                Type::Fragment { .. } => self.fragment_cast(*value, result),
                _ => self.cast(*value, result),
            },
            (Op::Load { place, guard }, Some(_)) => self.load(place, guard.as_ref(), &stmt.results),
            (Op::Store { place, values, guard }, _) => self.store(place, values, guard.as_ref()),
            (Op::Collective { op, value }, Some(result)) => self.collective(*op, *value, result),
            (Op::Barrier(barrier), _) => self.barrier(*barrier),
            (Op::For { .. }, _) => self.for_loop(stmt),
            (Op::If { .. }, _) => self.branch(stmt),
            (Op::FragmentFill(x), Some(result)) => {
                self.fragments.insert(result, Fragment::Fill(*x));
                Ok(())
            }
            (Op::FragmentLoad(view), Some(result)) => self.fragment_load(view, result),
            (Op::FragmentStore { fragment, view, .. }, _) => self.fragment_store(*fragment, view),
            (Op::FragmentMap { op, args }, Some(result)) => self.fragment_map(*op, args, result),
            (Op::Mma { a, b, c, depth }, Some(result)) => self.mma(a, b, *c, *depth, result),
            (op, _) => {
                let construct = match op {
                    Op::Atomic { .. } => "an atomic operation",
                    Op::ClusterRank => "a cluster of groups",
                    Op::ProxyFence => "a proxy fence",
                    Op::InRole { .. } => "a role",
                    Op::MmaAsync { .. } => "an asynchronous atom",
                    Op::CopyAsync { .. } | Op::CopyTensor { .. } => "an asynchronous copy",
                    Op::MbarrierInit { .. }
                    | Op::MbarrierArrive { .. }
                    | Op::MbarrierWait { .. } => "a transaction barrier",
                    Op::Wait { .. } => "a wait for asynchronous work",
                    _ => "an operation without a result",
                };
                Err(self.unsupported(construct))
            }
        }
    }

    fn group_range(&self, dim: u32) -> Range {
        match self.kernel.grid.get(dim as usize).map(|g| (g.size, g.step)) {
            Some((Size::Const(n), step)) => {
                let groups = n.div_ceil(step.max(1)).min(u64::from(u32::MAX));
                Range::new(0, groups as i64 - 1)
            }
            _ => Range::new(0, i64::from(u32::MAX)),
        }
    }

    fn constant(&mut self, literal: Literal, result: ValueId) -> Result<(), EmitError> {
        let val = match (literal, self.elem(result)?) {
            (Literal::Int(n), Elem::Index) => Val::int(n),
            (Literal::Int(n), Elem::Data(DType::Bool)) => {
                Val::data(if n != 0 { "true" } else { "false" }, true)
            }
            (Literal::Int(n), Elem::Data(DType::I32)) => Val::data(int(n), true),
            (Literal::Float(x), Elem::Data(dtype)) => Val::data(literal_of(x, dtype), true),
            _ => return Err(self.unsupported("a literal of another type")),
        };
        self.values.insert(result, val);
        Ok(())
    }

    fn collective(
        &mut self,
        op: Collective,
        value: ValueId,
        result: ValueId,
    ) -> Result<(), EmitError> {
        let (elem, val) = (self.elem(value)?, self.val(value)?);
        // Metal exchanges and reduces 32-bit numbers; narrow indices are such.
        let moved = match elem {
            Elem::Index => val.range.is_narrow(),
            Elem::Data(dtype) => matches!(dtype, DType::F32 | DType::I32 | DType::F16),
        };
        let text = match (op, elem) {
            (Collective::Any, _) => format!("simd_any({})", val.text),
            (Collective::Reduce(fold), _) if moved => {
                let name = match (fold, elem) {
                    (ReduceOp::Add, _) => "simd_sum",
                    (ReduceOp::Mul, _) => "simd_product",
                    (ReduceOp::Min, Elem::Data(DType::F32)) => self.helper(Helper::SimdMin),
                    (ReduceOp::Max, Elem::Data(DType::F32)) => self.helper(Helper::SimdMax),
                    (ReduceOp::Min, _) => "simd_min",
                    (ReduceOp::Max, _) => "simd_max",
                };
                format!("{name}({})", val.text)
            }
            (Collective::Broadcast(lane), _) if moved => {
                format!("simd_broadcast({}, ushort({lane}))", val.text)
            }
            (Collective::ShuffleXor(mask), _) if moved => {
                format!("simd_shuffle_xor({}, ushort({mask}))", val.text)
            }
            _ => return Err(self.unsupported(format!("a collective of {elem:?} values"))),
        };
        let range = match (op, elem) {
            (Collective::Reduce(ReduceOp::Add), Elem::Index) => {
                let sum = |n: i64| n.saturating_mul(32);
                Range::new(sum(val.range.lo.min(0)), sum(val.range.hi.max(0)))
            }
            (_, Elem::Index) => val.range,
            _ => Range::FULL,
        };
        if elem == Elem::Index && !range.is_narrow() {
            return Err(self.unsupported("a collective sum of large index values"));
        }
        // All lanes take part here, not where a branch may stand later.
        self.define_named(result, &Val { text, tight: true, range })
    }

    fn barrier(&mut self, barrier: BarrierId) -> Result<(), EmitError> {
        let Barrier { scope, participants, .. } = &self.kernel.barriers[barrier];
        if participants.is_some() {
            return Err(self.unsupported("a barrier of some subgroups"));
        }
        let name = match scope {
            Scope::Group => "threadgroup_barrier",
            Scope::Subgroup => "simdgroup_barrier",
            _ => return Err(self.unsupported("a barrier of a cluster")),
        };
        let flags = if self.orders_device_memory() {
            "mem_flags::mem_device | mem_flags::mem_threadgroup"
        } else {
            "mem_flags::mem_threadgroup"
        };
        self.line(format!("{name}({flags});"));
        Ok(())
    }

    /// Whether a buffer is both read and written, so that barriers order accesses to it.
    fn orders_device_memory(&self) -> bool {
        let mut read = BTreeSet::new();
        let mut written = BTreeSet::new();
        self.kernel.body.walk(&mut |stmt| match &stmt.op {
            Op::Load { place, .. } => {
                read.extend(global(place.memory));
            }
            Op::Store { place, .. } => {
                written.extend(global(place.memory));
            }
            Op::FragmentLoad(view) => {
                read.extend(global(view.memory));
            }
            Op::FragmentStore { view, .. } => {
                written.extend(global(view.memory));
            }
            _ => {}
        });
        read.intersection(&written).next().is_some()
    }

    /// A name for a temporary of a statement.
    pub(super) fn temporary(prefix: char, value: ValueId) -> String {
        format!("{prefix}{}", value.index())
    }

    /// The module's text, its entry and its arguments.
    pub(super) fn finish(
        mut self,
        threads: u32,
        language: Language,
    ) -> (String, String, Vec<Binding>) {
        let mut out = String::from("#include <metal_stdlib>\n");
        if super::has_tensors(self.kernel) {
            out += "#include <metal_tensor>\n#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\n";
        }
        out += "using namespace metal;\n";
        if language >= Language::TENSORS {
            out += "using namespace mpp::tensor_ops;\n";
        }
        out += "#if __METAL_VERSION__ >= 320\n#pragma METAL fp math_mode(safe)\n#pragma METAL fp contract(off)\n#endif\n\n";
        for helper in std::mem::take(&mut self.helpers) {
            out += &helper.text();
            out.push('\n');
        }
        let bindings = self.bindings();
        let mut params: Vec<String> = bindings.iter().map(|b| self.parameter(b)).collect();
        let mut prologue = String::new();
        if !self.groups.is_empty() {
            params.push("uint3 group_id [[threadgroup_position_in_grid]]".into());
            for dim in &self.groups {
                let axis = match self.kernel.grid.len() as u32 - 1 - dim.min(&2) {
                    0 => 'x',
                    1 => 'y',
                    _ => 'z',
                };
                let ty = if self.group_range(*dim).is_narrow() { "int" } else { "long" };
                let _ = writeln!(prologue, "    const {ty} group{dim} = {ty}(group_id.{axis});");
            }
        }
        if self.subgroup {
            params.push("uint subgroup_id [[simdgroup_index_in_threadgroup]]".into());
            prologue += "    const int subgroup = int(subgroup_id);\n";
        }
        if self.lane {
            params.push("uint lane_id [[thread_index_in_simdgroup]]".into());
            prologue += "    const int lane = int(lane_id);\n";
        }
        let _ = writeln!(
            out,
            "[[kernel, max_total_threads_per_threadgroup({threads})]]\nvoid {}(\n    {})\n{{",
            self.entry,
            params.join(",\n    ")
        );
        out += &prologue;
        out += &self.operations.declarations;
        out += &self.text;
        out += "}\n";
        (out, self.entry, bindings)
    }

    fn bindings(&self) -> Vec<Binding> {
        let kind = |kind: &ArgKind| match *kind {
            ArgKind::Buffer { dtype, access, align, .. } => {
                Some(BindingKind::Buffer { dtype, access, align })
            }
            ArgKind::Number(elem) => Some(BindingKind::Number(elem)),
            // Only asynchronous copies use maps, and they have no form here.
            ArgKind::TensorMap { .. } => None,
        };
        self.kernel
            .args
            .iter()
            .filter_map(|(arg, a)| {
                Some(Binding {
                    arg,
                    slot: arg.index() as u32,
                    name: self.args[arg.index()].clone(),
                    kind: kind(&a.kind)?,
                    most: self.most.get(&arg).copied(),
                })
            })
            .collect()
    }

    fn parameter(&self, binding: &Binding) -> String {
        let (name, slot) = (&binding.name, binding.slot);
        match binding.kind {
            BindingKind::Buffer { dtype, access, .. } => {
                // Tensors have no const elements.
                let read_only = access == Access::In && !self.operations.reads(binding.arg);
                let constant = if read_only { "const " } else { "" };
                format!("device {constant}{}* {name} [[buffer({slot})]]", type_name(dtype))
            }
            BindingKind::Number(elem) => {
                let ty = match elem {
                    Elem::Index => "long",
                    Elem::Data(dtype) => type_name(dtype),
                };
                format!("constant {ty}& {name} [[buffer({slot})]]")
            }
        }
    }

    /// `a op b` on index values.
    pub(super) fn index(&mut self, op: MapOp, a: &Val, b: &Val) -> Result<Val, EmitError> {
        let helpers = &mut self.helpers;
        index::binary(op, a, b, &mut |h| {
            helpers.insert(h);
        })
        .ok_or_else(|| self.unsupported(format!("{} of index values", op.name())))
    }
}

/// A global memory.
fn global(memory: Memory) -> Option<ArgId> {
    match memory {
        Memory::Global(arg) => Some(arg),
        _ => None,
    }
}

/// Whether a text is a name or a literal, which needs no other name.
fn is_name(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.'))
}

/// The MSL type of elements.
pub(super) fn type_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        // Refused before anything is emitted.
        DType::F64 => "double",
        DType::F16 => "half",
        DType::BF16 => "bfloat",
        DType::I32 => "int",
        DType::Bool => "bool",
    }
}

/// An `int` literal.
fn int(n: i64) -> String {
    match n {
        n if n == i64::from(i32::MIN) => "(-2147483647 - 1)".into(),
        n if n < 0 => format!("({n})"),
        n => n.to_string(),
    }
}

/// A literal of a data type.
pub(super) fn literal_of(x: f64, dtype: DType) -> String {
    match dtype {
        DType::F16 => format!("half({})", float(x)),
        DType::BF16 => format!("bfloat({})", float(x)),
        DType::I32 => int(x as i64),
        DType::Bool => if x != 0.0 { "true" } else { "false" }.into(),
        DType::F32 | DType::F64 => float(x),
    }
}
