//! Every op of the library has a text in every realisation that it has a mapping for, and the
//! general lowering has one of each; what Metal lacks is an error that names it.

mod common;

use common::*;
use tilewright_ir::DType;
use tilewright_ir::analysis;
use tilewright_ir::facts::Family;
use tilewright_ir::ops::catalog::{ShapeForm, catalog};
use tilewright_ir::program::{Access, MapOp, ReduceOp};
use tilewright_kernel::builder::KernelBuilder;
use tilewright_kernel::kernel::{
    ArgSource, Atom, Collective, Elem, FragmentRole, Guard, Kernel, Memory, Operand, Place, Size,
    Type, View,
};
use tilewright_metal::{Feature, Language, Options, emit};
use tilewright_plan::SpaceOptions;

fn shape(form: ShapeForm) -> &'static [u64] {
    match form {
        ShapeForm::Rows => &[3, 37],
        ShapeForm::Matrix => &[33, 40, 50],
        ShapeForm::BatchedMatrix => &[2, 33, 40, 50],
    }
}

#[test]
fn every_op_in_every_realisation() {
    let mut planned = 0;
    for op in catalog() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let program = program(op.name, shape(op.form), dtype);
            let module_ = module(&general(&program));
            assert_eq!(module_.threads, 32, "{}", op.name);
            let policies: &[&str] = match analysis::facts(&program).family {
                Family::Rows(_) => &["reduction-v1"],
                Family::Matrix(_) => &["matrix-simdgroup-v1", "matrix-mpp-v3"],
                Family::Other(_) => continue,
            };
            for policy in policies {
                let ranking = ranked(&program, policy, SpaceOptions::default());
                for index in &ranking.order {
                    let candidate = &ranking.candidates[*index];
                    let module = module(&candidate_kernel(&program, candidate));
                    let bfloat = module.features.contains(&Feature::Bfloat);
                    assert_eq!(bfloat, dtype == DType::BF16, "{}", op.name);
                    let tensors = module.sites().tensor_operations > 0;
                    assert_eq!(tensors, policy.contains("mpp"), "{} {policy}", op.name);
                    planned += 1;
                }
            }
        }
    }
    assert!(planned > 1000, "{planned}");
}

/// Every pointer and reference of a kernel function names its address space, and nothing has a
/// swizzle or a literal suffix that only half has.
#[test]
fn texts_keep_the_rules_of_the_language() {
    for op in catalog() {
        let text = module(&general(&program(op.name, shape(op.form), DType::F16))).text;
        for line in text.lines().filter(|l| l.contains("[[buffer(")) {
            let line = line.trim();
            let named = ["device ", "constant "].iter().any(|space| line.starts_with(space));
            assert!(named, "{}: {line}", op.name);
            assert!(!line.contains("const constant"), "{}: {line}", op.name);
        }
        for cast in text.split("*(").skip(1) {
            // A dereferenced cast names the space of what it points to.
            if cast.contains("*)(") && cast.split("*)(").next().is_some_and(|c| !c.contains(')')) {
                assert!(cast.starts_with("device "), "{}: *({cast}", op.name);
            }
        }
    }
}

/// y = op(x), 32 lanes.
fn unary(dtype: DType, op: MapOp) -> Kernel {
    let mut b = KernelBuilder::new("unary", 32, 1);
    let x = b.buffer("x", dtype, Access::In, 16, ArgSource::Free);
    let y = b.buffer("y", dtype, Access::Out, 16, ArgSource::Free);
    b.grid(Size::Const(1), 1);
    let zero = b.int(0);
    let value = b.load1(Place::strided(Memory::Global(x), zero, 1), None);
    let args = vec![value; op.arity()];
    let value = b.map(op, &args);
    b.store(Place::strided(Memory::Global(y), zero, 1), &[value], None);
    b.finish()
}

fn error(kernel: &Kernel, options: &Options) -> String {
    emit(kernel, options).map(|m| m.text).expect_err("refused").to_string()
}

#[test]
fn what_metal_lacks_is_an_error_that_names_it() {
    let options = Options::default();
    let double = error(&unary(DType::F64, MapOp::Neg), &options);
    assert!(double.contains("f64") && double.contains("use f32, f16 or bf16"), "{double}");
    let remainder = error(&unary(DType::F32, MapOp::Mod), &options);
    assert!(remainder.contains("mod of f32 has no MSL form"), "{remainder}");
    let mut b = KernelBuilder::new("narrow", 16, 1);
    b.grid(Size::Const(1), 1);
    let lanes = error(&b.finish(), &options);
    assert!(lanes.contains("16 lanes") && lanes.contains("32"), "{lanes}");
    let mut b = KernelBuilder::new("wide", 32, 33);
    b.grid(Size::Const(1), 1);
    let threads = error(&b.finish(), &options);
    assert!(threads.contains("1056 threads") && threads.contains("1024"), "{threads}");
    let mut b = KernelBuilder::new("many", 32, 1);
    b.grid(Size::Const(1), 1);
    for n in 0..32 {
        b.number(&format!("a{n}"), Elem::Index, ArgSource::Free);
    }
    let slots = error(&b.finish(), &options);
    assert!(slots.contains("32 arguments") && slots.contains("31"), "{slots}");
}

