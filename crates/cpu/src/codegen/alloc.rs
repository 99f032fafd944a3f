//! Linear-scan register allocation over live intervals.
//!
//! An interval runs from a register's first definition to its last use, stretched to the end of
//! every loop that it enters from outside. Item `i` reads at position `2i` and writes at `2i+1`,
//! so a result may take the register of an operand that dies there. When a bank is full, the
//! interval with the smallest density (uses, times 8 per loop level, over the length) lives in
//! memory instead: constants in the pool, everything else in a frame object. Emission reloads such operands into
//! reserved scratch registers or folds them into the instruction.

use super::lir::{Bank, Base, Item, Konst, Lir, Mem, Operand, Role, TileInput, V, W};
use crate::error::CpuError;

/// Where a virtual register lives.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Place {
    /// Never mentioned.
    Nowhere,
    /// Hardware register of its bank, by number.
    Reg(u8),
    /// A frame object.
    Frame(u32),
    /// The constant pool.
    Pool(Konst),
}

/// Registers that allocation may use, by bank.
#[derive(Clone, Debug)]
pub struct Files {
    /// General registers in order of preference.
    pub gpr: Vec<u8>,
    /// Vector registers.
    pub vec: Vec<u8>,
    /// Mask registers.
    pub mask: Vec<u8>,
    /// Bytes of a spilled vector register.
    pub vector_bytes: u32,
}

/// The life of one virtual register.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    /// The register.
    pub v: V,
    /// First position.
    pub start: u32,
    /// Last position.
    pub end: u32,
    /// Cost of keeping it in memory, per position of its length.
    pub weight: f32,
    hint: Option<V>,
}

/// The result of allocation.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// Place of each virtual register.
    pub places: Vec<Place>,
    /// Intervals by start.
    pub intervals: Vec<Interval>,
    /// Registers (constants apart) that live in memory, by bank: general, vector, mask.
    pub spills: [u32; 3],
    /// Whether anything, constants included, lives in memory, by bank.
    pub in_memory: [bool; 3],
}

fn slot(bank: Bank) -> usize {
    match bank {
        Bank::Gpr => 0,
        Bank::Vec => 1,
        Bank::Mask => 2,
    }
}

/// Calls `f` with every register that an item mentions and how.
pub fn each_reg(item: &Item, f: &mut impl FnMut(V, Role)) {
    fn memory(mem: &Mem, f: &mut impl FnMut(V, Role)) {
        if let Base::Reg(v) = mem.base {
            f(v, Role::Use);
        }
        if let Some((v, _)) = mem.index {
            f(v, Role::Use);
        }
    }
    match item {
        Item::Inst(inst) => {
            for op in &inst.ops {
                match op {
                    Operand::Reg(v, _, role) => f(*v, *role),
                    Operand::Mem(mem) => memory(mem, f),
                    Operand::Imm(_) | Operand::Phys(_) => {}
                }
            }
            if let Some(k) = inst.mask {
                f(k, Role::Use);
            }
        }
        Item::Move { to, from } => {
            f(*from, Role::Use);
            f(*to, Role::Def);
        }
        Item::Divide { to, a, b, .. } => {
            f(*a, Role::Use);
            f(*b, Role::Use);
            f(*to, Role::Def);
        }
        Item::Call(call) => {
            for (v, _) in call.args.iter().flat_map(|(parts, _)| parts) {
                f(*v, Role::Use);
            }
            for (v, _) in &call.results.0 {
                f(*v, Role::Def);
            }
        }
        Item::Tile(op) => {
            op.map(&mut |input| {
                if let TileInput::Reg(v) = input {
                    f(v, Role::Use);
                }
            });
        }
        Item::Label(_)
        | Item::Jump(_)
        | Item::Branch(..)
        | Item::LoopStart
        | Item::LoopEnd
        | Item::Stmt(_)
        | Item::TileOpen
        | Item::TileClose => {}
    }
}

/// A stretch of positions with a live fragment.
type Region = (u32, u32);

/// The intervals of all mentioned registers, by start, and the regions with live fragments.
fn intervals(lir: &Lir) -> (Vec<Interval>, Vec<Region>) {
    let mut lives: Vec<Option<Interval>> = vec![None; lir.regs.len()];
    let mut loops: Vec<(u32, u32)> = Vec::new();
    let mut open: Vec<u32> = Vec::new();
    let mut tiles: Vec<Region> = Vec::new();
    let (mut fragments, mut first) = (0u32, 0u32);
    for v in lir.params {
        lives[v.0 as usize] = Some(Interval { v, start: 0, end: 0, weight: 1.0, hint: None });
    }
    for (i, item) in lir.items.iter().enumerate() {
        let at = 2 * i as u32;
        match item {
            Item::LoopStart => open.push(at),
            Item::LoopEnd => loops.extend(open.pop().map(|start| (start, at))),
            Item::TileOpen => {
                if fragments == 0 {
                    first = at;
                }
                fragments += 1;
            }
            Item::TileClose => {
                fragments = fragments.saturating_sub(1);
                if fragments == 0 {
                    tiles.push((first, at));
                }
            }
            _ => {}
        }
        let weight = 8f32.powi(open.len() as i32);
        each_reg(item, &mut |v, role| {
            let (from, to) = match role {
                Role::Use => (at, at),
                Role::Def => (at + 1, at + 1),
                Role::UseDef | Role::EarlyDef => (at, at + 1),
            };
            let konst = lir.regs[v.0 as usize].konst.is_some();
            let life = lives[v.0 as usize].get_or_insert(Interval {
                v,
                start: if konst { 0 } else { from },
                end: to,
                weight: 0.0,
                hint: None,
            });
            life.end = life.end.max(to);
            // A constant in memory mostly folds into its user, at next to no cost.
            life.weight += if konst { 0.1 * weight } else { weight };
        });
        if let Item::Move { to, from } = item {
            for (a, b) in [(*to, *from), (*from, *to)] {
                if let Some(life) = &mut lives[a.0 as usize] {
                    life.hint.get_or_insert(b);
                }
            }
        }
    }
    if fragments > 0 {
        tiles.push((first, 2 * lir.items.len() as u32));
    }
    loops.sort_by_key(|l| l.1);
    let mut lives: Vec<Interval> = lives.into_iter().flatten().collect();
    for life in &mut lives {
        for &(start, end) in &loops {
            if life.start < start && life.end > start && life.end < end {
                life.end = end;
            }
        }
        life.weight /= (life.end - life.start + 1) as f32;
    }
    lives.sort_by_key(|l| (l.start, l.v));
    (lives, tiles)
}

