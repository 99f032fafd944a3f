//! Random kernels: generated code against the simulator, bit for bit (NaN for NaN, and no zero's
//! sign). Only operations whose result doesn't depend on an order or an approximation take part;
//! the others have tests of their own.

#![cfg(target_arch = "x86_64")]

mod common;

use common::*;
use tilewright_ir::DType;
use tilewright_ir::program::{MapOp, ReduceOp};
use tilewright_kernel::builder::KernelBuilder;
use tilewright_kernel::kernel::*;
use tilewright_kernel::sim::{self, LaneOrder, SimArg, SimOptions};
use tilewright_kernel::validate::{Rule, validate};

/// Elements of every input.
const LEN: i64 = 203;

const TYPES: [DType; 5] = [DType::F32, DType::F64, DType::I32, DType::F16, DType::BF16];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    fn number(&mut self) -> f64 {
        match self.below(48) {
            0 => f64::NAN,
            1 => f64::INFINITY,
            2 => -1e30,
            3 => 0.0,
            4 => 1e-41,
            _ => (self.next() >> 11) as f64 / (1u64 << 50) as f64 - 4.0,
        }
    }
}

/// Values in view, by type.
#[derive(Clone, Default)]
struct Pool {
    data: Vec<(DType, ValueId)>,
    bools: Vec<ValueId>,
    uniform_bools: Vec<ValueId>,
    /// Index values that differ by lane or not.
    indices: Vec<ValueId>,
    /// Index values that don't.
    uniform: Vec<ValueId>,
}

struct Maker {
    random: Random,
    b: KernelBuilder,
    inputs: Vec<(DType, Memory)>,
    privates: Vec<(DType, Memory)>,
    shared: (Memory, i64),
    lanes: u32,
}

impl Maker {
    fn elem(dtype: DType) -> Elem {
        Elem::Data(dtype)
    }

    fn lane_varying(&self, v: ValueId) -> bool {
        self.b.scope(v) == Scope::Lane
    }

    fn data(&mut self, pool: &Pool, dtype: DType) -> Option<ValueId> {
        let all: Vec<ValueId> =
            pool.data.iter().filter(|(d, _)| *d == dtype).map(|(_, v)| *v).collect();
        if all.is_empty() { None } else { Some(self.random.pick(&all)) }
    }

    fn add_data(&mut self, pool: &mut Pool, dtype: DType, v: ValueId) {
        pool.data.push((dtype, v));
    }

    fn add_bool(&mut self, pool: &mut Pool, v: ValueId) {
        pool.bools.push(v);
        if !self.lane_varying(v) {
            pool.uniform_bools.push(v);
        }
    }

    /// An index in `0 .. LEN - span`, uniform.
    fn base(&mut self, pool: &Pool, span: i64) -> ValueId {
        let room = (LEN - span).max(1);
        let v = self.random.pick(&pool.uniform);
        let (zero, top) = (self.b.int(0), self.b.int(room - 1));
        let v = self.b.max(v, zero);
        self.b.min(v, top)
    }

    fn guard(&mut self, pool: &Pool, fill: bool) -> Option<Guard> {
        let fill = if fill { self.random.pick(&[0.0, -0.0, 1.0, -3.0, 65504.0]) } else { 0.0 };
        match self.random.below(4) {
            0 => None,
            1 if !pool.bools.is_empty() => Some(Guard::mask(self.random.pick(&pool.bools), fill)),
            _ => {
                let v = self.random.pick(&pool.uniform);
                let n = self.random.below(20) as i64 - 2;
                let limit = if self.random.chance(30) {
                    self.b.int(n)
                } else {
                    let some = self.b.int(n);
                    let (low, high) = (self.b.int(-3), self.b.int(40));
                    let v = self.b.max(v, low);
                    let v = self.b.min(v, high);
                    self.b.add(v, some)
                };
                Some(Guard::count(limit, fill))
            }
        }
    }

