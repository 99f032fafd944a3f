//! `freeze`: fixes plans and protocol of a record's hold-out.

use super::study::{RecordArgs, step};
use crate::error::CliError;
use clap::Args;

/// `freeze`.
#[derive(Args, Debug)]
pub struct FreezeArgs {
    /// The record.
    #[command(flatten)]
    pub record: RecordArgs,
    /// Freeze again: labels and rounds of the freeze before are spent, and the number of freezes
    /// is reported.
    #[arg(long)]
    pub again: bool,
}

/// Runs the command.
///
/// # Errors
/// By exit code.
pub fn run(args: &FreezeArgs) -> Result<(), CliError> {
    step(&args.record, "freeze", |session| {
        session.calibrate()?;
        session.freeze(args.again)
    })
}
