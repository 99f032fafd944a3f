//! Broken launch preconditions.

use tilewright_ir::DType;
use tilewright_kernel::lower::OutOfBounds;
use tilewright_runtime::{MemorySpace, RuntimeError};

/// Why a launch was refused, or how it failed. Nothing ran unless it is
/// [`LaunchError::Runtime`].
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum LaunchError {
    #[error("the program has {count} {what}; a launch carries at most {limit}")]
    TooMany { what: &'static str, count: usize, limit: usize },
    #[error("{expected} tensors are wanted ({names}), {found} were given")]
    Count { expected: usize, found: usize, names: String },
    #[error("{expected} {direction} wanted ({names}), {found} given")]
    Direction { direction: &'static str, expected: usize, found: usize, names: String },
    #[error("tensor `{tensor}` holds {expected}, not {found}")]
    DType { tensor: String, expected: DType, found: DType },
    #[error("tensor `{tensor}` has {expected} dimensions, not {found}")]
    Rank { tensor: String, expected: usize, found: usize },
    #[error(
        "tensor `{tensor}`: dimension {axis}{} is {expected}, not {found}",
        dim.as_ref().map(|d| format!(" (`{d}`)")).unwrap_or_default()
    )]
    Size { tensor: String, axis: usize, dim: Option<String>, expected: u64, found: u64 },
    #[error("dimension `{dim}` must be a multiple of {divisor}, not {value}")]
    Divisor { dim: String, divisor: u64, value: u64 },
    #[error("dimension `{dim}` is at most {max}, not {value}")]
    TooLarge { dim: String, max: u64, value: u64 },
    #[error(
        "the size of dimension `{dim}` doesn't follow from the tensors: state it, or give a \
         tensor its shape"
    )]
    UnknownSize { dim: String },
    #[error(
        "tensor `{tensor}` has {len} elements, which is no whole number of {unit} elements for \
         each of `{dim}`"
    )]
    Ragged { tensor: String, dim: String, len: u64, unit: u64 },
    #[error("an access may leave its tensor: {0}")]
    OutOfBounds(#[from] OutOfBounds),
    #[error(
        "`{tensor}` is read at gathered indices without a fill: data can't be checked at a \
         launch, so give the load a fill"
    )]
    UncheckedGather { tensor: String },
    #[error("the program has no dimension `{name}` that a launch can set; it has {known}")]
    UnknownDim { name: String, known: String },
    #[error("tensor `{tensor}`: stride of dimension {axis} is {expected}, not {found}")]
    Stride { tensor: String, axis: usize, expected: u64, found: u64 },
    #[error(
        "output `{tensor}`: elements overlap, because stride {stride} of dimension {axis} is no \
         longer than what lies inside it"
    )]
    Overlap { tensor: String, axis: usize, stride: u64 },
    #[error("tensor `{tensor}` needs {needs} elements, {has} were given")]
    Length { tensor: String, needs: u64, has: u64 },
    #[error("the size of tensor `{tensor}` exceeds the address space")]
    Overflow { tensor: String },
    #[error("tensor `{tensor}` must be aligned to {align} bytes, but is at {address:#x}")]
    Misaligned { tensor: String, align: u64, address: usize },
    #[error("tensor `{tensor}` is in {found}; this code was compiled for {expected}")]
    Memory { tensor: String, expected: MemorySpace, found: MemorySpace },
    #[error(
        "tensor `{tensor}` is in host memory: a bound launch on a device takes device buffers; \
         `run` copies host tensors there and back"
    )]
    NotResident { tensor: String },
    #[error("output `{output}` overlaps `{other}` in memory")]
    Alias { output: String, other: String },
    #[error("scalar `{scalar}` must not be zero (given {value}, rounded to its type)")]
    ZeroScalar { scalar: String, value: f64 },
    #[error("scalar `{scalar}` has no value: state it")]
    MissingScalar { scalar: String },
    #[error("the program has no scalar `{name}`; it has {known}")]
    UnknownScalar { name: String, known: String },
    #[error("there is no launch to time")]
    NothingToTime,
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}
