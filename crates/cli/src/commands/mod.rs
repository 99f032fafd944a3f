//! The commands.

pub mod ablate;
pub mod audit;
pub mod calibrate;
pub mod devices;
pub mod freeze;
pub mod plan;
pub mod replay;
pub mod report;
pub mod run;
pub mod search;
pub mod self_test;
pub mod show;
pub mod study;
pub mod worker;

use crate::error::CliError;
use std::io::Write;
use tilewright_engine::EngineError;

/// Writes a result to the standard output.
///
/// # Errors
/// The output can't be written. A closed pipe is no error: the reader has seen enough.
pub fn print(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(CliError::Io(format!("can't write the result: {e}")))
        }
        _ => Ok(()),
    }
}

/// Writes a result as one JSON object.
///
/// # Errors
/// The output can't be written.
pub fn print_json(value: &impl serde::Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| CliError::Io(format!("can't write the result: {e}")))?;
    print(&format!("{text}\n"))
}

impl From<EngineError> for CliError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Runtime(error) => error.into(),
            other => CliError::usage(other),
        }
    }
}
