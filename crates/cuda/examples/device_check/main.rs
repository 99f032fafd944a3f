//! What a GPU does as a device of the engine: every op checked whole against the float64 oracle,
//! and what the host pays.
//!
//! `device_check facts` says what the driver tells; `check` runs every op in every type that it
//! takes over shapes at the thresholds; `gemm` runs products of all storages, ragged, unaligned,
//! batched, with epilogues; `paths` runs long rows,
//! thin products, long grids and open sizes; `few` is a short list for a memory checker, `brief` one
//! kernel of each kind; `host` prints times of PTX generation, from a ready context to a checked
//! result, and of launches; `ptx` the first of these, without a device.

mod cases;
mod host;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use cases::{Case, all_ops, brief, few, paths, products, values};
use tilewright_cuda::CudaDevice;
use tilewright_engine::check::run_checked;
use tilewright_engine::timing::{TimingOptions, measure_bound};
use tilewright_engine::{Engine, PlanOptions, inputs};
use tilewright_ir::DType;
use tilewright_plan::Target;
use tilewright_runtime::Device;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Checks that run at the same time.
const THREADS: usize = 12;

/// Checks one case; the plan in words and the time of a launch.
fn check(engine: &Engine, case: &Case, time: bool) -> Result<(String, Option<f64>), Error> {
    let values = values(case);
    let sizes = values.dims.iter().cloned().collect();
    let options = PlanOptions { sizes, ..PlanOptions::default() };
    let mut plan = engine.plan(&case.program, &options)?;
    if let (Some(mapping), Some(first)) = (case.mapping, plan.ranking.candidates.first_mut()) {
        first.mapping = mapping;
        plan.ranking.order = vec![0];
    }
    let compiled = engine.compile(&plan)?;
    let contents = inputs::random(&case.program, &values, 7)?;
    let mut run = run_checked(&compiled, &values, contents.inputs, contents.initial)?;
    if let Some(complaint) = run.report.complaint() {
        return Err(format!("WRONG under {}: {complaint}", compiled.describe()).into());
    }
    let us = if time {
        let mut bound = [run.bind(&compiled, &values)?];
        Some(measure_bound(&TimingOptions::default(), &mut bound)?.median_us())
    } else {
        None
    };
    let report = compiled.handle().executable().report();
    let words = format!(
        "{} ({} registers, {} spilled bytes, {} groups a core, {} rejected)",
        compiled.describe(),
        report.registers.unwrap_or(0),
        report.spills,
        report.groups_per_core.unwrap_or(0),
        compiled.rejected().len()
    );
    Ok((words, us))
}

fn check_all(engine: &Engine, cases: &[Case], threads: usize, time: bool) -> usize {
    let start = Instant::now();
    let next = AtomicUsize::new(0);
    let lines = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = check(engine, case, time);
                    if let Ok(mut lines) = lines.lock() {
                        lines.push((case.name.clone(), outcome.map_err(|e| e.to_string())));
                    }
                }
            });
        }
    });
    let mut lines = lines.into_inner().unwrap_or_default();
    lines.sort_by(|a, b| a.0.cmp(&b.0));
    let mut failures = 0;
    let mut expected = 0;
    for (name, outcome) in &lines {
        match outcome {
            Ok((words, Some(us))) => println!("ok    {name}: {us:.2} us, {words}"),
            Ok((words, None)) if std::env::var_os("VERBOSE").is_some() => {
                println!("ok    {name}: {words}");
            }
            Ok(_) => {}
            // Functions that f64 doesn't have there are refused by their rule.
            Err(message) if name.contains(" f64") && message.contains("ptx-codegen") => {
                expected += 1;
            }
            Err(message) => {
                failures += 1;
                println!("FAIL  {name}: {message}");
            }
        }
    }
    println!(
        "{} checked whole, {failures} failed, {expected} refused by rule, {:.1} s",
        lines.len() - failures - expected,
        start.elapsed().as_secs_f64()
    );
    failures
}

fn main() -> Result<(), Error> {
    let mode = std::env::args().nth(1).unwrap_or_else(|| "check".to_string());
    if mode == "ptx" {
        return host::emission(&Target::nvidia_h200());
    }
    let device = CudaDevice::open(0)?;
    let failures = match mode.as_str() {
        "facts" => {
            println!("{:?}", device.context().facts());
            println!("{}", serde_json::to_string(device.target())?);
            println!("{:?}", device.capabilities());
            println!("{:?}", device.roofline(DType::F32, 1));
            0
        }
        "host" => {
            host::host(device)?;
            0
        }
        _ => {
            let engine = Engine::new(std::sync::Arc::new(device));
            match mode.as_str() {
                "check" => check_all(&engine, &all_ops()?, THREADS, false),
                "gemm" => check_all(&engine, &products()?, 1, true),
                "paths" => check_all(&engine, &paths()?, 1, true),
                "few" => check_all(&engine, &few()?, 1, false),
                "brief" => check_all(&engine, &brief()?, 1, false),
                other => return Err(format!("no mode `{other}`").into()),
            }
        }
    };
    if failures > 0 { Err(format!("{failures} failed").into()) } else { Ok(()) }
}
