//! Measures every legal candidate of the planner's spaces for a list of cases: the labels that
//! cost models are fitted to.
//!
//! usage: labels CASES.jsonl OUT.jsonl [--ptxas PATH] [--seconds S] [--rounds R] [--dry K]
//!
//! A case is `{"op":"softmax","shape":[R,C],"dtype":"f32","set":"train"}` or
//! `{"op":"gemm","shape":[M,N,K],"dtype":"f32","set":"hold-out"}`; one line of the output has all
//! of its candidates, and with `"extra":N` of N more products of the exhaustive search's short list that the space
//! lacks. Kernels are assembled by `ptxas` in several processes, ahead of the device,
//! which is used by one thread: it checks a candidate's output against a float64 reference before
//! its time counts, and times rounds of graphs in rotated order. `--dry K` needs no device: it
//! assembles K candidates of each case and says what that takes.

mod assemble;
#[path = "../common/product.rs"]
mod product;
mod rows;
mod subject;

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use tilewright_cuda::driver::{Context, Graph};
use tilewright_plan::Target;

use assemble::Assembly;
use product::Ready;
use subject::{Case, Inputs};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Microseconds that one sample takes at least.
const SAMPLE_US: f64 = 1200.0;
/// Microseconds of work before the first sample of a case, so that clocks are up.
const WARM_US: f64 = 20_000.0;

struct Options {
    cases: PathBuf,
    out: PathBuf,
    ptxas: PathBuf,
    seconds: f64,
    rounds: usize,
    dry: Option<usize>,
}

fn options() -> Result<Options, Error> {
    let mut out = Options {
        cases: PathBuf::new(),
        out: PathBuf::new(),
        ptxas: PathBuf::from("ptxas"),
        seconds: f64::INFINITY,
        rounds: 3,
        dry: None,
    };
    let mut plain = 0;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--ptxas" => out.ptxas = value()?.into(),
            "--seconds" => out.seconds = value()?.parse()?,
            "--rounds" => out.rounds = value()?.parse()?,
            "--dry" => out.dry = Some(value()?.parse()?),
            _ => {
                *(if plain == 0 { &mut out.cases } else { &mut out.out }) = arg.into();
                plain += 1;
            }
        }
    }
    if plain != 2 {
        return Err("usage: labels CASES.jsonl OUT.jsonl [options]".into());
    }
    Ok(out)
}

/// A candidate that is ready to be timed.
struct Timed {
    index: usize,
    ready: Ready,
    graph: Graph,
    count: usize,
    samples: Vec<f64>,
}

/// Loads a candidate, checks its output and captures its graph.
fn prepare(
    context: &Arc<Context>,
    inputs: &Inputs,
    case: &Case,
    index: usize,
    assembled: assemble::Outcome,
    row: &mut Value,
) -> Result<Timed, Error> {
    let mut functions = Vec::new();
    for (kernel, ptx, image) in assembled? {
        let function = context.load_image(&ptx, &image)?;
        if functions.is_empty() {
            let report = function.report()?;
            row["registers"] = report.registers.into();
            row["local_bytes"] = report.local_bytes.into();
            row["resident"] = report.groups_per_core.into();
        }
        functions.push((kernel, function));
    }
    let mut ready = inputs.ready(context, &case.program, functions)?;
    inputs.poison()?;
    ready.run()?;
    context.synchronize()?;
    let error = inputs.error(context)?;
    row["error"] = error.into();
    if error.is_nan() || error > 1.0 {
        return Err(format!("wrong: {error} times the bound").into());
    }
    let once = context.time(|| ready.run())?;
    let count = ((SAMPLE_US / once.max(0.5)) as usize).clamp(1, 600);
    let graph = context.capture(|| (0..count).try_for_each(|_| ready.run()))?;
    // The first launch of a graph brings it to the device.
    graph.launch()?;
    Ok(Timed { index, ready, graph, count, samples: Vec::new() })
}

