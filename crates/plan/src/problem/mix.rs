//! Which elementwise operations one element of a domain costs.

use std::collections::{BTreeMap, HashMap, HashSet};

use tilewright_ir::Program;
use tilewright_ir::program::{AxisId, MapOp, Op, OpId, ValueId};

/// Counts of operations per element of a domain.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OpMix {
    /// Elementwise operations.
    pub maps: BTreeMap<MapOp, u64>,
    /// Conversions.
    pub casts: u64,
    /// Values of an index variable along the axis (iota).
    pub indices: u64,
}

impl OpMix {
    /// Number of operations.
    pub fn total(&self) -> u64 {
        self.maps.values().sum::<u64>() + self.casts + self.indices
    }
}

/// The defining operation of every value, loops' inner carries apart.
pub(crate) fn definitions(program: &Program) -> HashMap<ValueId, OpId> {
    let mut map = HashMap::new();
    for (id, data) in program.ops.iter() {
        for result in &data.results {
            map.insert(*result, id);
        }
    }
    map
}

/// Operations that computing `root` along `axis` costs per element, given that `leaves` are at
/// hand. Values without the axis are per-row set-up and cost nothing here; a shared value counts
/// once.
pub(crate) fn op_mix(
    program: &Program,
    definitions: &HashMap<ValueId, OpId>,
    root: ValueId,
    leaves: &HashSet<ValueId>,
    axis: AxisId,
) -> OpMix {
    let mut mix = OpMix::default();
    let mut seen = HashSet::new();
    let mut stack = vec![root];
    while let Some(value) = stack.pop() {
        let has_axis = program.values.get(value).is_some_and(|v| v.ty.axes.contains(&axis));
        // The root itself is computed even when it is one of the stripes (it is the one filled).
        if !has_axis || !seen.insert(value) || (value != root && leaves.contains(&value)) {
            continue;
        }
        let Some(data) = definitions.get(&value).and_then(|op| program.ops.get(*op)) else {
            continue;
        };
        match &data.op {
            Op::Map { op, args } => {
                *mix.maps.entry(*op).or_default() += 1;
                stack.extend(args.iter().copied());
            }
            Op::Cast(arg) => {
                mix.casts += 1;
                stack.push(*arg);
            }
            Op::Broadcast(arg) | Op::Reindex { value: arg, .. } => stack.push(*arg),
            Op::Index { .. } => mix.indices += 1,
            // Everything else is at hand per row, or isn't part of a column's arithmetic.
            _ => {}
        }
    }
    mix
}
