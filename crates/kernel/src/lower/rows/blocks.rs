//! Sums in blocks: a long row is summed block by block, each from zero, and the sums of the blocks
//! are summed, so that a sum's rounding error grows with the length of a block and the number of
//! blocks, not with the length of the row. (A sequential sum of n terms of one sign is off by up to
//! n − 1 roundings; see Higham, Accuracy and Stability of Numerical Algorithms, 4.2.)

use tilewright_ir::program::ReduceOp;

use super::Rows;
use super::domains::Group;
use super::reduce::Reduction;
use crate::kernel::*;
use crate::lower::LowerError;

/// Terms that a lane adds to one accumulator within a block, and blocks within a block of blocks.
/// A variance of 250 terms has been seen to break the tolerance of rows by a quarter, and one of
/// 128 to take six tenths of it.
pub const BLOCK: u64 = 64;

/// Blocks of blocks: 64³ trips.
const MOST_LEVELS: u32 = 2;

/// Levels of blocks for so many trips: fewer than two blocks aren't worth a loop.
fn levels(trips: u64) -> u32 {
    let levels = (1..=MOST_LEVELS).take_while(|l| trips / BLOCK.pow(*l) >= 2);
    levels.count() as u32
}

/// A loop over the columns that is cut to blocks.
pub(super) struct Blocks<'a> {
    pub group: &'a Group,
    pub reductions: &'a [Reduction],
    /// Sets of accumulators, which is also the chunks of a trip.
    pub sets: u64,
    /// The start of one set.
    pub one: &'a [ValueId],
}

impl Blocks<'_> {
    /// Chunks of a block of the level.
    fn size(&self, level: u32) -> u64 {
        self.sets * BLOCK.pow(level)
    }
}

impl Rows<'_> {
    /// Levels of blocks in which a loop of so many sets is summed: 0 if it isn't.
    pub(super) fn block_levels(&self, reductions: &[Reduction], sets: u64) -> u32 {
        let sums = reductions.iter().any(|r| r.fold() == ReduceOp::Add);
        if !self.in_blocks || !sums {
            return 0;
        }
        let chunk = self.mapping.workers() * u64::from(self.mapping.vector);
        levels(self.most_columns / chunk.max(1) / sets.max(1))
    }

    /// Sums all whole blocks of the `full` chunks, the largest blocks first. Returns the first chunk
    /// after them, and one sum for every reduction.
    pub(super) fn whole_blocks(
        &mut self,
        blocks: &Blocks<'_>,
        levels: u32,
        full: ValueId,
    ) -> Result<(ValueId, Vec<ValueId>), LowerError> {
        let (mut done, mut totals) = (self.cx.b.int(0), blocks.one.to_vec());
        for level in (1..=levels).rev() {
            let size = self.cx.b.int(blocks.size(level) as i64);
            let count = self.cx.b.div(full, size);
            let end = self.cx.b.mul(count, size);
            totals = self.nest(blocks, level, (done, end), totals)?;
            done = end;
        }
        Ok((done, totals))
    }

    /// Adds the blocks of a level to the totals.
    fn nest(
        &mut self,
        blocks: &Blocks<'_>,
        level: u32,
        (lo, hi): (ValueId, ValueId),
        totals: Vec<ValueId>,
    ) -> Result<Vec<ValueId>, LowerError> {
        let trips = self.cx.begin((lo, hi, blocks.size(level)), 1, &totals);
        if trips.is_never() {
            return Ok(totals);
        }
        let end = self.cx.b.add_int(trips.index, blocks.size(level) as i64);
        let range = (trips.index, end);
        let own = if level > 1 {
            self.nest(blocks, level - 1, range, blocks.one.to_vec())?
        } else {
            let Blocks { group, reductions, sets, one } = *blocks;
            let start = one.repeat(sets as usize);
            let all = self.chunks(group, reductions, (range.0, range.1, sets), start)?;
            let set = |i: usize| all.iter().copied().skip(i).step_by(one.len()).collect();
            let parts: Vec<Vec<ValueId>> = (0..one.len()).map(set).collect();
            let folds = reductions.iter().cycle().zip(parts);
            folds.map(|(reduction, parts)| self.tree(reduction, parts)).collect()
        };
        let before = trips.inner.clone();
        // A set has, of every row, all reductions.
        let folds = blocks.reductions.iter().cycle().zip(before.into_iter().zip(own));
        let next = folds.map(|(r, (a, b))| self.cx.combine(r.fold(), a, b)).collect();
        Ok(self.cx.end(trips, next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_blocks_from_two_on() {
        for (trips, expected) in
            [(0, 0), (127, 0), (128, 1), (64 * 127, 1), (64 * 128, 2), (u64::MAX, 2)]
        {
            assert_eq!(levels(trips), expected, "{trips}");
        }
    }
}
