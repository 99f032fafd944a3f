//! Errors of the command and their exit codes.

use std::path::PathBuf;
use std::process::ExitCode;

/// An error, by exit code.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// A result is wrong (exit code 1).
    #[error("check failed: {0}")]
    Check(String),
    /// A request that can't be served (exit code 2).
    #[error("{0}")]
    Usage(String),
    /// A file in a language of ours with faults at known places (exit code 2).
    #[error("{} of {}", count(faults), path.display())]
    Source {
        /// The file.
        path: PathBuf,
        /// Its text.
        text: String,
        /// What is wrong, in order.
        faults: Vec<Fault>,
    },
    /// The device isn't there (exit code 3).
    #[error("{0}")]
    DeviceMissing(String),
    /// The operating system failed to read or write (exit code 4).
    #[error("{0}")]
    Io(String),
}

/// A fault at a place of a source text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Line, from 1; 0 where there is none.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// What is wrong.
    pub message: String,
}

fn count(faults: &[Fault]) -> String {
    match faults.len() {
        1 => "1 error".to_string(),
        n => format!("{n} errors"),
    }
}

impl CliError {
    /// A usage error from any error.
    pub fn usage(error: impl ToString) -> Self {
        CliError::Usage(error.to_string())
    }

    /// The exit code.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            CliError::Check(_) => 1,
            CliError::Usage(_) | CliError::Source { .. } => 2,
            CliError::DeviceMissing(_) => 3,
            CliError::Io(_) => 4,
        })
    }

    /// The text for people: `error: …`, and for source texts each fault with its line and a
    /// caret under its column.
    pub fn render(&self) -> String {
        let CliError::Source { path, text, faults } = self else {
            return format!("error: {self}\n");
        };
        /// Faults shown before the rest is only counted.
        const SHOWN: usize = 10;
        let mut out = String::new();
        for fault in faults.iter().take(SHOWN) {
            if fault.line == 0 {
                out.push_str(&format!("error: {}: {}\n", path.display(), fault.message));
                continue;
            }
            let (line, column) = (fault.line, fault.column);
            out.push_str(&format!(
                "error: {}:{line}:{column}: {}\n",
                path.display(),
                fault.message
            ));
            if let Some(source) = text.lines().nth(line as usize - 1) {
                // Tabs stay tabs before the caret, so that it lands where the terminal puts the
                // character. A line too long for a terminal isn't shown.
                if source.chars().count() <= 160 {
                    let before = source.chars().take((column as usize).saturating_sub(1));
                    let pad: String = before.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
                    out.push_str(&format!("  {line:>4} | {source}\n       | {pad}^\n"));
                }
            }
        }
        if faults.len() > SHOWN {
            out.push_str(&format!("error: and {} more\n", faults.len() - SHOWN));
        }
        out
    }
}

impl From<crate::npy::NpyError> for CliError {
    fn from(error: crate::npy::NpyError) -> Self {
        if error.is_io() { CliError::Io(error.to_string()) } else { CliError::usage(error) }
    }
}

impl From<tilewright_runtime::RuntimeError> for CliError {
    fn from(error: tilewright_runtime::RuntimeError) -> Self {
        match error {
            tilewright_runtime::RuntimeError::DeviceMissing { .. } => {
                CliError::DeviceMissing(error.to_string())
            }
            other => CliError::usage(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_shown_with_its_line_and_a_caret() {
        let error = CliError::Source {
            path: PathBuf::from("a.tile"),
            text: "program p {\n\tgrid r\n}\n".to_string(),
            faults: vec![
                Fault { line: 2, column: 7, message: "expected `:`".to_string() },
                Fault { line: 0, column: 0, message: "no output".to_string() },
            ],
        };
        assert_eq!(
            error.render(),
            "error: a.tile:2:7: expected `:`\n     2 | \tgrid r\n       | \t     ^\n\
             error: a.tile: no output\n"
        );
    }

    #[test]
    fn many_faults_are_cut() {
        let fault = Fault { line: 0, column: 0, message: "no".to_string() };
        let error = CliError::Source {
            path: PathBuf::from("a"),
            text: String::new(),
            faults: vec![fault; 14],
        };
        assert_eq!(error.render().lines().count(), 11);
        assert!(error.render().ends_with("and 4 more\n"));
    }
}
