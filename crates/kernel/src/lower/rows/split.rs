//! Rows over the groups of several launches, for few, very long rows.
//!
//! Each loop over the columns is a launch of its own. Group `g` of a row's G groups leaves the
//! partial result of each of its loop's reductions in scratch, element `row·G + g`; every subgroup
//! of a later launch that needs the result folds all G, lane by lane and then over the lanes. So
//! the order of a fold is fixed, and nobody waits for another group. Nothing is kept between
//! launches: tiles are computed again from the inputs.

use std::collections::HashSet;

use tilewright_ir::Program;
use tilewright_ir::entity::Id;
use tilewright_ir::facts::{Domain, DomainKind, Fact, RowFacts, RowVariant};
use tilewright_ir::program as ir;
use tilewright_ir::program::{Access, MapOp};
use tilewright_plan::mapping::RowMapping;

use super::domains::Group;
use super::reduce::Reduction;
use super::{Rows, check, free_reductions};
use crate::builder::KernelBuilder;
use crate::kernel::*;
use crate::lower::eval::operands;
use crate::lower::{LowerError, Options, Rule};

/// What a launch does.
struct Part<'a> {
    /// Domains of its loop; none in a launch that only stores results of whole rows.
    domains: &'a [Domain],
    /// Whether it stores the results of whole rows.
    scalars: bool,
    /// Groups per row.
    groups: u32,
}

/// Lowers a row program whose mapping has several groups a row and no cluster.
///
/// # Errors
/// The mapping breaks a rule, a reduction has a stated order, or the program has something that
/// rows over several launches have no place for.
pub(super) fn lower(
    program: &Program,
    facts: &RowFacts,
    mapping: &RowMapping,
    options: &Options,
) -> Result<Vec<Kernel>, LowerError> {
    check(program, mapping)?;
    let fail = |rule, detail: &str| {
        Err(LowerError { program: program.name.clone(), rule, detail: detail.to_string() })
    };
    let shared = mapping.cluster > 1 || mapping.pack > 1 || mapping.batch > 1;
    if shared || mapping.cache || mapping.ahead || mapping.stage {
        return fail(Rule::MappingRange, "rows over several launches keep and share nothing");
    }
    if free_reductions(program, facts).count() != facts.reductions.len() {
        return fail(Rule::UnorderedReduction, "a reduction with a stated order");
    }
    let roots = |d: &&Domain| matches!(d.kind, DomainKind::Reduce(_) | DomainKind::Store(_));
    let domains: Vec<Domain> = facts.reload.domains.iter().filter(roots).cloned().collect();
    let payload = Fact::Unknown("nothing is kept".to_string());
    let variant = RowVariant { domains, payload };
    check_in_out(program, &variant)?;

    let plain = |groups| RowMapping { split: groups, ..*mapping };
    let builder = KernelBuilder::new(&program.name, mapping.lanes, mapping.subgroups);
    let rows = Rows::new(program, builder, facts, &variant, plain(1), options);
    let loops = rows.loops()?;
    let stores_results = program.body.ops.iter().any(|op| match &program.ops[*op].op {
        ir::Op::Store { value, .. } => program.values[*value].ty.axes.is_empty(),
        _ => false,
    });
    let reduces =
        |loop_: &Vec<Domain>| loop_.iter().any(|d| matches!(d.kind, DomainKind::Reduce(_)));
    let mut parts: Vec<Part<'_>> = loops
        .iter()
        .map(|domains| Part { domains, scalars: false, groups: mapping.split })
        .collect();
    match parts.last_mut() {
        // The last loop's own results aren't whole before it ends.
        Some(last) if stores_results && !loops.last().is_some_and(reduces) => last.scalars = true,
        _ if stores_results => parts.push(Part { domains: &[], scalars: true, groups: 1 }),
        _ => {}
    }
    let count = parts.len();
    let mut launches = Vec::with_capacity(count);
    for (number, part) in parts.iter().enumerate() {
        let name = match count {
            1 => program.name.clone(),
            _ => format!("{}_{}", program.name, number + 1),
        };
        let subgroups = if part.domains.is_empty() { 1 } else { mapping.subgroups };
        let builder = KernelBuilder::new(&name, mapping.lanes, subgroups);
        let own = RowMapping { subgroups, ..plain(part.groups) };
        let mut rows = Rows::new(program, builder, facts, &variant, own, options);
        rows.part(part, mapping.split)?;
        launches.push(rows.cx.b.finish());
    }
    check_planned(program, facts, mapping, &launches)?;
    Ok(launches)
}

