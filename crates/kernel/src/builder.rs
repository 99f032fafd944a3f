//! Builds kernels. Types and scopes of results are derived; constants, arguments and ids are
//! placed once, at the start of the body; pure index arithmetic is folded, shared, and placed in
//! the outermost block that has its operands, so loops stay small without a later pass.
//!
//! The builder doesn't judge: [`mod@crate::validate`] does, on the finished kernel. Loads, stores
//! and control flow are in `builder/memory.rs` and `builder/control.rs`, matrix operations in
//! `builder/matrix.rs`.

mod control;
mod matrix;
mod memory;
mod scope;
mod sum;
mod tidy;

pub use control::{OpenBlock, OpenIf, OpenLoop};

use std::collections::{HashMap, HashSet};

use tilewright_ir::DType;
use tilewright_ir::entity::Arena;
use tilewright_ir::program::{Access, MapOp};

use crate::kernel::*;

/// Element type of a value that isn't a fragment or token.
fn elem_of(ty: Type) -> Elem {
    match ty {
        Type::Elem(elem) => elem,
        Type::Fragment { dtype, .. } => Elem::Data(dtype),
        Type::Token => Elem::Index,
    }
}

/// What a pure operation without operands is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Leaf {
    Int(Elem, i64),
    Float(DType, u64),
    Arg(ArgId),
    Group(u32),
    Rank,
    Subgroup,
    Lane,
}

/// A pure operation that may be shared.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Pure {
    Map(MapOp, Vec<ValueId>),
    Cast(ValueId, Elem),
}

/// Builds one [`Kernel`].
#[derive(Debug)]
pub struct KernelBuilder {
    kernel: Kernel,
    /// Constants, arguments and ids: they precede everything.
    prologue: Vec<Stmt>,
    leaves: HashMap<Leaf, ValueId>,
    /// Open blocks, outermost first, and the shared operations of each.
    blocks: Vec<Block>,
    shared_ops: Vec<HashMap<Pure, ValueId>>,
    /// Index of the open block that defines a value; absent for the prologue.
    depth: HashMap<ValueId, usize>,
    ints: HashMap<ValueId, i64>,
    /// Index operations with a constant right operand, for folding chains.
    chains: HashMap<ValueId, (MapOp, ValueId, i64)>,
    /// Names that are taken.
    names: HashSet<String>,
    /// Index values that are sums.
    sums: HashMap<ValueId, sum::Sum>,
}

impl KernelBuilder {
    /// Starts a kernel of groups with `subgroups` subgroups of `lanes` lanes.
    pub fn new(name: &str, lanes: u32, subgroups: u32) -> Self {
        KernelBuilder {
            kernel: Kernel {
                name: name.to_string(),
                lanes,
                subgroups,
                cluster: 1,
                resident: 0,
                grid: Vec::new(),
                args: Arena::new(),
                shared: Arena::new(),
                private: Arena::new(),
                barriers: Arena::new(),
                mbarriers: Arena::new(),
                roles: Arena::new(),
                values: Arena::new(),
                body: Block::default(),
            },
            prologue: Vec::new(),
            leaves: HashMap::new(),
            blocks: vec![Block::default()],
            shared_ops: vec![HashMap::new()],
            depth: HashMap::new(),
            ints: HashMap::new(),
            chains: HashMap::new(),
            names: HashSet::new(),
            sums: HashMap::new(),
        }
    }

    /// The kernel built so far, for look-ups. Its body is empty until [`Self::finish`].
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The finished kernel, not yet validated: without statements that nothing reads.
    pub fn finish(mut self) -> Kernel {
        let mut stmts = std::mem::take(&mut self.prologue);
        for block in std::mem::take(&mut self.blocks) {
            stmts.extend(block.stmts);
        }
        self.kernel.body = Block { stmts };
        tidy::tidy(&mut self.kernel);
        self.kernel
    }

    // ---- declarations ------------------------------------------------------------------------

    /// Appends a grid dimension (outermost first) of ⌈`size`/`step`⌉ groups and returns the
    /// group's coordinate in it.
    pub fn grid(&mut self, size: Size, step: u64) -> ValueId {
        self.kernel.grid.push(GridDim { size, step });
        self.group_id(self.kernel.grid.len() as u32 - 1)
    }

