//! The op library, one function per op.
//!
//! The sizes given are those to plan for. The number of rows stays open: a compiled row op serves
//! every number of rows and every row stride (see [`View`](crate::View)). A matrix product is
//! fixed to its sizes unless [`Op::dynamic`] leaves M (and the batch) open.

use crate::Error;
use std::sync::Arc;
use tilewright_engine::{Engine, Planned, Task};
use tilewright_ir::DType;
use tilewright_ir::ops::{OpRequest, find};
use tilewright_plan::{Policy, SpaceOptions};

pub use tilewright_ir::ops::{EpilogueStep, Trans};

/// An op of the library with its sizes and options.
#[derive(Clone)]
pub struct Op {
    name: &'static str,
    request: OpRequest,
    scale: f64,
    policy: Option<Arc<dyn Policy>>,
    space: SpaceOptions,
}

impl Op {
    fn new(name: &'static str, dtype: DType, shape: &[u64]) -> Self {
        let request = OpRequest::shaped(dtype, shape);
        Op { name, request, scale: 1.0, policy: None, space: SpaceOptions::default() }
    }

    fn rows(name: &'static str, rows: u64, cols: u64, dtype: DType) -> Self {
        let mut op = Op::new(name, dtype, &[rows, cols]);
        op.request.dynamic = true;
        op.request.strided = true;
        op
    }

    /// How a product's operands are stored.
    pub fn trans(mut self, trans: Trans) -> Self {
        self.request.trans = trans;
        self
    }

    /// Factor of a product. 0 reads neither A nor B.
    pub fn alpha(mut self, alpha: f64) -> Self {
        self.request.alpha = alpha;
        self
    }

    /// Factor of the old C of a product. 0 doesn't read C.
    pub fn beta(mut self, beta: f64) -> Self {
        self.request.beta = beta;
        self
    }

    /// What follows a product, in order.
    pub fn epilogue(mut self, steps: &[EpilogueStep]) -> Self {
        self.request.epilogue = steps.to_vec();
        self
    }

    /// The factor of the epilogue's [`EpilogueStep::Scale`].
    pub fn scale(mut self, scale: f64) -> Self {
        self.scale = scale;
        self
    }

    /// Type of a product's output: the inputs' type or their accumulator's.
    pub fn output(mut self, dtype: DType) -> Self {
        self.request.output = Some(dtype);
        self
    }

    /// Takes matrices with a leading dimension of their own, stated by each launch.
    pub fn strided(mut self) -> Self {
        self.request.strided = true;
        self
    }

    /// Leaves M (and the batch) of a product open, so that one compiled product serves all.
    pub fn dynamic(mut self) -> Self {
        self.request.dynamic = true;
        self
    }

    /// Fixes every size and stride: the compiled code serves this shape, packed, alone.
    pub fn fixed(mut self) -> Self {
        self.request.dynamic = false;
        self.request.strided = false;
        self
    }

    /// Ranks candidates with this policy instead of the target's default.
    pub fn policy(mut self, policy: Arc<dyn Policy>) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Limits the candidate space.
    pub fn space(mut self, space: SpaceOptions) -> Self {
        self.space = space;
        self
    }

    /// The op as a program with its sizes and scalars.
    ///
    /// # Errors
    /// The dtype, a size or an option doesn't fit the op.
    pub fn task(&self) -> Result<Task, Error> {
        let info = find(self.name)?;
        let program = info.build(&self.request)?;
        let factors =
            [("alpha", self.request.alpha), ("beta", self.request.beta), ("scale", self.scale)];
        let scalars: Vec<(&str, f64)> = factors
            .into_iter()
            .filter(|(name, _)| program.scalars.iter().any(|(_, s)| s.name == *name))
            .collect();
        let mut task = Task::new(program).space(self.space.clone());
        for (dim, size) in info.form.dims().iter().zip(&self.request.shape) {
            if info.form.dynamic_dims().contains(dim) && self.request.dynamic {
                task = task.size(dim, *size);
            }
        }
        for (name, value) in scalars {
            task = task.scalar(name, value);
        }
        Ok(match &self.policy {
            Some(policy) => task.policy(policy.clone()),
            None => task,
        })
    }

