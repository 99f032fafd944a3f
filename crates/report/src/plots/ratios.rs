//! Paired ratios with their ranges.

use crate::Report;
use crate::answer::is_control;
use crate::format::ratio;
use crate::plots::series;
use crate::results::{CaseResult, Spread};
use crate::svg::{Curve, Drawing, Plot, Scale, WIDTH};

const ROW: f64 = 34.0;

/// Height of a further mark in a row.
const MARK: f64 = 10.0;

/// A row of a chart of ratios.
struct Row<'a> {
    case: &'a CaseResult,
    marks: Vec<(&'a Spread, String, &'static str, bool)>,
}

/// Gains of the challenger over the incumbent.
pub fn gains(report: &Report) -> Option<Plot> {
    let rows: Vec<Row<'_>> = report
        .results
        .cases
        .iter()
        .filter_map(|case| {
            let gain = case.gain.as_ref()?;
            let class = match case.verdict.as_str() {
                "win" => "good",
                "loss" => "bad",
                _ => "quiet",
            };
            let about = format!("{}: {}", case.case, case.verdict);
            Some(Row { case, marks: vec![(gain, about, class, !case.accepted)] })
        })
        .collect();
    let legend = [
        ("win", "good", false),
        ("loss", "bad", false),
        ("tie or descriptive", "quiet", false),
        ("held back by the guard", "quiet", true),
    ];
    chart(
        &rows,
        &legend,
        "Gain over the incumbent",
        "Time of the incumbent / time of the challenger, paired by round: median and range over \
         the rounds; right of 1 the challenger is faster. The band is the noise floor.",
    )
}

/// The challenger against controls.
pub fn controls(report: &Report) -> Option<Plot> {
    let mut names: Vec<&str> = Vec::new();
    for path in report.results.cases.iter().flat_map(|c| &c.paths) {
        let new = is_control(&path.path) && path.ratio.is_some();
        if new && !names.contains(&path.path.as_str()) {
            names.push(&path.path);
        }
    }
    let rows: Vec<Row<'_>> = report
        .results
        .cases
        .iter()
        .map(|case| {
            let marks = case.paths.iter().filter_map(|path| {
                let n = names.iter().position(|name| *name == path.path)?;
                let about = format!("{}, {}", case.case, path.path);
                Some((path.ratio.as_ref()?, about, series(n), n >= 4))
            });
            Row { case, marks: marks.collect() }
        })
        .filter(|row| !row.marks.is_empty())
        .collect();
    let legend: Vec<(&str, &str, bool)> =
        names.iter().enumerate().map(|(n, name)| (*name, series(n), n >= 4)).collect();
    chart(
        &rows,
        &legend,
        "Against the controls",
        "Time of the control / time of the challenger, paired by round: median and range; right of \
         1 the challenger is faster.",
    )
}

fn chart(
    rows: &[Row<'_>],
    legend: &[(&str, &str, bool)],
    title: &str,
    caption: &str,
) -> Option<Plot> {
    if rows.is_empty() {
        return None;
    }
    let (mut low, mut high): (f64, f64) = (0.95, 1.05);
    for row in rows {
        for (spread, ..) in &row.marks {
            low = low.min(spread.min);
            high = high.max(spread.max);
        }
    }
    let mut d = Drawing::default();
    let top = 8.0 + d.legend(12.0, legend);
    let height = |row: &Row<'_>| ROW + MARK * row.marks.len().saturating_sub(1) as f64;
    let bottom = top + rows.iter().map(height).sum::<f64>();
    let from = (low.max(1e-6) / 1.02, high * 1.02);
    let scale = Scale { curve: Curve::Log, from, to: (18.0, WIDTH - 24.0) };
    // Over a narrow range powers of ten say nothing.
    if high / low > 6.0 {
        d.axis_x(&scale, top, bottom, "×");
    } else {
        let linear = Scale { curve: Curve::Linear, ..scale };
        let mut last = f64::NEG_INFINITY;
        for value in linear.ticks() {
            let x = scale.at(value);
            d.line(x, top, x, bottom, "grid");
            if x - last < 48.0 {
                continue;
            }
            last = x;
            d.text(x, bottom + 16.0, "middle", "soft", &format!("{value:.2}×"));
        }
    }
    d.line(scale.at(1.0), top, scale.at(1.0), bottom, "axis");
    let mut y = top;
    for row in rows {
        d.text(10.0, y + 13.0, "start", "", &row.case.case);
        let line = y + 23.0;
        if let Some(noise) = row.case.noise() {
            d.rect(
                scale.at(1.0 / noise),
                line - 6.0,
                scale.at(noise),
                height(row) - ROW + 12.0,
                "band",
            );
        }
        for (k, (spread, about, class, ring)) in row.marks.iter().enumerate() {
            let line = line + MARK * k as f64;
            let about = format!(
                "{about}: {} [{}, {}]",
                ratio(spread.median),
                ratio(spread.min),
                ratio(spread.max)
            );
            d.line(
                scale.at(spread.min),
                line,
                scale.at(spread.max),
                line,
                &format!("stroke {class}"),
            );
            let x = scale.at(spread.median);
            match ring {
                true => d.diamond(x, line, &format!("ring {class}"), &about),
                false => d.dot(x, line, &format!("dot {class}"), &about),
            }
        }
        y += height(row);
    }
    Some(Plot {
        title: title.to_string(),
        caption: caption.to_string(),
        body: d.finish(),
        height: bottom + 24.0,
    })
}