/// All launches together have as many bytes of shared memory and barriers as the planner counts.
fn check_planned(
    program: &Program,
    facts: &RowFacts,
    mapping: &RowMapping,
    launches: &[Kernel],
) -> Result<(), LowerError> {
    let (mut bytes, mut barriers) = (0, 0);
    for kernel in launches {
        bytes += kernel.shared_bytes();
        kernel.body.walk(&mut |stmt| barriers += u64::from(matches!(stmt.op, Op::Barrier(_))));
    }
    let slots: Vec<u64> =
        free_reductions(program, facts).map(|r| r.dtype.accumulator().bytes()).collect();
    let planned = match mapping.subgroups {
        1 => (0, 0),
        n => (slots.iter().sum::<u64>() * u64::from(n), slots.len() as u64),
    };
    if (bytes, barriers) == planned {
        return Ok(());
    }
    let detail = format!(
        "{bytes} bytes of shared memory and {barriers} barriers where the plan counts {} and {}",
        planned.0, planned.1
    );
    Err(LowerError { program: program.name.clone(), rule: Rule::ClosedForm, detail })
}

/// Values that an expression needs, down to results of reductions, which are included.
fn needs(program: &Program, rows: &Rows<'_>, roots: &[ir::ValueId]) -> HashSet<ir::ValueId> {
    let mut seen = HashSet::new();
    let mut open = roots.to_vec();
    while let Some(value) = open.pop() {
        if !seen.insert(value) {
            continue;
        }
        let op = rows.cx.definitions.get(&value).map(|op| &program.ops[*op].op);
        match op {
            Some(ir::Op::Reduce { .. }) | None => {}
            Some(op) => open.extend(operands(op)),
        }
    }
    seen
}

/// A tensor that is read and written: launches read it again, so its reads must be of the very
/// element that is written, and by nothing after its store; nor may a whole row depend on one
/// element of it.
fn check_in_out(program: &Program, variant: &RowVariant) -> Result<(), LowerError> {
    let fail = |tensor: ir::TensorId, what: &str| {
        let detail = format!("`{}` is written, and read {what}", program.tensors[tensor].name);
        Err(LowerError { program: program.name.clone(), rule: Rule::InOutOrder, detail })
    };
    let written = |t: ir::TensorId| program.tensors[t].access == Access::InOut;
    for (_, op) in program.ops.iter() {
        if let (ir::Op::Load { tensor, .. }, Some(result)) = (&op.op, op.results.first())
            && written(*tensor)
            && program.values[*result].ty.axes.is_empty()
        {
            return fail(*tensor, "as one element that all groups of a row need");
        }
    }
    for (at, domain) in variant.domains.iter().enumerate() {
        let DomainKind::Store(op) = domain.kind else { continue };
        let ir::Op::Store { tensor, .. } = &program.ops[op].op else { continue };
        // Every later domain may compute anything that comes before it again.
        if written(*tensor) && at + 1 < variant.domains.len() {
            return fail(*tensor, "again after its store");
        }
    }
    Ok(())
}

