//! The launch handle: compiled code with its contract. A launch checks every precondition, puts
//! the arguments in place on the stack and calls the code; it doesn't allocate, hash or lock
//! (unless the code needs scratch, whose buffers one launch at a time may use, or runs on a device
//! with memory of its own and is given host tensors, which are copied there and back).

use crate::bound::{Bound, Resident};
use crate::launch_error::LaunchError;
use crate::scratch::{Needs, Scratch};
use crate::signature::{MAX_ITEMS, Signature, Sizes};
use crate::staging::Staged;
use crate::tensor::{Input, Output, TensorArg};
use std::sync::{Arc, Mutex, PoisonError};
use tilewright_ir::entity::Id;
use tilewright_ir::program::{Access, Bounds, Op, Program};
use tilewright_kernel::kernel::{Arg, ArgKind, ArgSource, Kernel};
use tilewright_kernel::lower::{self, Precondition};
use tilewright_runtime::{ArgValue, Executable, Failure, MemorySpace, RuntimeError, Stage};

/// Most arguments of all kernels of one launch together.
const MAX_ARGS: usize = 64;

/// Where one kernel argument comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slot {
    Tensor(usize),
    Dim(usize),
    Scalar { index: usize, integer: bool },
    Scratch(usize),
}

/// What a launch states beyond its tensors.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaunchOptions<'a> {
    /// Sizes of symbolic dimensions by name, for those that don't follow from the tensors.
    pub dims: &'a [(&'a str, u64)],
    /// Run-time scalars by name; they replace the handle's own values for this launch.
    pub scalars: &'a [(&'a str, f64)],
}

/// Compiled code with its launch contract. Clones share the code, and threads may share a handle.
#[derive(Clone)]
pub struct Handle {
    code: Arc<Code>,
    scalars: Vec<Option<f64>>,
}

struct Code {
    signature: Signature,
    /// What only the sizes of a launch can vouch for; empty for programs of the planned families.
    preconditions: Vec<Precondition>,
    /// The program that they are about.
    program: Program,
    slots: Vec<Slot>,
    /// What scratch the kernels need.
    needs: Needs,
    /// Scratch of the launches that aren't bound.
    scratch: Mutex<Scratch>,
    /// The memory that the kernels use.
    space: MemorySpace,
    /// The plan in one line, for errors; empty where none is known.
    plan: String,
    executable: Box<dyn Executable>,
}

impl Handle {
    /// Joins a program's contract with code compiled from `launches`.
    ///
    /// # Errors
    /// [`LaunchError::TooMany`]; [`RuntimeError::Argument`] for a kernel argument that comes from
    /// nothing in the program; [`RuntimeError::OutOfMemory`] for scratch.
    pub fn new(
        program: &Program,
        launches: &[Kernel],
        executable: Box<dyn Executable>,
    ) -> Result<Self, LaunchError> {
        Handle::of_plan(program, launches, executable, String::new())
    }

    /// As [`Handle::new`], with the plan in one line, which errors of the device then name.
    ///
    /// # Errors
    /// As [`Handle::new`].
    pub fn of_plan(
        program: &Program,
        launches: &[Kernel],
        executable: Box<dyn Executable>,
        plan: String,
    ) -> Result<Self, LaunchError> {
        let signature = Signature::of(program)?;
        check_gathers(program)?;
        let preconditions = lower::preconditions(program);
        let mut slots = Vec::new();
        let mut needs = Needs::default();
        for kernel in launches {
            for (id, arg) in kernel.args.iter() {
                slots.push(slot(&signature, kernel, id.index(), arg, &mut needs)?);
            }
        }
        if slots.len() > MAX_ARGS {
            let (what, count, limit) = ("kernel arguments", slots.len(), MAX_ARGS);
            return Err(LaunchError::TooMany { what, count, limit });
        }
        let scratch = Mutex::new(needs.allocate(executable.queue())?);
        let space = executable.queue().map_or(MemorySpace::Host, |queue| queue.space());
        let scalars = vec![None; signature.scalars.len()];
        let program = program.clone();
        let code = Code {
            signature,
            preconditions,
            program,
            slots,
            needs,
            scratch,
            space,
            plan,
            executable,
        };
        Ok(Handle { code: Arc::new(code), scalars })
    }

    /// What a launch must bring.
    pub fn signature(&self) -> &Signature {
        &self.code.signature
    }

