//! Records whose author went wrong at one step and wrote everything after it, ledger included, to
//! fit: hashes can't show it, so the rule on the step itself must.

mod common;

use common::Record;
use serde_json::{Value, json};
use tilewright_audit::{Audit, Limits, audit};

fn audited(name: &str, record: &Record) -> Audit {
    let dir = record.write(name);
    audit(dir.path(), &Limits::default()).unwrap()
}

/// Alters the file at `path` when it is written; these rules must fail, and no others.
fn wrong(name: &str, path: &str, rules: &[&str], alter: impl Fn(&mut Value)) {
    let touched = std::cell::Cell::new(false);
    let record = Record::altered(&|p, value| {
        if p == path {
            let before = value.clone();
            alter(value);
            touched.set(before != *value);
        }
    });
    assert!(touched.get(), "{name}: nothing was altered in {path}");
    let audit = audited(name, &record);
    let seen: Vec<_> = audit.rules.iter().filter(|r| r.failures > 0).collect();
    assert_eq!(audit.failed(), rules, "{name}: {seen:#?}");
}

const SEARCH: &str = "search/softmax-f32-128x2048.json";
const LABELS: &str = "labels/rmsnorm-f32-37x1537.json";
const FROZEN: &str = "frozen/rmsnorm-f32-37x1537.json";
const ROUND: &str = "replay/round-05.json";

/// Removes an item of a list.
fn remove(value: &mut Value, index: usize) {
    value.as_array_mut().unwrap().remove(index);
}

fn scale(value: &mut Value, factor: f64) {
    *value = json!(value.as_f64().unwrap() * factor);
}

#[test]
fn labels() {
    // Everything that follows from a label is derived from the wrong one.
    wrong("label", SEARCH, &["search.labels"], |v| scale(&mut v["trials"][3]["label_us"], 1.01));
    wrong("held-out label", LABELS, &["search.labels"], |v| {
        scale(&mut v["trials"][3]["label_us"], 1.01);
    });
    wrong("label of a failure", SEARCH, &["search.labels"], |v| {
        v["trials"][5]["label_us"] = json!(1.0);
    });
}

#[test]
fn seeds_and_orders() {
    wrong("order", SEARCH, &["search.order"], |v| {
        v["rounds"][1]["order"].as_array_mut().unwrap().swap(0, 1);
    });
    wrong("basis", LABELS, &["search.seeds"], |v| v["basis"] = json!("0".repeat(64)));
    wrong("inputs", LABELS, &["search.seeds"], |v| v["inputs_seed"] = json!("0".repeat(16)));
    wrong("path order", ROUND, &["replay.order", "replay.balance"], |v| {
        v["cases"][0]["order"].as_array_mut().unwrap().swap(0, 1);
    });
    wrong("case order", ROUND, &["replay.order"], |v| {
        v["cases"].as_array_mut().unwrap().swap(0, 1);
    });
}

/// The label of a trial as its rounds have it.
fn relabel(trial: &mut Value) {
    let value = |round: &Value| -> f64 {
        let ns = round["batch_ns"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap());
        median(ns.collect()) / round["repetitions"].as_f64().unwrap() / 1000.0
    };
    let values = trial["rounds"].as_array().unwrap().iter().map(value).collect();
    trial["label_us"] = json!(median(values));
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    (v[(v.len() - 1) / 2] + v[v.len() / 2]) / 2.0
}

/// Samples that take so many times as long.
fn slower(round: &Value, factor: f64) -> Value {
    let mut round = round.clone();
    for ns in round["batch_ns"].as_array_mut().unwrap() {
        *ns = json!((ns.as_f64().unwrap() * factor) as u64);
    }
    round
}

