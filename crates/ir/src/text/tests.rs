use super::*;
use crate::builder::ProgramBuilder;
use crate::program::*;
use crate::types::DType;

/// Every construct of the text form, as the printer writes it.
const EVERYTHING: &str = "\
program everything {
  dim m: symbolic max 1024
  dim n: symbolic divisor 8 max 4096
  dim k: static 40
  dim bm: block 16
  dim bk: block 8
  dim lda: symbolic max 65536
  in a: f16[m, k] strides [lda, 1] align 64
  in b: f16[k, n]
  in one: f64[]
  in labels: i32[m]
  inout c: f32[m, n]
  out d: f32[m]
  scalar beta: f32 nonzero
  scalar flag: i32
  axis i: bm
  axis j: n
  axis j2: n
  axis p: bk
  grid i0: m step bm

  %z = const 0.0 f32
  %inf = const -inf f32
  %nan = const nan f32
  %odd = const nan(0x7ff8000000000123) f64
  %three = const 3 i32
  %small = const 1e-7 f64
  %zb = broadcast %z to [i, j]
  %zt: f32[j, i] = broadcast %z to [j, i]
  %beta = scalar beta
  %n = size n
  %at = index i0 + 3:i
  %zero = index 0
  %o = load one[]
  %lab = load labels[i0:i] fill -1
  %g = load b[%lab, :j] fill 0.0
  %g2 = load b[2*i0 - 1 + %lab:p, :j] fill nan
  %out, %count = for pipeline 2 p0 in k step bk carry %acc = %zb, %t = %zero {
    %at2 = load a[i0:i, p0:p] fill 0.0
    %bt = load b[p0:p, :j] fill -0.0
    %next = mma %at2, %bt, %acc
    %next2 = mma %at2, %bt, %acc ordered
    for serial q in k step 1 {
      %u = index -3*p0 + q - 2
    }
    yield %next, %zero
  }
  %r = reindex %out [j -> j2]
  %s = reduce add %r over j2
  %f = reduce max %out over j order fold_left
  %less = lt %s, %f
  %sel = select %less, %s, %f
  %h = cast %sel to f16
  %back = cast %h to f32
  store d[i0:i], %back clip
  store c[i0:i, :j], %out clip
}
";

#[test]
fn printing_what_was_parsed_is_a_fixed_point() {
    let program = parse(EVERYTHING).unwrap_or_else(|e| panic!("{e:#?}"));
    let text = print(&program);
    // The one annotation that says nothing new is dropped.
    assert_eq!(text, EVERYTHING.replace("%zt: f32[j, i]", "%zt"));
    assert_eq!(parse(&text).unwrap(), program);
}

#[test]
fn places_are_line_and_column() {
    let program = parse(EVERYTHING).unwrap();
    let (_, data) = program.ops.iter().find(|(_, d)| matches!(d.op, Op::Mma { .. })).unwrap();
    assert_eq!((data.loc.line, data.loc.column), (41, 5));
}

#[test]
fn annotations_keep_an_axis_order_that_inference_would_not_give() {
    let mut b = ProgramBuilder::new("order");
    let n = Extent::Const(4);
    let (i, j) = (b.axis("i", n), b.axis("j", Extent::Const(8)));
    let x = b.fill(1.0, DType::F32, &[i, j]);
    let y = b.map(MapOp::Neg, &[x]);
    let mut program = b.finish();
    program.values[y].ty.axes = vec![j, i];
    let text = print(&program);
    assert!(text.contains("%neg: f32[j, i] = neg %b"), "{text}");
    assert_eq!(parse(&text).unwrap(), program);
}

