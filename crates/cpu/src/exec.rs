//! Executable memory: written first, then made executable, never both at once.

use std::io::Write;

use memmap2::{Mmap, MmapMut};

use crate::error::CpuError;

/// The generated function: runs groups `first .. end`.
pub type Entry =
    unsafe extern "sysv64" fn(args: *const u64, first: u64, end: u64, scratch: *mut u8);

/// Machine code that can be called. The memory is freed when the value is dropped.
#[derive(Debug)]
pub struct ExecutableCode {
    map: Mmap,
    entry: usize,
    len: usize,
}

impl ExecutableCode {
    /// Copies code into fresh memory and makes it executable.
    ///
    /// # Errors
    /// [`CpuError::System`] where the operating system refuses.
    pub fn new(bytes: &[u8], entry: usize) -> Result<Self, CpuError> {
        let system = |what: &str| {
            let what = what.to_string();
            move |source| CpuError::System { what, source }
        };
        if entry >= bytes.len() {
            return Err(CpuError::malformed("code without an entry"));
        }
        let mut map = MmapMut::map_anon(bytes.len()).map_err(system("mapping code memory"))?;
        map[..bytes.len()].copy_from_slice(bytes);
        let map = map.make_exec().map_err(system("making code memory executable"))?;
        Ok(ExecutableCode { map, entry, len: bytes.len() })
    }

    /// The code, constants included.
    pub fn bytes(&self) -> &[u8] {
        &self.map[..self.len]
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.map.as_ptr() as u64
    }

    /// The function.
    pub fn entry(&self) -> Entry {
        // SAFETY: the entry lies inside the mapping (checked in `new`) and is the start of a
        // function of this type that the code generator wrote; the mapping outlives the pointer
        // because callers keep `self` while they call.
        unsafe {
            std::mem::transmute::<*const u8, Entry>(self.map.as_ptr().wrapping_add(self.entry))
        }
    }

    /// Appends the function to the file from which `perf` takes names of generated code
    /// (`perf-PID.map` in the directory for temporary files).
    ///
    /// # Errors
    /// [`CpuError::System`] where the file can't be written.
    pub fn write_perf_map(&self, name: &str) -> Result<(), CpuError> {
        let path = std::env::temp_dir().join(format!("perf-{}.map", std::process::id()));
        let system =
            |source| CpuError::System { what: format!("writing {}", path.display()), source };
        let mut file =
            std::fs::OpenOptions::new().create(true).append(true).open(&path).map_err(system)?;
        let start = self.address() + self.entry as u64;
        let size = self.len - self.entry;
        writeln!(file, "{start:x} {size:x} tilewright::{name}").map_err(system)
    }
}
