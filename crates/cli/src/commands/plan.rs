//! `plan`: ranks the candidates for a target.

use super::{print, print_json};
use crate::args::{PlanArgs, ScheduleArgs};
use crate::error::CliError;
use crate::machine;
use crate::request::Request;
use crate::schedule::{self, Planned};
use crate::table::{Table, digits};
use tilewright_engine::Plan;
use tilewright_plan::PlanError;
use tilewright_plan::json::PlanObject;
use tilewright_plan::ranking::describe;

/// Candidates shown without `--all`.
const TOP: usize = 5;

/// Runs the command.
///
/// # Errors
/// Usage errors; no legal candidate.
pub fn run(args: &PlanArgs) -> Result<(), CliError> {
    let request = Request::new(&args.op)?;
    let planned = make(&request, &args.schedule, &args.target, None)?;
    let plan = &planned.plan;
    if let Some(reason) = &plan.general {
        return Err(CliError::usage(PlanError::Family(reason.clone())));
    }
    let top = if args.all { None } else { Some(TOP) };
    if args.json {
        let names = [request.op.as_str(), request.shape.as_str(), request.dtype.name()];
        let (standing, guard) = (planned.standing.as_ref(), planned.guard.as_ref());
        let mut object = PlanObject::new(&plan.ranking, names, top, standing, guard);
        (object.key, object.resources) = (plan.key().to_string(), plan.resources_object());
        print_json(&object)?;
    } else {
        print(&text(&request, &planned, args.all))?;
    }
    // A ranking in which nothing is legal was printed, and is an error all the same.
    plan.ranking.winner().map(|_| ()).map_err(CliError::usage)
}

/// Plans a request for a target by name.
///
/// # Errors
/// Unknown target; everything that planning refuses.
pub fn make(
    request: &Request,
    schedule: &ScheduleArgs,
    target: &str,
    isa: Option<&str>,
) -> Result<Planned, CliError> {
    let target = machine::target(target, isa, schedule.cpu_threads)?;
    schedule::make(schedule, &request.program, &target, None)
}

fn text(request: &Request, planned: &Planned, all: bool) -> String {
    let plan = &planned.plan;
    let ranking = &plan.ranking;
    let mut out = String::new();
    match ranking.chosen() {
        Some(index) => out.push_str(&format!(
            "{} {} {} on {}: {}\n\n",
            request.op,
            request.shape,
            request.dtype,
            ranking.target,
            plan.describe(index)
        )),
        None => out.push_str(&format!(
            "{} {} {} on {}: no legal candidate\n\n",
            request.op, request.shape, request.dtype, ranking.target
        )),
    }
    if all {
        out.push_str(&every_candidate(plan));
        if let Some(advice) = &ranking.advice {
            out.push_str(&format!("\n{advice}\n"));
        }
    } else {
        out.push_str(&ranking.explain(TOP))
    }
    let uses = ranking.chosen().and_then(|best| plan.uses(best).or_else(|| plan.bound(best)));
    if let Some(uses) = uses {
        out.push_str(&format!("resources: {uses}\n"));
    }
    out.push_str(&planned.notes());
    if !all && ranking.candidates.len() > TOP {
        out.push_str("--all shows every candidate, illegal ones with their rule\n");
    }
    out
}

/// Every candidate: the legal ones in rank order, then the others in the order of the space.
pub fn every_candidate(plan: &Plan) -> String {
    let ranking = &plan.ranking;
    let unit = ranking.unit.name();
    let mut table =
        Table::new(&["rank", &format!("score ({unit})"), "waves", "<plan", "<rejected by"]);
    for (rank, &index) in ranking.order.iter().enumerate() {
        let candidate = &ranking.candidates[index];
        let Ok(score) = &candidate.verdict else { continue };
        table.row(vec![
            (rank + 1).to_string(),
            digits(score.kernel, 7),
            digits(score.waves, 4),
            describe(&candidate.mapping),
        ]);
    }
    for candidate in &ranking.candidates {
        let Err(rejection) = &candidate.verdict else { continue };
        table.row(vec![
            "-".to_string(),
            "-".to_string(),
            "-".to_string(),
            describe(&candidate.mapping),
            rejection.to_string(),
        ]);
    }
    format!(
        "{} of {} candidates are legal; policy {}\n\n{}",
        ranking.order.len(),
        ranking.candidates.len(),
        ranking.policy,
        table.render()
    )
}
