//! `tilewright audit`: derives a record again from its raw samples. Needs no device.

use crate::commands::{print, print_json};
use crate::error::CliError;
use clap::Args;
use std::path::PathBuf;
use tilewright_audit::{Audit, Limits, Outcome, audit};

/// `audit`.
#[derive(Args, Debug)]
pub struct AuditArgs {
    /// The directory of a study's record, or a Kernel Tuner cache or T4 file (gzip or not).
    pub path: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Runs it.
///
/// # Errors
/// A rule fails (exit code 1), or there is nothing to audit.
pub fn run(args: &AuditArgs) -> Result<(), CliError> {
    let verdicts = audit(&args.path, &Limits::default()).map_err(CliError::usage)?;
    match args.json {
        true => print_json(&verdicts)?,
        false => print(&text(&verdicts))?,
    }
    let failed = verdicts.failed();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(CliError::Check(format!("the audit: {}", failed.join(", ")))),
    }
}

fn text(audit: &Audit) -> String {
    let width = audit.rules.iter().map(|r| r.rule.len()).max().unwrap_or(0);
    let mut out = String::new();
    let (mut passed, mut failed) = (0, 0);
    for rule in &audit.rules {
        let verdict = match rule.verdict {
            Outcome::Pass => "pass",
            Outcome::Fail => "FAIL",
            Outcome::NotApplicable => "n/a ",
        };
        passed += usize::from(rule.verdict == Outcome::Pass);
        failed += usize::from(rule.verdict == Outcome::Fail);
        let count = match rule.failures {
            0 => format!("{} checked", rule.checked),
            n => format!("{n} of {} fail", rule.checked),
        };
        out.push_str(&format!("{verdict}  {:width$}  {count}\n", rule.rule));
        for witness in &rule.witness {
            out.push_str(&format!("      {witness}\n"));
        }
    }
    let idle = audit.rules.len() - passed - failed;
    out.push_str(&format!("\n{passed} rules hold, {failed} fail, {idle} have nothing to check.\n"));
    out
}