impl Rows<'_> {
    /// Builds one launch; `split` is the number of partial results of a row.
    fn part(&mut self, part: &Part<'_>, split: u32) -> Result<(), LowerError> {
        let program = self.cx.program;
        self.check_in_out()?;
        let origins = self.cx.grid(1)?;
        for (index, origin) in program.grid.iter().zip(&origins) {
            self.cx.indices.insert(*index, *origin);
        }
        let (row, rows) = self.row_number()?;
        self.member = self.cx.b.subgroup_id();
        self.subgroup = self.member;
        let mut group = self.cx.b.int(0);
        if part.groups > 1 {
            if program.grid.len() > 2 {
                let detail = "the grid has 3 dimensions and groups of a row take one more";
                return Err(self.cx.error(Rule::GridDimensions, detail));
            }
            group = self.cx.b.grid(Size::Const(part.groups.into()), 1);
            let first = self.cx.b.mul_int(group, self.mapping.subgroups.into());
            self.subgroup = self.cx.b.add(first, self.member);
        }
        self.fold_results(part, (row, rows), split)?;
        if !part.domains.is_empty() {
            for domain in part.domains {
                let root = self.root(&domain.kind)?;
                self.cx.prepare(root)?;
            }
            let reductions = self.reductions(part.domains)?;
            let first = self.sweep(&Group::plain(part.domains), &reductions)?;
            for (i, reduction) in reductions.iter().enumerate() {
                let own: Vec<ValueId> =
                    first.iter().copied().skip(i).step_by(reductions.len()).collect();
                let total = self.join_row(reduction, &own);
                let at = self.cx.b.mul_int(row, split.into());
                let at = self.cx.b.add(at, group);
                self.leave(reduction, at, rows.saturating_mul(split.into()), total)?;
            }
        }
        if part.scalars {
            self.scalar_stores()?;
        }
        Ok(())
    }

    /// The number of the group's row, and of rows.
    fn row_number(&mut self) -> Result<(ValueId, u64), LowerError> {
        let program = self.cx.program;
        let (mut row, mut rows) = (self.cx.b.int(0), 1u64);
        for (d, index) in program.grid.iter().enumerate() {
            let var = &program.indices[*index];
            let (Some(extent), Some(step)) = (program.known(var.extent), program.known(var.step))
            else {
                let detail = "scratch of partial results needs the number of rows";
                return Err(self.cx.error(Rule::ExtentKnown, detail));
            };
            let count = extent.div_ceil(step.max(1));
            let id = self.cx.b.group_id(d as u32);
            let before = self.cx.b.mul_int(row, count as i64);
            row = self.cx.b.add(before, id);
            rows = rows.saturating_mul(count);
        }
        Ok((row, rows))
    }

    /// The scratch of a reduction's partial results.
    fn scratch(
        &mut self,
        reduction: &Reduction,
        access: Access,
        elements: u64,
    ) -> Result<Memory, LowerError> {
        if elements >= 1 << 40 {
            return Err(self.cx.error(Rule::MappingRange, "more scratch than can be addressed"));
        }
        // Launches find one another's scratch by its name.
        let name = format!("partial_{}", reduction.result().index());
        let source = ArgSource::Scratch(elements.max(1));
        Ok(Memory::Global(self.cx.b.buffer(&name, reduction.dtype, access, 16, source)))
    }

    /// Leaves a group's partial result for later launches.
    fn leave(
        &mut self,
        reduction: &Reduction,
        at: ValueId,
        elements: u64,
        total: ValueId,
    ) -> Result<(), LowerError> {
        let memory = self.scratch(reduction, Access::Out, elements)?;
        let b = &mut self.cx.b;
        let (zero, one) = (b.int(0), b.int(1));
        let first = b.compare(MapOp::Eq, self.member, zero);
        let open = (b.known(first) != Some(1)).then(|| b.begin_if(first));
        b.store(Place::uniform(memory, at), &[total], Some(Guard::count(one, 0.0)));
        if let Some(open) = open {
            b.end_if(open, &[]);
        }
        Ok(())
    }

    /// Folds the partial results that the launch needs.
    fn fold_results(
        &mut self,
        part: &Part<'_>,
        (row, rows): (ValueId, u64),
        split: u32,
    ) -> Result<(), LowerError> {
        let program = self.cx.program;
        let mut roots = Vec::new();
        for domain in part.domains {
            roots.push(self.root(&domain.kind)?);
        }
        if part.scalars {
            roots.extend(program.body.ops.iter().filter_map(|op| match &program.ops[*op].op {
                ir::Op::Store { value, .. } if self.cx.axes(*value).is_empty() => Some(*value),
                _ => None,
            }));
        }
        let needed = needs(program, self, &roots);
        let domains = self.variant.domains.clone();
        for reduction in self.reductions(&domains)? {
            if !needed.contains(&reduction.result()) {
                continue;
            }
            let memory = self.scratch(&reduction, Access::In, rows.saturating_mul(split.into()))?;
            let lanes = self.mapping.lanes;
            let b = &mut self.cx.b;
            let base = b.mul_int(row, split.into());
            let mut parts = Vec::new();
            for first in (0..split).step_by(lanes as usize) {
                let at = b.add_int(base, first.into());
                let left = split - first;
                let count = b.int(left.into());
                let guard = (left < lanes).then(|| Guard::count(count, reduction.identity));
                parts.push(b.load1(Place::strided(memory, at, 1), guard));
            }
            let own = self.tree(&reduction, parts);
            let total = self.cx.b.collective(Collective::Reduce(reduction.fold()), own);
            self.finish(&reduction, total);
        }
        Ok(())
    }
}
