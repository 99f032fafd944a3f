//! Runs lowered kernels in the simulator and compares every element with the interpreter.

use std::collections::BTreeMap;

use tilewright_ir::DType;
use tilewright_ir::Program;
use tilewright_ir::entity::Id;
use tilewright_ir::interp::{self, Bindings, Output};
use tilewright_ir::program::{Access, DimKind};
use tilewright_kernel::kernel::{ArgKind, ArgSource, Elem, Kernel};
use tilewright_kernel::lower::Lowered;
use tilewright_kernel::sim::{self, LaneOrder, Order, SimArg, SimOptions, SimReport};

/// A reproducible stream of numbers (SplitMix64).
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// In −2 .. 2, with all bits of the mantissa random.
    pub fn number(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 51) as f64 - 2.0
    }
}

/// A launch: sizes of symbolic dimensions, scalars and inputs.
pub struct Launch {
    pub dims: BTreeMap<String, u64>,
    pub scalars: BTreeMap<String, f64>,
    pub tensors: BTreeMap<String, Vec<f64>>,
}

/// Sizes for the symbolic dimensions of a program: those named, and packed strides plus `pad` for
/// the dimensions that are strides (`ld…`, `s…`), and random contents.
pub fn launch(program: &Program, dims: &[(&str, u64)], pad: u64, seed: u64) -> Launch {
    let mut random = Random(seed);
    let mut sizes: BTreeMap<String, u64> = BTreeMap::new();
    for (_, dim) in program.dims.iter() {
        if let DimKind::Symbolic { .. } = dim.kind {
            let given = dims.iter().find(|(name, _)| *name == dim.name);
            let size = given.unwrap_or_else(|| panic!("no size for {}", dim.name)).1;
            let stride = dim.name.starts_with("ld");
            sizes.insert(dim.name.clone(), if stride { size + pad } else { size });
        }
    }
    let layouts = interp::layouts(program, &sizes).unwrap();
    let mut tensors = BTreeMap::new();
    for ((_, tensor), layout) in program.tensors.iter().zip(&layouts) {
        if tensor.access == Access::Out {
            continue;
        }
        let data = (0..layout.span())
            .map(|_| match (tensor.dtype, tensor.name.as_str()) {
                (DType::I32, "mask") => random.below(2) as f64,
                (DType::I32, "label") => random.below(layout.shape[0] + 3) as f64 - 1.0,
                (DType::I32, _) => random.below(7) as f64 - 3.0,
                (dtype, _) => dtype.round(random.number()),
            })
            .collect();
        tensors.insert(tensor.name.clone(), data);
    }
    let scalars = program
        .scalars
        .iter()
        .map(|(_, s)| (s.name.clone(), s.dtype.round(random.number() + 2.5)))
        .collect();
    Launch { dims: sizes, scalars, tensors }
}

impl Launch {
    pub fn bindings(&self) -> Bindings<'_> {
        let mut bindings = Bindings::new();
        for (name, size) in &self.dims {
            bindings = bindings.dim(name, *size);
        }
        for (name, value) in &self.scalars {
            bindings = bindings.scalar(name, *value);
        }
        for (name, data) in &self.tensors {
            bindings = bindings.tensor(name, data.as_slice());
        }
        bindings
    }
}

/// Runs a kernel and returns its buffers by tensor name.
pub fn simulate(
    program: &Program,
    kernel: &Kernel,
    launch: &Launch,
    options: &SimOptions,
) -> Result<(BTreeMap<String, Vec<f64>>, SimReport), String> {
    let layouts = interp::layouts(program, &launch.dims).unwrap();
    let mut args = Vec::new();
    for (_, arg) in kernel.args.iter() {
        args.push(match (arg.source, arg.kind) {
            (ArgSource::Tensor(id), _) => {
                let tensor = &program.tensors[id];
                match launch.tensors.get(&tensor.name) {
                    Some(data) => SimArg::buffer(tensor.dtype, data.clone()),
                    None => SimArg::output(tensor.dtype, layouts[id.index()].span() as usize),
                }
            }
            (ArgSource::Scalar(id), _) => SimArg::Number(launch.scalars[&program.scalars[id].name]),
            (ArgSource::Dim(id), ArgKind::Number(Elem::Index)) => {
                SimArg::Index(launch.dims[&program.dims[id].name] as i64)
            }
            other => panic!("argument {other:?}"),
        });
    }
    let report = sim::run(kernel, &mut args, options).map_err(|e| e.to_string())?;
    let mut buffers = BTreeMap::new();
    for ((_, arg), value) in kernel.args.iter().zip(&args) {
        if let ArgSource::Tensor(id) = arg.source {
            buffers.insert(program.tensors[id].name.clone(), value.data().to_vec());
        }
    }
    Ok((buffers, report))
}

