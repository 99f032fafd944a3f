//! Further rounds of searches: exactly what spread too far was measured again, rounds of cases
//! alternated, and training cases that stayed disturbed are recorded.

use super::timing::{self, Metric};
use crate::math::{median, quantile};
use crate::record::{Record, Search, Timing, Trial};
use crate::verdict::{Checks, Rule};

/// How close to the limit a spread may be on either side of it: it was compared in another order
/// of operations.
const ROUNDING: f64 = 1e-9;

/// What a search has to hold.
#[derive(Default, Debug)]
pub struct Due {
    /// Rounds of each trial.
    pub trials: Vec<usize>,
    /// Rounds of each control.
    pub controls: Vec<usize>,
    /// Further rounds that are due or there.
    pub rounds: usize,
}

/// How far the quarter of the values of rounds on either side of the label's quantile lie apart,
/// relative to the label.
pub(super) fn spread(rounds: &[Timing], metric: Metric, q: f64) -> Option<f64> {
    let values: Option<Vec<f64>> = rounds.iter().map(|r| metric.quantile(r, q)).collect();
    let values = values?;
    Some((quantile(&values, q + 0.25)? - quantile(&values, q - 0.25)?) / quantile(&values, q)?)
}

/// Whether a measurement that had so many rounds had to be, or could have been, measured again.
fn wide(trial: &Trial, rounds: usize, metric: Metric, [q, limit]: [f64; 2]) -> (bool, bool) {
    let timed = trial.valid() || trial.outcome == "refused";
    let some = trial.rounds.get(..rounds).filter(|_| timed);
    match some.and_then(|some| spread(some, metric, q)) {
        Some(spread) => (spread > limit * (1.0 + ROUNDING), spread > limit * (1.0 - ROUNDING)),
        // One that failed later may have been measured.
        None => (false, !timed),
    }
}

/// Which trials must or may be measured in a round as finalists: the fastest ones by the label of
/// the planned rounds.
fn finalists(search: &Search, round: usize, metric: Metric) -> Vec<(bool, bool)> {
    let (planned, q) = (search.protocol.rounds, search.protocol.quantile());
    let finals = search.protocol.finals.as_ref().filter(|f| round < f.rounds);
    let first = |t: &Trial| timing::label(t.rounds.get(..planned)?, metric, q);
    let labels: Vec<Option<f64>> = search.trials.iter().map(first).collect();
    let mut sorted: Vec<f64> = labels.iter().copied().flatten().collect();
    sorted.sort_by(f64::total_cmp);
    // The fastest one that is out bounds those that must be in, and the slowest that is in those
    // that may: equal labels lie on either side.
    let bounds = finals.map(|f| {
        let last = f.candidates.checked_sub(1).and_then(|i| sorted.get(i).or(sorted.last()));
        (sorted.get(f.candidates).copied(), last.copied())
    });
    let Some((out, last)) = bounds else { return vec![(false, false); labels.len()] };
    let both = |(label, trial): (&Option<f64>, &Trial)| {
        let Some(label) = label else { return (false, false) };
        let must = out.is_none_or(|out| *label < out * (1.0 - ROUNDING));
        let may = last.is_some_and(|last| *label <= last * (1.0 + ROUNDING));
        (must && (trial.valid() || trial.outcome == "refused"), may)
    };
    labels.iter().zip(&search.trials).map(both).collect()
}

