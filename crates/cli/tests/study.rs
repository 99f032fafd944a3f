//! The study commands as a user runs them, on a study that takes seconds: every step with its
//! JSON under the published schemas, bad input, and a run that is killed and goes on.

mod common;

use common::Directory;
use common::schema::check;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const STUDY: &str = r#"name = "tiny"
device = "cpu"
threads = 1
controls = ["handwritten", "gemm-crate", "mkl"]

[[family]]
ops = ["softmax"]
training = ["3x64", "5x100", "4x37"]
holdout = ["6x80"]

[[family]]
ops = ["gemm"]
training = ["8x16x8", "5x20x9", "17x33x5"]
holdout = ["9x18x7"]

[space]
unroll = [1, 2]
cap = 6

[search]
rounds = 2
samples = 2
sample_ms = 0.1
warmup_ms = 0.1

[replay]
rounds = 2
samples = 2
single_samples = 1
sample_ms = 0.1
warmup_ms = 0.1

[acceptance]
regret_mean = 100.0
candidates = 1.0
"#;

/// The schema of each file of a record.
fn schema_of(path: &str) -> Option<&'static str> {
    Some(match path.split('/').next().unwrap_or_default() {
        "search" | "labels" => "search",
        "calibration" => "record-calibration",
        "frozen" => "frozen",
        "replay" => "replay",
        "machine.json" => "machine",
        "protocol.json" => "protocol",
        "results.json" => "results",
        "profile.json" => "profile",
        "ledger.jsonl" => "ledger-entry",
        _ => return None,
    })
}

fn files(d: &Directory, folder: &str) -> Vec<String> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(d.path().join(folder)).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() { out.extend(files(d, &name)) } else { out.push(name) }
    }
    out.sort();
    out
}

fn read(d: &Directory, name: &str) -> String {
    std::fs::read_to_string(d.path().join(name)).unwrap()
}

/// Every JSON file of a record is what its schema says.
fn check_record(d: &Directory, folder: &str) {
    let mut kinds = std::collections::BTreeSet::new();
    for file in files(d, folder) {
        let inside = file.strip_prefix(&format!("{folder}/")).unwrap();
        let Some(schema) = schema_of(inside) else {
            let known = inside == "study.toml" || inside.starts_with("kernels/");
            assert!(known || inside.starts_with("interrupt"), "{file} has no schema");
            continue;
        };
        kinds.insert(schema);
        for line in read(d, &file).lines() {
            check(schema, &serde_json::from_str(line).unwrap());
        }
    }
    assert_eq!(kinds.len(), 9, "{kinds:?}");
}