/// Runs launches one after another over the same buffers: the program's by name, and scratch.
pub fn simulate_all(
    program: &Program,
    lowered: &Lowered,
    launch: &Launch,
    order: Order,
) -> Result<BTreeMap<String, Vec<f64>>, String> {
    let layouts = interp::layouts(program, &launch.dims).unwrap();
    let mut buffers: BTreeMap<String, SimArg> = BTreeMap::new();
    for kernel in &lowered.launches {
        let mut args = Vec::new();
        for (_, arg) in kernel.args.iter() {
            let buffer = match (arg.source, arg.kind) {
                (ArgSource::Tensor(id), _) => {
                    let tensor = &program.tensors[id];
                    match launch.tensors.get(&tensor.name) {
                        Some(data) => SimArg::buffer(tensor.dtype, data.clone()),
                        None => SimArg::output(tensor.dtype, layouts[id.index()].span() as usize),
                    }
                }
                (ArgSource::Scratch(n), ArgKind::Buffer { dtype, .. }) => {
                    SimArg::output(dtype, n as usize)
                }
                (ArgSource::Scalar(id), _) => {
                    SimArg::Number(launch.scalars[&program.scalars[id].name])
                }
                (ArgSource::Dim(id), ArgKind::Number(Elem::Index)) => {
                    SimArg::Index(launch.dims[&program.dims[id].name] as i64)
                }
                other => panic!("argument {other:?}"),
            };
            // What an earlier launch left; scratch is NaN where nothing wrote, so padding that
            // were read would show.
            args.push(match buffers.get(&arg.name) {
                Some(SimArg::Buffer { dtype, data, .. }) => SimArg::buffer(*dtype, data.clone()),
                _ => buffer,
            });
        }
        let options = SimOptions { order, max_steps: 1 << 28, ..SimOptions::default() };
        sim::run(kernel, &mut args, &options).map_err(|e| e.to_string())?;
        for ((_, arg), value) in kernel.args.iter().zip(args) {
            if matches!(value, SimArg::Buffer { .. }) {
                buffers.insert(arg.name.clone(), value);
            }
        }
    }
    Ok(buffers.into_iter().map(|(name, arg)| (name, arg.data().to_vec())).collect())
}

/// How far results may be off: factor of the oracle's error scale in units of the computing
/// type's roundoff.
#[derive(Clone, Copy)]
pub struct Tolerance {
    pub factor: f64,
    pub compute: DType,
}

impl Tolerance {
    /// Rows of N columns: (16 + log2 N)·u.
    pub fn rows(columns: u64, dtype: DType) -> Self {
        Tolerance { factor: 16.0 + (columns.max(1) as f64).log2(), compute: dtype.accumulator() }
    }

    /// Products of depth K: (8 + √K)·u.
    pub fn matrix(depth: u64, dtype: DType) -> Self {
        Tolerance { factor: 8.0 + (depth as f64).sqrt(), compute: dtype.accumulator() }
    }
}

/// Compares a buffer with an output of the oracle, every element.
pub fn compare(
    program: &Program,
    output: &Output,
    found: &[f64],
    tolerance: Tolerance,
) -> Result<(), String> {
    let dtype = program.tensors[output.tensor].dtype;
    for (n, at) in output.layout.offsets().enumerate() {
        let (expected, found) = (output.data[at], found[at]);
        let rounded = dtype.round(expected);
        if (rounded.is_nan() && found.is_nan()) || rounded == found {
            continue;
        }
        let scale = output.magnitude[at];
        // What the type can't resolve below its smallest normal number.
        let tiny = match dtype {
            DType::F16 => f64::powi(2.0, -25),
            DType::F32 | DType::BF16 => f64::powi(2.0, -126),
            _ => f64::MIN_POSITIVE,
        };
        let allowed = tolerance.factor * tolerance.compute.unit_roundoff() * scale
            + dtype.unit_roundoff() * expected.abs()
            + tiny;
        let error = (found - expected).abs();
        if error <= allowed {
            continue;
        }
        return Err(format!(
            "`{}` element {:?}: {found:e}, not {expected:e}: error {error:e} over {allowed:e}",
            output.name,
            output.layout.index(n as u64)
        ));
    }
    Ok(())
}

/// Runs a lowered program in some orders and compares all outputs with the oracle.
pub fn check(
    program: &Program,
    lowered: &Lowered,
    launch: &Launch,
    tolerance: Tolerance,
    orders: &[Order],
    context: &str,
) -> SimReport {
    let bindings = launch.bindings();
    let expected = interp::magnitude(program, &bindings).unwrap();
    let [kernel] = lowered.launches.as_slice() else { panic!("{context}: not one launch") };
    let mut last = SimReport::default();
    for order in orders {
        let options = SimOptions {
            order: *order,
            // A subgroup that is alone in its group is a vector register.
            lanes: if kernel.subgroups == 1 && kernel.lanes < 32 {
                LaneOrder::Lockstep
            } else {
                LaneOrder::Independent
            },
            max_steps: 1 << 28,
        };
        let run = simulate(program, kernel, launch, &options);
        let (buffers, report) = run.unwrap_or_else(|e| {
            panic!("{context}, {order:?}: {e}\n{}", tilewright_kernel::text::print(kernel))
        });
        // Only the gaps that strides leave stay as they were.
        let outputs = || expected.iter().filter(|o| !launch.tensors.contains_key(&o.name));
        let gaps: u64 = outputs().map(|o| o.layout.span() - o.layout.len()).sum();
        let unwritten: u64 = report.unwritten.iter().map(|(_, n, _)| n).sum();
        assert_eq!(unwritten, gaps, "{context}: unwritten {:?}", report.unwritten);
        for output in &expected {
            let found = &buffers[&output.name];
            if let Err(e) = compare(program, output, found, tolerance) {
                panic!("{context}, {order:?}: {e}\n{}", tilewright_kernel::text::print(kernel));
            }
        }
        last = report;
    }
    last
}

/// The kernel's text parses back to the kernel.
pub fn round_trips(kernel: &Kernel) {
    let text = tilewright_kernel::text::print(kernel);
    let parsed = tilewright_kernel::text::parse(&text).unwrap();
    assert!(parsed == *kernel, "{text}");
}
