//! A device whose kernels the simulator runs, on host memory.

use tilewright_ir::DType;
use tilewright_kernel::kernel::{ArgKind, Elem, Kernel};
use tilewright_kernel::sim::{self, Order, SimArg, SimOptions};
use tilewright_plan::Target;
use tilewright_runtime::{
    ArgValue, Buffer, Capabilities, Device, Executable, Failure, ResourceReport, Roofline,
    RuntimeError, Stage,
};

pub struct Simulated {
    capabilities: Capabilities,
    target: Target,
}

impl Simulated {
    pub fn new(target: Target) -> Self {
        let capabilities = Capabilities {
            name: "simulated".to_string(),
            model: String::new(),
            isa: String::new(),
            threads: 1,
            memory_bytes: None,
            notes: vec![],
        };
        Simulated { capabilities, target }
    }
}

struct Code(Vec<Kernel>);

/// The elements behind an address, as the type holds them.
///
/// # Safety
/// `bytes` readable bytes start at `ptr`.
unsafe fn read(dtype: DType, ptr: *const u8, bytes: usize) -> Result<Vec<f64>, RuntimeError> {
    let mut copy = Buffer::zeros(dtype, bytes / dtype.bytes() as usize)?;
    // SAFETY: the caller's promise; the copy has that many bytes.
    unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(ptr, copy.bytes()) };
    Ok(copy.to_f64())
}

/// # Safety
/// As many elements may be written at `ptr`.
unsafe fn write(dtype: DType, ptr: *mut u8, values: &[f64]) -> Result<(), RuntimeError> {
    let copy = Buffer::from_f64(dtype, values)?;
    // SAFETY: the caller's promise.
    unsafe { ptr.copy_from_nonoverlapping(copy.as_ptr(), copy.bytes()) };
    Ok(())
}

impl Executable for Code {
    unsafe fn launch(&self, args: &[ArgValue]) -> Result<(), RuntimeError> {
        let mut rest = args;
        for kernel in &self.0 {
            let (own, others) = rest.split_at(kernel.args.len());
            rest = others;
            let mut sim_args = Vec::new();
            for ((_, arg), value) in kernel.args.iter().zip(own) {
                sim_args.push(match (arg.kind, *value) {
                    (ArgKind::Buffer { dtype, .. }, ArgValue::Buffer { ptr, bytes }) => {
                        // SAFETY: the launch's buffers hold that many bytes.
                        SimArg::buffer(dtype, unsafe { read(dtype, ptr, bytes) }?)
                    }
                    (ArgKind::Number(Elem::Index), ArgValue::Index(n)) => SimArg::Index(n),
                    (_, ArgValue::Index(n)) => SimArg::Number(n as f64),
                    (_, ArgValue::Float(x)) => SimArg::Number(x),
                    (kind, value) => panic!("{kind:?} for {value:?}"),
                });
            }
            let options =
                SimOptions { max_steps: 1 << 28, ..SimOptions::with_order(Order::Shuffled(3)) };
            sim::run(kernel, &mut sim_args, &options).map_err(|error| {
                RuntimeError::Backend(Failure {
                    op: kernel.name.clone(),
                    plan: String::new(),
                    stage: Stage::Launch,
                    detail: error.to_string(),
                })
            })?;
            for (value, result) in own.iter().zip(&sim_args) {
                if let (ArgValue::Buffer { ptr, .. }, SimArg::Buffer { dtype, data, .. }) =
                    (*value, result)
                {
                    // SAFETY: the buffer has as many elements as were read from it.
                    unsafe { write(*dtype, ptr, data) }?;
                }
            }
        }
        Ok(())
    }

    fn disassembly(&self) -> String {
        self.0.iter().map(Kernel::to_string).collect()
    }

    fn report(&self) -> ResourceReport {
        ResourceReport::default()
    }
}

impl Device for Simulated {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn target(&self) -> &Target {
        &self.target
    }
    fn compile(&self, launches: &[Kernel]) -> Result<Box<dyn Executable>, RuntimeError> {
        Ok(Box::new(Code(launches.to_vec())))
    }
    fn roofline(&self, _: DType, _: usize) -> Option<Roofline> {
        None
    }
}
