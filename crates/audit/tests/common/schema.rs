//! JSON Schema, as far as `schemas/` uses it.

use serde_json::Value;

/// The faults of a value. A keyword that isn't known here is one, so that none goes unchecked.
pub fn faults(root: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    let mut out = Vec::new();
    for (keyword, rule) in schema.as_object().unwrap() {
        let mut wrong = |holds: bool| {
            if !holds {
                out.push(format!("{place}: {keyword} {rule}: {value}"));
            }
        };
        match keyword.as_str() {
            "$schema" | "$id" | "$defs" | "title" | "description" => {}
            "const" => wrong(value == rule),
            "enum" => wrong(rule.as_array().unwrap().contains(value)),
            "minimum" => wrong(value.as_f64().is_none_or(|v| v >= rule.as_f64().unwrap())),
            "pattern" => {
                assert_eq!(rule, "^[0-9a-f]{64}$");
                let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
                wrong(value.as_str().is_none_or(|t| t.len() == 64 && t.bytes().all(hex)));
            }
            "type" => {
                let list = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
                wrong(list.iter().any(|name| match name.as_str().unwrap() {
                    "null" => value.is_null(),
                    "boolean" => value.is_boolean(),
                    "string" => value.is_string(),
                    "array" => value.is_array(),
                    "object" => value.is_object(),
                    "number" => value.is_number(),
                    "integer" => value.is_u64() || value.is_i64(),
                    other => panic!("the type {other}"),
                }));
            }
            "anyOf" => wrong(
                rule.as_array().unwrap().iter().any(|s| faults(root, s, value, place).is_empty()),
            ),
            "$ref" => {
                let target = rule.as_str().unwrap().trim_start_matches('#');
                out.extend(faults(root, root.pointer(target).unwrap(), value, place));
            }
            "items" => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    out.extend(faults(root, rule, item, &format!("{place}/{i}")));
                }
            }
            "required" => {
                for name in rule.as_array().unwrap() {
                    if value.as_object().is_some_and(|o| !o.contains_key(name.as_str().unwrap())) {
                        out.push(format!("{place}: {name} is missing"));
                    }
                }
            }
            "properties" => {
                for (name, inner) in rule.as_object().unwrap() {
                    if let Some(member) = value.get(name) {
                        out.extend(faults(root, inner, member, &format!("{place}/{name}")));
                    }
                }
            }
            "additionalProperties" => {
                assert_eq!(rule, &Value::Bool(false));
                let known = schema["properties"].as_object().unwrap();
                for name in value.as_object().into_iter().flat_map(|o| o.keys()) {
                    if !known.contains_key(name) {
                        out.push(format!("{place}: {name} isn't known"));
                    }
                }
            }
            other => out.push(format!("{place}: the keyword {other}")),
        }
    }
    out
}

/// The faults of a value under `schemas/NAME.schema.json`.
pub fn check(name: &str, value: &Value) -> Vec<String> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../../schemas/{name}.schema.json"));
    let schema: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    faults(&schema, &schema, value, "")
}
