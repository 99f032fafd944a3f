//! Searching a case: every candidate compiled, checked whole, and timed in several rounds.

use crate::bench::{Bench, Compiled, Failed};
use crate::canonical::{derive, seed_text, sha256};
use crate::case::Case;
use crate::error::StudyError;
use crate::order;
use crate::protocol::Samples;
use crate::record::{
    Check, Fault, Outcome, SEARCH, SearchCandidate, SearchControl, SearchFile, SearchRound,
    Selection, SpaceCounts, State, Trial, label,
};
use crate::spec::{Metric, Space};
use crate::store::Store;
use crate::subject::{Candidates, Subject};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Share of the floor under which a label is refused.
const FLOOR_SHARE: f64 = 0.9;

/// Why a measurement without samples of the selection metric has no label.
const NO_SAMPLES: &str = "it has no samples of the selection metric";

/// What to search.
#[derive(Clone, Copy, Debug)]
pub struct SearchTask<'a> {
    /// The case.
    pub case: &'a Case,
    /// Hash from which seed and order derive.
    pub basis: &'a str,
    /// `search` or `labels`.
    pub folder: &'a str,
    /// Candidates (indices in the space) that are measured in any case.
    pub also: &'a [usize],
}

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
fn unit(task: &SearchTask<'_>, round: usize) -> String {
    format!("{}/{}/round-{round}", task.folder, task.case.id)
}

/// Seed of a case's inputs.
pub fn inputs_seed(basis: &str, case: &str) -> u64 {
    derive(&format!("{basis}/{case}/inputs"))
}

/// Counts of a space; the legal candidates are listed with their scores where not all of them are
/// measured, so that a reader can see which ones had to be.
pub fn space_counts(subject: &Subject, measured: usize) -> SpaceCounts {
    let legal = subject.legal();
    let mut legal_plans = subject.plan.ranking.order.clone();
    legal_plans.sort_unstable();
    let legal_scores = legal_plans.iter().map(|plan| subject.score(*plan)).collect();
    let some = measured < legal;
    SpaceCounts {
        candidates: subject.plan.ranking.candidates.len(),
        legal,
        rejected: subject.rejected(),
        measured,
        legal_plans: some.then_some(legal_plans),
        legal_scores: some.then_some(legal_scores),
    }
}

/// Hash of the printed program.
pub fn program_hash(subject: &Subject) -> String {
    sha256(tilewright_ir::text::print(subject.program()).as_bytes())
}

/// Searches a case. Rounds that an earlier attempt finished are taken from their journals.
///
/// # Errors
/// The case can't be planned, the oracle or the workers fail as such, or files can't be written.
/// A candidate that fails is a trial, no error.
pub fn search(
    bench: &mut Bench<'_>,
    store: &Store,
    task: &SearchTask<'_>,
) -> Result<SearchFile, StudyError> {
    let study = bench.study;
    let target = bench.setup.device.target().clone();
    let subject = Subject::new(task.case, &target, &study.space)?;
    let candidates = subject.candidates(&target, &study.space, task.also)?;
    let n = candidates.list.len();
    let seed = inputs_seed(task.basis, &task.case.id);
    let offset = order::reduce(derive(&format!("{}/{}/order", task.basis, task.case.id)), n);
    let state_before = bench.state();
    let upload_ns = bench.open(task.case, seed, study.search.sets)?;
    let floor = bench.floor(&subject)?;
    let mut trials = prepare(bench, &subject, &candidates, seed)?;
    let mut controls = prepare_controls(bench, &subject, seed)?;
    bench.setup.progress.begin(&task.case.id, study.search.rounds);
    let mut rounds = Vec::with_capacity(study.search.rounds);
    for round in 0..study.search.rounds {
        let unit = unit(task, round);
        if store.finished(&unit)?.is_none() {
            let order = order::search(n, offset, round, study.search.rounds);
            measure_round(bench, store, &unit, round, order, &trials, &controls)?;
        }
        let lines = store.finished(&unit)?.unwrap_or_default();
        rounds.push(take_round(store, &lines, &mut trials, &mut controls)?);
        bench.setup.progress.advance("");
    }
    bench.setup.progress.end();
    for trial in &mut trials {
        finish_trial(trial, study.metric, floor.floor_us);
    }
    for control in controls.iter_mut().filter(|c| c.outcome == Outcome::Valid) {
        control.label_us = label(&control.rounds, study.metric);
        if control.label_us.is_none() {
            control.outcome = Outcome::Failed;
            control.error = Some(Fault::new(NO_SAMPLES));
        }
    }
    let first_round = rounds.first().map_or(Vec::new(), |r| r.order.clone());
    let selection =
        select(bench, &subject, &candidates, &trials, &first_round, seed, floor.floor_us)?;
    let file = SearchFile {
        schema: SEARCH.to_string(),
        case: task.case.clone(),
        basis: task.basis.to_string(),
        inputs_seed: seed_text(seed),
        offset,
        program_sha256: program_hash(&subject),
        plan_key: subject.plan.key().to_string(),
        policy: subject.plan.ranking.policy.clone(),
        space: space_counts(&subject, n),
        family: candidates.family.name().to_string(),
        input_names: candidates.family.inputs().iter().map(|s| s.to_string()).collect(),
        candidates: candidates
            .list
            .iter()
            .map(|c| SearchCandidate {
                plan: c.plan,
                mapping: c.mapping,
                inputs: c.inputs.clone(),
                score: c.score,
            })
            .collect(),
        incumbent: candidates.incumbent,
        protocol: study.search,
        floor,
        rounds,
        trials,
        controls,
        selection,
        upload_ns,
        state_before,
        state_after: bench.state(),
    };
    Ok(file)
}

