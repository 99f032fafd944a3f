//! The worker that compiles and runs candidates.

use super::message::{DataKind, Reply, Request};
use super::tensors::{Launches, Tensor};
use crate::canonical::sha256;
use crate::case::Case;
use crate::error::StudyError;
use crate::meter::Meter;
use crate::protocol::{self, Protocol, Timed};
use crate::spec::Space;
use crate::subject::Subject;
use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use tilewright_engine::{Handle, Input, LaunchOptions};
use tilewright_kernel::lower::Lowered;
use tilewright_runtime::{Buffer, Device, Queue, RuntimeError};

/// Serves requests until the input ends or says so.
///
/// # Errors
/// The output can't be written.
pub fn serve(
    device: &Arc<dyn Device>,
    meter: &dyn Meter,
    input: impl BufRead,
    mut output: impl Write,
) -> Result<(), StudyError> {
    let mut say = |reply: &Reply| -> Result<(), StudyError> {
        let line = serde_json::to_string(reply).map_err(|e| StudyError::Worker(e.to_string()))?;
        writeln!(output, "{line}")
            .and_then(|()| output.flush())
            .map_err(|e| StudyError::Worker(e.to_string()))
    };
    say(&Reply::Ready { version: None })?;
    let mut open: Option<Open> = None;
    for line in input.lines() {
        let Ok(line) = line else { break };
        let request = match serde_json::from_str::<Request>(&line) {
            Ok(request) => request,
            Err(e) => {
                say(&Reply::Failed { message: format!("no request: {e}") })?;
                continue;
            }
        };
        match request {
            Request::Exit => break,
            Request::Open { case, space, seed, sets } => {
                // The old tensors go before the new ones come.
                open = None;
                match Open::new(device, meter, &case, &space, seed, sets) {
                    Ok((opened, upload_ns)) => {
                        open = Some(opened);
                        say(&Reply::Opened { upload_ns, preallocated: true })?;
                    }
                    Err(e) => say(&Reply::Failed { message: e.to_string() })?,
                }
            }
            other => match &mut open {
                None => say(&Reply::Failed { message: "no case is open".to_string() })?,
                Some(open) => open.serve(device, meter, other, &mut say)?,
            },
        }
    }
    Ok(())
}

/// An open case.
struct Open {
    subject: Subject,
    dyadic: Vec<Tensor>,
    /// Random inputs and an output, in copies.
    sets: Vec<(Vec<Tensor>, Tensor)>,
    /// Fingerprints of the inputs: dyadic, random.
    prints: [Vec<String>; 2],
    compiled: HashMap<usize, Compiled>,
}

struct Compiled {
    handle: Handle,
    kernel_sha256: String,
}

impl Open {
    fn new(
        device: &Arc<dyn Device>,
        meter: &dyn Meter,
        case: &Case,
        space: &Space,
        seed: u64,
        sets: usize,
    ) -> Result<(Self, u64), StudyError> {
        let subject = Subject::new(case, device.target(), space)?;
        let mut made = None;
        let upload_ns = meter.step(&format!("upload {}", case.id), &mut || {
            made = Some(tensors(&subject, device.queue(), seed, sets));
        });
        let (dyadic, sets) = match made {
            Some(made) => made?,
            None => return Err(StudyError::Worker("the meter ran nothing".to_string())),
        };
        let random = sets.first().map_or(&[][..], |s| &s.0);
        let failed = |e| StudyError::Engine(tilewright_engine::EngineError::Runtime(e));
        let prints = [prints(&dyadic).map_err(failed)?, prints(random).map_err(failed)?];
        Ok((Open { subject, dyadic, sets, prints, compiled: HashMap::new() }, upload_ns))
    }

