//! Reading a record: every file within the limits, its hash against the ledger, its JSON
//! canonical, its strings harmless.

use super::types::*;
use crate::canonical;
use crate::read::{Limits, read_bytes, read_json};
use crate::verdict::{Checks, Rule};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A record, as far as it could be read.
#[derive(Debug, Default)]
pub struct Record {
    root: PathBuf,
    /// The ledger, in the order of the file.
    pub ledger: Vec<Entry>,
    /// Hash of every file that was read, by its path in the record.
    pub hashes: BTreeMap<String, String>,
    /// study.toml.
    pub study: Option<String>,
    /// machine.json.
    pub machine: Option<Machine>,
    /// Training cases, in the order of the ledger.
    pub searches: Vec<Search>,
    /// Families, in the order of the ledger.
    pub calibrations: Vec<Calibration>,
    /// profile.json.
    pub profile: Option<Profile>,
    /// protocol.json.
    pub protocol: Option<ProtocolFile>,
    /// Frozen plans of the last freeze, in the order of the ledger.
    pub frozen: Vec<Frozen>,
    /// Hold-out cases with the hash of their freeze, in the order of the ledger.
    pub labels: Vec<(String, Search)>,
    /// Replay rounds, in the order of the ledger.
    pub rounds: Vec<Round>,
    /// results.json.
    pub results: Option<Value>,
    /// Kernel texts that are there, by the hash in their name.
    pub kernels: BTreeSet<String>,
}

/// Whether a case id is one that may be a file name.
pub fn safe_id(id: &str) -> bool {
    let allowed =
        |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    !id.is_empty() && id.len() <= 200 && !id.starts_with('.') && id.bytes().all(allowed)
}

/// Whether a path stays in the record: safe names joined by slashes.
pub fn safe_path(path: &str) -> bool {
    path.split('/').all(safe_id)
}

impl Record {
    /// Reads the record in `root`. What can't be read is missing from it, and a failure.
    pub fn load(root: &Path, limits: &Limits, checks: &mut Checks) -> Record {
        let mut record = Record { root: root.to_path_buf(), ..Record::default() };
        record.read_ledger(limits, checks);
        record.read_named(limits, checks);
        record.look_around(limits, checks);
        record
    }

    /// Whether the quick part of the study file was used.
    pub fn quick(&self) -> bool {
        let open = self.ledger.first();
        open.is_some_and(|e| e.body.get("quick").and_then(Value::as_bool) == Some(true))
    }

    /// Hash of the last freeze entry.
    pub fn freeze(&self) -> Option<&Entry> {
        self.ledger.iter().rev().find(|e| e.kind == "freeze")
    }

    /// Entries of a kind.
    pub fn entries<'a>(&'a self, kind: &'a str) -> impl DoubleEndedIterator<Item = &'a Entry> {
        self.ledger.iter().filter(move |e| e.kind == kind)
    }

    /// Labels of the last freeze.
    pub fn current_labels(&self) -> impl Iterator<Item = &Search> {
        let freeze = self.freeze().map(|e| e.hash.as_str());
        self.labels.iter().filter(move |l| Some(l.0.as_str()) == freeze).map(|l| &l.1)
    }

    /// Labels of a case of the last freeze.
    pub fn label(&self, id: &str) -> Option<&Search> {
        self.current_labels().find(|s| s.case.id == id)
    }

    /// Rounds of the last freeze.
    pub fn current_rounds(&self) -> impl Iterator<Item = &Round> {
        let freeze = self.freeze().map(|e| e.hash.as_str());
        self.rounds.iter().filter(move |r| Some(r.freeze.as_str()) == freeze)
    }

    /// The frozen plans of a case.
    pub fn frozen(&self, id: &str) -> Option<&Frozen> {
        self.frozen.iter().find(|f| f.case.id() == id)
    }

    /// Whether the record says that something differed: a `change` entry of this `what` (and
    /// case).
    pub fn changed(&self, what: &str, case: Option<&str>) -> bool {
        self.entries("change")
            .any(|e| e.text("what") == Some(what) && (case.is_none() || e.text("case") == case))
    }

