//! Text → operations.

use super::lex::Kind;
use super::parse::{Entity, Parsed, Parser};
use crate::kernel::*;
use tilewright_ir::program::{MapOp, ReduceOp};

impl Parser<'_> {
    /// Everything right of `=`.
    pub(super) fn op(&mut self) -> Parsed<Op> {
        let name = self.word("an operation")?;
        if let Some(op) = MapOp::from_name(name) {
            let args = self.map_args(op)?;
            return Ok(Op::Map { op, args });
        }
        Ok(match name {
            "const" => Op::Const(self.literal()?),
            "arg" => Op::Arg(self.arg_name()?),
            "group_id" => Op::GroupId(self.number("a grid dimension")?),
            "cluster_rank" => Op::ClusterRank,
            "subgroup_id" => Op::SubgroupId,
            "lane" => Op::Lane,
            "fma" => {
                let a = self.value()?;
                self.punct(',')?;
                let b = self.value()?;
                self.punct(',')?;
                Op::Fma { a, b, c: self.value()? }
            }
            "cast" => Op::Cast(self.value()?),
            "load" => Op::Load { place: self.place()?, guard: self.guard()? },
            "store" => {
                let place = self.place()?;
                self.punct(',')?;
                Op::Store { place, values: self.value_list()?, guard: self.guard()? }
            }
            "atomic" => self.atomic()?,
            "reduce" => {
                let op = Collective::Reduce(self.reduce_op()?);
                Op::Collective { op, value: self.value()? }
            }
            "broadcast" => {
                let op = Collective::Broadcast(self.number("a lane")?);
                Op::Collective { op, value: self.value()? }
            }
            "shuffle_xor" => {
                let op = Collective::ShuffleXor(self.number("a lane mask")?);
                Op::Collective { op, value: self.value()? }
            }
            "any" => Op::Collective { op: Collective::Any, value: self.value()? },
            "barrier" => Op::Barrier(self.barrier()?),
            "barrier_arrive" => Op::BarrierArrive(self.barrier()?),
            "barrier_wait" => Op::BarrierWait(self.barrier()?),
            "proxy_fence" => Op::ProxyFence,
            "for" => self.for_loop()?,
            "if" => self.branch()?,
            "in_role" => {
                let role = self.entity("a role", |e| match e {
                    Entity::Role(id) => Some(id),
                    _ => None,
                })?;
                let registers = if self.eat_word("registers") {
                    Some(self.number("a number of registers")?)
                } else {
                    None
                };
                let (body, yields) = self.braced()?;
                if !yields.is_empty() {
                    return self.error_before("a role yields nothing".into());
                }
                Op::InRole { role, registers, body }
            }
            "fragment_fill" => Op::FragmentFill(self.float()?),
            "fragment_load" => Op::FragmentLoad(self.view()?),
            "fragment_store" => {
                let view = self.view()?;
                self.punct(',')?;
                let fragment = self.value()?;
                Op::FragmentStore { fragment, view, stream: self.eat_word("stream") }
            }
            "fragment_map" => {
                let name = self.word("an elementwise operation")?;
                let Some(op) = MapOp::from_name(name) else {
                    return self.error_before(format!("unknown elementwise operation `{name}`"));
                };
                let args = self.map_args(op)?;
                Op::FragmentMap { op, args }
            }
            "mma" => {
                let (a, b, c) = self.mma()?;
                let depth = if self.eat_word("depth") { Some(self.value()?) } else { None };
                Op::Mma { a, b, c, depth }
            }
            "mma_async" => {
                let (a, b, c) = self.mma()?;
                Op::MmaAsync { a, b, c }
            }
            "copy_async" => {
                let to = self.place()?;
                self.punct(',')?;
                let from = self.place()?;
                self.keyword("width")?;
                let width = self.number("a width")?;
                Op::CopyAsync { to, from, width, guard: self.guard()? }
            }
            "copy_tensor" => self.copy_tensor()?,
            "mbarrier_init" => {
                let (mbarrier, stage) = self.mbarrier()?;
                Op::MbarrierInit { mbarrier, stage }
            }
            "mbarrier_arrive" => {
                let (mbarrier, stage) = self.mbarrier()?;
                let expect = if self.eat_word("expect") { Some(self.value()?) } else { None };
                Op::MbarrierArrive { mbarrier, stage, expect }
            }
            "mbarrier_wait" => {
                let (mbarrier, stage) = self.mbarrier()?;
                self.keyword("parity")?;
                Op::MbarrierWait { mbarrier, stage, parity: self.value()? }
            }
            "wait" => {
                let tokens = match self.peek() {
                    Kind::Value(_) => self.value_list()?,
                    _ => Vec::new(),
                };
                let pending =
                    if self.eat_word("pending") { self.number("a number of tokens")? } else { 0 };
                Op::Wait { tokens, pending }
            }
            _ => return self.error_before(format!("unknown operation `{name}`")),
        })
    }

    fn map_args(&mut self, op: MapOp) -> Parsed<Vec<ValueId>> {
        let args = self.value_list()?;
        if args.len() != op.arity() {
            let (name, arity, found) = (op.name(), op.arity(), args.len());
            return self.error_before(format!("`{name}` takes {arity} operands, not {found}"));
        }
        Ok(args)
    }

    fn arg_name(&mut self) -> Parsed<ArgId> {
        self.entity("an argument", |e| match e {
            Entity::Arg(id) => Some(id),
            _ => None,
        })
    }

    fn reduce_op(&mut self) -> Parsed<ReduceOp> {
        let name = self.word("a fold")?;
        match ReduceOp::ALL.into_iter().find(|op| op.name() == name) {
            Some(op) => Ok(op),
            None => self.error_before(format!("unknown fold `{name}`: use add, max, min or mul")),
        }
    }

    fn barrier(&mut self) -> Parsed<BarrierId> {
        self.entity("a barrier", |e| match e {
            Entity::Barrier(id) => Some(id),
            _ => None,
        })
    }

    /// `x`, or `x@cluster` for the shared buffers of all groups of the cluster.
    fn memory(&mut self) -> Parsed<Memory> {
        let memory = self.entity("a buffer", |e| match e {
            Entity::Arg(id) => Some(Memory::Global(id)),
            Entity::Shared(id) => Some(Memory::Shared(id)),
            Entity::Private(id) => Some(Memory::Private(id)),
            _ => None,
        })?;
        if !self.eat(Kind::Punct('@')) {
            return Ok(memory);
        }
        self.keyword("cluster")?;
        match memory {
            Memory::Shared(id) => Ok(Memory::Cluster(id)),
            _ => self.error_before("only shared memory is reached across a cluster".into()),
        }
    }

    /// `x[%base + lane*4 + %index]`
    fn place(&mut self) -> Parsed<Place> {
        let memory = self.memory()?;
        self.punct('[')?;
        let base = self.value()?;
        let mut place = Place { memory, base, lane_stride: 0, index: None };
        while self.eat(Kind::Punct('+')) {
            if place.lane_stride == 0 && place.index.is_none() && self.eat_word("lane") {
                self.punct('*')?;
                place.lane_stride = self.signed("a stride")?;
            } else if place.index.is_none() {
                place.index = Some(self.value()?);
            } else {
                return self.expected("`]`");
            }
        }
        self.punct(']')?;
        Ok(place)
    }

    /// ` where count %n fill 0.0`, if it is there.
    fn guard(&mut self) -> Parsed<Option<Guard>> {
        if !self.eat_word("where") {
            return Ok(None);
        }
        let test = if self.eat_word("count") {
            GuardTest::Count(self.value()?)
        } else if self.eat_word("mask") {
            GuardTest::Mask(self.value()?)
        } else {
            return self.expected("`count` or `mask`");
        };
        let fill = if self.eat_word("fill") { self.float()? } else { 0.0 };
        Ok(Some(Guard { test, fill }))
    }

    /// `x(%base + r*%rs + c*%cs, rows %m, cols %n)`
    fn view(&mut self) -> Parsed<View> {
        let memory = self.memory()?;
        self.punct('(')?;
        let base = self.value()?;
        self.punct('+')?;
        self.keyword("r")?;
        self.punct('*')?;
        let row_stride = self.value()?;
        self.punct('+')?;
        self.keyword("c")?;
        self.punct('*')?;
        let col_stride = self.value()?;
        let mut view = View { memory, base, row_stride, col_stride, rows: None, cols: None };
        while self.eat(Kind::Punct(',')) {
            if view.rows.is_none() && view.cols.is_none() && self.eat_word("rows") {
                view.rows = Some(self.value()?);
            } else if view.cols.is_none() && self.eat_word("cols") {
                view.cols = Some(self.value()?);
            } else {
                return self.expected("`rows` or `cols`");
            }
        }
        self.punct(')')?;
        Ok(view)
    }

    fn operand(&mut self) -> Parsed<Operand> {
        match self.peek() {
            Kind::Value(_) => Ok(Operand::Fragment(self.value()?)),
            _ => Ok(Operand::View(self.view()?)),
        }
    }

    fn mma(&mut self) -> Parsed<(Operand, Operand, ValueId)> {
        let a = self.operand()?;
        self.punct(',')?;
        let b = self.operand()?;
        self.punct(',')?;
        Ok((a, b, self.value()?))
    }

    fn atomic(&mut self) -> Parsed<Op> {
        let op = if self.eat_word("exchange") { None } else { Some(self.reduce_op()?) };
        let place = self.place()?;
        self.punct(',')?;
        let value = self.value()?;
        let order = match self.word("a memory order")? {
            "relaxed" => Order::Relaxed,
            "acquire" => Order::Acquire,
            "release" => Order::Release,
            "acq_rel" => Order::AcqRel,
            other => {
                return self.error_before(format!(
                    "unknown memory order `{other}`: use relaxed, acquire, release or acq_rel"
                ));
            }
        };
        let scope = self.scope()?;
        Ok(Op::Atomic { op, place, value, order, scope, guard: self.guard()? })
    }

    fn for_loop(&mut self) -> Parsed<Op> {
        let index = self.definition()?;
        self.keyword("in")?;
        let lo = self.value()?;
        if !self.eat(Kind::DotDot) {
            return self.expected("`..`");
        }
        let hi = self.value()?;
        self.keyword("step")?;
        let step = self.number("a step")?;
        let unroll = if self.eat_word("unroll") { self.number("a factor")? } else { 1 };
        let mut heads = Vec::new();
        if self.eat_word("carry") {
            loop {
                let inner = self.definition()?;
                self.punct('=')?;
                heads.push((inner, self.value()?));
                if !self.eat(Kind::Punct(',')) {
                    break;
                }
            }
        }
        let (body, next) = self.braced()?;
        if next.len() != heads.len() {
            return self.error_before(format!(
                "the loop carries {} values and yields {}",
                heads.len(),
                next.len()
            ));
        }
        let carries = heads
            .into_iter()
            .zip(next)
            .map(|((inner, init), next)| Carry { init, inner, next })
            .collect();
        Ok(Op::For { index, lo, hi, step, unroll, carries, body })
    }

    fn branch(&mut self) -> Parsed<Op> {
        let cond = self.value()?;
        let (then, then_values) = self.braced()?;
        let (otherwise, else_values) =
            if self.eat_word("else") { self.braced()? } else { Default::default() };
        if then_values.len() != else_values.len() {
            return self.error_before(format!(
                "the branches yield {} and {} values",
                then_values.len(),
                else_values.len()
            ));
        }
        Ok(Op::If { cond, then, then_values, otherwise, else_values })
    }

    /// `full[%stage]`
    fn mbarrier(&mut self) -> Parsed<(MbarrierId, ValueId)> {
        let id = self.entity("an mbarrier", |e| match e {
            Entity::Mbarrier(id) => Some(id),
            _ => None,
        })?;
        self.punct('[')?;
        let stage = self.value()?;
        self.punct(']')?;
        Ok((id, stage))
    }

    /// `tile[%offset], map[%row, %col] on full[%stage]`
    fn copy_tensor(&mut self) -> Parsed<Op> {
        let to = self.entity("a shared buffer", |e| match e {
            Entity::Shared(id) => Some(id),
            _ => None,
        })?;
        self.punct('[')?;
        let offset = self.value()?;
        self.punct(']')?;
        self.punct(',')?;
        let map = self.arg_name()?;
        self.punct('[')?;
        let coords = self.value_list()?;
        self.punct(']')?;
        self.keyword("on")?;
        let (mbarrier, stage) = self.mbarrier()?;
        Ok(Op::CopyTensor { map, coords, to, offset, mbarrier, stage })
    }
}
