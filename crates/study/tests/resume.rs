//! A whole study in processes of its own: killed at random moments and gone on with, it leaves
//! the record of an undisturbed run; the audit finds nothing wrong in it; a candidate that kills
//! or hangs its worker is a trial.
//!
//! Times are simulated (a function of the kernel text), so that two runs can be compared byte by
//! byte. Run without arguments this program is the test; with them it is a study or a worker.

mod schema;

use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tilewright_cpu::{CpuDevice, CpuOptions};
use tilewright_ir::DType;
use tilewright_kernel::kernel::Kernel;
use tilewright_plan::Target;
use tilewright_runtime::{
    ArgValue, Capabilities, Device, Executable, ResourceReport, Roofline, RuntimeError,
};
use tilewright_study::adhoc;
use tilewright_study::bench::{Setup, Silent};
use tilewright_study::canonical::derive;
use tilewright_study::meter::{Meter, MeterKind, Simulated};
use tilewright_study::protocol::Timed;
use tilewright_study::record::{FrozenFile, Outcome, ProtocolFile, SearchFile};
use tilewright_study::results::{Evidence, results};
use tilewright_study::run::Session;
use tilewright_study::spec::Study;
use tilewright_study::worker::{Launch, control, serve};

const STUDY: &str = r#"
name = "resume"
device = "cpu"
threads = 1
controls = ["handwritten", "gemm-crate", "mkl"]

[[family]]
ops = ["softmax"]
training = ["3x64", "5x100", "4x37"]
holdout = ["6x80"]

[[family]]
ops = ["gemm"]
training = ["8x16x8", "5x20x9", "17x33x5"]
holdout = ["9x18x7"]

[space]
unroll = [1, 2]
cap = 6

[search]
interleaved = true
rounds = 3
most_rounds = 5
final_rounds = 6
finalists = 2
label_quantile = 0.25
samples = 2
sample_ms = 0.1
warmup_ms = 0.1

[replay]
rounds = 14
time_quantile = 0.25
samples = 2
single_samples = 2
sample_ms = 0.1
warmup_ms = 0.1

[acceptance]
regret_mean = 10.0
candidates = 1.0
"#;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("worker") => worker(&args[1..]),
        Some("study") => study(Path::new(&args[1])),
        // libtest's own flags, as `cargo test` passes them.
        _ => tests(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn device() -> Result<Arc<dyn Device>, String> {
    let options = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    Ok(Arc::new(CpuDevice::new(options).map_err(|e| e.to_string())?))
}

/// A device some of whose candidates kill or hang the process that launches them.
struct Saboteur(CpuDevice);

struct Bomb;

impl Executable for Bomb {
    unsafe fn launch(&self, _args: &[ArgValue]) -> Result<(), RuntimeError> {
        std::process::abort()
    }
    fn disassembly(&self) -> String {
        String::new()
    }
    fn report(&self) -> ResourceReport {
        ResourceReport::default()
    }
}

struct Sleeper;

impl Executable for Sleeper {
    unsafe fn launch(&self, _args: &[ArgValue]) -> Result<(), RuntimeError> {
        loop {
            std::thread::sleep(Duration::from_secs(60));
        }
    }
    fn disassembly(&self) -> String {
        String::new()
    }
    fn report(&self) -> ResourceReport {
        ResourceReport::default()
    }
}

impl Device for Saboteur {
    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }
    fn target(&self) -> &Target {
        self.0.target()
    }
    fn compile(&self, launches: &[Kernel]) -> Result<Box<dyn Executable>, RuntimeError> {
        let text: String = launches.iter().map(Kernel::to_string).collect();
        match derive(&text) % 7 {
            0 => Ok(Box::new(Bomb)),
            1 => Ok(Box::new(Sleeper)),
            // Dies while it compiles.
            2 => std::process::abort(),
            _ => self.0.compile(launches),
        }
    }
    fn roofline(&self, _dtype: DType, _threads: usize) -> Option<Roofline> {
        None
    }
}

/// Made-up times of a machine on which something else runs: half of them are twice as long.
struct Disturbed(AtomicU64);

impl Meter for Disturbed {
    fn kind(&self) -> MeterKind {
        Simulated.kind()
    }
    fn batch(&self, subject: &str, calls: u64, timed: &mut dyn Timed) -> Result<u64, String> {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        let factor = 1 + derive(&format!("{subject}/{number}")) % 2;
        Ok(factor * Simulated.batch(subject, calls, timed)?)
    }
    fn device_batch(
        &self,
        subject: &str,
        calls: u64,
        samples: usize,
        timed: &mut dyn Timed,
    ) -> Result<Option<Vec<u64>>, String> {
        Simulated.device_batch(subject, calls, samples, timed)
    }
    fn step(&self, what: &str, run: &mut dyn FnMut()) -> u64 {
        Simulated.step(what, run)
    }
    fn unix_s(&self) -> u64 {
        Simulated.unix_s()
    }
}

