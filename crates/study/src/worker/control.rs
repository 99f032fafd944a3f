//! The worker of a control that runs in a process of this program, and how to start those of
//! other programs.

use super::message::{DataKind, Reply, Request};
use super::process::Launch;
use crate::canonical::sha256;
use crate::case::Case;
use crate::error::StudyError;
use crate::meter::Meter;
use crate::protocol::{self, Timed};
use std::io::{BufRead, Write};
use tilewright_controls::{self as controls, Control, OutputPolicy, Prepared, Problem};
use tilewright_runtime::Buffer;

/// How to start a control's worker for a device; `own` starts a worker of this program, to which
/// the name is added. Variables that would choose other kernels or threads are unset.
pub fn launch(name: &str, device: &str, threads: u32, own: &Launch) -> Launch {
    let mut launch = match controls::torch::mode(name) {
        Some(mode) => Launch {
            program: "python3".into(),
            args: controls::torch::arguments(mode, device, threads),
            ..Launch::default()
        },
        None => {
            let mut launch = own.clone();
            launch.args.extend(["--control".to_string(), name.to_string()]);
            launch
        }
    };
    launch.unset = controls::VARIABLES.map(str::to_string).to_vec();
    launch
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
            Request::OpenControl { case, dyadic, random, lengths, output, sets } => {
                open = None;
                let files = [dyadic, random];
                let shape = Tensors { lengths: &lengths, output, sets };
                match Open::new(control.as_ref(), meter, &case, &files, &shape) {
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

/// Elements of each input and of the output, and copies of the random inputs with an output.
struct Tensors<'a> {
    lengths: &'a [usize],
    output: usize,
    sets: usize,
}

/// Inputs and an output.
type Set = (Vec<Buffer>, Buffer);

struct Open {
    prepared: Box<dyn Prepared>,
    dyadic: Vec<Buffer>,
    /// Random inputs and an output, in copies.
    sets: Vec<Set>,
    /// Fingerprints of the inputs: dyadic, random.
    prints: [Vec<String>; 2],
}

impl Open {
    fn new(
        control: &dyn Control,
        meter: &dyn Meter,
        case: &Case,
        files: &[Vec<String>; 2],
        shape: &Tensors<'_>,
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
        let make = || -> Result<(Vec<Buffer>, Vec<Set>), String> {
            let one = || -> Result<Set, String> {
                let output = Buffer::zeros(tilewright_ir::DType::F32, shape.output);
                Ok((load(&files[1], shape.lengths)?, output.map_err(|e| e.to_string())?))
            };
            let sets = (0..shape.sets.max(1)).map(|_| one()).collect::<Result<_, _>>()?;
            Ok((load(&files[0], shape.lengths)?, sets))
        };
        let mut made = Err("the meter ran nothing".to_string());
        let upload_ns = meter.step(&format!("upload {}", case.id), &mut || made = make());
        let (dyadic, sets) = made?;
        let print = |buffers: &[Buffer]| buffers.iter().map(|b| sha256(b.as_bytes())).collect();
        let prints = [print(&dyadic), print(sets.first().map_or(&[][..], |s| &s.0))];
        Ok((Open { prepared, dyadic, sets, prints }, upload_ns))
    }

    fn serve(&mut self, name: &str, meter: &dyn Meter, request: Request) -> Result<Reply, String> {
        match request {
            Request::Check { data, file, .. } => self.check(data, &file),
            Request::Measure { protocol, .. } => self
                .timed(&mut |timed| protocol::measure(meter, name, &protocol, timed))
                .map(|samples| Reply::Measured { samples }),
            Request::Start { protocol, .. } => self
                .timed(&mut |timed| protocol::start(meter, name, &protocol, timed))
                .map(|samples| Reply::Measured { samples }),
            Request::Batch { repetitions, .. } => self
                .timed(&mut |timed| {
                    timed.run(1)?;
                    protocol::batch(meter, name, repetitions, timed)
                })
                .map(|ns| Reply::Time { ns }),
            Request::DeviceBatch { repetitions, .. } => self
                .timed(&mut |timed| protocol::device_batch(meter, name, repetitions, timed))
                .map(|ns| Reply::Time { ns }),
            _ => Err("not for a control".to_string()),
        }
    }

    fn check(&mut self, data: DataKind, file: &str) -> Result<Reply, String> {
        let Some((random, output)) = self.sets.first_mut() else {
            return Err("no tensors".to_string());
        };
        let (buffers, prints) = match data {
            DataKind::Dyadic => (&self.dyadic, &self.prints[0]),
            DataKind::Random => (&*random, &self.prints[1]),
        };
        output.poison();
        let inputs = slices(buffers)?;
        let elements = output.as_mut_slice::<f32>().map_err(|e| e.to_string())?;
        self.prepared.call(&inputs, elements).map_err(|e| e.to_string())?;
        let guards_intact = buffers.iter().all(Buffer::guards_intact) && output.guards_intact();
        let inputs_unchanged =
            buffers.iter().zip(prints).all(|(b, print)| sha256(b.as_bytes()) == *print);
        std::fs::write(file, output.as_bytes()).map_err(|e| format!("writing the output: {e}"))?;
        Ok(Reply::Checked { guards_intact, inputs_unchanged })
    }

    fn timed<T>(
        &mut self,
        measure: &mut dyn FnMut(&mut dyn Timed) -> Result<T, String>,
    ) -> Result<T, String> {
        let mut sets = Vec::with_capacity(self.sets.len());
        for (inputs, output) in &mut self.sets {
            sets.push((slices(inputs)?, output.as_mut_slice::<f32>().map_err(|e| e.to_string())?));
        }
        measure(&mut Turns { prepared: self.prepared.as_mut(), sets, turn: 0 })
    }
}

/// Calls of a control that take the copies of the tensors in turn.
struct Turns<'a> {
    prepared: &'a mut dyn Prepared,
    sets: Vec<(Vec<&'a [f32]>, &'a mut [f32])>,
    turn: usize,
}

impl Timed for Turns<'_> {
    fn run(&mut self, calls: u64) -> Result<(), String> {
        let copies = self.sets.len();
        for _ in 0..calls {
            self.turn = if self.turn + 1 < copies { self.turn + 1 } else { 0 };
            let Some((inputs, output)) = self.sets.get_mut(self.turn) else {
                return Err("no tensors".to_string());
            };
            self.prepared.call(inputs, output).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// A control with a device of its own has its tensors there, in one copy.
    fn device(&mut self, calls: u64, samples: usize) -> Result<Option<Vec<u64>>, String> {
        let Some((inputs, output)) = self.sets.first_mut() else {
            return Err("no tensors".to_string());
        };
        self.prepared.device_batches(inputs, output, calls, samples).map_err(|e| e.to_string())
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

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_controls::ControlError;

    /// 3 µs a call by a clock of its own; counts its calls.
    struct OnDevice(u64);

    impl Prepared for OnDevice {
        fn call(&mut self, inputs: &[&[f32]], output: &mut [f32]) -> Result<(), ControlError> {
            self.0 += 1;
            output.copy_from_slice(inputs[0]);
            Ok(())
        }

        fn device_batches(
            &mut self,
            _inputs: &[&[f32]],
            _output: &mut [f32],
            calls: u64,
            samples: usize,
        ) -> Result<Option<Vec<u64>>, ControlError> {
            Ok(Some(vec![3000 * calls; samples]))
        }
    }

    #[test]
    fn calls_take_copies_in_turn_and_a_clock_of_its_own_counts() {
        let (first, second) = ([1.0f32; 2], [2.0f32; 2]);
        let (mut a, mut b) = ([0.0f32; 2], [0.0f32; 2]);
        let mut control = OnDevice(0);
        let sets = vec![(vec![&first[..]], &mut a[..]), (vec![&second[..]], &mut b[..])];
        let mut turns = Turns { prepared: &mut control, sets, turn: 0 };
        turns.run(1).unwrap();
        assert_eq!(turns.device(5, 2), Ok(Some(vec![15_000; 2])));
        turns.run(2).unwrap();
        assert_eq!((control.0, a, b), (3, first, second));
        let mut none = Turns { prepared: &mut control, sets: Vec::new(), turn: 0 };
        assert!(none.run(1).is_err() && none.device(1, 1).is_err());
    }
}
