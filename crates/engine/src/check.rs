//! A checked run: poisoned outputs between guard zones, every element against the oracle, inputs
//! unchanged afterwards.

mod launched;

use crate::bound::Bound;
use crate::compile::{Compiled, Engine};
use crate::error::EngineError;
use crate::handle::LaunchOptions;
use crate::plan::Plan;
use crate::signature::{MAX_ITEMS, Signature, Sizes};
use crate::tensor::{Input, Output};
use crate::tolerance::{Comparison, Tolerance};
use std::sync::Arc;
use tilewright_ir::DType;
use tilewright_ir::facts::{Facts, Family};
use tilewright_ir::interp::{self, Bindings, Outputs};
use tilewright_ir::program::{Access, Op, Program, TensorId};
use tilewright_runtime::{Buffer, DeviceBuffer, Queue, memory};

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
/// [`tilewright_runtime::RuntimeError::OutOfMemory`] naming the numbers; a missing size.
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

/// Runs once and checks everything against the oracle, which works while the device does.
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
    let (program, signature) = (&compiled.plan().program, compiled.handle().signature());
    let queue = compiled.handle().executable().queue().cloned();
    let tensors = Tensors { program, signature, values, inputs, initial, queue };
    checked(|| Ok(compiled.clone()), tensors).map(|(_, run)| run)
}

/// Compiles a plan, runs once and checks everything, as [`run_checked`]; the oracle works, and the
/// tensors are brought to the device, while the plan is compiled.
///
/// # Errors
/// As [`Engine::compile`] and [`run_checked`].
pub fn compile_checked(
    engine: &Engine,
    plan: &Plan,
    values: &LaunchValues,
    inputs: Vec<Buffer>,
    initial: Vec<Buffer>,
) -> Result<(Compiled, CheckedRun), EngineError> {
    // Nothing is computed for a plan that can't be compiled.
    plan.require()?;
    let signature = &Signature::of(&plan.program)?;
    let queue = engine.device().queue().cloned();
    let tensors = Tensors { program: &plan.program, signature, values, inputs, initial, queue };
    checked(|| engine.compile(plan), tensors)
}

/// What a checked run is given: see [`run_checked`].
struct Tensors<'a> {
    program: &'a Program,
    signature: &'a Signature,
    values: &'a LaunchValues,
    inputs: Vec<Buffer>,
    initial: Vec<Buffer>,
    /// Of the device, where it has memory of its own.
    queue: Option<Arc<dyn Queue>>,
}

/// The oracle and the way of the tensors to the device, each on a thread of its own beside
/// compilation.
fn checked(
    compile: impl FnOnce() -> Result<Compiled, EngineError>,
    tensors: Tensors<'_>,
) -> Result<(Compiled, CheckedRun), EngineError> {
    let Tensors { program, values, .. } = tensors;
    check_memory(tensors.signature, values)?;
    let bindings = bindings(program, values, &tensors.inputs, &tensors.initial)?;
    std::thread::scope(|scope| {
        let oracle = scope.spawn(|| magnitude(program, &bindings));
        let staged = scope.spawn(|| launched::stage(tensors));
        let compiled = compile();
        let launched = joined(staged).and_then(|staged| {
            let compiled = compiled?;
            let launched = staged.launch(&compiled, values)?;
            Ok((compiled, launched))
        });
        let reference = joined(oracle)?;
        let (compiled, launched) = launched?;
        let run = launched.judge(&compiled, &reference, values);
        Ok((compiled, run))
    })
}

/// A thread's outcome; a panic there goes on here.
fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
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
    let (program, signature) = (&compiled.plan().program, compiled.handle().signature());
    let queue = compiled.handle().executable().queue().cloned();
    let staged = launched::stage(Tensors { program, signature, values, inputs, initial, queue })?;
    Ok(staged.launch(compiled, values)?.judge(compiled, reference, values))
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
    magnitude(program, &bindings(program, values, inputs, initial)?)
}

fn magnitude(program: &Program, bindings: &Bindings<'_>) -> Result<Outputs, EngineError> {
    interp::magnitude(program, bindings).map_err(|e| EngineError::Oracle(e.to_string()))
}

/// What the oracle gets: copies of the tensors' contents.
fn bindings(
    program: &Program,
    values: &LaunchValues,
    inputs: &[Buffer],
    initial: &[Buffer],
) -> Result<Bindings<'static>, EngineError> {
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
    Ok(bindings)
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
