//! Compiled kernels on a GPU: arguments into place, launches, reports.

use crate::codegen::{CodegenError, grid};
use crate::device::failed;
use crate::driver::{Context, DeviceFacts, Function};
use crate::target::{cuda_of_ptx, ptx_version};
use crate::{Ptx, PtxTarget, emit_for};
use std::ffi::c_void;
use std::sync::Arc;
use tilewright_ir::entity::Id;
use tilewright_kernel::kernel::{ArgKind, Elem, GridDim, Kernel, Size};
use tilewright_plan::KernelResources;
use tilewright_runtime::{
    ArgValue, CompilerReport, Failure, Queue, QueuedExecutable, QueuedKernel, ResourceReport,
    RuntimeError, Stage,
};

/// One kernel on the device.
pub(crate) struct Loaded {
    name: String,
    args: Vec<(String, ArgKind)>,
    /// Groups, outermost dimension first.
    grid: Vec<GridDim>,
    function: Function,
    ptx: Ptx,
}

/// Kernels that run in order.
pub(crate) type CudaExecutable = QueuedExecutable<Loaded>;

/// Compiles kernels in launch order.
///
/// # Errors
/// A rule of the device forbids a kernel, or the driver refuses it.
pub(crate) fn compile(
    launches: &[Kernel],
    context: &Arc<Context>,
    queue: &Arc<dyn Queue>,
    limit: PtxTarget,
) -> Result<CudaExecutable, RuntimeError> {
    let mut kernels = Vec::with_capacity(launches.len());
    let mut report = ResourceReport::default();
    let mut resources = Vec::with_capacity(launches.len());
    for kernel in launches {
        let ptx = generate(kernel, limit)?;
        let function =
            context.load(&ptx).map_err(|error| failed(&kernel.name, Stage::Load, &error))?;
        let used = function.report().map_err(|error| failed(&kernel.name, Stage::Load, &error))?;
        if used.groups_per_core == 0 {
            return Err(refused(
                kernel,
                "launch-resources",
                format!(
                    "a group of {} threads with {} registers each and {} bytes of shared memory \
                     doesn't fit a core",
                    ptx.threads, used.registers, ptx.shared_bytes
                ),
            ));
        }
        resources.push(KernelResources {
            threads: ptx.threads.into(),
            registers: used.registers.into(),
            spilled_bytes: used.local_bytes.into(),
            shared_bytes: ptx.shared_bytes,
        });
        report.code_bytes += ptx.text.len() as u64;
        report.scratch_bytes = report.scratch_bytes.max(ptx.shared_bytes);
        report.spills = report.spills.max(u64::from(used.local_bytes));
        report.registers = report.registers.max(Some(u64::from(used.registers)));
        let groups = u64::from(used.groups_per_core);
        report.groups_per_core =
            Some(report.groups_per_core.map_or(groups, |least| least.min(groups)));
        kernels.push(Arc::new(Loaded {
            name: kernel.name.clone(),
            args: kernel.args.iter().map(|(_, a)| (a.name.clone(), a.kind)).collect(),
            grid: kernel.grid.clone(),
            function,
            ptx,
        }));
    }
    let compiler = compiler_name(context.facts());
    let compiler_report = Some(CompilerReport { compiler, kernels: resources });
    Ok(QueuedExecutable { kernels, queue: queue.clone(), report, compiler_report })
}

/// The PTX of a kernel, if the device and its driver take it.
fn generate(kernel: &Kernel, limit: PtxTarget) -> Result<Ptx, RuntimeError> {
    let ptx = emit_for(kernel, limit)
        .map_err(|error: CodegenError| refused(kernel, "ptx-codegen", error.to_string()))?;
    admit(kernel, &ptx, limit)?;
    Ok(ptx)
}

/// Checks that a device takes a module.
///
/// # Errors
/// [`RuntimeError::Unsupported`] that names what the GPU or its driver lacks.
pub(crate) fn admit(kernel: &Kernel, ptx: &Ptx, limit: PtxTarget) -> Result<(), RuntimeError> {
    let PtxTarget { sm, version } = ptx.target;
    if sm > limit.sm {
        let [needs, has] = [sm, limit.sm].map(|sm| format!("{}.{}", sm / 10, sm % 10));
        return Err(refused(
            kernel,
            "compute-capability",
            format!("it needs compute capability {needs}; this GPU has {has}"),
        ));
    }
    if version > limit.version {
        let [needs, has] = [version, limit.version].map(|v| format!("{}.{}", v / 10, v % 10));
        return Err(refused(
            kernel,
            "driver-version",
            format!(
                "it needs PTX {needs}, which drivers have from CUDA {} on; this driver takes PTX \
                 {has} at most: install a newer driver",
                cuda_of_ptx(version)
            ),
        ));
    }
    Ok(())
}

fn refused(kernel: &Kernel, rule: &str, detail: String) -> RuntimeError {
    let (op, plan) = (kernel.name.clone(), String::new());
    let failure = Failure { op, plan, stage: Stage::Compile, detail };
    RuntimeError::Unsupported { rule: rule.to_string(), failure }
}

impl QueuedKernel for Loaded {
    type Ready = Ready;

    const WAIT_NAMES_KERNEL: bool = false;

