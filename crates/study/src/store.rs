//! Files of a record. A file appears whole or not at all: it is written under another name,
//! brought to the disk, and renamed. Measurements in progress go to a journal, line by line.

use crate::canonical::{canonical, sha256};
use crate::error::StudyError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Largest file of a record that is read.
const MAX_FILE: u64 = 256 << 20;

/// Ending of files that are being written.
const UNFINISHED: &str = "tmp";

/// A record's directory, locked against other processes while this value lives.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    /// Holds the lock; the system lets go of it when the process dies.
    _lock: File,
}

impl Store {
    /// Opens a directory, making it if there is none.
    ///
    /// # Errors
    /// It can't be made or written to, or another process has it open.
    pub fn open(dir: &Path) -> Result<Self, StudyError> {
        fs::create_dir_all(dir).map_err(|e| StudyError::io("make the folder", dir, e))?;
        // The folder itself carries the lock, so that a record has no file for it.
        let lock = File::open(dir).map_err(|e| StudyError::io("open the folder", dir, e))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Err(StudyError::Busy(dir.display().to_string()));
            }
            Err(fs::TryLockError::Error(e)) => return Err(StudyError::io("lock", dir, e)),
        }
        let store = Store { dir: dir.to_path_buf(), _lock: lock };
        store.sweep(dir)?;
        Ok(store)
    }

    /// Removes what writes that never finished have left.
    fn sweep(&self, dir: &Path) -> Result<(), StudyError> {
        let entries = fs::read_dir(dir).map_err(|e| StudyError::io("read the folder", dir, e))?;
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                self.sweep(&path)?;
            } else if path.extension().is_some_and(|e| e == UNFINISHED) {
                fs::remove_file(&path).map_err(|e| StudyError::io("remove", &path, e))?;
            }
        }
        Ok(())
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The path of a file of the record.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Whether a file exists.
    pub fn has(&self, name: &str) -> bool {
        self.path(name).is_file()
    }

    /// Writes a file whole, or leaves everything as it was. Returns its hash.
    ///
    /// # Errors
    /// The system refuses: no space, no permission.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<String, StudyError> {
        let path = self.path(name);
        let parent = path.parent().unwrap_or(&self.dir).to_path_buf();
        fs::create_dir_all(&parent).map_err(|e| StudyError::io("make the folder", &parent, e))?;
        let mut unfinished = path.clone().into_os_string();
        unfinished.push(format!(".{UNFINISHED}"));
        let unfinished = PathBuf::from(unfinished);
        let written = File::create(&unfinished)
            .and_then(|mut file| {
                file.write_all(bytes)?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&unfinished, &path))
            .and_then(|()| File::open(&parent)?.sync_all());
        written.map_err(|e| {
            // The error at hand matters more than one of cleaning up.
            let _ = fs::remove_file(&unfinished);
            StudyError::io("write", &path, e)
        })?;
        Ok(sha256(bytes))
    }

    /// Writes a value as canonical JSON with a line feed. Returns the file's hash.
    ///
    /// # Errors
    /// As [`Store::write`]; the value has no canonical form.
    pub fn write_json(&self, name: &str, value: &impl Serialize) -> Result<String, StudyError> {
        self.write(name, format!("{}\n", canonical(value)?).as_bytes())
    }

    /// The bytes of a file.
    ///
    /// # Errors
    /// It can't be read or is larger than any file of a record.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, StudyError> {
        let path = self.path(name);
        let size = fs::metadata(&path).map_err(|e| StudyError::io("read", &path, e))?.len();
        if size > MAX_FILE {
            let message = format!("{size} bytes, at most {MAX_FILE}");
            return Err(StudyError::record(&path, message));
        }
        fs::read(&path).map_err(|e| StudyError::io("read", &path, e))
    }

    /// A JSON file's value and the file's hash.
    ///
    /// # Errors
    /// As [`Store::read`]; the file isn't of the expected form.
    pub fn read_json<T: DeserializeOwned>(&self, name: &str) -> Result<(T, String), StudyError> {
        let bytes = self.read(name)?;
        let value = serde_json::from_slice(&bytes)
            .map_err(|e| StudyError::record(&self.path(name), e.to_string()))?;
        Ok((value, sha256(&bytes)))
    }

    /// Removes a file, if there is one.
    ///
    /// # Errors
    /// The system refuses.
    pub fn remove(&self, name: &str) -> Result<(), StudyError> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(StudyError::io("remove", &path, e))
            }
            _ => Ok(()),
        }
    }

    /// Removes a folder with what is in it, if there is one.
    ///
    /// # Errors
    /// The system refuses.
    pub fn remove_folder(&self, name: &str) -> Result<(), StudyError> {
        let path = self.path(name);
        match fs::remove_dir_all(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(StudyError::io("remove", &path, e))
            }
            _ => Ok(()),
        }
    }

    /// Adds a line to a file, whole or not at all.
    ///
    /// # Errors
    /// The system refuses; the file is as long as before then.
    pub fn append(&self, name: &str, line: &str) -> Result<(), StudyError> {
        let path = self.path(name);
        let fail = |e| StudyError::io("write", &path, e);
        let mut file = OpenOptions::new().create(true).append(true).open(&path).map_err(fail)?;
        let before = file.metadata().map_err(fail)?.len();
        let written = file.write_all(format!("{line}\n").as_bytes()).and_then(|()| file.sync_all());
        written.map_err(|e| {
            let _ = file.set_len(before);
            fail(e)
        })
    }

    /// The complete lines of a file; a torn last line is left out. `None` without the file.
    ///
    /// # Errors
    /// It can't be read or isn't UTF-8.
    pub fn lines(&self, name: &str) -> Result<Option<Vec<String>>, StudyError> {
        if !self.has(name) {
            return Ok(None);
        }
        let bytes = self.read(name)?;
        let end = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let text = std::str::from_utf8(&bytes[..end])
            .map_err(|e| StudyError::record(&self.path(name), e.to_string()))?;
        Ok(Some(text.lines().map(str::to_string).collect()))
    }

    /// Starts the journal of a unit of work such as `search/CASE/round-0`. An older journal of
    /// the unit is what an interruption left: it is put aside, with a line in
    /// `interruptions.jsonl`.
    ///
    /// # Errors
    /// The system refuses.
    pub fn journal(&self, unit: &str) -> Result<Journal, StudyError> {
        let name = journal_name(unit);
        self.set_aside(unit)?;
        let path = self.path(&name);
        let parent = path.parent().unwrap_or(&self.dir);
        fs::create_dir_all(parent).map_err(|e| StudyError::io("make the folder", parent, e))?;
        let file = File::create(&path).map_err(|e| StudyError::io("write", &path, e))?;
        Ok(Journal { file, path })
    }

    /// Puts the journal of an interrupted unit aside, if there is one.
    fn set_aside(&self, unit: &str) -> Result<(), StudyError> {
        let name = journal_name(unit);
        if !self.has(&name) {
            return Ok(());
        }
        let empty = self.read(&name)?.is_empty();
        let to = (0..)
            .map(|k| format!("interrupted/{}.{k}.jsonl", unit.replace('/', ".")))
            .find(|to| !self.has(to))
            .unwrap_or_default();
        #[derive(Serialize)]
        struct Line<'a> {
            unit: &'a str,
            file: Option<&'a str>,
        }
        // The line first: a kill in between leaves a second line, not a missing one.
        let file = (!empty).then_some(to.as_str());
        self.append("interruptions.jsonl", &canonical(&Line { unit, file })?)?;
        if empty {
            return self.remove(&name);
        }
        let (from, to) = (self.path(&name), self.path(&to));
        let parent = to.parent().unwrap_or(&self.dir);
        fs::create_dir_all(parent).map_err(|e| StudyError::io("make the folder", parent, e))?;
        fs::rename(&from, &to).map_err(|e| StudyError::io("move", &from, e))
    }

    /// The lines of a finished journal; `None` if the unit hasn't been finished.
    ///
    /// # Errors
    /// It can't be read.
    pub fn finished(&self, unit: &str) -> Result<Option<Vec<String>>, StudyError> {
        let Some(mut lines) = self.lines(&journal_name(unit))? else { return Ok(None) };
        match lines.pop() {
            Some(last) if last == DONE => Ok(Some(lines)),
            _ => Ok(None),
        }
    }

    /// Removes the journal of a unit whose results are in their final file.
    ///
    /// # Errors
    /// The system refuses.
    pub fn forget(&self, unit: &str) -> Result<(), StudyError> {
        self.remove(&journal_name(unit))
    }
}

