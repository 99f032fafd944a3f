//! Every rule of the validator: a kernel that keeps it passes, one that breaks it fails with
//! exactly that rule.

use std::collections::BTreeSet;
use tilewright_ir::entity::Id;
use tilewright_kernel::kernel::{ArgId, Kernel, Op, ValueId};
use tilewright_kernel::text::{Limits, parse, parse_with_limits};
use tilewright_kernel::validate::{Rule, ValidateError, validate};

const HEADER: &str = "kernel k lanes 32 subgroups 8 {
  grid n step 1
  arg x: buffer f32 in align 16
  arg y: buffer f32 out align 16
  arg z: buffer f32 inout align 16
  arg h: buffer f16 in align 16
  arg w: buffer i32 inout align 4
  arg n: index
  arg map: tensor_map f16 box [64, 64] swizzle b128
  arg flat: tensor_map f16 box [8, 64] swizzle none
  shared sh: f32[8, 64]
  shared hs: f16[8, 64]
  shared tile: f16[128, 64] swizzle b128
  private p: f32[8]
  barrier all: group
  barrier sub: subgroup
  barrier some: group participants 4
  mbarrier full: 2 arrivals 1
  role first: subgroups 0..4
  role second: subgroups 4..8
";

const PRELUDE: &str = "
  %c0: index@grid = const 0
  %c1: index@grid = const 1
  %c4: index@grid = const 4
  %f: f32@grid = const 0.5
  %d: f64@grid = const 0.5
  %yes: bool@grid = const 1
  %l: index@lane = lane
  %s: index@subgroup = subgroup_id
  %g: index@group = group_id 0
  %n: index@grid = arg n
  %m: bool@lane = lt %l, %n
  %fl: f32@lane = cast %l
  %il: i32@lane = cast %l
  %acc: fragment<simdgroup8x8, acc, f32>@subgroup = fragment_fill 0.0
";

fn kernel(body: &str) -> Kernel {
    let text = format!("{HEADER}{PRELUDE}{body}\n}}\n");
    match parse_with_limits(&text, Limits { depth: 200, ..Limits::default() }) {
        Ok(kernel) => kernel,
        Err(error) => panic!("{error}\n{text}"),
    }
}

/// The header with one line replaced.
fn declared(from: &str, to: &str) -> Kernel {
    assert!(HEADER.contains(from), "{from}");
    let text = format!("{}{PRELUDE}\n}}\n", HEADER.replace(from, to));
    match parse(&text) {
        Ok(kernel) => kernel,
        Err(error) => panic!("{error}\n{text}"),
    }
}

fn rules(kernel: &Kernel) -> BTreeSet<Rule> {
    match validate(kernel) {
        Ok(()) => BTreeSet::new(),
        Err(errors) => errors.iter().map(|e| e.rule).collect(),
    }
}

fn messages(kernel: &Kernel) -> String {
    let errors: Vec<ValidateError> = validate(kernel).err().unwrap_or_default();
    errors.iter().map(|e| format!("{e}\n")).collect()
}

const WGMMA: &str = "  %wa: fragment<wgmma(64, 64, 16), acc, f32>@block4 = fragment_fill 0.0\n";
const ASYNC: &str = "%wb: fragment<wgmma(64, 64, 16), acc, f32>@block4, %t: token@block4 = \
                     mma_async tile(%c0 + r*%c4 + c*%c1), tile(%c0 + r*%c4 + c*%c1), %wa\n";

