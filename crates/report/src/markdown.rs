//! The report as Markdown.

use crate::table::Tone;
use crate::{Report, answer, escape, tables};

/// The page.
pub fn page(report: &Report) -> String {
    let headline = answer::headline(report);
    let mut out = format!("# {}\n\n", escape::markdown(&headline.text));
    out.push_str(&format!("{}\n\n", escape::markdown(&answer::subject(report))));
    for line in answer::lines(report) {
        let mark = if line.tone == Tone::Bad { "**Miss.** " } else { "" };
        out.push_str(&format!("- {mark}{}\n", escape::markdown(&line.text)));
    }
    out.push_str("\n## Misses\n\n");
    let misses = answer::misses(report);
    if misses.is_empty() {
        out.push_str("None.\n");
    }
    for miss in misses {
        out.push_str(&format!("- {}\n", escape::markdown(&miss)));
    }
    out.push('\n');
    for table in tables::all(report) {
        out.push_str(&table.markdown());
    }
    out
}
