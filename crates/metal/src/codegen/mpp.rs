//! Tensor operations of Metal Performance Primitives: `matmul2d` of one simdgroup into a
//! cooperative tensor.
//!
//! Operands are tensors over a moved pointer: extents are those of the tile, clamped where the
//! view ends, and K is dynamic, so that nothing past an edge is read. Extent 0 of a tensor is its
//! contiguous axis.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

use tilewright_ir::DType;
use tilewright_ir::program::MapOp;
use tilewright_kernel::kernel::{
    ArgId, ArgKind, Atom, Kernel, Literal, Memory, Op, Operand, Type, ValueId, View,
};

use super::EmitError;
use super::emitter::{Emitter, type_name};
use super::fragment::Fragment;
use super::index::Val;

/// Memory space, element type and direction of the operands of an atom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Side {
    device: bool,
    dtype: DType,
    transposed: bool,
}

impl Side {
    fn tensor(self) -> String {
        tensor_type(self.device, self.dtype)
    }
}

fn tensor_type(device: bool, dtype: DType) -> String {
    let space = if device { "device" } else { "threadgroup" };
    format!("tensor<{space} {}, dextents<int, 2>, tensor_inline>", type_name(dtype))
}

/// The operations of a kernel, each declared once.
#[derive(Debug, Default)]
pub(super) struct Operations {
    /// Operands of the first product of each atom.
    sides: HashMap<Atom, [Side; 2]>,
    names: HashMap<(Atom, [Side; 2], bool), String>,
    /// Number of products of each atom.
    products: HashMap<Atom, u32>,
    /// Buffers that tensors are over.
    buffers: BTreeSet<ArgId>,
    /// Text at the head of the kernel function.
    pub(super) declarations: String,
}

impl Operations {
    pub(super) fn of(kernel: &Kernel) -> Operations {
        let mut operations = Operations::default();
        let mut known: HashMap<ValueId, i64> = HashMap::new();
        kernel.body.walk(&mut |stmt| match &stmt.op {
            Op::Const(Literal::Int(n)) => known.extend(stmt.results.iter().map(|r| (*r, *n))),
            Op::Mma { a: Operand::View(a), b: Operand::View(b), c, .. } => {
                if let Type::Fragment { atom: atom @ Atom::Mpp { .. }, .. } = kernel.values[*c].ty
                    && let (Some(a_side), Some(b_side)) =
                        (side(kernel, &known, a), side(kernel, &known, b))
                {
                    operations.sides.entry(atom).or_insert([a_side, b_side]);
                    *operations.products.entry(atom).or_insert(0) += 1;
                }
                operations.tensor_over(a.memory);
                operations.tensor_over(b.memory);
            }
            Op::FragmentLoad(view) => operations.tensor_over(view.memory),
            _ => {}
        });
        operations
    }

    fn tensor_over(&mut self, memory: Memory) {
        if let Memory::Global(arg) = memory {
            self.buffers.insert(arg);
        }
    }

    /// Whether a buffer is read through tensors.
    pub(super) fn reads(&self, arg: ArgId) -> bool {
        !self.sides.is_empty() && self.buffers.contains(&arg)
    }
}

fn side(kernel: &Kernel, known: &HashMap<ValueId, i64>, view: &View) -> Option<Side> {
    let (device, dtype) = match view.memory {
        Memory::Global(arg) => match kernel.args[arg].kind {
            ArgKind::Buffer { dtype, .. } => (true, dtype),
            _ => return None,
        },
        Memory::Shared(shared) => (false, kernel.shared[shared].dtype),
        Memory::Private(_) | Memory::Cluster(_) => return None,
    };
    let transposed = known.get(&view.col_stride) != Some(&1);
    Some(Side { device, dtype, transposed })
}

