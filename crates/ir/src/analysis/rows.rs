//! The row family: tiles over one column axis, partitioned into distributed domains.
//!
//! A *phase* is a root that walks the columns: a reduction, a store of one element per column, or
//! the computation of a tile that is kept. A computed tile that more than one phase consumes is
//! kept: it becomes a stripe of worker-private storage, written by a domain of its own
//! (reference system 1.3, "preserve", and 1.4 rule 11). An input load that more than one phase
//! consumes is read again in each, or copied once into a stripe (rule 7). Uses within one phase
//! are no reuse.
//!
//! Some tiles are never kept, because evaluating them again costs no more than reading them:
//! conversions of loads (the load itself is what is copied), conditions (a condition has no
//! storage), index arithmetic, and tiles that are the same in every column.
//!
//! Ownership (rule 10): in this form every access to a kept tile is elementwise at the owner's
//! position, so workers only read their own slots. A reindexed tile would break that, and is
//! declined; a gather reads tensors, never tiles, and only tensors that nothing writes.

use std::collections::BTreeSet;

use super::extents::in_bounds;
use super::payload::payload;
use super::uses::{Uses, operands};
use crate::entity::Id;
use crate::facts::*;
use crate::program::*;
use crate::types::DType;

/// What is known of each value of a row program.
pub(super) struct Columns<'a> {
    pub(super) program: &'a Program,
    pub(super) uses: &'a Uses,
    /// The tile differs from column to column.
    varies: Vec<bool>,
    /// The tile's elements depend on a load.
    loaded: Vec<bool>,
    /// The value differs from program instance to program instance.
    per_row: Vec<bool>,
}

/// Proves the row family, or says why not. Coverage of every output is proved already.
pub(super) fn rows(program: &Program, uses: &Uses) -> Result<RowFacts, String> {
    let axis = column_axis(program, uses)?;
    check_operations(program, uses)?;
    let columns = Columns::of(program, uses);
    let reload = columns.variant(false);
    let cache = columns.variant(true);
    for variant in [&reload, &cache] {
        columns.check_rereads(variant)?;
    }
    let reductions = uses
        .order
        .iter()
        .filter_map(|op| match &program.ops[*op].op {
            Op::Reduce { op: fold, value, .. } => {
                let dtype = program.values[*value].ty.dtype;
                Some(ReductionFact { op: *op, fold: *fold, dtype })
            }
            _ => None,
        })
        .collect();
    let grid = program.grid.iter().map(|index| {
        let var = &program.indices[*index];
        (var.extent, var.step)
    });
    Ok(RowFacts {
        grid: grid.collect(),
        axis,
        columns: axis.map_or(Extent::Const(1), |axis| program.axes[axis].extent),
        dtype: widest(program, uses),
        reductions,
        reload,
        cache,
    })
}

/// The only axis of the program's tiles.
fn column_axis(program: &Program, uses: &Uses) -> Result<Option<AxisId>, String> {
    let mut found: Option<AxisId> = None;
    for op in &uses.order {
        for result in &program.ops[*op].results {
            for axis in &program.values[*result].ty.axes {
                match found {
                    Some(known) if known != *axis => {
                        let (a, b) = (&program.axes[known].name, &program.axes[*axis].name);
                        return Err(format!(
                            "tiles over two axes, {a} and {b}: the elements of one worker aren't \
                             the same in both"
                        ));
                    }
                    _ => found = Some(*axis),
                }
            }
        }
    }
    Ok(found)
}

/// No operation stands outside the family, and every access stays inside its tensor.
fn check_operations(program: &Program, uses: &Uses) -> Result<(), String> {
    let name = |value: ValueId| &program.values[value].name;
    for op in &uses.order {
        match &program.ops[*op].op {
            Op::Loop { index, .. } => {
                let counter = &program.indices[*index].name;
                return Err(format!("the loop over {counter} isn't a recognised form"));
            }
            Op::Mma { .. } => return Err("it has a matrix product".to_string()),
            Op::Reindex { value, .. } => {
                return Err(format!(
                    "%{} is reindexed: that a worker owns the elements it reads isn't proved",
                    name(*value)
                ));
            }
            Op::Load { tensor, coords, bounds: Bounds::Assume }
            | Op::Store { tensor, coords, bounds: Bounds::Assume, .. } => {
                let tensor = &program.tensors[*tensor];
                for (coord, size) in coords.iter().zip(&tensor.shape) {
                    in_bounds(program, coord, *size).map_err(|reason| {
                        format!("an access to `{}` is assumed in bounds: {reason}", tensor.name)
                    })?;
                }
            }
            _ => {}
        }
        // A gather from a tensor that the program writes is caught by the coverage proof: its
        // coordinates differ from the store's.
    }
    Ok(())
}

