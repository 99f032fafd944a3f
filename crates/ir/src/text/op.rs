//! Parsing of operations.

use crate::program::*;
use crate::text::infer::result_type;
use crate::text::lex::{Tok, shorten};
use crate::text::parse::{Parsed, Parser};
use crate::types::DType;

/// A result as written: name, and the type if the text states one.
struct Target<'a> {
    name: &'a str,
    ty: Option<TileType>,
}

/// A number of things in words.
fn count(n: usize, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}

fn untyped() -> TileType {
    TileType { dtype: DType::F32, axes: Vec::new() }
}

impl<'a> Parser<'a> {
    /// One operation, up to the end of its line (of its block, for a loop).
    pub fn statement(&mut self, depth: usize, loc: Loc) -> Parsed<OpId> {
        match self.peek() {
            Tok::Value(_) => {
                let mut targets = Vec::new();
                let result = self.assignment(&mut targets, depth, loc);
                if result.is_err() {
                    for target in targets {
                        self.names.poisoned.insert(target.name);
                    }
                }
                result
            }
            Tok::Word("store") => {
                self.next();
                let op = self.store()?;
                self.end_of_line("`clip` or ")?;
                Ok(self.program.ops.push(OpData { op, results: Vec::new(), loc }))
            }
            Tok::Word("for") => self.repeat(Vec::new(), depth, loc),
            Tok::Word("dim" | "in" | "out" | "inout" | "axis" | "grid") => {
                self.error(loc, "declarations come before the first operation; move this line up")
            }
            _ => self.expected("`%name = operation`, `store`, `for` or `}`"),
        }
    }

    fn assignment(
        &mut self,
        targets: &mut Vec<Target<'a>>,
        depth: usize,
        loc: Loc,
    ) -> Parsed<OpId> {
        loop {
            let Tok::Value(name) = self.peek() else { return self.expected("a value") };
            self.next();
            targets.push(Target { name, ty: None });
            if self.accept(":") {
                let dtype = self.dtype()?;
                let axes = self.list("[", "]", Self::axis)?;
                if let Some(target) = targets.last_mut() {
                    target.ty = Some(TileType { dtype, axes });
                }
            }
            if !self.accept(",") {
                break;
            }
        }
        if !self.accept("=") {
            return self.expected("`=`");
        }
        if matches!(self.peek(), Tok::Word("for")) {
            // A failing loop header poisons its results, so keep the list here.
            let names: Vec<&'a str> = targets.iter().map(|t| t.name).collect();
            let result = self.repeat(std::mem::take(targets), depth, loc);
            if result.is_err() {
                self.names.poisoned.extend(names);
            }
            return result;
        }
        let [target] = &targets[..] else {
            let found = targets.len();
            return self.error(loc, format!("{}; only a loop has several", count(found, "result")));
        };
        let (name, stated) = (target.name, target.ty.clone());
        let (op, explicit) = self.operation()?;
        self.end_of_line("")?;
        let inferred = result_type(&self.program, &op, &explicit).unwrap_or_else(untyped);
        let value = self.define(name, stated.unwrap_or(inferred));
        Ok(self.program.ops.push(OpData { op, results: vec![value], loc }))
    }

    /// A value with that name. A second one of the name replaces it in what follows; the verifier
    /// reports it.
    fn define(&mut self, name: &'a str, ty: TileType) -> ValueId {
        let id = self.program.values.push(Value { name: name.to_string(), ty });
        self.names.values.insert(name, id);
        id
    }

    /// A use of a value.
    fn value(&mut self) -> Parsed<ValueId> {
        let loc = self.loc();
        let Tok::Value(name) = self.peek() else { return self.expected("a value such as `%x`") };
        self.next();
        if let Some(id) = self.names.values.get(name) {
            return Ok(*id);
        }
        if self.names.poisoned.remove(name) {
            // Stands in for the value of a line that failed: the program is discarded anyway.
            let id = self.define(name, untyped());
            return Ok(id);
        }
        let name = shorten(name);
        self.error(loc, format!("`%{name}` isn't defined above; define it before its first use"))
    }

    /// At least one value.
    pub fn values(&mut self) -> Parsed<Vec<ValueId>> {
        let mut values = vec![self.value()?];
        while self.accept(",") {
            values.push(self.value()?);
        }
        Ok(values)
    }

