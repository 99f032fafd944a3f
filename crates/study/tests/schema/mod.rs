//! The part of JSON Schema that `schemas/` uses.

use serde_json::Value;

/// Faults of a value under a schema. An unknown keyword is a fault, so that none is ignored.
pub fn faults(rules: &Value, root: &Value, value: &Value, path: &str, out: &mut Vec<String>) {
    for (keyword, rule) in rules.as_object().into_iter().flatten() {
        let bad = match keyword.as_str() {
            "$schema" | "$id" | "$defs" | "title" | "description" => false,
            "$ref" => {
                let pointer = rule.as_str().unwrap_or_default().trim_start_matches('#');
                match root.pointer(pointer) {
                    Some(target) => faults(target, root, value, path, out),
                    None => out.push(format!("{path}: no {rule}")),
                }
                false
            }
            "const" => value != rule,
            "enum" => !rule.as_array().is_some_and(|all| all.contains(value)),
            "anyOf" => !rule.as_array().into_iter().flatten().any(|option| {
                let mut inner = Vec::new();
                faults(option, root, value, path, &mut inner);
                inner.is_empty()
            }),
            "type" => !names(rule).iter().any(|name| is(value, name)),
            "minimum" => value.as_f64() < rule.as_f64() && value.is_number(),
            "pattern" => {
                assert_eq!(rule, "^[0-9a-f]{64}$", "the only pattern that is understood here");
                value.as_str().is_some_and(|t| !tilewright_study::canonical::is_hash(t))
            }
            "minItems" => value.as_array().is_some_and(|a| (a.len() as u64) < size(rule)),
            "maxItems" => value.as_array().is_some_and(|a| a.len() as u64 > size(rule)),
            "items" => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    faults(rule, root, item, &format!("{path}/{i}"), out);
                }
                false
            }
            "required" => value.as_object().is_some_and(|members| {
                rule.as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .any(|name| !members.contains_key(name))
            }),
            "properties" => {
                for (name, inner) in rule.as_object().into_iter().flatten() {
                    if let Some(member) = value.get(name) {
                        faults(inner, root, member, &format!("{path}/{name}"), out);
                    }
                }
                false
            }
            "additionalProperties" => value.as_object().is_some_and(|members| {
                *rule == Value::Bool(false)
                    && members.keys().any(|name| rules["properties"].get(name).is_none())
            }),
            _ => true,
        };
        if bad {
            let text = value.to_string();
            let shown: String = text.chars().take(120).collect();
            out.push(format!("{path}: {keyword} {rule} doesn't hold of {shown}"));
        }
    }
}

fn size(rule: &Value) -> u64 {
    rule.as_u64().unwrap_or(u64::MAX)
}

fn names(rule: &Value) -> Vec<&str> {
    match rule {
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect(),
    }
}

fn is(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        _ => false,
    }
}
