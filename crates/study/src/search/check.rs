//! Before a case is timed: every candidate compiled and checked whole, the controls likewise.

use super::{SearchTask, inputs_seed};
use crate::bench::{Bench, Compiled, Failed};
use crate::error::StudyError;
use crate::record::{Check, Fault, Outcome, SearchControl, State, Trial};
use crate::store::Store;
use crate::subject::{Candidates, Subject};
use serde::{Deserialize, Serialize};

/// What is known of a case before its first round.
#[derive(Serialize, Deserialize)]
pub(super) struct Checked {
    /// Allocating and filling the tensors.
    pub upload_ns: u64,
    /// The machine at the start.
    pub state: State,
    /// One per candidate, without rounds.
    pub trials: Vec<Trial>,
    /// The controls, without rounds.
    pub controls: Vec<SearchControl>,
}

/// Name of the journal of a case's checks.
pub(super) fn unit(task: &SearchTask<'_>) -> String {
    format!("{}/{}/checks", task.folder, task.case.id)
}

/// Compiles and checks every candidate and control of a case, which stays open then; or takes it
/// from the journal of an attempt that did. Says whether the case is open.
pub(super) fn check(
    bench: &mut Bench<'_>,
    store: &Store,
    task: &SearchTask<'_>,
    subject: &Subject,
    candidates: &Candidates,
) -> Result<(Checked, bool), StudyError> {
    let unit = unit(task);
    if let Some(lines) = store.finished(&unit)? {
        let fault = |message: String| StudyError::record(&store.path("journal"), message);
        let line = lines.first().ok_or_else(|| fault(format!("{unit} is empty")))?;
        return Ok((serde_json::from_str(line).map_err(|e| fault(e.to_string()))?, false));
    }
    let state = bench.state();
    let seed = inputs_seed(task.basis, &task.case.id);
    let upload_ns = bench.open(task.case, seed, bench.study.search.sets)?;
    let trials = prepare(bench, subject, candidates, seed)?;
    let controls = prepare_controls(bench, subject, seed)?;
    let checked = Checked { upload_ns, state, trials, controls };
    let mut journal = store.journal(&unit)?;
    journal.line(&checked)?;
    journal.finish()?;
    Ok((checked, true))
}

/// Threads that compile: all, for nothing is timed meanwhile.
pub(super) fn jobs() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn prepare(
    bench: &mut Bench<'_>,
    subject: &Subject,
    candidates: &Candidates,
    seed: u64,
) -> Result<Vec<Trial>, StudyError> {
    let slots: Vec<[usize; 2]> =
        candidates.list.iter().enumerate().map(|(slot, c)| [slot, c.plan]).collect();
    let mut compiled = bench.compile(&slots, jobs(), true)?;
    let mut trials = Vec::with_capacity(slots.len());
    for slot in 0..slots.len() {
        let one = compiled.remove(&slot).unwrap_or_else(|| Err(not_compiled()));
        trials.push(checked_trial(bench, subject, seed, slot, one)?);
    }
    Ok(trials)
}

/// A candidate of which the worker says nothing.
pub(super) fn not_compiled() -> Failed {
    (Outcome::Failed, Fault::new("it wasn't compiled"))
}

/// A trial of a compiled candidate, checked, without rounds.
pub(super) fn checked_trial(
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
        let (outcome, error, check) = verdict(bench.check_control(&name, subject, seed)?);
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
