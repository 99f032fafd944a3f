//! What the ops compute, against formulas written out here: values, masks, NaN and empty sizes.

use std::collections::BTreeMap;

use tilewright_ir::interp::{Bindings, run};
use tilewright_ir::ops::{self, EpilogueStep, OpRequest, Trans};
use tilewright_ir::{DType, Program};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

/// Full-mantissa numbers in [−1, 1) from a seed (SplitMix64).
fn random(seed: u64, count: usize) -> Vec<f64> {
    let mut state = seed;
    (0..count)
        .map(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 * f64::powi(2.0, -52) - 1.0
        })
        .collect()
}

/// Runs a program in f64 and gives its only output.
fn eval(program: &Program, bindings: Bindings<'_>) -> Vec<f64> {
    let outputs = run(program, &bindings).unwrap_or_else(|e| panic!("{}: {e}", program.name));
    assert_eq!(outputs.len(), 1);
    outputs[0].packed()
}

/// Runs a row op on named inputs.
fn rows(op: &str, shape: [usize; 2], inputs: &[(&str, &[f64])]) -> Vec<f64> {
    let program = ops::build(op, &OpRequest::generic(DType::F64)).unwrap();
    let mut bindings = Bindings::new().dim("rows", shape[0] as u64).dim("cols", shape[1] as u64);
    for (name, data) in inputs {
        bindings = bindings.tensor(name, data.to_vec());
    }
    eval(&program, bindings)
}

/// Equal, NaN included, within the rounding of a few f64 operations per element.
#[track_caller]
fn assert_close(got: &[f64], want: &[f64], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (at, (g, w)) in got.iter().zip(want).enumerate() {
        let same =
            (g.is_nan() && w.is_nan()) || g == w || (g - w).abs() <= 1e-13 * w.abs().max(1.0);
        assert!(same, "{what}: element {at} is {g}, not {w}");
    }
}

fn max(row: &[f64]) -> f64 {
    row.iter()
        .fold(f64::NEG_INFINITY, |m, x| if m.is_nan() || x.is_nan() { NAN } else { m.max(*x) })
}

fn softmax(row: &[f64]) -> Vec<f64> {
    let m = max(row);
    let e: Vec<f64> = row.iter().map(|x| (x - m).exp()).collect();
    let s: f64 = e.iter().sum();
    e.iter().map(|e| e / s).collect()
}

/// Softmax over the kept columns only, 0 elsewhere.
fn softmax_of_kept(row: &[f64], keep: impl Fn(usize) -> bool) -> Vec<f64> {
    let kept: Vec<f64> =
        row.iter().enumerate().filter(|(j, _)| keep(*j)).map(|(_, x)| *x).collect();
    let mut values = softmax(&kept).into_iter();
    (0..row.len()).map(|j| if keep(j) { values.next().unwrap() } else { 0.0 }).collect()
}

fn normalise(row: &[f64]) -> Vec<f64> {
    let n = row.len() as f64;
    let mean = row.iter().sum::<f64>() / n;
    let centred: Vec<f64> = row.iter().map(|x| x - mean).collect();
    let deviation = (centred.iter().map(|c| c * c).sum::<f64>() / n + 1e-5).sqrt();
    centred.iter().map(|c| c / deviation).collect()
}

