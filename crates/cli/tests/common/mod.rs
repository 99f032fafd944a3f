//! Runs the command as a user does, in a directory of its own.
#![allow(dead_code)]

pub mod schema;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A directory that is removed with everything in it.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tilewright-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.0.join(name), content).unwrap();
    }

    /// Names of the files in the directory, sorted.
    pub fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Runs the command here; arguments are separated by spaces.
    pub fn run(&self, arguments: &str) -> Run {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        self.run_list(&arguments)
    }

    pub fn run_list(&self, arguments: &[&str]) -> Run {
        let output = Command::new(env!("CARGO_BIN_EXE_tilewright"))
            .args(arguments)
            .current_dir(&self.0)
            .output()
            .unwrap();
        Run { arguments: arguments.join(" "), output }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a run gave.
pub struct Run {
    arguments: String,
    output: Output,
}

impl Run {
    /// The JSON object of a run that may fail.
    pub fn printed(&self) -> serde_json::Value {
        serde_json::from_str(&self.out())
            .unwrap_or_else(|e| panic!("`{}`: {e}: {}{}", self.arguments, self.out(), self.err()))
    }

    pub fn code(&self) -> i32 {
        self.output.status.code().unwrap_or_else(|| panic!("`{}` was killed", self.arguments))
    }

    pub fn out(&self) -> String {
        String::from_utf8(self.output.stdout.clone()).unwrap()
    }

    pub fn err(&self) -> String {
        String::from_utf8(self.output.stderr.clone()).unwrap()
    }

    /// The standard output of a run that must succeed.
    pub fn ok(&self) -> String {
        assert_eq!(self.code(), 0, "`{}`: {}", self.arguments, self.err());
        assert_eq!(self.err(), "", "`{}` succeeded and complained", self.arguments);
        self.out()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// Asserts a failure with this code and one clear message that holds `message`, without a
    /// panic and without a result.
    pub fn fails(&self, code: i32, message: &str) {
        let (out, err) = (self.out(), self.err());
        let context = format!("`{}`: code {}, stderr: {err}", self.arguments, self.code());
        assert_eq!(self.code(), code, "{context}");
        assert!(err.contains(message), "{context}\nexpected in it: {message}");
        assert!(err.starts_with("error: "), "{context}");
        assert!(!err.contains("panicked"), "{context}");
        assert_eq!(out, "", "{context}");
    }
}
