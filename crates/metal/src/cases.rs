//! The cases that show a Metal backend to be right: every op of the library in every realisation,
//! over shapes on both sides of the thresholds. They run in emulation wherever this crate is
//! tested, and on a device where there is one.
//!
//! Thresholds of rows: one access of all workers (`threads` × V elements), whole and ragged
//! packs, one row and several, rows shorter than a group, the least and the most of every choice.
//! Of products: whole and ragged blocks in each dimension, one step of K and several, operands in
//! place and staged. `tests/coverage.rs` derives them from the planner.

mod products;
mod rows;
mod special;

pub use special::Special;

use std::collections::BTreeMap;

use tilewright_ir::analysis;
use tilewright_ir::facts::Facts;
use tilewright_ir::ops::{OpRequest, ShapeForm, Trans, catalog, find};
use tilewright_ir::{DType, Program};
use tilewright_kernel::kernel::Kernel;
use tilewright_kernel::lower::{self, lower, lower_any};
use tilewright_plan::mapping::Mapping;
use tilewright_plan::{Request, SpaceOptions, Target, plan, policy};

use crate::{Module, Options, emit};

/// The dtypes that Metal computes on.
pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// How a case's kernel came to be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Realisation {
    /// Rows by collectives of a simdgroup.
    Rows,
    /// Products of 8×8 fragments.
    Fragments,
    /// Tensor operations.
    Tensors,
    /// The lowering that serves any program.
    General,
}

/// A kernel with the sizes that it is to be launched on.
#[derive(Clone, Debug)]
pub struct Case {
    /// A name of its own: letters, digits, `-` and `_`.
    pub id: String,
    /// The op of the library.
    pub op: &'static str,
    /// How it is mapped.
    pub realisation: Realisation,
    /// The mapping that it is lowered with; none where the lowering serves any program.
    pub mapping: Option<Mapping>,
    /// What the planner was asked for.
    pub space: SpaceOptions,
    /// The policy that ranked it; empty where there is no mapping.
    pub policy: &'static str,
    /// The program.
    pub program: Program,
    /// What is proved of it.
    pub facts: Facts,
    /// The kernel.
    pub kernel: Kernel,
    /// Its text.
    pub module: Module,
    /// Sizes of symbolic dimensions.
    pub dims: BTreeMap<String, u64>,
    /// Run-time scalars.
    pub scalars: BTreeMap<String, f64>,
    /// Whether it is one of the few that stand for all.
    pub brief: bool,
}

/// Why a case can't be made: a list that asks for something illegal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("case {id}: {reason}")]
pub struct CaseError {
    /// The case's name.
    pub id: String,
    /// What went wrong.
    pub reason: String,
}

/// What a case is made of.
struct Wish {
    op: &'static str,
    request: OpRequest,
    policy: &'static str,
    space: SpaceOptions,
    /// Padding of run-time strides.
    pad: u64,
    /// All sizes are stated by the launch.
    generic: bool,
    /// Told apart from others of the same op, type and shape.
    tag: String,
    brief: bool,
}

impl Wish {
    fn new(op: &'static str, dtype: DType, shape: &[u64], policy: &'static str) -> Wish {
        Wish {
            op,
            request: OpRequest::shaped(dtype, shape),
            policy,
            space: SpaceOptions::default(),
            pad: 0,
            generic: false,
            tag: String::new(),
            brief: false,
        }
    }

    fn id(&self) -> String {
        let shape: Vec<String> = self.request.shape.iter().map(u64::to_string).collect();
        let mut id = format!("{}-{}-{}", self.op, self.request.dtype, shape.join("x"));
        if !self.tag.is_empty() {
            id += "-";
            id += &self.tag;
        }
        id
    }

    fn case(&self) -> Result<Case, CaseError> {
        let id = self.id();
        let fail = |reason: String| CaseError { id: id.clone(), reason };
        let info = find(self.op).map_err(|e| fail(e.to_string()))?;
        let generic = OpRequest { shape: Vec::new(), ..self.request.clone() };
        let request = if self.generic { &generic } else { &self.request };
        let mut program = info.build(request).map_err(|e| fail(e.to_string()))?;
        let mut dims = BTreeMap::new();
        let named: BTreeMap<&str, u64> =
            info.form.dims().iter().copied().zip(self.request.shape.iter().copied()).collect();
        for (_, dim) in program.dims.iter() {
            if let tilewright_ir::program::DimKind::Symbolic { .. } = dim.kind {
                let size = match named.get(dim.name.as_str()) {
                    Some(size) => *size,
                    None => stride(&dim.name, &named, self.request.trans) + self.pad,
                };
                dims.insert(dim.name.clone(), size);
            }
        }
        let scalars =
            (program.scalars.iter()).map(|(_, s)| (s.name.clone(), s.dtype.round(0.75))).collect();
        let target = Target::apple_m1_max();
        let lowering = lower::Options::for_target(&target);
        let (lowered, realisation, mapping) = if self.policy == GENERAL {
            program.name = self.op.to_string();
            let program = lower::resident(&program, &target);
            (lower_any(&program, 32, &lowering), Realisation::General, None)
        } else {
            let program = lower::resident(&program, &target);
            let facts = analysis::facts(&program);
            let mut request = Request::new(&program, &facts).options(self.space.clone());
            for (dim, size) in &dims {
                request = request.size(dim, *size);
            }
            let policy = policy::by_name(self.policy, None).map_err(|e| fail(e.to_string()))?;
            let ranking =
                plan(&request, &target, policy.as_ref()).map_err(|e| fail(e.to_string()))?;
            let mapping = ranking.winner().map_err(|e| fail(e.to_string()))?.mapping;
            let realisation = match mapping {
                Mapping::Rows(_) => Realisation::Rows,
                _ if self.policy == FRAGMENTS => Realisation::Fragments,
                _ => Realisation::Tensors,
            };
            (lower(&program, &facts, &mapping, &lowering), realisation, Some(mapping))
        };
        let lowered = lowered.map_err(|e| fail(e.to_string()))?;
        let [kernel] = lowered.launches.as_slice() else {
            return Err(fail(format!("{} launches", lowered.launches.len())));
        };
        let module = emit(kernel, &Options::default()).map_err(|e| fail(e.to_string()))?;
        Ok(Case {
            id,
            op: self.op,
            realisation,
            mapping,
            space: self.space.clone(),
            policy: if self.policy == GENERAL { "" } else { self.policy },
            facts: analysis::facts(&program),
            kernel: kernel.clone(),
            module,
            program,
            dims,
            scalars,
            brief: self.brief,
        })
    }
}

