//! f32 exponential, logarithm, hyperbolic tangent and error function from PTX primitives.
//!
//! Range reductions are exact or in two parts, so that each stays within a few units in the last
//! place of the true value over its whole range; `ex2.approx` and `lg2.approx` have an error of
//! about 2^-22 relative (PTX ISA, "ex2", "lg2") on the reduced ranges used here.

use super::emitter::{Class, Emitter, Reg};

fn f(v: f64) -> String {
    format!("0f{:08X}", (v as f32).to_bits())
}

impl Emitter<'_> {
    fn f32_op(&mut self, name: &str, args: &[String]) -> Reg {
        let out = self.reg(Class::F32);
        self.inst(format_args!("{name} {out}, {}", args.join(", ")));
        out
    }

    fn fma32(&mut self, a: &str, b: &str, c: &str) -> Reg {
        self.f32_op("fma.rn.f32", &[a.into(), b.into(), c.into()])
    }

    fn mul32(&mut self, a: &str, b: &str) -> Reg {
        self.f32_op("mul.rn.f32", &[a.into(), b.into()])
    }

    /// Horner's rule, highest coefficient first.
    fn polynomial(&mut self, x: Reg, coefficients: &[f64]) -> Reg {
        let mut acc = f(coefficients[0]);
        let mut reg = x;
        for c in &coefficients[1..] {
            reg = self.fma32(&acc, &x.to_string(), &f(*c));
            acc = reg.to_string();
        }
        reg
    }

    /// e^x = 2^n·2^f with n = ⌊x·log₂e⌋ held to −126 … 126 and f the rest: 2^f by `ex2`, 2^n from
    /// its exponent bits. One special-function instruction among eight; about 2 units in the last
    /// place over the whole range, subnormal results rounded once more.
    ///
    /// n comes from a saturated product, which maps x·log₂e = −126 … 126 to 0 … 1 and takes
    /// infinities and NaN to an end, so that n is finite for every x; f has the same special value
    /// as x, and 2^f then is 0, ∞ or NaN. Beyond the range of n, f leaves [0, 1) and `ex2` covers
    /// the rest: down to 2^-24 below 2^-126, up to ∞ above 2^127.
    pub(super) fn exp_f32(&mut self, x: Reg) -> Reg {
        let x = x.to_string();
        let log2e = std::f64::consts::LOG2_E;
        let high = f64::from(log2e as f32);
        // 1.5·2^23 + 1: added to a number of 0 … 252 it leaves the floor, plus one, in the low bits.
        let magic = 12_582_913.0;
        let part = self.f32_op("fma.rn.sat.f32", &[x.clone(), f(log2e / 252.0), f(0.5)]);
        let shifted = self.f32_op("fma.rm.f32", &[part.to_string(), f(252.0), f(magic)]);
        let n = self.f32_op("add.rn.f32", &[shifted.to_string(), f(-magic - 126.0)]);
        let minus = self.f32_op("neg.f32", &[n.to_string()]);
        let rest = self.fma32(&x, &f(high), &minus.to_string());
        let rest = self.fma32(&x, &f(log2e - high), &rest.to_string());
        let power = self.f32_op("ex2.approx.ftz.f32", &[rest.to_string()]);
        // n + 127 in the exponent's place.
        let (bits, exponent, scale) =
            (self.reg(Class::B32), self.reg(Class::B32), self.reg(Class::F32));
        self.inst(format_args!("mov.b32 {bits}, {shifted}"));
        self.inst(format_args!("shl.b32 {exponent}, {bits}, 23"));
        self.inst(format_args!("mov.b32 {scale}, {exponent}"));
        self.mul32(&power.to_string(), &scale.to_string())
    }

    /// e^x = (2^(x·log₂e/2))² for results that are rounded to bf16 in the end: three instructions.
    /// Neither factor leaves the range of normal numbers where the square doesn't round to 0 or ∞.
    ///
    /// The error is at most (1.25·|x| + 12)·2^-24, so 122·2^-24 for results in range. The rounding
    /// to bf16 adds at most half a step, which at a midpoint between two numbers, the worst place,
    /// is 2^-8 of the binade's lower end and so at least 256·2^-24 less than the 2^-8 of the
    /// result that the tolerance of a bf16 output has for it.
    pub(super) fn exp_coarse(&mut self, x: Reg) -> Reg {
        let half = self.mul32(&x.to_string(), &f(std::f64::consts::LOG2_E / 2.0));
        let root = self.f32_op("ex2.approx.ftz.f32", &[half.to_string()]);
        self.mul32(&root.to_string(), &root.to_string())
    }

    /// ln x. x = m·2^e with m in [⅔, 4/3); ln x = e·ln 2 + 2·atanh(s), s = (m−1)/(m+1), by its
    /// series in s² (|s| ≤ 0.2). Subnormals are scaled up first.
    pub(super) fn log_f32(&mut self, x: Reg) -> Reg {
        let tiny = self.reg(Class::Pred);
        self.inst(format_args!("setp.lt.f32 {tiny}, {x}, {}", f(f64::powi(2.0, -126))));
        let up = self.mul32(&x.to_string(), &f(f64::powi(2.0, 24)));
        let scaled = self.reg(Class::F32);
        self.inst(format_args!("selp.f32 {scaled}, {up}, {x}, {tiny}"));
        let bias = self.reg(Class::F32);
        self.inst(format_args!("selp.f32 {bias}, {}, {}, {tiny}", f(-24.0), f(0.0)));
        let (bits, off, exponent, mantissa) = (
            self.reg(Class::B32),
            self.reg(Class::B32),
            self.reg(Class::B32),
            self.reg(Class::B32),
        );
        self.inst(format_args!("mov.b32 {bits}, {scaled}"));
        // 0x3f2aaaab is ⅔: the exponent of m/⅔ is the wanted e.
        self.inst(format_args!("sub.s32 {off}, {bits}, 0x3f2aaaab"));
        self.inst(format_args!("and.b32 {exponent}, {off}, 0xff800000"));
        self.inst(format_args!("sub.s32 {mantissa}, {bits}, {exponent}"));
        let m = self.reg(Class::F32);
        self.inst(format_args!("mov.b32 {m}, {mantissa}"));
        let e = self.reg(Class::F32);
        self.inst(format_args!("cvt.rn.f32.s32 {e}, {exponent}"));
        let e = self.fma32(&e.to_string(), &f(f64::powi(2.0, -23)), &bias.to_string());
        let num = self.f32_op("sub.rn.f32", &[m.to_string(), f(1.0)]);
        let den = self.f32_op("add.rn.f32", &[m.to_string(), f(1.0)]);
        let s = self.f32_op("div.rn.f32", &[num.to_string(), den.to_string()]);
        let s2 = self.mul32(&s.to_string(), &s.to_string());
        // ln m = num − s·(num − 2·s²·P) keeps the leading term exact (num = m − 1 is exact).
        let series = self.polynomial(s2, &[2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0]);
        let tail = self.mul32(&series.to_string(), &s2.to_string());
        let inner = self.f32_op("sub.rn.f32", &[num.to_string(), tail.to_string()]);
        let minus = self.f32_op("neg.f32", &[s.to_string()]);
        let ln_m = self.fma32(&minus.to_string(), &inner.to_string(), &num.to_string());
        let ln2_hi = 0.693_359_375_f64; // 9 bits: e·ln2_hi is exact
        let low =
            self.fma32(&e.to_string(), &f(std::f64::consts::LN_2 - ln2_hi), &ln_m.to_string());
        let y = self.fma32(&e.to_string(), &f(ln2_hi), &low.to_string());
        // 0 gives −∞, negatives and NaN give NaN, ∞ gives ∞.
        let (zero, finite, out, out2, negative) = (
            self.reg(Class::Pred),
            self.reg(Class::Pred),
            self.reg(Class::F32),
            self.reg(Class::F32),
            self.reg(Class::Pred),
        );
        self.inst(format_args!("setp.lt.f32 {finite}, {x}, {}", f(f64::INFINITY)));
        self.inst(format_args!("selp.f32 {out}, {y}, {x}, {finite}"));
        self.inst(format_args!("setp.lt.f32 {negative}, {x}, {}", f(0.0)));
        self.inst(format_args!("selp.f32 {out2}, 0f7FC00000, {out}, {negative}"));
        self.inst(format_args!("setp.eq.f32 {zero}, {x}, {}", f(0.0)));
        let out3 = self.reg(Class::F32);
        self.inst(format_args!("selp.f32 {out3}, {}, {out2}, {zero}", f(f64::NEG_INFINITY)));
        out3
    }

    /// tanh x: an odd series below 0.4, else 1 − 2/(e^(2|x|) + 1) with the sign of x.
    pub(super) fn tanh_f32(&mut self, x: Reg) -> Reg {
        let magnitude = self.f32_op("abs.f32", &[x.to_string()]);
        let double = self.f32_op("add.rn.f32", &[magnitude.to_string(), magnitude.to_string()]);
        let e = self.exp_f32(double);
        let den = self.f32_op("add.rn.f32", &[e.to_string(), f(1.0)]);
        let quotient = self.f32_op("div.rn.f32", &[f(-2.0), den.to_string()]);
        let large = self.f32_op("add.rn.f32", &[quotient.to_string(), f(1.0)]);
        let signed = self.f32_op("copysign.f32", &[x.to_string(), large.to_string()]);
        let x2 = self.mul32(&x.to_string(), &x.to_string());
        // Taylor coefficients of tanh(x)/x in x².
        let series = self.polynomial(
            x2,
            &[
                21_844.0 / 6_081_075.0,
                -1382.0 / 155_925.0,
                62.0 / 2835.0,
                -17.0 / 315.0,
                2.0 / 15.0,
                -1.0 / 3.0,
            ],
        );
        let tail = self.mul32(&series.to_string(), &x2.to_string());
        let small = self.fma32(&tail.to_string(), &x.to_string(), &x.to_string());
        let (is_small, out) = (self.reg(Class::Pred), self.reg(Class::F32));
        self.inst(format_args!("setp.lt.f32 {is_small}, {magnitude}, {}", f(0.4)));
        self.inst(format_args!("selp.f32 {out}, {small}, {signed}, {is_small}"));
        out
    }

    /// erf x: below 1 the odd Maclaurin series (11 terms: 1e-9), else 1 − erfc x with
    /// erfc x = t·e^(−x² + P(t)), t = 1/(1 + x/2), P the Chebyshev fit of Numerical Recipes
    /// (relative error 1.2e-7 of erfc, so below 2e-8 of erf there).
    pub(super) fn erf_f32(&mut self, x: Reg) -> Reg {
        let magnitude = self.f32_op("abs.f32", &[x.to_string()]);
        let x2 = self.mul32(&x.to_string(), &x.to_string());
        let mut coefficients = Vec::new();
        let mut factorial = 1.0f64;
        for n in 0..11 {
            if n > 0 {
                factorial *= f64::from(n);
            }
            let sign = if n % 2 == 0 { 1.0 } else { -1.0 };
            coefficients
                .push(std::f64::consts::FRAC_2_SQRT_PI * sign / (factorial * f64::from(2 * n + 1)));
        }
        coefficients.reverse();
        let series = self.polynomial(x2, &coefficients);
        let small = self.mul32(&series.to_string(), &x.to_string());
        let half = self.fma32(&magnitude.to_string(), &f(0.5), &f(1.0));
        let t = self.f32_op("div.rn.f32", &[f(1.0), half.to_string()]);
        let exponent = self.polynomial(
            t,
            &[
                0.170_872_77,
                -0.822_152_23,
                1.488_515_87,
                -1.135_203_98,
                0.278_868_07,
                -0.186_288_06,
                0.096_784_18,
                0.374_091_96,
                1.000_023_68,
                -1.265_512_23,
            ],
        );
        let minus = self.f32_op("neg.f32", &[x2.to_string()]);
        let sum = self.f32_op("add.rn.f32", &[minus.to_string(), exponent.to_string()]);
        let e = self.exp_f32(sum);
        let erfc = self.mul32(&t.to_string(), &e.to_string());
        let large = self.f32_op("sub.rn.f32", &[f(1.0), erfc.to_string()]);
        let signed = self.f32_op("copysign.f32", &[x.to_string(), large.to_string()]);
        let (is_small, out) = (self.reg(Class::Pred), self.reg(Class::F32));
        self.inst(format_args!("setp.lt.f32 {is_small}, {magnitude}, {}", f(1.0)));
        self.inst(format_args!("selp.f32 {out}, {small}, {signed}, {is_small}"));
        out
    }
}
