//! Where times come from: the clock, or for tests of the pipeline a function of the subject.

use crate::canonical::derive;
use crate::protocol::Timed;
use serde::{Deserialize, Serialize};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// What a record says of its times.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MeterKind {
    /// Measured.
    Clock,
    /// Made up, to test the pipeline. Such a record says nothing of any machine.
    Simulated,
}

/// A source of times.
pub trait Meter: Sync {
    /// What records say.
    fn kind(&self) -> MeterKind;

    /// Nanoseconds of `repetitions` calls.
    ///
    /// # Errors
    /// A call failed.
    fn batch(&self, subject: &str, repetitions: u64, timed: &mut dyn Timed) -> Result<u64, String>;

    /// Nanoseconds of batches of `repetitions` calls by the device's own clock; `None` where it
    /// has none.
    ///
    /// # Errors
    /// A call failed.
    fn device_batch(
        &self,
        subject: &str,
        repetitions: u64,
        samples: usize,
        timed: &mut dyn Timed,
    ) -> Result<Option<Vec<u64>>, String>;

    /// Nanoseconds of one step that isn't a call: compiling, filling buffers, the fixed loop.
    fn step(&self, what: &str, run: &mut dyn FnMut()) -> u64;

    /// Seconds since 1970.
    fn unix_s(&self) -> u64;
}

/// The monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock;

impl Meter for Clock {
    fn kind(&self) -> MeterKind {
        MeterKind::Clock
    }

    fn batch(
        &self,
        _subject: &str,
        repetitions: u64,
        timed: &mut dyn Timed,
    ) -> Result<u64, String> {
        let start = Instant::now();
        timed.run(repetitions)?;
        Ok(nanoseconds(start))
    }

    fn device_batch(
        &self,
        _subject: &str,
        repetitions: u64,
        samples: usize,
        timed: &mut dyn Timed,
    ) -> Result<Option<Vec<u64>>, String> {
        timed.device(repetitions, samples)
    }

    fn step(&self, _what: &str, run: &mut dyn FnMut()) -> u64 {
        let start = Instant::now();
        run();
        nanoseconds(start)
    }

    fn unix_s(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
    }
}

fn nanoseconds(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Times that depend on the subject's name alone, 5 to 10 µs a call, so that two runs of a study
/// give the same record. The work is done once, whatever the number of repetitions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Simulated;

impl Meter for Simulated {
    fn kind(&self) -> MeterKind {
        MeterKind::Simulated
    }

    fn batch(&self, subject: &str, repetitions: u64, timed: &mut dyn Timed) -> Result<u64, String> {
        timed.run(1)?;
        Ok(repetitions * (5_000 + derive(subject) % 5_000))
    }

    fn device_batch(
        &self,
        subject: &str,
        repetitions: u64,
        samples: usize,
        timed: &mut dyn Timed,
    ) -> Result<Option<Vec<u64>>, String> {
        // The host's part of a call is left out.
        let one = repetitions * (4_000 + derive(subject) % 5_000);
        Ok(timed.device(1, 1)?.map(|_| vec![one; samples]))
    }

    fn step(&self, what: &str, run: &mut dyn FnMut()) -> u64 {
        run();
        1_000 + derive(what) % 1_000
    }

    fn unix_s(&self) -> u64 {
        0
    }
}

/// A fixed loop of dependent integer arithmetic, about a millisecond long: when its time changes,
/// the clock of the core does.
pub fn fixed_loop(meter: &dyn Meter) -> u64 {
    meter.step("fixed loop", &mut || {
        let mut x = std::hint::black_box(0x9e37_79b9_7f4a_7c15u64);
        for _ in 0..1_000_000u32 {
            x = x.wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(17);
        }
        std::hint::black_box(x);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Calls;

    #[test]
    fn the_clock_runs_every_call_and_the_simulation_is_a_function_of_the_subject() {
        let mut calls = 0;
        let mut call = Calls(|| {
            calls += 1;
            Ok(())
        });
        Clock.batch("a", 5, &mut call).unwrap();
        let one = Simulated.batch("a", 5, &mut call).unwrap();
        assert_eq!(one, Simulated.batch("a", 5, &mut call).unwrap());
        assert_ne!(one, Simulated.batch("b", 5, &mut call).unwrap());
        assert_eq!(calls, 8);
        assert!(fixed_loop(&Clock) > 0);
    }
}