    fn load(&mut self, pool: &mut Pool) {
        let lanes = i64::from(self.lanes);
        let (dtype, memory) = self.random.pick(&self.inputs.clone());
        let guard = self.guard(pool, true);
        let guard = guard.map(|g| Guard { fill: dtype.round(g.fill), ..g });
        match self.random.below(5) {
            0 => {
                let base = self.base(pool, 1);
                let v = self.b.load1(Place::uniform(memory, base), guard);
                self.add_data(pool, dtype, v);
            }
            1 => {
                let stride = self.random.pick(&[2, 3, 5]);
                let base = self.base(pool, stride * lanes);
                let v = self.b.load1(Place::strided(memory, base, stride), guard);
                self.add_data(pool, dtype, v);
            }
            2 => {
                // A gather by an index value, or an i32 value.
                let base = self.b.int(0);
                let index = if self.random.chance(50) {
                    let v = self.random.pick(&pool.indices);
                    let (zero, top) = (self.b.int(0), self.b.int(LEN - 1));
                    let v = self.b.max(v, zero);
                    self.b.min(v, top)
                } else {
                    let Some(v) = self.data(pool, DType::I32) else { return };
                    let zero = self.b.literal(0.0, DType::I32);
                    let top = self.b.literal((LEN - 1) as f64, DType::I32);
                    let v = self.b.map(MapOp::Max, &[v, zero]);
                    self.b.map(MapOp::Min, &[v, top])
                };
                let place = Place { memory, base, lane_stride: 0, index: Some(index) };
                let v = self.b.load1(place, guard);
                self.add_data(pool, dtype, v);
            }
            3 => {
                let width = self.random.pick(&[2u32, 4]);
                // Elements that are accessed together are aligned together.
                let base = self.base(pool, i64::from(width) * lanes);
                let step = self.b.int(i64::from(width));
                let base = self.b.div(base, step);
                let base = self.b.mul(base, step);
                let place = Place::strided(memory, base, i64::from(width));
                for v in self.b.load(place, width, guard) {
                    self.add_data(pool, dtype, v);
                }
            }
            _ => {
                let base = self.base(pool, lanes);
                let v = self.b.load1(Place::strided(memory, base, 1), guard);
                self.add_data(pool, dtype, v);
            }
        }
    }

    fn arithmetic(&mut self, pool: &mut Pool) {
        let dtype = self.random.pick(&[DType::F32, DType::F32, DType::F64, DType::I32]);
        let (Some(a), Some(b)) = (self.data(pool, dtype), self.data(pool, dtype)) else { return };
        let c = self.data(pool, dtype).unwrap_or(a);
        let float = dtype != DType::I32;
        let op = self.random.below(14);
        let binary = [
            MapOp::Add,
            MapOp::Sub,
            MapOp::Mul,
            MapOp::Div,
            MapOp::Min,
            MapOp::Max,
            MapOp::MinNum,
            MapOp::MaxNum,
            MapOp::Mod,
        ];
        let v = match op {
            0..=8 => {
                let v = self.b.map(binary[op], &[a, b]);
                if (4..=7).contains(&op) && float {
                    // Which zero comes out isn't fixed: make it the positive one.
                    let zero = self.b.literal(0.0, dtype);
                    self.b.map(MapOp::Add, &[v, zero])
                } else {
                    v
                }
            }
            9 => self.b.map(MapOp::Neg, &[a]),
            10 => self.b.map(MapOp::Abs, &[a]),
            11 if float => self.b.map(MapOp::Sqrt, &[a]),
            12 if float => self.b.fma(a, b, c),
            _ => {
                let ops = [MapOp::Eq, MapOp::Ne, MapOp::Lt, MapOp::Le, MapOp::Gt, MapOp::Ge];
                let op = self.random.pick(&ops);
                let v = self.b.compare(op, a, b);
                return self.add_bool(pool, v);
            }
        };
        self.add_data(pool, dtype, v);
    }

