//! The ledger: what happened in which order, each entry chained to the one before by its hash.

use crate::canonical::{canonical, is_hash, sha256};
use crate::error::StudyError;
use crate::store::Store;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of the file.
pub const FILE: &str = "ledger.jsonl";

/// An entry.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// What the kind says: strings, integers, booleans, null, lists, objects.
    pub body: Value,
    /// SHA-256 of the canonical entry without this member.
    pub hash: String,
    /// Position, from 0.
    pub index: u64,
    /// What happened.
    pub kind: Kind,
    /// Hash of the entry before, zeros for the first.
    pub prev: String,
}

/// What an entry records.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The record was begun.
    Open,
    /// A training case was searched.
    Search,
    /// Profiles were fitted.
    Calibration,
    /// Protocol and plans of the hold-out were fixed.
    Freeze,
    /// A hold-out case was labelled.
    Labels,
    /// A replay round was measured.
    Replay,
    /// Results were derived.
    Results,
    /// A difference was recorded instead of refused.
    Change,
}

/// An entry as it is hashed.
#[derive(Serialize)]
struct Hashed<'a> {
    body: &'a Value,
    index: u64,
    kind: Kind,
    prev: &'a str,
}

impl Entry {
    fn new(body: Value, index: u64, kind: Kind, prev: String) -> Result<Self, StudyError> {
        let hash = hash(&body, index, kind, &prev)?;
        Ok(Entry { body, hash, index, kind, prev })
    }

    /// A string of the body.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.body.get(name).and_then(Value::as_str)
    }

    /// A number of the body.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.body.get(name).and_then(Value::as_u64)
    }
}

fn hash(body: &Value, index: u64, kind: Kind, prev: &str) -> Result<String, StudyError> {
    Ok(sha256(canonical(&Hashed { body, index, kind, prev })?.as_bytes()))
}

/// Hash before the first entry.
fn genesis() -> String {
    "0".repeat(64)
}

/// The entries of a record.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Ledger {
    entries: Vec<Entry>,
}

impl Ledger {
    /// Reads and verifies the ledger of a record; empty where there is none. A torn last line,
    /// which only a kill in the middle of a write leaves, is cut off.
    ///
    /// # Errors
    /// An entry was changed, moved or removed; the file can't be read.
    pub fn read(store: &Store) -> Result<Self, StudyError> {
        let Some(lines) = store.lines(FILE)? else { return Ok(Ledger::default()) };
        let whole: String = lines.iter().map(|l| format!("{l}\n")).collect();
        let ledger = Ledger::parse(&whole)
            .map_err(|message| StudyError::record(&store.path(FILE), message))?;
        if store.read(FILE)?.len() != whole.len() {
            store.write(FILE, whole.as_bytes())?;
        }
        Ok(ledger)
    }

    /// Parses and verifies the text of a ledger.
    ///
    /// # Errors
    /// Names the first entry that breaks the chain.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut ledger = Ledger::default();
        for (at, line) in text.lines().enumerate() {
            let entry: Entry =
                serde_json::from_str(line).map_err(|e| format!("ledger entry {at}: {e}"))?;
            if entry.index != at as u64 {
                return Err(format!("ledger entry {at} has index {}", entry.index));
            }
            if entry.prev != ledger.last_hash() {
                return Err(format!("ledger entry {at} doesn't follow the entry before it"));
            }
            let found = hash(&entry.body, entry.index, entry.kind, &entry.prev)
                .map_err(|e| e.to_string())?;
            if entry.hash != found {
                return Err(format!("ledger entry {at} was changed: its hash should be {found}"));
            }
            ledger.entries.push(entry);
        }
        Ok(ledger)
    }

    /// Adds an entry and brings it to the disk. Returns its hash.
    ///
    /// # Errors
    /// The body holds a float, or the file can't be written; nothing is added then.
    pub fn append(&mut self, store: &Store, kind: Kind, body: Value) -> Result<&Entry, StudyError> {
        if has_float(&body) {
            return Err(StudyError::record(&store.path(FILE), "a float in a ledger entry"));
        }
        let entry = Entry::new(body, self.entries.len() as u64, kind, self.last_hash())?;
        store.append(FILE, &canonical(&entry)?)?;
        self.entries.push(entry);
        // Just pushed.
        Ok(&self.entries[self.entries.len() - 1])
    }

    /// Every entry in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Hash of the last entry.
    pub fn last_hash(&self) -> String {
        self.entries.last().map_or_else(genesis, |e| e.hash.clone())
    }

    /// Entries of a kind.
    pub fn of(&self, kind: Kind) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.iter().filter(move |e| e.kind == kind)
    }

    /// The last freeze.
    pub fn freeze(&self) -> Option<&Entry> {
        self.of(Kind::Freeze).next_back()
    }

    /// The entry of a case's file: for labels, under the given freeze.
    pub fn case(&self, kind: Kind, case: &str, freeze: Option<&str>) -> Option<&Entry> {
        self.of(kind).rfind(|e| {
            e.text("case") == Some(case) && (freeze.is_none() || e.text("freeze") == freeze)
        })
    }

    /// The entry of a replay round under a freeze.
    pub fn round(&self, round: u64, freeze: &str) -> Option<&Entry> {
        self.of(Kind::Replay)
            .rfind(|e| e.number("round") == Some(round) && e.text("freeze") == Some(freeze))
    }

    /// Whether a file is recorded and unchanged.
    ///
    /// # Errors
    /// It is recorded, but missing or changed.
    pub fn check_file(&self, store: &Store, entry: &Entry) -> Result<(), StudyError> {
        let (Some(file), Some(expected)) = (entry.text("file"), entry.text("sha256")) else {
            return Ok(());
        };
        let path = store.path(file);
        let found = sha256(&store.read(file)?);
        if !is_hash(expected) || found != expected {
            let message = format!("its hash is {found}, the ledger says {expected}");
            return Err(StudyError::record(&path, message));
        }
        Ok(())
    }
}

