//! The ops by name, for command lines and for tests that want all of them.

use super::*;
use crate::program::Program;

/// What the sizes of a shape mean.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ShapeForm {
    /// `ROWSxCOLUMNS`: dims `rows`, `cols`.
    Rows,
    /// `MxNxK`: dims `m`, `n`, `k`.
    Matrix,
    /// `BxMxNxK`: dims `batch`, `m`, `n`, `k`.
    BatchedMatrix,
}

impl ShapeForm {
    /// How the shape is written.
    pub fn text(self) -> &'static str {
        match self {
            ShapeForm::Rows => "ROWSxCOLUMNS",
            ShapeForm::Matrix => "MxNxK",
            ShapeForm::BatchedMatrix => "BxMxNxK",
        }
    }

    /// The dimensions that the sizes bind, in order.
    pub fn dims(self) -> &'static [&'static str] {
        match self {
            ShapeForm::Rows => &["rows", "cols"],
            ShapeForm::Matrix => &["m", "n", "k"],
            ShapeForm::BatchedMatrix => &["batch", "m", "n", "k"],
        }
    }

    /// The dimensions that may stay symbolic in a compiled kernel.
    pub fn dynamic_dims(self) -> &'static [&'static str] {
        match self {
            ShapeForm::Rows => &["rows"],
            ShapeForm::Matrix => &["m"],
            ShapeForm::BatchedMatrix => &["batch", "m"],
        }
    }
}

/// What program is wanted of an op.
#[derive(Clone, PartialEq, Debug)]
pub struct OpRequest {
    /// Sizes, as many as the op's shape form has; empty for the generic program.
    pub shape: Vec<u64>,
    /// Leave rows, M and batch symbolic though a shape is given, so that one kernel serves every
    /// value of them.
    pub dynamic: bool,
    /// Type of the inputs.
    pub dtype: DType,
    /// Type of the output of a product; the input's if `None`.
    pub output: Option<DType>,
    /// Run-time strides instead of packed matrices.
    pub strided: bool,
    /// Storage of the operands of a product.
    pub trans: Trans,
    /// Factor of a product.
    pub alpha: f64,
    /// Factor of the old C of a product.
    pub beta: f64,
    /// Epilogue of a product.
    pub epilogue: Vec<EpilogueStep>,
}

impl OpRequest {
    /// The generic program of a dtype, with no options.
    pub fn generic(dtype: DType) -> Self {
        OpRequest::shaped(dtype, &[])
    }

    /// The program of a dtype and a shape, with no options.
    pub fn shaped(dtype: DType, shape: &[u64]) -> Self {
        OpRequest {
            shape: shape.to_vec(),
            dynamic: false,
            dtype,
            output: None,
            strided: false,
            trans: Trans::Nn,
            alpha: 1.0,
            beta: 0.0,
            epilogue: Vec::new(),
        }
    }
}

/// An op of the library.
#[derive(Clone, Copy, Debug)]
pub struct OpInfo {
    /// Name on the command line, and name of the program.
    pub name: &'static str,
    /// What its shape means.
    pub form: ShapeForm,
    /// The tensors, in launch order; in brackets those that options add.
    pub tensors: &'static str,
    /// One line of formula.
    pub doc: &'static str,
    builder: Builder,
}

#[derive(Clone, Copy, Debug)]
enum Builder {
    Rows(fn(RowSpec) -> Result<Program, OpError>),
    Gemm { batch: bool },
}

const fn rows(
    name: &'static str,
    tensors: &'static str,
    doc: &'static str,
    builder: fn(RowSpec) -> Result<Program, OpError>,
) -> OpInfo {
    OpInfo { name, form: ShapeForm::Rows, tensors, doc, builder: Builder::Rows(builder) }
}