/// Assigns a place to every register and frame objects to those in memory.
///
/// # Errors
/// [`CpuError::Unsupported`] for vector statements while a fragment is live.
pub fn allocate(lir: &mut Lir, files: &Files) -> Result<Allocation, CpuError> {
    let (lives, tiles) = intervals(lir);
    let mut places = vec![Place::Nowhere; lir.regs.len()];
    let mut spills = [0u32; 3];
    let mut in_memory = [false; 3];
    let mut free: [Vec<u8>; 3] = [files.gpr.clone(), files.vec.clone(), files.mask.clone()];
    // Free lists are stacks: reversed, so that the preferred register is on top.
    free.iter_mut().for_each(|f| f.reverse());
    let mut active: [Vec<Interval>; 3] = Default::default();
    for (i, item) in lir.items.iter().enumerate() {
        let at = 2 * i as u32;
        let vector = |v: &V| lir.regs[v.0 as usize].bank != Bank::Gpr;
        let mut touches = false;
        if let Item::Inst(_) | Item::Move { .. } | Item::Call(_) = item {
            each_reg(item, &mut |v, _| touches |= vector(&v));
        }
        if touches && tiles.iter().any(|t| t.0 < at && at < t.1) {
            return Err(CpuError::unsupported(
                "a vector statement while a register-tile fragment is live",
            ));
        }
    }
    let mut to_memory = |lir: &mut Lir, life: &Interval| {
        let info = lir.regs[life.v.0 as usize];
        in_memory[slot(info.bank)] = true;
        if let Some(konst) = info.konst {
            return Place::Pool(konst);
        }
        spills[slot(info.bank)] += 1;
        let bytes = if info.bank == Bank::Vec { files.vector_bytes } else { 8 };
        lir.frame.push((bytes, bytes));
        Place::Frame(lir.frame.len() as u32 - 1)
    };
    for life in &lives {
        let bank = lir.regs[life.v.0 as usize].bank;
        let b = slot(bank);
        let freed = &mut free[b];
        active[b].retain(|a| {
            let lives_on = a.end >= life.start;
            if !lives_on && let Place::Reg(r) = places[a.v.0 as usize] {
                freed.push(r);
            }
            lives_on
        });
        let crosses = tiles.iter().any(|t| life.start < t.1 && life.end > t.0);
        if bank != Bank::Gpr && crosses {
            places[life.v.0 as usize] = to_memory(lir, life);
            continue;
        }
        let wanted = life.hint.and_then(|h| match places[h.0 as usize] {
            Place::Reg(r) if lir.regs[h.0 as usize].bank == bank => Some(r),
            _ => None,
        });
        let taken = match wanted.and_then(|w| free[b].iter().position(|r| *r == w)) {
            Some(at) => Some(free[b].remove(at)),
            None => free[b].pop(),
        };
        if let Some(r) = taken {
            places[life.v.0 as usize] = Place::Reg(r);
            active[b].push(*life);
            continue;
        }
        // Full: the lightest goes to memory; among equals the one that ends last.
        let victim = active[b]
            .iter()
            .enumerate()
            .min_by(|(_, x), (_, y)| x.weight.total_cmp(&y.weight).then(y.end.cmp(&x.end)))
            .map(|(at, x)| (at, *x));
        match victim {
            Some((at, v)) if v.weight < life.weight => {
                places[life.v.0 as usize] = places[v.v.0 as usize];
                places[v.v.0 as usize] = to_memory(lir, &v);
                active[b][at] = *life;
            }
            _ => places[life.v.0 as usize] = to_memory(lir, life),
        }
    }
    Ok(Allocation { places, intervals: lives, spills, in_memory })
}

impl Allocation {
    /// Virtual registers in hardware registers that are live across item `i`, with the bank.
    pub fn live_across<'a>(
        &'a self,
        lir: &'a Lir,
        i: usize,
    ) -> impl Iterator<Item = (V, Bank, u8)> + 'a {
        let at = 2 * i as u32;
        self.intervals.iter().filter_map(move |life| {
            if life.start > at || life.end <= at {
                return None;
            }
            match self.places[life.v.0 as usize] {
                Place::Reg(r) => Some((life.v, lir.regs[life.v.0 as usize].bank, r)),
                _ => None,
            }
        })
    }
}

/// The width at which a spilled register of a bank is stored.
pub fn spill_width(bank: Bank, vector_bytes: u32) -> W {
    match bank {
        Bank::Gpr => W::R64,
        Bank::Mask => W::K,
        Bank::Vec => W::vector(vector_bytes),
    }
}
