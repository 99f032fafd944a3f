//! Loads and stores: addresses, vector widths and guards.

use tilewright_ir::DType;
use tilewright_ir::program::Access;
use tilewright_kernel::kernel::{
    ArgKind, Elem, Evict, Guard, GuardTest, Kernel, Layout, Memory, Place, PrivateId, SharedId,
    ValueId,
};

use super::CodegenError;
use super::emitter::{Class, Emitter, If, List, Reg, SMALL, Val};

/// A lane's address and what surrounds the access.
struct Address {
    /// A register and a number of bytes.
    at: At,
    /// `global`, `global.nc`, `shared` or `shared::cluster`.
    space: &'static str,
    dtype: DType,
    /// The policy of the second-level cache, or none.
    policy: Policy,
    /// Whether no load of the kernel reads the buffer.
    output: bool,
}

/// `[register+bytes]`.
#[derive(Clone, Copy)]
pub(super) struct At(pub(super) Reg, pub(super) i64);

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{}+{}]", self.0, self.1)
    }
}

/// The operand that a hint to the second-level cache is, if there is one.
#[derive(Clone, Copy)]
struct Policy(Option<Reg>);

impl Policy {
    /// What the instruction's name says of it.
    fn qualifier(self) -> &'static str {
        if self.0.is_some() { ".L2::cache_hint" } else { "" }
    }
}

impl std::fmt::Display for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |policy| write!(f, ", {policy}"))
    }
}

impl Address {
    /// State space and qualifiers of an access.
    fn space(&self) -> Space {
        Space(self.space, self.policy.qualifier())
    }

    /// The address of an element after the first.
    fn element(&self, element: u64) -> At {
        self.after(element * self.dtype.bytes())
    }

    fn after(&self, bytes: u64) -> At {
        At(self.at.0, self.at.1 + bytes as i64)
    }
}

struct Space(&'static str, &'static str);

impl std::fmt::Display for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)?;
        f.write_str(self.1)
    }
}

