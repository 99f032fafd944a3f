//! Measurements side by side: sample i of every path before sample i + 1 of any, so that a
//! disturbance of the machine meets all paths alike. Each pass has another order in which other
//! paths stand side by side, since what a path leaves behind (threads of a library that still spin,
//! a full cache) meets the next one.

use crate::bench::{Bench, Failed};
use crate::error::StudyError;
use crate::order;
use crate::protocol::{Protocol, Samples};

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path<'a> {
    /// A compiled plan, by its slot.
    Plan(usize),
    /// A control, by its name.
    Control(&'a str),
}

/// What a sample is of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Batch,
    Single,
    Device,
}

/// Measures the paths side by side in the order given: each up to its first sample, then the
/// samples in turn, each after one untimed call. A path that fails is out from there on.
///
/// # Errors
/// A worker can't be started again.
pub fn measure(
    bench: &mut Bench<'_>,
    protocol: &Protocol,
    paths: &[Path<'_>],
) -> Result<Vec<Result<Samples, Failed>>, StudyError> {
    let mut results = Vec::with_capacity(paths.len());
    for path in paths {
        results.push(match path {
            Path::Plan(slot) => bench.start(*slot, protocol)?,
            Path::Control(name) => bench.start_control(name, protocol),
        });
    }
    let phases = [
        (Phase::Batch, protocol.samples),
        (Phase::Single, protocol.single_samples),
        (Phase::Device, protocol.samples),
    ];
    for (phase, count) in phases {
        for pass in 0..count {
            for at in order::pass(paths.len(), pass) {
                let Ok(samples) = &mut results[at] else { continue };
                if let Err(failed) = sample(bench, protocol, phase, paths[at], samples)? {
                    results[at] = Err(failed);
                }
            }
        }
    }
    Ok(results)
}

/// One sample of a path; none of a device that has no clock.
fn sample(
    bench: &mut Bench<'_>,
    protocol: &Protocol,
    phase: Phase,
    path: Path<'_>,
    samples: &mut Samples,
) -> Result<Result<(), Failed>, StudyError> {
    let repetitions = match phase {
        Phase::Batch => Some(samples.repetitions),
        Phase::Single => Some(1),
        Phase::Device => samples.device_repetitions,
    };
    let Some(repetitions) = repetitions else { return Ok(Ok(())) };
    let time = match (path, phase) {
        (Path::Plan(slot), Phase::Device) => bench.device_batch(slot, repetitions)?,
        (Path::Plan(slot), _) => bench.batch(slot, repetitions)?,
        (Path::Control(name), Phase::Device) => {
            bench.device_batch_control(name, repetitions, protocol)
        }
        (Path::Control(name), _) => bench.batch_control(name, repetitions, protocol),
    };
    Ok(time.map(|ns| match phase {
        Phase::Batch => samples.batch_ns.push(ns),
        Phase::Single => samples.single_ns.push(ns),
        Phase::Device => samples.device_ns.get_or_insert_default().push(ns),
    }))
}
