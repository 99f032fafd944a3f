//! The workbench of a study: workers, the oracle's results, the limits of the machine.

use crate::assembly::Assemblers;
use crate::case::Case;
use crate::error::StudyError;
use crate::meter::{self, Meter};
use crate::protocol::{Protocol, Samples};
use crate::record::{Check, Fault, Floor, Machine, Outcome, State};
use crate::spec::Study;
use crate::subject::Subject;
use crate::worker::message::DataKind;
use crate::worker::{Failure, Launch, Process, Reply, Request, control};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tilewright_engine::check;
use tilewright_engine::tolerance::compare;
use tilewright_ir::interp::Outputs;
use tilewright_runtime::{Buffer, Device};

/// Largest memory that results of the oracle may take before they are dropped.
const ORACLE_BYTES: usize = 2 << 30;

/// Time for what isn't a measurement: opening a case, starting a worker.
const PATIENCE: Duration = Duration::from_secs(300);

/// A failed measurement.
pub type Failed = (Outcome, Fault);

/// What a study needs of its surroundings.
pub struct Setup<'a> {
    /// The device.
    pub device: Arc<dyn Device>,
    /// Where times come from.
    pub meter: &'a dyn Meter,
    /// How to start a worker of this program.
    pub worker: Launch,
    /// What is told of the progress.
    pub progress: &'a dyn Progress,
    /// Record differences of machine, program or kernels instead of stopping.
    pub record_changes: bool,
}

/// Is told how far a study is.
pub trait Progress: Sync {
    /// A step begins; it has that many parts.
    fn begin(&self, what: &str, parts: usize);
    /// A part is done.
    fn advance(&self, detail: &str);
    /// The step is over.
    fn end(&self);
}

/// Tells nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _what: &str, _parts: usize) {}
    fn advance(&self, _detail: &str) {}
    fn end(&self) {}
}

/// A compiled candidate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compiled {
    /// Lowering and code generation.
    pub compile_ns: u64,
    /// Hash of the kernel text.
    pub kernel_sha256: String,
    /// Hash of the listing, if asked for.
    pub artifact_sha256: Option<String>,
}

/// The oracle's outputs.
struct Reference {
    outputs: [Outputs; 2],
    bytes: usize,
}

/// Workers and what they are compared with.
pub struct Bench<'a> {
    /// The surroundings.
    pub setup: &'a Setup<'a>,
    /// The study.
    pub study: &'a Study,
    /// The machine as recorded.
    pub machine: &'a Machine,
    scratch: PathBuf,
    plans: Option<Process>,
    /// The open case, for a worker that has to start again.
    opened: Option<Request>,
    /// Slots that the worker at hand has compiled, with their plans.
    slots: BTreeMap<usize, usize>,
    assemblers: Assemblers,
    controls: Vec<ControlWorker>,
    references: HashMap<(String, u64), Arc<Reference>>,
    oracle_bytes: usize,
}

struct ControlWorker {
    name: String,
    process: Option<Process>,
    /// Id of the open case with its seed.
    opened: Option<(String, u64)>,
    preallocated: bool,
}

impl<'a> Bench<'a> {
    /// A workbench; `scratch` is a folder for tensors on their way to controls and back.
    ///
    /// # Errors
    /// The folder can't be made.
    pub fn new(
        setup: &'a Setup<'a>,
        study: &'a Study,
        machine: &'a Machine,
        scratch: &Path,
    ) -> Result<Self, StudyError> {
        std::fs::create_dir_all(scratch)
            .map_err(|e| StudyError::io("make the folder", scratch, e))?;
        let available: BTreeSet<&str> =
            machine.controls.iter().filter(|c| c.available).map(|c| c.name.as_str()).collect();
        let controls = study
            .controls
            .iter()
            .filter(|name| available.contains(name.as_str()))
            .map(|name| ControlWorker {
                name: name.clone(),
                process: None,
                opened: None,
                preallocated: true,
            })
            .collect();
        Ok(Bench {
            setup,
            study,
            machine,
            scratch: scratch.to_path_buf(),
            plans: None,
            opened: None,
            slots: BTreeMap::new(),
            assemblers: Assemblers::default(),
            controls,
            references: HashMap::new(),
            oracle_bytes: 0,
        })
    }

