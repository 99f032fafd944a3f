//! `gpu`: an analytic estimate in microseconds for GPUs whose register file is known, for rows
//! and for products of register tiles.

use super::{
    CandidateFacts, CandidateView, Policy, PolicyError, Score, Unit, gpu_matrix, gpu_rows,
    unsupported,
};
use crate::mapping::Mapping;
use crate::problem::Problem;

/// Name of the policy.
pub const NAME: &str = "gpu";

/// The policy. Its prices are constants of the estimates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Gpu;

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
        let Some(gpu) = view.target.gpu_facts().filter(|gpu| gpu.states_registers()) else {
            return Err(unsupported(NAME, view));
        };
        match (view.problem, view.mapping, view.facts) {
            (Problem::Rows(problem), Mapping::Rows(m), CandidateFacts::Rows(counts)) => {
                let whole = gpu_rows::GpuRowCounts::new(problem, gpu, m, counts);
                let kernel = gpu_rows::estimate(problem, gpu, m, counts);
                Ok(Score { program: kernel / whole.waves, waves: whole.waves, kernel })
            }
            (Problem::Matrix(problem), Mapping::GpuMatrix(m), CandidateFacts::GpuMatrix(c)) => {
                let kernel = gpu_matrix::estimate(problem, gpu, m);
                let waves = (c.waves as f64).max(1.0);
                Ok(Score { program: kernel / waves, waves, kernel })
            }
            _ => Err(unsupported(NAME, view)),
        }
    }
}