    fn bytes(&mut self, path: &str, limits: &Limits, checks: &mut Checks) -> Option<Vec<u8>> {
        if !safe_path(path) {
            checks.fail(Rule::NamesSafe, format!("the file name {path:?}"));
            return None;
        }
        let read = read_bytes(&self.root.join(path), limits);
        checks.that(Rule::FilesRead, read.is_ok(), || match &read {
            Err(error) => format!("{path} {error}"),
            Ok(_) => String::new(),
        });
        let bytes = read.ok()?;
        self.hashes.insert(path.to_string(), canonical::hash(&bytes));
        Some(bytes)
    }

    fn value(&mut self, path: &str, limits: &Limits, checks: &mut Checks) -> Option<Value> {
        let bytes = self.bytes(path, limits, checks)?;
        let value = parse(path, &bytes, limits, checks)?;
        let canonical = canonical::text(&value) + "\n";
        checks.that(Rule::FilesCanonical, canonical.as_bytes() == bytes, || {
            format!("{path} {}", first_difference(canonical.as_bytes(), &bytes))
        });
        check_strings(path, &value, checks);
        Some(value)
    }

    fn json<T: DeserializeOwned>(
        &mut self,
        path: &str,
        schema: &str,
        limits: &Limits,
        checks: &mut Checks,
    ) -> Option<T> {
        let value = self.value(path, limits, checks)?;
        let stated = value.get("schema").and_then(Value::as_str);
        checks.that(Rule::FilesSchema, stated == Some(schema), || {
            format!("{path}: `schema` is {stated:?}, not {schema:?}")
        });
        typed(path, value, checks)
    }

    fn read_ledger(&mut self, limits: &Limits, checks: &mut Checks) {
        let Some(bytes) = self.bytes("ledger.jsonl", limits, checks) else { return };
        let Ok(text) = std::str::from_utf8(&bytes) else {
            checks.fail(Rule::FilesRead, "ledger.jsonl isn't UTF-8 text");
            return;
        };
        checks.that(Rule::FilesCanonical, text.is_empty() || text.ends_with('\n'), || {
            "ledger.jsonl: the last line is cut".to_string()
        });
        for (index, line) in text.lines().enumerate() {
            let place = format!("ledger.jsonl entry {index}");
            let Some(value) = parse(&place, line.as_bytes(), limits, checks) else { continue };
            checks.that(Rule::FilesCanonical, canonical::text(&value) == line, || place.clone());
            check_strings(&place, &value, checks);
            if let Some(entry) = typed(&place, value, checks) {
                self.ledger.push(entry);
            }
        }
    }

    /// Reads every file that the ledger names, and those at fixed places whose hash it states.
    fn read_named(&mut self, limits: &Limits, checks: &mut Checks) {
        let study = self.bytes("study.toml", limits, checks).map(String::from_utf8);
        if matches!(study, Some(Err(_))) {
            checks.fail(Rule::FilesRead, "study.toml isn't UTF-8 text");
        }
        self.study = study.and_then(Result::ok);
        self.machine = self.json("machine.json", "tilewright-machine-v1", limits, checks);
        let has = |kind: &str| self.ledger.iter().any(|e| e.kind == kind);
        let (calibrated, frozen) = (has("calibration"), has("freeze"));
        if calibrated {
            self.profile = self.json("profile.json", "tilewright-profile-v1", limits, checks);
        }
        if frozen {
            self.protocol = self.json("protocol.json", "tilewright-protocol-v1", limits, checks);
        }
        let last_freeze = self.freeze().map(|e| e.hash.clone());
        let mut files = 0usize;
        for entry in self.ledger.clone() {
            for (path, _) in named_files(&entry) {
                files += 1;
                if files > limits.files {
                    checks.fail(Rule::FilesRead, format!("more than {} files", limits.files));
                    return;
                }
                if self.hashes.contains_key(&path) {
                    continue;
                }
                match entry.kind.as_str() {
                    "search" => {
                        let file = self.json(&path, "tilewright-search-v1", limits, checks);
                        self.searches.extend(file);
                    }
                    "labels" => {
                        let file = self.json(&path, "tilewright-search-v1", limits, checks);
                        let freeze = entry.text("freeze").unwrap_or_default();
                        self.labels.extend(file.map(|f| (freeze.to_string(), f)));
                    }
                    "calibration" => {
                        let file = self.json(&path, "tilewright-calibration-v1", limits, checks);
                        self.calibrations.extend(file);
                    }
                    "freeze" => {
                        let file = self.json(&path, "tilewright-frozen-v1", limits, checks);
                        if last_freeze.as_ref() == Some(&entry.hash) {
                            self.frozen.extend(file);
                        }
                    }
                    "replay" => {
                        let file = self.json(&path, "tilewright-replay-v1", limits, checks);
                        self.rounds.extend(file);
                    }
                    "results" => {
                        self.results = self.json(&path, "tilewright-results-v1", limits, checks);
                    }
                    _ => {
                        self.bytes(&path, limits, checks);
                    }
                }
            }
        }
    }

