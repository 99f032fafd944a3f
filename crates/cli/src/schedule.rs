//! From schedule options to a target, a policy and a candidate space.

use crate::args::{ScheduleArgs, Switch};
use crate::error::CliError;
use std::path::Path;
use std::sync::Arc;
use tilewright_engine::{Plan, PlanOptions, Resources};
use tilewright_ir::Program;
use tilewright_ir::analysis;
use tilewright_ir::facts::Family;
use tilewright_plan::policy::whole_launch::advice::Guard;
use tilewright_plan::profile::{Standing, shipped_default};
use tilewright_plan::{
    Policy, Profile, Request, ResourceTable, SpaceOptions, Target, guarded, policy,
};

/// Longest profile file that is read, in bytes.
const MAX_PROFILE: u64 = 1 << 20;

/// Longest resource table that is read, in bytes.
const MAX_RESOURCES: u64 = 64 << 20;

/// A plan, with what is to be said of the profile that it was made with.
pub struct Planned {
    /// The plan to run.
    pub plan: Plan,
    /// Whether the profile is a default; `None` without a profile.
    pub standing: Option<Standing>,
    /// The model's pick beside the plan of the target's default policy, where there is one.
    pub guard: Option<Guard>,
    /// Whether the guard of a default profile kept the incumbent: `plan` is the incumbent's.
    pub kept: bool,
}

impl Planned {
    /// What is to be said of the profile, a line each.
    pub fn notes(&self) -> String {
        let mut out = String::new();
        if let Some(standing) = &self.standing {
            out.push_str(&format!("profile, {standing}\n"));
        }
        if let Some(guard) = &self.guard {
            let verdict = match (self.kept, guard.accepted, guard.gain > 1.0) {
                (true, ..) => "the incumbent is kept and planned",
                (_, true, _) => "the winner replaces the incumbent",
                (_, _, true) => "keep the incumbent unless both are measured",
                (_, _, false) => "the winner is the incumbent",
            };
            out.push_str(&format!(
                "guard: predicted gain {:.3} over the default policy's plan, margin {:.3}: \
                 {verdict}\n",
                guard.gain, guard.margin
            ));
        }
        out
    }
}

/// Plans a program. Without a policy and a profile, a shipped profile that is a default on the
/// target is used, behind its guard; else the target's default policy.
///
/// # Errors
/// Unknown policies, malformed profiles, resource tables and blocks, profiles of another target;
/// everything that planning refuses.
///
/// `compiler` is the device's, whose rows of a resource table come first.
pub fn make(
    args: &ScheduleArgs,
    program: &Program,
    target: &Target,
    compiler: Option<String>,
) -> Result<Planned, CliError> {
    let rows = !matches!(analysis::facts(program).family, Family::Matrix(_));
    let asked = args.profile.as_deref().map(read_profile).transpose()?;
    let default = match (&args.policy, &asked) {
        (None, None) => shipped_default(target, rows),
        _ => None,
    };
    let profile = asked.as_ref().or(default.as_ref());
    let policy = choose_policy(args, profile, rows, target)?;
    let resources = match &args.resources {
        Some(path) => Some(Resources { table: Arc::new(read_resources(path)?), compiler }),
        None => Resources::shipped(target, compiler),
    };
    let with = |policy: Arc<dyn Policy>| -> Result<Plan, CliError> {
        let options = PlanOptions {
            policy: Some(policy),
            space: space(args)?,
            resources: resources.clone(),
            ..PlanOptions::default()
        };
        Ok(Plan::new(program, target, &options)?)
    };
    let mut plan = with(policy.clone())?;
    let (mut guard, mut kept) = (None, false);
    if plan.ranking.advice.is_some() {
        let name = policy::default_name(target, rows);
        let incumbent = with(policy::by_name(name, None).map_err(CliError::usage)?.into())?;
        let request = Request::new(&plan.program, &plan.facts).options(space(args)?);
        let (ranking, other) = (&plan.ranking, &incumbent.ranking);
        guard = guarded::guard(&request, target, policy.as_ref(), ranking, other)
            .map_err(CliError::usage)?;
        // An asked-for profile has its way.
        if default.is_some() && guard.is_none_or(|g| !g.accepted) {
            kept = true;
            plan = incumbent;
        }
    }
    let standing = profile.map(|p| p.standing(target));
    Ok(Planned { plan, standing, guard, kept })
}

