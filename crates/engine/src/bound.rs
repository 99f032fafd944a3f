//! Launches whose arguments were checked once.

use crate::handle::Handle;
use crate::launch_error::LaunchError;
use crate::scratch::Scratch;
use std::marker::PhantomData;
use std::sync::Arc;
use tilewright_runtime::{ArgValue, PreparedLaunch, Queue, RuntimeError};

/// A launch whose arguments were checked and whose tensors stay borrowed.
pub struct Bound<'a> {
    handle: &'a Handle,
    /// Empty where the launch was prepared on a device.
    args: Vec<ArgValue>,
    device: Option<Resident>,
    borrows: PhantomData<&'a mut u8>,
}

/// A launch prepared on a device. It borrows nothing, so that a binding may outlive the last use
/// of its tensors; memory that is freed waits for the queue.
pub(crate) struct Resident {
    launch: Box<dyn PreparedLaunch>,
    queue: Arc<dyn Queue>,
    /// Whether something may still run.
    pending: bool,
    /// Kept until nothing runs any more.
    _scratch: Scratch,
}

impl Resident {
    pub(crate) fn new(
        launch: Box<dyn PreparedLaunch>,
        queue: &Arc<dyn Queue>,
        scratch: Scratch,
    ) -> Self {
        Resident { launch, queue: queue.clone(), pending: false, _scratch: scratch }
    }

    fn enqueue(&mut self) -> Result<(), RuntimeError> {
        self.pending = true;
        // SAFETY: the arguments were checked when the launch was bound; its tensors are borrowed
        // by the binding, the outputs exclusively. Reads of device memory come after queued work,
        // and freeing it waits, so nobody meets what still runs.
        unsafe { self.launch.enqueue() }
    }

    fn wait(&mut self) -> Result<(), RuntimeError> {
        self.queue.wait()?;
        self.pending = false;
        Ok(())
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        if self.pending {
            // A failure has nobody to go to; the next use of the queue reports it.
            let _ = self.queue.wait();
        }
    }
}

impl<'a> Bound<'a> {
    pub(crate) fn on_host(handle: &'a Handle, args: Vec<ArgValue>) -> Self {
        Bound { handle, args, device: None, borrows: PhantomData }
    }

    pub(crate) fn on_device(handle: &'a Handle, resident: Resident) -> Self {
        Bound { handle, args: Vec::new(), device: Some(resident), borrows: PhantomData }
    }

    /// Runs once and returns when it is done.
    ///
    /// # Errors
    /// A failed launch.
    pub fn launch(&mut self) -> Result<(), LaunchError> {
        match &mut self.device {
            // SAFETY: the arguments were checked by `bind`, which borrowed the tensors for 'a,
            // the outputs exclusively; `&mut self` keeps two launches of one binding apart.
            None => Ok(unsafe { self.handle.execute(&mut self.args) }?),
            Some(resident) => {
                let outcome = resident.enqueue().and_then(|()| resident.wait());
                Ok(outcome.map_err(|e| self.handle.failed(e))?)
            }
        }
    }

    /// Gives the launch to the device's queue and returns without waiting for it. Where there is
    /// no queue, it runs at once.
    ///
    /// # Errors
    /// A failed launch. What fails while it runs shows at the next [`Bound::wait`].
    pub fn enqueue(&mut self) -> Result<(), RuntimeError> {
        match &mut self.device {
            // SAFETY: as for `launch`.
            None => unsafe { self.handle.execute(&mut self.args) },
            Some(resident) => resident.enqueue().map_err(|e| self.handle.failed(e)),
        }
    }

    /// Waits for the device's queue; at once where there is none.
    ///
    /// # Errors
    /// The first failure of what was queued.
    pub fn wait(&mut self) -> Result<(), RuntimeError> {
        match &mut self.device {
            None => Ok(()),
            Some(resident) => resident.wait().map_err(|e| self.handle.failed(e)),
        }
    }

    /// The queue that the launch goes to; `None` where it runs at once.
    pub fn queue(&self) -> Option<&Arc<dyn Queue>> {
        self.device.as_ref().map(|resident| &resident.queue)
    }
}
