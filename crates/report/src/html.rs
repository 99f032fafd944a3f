//! The report as one HTML page: no script, no network, light and dark.

use crate::table::Tone;
use crate::{Report, answer, escape, plots, tables};

const STYLE: &str = include_str!("style.css");

/// The page.
pub fn page(report: &Report) -> String {
    let headline = answer::headline(report);
    let title = escape::html(&headline.text);
    let tone = |tone: Tone| match tone {
        Tone::Good => "good",
        Tone::Bad => "bad",
        Tone::Quiet => "quiet",
    };
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <header class=\"{}\"><p class=\"kicker\">{}</p><h1>{title}</h1></header>\n\
         <ul class=\"answer\">\n",
        tone(headline.tone),
        escape::html(&answer::subject(report))
    );
    for line in answer::lines(report) {
        let text = escape::html(&line.text);
        out.push_str(&format!("<li class=\"{}\">{text}</li>\n", tone(line.tone)));
    }
    out.push_str("</ul>\n<section><h2>Misses</h2>\n");
    let misses = answer::misses(report);
    if misses.is_empty() {
        out.push_str("<p>None.</p>\n");
    } else {
        out.push_str("<ul class=\"misses\">\n");
        for miss in misses {
            out.push_str(&format!("<li>{}</li>\n", escape::html(&miss)));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("</section>\n<div class=\"plots\">\n");
    for plot in plots::all(report) {
        out.push_str(&plot.html());
    }
    out.push_str("</div>\n");
    for table in tables::all(report) {
        out.push_str(&table.html());
    }
    out.push_str("</main>\n</body>\n</html>\n");
    out
}
