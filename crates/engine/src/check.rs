//! A checked run: poisoned outputs between guard zones, every element against the oracle, inputs
//! unchanged afterwards.

use crate::bound::Bound;
use crate::compile::Compiled;
use crate::error::EngineError;
use crate::handle::LaunchOptions;
use crate::signature::{MAX_ITEMS, Signature, Sizes};
use crate::tensor::{Input, Output};
use crate::tolerance::{Comparison, Tolerance, compare};
use tilewright_ir::DType;
use tilewright_ir::facts::{Facts, Family};
use tilewright_ir::interp::{self, Bindings, Outputs};
use tilewright_ir::program::{Access, Op, Program, TensorId};
use tilewright_runtime::{Buffer, DeviceBuffer, RuntimeError, memory};

/// Sizes and scalars of one launch, by name.
#[derive(Clone, Debug, Default)]
pub struct LaunchValues {
    /// Symbolic dimensions, strides included.
    pub dims: Vec<(String, u64)>,
    /// Run-time scalars.
    pub scalars: Vec<(String, f64)>,
}

impl LaunchValues {
    /// The sizes of a signature's symbolic dimensions.
    ///
    /// # Errors
    /// A dimension has no value here.
    pub fn sizes(&self, signature: &Signature) -> Result<Sizes, EngineError> {
        let mut sizes: Sizes = [None; MAX_ITEMS];
        for (size, dim) in sizes.iter_mut().zip(&signature.dims) {
            let value = self.dims.iter().find(|(name, _)| *name == dim.name).map(|(_, v)| *v);
            *size = Some(value.ok_or_else(|| EngineError::MissingSize(dim.name.clone()))?);
        }
        Ok(sizes)
    }

    /// Calls `f` with these values as launch options.
    pub fn with_options<T>(&self, f: impl FnOnce(&LaunchOptions) -> T) -> T {
        let dims: Vec<(&str, u64)> = self.dims.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        let scalars: Vec<(&str, f64)> =
            self.scalars.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        f(&LaunchOptions { dims: &dims, scalars: &scalars })
    }
}

/// The outcome for one output tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct OutputCheck {
    /// The tensor's name.
    pub tensor: String,
    /// Every element against the reference.
    pub comparison: Comparison,
}

/// The outcome of a checked run.
#[derive(Clone, PartialEq, Debug)]
pub struct CheckReport {
    /// Each output.
    pub outputs: Vec<OutputCheck>,
    /// Tensors whose guard zones were overwritten.
    pub broken_guards: Vec<String>,
    /// Inputs whose bytes changed.
    pub changed_inputs: Vec<String>,
    /// Outputs in which elements between the strided rows were written.
    pub written_gaps: Vec<String>,
}

impl CheckReport {
    /// Whether everything is as it must be.
    pub fn passed(&self) -> bool {
        self.outputs.iter().all(|o| o.comparison.failures == 0)
            && self.broken_guards.is_empty()
            && self.changed_inputs.is_empty()
            && self.written_gaps.is_empty()
    }

    /// What is wrong, in one sentence; `None` if nothing is.
    pub fn complaint(&self) -> Option<String> {
        for output in &self.outputs {
            if let Some((at, actual, reference, bound)) = output.comparison.first_failure {
                return Some(format!(
                    "{} of {} elements of `{}` are outside their bound; the first is element \
                     {at}: {actual:e} instead of {reference:e}, bound {bound:e}",
                    output.comparison.failures, output.comparison.elements, output.tensor
                ));
            }
        }
        let named = [
            (&self.broken_guards, "memory beside these tensors was overwritten"),
            (&self.changed_inputs, "these inputs were changed"),
            (&self.written_gaps, "elements between the rows of these outputs were written"),
        ];
        named
            .into_iter()
            .find(|(tensors, _)| !tensors.is_empty())
            .map(|(tensors, what)| format!("{what}: {}", tensors.join(", ")))
    }
}

/// Bytes that a checked run needs: the tensors, and f64 copies for the oracle (inputs; for each
/// output the reference, its error scale and the actual values).
pub fn memory_needed(signature: &Signature, sizes: &Sizes) -> u64 {
    signature
        .tensors
        .iter()
        .enumerate()
        .map(|(i, tensor)| {
            let copies = match tensor.access {
                Access::In => 1,
                Access::Out => 3,
                Access::InOut => 5,
            };
            let per_element = tensor.dtype.bytes() + 8 * copies;
            signature.span(i, sizes).saturating_mul(per_element)
        })
        .fold(0, u64::saturating_add)
}

