//! Matrix atoms and asynchronous work in the simulator.

use tilewright_ir::DType;
use tilewright_kernel::kernel::Kernel;
use tilewright_kernel::sim::{FaultKind, Order, SimArg, SimOptions, run};
use tilewright_kernel::text::parse;
use tilewright_kernel::validate::validate;

const TMA: &str = include_str!("../../../tests/filetests/kernel/tma_wgmma.kernel");

fn kernel(text: &str) -> Kernel {
    match parse(text) {
        Ok(kernel) => kernel,
        Err(error) => panic!("{error}\n{text}"),
    }
}

/// Values in [−1, 1), rounded to the type.
fn seeded(dtype: DType, n: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            dtype.round((state >> 11) as f64 * f64::powi(2.0, -52) - 1.0)
        })
        .collect()
}

/// |c − A·B| ≤ (8 + √k)·u·|A||B| for every element.
fn assert_product(c: &[f64], a: &[f64], b: &[f64], (m, n, k): (usize, usize, usize)) {
    let u = f64::powi(2.0, -24);
    for i in 0..m {
        for j in 0..n {
            let (mut sum, mut size) = (0.0, 0.0);
            for p in 0..k {
                let x = a[i * k + p] * b[p * n + j];
                sum += x;
                size += x.abs();
            }
            let error = (c[i * n + j] - sum).abs();
            assert!(error <= (8.0 + (k as f64).sqrt()) * u * size, "({i}, {j}): error {error}");
        }
    }
}

fn map(data: Vec<f64>, rows: usize, cols: usize) -> SimArg {
    let dims = vec![rows as u64, cols as u64];
    SimArg::TensorMap { dtype: DType::F16, data, dims, strides: vec![cols as u64, 1] }
}

fn tma_args(m: usize, n: usize, k: usize) -> Vec<SimArg> {
    vec![
        SimArg::Index(m as i64),
        SimArg::Index(n as i64),
        SimArg::Index(k as i64),
        map(seeded(DType::F16, m * k, 1), m, k),
        map(seeded(DType::F16, k * n, 2), k, n),
        SimArg::output(DType::F32, m * n),
    ]
}

#[test]
fn a_ring_of_bulk_copies_and_wgmma_multiplies() {
    let k = kernel(TMA);
    assert_eq!(validate(&k), Ok(()));
    for (m, n, depth) in [(64, 64, 64), (100, 72, 250), (1, 3, 1), (65, 64, 448)] {
        for order in Order::ALL {
            let mut args = tma_args(m, n, depth);
            if let Err(error) = run(&k, &mut args, &SimOptions::with_order(order)) {
                panic!("{m}×{n}×{depth}, {order:?}: {error}");
            }
            let [_, _, _, a, b, c] = args.as_slice() else { panic!("six arguments") };
            assert_product(c.data(), a.data(), b.data(), (m, n, depth));
        }
    }
}

