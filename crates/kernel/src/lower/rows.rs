//! The row family: W workers share one program (a row), element `e` of the columns belongs to
//! worker `w` with `e = (chunk·W + w)·V + v` (reference system, 5.1).
//!
//! Domains run in order. Full chunks have no guard; of the last, partial chunk workers below ⌊r/V⌋
//! take a full pack, the next one `r mod V` elements, and the others none (r = N mod W·V): by
//! guards on the count, or by branches (see [`Tail`]). A reduction folds locally, then over the subgroup, then, if the program
//! has several subgroups, over their partial results in shared memory: one barrier each, because
//! every reduction has partials of its own. Where a cluster of groups shares a program, every
//! subgroup writes its partial result to the shared memory of all of them.
//!
//! Rows of a batch go side by side (see [`batch`]); rows may lie in shared memory (see [`stage`]).

mod batch;
pub(super) mod blocks;
mod domains;
mod moments;
mod reduce;
mod split;
mod stage;
mod tail;

use std::collections::HashSet;

use tilewright_ir::Program;
use tilewright_ir::entity::Id;
use tilewright_ir::facts::{DomainKind, ReductionFact, RowFacts, RowVariant};
use tilewright_ir::program as ir;
use tilewright_ir::program::{AxisId, MapOp, OrderPolicy};
use tilewright_plan::mapping::{Residency, RowMapping};
use tilewright_plan::problem::moments::{Moments, moments};
use tilewright_plan::problem::rows::is_shared_load;

use super::access::Frame;
use super::{Context, Join, LowerError, Options, Pack, Rule, Sums, Tail, check_closed_form};
use crate::builder::KernelBuilder;
use crate::kernel::*;
use batch::Row;
use moments::Pending;

/// The most elements that one lane's stripe may have.
const MAX_SLOTS: u64 = 1 << 20;

/// A row lowering in progress.
struct Rows<'a> {
    cx: Context<'a>,
    mapping: RowMapping,
    variant: &'a RowVariant,
    axis: Option<AxisId>,
    /// N.
    columns: ValueId,
    /// N where it is known, else its bound.
    most_columns: u64,
    /// The subgroup's number within its program.
    subgroup: ValueId,
    /// The subgroup's number within its group.
    member: ValueId,
    barrier: Option<BarrierId>,
    /// Where a leader exchanges: the barrier of its group, and what is exchanged at the next of the
    /// cluster, with the elements of one access.
    gather: Option<BarrierId>,
    outgoing: Vec<(SharedId, u32)>,
    /// The barrier of the cluster's start, at which the group has arrived and not yet waited.
    start: Option<BarrierId>,
    join: Join,
    tail: Tail,
    /// Long rows are summed in blocks.
    in_blocks: bool,
    /// What the rows of the batch know, but for the one that is being built.
    others: Vec<Row>,
    /// The row that is being built.
    row: usize,
    /// Values that are the same for all rows.
    common: HashSet<ir::ValueId>,
    /// Copies that nothing has waited for.
    copies: Vec<ValueId>,
    /// A sum and the squares about its mean, if the reductions are that.
    moments: Option<Moments>,
    /// The sums of the subgroups between the two.
    pending: Option<Pending>,
}

fn check(program: &Program, mapping: &RowMapping) -> Result<(), LowerError> {
    let fail =
        |rule, detail: String| Err(LowerError { program: program.name.clone(), rule, detail });
    let RowMapping {
        lanes,
        subgroups,
        vector,
        unroll,
        accumulators,
        pack,
        cluster,
        split,
        batch,
        ..
    } = *mapping;
    if [lanes, subgroups, unroll, accumulators, pack, cluster, split, batch].contains(&0) {
        return fail(Rule::MappingRange, format!("{mapping:?} has a zero"));
    }
    if !matches!(vector, 1 | 2 | 4 | 8) {
        return fail(Rule::MappingRange, format!("vector {vector} isn't 1, 2, 4 or 8"));
    }
    if accumulators > unroll {
        let detail = format!("{accumulators} accumulators are more than unroll {unroll}");
        return fail(Rule::MappingRange, detail);
    }
    if subgroups > lanes {
        let detail = format!("{subgroups} partial results for {lanes} lanes");
        return fail(Rule::SubgroupsPerLane, detail);
    }
    if mapping.leader && (cluster == 1 || subgroups == 1) {
        let detail = format!("a leader among {subgroups} subgroups for {cluster} groups");
        return fail(Rule::MappingRange, detail);
    }
    if pack > 1 && mapping.stage {
        let detail = format!("{pack} programs of a group, and rows staged in shared memory");
        return fail(Rule::MappingRange, detail);
    }
    if pack > 1 && (subgroups > 1 || cluster > 1) {
        let detail =
            format!("{pack} programs of {subgroups} subgroups and {cluster} groups in one group");
        return fail(Rule::PackSingleSubgroup, detail);
    }
    Ok(())
}

