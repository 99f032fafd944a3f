//! How a subject is measured: the phases of the reference protocol (8.2) and their settings.

use crate::meter::Meter;
use serde::{Deserialize, Serialize};

/// Largest number of calls in one batch (reference 8.2).
pub const MAX_REPETITIONS: u64 = 100_000;

/// Largest number of calls in one batch of a device: it is recorded as a whole.
pub const MAX_RECORDED: u64 = 1000;

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

/// When a search measures again what was disturbed, and how often at most.
///
/// After the planned rounds, a candidate or control whose values of the rounds so far spread by
/// more than `spread` gets another round, until it doesn't or there are `rounds` of them. The rule
/// looks at no label, so it favours nobody; every round counts and none is removed.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remeasure {
    /// Most rounds, the planned ones among them.
    pub rounds: usize,
    /// Largest spread that isn't measured again ([`crate::stats::spread`]).
    pub spread: f64,
}

/// How often a search measures its fastest candidates.
///
/// The smallest of many noisy labels is mostly luck, and every regret is relative to it. So the
/// `candidates` fastest by the label of the planned rounds get further rounds until they have
/// `rounds` of them; every round counts, and the set doesn't change with what they show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finals {
    /// Rounds of a finalist, the planned ones among them.
    pub rounds: usize,
    /// How many candidates of a case are finalists.
    pub candidates: usize,
}

/// Settings of a measurement.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
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
    /// Of a replay: batches of the paths of a case alternate. Of a search: rounds of the cases of a
    /// set alternate.
    pub interleaved: bool,
    /// Which quantile of the rounds' values is the label of a search; the median if `None`. What
    /// disturbs a machine only makes it slower, so that a low quantile outlives more of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_quantile: Option<f64>,
    /// Further rounds of a search.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remeasure: Option<Remeasure>,
    /// Further rounds of a search's fastest candidates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finals: Option<Finals>,
    /// Which quantile of a path's samples is its time in a round of a replay; the median if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_quantile: Option<f64>,
}

impl Protocol {
    /// The quantile of the rounds' values that is the label.
    pub fn quantile(&self) -> f64 {
        self.label_quantile.unwrap_or(0.5)
    }

    /// The quantile of the samples of a replay's round that is the time.
    pub fn time_quantile(&self) -> f64 {
        self.time_quantile.unwrap_or(0.5)
    }

    /// Most rounds that a search of this protocol can have.
    pub fn most_rounds(&self) -> usize {
        let remeasure = self.remeasure.map_or(0, |further| further.rounds);
        let finals = self.finals.map_or(0, |finals| finals.rounds);
        self.rounds.max(remeasure).max(finals)
    }
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

/// Something that is called again and again; an error ends its measurement.
pub trait Timed {
    /// Makes so many calls and waits for the last.
    ///
    /// # Errors
    /// A call failed.
    fn run(&mut self, calls: u64) -> Result<(), String>;