/// A packed stride of a strided program, by its name.
fn stride(name: &str, sizes: &BTreeMap<&str, u64>, trans: Trans) -> u64 {
    let size = |dim: &str| sizes.get(dim).copied().unwrap_or(1);
    match name {
        "lda" => size(if trans.a() { "m" } else { "k" }),
        "ldb" => size(if trans.b() { "k" } else { "n" }),
        "ldc" | "ldr" => size("n"),
        _ if sizes.contains_key("n") => size("n"),
        _ => size("cols"),
    }
}

const ROWS: &str = "reduction-v1";
const FRAGMENTS: &str = "matrix-simdgroup-v1";
const TENSORS: &str = "matrix-mpp-v2";
/// No policy: the lowering of any program.
const GENERAL: &str = "general";

fn general(wishes: &mut Vec<Wish>) {
    for info in catalog() {
        let shapes: &[&[u64]] = match info.form {
            ShapeForm::Rows => &[&[3, 40], &[2, 33]],
            ShapeForm::Matrix => &[&[5, 7, 9], &[33, 32, 31]],
            ShapeForm::BatchedMatrix => &[&[2, 3, 5, 7]],
        };
        for (d, dtype) in DTYPES.into_iter().enumerate() {
            for (s, shape) in shapes.iter().enumerate() {
                if d > 0 && s > 0 {
                    continue;
                }
                let mut wish = Wish::new(info.name, dtype, shape, GENERAL);
                wish.tag = "general".to_string();
                wish.brief = d == 0 && s == 0;
                wishes.push(wish);
            }
        }
    }
}

/// Every case, in a fixed order.
///
/// # Errors
/// The list asks for something that isn't legal.
pub fn cases() -> Result<Vec<Case>, CaseError> {
    let mut wishes = Vec::new();
    rows::rows(&mut wishes)?;
    products::products(&mut wishes);
    general(&mut wishes);
    wishes.iter().map(Wish::case).collect()
}

/// The reference's product shapes.
const PRODUCTS: [[u64; 3]; 8] = [
    [32, 32, 32],
    [128, 128, 128],
    [512, 512, 512],
    [1024, 1024, 1024],
    [256, 1024, 128],
    [1024, 128, 256],
    [127, 193, 61],
    [513, 257, 129],
];

/// The legal products of the reference's search at full size in M and N, ranked by a policy. K is
/// cut where the whole product would be too much to emulate.
///
/// # Errors
/// As [`cases`].
pub fn full_size_products(policy: &'static str) -> Result<Vec<Case>, CaseError> {
    let mut cases = Vec::new();
    for shape in PRODUCTS {
        let wish = Wish::new("gemm", DType::F32, &shape, policy);
        let fail = |reason: String| CaseError { id: wish.id(), reason };
        let program = find("gemm").and_then(|info| info.build(&wish.request));
        let program = program.map_err(|e| fail(e.to_string()))?;
        let facts = analysis::facts(&program);
        let by_name = policy::by_name(policy, None).map_err(|e| fail(e.to_string()))?;
        let request = Request::new(&program, &facts);
        let ranking = plan(&request, &Target::apple_m1_max(), by_name.as_ref())
            .map_err(|e| fail(e.to_string()))?;
        for index in &ranking.order {
            let Some(candidate) = ranking.candidates.get(*index) else { continue };
            let Mapping::Matrix(m) = candidate.mapping else { continue };
            let [rows, columns, k] = shape;
            let work = shape.iter().fold(1u64, |a, b| a.saturating_mul(*b));
            // The same remainder in K, after three whole blocks at most.
            let cut = k % m.block[2] + m.block[2] * (k / m.block[2]).min(3);
            let depth = if work > 1 << 24 { cut } else { k };
            let size = [rows, columns, depth];
            let mut wish = products::product("gemm", DType::F32, &size, policy, m.block, m.threads);
            wish.tag += &format!("-of{k}");
            cases.push(wish.case()?);
        }
    }
    Ok(cases)
}
