//! Rows in shared memory: asynchronous copies bring what several phases read, every lane its own
//! elements, so that the lane's wait is all that they need. Nothing is kept in registers.

use tilewright_plan::problem::rows::copied_loads;

use super::{LowerError, Rows, Rule};
use crate::kernel::*;
use crate::lower::access::Frame;
use crate::lower::{Source, Staged};
use tilewright_ir::program as ir;

impl Rows<'_> {
    /// Chunks of a row, the last of which may be partial.
    fn staged_chunks(&self) -> u64 {
        let chunk = self.mapping.workers() * u64::from(self.mapping.vector);
        self.most_columns.div_ceil(chunk.max(1))
    }

    /// Bytes that a group stages of one row.
    pub(super) fn staged_bytes(&self) -> u64 {
        if !self.mapping.stage {
            return 0;
        }
        let chunk = self.mapping.group_workers() * u64::from(self.mapping.vector);
        let each = copied_loads(self.variant);
        let bytes: u64 = each.iter().map(|v| self.cx.dtype(*v).bytes()).sum();
        self.staged_chunks() * chunk * bytes
    }

    /// Starts the copies of every row of the batch.
    pub(super) fn stage(&mut self) -> Result<(), LowerError> {
        if !self.mapping.stage {
            return Ok(());
        }
        if self.cx.b.known(self.columns).is_none() {
            let detail = "rows are staged in shared memory, and their length isn't known";
            return Err(self.cx.error(Rule::ExtentKnown, detail));
        }
        let chunks = self.staged_chunks();
        if chunks == 0 {
            return Ok(());
        }
        let chunk = self.mapping.group_workers() * u64::from(self.mapping.vector);
        let own = self.cx.b.subgroup_id();
        let own = self.cx.b.mul_int(own, i64::from(self.mapping.lanes * self.mapping.vector));
        for value in copied_loads(self.variant) {
            let (name, dtype) = (self.cx.program.values[value].name.clone(), self.cx.dtype(value));
            let rows = u64::from(self.mapping.batch);
            let shared = self.cx.b.shared(&name, dtype, rows * chunks, chunk, Layout::Plain);
            for row in 0..self.batch() {
                self.select(row);
                let vector = self.mapping.vector;
                let first = row as u64 * chunks * chunk;
                let staged = Staged { shared, first, chunk, vector, own };
                self.copy_row(value, &staged)?;
                self.cx.sources.insert(value, Source::Staged(staged));
            }
        }
        Ok(())
    }

    fn copy_row(&mut self, value: ir::ValueId, staged: &Staged) -> Result<(), LowerError> {
        let program = self.cx.program;
        let load = self.cx.definitions.get(&value).map(|op| &program.ops[*op].op);
        let Some(ir::Op::Load { tensor, coords, bounds }) = load else {
            return Err(self.cx.error(Rule::Operation, "what is staged is no load"));
        };
        let t = &program.tensors[*tensor];
        let wide = self.mapping.workers() * u64::from(self.mapping.vector);
        for number in 0..self.staged_chunks() {
            let begin = (number * wide) as i64;
            let part = (self.most_columns - number * wide < wide).then_some(begin);
            let number = self.cx.b.int(number as i64);
            let mut frame = self.frame(number, part);
            let dims = self.cx.tensor_dims(&mut frame, *tensor, coords, *bounds)?;
            let memory = Memory::Global(self.cx.args.tensor(*tensor));
            let access = self.cx.access(&frame, memory, &dims, t.align / t.dtype.bytes().max(1));
            let zero = self.cx.b.int(0);
            let to = self.cx.staged_place(staged, frame.slot.unwrap_or(zero));
            let ragged = !self.most_columns.is_multiple_of(u64::from(self.mapping.vector));
            let token = if ragged { None } else { self.cx.copy(&access, to) };
            let Some(token) = token else {
                let name = &program.values[value].name;
                let detail = format!(
                    "copies of {} elements of `%{name}` aren't proved whole and aligned",
                    self.mapping.vector
                );
                return Err(self.cx.error(Rule::UnprovedFact, detail));
            };
            self.copies.push(token);
        }
        Ok(())
    }

    /// Waits for the lane's copies, before the first use of what they bring.
    pub(super) fn arrive(&mut self) {
        let tokens = std::mem::take(&mut self.copies);
        if !tokens.is_empty() {
            self.cx.b.wait(&tokens, 0);
        }
    }

    /// Where the lanes stand in a chunk; `begin` is where it starts if it is partial.
    fn frame(&mut self, chunk: ValueId, begin: Option<i64>) -> Frame {
        let left = begin.map(|begin| self.cx.b.add_int(self.columns, -begin));
        self.chunk_frame(chunk, left)
    }
}
