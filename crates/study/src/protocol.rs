//! How a subject is measured: the phases of the reference protocol (8.2) and their settings.

use crate::meter::Meter;
use serde::{Deserialize, Serialize};

/// Largest number of calls in one batch (reference 8.2).
pub const MAX_REPETITIONS: u64 = 100_000;

/// Calls in one warm-up batch.
const WARMUP_BATCH: u64 = 8;

/// Most attempts at calibrating the repetition count.
const CALIBRATIONS: usize = 8;

/// Which memory the calls of a batch use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Buffers {
    /// The same buffers in every call.
    Warm,
    /// Copies of the buffers in turn.
    Rotated,
}

/// Settings of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Protocol {
    /// Warm-up calls until this time has passed.
    pub warmup_ns: u64,
    /// Aimed duration of a batch.
    pub sample_ns: u64,
    /// Batches.
    pub samples: usize,
    /// Batches of one call.
    pub single_samples: usize,
    /// Rounds.
    pub rounds: usize,
    /// Longest time that one request to a worker may take.
    pub deadline_ms: u64,
    /// Which memory calls use.
    pub buffers: Buffers,
    /// Copies of the buffers.
    pub sets: usize,
    /// Batches of the paths of a case alternate.
    pub interleaved: bool,
}

/// Raw samples of one measurement.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    /// The first call.
    pub cold_ns: u64,
    /// Warm-up calls.
    pub warmup_calls: u64,
    /// Calls per batch.
    pub repetitions: u64,
    /// Whole batches.
    pub batch_ns: Vec<u64>,
    /// Batches of one call.
    pub single_ns: Vec<u64>,
    /// Batches by the device's own clock, where it has one.
    pub device_ns: Option<Vec<u64>>,
    /// Calls per device batch.
    pub device_repetitions: Option<u64>,
}

/// Something that can be called again and again; an error ends its measurement.
pub type Call<'a> = &'a mut dyn FnMut() -> Result<(), String>;

/// Cold call, warm-up and calibration: everything before the first sample.
///
/// # Errors
/// A call failed.
pub fn start(
    meter: &dyn Meter,
    subject: &str,
    protocol: &Protocol,
    call: Call<'_>,
) -> Result<Samples, String> {
    let cold_ns = meter.batch(subject, 1, call)?;
    let (mut warmup_calls, mut passed) = (0, 0);
    // A call that outlasts the whole warm-up isn't repeated eight times.
    let batch = if cold_ns > protocol.warmup_ns { 1 } else { WARMUP_BATCH };
    while passed < protocol.warmup_ns {
        passed += meter.batch(subject, batch, call)?.max(1);
        warmup_calls += batch;
    }
    let mut repetitions = 1u64;
    for _ in 0..CALIBRATIONS {
        let ns = meter.batch(subject, repetitions, call)?;
        if ns as f64 >= 0.8 * protocol.sample_ns as f64 || repetitions == MAX_REPETITIONS {
            break;
        }
        let scaled = (repetitions as f64 * protocol.sample_ns as f64 / ns.max(1) as f64) as u64;
        repetitions = scaled.clamp(repetitions + 1, MAX_REPETITIONS);
    }
    Ok(Samples { cold_ns, warmup_calls, repetitions, ..Samples::default() })
}

/// One batch.
///
/// # Errors
/// A call failed.
pub fn batch(
    meter: &dyn Meter,
    subject: &str,
    repetitions: u64,
    call: Call<'_>,
) -> Result<u64, String> {
    meter.batch(subject, repetitions, call)
}

/// A whole measurement.
///
/// # Errors
/// A call failed.
pub fn measure(
    meter: &dyn Meter,
    subject: &str,
    protocol: &Protocol,
    call: Call<'_>,
) -> Result<Samples, String> {
    let mut samples = start(meter, subject, protocol, call)?;
    for _ in 0..protocol.samples {
        samples.batch_ns.push(batch(meter, subject, samples.repetitions, call)?);
    }
    for _ in 0..protocol.single_samples {
        samples.single_ns.push(batch(meter, subject, 1, call)?);
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::{Meter, MeterKind, Simulated};

    fn protocol() -> Protocol {
        Protocol {
            warmup_ns: 1_000_000,
            sample_ns: 10_000_000,
            samples: 3,
            single_samples: 2,
            rounds: 1,
            deadline_ms: 1000,
            buffers: Buffers::Warm,
            sets: 1,
            interleaved: false,
        }
    }

    #[test]
    fn every_phase_runs_and_a_batch_fills_its_time() {
        let meter = Simulated;
        let mut calls = 0u64;
        let mut call = || {
            calls += 1;
            Ok(())
        };
        let samples = measure(&meter, "subject", &protocol(), &mut call).unwrap();
        assert_eq!(samples.batch_ns.len(), 3);
        assert_eq!(samples.single_ns.len(), 2);
        let per_call = samples.single_ns[0];
        assert!(samples.repetitions * per_call >= 8_000_000);
        assert!(samples.warmup_calls * per_call >= 1_000_000);
        assert!(calls > 0);
        assert_eq!(meter.kind(), MeterKind::Simulated);
    }

    #[test]
    fn an_error_ends_the_measurement() {
        let mut call = || Err("broken".to_string());
        let result = measure(&Simulated, "subject", &protocol(), &mut call);
        assert_eq!(result, Err("broken".to_string()));
    }
}