#[test]
fn further_rounds() {
    const DISTURBED: &str = "search/rmsnorm-f32-64x1000.json";
    // Candidate 3 was disturbed in one round of two, and got two more.
    wrong("stopped early", DISTURBED, &["search.order", "search.further"], |v| {
        remove(&mut v["rounds"], 3);
        remove(&mut v["trials"][3]["rounds"], 3);
        relabel(&mut v["trials"][3]);
    });
    wrong("one that wasn't due", DISTURBED, &["search.further"], |v| {
        let due = v["rounds"][2]["order"].as_array().unwrap().clone();
        let undue = (0..6).find(|c| !due.contains(&json!(c))).unwrap();
        let order = v["rounds"][0]["order"].as_array().unwrap().clone();
        v["rounds"][2]["order"] =
            order.into_iter().filter(|c| due.contains(c) || *c == json!(undue)).collect();
        let again = v["trials"][undue]["rounds"][0].clone();
        v["trials"][undue]["rounds"].as_array_mut().unwrap().push(again);
        relabel(&mut v["trials"][undue]);
    });
    // Two finalists get a third round.
    wrong("a finalist without its last round", DISTURBED, &["search.further"], |v| {
        let due = v["rounds"][2]["order"].as_array().unwrap().clone();
        let last = due.iter().position(|c| *c != json!(3)).unwrap();
        remove(&mut v["rounds"][2]["order"], last);
        let trial = due[last].as_u64().unwrap() as usize;
        remove(&mut v["trials"][trial]["rounds"], 2);
        relabel(&mut v["trials"][trial]);
    });
    wrong("a round that was removed", DISTURBED, &["search.trials", "search.further"], |v| {
        remove(&mut v["trials"][3]["rounds"], 1);
        relabel(&mut v["trials"][3]);
    });
    wrong("a control measured again", SEARCH, &["search.trials", "search.further"], |v| {
        let again = v["controls"][0]["rounds"][0].clone();
        v["controls"][0]["rounds"].as_array_mut().unwrap().push(again);
        relabel(&mut v["controls"][0]);
    });
}

#[test]
fn a_search_without_a_measured_round_is_a_finding() {
    let audit = audited(
        "no rounds",
        &Record::altered(&|p: &str, v: &mut Value| {
            if p == SEARCH {
                for trial in v["trials"].as_array_mut().unwrap() {
                    trial["rounds"] = json!([]);
                }
            }
        }),
    );
    assert!(audit.failed().contains(&"search.trials"), "{audit:#?}");
}

#[test]
fn rounds_of_cases_alternate() {
    for path in [SEARCH, LABELS] {
        wrong("late", path, &["search.alternate"], |v| {
            v["rounds"][0]["state"]["unix_s"] = json!(1_700_000_001);
        });
    }
}

#[test]
fn disturbed_cases_are_recorded() {
    // Every candidate is disturbed in every other round, the further ones among them.
    let disturb = |p: &str, v: &mut Value| {
        if p != SEARCH {
            return;
        }
        v["rounds"].as_array_mut().unwrap().truncate(2);
        for k in 0..2 {
            let round = v["rounds"][k].clone();
            v["rounds"].as_array_mut().unwrap().push(round);
        }
        let timed = |t: &Value| !t["rounds"].as_array().unwrap().is_empty();
        let out: Vec<Value> =
            (0..6).filter(|c| !timed(&v["trials"][*c])).map(|c| json!(c)).collect();
        for round in v["rounds"].as_array_mut().unwrap().iter_mut().skip(2) {
            round["order"].as_array_mut().unwrap().retain(|c| !out.contains(c));
        }
        for trial in v["trials"].as_array_mut().unwrap().iter_mut().filter(|t| timed(t)) {
            let quiet = trial["rounds"][0].clone();
            let slow = slower(&quiet, 1.5);
            trial["rounds"] = json!([quiet, slow, quiet, slow]);
            relabel(trial);
        }
    };
    let mut record = Record::altered(&disturb);
    let audit = audited("disturbed", &record);
    assert_eq!(audit.failed(), ["search.disturbed"], "{audit:#?}");
    let said = json!({
        "what": "spread", "expected": "at most 0.05", "found": "0.4",
        "case": "softmax-f32-128x2048", "path": null,
    });
    let end = record.entries.len() - 1;
    record.entries.insert(end, ("change".to_string(), said));
    let audit = audited("disturbed and said", &record);
    assert!(audit.passed(), "{audit:#?}");
}

