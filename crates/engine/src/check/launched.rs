//! The launch of a checked run: poisoned outputs, guard zones, and what is seen of them afterwards.

use super::{CheckReport, CheckedRun, LaunchValues, OutputCheck, ResidentTensors};
use super::{Tensors, tolerance};
use super::{launch as launch_on_host, launch_resident};
use crate::compile::Compiled;
use crate::error::EngineError;
use crate::tolerance::compare;
use tilewright_ir::interp::{self, Layout, Outputs};
use tilewright_ir::parallel;
use tilewright_ir::program::Access;
use tilewright_runtime::{Buffer, DeviceBuffer, RuntimeError};

/// Tensors that are ready for a launch: outputs are poisoned, and a device with memory of its own
/// has copies of them all.
pub(super) struct Staged {
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
    resident: Option<ResidentTensors>,
    /// Hashes of the inputs before the launch.
    before: Vec<u64>,
    /// The layout of each output, and the bytes between its elements before the launch.
    untouched: Vec<(Layout, Vec<u8>)>,
}

/// A launch that was made, with what is needed to judge it.
pub(super) struct Launched {
    staged: Staged,
    broken: Broken,
}

/// Makes the tensors of a launch.
///
/// # Errors
/// Too little memory, a missing size, the device's words.
pub(super) fn stage(tensors: Tensors<'_>) -> Result<Staged, EngineError> {
    let Tensors { program, signature, values, inputs, initial, queue } = tensors;
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
    let layouts =
        interp::layouts(program, &dims).map_err(|e| EngineError::Oracle(e.to_string()))?;
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
    let before = inputs.iter().map(fingerprint).collect();
    let resident = match queue {
        None => None,
        Some(queue) => {
            let upload = |buffers: &[Buffer]| -> Result<Vec<DeviceBuffer>, RuntimeError> {
                buffers.iter().map(|b| DeviceBuffer::from_host(&queue, b)).collect()
            };
            Some(ResidentTensors { inputs: upload(&inputs)?, outputs: upload(&outputs)? })
        }
    };
    Ok(Staged { inputs, outputs, resident, before, untouched })
}

impl Staged {
    /// Launches once.
    ///
    /// # Errors
    /// A refused or failed launch.
    pub(super) fn launch(
        mut self,
        compiled: &Compiled,
        values: &LaunchValues,
    ) -> Result<Launched, EngineError> {
        let mut broken = Broken::default();
        match &mut self.resident {
            None => launch_on_host(compiled, values, &self.inputs, &mut self.outputs)?,
            Some(resident) => {
                launch_resident(compiled, values, resident)?;
                broken = Broken::of(resident)?;
                // What the device holds now is what is checked, inputs included.
                for (host, device) in self.inputs.iter_mut().zip(&resident.inputs) {
                    device.download(host)?;
                }
                for (host, device) in self.outputs.iter_mut().zip(&resident.outputs) {
                    device.download(host)?;
                }
            }
        }
        Ok(Launched { staged: self, broken })
    }
}

impl Launched {
    /// Compares with a reference, in launch order.
    pub(super) fn judge(
        self,
        compiled: &Compiled,
        reference: &Outputs,
        values: &LaunchValues,
    ) -> CheckedRun {
        let Launched { staged, broken } = self;
        let Staged { inputs, outputs, resident, before, untouched } = staged;
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

/// A hash of a buffer's bytes that costs little more than reading them: the sum of what a bijection
/// makes of each word and its position, so that a single changed word is always seen, and threads
/// may share the work.
fn fingerprint(buffer: &Buffer) -> u64 {
    // Odd, with its bits spread: the golden ratio's.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = |position: usize, word: u64| {
        let mixed = word ^ (position as u64).wrapping_mul(SPREAD);
        (mixed ^ (mixed >> 32)).wrapping_mul(SPREAD)
    };
    let (words, rest) = buffer.as_bytes().as_chunks::<8>();
    let sums = parallel::parts(words, |first, part| {
        part.iter().enumerate().fold(0u64, |sum, (i, word)| {
            sum.wrapping_add(mixed(first + i, u64::from_le_bytes(*word)))
        })
    });
    let rest = rest.iter().enumerate().map(|(i, byte)| mixed(words.len() + i, u64::from(*byte)));
    sums.into_iter().chain(rest).fold(0, u64::wrapping_add)
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
