//! Cases, candidates and samples: times follow a model with noise that a hash gives.

use super::{derive, sha};
use serde_json::{Value, json};

/// The cases by set.
pub struct Cases {
    pub training: Vec<Value>,
    pub holdout: Vec<Value>,
}

pub fn case_list() -> Cases {
    let mut cases = Cases { training: Vec::new(), holdout: Vec::new() };
    let mut add = |family: &str, op: &str, shape: &[u64], set: &str| {
        let list = if set == "training" { &mut cases.training } else { &mut cases.holdout };
        let text: Vec<String> = shape.iter().map(u64::to_string).collect();
        list.push(json!({
            "id": format!("{op}-f32-{}", text.join("x")), "op": op, "family": family,
            "dtype": "f32", "shape": shape, "set": set, "ordinal": list.len(), "threads": 2,
        }));
    };
    for op in ["softmax", "rmsnorm"] {
        for shape in [[23, 769], [128, 2048], [64, 1000], [512, 512]] {
            add("rows", op, &shape, "training");
        }
        for shape in [[37, 1537], [256, 3072]] {
            add("rows", op, &shape, "holdout");
        }
    }
    for shape in [[64, 64, 64], [127, 193, 61], [256, 128, 512], [300, 300, 300]] {
        add("matrix", "gemm", &shape, "training");
    }
    for shape in [[96, 96, 96], [33, 700, 129]] {
        add("matrix", "gemm", &shape, "holdout");
    }
    cases
}

/// A number in 0..1 that follows from a text.
pub fn unit(text: &str) -> f64 {
    (derive(text) >> 11) as f64 / (1u64 << 53) as f64
}

