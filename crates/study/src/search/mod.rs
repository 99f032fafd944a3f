//! Searching cases: every candidate compiled, checked whole, and timed in several rounds.
//!
//! Where rounds of the cases alternate, round r of every case comes before round r + 1 of any, so
//! that whatever disturbs the machine for a while meets one round of several cases, which their
//! medians survive, and not every round of one.

mod check;
mod round;
mod select;

use crate::bench::Bench;
use crate::canonical::{derive, seed_text, sha256};
use crate::case::Case;
use crate::error::StudyError;
use crate::order;
use crate::protocol::Protocol;
use crate::record::{
    Floor, Outcome, SEARCH, SearchCandidate, SearchControl, SearchFile, SearchRound, SpaceCounts,
    State, Trial,
};
use crate::spec::Space;
use crate::store::Store;
use crate::subject::{Candidates, Subject};
use std::collections::BTreeMap;

pub use check::verdict;
pub use select::winner;

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

/// A case between its checks and its file.
struct Running<'a> {
    task: SearchTask<'a>,
    protocol: Protocol,
    subject: Subject,
    candidates: Candidates,
    seed: u64,
    offset: usize,
    floor: Floor,
    upload_ns: u64,
    state: State,
    trials: Vec<Trial>,
    controls: Vec<SearchControl>,
    rounds: Vec<SearchRound>,
}

/// Searches one case.
///
/// # Errors
/// As [`search_all`].
pub fn search(
    bench: &mut Bench<'_>,
    store: &Store,
    task: &SearchTask<'_>,
) -> Result<SearchFile, StudyError> {
    let mut found = None;
    search_all(bench, store, &[*task], &mut |_, file| {
        found = Some(file);
        Ok(())
    })?;
    found.ok_or_else(|| StudyError::Order("there is no case to search".to_string()))
}

