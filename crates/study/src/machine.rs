//! Who measures: identity, ceilings, state, and the floor that they set for a case.

use crate::canonical::{canonical, sha256};
use crate::error::StudyError;
use crate::meter::{Meter, MeterKind};
use crate::record::{
    BytesPerSecond, Ceilings, ControlEntry, Floor, FlopsPerSecond, MACHINE, Machine, State, Tool,
};
use crate::spec::Study;
use crate::subject::Subject;
use crate::worker::{Launch, Process, Reply, control};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tilewright_controls as controls;
use tilewright_ir::DType;
use tilewright_runtime::Device;

/// Time that a control has to say what it is: Python takes a while to import torch.
const GREETING: Duration = Duration::from_secs(120);

/// Strings and integers that say which machine it is. No name of a host or a user.
pub fn identity(device: &Arc<dyn Device>) -> Value {
    let capabilities = device.capabilities();
    let caches = device.target().cpu_facts().map(|f| (f.l1_bytes, f.l2_bytes, f.l3_bytes));
    let (l1, l2, l3) = caches.unwrap_or((0, 0, 0));
    json!({
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
        "device": capabilities.name,
        "model": capabilities.model,
        "isa": capabilities.isa,
        "threads": capabilities.threads,
        "caches_bytes": {"l1": l1, "l2": l2, "l3": l3},
        "driver": null,
        "target_sha256": device.target().hash().to_string(),
    })
}

/// Hash of an identity.
///
/// # Errors
/// It has no canonical form.
pub fn identity_hash(identity: &Value) -> Result<String, StudyError> {
    Ok(sha256(canonical(identity)?.as_bytes()))
}

/// This program.
///
/// # Errors
/// Its file can't be read.
pub fn tool() -> Result<Tool, StudyError> {
    let path = std::env::current_exe().map_err(|source| StudyError::Io {
        what: "find this program's file".to_string(),
        source,
    })?;
    let bytes = std::fs::read(&path).map_err(|e| StudyError::io("read", &path, e))?;
    Ok(Tool { version: env!("CARGO_PKG_VERSION").to_string(), executable_sha256: sha256(&bytes) })
}

/// The machine at this moment.
pub fn state(meter: &dyn Meter) -> State {
    let simulated = meter.kind() == MeterKind::Simulated;
    let read = |path: &str| if simulated { None } else { std::fs::read_to_string(path).ok() };
    let load1 = read("/proc/loadavg").and_then(|t| t.split(' ').next()?.parse().ok());
    let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let mhz = read("/proc/cpuinfo").map(|text| {
        text.lines()
            .filter(|l| l.starts_with("cpu MHz"))
            .filter_map(|l| l.split(':').nth(1)?.trim().parse().ok())
            .collect::<Vec<f64>>()
    });
    State {
        unix_s: meter.unix_s(),
        load1,
        governor: governor.map(|g| g.trim().to_string()),
        mhz: mhz.filter(|m| !m.is_empty()),
    }
}

/// Measures ceilings and asks the controls what they are.
pub fn machine(
    device: &Arc<dyn Device>,
    meter: &dyn Meter,
    study: &Study,
    own: &Launch,
) -> Machine {
    let threads: BTreeSet<u32> = study.cases.iter().map(|c| c.threads).collect();
    let ceilings = threads.into_iter().map(|t| measure_ceilings(device, meter, t)).collect();
    let controls = study
        .controls
        .iter()
        .map(|name| control_entry(name, &study.device, study.threads, own))
        .collect();
    Machine {
        schema: MACHINE.to_string(),
        meter: meter.kind(),
        identity: identity(device),
        target: device.target().clone(),
        ceilings,
        controls,
    }
}

fn measure_ceilings(device: &Arc<dyn Device>, meter: &dyn Meter, threads: u32) -> Ceilings {
    if meter.kind() == MeterKind::Simulated {
        // Limits that no simulated time comes near.
        return Ceilings {
            threads,
            flops_per_second: FlopsPerSecond { f32: 1e15, f64: 1e15 },
            launch_ns: 1.0,
            bytes_per_second: BytesPerSecond {
                l1: Some(1e15),
                l2: Some(1e15),
                l3: Some(1e15),
                memory: 1e15,
            },
        };
    }
    let caches =
        device.target().cpu_facts().map_or([0; 3], |f| [f.l1_bytes, f.l2_bytes, f.l3_bytes]);
    let limits = controls::ceilings::measure(threads as usize, caches);
    // The device's own loops may be faster than portable ones.
    let own = |dtype| device.roofline(dtype, threads as usize);
    let flops =
        |dtype, portable: f64| own(dtype).map_or(portable, |r| portable.max(r.flops_per_second));
    let [l1, l2, l3, memory] = limits.bytes_per_second;
    let device_memory = own(DType::F32).map_or(0.0, |r| r.bytes_per_second);
    Ceilings {
        threads,
        flops_per_second: FlopsPerSecond {
            f32: flops(DType::F32, limits.f32_per_second),
            f64: flops(DType::F64, limits.f64_per_second),
        },
        launch_ns: launch_ns(device, meter),
        bytes_per_second: BytesPerSecond {
            l1,
            l2,
            l3,
            memory: memory.unwrap_or(0.0).max(device_memory),
        },
    }
}

