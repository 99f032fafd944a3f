//! The command on real work: results in files, every stage printed, figures in JSON.

mod common;

use common::Directory;
use tilewright_ir::ops::{ShapeForm, catalog};

/// A version 1.0 file of f32.
fn npy(shape: &str, values: &[f32]) -> Vec<u8> {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    values.iter().for_each(|v| bytes.extend(v.to_le_bytes()));
    bytes
}

/// Header text and f32 values of a file.
fn read(d: &Directory, name: &str) -> (String, Vec<f32>) {
    let bytes = std::fs::read(d.path().join(name)).unwrap();
    let length = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = String::from_utf8(bytes[10..10 + length].to_vec()).unwrap();
    let values =
        bytes[10 + length..].chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect();
    (header, values)
}

#[test]
fn files_in_and_out() {
    let d = Directory::new("files");
    d.write("x.npy", npy("(2, 3)", &[0.0, 0.0, 0.0, 1000.0, f32::NEG_INFINITY, 1000.0]));
    let text = d.run("run softmax 2x3 --input x.npy --output y.npy").ok();
    assert!(text.starts_with("softmax 2x3 f32: "), "{text}");
    assert!(text.contains("inputs from files") && text.contains("wrote    y.npy"), "{text}");
    let (header, y) = read(&d, "y.npy");
    assert!(header.contains("'descr': '<f4'") && header.contains("(2, 3)"), "{header}");
    let third = 1.0f32 / 3.0;
    assert!(y[..3].iter().all(|v| (v - third).abs() < 1e-6), "{y:?}");
    assert_eq!(y[3..], [0.5, 0.0, 0.5]);
    assert_eq!(d.files(), ["x.npy", "y.npy"]);

    d.write("a.npy", npy("(1, 2)", &[1.0, 2.0]));
    d.write("b.npy", npy("(2, 1)", &[10.0, 100.0]));
    d.write("c.npy", npy("(1, 1)", &[4.0]));
    d.run("run gemm 1x1x2 --beta 0.5 --input c=c.npy b=b.npy a=a.npy --output out.npy").ok();
    assert_eq!(read(&d, "out.npy").1, [212.0]);
    d.run("run gemm 1x1x2 --beta 0.5 --input a.npy b.npy c.npy --output out.npy").ok();
    assert_eq!(read(&d, "out.npy").1, [212.0]);
}

#[test]
fn a_program_from_a_file() {
    let d = Directory::new("program");
    let text = "program twice {\n  dim rows: symbolic max 100\n  dim cols: symbolic max 100\n  \
                in x: f32[rows, cols]\n  out y: f32[rows, cols]\n  axis j: cols\n  \
                grid r: rows step 1\n\n  %x = load x[r, :j]\n  %y = add %x, %x\n  \
                store y[r, :j], %y\n}\n";
    d.write("twice.tile", text);
    d.write("x.npy", npy("(1, 3)", &[1.0, -2.0, 0.5]));
    let run = "run twice.tile rows=1,cols=3 --input x.npy --output y.npy";
    assert!(d.run(run).ok().starts_with("twice rows=1,cols=3 f32: "));
    assert_eq!(read(&d, "y.npy").1, [2.0, -4.0, 1.0]);
    let shown = d.run("show twice.tile rows=1,cols=3 --emit program").ok();
    assert!(shown.contains("dim rows: static 1") && shown.contains("%y = add %x, %x"), "{shown}");
    // One program instance scans each row; no family fits.
    let scan = "program scan {\n  dim cols: static 5\n  in x: f32[cols]\n  out y: f32[cols]\n  \
                grid g: 1 step 1\n\n  %zero: f32[] = const 0 f32\n  \
                %s = for serial k in cols step 1 carry %acc = %zero {\n    %x = load x[k]\n    \
                %next = add %acc, %x\n    store y[k], %next\n    yield %next\n  }\n}\n";
    d.write("scan.tile", scan);
    assert!(d.run("run scan.tile").ok().contains("general lowering"));
    d.run("plan scan.tile").fails(2, "no planned schedule");
}

