//! Facts of the op library: domains, stripes and payload bytes against the reference figures.

use std::path::PathBuf;

use tilewright_ir::analysis::{self, facts};
use tilewright_ir::facts::*;
use tilewright_ir::ops::{self, EpilogueStep, OpRequest, ShapeForm, Trans};
use tilewright_ir::{DType, Program};

fn program(op: &str, request: &OpRequest) -> Program {
    ops::build(op, request).unwrap_or_else(|e| panic!("{op}: {e}"))
}

fn row_facts(op: &str, dtype: DType, shape: &[u64]) -> RowFacts {
    let program = program(op, &OpRequest::shaped(dtype, shape));
    match facts(&program).family {
        Family::Rows(rows) => *rows,
        other => panic!("{op} isn't a row program: {other:?}"),
    }
}

fn payload(global: [u64; 2], private: [u64; 2]) -> Fact<Payload> {
    Fact::Proved(Payload {
        global_read: global[0],
        global_write: global[1],
        private_read: private[0],
        private_write: private[1],
    })
}

/// Reference 5.2 and 5.3, c = 0 and c = 1.
#[test]
fn reference_row_figures() {
    for shape in [[37, 1537], [1, 1], [256, 3072]] {
        for (op, reductions, domains, stripes, bytes) in [
            ("softmax", 2, 4, 1, [[8, 4, 16, 4], [4, 4, 24, 8]]),
            ("rmsnorm", 1, 2, 0, [[12, 4, 4, 0], [8, 4, 12, 4]]),
            ("layernorm", 2, 4, 1, [[16, 4, 16, 4], [12, 4, 24, 8]]),
        ] {
            let rows = row_facts(op, DType::F32, &shape);
            assert_eq!(rows.reductions.len(), reductions, "{op}");
            for (c, variant) in [&rows.reload, &rows.cache].into_iter().enumerate() {
                let [gr, gw, pr, pw] = bytes[c];
                assert_eq!(variant.domains.len(), domains + c, "{op} cache={c}");
                assert_eq!(variant.striped_tiles(), (stripes + c) as u64, "{op} cache={c}");
                assert_eq!(variant.payload, payload([gr, gw], [pr, pw]), "{op} cache={c}");
            }
        }
    }
}

/// The printed facts are `tests/facts/*.facts`. `TILEWRIGHT_BLESS=1` rewrites them.
#[test]
fn printed_facts() {
    let plain = OpRequest::generic(DType::F32);
    let full = OpRequest {
        dtype: DType::F16,
        output: Some(DType::F32),
        strided: true,
        trans: Trans::Tn,
        alpha: 0.5,
        beta: 2.0,
        epilogue: EpilogueStep::ALL.to_vec(),
        ..plain.clone()
    };
    let mut cases: Vec<(String, &str, OpRequest)> =
        ops::catalog().iter().map(|op| (op.name.to_string(), op.name, plain.clone())).collect();
    for (name, op, request) in [
        ("gemm_full_f16", "gemm", full.clone()),
        ("bgemm_full_f16", "bgemm", full),
        ("gemm_bound", "gemm", OpRequest::shaped(DType::F32, &[127, 193, 61])),
        ("gemm_alpha_0", "gemm", OpRequest { alpha: 0.0, beta: 1.0, ..plain.clone() }),
        ("gemm_zero", "gemm", OpRequest { alpha: 0.0, ..plain.clone() }),
        ("softmax_bf16", "softmax", OpRequest::shaped(DType::BF16, &[37, 1537])),
        (
            "layernorm_dynamic_f64",
            "layernorm",
            OpRequest {
                dynamic: true,
                strided: true,
                ..OpRequest::shaped(DType::F64, &[37, 1537])
            },
        ),
    ] {
        cases.push((name.to_string(), op, request));
    }
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/facts");
    let bless = std::env::var_os("TILEWRIGHT_BLESS").is_some();
    for (name, op, request) in cases {
        let program = program(op, &request);
        let printed = analysis::print(&program, &facts(&program));
        let path = folder.join(format!("{name}.facts"));
        if bless {
            std::fs::write(&path, &printed).unwrap();
        }
        let file = std::fs::read_to_string(&path)
            .unwrap_or_else(|e| panic!("{}: {e}; TILEWRIGHT_BLESS=1 writes it", path.display()));
        assert_eq!(file, printed, "{} is stale; TILEWRIGHT_BLESS=1 rewrites it", path.display());
    }
}

/// Every library op has a family, whatever its dtype, strides and options.
#[test]
fn every_op_has_a_family() {
    for op in ops::catalog() {
        for dtype in ops::FLOATS {
            for strided in [false, true] {
                let request = OpRequest { strided, ..OpRequest::generic(dtype) };
                let facts = facts(&program(op.name, &request));
                let matrix = op.form != ShapeForm::Rows;
                match facts.family {
                    Family::Rows(_) if !matrix => {}
                    Family::Matrix(_) if matrix => {}
                    other => panic!("{} {dtype}: {other:?}", op.name),
                }
                assert!(facts.coverage.iter().all(|(_, fact)| fact.is_proved()), "{}", op.name);
            }
        }
    }
}

/// The four ways to store the operands, with what forwarding and direct output ask for.
#[test]
fn gemm_operands() {
    for trans in Trans::ALL {
        let request = OpRequest { trans, ..OpRequest::generic(DType::F32) };
        let program = program("gemm", &request);
        let Family::Matrix(matrix) = facts(&program).family else { panic!("{trans}") };
        assert_eq!((matrix.a.transposed, matrix.b.transposed), (trans.a(), trans.b()), "{trans}");
        use MatrixDim::{K, M, N};
        assert_eq!(matrix.a.forward, Fact::Proved(vec![M, K]));
        assert_eq!(matrix.b.forward, Fact::Proved(vec![N, K]));
        assert_eq!(matrix.direct_output, Fact::Proved(vec![M, N]));
        assert!(matrix.recurrence.is_proved() && matrix.zero_init.is_proved());
        assert!(matrix.reassociable && matrix.epilogue.is_empty());
        let dim = |name: &str| tilewright_ir::program::Extent::Dim(program.dim(name).unwrap());
        assert_eq!(matrix.size, ["m", "n", "k"].map(dim));
        assert_eq!(matrix.block, ["bm", "bn", "bk"].map(dim));
    }
}
