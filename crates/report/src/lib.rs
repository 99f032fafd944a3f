//! Reports of a study: Markdown, and one HTML page that needs no network. Both are made from the
//! record's files alone, say the answer first, and list every case and every miss.

mod answer;
mod escape;
mod format;
mod html;
mod markdown;
mod plots;
mod results;
mod svg;
mod table;
mod tables;

use results::Results;
use std::path::Path;
use tilewright_audit::record::Record;
use tilewright_audit::{Audit, AuditError, Checks, Kind, Limits, audit};

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// There is no record.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The study isn't finished.
    #[error("{0}: the record has no results yet; finish the study first")]
    Unfinished(String),
    /// results.json can't be understood.
    #[error("results.json: {0}")]
    Results(#[from] serde_json::Error),
}

/// A record, read and audited, ready to be shown.
pub struct Report {
    record: Record,
    results: Results,
    audit: Audit,
}

impl Report {
    /// Reads and audits the record in a directory.
    ///
    /// # Errors
    /// There is no record, or no results in it. A record that fails its audit is reported, and the
    /// report says so first.
    pub fn read(dir: &Path, limits: &Limits) -> Result<Report, ReportError> {
        let audit = audit(dir, limits)?;
        if audit.kind != Kind::Study {
            return Err(AuditError::NoRecord(dir.display().to_string()).into());
        }
        let record = Record::load(dir, limits, &mut Checks::new(Kind::Study));
        let unfinished = || ReportError::Unfinished(dir.display().to_string());
        let results = record.results.clone().ok_or_else(unfinished)?;
        let results = serde_json::from_value(results)?;
        Ok(Report { record, results, audit })
    }

    /// The verdicts on the record.
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// The report as Markdown.
    pub fn markdown(&self) -> String {
        markdown::page(self)
    }

    /// The report as one HTML page.
    pub fn html(&self) -> String {
        html::page(self)
    }
}
