//! What both formats have: rows of samples with a label.

use crate::math::{mean, median, smallest};
use crate::verdict::{Checks, Rule};
use std::collections::BTreeMap;

/// Labels agree with their samples within this, relative: tools write them with 6 digits or more.
const LABEL: f64 = 1e-6;

/// A row whose later half of samples is this many times slower or faster than its earlier half
/// drifted: clocks or load changed while it was measured. Clean files of GPUs stay under 1.14.
const DRIFT: f64 = 1.25;

/// No sample is this many times faster than the median of its row.
const FASTER: f64 = 2.0;

/// Share by which samples may exceed the time that measuring them took: clocks differ.
const CLOCKS: f64 = 0.01;

/// One configuration.
#[derive(Debug, Default)]
pub struct Row {
    /// Where it stands.
    pub place: String,
    /// Time, if the configuration is valid.
    pub label: Option<f64>,
    /// Samples in the label's unit.
    pub samples: Vec<f64>,
    /// Wall time of measuring the samples, in their unit, if stated.
    pub wall: Option<f64>,
    /// Rates by name: work per time.
    pub rates: Vec<(String, f64)>,
}

/// The rule by which a tool makes a label of samples.
const STATISTICS: [&str; 3] = ["mean", "median", "minimum"];

fn statistic(name: &str, samples: &[f64]) -> Option<f64> {
    match name {
        "mean" => mean(samples),
        "median" => median(samples),
        _ => smallest(samples),
    }
}

fn agrees(a: f64, b: f64) -> bool {
    (a - b).abs() <= LABEL * a.abs().max(b.abs())
}

/// Checks rows of either format.
pub fn check(rows: &[Row], checks: &mut Checks) {
    let valid: Vec<&Row> = rows.iter().filter(|r| r.label.is_some()).collect();
    checks
        .note(Rule::ForeignFormat, format!("{} configurations, {} valid", rows.len(), valid.len()));
    samples(&valid, checks);
    labels(&valid, checks);
    rates(&valid, checks);
    times(&valid, checks);
    drift(&valid, checks);
}

fn samples(rows: &[&Row], checks: &mut Checks) {
    // The most frequent number; one row with fewer samples has lost some.
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    for row in rows {
        *counts.entry(row.samples.len()).or_default() += 1;
    }
    let Some((usual, _)) = counts.iter().max_by_key(|(_, rows)| **rows) else { return };
    for row in rows {
        let n = row.samples.len();
        checks.that(Rule::ForeignSamples, n == *usual && n > 0, || {
            format!("{}: {n} samples, the other rows have {usual}", row.place)
        });
    }
}

fn labels(rows: &[&Row], checks: &mut Checks) {
    // The statistic that explains most labels is the file's.
    let fits = |name: &&&str| {
        let holds = |row: &&&Row| {
            let (label, own) = (row.label, statistic(name, &row.samples));
            label.zip(own).is_some_and(|(a, b)| agrees(a, b))
        };
        rows.iter().filter(holds).count()
    };
    let counts: Vec<usize> = STATISTICS.iter().map(|name| fits(&name)).collect();
    let Some(most) = counts.iter().max() else { return };
    let Some(name) = STATISTICS.iter().zip(&counts).find(|(_, c)| *c == most).map(|(n, _)| n)
    else {
        return;
    };
    for row in rows {
        let own = statistic(name, &row.samples);
        let holds = row.label.zip(own).is_some_and(|(a, b)| agrees(a, b));
        checks.that(Rule::ForeignLabels, holds, || {
            format!(
                "{}: the label is {:?}, the {name} of its samples {own:?}",
                row.place, row.label
            )
        });
    }
    checks.note(Rule::ForeignLabels, format!("labels are the {name} of the samples"));
}

fn rates(rows: &[&Row], checks: &mut Checks) {
    let mut work: BTreeMap<&str, Vec<(f64, &Row)>> = BTreeMap::new();
    for row in rows {
        for (name, rate) in &row.rates {
            let label = row.label.unwrap_or(f64::NAN);
            work.entry(name).or_default().push((rate * label, row));
        }
    }
    for (name, products) in work {
        let values: Vec<f64> = products.iter().map(|p| p.0).collect();
        let usual = median(&values);
        for (product, row) in products {
            let holds = usual.is_some_and(|usual| agrees(product, usual));
            checks.that(Rule::ForeignRates, holds, || {
                format!("{}: {name} times its label is {product}, elsewhere {usual:?}", row.place)
            });
        }
    }
}

fn times(rows: &[&Row], checks: &mut Checks) {
    for row in rows {
        let positive = |t: &f64| t.is_finite() && *t > 0.0;
        let all = row.label.iter().chain(&row.samples).all(positive);
        checks.that(Rule::ForeignTimes, all, || format!("{}: a time of 0 or less", row.place));
        if let (Some(least), Some(middle)) = (smallest(&row.samples), median(&row.samples)) {
            checks.that(Rule::ForeignTimes, least * FASTER >= middle, || {
                format!("{}: a sample of {least} where the median is {middle}", row.place)
            });
        }
        if let Some(wall) = row.wall {
            let sum: f64 = row.samples.iter().sum();
            checks.that(Rule::ForeignTimes, sum <= wall * (1.0 + CLOCKS), || {
                format!("{}: samples of {sum} in a benchmark of {wall}", row.place)
            });
        }
    }
}

fn drift(rows: &[&Row], checks: &mut Checks) {
    let mut largest: (f64, &str) = (1.0, "");
    for row in rows {
        let (early, late) = row.samples.split_at(row.samples.len() / 2);
        let (Some(early), Some(late)) = (median(early), median(late)) else { continue };
        let ratio = (late / early).max(early / late);
        if ratio > largest.0 {
            largest = (ratio, &row.place);
        }
        checks.that(Rule::ForeignDrift, ratio <= DRIFT, || {
            format!("{}: the halves have medians {early} and {late}", row.place)
        });
    }
    if !largest.1.is_empty() {
        checks.note(Rule::ForeignDrift, format!("largest: {:.3} times, {}", largest.0, largest.1));
    }
}
