//! The CPU as a device: compiles kernels to machine code and runs them on a thread pool.

use std::sync::{Arc, Mutex};

use tilewright_ir::DType;
use tilewright_ir::entity::Id;
use tilewright_kernel::kernel::{ArgKind, Elem, Kernel, Size};
use tilewright_plan::mapping::CpuIsa;
use tilewright_plan::target::Target;
use tilewright_runtime::{
    ArgValue, Capabilities, Device, Executable, Failure, ResourceReport, Roofline, RuntimeError,
    Stage,
};

use crate::error::CpuError;
use crate::host;
use crate::pool::Pool;
use crate::program::{Program, Streaming};

/// Choices for a CPU device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuOptions {
    /// Instruction set; the machine's best if `None`.
    pub isa: Option<CpuIsa>,
    /// Threads of a launch; all cores if `None`.
    pub threads: Option<usize>,
    /// When whole-vector outputs are written past the caches.
    pub streaming: Streaming,
    /// Tell `perf` the names of generated functions (a file in the directory for temporary
    /// files).
    pub perf_map: bool,
}

/// The CPU.
#[derive(Debug)]
pub struct CpuDevice {
    options: CpuOptions,
    isa: CpuIsa,
    capabilities: Capabilities,
    target: Target,
    pool: Arc<Pool>,
    /// Measured ceilings by type and number of threads.
    rooflines: Mutex<Vec<(DType, usize, Roofline)>>,
}

impl CpuDevice {
    /// Opens the device.
    ///
    /// # Errors
    /// [`CpuError::MissingIsa`] for an instruction set that this machine doesn't have,
    /// [`CpuError::Threads`] for an impossible number of threads, [`CpuError::System`] where
    /// threads can't be started.
    pub fn new(options: CpuOptions) -> Result<CpuDevice, CpuError> {
        let isa = options.isa.unwrap_or_else(host::best_isa);
        if !host::has(isa) {
            return Err(CpuError::MissingIsa(isa_name(isa).to_string()));
        }
        let threads = options.threads.unwrap_or_else(host::cores);
        let pool = Arc::new(Pool::new(threads)?);
        let facts = tilewright_plan::target::CpuFacts { cores: threads as u32, ..host::facts(isa) };
        let mut notes = Vec::new();
        if isa == CpuIsa::Portable {
            notes.push("Kernels run on the portable path, which is correct but slow.".to_string());
        }
        let capabilities = Capabilities {
            name: "cpu".to_string(),
            model: facts.name.clone(),
            isa: isa_name(isa).to_string(),
            threads,
            memory_bytes: tilewright_runtime::memory::available(),
            notes,
        };
        let target = Target::cpu(facts);
        Ok(CpuDevice {
            options,
            isa,
            capabilities,
            target,
            pool,
            rooflines: Mutex::new(Vec::new()),
        })
    }

    /// Instruction set of generated code.
    pub fn isa(&self) -> CpuIsa {
        self.isa
    }

    /// The threads that run launches.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Compiles one kernel.
    ///
    /// # Errors
    /// As [`Device::compile`], in this crate's terms.
    pub fn compile_kernel(&self, kernel: &Kernel) -> Result<CpuKernel, CpuError> {
        let CpuOptions { streaming, perf_map, .. } = self.options;
        let program = Program::new(kernel, self.isa, streaming, perf_map)?;
        CpuKernel::new(kernel, program)
    }
}

/// The name of an instruction set on the command line and in reports.
pub fn isa_name(isa: CpuIsa) -> &'static str {
    match isa {
        CpuIsa::Portable => "portable",
        CpuIsa::Avx2 => "avx2",
        CpuIsa::Avx512 => "avx512",
    }
}

/// A grid extent whose size is known now or an argument.
#[derive(Clone, Copy, Debug)]
struct Extent {
    size: Result<u64, usize>,
    step: u64,
}

/// One compiled kernel.
#[derive(Debug)]
pub struct CpuKernel {
    kernel: Kernel,
    program: Program,
    grid: Vec<Extent>,
}

impl CpuKernel {
    fn new(kernel: &Kernel, program: Program) -> Result<CpuKernel, CpuError> {
        if kernel.args.iter().any(|(_, a)| matches!(a.kind, ArgKind::TensorMap { .. })) {
            return Err(CpuError::unsupported("tensor maps"));
        }
        let grid = kernel
            .grid
            .iter()
            .map(|dim| Extent {
                size: match dim.size {
                    Size::Const(n) => Ok(n),
                    Size::Arg(arg) => Err(arg.index()),
                },
                step: dim.step.max(1),
            })
            .collect();
        Ok(CpuKernel { kernel: kernel.clone(), program, grid })
    }