#[test]
fn a_study_step_by_step() {
    let d = Directory::new("steps");
    d.write("tiny.toml", STUDY);
    let step = |command: &str, name: &str| -> Value {
        let value = d.run(&format!("{command} --json")).json();
        check("step", &value);
        assert_eq!(value["step"], name);
        value
    };
    let searched = step("search tiny.toml -o rec", "search");
    assert_eq!((&searched["search"]["done"], &searched["calibrated"]), (&6.into(), &false.into()));
    // Steps that come too early name what is missing, and change nothing.
    d.run("replay rec").fails(2, "nothing is frozen yet");
    d.run("study label rec").fails(2, "nothing is frozen yet");
    d.run("study finish rec").fails(2, "nothing is frozen yet");
    d.run("study profile rec -o p.json").fails(2, "no results yet");
    let calibrated = step("study calibrate rec", "calibrate");
    assert_eq!(calibrated["calibrated"], true);
    let frozen = step("freeze rec", "freeze");
    assert_eq!((&frozen["freezes"], &frozen["labels"]["done"]), (&1.into(), &0.into()));
    d.run("study finish rec").fails(2, "hasn't been measured yet");
    assert_eq!(step("study label rec", "label")["labels"]["done"], 2);
    d.run("study finish rec").fails(2, "replay round 1 is missing");
    let replayed = step("replay rec", "replay");
    assert_eq!(replayed["replay"]["done"], 2);
    let results = d.run("study finish rec --json").json();
    check("results", &results);
    assert_eq!(results["gate"]["passed"], true);
    // A second time nothing is measured, and the results are the same.
    assert_eq!(d.run("study finish rec --json").json(), results);
    assert_eq!(step("replay rec", "replay"), replayed);
    check_record(&d, "rec");

    let audit = d.run("audit rec --json").json();
    check("audit", &audit);
    assert_eq!(audit["verdict"], "pass");
    let report = d.run("report rec -o out --json").json();
    check("report", &report);
    assert!(read(&d, "out/report.html").contains("softmax-f32-6x80"));

    let profile = d.run("study profile rec -o p.json --json").json();
    check("profile", &profile);
    assert_eq!(profile, serde_json::from_str::<Value>(&read(&d, "p.json")).unwrap());
    assert_eq!(profile["hold_out"]["cases"], 2);
    let lost = profile["hold_out"]["lost_every_round"].as_array().unwrap().is_empty();
    assert_eq!(results["default_ok"], lost);
    // It was measured with one thread: the facts of another machine.
    for (threads, default) in [("1", lost), ("2", false)] {
        let arguments = format!("softmax 6x80 --profile p.json --cpu-threads {threads} --json");
        let run = d.run(&format!("plan {arguments}"));
        if threads == "2" && run.code() == 2 {
            println!("this machine has one core");
            continue;
        }
        let plan = run.json();
        check("plan", &plan);
        assert_eq!(plan["profile"]["default"], default, "{plan}");
        assert!(plan["guard"].is_object() && plan["advice"].is_object());
    }
    // A second freeze spends the labels of the first.
    let again = step("freeze rec --again", "freeze");
    assert_eq!((&again["freezes"], &again["labels"]["done"]), (&2.into(), &0.into()));
    d.run("study profile rec -o p.json").fails(2, "no results yet");
}

#[test]
fn a_study_in_one_go_and_its_gate() {
    let d = Directory::new("gate");
    d.write("tiny.toml", STUDY.replace("candidates = 1.0", "candidates = 1000.0"));
    let run = d.run("study run tiny.toml -o rec --quick --json");
    let results = run.printed();
    check("results", &results);
    assert_eq!(run.code(), 1);
    // Six candidates are measured; of how many the time is under the floor is the machine's affair.
    let rules = results["gate"]["rules"].as_array().unwrap();
    let found =
        rules.iter().find(|r| r["rule"] == "candidates").unwrap()["value"].as_f64().unwrap();
    let message = run.err();
    assert!(
        message.starts_with("error: check failed: the study misses its acceptance rules: ")
            && message.contains(&format!("candidates is {found:?}, limit 1000.0")),
        "{message}"
    );
    let searches = std::fs::read_dir(d.path().join("rec/search")).unwrap();
    let measured = searches.map(|entry| {
        let path = format!("rec/search/{}", entry.unwrap().file_name().to_string_lossy());
        let search: Value = serde_json::from_str(&read(&d, &path)).unwrap();
        let trials = search["trials"].as_array().unwrap().clone();
        let right = |t: &Value| t["outcome"] == "valid" || t["outcome"] == "refused";
        assert!(trials.iter().all(right), "{path}: {trials:#?}");
        trials.len()
    });
    assert_eq!(measured.min(), Some(6));
    // What it found is kept, and passes its audit.
    assert_eq!(d.run("audit rec --json").json()["verdict"], "pass");
    let text = d.run("study run tiny.toml -o rec --quick");
    assert_eq!(text.code(), 1);
    assert!(text.out().starts_with("cpu-matrix: 1 hold-out cases"), "{}", text.out());

    // Another study or another machine has another record.
    d.write("other.toml", STUDY);
    let other = d.run("study run other.toml -o rec --quick");
    other.fails(1, "the study differs from the record's");
    d.run("study run tiny.toml -o rec").fails(1, "the study differs from the record's");
}

