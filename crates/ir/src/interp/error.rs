//! What can go wrong in a run.

use crate::program::BindError;
use crate::types::DType;
use crate::verify::VerifyError;

/// Why a program couldn't be interpreted.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum InterpError {
    /// It breaks rules of the verifier.
    #[error("the program isn't valid: {}", .0.iter().map(|e| e.to_string()).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<VerifyError>),
    /// A dimension's value doesn't fit.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A symbolic dimension has no value.
    #[error("dimension `{name}` has no value; bind it")]
    MissingDim { name: String },
    /// A scalar has no value.
    #[error("scalar `{name}` has no value; bind it")]
    MissingScalar { name: String },
    /// A scalar's launch precondition.
    #[error("scalar `{name}` must not be 0")]
    ZeroScalar { name: String },
    /// A scalar that its dtype can't hold.
    #[error("scalar `{name}` is {value:?}, which is no {dtype} value")]
    ScalarValue { name: String, value: f64, dtype: DType },
    /// A tensor has no contents.
    #[error("tensor `{name}` has no contents; bind it")]
    MissingTensor { name: String },
    /// A name that the program doesn't have, or a tensor that is only written.
    #[error("the program has no scalar or readable tensor `{name}`")]
    UnknownName { name: String },
    /// A buffer of the wrong length.
    #[error("tensor `{name}` spans {want} elements and its buffer has {found}")]
    TensorLength { name: String, want: u64, found: u64 },
    /// An input that its dtype can't hold.
    #[error("element {offset} of `{name}` is {value:?}, which is no {dtype} value")]
    InputValue { name: String, offset: usize, value: f64, dtype: DType },
    /// A symbolic step that was bound to 0.
    #[error("index `{name}` has step 0")]
    ZeroStep { name: String },
    /// More elements or operations than a run takes.
    #[error("{what} is {amount}, over the limit of {limit}")]
    TooLarge { what: String, amount: u128, limit: u64 },
    /// An access with assumed bounds leaves its tensor.
    #[error(
        "{line}: coordinate {dim} of `{tensor}` is {position}, outside its {size} elements; add `fill` or `clip`"
    )]
    OutOfBounds { line: Place, tensor: String, dim: usize, position: i128, size: u64 },
    /// An output element is written by two stores, or twice by one.
    #[error("{line}: element {index:?} of `{tensor}` is written twice")]
    WrittenTwice { line: Place, tensor: String, index: Vec<u64> },
    /// Output elements that no store writes.
    #[error("{count} elements of `{tensor}` are never written, the first at {index:?}")]
    Hole { tensor: String, count: u64, index: Vec<u64> },
    /// Two program instances use one element of an in-out tensor.
    #[error("{line}: element {index:?} of `{tensor}` is used by two program instances")]
    Shared { line: Place, tensor: String, index: Vec<u64> },
}

/// Where an operation was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Line, or 0 for a program built in Rust.
    pub line: u32,
    /// Column.
    pub column: u32,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            0 => f.write_str("in a built program"),
            line => write!(f, "{line}:{}", self.column),
        }
    }
}
