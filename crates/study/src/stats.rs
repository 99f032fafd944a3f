//! Statistics of replays: paired ratios, the noise floor of an A/A path, verdicts.

use serde::{Deserialize, Serialize};

/// The quantile `q` (0 to 1): sorted, linear interpolation at q·(n−1). NaN of no numbers.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let position = q.clamp(0.0, 1.0) * last as f64;
    let low = position.floor() as usize;
    let high = (low + 1).min(last);
    sorted[low] + (sorted[high] - sorted[low]) * (position - low as f64)
}

/// The median. NaN of no numbers.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// How far numbers lie apart around their quantile `q`: the quarter of them on either side, relative
/// to it. For the median that is the interquartile range / median. NaN of no numbers.
pub fn spread(values: &[f64], q: f64) -> f64 {
    (quantile(values, q + 0.25) - quantile(values, q - 0.25)) / quantile(values, q)
}

/// Microseconds per call of batches of `repetitions` calls: their quantile `q`. NaN without batches.
pub fn per_call_us(batch_ns: &[u64], repetitions: u64, q: f64) -> f64 {
    let batches: Vec<f64> = batch_ns.iter().map(|ns| *ns as f64).collect();
    quantile(&batches, q) / repetitions as f64 / 1000.0
}

/// Two-sided exact sign test: the probability, if both signs are equally likely, of a split at
/// least as uneven as `positive` to `negative`. 1 of no numbers.
pub fn sign_test(positive: usize, negative: usize) -> f64 {
    let n = positive + negative;
    let few = positive.min(negative);
    // Σ_{i ≤ few} C(n, i) / 2^n, summed in logarithms' stead by ratios of neighbours.
    let mut term = f64::powi(0.5, n as i32);
    let mut sum = 0.0;
    for i in 0..=few {
        sum += term;
        term *= (n - i) as f64 / (i + 1) as f64;
    }
    (2.0 * sum).min(1.0)
}

/// Holm's step-down adjustment of p-values, in their order.
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut by_size: Vec<usize> = (0..p.len()).collect();
    by_size.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let mut adjusted = vec![1.0; p.len()];
    let mut largest: f64 = 0.0;
    for (rank, index) in by_size.into_iter().enumerate() {
        largest = largest.max(p[index] * (p.len() - rank) as f64).min(1.0);
        adjusted[index] = largest;
    }
    adjusted
}

/// When a verdict is given.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerdictRule {
    /// Rounds that a verdict needs.
    pub rounds: usize,
    /// Quantile of |ln ratio| over the A/A rounds that is the noise floor.
    pub quantile: f64,
    /// With fewer rounds, the adjusted p-value of the sign test that serves as well.
    pub alpha: f64,
}

impl Default for VerdictRule {
    fn default() -> Self {
        VerdictRule { rounds: 14, quantile: 0.95, alpha: 0.05 }
    }
}

/// What a case shows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The challenger is faster, beyond the noise floor.
    Win,
    /// The challenger is slower, beyond the noise floor.
    Loss,
    /// The difference lies within the noise floor.
    Tie,
    /// Too few rounds for a verdict.
    Descriptive,
    /// A round is missing or invalid.
    Incomplete,
}

/// Times of the three paths of one case in each round, in microseconds; `None` where a path
/// wasn't measured.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PairedRounds {
    /// The incumbent.
    pub incumbent: Vec<Option<f64>>,
    /// The incumbent again, as a path of its own (A/A).
    pub again: Vec<Option<f64>>,
    /// The challenger.
    pub challenger: Vec<Option<f64>>,
}

/// The paired comparison of one case.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Comparison {
    /// Rounds.
    pub rounds: usize,
    /// Whether every round has all three times.
    pub complete: bool,
    /// Noise floor in |ln ratio|.
    pub floor: f64,
    /// Median of incumbent/challenger.
    pub median: f64,
    /// Smallest ratio, the worst round.
    pub min: f64,
    /// Largest ratio.
    pub max: f64,
    /// Rounds in which the challenger was faster.
    pub won: usize,
    /// Rounds in which it was slower.
    pub lost: usize,
    /// p of the sign test.
    pub sign_p: f64,
}

/// Compares the paths of a case. `None` if no round has all three times.
pub fn compare(rounds: &PairedRounds, rule: &VerdictRule) -> Option<Comparison> {
    let total = rounds.incumbent.len().max(rounds.again.len()).max(rounds.challenger.len());
    let time = |path: &[Option<f64>], round: usize| path.get(round).copied().flatten();
    let (mut gains, mut noise) = (Vec::new(), Vec::new());
    for round in 0..total {
        let (Some(a), Some(again), Some(b)) = (
            time(&rounds.incumbent, round),
            time(&rounds.again, round),
            time(&rounds.challenger, round),
        ) else {
            continue;
        };
        gains.push(a / b);
        noise.push((again / a).ln().abs());
    }
    if gains.is_empty() {
        return None;
    }
    let won = gains.iter().filter(|g| **g > 1.0).count();
    let lost = gains.iter().filter(|g| **g < 1.0).count();
    Some(Comparison {
        rounds: gains.len(),
        complete: gains.len() == total,
        floor: quantile(&noise, rule.quantile),
        median: median(&gains),
        min: quantile(&gains, 0.0),
        max: quantile(&gains, 1.0),
        won,
        lost,
        sign_p: sign_test(won, lost),
    })
}

