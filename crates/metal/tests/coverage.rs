//! The list of cases leaves nothing out: every op of the library in every realisation that it has,
//! on both sides of every threshold. Ops come from the library; what is legal, and so where the
//! thresholds are, is asked of the planner.

mod common;

use std::collections::BTreeSet;

use common::ranked;
use tilewright_engine::{Plan, PlanOptions};
use tilewright_ir::DType;
use tilewright_ir::analysis;
use tilewright_ir::facts::Family;
use tilewright_ir::ops::catalog::{OpInfo, OpRequest, catalog};
use tilewright_ir::ops::{EpilogueStep, Trans};
use tilewright_metal::cases::{Case, DTYPES, Realisation, cases, full_size_products};
use tilewright_plan::mapping::{Mapping, MatrixMapping, RowMapping};
use tilewright_plan::problem::{MatrixProblem, RowProblem};
use tilewright_plan::{Request, SpaceOptions, Target, plan, policy};

const FRAGMENTS: &str = "matrix-simdgroup-v1";
const TENSORS: &str = "matrix-mpp-v2";

/// A program of an op that is long enough for every choice.
fn large(info: &OpInfo, dtype: DType) -> tilewright_ir::Program {
    let shape: &[u64] = match info.form.dims().len() {
        2 => &[64, 4096],
        3 => &[128, 128, 128],
        _ => &[2, 128, 128, 128],
    };
    info.build(&OpRequest::shaped(dtype, shape)).unwrap()
}

/// The realisations of an op.
fn realisations(info: &OpInfo, dtype: DType) -> Vec<Realisation> {
    match analysis::facts(&large(info, dtype)).family {
        Family::Rows(_) => vec![Realisation::Rows, Realisation::General],
        Family::Matrix(_) => {
            vec![Realisation::Fragments, Realisation::Tensors, Realisation::General]
        }
        Family::Other(_) => vec![Realisation::General],
    }
}

#[test]
fn every_op_has_a_case_in_every_type_and_realisation() {
    let all = cases().unwrap();
    for info in catalog() {
        for dtype in DTYPES {
            for realisation in realisations(info, dtype) {
                let found = all.iter().any(|c| {
                    c.op == info.name
                        && c.realisation == realisation
                        && c.program.tensors.iter().any(|(_, t)| t.dtype == dtype)
                });
                // The batched product is the same code with one more index; its types are those
                // of the product.
                let same = info.name == "bgemm" && dtype != DType::F32;
                assert!(found || same, "{} in {dtype}: no case of {realisation:?}", info.name);
            }
        }
    }
}

/// The kernels of the list are those that the engine compiles for the GPU.
#[test]
fn cases_are_what_the_engine_lowers() {
    let target = Target::apple_m1_max();
    let print = tilewright_kernel::text::print;
    for case in cases().unwrap() {
        let lowered = if let Some(mapping) = case.mapping {
            let options = PlanOptions {
                policy: Some(policy::by_name(case.policy, None).unwrap().into()),
                space: case.space.clone(),
                sizes: case.dims.clone(),
                ..PlanOptions::default()
            };
            let plan = Plan::new(&case.program, &target, &options).unwrap();
            let winner = plan.ranking.order[0];
            assert_eq!(plan.ranking.candidates[winner].mapping, mapping, "{}", case.id);
            plan.lower(winner)
        } else {
            Plan::new(&case.program, &target, &PlanOptions::default()).unwrap().lower_general()
        };
        let lowered = lowered.unwrap();
        let [kernel] = lowered.launches.as_slice() else { panic!("{}: launches", case.id) };
        assert_eq!(print(kernel), print(&case.kernel), "{}", case.id);
    }
}

/// Values of a choice that the planner takes for a program, tried one by one.
fn legal(
    program: &tilewright_ir::Program,
    values: impl Iterator<Item = u32>,
    ask: impl Fn(&mut SpaceOptions, u32),
) -> Vec<u32> {
    let facts = analysis::facts(program);
    let policy = policy::by_name("reduction-v1", None).unwrap();
    values
        .filter(|value| {
            let mut options = SpaceOptions { threads: Some(vec![32]), ..SpaceOptions::default() };
            ask(&mut options, *value);
            let request = Request::new(program, &facts).options(options);
            plan(&request, &Target::apple_m1_max(), policy.as_ref())
                .is_ok_and(|ranking| !ranking.order.is_empty())
        })
        .collect()
}

