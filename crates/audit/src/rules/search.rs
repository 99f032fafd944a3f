//! search/CASE.json and labels/CASE.json.

use super::{further, order, outputs, selection, timing};
use crate::canonical::{number, seed};
use crate::math::{close, first_smallest};
use crate::record::{Record, Search, Trial};
use crate::verdict::{Checks, Rule};
use further::Due;
use std::collections::BTreeSet;
use timing::Metric;

/// Outcomes of trials; controls may also be `missing` or `unsupported`.
const OUTCOMES: [&str; 7] = ["valid", "rejected", "wrong", "crashed", "hung", "failed", "refused"];

/// Labels under this share of the physical floor are refused.
const FLOOR_SHARE: f64 = 0.9;

/// Checks one file; `folder` is where it lies, `basis` the hash that its seeds derive from.
pub fn check(record: &Record, search: &Search, basis: &str, folder: &str, checks: &mut Checks) {
    let place = format!("{folder}/{}", search.case.id);
    seeds(search, basis, &place, checks);
    space(record, search, folder, &place, checks);
    trials(search, &place, checks);
    let due = further::check(search, &place, checks);
    orders(search, &due, &place, checks);
    let floor = floor(record, search, &place, checks);
    for (index, trial) in search.trials.iter().enumerate() {
        let place = || format!("{place} trial {index}");
        let rounds = due.trials.get(index).copied().unwrap_or_default();
        measured(search, trial, rounds, floor, &place, checks);
    }
    controls(record, search, &due, floor, &place, checks);
    selection::check(search, floor, &place, checks);
}

fn seeds(search: &Search, basis: &str, place: &str, checks: &mut Checks) {
    let id = &search.case.id;
    checks.that(Rule::SearchSeeds, search.basis == basis, || {
        format!("{place}: the basis is {}, not {basis}", search.basis)
    });
    let inputs = seed(&format!("{basis}/{id}/inputs"));
    checks.that(Rule::SearchSeeds, search.inputs_seed == inputs, || {
        format!("{place}: the inputs' seed is {}, not {inputs}", search.inputs_seed)
    });
    let n = search.candidates.len() as u64;
    let offset = number(&format!("{basis}/{id}/order")).checked_rem(n);
    checks.that(Rule::SearchSeeds, offset == Some(search.offset as u64), || {
        format!("{place}: the offset is {}, not {offset:?}", search.offset)
    });
}

fn space(record: &Record, search: &Search, folder: &str, place: &str, checks: &mut Checks) {
    let space = &search.space;
    let rejected: u64 = space.rejected.values().fold(0, |sum, n| sum.saturating_add(*n));
    checks.that(
        Rule::SearchSpace,
        space.legal.checked_add(rejected) == Some(space.candidates),
        || {
            format!(
                "{place}: {} legal and {rejected} rejected of {}",
                space.legal, space.candidates
            )
        },
    );
    checks.that(Rule::SearchSpace, space.measured == search.candidates.len() as u64, || {
        format!("{place}: {} measured, {} listed", space.measured, search.candidates.len())
    });
    let plans: Vec<u64> = search.candidates.iter().map(|c| c.plan).collect();
    let ascending = plans.windows(2).all(|pair| pair.first() < pair.last());
    checks.that(Rule::SearchSpace, ascending, || {
        format!("{place}: candidates aren't in the order of the space")
    });
    checks.that(Rule::SearchSpace, plans.iter().all(|p| *p < space.candidates), || {
        format!("{place}: a candidate outside the space")
    });
    let inputs = search.input_names.len();
    let whole = search.candidates.iter().all(|c| c.inputs.len() == inputs);
    checks.that(Rule::SearchSpace, whole, || format!("{place}: a candidate without all inputs"));
    if space.measured != space.legal {
        part(record, search, folder, place, checks);
    }
}

