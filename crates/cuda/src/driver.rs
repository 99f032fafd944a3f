//! The CUDA driver API, loaded at run time: contexts, modules, memory, streams, events, graphs.
//!
//! Every call goes through [`cudarc`]'s lazily resolved symbols. [`Context::open`] asks whether
//! the driver library is there before anything else, so a machine without one gets a sentence.

use std::ffi::{CString, c_uint, c_void};
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

/// A CUDA operation that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// No driver library.
    #[error("no NVIDIA driver is installed here (libcuda isn't found)")]
    NoDriver,
    /// The driver starts but has no such device.
    #[error("no CUDA device {ordinal}: the driver sees {count}")]
    NoDevice {
        /// Asked for.
        ordinal: usize,
        /// Present.
        count: usize,
    },
    /// The driver refused the PTX, with its log.
    #[error("the driver (CUDA {driver}) can't assemble this kernel: {code}: {log}")]
    Assemble {
        /// Version that the driver supports, such as 12.4.
        driver: String,
        /// The driver's error.
        code: String,
        /// What its assembler said.
        log: String,
    },
    /// Any other call.
    #[error("{call} failed: {code}")]
    Call {
        /// The driver function.
        call: &'static str,
        /// The driver's words.
        code: String,
    },
}

impl CudaError {
    /// A failed call of the driver.
    pub(crate) fn of(call: &'static str, error: DriverError) -> CudaError {
        CudaError::Call { call, code: words(error) }
    }
}

fn at(call: &'static str) -> impl FnOnce(DriverError) -> CudaError {
    move |error| CudaError::Call { call, code: words(error) }
}

fn words(error: DriverError) -> String {
    let text = |s: Result<&std::ffi::CStr, DriverError>| {
        s.map(|s| s.to_string_lossy().into_owned()).unwrap_or_else(|_| "unknown error".into())
    };
    format!("{} ({})", text(error.error_name()), text(error.error_string()))
}

/// Facts that the driver tells of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Marketing name.
    pub name: String,
    /// Compute capability times ten.
    pub sm: u32,
    /// Streaming multiprocessors.
    pub cores: u32,
    /// Most threads of one group.
    pub max_threads: u32,
    /// Bytes of shared memory that one group may opt in to.
    pub shared_bytes: u64,
    /// Bytes of shared memory of one core.
    pub shared_bytes_per_core: u64,
    /// Registers of one core.
    pub registers_per_core: u64,
    /// Most threads resident on one core.
    pub threads_per_core: u64,
    /// Bytes of L2 cache.
    pub l2_bytes: u64,
    /// Bytes of device memory.
    pub memory_bytes: u64,
    /// CUDA version of the driver, such as 13000 for 13.0.
    pub driver: i32,
}

impl DeviceFacts {
    /// The driver's CUDA version as text.
    pub fn driver_text(&self) -> String {
        format!("{}.{}", self.driver / 1000, self.driver % 1000 / 10)
    }
}

/// Starts the driver and counts its devices; `ordinal` is the one that is wanted, for the error.
fn count(ordinal: usize) -> Result<usize, CudaError> {
    // SAFETY: only asks the dynamic loader whether the library is there.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    result::init().map_err(|e| match e.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => CudaError::NoDevice { ordinal, count: 0 },
        _ => at("cuInit")(e),
    })?;
    Ok(result::device::get_count().map_err(at("cuDeviceGetCount"))?.max(0) as usize)
}

/// Number of GPUs that the driver sees.
///
/// # Errors
/// [`CudaError::NoDriver`] where there is none; the driver's words where it doesn't start.
pub fn device_count() -> Result<usize, CudaError> {
    match count(0) {
        Err(CudaError::NoDevice { .. }) => Ok(0),
        other => other,
    }
}

std::thread_local! {
    /// Where this thread's launches are being recorded: the context and the stream.
    static RECORDING: std::cell::Cell<Option<(usize, usize)>> = const { std::cell::Cell::new(None) };
}

/// The primary context of one device with one stream.
pub struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    facts: DeviceFacts,
}

// SAFETY: driver handles may be used from any thread; every method makes the context current on
// the calling thread first.
unsafe impl Send for Context {}
// SAFETY: the driver synchronises its own state; the stream orders the work given to it.
unsafe impl Sync for Context {}

