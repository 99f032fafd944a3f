//! From schedule options to a target, a policy and a candidate space.

use crate::args::{ScheduleArgs, Switch};
use crate::error::CliError;
use std::path::Path;
use std::sync::Arc;
use tilewright_engine::PlanOptions;
use tilewright_ir::Program;
use tilewright_ir::analysis;
use tilewright_ir::facts::Family;
use tilewright_plan::{Policy, Profile, SpaceOptions, Target, policy};

/// Longest profile file that is read, in bytes.
const MAX_PROFILE: u64 = 1 << 20;

/// The options of a plan.
///
/// # Errors
/// Unknown policies, malformed profiles and blocks, profiles of another target.
pub fn plan_options(
    args: &ScheduleArgs,
    program: &Program,
    target: &Target,
) -> Result<PlanOptions, CliError> {
    Ok(PlanOptions {
        policy: Some(choose_policy(args, program, target)?),
        space: space(args)?,
        ..PlanOptions::default()
    })
}

fn choose_policy(
    args: &ScheduleArgs,
    program: &Program,
    target: &Target,
) -> Result<Arc<dyn Policy>, CliError> {
    let profile = args.profile.as_deref().map(read_profile).transpose()?;
    if let Some(profile) = &profile {
        profile.check_target(&target.name).map_err(CliError::usage)?;
    }
    let name = match (&args.policy, &profile) {
        (Some(name), _) => name.as_str(),
        (None, Some(profile)) => profile.policy(),
        (None, None) => {
            let rows = !matches!(analysis::facts(program).family, Family::Matrix(_));
            policy::default_name(target, rows)
        }
    };
    Ok(policy::by_name(name, profile.as_ref()).map_err(CliError::usage)?.into())
}

fn read_profile(argument: &str) -> Result<Profile, CliError> {
    if Profile::is_string(argument) {
        return Profile::from_string(argument).map_err(CliError::usage);
    }
    let path = Path::new(argument);
    let io = |e: std::io::Error| CliError::Io(format!("can't read {argument}: {e}"));
    let metadata = std::fs::metadata(path).map_err(io)?;
    if !metadata.is_file() || metadata.len() > MAX_PROFILE {
        return Err(CliError::Usage(format!(
            "{argument} is no profile: a profile is a file of at most {MAX_PROFILE} bytes"
        )));
    }
    let bytes = std::fs::read(path).map_err(io)?;
    let text = String::from_utf8(bytes)
        .map_err(|_| CliError::Usage(format!("{argument} is not UTF-8 text")))?;
    Profile::from_json(&text).map_err(|e| CliError::Usage(format!("{argument}: {e}")))
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