/// Every way to break the ring is found, in every order.
#[test]
fn mutants_of_the_ring_fail() {
    use FaultKind::*;
    let cases: &[(&str, &str, &[FaultKind])] = &[
        // The consumer doesn't wait for the copies.
        ("      mbarrier_wait full[%stage2] parity %parity2\n", "", &[InFlight, Uninitialised]),
        // It waits for the wrong parity, which is over from the start.
        (
            "%parity2: index@grid = mod %round2, %c2",
            "%odd: index@grid = add %round2, %c1\n%parity2: index@grid = mod %odd, %c2",
            &[InFlight, Uninitialised, NoProgress],
        ),
        // It waits for another stage.
        (
            "mbarrier_wait full[%stage2] parity %parity2",
            "mbarrier_wait full[%c0] parity %parity2",
            &[InFlight, Uninitialised, NoProgress],
        ),
        // The producer overwrites stages that are still read.
        (
            "        mbarrier_wait empty[%stage] parity %parity\n",
            "",
            &[InFlight, DataRace, Mbarrier],
        ),
        // Stages are given back before the atoms have read them.
        (
            "      wait %t00, %t01, %t02, %t03\n      mbarrier_arrive empty[%stage2]\n",
            "      mbarrier_arrive empty[%stage2]\n      wait %t00, %t01, %t02, %t03\n",
            &[DataRace],
        ),
        // The last atom may still read.
        ("wait %t00, %t01, %t02, %t03", "wait %t00, %t01, %t02, %t03 pending 1", &[WaitOrder]),
        // Bytes and arrivals that don't come.
        ("const 16384", "const 16400", &[NoProgress]),
        ("mbarrier empty: 3 arrivals 4", "mbarrier empty: 3 arrivals 5", &[NoProgress]),
        // More of them than the phase takes.
        (
            "mbarrier empty: 3 arrivals 4",
            "mbarrier empty: 3 arrivals 3",
            &[Mbarrier, NoProgress, DataRace, InFlight],
        ),
        // Nobody knows that the ring is initialised.
        ("  barrier all\n\n", "", &[Mbarrier]),
        // A consumer leaves the block.
        (
            "in_role consumer registers 240 {",
            "%three: bool@subgroup = ne %s, %c2\nif %three {\nin_role consumer registers 240 {",
            &[NonUniform, NoProgress],
        ),
    ];
    for (from, to, kinds) in cases {
        assert!(TMA.contains(from), "{from}");
        let mut text = TMA.replace(from, to);
        if to.contains("if %three") {
            text += "}\n";
        }
        let k = kernel(&text);
        assert_eq!(validate(&k), Ok(()), "{to}");
        for order in Order::ALL {
            let options = SimOptions { order, max_steps: 1_000_000, ..SimOptions::default() };
            let found = run(&k, &mut tma_args(70, 64, 600), &options).err().and_then(|e| e.kind());
            assert!(
                found.is_some_and(|f| kinds.contains(&f)),
                "{order:?} {found:?}: {from} → {to}"
            );
        }
    }
}

/// The same, where the validator sees it.
#[test]
fn mutants_that_the_validator_sees() {
    let cases = [
        ("wait %t00, %t01, %t02, %t03", "wait %t00, %t01, %t02", "token-once"),
        ("shared sa: f16[192, 64] swizzle b128", "shared sa: f16[192, 64]", "tensor-copy"),
        ("role consumer: subgroups 0..4", "role consumer: subgroups 1..4", "block-alignment"),
        ("sb(%b1 + r*%c64 + c*%c1), %d0", "sb(%b1 + r*%c64 + c*%c1), %acc", "accumulator-reuse"),
        ("yield %d3", "yield %d2", "accumulator-reuse"),
    ];
    for (from, to, rule) in cases {
        assert!(TMA.contains(from), "{from}");
        let errors = validate(&kernel(&TMA.replacen(from, to, 1))).unwrap_err();
        assert!(errors.iter().any(|e| e.rule.name() == rule), "{to}: {errors:?}");
    }
}

/// One subgroup multiplies a tile with an atom; `setup` declares `%a…` operands and `%c`.
fn one_tile(lanes: u32, dtype: DType, atom: &str, product: &str) -> Kernel {
    kernel(&format!(
        "kernel tile lanes {lanes} subgroups 1 {{
  arg m: index
  arg n: index
  arg k: index
  arg a: buffer {dtype} in align 16
  arg b: buffer {dtype} in align 16
  arg c: buffer f32 out align 16
  %c0: index@grid = const 0
  %c1: index@grid = const 1
  %c8: index@grid = const 8
  %c16: index@grid = const 16
  %m: index@grid = arg m
  %n: index@grid = arg n
  %k: index@grid = arg k
  %zero: fragment<{atom}, acc, f32>@subgroup = fragment_fill 0.0
{product}
  fragment_store c(%c0 + r*%n + c*%c1, rows %m, cols %n), %sum
}}\n"
    ))
}

