//! Fields of the files. Only what is audited or reported is read; other fields may be there.

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::collections::BTreeMap;

/// `null` or nothing stands for an empty list: a run that failed has no samples.
fn list_or_null<'de, D: Deserializer<'de>, T: Deserialize<'de>>(d: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::<Vec<T>>::deserialize(d)?.unwrap_or_default())
}

/// A case.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Case {
    pub id: String,
    pub family: String,
    pub op: String,
    pub dtype: String,
    pub shape: Vec<u64>,
    pub set: String,
    pub ordinal: u64,
    pub threads: u64,
    #[serde(default)]
    pub trans: Option<String>,
    #[serde(default)]
    pub epilogue: Option<Value>,
}

impl Case {
    /// The shape, its numbers joined by `x`.
    pub fn shape_text(&self) -> String {
        let numbers: Vec<String> = self.shape.iter().map(u64::to_string).collect();
        numbers.join("x")
    }
}

/// A case, whole or by its id.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(untagged)]
#[expect(missing_docs, reason = "the format names the forms")]
pub enum CaseRef {
    Id(String),
    Whole(Box<Case>),
}

impl CaseRef {
    /// The id.
    pub fn id(&self) -> &str {
        match self {
            CaseRef::Id(id) => id,
            CaseRef::Whole(case) => &case.id,
        }
    }
}

/// An entry of the ledger.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Entry {
    pub index: u64,
    pub kind: String,
    pub prev: String,
    pub hash: String,
    pub body: Value,
}

impl Entry {
    /// A text of the body.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.body.get(name)?.as_str()
    }
}

/// Rates of one thread count.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Ceiling {
    pub threads: u64,
    pub flops_per_second: BTreeMap<String, f64>,
    pub launch_ns: f64,
    pub bytes_per_second: BTreeMap<String, Option<f64>>,
}

/// A control of the machine.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct MachineControl {
    pub name: String,
    pub available: bool,
    #[serde(default)]
    pub version: Option<String>,
    #[serde(default)]
    pub reason: Option<String>,
}

/// machine.json. `meter` is `simulated` where times were made up to test a pipeline.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Machine {
    pub schema: String,
    #[serde(default)]
    pub meter: Option<String>,
    pub identity: Value,
    pub ceilings: Vec<Ceiling>,
    #[serde(default)]
    pub controls: Vec<MachineControl>,
}

/// When a search measures again.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Remeasure {
    pub rounds: usize,
    pub spread: f64,
}

/// How often a search measures its fastest candidates.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Finals {
    pub rounds: usize,
    pub candidates: usize,
}

/// How times were taken.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Protocol {
    pub samples: usize,
    pub single_samples: usize,
    pub rounds: usize,
    pub sample_ns: u64,
    pub warmup_ns: u64,
    pub deadline_ms: u64,
    pub buffers: String,
    pub sets: u64,
    pub interleaved: bool,
    #[serde(default)]
    pub label_quantile: Option<f64>,
    #[serde(default)]
    pub remeasure: Option<Remeasure>,
    #[serde(default)]
    pub finals: Option<Finals>,
    #[serde(default)]
    pub time_quantile: Option<f64>,
}

impl Protocol {
    /// The quantile of the rounds' values that is the label: the median where none is stated.
    pub fn quantile(&self) -> f64 {
        self.label_quantile.unwrap_or(0.5)
    }

    /// The quantile of a path's samples that is its time in a round of a replay.
    pub fn time_quantile(&self) -> f64 {
        self.time_quantile.unwrap_or(0.5)
    }
}

/// How the outputs compared with the oracle.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct OutputCheck {
    pub data: Vec<(String, u64, u64, Option<f64>)>,
    pub guards_intact: bool,
    pub inputs_unchanged: bool,
}

impl OutputCheck {
    /// Why the outputs don't hold, if they don't.
    pub fn fault(&self) -> Option<String> {
        for kind in ["dyadic", "random"] {
            match self.data.iter().find(|d| d.0 == kind) {
                None => return Some(format!("no {kind} data")),
                Some((_, 0, ..)) => return Some(format!("no element of {kind} data")),
                Some((_, _, failures @ 1.., _)) => {
                    return Some(format!("{failures} wrong elements of {kind} data"));
                }
                Some((_, _, _, error)) => {
                    if !error.is_some_and(|e| (0.0..=1.0).contains(&e)) {
                        return Some(format!("error {error:?} of the bound on {kind} data"));
                    }
                }
            }
        }
        match (self.guards_intact, self.inputs_unchanged) {
            (false, _) => Some("a guard was written".to_string()),
            (_, false) => Some("an input changed".to_string()),
            _ => None,
        }
    }
}

