//! Timing in the phases of the reference protocol (8.2): one cold call, a warm-up, a calibration
//! of the repetition count, then batches. A batch is timed as a whole, so the clock costs
//! nothing per call. Launches on a device with a queue are timed by the device's own clock.

use crate::bound::Bound;
use crate::launch_error::LaunchError;
use std::time::{Duration, Instant};
use tilewright_runtime::{Queue, RuntimeError};

/// How long and how often to measure.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TimingOptions {
    /// Batches of warm-up calls until this time has passed.
    pub warmup: Duration,
    /// Aimed duration of one batch.
    pub sample: Duration,
    /// Number of batches.
    pub samples: usize,
}

impl Default for TimingOptions {
    fn default() -> Self {
        TimingOptions {
            warmup: Duration::from_millis(50),
            sample: Duration::from_millis(10),
            samples: 15,
        }
    }
}

/// Largest number of calls in one batch.
const MAX_REPETITIONS: u64 = 100_000;
/// Calls in one warm-up batch.
const WARMUP_BATCH: u64 = 8;
/// Most attempts at calibrating the repetition count.
const CALIBRATIONS: usize = 8;

/// Whose clock timed the batches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Clock {
    /// The host's: a call counts from the caller's view, with what a launch costs the host.
    #[default]
    Host,
    /// The device's: from the start of a batch's first launch to the end of its last.
    Device,
}

impl Clock {
    /// `host` or `device`.
    pub fn name(self) -> &'static str {
        match self {
            Clock::Host => "host",
            Clock::Device => "device",
        }
    }
}

/// The result of a measurement. Times are microseconds per call.
#[derive(Clone, PartialEq, Debug)]
pub struct Timing {
    /// Whose clock timed the batches.
    pub clock: Clock,
    /// The first call, by the host's clock.
    pub cold_us: f64,
    /// Calls per batch.
    pub repetitions: u64,
    /// One value per batch, in order of measurement.
    pub samples_us: Vec<f64>,
}

impl Timing {
    /// The quantile `q` (0 to 1) with linear interpolation at `q·(n−1)`.
    pub fn quantile_us(&self, q: f64) -> f64 {
        let mut sorted = self.samples_us.clone();
        sorted.sort_by(f64::total_cmp);
        let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
        let position = q.clamp(0.0, 1.0) * last as f64;
        let low = position.floor() as usize;
        let high = (low + 1).min(last);
        sorted[low] + (sorted[high] - sorted[low]) * (position - low as f64)
    }

    /// The median.
    pub fn median_us(&self) -> f64 {
        self.quantile_us(0.5)
    }

    /// Half the distance between the 10 % and 90 % quantiles, relative to the median.
    pub fn spread(&self) -> f64 {
        (self.quantile_us(0.9) - self.quantile_us(0.1)) / 2.0 / self.median_us()
    }
}

/// Times `call`, which does the work once and returns when it is done.
///
/// # Errors
/// The first error of `call`; nothing is measured then.
pub fn measure<E>(
    options: &TimingOptions,
    mut call: impl FnMut() -> Result<(), E>,
) -> Result<Timing, E> {
    let mut batch = |repetitions: u64| -> Result<Duration, E> {
        let start = Instant::now();
        for _ in 0..repetitions {
            call()?;
        }
        Ok(start.elapsed())
    };
    let cold_us = batch(1)?.as_secs_f64() * 1e6;
    let warm = Instant::now();
    loop {
        // A call that outlasts the whole warm-up isn't repeated eight times.
        batch(if cold_us > options.warmup.as_secs_f64() * 1e6 { 1 } else { WARMUP_BATCH })?;
        if warm.elapsed() >= options.warmup {
            break;
        }
    }
    let repetitions = calibrate(options.sample.as_secs_f64(), |r| Ok(batch(r)?.as_secs_f64()))?;
    let mut samples_us = Vec::with_capacity(options.samples);
    for _ in 0..options.samples.max(1) {
        samples_us.push(batch(repetitions)?.as_secs_f64() * 1e6 / repetitions as f64);
    }
    Ok(Timing { clock: Clock::Host, cold_us, repetitions, samples_us })
}

