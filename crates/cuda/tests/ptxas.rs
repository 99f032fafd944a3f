//! Emitted PTX is assembled by `ptxas` where it is found (`TILEWRIGHT_PTXAS`, else the search
//! path); the tests say so where it isn't, unless `TILEWRIGHT_REQUIRE_PTXAS` asks for a failure.

mod common;

use common::assemble;
use tilewright_cuda::{PtxTarget, emit, emit_for};
use tilewright_ir::DType;
use tilewright_ir::program::{Access, MapOp, ReduceOp};
use tilewright_kernel::builder::KernelBuilder;
use tilewright_kernel::kernel::{
    ArgSource, Collective, Elem, Guard, Kernel, Layout, Memory, Place, Scope, Size, Type,
};

fn check(kernel: &Kernel) {
    let ptx = emit(kernel, PtxTarget::BASE).unwrap();
    for sm in ["sm_80", "sm_90", "sm_90a"] {
        // The text is for sm_80; newer assemblers take it for newer machines.
        if let Some((_, spills)) = assemble(&ptx.text, sm) {
            assert_eq!(spills, 0, "{sm}: {}", kernel.name);
        }
    }
}

/// y = f(x) for every operation of one element type, each applied to the last result.
fn every_operation(dtype: DType, ops: &[MapOp]) -> Kernel {
    let mut b = KernelBuilder::new("every_operation", 32, 2);
    let x = b.buffer("x", dtype, Access::In, 16, ArgSource::Free);
    let y = b.buffer("y", dtype, Access::Out, 16, ArgSource::Free);
    let n = b.number("n", Elem::Index, ArgSource::Free);
    let g = b.grid(Size::Arg(n), 64);
    let subgroup = b.subgroup_id();
    let rows = b.mul_int(g, 64);
    let offset = b.mul_int(subgroup, 32);
    let base = b.add(rows, offset);
    let n = b.arg(n);
    let limit = b.sub(n, base);
    let place = Place::strided(Memory::Global(x), base, 1);
    let mut v = b.load1(place, Some(Guard::count(limit, 1.0)));
    for op in ops {
        v = match op.arity() {
            1 => b.map(*op, &[v]),
            2 if op.is_comparison() => {
                let one = b.literal(1.0, dtype);
                let test = b.map(*op, &[v, one]);
                b.map(MapOp::Select, &[test, v, one])
            }
            _ => {
                let one = b.literal(3.0, dtype);
                b.map(*op, &[v, one])
            }
        };
    }
    let place = Place::strided(Memory::Global(y), base, 1);
    b.store(place, &[v], Some(Guard::count(limit, 0.0)));
    b.finish()
}

#[test]
fn f32_operations_assemble() {
    use MapOp::*;
    check(&every_operation(
        DType::F32,
        &[
            Add, Sub, Mul, Div, Min, Max, MinNum, MaxNum, Neg, Abs, Eq, Ne, Lt, Le, Gt, Ge, Exp,
            Log, Sqrt, Tanh, Erf,
        ],
    ));
}

#[test]
fn f64_and_integer_operations_assemble() {
    use MapOp::*;
    let common = [Add, Sub, Mul, Div, Min, Max, MinNum, MaxNum, Neg, Abs, Eq, Ne, Lt, Le, Gt, Ge];
    check(&every_operation(DType::F64, &[&common[..], &[Sqrt]].concat()));
    check(&every_operation(DType::I32, &[&common[..], &[Mod]].concat()));
}

