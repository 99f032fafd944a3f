//! Freezing: plans and predictions of the hold-out, fixed before any of its labels exists.

use crate::bench::{Bench, Failed};
use crate::case::{Case, CaseFamily, CaseSet};
use crate::error::StudyError;
use crate::fit::{fit_of, padded};
use crate::record::{
    Advice, FROZEN, FamilyPlans, FrozenCandidate, FrozenFile, FrozenPlan, PROTOCOL, ProtocolFile,
    Tool,
};
use crate::search::{inputs_seed, program_hash, space_counts};
use crate::spec::Study;
use crate::subject::{Candidates, Subject};
use crate::worker::serve::kernel_text;
use std::collections::BTreeMap;
use tilewright_controls::{computes_products, computes_rows};
use tilewright_plan::policy::whole_launch::{FamilyFit, advice};
use tilewright_plan::profile::WholeLaunchProfile;

/// Path of the plan that would be used without a model.
pub const INCUMBENT: &str = "incumbent";
/// Path of the model's plan.
pub const CHALLENGER: &str = "challenger";
/// The A/A path.
pub const AGAIN: &str = "incumbent-again";
/// Path of the measured winner.
pub const BEST: &str = "best";

/// What every frozen file of a study states.
#[derive(Clone, PartialEq, Debug)]
pub struct Origin {
    /// Hash of the machine's identity.
    pub identity_sha256: String,
    /// This program.
    pub tool: Tool,
    /// Hash of profile.json.
    pub profile_sha256: String,
}

/// A frozen case with the texts of its kernels, by hash.
#[derive(Clone, PartialEq, Debug)]
pub struct FrozenCase {
    /// The file.
    pub file: FrozenFile,
    /// Kernel texts of both plans.
    pub kernels: BTreeMap<String, String>,
}

/// Names of the paths of each kind of case.
pub fn paths(study: &Study) -> FamilyPlans {
    let named = |computes: fn(&str) -> bool| -> Vec<String> {
        [INCUMBENT, CHALLENGER, AGAIN, BEST]
            .into_iter()
            .chain(study.controls.iter().map(String::as_str).filter(|c| computes(c)))
            .map(str::to_string)
            .collect()
    };
    FamilyPlans { rows: named(computes_rows), matrix: named(computes_products) }
}

/// Names of the paths of one case.
pub fn paths_of<'a>(paths: &'a FamilyPlans, case: &Case) -> &'a [String] {
    match case.family {
        CaseFamily::Rows => &paths.rows,
        CaseFamily::Matrix => &paths.matrix,
    }
}

/// The protocol of the hold-out.
pub fn protocol(study: &Study, profile: &WholeLaunchProfile, profile_sha256: &str) -> ProtocolFile {
    let ids = |set| study.set(set).map(|c| c.id.clone()).collect();
    ProtocolFile {
        schema: PROTOCOL.to_string(),
        study_sha256: study.hash(),
        profile_sha256: profile_sha256.to_string(),
        training: ids(CaseSet::Training),
        holdout: ids(CaseSet::Holdout),
        labels: study.search,
        replay: study.replay,
        paths: paths(study),
        shortlist: study.shortlist,
        cap: study.space.cap,
        top: study.space.top,
        selection: study.metric,
        guard: profile
            .fits
            .iter()
            .map(|f| (f.model.family().name().to_string(), f.confidence.margin))
            .collect(),
        acceptance: study.acceptance.clone(),
        verdict: study.verdict,
    }
}