/// Times bound launches, taken in turn (several of them work on several copies of the tensors).
/// Where they go to a device's queue, a batch is recorded once and timed by the device's clock;
/// else this is [`measure`].
///
/// # Errors
/// A failed launch; nothing to measure.
pub fn measure_bound(
    options: &TimingOptions,
    launches: &mut [Bound<'_>],
) -> Result<Timing, LaunchError> {
    let Some(first) = launches.first() else { return Err(LaunchError::NothingToTime) };
    let queue = first.queue().cloned();
    let mut next = 0;
    let mut turn = || {
        let at = if next < launches.len() { next } else { 0 };
        next = at + 1;
        launches[at].enqueue()
    };
    Ok(match queue {
        None => measure(options, turn)?,
        Some(queue) => measure_on(queue.as_ref(), options, &mut turn)?,
    })
}

/// Times work that is given to a queue, by the device's clock; `enqueue` gives it once.
///
/// # Errors
/// The first error of `enqueue` or of the device; nothing is measured then.
pub fn measure_on(
    queue: &dyn Queue,
    options: &TimingOptions,
    enqueue: &mut dyn FnMut() -> Result<(), RuntimeError>,
) -> Result<Timing, RuntimeError> {
    queue.reset_residency()?;
    queue.wait()?;
    let start = Instant::now();
    enqueue()?;
    queue.wait()?;
    let cold_us = start.elapsed().as_secs_f64() * 1e6;
    let warm = Instant::now();
    let calls = if cold_us > options.warmup.as_secs_f64() * 1e6 { 1 } else { WARMUP_BATCH };
    let mut batch = queue.batch(calls, Box::new(&mut *enqueue))?;
    loop {
        batch.run()?;
        if warm.elapsed() >= options.warmup {
            break;
        }
    }
    drop(batch);
    let repetitions = calibrate(options.sample.as_secs_f64(), |repetitions| {
        let mut batch = queue.batch(repetitions, Box::new(&mut *enqueue))?;
        Ok(batch.run()? * 1e-9)
    })?;
    let mut batch = queue.batch(repetitions, Box::new(&mut *enqueue))?;
    // The first run of a recorded batch also brings it to the device.
    batch.run()?;
    let mut samples_us = Vec::with_capacity(options.samples);
    for _ in 0..options.samples.max(1) {
        samples_us.push(batch.run()? * 1e-3 / repetitions as f64);
    }
    Ok(Timing { clock: Clock::Device, cold_us, repetitions, samples_us })
}

/// Finds the number of calls that fill `sample` seconds.
fn calibrate<E>(sample: f64, mut batch: impl FnMut(u64) -> Result<f64, E>) -> Result<u64, E> {
    let mut repetitions = 1u64;
    for _ in 0..CALIBRATIONS {
        let seconds = batch(repetitions)?;
        if seconds >= 0.8 * sample || repetitions == MAX_REPETITIONS {
            break;
        }
        let scaled = (repetitions as f64 * sample / seconds.max(1e-9)) as u64;
        repetitions = scaled.clamp(repetitions + 1, MAX_REPETITIONS);
    }
    Ok(repetitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        let samples_us = vec![4.0, 1.0, 2.0, 3.0, 5.0];
        let timing = Timing { clock: Clock::Host, cold_us: 0.0, repetitions: 1, samples_us };
        assert_eq!(timing.median_us(), 3.0);
        assert_eq!(timing.quantile_us(0.0), 1.0);
        assert_eq!(timing.quantile_us(1.0), 5.0);
        assert_eq!(timing.quantile_us(0.9), 4.6);
        assert!((timing.spread() - (4.6 - 1.4) / 2.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn calibration_fills_a_sample_and_stays_bounded() {
        let per_call = 0.001;
        let fixed = calibrate::<()>(0.010, |r| Ok(r as f64 * per_call));
        assert_eq!(fixed, Ok(10));
        assert_eq!(calibrate::<()>(0.010, |_| Ok(0.0)), Ok(MAX_REPETITIONS));
        assert_eq!(calibrate::<()>(0.010, |r| Ok(r as f64)), Ok(1));
        assert_eq!(calibrate::<&str>(0.010, |_| Err("no")), Err("no"));
    }

    #[test]
    fn every_phase_calls_and_errors_pass_through() {
        let options =
            TimingOptions { warmup: Duration::ZERO, sample: Duration::from_micros(1), samples: 3 };
        let mut calls = 0u64;
        let timing = measure::<()>(&options, || {
            calls += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(timing.samples_us.len(), 3);
        assert!(calls >= 1 + WARMUP_BATCH.min(1) + 3 * timing.repetitions);
        assert_eq!(measure(&options, || Err("broken")), Err("broken"));
    }
}
