//! The matrix family with subgroup fragments.

use tilewright_ir::DType;
use tilewright_ir::Program;
use tilewright_ir::analysis::facts;
use tilewright_ir::ops::{EpilogueStep, Factor, GemmSpec, Trans, gemm};
use tilewright_kernel::lower::{LowerError, Lowered, Options, Rule, lower};
use tilewright_kernel::sim::Order;
use tilewright_plan::mapping::{Mapping, MatrixBasis, MatrixMapping};

use crate::common::*;

/// A mapping without any proof.
fn mapping(basis: MatrixBasis, block: [u64; 3], subgroups: [u64; 2]) -> MatrixMapping {
    MatrixMapping {
        basis,
        block,
        threads: 32 * (subgroups[0] * subgroups[1]) as u32,
        subgroups,
        atoms: [block[0] / 8 / subgroups[0], block[1] / 8 / subgroups[1]],
        forward_a: false,
        forward_b: false,
        persistent: true,
        direct: false,
        overwrite: false,
        stages: 1,
    }
}

/// Uses every proof that the sizes give.
fn proved(m: MatrixMapping, [sm, sn, sk]: [u64; 3], plain: bool) -> MatrixMapping {
    let [bm, bn, bk] = m.block;
    let (m_ok, n_ok, k_ok) = (sm.is_multiple_of(bm), sn.is_multiple_of(bn), sk.is_multiple_of(bk));
    let direct = m_ok && n_ok && plain;
    MatrixMapping {
        forward_a: m_ok && k_ok,
        forward_b: n_ok && k_ok,
        direct,
        overwrite: direct && sk > 0 && sk <= bk,
        ..m
    }
}

fn lowered(program: &Program, m: MatrixMapping) -> Result<Lowered, LowerError> {
    lower(program, &facts(program), &Mapping::Matrix(m), &Options::default())
}

struct Case {
    spec: GemmSpec,
    size: [u64; 3],
    batch: u64,
    /// Leave M symbolic.
    dynamic: bool,
}

impl Case {
    fn new(dtype: DType, size: [u64; 3]) -> Case {
        Case { spec: GemmSpec::plain(dtype), size, batch: 1, dynamic: false }
    }

    fn program(&self) -> Program {
        let [m, n, k] = self.size;
        self.spec.sized([(!self.dynamic).then_some(m), Some(n), Some(k)]).unwrap()
    }

