//! `study`: runs a study file, or shows how far a record is.

use super::{print, print_json};
use crate::error::CliError;
use crate::machine;
use clap::{Args, Subcommand};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tilewright_runtime::Device;
use tilewright_study::StudyError;
use tilewright_study::bench::{Progress, Setup};
use tilewright_study::meter::Clock;
use tilewright_study::run::{Session, held_out_profile, kept_study};
use tilewright_study::spec::Study;
use tilewright_study::worker::Launch;

/// `study`.
#[derive(Args, Debug)]
pub struct StudyArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: StudyCommand,
}

/// Parts of `study`.
#[derive(Subcommand, Debug)]
pub enum StudyCommand {
    /// Search, calibrate, freeze, label, replay and sum up. Goes on where an earlier run stopped.
    Run(RunStudyArgs),
    /// Fit a record's profile from its searches.
    Calibrate(RecordArgs),
    /// Label the hold-out cases of a frozen record.
    Label(RecordArgs),
    /// Derive the results of a record whose rounds are complete.
    Finish(RecordArgs),
    /// Write a finished record's profile with what its hold-out says of it.
    Profile(ProfileArgs),
}

/// `study profile`.
#[derive(Args, Debug)]
pub struct ProfileArgs {
    /// Folder of the record.
    pub record: PathBuf,
    /// Where to write the profile.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Print one JSON object: the profile.
    #[arg(long)]
    pub json: bool,
}

