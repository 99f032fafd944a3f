//! How much work an op is, and the shortest time that a machine could take for it.

use tilewright_engine::check::LaunchValues;
use tilewright_ir::Program;
use tilewright_ir::facts::{Facts, Family};
use tilewright_ir::program::{Access, Extent, MapOp, Op};
use tilewright_runtime::Roofline;

/// Work of one launch.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Work {
    /// Floating-point operations: 2·M·N·K of a product (not its epilogue). Of rows one per element
    /// for each arithmetic operation of the program (a root or an exponential is one) and for each
    /// reduction; choosing, comparing and converting are none.
    pub flops: f64,
    /// Bytes that must move at least: every input read once, every output written once.
    pub bytes: f64,
}

/// What bounds a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// Arithmetic.
    Arithmetic,
    /// Memory.
    Memory,
}

impl Work {
    /// The work of a program.
    pub fn of(program: &Program, facts: &Facts, values: &LaunchValues) -> Self {
        let size = |extent: Extent| -> f64 {
            let known = program.known(extent).or_else(|| {
                let Extent::Dim(d) = extent else { return None };
                let name = &program.dims[d].name;
                values.dims.iter().find(|(n, _)| n == name).map(|(_, v)| *v)
            });
            known.unwrap_or(0) as f64
        };
        let bytes = program
            .tensors
            .iter()
            .map(|(_, t)| {
                let elements: f64 = t.shape.iter().map(|e| size(*e)).product();
                let passes = if t.access == Access::InOut { 2.0 } else { 1.0 };
                passes * elements * t.dtype.bytes() as f64
            })
            .sum();
        let flops = match &facts.family {
            Family::Matrix(m) => {
                let product: f64 = m.size.iter().map(|e| size(*e)).product();
                2.0 * product * m.batch.map_or(1.0, size)
            }
            Family::Rows(rows) => {
                let instances = rows.grid.iter().map(|(e, step)| (size(*e) / size(*step)).ceil());
                instances.product::<f64>() * row_flops(program, &size)
            }
            Family::Other(_) => 0.0,
        };
        Work { flops, bytes }
    }

    /// The shortest time in microseconds under the ceilings, and which of them sets it.
    pub fn floor_us(&self, roofline: &Roofline) -> (f64, Limit) {
        let arithmetic = self.flops / roofline.flops_per_second * 1e6;
        let memory = self.bytes / roofline.bytes_per_second * 1e6;
        if arithmetic > memory { (arithmetic, Limit::Arithmetic) } else { (memory, Limit::Memory) }
    }
}

/// Floating-point operations of one instance of a row program, which has no loops.
fn row_flops(program: &Program, size: &dyn Fn(Extent) -> f64) -> f64 {
    let float = |value| program.values[value].ty.dtype.is_float();
    let elements = |value| -> f64 {
        program.values[value].ty.axes.iter().map(|a| size(program.axes[*a].extent)).product()
    };
    let count = |op: &Op, result| match op {
        Op::Map { op, args } if arithmetic(*op) && args.iter().all(|a| float(*a)) => {
            elements(result)
        }
        Op::Reduce { value, .. } if float(*value) => elements(*value),
        _ => 0.0,
    };
    let ops = program.ops.iter();
    ops.filter_map(|(_, data)| Some(count(&data.op, *data.results.first()?))).sum()
}

fn arithmetic(op: MapOp) -> bool {
    use MapOp::*;
    matches!(op, Add | Sub | Mul | Div | Mod | Neg | Exp | Log | Sqrt | Tanh | Erf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_ir::DType;
    use tilewright_ir::analysis::facts;
    use tilewright_ir::ops::{OpRequest, build};

    fn work(op: &str, shape: &[u64]) -> Work {
        let program = build(op, &OpRequest::shaped(DType::F32, shape)).unwrap();
        Work::of(&program, &facts(&program), &LaunchValues::default())
    }

    #[test]
    fn work_is_what_the_formulas_say() {
        let gemm = work("gemm", &[8, 16, 32]);
        assert_eq!(gemm.flops, 2.0 * 8.0 * 16.0 * 32.0);
        assert_eq!(gemm.bytes, 4.0 * (8.0 * 32.0 + 32.0 * 16.0 + 8.0 * 16.0));
        let softmax = work("softmax", &[10, 100]);
        // Largest element; difference, exponential, sum, quotient of each element.
        assert_eq!((softmax.flops, softmax.bytes), (10.0 * 5.0 * 100.0, 8000.0));
        let rmsnorm = work("rmsnorm", &[10, 100]);
        assert_eq!(rmsnorm.bytes, 8400.0);
        // Square, sum, quotient, factor of each element; mean, eps, root of each row.
        assert_eq!(rmsnorm.flops, 10.0 * (4.0 * 100.0 + 3.0));
        // Comparing and choosing are no arithmetic.
        assert_eq!(work("relu", &[10, 100]).flops, 0.0);
        assert_eq!(work("row_sum", &[10, 100]).flops, 1000.0);
    }

    #[test]
    fn the_slower_ceiling_counts() {
        let roofline = Roofline { flops_per_second: 1e9, bytes_per_second: 1e9 };
        let work = Work { flops: 3000.0, bytes: 1000.0 };
        assert_eq!(work.floor_us(&roofline), (3.0, Limit::Arithmetic));
        let work = Work { flops: 0.0, bytes: 1000.0 };
        assert_eq!(work.floor_us(&roofline), (1.0, Limit::Memory));
    }
}