/// The sides of thresholds that a row mapping is on.
fn row_sides(problem: &RowProblem, m: &RowMapping, most_columns: u64) -> BTreeSet<String> {
    let vector = u64::from(m.vector);
    let chunk = m.workers() * vector;
    let (full, left) = (problem.columns / chunk, problem.columns % chunk);
    let mut sides = BTreeSet::new();
    let mut on = |side: String| sides.insert(side);
    on(format!("V = {}", m.vector));
    on(match full {
        0 => "no whole chunk".to_string(),
        1 => "one whole chunk".to_string(),
        _ => "several whole chunks".to_string(),
    });
    on(match (left / vector, left % vector) {
        (0, 0) => "nothing left".to_string(),
        (_, 0) => "whole packs left".to_string(),
        (0, _) => "less than a pack left".to_string(),
        _ => "packs and elements left".to_string(),
    });
    on(format!("S {} 1", if m.subgroups == 1 { "=" } else { ">" }));
    on(format!("S = {}", m.subgroups));
    on(format!("U = {}", m.unroll));
    if m.unroll > 1 {
        let rest = full % u64::from(m.unroll);
        on(format!("unrolled, {} left over", if rest == 0 { "nothing" } else { "chunks" }));
    }
    on(format!("P = {}", m.pack));
    if m.pack > 1 {
        let rest = problem.inner % u64::from(m.pack);
        on(format!("side by side, the last group {}", if rest == 0 { "full" } else { "not" }));
    }
    on(format!("{} program", if problem.programs == 1 { "one" } else { "more than one" }));
    on(if m.cache { "inputs kept" } else { "inputs read again" }.to_string());
    let each = problem.variant(m.cache).slot_scalars;
    if each > 0 && most_columns == problem.columns {
        on("private memory full".to_string());
    }
    sides
}

/// Whether one more access of every worker would be too much private memory.
fn fills_private_memory(problem: &RowProblem, m: &RowMapping) -> u64 {
    let budget = Target::apple_m1_max().gpu_facts().unwrap().private_scalars;
    let each = problem.variant(m.cache).slot_scalars.max(1) * u64::from(m.vector);
    budget / each * m.workers() * u64::from(m.vector)
}

fn row_problem(case: &Case) -> Option<(RowProblem, RowMapping)> {
    let (Family::Rows(facts), Some(Mapping::Rows(m))) = (&case.facts.family, case.mapping) else {
        return None;
    };
    let mut request = Request::new(&case.program, &case.facts);
    for (name, size) in &case.dims {
        request = request.size(name, *size);
    }
    Some((RowProblem::new(&request, facts).unwrap(), m))
}

/// What a row op must be seen on, by the planner's account of what is legal.
fn required_rows(info: &OpInfo) -> BTreeSet<String> {
    let program = large(info, DType::F32);
    let Family::Rows(facts) = analysis::facts(&program).family else { return BTreeSet::new() };
    let whole = analysis::facts(&program);
    let problem = RowProblem::new(&Request::new(&program, &whole), &facts).unwrap();
    // Short rows: nothing here is about private memory.
    let short = info.build(&OpRequest::shaped(DType::F32, &[64, 64])).unwrap();
    let mut required: BTreeSet<String> = [
        "no whole chunk",
        "one whole chunk",
        "several whole chunks",
        "nothing left",
        "whole packs left",
        "less than a pack left",
        "packs and elements left",
        "unrolled, nothing left over",
        "unrolled, chunks left over",
        "S = 1",
        "S > 1",
        "side by side, the last group full",
        "side by side, the last group not",
        "one program",
        "more than one program",
        "inputs read again",
    ]
    .map(str::to_string)
    .into();
    for v in legal(&short, 1..=16, |o, v| o.vector = Some(vec![v])) {
        required.insert(format!("V = {v}"));
    }
    let ends = |values: Vec<u32>| [values[0], values[values.len() - 1]];
    for u in ends(legal(&short, 1..=40, |o, u| o.unroll = Some(vec![u]))) {
        required.insert(format!("U = {u}"));
    }
    let packs = legal(&short, 1..=40, |o, p| {
        (o.pack, o.threads) = (Some(vec![p]), Some(vec![32 * p]));
    });
    for p in ends(packs) {
        required.insert(format!("P = {p}"));
    }
    for s in ends(legal(&short, 1..=64, |o, s| o.threads = Some(vec![32 * s]))) {
        required.insert(format!("S = {s}"));
    }
    if problem.reuses {
        required.insert("inputs kept".to_string());
    }
    if problem.reload.slot_scalars > 0 {
        required.insert("private memory full".to_string());
    }
    required
}

