use super::*;
use crate::text;
use crate::types::DType;

const INF: f64 = f64::INFINITY;

fn program(source: &str) -> Program {
    text::read(source).unwrap_or_else(|e| panic!("{source}\n{e}"))
}

/// A program over one row of `n` elements, with inputs `x` and `w` and output `y`.
fn row(body: &str) -> Program {
    program(&format!(
        "program p {{\ndim n: symbolic max 1000\nin x: f32[n]\nin w: f32[n]\nout y: f32[n]\n\
         axis j: n\ngrid r: 1 step 1\n%x = load x[:j]\n%w = load w[:j]\n{body}\n}}\n"
    ))
}

fn run_row(body: &str, x: &[f64], w: &[f64]) -> Vec<f64> {
    let p = row(body);
    let bindings = Bindings::new().dim("n", x.len() as u64).tensor("x", x).tensor("w", w);
    run(&p, &bindings).unwrap_or_else(|e| panic!("{e}"))[0].packed()
}

const SOFTMAX: &str = "\
program softmax {
  dim rows: symbolic max 1000
  dim cols: symbolic max 100000
  dim ldx: symbolic max 100000
  in x: f32[rows, cols] strides [ldx, 1]
  out y: f32[rows, cols]
  axis j: cols
  grid r: rows step 1
  %x = load x[r, :j]
  %m = reduce max %x over j
  %mb = broadcast %m to [j]
  %d = sub %x, %mb
  %e = exp %d
  %s = reduce add %e over j
  %sb = broadcast %s to [j]
  %y = div %e, %sb
  store y[r, :j], %y
}
";

fn softmax(rows: u64, cols: u64, x: &[f64]) -> Vec<f64> {
    let bindings =
        Bindings::new().dim("rows", rows).dim("cols", cols).dim("ldx", cols).tensor("x", x);
    run(&program(SOFTMAX), &bindings).unwrap_or_else(|e| panic!("{e}"))[0].packed()
}

#[test]
fn softmax_of_a_row() {
    let y = softmax(2, 3, &[0.0, 1.0, 2.0, 5.0, 5.0, 5.0]);
    let total = 1.0 + 1f64.exp() + 2f64.exp();
    for (y, e) in y.iter().zip([1.0, 1f64.exp(), 2f64.exp()]) {
        assert!((y - e / total).abs() < 4e-16);
    }
    assert_eq!(y[3..], [1.0 / 3.0; 3]);
}

#[test]
fn special_rows_of_softmax() {
    assert!(softmax(1, 3, &[-INF; 3]).iter().all(|y| y.is_nan()));
    assert!(softmax(1, 3, &[0.0, f64::NAN, 1.0]).iter().all(|y| y.is_nan()));
    assert_eq!(softmax(1, 2, &[-INF, 3.0]), [0.0, 1.0]);
    assert_eq!(softmax(0, 3, &[]), [0.0; 0]);
    assert_eq!(softmax(3, 0, &[]), [0.0; 0]);
}

#[test]
fn strided_inputs_ignore_what_lies_between_rows() {
    let p = program(SOFTMAX);
    let x = [1.0, 2.0, 0.1, 3.0, 3.0];
    let bindings = Bindings::new().dim("rows", 2).dim("cols", 2).dim("ldx", 3).tensor("x", &x[..]);
    let out = run(&p, &bindings).unwrap();
    assert_eq!(out[0].data[2..], [0.5, 0.5]);
    // 0.1 is no f32 value, but it is in the gap. In a row it is an error.
    let x = [1.0, 0.1, 0.0, 3.0, 3.0];
    let bindings = Bindings::new().dim("rows", 2).dim("cols", 2).dim("ldx", 3).tensor("x", &x[..]);
    let error = run(&p, &bindings).unwrap_err();
    assert!(matches!(error, InterpError::InputValue { offset: 1, .. }), "{error}");
}

