//! PTX text from a kernel.
//!
//! One PTX entry per kernel. Index values are 64-bit integers, bool values are predicates, 16-bit
//! floats are untyped 16-bit registers. Arithmetic names its rounding (`add.rn`, `mul.rn`), which
//! forbids contraction: only [`Op::Fma`](tilewright_kernel::kernel::Op::Fma) fuses. Loops with
//! known bounds and `unroll: 0`, and loops that index a private array, are emitted trip by trip,
//! so that private arrays become registers.

mod arith;
mod async_copy;
mod cluster;
mod control;
mod dependent;
mod emitter;
pub mod grid;
mod math;
mod memory;

use tilewright_kernel::kernel::{Arg, ArgKind, Elem, Evict, Kernel};

pub use emitter::Emitter;

/// What the text is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PtxTarget {
    /// Compute capability times ten: 80, 90, …
    pub sm: u32,
    /// PTX version times ten: 70 for 7.0.
    pub version: u32,
}

impl PtxTarget {
    /// The lowest target that kernels without asynchronous atoms need: sm_80, PTX 7.0 (R450
    /// drivers).
    pub const BASE: PtxTarget = PtxTarget { sm: 80, version: 70 };

    /// What hints to the second-level cache need: sm_80, PTX 7.4 (R470 drivers).
    pub const CACHE_HINTS: PtxTarget = PtxTarget { sm: 80, version: 74 };

    /// What clusters need: sm_90, PTX 7.8 (R520 drivers).
    pub const CLUSTERS: PtxTarget = PtxTarget { sm: 90, version: 78 };

    /// What programmatic dependent launches need: sm_90, PTX 8.3 (R545 drivers). PTX has them from
    /// 7.8 on, but earlier drivers don't record them into graphs.
    pub const DEPENDENT_LAUNCHES: PtxTarget = PtxTarget { sm: 90, version: 83 };

    /// Whether a device that takes this takes modules for `other` too.
    pub fn covers(self, other: PtxTarget) -> bool {
        self.sm >= other.sm && self.version >= other.version
    }

    /// The lowest target that has what both have.
    fn with(self, other: PtxTarget) -> PtxTarget {
        PtxTarget { sm: self.sm.max(other.sm), version: self.version.max(other.version) }
    }
}

/// A PTX module with one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ptx {
    /// The module's text.
    pub text: String,
    /// What the text is for: the lowest target that the kernel needs.
    pub target: PtxTarget,
    /// Name of the entry.
    pub entry: String,
    /// Threads per group.
    pub threads: u32,
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u64,
    /// Groups per cluster; 1: none. The text states it, so a plain launch has it.
    pub cluster: u32,
    /// Whether launches may begin before the launch ahead of them in the stream has ended
    /// (programmatic dependent launch): every thread waits for its end before it touches memory.
    pub dependent: bool,
}

/// A kernel that can't be expressed in PTX.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum CodegenError {
    /// A construct that this emitter does not cover.
    #[error("kernel `{kernel}`: {construct} has no PTX form here")]
    Unsupported { kernel: String, construct: String },
    /// Subgroups must be warps.
    #[error("kernel `{kernel}` has subgroups of {lanes} lanes; a warp has 32")]
    Lanes { kernel: String, lanes: u32 },
    /// More threads than a block can have.
    #[error("kernel `{kernel}` needs {threads} threads per group; a block has at most 1024")]
    Threads { kernel: String, threads: u64 },
    /// A private array whose index isn't known after unrolling.
    #[error(
        "kernel `{kernel}`: private array `{array}` is indexed by a value that is only known at run time"
    )]
    PrivateIndex { kernel: String, array: String },
    /// A value used before its definition: the kernel was not validated.
    #[error("kernel `{kernel}`: value {value} has no definition here; validate the kernel first")]
    Undefined { kernel: String, value: String },
    /// Full unrolling would exceed the statement budget.
    #[error(
        "kernel `{kernel}`: unrolling passes {limit} statements; use wider groups or no stripes"
    )]
    TooLong { kernel: String, limit: usize },
}