#[test]
fn every_op_runs() {
    let d = Directory::new("ops");
    for op in catalog() {
        let shape = match op.form {
            ShapeForm::Rows => "3x21",
            ShapeForm::Matrix => "3x21x5",
            ShapeForm::BatchedMatrix => "2x3x21x5",
        };
        let report = d.run(&format!("run {} {shape} --json", op.name)).json();
        assert_eq!(report["check"]["passed"], true, "{}", op.name);
        assert!(report["time"]["median_us"].as_f64().unwrap() > 0.0, "{}", op.name);
    }
}

#[test]
fn every_instruction_set_and_number_of_threads() {
    let d = Directory::new("isas");
    for isa in ["avx512", "avx2", "portable"] {
        let run = d.run(&format!("run layernorm 5x33 --isa {isa} --cpu-threads 1 --json"));
        if run.code() == 2 && run.err().contains("this machine has no") {
            continue;
        }
        let report = run.json();
        assert_eq!(report["device"]["isa"], isa);
        assert_eq!(report["device"]["threads"], 1);
        assert_eq!(report["check"]["passed"], true);
    }
}

#[test]
fn every_stage_is_shown() {
    let d = Directory::new("stages");
    for (stage, part) in [
        ("program", "program softmax {"),
        ("facts", "facts softmax {"),
        ("candidates", "candidates are legal"),
        ("plan", "RowMapping"),
        ("kernel", "kernel softmax lanes"),
        ("asm", "ret"),
    ] {
        let text = d.run(&format!("show softmax 5x33 --emit {stage}")).ok();
        assert!(text.contains(part), "{stage}: {text}");
    }
    let kernel = d.run("show gemm 64x64x64 --emit kernel --target apple-m1-max").ok();
    assert!(kernel.contains("lanes 32"), "{kernel}");
}

/// Each realisation is visible in its text, and the other's calls aren't there.
#[test]
fn msl_is_shown_for_apple_gpus() {
    let d = Directory::new("msl");
    let show = |what: &str| d.run(&format!("show {what} --emit msl --target apple-m1-max")).ok();
    let rows = show("softmax 37x1537 --threads 416 --cache on");
    assert!(rows.contains("max_total_threads_per_threadgroup(416)"), "{rows}");
    assert!(rows.contains("simd_sum("), "{rows}");
    let (mpp, fragments) = ("matmul2d<", "simdgroup_multiply_accumulate(");
    for (policy, there, absent) in
        [("matrix-mpp-v2", mpp, fragments), ("matrix-simdgroup-v1", fragments, mpp)]
    {
        let text = show(&format!("gemm 33x65x61 --policy {policy}"));
        assert!(text.contains(there) && !text.contains(absent), "{policy}: {text}");
    }
    d.run("show softmax 4x4 --emit msl").fails(2, "use --target apple-m1-max");
    d.run("show softmax 4x4 --emit msl --target nvidia-h200").fails(2, "nvidia-h200");
    d.run("show softmax 4x4 --dtype f64 --emit msl --target apple-m1-max")
        .fails(2, "f64, which Metal doesn't have");
}

#[test]
fn the_published_profile_picks_the_published_width() {
    let d = Directory::new("published");
    let plan = d
        .run("plan softmax 37x1537 --target apple-m1-max --policy reduction-service --all --json")
        .json();
    let chosen = &plan["candidates"][plan["chosen"].as_u64().unwrap() as usize];
    assert_eq!((&chosen["threads"], &chosen["cache"]), (&416.into(), &true.into()));
    assert!((chosen["kernel_score"].as_f64().unwrap() - 4.0022).abs() < 1e-4);
    assert_eq!(plan["candidates"].as_array().unwrap().len(), 64);
    let again = d
        .run(
            "plan softmax 37x1537 --target apple-m1-max --profile service-v1,512,\
              3.2916011189278369,0.0036317277214723059,0.0034232968457137843,\
              1.0065583053146008e-06,0.0028459431572213007,0 --all --json",
        )
        .json();
    assert_eq!(again["candidates"], plan["candidates"]);
    assert_eq!(
        plan["key"],
        d.run(
            "plan softmax 37x1537 --target apple-m1-max --policy \
                                   reduction-service --json"
        )
        .json()["key"]
    );
}
