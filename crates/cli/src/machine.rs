//! Devices and targets by name.

use crate::error::CliError;
use std::sync::Arc;
use tilewright_cpu::device::isa_name;
use tilewright_cpu::{CpuDevice, CpuError, CpuOptions, host};
use tilewright_cuda::CudaDevice;
use tilewright_plan::Target;
use tilewright_plan::mapping::CpuIsa;
use tilewright_plan::target::CpuFacts;
use tilewright_runtime::{Device, RuntimeError};

/// The target of that name; `cpu` is this machine.
///
/// # Errors
/// Unknown names, an instruction set that this machine lacks, more threads than it has.
pub fn target(name: &str, isa: Option<&str>, threads: Option<u32>) -> Result<Target, CliError> {
    if name != "cpu" {
        if isa.is_some() {
            return Err(CliError::Usage(format!("--isa is for the CPU, not for target `{name}`")));
        }
        if threads.is_some() {
            return Err(CliError::Usage(format!(
                "--cpu-threads is for the CPU, not for target `{name}`"
            )));
        }
        return Target::by_name(name).map_err(CliError::usage);
    }
    let options = cpu_options(isa, threads)?;
    let facts = host::facts(options.isa.unwrap_or_else(host::best_isa));
    let cores = options.threads.map_or(facts.cores, |n| n as u32);
    Ok(Target::cpu(CpuFacts { cores, ..facts }))
}

/// The CPU of this machine.
///
/// # Errors
/// As [`target`]; a device error where threads can't be started.
pub fn cpu(isa: Option<&str>, threads: Option<u32>) -> Result<Arc<dyn Device>, CliError> {
    match CpuDevice::new(cpu_options(isa, threads)?) {
        Ok(device) => Ok(Arc::new(device)),
        Err(error @ CpuError::System { .. }) => {
            Err(CliError::DeviceMissing(format!("device `cpu` is not available: {error}")))
        }
        Err(error) => Err(CliError::usage(error)),
    }
}

fn cpu_options(isa: Option<&str>, threads: Option<u32>) -> Result<CpuOptions, CliError> {
    const ISAS: [CpuIsa; 3] = [CpuIsa::Avx512, CpuIsa::Avx2, CpuIsa::Portable];
    let isa = match isa {
        None => None,
        Some(name) => {
            let isa = ISAS.into_iter().find(|isa| isa_name(*isa) == name).ok_or_else(|| {
                CliError::Usage(format!(
                    "unknown instruction set `{name}`: use {}",
                    ISAS.map(isa_name).join(", ")
                ))
            })?;
            if !host::has(isa) {
                return Err(CliError::Usage(format!("this machine has no {name}")));
            }
            Some(isa)
        }
    };
    let cores = host::cores() as u32;
    if let Some(n) = threads
        && !(1..=cores).contains(&n)
    {
        let plural = if cores == 1 { "" } else { "s" };
        return Err(CliError::Usage(format!(
            "{n} threads on a CPU with {cores} core{plural}: --cpu-threads is 1 to {cores} here"
        )));
    }
    Ok(CpuOptions { isa, threads: threads.map(|n| n as usize), ..CpuOptions::default() })
}

/// The device of that name.
///
/// # Errors
/// The device isn't there; unknown names; as [`cpu`].
pub fn device(
    name: &str,
    isa: Option<&str>,
    threads: Option<u32>,
) -> Result<Arc<dyn Device>, CliError> {
    let ordinal = match name {
        "cuda" => Some(0),
        _ => name.strip_prefix("cuda:").and_then(|index| index.parse::<u32>().ok()),
    };
    if name != "cpu" && (ordinal.is_some() || name == "metal") {
        let asked = [("--isa", isa.is_some()), ("--cpu-threads", threads.is_some())];
        if let Some((option, _)) = asked.iter().find(|(_, given)| *given) {
            return Err(CliError::Usage(format!(
                "{option} is for the CPU, not for device `{name}`"
            )));
        }
    }
    match (name, ordinal) {
        ("cpu", _) => cpu(isa, threads),
        (_, Some(ordinal)) => cuda(name, ordinal),
        ("metal", _) => Ok(tilewright_metal::host::open()?),
        _ => {
            Err(CliError::Usage(format!("unknown device `{name}`: use cpu, cuda, cuda:N or metal")))
        }
    }
}

/// The NVIDIA GPU with that number.
fn cuda(name: &str, ordinal: u32) -> Result<Arc<dyn Device>, CliError> {
    match CudaDevice::open(ordinal) {
        Ok(device) => Ok(Arc::new(device)),
        Err(RuntimeError::DeviceMissing { reason, .. }) => {
            Err(CliError::DeviceMissing(format!("device `{name}` is not available: {reason}")))
        }
        Err(error) => Err(CliError::DeviceMissing(format!(
            "device `{name}` is not available: its driver doesn't start it ({error})"
        ))),
    }
}

/// Names of every device that this machine may have: the CPU, each NVIDIA GPU that the driver
/// sees (`cuda` where it sees none), Metal.
pub fn device_names() -> Vec<String> {
    let mut names = vec!["cpu".to_string()];
    match tilewright_cuda::driver::device_count() {
        Ok(count) if count > 0 => names.extend((0..count).map(|n| format!("cuda:{n}"))),
        _ => names.push("cuda".to_string()),
    }
    names.push("metal".to_string());
    names
}
