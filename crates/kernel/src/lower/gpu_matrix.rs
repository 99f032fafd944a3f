//! The matrix family with register tiles on a GPU.
//!
//! A group computes one BM×BN block of the output, or the part of it that one slice of K gives.
//! Asynchronous copies bring A and B, step by step, to a ring of shared buffers (`copy.rs`); each
//! lane multiplies the elements of its rows and columns in registers, and reads those of the next
//! K while it multiplies (`product.rs`). Sets of subgroups that share a step meet in shared
//! memory; what follows the product is evaluated by the lane that has the sum (`output.rs`).
//! Thin products read their operands where they lie (`in_place.rs`).
//! Slices leave their sums in scratch, and a second launch adds them (`combine.rs`).
//!
//! Every extent that a mapping names is a power of two, so positions split exactly.

mod combine;
mod copy;
mod in_place;
mod output;
mod product;

use tilewright_ir::facts::MatrixFacts;
use tilewright_ir::program as ir;
use tilewright_ir::program::{Access, AxisId, TensorId};
use tilewright_ir::{DType, Program};
use tilewright_plan::mapping::GpuMatrixMapping;
use tilewright_plan::policy::gpu_matrix::shared_bytes;

use super::args::stride_divisor;
use super::{Context, LowerError, Rule};
use crate::builder::KernelBuilder;
use crate::kernel::*;
use copy::Staged;

/// Lanes of a subgroup.
const LANES: u32 = 32;
/// Elements of a 16-byte vector.
const VECTOR: u64 = 4;

/// A matrix in global memory with logical rows and columns.
#[derive(Clone, Copy, Debug)]
struct Matrix {
    memory: Memory,
    /// Offset of element (0, 0).
    origin: ValueId,
    row_stride: ValueId,
    col_stride: ValueId,
    /// A divisor of the row stride and of the origin, in elements.
    divisor: u64,
    /// Alignment of the buffer in elements.
    align: u64,
}

impl Matrix {
    /// Whether elements at multiples of `vector` in a row may be accessed as one vector, given
    /// that columns are consecutive.
    fn has_vectors(&self, vector: u64) -> bool {
        self.divisor.is_multiple_of(vector) && self.align.is_multiple_of(vector)
    }
}

/// A lowering in progress.
struct GpuMatrix<'a> {
    cx: Context<'a>,
    facts: &'a MatrixFacts,
    mapping: GpuMatrixMapping,
    shape: Shape,
    /// M, N, K.
    size: [ValueId; 3],
    /// First row and column of the group.
    origin: [ValueId; 2],
    /// First row and column that the group stores, where those before are another's too.
    own: [Option<ValueId>; 2],
    /// The output, or the scratch that sums go to.
    c: Matrix,
    /// The batch index, and the slice of K.
    batch: Option<ValueId>,
    slice: ValueId,
    /// Where all subgroups meet.
    barrier: BarrierId,
}

/// Where a subgroup and its lanes stand in the group's block.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// The subgroup's first row and column of the block, and its set.
    corner: [ValueId; 2],
    set: ValueId,
    /// The lane's row and column in the grid of lanes, times the width of a piece.
    lane: [ValueId; 2],
}

/// A part of K.
#[derive(Clone, Copy, Debug)]
struct Depth {
    first: ValueId,
    end: ValueId,
    /// Steps that cover it, if known.
    steps: Option<u64>,
    /// Whether whole steps cover it.
    whole: bool,
    /// Elements that whole steps leave, where they are known.
    rest: Option<u64>,
}

