//! Groups that run several matrix products in one program: one width for all, a distribution for
//! each, and shared memory that they share (reference 2 and 2.1).
//!
//! For each width, matrices are added one at a time while a frontier of partial choices is kept:
//! a partial choice is dropped when another has a score no larger and has released no fewer bytes.
//! So a slower choice that releases more memory survives until the capacity is known to allow the
//! faster one. A strictly smaller kernel score wins; ties keep the earlier width and the smaller
//! gm.

use crate::legality::{self, Rejection, Rule};
use crate::mapping::{MatrixBasis, MatrixMapping};
use crate::matrix::MatrixCounts;
use crate::policy::matrix_mpp_v2::MatrixMppV2;
use crate::policy::matrix_simdgroup_v1::{MatrixSimdgroupV1, SimdgroupWork};
use crate::policy::{FragmentGate, PolicyError, Score};
use crate::problem::MatrixProblem;
use crate::request::PlanError;
use crate::space::matrix::divisors;
use crate::target::GpuFacts;

/// Fragment scalars per lane of the one-atom-at-a-time realisation: A, B and C of one atom.
const REFERENCE_SCALARS: u64 = 6;

/// Group width of the plain realisation where nothing asks for another.
const PLAIN_THREADS: u32 = 256;

/// One matrix product of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoupledMatrix {
    /// BM, BN, BK.
    pub block: [u64; 3],
    /// Executions per program, E.
    pub executions: u64,
    /// The accumulator is a closed recurrence, so fragments may keep it.
    pub recurrence: bool,
    /// Fragments may be stored straight to the output.
    pub direct: bool,
    /// A single execution may overwrite.
    pub overwrite: bool,
}

impl CoupledMatrix {
    /// A product with a closed recurrence and no other proof.
    pub fn new(block: [u64; 3], executions: u64) -> Self {
        CoupledMatrix { block, executions, recurrence: true, direct: false, overwrite: false }
    }

    /// Bytes of the shared buffers of C and D.
    fn result_bytes(&self) -> u64 {
        self.block[0].saturating_mul(self.block[1]).saturating_mul(8)
    }
}

/// A program with several matrix products.
#[derive(Clone, PartialEq, Debug)]
pub struct CoupledProgram {
    /// The products, in program order.
    pub matrices: Vec<CoupledMatrix>,
    /// Program instances.
    pub programs: u64,
    /// Shared bytes of the program before fragments release any: staged operands and the buffers
    /// of every C and D.
    pub shared_bytes: u64,
    /// Elements of scalar loops of one program.
    pub independent_elements: u64,
}

/// What the planner may choose.
#[derive(Clone, PartialEq, Debug)]
pub struct CoupledOptions {
    /// Atoms.
    pub basis: MatrixBasis,
    /// Exact width asked for.
    pub threads: Option<u32>,
    /// Look for distributions at all; otherwise the plain realisation is taken.
    pub optimize: bool,
    /// Keep accumulators in fragments where proved.
    pub retain_accumulators: bool,
    /// Store fragments straight to the output where proved.
    pub direct_output: bool,
    /// Most widths that are tried.
    pub max_thread_candidates: usize,
    /// Elements that one copy moves, 1 to 16.
    pub max_copy_batch: u32,
    /// Prices of simdgroup fragments.
    pub simdgroup: MatrixSimdgroupV1,
    /// Prices of MPP operations.
    pub mpp: MatrixMppV2,
}

impl CoupledOptions {
    /// Defaults for a basis.
    pub fn new(basis: MatrixBasis) -> Self {
        CoupledOptions {
            basis,
            threads: None,
            optimize: true,
            retain_accumulators: true,
            direct_output: true,
            max_thread_candidates: 32,
            max_copy_batch: 1,
            simdgroup: MatrixSimdgroupV1::default(),
            mpp: MatrixMppV2::default(),
        }
    }
}

/// How one matrix is spread over the subgroups of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Distribution {
    /// Subgroups take atoms in turn, one at a time; accumulators live in shared memory.
    Reference,
    /// A grid of gm × gn subgroups, each with rm × rn atoms.
    Rectangular {
        /// gm, gn.
        subgroups: [u64; 2],
        /// rm, rn.
        atoms: [u64; 2],
        /// The accumulator stays in fragments.
        persistent: bool,
        /// Fragments go straight to the output.
        direct: bool,
    },
}

