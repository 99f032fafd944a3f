//! One small change to a program per proof: the fact that rests on the proof must fall, with the
//! reason.

use tilewright_ir::facts::*;
use tilewright_ir::ops::{self, OpRequest};
use tilewright_ir::{DType, Program, analysis, text};

fn source(op: &str, shape: &[u64]) -> String {
    text::print(&ops::build(op, &OpRequest::shaped(DType::F32, shape)).unwrap())
}

/// The program with every replacement made; each must be possible.
fn mutant(source: &str, changes: &[(&str, &str)]) -> Program {
    let mut source = source.to_string();
    for (from, to) in changes {
        assert!(source.contains(from), "`{from}` isn't in\n{source}");
        source = source.replacen(from, to, 1);
    }
    text::parse(&source).unwrap_or_else(|e| panic!("{e:?}\n{source}"))
}

fn other(program: &Program) -> String {
    match analysis::facts(program).family {
        Family::Other(reason) => reason,
        family => panic!("expected no family, got {family:?}"),
    }
}

fn rows(program: &Program) -> RowFacts {
    match analysis::facts(program).family {
        Family::Rows(rows) => *rows,
        family => panic!("expected a row program, got {family:?}"),
    }
}

fn matrix(program: &Program) -> MatrixFacts {
    match analysis::facts(program).family {
        Family::Matrix(matrix) => *matrix,
        family => panic!("expected a matrix product, got {family:?}"),
    }
}

#[track_caller]
fn assert_reason(reason: &str, part: &str) {
    assert!(reason.contains(part), "`{reason}` doesn't say `{part}`");
}

/// Source, changes, part of the reason.
type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);

/// Each change takes the family away.
#[test]
fn no_family_without_its_proof() {
    let softmax = source("softmax", &[37, 1537]);
    let gemm = source("gemm", &[96, 80, 72]);
    let generic = text::print(&ops::build("gemm", &OpRequest::generic(DType::F32)).unwrap());
    let cases: &[Case] = &[
        // Coverage.
        (&softmax, &[("store y[r, :j], %div", "store y[0, :j], %div")], "different r overlap"),
        (&softmax, &[("grid r: rows step 1", "grid r: rows step 2")], "cover 1 but no index"),
        (&softmax, &[("store y[r, :j]", "store y[2*r, :j]")], "cover 1 but no index"),
        (
            &softmax,
            &[("out y: f32[rows, cols]", "out y: f32[40, cols]")],
            "covers rows of 40 elements",
        ),
        (
            &softmax,
            &[("store y[r, :j], %div", "store y[r, :j], %div\n  store y[r, :j], %exp")],
            "2 stores write",
        ),
        (
            &softmax,
            &[("out y: f32[rows, cols]", "out y: f32[rows, cols] strides [0, 1]")],
            "stride of 0",
        ),
        (
            &softmax,
            &[("out y: f32[rows, cols]", "out y: f32[rows, cols] strides [1536, 1]")],
            "strides make elements overlap",
        ),
        (&softmax, &[("store y[r, :j]", "store y[r, 1:j]")], "doesn't start at 0"),
        (&gemm, &[("store c[i0:i, j0:j]", "store c[i0:i, :j]")], "different j0 overlap"),
        (&gemm, &[("grid j0: n step bn", "grid j0: n step 32")], "no index steps by that"),
        (&generic, &[("grid j0: n step bn", "grid j0: m step bn")], "covers m of n elements"),
        (&generic, &[(" clip", "")], "a tile may stick out"),
        // Bounds.
        (&softmax, &[("load x[r, :j]", "load x[r, 1:j]")], "reaches 1537 of 1537"),
        (&softmax, &[("load x[r, :j]", "load x[r - 1, :j]")], "reaches -1"),
        (&softmax, &[("in x: f32[rows, cols]", "in x: f32[36, cols]")], "reaches 36 of 36"),
        // Row ownership and reads of what is written.
        (
            &softmax,
            &[
                ("axis j: cols", "axis j: cols\n  axis q: cols"),
                (
                    "%exp = exp %sub",
                    "%moved = reindex %sub [j -> q]\n  %exp0 = exp %moved\n  %exp = reindex %exp0 [q -> j]",
                ),
            ],
            "two axes, j and q",
        ),
        (
            &softmax,
            &[
                ("in x: f32[rows, cols]", ""),
                ("out y", "inout y"),
                ("load x[r, :j]", "load y[0, :j]"),
            ],
            "read at other coordinates",
        ),
        // The accumulator recurrence.
        (
            &gemm,
            &[("yield %mma", "%twice = add %mma, %acc\n    yield %twice")],
            "doesn't hand on the product",
        ),
        (
            &gemm,
            &[("%mma = mma %a, %b2, %acc", "%mma = mma %a, %b2, %b")],
            "doesn't add to the carried value",
        ),
        (&gemm, &[("yield %mma", "%peek = exp %acc\n    yield %mma")], "another reader"),
        (
            &gemm,
            &[("yield %mma", "%mma2 = mma %a, %b2, %mma\n    yield %mma2")],
            "2 matrix products",
        ),
        (
            &gemm,
            &[
                ("out c", "inout c"),
                ("%mma = mma", "%old = load c[i0:i, j0:j] fill 0.0\n    %mma = mma"),
            ],
            "read in another loop than it is written",
        ),
        (
            &gemm,
            &[("%mma = mma", "%more = load b[l0:l, j0:j] fill 0.0\n    %mma = mma")],
            "the loop also does `load`",
        ),
        (
            &gemm,
            &[
                ("in a: f32[m, k]", "in a: f32[m, k]\n  in start: f32[m, n]"),
                ("%b = broadcast %c to [i, j]", "%b = load start[i0:i, j0:j] fill 0.0"),
            ],
            "doesn't start at a literal",
        ),
        // Operands.
        (&gemm, &[("load a[i0:i, l0:l] fill 0.0", "load a[i0:i, l0:l] fill 1.0")], "ragged block"),
        (&gemm, &[("load a[i0:i, l0:l] fill 0.0", "load a[i0:i, l0:l]")], "assumed in bounds"),
        (&gemm, &[("load a[i0:i, l0:l]", "load a[i0:i, l0 + 1:l]")], "isn't the block"),
        (&gemm, &[("load a[i0:i, l0:l]", "load a[l0:i, i0:l]")], "isn't the block"),
        (&gemm, &[("in a: f32[m, k]", "in a: f32[m, 64]")], "another size than l0"),
        (
            &gemm,
            &[("dim bm: block 64", "dim bm: static 32"), ("out c: f32[m, n]", "out c: f32[90, n]")],
            "another size than i0",
        ),
        (
            &gemm,
            &[
                ("in a: f32[m, k]", "in a: f32[m, k]\n  in bias: f32[64]"),
                (
                    "store c[i0:i, j0:j], %out",
                    "%bias = load bias[j0:j] fill 0.0\n  %bb = broadcast %bias to [i, j]\n  \
                     %sum = add %out, %bb\n  store c[i0:i, j0:j], %sum",
                ),
            ],
            "another size than j0",
        ),
        (&gemm, &[("l0 in k step bk", "l0 in k step 32")], "doesn't step by the extent"),
    ];
    for (source, changes, part) in cases {
        let program = mutant(source, changes);
        assert_reason(&other(&program), part);
    }
}

