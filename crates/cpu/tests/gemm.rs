//! Matrix products as machine code: every way in which operands are stored, types, epilogues and
//! ragged shapes, under plans of every kind, on both instruction sets, against the float64 oracle.

mod common;
#[path = "../../kernel/tests/support/product.rs"]
mod product;

use std::collections::BTreeMap;

use common::{Data as Arg, isas, run};
use product::scalar;
use tilewright_ir::ops::{EpilogueStep, Factor, GemmSpec, Trans};
use tilewright_ir::oracle::{self, Data};
use tilewright_ir::program::{Access, Program};
use tilewright_ir::{DType, analysis};
use tilewright_kernel::kernel::{ArgKind, ArgSource, Elem, Kernel};
use tilewright_kernel::lower::{Options, lower};
use tilewright_kernel::validate::validate;
use tilewright_plan::mapping::{CpuIsa, CpuMatrixMapping, Mapping};

/// A product, and how it is to run.
#[derive(Clone, Debug)]
struct Case {
    spec: GemmSpec,
    size: [u64; 3],
    batch: u64,
    /// Which of m, n, k are known at launch only.
    symbolic: [bool; 3],
    isa: CpuIsa,
    tile: [u32; 2],
    /// Tiles per group in each direction.
    tiles: [u64; 2],
    depth: u64,
    pack: [bool; 2],
    stream: bool,
}

impl Case {
    fn new(isa: CpuIsa, size: [u64; 3]) -> Case {
        Case {
            spec: GemmSpec::plain(DType::F32),
            size,
            batch: 1,
            symbolic: [false; 3],
            isa,
            tile: if isa == CpuIsa::Avx512 { [8, 3] } else { [4, 2] },
            tiles: [2, 2],
            depth: 1 << 20,
            pack: [false; 2],
            stream: false,
        }
    }

    fn lanes(&self) -> u64 {
        self.isa.vector_bytes() / self.spec.dtype.accumulator().bytes()
    }

    fn mapping(&self) -> CpuMatrixMapping {
        let width = u64::from(self.tile[1]) * self.lanes();
        let group = [self.tiles[0] * u64::from(self.tile[0]), self.tiles[1] * width];
        CpuMatrixMapping {
            lanes: self.lanes() as u32,
            group,
            tile: self.tile,
            depth: self.depth.min(self.size[2].max(1)),
            columns: group[1].min(2 * width),
            pack_a: self.pack[0],
            pack_b: self.pack[1] || self.spec.trans.b(),
            stream: self.stream,
            threads: 1,
        }
    }

    fn program(&self) -> (Program, BTreeMap<String, u64>) {
        let (program, mut dims) =
            product::program(&self.spec, self.size, self.symbolic, self.batch);
        if self.spec.strided {
            let [m, n, k] = self.size;
            let (a, b) = (self.spec.trans.a(), self.spec.trans.b());
            let rows = [if a { k } else { m }, if b { n } else { k }, m, m];
            let lead = [if a { m } else { k } + 3, if b { k } else { n } + 5, n + 2, n + 7];
            for (letter, (rows, lead)) in "abcr".chars().zip(rows.into_iter().zip(lead)) {
                for (name, value) in
                    [(format!("ld{letter}"), lead), (format!("s{letter}"), rows * lead + 1)]
                {
                    if program.dim(&name).is_some() {
                        dims.insert(name, value);
                    }
                }
            }
        }
        (program, dims)
    }
}

fn lowered(case: &Case, program: &Program) -> Kernel {
    let facts = analysis::facts(program);
    let mapping = Mapping::CpuMatrix(case.mapping());
    let lowered = lower(program, &facts, &mapping, &Options::default());
    let mut lowered = lowered.unwrap_or_else(|e| panic!("{case:?}: {e}"));
    let kernel = lowered.launches.remove(0);
    validate(&kernel).unwrap_or_else(|e| panic!("{case:?}: {e:?}"));
    kernel
}

