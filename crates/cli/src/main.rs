//! The `tilewright` command.

mod args;
mod commands;
mod error;
mod machine;
mod npy;
mod output;
mod request;
mod schedule;
mod table;
mod work;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Command::Devices(args) => commands::devices::run(args),
        Command::Run(args) => commands::run::run(args),
        Command::Plan(args) => commands::plan::run(args),
        Command::Show(args) => commands::show::run(args),
        Command::Calibrate(args) => commands::calibrate::run(args),
        Command::Audit(args) => commands::audit::run(args),
        Command::Report(args) => commands::report::run(args),
        Command::Study(args) => commands::study::run(args),
        Command::Search(args) => commands::search::run(args),
        Command::Freeze(args) => commands::freeze::run(args),
        Command::Replay(args) => commands::replay::run(args),
        Command::Ablate(args) => commands::ablate::run(args),
        Command::SelfTest(args) => commands::self_test::run(args),
        Command::StudyWorker(args) => commands::worker::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("{}", error.render());
            error.code()
        }
    }
}
