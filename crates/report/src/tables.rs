//! The tables of a report: every case, every trial that isn't valid, every verdict.

use crate::Report;
use crate::answer::{at_most, is_control};
use crate::format::{coefficient, or_dash, percent, plain, ratio, short, time};
use crate::results::{Choice, Metrics, Spread};
use crate::table::{Cell, Table, Tone};
use std::collections::BTreeMap;
use tilewright_audit::record::Search;
use tilewright_audit::{Outcome, Rule, math};

/// The tables, most important first.
pub fn all(report: &Report) -> Vec<Table> {
    vec![
        gate(report),
        cases(report),
        choices(report),
        paths(report),
        model(report),
        training(report),
        invalid(report),
        controls(report),
        provenance(report),
        verdicts(report),
    ]
}

fn gate(report: &Report) -> Table {
    let mut table = Table::new(
        "Gate",
        "Limits that were fixed before any held-out label existed.",
        &["rule", "value", "limit", "result"],
    );
    for rule in &report.results.gate.rules {
        let result = if rule.passed { ("holds", Tone::Good) } else { ("missed", Tone::Bad) };
        table.rows.push(vec![
            Cell::text(&rule.rule),
            Cell::number(or_dash(rule.value, plain)),
            Cell::number(format!("{} {}", if at_most(&rule.rule) { "≤" } else { "≥" }, rule.limit)),
            Cell::mark(result.0, result.1),
        ]);
    }
    table
}

fn spread(value: Option<&Spread>) -> String {
    or_dash(value, |s| format!("{} [{}, {}]", ratio(s.median), ratio(s.min), ratio(s.max)))
}

fn cases(report: &Report) -> Table {
    let mut table = Table::new(
        "Held-out cases",
        "Gain: time of the incumbent / time of the challenger, paired by round: median [worst, \
         best]. A range, no confidence interval. Differences under the noise floor are ties. \
         Regret: against the best measured candidate.",
        &[
            "case",
            "challenger",
            "incumbent",
            "gain",
            "rounds won",
            "floor",
            "Holm p",
            "verdict",
            "regret",
            "incumbent's",
            "top 3",
            "guard",
            "predicted",
            "shortlist",
            "in interval",
            "end-to-end gain",
            "single-call gain",
            "device gain",
        ],
    );
    // Where labels are of batches, the gain itself is that of whole batches.
    let metric = report.record.protocol.as_ref().map_or("batch", |p| p.selection.as_str());
    let batches = matches!(metric, "batch" | "model");
    let end_to_end = |metrics: &'_ Metrics| metrics.batch.clone().filter(|_| !batches);
    for case in &report.results.cases {
        let time_of = |path: &str| or_dash(case.path(path).and_then(|p| p.time_us), time);
        let tone = match case.verdict.as_str() {
            "win" => Tone::Good,
            "loss" | "incomplete" => Tone::Bad,
            _ => Tone::Quiet,
        };
        let guard = match (case.accepted, case.loser) {
            (true, true) => ("accepted, loses", Tone::Bad),
            (true, false) => ("accepted", Tone::Good),
            (false, _) => ("held back", Tone::Quiet),
        };
        let won = case.gain.as_ref().zip(case.path("incumbent"));
        table.rows.push(vec![
            Cell::text(&case.case),
            Cell::number(time_of("challenger")),
            Cell::number(time_of("incumbent")),
            Cell::number(spread(case.gain.as_ref())),
            Cell::number(or_dash(won, |(g, p)| format!("{}/{}", g.won, p.rounds))),
            Cell::number(or_dash(case.noise(), |f| percent(f - 1.0))),
            Cell::number(or_dash(case.holm_p, |p| format!("{p:.4}"))),
            Cell::mark(&case.verdict, tone),
            Cell::number(or_dash(case.regret.challenger, percent)),
            Cell::number(or_dash(case.regret.incumbent, percent)),
            Cell::number(or_dash(case.regret.top3, percent)),
            Cell::mark(guard.0, guard.1),
            Cell::number(ratio(case.predicted_gain)),
            Cell::number(case.shortlist.to_string()),
            Cell::number(format!("{}/{}", case.coverage.inside, case.coverage.labels)),
            Cell::number(or_dash(end_to_end(&case.metrics), |s| ratio(s.median))),
            Cell::number(or_dash(case.metrics.single.as_ref(), |s| ratio(s.median))),
            Cell::number(or_dash(case.metrics.device.as_ref(), |s| ratio(s.median))),
        ]);
    }
    table.drop_empty();
    table
}

fn choices(report: &Report) -> Table {
    let mut table = Table::new(
        "Ways to choose",
        "Speed: geometric mean over cases of the incumbent's time / the choice's.",
        &["family", "choice", "speed", "losers", "mean regret", "largest regret"],
    );
    let mut add = |family: &str, name: &str, choice: &Choice| {
        table.rows.push(vec![
            Cell::text(family),
            Cell::text(name),
            Cell::number(or_dash(choice.speedup, ratio)),
            Cell::number(choice.losers.to_string()),
            Cell::number(or_dash(choice.regret.mean, percent)),
            Cell::number(or_dash(choice.regret.max, percent)),
        ]);
    };
    let results = &report.results;
    for family in &results.families {
        add(&family.family, "always the incumbent", &family.always_incumbent);
        add(&family.family, "always the challenger", &family.always_challenger);
        add(&family.family, "guarded", &family.guarded);
    }
    add("all", "always the incumbent", &results.always_incumbent);
    add("all", "always the challenger", &results.always_challenger);
    add("all", "guarded", &results.guarded);
    table
}