    /// Makes so many calls as one batch of the device, after an untimed one, `samples` times.
    /// Gives the nanoseconds of each batch by the device's own clock; `None` where it has none.
    ///
    /// # Errors
    /// A call failed.
    fn device(&mut self, _calls: u64, _samples: usize) -> Result<Option<Vec<u64>>, String> {
        Ok(None)
    }
}

/// A subject without a clock of its own, from one call.
pub struct Calls<F>(pub F);

impl<F: FnMut() -> Result<(), String>> Timed for Calls<F> {
    fn run(&mut self, calls: u64) -> Result<(), String> {
        (0..calls).try_for_each(|_| (self.0)())
    }
}

/// Nanoseconds as they are recorded: whole, at least 1.
pub fn whole_ns(ns: f64) -> u64 {
    (ns.round() as u64).max(1)
}

/// The number of calls that fills `aim_ns`, at most `most`.
fn calibrate(
    aim_ns: u64,
    most: u64,
    time: &mut dyn FnMut(u64) -> Result<Option<u64>, String>,
) -> Result<Option<u64>, String> {
    let mut repetitions = 1u64;
    for _ in 0..CALIBRATIONS {
        let Some(ns) = time(repetitions)? else { return Ok(None) };
        if ns as f64 >= 0.8 * aim_ns as f64 || repetitions == most {
            break;
        }
        let scaled = (repetitions as f64 * aim_ns as f64 / ns.max(1) as f64) as u64;
        repetitions = scaled.clamp(repetitions + 1, most);
    }
    Ok(Some(repetitions))
}

/// Cold call, warm-up and calibration: everything before the first sample.
///
/// # Errors
/// A call failed.
pub fn start(
    meter: &dyn Meter,
    subject: &str,
    protocol: &Protocol,
    timed: &mut dyn Timed,
) -> Result<Samples, String> {
    let cold_ns = meter.batch(subject, 1, timed)?;
    let (mut warmup_calls, mut passed) = (0, 0);
    // A call that outlasts the whole warm-up isn't repeated eight times.
    let batch = if cold_ns > protocol.warmup_ns { 1 } else { WARMUP_BATCH };
    while passed < protocol.warmup_ns {
        passed += meter.batch(subject, batch, timed)?.max(1);
        warmup_calls += batch;
    }
    let aim = protocol.sample_ns;
    let host = &mut |calls| meter.batch(subject, calls, timed).map(Some);
    let repetitions = calibrate(aim, MAX_REPETITIONS, host)?.unwrap_or(1);
    let device = &mut |calls| {
        let one = meter.device_batch(subject, calls, 1, timed)?;
        Ok(one.and_then(|samples| samples.first().copied()))
    };
    let device_repetitions = calibrate(aim, MAX_RECORDED, device)?;
    let device_ns = device_repetitions.map(|_| Vec::new());
    Ok(Samples {
        cold_ns,
        warmup_calls,
        repetitions,
        device_ns,
        device_repetitions,
        ..Samples::default()
    })
}

/// One batch.
///
/// # Errors
/// A call failed.
pub fn batch(
    meter: &dyn Meter,
    subject: &str,
    repetitions: u64,
    timed: &mut dyn Timed,
) -> Result<u64, String> {
    meter.batch(subject, repetitions, timed)
}

/// One batch by the device's own clock.
///
/// # Errors
/// A call failed, or the device has no clock.
pub fn device_batch(
    meter: &dyn Meter,
    subject: &str,
    repetitions: u64,
    timed: &mut dyn Timed,
) -> Result<u64, String> {
    let samples = meter.device_batch(subject, repetitions, 1, timed)?;
    let first = samples.and_then(|samples| samples.first().copied());
    first.ok_or_else(|| "the device has no clock of its own".to_string())
}

/// A whole measurement.
///
/// # Errors
/// A call failed.
pub fn measure(
    meter: &dyn Meter,
    subject: &str,
    protocol: &Protocol,
    timed: &mut dyn Timed,
) -> Result<Samples, String> {
    let mut samples = start(meter, subject, protocol, timed)?;
    for _ in 0..protocol.samples {
        samples.batch_ns.push(batch(meter, subject, samples.repetitions, timed)?);
    }
    for _ in 0..protocol.single_samples {
        samples.single_ns.push(batch(meter, subject, 1, timed)?);
    }
    if let Some(repetitions) = samples.device_repetitions {
        samples.device_ns = meter.device_batch(subject, repetitions, protocol.samples, timed)?;
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::{Clock, Meter, MeterKind, Simulated};

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
            label_quantile: None,
            remeasure: None,
            finals: None,
            time_quantile: None,
        }
    }

    #[test]
    fn every_phase_runs_and_a_batch_fills_its_time() {
        let meter = Simulated;
        let mut calls = 0u64;
        let mut call = Calls(|| {
            calls += 1;
            Ok(())
        });
        let samples = measure(&meter, "subject", &protocol(), &mut call).unwrap();
        assert_eq!((&samples.device_ns, samples.device_repetitions), (&None, None));
        assert_eq!(samples.batch_ns.len(), 3);
        assert_eq!(samples.single_ns.len(), 2);
        let per_call = samples.single_ns[0];
        assert!(samples.repetitions * per_call >= 8_000_000);
        assert!(samples.warmup_calls * per_call >= 1_000_000);
        assert!(calls > 0);
        assert_eq!(meter.kind(), MeterKind::Simulated);
    }

    /// 2 µs a call by its own clock.
    struct OnDevice(u64);

    impl Timed for OnDevice {
        fn run(&mut self, calls: u64) -> Result<(), String> {
            self.0 += calls;
            Ok(())
        }

        fn device(&mut self, calls: u64, samples: usize) -> Result<Option<Vec<u64>>, String> {
            Ok(Some(vec![2_000 * calls; samples]))
        }
    }

    #[test]
    fn a_device_with_a_clock_has_batches_of_its_own() {
        let mut device = OnDevice(0);
        let protocol = Protocol { sample_ns: 1_000_000, ..protocol() };
        let samples = measure(&Clock, "subject", &protocol, &mut device).unwrap();
        assert_eq!(samples.device_repetitions, Some(500));
        assert_eq!(samples.device_ns, Some(vec![1_000_000; 3]));
        // What is recorded as a whole stays small, however long a batch should be.
        let protocol = Protocol { sample_ns: 1_000_000_000, samples: 0, ..protocol };
        let samples = start(&Clock, "subject", &protocol, &mut device).unwrap();
        assert_eq!(samples.device_repetitions, Some(MAX_RECORDED));
        assert_eq!(device_batch(&Clock, "subject", 7, &mut device), Ok(14_000));
        let none = device_batch(&Clock, "subject", 7, &mut Calls(|| Ok(())));
        assert_eq!(none, Err("the device has no clock of its own".to_string()));
    }

    #[test]
    fn an_error_ends_the_measurement() {
        let mut call = Calls(|| Err("broken".to_string()));
        let result = measure(&Simulated, "subject", &protocol(), &mut call);
        assert_eq!(result, Err("broken".to_string()));
    }
}
