//! frozen/CASE.json: what was predicted and decided before any label existed.

use crate::math::{close, first_smallest, smallest};
use crate::record::{Frozen, FrozenPlan, ProfileFit, ProtocolFile, Record, Search};
use crate::terms::values;
use crate::verdict::{Checks, Rule};

/// An input this many times beyond the trained range makes a model abstain.
const EXTRAPOLATION: f64 = 2.0;

/// Checks the protocol and every frozen case.
pub fn check(record: &Record, checks: &mut Checks) {
    if let Some(protocol) = &record.protocol {
        file(record, protocol, checks);
    }
    for frozen in &record.frozen {
        let place = format!("frozen/{}", frozen.case.id());
        let profile = record.hashes.get("profile.json");
        checks.that(Rule::FrozenProtocol, Some(&frozen.profile_sha256) == profile, || {
            format!("{place}: it is of another profile")
        });
        choices(frozen, &place, checks);
        kernels(record, frozen, &place, checks);
        let label = record.label(frozen.case.id());
        if let Some(label) = label {
            labels(record, frozen, label, &place, checks);
        }
        let fit = label.and_then(|l| record.profile.as_ref()?.fit(&l.family));
        if let (Some(label), Some(fit)) = (label, fit) {
            predictions(frozen, label, fit, &place, checks);
            advice(record, frozen, label, fit, &place, checks);
        } else if label.is_some() {
            checks
                .fail(Rule::FrozenPredictions, format!("{place}: the profile has no such family"));
        }
    }
}

fn file(record: &Record, protocol: &ProtocolFile, checks: &mut Checks) {
    let same = |name: &str, stated: &String| record.hashes.get(name) == Some(stated);
    checks.that(Rule::FrozenProtocol, same("study.toml", &protocol.study_sha256), || {
        "protocol.json: it is of another study".to_string()
    });
    checks.that(Rule::FrozenProtocol, same("profile.json", &protocol.profile_sha256), || {
        "protocol.json: it is of another profile".to_string()
    });
    let open = record.ledger.first().and_then(|e| e.text("study_sha256"));
    checks.that(Rule::FrozenProtocol, open == Some(protocol.study_sha256.as_str()), || {
        "protocol.json: its study isn't that of entry 0".to_string()
    });
}

/// The first of the smallest scores and predictions.
fn choices(frozen: &Frozen, place: &str, checks: &mut Checks) {
    let due = [
        ("incumbent", &frozen.incumbent, first_smallest(frozen.candidates.iter().map(|c| c.score))),
        (
            "challenger",
            &frozen.challenger,
            first_smallest(frozen.candidates.iter().map(|c| c.prediction_us)),
        ),
    ];
    for (name, plan, due) in due {
        checks.that(Rule::FrozenChoices, due == Some(plan.candidate), || {
            format!("{place}: the {name} is candidate {}, not {due:?}", plan.candidate)
        });
        let listed = frozen.candidates.get(plan.candidate);
        let same = listed
            .is_some_and(|c| c.plan == plan.plan && close(c.prediction_us, plan.prediction_us));
        checks.that(Rule::FrozenChoices, same, || {
            format!("{place}: the {name} differs from candidate {}", plan.candidate)
        });
    }
    let positive = frozen.candidates.iter().all(|c| c.prediction_us > 0.0);
    checks.that(Rule::FrozenChoices, positive, || format!("{place}: a prediction of 0"));
}

fn kernels(record: &Record, frozen: &Frozen, place: &str, checks: &mut Checks) {
    for (name, plan) in [("incumbent", &frozen.incumbent), ("challenger", &frozen.challenger)] {
        checks.that(Rule::FrozenKernels, record.kernels.contains(&plan.kernel_sha256), || {
            format!("{place}: no text of the {name}'s kernel {}", plan.kernel_sha256)
        });
    }
}

/// The labels are of what was frozen.
fn labels(record: &Record, frozen: &Frozen, label: &Search, place: &str, checks: &mut Checks) {
    if let Some(protocol) = &record.protocol {
        checks.that(Rule::FrozenLabels, label.protocol == protocol.labels, || {
            format!("{place}: the labels were taken under another protocol")
        });
        checks.that(Rule::FrozenLabels, label.selection.metric == protocol.selection, || {
            format!("{place}: the labels have the metric {}", label.selection.metric)
        });
    }
    checks.that(Rule::FrozenLabels, label.program_sha256 == frozen.program_sha256, || {
        format!("{place}: the labels are of another program")
    });
    checks.that(Rule::FrozenLabels, label.space == frozen.space, || {
        format!("{place}: the labels are of another space")
    });
    let same = label.candidates.len() == frozen.candidates.len()
        && label
            .candidates
            .iter()
            .zip(&frozen.candidates)
            .all(|(l, f)| l.plan == f.plan && close(l.score, f.score));
    checks.that(Rule::FrozenLabels, same, || {
        format!("{place}: the labels are of other candidates or scores")
    });
    checks.that(Rule::FrozenLabels, label.incumbent == frozen.incumbent.candidate, || {
        format!("{place}: the labels have another incumbent")
    });
    for (name, plan) in [("incumbent", &frozen.incumbent), ("challenger", &frozen.challenger)] {
        let candidate = label.candidates.get(plan.candidate);
        checks.that(
            Rule::FrozenLabels,
            candidate.is_some_and(|c| c.mapping == plan.mapping),
            || format!("{place}: the {name} has another mapping"),
        );
        let Some(trial) = label.trials.get(plan.candidate) else { continue };
        let changed = record.changed("kernel", Some(frozen.case.id()));
        let same = same_kernel(plan, trial.kernel_sha256.as_ref(), trial.artifact_sha256.as_ref());
        checks.that(Rule::FrozenLabels, same || changed, || {
            format!("{place}: the label of the {name} is of another kernel")
        });
    }
}

