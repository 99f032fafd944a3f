//! The matrix space on GPUs (reference 2): blocks × pipeline windows × group widths, each with
//! every exact grid of subgroups.

use super::Unscored;
use crate::legality::{self, Rejection, Rule};
use crate::mapping::{Mapping, MatrixMapping};
use crate::matrix::MatrixCounts;
use crate::policy::{CandidateFacts, MatrixRules};
use crate::problem::MatrixProblem;
use crate::request::{PlanError, SpaceOptions};
use crate::target::GpuFacts;

/// The 15 blocks (BM, BN, BK) of the reference's cohort.
pub const DEFAULT_BLOCKS: [[u64; 3]; 15] = [
    [32, 32, 32],
    [32, 64, 32],
    [64, 64, 32],
    [32, 32, 128],
    [32, 128, 128],
    [64, 64, 128],
    [128, 32, 128],
    [32, 32, 256],
    [64, 64, 256],
    [32, 128, 512],
    [64, 64, 512],
    [128, 32, 512],
    [32, 128, 1024],
    [64, 64, 1024],
    [128, 32, 1024],
];

/// The group widths of the reference's cohort.
pub const DEFAULT_THREADS: [u32; 3] = [64, 128, 256];

/// One (block, threads) of the space with its distributions. The best legal one stands for it.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// Distributions, gm ascending. Never empty.
    pub distributions: Vec<Unscored>,
}

/// Every entry, in this order: block, window, width, each in the order of its list. Ties in score
/// keep the earlier entry, and within an entry the smaller gm.
///
/// A block extent that the program fixes takes the place of the default; one that the options
/// give must equal it.
///
/// # Errors
/// A width that is no multiple of a subgroup or over the target's limit, a window outside 1..=2,
/// or more entries than the budget.
pub fn entries(
    problem: &MatrixProblem,
    gpu: &GpuFacts,
    rules: MatrixRules,
    options: &SpaceOptions,
) -> Result<Vec<Entry>, PlanError> {
    let blocks = match &options.blocks {
        Some(blocks) => blocks.clone(),
        None => default_blocks(problem),
    };
    let stages = options.stages.clone().unwrap_or_else(|| vec![1]);
    let widths = options.threads.clone().unwrap_or_else(|| DEFAULT_THREADS.to_vec());
    let budget = options.max_candidates;
    let count = blocks.len().saturating_mul(stages.len()).saturating_mul(widths.len());
    if count > budget || widths.len() > options.max_thread_candidates {
        let detail = format!(
            "{count} candidates of {} widths, at most {budget} of {}",
            widths.len(),
            options.max_thread_candidates
        );
        return Err(PlanError::illegal(Rule::SearchBudget, detail));
    }
    if let Some(window) = stages.iter().find(|s| !(1..=2).contains(*s)) {
        return Err(PlanError::illegal(Rule::StageRange, format!("window {window}")));
    }
    for &threads in &widths {
        if threads > gpu.max_threads {
            let detail = format!("{threads} threads, at most {}", gpu.max_threads);
            return Err(PlanError::illegal(Rule::ThreadsLimit, detail));
        }
        if threads == 0 || !threads.is_multiple_of(gpu.lanes.max(1)) {
            let detail = format!("{threads} threads, not a multiple of {}", gpu.lanes);
            return Err(PlanError::illegal(Rule::ThreadsMultiple, detail));
        }
    }
    let mut out = Vec::with_capacity(count);
    for &block in &blocks {
        for &window in &stages {
            for &threads in &widths {
                let subgroups = u64::from(threads / gpu.lanes.max(1));
                let distributions = divisors(subgroups)
                    .into_iter()
                    .map(|gm| {
                        let grid = [gm, subgroups / gm];
                        let space = Space { problem, gpu, rules, options };
                        space.distribution(block, window, threads, grid)
                    })
                    .collect();
                out.push(Entry { distributions });
            }
        }
    }
    Ok(out)
}

/// The cohort's blocks, with the extents that the program fixes in place of theirs.
fn default_blocks(problem: &MatrixProblem) -> Vec<[u64; 3]> {
    let mut blocks: Vec<[u64; 3]> = Vec::new();
    for mut block in DEFAULT_BLOCKS {
        for (extent, fixed) in block.iter_mut().zip(problem.fixed_block) {
            *extent = fixed.unwrap_or(*extent);
        }
        if !blocks.contains(&block) {
            blocks.push(block);
        }
    }
    blocks
}

struct Space<'a> {
    problem: &'a MatrixProblem,
    gpu: &'a GpuFacts,
    rules: MatrixRules,
    options: &'a SpaceOptions,
}

impl Space<'_> {
    fn distribution(
        &self,
        block: [u64; 3],
        stages: u32,
        threads: u32,
        subgroups: [u64; 2],
    ) -> Unscored {
        let mut mapping = realise(self.problem, self.rules, self.options, block);
        mapping.threads = threads;
        mapping.stages = stages;
        mapping.subgroups = subgroups;
        let verdict = self.check(&mut mapping);
        Unscored {
            facts: CandidateFacts::Matrix(MatrixCounts::new(self.problem, &mapping)),
            mapping: Mapping::Matrix(mapping),
            verdict,
        }
    }

    /// Rules 1 to 5 in order; fills in the atoms once the cover is exact.
    fn check(&self, mapping: &mut MatrixMapping) -> Result<(), Rejection> {
        let MatrixMapping { basis, block, stages, subgroups, .. } = *mapping;
        legality::matrix::check_block(self.problem, self.gpu, basis, block, stages)?;
        let (u, v) = (block[0] / 8, block[1] / 8);
        if u.is_multiple_of(subgroups[0]) && v.is_multiple_of(subgroups[1]) {
            mapping.atoms = [u / subgroups[0], v / subgroups[1]];
        }
        let gate = self.rules.gate;
        mapping.atoms =
            legality::matrix::check_distribution(self.gpu, basis, gate, block, subgroups)?;
        legality::matrix::check_shared(self.problem, self.gpu, mapping)
    }
}

/// The realisation of a block: what is forwarded, kept and stored directly follows from proofs,
/// unless the options forbid it. Width and distribution are left open.
pub fn realise(
    problem: &MatrixProblem,
    rules: MatrixRules,
    options: &SpaceOptions,
    block: [u64; 3],
) -> MatrixMapping {
    let direct = options.direct_output && problem.outputs_directly(block);
    MatrixMapping {
        basis: rules.basis,
        block,
        threads: 0,
        subgroups: [0, 0],
        atoms: [0, 0],
        forward_a: options.forward_operands && problem.forwards(0, block),
        forward_b: options.forward_operands && problem.forwards(1, block),
        persistent: (options.retain_accumulators && problem.recurrence) || direct,
        direct,
        overwrite: direct && problem.overwrites(block),
        stages: 1,
    }
}

/// Divisors of n in ascending order.
pub fn divisors(n: u64) -> Vec<u64> {
    let mut small = Vec::new();
    let mut large = Vec::new();
    let mut d = 1;
    while d * d <= n {
        if n.is_multiple_of(d) {
            small.push(d);
            if d != n / d {
                large.push(n / d);
            }
        }
        d += 1;
    }
    small.extend(large.into_iter().rev());
    small
}
