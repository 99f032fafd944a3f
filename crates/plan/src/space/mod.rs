//! Candidate spaces: every mapping that is tried, in a fixed order, each legal or rejected with
//! the rule that rejected it.

pub mod cpu_matrix;
pub mod cpu_rows;
pub mod gpu_matrix;
pub mod gpu_rows;
pub mod matrix;
pub mod rows;
pub mod split_rows;
pub mod thin_matrix;

use crate::legality::Rejection;
use crate::mapping::Mapping;
use crate::policy::CandidateFacts;

/// A candidate before it is scored.
#[derive(Clone, PartialEq, Debug)]
pub struct Unscored {
    /// How the program would run.
    pub mapping: Mapping,
    /// Closed-form facts.
    pub facts: CandidateFacts,
    /// Legal, or the rule that rejects it.
    pub verdict: Result<(), Rejection>,
}
