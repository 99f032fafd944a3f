//! The guarded incumbent: a challenger replaces the incumbent plan only if its predicted gain
//! clears a margin, which is set on training data alone.

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
    /// How far the repetitions of the two labels lie apart, relative to them: the larger of both. 0
    /// where that isn't known.
    pub spread: f64,
}

impl GuardCase {
    /// How much larger the predicted gain is than the measured.
    pub fn over_prediction(&self) -> f64 {
        self.predicted / self.measured
    }

    /// Whether the challenger was slower beyond a tie: by more than [`TIE`] and more than
    /// [`BY_CHANCE`] of the labels' spread.
    pub fn lost(&self) -> bool {
        self.measured * (1.0 + TIE.max(BY_CHANCE * self.spread)) < 1.0
    }
}

/// The margin that training cases call for: their largest over-prediction of a gain, at least 1.
pub fn margin(training: &[GuardCase]) -> f64 {
    training.iter().map(GuardCase::over_prediction).fold(1.0, f64::max)
}

/// Times of one plan differ by about this share, so a challenger that is slower by no more is a
/// tie.
pub const TIE: f64 = 0.02;

/// Share of their spread by which two labels of one plan differ by chance: each is a quantile of
/// eight rounds or more, known to about a quarter of how far those lie apart.
pub const BY_CHANCE: f64 = 0.5;

/// The least gain that counts: a smaller predicted one is none. It is less than a tie, since
/// predictions of schedules that differ in one thing have their errors in common: on training data
/// of two machines, gains predicted at 1 to 2 % were as real as larger ones.
pub const GAIN: f64 = 0.01;

/// Share of the accepted training cases that may have lost: their labels are noisy too.
pub const LOST: f64 = 0.05;

/// The smallest margin, from 1 + [`GAIN`] up, at which no more than a share of [`LOST`] of the
/// training cases that it accepts were slower beyond a tie ([`GuardCase::lost`]). `forgiven` of them pass where such
/// a share of all cases, accepted or not, is no less: then so few pairs of labels don't set the
/// margin.
///
/// [`margin`] lets a gain pass only where the worst over-prediction of all would leave one; this
/// asks what acceptance would have cost.
pub fn margin_by_losses(training: &[GuardCase], forgiven: u32) -> f64 {
    let mut margins: Vec<f64> = training.iter().map(|c| c.predicted).collect();
    margins.retain(|m| *m > 1.0 + GAIN);
    margins.push(1.0 + GAIN);
    margins.sort_by(f64::total_cmp);
    let forgiven = f64::from(forgiven);
    let forgiven = if LOST * training.len() as f64 >= forgiven { forgiven } else { 0.0 };
    let holds = |margin: f64| {
        let accepted = training.iter().filter(|c| c.predicted > margin);
        let (mut all, mut lost) = (0usize, 0usize);
        for case in accepted {
            all += 1;
            lost += usize::from(case.lost());
        }
        lost as f64 <= (LOST * all as f64).max(forgiven)
    };
    // The largest accepts nothing.
    margins.into_iter().find(|m| holds(*m)).unwrap_or(1.0 + GAIN)
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
            spread: data.spread(incumbent).max(data.spread(pick.row)),
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
        GuardCase { case: String::new(), predicted, measured, spread: 0.0 }
    }

    #[test]
    fn the_margin_is_the_largest_over_prediction() {
        assert_eq!(margin(&[case(1.2, 1.0), case(1.5, 1.2), case(0.9, 1.1)]), 1.25);
        assert_eq!(margin(&[case(0.5, 1.0)]), 1.0);
    }

    #[test]
    fn the_margin_by_losses_asks_what_acceptance_would_have_cost() {
        // One loser among few: the margin is the gain that was promised and lost.
        let cases = [case(1.3, 1.1), case(1.2, 0.97), case(1.25, 0.99), case(1.1, 0.9)];
        assert_eq!(margin_by_losses(&cases, 0), 1.2);
        assert_eq!(margin_by_losses(&[case(1.3, 1.0), case(0.9, 0.5)], 0), 1.01);
        assert_eq!(margin_by_losses(&[], 0), 1.01);
        // Both sides of the least gain: a loser that was promised 1 % isn't accepted anyway.
        assert_eq!(margin_by_losses(&[case(1.01, 0.5)], 0), 1.01);
        assert_eq!(margin_by_losses(&[case(1.011, 0.5)], 0), 1.011);
        // Both sides of a tie: 1/1.02 is 0.98039.
        assert_eq!(margin_by_losses(&[case(1.5, 0.9804)], 0), 1.01);
        assert_eq!(margin_by_losses(&[case(1.5, 0.9803)], 0), 1.5);
        // A loss within half the labels' spread is a tie as well: 1/1.1 is 0.90909.
        let noisy = |measured: f64| GuardCase { spread: 0.2, ..case(1.5, measured) };
        assert_eq!(margin_by_losses(&[noisy(0.9091)], 0), 1.01);
        assert_eq!(margin_by_losses(&[noisy(0.909)], 0), 1.5);
        // One loser of 20 accepted is let pass, one of 19 isn't.
        let many = |n: usize| {
            let mut cases = vec![case(1.4, 1.2); n - 1];
            cases.push(case(1.3, 0.8));
            cases
        };
        assert_eq!(margin_by_losses(&many(20), 0), 1.01);
        assert_eq!(margin_by_losses(&many(19), 0), 1.3);
        // One of three accepted may be forgiven where there are 20 cases in all; never two.
        let few = |n: usize, losers: usize, forgiven: u32| {
            let mut cases = vec![case(1.0, 1.0); n - 2 - losers];
            cases.extend([case(1.4, 1.2), case(1.2, 1.1)]);
            cases.extend(vec![case(1.3, 0.8); losers]);
            margin_by_losses(&cases, forgiven)
        };
        assert_eq!((few(19, 1, 1), few(20, 1, 1)), (1.3, 1.01));
        assert_eq!((few(20, 1, 0), few(39, 2, 1)), (1.3, 1.3));
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
