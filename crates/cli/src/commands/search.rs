//! `search`: measures every candidate of one case, or of a study's training cases.

use super::study::{RunStudyArgs, say, with_session, with_setup};
use super::{print, print_json};
use crate::error::CliError;
use clap::Args;
use std::path::{Path, PathBuf};
use tilewright_plan::ranking::describe;
use tilewright_study::adhoc;
use tilewright_study::record::{Outcome, SearchFile};
use tilewright_study::spec::Study;

/// `search`.
#[derive(Args, Debug)]
pub struct SearchArgs {
    /// Name of an op, or a study file (.toml) whose training cases are searched into --output.
    pub op: String,
    /// ROWSxCOLUMNS or MxNxK; not for a study file.
    pub shape: Option<String>,
    /// The case's options.
    #[command(flatten)]
    pub case: CaseArgs,
    /// Measure only the first K candidates of the ranking (default: all).
    #[arg(short = 'k', long, value_name = "K")]
    pub shortlist: Option<usize>,
    /// What selects the winner: batch, single, device (its own clock), or model (the score alone);
    /// the default is batch on a CPU, else device.
    #[arg(long, value_name = "M")]
    pub metric: Option<String>,
    /// Folder of the record of a study's searches.
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Of a study file: fewer cases, candidates and samples.
    #[arg(long)]
    pub quick: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Options of a case that is measured without a study file.
#[derive(Args, Debug)]
pub struct CaseArgs {
    /// Element type.
    #[arg(long, default_value = "f32", value_name = "D")]
    pub dtype: String,
    /// Where to measure: cpu, cuda or cuda:N.
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    pub device: String,
    /// Threads of a launch on a CPU (default: all cores).
    #[arg(long, value_name = "N")]
    pub cpu_threads: Option<u32>,
    /// Rounds.
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
}

impl CaseArgs {
    /// The metric where none is asked for.
    pub fn metric(&self) -> &'static str {
        if self.device == "cpu" { "batch" } else { "device" }
    }

    /// A study of one case. `rounds` is the default number of rounds; `more` are lines of its
    /// `[search]` table.
    ///
    /// # Errors
    /// There is no such op, type or shape.
    pub fn study(
        &self,
        op: &str,
        shape: Option<&str>,
        space: &str,
        more: &str,
        rounds: usize,
    ) -> Result<Study, CliError> {
        let shape = shape.ok_or_else(|| {
            CliError::Usage(format!("`{op}` needs a shape: MxNxK or ROWSxCOLUMNS"))
        })?;
        let threads = match (self.device.as_str(), self.cpu_threads) {
            ("cpu", threads) => threads.unwrap_or_else(|| tilewright_cpu::host::cores() as u32),
            (_, None) => 1,
            (device, Some(_)) => {
                return Err(CliError::Usage(format!(
                    "--cpu-threads is for the CPU, not for device `{device}`"
                )));
            }
        };
        let threads = threads.max(1);
        let quoted = |text: &str| format!("{text:?}");
        let rounds = self.rounds.unwrap_or(rounds);
        let text = format!(
            "name = \"one\"\ndevice = {}\nthreads = {threads}\n[[family]]\nops = [{}]\ndtype = {}\ntraining = \
             [{}]\n[space]\n{space}\n[search]\nrounds = {rounds}\n{more}\n[replay]\nrounds = \
             {rounds}\n",
            quoted(&self.device),
            quoted(op),
            quoted(&self.dtype),
            quoted(shape),
        );
        Study::parse(&text, false).map_err(CliError::Usage)
    }
}

/// Runs the command.
///
/// # Errors
/// By exit code.
pub fn run(args: &SearchArgs) -> Result<(), CliError> {
    if Path::new(&args.op).extension().is_some_and(|e| e == "toml") {
        let output = args.output.clone().ok_or_else(|| {
            CliError::Usage("a study's searches need a folder: --output DIR".to_string())
        })?;
        let run = RunStudyArgs {
            file: args.op.clone().into(),
            output,
            quick: args.quick,
            record_changes: false,
            json: args.json,
        };
        let study = Study::read(&run.file, run.quick)?;
        let state = with_session(study, &run.output, false, |session| {
            session.search()?;
            Ok(session.progress())
        })?;
        return say("search", &state, args.json);
    }
    let space = args.shortlist.map_or(String::new(), |k| format!("top = {k}"));
    let metric = args.metric.as_deref().unwrap_or(args.case.metric());
    let mut more = format!("metric = {metric:?}");
    if metric == "single" {
        more.push_str("\nsingle_samples = 9");
    }
    let study = args.case.study(&args.op, args.shape.as_deref(), &space, &more, 3)?;
    let file = with_setup(&study, false, |setup| adhoc::search(setup, &study))?;
    if args.json {
        print_json(&file)?;
    } else {
        print(&text(&file))?;
    }
    match file.selection.winner {
        Some(_) => Ok(()),
        None => Err(CliError::Check("no candidate is valid, or the winner failed afresh".into())),
    }
}

fn text(file: &SearchFile) -> String {
    let mut out = String::new();
    let line = |candidate: usize| describe(&file.candidates[candidate].mapping);
    if let (Some(winner), Some(fresh)) = (file.selection.winner, &file.selection.fresh) {
        let us = fresh.label_us.unwrap_or(f64::NAN);
        out.push_str(&format!("winner: {us:.3} us, {}\n", line(winner)));
        if let Some(incumbent) = file.label(file.incumbent) {
            let regret = file.regret(file.incumbent).unwrap_or(0.0);
            out.push_str(&format!(
                "without search: {incumbent:.3} us ({:+.1} %), {}\n",
                100.0 * regret,
                line(file.incumbent)
            ));
        }
    }
    let mut ranked: Vec<(f64, usize)> = file.labels().map(|(c, l)| (l, c)).collect();
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
    out.push_str(&format!(
        "\n{} of {} candidates are legal, {} measured, {} valid; floor {:.3} us\n",
        file.space.legal,
        file.space.candidates,
        file.space.measured,
        ranked.len(),
        file.floor.floor_us
    ));
    for (rank, (us, candidate)) in ranked.iter().take(10).enumerate() {
        out.push_str(&format!("{:>3}. {us:>10.3} us  {}\n", rank + 1, line(*candidate)));
    }
    for trial in file.trials.iter().filter(|t| t.outcome != Outcome::Valid).take(5) {
        let why = trial.error.as_ref().map_or("", |e| e.message.as_str());
        out.push_str(&format!("  {:?}: {}: {why}\n", trial.outcome, line(trial.candidate)));
    }
    out
}