static CATALOG: [OpInfo; 21] = [
    OpInfo {
        name: "gemm",
        form: ShapeForm::Matrix,
        tensors: "a[m, k] b[k, n] [bias[n]] [residual[m, n]] c[m, n]",
        doc: "c = epilogue(alpha·a·b + beta·c)",
        builder: Builder::Gemm { batch: false },
    },
    OpInfo {
        name: "bgemm",
        form: ShapeForm::BatchedMatrix,
        tensors: "a[batch, m, k] b[batch, k, n] [bias[n]] [residual[batch, m, n]] c[batch, m, n]",
        doc: "c[p] = epilogue(alpha·a[p]·b[p] + beta·c[p])",
        builder: Builder::Gemm { batch: true },
    },
    rows("gemv", "a[rows, cols] x[cols] y[rows]", "y = a·x", gemv),
    rows("softmax", "x[rows, cols] y[rows, cols]", "y = e / sum(e), e = exp(x - max(x))", softmax),
    rows(
        "masked_softmax",
        "x[rows, cols] mask[rows, cols] y[rows, cols]",
        "softmax over the columns whose mask is nonzero, 0 elsewhere",
        masked_softmax,
    ),
    rows(
        "causal_softmax",
        "x[rows, cols] y[rows, cols]",
        "softmax over the columns j <= i + (cols - rows) of row i, 0 elsewhere",
        causal_softmax,
    ),
    rows(
        "log_softmax",
        "x[rows, cols] y[rows, cols]",
        "y = (x - max(x)) - log(sum(exp(x - max(x))))",
        log_softmax,
    ),
    rows(
        "rmsnorm",
        "x[rows, cols] gamma[cols] y[rows, cols]",
        "y = x / sqrt(mean(x*x) + 1e-5) * gamma",
        rmsnorm,
    ),
    rows(
        "layernorm",
        "x[rows, cols] gamma[cols] beta[cols] y[rows, cols]",
        "y = c / sqrt(mean(c*c) + 1e-5) * gamma + beta, c = x - mean(x)",
        layernorm,
    ),
    rows(
        "residual_layernorm",
        "x[rows, cols] residual[rows, cols] y[rows, cols]",
        "y = c / sqrt(mean(c*c) + 1e-5), c = s - mean(s), s = x + residual",
        residual_layernorm,
    ),
    rows(
        "cross_entropy",
        "x[rows, cols] label[rows] loss[rows]",
        "loss = log(sum(exp(x - max(x)))) + max(x) - x[label]",
        cross_entropy,
    ),
    rows("row_sum", "x[rows, cols] y[rows]", "y = sum(x)", row_sum),
    rows("row_max", "x[rows, cols] y[rows]", "y = max(x)", row_max),
    rows("row_mean", "x[rows, cols] y[rows]", "y = sum(x) / cols", row_mean),
    rows("add", "a[rows, cols] b[rows, cols] y[rows, cols]", "y = a + b", add),
    rows("mul", "a[rows, cols] b[rows, cols] y[rows, cols]", "y = a * b", mul),
    rows("relu", "x[rows, cols] y[rows, cols]", "y = max(x, 0)", relu),
    rows("gelu", "x[rows, cols] y[rows, cols]", "y = x/2 * (1 + erf(x / sqrt(2)))", gelu),
    rows("silu", "x[rows, cols] y[rows, cols]", "y = x / (1 + exp(-x))", silu),
    rows(
        "gelu_residual",
        "x[rows, cols] residual[rows, cols] y[rows, cols]",
        "y = gelu(x) + residual",
        gelu_residual,
    ),
    rows("swiglu", "x[rows, cols] gate[rows, cols] y[rows, cols]", "y = silu(x) * gate", swiglu),
];

/// Every op, in the order of the documentation.
pub fn catalog() -> &'static [OpInfo] {
    &CATALOG
}

/// The op of that name.
///
/// # Errors
/// There is none; the error lists the names.
pub fn find(name: &str) -> Result<&'static OpInfo, OpError> {
    CATALOG.iter().find(|op| op.name == name).ok_or_else(|| OpError::Unknown {
        name: name.to_string(),
        known: CATALOG.iter().map(|op| op.name).collect::<Vec<_>>().join(", "),
    })
}

