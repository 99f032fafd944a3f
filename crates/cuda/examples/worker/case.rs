//! A row problem on a device: its data between guard zones, what its outputs should be, and the
//! check of a launch.

use std::cell::OnceCell;
use std::sync::Arc;

use serde_json::{Value, json};
use tilewright_cuda::codegen::grid;
use tilewright_cuda::driver::{Context, DeviceBuffer, Function};
use tilewright_cuda::residency::ResidencyReset;
use tilewright_ir::entity::Id as _;
use tilewright_ir::facts::Facts;
use tilewright_ir::interp::{Bindings, Options as InterpOptions, run_with};
use tilewright_ir::ops::catalog::{OpRequest, build};
use tilewright_ir::program::{Access, DimKind, Program, Tensor};
use tilewright_ir::{DType, analysis};
use tilewright_kernel::kernel::{ArgSource, Kernel, Size};

pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Bytes before and after every tensor that nothing may touch.
const GUARD: u64 = 4096;
/// What they hold before a tensor.
const PATTERN: u8 = 0xa5;
/// What outputs, and what is after them, hold before a launch: NaN in every type.
const POISON: u8 = 0xff;
/// Most elements that are compared with the oracle, in whole rows.
const CHECKED: u64 = 1 << 20;

/// A small generator of full-mantissa values in [-1, 1).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

fn encode(values: &[f64], dtype: DType) -> Vec<u8> {
    let mut out = Vec::with_capacity(values.len() * dtype.bytes() as usize);
    for v in values {
        match dtype {
            DType::F32 => out.extend((*v as f32).to_le_bytes()),
            DType::F64 => out.extend(v.to_le_bytes()),
            DType::F16 => out.extend(half::f16::from_f64(*v).to_le_bytes()),
            DType::BF16 => out.extend(half::bf16::from_f64(*v).to_le_bytes()),
            DType::I32 | DType::Bool => out.extend((*v as i32).to_le_bytes()),
        }
    }
    out
}

fn decode(bytes: &[u8], dtype: DType) -> Vec<f64> {
    match dtype {
        DType::F32 => bytes
            .chunks_exact(4)
            .map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            .collect(),
        DType::F64 => bytes
            .chunks_exact(8)
            .map(|b| f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
            .collect(),
        DType::F16 => {
            bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f64()).collect()
        }
        DType::BF16 => bytes
            .chunks_exact(2)
            .map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f64())
            .collect(),
        DType::I32 | DType::Bool => bytes
            .chunks_exact(4)
            .map(|b| f64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            .collect(),
    }
}

/// What an output should be.
struct Expected {
    tensor: usize,
    values: Vec<f64>,
    magnitude: Vec<f64>,
}

/// A problem with the oracle's outputs for its first rows.
pub struct Case {
    pub program: Program,
    pub facts: Facts,
    pub rows: u64,
    pub cols: u64,
    /// Rows that are compared.
    pub checked: u64,
    inputs: Vec<Vec<f64>>,
    reference: Vec<Expected>,
}

fn elements(program: &Program, tensor: &Tensor, rows: u64) -> u64 {
    tensor.shape.iter().map(|e| program.known(*e).unwrap_or(rows)).product()
}

