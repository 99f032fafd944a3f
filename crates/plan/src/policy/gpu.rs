//! `gpu`: estimated microseconds of rows and of products of register tiles on GPUs whose register
//! file is known.
//!
//! The estimate is the sum of the inputs that `whole-launch` has for such GPUs, which are microseconds
//! at prices that were fitted to labels of one NVIDIA H200 (`benches/cuda/labels`, `evidence`). So it
//! holds for compute capability 9.0; elsewhere it orders candidates and promises no time. Mappings
//! that no label is of have estimates of their own (`gpu_apart`).

use super::whole_launch::{Family, Inputs, MAX_INPUTS};
use super::{
    CandidateFacts, CandidateView, Policy, PolicyError, Score, Term, Unit, gpu_apart, gpu_rows,
    unsupported,
};
use crate::mapping::Mapping;
use crate::problem::Problem;

/// Name of the policy.
pub const NAME: &str = "gpu";

/// The inputs are microseconds.
pub(super) const PRICES: [f64; MAX_INPUTS] = [1.0; MAX_INPUTS];

/// Inputs at their prices, first to last.
pub(super) fn price(prices: &Inputs, inputs: &Inputs) -> f64 {
    prices.iter().zip(inputs).map(|(price, input)| price * input).sum()
}

/// The policy. Its prices are constants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Gpu;

/// Inputs of a candidate with their prices, and the family.
fn priced(view: &CandidateView<'_>) -> Result<(Family, Inputs, &'static Inputs), PolicyError> {
    let known = view.target.gpu_facts().is_some_and(|gpu| gpu.states_registers());
    let (family, inputs) = match view.facts {
        CandidateFacts::Rows(_) | CandidateFacts::GpuMatrix(_) if known => Family::of(view)?,
        _ => return Err(unsupported(NAME, view)),
    };
    match family {
        Family::GpuRegisterRows | Family::GpuRegisterMatrix => Ok((family, inputs, &PRICES)),
        _ => Err(unsupported(NAME, view)),
    }
}

/// The estimate of a mapping that the labels have none of.
fn unlabelled(view: &CandidateView<'_>) -> Option<f64> {
    let gpu = view.target.gpu_facts()?;
    match (view.problem, view.mapping, view.facts) {
        (Problem::Rows(problem), Mapping::Rows(m), CandidateFacts::Rows(counts)) if m.split > 1 => {
            Some(gpu_apart::split_rows(problem, gpu, m, counts))
        }
        (Problem::Matrix(problem), Mapping::GpuMatrix(m), _) if m.stages == 1 => {
            Some(gpu_apart::in_place(problem, gpu, m))
        }
        _ => None,
    }
}

impl Policy for Gpu {
    fn name(&self) -> &str {
        NAME
    }

    fn unit(&self) -> Unit {
        Unit::Microseconds
    }

    fn parameters(&self) -> String {
        // The prices are part of the program.
        NAME.to_string()
    }

    fn register_spaces(&self) -> bool {
        true
    }

    fn score(&self, view: &CandidateView<'_>) -> Result<Score, PolicyError> {
        let (_, inputs, prices) = priced(view)?;
        let kernel = unlabelled(view).unwrap_or_else(|| price(prices, &inputs));
        let waves = match (view.facts, view.problem, view.mapping, view.target.gpu_facts()) {
            (CandidateFacts::Rows(counts), Problem::Rows(problem), Mapping::Rows(m), Some(gpu)) => {
                let at_once = u64::from(gpu.cores) * gpu_rows::resident(gpu, problem, m);
                counts.groups.div_ceil(at_once.max(1))
            }
            (CandidateFacts::GpuMatrix(counts), ..) => counts.waves,
            _ => 1,
        };
        let waves = (waves as f64).max(1.0);
        Ok(Score { program: kernel / waves, waves, kernel })
    }

    fn terms(&self, view: &CandidateView<'_>) -> Vec<Term> {
        if let Some(kernel) = unlabelled(view) {
            return vec![Term::new("estimate", kernel)];
        }
        let Ok((family, inputs, prices)) = priced(view) else { return Vec::new() };
        let named = family.inputs().iter().zip(prices.iter().zip(&inputs));
        named.map(|(name, (price, input))| Term::new(name, price * input)).collect()
    }
}
