//! Fragments and atoms.

use super::flow::Walk;
use super::types::map_takes;
use super::{At, Checker, Rule};
use crate::kernel::*;
use tilewright_ir::DType;
use tilewright_ir::entity::Id;

/// Whether some target has the atom on subgroups of so many lanes.
fn atom_exists(atom: Atom, lanes: u32) -> bool {
    match atom {
        Atom::Simdgroup8x8 => lanes == 32,
        Atom::OuterProduct { rows, vectors } => {
            (1..=64).contains(&rows) && (1..=16).contains(&vectors)
        }
        Atom::Mpp { rows, cols } => {
            let ok = |n: u32| n.is_multiple_of(8) && (8..=256).contains(&n);
            lanes == 32 && ok(rows) && ok(cols)
        }
        Atom::MmaSync { m, n, k } => {
            lanes == 32 && matches!((m, n, k), (16, 8, 16) | (16, 8, 8) | (8, 8, 4))
        }
        Atom::Wgmma { m, n, k } => {
            lanes == 32 && m == 64 && k == 16 && n.is_multiple_of(8) && (8..=256).contains(&n)
        }
    }
}

/// Whether an atom multiplies operands of the type (and accumulates in its accumulator type).
fn multiplies(atom: Atom, dtype: DType) -> bool {
    let half = matches!(dtype, DType::F16 | DType::BF16);
    match atom {
        Atom::Simdgroup8x8 | Atom::Mpp { .. } => half || dtype == DType::F32,
        Atom::OuterProduct { .. } => dtype.is_float(),
        Atom::MmaSync { m: 8, n: 8, k: 4 } => dtype == DType::F64,
        Atom::MmaSync { .. } | Atom::Wgmma { .. } => half,
    }
}

/// Whether a fragment of the type may exist.
fn holds(atom: Atom, role: FragmentRole, dtype: DType) -> bool {
    match role {
        // Accumulators of 16 bits come from casts and are only stored.
        FragmentRole::Accumulator => {
            dtype.is_float()
                && DType::TENSOR.into_iter().any(|d| {
                    multiplies(atom, d) && (d.accumulator() == dtype || dtype.bytes() == 2)
                })
        }
        FragmentRole::A | FragmentRole::B => match atom {
            Atom::OuterProduct { .. } | Atom::Mpp { .. } => false,
            Atom::Wgmma { .. } if role == FragmentRole::B => false,
            _ => multiplies(atom, dtype),
        },
    }
}

impl Walk<'_, '_> {
    /// Checks statements on fragments.
    pub(super) fn matrix(&mut self, at: At<'_>) {
        for &result in &at.stmt.results {
            if let Type::Fragment { atom, .. } = self.c.ty(result)
                && let Scope::SubgroupBlock(size) = atom.scope()
                && !self.in_aligned_blocks(size)
            {
                let message = format!("{atom} runs in aligned blocks of {size} subgroups");
                self.c.statement(Rule::BlockAlignment, at, message);
            }
        }
        self.c.matrix(at);
    }
}