/// Checks that a checked run's memory can be had, before any of it is allocated.
///
/// # Errors
/// [`RuntimeError::OutOfMemory`] naming the numbers; a missing size.
pub fn check_memory(signature: &Signature, values: &LaunchValues) -> Result<(), EngineError> {
    let needed = memory_needed(signature, &values.sizes(signature)?);
    Ok(memory::check("the tensors and their float64 reference", needed)?)
}

/// The tensors of a checked run and its outcome.
#[derive(Debug)]
pub struct CheckedRun {
    /// What was read, as given.
    pub inputs: Vec<Buffer>,
    /// What was written.
    pub outputs: Vec<Buffer>,
    /// The tensors in the device's memory, where the device has its own.
    pub resident: Option<ResidentTensors>,
    /// The outcome.
    pub report: CheckReport,
}

/// Tensors in a device's memory.
#[derive(Debug)]
pub struct ResidentTensors {
    /// What is read.
    pub inputs: Vec<DeviceBuffer>,
    /// What is written.
    pub outputs: Vec<DeviceBuffer>,
}

impl CheckedRun {
    /// Binds the compiled code to the tensors of this run, to time it. An output that the program
    /// also reads keeps being updated by each launch.
    ///
    /// # Errors
    /// A broken precondition.
    pub fn bind<'a>(
        &'a mut self,
        compiled: &'a Compiled,
        values: &LaunchValues,
    ) -> Result<Bound<'a>, EngineError> {
        let (inputs, mut outputs): (Vec<&'a dyn Input>, Vec<&'a mut dyn Output>) =
            match &mut self.resident {
                Some(resident) => (
                    resident.inputs.iter().map(|b| b as &dyn Input).collect(),
                    resident.outputs.iter_mut().map(|b| b as &mut dyn Output).collect(),
                ),
                None => (
                    self.inputs.iter().map(|b| b as &dyn Input).collect(),
                    self.outputs.iter_mut().map(|b| b as &mut dyn Output).collect(),
                ),
            };
        values.with_options(|options| Ok(compiled.bind_all(options, &inputs, &mut outputs)?))
    }
}

/// Runs once and checks everything against the oracle.
///
/// `inputs` are the read-only tensors in order, `initial` the contents of the tensors that are
/// read and written, in order; each spans its tensor, gaps included.
///
/// # Errors
/// Wrong inputs, too little memory, a refused or failed launch, a failed oracle. A wrong result
/// is no error here: see [`CheckReport::passed`].
pub fn run_checked(
    compiled: &Compiled,
    values: &LaunchValues,
    inputs: Vec<Buffer>,
    initial: Vec<Buffer>,
) -> Result<CheckedRun, EngineError> {
    check_memory(compiled.handle().signature(), values)?;
    let reference = reference(&compiled.plan().program, values, &inputs, &initial)?;
    run_against(compiled, &reference, values, inputs, initial)
}