#[test]
fn a_builder_program_survives() {
    let mut b = ProgramBuilder::new("gemm");
    let (m, n, k) = (
        b.dim("m", DimKind::Symbolic { divisor: 1, max: 1 << 20 }),
        b.dim("n", DimKind::Static(64)),
        b.dim("k", DimKind::Static(u64::MAX)),
    );
    let bm = b.dim("bm", DimKind::Block { default: 32 });
    let a = b.tensor("a", Access::In, DType::F32, &[m, k]);
    let w = b.tensor("b", Access::In, DType::F32, &[k, n]);
    let c = b.tensor("c", Access::Out, DType::F32, &[m, n]);
    let (i, j, p) = (b.axis("i", bm), b.axis("j", n), b.axis("p", bm));
    let i0 = b.grid("i0", m, bm);
    let zero = b.fill(0.0, DType::F32, &[i, j]);
    let kind = LoopKind::Pipeline { window: 2 };
    let acc = b.repeat(kind, "p0", k, bm, &[zero], |b, p0, acc| {
        let x = b.load(a, vec![Coord::tile(i0, i), Coord::tile(p0, p)], Bounds::Fill(0.0));
        let y = b.load(w, vec![Coord::tile(p0, p), Coord::along(j)], Bounds::Fill(0.0));
        vec![b.mma(x, y, acc[0])]
    });
    b.store(c, vec![Coord::tile(i0, i), Coord::along(j)], acc[0], Bounds::Fill(0.0));
    let program = b.finish();
    let text = print(&program);
    assert_eq!(parse(&text).unwrap_or_else(|e| panic!("{e:#?}\n{text}")), program);
}

/// The messages of a broken source, one a line.
fn messages(source: &str) -> String {
    match parse(source) {
        Ok(program) => panic!("parsed as\n{program}"),
        Err(errors) => lines(&errors),
    }
}

fn body(line: &str) -> String {
    let declarations = "dim n: static 4\nin x: f32[n]\nout y: f32[n]\nscalar s: f32\naxis j: n\n\
                        grid r: n step 1\n%x = load x[r]\n";
    format!("program p {{\n{declarations}{line}\n}}\n")
}

#[test]
fn messages_name_the_place_and_the_fix() {
    let cases = [
        ("", "1:1: expected `program NAME {`, found the end of the file"),
        ("program p", "1:10: expected `{`, found the end of the line"),
        ("program p {\n", "2:1: expected `}` to close the block, found the end of the file"),
        (
            "program p {\n}\nprogram q {\n}\n",
            "3:1: expected nothing after the program's `}`: one program a file, found `program`",
        ),
        (
            "program p {\ndim n: dynamic\n}",
            "2:8: expected `static`, `symbolic` or `block`, found `dynamic`",
        ),
        (
            "program p {\ndim n: static 18446744073709551616\n}",
            "2:15: a size is too large; the limit is 18446744073709551615",
        ),
        ("program p {\nin x: f33[]\n}", "2:7: unknown dtype `f33`: use f32, f64, f16, bf16 or i32"),
        ("program p {\nin x: f32[n]\n}", "2:11: no dimension `n`; none is declared above"),
        ("program p {\n  §\n}", "2:3: `§` starts no token; remove it"),
        ("program p {\n% = exp\n}", "2:1: expected a value name after `%`, such as `%x`"),
    ];
    for (source, message) in cases {
        assert_eq!(messages(source), message, "{source}");
    }
    let cases = [
        ("%y = exp %q", "9:10: `%q` isn't defined above; define it before its first use"),
        ("%y = exp %x, %x", "9:6: `exp` takes 1 value, not 2"),
        ("%y = exp %x %x", "9:13: expected the end of the line, found `%x`"),
        ("%y exp %x", "9:4: expected `=`, found `exp`"),
        ("%y, %z = exp %x", "9:1: 2 results; only a loop has several"),
        ("%y = load z[r]", "9:11: no tensor `z`; declared: x, y"),
        ("%y = load x[q]", "9:13: no index variable `q`; in scope: r"),
        ("%y = load x[r*2]", "9:13: write the number first, as `2*i`"),
        ("%y = load x[r -]", "9:16: expected an index, a number, `%value` or `:axis`, found `]`"),
        ("%y = load x[-%x]", "9:14: a gathered index can't be negated; use `neg` on it first"),
        ("%y = load x[%x + %x]", "9:18: two gathered indices; add them with `add` first"),
        ("%y = load x[9223372036854775807 + 1]", "9:35: the constant of this coordinate overflows"),
        (
            "%y = load x[9223372036854775808]",
            "9:13: integer beyond the range of i64: 9223372036854775808",
        ),
        ("%y = load x[r:q]", "9:15: no axis `q`; declared: j"),
        ("%y = load x[r] fill", "9:20: expected a number, found the end of the line"),
        ("%y = const 1e999 f32", "9:12: number beyond the range of f64; write `inf` for infinity"),
        ("%y = const 1.2.3 f32", "9:12: `1.2.3` is no number; write 1.5, 1e-5, inf or nan"),
        ("%y = const nan(0x0) f32", "9:12: expected the bits of a NaN, as 0x7ff8000000000001"),
        ("%y = reduce sum %x over j", "9:13: unknown fold `sum`; use add, max, min or mul"),
        (
            "%y = reduce add %x over j order any",
            "9:33: unknown order `any`; use unordered_tree, ordered_tree, fold_left, fold_right",
        ),
        ("%y = mma %x, %x", "9:6: `mma` takes %a, %b, %c, not 2"),
        ("%y = index %x", "9:6: `index` takes no `%value`; add it with `add`"),
        ("dim z: static 1", "9:1: declarations come before the first operation; move this line up"),
        ("yield %x", "9:1: expected `%name = operation`, `store`, `for` or `}`, found `yield`"),
        ("for loop q in n step 1 {\n}", "9:5: unknown loop `loop`; use serial or pipeline N"),
        ("for pipeline 4294967296 q in n step 1 {\n}", "9:14: a pipeline window fits 32 bits"),
        (
            "for serial q in n step 1 carry %a = %x {\nyield %a\n}",
            "9:40: a loop has one result per carried value: 0 results, 1 carried value",
        ),
        (
            "%y = for serial q in n step 1 carry %a = %x {\n}",
            "9:1: the loop carries 1 value and yields 0; yield each",
        ),
        (
            "%y = for serial q in n step 1 carry %a = %x {\nyield %a\n%b = exp %x\n}",
            "11:1: `yield` must be the last line of a loop",
        ),
    ];
    for (line, message) in cases {
        assert_eq!(messages(&body(line)), message, "{line}");
    }
    let unknown = messages(&body("%y = foo %x"));
    assert!(unknown.starts_with("9:6: unknown operation `foo`; there are const,"), "{unknown}");
}

