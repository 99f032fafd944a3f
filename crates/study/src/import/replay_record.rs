//! Replay records of the reference system: its spent hold-out, incumbent against challenger.

use serde_json::Value;
use tilewright_plan::calibrate::guard::GuardCase;
use tilewright_plan::mapping::Mapping;
use tilewright_plan::policy::{CandidateFacts, CandidateView, Policy};
use tilewright_plan::problem::Problem;
use tilewright_plan::rows::RowCounts;
use tilewright_plan::{PlanError, Target};

use super::ImportError;
use super::kernel_tuner::fault;
use super::record::{row_mapping, row_problem};

/// A schedule of a row program: threads, and whether inputs are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowChoice {
    /// Threads of a group.
    pub threads: u64,
    /// Inputs are cached.
    pub cache: bool,
}

/// One case of the replay.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayCase {
    /// Its name.
    pub case: String,
    /// The op.
    pub operation: String,
    /// Rows and columns.
    pub shape: [u64; 2],
    /// The schedule before.
    pub incumbent: RowChoice,
    /// The schedule that the fit picked.
    pub challenger: RowChoice,
    /// Median over the rounds of incumbent/challenger GPU time.
    pub gain: f64,
}

/// A replay.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayRecord {
    /// Rounds.
    pub rounds: u64,
    /// Its cases.
    pub cases: Vec<ReplayCase>,
}

/// Reads a replay record.
///
/// # Errors
/// A field is missing or of another type.
pub fn parse(value: &Value) -> Result<ReplayRecord, ImportError> {
    let list = value["cases"].as_array().ok_or_else(|| fault("cases", "it must be a list"))?;
    let mut cases = Vec::with_capacity(list.len());
    for (i, case) in list.iter().enumerate() {
        let place = format!("cases[{i}]");
        let missing = |key: &str| fault(&place, &format!("`{key}` is missing"));
        let choice = |key: &str| {
            let threads = case[key]["threads"].as_u64();
            let cache = case[key]["cache"].as_bool();
            threads.zip(cache).map(|(threads, cache)| RowChoice { threads, cache })
        };
        let text = |key: &str| case[key].as_str().map(str::to_string);
        let gain = case["gpu_throughput"]["gain_median"].as_f64();
        cases.push(ReplayCase {
            case: text("case").ok_or_else(|| missing("case"))?,
            operation: text("operation").ok_or_else(|| missing("operation"))?,
            shape: [
                case["rows"].as_u64().ok_or_else(|| missing("rows"))?,
                case["columns"].as_u64().ok_or_else(|| missing("columns"))?,
            ],
            incumbent: choice("reference").ok_or_else(|| missing("reference"))?,
            challenger: choice("candidate").ok_or_else(|| missing("candidate"))?,
            gain: gain
                .filter(|g| g.is_finite() && *g > 0.0)
                .ok_or_else(|| missing("gpu_throughput.gain_median"))?,
        });
    }
    let rounds = value["rounds"].as_u64().ok_or_else(|| fault("rounds", "it must be a count"))?;
    Ok(ReplayRecord { rounds, cases })
}

impl ReplayRecord {
    /// Predicted and measured gain of every case, by a policy that scores times on the M1 Max.
    ///
    /// # Errors
    /// A problem can't be planned, or the policy fails.
    pub fn guard_cases(&self, policy: &dyn Policy) -> Result<Vec<GuardCase>, ImportError> {
        let target = Target::apple_m1_max();
        self.cases
            .iter()
            .map(|case| {
                let plan = |error| ImportError::Plan { place: case.case.clone(), error };
                let [rows, columns] = case.shape;
                let problem = row_problem(&case.operation, rows, columns).map_err(plan)?;
                let time = |choice: RowChoice| {
                    let mapping = row_mapping(choice.threads, choice.cache);
                    let counts = RowCounts::new(&problem, &mapping);
                    let view = CandidateView {
                        target: &target,
                        problem: Problem::Rows(&problem),
                        mapping: &Mapping::Rows(mapping),
                        facts: &CandidateFacts::Rows(counts),
                        cpu_threads: 1,
                    };
                    policy.score(&view).map(|s| s.kernel).map_err(|e| plan(PlanError::Policy(e)))
                };
                Ok(GuardCase {
                    case: case.case.clone(),
                    predicted: time(case.incumbent)? / time(case.challenger)?,
                    measured: case.gain,
                })
            })
            .collect()
    }
}
