//! Profiles of the `whole-launch` policy.
//!
//! ```json
//! {
//!   "schema": "tilewright-profile-v1", "policy": "whole-launch",
//!   "target": "apple-m1-max", "unit": "us",
//!   "fits": [{
//!     "family": "gpu-rows",
//!     "terms": [{ "term": "launch", "coefficient": 3.2 },
//!               { "term": "rounds", "capacity": 512, "coefficient": 0.004 }],
//!     "confidence": { "level": 0.9, "low": 0.8, "high": 1.6, "slack": 1.1, "margin": 1.2,
//!                     "ranges": { "programs": [23, 1024] },
//!                     "rows": 101, "cases": 12, "shapes": 4 }
//!   }],
//!   "fit": { "data_sha256": "…", "code_sha256": "…", "procedure": "…" }
//! }
//! ```

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::{FitOrigin, HoldOut, ProfileError, SCHEMA};
use crate::policy::whole_launch::{
    Confidence, Family, FamilyFit, Model, NAME, WeightedTerm, WholeLaunch,
};

/// Fits of whole-launch times on one target.
#[derive(Clone, PartialEq, Debug)]
pub struct WholeLaunchProfile {
    /// The target that it was fitted on.
    pub target: String,
    /// One fit a family.
    pub fits: Vec<FamilyFit>,
    /// Where it comes from, if stated.
    pub source: Option<String>,
    /// Training data and code.
    pub fit: FitOrigin,
    /// What a fresh hold-out says of it, if there was one.
    pub hold_out: Option<HoldOut>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema: String,
    policy: String,
    target: String,
    unit: String,
    fits: Vec<FitFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    fit: FitOrigin,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hold_out: Option<HoldOut>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FitFile {
    family: String,
    terms: Vec<TermFile>,
    confidence: ConfidenceFile,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TermFile {
    term: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capacity: Option<u32>,
    coefficient: f64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfidenceFile {
    level: f64,
    low: f64,
    high: f64,
    slack: f64,
    margin: f64,
    ranges: BTreeMap<String, [f64; 2]>,
    rows: u64,
    cases: u64,
    shapes: u64,
}

impl WholeLaunchProfile {
    /// Reads the file; its schema, policy and unit are checked already.
    pub(super) fn read(text: &str) -> Result<Self, ProfileError> {
        let file: File =
            serde_json::from_str(text).map_err(|e| ProfileError::Json(e.to_string()))?;
        file.fit.check()?;
        file.hold_out.as_ref().map_or(Ok(()), HoldOut::check)?;
        if file.fits.is_empty() {
            return Err(ProfileError::Json("`fits` is empty".to_string()));
        }
        let mut fits: Vec<FamilyFit> = Vec::with_capacity(file.fits.len());
        for fit in &file.fits {
            let fit = read_fit(fit)?;
            let family = fit.model.family();
            if fits.iter().any(|f| f.model.family() == family) {
                return Err(bad(family.name(), "it occurs twice"));
            }
            fits.push(fit);
        }
        Ok(WholeLaunchProfile {
            target: file.target,
            fits,
            source: file.source,
            fit: file.fit,
            hold_out: file.hold_out,
        })
    }

    /// The policy with these fits.
    pub fn policy(&self) -> WholeLaunch {
        WholeLaunch::new(&self.target, self.fits.clone())
    }

    /// The profile as a JSON file.
    pub fn to_json(&self) -> String {
        let file = File {
            schema: SCHEMA.to_string(),
            policy: NAME.to_string(),
            target: self.target.clone(),
            unit: "us".to_string(),
            fits: self.fits.iter().map(write_fit).collect(),
            source: self.source.clone(),
            fit: self.fit.clone(),
            hold_out: self.hold_out.clone(),
        };
        // Plain data with text keys always serialises.
        serde_json::to_string_pretty(&file).unwrap_or_default() + "\n"
    }
}

fn bad(family: &str, problem: impl ToString) -> ProfileError {
    ProfileError::Model { family: family.to_string(), problem: problem.to_string() }
}

fn read_fit(file: &FitFile) -> Result<FamilyFit, ProfileError> {
    let family = Family::by_name(&file.family).ok_or_else(|| ProfileError::Field {
        field: "family".to_string(),
        value: file.family.clone(),
        expected: Family::ALL.map(Family::name).join(", "),
    })?;
    let mut terms = Vec::with_capacity(file.terms.len());
    for t in &file.terms {
        let term = family.term(&t.term).ok_or_else(|| ProfileError::UnknownCoefficient {
            policy: format!("{NAME} {}", family.name()),
            name: t.term.clone(),
        })?;
        terms.push(WeightedTerm { term, capacity: t.capacity, coefficient: t.coefficient });
    }
    let model = Model::new(family, terms).map_err(|e| bad(family.name(), e))?;
    let c = &file.confidence;
    let finite = |name: &str, value: f64, holds: bool, wanted: &str| {
        if value.is_finite() && holds {
            Ok(())
        } else {
            Err(bad(family.name(), format!("confidence `{name}` is {value}: it must be {wanted}")))
        }
    };
    finite("level", c.level, c.level > 0.0 && c.level < 1.0, "between 0 and 1")?;
    finite("low", c.low, c.low > 0.0, "positive")?;
    finite("high", c.high, c.high >= c.low, "at least `low`")?;
    finite("slack", c.slack, c.slack >= 1.0, "at least 1")?;
    finite("margin", c.margin, c.margin >= 1.0, "at least 1")?;
    let mut ranges = Vec::with_capacity(family.inputs().len());
    for input in family.inputs() {
        let Some(range) = c.ranges.get(*input) else {
            return Err(bad(family.name(), format!("confidence has no range of `{input}`")));
        };
        finite(input, range[0], range[0] >= 0.0, "not negative")?;
        finite(input, range[1], range[1] >= range[0], "an ascending range")?;
        ranges.push(*range);
    }
    if let Some(name) = c.ranges.keys().find(|k| !family.inputs().contains(&k.as_str())) {
        return Err(bad(family.name(), format!("`{name}` is no input of it")));
    }
    Ok(FamilyFit {
        model,
        confidence: Confidence {
            level: c.level,
            low: c.low,
            high: c.high,
            slack: c.slack,
            margin: c.margin,
            ranges,
            rows: c.rows,
            cases: c.cases,
            shapes: c.shapes,
        },
    })
}

fn write_fit(fit: &FamilyFit) -> FitFile {
    let family = fit.model.family();
    let c = &fit.confidence;
    let terms = fit.model.terms().iter().map(|t| TermFile {
        term: family.terms().get(t.term).map_or(String::new(), |info| info.name.to_string()),
        capacity: t.capacity,
        coefficient: t.coefficient,
    });
    let ranges = family.inputs().iter().zip(&c.ranges).map(|(name, r)| (name.to_string(), *r));
    FitFile {
        family: family.name().to_string(),
        terms: terms.collect(),
        confidence: ConfidenceFile {
            level: c.level,
            low: c.low,
            high: c.high,
            slack: c.slack,
            margin: c.margin,
            ranges: ranges.collect(),
            rows: c.rows,
            cases: c.cases,
            shapes: c.shapes,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile;

    fn profile() -> WholeLaunchProfile {
        let family = Family::GpuRows;
        let term = |name: &str, capacity, coefficient| WeightedTerm {
            term: family.term(name).unwrap(),
            capacity,
            coefficient,
        };
        let terms = vec![term("launch", None, 3.25), term("rounds", Some(512), 0.1 + 0.2)];
        WholeLaunchProfile {
            target: "apple-m1-max".to_string(),
            fits: vec![FamilyFit {
                model: Model::new(family, terms).unwrap(),
                confidence: Confidence {
                    level: 0.9,
                    low: 0.75,
                    high: 1.5,
                    slack: 1.125,
                    margin: 1.25,
                    ranges: vec![[1.0, 2.0]; family.inputs().len()],
                    rows: 101,
                    cases: 12,
                    shapes: 4,
                },
            }],
            source: None,
            fit: FitOrigin {
                data_sha256: "0".repeat(64),
                code_sha256: "a".repeat(64),
                procedure: "test".to_string(),
            },
            hold_out: Some(HoldOut {
                freeze: "b".repeat(64),
                target_sha256: "c".repeat(64),
                rounds: 14,
                cases: 2,
                lost_every_round: vec!["softmax-f32-3x7".to_string()],
            }),
        }
    }

    #[test]
    fn a_file_reads_back_exactly() {
        let own = profile();
        let read = Profile::from_json(&own.to_json()).unwrap();
        assert_eq!(read.policy(), NAME);
        assert!(matches!(read.check_target("cpu"), Err(ProfileError::Target { .. })));
        assert_eq!(read, Profile::WholeLaunch(own));
    }

    #[test]
    fn faults_are_named() {
        let text = profile().to_json();
        let fault = |from: &str, to: &str| {
            assert!(text.contains(from), "{from} in {text}");
            Profile::from_json(&text.replacen(from, to, 1)).unwrap_err()
        };
        let shown = |from: &str, to: &str| fault(from, to).to_string();
        assert!(matches!(fault("\"0000", "\"zz00"), ProfileError::Field { .. }));
        assert!(shown("\"cccc", "\"zzcc").contains("hold_out.target_sha256"));
        assert!(shown("\"lost_every_round\"", "\"lost\"").contains("not a profile"));
        assert!(matches!(fault("gpu-rows", "gpu-cows"), ProfileError::Field { .. }));
        assert!(matches!(fault("rounds", "squares"), ProfileError::UnknownCoefficient { .. }));
        assert!(matches!(fault("\"us\"", "\"ns\""), ProfileError::Field { .. }));
        assert!(shown("\"coefficient\": 3.25", "\"coefficient\": -3.25").contains("not negative"));
        assert!(shown("\"capacity\": 512", "\"capacity\": 0").contains("capacity is 0"));
        assert!(shown("\"slack\": 1.125", "\"slack\": 0.5").contains("slack"));
        assert!(shown("\"programs\"", "\"pilgrims\"").contains("programs"));
        assert!(shown("\"level\": 0.9", "\"level\": 1e999").contains("not a profile"));
    }
}
