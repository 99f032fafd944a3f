//! What needs no GPU to be known of the kernels that an H200 is given: each is simulated and
//! checked whole against the float64 oracle, assembled for three architectures, its registers and
//! spills held against committed bounds, and its machine code against what the plan promises.
//!
//! `TILEWRIGHT_BLESS=1` writes the bounds anew.

#[path = "resources/assembled.rs"]
mod assembled;
#[path = "resources/simulated.rs"]
mod simulated;

use assembled::{Sass, Used, assemble};
use simulated::Simulated;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use tilewright_cuda::{Ptx, PtxTarget, emit_for};
use tilewright_engine::check::{LaunchValues, run_checked};
use tilewright_engine::{Engine, Plan, PlanOptions, inputs};
use tilewright_ir::DType;
use tilewright_ir::ops::{EpilogueStep, OpRequest, ShapeForm, Trans, build, catalog};
use tilewright_plan::Target;
use tilewright_plan::mapping::{GpuMatrixMapping, Mapping, RowMapping};

const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90", "sm_90a"];

/// A plan with one way to run it: a stated mapping, so that the list doesn't change with policies.
struct Case {
    name: String,
    plan: Plan,
    /// Whether accesses of 16 bytes are promised.
    wide: bool,
}

/// A kernel of a case.
struct Entry {
    name: String,
    /// For GPUs with and without dependent launches.
    ptx: [Ptx; 2],
    wide: bool,
    product: bool,
}

/// How to run a case.
#[derive(Clone, Copy)]
enum Way {
    Mapped(&'static str, Mapping),
    General,
}

fn case(op: &str, request: &OpRequest, way: Way) -> Case {
    let program = build(op, request).unwrap();
    let target = Target::nvidia_h200();
    let mut plan = Plan::new(&program, &target, &PlanOptions::default()).unwrap();
    let mut name = format!("{op} {:?} {}", request.shape, request.dtype);
    if request.trans != Trans::Nn {
        let _ = write!(name, " {:?}", request.trans);
    }
    if !request.epilogue.is_empty() {
        let _ = write!(name, " {:?}", request.epilogue);
    }
    let mut wide = false;
    match way {
        Way::Mapped(label, mapping) => {
            let _ = write!(name, " {label}");
            let mut candidate = plan.ranking.candidates[0].clone();
            candidate.mapping = mapping;
            (plan.ranking.candidates, plan.ranking.order) = (vec![candidate], vec![0]);
            plan.general = None;
            // Whole aligned rows promise accesses of 16 bytes.
            wide = matches!(mapping, Mapping::Rows(m)
                if u64::from(m.vector) * request.dtype.bytes() == 16 && op != "gemv");
        }
        Way::General => {
            name.push_str(" general");
            plan.general = Some("asked for".to_string());
        }
    }
    Case { name, plan, wide }
}

/// Register tiles that fit small products.
fn tiles(label: &'static str, copy: [u32; 2], sets: u32, slices: u32) -> Way {
    let mapping = GpuMatrixMapping {
        warps: [2, 1, sets],
        tile: [4, 4],
        depth: 4 * sets,
        stages: 3,
        slices,
        copy,
        resident: 2,
        ..GpuMatrixMapping::ONE
    };
    Way::Mapped(label, Mapping::GpuMatrix(mapping))
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for op in catalog() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let shaped = |shape: &[u64]| OpRequest::shaped(dtype, shape);
            if op.form == ShapeForm::Rows {
                let vector = (16 / dtype.bytes()) as u32;
                let whole = RowMapping { subgroups: 2, vector, fuse: true, ..RowMapping::ONE };
                let whole = Mapping::Rows(RowMapping { cache: true, ..whole });
                cases.push(case(op.name, &shaped(&[2, 2048]), Way::Mapped("whole", whole)));
                let ragged = RowMapping { subgroups: 4, vector: 1, ..RowMapping::ONE };
                let ragged = Mapping::Rows(ragged);
                cases.push(case(op.name, &shaped(&[3, 769]), Way::Mapped("ragged", ragged)));
                if dtype == DType::F32 {
                    cases.push(case(op.name, &shaped(&[3, 769]), Way::General));
                }
                continue;
            }
            let batched = op.form == ShapeForm::BatchedMatrix;
            let shape = |size: [u64; 3]| match batched {
                true => [&[2], &size[..]].concat(),
                false => size.to_vec(),
            };
            let (small, aligned) = (shape([17, 33, 9]), shape([64, 64, 32]));
            cases.push(case(op.name, &shaped(&small), Way::General));
            if dtype == DType::F32 {
                let whole = tiles("whole", [1, 4], 1, 1);
                cases.push(case(op.name, &shaped(&aligned), whole));
                cases.push(case(op.name, &shaped(&small), tiles("ragged", [1, 1], 2, 1)));
            }
        }
    }
    let f32 = |shape: &[u64]| OpRequest::shaped(DType::F32, shape);
    for (trans, copy) in [(Trans::Nt, [1, 1]), (Trans::Tn, [4, 4]), (Trans::Tt, [4, 1])] {
        let request = OpRequest { trans, ..f32(&[64, 64, 32]) };
        cases.push(case("gemm", &request, tiles("whole", copy, 1, 1)));
        let request = OpRequest { trans, ..f32(&[37, 65, 19]) };
        cases.push(case("gemm", &request, tiles("ragged", [1, 1], 1, 1)));
    }
    cases.push(case("gemm", &f32(&[32, 64, 64]), tiles("sliced", [1, 4], 1, 4)));
    use EpilogueStep::{Bias, Gelu, Residual};
    let epilogue = vec![Bias, Residual, Gelu];
    let request = OpRequest { epilogue, ..f32(&[64, 64, 32]) };
    cases.push(case("gemm", &request, tiles("whole", [1, 4], 1, 1)));
    for (op, dtype) in [("softmax", DType::F32), ("layernorm", DType::BF16)] {
        let vector = (16 / dtype.bytes()) as u32;
        let row = RowMapping { subgroups: 4, cluster: 4, vector, ..RowMapping::ONE };
        let row = Mapping::Rows(RowMapping { cache: true, fuse: true, ..row });
        let request = OpRequest::shaped(dtype, &[2, 8192]);
        cases.push(case(op, &request, Way::Mapped("cluster", row)));
    }
    cases.extend(split_rows());
    cases.extend(thin_products());
    cases
}

