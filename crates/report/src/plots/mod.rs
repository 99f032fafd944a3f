//! The plots of a report.

mod predicted;
mod ratios;
mod regret;
mod roofline;
mod topk;

use crate::Report;
use crate::svg::Plot;

/// Every plot for which the record has data.
pub fn all(report: &Report) -> Vec<Plot> {
    let mut out = Vec::new();
    out.extend(regret::plot(report));
    out.extend(ratios::gains(report));
    out.extend(topk::plot(report));
    out.extend(predicted::plot(report));
    out.extend(ratios::controls(report));
    out.extend(roofline::plots(report));
    out
}

/// Class of the n-th series.
fn series(n: usize) -> &'static str {
    ["s0", "s1", "s2", "s3"].get(n % 4).copied().unwrap_or("s0")
}

/// Families in the order of the results.
fn families(report: &Report) -> Vec<&str> {
    report.results.families.iter().map(|f| f.family.as_str()).collect()
}
