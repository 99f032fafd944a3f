//! Tensors of a case where its device reads them, and launches on them in turn.

use crate::protocol::{self, Timed};
use std::sync::Arc;
use tilewright_engine::{Bound, Input, Output};
use tilewright_runtime::{Buffer, DeviceBuffer, Queue, RuntimeError};

/// A tensor in the memory that kernels use.
pub enum Tensor {
    /// The host's.
    Host(Buffer),
    /// The device's own.
    Device(DeviceBuffer),
}

impl Tensor {
    /// Puts a tensor where the kernels of a device read it; `queue` is the device's.
    ///
    /// # Errors
    /// The device's memory is short.
    pub fn place(host: Buffer, queue: Option<&Arc<dyn Queue>>) -> Result<Self, RuntimeError> {
        Ok(match queue {
            None => Tensor::Host(host),
            Some(queue) => Tensor::Device(DeviceBuffer::from_host(queue, &host)?),
        })
    }

    /// As a launch reads it.
    pub fn input(&self) -> &dyn Input {
        match self {
            Tensor::Host(buffer) => buffer,
            Tensor::Device(buffer) => buffer,
        }
    }

    /// As a launch writes it.
    pub fn output(&mut self) -> &mut dyn Output {
        match self {
            Tensor::Host(buffer) => buffer,
            Tensor::Device(buffer) => buffer,
        }
    }

    /// Sets every element to what no correct kernel leaves there.
    ///
    /// # Errors
    /// The device fails.
    pub fn poison(&mut self) -> Result<(), RuntimeError> {
        match self {
            Tensor::Host(buffer) => {
                buffer.poison();
                Ok(())
            }
            Tensor::Device(buffer) => buffer.poison(),
        }
    }

    /// Whether nobody wrote to the guard zones.
    ///
    /// # Errors
    /// The device fails.
    pub fn guards_intact(&self) -> Result<bool, RuntimeError> {
        match self {
            Tensor::Host(buffer) => Ok(buffer.guards_intact()),
            Tensor::Device(buffer) => buffer.guards_intact(),
        }
    }

    /// Calls `f` with the bytes as they are now.
    ///
    /// # Errors
    /// The device fails.
    pub fn with_bytes<T>(&self, f: impl FnOnce(&[u8]) -> T) -> Result<T, RuntimeError> {
        match self {
            Tensor::Host(buffer) => Ok(f(buffer.as_bytes())),
            Tensor::Device(buffer) => {
                let mut bytes = vec![0; buffer.bytes()];
                buffer.read(&mut bytes)?;
                Ok(f(&bytes))
            }
        }
    }
}

/// Launches of one candidate on copies of its tensors, taken in turn.
pub struct Launches<'a> {
    bound: Vec<Bound<'a>>,
    turn: usize,
}

impl<'a> Launches<'a> {
    /// At least one launch.
    ///
    /// # Errors
    /// There is none.
    pub fn new(bound: Vec<Bound<'a>>) -> Result<Self, String> {
        if bound.is_empty() {
            return Err("no tensors".to_string());
        }
        Ok(Launches { bound, turn: 0 })
    }

    fn next(&mut self) -> Result<(), RuntimeError> {
        self.turn = if self.turn + 1 < self.bound.len() { self.turn + 1 } else { 0 };
        self.bound[self.turn].enqueue()
    }
}

impl Timed for Launches<'_> {
    fn run(&mut self, calls: u64) -> Result<(), String> {
        let mut all = || {
            for _ in 0..calls {
                self.next()?;
            }
            // One queue orders all of them.
            self.bound[0].wait()
        };
        all().map_err(|e| e.to_string())
    }

    fn device(&mut self, calls: u64, samples: usize) -> Result<Option<Vec<u64>>, String> {
        let Some(queue) = self.bound[0].queue().cloned() else { return Ok(None) };
        let mut all = || -> Result<Vec<u64>, RuntimeError> {
            let mut batch = queue.batch(calls, Box::new(|| self.next()))?;
            // The first run also brings what was recorded to the device.
            batch.run()?;
            (0..samples).map(|_| Ok(protocol::whole_ns(batch.run()?))).collect()
        };
        all().map(Some).map_err(|e| e.to_string())
    }
}
