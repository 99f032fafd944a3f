//! The parser: tokens, names, declarations and blocks. Operations are in `op.rs`.
//!
//! One error per line at most: after an error the rest of its line is skipped, and the values that
//! the line would have defined are known but poisoned, so that their uses raise no further errors.

use std::collections::{HashMap, HashSet};

use crate::entity::{Arena, Id};
use crate::program::*;
use crate::text::lex::{Tok, Token, lex};
use crate::text::{MAX_ERRORS, MAX_LIST, MAX_NESTING, MAX_SOURCE, ParseError, Places};
use crate::types::DType;

/// Parses a program. It isn't verified: see [`crate::text::read`].
///
/// # Errors
/// Up to [`MAX_ERRORS`] errors, in order of their places.
pub fn parse(source: &str) -> Result<Program, Vec<ParseError>> {
    parse_with_places(source).map(|(program, _)| program)
}

/// Parses a program and tells where its declarations are.
pub(crate) fn parse_with_places(source: &str) -> Result<(Program, Places), Vec<ParseError>> {
    if source.len() > MAX_SOURCE {
        let message = format!("source of {} bytes; at most {MAX_SOURCE} are read", source.len());
        return Err(vec![ParseError { loc: Loc { line: 1, column: 1 }, message }]);
    }
    let tokens = lex(source).map_err(|e| vec![e])?;
    let mut parser = Parser {
        tokens,
        at: 0,
        program: Program::default(),
        places: Places::default(),
        names: Names::default(),
        errors: Vec::new(),
    };
    parser.file();
    match parser.errors.is_empty() {
        true => Ok((parser.program, parser.places)),
        false => Err(parser.errors),
    }
}

pub(super) type Parsed<T> = Result<T, ParseError>;

#[derive(Default)]
pub(super) struct Names<'a> {
    pub dims: HashMap<&'a str, DimId>,
    pub tensors: HashMap<&'a str, TensorId>,
    pub scalars: HashMap<&'a str, ScalarId>,
    pub axes: HashMap<&'a str, AxisId>,
    pub values: HashMap<&'a str, ValueId>,
    pub poisoned: HashSet<&'a str>,
    /// Index variables in scope, innermost last.
    pub indices: Vec<(&'a str, IndexId)>,
}

pub(super) struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
    pub program: Program,
    pub places: Places,
    pub names: Names<'a>,
    errors: Vec<ParseError>,
}

impl<'a> Parser<'a> {
    // Tokens.

