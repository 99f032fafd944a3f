//! A whole study on a device with memory, a queue and a clock of its own, beside a control that
//! has such a clock, too: labels and verdicts are those of the device's clock, and the audit finds
//! nothing wrong.
//!
//! The device is the CPU behind a queue: kernels run when somebody waits, on memory that no host
//! tensor lies in. The control stands in for PyTorch: a `python3` in the search path that starts
//! this program. Run without arguments this program is the test; with them it is a study, a worker
//! or the control.

#[path = "../../engine/tests/support/memory.rs"]
mod memory;

use memory::Bytes;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex};
use tilewright_cpu::{CpuDevice, CpuOptions};
use tilewright_ir::DType;
use tilewright_kernel::kernel::Kernel;
use tilewright_plan::Target;
use tilewright_runtime::{
    ArgValue, Batch, Capabilities, Device, Executable, Memory, MemorySpace, PreparedLaunch, Queue,
    ResourceReport, Roofline, RuntimeError, Work,
};
use tilewright_study::bench::{Setup, Silent};
use tilewright_study::meter::{Clock, Meter, Simulated};
use tilewright_study::protocol::{Samples, Timed, measure, start};
use tilewright_study::run::Session;
use tilewright_study::spec::Study;
use tilewright_study::worker::message::DataKind;
use tilewright_study::worker::{Launch, Reply, Request, serve};

const STUDY: &str = r#"
name = "device"
device = "cuda"
threads = 1
controls = ["torch-eager", "cublas"]

[[family]]
ops = ["softmax"]
training = ["3x64", "5x100", "4x37"]
holdout = ["6x80"]

[space]
unroll = [1, 2]
top = 4

[search]
rounds = 2
samples = 2
sample_ms = 0.1
warmup_ms = 0.1
metric = "device"
rotate = 2

[replay]
rounds = 14
samples = 2
single_samples = 1
sample_ms = 0.1
warmup_ms = 0.1
"#;

/// A launch that waits for its turn. Its arguments stay valid until the queue has passed it.
struct Job(Arc<Box<dyn Executable>>, Vec<ArgValue>);

// SAFETY: the addresses among the arguments are followed by the one who waits alone.
unsafe impl Send for Job {}

/// Runs what it is given only when somebody waits.
#[derive(Default)]
struct Late(Mutex<Vec<Job>>);

impl Queue for Late {
    fn space(&self) -> MemorySpace {
        MemorySpace::Device(7)
    }
    fn alloc(&self, bytes: usize) -> Result<Box<dyn Memory>, RuntimeError> {
        Ok(Box::new(Bytes::new(bytes)))
    }
    fn wait(&self) -> Result<(), RuntimeError> {
        let jobs: Vec<Job> = self.0.lock().unwrap().drain(..).collect();
        jobs.into_iter().try_for_each(|Job(code, args)| {
            // SAFETY: whoever queued it keeps the arguments valid until it was waited for.
            unsafe { code.launch(&args) }
        })
    }
    fn batch<'a>(&self, n: u64, work: Work<'a>) -> Result<Box<dyn Batch + 'a>, RuntimeError> {
        struct Counted<'a>(u64, Work<'a>);
        impl Batch for Counted<'_> {
            fn run(&mut self) -> Result<f64, RuntimeError> {
                (self.1)()?;
                Ok(2000.0 * self.0 as f64)
            }
        }
        Ok(Box::new(Counted(n, work)))
    }
}

struct Code {
    inner: Arc<Box<dyn Executable>>,
    queue: Arc<dyn Queue>,
    late: Arc<Late>,
}

struct Prepared {
    inner: Arc<Box<dyn Executable>>,
    late: Arc<Late>,
    args: Vec<ArgValue>,
}

// SAFETY: as for jobs.
unsafe impl Send for Prepared {}

impl PreparedLaunch for Prepared {
    unsafe fn enqueue(&mut self) -> Result<(), RuntimeError> {
        let job = Job(self.inner.clone(), self.args.clone());
        self.late.0.lock().unwrap().push(job);
        Ok(())
    }
}

impl Executable for Code {
    unsafe fn launch(&self, args: &[ArgValue]) -> Result<(), RuntimeError> {
        self.late.0.lock().unwrap().push(Job(self.inner.clone(), args.to_vec()));
        self.late.wait()
    }
    fn queue(&self) -> Option<&Arc<dyn Queue>> {
        Some(&self.queue)
    }
    unsafe fn prepare(
        &self,
        args: &[ArgValue],
    ) -> Result<Option<Box<dyn PreparedLaunch>>, RuntimeError> {
        let (inner, late) = (self.inner.clone(), self.late.clone());
        Ok(Some(Box::new(Prepared { inner, late, args: args.to_vec() })))
    }
    fn disassembly(&self) -> String {
        self.inner.disassembly()
    }
    fn report(&self) -> ResourceReport {
        self.inner.report()
    }
}

