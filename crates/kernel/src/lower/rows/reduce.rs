//! Reductions of a row: local folds, collectives, partial results in shared memory, and folds
//! that must keep an order.

use tilewright_ir::DType;
use tilewright_ir::facts::{Domain, DomainKind};
use tilewright_ir::program as ir;
use tilewright_ir::program::{MapOp, OrderPolicy, ReduceOp};
use tilewright_plan::mapping::RowMapping;

use super::Rows;
use crate::kernel::*;
use crate::lower::access::{Frame, Pos};
use crate::lower::{Join, LowerError, Rule};

/// A reduction of a loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reduction {
    op: ReduceOp,
    value: ir::ValueId,
    result: ir::ValueId,
    /// Type of the partial results: 16-bit types accumulate in f32.
    pub dtype: DType,
    pub identity: f64,
}

impl Reduction {
    /// The value that holds the result.
    pub(super) fn result(&self) -> ir::ValueId {
        self.result
    }

    /// What folds two elements.
    pub(super) fn fold(&self) -> ReduceOp {
        self.op
    }
}

/// The terms of a chunk, one or V each.
enum Terms {
    Values(Vec<ValueId>),
    Products(Vec<ValueId>, Vec<ValueId>),
}

/// Element `v` of one or V values.
fn at(values: &[ValueId], v: u32) -> ValueId {
    values[(v as usize).min(values.len() - 1)]
}