fn worker(args: &[String]) -> Result<(), String> {
    let (input, output) = (BufReader::new(std::io::stdin()), std::io::stdout());
    let meter: &dyn Meter = match std::env::var_os("DISTURBED") {
        Some(_) => &Disturbed(AtomicU64::new(0)),
        None => &Simulated,
    };
    match args {
        [flag, name] if flag == "--control" => control::serve(name, 1, meter, input, output),
        _ if std::env::var_os("SABOTAGE").is_some() => {
            let options = CpuOptions { threads: Some(1), ..CpuOptions::default() };
            let device = CpuDevice::new(options).map_err(|e| e.to_string())?;
            let device: Arc<dyn Device> = Arc::new(Saboteur(device));
            serve::serve(&device, &Simulated, input, output)
        }
        _ => serve::serve(&device()?, meter, input, output),
    }
    .map_err(|e| e.to_string())
}

fn study(dir: &Path) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let setup = Setup {
        device: device()?,
        meter: &Simulated,
        worker: Launch { program, args: vec!["worker".to_string()], ..Launch::default() },
        progress: &Silent,
        record_changes: false,
    };
    let study = Study::parse(STUDY, false)?;
    let mut session = Session::open(&setup, study, dir).map_err(|e| e.to_string())?;
    session.run().map(|_| ()).map_err(|e| e.to_string())
}

fn tests() -> Result<(), String> {
    let root = std::env::temp_dir().join(format!("tilewright-resume-{}", std::process::id()));
    let result = killed_and_resumed(&root)
        .and_then(|()| schemas(&root.join("whole")))
        .and_then(|()| bad_model(&root.join("whole")))
        .and_then(|()| no_profile(&root.join("whole")))
        .and_then(|()| sabotaged_candidates_are_trials())
        .and_then(|()| disturbed_cases_stop_a_freeze(&root.join("disturbed")))
        .and_then(|()| full_disk(&root.join("full")));
    let _ = std::fs::remove_dir_all(&root);
    result
}

/// Every JSON file of a record is what `schemas/` says.
fn schemas(dir: &Path) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schemas");
    let mut checked = 0;
    for (name, bytes) in files(dir)? {
        let text = name.to_string_lossy().to_string();
        let schema = match text.split('/').next().unwrap_or_default() {
            "search" | "labels" => "search",
            "calibration" => "record-calibration",
            "frozen" => "frozen",
            "replay" => "replay",
            "machine.json" => "machine",
            "protocol.json" => "protocol",
            "results.json" => "results",
            "ledger.jsonl" => "ledger-entry",
            _ => continue,
        };
        let path = root.join(format!("{schema}.schema.json"));
        let rules = std::fs::read_to_string(&path).map_err(|e| format!("{schema}: {e}"))?;
        let rules: serde_json::Value = serde_json::from_str(&rules).map_err(|e| e.to_string())?;
        let lines = String::from_utf8(bytes).map_err(|e| e.to_string())?;
        for line in lines.lines() {
            let value = serde_json::from_str(line).map_err(|e| e.to_string())?;
            let mut faults = Vec::new();
            schema::faults(&rules, &rules, &value, "", &mut faults);
            if !faults.is_empty() {
                return Err(format!("{text} isn't what its schema says: {faults:#?}"));
            }
            checked += 1;
        }
    }
    println!("{checked} values are what their schemas say");
    Ok(())
}

/// Made-up times make no profile a default.
fn no_profile(dir: &Path) -> Result<(), String> {
    match tilewright_study::run::held_out_profile(dir) {
        Err(e) if e.to_string().contains("its times are simulated") => Ok(()),
        other => Err(format!("a profile of simulated times: {other:?}")),
    }
}