struct Distant {
    cpu: CpuDevice,
    capabilities: Capabilities,
    queue: Arc<dyn Queue>,
    late: Arc<Late>,
}

impl Distant {
    fn new() -> Result<Self, String> {
        let options = CpuOptions { threads: Some(1), ..CpuOptions::default() };
        let cpu = CpuDevice::new(options).map_err(|e| e.to_string())?;
        let capabilities = Capabilities {
            name: "cuda:0".to_string(),
            model: "a distant device".to_string(),
            notes: vec!["the driver of a test".to_string()],
            ..cpu.capabilities().clone()
        };
        let late = Arc::new(Late::default());
        Ok(Distant { cpu, capabilities, queue: late.clone(), late })
    }
}

impl Device for Distant {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn target(&self) -> &Target {
        self.cpu.target()
    }
    fn compile(&self, launches: &[Kernel]) -> Result<Box<dyn Executable>, RuntimeError> {
        let inner = Arc::new(self.cpu.compile(launches)?);
        Ok(Box::new(Code { inner, queue: self.queue.clone(), late: self.late.clone() }))
    }
    fn roofline(&self, _dtype: DType, _threads: usize) -> Option<Roofline> {
        Some(Roofline { flops_per_second: 1e15, bytes_per_second: 1e15 })
    }
    fn queue(&self) -> Option<&Arc<dyn Queue>> {
        Some(&self.queue)
    }
}

/// The subject of the control: 3 µs a call by its own clock.
struct Peer;

impl Timed for Peer {
    fn run(&mut self, _calls: u64) -> Result<(), String> {
        Ok(())
    }
    fn device(&mut self, calls: u64, samples: usize) -> Result<Option<Vec<u64>>, String> {
        Ok(Some(vec![3000 * calls; samples]))
    }
}

/// Softmax in the place of PyTorch.
fn control(mode: &str) -> Result<(), String> {
    let say = |reply: &Reply| {
        let text = serde_json::to_string(reply).unwrap();
        let mut out = std::io::stdout();
        writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|e| e.to_string())
    };
    say(&Reply::Ready { version: Some(format!("a stand-in, {mode}")) })?;
    let (mut columns, mut files) = (0, [Vec::new(), Vec::new()]);
    for line in std::io::stdin().lock().lines() {
        let request: Request =
            serde_json::from_str(&line.map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
        say(&match request {
            Request::Exit => break,
            Request::OpenControl { .. } if mode == "cublas" => {
                Reply::Unavailable { reason: "it doesn't compute this op".to_string() }
            }
            Request::OpenControl { case, dyadic, random, .. } => {
                columns = case.shape[1] as usize;
                files = [dyadic, random];
                Reply::Opened { upload_ns: 1, preallocated: true }
            }
            Request::Check { data, file, .. } => {
                let input = &files[usize::from(data == DataKind::Random)][0];
                let bytes = std::fs::read(input).map_err(|e| e.to_string())?;
                let x: Vec<f32> =
                    bytes.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
                std::fs::write(file, softmax(&x, columns)).map_err(|e| e.to_string())?;
                Reply::Checked { guards_intact: true, inputs_unchanged: true }
            }
            Request::Measure { protocol, .. } => {
                Reply::Measured { samples: measure(&Simulated, mode, &protocol, &mut Peer)? }
            }
            Request::Start { protocol, .. } => {
                Reply::Measured { samples: start(&Simulated, mode, &protocol, &mut Peer)? }
            }
            Request::Batch { repetitions, .. } => {
                Reply::Time { ns: Simulated.batch(mode, repetitions, &mut Peer)? }
            }
            Request::DeviceBatch { repetitions, .. } => {
                let ns = Simulated.device_batch(mode, repetitions, 1, &mut Peer)?;
                Reply::Time { ns: ns.unwrap()[0] }
            }
            other => Reply::Failed { message: format!("{other:?}") },
        })?;
    }
    Ok(())
}

fn softmax(x: &[f32], columns: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for row in x.chunks(columns) {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let e: Vec<f64> = row.iter().map(|v| f64::from(v - max).exp()).collect();
        let sum: f64 = e.iter().sum();
        out.extend(e.iter().flat_map(|v| ((v / sum) as f32).to_le_bytes()));
    }
    out
}

fn worker() -> Result<(), String> {
    let device: Arc<dyn Device> = Arc::new(Distant::new()?);
    let (input, output) = (BufReader::new(std::io::stdin()), std::io::stdout());
    serve::serve(&device, &Simulated, input, output).map_err(|e| e.to_string())
}

