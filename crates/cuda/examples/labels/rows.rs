//! Rows on a device: inputs repeat a few rows, whose outputs the float64 oracle gives; the first
//! and the last of them are compared.

use std::sync::Arc;

use tilewright_cuda::codegen::grid;
use tilewright_cuda::driver::{Context, DeviceBuffer, Function};
use tilewright_ir::DType;
use tilewright_ir::entity::Id as _;
use tilewright_ir::interp::{Bindings, Options, run_with};
use tilewright_ir::ops::catalog::{OpRequest, build};
use tilewright_ir::program::{Access, Program, Tensor};
use tilewright_kernel::kernel::{ArgSource, Kernel};

use crate::Error;
use crate::product::{Launch, Random, Ready};
use crate::subject::Case;

/// Elements of the rows that are repeated.
const CHECKED: u64 = 1 << 18;

/// What an output should be: the repeated rows, and the scale of errors.
struct Expected {
    tensor: usize,
    values: Vec<f64>,
    magnitude: Vec<f64>,
}

/// Buffers in the order of the program's tensors.
pub struct RowState {
    buffers: Vec<DeviceBuffer>,
    expected: Vec<Expected>,
    dtypes: Vec<DType>,
    rows: u64,
    columns: u64,
    checked: u64,
}

fn encode(values: &[f64], dtype: DType) -> Result<Vec<u8>, Error> {
    Ok(match dtype {
        DType::F32 => values.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|v| half::f16::from_f64(*v).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|v| half::bf16::from_f64(*v).to_le_bytes()).collect(),
        other => return Err(format!("rows of {other}").into()),
    })
}

fn decode(bytes: &[u8], dtype: DType) -> Result<Vec<f64>, Error> {
    let pairs = || bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
    Ok(match dtype {
        DType::F32 => bytes
            .chunks_exact(4)
            .map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            .collect(),
        DType::F16 => pairs().map(|b| half::f16::from_le_bytes(b).to_f64()).collect(),
        DType::BF16 => pairs().map(|b| half::bf16::from_le_bytes(b).to_f64()).collect(),
        other => return Err(format!("rows of {other}").into()),
    })
}

fn elements(program: &Program, tensor: &Tensor) -> u64 {
    tensor.shape.iter().map(|e| program.known(*e).unwrap_or(0)).product()
}

impl RowState {
    /// Allocates the tensors, fills the inputs and asks the oracle.
    pub fn new(
        context: &Arc<Context>,
        case: &Case,
        rows: u64,
        columns: u64,
    ) -> Result<RowState, Error> {
        let checked = (CHECKED / columns.max(1)).clamp(4, 64).min(rows);
        let few = build(&case.op, &OpRequest::shaped(case.dtype, &[checked, columns]))?;
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut bindings = Bindings::new();
        let (mut buffers, mut dtypes) = (Vec::new(), Vec::new());
        for ((_, small), (_, tensor)) in few.tensors.iter().zip(case.program.tensors.iter()) {
            let count = elements(&few, small) as usize;
            let size = elements(&case.program, tensor) as usize * tensor.dtype.bytes() as usize;
            let buffer = context.alloc(size)?;
            if tensor.access != Access::Out {
                let values: Vec<f64> = (0..count)
                    .map(|_| tensor.dtype.round(f64::from(random.next()) * 4.0))
                    .collect();
                let data = encode(&values, tensor.dtype)?;
                let mut all = Vec::with_capacity(size);
                while all.len() < size {
                    all.extend_from_slice(&data[..data.len().min(size - all.len())]);
                }
                buffer.upload(&all)?;
                bindings = bindings.tensor(&small.name, values);
            }
            buffers.push(buffer);
            dtypes.push(tensor.dtype);
        }
        let options = Options { magnitude: true, ..Options::default() };
        let expected = run_with(&few, &bindings, &options)?
            .into_iter()
            .map(|o| Expected {
                tensor: o.tensor.index(),
                values: o.packed(),
                magnitude: o.magnitude,
            })
            .collect();
        Ok(RowState { buffers, expected, dtypes, rows, columns, checked })
    }

    /// Arguments and grids of a candidate's launches.
    pub fn ready(&self, kernels: Vec<(Kernel, Function)>) -> Result<Ready, Error> {
        let mut launches = Vec::new();
        for (kernel, function) in kernels {
            let mut words = Vec::new();
            for (_, arg) in kernel.args.iter() {
                let ArgSource::Tensor(tensor) = arg.source else {
                    return Err(format!("argument {} is {:?}", arg.name, arg.source).into());
                };
                words.push(self.buffers[tensor.index()].pointer());
            }
            let groups = grid::known(&kernel.grid).ok_or("a symbolic grid")?;
            let grid = grid::launch(&kernel.grid, &groups)?.ok_or("an empty grid")?;
            launches.push(Launch { function, grid, words });
        }
        Ok(Ready::new(launches))
    }

    /// Fills the outputs with NaN.
    pub fn poison(&self) -> Result<(), Error> {
        for expected in &self.expected {
            self.buffers[expected.tensor].fill(0xff)?;
        }
        Ok(())
    }

    /// The largest error over its bound, among the first and the last of the repeated rows.
    pub fn error(&self) -> Result<f64, Error> {
        let mut worst = 0.0f64;
        let last = (self.rows - 1) / self.checked * self.checked;
        for Expected { tensor, values, magnitude } in &self.expected {
            let dtype = self.dtypes[*tensor];
            let width = values.len() as u64 / self.checked * dtype.bytes();
            for (first, count) in [(0, self.checked), (last, self.rows - last)] {
                let mut bytes = vec![0u8; (count * width) as usize];
                self.buffers[*tensor].download_at((first * width) as usize, &mut bytes)?;
                let found = decode(&bytes, dtype)?;
                worst = worst.max(self.compare(&found, values, magnitude, dtype));
            }
        }
        Ok(worst)
    }

    fn compare(&self, found: &[f64], want: &[f64], magnitude: &[f64], dtype: DType) -> f64 {
        let (u, out) = (2f64.powi(-24), dtype.unit_roundoff());
        let factor = 16.0 + (self.columns.max(2) as f64).log2();
        // Half a step of the output's subnormal numbers.
        let smallest = 2f64.powi(match dtype {
            DType::F16 => -25,
            DType::BF16 => -134,
            _ => -150,
        });
        let mut worst = 0.0f64;
        for ((f, w), m) in found.iter().zip(want).zip(magnitude) {
            let scale = (factor * u * w.abs()).max(2.0 * u * m);
            let bound = scale + out * w.abs() + smallest;
            let error = (f - w).abs() / bound;
            worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
        }
        worst
    }
}
