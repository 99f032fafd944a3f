//! Files that hold choices: calibration/, protocol.json, frozen/.

use super::SpaceCounts;
use crate::case::Case;
use crate::protocol::Protocol;
use crate::spec::{Acceptance, Metric};
use crate::stats::VerdictRule;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use tilewright_plan::mapping::Mapping;

/// A training row.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CalibrationRow {
    /// Training case.
    pub case: String,
    /// Candidate of its search.
    pub candidate: usize,
    /// Its label.
    pub label_us: f64,
    /// How far the rounds of the label lie apart, from which its weight follows; absent in older
    /// records, where every row counts alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
}

/// A fit that a model is the mean of: some of the model's terms with the coefficients of this fit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DesignFit {
    /// Positions in the model's terms.
    pub terms: Vec<usize>,
    /// One coefficient each.
    pub coefficients: Vec<f64>,
}

/// A fold of the nested protocol.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Fold {
    /// The shape that was held out.
    pub held_out: String,
    /// Mean regret over its cases.
    pub regret_mean: f64,
    /// Largest regret over its cases.
    pub regret_max: f64,
    /// Strength of the fit without it, where the family's fits stay near a prior.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strength: Option<f64>,
}

/// What the coefficients of a family's fits stay near, and how strongly.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Prior {
    /// The coefficient without any data.
    pub toward: f64,
    /// Strengths that were tried, in the order of preference.
    pub strengths: Vec<f64>,
    /// The one of the fit.
    pub strength: f64,
}

/// How a family's margin was set on its training cases.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct GuardRule {
    /// The least predicted gain that counts as one.
    pub gain: f64,
    /// Share of the cases with such a gain that the margin covers: where `kept` isn't set, their
    /// over-predictions, else those of cases that lost.
    pub covered: f64,
    /// Whether a case that did gain needs no margin; not in records of an older rule.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
}

/// calibration/FAMILY.json.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CalibrationFile {
    /// [`super::CALIBRATION`].
    pub schema: String,
    /// Model family.
    pub family: String,
    /// Every valid trial of the family's training cases.
    pub rows: Vec<CalibrationRow>,
    /// Rows of the incumbents.
    pub incumbents: Vec<usize>,
    /// As in the profile.
    pub terms: Value,
    /// The fits of which the coefficients are the mean.
    pub designs: Vec<DesignFit>,
    /// What the coefficients stay near; `None` where they are free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prior: Option<Prior>,
    /// How the margin was set; `None` in records of an older rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<GuardRule>,
    /// Share by which labels may be above the best of their case and count as good, for the slack;
    /// `None` in records of an older rule: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<f64>,
    /// As in the profile.
    pub confidence: Value,
    /// The nested protocol.
    pub folds: Vec<Fold>,
    /// Hash of the fitting code.
    pub code_sha256: String,
    /// Hash of the rows.
    pub data_sha256: String,
}

/// The program that made a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tool {
    /// Its version.
    pub version: String,
    /// Hash of its executable.
    pub executable_sha256: String,
}

/// Paths of each kind of case.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FamilyPlans {
    /// Of row cases.
    pub rows: Vec<String>,
    /// Of products.
    pub matrix: Vec<String>,
}

/// protocol.json.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ProtocolFile {
    /// [`super::PROTOCOL`].
    pub schema: String,
    /// Hash of the study file.
    pub study_sha256: String,
    /// Hash of the profile.
    pub profile_sha256: String,
    /// Training cases.
    pub training: Vec<String>,
    /// Hold-out cases.
    pub holdout: Vec<String>,
    /// How hold-out labels are measured.
    pub labels: Protocol,
    /// How replays are measured.
    pub replay: Protocol,
    /// Paths of a replay.
    pub paths: FamilyPlans,
    /// Largest shortlist.
    pub shortlist: usize,
    /// Most candidates of a case, spread evenly over its space.
    pub cap: Option<usize>,
    /// Length of the shortlist that a case's candidates are, by the incumbent policy's score.
    pub top: Option<usize>,
    /// What selects the winner of hold-out labels.
    pub selection: Metric,
    /// Margin of the guard, by model family.
    pub guard: BTreeMap<String, f64>,
    /// Acceptance rules.
    pub acceptance: Acceptance,
    /// When a verdict is given.
    pub verdict: VerdictRule,
}

/// A candidate as the model sees it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FrozenCandidate {
    /// Index in the space.
    pub plan: usize,
    /// The incumbent policy's score.
    pub score: f64,
    /// The model's prediction.
    pub prediction_us: f64,
}

/// A frozen plan.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FrozenPlan {
    /// Position in the list of candidates.
    pub candidate: usize,
    /// Index in the space.
    pub plan: usize,
    /// How it runs.
    pub mapping: Mapping,
    /// Hash of the kernel text.
    pub kernel_sha256: String,
    /// Hash of the generated code's listing.
    pub artifact_sha256: Option<String>,
    /// The model's prediction.
    pub prediction_us: f64,
}

/// What the model says of a case.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Advice {
    /// Interval of the challenger's time.
    pub interval_us: [f64; 2],
    /// Candidates worth measuring.
    pub shortlist: usize,
    /// Why the model abstains, if it does.
    pub abstains: Option<String>,
    /// Prediction of the incumbent / of the challenger.
    pub predicted_gain: f64,
    /// What it must exceed.
    pub margin: f64,
    /// Whether the challenger replaces the incumbent.
    pub accepted: bool,
}

/// frozen/CASE.json.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FrozenFile {
    /// [`super::FROZEN`].
    pub schema: String,
    /// The case.
    pub case: Case,
    /// Hash of the printed program.
    pub program_sha256: String,
    /// Hash of the target's facts.
    pub target_sha256: String,
    /// Hash of the machine's identity.
    pub identity_sha256: String,
    /// Driver of the device.
    pub driver: Option<String>,
    /// The program that froze it.
    pub tool: Tool,
    /// Hash of the profile.
    pub profile_sha256: String,
    /// Hash of the resource table, if there is one.
    pub resource_table_sha256: Option<String>,
    /// How numbers are computed.
    pub numeric_policy: String,
    /// Sizes of the space.
    pub space: SpaceCounts,
    /// Candidates in the order of the space.
    pub candidates: Vec<FrozenCandidate>,
    /// Without the model.
    pub incumbent: FrozenPlan,
    /// With the model.
    pub challenger: FrozenPlan,
    /// What the model says.
    pub advice: Advice,
}
