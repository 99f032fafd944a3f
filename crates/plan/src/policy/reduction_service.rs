//! `reduction-service`: the fitted whole-launch row score (reference 5.6,
//! `metal_reduction_service_v1`), in fitted microseconds.
//!
//! - waves = max(1, groups·S·P/C), fractional; inactive subgroups of a packed tail count
//! - local = rounds·R + reductions·S·K + (worker private bytes)·Pb
//! - kernel = D + local·waves + programs·(program global bytes)·G + (worker global bytes)·Wb
//!
//! The kernel score is final: there is no second wave factor.

use super::coefficients::not_negative;
use super::reduction_v1::{global_bytes, gpu_rows, private_bytes};
use super::{CandidateView, Policy, PolicyError, Score, Term, Unit};
use crate::hash::Canonical;
use crate::mapping::RowMapping;
use crate::profile::{ProfileError, ServiceProfile};
use crate::rows::RowCounts;

/// Name of the policy.
pub const NAME: &str = "reduction-service";

/// The fitted coefficients.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ServiceCoefficients {
    /// Subgroups that the machine runs at once (C), at least 1.
    pub capacity: u32,
    /// Microseconds of a launch (D).
    pub dispatch: f64,
    /// Microseconds of a scalar round (R).
    pub scalar_round: f64,
    /// Microseconds of one subgroup's share in a reduction (K).
    pub collective: f64,
    /// Microseconds of a global byte of any program (G).
    pub global_program_byte: f64,
    /// Microseconds of a global byte of the busiest worker (Wb).
    pub global_worker_byte: f64,
    /// Microseconds of a private byte of the busiest worker (Pb).
    pub private_worker_byte: f64,
}

impl ServiceCoefficients {
    /// The published fit for the Apple M1 Max (reference 5.6 and 6, capacity 512).
    pub const APPLE_M1_MAX: ServiceCoefficients = ServiceCoefficients {
        capacity: 512,
        dispatch: 3.291601118927837,
        scalar_round: 0.003631727721472306,
        collective: 0.0034232968457137843,
        global_program_byte: 1.0065583053146008e-06,
        global_worker_byte: 0.0028459431572213007,
        private_worker_byte: 0.0,
    };

    /// Coefficient names and values, in the order of a profile string after the capacity.
    pub fn named(&self) -> [(&'static str, f64); 6] {
        [
            ("dispatch", self.dispatch),
            ("scalar_round", self.scalar_round),
            ("collective", self.collective),
            ("global_program_byte", self.global_program_byte),
            ("global_worker_byte", self.global_worker_byte),
            ("private_worker_byte", self.private_worker_byte),
        ]
    }

    /// Checks the capacity and every coefficient.
    ///
    /// # Errors
    /// The capacity is 0, or a coefficient is negative or not finite.
    pub fn check(&self) -> Result<(), PolicyError> {
        if self.capacity == 0 {
            return Err(PolicyError::Coefficient {
                policy: NAME.to_string(),
                name: "capacity".to_string(),
                value: "0".to_string(),
                bound: "positive",
            });
        }
        not_negative(NAME, &self.named())
    }
}

/// The policy with its coefficients.
#[derive(Clone, PartialEq, Debug)]
pub struct ReductionService {
    coefficients: ServiceCoefficients,
    fitted_on: Option<String>,
}

impl Default for ReductionService {
    /// The published fit for the Apple M1 Max.
    fn default() -> Self {
        ReductionService {
            coefficients: ServiceCoefficients::APPLE_M1_MAX,
            fitted_on: Some("apple-m1-max".to_string()),
        }
    }
}

/// The addends of a score.
struct Parts {
    waves: f64,
    local: f64,
    program_bytes: f64,
    worker_bytes: f64,
}

impl ReductionService {
    /// The policy with checked coefficients that are taken to fit any target.
    ///
    /// # Errors
    /// The capacity is 0, or a coefficient is negative or not finite.
    pub fn new(coefficients: ServiceCoefficients) -> Result<Self, PolicyError> {
        coefficients.check()?;
        Ok(ReductionService { coefficients, fitted_on: None })
    }

