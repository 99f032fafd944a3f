//! Compiled kernels on a GPU: arguments into place, launches, reports.

use crate::codegen::CodegenError;
use crate::device::failed;
use crate::driver::{Context, Function};
use crate::target::{cuda_of_ptx, ptx_version};
use crate::{Ptx, PtxTarget, emit};
use std::ffi::c_void;
use std::sync::Arc;
use tilewright_ir::entity::Id;
use tilewright_kernel::kernel::{ArgKind, Elem, Kernel, Size};
use tilewright_runtime::{
    ArgValue, Executable, Failure, PreparedLaunch, Queue, ResourceReport, RuntimeError, Stage,
};

/// Most groups of a launch along x, y and z.
const GRID_LIMITS: [u64; 3] = [(1 << 31) - 1, 65535, 65535];

/// One kernel on the device.
struct Loaded {
    name: String,
    args: Vec<(String, ArgKind)>,
    /// Size (known or an argument by position) and elements per group; the innermost dimension
    /// first, as x.
    grid: Vec<(Result<u64, usize>, u64)>,
    function: Function,
    ptx: Ptx,
}

/// Kernels that run in order.
pub struct CudaExecutable {
    kernels: Vec<Arc<Loaded>>,
    queue: Arc<dyn Queue>,
    report: ResourceReport,
}

impl CudaExecutable {
    pub(crate) fn new(
        launches: &[Kernel],
        context: &Arc<Context>,
        queue: &Arc<dyn Queue>,
        limit: PtxTarget,
    ) -> Result<Self, RuntimeError> {
        let mut kernels = Vec::with_capacity(launches.len());
        let mut report = ResourceReport::default();
        for kernel in launches {
            let ptx = generate(kernel, limit)?;
            let function =
                context.load(&ptx).map_err(|error| failed(&kernel.name, Stage::Load, &error))?;
            let used =
                function.report().map_err(|error| failed(&kernel.name, Stage::Load, &error))?;
            if used.groups_per_core == 0 {
                return Err(refused(
                    kernel,
                    "launch-resources",
                    format!(
                        "a group of {} threads with {} registers each and {} bytes of shared \
                         memory doesn't fit a core",
                        ptx.threads, used.registers, ptx.shared_bytes
                    ),
                ));
            }
            report.code_bytes += ptx.text.len() as u64;
            report.scratch_bytes = report.scratch_bytes.max(ptx.shared_bytes);
            report.spills = report.spills.max(u64::from(used.local_bytes));
            report.registers = report.registers.max(Some(u64::from(used.registers)));
            let groups = u64::from(used.groups_per_core);
            report.groups_per_core =
                Some(report.groups_per_core.map_or(groups, |least| least.min(groups)));
            let grid = kernel.grid.iter().rev().map(|dim| {
                let size = match dim.size {
                    Size::Const(n) => Ok(n),
                    Size::Arg(arg) => Err(arg.index()),
                };
                (size, dim.step.max(1))
            });
            kernels.push(Arc::new(Loaded {
                name: kernel.name.clone(),
                args: kernel.args.iter().map(|(_, a)| (a.name.clone(), a.kind)).collect(),
                grid: grid.collect(),
                function,
                ptx,
            }));
        }
        Ok(CudaExecutable { kernels, queue: queue.clone(), report })
    }

    /// The modules, in launch order.
    pub fn modules(&self) -> impl Iterator<Item = &Ptx> {
        self.kernels.iter().map(|k| &k.ptx)
    }

    /// Checks arguments and puts them in place.
    fn arrange(&self, args: &[ArgValue]) -> Result<Prepared, RuntimeError> {
        let mut prepared = Prepared { launches: Vec::with_capacity(self.kernels.len()) };
        let mut rest = args;
        for (n, kernel) in self.kernels.iter().enumerate() {
            // The last kernel gets everything that is left, so that too many are an error too.
            let last = n + 1 == self.kernels.len();
            let count = if last { rest.len() } else { kernel.args.len().min(rest.len()) };
            let (own, others) = rest.split_at(count);
            rest = others;
            if let Some(launch) = kernel.arrange(own)? {
                prepared.launches.push(launch);
            }
        }
        Ok(prepared)
    }
}

