//! `replay`: labels a frozen record's hold-out and measures its rounds.

use super::study::{RecordArgs, step};
use crate::error::CliError;
use clap::Args;

/// `replay`.
#[derive(Args, Debug)]
pub struct ReplayArgs {
    /// The record.
    #[command(flatten)]
    pub record: RecordArgs,
}

/// Runs the command.
///
/// # Errors
/// By exit code; a kernel or machine that differs from the frozen one fails (exit code 1).
pub fn run(args: &ReplayArgs) -> Result<(), CliError> {
    step(&args.record, "replay", |session| {
        session.label()?;
        session.replay()
    })
}
