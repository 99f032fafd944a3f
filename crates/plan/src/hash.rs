//! Stable SHA-256 hashes over canonical text, the same on every machine and in every process.

use std::fmt;

use sha2::{Digest, Sha256};

/// A SHA-256 hash; prints as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash256([u8; 32]);

impl Hash256 {
    /// The hash of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Hash256(Sha256::digest(bytes).into())
    }

    /// The hash that 64 hexadecimal digits are, if they are one.
    pub fn from_hex(text: &str) -> Option<Self> {
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0u8; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
        }
        Some(Hash256(bytes))
    }

    /// The 32 bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Hash256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Collects named facts in a fixed order, one a line, and hashes them.
///
/// Text is written with its length, so that no value can imitate a line break; floats are written
/// by their bits.
#[derive(Clone, Debug, Default)]
pub struct Canonical {
    text: String,
}

impl Canonical {
    /// Starts a record of the given kind.
    pub fn new(kind: &str) -> Self {
        let mut canonical = Canonical::default();
        canonical.text("kind", kind);
        canonical
    }

    /// A text fact.
    pub fn text(&mut self, name: &str, value: &str) -> &mut Self {
        self.text.push_str(&format!("{name}:{}={value}\n", value.len()));
        self
    }

    /// An integer fact.
    pub fn integer(&mut self, name: &str, value: u64) -> &mut Self {
        self.text.push_str(&format!("{name}={value}\n"));
        self
    }

    /// A fact that may be missing; a missing one differs from every number.
    pub fn optional(&mut self, name: &str, value: Option<u64>) -> &mut Self {
        match value {
            Some(value) => self.integer(name, value),
            None => {
                self.text.push_str(&format!("{name}=unknown\n"));
                self
            }
        }
    }

    /// A list of integers.
    pub fn list(&mut self, name: &str, values: impl IntoIterator<Item = u64>) -> &mut Self {
        let values: Vec<String> = values.into_iter().map(|v| v.to_string()).collect();
        self.text.push_str(&format!("{name}=[{}]\n", values.join(",")));
        self
    }

    /// A float fact, by its bits.
    pub fn float(&mut self, name: &str, value: f64) -> &mut Self {
        self.text.push_str(&format!("{name}=0x{:016x}\n", value.to_bits()));
        self
    }

    /// The text so far.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The hash of the text so far.
    pub fn hash(&self) -> Hash256 {
        Hash256::of(self.text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_the_published_sha256() {
        // FIPS 180-4 example "abc".
        assert_eq!(
            Hash256::of(b"abc").to_string(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn values_cannot_imitate_lines() {
        let mut a = Canonical::new("t");
        a.text("x", "1\ny:1=2");
        let mut b = Canonical::new("t");
        b.text("x", "1").text("y", "2");
        assert_ne!(a.hash(), b.hash());
    }
}