impl Context {
    /// Opens a device.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`] or [`CudaError::NoDevice`] where there is none; the driver's words
    /// for anything else.
    pub fn open(ordinal: usize) -> Result<Arc<Context>, CudaError> {
        let count = count(ordinal)?;
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let device = result::device::get(ordinal as i32).map_err(at("cuDeviceGet"))?;
        let facts = facts(device)?;
        // SAFETY: `device` is a valid ordinal; the context is released on drop.
        let context = unsafe { result::primary_ctx::retain(device) }
            .map_err(at("cuDevicePrimaryCtxRetain"))?;
        // SAFETY: the context was just retained.
        unsafe { result::ctx::set_current(context) }.map_err(at("cuCtxSetCurrent"))?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(at("cuStreamCreate"))?;
        Ok(Arc::new(Context { device, context, stream, facts }))
    }

    /// What the device is.
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// The stream that all work goes to.
    pub fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// The stream that the calling thread's launches go to: that of a recording where there is one.
    fn launch_stream(&self) -> sys::CUstream {
        match RECORDING.get() {
            Some((context, stream)) if context == std::ptr::from_ref(self) as usize => {
                stream as sys::CUstream
            }
            _ => self.stream,
        }
    }

    /// Free and total bytes of device memory.
    ///
    /// # Errors
    /// The driver's words.
    pub fn memory_info(&self) -> Result<(usize, usize), CudaError> {
        self.bind()?;
        result::mem_get_info().map_err(at("cuMemGetInfo"))
    }

