//! Matrix products: `C = alpha·op(A)·op(B) + beta·C`, then an epilogue.

use std::fmt;
use std::str::FromStr;

use super::rows::symbolic;
use super::{OpError, activation, require_float};
use crate::builder::ProgramBuilder;
use crate::program::*;
use crate::types::DType;

/// Which operands are stored transposed; the first letter is A's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Trans {
    /// A is M×K, B is K×N.
    #[default]
    Nn,
    /// A is M×K, B is stored N×K.
    Nt,
    /// A is stored K×M, B is K×N.
    Tn,
    /// A is stored K×M, B is stored N×K.
    Tt,
}

impl Trans {
    /// Every combination.
    pub const ALL: [Trans; 4] = [Trans::Nn, Trans::Nt, Trans::Tn, Trans::Tt];

    /// Whether A is stored K×M.
    pub fn a(self) -> bool {
        matches!(self, Trans::Tn | Trans::Tt)
    }

    /// Whether B is stored N×K.
    pub fn b(self) -> bool {
        matches!(self, Trans::Nt | Trans::Tt)
    }

    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Trans::Nn => "nn",
            Trans::Nt => "nt",
            Trans::Tn => "tn",
            Trans::Tt => "tt",
        }
    }
}

impl fmt::Display for Trans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Trans {
    type Err = OpError;
    fn from_str(text: &str) -> Result<Self, OpError> {
        Trans::ALL.into_iter().find(|t| t.name() == text).ok_or_else(|| OpError::Name {
            what: "transposition",
            text: text.to_string(),
            known: "nn, nt, tn or tt",
        })
    }
}

/// How alpha or beta enters the program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Factor {
    /// The factor is 0: what it multiplies is never read.
    Zero,
    /// The factor is 1: no multiplication.
    One,
    /// A run-time scalar; that it isn't 0 is a launch precondition.
    Runtime,
}

impl Factor {
    /// The mode that serves a value.
    pub fn of(value: f64) -> Self {
        if value == 0.0 {
            Factor::Zero
        } else if value == 1.0 {
            Factor::One
        } else {
            Factor::Runtime
        }
    }
}

/// One step of an epilogue, applied in order to `alpha·A·B + beta·C` in the accumulator's type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EpilogueStep {
    /// Times the run-time scalar `scale` (`scale2`, … where the step occurs again).
    Scale,
    /// Plus `bias[n]` (`bias2`, …), one element per column.
    Bias,
    /// Plus `residual` (`residual2`, …), shaped as C, of the output's dtype.
    Residual,
    /// `max(x, 0)`.
    Relu,
    /// `0.5·x·(1 + erf(x/√2))`.
    Gelu,
    /// `x / (1 + exp(−x))`.
    Silu,
}

impl EpilogueStep {
    /// Every step.
    pub const ALL: [EpilogueStep; 6] = [
        EpilogueStep::Scale,
        EpilogueStep::Bias,
        EpilogueStep::Residual,
        EpilogueStep::Relu,
        EpilogueStep::Gelu,
        EpilogueStep::Silu,
    ];

    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            EpilogueStep::Scale => "scale",
            EpilogueStep::Bias => "bias",
            EpilogueStep::Residual => "residual",
            EpilogueStep::Relu => "relu",
            EpilogueStep::Gelu => "gelu",
            EpilogueStep::Silu => "silu",
        }
    }
}

impl FromStr for EpilogueStep {
    type Err = OpError;
    fn from_str(text: &str) -> Result<Self, OpError> {
        EpilogueStep::ALL.into_iter().find(|s| s.name() == text).ok_or_else(|| OpError::Name {
            what: "epilogue step",
            text: text.to_string(),
            known: "scale, bias, residual, relu, gelu or silu",
        })
    }
}

