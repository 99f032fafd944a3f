//! results.json, derived again from labels, frozen plans and rounds.

use crate::math::{holm, largest, mean, median, quantile, sign_test, smallest};
use crate::record::{Frozen, ProtocolFile, Record, Round, Search};
use crate::rules::timing::Metric;
use serde_json::{Map, Value, json};

const INCUMBENT: &str = "incumbent";
const CHALLENGER: &str = "challenger";
const AGAIN: &str = "incumbent-again";

/// What is derived of one hold-out case.
struct Case<'a> {
    id: &'a str,
    label: &'a Search,
    frozen: &'a Frozen,
    regret: [Option<f64>; 3],
    inside: u64,
    labels: u64,
    half_width: Option<f64>,
    paths: Vec<Path>,
    /// Ratios of the incumbent by round; `None` if a round is incomplete.
    gains: Option<Vec<f64>>,
    /// Of batches, single calls and device batches.
    metrics: [Option<Vec<f64>>; 3],
    floor: Option<f64>,
    sign_p: Option<f64>,
    holm_p: Option<f64>,
}

struct Path {
    name: String,
    rounds: u64,
    time_us: Option<f64>,
    ratios: Vec<f64>,
}

impl Case<'_> {
    fn gain(&self) -> Option<f64> {
        median(self.gains.as_ref()?)
    }

    fn accepted(&self) -> bool {
        self.frozen.advice.accepted
    }

    /// Whether the challenger loses beyond the floor.
    fn loses(&self) -> bool {
        self.gain().zip(self.floor).is_some_and(|(gain, floor)| gain < (-floor).exp())
    }

    fn verdict(&self, protocol: &ProtocolFile) -> &'static str {
        let (Some(gains), Some(gain), Some(floor)) = (&self.gains, self.gain(), self.floor) else {
            return "incomplete";
        };
        let significant = self.holm_p.is_some_and(|p| p < protocol.verdict.alpha);
        if gains.len() < protocol.verdict.rounds && !significant {
            return "descriptive";
        }
        match gain.ln() {
            m if m > floor => "win",
            m if -m > floor => "loss",
            _ => "tie",
        }
    }

    /// Time of the incumbent / time of the challenger, medians over rounds.
    fn speedup(&self) -> Option<f64> {
        self.gains.as_ref()?;
        let time = |name: &str| self.paths.iter().find(|p| p.name == name)?.time_us;
        Some(time(INCUMBENT)? / time(CHALLENGER)?)
    }
}

/// The results of a record; `None` where something that they need is missing.
pub fn results(record: &Record) -> Option<Value> {
    let protocol = record.protocol.as_ref()?;
    let freeze = record.freeze()?;
    let mut rounds: Vec<&Round> = record.current_rounds().collect();
    rounds.sort_by_key(|r| r.round);
    let mut cases = Vec::new();
    for id in &protocol.holdout {
        cases.push(case(record, protocol, &rounds, id)?);
    }
    let known: Vec<f64> = cases.iter().filter_map(|c| c.sign_p).collect();
    let mut adjusted = holm(&known).into_iter();
    for case in cases.iter_mut().filter(|c| c.sign_p.is_some()) {
        case.holm_p = adjusted.next();
    }

    let profile = record.profile.as_ref()?;
    let all: Vec<&Case<'_>> = cases.iter().collect();
    let families = profile.fits.iter().filter_map(|fit| {
        let own: Vec<&Case<'_>> =
            all.iter().copied().filter(|c| c.label.family == fit.family).collect();
        (!own.is_empty()).then(|| family(&fit.family, &own))
    });
    let wins = |accepted: bool| {
        let won = |c: &&Case<'_>| c.verdict(protocol) == "win" && (!accepted || c.accepted());
        cases.iter().filter(won).count() as u64
    };
    let rules = gate(record, protocol, &cases, wins(true), wins(false))?;
    let complete = cases.iter().all(|c| c.gains.is_some());
    let passed = complete && rules.iter().all(|r| r.get("passed") == Some(&Value::Bool(true)));
    Some(json!({
        "schema": "tilewright-results-v1",
        "freeze": freeze.hash,
        "freezes": record.entries("freeze").count(),
        "rounds": rounds.len(),
        "cases": cases.iter().map(|c| case_value(c, protocol)).collect::<Vec<_>>(),
        "families": families.collect::<Vec<_>>(),
        "always_incumbent": choice(&all, |_| false),
        "always_challenger": choice(&all, |_| true),
        "guarded": choice(&all, |c| c.accepted()),
        "wins": wins(false),
        "kept": wins(true),
        "accepted": cases.iter().filter(|c| c.accepted()).count(),
        "losers": cases.iter().filter(|c| c.accepted() && c.loses()).count(),
        "gate": {"rules": rules, "passed": passed},
        "default_ok": !cases.iter().any(|c| {
            c.gains.as_deref().and_then(largest).is_some_and(|best| best < 1.0)
        }),
    }))
}

