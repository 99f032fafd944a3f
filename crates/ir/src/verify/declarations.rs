//! Rules of dimensions, tensors, scalars, axes and index variables.

use std::collections::HashSet;

use crate::entity::{Arena, Id};
use crate::program::*;
use crate::text::MAX_NAME;
use crate::types::DType;
use crate::verify::{Check, Place, Rule};

/// Largest size, bound or stride: products of two stay within u128, byte offsets within u64.
const MAX_SIZE: u64 = 1 << 48;
const MAX_RANK: usize = 8;

pub fn check(check: &mut Check<'_>) {
    names(check);
    for (id, dim) in check.program.dims.iter() {
        let place = Place::Dim(id);
        let name = &dim.name;
        match dim.kind {
            DimKind::Static(n) => size(check, place, name, n),
            DimKind::Block { default } => {
                check.require(default > 0, Rule::DimBlock, place, || {
                    format!("block `{name}` has extent 0; use at least 1")
                });
                size(check, place, name, default);
            }
            DimKind::Symbolic { divisor, max } => {
                check.require(divisor > 0, Rule::DimDivisor, place, || {
                    format!("dimension `{name}` has divisor 0; use 1 if nothing is known")
                });
                size(check, place, name, max);
            }
        }
    }
    for (id, _) in check.program.tensors.iter() {
        tensor(check, id);
    }
    for (id, scalar) in check.program.scalars.iter() {
        check.require(scalar.dtype != DType::Bool, Rule::ParameterDtype, Place::Scalar(id), || {
            format!("scalar `{}` is bool; pass an i32 and compare it with 0", scalar.name)
        });
    }
    for (id, axis) in check.program.axes.iter() {
        extent(check, Place::Axis(id), &axis.name, axis.extent);
    }
    for (id, index) in check.program.indices.iter() {
        let place = Place::Index(id);
        extent(check, place, &index.name, index.extent);
        extent(check, place, &index.name, index.step);
        check.require(known(check.program, index.step) != Some(0), Rule::IndexStep, place, || {
            format!("index `{}` has step 0; use at least 1", index.name)
        });
    }
}

/// The size that an extent has whatever a plan or a launch binds.
pub fn known(program: &Program, extent: Extent) -> Option<u64> {
    match extent {
        Extent::Const(n) => Some(n),
        Extent::Dim(d) => match program.dims[d].kind {
            DimKind::Static(n) => Some(n),
            DimKind::Symbolic { .. } | DimKind::Block { .. } => None,
        },
    }
}

/// Reports a size over the limit.
fn size(check: &mut Check<'_>, place: Place, name: &str, n: u64) {
    check.require(n <= MAX_SIZE, Rule::SizeLimit, place, || {
        format!("`{name}` has a size or bound of {n}; use at most {MAX_SIZE}")
    });
}

fn extent(check: &mut Check<'_>, place: Place, name: &str, extent: Extent) {
    if let Extent::Const(n) = extent {
        size(check, place, name, n);
    }
}

fn tensor(check: &mut Check<'_>, id: TensorId) {
    let program = check.program;
    let tensor = &program.tensors[id];
    let place = Place::Tensor(id);
    let name = &tensor.name;
    check.require(tensor.dtype != DType::Bool, Rule::ParameterDtype, place, || {
        format!("tensor `{name}` is bool, which has no storage; use i32")
    });
    check.require(tensor.shape.len() <= MAX_RANK, Rule::TensorRank, place, || {
        format!("tensor `{name}` has {} dimensions; use at most {MAX_RANK}", tensor.shape.len())
    });
    let strides: &[Extent] = match &tensor.strides {
        Strides::Packed => &[],
        Strides::Explicit(strides) => {
            let (found, rank) = (strides.len(), tensor.shape.len());
            check.require(found == rank, Rule::TensorStrides, place, || {
                format!("tensor `{name}` has {rank} dimensions and {found} strides; give one each")
            });
            strides
        }
    };
    for stride in strides {
        let zero = known(program, *stride) == Some(0);
        check.require(!zero || tensor.access == Access::In, Rule::TensorStrides, place, || {
            format!("tensor `{name}` is written and has a stride of 0: its elements overlap")
        });
    }
    for e in tensor.shape.iter().chain(strides) {
        extent(check, place, name, *e);
        if let Extent::Dim(d) = e {
            let dim = &program.dims[*d];
            let block = matches!(dim.kind, DimKind::Block { .. });
            check.require(!block, Rule::TensorExtent, place, || {
                let dim = &dim.name;
                format!(
                    "tensor `{name}` depends on block `{dim}`, which a plan chooses; use a size"
                )
            });
        }
    }
    let (align, bytes) = (tensor.align, tensor.dtype.bytes());
    check.require(align.is_power_of_two() && align >= bytes, Rule::TensorAlign, place, || {
        format!(
            "tensor `{name}` has alignment {align}; use a power of two of at least {bytes}, the \
             size of {}",
            tensor.dtype
        )
    });
}

fn names(check: &mut Check<'_>) {
    let p = check.program;
    form(check, Place::Program, "program", &p.name, false);
    unique(check, &p.dims, "dimension", Place::Dim, |d| &d.name, false, &mut HashSet::new());
    // Both are launch arguments, so they share names.
    let mut parameters = HashSet::new();
    unique(check, &p.tensors, "tensor", Place::Tensor, |t| &t.name, false, &mut parameters);
    unique(check, &p.scalars, "scalar", Place::Scalar, |s| &s.name, false, &mut parameters);
    unique(check, &p.axes, "axis", Place::Axis, |a| &a.name, false, &mut HashSet::new());
    unique(check, &p.values, "value", Place::Value, |v| &v.name, true, &mut HashSet::new());
    for (id, index) in p.indices.iter() {
        form(check, Place::Index(id), "index", &index.name, false);
    }
}

fn unique<'a, I: Id, T>(
    check: &mut Check<'a>,
    arena: &'a Arena<I, T>,
    what: &str,
    place: impl Fn(I) -> Place,
    name: impl Fn(&'a T) -> &'a String,
    digit_first: bool,
    taken: &mut HashSet<&'a str>,
) {
    for (id, item) in arena.iter() {
        let name = name(item);
        let place = place(id);
        form(check, place, what, name, digit_first);
        let fresh = taken.insert(name);
        check.require(fresh, Rule::NameUnique, place, || {
            format!("{what} `{name}`: the name is taken; rename one of the two")
        });
    }
}

fn form(check: &mut Check<'_>, place: Place, what: &str, name: &str, digit_first: bool) {
    let word = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let first = name.bytes().next().is_some_and(|b| digit_first || !b.is_ascii_digit());
    check.require(word && first && name.len() <= MAX_NAME, Rule::NameForm, place, || {
        let shown: String = name.chars().take(40).collect();
        format!(
            "{what} name `{}`: use letters, digits and `_`, at most {MAX_NAME} of them",
            shown.escape_debug()
        )
    });
}
