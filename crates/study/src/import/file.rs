//! Bytes of a file, within limits that are checked before anything is built from them.

use std::io::Read;
use std::path::Path;

use serde_json::Value;

use super::ImportError;

/// Limits on files from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes after unpacking.
    pub bytes: u64,
    /// Nesting of JSON.
    pub depth: usize,
    /// Trials of a space, or rows.
    pub trials: usize,
}

impl Default for Limits {
    /// 64 MiB of file, 256 MiB unpacked, 32 levels, 1,000,000 trials.
    fn default() -> Self {
        Limits { file_bytes: 64 << 20, bytes: 256 << 20, depth: 32, trials: 1_000_000 }
    }
}

/// Reads a file, unpacking gzip (told by its first two bytes).
///
/// # Errors
/// The file can't be read, is over a limit, or its gzip stream is damaged.
pub fn read(path: &Path, limits: &Limits) -> Result<Vec<u8>, ImportError> {
    let io = |error| ImportError::Io { path: path.display().to_string(), error };
    let file = std::fs::File::open(path).map_err(io)?;
    if !file.metadata().map_err(io)?.is_file() {
        return Err(ImportError::Unknown("not a regular file".to_string()));
    }
    let raw = limited(file, limits.file_bytes, "the file").map_err(|e| match e {
        Failed::Io(error) => io(error),
        Failed::Limit(error) => error,
    })?;
    unpack(raw, limits)
}

/// Unpacks bytes if they are gzip.
///
/// # Errors
/// More bytes than the limit, or a damaged stream.
pub fn unpack(raw: Vec<u8>, limits: &Limits) -> Result<Vec<u8>, ImportError> {
    if !raw.starts_with(&[0x1f, 0x8b]) {
        return Ok(raw);
    }
    let decoder = flate2::read::MultiGzDecoder::new(raw.as_slice());
    limited(decoder, limits.bytes, "the unpacked file").map_err(|e| match e {
        Failed::Io(error) => ImportError::Gzip(error.to_string()),
        Failed::Limit(error) => error,
    })
}

enum Failed {
    Io(std::io::Error),
    Limit(ImportError),
}

/// Reads to the end, but never keeps more than one byte over the limit.
fn limited(source: impl Read, limit: u64, what: &'static str) -> Result<Vec<u8>, Failed> {
    let mut bytes = Vec::new();
    source.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(Failed::Io)?;
    if bytes.len() as u64 > limit {
        return Err(Failed::Limit(ImportError::TooLarge { what, limit }));
    }
    Ok(bytes)
}

/// Parses JSON of limited depth. `NaN`, `Infinity` and `-Infinity`, which Python writes, are read
/// as null.
///
/// # Errors
/// Too large, too deep, or not JSON.
pub fn json(bytes: &[u8], limits: &Limits) -> Result<Value, ImportError> {
    if bytes.len() as u64 > limits.bytes {
        return Err(ImportError::TooLarge { what: "the file", limit: limits.bytes });
    }
    let odd = scan(bytes, limits.depth)?;
    let parsed = if odd.is_empty() {
        serde_json::from_slice(bytes)
    } else {
        let mut plain = Vec::with_capacity(bytes.len() + odd.len());
        let mut done = 0;
        for (at, length) in odd {
            plain.extend_from_slice(&bytes[done..at]);
            plain.extend_from_slice(b"null");
            done = at + length;
        }
        plain.extend_from_slice(&bytes[done..]);
        serde_json::from_slice(&plain)
    };
    parsed.map_err(|e| ImportError::Json(e.to_string()))
}

/// Checks the depth outside of strings, and finds the words that JSON doesn't know.
fn scan(bytes: &[u8], limit: usize) -> Result<Vec<(usize, usize)>, ImportError> {
    let mut odd = Vec::new();
    let (mut depth, mut at) = (0usize, 0usize);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at += 1;
                while let Some(inner) = bytes.get(at) {
                    match inner {
                        b'"' => break,
                        b'\\' => at += 1,
                        _ => {}
                    }
                    at += 1;
                }
            }
            b'[' | b'{' => {
                depth += 1;
                if depth > limit {
                    return Err(ImportError::TooDeep { limit, offset: at });
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'N' | b'I' | b'-' => {
                let rest = &bytes[at..];
                let words: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];
                if let Some(word) = words.iter().find(|w| rest.starts_with(w)) {
                    odd.push((at, word.len()));
                    at += word.len() - 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    Ok(odd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn limits() -> Limits {
        Limits { file_bytes: 100, bytes: 1000, depth: 4, trials: 10 }
    }

    #[test]
    fn words_of_python_are_null() {
        let text = br#"{"a": NaN, "b": [-Infinity, Infinity, 1], "c": "NaN", "d": ""}"#;
        let value = json(text, &limits());
        let want = serde_json::json!({"a": null, "b": [null, null, 1], "c": "NaN", "d": ""});
        assert_eq!(value.unwrap(), want);
        let plain = json(br#"{"a": -1, "b": ""}"#, &limits()).unwrap();
        assert_eq!(plain, serde_json::json!({"a": -1, "b": ""}));
    }

    #[test]
    fn depth_is_limited_outside_of_strings() {
        assert!(json(b"[[[[1]]]]", &limits()).is_ok());
        let deep = json(b"[[[[[1]]]]]", &limits());
        assert!(matches!(deep, Err(ImportError::TooDeep { limit: 4, offset: 4 })));
        assert!(json(br#"["[[[[[[", "\"[[[[["]"#, &limits()).is_ok());
        // Far deeper than any stack.
        let bomb = vec![b'['; 999];
        assert!(matches!(json(&bomb, &limits()), Err(ImportError::TooDeep { .. })));
    }

    #[test]
    fn size_is_limited_before_and_after_unpacking() {
        let pack = |bytes: &[u8]| {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        assert_eq!(unpack(pack(b"[1]"), &limits()).unwrap(), b"[1]");
        let bomb = unpack(pack(&vec![b' '; 5000]), &limits());
        assert!(matches!(bomb, Err(ImportError::TooLarge { limit: 1000, .. })));
        let packed = pack(b"[1, 2, 3, 4, 5, 6, 7, 8, 9]");
        let cut = unpack(packed[..packed.len() - 9].to_vec(), &limits());
        assert!(matches!(cut, Err(ImportError::Gzip(_))), "{cut:?}");
        assert!(matches!(
            limited([0u8; 101].as_slice(), 100, "it"),
            Err(Failed::Limit(ImportError::TooLarge { limit: 100, .. }))
        ));
    }

    #[test]
    fn damaged_json_is_an_error() {
        for bad in [&b"{\"a\": "[..], b"", b"[1,]", b"{\"a\" 1}", b"\"open", b"[1] x", b"\\"] {
            assert!(matches!(json(bad, &limits()), Err(ImportError::Json(_))), "{bad:?}");
        }
    }
}
