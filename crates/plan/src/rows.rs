//! Closed forms of row mappings (reference 5.1 to 5.4). Lowering asserts that what it emits
//! equals them.

use tilewright_ir::facts::Payload;

use crate::mapping::RowMapping;
use crate::problem::RowProblem;
use crate::problem::moments::exchanged;

/// The longest worker stripe, in elements:
/// ⌊N/(W·V)⌋·V + min(N mod (W·V), V) (reference 5.1). This is the length of a private array.
///
/// `workers` and `vector` of 0 are taken as 1.
pub fn slots(columns: u64, workers: u64, vector: u64) -> u64 {
    let vector = vector.max(1);
    let chunk = workers.max(1).saturating_mul(vector);
    columns / chunk * vector + (columns % chunk).min(vector)
}

/// Shared bytes of one group: one slot of each reduction's accumulation type per subgroup of the
/// program, if several subgroups share a row (for f32, 4·reductions·S·C), and what is staged; for
/// each row of a batch. A reduction with a stated order has none: every worker folds all elements.
pub fn shared_bytes(problem: &RowProblem, mapping: &RowMapping) -> u64 {
    let sharers = u64::from(mapping.subgroups) * u64::from(mapping.cluster);
    let mut bytes = staged_bytes(problem, mapping);
    if sharers > 1 {
        let free = problem.reductions.iter().filter(|r| r.unordered);
        let slot: u64 = free.map(|r| r.dtype.accumulator().bytes()).sum();
        bytes = bytes.saturating_add(slot * sharers);
    }
    bytes.saturating_mul(u64::from(mapping.batch))
}

/// Bytes of shared memory in which one group stages its part of one row: whole chunks of every
/// input that is copied, at the longest length; 0 without staging.
pub fn staged_bytes(problem: &RowProblem, mapping: &RowMapping) -> u64 {
    if !mapping.stage {
        return 0;
    }
    let chunk = mapping.workers().saturating_mul(mapping.vector.into()).max(1);
    let own = mapping.group_workers().saturating_mul(mapping.vector.into());
    let chunks = problem.columns_max.div_ceil(chunk);
    chunks.saturating_mul(own).saturating_mul(problem.copied.bytes)
}

/// Barrier sites of one group: one per reduction in any order, if several subgroups share a row
/// (one for both moments where they are exchanged at once), and in a cluster one more, behind which
/// every group of it has started. Where a leader exchanges, its group meets before each exchange.
pub fn barriers(problem: &RowProblem, mapping: &RowMapping) -> u64 {
    let free = problem.reductions.iter().filter(|r| r.unordered).count() as u64;
    let known = problem.columns == problem.columns_max;
    let free = free - u64::from(problem.moments && known && exchanged(problem.columns, mapping));
    match (mapping.subgroups, mapping.cluster) {
        (1, 1) => 0,
        (_, 1) => free,
        _ => free * (1 + u64::from(mapping.leader)) + u64::from(free > 0),
    }
}

/// What a row mapping amounts to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RowCounts {
    /// Threads of a group, S·L·P.
    pub threads: u64,
    /// Program instances.
    pub programs: u64,
    /// Groups: G·C·⌈n/(P·B)⌉ along the innermost grid dimension of n programs, times the others.
    pub groups: u64,
    /// Longest worker stripe in elements, at the nominal length.
    pub slots: u64,
    /// 4-byte scalars of stripes per worker, at the nominal length.
    pub private_scalars: u64,
    /// 4-byte scalars of stripes per worker at the longest length that the program allows.
    pub private_scalars_max: u64,
    /// Bytes of stripes of a whole program's workers at the longest length.
    pub stripe_bytes_max: u64,
    /// Distributed domains, reductions included.
    pub domains: u64,
    /// Column-loop iterations of one worker over all domains, each rounded up by itself:
    /// slots · domains.
    pub scalar_rounds: u64,
    /// Reductions.
    pub reductions: u64,
    /// Elements folded by a program: reductions · N.
    pub reduction_elements: u64,
    /// Elements of the other domains of a program.
    pub independent_elements: u64,
    /// Share of the workers' rounds that meet an element, 0 to 1; 1 when there is nothing to do.
    pub lane_utilization: f64,
    /// Shared bytes of a group.
    pub shared_bytes: u64,
    /// Barrier sites of a group.
    pub barriers: u64,
    /// Payload bytes of a program, if known.
    pub program_bytes: Option<Payload>,
    /// Payload bytes of the busiest worker, if known.
    pub worker_bytes: Option<Payload>,
}