fn check(case: &Case) {
    let (program, dims) = case.program();
    let kernel = lowered(case, &program);
    let (contents, output) = product::contents(&program, &dims, 7);
    let args: Vec<Arg> = kernel
        .args
        .iter()
        .map(|(_, arg)| match (arg.source, arg.kind) {
            (ArgSource::Tensor(t), ArgKind::Buffer { dtype, .. }) => {
                let tensor = &program.tensors[t];
                match contents.get(&tensor.name) {
                    Some(data) => Arg::Buffer(dtype, data.clone()),
                    None => Arg::out(dtype, output.data.len()),
                }
            }
            (ArgSource::Dim(d), _) => Arg::Index(dims[&program.dims[d].name] as i64),
            (ArgSource::Scalar(s), ArgKind::Number(Elem::Data(dtype))) => {
                Arg::Number(dtype, scalar(&program.scalars[s].name))
            }
            other => panic!("{case:?}: argument {other:?}"),
        })
        .collect();
    let after = run(&kernel, case.isa, &args);
    let c = program.tensors.iter().position(|(_, t)| t.access != Access::In).expect("an output");
    let actual = after[c].data();
    let before = args[c].data();
    product::compare(case, &case.spec, case.size[2], &output, actual);
    let mut written = vec![false; actual.len()];
    output.layout.offsets().for_each(|at| written[at] = true);
    for (at, _) in written.iter().enumerate().filter(|(_, written)| !**written) {
        assert_eq!(actual[at].to_bits(), before[at].to_bits(), "{case:?}: wrote into gap {at}");
    }
}

/// Sizes around every threshold of a tile of `rows` × `width` columns.
fn ragged(rows: u64, width: u64, lanes: u64) -> Vec<[u64; 3]> {
    vec![
        [1, 1, 1],
        [rows - 1, lanes - 1, 3],
        [rows, width, 4],
        [rows + 1, width + 1, 5],
        [2 * rows + 3, 2 * width + lanes + 1, 37],
        [3 * rows, width - lanes, 64],
        [1, 3 * width + 2, 19],
        [37, 1, 41],
    ]
}

#[test]
fn shapes_and_storage_orders() {
    for isa in isas() {
        let base = Case::new(isa, [1, 1, 1]);
        let width = u64::from(base.tile[1]) * base.lanes();
        for size in ragged(u64::from(base.tile[0]), width, base.lanes()) {
            for trans in Trans::ALL {
                for pack in [[false, false], [true, true]] {
                    for depth in [1 << 20, 16] {
                        let spec = GemmSpec { trans, ..base.spec.clone() };
                        check(&Case { spec, size, pack, depth, ..base.clone() });
                    }
                }
            }
        }
    }
}

#[test]
fn tiles_of_every_shape() {
    for isa in isas() {
        let tiles: &[[u32; 2]] = if isa == CpuIsa::Avx512 {
            &[[14, 2], [12, 2], [9, 3], [7, 3], [6, 4], [5, 5], [4, 6], [16, 1], [2, 8], [1, 16]]
        } else {
            &[[6, 2], [5, 2], [3, 3], [8, 1], [2, 4], [1, 8]]
        };
        for &tile in tiles {
            for (depth, pack_b) in [(1 << 20, false), (8, true), (8, false)] {
                let size = [29, 83, 43];
                let pack = [false, pack_b];
                check(&Case { tile, depth, pack, ..Case::new(isa, size) });
            }
        }
    }
}

#[test]
fn sizes_known_at_launch_only() {
    for isa in isas() {
        for symbolic in
            [[true, false, false], [false, true, false], [false, false, true], [true; 3]]
        {
            for size in [[1, 5, 3], [13, 50, 40], [39, 97, 16], [8, 48, 0], [16, 33, 33]] {
                for (depth, pack) in [(1 << 20, [false, false]), (16, [true, true])] {
                    for trans in [Trans::Nn, Trans::Tt] {
                        let base = Case::new(isa, size);
                        let spec = GemmSpec { trans, ..base.spec.clone() };
                        check(&Case { spec, symbolic, depth, pack, ..base });
                    }
                }
            }
        }
    }
}

#[test]
fn epilogues_and_factors() {
    use EpilogueStep::*;
    let steps: [&[EpilogueStep]; 8] = [
        &[],
        &[Bias],
        &[Relu],
        &[Gelu],
        &[Silu],
        &[Scale],
        &[Residual],
        &[Bias, Residual, Gelu, Scale],
    ];
    for isa in isas() {
        for epilogue in steps {
            for (alpha, beta) in [
                (Factor::One, Factor::Zero),
                (Factor::Runtime, Factor::Zero),
                (Factor::One, Factor::One),
                (Factor::Runtime, Factor::Runtime),
            ] {
                for (size, depth) in [([19, 53, 35], 1 << 20), ([19, 53, 35], 8)] {
                    let base = Case::new(isa, size);
                    let epilogue = epilogue.to_vec();
                    let spec = GemmSpec { alpha, beta, epilogue, ..base.spec.clone() };
                    check(&Case { spec, depth, ..base });
                }
            }
        }
    }
}

