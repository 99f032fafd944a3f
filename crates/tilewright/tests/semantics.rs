//! The corners that docs/semantics.md states, on every instruction set.

mod common;

use common::{engine, isas};
use tilewright::ops::{self, EpilogueStep};
use tilewright::{Compiled, DType, Engine, bf16, f16};

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

fn row_op(engine: &Engine, op: ops::Op) -> Compiled {
    op.plan(engine).unwrap().compile().unwrap()
}

/// Runs an op with one rows×cols input of f32 and an output of the same shape.
fn map(engine: &Engine, op: ops::Op, x: &[f32]) -> Vec<f32> {
    let mut y = vec![9.0f32; x.len()];
    row_op(engine, op).run(&[&x], &mut y).unwrap();
    y
}

#[test]
fn nan_in_gives_nan_out() {
    for isa in isas() {
        let e = engine(isa);
        // The NaN sits in the first row, at every position; the second row is clean.
        for cols in [1usize, 5, 16, 17, 40] {
            for at in 0..cols {
                let mut x = vec![0.5f32; 2 * cols];
                x[at] = NAN;
                let shape = (2, cols as u64, DType::F32);
                for op in [ops::softmax, ops::log_softmax] {
                    let y = map(&e, op(shape.0, shape.1, shape.2), &x);
                    assert!(y[..cols].iter().all(|v| v.is_nan()), "{isa:?} {cols} {at} {y:?}");
                    assert!(y[cols..].iter().all(|v| v.is_finite()), "{isa:?} {cols} {at}");
                }
                for op in [ops::row_sum, ops::row_max, ops::row_mean] {
                    let compiled = row_op(&e, op(shape.0, shape.1, shape.2));
                    let mut y = [9.0f32; 2];
                    compiled.run(&[&x], &mut y).unwrap();
                    assert!(y[0].is_nan() && y[1].is_finite(), "{isa:?} {cols} {at} {y:?}");
                }
                for op in [ops::relu, ops::gelu, ops::silu] {
                    let y = map(&e, op(shape.0, shape.1, shape.2), &x);
                    let nan: Vec<usize> = (0..2 * cols).filter(|i| y[*i].is_nan()).collect();
                    assert_eq!(nan, [at], "{isa:?} {cols}");
                }
                let ones = vec![1.0f32; cols];
                let mut y = vec![9.0f32; 2 * cols];
                row_op(&e, ops::rmsnorm(2, cols as u64, DType::F32))
                    .run(&[&x, &ones], &mut y)
                    .unwrap();
                assert!(y[..cols].iter().all(|v| v.is_nan()), "{isa:?} {cols} {at}");
                let mut y = vec![9.0f32; 2 * cols];
                row_op(&e, ops::layernorm(2, cols as u64, DType::F32))
                    .run(&[&x, &ones, &ones], &mut y)
                    .unwrap();
                assert!(y[..cols].iter().all(|v| v.is_nan()), "{isa:?} {cols} {at}");
                assert!(y[cols..].iter().all(|v| v.is_finite()), "{isa:?} {cols} {at}");
            }
        }
    }
}

