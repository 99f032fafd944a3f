//! Types of operations: dtypes, axes, roles.

use std::collections::HashSet;

use crate::program::*;
use crate::types::DType;
use crate::verify::{Check, Place, Rule, same_axes};

pub fn check(check: &mut Check<'_>) {
    let p = check.program;
    for (id, value) in p.values.iter() {
        let axes = &value.ty.axes;
        check.require(distinct(axes), Rule::AxesDistinct, Place::Value(id), || {
            format!("value `%{}` has an axis twice; use two axes of the same extent", value.name)
        });
    }
    let mut stored: HashSet<TensorId> = HashSet::new();
    for (id, data) in p.ops.iter() {
        op(check, id);
        if let Op::Store { tensor, .. } = &data.op {
            stored.insert(*tensor);
        }
    }
    for (id, tensor) in p.tensors.iter() {
        let written = tensor.access != Access::Out || stored.contains(&id);
        check.require(written, Rule::OutputUnwritten, Place::Tensor(id), || {
            format!("output `{}` is never stored; store it or remove it", tensor.name)
        });
    }
}

fn distinct(axes: &[AxisId]) -> bool {
    axes.iter().enumerate().all(|(at, a)| !axes[..at].contains(a))
}

/// Whether `value` is exactly a value of `dtype`. Any NaN is one of a float type.
fn representable(value: f64, dtype: DType) -> bool {
    match dtype.is_float() {
        true => value.is_nan() || dtype.round(value).to_bits() == value.to_bits(),
        false => dtype.round(value).to_bits() == value.to_bits(),
    }
}

fn op(check: &mut Check<'_>, id: OpId) {
    let p = check.program;
    let place = Place::Op(id);
    let data = &p.ops[id];
    let ty = |v: ValueId| &p.values[v].ty;
    if let Op::Loop { kind: LoopKind::Pipeline { window }, .. } = &data.op {
        check.require(*window > 0, Rule::LoopWindow, place, || {
            "a pipeline window of 0; use 1 for no overlap".to_string()
        });
    }
    // The number of results has its own rule; a store and a loop without carries have none.
    let Some(result) = data.results.first().map(|r| ty(*r)) else {
        if let Op::Store { tensor, coords, value, bounds } = &data.op {
            store(check, place, *tensor, coords, *value, *bounds);
        }
        return;
    };
    match &data.op {
        Op::Const { value } => {
            check.require(representable(*value, result.dtype), Rule::ConstValue, place, || {
                let near = result.dtype.round(*value);
                format!("{value:?} is no {} value; the nearest is {near:?}", result.dtype)
            });
            expect(check, place, result, result.dtype, &[]);
        }
        Op::Scalar(s) => expect(check, place, result, p.scalars[*s].dtype, &[]),
        Op::Size(extent) => {
            let max = p.max_size(*extent);
            check.require(max <= i32::MAX as u64, Rule::SizeRange, place, || {
                format!("a size of up to {max} is read as an i32; bound it by {}", i32::MAX)
            });
            expect(check, place, result, DType::I32, &[]);
        }
        Op::Index { origin, axis } => {
            terms(check, place, origin);
            expect(check, place, result, DType::I32, axis.as_slice());
        }
        Op::Load { tensor, coords, bounds } => {
            load(check, place, *tensor, coords, *bounds, result);
        }
        Op::Store { .. } => {}
        Op::Map { op, args } => map(check, place, *op, args, result),
        Op::Cast(v) => {
            check.require(result.dtype != DType::Bool, Rule::CastBool, place, || {
                "a cast to bool; compare with 0 by `ne` instead".to_string()
            });
            expect(check, place, result, result.dtype, &ty(*v).axes);
        }
        Op::Broadcast(v) => {
            let source = ty(*v);
            let kept = source.axes.iter().all(|a| result.axes.contains(a));
            let (from, to) = (check.axes(&source.axes), check.axes(&result.axes));
            check.require(kept, Rule::BroadcastAxes, place, || {
                format!("a broadcast from {from} to {to} drops an axis; `reduce` removes axes")
            });
            expect(check, place, result, source.dtype, &result.axes);
        }
        Op::Reduce { value, axis, .. } => {
            let source = ty(*value);
            let name = &p.axes[*axis].name;
            check.require(source.axes.contains(axis), Rule::ReduceAxis, place, || {
                format!("{} has no axis `{name}` to fold", describe(p, *value))
            });
            check.require(source.dtype != DType::Bool, Rule::ReduceDtype, place, || {
                format!(
                    "{} is bool; turn it into numbers by `cast` or `select`",
                    describe(p, *value)
                )
            });
            let axes: Vec<AxisId> = source.axes.iter().copied().filter(|a| a != axis).collect();
            expect(check, place, result, source.dtype, &axes);
        }
        Op::Mma { a, b, c, .. } => {
            mma(check, place, *a, *b, *c);
            expect(check, place, result, ty(*c).dtype, &ty(*c).axes);
        }
        Op::Reindex { value, axes } => reindex(check, place, *value, axes, result),
        Op::Loop { carries, .. } => {
            for (carry, result) in carries.iter().zip(&data.results) {
                let init = ty(carry.init);
                for value in [carry.inner, *result] {
                    check.require(ty(value) == init, Rule::LoopCarry, place, || {
                        format!(
                            "{} is carried from {}; they have the same type",
                            describe(p, value),
                            describe(p, carry.init)
                        )
                    });
                }
                let next = ty(carry.next);
                let same = next.dtype == init.dtype && same_axes(&next.axes, &init.axes);
                check.require(same, Rule::LoopCarry, place, || {
                    format!(
                        "the loop yields {} where it carries {}; cast or broadcast it",
                        describe(p, carry.next),
                        describe(p, carry.init)
                    )
                });
            }
        }
    }
}