fn gelu(x: f64) -> f64 {
    // erf by its Maclaurin series, which converges fast for |x| < 2.
    let z = x * std::f64::consts::FRAC_1_SQRT_2;
    let mut term = z;
    let mut sum = z;
    for n in 1..60 {
        term *= -z * z / n as f64;
        sum += term / (2 * n + 1) as f64;
    }
    0.5 * x * (1.0 + sum * 2.0 / std::f64::consts::PI.sqrt())
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

type Inputs<'a> = Vec<(&'a str, &'a [f64])>;

/// Op, inputs, expected output.
type RowCase<'a> = (&'a str, Inputs<'a>, Vec<f64>);

#[test]
fn row_ops() {
    for [r, c] in [[3, 7], [1, 1], [2, 64], [5, 0], [0, 4], [0, 0]] {
        let (x, z) = (random(1, r * c), random(2, r * c));
        let (gamma, beta) = (random(3, c), random(4, c));
        let mask: Vec<f64> = random(5, r * c).iter().map(|x| f64::from((x * 2.0) as i32)).collect();
        let label: Vec<f64> = (0..r).map(|i| ((i * 13 + 7) % c.max(1)) as f64).collect();
        let per_row = |f: &dyn Fn(usize, &[f64]) -> Vec<f64>| -> Vec<f64> {
            (0..r).flat_map(|i| f(i, &x[i * c..(i + 1) * c])).collect()
        };
        let each = |f: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
            x.iter().zip(&z).map(|(x, z)| f(*x, *z)).collect()
        };
        let x_only: Inputs<'_> = vec![("x", &x)];
        let sum = |row: &[f64]| row.iter().sum::<f64>();
        let lse =
            |row: &[f64]| sum(&row.iter().map(|x| (x - max(row)).exp()).collect::<Vec<_>>()).ln();
        let affine = |i: usize, y: f64| y * gamma[i] + beta[i];
        let cases: Vec<RowCase<'_>> = vec![
            ("softmax", x_only.clone(), per_row(&|_, row| softmax(row))),
            (
                "masked_softmax",
                vec![("x", &x), ("mask", &mask)],
                per_row(&|i, row| softmax_of_kept(row, |j| mask[i * c + j] != 0.0)),
            ),
            (
                "causal_softmax",
                x_only.clone(),
                per_row(&|i, row| softmax_of_kept(row, |j| j + r <= i + c)),
            ),
            (
                "log_softmax",
                x_only.clone(),
                per_row(&|_, row| row.iter().map(|x| x - max(row) - lse(row)).collect()),
            ),
            (
                "rmsnorm",
                vec![("x", &x), ("gamma", &gamma)],
                per_row(&|_, row| {
                    let sq: f64 = row.iter().map(|x| x * x).sum();
                    let d = (sq / c as f64 + 1e-5).sqrt();
                    row.iter().zip(&gamma).map(|(x, g)| x / d * g).collect()
                }),
            ),
            (
                "layernorm",
                vec![("x", &x), ("gamma", &gamma), ("beta", &beta)],
                per_row(&|_, row| {
                    normalise(row).into_iter().enumerate().map(|(j, y)| affine(j, y)).collect()
                }),
            ),
            (
                "residual_layernorm",
                vec![("x", &x), ("residual", &z)],
                per_row(&|i, row| {
                    let sum = row.iter().zip(&z[i * c..]).map(|(a, b)| a + b);
                    normalise(&sum.collect::<Vec<_>>())
                }),
            ),
            (
                "cross_entropy",
                vec![("x", &x), ("label", &label)],
                per_row(&|i, row| {
                    let picked = row.get(label[i] as usize).copied().unwrap_or(NAN);
                    vec![lse(row) + max(row) - picked]
                }),
            ),
            ("row_sum", x_only.clone(), per_row(&|_, row| vec![sum(row)])),
            ("row_max", x_only.clone(), per_row(&|_, row| vec![max(row)])),
            ("row_mean", x_only.clone(), per_row(&|_, row| vec![sum(row) / c as f64])),
            (
                "gemv",
                vec![("a", &x), ("x", &gamma)],
                per_row(&|_, row| vec![row.iter().zip(&gamma).map(|(a, b)| a * b).sum()]),
            ),
            ("add", vec![("a", &x), ("b", &z)], each(&|x, z| x + z)),
            ("mul", vec![("a", &x), ("b", &z)], each(&|x, z| x * z)),
            ("relu", x_only.clone(), each(&|x, _| x.max(0.0))),
            ("gelu", x_only.clone(), each(&|x, _| gelu(x))),
            ("silu", x_only.clone(), each(&|x, _| silu(x))),
            ("gelu_residual", vec![("x", &x), ("residual", &z)], each(&|x, z| gelu(x) + z)),
            ("swiglu", vec![("x", &x), ("gate", &z)], each(&|x, z| silu(x) * z)),
        ];
        let products = ["gemm", "bgemm"];
        assert_eq!(cases.len() + products.len(), ops::catalog().len());
        for (op, inputs, want) in cases {
            assert_close(&rows(op, [r, c], &inputs), &want, &format!("{op} {r}x{c}"));
        }
    }
}

