//! machine.json and machine states.

use crate::gpu_state::GpuState;
use crate::meter::MeterKind;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tilewright_plan::Target;

/// machine.json.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// [`super::MACHINE`].
    pub schema: String,
    /// Where times come from.
    pub meter: MeterKind,
    /// Strings and integers only.
    pub identity: Value,
    /// The planner's facts.
    pub target: Target,
    /// Measured limits, one entry a thread count.
    pub ceilings: Vec<Ceilings>,
    /// The controls that the study names.
    pub controls: Vec<ControlEntry>,
}

/// Measured limits with a number of threads.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ceilings {
    /// Threads.
    pub threads: u32,
    /// Multiply-adds in registers, counted as two operations.
    pub flops_per_second: FlopsPerSecond,
    /// The fastest launch of a kernel that does next to nothing.
    pub launch_ns: f64,
    /// Bytes read plus written.
    pub bytes_per_second: BytesPerSecond,
}

/// By element type.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct FlopsPerSecond {
    /// Single precision.
    pub f32: f64,
    /// Double precision.
    pub f64: f64,
}

/// By memory level; null where there is no such level.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct BytesPerSecond {
    /// First-level cache.
    pub l1: Option<f64>,
    /// Second-level cache.
    pub l2: Option<f64>,
    /// Last-level cache.
    pub l3: Option<f64>,
    /// Memory.
    pub memory: f64,
}

/// A control.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ControlEntry {
    /// Its name.
    pub name: String,
    /// Whether it can be measured here.
    pub available: bool,
    /// Its version, if it has one.
    pub version: Option<String>,
    /// Why it isn't available.
    pub reason: Option<String>,
    /// `preallocated` or `returned`.
    pub output: String,
    /// Variables that were set for this program and that the control runs without, as they choose
    /// other kernels or threads.
    pub unset: Vec<String>,
}

/// The machine at one moment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct State {
    /// Seconds since 1970.
    pub unix_s: u64,
    /// Load over one minute.
    pub load1: Option<f64>,
    /// Frequency governor.
    pub governor: Option<String>,
    /// Frequency of each core.
    pub mhz: Option<Vec<f64>>,
    /// The GPU, if the study's device is one and says it.
    pub gpu: Option<GpuState>,
}