/// Lowers a row program: one launch, or several where rows are split.
///
/// # Errors
/// The mapping breaks a rule, or the program has something that rows have no place for.
pub(super) fn lower(
    program: &Program,
    facts: &RowFacts,
    mapping: &RowMapping,
    options: &Options,
) -> Result<Vec<Kernel>, LowerError> {
    match mapping.split {
        1 => Ok(vec![lower_whole(program, facts, mapping, options)?]),
        _ => split::lower(program, facts, mapping, options),
    }
}

/// Lowers a row program to one launch.
fn lower_whole(
    program: &Program,
    facts: &RowFacts,
    mapping: &RowMapping,
    options: &Options,
) -> Result<Kernel, LowerError> {
    check(program, mapping)?;
    let beside = if options.pack == Pack::Beside { mapping.pack } else { 1 };
    let groups = mapping.subgroups * beside;
    let mut b = KernelBuilder::new(&program.name, mapping.lanes, groups);
    b.resident(mapping.resident);
    let variant = if mapping.cache { &facts.cache } else { &facts.reload };
    let mut rows = Rows::new(program, b, facts, variant, *mapping, options);
    rows.check_in_out()?;
    rows.hint();
    let origins = rows.cx.grid(mapping.programs())?;
    for (index, origin) in program.grid.iter().zip(&origins) {
        rows.cx.indices.insert(*index, *origin);
    }
    rows.enter_batch(facts)?;
    if mapping.cluster > 1 {
        rows.enter_cluster(facts)?;
        rows.body()?;
        return finish(rows, facts);
    }
    if mapping.pack == 1 {
        rows.subgroup = rows.cx.b.subgroup_id();
        rows.member = rows.subgroup;
        rows.body()?;
        return finish(rows, facts);
    }
    let (Some(index), Some(origin)) = (program.grid.last(), origins.last()) else {
        let detail = format!("{} programs in a group, and the grid has one", mapping.pack);
        return Err(rows.cx.error(Rule::MappingRange, detail));
    };
    let var = &program.indices[*index];
    let step = program.known(var.step).unwrap_or(1);
    if options.pack == Pack::InTurn {
        // All programs of the group in a loop; the last group may have fewer.
        rows.subgroup = rows.cx.b.subgroup_id();
        let extent = rows.cx.extent(var.extent);
        let end = rows.cx.b.add_int(*origin, (step * u64::from(mapping.pack)) as i64);
        let end = rows.cx.b.min(end, extent);
        let open = rows.cx.b.begin_for(*origin, end, step, 1, &[]);
        rows.cx.indices.insert(*index, open.index());
        rows.body()?;
        rows.cx.b.end_for(open, &[]);
        return finish(rows, facts);
    }
    // Every subgroup has a row of its own; those past the last row do nothing.
    let number = rows.cx.b.subgroup_id();
    let offset = rows.cx.b.mul_int(number, step as i64);
    let row = rows.cx.b.add(*origin, offset);
    rows.cx.indices.insert(*index, row);
    let extent = rows.cx.extent(var.extent);
    let inside = rows.cx.b.compare(MapOp::Lt, row, extent);
    let open = rows.cx.b.begin_if(inside);
    rows.body()?;
    rows.cx.b.end_if(open, &[]);
    finish(rows, facts)
}

/// The reductions whose elements may be combined in any order.
fn free_reductions<'a>(
    program: &'a Program,
    facts: &'a RowFacts,
) -> impl Iterator<Item = &'a ReductionFact> {
    facts.reductions.iter().filter(|r| {
        let order = OrderPolicy::UnorderedTree;
        matches!(&program.ops[r.op].op, ir::Op::Reduce { order: o, .. } if *o == order)
    })
}

