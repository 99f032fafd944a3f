//! The JSON that the command prints is what `schemas/` says.

mod common;

use common::Directory;
use serde_json::Value;
use std::path::Path;

fn schema(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../schemas")
        .join(format!("{name}.schema.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The faults of a value under the part of JSON Schema that the schemas here use. An unknown
/// keyword is a fault of the schema, so that none is silently ignored.
fn faults(schema: &Value, root: &Value, value: &Value, path: &str, out: &mut Vec<String>) {
    let Some(rules) = schema.as_object() else {
        out.push(format!("{path}: the schema is no object"));
        return;
    };
    for (keyword, rule) in rules {
        match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" => {}
            "$ref" => {
                let pointer = rule.as_str().unwrap_or_default().trim_start_matches('#');
                match root.pointer(pointer) {
                    Some(target) => faults(target, root, value, path, out),
                    None => out.push(format!("{path}: no {rule}")),
                }
            }
            "const" if value != rule => out.push(format!("{path}: {value} isn't {rule}")),
            "enum" if !rule.as_array().is_some_and(|all| all.contains(value)) => {
                out.push(format!("{path}: {value} isn't one of {rule}"));
            }
            "const" | "enum" => {}
            "anyOf" => {
                let some = rule.as_array().is_some_and(|all| {
                    all.iter().any(|option| {
                        let mut inner = Vec::new();
                        faults(option, root, value, path, &mut inner);
                        inner.is_empty()
                    })
                });
                if !some {
                    out.push(format!("{path}: fits no option: {value}"));
                }
            }
            "type" => {
                let names: Vec<&str> = match rule {
                    Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
                    one => one.as_str().into_iter().collect(),
                };
                let fits = names.iter().any(|name| match *name {
                    "null" => value.is_null(),
                    "boolean" => value.is_boolean(),
                    "string" => value.is_string(),
                    "array" => value.is_array(),
                    "object" => value.is_object(),
                    "number" => value.is_number(),
                    "integer" => value.is_i64() || value.is_u64(),
                    _ => false,
                });
                if !fits {
                    out.push(format!("{path}: {value} isn't {rule}"));
                }
            }
            "minimum" => {
                if value.as_f64().is_some_and(|v| v < rule.as_f64().unwrap_or(f64::INFINITY)) {
                    out.push(format!("{path}: {value} is below {rule}"));
                }
            }
            "pattern" => {
                assert_eq!(rule, "^[0-9a-f]{64}$", "the only pattern that is understood here");
                if let Some(text) = value.as_str()
                    && (text.len() != 64 || !text.bytes().all(|b| b"0123456789abcdef".contains(&b)))
                {
                    out.push(format!("{path}: {text} is no hash"));
                }
            }
            "minItems" | "maxItems" => {
                if let (Some(items), Some(n)) = (value.as_array(), rule.as_u64()) {
                    let (len, min) = (items.len() as u64, keyword == "minItems");
                    if (min && len < n) || (!min && len > n) {
                        out.push(format!("{path}: {len} items, {keyword} {n}"));
                    }
                }
            }
            "items" => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    faults(rule, root, item, &format!("{path}/{i}"), out);
                }
            }
            "required" => {
                for name in rule.as_array().into_iter().flatten().filter_map(Value::as_str) {
                    if value.as_object().is_some_and(|o| !o.contains_key(name)) {
                        out.push(format!("{path}: `{name}` is missing"));
                    }
                }
            }
            "properties" => {
                for (name, inner) in rule.as_object().into_iter().flatten() {
                    if let Some(field) = value.get(name) {
                        faults(inner, root, field, &format!("{path}/{name}"), out);
                    }
                }
            }
            "additionalProperties" => {
                let known = rules.get("properties").and_then(Value::as_object);
                for name in value.as_object().into_iter().flat_map(|o| o.keys()) {
                    if *rule == Value::Bool(false) && !known.is_some_and(|k| k.contains_key(name)) {
                        out.push(format!("{path}: `{name}` isn't in the schema"));
                    }
                }
            }
            other => out.push(format!("{path}: unknown keyword `{other}`")),
        }
    }
}

fn check(name: &str, value: &Value) {
    let schema = schema(name);
    let mut found = Vec::new();
    faults(&schema, &schema, value, "", &mut found);
    assert!(found.is_empty(), "{name}:\n{}", found.join("\n"));
}

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
        check("plan", &d.run(&format!("plan {arguments} --json")).json());
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