/// Rows over several launches, whole and ragged.
fn split_rows() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::BF16] {
        let vector = (16 / dtype.bytes()) as u32;
        for op in ["softmax", "rmsnorm", "layernorm", "residual_layernorm", "row_sum", "relu"] {
            let split = RowMapping { subgroups: 4, split: 3, fuse: true, ..RowMapping::ONE };
            let whole = Mapping::Rows(RowMapping { vector, ..split });
            let request = OpRequest::shaped(dtype, &[2, 12_288]);
            cases.push(case(op, &request, Way::Mapped("split", whole)));
            let ragged = Mapping::Rows(RowMapping { unroll: 4, accumulators: 4, ..split });
            let request = OpRequest::shaped(dtype, &[2, 3001]);
            cases.push(case(op, &request, Way::Mapped("split ragged", ragged)));
        }
    }
    cases
}

/// Thin products that read their operands where they lie: lanes that split K, and lanes along the
/// long side, whole and in slices.
fn thin_products() -> Vec<Case> {
    let mut cases = Vec::new();
    let in_place = GpuMatrixMapping { stages: 1, copy: [4, 4], ..GpuMatrixMapping::ONE };
    let base =
        GpuMatrixMapping { warps: [1, 4, 2], lanes: [1, 1], tile: [1, 2], depth: 256, ..in_place };
    let along =
        GpuMatrixMapping { warps: [1, 1, 4], lanes: [1, 32], tile: [1, 4], depth: 16, ..in_place };
    let f32 = |shape: &[u64]| OpRequest::shaped(DType::F32, shape);
    let mut add = |label, trans, shape: &[u64], mapping| {
        let request = OpRequest { trans, ..f32(shape) };
        cases.push(case("gemm", &request, Way::Mapped(label, Mapping::GpuMatrix(mapping))));
    };
    let ragged = GpuMatrixMapping { copy: [1, 1], ..base };
    let turned = |m: GpuMatrixMapping| {
        let turn = |[a, b]: [u32; 2]| [b, a];
        let warps = [m.warps[1], m.warps[0], m.warps[2]];
        GpuMatrixMapping { warps, lanes: turn(m.lanes), tile: turn(m.tile), ..m }
    };
    add("in place", Trans::Nt, &[1, 64, 512], base);
    add("in place ragged", Trans::Nt, &[1, 37, 311], ragged);
    add("in place", Trans::Nn, &[64, 1, 512], turned(base));
    add("in place sliced", Trans::Nt, &[1, 64, 1024], GpuMatrixMapping { slices: 2, ..base });
    add("in place along", Trans::Nn, &[1, 256, 64], along);
    add("in place along", Trans::Tn, &[256, 1, 64], turned(along));
    cases
}