    fn name(&self) -> &str {
        &self.name
    }

    fn args(&self) -> usize {
        self.args.len()
    }

    fn text(&self) -> &str {
        &self.ptx.text
    }

    unsafe fn enqueue(&self, launches: &mut [Ready]) -> Result<(), RuntimeError> {
        for launch in launches {
            // SAFETY: the words are those of the kernel's parameters; the caller vouches for the
            // buffers.
            unsafe { launch.kernel.function.enqueue(launch.grid, &mut launch.params) }
                .map_err(|error| failed(&launch.kernel.name, Stage::Launch, &error))?;
        }
        Ok(())
    }

    fn arrange(self: &Arc<Self>, args: &[ArgValue]) -> Result<Option<Ready>, RuntimeError> {
        if args.len() != self.args.len() {
            return Err(self.argument(
                args.len().min(self.args.len()),
                format!("{} arguments for {}", args.len(), self.args.len()),
            ));
        }
        let mut words: Vec<u64> = Vec::with_capacity(args.len());
        for (i, ((_, kind), value)) in self.args.iter().zip(args).enumerate() {
            words.push(match (kind, value) {
                (ArgKind::Buffer { align, .. }, ArgValue::Buffer { ptr, .. }) => {
                    if !(*ptr as u64).is_multiple_of((*align).max(1)) {
                        return Err(self.argument(i, format!("not aligned to {align} bytes")));
                    }
                    value.word(None)
                }
                (ArgKind::Number(_), ArgValue::Buffer { .. }) => {
                    return Err(self.argument(i, "a buffer for a number".to_string()));
                }
                (ArgKind::Number(Elem::Index), ArgValue::Float(_)) => {
                    return Err(self.argument(i, "a float for an index".to_string()));
                }
                (ArgKind::Number(Elem::Index), _) => value.word(None),
                (ArgKind::Number(Elem::Data(dtype)), _) => value.word(Some(*dtype)),
                _ => return Err(self.argument(i, "a number for a buffer".to_string())),
            });
        }
        let mut groups = Vec::with_capacity(self.grid.len());
        for dim in &self.grid {
            let size = match dim.size {
                Size::Const(n) => n,
                Size::Arg(arg) => match words.get(arg.index()).map(|w| u64::try_from(*w as i64)) {
                    Some(Ok(n)) => n,
                    _ => return Err(self.argument(arg.index(), "a negative size".to_string())),
                },
            };
            groups.push(size.div_ceil(dim.step.max(1)));
        }
        let grid = grid::launch(&self.grid, &groups).map_err(|error| {
            let (op, plan) = (self.name.clone(), String::new());
            let failure = Failure { op, plan, stage: Stage::Launch, detail: error.to_string() };
            RuntimeError::Unsupported { rule: "grid-limit".to_string(), failure }
        })?;
        let Some(grid) = grid else { return Ok(None) };
        let params = words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
        Ok(Some(Ready { kernel: self.clone(), grid, params, _words: words }))
    }
}

impl Loaded {
    fn argument(&self, index: usize, detail: String) -> RuntimeError {
        let name = self.args.get(index).map(|(name, _)| name.clone()).unwrap_or_default();
        RuntimeError::Argument { kernel: self.name.clone(), index, name, detail }
    }
}

/// One kernel with its arguments in place.
pub(crate) struct Ready {
    kernel: Arc<Loaded>,
    grid: [u32; 3],
    /// Addresses of the words.
    params: Vec<*mut c_void>,
    _words: Vec<u64>,
}

// SAFETY: the addresses point into a vector that moves with the value, and nothing else uses them.
unsafe impl Send for Ready {}

/// The driver's assembler, as resource tables name it.
pub(crate) fn compiler_name(facts: &DeviceFacts) -> String {
    format!("driver {} sm_{}", facts.driver_text(), facts.sm)
}

/// The latest PTX that every driver of a CUDA version takes on a compute capability, for planning
/// without a device.
pub fn limit_of(sm: u32, driver: i32) -> PtxTarget {
    PtxTarget { sm, version: ptx_version(driver) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_kernel::builder::KernelBuilder;

    fn module(target: PtxTarget) -> (Kernel, Ptx) {
        let mut b = KernelBuilder::new("nothing", 32, 1);
        b.grid(Size::Const(1), 1);
        let kernel = b.finish();
        let ptx = Ptx { target, ..emit_for(&kernel, PtxTarget::BASE).unwrap() };
        (kernel, ptx)
    }

    #[test]
    fn an_older_driver_and_an_older_gpu_get_a_sentence_that_names_what_they_lack() {
        let (kernel, ptx) = module(PtxTarget { sm: 90, version: 78 });
        assert!(admit(&kernel, &ptx, limit_of(90, 11080)).is_ok());
        let text = admit(&kernel, &ptx, limit_of(90, 11040)).unwrap_err().to_string();
        for part in ["driver-version", "nothing", "PTX 7.8", "CUDA 11.8", "takes PTX 7.4"] {
            assert!(text.contains(part), "{text}");
        }
        let text = admit(&kernel, &ptx, limit_of(86, 13000)).unwrap_err().to_string();
        for part in ["compute-capability", "needs compute capability 9.0", "has 8.6"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
