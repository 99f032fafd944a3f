//! Programs of neither family, and every op by the way that serves them.

use tilewright_ir::DType;
use tilewright_ir::Program;
use tilewright_ir::builder::ProgramBuilder;
use tilewright_ir::ops::{GemmSpec, OpRequest, ShapeForm, Trans, catalog, gemm};
use tilewright_ir::program::*;
use tilewright_kernel::lower::{Options, Rule, lower_any, preconditions};
use tilewright_kernel::sim::Order;

use crate::common::*;

fn run(program: &Program, dims: &[(&str, u64)], tolerance: Tolerance) {
    for lanes in [1, 4, 16, 32] {
        let kernels = lower_any(program, lanes, &Options::default()).unwrap();
        round_trips(&kernels.launches[0]);
        let launch = launch(program, dims, 0, 77);
        let context = format!("{} by {lanes} lanes", program.name);
        check(program, &kernels, &launch, tolerance, &[Order::Forward], &context);
    }
}

#[test]
fn every_row_op() {
    for op in catalog().iter().filter(|op| op.form == ShapeForm::Rows) {
        for dtype in [DType::F32, DType::F16] {
            for n in [0, 1, 19, 32] {
                let mut program = op.build(&OpRequest::generic(dtype)).unwrap();
                program.bind("cols", n).unwrap();
                run(&program, &[("rows", 2)], Tolerance::rows(n, dtype));
            }
        }
    }
}

#[test]
fn products() {
    for trans in Trans::ALL {
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let mut spec = GemmSpec { trans, block: [8, 16, 8], ..GemmSpec::plain(dtype) };
            spec.batch = trans == Trans::Tt;
            let program = gemm(&spec).unwrap();
            let dims = [("batch", 2), ("m", 9), ("n", 18), ("k", 11)];
            run(&program, &dims, Tolerance::matrix(11, dtype));
        }
    }
}

/// Two products in one program: softmax(q·kᵀ)·v over blocks of rows.
fn attention() -> Program {
    let mut b = ProgramBuilder::new("attention");
    let (t, d) = (b.dim("t", DimKind::Static(13)), b.dim("d", DimKind::Static(6)));
    let rows = b.dim("rows", DimKind::Symbolic { divisor: 1, max: 1000 });
    let f = DType::F32;
    let q = b.tensor("q", Access::In, f, &[rows, d]);
    let k = b.tensor("k", Access::In, f, &[t, d]);
    let v = b.tensor("v", Access::In, f, &[t, d]);
    let o = b.tensor("o", Access::Out, f, &[rows, d]);
    let r = b.grid("r", rows, Extent::Const(4));
    let i = b.axis("i", Extent::Const(4));
    let (j, l, e) = (b.axis("j", t), b.axis("l", d), b.axis("e", d));
    let q = b.load(q, vec![Coord::tile(r, i), Coord::along(l)], Bounds::Fill(0.0));
    let k = b.load(k, vec![Coord::along(j), Coord::along(l)], Bounds::Assume);
    let zero = b.fill(0.0, f, &[i, j]);
    let s = b.mma(q, k, zero);
    let m = b.reduce(ReduceOp::Max, s, j);
    let s = b.map(MapOp::Sub, &[s, m]);
    let p = b.map(MapOp::Exp, &[s]);
    let sum = b.reduce(ReduceOp::Add, p, j);
    let v = b.load(v, vec![Coord::along(j), Coord::along(e)], Bounds::Assume);
    let zero = b.fill(0.0, f, &[i, e]);
    let pv = b.mma(p, v, zero);
    let out = b.map(MapOp::Div, &[pv, sum]);
    b.store(o, vec![Coord::tile(r, i), Coord::along(e)], out, Bounds::Fill(0.0));
    b.finish()
}

#[test]
fn two_products() {
    for rows in [1, 4, 9] {
        run(&attention(), &[("rows", rows)], Tolerance::rows(64, DType::F32));
    }
}

