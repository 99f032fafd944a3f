//! Elementwise operations on register tiles.

use iced_x86::Register;
use iced_x86::code_asm::rsp;
use tilewright_ir::program::MapOp;

use super::emitter::{Address, Emitter};
use super::{Tile, TileArg};
use crate::error::CpuError;

/// `to = op(args)` for the operations that one instruction per vector does.
///
/// `max` and `min` with NaN rules, and functions, aren't here: such epilogues go through memory
/// to the vector code.
pub(super) fn map(
    e: &mut Emitter<'_>,
    op: MapOp,
    to: Tile,
    args: &[TileArg],
) -> Result<(), CpuError> {
    let codes = e.codes(to.dtype)?;
    let code = match op {
        MapOp::Add => codes.add,
        MapOp::Sub => codes.sub,
        MapOp::Mul => codes.mul,
        MapOp::Div => codes.div,
        _ => {
            return Err(CpuError::unsupported(format!("{} on register tiles", op.name())));
        }
    };
    let &[a, b] = args else {
        return Err(CpuError::malformed(format!("{} of {} operands", op.name(), args.len())));
    };
    e.keep(to)?;
    for arg in args {
        if let TileArg::Tile(tile) = arg {
            e.keep(*tile)?;
        }
    }
    let mut operands = [None; 2];
    for (place, arg) in operands.iter_mut().zip([a, b]) {
        if let TileArg::Slot(offset) = arg {
            let register = e.scratch()?;
            let from = Address { base: rsp, index: None, disp: i64::from(offset) };
            e.broadcast(&codes, register, from, to.dtype)?;
            *place = Some(register);
        }
    }
    for row in 0..to.rows {
        for vector in 0..to.vectors {
            let of = |arg: TileArg, uniform: Option<Register>, e: &Emitter<'_>| match (arg, uniform)
            {
                (_, Some(register)) => register,
                (TileArg::Tile(tile), None) => e.accumulator(tile, row, vector),
                (TileArg::Slot(_), None) => Register::None,
            };
            let (x, y) = (of(a, operands[0], e), of(b, operands[1], e));
            let register = e.accumulator(to, row, vector);
            e.op3(code, register, x, y)?;
        }
    }
    Ok(())
}
