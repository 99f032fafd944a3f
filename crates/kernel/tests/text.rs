//! The text form: round trips, located errors, hostile input.

use std::collections::BTreeSet;
use tilewright_kernel::kernel::{Kernel, Op};
use tilewright_kernel::text::{Limits, ParseError, parse, parse_with_limits, print};

const EVERY_OP: &str = include_str!("data/every_op.kernel");

/// A name per kind of operation. Adding a kind without adding it here doesn't compile.
fn kind(op: &Op) -> &'static str {
    match op {
        Op::Const(_) => "const",
        Op::Arg(_) => "arg",
        Op::GroupId(_) => "group_id",
        Op::ClusterRank => "cluster_rank",
        Op::SubgroupId => "subgroup_id",
        Op::Lane => "lane",
        Op::Map { .. } => "map",
        Op::Fma { .. } => "fma",
        Op::Cast(_) => "cast",
        Op::Load { .. } => "load",
        Op::Store { .. } => "store",
        Op::Atomic { .. } => "atomic",
        Op::Collective { .. } => "collective",
        Op::Barrier(_) => "barrier",
        Op::BarrierArrive(_) => "barrier_arrive",
        Op::BarrierWait(_) => "barrier_wait",
        Op::ProxyFence => "proxy_fence",
        Op::For { .. } => "for",
        Op::If { .. } => "if",
        Op::InRole { .. } => "in_role",
        Op::FragmentFill(_) => "fragment_fill",
        Op::FragmentLoad(_) => "fragment_load",
        Op::FragmentStore { .. } => "fragment_store",
        Op::FragmentMap { .. } => "fragment_map",
        Op::Mma { .. } => "mma",
        Op::MmaAsync { .. } => "mma_async",
        Op::CopyAsync { .. } => "copy_async",
        Op::CopyTensor { .. } => "copy_tensor",
        Op::MbarrierInit { .. } => "mbarrier_init",
        Op::MbarrierArrive { .. } => "mbarrier_arrive",
        Op::MbarrierWait { .. } => "mbarrier_wait",
        Op::Wait { .. } => "wait",
    }
}

fn kinds(kernel: &Kernel) -> BTreeSet<&'static str> {
    let mut kinds = BTreeSet::new();
    kernel.body.walk(&mut |stmt| {
        kinds.insert(kind(&stmt.op));
    });
    kinds
}

/// The parser's error; a text that parses fails the test.
fn error(source: &str) -> ParseError {
    match parse(source) {
        Ok(kernel) => panic!("this parsed:\n{kernel}"),
        Err(error) => error,
    }
}

fn body(statements: &str) -> String {
    format!(
        "kernel k lanes 32 subgroups 1 {{\n  arg x: buffer f32 in align 16\n  \
         barrier b: group\n{statements}\n}}\n"
    )
}

#[test]
fn every_operation_round_trips() {
    let kernel = parse(EVERY_OP).unwrap();
    assert_eq!(kinds(&kernel).len(), 32, "{:?}", kinds(&kernel));
    let text = print(&kernel);
    let again = parse(&text).unwrap();
    assert_eq!(again, kernel);
    assert_eq!(print(&again), text, "printing is a fixed point");
}

#[test]
fn names_become_numbers_in_order_of_definition() {
    let source = body("  %b: index@grid = const 1\n  %a: index@grid = add %b, %b");
    let numbers = body("  %0: index@grid = const 1\n  %1: index@grid = add %0, %0");
    assert_eq!(parse(&source).unwrap(), parse(&numbers).unwrap());
}

#[test]
fn numbers_are_arena_positions() {
    // Defined in the order 1, 0, and 2 never: the arena order is 0, 1, 2.
    let source =
        body("  unused %2: f64@lane\n  %1: index@grid = const 1\n  %0: f32@grid = cast %1");
    let kernel = parse(&source).unwrap();
    assert_eq!(kernel.values.len(), 3);
    let text = print(&kernel);
    assert!(text.contains("unused %2: f64@lane"), "{text}");
    assert_eq!(parse(&text).unwrap(), kernel);
}

