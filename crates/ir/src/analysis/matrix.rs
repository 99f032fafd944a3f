//! The matrix family: one tiled product with a closed accumulator recurrence, an optional batch
//! axis and an optional elementwise epilogue (reference system 1.4 rules 3 to 6).

use super::extents::{coord_text, in_bounds, same};
use super::uses::{Def, Uses, operands};
use crate::entity::Id;
use crate::facts::*;
use crate::program::*;

/// The index variable and the axis along which a dimension of the product is tiled.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tiling {
    index: IndexId,
    axis: AxisId,
}

impl Tiling {
    /// The tiling that a coordinate states: an index variable once, plus an axis.
    fn of(coord: &Coord) -> Option<Tiling> {
        match (&coord.origin, coord.axis, coord.gather) {
            (Origin { constant: 0, terms }, Some(axis), None) => match terms.as_slice() {
                [(index, 1)] => Some(Tiling { index: *index, axis }),
                _ => None,
            },
            _ => None,
        }
    }
}

struct Matrix<'a> {
    program: &'a Program,
    uses: &'a Uses,
    read_only: &'a [(TensorId, Fact<()>)],
    m: Tiling,
    n: Tiling,
    k: Tiling,
    batch: Option<IndexId>,
}

/// Proves the matrix family, or says why not. Coverage of every output is proved already.
pub(super) fn matrix(
    program: &Program,
    uses: &Uses,
    read_only: &[(TensorId, Fact<()>)],
) -> Result<MatrixFacts, String> {
    let mma = only(program, uses, "matrix product", |op| matches!(op, Op::Mma { .. }))?;
    let k_loop = only(program, uses, "loop", |op| matches!(op, Op::Loop { .. }))?;
    let store = only(program, uses, "store", |op| matches!(op, Op::Store { .. }))?;
    if uses.parent(store).is_some() {
        return Err("the store is inside the loop".to_string());
    }
    let (
        Op::Mma { a, b, c, allow_reassociation },
        Op::Loop { index, carries, body, .. },
        Op::Store { tensor, coords, value, .. },
    ) = (&program.ops[mma].op, &program.ops[k_loop].op, &program.ops[store].op)
    else {
        return Err("it isn't a product in a loop with a store".to_string());
    };
    let carry = closed_recurrence(program, uses, k_loop, carries, mma, *c)?;
    for op in &body.ops {
        let op_is_operand = [*a, *b].iter().any(|v| uses.op(*v) == Some(*op));
        if *op != mma && !op_is_operand {
            return Err(format!(
                "the loop also does `{}`, which is neither the product nor one of its loads",
                kind(&program.ops[*op].op)
            ));
        }
    }
    let (batch, m, n) = output_tiling(program, coords)?;
    sizes_agree(program, *tensor, coords)?;
    let k_axis = contracted(program, *a, *b, *c)?;
    let k = Tiling { index: *index, axis: k_axis };
    let counter = &program.indices[*index];
    if !same(program, counter.step, program.axes[k_axis].extent) {
        return Err(format!(
            "the loop over {} doesn't step by the extent of axis {}",
            counter.name, program.axes[k_axis].name
        ));
    }
    let mut axes = program.values[*c].ty.axes.clone();
    let mut tiled = vec![m.axis, n.axis];
    axes.sort_unstable();
    tiled.sort_unstable();
    if axes != tiled {
        return Err("the accumulator's axes aren't the two axes of the stored tile".to_string());
    }
    let this = Matrix { program, uses, read_only, m, n, k, batch };
    // Products commute: what makes an operand the left one is that it holds the row axis.
    let holds_rows = |v: ValueId| program.values[v].ty.axes.contains(&m.axis);
    let (left, right) = if holds_rows(*a) { (*a, *b) } else { (*b, *a) };
    let a = this.operand(left, m, MatrixDim::M)?;
    let b = this.operand(right, n, MatrixDim::N)?;
    let start = this.literal(carry.init)?;
    let results = &program.ops[k_loop].results;
    let epilogue = this.epilogue(*value, results.first().copied())?;
    let zero_init = if start.to_bits() == 0 {
        Fact::Proved(())
    } else {
        Fact::Unknown(format!("the accumulator starts at {start:?}, not at +0"))
    };
    let size = |t: Tiling| program.indices[t.index].extent;
    let block = |t: Tiling| program.axes[t.axis].extent;
    Ok(MatrixFacts {
        batch: batch.map(|index| program.indices[index].extent),
        size: [size(m), size(n), size(k)],
        block: [block(m), block(n), block(k)],
        dtype: program.values[left].ty.dtype,
        accumulator: program.values[*c].ty.dtype,
        output: program.tensors[*tensor].dtype,
        a,
        b,
        c: *tensor,
        k_loop,
        mma,
        direct_output: this.direct_output(*tensor, &epilogue),
        epilogue,
        store,
        recurrence: Fact::Proved(()),
        zero_init,
        reassociable: *allow_reassociation,
    })
}

