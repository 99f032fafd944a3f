//! Fragment statements: bookkeeping around the register-tile emitter (see [`super::tile`]).

use std::collections::HashMap;

use tilewright_ir::DType;
use tilewright_ir::entity::Id;
use tilewright_kernel::kernel::*;

use super::lir::{Item, TileInput};
use super::select::{Res, Select};
use super::tile::{self, Tile, TileArg, TileOp, TileView};
use super::value::{Ix, Val};
use crate::error::CpuError;

/// One fragment: all values that share its registers.
#[derive(Clone, Debug)]
struct Web {
    /// Uses that are still to come.
    uses: usize,
    /// All uses, as counted before the walk.
    total: usize,
    /// The slot while it is live.
    slot: Option<u32>,
    /// Number of loops around the place where it became live.
    depth: usize,
}

/// All fragments of a kernel, and the element values that fragment statements read.
#[derive(Clone, Debug)]
pub struct Fragments {
    web_of: HashMap<ValueId, usize>,
    webs: Vec<Web>,
    elements: HashMap<ValueId, Option<u32>>,
    slots: Vec<bool>,
    /// Loops around the statement at hand.
    depth: usize,
}

impl Fragments {
    /// Joins values that are one fragment at different times (an accumulator before and after
    /// its update, the first operand and the result of a map, carries) and counts their uses.
    pub fn new(kernel: &Kernel) -> Res<Fragments> {
        let mut parent: Vec<usize> = (0..kernel.values.len()).collect();
        fn root(parent: &[usize], mut v: usize) -> usize {
            while parent[v] != v {
                v = parent[v];
            }
            v
        }
        let is_fragment =
            |v: ValueId| matches!(kernel.values.get(v).map(|v| v.ty), Some(Type::Fragment { .. }));
        let mut joins: Vec<(ValueId, ValueId)> = Vec::new();
        let mut uses: Vec<ValueId> = Vec::new();
        let mut elements = HashMap::new();
        kernel.body.walk(&mut |stmt| {
            stmt.op.for_each_operand(&mut |v| uses.push(v));
            match &stmt.op {
                Op::Mma { c, .. } => joins.extend(stmt.results.first().map(|r| (*c, *r))),
                Op::FragmentMap { args, .. } => {
                    if let (Some(first), Some(result)) =
                        (args.iter().find(|a| is_fragment(**a)), stmt.results.first())
                    {
                        joins.push((*first, *result));
                    }
                    for arg in args.iter().filter(|a| !is_fragment(**a)) {
                        elements.insert(*arg, None);
                    }
                }
                Op::For { carries, .. } => {
                    for (carry, result) in carries.iter().zip(&stmt.results) {
                        uses.push(carry.next);
                        joins.push((carry.init, carry.inner));
                        joins.push((carry.inner, carry.next));
                        joins.push((carry.next, *result));
                    }
                }
                Op::If { then_values, else_values, .. } => {
                    for ((a, b), r) in then_values.iter().zip(else_values).zip(&stmt.results) {
                        uses.extend([*a, *b]);
                        joins.extend([(*a, *r), (*b, *r)]);
                    }
                }
                _ => {}
            }
        });
        for (a, b) in joins {
            if is_fragment(a) && is_fragment(b) {
                let (x, y) = (root(&parent, a.index()), root(&parent, b.index()));
                parent[x] = y;
            }
        }
        let mut number: HashMap<usize, usize> = HashMap::new();
        let mut webs: Vec<Web> = Vec::new();
        let mut web_of = HashMap::new();
        for (id, _) in kernel.values.iter() {
            if is_fragment(id) {
                let at = *number.entry(root(&parent, id.index())).or_insert_with(|| {
                    webs.push(Web { uses: 0, total: 0, slot: None, depth: 0 });
                    webs.len() - 1
                });
                web_of.insert(id, at);
            }
        }
        for v in uses {
            if let Some(at) = web_of.get(&v) {
                webs[*at].uses += 1;
                webs[*at].total += 1;
            }
        }
        Ok(Fragments { web_of, webs, elements, slots: Vec::new(), depth: 0 })
    }

    /// The frame object that an element value is kept in for fragment statements, once it has
    /// one. See [`Select::bind`].
    pub fn element_slot(&self, value: ValueId) -> Option<u32> {
        self.elements.get(&value).copied().flatten()
    }

    /// Whether a fragment statement reads the element value.
    pub fn reads_element(&self, value: ValueId) -> bool {
        self.elements.contains_key(&value)
    }

