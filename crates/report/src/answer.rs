//! What the study found, in a few sentences, and everything that went against it.

use crate::Report;
use crate::format::{percent, plain, ratio, time};
use crate::results::FamilyResult;
use crate::table::Tone;
use std::collections::BTreeMap;
use tilewright_audit::Outcome;
use tilewright_audit::record::Search;
use tilewright_audit::record::study::Study;

/// A sentence with its tone.
pub struct Line {
    pub tone: Tone,
    pub text: String,
}

fn line(good: bool, text: String) -> Line {
    Line { tone: if good { Tone::Good } else { Tone::Bad }, text }
}

/// The headline.
pub fn headline(report: &Report) -> Line {
    let results = &report.results;
    let passed = results.rules_passed();
    let (held, all) = (passed, results.gate.rules.len());
    let simulated =
        report.record.machine.as_ref().is_some_and(|m| m.meter.as_deref() == Some("simulated"));
    if simulated {
        return line(
            false,
            "The times of this record are simulated: they say nothing of any machine.".to_string(),
        );
    }
    match (report.audit.passed(), results.gate.passed) {
        (false, _) => line(
            false,
            "The record fails its audit: none of the figures below can be relied on.".to_string(),
        ),
        (true, true) => line(true, format!("The gate is passed: {held} of {all} rules hold.")),
        (true, false) => {
            line(false, format!("The gate is not passed: {held} of {all} rules hold."))
        }
    }
}

/// Which study, of which machine.
pub fn subject(report: &Report) -> String {
    let record = &report.record;
    let quick = record.quick();
    let study = record.study.as_deref().and_then(|text| Study::parse(text, quick).ok());
    let mut parts = vec![match study {
        Some(study) => format!("Tilewright study {}", study.name),
        None => "Tilewright study".to_string(),
    }];
    if let Some(machine) = &record.machine {
        let of = |name: &str| machine.identity.get(name).and_then(|v| v.as_str());
        parts.extend(of("model").map(str::to_string));
        let threads: Vec<String> =
            machine.ceilings.iter().map(|c| count(c.threads as usize, "thread")).collect();
        if of("device") == Some("cpu") && !threads.is_empty() {
            parts.push(threads.join(" and "));
        }
    }
    parts.join(" · ")
}

/// A number with its word.
fn count(n: usize, word: &str) -> String {
    match (n, word) {
        (1, _) => format!("1 {word}"),
        (_, "loss") => format!("{n} losses"),
        _ => format!("{n} {word}s"),
    }
}

impl crate::results::Results {
    fn rules_passed(&self) -> usize {
        self.gate.rules.iter().filter(|r| r.passed).count()
    }
}

/// The answer, most important first.
pub fn lines(report: &Report) -> Vec<Line> {
    let results = &report.results;
    let mut out = Vec::new();
    if report.record.quick() {
        let text = "A quick run: few cases, few samples. It shows that the study works, no more.";
        out.push(line(false, text.to_string()));
    }
    for family in &results.families {
        let regret = &family.regret;
        if let (Some(mean), Some(max)) = (regret.challenger.mean, regret.challenger.max) {
            let incumbent = regret.incumbent.mean.map_or_else(String::new, |mean| {
                let max = regret.incumbent.max.unwrap_or(mean);
                format!("; the incumbent's {} (at most {})", percent(mean), percent(max))
            });
            let top3 = regret.top3.mean.map_or_else(String::new, |mean| {
                format!("; measuring the best three leaves {}", percent(mean))
            });
            out.push(Line {
                tone: Tone::Quiet,
                text: format!(
                    "{}: on {} the model's choice is {} slower than the best candidate on \
                     average, {} at most{incumbent}{top3}.",
                    family.family,
                    labelled(report, family),
                    percent(mean),
                    percent(max),
                ),
            });
        }
        let (inside, labels) = (family.coverage.inside, family.coverage.labels);
        out.push(Line {
            tone: Tone::Quiet,
            text: format!(
                "{}: {} of {labels} held-out labels lie in their interval (half-width {} of the \
                 prediction); the model abstains in {} of {} cases.",
                family.family,
                inside,
                percent(family.half_width),
                family.abstained,
                family.cases,
            ),
        });
    }
    let verdict = |name: &str| results.cases.iter().filter(|c| c.verdict == name).count();
    let gain = |gain: Option<f64>| gain.map_or_else(|| "–".to_string(), ratio);
    out.push(Line {
        tone: Tone::Quiet,
        text: format!(
            "Replayed in {} against the incumbent: {} and {} beyond the noise floor, {}, {} \
             descriptive, {} incomplete of {}.",
            count(results.rounds as usize, "round"),
            count(verdict("win"), "win"),
            count(verdict("loss"), "loss"),
            count(verdict("tie"), "tie"),
            verdict("descriptive"),
            verdict("incomplete"),
            count(results.cases.len(), "case"),
        ),
    });
    out.push(line(
        results.losers == 0,
        format!(
            "The guard accepts {}: {} beyond the floor, {} of {} wins kept. Guarded, the launches \
             are {} as fast as the incumbent's (always the challenger: {}).",
            count(results.accepted as usize, "challenger"),
            count(results.losers as usize, "loss"),
            results.kept,
            results.wins,
            gain(results.guarded.speedup),
            gain(results.always_challenger.speedup),
        ),
    ));
    if !results.default_ok {
        out.push(line(
            false,
            "In some case the challenger lost every round: the profile is opt-in, no default."
                .to_string(),
        ));
    }
    let rules = report.audit.rules.iter().filter(|r| r.verdict != Outcome::NotApplicable).count();
    let failed = report.audit.failed();
    out.push(line(
        failed.is_empty(),
        match failed.is_empty() {
            true => format!("Audit: all {rules} rules that apply hold."),
            false => {
                format!("Audit: {} of {rules} rules fail: {}.", failed.len(), failed.join(", "))
            }
        },
    ));
    out
}