/// `study run`, and the search step of a study.
#[derive(Args, Debug)]
pub struct RunStudyArgs {
    /// The study file (TOML).
    pub file: PathBuf,
    /// Folder of the record.
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// Fewer cases, candidates and samples: minutes instead of an hour.
    #[arg(long)]
    pub quick: bool,
    /// Record a machine, program or kernel that differs from the record's instead of stopping.
    #[arg(long)]
    pub record_changes: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// A step on a record.
#[derive(Args, Debug)]
pub struct RecordArgs {
    /// Folder of the record.
    pub record: PathBuf,
    /// Record a machine, program or kernel that differs from the record's instead of stopping.
    #[arg(long)]
    pub record_changes: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
///
/// # Errors
/// By exit code: a gate that isn't passed, usage, a missing device, files.
pub fn run(args: &StudyArgs) -> Result<(), CliError> {
    match &args.command {
        StudyCommand::Run(args) => {
            let study = Study::read(&args.file, args.quick)?;
            let results = with_session(study, &args.output, args.record_changes, |s| s.run())?;
            show(&results, args.json)
        }
        StudyCommand::Calibrate(args) => step(args, "calibrate", |s| s.calibrate()),
        StudyCommand::Label(args) => step(args, "label", |s| s.label()),
        StudyCommand::Finish(args) => {
            let study = kept_study(&args.record)?;
            let results = with_session(study, &args.record, args.record_changes, |s| s.finish())?;
            show(&results, args.json)
        }
        StudyCommand::Profile(args) => profile(args),
    }
}

fn profile(args: &ProfileArgs) -> Result<(), CliError> {
    let profile = held_out_profile(&args.record)?;
    let (text, path) = (profile.to_json(), args.output.display());
    crate::output::write_atomically(&args.output, |out| out.write_all(text.as_bytes()))
        .map_err(|e| CliError::Io(format!("can't write {path}: {e}")))?;
    if args.json {
        return print(&text);
    }
    let lost = profile.hold_out.map_or(0, |h| h.lost_every_round.len());
    let standing = match lost {
        0 => "may be a default: it lost no held-out case in every round".to_string(),
        n => format!("stays opt-in: it lost {n} held-out cases in every round"),
    };
    print(&format!("wrote {path}; the profile {standing}\n"))
}

/// Runs one step on a record and says that it is done.
///
/// # Errors
/// As the step.
pub fn step(
    args: &RecordArgs,
    name: &str,
    work: impl FnOnce(&mut Session<'_>) -> Result<(), StudyError>,
) -> Result<(), CliError> {
    let study = kept_study(&args.record)?;
    let state = with_session(study, &args.record, args.record_changes, |session| {
        work(session)?;
        Ok(session.progress())
    })?;
    say(name, &state, args.json)
}

/// Prints how far a record is.
///
/// # Errors
/// The output can't be written.
pub fn say(step: &str, state: &Value, json: bool) -> Result<(), CliError> {
    if json {
        let mut value = state.clone();
        value["schema"] = "tilewright-step-v1".into();
        value["step"] = step.into();
        return print_json(&value);
    }
    let parts = ["search", "labels", "replay"]
        .map(|name| format!("{name} {}/{}", state[name]["done"], state[name]["of"]));
    let calibrated = if state["calibrated"] == true { ", calibrated" } else { "" };
    let freezes = state["freezes"].as_u64().unwrap_or(0);
    let frozen = if freezes > 0 { format!(", frozen {freezes}x") } else { String::new() };
    print(&format!("{step} done: {}{calibrated}{frozen}\n", parts.join(", ")))
}

/// Opens a record and works on it.
///
/// # Errors
/// The device is missing, the record can't be opened, or the work fails.
pub fn with_session<T>(
    study: Study,
    dir: &Path,
    record_changes: bool,
    work: impl FnOnce(&mut Session<'_>) -> Result<T, StudyError>,
) -> Result<T, CliError> {
    with_setup(&study.clone(), record_changes, |setup| {
        let mut session = Session::open(setup, study, dir)?;
        work(&mut session)
    })
}

/// Threads of a CPU; other devices aren't told.
fn cpu_threads(study: &Study) -> Option<u32> {
    (study.device == "cpu").then_some(study.threads)
}

/// Makes what a study needs of its surroundings.
///
/// # Errors
/// The device is missing, or the work fails.
pub fn with_setup<T>(
    study: &Study,
    record_changes: bool,
    work: impl FnOnce(&Setup<'_>) -> Result<T, StudyError>,
) -> Result<T, CliError> {
    let device: Arc<dyn Device> =
        machine::device(&study.device, study.isa.as_deref(), cpu_threads(study))?;
    let program = std::env::current_exe()
        .map_err(|e| CliError::Io(format!("can't find this program's file: {e}")))?;
    let mut args = vec!["study-worker".to_string(), study.device.clone()];
    args.push(format!("--threads={}", study.threads));
    args.extend(study.isa.iter().map(|isa| format!("--isa={isa}")));
    let bars = Bars::default();
    let setup = Setup {
        device,
        meter: &Clock,
        worker: Launch { program, args, ..Launch::default() },
        progress: &bars,
        record_changes,
    };
    Ok(work(&setup)?)
}

/// Prints results, the answer first. A gate that isn't passed is an error.
fn show(results: &Value, json: bool) -> Result<(), CliError> {
    if json {
        print_json(results)?;
    } else {
        print(&text(results))?;
    }
    let rules = results["gate"]["rules"].as_array().cloned().unwrap_or_default();
    if results["gate"]["passed"] == true || rules.is_empty() {
        return Ok(());
    }
    let missed: Vec<String> = rules
        .iter()
        .filter(|r| r["passed"] != true)
        .map(|r| format!("{} is {}, limit {}", word(&r["rule"]), r["value"], r["limit"]))
        .collect();
    Err(CliError::Check(if missed.is_empty() {
        "a hold-out case is incomplete".to_string()
    } else {
        format!("the study misses its acceptance rules: {}", missed.join("; "))
    }))
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

fn percent(value: &Value) -> String {
    value.as_f64().map_or("-".to_string(), |v| format!("{:.2} %", 100.0 * v))
}

fn text(results: &Value) -> String {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut out = String::new();
    for family in list(&results["families"]) {
        let regret = &family["regret"]["challenger"];
        let incumbent = &family["regret"]["incumbent"];
        out.push_str(&format!(
            "{}: {} hold-out cases, regret of the model's pick {} (max {}), of the incumbent {} \
             (max {})\n",
            word(&family["family"]),
            family["cases"],
            percent(&regret["mean"]),
            percent(&regret["max"]),
            percent(&incumbent["mean"]),
            percent(&incumbent["max"]),
        ));
    }
    out.push_str(&format!(
        "guard: {} of {} challengers accepted, {} losers; {} of {} wins kept\n\n",
        results["accepted"],
        list(&results["cases"]).len(),
        results["losers"],
        results["kept"],
        results["wins"],
    ));
    let rows: Vec<[String; 6]> = list(&results["cases"])
        .iter()
        .map(|case| {
            let gain = &case["gain"];
            let number = |v: &Value| v.as_f64().map_or("-".to_string(), |x| format!("{x:.3}"));
            [
                word(&case["case"]).to_string(),
                percent(&case["regret"]["challenger"]),
                number(&gain["median"]),
                format!("[{}, {}]", number(&gain["min"]), number(&gain["max"])),
                case["floor"].as_f64().map_or("-".to_string(), |f| format!("{:.3}", f.exp())),
                word(&case["verdict"]).to_string(),
            ]
        })
        .collect();
    let head = ["case", "regret", "gain", "range", "floor", "verdict"].map(str::to_string);
    let width = |column: usize| {
        rows.iter().chain([&head]).map(|r| r[column].chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..6).map(width).collect();
    for row in [&head].into_iter().chain(&rows) {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, w)| format!("{cell:<w$}", w = *w)).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// Progress bars on the standard error; nothing where that is no terminal.
#[derive(Default)]
struct Bars {
    all: MultiProgress,
    open: Mutex<Vec<ProgressBar>>,
}

impl Progress for Bars {
    fn begin(&self, what: &str, parts: usize) {
        let bar = self.all.add(ProgressBar::new(parts as u64));
        if let Ok(style) =
            ProgressStyle::with_template("{prefix} {bar:24} {pos}/{len} {msg} {elapsed}")
        {
            bar.set_style(style);
        }
        bar.set_prefix(what.to_string());
        bar.tick();
        self.open.lock().unwrap_or_else(PoisonError::into_inner).push(bar);
    }

    fn advance(&self, detail: &str) {
        if let Some(bar) = self.open.lock().unwrap_or_else(PoisonError::into_inner).last() {
            bar.set_message(detail.to_string());
            bar.inc(1);
        }
    }

    fn end(&self) {
        if let Some(bar) = self.open.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            bar.finish_and_clear();
        }
    }
}

impl From<StudyError> for CliError {
    fn from(error: StudyError) -> Self {
        match error {
            StudyError::Io { .. } => CliError::Io(error.to_string()),
            StudyError::Changed { .. } | StudyError::Disturbed { .. } => {
                CliError::Check(error.to_string())
            }
            StudyError::Engine(error) => error.into(),
            other => CliError::usage(other),
        }
    }
}
