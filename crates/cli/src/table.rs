//! Aligned text for terminals.

/// A table whose columns are as wide as their widest cell.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    left: Vec<bool>,
}

impl Table {
    /// A table with a heading. A heading that starts with `<` makes its column left-aligned (the
    /// sign isn't printed); the others are right-aligned.
    pub fn new(heading: &[&str]) -> Self {
        Table {
            left: heading.iter().map(|h| h.starts_with('<')).collect(),
            rows: vec![heading.iter().map(|h| h.trim_start_matches('<').to_string()).collect()],
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The text, each line indented by two.
    pub fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(c));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (c, cell) in row.iter().enumerate() {
                let pad = " ".repeat(widths[c] - cell.chars().count());
                line.push_str("  ");
                if self.left.get(c).copied().unwrap_or(false) {
                    line.push_str(cell);
                    line.push_str(&pad);
                } else {
                    line.push_str(&pad);
                    line.push_str(cell);
                }
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

/// A time for people: `415 ns`, `12.3 µs`, `1.52 ms`, `2.10 s`.
pub fn time(us: f64) -> String {
    let (value, unit) = match us {
        us if us < 1.0 => (us * 1e3, "ns"),
        us if us < 1e3 => (us, "µs"),
        us if us < 1e6 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    format!("{} {unit}", digits(value, 3))
}

/// A rate for people: `12.3 GFLOP/s`, `1.52 TB/s`.
pub fn rate(per_second: f64, unit: &str) -> String {
    let (value, prefix) = match per_second {
        x if x >= 1e12 => (x / 1e12, "T"),
        x if x >= 1e9 => (x / 1e9, "G"),
        x if x >= 1e6 => (x / 1e6, "M"),
        x => (x / 1e3, "k"),
    };
    format!("{} {prefix}{unit}", digits(value, 3))
}

/// A number with that many significant digits, without an exponent where it is short.
pub fn digits(value: f64, significant: usize) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let magnitude = value.abs().log10().floor();
    if !(-4.0..9.0).contains(&magnitude) {
        return format!("{value:.*e}", significant.saturating_sub(1));
    }
    let decimals = (significant as i64 - 1 - magnitude as i64).max(0);
    format!("{value:.*}", decimals as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["<name", "score"]);
        table.row(vec!["a".into(), "1.5".into()]);
        table.row(vec!["µ-long".into(), "12".into()]);
        assert_eq!(table.render(), "  name    score\n  a         1.5\n  µ-long     12\n");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(time(0.4151), "415 ns");
        assert_eq!(time(12.345), "12.3 µs");
        assert_eq!(time(1520.0), "1.52 ms");
        assert_eq!(time(2.1e6), "2.10 s");
        assert_eq!(rate(152.34e9, "FLOP/s"), "152 GFLOP/s");
        assert_eq!(rate(2.5e12, "B/s"), "2.50 TB/s");
        assert_eq!(digits(0.0, 3), "0");
        assert_eq!(digits(1.23e-7, 2), "1.2e-7");
        assert_eq!(digits(7248.0, 6), "7248.00");
        assert_eq!(digits(123456.0, 3), "123456");
    }
}