#[test]
fn errors_have_a_place_and_say_what_was_expected() {
    // The statement, the text at whose last occurrence the error stands, and the message.
    let cases = [
        ("  %a: index@grid = const", "", "expected a number, found the end of the line"),
        ("  %a: index@grid = add %b, %b", "%b, %b", "value `%b` isn't defined above"),
        ("  %a: f31@grid = const 1", "f31", "unknown dtype `f31`"),
        ("  %a: f32@warp = const 1", "warp", "unknown scope `warp`"),
        ("  %a: f32@grid = sin %a", "sin", "unknown operation `sin`"),
        ("  %a: f32@grid = load y[%a]", "y", "`y` isn't declared: expected a buffer"),
        ("  %a: f32@grid = load b[%a]", "b", "expected a buffer, `b` is something else"),
        ("  barrier x", "x", "expected a barrier, `x` is something else"),
        ("  %a: index@grid = const 9223372036854775808", "9223", "doesn't fit 64 bits"),
        ("  barrier b barrier b", "barrier", "expected the end of the line, found `barrier`"),
        ("  $", "$", "unexpected character `$`"),
        ("  %", "%", "expected the name of a value"),
    ];
    for (statement, place, message) in cases {
        let error = error(&body(statement));
        let column = statement.rfind(place).unwrap() as u32 + 1;
        assert!(error.message.contains(message), "{statement}: {error}");
        assert_eq!((error.line, error.column), (4, column), "{statement}: {error}");
    }
}

#[test]
fn definitions_are_unique_and_yields_match() {
    let twice = "  %a: index@grid = const 1\n  %a: index@grid = const 1";
    assert!(error(&body(twice)).message.contains("defined twice"));
    let lone = "  %a: index@grid = const 1\n  for %i: index@grid in %a..%a step 1 carry \
                %c: index@grid = %a {\n  }";
    assert!(error(&body(lone)).message.contains("carries 1 values and yields 0"));
    let other = "  %a: bool@grid = const 1\n  %r: bool@grid = if %a {\n  yield %a\n  }";
    assert!(error(&body(other)).message.contains("yield 1 and 0 values"));
    let arity = "  %a: bool@grid = const 1\n  %r: bool@grid = and %a";
    assert!(error(&body(arity)).message.contains("takes 2 operands, not 1"));
}

#[test]
fn hostile_text_is_an_error() {
    let deep = body(&format!("  %a: bool@grid = const 1\n{}", "  if %a {\n".repeat(100_000)));
    assert!(error(&deep).message.contains("nested over 64 deep"));
    let long = error_with(&body(""), Limits { bytes: 10, depth: 1 });
    assert!(long.message.contains("the limit is 10"), "{long}");
    // A huge number is a name, not an arena of that size.
    let kernel = parse(&body("  %4000000000: index@grid = const 1")).unwrap();
    assert_eq!(kernel.values.len(), 1);
    for garbage in
        ["", "\0", "kernel", "kernel k lanes 99999999999 subgroups 1 {", "}", "\u{1F600}"]
    {
        error(garbage);
    }
}

fn error_with(source: &str, limits: Limits) -> ParseError {
    match parse_with_limits(source, limits) {
        Ok(kernel) => panic!("this parsed:\n{kernel}"),
        Err(error) => error,
    }
}

/// Texts with one character changed or cut off parse or give an error; they never panic, and
/// what parses round-trips.
#[test]
fn damaged_text_never_panics() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    };
    let mut parsed = 0;
    for _ in 0..3000 {
        let mut bytes = EVERY_OP.as_bytes().to_vec();
        match random(4) {
            0 => bytes.truncate(random(bytes.len())),
            1 => {
                bytes.remove(random(bytes.len()));
            }
            2 => {
                let (from, to) = (random(bytes.len()), random(bytes.len()));
                bytes[to] = bytes[from];
            }
            _ => {
                let at = random(bytes.len());
                bytes[at] = b" 09%{}[],.:\n-x"[random(14)];
            }
        }
        let Ok(text) = String::from_utf8(bytes) else { continue };
        if let Ok(kernel) = parse(&text) {
            parsed += 1;
            assert_eq!(parse(&print(&kernel)).as_ref(), Ok(&kernel), "{text}");
        }
    }
    assert!(parsed > 100, "only {parsed} damaged texts parsed");
}
