//! Many kernels in few runs of the assembler and the disassembler.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use tilewright_cuda::{Ptx, PtxTarget};

/// What one kernel uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Used {
    pub registers: u32,
    /// Bytes of spill stores of a thread.
    pub spills: u32,
    /// Bytes of the stack frame of a thread.
    pub stack: u32,
}

/// Instructions of one kernel in machine code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sass {
    pub loads_128: u32,
    pub stores_128: u32,
    /// Loads and stores of local memory.
    pub local: u32,
    pub ffma: u32,
    pub async_128: u32,
    /// Waits for the end of the launch ahead.
    pub waits: u32,
    /// Accesses of global memory before the first of them.
    pub early: u32,
    /// Loads of global memory behind the first use of what another brought, ahead of the first
    /// exchange between lanes or subgroups.
    pub late: u32,
}

/// The loads of a kernel ahead of its first exchange.
#[derive(Default)]
struct Loads {
    /// Registers that loads write.
    loaded: BTreeSet<u32>,
    used: bool,
    over: bool,
    late: u32,
}

impl Loads {
    fn instruction(&mut self, word: &str, operands: &str) {
        let name = word.split('.').next().unwrap_or("");
        self.over |= matches!(name, "SHFL" | "BAR" | "STG");
        if self.over {
            return;
        }
        let registers = |text: &str| -> Vec<u32> {
            let words = text.split(|c: char| !c.is_ascii_alphanumeric());
            words.filter_map(|w| w.strip_prefix('R')?.parse().ok()).collect()
        };
        let (to, from) = operands.split_once(',').unwrap_or((operands, ""));
        self.used |= registers(from).iter().any(|r| self.loaded.contains(r));
        if name == "LDG" {
            self.late += u32::from(self.used);
            let words = [(".128", 4), (".64", 2)];
            let wide = words.iter().find(|(mark, _)| word.contains(mark)).map_or(1, |(_, n)| *n);
            self.loaded.extend(registers(to).iter().flat_map(|r| *r..r + wide));
        }
    }
}

/// A tool of NVIDIA's: from its variable, beside `ptxas`, or from the search path.
fn tool(name: &str) -> PathBuf {
    let variable = format!("TILEWRIGHT_{}", name.to_uppercase());
    if let Some(path) = std::env::var_os(variable) {
        return path.into();
    }
    if let Some(ptxas) = std::env::var_os("TILEWRIGHT_PTXAS") {
        let beside = Path::new(&ptxas).canonicalize().unwrap_or_else(|_| ptxas.clone().into());
        let beside = beside.with_file_name(name);
        if beside.is_file() {
            return beside;
        }
    }
    name.into()
}

/// Runs a tool; `None` where it isn't there and nobody requires it.
fn run(name: &str, arguments: &[&str]) -> Option<String> {
    let path = tool(name);
    match Command::new(&path).args(arguments).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name}: {text}");
            Some(text)
        }
        Err(_) if std::env::var_os("TILEWRIGHT_REQUIRE_PTXAS").is_none() => {
            eprintln!("skipped: no {name} found");
            None
        }
        Err(error) => panic!("{name} is required but {} doesn't start: {error}", path.display()),
    }
}

/// The release of the assembler, such as 13.0; `None` where there is none.
#[allow(dead_code)]
pub fn version() -> Option<String> {
    let text = run("ptxas", &["--version"])?;
    let release = text.split("release ").nth(1)?;
    Some(release.split(',').next()?.trim().to_string())
}

/// Modules of the same target as one text, entry `k0`, `k1`, … by position.
fn joined(target: PtxTarget, modules: &[(usize, &Ptx)]) -> String {
    let mut text = format!(
        ".version {}.{}\n.target sm_{}\n.address_size 64\n\
         .extern .shared .align 128 .b8 shared_memory[];\n",
        target.version / 10,
        target.version % 10,
        target.sm
    );
    for (number, ptx) in modules {
        let entry = format!(".visible .entry {}(", ptx.entry);
        let at = ptx.text.find(&entry).unwrap_or_else(|| panic!("{}", ptx.text));
        text.push_str(&ptx.text[at..].replacen(&entry, &format!(".visible .entry k{number}("), 1));
    }
    text
}

