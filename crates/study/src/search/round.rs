//! Rounds of a case: what is due in each, measuring into a journal, taking from it.

use super::check::{jobs, not_compiled};
use super::{Running, SearchTask};
use crate::alternate::{self, Path};
use crate::bench::{Bench, Failed};
use crate::error::StudyError;
use crate::order;
use crate::protocol::{Protocol, Samples};
use crate::record::{Fault, Outcome, SearchControl, SearchRound, State, Trial, label};
use crate::spec::Metric;
use crate::stats::spread;
use crate::store::Store;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A line of a round's journal.
#[derive(Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "lowercase")]
enum Line {
    Begin { order: Vec<usize>, state: State },
    Trial { candidate: usize, result: Measured },
    Control { name: String, result: Measured },
    Drift { ns: u64 },
}

/// Samples, or why there are none.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Measured {
    Samples(Samples),
    Failed(Outcome, Fault),
}

impl From<Result<Samples, Failed>> for Measured {
    fn from(result: Result<Samples, Failed>) -> Self {
        match result {
            Ok(samples) => Measured::Samples(samples),
            Err((outcome, fault)) => Measured::Failed(outcome, fault),
        }
    }
}

/// Name of the journal of a round.
pub(super) fn unit(task: &SearchTask<'_>, round: usize) -> String {
    format!("{}/{}/round-{round}", task.folder, task.case.id)
}

/// What a round measures.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Due {
    /// Candidates of the round in order, also those that are out by now.
    pub order: Vec<usize>,
    /// Those that are measured.
    pub measured: BTreeSet<usize>,
    /// Names of the controls that are measured.
    pub controls: Vec<String>,
}

/// What is due in a round of a case; `None` if nothing is. A planned round measures whatever is
/// valid, a further one what spreads too far and the finalists.
pub(super) fn due(case: &Running<'_>, round: usize, metric: Metric) -> Option<Due> {
    let protocol = &case.protocol;
    let planned = round < protocol.rounds;
    let limit = protocol.remeasure.filter(|further| round < further.rounds).map(|f| f.spread);
    let wide = |rounds: &[Samples]| {
        let spread = spread_of(rounds, metric, protocol.quantile());
        spread.zip(limit).is_some_and(|(spread, limit)| spread > limit)
    };
    let finalists = match protocol.finals {
        Some(finals) if !planned && round < finals.rounds => {
            finalists(&case.trials, protocol, finals.candidates, metric)
        }
        _ => BTreeSet::new(),
    };
    let (trials, controls) = (&case.trials, &case.controls);
    let measured: BTreeSet<usize> = trials
        .iter()
        .filter(|t| t.outcome == Outcome::Valid)
        .filter(|t| planned || finalists.contains(&t.candidate) || wide(&t.rounds))
        .map(|t| t.candidate)
        .collect();
    let controls: Vec<String> = controls
        .iter()
        .filter(|c| c.outcome == Outcome::Valid && (planned || wide(&c.rounds)))
        .map(|c| c.name.clone())
        .collect();
    let mut order = order::search(trials.len(), case.offset, round, protocol.rounds);
    if !planned {
        order.retain(|candidate| measured.contains(candidate));
        if measured.is_empty() && controls.is_empty() {
            return None;
        }
    }
    Some(Due { order, measured, controls })
}

/// The fastest candidates by the label of the planned rounds, of equals the first in the list. One
/// that fails later stays in the set, so that it is the same in every round.
fn finalists(
    trials: &[Trial],
    protocol: &Protocol,
    count: usize,
    metric: Metric,
) -> BTreeSet<usize> {
    let first = |t: &Trial| {
        let rounds = t.rounds.get(..protocol.rounds)?;
        label(rounds, metric, protocol.quantile()).map(|label| (label, t.candidate))
    };
    let mut fastest: Vec<(f64, usize)> = trials.iter().filter_map(first).collect();
    fastest.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    fastest.into_iter().take(count).map(|(_, candidate)| candidate).collect()
}

/// How far the rounds of a measurement lie apart around the quantile `q` that is the label
/// ([`spread`]); `None` if one has no value.
pub(super) fn spread_of(rounds: &[Samples], metric: Metric, q: f64) -> Option<f64> {
    let values: Option<Vec<f64>> = rounds.iter().map(|r| r.quantile(metric, q)).collect();
    values.filter(|v| !v.is_empty()).map(|v| spread(&v, q))
}

/// The case that is open in the workers, with what couldn't be opened of it.
#[derive(Default)]
pub(super) struct Open {
    candidates: BTreeMap<usize, Failed>,
    controls: BTreeMap<String, Failed>,
}