fn case<'a>(
    record: &'a Record,
    protocol: &'a ProtocolFile,
    rounds: &[&Round],
    id: &'a str,
) -> Option<Case<'a>> {
    let (label, frozen) = (record.label(id)?, record.frozen(id)?);
    let fit = record.profile.as_ref()?.fit(&label.family)?;
    let (low, high) = (fit.confidence.low, fit.confidence.high);

    let predictions: Vec<f64> = frozen.candidates.iter().map(|c| c.prediction_us).collect();
    let mut ranked: Vec<usize> = (0..predictions.len()).collect();
    // Stable: of equal predictions the first candidate ranks first.
    ranked.sort_by(|a, b| predictions[*a].total_cmp(&predictions[*b]));
    let three: Vec<f64> = ranked.iter().take(3).filter_map(|c| label.regret(*c)).collect();

    let (mut inside, mut labels) = (0, 0);
    for (candidate, prediction) in predictions.iter().enumerate() {
        let Some(label) = label.label(candidate) else { continue };
        labels += 1;
        inside += u64::from((prediction * low..=prediction * high).contains(&label));
    }

    // The metric of labels, times, ratios and verdicts.
    let own = Metric::of_selection(&protocol.selection)?;
    let value = |round: &Round, path: &str, metric: Metric| {
        let run = round.case(id)?.run(path)?;
        metric.quantile(&run.timing, protocol.replay.time_quantile()).filter(|_| run.valid())
    };
    let paths = protocol.paths.get(&label.case.family)?.iter().map(|path| {
        let times: Vec<f64> = rounds.iter().filter_map(|r| value(r, path, own)).collect();
        let ratio = |r: &&&Round| Some(value(r, path, own)? / value(r, CHALLENGER, own)?);
        Path {
            name: path.clone(),
            rounds: times.len() as u64,
            time_us: median(&times),
            ratios: rounds.iter().filter_map(|r| ratio(&r)).collect(),
        }
    });
    // Every round of the protocol, or nothing.
    let every = |above: &str, below: &str, metric: Metric| -> Option<Vec<f64>> {
        let each = |number: u64| {
            let round = rounds.iter().find(|r| r.round == number)?;
            Some(value(round, above, metric)? / value(round, below, metric)?)
        };
        (0..protocol.replay.rounds as u64).map(each).collect()
    };
    let again = every(AGAIN, INCUMBENT, own);
    let complete = again.is_some();
    let gains = every(INCUMBENT, CHALLENGER, own).filter(|g| complete && !g.is_empty());
    let metric = |metric| every(INCUMBENT, CHALLENGER, metric).filter(|_| gains.is_some());
    let floor = again.filter(|_| gains.is_some()).and_then(|ratios| {
        let noise: Vec<f64> = ratios.iter().map(|r| r.ln().abs()).collect();
        quantile(&noise, protocol.verdict.quantile)
    });
    let sign_p = gains.as_ref().map(|gains| {
        let uneven = gains.iter().filter(|g| **g != 1.0).count();
        sign_test(gains.iter().filter(|g| **g > 1.0).count(), uneven)
    });
    Some(Case {
        id,
        label,
        frozen,
        regret: [
            label.regret(frozen.challenger.candidate),
            label.regret(frozen.incumbent.candidate),
            smallest(&three),
        ],
        inside,
        labels,
        half_width: Some((high - low) / 2.0),
        paths: paths.collect(),
        metrics: [metric(Metric::Batch), metric(Metric::Single), metric(Metric::Device)],
        gains,
        floor,
        sign_p,
        holm_p: None,
    })
}

/// Median, range and wins of ratios.
fn spread(ratios: &[f64], worst: bool) -> Value {
    let (Some(median), Some(min), Some(max)) = (median(ratios), smallest(ratios), largest(ratios))
    else {
        return Value::Null;
    };
    let won = ratios.iter().filter(|r| **r > 1.0).count();
    let mut out = json!({"median": median, "min": min, "max": max, "won": won});
    if let (true, Some(members)) = (worst, out.as_object_mut()) {
        members.insert("worst".to_string(), json!(min));
    }
    out
}

fn case_value(case: &Case<'_>, protocol: &ProtocolFile) -> Value {
    let advice = &case.frozen.advice;
    let gain = |gains: &Option<Vec<f64>>| gains.as_deref().map_or(Value::Null, |g| spread(g, true));
    let paths = case.paths.iter().map(|p| {
        let ratio = spread(&p.ratios, false);
        json!({"path": p.name, "rounds": p.rounds, "time_us": p.time_us, "ratio": ratio})
    });
    let [challenger, incumbent, top3] = case.regret;
    json!({
        "case": case.id,
        "family": case.label.family,
        "regret": {"challenger": challenger, "incumbent": incumbent, "top3": top3},
        "coverage": {"inside": case.inside, "labels": case.labels},
        "half_width": case.half_width,
        "accepted": advice.accepted,
        "predicted_gain": advice.predicted_gain,
        "shortlist": advice.shortlist,
        "abstains": advice.abstains,
        "paths": paths.collect::<Vec<_>>(),
        "gain": gain(&case.gains),
        "metrics": {
            "batch": gain(&case.metrics[0]),
            "single": gain(&case.metrics[1]),
            "device": gain(&case.metrics[2]),
        },
        "floor": case.floor,
        "sign_p": case.sign_p,
        "holm_p": case.holm_p,
        "verdict": case.verdict(protocol),
        "loser": case.accepted() && case.loses(),
    })
}

