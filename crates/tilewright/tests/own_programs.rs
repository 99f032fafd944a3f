//! Programs that users write: planned where a family fits, run by the general lowering where
//! none does, checked at launch where nothing could be proved.

mod common;

use common::{check, engine, isas};
use tilewright::check::LaunchValues;
use tilewright::{Error, LaunchError, LaunchOptions, Task, parse};

fn values(dims: &[(&str, u64)]) -> LaunchValues {
    let dims = dims.iter().map(|(name, size)| (name.to_string(), *size)).collect();
    LaunchValues { dims, scalars: vec![] }
}

/// Running sums of each row: a loop that stores in every iteration.
const SCAN: &str = "\
program scan {
  dim rows: symbolic max 1000
  dim cols: static 13
  in x: f32[rows, cols]
  out y: f32[rows, cols]
  grid r: rows step 1

  %zero: f32[] = const 0 f32
  %sum = for serial k in cols step 1 carry %acc = %zero {
    %x = load x[r, k]
    %next = add %acc, %x
    store y[r, k], %next
    yield %next
  }
}
";

/// The outer product of two vectors less the mean of one: tiles with two axes.
const OUTER: &str = "\
program outer {
  dim n: static 9
  dim m: static 21
  in a: f32[n]
  in b: f32[m]
  out y: f32[n, m]
  axis i: n
  axis j: m
  grid g: 1 step 1

  %a = load a[:i]
  %b = load b[:j]
  %s = reduce add %b over j
  %c: f32[] = const 21 f32
  %mean = div %s, %c
  %ab = broadcast %a to [i, j]
  %bb = broadcast %b to [i, j]
  %mb = broadcast %mean to [i, j]
  %p = mul %ab, %bb
  %d = sub %p, %mb
  store y[:i, :j], %d
}
";

#[test]
fn programs_of_no_family_run_and_are_right() {
    for isa in isas() {
        let e = engine(isa);
        for (text, dims) in [(SCAN, &[("rows", 5)][..]), (OUTER, &[])] {
            let program = parse(text).unwrap();
            let report = check(&e, program, &values(dims), 4).unwrap();
            assert_eq!(report.complaint(), None, "{isa:?}\n{text}");
        }
    }
}

/// Differences of neighbours: the last element read is beyond the row unless `cols` is at most
/// `wide` − 1, which only a launch knows.
const NEIGHBOURS: &str = "\
program neighbours {
  dim rows: symbolic max 1000
  dim cols: symbolic max 1000
  dim wide: symbolic max 1000
  in x: f32[rows, wide]
  out y: f32[rows, cols]
  axis j: cols
  grid r: rows step 1

  %a = load x[r, :j]
  %b = load x[r, 1 :j]
  %d = sub %b, %a
  store y[r, :j], %d
}
";

#[test]
fn an_access_that_sizes_push_out_of_bounds_is_refused() {
    for isa in isas() {
        let e = engine(isa);
        let program = parse(NEIGHBOURS).unwrap();
        let task = Task::new(program).size("rows", 2).size("cols", 7).size("wide", 8);
        let compiled = task.plan(&e).unwrap().compile().unwrap();
        let x: Vec<f32> = (0..16).map(|i| (i * i) as f32).collect();
        let mut y = [0f32; 14];
        let sizes = LaunchOptions { dims: &[("rows", 2)], scalars: &[] };
        compiled.run_with(&sizes, &[&x], &mut [&mut y]).unwrap();
        assert_eq!(y[..3], [1.0, 3.0, 5.0], "{isa:?}");
        let mut y = [0f32; 16];
        let refused = compiled.run_with(&sizes, &[&x], &mut [&mut y]).unwrap_err();
        assert!(matches!(refused, LaunchError::OutOfBounds(_)), "{isa:?} {refused}");
        assert_eq!(y, [0f32; 16], "a refused launch ran");
    }
}

/// Reads x at any index that the data holds.
const GATHER: &str = "\
program pick {
  dim rows: symbolic max 1000
  dim cols: symbolic max 1000
  in x: f32[rows, cols]
  in at: i32[rows]
  out y: f32[rows]
  grid r: rows step 1

  %i = load at[r]
  %v = load x[r, %i]FILL
  store y[r], %v
}
";

#[test]
fn a_gather_needs_a_fill() {
    for isa in isas() {
        let e = engine(isa);
        let task = |text: &str| {
            Task::new(parse(text).unwrap()).size("rows", 2).size("cols", 3).plan(&e)?.compile()
        };
        let refused = Error::from(task(&GATHER.replace("FILL", "")).unwrap_err());
        assert!(refused.to_string().contains("give the load a fill"), "{isa:?} {refused}");
        let compiled = task(&GATHER.replace("FILL", " fill -1")).unwrap();
        let x = [0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0];
        let mut y = [9f32; 4];
        compiled.run(&[&x, &[2i32, -1, 3, i32::MAX]], &mut y).unwrap();
        assert_eq!(y, [2.0, -1.0, -1.0, -1.0], "{isa:?}");
    }
}
