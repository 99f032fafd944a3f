//! The matrix family with register tiles on a CPU.
//!
//! A group computes `group[0]` × `group[1]` elements of the output. It walks its columns in
//! blocks of `columns` and K in steps of `depth`; for each step it copies what the mapping says
//! into its scratch (`pack.rs`) and runs register tiles over the block (`tile.rs`), rows outside,
//! columns inside: the rows' strip of A stays in the first-level cache, the block of B in the
//! second. Sums wait in the output itself where that is exact, else in scratch; what follows the
//! product is evaluated on vectors of a finished strip of rows (`epilogue.rs`).
//!
//! Extents that are known give exact remainder tiles. Rows that are known at launch only are
//! covered by tiles of powers of two below the tile's rows, columns by single masked vectors.

mod epilogue;
mod pack;
mod tile;

use tilewright_ir::Program;
use tilewright_ir::facts::MatrixFacts;
use tilewright_ir::program as ir;
use tilewright_ir::program::{AxisId, TensorId};
use tilewright_plan::mapping::CpuMatrixMapping;
use tilewright_plan::policy::cpu_matrix::scratch_bytes;

use super::{Context, LowerError, Rule};
use crate::builder::KernelBuilder;
use crate::kernel::*;

/// A matrix in global memory or scratch, with logical rows and columns.
#[derive(Clone, Copy, Debug)]
struct Matrix {
    memory: Memory,
    /// Offset of element (0, 0).
    origin: ValueId,
    row_stride: ValueId,
    col_stride: ValueId,
}

/// Where sums are, between K steps and before what follows the product.
#[derive(Clone, Copy, Debug)]
enum Home {
    /// In the output: it has the accumulator's type, nobody reads it, and its columns are
    /// consecutive.
    Output,
    /// In scratch with the columns of the group, and its rows or, if one K step covers K, those
    /// of one tile.
    Scratch(SharedId),
}

/// A lowering in progress.
struct CpuMatrix<'a> {
    cx: Context<'a>,
    facts: &'a MatrixFacts,
    mapping: CpuMatrixMapping,
    /// Row and column axis of the stored tile.
    axes: [AxisId; 2],
    /// The value that the loop over K gives.
    product: ir::ValueId,
    /// The value that is stored.
    stored: ir::ValueId,
    a: Matrix,
    b: Matrix,
    c: Matrix,
    /// M, N, K.
    size: [ValueId; 3],
    /// First row and column of the group, and how many it has.
    origin: [ValueId; 2],
    extent: [ValueId; 2],
    home: Home,
    packed_a: Option<SharedId>,
    packed_b: Option<SharedId>,
}

fn check(program: &Program, facts: &MatrixFacts, m: &CpuMatrixMapping) -> Result<(), LowerError> {
    let fail =
        |rule, detail: String| Err(LowerError { program: program.name.clone(), rule, detail });
    let numbers = [m.group[0], m.group[1], m.depth, m.columns];
    if m.lanes == 0 || m.tile.contains(&0) || numbers.contains(&0) {
        return fail(Rule::MappingRange, format!("{m:?} has a zero"));
    }
    let [rows, width] = [u64::from(m.tile[0]), u64::from(m.tile[1]) * u64::from(m.lanes)];
    for (what, extent, unit) in [
        ("rows of a group", m.group[0], rows),
        ("columns of a group", m.group[1], width),
        ("columns of a block", m.columns, width),
    ] {
        if !extent.is_multiple_of(unit) {
            return fail(Rule::ExactCover, format!("{extent} {what} for tiles of {unit}"));
        }
    }
    for (what, fact) in [("recurrence", &facts.recurrence), ("initial zero", &facts.zero_init)] {
        if let tilewright_ir::facts::Fact::Unknown(reason) = fact {
            return fail(Rule::UnprovedFact, format!("{what}: {reason}"));
        }
    }
    Ok(())
}

/// Lowers a matrix program with register tiles.
///
/// # Errors
/// The mapping breaks a rule, a fact that it relies on isn't proved, or the epilogue has an
/// operation that vectors of a tile have no place for.
pub(super) fn lower(
    program: &Program,
    facts: &MatrixFacts,
    mapping: &CpuMatrixMapping,
) -> Result<Kernel, LowerError> {
    check(program, facts, mapping)?;
    let b = KernelBuilder::new(&program.name, mapping.lanes, 1);
    let cx = Context::new(program, b);
    let mut this = CpuMatrix::new(cx, facts, *mapping)?;
    this.cx.prepare(this.stored)?;
    this.blocks()?;
    Ok(this.cx.b.finish())
}

