//! `reduction-v1`: the analytic row score (reference 5.5, `metal_subgroup_reduction_v1`).
//!
//! - program = rounds + 2·reductions·S + 16/P, plus payload bytes of the busiest worker at prices
//!   that are 0 by default
//! - waves = max(1, ⌈programs/64⌉); kernel = program·waves
//!
//! Waves are the same for every candidate of a case, so the smallest program score wins and
//! caching never pays; measurements say otherwise, which is why `reduction-service` exists.

use tilewright_ir::facts::Payload;

use super::coefficients::{not_negative, positive};
use super::{CandidateFacts, CandidateView, Policy, PolicyError, Score, Term, Unit, unsupported};
use crate::hash::Canonical;
use crate::mapping::{Mapping, RowMapping};
use crate::rows::RowCounts;
use crate::target::TargetKind;

/// Name of the policy.
pub const NAME: &str = "reduction-v1";

/// The policy with its coefficients (relative work).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ReductionV1 {
    /// Price of a scalar round.
    pub round: f64,
    /// Price of a reduction's collective per subgroup.
    pub collective: f64,
    /// Price of a group's set-up, shared by the programs that it packs.
    pub setup: f64,
    /// Price of a global byte of the busiest worker.
    pub global_byte: f64,
    /// Price of a private byte of the busiest worker.
    pub private_byte: f64,
    /// Programs that the machine runs at once.
    pub concurrent_programs: f64,
}

impl Default for ReductionV1 {
    fn default() -> Self {
        ReductionV1 {
            round: 1.0,
            collective: 2.0,
            setup: 16.0,
            global_byte: 0.0,
            private_byte: 0.0,
            concurrent_programs: 64.0,
        }
    }
}

impl ReductionV1 {
    fn named(&self) -> [(&'static str, f64); 6] {
        [
            ("round", self.round),
            ("collective", self.collective),
            ("setup", self.setup),
            ("global_byte", self.global_byte),
            ("private_byte", self.private_byte),
            ("concurrent_programs", self.concurrent_programs),
        ]
    }

    /// Cost of one program: of `subgroups` subgroups, `pack` programs a group.
    ///
    /// The byte terms are optional in the reference: without payload facts they are left out.
    pub fn program(&self, counts: &RowCounts, subgroups: u32, pack: u32) -> f64 {
        let mut program = self.round * counts.scalar_rounds as f64
            + self.collective * counts.reductions as f64 * f64::from(subgroups)
            + self.setup / f64::from(pack.max(1));
        if let Some(bytes) = &counts.worker_bytes {
            program += self.global_byte * global_bytes(bytes);
            program += self.private_byte * private_bytes(bytes);
        }
        program
    }
}

/// Global bytes, read and written.
pub(crate) fn global_bytes(bytes: &Payload) -> f64 {
    bytes.global_read.saturating_add(bytes.global_write) as f64
}

/// Private bytes, read and written.
pub(crate) fn private_bytes(bytes: &Payload) -> f64 {
    bytes.private_read.saturating_add(bytes.private_write) as f64
}

/// The mapping and counts of rows on a GPU, or the error of a policy that prices nothing else.
pub(crate) fn gpu_rows<'a>(
    policy: &str,
    candidate: &CandidateView<'a>,
) -> Result<(&'a RowMapping, &'a RowCounts), PolicyError> {
    match (&candidate.target.kind, candidate.mapping, candidate.facts) {
        (TargetKind::Gpu(_), Mapping::Rows(mapping), CandidateFacts::Rows(counts)) => {
            Ok((mapping, counts))
        }
        _ => Err(unsupported(policy, candidate)),
    }
}

impl Policy for ReductionV1 {
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

    fn score(&self, candidate: &CandidateView<'_>) -> Result<Score, PolicyError> {
        let [a, b, c, d, e, concurrent] = self.named();
        not_negative(NAME, &[a, b, c, d, e])?;
        positive(NAME, &[concurrent])?;
        let (mapping, counts) = gpu_rows(NAME, candidate)?;
        let program = self.program(counts, mapping.subgroups, mapping.pack);
        let waves = (counts.programs as f64 / self.concurrent_programs).ceil().max(1.0);
        Ok(Score { program, waves, kernel: program * waves })
    }

    fn terms(&self, candidate: &CandidateView<'_>) -> Vec<Term> {
        let (Mapping::Rows(mapping), CandidateFacts::Rows(counts)) =
            (candidate.mapping, candidate.facts)
        else {
            return Vec::new();
        };
        let collectives = counts.reductions as f64 * f64::from(mapping.subgroups);
        vec![
            Term::new("rounds", self.round * counts.scalar_rounds as f64),
            Term::new("collectives", self.collective * collectives),
            Term::new("set-up", self.setup / f64::from(mapping.pack.max(1))),
        ]
    }
}