/// The value with its type, for messages.
fn describe(p: &Program, value: ValueId) -> String {
    let value = &p.values[value];
    let axes: Vec<&str> = value.ty.axes.iter().map(|a| p.axes[*a].name.as_str()).collect();
    format!("`%{}: {}[{}]`", value.name, value.ty.dtype, axes.join(", "))
}

/// The result has this dtype and these axes, in any order. Not asked of an operation whose
/// operands are wrong already: there is no right result then.
fn expect(check: &mut Check<'_>, place: Place, result: &TileType, dtype: DType, axes: &[AxisId]) {
    if check.errors.last().is_some_and(|e| e.place == place) {
        return;
    }
    let same = result.dtype == dtype && same_axes(&result.axes, axes);
    let (stated, given) = (check.axes(&result.axes), check.axes(axes));
    check.require(same, Rule::ResultType, place, || {
        format!(
            "the result is stated as {}{stated}; the operation gives {dtype}{given}",
            result.dtype
        )
    });
}

fn terms(check: &mut Check<'_>, place: Place, origin: &Origin) {
    for (at, (index, coefficient)) in origin.terms.iter().enumerate() {
        let name = &check.program.indices[*index].name;
        let fresh = origin.terms[..at].iter().all(|(i, _)| i != index);
        check.require(fresh && *coefficient != 0, Rule::OriginTerms, place, || {
            format!("`{name}` occurs twice in an origin or times 0; write `N*{name}` once")
        });
    }
}

/// What loads and stores have in common.
fn coordinates(check: &mut Check<'_>, place: Place, tensor: TensorId, coords: &[Coord]) {
    let p = check.program;
    let (name, rank, found) =
        (&p.tensors[tensor].name, p.tensors[tensor].shape.len(), coords.len());
    check.require(found == rank, Rule::CoordCount, place, || {
        format!("`{name}` has {rank} dimensions and the access {found} coordinates; give one each")
    });
    for coord in coords {
        terms(check, place, &coord.origin);
        if let Some(gather) = coord.gather {
            let i32 = p.values[gather].ty.dtype == DType::I32;
            check.require(i32, Rule::GatherDtype, place, || {
                format!("{} indexes a tensor; cast it to i32", describe(p, gather))
            });
        }
    }
}

