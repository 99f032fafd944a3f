//! Cost policies: one whole-launch score per legal candidate.
//!
//! A policy never decides legality, and it fails closed: a missing fact, a coefficient or a score
//! that isn't finite or is negative is an error, never a zero. A policy of your own implements
//! [`Policy`] and goes wherever a built-in one does.

pub mod coefficients;
pub mod cpu;
pub mod cpu_matrix;
pub mod cpu_rows;
pub mod gpu;
mod gpu_apart;
pub mod gpu_matrix;
pub mod gpu_rows;
pub mod matrix_mpp_v1;
pub mod matrix_mpp_v2;
pub mod matrix_mpp_v3;
pub mod matrix_simdgroup_v1;
pub mod reduction_service;
pub mod reduction_v1;
pub mod whole_launch;

use std::fmt;

use crate::mapping::{Mapping, MatrixBasis};
use crate::matrix::MatrixCounts;
use crate::problem::Problem;
use crate::profile::{Profile, ProfileError};
use crate::rows::RowCounts;
use crate::target::{Target, TargetKind};

/// The unit of a policy's scores. Scores of different units never meet in one ranking.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Unit {
    /// Relative work; only the order means anything.
    RelativeWork,
    /// Microseconds as fitted.
    Microseconds,
    /// Estimated processor cycles.
    Cycles,
    /// Of a policy of your own.
    Other(String),
}

impl Unit {
    /// The name in reports.
    pub fn name(&self) -> &str {
        match self {
            Unit::RelativeWork => "relative-work",
            Unit::Microseconds => "us",
            Unit::Cycles => "cycles",
            Unit::Other(name) => name,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The score of one candidate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Score {
    /// Cost of one program (for `reduction-service` the local term).
    pub program: f64,
    /// Waves in which the machine takes the launch, at least 1, fractional.
    pub waves: f64,
    /// Cost of the whole launch. This alone orders candidates.
    pub kernel: f64,
}

impl Score {
    /// Whether the score may enter a ranking: finite, not negative, at least one wave.
    pub fn is_valid(&self) -> bool {
        let usable = |x: f64| x.is_finite() && x >= 0.0;
        usable(self.program) && usable(self.kernel) && self.waves.is_finite() && self.waves >= 1.0
    }
}

/// One addend of a score, for explanations.
#[derive(Clone, PartialEq, Debug)]
pub struct Term {
    /// What it prices.
    pub name: String,
    /// Its share, in the policy's unit.
    pub value: f64,
}

impl Term {
    /// A term.
    pub fn new(name: &str, value: f64) -> Self {
        Term { name: name.to_string(), value }
    }
}

/// Closed-form facts of a candidate.
#[derive(Clone, PartialEq, Debug)]
pub enum CandidateFacts {
    /// Of a row mapping.
    Rows(RowCounts),
    /// Of a matrix mapping.
    Matrix(MatrixCounts),
    /// Of a CPU matrix mapping.
    CpuMatrix(cpu_matrix::CpuMatrixCounts),
    /// Of a GPU register-tile mapping.
    GpuMatrix(gpu_matrix::GpuMatrixCounts),
}

/// What a policy sees of a legal candidate.
#[derive(Clone, Copy, Debug)]
pub struct CandidateView<'a> {
    /// The machine.
    pub target: &'a Target,
    /// The problem.
    pub problem: Problem<'a>,
    /// The mapping.
    pub mapping: &'a Mapping,
    /// Its closed-form facts.
    pub facts: &'a CandidateFacts,
    /// Threads that share the launch on a CPU; 1 on a GPU.
    pub cpu_threads: u32,
}

/// How the fragments of an MPP operation are charged against the lane budget (reference 2 rule 4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FragmentGate {
    /// rm·rn + rm + rn ≤ 32.
    WithOperands,
    /// rm·rn ≤ 32 (the v3 revision, MPP only).
    AccumulatorsOnly,
}

/// The matrix space that a policy is meant for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MatrixRules {
    /// Atoms.
    pub basis: MatrixBasis,
    /// Fragment gate of MPP.
    pub gate: FragmentGate,
}