/// Searches cases, and hands each one's file to `record` in their order. What an earlier attempt
/// finished is taken from its journals, which go when `record` has the file.
///
/// # Errors
/// A case can't be planned, the oracle or the workers fail as such, or files can't be written.
/// A candidate that fails is a trial, no error.
pub fn search_all(
    bench: &mut Bench<'_>,
    store: &Store,
    tasks: &[SearchTask<'_>],
    record: &mut dyn FnMut(&SearchTask<'_>, SearchFile) -> Result<(), StudyError>,
) -> Result<(), StudyError> {
    let together = if bench.study.search.interleaved { tasks.len().max(1) } else { 1 };
    tasks.chunks(together).try_for_each(|group| search_group(bench, store, group, record))
}

/// Searches cases whose rounds alternate.
fn search_group(
    bench: &mut Bench<'_>,
    store: &Store,
    tasks: &[SearchTask<'_>],
    record: &mut dyn FnMut(&SearchTask<'_>, SearchFile) -> Result<(), StudyError>,
) -> Result<(), StudyError> {
    let progress = bench.setup.progress;
    let what = match tasks {
        [one] => one.case.id.clone(),
        _ => tasks.first().map_or(String::new(), |t| t.folder.to_string()),
    };
    let protocol = bench.study.search;
    // The case that is open with its candidates compiled. Whatever is due in a further round was
    // due in the one before.
    let mut at_hand = None;
    let mut running = Vec::with_capacity(tasks.len());
    progress.begin(&format!("{what}: checking"), tasks.len());
    for (at, task) in tasks.iter().enumerate() {
        let (case, open) = begin(bench, store, task)?;
        at_hand = open.then_some(at);
        running.push(case);
        progress.advance(&task.case.id);
    }
    progress.end();
    for round in 0..protocol.most_rounds() {
        let metric = bench.study.metric;
        let due: Vec<usize> = (0..running.len())
            .filter(|at| round::due(&running[*at], round, metric).is_some())
            .collect();
        if due.is_empty() {
            break;
        }
        progress.begin(&format!("{what}: round {}", round + 1), due.len());
        for at in due {
            one_round(bench, store, &mut running[at], round, &mut at_hand, at)?;
            progress.advance(&running[at].task.case.id);
        }
        progress.end();
    }
    progress.begin(&format!("{what}: winners"), running.len());
    for case in running {
        let (task, rounds) = (case.task, case.rounds.len());
        let file = finish(bench, case)?;
        record(&task, file)?;
        store.forget(&check::unit(&task))?;
        (0..rounds).try_for_each(|round| store.forget(&round::unit(&task, round)))?;
        progress.advance(&task.case.id);
    }
    progress.end();
    Ok(())
}

/// Plans and checks a case. Says whether it is open in the workers.
fn begin<'a>(
    bench: &mut Bench<'_>,
    store: &Store,
    task: &SearchTask<'a>,
) -> Result<(Running<'a>, bool), StudyError> {
    let study = bench.study;
    let target = bench.setup.device.target().clone();
    let subject = Subject::new(task.case, &target, &study.space)?;
    let candidates = subject.candidates(&target, &study.space, task.also)?;
    let n = candidates.list.len();
    let offset = order::reduce(derive(&format!("{}/{}/order", task.basis, task.case.id)), n);
    let floor = bench.floor(&subject)?;
    let (checked, open) = check::check(bench, store, task, &subject, &candidates)?;
    let case = Running {
        task: *task,
        protocol: study.search,
        seed: inputs_seed(task.basis, &task.case.id),
        subject,
        candidates,
        offset,
        floor,
        upload_ns: checked.upload_ns,
        state: checked.state,
        trials: checked.trials,
        controls: checked.controls,
        rounds: Vec::new(),
    };
    Ok((case, open))
}

/// A round of a case, measured now or taken from its journal. `at_hand` is the case that is open.
fn one_round(
    bench: &mut Bench<'_>,
    store: &Store,
    case: &mut Running<'_>,
    round: usize,
    at_hand: &mut Option<usize>,
    at: usize,
) -> Result<(), StudyError> {
    let unit = round::unit(&case.task, round);
    if store.finished(&unit)?.is_none() {
        let Some(due) = round::due(case, round, bench.study.metric) else { return Ok(()) };
        let open = match *at_hand == Some(at) {
            true => round::Open::default(),
            false => round::open(bench, case, &due)?,
        };
        *at_hand = Some(at);
        round::measure(bench, store, &unit, round, due, &open)?;
    }
    let lines = store.finished(&unit)?.unwrap_or_default();
    let taken = round::take_round(store, &lines, &mut case.trials, &mut case.controls)?;
    case.rounds.push(taken);
    Ok(())
}

/// Labels, winner and file of a case whose rounds are whole.
fn finish(bench: &mut Bench<'_>, mut case: Running<'_>) -> Result<SearchFile, StudyError> {
    let metric = bench.study.metric;
    for trial in &mut case.trials {
        select::finish_trial(trial, metric, case.protocol.quantile(), case.floor.floor_us);
    }
    for control in &mut case.controls {
        select::finish_control(control, metric, case.protocol.quantile());
    }
    let selection = select::select(bench, &case)?;
    let Running { task, subject, candidates, trials, controls, rounds, .. } = case;
    Ok(SearchFile {
        schema: SEARCH.to_string(),
        case: task.case.clone(),
        basis: task.basis.to_string(),
        inputs_seed: seed_text(case.seed),
        offset: case.offset,
        program_sha256: program_hash(&subject),
        plan_key: subject.plan.key().to_string(),
        policy: subject.plan.ranking.policy.clone(),
        space: space_counts(&subject, candidates.list.len()),
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
        protocol: case.protocol,
        floor: case.floor,
        rounds,
        trials,
        controls,
        selection,
        upload_ns: case.upload_ns,
        state_before: case.state,
        state_after: bench.state(),
    })
}

/// How far the rounds of a case's candidates lie apart: the median over its valid ones of
/// [`crate::stats::spread`]. `None` without a valid candidate.
pub fn case_spread(file: &SearchFile) -> Option<f64> {
    let (metric, q) = (file.selection.metric, file.protocol.quantile());
    let valid = file.trials.iter().filter(|t| t.outcome == Outcome::Valid);
    let spreads: Vec<f64> = valid.filter_map(|t| round::spread_of(&t.rounds, metric, q)).collect();
    (!spreads.is_empty()).then(|| crate::stats::median(&spreads))
}

/// For each label, in their order: how far the rounds of its candidate lie apart, or those of its
/// case where they do further; 0 where that isn't known.
pub fn spreads(file: &SearchFile) -> Vec<f64> {
    let (metric, q) = (file.selection.metric, file.protocol.quantile());
    let case = case_spread(file);
    let of = |candidate| {
        let trial = file.trials.get::<usize>(candidate);
        let own = trial.and_then(|t| round::spread_of(&t.rounds, metric, q));
        [own, case].into_iter().flatten().filter(|s| s.is_finite()).fold(0.0, f64::max)
    };
    file.labels().map(|(candidate, _)| of(candidate)).collect()
}

/// Labels of a search by case and candidate, for those who want them by name.
pub fn labels_by_plan(file: &SearchFile) -> BTreeMap<usize, f64> {
    file.labels().filter_map(|(c, l)| file.candidates.get(c).map(|x| (x.plan, l))).collect()
}

/// A space that holds the policy's first `top` candidates only.
pub fn shortlist(space: &Space, top: usize) -> Space {
    Space { top: Some(top), ..space.clone() }
}
