//! One kernel ready to run: machine code, or the portable path.

use std::sync::Mutex;

use tilewright_kernel::kernel::Kernel;
use tilewright_plan::mapping::CpuIsa;
use tilewright_runtime::{ArgValue, ResourceReport};

#[cfg(target_arch = "x86_64")]
use crate::codegen::{self, Code, Options};
use crate::error::CpuError;
#[cfg(target_arch = "x86_64")]
use crate::exec::ExecutableCode;
use crate::pool::Pool;
use crate::portable::Portable;

/// A kernel in a form that runs.
#[derive(Debug)]
pub enum Program {
    /// Machine code.
    #[cfg(target_arch = "x86_64")]
    Native {
        /// The code as generated.
        code: Box<Code>,
        /// The code in executable memory.
        memory: ExecutableCode,
    },
    /// The portable path.
    Portable(Box<Portable>),
}

impl Program {
    /// Compiles a kernel.
    ///
    /// # Errors
    /// As `codegen::compile`, `ExecutableCode::new` and [`Portable::new`].
    pub fn new(
        kernel: &Kernel,
        isa: CpuIsa,
        streaming_stores: bool,
        perf_map: bool,
    ) -> Result<Program, CpuError> {
        #[cfg(target_arch = "x86_64")]
        if isa != CpuIsa::Portable {
            let code = codegen::compile(kernel, Options { isa, streaming_stores })?;
            let memory = ExecutableCode::new(&code.blob.bytes, code.blob.entry)?;
            if perf_map {
                memory.write_perf_map(&kernel.name)?;
            }
            return Ok(Program::Native { code: Box::new(code), memory });
        }
        let _ = (isa, streaming_stores, perf_map);
        Ok(Program::Portable(Box::new(Portable::new(kernel)?)))
    }

    /// Runs the groups `0 .. groups` on at most `threads` threads of the pool.
    ///
    /// # Errors
    /// [`CpuError::System`] where scratch memory can't be had; [`CpuError::Run`] where the
    /// portable path stops.
    ///
    /// # Safety
    /// `words` are the argument words of this kernel, and the buffers among them are as
    /// [`tilewright_runtime::Executable::launch`] asks.
    pub unsafe fn run(
        &self,
        kernel: &Kernel,
        pool: &Pool,
        threads: usize,
        groups: u64,
        words: &[u64],
        args: &[ArgValue],
    ) -> Result<(), CpuError> {
        let _ = kernel;
        match self {
            #[cfg(target_arch = "x86_64")]
            Program::Native { code, memory } => {
                let entry = memory.entry();
                // An address, so that the closure can be shared.
                let table = words.as_ptr() as usize;
                pool.run(groups, threads, code.scratch_bytes as usize, &|first, end, scratch| {
                    // SAFETY: the code was generated for this kernel; `words` outlives the run;
                    // the pool gives each thread scratch of its own, of the size asked for.
                    unsafe { entry(table as *const u64, first, end, scratch) }
                })
            }
            Program::Portable(portable) => {
                let (table, len) = (args.as_ptr() as usize, args.len());
                let stopped = Mutex::new(None);
                pool.run(groups, threads, 0, &|first, end, _| {
                    // SAFETY: `args` outlives the run; pointers in it are the caller's buffers,
                    // and distinct groups touch distinct elements, as the caller vouches.
                    let result = unsafe {
                        let args = std::slice::from_raw_parts(table as *const ArgValue, len);
                        portable.run_groups(args, first..end)
                    };
                    if let Err(error) = result
                        && let Ok(mut stopped) = stopped.lock()
                    {
                        stopped.get_or_insert(error);
                    }
                })?;
                match stopped.into_inner() {
                    Ok(Some(error)) => Err(error),
                    _ => Ok(()),
                }
            }
        }
    }

    /// The code as text.
    pub fn listing(&self, kernel: &Kernel) -> String {
        match self {
            #[cfg(target_arch = "x86_64")]
            Program::Native { code, .. } => crate::listing::disassemble(kernel, code),
            Program::Portable(_) => kernel.to_string(),
        }
    }

    /// What it uses.
    pub fn report(&self) -> ResourceReport {
        match self {
            #[cfg(target_arch = "x86_64")]
            Program::Native { code, .. } => ResourceReport {
                code_bytes: code.blob.bytes.len() as u64,
                scratch_bytes: code.scratch_bytes,
                spills: code.blob.spills.iter().map(|n| u64::from(*n)).sum(),
            },
            Program::Portable(_) => ResourceReport::default(),
        }
    }
}