/// A loop that swaps two carried tiles, one of them transposed, and counts in a carried scalar.
fn swap() -> Program {
    let mut b = ProgramBuilder::new("swap");
    let n = b.dim("n", DimKind::Static(5));
    let times = b.dim("times", DimKind::Symbolic { divisor: 1, max: 100 });
    let f = DType::F32;
    let x = b.tensor("x", Access::In, f, &[n, n]);
    let y = b.tensor("y", Access::In, f, &[n, n]);
    let o = b.tensor("o", Access::Out, f, &[n, n]);
    let c = b.tensor("c", Access::Out, f, &[]);
    let (i, j) = (b.axis("i", n), b.axis("j", n));
    let at = || vec![Coord::along(i), Coord::along(j)];
    let a = b.load(x, at(), Bounds::Assume);
    let d = b.load(y, at(), Bounds::Assume);
    let zero = b.constant(0.0, f);
    let one = b.constant(1.0, f);
    let results =
        b.repeat(LoopKind::Serial, "t", times, Extent::Const(1), &[a, d, zero], |b, _, carried| {
            let flipped = b.reindex(carried[1], &[(i, j), (j, i)]);
            let count = b.map(MapOp::Add, &[carried[2], one]);
            let scaled = b.map(MapOp::Add, &[carried[0], count]);
            vec![flipped, scaled, count]
        });
    let out = b.map(MapOp::Sub, &[results[0], results[1]]);
    b.store(o, at(), out, Bounds::Assume);
    b.store(c, vec![], results[2], Bounds::Assume);
    b.finish()
}

#[test]
fn carried_tiles() {
    for times in [0, 1, 2, 5] {
        run(&swap(), &[("times", times)], Tolerance::rows(5, DType::F32));
    }
}

/// Four grid dimensions and a symbolic step.
fn deep_grid() -> Program {
    let mut b = ProgramBuilder::new("deep");
    let s = b.dim("s", DimKind::Symbolic { divisor: 1, max: 50 });
    let two = Extent::Const(2);
    let x = b.tensor("x", Access::In, DType::F32, &[two, two, two, s, two]);
    let y = b.tensor("y", Access::Out, DType::F32, &[two, two, two, s, two]);
    let one = Extent::Const(1);
    let grid: Vec<IndexId> = ["p", "q", "r"].iter().map(|n| b.grid(n, two, one)).collect();
    let last = b.grid("t", s, s);
    let (i, j) = (b.axis("i", s), b.axis("j", two));
    let at = || {
        let outer = grid.iter().map(|g| Coord::at(*g));
        outer.chain([Coord::tile(last, i), Coord::along(j)]).collect::<Vec<_>>()
    };
    let v = b.load(x, at(), Bounds::Assume);
    let v = b.map(MapOp::Add, &[v, v]);
    b.store(y, at(), v, Bounds::Assume);
    b.finish()
}

#[test]
fn four_grid_dimensions() {
    for s in [1, 3, 17] {
        run(&deep_grid(), &[("s", s)], Tolerance::rows(1, DType::F32));
    }
}

#[test]
fn tiles_have_a_bound() {
    let mut b = ProgramBuilder::new("wide");
    let n = b.dim("n", DimKind::Symbolic { divisor: 1, max: 1 << 31 });
    let x = b.tensor("x", Access::In, DType::F32, &[n, n]);
    let y = b.tensor("y", Access::Out, DType::F32, &[n]);
    let (i, j) = (b.axis("i", n), b.axis("j", n));
    let v = b.load(x, vec![Coord::along(i), Coord::along(j)], Bounds::Assume);
    let s = b.reduce(ReduceOp::Add, v, j);
    b.store(y, vec![Coord::along(i)], s, Bounds::Assume);
    let error = lower_any(&b.finish(), 16, &Options::default()).unwrap_err();
    assert_eq!(error.rule, Rule::ExtentKnown);
}

/// An access that is assumed in bounds, and isn't for every size.
#[test]
fn assumed_bounds_are_preconditions() {
    let mut b = ProgramBuilder::new("shifted");
    let n = b.dim("n", DimKind::Symbolic { divisor: 1, max: 1000 });
    let m = b.dim("m", DimKind::Symbolic { divisor: 1, max: 1000 });
    let x = b.tensor("x", Access::In, DType::F32, &[n]);
    let y = b.tensor("y", Access::Out, DType::F32, &[m]);
    let i = b.axis("i", m);
    let shifted = Coord { origin: Origin::constant(2), axis: Some(i), gather: None };
    let v = b.load(x, vec![shifted], Bounds::Assume);
    b.store(y, vec![Coord::along(i)], v, Bounds::Assume);
    let program = b.finish();
    let [condition] = &preconditions(&program)[..] else { panic!("not one precondition") };
    let (n, m) = (program.dim("n").unwrap(), program.dim("m").unwrap());
    let with = |size: u64, count: u64| {
        condition.check(&program, |d| {
            if d == n {
                size
            } else if d == m {
                count
            } else {
                0
            }
        })
    };
    assert!(with(10, 8).is_ok());
    assert!(with(0, 0).is_ok());
    let error = with(10, 9).unwrap_err();
    assert_eq!((error.low, error.high, error.size), (2, 10, 10));
    assert!(preconditions(&attention()).is_empty());
}