fn check(program: &Program, facts: &MatrixFacts, m: &GpuMatrixMapping) -> Result<(), LowerError> {
    let fail =
        |rule, detail: String| Err(LowerError { program: program.name.clone(), rule, detail });
    let extents = m.warps.iter().chain(&m.lanes).chain(&m.tile).chain([&m.depth]);
    if let Some(n) = extents.clone().find(|n| !n.is_power_of_two()) {
        return fail(Rule::MappingRange, format!("{n} in {m:?} is no power of two"));
    }
    let in_place = m.stages == 1;
    if m.lanes[0] * m.lanes[1] != LANES && !(in_place && m.lanes == [1, 1]) {
        return fail(Rule::MappingRange, format!("a grid of {:?} lanes isn't {LANES}", m.lanes));
    }
    if m.threads() > 1024 || m.block().iter().any(|b| *b > 4096) || m.depth > 4096 {
        return fail(Rule::MappingRange, format!("{} threads, {:?}", m.threads(), m.block()));
    }
    if m.tile[0] * m.tile[1] > 256 {
        return fail(Rule::MappingRange, format!("a tile of {:?} elements", m.tile));
    }
    if in_place {
        check_in_place(m).or_else(|detail| fail(Rule::MappingRange, detail))?;
    }
    if !(1..=8).contains(&m.stages) || m.slices == 0 {
        return fail(Rule::MappingRange, format!("{} stages, {} slices", m.stages, m.slices));
    }
    if m.unroll != 1 && (!m.unroll.is_multiple_of(m.stages) || !(1..=16).contains(&m.unroll)) {
        return fail(Rule::MappingRange, format!("{} steps of {} stages", m.unroll, m.stages));
    }
    if !m.depth.is_multiple_of(m.warps[2]) {
        return fail(Rule::ExactCover, format!("a step of {} for {} sets", m.depth, m.warps[2]));
    }
    for dtype in [facts.dtype, facts.accumulator] {
        if dtype != DType::F32 {
            return fail(Rule::AtomType, format!("tiles multiply and accumulate f32, not {dtype}"));
        }
    }
    for (what, fact) in [("recurrence", &facts.recurrence), ("initial zero", &facts.zero_init)] {
        if let tilewright_ir::facts::Fact::Unknown(reason) = fact {
            return fail(Rule::UnprovedFact, format!("{what}: {reason}"));
        }
    }
    if (m.warps[2] > 1 || m.slices > 1 || m.lanes == [1, 1]) && !facts.reassociable {
        let detail = "parts of K are summed apart".to_string();
        return fail(Rule::UnorderedReduction, detail);
    }
    Ok(())
}

/// Whether a mapping that reads operands in place has numbers that it can have.
fn check_in_place(m: &GpuMatrixMapping) -> Result<(), String> {
    let share = m.depth / m.warps[2].max(1);
    let shape = match m.lanes {
        [1, 1] => m.copy[0] == m.copy[1] && share.is_multiple_of(LANES * m.copy[0].max(1)),
        [1, _] => m.tile[1] <= 4,
        [_, 1] => m.tile[0] <= 4,
        _ => false,
    };
    let widths = m.copy.iter().all(|w| [1, 2, 4].contains(w));
    // All of a trip's elements are in registers at once.
    let elements = match m.lanes {
        [1, 1] => share / LANES,
        _ => share,
    };
    let most = u64::from(elements) * u64::from(m.tile[0] + m.tile[1]);
    match shape && widths && m.unroll == 1 && most <= 512 {
        true => Ok(()),
        false => Err(format!("{m:?} can't read its operands in place")),
    }
}

/// Lowers a matrix program with register tiles: one launch, or two where there are slices.
///
/// # Errors
/// The mapping breaks a rule, or a fact that it relies on isn't proved.
pub(super) fn lower(
    program: &Program,
    facts: &MatrixFacts,
    mapping: &GpuMatrixMapping,
) -> Result<Vec<Kernel>, LowerError> {
    check(program, facts, mapping)?;
    let subgroups = mapping.warps.iter().product();
    let mut b = KernelBuilder::new(&program.name, LANES, subgroups);
    b.resident(mapping.resident);
    let mut this = GpuMatrix::new(Context::new(program, b), facts, *mapping)?;
    this.run()?;
    let kernel = this.cx.b.finish();
    let planned = shared_bytes(mapping, [facts.a.transposed, facts.b.transposed]);
    if kernel.shared_bytes() > planned {
        let detail =
            format!("{} bytes of shared memory where {planned} are planned", kernel.shared_bytes());
        return Err(LowerError { program: program.name.clone(), rule: Rule::ClosedForm, detail });
    }
    let mut launches = vec![kernel];
    if mapping.slices > 1 {
        launches.push(combine::lower(program, facts, mapping)?);
    }
    Ok(launches)
}

