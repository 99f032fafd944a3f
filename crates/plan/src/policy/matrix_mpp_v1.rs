//! `matrix-mpp-v1`: the first MPP score, which adds up the work of subgroups that run at the same
//! time and so ranks badly; kept because its picks are published (reference 3.2).
//!
//! Its source was never published; this reconstruction gives the eight published picks.
//!
//! - program = weighted·pressure + independent/128 + 8·G, with the weights of `matrix-mpp-v2`
//! - waves = max(1, P/64), fractional; kernel = program·waves

use super::coefficients::{not_negative, positive};
use super::matrix_mpp_v2::{MppCoefficients, mpp_counts};
use super::{CandidateFacts, CandidateView, Policy, PolicyError, Score, Term, Unit};

/// Name of the policy.
pub const NAME: &str = "matrix-mpp-v1";

/// The policy with its coefficients (relative work).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MatrixMppV1 {
    /// Prices of the features.
    pub prices: MppCoefficients,
    /// Price of an element of a scalar loop.
    pub independent_element: f64,
    /// Price of a subgroup's set-up.
    pub subgroup_setup: f64,
    /// Programs that the machine runs at once.
    pub preferred_programs: f64,
}

impl Default for MatrixMppV1 {
    fn default() -> Self {
        MatrixMppV1 {
            prices: MppCoefficients::default(),
            independent_element: 0.0078125,
            subgroup_setup: 8.0,
            preferred_programs: 64.0,
        }
    }
}

impl Policy for MatrixMppV1 {
    fn name(&self) -> &str {
        NAME
    }

    fn unit(&self) -> Unit {
        Unit::RelativeWork
    }

    fn parameters(&self) -> String {
        let mut c = self.prices.canonical(NAME);
        c.float("independent_element", self.independent_element)
            .float("subgroup_setup", self.subgroup_setup)
            .float("preferred_programs", self.preferred_programs);
        c.as_str().to_string()
    }

    fn score(&self, candidate: &CandidateView<'_>) -> Result<Score, PolicyError> {
        self.prices.check(NAME)?;
        not_negative(
            NAME,
            &[
                ("independent_element", self.independent_element),
                ("subgroup_setup", self.subgroup_setup),
            ],
        )?;
        positive(NAME, &[("preferred_programs", self.preferred_programs)])?;
        let counts = mpp_counts(NAME, candidate)?;
        let pressure = self.prices.pressure(counts.fragment_scalars_per_lane as f64);
        let program = self.prices.weighted(&counts.features) * pressure
            + self.independent_element * counts.independent_elements as f64
            + self.subgroup_setup * counts.subgroups as f64;
        let waves = (counts.programs as f64 / self.preferred_programs).max(1.0);
        Ok(Score { program, waves, kernel: program * waves })
    }

    fn terms(&self, candidate: &CandidateView<'_>) -> Vec<Term> {
        let CandidateFacts::Matrix(counts) = candidate.facts else { return Vec::new() };
        let pressure = self.prices.pressure(counts.fragment_scalars_per_lane as f64);
        vec![
            Term::new("features", self.prices.weighted(&counts.features) * pressure),
            Term::new(
                "independent_elements",
                self.independent_element * counts.independent_elements as f64,
            ),
            Term::new("set-up", self.subgroup_setup * counts.subgroups as f64),
        ]
    }
}
