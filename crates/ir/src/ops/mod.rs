//! The op library: ordinary tile programs, built with [`crate::builder::ProgramBuilder`].
//!
//! Every function gives the *generic* program: sizes are symbolic dimensions, blocks are block
//! dimensions. [`Program::bind`](crate::Program::bind) fixes what a plan needs fixed (columns,
//! N, K); rows, M and batch may stay symbolic, so that one kernel serves every value.
//! [`catalog()`] lists the ops by name and builds them from a request.
//!
//! What holds for every op:
//!
//! - f16 and bf16 are widened to f32 right after the load, everything is computed in f32, and the
//!   result is rounded once, right before the store. f32 and f64 compute in their own type.
//! - NaN in gives NaN out. `max` propagates NaN.
//! - Empty sizes are legal: an empty row has sum 0, max −∞ and mean NaN; K = 0 gives beta·C.
//! - Division is division: `x / s` isn't turned into `x · (1/s)`.

pub mod activation;
pub mod catalog;
pub mod elementwise;
pub mod gemm;
pub mod gemv;
pub mod loss;
pub mod norm;
pub mod reduction;
pub mod rows;
pub mod softmax;

pub use catalog::{OpInfo, OpRequest, ShapeForm, build, catalog, find, parse_shape};
pub use elementwise::{add, chain, gelu, gelu_residual, mul, relu, silu, swiglu};
pub use gemm::{EpilogueStep, Factor, GemmSpec, Trans, gemm};
pub use gemv::gemv;
pub use loss::cross_entropy;
pub use norm::{layernorm, residual_layernorm, rmsnorm};
pub use reduction::{row_max, row_mean, row_sum};
pub use rows::RowSpec;
pub use softmax::{causal_softmax, log_softmax, masked_softmax, softmax};

use crate::program::BindError;
use crate::types::DType;

/// The largest size of a symbolic dimension: 2^31 − 1, so that sizes and positions fit in i32.
pub const MAX_SIZE: u64 = i32::MAX as u64;

/// The constant under the square root of the norms.
pub const NORM_EPS: f64 = 1e-5;

/// A request that the op library can't serve.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum OpError {
    /// No op of that name.
    #[error("unknown op `{name}`: the ops are {known}")]
    Unknown { name: String, known: String },
    /// The op isn't defined for the dtype.
    #[error("`{op}` has no {dtype} form: use {supported}")]
    Dtype { op: String, dtype: DType, supported: String },
    /// The output dtype doesn't go with the input dtype.
    #[error("`{op}` can't store {output} from {dtype} inputs: use {supported}")]
    Output { op: String, dtype: DType, output: DType, supported: String },
    /// The shape text is malformed.
    #[error("malformed shape `{text}`: {reason}; write sizes joined by `x`, as in 37x1537")]
    ShapeText { text: String, reason: String },
    /// The shape has the wrong number of sizes.
    #[error("`{op}` takes a shape {form}, not {got} sizes")]
    ShapeLength { op: String, form: &'static str, got: usize },
    /// A size doesn't fit the op.
    #[error(transparent)]
    Size(#[from] BindError),
    /// The op doesn't know the option.
    #[error("`{op}` takes no {option}")]
    Option { op: String, option: &'static str },
    /// A name of a transposition or an epilogue step is unknown.
    #[error("unknown {what} `{text}`: use {known}")]
    Name { what: &'static str, text: String, known: &'static str },
    /// A factor isn't finite.
    #[error("{name} must be finite, not {value}")]
    Factor { name: &'static str, value: f64 },
}

/// The types that the library's ops compute on.
pub const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// Checks that an op on floats got a float.
pub(crate) fn require_float(op: &str, dtype: DType) -> Result<(), OpError> {
    if dtype.is_float() {
        return Ok(());
    }
    let supported = FLOATS.map(|d| d.name()).join(", ");
    Err(OpError::Dtype { op: op.to_string(), dtype, supported })
}
