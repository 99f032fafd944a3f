//! Rooflines: what the machine allows, and where the challengers are.

use super::{families, series};
use crate::Report;
use crate::format::time;
use crate::svg::{Curve, Drawing, Plot, Scale, WIDTH};
use tilewright_audit::record::Ceiling;

/// A case: operations per byte, operations per second, and how to say it.
struct Point {
    intensity: f64,
    rate: f64,
    series: &'static str,
    about: String,
}

/// One plot per number of threads and element type that held-out cases use.
pub fn plots(report: &Report) -> Vec<Plot> {
    let ceilings = report.record.machine.iter().flat_map(|m| &m.ceilings);
    ceilings
        .flat_map(|ceiling| ["f32", "f64"].map(|dtype| plot(report, ceiling, dtype)))
        .flatten()
        .collect()
}

fn points(report: &Report, threads: u64, dtype: &str) -> Vec<Point> {
    let names = families(report);
    let mut out = Vec::new();
    for case in &report.results.cases {
        let Some(search) = report.record.label(&case.case) else { continue };
        let kind = if search.case.dtype == "f64" { "f64" } else { "f32" };
        let us = case.path("challenger").and_then(|p| p.time_us);
        let (Some(us), true) = (us, search.case.threads == threads && kind == dtype) else {
            continue;
        };
        let floor = &search.floor;
        if !(floor.flops > 0.0 && floor.bytes > 0.0 && us > 0.0) {
            continue;
        }
        out.push(Point {
            intensity: floor.flops / floor.bytes,
            rate: floor.flops / us / 1e3,
            series: series(names.iter().position(|n| *n == search.family).unwrap_or(0)),
            about: format!("{}: {}, {:.1} GFLOP/s", case.case, time(us), floor.flops / us / 1e3),
        });
    }
    out
}

fn plot(report: &Report, ceiling: &Ceiling, dtype: &str) -> Option<Plot> {
    let points = points(report, ceiling.threads, dtype);
    if points.is_empty() {
        return None;
    }
    let peak = ceiling.flops_per_second.get(dtype).copied().filter(|p| *p > 0.0)? / 1e9;
    let levels: Vec<(&str, f64)> = ["l1", "l2", "l3", "memory"]
        .into_iter()
        .filter_map(|l| Some((l, ceiling.bytes_per_second.get(l).copied().flatten()? / 1e9)))
        .filter(|(_, rate)| *rate > 0.0)
        .collect();
    // The ridge of the slowest level is in the picture.
    let slowest = levels.iter().map(|l| l.1).fold(f64::INFINITY, f64::min);
    let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
    let low_x = least(&mut points.iter().map(|p| p.intensity)) / 2.0;
    let high_x = points.iter().map(|p| p.intensity).fold(peak / slowest, f64::max) * 2.0;
    let low_y = least(&mut points.iter().map(|p| p.rate)) / 2.0;
    let names = families(report);
    let legend: Vec<(&str, &str, bool)> = names
        .iter()
        .enumerate()
        .map(|(n, name)| (*name, series(n), false))
        .filter(|(_, class, _)| points.iter().any(|p| p.series == *class))
        .collect();
    let mut d = Drawing::default();
    let top = 26.0 + d.legend(12.0, &legend);
    let bottom = top + 300.0;
    let x = Scale { curve: Curve::Log, from: (low_x, high_x), to: (58.0, WIDTH - 14.0) };
    let y = Scale { curve: Curve::Log, from: (low_y, peak * 2.0), to: (bottom, top) };
    d.axis_y(&y, 58.0, WIDTH - 14.0, "");
    d.axis_x(&x, top, bottom, "");
    d.line(58.0, y.at(peak), WIDTH - 14.0, y.at(peak), "axis");
    d.text(WIDTH - 16.0, y.at(peak) - 6.0, "end", "soft", &format!("{peak:.0} GFLOP/s"));
    for (name, rate) in levels {
        let from = low_x.max(low_y / rate);
        let ridge = (peak / rate).min(high_x);
        if from < ridge {
            d.line(x.at(from), y.at(from * rate), x.at(ridge), y.at(ridge * rate), "roof");
            // Beside the slope, at its upper third.
            let at = from * (ridge / from).powf(0.68);
            let label = format!("{name} {rate:.0} GB/s");
            d.text(x.at(at) - 5.0, y.at(at * rate) - 3.0, "end", "soft", &label);
        }
    }
    for point in &points {
        let class = format!("dot {}", point.series);
        d.dot(x.at(point.intensity), y.at(point.rate), &class, &point.about);
    }
    d.text(WIDTH / 2.0, bottom + 34.0, "middle", "soft", "operations per byte of the tensors");
    d.text(8.0, top - 9.0, "start", "soft", "GFLOP/s");
    Some(Plot {
        title: format!("Roofline, {dtype}, {} threads", ceiling.threads),
        caption: "Challengers of the held-out cases under the ceilings that were measured with \
                  the record. Bytes are those of the tensors, each once; cases whose \
                  operations weren't counted are left out."
            .to_string(),
        body: d.finish(),
        height: bottom + 42.0,
    })
}