    fn run(&self, m: MatrixMapping, orders: &[Order]) {
        let program = self.program();
        let [sm, sn, sk] = self.size;
        let context = format!("{:?} {:?} {m:?}", self.spec, self.size);
        let kernels = lowered(&program, m).unwrap_or_else(|e| panic!("{context}: {e}"));
        round_trips(&kernels.launches[0]);
        let (a_rows, a_cols) = if self.spec.trans.a() { (sk, sm) } else { (sm, sk) };
        let (b_rows, b_cols) = if self.spec.trans.b() { (sn, sk) } else { (sk, sn) };
        let pad = 3;
        let padded = |rows: u64, cols: u64| rows * (cols + pad) + 5;
        let dims = [
            ("m", sm),
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
        let tolerance = Tolerance::matrix(sk, self.spec.dtype);
        check(&program, &kernels, &launch, tolerance, orders, &context);
    }
}

const SHAPES: [[u64; 3]; 9] = [
    [32, 32, 32],
    [32, 32, 64],
    [64, 32, 40],
    [33, 31, 17],
    [1, 1, 1],
    [7, 65, 9],
    [40, 24, 0],
    [0, 8, 8],
    [37, 16, 100],
];

fn bases() -> [MatrixMapping; 4] {
    [
        mapping(MatrixBasis::Simdgroup, [32, 32, 32], [2, 2]),
        mapping(MatrixBasis::Simdgroup, [16, 24, 8], [2, 1]),
        mapping(MatrixBasis::Mpp, [32, 32, 32], [2, 1]),
        mapping(MatrixBasis::Mpp, [16, 32, 16], [1, 2]),
    ]
}

#[test]
fn shapes_around_the_block() {
    for size in SHAPES {
        for base in bases() {
            let case = Case::new(DType::F32, size);
            case.run(proved(base, size, true), &Order::ALL);
            case.run(base, &[Order::Forward]);
        }
    }
}

#[test]
fn every_transposition() {
    for trans in Trans::ALL {
        for size in [[32, 32, 32], [33, 31, 17]] {
            for base in bases() {
                let mut case = Case::new(DType::F32, size);
                case.spec.trans = trans;
                case.run(proved(base, size, true), &[Order::RunAheadLast]);
            }
        }
    }
}

#[test]
fn without_persistence_or_with_two_stages() {
    for size in [[32, 32, 96], [33, 31, 70], [16, 16, 0]] {
        for base in bases() {
            let case = Case::new(DType::F32, size);
            case.run(MatrixMapping { persistent: false, ..base }, &Order::ALL);
            case.run(MatrixMapping { stages: 2, ..base }, &Order::ALL);
            let both = MatrixMapping { persistent: false, stages: 2, ..base };
            case.run(both, &[Order::RunAheadFirst]);
        }
    }
}

#[test]
fn narrow_types() {
    for dtype in [DType::F16, DType::BF16] {
        for output in [dtype, DType::F32] {
            for size in [[32, 32, 64], [33, 31, 17]] {
                for base in bases() {
                    let mut case = Case::new(dtype, size);
                    case.spec.output = output;
                    let plain = output == DType::F32;
                    case.run(proved(base, size, plain), &[Order::Forward]);
                }
            }
        }
    }
}

#[test]
fn epilogues_factors_strides_batch() {
    for size in [[32, 32, 32], [33, 31, 17]] {
        for base in bases() {
            let mut case = Case::new(DType::F32, size);
            case.spec.epilogue = EpilogueStep::ALL.to_vec();
            case.run(proved(base, size, false), &[Order::Forward]);
            let mut case = Case::new(DType::F32, size);
            case.spec.alpha = Factor::Runtime;
            case.spec.beta = Factor::Runtime;
            case.run(proved(base, size, false), &[Order::Reverse]);
            let mut case = Case::new(DType::F32, size);
            case.spec.batch = true;
            case.batch = 3;
            case.spec.strided = true;
            case.spec.epilogue = vec![EpilogueStep::Residual];
            case.run(proved(base, size, false), &[Order::Forward]);
        }
    }
}

#[test]
fn symbolic_rows() {
    for rows in [1, 31, 32, 65] {
        for base in bases() {
            let mut case = Case::new(DType::F32, [rows, 32, 32]);
            case.dynamic = true;
            // M is any number: only B may be read in place.
            let m = MatrixMapping { forward_b: true, ..base };
            let fits = base.block[1] == 32 && 32 % base.block[2] == 0;
            case.run(if fits { m } else { base }, &[Order::Forward]);
        }
    }
}

/// K known at launch only: no operand is read in place, and there may be no K at all.
#[test]
fn symbolic_depth() {
    for base in bases() {
        for m in [base, MatrixMapping { stages: 2, ..base }] {
            let mut program = gemm(&GemmSpec::plain(DType::F32)).unwrap();
            program.bind("m", 20).unwrap();
            program.bind("n", 32).unwrap();
            let kernels = lowered(&program, m).unwrap();
            for k in [0, 1, 32, 70] {
                let launch = launch(&program, &[("k", k)], 0, k);
                let context = format!("K = {k} at launch, {m:?}");
                let tolerance = Tolerance::matrix(k, DType::F32);
                check(&program, &kernels, &launch, tolerance, &[Order::RunAheadLast], &context);
            }
        }
    }
}

/// A kernel that leaves out the last k is noticed.
#[test]
fn a_mutant_fails() {
    let mut case = Case::new(DType::F32, [32, 32, 61]);
    // With run-time strides 61 is K and nothing else.
    case.spec.strided = true;
    let program = case.program();
    let kernels = lowered(&program, bases()[0]).unwrap();
    let launch = launch(&program, &[("lda", 61), ("ldb", 32), ("ldc", 32)], 3, 8);
    let expected = tilewright_ir::interp::magnitude(&program, &launch.bindings()).unwrap();
    let text = tilewright_kernel::text::print(&kernels.launches[0]);
    let run = |text: &str| {
        let kernel = tilewright_kernel::text::parse(text).unwrap();
        let (buffers, _) = simulate(&program, &kernel, &launch, &Default::default()).unwrap();
        compare(&program, &expected[0], &buffers["c"], Tolerance::matrix(61, DType::F32))
    };
    assert_eq!(run(&text), Ok(()));
    assert_eq!(text.matches("const 61").count(), 1);
    assert!(run(&text.replace("const 61", "const 60")).is_err());
}

#[test]
fn random_mappings() {
    let mut random = Random(0xb10c);
    for _ in 0..60 {
        let basis = random.pick(&[MatrixBasis::Simdgroup, MatrixBasis::Mpp]);
        let subgroups = [1 + random.below(3), 1 + random.below(3)];
        let mut atoms = [1 + random.below(3), 1 + random.below(3)];
        if basis == MatrixBasis::Mpp && atoms[0] % 2 == 1 && atoms[1] % 2 == 1 {
            atoms[0] += 1;
        }
        let block =
            [8 * subgroups[0] * atoms[0], 8 * subgroups[1] * atoms[1], 8 * (1 + random.below(4))];
        let size = [0, 1, 2].map(|i| match random.below(3) {
            0 => block[i],
            1 => 2 * block[i],
            _ => 1 + random.below(70),
        });
        let mut case = Case::new(random.pick(&[DType::F32, DType::F16]), size);
        case.spec.trans = random.pick(&Trans::ALL);
        let plain = case.spec.dtype == DType::F32;
        let mut m = proved(mapping(basis, block, subgroups), size, plain);
        if random.below(3) == 0 {
            m.stages = 2;
        }
        if !m.direct && random.below(4) == 0 {
            m.persistent = false;
        }
        case.run(m, &[Order::Shuffled(random.next())]);
    }
}

#[test]
fn bad_mappings_name_their_rule() {
    let good = mapping(MatrixBasis::Simdgroup, [32, 32, 32], [2, 2]);
    let aligned = Case::new(DType::F32, [64, 64, 64]).program();
    let ragged = Case::new(DType::F32, [33, 64, 64]).program();
    let double = Case::new(DType::F64, [64, 64, 64]).program();
    for (program, m, rule) in [
        (&aligned, MatrixMapping { threads: 64, ..good }, Rule::MappingRange),
        (&aligned, MatrixMapping { stages: 3, ..good }, Rule::MappingRange),
        (&aligned, MatrixMapping { atoms: [2, 1], ..good }, Rule::ExactCover),
        (&aligned, MatrixMapping { block: [32, 32, 12], ..good }, Rule::ExactCover),
        (&aligned, MatrixMapping { overwrite: true, direct: true, ..good }, Rule::UnprovedFact),
        (&aligned, MatrixMapping { direct: true, persistent: false, ..good }, Rule::UnprovedFact),
        (&ragged, MatrixMapping { forward_a: true, ..good }, Rule::UnprovedFact),
        (&ragged, MatrixMapping { direct: true, ..good }, Rule::UnprovedFact),
        (&double, good, Rule::AtomType),
    ] {
        assert_eq!(lowered(program, m).unwrap_err().rule, rule, "{m:?}");
    }
}