    /// Lists the directory: kernel texts, and files that the ledger doesn't name.
    fn look_around(&mut self, limits: &Limits, checks: &mut Checks) {
        let mut found = Vec::new();
        if let Err(error) = list(&self.root, "", limits, &mut found) {
            checks.fail(Rule::FilesRead, format!("the directory {error}"));
        }
        for path in found {
            let (folder, name) = path.split_once('/').unwrap_or(("", &path));
            match folder {
                "kernels" => {
                    let Some(bytes) = self.bytes(&path, limits, checks) else { continue };
                    let stated = name.strip_suffix(".txt").unwrap_or_default();
                    let own = canonical::hash(&bytes);
                    checks.that(Rule::FrozenKernels, own == stated, || {
                        format!("{path}: the text's hash is {own}")
                    });
                    self.kernels.insert(own);
                }
                // What was interrupted counts for nothing (`rules::interruptions`).
                "interrupted" => {}
                "journal" => {
                    checks.fail(Rule::LedgerFinished, format!("{path}: work in progress"));
                }
                _ if path == "interruptions.jsonl" || is_report(&path) => {}
                _ => checks.that(Rule::FilesNamed, self.hashes.contains_key(&path), || {
                    format!("{path} is named by no entry of the ledger")
                }),
            }
        }
    }

    /// Bytes of a file that the record may have, read now.
    pub fn optional(&self, path: &str, limits: &Limits) -> Option<Vec<u8>> {
        if !safe_path(path) {
            return None;
        }
        read_bytes(&self.root.join(path), limits).ok()
    }
}

/// Reports that `tilewright report` puts into a record; they are no part of it.
fn is_report(path: &str) -> bool {
    matches!(path, "report.md" | "report.html")
}

/// Paths and hashes that an entry states.
pub fn named_files(entry: &Entry) -> Vec<(String, String)> {
    let pair = |value: &Value| {
        let file = value.get("file")?.as_str()?;
        Some((file.to_string(), value.get("sha256")?.as_str()?.to_string()))
    };
    let list = match entry.kind.as_str() {
        "calibration" => entry.body.get("families"),
        "freeze" => entry.body.get("plans"),
        _ => return pair(&entry.body).into_iter().collect(),
    };
    list.and_then(Value::as_array).into_iter().flatten().filter_map(pair).collect()
}

fn parse(path: &str, bytes: &[u8], limits: &Limits, checks: &mut Checks) -> Option<Value> {
    match read_json(bytes, limits) {
        Ok(value) => Some(value),
        Err(error) => {
            checks.fail(Rule::FilesRead, format!("{path} {error}"));
            None
        }
    }
}

fn typed<T: DeserializeOwned>(path: &str, value: Value, checks: &mut Checks) -> Option<T> {
    let typed = serde_json::from_value(value);
    checks.that(Rule::FilesSchema, typed.is_ok(), || match &typed {
        Err(error) => format!("{path}: {error}"),
        Ok(_) => String::new(),
    });
    typed.ok()
}

