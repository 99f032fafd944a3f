//! Matrix products lowered to CPU register tiles, run by the simulator (which reports races,
//! accesses out of bounds and reads of what nobody wrote) and compared with the float64 oracle.

#[path = "support/product.rs"]
mod product;

use std::collections::BTreeMap;

use product::scalar;
use tilewright_ir::ops::{EpilogueStep, Factor, GemmSpec, Trans};
use tilewright_ir::oracle::Random;
use tilewright_ir::program::{Access, Program};
use tilewright_ir::{DType, analysis};
use tilewright_kernel::kernel::{ArgKind, ArgSource, Kernel};
use tilewright_kernel::lower::{self, Rule, lower};
use tilewright_kernel::sim::{self, LaneOrder, Order, SimArg, SimOptions};
use tilewright_kernel::text;
use tilewright_plan::legality;
use tilewright_plan::mapping::{CpuIsa, CpuMatrixMapping, Mapping};
use tilewright_plan::policy::cpu_matrix::CpuMatrixCounts;
use tilewright_plan::problem::MatrixProblem;
use tilewright_plan::space;
use tilewright_plan::target::CpuFacts;

const LANES: u32 = 8;

/// A product with its sizes; those marked symbolic are known at launch only.
#[derive(Clone, Debug)]
struct Case {
    spec: GemmSpec,
    size: [u64; 3],
    symbolic: [bool; 3],
    mapping: CpuMatrixMapping,
}

fn mapping(tile: [u32; 2], tiles: [u64; 2], depth: u64) -> CpuMatrixMapping {
    let width = u64::from(tile[1] * LANES);
    CpuMatrixMapping {
        lanes: LANES,
        group: [tiles[0] * u64::from(tile[0]), tiles[1] * width],
        tile,
        depth,
        columns: width,
        pack_a: false,
        pack_b: false,
        stream: false,
        threads: 1,
    }
}

fn case(size: [u64; 3], mapping: CpuMatrixMapping) -> Case {
    Case { spec: GemmSpec::plain(DType::F32), size, symbolic: [false; 3], mapping }
}

fn program(case: &Case) -> (Program, BTreeMap<String, u64>) {
    product::program(&case.spec, case.size, case.symbolic, 2)
}

fn lowered(case: &Case, program: &Program) -> Kernel {
    let facts = analysis::facts(program);
    let mapping = Mapping::CpuMatrix(case.mapping);
    let lowered = lower(program, &facts, &mapping, &lower::Options::default());
    let mut lowered = lowered.unwrap_or_else(|e| panic!("{case:?}: {e}"));
    lowered.launches.remove(0)
}

fn check(case: &Case, order: Order) {
    let (program, dims) = program(case);
    let kernel = lowered(case, &program);
    let (contents, expected) = product::contents(&program, &dims, 11);
    let mut args: Vec<SimArg> = kernel
        .args
        .iter()
        .map(|(_, arg)| match (arg.source, arg.kind) {
            (ArgSource::Tensor(t), ArgKind::Buffer { dtype, .. }) => {
                match contents.get(&program.tensors[t].name) {
                    Some(data) => SimArg::buffer(dtype, data.clone()),
                    None => SimArg::output(dtype, expected.data.len()),
                }
            }
            (ArgSource::Dim(d), _) => SimArg::Index(dims[&program.dims[d].name] as i64),
            (ArgSource::Scalar(s), _) => SimArg::Number(scalar(&program.scalars[s].name)),
            other => panic!("{case:?}: argument {other:?}"),
        })
        .collect();
    // On a CPU a subgroup is a vector register: its lanes go in step.
    let options = SimOptions { order, lanes: LaneOrder::Lockstep, ..SimOptions::default() };
    let report = sim::run(&kernel, &mut args, &options);
    let report = report.unwrap_or_else(|e| panic!("{case:?}: {e}\n{}", text::print(&kernel)));
    assert!(report.unwritten.is_empty(), "{case:?}: unwritten {:?}", report.unwritten);
    let c = program.tensors.iter().position(|(_, t)| t.access != Access::In).expect("an output");
    product::compare(case, &case.spec, case.size[2], &expected, args[c].data());
}

#[test]
fn shapes_storage_orders_and_copies() {
    for size in [[1, 1, 1], [3, 16, 4], [4, 17, 5], [9, 37, 11], [5, 32, 12], [1, 41, 9]] {
        for trans in Trans::ALL {
            for (pack_a, pack_b) in [(false, trans.b()), (true, true)] {
                for depth in [64, 4] {
                    let base = case(size, mapping([4, 2], [2, 2], depth));
                    let spec = GemmSpec { trans, ..base.spec.clone() };
                    let mapping = CpuMatrixMapping { pack_a, pack_b, ..base.mapping };
                    check(&Case { spec, mapping, ..base }, Order::Forward);
                }
            }
        }
    }
}

#[test]
fn groups_in_any_order() {
    for order in Order::ALL {
        check(&case([9, 37, 11], mapping([4, 1], [1, 1], 4)), order);
    }
}

#[test]
fn sizes_known_at_launch_only() {
    for symbolic in [[true, false, false], [false, true, false], [false, false, true], [true; 3]] {
        for size in [[1, 5, 3], [7, 20, 9], [13, 33, 0], [8, 16, 8]] {
            for (depth, pack) in [(64, false), (4, true)] {
                let base = case(size, mapping([6, 2], [1, 1], depth));
                let mapping = CpuMatrixMapping { pack_a: pack, pack_b: pack, ..base.mapping };
                check(&Case { symbolic, mapping, ..base }, Order::Forward);
            }
        }
    }
}

