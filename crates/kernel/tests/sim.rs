//! The simulator on small kernels: values, counts, and every fault.

use tilewright_ir::DType;
use tilewright_kernel::kernel::Kernel;
use tilewright_kernel::sim::{
    FaultKind, LaneOrder, Order, SimArg, SimError, SimOptions, SimReport, run,
};
use tilewright_kernel::text::parse;

fn kernel(text: &str) -> Kernel {
    match parse(text) {
        Ok(kernel) => kernel,
        Err(error) => panic!("{error}\n{text}"),
    }
}

fn f32s(n: usize) -> Vec<f64> {
    (0..n).map(|i| f64::from((i as f32 * 0.37).sin())).collect()
}

/// Runs in every order, which must agree; gives the last argument and the first report.
fn every_order(kernel: &Kernel, args: &[SimArg]) -> (Vec<f64>, SimReport) {
    let mut first: Option<(Vec<SimArg>, SimReport)> = None;
    for order in Order::ALL {
        let mut args = args.to_vec();
        let report = match run(kernel, &mut args, &SimOptions::with_order(order)) {
            Ok(report) => report,
            Err(error) => panic!("{order:?}: {error}\n{kernel}"),
        };
        let (same, _) = first.get_or_insert_with(|| (args.clone(), report));
        let bits = |args: &[SimArg]| -> Vec<u64> {
            args.iter().flat_map(|a| a.data().iter().map(|x| x.to_bits())).collect()
        };
        assert_eq!(bits(same), bits(&args), "{order:?} gives something else");
    }
    let (args, report) = first.expect("there are orders");
    (args.last().expect("there are arguments").data().to_vec(), report)
}

const SCALE: &str = "
kernel scale lanes 32 subgroups 1 {
  grid n step 32
  arg n: index
  arg a: f32
  arg x: buffer f32 in align 16
  arg y: buffer f32 out align 16
  %g: index@group = group_id 0
  %w: index@grid = const 32
  %b: index@group = mul %g, %w
  %n: index@grid = arg n
  %left: index@group = sub %n, %b
  %a: f32@grid = arg a
  %x: f32@lane = load x[%b + lane*1] where count %left
  %y: f32@lane = mul %x, %a
  store y[%b + lane*1], %y where count %left
}
";

#[test]
fn a_guarded_tail_writes_exactly_its_elements() {
    let k = kernel(SCALE);
    for n in [0, 1, 31, 32, 33, 100] {
        let x = f32s(n);
        let args = [
            SimArg::Index(n as i64),
            SimArg::Number(3.0),
            SimArg::buffer(DType::F32, x.clone()),
            SimArg::output(DType::F32, n),
        ];
        let (y, report) = every_order(&k, &args);
        let want: Vec<f64> = x.iter().map(|&x| f64::from(x as f32 * 3.0)).collect();
        assert_eq!(y, want);
        assert_eq!(report.groups, n.div_ceil(32) as u64);
        assert_eq!(report.global.read, 4 * n as u64);
        assert_eq!(report.global.write, 4 * n as u64);
        assert!(report.unwritten.is_empty());
    }
}

#[test]
fn elements_that_nobody_wrote_are_reported() {
    let k = kernel(SCALE);
    let mut args = [
        SimArg::Index(3),
        SimArg::Number(3.0),
        SimArg::buffer(DType::F32, f32s(3)),
        SimArg::output(DType::F32, 5),
    ];
    let report = run(&k, &mut args, &SimOptions::default()).unwrap();
    assert_eq!(report.unwritten.len(), 1);
    assert_eq!((report.unwritten[0].1, report.unwritten[0].2), (2, 3));
    assert!(args[3].data()[3].is_nan());
}