#[test]
fn a_shortlist_passes_the_audit() {
    let d = Directory::new("shortlist");
    d.write("top.toml", STUDY.replace("cap = 6", "top = 4"));
    d.run("study run top.toml -o rec").ok();
    let audit = d.run("audit rec --json").json();
    assert_eq!(audit["verdict"], "pass", "{audit:#}");
    let search: Value =
        serde_json::from_str(&read(&d, "rec/search/gemm-f32-17x33x5.json")).unwrap();
    assert_eq!(search["candidates"].as_array().unwrap().len(), 4);
    let scores = search["space"]["legal_scores"].as_array().unwrap();
    assert_eq!(scores.len() as u64, search["space"]["legal"].as_u64().unwrap());
    // The record of a study that asks for more isn't this one.
    let text = read(&d, "rec/study.toml").replace("top = 4", "top = 5");
    std::fs::write(d.path().join("rec/study.toml"), text).unwrap();
    let failed = d.run("audit rec --json");
    assert_eq!(failed.code(), 1);
    let rules = failed.printed()["rules"].as_array().unwrap().clone();
    let rule = rules.iter().find(|r| r["rule"] == "study.protocol").unwrap();
    assert_eq!(rule["witness"][0], "protocol.json: `top` is Some(4), not Some(5)");
}

#[test]
fn one_case_is_searched_or_ablated() {
    let d = Directory::new("one");
    let search = d.run("search softmax 5x64 --cpu-threads 1 --rounds 1 -k 3 --json").json();
    check("search", &search);
    assert_eq!(search["space"]["measured"], 3);
    let model = d.run("search softmax 5x64 --cpu-threads 1 --rounds 1 -k 3 --metric model --json");
    let model = model.json();
    assert_eq!(model["selection"]["winner"], model["incumbent"]);
    let text = d.run("search gemm 8x16x8 --cpu-threads 1 --rounds 1 -k 2").ok();
    assert!(text.starts_with("winner: "), "{text}");

    let ablate = "ablate softmax 5x64 --cpu-threads 1 --rounds 2 --factor unroll=1,2";
    let ablation = d.run(&format!("{ablate} --json")).json();
    check("ablate", &ablation);
    assert_eq!(ablation["cells"].as_array().unwrap().len(), 2);
    assert!(d.run(ablate).ok().contains("unroll 1 -> 2: x"));
    assert!(d.files().is_empty(), "{:?}", d.files());
}