    pub fn token(&self) -> Token<'a> {
        // The last token is `End` and is never passed.
        self.tokens[self.at]
    }

    pub fn peek(&self) -> Tok<'a> {
        self.token().tok
    }

    pub fn loc(&self) -> Loc {
        self.token().loc
    }

    pub fn next(&mut self) -> Token<'a> {
        let token = self.token();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        token
    }

    pub fn error<T>(&self, loc: Loc, message: impl Into<String>) -> Parsed<T> {
        Err(ParseError { loc, message: message.into() })
    }

    /// The error that this token isn't what is needed.
    pub fn expected<T>(&self, what: &str) -> Parsed<T> {
        self.error(self.loc(), format!("expected {what}, found {}", self.peek().quote()))
    }

    pub fn accept(&mut self, mark: &str) -> bool {
        let found = matches!(self.peek(), Tok::Mark(m) if m == mark);
        if found {
            self.next();
        }
        found
    }

    pub fn accept_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Tok::Word(w) if w == word);
        if found {
            self.next();
        }
        found
    }

    pub fn mark(&mut self, mark: &str) -> Parsed<()> {
        if self.accept(mark) { Ok(()) } else { self.expected(&format!("`{mark}`")) }
    }

    pub fn keyword(&mut self, word: &str) -> Parsed<()> {
        if self.accept_word(word) { Ok(()) } else { self.expected(&format!("`{word}`")) }
    }

    pub fn word(&mut self, what: &str) -> Parsed<&'a str> {
        match self.peek() {
            Tok::Word(w) => {
                self.next();
                Ok(w)
            }
            _ => self.expected(what),
        }
    }

    pub fn end_of_line(&mut self, suggestion: &str) -> Parsed<()> {
        match self.peek() {
            Tok::Newline | Tok::End => Ok(()),
            _ => self.expected(&format!("{suggestion}the end of the line")),
        }
    }

    pub fn integer(&mut self, what: &str) -> Parsed<u64> {
        let Tok::Number(text) = self.peek() else { return self.expected(what) };
        let loc = self.loc();
        self.next();
        if !text.bytes().all(|b| b.is_ascii_digit()) {
            return self.error(loc, format!("expected {what}, found `{text}`: write it in digits"));
        }
        let Ok(n) = text.parse() else {
            return self.error(loc, format!("{what} is too large; the limit is {}", u64::MAX));
        };
        Ok(n)
    }

    /// A float: sign, then decimal, `inf`, `nan` or `nan(0x…)` (a NaN by its bits).
    pub fn float(&mut self) -> Parsed<f64> {
        let negative = self.accept("-");
        let loc = self.loc();
        let value = match self.next().tok {
            Tok::Word("inf") => f64::INFINITY,
            Tok::Word("nan") if self.accept("(") => {
                let bits = match self.next().tok {
                    Tok::Number(t) => t.strip_prefix("0x"),
                    _ => None,
                };
                let bits = bits.and_then(|t| u64::from_str_radix(t, 16).ok());
                match bits.map(f64::from_bits) {
                    Some(value) if value.is_nan() => {
                        self.mark(")")?;
                        value
                    }
                    _ => {
                        return self
                            .error(loc, "expected the bits of a NaN, as 0x7ff8000000000001");
                    }
                }
            }
            Tok::Word("nan") => f64::NAN,
            Tok::Number(t) => match t.parse::<f64>() {
                Ok(value) if value.is_finite() => value,
                Ok(_) => {
                    return self
                        .error(loc, "number beyond the range of f64; write `inf` for infinity");
                }
                Err(_) => {
                    return self
                        .error(loc, format!("`{t}` is no number; write 1.5, 1e-5, inf or nan"));
                }
            },
            tok => {
                return self.error(loc, format!("expected a number, found {}", tok.quote()));
            }
        };
        Ok(if negative { -value } else { value })
    }

    /// `open item, … close`, where the list may be empty.
    pub fn list<T>(
        &mut self,
        open: &str,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Parsed<T>,
    ) -> Parsed<Vec<T>> {
        self.mark(open)?;
        let mut items = Vec::new();
        if self.accept(close) {
            return Ok(items);
        }
        loop {
            if items.len() == MAX_LIST {
                return self.error(self.loc(), format!("more than {MAX_LIST} entries in a list"));
            }
            items.push(item(self)?);
            if self.accept(close) {
                return Ok(items);
            }
            if !self.accept(",") {
                return self.expected(&format!("`,` or `{close}`"));
            }
        }
    }

    // Names.

    /// Looks a name up; the error lists what there is.
    pub fn resolve<T: Copy>(
        &self,
        loc: Loc,
        what: &str,
        name: &str,
        table: &HashMap<&'a str, T>,
    ) -> Parsed<T> {
        if let Some(id) = table.get(name) {
            return Ok(*id);
        }
        let mut known: Vec<&str> = table.keys().copied().collect();
        known.sort_unstable();
        known.truncate(12);
        let known = match known.is_empty() {
            true => "none is declared above".to_string(),
            false => format!("declared: {}", known.join(", ")),
        };
        self.error(loc, format!("no {what} `{name}`; {known}"))
    }

    pub fn extent(&mut self) -> Parsed<Extent> {
        let loc = self.loc();
        match self.peek() {
            Tok::Number(_) => Ok(Extent::Const(self.integer("a size")?)),
            Tok::Word(name) => {
                self.next();
                Ok(Extent::Dim(self.resolve(loc, "dimension", name, &self.names.dims)?))
            }
            _ => self.expected("a size or a dimension"),
        }
    }

    pub fn axis(&mut self) -> Parsed<AxisId> {
        let loc = self.loc();
        let name = self.word("an axis")?;
        self.resolve(loc, "axis", name, &self.names.axes)
    }

    pub fn dtype(&mut self) -> Parsed<DType> {
        let loc = self.loc();
        let name = self.word("a dtype (f32, f64, f16, bf16 or i32)")?;
        match name.parse() {
            Ok(dtype) => Ok(dtype),
            Err(e) => self.error(loc, format!("{e}")),
        }
    }

    /// A new name of a declaration.
    fn declare<T: Id, D>(
        &mut self,
        table: impl for<'b> Fn(&'b mut Names<'a>) -> &'b mut HashMap<&'a str, T>,
        arena: impl Fn(&mut Program) -> &mut Arena<T, D>,
        places: impl Fn(&mut Places) -> &mut Vec<Loc>,
        (name, loc): (&'a str, Loc),
        item: D,
    ) {
        // A name declared twice keeps its first meaning; the verifier reports the second.
        let id = arena(&mut self.program).push(item);
        places(&mut self.places).push(loc);
        table(&mut self.names).entry(name).or_insert(id);
    }

    // Structure.

    fn file(&mut self) {
        if let Err(error) = self.header() {
            self.errors.push(error);
            return;
        }
        loop {
            self.skip_newlines();
            match self.peek() {
                Tok::Word("dim" | "in" | "out" | "inout" | "axis" | "grid") => {}
                // `scalar` starts a declaration only: as an operation it follows `=`.
                Tok::Word("scalar") => {}
                _ => break,
            }
            if let Err(error) = self.declaration() {
                self.fail(error);
            }
        }
        if self.failed() {
            // Without its declarations every operation would raise errors of no use.
            return;
        }
        let (body, _) = self.block(0);
        self.program.body = body;
        self.skip_newlines();
        if self.errors.is_empty() && self.peek() != Tok::End {
            let error = self.expected::<()>("nothing after the program's `}`: one program a file");
            self.errors.extend(error.err());
        }
    }

    fn header(&mut self) -> Parsed<()> {
        self.skip_newlines();
        if !self.accept_word("program") {
            return self.expected("`program NAME {`");
        }
        self.program.name = self.word("the name of the program")?.to_string();
        self.mark("{")?;
        self.end_of_line("")
    }

    fn skip_newlines(&mut self) {
        while self.peek() == Tok::Newline {
            self.next();
        }
    }

    /// Records an error and skips the rest of its line. Whether the line opened a block.
    fn fail(&mut self, error: ParseError) -> bool {
        let line = error.loc.line;
        self.errors.push(error);
        if self.errors.len() >= MAX_ERRORS {
            self.at = self.tokens.len() - 1;
            return false;
        }
        let mut last = Tok::Newline;
        // The failing token may already be the first of the next line.
        while self.loc().line <= line && !matches!(self.peek(), Tok::Newline | Tok::End) {
            last = self.next().tok;
        }
        last == Tok::Mark("{")
    }

    fn declaration(&mut self) -> Parsed<()> {
        let kind = self.word("a declaration")?;
        let loc = self.loc();
        let name = self.word("a name")?;
        self.mark(":")?;
        let place = (name, loc);
        let owned = name.to_string();
        match kind {
            "dim" => {
                let kind = self.dim_kind()?;
                self.end_of_line("")?;
                let dim = Dim { name: owned, kind };
                self.declare(|n| &mut n.dims, |p| &mut p.dims, |l| &mut l.dims, place, dim);
            }
            "axis" => {
                let extent = self.extent()?;
                self.end_of_line("")?;
                let axis = Axis { name: owned, extent };
                self.declare(|n| &mut n.axes, |p| &mut p.axes, |l| &mut l.axes, place, axis);
            }
            "grid" => {
                let extent = self.extent()?;
                self.keyword("step")?;
                let step = self.extent()?;
                self.end_of_line("")?;
                let id = self.index_var(place, extent, step);
                self.program.grid.push(id);
            }
            "scalar" => {
                let dtype = self.dtype()?;
                let nonzero = self.accept_word("nonzero");
                self.end_of_line("`nonzero` or ")?;
                let scalar = Scalar { name: owned, dtype, nonzero };
                self.declare(
                    |n| &mut n.scalars,
                    |p| &mut p.scalars,
                    |l| &mut l.scalars,
                    place,
                    scalar,
                );
            }
            _ => {
                let access = match kind {
                    "in" => Access::In,
                    "out" => Access::Out,
                    _ => Access::InOut,
                };
                let dtype = self.dtype()?;
                let shape = self.list("[", "]", Self::extent)?;
                let strides = match self.accept_word("strides") {
                    true => Strides::Explicit(self.list("[", "]", Self::extent)?),
                    false => Strides::Packed,
                };
                let align = match self.accept_word("align") {
                    true => self.integer("an alignment in bytes")?,
                    false => dtype.bytes().max(1),
                };
                self.end_of_line("`strides [...]`, `align N` or ")?;
                let tensor = Tensor { name: owned, dtype, shape, strides, align, access };
                self.declare(
                    |n| &mut n.tensors,
                    |p| &mut p.tensors,
                    |l| &mut l.tensors,
                    place,
                    tensor,
                );
            }
        }
        Ok(())
    }

    fn dim_kind(&mut self) -> Parsed<DimKind> {
        let loc = self.loc();
        match self.word("`static`, `symbolic` or `block`")? {
            "static" => Ok(DimKind::Static(self.integer("a size")?)),
            "block" => Ok(DimKind::Block { default: self.integer("a block extent")? }),
            "symbolic" => {
                let divisor = match self.accept_word("divisor") {
                    true => self.integer("a divisor")?,
                    false => 1,
                };
                self.keyword("max")?;
                Ok(DimKind::Symbolic { divisor, max: self.integer("a bound")? })
            }
            other => self
                .error(loc, format!("expected `static`, `symbolic` or `block`, found `{other}`")),
        }
    }

    /// Declares an index variable and puts it in scope.
    pub fn index_var(
        &mut self,
        (name, loc): (&'a str, Loc),
        extent: Extent,
        step: Extent,
    ) -> IndexId {
        let id = self.program.indices.push(IndexVar { name: name.to_string(), extent, step });
        self.places.indices.push(loc);
        self.names.indices.push((name, id));
        id
    }

    /// The operations up to the closing brace, which is consumed, and the values of its `yield`.
    pub fn block(&mut self, depth: usize) -> (Block, Vec<ValueId>) {
        let mut block = Block::default();
        let mut yielded: Option<Vec<ValueId>> = None;
        if depth > MAX_NESTING {
            let error = self.error::<()>(
                self.loc(),
                format!("loops nested deeper than {MAX_NESTING}; flatten them"),
            );
            self.errors.extend(error.err());
            self.at = self.tokens.len() - 1;
        }
        loop {
            self.skip_newlines();
            let loc = self.loc();
            let line = match self.peek() {
                Tok::End => {
                    // After too many errors the rest wasn't read.
                    if self.errors.len() < MAX_ERRORS && depth <= MAX_NESTING {
                        let error = self.expected::<()>("`}` to close the block");
                        if self.errors.last() != error.as_ref().err() {
                            self.errors.extend(error.err());
                        }
                    }
                    break;
                }
                Tok::Mark("}") => {
                    self.next();
                    break;
                }
                _ if yielded.is_some() => {
                    self.error(loc, "`yield` must be the last line of a loop")
                }
                Tok::Word("yield") if depth > 0 => {
                    self.next();
                    match self.values() {
                        Ok(values) => {
                            yielded = Some(values);
                            self.end_of_line("`,` or ")
                        }
                        Err(error) => {
                            yielded = Some(Vec::new());
                            Err(error)
                        }
                    }
                }
                _ => self.statement(depth, loc).map(|id| block.ops.push(id)),
            };
            if let Err(error) = line
                && self.fail(error)
            {
                self.skip_block();
            }
        }
        (block, yielded.unwrap_or_default())
    }

    /// Skips the rest of a block whose opening brace was read.
    fn skip_block(&mut self) {
        let mut depth = 1usize;
        while depth > 0 {
            match self.next().tok {
                Tok::Mark("{") => depth += 1,
                Tok::Mark("}") => depth -= 1,
                Tok::End => return,
                _ => {}
            }
        }
    }

    /// Whether anything failed so far.
    pub fn failed(&self) -> bool {
        !self.errors.is_empty()
    }

    /// Records an error without skipping anything.
    pub fn report(&mut self, loc: Loc, message: String) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(ParseError { loc, message });
        }
    }
}