impl<'a> CpuMatrix<'a> {
    fn new(
        mut cx: Context<'a>,
        facts: &'a MatrixFacts,
        mapping: CpuMatrixMapping,
    ) -> Result<Self, LowerError> {
        let program = cx.program;
        let malformed = |cx: &Context<'_>, what: &str| Err(cx.error(Rule::Operation, what));
        let ir::Op::Store { coords, value, .. } = &program.ops[facts.store].op else {
            return malformed(&cx, "the matrix facts name a store that is none");
        };
        let (Some(product), [.., row, column]) =
            (program.ops[facts.k_loop].results.first(), coords.as_slice())
        else {
            return malformed(&cx, "the matrix facts name a loop without a result");
        };
        let (Some(row_axis), Some(column_axis)) = (row.axis, column.axis) else {
            return malformed(&cx, "the stored tile lacks an axis");
        };
        let size = facts.size.map(|extent| cx.extent(extent));
        let zero = cx.b.int(0);
        // The grid: batch, rows, columns.
        let mut batch = None;
        if let (Some(extent), Some(coord)) = (facts.batch, coords.first()) {
            let size = cx.args.size(program, extent);
            let group = cx.b.grid(size, 1);
            for (index, _) in &coord.origin.terms {
                cx.indices.insert(*index, group);
            }
            batch = Some(group);
        }
        let mut origin = [zero; 2];
        let mut extent = [zero; 2];
        for (d, coord) in [row, column].into_iter().enumerate() {
            let step = mapping.group[d];
            let group = cx.b.grid(cx.args.size(program, facts.size[d]), step);
            if cx.b.known(size[d]).is_none_or(|size| size as u64 > step) {
                origin[d] = cx.b.mul_int(group, step as i64);
            }
            let rest = cx.b.sub(size[d], origin[d]);
            let whole = cx.b.int(step as i64);
            let divides = program.divisor(facts.size[d]).is_multiple_of(step);
            let one = cx.b.known(rest).is_some();
            extent[d] = if divides && !one { whole } else { cx.b.min(rest, whole) };
            // Positions along the axes are absolute, so the tile's own origin is 0.
            for (index, _) in &coord.origin.terms {
                cx.indices.insert(*index, zero);
            }
        }
        let a = operand(&mut cx, facts.a.tensor, facts.a.transposed, batch);
        let b = operand(&mut cx, facts.b.tensor, facts.b.transposed, batch);
        let c = operand(&mut cx, facts.c, false, batch);
        let mut this = CpuMatrix {
            cx,
            facts,
            mapping,
            axes: [row_axis, column_axis],
            product: *product,
            stored: *value,
            a,
            b,
            c,
            size,
            origin,
            extent,
            home: Home::Output,
            packed_a: None,
            packed_b: None,
        };
        this.scratch()?;
        Ok(this)
    }

    /// Whether something follows the product, or the sums aren't in the output.
    fn has_epilogue(&self) -> bool {
        self.stored != self.product || !matches!(self.home, Home::Output)
    }

    /// Lanes of an accumulator vector.
    fn lanes(&self) -> u64 {
        u64::from(self.mapping.lanes)
    }

    fn tile_rows(&self) -> u64 {
        u64::from(self.mapping.tile[0])
    }

    fn tile_columns(&self) -> u64 {
        u64::from(self.mapping.tile[1]) * self.lanes()
    }

    /// Whether one step surely covers K.
    fn single_step(&self) -> bool {
        self.cx.program.known(self.facts.size[2]).is_some_and(|k| k <= self.mapping.depth)
    }

    /// Declares the group's scratch, as `scratch_bytes` of the planner counts it.
    fn scratch(&mut self) -> Result<(), LowerError> {
        let program = self.cx.program;
        let accumulator = self.facts.accumulator;
        let out = &program.tensors[self.facts.c];
        let exact = out.dtype == accumulator && out.access == ir::Access::Out;
        let in_place = exact && self.cx.b.known(self.c.col_stride) == Some(1);
        let CpuMatrixMapping { group, depth, columns, pack_a, pack_b, stream, .. } = self.mapping;
        if !in_place {
            let rows = if self.single_step() { self.tile_rows() } else { group[0] };
            self.home = Home::Scratch(self.declare("sums", accumulator, rows, group[1])?);
        }
        if stream && (self.has_epilogue() || !self.single_step()) {
            let detail = "a streaming output that is written more than once";
            return Err(self.cx.error(Rule::MappingRange, detail));
        }
        if pack_a {
            let transposed = self.facts.a.transposed;
            let (rows, cols) = if transposed { (depth, group[0]) } else { (group[0], depth) };
            // The padding keeps rows off one cache set.
            let cols = cols.div_ceil(16).saturating_add(1).saturating_mul(16);
            self.packed_a = Some(self.declare("packed_a", accumulator, rows, cols)?);
        }
        if pack_b {
            let width = self.tile_columns();
            let panels = columns.min(group[1]).div_ceil(width);
            let rows = panels.saturating_mul(depth);
            self.packed_b = Some(self.declare("packed_b", accumulator, rows, width)?);
        } else if self.cx.b.known(self.b.col_stride) != Some(1) {
            let name = &program.tensors[self.facts.b.tensor].name;
            let detail = format!("the columns of `{name}` aren't consecutive: it must be packed");
            return Err(self.cx.error(Rule::UnprovedFact, detail));
        }
        let (transposed, single) = (self.facts.a.transposed, self.single_step());
        let planned = scratch_bytes(&self.mapping, accumulator, transposed, in_place, single);
        let declared = self.cx.b.kernel().shared_bytes();
        if planned != declared {
            let detail = format!("{declared} bytes of scratch, the planner counts {planned}");
            return Err(self.cx.error(Rule::ClosedForm, detail));
        }
        Ok(())
    }