/// A matrix product.
#[derive(Clone, PartialEq, Debug)]
pub struct GemmSpec {
    /// Type of A and B. Products are accumulated in f32 for f16 and bf16, else in this type.
    pub dtype: DType,
    /// Type of C: `dtype`, or the accumulator's.
    pub output: DType,
    /// How A and B are stored.
    pub trans: Trans,
    /// Factor of A·B: run-time scalar `alpha`.
    pub alpha: Factor,
    /// Factor of the old C: run-time scalar `beta`. Unless it is zero, C is read and written.
    pub beta: Factor,
    /// What is done to the product before it is stored.
    pub epilogue: Vec<EpilogueStep>,
    /// Whether matrices have run-time strides: dimensions `lda`, `ldb`, `ldc`, `ldr` (elements
    /// between rows), and `sa`, `sb`, `sc`, `sr` between the matrices of a batch.
    pub strided: bool,
    /// Whether there is a batch of products.
    pub batch: bool,
    /// Block extents where no plan chose any.
    pub block: [u64; 3],
}

impl GemmSpec {
    /// `C = A·B` of packed matrices in one dtype.
    pub fn plain(dtype: DType) -> Self {
        GemmSpec {
            dtype,
            output: dtype,
            trans: Trans::Nn,
            alpha: Factor::One,
            beta: Factor::Zero,
            epilogue: Vec::new(),
            strided: false,
            batch: false,
            block: [64, 64, 64],
        }
    }

    /// The program for M×N×K with these sizes bound; a size that isn't stated stays open until
    /// launch.
    ///
    /// # Errors
    /// As [`gemm`]; a size beyond a dimension's bound.
    pub fn sized(&self, size: [Option<u64>; 3]) -> Result<Program, OpError> {
        let mut program = gemm(self)?;
        for (name, size) in ["m", "n", "k"].into_iter().zip(size) {
            if let Some(size) = size {
                program.bind(name, size)?;
            }
        }
        Ok(program)
    }
}

/// The tile that an instance computes: where it lies in a tensor shaped as C.
struct Place {
    batch: Option<IndexId>,
    row: Coord,
    column: Coord,
    axes: Vec<AxisId>,
    bounds: Bounds,
}

impl Place {
    fn coords(&self) -> Vec<Coord> {
        let batch = self.batch.map(Coord::at);
        batch.into_iter().chain([self.row.clone(), self.column.clone()]).collect()
    }
}

struct Gemm<'a> {
    b: ProgramBuilder,
    spec: &'a GemmSpec,
    batch: Option<Extent>,
    m: Extent,
    n: Extent,
    k: Extent,
}

/// `C = alpha·op(A)·op(B) + beta·C`, then the epilogue, then one rounding to the output's dtype.
///
/// Dimensions `m`, `n`, `k` (and `batch`), blocks `bm`, `bn`, `bk`. Tensors: `a`, `b`, what the
/// epilogue needs, `c`; each with a leading batch dimension where the spec has a batch (`bias`
/// excepted: the batch shares it). With beta zero C is never read; with alpha zero A and B are
/// never read; with k = 0 the product is 0.
///
/// # Errors
/// The dtype isn't a float, or the output dtype is neither the input's nor the accumulator's.
pub fn gemm(spec: &GemmSpec) -> Result<Program, OpError> {
    let name = if spec.batch { "bgemm" } else { "gemm" };
    require_float(name, spec.dtype)?;
    let accumulator = spec.dtype.accumulator();
    if spec.output != spec.dtype && spec.output != accumulator {
        return Err(OpError::Output {
            op: name.to_string(),
            dtype: spec.dtype,
            output: spec.output,
            supported: format!("{} or {accumulator}", spec.dtype),
        });
    }
    let mut b = ProgramBuilder::new(name);
    let batch = spec.batch.then(|| b.dim("batch", symbolic()));
    let m = b.dim("m", symbolic());
    let n = b.dim("n", symbolic());
    let k = b.dim("k", symbolic());
    let mut g = Gemm { b, spec, batch, m, n, k };
    let (a_shape, b_shape) = (
        if spec.trans.a() { [k, m] } else { [m, k] },
        if spec.trans.b() { [n, k] } else { [k, n] },
    );
    let a = g.matrix("a", 'a', Access::In, spec.dtype, a_shape);
    let b = g.matrix("b", 'b', Access::In, spec.dtype, b_shape);
    let grid = g.batch.map(|size| g.b.grid("p", size, Extent::Const(1)));
    let (product, place) =
        if spec.alpha == Factor::Zero { g.nothing(grid) } else { g.product(a, b, grid) };
    Ok(g.finish(product, place))
}

