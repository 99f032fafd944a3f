//! The printer. It is total: an id that opens nothing prints as `?7`, so that an error message
//! about a broken program can show it.

use std::fmt::{self, Write};

use crate::entity::Id;
use crate::program::*;
use crate::text::MAX_NESTING;
use crate::text::infer::result_type;
use crate::types::DType;

/// The text form of a program.
pub fn print(program: &Program) -> String {
    let mut out = String::new();
    // Writing to a string can't fail.
    let _ = Printer { program }.program(&mut out);
    out
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(self))
    }
}

/// A number that reads back as exactly `value`.
pub fn number(value: f64, dtype: DType) -> String {
    let integral = value.trunc() == value && value.abs() < 1e15;
    if value.is_nan() {
        match value.to_bits() == f64::NAN.to_bits() {
            true => "nan".to_string(),
            false => format!("nan({:#x})", value.to_bits()),
        }
    } else if !dtype.is_float() && integral && value.to_bits() != (-0.0f64).to_bits() {
        format!("{}", value as i64)
    } else {
        format!("{value:?}")
    }
}

struct Printer<'a> {
    program: &'a Program,
}

fn unknown(id: impl Id) -> String {
    format!("?{}", id.index())
}

fn list<T>(items: &[T], show: impl Fn(&T) -> String) -> String {
    items.iter().map(show).collect::<Vec<_>>().join(", ")
}

