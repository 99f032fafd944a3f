//! The resource table that is shipped for the H200: what the assembler reports of the kernels of
//! the default plans of a list of cases, keyed by the kernels' text. It needs no GPU.
//!
//! `TILEWRIGHT_BLESS=1` writes the table anew. Rows of another assembler than the one at hand can't
//! be compared; that every kernel of the list has a row is checked without any.

#[path = "resources/assembled.rs"]
#[allow(dead_code)]
mod assembled;

use assembled::{assemble, version};
use std::path::PathBuf;
use tilewright_cuda::{Ptx, PtxTarget, emit_for};
use tilewright_engine::resources::kernel_hash;
use tilewright_engine::{Plan, PlanOptions};
use tilewright_ir::DType;
use tilewright_ir::ops::{OpRequest, build};
use tilewright_plan::resources::Row;
use tilewright_plan::{Hash256, KernelResources, ResourceTable, Target};

/// Rows and columns.
const ROWS: [[u64; 2]; 13] = [
    [23, 769],
    [37, 1537],
    [128, 2048],
    [256, 3072],
    [1024, 4096],
    [768, 6144],
    [128, 8193],
    [64, 12289],
    [4096, 4096],
    [32768, 1024],
    [16384, 8192],
    [8192, 32768],
    [4096, 131_072],
];

/// M, N, K.
const PRODUCTS: [[u64; 3]; 14] = [
    [32, 32, 32],
    [128, 128, 128],
    [127, 193, 61],
    [256, 1024, 128],
    [513, 257, 129],
    [1024, 128, 256],
    [512, 512, 512],
    [1024, 1024, 1024],
    [2048, 2048, 2048],
    [4096, 4096, 4096],
    [16, 4096, 4096],
    [64, 4096, 4096],
    [4096, 4096, 64],
    [4095, 4097, 4093],
];

struct Entry {
    kernel: Hash256,
    ptx: Ptx,
    name: String,
}

/// The kernels of the default plans of the list, as ranked without a table.
fn entries() -> Vec<Entry> {
    let mut requests: Vec<(&str, OpRequest)> = Vec::new();
    for dtype in [DType::F32, DType::BF16] {
        for op in ["softmax", "rmsnorm", "layernorm"] {
            requests.extend(ROWS.iter().map(|s| (op, OpRequest::shaped(dtype, s))));
        }
    }
    requests.extend(PRODUCTS.iter().map(|s| ("gemm", OpRequest::shaped(DType::F32, s))));
    let target = Target::nvidia_h200();
    let mut entries = Vec::new();
    for (op, request) in requests {
        let program = build(op, &request).unwrap();
        let plan = Plan::new(&program, &target, &PlanOptions::default()).unwrap();
        let best = plan.ranking.chosen().unwrap_or_else(|| panic!("{op} {:?}", request.shape));
        let shape: Vec<String> = request.shape.iter().map(u64::to_string).collect();
        let name = format!("{op} {} {}: {}", shape.join("x"), request.dtype, plan.describe(best));
        for kernel in &plan.lower(best).unwrap().launches {
            let ptx = emit_for(kernel, PtxTarget::DEPENDENT_LAUNCHES).unwrap();
            entries.push(Entry { kernel: kernel_hash(kernel), ptx, name: name.clone() });
        }
    }
    entries
}

#[test]
fn the_shipped_table_is_what_the_assembler_reports() {
    let entries = entries();
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../plan/src/resources/nvidia-h200.tsv");
    let committed = ResourceTable::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let bless = std::env::var_os("TILEWRIGHT_BLESS").is_some();
    if !bless {
        let missing: Vec<&str> = entries
            .iter()
            .filter(|e| committed.get(e.kernel, None).is_none())
            .map(|e| e.name.as_str())
            .collect();
        assert!(
            missing.is_empty(),
            "{} kernels have no row; TILEWRIGHT_BLESS=1 writes the table anew:\n{}",
            missing.len(),
            missing.join("\n")
        );
    }
    let modules: Vec<Ptx> = entries.iter().map(|e| e.ptx.clone()).collect();
    let Some(release) = version() else { return };
    let Some(assembled) = assemble(&modules, "sm_90") else { return };
    let compiler = format!("ptxas {release} sm_90");
    let mut table = ResourceTable::default();
    for (number, (used, _)) in assembled {
        let entry = &entries[number];
        let resources = KernelResources {
            threads: entry.ptx.threads.into(),
            registers: used.registers.into(),
            spilled_bytes: used.spills.into(),
            shared_bytes: entry.ptx.shared_bytes,
        };
        table.insert(entry.kernel, &compiler, Row { resources, name: entry.name.clone() });
    }
    if bless {
        std::fs::write(&path, table.to_text()).unwrap();
        return;
    }
    for (kernel, compiler, row) in table.iter() {
        let found = committed.get(*kernel, Some(compiler));
        match found {
            Some((by, resources)) if by == compiler => {
                assert_eq!(resources, row.resources, "{}", row.name);
            }
            other => eprintln!("not compared, the row is of {other:?}: {}", row.name),
        }
    }
}
