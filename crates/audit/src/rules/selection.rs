//! What a search chose.

use super::search::measured;
use crate::math::first_smallest;
use crate::record::Search;
use crate::verdict::{Checks, Rule};

/// Checks incumbent and winner of a search.
pub fn check(search: &Search, floor: Option<f64>, place: &str, checks: &mut Checks) {
    let incumbent = first_smallest(search.candidates.iter().map(|c| c.score));
    checks.that(Rule::SearchIncumbent, incumbent == Some(search.incumbent), || {
        format!("{place}: the incumbent is {}, not {incumbent:?}", search.incumbent)
    });
    let finite = search.candidates.iter().all(|c| c.score.is_finite() && c.score >= 0.0);
    checks.that(Rule::SearchIncumbent, finite, || format!("{place}: a score below 0"));
    winner(search, floor, place, checks);
}

fn winner(search: &Search, floor: Option<f64>, place: &str, checks: &mut Checks) {
    let selection = &search.selection;
    let known = matches!(selection.metric.as_str(), "batch" | "single" | "device" | "model");
    checks.that(Rule::SearchWinner, known, || {
        format!("{place}: the selection metric {:?}", selection.metric)
    });
    // Ties go to the first in the order of round 0, those of scores to the first of the ranking.
    let order: Vec<usize> = match selection.metric.as_str() {
        "model" => (0..search.candidates.len()).collect(),
        _ => search.rounds.first().map_or_else(Vec::new, |r| r.order.clone()),
    };
    let key = |candidate: &usize| {
        let trial = search.trials.get(*candidate).filter(|t| t.valid());
        match (trial, selection.metric.as_str()) {
            (None, _) => f64::NAN,
            (Some(_), "model") => search.candidates.get(*candidate).map_or(f64::NAN, |c| c.score),
            (Some(trial), _) => trial.label_us.unwrap_or(f64::NAN),
        }
    };
    let due = first_smallest(order.iter().map(key)).and_then(|i| order.get(i).copied());
    let Some(fresh) = &selection.fresh else {
        checks.that(Rule::SearchWinner, due.is_none() && selection.winner.is_none(), || {
            format!("{place}: candidate {due:?} wins, but wasn't measured afresh")
        });
        return;
    };
    // A winner that failed afresh is none; whose failure it was must still be right.
    let named = selection.winner.or(fresh.candidate);
    checks.that(Rule::SearchWinner, due.is_some() && named == due, || {
        format!("{place}: the winner is {named:?}, not {due:?}")
    });
    checks.that(Rule::SearchWinner, fresh.valid() == selection.winner.is_some(), || {
        format!("{place}: the fresh measurement is {}", fresh.outcome)
    });
    let place = || format!("{place} fresh");
    measured(search, fresh, 1, floor, &place, checks);
    let trial = due.and_then(|due| search.trials.get(due));
    if let (Some(trial), true) = (trial, fresh.valid()) {
        let same = fresh.kernel_sha256 == trial.kernel_sha256
            && fresh.artifact_sha256 == trial.artifact_sha256
            && fresh.kernel_sha256.is_some();
        checks.that(Rule::SearchWinner, same, || {
            format!("{}: another kernel than the trial's", place())
        });
    }
}