impl Comparison {
    /// The verdict, given the case's p-value adjusted over all cases.
    pub fn verdict(&self, holm_p: f64, rule: &VerdictRule) -> Verdict {
        let gain = self.median.ln();
        if !self.complete {
            Verdict::Incomplete
        } else if self.rounds < rule.rounds && holm_p >= rule.alpha {
            Verdict::Descriptive
        } else if gain > self.floor {
            Verdict::Win
        } else if -gain > self.floor {
            Verdict::Loss
        } else {
            Verdict::Tie
        }
    }
}

/// Verdicts of a whole cohort: the p-values are adjusted over all of its cases. A case without
/// any complete round is incomplete.
pub fn verdicts(
    cases: &[PairedRounds],
    rule: &VerdictRule,
) -> Vec<(Option<Comparison>, f64, Verdict)> {
    let compared: Vec<Option<Comparison>> = cases.iter().map(|c| compare(c, rule)).collect();
    let p: Vec<f64> = compared.iter().map(|c| c.map_or(1.0, |c| c.sign_p)).collect();
    let adjusted = holm(&p);
    compared
        .into_iter()
        .zip(adjusted)
        .map(|(c, p)| (c, p, c.map_or(Verdict::Incomplete, |c| c.verdict(p, rule))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(quantile(&[4.0, 1.0, 2.0, 3.0, 5.0], 0.9), 4.6);
        assert!(median(&[]).is_nan());
        // One disturbed number of five is outlived, two by a low quantile alone.
        assert_eq!(spread(&[10.0, 11.0, 30.0, 10.0, 9.0], 0.5), 0.1);
        assert_eq!(spread(&[10.0, 30.0, 30.0, 10.0, 10.0], 0.5), 2.0);
        assert_eq!(spread(&[10.0, 30.0, 30.0, 10.0, 9.0], 0.25), 0.1);
        assert!(spread(&[], 0.5).is_nan());
        assert_eq!(per_call_us(&[2_000_000, 4_000_000, 3_000_000], 1000, 0.5), 3.0);
        assert_eq!(per_call_us(&[2_000_000, 4_000_000, 3_000_000], 1000, 0.25), 2.5);
    }

    #[test]
    fn the_sign_test_is_exact() {
        assert_eq!(sign_test(0, 0), 1.0);
        assert_eq!(sign_test(5, 0), 2.0 / 32.0);
        assert_eq!(sign_test(0, 14), 2.0 / 16384.0);
        assert_eq!(sign_test(3, 3), 1.0);
        // (1 + 14 + 91) / 2^14, two-sided.
        assert!((sign_test(12, 2) - 2.0 * 106.0 / 16384.0).abs() < 1e-15);
    }

    #[test]
    fn holm_steps_down_and_stays_monotone() {
        let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
        let expected = [0.03, 0.06, 0.06, 0.02];
        assert!(adjusted.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-15), "{adjusted:?}");
        assert_eq!(holm(&[0.9, 0.9]), [1.0, 1.0]);
        assert_eq!(holm(&[]), [0.0f64; 0]);
    }

    fn rounds(n: usize, gain: f64, noise: f64) -> PairedRounds {
        let wobble = |r: usize, k: f64| 1.0 + noise * ((r as f64 * 2.39 + k).sin());
        PairedRounds {
            incumbent: (0..n).map(|r| Some(10.0 * wobble(r, 0.0))).collect(),
            again: (0..n).map(|r| Some(10.0 * wobble(r, 1.0))).collect(),
            challenger: (0..n).map(|r| Some(10.0 / gain * wobble(r, 2.0))).collect(),
        }
    }

    #[test]
    fn verdicts_need_rounds_and_a_gain_beyond_the_floor() {
        let rule = VerdictRule::default();
        let one = |case: PairedRounds| verdicts(&[case], &rule)[0].2;
        assert_eq!(one(rounds(14, 1.10, 0.01)), Verdict::Win);
        assert_eq!(one(rounds(14, 0.90, 0.01)), Verdict::Loss);
        assert_eq!(one(rounds(14, 1.02, 0.03)), Verdict::Tie);
        // Five rounds can't be significant, six won of six can.
        assert_eq!(one(rounds(5, 1.10, 0.01)), Verdict::Descriptive);
        assert_eq!(one(rounds(6, 1.10, 0.01)), Verdict::Win);
        // Not if there are many cases.
        let many = vec![rounds(6, 1.10, 0.01); 20];
        assert!(verdicts(&many, &rule).iter().all(|v| v.2 == Verdict::Descriptive));
        let mut hole = rounds(14, 1.10, 0.01);
        hole.challenger[3] = None;
        assert_eq!(one(hole), Verdict::Incomplete);
        assert_eq!(one(PairedRounds::default()), Verdict::Incomplete);
    }
}
