//! The worker of a control that runs in a process of this program, and how to start those of
//! other programs.

use super::message::{DataKind, Reply, Request};
use super::process::Launch;
use crate::canonical::sha256;
use crate::case::Case;
use crate::error::StudyError;
use crate::meter::Meter;
use crate::protocol;
use std::io::{BufRead, Write};
use tilewright_controls::{self as controls, Control, OutputPolicy, Prepared, Problem};
use tilewright_runtime::Buffer;

/// How to start a control's worker; `own` starts a worker of this program, to which the name is
/// added.
pub fn launch(name: &str, threads: u32, own: &Launch) -> Launch {
    match controls::torch::mode(name) {
        Some(mode) => Launch {
            program: "python3".into(),
            args: ["-c", controls::torch::SCRIPT, mode, &threads.to_string()]
                .map(str::to_string)
                .to_vec(),
            env: vec![],
        },
        None => {
            let mut launch = own.clone();
            launch.args.extend(["--control".to_string(), name.to_string()]);
            launch
        }
    }
}

/// Serves requests for a control until the input ends.
///
/// # Errors
/// The output can't be written.
pub fn serve(
    name: &str,
    threads: u32,
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
    let control = match controls::control(name, threads as usize) {
        Ok(control) => control,
        Err(e) => return say(&Reply::Unavailable { reason: e.to_string() }),
    };
    say(&Reply::Ready { version: control.version() })?;
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
        let reply = match request {
            Request::Exit => break,
            Request::OpenControl { case, dyadic, random, lengths, output } => {
                open = None;
                let files = [dyadic, random];
                match Open::new(control.as_ref(), meter, &case, &files, &lengths, output) {
                    Ok((opened, upload_ns)) => {
                        open = Some(opened);
                        let preallocated = control.output() == OutputPolicy::Preallocated;
                        Ok(Reply::Opened { upload_ns, preallocated })
                    }
                    Err(reason) => Ok(Reply::Unavailable { reason }),
                }
            }
            other => match &mut open {
                None => Err("no case is open".to_string()),
                Some(open) => open.serve(name, meter, other),
            },
        };
        say(&reply.unwrap_or_else(|message| Reply::Failed { message }))?;
    }
    Ok(())
}

struct Open {
    prepared: Box<dyn Prepared>,
    /// Dyadic, random.
    inputs: [Vec<Buffer>; 2],
    prints: [Vec<String>; 2],
    output: Buffer,
}

impl Open {
    fn new(
        control: &dyn Control,
        meter: &dyn Meter,
        case: &Case,
        files: &[Vec<String>; 2],
        lengths: &[usize],
        output: usize,
    ) -> Result<(Self, u64), String> {
        if case.dtype != "f32" {
            return Err(format!("it doesn't compute {}", case.dtype));
        }
        let trans = case.trans.as_deref().unwrap_or("nn").as_bytes();
        let problem = Problem {
            op: case.op.clone(),
            shape: case.shape.iter().map(|s| *s as usize).collect(),
            transposed: [trans.first() == Some(&b't'), trans.get(1) == Some(&b't')],
            epilogue: !case.epilogue.is_empty(),
            threads: case.threads as usize,
        };
        let prepared = control.prepare(&problem).map_err(|e| e.to_string())?;
        let mut read = Err("the meter ran nothing".to_string());
        let upload_ns = meter.step(&format!("upload {}", case.id), &mut || {
            read =
                load(&files[0], lengths).and_then(|dyadic| Ok([dyadic, load(&files[1], lengths)?]));
        });
        let inputs = read?;
        let print = |buffers: &[Buffer]| buffers.iter().map(|b| sha256(b.as_bytes())).collect();
        let prints = [print(&inputs[0]), print(&inputs[1])];
        let output = Buffer::zeros(tilewright_ir::DType::F32, output).map_err(|e| e.to_string())?;
        Ok((Open { prepared, inputs, prints, output }, upload_ns))
    }

    fn serve(&mut self, name: &str, meter: &dyn Meter, request: Request) -> Result<Reply, String> {
        match request {
            Request::Check { data, file, .. } => self.check(data, &file),
            Request::Measure { protocol, .. } => self
                .timed(&mut |call| protocol::measure(meter, name, &protocol, call))
                .map(|samples| Reply::Measured { samples }),
            Request::Start { protocol, .. } => self
                .timed(&mut |call| protocol::start(meter, name, &protocol, call))
                .map(|samples| Reply::Measured { samples }),
            Request::Batch { repetitions, .. } => self
                .timed(&mut |call| {
                    call()?;
                    protocol::batch(meter, name, repetitions, call)
                })
                .map(|ns| Reply::Time { ns }),
            _ => Err("not for a control".to_string()),
        }
    }

    fn check(&mut self, data: DataKind, file: &str) -> Result<Reply, String> {
        let which = usize::from(data == DataKind::Random);
        self.output.poison();
        let inputs = slices(&self.inputs[which])?;
        let output = self.output.as_mut_slice::<f32>().map_err(|e| e.to_string())?;
        self.prepared.call(&inputs, output).map_err(|e| e.to_string())?;
        let buffers = &self.inputs[which];
        let guards_intact =
            buffers.iter().all(Buffer::guards_intact) && self.output.guards_intact();
        let inputs_unchanged = buffers
            .iter()
            .zip(&self.prints[which])
            .all(|(b, print)| sha256(b.as_bytes()) == *print);
        std::fs::write(file, self.output.as_bytes())
            .map_err(|e| format!("writing the output: {e}"))?;
        Ok(Reply::Checked { guards_intact, inputs_unchanged })
    }

    fn timed<T>(
        &mut self,
        measure: &mut dyn FnMut(protocol::Call<'_>) -> Result<T, String>,
    ) -> Result<T, String> {
        let inputs = slices(&self.inputs[1])?;
        let output = self.output.as_mut_slice::<f32>().map_err(|e| e.to_string())?;
        let prepared = &mut self.prepared;
        measure(&mut || prepared.call(&inputs, output).map_err(|e| e.to_string()))
    }
}

fn slices(buffers: &[Buffer]) -> Result<Vec<&[f32]>, String> {
    buffers.iter().map(|b| b.as_slice::<f32>().map_err(|e| e.to_string())).collect()
}

fn load(files: &[String], lengths: &[usize]) -> Result<Vec<Buffer>, String> {
    let mut buffers = Vec::new();
    for (file, length) in files.iter().zip(lengths) {
        let bytes = std::fs::read(file).map_err(|e| format!("reading an input: {e}"))?;
        let mut buffer =
            Buffer::zeros(tilewright_ir::DType::F32, *length).map_err(|e| e.to_string())?;
        if bytes.len() != buffer.bytes() {
            return Err("an input file has another length".to_string());
        }
        buffer.as_bytes_mut().copy_from_slice(&bytes);
        buffers.push(buffer);
    }
    Ok(buffers)
}
