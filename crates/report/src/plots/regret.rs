//! Regret by shape, with the noise floor.

use crate::Report;
use crate::format::{or_dash, percent};
use crate::svg::{Curve, Drawing, Plot, Scale, WIDTH};

const ROW: f64 = 34.0;

pub fn plot(report: &Report) -> Option<Plot> {
    let cases = &report.results.cases;
    let values = cases.iter().flat_map(|c| {
        [c.regret.challenger, c.regret.incumbent, c.noise().map(|n| n - 1.0)].into_iter().flatten()
    });
    let largest = values.fold(0.01, f64::max);
    if cases.is_empty() {
        return None;
    }
    let mut d = Drawing::default();
    let top = 8.0 + d.legend(12.0, &[("challenger", "s0", false), ("incumbent", "s1", true)]);
    let bottom = top + ROW * cases.len() as f64;
    let scale =
        Scale { curve: Curve::Root, from: (0.0, 100.0 * largest * 1.05), to: (18.0, WIDTH - 20.0) };
    d.axis_x(&scale, top, bottom, " %");
    for (i, case) in cases.iter().enumerate() {
        let y = top + ROW * i as f64;
        d.text(10.0, y + 13.0, "start", "", &case.case);
        let line = y + 23.0;
        if let Some(noise) = case.noise() {
            d.rect(scale.at(0.0), line - 6.0, scale.at(100.0 * (noise - 1.0)), 12.0, "band");
        }
        d.line(scale.at(0.0), line, WIDTH - 20.0, line, "grid");
        let about =
            |who: &str, regret| format!("{}, {who}: {}", case.case, or_dash(regret, percent));
        if let Some(regret) = case.regret.incumbent {
            let about = about("incumbent", case.regret.incumbent);
            d.diamond(scale.at(100.0 * regret), line, "ring s1", &about);
        }
        if let Some(regret) = case.regret.challenger {
            let about = about("challenger", case.regret.challenger);
            d.dot(scale.at(100.0 * regret), line, "dot s0", &about);
        }
    }
    Some(Plot {
        title: "Regret by case".to_string(),
        caption: "How much slower than the best measured candidate; the band is the case's noise \
                  floor. The axis grows with the square root."
            .to_string(),
        body: d.finish(),
        height: bottom + 24.0,
    })
}