/// Runs once and checks everything against a reference that is at hand, in launch order.
///
/// # Errors
/// As [`run_checked`].
pub fn run_against(
    compiled: &Compiled,
    reference: &Outputs,
    values: &LaunchValues,
    inputs: Vec<Buffer>,
    initial: Vec<Buffer>,
) -> Result<CheckedRun, EngineError> {
    let program = &compiled.plan().program;
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
    let before: Vec<u64> = inputs.iter().map(fingerprint).collect();
    let untouched: Vec<Vec<u8>> =
        outputs.iter().zip(reference).map(|(buffer, output)| gaps(buffer, output)).collect();
    let mut inputs = inputs;
    let mut broken = Broken::default();
    let resident = match compiled.handle().executable().queue().cloned() {
        None => {
            launch(compiled, values, &inputs, &mut outputs)?;
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
    for (i, ((buffer, name), before)) in inputs.iter().zip(&input_names).zip(before).enumerate() {
        if !buffer.guards_intact() || broken.inputs.contains(&i) {
            report.broken_guards.push(name.clone());
        }
        if fingerprint(buffer) != before {
            report.changed_inputs.push(name.clone());
        }
    }
    for (i, (((buffer, name), output), untouched)) in
        outputs.iter().zip(output_names).zip(reference).zip(untouched).enumerate()
    {
        if !buffer.guards_intact() || broken.outputs.contains(&i) {
            report.broken_guards.push(name.clone());
        }
        if gaps(buffer, output) != untouched {
            report.written_gaps.push(name.clone());
        }
        let tolerance = tolerance(program, &compiled.plan().facts, values, output.tensor);
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
    Ok(CheckedRun { inputs, outputs, resident, report })
}

/// Launches with buffers.
///
/// # Errors
/// A refused or failed launch.
pub fn launch(
    compiled: &Compiled,
    values: &LaunchValues,
    inputs: &[Buffer],
    outputs: &mut [Buffer],
) -> Result<(), EngineError> {
    let inputs: Vec<&dyn Input> = inputs.iter().map(|b| b as &dyn Input).collect();
    let mut outputs: Vec<&mut dyn Output> =
        outputs.iter_mut().map(|b| b as &mut dyn Output).collect();
    values.with_options(|options| Ok(compiled.run_with(options, &inputs, &mut outputs)?))
}

/// Launches with tensors in the device's memory.
///
/// # Errors
/// A refused or failed launch.
pub fn launch_resident(
    compiled: &Compiled,
    values: &LaunchValues,
    tensors: &mut ResidentTensors,
) -> Result<(), EngineError> {
    let inputs: Vec<&dyn Input> = tensors.inputs.iter().map(|b| b as &dyn Input).collect();
    let mut outputs: Vec<&mut dyn Output> =
        tensors.outputs.iter_mut().map(|b| b as &mut dyn Output).collect();
    values.with_options(|options| Ok(compiled.run_with(options, &inputs, &mut outputs)?))
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

/// The oracle's outputs with their error scales. Scalars are rounded to their types first, as a
/// launch does.
///
/// # Errors
/// [`EngineError::Oracle`].
pub fn reference(
    program: &Program,
    values: &LaunchValues,
    inputs: &[Buffer],
    initial: &[Buffer],
) -> Result<Outputs, EngineError> {
    let mut bindings = Bindings::new();
    for (name, size) in &values.dims {
        bindings = bindings.dim(name, *size);
    }
    for (_, scalar) in program.scalars.iter() {
        let value = values.scalars.iter().find(|(name, _)| *name == scalar.name);
        if let Some((name, value)) = value {
            bindings = bindings.scalar(name, scalar.dtype.round(*value));
        }
    }
    let (mut read, mut updated) = (inputs.iter(), initial.iter());
    for (_, tensor) in program.tensors.iter() {
        let buffer = match tensor.access {
            Access::In => read.next(),
            Access::InOut => updated.next(),
            Access::Out => continue,
        };
        let buffer = buffer.ok_or_else(|| {
            EngineError::Oracle(format!("tensor `{}` has no contents", tensor.name))
        })?;
        bindings = bindings.tensor(&tensor.name, buffer.to_f64());
    }
    interp::magnitude(program, &bindings).map_err(|e| EngineError::Oracle(e.to_string()))
}

/// The tolerance of one output of a program.
pub fn tolerance(
    program: &Program,
    facts: &Facts,
    values: &LaunchValues,
    output: TensorId,
) -> Tolerance {
    let size = |extent| {
        program.known(extent).or_else(|| match extent {
            tilewright_ir::program::Extent::Dim(d) => {
                let name = &program.dims[d].name;
                values.dims.iter().find(|(n, _)| n == name).map(|(_, v)| *v)
            }
            tilewright_ir::program::Extent::Const(n) => Some(n),
        })
    };
    let dtype = program.tensors[output].dtype;
    if !dtype.is_float() {
        return Tolerance::exact(dtype);
    }
    match &facts.family {
        Family::Matrix(matrix) => {
            Tolerance::matrix(size(matrix.size[2]).unwrap_or(1), matrix.accumulator, dtype)
        }
        Family::Rows(rows) => {
            let columns = rows.axis.and_then(|_| size(rows.columns)).unwrap_or(1);
            Tolerance::rows(columns, compute_type(program, dtype), dtype)
        }
        Family::Other(_) => {
            // The longest axis that anything folds or holds.
            let longest = program.axes.iter().filter_map(|(_, a)| size(a.extent)).max();
            Tolerance::rows(longest.unwrap_or(1), compute_type(program, dtype), dtype)
        }
    }
}

/// The least precise float type in which an operation other than a load, a cast or a store's
/// rounding computes; the output's accumulator where there is none.
fn compute_type(program: &Program, output: DType) -> DType {
    program
        .ops
        .iter()
        .filter(|(_, op)| matches!(op.op, Op::Map { .. } | Op::Reduce { .. } | Op::Mma { .. }))
        .flat_map(|(_, op)| op.results.iter())
        .map(|v| program.values[*v].ty.dtype)
        .filter(|d| d.is_float())
        .max_by(|a, b| a.unit_roundoff().total_cmp(&b.unit_roundoff()))
        .unwrap_or(output.accumulator())
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
fn gaps(buffer: &Buffer, output: &interp::Output) -> Vec<u8> {
    if output.layout.is_packed() {
        return Vec::new();
    }
    let width = buffer.dtype().bytes() as usize;
    let mut free = vec![true; buffer.len()];
    for at in output.layout.offsets() {
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