/// A loop over K with fragments of depth `step`.
fn fragment_loop(atom: &str, dtype: DType, step: u32) -> String {
    format!(
        "  %sum: fragment<{atom}, acc, f32>@subgroup = for %p: index@grid in %c0..%k step {step} \
         carry %acc: fragment<{atom}, acc, f32>@subgroup = %zero {{
    %left: index@grid = sub %k, %p
    %bp: index@grid = mul %p, %n
    %fa: fragment<{atom}, a, {dtype}>@subgroup = fragment_load a(%p + r*%k + c*%c1, rows %m, cols %left)
    %fb: fragment<{atom}, b, {dtype}>@subgroup = fragment_load b(%bp + r*%n + c*%c1, rows %left, cols %n)
    %next: fragment<{atom}, acc, f32>@subgroup = mma %fa, %fb, %acc
    yield %next
  }}"
    )
}

fn check_tile(k: &Kernel, dtype: DType, (m, n, depth): (usize, usize, usize)) -> u64 {
    let mut args = vec![
        SimArg::Index(m as i64),
        SimArg::Index(n as i64),
        SimArg::Index(depth as i64),
        SimArg::buffer(dtype, seeded(dtype, m * depth, 3)),
        SimArg::buffer(dtype, seeded(dtype, depth * n, 4)),
        SimArg::output(DType::F32, m * n),
    ];
    match run(k, &mut args, &SimOptions::default()) {
        Ok(report) => {
            let [_, _, _, a, b, c] = args.as_slice() else { panic!("six arguments") };
            assert_product(c.data(), a.data(), b.data(), (m, n, depth));
            report.atoms
        }
        Err(error) => panic!("{error}\n{k}"),
    }
}

#[test]
fn every_synchronous_atom_multiplies_ragged_tiles() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let product = fragment_loop("simdgroup8x8", dtype, 8);
        let k = one_tile(32, dtype, "simdgroup8x8", &product);
        assert_eq!(check_tile(&k, dtype, (8, 8, 32)), 4);
        check_tile(&k, dtype, (5, 7, 13));
    }
    for (dtype, depth) in [(DType::F16, 16), (DType::BF16, 8)] {
        let atom = format!("mma_sync(16, 8, {depth})");
        let k = one_tile(32, dtype, &atom, &fragment_loop(&atom, dtype, depth));
        check_tile(&k, dtype, (16, 8, 64));
        check_tile(&k, dtype, (9, 3, 21));
    }
    let whole = "a(%c0 + r*%k + c*%c1, rows %m), b(%c0 + r*%n + c*%c1, cols %n)";
    for (lanes, atom) in
        [(8, "outer_product(6, 2)"), (16, "outer_product(6, 1)"), (32, "mpp(8, 16)")]
    {
        let product =
            format!("  %sum: fragment<{atom}, acc, f32>@subgroup = mma {whole}, %zero depth %k");
        let k = one_tile(lanes, DType::F32, atom, &product);
        assert_eq!(check_tile(&k, DType::F32, (6, 16, 40)), 1);
        check_tile(&k, DType::F32, (5, 11, 7));
        check_tile(&k, DType::F32, (1, 1, 0));
    }
}

#[test]
fn a_dropped_step_of_k_is_out_of_tolerance() {
    let k = one_tile(
        8,
        DType::F32,
        "outer_product(6, 2)",
        "  %less: index@grid = sub %k, %c1\n  %sum: fragment<outer_product(6, 2), acc, f32>@subgroup = \
         mma a(%c0 + r*%k + c*%c1, rows %m), b(%c0 + r*%n + c*%c1, cols %n), %zero depth %less",
    );
    let result = std::panic::catch_unwind(|| check_tile(&k, DType::F32, (6, 16, 40)));
    assert!(result.is_err());
}