fn choose_policy(
    args: &ScheduleArgs,
    profile: Option<&Profile>,
    rows: bool,
    target: &Target,
) -> Result<Arc<dyn Policy>, CliError> {
    if let Some(profile) = profile {
        profile.check_target(&target.name).map_err(CliError::usage)?;
    }
    let name = match (&args.policy, profile) {
        (Some(name), _) => name.as_str(),
        (None, Some(profile)) => profile.policy(),
        (None, None) => policy::default_name(target, rows),
    };
    Ok(policy::by_name(name, profile).map_err(CliError::usage)?.into())
}

fn read_profile(argument: &str) -> Result<Profile, CliError> {
    if Profile::is_string(argument) {
        return Profile::from_string(argument).map_err(CliError::usage);
    }
    let text = read_text(Path::new(argument), "profile", MAX_PROFILE)?;
    Profile::from_json(&text).map_err(|e| CliError::Usage(format!("{argument}: {e}")))
}

fn read_resources(path: &Path) -> Result<ResourceTable, CliError> {
    let text = read_text(path, "resource table", MAX_RESOURCES)?;
    ResourceTable::parse(&text).map_err(|e| CliError::Usage(format!("{}: {e}", path.display())))
}

/// Reads a file of at most `most` bytes that is to be a `what`.
fn read_text(path: &Path, what: &str, most: u64) -> Result<String, CliError> {
    let shown = path.display();
    let io = |e: std::io::Error| CliError::Io(format!("can't read {shown}: {e}"));
    let metadata = std::fs::metadata(path).map_err(io)?;
    if !metadata.is_file() || metadata.len() > most {
        return Err(CliError::Usage(format!(
            "{shown} is no {what}: a {what} is a file of at most {most} bytes"
        )));
    }
    let bytes = std::fs::read(path).map_err(io)?;
    String::from_utf8(bytes).map_err(|_| CliError::Usage(format!("{shown} is not UTF-8 text")))
}

fn space(args: &ScheduleArgs) -> Result<SpaceOptions, CliError> {
    Ok(SpaceOptions {
        blocks: args.blocks.as_deref().map(parse_blocks).transpose()?,
        threads: args.threads.clone(),
        vector: args.vector.clone(),
        unroll: args.unroll.clone(),
        pack: args.pack.clone(),
        cache: args.cache.map(|switch| switch == Switch::On),
        cpu_threads: args.cpu_threads,
        ..SpaceOptions::default()
    })
}

/// Parses `32,32,32;64,64,32`.
fn parse_blocks(text: &str) -> Result<Vec<[u64; 3]>, CliError> {
    let malformed = |part: &str| {
        CliError::Usage(format!(
            "malformed block `{part}`: blocks are BM,BN,BK joined by semicolons, as in \
             \"32,32,32;64,64,32\""
        ))
    };
    text.split(';')
        .map(|part| {
            let sizes: Vec<u64> = part
                .split(',')
                .map(|n| n.trim().parse().map_err(|_| malformed(part)))
                .collect::<Result<_, _>>()?;
            <[u64; 3]>::try_from(sizes).map_err(|_| malformed(part))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_parse_or_say_how() {
        assert_eq!(parse_blocks("32,32,32;64, 64,32").unwrap(), [[32, 32, 32], [64, 64, 32]]);
        for bad in ["", "32", "32,32", "32,32,32,32", "32,32,x", "32,32,32;", "-8,8,8"] {
            assert!(parse_blocks(bad).is_err(), "{bad}");
        }
    }
}
