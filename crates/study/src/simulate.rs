//! What the verdict rule is worth: replays of a whole cohort, simulated from recorded A/A rounds.
//!
//! A recorded case holds rounds in which one plan was measured as several paths. A simulated
//! replay draws blocks of consecutive rounds (so that disturbances that last longer than a round
//! keep their length), gives the paths the roles of incumbent, incumbent-again and challenger in
//! a random order for each block, and applies the rule. Whatever it then calls faster or slower
//! is false. With a gain put on one challenger it shows how often a real one is found.

use crate::stats::{PairedRounds, Verdict, VerdictRule, verdicts};
use serde::{Deserialize, Serialize};
use tilewright_ir::oracle::Random;

/// Recorded A/A rounds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Recorded {
    /// The machine, in words.
    pub machine: String,
    /// How they were recorded.
    pub how: String,
    /// Cases.
    pub cases: Vec<RecordedCase>,
}

/// One plan, measured as several paths in every round.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RecordedCase {
    /// The case's id.
    pub case: String,
    /// Microseconds of each path, at least three a round.
    pub rounds: Vec<Vec<f64>>,
}

/// What to simulate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Simulation {
    /// Replays of the whole cohort.
    pub replays: usize,
    /// Cases of the cohort.
    pub cases: usize,
    /// Rounds of a replay.
    pub rounds: usize,
    /// Consecutive rounds that are drawn together.
    pub block: usize,
    /// Gain of the first case's challenger: 1.05 is 5 % faster; 1 is none.
    pub gain: f64,
    /// Seed.
    pub seed: u64,
}

/// What came out.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Outcome {
    /// Replays in which some case without a gain was called a win.
    pub false_winner: f64,
    /// Replays in which some case without a gain was called a loss.
    pub false_loser: f64,
    /// Replays in which the case with the gain was called a win.
    pub found: f64,
}

/// Simulates. Shares are of the replays. `None` if a recorded case has no round, or a round fewer
/// than three paths.
pub fn simulate(recorded: &Recorded, plan: &Simulation, rule: &VerdictRule) -> Option<Outcome> {
    let usable = |c: &RecordedCase| !c.rounds.is_empty() && c.rounds.iter().all(|r| r.len() >= 3);
    if recorded.cases.is_empty() || !recorded.cases.iter().all(usable) {
        return None;
    }
    let mut random = Random::new(plan.seed);
    let mut counts = [0usize; 3];
    for _ in 0..plan.replays {
        let cohort: Vec<PairedRounds> = (0..plan.cases)
            .map(|case| {
                let source = random.below(recorded.cases.len() as u64) as usize;
                let gain = if case == 0 { plan.gain } else { 1.0 };
                draw(&recorded.cases[source], plan, gain, &mut random)
            })
            .collect();
        let verdicts = verdicts(&cohort, rule);
        let null = if plan.gain == 1.0 { 0 } else { 1 };
        let any = |wanted: Verdict| verdicts.iter().skip(null).any(|v| v.2 == wanted);
        counts[0] += usize::from(any(Verdict::Win));
        counts[1] += usize::from(any(Verdict::Loss));
        counts[2] += usize::from(verdicts.first().is_some_and(|v| v.2 == Verdict::Win));
    }
    let share = |count: usize| count as f64 / plan.replays.max(1) as f64;
    Some(Outcome {
        false_winner: share(counts[0]),
        false_loser: share(counts[1]),
        found: share(counts[2]),
    })
}

fn draw(
    recorded: &RecordedCase,
    plan: &Simulation,
    gain: f64,
    random: &mut Random,
) -> PairedRounds {
    let mut out = PairedRounds::default();
    let total = recorded.rounds.len();
    while out.incumbent.len() < plan.rounds {
        let first = random.below(total as u64) as usize;
        // Roles: three different paths, in a random order.
        let paths = recorded.rounds[first].len();
        let mut roles: Vec<usize> = (0..paths).collect();
        for i in 0..3 {
            let other = i + random.below((paths - i) as u64) as usize;
            roles.swap(i, other);
        }
        for step in 0..plan.block.max(1) {
            if out.incumbent.len() == plan.rounds {
                break;
            }
            let round = &recorded.rounds[(first + step) % total];
            let time = |role: usize| round.get(roles[role]).copied();
            out.incumbent.push(time(0));
            out.again.push(time(1));
            out.challenger.push(time(2).map(|t| t / gain));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noisy(sigma: f64) -> Recorded {
        let mut random = Random::new(3);
        // The sum of four uniform numbers is close to normal.
        let mut noise = || (0..4).map(|_| random.unit()).sum::<f64>() * sigma;
        let rounds = (0..60).map(|_| (0..3).map(|_| 10.0 * noise().exp()).collect()).collect();
        let cases = vec![RecordedCase { case: "x".to_string(), rounds }];
        Recorded { machine: String::new(), how: String::new(), cases }
    }

    #[test]
    fn a_gain_is_found_in_small_noise_and_not_in_large() {
        let plan = Simulation { replays: 300, cases: 3, rounds: 14, block: 3, gain: 1.05, seed: 1 };
        let rule = VerdictRule::default();
        assert!(simulate(&noisy(0.005), &plan, &rule).unwrap().found > 0.9);
        assert!(simulate(&noisy(0.2), &plan, &rule).unwrap().found < 0.2);
        let none = Simulation { gain: 1.0, ..plan };
        assert!(simulate(&noisy(0.2), &none, &rule).unwrap().false_winner < 0.05);
        assert_eq!(simulate(&Recorded { cases: vec![], ..noisy(0.1) }, &plan, &rule), None);
    }
}