impl Emitter<'_> {
    /// The base of a place as a register and a number of elements, and its index register.
    pub(super) fn parts(
        &mut self,
        place: &Place,
    ) -> Result<(Option<Reg>, i64, Option<Reg>), CodegenError> {
        let (base, constant) = match self.val(place.base)? {
            Val::Reg(reg) => (Some(reg), 0),
            Val::Sum(reg, n) => (Some(reg), n),
            Val::Int(n) => (None, n),
            Val::Float(..) => return Err(self.unsupported("a float address")),
        };
        let Some(index) = place.index else { return Ok((base, constant, None)) };
        let class = self.class(index)?;
        let val = self.val(index)?;
        let mut reg = self.in_reg(val, class);
        if class == Class::B32 {
            let wide = self.reg(Class::B64);
            self.inst(format_args!("cvt.s64.s32 {wide}, {reg}"));
            reg = wide;
        }
        Ok((base, constant, Some(reg)))
    }

    pub(super) fn add(&mut self, a: Option<Reg>, b: Reg) -> Reg {
        let Some(a) = a else { return b };
        let out = self.reg(Class::B64);
        self.inst(format_args!("add.s64 {out}, {a}, {b}"));
        out
    }

    fn address(&mut self, place: &Place) -> Result<Address, CodegenError> {
        let mut policy = Policy(None);
        let mut output = false;
        let (memory, start, space, dtype, row) = match place.memory {
            Memory::Global(arg) => {
                let ArgKind::Buffer { dtype, access, evict, .. } = self.kernel.args[arg].kind
                else {
                    return Err(self.unsupported("an access to an argument that is no buffer"));
                };
                let base = self.bases.get(&arg).copied();
                policy = Policy(self.policies.get(&evict).copied());
                // Read-only inputs don't alias outputs, so the non-coherent path may serve them, unless
                // the launch ahead may still write them. Hints to the first-level cache cost time or
                // changed nothing (benches/cuda/RESULTS.md).
                output = access == Access::Out;
                let space = match access {
                    Access::In if !self.dependent => "global.nc",
                    _ => "global",
                };
                (base, 0, space, dtype, None)
            }
            Memory::Shared(id) => {
                let buffer = &self.kernel.shared[id];
                let row = match buffer.layout {
                    Layout::Plain => None,
                    Layout::Padded(pad) => Some((buffer.cols, u64::from(pad))),
                    Layout::Swizzled(_) => {
                        return Err(self.unsupported("a swizzled shared buffer"));
                    }
                };
                let start = shared_offset(self.kernel, Some(id)) as i64;
                (self.shared, start, "shared", buffer.dtype, row)
            }
            Memory::Cluster(id) => return self.cluster_address(id, place),
            Memory::Private(_) => return Err(self.unsupported("the address of a private array")),
        };
        let memory = memory.ok_or_else(|| self.unsupported("an access to an unknown buffer"))?;
        let size = dtype.bytes() as i64;
        let (base, constant, index) = self.parts(place)?;
        if let Some((cols, pad)) = row {
            // The padding depends on the whole offset, so nothing of it may stay apart.
            let mut sum = base;
            if place.lane_stride != 0 {
                let lane = self.lane()?;
                let lanes = self.product(lane, place.lane_stride);
                sum = Some(self.add(sum, lanes));
            }
            if let Some(index) = index {
                sum = Some(self.add(sum, index));
            }
            let element = match sum {
                None => Val::Int(constant),
                Some(reg) => Val::Sum(reg, constant),
            };
            let at = match self.padded(element, cols, pad) {
                Val::Int(e) => At(memory, e * size + start),
                other => {
                    let e = self.in_reg(other, Class::B64);
                    let bytes = self.product(e, size);
                    At(self.add(Some(memory), bytes), start)
                }
            };
            return Ok(Address { at, space, dtype, policy, output });
        }
        let key = (place.memory, base, place.lane_stride, index);
        let at = match self.reuse.addresses.get(&key) {
            Some(reg) => *reg,
            None => {
                let mut at = memory;
                if place.lane_stride != 0 {
                    let lane = self.lane()?;
                    let lanes = self.product(lane, place.lane_stride * size);
                    at = self.add(Some(at), lanes);
                }
                for part in [base, index].into_iter().flatten() {
                    let bytes = self.product(part, size);
                    at = self.add(Some(at), bytes);
                }
                self.reuse.addresses.insert(key, at);
                at
            }
        };
        if let Memory::Global(arg) = place.memory
            && let Some(end) = self.heads.get(&arg).copied()
        {
            policy = Policy(self.head_policy(at, end));
        }
        Ok(Address { at: At(at, constant * size + start), space, dtype, policy, output })
    }

    /// The policy of accesses from an address on: to stay before `end`, to go beyond. Which of the
    /// two an access has whose constant distance leads across is of no matter.
    fn head_policy(&mut self, at: Reg, end: Reg) -> Option<Reg> {
        if let Some(policy) = self.reuse.policies.get(&at) {
            return Some(*policy);
        }
        let last = self.policies.get(&Evict::Last).copied()?;
        let first = self.policies.get(&Evict::First).copied()?;
        let (stays, policy) = (self.reg(Class::Pred), self.reg(Class::B64));
        self.inst(format_args!("setp.lt.u64 {stays}, {at}, {end}"));
        self.inst(format_args!("selp.b64 {policy}, {last}, {first}, {stays}"));
        self.reuse.policies.insert(at, policy);
        Some(policy)
    }

    /// The address of an element of the cluster's shared buffers: which group's it is follows from
    /// the element, and `mapa` gives that group's address of the same place.
    fn cluster_address(&mut self, id: SharedId, place: &Place) -> Result<Address, CodegenError> {
        let buffer = &self.kernel.shared[id];
        let (dtype, len) = (buffer.dtype, (buffer.rows * buffer.cols).max(1));
        if buffer.layout != Layout::Plain {
            return Err(self.unsupported("a cluster's shared buffer that isn't plain"));
        }
        let (base, constant, index) = self.parts(place)?;
        let mut sum = base;
        if place.lane_stride != 0 {
            let lane = self.lane()?;
            let lanes = self.product(lane, place.lane_stride);
            sum = Some(self.add(sum, lanes));
        }
        if let Some(index) = index {
            sum = Some(self.add(sum, index));
        }
        let element = match sum {
            None => Val::Int(constant),
            Some(reg) => Val::Sum(reg, constant),
        };
        let wide = self.in_reg(element, Class::B64);
        let [element, rank, within, at, own, address] = [(); 6].map(|()| self.reg(Class::B32));
        self.inst(format_args!("cvt.u32.u64 {element}, {wide}"));
        self.inst(format_args!("div.u32 {rank}, {element}, {len}"));
        self.inst(format_args!("rem.u32 {within}, {element}, {len}"));
        self.inst(format_args!("mov.u32 {own}, shared_memory"));
        self.inst(format_args!("mad.lo.u32 {at}, {within}, {}, {own}", dtype.bytes()));
        self.inst(format_args!("mapa.shared::cluster.u32 {address}, {at}, {rank}"));
        let start = shared_offset(self.kernel, Some(id));
        let at = At(address, start as i64);
        let space = "shared::cluster";
        Ok(Address { at, space, dtype, policy: Policy(None), output: false })
    }

    pub(super) fn lane(&self) -> Result<Reg, CodegenError> {
        self.lane.ok_or_else(|| self.unsupported("a lane outside a body"))
    }

    /// Logical row-major offset to storage with `pad` unused elements after each row.
    fn padded(&mut self, element: Val, cols: u64, pad: u64) -> Val {
        match element {
            Val::Int(e) => Val::Int(e + e / cols.max(1) as i64 * pad as i64),
            other => {
                let e = self.in_reg(other, Class::B64);
                let (row, out) = (self.reg(Class::B64), self.reg(Class::B64));
                self.inst(format_args!("div.u64 {row}, {e}, {}", cols.max(1)));
                self.inst(format_args!("mad.lo.s64 {out}, {row}, {pad}, {e}"));
                Val::Reg(out)
            }
        }
    }

    /// Predicates of a guard: whether all `width` elements take part, and whether element `v`
    /// does.
    pub(super) fn guard(
        &mut self,
        guard: &Guard,
        width: usize,
    ) -> Result<(Reg, Vec<Reg>), CodegenError> {
        match guard.test {
            GuardTest::Mask(mask) => {
                let val = self.val(mask)?;
                let p = self.in_reg(val, Class::Pred);
                Ok((p, vec![p; width]))
            }
            GuardTest::Count(limit) => {
                let limit = self.val(limit)?;
                if self.multiple(limit).is_multiple_of(width.max(1) as u64) {
                    // Of a lane's elements all take part or none does.
                    let p = self.below(width as u32, 0, limit)?;
                    return Ok((p, vec![p; width]));
                }
                let mut each = Vec::with_capacity(width);
                for v in 0..width {
                    each.push(self.below(width as u32, v as u32, limit)?);
                }
                // Elements are in order, so all take part iff the last does.
                let all = each.last().copied().ok_or_else(|| self.unsupported("width 0"))?;
                Ok((all, each))
            }
        }
    }

    /// Whether lane·width + v < limit, in 32-bit arithmetic: a lane's position is at most 256, so
    /// a limit may be clamped to ±2^30 first.
    fn below(&mut self, width: u32, v: u32, limit: Val) -> Result<Reg, CodegenError> {
        let (reg, n) = match limit {
            Val::Reg(reg) => (Some(reg), 0),
            Val::Sum(reg, n) if n.unsigned_abs() < SMALL / 2 => (Some(reg), n),
            // A clamped register and so large a number would tell nothing of their sum.
            Val::Sum(..) => (Some(self.in_reg(limit, Class::B64)), 0),
            Val::Int(n) => (None, n),
            Val::Float(..) => return Err(self.unsupported("a float limit")),
        };
        // lane·width < limit − v.
        let n = n - i64::from(v);
        if let Some(p) = self.reuse.predicates.get(&(width, v, reg, n)) {
            return Ok(*p);
        }
        let lane = self.lane32.ok_or_else(|| self.unsupported("a lane outside a body"))?;
        let position = if width == 1 {
            lane
        } else {
            let position = self.reg(Class::B32);
            self.inst(format_args!("mul.lo.s32 {position}, {lane}, {width}"));
            position
        };
        let p = self.reg(Class::Pred);
        match reg {
            None => {
                let n = n.clamp(-(SMALL as i64), SMALL as i64);
                self.inst(format_args!("setp.lt.s32 {p}, {position}, {n}"));
            }
            Some(reg) => {
                let narrow = self.clamped(reg);
                let sum = if n == 0 {
                    narrow
                } else {
                    let sum = self.reg(Class::B32);
                    self.inst(format_args!("add.s32 {sum}, {narrow}, {n}"));
                    sum
                };
                self.inst(format_args!("setp.lt.s32 {p}, {position}, {sum}"));
            }
        }
        self.reuse.predicates.insert((width, v, reg, n), p);
        Ok(p)
    }

    pub(super) fn load(
        &mut self,
        place: &Place,
        guard: Option<&Guard>,
        results: &[ValueId],
    ) -> Result<(), CodegenError> {
        if let Memory::Private(array) = place.memory {
            return self.load_private(array, place, guard, results);
        }
        let address = self.address(place)?;
        let class = Class::of(Elem::Data(address.dtype));
        let out: Vec<Reg> = results.iter().map(|_| self.reg(class)).collect();
        match guard {
            None => self.load_vector(&address, &out, None),
            Some(guard) => {
                let fill = self.text_of(fill_value(guard.fill, address.dtype), class);
                for reg in &out {
                    self.inst(format_args!("mov.{} {reg}, {fill}", class.mov()));
                }
                let (all, each) = self.guard(guard, out.len())?;
                self.load_vector(&address, &out, Some(all));
                // To registers of their own: a load to the same one would wait for that of all.
                let mut parts = Vec::new();
                for (v, p) in each.iter().enumerate().filter(|(_, p)| **p != all) {
                    let (partial, part) = (self.partial(*p, all), self.reg(class));
                    self.load_one(&address, part, v as u64, Some(partial));
                    parts.push((out[v], part, partial));
                }
                for (reg, part, partial) in parts {
                    self.inst(format_args!("@{partial} mov.{} {reg}, {part}", class.mov()));
                }
            }
        }
        for (result, reg) in results.iter().zip(out) {
            self.define(*result, Val::Reg(reg));
        }
        Ok(())
    }

    /// `p` without `all`.
    fn partial(&mut self, p: Reg, all: Reg) -> Reg {
        let (not, partial) = (self.reg(Class::Pred), self.reg(Class::Pred));
        self.inst(format_args!("not.pred {not}, {all}"));
        self.inst(format_args!("and.pred {partial}, {p}, {not}"));
        partial
    }

    fn load_one(&mut self, address: &Address, reg: Reg, element: u64, predicate: Option<Reg>) {
        let prefix = If(predicate);
        let (at, space, policy) = (address.element(element), address.space(), address.policy);
        self.inst(format_args!("{prefix}ld.{space}.{} {reg}, {at}{policy}", reg.class.mov()));
    }

    /// One access for all elements: at most 16 bytes each; 16-bit elements travel in pairs.
    fn load_vector(&mut self, address: &Address, out: &[Reg], predicate: Option<Reg>) {
        let prefix = If(predicate);
        if out.len() == 1 {
            self.load_one(address, out[0], 0, predicate);
            return;
        }
        let (space, policy) = (address.space(), address.policy);
        let mut done = 0u64;
        if out[0].class == Class::B16 {
            for chunk in out.chunks(8) {
                let pairs: Vec<Reg> = chunk.chunks(2).map(|_| self.reg(Class::B32)).collect();
                let at = address.after(done);
                let list = List(&pairs);
                let vector = vector_suffix(pairs.len());
                self.inst(format_args!("{prefix}ld.{space}{vector}.b32 {list}, {at}{policy}"));
                for (pair, halves) in pairs.iter().zip(chunk.chunks(2)) {
                    self.inst(format_args!(
                        "{prefix}mov.b32 {{{}, {}}}, {pair}",
                        halves[0], halves[1]
                    ));
                }
                done += 2 * chunk.len() as u64;
            }
            return;
        }
        let size = address.dtype.bytes();
        for chunk in out.chunks((16 / size) as usize) {
            let at = address.after(done);
            let vector = vector_suffix(chunk.len());
            let ty = chunk[0].class.mov();
            self.inst(format_args!(
                "{prefix}ld.{space}{vector}.{ty} {}, {at}{policy}",
                List(chunk)
            ));
            done += size * chunk.len() as u64;
        }
    }

    pub(super) fn store(
        &mut self,
        place: &Place,
        values: &[ValueId],
        guard: Option<&Guard>,
    ) -> Result<(), CodegenError> {
        if let Memory::Private(array) = place.memory {
            return self.store_private(array, place, values, guard);
        }
        let address = self.address(place)?;
        let class = Class::of(Elem::Data(address.dtype));
        let mut regs = Vec::with_capacity(values.len());
        for value in values {
            let val = self.val(*value)?;
            regs.push(self.in_reg(val, class));
        }
        let (all, each) = match guard {
            None => (None, Vec::new()),
            Some(guard) => {
                let (all, each) = self.guard(guard, regs.len())?;
                (Some(all), each)
            }
        };
        self.store_vector(&address, &regs, all);
        if let Some(all) = all {
            for (v, p) in each.iter().enumerate().filter(|(_, p)| **p != all) {
                let partial = self.partial(*p, all);
                let at = address.element(v as u64);
                let (space, name) = (address.space(), regs[v].class.mov());
                let (reg, policy) = (regs[v], address.policy);
                self.write(
                    &address,
                    format_args!("@{partial} st.{space}.{name} {at}, {reg}{policy}"),
                );
            }
        }
        Ok(())
    }

    /// Appends a store, those to outputs of dependent launches later.
    fn write(&mut self, address: &Address, store: std::fmt::Arguments<'_>) {
        match address.output && self.dependent {
            true => self.hold(store.to_string()),
            false => self.inst(store),
        }
    }

    fn store_vector(&mut self, address: &Address, regs: &[Reg], predicate: Option<Reg>) {
        let prefix = If(predicate);
        let (space, policy) = (address.space(), address.policy);
        let size = address.dtype.bytes();
        if regs.len() == 1 {
            let ty = regs[0].class.mov();
            let (at, reg) = (address.at, regs[0]);
            self.write(address, format_args!("{prefix}st.{space}.{ty} {at}, {reg}{policy}"));
            return;
        }
        let mut done = 0;
        for chunk in regs.chunks((16 / size) as usize) {
            let at = address.after(done);
            if chunk[0].class == Class::B16 {
                let mut pairs = Vec::new();
                for halves in chunk.chunks(2) {
                    pairs.push(self.pack(address.dtype, halves[0], halves[1]));
                }
                let vector = vector_suffix(pairs.len());
                let list = List(&pairs);
                self.write(
                    address,
                    format_args!("{prefix}st.{space}{vector}.b32 {at}, {list}{policy}"),
                );
            } else {
                let vector = vector_suffix(chunk.len());
                let ty = chunk[0].class.mov();
                let list = List(chunk);
                self.write(
                    address,
                    format_args!("{prefix}st.{space}{vector}.{ty} {at}, {list}{policy}"),
                );
            }
            done += size * chunk.len() as u64;
        }
    }

    /// Two 16-bit values in one register. Where both were just rounded from f32, one instruction
    /// does both, and the assembler drops the single ones.
    fn pack(&mut self, dtype: DType, low: Reg, high: Reg) -> Reg {
        let pair = self.reg(Class::B32);
        match (self.narrowed.get(&low).copied(), self.narrowed.get(&high).copied()) {
            (Some(low), Some(high)) => {
                let ty = if dtype == DType::BF16 { "bf16x2" } else { "f16x2" };
                self.inst(format_args!("cvt.rn.{ty}.f32 {pair}, {high}, {low}"));
            }
            _ => self.inst(format_args!("mov.b32 {pair}, {{{low}, {high}}}")),
        }
        pair
    }

    /// The register of a private element.
    fn slot(&mut self, array: PrivateId, element: u64) -> Reg {
        if let Some(reg) = self.private.get(&(array, element)) {
            return *reg;
        }
        let class = Class::of(Elem::Data(self.kernel.private[array].dtype));
        let reg = self.reg(class);
        self.private.insert((array, element), reg);
        reg
    }

    fn private_index(&self, array: PrivateId, place: &Place) -> Result<u64, CodegenError> {
        match (self.val(place.base)?, place.index) {
            (Val::Int(e), None) if e >= 0 => Ok(e as u64),
            _ => Err(CodegenError::PrivateIndex {
                kernel: self.kernel.name.clone(),
                array: self.kernel.private[array].name.clone(),
            }),
        }
    }

    fn load_private(
        &mut self,
        array: PrivateId,
        place: &Place,
        guard: Option<&Guard>,
        results: &[ValueId],
    ) -> Result<(), CodegenError> {
        let first = self.private_index(array, place)?;
        let dtype = self.kernel.private[array].dtype;
        let class = Class::of(Elem::Data(dtype));
        let each = match guard {
            None => None,
            Some(g) => {
                let fill = self.text_of(fill_value(g.fill, dtype), class);
                Some((self.guard(g, results.len())?.1, fill))
            }
        };
        for (v, result) in results.iter().enumerate() {
            let slot = self.slot(array, first + v as u64);
            let out = self.reg(class);
            match &each {
                None => self.inst(format_args!("mov.{} {out}, {slot}", class.mov())),
                Some((predicates, fill)) => self.inst(format_args!(
                    "selp.{} {out}, {slot}, {fill}, {}",
                    class.mov(),
                    predicates[v]
                )),
            }
            self.define(*result, Val::Reg(out));
        }
        Ok(())
    }

    fn store_private(
        &mut self,
        array: PrivateId,
        place: &Place,
        values: &[ValueId],
        guard: Option<&Guard>,
    ) -> Result<(), CodegenError> {
        let first = self.private_index(array, place)?;
        let each = match guard {
            None => None,
            Some(g) => Some(self.guard(g, values.len())?.1),
        };
        for (v, value) in values.iter().enumerate() {
            let slot = self.slot(array, first + v as u64);
            let text = self.operand(*value)?;
            let prefix = If(each.as_ref().map(|e| e[v]));
            self.inst(format_args!("{prefix}mov.{} {slot}, {text}", slot.class.mov()));
        }
        Ok(())
    }
}

/// Where a shared buffer starts, or how much all need: buffers follow each other, each from a
/// multiple of 16 bytes, so that vector accesses are aligned.
pub(super) fn shared_offset(kernel: &Kernel, buffer: Option<SharedId>) -> u64 {
    let before = kernel.shared.iter().take_while(|(id, _)| Some(*id) != buffer);
    before.map(|(_, b)| b.bytes().next_multiple_of(16)).sum()
}

/// The fill of a guarded load as a value of the element type.
fn fill_value(fill: f64, dtype: DType) -> Val {
    match dtype {
        DType::I32 | DType::Bool => Val::Int(fill as i64),
        _ => Val::Float(dtype.round(fill), dtype),
    }
}

fn vector_suffix(len: usize) -> &'static str {
    match len {
        2 => ".v2",
        4 => ".v4",
        _ => "",
    }
}
