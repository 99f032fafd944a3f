//! Numbers as people read them.

/// A float with this many significant digits, without an exponent.
fn significant(value: f64, digits: i32) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let places = (digits - 1 - value.abs().log10().floor() as i32).max(0) as usize;
    format!("{value:.places$}")
}

/// Microseconds with a fitting unit, which no line break parts from its number.
pub fn time(us: f64) -> String {
    match us {
        _ if us < 1.0 => format!("{}\u{a0}ns", significant(us * 1e3, 3)),
        _ if us < 1e3 => format!("{}\u{a0}µs", significant(us, 3)),
        _ if us < 1e6 => format!("{}\u{a0}ms", significant(us / 1e3, 3)),
        _ => format!("{}\u{a0}s", significant(us / 1e6, 3)),
    }
}

/// A share as a percentage.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        p if p.abs() < 10.0 => format!("{p:.2}\u{a0}%"),
        p => format!("{p:.1}\u{a0}%"),
    }
}

/// A ratio.
pub fn ratio(value: f64) -> String {
    if value < 10.0 { format!("{value:.3}×") } else { format!("{}×", significant(value, 3)) }
}

/// A figure of no unit: at most four decimals, none that are zero.
pub fn plain(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// A coefficient: four digits, with an exponent where it is far from 1.
pub fn coefficient(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_string(),
        v if (1e-3..1e4).contains(&v) => significant(value, 4),
        _ => format!("{value:.3e}"),
    }
}

/// A number of an axis.
pub fn tick(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{}M", value / 1e6),
        v if v >= 1e3 => format!("{}k", value / 1e3),
        _ => format!("{value}"),
    }
}

/// A value that may be missing.
pub fn or_dash<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "–".to_string(), text)
}

/// The first digits of a hash.
pub fn short(hash: &str) -> String {
    hash.chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        assert_eq!(time(0.25), "250\u{a0}ns");
        assert_eq!(time(4.6441), "4.64\u{a0}µs");
        assert_eq!(time(1234.0), "1.23\u{a0}ms");
        assert_eq!(percent(0.0259), "2.59\u{a0}%");
        assert_eq!(percent(0.3437), "34.4\u{a0}%");
        assert_eq!(ratio(1.0754), "1.075×");
        assert_eq!(ratio(28.66), "28.7×");
        assert_eq!((plain(1.09312), plain(0.25)), ("1.0931".to_string(), "0.25".to_string()));
        assert_eq!((plain(24.0), plain(0.0)), ("24".to_string(), "0".to_string()));
        assert_eq!(or_dash(None, percent), "–");
        assert_eq!(coefficient(0.0), "0");
        assert_eq!((coefficient(0.0804168), coefficient(12.5)), ("0.08042".into(), "12.50".into()));
        assert_eq!(coefficient(7.15328e-5), "7.153e-5");
        assert_eq!(tick(250_000.0), "250k");
    }
}
