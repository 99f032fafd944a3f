//! Elementary functions as vector code, accurate to 2 ulp over the whole range, with the limits
//! of IEEE arithmetic: NaN to NaN, exp(−∞) = 0, log(0) = −∞, log of negatives NaN, results in
//! the denormal range rounded there.
//!
//! The polynomials are weighted least-squares fits on Chebyshev nodes at 60 digits, with the
//! coefficients rounded one by one from the lowest and the rest refitted; the relative error of
//! each before rounding of the evaluation is given with it, in units of the last place of 1.

use tilewright_ir::DType;

use super::lir::{V, W};
use super::ops;
use super::select::Select;

/// (eʳ − 1 − r) / r² on ±ln 2 / 2; error 0.06·2⁻²⁴.
const EXP_F32: [f32; 5] =
    [0.499_999_88, 0.166_665_17, 0.041_669_64, 0.008_369_131, 0.001_374_655_4];

/// The same on ±ln 2 / 32, where 2^(j/16) comes from a table; error 0.03·2⁻²⁴.
const EXP_TABLE_F32: [f32; 2] = [0.500_016_6, 0.166_668_52];

/// The same for f64 on ±ln 2 / 2; error 0.05·2⁻⁵³.
#[allow(clippy::excessive_precision)]
const EXP_F64: [f64; 10] = [
    0.500_000_000_000_001_3,
    0.166_666_666_666_664_8,
    0.041_666_666_666_511_28,
    0.008_333_333_333_452_254,
    0.001_388_888_894_803_694,
    0.000_198_412_695_973_324_73,
    2.480_148_889_576_726e-5,
    2.755_750_527_879_722_6e-6,
    2.763_165_923_736_684_3e-7,
    2.502_597_381_875_425_3e-8,
];

/// (log(1 + r) − r + r²/2) / r³ on [−1/4, 1/2]; error 0.1·2⁻²⁴.
const LOG_F32: [f32; 8] = [
    0.333_334_57,
    -0.250_000_57,
    0.199_904_83,
    -0.166_485_71,
    0.144_862_5,
    -0.131_550_15,
    0.104_022_94,
    -0.044_447_72,
];

/// (log((1 + s)/(1 − s)) − 2s) / s³ in s² on s² ≤ 0.04; error 0.001·2⁻⁵³.
#[allow(clippy::excessive_precision)]
const LOG_F64: [f64; 8] = [
    0.666_666_666_666_666,
    0.400_000_000_000_566_2,
    0.285_714_285_558_462_5,
    0.222_222_242_944_276_28,
    0.181_816_659_883_940_2,
    0.153_911_087_196_263_37,
    0.131_736_451_142_112_24,
    0.138_427_873_248_877_48,
];

/// (tanh x − x) / x³ in x² on |x| < 5/8; error 0.08·2⁻²⁴.
const TANH_F32: [f32; 5] =
    [-0.333_332_78, 0.133_313_5, -0.053_733_22, 0.020_620_38, -0.005_686_102];

/// erf x / x − 1 in x² on |x| < 0.93; error 0.01·2⁻²⁴.
const ERF_SMALL: [f32; 7] = [
    0.128_379_17,
    -0.376_126_32,
    0.112_836_76,
    -0.026_858_53,
    0.005_199_139_5,
    -0.000_812_306_4,
    8.292_425e-5,
];

/// −log(erfc x) / x − 1 on 0.925 to 4; error of erf 0.02·2⁻²⁴.
const ERF_LARGE: [f32; 7] = [
    0.128_662_24,
    0.635_093_6,
    0.106_335_39,
    -0.023_849_627,
    0.003_685_150_3,
    -0.000_333_619_62,
    1.234_271_3e-5,
];

/// Comparison predicates.
const LESS: i64 = 0x11;
const EQUAL: i64 = 0x00;
const NOT_LESS: i64 = 0x05;

