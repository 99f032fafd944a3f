//! results.json (`schemas/results.schema.json`).

use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
pub struct MeanMax {
    pub mean: Option<f64>,
    pub max: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Coverage {
    pub inside: u64,
    pub labels: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Regret {
    pub challenger: Option<f64>,
    pub incumbent: Option<f64>,
    pub top3: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub won: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct PathResult {
    pub path: String,
    pub rounds: u64,
    pub time_us: Option<f64>,
    pub ratio: Option<Spread>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Metrics {
    pub batch: Option<Spread>,
    pub single: Option<Spread>,
    pub device: Option<Spread>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct CaseResult {
    pub case: String,
    pub family: String,
    pub regret: Regret,
    pub coverage: Coverage,
    pub accepted: bool,
    pub predicted_gain: f64,
    pub shortlist: u64,
    pub abstains: Option<String>,
    pub paths: Vec<PathResult>,
    pub gain: Option<Spread>,
    pub metrics: Metrics,
    pub floor: Option<f64>,
    pub holm_p: Option<f64>,
    pub verdict: String,
    pub loser: bool,
}

impl CaseResult {
    pub fn path(&self, name: &str) -> Option<&PathResult> {
        self.paths.iter().find(|p| p.path == name)
    }

    /// The largest ratio that counts as noise.
    pub fn noise(&self) -> Option<f64> {
        self.floor.map(f64::exp)
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct FamilyRegret {
    pub challenger: MeanMax,
    pub incumbent: MeanMax,
    pub top3: MeanMax,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Choice {
    pub speedup: Option<f64>,
    pub losers: u64,
    pub regret: MeanMax,
}

#[derive(Clone, Debug, Deserialize)]
pub struct FamilyResult {
    pub family: String,
    pub cases: u64,
    pub regret: FamilyRegret,
    pub coverage: Coverage,
    pub half_width: f64,
    pub abstained: u64,
    pub always_incumbent: Choice,
    pub always_challenger: Choice,
    pub guarded: Choice,
}

#[derive(Clone, Debug, Deserialize)]
pub struct GateRule {
    pub rule: String,
    pub value: Option<f64>,
    pub limit: f64,
    pub passed: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Gate {
    pub rules: Vec<GateRule>,
    pub passed: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Results {
    pub freeze: String,
    pub freezes: u64,
    pub rounds: u64,
    pub cases: Vec<CaseResult>,
    pub families: Vec<FamilyResult>,
    pub always_incumbent: Choice,
    pub always_challenger: Choice,
    pub guarded: Choice,
    pub wins: u64,
    pub kept: u64,
    pub accepted: u64,
    pub losers: u64,
    pub gate: Gate,
    pub default_ok: bool,
}