impl Emitter<'_> {
    /// The operation with operands of that kind; declared on first use.
    fn operation(&mut self, atom: Atom, sides: [Side; 2], accumulate: bool) -> String {
        let key = (atom, sides, accumulate);
        if let Some(name) = self.operations.names.get(&key) {
            return name.clone();
        }
        let (rows, cols) = atom.accumulator(self.kernel.lanes);
        let number = self.operations.names.len();
        let (name, descriptor) = (format!("op{number}"), format!("t{number}"));
        let mode = if accumulate { "multiply_accumulate" } else { "multiply" };
        let [a, b] = sides.map(|s| s.transposed);
        let out = &mut self.operations.declarations;
        let _ = writeln!(
            out,
            "    constexpr auto {descriptor} = matmul2d_descriptor({rows}, {cols}, static_cast<int>(dynamic_extent), {a}, {b}, false, matmul2d_descriptor::mode::{mode});"
        );
        let _ = writeln!(out, "    matmul2d<{descriptor}, execution_simdgroup> {name};");
        self.operations.names.insert(key, name.clone());
        name
    }

    /// Declares a cooperative tensor: the destination of the atom's operation.
    pub(super) fn declare_cooperative(
        &mut self,
        name: &str,
        atom: Atom,
        dtype: DType,
    ) -> Result<(), EmitError> {
        // Without any product the operands don't matter.
        let plain = Side { device: true, dtype, transposed: false };
        let sides = self.operations.sides.get(&atom).copied().unwrap_or([plain; 2]);
        // Every mode has the same destination; the one that exists is taken.
        let accumulate = !self.operations.names.contains_key(&(atom, sides, false));
        let operation = self.operation(atom, sides, accumulate);
        self.cooperative(name, &operation, sides, dtype);
        Ok(())
    }

    fn cooperative(&mut self, name: &str, operation: &str, sides: [Side; 2], dtype: DType) {
        let [left, right] = sides.map(Side::tensor);
        self.line(format!(
            "auto {name} = {operation}.get_destination_cooperative_tensor<{left}, {right}, {}>();",
            type_name(dtype)
        ));
    }

    /// Runs a line for every slot `i` of a cooperative tensor that holds an element.
    pub(super) fn each_slot(&mut self, name: &str, line: &str) {
        self.open(format!("for (ushort i = 0; i < {name}.get_capacity(); ++i) {{"));
        self.line(format!("if ({name}.is_valid_element(i)) {line}"));
        self.close("}");
    }

    /// A number as an `int` in the text. What isn't surely one is an argument or of one; the
    /// host refuses arguments that are too large.
    fn narrow(&mut self, val: &Val) -> String {
        if val.range.is_narrow() {
            return val.text.clone();
        }
        for (arg, _) in self.kernel.args.iter() {
            if self.arg_name(arg) == val.text {
                self.limit_arg(arg, i64::from(i32::MAX));
            }
        }
        format!("int({})", val.text)
    }

    /// A valid extent of at most `most`.
    fn clamped(&mut self, limit: Option<ValueId>, most: i64) -> Result<Val, EmitError> {
        let most = Val::int(most);
        let Some(limit) = limit else { return Ok(most) };
        let limit = self.val(limit)?;
        let below = self.index(MapOp::Min, &limit, &most)?;
        self.index(MapOp::Max, &below, &Val::int(0))
    }

    /// A tensor over a view of `rows` × `cols` elements.
    fn tensor(
        &mut self,
        name: &str,
        view: &View,
        rows: &Val,
        cols: &Val,
    ) -> Result<bool, EmitError> {
        let dtype = self.memory_dtype(view.memory)?;
        let device = matches!(view.memory, Memory::Global(_));
        let (stride, transposed) = self.lines(view)?;
        let pointer = self.pointer(view)?;
        let (rows, cols, stride) = (self.narrow(rows), self.narrow(cols), self.narrow(&stride));
        let (inner, outer) = if transposed { (rows, cols) } else { (cols, rows) };
        self.line(format!(
            "{} {name}({pointer}, dextents<int, 2>({inner}, {outer}), array<int, 2>{{1, {stride}}});",
            tensor_type(device, dtype)
        ));
        Ok(transposed)
    }

    /// `a·b + c` into the variable that it returns.
    pub(super) fn matmul(
        &mut self,
        a: &View,
        b: &View,
        c: ValueId,
        depth: Option<ValueId>,
        result: ValueId,
    ) -> Result<String, EmitError> {
        let (atom, dtype) = self.fragment_type(result)?;
        let (rows, cols) = atom.accumulator(self.kernel.lanes);
        let mut sides = Vec::new();
        for view in [a, b] {
            let (_, transposed) = self.lines(view)?;
            sides.push(Side {
                device: matches!(view.memory, Memory::Global(_)),
                dtype: self.memory_dtype(view.memory)?,
                transposed,
            });
        }
        let sides = [sides[0], sides[1]];
        let depth = depth.ok_or_else(|| self.unsupported("a tensor operation without a depth"))?;
        let mut depth = self.val(depth)?;
        for limit in a.cols.into_iter().chain(b.rows) {
            let limit = self.val(limit)?;
            depth = self.index(MapOp::Min, &depth, &limit)?;
        }
        if depth.range.lo < 0 {
            depth = self.index(MapOp::Max, &depth, &Val::int(0))?;
        }
        // An accumulator that nothing was added to yet is overwritten, if this is the only product:
        // a destination belongs to one operation, so it can't accumulate by another afterwards.
        let only = self.operations.products.get(&atom) == Some(&1);
        let fresh = only && positive_zero(&self.fragment(c)?);
        let operation = self.operation(atom, sides, !fresh);
        let name = if fresh {
            let name = Self::temporary('f', result);
            self.cooperative(&name, &operation, sides, dtype);
            name
        } else {
            self.own(c, result)?
        };
        let rows = self.clamped(a.rows, rows.into())?;
        let cols = self.clamped(b.cols, cols.into())?;
        self.open("{");
        self.tensor("left", a, &rows, &depth)?;
        self.tensor("right", b, &depth, &cols)?;
        self.line(format!("{operation}.run(left, right, {name});"));
        self.close("}");
        Ok(name)
    }

    pub(super) fn cooperative_load(
        &mut self,
        name: &str,
        view: &View,
        atom: Atom,
    ) -> Result<(), EmitError> {
        self.transfer(name, view, atom, false)
    }

    pub(super) fn cooperative_store(
        &mut self,
        name: &str,
        view: &View,
        atom: Atom,
    ) -> Result<(), EmitError> {
        self.transfer(name, view, atom, true)
    }

    /// Moves a cooperative tensor to or from memory, in it where rows are contiguous, else
    /// element by element.
    fn transfer(
        &mut self,
        name: &str,
        view: &View,
        atom: Atom,
        store: bool,
    ) -> Result<(), EmitError> {
        let (rows, cols) = atom.accumulator(self.kernel.lanes);
        let rows = self.clamped(view.rows, rows.into())?;
        let cols = self.clamped(view.cols, cols.into())?;
        let (stride, transposed) = self.lines(view)?;
        if !transposed {
            self.open("{");
            self.tensor("place", view, &rows, &cols)?;
            let verb = if store { "store" } else { "load" };
            self.line(format!("{name}.{verb}(place);"));
            self.close("}");
            return Ok(());
        }
        let pointer = self.pointer(view)?;
        let element = format!("({pointer})[at[1] + at[0] * {}]", stride.operand());
        let (rows, cols) = (rows.operand(), cols.operand());
        self.open(format!("for (ushort i = 0; i < {name}.get_capacity(); ++i) {{"));
        self.line(format!("if (!{name}.is_valid_element(i)) continue;"));
        self.line(format!("const auto at = {name}.get_multidimensional_index(i);"));
        let guard = format!("if (at[1] < {rows} && at[0] < {cols})");
        if store {
            self.line(format!("{guard} {element} = {name}[i];"));
        } else {
            self.line(format!("{name}[i] = 0;"));
            self.line(format!("{guard} {name}[i] = {element};"));
        }
        self.close("}");
        Ok(())
    }
}

/// Whether a fill is +0 with its sign clear.
fn positive_zero(fragment: &Fragment) -> bool {
    matches!(fragment, Fragment::Fill(x) if x.to_bits() == 0)
}