impl RowCounts {
    /// Counts a mapping of a problem.
    pub fn new(problem: &RowProblem, mapping: &RowMapping) -> Self {
        let all = problem.variant(mapping.cache);
        // A launch finds nothing of the one before but partial results.
        let apart = (mapping.split > 1).then(|| all.without_stripes());
        let variant = apart.as_ref().unwrap_or(all);
        let workers = mapping.workers();
        let slots_of = |columns| slots(columns, workers, mapping.vector.into());
        let slots = slots_of(problem.columns);
        let slots_max = slots_of(problem.columns_max);
        let domains = variant.domains.len() as u64;
        let reductions = problem.reductions.len() as u64;
        let scalar_rounds = slots.saturating_mul(domains);
        let capacity = scalar_rounds.saturating_mul(workers);
        let payload = variant.payload.proved();
        let (scalars, bytes) = match mapping.ahead {
            true => (variant.ahead_scalars, variant.ahead_bytes),
            false => (0, 0),
        };
        let (scalars, bytes) = match mapping.stage {
            true => (scalars, bytes),
            false => (variant.slot_scalars + scalars, variant.slot_bytes + bytes),
        };
        let batch = u64::from(mapping.batch);
        let (scalars, bytes) = (scalars.saturating_mul(batch), bytes.saturating_mul(batch));
        let inner = problem.inner.max(1);
        let rows = inner.div_ceil(mapping.programs().max(1));
        RowCounts {
            threads: mapping.threads(),
            programs: problem.programs,
            groups: (problem.programs / inner)
                .saturating_mul(rows)
                .saturating_mul(u64::from(mapping.cluster))
                .saturating_mul(u64::from(mapping.split)),
            slots,
            private_scalars: slots.saturating_mul(scalars),
            private_scalars_max: slots_max.saturating_mul(scalars),
            stripe_bytes_max: slots_max.saturating_mul(workers).saturating_mul(bytes),
            domains,
            scalar_rounds,
            reductions,
            reduction_elements: reductions.saturating_mul(problem.columns),
            independent_elements: domains
                .saturating_sub(reductions)
                .saturating_mul(problem.columns),
            lane_utilization: if capacity == 0 {
                1.0
            } else {
                domains.saturating_mul(problem.columns) as f64 / capacity as f64
            },
            shared_bytes: shared_bytes(problem, mapping),
            barriers: barriers(problem, mapping),
            program_bytes: payload.map(|p| scale(p, problem.columns)),
            worker_bytes: payload.map(|p| scale(p, slots)),
        }
    }
}

/// Payload bytes of `count` columns.
fn scale(payload: &Payload, count: u64) -> Payload {
    Payload {
        global_read: payload.global_read.saturating_mul(count),
        global_write: payload.global_write.saturating_mul(count),
        private_read: payload.private_read.saturating_mul(count),
        private_write: payload.private_write.saturating_mul(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_the_longest_stripe_by_enumeration() {
        for workers in [1u64, 3, 32, 96] {
            for vector in [1u64, 2, 4, 8] {
                for columns in (0..200).chain([769, 1537, 8193]) {
                    let mut stripes = vec![0u64; workers as usize];
                    for element in 0..columns {
                        // Element e belongs to worker ⌊e/V⌋ mod W.
                        stripes[((element / vector) % workers) as usize] += 1;
                    }
                    let longest = stripes.into_iter().max().unwrap_or(0);
                    assert_eq!(slots(columns, workers, vector), longest);
                }
            }
        }
    }
}
