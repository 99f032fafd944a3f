//! Kernel → text.

use crate::kernel::*;
use std::fmt::{self, Write};
use tilewright_ir::entity::Id;
use tilewright_ir::program::Access;

/// The text of a kernel. [`crate::text::parse`] gives back an equal kernel if its names are
/// distinct identifiers, which the validator demands.
pub fn print(kernel: &Kernel) -> String {
    kernel.to_string()
}

/// The first line of a statement, without the blocks in it: what error messages show.
pub fn statement(kernel: &Kernel, stmt: &Stmt) -> String {
    let mut printer = Printer { kernel, out: String::new(), indent: 0 };
    // Writing to a string can't fail.
    let _ = printer.head(stmt);
    printer.out.trim_end_matches(" {").to_string()
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut printer = Printer { kernel: self, out: String::new(), indent: 1 };
        printer.kernel()?;
        f.write_str(&printer.out)
    }
}

struct Printer<'a> {
    kernel: &'a Kernel,
    out: String,
    indent: usize,
}

/// A float that parses back to the same bits.
pub(super) struct Float(pub f64);

impl fmt::Display for Float {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0.to_bits();
        if !self.0.is_nan() {
            write!(f, "{:?}", self.0)
        } else if bits == f64::NAN.to_bits() {
            f.write_str("nan")
        } else {
            write!(f, "nan({bits:#x})")
        }
    }
}

struct Named<'a>(Option<&'a str>, &'static str, usize);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(name) => f.write_str(name),
            // An id of no declaration: only in a kernel that the validator rejects.
            None => write!(f, "?{}{}", self.1, self.2),
        }
    }
}

/// What follows the name of a memory that is reached across the cluster.
fn across(memory: Memory) -> &'static str {
    if matches!(memory, Memory::Cluster(_)) { "@cluster" } else { "" }
}

struct V(ValueId);

impl fmt::Display for V {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0.index())
    }
}