fn first_difference(a: &[u8], b: &[u8]) -> String {
    let at = a.iter().zip(b).position(|(a, b)| a != b).unwrap_or(a.len().min(b.len()));
    format!("differs from its canonical form at byte {at}")
}

/// Names hold no markup; no text holds an absolute path.
fn check_strings(place: &str, value: &Value, checks: &mut Checks) {
    let mut stack: Vec<(&str, &Value)> = vec![("", value)];
    while let Some((key, value)) = stack.pop() {
        match value {
            Value::String(text) => {
                // Messages may quote anything: reports escape them.
                let prose = matches!(key, "message" | "reason" | "abstains");
                let bad = |c: char| c.is_control() || (!prose && matches!(c, '<' | '>' | '&'));
                checks.that(Rule::NamesSafe, !text.contains(bad), || {
                    format!("{place}: `{key}` is {text:?}")
                });
                checks.that(Rule::NamesPrivate, !has_absolute_path(text), || {
                    format!("{place}: `{key}` is {text:?}")
                });
            }
            Value::Array(items) => stack.extend(items.iter().map(|item| (key, item))),
            Value::Object(members) => {
                for (key, item) in members {
                    let bad = |c: char| c.is_control() || matches!(c, '<' | '>' | '&');
                    checks.that(Rule::NamesSafe, !key.contains(bad), || {
                        format!("{place}: the key {key:?}")
                    });
                    stack.push((key, item));
                }
            }
            _ => {}
        }
    }
}

/// Whether a text holds a path from the root of a file system of two names or more.
fn has_absolute_path(text: &str) -> bool {
    let word = |c: char| !c.is_whitespace() && !matches!(c, '"' | '\'' | '`' | '(' | ')' | ',');
    text.split(|c| !word(c)).any(|word| {
        let unix = word.strip_prefix('/').is_some_and(|rest| {
            let mut names = rest.split('/');
            let name = |n: Option<&str>| {
                n.is_some_and(|n| n.starts_with(|c: char| c.is_alphanumeric() || c == '.'))
            };
            name(names.next()) && name(names.next())
        });
        let mut windows = word.chars();
        let drive = windows.next().is_some_and(|c| c.is_ascii_alphabetic());
        unix || (drive && (word.get(1..3) == Some(":\\") || word.get(1..3) == Some(":/")))
    })
}

/// Files under a directory, sorted, as paths joined by slashes.
fn list(
    root: &Path,
    prefix: &str,
    limits: &Limits,
    out: &mut Vec<String>,
) -> Result<(), std::io::Error> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root.join(prefix))? {
        let entry = entry?;
        // A name that isn't UTF-8 becomes one that no ledger names.
        let name = entry.file_name().to_string_lossy().into_owned();
        names.push((name, entry.file_type()?.is_dir()));
        if names.len() + out.len() > limits.files {
            return Err(std::io::Error::other(format!("has more than {} files", limits.files)));
        }
    }
    names.sort();
    for (name, is_directory) in names {
        let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        if is_directory && path.matches('/').count() < 3 {
            list(root, &path, limits, out)?;
        } else {
            out.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_leave_neither_the_record_nor_the_alphabet() {
        for good in ["search/softmax-f32-37x1537.json", "replay/round-00.json", "a.b_c"] {
            assert!(safe_path(good), "{good}");
        }
        for bad in ["", "/etc/passwd", "../x", "a/../b", "a//b", ".x", "A", "a b", "a\\b", "a<b"] {
            assert!(!safe_path(bad), "{bad}");
        }
    }

    #[test]
    fn absolute_paths_are_found_and_others_left_alone() {
        for bad in ["/home/me/x", "can't open '/usr/lib/x.so': no", "C:\\Users\\me", "D:/x"] {
            assert!(has_absolute_path(bad), "{bad}");
        }
        for good in ["GB/s", "a/b/c", "1/2", "32 MiB/core", "softmax / rows", "error: 5", "//"] {
            assert!(!has_absolute_path(good), "{good}");
        }
    }
}
