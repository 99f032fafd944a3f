//! Matrix fragments: 8×8 fragments of a simdgroup here, cooperative tensors in `mpp`.

use tilewright_ir::DType;
use tilewright_ir::program::MapOp;
use tilewright_kernel::kernel::{Atom, Memory, Operand, Type, ValueId, View};

use super::EmitError;
use super::emitter::{Emitter, literal_of, type_name};
use super::index::Val;

/// What a fragment is in the text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fragment {
    /// Every element is that number; written where it is used.
    Fill(f64),
    /// A variable.
    Variable(String),
}

impl Emitter<'_> {
    /// Atom and element type of a fragment.
    pub(super) fn fragment_type(&self, value: ValueId) -> Result<(Atom, DType), EmitError> {
        match self.kernel.values[value].ty {
            // `matmul2d` asserts so of its descriptor.
            Type::Fragment { atom: Atom::Mpp { rows, cols }, .. }
                if !rows.is_multiple_of(16) && !cols.is_multiple_of(16) =>
            {
                let construct = format!(
                    "a tensor operation of {rows}x{cols} (neither extent is a multiple of 16)"
                );
                Err(self.unsupported(construct))
            }
            Type::Fragment {
                atom: atom @ (Atom::Simdgroup8x8 | Atom::Mpp { .. }), dtype, ..
            } => Ok((atom, dtype)),
            Type::Fragment { atom, .. } => Err(self.unsupported(format!("the atom {atom}"))),
            _ => Err(self.unsupported("an element as a fragment")),
        }
    }

    pub(super) fn fragment(&self, value: ValueId) -> Result<Fragment, EmitError> {
        self.fragments.get(&value).cloned().ok_or_else(|| self.undefined(value))
    }

    /// A variable that holds `from` and may be overwritten for `to`: the variable of `from`
    /// itself where nobody else uses it, else a copy.
    pub(super) fn own(&mut self, from: ValueId, to: ValueId) -> Result<String, EmitError> {
        let (atom, dtype) = self.fragment_type(to)?;
        let fragment = self.fragment(from)?;
        if let Fragment::Variable(name) = &fragment
            && self.uses.once_here(from)
        {
            return Ok(name.clone());
        }
        let name = Self::temporary('f', to);
        match (atom, fragment) {
            (Atom::Mpp { .. }, Fragment::Fill(x)) => {
                self.declare_cooperative(&name, atom, dtype)?;
                self.each_slot(&name, &format!("{name}[i] = {};", literal_of(x, dtype)));
            }
            (Atom::Mpp { .. }, Fragment::Variable(source)) => {
                self.declare_cooperative(&name, atom, dtype)?;
                self.each_slot(&name, &format!("{name}[i] = {source}[i];"));
            }
            (_, fragment) => {
                let value = self.matrix(&fragment, dtype);
                self.line(format!("{} {name} = {value};", matrix_type(dtype)));
            }
        }
        Ok(name)
    }

    /// An 8×8 fragment as an expression.
    fn matrix(&self, fragment: &Fragment, dtype: DType) -> String {
        match fragment {
            Fragment::Variable(name) => name.clone(),
            Fragment::Fill(x) => format!(
                "make_filled_simdgroup_matrix<{}, 8, 8>({})",
                type_name(dtype),
                literal_of(*x, dtype)
            ),
        }
    }

    /// A fragment in a variable.
    pub(super) fn in_variable(&mut self, value: ValueId) -> Result<String, EmitError> {
        match self.fragment(value)? {
            Fragment::Variable(name) => Ok(name),
            Fragment::Fill(_) => {
                let name = self.own(value, value)?;
                self.fragments.insert(value, Fragment::Variable(name.clone()));
                Ok(name)
            }
        }
    }

    /// Ends a trip: the carried variable becomes the next fragment.
    pub(super) fn carry_fragment(&mut self, name: &str, next: ValueId) -> Result<(), EmitError> {
        let (atom, dtype) = self.fragment_type(next)?;
        let fragment = self.fragment(next)?;
        match (atom, &fragment) {
            (_, Fragment::Variable(source)) if source == name => {}
            (Atom::Mpp { .. }, Fragment::Variable(source)) => {
                self.each_slot(name, &format!("{name}[i] = {source}[i];"));
            }
            (Atom::Mpp { .. }, Fragment::Fill(x)) => {
                self.each_slot(name, &format!("{name}[i] = {};", literal_of(*x, dtype)));
            }
            _ => {
                let value = self.matrix(&fragment, dtype);
                self.line(format!("{name} = {value};"));
            }
        }
        Ok(())
    }

    /// Base pointer of a view.
    pub(super) fn pointer(&mut self, view: &View) -> Result<String, EmitError> {
        let base = self.val(view.base)?;
        let base = match view.memory {
            Memory::Shared(shared) => self.storage(shared, base)?,
            Memory::Global(_) => base,
            Memory::Private(_) => return Err(self.unsupported("a fragment of a private array")),
            Memory::Cluster(_) => return Err(self.unsupported("memory across a cluster")),
        };
        let name = self.memory_name(view.memory);
        Ok(if base.known() == Some(0) { name } else { format!("{name} + {}", base.operand()) })
    }

    /// Distance of lines of a view, and whether the lines are columns.
    pub(super) fn lines(&mut self, view: &View) -> Result<(Val, bool), EmitError> {
        let (row, col) = (self.val(view.row_stride)?, self.val(view.col_stride)?);
        match (row.known(), col.known()) {
            (_, Some(1)) => Ok((row, false)),
            (Some(1), _) => Ok((col, true)),
            _ => Err(self.unsupported("a view without unit stride in either direction")),
        }
    }

    /// The arguments of a load or store of an 8×8 fragment.
    fn matrix_place(&mut self, view: &View) -> Result<String, EmitError> {
        if view.rows.is_some() || view.cols.is_some() {
            return Err(self.unsupported("an 8x8 fragment at an edge"));
        }
        let (stride, transposed) = self.lines(view)?;
        let pointer = self.pointer(view)?;
        let origin = if transposed { ", ulong2{0, 0}, true" } else { "" };
        Ok(format!("{pointer}, {}{origin}", stride.text))
    }

    pub(super) fn fragment_load(&mut self, view: &View, result: ValueId) -> Result<(), EmitError> {
        let (atom, dtype) = self.fragment_type(result)?;
        let name = Self::temporary('f', result);
        match atom {
            Atom::Mpp { .. } => {
                self.declare_cooperative(&name, atom, dtype)?;
                self.cooperative_load(&name, view, atom)?;
            }
            _ => {
                let place = self.matrix_place(view)?;
                self.line(format!("{} {name};", matrix_type(dtype)));
                self.line(format!("simdgroup_load({name}, {place});"));
            }
        }
        self.fragments.insert(result, Fragment::Variable(name));
        Ok(())
    }

    pub(super) fn fragment_store(
        &mut self,
        fragment: ValueId,
        view: &View,
    ) -> Result<(), EmitError> {
        let (atom, _) = self.fragment_type(fragment)?;
        let name = self.in_variable(fragment)?;
        match atom {
            Atom::Mpp { .. } => self.cooperative_store(&name, view, atom),
            _ => {
                let place = self.matrix_place(view)?;
                self.line(format!("simdgroup_store({name}, {place});"));
                Ok(())
            }
        }
    }

    /// An elementwise operation: each lane on its own elements, wherever they stand.
    pub(super) fn fragment_map(
        &mut self,
        op: MapOp,
        args: &[ValueId],
        result: ValueId,
    ) -> Result<(), EmitError> {
        let (atom, dtype) = self.fragment_type(result)?;
        let mut operands = Vec::new();
        for arg in args {
            operands.push(match self.kernel.values[*arg].ty {
                Type::Fragment { .. } => {
                    let name = self.in_variable(*arg)?;
                    Err(name)
                }
                _ => Ok(self.val(*arg)?),
            });
        }
        let name = Self::temporary('f', result);
        let slot = |name: &str| match atom {
            Atom::Mpp { .. } => format!("{name}[i]"),
            _ => format!("{name}.thread_elements()[i]"),
        };
        let vals: Vec<Val> = operands
            .iter()
            .map(|o| match o {
                Ok(val) => val.clone(),
                Err(name) => Val::data(slot(name), true),
            })
            .collect();
        let value = self.apply(op, dtype, &vals)?.text;
        self.each_element_of(&name, atom, dtype, &format!("{} = {value};", slot(&name)))?;
        self.fragments.insert(result, Fragment::Variable(name));
        Ok(())
    }

    pub(super) fn fragment_cast(
        &mut self,
        value: ValueId,
        result: ValueId,
    ) -> Result<(), EmitError> {
        let (atom, dtype) = self.fragment_type(result)?;
        let source = self.in_variable(value)?;
        let name = Self::temporary('f', result);
        let ty = type_name(dtype);
        let line = match atom {
            Atom::Mpp { .. } => format!("{name}[i] = {ty}({source}[i]);"),
            _ => format!("{name}.thread_elements()[i] = {ty}({source}.thread_elements()[i]);"),
        };
        self.each_element_of(&name, atom, dtype, &line)?;
        self.fragments.insert(result, Fragment::Variable(name));
        Ok(())
    }

    /// Declares a fragment and runs a line for each of the lane's elements `i`.
    fn each_element_of(
        &mut self,
        name: &str,
        atom: Atom,
        dtype: DType,
        line: &str,
    ) -> Result<(), EmitError> {
        match atom {
            Atom::Mpp { .. } => {
                self.declare_cooperative(name, atom, dtype)?;
                self.each_slot(name, line);
            }
            _ => {
                self.line(format!("{} {name};", matrix_type(dtype)));
                self.open("for (ushort i = 0; i < 2; ++i) {");
                self.line(line);
                self.close("}");
            }
        }
        Ok(())
    }

    pub(super) fn mma(
        &mut self,
        a: &Operand,
        b: &Operand,
        c: ValueId,
        depth: Option<ValueId>,
        result: ValueId,
    ) -> Result<(), EmitError> {
        let (atom, _) = self.fragment_type(c)?;
        let name = match (atom, a, b) {
            (Atom::Mpp { .. }, Operand::View(a), Operand::View(b)) => {
                self.matmul(a, b, c, depth, result)?
            }
            (Atom::Simdgroup8x8, Operand::Fragment(a), Operand::Fragment(b)) => {
                let (a, b) = (self.in_variable(*a)?, self.in_variable(*b)?);
                let name = self.own(c, result)?;
                self.line(format!("simdgroup_multiply_accumulate({name}, {a}, {b}, {name});"));
                name
            }
            _ => return Err(self.unsupported(format!("such operands of {atom}"))),
        };
        self.fragments.insert(result, Fragment::Variable(name));
        Ok(())
    }
}

/// The type of an 8×8 fragment.
fn matrix_type(dtype: DType) -> String {
    format!("simdgroup_{}8x8", type_name(dtype))
}