/// An epilogue on fragments: scale, add a residual, ReLU, narrow.
#[test]
fn fragments_map_cast_and_store() {
    let k = kernel(
        "kernel epilogue lanes 32 subgroups 1 {
  arg x: buffer f32 in align 16
  arg y: buffer f16 out align 16
  %c0: index@grid = const 0
  %c1: index@grid = const 1
  %c8: index@grid = const 8
  %two: f32@grid = const 2.0
  %zero: f32@grid = const 0.0
  %x: fragment<simdgroup8x8, acc, f32>@subgroup = fragment_load x(%c0 + r*%c8 + c*%c1)
  %s: fragment<simdgroup8x8, acc, f32>@subgroup = fragment_map mul %x, %two
  %t: fragment<simdgroup8x8, acc, f32>@subgroup = fragment_map add %s, %x
  %u: fragment<simdgroup8x8, acc, f32>@subgroup = fragment_map max %t, %zero
  %h: fragment<simdgroup8x8, acc, f16>@subgroup = cast %u
  fragment_store y(%c0 + r*%c1 + c*%c8), %h
}",
    );
    let x = seeded(DType::F32, 64, 9);
    let mut args = [SimArg::buffer(DType::F32, x.clone()), SimArg::output(DType::F16, 64)];
    run(&k, &mut args, &SimOptions::default()).unwrap();
    for r in 0..8 {
        for c in 0..8 {
            let x = x[r * 8 + c] as f32;
            let want = DType::F16.round(f64::from((x * 2.0 + x).max(0.0)));
            // Stored transposed.
            assert_eq!(args[1].data()[c * 8 + r], want);
        }
    }
}

/// A fragment's element belongs to some lane: another statement may not read it before a barrier.
#[test]
fn fragments_and_lanes_need_barriers() {
    let text = |between: &str, read: &str| {
        kernel(&format!(
            "kernel k lanes 32 subgroups 1 {{
  arg y: buffer f32 out align 16
  shared sh: f32[8, 8]
  barrier sub: subgroup
  %c0: index@grid = const 0
  %c1: index@grid = const 1
  %c8: index@grid = const 8
  %f: fragment<simdgroup8x8, acc, f32>@subgroup = fragment_fill 1.0
  fragment_store sh(%c0 + r*%c8 + c*%c1), %f
  {between}
  {read}
}}"
        ))
    };
    let lanes = "%v: f32@lane = load sh[%c0 + lane*1]";
    let same =
        "%g: fragment<simdgroup8x8, acc, f32>@subgroup = fragment_load sh(%c0 + r*%c8 + c*%c1)";
    let turned =
        "%g: fragment<simdgroup8x8, acc, f32>@subgroup = fragment_load sh(%c0 + r*%c1 + c*%c8)";
    let fault = |k: Kernel| {
        let mut args = [SimArg::output(DType::F32, 1)];
        run(&k, &mut args, &SimOptions::default()).err().and_then(|e| e.kind())
    };
    assert_eq!(fault(text("", lanes)), Some(FaultKind::LaneRace));
    assert_eq!(fault(text("", turned)), Some(FaultKind::LaneRace));
    assert_eq!(fault(text("", same)), None);
    for read in [lanes, same, turned] {
        assert_eq!(fault(text("barrier sub", read)), None, "{read}");
    }
}

/// Two stages of cp.async with one copy in flight behind the computation.
const TWO_STAGES: &str = "
kernel two_stages lanes 32 subgroups 2 {
  arg x: buffer f32 in align 16
  arg y: buffer f32 out align 16
  shared tile: f32[2, 64]
  barrier all: group
  %c0: index@grid = const 0
  %c1: index@grid = const 1
  %c2: index@grid = const 2
  %c32: index@grid = const 32
  %c63: index@grid = const 63
  %c64: index@grid = const 64
  %c192: index@grid = const 192
  %c256: index@grid = const 256
  %s: index@subgroup = subgroup_id
  %off: index@subgroup = mul %s, %c32
  %zero: f32@grid = const 0.0
  %t0: token@subgroup = copy_async tile[%off + lane*1], x[%off + lane*1] width 1
  %sum: f32@lane, %t9: token@subgroup = for %i: index@grid in %c0..%c192 step 64 carry %acc: f32@lane = %zero, %t: token@subgroup = %t0 {
    %next: index@grid = add %i, %c64
    %trip: index@grid = div %i, %c64
    %stage: index@grid = mod %trip, %c2
    %other: index@grid = sub %c1, %stage
    %from: index@subgroup = add %next, %off
    %to0: index@grid = mul %other, %c64
    %to: index@subgroup = add %to0, %off
    %u: token@subgroup = copy_async tile[%to + lane*1], x[%from + lane*1] width 1
    wait %t pending 1
    barrier all
    %base0: index@grid = mul %stage, %c64
    %base1: index@grid = add %base0, %c63
    %base: index@subgroup = sub %base1, %off
    %v: f32@lane = load tile[%base + lane*-1]
    %n: f32@lane = add %acc, %v
    barrier all
    yield %n, %u
  }
  wait %t9
  store y[%off + lane*1], %sum
}
";