#[test]
fn dropped_measurements() {
    wrong("dropped trial", SEARCH, &["search.trials"], |v| remove(&mut v["trials"], 5));
    wrong("dropped sample", SEARCH, &["search.samples"], |v| {
        remove(&mut v["trials"][1]["rounds"][0]["single_ns"], 0);
    });
    wrong("dropped round", LABELS, &["search.trials"], |v| {
        // The label is made to fit the round that is left.
        remove(&mut v["trials"][1]["rounds"], 1);
        let ns = &v["trials"][1]["rounds"][0]["batch_ns"];
        let mut ns: Vec<f64> = ns.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
        ns.sort_by(f64::total_cmp);
        v["trials"][1]["label_us"] = json!(ns[1] / 10.0 / 1000.0);
    });
    wrong("dropped candidate", SEARCH, &["search.space"], |v| v["space"]["legal"] = json!(9));
    wrong("zero time", SEARCH, &["search.samples"], |v| {
        v["trials"][1]["rounds"][0]["single_ns"][0] = json!(0);
    });
    wrong("dropped path", ROUND, &["replay.rounds"], |v| remove(&mut v["cases"][0]["runs"], 4));
    wrong(
        "dropped row",
        "calibration/cpu-rows.json",
        &["calibration.rows", "calibration.fit", "calibration.confidence"],
        |v| {
            remove(&mut v["rows"], 7);
            // With the hash of the rows that are left, and the fit of all.
            let text: String = v["rows"]
                .as_array()
                .unwrap()
                .iter()
                .map(|r| {
                    let case = r["case"].as_str().unwrap();
                    format!("{case},{},{},{}\n", r["candidate"], r["label_us"], r["spread"])
                })
                .collect();
            v["data_sha256"] = json!(common::sha(text));
            v["incumbents"] = json!([]);
        },
    );
}

#[test]
fn a_missing_round_case_or_step() {
    let drop_entry = |record: &mut Record, path: &str| {
        record.entries.retain(|(_, body)| body["file"] != path);
        record.files.remove(path);
    };
    let mut record = Record::valid();
    drop_entry(&mut record, ROUND);
    let failed = audited("missing round", &record).failed();
    assert!(failed.contains(&"replay.rounds") && failed.contains(&"results.ratios"), "{failed:?}");

    let mut record = Record::valid();
    drop_entry(&mut record, LABELS);
    let failed = audited("missing labels", &record).failed();
    assert!(failed.contains(&"cases.complete"), "{failed:?}");

    let mut record = Record::valid();
    drop_entry(&mut record, SEARCH);
    let failed = audited("missing search", &record).failed();
    assert!(
        failed.contains(&"cases.complete") && failed.contains(&"calibration.rows"),
        "{failed:?}"
    );

    let mut record = Record::valid();
    drop_entry(&mut record, "results.json");
    assert_eq!(audited("missing results", &record).failed(), ["ledger.finished"]);
}

#[test]
fn labels_before_the_freeze() {
    let mut record = Record::valid();
    let kinds: Vec<String> = record.entries.iter().map(|e| e.0.clone()).collect();
    let freeze = kinds.iter().position(|k| k == "freeze").unwrap();
    record.entries.swap(freeze, freeze + 1);
    let failed = audited("early labels", &record).failed();
    assert!(failed.contains(&"ledger.order"), "{failed:?}");

    let mut record = Record::valid();
    let calibration = kinds.iter().position(|k| k == "calibration").unwrap();
    record.entries.swap(calibration, calibration - 1);
    let failed = audited("late search", &record).failed();
    assert!(failed.contains(&"ledger.order"), "{failed:?}");
}

#[test]
fn hold_out_shapes_in_training() {
    // A training case of a hold-out shape, honestly measured and fitted.
    let id = "search/softmax-f32-512x512.json";
    wrong("shape in both", id, &["study.cases", "cases.disjoint", "search.floor"], |v| {
        v["case"]["shape"] = json!([37, 1537]);
    });
    let path = "calibration/cpu-rows.json";
    let record = Record::altered(&|p, v| {
        if p == path {
            v["rows"][0]["case"] = json!("softmax-f32-37x1537");
        }
    });
    let failed = audited("hold-out row", &record).failed();
    assert!(
        failed.contains(&"cases.disjoint") && failed.contains(&"calibration.rows"),
        "{failed:?}"
    );
}

