//! Text → tokens.

use super::ParseError;

/// What a token is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Kind<'a> {
    /// Letters, digits and `_`, not starting with a digit.
    Word(&'a str),
    /// An unsigned number.
    Number(&'a str),
    /// `%name`, without the `%`.
    Value(&'a str),
    /// One punctuation character.
    Punct(char),
    /// `..`
    DotDot,
    /// End of a line that has tokens.
    Newline,
    /// End of the text.
    End,
}

impl std::fmt::Display for Kind<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Kind::Word(s) | Kind::Number(s) => write!(f, "`{s}`"),
            Kind::Value(s) => write!(f, "`%{s}`"),
            Kind::Punct(c) => write!(f, "`{c}`"),
            Kind::DotDot => f.write_str("`..`"),
            Kind::Newline => f.write_str("the end of the line"),
            Kind::End => f.write_str("the end of the text"),
        }
    }
}

/// A token and its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub kind: Kind<'a>,
    /// From 1.
    pub line: u32,
    /// In characters, from 1.
    pub column: u32,
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The length of the number at the start of `s`: digits, or `0x` and hex digits, with fraction
/// and exponent. `1..2` is the number 1 before `..`.
fn number_len(s: &str) -> usize {
    let b = s.as_bytes();
    let digits = |from: usize| from + b[from..].iter().take_while(|c| c.is_ascii_digit()).count();
    if s.starts_with("0x") {
        return 2 + b[2..].iter().take_while(|c| c.is_ascii_hexdigit()).count();
    }
    let mut end = digits(0);
    if b.get(end) == Some(&b'.') && b.get(end + 1).is_some_and(u8::is_ascii_digit) {
        end = digits(end + 1);
    }
    if matches!(b.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(b.get(end + 1), Some(b'+' | b'-')));
        if b.get(end + 1 + sign).is_some_and(u8::is_ascii_digit) {
            end = digits(end + 1 + sign);
        }
    }
    end
}

/// Splits the text. Comments and empty lines give no token.
pub(super) fn lex(source: &str) -> Result<Vec<Token<'_>>, ParseError> {
    let mut tokens = Vec::new();
    let mut line_no = 0;
    for line in source.lines() {
        line_no += 1;
        let code = line.split("//").next().unwrap_or("");
        let before = tokens.len();
        let mut column = 1;
        let mut rest = code;
        while let Some(c) = rest.chars().next() {
            let len = match c {
                c if c.is_whitespace() => {
                    rest = &rest[c.len_utf8()..];
                    column += 1;
                    continue;
                }
                '%' => 1 + rest[1..].find(|c| !is_word(c)).unwrap_or(rest.len() - 1),
                c if c.is_ascii_digit() => number_len(rest),
                c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                '.' if rest.starts_with("..") => 2,
                c if "{}[]()<>:,=+-*@?".contains(c) => 1,
                c => {
                    return Err(ParseError {
                        line: line_no,
                        column,
                        message: format!("unexpected character `{}`", c.escape_default()),
                    });
                }
            };
            let (text, tail) = rest.split_at(len);
            let kind = match c {
                '%' if len == 1 => {
                    return Err(ParseError {
                        line: line_no,
                        column,
                        message: "expected the name of a value after `%`".into(),
                    });
                }
                '%' => Kind::Value(&text[1..]),
                c if c.is_ascii_digit() => Kind::Number(text),
                c if is_word(c) => Kind::Word(text),
                '.' => Kind::DotDot,
                c => Kind::Punct(c),
            };
            tokens.push(Token { kind, line: line_no, column });
            // Every token is ASCII, so bytes are characters.
            column += len as u32;
            rest = tail;
        }
        if tokens.len() > before {
            tokens.push(Token { kind: Kind::Newline, line: line_no, column });
        }
    }
    tokens.push(Token { kind: Kind::End, line: line_no + 1, column: 1 });
    Ok(tokens)
}