    /// Whether the kernel has none.
    pub fn is_empty(&self) -> bool {
        self.webs.is_empty()
    }

    /// Enters a loop whose body may be walked any number of times; keeps the counts of uses.
    pub fn enter_loop(&mut self) -> Vec<usize> {
        self.depth += 1;
        self.webs.iter().map(|w| w.uses).collect()
    }

    /// Leaves a loop: every use in it, and every carry, counts once.
    pub fn leave_loop(&mut self, before: &[usize], body: &Block, carries: &[Carry]) {
        self.depth -= 1;
        if self.webs.is_empty() {
            return;
        }
        let mut inside = vec![0usize; self.webs.len()];
        let mut count = |v: ValueId| {
            if let Some(web) = self.web_of.get(&v) {
                inside[*web] += 1;
            }
        };
        body.walk(&mut |stmt| {
            stmt.op.for_each_operand(&mut count);
            match &stmt.op {
                Op::For { carries, .. } => carries.iter().for_each(|c| count(c.next)),
                Op::If { then_values, else_values, .. } => {
                    then_values.iter().chain(else_values).for_each(|v| count(*v));
                }
                _ => {}
            }
        });
        for carry in carries {
            count(carry.init);
            count(carry.next);
        }
        for ((web, before), inside) in self.webs.iter_mut().zip(before).zip(inside) {
            if web.slot.is_some() {
                web.uses = before.saturating_sub(inside);
            }
        }
    }

    /// Gives an element value its frame object.
    pub fn set_element(&mut self, value: ValueId, object: u32) {
        self.elements.insert(value, Some(object));
    }
}

