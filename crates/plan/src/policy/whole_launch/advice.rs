//! What to do with a model's ranking: trust its first, measure a shortlist, measure anyway
//! because the model has nothing to go by, or keep an incumbent.

use super::{Confidence, FamilyFit, Inputs};
use crate::mapping::Mapping;

/// An input may be this many times beyond the range of the training rows.
const EXTRAPOLATION: f64 = 2.0;

/// The part of a space, and the least number of candidates, that a shortlist may have before the
/// model counts as undecided.
const UNDECIDED_SHARE: f64 = 0.25;
const UNDECIDED_LEAST: usize = 4;

/// Why a model abstains: "measure this one".
#[derive(Clone, PartialEq, Debug)]
pub enum Abstention {
    /// An input of the winner lies outside the trained range by more than a factor of 2.
    OutsideTraining {
        /// The input.
        input: &'static str,
        /// Its value.
        value: f64,
        /// The trained range.
        range: [f64; 2],
    },
    /// The shortlist holds more than a quarter of the legal candidates (and more than 4).
    Undecided {
        /// Candidates on the shortlist.
        shortlist: usize,
        /// Legal candidates.
        candidates: usize,
    },
}

impl std::fmt::Display for Abstention {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Abstention::OutsideTraining { input, value, range: [low, high] } => {
                write!(f, "{input} is {value}, trained on {low} to {high}")
            }
            Abstention::Undecided { shortlist, candidates } => {
                write!(f, "{shortlist} of {candidates} candidates can't be told apart")
            }
        }
    }
}

/// What a model says about one case.
#[derive(Clone, PartialEq, Debug)]
pub struct Advice {
    /// Predicted time of the winner in microseconds.
    pub prediction: f64,
    /// Interval that is to hold the winner's time at the confidence's level.
    pub interval: [f64; 2],
    /// How many of the best-ranked candidates are worth measuring, at least 1.
    pub shortlist: usize,
    /// Why the model's first shouldn't be trusted without measuring, if it shouldn't.
    pub abstention: Option<Abstention>,
    /// Share of times that the interval is to hold.
    pub level: f64,
    /// Predicted gain that a challenger must exceed to replace an incumbent.
    pub margin: f64,
}

/// The model's first beside the plan that would be used without the model.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Guard {
    /// The incumbent.
    pub incumbent: Mapping,
    /// Its rank by the model, from 0.
    pub rank: usize,
    /// Its predicted time in microseconds.
    pub prediction: f64,
    /// Its prediction / that of the model's first.
    pub gain: f64,
    /// What the gain must exceed.
    pub margin: f64,
    /// Whether the model's first replaces the incumbent.
    pub accepted: bool,
}

impl std::fmt::Display for Advice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [low, high] = self.interval;
        write!(f, "predicted {:.3} us, between {low:.3} and {high:.3} us", self.prediction)?;
        match &self.abstention {
            Some(reason) => write!(f, "; measure this one: {reason}"),
            None if self.shortlist > 1 => {
                write!(f, "; the first {} are worth measuring", self.shortlist)
            }
            None => write!(f, "; no other is worth measuring"),
        }
    }
}

impl Confidence {
    /// The interval of a prediction.
    pub fn interval(&self, prediction: f64) -> [f64; 2] {
        [prediction * self.low, prediction * self.high]
    }

    /// How many of these predictions, ascending, are worth measuring.
    pub fn shortlist(&self, ascending: &[f64]) -> usize {
        let Some(best) = ascending.first() else { return 0 };
        ascending.iter().take_while(|p| **p <= best * self.slack).count().max(1)
    }

    /// Whether a challenger should replace the incumbent: its predicted gain
    /// (incumbent/challenger) exceeds the margin.
    pub fn accepts(&self, incumbent: f64, challenger: f64) -> bool {
        incumbent > challenger * self.margin
    }
}

/// Advice for a case from the predictions of its legal candidates, ascending, and the inputs of
/// the first. `None` without candidates.
pub fn advise(fit: &FamilyFit, ascending: &[f64], winner: &Inputs) -> Option<Advice> {
    let prediction = *ascending.first()?;
    let shortlist = fit.confidence.shortlist(ascending);
    Some(Advice {
        prediction,
        interval: fit.confidence.interval(prediction),
        shortlist,
        abstention: abstention(fit, ascending.len(), shortlist, winner),
        level: fit.confidence.level,
        margin: fit.confidence.margin,
    })
}

fn abstention(
    fit: &FamilyFit,
    candidates: usize,
    shortlist: usize,
    winner: &Inputs,
) -> Option<Abstention> {
    let names = fit.model.family().inputs();
    for ((input, value), range) in names.iter().zip(winner).zip(&fit.confidence.ranges) {
        let [low, high] = *range;
        if *value < low / EXTRAPOLATION || *value > high * EXTRAPOLATION {
            return Some(Abstention::OutsideTraining { input, value: *value, range: *range });
        }
    }
    let limit = ((candidates as f64 * UNDECIDED_SHARE) as usize).max(UNDECIDED_LEAST);
    (shortlist > limit).then_some(Abstention::Undecided { shortlist, candidates })
}

#[cfg(test)]
mod tests {
    use super::super::{Family, MAX_INPUTS, Model, WeightedTerm};
    use super::*;

    fn fit() -> FamilyFit {
        let launch = WeightedTerm { term: 0, capacity: None, coefficient: 3.0 };
        FamilyFit {
            model: Model::new(Family::GpuRows, vec![launch]).unwrap(),
            confidence: Confidence {
                level: 0.9,
                low: 0.8,
                high: 1.5,
                slack: 1.1,
                margin: 1.2,
                ranges: vec![[10.0, 20.0]],
                rows: 10,
                cases: 5,
                shapes: 5,
            },
        }
    }

    #[test]
    fn shortlist_interval_and_guard_follow_the_confidence() {
        let fit = fit();
        let mut inputs = [0.0; MAX_INPUTS];
        inputs[0] = 15.0;
        let advice = advise(&fit, &[10.0, 10.9, 11.1, 30.0], &inputs).unwrap();
        assert_eq!(advice.shortlist, 2);
        assert_eq!(advice.interval, [8.0, 15.0]);
        assert_eq!(advice.abstention, None);
        assert!(fit.confidence.accepts(12.1, 10.0));
        assert!(!fit.confidence.accepts(12.0, 10.0));
        assert_eq!(advise(&fit, &[], &inputs), None);
    }

    #[test]
    fn it_abstains_outside_its_data_and_when_nothing_stands_out() {
        let fit = fit();
        let mut inputs = [0.0; MAX_INPUTS];
        inputs[0] = 41.0;
        let far = advise(&fit, &[10.0], &inputs).unwrap().abstention;
        assert!(matches!(far, Some(Abstention::OutsideTraining { input: "programs", .. })));
        inputs[0] = 39.0;
        let flat = advise(&fit, &[10.0; 6], &inputs).unwrap().abstention;
        assert_eq!(flat, Some(Abstention::Undecided { shortlist: 6, candidates: 6 }));
    }
}