    fn select(&mut self, pool: &mut Pool) {
        if pool.bools.is_empty() {
            return;
        }
        let c = self.random.pick(&pool.bools);
        if self.random.chance(25) {
            let (a, b) = (self.random.pick(&pool.indices), self.random.pick(&pool.indices));
            let v = self.b.map(MapOp::Select, &[c, a, b]);
            return self.add_index(pool, v);
        }
        let dtype = self.random.pick(&TYPES);
        if let (Some(a), Some(b)) = (self.data(pool, dtype), self.data(pool, dtype)) {
            let v = self.b.map(MapOp::Select, &[c, a, b]);
            self.add_data(pool, dtype, v);
        }
    }

    fn logic(&mut self, pool: &mut Pool) {
        if pool.bools.is_empty() {
            return;
        }
        let (a, b) = (self.random.pick(&pool.bools), self.random.pick(&pool.bools));
        let v = match self.random.below(5) {
            0 => self.b.map(MapOp::Not, &[a]),
            1 => self.b.map(MapOp::Or, &[a, b]),
            2 => self.b.collective(Collective::Any, a),
            _ => self.b.map(MapOp::And, &[a, b]),
        };
        self.add_bool(pool, v);
    }

    fn add_index(&mut self, pool: &mut Pool, v: ValueId) {
        pool.indices.push(v);
        if !self.lane_varying(v) {
            pool.uniform.push(v);
        }
    }

    fn index(&mut self, pool: &mut Pool) {
        let (a, b) = (self.random.pick(&pool.indices), self.random.pick(&pool.indices));
        let constant = self.random.below(9) as i64 - 2;
        let c = self.b.int(constant);
        let v = match self.random.below(10) {
            0 => self.b.add(a, b),
            1 => self.b.sub(a, b),
            2 => {
                // Products stay small, so that nothing overflows.
                let (low, high) = (self.b.int(-1000), self.b.int(1000));
                let a = self.b.max(a, low);
                let a = self.b.min(a, high);
                let b = self.b.max(b, low);
                let b = self.b.min(b, high);
                self.b.mul(a, b)
            }
            3 => self.b.div(a, b),
            4 => self.b.rem(a, c),
            5 => self.b.min(a, b),
            6 => self.b.div(a, c),
            7 => {
                let ops = [MapOp::Eq, MapOp::Ne, MapOp::Lt, MapOp::Le, MapOp::Gt, MapOp::Ge];
                let op = self.random.pick(&ops);
                let v = self.b.compare(op, a, b);
                return self.add_bool(pool, v);
            }
            8 => {
                let Some(v) = self.data(pool, DType::I32) else { return };
                self.b.cast(v, Elem::Index)
            }
            _ => self.b.max(a, c),
        };
        let (low, high) = (self.b.int(-(1 << 20)), self.b.int(1 << 20));
        let v = self.b.max(v, low);
        let v = self.b.min(v, high);
        self.add_index(pool, v);
    }

    fn cast(&mut self, pool: &mut Pool) {
        let to = self.random.pick(&TYPES);
        let v = match self.random.below(8) {
            0 => self.random.pick(&pool.indices),
            1 if !pool.bools.is_empty() => self.random.pick(&pool.bools),
            _ => {
                let from = self.random.pick(&TYPES);
                let Some(v) = self.data(pool, from) else { return };
                if self.random.chance(15) {
                    let v = self.b.cast(v, Elem::Data(DType::Bool));
                    return self.add_bool(pool, v);
                }
                v
            }
        };
        let v = self.b.cast(v, Self::elem(to));
        self.add_data(pool, to, v);
    }