/// Measures a case: the line of the output.
fn measure(
    context: &Arc<Context>,
    case: &Case,
    outcomes: Vec<assemble::Outcome>,
    rounds: usize,
) -> Result<Value, Error> {
    let inputs = Inputs::new(context, case)?;
    let mut rows: Vec<Value> = Vec::new();
    let mut list: Vec<Timed> = Vec::new();
    for (index, outcome) in outcomes.into_iter().enumerate() {
        let mut row = json!({ "mapping": case.mappings[index] });
        if index >= case.legal {
            row["outside"] = true.into();
        }
        match prepare(context, &inputs, case, index, outcome, &mut row) {
            Ok(timed) => list.push(timed),
            Err(error) => {
                row["failed"] = error.to_string().chars().take(300).collect::<String>().into();
            }
        }
        rows.push(row);
    }
    let mut warm = 0.0;
    while warm < WARM_US && !list.is_empty() {
        for timed in &list {
            warm += context.time(|| timed.graph.launch())?;
            if warm >= WARM_US {
                break;
            }
        }
    }
    for round in 0..rounds {
        let first = list.len() * round / rounds.max(1);
        for i in 0..list.len() {
            let at = (first + i) % list.len();
            let timed = &mut list[at];
            let us = context.time(|| timed.graph.launch())? / timed.count as f64;
            timed.samples.push(us);
        }
    }
    for timed in &list {
        let samples: Vec<f64> = timed.samples.iter().map(|s| (s * 1e4).round() / 1e4).collect();
        rows[timed.index]["us"] = json!(samples);
        rows[timed.index]["launches"] = timed.ready.launches.len().into();
    }
    Ok(json!({ "case": case.id, "op": case.op, "shape": case.shape, "dtype": case.dtype.name(),
               "set": case.set, "candidates": rows }))
}

fn summary(line: &Value, seconds: f64) -> String {
    let rows = line["candidates"].as_array().map_or(&[][..], Vec::as_slice);
    let mut times: Vec<f64> = rows
        .iter()
        .filter_map(|r| {
            let mut samples: Vec<f64> =
                r["us"].as_array()?.iter().filter_map(Value::as_f64).collect();
            samples.sort_by(f64::total_cmp);
            samples.get(samples.len() / 2).copied()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let failed: Vec<&str> = rows.iter().filter_map(|r| r["failed"].as_str()).collect();
    let at =
        |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN);
    format!(
        "{:28} {:4} candidates, {} failed; best {:.2}, median {:.2}, worst {:.2} us; {seconds:.1} s {}",
        line["case"].as_str().unwrap_or("?"),
        rows.len(),
        failed.len(),
        at(0.0),
        at(0.5),
        times.last().copied().unwrap_or(f64::NAN),
        failed.first().copied().unwrap_or("")
    )
}

fn main() -> Result<(), Error> {
    let options = options()?;
    let target = Target::nvidia_h200();
    let mut cases = Vec::new();
    for line in std::fs::read_to_string(&options.cases)?.lines().filter(|l| !l.trim().is_empty()) {
        cases.push(Case::new(&serde_json::from_str(line)?, &target)?);
    }
    let cases = Arc::new(cases);
    let started = Instant::now();
    if let Some(few) = options.dry {
        return assemble::dry(&cases, &options.ptxas, few);
    }
    let context = Context::open(0)?;
    println!("{:?}", context.facts());
    let limit = tilewright_cuda::target::limit(context.facts());
    let assembly = Assembly::start(cases.clone(), options.ptxas.clone(), limit);
    let mut out = std::fs::File::create(&options.out)?;
    for (number, case) in cases.iter().enumerate() {
        let outcomes = assembly.wait(number);
        let begun = Instant::now();
        if started.elapsed().as_secs_f64() > options.seconds {
            println!("out of time before {}", case.id);
            break;
        }
        let waited = begun.duration_since(started).as_secs_f64();
        let line = match measure(&context, case, outcomes, options.rounds) {
            Ok(line) => line,
            Err(error) => {
                println!("{waited:6.1} {}: {error}", case.id);
                json!({ "case": case.id, "error": error.to_string() })
            }
        };
        println!("{waited:6.1} {}", summary(&line, begun.elapsed().as_secs_f64()));
        writeln!(out, "{line}")?;
        out.flush()?;
    }
    assembly.stop();
    Ok(())
}
