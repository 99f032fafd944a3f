//! Index arithmetic: expressions with the range of their values, so that 32 bits are used where
//! they surely suffice.

use tilewright_ir::program::MapOp;

use super::helpers::Helper;

/// Bounds of an index value, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) lo: i64,
    pub(super) hi: i64,
}

impl Range {
    pub(super) const FULL: Range = Range { lo: i64::MIN, hi: i64::MAX };

    pub(super) fn new(lo: i64, hi: i64) -> Range {
        Range { lo, hi: hi.max(lo) }
    }

    /// Whether every value is an `int`.
    pub(super) fn is_narrow(self) -> bool {
        i32::try_from(self.lo).is_ok() && i32::try_from(self.hi).is_ok()
    }

    fn hull(values: impl IntoIterator<Item = i128>) -> Range {
        let clamp = |v: i128| v.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        let mut range: Option<(i128, i128)> = None;
        for v in values {
            let (lo, hi) = range.unwrap_or((v, v));
            range = Some((lo.min(v), hi.max(v)));
        }
        let (lo, hi) = range.unwrap_or((0, 0));
        Range { lo: clamp(lo), hi: clamp(hi) }
    }

    /// The union of two ranges.
    pub(super) fn join(self, other: Range) -> Range {
        Range { lo: self.lo.min(other.lo), hi: self.hi.max(other.hi) }
    }

    /// Bounds of a binary operation. Division truncates and by zero gives 0.
    fn binary(op: MapOp, a: Range, b: Range) -> Range {
        let [a_lo, a_hi, b_lo, b_hi] = [a.lo, a.hi, b.lo, b.hi].map(i128::from);
        let corners = |f: fn(i128, i128) -> i128| {
            Range::hull([f(a_lo, b_lo), f(a_lo, b_hi), f(a_hi, b_lo), f(a_hi, b_hi)])
        };
        match op {
            MapOp::Add => Range::hull([a_lo + b_lo, a_hi + b_hi]),
            MapOp::Sub => Range::hull([a_lo - b_hi, a_hi - b_lo]),
            MapOp::Mul => corners(|x, y| x * y),
            MapOp::Min | MapOp::MinNum => Range::hull([a_lo.min(b_lo), a_hi.min(b_hi)]),
            MapOp::Max | MapOp::MaxNum => Range::hull([a_lo.max(b_lo), a_hi.max(b_hi)]),
            MapOp::Div if b_lo > 0 => corners(|x, y| x / y),
            // No quotient is larger than the dividend.
            MapOp::Div => Range::hull([a_lo, a_hi, -a_lo, -a_hi, 0]),
            MapOp::Mod => {
                let most = b_lo.abs().max(b_hi.abs()) - 1;
                let most = most.max(0);
                let lo = if a_lo < 0 { a_lo.max(-most) } else { 0 };
                let hi = if a_hi > 0 { a_hi.min(most) } else { 0 };
                Range::hull([lo, hi])
            }
            _ => Range::FULL,
        }
    }
}

/// The text of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Val {
    pub(super) text: String,
    /// Whether the text binds tighter than any operator.
    pub(super) tight: bool,
    /// Bounds, of an index.
    pub(super) range: Range,
}

impl Val {
    /// A value of no index type.
    pub(super) fn data(text: impl Into<String>, tight: bool) -> Val {
        Val { text: text.into(), tight, range: Range::FULL }
    }

    /// A name.
    pub(super) fn name(text: impl Into<String>, range: Range) -> Val {
        Val { text: text.into(), tight: true, range }
    }

    /// A known index.
    pub(super) fn int(n: i64) -> Val {
        let text = if i32::try_from(n).is_ok() {
            n.to_string()
        } else if n == i64::MIN {
            "(-9223372036854775807L - 1)".to_string()
        } else {
            format!("{n}L")
        };
        let text = if n < 0 && !text.starts_with('(') { format!("({text})") } else { text };
        Val { text, tight: true, range: Range { lo: n, hi: n } }
    }

    /// The number, if it is known.
    pub(super) fn known(&self) -> Option<i64> {
        (self.range.lo == self.range.hi).then_some(self.range.lo)
    }

    /// The text as an operand.
    pub(super) fn operand(&self) -> String {
        if self.tight { self.text.clone() } else { format!("({})", self.text) }
    }

    /// `int` or `long`.
    pub(super) fn index_type(&self) -> &'static str {
        if self.range.is_narrow() { "int" } else { "long" }
    }

    /// The text with the type of a wide or narrow index.
    fn as_type(&self, wide: bool) -> String {
        if wide == self.range.is_narrow() {
            format!("{}({})", if wide { "long" } else { "int" }, self.text)
        } else {
            self.operand()
        }
    }
}

