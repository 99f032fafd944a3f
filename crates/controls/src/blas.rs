//! A CBLAS that is found at run time: OpenBLAS, MKL or Accelerate.

use crate::{Control, ControlError, Prepared, Problem, check_lengths};
use std::ffi::{CStr, c_char, c_int, c_void};

type Sgemm = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    f32,
    *const f32,
    c_int,
    *const f32,
    c_int,
    f32,
    *mut f32,
    c_int,
);

/// CBLAS_ORDER and CBLAS_TRANSPOSE.
const ROW_MAJOR: c_int = 101;
const NO_TRANS: c_int = 111;
const TRANS: c_int = 112;

struct Library {
    /// Name of the control.
    name: &'static str,
    /// Names to try.
    files: &'static [&'static CStr],
    /// Sets the number of threads, `void f(int)`.
    threads: Option<&'static CStr>,
    /// Say what it is, `const char *f(void)`.
    version: &'static [&'static CStr],
    /// Says how many threads it uses, `int f(void)`.
    used: Option<&'static CStr>,
}

const LIBRARIES: [Library; 3] = [
    Library {
        name: "openblas",
        files: &[c"libopenblas.so.0", c"libopenblas.so", c"libopenblas.dylib"],
        threads: Some(c"openblas_set_num_threads"),
        // The core's name is that of the kernels that were chosen at run time.
        version: &[c"openblas_get_config", c"openblas_get_corename"],
        used: Some(c"openblas_get_num_threads"),
    },
    Library {
        name: "mkl",
        files: &[c"libmkl_rt.so.2", c"libmkl_rt.so", c"libmkl_rt.dylib"],
        threads: Some(c"MKL_Set_Num_Threads"),
        version: &[],
        used: Some(c"MKL_Get_Max_Threads"),
    },
    Library {
        name: "accelerate",
        files: &[c"/System/Library/Frameworks/Accelerate.framework/Accelerate"],
        threads: None,
        version: &[],
        used: None,
    },
];

/// A loaded library.
pub(crate) struct Blas {
    sgemm: Sgemm,
    version: Option<String>,
}

impl Blas {
    /// Loads a library and sets its number of threads.
    pub(crate) fn load(name: &str, threads: usize) -> Result<Self, ControlError> {
        let library = LIBRARIES
            .iter()
            .find(|l| l.name == name)
            .ok_or_else(|| ControlError::Unknown { name: name.to_string() })?;
        // SAFETY: loading a shared library runs its initialisers; these are the library's own.
        let handle = library
            .files
            .iter()
            .map(|file| unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW) })
            .find(|handle| !handle.is_null())
            .ok_or_else(|| ControlError::Missing(format!("{name} isn't installed")))?;
        let symbol = |name: &CStr| {
            // SAFETY: the handle is open and never closed; the name ends with 0.
            let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
            (!address.is_null()).then_some(address)
        };
        let sgemm = symbol(c"cblas_sgemm")
            .ok_or_else(|| ControlError::Missing(format!("{name} has no cblas_sgemm")))?;
        // SAFETY: this is the C declaration of cblas_sgemm with 32-bit integers, which these
        // files have by name.
        let sgemm = unsafe { std::mem::transmute::<*mut c_void, Sgemm>(sgemm) };
        if let Some(set) = library.threads.and_then(symbol) {
            // SAFETY: the function is `void f(int)`.
            unsafe {
                let set: unsafe extern "C" fn(c_int) = std::mem::transmute(set);
                set(c_int::try_from(threads).unwrap_or(1));
            }
        }
        let mut version: Vec<String> = Vec::new();
        for address in library.version.iter().filter_map(|name| symbol(name)) {
            // SAFETY: the function is `const char *f(void)` and its text ends with 0.
            version.push(unsafe {
                let text: unsafe extern "C" fn() -> *const c_char = std::mem::transmute(address);
                CStr::from_ptr(text()).to_string_lossy().trim().to_string()
            });
        }
        if let Some(address) = library.used.and_then(symbol) {
            // SAFETY: the function is `int f(void)`.
            let used = unsafe {
                let used: unsafe extern "C" fn() -> c_int = std::mem::transmute(address);
                used()
            };
            if usize::try_from(used) != Ok(threads) {
                let message = format!("{name} uses {used} threads where {threads} were asked for");
                return Err(ControlError::Missing(message));
            }
            version.push(format!("{used} threads"));
        }
        let version = (!version.is_empty()).then(|| version.join(", "));
        Ok(Blas { sgemm, version })
    }
}

impl Control for Blas {
    fn version(&self) -> Option<String> {
        self.version.clone()
    }

    fn prepare(&self, problem: &Problem) -> Result<Box<dyn Prepared>, ControlError> {
        let size = problem.product()?;
        let fits = size.iter().all(|s| c_int::try_from(*s).is_ok());
        if !fits {
            return Err(ControlError::Unsupported { op: problem.op.clone() });
        }
        Ok(Box::new(Product { sgemm: self.sgemm, size, transposed: problem.transposed }))
    }
}

struct Product {
    sgemm: Sgemm,
    size: [usize; 3],
    transposed: [bool; 2],
}

impl Prepared for Product {
    fn call(&mut self, inputs: &[&[f32]], output: &mut [f32]) -> Result<(), ControlError> {
        let [m, n, k] = self.size;
        check_lengths(inputs, &[m * k, k * n], output, m * n)?;
        let [ta, tb] = self.transposed;
        let [m, n, k] = [m, n, k].map(|size| size as c_int);
        let trans = |t: bool| if t { TRANS } else { NO_TRANS };
        // A leading dimension of 0 isn't allowed even without elements.
        let lead = |size: c_int| size.max(1);
        // SAFETY: the slices hold row-major matrices of these sizes, as checked above; the output
        // is borrowed exclusively.
        unsafe {
            (self.sgemm)(
                ROW_MAJOR,
                trans(ta),
                trans(tb),
                m,
                n,
                k,
                1.0,
                inputs[0].as_ptr(),
                lead(if ta { m } else { k }),
                inputs[1].as_ptr(),
                lead(if tb { k } else { n }),
                0.0,
                output.as_mut_ptr(),
                lead(n),
            );
        }
        Ok(())
    }
}
