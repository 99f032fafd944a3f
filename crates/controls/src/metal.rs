//! Controls on the GPU of a Mac: the matrix multiplication of Metal Performance Shaders, and a
//! handwritten kernel of tensor operations. Type-checked; never run on Apple hardware yet.

use crate::{Control, ControlError, OutputPolicy, Prepared, Problem, check_lengths};
use objc2::AnyThread;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSProcessInfo, NSString};
use objc2_metal::{
    MTLBuffer, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue,
    MTLCompileOptions, MTLComputeCommandEncoder, MTLComputePipelineState,
    MTLCreateSystemDefaultDevice, MTLDevice, MTLGPUFamily, MTLLanguageVersion, MTLLibrary,
    MTLMathFloatingPointFunctions, MTLMathMode, MTLResourceOptions, MTLSize,
};
use objc2_metal_performance_shaders::{
    MPSDataType, MPSMatrix, MPSMatrixDescriptor, MPSMatrixMultiplication, MPSSupportsMTLDevice,
};
use std::ffi::c_void;
use std::ptr::NonNull;

type Gpu = Retained<ProtocolObject<dyn MTLDevice>>;
type Queue = Retained<ProtocolObject<dyn MTLCommandQueue>>;
type Bytes = Retained<ProtocolObject<dyn MTLBuffer>>;
type Commands = Retained<ProtocolObject<dyn MTLCommandBuffer>>;
type Pipeline = Retained<ProtocolObject<dyn MTLComputePipelineState>>;

const MPP: &str = include_str!("gemm_mpp.metal");
/// Rows and columns of a threadgroup's tile in that text.
const TILE: usize = 64;
/// Threads of its threadgroup.
const THREADS: usize = 128;

/// Which control.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Mps,
    Mpp,
}

/// A control on the default GPU.
pub(crate) struct Metal {
    kind: Kind,
    gpu: Gpu,
    queue: Queue,
}

fn missing(reason: &str) -> ControlError {
    ControlError::Missing(reason.to_string())
}

/// The version of macOS.
fn system() -> [isize; 3] {
    let version = NSProcessInfo::processInfo().operatingSystemVersion();
    [version.majorVersion, version.minorVersion, version.patchVersion]
}

impl Metal {
    /// `mps` or `mpp`.
    ///
    /// # Errors
    /// There is no GPU, or it lacks what the control needs.
    pub(crate) fn open(name: &str) -> Result<Self, ControlError> {
        let kind = if name == "mps" { Kind::Mps } else { Kind::Mpp };
        autoreleasepool(|_| {
            let gpu = MTLCreateSystemDefaultDevice()
                .ok_or_else(|| missing("this Mac offers no Metal device to this process"))?;
            match kind {
                Kind::Mps => {
                    // SAFETY: the device is live.
                    if !unsafe { MPSSupportsMTLDevice(Some(&gpu)) } {
                        return Err(missing("Metal Performance Shaders don't support this GPU"));
                    }
                }
                Kind::Mpp => {
                    // macOS 26 calls itself 16 to programs built for an older system; there are no
                    // versions between.
                    if system()[0] < 16 || !gpu.supportsFamily(MTLGPUFamily::Metal4) {
                        return Err(missing("tensor operations need family Metal4 and macOS 26"));
                    }
                }
            }
            let queue = gpu.newCommandQueue().ok_or_else(|| missing("no command queue"))?;
            Ok(Metal { kind, gpu, queue })
        })
    }

