//! A worker for benchmarks: one JSON request per line on standard input, one JSON answer per line.
//!
//! `{"cmd":"facts"}`;
//! `{"cmd":"prepare","op":"softmax","rows":R,"cols":C,"dtype":"f32"}` lowers row mappings (all that
//! are worth a try, or those of `"mappings":[…]`), checks each whole on its first rows against the
//! float64 oracle, times the correct ones and keeps the fastest;
//! `{"cmd":"time","rounds":N}` times the kept kernel: medians of graph launches in microseconds;
//! `{"cmd":"share","least":B}` tells how other processes open its tensors of at least B bytes;
//! `{"cmd":"check","rows":R,"cols":C}` checks every row op in every dtype with many mappings;
//! `{"cmd":"empty","groups":G}` times an empty kernel;
//! `{"cmd":"copy","bytes":B}` times a copy of B bytes by a kernel of our own.

mod case;
mod check;
mod copy;
mod search;

use std::io::{BufRead as _, Write as _};
use std::sync::Arc;

use serde_json::{Value, json};
use tilewright_cuda::driver::Context;
use tilewright_plan::mapping::RowMapping;

use case::{Case, Error};
use search::Kept;

/// Rows that are checked before a mapping is timed.
const CHECKED_ROWS: u64 = 64;

fn answer(context: &Arc<Context>, kept: &mut Option<Kept>, line: &str) -> Result<Value, Error> {
    let request: Value = serde_json::from_str(line)?;
    let number = |name: &'static str| request[name].as_u64().ok_or(name);
    match request["cmd"].as_str() {
        Some("facts") => Ok(json!({ "facts": format!("{:?}", context.facts()) })),
        Some("prepare") => {
            *kept = None;
            let op = request["op"].as_str().ok_or("op")?;
            let dtype = request["dtype"].as_str().ok_or("dtype")?.parse()?;
            let case = Case::new(op, number("rows")?, number("cols")?, dtype, CHECKED_ROWS)?;
            let mappings = match request.get("mappings") {
                Some(list) => serde_json::from_value::<Vec<RowMapping>>(list.clone())?,
                None => search::mappings(&case, dtype),
            };
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
        Some("empty") => copy::empty(context, number("groups")? as u32),
        Some("copy") => copy::copy(context, number("bytes")?),
        _ => Err("unknown command".into()),
    }
}

fn main() -> Result<(), Error> {
    let context = match Context::open(0) {
        Ok(context) => context,
        Err(error) => {
            println!("{}", json!({ "error": error.to_string() }));
            return Ok(());
        }
    };
    let mut kept = None;
    for line in std::io::stdin().lock().lines() {
        let reply = answer(&context, &mut kept, &line?)
            .unwrap_or_else(|error| json!({ "error": error.to_string() }));
        println!("{reply}");
        std::io::stdout().flush()?;
    }
    Ok(())
}
