//! The record is of the study file that it keeps: cases, space, protocols and acceptance rules.

use crate::record::study::{ACCEPTANCE, DueCase, Study};
use crate::record::{Case, Protocol, ProtocolFile, Record, Search};
use crate::verdict::{Checks, Rule};
use serde_json::Value;

/// The thresholds of verdicts, which no study file changes.
const VERDICT: (usize, f64, f64) = (14, 0.95, 0.05);

/// Paths that every case has beside the controls.
const PLANS: [&str; 4] = ["incumbent", "challenger", "incumbent-again", "best"];

/// Checks the record against study.toml.
pub fn check(record: &Record, checks: &mut Checks) {
    let Some(open) = record.ledger.first() else { return };
    let Some(text) = &record.study else { return };
    let study = Study::parse(text, record.quick());
    checks.that(Rule::StudyFile, study.is_ok(), || match &study {
        Err(fault) => format!("study.toml: {fault}"),
        Ok(_) => String::new(),
    });
    let Ok(study) = study else { return };
    for (set, due) in [("training", &study.training), ("holdout", &study.holdout)] {
        let Some(list) = open.body.get(set).and_then(Value::as_array) else {
            checks.fail(Rule::StudyCases, format!("entry 0 lists no {set} cases"));
            continue;
        };
        let same = list.iter().map(Value::as_str).eq(due.iter().map(|c| Some(c.id.as_str())));
        checks.that(Rule::StudyCases, same, || {
            format!("entry 0: the {set} cases aren't the {} of study.toml", due.len())
        });
    }
    let searches = record.searches.iter().map(|s| ("search", &study.training, s));
    let labels = record.current_labels().map(|s| ("labels", &study.holdout, s));
    for (folder, due, search) in searches.chain(labels) {
        let place = format!("{folder}/{}", search.case.id);
        let due = due.get(usize::try_from(search.case.ordinal).unwrap_or(usize::MAX));
        let same = due.is_some_and(|due| same_case(due, &search.case));
        checks.that(Rule::StudyCases, same, || format!("{place}: study.toml has another case"));
        measured(&study, search, &place, checks);
        widths(&study, record, search, &place, checks);
    }
    if let Some(machine) = &record.machine {
        let names = machine.controls.iter().map(|c| &c.name);
        checks.that(Rule::StudyProtocol, names.eq(study.controls.iter()), || {
            format!("machine.json: its controls aren't {:?}", study.controls)
        });
    }
    if let Some(protocol) = &record.protocol {
        fixed(&study, protocol, checks);
    }
}

fn same_case(due: &DueCase, case: &Case) -> bool {
    let epilogue = match &case.epilogue {
        None | Some(Value::Null) => due.epilogue.is_empty(),
        Some(steps) => steps.as_array().is_some_and(|s| {
            s.iter().map(Value::as_str).eq(due.epilogue.iter().map(|s| Some(&**s)))
        }),
    };
    due.id == case.id
        && due.family == case.family
        && due.op == case.op
        && due.dtype == case.dtype
        && due.shape == case.shape
        && due.trans == case.trans
        && due.threads == case.threads
        && epilogue
}

/// Protocol, metric and space of a search.
fn measured(study: &Study, search: &Search, place: &str, checks: &mut Checks) {
    same("protocol", &study.search, &search.protocol, place, checks);
    let metric = &search.selection.metric;
    checks.that(Rule::StudyProtocol, *metric == study.metric, || {
        format!("{place}: the metric is {metric}, study.toml says {}", study.metric)
    });
    let lists = [
        ("unroll", &study.space.unroll),
        ("vector", &study.space.vector),
        ("pack", &study.space.pack),
    ];
    for (field, allowed) in lists {
        let Some(allowed) = allowed else { continue };
        for (index, candidate) in search.candidates.iter().enumerate() {
            let rows = candidate.mapping.get("family").and_then(Value::as_str) == Some("rows");
            let Some(value) = candidate.mapping.get(field).filter(|_| rows) else { continue };
            let holds = value.as_u64().is_some_and(|v| allowed.contains(&v));
            checks.that(Rule::StudyProtocol, holds, || {
                format!("{place} candidate {index}: {field} {value} isn't in study.toml's space")
            });
        }
    }
}