fn paths(report: &Report) -> Table {
    let mut table = Table::new(
        "Every path of every case",
        "Median time over rounds; ratio to the challenger of the same round (over 1: the \
         challenger is faster): median [smallest, largest]. The incumbent is the plan that would \
         be used without the model, incumbent-again the same plan once more (it shows the noise), \
         the challenger the model's plan, best the candidate with the smallest held-out label.",
        &["case", "path", "rounds", "time", "ratio to challenger"],
    );
    for case in &report.results.cases {
        for path in &case.paths {
            table.rows.push(vec![
                Cell::text(&case.case),
                Cell::text(&path.path),
                Cell::number(path.rounds.to_string()),
                Cell::number(or_dash(path.time_us, time)),
                // The challenger against itself says nothing.
                Cell::number(spread(path.ratio.as_ref().filter(|_| path.path != "challenger"))),
            ]);
        }
    }
    table
}

fn model(report: &Report) -> Table {
    let mut table = Table::new(
        "Model",
        "Coefficients of the profile in microseconds per unit of the term, and what the training \
         rows say of them: intervals and margins come from predictions of shapes that a fit had \
         not seen. A zero coefficient means nothing.",
        &["family", "figure", "value"],
    );
    for fit in report.record.profile.iter().flat_map(|p| &p.fits) {
        let mut add = |name: String, value: String| {
            let row = vec![Cell::text(&fit.family), Cell::text(name), Cell::number(value)];
            table.rows.push(row);
        };
        for term in &fit.terms {
            let capacity = term.capacity.map_or_else(String::new, |c| format!("@{c}"));
            add(format!("{}{capacity}", term.term), coefficient(term.coefficient));
        }
        let c = &fit.confidence;
        add(
            format!("interval at {}", percent(c.level)),
            format!("{:.3} to {:.3} of the prediction", c.low, c.high),
        );
        add("slack of the shortlist".to_string(), ratio(c.slack));
        add("margin of the guard".to_string(), ratio(c.margin));
        add("rows, cases, shapes".to_string(), format!("{}, {}, {}", c.rows, c.cases, c.shapes));
    }
    table
}

fn search_row(search: &Search) -> Vec<Cell> {
    let labels: Vec<f64> = search.trials.iter().filter_map(|t| t.valid_label()).collect();
    let best = search.best();
    let winner = search.selection.winner;
    let fresh = search.selection.fresh.as_ref().and_then(|f| f.valid_label());
    vec![
        Cell::text(&search.case.id),
        Cell::text(&search.case.set),
        Cell::number(format!("{}/{}", search.space.legal, search.space.candidates)),
        Cell::number(format!("{}/{}", labels.len(), search.trials.len())),
        Cell::number(or_dash(best, time)),
        Cell::number(or_dash(math::median(&labels).zip(best), |(m, b)| ratio(m / b))),
        Cell::number(or_dash(winner, |w| w.to_string())),
        Cell::number(or_dash(fresh, time)),
        Cell::number(or_dash(search.regret(search.incumbent), percent)),
        Cell::number(time(search.floor.floor_us)),
    ]
}

fn training(report: &Report) -> Table {
    let mut table = Table::new(
        "Searches",
        "Every training and held-out case: legal of all candidates, valid of measured ones, the \
         best label, the median label over it, the winner and its fresh measurement.",
        &[
            "case",
            "set",
            "legal",
            "valid",
            "best label",
            "median / best",
            "winner",
            "fresh",
            "incumbent's regret",
            "floor",
        ],
    );
    let record = &report.record;
    for search in record.searches.iter().chain(record.current_labels()) {
        table.rows.push(search_row(search));
    }
    table
}

fn invalid(report: &Report) -> Table {
    let mut table = Table::new(
        "Candidates that may not run or failed",
        "Rejected by a rule before compiling, counted by rule; trials that failed, one by one.",
        &["case", "candidate", "outcome", "reason"],
    );
    let record = &report.record;
    for search in record.searches.iter().chain(record.current_labels()) {
        for (rule, count) in &search.space.rejected {
            table.rows.push(vec![
                Cell::text(&search.case.id),
                Cell::number(format!("{count} candidates")),
                Cell::mark("illegal", Tone::Quiet),
                Cell::text(rule),
            ]);
        }
        for (index, trial) in search.trials.iter().enumerate().filter(|t| !t.1.valid()) {
            let part = |name: &str| trial.error.as_ref().and_then(|e| e.get(name)?.as_str());
            let reason = match (part("rule"), part("message")) {
                (Some(rule), Some(message)) => format!("{rule}: {message}"),
                (one, other) => one.or(other).unwrap_or("under 0.9 of the floor").to_string(),
            };
            table.rows.push(vec![
                Cell::text(&search.case.id),
                Cell::number(index.to_string()),
                Cell::mark(&trial.outcome, Tone::Bad),
                Cell::text(reason),
            ]);
        }
    }
    table
}

