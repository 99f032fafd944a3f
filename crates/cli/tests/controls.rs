//! The libraries that studies are compared with, in a small study: where one is installed, its
//! results are checked against the oracle and its times are sane; where it isn't, the record says
//! why and nothing fails.

mod common;

use common::Directory;
use serde_json::Value;
use std::process::Command;

const STUDY: &str = r#"name = "controls"
device = "cpu"
threads = 1
controls = ["handwritten", "gemm-crate", "openblas", "mkl", "torch-eager", "torch-compile"]

[[family]]
ops = ["softmax", "layernorm"]
training = ["16x64", "5x1000"]
holdout = ["9x300"]

[[family]]
ops = ["gemm"]
training = ["32x48x16", "33x20x9"]
holdout = ["40x18x70"]

[space]
cap = 2

[search]
rounds = 1
samples = 3
sample_ms = 1.0
warmup_ms = 1.0
rotate = 2

[replay]
rounds = 1
samples = 3
single_samples = 3
sample_ms = 1.0
warmup_ms = 1.0
"#;

/// Whether a control computes an op.
fn computes(control: &str, op: &str) -> bool {
    match control {
        "handwritten" => op != "gemm",
        "gemm-crate" | "openblas" | "mkl" => op == "gemm",
        _ => true,
    }
}

/// A whole check that found nothing wrong.
fn assert_checked(measured: &Value, place: &str) {
    let check = &measured["check"];
    assert_eq!(check["guards_intact"], true, "{place}: {measured}");
    assert_eq!(check["inputs_unchanged"], true, "{place}: {measured}");
    let data = check["data"].as_array().unwrap();
    assert_eq!(data.len(), 2, "{place}");
    for one in data {
        assert!(one[1].as_u64().unwrap() > 0 && one[2] == 0, "{place}: {one}");
    }
}

/// Microseconds of a call that no library needs less or more of for so little work, on a machine
/// that does other things, too.
fn assert_sane(us: f64, place: &str) {
    assert!((0.01..1e6).contains(&us), "{place}: {us} us");
}

#[test]
fn every_control_that_is_there_computes_what_the_oracle_does() {
    let d = Directory::new("controls");
    d.write("controls.toml", STUDY);
    // A variable that cripples a library doesn't reach it.
    let output = Command::new(env!("CARGO_BIN_EXE_tilewright"))
        .args(["study", "run", "controls.toml", "-o", "rec"])
        .env("OPENBLAS_CORETYPE", "Prescott")
        .env("OMP_NUM_THREADS", "7")
        .current_dir(d.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |name: &str| -> Value {
        let text = std::fs::read_to_string(d.path().join("rec").join(name)).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let machine = read("machine.json");
    let mut available = Vec::new();
    for control in machine["controls"].as_array().unwrap() {
        let name = control["name"].as_str().unwrap();
        if control["available"] == true {
            available.push(name);
            let version = control["version"].as_str().unwrap_or_default();
            println!("{name}: {version}");
            if name == "openblas" || name.starts_with("torch-") {
                assert!(version.ends_with("1 threads"), "{name}: {version}");
            }
            assert!(!version.contains("Prescott"), "{version}");
            let unset: Vec<&str> =
                control["unset"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            assert!(unset.contains(&"OPENBLAS_CORETYPE") && unset.contains(&"OMP_NUM_THREADS"));
        } else {
            let reason = control["reason"].as_str().unwrap();
            println!("{name}: not here, and not measured: {reason}");
            assert!(!reason.is_empty() && control["version"].is_null(), "{control}");
        }
    }
    assert!(available.contains(&"handwritten") && available.contains(&"gemm-crate"));

    for case in ["softmax-f32-16x64", "layernorm-f32-5x1000", "gemm-f32-33x20x9"] {
        let search = read(&format!("search/{case}.json"));
        let op = search["case"]["op"].as_str().unwrap();
        for control in search["controls"].as_array().unwrap() {
            let name = control["name"].as_str().unwrap();
            let place = format!("{case} {name}");
            let expected = match (available.contains(&name), computes(name, op)) {
                (false, _) => "missing",
                (true, false) => "unsupported",
                (true, true) => "valid",
            };
            assert_eq!(control["outcome"], expected, "{place}: {control}");
            if expected == "valid" {
                assert_checked(control, &place);
                assert_sane(control["label_us"].as_f64().unwrap(), &place);
            }
        }
    }
    let round = read("replay/round-00.json");
    for case in round["cases"].as_array().unwrap() {
        for run in case["runs"].as_array().unwrap() {
            let path = run["path"].as_str().unwrap();
            let place = format!("replay {} {path}", case["case"]);
            let ours = ["incumbent", "challenger", "incumbent-again", "best"].contains(&path);
            if !ours && !available.contains(&path) {
                assert_eq!(run["outcome"], "missing", "{place}");
                continue;
            }
            assert_eq!(run["outcome"], "valid", "{place}: {run}");
            assert_checked(run, &place);
            let single = run["single_ns"].as_array().unwrap();
            assert_eq!(single.len(), 3);
            single.iter().for_each(|ns| assert_sane(ns.as_f64().unwrap() / 1000.0, &place));
        }
    }
    let audit = d.run("audit rec --json").json();
    assert_eq!(audit["verdict"], "pass", "{audit:#}");
}
