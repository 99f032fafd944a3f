//! `calibrate`: fits a cost model to measurements and says what it is worth.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::Serialize;
use tilewright_plan::Profile;
use tilewright_study::calibration::{Options, Procedure, Protocol, Source, calibrate, text};
use tilewright_study::export;
use tilewright_study::import::space::Summary;
use tilewright_study::import::transfer::{TransferReport, transfer};
use tilewright_study::import::{self, ImportError, Imported, Limits, Space};

use super::{print, print_json};
use crate::error::CliError;
use crate::output::{probe, write_atomically};

/// `calibrate`.
#[derive(Args, Debug)]
pub struct CalibrateArgs {
    /// Measurements: our training CSV, a search record of the reference system, or a tuning space
    /// (Kernel Tuner cache, T4, Triton autotune, AutoHeuristic text); gzip or plain.
    pub file: PathBuf,
    /// Which fit: the reference system's, or ours.
    #[arg(long, value_enum, default_value_t = ProcedureName::WholeLaunch, value_name = "P")]
    pub procedure: ProcedureName,
    /// Add bands from labels resampled from their samples to every figure (slow).
    #[arg(long)]
    pub nested: bool,
    /// Draws of those bands.
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub draws: usize,
    /// What is held out together: shape or operator.
    #[arg(long, value_enum, default_value_t = SplitName::Shape, value_name = "S")]
    pub split: SplitName,
    /// Hold out exactly these shapes instead, as the file writes them.
    #[arg(long, value_delimiter = ',', value_name = "SHAPES", conflicts_with = "split")]
    pub hold_out: Vec<String>,
    /// A replay record: what the guard would have kept of it.
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
    /// A second space, of another device: what picks made with FILE are worth there.
    #[arg(long, value_name = "FILE")]
    pub transfer: Option<PathBuf>,
    /// Write the measurements as T4 (`.json`) or CSV (`.csv`).
    #[arg(long, value_name = "OUT")]
    pub export: Option<PathBuf>,
    /// Write the profile.
    #[arg(short, long, value_name = "PROFILE")]
    pub output: Option<PathBuf>,
    /// Print every fold and every design.
    #[arg(long)]
    pub all: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Fits by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ProcedureName {
    /// Six features, one of six capacities by held-out regret.
    Reference,
    /// Feature sets and capacities averaged, at most 12 coefficients.
    WholeLaunch,
}

/// Splits by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum SplitName {
    /// One shape at a time.
    Shape,
    /// One operator at a time.
    Operator,
}

/// The `schema` of what is printed for tuning spaces.
const SPACES: &str = "tilewright-spaces-v1";

/// The `schema` of the cross-device report.
const TRANSFER: &str = "tilewright-transfer-v1";

#[derive(Serialize)]
struct SpacesObject {
    schema: &'static str,
    spaces: Vec<Summary>,
}

#[derive(Serialize)]
struct TransferObject {
    schema: &'static str,
    #[serde(flatten)]
    report: TransferReport,
}

/// Runs the command.
///
/// # Errors
/// A file can't be read, isn't what it should be, or can't be written.
pub fn run(args: &CalibrateArgs) -> Result<(), CliError> {
    for path in args.output.iter().chain(&args.export) {
        probe(path).map_err(|e| unwritable(path, e))?;
    }
    let (bytes, imported) = open(&args.file)?;
    match imported {
        Imported::Spaces(spaces) => spaces_report(args, &spaces),
        Imported::Training(training) => fit(args, &bytes, Source::Training(*training)),
        Imported::Record(record) => fit(args, &bytes, Source::Record(*record)),
        Imported::Replay(_) => Err(CliError::Usage(format!(
            "{} is a replay: give the training record as FILE and this one with --replay",
            args.file.display()
        ))),
    }
}

fn open(path: &Path) -> Result<(Vec<u8>, Imported), CliError> {
    let fail = |e: ImportError| match e {
        ImportError::Io { .. } => CliError::Io(e.to_string()),
        _ => CliError::Usage(format!("{}: {e}", path.display())),
    };
    let limits = Limits::default();
    let bytes = import::read(path, &limits).map_err(fail)?;
    let imported = import::detect(&bytes, &limits).map_err(fail)?;
    Ok((bytes, imported))
}

