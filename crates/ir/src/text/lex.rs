//! Splits a source into tokens with places.

use crate::program::Loc;
use crate::text::{MAX_NAME, ParseError};

/// What a token is. Text borrows from the source.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Tok<'a> {
    /// A name or a keyword.
    Word(&'a str),
    /// `%name`, without the `%`.
    Value(&'a str),
    /// A number as written, without a sign.
    Number(&'a str),
    /// Punctuation.
    Mark(&'static str),
    /// End of a line.
    Newline,
    /// End of the source.
    End,
}

impl Tok<'_> {
    /// The token as a message quotes it.
    pub fn quote(&self) -> String {
        match self {
            Tok::Word(w) | Tok::Number(w) => format!("`{}`", shorten(w)),
            Tok::Value(v) => format!("`%{}`", shorten(v)),
            Tok::Mark(m) => format!("`{m}`"),
            Tok::Newline => "the end of the line".to_string(),
            Tok::End => "the end of the file".to_string(),
        }
    }
}

/// A name cut to a length that a message can bear.
pub fn shorten(name: &str) -> String {
    const LIMIT: usize = 40;
    match name.char_indices().nth(LIMIT) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_string(),
    }
}

/// A token and where it starts.
#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    /// What it is.
    pub tok: Tok<'a>,
    /// Where it starts.
    pub loc: Loc,
}

/// Every token of `source`, ending with [`Tok::End`].
///
/// # Errors
/// The first character that starts no token, or an overlong name.
pub fn lex(source: &str) -> Result<Vec<Token<'_>>, ParseError> {
    let mut tokens = Vec::new();
    let mut line = 0u32;
    for text in source.lines() {
        line += 1;
        lex_line(text, line, &mut tokens)?;
        let column = text.chars().count() as u32 + 1;
        tokens.push(Token { tok: Tok::Newline, loc: Loc { line, column } });
    }
    tokens.push(Token { tok: Tok::End, loc: Loc { line: line + 1, column: 1 } });
    Ok(tokens)
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

const MARKS: [&str; 13] = ["->", "{", "}", "[", "]", "(", ")", ",", ":", "=", "+", "-", "*"];

fn lex_line<'a>(text: &'a str, line: u32, out: &mut Vec<Token<'a>>) -> Result<(), ParseError> {
    let mut rest = text;
    let mut column = 1u32;
    loop {
        let trimmed = rest.trim_start();
        column += rest[..rest.len() - trimmed.len()].chars().count() as u32;
        rest = trimmed;
        let Some(first) = rest.chars().next() else { return Ok(()) };
        if rest.starts_with("//") {
            return Ok(());
        }
        let loc = Loc { line, column };
        let error = |message: String| Err(ParseError { loc, message });
        let (tok, length) = if first.is_ascii_alphabetic() || first == '_' {
            let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            (Tok::Word(&rest[..end]), end)
        } else if first.is_ascii_digit() {
            let end = number_end(rest);
            (Tok::Number(&rest[..end]), end)
        } else if first == '%' {
            let end = rest[1..].find(|c| !is_name(c)).map_or(rest.len(), |n| n + 1);
            if end == 1 {
                return error("expected a value name after `%`, such as `%x`".to_string());
            }
            (Tok::Value(&rest[1..end]), end)
        } else if let Some(mark) = MARKS.into_iter().find(|m| rest.starts_with(m)) {
            (Tok::Mark(mark), mark.len())
        } else {
            return error(format!("`{}` starts no token; remove it", first.escape_debug()));
        };
        if length > MAX_NAME && matches!(tok, Tok::Word(_) | Tok::Value(_)) {
            return error(format!(
                "name of {length} characters; use at most {MAX_NAME}: {}",
                tok.quote()
            ));
        }
        out.push(Token { tok, loc });
        // Tokens are ASCII, so bytes are characters.
        column += length as u32;
        rest = &rest[length..];
    }
}

/// End of a number: digits, letters (`0x…`, `e`), a dot, and a sign right after an exponent mark.
fn number_end(text: &str) -> usize {
    let hex = text.starts_with("0x");
    let mut previous = '0';
    for (at, c) in text.char_indices() {
        let exponent_sign = matches!(c, '+' | '-') && matches!(previous, 'e' | 'E') && !hex;
        if !(c.is_ascii_alphanumeric() || c == '.' || c == '_' || exponent_sign) {
            return at;
        }
        previous = c;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_characters() {
        let tokens = lex("é").unwrap_err();
        assert_eq!((tokens.loc.line, tokens.loc.column), (1, 1));
        let tokens = lex("a  %b // é\n  1e-5:j").unwrap();
        let places: Vec<_> = tokens.iter().map(|t| (t.loc.line, t.loc.column)).collect();
        assert_eq!(places[..2], [(1, 1), (1, 4)]);
        assert_eq!(places[3..6], [(2, 3), (2, 7), (2, 8)]);
        assert_eq!(tokens[3].tok, Tok::Number("1e-5"));
    }

    #[test]
    fn signs_belong_to_exponents_only() {
        let kinds: Vec<Tok> = lex("3-k 0x1e-2").unwrap().iter().map(|t| t.tok).collect();
        assert_eq!(kinds[..3], [Tok::Number("3"), Tok::Mark("-"), Tok::Word("k")]);
        assert_eq!(kinds[3..6], [Tok::Number("0x1e"), Tok::Mark("-"), Tok::Number("2")]);
    }
}
