//! Drawing: scales, axes and marks as SVG text.

use crate::escape;
use crate::format::tick;

/// Width of every drawing in its own units: what a phone shows at full width, so that its text
/// stays readable there.
pub const WIDTH: f64 = 460.0;

/// How values become positions.
#[derive(Clone, Copy, Debug)]
pub enum Curve {
    Linear,
    /// Square root: small values near 0 stay apart.
    Root,
    Log,
}

/// A scale from values to positions.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub curve: Curve,
    pub from: (f64, f64),
    pub to: (f64, f64),
}

impl Scale {
    fn bend(&self, value: f64) -> f64 {
        match self.curve {
            Curve::Linear => value,
            Curve::Root => value.max(0.0).sqrt(),
            Curve::Log => value.max(1e-300).ln(),
        }
    }

    /// The position of a value; values outside lie on the edge.
    pub fn at(&self, value: f64) -> f64 {
        let (low, high) = (self.bend(self.from.0), self.bend(self.from.1));
        let share = if high > low { (self.bend(value) - low) / (high - low) } else { 0.5 };
        self.to.0 + share.clamp(0.0, 1.0) * (self.to.1 - self.to.0)
    }

    /// Round values inside, few enough to be labelled.
    pub fn ticks(&self) -> Vec<f64> {
        let (low, high) = self.from;
        let steps: &[f64] = match self.curve {
            Curve::Log if high / low > 1e4 => &[1.0],
            Curve::Log if high / low > 30.0 => &[1.0, 3.0],
            _ => &[1.0, 2.0, 5.0],
        };
        match self.curve {
            Curve::Log => decades(low, high)
                .flat_map(|d| steps.iter().map(move |s| s * d))
                .filter(|v| (low..=high).contains(v))
                .collect(),
            Curve::Root => {
                let all = decades(high / 1e4, high).flat_map(|d| [d, 2.0 * d, 5.0 * d]);
                let mut out = vec![0.0];
                // From the largest down, as long as labels keep apart.
                let mut inner: Vec<f64> = Vec::new();
                for value in all.filter(|v| *v <= high).collect::<Vec<_>>().into_iter().rev() {
                    let apart = |other: &f64| (self.at(*other) - self.at(value)).abs() > 44.0;
                    if inner.last().is_none_or(apart) && apart(&0.0) {
                        inner.push(value);
                    }
                }
                inner.reverse();
                out.append(&mut inner);
                out
            }
            Curve::Linear => {
                let span = high - low;
                let step = decades(span / 100.0, span)
                    .flat_map(|d| steps.iter().map(move |s| s * d))
                    .find(|step| span / step <= 6.0)
                    .unwrap_or(span.max(1e-9));
                let first = (low / step).ceil() as i64;
                let last = (high / step).floor() as i64;
                (first..=last.min(first + 20)).map(|i| i as f64 * step).collect()
            }
        }
    }
}

/// Powers of ten from below `low` to `high`.
fn decades(low: f64, high: f64) -> impl Iterator<Item = f64> {
    let first = low.max(1e-12).log10().floor() as i32;
    let last = high.max(1e-12).log10().ceil() as i32;
    (first..=last).map(|e| 10f64.powi(e))
}

/// A drawing under a caption.
pub struct Plot {
    pub title: String,
    pub caption: String,
    pub body: String,
    pub height: f64,
}

impl Plot {
    /// The drawing as a figure.
    pub fn html(&self) -> String {
        let (title, caption) = (escape::html(&self.title), escape::html(&self.caption));
        format!(
            "<figure><h2>{title}</h2><figcaption>{caption}</figcaption>\n\
             <svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"{title}\">{}</svg>\
             </figure>\n",
            self.height, self.body
        )
    }
}

/// Marks being drawn.
#[derive(Default)]
pub struct Drawing {
    out: String,
}

impl Drawing {
    pub fn finish(self) -> String {
        self.out
    }

