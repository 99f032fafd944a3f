//! Kernels of single constructs, for what the lowerings for Apple GPUs use seldom or not yet.

use tilewright_ir::DType;
use tilewright_ir::program::{Access, MapOp, ReduceOp};
use tilewright_kernel::builder::KernelBuilder;
use tilewright_kernel::kernel::*;

/// Every kernel with its name.
pub fn all() -> Vec<(&'static str, Kernel)> {
    vec![
        ("construct_wide", wide()),
        ("construct_control", control()),
        ("construct_integers", integers()),
        ("construct_fragments", fragments()),
        ("construct_tensors", tensors()),
    ]
}

fn buffer(b: &mut KernelBuilder, name: &str, dtype: DType, access: Access) -> Memory {
    Memory::Global(b.buffer(name, dtype, access, 32, ArgSource::Free))
}

/// Accesses of 2, 4 and 8 elements per lane: whole, up to a limit, under a mask.
fn wide() -> Kernel {
    let mut b = KernelBuilder::new("construct_wide", 32, 1);
    let x = buffer(&mut b, "x", DType::F32, Access::In);
    let h = buffer(&mut b, "h", DType::F16, Access::In);
    let y = buffer(&mut b, "y", DType::F32, Access::Out);
    let z = buffer(&mut b, "z", DType::F16, Access::Out);
    let n = b.number("n", Elem::Index, ArgSource::Free);
    let group = b.grid(Size::Const(3), 1);
    let n = b.arg(n);
    let base = b.mul_int(group, 256);
    let limit = b.sub(n, base);
    let count = Some(Guard::count(limit, 1.0));
    let eight = b.load(Place::strided(x, base, 8), 8, count);
    let sums: Vec<ValueId> = eight.iter().map(|v| b.map(MapOp::Add, &[*v, eight[7]])).collect();
    b.store(Place::strided(y, base, 8), &sums, count);
    let four = b.load(Place::strided(h, base, 8), 4, None);
    b.store(Place::strided(z, base, 8), &four, None);
    let lane = b.lane();
    let seven = b.int(7);
    let mask = b.compare(MapOp::Lt, lane, seven);
    let mask = Some(Guard::mask(mask, 2.0));
    let at = b.add_int(base, 4);
    let two = b.load(Place::strided(h, at, 8), 2, mask);
    b.store(Place::strided(z, at, 8), &two, mask);
    b.finish()
}

/// Carried values that change places, a branch with results, a padded shared buffer, exchanges.
fn control() -> Kernel {
    let mut b = KernelBuilder::new("construct_control", 32, 2);
    let x = buffer(&mut b, "x", DType::F32, Access::In);
    let y = buffer(&mut b, "y", DType::F32, Access::Out);
    let n = b.number("n", Elem::Index, ArgSource::Free);
    let s = b.number("s", Elem::Data(DType::F32), ArgSource::Free);
    b.grid(Size::Const(1), 1);
    let tile = Memory::Shared(b.shared("tile", DType::F32, 2, 32, Layout::Padded(4)));
    let own = Memory::Private(b.private("own", DType::F32, 3));
    let barrier = b.group_barrier("all");
    let (n, s) = (b.arg(n), b.arg(s));
    let (zero, three) = (b.int(0), b.int(3));
    let one = b.literal(1.0, DType::F32);
    let swapped = b.for_loop((zero, n, 2), 4, &[s, one, one], |b, _, c| {
        let sum = b.map(MapOp::Add, &[c[0], c[1]]);
        vec![c[1], sum, c[0]]
    });
    let subgroup = b.subgroup_id();
    let row = b.mul_int(subgroup, 32);
    let value = b.load1(Place::strided(x, row, 1), None);
    let value = b.map(MapOp::Max, &[value, swapped[2]]);
    b.store(Place::strided(tile, row, 1), &[value], None);
    b.barrier(barrier);
    // The other subgroup's row.
    let thirty_two = b.int(32);
    let other = b.sub(thirty_two, row);
    let value = b.load1(Place::strided(tile, other, 1), None);
    b.for_loop((zero, three, 1), 1, &[], |b, i, _| {
        b.store(Place::uniform(own, i), &[value], None);
        vec![]
    });
    let two = b.int(2);
    let value = b.load1(Place::uniform(own, two), None);
    let test = b.compare(MapOp::Lt, subgroup, n);
    let out = b.if_else(
        test,
        |b| vec![b.map(MapOp::Mul, &[swapped[0], value])],
        |b| vec![b.map(MapOp::MinNum, &[swapped[1], value])],
    );
    let high = b.collective(Collective::Broadcast(31), out[0]);
    let near = b.collective(Collective::ShuffleXor(1), high);
    let least = b.collective(Collective::Reduce(ReduceOp::Min), near);
    let product = b.collective(Collective::Reduce(ReduceOp::Mul), least);
    b.store(Place::strided(y, row, 1), &[product], None);
    b.finish()
}

