//! Index sums in one order: terms that are known further out come first, the constant last. So
//! the invariant part of an address leaves the loops, and the constant is left for the
//! displacement of an addressing mode.

use tilewright_ir::program::MapOp;

use super::KernelBuilder;
use crate::kernel::*;

/// Longest sum that is put in order; longer ones are taken as single terms.
const MAX_TERMS: usize = 12;

/// A sum of values and a constant.
#[derive(Clone, Debug)]
pub(super) struct Sum {
    terms: Vec<ValueId>,
    constant: i64,
}

impl KernelBuilder {
    /// The terms of an index value.
    fn sum(&self, value: ValueId) -> Sum {
        match (self.known(value), self.sums.get(&value)) {
            (Some(constant), _) => Sum { terms: Vec::new(), constant },
            (None, Some(sum)) if sum.terms.len() <= MAX_TERMS / 2 => sum.clone(),
            _ => Sum { terms: vec![value], constant: 0 },
        }
    }

    fn depth_of(&self, value: ValueId) -> usize {
        self.depth.get(&value).map_or(0, |d| d + 1)
    }

    /// `a + b`, in order; `None` where the constants overflow.
    pub(super) fn ordered_sum(&mut self, a: ValueId, b: ValueId) -> Option<ValueId> {
        let (a, b) = (self.sum(a), self.sum(b));
        let constant = a.constant.checked_add(b.constant)?;
        let mut terms = a.terms;
        terms.extend(b.terms);
        // Stable, by depth and then by number: equal sums get equal values.
        terms.sort_by_key(|t| (self.depth_of(*t), *t));
        Some(self.build_sum(terms, constant))
    }

    /// `a·factor` as a sum, if `a` has a constant part worth taking out.
    pub(super) fn distributed(&mut self, a: ValueId, factor: i64) -> Option<ValueId> {
        let sum = self.sum(a);
        if sum.constant == 0 || sum.terms.is_empty() {
            return None;
        }
        let constant = sum.constant.checked_mul(factor)?;
        let rest = self.build_sum(sum.terms, 0);
        let scaled = self.mul_int(rest, factor);
        let constant = self.int(constant);
        self.ordered_sum(scaled, constant)
    }

    fn build_sum(&mut self, terms: Vec<ValueId>, constant: i64) -> ValueId {
        let Some((first, rest)) = terms.split_first() else { return self.int(constant) };
        let mut value = *first;
        let mut so_far = vec![*first];
        for term in rest {
            value = self.raw_index(MapOp::Add, value, *term);
            so_far.push(*term);
            self.sums.insert(value, Sum { terms: so_far.clone(), constant: 0 });
        }
        if constant != 0 {
            let number = self.int(constant);
            value = self.raw_index(MapOp::Add, value, number);
            self.sums.insert(value, Sum { terms, constant });
        }
        value
    }
}
