//! The report for people.

use std::fmt::Write as _;

use tilewright_plan::calibrate::service::FEATURES;

use super::{BandReport, ComparisonReport, IdentifiabilityReport, ReferenceReport, ReplayReport};
use super::{ModelReport, Report};
use crate::import::names::printable;
use crate::import::space::Summary;
use crate::import::transfer::TransferReport;

/// The whole report. Writing to a string can't fail.
pub fn render(report: &Report, every_fold: bool) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{} rows of {} on {}: {} cases, {} shapes, {} trials without a time",
        report.rows,
        report.family,
        printable(&report.target),
        report.cases,
        report.shapes,
        report.rejected
    );
    let _ = writeln!(out, "data {}\ncode {}", report.data_sha256, report.code_sha256);
    if let Some(reference) = &report.reference {
        out.push_str(&capacities(reference));
        if every_fold {
            out.push_str(&folds(reference));
        }
    }
    if let Some(model) = &report.model {
        out.push_str(&fitted(model));
    }
    out.push_str(&comparisons(&report.comparisons));
    if let Some(own) = report.comparisons.first() {
        out.push_str(&cases(own));
    }
    for found in report.identifiability.iter().take(if every_fold { usize::MAX } else { 1 }) {
        out.push_str(&identifiability(found));
    }
    if !every_fold && report.identifiability.len() > 1 {
        let more = report.identifiability.len() - 1;
        let _ = writeln!(out, "  ({more} more designs: --all)");
    }
    for replay in &report.replays {
        out.push_str(&guard(replay));
    }
    out.push('\n');
    for note in &report.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

fn percent(value: f64) -> String {
    format!("{:.2} %", 100.0 * value)
}

fn capacities(reference: &ReferenceReport) -> String {
    let mut out = String::from(
        "\nreference procedure: six nonnegative coefficients (us), capacity by \
         leave-one-shape-out regret\n",
    );
    let _ = write!(out, "  {:>8}", "capacity");
    for name in FEATURES {
        let _ = write!(out, "  {name:>22}");
    }
    let _ = writeln!(out, "  {:>9}  {:>9}  {:>9}", "cv mean", "cv max", "rmse");
    for c in &reference.capacities {
        let mark = if c.capacity == reference.chosen { "*" } else { "" };
        let _ = write!(out, "  {:>8}", format!("{}{mark}", c.capacity));
        for name in FEATURES {
            let value = c.coefficients.get(name).copied().unwrap_or(0.0);
            let _ = write!(out, "  {value:>22}");
        }
        let _ = writeln!(
            out,
            "  {:>9}  {:>9}  {:>9}",
            percent(c.cv_mean_regret),
            percent(c.cv_max_regret),
            percent(c.training_relative_rmse)
        );
    }
    let _ = writeln!(out, "  * chosen: {}", reference.chosen);
    out
}

fn folds(reference: &ReferenceReport) -> String {
    let mut out = String::new();
    for c in &reference.capacities {
        let _ = writeln!(out, "\ncapacity {}: folds that leave the case's shape out", c.capacity);
        for f in &c.folds {
            let _ = writeln!(
                out,
                "  {:<22}  {:<22}  predicted {:>20} us  measured {:>20} us  best {:>20} us  {}",
                printable(&f.case),
                printable(&f.candidate),
                f.prediction_us,
                f.measured_us,
                f.best_measured_us,
                percent(f.regret)
            );
        }
    }
    out
}

fn fitted(model: &ModelReport) -> String {
    let mut out = format!(
        "\nwhole-launch: {} coefficients (us), feature sets and capacities averaged\n",
        model.terms.len()
    );
    for t in &model.terms {
        let _ = writeln!(out, "  {:<24}  {:>24}  {}", t.term, t.coefficient, t.counts);
    }
    let _ = writeln!(
        out,
        "  {:.0} % interval: prediction x {:.3} to x {:.3} (made without their shape it holds {} of the labels)",
        100.0 * model.level,
        model.low,
        model.high,
        percent(model.covered)
    );
    let _ = writeln!(
        out,
        "  worth measuring: predictions up to {:.3} times the best; a challenger must promise \
         more than {:.3} times",
        model.slack, model.margin
    );
    out
}

fn band(band: &Option<BandReport>) -> String {
    match band {
        Some(b) => format!(" [{:.2}, {:.2}]", 100.0 * b.low, 100.0 * b.high),
        None => String::new(),
    }
}

fn comparisons(list: &[ComparisonReport]) -> String {
    let mut out = String::from(
        "\nregret of the pick (measured/best - 1); [90 % band from resampled labels]\n",
    );
    for c in list {
        let _ = writeln!(
            out,
            "  {:<52} mean {}{}  median {}  max {}{}  top-3 {}{}  ({})",
            printable(&c.name),
            percent(c.mean),
            band(&c.mean_band),
            percent(c.median),
            percent(c.max),
            band(&c.max_band),
            percent(c.top3),
            band(&c.top3_band),
            c.protocol
        );
    }
    match list.first() {
        Some(ComparisonReport { shapes_interval: Some(b), .. }) => {
            let _ = writeln!(
                out,
                "  90 % bootstrap interval by shape of the first mean: {} to {}",
                percent(b.low),
                percent(b.high)
            );
        }
        Some(ComparisonReport { shapes_note: Some(note), .. }) => {
            let _ = writeln!(out, "  no bootstrap interval by shape: {note}");
        }
        _ => {}
    }
    out
}