    /// The policy of a profile. If the profile states its target, the policy prices no other.
    ///
    /// # Errors
    /// The capacity is 0, or a coefficient is negative or not finite.
    pub fn of_profile(profile: &ServiceProfile) -> Result<Self, PolicyError> {
        let fitted_on = profile.target.clone();
        Ok(ReductionService { fitted_on, ..ReductionService::new(profile.coefficients)? })
    }

    /// The coefficients.
    pub fn coefficients(&self) -> &ServiceCoefficients {
        &self.coefficients
    }

    fn parts(&self, mapping: &RowMapping, counts: &RowCounts) -> Result<Parts, PolicyError> {
        let missing = |fact: &str, reason: &str| PolicyError::MissingFact {
            policy: NAME.to_string(),
            fact: fact.to_string(),
            reason: reason.to_string(),
        };
        let (Some(program), Some(worker)) = (&counts.program_bytes, &counts.worker_bytes) else {
            return Err(missing("payload bytes", "they are unknown for this program"));
        };
        for (fact, count) in [
            ("programs", counts.programs),
            ("groups", counts.groups),
            ("scalar rounds", counts.scalar_rounds),
        ] {
            if count == 0 {
                return Err(missing(fact, "there are none"));
            }
        }
        let c = &self.coefficients;
        let subgroups = f64::from(mapping.subgroups);
        let resident = counts.groups as f64 * subgroups * f64::from(mapping.pack);
        Ok(Parts {
            waves: (resident / f64::from(c.capacity)).max(1.0),
            local: counts.scalar_rounds as f64 * c.scalar_round
                + counts.reductions as f64 * subgroups * c.collective
                + private_bytes(worker) * c.private_worker_byte,
            program_bytes: counts.programs as f64 * global_bytes(program) * c.global_program_byte,
            worker_bytes: global_bytes(worker) * c.global_worker_byte,
        })
    }
}

impl Policy for ReductionService {
    fn name(&self) -> &str {
        NAME
    }

    fn unit(&self) -> Unit {
        Unit::Microseconds
    }

    fn parameters(&self) -> String {
        let mut c = Canonical::new(NAME);
        c.integer("capacity", self.coefficients.capacity.into());
        c.text("fitted_on", self.fitted_on.as_deref().unwrap_or(""));
        for (name, value) in self.coefficients.named() {
            c.float(name, value);
        }
        c.as_str().to_string()
    }

    fn score(&self, candidate: &CandidateView<'_>) -> Result<Score, PolicyError> {
        self.coefficients.check()?;
        let (mapping, counts) = gpu_rows(NAME, candidate)?;
        // Microseconds fitted on one machine say nothing of another.
        if let Some(fitted) = &self.fitted_on
            && *fitted != candidate.target.name
        {
            let target = candidate.target.name.clone();
            return Err(ProfileError::Target { profile: fitted.clone(), target }.into());
        }
        let parts = self.parts(mapping, counts)?;
        let kernel = self.coefficients.dispatch
            + parts.local * parts.waves
            + parts.program_bytes
            + parts.worker_bytes;
        Ok(Score { program: parts.local, waves: parts.waves, kernel })
    }

    fn terms(&self, candidate: &CandidateView<'_>) -> Vec<Term> {
        let Ok((mapping, counts)) = gpu_rows(NAME, candidate) else { return Vec::new() };
        let Ok(parts) = self.parts(mapping, counts) else { return Vec::new() };
        vec![
            Term::new("dispatch", self.coefficients.dispatch),
            Term::new("local work", parts.local * parts.waves),
            Term::new("global bytes", parts.program_bytes),
            Term::new("busiest worker's bytes", parts.worker_bytes),
        ]
    }
}