#[test]
fn arguments_that_do_not_fit_are_errors() {
    let k = kernel(SCALE);
    let good = [
        SimArg::Index(3),
        SimArg::Number(3.0),
        SimArg::buffer(DType::F32, f32s(3)),
        SimArg::output(DType::F32, 3),
    ];
    let fails = |at: usize, arg: SimArg, words: &str| {
        let mut args = good.to_vec();
        args[at] = arg;
        let error = run(&k, &mut args, &SimOptions::default()).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    };
    fails(0, SimArg::Number(3.0), "argument 0 `n`: it is of another kind");
    fails(1, SimArg::Number(0.1), "0.1 is no f32");
    fails(2, SimArg::buffer(DType::F64, f32s(3)), "a buffer of f64, not f32");
    fails(2, SimArg::buffer(DType::F32, vec![1e300]), "1e300 is no f32");
    fails(0, SimArg::Index(-1), "the grid: a size of -1");
    let error = run(&k, &mut good[..3].to_vec(), &SimOptions::default()).unwrap_err();
    assert!(error.to_string().contains("`y`: it is missing"), "{error}");
    let mut more = good.to_vec();
    more.push(SimArg::Index(0));
    let error = run(&k, &mut more, &SimOptions::default()).unwrap_err();
    assert!(error.to_string().contains("1 arguments too many"), "{error}");
    // A fault leaves the buffers in their places.
    let mut short = good.to_vec();
    short[2] = SimArg::buffer(DType::F32, f32s(2));
    let error = run(&k, &mut short, &SimOptions::default()).unwrap_err();
    assert_eq!(error.kind(), Some(FaultKind::OutOfBounds));
    assert_eq!(short[3].data().len(), 3);
}

/// Sum of a row by two subgroups: partials through shared memory, one barrier.
const ROW_SUM: &str = "
kernel row_sum lanes 32 subgroups 2 {
  grid 3 step 1
  arg x: buffer f32 in align 16
  arg y: buffer f32 out align 4
  shared part: f32[1, 2]
  barrier all: group
  %g: index@group = group_id 0
  %w: index@grid = const 64
  %row: index@group = mul %g, %w
  %s: index@subgroup = subgroup_id
  %l32: index@grid = const 32
  %off: index@subgroup = mul %s, %l32
  %b: index@subgroup = add %row, %off
  %x: f32@lane = load x[%b + lane*1]
  %p: f32@subgroup = reduce add %x
  %zero: index@grid = const 0
  %one: index@grid = const 1
  store part[%s + lane*1], %p where count %one
  barrier all
  %two: index@grid = const 2
  %q: f32@lane = load part[%zero + lane*1] where count %two
  %t: f32@subgroup = reduce add %q
  store y[%g + lane*1], %t where count %one
}
";

#[test]
fn two_subgroups_race_on_the_output() {
    // Both subgroups store y[g]: the same value, but nothing orders them.
    let mut args = [SimArg::buffer(DType::F32, f32s(192)), SimArg::output(DType::F32, 3)];
    let error = run(&kernel(ROW_SUM), &mut args, &SimOptions::default()).unwrap_err();
    assert_eq!(error.kind(), Some(FaultKind::DataRace), "{error}");
    let SimError::Fault(fault) = error else { panic!("a fault") };
    assert_eq!(fault.address, Some(("y".to_string(), 0)));
    assert_eq!(fault.subgroup, 1);
    assert!(fault.text.starts_with("store y["), "{}", fault.text);
}

#[test]
fn a_row_sum_over_two_subgroups() {
    let store = "  store y[%g + lane*1], %t where count %one";
    let guarded = format!("  %first: bool@subgroup = eq %s, %zero\n  if %first {{\n{store}\n  }}");
    let text = ROW_SUM.replace(store, &guarded);
    let x = f32s(192);
    let args = [SimArg::buffer(DType::F32, x.clone()), SimArg::output(DType::F32, 3)];
    let (y, report) = every_order(&kernel(&text), &args);
    for (row, y) in x.chunks(64).zip(y) {
        assert!((row.iter().sum::<f64>() - y).abs() < 1e-5);
    }
    assert_eq!(report.barriers, 3);
    assert_eq!(report.collectives, 2 * 2 * 3);
    assert_eq!(report.shared.write, 2 * 3 * 4);
    assert_eq!(report.shared.read, 2 * 2 * 3 * 4);
    // Without the barrier it is a race, in every order.
    let racy = kernel(&text.replace("  barrier all\n", ""));
    for order in Order::ALL {
        let error = run(&racy, &mut args.to_vec(), &SimOptions::with_order(order)).unwrap_err();
        let kind = error.kind().expect("a fault");
        assert!(matches!(kind, FaultKind::DataRace | FaultKind::Uninitialised), "{error}");
    }
}