    fn collective(&mut self, pool: &mut Pool) {
        let dtype = self.random.pick(&[DType::F32, DType::F64, DType::I32]);
        let Some(v) = self.data(pool, dtype) else { return };
        let lanes = self.lanes as usize;
        let op = match self.random.below(4) {
            0 => Collective::Broadcast(self.random.below(lanes) as u32),
            1 => Collective::ShuffleXor(self.random.below(lanes) as u32),
            2 if dtype == DType::I32 => Collective::Reduce(ReduceOp::Add),
            3 => Collective::Reduce(ReduceOp::Min),
            _ => Collective::Reduce(ReduceOp::Max),
        };
        let mut r = self.b.collective(op, v);
        if dtype != DType::I32 {
            let zero = self.b.literal(0.0, dtype);
            r = self.b.map(MapOp::Add, &[r, zero]);
        }
        self.add_data(pool, dtype, r);
    }

    fn private(&mut self, pool: &mut Pool) {
        let (dtype, memory) = self.random.pick(&self.privates.clone());
        let Some(v) = self.data(pool, dtype) else { return };
        let at = self.random.pick(&pool.uniform);
        let (zero, top) = (self.b.int(0), self.b.int(6));
        let at = self.b.max(at, zero);
        let at = self.b.min(at, top);
        self.b.store(Place::uniform(memory, at), &[v], None);
        let v = self.b.load1(Place::uniform(memory, at), None);
        self.add_data(pool, dtype, v);
    }

    fn shared(&mut self, pool: &mut Pool) {
        let (memory, cols) = self.shared;
        let Some(v) = self.data(pool, DType::F32) else { return };
        let row = self.random.pick(&pool.uniform);
        let (zero, top) = (self.b.int(0), self.b.int(3));
        let row = self.b.max(row, zero);
        let row = self.b.min(row, top);
        let base = self.b.mul_int(row, cols);
        let place = Place::strided(memory, base, 1);
        self.b.store(place, &[v], None);
        let guard = self.guard(pool, true);
        let v = self.b.load1(place, guard);
        self.add_data(pool, DType::F32, v);
    }

    fn control(&mut self, pool: &mut Pool, depth: usize) {
        let carried: Vec<(DType, ValueId)> = (0..self.random.below(4))
            .filter_map(|_| {
                let dtype = self.random.pick(&TYPES);
                self.data(pool, dtype).map(|v| (dtype, v))
            })
            .collect();
        let statements = 2 + self.random.below(6);
        if self.random.chance(35) && !pool.bools.is_empty() {
            let any = self.random.chance(25);
            let cond = if any {
                self.random.pick(&pool.bools)
            } else {
                if pool.uniform_bools.is_empty() {
                    return;
                }
                self.random.pick(&pool.uniform_bools)
            };
            // No collective under a condition that differs from lane to lane.
            let masked = self.lane_varying(cond);
            let mut open = self.b.begin_if(cond);
            let mut inner = pool.clone();
            self.statements(&mut inner, statements, depth + 1, masked);
            let values: Vec<ValueId> =
                carried.iter().map(|(dtype, v)| self.data(&inner, *dtype).unwrap_or(*v)).collect();
            self.b.begin_else(&mut open, &values);
            let mut inner = pool.clone();
            self.statements(&mut inner, statements, depth + 1, masked);
            let values: Vec<ValueId> =
                carried.iter().map(|(dtype, v)| self.data(&inner, *dtype).unwrap_or(*v)).collect();
            let results = self.b.end_if(open, &values);
            for ((dtype, _), v) in carried.iter().zip(results) {
                self.add_data(pool, *dtype, v);
            }
            return;
        }
        let index = self.random.pick(&pool.uniform);
        let (zero, top) = (self.b.int(-2), self.b.int(9));
        let hi = self.b.max(index, zero);
        let hi = self.b.min(hi, top);
        let trips = self.random.below(9) as i64;
        let hi = if self.random.chance(50) { hi } else { self.b.int(trips) };
        let first = self.random.below(3) as i64 - 1;
        let lo = self.b.int(first);
        let unroll = self.random.pick(&[0, 1, 1, 2, 3, 4]);
        let step = self.random.pick(&[1, 1, 2, 3]);
        let counter = self.random.pick(&pool.uniform);
        let mut init: Vec<ValueId> = carried.iter().map(|(_, v)| *v).collect();
        init.push(counter);
        let open = self.b.begin_for(lo, hi, step, unroll, &init);
        let mut inner = pool.clone();
        inner.indices.push(open.index());
        inner.uniform.push(open.index());
        for ((dtype, _), v) in carried.iter().zip(open.inner()) {
            inner.data.push((*dtype, *v));
        }
        // A carry that turns out to differ by lane only later must not count as uniform here.
        let carried_index = open.inner()[carried.len()];
        inner.indices.push(carried_index);
        inner.uniform.push(carried_index);
        self.statements(&mut inner, statements, depth + 1, false);
        let mut next: Vec<ValueId> =
            carried.iter().map(|(dtype, v)| self.data(&inner, *dtype).unwrap_or(*v)).collect();
        // The index carry stays in bounds.
        let grown = self.b.add(carried_index, open.index());
        let (low, high) = (self.b.int(-500), self.b.int(500));
        let grown = self.b.max(grown, low);
        next.push(self.b.min(grown, high));
        let results = self.b.end_for(open, &next);
        for ((dtype, _), v) in carried.iter().zip(results) {
            self.add_data(pool, *dtype, v);
        }
    }

