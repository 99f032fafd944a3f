//! Who measures: identity, ceilings, state, and the floor that they set for a case.

use crate::canonical::{canonical, sha256};
use crate::error::StudyError;
use crate::gpu_state::gpu_state;
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
use tilewright_runtime::{Buffer, Device};

/// Time that a control has to say what it is: Python takes a while to import torch.
const GREETING: Duration = Duration::from_secs(120);

/// Measurements of the limits of a CPU, of which the largest count, and the time between them.
const ATTEMPTS: usize = 3;
const PAUSE: Duration = Duration::from_millis(100);

/// More than any GPU's cache holds: up to this size it isn't known that data come from memory.
const MOST_CACHE: u64 = 256 << 20;

/// Strings and integers that say which machine it is. No name of a host or a user.
pub fn identity(device: &Arc<dyn Device>) -> Value {
    let capabilities = device.capabilities();
    let caches = device.target().cpu_facts().map(|f| (f.l1_bytes, f.l2_bytes, f.l3_bytes));
    let (l1, l2, l3) = caches.unwrap_or((0, MOST_CACHE, 0));
    // What a device with a queue says of itself names its driver.
    let driver = device.queue().map(|_| capabilities.notes.join(" "));
    json!({
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
        "device": capabilities.name,
        "model": capabilities.model,
        "isa": capabilities.isa,
        "threads": capabilities.threads,
        "caches_bytes": {"l1": l1, "l2": l2, "l3": l3},
        "driver": driver,
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
pub fn state(meter: &dyn Meter, device: &str) -> State {
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
        gpu: if simulated { None } else { gpu_state(device) },
    }
}

/// Measures ceilings and asks the controls what they are.
///
/// # Errors
/// The device states no ceilings.
pub fn machine(
    device: &Arc<dyn Device>,
    meter: &dyn Meter,
    study: &Study,
    own: &Launch,
) -> Result<Machine, StudyError> {
    let threads: BTreeSet<u32> = study.cases.iter().map(|c| c.threads).collect();
    let ceilings = threads
        .into_iter()
        .map(|t| measure_ceilings(device, meter, t))
        .collect::<Result<_, _>>()?;
    let controls = study
        .controls
        .iter()
        .map(|name| control_entry(name, &study.device, study.threads, own))
        .collect();
    Ok(Machine {
        schema: MACHINE.to_string(),
        meter: meter.kind(),
        identity: identity(device),
        target: device.target().clone(),
        ceilings,
        controls,
    })
}

fn measure_ceilings(
    device: &Arc<dyn Device>,
    meter: &dyn Meter,
    threads: u32,
) -> Result<Ceilings, StudyError> {
    if meter.kind() == MeterKind::Simulated {
        // Limits that no simulated time comes near.
        return Ok(Ceilings {
            threads,
            flops_per_second: FlopsPerSecond { f32: 1e15, f64: 1e15 },
            launch_ns: 1.0,
            bytes_per_second: BytesPerSecond {
                l1: Some(1e15),
                l2: Some(1e15),
                l3: Some(1e15),
                memory: 1e15,
            },
        });
    }
    if device.queue().is_some() {
        return device_ceilings(device, meter, threads);
    }
    let caches =
        device.target().cpu_facts().map_or([0; 3], |f| [f.l1_bytes, f.l2_bytes, f.l3_bytes]);
    // What disturbs one measurement of a limit leaves another alone.
    let limits =
        (1..ATTEMPTS).fold(controls::ceilings::measure(threads as usize, caches), |l, _| {
            std::thread::sleep(PAUSE);
            l.max(controls::ceilings::measure(threads as usize, caches))
        });
    // The device's own loops may be faster than portable ones.
    let own = |dtype| device.roofline(dtype, threads as usize);
    let flops =
        |dtype, portable: f64| own(dtype).map_or(portable, |r| portable.max(r.flops_per_second));
    let [l1, l2, l3, memory] = limits.bytes_per_second;
    let device_memory = own(DType::F32).map_or(0.0, |r| r.bytes_per_second);
    Ok(Ceilings {
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
    })
}

/// Ceilings of a device with memory of its own, as it measures them. Nothing is known of its
/// caches.
fn device_ceilings(
    device: &Arc<dyn Device>,
    meter: &dyn Meter,
    threads: u32,
) -> Result<Ceilings, StudyError> {
    let single = device.roofline(DType::F32, threads as usize).ok_or_else(|| {
        let name = &device.capabilities().name;
        StudyError::Order(format!("device `{name}` has no measured ceilings to judge times by"))
    })?;
    let double = device.roofline(DType::F64, threads as usize);
    Ok(Ceilings {
        threads,
        flops_per_second: FlopsPerSecond {
            f32: single.flops_per_second,
            f64: double.map_or(single.flops_per_second, |r| r.flops_per_second),
        },
        launch_ns: launch_ns(device, meter),
        bytes_per_second: BytesPerSecond {
            l1: None,
            l2: None,
            l3: None,
            memory: single.bytes_per_second,
        },
    })
}

/// The fastest launch of a one-element program, by the host's clock or the device's; 0 where that
/// can't be compiled, which sets no floor.
fn launch_ns(device: &Arc<dyn Device>, meter: &dyn Meter) -> f64 {
    use crate::worker::tensors::{Launches, Tensor};
    use tilewright_engine::{Engine, LaunchOptions, PlanOptions};
    use tilewright_ir::ops::{OpRequest, build};
    let engine = Engine::new(device.clone());
    let Ok(program) = build("relu", &OpRequest::shaped(DType::F32, &[1, 1])) else { return 0.0 };
    let Ok(plan) = engine.plan(&program, &PlanOptions::default()) else { return 0.0 };
    let Ok(compiled) = engine.compile(&plan) else { return 0.0 };
    let one = || Buffer::zeros(DType::F32, 1).and_then(|b| Tensor::place(b, device.queue()));
    let (Ok(x), Ok(mut y)) = (one(), one()) else { return 0.0 };
    let options = LaunchOptions::default();
    let bound = compiled.bind_all(&options, &[x.input()], &mut [y.output()]);
    let Some(mut launches) = bound.ok().and_then(|b| Launches::new(vec![b]).ok()) else {
        return 0.0;
    };
    const CALLS: u64 = 2000;
    const RECORDED: u64 = 500;
    const BATCHES: usize = 20;
    let host = (0..BATCHES).filter_map(|_| meter.batch("launch", CALLS, &mut launches).ok());
    let host = host.min().map(|ns| ns as f64 / CALLS as f64);
    let device = meter.device_batch("launch", RECORDED, BATCHES, &mut launches).ok().flatten();
    let device = device.into_iter().flatten().min().map(|ns| ns as f64 / RECORDED as f64);
    host.into_iter().chain(device).reduce(f64::min).unwrap_or(0.0)
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
    let size = |level: &str, copies: u64| {
        machine.identity["caches_bytes"][level].as_u64().unwrap_or(0) * copies
    };
    let (threads, rates) = (u64::from(case.threads), &ceilings.bytes_per_second);
    let levels = [
        ("l1", size("l1", threads), rates.l1),
        ("l2", size("l2", threads), rates.l2),
        ("l3", size("l3", 1), rates.l3),
    ];
    let (level, rate) = levels
        .iter()
        .find(|(_, size, _)| bytes <= *size)
        .map_or(("memory", Some(rates.memory)), |(name, _, rate)| (*name, *rate));
    // A level of unknown rate sets no floor.
    let transfer = rate.map_or(0.0, |rate| bytes as f64 / rate);
    let flops = case.flops();
    let peak = match case.dtype.as_str() {
        "f64" => ceilings.flops_per_second.f64,
        _ => ceilings.flops_per_second.f32,
    };
    let seconds = (flops / peak).max(transfer).max(ceilings.launch_ns / 1e9);
    Ok(Floor {
        flops,
        bytes,
        working_set_bytes: bytes,
        level: level.to_string(),
        floor_us: 1e6 * seconds,
    })
}
