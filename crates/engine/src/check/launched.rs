//! The launch of a checked run: poisoned outputs, guard zones, and what is seen of them afterwards.

use super::{CheckReport, CheckedRun, LaunchValues, OutputCheck, ResidentTensors, tolerance};
use super::{launch as launch_on_host, launch_resident};
use crate::compile::Compiled;
use crate::error::EngineError;
use crate::tolerance::compare;
use tilewright_ir::interp::{self, Layout, Outputs};
use tilewright_ir::program::Access;
use tilewright_runtime::{Buffer, DeviceBuffer, RuntimeError};

/// A launch that was made, with what is needed to judge it.
pub(super) struct Launched {
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
    resident: Option<ResidentTensors>,
    /// Hashes of the inputs before the launch.
    before: Vec<u64>,
    /// The layout of each output, and the bytes between its elements before the launch.
    untouched: Vec<(Layout, Vec<u8>)>,
    broken: Broken,
}

/// Launches once on poisoned outputs.
///
/// # Errors
/// Too little memory, a missing size, a refused or failed launch.
pub(super) fn launch(
    compiled: &Compiled,
    values: &LaunchValues,
    inputs: Vec<Buffer>,
    initial: Vec<Buffer>,
) -> Result<Launched, EngineError> {
    let signature = compiled.handle().signature();
    let sizes = values.sizes(signature)?;
    let mut outputs = Vec::new();
    let mut initial = initial.into_iter();
    for (i, tensor) in signature.tensors.iter().enumerate() {
        match tensor.access {
            Access::In => {}
            Access::InOut => outputs.extend(initial.next()),
            Access::Out => {
                let len = usize::try_from(signature.span(i, &sizes))
                    .map_err(|_| RuntimeError::Length { has: 0, asked: usize::MAX })?;
                let mut buffer = Buffer::zeros(tensor.dtype, len)?;
                buffer.poison();
                outputs.push(buffer);
            }
        }
    }
    let dims = values.dims.iter().cloned().collect();
    let layouts = interp::layouts(&compiled.plan().program, &dims)
        .map_err(|e| EngineError::Oracle(e.to_string()))?;
    let written = layouts.into_iter().zip(&signature.tensors);
    let written = written.filter(|(_, t)| t.access != Access::In).map(|(layout, _)| layout);
    let untouched = outputs
        .iter()
        .zip(written)
        .map(|(buffer, layout)| {
            let bytes = gaps(buffer, &layout);
            (layout, bytes)
        })
        .collect();
    let before: Vec<u64> = inputs.iter().map(fingerprint).collect();
    let mut inputs = inputs;
    let mut broken = Broken::default();
    let resident = match compiled.handle().executable().queue().cloned() {
        None => {
            launch_on_host(compiled, values, &inputs, &mut outputs)?;
            None
        }
        Some(queue) => {
            let upload = |buffers: &[Buffer]| -> Result<Vec<DeviceBuffer>, RuntimeError> {
                buffers.iter().map(|b| DeviceBuffer::from_host(&queue, b)).collect()
            };
            let mut on_device =
                ResidentTensors { inputs: upload(&inputs)?, outputs: upload(&outputs)? };
            launch_resident(compiled, values, &mut on_device)?;
            broken = Broken::of(&on_device)?;
            // What the device holds now is what is checked, inputs included.
            for (host, device) in inputs.iter_mut().zip(&on_device.inputs) {
                device.download(host)?;
            }
            for (host, device) in outputs.iter_mut().zip(&on_device.outputs) {
                device.download(host)?;
            }
            Some(on_device)
        }
    };
    Ok(Launched { inputs, outputs, resident, before, untouched, broken })
}

