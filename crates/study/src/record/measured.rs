//! Files that hold samples: search/, labels/ and replay/.

use super::State;
use crate::case::Case;
use crate::protocol::{Protocol, Samples};
use crate::spec::Metric;
use crate::stats::{per_call_us, quantile};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tilewright_plan::mapping::Mapping;

/// What became of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Checked and measured.
    Valid,
    /// A rule of lowering or of the device forbids it.
    Rejected,
    /// Its output, a guard or an input isn't as it must be.
    Wrong,
    /// The worker process died.
    Crashed,
    /// The worker process missed its deadline.
    Hung,
    /// Something else failed.
    Failed,
    /// Its time is under 0.9 of the floor.
    Refused,
    /// A control that isn't installed.
    Missing,
    /// A control that doesn't compute the case.
    Unsupported,
}

/// Why a measurement isn't valid.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fault {
    /// The rule that it breaks, if it is one.
    pub rule: Option<String>,
    /// In words.
    pub message: String,
}

impl Fault {
    /// A fault without a rule.
    pub fn new(message: impl Into<String>) -> Self {
        Fault { rule: None, message: message.into() }
    }
}

/// How outputs compared with the oracle.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Check {
    /// Data, elements, failures, largest |error| relative to its bound.
    pub data: Vec<(String, u64, u64, f64)>,
    /// Whether no guard zone was overwritten.
    pub guards_intact: bool,
    /// Whether no input changed.
    pub inputs_unchanged: bool,
}

impl Check {
    /// Whether everything is as it must be.
    pub fn passed(&self) -> bool {
        self.guards_intact && self.inputs_unchanged && self.data.iter().all(|d| d.2 == 0)
    }

    /// What is wrong, in words.
    pub fn complaint(&self) -> Fault {
        let wrong = self.data.iter().find(|d| d.2 > 0);
        Fault::new(match wrong {
            Some((data, elements, failures, _)) => {
                format!("{failures} of {elements} elements are wrong on {data} data")
            }
            None if !self.guards_intact => "memory beside a tensor was overwritten".to_string(),
            None => "an input was changed".to_string(),
        })
    }
}

/// The least time that a case can take on this machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Floor {
    /// Operations.
    pub flops: f64,
    /// Bytes of the tensors, each once.
    pub bytes: u64,
    /// The same: what must be held.
    pub working_set_bytes: u64,
    /// The smallest level that holds it.
    pub level: String,
    /// The largest of the three times.
    pub floor_us: f64,
}

/// Sizes of the space.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SpaceCounts {
    /// Candidates.
    pub candidates: usize,
    /// Legal ones.
    pub legal: usize,
    /// Rejected ones, by rule.
    pub rejected: BTreeMap<String, usize>,
    /// Measured ones.
    pub measured: usize,
    /// Indices of the legal ones, where not all are measured.
    pub legal_plans: Option<Vec<usize>>,
    /// Their scores by the incumbent's policy, in the same order.
    pub legal_scores: Option<Vec<f64>>,
}

/// A round of a search.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SearchRound {
    /// Candidates in order of measurement.
    pub order: Vec<usize>,
    /// The fixed loop before, in the middle of and after the round.
    pub drift_ns: Vec<u64>,
    /// The machine at its start.
    pub state: State,
}

/// A measured candidate.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Trial {
    /// Position in the list of candidates.
    pub candidate: usize,
    /// What became of it.
    pub outcome: Outcome,
    /// Why it isn't valid.
    pub error: Option<Fault>,
    /// Hash of the kernel text.
    pub kernel_sha256: Option<String>,
    /// Hash of the generated code's listing.
    pub artifact_sha256: Option<String>,
    /// Lowering and code generation.
    pub compile_ns: Option<u64>,
    /// Against the oracle.
    pub check: Option<Check>,
    /// Samples of each round.
    pub rounds: Vec<Samples>,
    /// The label.
    pub label_us: Option<f64>,
}

/// A control beside a search.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SearchControl {
    /// Its name.
    pub name: String,
    /// What became of it.
    pub outcome: Outcome,
    /// Why it isn't valid.
    pub error: Option<Fault>,
    /// `preallocated` or `returned`.
    pub output: String,
    /// Against the oracle.
    pub check: Option<Check>,
    /// Samples of each round.
    pub rounds: Vec<Samples>,
    /// The label.
    pub label_us: Option<f64>,
}

/// The choice of a search.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Selection {
    /// What it goes by.
    pub metric: Metric,
    /// The winner; `None` if nothing is valid or the fresh measurement failed.
    pub winner: Option<usize>,
    /// The winner compiled, checked and measured again.
    pub fresh: Option<Trial>,
}

/// search/CASE.json and labels/CASE.json.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SearchFile {
    /// [`super::SEARCH`].
    pub schema: String,
    /// The case.
    pub case: Case,
    /// Hash from which seed and order derive.
    pub basis: String,
    /// Seed of the inputs.
    pub inputs_seed: String,
    /// Rotation of the first round.
    pub offset: usize,
    /// Hash of the printed program.
    pub program_sha256: String,
    /// Hash of everything that the ranking depends on.
    pub plan_key: String,
    /// The incumbent's policy.
    pub policy: String,
    /// Sizes of the space.
    pub space: SpaceCounts,
    /// Model family.
    pub family: String,
    /// Names of the model's inputs.
    pub input_names: Vec<String>,
    /// Candidates in the order of the space.
    pub candidates: Vec<SearchCandidate>,
    /// Position of the incumbent.
    pub incumbent: usize,
    /// Settings.
    pub protocol: Protocol,
    /// Least possible time.
    pub floor: Floor,
    /// Rounds.
    pub rounds: Vec<SearchRound>,
    /// One per candidate.
    pub trials: Vec<Trial>,
    /// Controls.
    pub controls: Vec<SearchControl>,
    /// The choice.
    pub selection: Selection,
    /// Allocating and filling the tensors.
    pub upload_ns: u64,
    /// The machine before.
    pub state_before: State,
    /// The machine after.
    pub state_after: State,
}