fn controls(report: &Report) -> Table {
    let mut table = Table::new(
        "Controls",
        "What the plans are compared with, and in how many held-out cases the guarded choice is \
         faster.",
        &["control", "version", "measured", "faster than challenger", "slower", "why not"],
    );
    let mut counts: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
    for case in &report.results.cases {
        for path in case.paths.iter().filter(|p| is_control(&p.path)) {
            let entry = counts.entry(&path.path).or_default();
            entry.0 += u64::from(path.rounds > 0);
            if let Some(ratio) = &path.ratio {
                entry.1 += u64::from(ratio.median < 1.0);
                entry.2 += u64::from(ratio.median > 1.0);
            }
        }
    }
    table.note = "What the plans are compared with: held-out cases in which the control's median \
                  time is below or above the challenger's."
        .to_string();
    for control in report.record.machine.iter().flat_map(|m| &m.controls) {
        let (measured, faster, slower) =
            counts.get(control.name.as_str()).copied().unwrap_or_default();
        table.rows.push(vec![
            Cell::text(&control.name),
            Cell::text(control.version.as_deref().unwrap_or("–")),
            Cell::number(measured.to_string()),
            Cell::number(faster.to_string()),
            Cell::number(slower.to_string()),
            Cell::text(control.reason.as_deref().unwrap_or("")),
        ]);
    }
    table
}

fn provenance(report: &Report) -> Table {
    let mut table = Table::new("Where it comes from", "", &["figure", "value"]);
    let mut add = |name: &str, value: String| {
        table.rows.push(vec![Cell::text(name), Cell::text(value)]);
    };
    let record = &report.record;
    if let Some(machine) = &record.machine {
        for name in ["model", "isa", "device", "os", "arch", "threads", "driver"] {
            let value = machine.identity.get(name).filter(|v| !v.is_null());
            if let Some(value) = value {
                add(name, value.as_str().map_or_else(|| value.to_string(), str::to_string));
            }
        }
        for c in &machine.ceilings {
            let rate = |v: Option<&f64>| or_dash(v, |v| format!("{:.1}", v / 1e9));
            let bytes = |level: &str| {
                or_dash(c.bytes_per_second.get(level).copied().flatten(), |v| {
                    format!("{:.0}", v / 1e9)
                })
            };
            add(
                &format!("ceilings, {} threads", c.threads),
                format!(
                    "{} GFLOP/s f32; l1 {}, l2 {}, l3 {}, memory {} GB/s; launch {}",
                    rate(c.flops_per_second.get("f32")),
                    bytes("l1"),
                    bytes("l2"),
                    bytes("l3"),
                    bytes("memory"),
                    time(c.launch_ns / 1000.0),
                ),
            );
        }
    }
    if let Some(p) = &record.protocol {
        let protocol = |p: &tilewright_audit::record::Protocol| {
            format!(
                "{} rounds of {} batches of {} and {} single calls, {} buffers",
                p.rounds,
                p.samples,
                time(p.sample_ns as f64 / 1000.0),
                p.single_samples,
                p.buffers
            )
        };
        add("metric of labels, times and verdicts", p.selection.clone());
        add("labels", protocol(&p.labels));
        add("replay", protocol(&p.replay));
    }
    if let Some(tool) = record.ledger.first().and_then(|e| e.body.pointer("/tool/version")) {
        add("tool", tool.as_str().unwrap_or("?").to_string());
    }
    add("freezes", report.results.freezes.to_string());
    add("freeze entry", short(&report.results.freeze));
    for file in ["study.toml", "machine.json", "profile.json", "protocol.json"] {
        if let Some(hash) = record.hashes.get(file) {
            add(file, short(hash));
        }
    }
    for entry in record.entries("change") {
        let part = |name: &str| entry.text(name).unwrap_or("–").to_string();
        add(
            "changed",
            format!(
                "{} ({} {}): {} became {}",
                part("what"),
                part("case"),
                part("path"),
                short(&part("expected")),
                short(&part("found"))
            ),
        );
    }
    table
}

fn verdicts(report: &Report) -> Table {
    let mut table = Table::new(
        "Audit",
        "Every rule of the audit on the record that this report was made from.",
        &["rule", "verdict", "checked", "what must hold", "witness"],
    );
    for verdict in &report.audit.rules {
        let (text, tone) = match verdict.verdict {
            Outcome::Pass => ("holds", Tone::Good),
            Outcome::Fail => ("fails", Tone::Bad),
            Outcome::NotApplicable => ("nothing to check", Tone::Quiet),
        };
        let rule = Rule::ALL.iter().find(|r| r.name() == verdict.rule);
        table.rows.push(vec![
            Cell::text(verdict.rule),
            Cell::mark(text, tone),
            Cell::number(verdict.checked.to_string()),
            Cell::text(rule.map_or("", |r| r.text())),
            Cell::text(verdict.witness.join("; ")),
        ]);
    }
    table
}