impl Checker<'_> {
    fn matrix(&mut self, at: At<'_>) {
        let results = at.stmt.results.as_slice();
        for &result in results {
            self.fragment_type(at, result);
        }
        match (&at.stmt.op, results) {
            (Op::FragmentFill(x), &[r]) => {
                let Some((_, _, dtype)) = self.fragment(at, r) else { return };
                if !x.is_nan() && dtype.round(*x) != *x {
                    self.statement(Rule::LiteralValue, at, format!("{x} is no {dtype}"));
                }
            }
            (Op::FragmentLoad(view), &[r]) => {
                let Some((atom, _, dtype)) = self.fragment(at, r) else { return };
                self.view(at, view, atom, Some(dtype));
            }
            (Op::FragmentStore { fragment, view, .. }, _) => {
                let Some((atom, role, dtype)) = self.fragment(at, *fragment) else { return };
                if role != FragmentRole::Accumulator {
                    self.operand_type(at, "only accumulators are stored");
                }
                self.view(at, view, atom, Some(dtype));
                self.writable(at, view.memory);
            }
            (Op::FragmentMap { op, args }, &[r]) => {
                let Some((atom, _, dtype)) = self.fragment(at, r) else { return };
                if args.len() != op.arity() || op.is_comparison() || op.is_logical() {
                    return self.operand_type(at, "the operation isn't elementwise on fragments");
                }
                if !map_takes(*op, Elem::Data(dtype))
                    || *op == tilewright_ir::program::MapOp::Select
                {
                    let message = format!("{} isn't defined on fragments of {dtype}", op.name());
                    self.operand_type(at, message);
                }
                let fragment = self.ty(r);
                for &arg in args {
                    match self.ty(arg) {
                        ty if ty == fragment => {}
                        Type::Elem(Elem::Data(d)) if d == dtype => {
                            self.uniform(at, arg, atom.scope(), "the operand");
                        }
                        other => {
                            let message = format!("%{} is {other}, not {fragment}", arg.index());
                            self.operand_type(at, message);
                        }
                    }
                }
            }
            (Op::Mma { a, b, c, depth }, &[r]) => {
                let Some(atom) = self.accumulator(at, *c, r) else { return };
                if let Atom::Wgmma { .. } = atom {
                    self.statement(Rule::AtomOperand, at, "wgmma is asynchronous: mma_async");
                }
                let any_depth = matches!(atom, Atom::OuterProduct { .. } | Atom::Mpp { .. });
                if any_depth != depth.is_some() {
                    let message = if any_depth { "state the depth" } else { "the depth is fixed" };
                    self.statement(Rule::AtomOperand, at, message);
                }
                if let Some(depth) = depth {
                    self.uniform_index(at, *depth, atom.scope(), "the depth");
                }
                self.operands(at, atom, a, b, *c);
            }
            (Op::MmaAsync { a, b, c }, &[r, token]) => {
                let Some(atom) = self.accumulator(at, *c, r) else { return };
                if !matches!(atom, Atom::Wgmma { .. }) {
                    self.statement(Rule::AtomOperand, at, "only wgmma is asynchronous");
                }
                if self.ty(token) != Type::Token {
                    self.operand_type(at, "the second result is a token");
                }
                self.operands(at, atom, a, b, *c);
            }
            _ => {}
        }
    }

    /// The parts of a fragment's type.
    fn fragment(&mut self, at: At<'_>, value: ValueId) -> Option<(Atom, FragmentRole, DType)> {
        match self.ty(value) {
            Type::Fragment { atom, role, dtype } => Some((atom, role, dtype)),
            other => {
                self.operand_type(at, format!("%{} is {other}, no fragment", value.index()));
                None
            }
        }
    }

    fn fragment_type(&mut self, at: At<'_>, value: ValueId) {
        let Type::Fragment { atom, role, dtype } = self.ty(value) else { return };
        if !atom_exists(atom, self.kernel.lanes) {
            let message = format!("no target has {atom} on {} lanes", self.kernel.lanes);
            self.statement(Rule::AtomForm, at, message);
        } else if !holds(atom, role, dtype) {
            let message = format!("{atom} has no `{role}` fragment of {dtype}");
            self.statement(Rule::FragmentType, at, message);
        }
    }

    /// The atom of an accumulator and of the result, which has the same type.
    fn accumulator(&mut self, at: At<'_>, c: ValueId, result: ValueId) -> Option<Atom> {
        let (atom, role, _) = self.fragment(at, c)?;
        if role != FragmentRole::Accumulator || self.ty(c) != self.ty(result) {
            self.operand_type(at, "the third operand and the result are one accumulator type");
        }
        Some(atom)
    }

    fn operands(&mut self, at: At<'_>, atom: Atom, a: &Operand, b: &Operand, c: ValueId) {
        let mut dtypes = Vec::new();
        for (operand, role) in [(a, FragmentRole::A), (b, FragmentRole::B)] {
            match operand {
                Operand::Fragment(value) => {
                    let Some((found, found_role, dtype)) = self.fragment(at, *value) else {
                        continue;
                    };
                    let takes = !matches!(atom, Atom::OuterProduct { .. } | Atom::Mpp { .. });
                    if !takes || found != atom || found_role != role {
                        let message = format!("operand `{role}` isn't what {atom} takes");
                        self.statement(Rule::AtomOperand, at, message);
                    }
                    dtypes.push(dtype);
                }
                Operand::View(view) => {
                    let takes = match atom {
                        Atom::OuterProduct { .. } | Atom::Mpp { .. } => true,
                        Atom::Wgmma { .. } => matches!(view.memory, Memory::Shared(_)),
                        _ => false,
                    };
                    if !takes {
                        let message = format!("{atom} takes no such view as operand `{role}`");
                        self.statement(Rule::AtomOperand, at, message);
                    }
                    self.view(at, view, atom, None);
                    dtypes.extend(self.memory_type(view.memory));
                }
            }
        }
        let Type::Fragment { dtype: accumulator, .. } = self.ty(c) else { return };
        // A register tile widens each operand by itself, so one may be packed and widened already.
        let one_type =
            matches!(atom, Atom::OuterProduct { .. }) || dtypes.windows(2).all(|d| d[0] == d[1]);
        let fits = dtypes.iter().all(|d| multiplies(atom, *d) && d.accumulator() == accumulator);
        if !one_type || !fits {
            let message = format!("{atom} doesn't multiply {dtypes:?} into {accumulator}");
            self.statement(Rule::AtomOperand, at, message);
        }
    }

    fn view(&mut self, at: At<'_>, view: &View, atom: Atom, dtype: Option<DType>) {
        let scope = atom.scope();
        self.uniform_index(at, view.base, scope, "the base");
        self.uniform_index(at, view.row_stride, scope, "the row stride");
        self.uniform_index(at, view.col_stride, scope, "the column stride");
        for limit in view.rows.into_iter().chain(view.cols) {
            self.uniform_index(at, limit, scope, "the valid extent");
        }
        if let Memory::Private(_) | Memory::Cluster(_) = view.memory {
            self.statement(Rule::MemorySpace, at, "a view is in global or shared memory");
        }
        let Some(found) = self.reach(at, view.memory) else { return };
        if let Some(dtype) = dtype
            && dtype != found
        {
            let message = format!("the fragment is {dtype}, the memory {found}: cast first");
            self.operand_type(at, message);
        }
    }
}
