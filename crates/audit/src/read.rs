//! Reading files that somebody else wrote: limits of size, depth and number of values hold before
//! anything is allocated for the content.

use flate2::read::MultiGzDecoder;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Limits of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of a file as it lies on the disk.
    pub file_bytes: u64,
    /// Bytes of its text once unpacked.
    pub text_bytes: u64,
    /// Nested lists and objects.
    pub depth: usize,
    /// Values in one file.
    pub values: usize,
    /// Files in a record.
    pub files: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            file_bytes: 64 << 20,
            text_bytes: 256 << 20,
            depth: 32,
            values: 16_000_000,
            files: 10_000,
        }
    }
}

/// Why a file can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The operating system failed.
    #[error("can't be read: {0}")]
    Io(#[from] std::io::Error),
    /// A directory, a link, a device.
    #[error("is no regular file")]
    NotAFile,
    /// More bytes than the limit.
    #[error("is over the limit of {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
    /// Lists and objects nested deeper than the limit.
    #[error("is nested deeper than {limit} levels")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// More values than the limit.
    #[error("has more than {limit} values")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// Not UTF-8.
    #[error("isn't UTF-8 text")]
    NotUtf8,
    /// Broken gzip.
    #[error("is broken gzip: {0}")]
    Gzip(std::io::Error),
    /// Not JSON, or a key twice in one object.
    #[error("is no JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// The bytes of a file, unpacked if it is gzip (by its first bytes).
///
/// # Errors
/// [`ReadError`]; a file over a limit isn't read.
pub fn read_bytes(path: &Path, limits: &Limits) -> Result<Vec<u8>, ReadError> {
    let metadata = std::fs::symlink_metadata(path)?;
    if !metadata.is_file() {
        return Err(ReadError::NotAFile);
    }
    if metadata.len() > limits.file_bytes {
        return Err(ReadError::TooLarge { limit: limits.file_bytes });
    }
    // The file may have grown since: read one byte more than allowed, never all.
    let mut bytes = Vec::new();
    File::open(path)?.take(limits.file_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limits.file_bytes {
        return Err(ReadError::TooLarge { limit: limits.file_bytes });
    }
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        if bytes.len() as u64 > limits.text_bytes {
            return Err(ReadError::TooLarge { limit: limits.text_bytes });
        }
        return Ok(bytes);
    }
    let mut text = Vec::new();
    MultiGzDecoder::new(bytes.as_slice())
        .take(limits.text_bytes + 1)
        .read_to_end(&mut text)
        .map_err(ReadError::Gzip)?;
    if text.len() as u64 > limits.text_bytes {
        return Err(ReadError::TooLarge { limit: limits.text_bytes });
    }
    Ok(text)
}

/// Reads one JSON value from bytes.
///
/// # Errors
/// [`ReadError`]: too deep, too many values, no UTF-8, no JSON, a key twice in one object.
pub fn read_json(bytes: &[u8], limits: &Limits) -> Result<Value, ReadError> {
    scan(bytes, limits)?;
    let text = std::str::from_utf8(bytes).map_err(|_| ReadError::NotUtf8)?;
    let Strict(value) = serde_json::from_str(text)?;
    Ok(value)
}

/// Counts levels and values without building any.
fn scan(bytes: &[u8], limits: &Limits) -> Result<(), ReadError> {
    let (mut depth, mut values) = (0usize, 1usize);
    let (mut quoted, mut escaped) = (false, false);
    for byte in bytes {
        if quoted {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => quoted = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => quoted = true,
            b'[' | b'{' => {
                depth += 1;
                values += 1;
                if depth > limits.depth {
                    return Err(ReadError::TooDeep { limit: limits.depth });
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => values += 1,
            _ => {}
        }
        if values > limits.values {
            return Err(ReadError::TooMany { limit: limits.values });
        }
    }
    Ok(())
}

/// A value whose objects have no key twice: of two members of one name, readers disagree about
/// which counts.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Strict)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            out.push(item);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some((key, Strict(value))) = members.next_entry::<String, Strict>()? {
            if out.contains_key(&key) {
                return Err(A::Error::custom(format!("the key {key:?} occurs twice")));
            }
            out.insert(key, value);
        }
        Ok(Value::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Limits {
        Limits { file_bytes: 1000, text_bytes: 2000, depth: 4, values: 20, files: 10 }
    }

    #[test]
    fn limits_hold_before_parsing() {
        let read = |text: &str| read_json(text.as_bytes(), &small());
        assert!(read("[[[[1]]]]").is_ok());
        assert!(matches!(read("[[[[[1]]]]]"), Err(ReadError::TooDeep { limit: 4 })));
        // Brackets in strings don't nest, and an escaped quote doesn't end one.
        assert!(read(r#"["[[[[[[\"[[[["]"#).is_ok());
        let long = format!("[{}0]", "0,".repeat(30));
        assert!(matches!(read(&long), Err(ReadError::TooMany { limit: 20 })));
        assert!(matches!(read("{\"a\":1,"), Err(ReadError::Json(_))));
        assert!(matches!(read_json(b"\"\xff\"", &small()), Err(ReadError::NotUtf8)));
        assert!(matches!(read("{\"a\":1,\"a\":2}"), Err(ReadError::Json(_))));
    }

    #[test]
    fn files_over_a_limit_are_refused_packed_or_not() {
        let dir = std::env::temp_dir().join(format!("tilewright-read-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("a.json");
        std::fs::write(&path, vec![b' '; 1001]).unwrap();
        assert!(matches!(read_bytes(&path, &small()), Err(ReadError::TooLarge { limit: 1000 })));
        // 100 KB of spaces pack into far less than 1000 bytes.
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut gz, &[b' '; 100_000]).unwrap();
        let packed = gz.finish().unwrap();
        assert!(packed.len() < 1000);
        std::fs::write(&path, &packed).unwrap();
        assert!(matches!(read_bytes(&path, &small()), Err(ReadError::TooLarge { limit: 2000 })));
        std::fs::write(&path, &packed[..packed.len() / 2]).unwrap();
        let wide = Limits { text_bytes: 1 << 20, ..small() };
        assert!(matches!(read_bytes(&path, &wide), Err(ReadError::Gzip(_))));
        assert!(matches!(read_bytes(&dir, &small()), Err(ReadError::NotAFile)));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
