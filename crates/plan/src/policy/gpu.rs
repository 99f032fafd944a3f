//! `gpu`: estimated microseconds of rows and of products of register tiles on GPUs whose register
//! file is known.
//!
//! The estimate is a sum of the inputs that `whole-launch` has for such GPUs, at fixed prices. They
//! are the nonnegative least squares of the relative error over all labels of one NVIDIA H200 in
//! `benches/cuda/labels` (15281 candidates of 180 row cases, 14024 of 70 products), as `tilewright
//! calibrate` fits them. So they hold for compute capability 9.0; elsewhere they order candidates and
//! promise no time. Mappings that no label is of have estimates of their own (`gpu_apart`).

use super::whole_launch::{Family, Inputs, MAX_INPUTS};
use super::{
    CandidateFacts, CandidateView, Policy, PolicyError, Score, Term, Unit, gpu_apart, gpu_rows,
    unsupported,
};
use crate::mapping::Mapping;
use crate::problem::Problem;

/// Name of the policy.
pub const NAME: &str = "gpu";

/// Microseconds of an input of `gpu-register-rows`, in their order: the fit's over 0.75. The fit
/// orders the candidates of a case, but its times of those near the best are too short, by a quarter
/// in the median case, since it has to fit all others too.
const ROWS: [f64; MAX_INPUTS] = [
    0.02577, 0.03188, 1.448, 0.01262, 0.06679, 0.2005, 6.024e-5, 0.000756, 0.01855, 0.05405,
    0.01708, 0.4383,
];

/// Microseconds of an input of `gpu-register-matrix`, in their order.
pub(super) const PRODUCTS: [f64; MAX_INPUTS] = [
    1.131, 1.962, 0.5091, 0.0003386, 0.001022, 0.1273, 0.503, 0.007211, 0.0006325, 0.0157,
    0.0002564, 0.02307,
];

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
        Family::GpuRegisterRows => Ok((family, inputs, &ROWS)),
        Family::GpuRegisterMatrix => Ok((family, inputs, &PRODUCTS)),
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