/// A row sum through stripes, subgroup and group collectives, in each type and width.
fn row_sum(dtype: DType, width: u32) -> Kernel {
    let mut b = KernelBuilder::new("row_sum", 32, 4);
    let x = b.buffer("x", dtype, Access::In, 16, ArgSource::Free);
    let y = b.buffer("y", DType::F32, Access::Out, 4, ArgSource::Free);
    let row = b.grid(Size::Const(37), 1);
    let chunk = 128 * i64::from(width);
    let stripe = b.private("stripe", DType::F32, 3 * u64::from(width));
    let partials = b.shared("partials", DType::F32, 1, 4, Layout::Plain);
    let barrier = b.group_barrier("all");
    let subgroup = b.subgroup_id();
    let own = b.mul_int(subgroup, 32 * i64::from(width));
    let start = b.mul_int(row, 3 * chunk);
    let base = b.add(start, own);
    let zero = b.literal(0.0, DType::F32);
    let (lo, hi) = (b.int(0), b.int(3));
    b.for_loop((lo, hi, 1), 1, &[], |b, i, _| {
        let at = b.mul_int(i, chunk);
        let at = b.add(base, at);
        let place = Place::strided(Memory::Global(x), at, i64::from(width));
        let left = b.mul_int(i, chunk);
        let total = b.int(3 * chunk - 5);
        let left = b.sub(total, left);
        let left = b.sub(left, own);
        let values = b.load(place, width, Some(Guard::count(left, 0.0)));
        let values: Vec<_> = values.iter().map(|v| b.cast(*v, Elem::Data(DType::F32))).collect();
        let slot = b.mul_int(i, i64::from(width));
        b.store(Place::uniform(Memory::Private(stripe), slot), &values, None);
        vec![]
    });
    let (lo, hi) = (b.int(0), b.int(3 * i64::from(width)));
    let sum = b.for_loop((lo, hi, 1), 1, &[zero], |b, i, acc| {
        let v = b.load1(Place::uniform(Memory::Private(stripe), i), None);
        vec![b.map(MapOp::Add, &[acc[0], v])]
    });
    let sum = b.collective(Collective::Reduce(ReduceOp::Add), sum[0]);
    let one = b.int(1);
    let first = Some(Guard::count(one, 0.0));
    b.store(Place::uniform(Memory::Shared(partials), subgroup), &[sum], first);
    b.barrier(barrier);
    let zero_index = b.int(0);
    let four = b.int(4);
    let place = Place::strided(Memory::Shared(partials), zero_index, 1);
    let all = b.load1(place, Some(Guard::count(four, 0.0)));
    let all = b.collective(Collective::Reduce(ReduceOp::Add), all);
    b.store(Place::uniform(Memory::Global(y), row), &[all], first);
    b.finish()
}

#[test]
fn row_sums_assemble_without_spills() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for width in [1, 2, 4] {
            check(&row_sum(dtype, width));
        }
    }
}

#[test]
fn wide_loads_are_one_access() {
    let text = emit(&row_sum(DType::F32, 4), PtxTarget::BASE).unwrap().text;
    assert!(text.contains("ld.global.nc.v4.f32"), "{text}");
    assert!(!text.contains(".local"), "{text}");
}

/// A guarded vector is one load where all of it is there, else one an element; no two write one
/// register, since the second would wait for the first.
#[test]
fn guarded_loads_write_registers_of_their_own() {
    let text = emit(&row_sum(DType::F32, 4), PtxTarget::BASE).unwrap().text;
    let loads: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.contains("ld.global"))
        .filter_map(|line| line.split_once("f32 ")?.1.split_once(", ["))
        .map(|(list, _)| list.trim_matches(['{', '}']).split(", ").collect())
        .collect();
    assert_eq!(loads.iter().map(Vec::len).collect::<Vec<_>>(), [4, 1, 1, 1].repeat(3));
    let mut registers = loads.concat();
    registers.sort_unstable();
    registers.dedup();
    assert_eq!(registers.len(), 21, "{text}");
}