    /// The machine now.
    pub fn state(&self) -> State {
        crate::machine::state(self.setup.meter, &self.study.device)
    }

    /// The fixed loop.
    pub fn drift(&self) -> u64 {
        meter::fixed_loop(self.setup.meter)
    }

    /// The least time that a case can take, from the ceilings measured in this record.
    ///
    /// # Errors
    /// The record has no ceilings for the case's threads.
    pub fn floor(&self, subject: &Subject) -> Result<Floor, StudyError> {
        crate::machine::floor(self.machine, subject)
    }

    /// Opens a case in the worker of candidates. Compiled candidates of the case before are gone.
    ///
    /// # Errors
    /// The worker can't open it.
    pub fn open(&mut self, case: &Case, seed: u64, sets: usize) -> Result<u64, StudyError> {
        let space = self.study.space.clone();
        self.opened = Some(Request::Open { case: case.clone(), space, seed, sets });
        self.slots.clear();
        self.reopen()
    }

    fn reopen(&mut self) -> Result<u64, StudyError> {
        let Some(request) = self.opened.clone() else {
            return Err(StudyError::Worker("no case is open".to_string()));
        };
        let process = self.worker()?;
        match process.request(&request, PATIENCE) {
            Ok(Reply::Opened { upload_ns, .. }) => Ok(upload_ns),
            Ok(other) => Err(StudyError::Worker(format!("{other:?}"))),
            Err(failure) => {
                self.plans = None;
                Err(StudyError::Worker(failure.to_string()))
            }
        }
    }

    fn worker(&mut self) -> Result<&mut Process, StudyError> {
        if self.plans.is_none() {
            let fail = |e: Failure| StudyError::Worker(e.to_string());
            let mut process = Process::start(&self.setup.worker).map_err(fail)?;
            match process.next(PATIENCE).map_err(fail)? {
                Reply::Ready { .. } => {}
                other => return Err(StudyError::Worker(format!("{other:?}"))),
            }
            self.plans = Some(process);
        }
        self.plans.as_mut().ok_or_else(|| StudyError::Worker("it isn't there".to_string()))
    }

    /// Compiles candidates, in parallel: (slot, index in the space) each. A candidate during
    /// whose compilation the worker dies is found by compiling what is left one by one.
    ///
    /// # Errors
    /// The worker can't be started again.
    pub fn compile(
        &mut self,
        slots: &[[usize; 2]],
        jobs: usize,
        listing: bool,
    ) -> Result<BTreeMap<usize, Result<Compiled, Failed>>, StudyError> {
        let mut results = BTreeMap::new();
        let took = self.assemble(slots, jobs);
        let died = self.compile_some(slots, jobs, listing, &mut results)?;
        for (slot, ns) in took {
            // What took the time; the worker at hand only loaded it.
            if let Some(Ok(one)) = results.get_mut(&slot) {
                one.compile_ns = one.compile_ns.max(ns);
            }
        }
        if died.is_some() {
            for one in slots {
                if results.contains_key(&one[0]) {
                    continue;
                }
                if let Some(failed) = self.compile_some(&[*one], 1, listing, &mut results)? {
                    results.insert(one[0], Err(failed));
                }
            }
        }
        Ok(results)
    }

    /// Compiles candidates of the open case ahead where one process assembles one at a time.
    fn assemble(&mut self, slots: &[[usize; 2]], jobs: usize) -> BTreeMap<usize, u64> {
        match &self.opened {
            Some(Request::Open { case, space, .. }) if self.study.device.starts_with("cuda") => {
                let launch = &self.setup.worker;
                self.assemblers.assemble(launch, (case, space), slots, jobs, PATIENCE)
            }
            _ => BTreeMap::new(),
        }
    }