/// Widths of the rows of a CPU: those that the study lists, or all of the machine's vectors.
fn widths(study: &Study, record: &Record, search: &Search, place: &str, checks: &mut Checks) {
    let Some(machine) = &record.machine else { return };
    let text = |name: &str| machine.identity.get(name).and_then(Value::as_str);
    let space = &study.space;
    if search.case.family != "rows" || text("device") != Some("cpu") {
        return;
    }
    let due = match (&space.threads, &space.widths) {
        (Some(listed), _) => listed.clone(),
        (None, Some(_)) => vector_widths(text("isa"), &search.case.dtype),
        (None, None) => return,
    };
    let lanes = |mapping: &Value| mapping.get("lanes").and_then(Value::as_u64);
    let found: Vec<Option<u64>> = search.candidates.iter().map(|c| lanes(&c.mapping)).collect();
    for (index, own) in found.iter().enumerate() {
        let holds = own.is_some_and(|own| due.contains(&own));
        checks.that(Rule::StudyProtocol, holds, || {
            format!("{place} candidate {index}: {own:?} lanes, study.toml's space has {due:?}")
        });
    }
    // A shortlist, or a single candidate, may be of one width.
    let whole = space.top.is_none() && space.cap.is_none_or(|cap| cap > 1);
    for width in due.iter().filter(|_| whole) {
        checks.that(Rule::StudyProtocol, found.contains(&Some(*width)), || {
            format!("{place}: no candidate has {width} lanes, which study.toml's space has")
        });
    }
}

/// Elements of each width that vectors come in: whole registers, and halves of 4 lanes or more where
/// the instruction set has them. 16-bit elements are computed in 4 bytes.
fn vector_widths(isa: Option<&str>, dtype: &str) -> Vec<u64> {
    let element = if dtype == "f64" { 8 } else { 4 };
    match isa {
        Some("avx512") => vec![64 / element, 32 / element],
        Some("avx2") if element == 4 => vec![8, 4],
        Some("avx2") => vec![4],
        _ => vec![16 / element],
    }
}

fn same(name: &str, due: &Protocol, own: &Protocol, place: &str, checks: &mut Checks) {
    checks.that(Rule::StudyProtocol, due == own, || {
        format!("{place}: its {name} isn't that of study.toml: {own:?}, not {due:?}")
    });
}

/// What was fixed for the hold-out.
fn fixed(study: &Study, protocol: &ProtocolFile, checks: &mut Checks) {
    let place = "protocol.json";
    same("labels", &study.search, &protocol.labels, place, checks);
    same("replay", &study.replay, &protocol.replay, place, checks);
    let rule = Rule::StudyProtocol;
    for (set, due, own) in [
        ("training", &study.training, &protocol.training),
        ("holdout", &study.holdout, &protocol.holdout),
    ] {
        let holds = due.iter().map(|c| &c.id).eq(own.iter());
        checks.that(Rule::StudyCases, holds, || {
            format!("{place}: its {set} cases aren't those of study.toml")
        });
    }
    let counts = [
        ("shortlist", Some(study.shortlist), Some(protocol.shortlist)),
        ("cap", study.space.cap, protocol.cap),
        ("top", study.space.top, protocol.top),
    ];
    for (name, due, own) in counts {
        checks.that(rule, due == own, || format!("{place}: `{name}` is {own:?}, not {due:?}"));
    }
    checks.that(rule, protocol.selection == study.metric, || {
        format!("{place}: the metric is {}, not {}", protocol.selection, study.metric)
    });
    for name in ACCEPTANCE {
        let due = study.acceptance.get(name).copied();
        let own = protocol.acceptance.get(name).and_then(Value::as_f64);
        checks.that(rule, due == own, || {
            format!("{place}: the acceptance rule {name} is {own:?}, study.toml says {due:?}")
        });
    }
    let known = protocol.acceptance.keys().all(|k| ACCEPTANCE.contains(&k.as_str()));
    checks.that(rule, known, || format!("{place}: an acceptance rule that study.toml can't have"));
    let verdict = &protocol.verdict;
    checks.that(rule, (verdict.rounds, verdict.quantile, verdict.alpha) == VERDICT, || {
        format!("{place}: verdicts have other thresholds: {verdict:?}")
    });
    // A control that computes no case of a family is no path there, but one of the other.
    for (family, paths) in &protocol.paths {
        let (plans, controls) = paths.split_at(paths.len().min(PLANS.len()));
        let mut listed = study.controls.iter();
        let in_order = controls.iter().all(|path| listed.any(|control| control == path));
        checks.that(rule, plans.iter().eq(PLANS.iter()) && in_order, || {
            format!("{place}: the paths of {family} aren't the plans and study.toml's controls")
        });
    }
    for control in &study.controls {
        let holds = protocol.paths.values().any(|paths| paths.contains(control));
        checks.that(rule, holds, || format!("{place}: no path of the control {control}"));
    }
}
