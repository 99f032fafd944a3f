//! Declarations: group shape, grid, arguments, buffers, barriers, roles.

use super::{Checker, MAX_CLUSTER, MAX_LANES, MAX_MBARRIERS, MAX_SUBGROUPS, Rule};
use crate::kernel::*;
use std::collections::HashSet;
use tilewright_ir::DType;

fn is_identifier(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.starts_with(|c: char| !c.is_ascii_digit())
}

/// Bytes of one row of a swizzle; `None` for no swizzle.
pub(super) fn swizzle_bytes(swizzle: Swizzle) -> Option<u64> {
    match swizzle {
        Swizzle::None => None,
        Swizzle::B32 => Some(32),
        Swizzle::B64 => Some(64),
        Swizzle::B128 => Some(128),
    }
}

pub(super) fn check(c: &mut Checker<'_>) {
    names(c);
    shape(c);
    args(c);
    buffers(c);
    barriers(c);
    roles(c);
}

fn names(c: &mut Checker<'_>) {
    let k = c.kernel;
    let declared = (k.args.iter().map(|(_, a)| &a.name))
        .chain(k.shared.iter().map(|(_, s)| &s.name))
        .chain(k.private.iter().map(|(_, p)| &p.name))
        .chain(k.barriers.iter().map(|(_, b)| &b.name))
        .chain(k.mbarriers.iter().map(|(_, m)| &m.name))
        .chain(k.roles.iter().map(|(_, r)| &r.name));
    let mut seen = HashSet::new();
    for name in declared {
        if !is_identifier(name) {
            c.declaration(Rule::Name, name, "a name is letters, digits and `_`, no digit first");
        }
        if !seen.insert(name) {
            c.declaration(Rule::Name, name, "the name is declared twice");
        }
    }
    if !is_identifier(&k.name) {
        c.declaration(Rule::Name, &k.name, "a kernel's name is letters, digits and `_`");
    }
}

fn shape(c: &mut Checker<'_>) {
    let k = c.kernel;
    if !k.lanes.is_power_of_two() || k.lanes > MAX_LANES {
        let message = format!("{} lanes: use a power of two up to {MAX_LANES}", k.lanes);
        c.declaration(Rule::GroupShape, &k.name, message);
    }
    if k.subgroups == 0 || k.subgroups > MAX_SUBGROUPS {
        let message = format!("{} subgroups: use 1 to {MAX_SUBGROUPS}", k.subgroups);
        c.declaration(Rule::GroupShape, &k.name, message);
    }
    if k.cluster == 0 || k.cluster > MAX_CLUSTER {
        let message = format!("clusters of {} groups: use 1 to {MAX_CLUSTER}", k.cluster);
        c.declaration(Rule::GroupShape, &k.name, message);
    }
    if k.grid.len() > 3 {
        let message = format!("{} grid dimensions: use at most 3", k.grid.len());
        c.declaration(Rule::Grid, &k.name, message);
    }
    for dim in &k.grid {
        if dim.step == 0 {
            c.declaration(Rule::Grid, &k.name, "a grid step is at least 1");
        }
        if let Size::Arg(id) = dim.size
            && k.args.get(id).map(|a| a.kind) != Some(ArgKind::Number(Elem::Index))
        {
            c.declaration(Rule::Grid, &k.name, "a grid size is a number or an index argument");
        }
    }
}

fn args(c: &mut Checker<'_>) {
    for (_, arg) in c.kernel.args.iter() {
        match arg.kind {
            ArgKind::Buffer { dtype, align, .. } => {
                if dtype == DType::Bool {
                    c.declaration(Rule::Argument, &arg.name, "bool has no storage");
                } else if !align.is_power_of_two() || align < dtype.bytes() {
                    let message = format!(
                        "alignment {align}: use a power of two of at least {} bytes",
                        dtype.bytes()
                    );
                    c.declaration(Rule::Argument, &arg.name, message);
                }
            }
            ArgKind::Number(Elem::Data(DType::Bool)) => {
                c.declaration(Rule::Argument, &arg.name, "pass a bool as i32");
            }
            ArgKind::Number(_) => {}
            ArgKind::TensorMap { dtype, box_rows, box_cols, swizzle } => {
                let row = u64::from(box_cols) * dtype.bytes();
                if dtype == DType::Bool {
                    c.declaration(Rule::TensorMap, &arg.name, "bool has no storage");
                }
                if box_rows == 0 || box_rows > 256 || box_cols == 0 || box_cols > 256 {
                    let message = format!("a box of [{box_rows}, {box_cols}]: use 1 to 256 each");
                    c.declaration(Rule::TensorMap, &arg.name, message);
                }
                if !row.is_multiple_of(16) {
                    let message = format!("rows of {row} bytes: use a multiple of 16");
                    c.declaration(Rule::TensorMap, &arg.name, message);
                }
                if let Some(bytes) = swizzle_bytes(swizzle)
                    && row > bytes
                {
                    let message = format!("rows of {row} bytes with a swizzle of {bytes} bytes");
                    c.declaration(Rule::TensorMap, &arg.name, message);
                }
            }
        }
    }
}