/// The only reachable operation of a kind.
fn only(
    program: &Program,
    uses: &Uses,
    what: &str,
    wanted: impl Fn(&Op) -> bool,
) -> Result<OpId, String> {
    let mut found = uses.order.iter().copied().filter(|op| wanted(&program.ops[*op].op));
    match (found.next(), found.count()) {
        (Some(op), 0) => Ok(op),
        (None, _) => Err(format!("it has no {what}")),
        (Some(_), more) => Err(format!("it has {} {what}s, not one", more + 1)),
    }
}

/// Rule 3: one product per iteration, from the carry and to the carry, read by nothing else.
fn closed_recurrence<'p>(
    program: &Program,
    uses: &Uses,
    k_loop: OpId,
    carries: &'p [Carry],
    mma: OpId,
    accumulator: ValueId,
) -> Result<&'p Carry, String> {
    let open = |reason: &str| Err(format!("the accumulator recurrence isn't closed: {reason}"));
    if uses.parent(mma) != Some(k_loop) {
        return open("the product isn't in the loop");
    }
    let [carry] = carries else {
        return open(&format!("the loop carries {} values", carries.len()));
    };
    if uses.parent(k_loop).is_some() {
        return open("the loop is inside another");
    }
    if accumulator != carry.inner {
        return open("the product doesn't add to the carried value");
    }
    if program.ops[mma].results.first() != Some(&carry.next) {
        return open("the loop doesn't hand on the product itself");
    }
    if uses.users(carry.inner) != [mma] {
        return open("the carried value has another reader in the loop");
    }
    if uses.users(carry.next) != [k_loop] {
        return open("the product has another reader");
    }
    if uses.def(carry.inner) != Def::Carry(k_loop) {
        return open("the carried value is defined elsewhere");
    }
    Ok(carry)
}

/// Batch, row and column of the stored tile.
fn output_tiling(
    program: &Program,
    coords: &[Coord],
) -> Result<(Option<IndexId>, Tiling, Tiling), String> {
    let describe = |coord: &Coord| {
        format!("the output's coordinate `{}` isn't a grid index plus an axis", {
            coord_text(program, coord)
        })
    };
    let tiling = |coord: &Coord| match Tiling::of(coord) {
        Some(tiling) if program.grid.contains(&tiling.index) => Ok(tiling),
        _ => Err(describe(coord)),
    };
    match coords {
        [row, column] => Ok((None, tiling(row)?, tiling(column)?)),
        [batch, row, column] => {
            let index = batch_index(batch)
                .filter(|index| program.grid.contains(index))
                .ok_or_else(|| describe(batch))?;
            Ok((Some(index), tiling(row)?, tiling(column)?))
        }
        _ => Err(format!("the output has {} dimensions, not 2 or 3", coords.len())),
    }
}

fn batch_index(coord: &Coord) -> Option<IndexId> {
    match (&coord.origin, coord.axis, coord.gather) {
        (Origin { constant: 0, terms }, None, None) => match terms.as_slice() {
            [(index, 1)] => Some(*index),
            _ => None,
        },
        _ => None,
    }
}

/// The axis that both operands have and the accumulator lacks.
fn contracted(program: &Program, a: ValueId, b: ValueId, c: ValueId) -> Result<AxisId, String> {
    let axes = |v: ValueId| &program.values[v].ty.axes;
    let mut common =
        axes(a).iter().filter(|axis| axes(b).contains(axis) && !axes(c).contains(axis));
    match (common.next(), common.next()) {
        (Some(axis), None) => Ok(*axis),
        _ => Err("the product doesn't contract exactly one axis".to_string()),
    }
}