/// The unchanged programs have their families: the mutants fall through the mutation alone.
#[test]
fn the_originals_are_proved() {
    rows(&mutant(&source("softmax", &[37, 1537]), &[]));
    let facts = matrix(&mutant(&source("gemm", &[96, 80, 72]), &[]));
    assert!(facts.zero_init.is_proved() && facts.direct_output.is_proved());
    assert!(facts.a.forward.is_proved() && facts.b.forward.is_proved());
}

/// An accumulator that doesn't start at +0 is still a product, but can't be overwritten.
#[test]
fn zero_start() {
    for start in ["1.0", "-0.0"] {
        let program = mutant(
            &source("gemm", &[96, 80, 72]),
            &[("const 0.0 f32", &format!("const {start} f32"))],
        );
        let Fact::Unknown(reason) = matrix(&program).zero_init else { panic!("{start}") };
        assert_reason(&reason, &format!("starts at {start}"));
    }
}

/// A destination or operand whose columns aren't neighbours in memory is neither stored to nor
/// read from fragments.
#[test]
fn inner_strides() {
    let strided = |tensor: &str, sizes: &str| {
        let declared = format!("{tensor}: f32[{sizes}]");
        mutant(
            &source("gemm", &[96, 80, 72]),
            &[(&declared, &format!("{declared} strides [200, 2]"))],
        )
    };
    let Fact::Unknown(reason) = matrix(&strided("out c", "m, n")).direct_output else { panic!() };
    assert_reason(&reason, "inner stride of `c` isn't 1");
    let Fact::Unknown(reason) = matrix(&strided("in b", "k, n")).b.forward else { panic!() };
    assert_reason(&reason, "inner stride of `b` isn't 1");
    assert!(matrix(&strided("in b", "k, n")).a.forward.is_proved());
}

/// An epilogue stands between fragments and memory.
#[test]
fn epilogue_isn_t_direct() {
    let program = mutant(
        &source("gemm", &[96, 80, 72]),
        &[("store c[i0:i, j0:j], %out", "%r = exp %out\n  store c[i0:i, j0:j], %r")],
    );
    let facts = matrix(&program);
    assert_eq!(facts.epilogue.len(), 1);
    let Fact::Unknown(reason) = facts.direct_output else { panic!() };
    assert_reason(&reason, "epilogue");
}

/// A tensor that is written isn't read-only.
#[test]
fn read_only() {
    let request = OpRequest { beta: 0.5, ..OpRequest::shaped(DType::F32, &[96, 80, 72]) };
    let program = ops::build("gemm", &request).unwrap();
    let facts = analysis::facts(&program);
    let fact = |name: &str| {
        let id = program.tensor(name).unwrap();
        facts.read_only.iter().find(|(t, _)| *t == id).map(|(_, fact)| fact.clone()).unwrap()
    };
    assert_eq!(fact("a"), Fact::Proved(()));
    let Fact::Unknown(reason) = fact("c") else { panic!() };
    assert_reason(&reason, "stores to it");
}