/// A cost policy. Pure: the score depends on the arguments and the policy's own coefficients only.
pub trait Policy: Send + Sync {
    /// Its name.
    fn name(&self) -> &str;

    /// The unit of its scores.
    fn unit(&self) -> Unit;

    /// Everything that its scores depend on, as canonical text; part of a plan's key.
    fn parameters(&self) -> String;

    /// The matrix space that it ranks.
    fn matrix_rules(&self) -> MatrixRules {
        MatrixRules { basis: MatrixBasis::Mpp, gate: FragmentGate::WithOperands }
    }

    /// Whether it ranks the spaces of registers (`crate::space::gpu_rows`, `gpu_matrix`) on GPUs
    /// that state their registers, instead of the reference's.
    fn register_spaces(&self) -> bool {
        false
    }

    /// The score of a legal candidate.
    ///
    /// # Errors
    /// The candidate is of a family or target that the policy doesn't price, a fact is unknown,
    /// or a coefficient can't be used.
    fn score(&self, candidate: &CandidateView<'_>) -> Result<Score, PolicyError>;

    /// The addends of the score, in the order in which they are added, for explanations.
    fn terms(&self, _candidate: &CandidateView<'_>) -> Vec<Term> {
        Vec::new()
    }

    /// What the policy says about its trust in the winner, given the kernel scores of all legal
    /// candidates in any order; `None` if it can't say.
    fn advise(
        &self,
        _winner: &CandidateView<'_>,
        _scores: &mut [f64],
    ) -> Option<whole_launch::advice::Advice> {
        None
    }
}

/// Why a policy gave no score.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum PolicyError {
    /// No policy of that name.
    #[error("unknown policy `{name}`: use {}", NAMES.join(", "))]
    Unknown {
        /// The name asked for.
        name: String,
    },
    /// Another family or target than the policy prices.
    #[error("policy `{policy}` doesn't price {what}")]
    Unsupported {
        /// The policy.
        policy: String,
        /// What it was asked for.
        what: String,
    },
    /// A fact that the policy needs is unknown or zero.
    #[error("policy `{policy}` needs {fact}: {reason}")]
    MissingFact {
        /// The policy.
        policy: String,
        /// The fact.
        fact: String,
        /// Why it isn't known.
        reason: String,
    },
    /// A coefficient that isn't finite or is negative.
    #[error("coefficient `{name}` of policy `{policy}` is {value}: it must be finite and {bound}")]
    Coefficient {
        /// The policy.
        policy: String,
        /// The coefficient.
        name: String,
        /// Its value in words, since it may be NaN.
        value: String,
        /// `not negative` or `positive`.
        bound: &'static str,
    },
    /// A score that can't be ranked.
    #[error(
        "finite-score: policy `{policy}` gave program score {program}, waves {waves}, kernel score \
         {kernel}: scores are finite and not negative, with at least one wave"
    )]
    Score {
        /// The policy.
        policy: String,
        /// Program score in words.
        program: String,
        /// Waves in words.
        waves: String,
        /// Kernel score in words.
        kernel: String,
    },
    /// A profile that can't be used.
    #[error(transparent)]
    Profile(#[from] ProfileError),
}

/// Names of the built-in policies.
pub const NAMES: [&str; 9] = [
    matrix_simdgroup_v1::NAME,
    matrix_mpp_v1::NAME,
    matrix_mpp_v2::NAME,
    matrix_mpp_v3::NAME,
    reduction_v1::NAME,
    reduction_service::NAME,
    cpu::NAME,
    gpu::NAME,
    whole_launch::NAME,
];