/// A kernel of two subgroups with some memory around the statements.
fn body(statements: &str) -> Kernel {
    kernel(&format!(
        "kernel k lanes 32 subgroups 2 {{
  arg x: buffer f32 in align 16
  arg y: buffer f32 out align 16
  arg z: buffer f32 inout align 16
  shared sh: f32[8, 64]
  shared pad: f32[8, 4] padded 1
  private p: f32[4]
  barrier all: group
  barrier sub: subgroup
  barrier one: group participants 1
  role first: subgroups 0..1
  role second: subgroups 1..2
  %c0: index@grid = const 0
  %c1: index@grid = const 1
  %c64: index@grid = const 64
  %f: f32@grid = const 0.5
  %s: index@subgroup = subgroup_id
  %l: index@lane = lane
  %fl: f32@lane = cast %l
  %base: index@subgroup = mul %s, %c64
  %lead: bool@subgroup = eq %s, %c0
  %l0: bool@lane = eq %l, %c0
{statements}
}}\n"
    ))
}

fn body_args() -> Vec<SimArg> {
    vec![
        SimArg::buffer(DType::F32, f32s(256)),
        SimArg::output(DType::F32, 256),
        SimArg::buffer(DType::F32, f32s(256)),
    ]
}

fn kind(statements: &str, options: &SimOptions) -> Option<FaultKind> {
    match run(&body(statements), &mut body_args(), options) {
        Ok(_) => None,
        Err(error) => match error.kind() {
            Some(kind) => Some(kind),
            None => panic!("{error}"),
        },
    }
}

/// Statements and the fault that they must end in, in every order.
#[test]
fn every_fault_is_found_in_every_order() {
    use FaultKind::*;
    let cases: &[(FaultKind, &str)] = &[
        (DataRace, "store z[%c0 + lane*1], %fl"),
        (
            DataRace,
            "%a: f32@lane = load z[%c0 + lane*1]\nin_role second {\n store z[%c0 + lane*1], %fl\n}",
        ),
        (
            DataRace,
            "in_role first {\n store z[%c0 + lane*1], %fl\n}\nin_role second {\n %a: f32@lane = load z[%c0 + lane*1]\n}",
        ),
        (
            DataRace,
            "in_role first {\n store z[%c0 + lane*1], %fl\n barrier one\n}\nin_role second {\n barrier one\n %a: f32@lane = load z[%c0 + lane*1]\n}",
        ),
        // The lanes store different values to one element.
        (LaneRace, "in_role first {\n store y[%c0], %fl\n}"),
        // Lane 0 overwrites what all lanes have read.
        (
            LaneRace,
            "in_role first {\n %a: f32@subgroup = load z[%c0]\n store z[%c0 + lane*1], %fl where count %c1\n}",
        ),
        // A lane reads what its neighbour wrote.
        (
            LaneRace,
            "in_role first {\n store sh[%c0 + lane*1], %fl\n %a: f32@lane = load sh[%c1 + lane*1]\n}",
        ),
        (
            LaneRace,
            "in_role first {\n store y[%c0], %f\n %g: f32@grid = const 1.0\n store y[%c0], %g\n}",
        ),
        (OutOfBounds, "%a: f32@lane = load x[%c0 + lane*9]"),
        (OutOfBounds, "store sh[%c0 + lane*17], %f"),
        (OutOfBounds, "%m: index@grid = const -1\n%a: f32@lane = load x[%m + lane*1]"),
        (OutOfBounds, "%m: index@grid = const 4\nstore p[%m], %f"),
        (
            OutOfBounds,
            "%m: index@grid = const 9223372036854775807\n%a: f32@lane = load x[%m + lane*9]",
        ),
        (Misaligned, "%a: f32@lane, %b: f32@lane = load x[%c1 + lane*2]"),
        (
            Misaligned,
            "%n: index@grid = const 8\nstore pad[%c0 + lane*4], %f, %f, %f, %f where count %n",
        ),
        (Uninitialised, "%a: f32@lane = load sh[%base + lane*1]"),
        (Uninitialised, "%a: f32@lane = load p[%c0]"),
        (Uninitialised, "if %l0 {\n store p[%c0], %f\n}\n%a: f32@lane = load p[%c0]"),
        (Poisoned, "%a: f32@lane = load y[%base + lane*1]"),
        (BarrierDivergence, "if %lead {\n barrier all\n}"),
        (BarrierDivergence, "if %lead {\n barrier all\n} else {\n barrier all\n}"),
        (
            BarrierDivergence,
            "%n: index@subgroup = add %s, %c1\nfor %i: index@subgroup in %c0..%n step 1 {\n barrier all\n}",
        ),
    ];
    for (want, statements) in cases {
        for order in Order::ALL {
            let found = kind(statements, &SimOptions::with_order(order));
            assert_eq!(found, Some(*want), "{order:?}\n{statements}");
        }
    }
}

