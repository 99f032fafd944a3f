//! Every kind of bad input: its exit code, one clear message, no panic, nothing left behind.

mod common;

use common::Directory;

fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

const SCALE: &str = "\
program scale {
  dim rows: symbolic max 100
  dim cols: symbolic divisor 4 max 4096
  in x: f32[rows, cols]
  out y: f32[rows, cols]
  axis j: cols
  grid r: rows step 1

  %x = load x[r, :j]
  %y = add %x, %x
  store y[r, :j], %y
}
";

#[test]
fn unknown_names() {
    let d = Directory::new("names");
    d.run("run sofmax 4x4").fails(2, "unknown op `sofmax`");
    d.run("plan softmax 4x4 --target m9").fails(2, "unknown target `m9`");
    d.run("plan softmax 4x4 --policy best").fails(2, "unknown policy `best`");
    d.run("run softmax 4x4 --dtype f8").fails(2, "unknown dtype `f8`");
    d.run("run softmax 4x4 --dtype bool").fails(2, "bool");
    d.run("run softmax 4x4 --dtype i32").fails(2, "`softmax` has no i32 form");
    d.run("run gemm 4x4x4 --trans xx").fails(2, "unknown transposition `xx`");
    d.run("run gemm 4x4x4 --epilogue relu,gulp").fails(2, "unknown epilogue step `gulp`");
    d.run("run softmax 4x4 --device gpu").fails(2, "unknown device `gpu`");
    d.run("run softmax 4x4 --isa sse").fails(2, "sse");
    d.run("show softmax 4x4 --emit sass").fails(2, "sass");
    d.run("launch softmax 4x4").fails(2, "launch");
}

#[test]
fn malformed_shapes() {
    let d = Directory::new("shapes");
    d.run("run softmax").fails(2, "needs a shape ROWSxCOLUMNS");
    d.run("run softmax 4").fails(2, "ROWSxCOLUMNS");
    d.run("run softmax 4x4x4").fails(2, "ROWSxCOLUMNS");
    d.run("run gemm 4x4").fails(2, "MxNxK");
    d.run("run softmax 4x").fails(2, "malformed shape `4x`");
    d.run("run softmax 4xfour").fails(2, "malformed shape");
    d.run("run softmax -4x4").fails(2, "-4");
    d.run("run softmax 4x99999999999").fails(2, "over the limit");
    d.run("run softmax 4x4 --alpha 2").fails(2, "takes no alpha");
    d.run("run gemm 4x4x4 --alpha nan").fails(2, "alpha must be finite");
    d.run("plan gemm 4x4x4 --blocks 32,32").fails(2, "malformed block");
}

#[test]
fn malformed_programs_point_at_the_place() {
    let d = Directory::new("tile");
    d.run("run missing.tile").fails(4, "can't read missing.tile");
    d.run("run ./").fails(2, "not a regular file");
    d.write("bytes.tile", [0xff, 0xfe]);
    d.run("run bytes.tile").fails(2, "not UTF-8");
    d.write("long.tile", vec![b' '; (1 << 20) + 1]);
    d.run("run long.tile").fails(2, "at most");

    d.write("bad.tile", SCALE.replace("add %x, %x", "ad %x, %x"));
    let bad = d.run("run bad.tile rows=1,cols=4");
    bad.fails(2, "bad.tile:10:8: ");
    assert!(bad.err().contains("   10 |   %y = ad %x, %x\n       |        ^\n"), "{}", bad.err());

    d.write("rule.tile", SCALE.replace("add %x, %x", "add %x, %z"));
    d.run("run rule.tile rows=1,cols=4").fails(2, "rule.tile:10:");
    d.write("typed.tile", SCALE.replace("out y: f32", "out y: f64"));
    d.run("run typed.tile rows=1,cols=4").fails(2, "(rule `store-dtype`)");

    d.write("scale.tile", SCALE);
    d.run("run scale.tile").fails(2, "give rows=…,cols=…");
    d.run("run scale.tile 4x4").fails(2, "malformed size `4x4`");
    d.run("run scale.tile rows=4,columns=4").fails(2, "has no dimension `columns`");
    d.run("run scale.tile rows=4,cols=5").fails(2, "must be a multiple of 4");
    d.run("run scale.tile rows=101,cols=4").fails(2, "is at most 100");
    d.run("run scale.tile rows=4,cols=4 --alpha 2").fails(2, "--alpha is for");
    d.run("run scale.tile rows=4,cols=4 --dtype f16").fails(2, "--dtype is for");
}

#[test]
fn wrong_npy_files() {
    let d = Directory::new("npy");
    d.run("run softmax 2x2 --input x.npy").fails(4, "can't read x.npy");
    d.write("f8.npy", npy("<f8", "(2, 2)", &[0; 32]));
    d.run("run softmax 2x2 --input f8.npy").fails(2, "holds <f8 elements, but f32 was expected");
    d.write("shape.npy", npy("<f4", "(2, 3)", &[0; 24]));
    d.run("run softmax 2x2 --input shape.npy")
        .fails(2, "shape (2, 3), but tensor `x` has shape (2, 2)");
    d.write("short.npy", npy("<f4", "(2, 2)", &[0; 15]));
    d.run("run softmax 2x2 --input short.npy")
        .fails(2, "promises 16 bytes of data, the file has 15");
    d.write("cut.npy", &npy("<f4", "(2, 2)", &[])[..20]);
    d.run("run softmax 2x2 --input cut.npy").fails(2, "ends inside the header");
    d.write("text.npy", "0 0 0 0");
    d.run("run softmax 2x2 --input text.npy").fails(2, "is not an .npy file");
    d.write("huge.npy", npy("<f4", "(1000000, 1000000)", &[]));
    d.run("run softmax 2x2 --input huge.npy").fails(2, "the file has 0");
    d.write("x.npy", npy("<f4", "(2, 2)", &[0; 16]));
    d.run("run rmsnorm 2x2 --input x.npy").fails(2, "takes 2 file(s), one for each of: x, gamma");
    d.run("run rmsnorm 2x2 --input x=x.npy x=x.npy").fails(2, "`x` twice");
    d.run("run softmax 2x2 --input x.npy --output y.npy z.npy")
        .fails(2, "--output takes 1 file(s)");
}