/// The finished kernel, if it has as many bytes of shared memory and as many barriers as the
/// planner counts (its `rows::shared_bytes` and `rows::barriers`).
fn finish(rows: Rows<'_>, facts: &RowFacts) -> Result<Kernel, LowerError> {
    let program = rows.cx.program;
    let RowMapping { subgroups, cluster, .. } = rows.mapping;
    let sharers = u64::from(subgroups) * u64::from(cluster);
    let slots: Vec<u64> =
        free_reductions(program, facts).map(|r| r.dtype.accumulator().bytes()).collect();
    let start = u64::from(cluster > 1 && !slots.is_empty());
    let (bytes, barriers) = if sharers > 1 {
        let joined = u64::from(rows.exchanged().is_some());
        let meetings = slots.len() as u64 - joined;
        let leader = u64::from(rows.mapping.leader);
        (slots.iter().sum::<u64>() * sharers, meetings * (1 + leader) + start)
    } else {
        (0, 0)
    };
    let planned = ((bytes + rows.staged_bytes()) * u64::from(rows.mapping.batch), barriers);
    let kernel = rows.cx.b.finish();
    check_closed_form(program, &kernel, planned)?;
    Ok(kernel)
}

impl<'a> Rows<'a> {
    fn new(
        program: &'a Program,
        mut b: KernelBuilder,
        facts: &RowFacts,
        variant: &'a RowVariant,
        mapping: RowMapping,
        options: &Options,
    ) -> Self {
        let zero = b.int(0);
        let mut cx = Context::new(program, b);
        let columns = cx.extent(facts.columns);
        Rows {
            cx,
            mapping,
            variant,
            axis: facts.axis,
            columns,
            most_columns: program.max_size(facts.columns),
            subgroup: zero,
            member: zero,
            barrier: None,
            gather: None,
            outgoing: Vec::new(),
            start: None,
            join: options.join,
            tail: options.tail,
            in_blocks: options.sums == Sums::Blocks,
            others: Vec::new(),
            row: 0,
            common: HashSet::new(),
            copies: Vec::new(),
            moments: moments(program, facts),
            pending: None,
        }
    }
}

