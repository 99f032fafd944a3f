//! Sums and sums of squares about the mean, exchanged at once (`tilewright_plan`'s
//! `problem::moments`). Every subgroup takes the squares about the mean of its own elements; behind
//! one barrier everybody has both sums of all subgroups, from which the whole row's follow. So a
//! row waits once for its other workers where it would wait twice.

use std::collections::HashMap;

use tilewright_ir::program as ir;
use tilewright_ir::program::MapOp;
use tilewright_plan::problem::moments::{Moments, exchanged};

use super::reduce::Reduction;
use super::{LowerError, Rows, Rule};
use crate::kernel::*;

/// The sums of the subgroups while the squares about their means are taken.
pub(super) struct Pending {
    /// By row.
    sums: Vec<ValueId>,
    /// What was known, by row, before a subgroup took its own mean for the row's.
    known: Vec<HashMap<ir::ValueId, ValueId>>,
}

/// What subgroups exchange of a row.
struct Exchange {
    sums: SharedId,
    squares: SharedId,
    sharers: u64,
    /// N over `sharers`.
    each: f64,
}

impl Rows<'_> {
    /// The moments of the program, if its subgroups exchange them at once.
    pub(super) fn exchanged(&self) -> Option<Moments> {
        let columns = self.cx.b.known(self.columns).and_then(|n| u64::try_from(n).ok())?;
        self.moments.filter(|_| exchanged(columns, &self.mapping))
    }

    /// Whether a loop's reductions are this one.
    pub(super) fn only(&self, reductions: &[Reduction], op: ir::OpId) -> bool {
        let result = self.cx.program.ops[op].results.first();
        matches!(reductions, [one] if Some(&one.result()) == result)
    }

    /// Ends the sum: until the squares are taken, the mean is that of the subgroup's elements.
    pub(super) fn open_moments(&mut self, sum: &Reduction, parts: &[Vec<ValueId>]) {
        let sharers = u64::from(self.mapping.subgroups) * u64::from(self.mapping.cluster);
        let mut pending = Pending { sums: Vec::new(), known: Vec::new() };
        for (row, parts) in parts.iter().enumerate() {
            self.select(row);
            let own = self.tree(sum, parts.clone());
            let own = self.cx.b.collective(Collective::Reduce(sum.fold()), own);
            pending.sums.push(own);
            pending.known.push(self.cx.scalars.clone());
            let as_row = self.scaled(sum, own, sharers);
            self.finish(sum, as_row);
        }
        self.pending = Some(pending);
        // What follows reads the row again. Nothing else stands between the two readings, and an
        // assembler that kept all of it in registers would have too few.
        let again = self.cx.b.subgroup_barrier("again");
        self.cx.b.barrier(again);
    }

    /// A subgroup's sum as if every other had the same.
    fn scaled(&mut self, sum: &Reduction, own: ValueId, sharers: u64) -> ValueId {
        let all = self.cx.b.literal(sharers as f64, sum.dtype);
        self.cx.b.map(MapOp::Mul, &[own, all])
    }

    /// Ends the squares: exchanges both sums, and remembers both results of every row.
    pub(super) fn close_moments(
        &mut self,
        moments: Moments,
        [sum, squares]: [&Reduction; 2],
        parts: &[Vec<ValueId>],
    ) -> Result<(), LowerError> {
        let Some(Pending { sums, known }) = self.pending.take() else {
            let detail = "squares about a mean that nobody has summed";
            return Err(self.cx.error(Rule::Operation, detail));
        };
        let mut own = Vec::new();
        for parts in parts {
            let total = self.tree(squares, parts.clone());
            own.push(self.cx.b.collective(Collective::Reduce(squares.fold()), total));
        }
        let sharers = u64::from(self.mapping.subgroups) * u64::from(self.mapping.cluster);
        let exchange = Exchange {
            sums: self.share(sum, &sums)?,
            squares: self.share(squares, &own)?,
            sharers,
            each: self.most_columns as f64 / sharers as f64,
        };
        self.meet();
        for (row, known) in known.into_iter().enumerate() {
            self.select(row);
            self.cx.scalars = known;
            self.row_moments(moments, [sum, squares], &exchange)?;
        }
        Ok(())
    }

    /// Both results of the row that is being built.
    fn row_moments(
        &mut self,
        moments: Moments,
        [sum, squares]: [&Reduction; 2],
        exchange: &Exchange,
    ) -> Result<(), LowerError> {
        let sharers = exchange.sharers;
        let begin = self.row as u64 * sharers;
        let sums = self.spread(sum, exchange.sums, begin, sharers);
        let parts = self.spread(squares, exchange.squares, begin, sharers);
        let total = self.tree(sum, sums.iter().map(|(value, _)| *value).collect());
        let total = self.cx.b.collective(Collective::Reduce(sum.fold()), total);
        self.finish(sum, total);
        let mean = self.cx.scalar(moments.mean)?;
        let mut terms = Vec::new();
        for ((own, lanes), (part, _)) in sums.into_iter().zip(parts) {
            // The subgroup's mean by the operations by which it had it.
            let as_row = self.scaled(sum, own, sharers);
            let b = &mut self.cx.b;
            let columns = b.literal(self.most_columns as f64, sum.dtype);
            let center = b.map(MapOp::Div, &[as_row, columns]);
            let distance = b.map(MapOp::Sub, &[center, mean]);
            let each = b.literal(exchange.each, sum.dtype);
            let weighted = b.map(MapOp::Mul, &[distance, each]);
            let term = b.fma(weighted, distance, part);
            terms.push(match lanes {
                None => term,
                // Lanes past the last subgroup have no mean.
                Some(lanes) => {
                    let (lane, end) = (b.lane(), b.int(lanes as i64));
                    let inside = b.compare(MapOp::Lt, lane, end);
                    let nothing = b.literal(0.0, sum.dtype);
                    b.map(MapOp::Select, &[inside, term, nothing])
                }
            });
        }
        let total = self.tree(squares, terms);
        let total = self.cx.b.collective(Collective::Reduce(squares.fold()), total);
        self.finish(squares, total);
        Ok(())
    }
}