/// i32 at its edges, and conversions.
fn integers() -> Kernel {
    let mut b = KernelBuilder::new("construct_integers", 32, 1);
    let x = buffer(&mut b, "x", DType::I32, Access::In);
    let f = buffer(&mut b, "f", DType::F32, Access::In);
    let y = buffer(&mut b, "y", DType::I32, Access::Out);
    let g = buffer(&mut b, "g", DType::BF16, Access::Out);
    b.grid(Size::Const(1), 1);
    let zero = b.int(0);
    let v = b.load1(Place::strided(x, zero, 1), None);
    let least = b.literal(f64::from(i32::MIN), DType::I32);
    let seven = b.literal(7.0, DType::I32);
    let mut r = v;
    for (op, other) in [
        (MapOp::Add, seven),
        (MapOp::Sub, least),
        (MapOp::Mul, v),
        (MapOp::Div, v),
        (MapOp::Max, least),
    ] {
        r = b.map(op, &[r, other]);
    }
    for op in [MapOp::Neg, MapOp::Abs] {
        r = b.map(op, &[r]);
    }
    let rest = b.map(MapOp::Mod, &[r, seven]);
    let float = b.load1(Place::strided(f, zero, 1), None);
    let whole = b.cast(float, Elem::Data(DType::I32));
    let sum = b.map(MapOp::Add, &[rest, whole]);
    let total = b.collective(Collective::Reduce(ReduceOp::Add), sum);
    b.store(Place::strided(y, zero, 1), &[total], None);
    let back = b.cast(total, Elem::Data(DType::F32));
    let narrow = b.cast(back, Elem::Data(DType::BF16));
    b.store(Place::strided(g, zero, 1), &[narrow], None);
    b.finish()
}

/// 8×8 fragments: a scaled product with a bias fragment, rounded to f16, written transposed.
fn fragments() -> Kernel {
    let mut b = KernelBuilder::new("construct_fragments", 32, 1);
    let a = buffer(&mut b, "a", DType::F16, Access::In);
    let w = buffer(&mut b, "w", DType::F16, Access::In);
    let r = buffer(&mut b, "r", DType::F32, Access::In);
    let y = buffer(&mut b, "y", DType::F16, Access::Out);
    let s = b.number("s", Elem::Data(DType::F32), ArgSource::Free);
    b.grid(Size::Const(1), 1);
    let s = b.arg(s);
    let (zero, one, eight, sixteen) = (b.int(0), b.int(1), b.int(8), b.int(16));
    let atom = Atom::Simdgroup8x8;
    let of = |role, dtype| Type::fragment(atom, role, dtype);
    let (left, right) = (FragmentRole::A, FragmentRole::B);
    let accumulator = of(FragmentRole::Accumulator, DType::F32);
    let fill = b.fragment_fill(accumulator, 0.5);
    let sum = b.for_loop((zero, sixteen, 8), 1, &[fill], |b, k, c| {
        let a = b.fragment_load(of(left, DType::F16), View::whole(a, k, sixteen, one));
        let at = b.mul_int(k, 8);
        let w = b.fragment_load(of(right, DType::F16), View::whole(w, at, eight, one));
        vec![b.mma(Operand::Fragment(a), Operand::Fragment(w), c[0], None)]
    })[0];
    let residual = b.fragment_load(accumulator, View::whole(r, zero, eight, one));
    let scaled = b.fragment_map(MapOp::Mul, &[sum, s]);
    let total = b.fragment_map(MapOp::Add, &[scaled, residual]);
    let narrow = b.fragment_cast(total, DType::F16);
    b.fragment_store(narrow, View::whole(y, zero, one, eight));
    b.finish()
}

/// A tensor operation at an edge: rows, columns and depth end before the tile does; the result is
/// scaled and written with its columns contiguous.
fn tensors() -> Kernel {
    let mut b = KernelBuilder::new("construct_tensors", 32, 1);
    let a = buffer(&mut b, "a", DType::F32, Access::In);
    let w = buffer(&mut b, "w", DType::F32, Access::In);
    let y = buffer(&mut b, "y", DType::F32, Access::Out);
    let [m, n, k] = ["m", "n", "k"].map(|name| b.number(name, Elem::Index, ArgSource::Free));
    let s = b.number("s", Elem::Data(DType::F32), ArgSource::Free);
    b.grid(Size::Const(1), 1);
    let [m, n, k] = [m, n, k].map(|arg| b.arg(arg));
    let s = b.arg(s);
    let (zero, one, depth) = (b.int(0), b.int(1), b.int(32));
    let ty = Type::fragment(Atom::Mpp { rows: 16, cols: 8 }, FragmentRole::Accumulator, DType::F32);
    let fill = b.fragment_fill(ty, 0.0);
    let view = |memory, ld, rows, cols| View {
        memory,
        base: zero,
        row_stride: ld,
        col_stride: one,
        rows: Some(rows),
        cols: Some(cols),
    };
    let left = Operand::View(view(a, k, m, k));
    let right = Operand::View(view(w, n, k, n));
    let product = b.mma(left, right, fill, Some(depth));
    let scaled = b.fragment_map(MapOp::Mul, &[product, s]);
    let place = View { row_stride: one, col_stride: m, ..view(y, m, m, n) };
    b.fragment_store(scaled, place);
    b.finish()
}