#[test]
fn choices() {
    wrong("winner", SEARCH, &["search.winner"], |v| {
        let winner = v["selection"]["winner"].as_u64().unwrap();
        v["selection"]["winner"] = json!((winner + 1) % 4);
    });
    wrong("stale winner", SEARCH, &["search.winner"], |v| v["selection"]["fresh"] = Value::Null);
    wrong("other kernel", SEARCH, &["search.winner"], |v| {
        v["selection"]["fresh"]["kernel_sha256"] = json!(common::sha("x"));
    });
    wrong("unchecked", SEARCH, &["search.outputs"], |v| v["trials"][2]["check"] = Value::Null);
    wrong("wrong output", SEARCH, &["search.outputs"], |v| {
        v["trials"][2]["check"]["data"][0][2] = json!(1);
    });
    wrong("broken guard", SEARCH, &["search.outputs"], |v| {
        v["trials"][2]["check"]["guards_intact"] = json!(false);
    });
    wrong("floor", SEARCH, &["search.floor"], |v| scale(&mut v["floor"]["floor_us"], 0.9));
    let refused = "search/rmsnorm-f32-512x512.json";
    wrong("impossible label", refused, &["search.floor"], |v| {
        assert_eq!(v["trials"][4]["outcome"], "refused");
        v["trials"][4]["outcome"] = json!("valid");
        v["trials"][3]["outcome"] = json!("valid");
        // Not even as the winner's.
        v["trials"][4]["candidate"] = json!(4);
        v["selection"]["winner"] = json!(4);
        let fresh = v["trials"][4].clone();
        v["selection"]["fresh"] = fresh;
        v["selection"]["fresh"]["rounds"].as_array_mut().unwrap().truncate(1);
        let ns = v["selection"]["fresh"]["rounds"][0]["batch_ns"].as_array().unwrap();
        let mut ns: Vec<f64> = ns.iter().map(|n| n.as_f64().unwrap()).collect();
        ns.sort_by(f64::total_cmp);
        v["selection"]["fresh"]["label_us"] = json!(ns[1] / 10.0 / 1000.0);
    });
    wrong("present control", SEARCH, &["search.controls"], |v| {
        v["controls"][0]["outcome"] = json!("missing");
        v["controls"][0]["label_us"] = Value::Null;
    });
}

#[test]
fn fits() {
    for path in ["calibration/cpu-rows.json", "calibration/gpu-matrix.json"] {
        fits_of(path);
    }
    let profile = "profile.json";
    wrong("profile", profile, &["calibration.profile"], |v| {
        scale(&mut v["fits"][0]["terms"][1]["coefficient"], 1.001);
    });
}

/// A row whose stated spread isn't that of its rounds counts for too little or too much.
#[test]
fn weights() {
    const PATH: &str = "calibration/cpu-rows.json";
    let altered = |alter: &dyn Fn(&mut Value)| {
        let record = Record::altered(&|p, value| {
            if p == PATH {
                alter(value);
            }
        });
        audited("weights", &record).failed()
    };
    let failed = altered(&|v| v["rows"][0]["spread"] = json!(3.0));
    for rule in ["calibration.rows", "calibration.fit"] {
        assert!(failed.contains(&rule), "{rule}: {failed:?}");
    }
    let failed = altered(&|v| {
        v["rows"][0].as_object_mut().unwrap().remove("spread");
    });
    assert!(failed.contains(&"calibration.rows"), "{failed:?}");
}

