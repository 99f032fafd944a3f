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
    ArgValue, Queue, QueuedExecutable, QueuedKernel, ResourceReport, RuntimeError,
};

/// One kernel on the device.
pub(super) struct Loaded {
    name: String,
    module: Module,
    pipeline: Pipeline,
    shared: Arc<Shared>,
}

/// Compiles kernels in launch order.
///
/// # Errors
/// A rule of the device forbids a kernel, or Metal refuses it.
pub(super) fn compile(
    launches: &[Kernel],
    shared: &Arc<Shared>,
    queue: &Arc<dyn Queue>,
) -> Result<QueuedExecutable<Loaded>, RuntimeError> {
    let facts = shared.facts();
    let mut kernels = Vec::with_capacity(launches.len());
    // Metal tells neither registers nor spills; `spills` is what the trait has for "none known".
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
        let name = name.to_string();
        kernels.push(Arc::new(Loaded { name, module, pipeline, shared: shared.clone() }));
    }
    Ok(QueuedExecutable { kernels, queue: queue.clone(), report, compiler_report: None })
}

impl QueuedKernel for Loaded {
    type Ready = Ready;

    const WAIT_NAMES_KERNEL: bool = true;

    fn name(&self) -> &str {
        &self.name
    }

    fn args(&self) -> usize {
        self.module.bindings.len()
    }

    fn text(&self) -> &str {
        &self.module.text
    }

    fn arrange(self: &Arc<Self>, args: &[ArgValue]) -> Result<Option<Ready>, RuntimeError> {
        let dispatch = arrange(&self.name, &self.module, args, self.shared.allocations())?;
        Ok(dispatch.map(|dispatch| Ready { pipeline: self.pipeline.clone(), dispatch }))
    }

    unsafe fn enqueue(&self, launches: &mut [Ready]) -> Result<(), RuntimeError> {
        // SAFETY: the arguments were checked against the kernels' own; the caller vouches for what
        // the kernels do with the buffers.
        unsafe { self.shared.submit(&self.name, launches) }
    }
}
