//! Operations without vector code: plain functions on arrays of lanes, called from generated
//! code. They use the `libm` crate, so results are the same on every machine.

use tilewright_ir::DType;
use tilewright_ir::program::MapOp;

/// An operation that is done by a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Helper {
    ModF32,
    ModF64,
    DivI32,
    ModI32,
    DivIndex,
    ModIndex,
    TanhF64,
    ErfF64,
    F64ToF16,
    F64ToBf16,
    I32ToBf16,
    IndexToF32,
    IndexToF64,
    F32ToIndex,
    F64ToIndex,
}

impl Helper {
    /// The helper for an elementwise operation, if it needs one.
    pub fn for_op(op: MapOp, dtype: DType) -> Option<Helper> {
        Some(match (op, dtype) {
            (MapOp::Mod, DType::F32) => Helper::ModF32,
            (MapOp::Mod, DType::F64) => Helper::ModF64,
            (MapOp::Div, DType::I32) => Helper::DivI32,
            (MapOp::Mod, DType::I32) => Helper::ModI32,
            (MapOp::Tanh, DType::F64) => Helper::TanhF64,
            (MapOp::Erf, DType::F64) => Helper::ErfF64,
            _ => return None,
        })
    }

    /// The helper for an operation on indices per lane, if it needs one.
    pub fn for_index(op: MapOp) -> Option<Helper> {
        match op {
            MapOp::Div => Some(Helper::DivIndex),
            MapOp::Mod => Some(Helper::ModIndex),
            _ => None,
        }
    }

    /// Bytes of one element of an operand.
    pub fn operand_bytes(self) -> u32 {
        match self {
            Helper::ModF32 | Helper::DivI32 | Helper::ModI32 => 4,
            Helper::I32ToBf16 | Helper::F32ToIndex => 4,
            _ => 8,
        }
    }

    /// Bytes of one element of the result.
    pub fn result_bytes(self) -> u32 {
        match self {
            Helper::F64ToF16 | Helper::F64ToBf16 | Helper::I32ToBf16 => 2,
            Helper::ModF32 | Helper::DivI32 | Helper::ModI32 | Helper::IndexToF32 => 4,
            _ => 8,
        }
    }
}

/// Defines `extern "sysv64" fn name(dst, a, b, n)` that applies a function per element.
macro_rules! lanes {
    ($($name:ident: fn($a:ident: $ta:ty, $b:ident: $tb:ty) -> $to:ty = $body:expr;)*) => {
        $(
            /// # Safety
            /// `dst`, `a` and `b` hold `n` elements each.
            unsafe extern "sysv64" fn $name(dst: *mut $to, a: *const $ta, b: *const $tb, n: usize) {
                for i in 0..n {
                    // SAFETY: the caller gives arrays of n elements; unaligned access because
                    // frame objects promise no alignment to these types.
                    unsafe {
                        let $a = a.add(i).read_unaligned();
                        let $b = b.add(i).read_unaligned();
                        dst.add(i).write_unaligned($body);
                    }
                }
            }
        )*
    };
}

lanes! {
    mod_f32: fn(a: f32, b: f32) -> f32 = libm::fmodf(a, b);
    mod_f64: fn(a: f64, b: f64) -> f64 = libm::fmod(a, b);
    div_i32: fn(a: i32, b: i32) -> i32 = if b == 0 { 0 } else { a.wrapping_div(b) };
    mod_i32: fn(a: i32, b: i32) -> i32 = if b == 0 { 0 } else { a.wrapping_rem(b) };
    div_index: fn(a: i64, b: i64) -> i64 = if b == 0 { 0 } else { a.wrapping_div(b) };
    mod_index: fn(a: i64, b: i64) -> i64 = if b == 0 { 0 } else { a.wrapping_rem(b) };
    tanh_f64: fn(a: f64, _b: f64) -> f64 = libm::tanh(a);
    erf_f64: fn(a: f64, _b: f64) -> f64 = libm::erf(a);
    f64_to_f16: fn(a: f64, _b: f64) -> half::f16 = half::f16::from_f64(a);
    f64_to_bf16: fn(a: f64, _b: f64) -> half::bf16 = half::bf16::from_f64(a);
    i32_to_bf16: fn(a: i32, _b: i32) -> half::bf16 = half::bf16::from_f64(f64::from(a));
    index_to_f32: fn(a: i64, _b: i64) -> f32 = a as f32;
    index_to_f64: fn(a: i64, _b: i64) -> f64 = a as f64;
    f32_to_index: fn(a: f32, _b: f32) -> i64 = a as i64;
    f64_to_index: fn(a: f64, _b: f64) -> i64 = a as i64;
}

/// Address of a helper in this process.
pub fn address(which: Helper) -> u64 {
    let pointer = match which {
        Helper::ModF32 => mod_f32 as *const (),
        Helper::ModF64 => mod_f64 as *const (),
        Helper::DivI32 => div_i32 as *const (),
        Helper::ModI32 => mod_i32 as *const (),
        Helper::DivIndex => div_index as *const (),
        Helper::ModIndex => mod_index as *const (),
        Helper::TanhF64 => tanh_f64 as *const (),
        Helper::ErfF64 => erf_f64 as *const (),
        Helper::F64ToF16 => f64_to_f16 as *const (),
        Helper::F64ToBf16 => f64_to_bf16 as *const (),
        Helper::I32ToBf16 => i32_to_bf16 as *const (),
        Helper::IndexToF32 => index_to_f32 as *const (),
        Helper::IndexToF64 => index_to_f64 as *const (),
        Helper::F32ToIndex => f32_to_index as *const (),
        Helper::F64ToIndex => f64_to_index as *const (),
    };
    pointer as u64
}