fn load(
    check: &mut Check<'_>,
    place: Place,
    tensor: TensorId,
    coords: &[Coord],
    bounds: Bounds,
    result: &TileType,
) {
    let p = check.program;
    let t = &p.tensors[tensor];
    check.require(t.access != Access::Out, Rule::LoadAccess, place, || {
        format!("`{}` is an output and can't be loaded; declare it `inout`", t.name)
    });
    coordinates(check, place, tensor, coords);
    if let Bounds::Fill(fill) = bounds {
        check.require(representable(fill, t.dtype), Rule::FillValue, place, || {
            format!(
                "fill {fill:?} is no {} value; the nearest is {:?}",
                t.dtype,
                t.dtype.round(fill)
            )
        });
    }
    let mut axes: Vec<AxisId> = Vec::new();
    for coord in coords {
        let gathered = coord.gather.map(|g| p.values[g].ty.axes.clone()).unwrap_or_default();
        for axis in coord.axis.into_iter().chain(gathered) {
            if !axes.contains(&axis) {
                axes.push(axis);
            }
        }
    }
    expect(check, place, result, t.dtype, &axes);
}

fn store(
    check: &mut Check<'_>,
    place: Place,
    tensor: TensorId,
    coords: &[Coord],
    value: ValueId,
    bounds: Bounds,
) {
    let p = check.program;
    let t = &p.tensors[tensor];
    let ty = &p.values[value].ty;
    check.require(t.access != Access::In, Rule::StoreAccess, place, || {
        format!("`{}` is an input and can't be stored; declare it `inout` or `out`", t.name)
    });
    coordinates(check, place, tensor, coords);
    check.require(coords.iter().all(|c| c.gather.is_none()), Rule::StoreGather, place, || {
        format!("the store to `{}` scatters; stores have affine coordinates", t.name)
    });
    if let Bounds::Fill(fill) = bounds {
        check.require(fill.to_bits() == 0, Rule::FillValue, place, || {
            format!("the store to `{}` is clipped and has fill {fill:?}; use 0", t.name)
        });
    }
    check.require(ty.dtype == t.dtype, Rule::StoreDtype, place, || {
        format!("{} is stored to `{}: {}`; cast it first", describe(p, value), t.name, t.dtype)
    });
    let axes: Vec<AxisId> = coords.iter().filter_map(|c| c.axis).collect();
    let covers = distinct(&axes) && same_axes(&axes, &ty.axes);
    let shown = check.axes(&axes);
    check.require(covers, Rule::StoreAxes, place, || {
        format!(
            "{} is stored along {shown}; each of its axes runs along exactly one coordinate",
            describe(p, value)
        )
    });
}

fn map(check: &mut Check<'_>, place: Place, op: MapOp, args: &[ValueId], result: &TileType) {
    let p = check.program;
    let ty = |v: &ValueId| &p.values[*v].ty;
    let (name, arity) = (op.name(), op.arity());
    check.require(args.len() == arity, Rule::MapArity, place, || {
        format!("`{name}` has {} operands; it takes {arity}", args.len())
    });
    let (Some(first), Some(last)) = (args.first(), args.last()) else { return };
    let dtype = ty(last).dtype;
    let condition = op == MapOp::Select;
    let numbers = if condition { &args[1.min(args.len())..] } else { args };
    if condition {
        check.require(ty(first).dtype == DType::Bool, Rule::MapDtype, place, || {
            format!("`select` chooses by {}; compare it to get a bool", describe(p, *first))
        });
    }
    for arg in numbers {
        check.require(ty(arg).dtype == dtype, Rule::MapDtype, place, || {
            format!("`{name}` mixes {} and {}; cast one", describe(p, *arg), describe(p, *last))
        });
    }
    let (allowed, on) = match dtype {
        DType::Bool => (
            op.is_logical() || condition || matches!(op, MapOp::Eq | MapOp::Ne),
            "numbers; for bool there are and, or, not, eq, ne and select",
        ),
        DType::I32 => (!op.is_logical() && !op.is_float_only(), "floats; cast to f32 first"),
        _ => (!op.is_logical(), "bool; compare to get one"),
    };
    let on = if op.is_logical() { "bool; compare to get one" } else { on };
    check.require(allowed, Rule::MapDtype, place, || {
        format!("`{name}` has operand {}; it is defined on {on}", describe(p, *last))
    });
    for arg in args {
        let same = same_axes(&ty(arg).axes, &ty(first).axes);
        check.require(same, Rule::MapAxes, place, || {
            format!(
                "`{name}` has operands {} and {}; broadcast them to the same axes",
                describe(p, *first),
                describe(p, *arg)
            )
        });
    }
    let dtype = if op.is_comparison() { DType::Bool } else { dtype };
    expect(check, place, result, dtype, &ty(first).axes);
}