/// Which legal candidates were measured where not all were: spread evenly by the cap, or the
/// shortlist of the smallest scores.
fn part(record: &Record, search: &Search, folder: &str, place: &str, checks: &mut Checks) {
    let space = &search.space;
    let protocol = record.protocol.as_ref();
    let [cap, top] = [protocol.and_then(|p| p.cap), protocol.and_then(|p| p.top)]
        .map(|most| most.filter(|most| *most < space.legal));
    let (Some(legal), Some(scores)) = (&space.legal_plans, &space.legal_scores) else {
        checks.fail(Rule::SearchSpace, format!("{place}: the legal candidates aren't listed"));
        return;
    };
    let count = (legal.len() as u64, scores.len() as u64);
    let whole = count == (space.legal, space.legal)
        && legal.windows(2).all(|pair| pair.first() < pair.last())
        && scores.iter().all(|s| s.is_finite() && *s >= 0.0);
    checks.that(Rule::SearchSpace, whole, || {
        format!("{place}: {} legal plans with {} scores of {}", count.0, count.1, space.legal)
    });
    if !whole {
        return;
    }
    let ranks: Vec<usize> = match (cap, top) {
        (Some(cap), None) => (0..cap)
            .map(|i| u128::from(i) * u128::from(space.legal) / u128::from(cap))
            .filter_map(|rank| usize::try_from(rank).ok())
            .collect(),
        (None, Some(top)) => {
            let mut ranked: Vec<usize> = (0..legal.len()).collect();
            // Stable: of equal scores the first in the order of the space ranks first.
            ranked.sort_by(|a, b| scores[*a].total_cmp(&scores[*b]));
            ranked.truncate(usize::try_from(top).unwrap_or(usize::MAX));
            ranked
        }
        _ => {
            let (measured, legal) = (space.measured, space.legal);
            let fault = format!("{place}: {measured} of {legal} legal candidates");
            checks.fail(Rule::SearchSpace, fault);
            return;
        }
    };
    let mut due: BTreeSet<u64> = ranks.iter().filter_map(|r| legal.get(*r).copied()).collect();
    let first = first_smallest(scores.iter().copied()).and_then(|r| legal.get(r).copied());
    due.extend(first);
    if folder == "labels" {
        due.extend(record.frozen(&search.case.id).map(|f| f.challenger.plan));
    }
    let plans = search.candidates.iter().map(|c| &c.plan);
    checks.that(Rule::SearchSpace, due.iter().eq(plans), || {
        let by = if top.is_some() { "shortlist" } else { "cap" };
        format!("{place}: the measured candidates aren't those of the {by}")
    });
    // The listed scores are those of the candidates, and none that wasn't measured is smaller.
    for (index, candidate) in search.candidates.iter().enumerate() {
        let listed = legal.binary_search(&candidate.plan).ok().and_then(|at| scores.get(at));
        checks.that(Rule::SearchSpace, listed == Some(&candidate.score), || {
            format!("{place} candidate {index}: the score {} isn't {listed:?}", candidate.score)
        });
    }
    let incumbent = search.candidates.get(search.incumbent).map(|c| c.plan);
    checks.that(Rule::SearchIncumbent, first.is_some() && incumbent == first, || {
        format!("{place}: the incumbent is plan {incumbent:?}, the smallest score has {first:?}")
    });
}

fn trials(search: &Search, place: &str, checks: &mut Checks) {
    checks.that(Rule::SearchTrials, search.trials.len() == search.candidates.len(), || {
        format!("{place}: {} trials of {} candidates", search.trials.len(), search.candidates.len())
    });
    for (index, trial) in search.trials.iter().enumerate() {
        checks.that(Rule::SearchTrials, trial.candidate == Some(index), || {
            format!("{place}: trial {index} is of candidate {:?}", trial.candidate)
        });
        checks.that(Rule::SearchTrials, OUTCOMES.contains(&trial.outcome.as_str()), || {
            format!("{place} trial {index}: the outcome {:?}", trial.outcome)
        });
        let reason = trial.valid() || trial.outcome == "refused" || trial.error.is_some();
        checks.that(Rule::SearchTrials, reason, || {
            format!("{place} trial {index}: {} without a reason", trial.outcome)
        });
    }
}