fn fits_of(path: &str) {
    wrong("coefficient", path, &["calibration.fit"], |v| {
        scale(&mut v["terms"][1]["coefficient"], 1.001);
    });
    // A design and the mean of the designs, both altered alike.
    wrong("design", path, &["calibration.fit"], |v| {
        let designs = v["designs"].as_array().unwrap().len() as f64;
        let own = v["designs"][0]["coefficients"][1].as_f64().unwrap();
        let term = v["terms"][1]["coefficient"].as_f64().unwrap();
        v["designs"][0]["coefficients"][1] = json!(own * 1.01);
        v["terms"][1]["coefficient"] = json!(term + 0.01 * own / designs);
    });
    wrong("design without a coefficient", path, &["calibration.fit"], |v| {
        remove(&mut v["designs"][0]["coefficients"], 2);
    });
    wrong("no design", path, &["calibration.fit"], |v| v["designs"] = json!([]));
    wrong("margin", path, &["calibration.confidence"], |v| {
        v["confidence"]["margin"] = json!(1.001);
    });
    wrong("interval", path, &["calibration.confidence"], |v| {
        scale(&mut v["confidence"]["high"], 2.0);
    });
    wrong("fold", path, &["calibration.folds"], |v| v["folds"][0]["regret_mean"] = json!(0.5));
    let priced = "calibration/gpu-matrix.json";
    let strength = |v: &Value| v["prior"]["strength"].as_f64().unwrap();
    let other = |own: f64| if own == 1e-5 { 1e-2 } else { 1e-5 };
    // Another strength isn't the fit's, and isn't what leaving shapes out chooses.
    wrong("strength", priced, &["calibration.fit", "calibration.folds"], |v| {
        v["prior"]["strength"] = json!(other(strength(v)));
    });
    // What the fold predicts follows from its strength, and the slack from the predictions.
    let both = &["calibration.folds", "calibration.confidence"];
    wrong("strength of a fold", priced, both, |v| {
        let own = v["folds"][0]["strength"].as_f64().unwrap();
        v["folds"][0]["strength"] = json!(other(own));
    });
    wrong("strength out of order", priced, &["calibration.fit"], |v| {
        v["prior"]["strengths"] = json!([1e-5, 1e-2, 1e-3]);
    });
    wrong("margin by the rule stated", priced, &["calibration.confidence"], |v| {
        v["confidence"]["margin"] = json!(1.001);
    });
    wrong("a rule that believes every promise", priced, &["calibration.confidence"], |v| {
        v["guard"]["covered"] = json!(0.0);
    });
    wrong("a slack for which everything is good", priced, &["calibration.confidence"], |v| {
        v["tolerance"] = json!(1.0);
    });
    wrong("a rule without a least gain", priced, &["calibration.confidence"], |v| {
        v["guard"]["gain"] = json!(-1.0);
    });
    wrong("no strengths", priced, &["calibration.fit"], |v| v["prior"]["strengths"] = json!([]));
    wrong("strength without a prior", path, &["calibration.folds"], |v| {
        v["folds"][0]["strength"] = json!(0.1);
    });
    wrong("dropped fold", path, &["calibration.folds"], |v| remove(&mut v["folds"], 1));
    wrong("data hash", path, &["calibration.rows"], |v| v["data_sha256"] = json!("0".repeat(64)));
}

#[test]
fn frozen_plans() {
    wrong("prediction", FROZEN, &["frozen.predictions"], |v| {
        scale(&mut v["candidates"][0]["prediction_us"], 1.01);
    });
    wrong("challenger", FROZEN, &["frozen.choices", "frozen.kernels"], |v| {
        // A worse candidate under the challenger's name, with everything that belongs to it.
        let prediction = v["candidates"][0]["prediction_us"].clone();
        v["challenger"] = json!({
            "candidate": 0, "plan": 1, "mapping": {"width": 1}, "prediction_us": prediction,
            "kernel_sha256": common::sha("kernel rmsnorm-f32-37x1537 0\n"),
            "artifact_sha256": common::sha(format!(
                "artifact {}", common::sha("kernel rmsnorm-f32-37x1537 0\n")
            )),
        });
    });
    wrong("acceptance", FROZEN, &["frozen.advice"], |v| {
        let accepted = v["advice"]["accepted"].as_bool().unwrap();
        v["advice"]["accepted"] = json!(!accepted);
    });
    wrong("abstention", FROZEN, &["frozen.advice"], |v| v["advice"]["abstains"] = json!("no"));
    wrong("other profile", FROZEN, &["frozen.protocol"], |v| {
        v["profile_sha256"] = json!("0".repeat(64));
    });
    wrong("other machine", FROZEN, &["machine.identity"], |v| {
        v["identity_sha256"] = json!("0".repeat(64));
    });
    wrong("other mapping", FROZEN, &["frozen.labels"], |v| {
        v["incumbent"]["mapping"] = json!({"width": 64});
    });
    wrong("another protocol", LABELS, &["study.protocol", "frozen.labels"], |v| {
        v["protocol"]["sample_ns"] = json!(5);
    });
}

#[test]
fn replays() {
    let run = |v: &mut Value, path: usize, field: &str, value: Value| {
        v["cases"][0]["runs"][path][field] = value;
    };
    wrong("other kernel", ROUND, &["replay.kernels"], |v| {
        run(v, 2, "kernel_sha256", json!(common::sha("x")));
    });
    wrong("unchecked", ROUND, &["replay.outputs"], |v| run(v, 1, "check", Value::Null));
    wrong("short", ROUND, &["replay.samples"], |v| {
        remove(&mut v["cases"][0]["runs"][1]["batch_ns"], 0);
    });
    wrong("another protocol", ROUND, &["replay.rounds"], |v| {
        v["protocol"]["sample_ns"] = json!(5);
    });
    wrong(
        "other round",
        ROUND,
        &[
            "replay.rounds",
            "replay.order",
            "results.ratios",
            "results.verdicts",
            "results.guard",
            "results.gate",
        ],
        |v| {
            v["round"] = json!(6);
        },
    );
}

