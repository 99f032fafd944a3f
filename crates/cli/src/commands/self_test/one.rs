//! The process that runs cases: which, and how one is run.

use super::SelfTestArgs;
use super::report::{Case, Verdict};
use crate::error::CliError;
use std::collections::HashSet;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tilewright_engine::check::{self, LaunchValues};
use tilewright_engine::timing::{TimingOptions, measure_bound};
use tilewright_engine::{Compiled, Engine, EngineError, PlanOptions, inputs};
use tilewright_metal::cases as metal;
use tilewright_runtime::{Device, RuntimeError};

/// Seed of the inputs: the same numbers on every device.
const SEED: u64 = 1;

/// A short measurement: its figures say that the clock works, not how fast the kernel is.
const TIMING: TimingOptions =
    TimingOptions { warmup: Duration::ZERO, sample: Duration::from_millis(1), samples: 3 };

/// The list for a device. Metal runs the list's own kernels. Other devices plan the list's
/// programs themselves, each once.
fn list(args: &SelfTestArgs, device: &Arc<dyn Device>) -> Result<Vec<metal::Case>, CliError> {
    let mut cases = metal::cases().map_err(CliError::usage)?;
    if !own_kernels(device) {
        let mut seen = HashSet::new();
        cases.retain(|case| {
            seen.insert(format!("{:?} {:?} {:?}", case.program, case.dims, case.scalars))
        });
    }
    cases.retain(|case| !args.brief || case.brief);
    if let Some(text) = &args.case {
        cases.retain(|case| case.id.contains(text.as_str()));
    }
    Ok(cases)
}

/// Whether a device runs the kernels of the list rather than plans of its own.
fn own_kernels(device: &Arc<dyn Device>) -> bool {
    device.capabilities().name == "metal"
}

/// Names of the cases that a device runs.
///
/// # Errors
/// The list can't be made.
pub fn names(args: &SelfTestArgs, device: &Arc<dyn Device>) -> Result<Vec<String>, CliError> {
    Ok(list(args, device)?.into_iter().map(|case| case.id).collect())
}

/// Runs the cases from a position on and prints each as a line of JSON.
///
/// # Errors
/// The list can't be made, or the output can't be written.
pub fn serve(args: &SelfTestArgs, device: Arc<dyn Device>, from: usize) -> Result<(), CliError> {
    let own = own_kernels(&device);
    let cases = list(args, &device)?;
    let engine = Engine::new(device);
    for case in cases.iter().skip(from) {
        // A panic is a fault of this case; the next may still be run.
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&engine, case, own)));
        let outcome = outcome.unwrap_or_else(|_| {
            Case::ended(&case.id, Verdict::Crashed, Some("it panicked".to_string()))
        });
        let line = serde_json::to_string(&outcome)
            .map_err(|e| CliError::Io(format!("can't write the result: {e}")))?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}")
            .and_then(|()| out.flush())
            .map_err(|e| CliError::Io(format!("can't write the result: {e}")))?;
    }
    Ok(())
}

fn run(engine: &Engine, case: &metal::Case, own: bool) -> Case {
    let mut result = Case::ended(&case.id, Verdict::Passed, None);
    if let Err(error) = evaluate(engine, case, own, &mut result) {
        result.verdict = match &error {
            EngineError::Runtime(RuntimeError::Unsupported { .. })
            | EngineError::Rejected { .. } => Verdict::Refused,
            _ => Verdict::Failed,
        };
        result.detail = Some(error.to_string());
    }
    result
}

fn evaluate(
    engine: &Engine,
    case: &metal::Case,
    own: bool,
    result: &mut Case,
) -> Result<(), EngineError> {
    let values = LaunchValues {
        dims: case.dims.iter().map(|(name, size)| (name.clone(), *size)).collect(),
        scalars: case.scalars.iter().map(|(name, x)| (name.clone(), *x)).collect(),
    };
    let start = Instant::now();
    let compiled = if own {
        engine.compile_stated(&case.program, vec![case.kernel.clone()], &case.id)?
    } else {
        let options = PlanOptions { sizes: case.dims.clone(), ..PlanOptions::default() };
        engine.compile(&engine.plan(&case.program, &options)?)?
    };
    result.compile_ms = Some(start.elapsed().as_secs_f64() * 1e3);
    result.plan = Some(compiled.describe());
    let mut plain = judge(&compiled, case, &values, metal::Special::None, result)?;
    // Apple's GPUs may take subnormal numbers for 0.
    for special in case.specials(false).into_iter().chain(case.extremes(!own)) {
        if result.verdict == Verdict::Passed {
            judge(&compiled, case, &values, special, result)?;
        }
    }
    match result.verdict {
        Verdict::Passed => time(&compiled, &values, &mut plain, result),
        _ => Ok(()),
    }
}

/// Runs on one kind of input and adds what came out to the result.
fn judge(
    compiled: &Compiled,
    case: &metal::Case,
    values: &LaunchValues,
    special: metal::Special,
    result: &mut Case,
) -> Result<check::CheckedRun, EngineError> {
    let data = case.inputs(special, SEED).map_err(|e| EngineError::Oracle(e.to_string()))?;
    let contents = inputs::of(&case.program, &data)?;
    let checked = check::run_checked(compiled, values, contents.inputs, contents.initial)?;
    let outputs = &checked.report.outputs;
    let elements: u64 = outputs.iter().map(|o| o.comparison.elements).sum();
    result.elements = Some(result.elements.unwrap_or(0) + elements);
    result.inputs = Some(result.inputs.unwrap_or(0) + 1);
    // A ratio that isn't a number has no place in JSON; then the verdict says it.
    let worst = outputs.iter().map(|o| o.comparison.worst_ratio);
    let worst = worst.fold(result.error_ratio.unwrap_or(0.0), f64::max);
    result.error_ratio = Some(worst).filter(|r| r.is_finite());
    if let Some(complaint) = checked.report.complaint() {
        result.verdict = Verdict::Wrong;
        result.detail = Some(format!("{special}: {complaint}"));
    }
    Ok(checked)
}

fn time(
    compiled: &Compiled,
    values: &LaunchValues,
    checked: &mut check::CheckedRun,
    result: &mut Case,
) -> Result<(), EngineError> {
    let timing = measure_bound(&TIMING, &mut [checked.bind(compiled, values)?])?;
    result.launch_us = Some(timing.median_us()).filter(|us| us.is_finite());
    result.clock = Some(timing.clock.name().to_string());
    Ok(())
}
