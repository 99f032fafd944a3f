//! Facts about extents and coordinates: equality, divisibility, bounds.

use crate::program::*;

/// The size, if no launch and no plan can change it. Unlike [`Program::known`] a block's default
/// doesn't count: a plan may choose another.
pub(super) fn fixed(program: &Program, extent: Extent) -> Option<u64> {
    match extent {
        Extent::Const(n) => Some(n),
        Extent::Dim(d) => match program.dims[d].kind {
            DimKind::Static(n) => Some(n),
            DimKind::Symbolic { .. } | DimKind::Block { .. } => None,
        },
    }
}

/// Whether two extents are always equal.
pub(super) fn same(program: &Program, a: Extent, b: Extent) -> bool {
    a == b || matches!((fixed(program, a), fixed(program, b)), (Some(a), Some(b)) if a == b)
}

/// Whether `block` always divides `size`.
pub(super) fn divides(program: &Program, block: Extent, size: Extent) -> bool {
    if same(program, block, size) {
        return true;
    }
    let Some(block) = fixed(program, block) else { return false };
    let multiple = match size {
        Extent::Const(n) => n,
        Extent::Dim(d) => match program.dims[d].kind {
            DimKind::Static(n) => n,
            DimKind::Symbolic { divisor, .. } => divisor,
            DimKind::Block { .. } => 1,
        },
    };
    block != 0 && multiple % block == 0
}

/// Whether an index variable takes exactly one value.
pub(super) fn single(program: &Program, index: IndexId) -> bool {
    let IndexVar { extent, step, .. } = program.indices[index];
    match (fixed(program, extent), fixed(program, step)) {
        (Some(extent), Some(step)) => extent >= 1 && extent <= step,
        _ => false,
    }
}

/// An extent as text.
pub(super) fn extent_text(program: &Program, extent: Extent) -> String {
    match extent {
        Extent::Const(n) => n.to_string(),
        Extent::Dim(d) => program.dims[d].name.clone(),
    }
}

/// A coordinate as text, for messages.
pub(super) fn coord_text(program: &Program, coord: &Coord) -> String {
    let mut parts = Vec::new();
    for (index, coefficient) in &coord.origin.terms {
        let name = &program.indices[*index].name;
        parts.push(match coefficient {
            1 => name.clone(),
            c => format!("{c}*{name}"),
        });
    }
    if coord.origin.constant != 0 {
        parts.push(coord.origin.constant.to_string());
    }
    if let Some(axis) = coord.axis {
        parts.push(format!(":{}", program.axes[axis].name));
    }
    if let Some(value) = coord.gather {
        parts.push(format!("[%{}]", program.values[value].name));
    }
    if parts.is_empty() { "0".to_string() } else { parts.join(" + ") }
}

/// Shows that a coordinate never leaves a dimension of the given size.
///
/// # Errors
/// It isn't shown; the reason in words.
pub(super) fn in_bounds(program: &Program, coord: &Coord, size: Extent) -> Result<(), String> {
    let text = coord_text(program, coord);
    if coord.gather.is_some() {
        return Err(format!("the coordinate `{text}` depends on data"));
    }
    // Numbers first: they show every case in which all sizes are fixed.
    match range(program, coord) {
        Some(None) => return Ok(()),
        Some(Some((low, high))) => {
            if low < 0 {
                return Err(format!("the coordinate `{text}` reaches {low}"));
            }
            if let Some(size) = fixed(program, size) {
                if high < i128::from(size) {
                    return Ok(());
                }
                return Err(format!("the coordinate `{text}` reaches {high} of {size} elements"));
            }
        }
        None => {}
    }
    let limit = extent_text(program, size);
    let unproved = || format!("the coordinate `{text}` isn't proved to stay below {limit}");
    if coord.origin.constant != 0 {
        return Err(unproved());
    }
    let proved = match (coord.origin.terms.as_slice(), coord.axis) {
        ([], None) => false,
        ([], Some(axis)) => same(program, program.axes[axis].extent, size),
        ([(index, 1)], None) => same(program, program.indices[*index].extent, size),
        ([(index, 1)], Some(axis)) => {
            let var = &program.indices[*index];
            let axis = program.axes[axis].extent;
            same(program, var.extent, size)
                && same(program, var.step, axis)
                && divides(program, axis, size)
        }
        _ => false,
    };
    if proved { Ok(()) } else { Err(unproved()) }
}

/// Smallest and largest value of a coordinate without gather: `None` if some size isn't fixed,
/// `Some(None)` if it takes no value.
fn range(program: &Program, coord: &Coord) -> Option<Option<(i128, i128)>> {
    let mut low = i128::from(coord.origin.constant);
    let mut high = low;
    let mut empty = false;
    for (index, coefficient) in &coord.origin.terms {
        let var = &program.indices[*index];
        let extent = fixed(program, var.extent)?;
        let step = fixed(program, var.step)?;
        if extent == 0 || step == 0 {
            empty = true;
            continue;
        }
        let last = i128::from((extent - 1) / step) * i128::from(step);
        let reach = last * i128::from(*coefficient);
        low += reach.min(0);
        high += reach.max(0);
    }
    if let Some(axis) = coord.axis {
        let extent = fixed(program, program.axes[axis].extent)?;
        if extent == 0 {
            empty = true;
        } else {
            high += i128::from(extent - 1);
        }
    }
    Some((!empty).then_some((low, high)))
}