#[test]
fn copies_run_one_stage_ahead() {
    let x = seeded(DType::F32, 256, 5);
    for order in Order::ALL {
        let mut args = [SimArg::buffer(DType::F32, x.clone()), SimArg::output(DType::F32, 64)];
        if let Err(error) = run(&kernel(TWO_STAGES), &mut args, &SimOptions::with_order(order)) {
            panic!("{error}");
        }
        for (i, y) in args[1].data().iter().enumerate() {
            let want = (0..3).fold(0f32, |sum, stage| sum + x[stage * 64 + 63 - i] as f32);
            assert_eq!(*y, f64::from(want));
        }
    }
    // Without the barriers, or with both copies in flight, other lanes' data isn't there.
    let cases = [
        (
            "    wait %t pending 1\n    barrier all\n",
            "    wait %t pending 1\n",
            vec![FaultKind::DataRace, FaultKind::InFlight, FaultKind::Uninitialised],
        ),
        (
            "    %n: f32@lane = add %acc, %v\n    barrier all\n",
            "    %n: f32@lane = add %acc, %v\n",
            vec![FaultKind::DataRace, FaultKind::InFlight],
        ),
        ("wait %t pending 1", "wait %t pending 2", vec![FaultKind::WaitOrder]),
    ];
    for (from, to, kinds) in cases {
        assert!(TWO_STAGES.contains(from), "{from}");
        let k = kernel(&TWO_STAGES.replace(from, to));
        for order in Order::ALL {
            let mut args = [SimArg::buffer(DType::F32, x.clone()), SimArg::output(DType::F32, 64)];
            let found =
                run(&k, &mut args, &SimOptions::with_order(order)).err().and_then(|e| e.kind());
            assert!(found.is_some_and(|f| kinds.contains(&f)), "{order:?}: {found:?}: {to}");
        }
    }
}

/// Two groups of a cluster meet at its barrier; a rank alone doesn't pass.
#[test]
fn clusters_share_barriers_and_not_memory() {
    let text = "kernel pair lanes 32 subgroups 1 cluster 2 {
  grid 4 step 1
  arg z: buffer f32 inout align 4
  arg y: buffer f32 out align 4
  barrier both: cluster
  %c0: index@grid = const 0
  %c1: index@grid = const 1
  %c32: index@grid = const 32
  %g: index@group = group_id 0
  %rank: index@group = cluster_rank
  %f: f32@group = cast %g
  %b: index@group = mul %g, %c32
  store z[%b + lane*1], %f
  barrier both
  %other0: index@group = add %g, %c1
  %two: index@group = add %rank, %rank
  %other: index@group = sub %other0, %two
  %ob: index@group = mul %other, %c32
  %v: f32@lane = load z[%ob + lane*1]
  store y[%b + lane*1], %v
}";
    for order in Order::ALL {
        let args = [SimArg::buffer(DType::F32, vec![0.0; 128]), SimArg::output(DType::F32, 128)];
        let mut good = args.clone();
        if let Err(error) = run(&kernel(text), &mut good, &SimOptions::with_order(order)) {
            panic!("{error}");
        }
        let want: Vec<f64> = (0..128).map(|i| f64::from((i / 32) ^ 1)).collect();
        assert_eq!(good[1].data(), want);
        let racy = kernel(&text.replace("  barrier both\n", ""));
        let error = run(&racy, &mut args.clone(), &SimOptions::with_order(order)).unwrap_err();
        assert_eq!(error.kind(), Some(FaultKind::DataRace), "{error}");
    }
}
