//! The libraries that Tilewright is compared with, each behind [`Control`], and the measured
//! ceilings of the machine.
//!
//! | name | what | output |
//! |---|---|---|
//! | `handwritten` | Rust loops for softmax, RMSNorm and LayerNorm | preallocated |
//! | `gemm-crate` | the crate `gemm` | preallocated |
//! | `openblas`, `mkl`, `accelerate` | a CBLAS found at run time | preallocated |
//! | `torch-eager`, `torch-compile` | PyTorch on the CPU or a CUDA device ([`torch`]) | by op |
//! | `cublas` | `torch.mm` on a CUDA device, without TF32 | preallocated |
//! | `triton` | row kernels in Triton, tuned over warps, on a CUDA device | preallocated |
//! | `mps` | the matrix multiplication of Metal Performance Shaders, on a Mac's GPU | preallocated |
//! | `mpp` | a handwritten kernel of tensor operations, on a Mac's GPU | preallocated |
//!
//! A control that isn't installed says so; it never fails a run.

mod blas;
pub mod ceilings;
mod gemm_crate;
mod handwritten;
#[cfg(target_vendor = "apple")]
mod metal;
pub mod torch;

/// Whether the result is written to memory that the caller brings, or allocated inside the call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OutputPolicy {
    /// The caller's memory.
    Preallocated,
    /// Allocated inside the call, which is part of its time.
    Returned,
}

impl OutputPolicy {
    /// The name in records.
    pub fn name(self) -> &'static str {
        match self {
            OutputPolicy::Preallocated => "preallocated",
            OutputPolicy::Returned => "returned",
        }
    }
}

/// What to compute, in f32.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Problem {
    /// Op of Tilewright's library: `gemm`, `softmax`, `rmsnorm`, `layernorm`, …
    pub op: String,
    /// [rows, columns] or [M, N, K].
    pub shape: Vec<usize>,
    /// Whether A and B of a product are stored transposed.
    pub transposed: [bool; 2],
    /// Steps after a product; controls compute plain products only.
    pub epilogue: bool,
    /// Threads to use.
    pub threads: usize,
}

impl Problem {
    /// M, N, K of a plain product.
    ///
    /// # Errors
    /// It is none.
    pub fn product(&self) -> Result<[usize; 3], ControlError> {
        match (self.op.as_str(), &self.shape[..], self.epilogue) {
            ("gemm", &[m, n, k], false) => Ok([m, n, k]),
            _ => Err(self.unsupported()),
        }
    }

    fn unsupported(&self) -> ControlError {
        ControlError::Unsupported { op: self.op.clone() }
    }
}

/// Why a control doesn't run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ControlError {
    /// It isn't there.
    #[error("{0}")]
    Missing(String),
    /// It doesn't compute this.
    #[error("it doesn't compute `{op}` of this kind")]
    Unsupported {
        /// The op.
        op: String,
    },
    /// There is no control of that name.
    #[error("unknown control `{name}`: use {}", NAMES.join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
    /// The number or length of tensors is wrong.
    #[error("the tensors don't fit the problem: {0}")]
    Tensors(String),
}

/// A control in this process.
pub trait Control: Send {
    /// Its version, if it has one.
    fn version(&self) -> Option<String>;

    /// How it returns its result.
    fn output(&self) -> OutputPolicy {
        OutputPolicy::Preallocated
    }

    /// Makes a problem ready to be called again and again.
    ///
    /// # Errors
    /// It doesn't compute the problem.
    fn prepare(&self, problem: &Problem) -> Result<Box<dyn Prepared>, ControlError>;
}

/// A problem that is ready.
pub trait Prepared {
    /// Computes once. Inputs are the op's tensors in the order of Tilewright's library, packed.
    ///
    /// # Errors
    /// The tensors don't fit.
    fn call(&mut self, inputs: &[&[f32]], output: &mut [f32]) -> Result<(), ControlError>;

    /// Computes that many times as one batch of the control's own device, after an untimed batch,
    /// `samples` times: nanoseconds of each batch by the device's clock. The inputs are brought to
    /// the device before; the output stays there. `None` where there is no such clock.
    ///
    /// # Errors
    /// The tensors don't fit.
    fn device_batches(
        &mut self,
        _inputs: &[&[f32]],
        _output: &mut [f32],
        _calls: u64,
        _samples: usize,
    ) -> Result<Option<Vec<u64>>, ControlError> {
        Ok(None)
    }
}

