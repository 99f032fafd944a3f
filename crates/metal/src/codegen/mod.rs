//! MSL text from a kernel.
//!
//! One kernel function per kernel. Values keep the numbers of the kernel's text (`%12` is `v12`);
//! expressions that are used once, where they are defined, are written where they are used.
//! Every pointer names its address space. Index arithmetic is in 32 bits where the values surely
//! fit, else in 64. Arithmetic isn't contracted: only [`Op::Fma`](tilewright_kernel::kernel::Op)
//! fuses.
//!
//! Three ways to multiply and reduce are visible in the text: collectives of a simdgroup
//! (`simd_sum`), products of 8×8 fragments (`simdgroup_multiply_accumulate`), and tensor
//! operations of Metal Performance Primitives (`matmul2d`). [`Sites`] counts them.

mod arith;
mod control;
mod emitter;
mod fragment;
mod helpers;
mod index;
mod memory;
mod mpp;
mod names;
mod sites;
mod uses;

use tilewright_ir::DType;
use tilewright_ir::program::Access;
use tilewright_kernel::kernel::{ArgId, ArgKind, Atom, Elem, GridDim, Kernel, Op, Size, Type};

pub use sites::Sites;

use emitter::Emitter;

/// A version of the Metal Shading Language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Language {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl Language {
    /// Collectives of simdgroups and 8×8 fragments of float and half.
    pub const BASE: Language = Language { major: 2, minor: 3 };
    /// `bfloat`.
    pub const BFLOAT: Language = Language { major: 3, minor: 1 };
    /// Tensors and `matmul2d`.
    pub const TENSORS: Language = Language { major: 4, minor: 0 };
}

impl std::fmt::Display for Language {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Something that not every Metal device or version has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// `simdgroup_matrix`: GPU family Apple7.
    SimdgroupMatrix,
    /// `bfloat`: GPU family Apple6 or Metal3, macOS 14.
    Bfloat,
    /// `matmul2d` of Metal Performance Primitives: GPU family Metal4, macOS 26.
    TensorOperations,
}

/// What the text may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The newest language version that the compiler has.
    pub newest: Language,
}

impl Default for Options {
    fn default() -> Self {
        Options { newest: Language::TENSORS }
    }
}

/// What the host gives for an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BindingKind {
    /// A buffer of elements.
    Buffer {
        /// Element type.
        dtype: DType,
        /// How the kernel uses it.
        access: Access,
        /// Alignment of its first element in bytes.
        align: u64,
    },
    /// A number, given by value (`setBytes`): a 64-bit integer for an index, else the type.
    Number(Elem),
}

/// An argument of the kernel function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Binding {
    /// The kernel's argument.
    pub arg: ArgId,
    /// Its slot, `[[buffer(n)]]`.
    pub slot: u32,
    /// Its name in the text.
    pub name: String,
    /// What it is.
    pub kind: BindingKind,
    /// The largest number that the text handles, where that isn't all of the type.
    pub most: Option<i64>,
}

/// A kernel as MSL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// The text: one kernel function and its helpers. It asks for safe floating-point math
    /// without contraction in itself; the host should compile it so too (math mode safe,
    /// precise functions).
    pub text: String,
    /// Name of the kernel function.
    pub entry: String,
    /// Arguments in order of their slots, which is the order of the kernel's arguments.
    pub bindings: Vec<Binding>,
    /// Threads per threadgroup, in one dimension.
    pub threads: u32,
    /// Threadgroup memory that the kernel function declares, in bytes.
    pub threadgroup_bytes: u64,
    /// Extents of the grid, outermost first. The innermost is the x of the launch.
    pub grid: Vec<GridDim>,
    /// The oldest language version that has everything used.
    pub language: Language,
    /// What the device must have, in order.
    pub features: Vec<Feature>,
}

impl Module {
    /// Threadgroups per grid, x first, for the given values of index arguments. `None` where an
    /// argument has no value or a dimension is over 2³² − 1.
    pub fn groups(&self, size: impl Fn(ArgId) -> Option<u64>) -> Option<[u32; 3]> {
        let mut groups = [1u32; 3];
        for (dim, count) in self.grid.iter().rev().zip(&mut groups) {
            let n = match dim.size {
                Size::Const(n) => n,
                Size::Arg(arg) => size(arg)?,
            };
            *count = u32::try_from(n.div_ceil(dim.step.max(1))).ok()?;
        }
        Some(groups)
    }

    /// What the text does, counted in the text.
    pub fn sites(&self) -> Sites {
        Sites::count(&self.text)
    }
}

