//! Walking a kernel: operands of an operation, statements of a block.

use crate::kernel::{Block, Carry, Guard, GuardTest, Op, Operand, Place, Stmt, ValueId, View};

impl Place {
    /// Calls `f` with every value that the place reads.
    pub fn for_each_value(&self, f: &mut impl FnMut(ValueId)) {
        f(self.base);
        if let Some(index) = self.index {
            f(index);
        }
    }
}

impl Guard {
    /// The value that the guard tests.
    pub fn value(&self) -> ValueId {
        match self.test {
            GuardTest::Count(value) | GuardTest::Mask(value) => value,
        }
    }
}

impl View {
    /// Calls `f` with every value that the view reads.
    pub fn for_each_value(&self, f: &mut impl FnMut(ValueId)) {
        f(self.base);
        f(self.row_stride);
        f(self.col_stride);
        self.rows.into_iter().chain(self.cols).for_each(f);
    }
}

impl Operand {
    /// Calls `f` with every value that the operand reads.
    pub fn for_each_value(&self, f: &mut impl FnMut(ValueId)) {
        match self {
            Operand::Fragment(value) => f(*value),
            Operand::View(view) => view.for_each_value(f),
        }
    }
}

impl Op {
    /// Calls `f` with every value that the operation reads in its own block: of a loop the
    /// bounds and the initial values, of a branch the condition. What its blocks hand over
    /// (`next` of a carry, `then_values`, `else_values`) is read inside them and not named here.
    pub fn for_each_operand(&self, f: &mut impl FnMut(ValueId)) {
        match self {
            Op::Const(_)
            | Op::Arg(_)
            | Op::GroupId(_)
            | Op::ClusterRank
            | Op::SubgroupId
            | Op::Lane
            | Op::Barrier(_)
            | Op::BarrierArrive(_)
            | Op::BarrierWait(_)
            | Op::ProxyFence
            | Op::InRole { .. }
            | Op::FragmentFill(_) => {}
            Op::Map { args, .. } | Op::FragmentMap { args, .. } => {
                args.iter().copied().for_each(f);
            }
            Op::Fma { a, b, c } => [*a, *b, *c].into_iter().for_each(f),
            Op::Cast(value) => f(*value),
            Op::Load { place, guard } => {
                place.for_each_value(f);
                guard.iter().map(Guard::value).for_each(f);
            }
            Op::Store { place, values, guard } => {
                place.for_each_value(f);
                values.iter().copied().for_each(&mut *f);
                guard.iter().map(Guard::value).for_each(f);
            }
            Op::Atomic { place, value, guard, .. } => {
                place.for_each_value(f);
                f(*value);
                guard.iter().map(Guard::value).for_each(f);
            }
            Op::Collective { value, .. } => f(*value),
            Op::For { lo, hi, carries, .. } => {
                f(*lo);
                f(*hi);
                carries.iter().map(|c: &Carry| c.init).for_each(f);
            }
            Op::If { cond, .. } => f(*cond),
            Op::FragmentLoad(view) => view.for_each_value(f),
            Op::FragmentStore { fragment, view, .. } => {
                f(*fragment);
                view.for_each_value(f);
            }
            Op::Mma { a, b, c, depth } => {
                a.for_each_value(f);
                b.for_each_value(f);
                f(*c);
                depth.iter().copied().for_each(f);
            }
            Op::MmaAsync { a, b, c } => {
                a.for_each_value(f);
                b.for_each_value(f);
                f(*c);
            }
            Op::CopyAsync { to, from, guard, .. } => {
                to.for_each_value(f);
                from.for_each_value(f);
                guard.iter().map(Guard::value).for_each(f);
            }
            Op::CopyTensor { coords, offset, stage, .. } => {
                coords.iter().copied().for_each(&mut *f);
                f(*offset);
                f(*stage);
            }
            Op::MbarrierInit { stage, .. } => f(*stage),
            Op::MbarrierArrive { stage, expect, .. } => {
                f(*stage);
                expect.iter().copied().for_each(f);
            }
            Op::MbarrierWait { stage, parity, .. } => {
                f(*stage);
                f(*parity);
            }
            Op::Wait { tokens, .. } => tokens.iter().copied().for_each(f),
        }
    }

    /// The blocks of a structured operation, in the order of their text.
    pub fn blocks(&self) -> [Option<&Block>; 2] {
        match self {
            Op::For { body, .. } | Op::InRole { body, .. } => [Some(body), None],
            Op::If { then, otherwise, .. } => [Some(then), Some(otherwise)],
            _ => [None, None],
        }
    }
}

impl Block {
    /// Calls `f` with every statement of the block and of the blocks in it, in the order of the
    /// text. The n-th call (from 0) is for the statement with number n.
    pub fn walk<'a>(&'a self, f: &mut impl FnMut(&'a Stmt)) {
        for stmt in &self.stmts {
            f(stmt);
            for block in stmt.op.blocks().into_iter().flatten() {
                block.walk(f);
            }
        }
    }

    /// Number of statements, those of inner blocks included.
    pub fn count(&self) -> usize {
        let mut n = 0;
        self.walk(&mut |_| n += 1);
        n
    }
}