/// Freezes a hold-out case. Nothing of it is timed.
///
/// # Errors
/// The case can't be planned, the profile has no fit for it, or a chosen plan doesn't compile.
pub fn freeze(
    bench: &mut Bench<'_>,
    case: &Case,
    profile: &WholeLaunchProfile,
    origin: &Origin,
) -> Result<FrozenCase, StudyError> {
    let target = bench.setup.device.target().clone();
    let space = bench.study.space.clone();
    let subject = Subject::new(case, &target, &space)?;
    // Where candidates are capped, the model ranks the capped list; its pick is among them.
    let candidates = subject.candidates(&target, &space, &[])?;
    let fit = fit_of(profile, candidates.family)?;
    let predictions: Vec<f64> =
        candidates.list.iter().map(|c| fit.model.predict(&padded(&c.inputs))).collect();
    let fault = |message: String| StudyError::Case { case: case.id.clone(), message };
    let positive = predictions.iter().all(|p| p.is_finite() && *p > 0.0);
    if !positive {
        return Err(fault("the model predicts no time for a candidate".to_string()));
    }
    let challenger = first_smallest(&predictions).ok_or_else(|| fault("no candidate".into()))?;
    let incumbent = candidates.incumbent;
    // Hashes of generated code come from the worker, which compiles as a replay will.
    bench.open(case, inputs_seed("freeze", &case.id), 1)?;
    let mut kernels = BTreeMap::new();
    let mut plan = |candidate: usize| -> Result<FrozenPlan, StudyError> {
        let listed = &candidates.list[candidate];
        let lowered = subject.plan.lower(listed.plan).map_err(|e| fault(e.to_string()))?;
        let text = kernel_text(&lowered);
        let mut compiled = bench.compile(&[[0, listed.plan]], 1, true)?;
        let one = compiled
            .remove(&0)
            .ok_or_else(|| fault("it wasn't compiled".into()))?
            .map_err(|(_, why): Failed| fault(why.message))?;
        if one.kernel_sha256 != crate::canonical::sha256(text.as_bytes()) {
            return Err(fault("the worker lowers a plan to another kernel".to_string()));
        }
        kernels.insert(one.kernel_sha256.clone(), text);
        Ok(FrozenPlan {
            candidate,
            plan: listed.plan,
            mapping: listed.mapping,
            kernel_sha256: one.kernel_sha256,
            artifact_sha256: one.artifact_sha256,
            prediction_us: predictions[candidate],
        })
    };
    let (incumbent, challenger) = (plan(incumbent)?, plan(challenger)?);
    let advice = advise(bench.study, fit, &candidates, &predictions, &incumbent, &challenger);
    let file = FrozenFile {
        schema: FROZEN.to_string(),
        case: case.clone(),
        program_sha256: program_hash(&subject),
        target_sha256: target.hash().to_string(),
        identity_sha256: origin.identity_sha256.clone(),
        driver: bench.machine.identity["driver"].as_str().map(str::to_string),
        tool: origin.tool.clone(),
        profile_sha256: origin.profile_sha256.clone(),
        resource_table_sha256: subject
            .plan
            .resources
            .as_ref()
            .map(|resources| resources.table.hash().to_string()),
        numeric_policy: "operations in the program's types; sums in the order of the plan, where \
                         the program permits another than its own; no input is narrowed"
            .to_string(),
        space: space_counts(&subject, candidates.list.len()),
        candidates: candidates
            .list
            .iter()
            .zip(&predictions)
            .map(|(c, p)| FrozenCandidate { plan: c.plan, score: c.score, prediction_us: *p })
            .collect(),
        incumbent,
        challenger,
        advice,
    };
    Ok(FrozenCase { file, kernels })
}

fn advise(
    study: &Study,
    fit: &FamilyFit,
    candidates: &Candidates,
    predictions: &[f64],
    incumbent: &FrozenPlan,
    challenger: &FrozenPlan,
) -> Advice {
    let confidence = &fit.confidence;
    let mut ascending = predictions.to_vec();
    ascending.sort_by(f64::total_cmp);
    let inputs = padded(&candidates.list[challenger.candidate].inputs);
    let abstains = advice::advise(fit, &ascending, &inputs)
        .and_then(|a| a.abstention)
        .map(|why| why.to_string());
    let predicted_gain = incumbent.prediction_us / challenger.prediction_us;
    Advice {
        interval_us: confidence.interval(challenger.prediction_us),
        shortlist: confidence.shortlist(&ascending).min(study.shortlist),
        abstains,
        predicted_gain,
        margin: confidence.margin,
        accepted: predicted_gain > confidence.margin && incumbent.plan != challenger.plan,
    }
}

/// Position of the smallest value, the first of equals.
pub fn first_smallest(values: &[f64]) -> Option<usize> {
    let order: Vec<usize> = (0..values.len()).collect();
    crate::search::winner(&order, |i| values.get(i).copied())
}