/// The fastest launch of a one-element program; 0 where that can't be compiled, which sets no
/// floor.
fn launch_ns(device: &Arc<dyn Device>, meter: &dyn Meter) -> f64 {
    use tilewright_engine::{Engine, LaunchOptions, PlanOptions};
    use tilewright_ir::ops::{OpRequest, build};
    let engine = Engine::new(device.clone());
    let Ok(program) = build("relu", &OpRequest::shaped(DType::F32, &[1, 1])) else { return 0.0 };
    let Ok(plan) = engine.plan(&program, &PlanOptions::default()) else { return 0.0 };
    let Ok(compiled) = engine.compile(&plan) else { return 0.0 };
    let (x, mut y) = ([1f32], [0f32]);
    let Ok(mut bound) = compiled.bind(&LaunchOptions::default(), &[&x], [&mut y]) else {
        return 0.0;
    };
    const CALLS: u64 = 2000;
    let batches = (0..20).filter_map(|_| {
        let mut call = || bound.launch().map_err(|e| e.to_string());
        meter.batch("launch", CALLS, &mut call).ok()
    });
    batches.min().map_or(0.0, |ns| ns as f64 / CALLS as f64)
}

fn control_entry(name: &str, device: &str, threads: u32, own: &Launch) -> ControlEntry {
    let launch = control::launch(name, device, threads, own);
    let unset = launch.unset.iter().filter(|name| std::env::var_os(name).is_some()).cloned();
    let reply = Process::start(&launch).and_then(|mut process| process.next(GREETING));
    let (available, version, reason) = match reply {
        Ok(Reply::Ready { version }) => (true, version, None),
        Ok(Reply::Unavailable { reason }) => (false, None, Some(reason)),
        Ok(other) => (false, None, Some(format!("it says {other:?}"))),
        Err(failure) => (false, None, Some(failure.to_string())),
    };
    // By op for PyTorch; each row of a search says which it was.
    let output = if name.starts_with("torch-") { "returned" } else { "preallocated" };
    ControlEntry {
        name: name.to_string(),
        available,
        version,
        reason,
        output: output.to_string(),
        unset: unset.collect(),
    }
}

/// The least time of a case: the largest of its operations, its bytes at the smallest level that
/// holds them all, and a launch.
///
/// # Errors
/// There are no ceilings for the case's threads.
pub fn floor(machine: &Machine, subject: &Subject) -> Result<Floor, StudyError> {
    let case = &subject.case;
    let ceilings =
        machine.ceilings.iter().find(|c| c.threads == case.threads).ok_or_else(|| {
            StudyError::Case {
                case: case.id.clone(),
                message: format!("the record has no ceilings for {} threads", case.threads),
            }
        })?;
    let bytes = subject.bytes()?;
    let caches = machine.target.cpu_facts().map_or([0; 3], |f| {
        let threads = u64::from(case.threads);
        [f.l1_bytes * threads, f.l2_bytes * threads, f.l3_bytes]
    });
    let rates = &ceilings.bytes_per_second;
    let levels =
        [("l1", caches[0], rates.l1), ("l2", caches[1], rates.l2), ("l3", caches[2], rates.l3)];
    let (level, rate) = levels
        .iter()
        .find_map(|(name, size, rate)| rate.filter(|_| bytes <= *size).map(|r| (*name, r)))
        .unwrap_or(("memory", rates.memory));
    let flops = case.flops();
    let peak = match case.dtype.as_str() {
        "f64" => ceilings.flops_per_second.f64,
        _ => ceilings.flops_per_second.f32,
    };
    let seconds = (flops / peak).max(bytes as f64 / rate).max(ceilings.launch_ns / 1e9);
    Ok(Floor {
        flops,
        bytes,
        working_set_bytes: bytes,
        level: level.to_string(),
        floor_us: 1e6 * seconds,
    })
}
