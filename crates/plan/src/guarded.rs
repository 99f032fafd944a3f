//! A model's winner beside the incumbent: the plan that would be used without the model.

use tilewright_ir::facts::Family;

use crate::policy::whole_launch::advice::Guard;
use crate::policy::{CandidateView, Policy, check_score};
use crate::problem::{MatrixProblem, Problem, RowProblem};
use crate::ranking::{Candidate, Ranking, cpu_threads};
use crate::request::{PlanError, Request};
use crate::target::Target;

/// Whether the winner of a ranking by `policy` should replace the incumbent, which is the winner of
/// another policy's ranking of the same request. `None` if the policy gives no advice or nothing
/// is legal.
///
/// The incumbent's own mapping is priced: of a GPU's matrix blocks each policy keeps the
/// distribution that it likes best, so it needn't be among the candidates of this ranking.
///
/// # Errors
/// The policy doesn't price the incumbent.
pub fn guard(
    request: &Request<'_>,
    target: &Target,
    policy: &dyn Policy,
    ranking: &Ranking,
    incumbent: &Ranking,
) -> Result<Option<Guard>, PlanError> {
    let winner = incumbent.chosen().and_then(|i| incumbent.candidates.get(i));
    let (Some(advice), Some(winner)) = (&ranking.advice, winner) else { return Ok(None) };
    let prediction = price(request, target, policy, winner)?;
    let faster = |i: &&usize| {
        let candidate = ranking.candidates.get(**i);
        candidate.and_then(|c| c.verdict.as_ref().ok()).is_some_and(|s| s.kernel < prediction)
    };
    let gain = prediction / advice.prediction;
    let first = ranking.chosen().and_then(|i| ranking.candidates.get(i));
    let same = first.is_some_and(|c| c.mapping == winner.mapping);
    Ok(Some(Guard {
        incumbent: winner.mapping,
        rank: ranking.order.iter().filter(faster).count(),
        prediction,
        gain,
        margin: advice.margin,
        accepted: gain > advice.margin && !same,
    }))
}

/// A candidate's kernel score by a policy.
fn price(
    request: &Request<'_>,
    target: &Target,
    policy: &dyn Policy,
    candidate: &Candidate,
) -> Result<f64, PlanError> {
    let (rows, matrix);
    let problem = match &request.facts.family {
        Family::Rows(facts) => {
            rows = RowProblem::new(request, facts)?;
            Problem::Rows(&rows)
        }
        Family::Matrix(facts) => {
            matrix = MatrixProblem::new(request, facts)?;
            Problem::Matrix(&matrix)
        }
        Family::Other(reason) => return Err(PlanError::Family(reason.clone())),
    };
    let view = CandidateView {
        target,
        problem,
        mapping: &candidate.mapping,
        facts: &candidate.facts,
        cpu_threads: cpu_threads(target, &request.options)?,
    };
    Ok(check_score(policy.name(), policy.score(&view)?)?.kernel)
}