fn mean_max(values: &[f64]) -> Value {
    json!({"mean": mean(values), "max": largest(values)})
}

fn regrets(cases: &[&Case<'_>], which: usize) -> Vec<f64> {
    cases.iter().filter_map(|c| c.regret[which]).collect()
}

/// What always taking the challenger where `takes` says so gives.
fn choice(cases: &[&Case<'_>], takes: impl Fn(&Case<'_>) -> bool) -> Value {
    let logarithms: Vec<f64> = cases
        .iter()
        .filter_map(|c| Some((c.speedup()?, takes(c))))
        .map(|(speedup, taken)| if taken { speedup.ln() } else { 0.0 })
        .collect();
    let regrets: Vec<f64> = cases.iter().filter_map(|c| c.regret[usize::from(!takes(c))]).collect();
    json!({
        "speedup": mean(&logarithms).map(f64::exp),
        "losers": cases.iter().filter(|c| takes(c) && c.loses()).count(),
        "regret": mean_max(&regrets),
    })
}

fn coverage(cases: &[&Case<'_>]) -> (u64, u64) {
    (cases.iter().map(|c| c.inside).sum(), cases.iter().map(|c| c.labels).sum())
}

fn abstained(cases: &[&Case<'_>]) -> usize {
    cases.iter().filter(|c| c.frozen.advice.abstains.is_some()).count()
}

fn family(name: &str, cases: &[&Case<'_>]) -> Value {
    let (inside, labels) = coverage(cases);
    json!({
        "family": name,
        "cases": cases.len(),
        "regret": {
            "challenger": mean_max(&regrets(cases, 0)),
            "incumbent": mean_max(&regrets(cases, 1)),
            "top3": mean_max(&regrets(cases, 2)),
        },
        "coverage": {"inside": inside, "labels": labels},
        "half_width": cases.first().and_then(|c| c.half_width),
        "abstained": abstained(cases),
        "always_incumbent": choice(cases, |_| false),
        "always_challenger": choice(cases, |_| true),
        "guarded": choice(cases, |c| c.accepted()),
    })
}

/// Every acceptance rule with its value; `None` for a rule that this crate doesn't know.
fn gate(
    record: &Record,
    protocol: &ProtocolFile,
    cases: &[Case<'_>],
    kept: u64,
    wins: u64,
) -> Option<Vec<Value>> {
    let all: Vec<&Case<'_>> = cases.iter().collect();
    let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
    let mut out = Vec::new();
    for (rule, limit) in &protocol.acceptance {
        if limit.is_null() {
            continue;
        }
        let limit = limit.as_f64()?;
        let (value, at_most) = match rule.as_str() {
            "regret_mean" => (mean(&regrets(&all, 0)), true),
            "regret_max" => (largest(&regrets(&all, 0)), true),
            "regret_top3" => (mean(&regrets(&all, 2)), true),
            "coverage" => {
                let (inside, labels) = coverage(&all);
                (share(inside, labels), false)
            }
            "half_width" => {
                let widths: Vec<f64> = cases.iter().filter_map(|c| c.half_width).collect();
                (median(&widths), true)
            }
            "abstention" => (share(abstained(&all) as u64, cases.len() as u64), true),
            "guard_losers" => {
                (Some(cases.iter().filter(|c| c.accepted() && c.loses()).count() as f64), true)
            }
            "wins_kept" => (Some(share(kept, wins).unwrap_or(1.0)), false),
            "candidates" => {
                let valid = |s: &Search| s.trials.iter().filter(|t| t.valid()).count() as f64;
                (smallest(&record.searches.iter().map(valid).collect::<Vec<_>>()), false)
            }
            "median_over_best" => {
                let ratio = |s: &Search| {
                    let labels: Vec<f64> =
                        s.trials.iter().filter_map(|t| t.valid_label()).collect();
                    Some(median(&labels)? / s.best()?)
                };
                let ratios: Option<Vec<f64>> = record.searches.iter().map(ratio).collect();
                (ratios.as_deref().and_then(smallest), false)
            }
            _ => return None,
        };
        let passed = value.is_some_and(|v| if at_most { v <= limit } else { v >= limit });
        let mut members = Map::new();
        members.insert("rule".to_string(), json!(rule));
        members.insert("value".to_string(), json!(value));
        members.insert("limit".to_string(), json!(limit));
        members.insert("passed".to_string(), json!(passed));
        out.push(Value::Object(members));
    }
    Some(out)
}
