//! The device: facts, compilation, queue.

use super::exec;
use super::pipeline::{self, OwnKernel, Text};
use super::queue::{MetalQueue, Shared};
use super::{Gpu, cores, failed, roofline};
use crate::host::facts::{DeviceFacts, system_version};
use objc2::rc::autoreleasepool;
use objc2_foundation::NSProcessInfo;
use objc2_metal::{MTLCounterSet, MTLCreateSystemDefaultDevice, MTLDevice, MTLGPUFamily};
use std::sync::{Arc, Mutex};
use tilewright_ir::DType;
use tilewright_kernel::kernel::Kernel;
use tilewright_plan::Target;
use tilewright_runtime::{Capabilities, Device, Executable, Queue, Roofline, RuntimeError, Stage};

/// The GPU of this Mac with a queue of its own.
pub struct MetalDevice {
    facts: Arc<DeviceFacts>,
    capabilities: Capabilities,
    target: Target,
    shared: Arc<Shared>,
    queue: Arc<dyn Queue>,
    /// Measured ceilings by type.
    rooflines: Mutex<Vec<(DType, Roofline)>>,
}

impl MetalDevice {
    /// Opens the default GPU.
    ///
    /// # Errors
    /// [`RuntimeError::DeviceMissing`] with one sentence where there is no GPU or one that kernels
    /// can't be made for; [`RuntimeError::Backend`] with Metal's words for anything else.
    pub fn open() -> Result<MetalDevice, RuntimeError> {
        autoreleasepool(|_| {
            let missing = |reason: &str| RuntimeError::DeviceMissing {
                device: "metal".to_string(),
                reason: reason.to_string(),
            };
            let gpu = MTLCreateSystemDefaultDevice()
                .ok_or_else(|| missing("this Mac offers no Metal device to this process"))?;
            let mut facts = facts(&gpu)?;
            // Before the first pipeline nothing tells the width of a simdgroup; everything that
            // compiling needs is known.
            let probe = pipeline::probe(&gpu, &facts)?;
            facts.lanes = u32::try_from(probe.lanes).unwrap_or(0);
            facts.require()?;
            let facts = Arc::new(facts);
            let shared = Arc::new(Shared::new(gpu, facts.clone())?);
            Ok(MetalDevice {
                capabilities: facts.capabilities(),
                target: facts.target(),
                queue: Arc::new(MetalQueue::new(shared.clone())),
                facts,
                shared,
                rooflines: Mutex::new(Vec::new()),
            })
        })
    }

    /// What Metal and macOS tell of it.
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// Compiles a kernel function that was written by hand.
    ///
    /// # Errors
    /// Metal's words; [`RuntimeError::Unsupported`] where its pipeline refuses the threads.
    pub fn compile_text(&self, text: &Text<'_>) -> Result<OwnKernel, RuntimeError> {
        OwnKernel::new(text, &self.shared)
    }
}

/// Everything but the width of a simdgroup, which is 0 here.
fn facts(gpu: &Gpu) -> Result<DeviceFacts, RuntimeError> {
    let version = NSProcessInfo::processInfo().operatingSystemVersion();
    let number = |n: isize| u32::try_from(n).unwrap_or(0);
    let told = [version.majorVersion, version.minorVersion, version.patchVersion].map(number);
    let os = system_version(told);
    let families = [
        (10, MTLGPUFamily::Apple10),
        (9, MTLGPUFamily::Apple9),
        (8, MTLGPUFamily::Apple8),
        (7, MTLGPUFamily::Apple7),
        (6, MTLGPUFamily::Apple6),
    ];
    let apple = families.into_iter().find(|(_, family)| gpu.supportsFamily(*family));
    let name = gpu.name().to_string();
    let cores = cores::count().ok_or_else(|| {
        let detail = format!(
            "the I/O registry doesn't tell how many cores the {name} has: state it in {}",
            cores::VARIABLE
        );
        failed("metal", Stage::Open, detail)
    })?;
    let counter_sets = gpu
        .counterSets()
        .map_or_else(Vec::new, |sets| sets.iter().map(|set| set.name().to_string()).collect());
    Ok(DeviceFacts {
        name,
        // The property came with macOS 14; asking before would be an unknown selector.
        architecture: (os[0] >= 14).then(|| gpu.architecture().name().to_string()),
        os,
        apple_family: apple.map(|(number, _)| number),
        metal3: os[0] >= 13 && gpu.supportsFamily(MTLGPUFamily::Metal3),
        metal4: os[0] >= 26 && gpu.supportsFamily(MTLGPUFamily::Metal4),
        lanes: 0,
        max_threads: u32::try_from(gpu.maxThreadsPerThreadgroup().width).unwrap_or(0),
        threadgroup_bytes: gpu.maxThreadgroupMemoryLength() as u64,
        cores,
        memory_bytes: gpu.recommendedMaxWorkingSetSize(),
        buffer_bytes: gpu.maxBufferLength() as u64,
        unified_memory: gpu.hasUnifiedMemory(),
        counter_sets,
    })
}

impl std::fmt::Debug for MetalDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetalDevice").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl Device for MetalDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn target(&self) -> &Target {
        &self.target
    }

    fn compile(&self, launches: &[Kernel]) -> Result<Box<dyn Executable>, RuntimeError> {
        Ok(Box::new(exec::compile(launches, &self.shared, &self.queue)?))
    }

    fn roofline(&self, dtype: DType, _threads: usize) -> Option<Roofline> {
        let dtype = dtype.accumulator();
        let mut known = self.rooflines.lock().ok()?;
        if let Some((_, roofline)) = known.iter().find(|k| k.0 == dtype) {
            return Some(*roofline);
        }
        let roofline = roofline::measure(self, dtype)?;
        known.push((dtype, roofline));
        Some(roofline)
    }

    fn queue(&self) -> Option<&Arc<dyn Queue>> {
        Some(&self.queue)
    }
}