impl Distribution {
    /// Subgroup and slot of atom (i, j) of a rectangular distribution (reference 1.4 rule 2).
    pub fn owner(&self, i: u64, j: u64) -> Option<(u64, u64)> {
        match *self {
            Distribution::Reference => None,
            Distribution::Rectangular { subgroups: [_, gn], atoms: [rm, rn], .. } => {
                Some((i / rm * gn + j / rn, i % rm * rn + j % rn))
            }
        }
    }

    /// Bytes of C's and D's shared buffers that it releases.
    fn released(&self, matrix: &CoupledMatrix) -> u64 {
        match *self {
            Distribution::Rectangular { direct: true, .. } => matrix.result_bytes(),
            Distribution::Rectangular { persistent: true, .. } => matrix.result_bytes() / 2,
            _ => 0,
        }
    }

    /// Checks that a distribution covers its matrix exactly and uses no proof that is missing.
    ///
    /// # Errors
    /// Names the rule.
    pub fn verify(&self, matrix: &CoupledMatrix) -> Result<(), Rejection> {
        let Distribution::Rectangular { subgroups, atoms, persistent, direct } = *self else {
            return Ok(());
        };
        let exact = (0..2).all(|i| {
            matrix.block[i].is_multiple_of(8)
                && atoms[i] > 0
                && subgroups[i].checked_mul(atoms[i]) == Some(matrix.block[i] / 8)
        });
        if !exact {
            let detail = format!("{subgroups:?} of {atoms:?} atoms over {:?}", matrix.block);
            return Err(Rejection::new(Rule::SubgroupCover, detail));
        }
        if (persistent && !matrix.recurrence) || (direct && !(persistent && matrix.direct)) {
            let detail = "the realisation uses a proof that wasn't made".to_string();
            return Err(Rejection::new(Rule::UnprovedRealisation, detail));
        }
        Ok(())
    }
}

/// The plan of a program with several matrix products.
#[derive(Clone, PartialEq, Debug)]
pub struct CoupledPlan {
    /// Threads of a group.
    pub threads: u32,
    /// Whether distributions were chosen by score; otherwise it is the plain realisation.
    pub optimized: bool,
    /// Distribution of each matrix.
    pub distributions: Vec<Distribution>,
    /// Shared bytes after release.
    pub shared_bytes: u64,
    /// Score; `None` for the plain realisation.
    pub score: Option<Score>,
    /// Distributions considered: per width and matrix one (the reference realisation) plus the
    /// divisors of the number of subgroups.
    pub considered: u64,
    /// Of these, rejected by rules 2 to 4, plus whole choices that exceed the capacity.
    pub rejected: u64,
}

/// A choice for the first matrices of the program.
#[derive(Clone, Debug)]
struct Partial {
    score: f64,
    released: u64,
    distributions: Vec<Distribution>,
}

