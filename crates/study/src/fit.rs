//! The calibration step of a study: from the labels of its searches to a profile.

use crate::canonical::sha256;
use crate::error::StudyError;
use crate::import::training::{Training, TrainingRow};
use crate::record::{
    CALIBRATION, CalibrationFile, CalibrationRow, DesignFit, Fold, GuardRule, Prior, SearchFile,
};
use crate::search::spreads;
use serde_json::Value;
use std::collections::BTreeMap;
use tilewright_plan::Target;
use tilewright_plan::calibrate::{
    DataError, Dataset, OuterFold, Sample, Split, Strategy, anchor, code_hash, guard, mean, nested,
    train, weight, whole_launch,
};
use tilewright_plan::policy::whole_launch::{Family, FamilyFit, Inputs, MAX_INPUTS};
use tilewright_plan::profile::{FitOrigin, WholeLaunchProfile};

/// What the calibration of a study gives.
#[derive(Clone, PartialEq, Debug)]
pub struct Calibrated {
    /// One file a family, in the order of the profile's fits.
    pub families: Vec<CalibrationFile>,
    /// The profile.
    pub profile: WholeLaunchProfile,
}

/// Fits every family that the searches hold.
///
/// # Errors
/// A family has fewer than two shapes or nothing valid.
pub fn calibrate(searches: &[SearchFile], machine: &Target) -> Result<Calibrated, StudyError> {
    let target = machine.name.as_str();
    let cores = machine.gpu_facts().map_or(1, |gpu| gpu.cores);
    let mut by_family: BTreeMap<&str, Vec<&SearchFile>> = BTreeMap::new();
    for search in searches {
        by_family.entry(&search.family).or_default().push(search);
    }
    let (mut families, mut fits, mut texts) = (Vec::new(), Vec::new(), String::new());
    for (name, searches) in by_family {
        let fault = |message: String| StudyError::Calibration { family: name.to_string(), message };
        let family =
            Family::by_name(name).ok_or_else(|| fault("there is no such family".into()))?;
        let training = training(family, target, &searches);
        let data = training.dataset_of(cores).and_then(|data| weighted(data, &searches));
        let data = data.map_err(|e| fault(e.to_string()))?;
        let (inputs, incumbents) = (training.inputs(), training.incumbents());
        let fit = whole_launch::fit_family(family, &data, &inputs, &incumbents)
            .map_err(|e| fault(e.to_string()))?;
        let (designs, prior) = designs(&data, &fit).map_err(fault)?;
        let folds =
            nested(&data, Split::Shape, Strategy::Average).map_err(|e| fault(e.to_string()))?;
        let rows = rows(&searches);
        let text = rows_text(&rows);
        let data_sha256 = sha256(text.as_bytes());
        families.push((name.to_string(), rows, incumbents, (designs, prior), folds, data_sha256));
        texts.push_str(&text);
        fits.push(fit);
    }
    let code_sha256 = code_hash().to_string();
    let profile = WholeLaunchProfile {
        target: target.to_string(),
        fits: fits.clone(),
        source: None,
        fit: FitOrigin {
            data_sha256: sha256(texts.as_bytes()),
            code_sha256: code_sha256.clone(),
            procedure: "whole-launch, nested leave-one-shape-out".to_string(),
        },
        hold_out: None,
    };
    // Terms and confidence are written as the profile writes them.
    let written: Value = serde_json::from_str(&profile.to_json()).map_err(|e| {
        StudyError::Calibration { family: "profile".to_string(), message: e.to_string() }
    })?;
    let part = |index: usize, name: &str| written["fits"][index][name].clone();
    let files = families.into_iter().enumerate().map(
        |(index, (family, rows, incumbents, (designs, prior), folds, data_sha256))| {
            CalibrationFile {
                schema: CALIBRATION.to_string(),
                family,
                rows,
                incumbents,
                terms: part(index, "terms"),
                designs,
                prior,
                guard: Some(GuardRule { gain: guard::GAIN, covered: guard::COVERED, kept: true }),
                tolerance: Some(whole_launch::TOLERANCE),
                confidence: part(index, "confidence"),
                folds: folds.iter().map(fold).collect(),
                code_sha256: code_sha256.clone(),
                data_sha256,
            }
        },
    );
    Ok(Calibrated { families: files.collect(), profile })
}

/// Every fitted design, in the terms of the model that is their mean, and what they stay near.
fn designs(data: &Dataset, fit: &FamilyFit) -> Result<(Vec<DesignFit>, Option<Prior>), String> {
    let fitted = train(data, &data.all(), Split::Shape, Strategy::Average);
    let fitted = fitted.map_err(|e| e.to_string())?;
    let prior = fitted.iter().find_map(|f| f.strength).map(|strength| Prior {
        toward: anchor::TOWARD,
        strengths: anchor::STRENGTHS.to_vec(),
        strength,
    });
    let labels: Vec<String> = fit.model.terms().iter().map(|t| fit.model.label(t)).collect();
    let position = |feature: &String| {
        let position = labels.iter().position(|label| label == feature);
        position.ok_or_else(|| format!("the model has no term `{feature}`"))
    };
    let one = |one: tilewright_plan::calibrate::Fitted| {
        let design = data.designs().get(one.design).ok_or("a fit of no design")?;
        Ok(DesignFit {
            terms: design.features.iter().map(position).collect::<Result<_, String>>()?,
            coefficients: one.coefficients,
        })
    };
    Ok((fitted.into_iter().map(one).collect::<Result<_, String>>()?, prior))
}