    fn serve(
        &mut self,
        device: &Arc<dyn Device>,
        meter: &dyn Meter,
        request: Request,
        say: &mut dyn FnMut(&Reply) -> Result<(), StudyError>,
    ) -> Result<(), StudyError> {
        let reply = match request {
            Request::Compile { slots, jobs, listing } => {
                self.compile(device, meter, &slots, jobs, listing, say)?;
                Ok(Reply::Done)
            }
            Request::Check { slot, data, file } => self.check(slot, data, &file),
            Request::Measure { slot, protocol } => self
                .timed(slot, &mut |subject, timed| {
                    protocol::measure(meter, subject, &protocol, timed)
                })
                .map(|samples| Reply::Measured { samples }),
            Request::Start { slot, protocol } => {
                self.start(meter, slot, &protocol).map(|samples| Reply::Measured { samples })
            }
            Request::Batch { slot, repetitions } => self
                .timed(slot, &mut |subject, timed| {
                    timed.run(1)?;
                    protocol::batch(meter, subject, repetitions, timed)
                })
                .map(|ns| Reply::Time { ns }),
            Request::DeviceBatch { slot, repetitions } => self
                .timed(slot, &mut |subject, timed| {
                    protocol::device_batch(meter, subject, repetitions, timed)
                })
                .map(|ns| Reply::Time { ns }),
            Request::Open { .. } | Request::OpenControl { .. } | Request::Exit => {
                Err("not for an open case".to_string())
            }
        };
        say(&reply.unwrap_or_else(|message| Reply::Failed { message }))
    }

    fn start(
        &mut self,
        meter: &dyn Meter,
        slot: Option<usize>,
        protocol: &Protocol,
    ) -> Result<protocol::Samples, String> {
        self.timed(slot, &mut |subject, timed| protocol::start(meter, subject, protocol, timed))
    }

    /// Lowers and compiles in parallel; results are said as they come.
    fn compile(
        &mut self,
        device: &Arc<dyn Device>,
        meter: &dyn Meter,
        slots: &[[usize; 2]],
        jobs: usize,
        listing: bool,
        say: &mut dyn FnMut(&Reply) -> Result<(), StudyError>,
    ) -> Result<(), StudyError> {
        let next = AtomicUsize::new(0);
        let (send, results) = channel();
        let subject = &self.subject;
        let compiled = &mut self.compiled;
        std::thread::scope(|scope| {
            for _ in 0..jobs.clamp(1, slots.len().max(1)) {
                let (send, next) = (send.clone(), &next);
                scope.spawn(move || {
                    while let Some([slot, plan]) = slots.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let result = compile_one(device, meter, subject, *plan, listing);
                        if send.send((*slot, result)).is_err() {
                            break;
                        }
                    }
                });
            }
            drop(send);
            for (slot, result) in results {
                match result {
                    Ok((one, compile_ns, artifact_sha256)) => {
                        let kernel_sha256 = one.kernel_sha256.clone();
                        compiled.insert(slot, one);
                        say(&Reply::Compiled { slot, compile_ns, kernel_sha256, artifact_sha256 })?;
                    }
                    Err((rule, message)) => say(&Reply::Rejected { slot, rule, message })?,
                }
            }
            Ok(())
        })
    }

    fn check(&mut self, slot: Option<usize>, data: DataKind, file: &str) -> Result<Reply, String> {
        let compiled = slot.and_then(|s| self.compiled.get(&s)).ok_or("it isn't compiled")?;
        let Some((random, output)) = self.sets.first_mut() else {
            return Err("no tensors".to_string());
        };
        let (inputs, prints) = match data {
            DataKind::Dyadic => (&self.dyadic, &self.prints[0]),
            DataKind::Random => (&*random, &self.prints[1]),
        };
        let failed = |e: RuntimeError| e.to_string();
        output.poison().map_err(failed)?;
        let scalars = scalars(&self.subject);
        let options = LaunchOptions { dims: &[], scalars: &scalars };
        let borrowed: Vec<&dyn Input> = inputs.iter().map(Tensor::input).collect();
        let launched = compiled.handle.run_with(&options, &borrowed, &mut [output.output()]);
        launched.map_err(|e| e.to_string())?;
        let mut guards_intact = output.guards_intact().map_err(failed)?;
        for input in inputs {
            guards_intact &= input.guards_intact().map_err(failed)?;
        }
        let inputs_unchanged = self::prints(inputs).map_err(failed)? == *prints;
        let written = output.with_bytes(|bytes| std::fs::write(file, bytes)).map_err(failed)?;
        written.map_err(|e| format!("writing the output: {e}"))?;
        Ok(Reply::Checked { guards_intact, inputs_unchanged })
    }

    /// Calls `measure` with a call that launches a candidate on the copies of the tensors in turn.
    fn timed<T>(
        &mut self,
        slot: Option<usize>,
        measure: &mut dyn FnMut(&str, &mut dyn Timed) -> Result<T, String>,
    ) -> Result<T, String> {
        let compiled = slot.and_then(|s| self.compiled.get(&s)).ok_or("it isn't compiled")?;
        let scalars = scalars(&self.subject);
        let options = LaunchOptions { dims: &[], scalars: &scalars };
        let mut bound = Vec::with_capacity(self.sets.len());
        for (inputs, output) in &mut self.sets {
            let inputs: Vec<&dyn Input> = inputs.iter().map(Tensor::input).collect();
            let launch = compiled.handle.bind_all(&options, &inputs, &mut [output.output()]);
            bound.push(launch.map_err(|e| e.to_string())?);
        }
        // What was timed before must not decide what the cache holds now.
        if let Some(queue) = bound.first().and_then(|launch| launch.queue()) {
            queue.reset_residency().and_then(|()| queue.wait()).map_err(|e| e.to_string())?;
        }
        measure(&compiled.kernel_sha256, &mut Launches::new(bound)?)
    }
}

