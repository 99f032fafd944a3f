//! The float64 interpreter: what a program means, element by element. It is the oracle that every
//! backend's output is checked against.
//!
//! # Values
//! Every value is an f64. In [`Mode::Oracle`] float results are not rounded to the program's
//! dtypes, so the outputs are as close to the exact ones as binary64 allows: a cast to a narrower
//! float changes nothing, sums over an axis are compensated, and `exp`, `log`, `tanh` and `erf`
//! come from the `libm` crate (below one unit in the last place of binary64). Integers and bools
//! are exact in their types. In [`Mode::Rounded`] each operation's result is rounded once to its
//! dtype; inside a reduction or a matrix product nothing is.
//!
//! # Special values
//! NaN in gives NaN out, save where a `select`, `maxnum` or `minnum` drops it. A fold over an
//! empty axis is the fold's identity: a sum 0, a maximum −∞, so that the mean of an empty row,
//! 0 / 0, is NaN. An operand that isn't loaded isn't read: a program variant without C, as for
//! beta = 0, can't see a NaN in C.
//!
//! # What is checked
//! Preconditions of the launch (bindings, divisors, bounds, nonzero scalars, buffer lengths, input
//! values that the dtype can't hold), every access with assumed bounds, that each element of an
//! output is written exactly once, and that an element of an in-out tensor belongs to one program
//! instance.
//!
//! # Speed
//! Strides are computed once per run and instances run on several threads. A loop that does
//! nothing but multiply loaded tiles into one accumulator becomes a single product of whole panels
//! ([`gemm`]); [`Options::plain`] turns that off, which is how it is tested.

mod bind;
mod cells;
mod compile;
mod error;
mod exec;
pub mod gemm;
mod magnitude;
pub mod scalar;
mod walk;

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::program::{Program, TensorId};

pub use bind::{Layout, layouts};
pub use error::InterpError;

/// Values for everything that a launch passes.
#[derive(Clone, Debug, Default)]
pub struct Bindings<'a> {
    /// Sizes of symbolic dimensions, and extents of blocks where the default isn't wanted.
    pub dims: BTreeMap<String, u64>,
    /// Run-time scalars.
    pub scalars: BTreeMap<String, f64>,
    /// Contents of `in` and `inout` tensors, in storage order: the element at index (i, j, …) is
    /// at i·stride₀ + j·stride₁ + …; values are ones of the tensor's dtype.
    pub tensors: BTreeMap<String, Cow<'a, [f64]>>,
}

impl<'a> Bindings<'a> {
    /// No bindings.
    pub fn new() -> Self {
        Bindings::default()
    }

    /// Binds a dimension.
    pub fn dim(mut self, name: &str, size: u64) -> Self {
        self.dims.insert(name.to_string(), size);
        self
    }

    /// Binds a scalar.
    pub fn scalar(mut self, name: &str, value: f64) -> Self {
        self.scalars.insert(name.to_string(), value);
        self
    }

    /// Binds a tensor to its contents.
    pub fn tensor(mut self, name: &str, data: impl Into<Cow<'a, [f64]>>) -> Self {
        self.tensors.insert(name.to_string(), data.into());
        self
    }
}

/// What is rounded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// Nothing: the reference result.
    #[default]
    Oracle,
    /// Each operation's result, to its dtype.
    Rounded,
}

/// How to interpret.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is rounded.
    pub mode: Mode,
    /// Also compute [`Output::magnitude`].
    pub magnitude: bool,
    /// Multiply tile by tile, as the program is written, by the textbook loop.
    pub plain: bool,
    /// Threads; 0 for one per core.
    pub threads: usize,
    /// Most element operations that a run may take; more is an error before anything runs.
    pub work_limit: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            mode: Mode::Oracle,
            magnitude: false,
            plain: false,
            threads: 0,
            work_limit: 1 << 40,
        }
    }
}

/// A written tensor after the run.
#[derive(Clone, PartialEq, Debug)]
pub struct Output {
    /// Which tensor.
    pub tensor: TensorId,
    /// Its name.
    pub name: String,
    /// Its sizes and strides.
    pub layout: Layout,
    /// Contents in storage order; 0 in the gaps that strides leave.
    pub data: Vec<f64>,
    /// For each element the scale of its rounding error: a kernel that rounds every operation to
    /// unit roundoff u is off by about u times this (times a factor for the length of its sums).
    /// Empty unless [`Options::magnitude`] was set. See [`magnitude`].
    pub magnitude: Vec<f64>,
}

impl Output {
    /// The elements in row-major order, without gaps.
    pub fn packed(&self) -> Vec<f64> {
        self.layout.offsets().map(|at| self.data[at]).collect()
    }
}

/// The written tensors, in launch order.
pub type Outputs = Vec<Output>;

/// The exact-as-possible outputs of a program.
///
/// # Errors
/// The program isn't valid, a binding or precondition doesn't hold, an access leaves its tensor,
/// or an output element is written twice or never.
pub fn run(program: &Program, bindings: &Bindings<'_>) -> Result<Outputs, InterpError> {
    run_with(program, bindings, &Options::default())
}

/// [`run`] with options.
///
/// # Errors
/// As [`run`].
pub fn run_with(
    program: &Program,
    bindings: &Bindings<'_>,
    options: &Options,
) -> Result<Outputs, InterpError> {
    let launch = bind::bind(program, bindings)?;
    let code = compile::compile(&launch, options)?;
    exec::execute(&launch, &code, options)
}

/// The outputs with the scale of their rounding errors ([`Output::magnitude`]).
///
/// The scale `E` follows from the operations by first-order error analysis, with one unit per
/// rounding: E = 0 for what is loaded or exact, E(a) + E(b) + |a + b| for a sum,
/// |b|·E(a) + |a|·E(b) + |a·b| for a product, |f′(x)|·E(x) + |f(x)| for a function, the sum over
/// the axis of E(xᵢ) + |xᵢ| for a reduction by `add`, and
/// E(c) + Σ (|a| + E(a))·(|b| + E(b)) for a matrix product, which is (|A|·|B|)ᵢⱼ where the operands
/// are inputs. For a sum that cancels, E is large beside the result; otherwise it is a small
/// multiple of it.
///
/// # Errors
/// As [`run`].
pub fn magnitude(program: &Program, bindings: &Bindings<'_>) -> Result<Outputs, InterpError> {
    run_with(program, bindings, &Options { magnitude: true, ..Options::default() })
}

#[cfg(test)]
mod tests;
