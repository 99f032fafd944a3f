//! Products with register tiles on GPUs: simulated, against the interpreter.

#[path = "lower/common.rs"]
#[allow(dead_code)]
mod common;

use common::{Tolerance, compare, launch, simulate_all};
use tilewright_ir::analysis::facts;
use tilewright_ir::interp;
use tilewright_ir::ops::{EpilogueStep, Factor, GemmSpec, Trans};
use tilewright_ir::{DType, Program};
use tilewright_kernel::kernel::{Memory, Op};
use tilewright_kernel::lower::{LowerError, Lowered, Options, Rule, lower};
use tilewright_kernel::sim::Order;
use tilewright_kernel::validate::validate;
use tilewright_plan::mapping::{GpuMatrixMapping, Mapping};

struct Case {
    spec: GemmSpec,
    size: [u64; 3],
    batch: u64,
    /// Sizes stay symbolic.
    dynamic: bool,
    /// Every tensor is aligned to 16 bytes.
    aligned: bool,
}

impl Case {
    fn new(size: [u64; 3]) -> Case {
        let spec = GemmSpec::plain(DType::F32);
        Case { spec, size, batch: 2, dynamic: false, aligned: false }
    }

    fn program(&self) -> Program {
        let size = self.size.map(|n| (!self.dynamic).then_some(n));
        let mut program = self.spec.sized(size).unwrap();
        if !self.dynamic {
            program.bind("batch", self.batch).ok();
        }
        if self.aligned {
            let ids: Vec<_> = program.tensors.iter().map(|(id, _)| id).collect();
            ids.into_iter().for_each(|id| program.tensors[id].align = 16);
        }
        program
    }

    fn lower(&self, m: GpuMatrixMapping) -> Result<Lowered, LowerError> {
        let program = self.program();
        lower(&program, &facts(&program), &Mapping::GpuMatrix(m), &Options::default())
    }

    fn run(&self, m: GpuMatrixMapping, orders: &[Order]) {
        let program = self.program();
        let [sm, sn, sk] = self.size;
        let context = format!("{:?} {:?} {m:?}", self.spec, self.size);
        let lowered = self.lower(m).unwrap_or_else(|e| panic!("{context}: {e}"));
        for kernel in &lowered.launches {
            validate(kernel).unwrap_or_else(|e| {
                panic!("{context}: {}\n{}", e[0], tilewright_kernel::text::print(kernel))
            });
        }
        let (a_rows, a_cols) = if self.spec.trans.a() { (sk, sm) } else { (sm, sk) };
        let (b_rows, b_cols) = if self.spec.trans.b() { (sn, sk) } else { (sk, sn) };
        let pad = if self.aligned { 4 } else { 3 };
        let padded = |rows: u64, cols: u64| rows * (cols + pad) + 5;
        let dims = [
            ("m", sm),
            ("n", sn),
            ("k", sk),
            ("batch", self.batch),
            ("lda", a_cols),
            ("ldb", b_cols),
            ("ldc", sn),
            ("ldr", sn),
            ("sa", padded(a_rows, a_cols)),
            ("sb", padded(b_rows, b_cols)),
            ("sc", padded(sm, sn)),
            ("sr", padded(sm, sn)),
        ];
        let launch = launch(&program, &dims, pad, sm * 31 + sn * 7 + sk);
        let expected = interp::magnitude(&program, &launch.bindings()).unwrap();
        for order in orders {
            let found = simulate_all(&program, &lowered, &launch, *order).unwrap_or_else(|e| {
                let text: Vec<_> =
                    lowered.launches.iter().map(tilewright_kernel::text::print).collect();
                panic!("{context}, {order:?}: {e}\n{}", text.join("\n"))
            });
            for output in &expected {
                let found = &found[&output.name];
                let tolerance = Tolerance::matrix(sk, DType::F32);
                if let Err(e) = compare(&program, output, found, tolerance) {
                    panic!("{context}, {order:?}: {e}");
                }
            }
        }
    }
}

/// One subgroup, small tiles.
fn small() -> GpuMatrixMapping {
    GpuMatrixMapping { tile: [2, 2], ..GpuMatrixMapping::ONE }
}