/// Plans a program with several matrix products.
///
/// # Errors
/// A block extent that is no multiple of 8, more threads or widths than allowed, coefficients or
/// a copy batch out of range, or no choice that fits the shared memory.
pub fn plan_coupled(
    program: &CoupledProgram,
    gpu: &GpuFacts,
    options: &CoupledOptions,
) -> Result<CoupledPlan, PlanError> {
    check_options(options)?;
    for matrix in &program.matrices {
        let block = matrix.block;
        if block.iter().any(|b| *b == 0 || !b.is_multiple_of(8)) {
            let detail = format!("block {}x{}x{}", block[0], block[1], block[2]);
            return Err(PlanError::illegal(Rule::BlockMultiple, detail));
        }
    }
    if let Some(threads) = options.threads
        && (threads == 0 || threads > gpu.max_threads)
    {
        let detail = format!("{threads} threads, at most {}", gpu.max_threads);
        return Err(PlanError::illegal(Rule::ThreadsLimit, detail));
    }
    let lanes = gpu.lanes.max(1);
    let whole = options.threads.is_none_or(|t| t.is_multiple_of(lanes));
    if !options.optimize || program.matrices.is_empty() || gpu.max_threads < lanes || !whole {
        return plain(program, gpu, options);
    }

    let widths: Vec<u64> = match options.threads {
        Some(threads) => vec![u64::from(threads / lanes)],
        None => {
            let count = gpu.max_threads / lanes;
            if count as usize > options.max_thread_candidates {
                let budget = options.max_thread_candidates;
                let detail = format!("{count} widths, at most {budget}");
                return Err(PlanError::illegal(Rule::SearchBudget, detail));
            }
            (1..=u64::from(count)).collect()
        }
    };

    let (mut considered, mut rejected) = (0, 0);
    let mut best: Option<CoupledPlan> = None;
    for subgroups in widths {
        let width = Width { program, gpu, options, subgroups };
        let mut frontier = vec![Partial { score: 0.0, released: 0, distributions: Vec::new() }];
        for matrix in &program.matrices {
            let choices = width.choices(matrix, &mut considered, &mut rejected);
            frontier = extend(&frontier, &choices);
        }
        for partial in frontier {
            let shared_bytes = program.shared_bytes.saturating_sub(partial.released);
            let score = width.score(partial.score);
            if shared_bytes > gpu.shared_bytes || !score.is_valid() {
                rejected += 1;
                continue;
            }
            let kernel = |plan: &CoupledPlan| plan.score.map_or(f64::INFINITY, |s| s.kernel);
            if best.as_ref().is_none_or(|b| score.kernel < kernel(b)) {
                best = Some(CoupledPlan {
                    threads: subgroups as u32 * lanes,
                    optimized: true,
                    distributions: partial.distributions,
                    shared_bytes,
                    score: Some(score),
                    considered: 0,
                    rejected: 0,
                });
            }
        }
    }
    match best {
        Some(plan) => Ok(CoupledPlan { considered, rejected, ..plan }),
        None => {
            let detail = format!(
                "no choice of {considered} fits {} bytes, the program has {} before release",
                gpu.shared_bytes, program.shared_bytes
            );
            Err(PlanError::illegal(Rule::SharedMemory, detail))
        }
    }
}

fn check_options(options: &CoupledOptions) -> Result<(), PlanError> {
    if options.max_thread_candidates == 0 {
        return Err(PlanError::illegal(Rule::SearchBudget, "a budget of 0 candidates"));
    }
    if !(1..=16).contains(&options.max_copy_batch) {
        let detail = format!("copy batch {}", options.max_copy_batch);
        return Err(PlanError::illegal(Rule::CopyBatch, detail));
    }
    let checked: Result<(), PolicyError> = match options.basis {
        MatrixBasis::Simdgroup => options.simdgroup.check(),
        MatrixBasis::Mpp => options.mpp.check(crate::policy::matrix_mpp_v2::NAME),
    };
    Ok(checked?)
}

/// The realisation without distributions: 256 threads, or what was asked for or the target allows.
fn plain(
    program: &CoupledProgram,
    gpu: &GpuFacts,
    options: &CoupledOptions,
) -> Result<CoupledPlan, PlanError> {
    if options.basis == MatrixBasis::Mpp && !program.matrices.is_empty() {
        let detail = "MPP operations have no plain realisation".to_string();
        return Err(PlanError::illegal(Rule::SubgroupCover, detail));
    }
    if program.shared_bytes > gpu.shared_bytes {
        let detail = format!("{} bytes, at most {}", program.shared_bytes, gpu.shared_bytes);
        return Err(PlanError::illegal(Rule::SharedMemory, detail));
    }
    Ok(CoupledPlan {
        threads: options.threads.unwrap_or(PLAIN_THREADS.min(gpu.max_threads)),
        optimized: false,
        distributions: vec![Distribution::Reference; program.matrices.len()],
        shared_bytes: program.shared_bytes,
        score: None,
        considered: 0,
        rejected: 0,
    })
}

/// Adds a matrix to every partial choice and keeps what no other choice beats.
fn extend(frontier: &[Partial], choices: &[(Distribution, f64, u64)]) -> Vec<Partial> {
    let mut kept: Vec<Partial> = Vec::new();
    for partial in frontier {
        for (distribution, score, released) in choices {
            let score = partial.score + score;
            let released = partial.released.saturating_add(*released);
            // The earlier of two equal choices stays.
            if kept.iter().any(|k| k.score <= score && k.released >= released) {
                continue;
            }
            kept.retain(|k| k.score < score || k.released > released);
            let mut distributions = partial.distributions.clone();
            distributions.push(*distribution);
            kept.push(Partial { score, released, distributions });
        }
    }
    kept
}