/// A kernel that can't be expressed in MSL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum EmitError {
    /// A construct that this emitter does not cover.
    #[error("kernel `{kernel}`: {construct} has no MSL form here")]
    Unsupported { kernel: String, construct: String },
    /// Subgroups must be simdgroups.
    #[error("kernel `{kernel}` has subgroups of {lanes} lanes; a simdgroup has 32")]
    Lanes { kernel: String, lanes: u32 },
    /// More threads than a threadgroup can have.
    #[error("kernel `{kernel}` needs {threads} threads per group; a threadgroup has at most 1024")]
    Threads { kernel: String, threads: u64 },
    /// Metal has no 64-bit floats.
    #[error("kernel `{kernel}` computes in f64, which Metal doesn't have; use f32, f16 or bf16")]
    Double { kernel: String },
    /// More arguments than a kernel function can have.
    #[error("kernel `{kernel}` has {count} arguments; a kernel function has 31 buffer slots")]
    Arguments { kernel: String, count: usize },
    /// A newer language than the compiler has.
    #[error("kernel `{kernel}` needs MSL {needed} for {reason}; the compiler has {newest}")]
    Language { kernel: String, needed: Language, newest: Language, reason: &'static str },
    /// A value used before its definition: the kernel was not validated.
    #[error("kernel `{kernel}`: value {value} has no definition here; validate the kernel first")]
    Undefined { kernel: String, value: String },
}

/// Emits the MSL module of a validated kernel.
///
/// # Errors
/// [`EmitError`] names the construct that has no MSL form, or the limit of Metal that is passed.
pub fn emit(kernel: &Kernel, options: &Options) -> Result<Module, EmitError> {
    let name = || kernel.name.clone();
    if kernel.lanes != 32 {
        return Err(EmitError::Lanes { kernel: name(), lanes: kernel.lanes });
    }
    let threads = u64::from(kernel.lanes) * u64::from(kernel.subgroups);
    if threads > 1024 {
        return Err(EmitError::Threads { kernel: name(), threads });
    }
    if kernel.args.len() > 31 {
        return Err(EmitError::Arguments { kernel: name(), count: kernel.args.len() });
    }
    if uses_double(kernel) {
        return Err(EmitError::Double { kernel: name() });
    }
    let features = features(kernel);
    let mut language = Language::BASE;
    for feature in &features {
        let (needed, reason) = match feature {
            Feature::SimdgroupMatrix => (Language::BASE, "8x8 fragments"),
            Feature::Bfloat => (Language::BFLOAT, "bf16"),
            Feature::TensorOperations => (Language::TENSORS, "tensor operations"),
        };
        if needed > options.newest {
            let newest = options.newest;
            return Err(EmitError::Language { kernel: name(), needed, newest, reason });
        }
        language = language.max(needed);
    }
    let mut emitter = Emitter::new(kernel);
    emitter.kernel_body()?;
    let (text, entry, bindings) = emitter.finish(threads as u32, language);
    Ok(Module {
        text,
        entry,
        bindings,
        threads: threads as u32,
        threadgroup_bytes: kernel.shared.iter().map(|(_, s)| s.bytes()).sum(),
        grid: kernel.grid.clone(),
        language,
        features,
    })
}

/// Every data type of the kernel: values, memory, arguments.
fn dtypes(kernel: &Kernel) -> impl Iterator<Item = DType> + '_ {
    let values = kernel.values.iter().filter_map(|(_, v)| match v.ty {
        Type::Elem(Elem::Data(dtype)) | Type::Fragment { dtype, .. } => Some(dtype),
        Type::Elem(Elem::Index) | Type::Token => None,
    });
    let args = kernel.args.iter().filter_map(|(_, a)| match a.kind {
        ArgKind::Buffer { dtype, .. } | ArgKind::TensorMap { dtype, .. } => Some(dtype),
        ArgKind::Number(Elem::Data(dtype)) => Some(dtype),
        ArgKind::Number(Elem::Index) => None,
    });
    let memory = kernel.shared.iter().map(|(_, s)| s.dtype);
    values.chain(args).chain(memory).chain(kernel.private.iter().map(|(_, p)| p.dtype))
}

fn uses_double(kernel: &Kernel) -> bool {
    dtypes(kernel).any(|dtype| dtype == DType::F64)
}

fn features(kernel: &Kernel) -> Vec<Feature> {
    let atom = |test: fn(Atom) -> bool| {
        kernel.values.iter().any(|(_, v)| matches!(v.ty, Type::Fragment { atom, .. } if test(atom)))
    };
    let mut features = Vec::new();
    if atom(|a| a == Atom::Simdgroup8x8) {
        features.push(Feature::SimdgroupMatrix);
    }
    if dtypes(kernel).any(|dtype| dtype == DType::BF16) {
        features.push(Feature::Bfloat);
    }
    if atom(|a| matches!(a, Atom::Mpp { .. })) {
        features.push(Feature::TensorOperations);
    }
    features
}

/// Whether the kernel has a tensor operation.
fn has_tensors(kernel: &Kernel) -> bool {
    let mut found = false;
    kernel.body.walk(&mut |stmt| {
        found |= matches!(&stmt.op, Op::Mma { .. } | Op::FragmentStore { .. })
            && kernel
                .values
                .iter()
                .any(|(_, v)| matches!(v.ty, Type::Fragment { atom: Atom::Mpp { .. }, .. }));
    });
    found
}