/// Shapes of every variant: large tiles, small ones, sets of subgroups, skinny blocks.
fn variants() -> Vec<GpuMatrixMapping> {
    let base = small();
    vec![
        base,
        GpuMatrixMapping { warps: [2, 1, 1], tile: [8, 4], stages: 3, ..base },
        GpuMatrixMapping { warps: [1, 2, 2], tile: [4, 4], depth: 16, ..base },
        GpuMatrixMapping { warps: [1, 1, 4], lanes: [2, 16], tile: [4, 1], depth: 16, ..base },
        GpuMatrixMapping { warps: [1, 1, 2], lanes: [1, 32], tile: [1, 1], depth: 8, ..base },
        GpuMatrixMapping { lanes: [32, 1], tile: [1, 1], stages: 4, ..base },
        GpuMatrixMapping { warps: [1, 2, 4], lanes: [8, 4], tile: [1, 2], depth: 4, ..base },
    ]
}

const SHAPES: [[u64; 3]; 8] = [
    [32, 32, 32],
    [33, 31, 17],
    [1, 1, 1],
    [7, 65, 9],
    [40, 24, 0],
    [0, 8, 8],
    [1, 40, 70],
    [37, 1, 50],
];

#[test]
fn shapes_around_the_block() {
    for size in SHAPES {
        for mapping in variants() {
            Case::new(size).run(mapping, &[Order::Forward, Order::RunAheadLast]);
            let mut case = Case::new(size);
            case.dynamic = true;
            case.run(mapping, &[Order::Shuffled(size[2])]);
        }
    }
}

#[test]
fn every_transposition_with_strides_and_batch() {
    for trans in Trans::ALL {
        for size in [[16, 32, 24], [19, 33, 21]] {
            for mapping in variants() {
                let mut case = Case::new(size);
                case.spec.trans = trans;
                case.run(mapping, &[Order::RunAheadFirst]);
                case.spec.strided = true;
                case.spec.batch = true;
                case.run(mapping, &[Order::Reverse]);
            }
        }
    }
}

#[test]
fn wide_copies_where_alignment_is_proved() {
    for (trans, copy) in [
        (Trans::Nn, [1, 4]),
        (Trans::Nt, [1, 1]),
        (Trans::Tn, [4, 4]),
        (Trans::Tn, [4, 1]),
        (Trans::Tt, [4, 1]),
    ] {
        for size in [[32, 64, 32], [36, 20, 41], [12, 100, 7]] {
            for mapping in variants() {
                let block = mapping.block();
                let mut case = Case::new(size);
                case.spec.trans = trans;
                case.aligned = true;
                let copy = [0, 1].map(|i| if block[i] < 4 { 1 } else { copy[i] });
                case.run(GpuMatrixMapping { copy, ..mapping }, &[Order::RunAheadLast]);
            }
        }
    }
}

/// Where K is innermost its vectors may be copied, and turned when they are read.
#[test]
fn vectors_along_k() {
    let turned = [
        (Trans::Nt, [4, 4]),
        (Trans::Nt, [1, 4]),
        (Trans::Nn, [4, 4]),
        (Trans::Nn, [4, 1]),
        (Trans::Tt, [4, 4]),
        (Trans::Tt, [1, 4]),
    ];
    let base = small();
    let more = [
        GpuMatrixMapping { warps: [2, 2, 1], tile: [8, 4], depth: 16, stages: 3, ..base },
        GpuMatrixMapping { warps: [1, 1, 2], lanes: [2, 16], tile: [8, 8], depth: 32, ..base },
        GpuMatrixMapping { warps: [4, 1, 2], tile: [1, 4], depth: 64, stages: 4, ..base },
    ];
    for (trans, copy) in turned {
        for size in [[32, 64, 32], [36, 20, 44], [9, 33, 4], [17, 40, 132]] {
            for mapping in variants().into_iter().chain(more) {
                let block = mapping.block();
                let mut case = Case::new(size);
                (case.spec.trans, case.aligned) = (trans, true);
                // Columns of B, and rows of the transpose of A, go in vectors where they are whole.
                let along = [!trans.a(), trans.b()];
                let copy = [0, 1].map(|i| {
                    let whole = block[i] >= 4 && size[i].is_multiple_of(4);
                    if along[i] || whole { copy[i] } else { 1 }
                });
                let mapping = GpuMatrixMapping { copy, ..mapping };
                let share = mapping.depth / mapping.warps[2];
                if !share.is_multiple_of(4) && (0..2).any(|i| along[i] && copy[i] > 1) {
                    let error = case.lower(mapping).unwrap_err();
                    assert_eq!(error.rule, Rule::ExactCover, "{mapping:?}");
                    continue;
                }
                case.run(mapping, &[Order::RunAheadLast, Order::Shuffled(5)]);
                case.spec.batch = true;
                let long = GpuMatrixMapping { unroll: mapping.stages, ..mapping };
                case.run(GpuMatrixMapping { slices: 2, ..long }, &[Order::Forward]);
                case.dynamic = true;
                if case.lower(mapping).is_ok() {
                    panic!("{mapping:?}: alignment of open sizes isn't proved");
                }
            }
        }
    }
    let mut case = Case::new([16, 16, 18]);
    (case.spec.trans, case.aligned) = (Trans::Nt, true);
    let uneven = case.lower(GpuMatrixMapping { copy: [4, 4], ..base });
    assert_eq!(uneven.map_err(|e| e.rule), Err(Rule::UnprovedFact));
}