fn dims(case: &Value) -> Vec<f64> {
    case["shape"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// Six candidates: a width that does more or less work in more or less pieces.
pub fn candidates(case: &Value) -> Vec<Value> {
    let d = dims(case);
    let elements: f64 = d.iter().product();
    (0..6)
        .map(|c| {
            let width = f64::from(1 << c);
            let (inputs, pieces) = if d.len() == 2 {
                let pieces = d[0] * (d[1] / (64.0 * width)).ceil();
                (vec![1.0, d[0] * (d[1] / (16.0 * width)).ceil() * width, pieces], pieces)
            } else {
                let tiles = (d[0] / (4.0 * width)).ceil() * (d[1] / 16.0).ceil();
                let (subgroups, depth) = (width.min(8.0), (d[2] / 8.0).ceil());
                let fragments = depth * (width / 2.0 + 2.0);
                (vec![tiles, subgroups, 48.0, width * depth, fragments, 0.0, 0.0], tiles)
            };
            json!({
                "plan": 2 * c + 1, "mapping": {"width": 1 << c}, "inputs": inputs,
                // The plain policy likes few pieces.
                "score": pieces + elements / width / 1000.0,
            })
        })
        .collect()
}

/// Microseconds of a candidate without noise.
pub fn true_us(case: &Value, candidate: &Value) -> f64 {
    let x: Vec<f64> =
        candidate["inputs"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
    let key = format!("{}/{}", case["id"], candidate["plan"]);
    let time = if case["family"] == "rows" {
        2.0 * x[0] + 0.004 * x[1] + 0.02 * x[2]
    } else {
        2.0 + 0.0005 * x[4] * x[0] + 0.02 * x[3] / x[1] * super::model::passes(&x, 32.0)
    };
    time * (0.95 + 0.1 * unit(&key))
}

/// A measurement of one round.
pub fn samples(key: &str, time_us: f64, batches: usize) -> Value {
    let repetitions = 10;
    let noisy = |phase: &str, i: usize, calls: f64| {
        let noise = 0.99 + 0.02 * unit(&format!("{key}/{phase}/{i}"));
        (time_us * 1000.0 * calls * noise) as u64
    };
    json!({
        "cold_ns": noisy("cold", 0, 2.0), "warmup_calls": 8, "repetitions": repetitions,
        "batch_ns": (0..batches).map(|i| noisy("batch", i, 10.0)).collect::<Vec<_>>(),
        "single_ns": (0..2).map(|i| noisy("single", i, 1.1)).collect::<Vec<_>>(),
        "device_ns": null, "device_repetitions": null,
    })
}

pub fn median(values: &[f64]) -> f64 {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    let n = v.len();
    if n % 2 == 1 { v[n / 2] } else { (v[n / 2 - 1] + v[n / 2]) / 2.0 }
}

/// Batch or single-call metric of a measurement.
pub fn metric(m: &Value, phase: &str) -> f64 {
    let ns: Vec<f64> = m[phase].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
    let calls = if phase == "batch_ns" { m["repetitions"].as_f64().unwrap() } else { 1.0 };
    median(&ns) / calls / 1000.0
}

/// Batch or single-call time of a path in a round of a replay.
pub fn time(m: &Value, phase: &str) -> f64 {
    let ns: Vec<f64> = m[phase].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
    let calls = if phase == "batch_ns" { m["repetitions"].as_f64().unwrap() } else { 1.0 };
    super::model::quantile(ns, super::TIME_QUANTILE) / calls / 1000.0
}

/// Interquartile range over median of the values of rounds; 0 of none.
pub fn spread(rounds: &Value) -> f64 {
    let mut v: Vec<f64> =
        rounds.as_array().unwrap().iter().map(|r| metric(r, "batch_ns")).collect();
    v.sort_by(f64::total_cmp);
    let Some(last) = v.len().checked_sub(1) else { return 0.0 };
    let at = |q: f64| {
        let position = q * last as f64;
        let low = position as usize;
        v[low] + (v[last.min(low + 1)] - v[low]) * (position - low as f64)
    };
    (at(0.75) - at(0.25)) / at(0.5)
}

/// The label of rounds.
pub fn label_of(rounds: &Value) -> Value {
    let values: Vec<f64> =
        rounds.as_array().unwrap().iter().map(|r| metric(r, "batch_ns")).collect();
    json!(median(&values))
}

pub fn check() -> Value {
    json!({
        "data": [["dyadic", 100, 0, 0.0], ["random", 100, 0, 0.25]],
        "guards_intact": true, "inputs_unchanged": true,
    })
}

pub fn kernel_text(case: &Value, candidate: usize) -> String {
    format!("kernel {} {candidate}\n", case["id"].as_str().unwrap())
}

/// A trial of every candidate; in training, the last ones fail in several ways.
pub fn trial(case: &Value, candidate: &Value, c: usize, training: bool, floor: &Value) -> Value {
    let id = case["id"].as_str().unwrap();
    let kernel = sha(kernel_text(case, c));
    let mut out = json!({
        "candidate": c, "outcome": "valid", "error": null, "kernel_sha256": kernel,
        "artifact_sha256": sha(format!("artifact {kernel}")), "compile_ns": 12345,
        "check": check(), "rounds": [], "label_us": null,
    });
    let failure = match (id, c) {
        ("softmax-f32-23x769", 5) => Some(("rejected", json!({"rule": "r", "message": "no"}))),
        ("softmax-f32-128x2048", 5) => Some(("hung", json!({"rule": null, "message": "a<b"}))),
        ("rmsnorm-f32-23x769", 5) => Some(("wrong", json!({"rule": null, "message": "3"}))),
        _ => None,
    };
    if let Some((outcome, error)) = failure.filter(|_| training) {
        out["outcome"] = json!(outcome);
        out["error"] = error;
        match outcome {
            "wrong" => out["check"]["data"][1] = json!(["random", 100, 3, 7.5]),
            _ => out["check"] = Value::Null,
        }
        if outcome == "rejected" {
            out["kernel_sha256"] = Value::Null;
            out["artifact_sha256"] = Value::Null;
        }
        return out;
    }
    let mut time = true_us(case, candidate);
    if id == "rmsnorm-f32-512x512" && c == 4 {
        // Impossibly fast: refused.
        time = 0.5 * floor["floor_us"].as_f64().unwrap();
        out["outcome"] = json!("refused");
    }
    let set = case["set"].as_str().unwrap();
    // Something else ran while one round of one candidate was measured.
    let disturbed = |k| id == "rmsnorm-f32-64x1000" && (c, k) == (3, 1);
    out["rounds"] = (0..super::SEARCH_ROUNDS)
        .map(|k| {
            let time = if disturbed(k) { 1.4 * time } else { time };
            samples(&format!("{id}/{set}/{c}/{k}"), time, 3)
        })
        .collect();
    out["label_us"] = label_of(&out["rounds"]);
    out
}

pub fn controls(case: &Value) -> Value {
    let key = format!("{}/control", case["id"]);
    let time = 3.0 * true_us(case, &candidates(case)[2]);
    let rounds: Value =
        (0..super::SEARCH_ROUNDS).map(|k| samples(&format!("{key}/{k}"), time, 3)).collect();
    json!([
        {"name": "plain-loops", "outcome": "valid", "error": null, "output": "preallocated",
         "check": check(), "label_us": label_of(&rounds), "rounds": rounds},
        {"name": "torch", "outcome": "missing", "output": "returned", "check": null,
         "error": {"rule": null, "message": "no module named torch"}, "rounds": [],
         "label_us": null},
    ])
}

pub fn space(n: usize) -> Value {
    json!({
        "candidates": n + 7, "legal": n, "rejected": {"budget": 5, "width": 2}, "measured": n,
        "legal_plans": null, "legal_scores": null,
    })
}

/// The study file of these records.
pub fn study() -> String {
    let shapes = |cases: &[Value], op: &str| {
        let sizes = |case: &Value| -> String {
            let sizes = case["shape"].as_array().unwrap().iter().map(Value::to_string);
            format!("{:?}", sizes.collect::<Vec<_>>().join("x"))
        };
        cases.iter().filter(|c| c["op"] == op).map(sizes).collect::<Vec<_>>().join(", ")
    };
    let cases = case_list();
    let mut text =
        "name = \"small\"\nthreads = 2\ncontrols = [\"plain-loops\", \"torch\"]\n".to_string();
    for op in ["softmax", "rmsnorm", "gemm"] {
        text.push_str(&format!(
            "[[family]]\nops = [{op:?}]\ntraining = [{}]\nholdout = [{}]\n",
            shapes(&cases.training, op),
            shapes(&cases.holdout, op)
        ));
    }
    text + "[search]\nrounds = 2\nmost_rounds = 4\nfinal_rounds = 3\nfinalists = 2\ninterleaved = true\nsamples = 3\nsingle_samples = 2\nsample_ms = 1.0\n\
            warmup_ms = 1.0\ndeadline_ms = 1000\nshortlist = 3\n[replay]\nrounds = 14\ntime_quantile = 0.25\n\
            samples = 3\nsingle_samples = 2\nsample_ms = 1.0\nwarmup_ms = 1.0\n\
            deadline_ms = 1000\n[acceptance]\nregret_mean = 0.5\nregret_max = 1.0\nregret_top3 = 0.5\n\
            coverage = 0.5\nhalf_width = 0.9\nguard_losers = 3\nwins_kept = 0.01\n\
            candidates = 3\nmedian_over_best = 1.01\n"
}

pub fn protocol(rounds: usize) -> Value {
    let mut protocol = json!({
        "warmup_ns": 1_000_000, "sample_ns": 1_000_000, "samples": 3, "single_samples": 2,
        "rounds": rounds, "deadline_ms": 1000, "buffers": "warm", "sets": 1, "interleaved": true,
    });
    if rounds == super::SEARCH_ROUNDS {
        protocol["remeasure"] = json!({"rounds": super::MOST_ROUNDS, "spread": super::SPREAD});
        protocol["finals"] = json!({"rounds": super::FINAL_ROUNDS, "candidates": super::FINALISTS});
    }
    if rounds == super::REPLAY_ROUNDS {
        protocol["time_quantile"] = json!(super::TIME_QUANTILE);
    }
    protocol
}

pub fn state() -> Value {
    json!({"unix_s": 1_700_000_000, "load1": 0.5, "governor": null, "mhz": null})
}

pub fn machine() -> Value {
    json!({
        "schema": "tilewright-machine-v1",
        "identity": {
            "os": "linux", "arch": "x86_64", "device": "cpu", "model": "Test CPU @ 2.0GHz",
            "isa": "avx2", "threads": 2, "driver": null, "target_sha256": sha("target"),
            "caches_bytes": {"l1": 32768, "l2": 1048576, "l3": 16777216},
        },
        "target": {"name": "cpu"},
        "ceilings": [{
            "threads": 2, "launch_ns": 300,
            "flops_per_second": {"f32": 1e12, "f64": 5e11},
            "bytes_per_second": {"l1": 8e11, "l2": 4e11, "l3": 2e11, "memory": 3e10},
        }],
        "controls": [
            {"name": "plain-loops", "available": true, "version": "1", "reason": null,
             "output": "preallocated"},
            {"name": "torch", "available": false, "version": null, "output": "returned",
             "reason": "no module named torch"},
        ],
    })
}

pub fn floor(machine: &Value, case: &Value) -> Value {
    let d = dims(case);
    let (elements, flops) = match case["op"].as_str().unwrap() {
        "softmax" => (2.0 * d[0] * d[1], 5.0 * d[0] * d[1]),
        "rmsnorm" => (2.0 * d[0] * d[1] + d[1], 4.0 * d[0] * d[1]),
        _ => (d[0] * d[2] + d[2] * d[1] + d[0] * d[1], 2.0 * d[0] * d[1] * d[2]),
    };
    let bytes = 4.0 * elements;
    let caches = &machine["identity"]["caches_bytes"];
    let size = |level: &str, times: f64| caches[level].as_f64().unwrap() * times;
    let level = [("l1", 2.0), ("l2", 2.0), ("l3", 1.0)]
        .into_iter()
        .find(|(level, times)| bytes <= size(level, *times))
        .map_or("memory", |l| l.0);
    let rates = &machine["ceilings"][0];
    let seconds = (flops / rates["flops_per_second"]["f32"].as_f64().unwrap())
        // A cache of unknown rate sets no floor.
        .max(rates["bytes_per_second"][level].as_f64().map_or(0.0, |rate| bytes / rate))
        .max(rates["launch_ns"].as_f64().unwrap() / 1e9);
    json!({
        "flops": flops as u64, "bytes": bytes as u64, "working_set_bytes": bytes as u64,
        "level": level, "floor_us": 1e6 * seconds,
    })
}

pub fn order_of_round(n: usize, rounds: usize, offset: usize, k: usize) -> Vec<usize> {
    let by = (offset + k * n.div_ceil(rounds)) % n;
    let mut order: Vec<usize> = (0..n).collect();
    order.rotate_left(by);
    if k % 2 == 1 {
        order.reverse();
    }
    order
}

/// A path of a case in a round.
pub fn run(case: &Value, path: &str, frozen: &Value, labels: &Value, round: usize) -> Value {
    let candidates = candidates(case);
    let candidate = match path {
        "incumbent" | "incumbent-again" => frozen["incumbent"]["candidate"].as_u64(),
        "challenger" => frozen["challenger"]["candidate"].as_u64(),
        "best" => labels["selection"]["winner"].as_u64(),
        _ => None,
    };
    let time = match candidate {
        Some(c) => true_us(case, &candidates[c as usize]),
        None => 3.0 * true_us(case, &candidates[2]),
    };
    let key = format!("{}/{path}/{round}", case["id"]);
    let mut out = samples(&key, time, 3);
    let kernel = candidate.map(|c| sha(kernel_text(case, c as usize)));
    let more = json!({
        "path": path, "outcome": "valid", "error": null, "kernel_sha256": kernel,
        "artifact_sha256": kernel.as_ref().map(|k| sha(format!("artifact {k}"))),
        "compile_ns": 12345, "check": check(),
    });
    for (name, value) in more.as_object().unwrap() {
        out[name] = value.clone();
    }
    if path == "torch" {
        out["outcome"] = json!("missing");
        out["error"] = json!({"rule": null, "message": "no module named torch"});
        for field in ["batch_ns", "single_ns"] {
            out[field] = json!([]);
        }
        for field in ["cold_ns", "warmup_calls", "repetitions", "check"] {
            out[field] = Value::Null;
        }
    }
    out
}