impl Printer<'_> {
    fn extent(&self, extent: &Extent) -> String {
        match extent {
            Extent::Const(n) => n.to_string(),
            Extent::Dim(d) => self.program.dims.get(*d).map_or(unknown(*d), |d| d.name.clone()),
        }
    }

    fn axis(&self, axis: &AxisId) -> String {
        self.program.axes.get(*axis).map_or(unknown(*axis), |a| a.name.clone())
    }

    fn index(&self, index: IndexId) -> String {
        self.program.indices.get(index).map_or(unknown(index), |i| i.name.clone())
    }

    fn value(&self, value: &ValueId) -> String {
        self.program.values.get(*value).map_or(unknown(*value), |v| format!("%{}", v.name))
    }

    fn tensor(&self, tensor: TensorId) -> String {
        self.program.tensors.get(tensor).map_or(unknown(tensor), |t| t.name.clone())
    }

    fn ty(&self, ty: &TileType) -> String {
        format!("{}[{}]", ty.dtype, list(&ty.axes, |a| self.axis(a)))
    }

    fn origin(&self, origin: &Origin, gather: Option<ValueId>) -> String {
        let mut out = String::new();
        let mut term = |negative: bool, text: String| {
            out.push_str(match (out.is_empty(), negative) {
                (true, false) => "",
                (true, true) => "-",
                (false, false) => " + ",
                (false, true) => " - ",
            });
            out.push_str(&text);
        };
        for (index, coefficient) in &origin.terms {
            let name = self.index(*index);
            let text = match coefficient.unsigned_abs() {
                1 => name,
                n => format!("{n}*{name}"),
            };
            term(*coefficient < 0, text);
        }
        if origin.constant != 0 {
            term(origin.constant < 0, origin.constant.unsigned_abs().to_string());
        }
        if let Some(value) = gather {
            term(false, self.value(&value));
        }
        out
    }

    fn coord(&self, coord: &Coord) -> String {
        let origin = self.origin(&coord.origin, coord.gather);
        match &coord.axis {
            Some(axis) => format!("{origin}:{}", self.axis(axis)),
            None if origin.is_empty() => "0".to_string(),
            None => origin,
        }
    }

    fn program(&self, out: &mut String) -> fmt::Result {
        let p = self.program;
        writeln!(out, "program {} {{", p.name)?;
        for (_, dim) in p.dims.iter() {
            write!(out, "  dim {}: ", dim.name)?;
            match dim.kind {
                DimKind::Static(n) => writeln!(out, "static {n}")?,
                DimKind::Symbolic { divisor: 1, max } => writeln!(out, "symbolic max {max}")?,
                DimKind::Symbolic { divisor, max } => {
                    writeln!(out, "symbolic divisor {divisor} max {max}")?
                }
                DimKind::Block { default } => writeln!(out, "block {default}")?,
            }
        }
        for (_, tensor) in p.tensors.iter() {
            let access = match tensor.access {
                Access::In => "in",
                Access::Out => "out",
                Access::InOut => "inout",
            };
            let shape = list(&tensor.shape, |e| self.extent(e));
            write!(out, "  {access} {}: {}[{shape}]", tensor.name, tensor.dtype)?;
            if let Strides::Explicit(strides) = &tensor.strides {
                write!(out, " strides [{}]", list(strides, |e| self.extent(e)))?;
            }
            if tensor.align != tensor.dtype.bytes().max(1) {
                write!(out, " align {}", tensor.align)?;
            }
            out.push('\n');
        }
        for (_, scalar) in p.scalars.iter() {
            let nonzero = if scalar.nonzero { " nonzero" } else { "" };
            writeln!(out, "  scalar {}: {}{nonzero}", scalar.name, scalar.dtype)?;
        }
        for (_, axis) in p.axes.iter() {
            writeln!(out, "  axis {}: {}", axis.name, self.extent(&axis.extent))?;
        }
        for id in &p.grid {
            if let Some(index) = p.indices.get(*id) {
                let (extent, step) = (self.extent(&index.extent), self.extent(&index.step));
                writeln!(out, "  grid {}: {extent} step {step}", index.name)?;
            }
        }
        if !p.body.ops.is_empty() {
            out.push('\n');
        }
        self.block(out, &p.body, 1)?;
        out.write_str("}\n")
    }

    fn block(&self, out: &mut String, block: &Block, depth: usize) -> fmt::Result {
        if depth > MAX_NESTING + 1 {
            return writeln!(out, "{}// nested too deeply", "  ".repeat(depth));
        }
        for id in &block.ops {
            write!(out, "{}", "  ".repeat(depth))?;
            match self.program.ops.get(*id) {
                Some(data) => self.op(out, data, depth)?,
                None => writeln!(out, "// no operation {}", id.index())?,
            }
        }
        Ok(())
    }

    fn op(&self, out: &mut String, data: &OpData, depth: usize) -> fmt::Result {
        let v = |v: &ValueId| self.value(v);
        let stated = data.results.first().and_then(|r| self.program.values.get(*r));
        if !data.results.is_empty() {
            write!(out, "{}", list(&data.results, v))?;
            // What the operation states itself needs no annotation, so compare with that in place.
            if let Some(value) = stated
                && let Some(inferred) = result_type(self.program, &data.op, &value.ty)
                && inferred != value.ty
            {
                write!(out, ": {}", self.ty(&value.ty))?;
            }
            out.write_str(" = ")?;
        }
        let stated = stated.map(|v| v.ty.clone());
        let dtype = stated.as_ref().map_or(DType::F32, |t| t.dtype);
        match &data.op {
            Op::Const { value } => write!(out, "const {} {dtype}", number(*value, dtype))?,
            Op::Scalar(s) => {
                let name = self.program.scalars.get(*s).map_or(unknown(*s), |s| s.name.clone());
                write!(out, "scalar {name}")?
            }
            Op::Size(extent) => write!(out, "size {}", self.extent(extent))?,
            Op::Index { origin, axis } => {
                let coord = Coord { origin: origin.clone(), axis: *axis, gather: None };
                write!(out, "index {}", self.coord(&coord))?
            }
            Op::Load { tensor, coords, bounds } => {
                write!(out, "load {}[{}]", self.tensor(*tensor), list(coords, |c| self.coord(c)))?;
                if let Bounds::Fill(fill) = bounds {
                    let dtype = self.program.tensors.get(*tensor).map_or(dtype, |t| t.dtype);
                    write!(out, " fill {}", number(*fill, dtype))?;
                }
            }
            Op::Store { tensor, coords, value, bounds } => {
                let coords = list(coords, |c| self.coord(c));
                write!(out, "store {}[{coords}], {}", self.tensor(*tensor), v(value))?;
                if let Bounds::Fill(_) = bounds {
                    out.write_str(" clip")?;
                }
            }
            Op::Map { op, args } => write!(out, "{} {}", op.name(), list(args, v))?,
            Op::Cast(value) => write!(out, "cast {} to {dtype}", v(value))?,
            Op::Broadcast(value) => {
                let axes = stated.map(|t| t.axes).unwrap_or_default();
                write!(out, "broadcast {} to [{}]", v(value), list(&axes, |a| self.axis(a)))?
            }
            Op::Reduce { op, value, axis, order } => {
                write!(out, "reduce {} {} over {}", op.name(), v(value), self.axis(axis))?;
                if *order != OrderPolicy::default() {
                    write!(out, " order {}", order.name())?;
                }
            }
            Op::Mma { a, b, c, allow_reassociation } => {
                write!(out, "mma {}, {}, {}", v(a), v(b), v(c))?;
                if !allow_reassociation {
                    out.write_str(" ordered")?;
                }
            }
            Op::Reindex { value, axes } => {
                let axes = list(axes, |(a, b)| format!("{} -> {}", self.axis(a), self.axis(b)));
                write!(out, "reindex {} [{axes}]", v(value))?
            }
            Op::Loop { kind, index, carries, body } => {
                let kind = match kind {
                    LoopKind::Serial => "serial".to_string(),
                    LoopKind::Pipeline { window } => format!("pipeline {window}"),
                };
                write!(out, "for {kind} {}", self.index(*index))?;
                if let Some(var) = self.program.indices.get(*index) {
                    write!(
                        out,
                        " in {} step {}",
                        self.extent(&var.extent),
                        self.extent(&var.step)
                    )?;
                }
                if !carries.is_empty() {
                    let carries = list(carries, |c| format!("{} = {}", v(&c.inner), v(&c.init)));
                    write!(out, " carry {carries}")?;
                }
                out.write_str(" {\n")?;
                self.block(out, body, depth + 1)?;
                let indent = "  ".repeat(depth);
                if !carries.is_empty() {
                    writeln!(out, "{indent}  yield {}", list(carries, |c| v(&c.next)))?;
                }
                write!(out, "{indent}}}")?;
            }
        }
        out.push('\n');
        Ok(())
    }
}