    /// An operation after `=`, with the type that it states itself.
    fn operation(&mut self) -> Parsed<(Op, TileType)> {
        let loc = self.loc();
        let mut explicit = untyped();
        let op = match self.word("an operation")? {
            "const" => {
                let value = self.float()?;
                explicit.dtype = self.dtype()?;
                Op::Const { value }
            }
            "scalar" => {
                let loc = self.loc();
                let name = self.word("a scalar parameter")?;
                Op::Scalar(self.resolve(loc, "scalar", name, &self.names.scalars)?)
            }
            "size" => Op::Size(self.extent()?),
            "index" => {
                let coord = self.coord()?;
                if coord.gather.is_some() {
                    return self.error(loc, "`index` takes no `%value`; add it with `add`");
                }
                Op::Index { origin: coord.origin, axis: coord.axis }
            }
            "load" => {
                let (tensor, coords) = self.access()?;
                let bounds = match self.accept_word("fill") {
                    true => Bounds::Fill(self.float()?),
                    false => Bounds::Assume,
                };
                Op::Load { tensor, coords, bounds }
            }
            "cast" => {
                let value = self.value()?;
                self.keyword("to")?;
                explicit.dtype = self.dtype()?;
                Op::Cast(value)
            }
            "broadcast" => {
                let value = self.value()?;
                self.keyword("to")?;
                explicit.axes = self.list("[", "]", Self::axis)?;
                Op::Broadcast(value)
            }
            "reduce" => self.reduce()?,
            "mma" => {
                let args = self.values()?;
                let [a, b, c] = args[..] else {
                    return self.error(loc, format!("`mma` takes %a, %b, %c, not {}", args.len()));
                };
                Op::Mma { a, b, c, allow_reassociation: !self.accept_word("ordered") }
            }
            "reindex" => {
                let value = self.value()?;
                let axes = self.list("[", "]", |p| {
                    let old = p.axis()?;
                    p.mark("->")?;
                    Ok((old, p.axis()?))
                })?;
                Op::Reindex { value, axes }
            }
            name => {
                let Some(op) = MapOp::from_name(name) else {
                    let maps: Vec<&str> = MapOp::ALL.iter().map(|op| op.name()).collect();
                    let name = shorten(name);
                    return self.error(
                        loc,
                        format!(
                            "unknown operation `{name}`; there are const, scalar, size, index, load, \
                             cast, broadcast, reduce, mma, reindex, for and the maps {}",
                            maps.join(", ")
                        ),
                    );
                };
                let args = self.values()?;
                if args.len() != op.arity() {
                    let (want, found) = (op.arity(), args.len());
                    return self.error(
                        loc,
                        format!("`{name}` takes {}, not {found}", count(want, "value")),
                    );
                }
                Op::Map { op, args }
            }
        };
        Ok((op, explicit))
    }

    fn reduce(&mut self) -> Parsed<Op> {
        let loc = self.loc();
        let name = self.word("a fold (add, max, min or mul)")?;
        let Some(op) = ReduceOp::ALL.into_iter().find(|op| op.name() == name) else {
            return self.error(loc, format!("unknown fold `{name}`; use add, max, min or mul"));
        };
        let value = self.value()?;
        self.keyword("over")?;
        let axis = self.axis()?;
        let mut order = OrderPolicy::default();
        if self.accept_word("order") {
            const ORDERS: [OrderPolicy; 4] = [
                OrderPolicy::UnorderedTree,
                OrderPolicy::OrderedTree,
                OrderPolicy::FoldLeft,
                OrderPolicy::FoldRight,
            ];
            let names = ORDERS.map(OrderPolicy::name).join(", ");
            let loc = self.loc();
            let name = self.word(&format!("an order ({names})"))?;
            order = match ORDERS.into_iter().find(|o| o.name() == name) {
                Some(order) => order,
                None => return self.error(loc, format!("unknown order `{name}`; use {names}")),
            };
        }
        Ok(Op::Reduce { op, value, axis, order })
    }

    fn store(&mut self) -> Parsed<Op> {
        let (tensor, coords) = self.access()?;
        self.mark(",")?;
        let value = self.value()?;
        let bounds = match self.accept_word("clip") {
            true => Bounds::Fill(0.0),
            false => Bounds::Assume,
        };
        Ok(Op::Store { tensor, coords, value, bounds })
    }

    /// `TENSOR[COORD, …]`.
    fn access(&mut self) -> Parsed<(TensorId, Vec<Coord>)> {
        let loc = self.loc();
        let name = self.word("a tensor")?;
        let tensor = self.resolve(loc, "tensor", name, &self.names.tensors)?;
        Ok((tensor, self.list("[", "]", Self::coord)?))
    }

    /// A coordinate: `2*i + k - 3 + %g:j`.
    fn coord(&mut self) -> Parsed<Coord> {
        let mut coord = Coord::default();
        let mut first = true;
        while first || matches!(self.peek(), Tok::Mark("+" | "-")) {
            if first && matches!(self.peek(), Tok::Mark(":")) {
                break;
            }
            let negative = match self.peek() {
                Tok::Mark("-") => {
                    self.next();
                    true
                }
                Tok::Mark("+") if !first => {
                    self.next();
                    false
                }
                _ => false,
            };
            first = false;
            self.term(&mut coord, negative)?;
        }
        if self.accept(":") {
            coord.axis = Some(self.axis()?);
        }
        Ok(coord)
    }