    fn statements(&mut self, pool: &mut Pool, count: usize, depth: usize, masked: bool) {
        for _ in 0..count {
            match self.random.below(20) {
                0..=3 => self.load(pool),
                4..=8 => self.arithmetic(pool),
                9 | 10 => self.cast(pool),
                11 | 12 => self.index(pool),
                13 => self.select(pool),
                14 if !masked => self.logic(pool),
                15 if !masked => self.collective(pool),
                16 if !masked => self.private(pool),
                17 if !masked => self.shared(pool),
                18 | 19 if depth < 3 && !masked => self.control(pool, depth),
                _ => self.arithmetic(pool),
            }
        }
    }
}

fn make(seed: u64, lanes: u32) -> (Kernel, Vec<Data>) {
    let mut random = Random(seed);
    let mut b = KernelBuilder::new("random", lanes, 1);
    let mut args = Vec::new();
    let dims = 1 + random.below(3);
    let sizes: Vec<u64> = (0..dims).map(|_| 1 + random.below(3) as u64).collect();
    let groups: Vec<ValueId> = sizes.iter().map(|n| b.grid(Size::Const(*n), 1)).collect();
    let mut inputs = Vec::new();
    for dtype in TYPES {
        inputs.push((dtype, input(&mut b, &format!("in_{dtype}"), dtype)));
        let data = (0..LEN).map(|_| dtype.round(random.number())).collect();
        args.push(Data::Buffer(dtype, data));
    }
    let mut outputs = Vec::new();
    for dtype in TYPES {
        outputs.push((dtype, output(&mut b, &format!("out_{dtype}"), dtype)));
    }
    let n = b.number("n", Elem::Index, ArgSource::Free);
    let s = b.number("s", Elem::Data(DType::F32), ArgSource::Free);
    let mut privates = Vec::new();
    for dtype in TYPES {
        privates.push((dtype, Memory::Private(b.private(&format!("p_{dtype}"), dtype, 7))));
    }
    let cols = i64::from(lanes) + 3;
    let layout = if random.chance(50) { Layout::Plain } else { Layout::Padded(5) };
    let shared = b.shared("sh", DType::F32, 4, cols as u64, layout);
    let mut pool = Pool::default();
    let (n, s, lane) = (b.arg(n), b.arg(s), b.lane());
    pool.uniform.extend(&groups);
    pool.uniform.push(n);
    pool.indices.extend(&pool.uniform);
    pool.indices.push(lane);
    pool.data.push((DType::F32, s));
    for dtype in TYPES {
        let x = dtype.round(random.number());
        let v = b.literal(x, dtype);
        pool.data.push((dtype, v));
    }
    let mut maker =
        Maker { random, b, inputs, privates, shared: (Memory::Shared(shared), cols), lanes };
    let count = 10 + maker.random.below(90);
    maker.statements(&mut pool, count, 0, false);
    // Everything in view is stored, each value to a vector of its own per group.
    let mut group = maker.b.int(0);
    for (size, id) in sizes.iter().zip(&groups) {
        group = maker.b.mul_int(group, *size as i64);
        group = maker.b.add(group, *id);
    }
    let total: u64 = sizes.iter().product();
    for v in pool.bools.clone() {
        let v = maker.b.cast(v, Elem::Data(DType::I32));
        pool.data.push((DType::I32, v));
    }
    for v in pool.indices.clone() {
        let v = maker.b.cast(v, Elem::Data(DType::I32));
        pool.data.push((DType::I32, v));
    }
    for (dtype, memory) in outputs {
        let values: Vec<ValueId> =
            pool.data.iter().filter(|(d, _)| *d == dtype).map(|(_, v)| *v).collect();
        let span = values.len() as i64 * i64::from(lanes);
        let base = maker.b.mul_int(group, span);
        for (at, v) in values.iter().enumerate() {
            let base = maker.b.add_int(base, at as i64 * i64::from(lanes));
            let guard = if maker.random.chance(30) { maker.guard(&pool, false) } else { None };
            maker.b.store(Place::strided(memory, base, 1), &[*v], guard);
        }
        args.push(Data::out(dtype, (span as u64 * total) as usize));
    }
    args.push(Data::Index(maker.random.below(40) as i64 - 5));
    let s = maker.random.number();
    args.push(Data::Number(DType::F32, DType::F32.round(s)));
    (maker.b.finish(), args)
}

