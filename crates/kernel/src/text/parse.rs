//! Text → kernel: declarations, types, blocks. Operations are in `parse_op`.

use super::lex::{Kind, Token, lex};
use crate::kernel::*;
use std::collections::HashMap;
use tilewright_ir::DType;
use tilewright_ir::entity::{Arena, Id};
use tilewright_ir::program::{Access, DimId, ScalarId, TensorId};

/// A place in the text that doesn't parse.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ParseError {
    /// From 1.
    pub line: u32,
    /// In characters, from 1.
    pub column: u32,
    /// What was expected, and what stands there.
    pub message: String,
}

/// What a text may be at most. It is checked before memory is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of text.
    pub bytes: usize,
    /// Blocks in blocks.
    pub depth: usize,
}

impl Default for Limits {
    /// 8 MiB and 64 blocks.
    fn default() -> Self {
        Limits { bytes: 8 << 20, depth: 64 }
    }
}

/// Parses the text of one kernel.
///
/// The result has the right syntax and no undefined names; [`mod@crate::validate`] has the rest.
///
/// # Errors
/// The first place that breaks the syntax, or a limit.
pub fn parse(source: &str) -> Result<Kernel, ParseError> {
    parse_with_limits(source, Limits::default())
}

/// [`parse`] with other limits.
///
/// # Errors
/// The first place that breaks the syntax, or a limit.
pub fn parse_with_limits(source: &str, limits: Limits) -> Result<Kernel, ParseError> {
    if source.len() > limits.bytes {
        let message = format!("the text has {} bytes, the limit is {}", source.len(), limits.bytes);
        return Err(ParseError { line: 1, column: 1, message });
    }
    let tokens = lex(source)?;
    let numbered = numbered(&tokens);
    let mut parser = Parser {
        tokens,
        at: 0,
        depth: 0,
        limits,
        kernel: empty_kernel(),
        names: HashMap::new(),
        values: HashMap::new(),
        pending: Vec::new(),
    };
    if let Some(count) = numbered {
        parser.pending = vec![None; count];
    }
    parser.kernel(numbered.is_some())?;
    Ok(parser.kernel)
}

fn empty_kernel() -> Kernel {
    Kernel {
        name: String::new(),
        lanes: 0,
        subgroups: 0,
        cluster: 1,
        resident: 0,
        grid: Vec::new(),
        args: Arena::new(),
        shared: Arena::new(),
        private: Arena::new(),
        barriers: Arena::new(),
        mbarriers: Arena::new(),
        roles: Arena::new(),
        values: Arena::new(),
        body: Block::default(),
    }
}

/// The number of values if their names are exactly the numbers from 0 on.
fn numbered(tokens: &[Token<'_>]) -> Option<usize> {
    let mut seen = Vec::new();
    for token in tokens {
        let Kind::Value(name) = token.kind else { continue };
        let n: usize = name.parse().ok().filter(|n: &usize| n.to_string() == name)?;
        // There can't be more values than tokens.
        if n >= tokens.len() {
            return None;
        }
        if n >= seen.len() {
            seen.resize(n + 1, false);
        }
        seen[n] = true;
    }
    seen.iter().all(|&s| s).then_some(seen.len())
}

/// What a declared name stands for.
#[derive(Clone, Copy)]
pub(super) enum Entity {
    Arg(ArgId),
    Shared(SharedId),
    Private(PrivateId),
    Barrier(BarrierId),
    Mbarrier(MbarrierId),
    Role(RoleId),
}

pub(super) type Parsed<T> = Result<T, ParseError>;

pub(super) struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
    depth: usize,
    limits: Limits,
    pub(super) kernel: Kernel,
    names: HashMap<&'a str, Entity>,
    values: HashMap<&'a str, ValueId>,
    /// Numbered values by position, filled as they are defined.
    pending: Vec<Option<Value>>,
}

