//! Loads, stores, atomics, copies: places, widths, guards.

use super::declare::swizzle_bytes;
use super::{At, Checker, Rule};
use crate::kernel::*;
use tilewright_ir::DType;
use tilewright_ir::entity::Id;
use tilewright_ir::program::{Access, ReduceOp};

impl Checker<'_> {
    /// The element type of a memory; `None` for an argument that is no buffer.
    pub(super) fn memory_type(&self, memory: Memory) -> Option<DType> {
        match memory {
            Memory::Global(id) => match self.kernel.args[id].kind {
                ArgKind::Buffer { dtype, .. } => Some(dtype),
                _ => None,
            },
            Memory::Shared(id) | Memory::Cluster(id) => Some(self.kernel.shared[id].dtype),
            Memory::Private(id) => Some(self.kernel.private[id].dtype),
        }
    }

    /// [`Self::memory_type`], with an error for what isn't memory.
    pub(super) fn reach(&mut self, at: At<'_>, memory: Memory) -> Option<DType> {
        let dtype = self.memory_type(memory);
        if dtype.is_none() {
            self.statement(Rule::MemorySpace, at, "only a buffer argument is memory");
        }
        dtype
    }

    pub(super) fn writable(&mut self, at: At<'_>, memory: Memory) {
        if let Memory::Global(id) = memory
            && let ArgKind::Buffer { access: Access::In, .. } = self.kernel.args[id].kind
        {
            let message = format!("`{}` is an input", self.kernel.args[id].name);
            self.statement(Rule::ReadOnly, at, message);
        }
    }

    fn place(&mut self, at: At<'_>, place: &Place) {
        if let Memory::Cluster(id) = place.memory
            && self.kernel.shared[id].layout != Layout::Plain
        {
            let message = "only buffers of a plain layout are reached across the cluster";
            self.statement(Rule::MemorySpace, at, message);
        }
        self.uniform_index(at, place.base, Scope::Subgroup, "the base");
        if let Some(index) = place.index
            && !matches!(self.ty(index), Type::Elem(Elem::Index | Elem::Data(DType::I32)))
        {
            let message = format!("the index %{} must be index or i32", index.index());
            self.operand_type(at, message);
        }
        if let Memory::Private(_) = place.memory
            && place.lane_stride != 0
        {
            let message = "every lane has its own array: the stride is 0";
            self.statement(Rule::PrivateStride, at, message);
        }
    }

    fn guard(&mut self, at: At<'_>, guard: Option<&Guard>) {
        match guard.map(|g| g.test) {
            Some(GuardTest::Count(limit)) => {
                self.uniform_index(at, limit, Scope::Subgroup, "the limit");
            }
            Some(GuardTest::Mask(mask)) if self.ty(mask) != Type::Elem(Elem::Data(DType::Bool)) => {
                self.operand_type(at, format!("the mask %{} must be bool", mask.index()));
            }
            Some(GuardTest::Mask(_)) | None => {}
        }
    }

    fn width(&mut self, at: At<'_>, width: usize) {
        if !matches!(width, 1 | 2 | 4 | 8) {
            let message = format!("{width} elements per lane: use 1, 2, 4 or 8");
            self.statement(Rule::Width, at, message);
        }
    }

    fn elements(&mut self, at: At<'_>, values: &[ValueId], dtype: DType) {
        for &value in values {
            let found = self.ty(value);
            if found != Type::Elem(Elem::Data(dtype)) {
                let message = format!("%{} is {found}, the memory {dtype}", value.index());
                self.operand_type(at, message);
            }
        }
    }

    /// Checks statements that reach memory one element or vector at a time.
    pub(super) fn memory(&mut self, at: At<'_>) {
        match &at.stmt.op {
            Op::Load { place, guard } => {
                self.place(at, place);
                self.guard(at, guard.as_ref());
                self.width(at, at.stmt.results.len());
                if let Some(dtype) = self.reach(at, place.memory) {
                    self.elements(at, &at.stmt.results, dtype);
                    if let Some(guard) = guard
                        && !guard.fill.is_nan()
                        && dtype.round(guard.fill) != guard.fill
                    {
                        let message = format!("the fill value {} is no {dtype}", guard.fill);
                        self.statement(Rule::LiteralValue, at, message);
                    }
                }
            }
            Op::Store { place, values, guard } => {
                self.place(at, place);
                self.guard(at, guard.as_ref());
                self.width(at, values.len());
                self.writable(at, place.memory);
                if let Some(dtype) = self.reach(at, place.memory) {
                    self.elements(at, values, dtype);
                }
            }
            Op::Atomic { op, place, value, scope, guard, .. } => {
                self.place(at, place);
                self.guard(at, guard.as_ref());
                self.writable(at, place.memory);
                if let Memory::Private(_) = place.memory {
                    self.statement(Rule::MemorySpace, at, "a private array needs no atomic");
                }
                if let Memory::Cluster(_) = place.memory {
                    let message = "atomics reach the group's own shared memory or a buffer";
                    self.statement(Rule::MemorySpace, at, message);
                }
                let Some(dtype) = self.reach(at, place.memory) else { return };
                self.elements(at, &[*value], dtype);
                self.elements(at, &at.stmt.results, dtype);
                let fold = matches!(op, None | Some(ReduceOp::Add | ReduceOp::Max | ReduceOp::Min));
                let ty = matches!(dtype, DType::I32 | DType::F32 | DType::F64);
                if !fold || !ty || !matches!(scope, Scope::Group | Scope::Cluster | Scope::Grid) {
                    let message = "use add, max, min or exchange on i32, f32 or f64, ordered \
                                   over group, cluster or grid";
                    self.statement(Rule::AtomicForm, at, message);
                }
            }
            Op::CopyAsync { to, from, width, guard } => {
                self.place(at, to);
                self.place(at, from);
                self.guard(at, guard.as_ref());
                let shared = matches!(to.memory, Memory::Shared(_));
                if !shared || !matches!(from.memory, Memory::Global(_)) {
                    let message = "the copy goes from global to shared memory";
                    self.statement(Rule::CopyForm, at, message);
                }
                let (to, from) = (self.reach(at, to.memory), self.reach(at, from.memory));
                let (Some(to), Some(from)) = (to, from) else { return };
                let bytes = from.bytes() * u64::from(*width);
                if to != from || !matches!(bytes, 4 | 8 | 16) {
                    let message = format!(
                        "{bytes} bytes per lane of {from} to {to}: use 4, 8 or 16 of one type"
                    );
                    self.statement(Rule::CopyForm, at, message);
                }
                let token = at.stmt.results[0];
                if self.ty(token) != Type::Token {
                    self.operand_type(at, "the result is a token");
                }
            }
            Op::CopyTensor { map, coords, to, offset, stage, .. } => {
                for &coord in coords {
                    self.uniform_index(at, coord, Scope::Subgroup, "the coordinate");
                }
                self.uniform_index(at, *offset, Scope::Subgroup, "the offset");
                self.uniform_index(at, *stage, Scope::Subgroup, "the stage");
                self.tensor_copy(at, *map, coords.len(), *to);
            }
            _ => {}
        }
    }

    fn tensor_copy(&mut self, at: At<'_>, map: ArgId, coords: usize, to: SharedId) {
        let ArgKind::TensorMap { dtype, box_rows, box_cols, swizzle } = self.kernel.args[map].kind
        else {
            return self.statement(Rule::TensorCopy, at, "the source is a tensor map");
        };
        if !(2..=5).contains(&coords) {
            self.statement(Rule::TensorCopy, at, "a tensor map has 2 to 5 coordinates");
        }
        let shared = &self.kernel.shared[to];
        let layout = match shared.layout {
            Layout::Plain => Some(Swizzle::None),
            Layout::Swizzled(swizzle) => Some(swizzle),
            Layout::Padded(_) => None,
        };
        if layout != Some(swizzle) || shared.dtype != dtype {
            let message = format!(
                "the map gives {dtype} with swizzle {swizzle}: the destination must have both"
            );
            self.statement(Rule::TensorCopy, at, message);
        }
        // A box is dense in shared memory, so its rows are the buffer's.
        let row = u64::from(box_cols) * dtype.bytes();
        let fits = match swizzle_bytes(swizzle) {
            Some(bytes) => row == bytes,
            None => shared.cols == u64::from(box_cols),
        };
        if !fits || shared.rows < u64::from(box_rows) {
            let message = format!(
                "a box of [{box_rows}, {box_cols}] isn't whole rows of [{}, {}]",
                shared.rows, shared.cols
            );
            self.statement(Rule::TensorCopy, at, message);
        }
    }
}