    /// The compiled code.
    pub fn executable(&self) -> &dyn Executable {
        self.code.executable.as_ref()
    }

    /// Sets the value that a run-time scalar has unless a launch states another.
    ///
    /// # Errors
    /// [`LaunchError::UnknownScalar`], [`LaunchError::ZeroScalar`].
    pub fn set_scalar(&mut self, name: &str, value: f64) -> Result<(), LaunchError> {
        let index = self.scalar_index(name)?;
        self.scalars[index] = Some(self.code.signature.scalar(index, value)?);
        Ok(())
    }

    /// Runs once with one output. Inputs are the program's read-only tensors in order.
    ///
    /// # Errors
    /// A broken precondition (nothing ran then) or a failed launch.
    pub fn run(&self, inputs: &[&dyn Input], output: &mut dyn Output) -> Result<(), LaunchError> {
        self.run_with(&LaunchOptions::default(), inputs, &mut [output])
    }

    /// Runs once with stated sizes and scalars. Outputs are the program's written tensors in
    /// order. On a device with memory of its own, tensors in host memory are copied to it first,
    /// and outputs back afterwards.
    ///
    /// # Errors
    /// As [`Handle::run`].
    pub fn run_with(
        &self,
        options: &LaunchOptions,
        inputs: &[&dyn Input],
        outputs: &mut [&mut dyn Output],
    ) -> Result<(), LaunchError> {
        let mut tensors = [NOTHING; MAX_ITEMS];
        let count = self.tensors(inputs, outputs, &mut tensors)?;
        let tensors = &mut tensors[..count];
        let mut words = [ArgValue::Index(0); MAX_ARGS];
        let staged = match self.code.executable.queue() {
            None => None,
            Some(queue) => Some(Staged::upload(queue, &self.code.signature, tensors)?),
        };
        let count = self.arguments(options, tensors, &mut words)?;
        // SAFETY: `arguments` checked sizes, alignment and aliasing of borrows that outlive this
        // call; outputs are borrowed exclusively.
        unsafe { self.execute(&mut words[..count]) }?;
        match staged {
            // SAFETY: the host outputs are still borrowed exclusively by `outputs`.
            Some(staged) => Ok(unsafe { staged.download() }?),
            None => Ok(()),
        }
    }

    /// Checks everything once and keeps the borrows, for repeated launches that cost nothing
    /// beyond the code itself. On a device with memory of its own the tensors are
    /// [`DeviceBuffer`](tilewright_runtime::DeviceBuffer)s.
    ///
    /// # Errors
    /// A broken precondition.
    pub fn bind<'a, const N: usize>(
        &'a self,
        options: &LaunchOptions,
        inputs: &[&'a dyn Input],
        mut outputs: [&'a mut dyn Output; N],
    ) -> Result<Bound<'a>, LaunchError> {
        self.bind_all(options, inputs, &mut outputs)
    }

    /// As [`Handle::bind`], for any number of outputs.
    ///
    /// # Errors
    /// A broken precondition.
    pub fn bind_all<'a>(
        &'a self,
        options: &LaunchOptions,
        inputs: &[&'a dyn Input],
        outputs: &mut [&'a mut dyn Output],
    ) -> Result<Bound<'a>, LaunchError> {
        let mut tensors = [NOTHING; MAX_ITEMS];
        let count = self.tensors(inputs, outputs, &mut tensors)?;
        let mut words = [ArgValue::Index(0); MAX_ARGS];
        let count = self.arguments(options, &tensors[..count], &mut words)?;
        let mut args = words[..count].to_vec();
        let code = &self.code;
        let Some(queue) = code.executable.queue() else {
            return Ok(Bound::on_host(self, args));
        };
        // Launches of one queue run one after another, but those of two bindings may alternate
        // kernel by kernel, so each has scratch of its own.
        let mut scratch = code.needs.allocate(Some(queue))?;
        self.fill_scratch(&mut scratch, &mut args);
        // SAFETY: the arguments were checked; the tensors are borrowed for 'a, and the binding
        // keeps the scratch.
        let launch = unsafe { code.executable.prepare(&args) }.map_err(|e| self.failed(e))?;
        let launch = launch.ok_or_else(|| {
            let what = "a device with a queue prepared no launch".to_string();
            self.failed(RuntimeError::Backend(Failure {
                op: code.program.name.clone(),
                plan: String::new(),
                stage: Stage::Launch,
                detail: what,
            }))
        })?;
        Ok(Bound::on_device(self, Resident::new(launch, queue, scratch)))
    }

