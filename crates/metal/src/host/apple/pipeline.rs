//! From text to a pipeline: compile options stated in full, the pipeline's own limits.

use super::queue::{Ready, Shared};
use super::{Gpu, Pipeline, failed, words};
use crate::codegen::{Language, Module};
use crate::host::admit::{PipelineFacts, admit_pipeline};
use crate::host::arrange::{Dispatch, Placed};
use crate::host::facts::DeviceFacts;
use objc2::rc::autoreleasepool;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLCompileOptions, MTLComputePipelineState, MTLDevice, MTLLanguageVersion, MTLLibrary,
    MTLMathFloatingPointFunctions, MTLMathMode,
};
use std::sync::Arc;
use tilewright_runtime::{DeviceBuffer, RuntimeError, Stage};

/// A kernel function written by hand, for controls and ceilings.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// Its MSL.
    pub text: &'a str,
    /// Name of the kernel function.
    pub entry: &'a str,
    /// Language version.
    pub language: Language,
    /// Threads of a threadgroup.
    pub threads: u32,
}

/// Options that leave nothing to defaults, which differ between systems: safe math, precise
/// functions, the language version that the text needs.
fn options(language: Language, facts: &DeviceFacts) -> objc2::rc::Retained<MTLCompileOptions> {
    let options = MTLCompileOptions::new();
    let version = (language.major as usize) << 16 | language.minor as usize;
    options.setLanguageVersion(MTLLanguageVersion(version));
    if facts.has_math_modes() {
        options.setMathMode(MTLMathMode::Safe);
        options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Precise);
    } else {
        #[allow(deprecated)]
        options.setFastMathEnabled(false);
    }
    options
}

/// Compiles a kernel function.
///
/// # Errors
/// Metal's words.
pub(super) fn build(
    gpu: &Gpu,
    facts: &DeviceFacts,
    name: &str,
    text: &str,
    entry: &str,
    language: Language,
) -> Result<(Pipeline, PipelineFacts), RuntimeError> {
    autoreleasepool(|_| {
        let options = options(language, facts);
        let library = gpu
            .newLibraryWithSource_options_error(&NSString::from_str(text), Some(&options))
            .map_err(|error| failed(name, Stage::Compile, words(&error)))?;
        let function =
            library.newFunctionWithName(&NSString::from_str(entry)).ok_or_else(|| {
                failed(name, Stage::Load, format!("its library has no function `{entry}`"))
            })?;
        let pipeline = gpu
            .newComputePipelineStateWithFunction_error(&function)
            .map_err(|error| failed(name, Stage::Load, words(&error)))?;
        let told = PipelineFacts {
            max_threads: pipeline.maxTotalThreadsPerThreadgroup() as u64,
            lanes: pipeline.threadExecutionWidth() as u64,
            threadgroup_bytes: pipeline.staticThreadgroupMemoryLength() as u64,
        };
        Ok((pipeline, told))
    })
}

/// What a pipeline of next to nothing tells: the width of a simdgroup.
///
/// # Errors
/// Metal's words.
pub(super) fn probe(gpu: &Gpu, facts: &DeviceFacts) -> Result<PipelineFacts, RuntimeError> {
    const TEXT: &str = "kernel void probe(device uint* out [[buffer(0)]],\n    \
                        uint i [[thread_position_in_grid]]) { out[i] = i; }\n";
    // The oldest version that kernels use; systems without it are refused later, by name.
    let language = Language::BASE.min(facts.newest_language());
    Ok(build(gpu, facts, "metal", TEXT, "probe", language)?.1)
}

/// A compiled kernel function that was written by hand.
pub struct OwnKernel {
    name: String,
    pipeline: Pipeline,
    threads: u32,
    shared: Arc<Shared>,
}

impl OwnKernel {
    pub(super) fn new(text: &Text<'_>, shared: &Arc<Shared>) -> Result<Self, RuntimeError> {
        let facts = shared.facts();
        let Text { entry, language, threads, .. } = *text;
        let (pipeline, told) = build(shared.gpu(), facts, entry, text.text, entry, language)?;
        let module = Module {
            text: String::new(),
            entry: entry.to_string(),
            bindings: Vec::new(),
            threads,
            threadgroup_bytes: 0,
            grid: Vec::new(),
            language,
            features: Vec::new(),
        };
        admit_pipeline(entry, &module, &told, facts)?;
        Ok(OwnKernel { name: entry.to_string(), pipeline, threads, shared: shared.clone() })
    }

    /// Gives one dispatch to the queue. Slots are the buffers in order, then the numbers as 32-bit
    /// integers.
    ///
    /// # Errors
    /// A buffer of another device, or Metal's words.
    ///
    /// # Safety
    /// The kernel stays inside the buffers, and nobody else writes what it touches until the queue
    /// has passed it.
    pub unsafe fn enqueue(
        &self,
        buffers: &[&DeviceBuffer],
        numbers: &[u32],
        groups: [u32; 3],
    ) -> Result<(), RuntimeError> {
        let mut slots = Vec::with_capacity(buffers.len() + numbers.len());
        for (slot, buffer) in (0u32..).zip(buffers) {
            let found = self.shared.allocations().find(buffer.address() as usize, buffer.bytes());
            let (object, offset) = found.ok_or_else(|| {
                let detail = format!("buffer {slot} lies in {}", buffer.space());
                failed(&self.name, Stage::Launch, detail)
            })?;
            slots.push((slot, Placed::Buffer { object, offset }));
        }
        for (slot, number) in (buffers.len() as u32..).zip(numbers) {
            let bytes = u64::from(*number).to_le_bytes();
            slots.push((slot, Placed::Number { bytes, len: 4 }));
        }
        let dispatch = Dispatch { slots, groups, threads: self.threads };
        let ready = [Ready { pipeline: self.pipeline.clone(), dispatch }];
        // SAFETY: as promised by the caller.
        unsafe { self.shared.submit(&self.name, &ready) }
    }
}