fn widest(program: &Program, uses: &Uses) -> DType {
    let tiles = |column: bool| {
        uses.order
            .iter()
            .filter_map(move |op| match &program.ops[*op].op {
                Op::Load { .. } => program.ops[*op].results.first().copied(),
                Op::Store { value, .. } => Some(*value),
                _ => None,
            })
            .map(|value| &program.values[value].ty)
            .filter(move |ty| ty.axes.is_empty() != column)
            .map(|ty| ty.dtype)
    };
    // Floats before integers: a mask says nothing about the type of the arithmetic.
    let rank = |d: &DType| (d.is_float(), d.bytes());
    tiles(true).max_by_key(rank).or_else(|| tiles(false).max_by_key(rank)).unwrap_or(DType::F32)
}

impl<'a> Columns<'a> {
    fn of(program: &'a Program, uses: &'a Uses) -> Self {
        let count = program.values.len();
        let mut columns = Columns {
            program,
            uses,
            varies: vec![false; count],
            loaded: vec![false; count],
            per_row: vec![false; count],
        };
        for op in &uses.order {
            let data = &program.ops[*op];
            let inputs = operands(&data.op);
            let any = |flags: &[bool]| inputs.iter().any(|v| flags[v.index()]);
            let moved = |origin: &Origin| {
                origin.terms.iter().any(|(index, _)| program.grid.contains(index))
            };
            let (varies, loaded, per_row) = match &data.op {
                Op::Load { coords, .. } => {
                    let along = coords.iter().any(|c| c.axis.is_some());
                    (along || any(&columns.varies), true, true)
                }
                Op::Index { origin, axis } => (axis.is_some(), false, moved(origin)),
                Op::Reduce { .. } => (false, any(&columns.loaded), true),
                _ => (any(&columns.varies), any(&columns.loaded), any(&columns.per_row)),
            };
            for result in &data.results {
                columns.varies[result.index()] = varies;
                columns.loaded[result.index()] = loaded;
                columns.per_row[result.index()] = per_row;
            }
        }
        columns
    }

    fn is_column(&self, value: ValueId) -> bool {
        !self.program.values[value].ty.axes.is_empty()
    }

    /// Whether a value is a load of a column tile, or a conversion of one.
    fn is_input(&self, value: ValueId) -> bool {
        let mut value = value;
        loop {
            match self.uses.op(value).map(|op| &self.program.ops[op].op) {
                Some(Op::Load { .. }) => return true,
                Some(Op::Cast(inner)) => value = *inner,
                _ => return false,
            }
        }
    }

    /// Whether a computed column tile that several phases consume is kept.
    fn worth_keeping(&self, value: ValueId) -> bool {
        let dtype = self.program.values[value].ty.dtype;
        let index_arithmetic = dtype == DType::I32 && !self.loaded[value.index()];
        self.varies[value.index()]
            && dtype != DType::Bool
            && !index_arithmetic
            && !self.is_input(value)
    }