/// What the program stores.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// The value that is stored.
    stored: ir::ValueId,
    /// The value that the loop over K gives.
    product: ir::ValueId,
    /// Row and column axis of the stored tile.
    axes: [AxisId; 2],
}

fn shape(cx: &Context<'_>, facts: &MatrixFacts) -> Result<Shape, LowerError> {
    let program = cx.program;
    let ir::Op::Store { coords, value, .. } = &program.ops[facts.store].op else {
        return Err(cx.error(Rule::Operation, "the matrix facts name a store that is none"));
    };
    let (Some(product), [.., row, column]) =
        (program.ops[facts.k_loop].results.first(), coords.as_slice())
    else {
        return Err(cx.error(Rule::Operation, "the matrix facts name a loop without a result"));
    };
    let (Some(row), Some(column)) = (row.axis, column.axis) else {
        return Err(cx.error(Rule::Operation, "the stored tile lacks an axis"));
    };
    Ok(Shape { stored: *value, product: *product, axes: [row, column] })
}

/// Gives the index variables of the store their values: positions along the axes are absolute, so
/// the tile's own origin is 0.
fn place_indices(cx: &mut Context<'_>, facts: &MatrixFacts, batch: Option<ValueId>) {
    let program = cx.program;
    let ir::Op::Store { coords, .. } = &program.ops[facts.store].op else { return };
    let zero = cx.b.int(0);
    let outer = coords.len().saturating_sub(2);
    for (d, coord) in coords.iter().enumerate() {
        let value = if d < outer { batch.unwrap_or(zero) } else { zero };
        for (index, _) in &coord.origin.terms {
            cx.indices.insert(*index, value);
        }
    }
}

impl<'a> GpuMatrix<'a> {
    fn new(
        mut cx: Context<'a>,
        facts: &'a MatrixFacts,
        mapping: GpuMatrixMapping,
    ) -> Result<Self, LowerError> {
        let program = cx.program;
        let Shape { stored, product, axes } = shape(&cx, facts)?;
        let size = facts.size.map(|extent| cx.extent(extent));
        let zero = cx.b.int(0);
        // The grid: batch and slices in one dimension, rows, columns.
        let slices = u64::from(mapping.slices);
        let (mut batch, mut slice) = (None, zero);
        match facts.batch {
            Some(extent) => {
                let group = match (cx.args.size(program, extent), slices) {
                    (size, 1) => cx.b.grid(size, 1),
                    (Size::Const(n), _) => cx.b.grid(Size::Const(n.saturating_mul(slices)), 1),
                    (Size::Arg(_), _) => {
                        let detail = "slices of a batch whose size isn't known";
                        return Err(cx.error(Rule::ExtentKnown, detail));
                    }
                };
                let parts = cx.b.int(slices as i64);
                batch = Some(cx.b.div(group, parts));
                slice = cx.b.rem(group, parts);
            }
            None if slices > 1 => slice = cx.b.grid(Size::Const(slices), 1),
            None => {}
        }
        let (mut origin, mut own) = ([zero; 2], [None; 2]);
        for (d, step) in mapping.block().into_iter().enumerate() {
            let group = cx.b.grid(cx.args.size(program, facts.size[d]), step);
            if cx.b.known(size[d]).is_none_or(|size| size as u64 > step) {
                origin[d] = cx.b.mul_int(group, step as i64);
            }
            if ends_with_output(program, facts, &mapping, d) {
                own[d] = Some(origin[d]);
                let last = cx.b.add_int(size[d], -(step as i64));
                origin[d] = cx.b.min(origin[d], last);
            }
        }
        place_indices(&mut cx, facts, batch);
        let c = if slices > 1 {
            scratch(&mut cx, facts, slices, Access::Out, batch, Some(slice))?
        } else {
            operand(&mut cx, facts.c, false, batch)
        };
        let barrier = cx.b.group_barrier("all");
        let shape = Shape { stored, product, axes };
        Ok(GpuMatrix { cx, facts, mapping, shape, size, origin, own, c, batch, slice, barrier })
    }