    pub fn text(&mut self, x: f64, y: f64, anchor: &str, class: &str, text: &str) {
        let text = escape::html(text);
        self.out.push_str(&format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}</text>"
        ));
    }

    pub fn line(&mut self, x1: f64, y1: f64, x2: f64, y2: f64, class: &str) {
        self.out
            .push_str(&format!("<path class=\"{class}\" d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\"/>"));
    }

    pub fn path(&mut self, points: &[(f64, f64)], class: &str) {
        let steps: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        self.out.push_str(&format!("<path class=\"{class}\" d=\"M{}\"/>", steps.join("L")));
    }

    /// Many small dots in one element.
    pub fn cloud(&mut self, points: &[(f64, f64)], class: &str) {
        let dots: String = points.iter().map(|(x, y)| format!("M{x:.1} {y:.1}h0")).collect();
        self.out.push_str(&format!("<path class=\"cloud {class}\" d=\"{dots}\"/>"));
    }

    pub fn rect(&mut self, x1: f64, y: f64, x2: f64, height: f64, class: &str) {
        let (x, width) = (x1.min(x2), (x2 - x1).abs());
        self.out.push_str(&format!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
             height=\"{height:.1}\"/>"
        ));
    }

    /// A dot with a text that a pointer shows.
    pub fn dot(&mut self, x: f64, y: f64, class: &str, about: &str) {
        let about = escape::html(about);
        self.out.push_str(&format!(
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"><title>{about}</title></circle>"
        ));
    }

    /// A diamond: told from a dot without colour.
    pub fn diamond(&mut self, x: f64, y: f64, class: &str, about: &str) {
        let about = escape::html(about);
        self.out.push_str(&format!(
            "<path class=\"{class}\" d=\"M{x:.1} {:.1}l5.5 5.5l-5.5 5.5l-5.5 -5.5z\">\
             <title>{about}</title></path>",
            y - 5.5
        ));
    }

    /// Ticks and grid lines of a horizontal axis at the top of the plot area.
    pub fn axis_x(&mut self, scale: &Scale, top: f64, bottom: f64, unit: &str) {
        let mut last = f64::NEG_INFINITY;
        for value in scale.ticks() {
            let x = scale.at(value);
            self.line(x, top, x, bottom, "grid");
            if x - last > 40.0 {
                self.text(
                    x,
                    bottom + 16.0,
                    "middle",
                    "soft",
                    &format!("{}{unit}", tick(round(value))),
                );
                last = x;
            }
        }
    }

    /// Ticks and grid lines of a vertical axis.
    pub fn axis_y(&mut self, scale: &Scale, left: f64, right: f64, unit: &str) {
        let mut last = f64::INFINITY;
        for value in scale.ticks() {
            let y = scale.at(value);
            self.line(left, y, right, y, "grid");
            if last - y > 16.0 {
                self.text(
                    left - 6.0,
                    y + 4.0,
                    "end",
                    "soft",
                    &format!("{}{unit}", tick(round(value))),
                );
                last = y;
            }
        }
    }

    /// Names of series with their marks, in a row that wraps. Gives the height used.
    pub fn legend(&mut self, y: f64, series: &[(&str, &str, bool)]) -> f64 {
        let (mut x, mut row) = (8.0, y);
        for (name, class, ring) in series {
            let width = 24.0 + 7.2 * name.chars().count() as f64;
            if x + width > WIDTH && x > 8.0 {
                x = 8.0;
                row += 20.0;
            }
            match ring {
                true => self.diamond(x + 6.0, row, &format!("ring {class}"), name),
                false => self.dot(x + 6.0, row, &format!("dot {class}"), name),
            }
            self.text(x + 17.0, row + 4.0, "start", "", name);
            x += width + 10.0;
        }
        row - y + 20.0
    }
}

/// A tick without the dust of multiplication.
fn round(value: f64) -> f64 {
    if value == 0.0 {
        return 0.0;
    }
    let scale = 10f64.powi(2 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_hit_their_ends_and_clip() {
        for curve in [Curve::Linear, Curve::Root, Curve::Log] {
            let scale = Scale { curve, from: (1.0, 100.0), to: (0.0, 10.0) };
            assert!((scale.at(1.0) - 0.0).abs() < 1e-12);
            assert!((scale.at(100.0) - 10.0).abs() < 1e-12);
            assert!((scale.at(1e9) - 10.0).abs() < 1e-12);
            assert!(scale.ticks().len() < 30);
        }
        let log = Scale { curve: Curve::Log, from: (1.0, 100.0), to: (0.0, 10.0) };
        assert!((log.at(10.0) - 5.0).abs() < 1e-12);
    }

    #[test]
    fn text_is_escaped() {
        let mut drawing = Drawing::default();
        drawing.text(0.0, 0.0, "start", "", "<b>");
        drawing.dot(0.0, 0.0, "dot", "a\"b");
        let out = drawing.finish();
        assert!(out.contains("&lt;b&gt;") && out.contains("a&quot;b"));
    }
}
