//! The part that talks to Metal.

mod cores;
mod device;
mod exec;
mod memory;
mod pipeline;
mod queue;
mod roofline;

pub use device::MetalDevice;
pub use pipeline::{OwnKernel, Text};

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSError;
use objc2_metal::{
    MTLBuffer, MTLCommandBuffer, MTLComputeCommandEncoder, MTLComputePipelineState, MTLDevice,
};
use tilewright_runtime::{Failure, RuntimeError, Stage};

type Gpu = Retained<ProtocolObject<dyn MTLDevice>>;
type Pipeline = Retained<ProtocolObject<dyn MTLComputePipelineState>>;
type CommandBuffer = Retained<ProtocolObject<dyn MTLCommandBuffer>>;
type Encoder = Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>;

/// A buffer object that any thread may hold.
#[derive(Clone, Debug)]
struct Object(Retained<ProtocolObject<dyn MTLBuffer>>);

// SAFETY: Metal's resources may be used from any thread; what the host does with their content is
// ordered by `memory`, which waits for the queue first.
unsafe impl Send for Object {}
// SAFETY: as above: calls on a buffer object only read its facts.
unsafe impl Sync for Object {}

/// A failure in Metal's words.
fn failed(op: &str, stage: Stage, detail: impl Into<String>) -> RuntimeError {
    let (op, plan) = (op.to_string(), String::new());
    RuntimeError::Backend(Failure { op, plan, stage, detail: detail.into() })
}

/// Metal's sentence for an error, with its domain and number.
fn words(error: &NSError) -> String {
    let told = error.localizedDescription().to_string();
    format!("{} ({} {})", told.trim(), error.domain(), error.code())
}