/// Simulates every case whole against the oracle, and makes the PTX of its kernels.
fn entries() -> Vec<Entry> {
    let engine = Engine::new(Arc::new(Simulated::new(Target::nvidia_h200())));
    let mut entries = Vec::new();
    for Case { name, plan, wide } in cases() {
        let program = plan.program.clone();
        let scalars = program.scalars.iter().map(|(_, s)| (s.name.clone(), 0.5)).collect();
        let values = LaunchValues { dims: Vec::new(), scalars };
        let lowered = match plan.general {
            Some(_) => plan.lower_general(),
            None => plan.lower(0),
        };
        let lowered = lowered.unwrap_or_else(|e| panic!("{name}: {e}"));
        let compiled = engine
            .compile_stated(&program, lowered.launches, &name)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let contents = inputs::random(&program, &values, 11).unwrap();
        let run = run_checked(&compiled, &values, contents.inputs, contents.initial)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(run.report.passed(), "{name}: {:?}", run.report.complaint());
        for (number, kernel) in compiled.launches().iter().enumerate() {
            let ptx = [PtxTarget::BASE, PtxTarget::DEPENDENT_LAUNCHES]
                .map(|limit| emit_for(kernel, limit).unwrap_or_else(|e| panic!("{name}: {e}")));
            let product = ptx[0].text.contains("cp.async");
            let name = format!("{name} {number}");
            entries.push(Entry { name, ptx, wide: wide && number == 0, product });
        }
    }
    entries
}

fn table() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/resources.tsv")
}

type Bounds = BTreeMap<(String, String), (u32, u32)>;

fn committed() -> Bounds {
    let text = std::fs::read_to_string(table()).unwrap_or_default();
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let columns: Vec<&str> = line.split('\t').collect();
            let number = |i: usize| columns[i].parse().unwrap_or_else(|_| panic!("{line}"));
            ((columns[0].to_string(), columns[1].to_string()), (number(2), number(3)))
        })
        .collect()
}

#[test]
fn kernels_are_right_and_use_no_more_than_was_agreed() {
    let entries = entries();
    let mut found: Bounds = BTreeMap::new();
    for architecture in ARCHITECTURES {
        let kind = usize::from(architecture != "sm_80");
        let modules: Vec<Ptx> = entries.iter().map(|e| e.ptx[kind].clone()).collect();
        let Some(assembled) = assemble(&modules, architecture) else { return };
        for (number, (used, sass)) in assembled {
            let entry = &entries[number];
            check_code(entry, architecture, &used, &sass);
            let key = (entry.name.clone(), architecture.to_string());
            found.insert(key, (used.registers, used.spills));
        }
    }
    if std::env::var_os("TILEWRIGHT_BLESS").is_some() {
        let mut text =
            "# kernel\tarchitecture\tregisters\tspilled bytes (upper bounds)\n".to_string();
        for ((name, architecture), (registers, spills)) in &found {
            let _ = writeln!(text, "{name}\t{architecture}\t{registers}\t{spills}");
        }
        std::fs::write(table(), text).unwrap();
        return;
    }
    let committed = committed();
    let mut faults = Vec::new();
    for (key, (registers, spills)) in &found {
        match committed.get(key) {
            None => faults.push(format!("{key:?} has no committed bound")),
            Some((r, s)) if registers > r || spills > s => faults.push(format!(
                "{key:?}: {registers} registers and {spills} spilled bytes, at most {r} and {s}"
            )),
            Some(_) => {}
        }
    }
    faults.extend(
        committed.keys().filter(|k| !found.contains_key(k)).map(|k| format!("{k:?} is gone")),
    );
    assert!(
        faults.is_empty(),
        "{} faults; TILEWRIGHT_BLESS=1 writes the table anew:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

/// Machine code holds what the plan promises.
fn check_code(entry: &Entry, architecture: &str, used: &Used, sass: &Sass) {
    let context = format!("{} {architecture}: {used:?} {sass:?}", entry.name);
    // Local memory is touched only where the assembler says that it spills.
    assert_eq!(sass.local > 0, used.spills > 0, "{context}");
    assert!(used.stack >= used.spills, "{context}");
    if entry.wide {
        assert!(sass.loads_128 > 0, "16-byte loads are promised: {context}");
    }
    // Nothing is read or written before the launch ahead has ended.
    if architecture != "sm_80" {
        assert_eq!((sass.waits, sass.early), (1, 0), "{context}");
    }
    if entry.product {
        let promised = entry.ptx[0].text.matches("fma.rn.f32").count() as u32;
        assert!(sass.ffma >= promised, "{promised} multiply-adds are promised: {context}");
    }
}
