//! Errors of studies.

use std::io;
use std::path::Path;

/// Why a study or a step of it stopped. What was recorded before stays.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// The study file is no study.
    #[error("{file}: {message}")]
    File {
        /// The file's name.
        file: String,
        /// What is wrong, with the place where one is known.
        message: String,
    },
    /// The operating system failed.
    #[error("can't {what}: {source}")]
    Io {
        /// What was tried, with the path.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The record contradicts itself or the request.
    #[error("record {path}: {message}")]
    Record {
        /// The directory or file.
        path: String,
        /// What is wrong.
        message: String,
    },
    /// Another process works on the record.
    #[error("another process is working on {0}")]
    Busy(String),
    /// Something isn't as it was when the record was begun.
    #[error("{what} differs from the record's: expected {expected}, found {found}{hint}")]
    Changed {
        /// What differs.
        what: String,
        /// As recorded.
        expected: String,
        /// As found.
        found: String,
        /// What to do.
        hint: String,
    },
    /// Training cases that were disturbed while they were measured.
    #[error(
        "the labels of {} can't be trusted ({}): their rounds lie further apart than the study's \
         `search.spread` allows. Run the study in another folder while the machine has nothing \
         else to do, or give --record-changes, which records it and goes on",
        plural(cases.len()),
        named(cases)
    )]
    Disturbed {
        /// Each case with its spread and the limit.
        cases: Vec<(String, f64, f64)>,
    },
    /// A step needs another one first.
    #[error("{0}")]
    Order(String),
    /// The worker process can't be started or doesn't speak the protocol.
    #[error("worker process: {0}")]
    Worker(String),
    /// Planning, lowering, compiling or the oracle failed.
    #[error(transparent)]
    Engine(#[from] tilewright_engine::EngineError),
    /// Nothing can be chosen in a case.
    #[error("case {case}: {message}")]
    Case {
        /// The case.
        case: String,
        /// Why.
        message: String,
    },
    /// Fitting failed.
    #[error("calibration of {family}: {message}")]
    Calibration {
        /// The family.
        family: String,
        /// Why.
        message: String,
    },
}

fn plural(cases: usize) -> String {
    if cases == 1 { "1 training case".to_string() } else { format!("{cases} training cases") }
}

fn named(cases: &[(String, f64, f64)]) -> String {
    let one = |(case, spread, limit): &(String, f64, f64)| {
        format!("{case}: {:.1} %, at most {:.1} %", 100.0 * spread, 100.0 * limit)
    };
    cases.iter().map(one).collect::<Vec<_>>().join("; ")
}

impl StudyError {
    /// A failure of the system on a path.
    pub fn io(what: &str, path: &Path, source: io::Error) -> Self {
        StudyError::Io { what: format!("{what} {}", path.display()), source }
    }

    /// A fault of a record.
    pub fn record(path: &Path, message: impl Into<String>) -> Self {
        StudyError::Record { path: path.display().to_string(), message: message.into() }
    }
}

impl From<crate::canonical::CanonicalError> for StudyError {
    fn from(error: crate::canonical::CanonicalError) -> Self {
        StudyError::Record { path: "(new file)".to_string(), message: error.to_string() }
    }
}