    fn run(&mut self) -> Result<(), LowerError> {
        if self.mapping.slices == 1 {
            self.cx.prepare(self.shape.stored)?;
        }
        let depth = self.depth();
        let position = self.position();
        let a = operand(&mut self.cx, self.facts.a.tensor, self.facts.a.transposed, self.batch);
        let b = operand(&mut self.cx, self.facts.b.tensor, self.facts.b.transposed, self.batch);
        // Rows of B's transpose are columns of the output: both operands are "x by k".
        let b = Matrix { row_stride: b.col_stride, col_stride: b.row_stride, ..b };
        let sums = if self.is_in_place() {
            self.in_place([a, b], &position, &depth)?
        } else {
            let a = Staged::new(self, 0, a, &depth)?;
            let b = Staged::new(self, 1, b, &depth)?;
            self.pipeline([&a, &b], &position, &depth)?
        };
        self.store(&position, sums)
    }

    /// The group's part of K.
    fn depth(&mut self) -> Depth {
        let step = u64::from(self.mapping.depth);
        let slices = u64::from(self.mapping.slices);
        let known = self.cx.program.known(self.facts.size[2]);
        let divisor = self.cx.program.divisor(self.facts.size[2]);
        let end = self.size[2];
        let b = &mut self.cx.b;
        if slices == 1 {
            let steps = known.map(|k| k.div_ceil(step));
            let whole = divisor.is_multiple_of(step);
            return Depth { first: b.int(0), end, steps, whole, rest: known.map(|k| k % step) };
        }
        let unit = b.int((step * slices) as i64);
        let up = b.add_int(end, (step * slices) as i64 - 1);
        let each = b.div(up, unit);
        let each = b.mul_int(each, step as i64);
        let first = b.mul(self.slice, each);
        let last = b.add(first, each);
        let end = b.min(last, end);
        let steps = known.map(|k| k.div_ceil(step * slices));
        Depth { first, end, steps, whole: divisor.is_multiple_of(step * slices), rest: None }
    }

    /// Splits the subgroup's and the lane's number.
    fn position(&mut self) -> Position {
        let GpuMatrixMapping { warps: [wm, wn, wk], lanes: [lr, lc], tile, .. } = self.mapping;
        let b = &mut self.cx.b;
        let subgroup = b.subgroup_id();
        let (plane, across) = (b.int(i64::from(wm * wn)), b.int(i64::from(wn)));
        let inside = if wk == 1 { subgroup } else { b.rem(subgroup, plane) };
        let set = if wk == 1 { b.int(0) } else { b.div(subgroup, plane) };
        let row = if wm == 1 { b.int(0) } else { b.div(inside, across) };
        let column = if wm == 1 { inside } else { b.rem(inside, across) };
        let corner =
            [b.mul_int(row, i64::from(lr * tile[0])), b.mul_int(column, i64::from(lc * tile[1]))];
        // Neighbouring lanes differ in row, the next bits are the column: so two quarters of a
        // subgroup read the same 16-byte vectors of B and neighbours the same of A.
        let lane = b.lane();
        let (row, column) = if lr * lc == 1 {
            (b.int(0), b.int(0))
        } else if lr == 1 {
            (b.int(0), lane)
        } else if lc == 1 {
            (lane, b.int(0))
        } else {
            let (two, width) = (b.int(2), b.int(i64::from(lc)));
            let double = b.int(i64::from(2 * lc));
            let (low, half) = (b.rem(lane, two), b.div(lane, two));
            let column = b.rem(half, width);
            let high = b.div(lane, double);
            let high = b.mul_int(high, 2);
            (b.add(low, high), column)
        };
        let lane = [b.mul_int(row, piece(tile[0])), b.mul_int(column, piece(tile[1]))];
        Position { corner, set, lane }
    }
}