/// Bodies that break one rule each.
fn broken_bodies() -> Vec<(Rule, String)> {
    let deep = format!("{}{}", "if %yes {\n".repeat(70), "}\n".repeat(70));
    let cases: Vec<(Rule, &str)> = vec![
        (Rule::Depth, &deep),
        (Rule::Dominance, "if %yes {\n %a: index@grid = const 1\n}\n%b: index@grid = add %a, %c1"),
        (Rule::Dominance, "for %i: index@grid in %c0..%n step 1 {\n}\n%b: index@grid = add %i, %i"),
        (
            Rule::Dominance,
            "%r: index@grid = for %i: index@grid in %c0..%n step 1 carry %k: index@grid = %k {\n yield %k\n}",
        ),
        (Rule::OperandType, "%a: f32@lane = add %l, %l"),
        (Rule::OperandType, "%a: f32@lane = add %f, %d"),
        (Rule::OperandType, "%a: f32@lane = and %f, %f"),
        (Rule::OperandType, "%a: index@lane = exp %l"),
        (Rule::OperandType, "%a: index@lane = neg %l"),
        (Rule::OperandType, "%a: bool@lane = lt %m, %m"),
        (Rule::OperandType, "%a: index@lane = select %l, %l, %l"),
        (Rule::OperandType, "%a: f32@lane = fma %l, %l, %l"),
        (Rule::OperandType, "%a: f32@grid = arg n"),
        (Rule::OperandType, "%a: f32@grid = arg x"),
        (Rule::OperandType, "%a: index@group = group_id 1"),
        (Rule::OperandType, "%a: f16@lane = load h[%c0 + lane*1]\n%b: f16@lane = add %a, %a"),
        (Rule::OperandType, "%a: f64@lane = load x[%c0 + lane*1]"),
        (Rule::OperandType, "store y[%c0 + lane*1], %l"),
        (Rule::OperandType, "%a: f32@lane = load x[%c0 + %f]"),
        (Rule::OperandType, "%a: f32@lane = load x[%c0 + lane*1] where mask %l"),
        (Rule::OperandType, "%a: bool@lane = any %l"),
        (Rule::OperandType, "%a: f32@subgroup = cast %acc"),
        (Rule::OperandType, "if %l {\n}"),
        (Rule::OperandType, "wait %l"),
        (
            Rule::OperandType,
            "%a: fragment<simdgroup8x8, acc, f32>@subgroup = fragment_map add %acc, %d",
        ),
        (Rule::OperandType, "fragment_store w(%c0 + r*%c4 + c*%c1), %acc"),
        (Rule::LiteralValue, "%a: f32@grid = const 1"),
        (Rule::LiteralValue, "%a: f16@grid = const 0.1"),
        (Rule::LiteralValue, "%a: index@grid = const 1.0"),
        (Rule::LiteralValue, "%a: i32@grid = const 2147483648"),
        (Rule::LiteralValue, "%a: bool@grid = const 2"),
        (Rule::LiteralValue, "%a: f32@lane = load x[%c0 + lane*1] where count %n fill 0.1"),
        (Rule::ScopeTooWide, "%a: index@subgroup = add %l, %c0"),
        (Rule::ScopeTooWide, "%a: index@group = add %s, %c0"),
        (Rule::ScopeTooWide, "%a: f32@subgroup = load x[%c0 + lane*1]"),
        (Rule::ScopeTooWide, "%a: f32@subgroup = load x[%c0 + %l]"),
        (Rule::ScopeTooWide, "%a: f32@subgroup = load x[%c0] where count %n"),
        (Rule::ScopeTooWide, "%a: f32@group = load sh[%c0]"),
        (Rule::ScopeTooWide, "%a: f32@group = load z[%c0]"),
        (Rule::ScopeTooWide, "%a: f32@group = load x[%s]"),
        (Rule::ScopeTooWide, "%a: f32@subgroup = load p[%c0]"),
        (Rule::ScopeTooWide, "%a: f32@group = reduce add %fl"),
        (Rule::ScopeTooWide, "%a: f32@subgroup = shuffle_xor 1 %fl"),
        (Rule::ScopeTooWide, "%a: f32@grid = if %m {\n yield %f\n} else {\n yield %f\n}"),
        (
            Rule::ScopeTooWide,
            "%a: f32@group = for %i: index@subgroup in %c0..%s step 1 carry %k: f32@grid = %f \
             {\n yield %f\n}",
        ),
        (
            Rule::ScopeTooWide,
            "%a: f32@lane = for %i: index@grid in %c0..%n step 1 carry %k: f32@grid = %f \
             {\n yield %fl\n}",
        ),
        (Rule::ScopeTooWide, "for %i: index@grid in %c0..%s step 1 {\n}"),
        (Rule::ScopeTooWide, "%a: fragment<simdgroup8x8, acc, f32>@group = fragment_fill 0.0"),
        (Rule::Uniform, "%a: f32@lane = load x[%l]"),
        (Rule::Uniform, "%a: f32@lane = load x[%c0 + lane*1] where count %l"),
        (Rule::Uniform, "for %i: index@lane in %c0..%l step 1 {\n}"),
        (
            Rule::Uniform,
            "%a: fragment<simdgroup8x8, acc, f32>@subgroup = fragment_load x(%l + r*%c1 + c*%c1)",
        ),
        (
            Rule::Uniform,
            "%a: fragment<simdgroup8x8, acc, f32>@subgroup = fragment_map add %acc, %fl",
        ),
        (Rule::Width, "%a: f32@lane, %b: f32@lane, %e: f32@lane = load x[%c0 + lane*3]"),
        (Rule::Width, "store y[%c0 + lane*3], %f, %f, %f"),
        (Rule::PrivateStride, "%a: f32@lane = load p[%c0 + lane*1]"),
        (Rule::MemorySpace, "%a: index@lane = load n[%c0 + lane*1]"),
        (Rule::MemorySpace, "%a: f16@lane = load map[%c0 + lane*1]"),
        (Rule::MemorySpace, "%a: f32@lane = atomic add p[%c0], %f relaxed group"),
        (
            Rule::MemorySpace,
            "%a: fragment<simdgroup8x8, acc, f32>@subgroup = fragment_load p(%c0 + r*%c1 + c*%c1)",
        ),
        (Rule::ReadOnly, "store x[%c0 + lane*1], %f"),
        (Rule::ReadOnly, "%a: f32@lane = atomic add x[%c0], %f relaxed group"),
        (Rule::ReadOnly, "fragment_store x(%c0 + r*%c1 + c*%c1), %acc"),
        (Rule::AtomicForm, "%a: f32@lane = atomic mul z[%c0], %f relaxed group"),
        (Rule::AtomicForm, "%a: f32@lane = atomic add z[%c0], %f relaxed subgroup"),
        (Rule::CollectiveDivergence, "if %m {\n %a: f32@subgroup = reduce add %fl\n}"),
        (
            Rule::CollectiveDivergence,
            "if %m {\n for %i: index@grid in %c0..%n step 1 {\n  if %yes {\n   %a: f32@subgroup = reduce add %fl\n  }\n }\n}",
        ),
        (Rule::BarrierDivergence, "if %m {\n barrier all\n}"),
        (Rule::FragmentDivergence, "if %m {\n fragment_store y(%c0 + r*%c1 + c*%c1), %acc\n}"),
        (Rule::AsyncDivergence, "if %m {\n proxy_fence\n}"),
        (Rule::AsyncDivergence, "if %m {\n in_role first {\n }\n}"),
        (Rule::RoleNesting, "in_role first {\n in_role first {\n }\n}"),
        (Rule::BarrierParticipants, "in_role first {\n barrier all\n}"),
        (Rule::LaneNumber, "%a: f32@subgroup = broadcast 32 %fl"),
        (Rule::LaneNumber, "%a: f32@lane = shuffle_xor 32 %fl"),
        (Rule::LoopStep, "for %i: index@grid in %c0..%n step 0 {\n}"),
        (
            Rule::AtomForm,
            "%a: fragment<mma_sync(16, 16, 16), acc, f32>@subgroup = fragment_fill 0.0",
        ),
        (
            Rule::AtomForm,
            "%a: fragment<outer_product(0, 1), acc, f32>@subgroup = fragment_fill 0.0",
        ),
        (Rule::FragmentType, "%a: fragment<simdgroup8x8, acc, f64>@subgroup = fragment_fill 0.0"),
        (
            Rule::FragmentType,
            "%a: fragment<mma_sync(16, 8, 16), a, f32>@subgroup = fragment_fill 0.0",
        ),
        (
            Rule::AtomOperand,
            "%a: fragment<simdgroup8x8, acc, f32>@subgroup = mma x(%c0 + r*%c1 + c*%c1), x(%c0 + r*%c1 + c*%c1), %acc",
        ),
        (
            Rule::AtomOperand,
            "%o: fragment<outer_product(2, 1), acc, f32>@subgroup = fragment_fill 0.0\n\
             %a: fragment<outer_product(2, 1), acc, f32>@subgroup = mma x(%c0 + r*%c1 + c*%c1), x(%c0 + r*%c1 + c*%c1), %o",
        ),
        (
            Rule::AtomOperand,
            "%o: fragment<mpp(8, 8), acc, f32>@subgroup = fragment_fill 0.0\n\
             %a: fragment<mpp(8, 8), acc, f32>@subgroup = mma x(%c0 + r*%c1 + c*%c1), h(%c0 + r*%c1 + c*%c1), %o depth %n",
        ),
        (
            Rule::AtomOperand,
            "%o: fragment<outer_product(2, 1), acc, f64>@subgroup = fragment_fill 0.0\n\
             %a: fragment<outer_product(2, 1), acc, f64>@subgroup = mma x(%c0 + r*%c1 + c*%c1), x(%c0 + r*%c1 + c*%c1), %o depth %n",
        ),
        (
            Rule::CopyForm,
            "%t: token@subgroup = copy_async sh[%c0 + lane*1], z[%c0 + lane*1] width 8\nwait %t",
        ),
        (
            Rule::CopyForm,
            "%t: token@subgroup = copy_async y[%c0 + lane*1], z[%c0 + lane*1] width 1\nwait %t",
        ),
        (
            Rule::CopyForm,
            "%t: token@subgroup = copy_async hs[%c0 + lane*1], x[%c0 + lane*1] width 1\nwait %t",
        ),
        (
            Rule::TensorCopy,
            "mbarrier_init full[%c0]\ncopy_tensor tile[%c0], flat[%c0, %c0] on full[%c0]",
        ),
        (
            Rule::TensorCopy,
            "mbarrier_init full[%c0]\ncopy_tensor tile[%c0], x[%c0, %c0] on full[%c0]",
        ),
        (Rule::TensorCopy, "mbarrier_init full[%c0]\ncopy_tensor tile[%c0], map[%c0] on full[%c0]"),
        (
            Rule::TensorCopy,
            "mbarrier_init full[%c0]\ncopy_tensor sh[%c0], map[%c0, %c0] on full[%c0]",
        ),
        (Rule::MbarrierUse, "mbarrier_arrive full[%c0]"),
        (Rule::MbarrierUse, "mbarrier_init full[%c0]\nmbarrier_wait full[%c0] parity %c0"),
        (
            Rule::TokenOnce,
            "%t: token@subgroup = copy_async sh[%c0 + lane*1], x[%c0 + lane*1] width 1",
        ),
        (
            Rule::TokenOnce,
            "%t: token@subgroup = copy_async sh[%c0 + lane*1], x[%c0 + lane*1] width 1\nwait %t\nwait %t",
        ),
        (
            Rule::TokenOnce,
            "%t: token@subgroup = copy_async sh[%c0 + lane*1], x[%c0 + lane*1] width 1\nif %yes {\n wait %t\n}",
        ),
        (
            Rule::TokenOnce,
            "%t: token@subgroup = copy_async sh[%c0 + lane*1], x[%c0 + lane*1] width 1\n\
             for %i: index@grid in %c0..%n step 1 {\n wait %t\n}",
        ),
    ];
    let mut cases: Vec<(Rule, String)> =
        cases.into_iter().map(|(rule, body)| (rule, body.to_string())).collect();
    let store = "fragment_store y(%c0 + r*%c4 + c*%c1), ";
    cases.push((Rule::InFlight, format!("{WGMMA}{ASYNC}{store}%wb\nwait %t")));
    cases.push((Rule::AccumulatorReuse, format!("{WGMMA}{ASYNC}wait %t\n{store}%wa")));
    cases.push((
        Rule::AtomOperand,
        format!(
            "{WGMMA}%wb: fragment<wgmma(64, 64, 16), acc, f32>@block4 = mma \
             tile(%c0 + r*%c4 + c*%c1), tile(%c0 + r*%c4 + c*%c1), %wa"
        ),
    ));
    // The token isn't carried beside the fragment.
    cases.push((
        Rule::InFlight,
        format!(
            "{WGMMA}{ASYNC}%r: fragment<wgmma(64, 64, 16), acc, f32>@block4 = for %i: index@grid \
             in %c0..%n step 1 carry %k: fragment<wgmma(64, 64, 16), acc, f32>@block4 = %wb {{\n \
             yield %k\n}}\nwait %t"
        ),
    ));
    cases
}