#[test]
fn every_row_op_is_on_both_sides_of_every_threshold() {
    let all = cases().unwrap();
    let mut missing = Vec::new();
    let mut ops = 0;
    let mut of_16_bits = [BTreeSet::new(), BTreeSet::new()];
    let mut of_any = BTreeSet::new();
    for info in catalog() {
        let required = required_rows(info);
        ops += usize::from(!required.is_empty());
        let mut seen = BTreeSet::new();
        for case in all.iter().filter(|c| c.op == info.name) {
            let Some((problem, m)) = row_problem(case) else { continue };
            let sides = row_sides(&problem, &m, fills_private_memory(&problem, &m));
            let types = case.program.tensors.iter().map(|(_, t)| t.dtype).collect::<Vec<_>>();
            if types.contains(&DType::F16) {
                of_16_bits[0].extend(sides);
            } else if types.contains(&DType::BF16) {
                of_16_bits[1].extend(sides);
            } else {
                seen.extend(sides);
            }
        }
        let lacks = required.difference(&seen).map(|side| format!("{}: {side}", info.name));
        missing.extend(lacks);
        of_any.extend(required);
    }
    // Of the 16-bit types, whose code differs in loads, stores and casts only, each side once.
    for (seen, dtype) in of_16_bits.iter().zip(["f16", "bf16"]) {
        missing.extend(of_any.difference(seen).map(|side| format!("{dtype}: {side}")));
    }
    assert!(missing.is_empty(), "no case of:\n{}", missing.join("\n"));
    assert!(ops >= 18, "{ops} ops of rows");
}

/// One element more than fills the private memory is illegal: the list ends where it should.
#[test]
fn private_memory_ends_where_the_list_does() {
    let mut tried = 0;
    for case in cases().unwrap() {
        let Some((problem, m)) = row_problem(&case) else { continue };
        let full = fills_private_memory(&problem, &m);
        if problem.columns != full || problem.variant(m.cache).slot_scalars == 0 {
            continue;
        }
        let info = catalog().iter().find(|i| i.name == case.op).unwrap();
        let dtype = case.program.tensors.iter().next().map(|(_, t)| t.dtype).unwrap();
        let longer = info.build(&OpRequest::shaped(dtype, &[2, full + 1])).unwrap();
        let facts = analysis::facts(&longer);
        let policy = policy::by_name("reduction-v1", None).unwrap();
        let request = Request::new(&longer, &facts).options(case.space.clone());
        let ranking = plan(&request, &Target::apple_m1_max(), policy.as_ref());
        assert!(ranking.is_err() || ranking.unwrap().winner().is_err(), "{}", case.id);
        tried += 1;
    }
    assert!(tried >= 6, "{tried}");
}

/// What the proofs make of a product, and how many trips its K loop has.
fn matrix_class(problem: &MatrixProblem, m: &MatrixMapping) -> String {
    let trips = problem.executions(m.block);
    let flags = [
        (m.forward_a, "A in place"),
        (m.forward_b, "B in place"),
        (m.persistent, "kept"),
        (m.direct, "direct"),
        (m.overwrite, "overwritten"),
    ];
    let flags: Vec<&str> = flags.iter().filter(|f| f.0).map(|f| f.1).collect();
    let trips = if trips == 1 { "one step" } else { "steps" };
    format!("{}, {} stages, {trips}", flags.join(" "), m.stages)
}

/// Which sides of whole blocks the sizes are on.
fn edges(problem: &MatrixProblem, m: &MatrixMapping) -> String {
    let sides =
        ["M", "N", "K"].iter().zip(problem.size).zip(m.block).map(|((name, size), block)| {
            let whole = size.is_multiple_of(block);
            format!("{name} {}", if whole { "whole" } else { "ragged" })
        });
    sides.collect::<Vec<_>>().join(", ")
}

fn matrix_problem(case: &Case) -> Option<(MatrixProblem, MatrixMapping)> {
    let (Family::Matrix(facts), Some(Mapping::Matrix(m))) = (&case.facts.family, case.mapping)
    else {
        return None;
    };
    let mut request = Request::new(&case.program, &case.facts);
    for (name, size) in &case.dims {
        request = request.size(name, *size);
    }
    Some((MatrixProblem::new(&request, facts).unwrap(), m))
}

/// Classes that the planner makes of products of a type: over ragged and whole sizes, one and
/// several steps, with and without what proofs permit.
fn matrix_classes(policy: &str, dtype: DType) -> BTreeSet<String> {
    let mut classes = BTreeSet::new();
    for bits in 0..8u64 {
        for k in [32, 96] {
            let side = |axis: u64, size: u64| size - (bits >> axis & 1);
            let shape = [side(0, 64), side(1, 64), side(2, k)];
            let program = common::program("gemm", &shape, dtype);
            let facts = analysis::facts(&program);
            for choice in 0..16u32 {
                let options = SpaceOptions {
                    blocks: Some(vec![[32, 32, 32]]),
                    threads: Some(vec![64]),
                    stages: Some(vec![1 + (choice >> 3)]),
                    retain_accumulators: choice & 1 != 0,
                    direct_output: choice & 2 != 0,
                    forward_operands: choice & 4 != 0,
                    ..SpaceOptions::default()
                };
                let ranking = ranked(&program, policy, options);
                let Family::Matrix(matrix) = &facts.family else { panic!("{shape:?}") };
                let problem = MatrixProblem::new(&Request::new(&program, &facts), matrix).unwrap();
                for index in &ranking.order {
                    if let Mapping::Matrix(m) = ranking.candidates[*index].mapping {
                        classes.insert(matrix_class(&problem, &m));
                    }
                }
            }
        }
    }
    classes
}

