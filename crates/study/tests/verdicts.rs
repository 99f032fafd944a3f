//! The verdict rule on recorded noise: 10,000 simulated replays of a whole cohort.

use tilewright_study::simulate::{Recorded, Simulation, simulate};
use tilewright_study::stats::VerdictRule;

const REPLAYS: usize = 10_000;

/// As many cases as the hold-out of the CPU study.
const CASES: usize = 48;

fn recorded() -> Recorded {
    serde_json::from_str(include_str!("data/aa_rounds.json")).unwrap()
}

fn plan(gain: f64) -> Simulation {
    Simulation { replays: REPLAYS, cases: CASES, rounds: 14, block: 3, gain, seed: 20_260_905 }
}

#[test]
fn the_record_is_real_noise() {
    let recorded = recorded();
    assert!(recorded.cases.len() >= 4);
    for case in &recorded.cases {
        assert!(case.rounds.len() >= 40, "{}", case.case);
        let distinct = case.rounds.iter().any(|r| r.windows(2).any(|w| w[0] != w[1]));
        assert!(distinct, "{}: paths without noise", case.case);
    }
}

#[test]
fn a_false_winner_is_rare_in_whole_cohorts() {
    let outcome = simulate(&recorded(), &plan(1.0), &VerdictRule::default()).unwrap();
    println!("{outcome:?}");
    assert!(outcome.false_winner <= 0.01, "{outcome:?}");
    assert!(outcome.false_loser <= 0.01, "{outcome:?}");
}

#[test]
fn a_gain_of_five_percent_is_found() {
    let outcome = simulate(&recorded(), &plan(1.05), &VerdictRule::default()).unwrap();
    println!("{outcome:?}");
    assert!(outcome.found >= 0.90, "{outcome:?}");
    assert!(outcome.false_winner <= 0.01, "{outcome:?}");
}

#[test]
fn a_rule_without_a_floor_is_caught_by_the_same_test() {
    // The test can fail: with a floor of zero every difference counts.
    let loose = VerdictRule { quantile: 0.0, ..VerdictRule::default() };
    let outcome = simulate(&recorded(), &plan(1.0), &loose).unwrap();
    assert!(outcome.false_winner > 0.5, "{outcome:?}");
}
