//! Fill, load and store of a register tile.

use tilewright_ir::DType;

use super::emitter::{Address, Columns, Emitter, Stride};
use super::{Loc, Tile, TileView};
use crate::error::CpuError;

/// General registers for a load or store: the address with its index, the row stride, and three
/// for a column mask (which is made first, so they overlap).
pub(super) fn temps(view: &TileView) -> usize {
    let address = 2 + usize::from(!matches!(view.row_stride, Loc::Const(_)));
    let mask = if view.cols.is_some() { 2 } else { 0 };
    address.max(mask)
}

/// Sets every accumulator.
pub(super) fn fill(e: &mut Emitter<'_>, to: Tile, value: f64) -> Result<(), CpuError> {
    e.codes(to.dtype)?;
    e.keep(to)?;
    let registers = (0..to.rows).flat_map(|r| (0..to.vectors).map(move |v| (r, v)));
    if value == 0.0 && value.is_sign_positive() {
        for (row, vector) in registers {
            let register = e.accumulator(to, row, vector);
            e.zero(register)?;
        }
        return Ok(());
    }
    let bits = match to.dtype {
        DType::F64 => value.to_bits() as i64,
        _ => i64::from((value as f32).to_bits()),
    };
    let temp = e.temp()?;
    e.move_to(temp, Loc::Const(bits))?;
    let first = e.accumulator(to, 0, 0);
    e.spread(first, temp, to.dtype)?;
    e.release(temp);
    for (row, vector) in registers.skip(1) {
        let register = e.accumulator(to, row, vector);
        e.copy(to.dtype, register, first)?;
    }
    Ok(())
}

/// Rows of a view that a tile covers: all, or a known smaller number.
pub(super) fn valid_rows(tile: Tile, rows: Option<Loc>) -> Result<u32, CpuError> {
    match rows {
        None => Ok(tile.rows),
        Some(Loc::Const(limit)) => Ok(limit.clamp(0, i64::from(tile.rows)) as u32),
        Some(_) => Err(CpuError::unsupported("a register tile whose valid rows vary at run time")),
    }
}

/// Fails where columns aren't next to each other.
pub(super) fn check_contiguous(view: &TileView) -> Result<(), CpuError> {
    if view.col_stride == Loc::Const(1) {
        return Ok(());
    }
    Err(CpuError::unsupported("a register tile whose columns aren't consecutive in memory"))
}

/// Runs `access` for every row with the address of its first element.
fn each_row(
    e: &mut Emitter<'_>,
    view: &TileView,
    rows: u32,
    mut access: impl FnMut(&mut Emitter<'_>, u32, Address) -> Result<(), CpuError>,
) -> Result<(), CpuError> {
    match view.row_stride {
        Loc::Const(_) => {
            let start = e.address(view, false)?;
            let Stride::Const(stride) = e.stride(view.row_stride, view.dtype)? else {
                return Err(CpuError::malformed("a constant stride became a register"));
            };
            for row in 0..rows {
                access(e, row, start.plus(i64::from(row) * stride))?;
            }
        }
        _ => {
            let start = e.address(view, true)?;
            let Stride::Register(stride) = e.stride(view.row_stride, view.dtype)? else {
                return Err(CpuError::malformed("a varying stride became a constant"));
            };
            for row in 0..rows {
                if row > 0 {
                    e.asm.add(start.base, stride)?;
                }
                access(e, row, start)?;
            }
        }
    }
    Ok(())
}

/// Reads a tile; 0 beyond the valid extents.
pub(super) fn load(e: &mut Emitter<'_>, to: Tile, view: &TileView) -> Result<(), CpuError> {
    let codes = e.codes(to.dtype)?;
    check_contiguous(view)?;
    check_element(to, view)?;
    let rows = valid_rows(to, view.rows)?;
    e.keep(to)?;
    let columns = e.columns(to.vectors, view.cols, to.dtype)?;
    let step = i64::from(e.lanes) * view.dtype.bytes() as i64;
    each_row(e, view, rows, |e, row, address| {
        for (vector, columns) in columns.iter().enumerate() {
            let register = e.accumulator(to, row, vector as u32);
            if *columns == Columns::Empty {
                e.zero(register)?;
            } else {
                let from = address.plus(vector as i64 * step);
                e.load(&codes, register, from, *columns)?;
            }
        }
        Ok(())
    })?;
    for row in rows..to.rows {
        for vector in 0..to.vectors {
            let register = e.accumulator(to, row, vector);
            e.zero(register)?;
        }
    }
    Ok(())
}

/// Writes a tile; nothing beyond the valid extents.
pub(super) fn store(
    e: &mut Emitter<'_>,
    from: Tile,
    view: &TileView,
    stream: bool,
) -> Result<(), CpuError> {
    let codes = e.codes(from.dtype)?;
    check_contiguous(view)?;
    check_element(from, view)?;
    let rows = valid_rows(from, view.rows)?;
    e.keep(from)?;
    let columns = e.columns(from.vectors, view.cols, from.dtype)?;
    let step = i64::from(e.lanes) * view.dtype.bytes() as i64;
    // A streaming store needs an aligned address. Where every row has the alignment of the
    // first, that one is tested; the check costs one instruction pair per tile.
    let line = e.isa.vector_bytes() as i64;
    let aligned_rows = match view.row_stride {
        Loc::Const(stride) => stride * view.dtype.bytes() as i64 % line == 0,
        _ => false,
    };
    let whole = columns.iter().all(|c| *c == Columns::Full);
    let write = |e: &mut Emitter<'_>, stream: bool| {
        each_row(e, view, rows, |e, row, address| {
            for (vector, columns) in columns.iter().enumerate() {
                let register = e.accumulator(from, row, vector as u32);
                let to = address.plus(vector as i64 * step);
                e.store(&codes, register, to, *columns, stream)?;
            }
            Ok(())
        })
    };
    if !(stream && aligned_rows && whole) {
        return write(e, false);
    }
    let mut plain = e.asm.create_label();
    let mut end = e.asm.create_label();
    let start = e.address(view, true)?;
    if start.disp != 0 {
        let disp = i32::try_from(start.disp)
            .map_err(|_| CpuError::unsupported("a register tile far from its pointer"))?;
        e.asm.add(start.base, disp)?;
    }
    e.asm.test(start.base, (line - 1) as i32)?;
    e.asm.jne(plain)?;
    e.release(start.base);
    let free_temps = e.temps_left();
    write(e, true)?;
    e.restore_temps(free_temps.clone());
    e.asm.jmp(end)?;
    e.asm.set_label(&mut plain)?;
    write(e, false)?;
    e.restore_temps(free_temps);
    e.asm.set_label(&mut end)?;
    // A label needs an instruction of the same statement.
    e.asm.nop()?;
    Ok(())
}

/// Tiles are read and written in the type that they have; other types go through a conversion of
/// whole vectors.
fn check_element(tile: Tile, view: &TileView) -> Result<(), CpuError> {
    if tile.dtype == view.dtype {
        return Ok(());
    }
    Err(CpuError::unsupported(format!(
        "a register tile of {} in memory of {}",
        tile.dtype, view.dtype
    )))
}
