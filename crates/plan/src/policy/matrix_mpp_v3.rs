//! `matrix-mpp-v3`: `matrix-mpp-v2` with the same coefficients and three corrections
//! (reference 4, last paragraph).
//!
//! - products are counted over the proved physical K, Σ min(BK, K − k0)/8, instead of the padded
//! - scalar loops that the realisation removes aren't priced (yield copies of a persistent
//!   accumulator; fill and store with direct output)
//! - a lane is charged for accumulator fragments only (a legality gate, [`FragmentGate`])

use super::matrix_mpp_v2::{MatrixMppV2, mpp_counts};
use super::{
    CandidateFacts, CandidateView, FragmentGate, MatrixRules, Policy, PolicyError, Score, Term,
    Unit,
};
use crate::mapping::{Mapping, MatrixBasis, MatrixMapping};
use crate::matrix::{MatrixCounts, MatrixFeatures};

/// Name of the policy.
pub const NAME: &str = "matrix-mpp-v3";

/// The policy with the coefficients of `matrix-mpp-v2`.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct MatrixMppV3 {
    /// Coefficients.
    pub base: MatrixMppV2,
}

/// The features with products counted over the physical K, where K is static.
pub fn physical_features(counts: &MatrixCounts, mapping: &MatrixMapping) -> MatrixFeatures {
    let Some(k) = counts.physical_k else { return counts.features };
    let atoms = (mapping.block[0] / 8 * (mapping.block[1] / 8)) as f64;
    let [rm, rn] = mapping.atoms.map(|count| count as f64);
    let matrix_issues = atoms * (k as f64 / 8.0);
    MatrixFeatures {
        matrix_issues,
        local_row_aspect_issues: if rm > rn { matrix_issues * (rm / rn - 1.0) } else { 0.0 },
        local_column_aspect_issues: if rn > rm { matrix_issues * (rn / rm - 1.0) } else { 0.0 },
        ..counts.features
    }
}

/// Elements of the scalar loops that remain.
fn remaining_elements(counts: &MatrixCounts) -> f64 {
    counts.independent_elements.saturating_sub(counts.removed_elements) as f64
}

impl Policy for MatrixMppV3 {
    fn name(&self) -> &str {
        NAME
    }

    fn unit(&self) -> Unit {
        Unit::RelativeWork
    }

    fn parameters(&self) -> String {
        self.base.canonical(NAME)
    }

    fn matrix_rules(&self) -> MatrixRules {
        MatrixRules { basis: MatrixBasis::Mpp, gate: FragmentGate::AccumulatorsOnly }
    }

    fn score(&self, candidate: &CandidateView<'_>) -> Result<Score, PolicyError> {
        self.base.check(NAME)?;
        let counts = mpp_counts(NAME, candidate)?;
        let Mapping::Matrix(mapping) = candidate.mapping else {
            return Err(super::unsupported(NAME, candidate));
        };
        let features = physical_features(counts, mapping);
        Ok(self.base.score_of(counts, &features, remaining_elements(counts)))
    }

    fn terms(&self, candidate: &CandidateView<'_>) -> Vec<Term> {
        let (Mapping::Matrix(mapping), CandidateFacts::Matrix(counts)) =
            (candidate.mapping, candidate.facts)
        else {
            return Vec::new();
        };
        let mut terms = self.base.prices.terms(counts, &physical_features(counts, mapping));
        let subgroups = (counts.subgroups as f64).max(1.0);
        let scalar = remaining_elements(counts) * self.base.independent_element / subgroups;
        terms.push(Term::new("independent_elements", scalar));
        terms.push(Term::new("set-up", self.base.setup));
        terms
    }
}
