//! Launch arguments.

/// The value of one kernel argument at launch.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ArgValue {
    /// A buffer: its first element and its length. The element type is the kernel argument's.
    Buffer {
        /// Address of the element at index 0, in the memory that the device's kernels use.
        ptr: *mut u8,
        /// Bytes that may be touched from `ptr` on.
        bytes: usize,
    },
    /// A number argument of index or i32 type.
    Index(i64),
    /// A number argument of a float type, already rounded to that type.
    Float(f64),
}

impl ArgValue {
    /// The 64-bit word that compiled code receives for a number argument of the given type: an
    /// index sign-extended, an f32 in the low half, 16-bit floats in the low quarter. A buffer
    /// gives its address.
    pub fn word(self, dtype: Option<tilewright_ir::DType>) -> u64 {
        use tilewright_ir::DType;
        let number = match self {
            ArgValue::Buffer { ptr, .. } => return ptr as u64,
            ArgValue::Index(i) if dtype.is_none_or(|d| !d.is_float()) => return i as u64,
            ArgValue::Index(i) => i as f64,
            ArgValue::Float(x) => x,
        };
        match dtype {
            Some(DType::F64) => number.to_bits(),
            Some(DType::F32) => u64::from((number as f32).to_bits()),
            Some(DType::F16) => u64::from(half::f16::from_f64(number).to_bits()),
            Some(DType::BF16) => u64::from(half::bf16::from_f64(number).to_bits()),
            Some(DType::I32 | DType::Bool) | None => number as i64 as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ArgValue;
    use tilewright_ir::DType;

    #[test]
    fn words_hold_the_bits_of_the_argument_type() {
        assert_eq!(ArgValue::Float(1.5).word(Some(DType::F32)), u64::from(1.5f32.to_bits()));
        assert_eq!(ArgValue::Float(1.5).word(Some(DType::F64)), 1.5f64.to_bits());
        assert_eq!(ArgValue::Float(1.0).word(Some(DType::F16)), 0x3c00);
        assert_eq!(ArgValue::Float(1.0).word(Some(DType::BF16)), 0x3f80);
        assert_eq!(ArgValue::Index(-1).word(None), u64::MAX);
        assert_eq!(ArgValue::Index(-2).word(Some(DType::I32)) as i64, -2);
        assert_eq!(ArgValue::Index(3).word(Some(DType::F32)), u64::from(3f32.to_bits()));
    }
}