    /// The name, with a number where it is taken.
    fn unique(&mut self, name: &str) -> String {
        let mut unique = name.to_string();
        let mut number = 1;
        while !self.names.insert(unique.clone()) {
            number += 1;
            unique = format!("{name}_{number}");
        }
        unique
    }

    /// Declares a buffer argument. As with every declaration, a name that is taken gets a number.
    pub fn buffer(
        &mut self,
        name: &str,
        dtype: DType,
        access: Access,
        align: u64,
        source: ArgSource,
    ) -> ArgId {
        let kind = ArgKind::Buffer { dtype, access, align, evict: Evict::Normal };
        let name = self.unique(name);
        self.kernel.args.push(Arg { name, kind, source })
    }

    /// Declares a number argument.
    pub fn number(&mut self, name: &str, elem: Elem, source: ArgSource) -> ArgId {
        let kind = ArgKind::Number(elem);
        let name = self.unique(name);
        self.kernel.args.push(Arg { name, kind, source })
    }

    /// Declares a shared buffer of `rows` × `cols` elements.
    pub fn shared(
        &mut self,
        name: &str,
        dtype: DType,
        rows: u64,
        cols: u64,
        layout: Layout,
    ) -> SharedId {
        let name = self.unique(name);
        self.kernel.shared.push(Shared { name, dtype, rows, cols, layout })
    }

    /// Declares a private array of `len` elements per lane.
    pub fn private(&mut self, name: &str, dtype: DType, len: u64) -> PrivateId {
        let name = self.unique(name);
        self.kernel.private.push(Private { name, dtype, len })
    }

    /// Declares a barrier of all subgroups of the group.
    pub fn group_barrier(&mut self, name: &str) -> BarrierId {
        let name = self.unique(name);
        self.kernel.barriers.push(Barrier { name, scope: Scope::Group, participants: None })
    }

    /// Declares a barrier of the lanes of a subgroup.
    pub fn subgroup_barrier(&mut self, name: &str) -> BarrierId {
        let name = self.unique(name);
        self.kernel.barriers.push(Barrier { name, scope: Scope::Subgroup, participants: None })
    }

    /// Declares a barrier of all subgroups of the cluster.
    pub fn cluster_barrier(&mut self, name: &str) -> BarrierId {
        let name = self.unique(name);
        self.kernel.barriers.push(Barrier { name, scope: Scope::Cluster, participants: None })
    }

    /// Declares that `groups` groups form a cluster.
    pub fn cluster(&mut self, groups: u32) {
        self.kernel.cluster = groups;
    }

    /// States how many groups one core is to hold at the same time.
    pub fn resident(&mut self, groups: u32) {
        self.kernel.resident = groups;
    }

    /// The kernel's declarations, for those that have no method here.
    pub fn declarations(&mut self) -> &mut Kernel {
        &mut self.kernel
    }

    // ---- values ------------------------------------------------------------------------------

    /// Type of a value.
    pub fn ty(&self, value: ValueId) -> Type {
        self.kernel.values[value].ty
    }

    /// Element type of a value.
    pub fn elem(&self, value: ValueId) -> Elem {
        elem_of(self.ty(value))
    }

    /// Scope of a value, as derived so far (an enclosing loop may still narrow it).
    pub fn scope(&self, value: ValueId) -> Scope {
        self.kernel.values[value].scope
    }

    /// The value of an integer constant.
    pub fn known(&self, value: ValueId) -> Option<i64> {
        self.ints.get(&value).copied()
    }

    pub(super) fn fresh(&mut self, ty: Type) -> ValueId {
        self.kernel.values.push(Value { ty, scope: Scope::Grid })
    }

    /// Appends a statement to the innermost block and derives the scopes of its results.
    pub(super) fn emit(&mut self, op: Op, types: &[Type]) -> Vec<ValueId> {
        let top = self.blocks.len() - 1;
        self.emit_at(top, op, types)
    }