/// Roles by axis identity: an axis of A or B that C lacks is contracted and must be in both; an
/// axis of C comes from A, B or both (a batch axis).
fn mma(check: &mut Check<'_>, place: Place, a: ValueId, b: ValueId, c: ValueId) {
    let p = check.program;
    let ty = |v: ValueId| &p.values[v].ty;
    let (ta, tb, tc) = (ty(a), ty(b), ty(c));
    let typed = ta.dtype == tb.dtype && ta.dtype.is_float() && tc.dtype == ta.dtype.accumulator();
    check.require(typed, Rule::MmaDtype, place, || {
        format!(
            "{} times {} into {}; operands have one float dtype and the accumulator is f32 for \
             f16, bf16 and f32, f64 for f64",
            describe(p, a),
            describe(p, b),
            describe(p, c)
        )
    });
    let name = |axis: AxisId| &p.axes[axis].name;
    let mut contracted = 0;
    for (from, other, other_ty) in [(ta, b, tb), (tb, a, ta)] {
        for axis in from.axes.iter().filter(|x| !tc.axes.contains(x)) {
            contracted += 1;
            check.require(other_ty.axes.contains(axis), Rule::MmaAxes, place, || {
                format!(
                    "axis `{}` is contracted and {} lacks it; give both operands the axis",
                    name(*axis),
                    describe(p, other)
                )
            });
        }
    }
    check.require(contracted > 0, Rule::MmaAxes, place, || {
        "no axis is contracted; use `mul` and `add` for a product without a sum".to_string()
    });
    for axis in tc.axes.iter().filter(|x| !ta.axes.contains(x) && !tb.axes.contains(x)) {
        check.error(
            Rule::MmaAxes,
            place,
            format!("accumulator axis `{}` is in neither operand; broadcast one", name(*axis)),
        );
    }
}

fn reindex(
    check: &mut Check<'_>,
    place: Place,
    value: ValueId,
    axes: &[(AxisId, AxisId)],
    result: &TileType,
) {
    let p = check.program;
    let source = &p.values[value].ty;
    let name = |axis: AxisId| &p.axes[axis].name;
    let mut renamed = source.axes.clone();
    for (at, (old, new)) in axes.iter().enumerate() {
        let once = axes[..at].iter().all(|(o, n)| o != old && n != new);
        check.require(once && source.axes.contains(old), Rule::ReindexAxes, place, || {
            format!("{} has no axis `{}` to replace, or twice", describe(p, value), name(*old))
        });
        let replaced = axes.iter().any(|(o, _)| o == new);
        check.require(replaced || !source.axes.contains(new), Rule::ReindexAxes, place, || {
            format!("{} already has axis `{}`; use another", describe(p, value), name(*new))
        });
        let (from, to) = (p.axes[*old].extent, p.axes[*new].extent);
        check.require(equal(p, from, to), Rule::ReindexAxes, place, || {
            format!("axes `{}` and `{}` differ in extent", name(*old), name(*new))
        });
        for (axis, source) in renamed.iter_mut().zip(&source.axes) {
            if source == old {
                *axis = *new;
            }
        }
    }
    expect(check, place, result, source.dtype, &renamed);
}

/// Whether two extents are equal whatever is bound.
fn equal(p: &Program, a: Extent, b: Extent) -> bool {
    let known = crate::verify::declarations::known;
    a == b || matches!((known(p, a), known(p, b)), (Some(x), Some(y)) if x == y)
}
