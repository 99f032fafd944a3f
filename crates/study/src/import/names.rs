//! Names that come from files.

/// Longest name that is kept, in bytes.
pub const MAX_NAME: usize = 1024;

/// A name as it may be shown in a terminal or written to a report's text: control characters,
/// and those that turn or hide text, are written as escapes.
pub fn printable(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        let hidden = matches!(c,
            '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}'
            | '\u{feff}');
        if c.is_control() || hidden {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_the_cursor_or_turns_text_is_escaped() {
        assert_eq!(printable("softmax 23×769 <b>"), "softmax 23×769 <b>");
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\u{a}");
        assert_eq!(printable("a\u{202e}b"), "a\\u{202e}b");
    }
}