#[test]
fn infinities_in_softmax() {
    for isa in isas() {
        let e = engine(isa);
        for cols in [1usize, 3, 16, 21] {
            let op = || ops::softmax(1, cols as u64, DType::F32);
            let all = map(&e, op(), &vec![-INF; cols]);
            assert!(all.iter().all(|v| v.is_nan()), "{isa:?}: a row of -inf is NaN: {all:?}");
            let mut x = vec![1.0f32; cols];
            x[cols / 2] = INF;
            assert!(map(&e, op(), &x).iter().all(|v| v.is_nan()), "{isa:?}: +inf gives NaN");
            if cols > 1 {
                x[cols / 2] = -INF;
                let y = map(&e, op(), &x);
                assert_eq!(y[cols / 2], 0.0, "{isa:?}");
                assert!((y.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{isa:?}");
                let log = map(&e, ops::log_softmax(1, cols as u64, DType::F32), &x);
                assert_eq!(log[cols / 2], -INF, "{isa:?}");
            }
        }
    }
}

#[test]
fn masks() {
    for isa in isas() {
        let e = engine(isa);
        for cols in [4usize, 16, 19] {
            let compiled = row_op(&e, ops::masked_softmax(4, cols as u64, DType::F32));
            let mut x = vec![0.25f32; 4 * cols];
            let mut mask = vec![1i32; 4 * cols];
            // Row 0: a hidden NaN. Row 1: hidden entirely. Row 2: the kept ones are -inf.
            x[1] = NAN;
            mask[1] = 0;
            mask[cols..2 * cols].fill(0);
            x[cols] = NAN;
            x[2 * cols..3 * cols].fill(-INF);
            mask[2 * cols + 3] = 0;
            // Row 3: a NaN that isn't hidden; any nonzero mask keeps.
            x[3 * cols] = NAN;
            mask[3 * cols..].fill(-7);
            let mut y = vec![9.0f32; 4 * cols];
            compiled.run(&[&x, &mask], &mut y).unwrap();
            assert_eq!(y[1], 0.0, "{isa:?} {cols}");
            let expected = 1.0 / (cols - 1) as f32;
            assert!((y[0] - expected).abs() < 1e-6, "{isa:?} {cols} {}", y[0]);
            assert!(y[cols..2 * cols].iter().all(|v| *v == 0.0), "{isa:?} {cols}");
            assert_eq!(y[2 * cols + 3], 0.0, "{isa:?} {cols}");
            assert!(y[2 * cols].is_nan() && y[2 * cols + 1].is_nan(), "{isa:?} {cols}");
            assert!(y[3 * cols..].iter().all(|v| v.is_nan()), "{isa:?} {cols}");
        }
        // More rows than columns: the first rows of a causal softmax are hidden entirely.
        let y = map(&e, ops::causal_softmax(5, 3, DType::F32), &[0.0; 15]);
        assert_eq!(y[..6], [0.0; 6], "{isa:?}");
        assert_eq!(y[6..9], [1.0, 0.0, 0.0], "{isa:?}");
        assert_eq!(y[9..12], [0.5, 0.5, 0.0], "{isa:?}");
    }
}

#[test]
fn empty_rows_and_no_rows() {
    for isa in isas() {
        let e = engine(isa);
        let reduce = |op: fn(u64, u64, DType) -> ops::Op| {
            let compiled = row_op(&e, op(3, 0, DType::F32).fixed());
            let (x, mut y) = ([0f32; 0], [9.0f32; 3]);
            compiled.run(&[&x], &mut y).unwrap();
            y
        };
        assert_eq!(reduce(ops::row_sum), [0.0; 3], "{isa:?}");
        assert_eq!(reduce(ops::row_max), [-INF; 3], "{isa:?}");
        assert!(reduce(ops::row_mean).iter().all(|v| v.is_nan()), "{isa:?}");
        assert!(map(&e, ops::softmax(0, 7, DType::F32), &[]).is_empty(), "{isa:?}");
    }
}

/// Runs a fixed product of m×n×k with A and B given, C as it is.
fn product(e: &Engine, op: ops::Op, a: &[f32], b: &[f32], c: &mut [f32]) {
    row_op(e, op).run(&[&a, &b], &mut &mut c[..]).unwrap();
}

#[test]
fn factors_of_products() {
    for isa in isas() {
        let e = engine(isa);
        let (m, n, k) = (5usize, 19, 7);
        let gemm = || ops::gemm(m as u64, n as u64, k as u64, DType::F32);
        let (a, b) = (vec![1.0f32; m * k], vec![2.0f32; k * n]);
        let nan = |len: usize| vec![NAN; len];

        let mut c = nan(m * n);
        product(&e, gemm(), &a, &b, &mut c);
        assert!(c.iter().all(|v| *v == 14.0), "{isa:?}: beta = 0 reads C");
        let mut c = vec![3.0f32; m * n];
        product(&e, gemm().alpha(0.0).beta(2.0), &nan(m * k), &nan(k * n), &mut c);
        assert!(c.iter().all(|v| *v == 6.0), "{isa:?}: alpha = 0 reads A or B");
        let mut c = nan(m * n);
        product(&e, gemm().alpha(0.0), &nan(m * k), &nan(k * n), &mut c);
        assert!(c.iter().all(|v| *v == 0.0), "{isa:?}: both zero");
        let mut c = vec![3.0f32; m * n];
        product(&e, gemm().alpha(0.5).beta(1.0), &a, &b, &mut c);
        assert!(c.iter().all(|v| *v == 10.0), "{isa:?}: {c:?}");

        let empty = || ops::gemm(m as u64, n as u64, 0, DType::F32);
        let mut c = vec![3.0f32; m * n];
        product(&e, empty().beta(0.5), &[], &[], &mut c);
        assert!(c.iter().all(|v| *v == 1.5), "{isa:?}: K = 0 gives beta*C");
        let mut c = nan(m * n);
        product(&e, empty(), &[], &[], &mut c);
        assert!(c.iter().all(|v| *v == 0.0), "{isa:?}: K = 0 without beta");

        // A NaN in A spoils its row, one in B its column.
        let mut spoiled = a.clone();
        spoiled[2 * k + 3] = NAN;
        let mut c = vec![9.0f32; m * n];
        product(&e, gemm(), &spoiled, &b, &mut c);
        for (i, v) in c.iter().enumerate() {
            assert_eq!(v.is_nan(), i / n == 2, "{isa:?} {i}");
        }
        let mut spoiled = b.clone();
        spoiled[3 * n + 18] = NAN;
        let mut c = vec![9.0f32; m * n];
        product(&e, gemm().epilogue(&[EpilogueStep::Relu]), &a, &spoiled, &mut c);
        for (i, v) in c.iter().enumerate() {
            assert_eq!(v.is_nan(), i % n == 18, "{isa:?} {i}");
        }
    }
}

#[test]
fn half_types_round_once_at_the_end() {
    for isa in isas() {
        let e = engine(isa);
        // 2048 + 1 is no f16, but the sum is taken in f32 and rounded once.
        let x: Vec<f16> = [2048.0, 1.0, 1.0].map(f16::from_f64).to_vec();
        let mut y = [f16::ZERO];
        row_op(&e, ops::row_sum(1, 3, DType::F16)).run(&[&x], &mut y).unwrap();
        assert_eq!(y[0].to_f64(), 2050.0, "{isa:?}");
        let x: Vec<bf16> = [256.0, 1.0, 1.0].map(bf16::from_f64).to_vec();
        let mut y = [bf16::ZERO];
        row_op(&e, ops::row_sum(1, 3, DType::BF16)).run(&[&x], &mut y).unwrap();
        assert_eq!(y[0].to_f64(), 258.0, "{isa:?}");
    }
}
