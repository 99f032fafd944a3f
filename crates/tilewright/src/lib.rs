//! Tilewright: a tile-kernel compiler and tuner.
//!
//! A *tile program* (an op of the library, or one of your own) is planned for a device, compiled
//! in the process, and launched on borrowed memory:
//!
//! ```
//! use tilewright::{DType, ops};
//!
//! let cpu = tilewright::cpu()?;
//! let softmax = ops::softmax(37, 1537, DType::F32).plan(&cpu)?.compile()?;
//!
//! let x = vec![1.0f32; 37 * 1537];
//! let mut y = vec![0.0f32; 37 * 1537];
//! softmax.run(&[&x], &mut y)?;
//! assert!((y[0] - 1.0 / 1537.0).abs() < 1e-9);
//! # Ok::<(), tilewright::Error>(())
//! ```
//!
//! The compiled softmax serves any number of rows, and padded rows through a [`View`]. Every
//! precondition that the compiler didn't prove is checked at each launch; a broken one is a
//! [`LaunchError`] that names the tensor and the numbers. [`Compiled::bind`] checks once and then
//! launches at no further cost.

pub mod ops;

use std::sync::Arc;
use tilewright_cpu::{CpuDevice, CpuError};
use tilewright_cuda::CudaDevice;

pub use half::{bf16, f16};
pub use tilewright_cpu::CpuOptions;
pub use tilewright_engine::{
    Bound, Compiled, DeviceView, DeviceViewMut, Engine, EngineError, Input, LaunchError,
    LaunchOptions, Output, Plan, PlanOptions, Planned, Resources, Task, View, ViewMut, check,
    inputs, timing,
};
pub use tilewright_ir::builder::ProgramBuilder;
pub use tilewright_ir::ops::OpError;
pub use tilewright_ir::text::ReadError;
pub use tilewright_ir::{DType, Program, program};
pub use tilewright_plan::mapping::CpuIsa;
pub use tilewright_plan::{PlanError, Policy, ResourceTable, SpaceOptions, Target, policy};
pub use tilewright_runtime::{Buffer, Device, DeviceBuffer, Element, Queue, RuntimeError};

/// Anything that can go wrong between an op and its result.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Error {
    /// The op library can't serve the request.
    #[error(transparent)]
    Op(#[from] OpError),
    /// A program's text has faults.
    #[error(transparent)]
    Text(#[from] ReadError),
    /// Planning, compiling or checking failed.
    #[error(transparent)]
    Engine(Box<EngineError>),
    /// A launch was refused or failed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A device or a buffer failed.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A dimension doesn't take the size.
    #[error(transparent)]
    Bind(#[from] program::BindError),
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Self {
        Error::Engine(Box::new(error))
    }
}

/// An engine on this machine's CPU, with its best instruction set and all cores.
///
/// # Errors
/// [`RuntimeError::DeviceMissing`] where threads can't be started.
pub fn cpu() -> Result<Engine, Error> {
    cpu_with(CpuOptions::default())
}

/// An engine on this machine's CPU with choices of your own.
///
/// # Errors
/// [`RuntimeError::DeviceMissing`] for an instruction set that the machine lacks or a number of
/// threads that it can't run.
pub fn cpu_with(options: CpuOptions) -> Result<Engine, Error> {
    let device = CpuDevice::new(options).map_err(|e: CpuError| RuntimeError::DeviceMissing {
        device: "cpu".to_string(),
        reason: e.to_string(),
    })?;
    Ok(Engine::new(Arc::new(device)))
}

/// An engine on an NVIDIA GPU, by its number. Nothing but the driver is needed, and it is asked for
/// here for the first time.
///
/// ```
/// match tilewright::cuda(0) {
///     Ok(gpu) => println!("{}", gpu.device().capabilities().model),
///     Err(error) => println!("{error}"),
/// }
/// ```
///
/// Tensors in host memory are copied to the GPU and back by each `run`. To keep them there, make
/// [`DeviceBuffer`]s on the device's queue and [`bind`](Compiled::bind) the launch to them.
///
/// # Errors
/// [`RuntimeError::DeviceMissing`] with one sentence where there is no driver or no such GPU.
pub fn cuda(ordinal: u32) -> Result<Engine, Error> {
    Ok(Engine::new(Arc::new(CudaDevice::open(ordinal)?)))
}

/// Parses and verifies the text of a tile program.
///
/// # Errors
/// Every fault with its line and column.
pub fn parse(text: &str) -> Result<Program, Error> {
    Ok(tilewright_ir::text::read(text)?)
}
