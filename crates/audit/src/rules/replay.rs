//! replay/round-NN.json.

use super::{frozen, order, outputs, timing};
use crate::canonical::number;
use crate::record::{ProtocolFile, Record, Round, RoundCase};
use crate::verdict::{Checks, Rule};
use std::collections::BTreeMap;

/// The paths that every cohort has.
pub const INCUMBENT: &str = "incumbent";
/// The model's choice.
pub const CHALLENGER: &str = "challenger";
/// The incumbent once more.
pub const AGAIN: &str = "incumbent-again";
/// The winner of the hold-out's labels.
pub const BEST: &str = "best";

/// Rounds that are looked for one by one.
const MAX_ROUNDS: usize = 10_000;

/// Whether a path is one of our plans, no control.
pub fn is_plan(path: &str) -> bool {
    matches!(path, INCUMBENT | CHALLENGER | AGAIN | BEST)
}

/// Checks the rounds of the last freeze.
pub fn check(record: &Record, checks: &mut Checks) {
    let Some(protocol) = &record.protocol else { return };
    let rounds: Vec<&Round> = record.current_rounds().collect();
    complete(protocol, &rounds, checks);
    for round in &rounds {
        cases(record, protocol, round, checks);
        for case in &round.cases {
            path_order(round, case, checks);
            runs(record, round, case, checks);
        }
    }
    balance(protocol, &rounds, checks);
}

fn place(round: &Round, case: &RoundCase) -> String {
    format!("replay/round-{:02} {}", round.round, case.case.id())
}

fn complete(protocol: &ProtocolFile, rounds: &[&Round], checks: &mut Checks) {
    let due = protocol.replay.rounds;
    checks.that(Rule::ReplayRounds, rounds.len() == due, || {
        format!("{} rounds, the protocol has {due}", rounds.len())
    });
    checks.that(Rule::ReplayRounds, due <= MAX_ROUNDS, || format!("{due} rounds are too many"));
    for number in 0..due.min(MAX_ROUNDS) as u64 {
        let count = rounds.iter().filter(|r| r.round == number).count();
        checks.that(Rule::ReplayRounds, count == 1, || {
            format!("round {number} is {count} times there")
        });
    }
    for round in rounds {
        checks.that(Rule::ReplayRounds, round.protocol == protocol.replay, || {
            format!("round {} was taken under another protocol", round.round)
        });
    }
    for (family, paths) in &protocol.paths {
        for path in [INCUMBENT, CHALLENGER, AGAIN] {
            checks.that(Rule::ReplayRounds, paths.iter().any(|p| p == path), || {
                format!("protocol.json: {family} has no path {path}")
            });
        }
    }
}

/// The paths that the protocol has for a hold-out case.
fn due_paths<'a>(record: &Record, protocol: &'a ProtocolFile, id: &str) -> Option<&'a Vec<String>> {
    protocol.paths.get(&record.label(id)?.case.family)
}

fn cases(record: &Record, protocol: &ProtocolFile, round: &Round, checks: &mut Checks) {
    let n = protocol.holdout.len();
    let start = number(&format!("{}/cases", round.freeze)).wrapping_add(round.round);
    let first = start.checked_rem(n as u64).unwrap_or(0) as usize;
    let due: Vec<&str> = order::rotated(n, first)
        .iter()
        .filter_map(|i| protocol.holdout.get(*i))
        .map(String::as_str)
        .collect();
    let own: Vec<&str> = round.cases.iter().map(|c| c.case.id()).collect();
    let mut sorted = (due.clone(), own.clone());
    sorted.0.sort_unstable();
    sorted.1.sort_unstable();
    checks.that(Rule::ReplayRounds, sorted.0 == sorted.1, || {
        format!("round {}: {} cases of {n}", round.round, own.len())
    });
    checks.that(Rule::ReplayOrder, due == own, || {
        format!("round {}: the cases are in another order", round.round)
    });
    for case in &round.cases {
        let due = due_paths(record, protocol, case.case.id());
        checks.that(Rule::ReplayRounds, due == Some(&case.paths), || {
            format!("{}: its paths aren't the protocol's", place(round, case))
        });
        let run: Vec<&String> = case.runs.iter().map(|r| &r.path).collect();
        checks.that(Rule::ReplayRounds, run.iter().copied().eq(case.paths.iter()), || {
            format!("{}: a path was left out", place(round, case))
        });
    }
}

