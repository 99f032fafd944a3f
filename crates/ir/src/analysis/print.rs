//! The text form of facts: stable, one fact per line, for people and for tests.

use std::fmt::Write;

use super::extents::extent_text;
use crate::facts::*;
use crate::program::*;

/// Facts as text. Values, tensors, axes and dimensions go by their names.
pub fn print(program: &Program, facts: &Facts) -> String {
    let mut p = Printer { program, text: String::new() };
    p.line(0, format!("facts {} {{", program.name));
    for (tensor, fact) in &facts.coverage {
        let text = match fact {
            Fact::Proved(Coverage { clipped: false, .. }) => "exact".to_string(),
            Fact::Proved(Coverage { clipped: true, .. }) => "exact, clipped".to_string(),
            Fact::Unknown(reason) => unknown(reason),
        };
        p.line(1, format!("coverage {}: {text}", p.tensor(*tensor)));
    }
    for (tensor, fact) in &facts.read_only {
        p.line(1, format!("read only {}: {}", p.tensor(*tensor), unit(fact)));
    }
    match &facts.family {
        Family::Other(reason) => p.line(1, format!("family other: {reason}")),
        Family::Rows(rows) => p.rows(rows),
        Family::Matrix(matrix) => p.matrix(matrix),
    }
    p.line(0, "}".to_string());
    p.text
}

fn unknown(reason: &str) -> String {
    format!("unknown: {reason}")
}

fn unit(fact: &Fact<()>) -> String {
    match fact {
        Fact::Proved(()) => "proved".to_string(),
        Fact::Unknown(reason) => unknown(reason),
    }
}

fn if_divides(fact: &Fact<Vec<MatrixDim>>) -> String {
    match fact {
        Fact::Unknown(reason) => unknown(reason),
        Fact::Proved(dims) if dims.is_empty() => "proved".to_string(),
        Fact::Proved(dims) => {
            let dims: Vec<&str> = dims
                .iter()
                .map(|d| match d {
                    MatrixDim::M => "M",
                    MatrixDim::N => "N",
                    MatrixDim::K => "K",
                })
                .collect();
            format!("if blocks divide {}", dims.join(", "))
        }
    }
}

struct Printer<'a> {
    program: &'a Program,
    text: String,
}

impl Printer<'_> {
    fn line(&mut self, depth: usize, line: String) {
        // Writing to a string can't fail.
        let _ = writeln!(self.text, "{}{line}", "  ".repeat(depth));
    }

    fn tensor(&self, tensor: TensorId) -> &str {
        &self.program.tensors[tensor].name
    }

    fn extent(&self, extent: Extent) -> String {
        match extent {
            Extent::Dim(d) => match self.program.dims[d].kind {
                DimKind::Static(n) => format!("{}={n}", self.program.dims[d].name),
                _ => extent_text(self.program, extent),
            },
            Extent::Const(n) => n.to_string(),
        }
    }

    fn values(&self, values: &[ValueId]) -> String {
        let names: Vec<String> =
            values.iter().map(|v| format!("%{}", self.program.values[*v].name)).collect();
        names.join(" ")
    }

    fn result(&self, op: OpId) -> String {
        self.values(&self.program.ops[op].results)
    }

    fn rows(&mut self, rows: &RowFacts) {
        self.line(1, "family rows {".to_string());
        for (extent, step) in &rows.grid {
            let line = format!("grid {} step {}", self.extent(*extent), self.extent(*step));
            self.line(2, line);
        }
        let axis = rows.axis.map_or("none", |axis| &self.program.axes[axis].name);
        let line = format!("axis {axis}: {} columns of {}", self.extent(rows.columns), rows.dtype);
        self.line(2, line);
        for reduction in &rows.reductions {
            let line = format!(
                "reduction {}: {} in {}",
                self.result(reduction.op),
                reduction.fold.name(),
                reduction.dtype
            );
            self.line(2, line);
        }
        self.variant("reload", &rows.reload);
        if rows.cache == rows.reload {
            self.line(2, "cache: as reload".to_string());
        } else {
            self.variant("cache", &rows.cache);
        }
        self.line(1, "}".to_string());
    }

    fn variant(&mut self, name: &str, variant: &RowVariant) {
        self.line(
            2,
            format!(
                "{name}: {} domains, {} striped {{",
                variant.domains.len(),
                variant.striped_tiles()
            ),
        );
        for domain in &variant.domains {
            let mut line = match domain.kind {
                DomainKind::Copy(value) => format!("copy {}", self.values(&[value])),
                DomainKind::Materialize(value) => format!("materialize {}", self.values(&[value])),
                DomainKind::Reduce(op) => format!("reduce {}", self.result(op)),
                DomainKind::Store(op) => match &self.program.ops[op].op {
                    Op::Store { tensor, .. } => format!("store {}", self.tensor(*tensor)),
                    _ => "store".to_string(),
                },
            };
            for (what, values) in [
                ("loads", &domain.loads),
                ("stripes", &domain.stripes),
                ("scalars", &domain.scalars),
            ] {
                if !values.is_empty() {
                    let _ = write!(line, "; {what} {}", self.values(values));
                }
            }
            self.line(3, line);
        }
        let line = match &variant.payload {
            Fact::Unknown(reason) => format!("bytes per column {}", unknown(reason)),
            Fact::Proved(p) => format!(
                "bytes per column: global read {} write {}, private read {} write {}",
                p.global_read, p.global_write, p.private_read, p.private_write
            ),
        };
        self.line(3, line);
        self.line(2, "}".to_string());
    }

    fn matrix(&mut self, matrix: &MatrixFacts) {
        self.line(1, "family matrix {".to_string());
        if let Some(batch) = matrix.batch {
            let line = format!("batch {}", self.extent(batch));
            self.line(2, line);
        }
        for (name, (size, block)) in
            ["M", "N", "K"].iter().zip(matrix.size.iter().zip(&matrix.block))
        {
            let line = format!("{name} {} by {}", self.extent(*size), self.extent(*block));
            self.line(2, line);
        }
        self.line(
            2,
            format!(
                "dtypes {} accumulated in {}, output {}",
                matrix.dtype, matrix.accumulator, matrix.output
            ),
        );
        for (name, operand) in [("A", &matrix.a), ("B", &matrix.b)] {
            let line = format!(
                "{name} {}{}: read in place {}",
                self.tensor(operand.tensor),
                if operand.transposed { " transposed" } else { "" },
                if_divides(&operand.forward)
            );
            self.line(2, line);
        }
        self.line(2, format!("C {}", self.tensor(matrix.c)));
        self.line(2, format!("recurrence: {}", unit(&matrix.recurrence)));
        self.line(2, format!("direct output: {}", if_divides(&matrix.direct_output)));
        self.line(2, format!("zero start: {}", unit(&matrix.zero_init)));
        let order = if matrix.reassociable { "any order" } else { "in order" };
        self.line(2, format!("products summed {order}"));
        // Literals and broadcasts say nothing that the operations on them don't.
        let steps = matrix
            .epilogue
            .iter()
            .filter(|op| !matches!(self.program.ops[**op].op, Op::Const { .. } | Op::Broadcast(_)));
        let steps: Vec<String> = steps.map(|op| self.result(*op)).collect();
        if !steps.is_empty() {
            self.line(2, format!("epilogue {}", steps.join(" ")));
        }
        self.line(1, "}".to_string());
    }
}