/// Emits the PTX module of a validated kernel, for `target` or the lowest later one that the
/// kernel needs.
///
/// # Errors
/// [`CodegenError`] names the construct that has no PTX form.
pub fn emit(kernel: &Kernel, target: PtxTarget) -> Result<Ptx, CodegenError> {
    emit_module(kernel, target, false)
}

/// Emits the PTX module of a validated kernel for a device that takes `limit`: where it has them,
/// launches are programmatic dependent ones.
///
/// # Errors
/// [`CodegenError`] names the construct that has no PTX form.
pub fn emit_for(kernel: &Kernel, limit: PtxTarget) -> Result<Ptx, CodegenError> {
    let dependent = limit.covers(PtxTarget::DEPENDENT_LAUNCHES);
    emit_module(kernel, PtxTarget::BASE, dependent)
}

fn emit_module(kernel: &Kernel, target: PtxTarget, dependent: bool) -> Result<Ptx, CodegenError> {
    if kernel.lanes != 32 {
        return Err(CodegenError::Lanes { kernel: kernel.name.clone(), lanes: kernel.lanes });
    }
    let threads = u64::from(kernel.lanes) * u64::from(kernel.subgroups);
    if threads > 1024 {
        return Err(CodegenError::Threads { kernel: kernel.name.clone(), threads });
    }
    let mut target = match kernel.cluster {
        1 => target,
        _ => target.with(PtxTarget::CLUSTERS),
    };
    let hinted = |arg: &Arg| match arg.kind {
        ArgKind::Buffer { evict, .. } => evict != Evict::Normal,
        _ => false,
    };
    if kernel.args.iter().any(|(_, arg)| hinted(arg)) {
        target = target.with(PtxTarget::CACHE_HINTS);
    }
    if dependent {
        target = target.with(PtxTarget::DEPENDENT_LAUNCHES);
    }
    let mut emitter = Emitter::new(kernel, target, dependent);
    emitter.prologue()?;
    emitter.block(&kernel.body)?;
    Ok(Ptx {
        text: emitter.finish(head(kernel, target, threads as u32)),
        target,
        entry: kernel.name.clone(),
        threads: threads as u32,
        shared_bytes: memory::shared_offset(kernel, None),
        cluster: kernel.cluster,
        dependent,
    })
}

/// What a module has before the declarations of its entry's registers.
fn head(kernel: &Kernel, target: PtxTarget, threads: u32) -> String {
    let mut params = Vec::new();
    for (_, arg) in kernel.args.iter() {
        let ty = match arg.kind {
            ArgKind::Buffer { .. } => ".u64",
            ArgKind::Number(Elem::Index) => ".s64",
            ArgKind::Number(Elem::Data(dtype)) => arith::param_type(dtype),
            ArgKind::TensorMap { .. } => ".u64",
        };
        params.push(format!("    .param {ty} p_{}", arg.name));
    }
    let shared = if kernel.shared_bytes() > 0 {
        ".extern .shared .align 128 .b8 shared_memory[];\n\n"
    } else {
        ""
    };
    // The assembler then gives a thread no more registers than its share.
    let resident = match kernel.resident {
        0 => String::new(),
        n => format!(".minnctapersm {n}\n"),
    };
    // The innermost dimension of the grid is x.
    let cluster = match kernel.cluster {
        1 => String::new(),
        n => format!(".reqnctapercluster {n}, 1, 1\n"),
    };
    format!(
        ".version {}.{}\n.target sm_{}\n.address_size 64\n\n{shared}.visible .entry {}(\n{}\n)\n.maxntid {threads}, 1, 1\n{resident}{cluster}{{\n",
        target.version / 10,
        target.version % 10,
        target.sm,
        kernel.name,
        params.join(",\n"),
    )
}
