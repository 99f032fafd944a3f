//! Scratch between the kernels of one launch.

use std::sync::Arc;
use tilewright_ir::DType;
use tilewright_runtime::{ArgValue, Buffer, DeviceBuffer, Queue, RuntimeError};

/// The scratch buffers that the kernels of a launch declare. Those of one name are one buffer, by
/// which a kernel hands results to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Needs(Vec<(String, DType, usize)>);

impl Needs {
    /// Whether none is needed.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The position of a buffer of that name, type and at least that length.
    pub(crate) fn add(&mut self, name: &str, dtype: DType, len: usize) -> usize {
        let known = self.0.iter().position(|(n, d, _)| n == name && *d == dtype);
        match known {
            Some(at) => {
                self.0[at].2 = self.0[at].2.max(len);
                at
            }
            None => {
                self.0.push((name.to_string(), dtype, len));
                self.0.len() - 1
            }
        }
    }

    /// Allocates them: on the device where there is a queue, else on the host.
    pub(crate) fn allocate(&self, queue: Option<&Arc<dyn Queue>>) -> Result<Scratch, RuntimeError> {
        let needs = self.0.iter();
        Ok(match queue {
            None => Scratch::Host(
                needs
                    .map(|(_, dtype, len)| Buffer::zeros(*dtype, *len))
                    .collect::<Result<_, _>>()?,
            ),
            Some(queue) => Scratch::Device(
                needs
                    .map(|(_, dtype, len)| DeviceBuffer::new(queue, *dtype, *len))
                    .collect::<Result<_, _>>()?,
            ),
        })
    }
}

/// Allocated scratch.
pub(crate) enum Scratch {
    Host(Vec<Buffer>),
    Device(Vec<DeviceBuffer>),
}

impl Scratch {
    /// The buffer at a position as a launch argument.
    pub(crate) fn argument(&mut self, at: usize) -> ArgValue {
        match self {
            Scratch::Host(buffers) => {
                let buffer = &mut buffers[at];
                ArgValue::Buffer { ptr: buffer.as_mut_ptr(), bytes: buffer.bytes() }
            }
            Scratch::Device(buffers) => {
                let buffer = &buffers[at];
                ArgValue::Buffer { ptr: buffer.address(), bytes: buffer.bytes() }
            }
        }
    }
}