/// Samples of one measurement.
#[derive(Clone, Default, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Timing {
    #[serde(default)]
    pub repetitions: Option<u64>,
    #[serde(default, deserialize_with = "list_or_null")]
    pub batch_ns: Vec<u64>,
    #[serde(default, deserialize_with = "list_or_null")]
    pub single_ns: Vec<u64>,
    #[serde(default)]
    pub device_ns: Option<Vec<u64>>,
    #[serde(default)]
    pub device_repetitions: Option<u64>,
}

/// A candidate of a search.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Candidate {
    pub plan: u64,
    pub mapping: Value,
    pub inputs: Vec<f64>,
    pub score: f64,
}

/// A measured candidate or control.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Trial {
    #[serde(default)]
    pub candidate: Option<usize>,
    #[serde(default)]
    pub name: Option<String>,
    pub outcome: String,
    #[serde(default)]
    pub error: Option<Value>,
    #[serde(default)]
    pub kernel_sha256: Option<String>,
    #[serde(default)]
    pub artifact_sha256: Option<String>,
    #[serde(default)]
    pub check: Option<OutputCheck>,
    #[serde(default, deserialize_with = "list_or_null")]
    pub rounds: Vec<Timing>,
    #[serde(default)]
    pub label_us: Option<f64>,
}

impl Trial {
    /// Whether its label counts.
    pub fn valid(&self) -> bool {
        self.outcome == "valid"
    }

    /// Its label, if it counts.
    pub fn valid_label(&self) -> Option<f64> {
        self.label_us.filter(|_| self.valid())
    }
}

/// Sizes of the space.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Space {
    pub candidates: u64,
    pub legal: u64,
    pub rejected: BTreeMap<String, u64>,
    pub measured: u64,
    #[serde(default)]
    pub legal_plans: Option<Vec<u64>>,
    #[serde(default)]
    pub legal_scores: Option<Vec<f64>>,
}

/// The physical floor of a case.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Floor {
    pub flops: f64,
    pub bytes: f64,
    pub working_set_bytes: f64,
    pub level: String,
    pub floor_us: f64,
}

/// A round of a search.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct SearchRound {
    pub order: Vec<usize>,
    #[serde(default, deserialize_with = "list_or_null")]
    pub drift_ns: Vec<u64>,
    #[serde(default)]
    pub state: Value,
}

impl SearchRound {
    /// Seconds since 1970 at its start.
    pub fn begun(&self) -> Option<u64> {
        self.state.get("unix_s")?.as_u64()
    }
}

/// What a search chose.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Selection {
    pub metric: String,
    #[serde(default)]
    pub winner: Option<usize>,
    #[serde(default)]
    pub fresh: Option<Trial>,
}

/// search/CASE.json or labels/CASE.json.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Search {
    pub schema: String,
    pub case: Case,
    pub basis: String,
    pub inputs_seed: String,
    pub offset: usize,
    pub program_sha256: String,
    pub policy: String,
    pub space: Space,
    pub family: String,
    pub input_names: Vec<String>,
    pub candidates: Vec<Candidate>,
    pub incumbent: usize,
    pub protocol: Protocol,
    pub floor: Floor,
    pub rounds: Vec<SearchRound>,
    pub trials: Vec<Trial>,
    #[serde(default)]
    pub controls: Vec<Trial>,
    pub selection: Selection,
}

impl Search {
    /// The label of a candidate, if it counts.
    pub fn label(&self, candidate: usize) -> Option<f64> {
        self.trials.get(candidate)?.valid_label()
    }

    /// The smallest label that counts.
    pub fn best(&self) -> Option<f64> {
        self.trials.iter().filter_map(Trial::valid_label).reduce(f64::min)
    }

    /// Label of a candidate / smallest label − 1.
    pub fn regret(&self, candidate: usize) -> Option<f64> {
        Some(self.label(candidate)? / self.best()? - 1.0)
    }
}

/// A row of a fit.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct FitRow {
    pub case: String,
    pub candidate: usize,
    pub label_us: Value,
    #[serde(default)]
    pub spread: Option<Value>,
}

/// A term of a model.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Term {
    pub term: String,
    #[serde(default)]
    pub capacity: Option<f64>,
    pub coefficient: f64,
}

/// A fit that a model is the mean of: some of its terms with the coefficients of this fit.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Design {
    pub terms: Vec<usize>,
    pub coefficients: Vec<f64>,
}

/// What training rows say about a model.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Confidence {
    pub level: f64,
    pub low: f64,
    pub high: f64,
    pub slack: f64,
    pub margin: f64,
    pub ranges: BTreeMap<String, [f64; 2]>,
    pub rows: u64,
    pub cases: u64,
    pub shapes: u64,
}

