//! Errors of the CPU backend.

use std::io;

/// Why a kernel could not be compiled or code could not be made runnable.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The backend has no code for a construct. The text names the construct.
    #[error("the CPU backend has no code for {0}")]
    Unsupported(String),
    /// The kernel is malformed in a way that validation rejects.
    #[error("malformed kernel: {0}")]
    Malformed(String),
    /// The instruction set was asked for, but this machine doesn't have it.
    #[error("this machine has no {0}")]
    MissingIsa(String),
    /// A number of threads that no pool has.
    #[error("{asked} threads: use 1 to {most}")]
    Threads {
        /// Asked for.
        asked: usize,
        /// Most.
        most: usize,
    },
    /// The portable path stopped.
    #[error("kernel `{kernel}`, statement {statement}: {detail}")]
    Run {
        /// Name of the kernel.
        kernel: String,
        /// Number of the statement in the order of the text, from 0.
        statement: u32,
        /// What is wrong.
        detail: String,
    },
    /// The encoder refused an instruction.
    #[error("encoding: {0}")]
    Encode(#[from] iced_x86::IcedError),
    /// The operating system refused memory or a thread.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

impl CpuError {
    /// [`CpuError::Unsupported`] with a text.
    pub fn unsupported(what: impl Into<String>) -> Self {
        CpuError::Unsupported(what.into())
    }

    /// [`CpuError::Malformed`] with a text.
    pub fn malformed(what: impl Into<String>) -> Self {
        CpuError::Malformed(what.into())
    }

    /// The last error of the operating system, for the operation named.
    pub fn system(what: impl Into<String>) -> Self {
        CpuError::System { what: what.into(), source: io::Error::last_os_error() }
    }
}