impl Launched {
    /// Compares with a reference, in launch order.
    pub(super) fn judge(
        self,
        compiled: &Compiled,
        reference: &Outputs,
        values: &LaunchValues,
    ) -> CheckedRun {
        let Launched { inputs, outputs, resident, before, untouched, broken } = self;
        let (plan, signature) = (compiled.plan(), compiled.handle().signature());
        let names = |access: fn(Access) -> bool| {
            signature.tensors.iter().filter(move |t| access(t.access)).map(|t| t.name.clone())
        };
        let input_names: Vec<String> = names(|a| a == Access::In).collect();
        let output_names: Vec<String> = names(|a| a != Access::In).collect();
        let mut report = CheckReport {
            outputs: Vec::new(),
            broken_guards: Vec::new(),
            changed_inputs: Vec::new(),
            written_gaps: Vec::new(),
        };
        for (i, ((buffer, name), before)) in inputs.iter().zip(&input_names).zip(before).enumerate()
        {
            if !buffer.guards_intact() || broken.inputs.contains(&i) {
                report.broken_guards.push(name.clone());
            }
            if fingerprint(buffer) != before {
                report.changed_inputs.push(name.clone());
            }
        }
        for (i, (((buffer, name), output), (layout, untouched))) in
            outputs.iter().zip(output_names).zip(reference).zip(untouched).enumerate()
        {
            if !buffer.guards_intact() || broken.outputs.contains(&i) {
                report.broken_guards.push(name.clone());
            }
            if gaps(buffer, &layout) != untouched {
                report.written_gaps.push(name.clone());
            }
            let tolerance = tolerance(&plan.program, &plan.facts, values, output.tensor);
            let actual = buffer.to_f64();
            let pick = |data: &[f64]| -> Vec<f64> {
                output.layout.offsets().filter_map(|at| data.get(at).copied()).collect()
            };
            let comparison = if output.layout.is_packed() {
                compare(&tolerance, &actual, &output.data, &output.magnitude)
            } else {
                compare(&tolerance, &pick(&actual), &pick(&output.data), &pick(&output.magnitude))
            };
            report.outputs.push(OutputCheck { tensor: name, comparison });
        }
        CheckedRun { inputs, outputs, resident, report }
    }
}

/// Positions of device tensors whose guard zones were overwritten.
#[derive(Default)]
struct Broken {
    inputs: Vec<usize>,
    outputs: Vec<usize>,
}

impl Broken {
    fn of(tensors: &ResidentTensors) -> Result<Self, RuntimeError> {
        let broken = |buffers: &[DeviceBuffer]| -> Result<Vec<usize>, RuntimeError> {
            let mut found = Vec::new();
            for (i, buffer) in buffers.iter().enumerate() {
                if !buffer.guards_intact()? {
                    found.push(i);
                }
            }
            Ok(found)
        };
        Ok(Broken { inputs: broken(&tensors.inputs)?, outputs: broken(&tensors.outputs)? })
    }
}

/// A hash of a buffer's bytes that costs little more than reading them. Each step is a bijection
/// of the state for a given word and of the word for a given state, so that a single changed word
/// is always seen.
fn fingerprint(buffer: &Buffer) -> u64 {
    // Odd, with its bits spread: the golden ratio's.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let step = |state: u64, word: u64| (state ^ word).wrapping_mul(SPREAD).rotate_left(29);
    let bytes = buffer.as_bytes();
    let (words, rest) = bytes.as_chunks::<8>();
    let state = words.iter().fold(bytes.len() as u64, |s, w| step(s, u64::from_le_bytes(*w)));
    rest.iter().fold(state, |s, b| step(s, u64::from(*b)))
}

/// The bytes of an output's storage that belong to no element.
fn gaps(buffer: &Buffer, layout: &Layout) -> Vec<u8> {
    if layout.is_packed() {
        return Vec::new();
    }
    let width = buffer.dtype().bytes() as usize;
    let mut free = vec![true; buffer.len()];
    for at in layout.offsets() {
        if let Some(slot) = free.get_mut(at) {
            *slot = false;
        }
    }
    buffer
        .as_bytes()
        .chunks(width.max(1))
        .zip(free)
        .filter(|(_, free)| *free)
        .flat_map(|(bytes, _)| bytes.iter().copied())
        .collect()
}
