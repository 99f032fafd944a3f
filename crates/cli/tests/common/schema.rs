//! JSON Schema, as far as `schemas/` uses it.
#![allow(dead_code)]

use serde_json::Value;
use std::path::{Path, PathBuf};

/// The folder of the published schemas.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schemas")
}

/// `schemas/NAME.schema.json`.
pub fn schema(name: &str) -> Value {
    let path = folder().join(format!("{name}.schema.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The faults of a value under the part of JSON Schema that the schemas here use. An unknown
/// keyword is a fault of the schema, so that none is silently ignored.
pub fn faults(schema: &Value, root: &Value, value: &Value, path: &str, out: &mut Vec<String>) {
    let Some(rules) = schema.as_object() else {
        out.push(format!("{path}: the schema is no object"));
        return;
    };
    for (keyword, rule) in rules {
        match keyword.as_str() {
            "$schema" | "$id" | "$defs" | "title" | "description" => {}
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
            "exclusiveMinimum" => {
                if value.as_f64().is_some_and(|v| v <= rule.as_f64().unwrap_or(f64::INFINITY)) {
                    out.push(format!("{path}: {value} isn't above {rule}"));
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

/// Asserts that a value is what its schema says.
pub fn check(name: &str, value: &Value) {
    let schema = schema(name);
    let mut found = Vec::new();
    faults(&schema, &schema, value, "", &mut found);
    assert!(found.is_empty(), "{name}:\n{}", found.join("\n"));
}
