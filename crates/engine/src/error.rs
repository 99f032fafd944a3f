//! Errors of the road from a program to a checked result.

use crate::launch_error::LaunchError;
use tilewright_ir::verify::VerifyError;
use tilewright_kernel::lower::LowerError;
use tilewright_plan::{PlanError, PolicyError};
use tilewright_runtime::RuntimeError;

/// What went wrong between a program and its result.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum EngineError {
    /// The program breaks rules.
    #[error("the program is invalid: {}", lines(.0))]
    Invalid(Vec<VerifyError>),
    /// Planning failed.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// There is no such policy, or it can't be used.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A plan can't be lowered, and the next in rank may not be taken: the rule says that
    /// Tilewright contradicts itself.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// Every legal candidate was rejected after planning.
    #[error("every legal candidate of `{program}` was rejected: {}", by_rule(.rejected))]
    Rejected {
        /// The program.
        program: String,
        /// Each with its reason, in rank order.
        rejected: Vec<RejectedPlan>,
    },
    /// The device or its memory failed.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A launch was refused or failed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The oracle couldn't compute the reference.
    #[error("the oracle failed: {0}")]
    Oracle(String),
    /// A size needed to check or to run is unknown.
    #[error("dimension `{0}` has no size: state one")]
    MissingSize(String),
}

fn lines<T: std::fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join("; ")
}

/// Rejections by rule, with the first reason of each.
fn by_rule(rejected: &[RejectedPlan]) -> String {
    let mut rules: Vec<(&RejectedPlan, usize)> = Vec::new();
    for one in rejected {
        match rules.iter_mut().find(|(first, _)| first.rule == one.rule) {
            Some((_, count)) => *count += 1,
            None => rules.push((one, 1)),
        }
    }
    let parts: Vec<String> = rules
        .iter()
        .map(|(first, count)| format!("{count} by {}, first {first}", first.rule))
        .collect();
    parts.join("; ")
}

/// A candidate that was legal to the planner and rejected later.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RejectedPlan {
    /// Index in the ranking's candidates.
    pub candidate: usize,
    /// The plan in one line.
    pub plan: String,
    /// The rule that rejected it.
    pub rule: String,
    /// Why.
    pub detail: String,
}

impl std::fmt::Display for RejectedPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}): {}", self.plan, self.rule, self.detail)
    }
}