/// NaN in gives NaN out, in the rows that hold it and nowhere else.
#[test]
fn nan_propagates() {
    let mut x = random(1, 15);
    x[7] = NAN;
    let ones = vec![1.0; 15];
    let gamma = vec![1.0; 5];
    let label = vec![0.0; 3];
    let inputs: BTreeMap<&str, &[f64]> = BTreeMap::from([
        ("x", x.as_slice()),
        ("a", &x),
        ("b", &ones),
        ("residual", &ones),
        ("gate", &ones),
        ("mask", &ones),
        ("gamma", &gamma),
        ("beta", &gamma),
        ("label", &label),
    ]);
    for op in ops::catalog() {
        let program = op.build(&OpRequest::generic(DType::F64)).unwrap();
        if op.form != ops::ShapeForm::Rows {
            continue;
        }
        let mut named = Vec::new();
        for (_, tensor) in program.tensors.iter() {
            match (op.name, tensor.name.as_str()) {
                ("gemv", "x") => named.push(("x", gamma.as_slice())),
                (_, name) => named.extend(inputs.get_key_value(name).map(|(k, v)| (*k, *v))),
            }
        }
        let y = rows(op.name, [3, 5], &named);
        let width = y.len() / 3;
        let elementwise = matches!(
            op.name,
            "add" | "mul" | "relu" | "gelu" | "silu" | "gelu_residual" | "swiglu"
        );
        for (at, y) in y.iter().enumerate() {
            // Row 1 of a causal softmax of 3×5 keeps columns 0 to 3 and zeroes the last.
            let hidden = op.name == "causal_softmax" && at == 9;
            let nan = if elementwise { at == 7 } else { at / width == 1 && !hidden };
            assert_eq!(y.is_nan(), nan, "{} element {at}: {y}", op.name);
        }
    }
}

#[test]
fn masks_hide() {
    let x = [
        1.0, NAN, 2.0, /**/ NAN, NAN, INF, /**/ -INF, -INF, 3.0, /**/ 1.0, NAN, 1.0,
    ];
    let mask =
        [1.0, 0.0, -5.0, /**/ 0.0, 0.0, 0.0, /**/ 1.0, 1.0, 0.0, /**/ 1.0, 1.0, 0.0];
    let y = rows("masked_softmax", [4, 3], &[("x", &x), ("mask", &mask)]);
    let s = softmax(&[1.0, 2.0]);
    let want = [
        s[0], 0.0, s[1], /**/ 0.0, 0.0, 0.0, /**/ NAN, NAN, 0.0, /**/ NAN, NAN, 0.0,
    ];
    assert_close(&y, &want, "masked");

    // Three rows, two columns: row 0 is hidden, row 1 keeps one column, row 2 both.
    let y = rows("causal_softmax", [3, 2], &[("x", &[NAN, NAN, 4.0, NAN, 0.0, 0.0])]);
    assert_close(&y, &[0.0, 0.0, 1.0, 0.0, 0.5, 0.5], "causal");
}

#[test]
fn infinities() {
    let y = rows("softmax", [3, 2], &[("x", &[-INF, -INF, -INF, 5.0, INF, 1.0])]);
    assert_close(&y, &[NAN, NAN, 0.0, 1.0, NAN, NAN], "softmax");
    let y = rows("log_softmax", [2, 2], &[("x", &[-INF, -INF, -INF, 5.0])]);
    assert_close(&y, &[NAN, NAN, -INF, 0.0], "log_softmax");
    // Far apart: shifted by the maximum, nothing overflows.
    let y = rows("softmax", [1, 3], &[("x", &[1000.0, -1000.0, 1000.0])]);
    assert_close(&y, &[0.5, 0.0, 0.5], "softmax");
    let y = rows("relu", [1, 4], &[("x", &[-INF, INF, -0.0, NAN])]);
    assert_close(&y, &[0.0, INF, 0.0, NAN], "relu");
}

