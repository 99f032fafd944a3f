//! Rules of blocks: ids, placement, single definition, dominance, scope of index variables.

use crate::entity::Id;
use crate::program::*;
use crate::text::MAX_NESTING;
use crate::verify::{Check, Place, Rule};

const MAX_AXES: usize = 16;

/// The values that an operation reads before its body, if it has one, runs.
pub fn operands(op: &Op) -> Vec<ValueId> {
    let gathers = |coords: &[Coord]| coords.iter().filter_map(|c| c.gather).collect::<Vec<_>>();
    match op {
        Op::Const { .. } | Op::Scalar(_) | Op::Size(_) | Op::Index { .. } => Vec::new(),
        Op::Load { coords, .. } => gathers(coords),
        Op::Store { coords, value, .. } => {
            let mut all = gathers(coords);
            all.push(*value);
            all
        }
        Op::Map { args, .. } => args.clone(),
        Op::Cast(v) | Op::Broadcast(v) => vec![*v],
        Op::Reduce { value, .. } | Op::Reindex { value, .. } => vec![*value],
        Op::Mma { a, b, c, .. } => vec![*a, *b, *c],
        Op::Loop { carries, .. } => carries.iter().map(|c| c.init).collect(),
    }
}

/// The index variables that an operation's origins name.
fn origin_indices(op: &Op) -> Vec<IndexId> {
    let of = |o: &Origin| o.terms.iter().map(|(i, _)| *i).collect::<Vec<_>>();
    match op {
        Op::Index { origin, .. } => of(origin),
        Op::Load { coords, .. } | Op::Store { coords, .. } => {
            coords.iter().flat_map(|c| of(&c.origin)).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether every id opens something, every operation is in one block, and nesting is bounded.
pub fn ids(check: &mut Check<'_>) {
    let p = check.program;
    let extent_ok = |e: &Extent| match e {
        Extent::Const(_) => true,
        Extent::Dim(d) => p.dims.get(*d).is_some(),
    };
    let mut bad: Vec<(Place, &str)> = Vec::new();
    for (id, tensor) in p.tensors.iter() {
        let strides: &[Extent] = match &tensor.strides {
            Strides::Packed => &[],
            Strides::Explicit(strides) => strides,
        };
        if !tensor.shape.iter().chain(strides).all(extent_ok) {
            bad.push((Place::Tensor(id), "a dimension"));
        }
    }
    for (id, axis) in p.axes.iter() {
        if !extent_ok(&axis.extent) {
            bad.push((Place::Axis(id), "a dimension"));
        }
    }
    for (id, index) in p.indices.iter() {
        if !extent_ok(&index.extent) || !extent_ok(&index.step) {
            bad.push((Place::Index(id), "a dimension"));
        }
    }
    if !p.grid.iter().all(|i| p.indices.get(*i).is_some()) {
        bad.push((Place::Program, "an index variable of the grid"));
    }
    for (id, value) in p.values.iter() {
        if !value.ty.axes.iter().all(|a| p.axes.get(*a).is_some()) {
            bad.push((Place::Value(id), "an axis"));
        }
    }
    for (id, data) in p.ops.iter() {
        if let Some(what) = dangling(p, data, extent_ok) {
            bad.push((Place::Op(id), what));
        }
    }
    for (id, value) in p.values.iter() {
        let rank = value.ty.axes.len();
        check.require(rank <= MAX_AXES, Rule::TileRank, Place::Value(id), || {
            format!("value `%{}` has {rank} axes; use at most {MAX_AXES}", value.name)
        });
    }
    for (place, what) in bad {
        check.error(
            Rule::DanglingId,
            place,
            format!("{place:?} refers to {what} that the program doesn't have"),
        );
    }
    let mut placed = vec![false; p.ops.len()];
    place(check, &p.body, 0, &mut placed);
    if check.errors.iter().any(|e| e.rule == Rule::Nesting) {
        // What is nested too deeply wasn't visited and isn't lost.
        return;
    }
    for (id, _) in p.ops.iter().filter(|(id, _)| !placed[id.index()]) {
        check.error(
            Rule::OpPlacement,
            Place::Op(id),
            format!("operation {id:?} is in no block; put it in one or drop it"),
        );
    }
}

fn dangling(
    p: &Program,
    data: &OpData,
    extent_ok: impl Fn(&Extent) -> bool,
) -> Option<&'static str> {
    let value = |v: &ValueId| p.values.get(*v).is_some();
    let axis = |a: &AxisId| p.axes.get(*a).is_some();
    let (values, axes, other): (Vec<ValueId>, Vec<AxisId>, bool) = match &data.op {
        Op::Scalar(s) => (vec![], vec![], p.scalars.get(*s).is_some()),
        Op::Size(extent) => (vec![], vec![], extent_ok(extent)),
        Op::Index { axis, .. } => (vec![], axis.iter().copied().collect(), true),
        Op::Load { tensor, coords, .. } | Op::Store { tensor, coords, .. } => (
            vec![],
            coords.iter().filter_map(|c| c.axis).collect(),
            p.tensors.get(*tensor).is_some(),
        ),
        Op::Reduce { axis, .. } => (vec![], vec![*axis], true),
        Op::Reindex { axes, .. } => {
            (vec![], axes.iter().flat_map(|(a, b)| [*a, *b]).collect(), true)
        }
        Op::Loop { index, carries, .. } => (
            carries.iter().flat_map(|c| [c.inner, c.next]).collect(),
            vec![],
            p.indices.get(*index).is_some(),
        ),
        _ => (vec![], vec![], true),
    };
    if !values.iter().chain(&operands(&data.op)).chain(&data.results).all(value) {
        Some("a value")
    } else if !axes.iter().all(axis) {
        Some("an axis")
    } else if !origin_indices(&data.op).iter().all(|i| p.indices.get(*i).is_some()) {
        Some("an index variable")
    } else if !other {
        Some("a parameter, dimension or index variable")
    } else {
        None
    }
}

fn place(check: &mut Check<'_>, block: &Block, depth: usize, placed: &mut [bool]) {
    let p = check.program;
    for id in &block.ops {
        let at = Place::Op(*id);
        let Some(data) = p.ops.get(*id) else {
            let message = format!("a block lists {id:?}, which the program doesn't have");
            check.error(Rule::DanglingId, at, message);
            continue;
        };
        if std::mem::replace(&mut placed[id.index()], true) {
            let message = format!("operation {id:?} is listed twice; list it once");
            check.error(Rule::OpPlacement, at, message);
            continue;
        }
        if let Op::Loop { body, .. } = &data.op {
            if depth >= MAX_NESTING {
                let message = format!("loops nested deeper than {MAX_NESTING}; flatten them");
                check.error(Rule::Nesting, at, message);
                continue;
            }
            place(check, body, depth + 1, placed);
        }
    }
}

/// Where a value stands during the walk.
#[derive(Clone, Copy, PartialEq)]
enum State {
    /// Not defined yet.
    Undefined,
    /// Visible here.
    InScope,
    /// Defined in a block that was left.
    Left,
}

struct Walk {
    values: Vec<State>,
    indices: Vec<State>,
    /// Values defined so far in the open blocks, in order.
    defined: Vec<ValueId>,
    /// Index variables in scope, with their names for the rule against hiding.
    scope: Vec<IndexId>,
}

/// Definitions, uses and scopes, in execution order.
pub fn check(check: &mut Check<'_>) {
    let p = check.program;
    let mut walk = Walk {
        values: vec![State::Undefined; p.values.len()],
        indices: vec![State::Undefined; p.indices.len()],
        defined: Vec::new(),
        scope: Vec::new(),
    };
    for index in &p.grid {
        open_index(check, &mut walk, *index, Place::Index(*index));
    }
    block(check, &mut walk, &p.body);
    for (id, value) in p.values.iter() {
        if walk.values[id.index()] == State::Undefined {
            let message = format!("value `%{}` is never defined; remove it", value.name);
            check.error(Rule::SingleDefinition, Place::Value(id), message);
        }
    }
    for (id, index) in p.indices.iter() {
        if walk.indices[id.index()] == State::Undefined {
            let message =
                format!("index `{}` belongs to neither the grid nor a loop; remove it", index.name);
            check.error(Rule::IndexOwner, Place::Index(id), message);
        }
    }
}

fn open_index(check: &mut Check<'_>, walk: &mut Walk, index: IndexId, place: Place) {
    let p = check.program;
    let name = &p.indices[index].name;
    let fresh = walk.indices[index.index()] == State::Undefined;
    check.require(fresh, Rule::IndexOwner, place, || {
        format!("index `{name}` already belongs to the grid or another loop; make a new one")
    });
    let hidden = walk.scope.iter().any(|i| *i != index && p.indices[*i].name == *name);
    check.require(!hidden, Rule::NameUnique, place, || {
        format!("index `{name}` hides an outer one of that name; rename it")
    });
    walk.indices[index.index()] = State::InScope;
    walk.scope.push(index);
}

fn define(check: &mut Check<'_>, walk: &mut Walk, value: ValueId, place: Place) {
    let fresh = walk.values[value.index()] == State::Undefined;
    let name = check.value(value);
    check.require(fresh, Rule::SingleDefinition, place, || {
        format!("value {name} is defined twice; give the second definition a value of its own")
    });
    walk.values[value.index()] = State::InScope;
    walk.defined.push(value);
}

fn used(check: &mut Check<'_>, walk: &Walk, value: ValueId, place: Place) {
    let state = walk.values[value.index()];
    let name = check.value(value);
    check.require(state == State::InScope, Rule::Dominance, place, || match state {
        State::Left => format!("value {name} belongs to a loop that has ended; carry it out"),
        _ => format!("value {name} is used before its definition; move the definition up"),
    });
}

fn block(check: &mut Check<'_>, walk: &mut Walk, block_: &Block) {
    let p = check.program;
    for id in &block_.ops {
        let data = &p.ops[*id];
        let place = Place::Op(*id);
        for value in operands(&data.op) {
            used(check, walk, value, place);
        }
        for index in origin_indices(&data.op) {
            let name = &p.indices[index].name;
            let inside = walk.indices[index.index()] == State::InScope;
            check.require(inside, Rule::IndexScope, place, || {
                format!("index `{name}` isn't in scope here; use it under its loop only")
            });
        }
        let results = match &data.op {
            Op::Store { .. } => 0,
            Op::Loop { carries, .. } => carries.len(),
            _ => 1,
        };
        let found = data.results.len();
        check.require(found == results, Rule::ResultCount, place, || {
            format!("the operation has {found} results; its kind defines {results}")
        });
        if let Op::Loop { index, carries, body, .. } = &data.op {
            let outer = walk.defined.len();
            open_index(check, walk, *index, place);
            for carry in carries {
                define(check, walk, carry.inner, place);
            }
            block(check, walk, body);
            for carry in carries {
                used(check, walk, carry.next, place);
            }
            walk.scope.pop();
            walk.indices[index.index()] = State::Left;
            for value in walk.defined.drain(outer..) {
                walk.values[value.index()] = State::Left;
            }
        }
        for value in &data.results {
            define(check, walk, *value, place);
        }
    }
}
