//! Replay rounds: every path of every hold-out case compiled, checked and measured anew, in a
//! balanced order.

use crate::alternate::{self, Path};
use crate::bench::{Bench, Compiled, Failed};
use crate::canonical::derive;
use crate::case::Case;
use crate::error::StudyError;
use crate::freeze::{AGAIN, BEST, CHALLENGER, INCUMBENT, paths_of};
use crate::order;
use crate::protocol::{Protocol, Samples};
use crate::record::{
    Fault, FrozenFile, Outcome, ProtocolFile, REPLAY, ReplayCase, ReplayRound, Run, State,
};
use crate::search::{inputs_seed, verdict};
use crate::store::Store;
use crate::subject::Subject;
use serde::{Deserialize, Serialize};

/// A hold-out case to replay.
#[derive(Clone, Debug)]
pub struct ReplayTask {
    /// The case.
    pub case: Case,
    /// Its frozen plans.
    pub frozen: FrozenFile,
    /// Index in the space of the measured winner, if there is one.
    pub best: Option<usize>,
}

/// A difference between a frozen kernel and the one at hand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The case.
    pub case: String,
    /// The path.
    pub path: String,
    /// As frozen.
    pub expected: String,
    /// As compiled now.
    pub found: String,
}

/// A line of a round's journal.
#[derive(Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "lowercase")]
enum Line {
    Begin { state: State },
    Case { case: Box<ReplayCase> },
    End { state: State },
}

/// Name of a round's unit of work and, with `.json`, of its file.
pub fn unit(folder: &str, round: usize) -> String {
    format!("{folder}/round-{round:02}")
}

/// Measures a round, or takes it from the journal of an attempt that finished it. Kernels that
/// differ from the frozen ones go to `differs`, which decides whether that ends the replay.
///
/// # Errors
/// The workers or the oracle fail as such, files can't be written, or `differs` says so.
#[allow(clippy::too_many_arguments)]
pub fn round(
    bench: &mut Bench<'_>,
    store: &Store,
    folder: &str,
    round: usize,
    freeze: &str,
    protocol: &ProtocolFile,
    tasks: &[ReplayTask],
    differs: &mut dyn FnMut(&Difference) -> Result<(), StudyError>,
) -> Result<ReplayRound, StudyError> {
    let unit = unit(folder, round);
    if store.finished(&unit)?.is_none() {
        let mut journal = store.journal(&unit)?;
        journal.line(&Line::Begin { state: bench.state() })?;
        bench.setup.progress.begin(&format!("round {}", round + 1), tasks.len());
        let first = order::reduce(derive(&format!("{freeze}/cases")), tasks.len());
        for at in order::rotation(tasks.len(), (first + round) % tasks.len().max(1)) {
            let task = &tasks[at];
            let case = measure_case(bench, round, freeze, protocol, task, differs)?;
            journal.line(&Line::Case { case: Box::new(case) })?;
            bench.setup.progress.advance(&task.case.id);
        }
        bench.setup.progress.end();
        journal.line(&Line::End { state: bench.state() })?;
        journal.finish()?;
    }
    let fault = |message: String| StudyError::record(&store.path("journal"), message);
    let (mut cases, mut before, mut after) = (Vec::new(), None, None);
    for line in store.finished(&unit)?.unwrap_or_default() {
        match serde_json::from_str(&line).map_err(|e| fault(e.to_string()))? {
            Line::Begin { state } => before = Some(state),
            Line::Case { case } => cases.push(*case),
            Line::End { state } => after = Some(state),
        }
    }
    let (Some(state_before), Some(state_after)) = (before, after) else {
        return Err(fault(format!("{unit} has no beginning or no end")));
    };
    Ok(ReplayRound {
        schema: REPLAY.to_string(),
        round,
        freeze: freeze.to_string(),
        protocol: protocol.replay,
        cases,
        state_before,
        state_after,
    })
}

/// Paths of compiled candidates: name and index in the space.
fn plan_of(task: &ReplayTask, path: &str) -> Option<usize> {
    match path {
        INCUMBENT | AGAIN => Some(task.frozen.incumbent.plan),
        CHALLENGER => Some(task.frozen.challenger.plan),
        BEST => task.best,
        _ => None,
    }
}

fn is_plan(path: &str) -> bool {
    [INCUMBENT, CHALLENGER, AGAIN, BEST].contains(&path)
}