impl Select<'_> {
    /// A polynomial by Horner's rule, f32.
    fn poly_f32(&mut self, w: W, coefficients: &[f32], x: V) -> V {
        let mut rest = coefficients.iter().rev();
        let mut p = self.f32(rest.next().copied().unwrap_or(0.0));
        for c in rest {
            let c = self.f32(*c);
            p = self.horner(false, w, p, x, c);
        }
        p
    }

    /// A polynomial by Horner's rule, f64.
    fn poly_f64(&mut self, w: W, coefficients: &[f64], x: V) -> V {
        let mut rest = coefficients.iter().rev();
        let mut p = self.f64(rest.next().copied().unwrap_or(0.0));
        for c in rest {
            let c = self.f64(*c);
            p = self.horner(true, w, p, x, c);
        }
        p
    }

    /// exp with a table of 2^(j/16), 0 ≤ j < 16, in one register: x = n·ln 2 + r where n is a
    /// multiple of 1/16, and eˣ = 2^⌊n⌋·T·eʳ. Fewer multiply-adds than [`Self::exp_f32`], and a
    /// shorter chain.
    fn exp_by_table(&mut self, w: W, x: V) -> V {
        let (high, low) = (self.f32(89.0), self.f32(-104.0));
        let x = self.v2(ops::MINPS, w, high, x);
        let x = self.v2(ops::MAXPS, w, low, x);
        // Adding 1.5·2¹⁹ rounds to a multiple of 1/16; its four low bits are j.
        let (log2e, magic) = (self.f32(std::f32::consts::LOG2_E), self.f32(786_432.0));
        let shifted = self.v3(ops::FMADD213PS, w, x, log2e, magic);
        let table = self.konst(super::lir::Konst::Exp2);
        let t = self.v2(ops::PERMPS, w, shifted, table);
        let n = self.v2(ops::SUBPS, w, shifted, magic);
        let (ln2, ln2_low) = (self.f32(std::f32::consts::LN_2), self.f32(-1.904_654_3e-9));
        let r = self.v3(ops::FNMADD231PS, w, x, n, ln2);
        let r = self.v3(ops::FNMADD231PS, w, r, n, ln2_low);
        let one = self.f32(1.0);
        let q = self.poly_f32(w, &EXP_TABLE_F32, r);
        let q = self.horner(false, w, q, r, one);
        // T + T·r·q: the rounding of the product hardly counts.
        let scaled = self.v2(ops::MULPS, w, r, t);
        let p = self.v3(ops::FMADD213PS, w, q, scaled, t);
        // The instruction takes the floor of n.
        self.v2(ops::SCALEFPS, w, p, n)
    }

    /// exp: x = n·ln 2 + r, eʳ by polynomial, times 2ⁿ with one rounding.
    pub fn exp_f32(&mut self, w: W, x: V) -> V {
        if self.avx512() && w == W::Z {
            return self.exp_by_table(w, x);
        }
        // Beyond these the result is ∞ or 0. The instruction gives its second source for NaN.
        let (high, low) = (self.f32(89.0), self.f32(-104.0));
        let x = self.v2(ops::MINPS, w, high, x);
        let x = self.v2(ops::MAXPS, w, low, x);
        // Adding 1.5·2²³ rounds to an integer, which is then in the low bits.
        let (log2e, magic) = (self.f32(std::f32::consts::LOG2_E), self.f32(12_582_912.0));
        let shifted = self.v3(ops::FMADD213PS, w, x, log2e, magic);
        let n = self.v2(ops::SUBPS, w, shifted, magic);
        let (ln2, ln2_low) = (self.f32(std::f32::consts::LN_2), self.f32(-1.904_654_3e-9));
        let r = self.v3(ops::FNMADD231PS, w, x, n, ln2);
        let r = self.v3(ops::FNMADD231PS, w, r, n, ln2_low);
        let one = self.f32(1.0);
        let q = self.poly_f32(w, &EXP_F32, r);
        let q = self.horner(false, w, q, r, one);
        let p = self.horner(false, w, q, r, one);
        if self.avx512() {
            return self.v2(ops::SCALEFPS, w, p, n);
        }
        // 2ⁿ as a product of two powers, for n down to -150 and up to 128.
        let n = self.v2(ops::PSUBD, w, shifted, magic);
        let n1 = self.v1i(ops::PSRAD, w, n, 1);
        let n2 = self.v2(ops::PSUBD, w, n, n1);
        let bias = self.bits32(127);
        let mut result = p;
        for part in [n1, n2] {
            let biased = self.v2(ops::PADDD, w, part, bias);
            let power = self.v1i(ops::PSLLD, w, biased, 23);
            result = self.v2(ops::MULPS, w, result, power);
        }
        result
    }

    /// exp for f64.
    pub fn exp_f64(&mut self, w: W, x: V) -> V {
        let (high, low) = (self.f64(710.0), self.f64(-746.0));
        let x = self.v2(ops::MINPD, w, high, x);
        let x = self.v2(ops::MAXPD, w, low, x);
        let log2e = self.f64(std::f64::consts::LOG2_E);
        let magic = self.f64(6_755_399_441_055_744.0);
        let shifted = self.v3(ops::FMADD213PD, w, x, log2e, magic);
        let n = self.v2(ops::SUBPD, w, shifted, magic);
        let ln2 = self.f64(std::f64::consts::LN_2);
        let ln2_low = self.f64(2.319_046_813_846_299_6e-17);
        let r = self.v3(ops::FNMADD231PD, w, x, n, ln2);
        let r = self.v3(ops::FNMADD231PD, w, r, n, ln2_low);
        let one = self.f64(1.0);
        let q = self.poly_f64(w, &EXP_F64, r);
        let q = self.horner(true, w, q, r, one);
        let p = self.horner(true, w, q, r, one);
        if self.avx512() {
            return self.v2(ops::SCALEFPD, w, p, n);
        }
        // n is in the low 32 bits of each element; what is above leaves by the shift.
        let n = self.v2(ops::PSUBQ, w, shifted, magic);
        let n1 = self.v1i(ops::PSRAD, w, n, 1);
        let n2 = self.v2(ops::PSUBD, w, n, n1);
        let bias = self.konst(super::lir::Konst::B64(1023));
        let mut result = p;
        for part in [n1, n2] {
            let biased = self.v2(ops::PADDD, w, part, bias);
            let power = self.v1i(ops::PSLLQ, w, biased, 52);
            result = self.v2(ops::MULPD, w, result, power);
        }
        result
    }

    /// log: x = 2ᵏ·m with 3/4 ≤ m < 3/2.
    pub fn log_f32(&mut self, w: W, x: V) -> V {
        let (k, m) = if self.avx512() {
            // Denormals, 0, ∞ and NaN come out right by themselves; negatives become NaN.
            let e = self.v1(ops::GETEXPPS, w, x, w);
            let m = self.v1i(ops::GETMANTPS, w, x, 0x0b);
            let em = self.v1(ops::GETEXPPS, w, m, w);
            (self.v2(ops::SUBPS, w, e, em), m)
        } else {
            self.split_f32(w, x)
        };
        let one = self.f32(1.0);
        let r = self.v2(ops::SUBPS, w, m, one);
        let q = self.poly_f32(w, &LOG_F32, r);
        let r2 = self.v2(ops::MULPS, w, r, r);
        let r3 = self.v2(ops::MULPS, w, r2, r);
        // The low part of ln 2 is positive, so that k = ±∞ doesn't meet its opposite.
        let (ln2, ln2_low) = (self.f32(0.693_145_75), self.f32(1.428_606_8e-6));
        let half = self.f32(0.5);
        let tail = self.v2(ops::MULPS, w, q, r3);
        let tail = self.v3(ops::FMADD231PS, w, tail, k, ln2_low);
        let tail = self.v3(ops::FNMADD231PS, w, tail, r2, half);
        let sum = self.v2(ops::ADDPS, w, r, tail);
        let result = self.v3(ops::FMADD231PS, w, sum, k, ln2);
        if self.avx512() {
            self.log_zero(DType::F32, w, x, result)
        } else {
            self.log_limits(DType::F32, w, x, result)
        }
    }

    /// log for f64: with s = f/(2 + f), log(1 + f) = 2·atanh s.
    pub fn log_f64(&mut self, w: W, x: V) -> V {
        let (k, m) = if self.avx512() {
            let e = self.v1(ops::GETEXPPD, w, x, w);
            let m = self.v1i(ops::GETMANTPD, w, x, 0x0b);
            let em = self.v1(ops::GETEXPPD, w, m, w);
            (self.v2(ops::SUBPD, w, e, em), m)
        } else {
            self.split_f64(w, x)
        };
        let (one, two, half) = (self.f64(1.0), self.f64(2.0), self.f64(0.5));
        let f = self.v2(ops::SUBPD, w, m, one);
        let below = self.v2(ops::ADDPD, w, f, two);
        let s = self.v2(ops::DIVPD, w, f, below);
        let z = self.v2(ops::MULPD, w, s, s);
        let q = self.poly_f64(w, &LOG_F64, z);
        let q = self.v2(ops::MULPD, w, q, z);
        let f2 = self.v2(ops::MULPD, w, f, f);
        let square = self.v2(ops::MULPD, w, f2, half);
        let (ln2, ln2_low) =
            (self.f64(0.693_147_180_369_123_8), self.f64(1.908_214_929_270_587_7e-10));
        // k·ln2 − ((f²/2 − (s·(f²/2 + R) + k·low)) − f)
        let inner = self.v2(ops::ADDPD, w, square, q);
        let low = self.v2(ops::MULPD, w, k, ln2_low);
        let inner = self.v3(ops::FMADD213PD, w, inner, s, low);
        let outer = self.v2(ops::SUBPD, w, square, inner);
        let outer = self.v2(ops::SUBPD, w, outer, f);
        let top = self.v2(ops::MULPD, w, k, ln2);
        let result = self.v2(ops::SUBPD, w, top, outer);
        if self.avx512() {
            self.log_zero(DType::F64, w, x, result)
        } else {
            self.log_limits(DType::F64, w, x, result)
        }
    }

    /// log(−0) is −∞ too, which the mantissa of a negative doesn't give.
    fn log_zero(&mut self, dtype: DType, w: W, x: V, result: V) -> V {
        let double = dtype == DType::F64;
        let (zero, least) = if double {
            (self.f64(0.0), self.f64(f64::NEG_INFINITY))
        } else {
            (self.f32(0.0), self.f32(f32::NEG_INFINITY))
        };
        let bytes = dtype.bytes() as u32;
        let is_zero = self.compare_floats(dtype, w, x, zero, EQUAL);
        self.blend_parts(bytes, w, is_zero, least, result)
    }

    /// log of 0, negatives, ∞ and NaN.
    fn log_limits(&mut self, dtype: DType, w: W, x: V, result: V) -> V {
        let double = dtype == DType::F64;
        let bytes = dtype.bytes() as u32;
        let pick = |select: &mut Self, value: f64| {
            if double { select.f64(value) } else { select.f32(value as f32) }
        };
        let (zero, top) = (pick(self, 0.0), pick(self, f64::INFINITY));
        let nan = pick(self, f64::NAN);
        let negative = self.compare_floats(dtype, w, x, zero, LESS);
        let result = self.blend_parts(bytes, w, negative, nan, result);
        let result = self.log_zero(dtype, w, x, result);
        let large = self.compare_floats(dtype, w, x, top, NOT_LESS);
        self.blend_parts(bytes, w, large, x, result)
    }

    /// Exponent as a float, and mantissa in [3/4, 3/2), of positive finite numbers.
    fn split_f32(&mut self, w: W, x: V) -> (V, V) {
        let (least, scale) = (self.f32(f32::MIN_POSITIVE), self.f32(8_388_608.0));
        let (shift, zero) = (self.f32(-23.0), self.f32(0.0));
        let tiny = self.compare_floats(DType::F32, w, x, least, LESS);
        let scaled = self.v2(ops::MULPS, w, x, scale);
        let x = self.blend_parts(4, w, tiny, scaled, x);
        let adjust = self.blend_parts(4, w, tiny, shift, zero);
        let start = self.f32(0.75);
        let t = self.v2(ops::PSUBD, w, x, start);
        let k = self.v1i(ops::PSRAD, w, t, 23);
        let power = self.v1i(ops::PSLLD, w, k, 23);
        let m = self.v2(ops::PSUBD, w, x, power);
        let k = self.v1(ops::CVTDQ2PS, w, k, w);
        (self.v2(ops::ADDPS, w, k, adjust), m)
    }

    /// The same for f64.
    fn split_f64(&mut self, w: W, x: V) -> (V, V) {
        use super::lir::Konst;
        let (least, scale) = (self.f64(f64::MIN_POSITIVE), self.f64(4_503_599_627_370_496.0));
        let (shift, zero) = (self.f64(-52.0), self.f64(0.0));
        let tiny = self.compare_floats(DType::F64, w, x, least, LESS);
        let scaled = self.v2(ops::MULPD, w, x, scale);
        let x = self.blend_parts(8, w, tiny, scaled, x);
        let adjust = self.blend_parts(8, w, tiny, shift, zero);
        let start = self.f64(0.75);
        let t = self.v2(ops::PSUBQ, w, x, start);
        let high = self.konst(Konst::B64(0xfff0_0000_0000_0000));
        let power = self.v2(ops::ANDPS, w, t, high);
        let m = self.v2(ops::PSUBQ, w, x, power);
        // k + 2048 in the low bits of 2⁵², from which both are subtracted.
        let sign = self.f64(-0.0);
        let t = self.v2(ops::XORPS, w, t, sign);
        let biased = self.v1i(ops::PSRLQ, w, t, 52);
        let magic = self.f64(4_503_599_627_370_496.0);
        let k = self.v2(ops::ORPS, w, biased, magic);
        let both = self.f64(4_503_599_627_370_496.0 + 2048.0);
        let k = self.v2(ops::SUBPD, w, k, both);
        (self.v2(ops::ADDPD, w, k, adjust), m)
    }

    /// `magnitude` with the sign of `x`.
    fn with_sign(&mut self, w: W, magnitude: V, x: V) -> V {
        let sign = self.f32(-0.0);
        let sign = self.v2(ops::ANDPS, w, x, sign);
        self.v2(ops::ORPS, w, magnitude, sign)
    }

    fn abs_f32(&mut self, w: W, x: V) -> V {
        let sign = self.f32(-0.0);
        self.v2(ops::ANDNPS, w, sign, x)
    }

    /// tanh: a polynomial near 0, else 1 − 2/(e²ˣ + 1).
    pub fn tanh_f32(&mut self, w: W, x: V) -> V {
        let a = self.abs_f32(w, x);
        let (one, two, edge) = (self.f32(1.0), self.f32(2.0), self.f32(0.625));
        let twice = self.v2(ops::ADDPS, w, a, a);
        let e = self.exp_f32(w, twice);
        let below = self.v2(ops::ADDPS, w, e, one);
        let part = self.v2(ops::DIVPS, w, two, below);
        let large = self.v2(ops::SUBPS, w, one, part);
        let z = self.v2(ops::MULPS, w, a, a);
        let q = self.poly_f32(w, &TANH_F32, z);
        let z = self.v2(ops::MULPS, w, z, a);
        let small = self.horner(false, w, q, z, a);
        let near = self.compare_floats(DType::F32, w, a, edge, LESS);
        let magnitude = self.blend_parts(4, w, near, small, large);
        self.with_sign(w, magnitude, x)
    }

    /// erf: a polynomial near 0, else 1 − exp(−x·(1 + q(x))).
    pub fn erf_f32(&mut self, w: W, x: V) -> V {
        let a = self.abs_f32(w, x);
        let (one, edge, top) = (self.f32(1.0), self.f32(0.93), self.f32(4.0));
        let t = self.v2(ops::MINPS, w, top, a);
        let q = self.poly_f32(w, &ERF_LARGE, t);
        let h = self.horner(false, w, q, t, t);
        let sign = self.f32(-0.0);
        let minus = self.v2(ops::XORPS, w, h, sign);
        let e = self.exp_f32(w, minus);
        let large = self.v2(ops::SUBPS, w, one, e);
        let z = self.v2(ops::MULPS, w, a, a);
        let q = self.poly_f32(w, &ERF_SMALL, z);
        let small = self.horner(false, w, q, a, a);
        let near = self.compare_floats(DType::F32, w, a, edge, LESS);
        let magnitude = self.blend_parts(4, w, near, small, large);
        self.with_sign(w, magnitude, x)
    }
}