#[test]
fn what_is_ordered_is_no_fault() {
    let cases = [
        // All lanes store and read one value.
        "in_role first {\n store y[%c0], %f\n %a: f32@subgroup = load y[%c0]\n}",
        // Own elements need no barrier.
        "store z[%base + lane*1], %fl\n%a: f32@lane = load z[%base + lane*1]\nstore z[%base + lane*1], %a",
        // A subgroup barrier orders lanes, a group barrier subgroups.
        "store sh[%base + lane*1], %fl\nbarrier sub\n%a: f32@subgroup = load sh[%base]\nbarrier all\n%b: f32@lane = load sh[%c0 + lane*1]\n%d: f32@lane = load sh[%c64 + lane*1]\nbarrier all\nin_role second {\n store sh[%c0 + lane*1], %fl\n}",
        // Both only read.
        "%a: f32@lane = load z[%c0 + lane*1]\n%b: f32@subgroup = load x[%c0]",
        // A lane-varying branch stores only in its lanes.
        "in_role first {\n if %l0 {\n  store y[%c0], %fl\n } else {\n  store y[%c0 + lane*1], %f\n }\n}",
    ];
    for statements in cases {
        for order in Order::ALL {
            let found = kind(statements, &SimOptions::with_order(order));
            assert_eq!(found, None, "{order:?}\n{statements}");
        }
    }
    // In lockstep, lanes are ordered by the statements.
    let neighbour = "in_role first {\n store sh[%c0 + lane*1], %fl\n %n: index@grid = const 31\n %a: f32@lane = load sh[%c1 + lane*1] where count %n\n}";
    let lockstep = SimOptions { lanes: LaneOrder::Lockstep, ..SimOptions::default() };
    assert_eq!(kind(neighbour, &lockstep), None);
    assert_eq!(kind(neighbour, &SimOptions::default()), Some(FaultKind::LaneRace));
}

#[test]
fn the_step_limit_ends_long_loops() {
    let options = SimOptions { max_steps: 1000, ..SimOptions::default() };
    let long = "%n: index@grid = const 1000000000\nfor %i: index@grid in %c0..%n step 1 {\n}";
    assert_eq!(kind(long, &options), Some(FaultKind::StepLimit));
}

#[test]
fn groups_race_on_global_memory() {
    let text = "kernel k lanes 32 subgroups 1 {
  grid 2 step 1
  arg y: buffer f32 out align 4
  %c0: index@grid = const 0
  %f: f32@grid = const 0.5
  store y[%c0 + lane*1], %f
}";
    for order in Order::ALL {
        let mut args = [SimArg::output(DType::F32, 32)];
        let error = run(&kernel(text), &mut args, &SimOptions::with_order(order)).unwrap_err();
        assert_eq!(error.kind(), Some(FaultKind::DataRace));
        assert!(error.to_string().contains("of cluster"), "{error}");
    }
}