fn unwritable(path: &Path, error: std::io::Error) -> CliError {
    CliError::Io(format!("can't write {}: {error}", path.display()))
}

fn write(path: &Path, content: &str) -> Result<(), CliError> {
    write_atomically(path, |out| out.write_all(content.as_bytes())).map_err(|e| unwritable(path, e))
}

fn fit(args: &CalibrateArgs, bytes: &[u8], source: Source) -> Result<(), CliError> {
    if args.transfer.is_some() {
        return Err(CliError::Usage("--transfer compares two tuning spaces".to_string()));
    }
    let replay = match &args.replay {
        None => None,
        Some(path) => match open(path)?.1 {
            Imported::Replay(replay) => Some(replay),
            _ => return Err(CliError::Usage(format!("{} is no replay record", path.display()))),
        },
    };
    let options = Options {
        procedure: match args.procedure {
            ProcedureName::Reference => Procedure::Reference,
            ProcedureName::WholeLaunch => Procedure::WholeLaunch,
        },
        protocol: match (args.hold_out.is_empty(), args.split) {
            (false, _) => Protocol::Frozen(args.hold_out.clone()),
            (true, SplitName::Shape) => Protocol::Shape,
            (true, SplitName::Operator) => Protocol::Operator,
        },
        draws: if args.nested { args.draws } else { 0 },
    };
    let done = calibrate(&source, bytes, &options, replay.as_ref()).map_err(CliError::usage)?;
    if let Some(path) = &args.export {
        let csv = export::training(source.training()).map_err(CliError::usage)?;
        write(path, &csv)?;
    }
    if let Some(path) = &args.output {
        write(path, &profile_text(&done.profile))?;
    }
    if args.json { print_json(&done.report) } else { print(&text::render(&done.report, args.all)) }
}

fn profile_text(profile: &Profile) -> String {
    match profile {
        Profile::Analytic => "analytic\n".to_string(),
        Profile::Service(service) => {
            service.to_json(service.target.as_deref().unwrap_or("unknown"))
        }
        Profile::WholeLaunch(whole) => whole.to_json(),
        Profile::Named(named) => named.to_json(),
    }
}

fn spaces_report(args: &CalibrateArgs, spaces: &[Space]) -> Result<(), CliError> {
    if args.output.is_some() {
        return Err(CliError::Usage(format!(
            "{} has no inputs of a cost model, so no profile can be fitted to it; --transfer \
             compares it with another device",
            args.file.display()
        )));
    }
    if let Some(path) = &args.export {
        let [space] = spaces else {
            return Err(CliError::Usage("--export writes one space; this file has several".into()));
        };
        let is_csv = path.extension().is_some_and(|e| e == "csv");
        let content = if is_csv {
            export::space_csv(space).map_err(CliError::usage)?
        } else {
            format!("{}\n", export::t4(space))
        };
        write(path, &content)?;
    }
    let second = match &args.transfer {
        None => None,
        Some(path) => match open(path)?.1 {
            Imported::Spaces(second) => Some(second),
            _ => return Err(CliError::Usage(format!("{} is no space", path.display()))),
        },
    };
    match (second.as_deref(), spaces) {
        (None, _) => {
            let summaries: Vec<_> = spaces.iter().map(Space::summary).collect();
            if args.json {
                return print_json(&SpacesObject { schema: SPACES, spaces: summaries });
            }
            print(&summaries.iter().map(text::space).collect::<String>())
        }
        (Some([second]), [first]) => {
            let report = transfer(first, second).map_err(CliError::usage)?;
            if args.json {
                return print_json(&TransferObject { schema: TRANSFER, report });
            }
            let name = |s: &Space, path: &Path| {
                s.device.clone().unwrap_or_else(|| path.display().to_string())
            };
            let other = args.transfer.as_deref().unwrap_or(Path::new(""));
            print(&text::transfer(&name(first, &args.file), &name(second, other), &report))
        }
        _ => Err(CliError::Usage("--transfer compares two files of one space each".to_string())),
    }
}
