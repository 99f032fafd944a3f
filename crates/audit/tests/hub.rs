//! Tuning files of Kernel Tuner: nothing is wrong in clean ones, planted faults are found. The
//! large files lie outside the repository; without them only small ones, made here, are audited.

use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use tilewright_audit::{Audit, Limits, audit};

/// The folder of the shared files, if it is there: `TILEWRIGHT_SHARED`, else beside the repository.
fn hub() -> Option<PathBuf> {
    let shared = std::env::var_os("TILEWRIGHT_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let hub = shared.join("reference/hub");
    if !hub.is_dir() {
        eprintln!("skipped: no folder {}", hub.display());
        return None;
    }
    Some(hub)
}

fn write(name: &str, value: &Value) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("tilewright-hub-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join(name);
    std::fs::write(&path, value.to_string()).unwrap();
    path
}

fn audited(name: &str, value: &Value) -> Audit {
    let path = write(name, value);
    let audit = audit(&path, &Limits::default()).unwrap();
    std::fs::remove_file(path).unwrap();
    audit
}

/// A cache of 12 configurations with 8 samples each.
fn cache() -> Value {
    let mut rows = serde_json::Map::new();
    for x in [1, 2, 4] {
        for y in [8, 16, 32, 64] {
            let times: Vec<f64> =
                (0..8).map(|i| f64::from(10 + x) * (1.0 + f64::from(i * 7 % 5) / 1000.0)).collect();
            let time = times.iter().sum::<f64>() / 8.0;
            let row = json!({
                "x": x, "y": y, "time": time, "times": times, "GFLOP/s": 1000.0 / time,
                "compile_time": 3.5, "benchmark_time": 8.5 * time,
                "timestamp": "2024-01-01 00:00:00",
            });
            rows.insert(format!("{x},{y}"), row);
        }
    }
    let failed = json!({"x": 4, "y": 128, "time": "CompilationFailedConfig"});
    rows.insert("4,128".to_string(), failed);
    json!({
        "device_name": "test", "kernel_name": "k", "problem_size": [64, 64],
        "tune_params_keys": ["x", "y"],
        "tune_params": {"x": [1, 2, 4], "y": [8, 16, 32, 64, 128]},
        "objective": "time", "cache": rows,
    })
}

/// The same rows as T4.
fn t4() -> Value {
    let cache = cache();
    let results: Vec<Value> = cache["cache"]
        .as_object()
        .unwrap()
        .values()
        .map(|row| {
            let correct = row["time"].is_number();
            json!({
                "timestamp": "2024-01-01 00:00:00",
                "configuration": {"x": row["x"], "y": row["y"]},
                "times": {"compilation": 3.5, "runtimes": row.get("times").unwrap_or(&json!([]))},
                "invalidity": if correct { "correct" } else { "compile" },
                "correctness": i32::from(correct),
                "measurements": [{"name": "time", "value": row["time"], "unit": "ms"}],
                "objectives": ["time"],
            })
        })
        .collect();
    json!({"metadata": {}, "results": results, "schema_version": "1.0.0"})
}

#[test]
fn clean_files_pass() {
    for (name, file) in [("cache.json", cache()), ("t4.json", t4())] {
        let audit = audited(name, &file);
        assert!(audit.passed(), "{name}: {audit:?}");
        let labels = audit.rules.iter().find(|r| r.rule == "foreign.labels").unwrap();
        assert_eq!(labels.checked, 12);
    }
}

/// Applies a fault to a clean file; it must be found by this rule and no other.
fn fault(rule: &str, file: Value, plant: impl Fn(&mut Value)) {
    let mut altered = file.clone();
    plant(&mut altered);
    assert_ne!(file, altered, "{rule}: the fault changes nothing");
    let audit = audited(&format!("fault-{}.json", rule.replace(' ', "-")), &altered);
    let rule = rule.split(' ').next().unwrap();
    assert_eq!(audit.failed(), [rule], "{audit:?}");
}

#[test]
fn faults_of_caches_are_found() {
    let row = |key: &'static str| move |v: &mut Value| v["cache"][key].take();
    let set = |key: &'static str, field: &'static str, value: Value| {
        move |v: &mut Value| v["cache"][key][field] = value.clone()
    };
    fault("foreign.labels", cache(), |v| {
        // A better label, with a rate that fits it.
        v["cache"]["1,8"]["time"] = json!(9.0);
        v["cache"]["1,8"]["GFLOP/s"] = json!(1000.0 / 9.0);
    });
    fault("foreign.rates", cache(), set("2,8", "GFLOP/s", json!(99.0)));
    fault("foreign.times benchmark", cache(), set("2,8", "benchmark_time", json!(20.0)));
    fault("foreign.configurations other", cache(), set("2,8", "y", json!(16)));
    fault("foreign.configurations space", cache(), |v| {
        v["tune_params"]["x"] = json!([1, 2]);
    });
    fault("foreign.samples", cache(), |v| {
        let times = v["cache"]["4,16"]["times"].as_array_mut().unwrap();
        // A sample is dropped, and label and rate are made to fit.
        times.pop();
        let own: Vec<f64> = times.iter().map(|t| t.as_f64().unwrap()).collect();
        let mean = own.iter().sum::<f64>() / own.len() as f64;
        v["cache"]["4,16"]["time"] = json!(mean);
        v["cache"]["4,16"]["GFLOP/s"] = json!(1000.0 / mean);
    });
    fault("foreign.drift", cache(), |v| {
        let times = v["cache"]["4,32"]["times"].as_array_mut().unwrap();
        for time in times.iter_mut().skip(4) {
            *time = json!(time.as_f64().unwrap() * 1.4);
        }
        let own: Vec<f64> = times.iter().map(|t| t.as_f64().unwrap()).collect();
        let mean = own.iter().sum::<f64>() / own.len() as f64;
        v["cache"]["4,32"]["time"] = json!(mean);
        v["cache"]["4,32"]["GFLOP/s"] = json!(1000.0 / mean);
        v["cache"]["4,32"]["benchmark_time"] = json!(mean * 8.5);
    });
    fault("foreign.format", cache(), move |v| {
        row("1,8")(v);
    });
}

#[test]
fn faults_of_t4_files_are_found() {
    fault("foreign.labels", t4(), |v| v["results"][0]["measurements"][0]["value"] = json!(9.0));
    fault("foreign.configurations", t4(), |v| {
        v["results"][1]["configuration"] = v["results"][0]["configuration"].clone();
    });
    fault("foreign.format version", t4(), |v| v["schema_version"] = json!("9.0"));
    fault("foreign.format invalidity", t4(), |v| v["results"][0]["invalidity"] = json!("fine"));
    fault("foreign.samples", t4(), |v| {
        // Two equal samples of the mean: the label still fits.
        let mean = v["results"][0]["measurements"][0]["value"].clone();
        v["results"][0]["times"]["runtimes"] = json!([mean, mean]);
    });
    fault("foreign.times", t4(), |v| {
        let row = &mut v["results"][0];
        let times: Vec<f64> = row["times"]["runtimes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| t.as_f64().unwrap())
            .collect();
        let mut altered = times.clone();
        altered[3] = 0.001;
        let mean = altered.iter().sum::<f64>() / 8.0;
        row["times"]["runtimes"] = json!(altered);
        row["measurements"][0]["value"] = json!(mean);
    });
}

#[test]
fn broken_files_are_refused() {
    let dir = write("broken.json", &cache());
    let text = std::fs::read(&dir).unwrap();
    let failed = |bytes: &[u8], limits: &Limits| {
        std::fs::write(&dir, bytes).unwrap();
        let audit = audit(&dir, limits).unwrap();
        assert_eq!(audit.failed(), ["foreign.read"], "{audit:?}");
    };
    failed(&text[..text.len() - 3], &Limits::default());
    failed(&text, &Limits { file_bytes: 100, ..Limits::default() });
    failed("[".repeat(5000).as_bytes(), &Limits::default());
    // A configuration twice: readers would disagree about which one counts.
    let double = r#"{"tune_params_keys":[],"cache":{"a":1,"a":2}}"#;
    failed(double.as_bytes(), &Limits::default());
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(&text).unwrap();
    let packed = packed.finish().unwrap();
    failed(&packed[..packed.len() - 20], &Limits::default());
    std::fs::write(&dir, &packed).unwrap();
    assert!(audit(&dir, &Limits::default()).unwrap().passed());
}

#[test]
fn the_hub_files_are_clean_and_an_altered_one_is_not() {
    let Some(hub) = hub() else { return };
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&hub).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 6);
    for path in &files {
        let audit = audit(path, &Limits::default()).unwrap();
        assert!(audit.passed(), "{}: {audit:?}", path.display());
        let labels = audit.rules.iter().find(|r| r.rule == "foreign.labels").unwrap();
        assert!(labels.checked > 11_000, "{}", path.display());
    }
    let gemm = files.iter().find(|p| p.to_string_lossy().contains("gemm")).unwrap();
    let mut text = String::new();
    let bytes = std::fs::read(gemm).unwrap();
    flate2::read::GzDecoder::new(bytes.as_slice()).read_to_string(&mut text).unwrap();
    let mut altered: Value = serde_json::from_str(&text).unwrap();
    let row = altered["cache"].as_object_mut().unwrap().values_mut().nth(777).unwrap();
    // One of 18,000 configurations becomes the best of all.
    row["time"] = json!(1.0);
    let audit = audited("altered-gemm.json", &altered);
    assert_eq!(audit.failed(), ["foreign.labels", "foreign.rates"], "{audit:?}");
}