    fn pipeline(&self, transposed: [bool; 2]) -> Result<Pipeline, ControlError> {
        let [left, right] = transposed.map(u8::from);
        let text = format!("#define LEFT {left}\n#define RIGHT {right}\n{MPP}");
        let options = MTLCompileOptions::new();
        options.setLanguageVersion(MTLLanguageVersion::Version4_0);
        options.setMathMode(MTLMathMode::Safe);
        options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Precise);
        let said = |error: &objc2_foundation::NSError| {
            ControlError::Missing(error.localizedDescription().to_string())
        };
        let library = self
            .gpu
            .newLibraryWithSource_options_error(&NSString::from_str(&text), Some(&options))
            .map_err(|e| said(&e))?;
        let function = library
            .newFunctionWithName(&NSString::from_str("gemm_mpp"))
            .ok_or_else(|| missing("its library has no function `gemm_mpp`"))?;
        let pipeline =
            self.gpu.newComputePipelineStateWithFunction_error(&function).map_err(|e| said(&e))?;
        if pipeline.maxTotalThreadsPerThreadgroup() < THREADS {
            return Err(missing("its pipeline allows fewer threads than it is written for"));
        }
        Ok(pipeline)
    }

    /// The operation of Metal Performance Shaders with its matrices.
    fn operation(&self, transposed: [bool; 2], sizes: [usize; 3], buffers: &[Bytes; 3]) -> Work {
        let [m, n, k] = sizes;
        let matrix = |buffer: &Bytes, rows: usize, columns: usize| {
            // SAFETY: rows are packed f32, and the buffer holds all of them.
            unsafe {
                let descriptor =
                    MPSMatrixDescriptor::matrixDescriptorWithRows_columns_rowBytes_dataType(
                        rows,
                        columns,
                        4 * columns,
                        MPSDataType::Float32,
                    );
                MPSMatrix::initWithBuffer_descriptor(MPSMatrix::alloc(), buffer, &descriptor)
            }
        };
        let swapped = |flag: bool, rows: usize, columns: usize| {
            if flag { (columns, rows) } else { (rows, columns) }
        };
        let (a_rows, a_columns) = swapped(transposed[0], m, k);
        let (b_rows, b_columns) = swapped(transposed[1], k, n);
        // SAFETY: the device is live, and no size is 0.
        let kernel = unsafe {
            MPSMatrixMultiplication::initWithDevice_transposeLeft_transposeRight_resultRows_resultColumns_interiorColumns_alpha_beta(
                MPSMatrixMultiplication::alloc(),
                &self.gpu,
                transposed[0],
                transposed[1],
                m,
                n,
                k,
                1.0,
                0.0,
            )
        };
        let [a, b, c] = buffers;
        let matrices =
            [matrix(a, a_rows, a_columns), matrix(b, b_rows, b_columns), matrix(c, m, n)];
        Work::Mps { kernel, matrices }
    }
}

impl Control for Metal {
    fn version(&self) -> Option<String> {
        let [major, minor, patch] = system();
        Some(format!("macOS {major}.{minor}.{patch}"))
    }

    fn output(&self) -> OutputPolicy {
        OutputPolicy::Preallocated
    }

    fn prepare(&self, problem: &Problem) -> Result<Box<dyn Prepared>, ControlError> {
        let sizes = problem.product()?;
        let [m, n, k] = sizes;
        // Metal has no empty matrices, and the handwritten text counts in 32 bits.
        if sizes.iter().any(|s| *s == 0 || *s > i32::MAX as usize) {
            return Err(ControlError::Unsupported { op: problem.op.clone() });
        }
        autoreleasepool(|_| {
            let buffer = |elements: usize| {
                self.gpu
                    .newBufferWithLength_options(
                        4 * elements,
                        MTLResourceOptions::StorageModeShared,
                    )
                    .ok_or_else(|| missing("no memory for its tensors"))
            };
            let lengths = [m * k, k * n, m * n];
            let buffers = [buffer(lengths[0])?, buffer(lengths[1])?, buffer(lengths[2])?];
            let work = match self.kind {
                Kind::Mps => self.operation(problem.transposed, sizes, &buffers),
                Kind::Mpp => Work::Mpp { pipeline: self.pipeline(problem.transposed)? },
            };
            let queue = self.queue.clone();
            Ok(Box::new(Product { queue, sizes, lengths, buffers, work }) as Box<dyn Prepared>)
        })
    }
}

/// What is encoded for one call.
enum Work {
    Mps { kernel: Retained<MPSMatrixMultiplication>, matrices: [Retained<MPSMatrix>; 3] },
    Mpp { pipeline: Pipeline },
}