/// Whether the kernel was compared. A value that a loop carries may turn out to differ by lane
/// only after it was used as if it didn't; such kernels are invalid and left out.
fn check(seed: u64, lanes: u32) -> bool {
    let (kernel, args) = make(seed, lanes);
    let text = || tilewright_kernel::text::print(&kernel);
    if let Err(errors) = validate(&kernel) {
        let scopes = [Rule::ScopeTooWide, Rule::CollectiveDivergence, Rule::Uniform];
        if errors.iter().all(|e| scopes.contains(&e.rule)) {
            return false;
        }
        panic!("seed {seed}: {errors:?}\n{}", text());
    }
    let mut expected: Vec<SimArg> = args
        .iter()
        .map(|arg| match arg {
            Data::Buffer(dtype, data) => SimArg::buffer(*dtype, data.clone()),
            Data::Index(n) => SimArg::Index(*n),
            Data::Number(_, x) => SimArg::Number(*x),
        })
        .collect();
    let options = SimOptions { lanes: LaneOrder::Lockstep, ..SimOptions::default() };
    if let Err(e) = sim::run(&kernel, &mut expected, &options) {
        panic!("seed {seed}: {e}\n{}", text());
    }
    for isa in isas() {
        if lanes > (isa.vector_bytes() / 2) as u32 {
            continue;
        }
        let streaming = seed.is_multiple_of(2);
        let found =
            if streaming { run_streaming(&kernel, isa, &args) } else { run(&kernel, isa, &args) };
        for (n, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let (found, expected) = (found.data(), expected.data());
            let wrong = found
                .iter()
                .zip(expected)
                .position(|(x, y)| !(x == y || (x.is_nan() && y.is_nan())));
            if let Some(at) = wrong {
                panic!(
                    "seed {seed}, {lanes} lanes on {isa:?}: argument {n} element {at}: {:e}, not {:e}\n{}",
                    found[at],
                    expected[at],
                    text()
                );
            }
        }
    }
    true
}

#[test]
fn random_kernels_agree_with_the_simulator() {
    let (mut compared, mut all) = (0, 0);
    for seed in 0..300 {
        for lanes in [1, 4, 8, 16, 32] {
            compared += u32::from(check(seed * 5 + u64::from(lanes), lanes));
            all += 1;
        }
    }
    assert!(compared * 4 > all, "only {compared} of {all} kernels are valid");
}