/// Where launches may begin before the one ahead has ended, every thread waits for that end first.
#[test]
fn dependent_launches_wait_before_they_touch_memory() {
    let kernel = row_sum(DType::F32, 4);
    for limit in
        [PtxTarget::BASE, PtxTarget { sm: 89, version: 90 }, PtxTarget { sm: 90, version: 82 }]
    {
        let ptx = emit_for(&kernel, limit).unwrap();
        assert_eq!(ptx, emit(&kernel, PtxTarget::BASE).unwrap(), "{limit:?}");
        assert!(!ptx.dependent && !ptx.text.contains("griddepcontrol"), "{}", ptx.text);
    }
    let ptx = emit_for(&kernel, PtxTarget { sm: 90, version: 90 }).unwrap();
    assert!(ptx.dependent);
    assert_eq!(ptx.target, PtxTarget::DEPENDENT_LAUNCHES);
    let (before, after) = ptx.text.split_once("griddepcontrol.wait;").unwrap();
    for access in ["ld.global", "st.global", "shared.", "bra", "bar.sync"] {
        assert!(!before.contains(access), "{access}: {}", ptx.text);
    }
    // The next launch may begin once everything is read, before anything is written. The group
    // writes 4 bytes: of very many such groups none says so.
    let (reading, writing) = after.split_once("griddepcontrol.launch_dependents;").unwrap();
    assert!(reading.contains("ld.global") && !reading.contains("st.global"), "{}", ptx.text);
    assert!(!writing.contains("ld.global") && writing.contains("st.global"), "{}", ptx.text);
    let condition = reading.split_whitespace().last().unwrap();
    assert!(reading.contains("%nctaid.z") && condition.starts_with("@%p"), "{}", ptx.text);
    for sm in ["sm_90", "sm_90a"] {
        if let Some((_, spills)) = assemble(&ptx.text, sm) {
            assert_eq!(spills, 0, "{sm}");
        }
    }
}

#[test]
fn run_time_loops_and_branches_assemble() {
    let mut b = KernelBuilder::new("loops", 32, 1);
    let y = b.buffer("y", DType::F32, Access::Out, 4, ArgSource::Free);
    let n = b.number("n", Elem::Index, ArgSource::Free);
    let s = b.number("s", Elem::Data(DType::F32), ArgSource::Free);
    let (n, s) = (b.arg(n), b.arg(s));
    let row = b.grid(Size::Const(4), 1);
    let (zero, one) = (b.int(0), b.literal(1.0, DType::F32));
    // The carries swap places each trip: assignment must be simultaneous.
    let swapped = b.for_loop((zero, n, 3), 4, &[s, one], |b, _, c| {
        let sum = b.map(MapOp::Add, &[c[0], c[1]]);
        vec![c[1], sum]
    });
    let test = b.compare(MapOp::Lt, row, n);
    let out = b.if_else(
        test,
        |b| vec![b.map(MapOp::Mul, &[swapped[0], swapped[1]])],
        |_| vec![swapped[1]],
    );
    let first = b.int(1);
    let guard = Some(Guard::count(first, 0.0));
    b.store(Place::uniform(Memory::Global(y), row), &out, guard);
    check(&b.finish());
}

#[test]
fn the_reset_of_the_cache_reads_marked_lines_and_takes_the_marks_off() {
    let ptx = tilewright_cuda::residency::kernel();
    assert_eq!(ptx.target, PtxTarget::CACHE_HINTS);
    for sm in ["sm_80", "sm_90", "sm_90a"] {
        if let Some((registers, spills)) = assemble(&ptx.text, sm) {
            assert!(registers > 0 && spills == 0, "{sm}: {registers} registers, {spills} spilled");
        }
    }
    // All four sectors of a line are read with the hint, and one line loses its mark at a time.
    assert_eq!(ptx.text.matches("ld.global.L2::cache_hint").count(), 4);
    assert_eq!(ptx.text.matches("applypriority.global.L2::evict_normal").count(), 1);
}

#[test]
fn what_has_no_form_is_an_error_that_names_it() {
    let mut b = KernelBuilder::new("wide", 16, 1);
    b.grid(Size::Const(1), 1);
    let error = emit(&b.finish(), PtxTarget::BASE).unwrap_err().to_string();
    assert!(error.contains("16 lanes") && error.contains("32"), "{error}");

    let mut kernel = KernelBuilder::new("tokens", 32, 1).finish();
    kernel.grid.push(tilewright_kernel::kernel::GridDim { size: Size::Const(1), step: 1 });
    let token = kernel
        .values
        .push(tilewright_kernel::kernel::Value { ty: Type::Token, scope: Scope::Subgroup });
    kernel.body.stmts.push(tilewright_kernel::kernel::Stmt {
        op: tilewright_kernel::kernel::Op::Wait { tokens: vec![token], pending: 0 },
        results: vec![],
    });
    let error = emit(&kernel, PtxTarget::BASE).unwrap_err().to_string();
    assert!(error.contains("Wait"), "{error}");
}
