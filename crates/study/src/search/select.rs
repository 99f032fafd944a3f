//! Labels, and the winner measured afresh.

use super::Running;
use super::check::{checked_trial, not_compiled};
use crate::bench::Bench;
use crate::error::StudyError;
use crate::record::{Fault, Outcome, SearchControl, Selection, Trial, label};
use crate::spec::Metric;

/// Share of the floor under which a label is refused.
const FLOOR_SHARE: f64 = 0.9;

/// Why a measurement without samples of the selection metric has no label.
const NO_SAMPLES: &str = "it has no samples of the selection metric";

/// Sets the label of a trial whose rounds are whole, and refuses impossible ones.
pub(super) fn finish_trial(trial: &mut Trial, metric: Metric, q: f64, floor_us: f64) {
    if trial.outcome != Outcome::Valid {
        return;
    }
    trial.label_us = label(&trial.rounds, metric, q);
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

/// Sets the label of a control whose rounds are whole.
pub(super) fn finish_control(control: &mut SearchControl, metric: Metric, q: f64) {
    if control.outcome != Outcome::Valid {
        return;
    }
    control.label_us = label(&control.rounds, metric, q);
    if control.label_us.is_none() {
        control.outcome = Outcome::Failed;
        control.error = Some(Fault::new(NO_SAMPLES));
    }
}

/// Chooses the winner of labelled trials and measures it afresh.
pub(super) fn select(bench: &mut Bench<'_>, case: &Running<'_>) -> Result<Selection, StudyError> {
    let metric = bench.study.metric;
    let value = |c: usize| match metric {
        Metric::Model => case.candidates.list.get(c).map(|candidate| candidate.score),
        _ => case.trials.get(c).and_then(|t| t.label_us),
    };
    // Equal scores go to the ranking's first, as its own pick does; equal labels to the first measured.
    let ranked: Vec<usize> = (0..case.candidates.list.len()).collect();
    let order = match metric {
        Metric::Model => &ranked[..],
        _ => case.rounds.first().map_or(&[][..], |r| &r.order),
    };
    let winner = winner(order, |c| {
        let valid = case.trials.get(c).is_some_and(|t| t.outcome == Outcome::Valid);
        value(c).filter(|_| valid)
    });
    let Some(winner) = winner else {
        return Ok(Selection { metric, winner: None, fresh: None });
    };
    bench.open(case.task.case, case.seed, case.protocol.sets)?;
    let plan = case.candidates.list[winner].plan;
    let mut compiled = bench.compile(&[[winner, plan]], 1, true)?;
    let one = compiled.remove(&winner).unwrap_or_else(|| Err(not_compiled()));
    let mut fresh = checked_trial(bench, &case.subject, case.seed, winner, one)?;
    if fresh.outcome == Outcome::Valid {
        match bench.measure(winner, &case.protocol)? {
            Ok(samples) => fresh.rounds.push(samples),
            Err((outcome, fault)) => (fresh.outcome, fresh.error) = (outcome, Some(fault)),
        }
    }
    finish_trial(&mut fresh, metric, case.protocol.quantile(), case.floor.floor_us);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Samples;

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
        finish_trial(&mut slow, Metric::Batch, 0.5, 10.0);
        assert_eq!((slow.outcome, slow.label_us), (Outcome::Valid, Some(9.1)));
        let mut fast = trial(8_900);
        finish_trial(&mut fast, Metric::Batch, 0.5, 10.0);
        assert_eq!((fast.outcome, fast.label_us), (Outcome::Refused, Some(8.9)));
        let mut none = trial(8_900);
        finish_trial(&mut none, Metric::Single, 0.5, 10.0);
        assert_eq!(none.outcome, Outcome::Failed);
    }
}