#[test]
fn a_hidden_row_is_zero_and_a_masked_nan_does_not_count() {
    let masked = "%zero = const 0.0 f32\n%z = broadcast %zero to [j]\n%keep = ne %w, %z\n\
                  %ninf = const -inf f32\n%ni = broadcast %ninf to [j]\n\
                  %v = select %keep, %x, %ni\n%m = reduce max %v over j\n%mb = broadcast %m to [j]\n\
                  %d = sub %x, %mb\n%e = exp %d\n%k = select %keep, %e, %z\n\
                  %s = reduce add %k over j\n%sb = broadcast %s to [j]\n%q = div %k, %sb\n\
                  %o = select %keep, %q, %z\nstore y[:j], %o";
    assert_eq!(run_row(masked, &[1.0, f64::NAN, 1.0], &[1.0, 0.0, 1.0]), [0.5, 0.0, 0.5]);
    assert_eq!(run_row(masked, &[1.0, 2.0], &[0.0, 0.0]), [0.0, 0.0]);
    assert!(run_row(masked, &[-INF, -INF], &[1.0, 1.0]).iter().all(|y| y.is_nan()));
}

#[test]
fn folds_of_an_empty_axis() {
    let source = "program p {\ndim n: symbolic max 10\nin x: f32[n]\nout y: f32[4]\naxis j: n\n\
                  grid r: 1 step 1\n%x = load x[:j]\n%s = reduce add %x over j\n\
                  %m = reduce max %x over j\n%n = size n\n%f = cast %n to f32\n%mean = div %s, %f\n\
                  %p = reduce mul %x over j\nstore y[0], %s\nstore y[1], %m\nstore y[2], %mean\n\
                  store y[3], %p\n}\n";
    let bindings = Bindings::new().dim("n", 0).tensor("x", vec![]);
    let y = run(&program(source), &bindings).unwrap()[0].packed();
    assert_eq!((y[0], y[1], y[3]), (0.0, -INF, 1.0));
    assert!(y[2].is_nan());
}

#[test]
fn rounded_mode_rounds_each_result() {
    let p = row("%a = add %x, %w\n%b = sub %a, %x\nstore y[:j], %b");
    let (x, w) = ([16777216.0], [1.0]);
    let bindings = Bindings::new().dim("n", 1).tensor("x", &x[..]).tensor("w", &w[..]);
    assert_eq!(run(&p, &bindings).unwrap()[0].data, [1.0]);
    let options = Options { mode: Mode::Rounded, ..Options::default() };
    assert_eq!(run_with(&p, &bindings, &options).unwrap()[0].data, [0.0]);
}

#[test]
fn casts() {
    let body = "%h = cast %x to f16\n%i = cast %x to i32\n%f = cast %i to f32\n%g = cast %h to f32\n\
                %d = sub %g, %f\nstore y[:j], %d";
    // The oracle keeps what f16 would drop; i32 truncates.
    let x = [2049.5, -3.75];
    assert_eq!(run_row(body, &x, &[0.0; 2]), [0.5, -0.75]);
    let p = row(body);
    let options = Options { mode: Mode::Rounded, ..Options::default() };
    let bindings = Bindings::new().dim("n", 2).tensor("x", &x[..]).tensor("w", &[0.0, 0.0][..]);
    assert_eq!(run_with(&p, &bindings, &options).unwrap()[0].data, [1.0, -0.75]);
}

#[test]
fn loops_carry_several_values_at_once() {
    // Fibonacci: both next values are read before either changes. An empty loop gives the inits.
    let source = "program p {\ndim n: symbolic max 100\nout y: f32[2]\n\
                  grid r: 1 step 1\n%a0 = const 0.0 f32\n%b0 = const 1.0 f32\n\
                  %a, %b = for serial i in n step 1 carry %p = %a0, %q = %b0 {\n\
                  %s = add %p, %q\nyield %q, %s\n}\nstore y[0], %a\nstore y[1], %b\n}\n";
    let p = program(source);
    for (n, want) in [(0, [0.0, 1.0]), (1, [1.0, 1.0]), (10, [55.0, 89.0])] {
        assert_eq!(run(&p, &Bindings::new().dim("n", n)).unwrap()[0].data, want);
    }
    // A next value from outside the loop survives it.
    let source = source.replace("yield %q, %s", "yield %b0, %s");
    let y = run(&program(&source), &Bindings::new().dim("n", 3)).unwrap()[0].data.clone();
    assert_eq!(y, [1.0, 3.0]);
}