/// The last group to arrive adds up what all have stored; the counter orders them.
const LAST_GROUP: &str = "
kernel last lanes 32 subgroups 1 {
  grid 4 step 1
  arg counter: buffer i32 inout align 4
  arg part: buffer f32 inout align 4
  arg y: buffer f32 out align 4
  barrier sub: subgroup
  %c0: index@grid = const 0
  %c1: index@grid = const 1
  %c4: index@grid = const 4
  %g: index@group = group_id 0
  %f: f32@group = cast %g
  store part[%g + lane*1], %f where count %c1
  barrier sub
  %one: i32@grid = const 1
  %old: i32@lane = atomic add counter[%c0 + lane*1], %one acq_rel grid where count %c1
  %last: i32@subgroup = broadcast 0 %old
  %three: i32@grid = const 3
  %is: bool@subgroup = eq %last, %three
  if %is {
    %p: f32@lane = load part[%c0 + lane*1] where count %c4
    %sum: f32@subgroup = reduce add %p
    store y[%c0 + lane*1], %sum where count %c1
  }
}
";

#[test]
fn release_and_acquire_order_groups() {
    let args = [
        SimArg::buffer(DType::I32, vec![0.0]),
        SimArg::buffer(DType::F32, vec![0.0; 4]),
        SimArg::output(DType::F32, 1),
    ];
    let (y, _) = every_order(&kernel(LAST_GROUP), &args);
    assert_eq!(y, [6.0]);
    for (from, to) in [("acq_rel grid", "relaxed grid"), ("acq_rel grid", "acquire grid")] {
        let weak = kernel(&LAST_GROUP.replace(from, to));
        let error = run(&weak, &mut args.to_vec(), &SimOptions::default()).unwrap_err();
        assert_eq!(error.kind(), Some(FaultKind::DataRace), "{to}: {error}");
    }
    // Ordered over the group only, atomics of two groups race.
    let narrow = kernel(&LAST_GROUP.replace("acq_rel grid", "acq_rel group"));
    let error = run(&narrow, &mut args.to_vec(), &SimOptions::default()).unwrap_err();
    assert_eq!(error.kind(), Some(FaultKind::DataRace), "{error}");
}

#[test]
fn divergence_carries_and_collectives_give_the_right_values() {
    let k = body(
        "%odd: index@lane = mod %l, %c1\n\
         %c2: index@grid = const 2\n\
         %half: index@lane = mod %l, %c2\n\
         %even: bool@lane = eq %half, %c0\n\
         %v: f32@lane = if %even {\n  %d: f32@lane = add %fl, %fl\n  yield %d\n} else {\n  %e: f32@lane = neg %fl\n  yield %e\n}\n\
         %n: index@grid = const 5\n\
         %a: f32@lane, %b: f32@lane = for %i: index@grid in %c0..%n step 2 carry %ka: f32@lane = %v, %kb: f32@lane = %fl {\n\
           %fi: f32@grid = cast %i\n  %kc: f32@lane = add %ka, %fi\n  yield %kb, %kc\n}\n\
         %x: f32@lane = shuffle_xor 1 %a\n\
         %m: f32@subgroup = reduce max %x\n\
         %y: f32@subgroup = broadcast 3 %b\n\
         %any: bool@subgroup = any %l0\n\
         store y[%base + lane*1], %x\n\
         %o: index@grid = const 32\n\
         %o2: index@subgroup = add %base, %o\n\
         store y[%o2 + lane*1], %y",
    );
    let mut args = body_args();
    run(&k, &mut args, &SimOptions::default()).unwrap();
    let v: Vec<f32> = (0..32).map(|l| if l % 2 == 0 { 2.0 } else { -1.0 } * l as f32).collect();
    let (mut a, mut b) = (v, (0..32).map(|l| l as f32).collect::<Vec<f32>>());
    for i in [0.0, 2.0, 4.0] {
        let next: Vec<f32> = a.iter().map(|a| a + i).collect();
        (a, b) = (b, next);
    }
    let y = args[1].data();
    for lane in 0..32 {
        assert_eq!(y[lane], f64::from(a[lane ^ 1]), "lane {lane}");
        assert_eq!(y[32 + lane], f64::from(b[3]));
    }
}