#[test]
fn results() {
    let path = "results.json";
    wrong("regret", path, &["results.regret"], |v| {
        v["cases"][0]["regret"]["challenger"] = json!(0.0001);
    });
    wrong("ratio", path, &["results.ratios"], |v| {
        scale(&mut v["cases"][0]["gain"]["median"], 1.01);
    });
    wrong("control ratio", path, &["results.ratios"], |v| {
        scale(&mut v["cases"][0]["paths"][4]["ratio"]["median"], 1.01);
    });
    wrong("floor", path, &["results.verdicts"], |v| scale(&mut v["cases"][0]["floor"], 0.5));
    wrong("verdict", path, &["results.verdicts"], |v| {
        let own = v["cases"][0]["verdict"].clone();
        v["cases"][0]["verdict"] = json!(if own == "win" { "tie" } else { "win" });
    });
    wrong("coverage", path, &["results.coverage"], |v| {
        v["cases"][0]["coverage"]["inside"] = json!(1);
    });
    wrong("guard", path, &["results.guard"], |v| v["losers"] = json!(7));
    wrong("dropped case", path, &["results.summary"], |v| remove(&mut v["cases"], 5));
    wrong("gate", path, &["results.gate"], |v| v["gate"]["rules"][0]["limit"] = json!(9.0));
    wrong("more", path, &["results.summary"], |v| v["speed"] = json!("great"));
    let unknown = ["study.protocol", "results.summary"];
    wrong("rule that nobody can check", "protocol.json", &unknown, |v| {
        v["acceptance"]["beauty"] = json!(1.0);
    });
}

#[test]
fn markup_and_paths() {
    let machine = "machine.json";
    wrong("markup", machine, &["names.safe"], |v| {
        v["controls"][0]["version"] = json!("<img src=x onerror=alert(1)>");
    });
    wrong("markup in a key", machine, &["names.safe"], |v| v["target"]["<b>"] = json!(1));
    wrong("control character", machine, &["names.safe"], |v| {
        v["controls"][0]["version"] = json!("a\u{1b}[31m");
    });
    wrong("path", machine, &["names.private"], |v| {
        v["controls"][0]["version"] = json!("built in /home/me/src");
    });
    wrong("mapping", SEARCH, &["names.safe"], |v| {
        v["candidates"][0]["mapping"] = json!({"layout": "</script>"});
    });
    // A message may quote markup: whoever prints it escapes it.
    let message = json!({"rule": null, "message": "<b>no</b>"});
    let record = Record::altered(&|p, v| {
        if p == SEARCH {
            v["trials"][5]["error"] = message.clone();
        }
    });
    assert!(audited("message", &record).passed());
    let mut record = Record::valid();
    for (_, body) in &mut record.entries {
        if body["file"] == SEARCH {
            body["file"] = json!("../search/softmax-f32-128x2048.json");
        }
    }
    let failed = audited("outside", &record).failed();
    assert!(failed.contains(&"names.safe") && failed.contains(&"files.hash"), "{failed:?}");
}

#[test]
fn a_second_freeze() {
    let mut record = Record::valid();
    let freeze = record.entries.iter().find(|e| e.0 == "freeze").unwrap().clone();
    let mut body = freeze.1;
    body["plans"] = json!([]);
    record.entries.insert(record.entries.len() - 1, ("freeze".to_string(), body));
    let failed = audited("second freeze", &record).failed();
    // Its number repeats the first one's, and it has neither labels nor rounds.
    for rule in ["ledger.freezes", "cases.complete", "replay.rounds"] {
        assert!(failed.contains(&rule), "{failed:?}");
    }
}