/// `a op b` on index values. `helper` is told what the text calls.
pub(super) fn binary(op: MapOp, a: &Val, b: &Val, helper: &mut impl FnMut(Helper)) -> Option<Val> {
    match (op, a.known(), b.known()) {
        (MapOp::Add | MapOp::Sub, _, Some(0)) | (MapOp::Mul | MapOp::Div, _, Some(1)) => {
            return Some(a.clone());
        }
        (MapOp::Add, Some(0), _) | (MapOp::Mul, Some(1), _) => return Some(b.clone()),
        _ => {}
    }
    let range = Range::binary(op, a.range, b.range);
    if range.lo == range.hi {
        return Some(Val::int(range.lo));
    }
    let wide = !(a.range.is_narrow() && b.range.is_narrow() && range.is_narrow());
    // One wide operand makes the whole wide; of two narrow ones the first is widened.
    let first = if wide && a.range.is_narrow() && b.range.is_narrow() {
        a.as_type(true)
    } else {
        a.operand()
    };
    let second = b.operand();
    let (text, tight) = match op {
        MapOp::Add => (format!("{first} + {second}"), false),
        MapOp::Sub => (format!("{first} - {second}"), false),
        MapOp::Mul => (format!("{first} * {second}"), false),
        MapOp::Div | MapOp::Mod if b.range.lo > 0 || b.range.hi < -1 => {
            let sign = if op == MapOp::Div { '/' } else { '%' };
            (format!("{first} {sign} {second}"), false)
        }
        MapOp::Div | MapOp::Mod => {
            let division = op == MapOp::Div;
            helper(Helper::Divide { wide, division });
            let name = Helper::Divide { wide, division }.name();
            (format!("{name}({}, {})", a.as_type(wide), b.as_type(wide)), true)
        }
        MapOp::Min | MapOp::MinNum | MapOp::Max | MapOp::MaxNum => {
            let name = if matches!(op, MapOp::Min | MapOp::MinNum) { "min" } else { "max" };
            let [a, b] = [a, b].map(|v| typed(v, wide));
            (format!("{name}({a}, {b})"), true)
        }
        _ => return None,
    };
    // The value is narrow though an operand is wide.
    if wide && range.is_narrow() {
        return Some(Val { text: format!("int({text})"), tight: true, range });
    }
    Some(Val { text, tight, range })
}

/// An argument of a function that takes two of one type.
fn typed(v: &Val, wide: bool) -> String {
    if wide == v.range.is_narrow() { v.as_type(wide) } else { v.text.clone() }
}

/// `cond ? a : b` on index values.
pub(super) fn select(cond: &Val, a: &Val, b: &Val) -> Val {
    let range = a.range.join(b.range);
    Val {
        text: format!("{} ? {} : {}", cond.operand(), a.operand(), b.operand()),
        tight: false,
        range,
    }
}

/// A comparison of index values.
pub(super) fn compare(op: MapOp, a: &Val, b: &Val) -> Option<Val> {
    let sign = comparison(op)?;
    Some(Val::data(format!("{} {sign} {}", a.operand(), b.operand()), false))
}

/// The operator of a comparison.
pub(super) fn comparison(op: MapOp) -> Option<&'static str> {
    Some(match op {
        MapOp::Eq => "==",
        MapOp::Ne => "!=",
        MapOp::Lt => "<",
        MapOp::Le => "<=",
        MapOp::Gt => ">",
        MapOp::Ge => ">=",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(op: MapOp, a: &Val, b: &Val) -> String {
        binary(op, a, b, &mut |_| {}).map(|v| v.text).unwrap_or_default()
    }

    /// 32 bits up to both ends of their range, 64 beyond.
    #[test]
    fn widths_follow_the_range() {
        let x = Val::name("x", Range::new(0, 1 << 30));
        assert_eq!(text(MapOp::Add, &x, &Val::int((1 << 30) - 1)), "x + 1073741823");
        assert_eq!(text(MapOp::Add, &x, &Val::int(1 << 30)), "long(x) + 1073741824");
        let y = Val::name("y", Range::new(-(1 << 30), 0));
        assert_eq!(text(MapOp::Sub, &y, &Val::int(1 << 30)), "y - 1073741824");
        assert_eq!(text(MapOp::Sub, &y, &Val::int((1 << 30) + 1)), "long(y) - 1073741825");
        let wide = Val::name("w", Range::FULL);
        assert_eq!(text(MapOp::Mul, &wide, &x), "w * x");
        assert_eq!(text(MapOp::Min, &wide, &x), "min(w, long(x))");
        assert_eq!(text(MapOp::Mod, &wide, &Val::int(8)), "int(w % 8)");
        assert_eq!(text(MapOp::Div, &x, &wide), "int(tw_div(long(x), w))");
    }

    /// No corner of the operands' ranges leaves the result's.
    #[test]
    fn ranges_hold_every_result() {
        let ends = [-7, -1, 0, 1, 3, 9];
        for op in [MapOp::Add, MapOp::Sub, MapOp::Mul, MapOp::Div, MapOp::Mod, MapOp::Min] {
            for a_lo in ends {
                for a_hi in ends.into_iter().filter(|h| *h >= a_lo) {
                    for b_lo in ends {
                        for b_hi in ends.into_iter().filter(|h| *h >= b_lo) {
                            let range =
                                Range::binary(op, Range::new(a_lo, a_hi), Range::new(b_lo, b_hi));
                            for a in a_lo..=a_hi {
                                for b in b_lo..=b_hi {
                                    let value = match op {
                                        MapOp::Add => a + b,
                                        MapOp::Sub => a - b,
                                        MapOp::Mul => a * b,
                                        MapOp::Div => i64::checked_div(a, b).unwrap_or(0),
                                        MapOp::Mod => i64::checked_rem(a, b).unwrap_or(0),
                                        _ => a.min(b),
                                    };
                                    assert!(
                                        range.lo <= value && value <= range.hi,
                                        "{op:?} {a} {b}: {value} outside {range:?}"
                                    );
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