/// Every index variable of an access runs over the whole dimension that it moves along, so that M,
/// N, K and the batch size are the tensor's own sizes.
fn sizes_agree(program: &Program, tensor: TensorId, coords: &[Coord]) -> Result<(), String> {
    let tensor = &program.tensors[tensor];
    for (coord, size) in coords.iter().zip(&tensor.shape) {
        for (index, _) in &coord.origin.terms {
            let index = &program.indices[*index];
            if !same(program, index.extent, *size) {
                return Err(format!(
                    "`{}` has another size than {} along `{}`",
                    tensor.name,
                    index.name,
                    coord_text(program, coord)
                ));
            }
        }
    }
    Ok(())
}

/// The name of an operation's kind, for messages.
fn kind(op: &Op) -> &'static str {
    match op {
        Op::Const { .. } => "const",
        Op::Scalar(_) => "scalar",
        Op::Size(_) => "size",
        Op::Index { .. } => "index",
        Op::Load { .. } => "load",
        Op::Store { .. } => "store",
        Op::Map { op, .. } => op.name(),
        Op::Cast(_) => "cast",
        Op::Broadcast(_) => "broadcast",
        Op::Reduce { .. } => "reduce",
        Op::Mma { .. } => "mma",
        Op::Reindex { .. } => "reindex",
        Op::Loop { .. } => "loop",
    }
}

