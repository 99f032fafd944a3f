//! One kernel ready to run: machine code, or the portable path.

use std::sync::Mutex;

use tilewright_kernel::kernel::Kernel;
use tilewright_plan::mapping::CpuIsa;
use tilewright_runtime::{ArgValue, ResourceReport};

use crate::error::CpuError;
#[cfg(target_arch = "x86_64")]
use crate::native::Native;
use crate::pool::Pool;
use crate::portable::Portable;

/// When outputs are written past the caches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Streaming {
    /// When the buffers of a launch are more than the last-level cache holds.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// A kernel in a form that runs.
#[derive(Debug)]
pub enum Program {
    /// Machine code.
    #[cfg(target_arch = "x86_64")]
    Native(Box<Native>),
    /// The portable path.
    Portable(Box<Portable>),
}

impl Program {
    /// Compiles a kernel.
    ///
    /// # Errors
    /// As `Native::new` and [`Portable::new`].
    pub fn new(
        kernel: &Kernel,
        isa: CpuIsa,
        streaming: Streaming,
        perf_map: bool,
    ) -> Result<Program, CpuError> {
        #[cfg(target_arch = "x86_64")]
        if isa != CpuIsa::Portable {
            let native = Native::new(kernel, isa, streaming, perf_map)?;
            return Ok(Program::Native(Box::new(native)));
        }
        let _ = (isa, streaming, perf_map);
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
        let _ = (kernel, words);
        match self {
            #[cfg(target_arch = "x86_64")]
            Program::Native(native) => {
                // SAFETY: as promised by the caller.
                unsafe { native.run(kernel, (pool, threads), groups, words, args) }
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
            Program::Native(native) => crate::listing::disassemble(kernel, native.code()),
            Program::Portable(_) => kernel.to_string(),
        }
    }

    /// What it uses.
    pub fn report(&self) -> ResourceReport {
        match self {
            #[cfg(target_arch = "x86_64")]
            Program::Native(native) => {
                let code = native.code();
                ResourceReport {
                    code_bytes: code.blob.bytes.len() as u64,
                    scratch_bytes: code.scratch_bytes,
                    spills: code.blob.spills.iter().map(|n| u64::from(*n)).sum(),
                    ..ResourceReport::default()
                }
            }
            Program::Portable(_) => ResourceReport::default(),
        }
    }
}
