//! An NVIDIA GPU as a device of the engine.

use crate::driver::{Context, CudaError};
use crate::exec::{compile, compiler_name};
use crate::queue::CudaQueue;
use crate::target;
use crate::{PtxTarget, roofline};
use std::sync::{Arc, Mutex};
use tilewright_ir::DType;
use tilewright_kernel::kernel::Kernel;
use tilewright_plan::Target;
use tilewright_runtime::{
    Capabilities, Device, Executable, Failure, Queue, Roofline, RuntimeError, Stage,
};

/// A GPU with a queue of its own. Two devices opened on one GPU share its memory and have separate
/// queues (streams).
pub struct CudaDevice {
    name: String,
    context: Arc<Context>,
    queue: Arc<dyn Queue>,
    capabilities: Capabilities,
    target: Target,
    limit: PtxTarget,
    /// Measured ceilings by type.
    rooflines: Mutex<Vec<(DType, Roofline)>>,
}

impl CudaDevice {
    /// Opens the GPU with that number.
    ///
    /// # Errors
    /// [`RuntimeError::DeviceMissing`] with one sentence where there is no driver, no such GPU, or
    /// one that kernels can't be made for; [`RuntimeError::Backend`] with the driver's words for
    /// anything else.
    pub fn open(ordinal: u32) -> Result<CudaDevice, RuntimeError> {
        let name = format!("cuda:{ordinal}");
        let missing = |reason: String| RuntimeError::DeviceMissing { device: name.clone(), reason };
        let context = Context::open(ordinal as usize).map_err(|error| match error {
            CudaError::NoDriver | CudaError::NoDevice { .. } => missing(error.to_string()),
            other => failed(&name, Stage::Open, &other),
        })?;
        let facts = context.facts();
        let limit = target::limit(facts);
        if limit.sm < PtxTarget::BASE.sm {
            return Err(missing(format!(
                "the {} has compute capability {}.{}; kernels need {}.{} or later",
                facts.name,
                facts.sm / 10,
                facts.sm % 10,
                PtxTarget::BASE.sm / 10,
                PtxTarget::BASE.sm % 10
            )));
        }
        if limit.version < PtxTarget::BASE.version {
            return Err(missing(format!(
                "its driver supports CUDA {}; kernels need CUDA 11.0 (driver R450) or later",
                facts.driver_text()
            )));
        }
        let capabilities = Capabilities {
            name: name.clone(),
            model: facts.name.clone(),
            isa: format!("sm_{}", facts.sm),
            threads: (u64::from(facts.cores) * facts.threads_per_core) as usize,
            memory_bytes: Some(facts.memory_bytes),
            notes: vec![format!(
                "{} cores (SMs); the driver supports CUDA {} (PTX {}.{}).",
                facts.cores,
                facts.driver_text(),
                limit.version / 10,
                limit.version % 10
            )],
        };
        let target = target::of_facts(facts);
        let queue = Arc::new(CudaQueue::new(&name, ordinal, context.clone()));
        Ok(CudaDevice {
            name,
            context,
            queue,
            capabilities,
            target,
            limit,
            rooflines: Mutex::new(Vec::new()),
        })
    }

    /// The driver's context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The latest PTX that the GPU and its driver take.
    pub fn limit(&self) -> PtxTarget {
        self.limit
    }
}

impl std::fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaDevice").field("name", &self.name).finish_non_exhaustive()
    }
}

/// An error of the driver in the terms that backends share.
pub(crate) fn failed(op: &str, stage: Stage, error: &CudaError) -> RuntimeError {
    RuntimeError::Backend(Failure {
        op: op.to_string(),
        plan: String::new(),
        stage,
        detail: error.to_string(),
    })
}

impl Device for CudaDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn target(&self) -> &Target {
        &self.target
    }

    fn compiler(&self) -> Option<String> {
        Some(compiler_name(self.context.facts()))
    }

    fn compile(&self, launches: &[Kernel]) -> Result<Box<dyn Executable>, RuntimeError> {
        Ok(Box::new(compile(launches, &self.context, &self.queue, self.limit)?))
    }

    fn roofline(&self, dtype: DType, _threads: usize) -> Option<Roofline> {
        let dtype = dtype.accumulator();
        let mut known = self.rooflines.lock().ok()?;
        if let Some((_, roofline)) = known.iter().find(|k| k.0 == dtype) {
            return Some(*roofline);
        }
        let roofline = roofline::measure(self, dtype)?;
        known.push((dtype, roofline));
        Some(roofline)
    }

    fn queue(&self) -> Option<&Arc<dyn Queue>> {
        Some(&self.queue)
    }
}