#[test]
fn a_carried_value_may_come_back_with_its_axes_in_another_order() {
    let source = "program p {\nin x: f32[2, 3]\nout y: f32[2, 3]\naxis i: 2\naxis j: 3\n\
                  grid r: 1 step 1\n%x = load x[:i, :j]\n%t: f32[j, i] = neg %x\n\
                  %o = for serial k in 3 step 1 carry %c = %x {\n%n: f32[j, i] = add %c, %c\n\
                  yield %n\n}\n%s = add %o, %t\nstore y[:i, :j], %s\n}\n";
    let x: Vec<f64> = (0..6).map(f64::from).collect();
    let y = run(&program(source), &Bindings::new().tensor("x", &x[..])).unwrap()[0].packed();
    assert_eq!(y, x.iter().map(|x| 7.0 * x).collect::<Vec<_>>());
}

#[test]
fn transposes_diagonals_and_reindexed_axes() {
    let source = "program p {\nin x: f32[3, 3]\nout y: f32[3, 3]\nout d: f32[3]\naxis i: 3\naxis j: 3\n\
                  grid r: 1 step 1\n%x = load x[:i, :j]\n%t = reindex %x [i -> j, j -> i]\n\
                  store y[:i, :j], %t\n%d = load x[:i, :i]\nstore d[:i], %d\n}\n";
    let x: Vec<f64> = (0..9).map(f64::from).collect();
    let out = run(&program(source), &Bindings::new().tensor("x", &x[..])).unwrap();
    assert_eq!(out[0].data, [0.0, 3.0, 6.0, 1.0, 4.0, 7.0, 2.0, 5.0, 8.0]);
    assert_eq!(out[1].data, [0.0, 4.0, 8.0]);
}

#[test]
fn gathers_fill_outside() {
    let source = "program p {\nin x: f32[2, 3]\nin lab: i32[4]\nout y: f32[4, 3]\naxis i: 4\naxis j: 3\n\
                  grid r: 1 step 1\n%l = load lab[:i]\n%g = load x[%l, :j] fill 9.0\n\
                  store y[:i, :j], %g\n}\n";
    let x: Vec<f64> = (0..6).map(f64::from).collect();
    let lab = [1.0, -1.0, 0.0, 2.0];
    let bindings = Bindings::new().tensor("x", &x[..]).tensor("lab", &lab[..]);
    let y = run(&program(source), &bindings).unwrap()[0].packed();
    assert_eq!(y, [3.0, 4.0, 5.0, 9.0, 9.0, 9.0, 0.0, 1.0, 2.0, 9.0, 9.0, 9.0]);
    let error = run(&program(&source.replace(" fill 9.0", "")), &bindings).unwrap_err();
    assert!(matches!(error, InterpError::OutOfBounds { dim: 0, position: -1, size: 2, .. }));
    assert!(error.to_string().starts_with("9:1: coordinate 0 of `x` is -1"), "{error}");
}

