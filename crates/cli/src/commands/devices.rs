//! `devices`: what this machine has and what it can do.

use super::{print, print_json};
use crate::args::DevicesArgs;
use crate::error::CliError;
use crate::machine;
use serde::Serialize;
use tilewright_runtime::memory::human;

#[derive(Serialize)]
struct Devices {
    schema: &'static str,
    devices: Vec<DeviceObject>,
}

#[derive(Serialize)]
struct DeviceObject {
    name: String,
    available: bool,
    reason: Option<String>,
    model: Option<String>,
    isa: Option<String>,
    threads: Option<usize>,
    memory_bytes: Option<u64>,
    notes: Vec<String>,
    target_hash: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// The output can't be written. A device that isn't available is part of the answer.
pub fn run(args: &DevicesArgs) -> Result<(), CliError> {
    let devices = machine::device_names().iter().map(|name| describe(name)).collect();
    let all = Devices { schema: "tilewright-devices-v1", devices };
    if args.json { print_json(&all) } else { print(&all.text()) }
}

fn describe(name: &str) -> DeviceObject {
    match machine::device(name, None, None) {
        Ok(device) => {
            let c = device.capabilities();
            DeviceObject {
                name: c.name.clone(),
                available: true,
                reason: None,
                model: Some(c.model.clone()),
                isa: Some(c.isa.clone()),
                threads: Some(c.threads),
                memory_bytes: c.memory_bytes,
                notes: c.notes.clone(),
                target_hash: Some(device.target().hash().to_string()),
            }
        }
        Err(error) => DeviceObject {
            name: name.to_string(),
            available: false,
            reason: Some(error.to_string()),
            model: None,
            isa: None,
            threads: None,
            memory_bytes: None,
            notes: Vec::new(),
            target_hash: None,
        },
    }
}

impl Devices {
    fn text(&self) -> String {
        let mut out = String::new();
        for d in &self.devices {
            let named = format!("device `{}` is ", d.name);
            let facts = [
                d.model.clone(),
                d.isa.clone(),
                d.threads.map(|n| format!("{n} thread{}", if n == 1 { "" } else { "s" })),
                d.memory_bytes.map(|bytes| format!("{} memory", human(bytes))),
                // The line starts with the name already.
                d.reason.as_ref().map(|r| r.trim_start_matches(&named).to_string()),
            ];
            let facts: Vec<String> = facts.into_iter().flatten().collect();
            out.push_str(&format!("{:<6} {}\n", d.name, facts.join(", ")));
            for note in &d.notes {
                out.push_str(&format!("       {note}\n"));
            }
        }
        out
    }
}
