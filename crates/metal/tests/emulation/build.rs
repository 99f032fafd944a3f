//! Compilers, the builds of a translation unit, and a cache of them keyed by everything that goes
//! in.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use sha2::{Digest, Sha256};

/// What a build looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Build {
    /// Results, whatever the order of lanes.
    Plain,
    /// Accesses outside of arrays and undefined behaviour.
    Checked,
    /// Races: only barriers order lanes.
    Races,
}

impl Build {
    pub const ALL: [Build; 3] = [Build::Plain, Build::Checked, Build::Races];

    fn flags(self) -> &'static [&'static str] {
        match self {
            Build::Plain => &["-O1", "-ftrivial-auto-var-init=pattern"],
            Build::Checked => &[
                "-O1",
                "-g1",
                "-DEMU_ADDRESS",
                "-fsanitize=address,undefined",
                "-fno-sanitize-recover=all",
                "-fno-omit-frame-pointer",
            ],
            Build::Races => &["-O1", "-g1", "-DEMU_RACES", "-fsanitize=thread"],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Build::Plain => "plain",
            Build::Checked => "checked",
            Build::Races => "races",
        }
    }
}

/// The folder of headers, runtime and kernels.
pub fn emulator() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("emulator")
}

/// A compiler that starts, and what it says of itself.
#[derive(Clone, Debug)]
pub struct Tool {
    pub command: String,
    pub version: String,
}

fn required() -> bool {
    std::env::var_os("TILEWRIGHT_REQUIRE_EMULATION").is_some()
}

fn find(variable: &str, names: &[&str], what: &str) -> Option<Tool> {
    let asked = std::env::var(variable).ok();
    let names: Vec<&str> = match &asked {
        Some(name) => vec![name.as_str()],
        None => names.to_vec(),
    };
    for name in &names {
        if let Ok(output) = Command::new(name).arg("--version").output()
            && output.status.success()
        {
            let version = String::from_utf8_lossy(&output.stdout).into_owned();
            return Some(Tool { command: name.to_string(), version });
        }
    }
    assert!(!required(), "emulation is required, and {what} isn't found: tried {names:?}");
    eprintln!("skipped: {what} isn't found (tried {})", names.join(", "));
    None
}

/// The C++ compiler; `None` and a word to the reader where there is none.
pub fn compiler() -> Option<&'static Tool> {
    static TOOL: OnceLock<Option<Tool>> = OnceLock::new();
    TOOL.get_or_init(|| find("TILEWRIGHT_CXX", &["g++", "clang++", "clang++-19"], "a C++ compiler"))
        .as_ref()
}

/// Clang, for the check of address spaces.
pub fn clang() -> Option<&'static Tool> {
    static TOOL: OnceLock<Option<Tool>> = OnceLock::new();
    // Older ones have no arithmetic of bfloat16.
    let names = ["clang++-19", "clang++-18", "clang++-17", "clang++-20", "clang++-21"];
    TOOL.get_or_init(|| find("TILEWRIGHT_CLANG", &names, "clang (17 or newer)")).as_ref()
}

/// All files of a folder, names sorted.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { open.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

/// A hash of headers and runtime.
fn emulator_hash() -> &'static [u8] {
    static HASH: OnceLock<Vec<u8>> = OnceLock::new();
    HASH.get_or_init(|| {
        let mut hash = Sha256::new();
        for folder in ["include", "runtime"] {
            for file in files(&emulator().join(folder)) {
                hash.update(file.to_string_lossy().as_bytes());
                hash.update(std::fs::read(&file).unwrap());
            }
        }
        hash.finalize().to_vec()
    })
}

/// The cache's folder.
fn cache() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulation");
        std::fs::create_dir_all(&folder).unwrap();
        folder
    })
}

fn key(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect()
}

/// Runs a compiler; its complaints as the error. The product appears under its name only when it
/// is complete.
fn compile(tool: &Tool, args: &[String], output: &Path) -> Result<(), String> {
    let unfinished =
        output.with_extension(format!("{}-{:?}", std::process::id(), std::thread::current().id()));
    let result = Command::new(&tool.command).args(args).arg("-o").arg(&unfinished).output();
    let result = result.map_err(|e| format!("{} doesn't start: {e}", tool.command))?;
    if !result.status.success() {
        let _ = std::fs::remove_file(&unfinished);
        return Err(String::from_utf8_lossy(&result.stderr).into_owned());
    }
    std::fs::rename(&unfinished, output).map_err(|e| format!("{}: {e}", output.display()))
}

const COMMON: [&str; 6] = [
    "-Wno-attributes",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fno-exceptions",
    "-Werror=return-type",
    "-w",
];

/// The runtime's objects of a build, without sanitizers: what they do for lanes isn't an access
/// of a lane, and a lane's last frame is never left.
fn runtime(tool: &Tool, build: Build) -> Result<Vec<PathBuf>, String> {
    ["fiber", "schedule", "arena", "main"]
        .iter()
        .map(|name| {
            let flags: Vec<&str> =
                build.flags().iter().copied().filter(|f| !f.starts_with("-fsanitize")).collect();
            let id = key(&[
                emulator_hash(),
                tool.version.as_bytes(),
                flags.join(" ").as_bytes(),
                name.as_bytes(),
            ]);
            let object = cache().join(format!("{id}.o"));
            if object.exists() {
                return Ok(object);
            }
            let source = emulator().join("runtime").join(format!("{name}.cpp"));
            let mut args: Vec<String> = flags.iter().map(|f| f.to_string()).collect();
            args.extend(
                ["-std=c++17", "-fno-builtin", "-fno-exceptions", "-c"].map(str::to_string),
            );
            if !tool.version.contains("clang") {
                args.push("-fno-tree-loop-distribute-patterns".to_string());
            }
            args.push(source.to_string_lossy().into_owned());
            compile(tool, &args, &object)?;
            Ok(object)
        })
        .collect()
}

/// The program of a translation unit, from the cache or built now.
///
/// # Errors
/// What the compiler says.
pub fn program(tool: &Tool, unit: &str, build: Build) -> Result<PathBuf, String> {
    let flags = build.flags().join(" ");
    let id = key(&[
        emulator_hash(),
        tool.version.as_bytes(),
        flags.as_bytes(),
        COMMON.join(" ").as_bytes(),
        unit.as_bytes(),
    ]);
    let program = cache().join(format!("{id}-{}", build.name()));
    if program.exists() {
        return Ok(program);
    }
    let source = cache().join(format!("{id}.cpp"));
    std::fs::write(&source, unit).map_err(|e| format!("{}: {e}", source.display()))?;
    // Descriptors of tensor operations are template arguments, which C++17 has no form for.
    let tensors = unit.contains("MetalPerformancePrimitives");
    let version = if tensors { 400 } else { 310 };
    let mut args: Vec<String> = build.flags().iter().map(|f| f.to_string()).collect();
    args.extend(COMMON.map(str::to_string));
    args.push(format!("-std={}", if tensors { "c++20" } else { "c++17" }));
    args.push(format!("-DEMU_METAL_VERSION={version}"));
    for folder in [emulator().join("include"), emulator()] {
        args.push(format!("-I{}", folder.display()));
    }
    args.push(source.to_string_lossy().into_owned());
    for object in runtime(tool, build)? {
        args.push(object.to_string_lossy().into_owned());
    }
    let built = compile(tool, &args, &program);
    let _ = std::fs::remove_file(&source);
    built.map(|()| program)
}