/// Every control's name.
pub const NAMES: [&str; 11] = [
    "handwritten",
    "gemm-crate",
    "openblas",
    "mkl",
    "accelerate",
    "torch-eager",
    "torch-compile",
    "cublas",
    "triton",
    "mps",
    "mpp",
];

/// Whether a control runs on a kind of device: `cpu`, `cuda` or `metal`.
pub fn runs_on(name: &str, kind: &str) -> bool {
    match name {
        "torch-eager" | "torch-compile" => matches!(kind, "cpu" | "cuda"),
        "cublas" | "triton" => kind == "cuda",
        "mps" | "mpp" => kind == "metal",
        _ => kind == "cpu",
    }
}

/// Whether a control is one of row programs.
pub fn computes_rows(name: &str) -> bool {
    matches!(name, "handwritten" | "torch-eager" | "torch-compile" | "triton")
}

/// Whether a control is one of products. A compiled product is PyTorch's eager one.
pub fn computes_products(name: &str) -> bool {
    !matches!(name, "handwritten" | "torch-compile" | "triton")
}

/// Environment variables that choose other kernels of the controls' libraries, or other numbers of
/// threads than asked for. Workers of controls run without them.
pub const VARIABLES: [&str; 18] = [
    "ATEN_CPU_CAPABILITY",
    "DNNL_MAX_CPU_ISA",
    "GOMP_CPU_AFFINITY",
    "GOTO_NUM_THREADS",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "OPENBLAS_NUM_THREADS",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_COMPILE_DISABLE",
];

/// A control of this process by name.
///
/// # Errors
/// There is none of that name, or it isn't installed.
pub fn control(name: &str, threads: usize) -> Result<Box<dyn Control>, ControlError> {
    match name {
        "handwritten" => Ok(Box::new(handwritten::Handwritten::new(threads)?)),
        "gemm-crate" => Ok(Box::new(gemm_crate::GemmCrate)),
        "openblas" | "mkl" | "accelerate" => Ok(Box::new(blas::Blas::load(name, threads)?)),
        #[cfg(target_vendor = "apple")]
        "mps" | "mpp" => Ok(Box::new(metal::Metal::open(name)?)),
        #[cfg(not(target_vendor = "apple"))]
        "mps" | "mpp" => Err(ControlError::Missing("Metal is a part of macOS".to_string())),
        _ => Err(ControlError::Unknown { name: name.to_string() }),
    }
}

