use tilewright_ir::DType;
use tilewright_ir::program::{Access, MapOp, ReduceOp};

use super::KernelBuilder;
use crate::kernel::*;
use crate::text::print;

fn builder() -> KernelBuilder {
    KernelBuilder::new("k", 32, 2)
}

fn count(kernel: &Kernel) -> usize {
    kernel.body.count()
}

#[test]
fn constants_fold() {
    let mut b = builder();
    let (six, seven) = (b.int(6), b.int(7));
    let product = b.mul(six, seven);
    assert_eq!(b.known(product), Some(42));
    let quotient = b.div(product, seven);
    assert_eq!(b.known(quotient), Some(6));
    let below = b.compare(MapOp::Lt, six, seven);
    assert_eq!(b.known(below), Some(1));
    let most = b.int(i64::MAX);
    let over = b.add(most, six);
    assert_eq!(b.known(over), None);
}

#[test]
fn identities_fold() {
    let mut b = builder();
    let x = b.group_id(0);
    let (zero, one) = (b.int(0), b.int(1));
    assert_eq!(b.add(x, zero), x);
    assert_eq!(b.add(zero, x), x);
    assert_eq!(b.mul(x, one), x);
    assert_eq!(b.div(x, one), x);
    assert_eq!(b.mul(x, zero), zero);
    assert_eq!(b.rem(x, one), zero);
    assert_eq!(b.sub(x, x), zero);
    assert_eq!(b.min(x, x), x);
    // (x·2 + 3)·4 − 12 = x·8
    let a = b.mul_int(x, 2);
    let a = b.add_int(a, 3);
    let a = b.mul_int(a, 4);
    let a = b.add_int(a, -12);
    assert_eq!(a, b.mul_int(x, 8));
}

#[test]
fn sums_have_one_order() {
    let mut b = builder();
    let (x, y, z) = (b.group_id(0), b.group_id(1), b.subgroup_id());
    let xy = b.add(x, y);
    let one = b.add(xy, z);
    let zy = b.add(z, y);
    let other = b.add(zy, x);
    assert_eq!(one, other);
}

#[test]
fn invariant_arithmetic_leaves_loops() {
    let mut b = builder();
    let buffer = b.buffer("x", DType::F32, Access::InOut, 4, ArgSource::Free);
    let n = b.number("n", Elem::Index, ArgSource::Free);
    let (n, zero, group) = (b.arg(n), b.int(0), b.grid(Size::Const(9), 1));
    b.for_loop((zero, n, 1), 1, &[], |b, i, _| {
        // i + group·100: the product doesn't depend on the loop.
        let row = b.mul_int(group, 100);
        let at = b.add(i, row);
        let place = Place::strided(Memory::Global(buffer), at, 1);
        let x = b.load1(place, None);
        b.store(place, &[x], None);
        vec![]
    });
    let kernel = b.finish();
    let [.., product, repeat] = kernel.body.stmts.as_slice() else { panic!("{}", print(&kernel)) };
    assert!(matches!(product.op, Op::Map { op: MapOp::Mul, .. }), "{}", print(&kernel));
    let Op::For { body, .. } = &repeat.op else { panic!("{}", print(&kernel)) };
    assert_eq!(body.stmts.len(), 3);
    assert_eq!(crate::validate::validate(&kernel), Ok(()));
}

#[test]
fn a_division_that_may_fail_stays() {
    let mut b = builder();
    let n = b.number("n", Elem::Index, ArgSource::Free);
    let buffer = b.buffer("x", DType::I32, Access::Out, 4, ArgSource::Free);
    let (n, zero) = (b.arg(n), b.int(0));
    let group = b.grid(Size::Const(1), 1);
    let positive = b.compare(MapOp::Gt, n, zero);
    b.if_then(positive, |b| {
        let q = b.div(group, n);
        let value = b.cast(q, Elem::Data(DType::I32));
        let one = b.int(1);
        let guard = Some(Guard::count(one, 0.0));
        b.store(Place::uniform(Memory::Global(buffer), zero), &[value], guard);
    });
    let kernel = b.finish();
    let before_if = &kernel.body.stmts[..kernel.body.stmts.len() - 1];
    assert!(!before_if.iter().any(|s| matches!(s.op, Op::Map { op: MapOp::Div, .. })));
    assert_eq!(crate::validate::validate(&kernel), Ok(()));
}

#[test]
fn scopes_settle_through_loops() {
    let mut b = builder();
    let buffer = b.buffer("x", DType::F32, Access::In, 4, ArgSource::Free);
    let (zero, ten) = (b.int(0), b.int(10));
    let start = b.literal(0.0, DType::F32);
    let mut inside = start;
    let sums = b.for_loop((zero, ten, 1), 1, &[start, start], |b, i, carried| {
        let x = b.load1(Place::strided(Memory::Global(buffer), i, 1), None);
        let y = b.load1(Place::uniform(Memory::Global(buffer), i), None);
        inside = b.map(MapOp::Neg, &[carried[0]]);
        let sum = b.map(MapOp::Add, &[inside, x]);
        let uniform = b.map(MapOp::Add, &[carried[1], y]);
        vec![sum, uniform]
    });
    // The first carry meets a lane-varying value, so everything made of it varies.
    assert_eq!(b.scope(inside), Scope::Lane);
    assert_eq!(b.scope(sums[0]), Scope::Lane);
    assert_eq!(b.scope(sums[1]), Scope::Grid);
    let all = b.collective(Collective::Reduce(ReduceOp::Add), sums[0]);
    assert_eq!(b.scope(all), Scope::Subgroup);
}

#[test]
fn short_loops_and_known_conditions_are_placed() {
    let mut b = builder();
    let (zero, one) = (b.int(0), b.int(1));
    let x = b.group_id(0);
    let none = b.for_loop((one, zero, 1), 1, &[x], |_, _, _| unreachable!());
    assert_eq!(none, [x]);
    let once = b.for_loop((zero, one, 4), 1, &[x], |b, i, c| {
        assert_eq!(b.known(i), Some(0));
        vec![b.add_int(c[0], 5)]
    });
    assert_eq!(once, [b.add_int(x, 5)]);
    let yes = b.compare(MapOp::Ge, one, zero);
    let chosen = b.if_else(yes, |_| vec![x], |_| unreachable!());
    assert_eq!(chosen, [x]);
    // Nothing has an effect, so nothing is left.
    assert_eq!(count(&b.finish()), 0);
}

#[test]
fn names_are_unique() {
    let mut b = builder();
    b.shared("t", DType::F32, 1, 1, Layout::Plain);
    b.private("t", DType::F32, 1);
    b.group_barrier("t");
    let kernel = b.finish();
    assert_eq!(kernel.shared.iter().next().unwrap().1.name, "t");
    assert_eq!(kernel.private.iter().next().unwrap().1.name, "t_2");
    assert_eq!(kernel.barriers.iter().next().unwrap().1.name, "t_3");
}
