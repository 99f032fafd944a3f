//! The guarded incumbent: a challenger replaces the incumbent plan only if its predicted gain
//! clears a margin, which is set on training data alone.

use super::bands::quantile;
use super::data::Dataset;
use super::evaluation::{constant_picks, preference};
use super::fit::picks_by;

/// A pair of schedules for one case: gains are incumbent/challenger, over 1 for the challenger.
#[derive(Clone, Debug, PartialEq)]
pub struct GuardCase {
    /// The case.
    pub case: String,
    /// Ratio of predicted times.
    pub predicted: f64,
    /// Ratio of measured times.
    pub measured: f64,
}

impl GuardCase {
    /// How much larger the predicted gain is than the measured.
    pub fn over_prediction(&self) -> f64 {
        self.predicted / self.measured
    }

    /// What a margin must outlast so that the challenger isn't taken for what it isn't: 1 where it
    /// did gain, however much less than was predicted.
    pub fn broken_promise(&self) -> f64 {
        if self.measured >= 1.0 { 1.0 } else { self.over_prediction() }
    }
}

/// The margin that training cases call for: their largest over-prediction of a gain, at least 1.
pub fn margin(training: &[GuardCase]) -> f64 {
    training.iter().map(GuardCase::over_prediction).fold(1.0, f64::max)
}

/// The least gain that counts: a smaller predicted one is none.
pub const GAIN: f64 = 0.01;

/// Share of the promised gains that are kept, or whose over-prediction the margin covers.
pub const COVERED: f64 = 0.8;

/// The margin that covers [`COVERED`] of the broken promises ([`GuardCase::broken_promise`]) of those
/// training cases that promised a gain, i.e. were predicted to gain more than [`GAIN`]; of all, the
/// largest, where none did. At least 1 + [`GAIN`]: so where at least four of five promises were kept,
/// every predicted gain beyond that counts, and up to a fifth of such challengers may lose.
///
/// [`margin`] lets a gain pass only where the worst over-prediction of all would leave one: of many
/// cases it lets nearly nothing pass. Errors grow with the gains, so the over-predictions of large
/// gains that were there say little of small ones, and don't count.
pub fn covering_margin(training: &[GuardCase]) -> f64 {
    let promised = training.iter().filter(|c| c.predicted > 1.0 + GAIN);
    let mut broken: Vec<f64> = promised.map(GuardCase::broken_promise).collect();
    broken.sort_by(f64::total_cmp);
    let largest = || training.iter().map(GuardCase::broken_promise).fold(1.0, f64::max);
    let margin = if broken.is_empty() { largest() } else { quantile(&broken, COVERED) };
    margin.max(1.0 + GAIN)
}

/// Training cases of a model by its held-out predictions: in every case the incumbent's row
/// against the model's pick. Without incumbents the best constant rule is the incumbent. Rows
/// without a positive prediction take no part.
pub fn training_cases(data: &Dataset, predictions: &[f64], incumbents: &[usize]) -> Vec<GuardCase> {
    let rows: Vec<usize> = data.all().into_iter().filter(|r| predictions[*r] > 0.0).collect();
    let incumbents: Vec<usize> = if incumbents.is_empty() {
        let order = preference(data, &rows);
        constant_picks(data, &rows, &order).iter().map(|p| p.row).collect()
    } else {
        incumbents.to_vec()
    };
    let picks = picks_by(data, &rows, |r| predictions[r]);
    let mut cases = Vec::new();
    for incumbent in incumbents {
        let Some(sample) = data.samples().get(incumbent) else { continue };
        if !rows.contains(&incumbent) {
            continue;
        }
        let Some(pick) = picks.iter().find(|p| p.case == sample.case) else { continue };
        cases.push(GuardCase {
            case: sample.case.clone(),
            predicted: predictions[incumbent] / pick.prediction,
            measured: sample.label / pick.label,
        });
    }
    cases
}

/// What the guard did with one case.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The case.
    pub case: GuardCase,
    /// Whether the challenger was accepted: its predicted gain exceeds the margin.
    pub accepted: bool,
}

/// The guard on cases whose measurements it may not see.
#[derive(Clone, Debug, PartialEq)]
pub struct GuardReport {
    /// The margin.
    pub margin: f64,
    /// Every case in order.
    pub decisions: Vec<Decision>,
}

