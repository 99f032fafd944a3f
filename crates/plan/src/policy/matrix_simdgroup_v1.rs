//! `matrix-simdgroup-v1`: 8×8 simdgroup fragments (reference 3.1, `simdgroup_reference_geometry`).
//!
//! - work = issue·issues + transfer·(operand and accumulator transfers); direct stores are
//!   reported and priced 0
//! - pressure = max(1, fragment scalars / 32); parallel = max(1, min(4, U·V)/G)
//! - program = work·pressure·parallel + independent/128 + 8·G
//! - waves = max(1, P/64), fractional; kernel = program·waves

use super::coefficients::{not_negative, positive};
use super::{
    CandidateFacts, CandidateView, FragmentGate, MatrixRules, Policy, PolicyError, Score, Term,
    Unit, unsupported,
};
use crate::hash::Canonical;
use crate::mapping::{Mapping, MatrixBasis};

/// Name of the policy.
pub const NAME: &str = "matrix-simdgroup-v1";

/// The policy with its coefficients (relative work).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MatrixSimdgroupV1 {
    /// Price of an 8×8×8 product.
    pub matrix_issue: f64,
    /// Price of a fragment moved to or from shared memory.
    pub shared_fragment_transfer: f64,
    /// Price of an element of a scalar loop.
    pub independent_element: f64,
    /// Price of a subgroup's set-up.
    pub subgroup_setup: f64,
    /// Subgroups beyond which more don't pay.
    pub preferred_subgroups: f64,
    /// Fragment scalars per lane without pressure.
    pub preferred_fragment_scalars: f64,
    /// Programs that the machine runs at once.
    pub preferred_programs: f64,
}

impl Default for MatrixSimdgroupV1 {
    fn default() -> Self {
        MatrixSimdgroupV1 {
            matrix_issue: 1.0,
            shared_fragment_transfer: 2.0,
            independent_element: 0.0078125,
            subgroup_setup: 8.0,
            preferred_subgroups: 4.0,
            preferred_fragment_scalars: 32.0,
            preferred_programs: 64.0,
        }
    }
}

/// What the program score is made of, before the factors.
pub(crate) struct SimdgroupWork {
    /// 8×8×8 products.
    pub issues: f64,
    /// Fragments moved between registers and shared memory.
    pub transfers: f64,
    /// Fragment scalars per lane.
    pub scalars: f64,
    /// Atoms of the block, U·V.
    pub atoms: f64,
    /// Subgroups of the group.
    pub subgroups: f64,
}

impl MatrixSimdgroupV1 {
    /// Checks every coefficient.
    ///
    /// # Errors
    /// A price is negative or not finite, or a preferred count isn't positive.
    pub fn check(&self) -> Result<(), PolicyError> {
        let [a, b, c, d, e, f, g] = self.named();
        not_negative(NAME, &[a, b, c, d])?;
        positive(NAME, &[e, f, g])
    }

    fn named(&self) -> [(&'static str, f64); 7] {
        [
            ("matrix_issue", self.matrix_issue),
            ("shared_fragment_transfer", self.shared_fragment_transfer),
            ("independent_element", self.independent_element),
            ("subgroup_setup", self.subgroup_setup),
            ("preferred_subgroups", self.preferred_subgroups),
            ("preferred_fragment_scalars", self.preferred_fragment_scalars),
            ("preferred_programs", self.preferred_programs),
        ]
    }

    /// The share of one matrix in the program score.
    pub(crate) fn matrix_work(&self, w: &SimdgroupWork) -> f64 {
        let work = self.matrix_issue * w.issues + self.shared_fragment_transfer * w.transfers;
        let pressure = (w.scalars / self.preferred_fragment_scalars).max(1.0);
        let parallel = (self.preferred_subgroups.min(w.atoms) / w.subgroups).max(1.0);
        work * pressure * parallel
    }

    /// The share of what the whole program has once.
    pub(crate) fn program_work(&self, independent_elements: f64, subgroups: f64) -> f64 {
        self.independent_element * independent_elements + self.subgroup_setup * subgroups
    }

    /// Waves of a launch.
    pub(crate) fn waves(&self, programs: f64) -> f64 {
        (programs / self.preferred_programs).max(1.0)
    }
}

impl Policy for MatrixSimdgroupV1 {
    fn name(&self) -> &str {
        NAME
    }

    fn unit(&self) -> Unit {
        Unit::RelativeWork
    }

    fn parameters(&self) -> String {
        let mut c = Canonical::new(NAME);
        for (name, value) in self.named() {
            c.float(name, value);
        }
        c.as_str().to_string()
    }

    fn matrix_rules(&self) -> MatrixRules {
        MatrixRules { basis: MatrixBasis::Simdgroup, gate: FragmentGate::WithOperands }
    }

    fn score(&self, candidate: &CandidateView<'_>) -> Result<Score, PolicyError> {
        self.check()?;
        let (Mapping::Matrix(mapping), CandidateFacts::Matrix(counts)) =
            (candidate.mapping, candidate.facts)
        else {
            return Err(unsupported(NAME, candidate));
        };
        if mapping.basis != MatrixBasis::Simdgroup {
            return Err(unsupported(NAME, candidate));
        }
        let subgroups = counts.subgroups as f64;
        let matrix = self.matrix_work(&SimdgroupWork {
            issues: counts.features.matrix_issues,
            transfers: counts.features.shared_fragment_transfers,
            scalars: counts.fragment_scalars_per_lane as f64,
            atoms: (mapping.block[0] / 8 * (mapping.block[1] / 8)) as f64,
            subgroups,
        });
        let program = matrix + self.program_work(counts.independent_elements as f64, subgroups);
        let waves = self.waves(counts.programs as f64);
        Ok(Score { program, waves, kernel: program * waves })
    }

    fn terms(&self, candidate: &CandidateView<'_>) -> Vec<Term> {
        let CandidateFacts::Matrix(counts) = candidate.facts else { return Vec::new() };
        vec![
            Term::new("products", self.matrix_issue * counts.features.matrix_issues),
            Term::new(
                "fragment transfers",
                self.shared_fragment_transfer * counts.features.shared_fragment_transfers,
            ),
            Term::new(
                "scalar loops",
                self.independent_element * counts.independent_elements as f64,
            ),
            Term::new("set-up", self.subgroup_setup * counts.subgroups as f64),
        ]
    }
}
