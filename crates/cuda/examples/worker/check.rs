//! Every row op in every dtype, whole against the oracle.

use std::sync::Arc;

use serde_json::{Value, json};
use tilewright_cuda::driver::Context;
use tilewright_ir::DType;
use tilewright_ir::facts::Family;
use tilewright_ir::ops::ShapeForm;
use tilewright_ir::ops::catalog::catalog;
use tilewright_plan::legality::gpu_rows;
use tilewright_plan::mapping::{Residency, RowMapping};
use tilewright_plan::problem::RowProblem;
use tilewright_plan::rows::RowCounts;
use tilewright_plan::{Request, Target};

use crate::case::{Case, Error};
use crate::search::load_all;

/// Mappings of every kind: one warp, several, packed, clusters, kept and read again, ahead or not.
fn mappings(cols: u64, dtype: DType) -> Vec<RowMapping> {
    let widest = (16 / dtype.bytes()) as u32;
    let base = RowMapping { fuse: true, ..RowMapping::ONE };
    let mut out = Vec::new();
    let shapes = [(1, 1), (1, 3), (1, 8), (1, 32), (2, 1), (4, 5), (8, 16), (16, 2)];
    for (i, (cluster, subgroups)) in shapes.into_iter().enumerate() {
        let m = RowMapping { cluster, subgroups, vector: [widest, 1, 2][i % 3], ..base };
        // Enough workers that what each keeps fits its registers.
        if cols.div_ceil(m.workers()) > 40 {
            continue;
        }
        let ahead = i % 2 == 1;
        out.push(RowMapping { cache: true, ahead, fuse: i % 4 < 2, ..m });
        match i % 3 {
            0 => out.push(RowMapping { unroll: 4, accumulators: 4, ..m }),
            1 => out.push(RowMapping { unroll: 2, cache: true, accumulators: 2, ..m }),
            _ => {}
        }
        if cluster * subgroups == 1 {
            out.push(RowMapping { cache: true, pack: 4, ..m });
        }
        // Rows side by side, in registers and in shared memory, with both kinds of hints.
        let residency = [Residency::Keep, Residency::Stream][i % 2];
        out.push(RowMapping { cache: true, batch: 2 + i as u32 % 2, residency, ..m });
        let vector = if m.vector == 1 && dtype.bytes() == 2 { 2 } else { m.vector };
        if cols.is_multiple_of(vector.into()) {
            let base = RowMapping { cache: true, stage: true, vector, ..m };
            out.push(RowMapping { resident: 2, ..base });
            out.push(RowMapping { batch: 2, residency, ..base });
        }
    }
    out
}

/// Whether rows may be staged or run side by side as a mapping says.
fn legal(case: &Case, rows: u64, mapping: &RowMapping) -> bool {
    let target = Target::nvidia_h200();
    let (Family::Rows(facts), Some(gpu)) = (&case.facts.family, target.gpu_facts()) else {
        return false;
    };
    let request = Request::new(&case.program, &case.facts).size("rows", rows);
    let problem = RowProblem::new(&request, facts);
    problem.is_ok_and(|problem| {
        let counts = RowCounts::new(&problem, mapping);
        gpu_rows::check(&problem, gpu, mapping, &counts).is_ok()
    })
}

/// Checks all ops on one shape. The answer counts kernels and names what is wrong.
pub fn check(context: &Arc<Context>, rows: u64, cols: u64) -> Result<Value, Error> {
    let ops = catalog().iter().filter(|op| op.form == ShapeForm::Rows).map(|op| op.name);
    let todo: Vec<(&str, DType)> =
        ops.flat_map(|op| [DType::F32, DType::BF16, DType::F16].map(|dtype| (op, dtype))).collect();
    // The oracle is slow and needs no device.
    let cases: Vec<Result<Case, Error>> = std::thread::scope(|scope| {
        let start = |(op, dtype): &(&'static str, DType)| {
            let (op, dtype) = (*op, *dtype);
            scope.spawn(move || Case::new(op, rows, cols, dtype, u64::MAX))
        };
        let threads: Vec<_> = todo.iter().map(start).collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, _>| {
            t.join().unwrap_or_else(|_| Err("the oracle panicked".into()))
        };
        threads.into_iter().map(join).collect()
    });
    let (mut kernels, mut worst, mut wrong) = (0u64, 0.0f64, Vec::new());
    for ((op, dtype), case) in todo.into_iter().zip(cases) {
        let case = case.map_err(|e| format!("{op} {dtype}: {e}"))?;
        let checked = case.checked;
        let mut list = mappings(cols, dtype);
        list.retain(|m| !m.stage && m.batch == 1 || legal(&case, rows, m));
        let loaded = load_all(context, &case, &list);
        let problem = case.upload(context)?;
        for (mapping, loaded) in list.iter().zip(loaded) {
            let outcome = loaded.and_then(|l| problem.check(context, &l.function, &l.kernel));
            kernels += 1;
            match outcome {
                Ok(error) if error <= 1.0 => worst = worst.max(error),
                Ok(error) => wrong.push(format!("{op} {dtype} {mapping:?}: {error} of the bound")),
                Err(error) => {
                    let text: String = error.to_string().chars().take(200).collect();
                    wrong.push(format!("{op} {dtype} {mapping:?}: {text}"));
                }
            }
        }
        if checked < rows {
            wrong.push(format!("{op} {dtype}: only {checked} of {rows} rows fit the oracle"));
        }
    }
    Ok(json!({ "rows": rows, "cols": cols, "kernels": kernels, "worst": worst, "wrong": wrong }))
}