impl GuardReport {
    /// Decides every case.
    pub fn new(margin: f64, cases: Vec<GuardCase>) -> Self {
        let decide = |case: GuardCase| Decision { accepted: case.predicted > margin, case };
        GuardReport { margin, decisions: cases.into_iter().map(decide).collect() }
    }

    fn count(&self, wanted: impl Fn(&Decision) -> bool) -> usize {
        self.decisions.iter().filter(|d| wanted(d)).count()
    }

    /// Challengers accepted.
    pub fn accepted(&self) -> usize {
        self.count(|d| d.accepted)
    }

    /// Challengers accepted that were slower than the incumbent.
    pub fn accepted_losers(&self) -> usize {
        self.count(|d| d.accepted && d.case.measured < 1.0)
    }

    /// Challengers that were faster.
    pub fn wins(&self) -> usize {
        self.count(|d| d.case.measured > 1.0)
    }

    /// Challengers that were faster and accepted.
    pub fn wins_kept(&self) -> usize {
        self.count(|d| d.accepted && d.case.measured > 1.0)
    }

    /// Geometric mean of the gains that result from the decisions; 1 of none.
    pub fn mean_gain(&self) -> f64 {
        geometric(self.decisions.iter().map(|d| if d.accepted { d.case.measured } else { 1.0 }))
    }

    /// Geometric mean of the gains if every challenger were accepted; 1 of none.
    pub fn mean_gain_always(&self) -> f64 {
        geometric(self.decisions.iter().map(|d| d.case.measured))
    }
}

fn geometric(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    libm::exp(super::fit::mean(values.map(libm::log)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(predicted: f64, measured: f64) -> GuardCase {
        GuardCase { case: String::new(), predicted, measured }
    }

    #[test]
    fn the_margin_is_the_largest_over_prediction() {
        assert_eq!(margin(&[case(1.2, 1.0), case(1.5, 1.2), case(0.9, 1.1)]), 1.25);
        assert_eq!(margin(&[case(0.5, 1.0)]), 1.0);
    }

    #[test]
    fn the_covering_margin_outlasts_four_of_five_promises() {
        // Two promises of five kept, three broken by 1.2, 1.25 and 1.5; what promised 1 % or less
        // doesn't count.
        let cases = [
            case(1.5, 1.0),
            case(1.21, 1.1),
            case(1.08, 0.9),
            case(1.125, 0.9),
            case(1.2, 0.8),
            case(1.01, 0.5),
        ];
        assert!((covering_margin(&cases) - 1.3).abs() < 1e-12, "{}", covering_margin(&cases));
        // Both sides of a kept promise.
        assert_eq!(case(1.5, 1.0).broken_promise(), 1.0);
        assert_eq!(case(1.5, 0.75).broken_promise(), 2.0);
        // Both sides of the least gain.
        assert_eq!(covering_margin(&[case(1.011, 0.5)]), 2.022);
        // None promised a gain: the largest of all broken ones.
        assert_eq!(covering_margin(&[case(1.01, 0.5), case(1.0, 0.8)]), 2.02);
        // Kept promises ask for no more than the least gain.
        assert_eq!(covering_margin(&[case(1.2, 1.5), case(1.1, 1.3)]), 1.01);
        // Three of twenty may lose any amount; one more and the margin is theirs.
        let mut kept = vec![case(1.1, 1.05); 17];
        kept.extend(vec![case(1.1, 0.5); 3]);
        assert_eq!(covering_margin(&kept), 1.01);
        kept.splice(..1, [case(1.1, 0.5)]);
        assert!(covering_margin(&kept) > 1.2, "{}", covering_margin(&kept));
        assert_eq!(covering_margin(&[]), 1.01);
    }

    #[test]
    fn the_guard_sees_predictions_only() {
        let cases = vec![case(1.3, 1.1), case(1.3, 0.9), case(1.2, 1.5), case(1.1, 0.8)];
        let report = GuardReport::new(1.25, cases);
        assert_eq!(report.accepted(), 2);
        assert_eq!(report.accepted_losers(), 1);
        assert_eq!((report.wins(), report.wins_kept()), (2, 1));
        assert!((report.mean_gain() - (1.1f64 * 0.9).powf(0.25)).abs() < 1e-12);
    }
}