/// The PTX of a kernel, if the device and its driver take it.
fn generate(kernel: &Kernel, limit: PtxTarget) -> Result<Ptx, RuntimeError> {
    let ptx = emit(kernel, PtxTarget::BASE)
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

impl Loaded {
    /// A launch with its arguments; `None` where the grid is empty.
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
        let mut grid = [1u32; 3];
        for (d, (size, step)) in self.grid.iter().enumerate() {
            let size = match *size {
                Ok(n) => n,
                Err(arg) => match words.get(arg).map(|w| u64::try_from(*w as i64)) {
                    Some(Ok(n)) => n,
                    _ => return Err(self.argument(arg, "a negative size".to_string())),
                },
            };
            let groups = size.div_ceil(*step);
            if groups == 0 {
                return Ok(None);
            }
            let limit = GRID_LIMITS.get(d).copied().unwrap_or(1);
            if groups > limit {
                let axis = ["x", "y", "z"].get(d).unwrap_or(&"a fourth dimension");
                let (op, plan) = (self.name.clone(), String::new());
                let detail = format!("{groups} groups along {axis}; a launch has at most {limit}");
                let failure = Failure { op, plan, stage: Stage::Launch, detail };
                return Err(RuntimeError::Backend(failure));
            }
            if let Some(extent) = grid.get_mut(d) {
                *extent = groups as u32;
            }
        }
        let params = words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
        Ok(Some(Ready { kernel: self.clone(), grid, params, _words: words }))
    }

    fn argument(&self, index: usize, detail: String) -> RuntimeError {
        let name = self.args.get(index).map(|(name, _)| name.clone()).unwrap_or_default();
        RuntimeError::Argument { kernel: self.name.clone(), index, name, detail }
    }
}

/// One kernel with its arguments in place.
struct Ready {
    kernel: Arc<Loaded>,
    grid: [u32; 3],
    /// Addresses of the words.
    params: Vec<*mut c_void>,
    _words: Vec<u64>,
}

/// A launch of every kernel of an executable.
struct Prepared {
    launches: Vec<Ready>,
}

// SAFETY: the addresses point into vectors that move with the value, and nothing else uses them.
unsafe impl Send for Prepared {}

impl PreparedLaunch for Prepared {
    unsafe fn enqueue(&mut self) -> Result<(), RuntimeError> {
        for launch in &mut self.launches {
            // SAFETY: the words are those of the kernel's parameters; the caller vouches for the
            // buffers.
            unsafe { launch.kernel.function.enqueue(launch.grid, &mut launch.params) }
                .map_err(|error| failed(&launch.kernel.name, Stage::Launch, &error))?;
        }
        Ok(())
    }
}

impl Executable for CudaExecutable {
    unsafe fn launch(&self, args: &[ArgValue]) -> Result<(), RuntimeError> {
        let mut prepared = self.arrange(args)?;
        // SAFETY: as promised by the caller until this call returns, and it waits.
        unsafe { prepared.enqueue() }?;
        let op = self.kernels.first().map_or("", |k| k.name.as_str());
        self.queue.wait().map_err(|error| match error {
            RuntimeError::Backend(failure) => {
                RuntimeError::Backend(Failure { op: op.to_string(), ..failure })
            }
            other => other,
        })
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
        self.kernels.iter().map(|k| k.ptx.text.as_str()).collect::<Vec<_>>().join("\n")
    }

    fn report(&self) -> ResourceReport {
        self.report.clone()
    }
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
        let ptx = Ptx { target, ..emit(&kernel, PtxTarget::BASE).unwrap() };
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
