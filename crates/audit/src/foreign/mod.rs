//! Tuning files of other tools.

mod cache;
mod rows;
mod t4;

use crate::read::{Limits, read_bytes, read_json};
use crate::verdict::{Audit, Checks, Kind, Rule};
use std::path::Path;

/// Audits a Kernel Tuner cache or T4 file, gzip or not.
pub fn audit(path: &Path, limits: &Limits) -> Audit {
    let mut checks = Checks::new(Kind::KernelTunerCache);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let value = read_bytes(path, limits).and_then(|bytes| read_json(&bytes, limits));
    checks.that(Rule::ForeignRead, value.is_ok(), || match &value {
        Err(error) => format!("{name} {error}"),
        Ok(_) => String::new(),
    });
    let Ok(value) = value else { return checks.finish() };
    let rows = if value.get("cache").is_some() {
        cache::rows(&value, &mut checks)
    } else if value.get("results").is_some() {
        checks.set_kind(Kind::KernelTunerT4);
        t4::rows(&value, &mut checks)
    } else {
        checks.fail(Rule::ForeignFormat, format!("{name}: neither `cache` nor `results`"));
        return checks.finish();
    };
    rows::check(&rows, &mut checks);
    checks.finish()
}