/// Fingerprints of tensors.
fn prints(tensors: &[Tensor]) -> Result<Vec<String>, RuntimeError> {
    tensors.iter().map(|tensor| tensor.with_bytes(sha256)).collect()
}

/// Dyadic inputs, and copies of the random inputs with an output.
type Tensors = (Vec<Tensor>, Vec<(Vec<Tensor>, Tensor)>);

fn tensors(
    subject: &Subject,
    queue: Option<&Arc<dyn Queue>>,
    seed: u64,
    copies: usize,
) -> Result<Tensors, StudyError> {
    let failed = |e| StudyError::Engine(tilewright_engine::EngineError::Runtime(e));
    let place = |host: Buffer| Tensor::place(host, queue).map_err(failed);
    let inputs = |data: DataKind| -> Result<Vec<Tensor>, StudyError> {
        subject.inputs_data(data.data(), seed)?.into_iter().map(place).collect()
    };
    if copies == 0 {
        return Ok((Vec::new(), Vec::new()));
    }
    let dyadic = inputs(DataKind::Dyadic)?;
    let mut sets = Vec::new();
    for _ in 0..copies {
        let mut outputs = subject.outputs()?;
        let (Some(output), true) = (outputs.pop(), outputs.is_empty()) else {
            return Err(StudyError::Case {
                case: subject.case.id.clone(),
                message: "studies measure programs with one output".to_string(),
            });
        };
        sets.push((inputs(DataKind::Random)?, place(output)?));
    }
    Ok((dyadic, sets))
}

fn scalars(subject: &Subject) -> Vec<(&str, f64)> {
    subject.values.scalars.iter().map(|(n, v)| (n.as_str(), *v)).collect()
}

/// The kernels of a candidate as text, each ended by a line feed.
pub fn kernel_text(lowered: &Lowered) -> String {
    lowered.launches.iter().map(|kernel| format!("{kernel}\n")).collect()
}

/// A compiled candidate, its compile time and the hash of its listing; or the rule and the reason.
type CompileResult = Result<(Compiled, u64, Option<String>), (Option<String>, String)>;

fn compile_one(
    device: &Arc<dyn Device>,
    meter: &dyn Meter,
    subject: &Subject,
    plan: usize,
    listing: bool,
) -> CompileResult {
    let mut result = Err((None, "the meter ran nothing".to_string()));
    let compile_ns = meter.step(&format!("compile {} {plan}", subject.case.id), &mut || {
        result = lower_and_compile(device, subject, plan);
    });
    let (lowered, executable) = result?;
    let kernel_sha256 = sha256(kernel_text(&lowered).as_bytes());
    let artifact = listing.then(|| sha256(executable.disassembly().as_bytes()));
    let handle = Handle::new(subject.program(), &lowered.launches, executable)
        .map_err(|e| (None, e.to_string()))?;
    Ok((Compiled { handle, kernel_sha256 }, compile_ns, artifact))
}

/// Why a candidate has no kernel: the rule that refused it, if one did, and the words.
type Refusal = (Option<String>, String);

fn lower_and_compile(
    device: &Arc<dyn Device>,
    subject: &Subject,
    plan: usize,
) -> Result<(Lowered, Box<dyn tilewright_runtime::Executable>), Refusal> {
    let lowered = subject
        .plan
        .lower(plan)
        .map_err(|e| (Some(e.rule.name().to_string()), e.detail.clone()))?;
    let executable = device.compile(&lowered.launches).map_err(|e| match e {
        RuntimeError::Unsupported { rule, failure } => (Some(rule), failure.detail),
        other => (None, other.to_string()),
    })?;
    Ok((lowered, executable))
}