    /// The domains under one reuse choice.
    fn variant(&self, cache: bool) -> RowVariant {
        // Backwards: the phases that consume each column tile, so the decision about a tile comes
        // after those about its consumers.
        let mut phases: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); self.program.values.len()];
        let mut kinds: Vec<(usize, DomainKind)> = Vec::new();
        let mut kept = vec![false; self.program.values.len()];
        for op in self.uses.order.iter().rev() {
            let data = &self.program.ops[*op];
            let position = self.uses.position(*op);
            let consumers = match (&data.op, data.results.first().copied()) {
                (Op::Reduce { value, .. }, _) if self.is_column(*value) => {
                    kinds.push((position, DomainKind::Reduce(*op)));
                    BTreeSet::from([position])
                }
                (Op::Store { value, .. }, _) if self.is_column(*value) => {
                    kinds.push((position, DomainKind::Store(*op)));
                    BTreeSet::from([position])
                }
                (op, Some(result)) if self.is_column(result) => {
                    let consumers = std::mem::take(&mut phases[result.index()]);
                    let is_load = matches!(op, Op::Load { .. });
                    let keep = if is_load { cache } else { self.worth_keeping(result) };
                    if keep && consumers.len() > 1 {
                        kept[result.index()] = true;
                        kinds.push((
                            position,
                            if is_load {
                                DomainKind::Copy(result)
                            } else {
                                DomainKind::Materialize(result)
                            },
                        ));
                        BTreeSet::from([position])
                    } else {
                        consumers
                    }
                }
                _ => continue,
            };
            for operand in operands(&data.op) {
                if self.is_column(operand) {
                    phases[operand.index()].extend(consumers.iter().copied());
                }
            }
        }
        kinds.sort_by_key(|(position, _)| *position);
        let domains: Vec<Domain> =
            kinds.into_iter().map(|(_, kind)| self.domain(kind, &kept)).collect();
        let payload = payload(self.program, self.uses, &domains);
        RowVariant { domains, payload }
    }

    /// What one element of a domain touches.
    fn domain(&self, kind: DomainKind, kept: &[bool]) -> Domain {
        let mut domain = Domain {
            loads: Vec::new(),
            stripes: Vec::new(),
            scalars: Vec::new(),
            kind: kind.clone(),
        };
        let mut seen = BTreeSet::new();
        // The roots are pushed last operand first, so that the lists are in order of evaluation.
        let mut stack: Vec<(ValueId, bool)> = match kind {
            DomainKind::Copy(value) | DomainKind::Materialize(value) => vec![(value, true)],
            DomainKind::Reduce(op) | DomainKind::Store(op) => match &self.program.ops[op].op {
                Op::Reduce { value, .. } | Op::Store { value, .. } => vec![(*value, false)],
                _ => Vec::new(),
            },
        };
        while let Some((value, root)) = stack.pop() {
            if !seen.insert(value) {
                continue;
            }
            if !self.is_column(value) {
                if self.per_row[value.index()] {
                    domain.scalars.push(value);
                }
                continue;
            }
            if kept[value.index()] && !root {
                domain.stripes.push(value);
                continue;
            }
            let Some(op) = self.uses.op(value) else { continue };
            let op = &self.program.ops[op].op;
            if let Op::Load { .. } = op {
                domain.loads.push(value);
                // A gather's scalar index is part of the address, not an operand.
                let indices = operands(op).into_iter().filter(|v| self.is_column(*v));
                stack.extend(indices.rev().map(|v| (v, false)).collect::<Vec<_>>());
            } else {
                stack.extend(operands(op).into_iter().rev().map(|v| (v, false)));
            }
        }
        domain
    }

    /// A load of a tensor that is also written is never evaluated after the store: a load is a
    /// snapshot, but a domain that evaluates it reads memory as it is then.
    fn check_rereads(&self, variant: &RowVariant) -> Result<(), String> {
        let program = self.program;
        let stored_at = |tensor: TensorId| {
            self.uses.order.iter().position(
                |op| matches!(program.ops[*op].op, Op::Store { tensor: t, .. } if t == tensor),
            )
        };
        let tensor_of = |value: ValueId| match self.uses.op(value).map(|op| &program.ops[op].op) {
            Some(Op::Load { tensor, .. }) => Some(*tensor),
            _ => None,
        };
        let error = |tensor: TensorId| {
            format!("`{}` is needed again after it is stored to", program.tensors[tensor].name)
        };
        for domain in &variant.domains {
            let at = match domain.kind {
                DomainKind::Copy(value) | DomainKind::Materialize(value) => self.uses.op(value),
                DomainKind::Reduce(op) | DomainKind::Store(op) => Some(op),
            };
            let at = at.map_or(0, |op| self.uses.position(op));
            for tensor in domain.loads.iter().filter_map(|v| tensor_of(*v)) {
                if stored_at(tensor).is_some_and(|store| at > store) {
                    return Err(error(tensor));
                }
            }
        }
        // Per-row values: a mapping may evaluate them where they are first needed.
        for op in &self.uses.order {
            let data = &program.ops[*op];
            let (Op::Load { tensor, .. }, Some(result)) = (&data.op, data.results.first()) else {
                continue;
            };
            let Some(store) = stored_at(*tensor) else { continue };
            if !self.is_column(*result) && self.last_evaluation(*result) > store {
                return Err(error(*tensor));
            }
        }
        Ok(())
    }

    /// Position of the last operation that depends on a value, not looking through reductions.
    fn last_evaluation(&self, value: ValueId) -> usize {
        let mut last = 0;
        let mut stack = vec![value];
        let mut seen = BTreeSet::new();
        while let Some(value) = stack.pop() {
            for user in self.uses.users(value) {
                if !seen.insert(*user) {
                    continue;
                }
                last = last.max(self.uses.position(*user));
                let data = &self.program.ops[*user];
                if !matches!(data.op, Op::Reduce { .. }) {
                    stack.extend(data.results.iter().copied());
                }
            }
        }
        last
    }
}