    /// Plans for the engine's device.
    ///
    /// # Errors
    /// As [`Op::task`] and [`Task::plan`].
    pub fn plan(&self, engine: &Engine) -> Result<Planned, Error> {
        Ok(self.task()?.plan(engine)?)
    }
}

/// `C = A·B`: inputs A (M×K) and B (K×N), then what the epilogue reads; output C (M×N).
pub fn gemm(m: u64, n: u64, k: u64, dtype: DType) -> Op {
    Op::new("gemm", dtype, &[m, n, k])
}

/// A batch of products; every tensor but a bias has a leading batch dimension.
pub fn bgemm(batch: u64, m: u64, n: u64, k: u64, dtype: DType) -> Op {
    Op::new("bgemm", dtype, &[batch, m, n, k])
}

macro_rules! row_ops {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        $($(#[doc = $doc])+
        pub fn $name(rows: u64, cols: u64, dtype: DType) -> Op {
            Op::rows(stringify!($name), rows, cols, dtype)
        })+

        /// Names of the row ops above.
        #[cfg(test)]
        const ROW_OPS: &[&str] = &[$(stringify!($name)),+];
    };
}

row_ops! {
    /// `y = A·x`: inputs A and x (`cols`), output y (`rows`).
    gemv,
    /// Softmax of each row of x.
    softmax,
    /// Softmax over the columns whose i32 mask isn't zero: inputs x, mask.
    masked_softmax,
    /// Softmax in which row i keeps the columns j ≤ i + (cols − rows).
    causal_softmax,
    /// Logarithm of the softmax of each row.
    log_softmax,
    /// RMSNorm: inputs x, gamma (`cols`).
    rmsnorm,
    /// LayerNorm: inputs x, gamma, beta (both `cols`).
    layernorm,
    /// LayerNorm of x + residual, without gamma and beta: inputs x, residual.
    residual_layernorm,
    /// Cross-entropy of each row: inputs x, label (i32, `rows`); output `rows` losses.
    cross_entropy,
    /// Sum of each row; output `rows`.
    row_sum,
    /// Maximum of each row; output `rows`.
    row_max,
    /// Mean of each row; output `rows`.
    row_mean,
    /// `a + b`.
    add,
    /// `a·b`.
    mul,
    /// `max(x, 0)`.
    relu,
    /// GELU, the exact form with the error function.
    gelu,
    /// `x / (1 + exp(−x))`.
    silu,
    /// `gelu(x) + residual`: inputs x, residual.
    gelu_residual,
    /// `silu(x)·gate`: inputs x, gate.
    swiglu,
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_ir::ops::catalog;

    #[test]
    fn every_op_of_the_catalog_has_a_function() {
        let mut named: Vec<&str> = ROW_OPS.iter().copied().chain(["gemm", "bgemm"]).collect();
        let mut known: Vec<&str> = catalog().iter().map(|op| op.name).collect();
        named.sort_unstable();
        known.sort_unstable();
        assert_eq!(named, known);
    }

    #[test]
    fn every_function_builds_a_program() {
        for name in ROW_OPS {
            let op = Op::rows(name, 3, 5, DType::F32);
            assert!(op.task().is_ok(), "{name}");
        }
        let steps = [EpilogueStep::Scale, EpilogueStep::Bias];
        let task = gemm(3, 4, 5, DType::F32).alpha(2.0).beta(3.0).epilogue(&steps).task();
        assert_eq!(task.map(|t| t.program().scalars.len()).ok(), Some(3));
        assert!(softmax(3, 5, DType::I32).task().is_err());
        assert!(softmax(3, 5, DType::F32).alpha(2.0).task().is_err());
    }
}