fn path_order(round: &Round, case: &RoundCase, checks: &mut Checks) {
    let start = number(&format!("{}/{}/order", round.freeze, case.case.id()));
    let due = order::replay_paths(case.paths.len(), start, round.round);
    checks.that(Rule::ReplayOrder, case.order == due, || {
        format!("{}: the order is {:?}, not {due:?}", place(round, case), case.order)
    });
}

fn runs(record: &Record, round: &Round, case: &RoundCase, checks: &mut Checks) {
    let id = case.case.id();
    let frozen = record.frozen(id);
    let label = record.label(id);
    let best = label.and_then(|l| l.trials.get(l.selection.winner?));
    for run in &case.runs {
        let place = || format!("{} {}", place(round, case), run.path);
        let known = matches!(
            run.outcome.as_str(),
            "valid"
                | "rejected"
                | "wrong"
                | "crashed"
                | "hung"
                | "failed"
                | "refused"
                | "missing"
                | "unsupported"
        );
        checks.that(Rule::ReplayRounds, known, || {
            format!("{}: the outcome {:?}", place(), run.outcome)
        });
        if run.valid() {
            let fault = timing::fault(&run.timing, &round.protocol);
            checks.that(Rule::ReplaySamples, fault.is_none(), || {
                format!("{}: {}", place(), fault.unwrap_or_default())
            });
        } else {
            checks.that(Rule::ReplayRounds, run.error.is_some(), || {
                format!("{}: {} without a reason", place(), run.outcome)
            });
        }
        if !is_plan(&run.path) {
            continue;
        }
        outputs::check(Rule::ReplayOutputs, &run.outcome, run.check.as_ref(), place, checks);
        let (kernel, artifact) = (run.kernel_sha256.as_ref(), run.artifact_sha256.as_ref());
        let same = match run.path.as_str() {
            BEST => best.is_none_or(|b| {
                kernel.is_none()
                    || (kernel == b.kernel_sha256.as_ref()
                        && artifact == b.artifact_sha256.as_ref())
            }),
            CHALLENGER => {
                frozen.is_none_or(|f| frozen::same_kernel(&f.challenger, kernel, artifact))
            }
            _ => frozen.is_none_or(|f| frozen::same_kernel(&f.incumbent, kernel, artifact)),
        };
        checks.that(Rule::ReplayKernels, same || record.changed("kernel", Some(id)), || {
            format!("{}: another kernel than the frozen one", place())
        });
        checks.that(Rule::ReplayKernels, !run.valid() || kernel.is_some(), || {
            format!("{}: no hash of its kernel", place())
        });
    }
}

fn balance(protocol: &ProtocolFile, rounds: &[&Round], checks: &mut Checks) {
    let mut by_case: BTreeMap<&str, Vec<(u64, &RoundCase)>> = BTreeMap::new();
    for round in rounds {
        for case in &round.cases {
            by_case.entry(case.case.id()).or_default().push((round.round, case));
        }
    }
    for (id, mut cases) in by_case {
        cases.sort_by_key(|c| c.0);
        let n = cases.first().map_or(0, |c| c.1.paths.len());
        let whole = if n == 0 { 0 } else { cases.len() / (2 * n) * (2 * n) };
        let orders: Vec<&[usize]> =
            cases.iter().take(whole).map(|c| c.1.order.as_slice()).collect();
        if orders.is_empty() {
            let rounds = protocol.replay.rounds;
            checks.note(
                Rule::ReplayBalance,
                format!("{id}: {rounds} rounds of {n} paths balance nothing: {} are needed", 2 * n),
            );
            continue;
        }
        let permutations = orders.iter().all(|order| {
            let mut sorted = order.to_vec();
            sorted.sort_unstable();
            sorted.iter().copied().eq(0..n)
        });
        let fault = match permutations {
            true => order::imbalance(&orders, n),
            false => Some("an order that isn't one of all paths".to_string()),
        };
        checks.that(Rule::ReplayBalance, fault.is_none(), || {
            format!("{id}: {}", fault.unwrap_or_default())
        });
        if whole < cases.len() {
            checks.note(
                Rule::ReplayBalance,
                format!("{id}: {} rounds beyond whole cycles of {}", cases.len() - whole, 2 * n),
            );
        }
    }
}