impl Matrix<'_> {
    /// The load of an operand that is tiled by `outer` and K, and whether reading it in place of
    /// the tile is proved (rule 6).
    fn operand(
        &self,
        value: ValueId,
        outer: Tiling,
        dim: MatrixDim,
    ) -> Result<OperandFact, String> {
        let program = self.program;
        let name = &program.values[value].name;
        let load = self.uses.op(value).filter(|op| {
            matches!(program.ops[*op].op, Op::Load { .. }) && self.uses.parent(*op).is_some()
        });
        let Some(load) = load else {
            return Err(format!("operand %{name} isn't a load in the loop"));
        };
        let Op::Load { tensor, coords, bounds } = &program.ops[load].op else {
            return Err(format!("operand %{name} isn't a load in the loop"));
        };
        let data = &program.tensors[*tensor];
        let matrix = match coords.as_slice() {
            [first, second] => [first, second],
            [batch, first, second] => {
                if batch_index(batch).is_none_or(|index| Some(index) != self.batch) {
                    return Err(format!(
                        "the first coordinate of `{}` isn't the batch index",
                        data.name
                    ));
                }
                [first, second]
            }
            _ => return Err(format!("`{}` has {} dimensions", data.name, coords.len())),
        };
        let tilings = matrix.map(Tiling::of);
        // A is stored row-major as (outer, K), B as (K, outer).
        let straight = match dim {
            MatrixDim::M => [Some(outer), Some(self.k)],
            _ => [Some(self.k), Some(outer)],
        };
        let swapped = [straight[1], straight[0]];
        let transposed = if tilings == straight {
            false
        } else if tilings == swapped {
            true
        } else {
            let text: Vec<String> = coords.iter().map(|c| coord_text(program, c)).collect();
            return Err(format!(
                "`{}` is read at [{}], which isn't the block of the product",
                data.name,
                text.join(", ")
            ));
        };
        sizes_agree(program, *tensor, coords)?;
        // Outside K both operands must vanish; outside M and N the store is clipped.
        let inside = coords
            .iter()
            .zip(&data.shape)
            .try_for_each(|(coord, size)| in_bounds(program, coord, *size));
        match (bounds, inside) {
            (_, Ok(())) => {}
            (Bounds::Fill(fill), Err(_)) if *fill == 0.0 => {}
            (Bounds::Fill(fill), Err(_)) => {
                return Err(format!(
                    "`{}` is {fill:?} outside its bounds, which a ragged block would add",
                    data.name
                ));
            }
            (Bounds::Assume, Err(reason)) => {
                return Err(format!("a load of `{}` is assumed in bounds: {reason}", data.name));
            }
        }
        let read_only = self.read_only.iter().find(|(t, _)| t == tensor).map(|(_, fact)| fact);
        if let Some(Fact::Unknown(reason)) = read_only {
            return Err(format!("operand `{}` isn't read-only: {reason}", data.name));
        }
        let forward = if !unit_inner_stride(program, data) {
            Fact::Unknown(format!("the inner stride of `{}` isn't 1", data.name))
        } else {
            Fact::Proved(match dim {
                MatrixDim::M => vec![MatrixDim::M, MatrixDim::K],
                _ => vec![MatrixDim::N, MatrixDim::K],
            })
        };
        Ok(OperandFact { tensor: *tensor, load, transposed, forward })
    }

    /// The literal that a tile repeats.
    fn literal(&self, value: ValueId) -> Result<f64, String> {
        let mut value = value;
        loop {
            match self.uses.op(value).map(|op| &self.program.ops[op].op) {
                Some(Op::Const { value }) => return Ok(*value),
                Some(Op::Broadcast(inner)) => value = *inner,
                _ => return Err("the accumulator doesn't start at a literal".to_string()),
            }
        }
    }

    /// The operations on which the stored value depends, up to the loop's result.
    fn epilogue(&self, value: ValueId, product: Option<ValueId>) -> Result<Vec<OpId>, String> {
        let Some(product) = product else { return Err("the loop has no result".to_string()) };
        let program = self.program;
        let mut needed = vec![false; program.ops.len()];
        let mut stack = vec![value];
        let mut reached = false;
        while let Some(value) = stack.pop() {
            if value == product {
                reached = true;
                continue;
            }
            let Some(op) = self.uses.op(value) else {
                return Err("the epilogue reads a value of the loop's body".to_string());
            };
            if std::mem::replace(&mut needed[op.index()], true) {
                continue;
            }
            self.epilogue_op(op)?;
            stack.extend(operands(&program.ops[op].op));
        }
        if !reached {
            return Err("the stored value doesn't depend on the product".to_string());
        }
        Ok(self.uses.order.iter().copied().filter(|op| needed[op.index()]).collect())
    }

    /// An operation of the epilogue is elementwise, and loads at the place of the stored tile.
    fn epilogue_op(&self, op: OpId) -> Result<(), String> {
        let program = self.program;
        let data = &program.ops[op];
        for result in &data.results {
            let value = &program.values[*result];
            if value.ty.axes.iter().any(|axis| *axis != self.m.axis && *axis != self.n.axis) {
                return Err(format!("%{} of the epilogue has another axis", value.name));
            }
        }
        match &data.op {
            Op::Const { .. }
            | Op::Scalar(_)
            | Op::Size(_)
            | Op::Index { .. }
            | Op::Map { .. }
            | Op::Cast(_)
            | Op::Broadcast(_) => Ok(()),
            Op::Load { tensor, coords, bounds } => {
                sizes_agree(program, *tensor, coords)?;
                let tensor = &program.tensors[*tensor];
                for (coord, size) in coords.iter().zip(&tensor.shape) {
                    let tile = Tiling::of(coord);
                    let placed = tile == Some(self.m)
                        || tile == Some(self.n)
                        || (self.batch.is_some() && batch_index(coord) == self.batch)
                        || *coord == Coord::default();
                    if !placed {
                        return Err(format!(
                            "the epilogue reads `{}` at `{}`, which isn't the stored tile's place",
                            tensor.name,
                            coord_text(program, coord)
                        ));
                    }
                    if *bounds == Bounds::Assume {
                        in_bounds(program, coord, *size).map_err(|reason| {
                            format!("a load of `{}` is assumed in bounds: {reason}", tensor.name)
                        })?;
                    }
                }
                Ok(())
            }
            other => Err(format!("the epilogue does `{}`, which isn't elementwise", kind(other))),
        }
    }

    /// Rule 4.
    fn direct_output(&self, tensor: TensorId, epilogue: &[OpId]) -> Fact<Vec<MatrixDim>> {
        let tensor = &self.program.tensors[tensor];
        if !epilogue.is_empty() {
            return Fact::Unknown("the epilogue stands between accumulator and store".to_string());
        }
        if !unit_inner_stride(self.program, tensor) {
            return Fact::Unknown(format!("the inner stride of `{}` isn't 1", tensor.name));
        }
        Fact::Proved(vec![MatrixDim::M, MatrixDim::N])
    }
}

/// Whether neighbours of the last dimension are neighbours in memory.
fn unit_inner_stride(program: &Program, tensor: &Tensor) -> bool {
    match &tensor.strides {
        Strides::Packed => true,
        Strides::Explicit(strides) => {
            strides.last().is_some_and(|stride| same(program, *stride, Extent::Const(1)))
        }
    }
}