/// Checks that the tensors of a call have these lengths.
fn check_lengths(
    inputs: &[&[f32]],
    expected: &[usize],
    output: &[f32],
    length: usize,
) -> Result<(), ControlError> {
    let found: Vec<usize> = inputs.iter().map(|i| i.len()).collect();
    if found != expected || output.len() != length {
        return Err(ControlError::Tensors(format!(
            "{found:?} and {} elements, not {expected:?} and {length}",
            output.len()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32)
            .map(|i| ((i.wrapping_mul(seed).wrapping_add(17) % 127) as f32 - 63.0) / 64.0)
            .collect()
    }

    fn run(name: &str, problem: &Problem, inputs: &[&[f32]], length: usize) -> Option<Vec<f32>> {
        let control = match control(name, problem.threads) {
            Ok(control) => control,
            Err(ControlError::Missing(reason)) => {
                println!("{name}: {reason}");
                return None;
            }
            Err(e) => panic!("{name}: {e}"),
        };
        assert!(control.version().is_none_or(|v| !v.is_empty()));
        let mut prepared = control.prepare(problem).unwrap();
        let mut output = vec![f32::NAN; length];
        prepared.call(inputs, &mut output).unwrap();
        assert!(prepared.call(inputs, &mut output[1..]).is_err());
        Some(output)
    }

    #[test]
    fn every_product_is_exact_on_dyadic_data() {
        let [m, n, k] = [7, 19, 33];
        let (a, b) = (values(m * k, 5), values(k * n, 11));
        for threads in [1, 2] {
            for transposed in [[false, false], [false, true], [true, false], [true, true]] {
                let problem = Problem {
                    op: "gemm".to_string(),
                    shape: vec![m, n, k],
                    transposed,
                    epilogue: false,
                    threads,
                };
                let at =
                    |i: usize, p: usize| if transposed[0] { a[p * m + i] } else { a[i * k + p] };
                let bt =
                    |p: usize, j: usize| if transposed[1] { b[j * k + p] } else { b[p * n + j] };
                let expected: Vec<f32> =
                    (0..m * n).map(|e| (0..k).map(|p| at(e / n, p) * bt(p, e % n)).sum()).collect();
                for name in ["gemm-crate", "openblas", "mkl", "accelerate", "mps", "mpp"] {
                    if let Some(found) = run(name, &problem, &[&a, &b], m * n) {
                        assert_eq!(found, expected, "{name} {transposed:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn handwritten_rows_agree_with_their_formulas() {
        for (rows, cols) in [(1, 1), (3, 7), (5, 64), (4, 1537)] {
            let (x, gamma, beta) = (values(rows * cols, 5), values(cols, 11), values(cols, 11));
            for threads in [1, 2] {
                let problem = |op: &str| Problem {
                    op: op.to_string(),
                    shape: vec![rows, cols],
                    transposed: [false; 2],
                    epilogue: false,
                    threads,
                };
                let close = |op: &str, found: Vec<f32>, formula: &dyn Fn(&[f64]) -> Vec<f64>| {
                    for (row, out) in x.chunks(cols).zip(found.chunks(cols)) {
                        let row: Vec<f64> = row.iter().map(|v| f64::from(*v)).collect();
                        for (e, f) in formula(&row).iter().zip(out) {
                            let error = (e - f64::from(*f)).abs();
                            assert!(error <= 3e-6 * e.abs() + 3e-6, "{op} {rows}x{cols}: {e} {f}");
                        }
                    }
                };
                let n = cols as f64;
                let found = run("handwritten", &problem("softmax"), &[&x], rows * cols).unwrap();
                close("softmax", found, &|row| {
                    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let e: Vec<f64> = row.iter().map(|v| (v - max).exp()).collect();
                    let sum: f64 = e.iter().sum();
                    e.iter().map(|v| v / sum).collect()
                });
                let inputs: [&[f32]; 2] = [&x, &gamma];
                let found = run("handwritten", &problem("rmsnorm"), &inputs, rows * cols).unwrap();
                close("rmsnorm", found, &|row| {
                    let scale = 1.0 / (row.iter().map(|v| v * v).sum::<f64>() / n + 1e-5).sqrt();
                    row.iter().zip(&gamma).map(|(v, g)| v * scale * f64::from(*g)).collect()
                });
                let inputs: [&[f32]; 3] = [&x, &gamma, &beta];
                let found =
                    run("handwritten", &problem("layernorm"), &inputs, rows * cols).unwrap();
                close("layernorm", found, &|row| {
                    let mean = row.iter().sum::<f64>() / n;
                    let var = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
                    let affine = gamma.iter().zip(&beta);
                    row.iter()
                        .zip(affine)
                        .map(|(v, (g, b))| {
                            (v - mean) / (var + 1e-5).sqrt() * f64::from(*g) + f64::from(*b)
                        })
                        .collect()
                });
            }
        }
    }

    #[test]
    fn what_a_control_cant_do_is_said() {
        assert!(matches!(control("cudnn", 1), Err(ControlError::Unknown { .. })));
        for name in NAMES {
            assert!(["cpu", "cuda", "metal"].iter().any(|kind| runs_on(name, kind)), "{name}");
            assert!(computes_rows(name) || computes_products(name), "{name}");
        }
        assert!(!runs_on("openblas", "cuda") && !runs_on("cublas", "cpu"));
        let problem = Problem {
            op: "row_sum".to_string(),
            shape: vec![3, 4],
            transposed: [false; 2],
            epilogue: false,
            threads: 1,
        };
        for name in ["handwritten", "gemm-crate"] {
            let control = control(name, 1).unwrap();
            assert!(matches!(control.prepare(&problem), Err(ControlError::Unsupported { .. })));
        }
    }
}