#[test]
fn epilogues_types_and_batches() {
    use EpilogueStep::*;
    for (dtype, output) in [
        (DType::F32, DType::F32),
        (DType::F64, DType::F64),
        (DType::F16, DType::F16),
        (DType::BF16, DType::F32),
    ] {
        for epilogue in [vec![], vec![Bias, Gelu], vec![Residual, Silu, Scale], vec![Relu]] {
            for (alpha, beta, batch) in
                [(Factor::One, Factor::Zero, true), (Factor::Runtime, Factor::Runtime, false)]
            {
                for depth in [64, 4] {
                    let base = case([5, 19, 10], mapping([4, 2], [1, 1], depth));
                    let epilogue = epilogue.clone();
                    let spec = GemmSpec {
                        dtype,
                        output,
                        epilogue,
                        alpha,
                        beta,
                        batch,
                        ..base.spec.clone()
                    };
                    check(&Case { spec, ..base }, Order::Reverse);
                }
            }
        }
    }
}

#[test]
fn empty_sizes_give_what_beta_leaves() {
    for size in [[0, 5, 5], [5, 0, 5], [5, 19, 0]] {
        for beta in [Factor::Zero, Factor::Runtime] {
            let base = case(size, mapping([4, 2], [1, 1], 8));
            let spec = GemmSpec { beta, ..base.spec.clone() };
            check(&Case { spec, ..base }, Order::Forward);
        }
    }
}

#[test]
fn every_planned_candidate_lowers_and_agrees() {
    for isa in [CpuIsa::Avx512, CpuIsa::Avx2] {
        for threads in [1, 2] {
            let [m, n, k] = [29, 70, 21];
            let problem = MatrixProblem::plain(m, n, k);
            let cpu = CpuFacts::modest(isa, 2);
            for mapping in space::cpu_matrix::candidates(&problem, &cpu, threads) {
                let counts = CpuMatrixCounts::new(&problem, &mapping);
                if legality::cpu_matrix::check(&problem, &cpu, &mapping, &counts).is_err() {
                    continue;
                }
                let case = case([m, n, k], mapping);
                let (program, _) = program(&case);
                assert_eq!(lowered(&case, &program).shared_bytes(), counts.scratch_bytes);
                check(&case, Order::Forward);
            }
        }
    }
}

#[test]
fn random_products_and_mappings() {
    let mut random = Random::new(41);
    let flags = |random: &mut Random| [(); 3].map(|()| random.below(3) == 0);
    for _ in 0..150 {
        let size = [random.below(20), random.below(50), random.below(40)];
        let tile = [1 + random.below(9) as u32, 1 + random.below(3) as u32];
        let tiles = [1 + random.below(3), 1 + random.below(3)];
        let depth = 1 + random.below(45);
        let trans = Trans::ALL[random.below(4) as usize];
        let steps = EpilogueStep::ALL;
        let epilogue = (0..random.below(3)).map(|_| steps[random.below(6) as usize]).collect();
        let beta = [Factor::Zero, Factor::One, Factor::Runtime][random.below(3) as usize];
        let base = case(size, mapping(tile, tiles, depth));
        let columns = (1 + random.below(tiles[1])) * u64::from(tile[1] * LANES);
        let mapping = CpuMatrixMapping {
            columns,
            pack_a: random.below(2) == 0,
            pack_b: trans.b() || random.below(2) == 0,
            ..base.mapping
        };
        let spec = GemmSpec { trans, epilogue, beta, ..base.spec.clone() };
        let symbolic = flags(&mut random);
        check(&Case { spec, size, symbolic, mapping }, Order::Forward);
    }
}

#[test]
fn kernels_print_and_parse_back() {
    let base = case([9, 37, 11], mapping([4, 2], [1, 2], 4));
    for stream in [false, true] {
        let depth = if stream { 11 } else { 4 };
        let mapping = CpuMatrixMapping { stream, depth, pack_b: true, ..base.mapping };
        let case = Case { mapping, ..base.clone() };
        let kernel = lowered(&case, &program(&case).0);
        let printed = text::print(&kernel);
        assert_eq!(printed.contains(" stream"), stream);
        let parsed = text::parse(&printed).unwrap_or_else(|e| panic!("{e}\n{printed}"));
        assert_eq!(text::print(&parsed), printed);
    }
}

#[test]
fn what_a_mapping_lacks_is_named() {
    let rule = |trans: Trans, mapping: CpuMatrixMapping| {
        let base = case([9, 37, 11], mapping);
        let case = Case { spec: GemmSpec { trans, ..base.spec.clone() }, ..base };
        let (program, _) = program(&case);
        let facts = analysis::facts(&program);
        let mapping = Mapping::CpuMatrix(case.mapping);
        lower(&program, &facts, &mapping, &lower::Options::default()).expect_err("refused").rule
    };
    let good = mapping([4, 2], [2, 2], 4);
    assert_eq!(rule(Trans::Nt, good), Rule::UnprovedFact);
    assert_eq!(rule(Trans::Nn, CpuMatrixMapping { group: [9, 32], ..good }), Rule::ExactCover);
    assert_eq!(rule(Trans::Nn, CpuMatrixMapping { depth: 0, ..good }), Rule::MappingRange);
    assert_eq!(rule(Trans::Nn, CpuMatrixMapping { stream: true, ..good }), Rule::MappingRange);
    let huge = CpuMatrixMapping { group: [1 << 40, 1 << 40], pack_a: true, ..good };
    assert_eq!(rule(Trans::Nn, huge), Rule::SharedLimit);
}
