//! Functions that the text calls and Metal doesn't have as the kernel means them. Only those that
//! a kernel uses are in its module.

/// A helper function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Helper {
    /// Integer division or remainder that is 0 where the divisor is.
    Divide {
        /// `long`, not `int`.
        wide: bool,
        /// Quotient, not remainder.
        division: bool,
    },
    /// The lesser of two floats, NaN if either is.
    Min,
    /// The greater of two floats, NaN if either is.
    Max,
    /// `simd_min` that keeps NaN.
    SimdMin,
    /// `simd_max` that keeps NaN.
    SimdMax,
    /// Float to integer, toward zero, saturating; NaN gives 0.
    ToInt,
    /// Float to 64-bit integer, likewise.
    ToLong,
    /// The magnitude of an integer, that of the smallest being itself.
    Abs,
    /// The error function.
    Erf,
}

impl Helper {
    /// Its name in the text.
    pub(super) fn name(self) -> &'static str {
        match self {
            Helper::Divide { wide: true, division: true } => "tw_div",
            Helper::Divide { wide: true, division: false } => "tw_rem",
            Helper::Divide { wide: false, division: true } => "tw_div32",
            Helper::Divide { wide: false, division: false } => "tw_rem32",
            Helper::Min => "tw_min",
            Helper::Max => "tw_max",
            Helper::SimdMin => "tw_simd_min",
            Helper::SimdMax => "tw_simd_max",
            Helper::ToInt => "tw_int",
            Helper::ToLong => "tw_long",
            Helper::Abs => "tw_abs",
            Helper::Erf => "tw_erf",
        }
    }

    /// Its text.
    pub(super) fn text(self) -> String {
        match self {
            // A quotient by -1 is a difference, which wraps where the quotient overflows.
            Helper::Divide { wide, division } => {
                let (int, uint) = if wide { ("long", "ulong") } else { ("int", "uint") };
                let (minus, sign) = if division {
                    (format!("{int}({uint}(0) - {uint}(a))"), '/')
                } else {
                    ("0".into(), '%')
                };
                format!(
                    "inline {int} {}({int} a, {int} b) {{\n    return b == 0 ? 0 : b == -1 ? {minus} : a {sign} b;\n}}\n",
                    self.name()
                )
            }
            Helper::Min | Helper::Max => {
                let f = if self == Helper::Min { "fmin" } else { "fmax" };
                format!(
                    "// NaN if either is.\ninline float {}(float a, float b) {{\n    return isnan(a) || isnan(b) ? NAN : {f}(a, b);\n}}\n",
                    self.name()
                )
            }
            Helper::SimdMin | Helper::SimdMax => {
                let f = if self == Helper::SimdMin { "simd_min" } else { "simd_max" };
                format!(
                    "// {f} passes over NaN; here a NaN of any lane is the result.\ninline float {}(float x) {{\n    const float extremum = {f}(x);\n    return simd_any(isnan(x)) ? NAN : extremum;\n}}\n",
                    self.name()
                )
            }
            // 2147483520 is the float below 2^31, 2^63 - 2^39 that below 2^63.
            Helper::ToInt => format!(
                "inline int {}(float x) {{\n    return isnan(x) ? 0 : x >= 2147483648.0f ? 2147483647 : x < -2147483648.0f ? -2147483647 - 1 : int(x);\n}}\n",
                self.name()
            ),
            Helper::ToLong => format!(
                "inline long {}(float x) {{\n    return isnan(x) ? 0L : x >= 9223372036854775808.0f ? 9223372036854775807L : x < -9223372036854775808.0f ? -9223372036854775807L - 1L : long(x);\n}}\n",
                self.name()
            ),
            Helper::Abs => format!(
                "inline int {}(int a) {{\n    return a < 0 ? int(0u - uint(a)) : a;\n}}\n",
                self.name()
            ),
            Helper::Erf => erf(),
        }
    }
}

/// erf x: below 1 the odd Maclaurin series (11 terms: 1e-9), else 1 − erfc x with
/// erfc x = t·e^(−x² + P(t)), t = 1/(1 + x/2), P the Chebyshev fit of Numerical Recipes (relative
/// error 1.2e-7 of erfc, so below 2e-8 of erf there).
fn erf() -> String {
    let mut series = Vec::new();
    let mut factorial = 1.0f64;
    for n in 0..11 {
        if n > 0 {
            factorial *= f64::from(n);
        }
        let sign = if n % 2 == 0 { 1.0 } else { -1.0 };
        series.push(std::f64::consts::FRAC_2_SQRT_PI * sign / (factorial * f64::from(2 * n + 1)));
    }
    series.reverse();
    let exponent = [
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
    ];
    let horner = |x: &str, name: &str, coefficients: &[f64]| {
        let mut lines = format!("    float {name} = {};\n", float(coefficients[0]));
        for c in &coefficients[1..] {
            lines += &format!("    {name} = fma({name}, {x}, {});\n", float(*c));
        }
        lines
    };
    let mut text = String::from(
        "// The series below 1, else 1 - t exp(-x^2 + P(t)) with t = 1 / (1 + |x| / 2).\n\
         inline float tw_erf(float x) {\n    const float square = x * x;\n",
    );
    text += &horner("square", "series", &series);
    text += "    const float t = 1.0f / fma(fabs(x), 0.5f, 1.0f);\n";
    text += &horner("t", "power", &exponent);
    text += "    const float large = 1.0f - t * precise::exp(power - square);\n\
             \u{20}   return fabs(x) < 1.0f ? series * x : copysign(large, x);\n}\n";
    text
}

/// A float literal that reads back as the value rounded to f32.
pub(super) fn float(x: f64) -> String {
    let x = x as f32;
    if x.is_nan() {
        return "NAN".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "INFINITY".into() } else { "(-INFINITY)".into() };
    }
    let digits = format!("{x:?}");
    let digits = if digits.contains(['.', 'e']) { digits } else { format!("{digits}.0") };
    if x.is_sign_negative() { format!("({digits}f)") } else { format!("{digits}f") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_read_back() {
        for (x, text) in [
            (0.0, "0.0f"),
            (-0.0, "(-0.0f)"),
            (1e-5, "1e-5f"),
            (16_777_216.0, "16777216.0f"),
            (1e30, "1e30f"),
            (f64::NEG_INFINITY, "(-INFINITY)"),
        ] {
            assert_eq!(float(x), text);
        }
        for x in [0.1f32, f32::MIN_POSITIVE, f32::MAX, 1.0 / 3.0, 1e-45] {
            let text = float(x.into());
            assert_eq!(text.trim_end_matches('f').parse::<f32>().ok(), Some(x), "{text}");
        }
    }
}
