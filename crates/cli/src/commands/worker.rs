//! `study-worker`: the process in which a study's candidates and controls run.

use crate::error::CliError;
use crate::machine;
use clap::Args;
use std::io::{BufReader, stdin, stdout};
use tilewright_study::meter::Clock;
use tilewright_study::worker::{control, serve};

/// `study-worker`.
#[derive(Args, Debug)]
pub struct WorkerArgs {
    /// The device.
    pub device: String,
    /// Threads of a launch.
    #[arg(long)]
    pub threads: u32,
    /// Instruction set.
    #[arg(long)]
    pub isa: Option<String>,
    /// Serve a control instead of candidates.
    #[arg(long)]
    pub control: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// The device is missing, or the pipes break.
pub fn run(args: &WorkerArgs) -> Result<(), CliError> {
    let (input, output) = (BufReader::new(stdin()), stdout());
    let served = match &args.control {
        Some(name) => control::serve(name, args.threads, &Clock, input, output),
        None => {
            let threads = (args.device == "cpu").then_some(args.threads);
            let device = machine::device(&args.device, args.isa.as_deref(), threads)?;
            serve::serve(&device, &Clock, input, output)
        }
    };
    Ok(served?)
}