    fn emit_at(&mut self, depth: usize, op: Op, types: &[Type]) -> Vec<ValueId> {
        let results: Vec<ValueId> = types.iter().map(|t| self.fresh(*t)).collect();
        let stmt = Stmt { op, results: results.clone() };
        for (result, scope) in results.iter().zip(scope::derive(&self.kernel, &stmt)) {
            self.kernel.values[*result].scope = scope;
            self.depth.insert(*result, depth);
        }
        self.blocks[depth].stmts.push(stmt);
        results
    }

    pub(super) fn emit1(&mut self, op: Op, ty: Type) -> ValueId {
        self.emit(op, &[ty])[0]
    }

    fn leaf(&mut self, leaf: Leaf, op: Op, ty: Type) -> ValueId {
        if let Some(value) = self.leaves.get(&leaf) {
            return *value;
        }
        let value = self.fresh(ty);
        let stmt = Stmt { op, results: vec![value] };
        let scopes = scope::derive(&self.kernel, &stmt);
        self.kernel.values[value].scope = scopes.first().copied().unwrap_or(Scope::Lane);
        self.prologue.push(stmt);
        self.leaves.insert(leaf, value);
        value
    }

    fn int_of(&mut self, elem: Elem, n: i64) -> ValueId {
        let value = self.leaf(Leaf::Int(elem, n), Op::Const(Literal::Int(n)), Type::Elem(elem));
        self.ints.insert(value, n);
        value
    }

    /// An index constant.
    pub fn int(&mut self, n: i64) -> ValueId {
        self.int_of(Elem::Index, n)
    }

    /// A constant of a data type. For I32 the value is truncated; for Bool nonzero is true.
    pub fn literal(&mut self, value: f64, dtype: DType) -> ValueId {
        match dtype {
            DType::I32 | DType::Bool => self.int_of(Elem::Data(dtype), dtype.round(value) as i64),
            _ => {
                let leaf = Leaf::Float(dtype, value.to_bits());
                let ty = Type::Elem(Elem::Data(dtype));
                self.leaf(leaf, Op::Const(Literal::Float(value)), ty)
            }
        }
    }

    /// The value of a number argument.
    pub fn arg(&mut self, arg: ArgId) -> ValueId {
        let elem = match self.kernel.args[arg].kind {
            ArgKind::Number(elem) => elem,
            ArgKind::Buffer { dtype, .. } | ArgKind::TensorMap { dtype, .. } => Elem::Data(dtype),
        };
        self.leaf(Leaf::Arg(arg), Op::Arg(arg), Type::Elem(elem))
    }

    /// The index value of a size.
    pub fn size(&mut self, size: Size) -> ValueId {
        match size {
            Size::Const(n) => self.int(n as i64),
            Size::Arg(arg) => self.arg(arg),
        }
    }

    /// The group's coordinate in a grid dimension.
    pub fn group_id(&mut self, dim: u32) -> ValueId {
        self.leaf(Leaf::Group(dim), Op::GroupId(dim), Type::Elem(Elem::Index))
    }

    /// The group's rank in its cluster; the constant 0 where there is only one.
    pub fn cluster_rank(&mut self) -> ValueId {
        if self.kernel.cluster == 1 {
            return self.int(0);
        }
        self.leaf(Leaf::Rank, Op::ClusterRank, Type::Elem(Elem::Index))
    }

    /// The subgroup's number in its group; the constant 0 where there is only one.
    pub fn subgroup_id(&mut self) -> ValueId {
        if self.kernel.subgroups == 1 {
            return self.int(0);
        }
        self.leaf(Leaf::Subgroup, Op::SubgroupId, Type::Elem(Elem::Index))
    }

    /// The lane's number in its subgroup; the constant 0 where there is only one.
    pub fn lane(&mut self) -> ValueId {
        if self.kernel.lanes == 1 {
            return self.int(0);
        }
        self.leaf(Leaf::Lane, Op::Lane, Type::Elem(Elem::Index))
    }

    // ---- arithmetic --------------------------------------------------------------------------