impl<'a> Parser<'a> {
    pub(super) fn peek(&self) -> Kind<'a> {
        self.tokens.get(self.at).map_or(Kind::End, |t| t.kind)
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.tokens.get(self.at).copied().unwrap_or(Token {
            kind: Kind::End,
            line: 0,
            column: 0,
        });
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        token
    }

    /// An error at the token before the next one.
    pub(super) fn error_before<T>(&self, message: String) -> Parsed<T> {
        self.error_at(self.at.saturating_sub(1), message)
    }

    /// An error at the next token.
    pub(super) fn error<T>(&self, message: String) -> Parsed<T> {
        self.error_at(self.at, message)
    }

    fn error_at<T>(&self, at: usize, message: String) -> Parsed<T> {
        let (line, column) = self.tokens.get(at).map_or((0, 0), |t| (t.line, t.column));
        Err(ParseError { line, column, message })
    }

    pub(super) fn expected<T>(&self, what: &str) -> Parsed<T> {
        self.error(format!("expected {what}, found {}", self.peek()))
    }

    pub(super) fn eat(&mut self, kind: Kind<'_>) -> bool {
        let found = self.peek() == kind;
        if found {
            self.next();
        }
        found
    }

    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        self.eat(Kind::Word(word))
    }

    pub(super) fn punct(&mut self, c: char) -> Parsed<()> {
        if self.eat(Kind::Punct(c)) { Ok(()) } else { self.expected(&format!("`{c}`")) }
    }

    pub(super) fn keyword(&mut self, word: &str) -> Parsed<()> {
        if self.eat_word(word) { Ok(()) } else { self.expected(&format!("`{word}`")) }
    }

    pub(super) fn word(&mut self, what: &str) -> Parsed<&'a str> {
        match self.peek() {
            Kind::Word(word) => {
                self.next();
                Ok(word)
            }
            _ => self.expected(what),
        }
    }

    fn newline(&mut self) -> Parsed<()> {
        if self.eat(Kind::Newline) { Ok(()) } else { self.expected("the end of the line") }
    }

    /// An unsigned number that fits `T`.
    pub(super) fn number<T: TryFrom<u64>>(&mut self, what: &str) -> Parsed<T> {
        if let Kind::Number(text) = self.peek() {
            let value = match text.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16),
                None => text.parse::<u64>(),
            };
            if let Some(value) = value.ok().and_then(|v| T::try_from(v).ok()) {
                self.next();
                return Ok(value);
            }
            return self.error(format!("expected {what}, but {text} doesn't fit"));
        }
        self.expected(what)
    }

    pub(super) fn signed(&mut self, what: &str) -> Parsed<i64> {
        match self.literal()? {
            Literal::Int(n) => Ok(n),
            Literal::Float(_) => self.error_before(format!("expected {what}, a whole number")),
        }
    }

    pub(super) fn float(&mut self) -> Parsed<f64> {
        Ok(match self.literal()? {
            Literal::Int(n) => n as f64,
            Literal::Float(x) => x,
        })
    }

    /// A literal; one with a fraction or an exponent, `inf` or `nan` is a float.
    pub(super) fn literal(&mut self) -> Parsed<Literal> {
        let negative = self.eat(Kind::Punct('-'));
        let sign = if negative { -1.0 } else { 1.0 };
        match self.peek() {
            Kind::Word("inf") => {
                self.next();
                Ok(Literal::Float(sign * f64::INFINITY))
            }
            Kind::Word("nan") if !negative => {
                self.next();
                if !self.eat(Kind::Punct('(')) {
                    return Ok(Literal::Float(f64::NAN));
                }
                let bits: u64 = self.number("the bits of a NaN")?;
                if !f64::from_bits(bits).is_nan() {
                    return self.error_before(format!("{bits:#x} are not the bits of a NaN"));
                }
                self.punct(')')?;
                Ok(Literal::Float(f64::from_bits(bits)))
            }
            Kind::Number(text) => {
                if let Some(hex) = text.strip_prefix("0x") {
                    let Ok(n) = i64::from_str_radix(hex, 16) else {
                        return self.error(format!("{text} doesn't fit 64 bits"));
                    };
                    self.next();
                    return Ok(Literal::Int(if negative { -n } else { n }));
                }
                if text.contains(['.', 'e', 'E']) {
                    let Ok(x) = text.parse::<f64>() else {
                        return self.expected("a number");
                    };
                    self.next();
                    return Ok(Literal::Float(sign * x));
                }
                let value = text.parse::<i128>().ok().map(|n| if negative { -n } else { n });
                let Some(n) = value.and_then(|n| i64::try_from(n).ok()) else {
                    return self.error(format!("{text} doesn't fit 64 bits"));
                };
                self.next();
                Ok(Literal::Int(n))
            }
            _ => self.expected("a number"),
        }
    }

    // Values.

    /// A use of a value.
    pub(super) fn value(&mut self) -> Parsed<ValueId> {
        let Kind::Value(name) = self.peek() else { return self.expected("a value") };
        let Some(&id) = self.values.get(name) else {
            return self.error(format!("value `%{name}` isn't defined above"));
        };
        self.next();
        Ok(id)
    }

    /// Values separated by commas, at least one.
    pub(super) fn value_list(&mut self) -> Parsed<Vec<ValueId>> {
        let mut list = vec![self.value()?];
        while self.eat(Kind::Punct(',')) {
            list.push(self.value()?);
        }
        Ok(list)
    }

    /// `%name: type@scope`. The name may be used from here on.
    pub(super) fn definition(&mut self) -> Parsed<ValueId> {
        let Kind::Value(name) = self.peek() else { return self.expected("a value") };
        if self.values.contains_key(name) {
            return self.error(format!("value `%{name}` is defined twice"));
        }
        self.next();
        self.punct(':')?;
        let ty = self.ty()?;
        self.punct('@')?;
        let scope = self.scope()?;
        let value = Value { ty, scope };
        let id = if self.pending.is_empty() {
            self.kernel.values.push(value)
        } else {
            let Some((n, slot)) = name
                .parse::<usize>()
                .ok()
                .and_then(|n| self.pending.get_mut(n).map(|slot| (n, slot)))
            else {
                return self.error_before(format!("value `%{name}` has no place"));
            };
            *slot = Some(value);
            ValueId::from_index(n)
        };
        self.values.insert(name, id);
        Ok(id)
    }

    fn ty(&mut self) -> Parsed<Type> {
        if self.eat_word("token") {
            return Ok(Type::Token);
        }
        if !self.eat_word("fragment") {
            return Ok(Type::Elem(self.elem()?));
        }
        self.punct('<')?;
        let atom = self.atom()?;
        self.punct(',')?;
        let role = match self.word("`a`, `b` or `acc`")? {
            "a" => FragmentRole::A,
            "b" => FragmentRole::B,
            "acc" => FragmentRole::Accumulator,
            other => {
                return self.error_before(format!("expected `a`, `b` or `acc`, not `{other}`"));
            }
        };
        self.punct(',')?;
        let dtype = self.dtype()?;
        self.punct('>')?;
        Ok(Type::Fragment { atom, role, dtype })
    }

    fn atom(&mut self) -> Parsed<Atom> {
        let name = self.word("an atom")?;
        if name == "simdgroup8x8" {
            return Ok(Atom::Simdgroup8x8);
        }
        let count = match name {
            "outer_product" | "mpp" => 2,
            "mma_sync" | "wgmma" => 3,
            _ => {
                return self.error_before(format!(
                    "unknown atom `{name}`: use simdgroup8x8, outer_product, mpp, mma_sync or \
                     wgmma"
                ));
            }
        };
        let mut n = [0u32; 3];
        self.punct('(')?;
        for (i, n) in n.iter_mut().take(count).enumerate() {
            if i > 0 {
                self.punct(',')?;
            }
            *n = self.number("an extent")?;
        }
        self.punct(')')?;
        Ok(match name {
            "outer_product" => Atom::OuterProduct { rows: n[0], vectors: n[1] },
            "mpp" => Atom::Mpp { rows: n[0], cols: n[1] },
            "mma_sync" => Atom::MmaSync { m: n[0], n: n[1], k: n[2] },
            _ => Atom::Wgmma { m: n[0], n: n[1], k: n[2] },
        })
    }

    fn elem(&mut self) -> Parsed<Elem> {
        if self.eat_word("index") {
            return Ok(Elem::Index);
        }
        Ok(Elem::Data(self.dtype()?))
    }

    fn dtype(&mut self) -> Parsed<DType> {
        let name = self.word("a type")?;
        match name.parse::<DType>() {
            Ok(dtype) => Ok(dtype),
            Err(error) => self.error_before(error.to_string()),
        }
    }

    pub(super) fn scope(&mut self) -> Parsed<Scope> {
        let name = self.word("a scope")?;
        let block = name.strip_prefix("block").and_then(|k| k.parse::<u32>().ok());
        Ok(match (name, block) {
            ("lane", _) => Scope::Lane,
            ("subgroup", _) => Scope::Subgroup,
            ("group", _) => Scope::Group,
            ("cluster", _) => Scope::Cluster,
            ("grid", _) => Scope::Grid,
            (_, Some(k)) => Scope::SubgroupBlock(k),
            _ => {
                return self.error_before(format!(
                    "unknown scope `{name}`: use lane, subgroup, blockN, group, cluster or grid"
                ));
            }
        })
    }

    // Names.

    fn declare(&mut self, entity: impl FnOnce(&mut Self, String) -> Parsed<Entity>) -> Parsed<()> {
        let name = self.word("a name")?;
        if self.names.contains_key(name) {
            return self.error_before(format!("`{name}` is declared twice"));
        }
        self.punct(':')?;
        let entity = entity(self, name.to_string())?;
        self.names.insert(name, entity);
        Ok(())
    }

    pub(super) fn entity<T>(
        &mut self,
        what: &str,
        pick: impl FnOnce(Entity) -> Option<T>,
    ) -> Parsed<T> {
        let name = self.word(what)?;
        match self.names.get(name).copied().map(pick) {
            Some(Some(id)) => Ok(id),
            Some(None) => self.error_before(format!("expected {what}, `{name}` is something else")),
            None => self.error_before(format!("`{name}` isn't declared: expected {what}")),
        }
    }

    // The kernel.

    fn kernel(&mut self, numbered: bool) -> Parsed<()> {
        self.keyword("kernel")?;
        self.kernel.name = self.word("a name")?.to_string();
        self.keyword("lanes")?;
        self.kernel.lanes = self.number("a number of lanes")?;
        self.keyword("subgroups")?;
        self.kernel.subgroups = self.number("a number of subgroups")?;
        if self.eat_word("cluster") {
            self.kernel.cluster = self.number("a number of groups")?;
        }
        if self.eat_word("resident") {
            self.kernel.resident = self.number("a number of groups")?;
        }
        self.punct('{')?;
        self.newline()?;
        let mut grid = None;
        loop {
            match self.peek() {
                Kind::Word("grid") => {
                    if grid.is_some() {
                        return self.error("the grid is declared twice".into());
                    }
                    self.next();
                    grid = Some(self.at);
                    // Its sizes are arguments, which come below.
                    while !matches!(self.peek(), Kind::Newline | Kind::End) {
                        self.next();
                    }
                }
                Kind::Word("arg") => {
                    self.next();
                    self.declare(Self::arg)?;
                }
                Kind::Word("shared") => {
                    self.next();
                    self.declare(Self::shared)?;
                }
                Kind::Word("private") => {
                    self.next();
                    self.declare(|p, name| {
                        let dtype = p.dtype()?;
                        p.punct('[')?;
                        let len = p.number("a length")?;
                        p.punct(']')?;
                        let private = Private { name, dtype, len };
                        Ok(Entity::Private(p.kernel.private.push(private)))
                    })?;
                }
                // `barrier NAME:` declares, `barrier NAME` waits.
                Kind::Word("barrier")
                    if self.tokens.get(self.at + 2).map(|t| t.kind) == Some(Kind::Punct(':')) =>
                {
                    self.next();
                    self.declare(|p, name| {
                        let scope = p.scope()?;
                        let participants = if p.eat_word("participants") {
                            Some(p.number("a number of subgroups")?)
                        } else {
                            None
                        };
                        let barrier = Barrier { name, scope, participants };
                        Ok(Entity::Barrier(p.kernel.barriers.push(barrier)))
                    })?;
                }
                Kind::Word("mbarrier") => {
                    self.next();
                    self.declare(|p, name| {
                        let len = p.number("a number of barriers")?;
                        p.keyword("arrivals")?;
                        let arrivals = p.number("a number of arrivals")?;
                        let mbarrier = Mbarrier { name, len, arrivals };
                        Ok(Entity::Mbarrier(p.kernel.mbarriers.push(mbarrier)))
                    })?;
                }
                Kind::Word("role") => {
                    self.next();
                    self.declare(Self::role)?;
                }
                Kind::Word("unused") => {
                    self.next();
                    self.definition()?;
                }
                _ => break,
            }
            self.newline()?;
        }
        if let Some(at) = grid {
            let here = std::mem::replace(&mut self.at, at);
            self.grid()?;
            self.at = here;
        }
        let (body, yields) = self.block()?;
        if !yields.is_empty() {
            return self.error("the body of a kernel yields nothing".into());
        }
        self.kernel.body = body;
        self.punct('}')?;
        self.eat(Kind::Newline);
        if self.peek() != Kind::End {
            return self.expected("the end of the text");
        }
        if numbered {
            for (n, slot) in std::mem::take(&mut self.pending).into_iter().enumerate() {
                let Some(value) = slot else {
                    return self.error(format!("value `%{n}` isn't defined"));
                };
                self.kernel.values.push(value);
            }
        }
        Ok(())
    }

    fn grid(&mut self) -> Parsed<()> {
        loop {
            let size = if let Kind::Number(_) = self.peek() {
                Size::Const(self.number("a size")?)
            } else {
                Size::Arg(self.entity("an index argument", |e| match e {
                    Entity::Arg(id) => Some(id),
                    _ => None,
                })?)
            };
            self.keyword("step")?;
            let step = self.number("a step")?;
            self.kernel.grid.push(GridDim { size, step });
            if !self.eat(Kind::Punct(',')) {
                return self.newline();
            }
        }
    }

    fn arg(&mut self, name: String) -> Parsed<Entity> {
        let kind = if self.eat_word("buffer") {
            let dtype = self.dtype()?;
            let access = match self.word("`in`, `out` or `inout`")? {
                "in" => Access::In,
                "out" => Access::Out,
                "inout" => Access::InOut,
                other => {
                    return self
                        .error_before(format!("expected `in`, `out` or `inout`, not `{other}`"));
                }
            };
            self.keyword("align")?;
            let align = self.number("an alignment")?;
            let mut evict = Evict::Normal;
            if self.eat_word("evict") {
                evict = match self.word("`first`, `last` or `head`")? {
                    "first" => Evict::First,
                    "last" => Evict::Last,
                    "head" => Evict::Head(self.number("a number of bytes")?),
                    other => {
                        return self.error_before(format!(
                            "expected `first`, `last` or `head`, not `{other}`"
                        ));
                    }
                };
            }
            ArgKind::Buffer { dtype, access, align, evict }
        } else if self.eat_word("tensor_map") {
            let dtype = self.dtype()?;
            self.keyword("box")?;
            self.punct('[')?;
            let box_rows = self.number("a number of rows")?;
            self.punct(',')?;
            let box_cols = self.number("a number of columns")?;
            self.punct(']')?;
            self.keyword("swizzle")?;
            ArgKind::TensorMap { dtype, box_rows, box_cols, swizzle: self.swizzle()? }
        } else {
            ArgKind::Number(self.elem()?)
        };
        let mut source = ArgSource::Free;
        if self.eat_word("from") {
            let what = self.word("`tensor`, `scalar`, `dim` or `scratch`")?;
            source = match what {
                "scratch" => ArgSource::Scratch(self.number("a length")?),
                "tensor" => ArgSource::Tensor(TensorId::from_index(self.position()?)),
                "scalar" => ArgSource::Scalar(ScalarId::from_index(self.position()?)),
                "dim" => ArgSource::Dim(DimId::from_index(self.position()?)),
                _ => return self.error_before(format!("unknown source `{what}`")),
            };
        }
        Ok(Entity::Arg(self.kernel.args.push(Arg { name, kind, source })))
    }

    fn position(&mut self) -> Parsed<usize> {
        Ok(self.number::<u32>("a position")? as usize)
    }

    fn swizzle(&mut self) -> Parsed<Swizzle> {
        Ok(match self.word("a swizzle")? {
            "none" => Swizzle::None,
            "b32" => Swizzle::B32,
            "b64" => Swizzle::B64,
            "b128" => Swizzle::B128,
            other => {
                return self.error_before(format!(
                    "unknown swizzle `{other}`: use none, b32, b64 or b128"
                ));
            }
        })
    }

    fn shared(&mut self, name: String) -> Parsed<Entity> {
        let dtype = self.dtype()?;
        self.punct('[')?;
        let rows = self.number("a number of rows")?;
        self.punct(',')?;
        let cols = self.number("a number of columns")?;
        self.punct(']')?;
        let layout = if self.eat_word("padded") {
            Layout::Padded(self.number("a number of elements")?)
        } else if self.eat_word("swizzle") {
            Layout::Swizzled(self.swizzle()?)
        } else {
            Layout::Plain
        };
        let shared = Shared { name, dtype, rows, cols, layout };
        Ok(Entity::Shared(self.kernel.shared.push(shared)))
    }

    fn role(&mut self, name: String) -> Parsed<Entity> {
        self.keyword("subgroups")?;
        let first: u32 = self.number("a subgroup")?;
        if !self.eat(Kind::DotDot) {
            return self.expected("`..`");
        }
        let end: u32 = self.number("a subgroup")?;
        let Some(count) = end.checked_sub(first) else {
            return self.error_before(format!("{first}..{end} runs backwards"));
        };
        Ok(Entity::Role(self.kernel.roles.push(Role { name, first, count })))
    }

    /// Statements up to `}`, with what a last `yield` hands over.
    fn block(&mut self) -> Parsed<(Block, Vec<ValueId>)> {
        let mut block = Block::default();
        loop {
            match self.peek() {
                Kind::Punct('}') => return Ok((block, Vec::new())),
                Kind::Word("yield") => {
                    self.next();
                    let yields = self.value_list()?;
                    self.newline()?;
                    if self.peek() != Kind::Punct('}') {
                        return self.expected("`}` after `yield`");
                    }
                    return Ok((block, yields));
                }
                Kind::End => return self.expected("a statement or `}`"),
                _ => {
                    let stmt = self.stmt()?;
                    self.newline()?;
                    block.stmts.push(stmt);
                }
            }
        }
    }

    /// `{`, statements, `}`.
    pub(super) fn braced(&mut self) -> Parsed<(Block, Vec<ValueId>)> {
        if self.depth >= self.limits.depth {
            return self.error(format!("blocks are nested over {} deep", self.limits.depth));
        }
        self.depth += 1;
        self.punct('{')?;
        self.newline()?;
        let inner = self.block()?;
        self.punct('}')?;
        self.depth -= 1;
        Ok(inner)
    }

    fn stmt(&mut self) -> Parsed<Stmt> {
        // Results may not be used by the statement's own operands, yet their types stand first:
        // parse the operation, then the results.
        let start = self.at;
        if let Kind::Value(_) = self.peek() {
            while self.peek() != Kind::Punct('=') {
                if matches!(self.peek(), Kind::Newline | Kind::End) {
                    return self.expected("`=`");
                }
                self.next();
            }
            self.next();
            let op = self.op()?;
            let end = std::mem::replace(&mut self.at, start);
            let mut results = vec![self.definition()?];
            while self.eat(Kind::Punct(',')) {
                results.push(self.definition()?);
            }
            if self.peek() != Kind::Punct('=') {
                return self.expected("`,` or `=`");
            }
            self.at = end;
            return Ok(Stmt { op, results });
        }
        Ok(Stmt { op: self.op()?, results: Vec::new() })
    }
}
