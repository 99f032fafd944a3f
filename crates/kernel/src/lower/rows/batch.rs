//! Rows of a batch: the same workers compute several rows side by side. Chunk by chunk, what is the
//! same for all rows is evaluated for the first and used for the others; all rows meet at the same
//! barriers.

use std::collections::{HashMap, HashSet};

use tilewright_ir::facts::RowFacts;
use tilewright_ir::program as ir;
use tilewright_ir::program::{Access, IndexId};
use tilewright_plan::problem::rows::is_shared_load;

use super::{LowerError, Rows, Rule, free_reductions};
use crate::kernel::*;
use crate::lower::Source;
use crate::lower::eval::operands;

/// What is known of one row.
#[derive(Clone, Default)]
pub(super) struct Row {
    indices: HashMap<IndexId, ValueId>,
    scalars: HashMap<ir::ValueId, ValueId>,
    sources: HashMap<ir::ValueId, Source>,
}

impl Rows<'_> {
    /// Rows side by side.
    pub(super) fn batch(&self) -> usize {
        self.others.len().max(1)
    }

    /// Gives every row of the batch its number. Those past the last row of the launch compute that
    /// one again, and write it again.
    pub(super) fn enter_batch(&mut self, facts: &RowFacts) -> Result<(), LowerError> {
        let batch = self.mapping.batch;
        if batch == 1 {
            return Ok(());
        }
        let program = self.cx.program;
        let Some(index) = program.grid.last().copied() else {
            let detail = format!("{batch} rows side by side, and the grid has one program");
            return Err(self.cx.error(Rule::MappingRange, detail));
        };
        let var = &program.indices[index];
        let ordered = free_reductions(program, facts).count() != facts.reductions.len();
        let updates = program.tensors.iter().any(|(_, t)| t.access == Access::InOut);
        if self.mapping.pack > 1 || self.mapping.ahead || ordered || updates {
            let detail = format!(
                "{batch} rows side by side with {} in turn, loads ahead, a reduction in a stated \
                 order, or a tensor that is read and written",
                self.mapping.pack
            );
            return Err(self.cx.error(Rule::MappingRange, detail));
        }
        if program.known(var.step) != Some(1) {
            let detail = format!("rows side by side of `{}`, whose step isn't 1", var.name);
            return Err(self.cx.error(Rule::StepKnown, detail));
        }
        self.common = common(program);
        let first = self.cx.index(index)?;
        let extent = self.cx.extent(var.extent);
        let whole = program.divisor(var.extent).is_multiple_of(u64::from(batch));
        let last = self.cx.b.add_int(extent, -1);
        self.others = vec![Row::default(); batch as usize];
        for (row, other) in self.others.iter_mut().enumerate().skip(1) {
            let b = &mut self.cx.b;
            let mut number = b.add_int(first, row as i64);
            if !whole {
                number = b.min(number, last);
            }
            other.indices.clone_from(&self.cx.indices);
            other.indices.insert(index, number);
        }
        Ok(())
    }

    /// Goes on with another row.
    pub(super) fn select(&mut self, row: usize) {
        if row == self.row {
            return;
        }
        for number in [self.row, row] {
            if let Some(other) = self.others.get_mut(number) {
                std::mem::swap(&mut other.indices, &mut self.cx.indices);
                std::mem::swap(&mut other.scalars, &mut self.cx.scalars);
                std::mem::swap(&mut other.sources, &mut self.cx.sources);
            }
        }
        self.row = row;
    }
}

/// Values that depend on no row: their loads mention no grid index, and neither do they.
fn common(program: &ir::Program) -> HashSet<ir::ValueId> {
    let mut out = HashSet::new();
    // Operations come in the order in which they use one another's results.
    for id in &program.body.ops {
        let op = &program.ops[*id];
        let own = match &op.op {
            ir::Op::Load { .. } => is_shared_load(program, Some(*id)),
            ir::Op::Index { origin, .. } => {
                origin.terms.iter().all(|(i, _)| !program.grid.contains(i))
            }
            ir::Op::Const { .. } | ir::Op::Scalar(_) | ir::Op::Size(_) => true,
            ir::Op::Map { .. } | ir::Op::Cast(_) | ir::Op::Broadcast(_) => true,
            _ => false,
        };
        if own && operands(&op.op).iter().all(|v| out.contains(v)) {
            out.extend(&op.results);
        }
    }
    out
}
