//! results.json: everything that follows from a record's samples.

use crate::freeze::{AGAIN, CHALLENGER, INCUMBENT, paths_of};
use crate::record::{FrozenFile, Outcome, ProtocolFile, RESULTS, ReplayRound, SearchFile};
use crate::spec::Metric;
use crate::stats::{Comparison, PairedRounds, Verdict, median, quantile, verdicts};
use serde_json::{Value, json};
use tilewright_plan::profile::WholeLaunchProfile;

/// What results are derived from.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The protocol.
    pub protocol: &'a ProtocolFile,
    /// The profile.
    pub profile: &'a WholeLaunchProfile,
    /// Hash of the freeze entry.
    pub freeze: &'a str,
    /// Number of freezes.
    pub freezes: usize,
    /// Training searches.
    pub searches: &'a [SearchFile],
    /// Frozen cases, in the order of the protocol.
    pub frozen: &'a [FrozenFile],
    /// Labels, in the same order.
    pub labels: &'a [SearchFile],
    /// Replay rounds, in order.
    pub rounds: &'a [ReplayRound],
}

struct Case<'a> {
    frozen: &'a FrozenFile,
    labels: &'a SearchFile,
    regret: [Option<f64>; 3],
    inside: usize,
    counted: usize,
    half_width: f64,
    comparison: Option<Comparison>,
    holm_p: f64,
    verdict: Verdict,
    /// Median times of incumbent and challenger.
    times: [Option<f64>; 2],
}

impl Case<'_> {
    fn complete(&self) -> bool {
        self.verdict != Verdict::Incomplete
    }

    fn accepted(&self) -> bool {
        self.frozen.advice.accepted
    }

    fn loses(&self) -> bool {
        self.complete() && self.comparison.is_some_and(|c| c.median < (-c.floor).exp())
    }
}

/// The time of a path in a round, if it is valid.
fn value(round: Option<&ReplayRound>, case: &str, path: &str, metric: Metric) -> Option<f64> {
    let round = round?;
    let case = round.cases.iter().find(|c| c.case == case)?;
    let run = case.runs.iter().find(|r| r.path == path)?;
    let time = run.samples.quantile(metric, round.protocol.time_quantile());
    time.filter(|_| run.outcome == Outcome::Valid)
}

impl Evidence<'_> {
    /// The metric of times, ratios and verdicts: that of the labels.
    fn metric(&self) -> Metric {
        self.protocol.selection.of_labels()
    }
}

/// Times of the three paths of a case in every round of the protocol.
fn paired(evidence: &Evidence<'_>, case: &str, metric: Metric) -> PairedRounds {
    let times = |path: &str| {
        (0..evidence.protocol.replay.rounds)
            .map(|number| {
                let round = evidence.rounds.iter().find(|r| r.round == number);
                value(round, case, path, metric)
            })
            .collect()
    };
    PairedRounds { incumbent: times(INCUMBENT), again: times(AGAIN), challenger: times(CHALLENGER) }
}

/// Derives the results. `None` if a frozen case's family has no fit, which no study can have
/// frozen.
pub fn results(evidence: &Evidence<'_>) -> Option<Value> {
    let protocol = evidence.protocol;
    let rounds: Vec<PairedRounds> =
        evidence.frozen.iter().map(|f| paired(evidence, &f.case.id, evidence.metric())).collect();
    let compared = verdicts(&rounds, &protocol.verdict);
    let mut cases = Vec::new();
    for ((frozen, labels), (comparison, holm_p, verdict)) in
        evidence.frozen.iter().zip(evidence.labels).zip(compared)
    {
        cases.push(case(evidence, frozen, labels, comparison, holm_p, verdict)?);
    }
    let all: Vec<&Case<'_>> = cases.iter().collect();
    let families: Vec<Value> = evidence
        .profile
        .fits
        .iter()
        .filter_map(|fit| {
            let name = fit.model.family().name();
            let own: Vec<&Case<'_>> =
                all.iter().copied().filter(|c| c.labels.family == name).collect();
            (!own.is_empty()).then(|| family(name, &own))
        })
        .collect();
    let won = |c: &&Case<'_>| c.verdict == Verdict::Win;
    let wins = cases.iter().filter(won).count();
    let kept = cases.iter().filter(won).filter(|c| c.accepted()).count();
    let losers = cases.iter().filter(|c| c.accepted() && c.loses()).count();
    let rules = gate(evidence, &all, kept, wins, losers);
    let passed =
        cases.iter().all(Case::complete) && rules.iter().all(|r| r["passed"] == Value::Bool(true));
    let all_lost = |c: &Case<'_>| c.complete() && c.comparison.is_some_and(|c| c.max < 1.0);
    Some(json!({
        "schema": RESULTS,
        "freeze": evidence.freeze,
        "freezes": evidence.freezes,
        "rounds": evidence.rounds.len(),
        "cases": cases.iter().map(|c| case_json(evidence, c)).collect::<Vec<_>>(),
        "families": families,
        "always_incumbent": choice(&all, |_| false),
        "always_challenger": choice(&all, |_| true),
        "guarded": choice(&all, |c| c.accepted()),
        "wins": wins,
        "kept": kept,
        "accepted": cases.iter().filter(|c| c.accepted()).count(),
        "losers": losers,
        "gate": {"rules": rules, "passed": passed},
        "default_ok": !cases.iter().any(all_lost),
    }))
}

