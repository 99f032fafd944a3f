//! The state of an NVIDIA GPU, as its driver's own tool says it.

use serde::{Deserialize, Serialize};
use std::process::Command;

/// A GPU at one moment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuState {
    /// Clock of the cores in MHz.
    pub sm_mhz: Option<f64>,
    /// Clock of the memory in MHz.
    pub memory_mhz: Option<f64>,
    /// Power draw.
    pub watts: Option<f64>,
    /// Temperature.
    pub celsius: Option<f64>,
    /// Why the clocks are lower than they could be: the driver's bits, `0x0000000000000000` for no
    /// reason.
    pub throttle: Option<String>,
}

/// The names of the bits of [`GpuState::throttle`], the newer first.
const REASONS: [&str; 2] = ["clocks_event_reasons.active", "clocks_throttle_reasons.active"];

/// Asks `nvidia-smi` about a device: `cuda` or `cuda:N`. `None` for another kind of device, or
/// where the tool isn't there.
pub fn gpu_state(device: &str) -> Option<GpuState> {
    let index = match device.split_once(':') {
        None if device == "cuda" => "0",
        Some(("cuda", index)) if index.bytes().all(|b| b.is_ascii_digit()) => index,
        _ => return None,
    };
    REASONS.iter().find_map(|reasons| {
        let fields = format!("clocks.sm,clocks.mem,power.draw,temperature.gpu,{reasons}");
        let output = Command::new("nvidia-smi")
            .args(["-i", index, &format!("--query-gpu={fields}")])
            .arg("--format=csv,noheader,nounits")
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        parse(&String::from_utf8_lossy(&output.stdout))
    })
}

/// A line of numbers; what the driver doesn't say is `None`.
fn parse(text: &str) -> Option<GpuState> {
    let cells: Vec<&str> = text.lines().next()?.split(',').map(str::trim).collect();
    let [sm, memory, power, temperature, throttle] = cells[..] else { return None };
    let number = |cell: &str| cell.parse::<f64>().ok().filter(|n| n.is_finite());
    let bits = throttle.strip_prefix("0x").is_some_and(|hex| {
        !hex.is_empty() && hex.len() <= 16 && hex.bytes().all(|b| b.is_ascii_hexdigit())
    });
    Some(GpuState {
        sm_mhz: number(sm),
        memory_mhz: number(memory),
        watts: number(power),
        celsius: number(temperature),
        throttle: bits.then(|| throttle.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_tool_is_read() {
        let state = parse("1980, 3201, 118.35, 31, 0x0000000000000001\n").unwrap();
        assert_eq!((state.sm_mhz, state.memory_mhz), (Some(1980.0), Some(3201.0)));
        assert_eq!((state.watts, state.celsius), (Some(118.35), Some(31.0)));
        assert_eq!(state.throttle.as_deref(), Some("0x0000000000000001"));
        let state = parse("1980, [N/A], nan, [Not Supported], <b>\n").unwrap();
        assert_eq!((state.memory_mhz, state.watts, state.celsius), (None, None, None));
        assert_eq!(state.throttle, None);
        assert_eq!(parse("no devices were found"), None);
    }

    #[test]
    fn only_cuda_devices_are_asked_about() {
        assert_eq!(gpu_state("cpu"), None);
        assert_eq!(gpu_state("cuda:x; rm"), None);
        assert_eq!(gpu_state("metal"), None);
    }
}