#[test]
fn slices_of_k() {
    for size in [[16, 32, 64], [19, 33, 70], [5, 7, 3], [4, 4, 0]] {
        for mapping in variants() {
            for slices in [2, 3] {
                let mapping = GpuMatrixMapping { slices, ..mapping };
                Case::new(size).run(mapping, &[Order::Forward, Order::Reverse]);
                let mut case = Case::new(size);
                case.spec.batch = true;
                case.spec.epilogue = vec![EpilogueStep::Bias, EpilogueStep::Relu];
                case.spec.beta = Factor::Runtime;
                case.run(mapping, &[Order::RunAheadLast]);
            }
        }
    }
}

#[test]
fn long_k_goes_through_the_loop() {
    for stages in [2, 3, 4, 5] {
        for size in [[9, 18, 200], [8, 16, 256], [9, 18, 193]] {
            for base in variants() {
                for unroll in [1, stages, 2 * stages] {
                    let mapping = GpuMatrixMapping { stages, unroll, ..base };
                    Case::new(size).run(mapping, &[Order::RunAheadLast, Order::Shuffled(7)]);
                    let mut case = Case::new(size);
                    case.dynamic = true;
                    case.run(mapping, &[Order::Forward]);
                    case.dynamic = false;
                    case.run(GpuMatrixMapping { slices: 3, ..mapping }, &[Order::Reverse]);
                }
            }
        }
    }
}

/// Blocks that don't divide the output end with it: no copy is guarded, and what two blocks have is
/// stored once.
#[test]
fn the_last_block_ends_with_the_output() {
    let guarded = |case: &Case, mapping| {
        let mut guarded = 0;
        case.lower(mapping).unwrap().launches[0].body.walk(&mut |stmt| {
            guarded += u32::from(matches!(&stmt.op, Op::CopyAsync { guard: Some(_), .. }));
        });
        guarded
    };
    let base = small();
    for (size, free) in [([17, 33, 32], true), ([9, 16, 32], true), ([7, 33, 32], false)] {
        for mapping in [base, GpuMatrixMapping { warps: [1, 1, 2], depth: 16, ..base }] {
            // Straight steps without loops: all steps are whole.
            let mut case = Case::new(size);
            assert_eq!(guarded(&case, mapping) == 0, free, "{size:?} {mapping:?}");
            case.run(mapping, &[Order::RunAheadLast, Order::Reverse]);
            case.spec.beta = Factor::Runtime;
            case.spec.epilogue = vec![EpilogueStep::Bias];
            case.run(mapping, &[Order::Shuffled(2)]);
            case.run(GpuMatrixMapping { slices: 2, ..mapping }, &[Order::Forward]);
        }
    }
    // Rows of whole vectors, a block beyond the middle.
    let mut case = Case::new([21, 44, 24]);
    case.aligned = true;
    let wide = GpuMatrixMapping { tile: [4, 4], copy: [1, 4], ..base };
    for slices in [1, 2] {
        case.run(GpuMatrixMapping { slices, ..wide }, &[Order::Forward]);
    }
}

/// A last step of few elements multiplies those and no more.
#[test]
fn a_short_last_step_has_few_products() {
    for (depth, sets, k, steps) in [(8, 1, 129, 4 + 1), (8, 1, 17, 2), (16, 4, 33, 2)] {
        let base = GpuMatrixMapping { warps: [1, 1, sets], depth, stages: 4, ..small() };
        for unroll in [1, 4] {
            let mapping = GpuMatrixMapping { unroll, ..base };
            let case = Case::new([9, 18, k]);
            case.run(mapping, &[Order::RunAheadLast, Order::Shuffled(3)]);
            let mut products = 0;
            case.lower(mapping).unwrap().launches[0].body.walk(&mut |stmt| {
                products += u32::from(matches!(stmt.op, Op::Fma { .. }));
            });
            let trips = depth / sets;
            // Loops of single steps and of four, and the one product of K that is left.
            let in_loops = if k > 64 { if unroll == 4 { steps } else { 1 } } else { steps };
            assert_eq!(products, 4 * (in_loops * trips + 1), "{mapping:?} {k}");
        }
    }
}