/// Declarations that break one rule each.
fn broken_declarations() -> Vec<(Rule, Kernel)> {
    let d = declared;
    vec![
        (Rule::Name, {
            let mut k = kernel("");
            k.args[ArgId::from_index(0)].name = "y".into();
            k
        }),
        (Rule::Name, {
            let mut k = kernel("");
            k.name = "two words".into();
            k
        }),
        (Rule::GroupShape, {
            let mut k = kernel("");
            k.cluster = 17;
            k
        }),
        (Rule::Grid, d("grid n step 1", "grid n step 0")),
        (Rule::Grid, d("grid n step 1", "grid x step 1")),
        (Rule::Grid, d("grid n step 1", "grid n step 1, 1 step 1, 1 step 1, 1 step 1")),
        (Rule::Argument, d("align 4", "align 3")),
        (Rule::Argument, d("align 4", "align 2")),
        (Rule::Argument, d("buffer i32 inout align 4", "buffer bool inout align 4")),
        (Rule::TensorMap, d("box [64, 64] swizzle b128", "box [64, 128] swizzle b128")),
        (Rule::TensorMap, d("box [64, 64] swizzle b128", "box [257, 64] swizzle b128")),
        (Rule::TensorMap, d("box [8, 64] swizzle none", "box [8, 7] swizzle none")),
        (Rule::SharedSize, d("sh: f32[8, 64]", "sh: f32[8, 0]")),
        (Rule::SharedSize, d("sh: f32[8, 64]", "sh: f32[18446744073709551615, 64]")),
        (Rule::SharedSize, d("sh: f32[8, 64]", "sh: bool[8, 64]")),
        (Rule::SwizzleRow, d("tile: f16[128, 64]", "tile: f16[128, 32]")),
        (Rule::PrivateSize, d("p: f32[8]", "p: f32[0]")),
        (Rule::PrivateSize, d("p: f32[8]", "p: f32[99999999]")),
        (Rule::BarrierScope, d("barrier all: group", "barrier all: grid")),
        (Rule::BarrierScope, d("barrier sub: subgroup", "barrier sub: subgroup participants 1")),
        (Rule::BarrierParticipants, d("participants 4", "participants 9")),
        (Rule::MbarrierUse, d("arrivals 1", "arrivals 0")),
        (Rule::MbarrierUse, d("full: 2", "full: 1025")),
        (Rule::RoleRange, d("subgroups 4..8", "subgroups 3..8")),
        (Rule::RoleRange, d("subgroups 4..8", "subgroups 4..9")),
        (Rule::RoleRange, d("subgroups 4..8", "subgroups 4..4")),
        (Rule::BlockAlignment, {
            let text =
                format!("{HEADER}{PRELUDE}{WGMMA}\n}}\n").replace("subgroups 8 {", "subgroups 6 {");
            let text =
                text.replace("  role first: subgroups 0..4\n  role second: subgroups 4..8\n", "");
            parse(&text).unwrap()
        }),
        (Rule::Id, {
            let mut k = kernel("");
            k.body.stmts[2].results[0] = ValueId::from_index(10_000);
            k
        }),
        (Rule::Id, {
            let mut k = kernel("%a: index@grid = arg n");
            let last = k.body.stmts.len() - 1;
            k.body.stmts[last].op = Op::Arg(ArgId::from_index(99));
            k
        }),
        (Rule::SingleDefinition, {
            let mut k = kernel("");
            k.body.stmts[1].results = k.body.stmts[0].results.clone();
            k.body.stmts.truncate(2);
            k
        }),
        (Rule::ResultCount, {
            let mut k = kernel("%a: f32@grid, %b: f32@grid = const 0.5");
            k.body.stmts.truncate(k.body.stmts.len());
            k
        }),
    ]
}