#[test]
fn tiles_that_stick_out_are_filled_and_clipped() {
    let source = "program p {\ndim n: symbolic max 100\nin x: f32[n]\nout y: f32[n]\naxis j: 4\n\
                  grid b: n step 4\n%x = load x[b - 1:j] fill 7.0\nstore y[b:j], %x clip\n}\n";
    let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let bindings = Bindings::new().dim("n", 6).tensor("x", &x[..]);
    assert_eq!(run(&program(source), &bindings).unwrap()[0].data, [7.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    // Without the clip the store leaves the tensor; without the fill the load does.
    let error = run(&program(&source.replace(" clip", "")), &bindings).unwrap_err();
    assert!(matches!(error, InterpError::OutOfBounds { position: 6, size: 6, .. }), "{error}");
    let error = run(&program(&source.replace(" fill 7.0", "")), &bindings).unwrap_err();
    assert!(matches!(error, InterpError::OutOfBounds { position: -1, .. }), "{error}");
}

#[test]
fn outputs_are_written_exactly_once() {
    let source = "program p {\ndim n: symbolic max 100\nout y: f32[n, 3]\naxis j: 2\n\
                  grid b: n step 1\n%c = const 1.0 f32\n%t = broadcast %c to [j]\n\
                  store y[b, 0:j], %t\nstore y[b, 2], %c\n}\n";
    let bindings = Bindings::new().dim("n", 4);
    assert_eq!(run(&program(source), &bindings).unwrap()[0].data, [1.0; 12]);
    let error = run(&program(&source.replace("y[b, 2]", "y[b, 1]")), &bindings).unwrap_err();
    let InterpError::WrittenTwice { tensor, index, .. } = &error else { panic!("{error}") };
    assert_eq!((tensor.as_str(), index[1]), ("y", 1));
    let error = run(&program(&source.replace("store y[b, 2], %c\n", "")), &bindings).unwrap_err();
    let hole = InterpError::Hole { tensor: "y".into(), count: 4, index: vec![0, 2] };
    assert_eq!(error, hole);
    assert_eq!(error.to_string(), "4 elements of `y` are never written, the first at [0, 2]");
}

#[test]
fn in_out_tensors_belong_to_one_instance() {
    let source = "program p {\ndim n: symbolic max 100\ninout c: f32[n]\nscalar beta: f32 nonzero\n\
                  grid b: n step 1\n%c = load c[b]\n%beta = scalar beta\n%v = mul %c, %beta\n\
                  store c[b], %v\n}\n";
    let p = program(source);
    let c = [1.0, 2.0, 3.0];
    let bindings = Bindings::new().dim("n", 3).tensor("c", &c[..]);
    let out = run(&p, &bindings.clone().scalar("beta", 2.0)).unwrap();
    assert_eq!(out[0].data, [2.0, 4.0, 6.0]);
    let error = run(&p, &bindings.clone().scalar("beta", 0.0)).unwrap_err();
    assert_eq!(error, InterpError::ZeroScalar { name: "beta".into() });
    let error =
        run(&program(&source.replace("load c[b]", "load c[0]")), &bindings.scalar("beta", 2.0));
    assert!(matches!(error, Err(InterpError::Shared { .. })), "{error:?}");
}

#[test]
fn preconditions_are_typed_errors() {
    let p = program(
        "program p {\ndim n: symbolic divisor 4 max 100\ndim s: symbolic max 8\nin x: f16[n]\n\
         out y: f16[n]\nscalar a: i32\naxis j: s\ngrid b: n step s\n%x = load x[b:j]\n\
         store y[b:j], %x\n}\n",
    );
    let x = [1.0; 8];
    let base = || Bindings::new().dim("n", 8).dim("s", 2).scalar("a", 1.0).tensor("x", &x[..]);
    assert!(run(&p, &base()).is_ok());
    let cases: Vec<(Bindings<'_>, &str)> = vec![
        (base().dim("n", 6), "dimension `n` must be a multiple of 4, not 6"),
        (base().dim("n", 104), "dimension `n` is at most 100, not 104"),
        (base().dim("m", 1), "program `p` has no dimension `m`: it has n, s"),
        (base().dim("s", 0), "index `b` has step 0"),
        (base().scalar("a", 0.5), "scalar `a` is 0.5, which is no i32 value"),
        (base().scalar("b", 0.5), "the program has no scalar or readable tensor `b`"),
        (base().tensor("y", &x[..]), "the program has no scalar or readable tensor `y`"),
        (base().tensor("x", &x[..7]), "tensor `x` spans 8 elements and its buffer has 7"),
        (
            base().tensor("x", vec![1e9; 8]),
            "element 0 of `x` is 1000000000.0, which is no f16 value",
        ),
    ];
    for (bindings, message) in cases {
        assert_eq!(run(&p, &bindings).unwrap_err().to_string(), message);
    }
    for name in ["n", "s", "a", "x"] {
        let mut bindings = base();
        bindings.dims.remove(name);
        bindings.scalars.remove(name);
        bindings.tensors.remove(name);
        let message = run(&p, &bindings).unwrap_err().to_string();
        assert!(message.contains(&format!("`{name}` has no")), "{message}");
    }
}

#[test]
fn hostile_sizes_are_errors_before_anything_runs() {
    let source = "program p {\ndim n: symbolic max 1099511627776\nout y: f32[1]\naxis j: n\n\
                  grid b: 1 step 1\n%c = const 1.0 f32\n%t = broadcast %c to [j]\n\
                  %s = reduce add %t over j\nstore y[0], %s\n}\n";
    let p = program(source);
    let run_n = |p: &Program, n| run(p, &Bindings::new().dim("n", n));
    assert!(matches!(run_n(&p, 1 << 40), Err(InterpError::TooLarge { .. })));
    let looped = "program p {\ndim n: symbolic max 1099511627776\nout y: f32[1]\ngrid b: 1 step 1\n\
                  %c = const 1.0 f32\nfor serial i in n step 1 {\nfor serial k in n step 1 {\n}\n}\n\
                  store y[0], %c\n}\n";
    assert!(matches!(run_n(&program(looped), 1 << 40), Err(InterpError::TooLarge { .. })));
    let tensor = "program p {\ndim n: symbolic max 1099511627776\nout y: f32[n, n, n, n]\n\
                  grid b: n step 1\n%c = const 1.0 f32\nstore y[b, 0, 0, 0], %c\n}\n";
    assert!(matches!(run_n(&program(tensor), 1 << 40), Err(InterpError::TooLarge { .. })));
    let grid = tensor.replace("n, n, n, n", "1, 1, 1, 1").replace("y[b,", "y[0,");
    assert!(matches!(run_n(&program(&grid), 1 << 40), Err(InterpError::TooLarge { .. })));
}

/// C = A·B with tiles of 4×5×3 and optional transposes, batch and initial value.
fn gemm_program(a: &str, b: &str, tile_b: &str) -> Program {
    program(&format!(
        "program gemm {{\ndim m: symbolic max 1000\ndim n: symbolic max 1000\ndim k: symbolic max 1000\n\
         dim bm: block 4\ndim bn: block 5\ndim bk: block 3\n{a}\n{b}\ninout c: f32[m, n]\n\
         axis i: bm\naxis j: bn\naxis p: bk\ngrid i0: m step bm\ngrid j0: n step bn\n\
         %z = load c[i0:i, j0:j] fill 0.0\n\
         %o = for pipeline 2 p0 in k step bk carry %acc = %z {{\n{tile_b}\n\
         %d = mma %a, %b, %acc\nyield %d\n}}\n%g = tanh %o\nstore c[i0:i, j0:j], %g clip\n}}\n"
    ))
}

fn values(len: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        DType::F32.round((state >> 40) as f64 / (1u64 << 23) as f64 - 1.0)
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn fused_loops_agree_with_the_plain_interpreter() {
    let nn = "%a = load a[i0:i, p0:p] fill 0.0\n%b = load b[p0:p, j0:j] fill 0.0";
    let tt = "%b = load b[j0:j, p0:p] fill 0.0\n%a = load a[p0:p, i0:i] fill 0.0";
    let programs = [
        (gemm_program("in a: f32[m, k]", "in b: f32[k, n]", nn), true),
        (gemm_program("in a: f32[k, m]", "in b: f32[n, k]", tt), true),
    ];
    for (p, fuses) in programs {
        for (m, n, k) in [(4, 5, 3), (1, 1, 1), (9, 11, 7), (8, 10, 0), (3, 4, 20), (0, 3, 2)] {
            let (a, b) = (values(m * k, 1), values(k * n, 2));
            let c = values(m * n, 3);
            let bindings = Bindings::new()
                .dim("m", m as u64)
                .dim("n", n as u64)
                .dim("k", k as u64)
                .tensor("a", &a[..])
                .tensor("b", &b[..])
                .tensor("c", &c[..]);
            let launch = bind::bind(&p, &bindings).unwrap();
            let code = compile::compile(&launch, &Options::default()).unwrap();
            let fused = code.body.iter().any(|s| matches!(s, compile::Step::Fused(_)));
            assert_eq!(fused, fuses);
            let options = Options { magnitude: true, ..Options::default() };
            let fast = run_with(&p, &bindings, &options).unwrap();
            let plain = run_with(&p, &bindings, &Options { plain: true, ..options }).unwrap();
            for (x, y) in fast[0].data.iter().zip(&plain[0].data) {
                assert!((x - y).abs() < 1e-14, "{x} {y}");
            }
            for (x, y) in fast[0].magnitude.iter().zip(&plain[0].magnitude) {
                assert!((x - y).abs() < 1e-13, "{x} {y}");
            }
        }
    }
}

#[test]
fn what_changes_the_sum_is_not_fused() {
    let nn = "%a = load a[i0:i, p0:p] fill 0.0\n%b = load b[p0:p, j0:j] fill 0.0";
    let bindings = Bindings::new().dim("m", 9).dim("n", 7).dim("k", 8);
    let (a, b, c) = (values(72, 1), values(56, 2), values(63, 3));
    let bindings = bindings.tensor("a", &a[..]).tensor("b", &b[..]).tensor("c", &c[..]);
    for (from, to, fuses) in [
        ("", "", true),
        // An offset, an unfilled neighbour, another step: sums other than the plain product.
        ("p0:p, j0", "p0 - 1:p, j0", false),
        ("i0:i, p0:p", "p0 - i0:i, p0:p", false),
        ("i0:i, p0:p] fill 0.0", "i0:i, p0:p] fill 1.0", true),
    ] {
        let p = gemm_program("in a: f32[m, k]", "in b: f32[k, n]", &nn.replace(from, to));
        let launch = bind::bind(&p, &bindings).unwrap();
        let code = compile::compile(&launch, &Options::default()).unwrap();
        let fused = code.body.iter().any(|s| matches!(s, compile::Step::Fused(_)));
        assert_eq!(fused, fuses, "{to}");
        let fast = run(&p, &bindings).unwrap();
        let plain =
            run_with(&p, &bindings, &Options { plain: true, ..Options::default() }).unwrap();
        for (x, y) in fast[0].data.iter().zip(&plain[0].data) {
            assert!((x - y).abs() < 1e-14, "{to}: {x} {y}");
        }
    }
}

#[test]
fn the_magnitude_of_a_product_is_the_product_of_magnitudes() {
    let p = program(
        "program p {\nin a: f32[2, 3]\nin b: f32[3, 2]\nout c: f32[2, 2]\naxis i: 2\naxis j: 2\n\
         axis k: 3\ngrid r: 1 step 1\n%a = load a[:i, :k]\n%b = load b[:k, :j]\n\
         %z = const 0.0 f32\n%zb = broadcast %z to [i, j]\n%c = mma %a, %b, %zb\n\
         store c[:i, :j], %c\n}\n",
    );
    let (a, b) = ([1.0, -2.0, 3.0, -1.0, 1.0, 0.0], [1.0, 2.0, 2.0, -1.0, 1.0, 0.0]);
    let out = magnitude(&p, &Bindings::new().tensor("a", &a[..]).tensor("b", &b[..])).unwrap();
    assert_eq!(out[0].data, [0.0, 4.0, 1.0, -3.0]);
    assert_eq!(out[0].magnitude, [8.0, 4.0, 3.0, 3.0]);
}

#[test]
fn the_magnitude_of_a_sum_is_the_sum_of_magnitudes() {
    let p = row("%s = reduce add %x over j\n%b = broadcast %s to [j]\nstore y[:j], %b");
    let (x, w) = ([1.0, -1.0, 0.5], [0.0; 3]);
    let bindings = Bindings::new().dim("n", 3).tensor("x", &x[..]).tensor("w", &w[..]);
    let out = magnitude(&p, &bindings).unwrap();
    assert_eq!((out[0].data[0], out[0].magnitude[0]), (0.5, 2.5));
}

#[test]
fn threads_change_nothing() {
    let (rows, cols) = (300u64, 200u64);
    let x = values((rows * cols) as usize, 5);
    let p = program(SOFTMAX);
    let bindings =
        Bindings::new().dim("rows", rows).dim("cols", cols).dim("ldx", cols).tensor("x", &x[..]);
    let with = |threads| {
        run_with(&p, &bindings, &Options { threads, ..Options::default() }).unwrap()[0].data.clone()
    };
    assert_eq!(with(1), with(3));
}

#[test]
fn an_invalid_program_is_refused() {
    let p = text::parse("program p {\nout y: f32[2]\n}\n").unwrap();
    let error = run(&p, &Bindings::new()).unwrap_err();
    assert!(matches!(error, InterpError::Invalid(_)), "{error}");
}