/// A built-in policy by name, with the profile that it is to use, if any.
///
/// Without a profile `reduction-service` has the published fit for the Apple M1 Max, and prices
/// that target only. With the profile `analytic` it is `reduction-v1`. `whole-launch` has no
/// coefficients but its profile's.
///
/// # Errors
/// The name is unknown, or the policy takes no profile, or the profile is of another policy.
pub fn by_name(name: &str, profile: Option<&Profile>) -> Result<Box<dyn Policy>, PolicyError> {
    if !NAMES.contains(&name) {
        return Err(PolicyError::Unknown { name: name.to_string() });
    }
    let analytic = profile == Some(&Profile::Analytic);
    if analytic && name == reduction_service::NAME {
        return Ok(Box::new(reduction_v1::ReductionV1::default()));
    }
    if let Some(profile) = profile
        && profile.policy() != name
    {
        return Err(ProfileError::Policy {
            profile: profile.policy().to_string(),
            policy: name.to_string(),
        }
        .into());
    }
    if let Some(Profile::Named(named)) = profile {
        return Ok(named.load()?);
    }
    Ok(match name {
        whole_launch::NAME => match profile {
            Some(Profile::WholeLaunch(whole)) => Box::new(whole.policy()),
            _ => return Err(ProfileError::Needed(name.to_string()).into()),
        },
        matrix_simdgroup_v1::NAME => Box::new(matrix_simdgroup_v1::MatrixSimdgroupV1::default()),
        matrix_mpp_v1::NAME => Box::new(matrix_mpp_v1::MatrixMppV1::default()),
        matrix_mpp_v2::NAME => Box::new(matrix_mpp_v2::MatrixMppV2::default()),
        matrix_mpp_v3::NAME => Box::new(matrix_mpp_v3::MatrixMppV3::default()),
        reduction_v1::NAME => Box::new(reduction_v1::ReductionV1::default()),
        reduction_service::NAME => Box::new(match profile {
            Some(Profile::Service(service)) => {
                reduction_service::ReductionService::of_profile(service)?
            }
            _ => reduction_service::ReductionService::default(),
        }),
        cpu::NAME => Box::new(cpu::Cpu::default()),
        gpu::NAME => Box::new(gpu::Gpu),
        _ => return Err(PolicyError::Unknown { name: name.to_string() }),
    })
}

/// The name of the policy that a target's problems are ranked with where none is asked for:
/// `cpu` on CPUs; `gpu` on GPUs whose registers are known; on others `reduction-v1` for rows and for
/// matrix products `matrix-mpp-v2`, or `matrix-simdgroup-v1` where there are 8x8 fragments and no
/// tensor operations.
pub fn default_name(target: &Target, rows: bool) -> &'static str {
    match (&target.kind, rows) {
        (TargetKind::Cpu(_), _) => cpu::NAME,
        (TargetKind::Gpu(gpu), _) if gpu.states_registers() => gpu::NAME,
        (TargetKind::Gpu(_), true) => reduction_v1::NAME,
        // A device without tensor operations still has 8x8 fragments.
        (TargetKind::Gpu(gpu), false) if gpu.matrix == [MatrixBasis::Simdgroup] => {
            matrix_simdgroup_v1::NAME
        }
        (TargetKind::Gpu(_), false) => matrix_mpp_v2::NAME,
    }
}

/// The error of a policy that doesn't price a candidate.
pub(crate) fn unsupported(policy: &str, candidate: &CandidateView<'_>) -> PolicyError {
    let what = match (&candidate.target.kind, candidate.mapping) {
        (TargetKind::Cpu(_), Mapping::Rows(_)) => "rows on a CPU",
        (TargetKind::Gpu(_), Mapping::Rows(_)) => "rows on a GPU",
        (TargetKind::Cpu(_), _) => "a matrix product on a CPU",
        (TargetKind::Gpu(_), Mapping::Matrix(m)) => match m.basis {
            MatrixBasis::Simdgroup => "a matrix product of simdgroup fragments",
            MatrixBasis::Mpp => "a matrix product of MPP operations",
        },
        (TargetKind::Gpu(_), Mapping::CpuMatrix(_)) => "CPU register tiles on a GPU",
        (TargetKind::Gpu(_), Mapping::GpuMatrix(_)) => "a matrix product of GPU register tiles",
    };
    PolicyError::Unsupported { policy: policy.to_string(), what: what.to_string() }
}

/// Checks that a score may enter a ranking.
///
/// # Errors
/// It isn't finite, is negative, or has less than one wave.
pub fn check_score(policy: &str, score: Score) -> Result<Score, PolicyError> {
    if score.is_valid() {
        Ok(score)
    } else {
        Err(PolicyError::Score {
            policy: policy.to_string(),
            program: score.program.to_string(),
            waves: score.waves.to_string(),
            kernel: score.kernel.to_string(),
        })
    }
}