#[test]
fn each_broken_kernel_breaks_exactly_its_rule() {
    let mut seen = BTreeSet::new();
    let mut wrong = String::new();
    let bodies = broken_bodies().into_iter().map(|(rule, body)| (rule, kernel(&body), body));
    let declarations = broken_declarations().into_iter().map(|(rule, k)| (rule, k, String::new()));
    for (rule, k, body) in bodies.chain(declarations) {
        if rules(&k) != BTreeSet::from([rule]) {
            wrong += &format!("\nnot {rule} alone: {body}\n{}", messages(&k));
        }
        seen.insert(rule);
    }
    assert!(wrong.is_empty(), "{wrong}");
    let all: BTreeSet<Rule> = Rule::ALL.iter().copied().collect();
    let untested: Vec<_> = all.difference(&seen).collect();
    assert!(untested.is_empty(), "no kernel breaks {untested:?}");
}

#[test]
fn kernels_that_keep_the_rules_pass() {
    let bodies = [
        "".to_string(),
        "%a: f16@lane = load h[%c0 + lane*1]\n%b: f16@lane = select %m, %a, %a\n%e: f32@lane = cast %b".into(),
        "%a: f32@grid = load x[%c0]\n%b: f32@group = load x[%g]\n%e: f32@lane = load x[%g + lane*4 + %il] where count %n fill -inf".into(),
        "if %m {\n %a: f32@lane = load x[%c0 + lane*1]\n store y[%c0 + lane*1], %a where mask %m\n}".into(),
        "in_role first {\n barrier some\n}\nbarrier all\nbarrier sub".into(),
        "%a: index@block4 = div %s, %c4\n%b: index@subgroup = mod %s, %c4".into(),
        "%a: f32@subgroup = for %i: index@subgroup in %c0..%s step 4 carry %k: f32@grid = %f {\n yield %f\n}".into(),
        format!("{WGMMA}{ASYNC}wait %t\nfragment_store y(%c0 + r*%c4 + c*%c1), %wb"),
        // Two tokens in flight, carried around a loop with the accumulator.
        format!(
            "{WGMMA}{ASYNC}%r: fragment<wgmma(64, 64, 16), acc, f32>@block4, %rt: token@block4 = \
             for %i: index@grid in %c0..%n step 1 carry \
             %k: fragment<wgmma(64, 64, 16), acc, f32>@block4 = %wb, %kt: token@block4 = %t {{\n\
             %k2: fragment<wgmma(64, 64, 16), acc, f32>@block4, %t2: token@block4 = mma_async \
             tile(%c0 + r*%c4 + c*%c1), tile(%c0 + r*%c4 + c*%c1), %k\n\
             wait %kt pending 1\n yield %k2, %t2\n}}\nwait %rt\n\
             fragment_store y(%c0 + r*%c4 + c*%c1), %r"
        ),
        "%h: fragment<simdgroup8x8, acc, f16>@subgroup = cast %acc".into(),
    ];
    for body in bodies {
        let k = kernel(&body);
        assert_eq!(validate(&k), Ok(()), "{body}\n{}", messages(&k));
    }
}

#[test]
fn a_group_of_one_subgroup_is_that_subgroup() {
    let text = "kernel k lanes 1 subgroups 1 {\n  %l: index@grid = lane\n  %s: index@grid = \
                subgroup_id\n}\n";
    assert_eq!(validate(&parse(text).unwrap()), Ok(()));
}

#[test]
fn an_error_names_the_statement_and_the_rule() {
    let k = kernel("%a: f32@lane = load x[%l]");
    let errors = validate(&k).unwrap_err();
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].statement, Some(14));
    let message = errors[0].to_string();
    assert!(
        message.starts_with("[uniform] statement 14 `%14: f32@lane = load x[%6]`"),
        "{message}"
    );
}

#[test]
fn errors_are_capped() {
    let k = kernel(&"store x[%c0 + lane*1], %f\n".repeat(1000));
    assert_eq!(validate(&k).unwrap_err().len(), 100);
}