#[test]
fn unwritable_outputs() {
    let d = Directory::new("output");
    d.run("run softmax 2x2 --output missing/y.npy").fails(4, "can't write missing/y.npy");
    d.run("run softmax 2x2 --output .").fails(4, "can't write .");
    d.run("run softmax 2x2 --output /proc/y.npy").fails(4, "can't write /proc/y.npy");
    assert!(d.files().is_empty(), "{:?}", d.files());
}

#[test]
fn illegal_schedules() {
    let d = Directory::new("schedules");
    let m1 = "--target apple-m1-max";
    d.run(&format!("plan softmax 37x1537 {m1} --threads 2048")).fails(2, "threads-limit");
    d.run(&format!("plan softmax 37x1537 {m1} --threads 48")).fails(2, "threads-multiple");
    d.run(&format!("plan softmax 37x1537 {m1} --vector 3")).fails(2, "vector-choice");
    d.run(&format!("plan softmax 37x1537 {m1} --unroll 17")).fails(2, "unroll-range");
    d.run(&format!("plan gemm 64x64x64 {m1} --policy reduction-v1")).fails(2, "reduction-v1");
    d.run(&format!("plan softmax 37x1537 {m1} --cache maybe")).fails(2, "maybe");
    d.run("run softmax 4x4 --cpu-threads 100000").fails(2, "100000");
    d.run("run softmax 4x4 --cpu-threads 0").fails(2, "0 threads");
    d.run("plan softmax 4x4 --cpu-threads 100000").fails(2, "100000");
}

#[test]
fn unusable_profiles() {
    let d = Directory::new("profiles");
    let plan = "plan softmax 37x1537 --target apple-m1-max --profile";
    d.run(&format!("{plan} service-v1,512,1,2,3")).fails(2, "8 comma-separated tokens");
    d.run(&format!("{plan} service-v1,512,nan,0,0,0,0,0")).fails(2, "must be a finite number");
    d.run(&format!("{plan} service-v1,512,1,-2,0,0,0,0")).fails(2, "not negative");
    d.run(&format!("{plan} service-v1,512,inf,0,0,0,0,0")).fails(2, "must be a finite number");
    d.run(&format!("{plan} service-v1,0,1,0,0,0,0,0")).fails(2, "capacity");
    d.run(&format!("{plan} missing.json")).fails(4, "can't read missing.json");
    d.write("bad.json", "{");
    d.run(&format!("{plan} bad.json")).fails(2, "bad.json: not a profile");
    d.run(&format!("{plan} .")).fails(2, "no profile");
    d.run(
        "plan softmax 37x1537 --target apple-m1-max --policy reduction-v1 \
           --profile service-v1,512,1,0,0,0,0,0",
    )
    .fails(2, "the profile is for policy `reduction-service`");
}

#[test]
fn more_memory_than_there_is() {
    let d = Directory::new("memory");
    let run = d.run("run softmax 2000000000x2000000000");
    run.fails(2, "bytes");
    let run = d.run("run softmax 1000000x1000000");
    run.fails(2, "are available");
    let run = d.run("run gemm 1000000x1000000x1000000");
    run.fails(2, "are available");
}

#[test]
fn missing_devices() {
    let d = Directory::new("devices");
    // No machine has a hundred GPUs; one with a driver may have the first.
    let gpu = d.run("devices").ok().contains("cuda:0");
    for device in ["cuda", "cuda:0", "cuda:99", "metal"] {
        if gpu && device != "cuda:99" && device != "metal" {
            continue;
        }
        let run = d.run(&format!("run softmax 4x4 --device {device} --output y.npy"));
        run.fails(3, &format!("device `{device}` is not available"));
        assert_eq!(run.err().lines().count(), 1, "{}", run.err());
    }
    assert!(d.files().is_empty());
    for option in ["--isa avx2", "--cpu-threads 1"] {
        d.run(&format!("run softmax 4x4 --device cuda {option}")).fails(2, "is for the CPU");
    }
    d.run("run softmax 4x4 --device cuda:x").fails(2, "unknown device `cuda:x`");
    d.run("show softmax 4x4 --emit asm --target apple-m1-max").fails(2, "CPU of this machine");
    for target in ["cpu", "apple-m1-max"] {
        d.run(&format!("show softmax 4x4 --emit ptx --target {target}"))
            .fails(2, "PTX is for NVIDIA GPUs");
    }
}

#[test]
fn ptx_of_an_op_is_shown_without_a_gpu() {
    let d = Directory::new("ptx");
    for (op, entry) in [
        ("softmax 37x1537", ".visible .entry softmax("),
        ("softmax 37x1537 --dtype bf16", ".visible .entry softmax("),
        ("gemm 5x7x3 --dtype bf16", ".visible .entry gemm("),
    ] {
        let run = d.run(&format!("show {op} --target nvidia-h200 --emit ptx"));
        let text = run.ok();
        assert!(text.starts_with(".version 7.0\n.target sm_80\n"), "{text}");
        assert!(text.contains(entry), "{text}");
    }
}