#[test]
fn an_error_does_not_cascade() {
    let source = body("%y = foo %x\n%z = exp %y\n%w = add %z, %y\n%v = bar %w");
    let lines: Vec<String> = messages(&source).lines().map(|l| l[..5].to_string()).collect();
    assert_eq!(lines, ["9:6: ", "12:6:"]);
    let source =
        body("%a = for serial q in nn step 1 carry %b = %x {\n%c = exp %b\n}\n%d = exp %a");
    assert_eq!(messages(&source).lines().count(), 1);
}

#[test]
fn errors_are_bounded() {
    let source = body(&"%y = foo %x\n".repeat(1000));
    assert_eq!(parse(&source).unwrap_err().len(), MAX_ERRORS);
}

#[test]
fn hostile_sources_are_errors() {
    let deep = "for serial q in n step 1 {\n".repeat(30_000);
    assert!(messages(&body(&deep)).contains("loops nested deeper than 16"));
    let braces = format!("program p {}", "{".repeat(500_000));
    assert!(parse(&braces).is_err());
    let brackets = body(&format!("%y = load x{}", "[".repeat(100_000)));
    assert!(parse(&brackets).is_err());
    let axes = body(&format!("%y = broadcast %x to [{}]", "j, ".repeat(100_000)));
    assert!(messages(&axes).contains("more than 32 entries"));
    let digits = body(&format!("%y = const {} f32", "9".repeat(200_000)));
    assert!(messages(&digits).contains("beyond the range"));
    let name = body(&format!("%{} = exp %x", "n".repeat(200_000)));
    assert!(messages(&name).contains("use at most 128"));
    let long = " ".repeat(MAX_SOURCE + 1);
    assert!(messages(&long).contains("at most 1048576 are read"));
    assert!(parse("program p {\n\u{0}\u{feff}\n}").is_err());
}

#[test]
fn windows_line_ends_and_comments_are_fine() {
    let source = EVERYTHING.replace('\n', " // note\r\n");
    assert_eq!(parse(&source).unwrap(), parse(EVERYTHING).unwrap());
}

#[test]
fn read_reports_places_of_declarations_and_operations() {
    let source = "program p {\n  dim n: static 4\n  in x: f32[n] align 3\n  out y: f32[n]\n  \
                  axis j: n\n\n  %x = load x[:j]\n  %h = cast %x to f16\n  store y[:j], %h\n}\n";
    let message = read(source).unwrap_err().to_string();
    assert_eq!(
        message,
        "3:6: [tensor-align] tensor `x` has alignment 3; use a power of two of at least 4, the \
         size of f32\n9:3: [store-dtype] `%h: f16[j]` is stored to `y: f32`; cast it first"
    );
    assert!(matches!(read("program"), Err(ReadError::Parse(_))));
}