    /// Collects the tensors of a launch in the program's order.
    fn tensors<'t>(
        &self,
        inputs: &'t [&dyn Input],
        outputs: &'t mut [&mut dyn Output],
        tensors: &mut [TensorArg<'t>; MAX_ITEMS],
    ) -> Result<usize, LaunchError> {
        let given = (inputs.len(), outputs.len());
        let (mut next_input, mut next_output) = (inputs.iter(), outputs.iter_mut());
        for (sig, arg) in self.code.signature.tensors.iter().zip(tensors) {
            let tensor = match sig.access {
                Access::In => next_input.next().map(|input| input.tensor()),
                Access::Out | Access::InOut => next_output.next().map(|out| out.tensor_mut()),
            };
            *arg = tensor.ok_or_else(|| self.wrong_counts(given.0, given.1))?;
        }
        if next_input.next().is_some() || next_output.next().is_some() {
            return Err(self.wrong_counts(given.0, given.1));
        }
        Ok(self.code.signature.tensors.len())
    }

    /// Checks a launch and fills in the kernel arguments; scratch slots stay zero.
    fn arguments(
        &self,
        options: &LaunchOptions,
        tensors: &[TensorArg<'_>],
        words: &mut [ArgValue; MAX_ARGS],
    ) -> Result<usize, LaunchError> {
        if let Some(at) = tensors.iter().position(|t| t.space != self.code.space) {
            return Err(self.wrong_memory(at, tensors[at].space));
        }
        let mut sizes: Sizes = [None; MAX_ITEMS];
        for (name, value) in options.dims {
            let known = || self.code.signature.dims.iter().map(|d| d.name.as_str());
            let index = known().position(|n| n == *name).ok_or_else(|| {
                LaunchError::UnknownDim { name: name.to_string(), known: list(known()) }
            })?;
            sizes[index] = Some(*value);
        }
        self.code.signature.resolve(tensors, &mut sizes)?;
        for precondition in &self.code.preconditions {
            let dims = &self.code.signature.dims;
            let size = |id| {
                let at = dims.iter().position(|d| d.id == id);
                at.and_then(|at| sizes[at]).unwrap_or(0)
            };
            precondition.check(&self.code.program, size)?;
        }
        let mut scalars = [None; MAX_ITEMS];
        for (slot, value) in scalars.iter_mut().zip(&self.scalars) {
            *slot = *value;
        }
        for (name, value) in options.scalars {
            let index = self.scalar_index(name)?;
            scalars[index] = Some(self.code.signature.scalar(index, *value)?);
        }
        for (slot, word) in self.code.slots.iter().zip(words.iter_mut()) {
            *word = match *slot {
                Slot::Tensor(i) => ArgValue::Buffer {
                    ptr: tensors[i].ptr,
                    bytes: tensors[i].len * tensors[i].dtype.bytes() as usize,
                },
                Slot::Dim(i) => ArgValue::Index(sizes[i].unwrap_or(0) as i64),
                Slot::Scalar { index, integer } => match scalars[index] {
                    Some(value) if integer => ArgValue::Index(value as i64),
                    Some(value) => ArgValue::Float(value),
                    None => {
                        let scalar = self.code.signature.scalars[index].name.clone();
                        return Err(LaunchError::MissingScalar { scalar });
                    }
                },
                Slot::Scratch(_) => ArgValue::Index(0),
            };
        }
        Ok(self.code.slots.len())
    }

    /// Runs the code with checked arguments, scratch filled in, and returns when it is done.
    ///
    /// # Safety
    /// `words` come from [`Handle::arguments`], and the borrows it read are still alive.
    pub(crate) unsafe fn execute(&self, words: &mut [ArgValue]) -> Result<(), RuntimeError> {
        if self.code.needs.is_empty() {
            // SAFETY: the caller's promise is `launch`'s: checked, live, unshared buffers.
            return unsafe { self.code.executable.launch(words) }.map_err(|e| self.failed(e));
        }
        // A launch that panicked left scratch in some state, which is fine: scratch has no
        // meaning between launches.
        let mut scratch = self.code.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        self.fill_scratch(&mut scratch, words);
        // SAFETY: as above; the lock is held until the launch returns, so scratch is unshared.
        unsafe { self.code.executable.launch(words) }.map_err(|e| self.failed(e))
    }

    fn fill_scratch(&self, scratch: &mut Scratch, words: &mut [ArgValue]) {
        for (slot, word) in self.code.slots.iter().zip(words.iter_mut()) {
            if let Slot::Scratch(i) = slot {
                *word = scratch.argument(*i);
            }
        }
    }

    /// An error of the device, with the plan that it ran under.
    pub(crate) fn failed(&self, error: RuntimeError) -> RuntimeError {
        error.under_plan(&self.code.plan)
    }

    fn wrong_memory(&self, at: usize, found: MemorySpace) -> LaunchError {
        let tensor = self.code.signature.tensors[at].name.clone();
        match found {
            MemorySpace::Host => LaunchError::NotResident { tensor },
            MemorySpace::Device(_) => {
                LaunchError::Memory { tensor, expected: self.code.space, found }
            }
        }
    }

    fn scalar_index(&self, name: &str) -> Result<usize, LaunchError> {
        let known = || self.code.signature.scalars.iter().map(|s| s.name.as_str());
        known().position(|n| n == name).ok_or_else(|| LaunchError::UnknownScalar {
            name: name.to_string(),
            known: list(known()),
        })
    }

    fn wrong_counts(&self, inputs: usize, outputs: usize) -> LaunchError {
        let named = |input: bool| -> Vec<&str> {
            let tensors = self.code.signature.tensors.iter();
            let wanted = tensors.filter(|t| (t.access == Access::In) == input);
            wanted.map(|t| t.name.as_str()).collect()
        };
        let (wanted_in, wanted_out) = (named(true), named(false));
        let (direction, wanted, found) = if inputs != wanted_in.len() {
            ("inputs", wanted_in, inputs)
        } else {
            ("outputs", wanted_out, outputs)
        };
        let names = list(wanted.iter().copied());
        LaunchError::Direction { direction, expected: wanted.len(), found, names }
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("signature", &self.code.signature).finish_non_exhaustive()
    }
}

/// A place for a tensor.
const NOTHING: TensorArg = TensorArg {
    ptr: std::ptr::null_mut(),
    space: MemorySpace::Host,
    len: 0,
    dtype: tilewright_ir::DType::F32,
    shape: None,
    strides: None,
};

/// Names for a message: `a, b`, or `none`.
fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".to_string() } else { names.join(", ") }
}