fn orders(search: &Search, due: &Due, place: &str, checks: &mut Checks) {
    let (n, rounds) = (search.candidates.len(), search.protocol.rounds);
    checks.that(Rule::SearchOrder, search.rounds.len() == rounds + due.rounds, || {
        let due = rounds + due.rounds;
        format!("{place}: {} rounds, not {due}", search.rounds.len())
    });
    for (k, round) in search.rounds.iter().enumerate() {
        let mut order = order::search_round(n, rounds, search.offset, k);
        if k >= rounds {
            // A further round has those that were due, in the order of a whole one.
            let listed: BTreeSet<usize> = round.order.iter().copied().collect();
            order.retain(|candidate| listed.contains(candidate));
        }
        checks.that(Rule::SearchOrder, round.order == order, || {
            let at = round.order.iter().zip(&order).position(|(a, b)| a != b);
            format!("{place} round {k}: another order from position {at:?}")
        });
    }
}

/// The physical floor in µs, derived from the ceilings.
fn floor(record: &Record, search: &Search, place: &str, checks: &mut Checks) -> Option<f64> {
    let floor = &search.floor;
    let machine = record.machine.as_ref()?;
    let case = &search.case;
    let Some(ceiling) = machine.ceilings.iter().find(|c| c.threads == case.threads) else {
        checks.fail(Rule::SearchFloor, format!("{place}: no ceilings of {} threads", case.threads));
        return None;
    };
    let cache = |level: &str| machine.identity.get("caches_bytes")?.get(level)?.as_f64();
    let threads = case.threads as f64;
    let sizes = [("l1", threads), ("l2", threads), ("l3", 1.0)];
    let fits = sizes.iter().find(|(level, times)| {
        cache(level).is_some_and(|bytes| floor.working_set_bytes <= bytes * times)
    });
    let level = fits.map_or("memory", |(level, _)| level);
    checks.that(Rule::SearchFloor, floor.level == level, || {
        format!("{place}: {} bytes lie in {level}, not {}", floor.working_set_bytes, floor.level)
    });
    checks.that(Rule::SearchFloor, floor.working_set_bytes == floor.bytes, || {
        format!("{place}: the working set isn't the bytes of the tensors")
    });
    if let Some(bytes) = tensor_bytes(search) {
        checks.that(Rule::SearchFloor, floor.bytes == bytes, || {
            format!("{place}: {} bytes, but the tensors have {bytes}", floor.bytes)
        });
    }
    let rate = |rates: Option<f64>| rates.filter(|r| *r > 0.0);
    let dtype = if case.dtype == "f64" { "f64" } else { "f32" };
    let flops = rate(ceiling.flops_per_second.get(dtype).copied());
    let stated = ceiling.bytes_per_second.get(level);
    // A cache of unknown rate sets no floor; memory always does.
    let transfer = match (rate(stated.copied().flatten()), level) {
        (Some(bytes), _) => Some(floor.bytes / bytes),
        (None, "memory") => None,
        (None, _) => stated.map(|_| 0.0),
    };
    let (Some(flops), Some(transfer)) = (flops, transfer) else {
        checks.fail(Rule::SearchFloor, format!("{place}: no rates of {dtype} and {level}"));
        return None;
    };
    let seconds = (floor.flops / flops).max(transfer).max(ceiling.launch_ns / 1e9);
    checks.that(Rule::SearchFloor, close(floor.floor_us, 1e6 * seconds), || {
        format!("{place}: the floor is {} µs, not {}", floor.floor_us, 1e6 * seconds)
    });
    Some(1e6 * seconds)
}

