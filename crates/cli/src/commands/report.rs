//! `tilewright report`: Markdown and one HTML page from the record of a study.

use crate::commands::{print, print_json};
use crate::error::CliError;
use crate::output::write_atomically;
use clap::Args;
use std::io::Write;
use std::path::PathBuf;
use tilewright_audit::Limits;
use tilewright_report::Report;

/// `report`.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// The directory of a study's record.
    pub path: PathBuf,
    /// Where report.md and report.html go (default: into the record, whose audit leaves them out).
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Print one JSON object: the files written and whether the record passes its audit.
    #[arg(long)]
    pub json: bool,
}

/// Runs it.
///
/// # Errors
/// There is no finished record, a file can't be written, or (after writing) the record fails its
/// audit (exit code 1).
pub fn run(args: &ReportArgs) -> Result<(), CliError> {
    let report = Report::read(&args.path, &Limits::default()).map_err(CliError::usage)?;
    let folder = args.output.as_ref().unwrap_or(&args.path);
    let failed = |e: std::io::Error| CliError::Io(format!("{}: {e}", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    let files = [("report.md", report.markdown()), ("report.html", report.html())];
    for (name, content) in &files {
        let path = folder.join(name);
        write_atomically(&path, |out| out.write_all(content.as_bytes())).map_err(failed)?;
    }
    let passed = report.audit().passed();
    match args.json {
        true => print_json(&serde_json::json!({
            "schema": "tilewright-report-v1",
            "files": files.iter().map(|f| f.0).collect::<Vec<_>>(),
            "audit": if passed { "pass" } else { "fail" },
            "failed": report.audit().failed(),
        }))?,
        false => {
            for (name, _) in &files {
                print(&format!("{}\n", folder.join(name).display()))?;
            }
        }
    }
    match passed {
        true => Ok(()),
        false => Err(CliError::Check(format!(
            "the record fails its audit, and the report says so: {}",
            report.audit().failed().join(", ")
        ))),
    }
}