    fn declare(
        &mut self,
        name: &str,
        dtype: tilewright_ir::DType,
        rows: u64,
        cols: u64,
    ) -> Result<SharedId, LowerError> {
        // The product is checked here, because the size in bytes is computed from it unchecked.
        let bytes = rows.checked_mul(cols).and_then(|n| n.checked_mul(dtype.bytes()));
        if bytes.is_none_or(|bytes| bytes > u64::from(u32::MAX)) {
            let detail = format!("{rows} x {cols} elements of scratch for `{name}`");
            return Err(self.cx.error(Rule::SharedLimit, detail));
        }
        Ok(self.cx.b.shared(name, dtype, rows, cols, Layout::Plain))
    }

    /// Column blocks, then K steps.
    fn blocks(&mut self) -> Result<(), LowerError> {
        let zero = self.cx.b.int(0);
        let columns = self.mapping.columns;
        let open = self.open_loop(zero, self.extent[1], columns);
        let first_column = open.1;
        let rest = self.cx.b.sub(self.extent[1], first_column);
        let block = self.cx.b.int(columns as i64);
        let width = self.cx.b.min(rest, block);
        self.steps(first_column, width)?;
        self.close_loop(open.0);
        Ok(())
    }

    /// K steps over one block of columns.
    fn steps(&mut self, first_column: ValueId, width: ValueId) -> Result<(), LowerError> {
        let zero = self.cx.b.int(0);
        let depth = self.mapping.depth;
        // An empty K still gives zeros.
        let one = self.cx.b.int(1);
        let end = self.cx.b.max(self.size[2], one);
        let end = if self.single_step() { one } else { end };
        let (open, start) = self.open_loop(zero, end, depth);
        let rest = self.cx.b.sub(self.size[2], start);
        let whole = self.cx.b.int(depth as i64);
        let extent = self.facts.size[2];
        let divides = self.cx.program.divisor(extent).is_multiple_of(depth) && !self.single_step();
        let some = self.cx.program.known(extent).is_some_and(|k| k > 0);
        let length = if divides && some { whole } else { self.cx.b.min(rest, whole) };
        let step = tile::Step { first_column, width, start, length };
        self.pack(&step)?;
        self.tiles(&step)?;
        self.close_loop(open);
        Ok(())
    }

    /// Opens a loop unless it surely has one trip, and gives its counter.
    fn open_loop(
        &mut self,
        lo: ValueId,
        hi: ValueId,
        step: u64,
    ) -> (Option<crate::builder::OpenLoop>, ValueId) {
        if let (Some(first), Some(end)) = (self.cx.b.known(lo), self.cx.b.known(hi))
            && first < end
            && (end - first) as u64 <= step
        {
            return (None, lo);
        }
        let open = self.cx.b.begin_for(lo, hi, step, 1, &[]);
        let index = open.index();
        (Some(open), index)
    }

    fn close_loop(&mut self, open: Option<crate::builder::OpenLoop>) {
        if let Some(open) = open {
            self.cx.b.end_for(open, &[]);
        }
    }
}

/// The matrix of a tensor, by logical rows and columns.
fn operand(
    cx: &mut Context<'_>,
    tensor: TensorId,
    transposed: bool,
    batch: Option<ValueId>,
) -> Matrix {
    let program = cx.program;
    let dims = program.tensors[tensor].shape.len();
    let mut origin = cx.b.int(0);
    if let (Some(batch), 3) = (batch, dims) {
        let stride = cx.args.stride(&mut cx.b, program, tensor, 0);
        origin = cx.b.mul(batch, stride);
    }
    let outer = cx.args.stride(&mut cx.b, program, tensor, dims.saturating_sub(2));
    let inner = cx.args.stride(&mut cx.b, program, tensor, dims.saturating_sub(1));
    let (row_stride, col_stride) = if transposed { (inner, outer) } else { (outer, inner) };
    Matrix { memory: Memory::Global(cx.args.tensor(tensor)), origin, row_stride, col_stride }
}