    /// One compile request. Returns how the worker died, if it did; it is running again then.
    fn compile_some(
        &mut self,
        slots: &[[usize; 2]],
        jobs: usize,
        listing: bool,
        results: &mut BTreeMap<usize, Result<Compiled, Failed>>,
    ) -> Result<Option<Failed>, StudyError> {
        let deadline = Duration::from_millis(self.study.search.deadline_ms);
        let request = Request::Compile { slots: slots.to_vec(), jobs, listing };
        let process = self.worker()?;
        let mut reply = process.request(&request, deadline);
        loop {
            match reply {
                Ok(Reply::Done) => return Ok(None),
                Ok(Reply::Compiled { slot, compile_ns, kernel_sha256, artifact_sha256 }) => {
                    let plan = slots.iter().find(|s| s[0] == slot).map_or(slot, |s| s[1]);
                    self.slots.insert(slot, plan);
                    let one = Compiled { compile_ns, kernel_sha256, artifact_sha256 };
                    results.insert(slot, Ok(one));
                }
                Ok(Reply::Rejected { slot, rule, message }) => {
                    let outcome = if rule.is_some() { Outcome::Rejected } else { Outcome::Failed };
                    results.insert(slot, Err((outcome, Fault { rule, message })));
                }
                Ok(other) => return Err(StudyError::Worker(format!("{other:?}"))),
                Err(failure) => {
                    let failed = self.died(&failure)?;
                    return Ok(Some(failed));
                }
            }
            reply = match self.plans.as_mut() {
                Some(process) => process.next(deadline),
                None => return Err(StudyError::Worker("it isn't there".to_string())),
            };
        }
    }

    /// After a crash or hang: starts the worker again and opens the case. What it had compiled
    /// is compiled again when it is needed.
    fn died(&mut self, failure: &Failure) -> Result<Failed, StudyError> {
        self.plans = None;
        let outcome = match failure {
            Failure::Hung(_) => Outcome::Hung,
            Failure::Crashed(_) => Outcome::Crashed,
            Failure::Start(_) | Failure::Protocol(_) => {
                return Err(StudyError::Worker(failure.to_string()));
            }
        };
        self.reopen()?;
        Ok((outcome, Fault::new(failure.to_string())))
    }

    /// A request about a compiled candidate.
    fn ask(&mut self, slot: usize, request: &Request) -> Result<Result<Reply, Failed>, StudyError> {
        let deadline = Duration::from_millis(self.study.search.deadline_ms);
        // A worker that was started again has nothing compiled.
        if self.plans.is_none() {
            self.reopen()?;
        }
        match self.worker()?.request(request, deadline) {
            Ok(Reply::Failed { message }) if message.contains("isn't compiled") => {
                let Some(plan) = self.slots.get(&slot).copied() else {
                    return Ok(Err((Outcome::Failed, Fault::new(message))));
                };
                let mut results = BTreeMap::new();
                if let Some(failed) = self.compile_some(&[[slot, plan]], 1, false, &mut results)? {
                    return Ok(Err(failed));
                }
                if let Some(Err(failed)) = results.remove(&slot) {
                    return Ok(Err(failed));
                }
                match self.worker()?.request(request, deadline) {
                    Ok(Reply::Failed { message }) => {
                        Ok(Err((Outcome::Failed, Fault::new(message))))
                    }
                    Ok(reply) => Ok(Ok(reply)),
                    Err(failure) => Ok(Err(self.died(&failure)?)),
                }
            }
            Ok(Reply::Failed { message }) => Ok(Err((Outcome::Failed, Fault::new(message)))),
            Ok(reply) => Ok(Ok(reply)),
            Err(failure) => Ok(Err(self.died(&failure)?)),
        }
    }

    /// Checks a compiled candidate whole, on both kinds of data.
    ///
    /// # Errors
    /// The oracle or the worker fails as such.
    pub fn check(
        &mut self,
        subject: &Subject,
        seed: u64,
        slot: usize,
    ) -> Result<Result<Check, Failed>, StudyError> {
        let mut outcome = empty_check();
        for data in DataKind::ALL {
            let file = self.scratch.join("output.raw");
            let path = file.to_string_lossy().to_string();
            let request = Request::Check { slot: Some(slot), data, file: path };
            match self.ask(slot, &request)? {
                Ok(Reply::Checked { guards_intact, inputs_unchanged }) => {
                    outcome.guards_intact &= guards_intact;
                    outcome.inputs_unchanged &= inputs_unchanged;
                }
                Ok(other) => return Err(StudyError::Worker(format!("{other:?}"))),
                Err(failed) => return Ok(Err(failed)),
            }
            let compared = self.compare(subject, seed, data, &file)?;
            outcome.data.push(compared);
        }
        Ok(Ok(outcome))
    }