    fn term(&mut self, coord: &mut Coord, negative: bool) -> Parsed<()> {
        let loc = self.loc();
        match self.peek() {
            Tok::Value(_) if negative => {
                self.error(loc, "a gathered index can't be negated; use `neg` on it first")
            }
            Tok::Value(_) => {
                let value = self.value()?;
                match coord.gather.replace(value) {
                    None => Ok(()),
                    Some(_) => self.error(loc, "two gathered indices; add them with `add` first"),
                }
            }
            Tok::Number(_) => {
                let n = self.signed(negative)?;
                if self.accept("*") {
                    let index = self.index()?;
                    coord.origin.terms.push((index, n));
                    return Ok(());
                }
                match coord.origin.constant.checked_add(n) {
                    Some(sum) => coord.origin.constant = sum,
                    None => return self.error(loc, "the constant of this coordinate overflows"),
                }
                Ok(())
            }
            Tok::Word(_) => {
                let index = self.index()?;
                if matches!(self.peek(), Tok::Mark("*")) {
                    return self.error(loc, "write the number first, as `2*i`");
                }
                coord.origin.terms.push((index, if negative { -1 } else { 1 }));
                Ok(())
            }
            _ => self.expected("an index, a number, `%value` or `:axis`"),
        }
    }

    fn signed(&mut self, negative: bool) -> Parsed<i64> {
        let loc = self.loc();
        let n = self.integer("an integer")?;
        let value = if negative { 0i64.checked_sub_unsigned(n) } else { i64::try_from(n).ok() };
        match value {
            Some(value) => Ok(value),
            None => self.error(loc, format!("integer beyond the range of i64: {n}")),
        }
    }

    fn index(&mut self) -> Parsed<IndexId> {
        let loc = self.loc();
        let name = self.word("an index variable")?;
        if let Some((_, id)) = self.names.indices.iter().rev().find(|(n, _)| *n == name) {
            return Ok(*id);
        }
        let known: Vec<&str> = self.names.indices.iter().map(|(n, _)| *n).collect();
        let known = match known.is_empty() {
            true => "none is in scope".to_string(),
            false => format!("in scope: {}", known.join(", ")),
        };
        self.error(loc, format!("no index variable `{name}`; {known}"))
    }

    /// A loop, from `for`.
    fn repeat(&mut self, targets: Vec<Target<'a>>, depth: usize, loc: Loc) -> Parsed<OpId> {
        self.keyword("for")?;
        let kind_loc = self.loc();
        let kind = match self.word("`serial` or `pipeline N`")? {
            "serial" => LoopKind::Serial,
            "pipeline" => {
                let window_loc = self.loc();
                match u32::try_from(self.integer("a pipeline window")?) {
                    Ok(window) => LoopKind::Pipeline { window },
                    Err(_) => return self.error(window_loc, "a pipeline window fits 32 bits"),
                }
            }
            other => {
                let other = shorten(other);
                return self
                    .error(kind_loc, format!("unknown loop `{other}`; use serial or pipeline N"));
            }
        };
        let name_loc = self.loc();
        let name = self.word("the loop's index variable")?;
        self.keyword("in")?;
        let extent = self.extent()?;
        self.keyword("step")?;
        let step = self.extent()?;
        let mut entries: Vec<(&'a str, ValueId)> = Vec::new();
        if self.accept_word("carry") {
            loop {
                let Tok::Value(inner) = self.peek() else {
                    return self.expected("a carried value, as `%acc = %init`");
                };
                self.next();
                self.mark("=")?;
                entries.push((inner, self.value()?));
                if !self.accept(",") {
                    break;
                }
            }
        }
        let brace = self.loc();
        self.mark("{")?;
        self.end_of_line("")?;
        if targets.len() != entries.len() {
            // Not fatal for what follows: the body is still read for its own errors.
            self.report(
                brace,
                format!(
                    "a loop has one result per carried value: {}, {}",
                    count(targets.len(), "result"),
                    count(entries.len(), "carried value")
                ),
            );
        }
        // The order of creation is the builder's: index, inner values, body, results, loop.
        let outer = self.names.indices.len();
        let index = self.index_var((name, name_loc), extent, step);
        let mut carried = Vec::new();
        for (inner, init) in entries {
            let ty = self.program.values[init].ty.clone();
            carried.push((init, self.define(inner, ty)));
        }
        let (body, next) = self.block(depth + 1);
        self.names.indices.truncate(outer);
        if next.len() != carried.len() && !self.failed() {
            let (want, found) = (carried.len(), next.len());
            self.report(
                loc,
                format!("the loop carries {} and yields {found}; yield each", count(want, "value")),
            );
        }
        let mut results = Vec::new();
        for (at, target) in targets.into_iter().enumerate() {
            let inferred = carried.get(at).map(|(init, _)| self.program.values[*init].ty.clone());
            let ty = target.ty.or(inferred).unwrap_or_else(untyped);
            results.push(self.define(target.name, ty));
        }
        let carries = carried
            .into_iter()
            .zip(next)
            .map(|((init, inner), next)| Carry { init, inner, next })
            .collect();
        self.end_of_line("")?;
        let op = Op::Loop { kind, index, carries, body };
        Ok(self.program.ops.push(OpData { op, results, loc }))
    }
}
