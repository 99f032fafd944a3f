//! Canonical JSON and hashes: the same value gives the same bytes on every machine.

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// A value that has no canonical form.
#[derive(Debug, thiserror::Error)]
#[error("no canonical JSON: {0}")]
pub struct CanonicalError(String);

/// Canonical JSON of a value: keys sorted by their bytes, no white space, floats in the shortest
/// form that reads back the same. No line feed at the end.
///
/// # Errors
/// A float that is no finite number (JSON can't hold it), or a map whose keys aren't strings.
pub fn canonical(value: &impl Serialize) -> Result<String, CanonicalError> {
    let value = serde_json::to_value(value).map_err(|e| CanonicalError(e.to_string()))?;
    let mut out = String::new();
    write(&value, &mut out);
    Ok(out)
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            // Sorted here, since a map's own order depends on how `serde_json` was built.
            let mut sorted: Vec<(&String, &Value)> = members.iter().collect();
            sorted.sort_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
            out.push('{');
            for (i, (key, item)) in sorted.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                out.push_str(&Value::String(key.clone()).to_string());
                out.push(':');
                write(item, out);
            }
            out.push('}');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

/// SHA-256 in 64 lower-case hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// The first 64 bits of the SHA-256 of a text, the first byte the most significant.
pub fn derive(text: &str) -> u64 {
    Sha256::digest(text.as_bytes()).iter().take(8).fold(0, |n, b| n << 8 | u64::from(*b))
}

/// A seed as it is written in a record: 16 hexadecimal digits.
pub fn seed_text(seed: u64) -> String {
    format!("{seed:016x}")
}

/// Whether a text is a hash as [`sha256`] gives it.
pub fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_are_sorted_at_every_depth_and_floats_are_short() {
        let value = json!({"b": [1, 2.5, {"z": null, "a": 1e-7}], "a": "x\"\n", "B": 0.1});
        let text = canonical(&value).unwrap();
        assert_eq!(text, r#"{"B":0.1,"a":"x\"\n","b":[1,2.5,{"a":1e-7,"z":null}]}"#);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }

    #[test]
    fn hashes_and_derived_numbers_are_published_values() {
        // FIPS 180-4 example "abc".
        let hash = sha256(b"abc");
        assert_eq!(hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(derive("abc"), 0xba78_16bf_8f01_cfea);
        assert_eq!(seed_text(0xab), "00000000000000ab");
        assert!(is_hash(&hash) && !is_hash(&hash[1..]) && !is_hash(&hash.to_uppercase()));
    }
}
