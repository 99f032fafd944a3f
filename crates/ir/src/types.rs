//! Element types and their arithmetic facts.

use std::fmt;
use std::str::FromStr;

/// The type of one element.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// 32-bit two's complement integer (indices, labels, masks).
    I32,
    /// The result of a comparison. Never stored in a tensor.
    Bool,
}

impl DType {
    /// Every type that a tensor may hold.
    pub const TENSOR: [DType; 5] = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32];

    /// Size of one element in bytes; 0 for [`DType::Bool`], which has no storage.
    pub fn bytes(self) -> u64 {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::F64 => 8,
            DType::F16 | DType::BF16 => 2,
            DType::Bool => 0,
        }
    }

    /// Whether the type is a floating-point type.
    pub fn is_float(self) -> bool {
        !matches!(self, DType::I32 | DType::Bool)
    }

    /// The unit roundoff `u`: half the distance from 1 to the next value; 0 for exact types.
    pub fn unit_roundoff(self) -> f64 {
        match self {
            DType::F32 => f64::powi(2.0, -24),
            DType::F64 => f64::powi(2.0, -53),
            DType::F16 => f64::powi(2.0, -11),
            DType::BF16 => f64::powi(2.0, -8),
            DType::I32 | DType::Bool => 0.0,
        }
    }

    /// The type in which sums of this type are accumulated: f16 and bf16 widen to f32.
    pub fn accumulator(self) -> DType {
        match self {
            DType::F16 | DType::BF16 => DType::F32,
            other => other,
        }
    }

    /// Rounds `x` to the nearest value of this type, ties to even, in one step.
    ///
    /// For I32 the value is truncated toward zero and saturated (NaN becomes 0), as Rust's `as`;
    /// for Bool, nonzero becomes 1.
    pub fn round(self, x: f64) -> f64 {
        match self {
            DType::F64 => x,
            DType::F32 => x as f32 as f64,
            DType::F16 => half::f16::from_f64(x).to_f64(),
            DType::BF16 => half::bf16::from_f64(x).to_f64(),
            DType::I32 => x as i32 as f64,
            DType::Bool => (x != 0.0) as u8 as f64,
        }
    }

    /// The name used in text forms, on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I32 => "i32",
            DType::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no element type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype `{0}`: use f32, f64, f16, bf16 or i32")]
pub struct UnknownDType(pub String);

impl FromStr for DType {
    type Err = UnknownDType;
    fn from_str(s: &str) -> Result<Self, UnknownDType> {
        DType::TENSOR
            .into_iter()
            .chain([DType::Bool])
            .find(|d| d.name() == s)
            .ok_or_else(|| UnknownDType(s.to_string()))
    }
}