/// A model that picks the slowest candidate fails the gate that one which picks the fastest
/// passes.
fn bad_model(dir: &Path) -> Result<(), String> {
    fn read<T: serde::de::DeserializeOwned>(path: PathBuf) -> Result<T, String> {
        let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
        serde_json::from_slice(&bytes).map_err(|e| e.to_string())
    }
    let mut protocol: ProtocolFile = read(dir.join("protocol.json"))?;
    protocol.acceptance.regret_mean = Some(0.03);
    let profile = std::fs::read_to_string(dir.join("profile.json")).map_err(|e| e.to_string())?;
    let tilewright_plan::Profile::WholeLaunch(profile) =
        tilewright_plan::Profile::from_json(&profile).map_err(|e| e.to_string())?
    else {
        return Err("the profile is of another policy".to_string());
    };
    let (mut searches, mut labels): (Vec<SearchFile>, Vec<SearchFile>) = (vec![], vec![]);
    for id in &protocol.training {
        searches.push(read(dir.join(format!("search/{id}.json")))?);
    }
    for id in &protocol.holdout {
        labels.push(read(dir.join(format!("labels/{id}.json")))?);
    }
    let mut rounds = Vec::new();
    for round in 0..protocol.replay.rounds {
        rounds.push(read(dir.join(format!("replay/round-{round:02}.json")))?);
    }
    for (slowest, passes) in [(false, true), (true, false)] {
        let mut frozen: Vec<FrozenFile> = Vec::new();
        for (id, labels) in protocol.holdout.iter().zip(&labels) {
            let mut file: FrozenFile = read(dir.join(format!("frozen/{id}.json")))?;
            let pick = labels.labels().reduce(|a, b| {
                let better = if slowest { b.1 > a.1 } else { b.1 < a.1 };
                if better { b } else { a }
            });
            file.challenger.candidate = pick.ok_or("no label")?.0;
            frozen.push(file);
        }
        let evidence = Evidence {
            protocol: &protocol,
            profile: &profile,
            freeze: "",
            freezes: 1,
            searches: &searches,
            frozen: &frozen,
            labels: &labels,
            rounds: &rounds,
        };
        let value = results(&evidence).ok_or("no results")?;
        if value["gate"]["passed"] != passes {
            return Err(format!("slowest picks {slowest}: the gate says {}", value["gate"]));
        }
    }
    Ok(())
}

/// Candidates that kill or hang their worker are recorded, and the others are measured.
fn sabotaged_candidates_are_trials() -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let setup = Setup {
        device: device()?,
        meter: &Simulated,
        worker: Launch {
            program,
            args: vec!["worker".to_string()],
            env: vec![("SABOTAGE".to_string(), "1".to_string())],
            unset: vec![],
        },
        progress: &Silent,
        record_changes: false,
    };
    let text = "name = \"sabotage\"\nthreads = 1\n[[family]]\nops = [\"softmax\"]\ntraining = \
                [\"5x300\"]\n[search]\ndeadline_ms = 1500\nsample_ms = 0.1\nwarmup_ms = 0.1\n";
    let study = Study::parse(text, false)?;
    let file = adhoc::search(&setup, &study).map_err(|e| e.to_string())?;
    let count = |outcome| file.trials.iter().filter(|t| t.outcome == outcome).count();
    let (valid, crashed, hung) =
        (count(Outcome::Valid), count(Outcome::Crashed), count(Outcome::Hung));
    println!("{valid} valid, {crashed} crashed, {hung} hung");
    let all = valid + crashed + hung == file.trials.len();
    if !all || valid == 0 || crashed == 0 || hung == 0 || file.selection.winner.is_none() {
        return Err(format!("{valid} valid, {crashed} crashed, {hung} hung: {file:?}"));
    }
    Ok(())
}

/// What is disturbed in every round gets all further rounds, and no plan is frozen on it unless the
/// record is to say so.
fn disturbed_cases_stop_a_freeze(dir: &Path) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut setup = Setup {
        device: device()?,
        meter: &Simulated,
        worker: Launch {
            program,
            args: vec!["worker".to_string()],
            env: vec![("DISTURBED".to_string(), "1".to_string())],
            unset: vec![],
        },
        progress: &Silent,
        record_changes: false,
    };
    let run = |setup: &Setup<'_>| {
        let study = Study::parse(STUDY, false)?;
        let mut session = Session::open(setup, study, dir).map_err(|e| e.to_string())?;
        session.run().map(|_| ()).map_err(|e| e.to_string())
    };
    let error = run(&setup).err().unwrap_or_default();
    if !error.contains("can't be trusted") || !error.contains("--record-changes") {
        return Err(format!("disturbed cases gave: {error}"));
    }
    setup.record_changes = true;
    run(&setup)?;
    audit(dir)?;
    let ledger = std::fs::read_to_string(dir.join("ledger.jsonl")).map_err(|e| e.to_string())?;
    let stated = ledger.matches("\"what\":\"spread\"").count();
    let path = dir.join("search/softmax-f32-3x64.json");
    let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
    let search: SearchFile = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
    let rounds: Vec<usize> = search.trials.iter().map(|t| t.rounds.len()).collect();
    println!("{stated} disturbed cases, rounds of the first: {rounds:?}");
    // The finalists have 6 rounds, what was disturbed 5 and the others the planned 3.
    let finalists = rounds.iter().filter(|r| **r == 6).count() == 2;
    let most = finalists && rounds.contains(&5) && rounds.iter().all(|r| (3..=6).contains(r));
    if stated == 0 || !most { Err(format!("{stated} stated, rounds {rounds:?}")) } else { Ok(()) }
}

