//! Predicted against measured times.

use super::{families, series};
use crate::Report;
use crate::svg::{Curve, Drawing, Plot, Scale, WIDTH};

pub fn plot(report: &Report) -> Option<Plot> {
    let record = &report.record;
    let names = families(report);
    let mut clouds: Vec<Vec<(f64, f64)>> = vec![Vec::new(); names.len()];
    for search in record.current_labels() {
        let Some(cloud) =
            names.iter().position(|n| *n == search.family).and_then(|n| clouds.get_mut(n))
        else {
            continue;
        };
        let Some(frozen) = record.frozen(&search.case.id) else { continue };
        for (candidate, stated) in frozen.candidates.iter().enumerate() {
            if let Some(label) = search.label(candidate) {
                cloud.push((stated.prediction_us, label));
            }
        }
    }
    let all = || clouds.iter().flatten().flat_map(|(a, b)| [*a, *b]);
    let (low, high) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    if !(low > 0.0 && high >= low) {
        return None;
    }
    let (low, high) = (low / 1.2, high * 1.2);
    let mut d = Drawing::default();
    let legend: Vec<(&str, &str, bool)> =
        names.iter().enumerate().map(|(n, name)| (*name, series(n), false)).collect();
    let top = 26.0 + d.legend(12.0, &legend);
    let bottom = top + 330.0;
    let x = Scale { curve: Curve::Log, from: (low, high), to: (58.0, WIDTH - 14.0) };
    let y = Scale { curve: Curve::Log, from: (low, high), to: (bottom, top) };
    d.axis_y(&y, 58.0, WIDTH - 14.0, "");
    d.axis_x(&x, top, bottom, "");
    d.line(x.at(low), y.at(low), x.at(high), y.at(high), "axis");
    for (n, (name, cloud)) in names.iter().zip(&clouds).enumerate() {
        let fit = record.profile.as_ref().and_then(|p| p.fit(name));
        for end in fit.map(|f| [f.confidence.low, f.confidence.high]).into_iter().flatten() {
            // measured = end · predicted, cut at the frame.
            let from = low.max(low / end);
            let to = high.min(high / end);
            let class = format!("stroke dash {}", series(n));
            d.line(x.at(from), y.at(from * end), x.at(to), y.at(to * end), &class);
        }
        let points: Vec<(f64, f64)> = cloud.iter().map(|(p, l)| (x.at(*p), y.at(*l))).collect();
        d.cloud(&points, series(n));
    }
    d.text(WIDTH / 2.0, bottom + 34.0, "middle", "soft", "predicted, µs");
    d.text(8.0, top - 9.0, "start", "soft", "measured, µs");
    Some(Plot {
        title: "Predicted against measured".to_string(),
        caption: "Every candidate of every held-out case. The line is equality; dashed lines \
                  bound the model's interval."
            .to_string(),
        body: d.finish(),
        height: bottom + 42.0,
    })
}
