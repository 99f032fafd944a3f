//! How often, and where, values are used: what may be written in place of its name, and which
//! fragments may be overwritten by the atom that continues them.

use std::collections::HashMap;

use tilewright_kernel::kernel::{Block, Kernel, Op, ValueId};

/// Uses of one value.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    count: u32,
    /// Block of the (last) use.
    block: u32,
    /// Handed over by a loop or a branch at the end of its block.
    handed: bool,
}

/// Uses of all values.
#[derive(Debug, Default)]
pub(super) struct Uses {
    uses: HashMap<ValueId, Use>,
    /// Block of the definition.
    defined: HashMap<ValueId, u32>,
    blocks: u32,
}

impl Uses {
    pub(super) fn of(kernel: &Kernel) -> Uses {
        let mut uses = Uses::default();
        uses.block(&kernel.body);
        uses
    }

    fn block(&mut self, block: &Block) {
        let this = self.blocks;
        self.blocks += 1;
        self.statements(block, this);
    }

    fn statements(&mut self, block: &Block, this: u32) {
        for stmt in &block.stmts {
            stmt.op.for_each_operand(&mut |v| self.used(v, this, false));
            for result in &stmt.results {
                self.defined.insert(*result, this);
            }
            match &stmt.op {
                Op::For { index, carries, body, .. } => {
                    let inner = self.blocks;
                    self.blocks += 1;
                    self.defined.insert(*index, inner);
                    for carry in carries {
                        self.defined.insert(carry.inner, inner);
                    }
                    self.statements(body, inner);
                    for carry in carries {
                        self.used(carry.next, inner, true);
                    }
                }
                Op::If { then, then_values, otherwise, else_values, .. } => {
                    for (block, values) in [(then, then_values), (otherwise, else_values)] {
                        let inner = self.blocks;
                        self.block(block);
                        for value in values {
                            self.used(*value, inner, true);
                        }
                    }
                }
                Op::InRole { body, .. } => self.block(body),
                _ => {}
            }
        }
    }

    fn used(&mut self, value: ValueId, block: u32, handed: bool) {
        let entry = self.uses.entry(value).or_default();
        entry.count += 1;
        entry.block = block;
        entry.handed |= handed;
    }

    /// Whether nobody uses the value.
    pub(super) fn unused(&self, value: ValueId) -> bool {
        !self.uses.contains_key(&value)
    }

    /// Whether the value has one use, in the block that defines it: then a pure expression may
    /// stand at the use, and a fragment may be overwritten there.
    pub(super) fn once_here(&self, value: ValueId) -> bool {
        let block = self.defined.get(&value);
        self.uses.get(&value).is_some_and(|u| u.count == 1 && Some(&u.block) == block)
    }

    /// As [`Uses::once_here`], and the use isn't the hand-over at the end of the block.
    pub(super) fn inlined(&self, value: ValueId) -> bool {
        self.once_here(value) && self.uses.get(&value).is_some_and(|u| !u.handed)
    }
}