impl<'a> Printer<'a> {
    fn arg(&self, id: ArgId) -> Named<'a> {
        Named(self.kernel.args.get(id).map(|a| a.name.as_str()), "arg", id.index())
    }

    fn shared(&self, id: SharedId) -> Named<'a> {
        Named(self.kernel.shared.get(id).map(|s| s.name.as_str()), "shared", id.index())
    }

    fn memory(&self, memory: Memory) -> Named<'a> {
        match memory {
            Memory::Global(id) => self.arg(id),
            Memory::Shared(id) | Memory::Cluster(id) => self.shared(id),
            Memory::Private(id) => {
                Named(self.kernel.private.get(id).map(|p| p.name.as_str()), "private", id.index())
            }
        }
    }

    fn mbarrier(&self, id: MbarrierId) -> Named<'a> {
        Named(self.kernel.mbarriers.get(id).map(|m| m.name.as_str()), "mbarrier", id.index())
    }

    fn kernel(&mut self) -> fmt::Result {
        let k = self.kernel;
        write!(self.out, "kernel {} lanes {} subgroups {}", k.name, k.lanes, k.subgroups)?;
        if k.cluster != 1 {
            write!(self.out, " cluster {}", k.cluster)?;
        }
        if k.resident != 0 {
            write!(self.out, " resident {}", k.resident)?;
        }
        self.out.push_str(" {\n");
        if !k.grid.is_empty() {
            self.out.push_str("  grid ");
            for (i, dim) in k.grid.iter().enumerate() {
                if i > 0 {
                    self.out.push_str(", ");
                }
                match dim.size {
                    Size::Const(n) => write!(self.out, "{n}")?,
                    Size::Arg(id) => write!(self.out, "{}", self.arg(id))?,
                }
                write!(self.out, " step {}", dim.step)?;
            }
            self.out.push('\n');
        }
        for (_, arg) in k.args.iter() {
            self.arg_line(arg)?;
        }
        for (_, s) in k.shared.iter() {
            write!(self.out, "  shared {}: {}[{}, {}]", s.name, s.dtype, s.rows, s.cols)?;
            match s.layout {
                Layout::Plain => {}
                Layout::Padded(pad) => write!(self.out, " padded {pad}")?,
                Layout::Swizzled(swizzle) => write!(self.out, " swizzle {swizzle}")?,
            }
            self.out.push('\n');
        }
        for (_, p) in k.private.iter() {
            writeln!(self.out, "  private {}: {}[{}]", p.name, p.dtype, p.len)?;
        }
        for (_, b) in k.barriers.iter() {
            write!(self.out, "  barrier {}: {}", b.name, b.scope)?;
            if let Some(n) = b.participants {
                write!(self.out, " participants {n}")?;
            }
            self.out.push('\n');
        }
        for (_, m) in k.mbarriers.iter() {
            writeln!(self.out, "  mbarrier {}: {} arrivals {}", m.name, m.len, m.arrivals)?;
        }
        for (_, r) in k.roles.iter() {
            let end = u64::from(r.first) + u64::from(r.count);
            writeln!(self.out, "  role {}: subgroups {}..{end}", r.name, r.first)?;
        }
        self.unused()?;
        self.out.push('\n');
        self.block(&k.body)?;
        self.out.push_str("}\n");
        Ok(())
    }

    /// Values of the arena that nothing defines, so that the text has every value.
    fn unused(&mut self) -> fmt::Result {
        let mut defined = vec![false; self.kernel.values.len()];
        let mut define = |id: ValueId| {
            if let Some(d) = defined.get_mut(id.index()) {
                *d = true;
            }
        };
        self.kernel.body.walk(&mut |stmt| {
            stmt.results.iter().copied().for_each(&mut define);
            if let Op::For { index, carries, .. } = &stmt.op {
                define(*index);
                carries.iter().map(|c| c.inner).for_each(&mut define);
            }
        });
        for (id, value) in self.kernel.values.iter() {
            if !defined[id.index()] {
                writeln!(self.out, "  unused {}: {value}", V(id))?;
            }
        }
        Ok(())
    }

    fn arg_line(&mut self, arg: &Arg) -> fmt::Result {
        write!(self.out, "  arg {}: ", arg.name)?;
        match arg.kind {
            ArgKind::Buffer { dtype, access, align, evict } => {
                let access = match access {
                    Access::In => "in",
                    Access::Out => "out",
                    Access::InOut => "inout",
                };
                write!(self.out, "buffer {dtype} {access} align {align}")?;
                match evict {
                    Evict::Normal => {}
                    Evict::First => write!(self.out, " evict first")?,
                    Evict::Last => write!(self.out, " evict last")?,
                    Evict::Head(bytes) => write!(self.out, " evict head {bytes}")?,
                }
            }
            ArgKind::Number(elem) => write!(self.out, "{elem}")?,
            ArgKind::TensorMap { dtype, box_rows, box_cols, swizzle } => {
                write!(
                    self.out,
                    "tensor_map {dtype} box [{box_rows}, {box_cols}] swizzle {swizzle}"
                )?;
            }
        }
        match arg.source {
            ArgSource::Tensor(id) => write!(self.out, " from tensor {}", id.index())?,
            ArgSource::Scalar(id) => write!(self.out, " from scalar {}", id.index())?,
            ArgSource::Dim(id) => write!(self.out, " from dim {}", id.index())?,
            ArgSource::Scratch(n) => write!(self.out, " from scratch {n}")?,
            ArgSource::Free => {}
        }
        self.out.push('\n');
        Ok(())
    }

    fn pad(&mut self) {
        for _ in 0..self.indent {
            self.out.push_str("  ");
        }
    }

    fn block(&mut self, block: &Block) -> fmt::Result {
        for stmt in &block.stmts {
            self.pad();
            self.head(stmt)?;
            match &stmt.op {
                Op::For { carries, body, .. } => {
                    let next: Vec<ValueId> = carries.iter().map(|c| c.next).collect();
                    self.inner(body, &next)?;
                }
                Op::If { then, then_values, otherwise, else_values, .. } => {
                    self.inner(then, then_values)?;
                    if !otherwise.stmts.is_empty() || !else_values.is_empty() {
                        self.out.push_str(" else {");
                        self.inner(otherwise, else_values)?;
                    }
                }
                Op::InRole { body, .. } => self.inner(body, &[])?,
                _ => {}
            }
            self.out.push('\n');
        }
        Ok(())
    }

    /// The lines after `{`, up to and with `}`.
    fn inner(&mut self, block: &Block, yields: &[ValueId]) -> fmt::Result {
        self.out.push('\n');
        self.indent += 1;
        self.block(block)?;
        if !yields.is_empty() {
            self.pad();
            self.out.push_str("yield ");
            self.list(yields)?;
            self.out.push('\n');
        }
        self.indent -= 1;
        self.pad();
        self.out.push('}');
        Ok(())
    }

    fn list(&mut self, values: &[ValueId]) -> fmt::Result {
        for (i, &value) in values.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(self.out, "{comma}{}", V(value))?;
        }
        Ok(())
    }

    fn definition(&mut self, id: ValueId) -> fmt::Result {
        match self.kernel.values.get(id) {
            Some(value) => write!(self.out, "{}: {value}", V(id)),
            None => write!(self.out, "{}: ?", V(id)),
        }
    }

    fn head(&mut self, stmt: &Stmt) -> fmt::Result {
        for (i, &id) in stmt.results.iter().enumerate() {
            if i > 0 {
                self.out.push_str(", ");
            }
            self.definition(id)?;
        }
        if !stmt.results.is_empty() {
            self.out.push_str(" = ");
        }
        self.op(&stmt.op)
    }

    fn place(&mut self, place: &Place) -> fmt::Result {
        let wide = across(place.memory);
        write!(self.out, "{}{wide}[{}", self.memory(place.memory), V(place.base))?;
        if place.lane_stride != 0 {
            write!(self.out, " + lane*{}", place.lane_stride)?;
        }
        if let Some(index) = place.index {
            write!(self.out, " + {}", V(index))?;
        }
        self.out.push(']');
        Ok(())
    }

    fn guard(&mut self, guard: &Option<Guard>) -> fmt::Result {
        let Some(guard) = guard else { return Ok(()) };
        match guard.test {
            GuardTest::Count(limit) => write!(self.out, " where count {}", V(limit))?,
            GuardTest::Mask(mask) => write!(self.out, " where mask {}", V(mask))?,
        }
        if guard.fill.to_bits() != 0 {
            write!(self.out, " fill {}", Float(guard.fill))?;
        }
        Ok(())
    }

    fn view(&mut self, view: &View) -> fmt::Result {
        write!(
            self.out,
            "{}{}({} + r*{} + c*{}",
            self.memory(view.memory),
            across(view.memory),
            V(view.base),
            V(view.row_stride),
            V(view.col_stride)
        )?;
        if let Some(rows) = view.rows {
            write!(self.out, ", rows {}", V(rows))?;
        }
        if let Some(cols) = view.cols {
            write!(self.out, ", cols {}", V(cols))?;
        }
        self.out.push(')');
        Ok(())
    }

    fn operand(&mut self, operand: &Operand) -> fmt::Result {
        match operand {
            Operand::Fragment(value) => write!(self.out, "{}", V(*value)),
            Operand::View(view) => self.view(view),
        }
    }

    fn operation(&mut self, name: &str, args: &[ValueId]) -> fmt::Result {
        self.out.push_str(name);
        self.out.push(' ');
        self.list(args)
    }

    fn op(&mut self, op: &Op) -> fmt::Result {
        match op {
            Op::Const(Literal::Int(n)) => write!(self.out, "const {n}"),
            Op::Const(Literal::Float(x)) => write!(self.out, "const {}", Float(*x)),
            Op::Arg(id) => write!(self.out, "arg {}", self.arg(*id)),
            Op::GroupId(dim) => write!(self.out, "group_id {dim}"),
            Op::ClusterRank => self.out.write_str("cluster_rank"),
            Op::SubgroupId => self.out.write_str("subgroup_id"),
            Op::Lane => self.out.write_str("lane"),
            Op::Map { op, args } => self.operation(op.name(), args),
            Op::Fma { a, b, c } => self.operation("fma", &[*a, *b, *c]),
            Op::Cast(value) => self.operation("cast", &[*value]),
            Op::Load { place, guard } => {
                self.out.push_str("load ");
                self.place(place)?;
                self.guard(guard)
            }
            Op::Store { place, values, guard } => {
                self.out.push_str("store ");
                self.place(place)?;
                self.out.push_str(", ");
                self.list(values)?;
                self.guard(guard)
            }
            Op::Atomic { op, place, value, order, scope, guard } => {
                write!(self.out, "atomic {} ", op.map_or("exchange", |op| op.name()))?;
                self.place(place)?;
                write!(self.out, ", {} {order} {scope}", V(*value))?;
                self.guard(guard)
            }
            Op::Collective { op, value } => {
                match op {
                    Collective::Reduce(op) => write!(self.out, "reduce {}", op.name())?,
                    Collective::Broadcast(lane) => write!(self.out, "broadcast {lane}")?,
                    Collective::ShuffleXor(mask) => write!(self.out, "shuffle_xor {mask}")?,
                    Collective::Any => self.out.push_str("any"),
                }
                write!(self.out, " {}", V(*value))
            }
            Op::Barrier(id) => {
                let name = self.kernel.barriers.get(*id).map(|b| b.name.as_str());
                write!(self.out, "barrier {}", Named(name, "barrier", id.index()))
            }
            Op::BarrierArrive(id) | Op::BarrierWait(id) => {
                let name = self.kernel.barriers.get(*id).map(|b| b.name.as_str());
                let half = if matches!(op, Op::BarrierArrive(_)) { "arrive" } else { "wait" };
                write!(self.out, "barrier_{half} {}", Named(name, "barrier", id.index()))
            }
            Op::ProxyFence => self.out.write_str("proxy_fence"),
            Op::For { index, lo, hi, step, unroll, carries, .. } => {
                self.out.push_str("for ");
                self.definition(*index)?;
                write!(self.out, " in {}..{} step {step} unroll {unroll}", V(*lo), V(*hi))?;
                for (i, carry) in carries.iter().enumerate() {
                    self.out.push_str(if i == 0 { " carry " } else { ", " });
                    self.definition(carry.inner)?;
                    write!(self.out, " = {}", V(carry.init))?;
                }
                self.out.write_str(" {")
            }
            Op::If { cond, .. } => write!(self.out, "if {} {{", V(*cond)),
            Op::InRole { role, registers, .. } => {
                let name = self.kernel.roles.get(*role).map(|r| r.name.as_str());
                write!(self.out, "in_role {}", Named(name, "role", role.index()))?;
                if let Some(n) = registers {
                    write!(self.out, " registers {n}")?;
                }
                self.out.write_str(" {")
            }
            _ => self.matrix_op(op),
        }
    }

    fn matrix_op(&mut self, op: &Op) -> fmt::Result {
        match op {
            Op::FragmentFill(x) => write!(self.out, "fragment_fill {}", Float(*x)),
            Op::FragmentLoad(view) => {
                self.out.push_str("fragment_load ");
                self.view(view)
            }
            Op::FragmentStore { fragment, view, stream } => {
                self.out.push_str("fragment_store ");
                self.view(view)?;
                write!(self.out, ", {}{}", V(*fragment), if *stream { " stream" } else { "" })
            }
            Op::FragmentMap { op, args } => {
                self.out.push_str("fragment_map ");
                self.operation(op.name(), args)
            }
            Op::Mma { a, b, c, depth } => {
                self.mma("mma", a, b, *c)?;
                match depth {
                    Some(depth) => write!(self.out, " depth {}", V(*depth)),
                    None => Ok(()),
                }
            }
            Op::MmaAsync { a, b, c } => self.mma("mma_async", a, b, *c),
            Op::CopyAsync { to, from, width, guard } => {
                self.out.push_str("copy_async ");
                self.place(to)?;
                self.out.push_str(", ");
                self.place(from)?;
                write!(self.out, " width {width}")?;
                self.guard(guard)
            }
            Op::CopyTensor { map, coords, to, offset, mbarrier, stage } => {
                let (to, map) = (self.shared(*to), self.arg(*map));
                write!(self.out, "copy_tensor {to}[{}], {map}[", V(*offset))?;
                self.list(coords)?;
                write!(self.out, "] on {}[{}]", self.mbarrier(*mbarrier), V(*stage))
            }
            Op::MbarrierInit { mbarrier, stage } => {
                write!(self.out, "mbarrier_init {}[{}]", self.mbarrier(*mbarrier), V(*stage))
            }
            Op::MbarrierArrive { mbarrier, stage, expect } => {
                write!(self.out, "mbarrier_arrive {}[{}]", self.mbarrier(*mbarrier), V(*stage))?;
                match expect {
                    Some(bytes) => write!(self.out, " expect {}", V(*bytes)),
                    None => Ok(()),
                }
            }
            Op::MbarrierWait { mbarrier, stage, parity } => {
                let mbarrier = self.mbarrier(*mbarrier);
                write!(self.out, "mbarrier_wait {mbarrier}[{}] parity {}", V(*stage), V(*parity))
            }
            Op::Wait { tokens, pending } => {
                self.out.push_str("wait");
                if !tokens.is_empty() {
                    self.out.push(' ');
                    self.list(tokens)?;
                }
                if *pending != 0 {
                    write!(self.out, " pending {pending}")?;
                }
                Ok(())
            }
            // `op` hands over only what it doesn't print itself.
            _ => Ok(()),
        }
    }

    fn mma(&mut self, name: &str, a: &Operand, b: &Operand, c: ValueId) -> fmt::Result {
        write!(self.out, "{name} ")?;
        self.operand(a)?;
        self.out.push_str(", ");
        self.operand(b)?;
        write!(self.out, ", {}", V(c))
    }
}
