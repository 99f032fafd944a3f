//! The cases that show a Metal backend to be right: every op of the library in every realisation,
//! over shapes on both sides of the thresholds. They run in emulation wherever this crate is
//! tested, and on a device where there is one.
//!
//! Thresholds of rows: one access of all workers (`threads` × V elements), whole and ragged
//! packs, one row and several, rows shorter than a group. Of products: whole and ragged blocks in
//! each dimension, one step of K and several, operands in place and staged.

use std::collections::BTreeMap;

use tilewright_ir::analysis;
use tilewright_ir::facts::Facts;
use tilewright_ir::ops::{EpilogueStep, OpRequest, ShapeForm, Trans, catalog, find};
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
        let mut program = info.build(&self.request).map_err(|e| fail(e.to_string()))?;
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
        let lowering = lower::Options { shared_limit: 32 << 10, ..lower::Options::default() };
        let (lowered, realisation) = if self.policy == GENERAL {
            program.name = self.op.to_string();
            (lower_any(&program, 32, &lowering), Realisation::General)
        } else {
            let facts = analysis::facts(&program);
            let mut request = Request::new(&program, &facts).options(self.space.clone());
            for (dim, size) in &dims {
                request = request.size(dim, *size);
            }
            let policy = policy::by_name(self.policy, None).map_err(|e| fail(e.to_string()))?;
            let ranking = plan(&request, &Target::apple_m1_max(), policy.as_ref())
                .map_err(|e| fail(e.to_string()))?;
            let mapping = ranking.winner().map_err(|e| fail(e.to_string()))?.mapping;
            let realisation = match mapping {
                Mapping::Rows(_) => Realisation::Rows,
                _ if self.policy == FRAGMENTS => Realisation::Fragments,
                _ => Realisation::Tensors,
            };
            (lower(&program, &facts, &mapping, &lowering), realisation)
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

/// Width, V, U, P, whether inputs are cached, rows, columns.
type RowShape = (u32, u32, u32, u32, bool, u64, u64);

/// One access of all workers is `width / P · V` elements.
const ROW_SHAPES: [RowShape; 14] = [
    (96, 4, 1, 1, false, 3, 769),
    (32, 4, 1, 1, true, 2, 127),
    (64, 2, 1, 1, false, 2, 300),
    (32, 4, 1, 1, false, 2, 128),
    (256, 4, 1, 1, true, 2, 1537),
    (32, 4, 1, 1, true, 2, 129),
    (64, 1, 1, 1, true, 3, 65),
    (64, 4, 1, 2, false, 3, 40),
    (32, 4, 2, 1, false, 2, 700),
    (1024, 4, 1, 1, false, 1, 4099),
    (128, 8, 1, 1, true, 2, 1032),
    (32, 4, 1, 1, false, 1, 1),
    (128, 4, 4, 1, true, 2, 2048),
    (96, 2, 1, 3, true, 4, 63),
];

/// Ops that read an input in several phases.
const READ_AGAIN: [&str; 7] = [
    "softmax",
    "masked_softmax",
    "causal_softmax",
    "log_softmax",
    "rmsnorm",
    "layernorm",
    "cross_entropy",
];

fn rows(wishes: &mut Vec<Wish>) {
    for (o, info) in catalog().iter().filter(|i| i.form == ShapeForm::Rows).enumerate() {
        for (d, dtype) in DTYPES.into_iter().enumerate() {
            for (s, shape) in ROW_SHAPES.into_iter().enumerate() {
                // 16-bit types take turns: every shape meets every type over the ops.
                if d > 0 && (s + o + d) % 4 != 0 {
                    continue;
                }
                let (threads, vector, unroll, pack, cache, rows, columns) = shape;
                // There is nothing to keep where an element is read once.
                let cache = cache && READ_AGAIN.contains(&info.name);
                let mut wish = Wish::new(info.name, dtype, &[rows, columns], ROWS);
                wish.space = SpaceOptions {
                    threads: Some(vec![threads]),
                    vector: Some(vec![vector]),
                    unroll: Some(vec![unroll]),
                    pack: Some(vec![pack]),
                    cache: Some(cache),
                    ..SpaceOptions::default()
                };
                let reuse = if cache { "cache" } else { "reload" };
                wish.tag = format!("t{threads}-v{vector}-u{unroll}-p{pack}-{reuse}");
                wish.brief = (d == 0 && s == o % 6) || (d > 0 && s == 6 + o % 4);
                wishes.push(wish);
            }
        }
    }
    // Rows that a launch states, and rows apart.
    for op in ["softmax", "layernorm", "rmsnorm", "cross_entropy", "row_max"] {
        for (tag, dynamic, strided, pad) in
            [("dynamic", true, false, 0), ("strided", false, true, 4), ("apart", true, true, 3)]
        {
            let mut wish = Wish::new(op, DType::F32, &[3, 301], ROWS);
            wish.request.dynamic = dynamic;
            wish.request.strided = strided;
            wish.space.threads = Some(vec![64]);
            wish.pad = pad;
            wish.tag = tag.to_string();
            wish.brief = op == "layernorm";
            wishes.push(wish);
        }
    }
}

fn product(
    op: &'static str,
    dtype: DType,
    shape: &[u64],
    policy: &'static str,
    block: [u64; 3],
    threads: u32,
) -> Wish {
    let mut wish = Wish::new(op, dtype, shape, policy);
    wish.space.blocks = Some(vec![block]);
    wish.space.threads = Some(vec![threads]);
    let [m, n, k] = block;
    let way = if policy == FRAGMENTS { "fragments" } else { "tensors" };
    wish.tag = format!("{way}-b{m}x{n}x{k}-t{threads}");
    wish
}

/// Shape, block and threads of a product.
type ProductShape = ([u64; 3], [u64; 3], u32);

const PRODUCT_SHAPES: [ProductShape; 10] = [
    ([33, 65, 61], [32, 32, 32], 64),
    ([64, 64, 64], [32, 32, 32], 64),
    ([1, 1, 1], [32, 32, 32], 128),
    ([64, 96, 32], [32, 32, 32], 64),
    ([31, 64, 32], [32, 64, 32], 64),
    ([32, 63, 96], [32, 64, 32], 128),
    ([64, 64, 33], [64, 64, 32], 128),
    ([65, 64, 31], [64, 64, 32], 256),
    ([128, 64, 128], [128, 32, 128], 256),
    ([64, 128, 128], [64, 64, 128], 128),
];

fn products(wishes: &mut Vec<Wish>) {
    for policy in [FRAGMENTS, TENSORS] {
        for (d, dtype) in DTYPES.into_iter().enumerate() {
            for (s, (shape, block, threads)) in PRODUCT_SHAPES.into_iter().enumerate() {
                // Blocks of K = 128 in f32 pass the limit of threadgroup memory unless they are
                // read in place.
                let mut wish = product("gemm", dtype, &shape, policy, block, threads);
                wish.brief = s == d || s == d + 1;
                wishes.push(wish);
            }
            // Without what proofs permit: staged operands, accumulators through memory.
            for (tag, retain, direct, forward) in [
                ("staged", true, true, false),
                ("indirect", true, false, true),
                ("unretained", false, false, true),
                ("plain", false, false, false),
            ] {
                let mut wish = product("gemm", dtype, &[64, 64, 64], policy, [32, 32, 32], 64);
                wish.space.retain_accumulators = retain;
                wish.space.direct_output = direct;
                wish.space.forward_operands = forward;
                wish.tag += "-";
                wish.tag += tag;
                wish.brief = dtype == DType::F16 && !retain;
                wishes.push(wish);
            }
            let mut double = product("gemm", dtype, &[40, 64, 96], policy, [32, 32, 32], 64);
            double.space.stages = Some(vec![2]);
            double.tag += "-s2";
            wishes.push(double);
            for trans in [Trans::Nt, Trans::Tn, Trans::Tt] {
                for (s, shape) in [[64, 64, 64], [33, 40, 50]].into_iter().enumerate() {
                    let mut wish = product("gemm", dtype, &shape, policy, [32, 32, 32], 64);
                    wish.request.trans = trans;
                    wish.tag += "-";
                    wish.tag += trans.name();
                    wish.brief = trans == Trans::Nt && s == d % 2;
                    wishes.push(wish);
                }
            }
        }
        use EpilogueStep::{Bias, Gelu, Relu, Residual, Scale, Silu};
        let epilogues: [(&str, &[EpilogueStep]); 4] = [
            ("bias-relu", &[Bias, Relu]),
            ("scale-residual", &[Scale, Residual]),
            ("bias-gelu", &[Bias, Gelu]),
            ("silu", &[Silu]),
        ];
        for (e, (tag, steps)) in epilogues.into_iter().enumerate() {
            for (s, shape) in [[64, 64, 64], [33, 65, 40]].into_iter().enumerate() {
                let dtype = DTYPES[(e + s) % 3];
                let mut wish = product("gemm", dtype, &shape, policy, [32, 32, 32], 64);
                wish.request.epilogue = steps.to_vec();
                wish.tag += "-";
                wish.tag += tag;
                wish.brief = e == 0;
                wishes.push(wish);
            }
        }
        for (tag, alpha, beta) in [("alpha", 0.5, 0.0), ("beta", 1.0, 1.0), ("both", 2.0, 0.5)] {
            for shape in [[64, 64, 64], [33, 65, 40]] {
                let mut wish = product("gemm", DType::F32, &shape, policy, [32, 32, 32], 64);
                (wish.request.alpha, wish.request.beta) = (alpha, beta);
                wish.tag += "-";
                wish.tag += tag;
                wish.brief = tag == "both";
                wishes.push(wish);
            }
        }
        for shape in [[2, 32, 32, 32], [3, 33, 40, 20]] {
            wishes.push(product("bgemm", DType::F32, &shape, policy, [32, 32, 32], 64));
        }
        for (tag, dynamic, strided, pad) in
            [("dynamic", true, false, 0), ("strided", false, true, 8), ("apart", true, true, 3)]
        {
            for shape in [[64, 64, 64], [33, 65, 40]] {
                let mut wish = product("gemm", DType::F16, &shape, policy, [32, 32, 32], 64);
                wish.request.dynamic = dynamic;
                wish.request.strided = strided;
                wish.request.output = Some(DType::F32);
                wish.pad = pad;
                wish.tag += "-";
                wish.tag += tag;
                wishes.push(wish);
            }
        }
    }
}

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
    rows(&mut wishes);
    products(&mut wishes);
    general(&mut wishes);
    wishes.iter().map(Wish::case).collect()
}

