//! Every op of the library, in every type, on every instruction set, over shapes that straddle
//! each threshold: checked whole against the float64 oracle.

mod common;

use common::{check, engine, isas};
use tilewright::DType;
use tilewright::check::LaunchValues;
use tilewright_ir::ops::{EpilogueStep, OpRequest, ShapeForm, Trans, catalog, find};

const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// Shapes around vector widths (8, 16), unrolled chunks and cache steps.
fn row_shapes(full: bool) -> Vec<Vec<u64>> {
    let columns: &[u64] = if full {
        &[
            1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 255, 257, 513, 769, 1537,
            8193,
        ]
    } else {
        &[1, 15, 17, 129]
    };
    let mut shapes: Vec<Vec<u64>> = columns.iter().map(|n| vec![3, *n]).collect();
    shapes.extend([vec![0, 5], vec![3, 0], vec![1, 40], vec![37, 33]]);
    if full {
        shapes.extend([vec![23, 769], vec![128, 2048], vec![37, 1537], vec![64, 12289]]);
    }
    shapes
}

fn matrix_shapes(full: bool) -> Vec<Vec<u64>> {
    let mut shapes: Vec<[u64; 3]> =
        vec![[1, 1, 1], [5, 7, 3], [17, 33, 9], [16, 16, 0], [0, 4, 4], [4, 0, 4], [32, 32, 32]];
    if full {
        shapes.extend([
            [1, 64, 64],
            [2, 15, 17],
            [3, 16, 16],
            [4, 17, 15],
            [6, 31, 5],
            [8, 47, 33],
            [12, 48, 64],
            [13, 49, 65],
            [14, 32, 127],
            [15, 33, 128],
            [29, 95, 129],
            [64, 64, 64],
            [127, 193, 61],
            [128, 128, 128],
            [1, 256, 256],
            [8, 256, 256],
            [256, 256, 16],
            [256, 1024, 128],
            [513, 257, 129],
        ]);
    }
    shapes.iter().map(|s| s.to_vec()).collect()
}

fn sweep(full: bool) {
    let mut failures = Vec::new();
    let mut checked = 0;
    for isa in isas() {
        let engine = engine(isa);
        for op in catalog() {
            let shapes = match op.form {
                ShapeForm::Rows => row_shapes(full),
                ShapeForm::Matrix => matrix_shapes(full),
                ShapeForm::BatchedMatrix => vec![vec![3, 5, 7, 9], vec![2, 17, 33, 16]],
            };
            for dtype in FLOATS {
                for shape in &shapes {
                    let program = op.build(&OpRequest::shaped(dtype, shape)).unwrap();
                    let case = format!("{isa:?} {} {dtype} {shape:?}", op.name);
                    match check(&engine, program, &LaunchValues::default(), 1) {
                        Ok(report) => failures
                            .extend(report.complaint().map(|text| format!("{case}: {text}"))),
                        Err(error) => failures.push(format!("{case}: {error}")),
                    }
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 0);
    assert!(failures.is_empty(), "{} of {checked}:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn ops_at_small_thresholds() {
    sweep(false);
}

#[test]
#[ignore = "minutes in a debug build; .ci/run runs it in release"]
fn ops_at_every_threshold() {
    sweep(true);
}

#[test]
fn products_with_every_option() {
    let mut failures = Vec::new();
    let epilogues: [&[EpilogueStep]; 5] = [
        &[],
        &[EpilogueStep::Bias, EpilogueStep::Gelu],
        &[EpilogueStep::Scale, EpilogueStep::Residual],
        &[EpilogueStep::Relu],
        &[EpilogueStep::Bias, EpilogueStep::Residual, EpilogueStep::Silu],
    ];
    for isa in isas() {
        let engine = engine(isa);
        for (i, trans) in Trans::ALL.into_iter().enumerate() {
            for (j, epilogue) in epilogues.iter().enumerate() {
                for (alpha, beta) in [(1.0, 0.0), (0.5, 1.0), (-1.25, 0.75), (0.0, 0.5), (0.0, 0.0)]
                {
                    let dtype = FLOATS[(i + j) % 4];
                    let request = OpRequest {
                        trans,
                        alpha,
                        beta,
                        epilogue: epilogue.to_vec(),
                        ..OpRequest::shaped(dtype, &[13, 37, 21])
                    };
                    let program = find("gemm").unwrap().build(&request).unwrap();
                    let given = [("alpha", alpha), ("beta", beta), ("scale", 1.5)];
                    let scalars = given.map(|(name, value)| (name.to_string(), value));
                    let known = |name: &str| program.scalars.iter().any(|(_, s)| s.name == name);
                    let values = LaunchValues {
                        dims: vec![],
                        scalars: scalars.into_iter().filter(|(n, _)| known(n)).collect(),
                    };
                    let case = format!("{isa:?} {trans} {dtype} {epilogue:?} {alpha} {beta}");
                    match check(&engine, program, &values, 2) {
                        Ok(report) => failures
                            .extend(report.complaint().map(|text| format!("{case}: {text}"))),
                        Err(error) => failures.push(format!("{case}: {error}")),
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn open_sizes_and_padded_rows() {
    let mut failures = Vec::new();
    for isa in isas() {
        let engine = engine(isa);
        for op in catalog() {
            let request = OpRequest {
                dynamic: true,
                strided: true,
                ..OpRequest::shaped(
                    DType::F32,
                    match op.form {
                        ShapeForm::Rows => &[5, 19],
                        ShapeForm::Matrix => &[5, 19, 7],
                        ShapeForm::BatchedMatrix => &[3, 5, 19, 7],
                    },
                )
            };
            let program = op.build(&request).unwrap();
            // Every open dimension is a size of 5 (rows, M), 3 (batch), or a stride: 24 between
            // rows is more than any row here has, 24·24 more than any matrix.
            let size = |name: &str| match name {
                "rows" | "m" => 5,
                "batch" => 3,
                name if name.starts_with('s') => 24 * 24,
                _ => 24,
            };
            let open = program
                .dims
                .iter()
                .filter(|(_, d)| matches!(d.kind, tilewright::program::DimKind::Symbolic { .. }));
            let dims = open.map(|(_, d)| (d.name.clone(), size(&d.name))).collect();
            let values = LaunchValues { dims, scalars: vec![] };
            match check(&engine, program, &values, 3) {
                Ok(report) => {
                    failures
                        .extend(report.complaint().map(|t| format!("{isa:?} {}: {t}", op.name)));
                }
                Err(error) => failures.push(format!("{isa:?} {}: {error}", op.name)),
            }
        }
    }
    assert!(failures.is_empty(), "{}:\n{}", failures.len(), failures.join("\n"));
}