fn study(dir: &Path, meter: &dyn Meter) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let setup = Setup {
        device: Arc::new(Distant::new()?),
        meter,
        worker: Launch { program, args: vec!["worker".to_string()], ..Launch::default() },
        progress: &Silent,
        record_changes: false,
    };
    let study = Study::parse(STUDY, false)?;
    let mut session = Session::open(&setup, study, dir).map_err(|e| e.to_string())?;
    session.run().map(|_| ()).map_err(|e| e.to_string())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("worker") => worker(),
        Some("study") => study(Path::new(&args[1]), &Simulated),
        // As `python3 -c SCRIPT MODE DEVICE THREADS KERNELS`.
        Some("-c") => {
            assert_eq!((args[3].as_str(), args[4].as_str()), ("cuda", "1"));
            control(&args[2])
        }
        // libtest's own flags, as `cargo test` passes them.
        _ => test(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn test() -> Result<(), String> {
    if cfg!(not(unix)) {
        println!("no stand-in for python3 on this system");
        return Ok(());
    }
    let root = std::env::temp_dir().join(format!("tilewright-device-{}", std::process::id()));
    let result = whole_study(&root);
    let _ = std::fs::remove_dir_all(&root);
    result
}

fn whole_study(root: &Path) -> Result<(), String> {
    let text = |e: std::io::Error| e.to_string();
    let (bin, record) = (root.join("bin"), root.join("record"));
    std::fs::create_dir_all(&bin).map_err(text)?;
    let program = std::env::current_exe().map_err(text)?;
    std::fs::copy(&program, bin.join("python3")).map_err(text)?;
    let mut paths = vec![bin];
    paths.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let output = Command::new(program)
        .arg("study")
        .arg(&record)
        .env("PATH", std::env::join_paths(paths).map_err(|e| e.to_string())?)
        .output()
        .map_err(text)?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let audit = tilewright_audit::audit(&record, &tilewright_audit::Limits::default())
        .map_err(|e| e.to_string())?;
    let failed: Vec<_> = audit.rules.iter().filter(|v| v.failures > 0).collect();
    if !audit.passed() {
        return Err(format!("the audit finds: {failed:#?}"));
    }
    look_into(&record)
}

/// The device's clock is in the record, and decides.
fn look_into(record: &Path) -> Result<(), String> {
    let read = |name: &str| -> serde_json::Value {
        let path: PathBuf = record.join(name);
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    };
    let search = read("search/softmax-f32-3x64.json");
    for measured in search["trials"].as_array().unwrap().iter().chain([&search["controls"][0]]) {
        let samples: Samples = serde_json::from_value(measured["rounds"][0].clone()).unwrap();
        let (ns, n) = (samples.device_ns.unwrap(), samples.device_repetitions.unwrap());
        assert_eq!(ns.len(), 2, "{measured}");
        // Simulated times don't vary; those of the host are others.
        let us = ns[0] as f64 / n as f64 / 1000.0;
        assert!((measured["label_us"].as_f64().unwrap() - us).abs() < 1e-9, "{measured}");
    }
    assert_eq!(search["controls"][1]["outcome"], "unsupported");
    let machine = read("machine.json");
    assert_eq!(machine["identity"]["driver"], "the driver of a test");
    assert_eq!(machine["controls"][0]["version"], "a stand-in, eager");
    assert_eq!(read("frozen/softmax-f32-6x80.json")["driver"], "the driver of a test");
    let round = read("replay/round-03.json");
    for run in round["cases"][0]["runs"].as_array().unwrap() {
        assert_eq!(run["device_ns"].as_array().map(Vec::len), Some(2), "{run}");
    }
    let results = read("results.json");
    let case = &results["cases"][0];
    assert_eq!(case["gain"], case["metrics"]["device"]);
    let challenger = &case["paths"][1];
    let run = &round["cases"][0]["runs"][1];
    let us = run["device_ns"][0].as_f64().unwrap()
        / run["device_repetitions"].as_f64().unwrap()
        / 1000.0;
    assert!((challenger["time_us"].as_f64().unwrap() - us).abs() < 1e-9, "{challenger}");
    println!("labels and verdicts are of the device's clock");

    // The launch and the ceilings are the device's own, by the clock.
    let study = Study::parse(STUDY, false).unwrap();
    let device: Arc<dyn Device> = Arc::new(Distant::new()?);
    let nobody = Launch { program: "/nowhere".into(), ..Launch::default() };
    let machine = tilewright_study::machine::machine(&device, &Clock, &study, &nobody)
        .map_err(|e| e.to_string())?;
    let ceilings = machine.ceilings[0];
    assert!(ceilings.launch_ns > 0.0 && ceilings.launch_ns <= 2000.0, "{ceilings:?}");
    assert_eq!((ceilings.bytes_per_second.l2, ceilings.bytes_per_second.memory), (None, 1e15));
    Ok(())
}
