//! The libraries that multiply matrices: Tilewright and those it is compared with.

use std::ffi::{CStr, c_char, c_int, c_void};

/// Sizes M, N, K of a row-major product C = A·B.
pub type Shape = [usize; 3];

/// A library that is ready to multiply.
pub trait Multiply {
    /// C = A·B. The slices have the shape's lengths.
    fn multiply(&mut self, shape: Shape, a: &[f32], b: &[f32], c: &mut [f32]);

    /// What it is, for the report.
    fn version(&self) -> String;
}

/// The other libraries, by name.
pub const PEERS: [&str; 3] = ["openblas", "gemm", "matrixmultiply"];

/// A peer by name.
///
/// # Errors
/// The name is unknown, or the library isn't installed.
pub fn peer(name: &str, threads: usize) -> Result<Box<dyn Multiply>, String> {
    match name {
        "openblas" => Ok(Box::new(OpenBlas::load()?)),
        "gemm" => Ok(Box::new(GemmCrate { threads })),
        "matrixmultiply" => Ok(Box::new(MatrixMultiply)),
        other => Err(format!("there is no library `{other}`")),
    }
}

/// The crate `gemm`.
struct GemmCrate {
    threads: usize,
}

impl Multiply for GemmCrate {
    fn multiply(&mut self, [m, n, k]: Shape, a: &[f32], b: &[f32], c: &mut [f32]) {
        assert!(a.len() >= m * k && b.len() >= k * n && c.len() >= m * n);
        let parallel = match self.threads {
            1 => gemm::Parallelism::None,
            threads => gemm::Parallelism::Rayon(threads),
        };
        // SAFETY: the slices hold row-major matrices of these sizes, as asserted; `c` is
        // borrowed exclusively.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                c.as_mut_ptr(),
                1,
                n as isize,
                false,
                a.as_ptr(),
                1,
                k as isize,
                b.as_ptr(),
                1,
                n as isize,
                0.0,
                1.0,
                false,
                false,
                false,
                parallel,
            );
        }
    }

    fn version(&self) -> String {
        "crate gemm 0.19 with its x86-v4 kernels".to_string()
    }
}

/// The crate `matrixmultiply`; it takes its number of threads from the environment.
struct MatrixMultiply;

impl Multiply for MatrixMultiply {
    fn multiply(&mut self, [m, n, k]: Shape, a: &[f32], b: &[f32], c: &mut [f32]) {
        assert!(a.len() >= m * k && b.len() >= k * n && c.len() >= m * n);
        let (ld_a, ld_b) = (k as isize, n as isize);
        // SAFETY: the slices hold row-major matrices of these sizes, as asserted; `c` is
        // borrowed exclusively.
        unsafe {
            matrixmultiply::sgemm(
                m,
                k,
                n,
                1.0,
                a.as_ptr(),
                ld_a,
                1,
                b.as_ptr(),
                ld_b,
                1,
                0.0,
                c.as_mut_ptr(),
                ld_b,
                1,
            );
        }
    }

    fn version(&self) -> String {
        "crate matrixmultiply 0.3".to_string()
    }
}

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

/// OpenBLAS, loaded at run time.
struct OpenBlas {
    sgemm: Sgemm,
    version: String,
}

/// Row-major, not transposed.
const ROW_MAJOR: c_int = 101;
const NO_TRANS: c_int = 111;

impl OpenBlas {
    fn load() -> Result<OpenBlas, String> {
        let names = [c"libopenblas.so.0", c"libopenblas.so"];
        // SAFETY: loading a shared library runs its initialisers; these are OpenBLAS's.
        let handle = names
            .iter()
            .map(|name| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) })
            .find(|handle| !handle.is_null())
            .ok_or("libopenblas isn't installed (scripts/bench-setup.sh installs it)")?;
        let symbol = |name: &CStr| {
            // SAFETY: the handle is open and never closed; the name ends with 0.
            let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if address.is_null() {
                return Err(format!("libopenblas has no {}", name.to_string_lossy()));
            }
            Ok(address)
        };
        // SAFETY: these are the C declarations of the functions of that name.
        let (sgemm, config, core) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Sgemm>(symbol(c"cblas_sgemm")?),
                text(symbol(c"openblas_get_config")?),
                text(symbol(c"openblas_get_corename")?),
            )
        };
        Ok(OpenBlas { sgemm, version: format!("{config} (running as {core})") })
    }
}

/// The text that a function without arguments returns.
///
/// # Safety
/// The address is a function `const char *f(void)` whose text ends with 0.
unsafe fn text(address: *mut c_void) -> String {
    // SAFETY: the caller's promise.
    unsafe {
        let function: unsafe extern "C" fn() -> *const c_char = std::mem::transmute(address);
        CStr::from_ptr(function()).to_string_lossy().trim().to_string()
    }
}

impl Multiply for OpenBlas {
    fn multiply(&mut self, [m, n, k]: Shape, a: &[f32], b: &[f32], c: &mut [f32]) {
        assert!(a.len() >= m * k && b.len() >= k * n && c.len() >= m * n);
        let [m, n, k] = [m, n, k].map(|size| size as c_int);
        // SAFETY: the slices hold row-major matrices of these sizes, as asserted; `c` is
        // borrowed exclusively.
        unsafe {
            (self.sgemm)(
                ROW_MAJOR,
                NO_TRANS,
                NO_TRANS,
                m,
                n,
                k,
                1.0,
                a.as_ptr(),
                k,
                b.as_ptr(),
                n,
                0.0,
                c.as_mut_ptr(),
                n,
            );
        }
    }

    fn version(&self) -> String {
        self.version.clone()
    }
}