/// Opens a case again and compiles what a round measures of it. Every kernel must come out as it
/// was when it was checked.
pub(super) fn open(
    bench: &mut Bench<'_>,
    case: &Running<'_>,
    due: &Due,
) -> Result<Open, StudyError> {
    let mut open = Open::default();
    bench.open(case.task.case, case.seed, case.protocol.sets)?;
    let slots: Vec<[usize; 2]> =
        due.measured.iter().map(|c| [*c, case.candidates.list[*c].plan]).collect();
    let mut compiled = bench.compile(&slots, jobs(), false)?;
    for candidate in &due.measured {
        let same = |kernel: &String| {
            case.trials.get(*candidate).and_then(|t| t.kernel_sha256.as_ref()) == Some(kernel)
        };
        let failed = match compiled.remove(candidate).unwrap_or_else(|| Err(not_compiled())) {
            Ok(one) if same(&one.kernel_sha256) => continue,
            Ok(_) => (Outcome::Failed, Fault::new("another round has another kernel of it")),
            Err(failed) => failed,
        };
        open.candidates.insert(*candidate, failed);
    }
    for name in &due.controls {
        if let Err(failed) = bench.open_control(name, &case.subject, case.seed)? {
            open.controls.insert(name.clone(), failed);
        }
    }
    Ok(open)
}

/// Measures a round of an open case into its journal.
pub(super) fn measure(
    bench: &mut Bench<'_>,
    store: &Store,
    unit: &str,
    round: usize,
    due: Due,
    open: &Open,
) -> Result<(), StudyError> {
    let protocol = bench.study.search;
    let (order, controls) = (&due.order, &due.controls);
    let mut journal = store.journal(unit)?;
    journal.line(&Line::Begin { order: order.clone(), state: bench.state() })?;
    journal.line(&Line::Drift { ns: bench.drift() })?;
    let beside =
        |bench: &mut Bench<'_>, journal: &mut crate::store::Journal| -> Result<(), StudyError> {
            for name in controls {
                let result = match open.controls.get(name) {
                    Some((outcome, fault)) => Measured::Failed(*outcome, fault.clone()),
                    None => bench.measure_control(name, &protocol).into(),
                };
                journal.line(&Line::Control { name: name.clone(), result })?;
            }
            Ok(())
        };
    if round.is_multiple_of(2) {
        beside(bench, &mut journal)?;
    }
    let mut side_by_side = together(bench, &due, open)?;
    for (at, candidate) in order.iter().enumerate() {
        if at == order.len() / 2 {
            journal.line(&Line::Drift { ns: bench.drift() })?;
        }
        if !due.measured.contains(candidate) {
            continue;
        }
        let result = match (open.candidates.get(candidate), side_by_side.remove(candidate)) {
            (Some((outcome, fault)), _) => Measured::Failed(*outcome, fault.clone()),
            (None, Some(result)) => result.into(),
            (None, None) => bench.measure(*candidate, &protocol)?.into(),
        };
        journal.line(&Line::Trial { candidate: *candidate, result })?;
    }
    if round % 2 == 1 {
        beside(bench, &mut journal)?;
    }
    journal.line(&Line::Drift { ns: bench.drift() })?;
    journal.finish()
}

/// Where rounds alternate and have several samples, so do the samples of a round's candidates.
fn together(
    bench: &mut Bench<'_>,
    due: &Due,
    open: &Open,
) -> Result<BTreeMap<usize, Result<Samples, Failed>>, StudyError> {
    let protocol = bench.study.search;
    if !protocol.interleaved || protocol.samples.max(protocol.single_samples) < 2 {
        return Ok(BTreeMap::new());
    }
    let measured = |c: &usize| due.measured.contains(c) && !open.candidates.contains_key(c);
    let order: Vec<usize> = due.order.iter().copied().filter(measured).collect();
    let paths: Vec<Path<'_>> = order.iter().map(|candidate| Path::Plan(*candidate)).collect();
    let results = alternate::measure(bench, &protocol, &paths)?;
    Ok(order.into_iter().zip(results).collect())
}

/// Takes a round's lines into the trials.
pub(super) fn take_round(
    store: &Store,
    lines: &[String],
    trials: &mut [Trial],
    controls: &mut [SearchControl],
) -> Result<SearchRound, StudyError> {
    let fault = |message: String| StudyError::record(&store.path("journal"), message);
    let mut begun = None;
    let mut drift_ns = Vec::new();
    for line in lines {
        match serde_json::from_str(line).map_err(|e| fault(e.to_string()))? {
            Line::Begin { order, state } => begun = Some((order, state)),
            Line::Drift { ns } => drift_ns.push(ns),
            Line::Trial { candidate, result } => {
                if let Some(t) = trials.get_mut(candidate) {
                    take(result, &mut t.outcome, &mut t.error, &mut t.rounds);
                }
            }
            Line::Control { name, result } => {
                if let Some(c) = controls.iter_mut().find(|c| c.name == name) {
                    take(result, &mut c.outcome, &mut c.error, &mut c.rounds);
                }
            }
        }
    }
    let (order, state) = begun.ok_or_else(|| fault("a round without a beginning".to_string()))?;
    Ok(SearchRound { order, drift_ns, state })
}

fn take(
    result: Measured,
    outcome: &mut Outcome,
    error: &mut Option<Fault>,
    rounds: &mut Vec<Samples>,
) {
    match result {
        Measured::Samples(samples) => rounds.push(samples),
        Measured::Failed(how, why) => (*outcome, *error) = (how, Some(why)),
    }
}