/// Assembles modules for an architecture. Gives each kernel's use and instructions by position;
/// modules that are for later architectures are left out. `None` without an assembler.
pub fn assemble(modules: &[Ptx], sm: &str) -> Option<BTreeMap<usize, (Used, Sass)>> {
    let limit: u32 = sm.trim_start_matches("sm_").trim_end_matches('a').parse().unwrap();
    let mut targets: BTreeMap<PtxTarget, Vec<(usize, &Ptx)>> = BTreeMap::new();
    for (number, ptx) in modules.iter().enumerate() {
        if ptx.target.sm <= limit {
            targets.entry(ptx.target).or_default().push((number, ptx));
        }
    }
    let mut all = BTreeMap::new();
    for (target, modules) in targets {
        let name = format!("tilewright-{}-{sm}-{}", std::process::id(), target.version);
        let folder = std::env::temp_dir();
        let (source, object) =
            (folder.join(format!("{name}.ptx")), folder.join(format!("{name}.cubin")));
        std::fs::write(&source, joined(target, &modules)).unwrap();
        let (from, to) = (source.display().to_string(), object.display().to_string());
        let log = run("ptxas", &["-v", "-arch", sm, "-o", &to, &from]);
        let code = log.as_ref().and_then(|_| run("nvdisasm", &["-c", &to]));
        let _ = (std::fs::remove_file(&source), std::fs::remove_file(&object));
        let (used, sass) = (uses(&log?), instructions(&code?));
        for (number, _) in &modules {
            let entry = format!("k{number}");
            let used = used.get(&entry).unwrap_or_else(|| panic!("no report of {entry}"));
            let sass = sass.get(&entry).unwrap_or_else(|| panic!("no code of {entry}"));
            all.insert(*number, (*used, *sass));
        }
    }
    Some(all)
}

fn uses(log: &str) -> BTreeMap<String, Used> {
    let number = |line: &str, before: &str| -> u32 {
        let text = line.split(before).next().unwrap_or("").trim_end();
        text.rsplit([' ', ',']).next().and_then(|n| n.parse().ok()).unwrap_or(0)
    };
    let mut all: BTreeMap<String, Used> = BTreeMap::new();
    let mut current = String::new();
    for line in log.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            current = rest.split('\'').next().unwrap_or("").to_string();
        }
        let entry = all.entry(current.clone()).or_default();
        if line.contains("bytes spill stores") {
            entry.stack = number(line, " bytes stack frame");
            entry.spills = number(line, " bytes spill stores");
        }
        if line.contains(" registers") && line.contains("Used ") {
            entry.registers = number(line, " registers");
        }
    }
    all
}

fn instructions(code: &str) -> BTreeMap<String, Sass> {
    let mut all: BTreeMap<String, Sass> = BTreeMap::new();
    let mut current = String::new();
    let mut loads = Loads::default();
    for line in code.lines() {
        if let Some(rest) = line.trim_start().strip_prefix(".text.") {
            current = rest.trim_end_matches(':').to_string();
            loads = Loads::default();
            continue;
        }
        let text = line.split("*/").nth(1).unwrap_or("").trim_start();
        let text = match text.split_once(' ') {
            Some((guard, rest)) if guard.starts_with('@') => rest.trim_start(),
            _ => text,
        };
        let Some(word) = text.split_whitespace().next() else { continue };
        let entry = all.entry(current.clone()).or_default();
        loads.instruction(word, &text[word.len()..]);
        entry.late = loads.late;
        let name = word.split('.').next().unwrap_or("");
        let wide = u32::from(word.contains(".128"));
        if matches!(name, "LDG" | "STG" | "LDGSTS" | "LD" | "ST" | "ATOMG" | "RED") {
            entry.early += u32::from(entry.waits == 0);
        }
        match name {
            "LDG" => entry.loads_128 += wide,
            "STG" => entry.stores_128 += wide,
            "LDGSTS" => entry.async_128 += wide,
            "LDL" | "STL" => entry.local += 1,
            "FFMA" => entry.ffma += 1,
            "ACQBULK" => entry.waits += 1,
            _ => {}
        }
    }
    all
}
