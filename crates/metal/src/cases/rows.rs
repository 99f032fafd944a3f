//! Row cases: every op of rows on both sides of every threshold that the planner and the lowering
//! have for rows.

use tilewright_ir::DType;
use tilewright_ir::analysis;
use tilewright_ir::facts::Family;
use tilewright_ir::ops::catalog::{OpInfo, OpRequest, ShapeForm, catalog};
use tilewright_plan::problem::RowProblem;
use tilewright_plan::{Request, SpaceOptions, Target};

use super::{CaseError, DTYPES, ROWS, Wish};

/// Width, V, U, P, whether inputs are cached, rows, columns.
type RowShape = (u32, u32, u32, u32, bool, u64, u64);

/// One access of all workers is `width / P · V` elements.
const ROW_SHAPES: [RowShape; 17] = [
    (96, 4, 1, 1, false, 3, 769),
    (32, 4, 1, 1, true, 2, 127),
    (64, 2, 1, 1, false, 2, 300),
    (32, 4, 1, 1, false, 2, 128),
    (256, 4, 1, 1, true, 2, 1537),
    (32, 4, 1, 1, true, 2, 129),
    (64, 1, 1, 1, true, 3, 65),
    (64, 4, 1, 2, false, 3, 40),
    (32, 4, 2, 1, false, 2, 700),
    (1024, 4, 1, 1, false, 1, 4099),
    (128, 8, 1, 1, true, 2, 1032),
    (32, 4, 1, 1, false, 1, 1),
    (128, 4, 4, 1, true, 2, 2048),
    (96, 2, 1, 3, true, 4, 63),
    (64, 2, 1, 1, false, 2, 301),
    (256, 4, 1, 8, false, 16, 133),
    (32, 1, 16, 1, false, 2, 589),
];

/// Numbers of a row op at a shape, as the planner has them.
fn problem(info: &OpInfo, shape: &[u64]) -> Result<Option<RowProblem>, CaseError> {
    let fail = |reason: String| CaseError { id: info.name.to_string(), reason };
    let program =
        info.build(&OpRequest::shaped(DType::F32, shape)).map_err(|e| fail(e.to_string()))?;
    let facts = analysis::facts(&program);
    match &facts.family {
        Family::Rows(rows) => RowProblem::new(&Request::new(&program, &facts), rows)
            .map(Some)
            .map_err(|e| fail(e.to_string())),
        _ => Ok(None),
    }
}

pub(super) fn rows(wishes: &mut Vec<Wish>) -> Result<(), CaseError> {
    for (o, info) in catalog().iter().filter(|i| i.form == ShapeForm::Rows).enumerate() {
        let Some(numbers) = problem(info, &[1, 32])? else { continue };
        let mut shapes = ROW_SHAPES.to_vec();
        // As many elements a lane as its private memory has room for, in whole accesses of four.
        let budget = Target::apple_m1_max().gpu_facts().map_or(0, |gpu| gpu.private_scalars);
        if let Some(accesses) = budget.checked_div(4 * numbers.reload.slot_scalars) {
            shapes.push((32, 4, 1, 1, false, 2, 128 * accesses));
        }
        for (d, dtype) in DTYPES.into_iter().enumerate() {
            for (s, shape) in shapes.iter().enumerate() {
                // 16-bit types take turns: every shape meets every type over the ops.
                if d > 0 && (s + o + d) % 4 != 0 {
                    continue;
                }
                let (threads, vector, unroll, pack, cache, rows, columns) = *shape;
                // There is nothing to keep where an element is read once.
                let cache = cache && numbers.reuses;
                let mut wish = Wish::new(info.name, dtype, &[rows, columns], ROWS);
                wish.space = SpaceOptions {
                    threads: Some(vec![threads]),
                    vector: Some(vec![vector]),
                    unroll: Some(vec![unroll]),
                    pack: Some(vec![pack]),
                    cache: Some(cache),
                    ..SpaceOptions::default()
                };
                let reuse = if cache { "cache" } else { "reload" };
                wish.tag = format!("t{threads}-v{vector}-u{unroll}-p{pack}-{reuse}");
                wish.brief = (d == 0 && s == o % 6) || (d > 0 && s == 6 + o % 4);
                wishes.push(wish);
            }
        }
    }
    // Rows that a launch states, and rows apart.
    for op in ["softmax", "layernorm", "rmsnorm", "cross_entropy", "row_max"] {
        for (tag, dynamic, strided, pad) in
            [("dynamic", true, false, 0), ("strided", false, true, 4), ("apart", true, true, 3)]
        {
            let mut wish = Wish::new(op, DType::F32, &[3, 301], ROWS);
            wish.request.dynamic = dynamic;
            wish.request.strided = strided;
            wish.space.threads = Some(vec![64]);
            wish.pad = pad;
            wish.tag = tag.to_string();
            wish.brief = op == "layernorm";
            wishes.push(wish);
        }
    }
    // Columns that a launch states: every access has a guard, and one kernel serves all sizes.
    let sizes: &[u64] = &[303, 302, 301, 300, 256, 63, 1, 771];
    for (op, threads, sizes) in [
        ("row_max", 64, sizes),
        ("rmsnorm", 32, &[128, 129]),
        ("row_mean", 96, &[1000]),
        ("swiglu", 64, &[255, 1024]),
    ] {
        for columns in sizes {
            let mut wish = Wish::new(op, DType::F32, &[3, *columns], ROWS);
            wish.generic = true;
            wish.space.threads = Some(vec![threads]);
            wish.tag = "generic".to_string();
            wish.brief = *columns == 129;
            wishes.push(wish);
        }
    }
    Ok(())
}