impl Gemm<'_> {
    /// Declares a matrix (with a batch dimension if there is a batch) and its strides.
    fn matrix(
        &mut self,
        name: &str,
        letter: char,
        access: Access,
        dtype: DType,
        shape: [Extent; 2],
    ) -> TensorId {
        let full: Vec<Extent> = self.batch.into_iter().chain(shape).collect();
        let tensor = self.b.tensor(name, access, dtype, &full);
        if self.spec.strided {
            let mut strides = Vec::new();
            if self.batch.is_some() {
                strides.push(self.b.dim(&format!("s{letter}"), symbolic()));
            }
            strides.push(self.b.dim(&format!("ld{letter}"), symbolic()));
            strides.push(Extent::Const(1));
            self.b.strides(tensor, &strides);
        }
        tensor
    }

    /// The loop over K: `alpha·A·B` of one block.
    fn product(
        &mut self,
        a: TensorId,
        b: TensorId,
        batch: Option<IndexId>,
    ) -> (Option<ValueId>, Place) {
        let spec = self.spec;
        let [bm, bn, bk] = spec.block.map(|default| DimKind::Block { default });
        let bm = self.b.dim("bm", bm);
        let bn = self.b.dim("bn", bn);
        let bk = self.b.dim("bk", bk);
        let i0 = self.b.grid("i0", self.m, bm);
        let j0 = self.b.grid("j0", self.n, bn);
        let i = self.b.axis("i", bm);
        let j = self.b.axis("j", bn);
        let l = self.b.axis("l", bk);
        let zero = Bounds::Fill(0.0);
        let init = self.b.fill(0.0, spec.dtype.accumulator(), &[i, j]);
        let window = LoopKind::Pipeline { window: 1 };
        let results = self.b.repeat(window, "l0", self.k, bk, &[init], |builder, l0, carried| {
            let (row, column, depth) = (Coord::tile(i0, i), Coord::tile(j0, j), Coord::tile(l0, l));
            let order = |first: Coord, second: Coord, swap: bool| {
                let pair = if swap { [second, first] } else { [first, second] };
                batch.map(Coord::at).into_iter().chain(pair).collect::<Vec<Coord>>()
            };
            let a = builder.load(a, order(row, depth.clone(), spec.trans.a()), zero);
            let b = builder.load(b, order(depth, column, spec.trans.b()), zero);
            vec![builder.mma(a, b, carried[0])]
        });
        let mut product = results[0];
        if spec.alpha == Factor::Runtime {
            let alpha = self.b.scalar("alpha", spec.dtype.accumulator(), true);
            let alpha = self.b.scalar_value(alpha);
            product = self.b.map(MapOp::Mul, &[alpha, product]);
        }
        let place = Place {
            batch,
            row: Coord::tile(i0, i),
            column: Coord::tile(j0, j),
            axes: vec![i, j],
            bounds: zero,
        };
        (Some(product), place)
    }

    /// Alpha is zero: a row program over C that reads neither A nor B.
    fn nothing(&mut self, batch: Option<IndexId>) -> (Option<ValueId>, Place) {
        let i = self.b.grid("i", self.m, Extent::Const(1));
        let j = self.b.axis("j", self.n);
        let place = Place {
            batch,
            row: Coord::at(i),
            column: Coord::along(j),
            axes: vec![j],
            bounds: Bounds::Assume,
        };
        (None, place)
    }

    /// Adds beta·C and the epilogue, stores and finishes.
    fn finish(mut self, product: Option<ValueId>, place: Place) -> Program {
        let spec = self.spec;
        let accumulator = spec.dtype.accumulator();
        let shape = [self.m, self.n];
        let access = if spec.beta == Factor::Zero { Access::Out } else { Access::InOut };
        let mut inputs = Vec::new();
        for (position, step) in spec.epilogue.iter().enumerate() {
            // A step that occurs again gets a parameter of its own.
            let before = spec.epilogue[..position].iter().filter(|s| *s == step).count();
            let suffix = if before == 0 { String::new() } else { format!("{}", before + 1) };
            let name = format!("{}{suffix}", step.name());
            let tensor = match step {
                EpilogueStep::Bias => Some(self.b.tensor(&name, Access::In, spec.dtype, &[self.n])),
                EpilogueStep::Residual => {
                    let full: Vec<Extent> = self.batch.into_iter().chain(shape).collect();
                    let tensor = self.b.tensor(&name, Access::In, spec.output, &full);
                    if spec.strided {
                        let mut strides = Vec::new();
                        if self.batch.is_some() {
                            strides.push(self.b.dim(&format!("sr{suffix}"), symbolic()));
                        }
                        strides.push(self.b.dim(&format!("ldr{suffix}"), symbolic()));
                        strides.push(Extent::Const(1));
                        self.b.strides(tensor, &strides);
                    }
                    Some(tensor)
                }
                _ => None,
            };
            inputs.push((name, tensor));
        }
        let c = self.matrix("c", 'c', access, spec.output, shape);

        let b = &mut self.b;
        let old = match spec.beta {
            Factor::Zero => None,
            Factor::One | Factor::Runtime => {
                let old = b.load(c, place.coords(), place.bounds);
                let old = b.cast(old, accumulator);
                if spec.beta == Factor::One {
                    Some(old)
                } else {
                    let beta = b.scalar("beta", accumulator, true);
                    let beta = b.scalar_value(beta);
                    Some(b.map(MapOp::Mul, &[beta, old]))
                }
            }
        };
        let mut value = match (product, old) {
            (Some(product), Some(old)) => b.map(MapOp::Add, &[product, old]),
            (Some(value), None) | (None, Some(value)) => value,
            (None, None) => b.fill(0.0, accumulator, &place.axes),
        };
        for (step, (name, input)) in spec.epilogue.iter().zip(inputs) {
            value = match (step, input) {
                (EpilogueStep::Bias, Some(tensor)) => {
                    let bias = b.load(tensor, vec![place.column.clone()], place.bounds);
                    let bias = b.cast(bias, accumulator);
                    b.map(MapOp::Add, &[value, bias])
                }
                (EpilogueStep::Residual, Some(tensor)) => {
                    let residual = b.load(tensor, place.coords(), place.bounds);
                    let residual = b.cast(residual, accumulator);
                    b.map(MapOp::Add, &[value, residual])
                }
                (EpilogueStep::Scale, _) => {
                    let scale = b.scalar(&name, accumulator, false);
                    let scale = b.scalar_value(scale);
                    b.map(MapOp::Mul, &[scale, value])
                }
                (EpilogueStep::Relu, _) => activation::relu(b, value),
                (EpilogueStep::Gelu, _) => activation::gelu(b, value),
                (EpilogueStep::Silu, _) => activation::silu(b, value),
                // `inputs` has a tensor for each step that reads one.
                (EpilogueStep::Bias | EpilogueStep::Residual, None) => value,
            };
        }
        let value = b.cast(value, spec.output);
        b.store(c, place.coords(), value, place.bounds);
        self.b.finish()
    }
}