    /// Runs all groups on at most the pool's threads.
    ///
    /// # Errors
    /// [`RuntimeError::Argument`] for a wrong number or kind of arguments;
    /// [`RuntimeError::Backend`] where scratch memory can't be had.
    ///
    /// # Safety
    /// As [`Executable::launch`].
    pub unsafe fn launch(&self, pool: &Pool, args: &[ArgValue]) -> Result<(), RuntimeError> {
        if args.len() != self.kernel.args.len() {
            return Err(self.argument(
                args.len().min(self.kernel.args.len()),
                format!("{} arguments for {}", args.len(), self.kernel.args.len()),
            ));
        }
        // Most kernels have few arguments; those need no allocation.
        let mut few = [0u64; 24];
        let mut many = Vec::new();
        let words: &mut [u64] = if args.len() <= few.len() {
            &mut few[..args.len()]
        } else {
            many.resize(args.len(), 0);
            &mut many
        };
        for (((id, declared), value), word) in
            self.kernel.args.iter().zip(args).zip(words.iter_mut())
        {
            *word = match (declared.kind, value) {
                (ArgKind::Buffer { align, .. }, ArgValue::Buffer { ptr, .. }) => {
                    if !(*ptr as u64).is_multiple_of(align.max(1)) {
                        let detail = format!("not aligned to {align} bytes");
                        return Err(self.argument(id.index(), detail));
                    }
                    value.word(None)
                }
                (ArgKind::Number(_), ArgValue::Buffer { .. }) => {
                    return Err(self.argument(id.index(), "a buffer for a number".to_string()));
                }
                (ArgKind::Number(Elem::Index), ArgValue::Float(_)) => {
                    return Err(self.argument(id.index(), "a float for an index".to_string()));
                }
                (ArgKind::Number(Elem::Index), _) => value.word(None),
                (ArgKind::Number(Elem::Data(dtype)), _) => value.word(Some(dtype)),
                _ => return Err(self.argument(id.index(), "a number for a buffer".to_string())),
            };
        }
        let mut groups = 1u64;
        for extent in &self.grid {
            let size = match extent.size {
                Ok(n) => n,
                Err(arg) => match words.get(arg).map(|w| u64::try_from(*w as i64)) {
                    Some(Ok(n)) => n,
                    _ => return Err(self.argument(arg, "a negative size".to_string())),
                },
            };
            groups = groups
                .checked_mul(size.div_ceil(extent.step))
                .filter(|n| *n < 1 << 62)
                .ok_or_else(|| self.failure(Stage::Launch, "more groups than 2^62".to_string()))?;
        }
        // SAFETY: the caller vouches for the buffers; the words are those of this kernel.
        unsafe { self.program.run(&self.kernel, pool, pool.threads(), groups, words, args) }
            .map_err(|e| self.failure(Stage::Launch, e.to_string()))
    }

    fn argument(&self, index: usize, detail: String) -> RuntimeError {
        let name = self.kernel.args.iter().nth(index).map(|(_, a)| a.name.clone());
        let kernel = self.kernel.name.clone();
        RuntimeError::Argument { kernel, index, name: name.unwrap_or_default(), detail }
    }

    fn failure(&self, stage: Stage, detail: String) -> RuntimeError {
        RuntimeError::Backend(failure(&self.kernel, stage, detail))
    }

    /// The generated code as text.
    pub fn disassembly(&self) -> String {
        self.program.listing(&self.kernel)
    }

    /// What the code uses.
    pub fn report(&self) -> ResourceReport {
        self.program.report()
    }
}

fn failure(kernel: &Kernel, stage: Stage, detail: String) -> Failure {
    Failure { op: kernel.name.clone(), plan: String::new(), stage, detail }
}

/// Compiled launches that run in order.
#[derive(Debug)]
pub struct CpuExecutable {
    kernels: Vec<CpuKernel>,
    pool: Arc<Pool>,
}

impl CpuExecutable {
    /// The kernels in order.
    pub fn kernels(&self) -> &[CpuKernel] {
        &self.kernels
    }
}

impl Executable for CpuExecutable {
    unsafe fn launch(&self, args: &[ArgValue]) -> Result<(), RuntimeError> {
        let mut rest = args;
        for (n, kernel) in self.kernels.iter().enumerate() {
            // The last kernel gets everything that is left, so that too many are an error too.
            let last = n + 1 == self.kernels.len();
            let count = if last { rest.len() } else { kernel.kernel.args.len().min(rest.len()) };
            let (own, others) = rest.split_at(count);
            rest = others;
            // SAFETY: as promised by the caller.
            unsafe { kernel.launch(&self.pool, own) }?;
        }
        Ok(())
    }

    fn disassembly(&self) -> String {
        self.kernels.iter().map(CpuKernel::disassembly).collect::<Vec<_>>().join("\n")
    }

    fn report(&self) -> ResourceReport {
        let mut all = ResourceReport::default();
        for report in self.kernels.iter().map(CpuKernel::report) {
            all.code_bytes += report.code_bytes;
            all.scratch_bytes = all.scratch_bytes.max(report.scratch_bytes);
            all.spills += report.spills;
        }
        all
    }
}

impl Device for CpuDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn target(&self) -> &Target {
        &self.target
    }

    fn compile(&self, launches: &[Kernel]) -> Result<Box<dyn Executable>, RuntimeError> {
        let mut kernels = Vec::new();
        for kernel in launches {
            kernels.push(self.compile_kernel(kernel).map_err(|error| {
                let stage = match &error {
                    CpuError::System { .. } => Stage::Load,
                    _ => Stage::Compile,
                };
                let failure = failure(kernel, stage, error.to_string());
                match error {
                    CpuError::Unsupported(_) => {
                        RuntimeError::Unsupported { rule: "cpu-codegen".to_string(), failure }
                    }
                    _ => RuntimeError::Backend(failure),
                }
            })?);
        }
        Ok(Box::new(CpuExecutable { kernels, pool: self.pool.clone() }))
    }

    fn roofline(&self, dtype: DType, threads: usize) -> Option<Roofline> {
        let threads = threads.clamp(1, self.pool.threads());
        let mut known = self.rooflines.lock().ok()?;
        if let Some((_, _, roofline)) = known.iter().find(|k| k.0 == dtype && k.1 == threads) {
            return Some(*roofline);
        }
        let roofline = crate::roofline::measure(self.isa, dtype, &self.pool, threads)?;
        known.push((dtype, threads, roofline));
        Some(roofline)
    }
}
