//! Canonical JSON, hashes and what is derived from hashes.

use serde_json::Value;
use sha2::{Digest, Sha256};

/// Canonical text of a value: keys sorted by their bytes, no white space, floats in the shortest
/// form that reads back the same; no line feed at the end.
pub fn text(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Object(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_unstable_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
            let mut open = '{';
            for (key, item) in sorted {
                out.push(open);
                open = ',';
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                write(item, out);
            }
            out.push_str(if members.is_empty() { "{}" } else { "}" });
        }
        Value::Array(items) => {
            let mut open = '[';
            for item in items {
                out.push(open);
                open = ',';
                write(item, out);
            }
            out.push_str(if items.is_empty() { "[]" } else { "]" });
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

/// SHA-256 in 64 lower-case hexadecimal digits.
pub fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The first 16 hexadecimal digits of the SHA-256 of a text.
pub fn seed(text: &str) -> String {
    hash(text.as_bytes()).chars().take(16).collect()
}

/// [`seed`] as a number.
pub fn number(text: &str) -> u64 {
    u64::from_str_radix(&seed(text), 16).unwrap_or_default()
}

/// Whether a text is a hash as [`hash`] writes it.
pub fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn canonical_text_sorts_keys_and_keeps_numbers() {
        let value = json!({"b": [1, 2.5, {}, []], "a": {"z": 1e-7, "Z": "\u{e9}\""}});
        assert_eq!(text(&value), "{\"a\":{\"Z\":\"\u{e9}\\\"\",\"z\":1e-7},\"b\":[1,2.5,{},[]]}");
    }

    #[test]
    fn hashes_follow_the_standard() {
        // FIPS 180-4: the empty message.
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(hash(b""), empty);
        assert_eq!(seed(""), "e3b0c44298fc1c14");
        assert_eq!(number(""), 0xe3b0_c442_98fc_1c14);
        assert!(is_hash(empty) && !is_hash("e3b0") && !is_hash(&empty.to_uppercase()));
    }
}