#[test]
fn epilogues_and_factors() {
    use EpilogueStep::*;
    for mapping in variants() {
        for (alpha, beta, epilogue) in [
            (Factor::Runtime, Factor::Runtime, vec![]),
            (Factor::One, Factor::One, vec![Bias, Residual, Relu]),
            (Factor::Runtime, Factor::Zero, vec![Scale, Bias, Silu, Residual]),
        ] {
            let mut case = Case::new([21, 35, 19]);
            case.spec.alpha = alpha;
            case.spec.beta = beta;
            case.spec.epilogue = epilogue;
            case.run(mapping, &[Order::Forward]);
            case.dynamic = true;
            case.run(mapping, &[Order::Reverse]);
        }
    }
}

/// Pieces of whole vectors are stored as one.
#[test]
fn aligned_output_is_stored_in_vectors() {
    let widths = |case: &Case, mapping| {
        let mut widths = Vec::new();
        case.lower(mapping).unwrap().launches[0].body.walk(&mut |stmt| {
            if let Op::Store { values, .. } = &stmt.op {
                widths.push(values.len());
            }
        });
        widths
    };
    let mapping = GpuMatrixMapping { tile: [4, 4], ..small() };
    let mut case = Case::new([32, 64, 16]);
    case.aligned = true;
    assert_eq!(widths(&case, mapping), [4; 4]);
    case.size = [32, 65, 16];
    assert_eq!(widths(&case, mapping), [1; 16]);
}

/// What an epilogue loads comes in vectors where the output is stored so.
#[test]
fn aligned_epilogues_load_vectors() {
    let mapping = GpuMatrixMapping { tile: [4, 4], ..small() };
    let mut case = Case::new([32, 64, 16]);
    case.spec.beta = Factor::One;
    case.spec.epilogue = vec![EpilogueStep::Bias, EpilogueStep::Residual, EpilogueStep::Silu];
    case.aligned = true;
    let widths = |case: &Case| {
        let mut widths = Vec::new();
        case.lower(mapping).unwrap().launches[0].body.walk(&mut |stmt| {
            if let Op::Load { place, .. } = &stmt.op
                && matches!(place.memory, Memory::Global(_))
            {
                widths.push(stmt.results.len());
            }
        });
        widths
    };
    // C and the residual for each of four rows, the bias for all or each of them.
    let found = widths(&case);
    assert!(found.len() >= 9 && found.iter().all(|w| *w == 4), "{found:?}");
    for size in [[32, 64, 16], [33, 68, 16], [21, 20, 9]] {
        case.size = size;
        case.run(mapping, &[Order::Forward, Order::RunAheadLast]);
        case.run(GpuMatrixMapping { slices: 2, ..mapping }, &[Order::Reverse]);
    }
    case.size = [32, 65, 16];
    assert!(widths(&case).iter().all(|w| *w == 1));
    case.run(mapping, &[Order::Forward]);
}

#[test]
fn what_is_illegal_names_its_rule() {
    let case = Case::new([33, 31, 17]);
    let rule = |m: GpuMatrixMapping| case.lower(m).unwrap_err().rule;
    let good = small();
    assert_eq!(rule(GpuMatrixMapping { tile: [3, 2], ..good }), Rule::MappingRange);
    assert_eq!(rule(GpuMatrixMapping { lanes: [8, 8], ..good }), Rule::MappingRange);
    assert_eq!(rule(GpuMatrixMapping { stages: 1, ..good }), Rule::MappingRange);
    assert_eq!(rule(GpuMatrixMapping { unroll: 3, ..good }), Rule::MappingRange);
    assert_eq!(rule(GpuMatrixMapping { slices: 0, ..good }), Rule::MappingRange);
    assert_eq!(rule(GpuMatrixMapping { warps: [1, 1, 16], ..good }), Rule::ExactCover);
    assert_eq!(rule(GpuMatrixMapping { copy: [1, 4], ..good }), Rule::UnprovedFact);
    let mut case = Case::new([32, 32, 32]);
    case.dynamic = true;
    let sliced = GpuMatrixMapping { slices: 2, ..good };
    assert_eq!(case.lower(sliced).unwrap_err().rule, Rule::ExtentKnown);
    case.spec.dtype = DType::F64;
    case.spec.output = DType::F64;
    assert_eq!(case.lower(good).unwrap_err().rule, Rule::AtomType);
}