impl Case {
    /// Builds the op and runs the oracle. `most` limits the rows that it computes.
    pub fn new(op: &str, rows: u64, cols: u64, dtype: DType, most: u64) -> Result<Case, Error> {
        let mut request = OpRequest::shaped(dtype, &[rows, cols]);
        request.dynamic = true;
        let mut program = build(op, &request)?;
        // Device allocations are aligned to 256 bytes.
        for (_, tensor) in program.tensors.iter_mut() {
            tensor.align = 16;
        }
        let checked = rows.min(most).min((CHECKED / cols.max(1)).max(2));
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (rows << 32) ^ cols);
        let mut bindings = Bindings::new();
        for (_, dim) in program.dims.iter() {
            if matches!(dim.kind, DimKind::Symbolic { .. }) {
                bindings = bindings.dim(&dim.name, checked);
            }
        }
        let mut inputs = Vec::new();
        for (_, tensor) in program.tensors.iter() {
            let n = elements(&program, tensor, checked) as usize;
            let integer = !tensor.dtype.is_float();
            let draw = |r: &mut Random| {
                let v = r.next() * 4.0;
                if integer { f64::from(v > 0.0) } else { tensor.dtype.round(v) }
            };
            let values: Vec<f64> = (0..n).map(|_| draw(&mut random)).collect();
            if tensor.access != Access::Out {
                bindings = bindings.tensor(&tensor.name, values.clone());
            }
            inputs.push(values);
        }
        for (_, scalar) in program.scalars.iter() {
            bindings = bindings.scalar(&scalar.name, 0.5);
        }
        let options = InterpOptions { magnitude: true, ..InterpOptions::default() };
        let reference = run_with(&program, &bindings, &options)?
            .into_iter()
            .map(|o| Expected {
                tensor: o.tensor.index(),
                values: o.packed(),
                magnitude: o.magnitude,
            })
            .collect();
        let facts = analysis::facts(&program);
        Ok(Case { program, facts, rows, cols, checked, inputs, reference })
    }

    /// Puts the inputs on the device: the checked rows again and again, so that every row has
    /// ordinary values.
    pub fn upload(self, context: &Arc<Context>) -> Result<Problem, Error> {
        let mut buffers = Vec::new();
        for (i, (_, tensor)) in self.program.tensors.iter().enumerate() {
            let bytes = elements(&self.program, tensor, self.rows) * tensor.dtype.bytes();
            let buffer = context.alloc((bytes + 2 * GUARD) as usize)?;
            buffer.fill(PATTERN)?;
            if tensor.access != Access::Out {
                let data = encode(&self.inputs[i], tensor.dtype);
                let mut all = vec![PATTERN; GUARD as usize];
                all.reserve(bytes as usize);
                while all.len() < (GUARD + bytes) as usize && !data.is_empty() {
                    let take = ((GUARD + bytes) as usize - all.len()).min(data.len());
                    all.extend_from_slice(&data[..take]);
                }
                buffer.upload(&all)?;
            }
            buffers.push(buffer);
        }
        Ok(Problem { case: self, buffers, reset: OnceCell::new() })
    }
}

/// A case with its data on the device.
pub struct Problem {
    pub case: Case,
    buffers: Vec<DeviceBuffer>,
    /// Made when it is first asked for.
    reset: OnceCell<ResidencyReset>,
}

impl Problem {
    /// Takes away what launches of any process keep in the second-level cache.
    pub fn reset(&self, context: &Arc<Context>) -> Result<(), Error> {
        let reset = match self.reset.get() {
            Some(reset) => reset,
            None => {
                let new = ResidencyReset::new(context)?;
                self.reset.get_or_init(|| new)
            }
        };
        reset.queue()?;
        Ok(context.synchronize()?)
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        let of = |t: &Tensor| elements(&self.case.program, t, self.case.rows) * t.dtype.bytes();
        self.case.program.tensors.iter().map(|(_, t)| of(t)).sum()
    }

    /// The tensors of at least `least` bytes, in order, with what another process opens them by:
    /// whether the kernel writes it, its size, where in the opened memory it starts, and the handle.
    pub fn shared(&self, least: u64) -> Result<Vec<Value>, Error> {
        let mut all = Vec::new();
        for (buffer, (_, tensor)) in self.buffers.iter().zip(self.case.program.tensors.iter()) {
            let bytes = buffer.bytes() as u64 - 2 * GUARD;
            if bytes >= least {
                let handle: String =
                    buffer.ipc_handle()?.iter().map(|byte| format!("{byte:02x}")).collect();
                let written = tensor.access != Access::In;
                all.push(json!({ "name": tensor.name, "written": written, "bytes": bytes,
                                 "offset": GUARD, "handle": handle }));
            }
        }
        Ok(all)
    }