    /// Compares a written output with the oracle's.
    fn compare(
        &mut self,
        subject: &Subject,
        seed: u64,
        data: DataKind,
        file: &Path,
    ) -> Result<(String, u64, u64, f64), StudyError> {
        let reference = self.reference(subject, seed)?;
        let which = usize::from(data == DataKind::Random);
        let output = reference.outputs[which].first().ok_or_else(|| StudyError::Case {
            case: subject.case.id.clone(),
            message: "the program has no output".to_string(),
        })?;
        let runtime = |e| StudyError::Engine(tilewright_engine::EngineError::Runtime(e));
        let bytes = std::fs::read(file).map_err(|e| StudyError::io("read", file, e))?;
        let dtype = subject.program().tensors[output.tensor].dtype;
        let mut buffer = Buffer::zeros(dtype, output.data.len()).map_err(runtime)?;
        if bytes.len() == buffer.bytes() {
            buffer.as_bytes_mut().copy_from_slice(&bytes);
        } else {
            // An output of another size is wrong everywhere.
            buffer.poison();
        }
        let tolerance = check::tolerance(
            subject.program(),
            &subject.plan.facts,
            &subject.values,
            output.tensor,
        );
        let c = compare(&tolerance, &buffer.to_f64(), &output.data, &output.magnitude);
        let ratio = if c.worst_ratio.is_finite() { c.worst_ratio } else { f64::MAX };
        Ok((data.name().to_string(), c.elements, c.failures, ratio))
    }

    fn reference(&mut self, subject: &Subject, seed: u64) -> Result<Arc<Reference>, StudyError> {
        let key = (subject.case.id.clone(), seed);
        if let Some(known) = self.references.get(&key) {
            return Ok(known.clone());
        }
        let compute = |data: DataKind| -> Result<Outputs, StudyError> {
            let inputs = subject.inputs_data(data.data(), seed)?;
            Ok(check::reference(subject.program(), &subject.values, &inputs, &[])?)
        };
        let outputs = [compute(DataKind::Dyadic)?, compute(DataKind::Random)?];
        let numbers: usize =
            outputs.iter().flat_map(|o| o.iter()).map(|o| o.data.len() + o.magnitude.len()).sum();
        let bytes = 8 * numbers;
        if self.oracle_bytes + bytes > ORACLE_BYTES {
            self.references.clear();
            self.oracle_bytes = 0;
        }
        let reference = Arc::new(Reference { outputs, bytes });
        self.oracle_bytes += reference.bytes;
        self.references.insert(key, reference.clone());
        Ok(reference)
    }

    /// Measures a compiled candidate.
    ///
    /// # Errors
    /// The worker can't be started again.
    pub fn measure(
        &mut self,
        slot: usize,
        protocol: &Protocol,
    ) -> Result<Result<Samples, Failed>, StudyError> {
        let request = Request::Measure { slot: Some(slot), protocol: *protocol };
        Ok(self.ask(slot, &request)?.and_then(samples))
    }

    /// Measures a compiled candidate up to its first sample.
    ///
    /// # Errors
    /// As [`Bench::measure`].
    pub fn start(
        &mut self,
        slot: usize,
        protocol: &Protocol,
    ) -> Result<Result<Samples, Failed>, StudyError> {
        let request = Request::Start { slot: Some(slot), protocol: *protocol };
        Ok(self.ask(slot, &request)?.and_then(samples))
    }

    /// One batch of a compiled candidate.
    ///
    /// # Errors
    /// As [`Bench::measure`].
    pub fn batch(
        &mut self,
        slot: usize,
        repetitions: u64,
    ) -> Result<Result<u64, Failed>, StudyError> {
        let request = Request::Batch { slot: Some(slot), repetitions };
        Ok(self.ask(slot, &request)?.and_then(time))
    }

