//! The JSON that the command prints is what `schemas/` says.

mod common;

use common::Directory;
use common::schema::{check, faults, folder, schema};
use serde_json::Value;
use std::collections::BTreeMap;

#[test]
fn the_checker_finds_faults() {
    let good = Directory::new("checker").run("devices --json").json();
    check("devices", &good);
    let schema = schema("devices");
    let wrong: [fn(&mut Value); 5] = [
        |v| v["schema"] = "other".into(),
        |v| v["devices"][0]["available"] = "yes".into(),
        |v| v["devices"][0]["extra"] = 1.into(),
        |v| {
            v["devices"][0].as_object_mut().map(|o| o.remove("name"));
        },
        |v| v["devices"][0]["threads"] = (-1).into(),
    ];
    for edit in wrong {
        let mut value = good.clone();
        edit(&mut value);
        let mut found = Vec::new();
        faults(&schema, &schema, &value, "", &mut found);
        assert_eq!(found.len(), 1, "{found:?}");
    }
}

/// Values of every `schema` constant in a schema.
fn constants(value: &Value, out: &mut Vec<String>) {
    if let Some(id) = value["properties"]["schema"]["const"].as_str() {
        out.push(id.to_string());
    }
    let inner = match value {
        Value::Object(members) => members.values().collect::<Vec<_>>(),
        Value::Array(items) => items.iter().collect(),
        _ => Vec::new(),
    };
    inner.into_iter().for_each(|v| constants(v, out));
}

#[test]
fn every_schema_has_a_name_of_its_own() {
    let (mut ids, mut formats) = (BTreeMap::new(), BTreeMap::new());
    for entry in std::fs::read_dir(folder()).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        let name = file.strip_suffix(".schema.json").unwrap();
        let value = schema(name);
        let id = value["$id"].as_str().unwrap_or_else(|| panic!("{file} has no $id")).to_string();
        assert_eq!(id, format!("urn:tilewright:schema:{name}"), "{file}");
        assert_eq!(ids.insert(id, file.clone()), None);
        let mut own = Vec::new();
        constants(&value, &mut own);
        // One file may describe several forms of one format.
        own.sort();
        own.dedup();
        for format in own {
            let other = formats.insert(format.clone(), file.clone());
            assert_eq!(other, None, "{format} is the `schema` of {file}, too");
        }
    }
    assert!(ids.len() >= 17 && formats.len() >= 16, "{formats:?}");
}

#[test]
fn plans() {
    let d = Directory::new("plans");
    for arguments in [
        "softmax 37x1537 --target apple-m1-max",
        "softmax 37x1537 --target apple-m1-max --all",
        "layernorm 128x8193 --target apple-m1-max --policy reduction-service --all",
        "gemm 127x193x61 --target apple-m1-max --all",
        "gemm 64x64x64 --target apple-m1-max --policy matrix-simdgroup-v1 --all",
        "rmsnorm 64x769 --target nvidia-h200 --all",
        "softmax 37x1537 --all",
        "gemm 127x193x61 --all",
        "gemm 128x128x128 --dtype bf16 --trans tn --epilogue bias,gelu",
    ] {
        let plan = d.run(&format!("plan {arguments} --json")).json();
        check("plan", &plan);
        // Built-in coefficients have no profile, and these policies no advice.
        assert!(plan["profile"].is_null() && plan["advice"].is_null() && plan["guard"].is_null());
    }
}

#[test]
fn plans_with_a_profile_say_how_far_it_is_to_be_trusted() {
    let d = Directory::new("advice");
    let shipped =
        format!("{}/../../profiles/apple-m1-max.whole-launch", env!("CARGO_MANIFEST_DIR"));
    for (case, family, guarded) in
        [("softmax 256x3072", "rows", true), ("gemm 512x512x512", "matrix", true)]
    {
        let arguments =
            format!("plan {case} --target apple-m1-max --profile {shipped}-{family}.json");
        let plan = d.run(&format!("{arguments} --json")).json();
        check("plan", &plan);
        assert_eq!(plan["profile"]["default"], false);
        assert_eq!(plan["profile"]["reason"], "it states no hold-out");
        let (advice, guard) = (&plan["advice"], &plan["guard"]);
        assert_eq!(guard.is_object(), guarded, "{case}");
        let number = |v: &Value| v.as_f64().unwrap();
        let prediction = number(&advice["prediction_us"]);
        assert_eq!(prediction, number(&plan["candidates"][0]["kernel_score"]));
        assert!(number(&advice["interval_us"][0]) < prediction);
        assert!(number(&advice["interval_us"][1]) > prediction);
        assert_eq!(number(&guard["predicted_gain"]), number(&guard["prediction_us"]) / prediction);
        let accepted = number(&guard["predicted_gain"]) > number(&guard["margin"]);
        assert_eq!(guard["accepted"], accepted && guard["rank"] != 1, "{case}");

        let text = d.run(&arguments).ok();
        assert!(text.contains("profile, opt-in: it states no hold-out\n"), "{text}");
        assert!(text.contains("\nguard: predicted gain "), "{text}");
        assert!(text.contains("worth measuring") || text.contains("measure this one"), "{text}");
    }
    // A wide hold-out of a small training range: the model abstains and says so.
    let far =
        format!("plan softmax 4000x60000 --target apple-m1-max --profile {shipped}-rows.json");
    let plan = d.run(&format!("{far} --json")).json();
    check("plan", &plan);
    let why = plan["advice"]["abstains"].as_str().unwrap();
    assert!(why.contains("trained on"), "{why}");
    assert!(d.run(&far).ok().contains(&format!("measure this one: {why}\n")));
}

#[test]
fn shipped_profiles_follow_their_schema() {
    let folder = folder().join("../profiles");
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        check("profile", &serde_json::from_str(&text).unwrap());
    }
}

#[test]
fn runs() {
    let d = Directory::new("runs");
    for arguments in [
        "softmax 5x17",
        "gemm 5x17x9 --beta 0.5 --epilogue bias,relu",
        "cross_entropy 5x17 --dtype f64 --cpu-threads 1",
        "row_sum 3x7 --output y.npy",
    ] {
        check("run", &d.run(&format!("run {arguments} --json")).json());
    }
}

#[test]
fn calibrations() {
    let d = Directory::new("calibrations");
    let data = format!("{}/../plan/tests/data/m1max", env!("CARGO_MANIFEST_DIR"));
    let space = format!("{}/../study/tests/data/space.t4.json", env!("CARGO_MANIFEST_DIR"));
    for arguments in [
        format!(
            "{data}/reduction_search.json --procedure reference --replay {data}/heldout_replay.json"
        ),
        format!("{data}/reduction_search.json --nested --draws 3"),
        format!("{data}/gemm_search.json"),
        space.clone(),
        format!("{space} --transfer {space}"),
    ] {
        check("calibrate", &d.run(&format!("calibrate {arguments} --json")).json());
    }
}