/// Checks the further rounds of a search. Returns how many rounds each measurement must have.
pub fn check(search: &Search, place: &str, checks: &mut Checks) -> Due {
    let planned = search.protocol.rounds;
    let mut due = Due {
        trials: vec![planned; search.trials.len()],
        controls: vec![planned; search.controls.len()],
        rounds: 0,
    };
    let metric = Metric::of_selection(&search.selection.metric);
    let (remeasure, finals) = (&search.protocol.remeasure, &search.protocol.finals);
    let Some(metric) = metric.filter(|_| remeasure.is_some() || finals.is_some()) else {
        return due;
    };
    let again = remeasure.as_ref().map_or(0, |further| further.rounds);
    let most = finals.as_ref().map_or(0, |finals| finals.rounds).max(again).min(100);
    for round in planned..most {
        let mut must = false;
        // No spread is beyond an infinite limit.
        let limit =
            remeasure.as_ref().filter(|_| round < again).map_or(f64::INFINITY, |f| f.spread);
        let by = [search.protocol.quantile(), limit];
        let listed = search.rounds.get(round).map(|r| &r.order);
        let final_ones = finalists(search, round, metric);
        for (index, (trial, last)) in search.trials.iter().zip(final_ones).enumerate() {
            let (needs, may) = wide(trial, due.trials[index], metric, by);
            let (needs, may) = (needs || last.0, may || last.1);
            must |= needs;
            let measured = listed.is_some_and(|order| order.contains(&index));
            checks.that(Rule::SearchFurther, if measured { may } else { !needs }, || {
                let was = if measured { "was" } else { "wasn't" };
                format!("{place} trial {index}: {was} measured in round {round}, limit {limit}")
            });
            due.trials[index] += usize::from(measured);
        }
        for (index, control) in search.controls.iter().enumerate() {
            let (needs, may) = wide(control, due.controls[index], metric, by);
            must |= needs;
            let has = control.rounds.len() > due.controls[index];
            checks.that(Rule::SearchFurther, if has { may } else { !needs }, || {
                let name = control.name.as_deref().unwrap_or("?");
                format!("{place} control {name}: its round {round}")
            });
            due.controls[index] += usize::from(needs || (may && has));
        }
        if !must && listed.is_none() {
            break;
        }
        due.rounds += 1;
    }
    due
}

/// Checks what concerns all searches of a record.
pub fn check_all(record: &Record, checks: &mut Checks) {
    let labels: Vec<&Search> = record.current_labels().collect();
    alternate("search", &record.searches.iter().collect::<Vec<_>>(), checks);
    alternate("labels", &labels, checks);
    for search in &record.searches {
        disturbed(record, search, checks);
    }
}

/// Where rounds of cases alternate, no round begins before every case's round before it.
fn alternate(folder: &str, searches: &[&Search], checks: &mut Checks) {
    let together: Vec<&&Search> = searches.iter().filter(|s| s.protocol.interleaved).collect();
    let most = together.iter().map(|s| s.rounds.len()).max().unwrap_or(0);
    let begun = |round: usize| {
        together.iter().filter_map(move |s| Some((s.rounds.get(round)?.begun()?, &s.case.id)))
    };
    for round in 1..most {
        let (Some(last), Some(first)) = (begun(round - 1).max(), begun(round).min()) else {
            continue;
        };
        checks.that(Rule::SearchAlternate, first.0 >= last.0, || {
            format!(
                "{folder}: round {round} of {} before round {} of {}",
                first.1,
                round - 1,
                last.1
            )
        });
    }
}

/// A training case whose candidates spread too far in the end is recorded before the freeze.
fn disturbed(record: &Record, search: &Search, checks: &mut Checks) {
    let metric = Metric::of_selection(&search.selection.metric);
    let (Some(further), Some(metric)) = (&search.protocol.remeasure, metric) else { return };
    let valid = search.trials.iter().filter(|t| t.valid());
    let spreads: Vec<f64> =
        valid.filter_map(|t| spread(&t.rounds, metric, search.protocol.quantile())).collect();
    let Some(typical) = median(&spreads) else { return };
    let id = &search.case.id;
    let stated = record.changed("spread", Some(id));
    let holds = stated || typical <= further.spread * (1.0 + ROUNDING);
    checks.that(Rule::SearchDisturbed, holds, || {
        format!(
            "search/{id}: the rounds of its candidates spread by {typical}, which no entry says"
        )
    });
    if stated {
        checks.note(Rule::SearchDisturbed, format!("{id} was disturbed: a spread of {typical:.3}"));
    }
}
