//! A program of your own, planned with a policy of your own, checked against the oracle.
//!
//! `cargo run --release --example own_program`

use std::sync::Arc;
use tilewright::check::{LaunchValues, run_checked};
use tilewright::policy::{CandidateFacts, CandidateView, PolicyError, Score, Unit};
use tilewright::{Policy, Program, Task, inputs};

/// Squared distance of each row of x from one point.
const DISTANCE: &str = "\
program distance {
  dim rows: symbolic max 1000000
  dim cols: symbolic max 1000000
  in x: f32[rows, cols]
  in point: f32[cols]
  out y: f32[rows]
  axis j: cols
  grid r: rows step 1

  %x = load x[r, :j]
  %p = load point[:j]
  %d = sub %x, %p
  %sq = mul %d, %d
  %s = reduce add %sq over j
  store y[r], %s
}
";

/// Prefers few rounds of the column loops, whatever else it costs.
struct FewRounds;

impl Policy for FewRounds {
    fn name(&self) -> &str {
        "few-rounds"
    }
    fn unit(&self) -> Unit {
        Unit::Other("rounds".to_string())
    }
    fn parameters(&self) -> String {
        String::new()
    }
    fn score(&self, candidate: &CandidateView<'_>) -> Result<Score, PolicyError> {
        let CandidateFacts::Rows(counts) = candidate.facts else {
            return Err(PolicyError::Unsupported {
                policy: self.name().to_string(),
                what: "anything but rows".to_string(),
            });
        };
        let rounds = counts.scalar_rounds as f64;
        Ok(Score { program: rounds, waves: 1.0, kernel: rounds })
    }
}

fn main() -> Result<(), tilewright::Error> {
    let cpu = tilewright::cpu()?;
    let mut program = tilewright::parse(DISTANCE)?;
    program.bind("cols", 300)?;

    let planned =
        Task::new(program.clone()).size("rows", 64).policy(Arc::new(FewRounds)).plan(&cpu)?;
    println!("{}", planned.explain());
    let distance = planned.compile()?;

    let x = vec![2.0f32; 3 * 300];
    let point = vec![0.5f32; 300];
    let mut y = vec![0.0f32; 3];
    distance.run(&[&x, &point], &mut y)?;
    println!("three distances: {y:?}");

    check(&distance, &program)
}

/// Random data, NaN-poisoned outputs between guard zones, every element against the oracle.
fn check(distance: &tilewright::Compiled, program: &Program) -> Result<(), tilewright::Error> {
    let values = LaunchValues { dims: vec![("rows".to_string(), 1000)], scalars: vec![] };
    let contents = inputs::random(program, &values, 1)?;
    let report = run_checked(distance, &values, contents.inputs, contents.initial)?.report;
    for output in &report.outputs {
        println!(
            "checked {} elements of `{}`: largest error is {:.0} % of its bound",
            output.comparison.elements,
            output.tensor,
            output.comparison.worst_ratio * 100.0
        );
    }
    Ok(())
}