/// A left-out shape.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Fold {
    pub held_out: Value,
    pub regret_mean: f64,
    pub regret_max: f64,
    #[serde(default)]
    pub strength: Option<f64>,
}

/// What the coefficients of fits stay near, and how strongly.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Prior {
    pub toward: f64,
    pub strengths: Vec<f64>,
    pub strength: f64,
}

/// How a family's margin was set.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct GuardRule {
    pub gain: f64,
    pub covered: f64,
    #[serde(default)]
    pub kept: bool,
}

/// calibration/FAMILY.json.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Calibration {
    pub schema: String,
    pub family: String,
    pub rows: Vec<FitRow>,
    pub incumbents: Vec<usize>,
    pub terms: Vec<Term>,
    pub designs: Vec<Design>,
    #[serde(default)]
    pub prior: Option<Prior>,
    #[serde(default)]
    pub guard: Option<GuardRule>,
    #[serde(default)]
    pub tolerance: f64,
    pub confidence: Confidence,
    pub folds: Vec<Fold>,
    pub data_sha256: String,
    pub code_sha256: String,
}

/// A family of a profile.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct ProfileFit {
    pub family: String,
    pub terms: Vec<Term>,
    pub confidence: Confidence,
}

/// profile.json.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Profile {
    pub schema: String,
    pub policy: String,
    pub fits: Vec<ProfileFit>,
}

impl Profile {
    /// The fit of a family.
    pub fn fit(&self, family: &str) -> Option<&ProfileFit> {
        self.fits.iter().find(|f| f.family == family)
    }
}

/// Thresholds of verdicts.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct VerdictRule {
    pub rounds: usize,
    pub quantile: f64,
    pub alpha: f64,
}

/// protocol.json.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct ProtocolFile {
    pub schema: String,
    pub study_sha256: String,
    pub profile_sha256: String,
    pub training: Vec<String>,
    pub holdout: Vec<String>,
    pub labels: Protocol,
    pub replay: Protocol,
    pub paths: BTreeMap<String, Vec<String>>,
    pub shortlist: u64,
    #[serde(default)]
    pub cap: Option<u64>,
    #[serde(default)]
    pub top: Option<u64>,
    pub selection: String,
    pub guard: BTreeMap<String, f64>,
    pub acceptance: BTreeMap<String, Value>,
    pub verdict: VerdictRule,
}

/// A candidate of a frozen plan.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct FrozenCandidate {
    pub plan: u64,
    pub score: f64,
    pub prediction_us: f64,
}

/// One of the two plans of a frozen case.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct FrozenPlan {
    pub candidate: usize,
    pub plan: u64,
    pub mapping: Value,
    pub kernel_sha256: String,
    #[serde(default)]
    pub artifact_sha256: Option<String>,
    pub prediction_us: f64,
}

/// What the model says about a case.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Advice {
    pub interval_us: [f64; 2],
    pub shortlist: u64,
    #[serde(default)]
    pub abstains: Option<String>,
    pub predicted_gain: f64,
    pub margin: f64,
    pub accepted: bool,
}

/// frozen/CASE.json.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Frozen {
    pub schema: String,
    pub case: CaseRef,
    pub program_sha256: String,
    pub identity_sha256: String,
    pub profile_sha256: String,
    pub space: Space,
    pub candidates: Vec<FrozenCandidate>,
    pub incumbent: FrozenPlan,
    pub challenger: FrozenPlan,
    pub advice: Advice,
}

/// A path of a case in a replay round.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Run {
    pub path: String,
    pub outcome: String,
    #[serde(default)]
    pub error: Option<Value>,
    #[serde(default)]
    pub kernel_sha256: Option<String>,
    #[serde(default)]
    pub artifact_sha256: Option<String>,
    #[serde(default)]
    pub check: Option<OutputCheck>,
    #[serde(flatten)]
    pub timing: Timing,
}

impl Run {
    /// Whether its times count.
    pub fn valid(&self) -> bool {
        self.outcome == "valid"
    }
}

/// A case of a replay round.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct RoundCase {
    pub case: CaseRef,
    pub paths: Vec<String>,
    pub order: Vec<usize>,
    pub runs: Vec<Run>,
}

impl RoundCase {
    /// The run of a path.
    pub fn run(&self, path: &str) -> Option<&Run> {
        self.runs.iter().find(|r| r.path == path)
    }
}

/// replay/round-NN.json.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Round {
    pub schema: String,
    pub round: u64,
    pub freeze: String,
    pub protocol: Protocol,
    pub cases: Vec<RoundCase>,
}

impl Round {
    /// What was measured of a case.
    pub fn case(&self, id: &str) -> Option<&RoundCase> {
        self.cases.iter().find(|c| c.case.id() == id)
    }
}