#[test]
fn gathers_and_vectors_read_the_right_elements() {
    let k = body(
        "%c8: index@grid = const 8\n%r: index@lane = mul %l, %l\n%ri: index@lane = mod %r, %c8\n\
         %a: f32@lane = load x[%c8 + lane*2 + %ri]\n\
         %p0: f32@lane, %p1: f32@lane = load x[%c0 + lane*2] where count %n fill -1.0\n\
         %t: f32@lane = add %p0, %p1\n\
         %u: f32@lane = add %t, %a\n\
         store y[%base + lane*1], %u"
            .replace(
                "%c8: index@grid = const 8\n",
                "%c8: index@grid = const 8\n%n: index@grid = const 5\n",
            )
            .as_str(),
    );
    let mut args = body_args();
    let x: Vec<f32> = args[0].data().iter().map(|&x| x as f32).collect();
    run(&k, &mut args, &SimOptions::default()).unwrap();
    for lane in 0..32 {
        let part = |i: usize| if i < 5 { x[i] } else { -1.0 };
        let want = part(2 * lane) + part(2 * lane + 1) + x[8 + 2 * lane + lane * lane % 8];
        assert_eq!(args[1].data()[lane], f64::from(want), "lane {lane}");
    }
}

/// Each of two groups writes to the other's shared memory; the halves of a barrier around it.
const EXCHANGE: &str = "
kernel exchange lanes 32 subgroups 2 cluster 2 {
  grid 4 step 1
  arg y: buffer f32 out align 4
  shared part: f32[1, 4]
  barrier start: cluster
  barrier all: cluster
  %c0: index@grid = const 0
  %c1: index@grid = const 1
  %c2: index@grid = const 2
  barrier_arrive start
  %g: index@group = group_id 0
  %rank: index@group = cluster_rank
  %s: index@subgroup = subgroup_id
  %first: index@group = mul %rank, %c2
  %own: index@subgroup = add %first, %s
  %f: f32@subgroup = cast %own
  barrier_wait start
  store part@cluster[%own + lane*4], %f where count %c2
  barrier all
  %a: f32@lane = load part[%s + lane*2] where count %c2
  %sum: f32@subgroup = reduce add %a
  %to: index@group = mul %g, %c2
  %at: index@subgroup = add %to, %s
  store y[%at + lane*1], %sum where count %c1
}
";

#[test]
fn groups_of_a_cluster_reach_each_other() {
    for order in Order::ALL {
        let mut args = [SimArg::output(DType::F32, 8)];
        run(&kernel(EXCHANGE), &mut args, &SimOptions::with_order(order)).unwrap();
        // Subgroup 0 of each group sums partials 0 and 2, subgroup 1 partials 1 and 3.
        assert_eq!(args[0].data(), &[2.0, 4.0, 2.0, 4.0, 2.0, 4.0, 2.0, 4.0]);
    }
}

#[test]
fn misuse_of_a_cluster_is_found_in_every_order() {
    let without = |line: &str| EXCHANGE.replacen(line, "", 1);
    // Nothing says that the other group has started.
    let early = without("  barrier_wait start\n").replacen("  barrier_arrive start\n", "", 1);
    // The last store reaches a group that may have ended.
    let late = EXCHANGE.replacen(
        "  store y[",
        "  store part@cluster[%own + lane*4], %f where count %c2\n  store y[",
        1,
    );
    // Partials are read before they are there.
    let unordered = without("  barrier all\n");
    // Arrived twice, or never.
    let twice = EXCHANGE.replacen("barrier_wait start", "barrier_arrive start", 1);
    let never = without("  barrier_arrive start\n");
    for (text, kind, part) in [
        (early, FaultKind::DataRace, "has started"),
        (late, FaultKind::DataRace, "reach"),
        (unordered, FaultKind::Uninitialised, ""),
        (twice, FaultKind::BarrierDivergence, "hasn't waited"),
        (never, FaultKind::BarrierDivergence, "hasn't arrived"),
    ] {
        for order in Order::ALL {
            let mut args = [SimArg::output(DType::F32, 8)];
            let error = run(&kernel(&text), &mut args, &SimOptions::with_order(order)).unwrap_err();
            let race = matches!(error.kind(), Some(FaultKind::DataRace));
            let found = error.kind() == Some(kind) || kind == FaultKind::Uninitialised && race;
            assert!(found && (race || error.to_string().contains(part)), "{order:?}: {error}");
        }
    }
}
