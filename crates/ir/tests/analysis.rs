//! Facts of the op library: domains, stripes and payload bytes against the reference figures.

use tilewright_ir::analysis::facts;
use tilewright_ir::facts::*;
use tilewright_ir::ops::{self, OpRequest};
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
