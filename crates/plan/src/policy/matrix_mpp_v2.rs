//! `matrix-mpp-v2`: MPP tensor operations (reference 4, `metal_mpp_memory_v2`).
//!
//! - weighted = Σ coefficient·feature, in the order of the reference's table
//! - pressure = max(1, 2·rm·rn / 32)
//! - program = weighted·pressure/G + independent·0.03125/G + 8
//! - waves = max(1, P·G/512), fractional; kernel = program·waves

use super::coefficients::{not_negative, positive};
use super::{CandidateFacts, CandidateView, Policy, PolicyError, Score, Term, Unit, unsupported};
use crate::hash::Canonical;
use crate::mapping::{Mapping, MatrixBasis};
use crate::matrix::{MatrixCounts, MatrixFeatures};

/// Name of the policy.
pub const NAME: &str = "matrix-mpp-v2";

/// Prices of the features (relative work), in the order of reference 4.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MppCoefficients {
    /// Prices in the order of [`MatrixFeatures::named`].
    pub features: [f64; 11],
    /// Fragment scalars per lane without pressure.
    pub preferred_fragment_scalars: f64,
}

impl Default for MppCoefficients {
    fn default() -> Self {
        MppCoefficients {
            features: [1.0, 2.0, 1.0, 8.0, 1.0, 0.125, 0.375, 1.0, 0.1875, 0.25, 0.125],
            preferred_fragment_scalars: 32.0,
        }
    }
}

impl MppCoefficients {
    /// Checks every coefficient.
    ///
    /// # Errors
    /// A price is negative or not finite, or the preferred count isn't positive.
    pub fn check(&self, policy: &str) -> Result<(), PolicyError> {
        let names = MatrixFeatures::default().named();
        for ((name, _), price) in names.iter().zip(self.features) {
            not_negative(policy, &[(name, price)])?;
        }
        let scalars = self.preferred_fragment_scalars;
        positive(policy, &[("preferred_fragment_scalars", scalars)])
    }

    /// Σ price·feature, first to last.
    pub fn weighted(&self, features: &MatrixFeatures) -> f64 {
        let named = features.named();
        named.iter().zip(self.features).fold(0.0, |sum, ((_, f), price)| sum + price * f)
    }

    /// max(1, scalars / preferred).
    pub fn pressure(&self, fragment_scalars: f64) -> f64 {
        (fragment_scalars / self.preferred_fragment_scalars).max(1.0)
    }

    /// Prices as canonical text.
    pub fn canonical(&self, kind: &str) -> Canonical {
        let mut c = Canonical::new(kind);
        for ((name, _), price) in MatrixFeatures::default().named().iter().zip(self.features) {
            c.float(name, price);
        }
        c.float("preferred_fragment_scalars", self.preferred_fragment_scalars);
        c
    }

    /// The share of each feature in one program, for explanations.
    pub fn terms(&self, counts: &MatrixCounts, features: &MatrixFeatures) -> Vec<Term> {
        let pressure = self.pressure(counts.fragment_scalars_per_lane as f64);
        let subgroups = (counts.subgroups as f64).max(1.0);
        let named = features.named();
        let shares = named.iter().zip(self.features);
        shares
            .map(|((name, feature), price)| Term::new(name, price * feature * pressure / subgroups))
            .filter(|term| term.value > 0.0)
            .collect()
    }
}

/// The policy with its coefficients.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MatrixMppV2 {
    /// Prices of the features.
    pub prices: MppCoefficients,
    /// Price of an element of a scalar loop.
    pub independent_element: f64,
    /// Price of a program's set-up.
    pub setup: f64,
    /// Subgroups that the machine runs at once.
    pub concurrent_subgroups: f64,
}

impl Default for MatrixMppV2 {
    fn default() -> Self {
        MatrixMppV2 {
            prices: MppCoefficients::default(),
            independent_element: 0.03125,
            setup: 8.0,
            concurrent_subgroups: 512.0,
        }
    }
}

impl MatrixMppV2 {
    /// Checks every coefficient.
    ///
    /// # Errors
    /// A price is negative or not finite, or a preferred count isn't positive.
    pub fn check(&self, policy: &str) -> Result<(), PolicyError> {
        self.prices.check(policy)?;
        not_negative(
            policy,
            &[("independent_element", self.independent_element), ("setup", self.setup)],
        )?;
        positive(policy, &[("concurrent_subgroups", self.concurrent_subgroups)])
    }

    /// The share of one matrix in the program score.
    pub(crate) fn matrix_work(
        &self,
        features: &MatrixFeatures,
        fragment_scalars: f64,
        subgroups: f64,
    ) -> f64 {
        self.prices.weighted(features) * self.prices.pressure(fragment_scalars) / subgroups
    }

    /// The share of what the whole program has once.
    pub(crate) fn program_work(&self, independent_elements: f64, subgroups: f64) -> f64 {
        independent_elements * self.independent_element / subgroups + self.setup
    }

    /// Waves of a launch.
    pub(crate) fn waves(&self, programs: f64, subgroups: f64) -> f64 {
        (programs * subgroups / self.concurrent_subgroups).max(1.0)
    }

    /// The score from features and independent elements.
    pub(crate) fn score_of(
        &self,
        counts: &MatrixCounts,
        features: &MatrixFeatures,
        independent_elements: f64,
    ) -> Score {
        let subgroups = counts.subgroups as f64;
        let scalars = counts.fragment_scalars_per_lane as f64;
        let program = self.matrix_work(features, scalars, subgroups)
            + independent_elements * self.independent_element / subgroups
            + self.setup;
        let waves = self.waves(counts.programs as f64, subgroups);
        Score { program, waves, kernel: program * waves }
    }

    /// Every coefficient as canonical text.
    pub(crate) fn canonical(&self, kind: &str) -> String {
        let mut c = self.prices.canonical(kind);
        c.float("independent_element", self.independent_element)
            .float("setup", self.setup)
            .float("concurrent_subgroups", self.concurrent_subgroups);
        c.as_str().to_string()
    }
}

/// The counts of an MPP candidate, or the error of a policy that prices nothing else.
pub(crate) fn mpp_counts<'a>(
    policy: &str,
    candidate: &CandidateView<'a>,
) -> Result<&'a MatrixCounts, PolicyError> {
    match (candidate.mapping, candidate.facts) {
        (Mapping::Matrix(mapping), CandidateFacts::Matrix(counts))
            if mapping.basis == MatrixBasis::Mpp =>
        {
            Ok(counts)
        }
        _ => Err(unsupported(policy, candidate)),
    }
}

impl Policy for MatrixMppV2 {
    fn name(&self) -> &str {
        NAME
    }

    fn unit(&self) -> Unit {
        Unit::RelativeWork
    }

    fn parameters(&self) -> String {
        self.canonical(NAME)
    }

    fn score(&self, candidate: &CandidateView<'_>) -> Result<Score, PolicyError> {
        self.check(NAME)?;
        let counts = mpp_counts(NAME, candidate)?;
        Ok(self.score_of(counts, &counts.features, counts.independent_elements as f64))
    }

    fn terms(&self, candidate: &CandidateView<'_>) -> Vec<Term> {
        let CandidateFacts::Matrix(counts) = candidate.facts else { return Vec::new() };
        let mut terms = self.prices.terms(counts, &counts.features);
        let subgroups = (counts.subgroups as f64).max(1.0);
        let scalar = counts.independent_elements as f64 * self.independent_element / subgroups;
        terms.push(Term::new("independent_elements", scalar));
        terms.push(Term::new("set-up", self.setup));
        terms
    }
}
