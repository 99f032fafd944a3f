//! The interpreter: groups, subgroups, control flow.

use tilewright_ir::entity::Id;
use tilewright_kernel::flat::{Class, Code, Inst, Moves, Slot};
use tilewright_kernel::kernel::{BarrierId, Collective, Kernel, Memory, Scope};
use tilewright_runtime::ArgValue;

use super::fragment::Fragment;
use super::lanes::Files;
use super::memory::PrivateArray;

/// Why a run stops.
#[derive(Debug)]
pub struct Stop(pub String);

impl Stop {
    pub fn new(detail: impl Into<String>) -> Stop {
        Stop(detail.into())
    }

    /// An element that its memory doesn't have.
    #[cold]
    pub fn outside(kernel: &Kernel, memory: Memory, element: i64) -> Stop {
        let name = match memory {
            Memory::Global(id) => &kernel.args[id].name,
            Memory::Shared(id) | Memory::Cluster(id) => &kernel.shared[id].name,
            Memory::Private(id) => &kernel.private[id].name,
        };
        Stop(format!("element {element} is outside `{name}`"))
    }
}

/// What a subgroup does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Ready,
    AtBarrier(BarrierId),
    Done,
}

/// One subgroup.
#[derive(Debug)]
pub struct Subgroup {
    number: u32,
    pc: usize,
    status: Status,
    /// Lanes that run; and of each open split, the lanes before it and those of its condition.
    pub mask: u64,
    splits: Vec<(u64, u64)>,
    pub files: Files,
    pub fragments: Vec<Fragment>,
    pub private: Vec<PrivateArray>,
}

/// What the subgroups of a group share, reused from group to group.
pub struct Machine<'a> {
    pub kernel: &'a Kernel,
    code: &'a Code,
    pub args: &'a [ArgValue],
    pub coords: Vec<u64>,
    pub lanes: usize,
    /// All lanes.
    pub full: u64,
    /// Shared buffers in storage order.
    pub shared: Vec<Vec<u64>>,
    subgroups: Vec<Subgroup>,
}

impl<'a> Machine<'a> {
    pub fn new(kernel: &'a Kernel, code: &'a Code, args: &'a [ArgValue]) -> Self {
        let lanes = kernel.lanes as usize;
        let size = |file: usize| code.registers.get(file).copied().unwrap_or(0);
        let subgroups = (0..kernel.subgroups)
            .map(|number| Subgroup {
                number,
                pc: 0,
                status: Status::Ready,
                mask: 0,
                splits: Vec::new(),
                files: Files {
                    ints: vec![0; size(0)],
                    singles: vec![0.0; size(1)],
                    doubles: vec![0.0; size(2)],
                },
                fragments: vec![Fragment::default(); code.fragments],
                private: (kernel.private.iter())
                    .map(|(_, p)| PrivateArray { words: vec![0; p.len as usize * lanes] })
                    .collect(),
            })
            .collect();
        let shared = (kernel.shared.iter())
            .map(|(_, s)| vec![0; (s.storage() * s.dtype.bytes()).div_ceil(8) as usize])
            .collect();
        Machine {
            kernel,
            code,
            args,
            coords: vec![0; kernel.grid.len()],
            lanes,
            full: u64::MAX >> (64 - kernel.lanes),
            shared,
            subgroups,
        }
    }

    /// Runs one group. An error has the number of the statement.
    ///
    /// # Safety
    /// As [`super::Portable::run_groups`].
    pub unsafe fn group(&mut self) -> Result<(), (u32, String)> {
        let mut subgroups = std::mem::take(&mut self.subgroups);
        for subgroup in &mut subgroups {
            (subgroup.pc, subgroup.status, subgroup.mask) = (0, Status::Ready, self.full);
            subgroup.splits.clear();
        }
        // SAFETY: as promised by the caller.
        let result = unsafe { self.turns(&mut subgroups) };
        self.subgroups = subgroups;
        result
    }

    unsafe fn turns(&mut self, subgroups: &mut [Subgroup]) -> Result<(), (u32, String)> {
        loop {
            for subgroup in subgroups.iter_mut().filter(|s| s.status == Status::Ready) {
                // SAFETY: as promised by the caller.
                if let Err(stop) = unsafe { subgroup.run(self) } {
                    return Err((self.code.statements[subgroup.pc], stop.0));
                }
            }
            if subgroups.iter().all(|s| s.status == Status::Done) {
                return Ok(());
            }
            if !self.open_barriers(subgroups) {
                let stuck = subgroups.iter().find(|s| s.status != Status::Done);
                let statement = stuck.map_or(0, |s| self.code.statements[s.pc]);
                return Err((statement, "not all participants get to the barrier".into()));
            }
        }
    }

