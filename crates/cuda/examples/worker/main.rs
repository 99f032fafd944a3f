//! A worker for benchmarks: one JSON request per line on standard input, one JSON answer per line.
//!
//! `{"cmd":"facts"}`;
//! `{"cmd":"prepare","op":"softmax","rows":R,"cols":C,"dtype":"f32"}` lowers the legal row mappings of
//! the planner's space, best first (`"limit":N`: the first N of them; or those of `"mappings":[…]`),
//! checks each whole on its first rows against the float64 oracle, times the correct ones and keeps
//! the fastest;
//! `{"cmd":"plan",…}` gives that list; it needs no device;
//! `{"cmd":"time","rounds":N}` times the kept kernel: medians of graph launches in microseconds;
//! `{"cmd":"share","least":B}` tells how other processes open its tensors of at least B bytes;
//! `{"cmd":"check","rows":R,"cols":C}` checks every row op in every dtype with many mappings;
//! `{"cmd":"reset"}` takes away what launches of any process keep in the second-level cache;
//! `{"cmd":"empty","groups":G}` times an empty kernel;
//! `{"cmd":"copy","bytes":B}` times a copy of B bytes by a kernel of our own.

mod case;
mod check;
mod copy;
mod search;

use std::io::{BufRead as _, Write as _};
use std::sync::Arc;

use serde_json::{Value, json};
use tilewright_cuda::driver::{Context, CudaError};
use tilewright_plan::mapping::RowMapping;

use case::{Case, Error};
use search::Kept;

/// Rows that are checked before a mapping is timed.
const CHECKED_ROWS: u64 = 64;

/// The case that a request names, with the oracle's outputs of at most `checked` rows.
fn case(request: &Value, checked: u64) -> Result<Case, Error> {
    let number = |name: &'static str| request[name].as_u64().ok_or(name);
    let op = request["op"].as_str().ok_or("op")?;
    let dtype = request["dtype"].as_str().ok_or("dtype")?.parse()?;
    Case::new(op, number("rows")?, number("cols")?, dtype, checked)
}

/// The mappings that a request gives, or those of the planner's space.
fn mappings(request: &Value, case: &Case) -> Result<Vec<RowMapping>, Error> {
    let mut all = match request.get("mappings") {
        Some(list) => serde_json::from_value(list.clone())?,
        None => search::mappings(case)?,
    };
    all.truncate(request["limit"].as_u64().map_or(usize::MAX, |limit| limit as usize));
    Ok(all)
}

fn answer(
    context: &Result<Arc<Context>, CudaError>,
    kept: &mut Option<Kept>,
    line: &str,
) -> Result<Value, Error> {
    let request: Value = serde_json::from_str(line)?;
    let number = |name: &'static str| request[name].as_u64().ok_or(name);
    if request["cmd"] == "plan" {
        return Ok(json!({ "mappings": mappings(&request, &case(&request, 1)?)? }));
    }
    let context = context.as_ref().map_err(Clone::clone)?;
    match request["cmd"].as_str() {
        Some("facts") => Ok(json!({ "facts": format!("{:?}", context.facts()) })),
        Some("prepare") => {
            *kept = None;
            let case = case(&request, CHECKED_ROWS)?;
            let mappings = mappings(&request, &case)?;
            let (new, report) = search::prepare(context, case.upload(context)?, &mappings)?;
            *kept = Some(new);
            Ok(report)
        }
        Some("time") => {
            let rounds = request["rounds"].as_u64().unwrap_or(5) as usize;
            let kept = kept.as_ref().ok_or("nothing is prepared")?;
            Ok(json!({ "us": search::median(kept.microseconds(context, rounds)?) }))
        }
        Some("share") => {
            let kept = kept.as_ref().ok_or("nothing is prepared")?;
            Ok(json!({ "buffers": kept.problem().shared(number("least")?)? }))
        }
        Some("check") => check::check(context, number("rows")?, number("cols")?),
        Some("reset") => {
            kept.as_ref().ok_or("nothing is prepared")?.problem().reset(context)?;
            Ok(json!({}))
        }
        Some("empty") => copy::empty(context, number("groups")? as u32),
        Some("copy") => copy::copy(context, number("bytes")?),
        _ => Err("unknown command".into()),
    }
}

fn main() -> Result<(), Error> {
    let context = Context::open(0);
    let mut kept = None;
    for line in std::io::stdin().lock().lines() {
        let reply = answer(&context, &mut kept, &line?)
            .unwrap_or_else(|error| json!({ "error": error.to_string() }));
        println!("{reply}");
        std::io::stdout().flush()?;
    }
    Ok(())
}