/// A product of the reference's search at full size in M and N: the candidates of a policy, legal
/// ones in order of rank. K is cut where the whole product would be too much to emulate.
///
/// # Errors
/// As [`cases`].
pub fn full_size_products(shape: [u64; 3], policy: &'static str) -> Result<Vec<Case>, CaseError> {
    let mut wish = Wish::new("gemm", DType::F32, &shape, policy);
    let fail = |reason: String| CaseError { id: wish.id(), reason };
    let program =
        find("gemm").and_then(|info| info.build(&wish.request)).map_err(|e| fail(e.to_string()))?;
    let facts = analysis::facts(&program);
    let by_name = policy::by_name(policy, None).map_err(|e| fail(e.to_string()))?;
    let ranking = plan(&Request::new(&program, &facts), &Target::apple_m1_max(), by_name.as_ref())
        .map_err(|e| fail(e.to_string()))?;
    let mut cases = Vec::new();
    for index in &ranking.order {
        let Some(candidate) = ranking.candidates.get(*index) else { continue };
        let Mapping::Matrix(m) = candidate.mapping else { continue };
        let [_, _, k] = shape;
        let work = shape.iter().fold(1u64, |a, b| a.saturating_mul(*b));
        // The same remainder in K, after three whole blocks at most.
        let cut = k % m.block[2] + m.block[2] * (k / m.block[2]).min(3);
        let depth = if work > 1 << 24 { cut } else { k };
        wish =
            product("gemm", DType::F32, &[shape[0], shape[1], depth], policy, m.block, m.threads);
        wish.tag += &format!("-of{k}");
        cases.push(wish.case()?);
    }
    Ok(cases)
}