fn slot(
    signature: &Signature,
    kernel: &Kernel,
    index: usize,
    arg: &Arg,
    needs: &mut Needs,
) -> Result<Slot, LaunchError> {
    let wrong = |detail: &str| {
        LaunchError::Runtime(RuntimeError::Argument {
            kernel: kernel.name.clone(),
            index,
            name: arg.name.clone(),
            detail: detail.to_string(),
        })
    };
    match (arg.source, arg.kind) {
        (ArgSource::Tensor(t), ArgKind::Buffer { .. }) if t.index() < signature.tensors.len() => {
            Ok(Slot::Tensor(t.index()))
        }
        (ArgSource::Dim(d), ArgKind::Number(_)) => signature
            .dims
            .iter()
            .position(|dim| dim.id == d)
            .map(Slot::Dim)
            .ok_or_else(|| wrong("it reads a dimension that isn't symbolic")),
        (ArgSource::Scalar(s), ArgKind::Number(_)) if s.index() < signature.scalars.len() => {
            let integer = !signature.scalars[s.index()].dtype.is_float();
            Ok(Slot::Scalar { index: s.index(), integer })
        }
        (ArgSource::Scratch(elements), ArgKind::Buffer { dtype, .. }) => {
            let len = usize::try_from(elements)
                .map_err(|_| wrong("its scratch exceeds the address space"))?;
            Ok(Slot::Scratch(needs.add(&arg.name, dtype, len)))
        }
        _ => Err(wrong("it comes from nothing in the program")),
    }
}

/// Refuses loads at data-dependent indices that are assumed in bounds: no launch could check
/// them, and safe code must not read what lies beyond a tensor.
fn check_gathers(program: &Program) -> Result<(), LaunchError> {
    for (_, op) in program.ops.iter() {
        if let Op::Load { tensor, coords, bounds: Bounds::Assume } = &op.op
            && coords.iter().any(|c| c.gather.is_some())
        {
            let tensor = program.tensors[*tensor].name.clone();
            return Err(LaunchError::UncheckedGather { tensor });
        }
    }
    Ok(())
}