impl Rows<'_> {
    pub(super) fn reduction(&self, op: ir::OpId) -> Result<Reduction, LowerError> {
        let data = &self.cx.program.ops[op];
        match (&data.op, data.results.first()) {
            (ir::Op::Reduce { op, value, .. }, Some(result)) => {
                let dtype = self.cx.dtype(*value).accumulator();
                let identity = op.identity(dtype);
                Ok(Reduction { op: *op, value: *value, result: *result, dtype, identity })
            }
            _ => Err(self.cx.error(Rule::Operation, "a reduction domain has no reduction")),
        }
    }

    /// The reductions among some domains, in order.
    pub(super) fn reductions(&self, domains: &[Domain]) -> Result<Vec<Reduction>, LowerError> {
        domains
            .iter()
            .filter_map(|d| match d.kind {
                DomainKind::Reduce(op) => Some(self.reduction(op)),
                _ => None,
            })
            .collect()
    }

    /// Folds the lanes' elements of a chunk, in order, into their accumulators.
    pub(super) fn fold_chunk(
        &mut self,
        reduction: &Reduction,
        frame: &mut Frame,
        partial: ValueId,
    ) -> Result<ValueId, LowerError> {
        let terms = self.terms(reduction, frame)?;
        let Some(limit) = frame.limit else {
            return Ok(self.fold_pack(reduction, frame.vector, &terms, partial));
        };
        if frame.together {
            let next = self.fold_pack(reduction, frame.vector, &terms, partial);
            return Ok(self.if_below(frame.vector, (0, limit), next, partial));
        }
        let mut partial = partial;
        for v in 0..frame.vector {
            let next = self.fold_element(reduction, v, &terms, partial);
            partial = self.if_below(frame.vector, (v, limit), next, partial);
        }
        Ok(partial)
    }

    /// Folds all elements that a lane has of a chunk into its accumulator.
    fn fold_pack(
        &mut self,
        reduction: &Reduction,
        vector: u32,
        terms: &Terms,
        partial: ValueId,
    ) -> ValueId {
        if let (Terms::Values(values), true) = (terms, vector > 1) {
            // A whole pack folds on its own first, so that the chain of chunks stays short.
            let pack =
                (0..vector).map(|v| self.cx.convert(at(values, v), reduction.dtype)).collect();
            let pack = self.tree(reduction, pack);
            return self.cx.combine(reduction.op, partial, pack);
        }
        (0..vector).fold(partial, |partial, v| self.fold_element(reduction, v, terms, partial))
    }

    /// Folds element `v` of a lane's vector into its accumulator.
    fn fold_element(
        &mut self,
        reduction: &Reduction,
        v: u32,
        terms: &Terms,
        partial: ValueId,
    ) -> ValueId {
        match terms {
            Terms::Products(a, b) => self.cx.b.fma(at(a, v), at(b, v), partial),
            Terms::Values(values) => {
                let value = self.cx.convert(at(values, v), reduction.dtype);
                self.cx.combine(reduction.op, partial, value)
            }
        }
    }

    /// `next` where the lane's element `v` is below a limit, else `partial`.
    fn if_below(
        &mut self,
        vector: u32,
        (v, limit): (u32, ValueId),
        next: ValueId,
        partial: ValueId,
    ) -> ValueId {
        let inside = self.cx.below(vector, v, limit);
        self.cx.b.map(ir::MapOp::Select, &[inside, next, partial])
    }

    /// What a chunk adds to a reduction. A sum in any order of products that nothing else needs
    /// takes each product with the addition, rounded once.
    fn terms(&mut self, reduction: &Reduction, frame: &mut Frame) -> Result<Terms, LowerError> {
        let program = self.cx.program;
        let value = reduction.value;
        let product = self.cx.definitions.get(&value).map(|op| &program.ops[*op].op);
        if let (ReduceOp::Add, Some(ir::Op::Map { op: ir::MapOp::Mul, args })) =
            (reduction.op, product)
            && matches!(reduction.dtype, DType::F32 | DType::F64)
            && self.cx.dtype(value) == reduction.dtype
            && !frame.memo.contains_key(&value)
            && !self.cx.sources.contains_key(&value)
            && let [a, b] = args.as_slice()
        {
            return Ok(Terms::Products(self.cx.eval(*a, frame)?, self.cx.eval(*b, frame)?));
        }
        Ok(Terms::Values(self.cx.eval(value, frame)?))
    }

    /// Combines, for every row, the sets of accumulators, the lanes, and the subgroups, and
    /// remembers the result, which every worker then has.
    pub(super) fn finish_reduction(
        &mut self,
        reduction: &Reduction,
        parts: &[Vec<ValueId>],
    ) -> Result<(), LowerError> {
        let collective = Collective::Reduce(reduction.op);
        let mut totals = Vec::new();
        for parts in parts {
            let own = self.tree(reduction, parts.clone());
            totals.push(self.cx.b.collective(collective, own));
        }
        if self.mapping.cluster > 1 {
            totals = self.join_cluster(reduction, &totals)?;
        } else if self.mapping.subgroups > 1 {
            totals = self.join_group(reduction, &totals);
        }
        for (row, total) in totals.into_iter().enumerate() {
            self.select(row);
            self.finish(reduction, total);
        }
        Ok(())
    }

    /// Combines the sets of accumulators, the lanes and the subgroups of one row's group: the total,
    /// in the type of partial results.
    pub(super) fn join_row(&mut self, reduction: &Reduction, parts: &[ValueId]) -> ValueId {
        let own = self.tree(reduction, parts.to_vec());
        let total = self.cx.b.collective(Collective::Reduce(reduction.op), own);
        match self.mapping.subgroups {
            1 => total,
            _ => self.join_group(reduction, &[total]).first().copied().unwrap_or(total),
        }
    }

    /// Declares shared memory for the partial results of every row: one row of the buffer each.
    fn partials(&mut self, reduction: &Reduction, sharers: u64) -> SharedId {
        let name = self.cx.program.values[reduction.result].name.clone();
        let rows = u64::from(self.mapping.batch);
        self.cx.b.shared(&name, reduction.dtype, rows, sharers, Layout::Plain)
    }

    /// Folds the partial results of a group's subgroups.
    fn join_group(&mut self, reduction: &Reduction, totals: &[ValueId]) -> Vec<ValueId> {
        let subgroups = u64::from(self.mapping.subgroups);
        let partials = self.leave_in_group(reduction, totals);
        self.meet();
        let mut out = Vec::new();
        for begin in (0..totals.len() as u64).map(|row| row * subgroups) {
            out.push(match self.join {
                Join::Collective => self.fold_spread(reduction, partials, begin, subgroups),
                Join::Lane => {
                    // Whole accesses of at most 16 bytes; the buffer is aligned to that.
                    let wide = (16 / reduction.dtype.bytes().max(1)).min(4);
                    let wide = if subgroups.is_multiple_of(wide) { wide } else { 1 };
                    let memory = Memory::Shared(partials);
                    let b = &mut self.cx.b;
                    let mut parts = Vec::new();
                    for first in (0..subgroups).step_by(wide as usize) {
                        let at = b.int((begin + first) as i64);
                        parts.extend(b.load(Place::uniform(memory, at), wide as u32, None));
                    }
                    self.tree(reduction, parts)
                }
            });
        }
        out
    }

    /// Folds the partial results of all subgroups of a cluster: each is written to the shared
    /// memory of every group, lane `l` writing to the group of rank `l`, by its subgroup or by the
    /// leader of its group, and behind the cluster's barrier each group folds its copies.
    fn join_cluster(
        &mut self,
        reduction: &Reduction,
        totals: &[ValueId],
    ) -> Result<Vec<ValueId>, LowerError> {
        let partials = self.leave_in_cluster(reduction, totals)?;
        self.meet();
        let sharers = u64::from(self.mapping.subgroups) * u64::from(self.mapping.cluster);
        let rows = (0..totals.len() as u64).map(|row| row * sharers);
        Ok(rows.map(|begin| self.fold_spread(reduction, partials, begin, sharers)).collect())
    }

    /// Leaves every row's partial result where all workers of the row find it behind the barrier.
    pub(super) fn share(
        &mut self,
        reduction: &Reduction,
        totals: &[ValueId],
    ) -> Result<SharedId, LowerError> {
        match self.mapping.cluster {
            1 => Ok(self.leave_in_group(reduction, totals)),
            _ => self.leave_in_cluster(reduction, totals),
        }
    }

    fn leave_in_group(&mut self, reduction: &Reduction, totals: &[ValueId]) -> SharedId {
        let subgroups = u64::from(self.mapping.subgroups);
        let partials = self.partials(reduction, subgroups);
        let b = &mut self.cx.b;
        let one = b.int(1);
        for (row, total) in totals.iter().enumerate() {
            let at = b.add_int(self.member, row as i64 * subgroups as i64);
            let place = Place::uniform(Memory::Shared(partials), at);
            b.store(place, &[*total], Some(Guard::count(one, 0.0)));
        }
        partials
    }

    fn leave_in_cluster(
        &mut self,
        reduction: &Reduction,
        totals: &[ValueId],
    ) -> Result<SharedId, LowerError> {
        let lanes = u64::from(self.mapping.lanes);
        let groups = u64::from(self.mapping.cluster);
        let sharers = u64::from(self.mapping.subgroups) * groups;
        if groups > lanes {
            let detail = format!("{groups} groups of a cluster for {lanes} lanes");
            return Err(self.cx.error(Rule::SubgroupsPerLane, detail));
        }
        let partials = self.partials(reduction, sharers);
        let b = &mut self.cx.b;
        if self.mapping.leader {
            let one = b.int(1);
            for (row, total) in totals.iter().enumerate() {
                let at = b.add_int(self.subgroup, row as i64 * sharers as i64);
                let place = Place::uniform(Memory::Shared(partials), at);
                b.store(place, &[*total], Some(Guard::count(one, 0.0)));
            }
            let own = u64::from(self.mapping.subgroups);
            let most = 16 / reduction.dtype.bytes().max(1);
            let wide = [4, 2].into_iter().find(|w| *w <= most && own.is_multiple_of(*w));
            self.outgoing.push((partials, wide.unwrap_or(1) as u32));
            return Ok(partials);
        }
        // Nobody writes to a group that hasn't started.
        if let Some(start) = self.start.take() {
            b.barrier_wait(start);
        }
        let count = b.int(groups as i64);
        let each = sharers as i64 * totals.len() as i64;
        for (row, total) in totals.iter().enumerate() {
            let at = b.add_int(self.subgroup, row as i64 * sharers as i64);
            let everywhere = Place::strided(Memory::Cluster(partials), at, each);
            let guard = (groups != lanes).then(|| Guard::count(count, 0.0));
            b.store(everywhere, &[*total], guard);
        }
        Ok(partials)
    }

    /// The leader of every group takes what its subgroups left to the other groups of the cluster.
    fn send(&mut self) {
        let outgoing = std::mem::take(&mut self.outgoing);
        if outgoing.is_empty() {
            return;
        }
        let RowMapping { subgroups, cluster, batch, .. } = self.mapping;
        let b = &mut self.cx.b;
        // Nobody writes to a group that hasn't started.
        if let Some(start) = self.start.take() {
            b.barrier_wait(start);
        }
        let gather = *self.gather.get_or_insert_with(|| b.group_barrier("gather"));
        b.barrier(gather);
        let zero = b.int(0);
        let leads = b.compare(MapOp::Eq, self.member, zero);
        let first = b.sub(self.subgroup, self.member);
        let open = b.begin_if(leads);
        // Lane `l` writes to the group of rank `l`, but none to its own, which the others read.
        let (lane, rank, end) = (b.lane(), b.cluster_rank(), b.int(cluster.into()));
        let (others, inside) = (b.compare(MapOp::Ne, lane, rank), b.compare(MapOp::Lt, lane, end));
        let to = b.both(Some(others), Some(inside));
        let sharers = i64::from(subgroups) * i64::from(cluster);
        for (partials, wide) in outgoing {
            let each = sharers * i64::from(batch);
            for row in 0..i64::from(batch) {
                for piece in (0..i64::from(subgroups)).step_by(wide as usize) {
                    let at = b.add_int(first, row * sharers + piece);
                    let values = b.load(Place::uniform(Memory::Shared(partials), at), wide, None);
                    let everywhere = Place::strided(Memory::Cluster(partials), at, each);
                    b.store(everywhere, &values, to.map(|to| Guard::mask(to, 0.0)));
                }
            }
        }
        b.end_if(open, &[]);
    }

    /// Waits for all workers of the row.
    pub(super) fn meet(&mut self) {
        self.send();
        let b = &mut self.cx.b;
        let barrier = match self.barrier {
            Some(barrier) => barrier,
            None if self.mapping.cluster > 1 => b.cluster_barrier("all"),
            None => b.group_barrier("all"),
        };
        self.barrier = Some(barrier);
        b.barrier(barrier);
    }

    /// Reads the partial results of all `sharers` subgroups, lane by lane: the values, each with the
    /// number of lanes that have one where not all do. The others read the identity.
    pub(super) fn spread(
        &mut self,
        reduction: &Reduction,
        partials: SharedId,
        begin: u64,
        sharers: u64,
    ) -> Vec<(ValueId, Option<u64>)> {
        let lanes = u64::from(self.mapping.lanes);
        // Whole accesses of as many elements as all lanes have, at most 16 bytes.
        let most = 16 / reduction.dtype.bytes().max(1);
        let wide = [4, 2].into_iter().find(|w| *w <= most && sharers.is_multiple_of(lanes * w));
        let wide = wide.unwrap_or(1);
        let b = &mut self.cx.b;
        let mut parts = Vec::new();
        for first in (0..sharers).step_by((lanes * wide) as usize) {
            let at = b.int((begin + first) as i64);
            let left = b.int((sharers - first) as i64);
            let partial = (sharers - first < lanes).then_some(sharers - first);
            let guard = partial.map(|_| Guard::count(left, reduction.identity));
            let place = Place::strided(Memory::Shared(partials), at, wide as i64);
            parts.extend(b.load(place, wide as u32, guard).into_iter().map(|v| (v, partial)));
        }
        parts
    }

    fn fold_spread(
        &mut self,
        reduction: &Reduction,
        partials: SharedId,
        begin: u64,
        sharers: u64,
    ) -> ValueId {
        let parts = self.spread(reduction, partials, begin, sharers);
        let own = self.tree(reduction, parts.into_iter().map(|(value, _)| value).collect());
        self.cx.b.collective(Collective::Reduce(reduction.op), own)
    }

    /// Folds values pairwise, neighbours first. There is at least one.
    pub(super) fn tree(&mut self, reduction: &Reduction, mut parts: Vec<ValueId>) -> ValueId {
        while parts.len() > 1 {
            parts = parts
                .chunks(2)
                .map(|pair| match pair {
                    [a, b] => self.cx.combine(reduction.op, *a, *b),
                    _ => pair[0],
                })
                .collect();
        }
        parts[0]
    }

    pub(super) fn finish(&mut self, reduction: &Reduction, total: ValueId) {
        let dtype = self.cx.dtype(reduction.result);
        let total = self.cx.convert(total, dtype);
        self.cx.scalars.insert(reduction.result, total);
    }

    /// A reduction that states an order: every lane folds all elements one after another. Slow,
    /// and exactly what was asked for. An ordered tree may be this chain.
    pub(super) fn fold_in_order(&mut self, op: ir::OpId) -> Result<(), LowerError> {
        let reduction = self.reduction(op)?;
        let backwards = matches!(
            self.cx.program.ops[op].op,
            ir::Op::Reduce { order: OrderPolicy::FoldRight, .. }
        );
        let (zero, columns) = (self.cx.b.int(0), self.columns);
        let identity = self.cx.b.literal(reduction.identity, reduction.dtype);
        let open = self.cx.b.begin_for(zero, columns, 1, 1, &[identity]);
        let (index, partial) = (open.index(), open.inner()[0]);
        let element = if backwards {
            let last = self.cx.b.add_int(columns, -1);
            self.cx.b.sub(last, index)
        } else {
            index
        };
        let mut frame = Frame::at(Vec::new(), 1);
        frame.axes.extend(self.axis.map(|axis| (axis, Pos::Uniform(element))));
        let value = self.cx.eval(reduction.value, &mut frame)?[0];
        let value = self.cx.convert(value, reduction.dtype);
        let next = if backwards {
            self.cx.combine(reduction.op, value, partial)
        } else {
            self.cx.combine(reduction.op, partial, value)
        };
        let results = self.cx.b.end_for(open, &[next]);
        self.finish(&reduction, results[0]);
        Ok(())
    }
}
