//! Errors that backends share. Each says which operation under which plan failed at which stage,
//! and hands on the backend's own words.

use std::fmt;
use tilewright_ir::DType;

/// Where on the road from kernel to result something failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Opening a device.
    Open,
    /// Code generation.
    Compile,
    /// Making the code runnable (mapping memory, loading a module).
    Load,
    /// Allocating memory.
    Allocate,
    /// Launching or running.
    Launch,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Open => "open",
            Stage::Compile => "compile",
            Stage::Load => "load",
            Stage::Allocate => "allocate",
            Stage::Launch => "launch",
        })
    }
}

/// What failed, for whom, and the backend's own words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Operation: the kernel's or program's name.
    pub op: String,
    /// The plan in one line; empty where none applies.
    pub plan: String,
    /// Stage.
    pub stage: Stage,
    /// The backend's words.
    pub detail: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of `{}`", self.stage, self.op)?;
        if !self.plan.is_empty() {
            write!(f, " under plan {}", self.plan)?;
        }
        write!(f, ": {}", self.detail)
    }
}

/// An error of a device, an executable or a buffer.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The device isn't there.
    #[error("device `{device}` is not available: {reason}")]
    DeviceMissing {
        /// Its name.
        device: String,
        /// Why, in one sentence.
        reason: String,
    },
    /// The backend can't run this kernel at all, by a named rule.
    #[error("unsupported ({rule}): {failure}")]
    Unsupported {
        /// The rule's name.
        rule: String,
        /// Details.
        failure: Failure,
    },
    /// The backend failed.
    #[error("{0}")]
    Backend(Failure),
    /// More memory is wanted than there is.
    #[error(
        "{what} needs {needed} bytes ({}), but only {available} bytes ({}) are available",
        crate::memory::human(*needed), crate::memory::human(*available)
    )]
    OutOfMemory {
        /// What was to be allocated.
        what: String,
        /// Bytes wanted.
        needed: u64,
        /// Bytes available.
        available: u64,
    },
    /// The number or kind of launch arguments is wrong.
    #[error("launch of `{kernel}`: argument {index} (`{name}`): {detail}")]
    Argument {
        /// Kernel.
        kernel: String,
        /// Position.
        index: usize,
        /// Argument's name; empty when there is no such argument.
        name: String,
        /// What is wrong.
        detail: String,
    },
    /// A buffer was read as another type than it holds.
    #[error("the buffer holds {holds}, not {asked}")]
    DType {
        /// Its type.
        holds: DType,
        /// The type asked for.
        asked: DType,
    },
    /// A buffer has another length than was asked for.
    #[error("the buffer has {has} elements, not {asked}")]
    Length {
        /// Its length.
        has: usize,
        /// The length asked for.
        asked: usize,
    },
}

impl RuntimeError {
    /// The same error with the plan that failed, where it has a place for one and names none.
    #[must_use]
    pub fn under_plan(mut self, text: &str) -> Self {
        if let RuntimeError::Unsupported { failure, .. } | RuntimeError::Backend(failure) =
            &mut self
            && failure.plan.is_empty()
        {
            failure.plan = text.to_string();
        }
        self
    }
}