fn cases(own: &ComparisonReport) -> String {
    let mut out = format!("\n{}, every case\n", own.name);
    for c in &own.cases {
        let _ = writeln!(
            out,
            "  {:<22}  {:<28}  predicted {:>10.3} us  measured {:>10.3} us  best {:>10.3} us  \
             {:>8}  top-3 {:>8}",
            printable(&c.case),
            printable(&c.candidate),
            c.score,
            c.label_us,
            c.best_us,
            percent(c.regret),
            percent(c.top3_regret)
        );
    }
    out
}

fn identifiability(found: &IdentifiabilityReport) -> String {
    let condition = match found.condition {
        Some(value) => format!("{value:.1}"),
        None => "infinite: columns are dependent".to_string(),
    };
    let mut out = format!("\ndesign {}\n  condition number {condition}\n", found.design);
    for (j, c) in found.coefficients.iter().enumerate() {
        let row = found.correlation.get(j).map(Vec::as_slice).unwrap_or_default();
        let closest = (0..row.len()).filter(|i| *i != j).max_by(|a, b| row[*a].total_cmp(&row[*b]));
        let closest = closest.and_then(|i| Some((found.coefficients.get(i)?, row.get(i)?)));
        let closest = closest.map_or(String::new(), |(other, cosine)| {
            format!("; cosine {cosine:.3} with {}", other.feature)
        });
        let _ = writeln!(
            out,
            "  {:<24}  {:>12.5e}  [{:.5e}, {:.5e}] without a shape  {:>8} of the time  {}{closest}",
            c.feature,
            c.coefficient,
            c.range[0],
            c.range[1],
            percent(c.share),
            c.meaning
        );
    }
    out
}

fn guard(replay: &ReplayReport) -> String {
    let mut out = format!(
        "\nguarded incumbent on the replay, gains predicted by {}\n  margin {:.4} (largest \
         over-prediction of a gain among the training cases)\n",
        replay.model, replay.margin
    );
    for c in &replay.cases {
        let _ = writeln!(
            out,
            "  {:<22}  predicted {:.4}  measured {:.4}  {}",
            printable(&c.case),
            c.predicted,
            c.measured,
            if c.accepted { "challenger" } else { "incumbent kept" }
        );
    }
    let _ = writeln!(
        out,
        "  accepts {}, of them {} losers; keeps {} of {} wins; mean gain {:.4} (always \
         challenger {:.4}, always incumbent 1)",
        replay.accepted,
        replay.accepted_losers,
        replay.wins_kept,
        replay.wins,
        replay.mean_gain,
        replay.mean_gain_always
    );
    out
}

/// The cross-device report.
pub fn transfer(first: &str, second: &str, report: &TransferReport) -> String {
    let (first, second) = (printable(first), printable(second));
    let mut out = format!(
        "chosen on {first}, measured on {second}: {} configurations that both measured\n",
        report.common
    );
    let _ =
        writeln!(out, "  rank correlation of times                 {:.4}", report.rank_correlation);
    for (what, one, three, ten) in [
        (
            "the first device's fastest",
            report.best_of_first,
            report.best_of_first_three,
            report.best_of_first_ten,
        ),
        ("a model fitted on the first", report.model, report.model_three, report.model_ten),
    ] {
        let _ = writeln!(
            out,
            "  {what:<28} regret {:>9}  top-3 {:>9}  top-10 {:>9}",
            percent(one),
            percent(three),
            percent(ten)
        );
    }
    let _ =
        writeln!(out, "  that model on its own device regret {:>9}", percent(report.model_at_home));
    let _ = writeln!(
        out,
        "  a blind pick                 regret {:>9} in the mean, {:>9} in the median",
        percent(report.blind_mean),
        percent(report.blind_median)
    );
    let _ = writeln!(out, "  fastest on the second: {}", printable(&report.fastest[1]));
    let _ = writeln!(out, "  fastest on the first:  {}", printable(&report.fastest[0]));
    out
}

/// A tuning space in a few lines.
pub fn space(s: &Summary) -> String {
    let word = |text: &Option<String>| printable(text.as_deref().unwrap_or("not stated"));
    let mut out = format!(
        "kernel {}, problem {}, device {}\n  {} configurations of {} parameters, {} without a time\n",
        word(&s.kernel),
        word(&s.problem),
        word(&s.device),
        s.trials,
        s.parameters.len(),
        s.failed
    );
    if let (Some(best), Some(us)) = (&s.best, s.best_us) {
        let _ = writeln!(out, "  fastest {us:.3} us: {}", printable(best));
    }
    if let Some(ratio) = s.median_over_best {
        let _ = writeln!(out, "  the median configuration takes {ratio:.3} times as long");
    }
    out
}
