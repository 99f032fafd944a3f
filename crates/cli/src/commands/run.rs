//! `run`: plans, compiles, runs, checks every element, and times.

mod inputs;
mod report;

use super::{print, print_json};
use crate::args::RunArgs;
use crate::error::CliError;
use crate::machine;
use crate::npy;
use crate::output;
use crate::request::Request;
use crate::schedule;
use crate::work::Work;
use report::{Outcome, Report};
use std::path::{Path, PathBuf};
use tilewright_engine::check::{self, CheckedRun, LaunchValues};
use tilewright_engine::timing::{Timing, TimingOptions, measure, measure_bound};
use tilewright_engine::{
    Compiled, Engine, EngineError, Input, LaunchError, Output, Plan, Signature,
};
use tilewright_ir::program::Access;
use tilewright_plan::ResourceTable;
use tilewright_runtime::Buffer;

/// Runs the command.
///
/// # Errors
/// By exit code: a failed check, usage, a missing device, files.
pub fn run(args: &RunArgs) -> Result<(), CliError> {
    // Faults that cost nothing to find come first: nothing is compiled or allocated for them.
    let request = Request::new(&args.op)?;
    let signature = Signature::of(&request.program).map_err(CliError::usage)?;
    check_outputs(&signature, &args.output)?;
    let files = inputs::assign(&signature, &args.input)?;
    let isa = args.isa.as_deref();
    let device = machine::device(&args.device, isa, args.schedule.cpu_threads)?;
    if let Some(path) = &args.save_resources {
        output::probe(path)
            .map_err(|e| CliError::Io(format!("can't write {}: {e}", path.display())))?;
    }
    let values = LaunchValues { dims: Vec::new(), scalars: request.scalars.clone() };
    check::check_memory(&signature, &values)?;
    let contents = inputs::load(&request.program, &signature, &values, files, args.seed)?;

    let engine = Engine::new(device);
    let planned = schedule::make(
        &args.schedule,
        &request.program,
        engine.target(),
        engine.device().compiler(),
    )?;
    let (plan, notes) = (&planned.plan, planned.notes());
    let (compiled, mut checked) =
        check::compile_checked(&engine, plan, &values, contents.inputs, contents.initial)?;
    if let Some(path) = &args.save_resources {
        save_resources(path, plan, &engine)?;
    }
    let complaint = checked.report.complaint();
    let timing = match complaint {
        // A wrong result has no speed.
        Some(_) => None,
        None => {
            write_outputs(&signature, &args.output, &checked.outputs)?;
            Some(time(&compiled, &values, &mut checked)?)
        }
    };
    let outcome = outcome(args, &request, &engine, plan, &compiled, &values, checked, timing);
    let report = Report::new(outcome, &notes);
    if args.json {
        print_json(&report)?
    } else {
        print(&report.text())?
    }
    match complaint {
        Some(complaint) => Err(CliError::Check(complaint)),
        None => Ok(()),
    }
}

#[allow(clippy::too_many_arguments)]
fn outcome<'a>(
    args: &'a RunArgs,
    request: &'a Request,
    engine: &'a Engine,
    plan: &'a Plan,
    compiled: &'a Compiled,
    values: &LaunchValues,
    checked: CheckedRun,
    timing: Option<Timing>,
) -> Outcome<'a> {
    let capabilities = engine.device().capabilities();
    let threads = args.schedule.cpu_threads.map_or(capabilities.threads, |n| n as usize);
    Outcome {
        request,
        capabilities,
        threads,
        plan,
        compiled,
        check: checked.report,
        random_seed: args.input.is_empty().then_some(args.seed),
        work: Work::of(&request.program, &plan.facts, values),
        roofline: timing.as_ref().and_then(|_| engine.device().roofline(request.dtype, threads)),
        timing,
        written: &args.output,
    }
}

/// Writes the plan's resource table with what the compiler reported of the run's kernels.
fn save_resources(path: &Path, plan: &Plan, engine: &Engine) -> Result<(), CliError> {
    let mut table = plan
        .resources
        .as_ref()
        .map_or_else(ResourceTable::default, |resources| resources.table.as_ref().clone());
    for (kernel, compiler, row) in engine.reports().iter() {
        table.insert(*kernel, compiler, row.clone());
    }
    output::write_atomically(path, |out| std::io::Write::write_all(out, table.to_text().as_bytes()))
        .map_err(|e| CliError::Io(format!("can't write {}: {e}", path.display())))
}

/// Checks that there is a path for every output, and that a file could be created at each.
fn check_outputs(signature: &Signature, paths: &[PathBuf]) -> Result<(), CliError> {
    let written: Vec<&str> = signature
        .tensors
        .iter()
        .filter(|t| t.access != Access::In)
        .map(|t| t.name.as_str())
        .collect();
    if !paths.is_empty() && paths.len() != written.len() {
        return Err(CliError::Usage(format!(
            "--output takes {} file(s), one for each of: {}",
            written.len(),
            written.join(", ")
        )));
    }
    for path in paths {
        output::probe(path)
            .map_err(|e| CliError::Io(format!("can't write {}: {e}", path.display())))?;
    }
    Ok(())
}

fn write_outputs(
    signature: &Signature,
    paths: &[PathBuf],
    outputs: &[Buffer],
) -> Result<(), CliError> {
    let sizes = LaunchValues::default().sizes(signature)?;
    let written: Vec<usize> = (0..signature.tensors.len())
        .filter(|i| signature.tensors[*i].access != Access::In)
        .collect();
    for ((path, buffer), index) in paths.iter().zip(outputs).zip(written) {
        let shape = signature.shape(index, &sizes);
        output::write_atomically(path, |out| npy::write(out, &shape, buffer))
            .map_err(|e| CliError::Io(format!("can't write {}: {e}", path.display())))?;
    }
    Ok(())
}

/// Times launches on the checked run's own buffers. An output that the program also reads keeps
/// being updated; its values don't matter any more.
fn time(
    compiled: &Compiled,
    values: &LaunchValues,
    checked: &mut CheckedRun,
) -> Result<Timing, EngineError> {
    if checked.resident.is_some() {
        let mut bound = [checked.bind(compiled, values)?];
        return Ok(measure_bound(&TimingOptions::default(), &mut bound)?);
    }
    // On the CPU a call counts with its checks, as a caller has it.
    let inputs: Vec<&dyn Input> = checked.inputs.iter().map(|b| b as &dyn Input).collect();
    let mut outputs: Vec<&mut dyn Output> =
        checked.outputs.iter_mut().map(|b| b as &mut dyn Output).collect();
    values.with_options(|options| {
        let timing = measure(&TimingOptions::default(), || {
            compiled.run_with(options, &inputs, &mut outputs)
        });
        timing.map_err(|e: LaunchError| e.into())
    })
}