/// Last line of a finished journal.
const DONE: &str = r#"{"done":true}"#;

fn journal_name(unit: &str) -> String {
    format!("journal/{}.jsonl", unit.replace('/', "."))
}

/// Measurements of a unit of work in progress.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
}

impl Journal {
    /// Adds a measurement. It survives the death of this process at once, and of the machine once
    /// the journal is finished.
    ///
    /// # Errors
    /// The system refuses.
    pub fn line(&mut self, value: &impl Serialize) -> Result<(), StudyError> {
        let line = format!("{}\n", canonical(value)?);
        self.write(&line)
    }

    /// Marks the unit as whole.
    ///
    /// # Errors
    /// The system refuses.
    pub fn finish(mut self) -> Result<(), StudyError> {
        self.write(&format!("{DONE}\n"))?;
        self.file.sync_all().map_err(|e| StudyError::io("write", &self.path, e))
    }

    fn write(&mut self, line: &str) -> Result<(), StudyError> {
        self.file.write_all(line.as_bytes()).map_err(|e| StudyError::io("write", &self.path, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn store(name: &str) -> (Store, PathBuf) {
        let dir =
            std::env::temp_dir().join(format!("tilewright-store-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        (Store::open(&dir).unwrap(), dir)
    }

    #[test]
    fn a_file_is_written_whole_and_read_back_with_its_hash() {
        let (store, dir) = store("file");
        let hash = store.write_json("search/a.json", &json!({"b": 1, "a": 2})).unwrap();
        let (value, again) = store.read_json::<Value>("search/a.json").unwrap();
        assert_eq!((value, again), (json!({"a": 2, "b": 1}), hash));
        assert_eq!(store.read("search/a.json").unwrap(), b"{\"a\":2,\"b\":1}\n");
        assert!(matches!(store.read("none"), Err(StudyError::Io { .. })));
        store.write("search/a.json", b"{").unwrap();
        assert!(matches!(
            store.read_json::<Value>("search/a.json"),
            Err(StudyError::Record { .. })
        ));
        assert!(matches!(Store::open(&dir), Err(StudyError::Busy(_))));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn what_a_killed_write_left_is_swept() {
        let (store, dir) = store("sweep");
        store.write("search/a.json", b"whole").unwrap();
        fs::write(dir.join("search/b.json.tmp"), b"ha").unwrap();
        drop(store);
        let store = Store::open(&dir).unwrap();
        assert!(store.has("search/a.json") && !store.has("search/b.json.tmp"));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_folder_that_cant_be_written_is_an_error_that_names_it() {
        let (_store, dir) = store("unwritable");
        fs::write(dir.join("plain"), b"").unwrap();
        let error = Store::open(&dir.join("plain/record")).unwrap_err().to_string();
        assert!(error.contains("plain/record"), "{error}");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn an_interrupted_unit_is_put_aside_and_a_finished_one_is_found() {
        let (store, dir) = store("journal");
        let unit = "replay/round-00";
        let mut journal = store.journal(unit).unwrap();
        journal.line(&json!({"x": 1})).unwrap();
        drop(journal);
        assert_eq!(store.finished(unit).unwrap(), None);
        let mut journal = store.journal(unit).unwrap();
        journal.line(&json!({"x": 2})).unwrap();
        journal.finish().unwrap();
        assert_eq!(store.finished(unit).unwrap(), Some(vec![r#"{"x":2}"#.to_string()]));
        assert_eq!(store.read("interrupted/replay.round-00.0.jsonl").unwrap(), b"{\"x\":1}\n");
        let line = store.lines("interruptions.jsonl").unwrap().unwrap();
        assert_eq!(
            line,
            [r#"{"file":"interrupted/replay.round-00.0.jsonl","unit":"replay/round-00"}"#]
        );
        store.forget(unit).unwrap();
        assert_eq!(store.finished(unit).unwrap(), None);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_torn_last_line_is_left_out() {
        let (store, dir) = store("torn");
        store.append("a.jsonl", "1").unwrap();
        store.append("a.jsonl", "2").unwrap();
        let mut bytes = store.read("a.jsonl").unwrap();
        bytes.extend(b"{\"half");
        fs::write(dir.join("a.jsonl"), bytes).unwrap();
        assert_eq!(store.lines("a.jsonl").unwrap().unwrap(), ["1", "2"]);
        fs::remove_dir_all(dir).unwrap();
    }
}
