//! Metric values of samples.

use crate::math::quantile;
use crate::record::{Protocol, Timing};

/// A metric of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Metric {
    /// End-to-end batches.
    Batch,
    /// Batches of one call.
    Single,
    /// Device batches.
    Device,
}

impl Metric {
    /// The metric of labels under a selection metric: `model` measures batches.
    pub fn of_selection(name: &str) -> Option<Metric> {
        match name {
            "batch" | "model" => Some(Metric::Batch),
            "single" => Some(Metric::Single),
            "device" => Some(Metric::Device),
            _ => None,
        }
    }

    /// Microseconds per call: the quantile `q` of the samples.
    pub fn quantile(self, timing: &Timing, q: f64) -> Option<f64> {
        let per_call = |ns: &[u64], repetitions: Option<u64>| {
            let repetitions = repetitions.filter(|r| *r > 0)?;
            let ns: Vec<f64> = ns.iter().map(|ns| *ns as f64).collect();
            Some(quantile(&ns, q)? / repetitions as f64 / 1000.0)
        };
        match self {
            Metric::Batch => per_call(&timing.batch_ns, timing.repetitions),
            Metric::Single => per_call(&timing.single_ns, Some(1)),
            Metric::Device => per_call(timing.device_ns.as_deref()?, timing.device_repetitions),
        }
    }
}

/// The label of rounds: a quantile over them of that quantile of their samples.
pub fn label(rounds: &[Timing], metric: Metric, q: f64) -> Option<f64> {
    let values: Option<Vec<f64>> = rounds.iter().map(|r| metric.quantile(r, q)).collect();
    quantile(&values?, q)
}

/// What is wrong with the samples of a measurement, if anything.
pub fn fault(timing: &Timing, protocol: &Protocol) -> Option<String> {
    let (batch, single) = (timing.batch_ns.len(), timing.single_ns.len());
    if batch != protocol.samples {
        return Some(format!("{batch} batches, not {}", protocol.samples));
    }
    if single != protocol.single_samples {
        return Some(format!("{single} single calls, not {}", protocol.single_samples));
    }
    let device = timing.device_ns.iter().flatten();
    if timing.batch_ns.iter().chain(&timing.single_ns).chain(device).any(|ns| *ns == 0) {
        return Some("a time of 0".to_string());
    }
    match timing.repetitions {
        Some(1..=100_000) => {}
        other => return Some(format!("{other:?} repetitions")),
    }
    match (&timing.device_ns, timing.device_repetitions) {
        (Some(samples), Some(repetitions)) if samples.is_empty() || repetitions == 0 => {
            Some("no device samples".to_string())
        }
        (Some(_), None) => Some("device samples without repetitions".to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_quantiles_over_rounds_of_that_quantile_over_samples() {
        let timing = |batch: &[u64]| Timing {
            repetitions: Some(10),
            batch_ns: batch.to_vec(),
            single_ns: vec![5000, 7000],
            ..Timing::default()
        };
        let rounds = [timing(&[10_000, 30_000, 20_000]), timing(&[50_000]), timing(&[90_000])];
        assert_eq!(label(&rounds, Metric::Batch, 0.5), Some(5.0));
        // Lower quartiles of the rounds: 1.5, 5 and 9.
        assert_eq!(label(&rounds, Metric::Batch, 0.25), Some(3.25));
        assert_eq!(label(&rounds, Metric::Single, 0.5), Some(6.0));
        assert_eq!(label(&rounds, Metric::Device, 0.5), None);
        assert_eq!(label(&[Timing::default()], Metric::Batch, 0.5), None);
    }
}