    /// Makes the context current on the calling thread.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context lives as long as `self`.
        unsafe { result::ctx::set_current(self.context) }.map_err(at("cuCtxSetCurrent"))
    }

    /// Waits until everything given to the stream is done.
    ///
    /// # Errors
    /// The first failure of the work, in the driver's words.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: the stream lives as long as `self`.
        unsafe { result::stream::synchronize(self.stream) }.map_err(at("cuStreamSynchronize"))
    }

    /// Allocates device memory. Its content is undefined.
    ///
    /// # Errors
    /// Out of memory, in the driver's words.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<DeviceBuffer, CudaError> {
        self.bind()?;
        // SAFETY: a plain allocation; freed on drop. Zero bytes aren't allowed.
        let pointer = unsafe { result::malloc_sync(bytes.max(1)) }.map_err(at("cuMemAlloc"))?;
        Ok(DeviceBuffer { context: self.clone(), pointer, bytes })
    }

    /// Loads a PTX module and resolves its entry.
    ///
    /// # Errors
    /// [`CudaError::Assemble`] with the assembler's log.
    pub fn load(self: &Arc<Self>, ptx: &crate::Ptx) -> Result<Function, CudaError> {
        let mut text = ptx.text.clone().into_bytes();
        text.push(0);
        self.load_image(ptx, &text)
    }

    /// Loads a module from what an assembler made of a PTX module, or from its text with a NUL at
    /// the end, and resolves its entry.
    ///
    /// # Errors
    /// [`CudaError::Assemble`] with the log of the driver.
    pub fn load_image(
        self: &Arc<Self>,
        ptx: &crate::Ptx,
        image: &[u8],
    ) -> Result<Function, CudaError> {
        self.bind()?;
        let refuse = |error: DriverError, log: String| CudaError::Assemble {
            driver: self.facts.driver_text(),
            code: words(error),
            log,
        };
        let nul = |_| CudaError::Assemble {
            driver: self.facts.driver_text(),
            code: "invalid text".into(),
            log: "the text contains a NUL byte".into(),
        };
        let entry = CString::new(ptx.entry.as_bytes()).map_err(nul)?;
        if !image.starts_with(b"\x7fELF") && image.last() != Some(&0) {
            return Err(refuse(
                DriverError(sys::CUresult::CUDA_ERROR_INVALID_IMAGE),
                "the image is neither an ELF file nor text that ends in NUL".into(),
            ));
        }
        let mut log = vec![0u8; 16 << 10];
        let mut options = [
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        let mut module: sys::CUmodule = std::ptr::null_mut();
        // SAFETY: the driver reads the image's own length from its header, or text up to its NUL;
        // options and values have two entries each and the log buffer outlives the call.
        let loaded = unsafe {
            sys::cuModuleLoadDataEx(
                &mut module,
                image.as_ptr().cast(),
                options.len() as c_uint,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        loaded.result().map_err(|e| {
            let end = log.iter().position(|b| *b == 0).unwrap_or(log.len());
            refuse(e, String::from_utf8_lossy(&log[..end]).trim().to_string())
        })?;
        // SAFETY: the module was just loaded.
        let function = unsafe { result::module::get_function(module, entry) }
            .map_err(at("cuModuleGetFunction"))?;
        let loaded = Function {
            context: self.clone(),
            module,
            function,
            threads: ptx.threads,
            shared_bytes: ptx.shared_bytes as u32,
            dependent: ptx.dependent,
        };
        if ptx.cluster > 8 {
            // More than every device has; this one is asked whether it takes them.
            // SAFETY: a valid function of a loaded module.
            unsafe {
                result::function::set_function_attribute(
                    function,
                    sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                    1,
                )
            }
            .map_err(at("cuFuncSetAttribute"))?;
        }
        if ptx.shared_bytes > 48 << 10 {
            // SAFETY: a valid function of a loaded module.
            unsafe {
                result::function::set_function_attribute(
                    function,
                    sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    ptx.shared_bytes as i32,
                )
            }
            .map_err(at("cuFuncSetAttribute"))?;
        }
        Ok(loaded)
    }

    /// Records what `work` launches as a graph.
    ///
    /// # Errors
    /// Errors of `work` and of the driver.
    pub fn capture(
        self: &Arc<Self>,
        work: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<Graph, CudaError> {
        self.bind()?;
        // A stream of its own, so that what other threads launch meanwhile isn't recorded.
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(at("cuStreamCreate"))?;
        let recorded = self.capture_on(stream, work);
        // SAFETY: created above, and nothing runs on a stream that only recorded.
        let destroyed = unsafe { result::stream::destroy(stream) };
        let graph = recorded?;
        destroyed.map_err(at("cuStreamDestroy"))?;
        Ok(graph)
    }

    fn capture_on(
        self: &Arc<Self>,
        stream: sys::CUstream,
        work: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<Graph, CudaError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is ours and not capturing.
        unsafe { result::stream::begin_capture(stream, mode) }
            .map_err(at("cuStreamBeginCapture"))?;
        let before = RECORDING.replace(Some((Arc::as_ptr(self) as usize, stream as usize)));
        let outcome = work();
        RECORDING.set(before);
        // SAFETY: the stream is capturing; ending also cleans up after a failure.
        let graph = unsafe { result::stream::end_capture(stream) };
        outcome?;
        let graph = graph.map_err(at("cuStreamEndCapture"))?;
        // SAFETY: the graph is valid.
        let exec = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        // SAFETY: an instantiated graph doesn't need its template.
        let destroyed = unsafe { result::graph::destroy(graph) };
        let exec = exec.map_err(at("cuGraphInstantiate"))?;
        destroyed.map_err(at("cuGraphDestroy"))?;
        Ok(Graph { context: self.clone(), exec })
    }

    /// Device time of what `work` gives to the stream, in microseconds, by two events.
    ///
    /// # Errors
    /// Errors of `work` and of the driver.
    pub fn time(&self, work: impl FnOnce() -> Result<(), CudaError>) -> Result<f64, CudaError> {
        self.bind()?;
        let create = || {
            result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(at("cuEventCreate"))
        };
        let (start, end) = (create()?, create()?);
        let measure = || {
            // SAFETY: both events and the stream are valid until the end of this function.
            unsafe {
                result::event::record(start, self.stream).map_err(at("cuEventRecord"))?;
                work()?;
                result::event::record(end, self.stream).map_err(at("cuEventRecord"))?;
                result::event::synchronize(end).map_err(at("cuEventSynchronize"))?;
                result::event::elapsed(start, end).map_err(at("cuEventElapsedTime"))
            }
        };
        let elapsed = measure();
        for event in [start, end] {
            // SAFETY: created above and used nowhere else.
            let _ = unsafe { result::event::destroy(event) };
        }
        Ok(f64::from(elapsed?) * 1e3)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: nothing else holds the stream or this reference to the primary context. Errors
        // at shutdown have nobody to go to.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

fn facts(device: sys::CUdevice) -> Result<DeviceFacts, CudaError> {
    use sys::CUdevice_attribute_enum as A;
    let attribute = |which: A| -> Result<i32, CudaError> {
        // SAFETY: `device` is valid.
        unsafe { result::device::get_attribute(device, which) }.map_err(at("cuDeviceGetAttribute"))
    };
    let number = |which: A| attribute(which).map(|v| v.max(0) as u64);
    let mut driver = 0;
    // SAFETY: writes one integer.
    unsafe { sys::cuDriverGetVersion(&mut driver) }.result().map_err(at("cuDriverGetVersion"))?;
    Ok(DeviceFacts {
        name: result::device::get_name(device).map_err(at("cuDeviceGetName"))?,
        sm: (attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? * 10
            + attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?) as u32,
        cores: number(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        max_threads: number(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)? as u32,
        shared_bytes: number(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        shared_bytes_per_core: number(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        registers_per_core: number(A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        threads_per_core: number(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
        l2_bytes: number(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        // SAFETY: `device` is valid.
        memory_bytes: unsafe { result::device::total_mem(device) }
            .map_err(at("cuDeviceTotalMem"))? as u64,
        driver,
    })
}

/// Memory of a device, freed on drop.
pub struct DeviceBuffer {
    context: Arc<Context>,
    pointer: sys::CUdeviceptr,
    bytes: usize,
}

impl DeviceBuffer {
    /// Device address of the first byte.
    pub fn pointer(&self) -> u64 {
        self.pointer
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn check(&self, len: usize) -> Result<(), CudaError> {
        if len > self.bytes {
            return Err(CudaError::Call {
                call: "copy",
                code: format!("{len} bytes don't fit a buffer of {}", self.bytes),
            });
        }
        self.context.bind()
    }

    // The driver's plain calls are of no use here: they may return before the device is done, and
    // go to a stream that kernels on the context's own don't wait for. So everything goes to the
    // context's stream, in the order of the calls, and is waited for.

    /// Copies from the host, behind what the stream was given before; returns when done.
    ///
    /// # Errors
    /// More bytes than the buffer has, or the driver's words.
    pub fn upload(&self, from: &[u8]) -> Result<(), CudaError> {
        self.check(from.len())?;
        // SAFETY: the destination holds `from.len()` bytes; the source lives until the wait.
        unsafe { result::memcpy_htod_async(self.pointer, from, self.context.stream) }
            .map_err(at("cuMemcpyHtoDAsync"))?;
        self.context.synchronize()
    }

    /// Copies to the host, behind what the stream was given before; returns when done.
    ///
    /// # Errors
    /// More bytes than the buffer has, or the driver's words.
    pub fn download(&self, to: &mut [u8]) -> Result<(), CudaError> {
        self.download_at(0, to)
    }

    /// Copies bytes from a place in the buffer to the host, behind what the stream was given
    /// before; returns when done.
    ///
    /// # Errors
    /// More bytes than the buffer has from there, or the driver's words.
    pub fn download_at(&self, offset: usize, to: &mut [u8]) -> Result<(), CudaError> {
        self.check(offset.saturating_add(to.len()))?;
        let from = self.pointer + offset as u64;
        // SAFETY: the source holds `offset + to.len()` bytes; the destination lives until the wait.
        unsafe { result::memcpy_dtoh_async(to, from, self.context.stream) }
            .map_err(at("cuMemcpyDtoHAsync"))?;
        self.context.synchronize()
    }

    /// The handle by which another process opens the memory (`cuIpcOpenMemHandle`), while this one
    /// keeps it.
    ///
    /// # Errors
    /// The driver's words.
    pub fn ipc_handle(&self) -> Result<[u8; 64], CudaError> {
        self.context.bind()?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the pointer is that of an allocation of this process.
        unsafe { sys::cuIpcGetMemHandle(&mut handle, self.pointer) }
            .result()
            .map_err(at("cuIpcGetMemHandle"))?;
        Ok(handle.reserved.map(|byte| byte as u8))
    }

    /// Sets every byte, behind what the stream was given before; returns when done.
    ///
    /// # Errors
    /// The driver's words.
    pub fn fill(&self, byte: u8) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: exactly this buffer.
        unsafe { result::memset_d8_async(self.pointer, byte, self.bytes, self.context.stream) }
            .map_err(at("cuMemsetD8Async"))?;
        self.context.synchronize()
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated by `alloc`, freed once.
            let _ = unsafe { result::free_sync(self.pointer) };
        }
    }
}

/// An entry of a loaded module.
pub struct Function {
    context: Arc<Context>,
    module: sys::CUmodule,
    function: sys::CUfunction,
    threads: u32,
    shared_bytes: u32,
    /// Whether launches may begin before the one ahead has ended.
    dependent: bool,
}

// SAFETY: as for Context: handles are usable from any thread once the context is current.
unsafe impl Send for Function {}
// SAFETY: launching doesn't change the function.
unsafe impl Sync for Function {}

/// What the assembler made of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionReport {
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of local memory per thread (spills).
    pub local_bytes: u32,
    /// Most threads of a group that registers allow.
    pub max_threads: u32,
    /// Groups that fit on one core at once.
    pub groups_per_core: u32,
}

impl Function {
    /// Launches on the context's stream and returns at once. `words` holds one 64-bit word per
    /// parameter (narrow parameters in the low bytes).
    ///
    /// # Errors
    /// The driver's words.
    ///
    /// # Safety
    /// The words must fit the kernel's parameters, and every buffer must hold what the kernel
    /// touches until the stream has passed the launch.
    pub unsafe fn launch(&self, grid: [u32; 3], words: &mut [u64]) -> Result<(), CudaError> {
        self.context.bind()?;
        let mut params: [*mut c_void; 64] = [std::ptr::null_mut(); 64];
        if words.len() > params.len() {
            return Err(CudaError::Call {
                call: "cuLaunchKernel",
                code: format!("{} parameters; at most {}", words.len(), params.len()),
            });
        }
        for (param, word) in params.iter_mut().zip(words.iter_mut()) {
            *param = std::ptr::from_mut(word).cast();
        }
        // SAFETY: parameters point to live words; the rest is the caller's promise.
        unsafe { self.enqueue(grid, &mut params[..words.len()]) }
    }

    /// Launches with one pointer per parameter, each to a word with the parameter in its low
    /// bytes, and returns at once.
    ///
    /// # Errors
    /// The driver's words.
    ///
    /// # Safety
    /// As [`Function::launch`]; the pointers are to live words.
    pub(crate) unsafe fn enqueue(
        &self,
        grid: [u32; 3],
        params: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        self.context.bind()?;
        if self.dependent {
            // SAFETY: the caller's promise.
            return unsafe { self.enqueue_dependent(grid, params) };
        }
        // SAFETY: the caller's promise.
        unsafe {
            result::launch_kernel(
                self.function,
                (grid[0], grid[1], grid[2]),
                (self.threads, 1, 1),
                self.shared_bytes,
                self.context.launch_stream(),
                params,
            )
        }
        .map_err(at("cuLaunchKernel"))
    }

    /// Launches so that groups may begin as soon as all groups of the launch ahead have begun. The
    /// kernel waits for its end before it touches memory. Drivers that assemble such a kernel have
    /// the call.
    ///
    /// # Safety
    /// As [`Function::enqueue`].
    unsafe fn enqueue_dependent(
        &self,
        [x, y, z]: [u32; 3],
        params: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: Default::default(),
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared_bytes,
            hStream: self.context.launch_stream(),
            attrs: &mut attribute,
            numAttrs: 1,
        };
        // SAFETY: the configuration and its attribute outlive the call, which copies them and the
        // parameters; the rest is the caller's promise.
        unsafe {
            sys::cuLaunchKernelEx(&config, self.function, params.as_mut_ptr(), std::ptr::null_mut())
        }
        .result()
        .map_err(at("cuLaunchKernelEx"))
    }

    /// The driver's handle, for measurements of the driver itself.
    pub fn raw(&self) -> sys::CUfunction {
        self.function
    }

    /// Registers, spills and occupancy.
    ///
    /// # Errors
    /// The driver's words.
    pub fn report(&self) -> Result<FunctionReport, CudaError> {
        use sys::CUfunction_attribute_enum as A;
        self.context.bind()?;
        let attribute = |which: A| -> Result<u32, CudaError> {
            // SAFETY: a valid function of a loaded module.
            unsafe { result::function::get_function_attribute(self.function, which) }
                .map(|v| v.max(0) as u32)
                .map_err(at("cuFuncGetAttribute"))
        };
        // SAFETY: as above.
        let groups = unsafe {
            result::occupancy::max_active_block_per_multiprocessor(
                self.function,
                self.threads as i32,
                self.shared_bytes as usize,
            )
        }
        .map_err(at("cuOccupancyMaxActiveBlocksPerMultiprocessor"))?;
        Ok(FunctionReport {
            registers: attribute(A::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local_bytes: attribute(A::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            max_threads: attribute(A::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            groups_per_core: groups.max(0) as u32,
        })
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: the module was loaded by `load` and is unloaded once.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}

/// An instantiated graph.
pub struct Graph {
    context: Arc<Context>,
    exec: sys::CUgraphExec,
}

impl Graph {
    /// Gives the graph to the stream and returns at once.
    ///
    /// # Errors
    /// The driver's words.
    pub fn launch(&self) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: the graph is instantiated and the stream lives.
        unsafe { result::graph::launch(self.exec, self.context.stream) }
            .map_err(at("cuGraphLaunch"))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: instantiated by `capture`, destroyed once.
            let _ = unsafe { result::graph::exec_destroy(self.exec) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_gets_a_sentence() {
        match Context::open(0) {
            Ok(context) => assert!(context.facts().sm >= 50),
            Err(error) => {
                let text = error.to_string();
                assert!(text.starts_with("no ") && !text.contains('\n'), "{text}");
            }
        }
    }
}