/// A candidate as it is listed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SearchCandidate {
    /// Index in the space.
    pub plan: usize,
    /// How it runs.
    pub mapping: Mapping,
    /// The model's inputs.
    pub inputs: Vec<f64>,
    /// The incumbent policy's score.
    pub score: f64,
}

impl SearchFile {
    /// The label of a candidate, if it is valid.
    pub fn label(&self, candidate: usize) -> Option<f64> {
        self.trials.get(candidate).filter(|t| t.outcome == Outcome::Valid).and_then(|t| t.label_us)
    }

    /// Every valid label.
    pub fn labels(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        (0..self.trials.len()).filter_map(|c| self.label(c).map(|l| (c, l)))
    }

    /// The smallest valid label.
    pub fn best(&self) -> Option<f64> {
        self.labels().map(|(_, l)| l).min_by(f64::total_cmp)
    }

    /// Label of a candidate / smallest label − 1.
    pub fn regret(&self, candidate: usize) -> Option<f64> {
        Some(self.label(candidate)? / self.best()? - 1.0)
    }
}

/// One path of a case in a replay round.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The path's name.
    pub path: String,
    /// What became of it.
    pub outcome: Outcome,
    /// Why it isn't valid.
    pub error: Option<Fault>,
    /// Hash of the kernel text.
    pub kernel_sha256: Option<String>,
    /// Hash of the generated code's listing.
    pub artifact_sha256: Option<String>,
    /// Lowering and code generation.
    pub compile_ns: Option<u64>,
    /// Against the oracle.
    pub check: Option<Check>,
    /// Its samples.
    #[serde(flatten)]
    pub samples: Samples,
}

/// A case in a replay round.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ReplayCase {
    /// The case's id.
    pub case: String,
    /// Names of the paths.
    pub paths: Vec<String>,
    /// Positions in `paths`, in order of measurement.
    pub order: Vec<usize>,
    /// The fixed loop before and after.
    pub drift_ns: Vec<u64>,
    /// One per path.
    pub runs: Vec<Run>,
}

/// replay/round-NN.json.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ReplayRound {
    /// [`super::REPLAY`].
    pub schema: String,
    /// From 0.
    pub round: usize,
    /// Hash of the freeze entry.
    pub freeze: String,
    /// Settings.
    pub protocol: Protocol,
    /// Cases in order of measurement.
    pub cases: Vec<ReplayCase>,
    /// The machine before.
    pub state_before: State,
    /// The machine after.
    pub state_after: State,
}

impl Samples {
    /// The value of a metric in microseconds, the median of its samples; `None` without any.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        self.quantile(metric, 0.5)
    }

    /// The quantile `q` of a metric's samples in microseconds; `None` without any.
    pub fn quantile(&self, metric: Metric, q: f64) -> Option<f64> {
        let value = match metric {
            Metric::Batch | Metric::Model => per_call_us(&self.batch_ns, self.repetitions, q),
            Metric::Single => per_call_us(&self.single_ns, 1, q),
            Metric::Device => match (&self.device_ns, self.device_repetitions) {
                (Some(ns), Some(repetitions)) => per_call_us(ns, repetitions, q),
                _ => return None,
            },
        };
        value.is_finite().then_some(value)
    }
}

/// The label of rounds of samples: a quantile ([`Protocol::quantile`]) over rounds of that quantile
/// of their samples. `None` if a round has none.
pub fn label(rounds: &[Samples], metric: Metric, q: f64) -> Option<f64> {
    let values: Option<Vec<f64>> = rounds.iter().map(|r| r.quantile(metric, q)).collect();
    values.filter(|v| !v.is_empty()).map(|v| quantile(&v, q))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(batch_ns: &[u64]) -> Samples {
        Samples {
            repetitions: 10,
            batch_ns: batch_ns.to_vec(),
            single_ns: vec![7_000, 9_000],
            ..Samples::default()
        }
    }

    #[test]
    fn a_label_is_a_quantile_over_rounds_of_that_quantile_of_samples() {
        let rounds =
            [samples(&[10_000, 30_000, 20_000]), samples(&[90_000]), samples(&[10_000, 10_000])];
        assert_eq!(rounds[0].value(Metric::Batch), Some(2.0));
        assert_eq!(rounds[0].value(Metric::Single), Some(8.0));
        assert_eq!(rounds[0].value(Metric::Device), None);
        assert_eq!(label(&rounds, Metric::Batch, 0.5), Some(2.0));
        // Lower quartiles of the rounds: 1.5, 9 and 1.
        assert_eq!(label(&rounds, Metric::Batch, 0.25), Some(1.25));
        assert_eq!(label(&rounds, Metric::Device, 0.5), None);
        assert_eq!(label(&[], Metric::Batch, 0.5), None);
    }

    #[test]
    fn a_check_says_what_is_wrong() {
        let mut check = Check {
            data: vec![("dyadic".to_string(), 9, 0, 0.5), ("random".to_string(), 9, 2, 3.0)],
            guards_intact: true,
            inputs_unchanged: true,
        };
        assert!(!check.passed());
        assert!(check.complaint().message.contains("2 of 9"));
        check.data.pop();
        assert!(check.passed());
        check.guards_intact = false;
        assert!(check.complaint().message.contains("beside"));
    }
}