    /// The launch's grid for a number of rows.
    pub fn grid(&self, kernel: &Kernel, rows: u64) -> Result<[u32; 3], Error> {
        let groups: Vec<u64> = kernel
            .grid
            .iter()
            .map(|dim| {
                let size = match dim.size {
                    Size::Const(n) => n,
                    Size::Arg(_) => rows,
                };
                size.div_ceil(dim.step)
            })
            .collect();
        Ok(grid::launch(&kernel.grid, &groups)?.ok_or("an empty grid")?)
    }

    /// One word per argument: device addresses for tensors, the row count for sizes.
    pub fn words(&self, kernel: &Kernel, rows: u64) -> Result<Vec<u64>, Error> {
        let word = |arg: &tilewright_kernel::kernel::Arg| match arg.source {
            ArgSource::Tensor(t) => Ok(self.buffers[t.index()].pointer() + GUARD),
            ArgSource::Dim(_) => Ok(rows),
            ArgSource::Scalar(_) => Ok(u64::from(0.5f32.to_bits())),
            other => Err(format!("argument {} comes from {other:?}", arg.name).into()),
        };
        kernel.args.iter().map(|(_, arg)| word(arg)).collect()
    }

    /// Launches on the checked rows: the largest error over its bound, so that at most 1 is right.
    /// Outputs start as NaN; what surrounds every tensor must be untouched afterwards.
    pub fn check(
        &self,
        context: &Arc<Context>,
        function: &Function,
        kernel: &Kernel,
    ) -> Result<f64, Error> {
        let case = &self.case;
        for (i, (_, tensor)) in case.program.tensors.iter().enumerate() {
            if tensor.access == Access::Out {
                self.buffers[i].fill(POISON)?;
                self.buffers[i].upload(&[PATTERN; GUARD as usize])?;
            }
        }
        let mut small = self.words(kernel, case.checked)?;
        // SAFETY: buffers hold all rows.
        unsafe { function.launch(self.grid(kernel, case.checked)?, &mut small)? };
        context.synchronize()?;
        let mut error = 0.0f64;
        for Expected { tensor, values: want, magnitude } in &case.reference {
            let (_, t) = case.program.tensors.iter().nth(*tensor).ok_or("tensor")?;
            let bytes = want.len() * t.dtype.bytes() as usize;
            let mut all = vec![0u8; bytes + 2 * GUARD as usize];
            self.buffers[*tensor].download(&mut all)?;
            let (before, rest) = all.split_at(GUARD as usize);
            let (found, after) = rest.split_at(bytes);
            if before.iter().any(|b| *b != PATTERN) || after.iter().any(|b| *b != POISON) {
                return Err("the kernel wrote outside its output".into());
            }
            let found = decode(found, t.dtype);
            error = error.max(worst(&found, want, magnitude, t.dtype, case.cols));
        }
        Ok(error)
    }
}

/// Largest error over its bound (docs/ARCHITECTURE.md, "Tolerances").
fn worst(found: &[f64], want: &[f64], magnitude: &[f64], dtype: DType, cols: u64) -> f64 {
    let u = 2f64.powi(-24);
    let out = dtype.unit_roundoff();
    let factor = 16.0 + (cols.max(2) as f64).log2();
    let mut worst = 0.0f64;
    for ((f, w), m) in found.iter().zip(want).zip(magnitude) {
        if f.is_nan() && w.is_nan() || f == w {
            continue;
        }
        let relative = (factor * u * w.abs()).max(2.0 * u * m);
        // Half a step of the output's subnormal numbers.
        let step = match dtype {
            DType::F16 => 2f64.powi(-25),
            DType::BF16 => 2f64.powi(-134),
            _ => 2f64.powi(-150),
        };
        let bound = relative + out * w.abs() + step;
        let error = (f - w).abs() / bound;
        worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
    }
    worst
}