impl Rows<'_> {
    /// Declares that a cluster shares the program: it is the innermost dimension of the grid.
    fn enter_cluster(&mut self, facts: &RowFacts) -> Result<(), LowerError> {
        let program = self.cx.program;
        if program.grid.len() > 2 {
            let detail = format!(
                "the grid has {} dimensions and a cluster takes one more, a launch has three",
                program.grid.len()
            );
            return Err(self.cx.error(Rule::GridDimensions, detail));
        }
        let RowMapping { cluster, subgroups, .. } = self.mapping;
        let b = &mut self.cx.b;
        b.cluster(cluster);
        b.grid(Size::Const(cluster.into()), 1);
        let rank = b.cluster_rank();
        let first = b.mul_int(rank, subgroups.into());
        let own = b.subgroup_id();
        self.subgroup = b.add(first, own);
        self.member = own;
        if free_reductions(program, facts).next().is_some() {
            let start = b.cluster_barrier("start");
            b.barrier_arrive(start);
            self.start = Some(start);
        }
        Ok(())
    }

    fn body(&mut self) -> Result<(), LowerError> {
        self.read_in_out_scalars()?;
        self.stage()?;
        let mut ahead = self.ahead();
        for group in self.groups()? {
            self.run(&group, &mut ahead)?;
        }
        for row in 0..self.batch() {
            self.select(row);
            self.scalar_stores()?;
        }
        Ok(())
    }

    fn tensor_access(&self, tensor: ir::TensorId) -> ir::Access {
        self.cx.program.tensors[tensor].access
    }

    /// Tells the second-level cache what to keep of the tensors of which every row has a part.
    fn hint(&mut self) {
        if self.mapping.residency.is_normal() {
            return;
        }
        let program = self.cx.program;
        let shared: HashSet<ir::TensorId> = program
            .ops
            .iter()
            .filter(|(id, _)| is_shared_load(program, Some(*id)))
            .filter_map(|(_, op)| match &op.op {
                ir::Op::Load { tensor, .. } => Some(*tensor),
                _ => None,
            })
            .collect();
        let is_read = |id: ir::TensorId, tensor: &ir::Tensor| {
            tensor.access == ir::Access::In && !shared.contains(&id)
        };
        let inputs = program.tensors.iter().filter(|(id, t)| is_read(*id, t)).count() as u64;
        let read = match self.mapping.residency {
            Residency::Normal | Residency::Stream => Evict::First,
            Residency::Keep => Evict::Last,
            Residency::Part => Evict::Head(Residency::HEAD / inputs.max(1)),
        };
        for (id, tensor) in program.tensors.iter() {
            let evict = match tensor.access {
                ir::Access::Out => Evict::First,
                _ if is_read(id, tensor) => read,
                _ => Evict::Normal,
            };
            self.cx.evict(id, evict);
        }
    }

    /// A tensor that is read and written: its reads must be of the very element that is written,
    /// by the worker that writes it, in or before the domain that writes it.
    fn check_in_out(&self) -> Result<(), LowerError> {
        let program = self.cx.program;
        for (_, store) in program.ops.iter() {
            let ir::Op::Store { tensor, coords, .. } = &store.op else { continue };
            if self.tensor_access(*tensor) != ir::Access::InOut {
                continue;
            }
            let stored = self.variant.domains.iter().position(
                |d| matches!(d.kind, DomainKind::Store(op) if program.ops[op].op == store.op),
            );
            for (id, load) in program.ops.iter() {
                let ir::Op::Load { tensor: from, coords: at, .. } = &load.op else { continue };
                if from != tensor {
                    continue;
                }
                let late = self.variant.domains.iter().enumerate().any(|(i, d)| {
                    stored.is_some_and(|s| i > s)
                        && d.loads.iter().any(|v| self.cx.definitions.get(v) == Some(&id))
                });
                if at != coords || late {
                    let name = &program.tensors[*tensor].name;
                    let what = if late { "after its store" } else { "at another place" };
                    return Err(self
                        .cx
                        .error(Rule::InOutOrder, format!("`{name}` is written, and read {what}")));
                }
            }
        }
        Ok(())
    }

    /// Snapshots of single elements of tensors that are written later.
    fn read_in_out_scalars(&mut self) -> Result<(), LowerError> {
        let program = self.cx.program;
        for op in &program.body.ops {
            let op = &program.ops[*op];
            let ir::Op::Load { tensor, .. } = &op.op else { continue };
            let scalar = op.results.first().filter(|r| self.cx.axes(**r).is_empty());
            if let (ir::Access::InOut, Some(result)) = (self.tensor_access(*tensor), scalar) {
                self.cx.scalar(*result)?;
            }
        }
        Ok(())
    }

    /// Stores of one element per program, by lane 0 of the program's first subgroup.
    fn scalar_stores(&mut self) -> Result<(), LowerError> {
        let program = self.cx.program;
        let stores: Vec<ir::OpId> = program
            .body
            .ops
            .iter()
            .copied()
            .filter(|op| match &program.ops[*op].op {
                ir::Op::Store { value, .. } => self.cx.axes(*value).is_empty(),
                _ => false,
            })
            .collect();
        // What is stored is computed by all subgroups: a reduction has a barrier.
        for op in &stores {
            if let ir::Op::Store { value, .. } = &program.ops[*op].op {
                self.cx.scalar(*value)?;
            }
        }
        if stores.is_empty() {
            return Ok(());
        }
        let zero = self.cx.b.int(0);
        let first = self.cx.b.compare(MapOp::Eq, self.subgroup, zero);
        let open = (self.cx.b.known(first) != Some(1)).then(|| self.cx.b.begin_if(first));
        for op in stores {
            self.store(op, &mut Frame::scalar())?;
        }
        if let Some(open) = open {
            self.cx.b.end_if(open, &[]);
        }
        Ok(())
    }

    /// Evaluates and stores the elements at which the lanes stand.
    fn store(&mut self, op: ir::OpId, frame: &mut Frame) -> Result<(), LowerError> {
        let program = self.cx.program;
        let ir::Op::Store { tensor, coords, value, bounds } = &program.ops[op].op else {
            let detail = format!("operation {} of a store domain is no store", op.index());
            return Err(self.cx.error(Rule::Operation, detail));
        };
        let values = self.cx.eval(*value, frame)?;
        self.cx.write_tensor(frame, *tensor, coords, *bounds, &values)
    }
}