fn measure_case(
    bench: &mut Bench<'_>,
    round: usize,
    freeze: &str,
    protocol: &ProtocolFile,
    task: &ReplayTask,
    differs: &mut dyn FnMut(&Difference) -> Result<(), StudyError>,
) -> Result<ReplayCase, StudyError> {
    let case = &task.case;
    let paths = paths_of(&protocol.paths, case).to_vec();
    let n = paths.len();
    let offset = order::reduce(derive(&format!("{freeze}/{}/order", case.id)), 2 * n);
    let order = order::replay(n, offset, round);
    let seed = inputs_seed(freeze, &case.id);
    let space = bench.study.space.clone();
    let subject = Subject::new(case, bench.setup.device.target(), &space)?;
    bench.open(case, seed, protocol.replay.sets)?;
    let mut drift_ns = vec![bench.drift()];
    let mut runs = Vec::with_capacity(n);
    for (slot, path) in paths.iter().enumerate() {
        runs.push(prepare(bench, &subject, task, slot, path, seed, differs)?);
    }
    if protocol.replay.interleaved {
        interleaved(bench, &protocol.replay, &order, &mut runs)?;
    } else {
        for path in &order {
            if runs[*path].outcome == Outcome::Valid {
                let samples = whole(bench, &protocol.replay, &runs[*path].path, *path)?;
                take(&mut runs[*path], samples);
            }
        }
    }
    drift_ns.push(bench.drift());
    Ok(ReplayCase { case: case.id.clone(), paths, order, drift_ns, runs })
}

fn whole(
    bench: &mut Bench<'_>,
    protocol: &Protocol,
    path: &str,
    slot: usize,
) -> Result<Result<Samples, Failed>, StudyError> {
    if is_plan(path) {
        bench.measure(slot, protocol)
    } else {
        Ok(bench.measure_control(path, protocol))
    }
}

fn take(run: &mut Run, samples: Result<Samples, Failed>) {
    match samples {
        Ok(samples) => run.samples = samples,
        Err((outcome, fault)) => (run.outcome, run.error) = (outcome, Some(fault)),
    }
}

/// All paths side by side.
fn interleaved(
    bench: &mut Bench<'_>,
    protocol: &Protocol,
    order: &[usize],
    runs: &mut [Run],
) -> Result<(), StudyError> {
    let valid: Vec<usize> =
        order.iter().copied().filter(|path| runs[*path].outcome == Outcome::Valid).collect();
    let names: Vec<String> = valid.iter().map(|path| runs[*path].path.clone()).collect();
    let paths: Vec<Path<'_>> = valid
        .iter()
        .zip(&names)
        .map(|(slot, name)| if is_plan(name) { Path::Plan(*slot) } else { Path::Control(name) })
        .collect();
    let results = alternate::measure(bench, protocol, &paths)?;
    for (path, result) in valid.into_iter().zip(results) {
        take(&mut runs[path], result);
    }
    Ok(())
}

/// Compiles and checks a path.
fn prepare(
    bench: &mut Bench<'_>,
    subject: &Subject,
    task: &ReplayTask,
    slot: usize,
    path: &str,
    seed: u64,
    differs: &mut dyn FnMut(&Difference) -> Result<(), StudyError>,
) -> Result<Run, StudyError> {
    let mut run = Run {
        path: path.to_string(),
        outcome: Outcome::Valid,
        error: None,
        kernel_sha256: None,
        artifact_sha256: None,
        compile_ns: None,
        check: None,
        samples: Samples::default(),
    };
    if !is_plan(path) {
        let (outcome, error, check) = verdict(bench.check_control(path, subject, seed)?);
        (run.outcome, run.error, run.check) = (outcome, error, check);
        return Ok(run);
    }
    let Some(plan) = plan_of(task, path) else {
        run.outcome = Outcome::Missing;
        run.error = Some(Fault::new("the labels have no winner"));
        return Ok(run);
    };
    let mut compiled = bench.compile(&[[slot, plan]], 1, true)?;
    let missing = Err((Outcome::Failed, Fault::new("it wasn't compiled")));
    match compiled.remove(&slot).unwrap_or(missing) {
        Err((outcome, fault)) => (run.outcome, run.error) = (outcome, Some(fault)),
        Ok(one) => {
            compare(task, path, &one, differs)?;
            run.compile_ns = Some(one.compile_ns);
            run.kernel_sha256 = Some(one.kernel_sha256);
            run.artifact_sha256 = one.artifact_sha256;
            let (outcome, error, check) = verdict(bench.check(subject, seed, slot)?);
            (run.outcome, run.error, run.check) = (outcome, error, check);
        }
    }
    Ok(run)
}

/// Tells of a kernel that isn't the frozen one.
fn compare(
    task: &ReplayTask,
    path: &str,
    found: &Compiled,
    differs: &mut dyn FnMut(&Difference) -> Result<(), StudyError>,
) -> Result<(), StudyError> {
    let frozen = match path {
        INCUMBENT | AGAIN => &task.frozen.incumbent,
        CHALLENGER => &task.frozen.challenger,
        _ => return Ok(()),
    };
    let pairs = [
        (Some(&frozen.kernel_sha256), Some(&found.kernel_sha256)),
        (frozen.artifact_sha256.as_ref(), found.artifact_sha256.as_ref()),
    ];
    for (expected, found) in pairs {
        if let (Some(expected), Some(found)) = (expected, found)
            && expected != found
        {
            differs(&Difference {
                case: task.case.id.clone(),
                path: path.to_string(),
                expected: expected.clone(),
                found: found.clone(),
            })?;
            // One entry a path is enough: another kernel text gives other code, too.
            break;
        }
    }
    Ok(())
}