/// Bytes of the tensors of ops whose tensors this crate knows.
fn tensor_bytes(search: &Search) -> Option<f64> {
    let case = &search.case;
    let size = match case.dtype.as_str() {
        "f64" => 8,
        "f32" => 4,
        "f16" | "bf16" => 2,
        _ => return None,
    };
    if case.epilogue.as_ref().is_some_and(|e| e.as_array().is_none_or(|steps| !steps.is_empty())) {
        return None;
    }
    let product = |factors: &[u64]| factors.iter().try_fold(1u64, |p, n| p.checked_mul(*n));
    let elements = match (case.op.as_str(), case.shape.as_slice()) {
        ("softmax", [rows, columns]) => product(&[2, *rows, *columns])?,
        ("rmsnorm", [rows, columns]) => product(&[2, *rows, *columns])?.checked_add(*columns)?,
        ("layernorm", [rows, columns]) => {
            product(&[2, *rows, *columns])?.checked_add(product(&[2, *columns])?)?
        }
        ("gemm", [m, n, k]) => {
            let (a, b, c) = (product(&[*m, *k])?, product(&[*k, *n])?, product(&[*m, *n])?);
            a.checked_add(b)?.checked_add(c)?
        }
        _ => return None,
    };
    Some(elements.checked_mul(size)? as f64)
}

/// Samples, outputs, label and refusal of a trial or control.
pub fn measured(
    search: &Search,
    trial: &Trial,
    rounds: usize,
    floor: Option<f64>,
    place: &dyn Fn() -> String,
    checks: &mut Checks,
) {
    outputs::check(Rule::SearchOutputs, &trial.outcome, trial.check.as_ref(), place, checks);
    let timed = trial.valid() || trial.outcome == "refused";
    if !timed {
        checks.that(Rule::SearchLabels, trial.label_us.is_none(), || {
            format!("{}: a label although it is {}", place(), trial.outcome)
        });
        return;
    }
    checks.that(Rule::SearchTrials, trial.rounds.len() == rounds, || {
        format!("{}: {} rounds, not {rounds}", place(), trial.rounds.len())
    });
    for (round, samples) in trial.rounds.iter().enumerate() {
        let fault = timing::fault(samples, &search.protocol);
        checks.that(Rule::SearchSamples, fault.is_none(), || {
            format!("{} round {round}: {}", place(), fault.unwrap_or_default())
        });
    }
    let metric = Metric::of_selection(&search.selection.metric);
    let label =
        metric.and_then(|metric| timing::label(&trial.rounds, metric, search.protocol.quantile()));
    let holds = matches!((label, trial.label_us), (Some(a), Some(b)) if close(a, b));
    checks.that(Rule::SearchLabels, holds, || {
        format!("{}: the label is {:?}, its samples give {label:?}", place(), trial.label_us)
    });
    if let (Some(label), Some(floor)) = (label, floor) {
        let refused = label < FLOOR_SHARE * floor;
        checks.that(Rule::SearchFloor, refused != trial.valid(), || {
            format!("{}: {} at {label} µs with a floor of {floor} µs", place(), trial.outcome)
        });
    }
}

fn controls(
    record: &Record,
    search: &Search,
    due: &Due,
    floor: Option<f64>,
    place: &str,
    checks: &mut Checks,
) {
    let mut names = BTreeSet::new();
    for (index, control) in search.controls.iter().enumerate() {
        let name = control.name.as_deref().unwrap_or("?");
        let place = || format!("{place} control {name}");
        checks.that(Rule::SearchControls, names.insert(name), || format!("{}: twice", place()));
        let known = OUTCOMES.contains(&control.outcome.as_str())
            || matches!(control.outcome.as_str(), "missing" | "unsupported");
        checks.that(Rule::SearchControls, known, || {
            format!("{}: the outcome {:?}", place(), control.outcome)
        });
        let rounds = due.controls.get(index).copied().unwrap_or_default();
        measured(search, control, rounds, floor, &place, checks);
    }
    for control in record.machine.iter().flat_map(|m| &m.controls) {
        let found = search.controls.iter().find(|c| c.name.as_ref() == Some(&control.name));
        // The control of another family needn't be asked.
        let Some(found) = found else { continue };
        let missing = found.outcome == "missing";
        checks.that(Rule::SearchControls, missing != control.available, || {
            format!(
                "{place} control {}: {} although available is {}",
                control.name, found.outcome, control.available
            )
        });
    }
}
