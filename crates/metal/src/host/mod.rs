//! Apple GPUs as devices of the engine.
//!
//! What decides — facts to target, which kernels a device takes, arguments into place — is plain
//! Rust that every platform compiles and tests. Only `apple` talks to Metal, and only Macs have
//! it. None of that part has run on Apple hardware yet: it is type-checked (`docs/metal.md`).

mod admit;
#[cfg(target_vendor = "apple")]
mod apple;
mod arrange;
mod facts;
mod space;

pub use admit::{PipelineFacts, admit, admit_pipeline, generate};
#[cfg(target_vendor = "apple")]
pub use apple::{MetalDevice, OwnKernel, Text};
pub use arrange::{Dispatch, Placed, arrange};
pub use facts::{DeviceFacts, system_version};
pub use space::Allocations;

use std::sync::Arc;
use tilewright_runtime::{Device, RuntimeError};

/// Opens the GPU of this Mac.
///
/// # Errors
/// [`RuntimeError::DeviceMissing`] with one sentence where there is no Metal, no GPU, or one that
/// kernels can't be made for; [`RuntimeError::Backend`] with Metal's words for anything else.
#[cfg(target_vendor = "apple")]
pub fn open() -> Result<Arc<dyn Device>, RuntimeError> {
    Ok(Arc::new(MetalDevice::open()?))
}

/// Says that there is no Metal here.
///
/// # Errors
/// Always [`RuntimeError::DeviceMissing`]: Metal is a part of macOS.
#[cfg(not(target_vendor = "apple"))]
pub fn open() -> Result<Arc<dyn Device>, RuntimeError> {
    Err(RuntimeError::DeviceMissing {
        device: "metal".to_string(),
        reason: format!("Metal is a part of macOS, and this is {}", std::env::consts::OS),
    })
}

#[cfg(test)]
mod tests {
    #[cfg(not(target_vendor = "apple"))]
    #[test]
    fn without_macos_one_sentence_says_so() {
        let text = super::open().err().map(|e| e.to_string()).unwrap_or_default();
        let expected = format!(
            "device `metal` is not available: Metal is a part of macOS, and this is {}",
            std::env::consts::OS
        );
        assert_eq!(text, expected);
    }
}
