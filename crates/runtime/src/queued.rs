//! Executables on a queue: what backends with a queue share.

use crate::args::ArgValue;
use crate::device::{CompilerReport, Executable, ResourceReport};
use crate::error::{Failure, RuntimeError};
use crate::queue::{PreparedLaunch, Queue};
use std::sync::Arc;

/// A compiled kernel whose launches go to a queue.
pub trait QueuedKernel: Send + Sync + 'static {
    /// A launch with its arguments in place.
    type Ready: Send;

    /// Whether the failure that a wait tells names the kernel that failed.
    const WAIT_NAMES_KERNEL: bool;

    /// Its name, for errors.
    fn name(&self) -> &str;

    /// Number of its arguments.
    fn args(&self) -> usize;

    /// Its code as text.
    fn text(&self) -> &str;

    /// Checks arguments and puts them in place; `None` where the grid is empty.
    ///
    /// # Errors
    /// [`RuntimeError::Argument`] for a wrong number or kind; a rule of the device.
    fn arrange(self: &Arc<Self>, args: &[ArgValue]) -> Result<Option<Self::Ready>, RuntimeError>;

    /// Gives launches of an executable, of which this is the first kernel, to the queue in order
    /// and returns without waiting for them.
    ///
    /// # Errors
    /// The device's words.
    ///
    /// # Safety
    /// As [`PreparedLaunch::enqueue`].
    unsafe fn enqueue(&self, launches: &mut [Self::Ready]) -> Result<(), RuntimeError>;
}

/// Kernels that run in order on a queue.
pub struct QueuedExecutable<K> {
    /// The kernels, in launch order.
    pub kernels: Vec<Arc<K>>,
    /// Where launches go.
    pub queue: Arc<dyn Queue>,
    /// What the code uses.
    pub report: ResourceReport,
    /// What the compiler reports of each kernel.
    pub compiler_report: Option<CompilerReport>,
}

/// A launch of every kernel of an executable.
struct Prepared<K: QueuedKernel> {
    first: Option<Arc<K>>,
    launches: Vec<K::Ready>,
}

impl<K: QueuedKernel> PreparedLaunch for Prepared<K> {
    unsafe fn enqueue(&mut self) -> Result<(), RuntimeError> {
        match &self.first {
            // SAFETY: the arguments were checked against the kernels' own; the caller vouches for
            // the buffers.
            Some(first) if !self.launches.is_empty() => unsafe {
                first.enqueue(&mut self.launches)
            },
            _ => Ok(()),
        }
    }
}

impl<K: QueuedKernel> QueuedExecutable<K> {
    /// Checks arguments, those of every kernel in order, and puts them in place.
    fn arrange(&self, args: &[ArgValue]) -> Result<Prepared<K>, RuntimeError> {
        let mut launches = Vec::with_capacity(self.kernels.len());
        let mut rest = args;
        for (n, kernel) in self.kernels.iter().enumerate() {
            // The last kernel gets everything that is left, so that too many are an error too.
            let last = n + 1 == self.kernels.len();
            let count = if last { rest.len() } else { kernel.args().min(rest.len()) };
            let (own, others) = rest.split_at(count);
            rest = others;
            launches.extend(kernel.arrange(own)?);
        }
        Ok(Prepared { first: self.kernels.first().cloned(), launches })
    }
}

impl<K: QueuedKernel> Executable for QueuedExecutable<K> {
    unsafe fn launch(&self, args: &[ArgValue]) -> Result<(), RuntimeError> {
        let mut prepared = self.arrange(args)?;
        // SAFETY: as promised by the caller until this call returns, and it waits.
        unsafe { prepared.enqueue() }?;
        let op = self.kernels.first().map_or("", |kernel| kernel.name());
        self.queue.wait().map_err(|error| match error {
            // Of several kernels nobody knows which; the first one's name stands for the program.
            RuntimeError::Backend(failure) if !K::WAIT_NAMES_KERNEL => {
                RuntimeError::Backend(Failure { op: op.to_string(), ..failure })
            }
            other => other,
        })
    }

    fn queue(&self) -> Option<&Arc<dyn Queue>> {
        Some(&self.queue)
    }

    unsafe fn prepare(
        &self,
        args: &[ArgValue],
    ) -> Result<Option<Box<dyn PreparedLaunch>>, RuntimeError> {
        Ok(Some(Box::new(self.arrange(args)?)))
    }

    fn disassembly(&self) -> String {
        self.kernels.iter().map(|kernel| kernel.text()).collect::<Vec<_>>().join("\n")
    }

    fn report(&self) -> ResourceReport {
        self.report.clone()
    }

    fn compiler_report(&self) -> Option<CompilerReport> {
        self.compiler_report.clone()
    }
}