#[test]
fn every_kind_of_product_has_a_case() {
    let all = cases().unwrap();
    let mut missing = Vec::new();
    for (realisation, policy) in
        [(Realisation::Fragments, FRAGMENTS), (Realisation::Tensors, TENSORS)]
    {
        let of = |case: &&Case| case.realisation == realisation;
        // The 16-bit types differ in loads, stores and the type of fragments only: either will do.
        for types in [&DTYPES[..1], &DTYPES[1..]] {
            let mut seen = BTreeSet::new();
            for case in all.iter().filter(of) {
                let Some((problem, m)) = matrix_problem(case) else { continue };
                if types.contains(&problem.operand) {
                    seen.insert(matrix_class(&problem, &m));
                    seen.insert(edges(&problem, &m));
                }
            }
            let mut required = matrix_classes(policy, types[0]);
            for bits in 0..8u32 {
                let side = |axis: u32| if bits >> axis & 1 == 1 { "ragged" } else { "whole" };
                required.insert(format!("M {}, N {}, K {}", side(0), side(1), side(2)));
            }
            let lacks = required.difference(&seen);
            missing.extend(lacks.map(|c| format!("{realisation:?} {types:?}: {c}")));
        }
    }
    assert!(missing.is_empty(), "no case of:\n{}", missing.join("\n"));
}

/// Storage of operands, epilogues, factors, batches, and sizes and strides of a launch.
#[test]
fn every_option_of_a_product_has_a_case() {
    let all = cases().unwrap();
    for realisation in [Realisation::Fragments, Realisation::Tensors] {
        let mine: Vec<&Case> = all.iter().filter(|c| c.realisation == realisation).collect();
        let some = |what: &str, test: &dyn Fn(&Case) -> bool| {
            assert!(mine.iter().any(|c| test(c)), "{realisation:?}: no case with {what}");
        };
        for trans in [Trans::Nn, Trans::Nt, Trans::Tn, Trans::Tt] {
            let wanted = [trans.a(), trans.b()];
            some(trans.name(), &|c| {
                matrix_problem(c).is_some_and(|(problem, _)| problem.transposed == wanted)
            });
        }
        use EpilogueStep::{Bias, Gelu, Relu, Residual, Scale, Silu};
        for (step, tag) in [
            (Bias, "bias"),
            (Relu, "relu"),
            (Gelu, "gelu"),
            (Silu, "silu"),
            (Residual, "residual"),
            (Scale, "scale"),
        ] {
            some(&format!("{step:?}"), &|c| c.id.contains(tag));
        }
        some("a batch", &|c| matrix_problem(c).is_some_and(|(problem, _)| problem.batch > 1));
        some("factors", &|c| c.id.ends_with("-both"));
        some("sizes that a launch states", &|c| {
            matrix_problem(c).is_some_and(|(problem, _)| !problem.is_static[0])
        });
        some("rows apart", &|c| c.dims.contains_key("lda"));
        some("an output of another type", &|c| {
            matrix_problem(c).is_some_and(|(problem, _)| problem.output != problem.operand)
        });
    }
}

/// Every tile of a simdgroup that a legal candidate of the reference's search has is emulated.
#[test]
fn every_legal_tile_has_a_case() {
    for (policy, realisation) in
        [(FRAGMENTS, Realisation::Fragments), (TENSORS, Realisation::Tensors)]
    {
        let tile = |m: &MatrixMapping| (m.block, m.threads, m.subgroups, m.atoms);
        let mut seen = BTreeSet::new();
        for case in full_size_products(policy).unwrap() {
            assert_eq!(case.realisation, realisation, "{}", case.id);
            if let Some(Mapping::Matrix(m)) = case.mapping {
                seen.insert(tile(&m));
            }
        }
        let mut legal = BTreeSet::new();
        for size in [32, 1024, 1000] {
            let program = common::program("gemm", &[size, size, size], DType::F32);
            let ranking = ranked(&program, policy, SpaceOptions::default());
            for index in &ranking.order {
                if let Mapping::Matrix(m) = ranking.candidates[*index].mapping {
                    legal.insert(tile(&m));
                }
            }
        }
        let missing: Vec<_> = legal.difference(&seen).collect();
        assert!(missing.is_empty(), "{policy}: {missing:?}");
        assert!(legal.len() >= 20, "{policy}: {}", legal.len());
    }
}