/// A record whose cases measured the shortlist of 6 of 8 legal candidates, with the scores of the
/// other two.
fn shortlisted(name: &str, others: [f64; 2], study: &str, top: Value) -> Audit {
    let space = |space: &mut Value, candidates: &Value| {
        let listed = candidates.as_array().unwrap();
        let mut legal: Vec<(u64, Value)> = listed
            .iter()
            .map(|c| (c["plan"].as_u64().unwrap(), c["score"].clone()))
            .chain([(0, json!(others[0])), (6, json!(others[1]))])
            .collect();
        legal.sort_by_key(|l| l.0);
        space["candidates"] = json!(15);
        space["legal"] = json!(legal.len());
        space["legal_plans"] = legal.iter().map(|l| json!(l.0)).collect();
        space["legal_scores"] = legal.iter().map(|l| l.1.clone()).collect();
    };
    let record = Record::altered(&|path, v| match path {
        "study.toml" => *v = json!(format!("{}{study}", v.as_str().unwrap())),
        "protocol.json" => v["top"] = top.clone(),
        _ if ["search/", "labels/", "frozen/"].iter().any(|f| path.starts_with(f)) => {
            let candidates = v["candidates"].clone();
            space(&mut v["space"], &candidates);
        }
        _ => {}
    });
    audited(name, &record)
}

#[test]
fn shortlists() {
    let top = "[space]\ntop = 6\n";
    let far = [1e12, 2e12];
    assert_eq!(shortlisted("shortlist", far, top, json!(6)).failed(), [""; 0]);
    // A better score that was left out; the incumbent isn't the best of all then.
    let failed = shortlisted("left out", [0.5, 1e12], top, json!(6)).failed();
    assert_eq!(failed, ["search.space", "search.incumbent"]);
    // Fewer or more than the study says.
    let failed = shortlisted("long", far, top, json!(7)).failed();
    assert_eq!(failed, ["study.protocol", "search.space"]);
    // Nothing says that these were the ones to measure.
    assert_eq!(shortlisted("unsaid", far, "", Value::Null).failed(), ["search.space"]);
    assert_eq!(shortlisted("unsaid in the study", far, "", json!(6)).failed(), ["study.protocol"]);
    let name = "scores that aren't there";
    wrong(name, SEARCH, &["search.space"], |v| {
        v["space"]["legal"] = json!(8);
        v["space"]["candidates"] = json!(15);
        v["space"]["legal_plans"] = json!([0, 1, 3, 5, 6, 7, 9, 11]);
    });
}

#[test]
fn the_study_file() {
    let file = |name: &str, rules: &[&str], from: &str, to: &str| {
        wrong(name, "study.toml", rules, |v| {
            let text = v.as_str().unwrap();
            assert!(text.contains(from), "{name}");
            *v = json!(text.replacen(from, to, 1));
        });
    };
    let protocol = ["study.protocol"];
    file("rounds", &protocol, "rounds = 14", "rounds = 15");
    file("samples", &protocol, "samples = 3", "samples = 4");
    file("limit", &protocol, "regret_mean = 0.5", "regret_mean = 0.4");
    file("rule left out", &protocol, "regret_max = 1.0\n", "");
    file("limit of the first three", &protocol, "regret_top3 = 0.5", "regret_top3 = 0.4");
    file("shortlist", &protocol, "shortlist = 3", "shortlist = 4");
    file("cap", &protocol, "[search]", "[space]\ncap = 4\n[search]");
    file("metric", &protocol, "shortlist = 3", "shortlist = 3\nmetric = \"single\"");
    file("controls", &protocol, "\"plain-loops\", ", "");
    file(
        "order of controls",
        &protocol,
        "\"plain-loops\", \"torch\"",
        "\"torch\", \"plain-loops\"",
    );
    let cases = ["study.cases"];
    file("shape", &cases, "\"23x769\"", "\"23x770\"");
    file("order", &cases, "\"23x769\", \"128x2048\"", "\"128x2048\", \"23x769\"");
    file("one more", &cases, "\"23x769\"", "\"24x769\", \"23x769\"");
    file("held out", &cases, "\"37x1537\", ", "");
    file("type", &cases, "ops = [\"gemm\"]", "ops = [\"gemm\"]\ndtype = \"f64\"");
    file("threads", &cases, "threads = 2", "threads = 1");
    file("no study", &["study.file"], "[search]", "[serch]");
    file("no TOML", &["study.file"], "[search]", "[search");
    file("unknown rule", &["study.file"], "regret_mean", "beauty");
    // A quick run of the file has other settings.
    let mut record = Record::valid();
    record.entries[0].1["quick"] = json!(true);
    let failed = audited("quick", &record).failed();
    assert!(failed.contains(&"study.protocol"), "{failed:?}");
    // A record of a restricted space has no candidate outside it.
    let rows = |v: &mut Value, unroll: u64| {
        for candidate in v["candidates"].as_array_mut().unwrap() {
            candidate["mapping"] = json!({"family": "rows", "unroll": unroll});
        }
    };
    for (unroll, failed) in [(2, vec![]), (3, vec!["study.protocol"])] {
        let record = Record::altered(&|path, v| match path {
            "study.toml" => {
                *v = json!(format!("{}[space]\nunroll = [1, 2]\n", v.as_str().unwrap()))
            }
            SEARCH => rows(v, unroll),
            _ => {}
        });
        assert_eq!(audited("space", &record).failed(), failed);
    }
    // The widths of rows on a CPU, by list or by what the machine (AVX2) has.
    let lanes = |v: &mut Value, lanes: &[u64]| {
        for (i, candidate) in v["candidates"].as_array_mut().unwrap().iter_mut().enumerate() {
            candidate["mapping"] = json!({"family": "rows", "lanes": lanes[i % lanes.len()]});
        }
    };
    for (space, found, holds) in [
        ("widths = \"all\"", &[8, 4][..], true),
        ("widths = \"all\"", &[8], false),
        ("widths = \"all\"", &[8, 4, 16], false),
        ("threads = [16, 8]", &[16, 8], true),
        ("threads = [16, 8]", &[16], false),
        ("threads = [8]", &[8, 16], false),
    ] {
        let record = Record::altered(&|path, v| match path {
            "study.toml" => *v = json!(format!("{}[space]\n{space}\n", v.as_str().unwrap())),
            _ if v["case"]["family"] == "rows" && v["candidates"].is_array() => lanes(v, found),
            _ => {}
        });
        let failed = audited("widths", &record).failed();
        assert_eq!(!failed.contains(&"study.protocol"), holds, "{space} {found:?}: {failed:?}");
    }
}

