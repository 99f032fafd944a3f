//! How far a figure can be carried: bands from resampled labels, and bootstrap intervals by shape.

use super::data::{DataError, Dataset};
use super::evaluation::{Evaluation, median};

/// Fewest shapes for a bootstrap by shape: with fewer, resamples are mostly repetitions and the
/// interval means nothing.
pub const MIN_SHAPES: usize = 8;

/// A 90 % range of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    /// 5th percentile.
    pub low: f64,
    /// 95th percentile.
    pub high: f64,
}

/// Pseudo-random numbers (SplitMix64), the same on every machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 for `n` of 0.
    pub fn below(&mut self, n: usize) -> usize {
        if n == 0 {
            return 0;
        }
        // 128-bit multiplication: the bias is under n/2⁶⁴.
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }
}

/// The value at a share of the sorted values, by linear interpolation.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = share.clamp(0.0, 1.0) * last as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

fn band(mut values: Vec<f64>) -> Band {
    values.sort_by(f64::total_cmp);
    Band { low: quantile(&values, 0.05), high: quantile(&values, 0.95) }
}

/// Bands of mean regret, largest regret and mean top-3 regret when labels are measured again: in
/// each draw every label becomes the median of its samples resampled with replacement, and the
/// whole procedure runs anew. Rows without samples keep their label.
///
/// # Errors
/// Those of the procedure.
pub fn of_labels(
    data: &Dataset,
    draws: usize,
    seed: u64,
    procedure: impl Fn(&Dataset) -> Result<Evaluation, DataError>,
) -> Result<[Band; 3], DataError> {
    let mut random = Random::new(seed);
    let mut figures: [Vec<f64>; 3] = Default::default();
    for _ in 0..draws {
        let labels: Vec<f64> = data
            .samples()
            .iter()
            .map(|s| {
                let n = s.samples.len();
                if n == 0 {
                    return s.label;
                }
                let mut drawn: Vec<f64> = (0..n).map(|_| s.samples[random.below(n)]).collect();
                median(&mut drawn)
            })
            .collect();
        let result = procedure(&data.relabelled(&labels)?)?;
        for (list, value) in figures.iter_mut().zip([result.mean(), result.max(), result.top3()]) {
            list.push(value);
        }
    }
    Ok(figures.map(band))
}

/// Too few shapes to resample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{shapes} shapes; an interval by resampling shapes needs {MIN_SHAPES} or more")]
pub struct TooFewShapes {
    /// Shapes in the data.
    pub shapes: usize,
}

/// A bootstrap interval of mean regret: shapes are drawn with replacement, each with all of its
/// cases.
///
/// # Errors
/// [`TooFewShapes`] with fewer than [`MIN_SHAPES`].
pub fn of_shapes(
    data: &Dataset,
    evaluation: &Evaluation,
    draws: usize,
    seed: u64,
) -> Result<Band, TooFewShapes> {
    let mut shapes: std::collections::BTreeMap<&str, Vec<f64>> = Default::default();
    for pick in &evaluation.picks {
        let shape = data.samples()[pick.row].shape.as_str();
        shapes.entry(shape).or_default().push(pick.regret());
    }
    let groups: Vec<Vec<f64>> = shapes.into_values().collect();
    if groups.len() < MIN_SHAPES {
        return Err(TooFewShapes { shapes: groups.len() });
    }
    let mut random = Random::new(seed);
    let means = (0..draws).map(|_| {
        let (mut sum, mut count) = (0.0, 0usize);
        for _ in 0..groups.len() {
            let group = &groups[random.below(groups.len())];
            sum += group.iter().sum::<f64>();
            count += group.len();
        }
        sum / count.max(1) as f64
    });
    Ok(band(means.collect()))
}

#[cfg(test)]
mod tests {
    use super::super::{Design, Pick, Sample};
    use super::*;

    fn shapes(n: usize) -> (Dataset, Evaluation) {
        let sample = |i: usize| Sample {
            case: format!("c{i}"),
            shape: format!("s{i}"),
            label: 1.0 + i as f64 / 10.0,
            samples: vec![1.0, 1.0 + i as f64 / 10.0, 3.0],
            ..Sample::default()
        };
        let design = Design {
            name: "one".to_string(),
            features: vec!["one".to_string()],
            rows: vec![vec![1.0]; n],
        };
        let data = Dataset::new((0..n).map(sample).collect(), vec![design]).unwrap();
        let pick = |row: usize| Pick {
            case: format!("c{row}"),
            row,
            prediction: 1.0,
            label: 1.0 + row as f64 / 10.0,
            best: 1.0,
            best_of_three: 1.0,
        };
        (data, Evaluation { name: String::new(), picks: (0..n).map(pick).collect() })
    }

    #[test]
    fn few_shapes_have_no_interval() {
        let (data, evaluation) = shapes(7);
        assert_eq!(of_shapes(&data, &evaluation, 10, 1), Err(TooFewShapes { shapes: 7 }));
    }

    #[test]
    fn the_interval_holds_the_mean_and_is_repeatable() {
        let (data, evaluation) = shapes(10);
        let band = of_shapes(&data, &evaluation, 2000, 1).unwrap();
        assert_eq!(band, of_shapes(&data, &evaluation, 2000, 1).unwrap());
        assert!(band.low < evaluation.mean() && evaluation.mean() < band.high, "{band:?}");
        // The standard error of a mean of 10 values 0..0.9 is 0.29/√10 ≈ 0.09.
        assert!((band.high - band.low - 2.0 * 1.645 * 0.0908).abs() < 0.03, "{band:?}");
    }

    #[test]
    fn resampled_labels_are_medians_of_samples() {
        let (data, _) = shapes(3);
        let seen = std::cell::RefCell::new(Vec::new());
        of_labels(&data, 200, 7, |d| {
            seen.borrow_mut().push(d.samples()[2].label);
            Ok(Evaluation::of_scores("", d, &[0.0; 3]))
        })
        .unwrap();
        let mut seen = seen.into_inner();
        assert_eq!(seen.len(), 200);
        seen.sort_by(f64::total_cmp);
        seen.dedup();
        assert_eq!(seen, [1.0, 1.2, 3.0]);
    }

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.25), 1.5);
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 1.0), 3.0);
        assert_eq!(quantile(&[], 0.5), 0.0);
    }
}