/// Removes the journals of a case whose file is recorded.
///
/// # Errors
/// They can't be removed.
pub fn forget(store: &Store, task: &SearchTask<'_>, rounds: usize) -> Result<(), StudyError> {
    (0..rounds).try_for_each(|round| store.forget(&unit(task, round)))
}

/// Compiles and checks every candidate.
fn prepare(
    bench: &mut Bench<'_>,
    subject: &Subject,
    candidates: &Candidates,
    seed: u64,
) -> Result<Vec<Trial>, StudyError> {
    let slots: Vec<[usize; 2]> =
        candidates.list.iter().enumerate().map(|(slot, c)| [slot, c.plan]).collect();
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut compiled = bench.compile(&slots, jobs, true)?;
    let progress = bench.setup.progress;
    progress.begin(&format!("{}: checking", subject.case.id), slots.len());
    let mut trials = Vec::with_capacity(slots.len());
    for slot in 0..slots.len() {
        let missing = Err((Outcome::Failed, Fault::new("it wasn't compiled")));
        let one = compiled.remove(&slot).unwrap_or(missing);
        trials.push(checked_trial(bench, subject, seed, slot, one)?);
        progress.advance("");
    }
    progress.end();
    Ok(trials)
}

fn checked_trial(
    bench: &mut Bench<'_>,
    subject: &Subject,
    seed: u64,
    slot: usize,
    compiled: Result<Compiled, Failed>,
) -> Result<Trial, StudyError> {
    let mut trial = Trial {
        candidate: slot,
        outcome: Outcome::Valid,
        error: None,
        kernel_sha256: None,
        artifact_sha256: None,
        compile_ns: None,
        check: None,
        rounds: Vec::new(),
        label_us: None,
    };
    match compiled {
        Err((outcome, fault)) => (trial.outcome, trial.error) = (outcome, Some(fault)),
        Ok(one) => {
            trial.compile_ns = Some(one.compile_ns);
            trial.kernel_sha256 = Some(one.kernel_sha256);
            trial.artifact_sha256 = one.artifact_sha256;
            let (outcome, error, check) = verdict(bench.check(subject, seed, slot)?);
            (trial.outcome, trial.error, trial.check) = (outcome, error, check);
        }
    }
    Ok(trial)
}

/// What a check makes of a trial.
pub fn verdict(check: Result<Check, Failed>) -> (Outcome, Option<Fault>, Option<Check>) {
    match check {
        Err((outcome, fault)) => (outcome, Some(fault), None),
        Ok(check) if check.passed() => (Outcome::Valid, None, Some(check)),
        Ok(check) => (Outcome::Wrong, Some(check.complaint()), Some(check)),
    }
}

fn prepare_controls(
    bench: &mut Bench<'_>,
    subject: &Subject,
    seed: u64,
) -> Result<Vec<SearchControl>, StudyError> {
    let mut controls = Vec::new();
    for entry in &bench.machine.controls {
        let name = entry.name.clone();
        let (outcome, error, check) = verdict(bench.open_control(&name, subject, seed)?);
        controls.push(SearchControl {
            output: bench.control_output(&name).to_string(),
            name,
            outcome,
            error,
            check,
            rounds: Vec::new(),
            label_us: None,
        });
    }
    Ok(controls)
}

/// Measures a round into its journal.
fn measure_round(
    bench: &mut Bench<'_>,
    store: &Store,
    unit: &str,
    round: usize,
    order: Vec<usize>,
    trials: &[Trial],
    controls: &[SearchControl],
) -> Result<(), StudyError> {
    let protocol = bench.study.search;
    let mut journal = store.journal(unit)?;
    journal.line(&Line::Begin { order: order.clone(), state: bench.state() })?;
    journal.line(&Line::Drift { ns: bench.drift() })?;
    let beside =
        |bench: &mut Bench<'_>, journal: &mut crate::store::Journal| -> Result<(), StudyError> {
            for control in controls.iter().filter(|c| c.outcome == Outcome::Valid) {
                let result = bench.measure_control(&control.name, &protocol).into();
                journal.line(&Line::Control { name: control.name.clone(), result })?;
            }
            Ok(())
        };
    if round.is_multiple_of(2) {
        beside(bench, &mut journal)?;
    }
    for (at, candidate) in order.iter().enumerate() {
        if at == order.len() / 2 {
            journal.line(&Line::Drift { ns: bench.drift() })?;
        }
        if trials.get(*candidate).is_some_and(|t| t.outcome == Outcome::Valid) {
            let result = bench.measure(*candidate, &protocol)?.into();
            journal.line(&Line::Trial { candidate: *candidate, result })?;
        }
    }
    if round % 2 == 1 {
        beside(bench, &mut journal)?;
    }
    journal.line(&Line::Drift { ns: bench.drift() })?;
    journal.finish()
}