/// The held-out cases of a family in which the challenger has a label.
fn labelled(report: &Report, family: &FamilyResult) -> String {
    let own = report.results.cases.iter().filter(|c| c.family == family.family);
    let known = own.filter(|c| c.regret.challenger.is_some()).count() as u64;
    match known == family.cases {
        true => count(known as usize, "held-out case"),
        false => format!("{known} of {}", count(family.cases as usize, "held-out case")),
    }
}

/// Trials that were refused for being faster than the ceilings allow.
fn refused(report: &Report) -> Option<String> {
    let record = &report.record;
    let of = |s: &Search| s.trials.iter().filter(|t| t.outcome == "refused").count();
    let cases: Vec<usize> =
        record.searches.iter().chain(record.current_labels()).map(of).filter(|n| *n > 0).collect();
    let trials: usize = cases.iter().sum();
    (trials > 0).then(|| {
        format!(
            "refused as faster than 0.9 of their floor: {} of {}; either the times are wrong, or \
             the ceilings were measured while the machine was busy",
            count(trials, "trial"),
            count(cases.len(), "case"),
        )
    })
}

/// Everything that went wrong or against the model.
pub fn misses(report: &Report) -> Vec<String> {
    let results = &report.results;
    let mut out = Vec::new();
    let mut absent: BTreeMap<&str, usize> = BTreeMap::new();
    for rule in results.gate.rules.iter().filter(|r| !r.passed) {
        let value = rule.value.map_or_else(|| "no value".to_string(), plain);
        let side = if at_most(&rule.rule) { "at most" } else { "at least" };
        out.push(format!("gate: {} is {value}, the limit is {side} {}", rule.rule, rule.limit));
    }
    out.extend(refused(report));
    for case in &results.cases {
        if case.regret.challenger.is_none() {
            out.push(format!("{}: the challenger has no valid label", case.case));
        }
        let gain = || {
            case.gain.as_ref().map_or_else(String::new, |g| {
                format!(" (gain {} [{}, {}])", ratio(g.median), ratio(g.min), ratio(g.max))
            })
        };
        match case.verdict.as_str() {
            "loss" if case.accepted => {
                out.push(format!(
                    "{}: accepted, and slower than the incumbent{}",
                    case.case,
                    gain()
                ));
            }
            "loss" => out.push(format!(
                "{}: slower than the incumbent, and held back by the guard{}",
                case.case,
                gain()
            )),
            "win" if !case.accepted => {
                out.push(format!("{}: a win that the guard held back{}", case.case, gain()));
            }
            "incomplete" => out.push(format!("{}: a round lacks a valid run", case.case)),
            _ => {}
        }
        if let Some(reason) = &case.abstains {
            out.push(format!("{}: the model abstains: {reason}", case.case));
        }
        let incumbent = case.path("incumbent").and_then(|p| p.time_us);
        for path in case.paths.iter().filter(|p| is_control(&p.path)) {
            let ratio_to = path.ratio.as_ref().filter(|r| r.median < 1.0);
            if let (Some(spread), Some(own)) = (ratio_to, path.time_us) {
                out.push(format!(
                    "{}: {} is faster ({}, {} of the challenger's time)",
                    case.case,
                    path.path,
                    time(own),
                    percent(spread.median)
                ));
            } else if path.rounds == 0 {
                *absent.entry(&path.path).or_default() += 1;
            }
        }
        if incumbent.is_none() {
            out.push(format!("{}: no time of the incumbent", case.case));
        }
    }
    for (name, cases) in absent {
        let known = report.record.machine.iter().flat_map(|m| &m.controls);
        let reason = known.filter(|c| c.name == name).find_map(|c| c.reason.as_deref());
        out.push(format!(
            "{name} wasn't measured in {cases} of {} cases{}",
            results.cases.len(),
            reason.map_or_else(String::new, |r| format!(": {r}"))
        ));
    }
    out
}

/// Whether a gate's limit is the largest allowed value, or the smallest.
pub fn at_most(rule: &str) -> bool {
    !matches!(rule, "coverage" | "wins_kept" | "candidates" | "median_over_best")
}

/// Whether a path is a control, none of our plans.
pub fn is_control(path: &str) -> bool {
    !matches!(path, "incumbent" | "challenger" | "incumbent-again" | "best")
}