/// Lanes that split K, by vectors or single elements, and lanes along either side.
fn in_place() -> Vec<GpuMatrixMapping> {
    let base = GpuMatrixMapping { lanes: [1, 1], tile: [1, 1], stages: 1, ..small() };
    let along = |lanes, tile, sets, depth, copy| GpuMatrixMapping {
        warps: [1, 1, sets],
        lanes,
        tile,
        depth,
        copy,
        ..base
    };
    vec![
        GpuMatrixMapping { depth: 32, ..base },
        GpuMatrixMapping { warps: [1, 4, 2], tile: [1, 2], depth: 128, ..base },
        GpuMatrixMapping { warps: [2, 1, 1], tile: [4, 1], depth: 128, copy: [4, 4], ..base },
        GpuMatrixMapping { warps: [1, 1, 8], tile: [2, 4], depth: 1024, copy: [4, 4], ..base },
        along([1, 32], [1, 1], 4, 16, [1, 1]),
        along([1, 32], [4, 4], 2, 16, [4, 4]),
        along([1, 32], [2, 2], 1, 8, [1, 2]),
        along([32, 1], [1, 2], 4, 16, [1, 1]),
        along([32, 1], [4, 1], 2, 16, [4, 4]),
    ]
}

#[test]
fn operands_in_place_where_the_output_is_thin() {
    for size in [[1, 257, 96], [3, 40, 516], [256, 1, 128], [130, 2, 7], [1, 1, 4100], [4, 64, 0]] {
        for trans in Trans::ALL {
            for aligned in [false, true] {
                let mut case = Case::new(size);
                (case.spec.trans, case.aligned) = (trans, aligned);
                for mapping in in_place() {
                    match case.lower(mapping) {
                        Ok(_) => case.run(mapping, &[Order::RunAheadLast]),
                        // Lanes that split K need it consecutive, and their vectors aligned.
                        Err(e) => {
                            assert_eq!(
                                e.rule,
                                Rule::UnprovedFact,
                                "{size:?} {trans:?} {mapping:?}"
                            );
                            assert_eq!(mapping.lanes, [1, 1]);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn operands_in_place_with_slices_batch_epilogue_and_open_sizes() {
    let split = GpuMatrixMapping { warps: [1, 2, 2], depth: 128, ..in_place()[0] };
    for mapping in [split, in_place()[4], in_place()[7]] {
        let mut case = Case::new([2, 70, 1031]);
        case.spec.trans = Trans::Nt;
        case.run(GpuMatrixMapping { slices: 3, ..mapping }, &[Order::Forward]);
        case.spec.batch = true;
        case.spec.epilogue = vec![EpilogueStep::Bias, EpilogueStep::Gelu];
        case.spec.beta = Factor::Runtime;
        case.run(mapping, &[Order::Reverse]);
        // A slice may have nothing of K.
        let mut short = Case::new([1, 33, 40]);
        short.spec.trans = Trans::Nt;
        short.run(GpuMatrixMapping { slices: 4, ..mapping }, &[Order::Forward]);
        let mut open = Case::new([3, 70, 300]);
        (open.spec.trans, open.dynamic) = (Trans::Nt, true);
        open.run(mapping, &[Order::RunAheadFirst]);
    }
}

#[test]
fn operands_in_place_that_cannot_be_name_their_rule() {
    let base = in_place()[0];
    let case = Case::new([1, 64, 64]);
    for bad in [
        GpuMatrixMapping { lanes: [4, 8], ..base },
        GpuMatrixMapping { depth: 16, ..base },
        GpuMatrixMapping { copy: [4, 1], ..base },
        GpuMatrixMapping { unroll: 2, ..base },
        GpuMatrixMapping { lanes: [1, 32], tile: [1, 8], ..base },
        GpuMatrixMapping { stages: 2, ..base },
    ] {
        assert_eq!(case.lower(bad).map_err(|e| e.rule), Err(Rule::MappingRange), "{bad:?}");
    }
}