#[test]
fn element_types() {
    for isa in isas() {
        for (dtype, output) in [
            (DType::F64, DType::F64),
            (DType::F16, DType::F16),
            (DType::F16, DType::F32),
            (DType::BF16, DType::BF16),
            (DType::BF16, DType::F32),
        ] {
            for trans in Trans::ALL {
                for (pack, depth) in [([true, true], 16), ([true, true], 1 << 20)] {
                    let base = Case::new(isa, [21, 70, 45]);
                    let epilogue = vec![EpilogueStep::Bias];
                    let spec = GemmSpec { dtype, output, trans, epilogue, ..base.spec.clone() };
                    check(&Case { spec: spec.clone(), pack, depth, ..base.clone() });
                    let plain = GemmSpec { epilogue: Vec::new(), ..spec };
                    check(&Case { spec: plain, pack, depth, ..base });
                }
            }
        }
    }
}

#[test]
fn narrow_operands_in_place() {
    for isa in isas() {
        for dtype in [DType::F16, DType::BF16] {
            for size in [[1, 64, 33], [9, 64, 40]] {
                let base = Case::new(isa, size);
                let spec = GemmSpec { dtype, output: DType::F32, ..base.spec.clone() };
                check(&Case { spec, ..base });
            }
        }
    }
}

#[test]
fn batches_and_leading_dimensions() {
    for isa in isas() {
        for trans in Trans::ALL {
            for strided in [false, true] {
                for (batch, depth) in [(1, 1 << 20), (3, 16)] {
                    let base = Case::new(isa, [11, 50, 33]);
                    let spec = GemmSpec {
                        trans,
                        strided,
                        batch: batch > 1,
                        beta: Factor::Runtime,
                        epilogue: vec![EpilogueStep::Residual],
                        ..base.spec.clone()
                    };
                    check(&Case { spec, batch, depth, ..base });
                }
            }
        }
    }
}

#[test]
fn empty_sizes() {
    for isa in isas() {
        for size in [[0, 5, 5], [5, 0, 5], [5, 5, 0], [20, 50, 0]] {
            for beta in [Factor::Zero, Factor::Runtime] {
                let base = Case::new(isa, size);
                let spec = GemmSpec { beta, ..base.spec.clone() };
                check(&Case { spec, ..base });
            }
        }
    }
}

#[test]
fn streaming_outputs() {
    for isa in isas() {
        for size in [[16, 96, 16], [17, 112, 8], [9, 50, 16]] {
            check(&Case { stream: true, ..Case::new(isa, size) });
        }
    }
}

#[test]
fn special_values_go_through() {
    // A NaN or an infinity reaches exactly its row or column; zeros outside a ragged block don't
    // meet it.
    for isa in isas() {
        let case = Case::new(isa, [9, 50, 7]);
        let (program, dims) = case.program();
        let kernel = lowered(&case, &program);
        let contents = oracle::inputs(&program, &dims, Data::Random, 3).expect("inputs");
        let mut a = contents["a"].clone();
        let mut b = contents["b"].clone();
        a[8 * 7 + 3] = f64::NAN;
        b[6 * 50 + 49] = f64::INFINITY;
        let args =
            [Arg::Buffer(DType::F32, a), Arg::Buffer(DType::F32, b), Arg::out(DType::F32, 9 * 50)];
        let after = run(&kernel, isa, &args);
        for (at, value) in after[2].data().iter().enumerate() {
            let (row, column) = (at / 50, at % 50);
            assert_eq!(value.is_nan(), row == 8, "{isa:?} at {row}, {column}");
            assert_eq!(value.is_infinite(), row != 8 && column == 49, "{isa:?} {row}, {column}");
        }
    }
}

#[test]
fn one_product_more_or_less_is_seen() {
    // The bound is tight enough that a sum without one of its products is outside it.
    let case = Case::new(isas()[0], [16, 32, 64]);
    let (program, dims) = case.program();
    let contents = oracle::inputs(&program, &dims, Data::Random, 7).expect("inputs");
    let (a, b) = (&contents["a"], &contents["b"]);
    let factor = (8.0 + 8.0) * DType::F32.unit_roundoff();
    let mut outside = 0;
    for row in 0..16 {
        for column in 0..32 {
            let mut products = (0..64).map(|k| a[row * 64 + k] * b[k * 32 + column]);
            let size: f64 = products.clone().map(f64::abs).sum();
            let last = products.next_back().expect("64 products").abs();
            outside += usize::from(last > factor * size);
        }
    }
    assert!(outside > 16 * 32 * 99 / 100, "{outside}");
}