/// On a full disk a study stops with an error that says so, keeps what was there, and goes on
/// when there is room again.
fn full_disk(dir: &Path) -> Result<(), String> {
    std::fs::create_dir_all(dir).map_err(|e| e.to_string())?;
    let mount = |options: &str| {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "none"]).arg(dir);
        command.stderr(Stdio::null()).status().is_ok_and(|s| s.success())
    };
    if !mount("size=96k") {
        println!("no full disk: file systems can't be mounted here");
        return Ok(());
    }
    let result = (|| {
        let record = dir.join("record");
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let output =
            Command::new(program).arg("study").arg(&record).output().map_err(|e| e.to_string())?;
        let message = String::from_utf8_lossy(&output.stderr);
        if output.status.success() || !message.contains("No space left") {
            return Err(format!("a full disk gave: {message}"));
        }
        if !record.join("ledger.jsonl").is_file() {
            return Err("nothing is left of a study on a full disk".to_string());
        }
        if !mount("remount,size=64m") {
            return Err("the disk can't be made larger".to_string());
        }
        let status = start(&record)?.wait().map_err(|e| e.to_string())?;
        if !status.success() {
            return Err("the study doesn't go on when there is room".to_string());
        }
        audit(&record)
    })();
    let _ = Command::new("umount").arg(dir).status();
    println!("a full disk stops a study and loses nothing");
    result
}

fn start(dir: &Path) -> Result<std::process::Child, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    Command::new(program)
        .arg("study")
        .arg(dir)
        .stdout(Stdio::null())
        .spawn()
        .map_err(|e| e.to_string())
}

fn killed_and_resumed(root: &Path) -> Result<(), String> {
    let (whole, killed) = (root.join("whole"), root.join("killed"));
    let begun = Instant::now();
    let status = start(&whole)?.wait().map_err(|e| e.to_string())?;
    if !status.success() {
        return Err("the undisturbed study failed".to_string());
    }
    let takes = begun.elapsed();
    audit(&whole)?;

    // A small generator; which moments are hit depends on the machine anyway.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut kills = 0;
    while kills < 20 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Short enough that the study isn't done before the twentieth kill.
        let share = (state >> 40) as f64 / (1u64 << 24) as f64;
        let wait = takes.mul_f64(0.02 + 0.16 * share).max(Duration::from_millis(20));
        let mut child = start(&killed)?;
        std::thread::sleep(wait);
        if child.try_wait().map_err(|e| e.to_string())?.is_some() {
            // Done early: begin again with what is left of the kills.
            std::fs::remove_dir_all(&killed).map_err(|e| e.to_string())?;
            continue;
        }
        child.kill().map_err(|e| e.to_string())?;
        child.wait().map_err(|e| e.to_string())?;
        kills += 1;
    }
    let status = start(&killed)?.wait().map_err(|e| e.to_string())?;
    if !status.success() {
        return Err("the study that was killed doesn't come to its end".to_string());
    }
    audit(&killed)?;
    let (expected, found) = (files(&whole)?, files(&killed)?);
    let names = |all: &BTreeMap<PathBuf, Vec<u8>>| all.keys().cloned().collect::<Vec<_>>();
    if names(&expected) != names(&found) {
        return Err(format!("files {:?} instead of {:?}", names(&found), names(&expected)));
    }
    for (name, bytes) in &expected {
        let other = &found[name];
        if other != bytes {
            let at = bytes.iter().zip(other).position(|(a, b)| a != b);
            let at = at.unwrap_or(bytes.len().min(other.len()));
            let near = |bytes: &[u8]| {
                let part = &bytes[at.saturating_sub(120)..bytes.len().min(at + 60)];
                String::from_utf8_lossy(part).to_string()
            };
            return Err(format!(
                "{} differs after interruptions at byte {at}: {:?} became {:?}",
                name.display(),
                near(bytes),
                near(other)
            ));
        }
    }
    println!("killed {kills} times, {} files are the same", expected.len());
    Ok(())
}

fn audit(dir: &Path) -> Result<(), String> {
    let report = tilewright_audit::audit(dir, &tilewright_audit::Limits::default())
        .map_err(|e| e.to_string())?;
    let failed: Vec<_> = report.rules.iter().filter(|v| v.failures > 0).collect();
    if report.passed() { Ok(()) } else { Err(format!("the audit finds: {failed:#?}")) }
}

/// Every file of a record but what interruptions leave.
fn files(dir: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>, String> {
    let mut all = BTreeMap::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).map_err(|e| e.to_string())?.flatten() {
            let path = entry.path();
            let name = path.strip_prefix(dir).unwrap_or(&path).to_path_buf();
            if name.starts_with("interrupted") || name == Path::new("interruptions.jsonl") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                all.insert(name, std::fs::read(&path).map_err(|e| e.to_string())?);
            }
        }
    }
    Ok(all)
}
