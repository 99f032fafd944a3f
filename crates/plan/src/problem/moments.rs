//! Programs that sum their columns and then the squares about the mean: LayerNorm and its like.

use std::collections::{HashMap, HashSet};

use tilewright_ir::facts::{DomainKind, RowFacts};
use tilewright_ir::program::{MapOp, Op, OpId, OrderPolicy, ReduceOp, ValueId};
use tilewright_ir::{DType, Program};

use super::mix::definitions;
use crate::mapping::RowMapping;

/// Two reductions of a row: s = Σ v, then Σ (v − s/N)². Parts of a row may take both sums about a
/// mean of their own and exchange them at once (T. Chan, G. Golub and R. LeVeque, "Updating
/// formulae and a pairwise algorithm for computing sample variances", 1979): of parts of n elements
/// each with means cᵢ and sums of squares qᵢ about them, the whole has Σ qᵢ + n·Σ (cᵢ − s/N)².
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moments {
    /// The sum.
    pub sum: OpId,
    /// The sum of squares about the mean.
    pub squares: OpId,
    /// s/N.
    pub mean: ValueId,
}

/// Finds the two in a program whose only reductions they are, both in any order, and whose tiles
/// are stored only when both are known.
pub fn moments(program: &Program, facts: &RowFacts) -> Option<Moments> {
    let definitions = definitions(program);
    let define = |value: ValueId| definitions.get(&value).map(|op| &program.ops[*op].op);
    let [first, second] = facts.reductions.as_slice() else { return None };
    let addend = |op: OpId| match &program.ops[op].op {
        Op::Reduce { op: ReduceOp::Add, value, order: OrderPolicy::UnorderedTree, .. } => {
            Some(*value)
        }
        _ => None,
    };
    let (value, square) = (addend(first.op)?, addend(second.op)?);
    let Some(Op::Map { op: MapOp::Mul, args }) = define(square) else { return None };
    let [difference, other] = args[..] else { return None };
    let Some(Op::Map { op: MapOp::Sub, args }) = define(difference) else { return None };
    let [minuend, broadcast] = args[..] else { return None };
    let Some(Op::Broadcast(mean)) = define(broadcast) else { return None };
    let Some(Op::Map { op: MapOp::Div, args }) = define(*mean) else { return None };
    let [total, count] = args[..] else { return None };
    let size = match define(count) {
        Some(Op::Cast(size)) => define(*size),
        other => other,
    };
    let Some(Op::Size(size)) = size else { return None };
    let all = *size == facts.columns
        || program.known(*size).is_some() && program.known(*size) == program.known(facts.columns);
    let sum = *program.ops[first.op].results.first()?;
    let kind = first.dtype.accumulator();
    let exact = matches!(kind, DType::F32 | DType::F64)
        && [value, square, sum, *mean].iter().all(|v| program.values[*v].ty.dtype == kind);
    if difference != other || minuend != value || total != sum || !all || !exact {
        return None;
    }
    let result = *program.ops[second.op].results.first()?;
    let waits = facts.cache.domains.iter().all(|domain| match domain.kind {
        DomainKind::Store(op) => match &program.ops[op].op {
            Op::Store { value, .. } => depends(program, &definitions, *value, result),
            _ => false,
        },
        _ => true,
    });
    waits.then_some(Moments { sum: first.op, squares: second.op, mean: *mean })
}

/// Whether an elementwise expression uses a value.
fn depends(
    program: &Program,
    definitions: &HashMap<ValueId, OpId>,
    root: ValueId,
    wanted: ValueId,
) -> bool {
    let (mut open, mut seen) = (vec![root], HashSet::new());
    while let Some(value) = open.pop() {
        if value == wanted {
            return true;
        }
        if !seen.insert(value) {
            continue;
        }
        match definitions.get(&value).map(|op| &program.ops[*op].op) {
            Some(Op::Map { args, .. }) => open.extend(args),
            Some(Op::Cast(v) | Op::Broadcast(v)) => open.push(*v),
            _ => {}
        }
    }
    false
}

/// Whether the subgroups of a row of that many columns exchange both sums at once: where rows are
/// staged, so that no tile that uses the mean is kept, and every subgroup has as many elements as
/// the others. The program has [`moments`].
pub fn exchanged(columns: u64, mapping: &RowMapping) -> bool {
    let chunk = mapping.workers().saturating_mul(mapping.vector.into()).max(1);
    let sharers = u64::from(mapping.subgroups) * u64::from(mapping.cluster);
    mapping.stage
        && mapping.split == 1
        && sharers > 1
        && columns > 0
        && columns.is_multiple_of(chunk)
}
