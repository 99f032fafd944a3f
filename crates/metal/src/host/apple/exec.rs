//! Compiled kernels.

use super::Pipeline;
use super::pipeline;
use super::queue::{Ready, Shared};
use crate::codegen::Module;
use crate::host::admit::{admit_pipeline, generate};
use crate::host::arrange::arrange;
use std::sync::Arc;
use tilewright_kernel::kernel::Kernel;
use tilewright_runtime::{
    ArgValue, Executable, PreparedLaunch, Queue, ResourceReport, RuntimeError,
};

/// One kernel on the device.
struct Loaded {
    name: String,
    module: Module,
    pipeline: Pipeline,
}

/// Kernels that run in order.
pub(super) struct MetalExecutable {
    kernels: Vec<Loaded>,
    shared: Arc<Shared>,
    queue: Arc<dyn Queue>,
    report: ResourceReport,
}

impl MetalExecutable {
    pub(super) fn new(
        launches: &[Kernel],
        shared: &Arc<Shared>,
        queue: &Arc<dyn Queue>,
    ) -> Result<Self, RuntimeError> {
        let facts = shared.facts();
        let mut kernels = Vec::with_capacity(launches.len());
        // Metal tells neither registers nor spills; `spills` is what the trait has for "none
        // known".
        let mut report = ResourceReport::default();
        for kernel in launches {
            let name = kernel.name.as_str();
            let module = generate(kernel, facts)?;
            let (pipeline, told) = pipeline::build(
                shared.gpu(),
                facts,
                name,
                &module.text,
                &module.entry,
                module.language,
            )?;
            admit_pipeline(name, &module, &told, facts)?;
            report.code_bytes += module.text.len() as u64;
            report.scratch_bytes = report.scratch_bytes.max(told.threadgroup_bytes);
            kernels.push(Loaded { name: name.to_string(), module, pipeline });
        }
        Ok(MetalExecutable { kernels, shared: shared.clone(), queue: queue.clone(), report })
    }

    /// Checks arguments and puts them in place.
    fn arrange(&self, args: &[ArgValue]) -> Result<Prepared, RuntimeError> {
        let op = self.kernels.first().map_or_else(String::new, |k| k.name.clone());
        let mut ready = Vec::with_capacity(self.kernels.len());
        let mut rest = args;
        for (n, kernel) in self.kernels.iter().enumerate() {
            // The last kernel gets everything that is left, so that too many are an error too.
            let last = n + 1 == self.kernels.len();
            let wanted = kernel.module.bindings.len();
            let count = if last { rest.len() } else { wanted.min(rest.len()) };
            let (own, others) = rest.split_at(count);
            rest = others;
            let space = self.shared.allocations();
            if let Some(dispatch) = arrange(&kernel.name, &kernel.module, own, space)? {
                ready.push(Ready { pipeline: kernel.pipeline.clone(), dispatch });
            }
        }
        Ok(Prepared { op, ready, shared: self.shared.clone() })
    }
}

/// A launch of every kernel of an executable.
struct Prepared {
    op: String,
    ready: Vec<Ready>,
    shared: Arc<Shared>,
}

impl PreparedLaunch for Prepared {
    unsafe fn enqueue(&mut self) -> Result<(), RuntimeError> {
        // SAFETY: the arguments were checked against the kernels' own; the caller vouches for what
        // the kernels do with the buffers.
        unsafe { self.shared.submit(&self.op, &self.ready) }
    }
}

impl Executable for MetalExecutable {
    unsafe fn launch(&self, args: &[ArgValue]) -> Result<(), RuntimeError> {
        let mut prepared = self.arrange(args)?;
        // SAFETY: as promised by the caller until this call returns, and it waits.
        unsafe { prepared.enqueue() }?;
        self.queue.wait()
    }

    fn queue(&self) -> Option<&Arc<dyn Queue>> {
        Some(&self.queue)
    }

    unsafe fn prepare(
        &self,
        args: &[ArgValue],
    ) -> Result<Option<Box<dyn PreparedLaunch>>, RuntimeError> {
        Ok(Some(Box::new(self.arrange(args)?)))
    }

    fn disassembly(&self) -> String {
        self.kernels.iter().map(|k| k.module.text.as_str()).collect::<Vec<_>>().join("\n")
    }

    fn report(&self) -> ResourceReport {
        self.report.clone()
    }
}