fn has_float(value: &Value) -> bool {
    match value {
        Value::Number(n) => n.as_i64().is_none() && n.as_u64().is_none(),
        Value::Array(items) => items.iter().any(has_float),
        Value::Object(members) => members.values().any(has_float),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn store(name: &str) -> Store {
        let dir =
            std::env::temp_dir().join(format!("tilewright-ledger-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Store::open(&dir).unwrap()
    }

    fn filled(name: &str) -> (Store, Ledger) {
        let store = store(name);
        let mut ledger = Ledger::default();
        ledger.append(&store, Kind::Open, json!({"format": 1})).unwrap();
        for case in ["a", "b"] {
            let sha256 = store.write_json(&format!("search/{case}.json"), &json!({})).unwrap();
            let file = format!("search/{case}.json");
            let body = json!({"case": case, "file": file, "sha256": sha256});
            ledger.append(&store, Kind::Search, body).unwrap();
        }
        ledger.append(&store, Kind::Freeze, json!({"number": 1})).unwrap();
        (store, ledger)
    }

    #[test]
    fn it_reads_back_and_finds_its_entries() {
        let (store, ledger) = filled("read");
        assert_eq!(Ledger::read(&store).unwrap(), ledger);
        let entry = ledger.case(Kind::Search, "b", None).unwrap();
        assert_eq!(entry.index, 2);
        ledger.check_file(&store, entry).unwrap();
        store.write("search/b.json", b"{\"x\":1}\n").unwrap();
        let error = ledger.check_file(&store, entry).unwrap_err().to_string();
        assert!(error.contains("the ledger says"), "{error}");
        assert!(ledger.case(Kind::Labels, "b", None).is_none());
        assert_eq!(ledger.freeze().unwrap().number("number"), Some(1));
        let mut ledger = ledger;
        assert!(ledger.append(&store, Kind::Change, json!({"x": [0.5]})).is_err());
        std::fs::remove_dir_all(store.dir()).unwrap();
    }

    #[test]
    fn edits_moves_and_removals_break_the_chain() {
        let (store, _) = filled("chain");
        let text = String::from_utf8(store.read(FILE).unwrap()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let broken = |lines: &[&str]| Ledger::parse(&lines.join("\n")).unwrap_err();
        assert!(Ledger::parse(&text).is_ok());
        assert!(broken(&[lines[0], lines[2], lines[1], lines[3]]).contains("index"));
        assert!(broken(&[lines[0], lines[2], lines[3]]).contains("index"));
        let edited = lines[1].replace("\"a\"", "\"c\"");
        assert!(broken(&[lines[0], &edited]).contains("was changed"));
        let moved = lines[2].replace("\"index\":2", "\"index\":1");
        assert!(broken(&[lines[0], &moved, lines[2]]).contains("doesn't follow"));
        std::fs::remove_dir_all(store.dir()).unwrap();
    }

    #[test]
    fn a_torn_entry_is_cut_off_and_the_next_one_follows() {
        let (store, mut ledger) = filled("torn");
        let whole = store.read(FILE).unwrap();
        let torn = [&whole[..], b"{\"body\":{\"ca"].concat();
        std::fs::write(store.path(FILE), torn).unwrap();
        assert_eq!(Ledger::read(&store).unwrap(), ledger);
        assert_eq!(store.read(FILE).unwrap(), whole);
        ledger.append(&store, Kind::Results, json!({})).unwrap();
        assert_eq!(Ledger::read(&store).unwrap(), ledger);
        std::fs::remove_dir_all(store.dir()).unwrap();
    }
}