fn case<'a>(
    evidence: &Evidence<'a>,
    frozen: &'a FrozenFile,
    labels: &'a SearchFile,
    comparison: Option<Comparison>,
    holm_p: f64,
    verdict: Verdict,
) -> Option<Case<'a>> {
    let fit = evidence.profile.fits.iter().find(|f| f.model.family().name() == labels.family)?;
    let confidence = &fit.confidence;
    let predictions: Vec<f64> = frozen.candidates.iter().map(|c| c.prediction_us).collect();
    let mut ranked: Vec<usize> = (0..predictions.len()).collect();
    // Stable: of equal predictions the first candidate ranks first.
    ranked.sort_by(|a, b| predictions[*a].total_cmp(&predictions[*b]));
    let top3 = ranked.iter().take(3).filter_map(|c| labels.regret(*c)).min_by(f64::total_cmp);
    let (mut inside, mut counted) = (0, 0);
    for (candidate, label) in labels.labels() {
        let Some(prediction) = predictions.get(candidate) else { continue };
        let [low, high] = confidence.interval(*prediction);
        counted += 1;
        inside += usize::from((low..=high).contains(&label));
    }
    let time = |path: &str| {
        let times: Vec<f64> = evidence
            .rounds
            .iter()
            .filter_map(|r| value(Some(r), &frozen.case.id, path, evidence.metric()))
            .collect();
        (!times.is_empty()).then(|| median(&times))
    };
    Some(Case {
        regret: [
            labels.regret(frozen.challenger.candidate),
            labels.regret(frozen.incumbent.candidate),
            top3,
        ],
        inside,
        counted,
        half_width: (confidence.high - confidence.low) / 2.0,
        comparison,
        holm_p,
        verdict,
        times: [time(INCUMBENT), time(CHALLENGER)],
        frozen,
        labels,
    })
}

/// Median, range and wins of ratios; null of none.
fn spread(ratios: &[f64], worst: bool) -> Value {
    if ratios.is_empty() {
        return Value::Null;
    }
    let min = quantile(ratios, 0.0);
    let mut value = json!({
        "median": median(ratios),
        "min": min,
        "max": quantile(ratios, 1.0),
        "won": ratios.iter().filter(|r| **r > 1.0).count(),
    });
    if worst {
        value["worst"] = json!(min);
    }
    value
}

/// The gains of a metric; null unless every round has one.
fn gain(evidence: &Evidence<'_>, case: &Case<'_>, metric: Metric) -> Value {
    if !case.complete() {
        return Value::Null;
    }
    let rounds = paired(evidence, &case.frozen.case.id, metric);
    let gains: Option<Vec<f64>> = rounds
        .incumbent
        .iter()
        .zip(&rounds.challenger)
        .map(|(a, b)| a.zip(*b).map(|(a, b)| a / b))
        .collect();
    gains.map_or(Value::Null, |g| spread(&g, true))
}

fn case_json(evidence: &Evidence<'_>, case: &Case<'_>) -> Value {
    let id = &case.frozen.case.id;
    let advice = &case.frozen.advice;
    let paths: Vec<Value> = paths_of(&evidence.protocol.paths, &case.frozen.case)
        .iter()
        .map(|path| {
            let at = |r, path| value(Some(r), id, path, evidence.metric());
            let times: Vec<f64> = evidence.rounds.iter().filter_map(|r| at(r, path)).collect();
            let ratios: Vec<f64> = evidence
                .rounds
                .iter()
                .filter_map(|r| Some(at(r, path)? / at(r, CHALLENGER)?))
                .collect();
            let time_us = (!times.is_empty()).then(|| median(&times));
            json!({
                "path": path, "rounds": times.len(), "time_us": time_us,
                "ratio": spread(&ratios, false),
            })
        })
        .collect();
    let compared = case.comparison.filter(|_| case.complete());
    let [challenger, incumbent, top3] = case.regret;
    json!({
        "case": id,
        "family": case.labels.family,
        "regret": {"challenger": challenger, "incumbent": incumbent, "top3": top3},
        "coverage": {"inside": case.inside, "labels": case.counted},
        "half_width": case.half_width,
        "accepted": advice.accepted,
        "predicted_gain": advice.predicted_gain,
        "shortlist": advice.shortlist,
        "abstains": advice.abstains,
        "paths": paths,
        "gain": gain(evidence, case, evidence.metric()),
        "metrics": {
            "batch": gain(evidence, case, Metric::Batch),
            "single": gain(evidence, case, Metric::Single),
            "device": gain(evidence, case, Metric::Device),
        },
        "floor": compared.map(|c| c.floor),
        "sign_p": compared.map(|c| c.sign_p),
        "holm_p": compared.map(|_| case.holm_p),
        "verdict": case.verdict,
        "loser": case.accepted() && case.loses(),
    })
}