#[test]
fn a_cache_of_unknown_rate_sets_no_floor_and_memory_does() {
    let record = |level: &str| {
        Record::altered(&|path, v| {
            if path == "machine.json" {
                v["ceilings"][0]["bytes_per_second"][level] = Value::Null;
                // A launch so cheap that transfers set the floors that there are.
                v["ceilings"][0]["launch_ns"] = json!(0.001);
            }
        })
    };
    assert_eq!(audited("cache", &record("l2")).failed(), [""; 0]);
    // Everything lies in memory then.
    let memory = Record::altered(&|path, v| {
        if path == "machine.json" {
            v["identity"]["caches_bytes"] = json!({"l1": 0, "l2": 0, "l3": 0});
            v["ceilings"][0]["bytes_per_second"]["memory"] = Value::Null;
        }
    });
    assert_eq!(audited("memory", &memory).failed(), ["search.floor"]);
}

#[test]
fn labels_and_verdicts_of_a_device_are_of_its_clock() {
    // Every measurement has device batches of a clock that runs at half the host's speed.
    let on_device = |path: &str, v: &mut Value| {
        fn clocks(value: &mut Value) {
            match value {
                Value::Object(members) => {
                    if members.get("batch_ns").is_some_and(Value::is_array) {
                        let half = |ns: &Value| json!(ns.as_u64().unwrap() / 2);
                        let batches = members["batch_ns"].as_array().unwrap();
                        members["device_ns"] = batches.iter().map(half).collect();
                        members["device_repetitions"] = members["repetitions"].clone();
                    }
                    members.values_mut().for_each(clocks);
                }
                Value::Array(items) => items.iter_mut().for_each(clocks),
                _ => {}
            }
        }
        if path.starts_with("replay/") {
            clocks(v);
        }
    };
    // Device clocks that nobody selects by are only reported.
    let record = Record::altered(&|path, v| on_device(path, v));
    let failed = audited("device", &record).failed();
    assert_eq!(failed, ["results.ratios"], "the results don't have the device's gains");
    // A selection by the device's clock changes what every figure is of.
    let record = Record::altered(&|path, v| {
        if path == "protocol.json" {
            v["selection"] = json!("device");
        }
    });
    let failed = audited("selection", &record).failed();
    for rule in ["study.protocol", "frozen.labels", "results.verdicts"] {
        assert!(failed.contains(&rule), "{failed:?}");
    }
}