/// Whether a measured kernel is the frozen one; one that never compiled is neither.
pub fn same_kernel(plan: &FrozenPlan, kernel: Option<&String>, artifact: Option<&String>) -> bool {
    let artifact_same = plan.artifact_sha256.is_none() || artifact == plan.artifact_sha256.as_ref();
    kernel.is_none() || (kernel == Some(&plan.kernel_sha256) && artifact_same)
}

fn predictions(
    frozen: &Frozen,
    label: &Search,
    fit: &ProfileFit,
    place: &str,
    checks: &mut Checks,
) {
    for (index, (candidate, stated)) in label.candidates.iter().zip(&frozen.candidates).enumerate()
    {
        let values = values(&fit.family, &fit.terms, &label.input_names, &candidate.inputs);
        let Some(values) = values else {
            checks.fail(
                Rule::FrozenPredictions,
                format!("{place} candidate {index}: a term of {} has no value", fit.family),
            );
            return;
        };
        let own: f64 = values.iter().zip(&fit.terms).map(|(v, t)| v * t.coefficient).sum();
        checks.that(Rule::FrozenPredictions, close(own, stated.prediction_us), || {
            format!(
                "{place} candidate {index}: {} µs is stated, {own} derived",
                stated.prediction_us
            )
        });
    }
}

fn advice(
    record: &Record,
    frozen: &Frozen,
    label: &Search,
    fit: &ProfileFit,
    place: &str,
    checks: &mut Checks,
) {
    let Some(protocol) = &record.protocol else { return };
    let (advice, confidence) = (&frozen.advice, &fit.confidence);
    let predictions: Vec<f64> = frozen.candidates.iter().map(|c| c.prediction_us).collect();
    let Some(least) = smallest(&predictions) else { return };
    let ends = [least * confidence.low, least * confidence.high];
    let same = advice.interval_us.iter().zip(ends).all(|(stated, own)| close(*stated, own));
    checks.that(Rule::FrozenAdvice, same, || {
        format!("{place}: the interval is {:?}, not {ends:?}", advice.interval_us)
    });
    let likely =
        predictions.iter().filter(|p| **p <= least * confidence.slack).count().max(1) as u64;
    let shortlist = likely.min(protocol.shortlist);
    checks.that(Rule::FrozenAdvice, advice.shortlist == shortlist, || {
        format!("{place}: a shortlist of {}, not {shortlist}", advice.shortlist)
    });
    let gain = predictions.get(frozen.incumbent.candidate).map(|incumbent| incumbent / least);
    checks.that(Rule::FrozenAdvice, gain.is_some_and(|g| close(g, advice.predicted_gain)), || {
        format!("{place}: a predicted gain of {}, not {gain:?}", advice.predicted_gain)
    });
    let margin = protocol.guard.get(&fit.family).or_else(|| protocol.guard.get(&label.case.family));
    checks.that(Rule::FrozenAdvice, margin.is_some_and(|m| close(*m, advice.margin)), || {
        format!("{place}: a margin of {}, the protocol's is {margin:?}", advice.margin)
    });
    let differ = frozen.incumbent.plan != frozen.challenger.plan;
    let accepted = advice.predicted_gain > advice.margin && differ;
    checks.that(Rule::FrozenAdvice, advice.accepted == accepted, || {
        format!("{place}: accepted is {}, not {accepted}", advice.accepted)
    });
    let winner = label.candidates.get(frozen.challenger.candidate);
    let outside =
        label.input_names.iter().zip(winner.iter().flat_map(|w| &w.inputs)).any(|(name, value)| {
            confidence.ranges.get(name).is_some_and(|[low, high]| {
                *value < low / EXTRAPOLATION || *value > high * EXTRAPOLATION
            })
        });
    let undecided = likely > (predictions.len() as u64 / 4).max(4);
    let abstains = outside || undecided;
    checks.that(Rule::FrozenAdvice, advice.abstains.is_some() == abstains, || {
        format!("{place}: abstention is {:?}, due: {abstains}", advice.abstains)
    });
}
