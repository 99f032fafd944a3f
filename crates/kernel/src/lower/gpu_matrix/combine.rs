//! The second launch of a product in slices: adds the partial sums in the order of K and
//! evaluates what follows the product.

use tilewright_ir::Program;
use tilewright_ir::facts::MatrixFacts;
use tilewright_ir::program::{Access, MapOp};
use tilewright_plan::mapping::GpuMatrixMapping;

use super::output::{Output, Piece};
use super::{LANES, LowerError, Matrix, Shape, VECTOR, operand, place_indices, scratch, shape};
use crate::builder::KernelBuilder;
use crate::kernel::*;
use crate::lower::Context;

/// Subgroups of a group.
const SUBGROUPS: u32 = 4;

pub(super) fn lower(
    program: &Program,
    facts: &MatrixFacts,
    mapping: &GpuMatrixMapping,
) -> Result<Kernel, LowerError> {
    let name = format!("{}_combine", program.name);
    let mut cx = Context::new(program, KernelBuilder::new(&name, LANES, SUBGROUPS));
    let Shape { stored, product, axes } = shape(&cx, facts)?;
    let slices = u64::from(mapping.slices);
    let batch = facts.batch.map(|extent| {
        let size = cx.args.size(program, extent);
        cx.b.grid(size, 1)
    });
    let columns = program.known(facts.size[1]).unwrap_or(1).max(1);
    let threads = u64::from(LANES * SUBGROUPS);
    // Threads over columns, and the rest over rows.
    let across = columns.div_ceil(VECTOR).next_power_of_two().min(threads);
    let block = [threads / across, across * VECTOR];
    let mut group = Vec::new();
    for (d, step) in block.into_iter().enumerate() {
        let at = cx.b.grid(cx.args.size(program, facts.size[d]), step);
        group.push(cx.b.mul_int(at, step as i64));
    }
    place_indices(&mut cx, facts, batch);
    cx.prepare(stored)?;
    let size = [cx.extent(facts.size[0]), cx.extent(facts.size[1])];
    let parts = scratch(&mut cx, facts, slices, Access::In, batch, None)?;
    let c = operand(&mut cx, facts.c, false, batch);
    let b = &mut cx.b;
    let subgroup = b.subgroup_id();
    let thread = b.mul_int(subgroup, i64::from(LANES));
    let lane = b.lane();
    let thread = b.add(thread, lane);
    let across = b.int(across as i64);
    let (row, column) = (b.div(thread, across), b.rem(thread, across));
    let column = b.mul_int(column, VECTOR as i64);
    let at_row = b.add(row, group[0]);
    let at_column = b.add(column, group[1]);
    let below = b.compare(MapOp::Lt, at_row, size[0]);
    let left = b.compare(MapOp::Lt, at_column, size[1]);
    let inside = b.both(Some(below), Some(left));
    let guard = inside.map(|mask| Guard::mask(mask, 0.0));
    let Matrix { memory, origin, row_stride, .. } = parts;
    let base = b.mul(group[0], row_stride);
    let base = b.add(base, group[1]);
    let base = b.add(base, origin);
    let index = b.mul(row, row_stride);
    let index = b.add(index, column);
    let one = plane(program, facts, row_stride, b);
    let mut parts = Vec::new();
    for slice in 0..slices as i64 {
        let base = b.add_int(base, slice * one);
        let place = Place { memory, base, lane_stride: 0, index: Some(index) };
        parts.push(b.load(place, VECTOR as u32, guard));
    }
    let sums = parts.into_iter().reduce(|total, part| {
        total.iter().zip(part).map(|(a, c)| b.map(MapOp::Add, &[*a, c])).collect()
    });
    let own = [None; 2];
    let output =
        Output { facts, axes, product, stored: Some(stored), c, size, block, own, padded: false };
    let piece = Piece {
        row: [row, group[0]],
        column: [column, group[1]],
        mask: None,
        sums: sums.unwrap_or_default(),
    };
    output.store(&mut cx, &piece)?;
    Ok(cx.b.finish())
}

/// Elements from one slice to the next.
fn plane(program: &Program, facts: &MatrixFacts, row_stride: ValueId, b: &KernelBuilder) -> i64 {
    let known = |extent| program.known(extent).unwrap_or(1) as i64;
    let rows = known(facts.size[0]);
    let batches = facts.batch.map_or(1, known);
    // `scratch` has checked that the product fits.
    rows * batches * b.known(row_stride).unwrap_or(1)
}