    /// Lets the subgroups pass that a complete barrier holds; whether there was one.
    fn open_barriers(&self, subgroups: &mut [Subgroup]) -> bool {
        let mut any = false;
        for (id, barrier) in self.kernel.barriers.iter() {
            let at = Status::AtBarrier(id);
            let need = barrier.participants.unwrap_or(self.kernel.subgroups) as usize;
            if subgroups.iter().filter(|s| s.status == at).count() >= need {
                for subgroup in subgroups.iter_mut().filter(|s| s.status == at) {
                    subgroup.status = Status::Ready;
                    subgroup.pc += 1;
                }
                any = true;
            }
        }
        any
    }
}

impl Subgroup {
    /// The lanes that run, ascending.
    pub fn running(&self, n: usize) -> impl Iterator<Item = usize> + use<> {
        let mask = self.mask;
        (0..n).filter(move |lane| mask >> lane & 1 == 1)
    }

    /// Runs until the subgroup waits or ends.
    ///
    /// # Safety
    /// As [`super::Portable::run_groups`].
    unsafe fn run(&mut self, machine: &mut Machine<'_>) -> Result<(), Stop> {
        let code = machine.code;
        let n = machine.lanes;
        loop {
            let mut next = self.pc + 1;
            match &code.insts[self.pc] {
                Inst::Fill { dst, class, bits } => {
                    let float = match class {
                        Class::Float(_) => f64::from_bits(*bits),
                        Class::Index | Class::I32 | Class::Bool => 0.0,
                    };
                    self.files.fill(n, *dst, *bits as i64, float);
                }
                Inst::Arg { dst, arg, .. } => {
                    let (int, float) = match machine.args[arg.index()] {
                        ArgValue::Index(x) => (x, x as f64),
                        ArgValue::Float(x) => (x as i64, x),
                        ArgValue::Buffer { .. } => (0, 0.0),
                    };
                    self.files.fill(n, *dst, int, float);
                }
                Inst::GroupId { dst, dim } => {
                    self.files.fill(n, *dst, machine.coords[*dim as usize] as i64, 0.0);
                }
                Inst::ClusterRank { dst } => self.files.fill(n, *dst, 0, 0.0),
                Inst::SubgroupId { dst } => {
                    self.files.fill(n, *dst, i64::from(self.number), 0.0);
                }
                Inst::Lane { dst } => {
                    for lane in 0..dst.slots(n) {
                        self.files.ints[dst.slot(lane)] = lane as i64;
                    }
                }
                Inst::Map { op, class, dst, args } => {
                    self.files.map(n, *op, *class, *dst, *args);
                }
                Inst::Fma { dst, args, .. } => self.files.fma(n, *dst, *args),
                Inst::Cast { dst, to, src, .. } => self.files.cast(n, *dst, *to, *src),
                // SAFETY: as promised by the caller.
                Inst::Load { at, dst, fill } => unsafe { self.load(machine, at, dst, *fill) }?,
                // SAFETY: as promised by the caller.
                Inst::Store { at, src } => unsafe { self.store(machine, at, src) }?,
                Inst::Atomic { at, op, value, dst, order, .. } => {
                    // SAFETY: as promised by the caller.
                    unsafe { self.atomic(machine, at, *op, *value, *dst, *order) }?;
                }
                Inst::Collective { op, class, dst, src } => match op {
                    Collective::Reduce(fold) => self.files.reduce(n, *fold, *class, *dst, *src),
                    Collective::Broadcast(lane) => {
                        self.files.permute(n, *dst, *src, |_| *lane as usize);
                    }
                    Collective::ShuffleXor(mask) => {
                        self.files.permute(n, *dst, *src, |lane| lane ^ *mask as usize);
                    }
                    Collective::Any => {
                        let any = (0..src.slots(n)).any(|l| self.files.ints[src.slot(l)] != 0);
                        self.files.fill(n, *dst, i64::from(any), 0.0);
                    }
                },
                Inst::Barrier(id) => {
                    if machine.kernel.barriers[*id].scope != Scope::Subgroup {
                        self.status = Status::AtBarrier(*id);
                        return Ok(());
                    }
                }
                // A kernel of the CPU has no clusters.
                Inst::BarrierArrive(_) | Inst::BarrierWait(_) => {
                    return Err(Stop::new("a CPU has no barriers of clusters"));
                }
                Inst::ProxyFence => {}
                Inst::LoopEnter(l) => {
                    let lo = self.int(l.lo);
                    self.files.fill(n, l.index, lo, 0.0);
                    self.moves(n, &l.enter);
                    if lo >= self.int(l.hi) {
                        self.moves(n, &l.leave);
                        next = l.exit;
                    }
                }
                Inst::LoopAgain(l) => {
                    self.moves(n, &l.again);
                    match self.int(l.index).checked_add(l.step) {
                        Some(index) if index < self.int(l.hi) => {
                            self.files.fill(n, l.index, index, 0.0);
                            next = l.body;
                        }
                        _ => self.moves(n, &l.leave),
                    }
                }
                Inst::Branch { cond, otherwise } => {
                    if self.int(*cond) == 0 {
                        next = *otherwise;
                    }
                }
                Inst::Jump(to) => next = *to,
                Inst::Move(moves) => self.moves(n, moves),
                Inst::Split { cond, otherwise } => {
                    let holds = (0..n).fold(0, |holds, lane| {
                        holds | u64::from(self.files.ints[cond.slot(lane)] != 0) << lane
                    });
                    self.splits.push((self.mask, holds));
                    self.mask &= holds;
                    if self.mask == 0 {
                        next = *otherwise;
                    }
                }
                Inst::Other { exit } => {
                    if let Some(&(before, holds)) = self.splits.last() {
                        self.mask = before & !holds;
                    }
                    if self.mask == 0 {
                        next = *exit;
                    }
                }
                Inst::Rejoin => {
                    if let Some((before, _)) = self.splits.pop() {
                        self.mask = before;
                    }
                }
                Inst::Role { first, count, exit } => {
                    if self.number < *first || self.number - first >= *count {
                        next = *exit;
                    }
                }
                Inst::FragmentFill { dst, shape, value } => {
                    self.fragment_fill(machine, *dst, *shape, *value);
                }
                Inst::FragmentLoad { dst, shape, window } => {
                    // SAFETY: as promised by the caller.
                    unsafe { self.fragment_load(machine, *dst, *shape, window) }?;
                }
                Inst::FragmentStore { src, shape, window } => {
                    // SAFETY: as promised by the caller.
                    unsafe { self.fragment_store(machine, *src, *shape, window) }?;
                }
                Inst::FragmentMap { op, dst, shape, args } => {
                    self.fragment_map(*op, *dst, *shape, args);
                }
                Inst::FragmentCast { dst, src, dtype } => self.fragment_cast(*dst, *src, *dtype),
                // SAFETY: as promised by the caller.
                Inst::Multiply(multiply) => unsafe { self.multiply(machine, multiply) }?,
                Inst::CopyAsync { .. }
                | Inst::CopyTensor(_)
                | Inst::MbarrierInit { .. }
                | Inst::MbarrierArrive { .. }
                | Inst::MbarrierWait { .. }
                | Inst::Wait { .. } => {
                    // Refused when the kernel was taken.
                    return Err(Stop::new("asynchronous work isn't supported"));
                }
                Inst::End => {
                    self.status = Status::Done;
                    return Ok(());
                }
            }
            self.pc = next;
        }
    }

