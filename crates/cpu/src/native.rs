//! Machine code of one kernel, in up to two versions.

use std::sync::OnceLock;

use tilewright_kernel::kernel::Kernel;
use tilewright_plan::mapping::CpuIsa;
use tilewright_runtime::ArgValue;

use crate::codegen::{self, Code, Options};
use crate::error::CpuError;
use crate::exec::ExecutableCode;
use crate::host;
use crate::pool::Pool;
use crate::program::Streaming;

/// Code as generated, and in executable memory.
#[derive(Debug)]
struct Version {
    code: Code,
    memory: ExecutableCode,
}

impl Version {
    fn new(kernel: &Kernel, options: Options, perf_map: bool) -> Result<Version, CpuError> {
        let code = codegen::compile(kernel, options)?;
        let memory = ExecutableCode::new(&code.blob.bytes, code.blob.entry)?;
        if perf_map {
            memory.write_perf_map(&kernel.name)?;
        }
        Ok(Version { code, memory })
    }
}

/// A kernel as machine code.
#[derive(Debug)]
pub struct Native {
    main: Version,
    /// The version that writes past the caches, made when a launch first wants it; `None` inside
    /// where it would be no different.
    past_caches: OnceLock<Option<Version>>,
    when: Streaming,
    isa: CpuIsa,
    perf_map: bool,
    /// Bytes of the last-level cache.
    cache: u64,
}

impl Native {
    /// Compiles a kernel for AVX-512 or AVX2.
    ///
    /// # Errors
    /// As [`codegen::compile`] and [`ExecutableCode::new`].
    pub fn new(
        kernel: &Kernel,
        isa: CpuIsa,
        when: Streaming,
        perf_map: bool,
    ) -> Result<Native, CpuError> {
        let options = Options { isa, streaming_stores: when == Streaming::Always };
        let caches = host::caches();
        Ok(Native {
            main: Version::new(kernel, options, perf_map)?,
            past_caches: OnceLock::new(),
            when,
            isa,
            perf_map,
            cache: caches.l3.max(caches.l2),
        })
    }

    /// The code that launches of ordinary size run.
    pub fn code(&self) -> &Code {
        &self.main.code
    }

    /// The version for buffers of these sizes.
    fn version(&self, kernel: &Kernel, args: &[ArgValue]) -> &Version {
        let size = |arg: &ArgValue| match arg {
            ArgValue::Buffer { bytes, .. } => *bytes as u64,
            _ => 0,
        };
        let total = args.iter().map(size).fold(0, u64::saturating_add);
        if self.when != Streaming::Auto || self.cache == 0 || total <= self.cache {
            return &self.main;
        }
        let other = self.past_caches.get_or_init(|| {
            let options = Options { isa: self.isa, streaming_stores: true };
            // Without this version the ordinary one does.
            let version = Version::new(kernel, options, self.perf_map).ok()?;
            version.code.streams.then_some(version)
        });
        other.as_ref().unwrap_or(&self.main)
    }

    /// Runs the groups `0 .. groups` on at most `threads` threads of the pool.
    ///
    /// # Errors
    /// [`CpuError::System`] where scratch memory can't be had.
    ///
    /// # Safety
    /// `words` are the argument words of this kernel, and the buffers among them are as
    /// [`tilewright_runtime::Executable::launch`] asks.
    pub unsafe fn run(
        &self,
        kernel: &Kernel,
        (pool, threads): (&Pool, usize),
        groups: u64,
        words: &[u64],
        args: &[ArgValue],
    ) -> Result<(), CpuError> {
        let version = self.version(kernel, args);
        let entry = version.memory.entry();
        // An address, so that the closure can be shared.
        let table = words.as_ptr() as usize;
        let scratch_bytes = version.code.scratch_bytes as usize;
        pool.run(groups, threads, scratch_bytes, &|first, end, scratch| {
            // SAFETY: the code was generated for this kernel; `words` outlives the run; the pool
            // gives each thread scratch of its own, of the size asked for.
            unsafe { entry(table as *const u64, first, end, scratch) }
        })
    }
}
