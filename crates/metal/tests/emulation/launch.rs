//! One launch in a process of its own.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::build::Build;

/// Order of lanes, and what unwritten memory holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Order {
    pub name: &'static str,
    pub seed: u64,
    /// NaN (false) or a large number (true).
    pub finite: bool,
}

/// The first simdgroup runs ahead, memory is NaN.
pub const LOWEST: Order = Order { name: "lowest", seed: 0, finite: false };
/// The last simdgroup runs ahead, memory is 1e36.
pub const HIGHEST: Order = Order { name: "highest", seed: 0, finite: true };
/// Any lane, memory is NaN.
pub const SHUFFLED: Order = Order { name: "shuffled", seed: 0x5eed, finite: false };

/// Memory that a launch binds.
#[derive(Clone, PartialEq, Debug)]
pub struct Bound {
    pub index: u32,
    pub bytes: Vec<u8>,
    /// What its base is aligned to, and to no larger power of two up to 16.
    pub align: u64,
}

/// A launch.
#[derive(Clone, PartialEq, Debug)]
pub struct Launch {
    pub kernel: String,
    /// Groups in x, y and z.
    pub groups: [u64; 3],
    pub threads: u32,
    pub buffers: Vec<Bound>,
    /// The groups to run; all where there are none.
    pub only: Vec<[u64; 3]>,
    /// Seconds.
    pub limit: u32,
}

/// Why a launch gave no results.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    pub build: Build,
    pub message: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} build: {}", self.build, self.message)
    }
}

/// The buffers after the launch, once per order, in the order of `launch.buffers`.
pub type Results = Vec<Vec<Vec<u8>>>;

fn scratch() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("launch-{}-{n}", std::process::id()))
}

fn write(launch: &Launch, orders: &[Order], path: &Path) -> std::io::Result<()> {
    let mut text = String::new();
    let [x, y, z] = launch.groups;
    text.push_str(&format!("kernel {}\ngroups {x} {y} {z}\n", launch.kernel));
    text.push_str(&format!("threads {} 1 1\nlimit {}\n", launch.threads, launch.limit));
    for b in &launch.buffers {
        text.push_str(&format!("buffer {} {} {}\n", b.index, b.bytes.len(), b.align));
    }
    for o in orders {
        text.push_str(&format!("order {} {} {}\n", o.name, o.seed, u8::from(o.finite)));
    }
    for [x, y, z] in &launch.only {
        text.push_str(&format!("only {x} {y} {z}\n"));
    }
    text.push_str("end\n");
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    file.write_all(text.as_bytes())?;
    for b in &launch.buffers {
        file.write_all(&b.bytes)?;
    }
    file.flush()
}

/// Runs a launch in a program that holds its kernel.
///
/// # Errors
/// The fault that the emulator, a sanitizer or the system found.
pub fn run(
    program: &Path,
    build: Build,
    launch: &Launch,
    orders: &[Order],
) -> Result<Results, Fault> {
    let fault = |message: String| Fault { build, message };
    let base = scratch();
    let (input, output) = (base.with_extension("in"), base.with_extension("out"));
    write(launch, orders, &input).map_err(|e| fault(format!("{}: {e}", input.display())))?;
    let ran = Command::new(program)
        .args([&input, &output])
        .env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=0:exitcode=66")
        .env("UBSAN_OPTIONS", "halt_on_error=1:exitcode=66")
        .env("TSAN_OPTIONS", "halt_on_error=1:exitcode=66:atexit_sleep_ms=0")
        .output();
    let contents = std::fs::read(&output);
    let _ = std::fs::remove_file(&input);
    let _ = std::fs::remove_file(&output);
    let ran = ran.map_err(|e| fault(format!("{} doesn't start: {e}", program.display())))?;
    if !ran.status.success() {
        let text = String::from_utf8_lossy(&ran.stderr);
        // Of a sanitizer's pages only the beginning says what happened.
        let kept: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).take(12).collect();
        return Err(fault(format!("{}\n{}", ran.status, kept.join("\n"))));
    }
    let contents = contents.map_err(|e| fault(format!("no output: {e}")))?;
    let expected: usize = launch.buffers.iter().map(|b| b.bytes.len()).sum();
    if contents.len() != expected * orders.len() {
        return Err(fault(format!("{} bytes of output", contents.len())));
    }
    let mut rest = contents.as_slice();
    let mut results = Vec::new();
    for _ in orders {
        let mut buffers = Vec::new();
        for b in &launch.buffers {
            let (mine, other) = rest.split_at(b.bytes.len());
            buffers.push(mine.to_vec());
            rest = other;
        }
        results.push(buffers);
    }
    Ok(results)
}
