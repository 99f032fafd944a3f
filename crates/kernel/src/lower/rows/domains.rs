//! Loops over the columns: which domains share one, and what a chunk does.

use std::collections::{HashMap, HashSet};

use tilewright_ir::DType;
use tilewright_ir::facts::{Domain, DomainKind};
use tilewright_ir::program as ir;
use tilewright_ir::program::OrderPolicy;
use tilewright_plan::problem::rows::ahead_loads;
use tilewright_plan::rows::slots;

use super::blocks::Blocks;
use super::reduce::Reduction;
use super::{MAX_SLOTS, Rows};
use crate::kernel::*;
use crate::lower::access::{Frame, Pos};
use crate::lower::eval::operands;
use crate::lower::{LowerError, Rule, Source, Tail};

/// Domains that run in one loop.
pub(super) struct Group {
    domains: Vec<Domain>,
    /// For every row, the private array of each tile that a later loop reads.
    stripes: Vec<HashMap<ir::ValueId, PrivateId>>,
}

impl Group {
    /// One loop that keeps nothing.
    pub(super) fn plain(domains: &[Domain]) -> Group {
        Group { domains: domains.to_vec(), stripes: Vec::new() }
    }
}

impl Rows<'_> {
    /// The value that a domain evaluates.
    pub(super) fn root(&self, kind: &DomainKind) -> Result<ir::ValueId, LowerError> {
        match kind {
            DomainKind::Copy(value) | DomainKind::Materialize(value) => Ok(*value),
            DomainKind::Reduce(op) | DomainKind::Store(op) => match &self.cx.program.ops[*op].op {
                ir::Op::Reduce { value, .. } | ir::Op::Store { value, .. } => Ok(*value),
                _ => {
                    let detail = format!("{kind:?} is neither a reduction nor a store");
                    Err(self.cx.error(Rule::Operation, detail))
                }
            },
        }
    }

    /// Whether the expression of a domain, down to the tiles that are kept, uses a result of
    /// these reductions.
    fn uses(
        &self,
        kind: &DomainKind,
        kept: &HashSet<ir::ValueId>,
        results: &HashSet<ir::ValueId>,
    ) -> Result<bool, LowerError> {
        let root = self.root(kind)?;
        let mut open = vec![root];
        let mut seen = HashSet::new();
        while let Some(value) = open.pop() {
            if results.contains(&value) {
                return Ok(true);
            }
            if !seen.insert(value) || (value != root && kept.contains(&value)) {
                continue;
            }
            if let Some(op) = self.cx.definitions.get(&value) {
                open.extend(operands(&self.cx.program.ops[*op].op));
            }
        }
        Ok(false)
    }

    /// Whether a domain needs its elements in order, one after another.
    fn ordered(&self, kind: &DomainKind) -> bool {
        let DomainKind::Reduce(op) = kind else { return false };
        match &self.cx.program.ops[*op].op {
            ir::Op::Reduce { order, .. } => *order != OrderPolicy::UnorderedTree,
            _ => false,
        }
    }

    /// Splits the domains into loops: one each, or with `fuse` as many as have what they need.
    pub(super) fn loops(&self) -> Result<Vec<Vec<Domain>>, LowerError> {
        let mut groups: Vec<Vec<Domain>> = Vec::new();
        let mut kept: HashSet<ir::ValueId> = HashSet::new();
        let mut pending: HashSet<ir::ValueId> = HashSet::new();
        let mut closed = true;
        for domain in &self.variant.domains {
            let ordered = self.ordered(&domain.kind);
            let join = self.mapping.fuse
                && !closed
                && !ordered
                && !self.uses(&domain.kind, &kept, &pending)?;
            if !join {
                groups.push(Vec::new());
                pending.clear();
            }
            closed = ordered;
            match &domain.kind {
                DomainKind::Copy(v) | DomainKind::Materialize(v) => {
                    kept.insert(*v);
                }
                DomainKind::Reduce(op) => pending.extend(&self.cx.program.ops[*op].results),
                DomainKind::Store(_) => {}
            }
            if let Some(group) = groups.last_mut() {
                group.push(domain.clone());
            }
        }
        Ok(groups)
    }

    /// The loops with the private arrays of what they keep.
    pub(super) fn groups(&mut self) -> Result<Vec<Group>, LowerError> {
        let groups = self.loops()?;
        let mut result = Vec::new();
        for i in 0..groups.len() {
            let mut stripes = Vec::new();
            for _ in 0..self.batch() {
                stripes.push(self.stripes(&groups[i], &groups[i + 1..])?);
            }
            result.push(Group { domains: groups[i].clone(), stripes });
        }
        Ok(result)
    }

    /// Declares private arrays for the tiles of a group that later loops read.
    fn stripes(
        &mut self,
        group: &[Domain],
        later: &[Vec<Domain>],
    ) -> Result<HashMap<ir::ValueId, PrivateId>, LowerError> {
        let mut arrays = HashMap::new();
        if self.mapping.stage {
            return Ok(arrays);
        }
        for domain in group {
            let (DomainKind::Copy(value) | DomainKind::Materialize(value)) = &domain.kind else {
                continue;
            };
            let read = later.iter().flatten().any(|d| d.stripes.contains(value));
            let dtype = self.cx.dtype(*value);
            // A condition has no storage: it is computed again where it is read.
            if !read || dtype == DType::Bool {
                continue;
            }
            if let Some(array) = self.stripe(*value)? {
                arrays.insert(*value, array);
            }
        }
        Ok(arrays)
    }

    /// Declares the private array of a tile; none without columns, where nothing is kept.
    fn stripe(&mut self, value: ir::ValueId) -> Result<Option<PrivateId>, LowerError> {
        let len = slots(self.most_columns, self.mapping.workers(), self.mapping.vector.into());
        if len == 0 {
            return Ok(None);
        }
        let name = self.cx.program.values[value].name.clone();
        if len > MAX_SLOTS {
            let detail = format!(
                "tile `%{name}` takes {len} elements per lane: bind the column dimension, \
                 or use more workers"
            );
            return Err(self.cx.error(Rule::ExtentKnown, detail));
        }
        let dtype = self.cx.dtype(value);
        Ok(Some(self.cx.b.private(&name, dtype, len)))
    }

    /// What the mapping asks to load ahead of the first reduction's end.
    pub(super) fn ahead(&self) -> Vec<ir::ValueId> {
        match self.mapping.ahead {
            true => ahead_loads(self.cx.program, self.variant),
            false => Vec::new(),
        }
    }

    /// Loads tiles into stripes, all columns.
    fn load_ahead(&mut self, values: Vec<ir::ValueId>) -> Result<(), LowerError> {
        let mut group = Group { domains: Vec::new(), stripes: Vec::new() };
        let mut stripes = HashMap::new();
        for value in values {
            self.cx.prepare(value)?;
            if let Some(array) = self.stripe(value)? {
                stripes.insert(value, array);
                group.domains.push(Domain {
                    kind: DomainKind::Copy(value),
                    loads: vec![value],
                    stripes: Vec::new(),
                    scalars: Vec::new(),
                });
            }
        }
        // Only a single row loads ahead.
        group.stripes.push(stripes);
        self.sweep(&group, &[])?;
        self.keep(&group);
        Ok(())
    }

    /// Runs the domains of a group over all columns. Before a reduction, what is to be loaded ahead
    /// of it is.
    pub(super) fn run(
        &mut self,
        group: &Group,
        ahead: &mut Vec<ir::ValueId>,
    ) -> Result<(), LowerError> {
        for row in 0..self.batch() {
            self.select(row);
            for domain in &group.domains {
                let root = self.root(&domain.kind)?;
                self.cx.prepare(root)?;
            }
        }
        if let [domain] = &group.domains[..]
            && let (DomainKind::Reduce(op), true) = (&domain.kind, self.ordered(&domain.kind))
        {
            return self.fold_in_order(*op);
        }
        let reductions = self.reductions(&group.domains)?;
        // Ahead of the folds too: those wait for what they fold, and hold up what follows.
        if !reductions.is_empty() && !ahead.is_empty() {
            self.load_ahead(std::mem::take(ahead))?;
        }
        self.arrive();
        let first = self.sweep(group, &reductions)?;
        self.keep(group);
        let all = reductions.len() * self.batch();
        for (i, reduction) in reductions.iter().enumerate() {
            // Of every row, the accumulators of all sets.
            let parts: Vec<Vec<ValueId>> = (0..self.batch())
                .map(|row| row * reductions.len() + i)
                .map(|at| first.iter().copied().skip(at).step_by(all).collect())
                .collect();
            match self.exchanged() {
                Some(moments) if self.only(&reductions, moments.sum) => {
                    self.open_moments(reduction, &parts);
                }
                Some(moments) if self.only(&reductions, moments.squares) => {
                    let sum = self.reduction(moments.sum)?;
                    self.close_moments(moments, [&sum, reduction], &parts)?;
                }
                _ => self.finish_reduction(reduction, &parts)?,
            }
        }
        Ok(())
    }

    /// Later loops find the group's tiles in their stripes.
    fn keep(&mut self, group: &Group) {
        for (row, stripes) in group.stripes.iter().enumerate() {
            self.select(row);
            for (value, array) in stripes {
                self.cx.sources.insert(*value, Source::Stripe(*array));
            }
        }
    }

    /// The loops of a group: the accumulators of its reductions, set by set, and the sums of its
    /// blocks as another set where there are any.
    pub(super) fn sweep(
        &mut self,
        group: &Group,
        reductions: &[Reduction],
    ) -> Result<Vec<ValueId>, LowerError> {
        let sets = if reductions.is_empty() { 1 } else { u64::from(self.mapping.accumulators) };
        let chunk = self.mapping.workers() * u64::from(self.mapping.vector);
        let zero = self.cx.b.int(0);
        let size = self.cx.b.int(chunk as i64);
        let full = self.cx.b.div(self.columns, size);
        // One accumulator per set, row and reduction, set by set.
        let one: Vec<ValueId> =
            reductions.iter().map(|r| self.cx.b.literal(r.identity, r.dtype)).collect();
        let one = one.repeat(self.batch());
        let (mut done, mut totals) = (zero, Vec::new());
        let levels = self.block_levels(reductions, sets);
        if levels > 0 {
            let blocks = Blocks { group, reductions, sets, one: &one };
            (done, totals) = self.whole_blocks(&blocks, levels, full)?;
        }
        let mut partial = one.repeat(sets as usize);
        if sets > 1 {
            let per_trip = self.cx.b.int(sets as i64);
            let trips = self.cx.b.div(full, per_trip);
            let end = self.cx.b.mul(trips, per_trip);
            partial = self.chunks(group, reductions, (done, end, sets), partial)?;
            done = end;
        }
        // What is left of the full chunks, and the partial one, go to the first set.
        let rest = partial.split_off(one.len());
        let mut first = self.chunks(group, reductions, (done, full, 1), partial)?;
        if self.cx.b.known(self.columns).is_none_or(|n| !(n as u64).is_multiple_of(chunk)) {
            let begin = self.cx.b.mul(full, size);
            let left = self.cx.b.sub(self.columns, begin);
            first = match (self.tail, self.cx.b.known(left)) {
                (Tail::Packs, Some(left)) if self.batch() == 1 => {
                    self.tail_packs(group, reductions, full, left, &first)?
                }
                _ => self.chunk(group, reductions, full, Some(left), &first)?,
            };
        }
        first.extend(rest);
        first.extend(totals);
        Ok(first)
    }

    /// A loop over full chunks, `step` of them a trip, each with a set of accumulators.
    pub(super) fn chunks(
        &mut self,
        group: &Group,
        reductions: &[Reduction],
        (lo, hi, step): (ValueId, ValueId, u64),
        partial: Vec<ValueId>,
    ) -> Result<Vec<ValueId>, LowerError> {
        // Stripes in registers make straight-line code of a loop; so does staging, that the loads
        // of one chunk don't wait for those of the chunk before.
        let unroll = match self.mapping.stage {
            true => 0,
            false => (self.mapping.unroll / step as u32).max(1),
        };
        let trips = self.cx.begin((lo, hi, step), unroll, &partial);
        if trips.is_never() {
            return Ok(partial);
        }
        let inner = trips.inner.clone();
        let next = self.trip(group, reductions, trips.index, step, &inner)?;
        Ok(self.cx.end(trips, next))
    }

    fn trip(
        &mut self,
        group: &Group,
        reductions: &[Reduction],
        first: ValueId,
        step: u64,
        partial: &[ValueId],
    ) -> Result<Vec<ValueId>, LowerError> {
        let mut next = Vec::new();
        let all = reductions.len() * self.batch();
        for k in 0..step as usize {
            let chunk = self.cx.b.add_int(first, k as i64);
            let set = &partial[k * all..(k + 1) * all];
            next.extend(self.chunk(group, reductions, chunk, None, set)?);
        }
        Ok(next)
    }

    /// One chunk of every row: W·V elements, or the first `left` of them. Returns the new
    /// accumulators.
    pub(super) fn chunk(
        &mut self,
        group: &Group,
        reductions: &[Reduction],
        chunk: ValueId,
        left: Option<ValueId>,
        partial: &[ValueId],
    ) -> Result<Vec<ValueId>, LowerError> {
        let mut next = Vec::new();
        let mut common = HashMap::new();
        for row in 0..self.batch() {
            self.select(row);
            let mut frame = self.chunk_frame(chunk, left);
            frame.memo.clone_from(&common);
            let own = &partial[row * reductions.len()..(row + 1) * reductions.len()];
            next.extend(self.domains(group, reductions, &mut frame, own)?);
            if row == 0 {
                common = frame.memo;
                common.retain(|value, _| self.common.contains(value));
            }
        }
        Ok(next)
    }

    /// Where the lanes stand in a chunk, of which `left` elements are in the row if not all are.
    pub(super) fn chunk_frame(&mut self, chunk: ValueId, left: Option<ValueId>) -> Frame {
        let vector = i64::from(self.mapping.vector);
        let pack = vector * i64::from(self.mapping.lanes);
        let b = &mut self.cx.b;
        let skipped = b.mul_int(self.subgroup, pack);
        let begin = b.mul_int(chunk, self.mapping.workers() as i64 * vector);
        let begin = b.add(begin, skipped);
        let mut frame = Frame::at(Vec::new(), self.mapping.vector);
        frame.axes.extend(self.axis.map(|axis| (axis, Pos::Lanes(begin))));
        frame.slot = Some(b.mul_int(chunk, vector));
        frame.limit = left.map(|left| b.sub(left, skipped));
        frame.together = left.and_then(|left| b.known(left)).is_some_and(|n| n % vector == 0);
        frame
    }

    /// What the group's domains do with the elements at which the lanes stand.
    pub(super) fn domains(
        &mut self,
        group: &Group,
        reductions: &[Reduction],
        frame: &mut Frame,
        partial: &[ValueId],
    ) -> Result<Vec<ValueId>, LowerError> {
        let mut next = Vec::new();
        let mut pending = reductions.iter().zip(partial);
        for domain in &group.domains {
            match &domain.kind {
                DomainKind::Copy(value) | DomainKind::Materialize(value) => {
                    let staged = self.cx.sources.get(value).copied();
                    let values = match staged {
                        Some(Source::Staged(_)) => self.cx.eval(*value, frame)?,
                        _ => self.cx.compute(*value, frame)?,
                    };
                    let stripes = group.stripes.get(self.row);
                    if let Some(array) = stripes.and_then(|s| s.get(value)) {
                        self.cx.write_stripe(*array, frame, &values);
                    }
                    frame.memo.insert(*value, values);
                }
                DomainKind::Reduce(_) => {
                    if let Some((reduction, partial)) = pending.next() {
                        next.push(self.fold_chunk(reduction, frame, *partial)?);
                    }
                }
                DomainKind::Store(op) => self.store(*op, frame)?,
            }
        }
        Ok(next)
    }
}
