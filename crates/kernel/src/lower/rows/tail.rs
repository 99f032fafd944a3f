//! The last, partial chunk of a row as packs (reference system, tail packs): with r = N mod W·V
//! known, workers below ⌊r/V⌋ run the chunk on a whole pack without a guard, the next one runs it
//! on r mod V single elements, and the others on nothing.

use super::Rows;
use super::domains::Group;
use super::reduce::Reduction;
use crate::kernel::*;
use crate::lower::LowerError;
use crate::lower::access::{Frame, Pos};
use tilewright_ir::program::MapOp;

impl Rows<'_> {
    /// The first `left` elements of chunk `chunk`. Returns the new accumulators.
    pub(super) fn tail_packs(
        &mut self,
        group: &Group,
        reductions: &[Reduction],
        chunk: ValueId,
        left: i64,
        partial: &[ValueId],
    ) -> Result<Vec<ValueId>, LowerError> {
        let vector = i64::from(self.mapping.vector);
        let (packs, rest) = (left / vector, left % vector);
        let b = &mut self.cx.b;
        let lanes = b.mul_int(self.subgroup, i64::from(self.mapping.lanes));
        let lane = b.lane();
        let worker = b.add(lanes, lane);
        let last = b.int(packs);
        if packs == 0 {
            return self.tail_elements(group, reductions, chunk, (worker, rest), partial);
        }
        let whole = b.compare(MapOp::Lt, worker, last);
        let mut open = b.begin_if(whole);
        let next = self.chunk(group, reductions, chunk, None, partial)?;
        self.cx.b.begin_else(&mut open, &next);
        let other = if rest == 0 {
            partial.to_vec()
        } else {
            let b = &mut self.cx.b;
            let own = b.compare(MapOp::Eq, worker, last);
            let mut open = b.begin_if(own);
            let next = self.elements(group, reductions, chunk, (worker, rest), partial)?;
            self.cx.b.begin_else(&mut open, &next);
            self.cx.b.end_if(open, partial)
        };
        Ok(self.cx.b.end_if(open, &other))
    }

    /// A tail of less than a pack, which worker 0 has.
    fn tail_elements(
        &mut self,
        group: &Group,
        reductions: &[Reduction],
        chunk: ValueId,
        (worker, rest): (ValueId, i64),
        partial: &[ValueId],
    ) -> Result<Vec<ValueId>, LowerError> {
        let b = &mut self.cx.b;
        let zero = b.int(0);
        let own = b.compare(MapOp::Eq, worker, zero);
        let mut open = b.begin_if(own);
        let next = self.elements(group, reductions, chunk, (worker, rest), partial)?;
        self.cx.b.begin_else(&mut open, &next);
        Ok(self.cx.b.end_if(open, partial))
    }

    /// The first `count` elements of the lane's pack, one by one.
    fn elements(
        &mut self,
        group: &Group,
        reductions: &[Reduction],
        chunk: ValueId,
        (worker, count): (ValueId, i64),
        partial: &[ValueId],
    ) -> Result<Vec<ValueId>, LowerError> {
        let vector = i64::from(self.mapping.vector);
        let chunks = self.mapping.workers() as i64 * vector;
        let mut partial = partial.to_vec();
        for v in 0..count {
            let b = &mut self.cx.b;
            let begin = b.mul_int(chunk, chunks);
            let begin = b.add_int(begin, v);
            let own = b.mul_int(worker, vector);
            let at = b.add(begin, own);
            let mut frame = Frame::at(Vec::new(), 1);
            frame.axes.extend(self.axis.map(|axis| (axis, Pos::PerLane(at))));
            let slot = b.mul_int(chunk, vector);
            frame.slot = Some(b.add_int(slot, v));
            partial = self.domains(group, reductions, &mut frame, &partial)?;
        }
        Ok(partial)
    }
}