/// Takes a round's lines into the trials.
fn take_round(
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

/// Sets the label of a trial whose rounds are whole, and refuses impossible ones.
fn finish_trial(trial: &mut Trial, metric: Metric, floor_us: f64) {
    if trial.outcome != Outcome::Valid {
        return;
    }
    trial.label_us = label(&trial.rounds, metric);
    match trial.label_us {
        None => {
            trial.outcome = Outcome::Failed;
            trial.error = Some(Fault::new(NO_SAMPLES));
        }
        Some(label) if label < FLOOR_SHARE * floor_us => {
            trial.outcome = Outcome::Refused;
            trial.error = Some(Fault::new(format!(
                "{label} us is under {FLOOR_SHARE} of the floor of {floor_us} us"
            )));
        }
        Some(_) => {}
    }
}

/// Chooses the winner and measures it afresh.
fn select(
    bench: &mut Bench<'_>,
    subject: &Subject,
    candidates: &Candidates,
    trials: &[Trial],
    order: &[usize],
    seed: u64,
    floor_us: f64,
) -> Result<Selection, StudyError> {
    let metric = bench.study.metric;
    let value = |c: usize| match metric {
        Metric::Model => candidates.list.get(c).map(|candidate| candidate.score),
        _ => trials.get(c).and_then(|t| t.label_us),
    };
    let winner = winner(order, |c| {
        let valid = trials.get(c).is_some_and(|t| t.outcome == Outcome::Valid);
        value(c).filter(|_| valid)
    });
    let Some(winner) = winner else {
        return Ok(Selection { metric, winner: None, fresh: None });
    };
    bench.open(&subject.case, seed, bench.study.search.sets)?;
    let plan = candidates.list[winner].plan;
    let mut compiled = bench.compile(&[[winner, plan]], 1, true)?;
    let missing = Err((Outcome::Failed, Fault::new("it wasn't compiled")));
    let one = compiled.remove(&winner).unwrap_or(missing);
    let mut fresh = checked_trial(bench, subject, seed, winner, one)?;
    if fresh.outcome == Outcome::Valid {
        match bench.measure(winner, &bench.study.search)? {
            Ok(samples) => fresh.rounds.push(samples),
            Err((outcome, fault)) => (fresh.outcome, fresh.error) = (outcome, Some(fault)),
        }
    }
    finish_trial(&mut fresh, metric, floor_us);
    let good = fresh.outcome == Outcome::Valid;
    Ok(Selection { metric, winner: good.then_some(winner), fresh: Some(fresh) })
}

/// The candidate with the smallest value, the first of equals in this order.
pub fn winner(order: &[usize], value: impl Fn(usize) -> Option<f64>) -> Option<usize> {
    let mut best: Option<(f64, usize)> = None;
    for candidate in order {
        if let Some(v) = value(*candidate)
            && best.is_none_or(|(b, _)| v < b)
        {
            best = Some((v, *candidate));
        }
    }
    best.map(|(_, c)| c)
}

/// Labels of a search by case and candidate, for those who want them by name.
pub fn labels_by_plan(file: &SearchFile) -> BTreeMap<usize, f64> {
    file.labels().filter_map(|(c, l)| file.candidates.get(c).map(|x| (x.plan, l))).collect()
}

/// A space that holds the policy's first `top` candidates only.
pub fn shortlist(space: &Space, top: usize) -> Space {
    Space { top: Some(top), ..space.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equals_wins_and_holes_are_passed_over() {
        let values = [Some(2.0), None, Some(1.0), Some(1.0)];
        assert_eq!(winner(&[0, 1, 3, 2], |c| values[c]), Some(3));
        assert_eq!(winner(&[0, 1, 2, 3], |c| values[c]), Some(2));
        assert_eq!(winner(&[1], |c| values[c]), None);
    }

    #[test]
    fn a_time_under_the_floor_is_refused() {
        let trial = |batch_ns: u64| Trial {
            candidate: 0,
            outcome: Outcome::Valid,
            error: None,
            kernel_sha256: None,
            artifact_sha256: None,
            compile_ns: None,
            check: None,
            rounds: vec![Samples {
                repetitions: 1,
                batch_ns: vec![batch_ns],
                ..Samples::default()
            }],
            label_us: None,
        };
        let mut slow = trial(9_100);
        finish_trial(&mut slow, Metric::Batch, 10.0);
        assert_eq!((slow.outcome, slow.label_us), (Outcome::Valid, Some(9.1)));
        let mut fast = trial(8_900);
        finish_trial(&mut fast, Metric::Batch, 10.0);
        assert_eq!((fast.outcome, fast.label_us), (Outcome::Refused, Some(8.9)));
        let mut none = trial(8_900);
        finish_trial(&mut none, Metric::Single, 10.0);
        assert_eq!(none.outcome, Outcome::Failed);
    }
}
