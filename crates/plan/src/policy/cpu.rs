//! `cpu`: an analytic estimate in processor cycles, for rows and matrix products.

use super::coefficients::{not_negative, positive};
use super::{
    CandidateFacts, CandidateView, Policy, PolicyError, Score, Term, Unit, cpu_matrix, cpu_rows,
    unsupported,
};
use crate::hash::Canonical;
use crate::mapping::Mapping;
use crate::problem::Problem;
use crate::target::CpuFacts;

/// Name of the policy.
pub const NAME: &str = "cpu";

/// Prices in cycles and speeds in bytes per cycle. They are round figures of current x86-64 cores,
/// not a fit; they order candidates and predict no time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CpuCoefficients {
    /// Cycles from a launch on the calling thread to the first group and back.
    pub launch: f64,
    /// The same when other threads take part.
    pub launch_threads: f64,
    /// Cycles of a group's set-up.
    pub group: f64,
    /// Cycles of a vector loop's start and tail.
    pub loop_start: f64,
    /// Cycles of a loop's counter and branch.
    pub loop_step: f64,
    /// Latency of an addition or multiply-add.
    pub fma_latency: f64,
    /// Cycles to fold a vector into one value and spread it.
    pub collective: f64,
    /// Share of the smaller of arithmetic and memory time that the larger one doesn't hide.
    pub unhidden: f64,
    /// Bytes per cycle that a core moves in its first-level cache.
    pub l1_bytes_per_cycle: f64,
    /// Bytes per cycle from the second-level cache.
    pub l2_bytes_per_cycle: f64,
    /// Bytes per cycle from the last-level cache.
    pub l3_bytes_per_cycle: f64,
    /// Bytes per cycle from memory.
    pub memory_bytes_per_cycle: f64,
}

impl Default for CpuCoefficients {
    fn default() -> Self {
        CpuCoefficients {
            launch: 100.0,
            launch_threads: 3000.0,
            group: 20.0,
            loop_start: 10.0,
            loop_step: 1.0,
            fma_latency: 4.0,
            collective: 30.0,
            unhidden: 0.125,
            l1_bytes_per_cycle: 64.0,
            l2_bytes_per_cycle: 40.0,
            l3_bytes_per_cycle: 10.0,
            memory_bytes_per_cycle: 5.0,
        }
    }
}

impl CpuCoefficients {
    fn named(&self) -> [(&'static str, f64); 12] {
        [
            ("launch", self.launch),
            ("launch_threads", self.launch_threads),
            ("group", self.group),
            ("loop_start", self.loop_start),
            ("loop_step", self.loop_step),
            ("fma_latency", self.fma_latency),
            ("collective", self.collective),
            ("unhidden", self.unhidden),
            ("l1_bytes_per_cycle", self.l1_bytes_per_cycle),
            ("l2_bytes_per_cycle", self.l2_bytes_per_cycle),
            ("l3_bytes_per_cycle", self.l3_bytes_per_cycle),
            ("memory_bytes_per_cycle", self.memory_bytes_per_cycle),
        ]
    }

    /// Checks every coefficient.
    ///
    /// # Errors
    /// A price is negative or not finite, or a speed isn't positive.
    pub fn check(&self) -> Result<(), PolicyError> {
        let named = self.named();
        let (prices, speeds) = named.split_at(8);
        not_negative(NAME, prices)?;
        positive(NAME, speeds)
    }

    /// Bytes per cycle of the level that holds a working set of that many bytes. A level counts
    /// as holding it up to half its size: other data passes through it too.
    pub fn bytes_per_cycle(&self, cpu: &CpuFacts, working_set: f64) -> f64 {
        let holds = |bytes: u64| working_set <= bytes as f64 / 2.0;
        if holds(cpu.l1_bytes) {
            self.l1_bytes_per_cycle
        } else if holds(cpu.l2_bytes) {
            self.l2_bytes_per_cycle
        } else if holds(cpu.l3_bytes) {
            self.l3_bytes_per_cycle
        } else {
            self.memory_bytes_per_cycle
        }
    }
}

/// The policy with its coefficients.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cpu {
    /// Coefficients.
    pub coefficients: CpuCoefficients,
}

impl Policy for Cpu {
    fn name(&self) -> &str {
        NAME
    }

    fn unit(&self) -> Unit {
        Unit::Cycles
    }

    fn parameters(&self) -> String {
        let mut c = Canonical::new(NAME);
        for (name, value) in self.coefficients.named() {
            c.float(name, value);
        }
        c.as_str().to_string()
    }

    fn score(&self, view: &CandidateView<'_>) -> Result<Score, PolicyError> {
        self.coefficients.check()?;
        let c = &self.coefficients;
        match (view.target.cpu_facts(), view.problem, view.mapping, view.facts) {
            (Some(cpu), Problem::Rows(p), Mapping::Rows(m), CandidateFacts::Rows(counts)) => {
                Ok(cpu_rows::score(c, p, cpu, m, counts, view.cpu_threads))
            }
            (
                Some(cpu),
                Problem::Matrix(p),
                Mapping::CpuMatrix(m),
                CandidateFacts::CpuMatrix(counts),
            ) => cpu_matrix::score(c, p, cpu, m, counts),
            _ => Err(unsupported(NAME, view)),
        }
    }

    fn terms(&self, view: &CandidateView<'_>) -> Vec<Term> {
        let c = &self.coefficients;
        match (view.target.cpu_facts(), view.problem, view.mapping, view.facts) {
            (Some(cpu), Problem::Rows(p), Mapping::Rows(m), CandidateFacts::Rows(_)) => {
                cpu_rows::terms(c, p, cpu, m)
            }
            (
                Some(cpu),
                Problem::Matrix(p),
                Mapping::CpuMatrix(m),
                CandidateFacts::CpuMatrix(counts),
            ) => cpu_matrix::terms(c, p, cpu, m, counts),
            _ => Vec::new(),
        }
    }
}