fn buffers(c: &mut Checker<'_>) {
    for (_, s) in c.kernel.shared.iter() {
        if s.dtype == DType::Bool {
            c.declaration(Rule::SharedSize, &s.name, "bool has no storage");
            continue;
        }
        let pad = match s.layout {
            Layout::Padded(pad) => u64::from(pad),
            Layout::Plain | Layout::Swizzled(_) => 0,
        };
        // Checked: sizes come from a text.
        let bytes = (s.cols.checked_add(pad))
            .and_then(|row| row.checked_mul(s.rows))
            .and_then(|n| n.checked_mul(s.dtype.bytes()));
        match bytes {
            Some(bytes) if bytes > 0 && bytes < 1 << 32 => {}
            _ => {
                let message = format!("[{}, {}]: use 1 to 2^32 - 1 bytes", s.rows, s.cols);
                c.declaration(Rule::SharedSize, &s.name, message);
                continue;
            }
        }
        if let Layout::Swizzled(swizzle) = s.layout
            && let Some(bytes) = swizzle_bytes(swizzle)
            && s.cols * s.dtype.bytes() != bytes
        {
            let message = format!(
                "rows of {} bytes with a swizzle of {bytes} bytes: they have to be equal",
                s.cols * s.dtype.bytes()
            );
            c.declaration(Rule::SwizzleRow, &s.name, message);
        }
    }
    for (_, p) in c.kernel.private.iter() {
        if p.dtype == DType::Bool {
            c.declaration(Rule::PrivateSize, &p.name, "bool has no storage");
        } else if p.len == 0 || p.len > 1 << 20 {
            let message = format!("{} elements: use 1 to 2^20", p.len);
            c.declaration(Rule::PrivateSize, &p.name, message);
        }
    }
}

fn barriers(c: &mut Checker<'_>) {
    let k = c.kernel;
    for (_, b) in k.barriers.iter() {
        if !matches!(b.scope, Scope::Subgroup | Scope::Group | Scope::Cluster) {
            let message = format!("scope {}: use subgroup, group or cluster", b.scope);
            c.declaration(Rule::BarrierScope, &b.name, message);
        }
        if let Some(n) = b.participants {
            if b.scope != Scope::Group {
                let message = "only a group barrier names its participants";
                c.declaration(Rule::BarrierScope, &b.name, message);
            }
            if n == 0 || n > k.subgroups {
                let message = format!("{n} participants of {} subgroups", k.subgroups);
                c.declaration(Rule::BarrierParticipants, &b.name, message);
            }
        }
    }
    let mut total = 0u64;
    for (_, m) in k.mbarriers.iter() {
        total += u64::from(m.len);
        if m.len == 0 || total > MAX_MBARRIERS || m.arrivals == 0 {
            let message =
                format!("use 1 to {MAX_MBARRIERS} barriers in all and at least one arrival");
            c.declaration(Rule::MbarrierUse, &m.name, message);
        }
    }
}

fn roles(c: &mut Checker<'_>) {
    let k = c.kernel;
    let mut owner = vec![None; k.subgroups.min(MAX_SUBGROUPS) as usize];
    for (_, r) in k.roles.iter() {
        let end = r.first.checked_add(r.count).filter(|&e| e <= k.subgroups && r.count > 0);
        let Some(end) = end else {
            let message = format!(
                "subgroups {} and {} more aren't in a group of {}",
                r.first, r.count, k.subgroups
            );
            c.declaration(Rule::RoleRange, &r.name, message);
            continue;
        };
        for slot in owner.iter_mut().take(end as usize).skip(r.first as usize) {
            if let Some(other) = slot.replace(&r.name) {
                let message = format!("the role shares subgroups with `{other}`");
                c.declaration(Rule::RoleRange, &r.name, message);
                break;
            }
        }
    }
}
