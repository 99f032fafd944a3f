//! Machine code for x86-64 from the kernel IR.
//!
//! [`select`] walks the kernel and makes the linear form of [`lir`]: x86 instructions over virtual
//! registers. [`alloc`] gives those registers places by linear scan, [`emit`] encodes. Uniform
//! index values are sums that become general registers and addresses ([`index`]); data are vector
//! registers ([`map`], [`cast`], [`math`], [`collective`], [`memory`]); bools are masks ([`mask`]).
//! Statements on register tiles go to [`tile`].

pub mod alloc;
mod around;
pub mod cast;
pub mod collective;
pub mod control;
pub mod emit;
pub mod fragment;
mod gather;
mod groups;
pub mod helper;
pub mod index;
pub mod lir;
pub mod map;
pub mod mask;
pub mod math;
pub mod memory;
pub mod ops;
pub mod select;
mod streaming;
pub mod tile;
pub mod value;

use tilewright_kernel::kernel::Kernel;

use crate::error::CpuError;
pub use emit::Blob;
pub use select::Options;

/// Machine code of a kernel and what it needs.
#[derive(Clone, Debug)]
pub struct Code {
    /// Bytes, entry and map.
    pub blob: Blob,
    /// Scratch memory per worker in bytes.
    pub scratch_bytes: u64,
    /// Whether any store goes past the caches.
    pub streams: bool,
}

/// Compiles a kernel.
///
/// The code is a function `extern "sysv64" fn(args: *const u64, first: u64, end: u64, scratch:
/// *mut u8)` that runs the groups `first .. end` in linear order: `args` holds a pointer per
/// buffer and a 64-bit word per number, `scratch` is aligned to 64 bytes.
///
/// # Errors
/// [`CpuError::Unsupported`] names a construct without code; [`CpuError::Malformed`] means that
/// the kernel doesn't validate (checked in debug builds only).
pub fn compile(kernel: &Kernel, options: Options) -> Result<Code, CpuError> {
    if cfg!(debug_assertions)
        && let Err(errors) = tilewright_kernel::validate::validate(kernel)
    {
        let first = errors.first().map(ToString::to_string).unwrap_or_default();
        return Err(CpuError::malformed(format!("{}: {first}", kernel.name)));
    }
    let select::Selected { lir, scratch_bytes, streams } =
        select::Select::new(kernel, options)?.run()?;
    Ok(Code { blob: emit::encode(&lir, options.isa)?, scratch_bytes, streams })
}