/// A label outside the row reads nothing and gives NaN.
#[test]
fn labels_outside() {
    let x = random(1, 8);
    let y = rows("cross_entropy", [4, 2], &[("x", &x), ("label", &[0.0, 2.0, -1.0, 1.0])]);
    assert_eq!(y.iter().map(|y| y.is_nan()).collect::<Vec<_>>(), [false, true, true, false]);
}

#[test]
fn empty_rows() {
    assert_eq!(rows("row_sum", [2, 0], &[("x", &[])]), [0.0, 0.0]);
    assert_eq!(rows("row_max", [2, 0], &[("x", &[])]), [-INF, -INF]);
    assert!(rows("row_mean", [2, 0], &[("x", &[])]).iter().all(|y| y.is_nan()));
}

/// A padded row stride: the gaps are never read.
#[test]
fn padded_rows() {
    let request = OpRequest { strided: true, ..OpRequest::generic(DType::F64) };
    let program = ops::build("softmax", &request).unwrap();
    let packed = random(1, 6);
    let padded = [&packed[..3], &[NAN, NAN], &packed[3..]].concat();
    let y = eval(
        &program,
        Bindings::new()
            .dim("rows", 2)
            .dim("cols", 3)
            .dim("ldx", 5)
            .dim("ldy", 4)
            .tensor("x", padded),
    );
    assert_close(&y, &rows("softmax", [2, 3], &[("x", &packed)]), "padded");
}

struct Product {
    trans: Trans,
    alpha: f64,
    beta: f64,
    epilogue: Vec<EpilogueStep>,
    shape: [usize; 4],
    blocks: [u64; 3],
}

impl Product {
    fn plain(shape: [usize; 4]) -> Self {
        let epilogue = Vec::new();
        Product { trans: Trans::Nn, alpha: 1.0, beta: 0.0, epilogue, shape, blocks: [64, 64, 64] }
    }

    /// The op's result and the formula's.
    fn both(&self, poison: &[&str]) -> (Vec<f64>, Vec<f64>) {
        let [batch, m, n, k] = self.shape;
        let request = OpRequest {
            trans: self.trans,
            alpha: self.alpha,
            beta: self.beta,
            epilogue: self.epilogue.clone(),
            ..OpRequest::generic(DType::F64)
        };
        let program = ops::build("bgemm", &request).unwrap();
        let data = |name: &str, seed, count| {
            if poison.contains(&name) { vec![NAN; count] } else { random(seed, count) }
        };
        let (a, b) = (data("a", 1, batch * m * k), data("b", 2, batch * k * n));
        let (c, residual) = (data("c", 3, batch * m * n), random(4, batch * m * n));
        let bias = random(5, n);
        let mut bindings = Bindings::new();
        for (name, size) in ["batch", "m", "n", "k"].into_iter().zip(self.shape) {
            bindings = bindings.dim(name, size as u64);
        }
        for (name, size) in ["bm", "bn", "bk"].into_iter().zip(self.blocks) {
            if program.dim(name).is_some() {
                bindings = bindings.dim(name, size);
            }
        }
        for (_, scalar) in program.scalars.iter() {
            let value = match scalar.name.as_str() {
                "alpha" => self.alpha,
                "beta" => self.beta,
                _ => -1.5,
            };
            bindings = bindings.scalar(&scalar.name, value);
        }
        for (name, values) in
            [("a", &a), ("b", &b), ("c", &c), ("residual", &residual), ("bias", &bias)]
        {
            let readable = |t: &tilewright_ir::program::Tensor| {
                t.name == name && t.access != tilewright_ir::program::Access::Out
            };
            if program.tensors.iter().any(|(_, t)| readable(t)) {
                bindings = bindings.tensor(name, values.clone());
            }
        }
        let mut want = Vec::new();
        for p in 0..batch {
            for i in 0..m {
                for (j, bias) in bias.iter().enumerate() {
                    let at = |l: usize| {
                        let (a_at, b_at) = (
                            if self.trans.a() { l * m + i } else { i * k + l },
                            if self.trans.b() { j * k + l } else { l * n + j },
                        );
                        a[p * m * k + a_at] * b[p * k * n + b_at]
                    };
                    let place = (p * m + i) * n + j;
                    let mut y = 0.0;
                    if self.alpha != 0.0 {
                        y += self.alpha * (0..k).map(at).sum::<f64>();
                    }
                    if self.beta != 0.0 {
                        y += self.beta * c[place];
                    }
                    for step in &self.epilogue {
                        y = match step {
                            EpilogueStep::Scale => -1.5 * y,
                            EpilogueStep::Bias => y + bias,
                            EpilogueStep::Residual => y + residual[place],
                            EpilogueStep::Relu => y.max(0.0),
                            EpilogueStep::Gelu => gelu(y),
                            EpilogueStep::Silu => silu(y),
                        };
                    }
                    want.push(y);
                }
            }
        }
        (eval(&program, bindings), want)
    }
}

