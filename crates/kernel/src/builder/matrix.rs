//! Fragments and matrix atoms.

use tilewright_ir::DType;
use tilewright_ir::program::MapOp;

use super::KernelBuilder;
use crate::kernel::*;

impl Type {
    /// The type of an atom's fragment.
    pub fn fragment(atom: Atom, role: FragmentRole, dtype: DType) -> Type {
        Type::Fragment { atom, role, dtype }
    }
}

impl View {
    /// A window whose elements are all valid.
    pub fn whole(memory: Memory, base: ValueId, row_stride: ValueId, col_stride: ValueId) -> View {
        View { memory, base, row_stride, col_stride, rows: None, cols: None }
    }
}

impl KernelBuilder {
    /// A fragment with every element equal.
    pub fn fragment_fill(&mut self, ty: Type, value: f64) -> ValueId {
        self.emit1(Op::FragmentFill(value), ty)
    }

    /// A fragment read from memory.
    pub fn fragment_load(&mut self, ty: Type, view: View) -> ValueId {
        self.emit1(Op::FragmentLoad(view), ty)
    }

    /// A fragment written to memory.
    pub fn fragment_store(&mut self, fragment: ValueId, view: View) {
        self.emit(Op::FragmentStore { fragment, view, stream: false }, &[]);
    }

    /// A fragment written to memory that nobody reads soon: around the caches, if the machine can.
    pub fn fragment_stream(&mut self, fragment: ValueId, view: View) {
        self.emit(Op::FragmentStore { fragment, view, stream: true }, &[]);
    }

    /// An elementwise operation on fragments and uniform values; the result has the type of the
    /// first fragment among the operands.
    pub fn fragment_map(&mut self, op: MapOp, args: &[ValueId]) -> ValueId {
        let fragment =
            args.iter().map(|a| self.ty(*a)).find(|t| matches!(t, Type::Fragment { .. }));
        let ty = fragment.unwrap_or_else(|| self.ty(args[0]));
        self.emit1(Op::FragmentMap { op, args: args.to_vec() }, ty)
    }

    /// An accumulator rounded to another type.
    pub fn fragment_cast(&mut self, fragment: ValueId, dtype: DType) -> ValueId {
        let ty = match self.ty(fragment) {
            Type::Fragment { atom, role, .. } => Type::Fragment { atom, role, dtype },
            other => other,
        };
        self.emit1(Op::Cast(fragment), ty)
    }

    /// `a·b + c` by the atom of `c`'s type.
    pub fn mma(&mut self, a: Operand, b: Operand, c: ValueId, depth: Option<ValueId>) -> ValueId {
        let ty = self.ty(c);
        self.emit1(Op::Mma { a, b, c, depth }, ty)
    }

    /// Starts an asynchronous atom: the accumulator in flight, and its token.
    pub fn mma_async(&mut self, a: Operand, b: Operand, c: ValueId) -> (ValueId, ValueId) {
        let ty = self.ty(c);
        let results = self.emit(Op::MmaAsync { a, b, c }, &[ty, Type::Token]);
        (results[0], results[1])
    }
}