#[test]
fn bad_input_is_one_sentence() {
    let d = Directory::new("bad");
    let study = |name: &str, from: &str, to: &str| {
        assert!(STUDY.contains(from), "{from}");
        let file = format!("{name}.toml");
        d.write(&file, STUDY.replacen(from, to, 1));
        d.run(&format!("study run {file} -o {name}"))
    };
    d.run("study run none.toml -o rec").fails(4, "can't read none.toml");
    study("field", "threads = 1", "treads = 1").fails(2, "line 3");
    study("both", "cap = 6", "cap = 6\ntop = 6").fails(2, "exclude each other");
    study("zero", "cap = 6", "top = 0").fails(2, "`space.top` must be at least 1");
    study("shape", "3x64", "3by64").fails(2, "malformed shape `3by64`");
    study("spilled", "6x80", "3x64").fails(2, "is a training shape, too");
    study("op", "\"gemm\"", "\"bgemm\"").fails(2, "batched");
    study("metric", "rounds = 2", "rounds = 2\nmetric = \"speed\"").fails(2, "speed");
    let clock = "rounds = 2\nmetric = \"device\"";
    study("clock", "rounds = 2", clock).fails(2, "a clock of its own");
    study("single", "rounds = 2", "rounds = 2\nmetric = \"single\"").fails(2, "single_samples");
    study("control", "\"mkl\"", "\"cudnn\"").fails(2, "unknown control `cudnn`");
    study("device", "device = \"cpu\"", "device = \"gpu\"").fails(2, "unknown device `gpu`");
    study("threads", "threads = 1", "threads = 100000").fails(2, "100000 threads");
    let controls = "controls = [\"handwritten\", \"gemm-crate\", \"mkl\"]\n";
    let cpu = format!("device = \"cpu\"\nthreads = 1\n{controls}");
    study("missing", &cpu, "device = \"metal\"\nthreads = 1\n").fails(3, "`metal`");
    study("away", "device = \"cpu\"", "device = \"metal\"").fails(2, "doesn't run on the study's");
    study("large", "name", &format!("# {}\nname", "x".repeat(1 << 20))).fails(2, "at most");
    // A folder of something else is left alone.
    std::fs::create_dir(d.path().join("mine")).unwrap();
    std::fs::write(d.path().join("mine/notes.txt"), "mine").unwrap();
    d.write("tiny.toml", STUDY);
    d.run("study run tiny.toml -o mine").fails(2, "`notes.txt`, which is no part of a record");
    assert_eq!(files(&d, "mine"), ["mine/notes.txt"]);
    d.run("study run tiny.toml -o tiny.toml").fails(4, "tiny.toml");
    for command in ["freeze", "replay", "study calibrate", "study label", "study finish"] {
        d.run(&format!("{command} nowhere")).fails(4, "can't read nowhere/study.toml");
    }
    d.run("study profile nowhere -o p.json").fails(4, "can't read nowhere/study.toml");
    d.run("search tiny.toml").fails(2, "--output DIR");
    d.run("search softmax").fails(2, "needs a shape");
    d.run("search sofmax 4x4").fails(2, "unknown op `sofmax`");
    d.run("search softmax 4x4 -k 0").fails(2, "must be at least 1");
    d.run("search softmax 4x4 --metric speed").fails(2, "speed");
    d.run("search softmax 4x4 --rounds 0").fails(2, "`search.rounds` must be 1 to 100");
    let cuda = "--device cuda --cpu-threads 1";
    d.run(&format!("search softmax 4x4 {cuda}")).fails(2, "--cpu-threads is for the CPU");
    d.run("search softmax 4x4 --device metal").fails(3, "`metal` is not available");
    d.run("ablate softmax 4x4").fails(2, "--factor");
    d.run("ablate softmax 4x4 --factor unroll").fails(2, "isn't NAME=VALUE,VALUE");
    d.run("ablate softmax 4x4 --factor unroll=1").fails(2, "at least two values");
    d.run("ablate softmax 4x4 --factor luck=1,2 --cpu-threads 1").fails(2, "luck");
    d.run("calibrate none.csv").fails(4, "none.csv");
    d.write("not.csv", "a,b\n1,2\n");
    d.run("calibrate not.csv").fails(2, "not.csv");
}

#[test]
fn a_killed_run_goes_on_where_it_stopped() {
    let d = Directory::new("killed");
    d.write("tiny.toml", STUDY);
    let ledger = || std::fs::read_to_string(d.path().join("rec/ledger.jsonl")).unwrap_or_default();
    for entries in [2, 5] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tilewright"))
            .args(["study", "run", "tiny.toml", "-o", "rec"])
            .current_dir(d.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while ledger().lines().count() < entries && begun.elapsed() < Duration::from_secs(120) {
            std::thread::sleep(Duration::from_millis(2));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let before = ledger();
    d.run("study run tiny.toml -o rec").ok();
    assert!(ledger().starts_with(&before), "the ledger was rewritten");
    let audit = d.run("audit rec --json").json();
    assert_eq!(audit["verdict"], "pass", "{audit:#}");
    check_record(&d, "rec");
    d.run("report rec").ok();
}