#[test]
fn products() {
    use EpilogueStep::*;
    let shapes =
        [[1, 1, 1, 1], [2, 7, 5, 9], [1, 8, 8, 8], [3, 4, 0, 2], [2, 3, 2, 0], [0, 2, 2, 2]];
    for shape in shapes {
        for trans in Trans::ALL {
            for blocks in [[64, 64, 64], [4, 2, 3]] {
                let (got, want) = Product { trans, blocks, ..Product::plain(shape) }.both(&[]);
                assert_close(&got, &want, &format!("{trans} {shape:?} by {blocks:?}"));
            }
        }
        for (alpha, beta) in
            [(1.0, 1.0), (0.5, 0.0), (0.5, 2.0), (0.0, 1.0), (0.0, 0.5), (0.0, 0.0)]
        {
            for epilogue in [vec![], vec![Bias, Relu], vec![Scale, Residual, Silu]] {
                let what = format!("{shape:?} {alpha} {beta} {epilogue:?}");
                let blocks = [4, 4, 4];
                let product = Product { alpha, beta, epilogue, blocks, ..Product::plain(shape) };
                let (got, want) = product.both(&[]);
                assert_close(&got, &want, &what);
            }
        }
    }
    // The steps run in the order given.
    for epilogue in [vec![Relu, Bias], vec![Bias, Relu], vec![Bias, Gelu, Residual]] {
        let what = format!("{epilogue:?}");
        let (got, want) = Product { epilogue, ..Product::plain([1, 3, 4, 2]) }.both(&[]);
        assert_close(&got, &want, &what);
    }
}

/// Factors of 0 keep poison out; other factors let it through.
#[test]
fn zero_factors_read_nothing() {
    let shape = [1, 3, 4, 5];
    let (got, want) = Product::plain(shape).both(&["c"]);
    assert_close(&got, &want, "beta 0");
    let (got, _) = Product { alpha: 0.0, beta: 1.0, ..Product::plain(shape) }.both(&["a", "b"]);
    assert!(got.iter().all(|y| !y.is_nan()), "alpha 0");
    for poison in ["a", "b", "c"] {
        let (got, _) = Product { beta: 1.0, ..Product::plain(shape) }.both(&[poison]);
        assert!(got.iter().all(|y| y.is_nan()), "{poison}");
    }
}

/// A library of other dtypes means the same: in oracle mode only the inputs differ.
#[test]
fn dtypes_agree() {
    let x: Vec<f64> = random(1, 12).iter().map(|x| DType::BF16.round(*x)).collect();
    for dtype in ops::FLOATS {
        // bf16 values are exact in f32 and f64; f16 has fewer exponents but more digits.
        let program = ops::build("softmax", &OpRequest::generic(dtype)).unwrap();
        let x: Vec<f64> = x.iter().map(|x| dtype.round(*x)).collect();
        let y =
            eval(&program, Bindings::new().dim("rows", 3).dim("cols", 4).tensor("x", x.clone()));
        let want: Vec<f64> = x.chunks(4).flat_map(softmax).collect();
        assert_close(&y, &want, dtype.name());
    }
}
