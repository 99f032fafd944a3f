//! The audit: derives every label, regret, ratio, score, choice and hash of a study's record again
//! from its raw samples, and proves order, balance and completeness. It also looks into tuning
//! files of other tools (Kernel Tuner caches and T4 files).
//!
//! It needs no device and shares nothing with the programs that wrote the files but the published
//! formats (`docs/formats/`, `schemas/`).

pub mod canonical;
mod derive;
mod fit;
mod foreign;
pub mod math;
mod read;
pub mod record;
mod rules;
mod terms;
mod verdict;

pub use read::{Limits, ReadError, read_bytes, read_json};
pub use verdict::{Audit, Checks, Kind, Outcome, Rule, Verdict};

use std::path::Path;

/// Why nothing could be audited.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// There is neither a file nor a directory.
    #[error("{path}: {message}")]
    Missing {
        /// The path that was asked for.
        path: String,
        /// What the operating system said.
        message: String,
    },
    /// The directory isn't a record: it has no ledger.
    #[error("{0}: not the record of a study: it has no ledger.jsonl")]
    NoRecord(String),
}

/// Audits the record of a study (a directory), or a tuning file of another tool (a file, gzip or
/// not).
///
/// # Errors
/// There is nothing at `path`, or the directory has no ledger. Whatever is wrong *inside* is a
/// verdict, no error.
pub fn audit(path: &Path, limits: &Limits) -> Result<Audit, AuditError> {
    let metadata = std::fs::metadata(path).map_err(|e| AuditError::Missing {
        path: path.display().to_string(),
        message: e.to_string(),
    })?;
    if !metadata.is_dir() {
        return Ok(foreign::audit(path, limits));
    }
    if std::fs::symlink_metadata(path.join("ledger.jsonl")).is_err() {
        return Err(AuditError::NoRecord(path.display().to_string()));
    }
    let mut checks = Checks::new(Kind::Study);
    let record = record::Record::load(path, limits, &mut checks);
    rules::check(&record, &mut checks);
    Ok(checks.finish())
}