struct Width<'a> {
    program: &'a CoupledProgram,
    gpu: &'a GpuFacts,
    options: &'a CoupledOptions,
    subgroups: u64,
}

impl Width<'_> {
    /// Distributions of one matrix at this width, each with its share of the score and the bytes
    /// that it releases.
    fn choices(
        &self,
        matrix: &CoupledMatrix,
        considered: &mut u64,
        rejected: &mut u64,
    ) -> Vec<(Distribution, f64, u64)> {
        let options = self.options;
        let mut out = Vec::new();
        *considered += 1;
        // MPP operations have no one-atom-at-a-time alternative.
        if options.basis == MatrixBasis::Simdgroup {
            out.push((Distribution::Reference, self.reference_work(matrix), 0));
        }
        let persistent = options.retain_accumulators && matrix.recurrence;
        let direct = options.direct_output && persistent && matrix.direct;
        for gm in divisors(self.subgroups) {
            *considered += 1;
            let grid = [gm, self.subgroups / gm];
            let gate = FragmentGate::WithOperands;
            let checked = legality::matrix::check_distribution(
                self.gpu,
                options.basis,
                gate,
                matrix.block,
                grid,
            );
            let Ok(atoms) = checked else {
                *rejected += 1;
                continue;
            };
            let distribution =
                Distribution::Rectangular { subgroups: grid, atoms, persistent, direct };
            let work = self.rectangular_work(matrix, grid, atoms, persistent, direct);
            out.push((distribution, work, distribution.released(matrix)));
        }
        out
    }

    fn reference_work(&self, matrix: &CoupledMatrix) -> f64 {
        let [u, v, q] = matrix.block.map(|b| (b / 8) as f64);
        let issues = u * v * q * matrix.executions as f64;
        let accumulators = 2.0 * u * v * matrix.executions as f64;
        self.options.simdgroup.matrix_work(&SimdgroupWork {
            issues,
            transfers: 2.0 * issues + accumulators,
            scalars: REFERENCE_SCALARS as f64,
            atoms: u * v,
            subgroups: self.subgroups as f64,
        })
    }

    fn rectangular_work(
        &self,
        matrix: &CoupledMatrix,
        subgroups: [u64; 2],
        atoms: [u64; 2],
        persistent: bool,
        direct: bool,
    ) -> f64 {
        let [bm, bn, bk] = matrix.block;
        let mapping = MatrixMapping {
            basis: self.options.basis,
            block: matrix.block,
            threads: 0,
            subgroups,
            atoms,
            forward_a: false,
            forward_b: false,
            persistent,
            direct,
            overwrite: direct && matrix.overwrite && matrix.executions == 1,
            stages: 1,
        };
        let problem = MatrixProblem::plain(bm, bn, bk.saturating_mul(matrix.executions));
        let counts = MatrixCounts::new(&problem, &mapping);
        let scalars = counts.fragment_scalars_per_lane as f64;
        let width = self.subgroups as f64;
        match self.options.basis {
            MatrixBasis::Simdgroup => self.options.simdgroup.matrix_work(&SimdgroupWork {
                issues: counts.features.matrix_issues,
                transfers: counts.features.shared_fragment_transfers,
                scalars,
                atoms: (bm / 8 * (bn / 8)) as f64,
                subgroups: width,
            }),
            MatrixBasis::Mpp => self.options.mpp.matrix_work(&counts.features, scalars, width),
        }
    }

    /// The whole-launch score from the sum over matrices.
    fn score(&self, matrices: f64) -> Score {
        let elements = self.program.independent_elements as f64;
        let programs = self.program.programs as f64;
        let width = self.subgroups as f64;
        let (once, waves) = match self.options.basis {
            MatrixBasis::Simdgroup => {
                let policy = &self.options.simdgroup;
                (policy.program_work(elements, width), policy.waves(programs))
            }
            MatrixBasis::Mpp => {
                let policy = &self.options.mpp;
                (policy.program_work(elements, width), policy.waves(programs, width))
            }
        };
        let program = matrices + once;
        Score { program, waves, kernel: program * waves }
    }
}