    /// A pure operation, shared and placed as far out as its operands allow.
    fn pure(&mut self, key: Pure, op: Op, ty: Type, args: &[ValueId]) -> ValueId {
        if let Some(value) = self.shared_ops.iter().rev().find_map(|m| m.get(&key)) {
            return *value;
        }
        let depth = args.iter().filter_map(|a| self.depth.get(a)).max().copied().unwrap_or(0);
        let value = self.emit_at(depth, op, &[ty])[0];
        self.shared_ops[depth].insert(key, value);
        value
    }

    fn is_index(&self, value: ValueId) -> bool {
        self.ty(value) == Type::Elem(Elem::Index)
    }

    /// An elementwise operation. Index arithmetic and logic are folded.
    pub fn map(&mut self, op: MapOp, args: &[ValueId]) -> ValueId {
        if let Some(value) = self.fold(op, args) {
            return value;
        }
        let ty = if op.is_comparison() {
            Type::Elem(Elem::Data(DType::Bool))
        } else {
            self.ty(args[if op == MapOp::Select { 1 } else { 0 }])
        };
        let stmt = Op::Map { op, args: args.to_vec() };
        let movable = args
            .iter()
            .all(|a| self.is_index(*a) || self.ty(*a) == Type::Elem(Elem::Data(DType::Bool)));
        // A division may only leave its block if it can't divide by zero.
        let safe = !matches!(op, MapOp::Div | MapOp::Mod)
            || args.get(1).is_some_and(|d| self.known(*d).is_some_and(|d| d != 0));
        if !movable || !safe {
            return self.emit1(stmt, ty);
        }
        self.pure(Pure::Map(op, args.to_vec()), stmt, ty, args)
    }

    /// An index operation as it is, remembered for folding.
    fn raw_index(&mut self, op: MapOp, a: ValueId, b: ValueId) -> ValueId {
        let stmt = Op::Map { op, args: vec![a, b] };
        let ty = Type::Elem(Elem::Index);
        let value = self.pure(Pure::Map(op, vec![a, b]), stmt, ty, &[a, b]);
        if let Some(c) = self.known(b) {
            self.chains.insert(value, (op, a, c));
        }
        value
    }

    /// The simpler value that an operation on index or bool values equals, if there is one.
    fn fold(&mut self, op: MapOp, args: &[ValueId]) -> Option<ValueId> {
        use MapOp::*;
        let known: Vec<Option<i64>> = args.iter().map(|a| self.known(*a)).collect();
        let bool_elem = Elem::Data(DType::Bool);
        match (op, args) {
            (Select, [_, a, b]) => {
                return match known[0] {
                    Some(c) => Some(if c != 0 { *a } else { *b }),
                    None if a == b => Some(*a),
                    None => None,
                };
            }
            (Not, [_]) => return known[0].map(|a| self.int_of(bool_elem, i64::from(a == 0))),
            (And, [a, b]) => {
                return match (known[0], known[1]) {
                    (Some(x), _) => Some(if x != 0 { *b } else { *a }),
                    (_, Some(y)) => Some(if y != 0 { *a } else { *b }),
                    _ if a == b => Some(*a),
                    _ => None,
                };
            }
            (Or, [a, b]) => {
                return match (known[0], known[1]) {
                    (Some(x), _) => Some(if x != 0 { *a } else { *b }),
                    (_, Some(y)) => Some(if y != 0 { *b } else { *a }),
                    _ if a == b => Some(*a),
                    _ => None,
                };
            }
            _ => {}
        }
        let [a, b] = *args else { return None };
        if !self.is_index(a) || !self.is_index(b) {
            return None;
        }
        if let (Some(x), Some(y)) = (known[0], known[1]) {
            let value = match op {
                Add => x.checked_add(y)?,
                Sub => x.checked_sub(y)?,
                Mul => x.checked_mul(y)?,
                Div => x.checked_div(y)?,
                Mod => x.checked_rem(y)?,
                Min => x.min(y),
                Max => x.max(y),
                Eq | Ne | Lt | Le | Gt | Ge => {
                    let holds = match op {
                        Eq => x == y,
                        Ne => x != y,
                        Lt => x < y,
                        Le => x <= y,
                        Gt => x > y,
                        _ => x >= y,
                    };
                    return Some(self.int_of(bool_elem, i64::from(holds)));
                }
                _ => return None,
            };
            return Some(self.int(value));
        }
        match (op, known[0], known[1]) {
            // Constants go right.
            (Add | Mul | Min | Max, Some(_), None) => Some(self.map(op, &[b, a])),
            (Add | Sub, _, Some(0)) | (Mul | Div, _, Some(1)) => Some(a),
            (Mul, _, Some(0)) | (Mod, _, Some(1)) => Some(self.int(0)),
            (Sub, _, Some(c)) => {
                let minus = self.int(c.checked_neg()?);
                Some(self.map(Add, &[a, minus]))
            }
            (Sub, _, _) if a == b => Some(self.int(0)),
            (Min | Max, _, _) if a == b => Some(a),
            (Add, _, _) => self.ordered_sum(a, b),
            (Mul | Min | Max, _, Some(c)) => {
                let folded = match self.chains.get(&a) {
                    Some((inner, x, d)) if *inner == op => Some((*x, *d)),
                    _ => None,
                };
                let Some((x, d)) = folded else {
                    let distributed = if op == Mul { self.distributed(a, c) } else { None };
                    return Some(distributed.unwrap_or_else(|| self.raw_index(op, a, b)));
                };
                let folded = match op {
                    Mul => c.checked_mul(d)?,
                    Min => c.min(d),
                    _ => c.max(d),
                };
                let folded = self.int(folded);
                Some(self.map(op, &[x, folded]))
            }
            _ => None,
        }
    }