impl Select<'_> {
    /// A statement on fragments.
    pub fn fragment_stmt(&mut self, stmt: &Stmt) -> Res<()> {
        let result = stmt.results.first().copied();
        let missing = || CpuError::malformed("a fragment statement without its result");
        match &stmt.op {
            Op::FragmentFill(value) => {
                let to = self.open_tile(result.ok_or_else(missing)?)?;
                self.emit(Item::Tile(Box::new(TileOp::Fill { to, value: *value })));
            }
            Op::FragmentLoad(view) => {
                let view = self.tile_view(view)?;
                let to = self.open_tile(result.ok_or_else(missing)?)?;
                self.emit(Item::Tile(Box::new(TileOp::Load { to, view })));
            }
            Op::FragmentStore { fragment, view, stream } => {
                let view = self.tile_view(view)?;
                let from = self.tile_of(*fragment)?;
                self.emit(Item::Tile(Box::new(TileOp::Store { from, view, stream: *stream })));
                self.tile_used(*fragment);
            }
            Op::FragmentMap { op, args } => {
                let result = result.ok_or_else(missing)?;
                let mut operands = Vec::new();
                for arg in args {
                    operands.push(match self.get(*arg)? {
                        Val::Fragment(_) => TileArg::Tile(self.tile_of(*arg)?),
                        _ => match self.fragments.element_slot(*arg) {
                            Some(object) => TileArg::Slot(object as i32),
                            None => return Err(missing()),
                        },
                    });
                }
                self.values[result.index()] =
                    self.fragments.web_of.get(&result).map(|w| Val::Fragment(*w));
                let to = self.tile_of(result)?;
                self.emit(Item::Tile(Box::new(TileOp::Map { op: *op, to, args: operands })));
                args.iter().for_each(|a| self.tile_used(*a));
            }
            Op::Mma { a, b, c, depth } => {
                let result = result.ok_or_else(missing)?;
                let (Operand::View(a), Operand::View(b)) = (a, b) else {
                    return Err(CpuError::unsupported("matrix operands in fragments"));
                };
                let depth =
                    depth.ok_or_else(|| CpuError::malformed("an outer product without a depth"))?;
                let (a, b) = (self.tile_view(a)?, self.tile_view(b)?);
                let depth = self.uniform_index(depth)?;
                let depth = self.tile_input(&depth);
                let acc = self.tile_of(*c)?;
                self.values[result.index()] = self.get(*c).ok();
                self.emit(Item::Tile(Box::new(TileOp::Mma { acc, a, b, depth })));
                self.tile_used(*c);
            }
            _ => return Err(CpuError::malformed("no fragment statement")),
        }
        Ok(())
    }

    fn tile_type(&self, value: ValueId) -> Res<(u32, u32, DType)> {
        match self.kernel.values.get(value).map(|v| v.ty) {
            Some(Type::Fragment {
                atom: Atom::OuterProduct { rows, vectors },
                role: FragmentRole::Accumulator,
                dtype,
            }) => Ok((rows, vectors, dtype)),
            Some(Type::Fragment { atom, .. }) => {
                Err(CpuError::unsupported(format!("the matrix atom {atom:?}")))
            }
            _ => Err(CpuError::malformed(format!("{value:?} is no fragment"))),
        }
    }

    fn tile_of(&self, value: ValueId) -> Res<Tile> {
        let (rows, vectors, dtype) = self.tile_type(value)?;
        let slot = match self.get(value)? {
            Val::Fragment(web) => self.fragments.webs[web].slot,
            _ => None,
        };
        let slot = slot.ok_or_else(|| CpuError::unsupported("a fragment that is used twice"))?;
        Ok(Tile { slot, rows, vectors, dtype })
    }

    /// Makes a fragment live.
    fn open_tile(&mut self, result: ValueId) -> Res<Tile> {
        let (rows, vectors, dtype) = self.tile_type(result)?;
        let web = *self
            .fragments
            .web_of
            .get(&result)
            .ok_or_else(|| CpuError::malformed("a fragment of another kernel"))?;
        let slot = match self.fragments.slots.iter().position(|used| !used) {
            Some(free) => free,
            None => {
                self.fragments.slots.push(false);
                self.fragments.slots.len() - 1
            }
        };
        let depth = self.fragments.depth;
        let entry = &mut self.fragments.webs[web];
        if let Some(slot) = entry.slot {
            // The other side of a branch defined it: both sides leave it in one place.
            self.values[result.index()] = Some(Val::Fragment(web));
            return Ok(Tile { slot, rows, vectors, dtype });
        }
        self.fragments.slots[slot] = true;
        *entry = Web { uses: entry.total, total: entry.total, slot: Some(slot as u32), depth };
        self.values[result.index()] = Some(Val::Fragment(web));
        let tile = Tile { slot: slot as u32, rows, vectors, dtype };
        let live = self.fragments.slots.iter().filter(|used| **used).count() as u32;
        if live * tile::registers(tile) > self.isa.registers() {
            return Err(CpuError::unsupported(format!(
                "register tiles of {rows} × {vectors} vectors"
            )));
        }
        self.emit(Item::TileOpen);
        // A fragment that nothing uses is dead at once.
        if self.fragments.webs[web].total == 0 {
            self.close_tile(web);
        }
        Ok(tile)
    }

    /// Counts the uses that a branch makes of the values it gives, if they are fragments.
    pub(super) fn tiles_joined(&mut self, then: &[ValueId], otherwise: &[ValueId]) {
        for value in then.iter().chain(otherwise) {
            self.tile_used(*value);
        }
    }

    /// Counts a use; after the last one the fragment is dead. Inside a loop that it entered from
    /// outside it lives on.
    fn tile_used(&mut self, value: ValueId) {
        let Some(web) = self.fragments.web_of.get(&value).copied() else { return };
        let depth = self.fragments.depth;
        let entry = &mut self.fragments.webs[web];
        entry.uses = entry.uses.saturating_sub(1);
        if entry.uses == 0 && entry.depth == depth {
            self.close_tile(web);
        }
    }

    fn close_tile(&mut self, web: usize) {
        if let Some(slot) = self.fragments.webs[web].slot.take() {
            self.fragments.slots[slot as usize] = false;
            self.emit(Item::TileClose);
        }
    }

    fn tile_input(&mut self, ix: &Ix) -> TileInput {
        match ix.known() {
            Some(n) => TileInput::Const(n),
            None => TileInput::Reg(self.in_register(ix)),
        }
    }

    fn tile_view(&mut self, view: &View) -> Res<TileView<TileInput>> {
        let (pointer, offset, dtype) = self.memory(view.memory)?;
        if let Memory::Shared(id) = view.memory
            && self.kernel.shared[id].layout != Layout::Plain
        {
            return Err(CpuError::unsupported("register tiles over padded shared buffers"));
        }
        if let Memory::Private(_) = view.memory {
            return Err(CpuError::malformed("a view of a private array"));
        }
        let mut input = |value: ValueId| {
            let ix = self.uniform_index(value)?;
            Ok::<TileInput, CpuError>(self.tile_input(&ix))
        };
        Ok(TileView {
            pointer: TileInput::Reg(pointer),
            offset,
            dtype,
            base: input(view.base)?,
            row_stride: input(view.row_stride)?,
            col_stride: input(view.col_stride)?,
            rows: view.rows.map(&mut input).transpose()?,
            cols: view.cols.map(&mut input).transpose()?,
        })
    }
}