/// A tile of which neither extent is a multiple of 16 breaks an assertion of `matmul2d`; one such
/// extent suffices.
#[test]
fn tensor_tiles_have_a_multiple_of_16() {
    let tile = |rows, cols| {
        let mut b = KernelBuilder::new("tile", 32, 1);
        let x = b.buffer("x", DType::F32, Access::In, 16, ArgSource::Free);
        let y = b.buffer("y", DType::F32, Access::Out, 16, ArgSource::Free);
        b.grid(Size::Const(1), 1);
        let (zero, one, stride) = (b.int(0), b.int(1), b.int(64));
        let ty = Type::fragment(Atom::Mpp { rows, cols }, FragmentRole::Accumulator, DType::F32);
        let fill = b.fragment_fill(ty, 0.0);
        let view = |memory| View::whole(Memory::Global(memory), zero, stride, one);
        let operand = Operand::View(view(x));
        let product = b.mma(operand, operand, fill, Some(stride));
        b.fragment_store(product, view(y));
        b.finish()
    };
    for (rows, cols) in [(8, 8), (24, 8), (24, 40)] {
        let refused = error(&tile(rows, cols), &Options::default());
        assert!(refused.contains(&format!("{rows}x{cols}")), "{refused}");
        assert!(refused.contains("neither extent is a multiple of 16"), "{refused}");
    }
    for (rows, cols) in [(8, 16), (16, 8), (24, 32), (48, 24)] {
        assert_eq!(module(&tile(rows, cols)).sites().tensor_operations, 1);
    }
}

/// A kernel needs the language of what it uses, and no newer one; an older compiler is refused.
#[test]
fn languages_follow_what_is_used() {
    let old = Options { newest: Language { major: 3, minor: 0 } };
    let bf16 = general(&program("softmax", &[3, 37], DType::BF16));
    assert_eq!(module(&bf16).language, Language::BFLOAT);
    let refused = error(&bf16, &old);
    assert!(refused.contains("needs MSL 3.1 for bf16; the compiler has 3.0"), "{refused}");
    let f16 = general(&program("softmax", &[3, 37], DType::F16));
    assert_eq!(emit(&f16, &old).map(|m| m.language), Ok(Language::BASE));
}

/// Reductions keep NaN though Metal's extrema pass over it, and integers need no help.
#[test]
fn extrema_keep_nan() {
    let fold = |dtype| {
        let mut b = KernelBuilder::new("fold", 32, 1);
        let x = b.buffer("x", dtype, Access::In, 16, ArgSource::Free);
        let y = b.buffer("y", dtype, Access::Out, 16, ArgSource::Free);
        b.grid(Size::Const(1), 1);
        let (zero, one) = (b.int(0), b.int(1));
        let value = b.load1(Place::strided(Memory::Global(x), zero, 1), None);
        let value = b.collective(Collective::Reduce(ReduceOp::Max), value);
        let guard = Some(Guard::count(one, 0.0));
        b.store(Place::strided(Memory::Global(y), zero, 1), &[value], guard);
        module(&b.finish()).text
    };
    let text = fold(DType::F32);
    assert!(text.contains("tw_simd_max(v") && text.contains("simd_any(isnan(x))"), "{text}");
    let text = fold(DType::I32);
    assert!(text.contains("simd_max(v") && !text.contains("tw_simd_max"), "{text}");
}

/// A symbolic row count: index arithmetic is in 64 bits where it depends on it, and tensors take
/// sizes that the host has checked.
#[test]
fn symbolic_sizes_use_64_bits() {
    let mut b = KernelBuilder::new("symbolic", 32, 1);
    let x = b.buffer("x", DType::F32, Access::In, 16, ArgSource::Free);
    let y = b.buffer("y", DType::F32, Access::Out, 16, ArgSource::Free);
    let n = b.number("n", Elem::Index, ArgSource::Free);
    let group = b.grid(Size::Arg(n), 1);
    let n = b.arg(n);
    let base = b.mul(group, n);
    let value = b.load1(Place::strided(Memory::Global(x), base, 1), None);
    b.store(Place::strided(Memory::Global(y), base, 1), &[value], None);
    let module = module(&b.finish());
    let text = &module.text;
    assert!(text.contains("constant long& n [[buffer(2)]]"), "{text}");
    assert!(text.contains("const long group0 = long(group_id.x);"), "{text}");
    assert!(text.contains("group0 * n"), "{text}");
    assert_eq!(module.groups(|_| Some(7)), Some([7, 1, 1]));
    assert_eq!(module.groups(|_| None), None);
    assert_eq!(module.groups(|_| Some(1 << 32)), None);
}