fn fold(fold: &OuterFold) -> Fold {
    let regrets: Vec<f64> = fold.picks.iter().map(|p| p.regret()).collect();
    Fold {
        held_out: fold.group.clone(),
        regret_mean: mean(regrets.iter().copied()),
        regret_max: regrets.iter().copied().fold(0.0, f64::max),
        strength: fold.models.iter().find_map(|m| m.strength),
    }
}

/// A shape as text: its numbers joined by `x`.
pub fn shape_text(shape: &[u64]) -> String {
    shape.iter().map(u64::to_string).collect::<Vec<_>>().join("x")
}

/// Inputs as the model takes them.
pub fn padded(inputs: &[f64]) -> Inputs {
    let mut all = [0.0; MAX_INPUTS];
    for (to, from) in all.iter_mut().zip(inputs) {
        *to = *from;
    }
    all
}

/// Training rows of the searches of a family.
pub fn training(family: Family, target: &str, searches: &[&SearchFile]) -> Training {
    let mut rows = Vec::new();
    for search in searches {
        for (candidate, label) in search.labels() {
            let listed = &search.candidates[candidate];
            rows.push(TrainingRow {
                sample: Sample {
                    case: search.case.id.clone(),
                    shape: shape_text(&search.case.shape),
                    operator: search.case.op.clone(),
                    candidate: tilewright_plan::ranking::describe(&listed.mapping),
                    label,
                    samples: Vec::new(),
                },
                inputs: padded(&listed.inputs),
                incumbent: candidate == search.incumbent,
            });
        }
    }
    Training { family, target: target.to_string(), rows }
}

/// The rows of [`training`] with the weights that follow from how far their rounds lie apart.
///
/// # Errors
/// The data aren't those of the searches.
pub fn weighted(data: Dataset, searches: &[&SearchFile]) -> Result<Dataset, DataError> {
    data.weighted(searches.iter().flat_map(|s| spreads(s)).map(weight).collect())
}

fn rows(searches: &[&SearchFile]) -> Vec<CalibrationRow> {
    let mut rows = Vec::new();
    for search in searches {
        let labels = search.labels().zip(spreads(search));
        rows.extend(labels.map(|((candidate, label_us), spread)| CalibrationRow {
            case: search.case.id.clone(),
            candidate,
            label_us,
            spread: Some(spread),
        }));
    }
    rows
}

/// The text whose hash identifies the rows.
fn rows_text(rows: &[CalibrationRow]) -> String {
    let spread =
        |r: &CalibrationRow| r.spread.map_or(String::new(), |s| format!(",{}", Value::from(s)));
    let line = |r: &CalibrationRow| {
        format!("{},{},{}{}\n", r.case, r.candidate, Value::from(r.label_us), spread(r))
    };
    rows.iter().map(line).collect()
}

/// The fit of a family.
///
/// # Errors
/// The profile has none.
pub fn fit_of(profile: &WholeLaunchProfile, family: Family) -> Result<&FamilyFit, StudyError> {
    profile.fits.iter().find(|f| f.model.family() == family).ok_or_else(|| {
        StudyError::Calibration {
            family: family.name().to_string(),
            message: "the profile has no fit of it".to_string(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::{self, Imported, Limits};

    /// A GPU's model is a mean of fits at several capacities; a record holds each of them.
    #[test]
    fn a_gpus_coefficients_are_the_mean_of_its_designs() {
        let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../plan/tests/data/m1max");
        for (name, count) in [("reduction_search.json", 6), ("gemm_search.json", 8)] {
            let path = std::path::Path::new(data).join(name);
            let bytes = import::read(&path, &Limits::default()).unwrap();
            let Imported::Record(record) = import::detect(&bytes, &Limits::default()).unwrap()
            else {
                panic!("{name} is a search record");
            };
            let training = &record.training;
            let data = training.dataset().unwrap();
            let (inputs, incumbents) = (training.inputs(), training.incumbents());
            let fit =
                whole_launch::fit_family(training.family, &data, &inputs, &incumbents).unwrap();
            let (designs, prior) = designs(&data, &fit).unwrap();
            assert_eq!(prior, None, "{name}");
            assert_eq!(designs.len(), count, "{name}");
            for (index, term) in fit.model.terms().iter().enumerate() {
                let shares = designs.iter().flat_map(|d| d.terms.iter().zip(&d.coefficients));
                let sum: f64 = shares.filter(|(t, _)| **t == index).map(|(_, c)| c).sum();
                let mean = sum / designs.len() as f64;
                let error = (mean - term.coefficient).abs();
                assert!(error <= 1e-12 * mean.max(1e-30), "{name} {index}: {mean}");
            }
        }
    }
}