    /// Index sum.
    pub fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.map(MapOp::Add, &[a, b])
    }

    /// Index difference.
    pub fn sub(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.map(MapOp::Sub, &[a, b])
    }

    /// Index product.
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.map(MapOp::Mul, &[a, b])
    }

    /// Index quotient, truncating.
    pub fn div(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.map(MapOp::Div, &[a, b])
    }

    /// Index remainder, with the sign of the dividend.
    pub fn rem(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.map(MapOp::Mod, &[a, b])
    }

    /// Smaller index.
    pub fn min(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.map(MapOp::Min, &[a, b])
    }

    /// Larger index.
    pub fn max(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.map(MapOp::Max, &[a, b])
    }

    /// Index plus a constant.
    pub fn add_int(&mut self, a: ValueId, n: i64) -> ValueId {
        let n = self.int(n);
        self.add(a, n)
    }

    /// Index times a constant.
    pub fn mul_int(&mut self, a: ValueId, n: i64) -> ValueId {
        let n = self.int(n);
        self.mul(a, n)
    }

    /// A comparison of two values of one type.
    pub fn compare(&mut self, op: MapOp, a: ValueId, b: ValueId) -> ValueId {
        self.map(op, &[a, b])
    }

    /// Both of two conditions, either of which may be absent (true).
    pub fn both(&mut self, a: Option<ValueId>, b: Option<ValueId>) -> Option<ValueId> {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.map(MapOp::And, &[a, b])),
            (a, b) => a.or(b),
        }
    }

    /// `a·b + c` with one rounding.
    pub fn fma(&mut self, a: ValueId, b: ValueId, c: ValueId) -> ValueId {
        let ty = self.ty(c);
        self.emit1(Op::Fma { a, b, c }, ty)
    }

    /// Conversion; the value itself if it has the type already.
    pub fn cast(&mut self, value: ValueId, elem: Elem) -> ValueId {
        let from = self.elem(value);
        if from == elem {
            return value;
        }
        let integral = |e: Elem| matches!(e, Elem::Index | Elem::Data(DType::I32));
        let ty = Type::Elem(elem);
        if let (Some(n), true) = (self.known(value), integral(from) && integral(elem))
            && i32::try_from(n).is_ok()
        {
            return self.int_of(elem, n);
        }
        if let (Some(n), Elem::Data(to), true) = (self.known(value), elem, integral(from))
            && to.is_float()
        {
            return self.literal(to.round(n as f64), to);
        }
        if integral(from) && integral(elem) {
            return self.pure(Pure::Cast(value, elem), Op::Cast(value), ty, &[value]);
        }
        self.emit1(Op::Cast(value), ty)
    }
}

#[cfg(test)]
mod tests;
