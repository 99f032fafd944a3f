//! File tests: each `tests/filetests/ir/*.tile` at the workspace's root starts with directives and
//! ends with what they give, in comments:
//!
//! ```text
//! // test print                          the printed program
//! // test errors                         what parser or verifier say
//! // test run rows=2,cols=3 [dyadic]     outputs on seeded inputs, per instance of the last axis
//! ```
//!
//! `TILEWRIGHT_BLESS=1 cargo test -p tilewright-ir --test filetests` writes the expected part anew.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use tilewright_ir::oracle::{self, Case, Data};
use tilewright_ir::{Program, text};

const EXPECTED: &str = "// expected\n";

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/filetests/ir")
}

/// What a directive gives for a source.
fn perform(directive: &str, source: &str) -> Result<String, String> {
    let mut words = directive.split_whitespace();
    match words.next() {
        Some("print") => text::read(source).map(|p| text::print(&p)).map_err(|e| e.to_string()),
        Some("errors") => match text::read(source) {
            Ok(_) => Err("the program is valid".to_string()),
            Err(errors) => Ok(format!("{errors}\n")),
        },
        Some("run") => {
            let program = text::read(source).map_err(|e| e.to_string())?;
            run(&program, words)
        }
        other => Err(format!("unknown directive {other:?}")),
    }
}

fn run<'a>(program: &Program, words: impl Iterator<Item = &'a str>) -> Result<String, String> {
    let mut case = Case { seed: 1, ..Case::default() };
    for word in words.flat_map(|w| w.split(',')) {
        match word.split_once('=') {
            None if word == "dyadic" => case.data = Data::Dyadic,
            Some((name, value)) if program.dim(name).is_some() => {
                let value = value.parse().map_err(|e| format!("{word}: {e}"))?;
                case.dims.insert(name.to_string(), value);
            }
            Some((name, value)) => {
                let value = value.parse().map_err(|e| format!("{word}: {e}"))?;
                case.scalars.insert(name.to_string(), value);
            }
            None => return Err(format!("what is `{word}`?")),
        }
    }
    let outputs = match oracle::compute(program, &case) {
        Ok(reference) => reference.outputs,
        Err(error) => return Ok(format!("error: {error}\n")),
    };
    let mut out = String::new();
    for output in outputs {
        let columns = output.layout.shape.last().copied().unwrap_or(1).max(1) as usize;
        for (n, row) in output.packed().chunks(columns).enumerate() {
            let index = output.layout.index((n * columns) as u64);
            let index = &index[..index.len().saturating_sub(1)];
            let _ = writeln!(out, "{}{index:?} = {row:?}", output.name);
        }
    }
    Ok(out)
}

/// The file as it should be.
fn expected(content: &str) -> Result<String, String> {
    let source = content.split(EXPECTED).next().unwrap_or_default();
    let directives: Vec<&str> =
        source.lines().filter_map(|line| line.strip_prefix("// test ")).collect();
    if directives.is_empty() {
        return Err("no `// test …` line".to_string());
    }
    let mut out = format!("{}\n\n{EXPECTED}", source.trim_end());
    for directive in directives {
        let result = perform(directive, source).map_err(|e| format!("{directive}: {e}"))?;
        let _ = writeln!(out, "// {directive}:");
        for line in result.lines() {
            let _ = writeln!(out, "{}", format!("//   {line}").trim_end());
        }
    }
    Ok(out)
}

#[test]
fn files_give_what_they_expect() {
    let bless = std::env::var_os("TILEWRIGHT_BLESS").is_some();
    let mut failures = String::new();
    let mut count = 0;
    let entries = std::fs::read_dir(directory()).expect("tests/filetests/ir");
    let mut files: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "tile"));
    files.sort();
    for file in files {
        count += 1;
        let name = file.display();
        let content = std::fs::read_to_string(&file).expect("a readable file");
        match expected(&content) {
            Ok(want) if want == content => {}
            Ok(want) if bless => std::fs::write(&file, want).expect("a writable file"),
            Ok(want) => {
                let differs = content.lines().zip(want.lines()).position(|(a, b)| a != b);
                let at =
                    differs.unwrap_or_else(|| content.lines().count().min(want.lines().count()));
                let line = |text: &str| text.lines().nth(at).unwrap_or("(end)").to_string();
                let (is, should) = (line(&content), line(&want));
                let _ = writeln!(failures, "{name}:{}:\n  has  {is}\n  give {should}", at + 1);
            }
            Err(error) => {
                let _ = writeln!(failures, "{name}: {error}");
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
    assert!(count >= 8, "only {count} files found");
}