fn mean_of(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn largest(values: &[f64]) -> Option<f64> {
    values.iter().copied().max_by(f64::total_cmp)
}

fn mean_max(values: &[f64]) -> Value {
    json!({"mean": mean_of(values), "max": largest(values)})
}

fn regrets(cases: &[&Case<'_>], which: usize) -> Vec<f64> {
    cases.iter().filter_map(|c| c.regret[which]).collect()
}

/// What a rule that takes the challenger in some cases gives.
fn choice(cases: &[&Case<'_>], takes: impl Fn(&Case<'_>) -> bool) -> Value {
    let logarithms: Vec<f64> = cases
        .iter()
        .filter(|c| c.complete())
        .filter_map(|c| match c.times {
            [Some(incumbent), Some(challenger)] => {
                Some(if takes(c) { (incumbent / challenger).ln() } else { 0.0 })
            }
            _ => None,
        })
        .collect();
    let regrets: Vec<f64> =
        cases.iter().filter_map(|c| c.regret[if takes(c) { 0 } else { 1 }]).collect();
    json!({
        "speedup": mean_of(&logarithms).map(f64::exp),
        "losers": cases.iter().filter(|c| takes(c) && c.loses()).count(),
        "regret": mean_max(&regrets),
    })
}

fn abstained(cases: &[&Case<'_>]) -> usize {
    cases.iter().filter(|c| c.frozen.advice.abstains.is_some()).count()
}

fn family(name: &str, cases: &[&Case<'_>]) -> Value {
    json!({
        "family": name,
        "cases": cases.len(),
        "regret": {
            "challenger": mean_max(&regrets(cases, 0)),
            "incumbent": mean_max(&regrets(cases, 1)),
            "top3": mean_max(&regrets(cases, 2)),
        },
        "coverage": {
            "inside": cases.iter().map(|c| c.inside).sum::<usize>(),
            "labels": cases.iter().map(|c| c.counted).sum::<usize>(),
        },
        "half_width": cases.first().map(|c| c.half_width),
        "abstained": abstained(cases),
        "always_incumbent": choice(cases, |_| false),
        "always_challenger": choice(cases, |_| true),
        "guarded": choice(cases, |c| c.accepted()),
    })
}

/// Every acceptance rule with its value.
fn gate(
    evidence: &Evidence<'_>,
    cases: &[&Case<'_>],
    kept: usize,
    wins: usize,
    losers: usize,
) -> Vec<Value> {
    let inside: usize = cases.iter().map(|c| c.inside).sum();
    let counted: usize = cases.iter().map(|c| c.counted).sum();
    let share = |part: usize, whole: usize| (whole > 0).then(|| part as f64 / whole as f64);
    let widths: Vec<f64> = cases.iter().map(|c| c.half_width).collect();
    let valid = |s: &SearchFile| s.labels().count() as f64;
    let spread = |s: &SearchFile| {
        let labels: Vec<f64> = s.labels().map(|(_, l)| l).collect();
        s.best().map_or(f64::NAN, |best| median(&labels) / best)
    };
    let least = |of: &dyn Fn(&SearchFile) -> f64| {
        let values: Vec<f64> = evidence.searches.iter().map(of).collect();
        values.iter().all(|v| v.is_finite()).then(|| quantile(&values, 0.0))
    };
    let mut rules = evidence.protocol.acceptance.rules();
    rules.sort_by_key(|r| r.0);
    rules
        .into_iter()
        .map(|(rule, limit, at_most)| {
            let value = match rule {
                "regret_mean" => mean_of(&regrets(cases, 0)),
                "regret_max" => largest(&regrets(cases, 0)),
                "regret_top3" => mean_of(&regrets(cases, 2)),
                "coverage" => share(inside, counted),
                "half_width" => Some(median(&widths)),
                "abstention" => share(abstained(cases), cases.len()),
                "guard_losers" => Some(losers as f64),
                "wins_kept" => Some(share(kept, wins).unwrap_or(1.0)),
                "candidates" => least(&valid),
                "median_over_best" => least(&spread),
                _ => None,
            }
            .filter(|v| v.is_finite());
            let passed = value.is_some_and(|v| if at_most { v <= limit } else { v >= limit });
            json!({"rule": rule, "value": value, "limit": limit, "passed": passed})
        })
        .collect()
}
