//! What measuring the K best-ranked candidates leaves.

use super::{families, series};
use crate::Report;
use crate::svg::{Curve, Drawing, Plot, Scale, WIDTH};

/// Mean regret over cases of the best label among the K smallest predictions, K from 1.
fn curve(report: &Report, family: &str) -> Vec<f64> {
    let record = &report.record;
    let mut sums: Vec<f64> = Vec::new();
    let mut count = 0.0;
    let cases: Vec<_> = record.current_labels().filter(|s| s.family == family).collect();
    // As far as every case goes.
    let longest = cases.iter().map(|s| s.candidates.len()).min().unwrap_or(0);
    for search in cases {
        let Some(frozen) = record.frozen(&search.case.id) else { continue };
        let Some(best) = search.best() else { continue };
        let mut ranked: Vec<usize> = (0..frozen.candidates.len()).collect();
        let prediction = |c: &usize| frozen.candidates.get(*c).map_or(0.0, |c| c.prediction_us);
        ranked.sort_by(|a, b| prediction(a).total_cmp(&prediction(b)));
        let mut least = f64::INFINITY;
        let mut own = Vec::new();
        for candidate in ranked.iter().take(longest) {
            least = least.min(search.label(*candidate).unwrap_or(f64::INFINITY));
            own.push(least / best - 1.0);
        }
        // A case whose first choice has no label can't be averaged.
        if own.iter().all(|r| r.is_finite()) {
            sums.resize(sums.len().max(own.len()), 0.0);
            for (sum, value) in sums.iter_mut().zip(own) {
                *sum += value;
            }
            count += 1.0;
        }
    }
    sums.iter().map(|sum| sum / count).collect()
}

pub fn plot(report: &Report) -> Option<Plot> {
    let curves: Vec<(&str, Vec<f64>)> = families(report)
        .into_iter()
        .map(|f| (f, curve(report, f)))
        .filter(|(_, c)| !c.is_empty())
        .collect();
    let longest = curves.iter().map(|(_, c)| c.len()).max()?;
    let largest = curves.iter().flat_map(|(_, c)| c).copied().fold(0.001, f64::max);
    let mut d = Drawing::default();
    let legend: Vec<(&str, &str, bool)> =
        curves.iter().enumerate().map(|(n, (name, _))| (*name, series(n), false)).collect();
    let top = 8.0 + d.legend(12.0, &legend);
    let bottom = top + 240.0;
    let curve = if longest > 12 { Curve::Log } else { Curve::Linear };
    let x = Scale { curve, from: (1.0, longest as f64), to: (52.0, WIDTH - 16.0) };
    let y = Scale { curve: Curve::Linear, from: (0.0, 105.0 * largest), to: (bottom, top) };
    d.axis_y(&y, 52.0, WIDTH - 16.0, " %");
    d.axis_x(&x, top, bottom, "");
    for (n, (name, values)) in curves.iter().enumerate() {
        let points: Vec<(f64, f64)> = values
            .iter()
            .enumerate()
            .map(|(k, regret)| (x.at(k as f64 + 1.0), y.at(100.0 * regret)))
            .collect();
        d.path(&points, &format!("stroke {}", series(n)));
        for (k, (px, py)) in points.iter().enumerate().take(8) {
            let regret = values.get(k).copied().unwrap_or(0.0);
            let about = format!("{name}, best of {}: {:.2} %", k + 1, 100.0 * regret);
            d.dot(*px, *py, &format!("dot {}", series(n)), &about);
        }
    }
    d.text(WIDTH / 2.0, bottom + 34.0, "middle", "soft", "K: candidates measured");
    Some(Plot {
        title: "Measuring the model's best K".to_string(),
        caption: "Mean regret over held-out cases of the best among the K smallest predictions."
            .to_string(),
        body: d.finish(),
        height: bottom + 42.0,
    })
}