/// Builds the program of an op by name.
///
/// # Errors
/// The op is unknown, or it can't serve the request.
pub fn build(name: &str, request: &OpRequest) -> Result<Program, OpError> {
    find(name)?.build(request)
}

impl OpInfo {
    /// The program that serves a request.
    ///
    /// # Errors
    /// The dtype, the shape or an option doesn't fit the op.
    pub fn build(&self, request: &OpRequest) -> Result<Program, OpError> {
        let mut program = match self.builder {
            Builder::Rows(builder) => {
                self.reject_product_options(request)?;
                builder(RowSpec { dtype: request.dtype, strided: request.strided })?
            }
            Builder::Gemm { batch } => {
                for (name, value) in [("alpha", request.alpha), ("beta", request.beta)] {
                    if !value.is_finite() {
                        return Err(OpError::Factor { name, value });
                    }
                }
                gemm(&GemmSpec {
                    dtype: request.dtype,
                    output: request.output.unwrap_or(request.dtype),
                    trans: request.trans,
                    alpha: Factor::of(request.alpha),
                    beta: Factor::of(request.beta),
                    epilogue: request.epilogue.clone(),
                    strided: request.strided,
                    batch,
                    ..GemmSpec::plain(request.dtype)
                })?
            }
        };
        self.bind(&mut program, &request.shape, request.dynamic)?;
        Ok(program)
    }

    /// Binds the sizes of a shape; nothing for an empty shape. With `dynamic`, rows, M and batch
    /// are checked and left symbolic.
    ///
    /// # Errors
    /// The shape has the wrong length, or a size doesn't fit its dimension.
    pub fn bind(&self, program: &mut Program, shape: &[u64], dynamic: bool) -> Result<(), OpError> {
        if shape.is_empty() {
            return Ok(());
        }
        let dims = self.form.dims();
        if shape.len() != dims.len() {
            return Err(OpError::ShapeLength {
                op: self.name.to_string(),
                form: self.form.text(),
                got: shape.len(),
            });
        }
        let mut bound = program.clone();
        for (dim, size) in dims.iter().zip(shape) {
            bound.bind(dim, *size)?;
        }
        if dynamic {
            for (dim, size) in dims.iter().zip(shape) {
                if !self.form.dynamic_dims().contains(dim) {
                    program.bind(dim, *size)?;
                }
            }
        } else {
            *program = bound;
        }
        Ok(())
    }

    fn reject_product_options(&self, request: &OpRequest) -> Result<(), OpError> {
        let option = if request.trans != Trans::Nn {
            "transposition"
        } else if request.alpha != 1.0 {
            "alpha"
        } else if request.beta != 0.0 {
            "beta"
        } else if !request.epilogue.is_empty() {
            "epilogue"
        } else if request.output.is_some_and(|output| output != request.dtype) {
            "output dtype"
        } else {
            return Ok(());
        };
        Err(OpError::Option { op: self.name.to_string(), option })
    }
}

/// Sizes of a shape text such as `37x1537`.
///
/// # Errors
/// The text isn't numbers joined by `x`, or a number is over [`MAX_SIZE`].
pub fn parse_shape(text: &str) -> Result<Vec<u64>, OpError> {
    let error = |reason: String| OpError::ShapeText { text: text.to_string(), reason };
    if text.is_empty() {
        return Err(error("it is empty".to_string()));
    }
    text.split('x')
        .map(|part| {
            if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
                return Err(error(format!("`{part}` is no size")));
            }
            match part.parse::<u64>() {
                Ok(size) if size <= MAX_SIZE => Ok(size),
                _ => Err(error(format!("{part} is over the limit {MAX_SIZE}"))),
            }
        })
        .collect()
}
