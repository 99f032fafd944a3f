//! `self-test`: runs a published list of cases on a device, each against the float64 oracle, and
//! writes a report to send back.
//!
//! Cases run in a process of their own, which goes on with the next case after one that fails.
//! Where a case ends that process or holds it for too long, the case is recorded so and a new
//! process goes on behind it.

mod one;
mod report;
mod worker;

use super::{print, print_json};
use crate::error::CliError;
use crate::{machine, output};
use clap::Args;
use report::Report;
use std::path::PathBuf;
use std::time::Duration;

/// `self-test`.
#[derive(Args, Debug)]
pub struct SelfTestArgs {
    /// Where to run: cpu, cuda, cuda:N or metal.
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    pub device: String,
    /// Where to write the report.
    #[arg(short, long, default_value = "tilewright-self-test.json", value_name = "FILE")]
    pub output: PathBuf,
    /// Only the few cases that stand for all.
    #[arg(long)]
    pub brief: bool,
    /// Only cases whose name holds this text.
    #[arg(long, value_name = "TEXT")]
    pub case: Option<String>,
    /// Most seconds for one case.
    #[arg(long, default_value_t = 120, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub deadline: u64,
    /// Print the report instead of a summary.
    #[arg(long)]
    pub json: bool,
    /// Run the cases from this one on and print a line for each.
    #[arg(long, hide = true)]
    pub worker: Option<usize>,
}

/// Runs the command.
///
/// # Errors
/// By exit code: cases that failed (the report is written before), usage, a missing device, files.
pub fn run(args: &SelfTestArgs) -> Result<(), CliError> {
    let device = machine::device(&args.device, None, None)?;
    if let Some(from) = args.worker {
        return one::serve(args, device, from);
    }
    output::probe(&args.output)
        .map_err(|e| CliError::Io(format!("can't write {}: {e}", args.output.display())))?;
    let names = one::names(args, &device)?;
    if names.is_empty() {
        let case = args.case.as_deref().unwrap_or_default();
        return Err(CliError::Usage(format!("no case has a name with `{case}` in it")));
    }
    let mut report = Report::new(args, &device, &names);
    let program = std::env::current_exe()
        .map_err(|e| CliError::Io(format!("can't find this program's file: {e}")))?;
    let deadline = Duration::from_secs(args.deadline);
    let bar = bar(names.len());
    worker::collect(&program, args, &names, deadline, |case| {
        bar.set_message(case.id.clone());
        bar.inc(1);
        report.cases.push(case);
    })?;
    bar.finish_and_clear();
    report.finish();
    let text = serde_json::to_string_pretty(&report)
        .map_err(|e| CliError::Io(format!("can't write the report: {e}")))?;
    output::write_atomically(&args.output, |out| {
        std::io::Write::write_all(out, format!("{text}\n").as_bytes())
    })
    .map_err(|e| CliError::Io(format!("can't write {}: {e}", args.output.display())))?;
    if args.json {
        print_json(&report)?
    } else {
        print(&report.text(&args.output))?
    }
    match report.complaint() {
        Some(complaint) => Err(CliError::Check(complaint)),
        None => Ok(()),
    }
}

/// Progress on the standard error; nothing where that is no terminal.
fn bar(cases: usize) -> indicatif::ProgressBar {
    let bar = indicatif::ProgressBar::new(cases as u64);
    if let Ok(style) =
        indicatif::ProgressStyle::with_template("{bar:24} {pos}/{len} {msg} {elapsed}")
    {
        bar.set_style(style);
    }
    bar
}