/// A product on the device, with memory of its own.
struct Product {
    queue: Queue,
    sizes: [usize; 3],
    lengths: [usize; 3],
    buffers: [Bytes; 3],
    work: Work,
}

impl Product {
    fn upload(&self, inputs: &[&[f32]], output: &[f32]) -> Result<(), ControlError> {
        check_lengths(inputs, &self.lengths[..2], output, self.lengths[2])?;
        for (buffer, input) in self.buffers.iter().zip(inputs) {
            let to = buffer.contents().cast::<f32>().as_ptr();
            // SAFETY: the lengths were checked, and nothing runs on the device.
            unsafe { to.copy_from_nonoverlapping(input.as_ptr(), input.len()) };
        }
        Ok(())
    }

    /// Runs that many calls in one command buffer and waits; nanoseconds by the GPU's clock.
    fn run(&self, calls: u64) -> Result<u64, ControlError> {
        let commands = self.queue.commandBuffer().ok_or_else(|| missing("no command buffer"))?;
        for _ in 0..calls {
            self.encode(&commands)?;
        }
        commands.commit();
        commands.waitUntilCompleted();
        if commands.status() == MTLCommandBufferStatus::Error {
            let said = commands.error().map(|e| e.localizedDescription().to_string());
            return Err(ControlError::Missing(said.unwrap_or_else(|| "it failed".to_string())));
        }
        let seconds = commands.GPUEndTime() - commands.GPUStartTime();
        Ok((seconds * 1e9).round().max(1.0) as u64)
    }

    fn encode(&self, commands: &Commands) -> Result<(), ControlError> {
        match &self.work {
            Work::Mps { kernel, matrices: [a, b, c] } => {
                // SAFETY: the matrices have the sizes that the operation was made for.
                unsafe {
                    kernel.encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix(
                        commands, a, b, c,
                    );
                }
            }
            Work::Mpp { pipeline } => {
                let encoder =
                    commands.computeCommandEncoder().ok_or_else(|| missing("no encoder"))?;
                encoder.setComputePipelineState(pipeline);
                for (slot, buffer) in self.buffers.iter().enumerate() {
                    // SAFETY: the kernel stays inside matrices of the given sizes.
                    unsafe { encoder.setBuffer_offset_atIndex(Some(buffer), 0, slot) };
                }
                for (slot, size) in (3..).zip(self.sizes) {
                    let size = size as u32;
                    let bytes = NonNull::from(&size).cast::<c_void>();
                    // SAFETY: four live bytes, copied during the call.
                    unsafe { encoder.setBytes_length_atIndex(bytes, 4, slot) };
                }
                let [m, n, _] = self.sizes;
                let groups =
                    MTLSize { width: n.div_ceil(TILE), height: m.div_ceil(TILE), depth: 1 };
                let threads = MTLSize { width: THREADS, height: 1, depth: 1 };
                encoder.dispatchThreadgroups_threadsPerThreadgroup(groups, threads);
                encoder.endEncoding();
            }
        }
        Ok(())
    }
}

impl Prepared for Product {
    fn call(&mut self, inputs: &[&[f32]], output: &mut [f32]) -> Result<(), ControlError> {
        self.upload(inputs, output)?;
        autoreleasepool(|_| self.run(1))?;
        let from = self.buffers[2].contents().cast::<f32>().as_ptr();
        // SAFETY: the length was checked, and the device is done.
        unsafe { from.copy_to_nonoverlapping(output.as_mut_ptr(), output.len()) };
        Ok(())
    }

    fn device_batches(
        &mut self,
        inputs: &[&[f32]],
        output: &mut [f32],
        calls: u64,
        samples: usize,
    ) -> Result<Option<Vec<u64>>, ControlError> {
        self.upload(inputs, output)?;
        autoreleasepool(|_| {
            // One batch that isn't timed, as for kernels of our own.
            self.run(calls)?;
            (0..samples).map(|_| self.run(calls)).collect::<Result<Vec<u64>, _>>().map(Some)
        })
    }
}