/// Whether the last block over rows (0) or columns (1) begins as far before the output's end as it is
/// long, so that nothing is read beyond the operands and no copy needs a test: it computes rows (or
/// columns) of the block before again, and leaves storing them to that one. Pieces of 4 columns
/// must not lie across what is stored: slices store them whole.
fn ends_with_output(
    program: &Program,
    facts: &MatrixFacts,
    mapping: &GpuMatrixMapping,
    d: usize,
) -> bool {
    let step = mapping.block()[d];
    let whole = d == 0 || program.divisor(facts.size[d]).is_multiple_of(VECTOR);
    mapping.stages > 1
        && (mapping.slices == 1 || whole)
        && program.known(facts.size[d]).is_some_and(|n| n > step && !n.is_multiple_of(step))
}

/// Consecutive rows or columns of a lane.
fn piece(tile: u32) -> i64 {
    i64::from(tile.min(4))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The matrix of a tensor, by logical rows and columns.
fn operand(
    cx: &mut Context<'_>,
    tensor: TensorId,
    transposed: bool,
    batch: Option<ValueId>,
) -> Matrix {
    let program = cx.program;
    let t = &program.tensors[tensor];
    let dims = t.shape.len();
    let (outer, inner) = (dims.saturating_sub(2), dims.saturating_sub(1));
    let mut origin = cx.b.int(0);
    let mut divisor = stride_divisor(program, tensor, outer);
    if let (Some(batch), 3) = (batch, dims) {
        let stride = cx.args.stride(&mut cx.b, program, tensor, 0);
        origin = cx.b.mul(batch, stride);
        divisor = gcd(divisor, stride_divisor(program, tensor, 0));
    }
    let outer = cx.args.stride(&mut cx.b, program, tensor, outer);
    let inner = cx.args.stride(&mut cx.b, program, tensor, inner);
    let (row_stride, col_stride) = if transposed { (inner, outer) } else { (outer, inner) };
    let align = t.align / t.dtype.bytes().max(1);
    Matrix {
        memory: Memory::Global(cx.args.tensor(tensor)),
        origin,
        row_stride,
        col_stride,
        divisor,
        align,
    }
}

/// The scratch of the slices: for each slice and batch index an M×N matrix whose rows are padded
/// to whole vectors.
fn scratch(
    cx: &mut Context<'_>,
    facts: &MatrixFacts,
    slices: u64,
    access: Access,
    batch: Option<ValueId>,
    slice: Option<ValueId>,
) -> Result<Matrix, LowerError> {
    let program = cx.program;
    let known = |extent| {
        program.known(extent).ok_or_else(|| {
            cx.error(Rule::ExtentKnown, "scratch of slices needs the sizes of the output")
        })
    };
    let (m, n) = (known(facts.size[0])?, known(facts.size[1])?);
    let batches = facts.batch.map_or(Ok(1), known)?;
    let row = n.next_multiple_of(VECTOR);
    let total = [m, row, batches, slices].iter().try_fold(1u64, |n, f| n.checked_mul(*f));
    let Some(total) = total.filter(|n| *n < 1 << 40) else {
        return Err(cx.error(Rule::MappingRange, "more scratch than can be addressed"));
    };
    let b = &mut cx.b;
    let arg = b.buffer("partial_sums", DType::F32, access, 16, ArgSource::Scratch(total.max(1)));
    let zero = b.int(0);
    let part = b.mul_int(slice.unwrap_or(zero), batches as i64);
    let part = b.add(part, batch.unwrap_or(zero));
    Ok(Matrix {
        memory: Memory::Global(arg),
        origin: b.mul_int(part, (m * row) as i64),
        row_stride: b.int(row as i64),
        col_stride: b.int(1),
        divisor: row,
        align: VECTOR,
    })
}