    /// One batch of a compiled candidate by the device's own clock.
    ///
    /// # Errors
    /// As [`Bench::measure`].
    pub fn device_batch(
        &mut self,
        slot: usize,
        repetitions: u64,
    ) -> Result<Result<u64, Failed>, StudyError> {
        let request = Request::DeviceBatch { slot: Some(slot), repetitions };
        Ok(self.ask(slot, &request)?.and_then(time))
    }

    /// Names of the controls that are available.
    pub fn control_names(&self) -> Vec<String> {
        self.controls.iter().map(|c| c.name.clone()).collect()
    }

    /// A control's output policy in the case that was opened last.
    pub fn control_output(&self, name: &str) -> &'static str {
        let preallocated =
            self.controls.iter().find(|c| c.name == name).is_none_or(|c| c.preallocated);
        if preallocated { "preallocated" } else { "returned" }
    }

    /// Opens a case in a control's worker.
    ///
    /// # Errors
    /// Files can't be written.
    pub fn open_control(
        &mut self,
        name: &str,
        subject: &Subject,
        seed: u64,
    ) -> Result<Result<(), Failed>, StudyError> {
        let key = (subject.case.id.clone(), seed);
        let Some(at) = self.controls.iter().position(|c| c.name == name) else {
            return Ok(Err((Outcome::Missing, Fault::new("it isn't available"))));
        };
        if self.controls[at].opened.as_ref() == Some(&key) {
            return Ok(Ok(()));
        }
        let request = self.control_request(subject, seed)?;
        // Whatever the answer, the case before is closed.
        self.controls[at].opened = None;
        Ok(match self.ask_control(at, &request, PATIENCE) {
            Ok(Reply::Opened { preallocated, .. }) => {
                self.controls[at].preallocated = preallocated;
                self.controls[at].opened = Some(key);
                Ok(())
            }
            Ok(Reply::Unavailable { reason }) => Err((Outcome::Unsupported, Fault::new(reason))),
            Ok(other) => Err((Outcome::Failed, Fault::new(format!("{other:?}")))),
            Err(failed) => Err(failed),
        })
    }

    /// Opens a case in a control's worker and checks its result.
    ///
    /// # Errors
    /// The oracle fails, or files can't be written.
    pub fn check_control(
        &mut self,
        name: &str,
        subject: &Subject,
        seed: u64,
    ) -> Result<Result<Check, Failed>, StudyError> {
        if let Err(failed) = self.open_control(name, subject, seed)? {
            return Ok(Err(failed));
        }
        let Some(at) = self.controls.iter().position(|c| c.name == name) else {
            return Ok(Err((Outcome::Missing, Fault::new("it isn't available"))));
        };
        let mut outcome = empty_check();
        for data in DataKind::ALL {
            let file = self.scratch.join("control.raw");
            let path = file.to_string_lossy().to_string();
            match self.ask_control(at, &Request::Check { slot: None, data, file: path }, PATIENCE) {
                Ok(Reply::Checked { guards_intact, inputs_unchanged }) => {
                    outcome.guards_intact &= guards_intact;
                    outcome.inputs_unchanged &= inputs_unchanged;
                }
                Ok(other) => {
                    return Ok(Err((Outcome::Failed, Fault::new(format!("{other:?}")))));
                }
                Err(failed) => return Ok(Err(failed)),
            }
            let compared = self.compare(subject, seed, data, &file)?;
            outcome.data.push(compared);
        }
        Ok(Ok(outcome))
    }

    /// Writes the inputs of a case to files for a control.
    fn control_request(&self, subject: &Subject, seed: u64) -> Result<Request, StudyError> {
        let mut lengths = Vec::new();
        let mut write = |data: DataKind| -> Result<Vec<String>, StudyError> {
            let buffers = subject.inputs_data(data.data(), seed)?;
            lengths = buffers.iter().map(Buffer::len).collect();
            let named = buffers.iter().enumerate();
            named
                .map(|(i, buffer)| {
                    let file = self.scratch.join(format!("{}.{i}.raw", data.name()));
                    std::fs::write(&file, buffer.as_bytes())
                        .map_err(|e| StudyError::io("write", &file, e))?;
                    Ok(file.to_string_lossy().to_string())
                })
                .collect()
        };
        let (dyadic, random) = (write(DataKind::Dyadic)?, write(DataKind::Random)?);
        let output = subject.outputs()?.first().map_or(0, Buffer::len);
        let (case, sets) = (subject.case.clone(), self.study.search.sets);
        Ok(Request::OpenControl { case, dyadic, random, lengths, output, sets })
    }

    fn ask_control(
        &mut self,
        at: usize,
        request: &Request,
        deadline: Duration,
    ) -> Result<Reply, Failed> {
        let worker = &mut self.controls[at];
        let reply = match &mut worker.process {
            Some(process) => process.request(request, deadline),
            none => {
                worker.opened = None;
                let study = self.study;
                let launch =
                    control::launch(&worker.name, &study.device, study.threads, &self.setup.worker);
                Process::start(&launch).and_then(|mut process| {
                    match process.next(PATIENCE)? {
                        Reply::Ready { .. } => {}
                        other => return Ok(other),
                    }
                    none.insert(process).request(request, deadline)
                })
            }
        };
        match reply {
            Ok(Reply::Failed { message }) => Err((Outcome::Failed, Fault::new(message))),
            Ok(reply) => Ok(reply),
            Err(failure) => {
                worker.process = None;
                worker.opened = None;
                let outcome = match failure {
                    Failure::Hung(_) => Outcome::Hung,
                    Failure::Crashed(_) => Outcome::Crashed,
                    Failure::Start(_) | Failure::Protocol(_) => Outcome::Failed,
                };
                Err((outcome, Fault::new(failure.to_string())))
            }
        }
    }

    /// Measures the open case with a control.
    pub fn measure_control(&mut self, name: &str, protocol: &Protocol) -> Result<Samples, Failed> {
        let request = Request::Measure { slot: None, protocol: *protocol };
        self.about_control(name, &request, protocol).and_then(samples)
    }

    /// Measures the open case with a control up to its first sample.
    pub fn start_control(&mut self, name: &str, protocol: &Protocol) -> Result<Samples, Failed> {
        let request = Request::Start { slot: None, protocol: *protocol };
        self.about_control(name, &request, protocol).and_then(samples)
    }

    /// One batch of a control.
    pub fn batch_control(
        &mut self,
        name: &str,
        repetitions: u64,
        protocol: &Protocol,
    ) -> Result<u64, Failed> {
        let request = Request::Batch { slot: None, repetitions };
        self.about_control(name, &request, protocol).and_then(time)
    }

    /// One batch of a control by the device's own clock.
    pub fn device_batch_control(
        &mut self,
        name: &str,
        repetitions: u64,
        protocol: &Protocol,
    ) -> Result<u64, Failed> {
        let request = Request::DeviceBatch { slot: None, repetitions };
        self.about_control(name, &request, protocol).and_then(time)
    }

    fn about_control(
        &mut self,
        name: &str,
        request: &Request,
        protocol: &Protocol,
    ) -> Result<Reply, Failed> {
        let Some(at) = self.controls.iter().position(|c| c.name == name) else {
            return Err((Outcome::Missing, Fault::new("it isn't available")));
        };
        // As the candidates' worker does before it times one. It holds for all processes.
        if let Some(queue) = self.setup.device.queue() {
            let reset = queue.reset_residency().and_then(|()| queue.wait());
            reset.map_err(|e| (Outcome::Failed, Fault::new(e.to_string())))?;
        }
        self.ask_control(at, request, Duration::from_millis(protocol.deadline_ms))
    }
}

fn empty_check() -> Check {
    Check { data: Vec::new(), guards_intact: true, inputs_unchanged: true }
}

fn samples(reply: Reply) -> Result<Samples, Failed> {
    match reply {
        Reply::Measured { samples } => Ok(samples),
        other => Err((Outcome::Failed, Fault::new(format!("{other:?}")))),
    }
}

fn time(reply: Reply) -> Result<u64, Failed> {
    match reply {
        Reply::Time { ns } => Ok(ns),
        other => Err((Outcome::Failed, Fault::new(format!("{other:?}")))),
    }
}