    /// Copies values in the lanes that run.
    fn moves(&mut self, n: usize, moves: &Moves) {
        if moves.direct {
            for &(from, to) in &moves.list {
                match (from, to) {
                    (Slot::Reg(from), Slot::Reg(to)) => self.files.copy(n, self.mask, to, from),
                    (Slot::Fragment(from), Slot::Fragment(to)) => {
                        self.fragments[to as usize] = self.fragments[from as usize].clone();
                    }
                    // Tokens stand for asynchronous work, which is refused.
                    _ => {}
                }
            }
            return;
        }
        // A cycle of moves: all sources first.
        let (mut ints, mut singles, mut doubles) = (Vec::new(), Vec::new(), Vec::new());
        let mut fragments = Vec::new();
        for (from, _) in &moves.list {
            match from {
                Slot::Reg(reg) => {
                    for lane in 0..n {
                        match reg.file {
                            super::INTS => ints.push(self.files.ints[reg.slot(lane)]),
                            super::SINGLES => singles.push(self.files.singles[reg.slot(lane)]),
                            _ => doubles.push(self.files.doubles[reg.slot(lane)]),
                        }
                    }
                }
                Slot::Fragment(at) => fragments.push(self.fragments[*at as usize].clone()),
                Slot::Token(_) => {}
            }
        }
        let (mut ints, mut singles) = (ints.into_iter(), singles.into_iter());
        let (mut doubles, mut fragments) = (doubles.into_iter(), fragments.into_iter());
        for (_, to) in &moves.list {
            match to {
                Slot::Reg(reg) => {
                    for lane in 0..n {
                        let here = reg.step == 0 || self.mask >> lane & 1 == 1;
                        let slot = reg.slot(lane);
                        match reg.file {
                            super::INTS => set(&mut self.files.ints[slot], ints.next(), here),
                            super::SINGLES => {
                                set(&mut self.files.singles[slot], singles.next(), here);
                            }
                            _ => set(&mut self.files.doubles[slot], doubles.next(), here),
                        }
                    }
                }
                Slot::Fragment(at) => {
                    set(&mut self.fragments[*at as usize], fragments.next(), true);
                }
                Slot::Token(_) => {}
            }
        }
    }
}

fn set<T>(slot: &mut T, value: Option<T>, here: bool) {
    if let Some(value) = value
        && here
    {
        *slot = value;
    }
}
