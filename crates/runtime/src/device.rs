//! Devices and compiled kernels.

use crate::args::ArgValue;
use crate::error::RuntimeError;
use crate::queue::{PreparedLaunch, Queue};
use serde::Serialize;
use std::sync::Arc;
use tilewright_ir::DType;
use tilewright_kernel::kernel::Kernel;
use tilewright_plan::{KernelResources, Target};

/// What a device can do, for people and for JSON.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Capabilities {
    /// Short name: `cpu`, `cuda:0`, `metal`.
    pub name: String,
    /// Marketing name of the machine.
    pub model: String,
    /// Instruction set that kernels are compiled for: `avx512`, `avx2`, `portable`, `sm_90a`, …
    pub isa: String,
    /// Largest number of threads that one launch uses.
    pub threads: usize,
    /// Memory of the device in bytes, if known.
    pub memory_bytes: Option<u64>,
    /// Remarks, such as that the portable path is slow. One sentence each.
    pub notes: Vec<String>,
}

/// Measured ceilings of a device for one thread count.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Roofline {
    /// Floating-point operations per second of an FMA loop in registers.
    pub flops_per_second: f64,
    /// Bytes per second (read plus written) of a copy that doesn't fit any cache.
    pub bytes_per_second: f64,
}

/// What compiled code uses.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct ResourceReport {
    /// Machine code in bytes, or of its text where the driver assembles it.
    pub code_bytes: u64,
    /// Group-shared memory (on a CPU: per-thread scratch) in bytes.
    pub scratch_bytes: u64,
    /// Registers that were spilled to memory; on a GPU bytes of local memory of one thread.
    pub spills: u64,
    /// Registers of one thread; `None` on a CPU, where code may use all that there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registers: Option<u64>,
    /// Groups that one core holds at the same time; `None` on a CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups_per_core: Option<u64>,
}

/// What a compiler reports of each kernel of an executable, for a resource table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompilerReport {
    /// The compiler with its version and the architecture: `driver 13.0 sm_90`.
    pub compiler: String,
    /// The kernels in launch order.
    pub kernels: Vec<KernelResources>,
}

/// Compiled launches, ready to run.
///
/// An executable holds one or more kernels that run in order. Its arguments are the arguments of
/// every kernel, concatenated in that order.
pub trait Executable: Send + Sync {
    /// Runs all kernels and returns when they have finished.
    ///
    /// # Errors
    /// [`RuntimeError::Argument`] when the number or kind of arguments is wrong;
    /// [`RuntimeError::Backend`] when the launch failed.
    ///
    /// # Safety
    /// Every buffer must hold all elements that the kernel touches for the given sizes, be
    /// aligned as its argument says, be valid for reading (and for writing where the kernel
    /// writes) until the call returns, and be written by nobody else meanwhile.
    unsafe fn launch(&self, args: &[ArgValue]) -> Result<(), RuntimeError>;

    /// The queue that launches go to and whose memory they use; `None` where kernels run at once
    /// on host memory.
    fn queue(&self) -> Option<&Arc<dyn Queue>> {
        None
    }

    /// Checks the arguments and puts them in place once, for launches on the queue; `None` where
    /// there is no queue.
    ///
    /// # Errors
    /// [`RuntimeError::Argument`] as for [`Executable::launch`].
    ///
    /// # Safety
    /// As [`Executable::launch`], until the prepared launch is dropped and the queue has passed
    /// what it was given.
    unsafe fn prepare(
        &self,
        _args: &[ArgValue],
    ) -> Result<Option<Box<dyn PreparedLaunch>>, RuntimeError> {
        Ok(None)
    }

    /// The generated code as text, with the kernel IR interleaved where the backend can.
    fn disassembly(&self) -> String;

    /// What the code uses.
    fn report(&self) -> ResourceReport;

    /// What the compiler reports kernel by kernel; `None` where there is no such report.
    fn compiler_report(&self) -> Option<CompilerReport> {
        None
    }
}

/// Something that compiles and runs kernels.
pub trait Device: Send + Sync {
    /// What it is and can.
    fn capabilities(&self) -> &Capabilities;

    /// What a planner may know of it.
    fn target(&self) -> &Target;

    /// Compiles an ordered list of launches.
    ///
    /// # Errors
    /// [`RuntimeError::Unsupported`] when a named rule forbids a kernel,
    /// [`RuntimeError::Backend`] when code generation fails.
    fn compile(&self, launches: &[Kernel]) -> Result<Box<dyn Executable>, RuntimeError>;

    /// Measured ceilings with that many threads; `None` where there is no measurement.
    fn roofline(&self, dtype: DType, threads: usize) -> Option<Roofline>;

    /// The compiler of its kernels, as reports name it; `None` where there are none.
    fn compiler(&self) -> Option<String> {
        None
    }

    /// The device's own memory, queue and clock; `None` where kernels use host memory and run on
    /// the calling threads.
    fn queue(&self) -> Option<&Arc<dyn Queue>> {
        None
    }
}