/// In place: legal while every read of a row comes before its store.
#[test]
fn in_place_rows() {
    let in_place =
        [("in x: f32[rows, cols]\n", ""), ("out y", "inout y"), ("load x[r, :j]", "load y[r, :j]")];
    let program = mutant(&source("softmax", &[37, 1537]), &in_place);
    assert_eq!(rows(&program).reload.domains.len(), 4);

    let source = source("softmax", &[37, 1537])
        .replace("out y: f32[rows, cols]", "out y: f32[rows, cols]\n  out y2: f32[rows]")
        .replace("%div\n", "%div\n  %late = reduce add %x over j\n  store y2[r], %late\n");
    assert_reason(&other(&mutant(&source, &in_place)), "needed again after it is stored to");
}

/// Uses within one phase are no reuse; one more phase is.
#[test]
fn reuse_is_by_phase() {
    let rms = source("rmsnorm", &[8, 100]);
    let facts = rows(&mutant(&rms, &[]));
    assert_eq!((facts.reload.domains.len(), facts.cache.domains.len()), (2, 3));

    // The store no longer reads x: nothing is left to copy.
    let once = mutant(&rms, &[("%div2 = div %x,", "%div2 = div %gamma,")]);
    let facts = rows(&once);
    assert_eq!(facts.cache, facts.reload);
    assert_eq!(facts.reload.domains.len(), 2);

    // x*x as a tile that two phases consume is kept, though x itself isn't.
    let kept = mutant(&rms, &[("%div2 = div %x,", "%div2 = div %mul,")]);
    let facts = rows(&kept);
    assert_eq!((facts.reload.domains.len(), facts.reload.striped_tiles()), (3, 1));
    assert_eq!(facts.cache, facts.reload);
}

/// Two reads of one place in one phase are one read; two conditions per row have no size.
#[test]
fn payload_counts() {
    let twice = "program p {
  dim rows: static 8
  dim cols: static 100
  in x: f32[rows, cols]
  out y: f32[rows, cols]
  axis j: cols
  grid r: rows step 1
  %x = load x[r, :j]
  %x2 = load x[r, :j]
  %y = mul %x, %x2
  store y[r, :j], %y
}";
    let bytes = |global_read, global_write| {
        Fact::Proved(Payload { global_read, global_write, ..Payload::default() })
    };
    assert_eq!(rows(&mutant(twice, &[])).reload.payload, bytes(4, 4));
    let shifted = [("%x2 = load x[r, :j]", "%x2 = load x[r, 1:j] fill 0.0")];
    assert_eq!(rows(&mutant(twice, &shifted)).reload.payload, bytes(8, 4));

    let condition = [(
        "%y = mul %x, %x2",
        "%m = reduce max %x over j
  %zero = const 0.0 f32
  %pos = gt %m, %zero
  %b = broadcast %pos to [j]
  %y = select %b, %x, %x2",
    )];
    let Fact::Unknown(reason) = rows(&mutant(twice, &condition)).reload.payload else { panic!() };
    assert_reason(&reason, "%pos is a condition");
}

/// Index arithmetic, conditions and per-row values are evaluated in place, never kept.
#[test]
fn cheap_tiles_are_not_kept() {
    let causal = rows(&mutant(&source("causal_softmax", &[37, 64]), &[]));
    assert_eq!(causal.reload.striped_tiles(), 1);
    // %le and %sub feed three phases; only the exponentials are kept.
    assert_eq!(causal.reload.domains.len(), 4);
}

/// A row program may tile its rows by a grid with several digits, and may have none.
#[test]
fn grids() {
    let softmax = source("softmax", &[36, 64]);
    let digits = mutant(
        &softmax,
        &[
            ("grid r: rows step 1", "grid r: rows step 4\n  grid q: 4 step 1"),
            ("load x[r, :j]", "load x[r + q, :j]"),
            ("store y[r, :j]", "store y[r + q, :j]"),
        ],
    );
    assert_eq!(rows(&digits).grid.len(), 2);
    // 37 rows: the last digit sticks out, and the store assumes that it doesn't.
    let ragged = mutant(
        &source("softmax", &[37, 64]),
        &[
            ("grid r: rows step 1", "grid r: rows step 4\n  grid q: 4 step 1"),
            ("load x[r, :j]", "load x[r + q, :j] fill 0.0"),
            ("store y[r, :j]", "store y[r + q, :j]"),
        ],
    );
    assert_reason(&other(&ragged), "may stick out");
    let gap = mutant(
        &softmax,
        &[
            ("grid r: rows step 1", "grid r: rows step 4\n  grid q: 3 step 1"),
            ("load x[r, :j]", "load x[r + q, :j]"),
            ("store y[r, :j]", "store y[r + q, :j]"),
        ],
    );
    assert_reason(&other(&gap), "overlap or leave gaps");
}
