//! The portable path: an interpreter of kernels in plain Rust, for any architecture.
//!
//! It runs lane vectors of typed slots, checks every address against its buffer, and knows no
//! races: the caller spreads the groups over threads. Slower than generated code by one to two
//! orders of magnitude. Asynchronous copies and atoms, mbarriers and clusters are refused; no
//! plan for a CPU has them.

mod atomic;
mod exec;
mod fragment;
mod lanes;
mod memory;

use std::ops::Range;

use tilewright_ir::entity::Id;
use tilewright_kernel::flat::{Class, Code, Inst, flatten};
use tilewright_kernel::kernel::{ArgKind, Kernel, Size};
use tilewright_kernel::validate::validate;
use tilewright_runtime::ArgValue;

use crate::error::CpuError;
use exec::Machine;

/// A kernel in the form that the portable path runs.
#[derive(Debug)]
pub struct Portable {
    kernel: Kernel,
    code: Code,
}

impl Portable {
    /// Takes a kernel.
    ///
    /// # Errors
    /// [`CpuError::Malformed`] for a kernel that isn't valid, [`CpuError::Unsupported`] for
    /// asynchronous work, mbarriers, tensor maps and clusters.
    pub fn new(kernel: &Kernel) -> Result<Portable, CpuError> {
        if let Err(errors) = validate(kernel) {
            let first = errors.first().map(ToString::to_string).unwrap_or_default();
            return Err(CpuError::malformed(first));
        }
        if kernel.cluster > 1 {
            return Err(CpuError::unsupported("clusters"));
        }
        let code = flatten(kernel, file);
        let asynchronous = code.insts.iter().any(|inst| match inst {
            Inst::Multiply(multiply) => multiply.token.is_some(),
            Inst::CopyAsync { .. }
            | Inst::CopyTensor(_)
            | Inst::MbarrierInit { .. }
            | Inst::MbarrierArrive { .. }
            | Inst::MbarrierWait { .. }
            | Inst::Wait { .. } => true,
            _ => false,
        });
        if asynchronous {
            return Err(CpuError::unsupported("asynchronous copies and atoms"));
        }
        Ok(Portable { kernel: kernel.clone(), code })
    }

    /// Runs the groups of the given linear numbers, one after another, on this thread.
    ///
    /// # Errors
    /// [`CpuError::Run`] where arguments don't fit, an element is outside its buffer, or
    /// subgroups wait for each other for ever. Buffers hold what was written before it.
    ///
    /// # Safety
    /// Buffers may be read and written for their `bytes`, and nobody else writes an element that
    /// these groups touch, or reads one that they write, except by atomics.
    pub unsafe fn run_groups(&self, args: &[ArgValue], groups: Range<u64>) -> Result<(), CpuError> {
        let extents = self.extents(args)?;
        let mut machine = Machine::new(&self.kernel, &self.code, args);
        for group in groups {
            let mut left = group;
            for (coord, extent) in machine.coords.iter_mut().zip(&extents).rev() {
                *coord = left % extent.max(&1);
                left /= extent.max(&1);
            }
            // SAFETY: as promised by the caller.
            unsafe { machine.group() }
                .map_err(|(statement, detail)| self.failure(statement, detail))?;
        }
        Ok(())
    }

    /// Checks the arguments; gives the extents of the grid.
    fn extents(&self, args: &[ArgValue]) -> Result<Vec<u64>, CpuError> {
        if args.len() != self.kernel.args.len() {
            let detail = format!("{} arguments for {}", args.len(), self.kernel.args.len());
            return Err(self.failure(0, detail));
        }
        for ((_, arg), given) in self.kernel.args.iter().zip(args) {
            let buffer = matches!(given, ArgValue::Buffer { .. });
            let fits = match arg.kind {
                ArgKind::Buffer { .. } => buffer,
                ArgKind::Number(_) => !buffer,
                ArgKind::TensorMap { .. } => false,
            };
            if !fits {
                return Err(self.failure(0, format!("argument `{}` is of another kind", arg.name)));
            }
        }
        let mut extents = Vec::new();
        for dim in &self.kernel.grid {
            let size = match dim.size {
                Size::Const(n) => Some(n),
                Size::Arg(id) => match args.get(id.index()) {
                    Some(ArgValue::Index(n)) => u64::try_from(*n).ok(),
                    _ => None,
                },
            };
            let Some(size) = size else {
                return Err(self.failure(0, "a grid size is no index or is negative".into()));
            };
            extents.push(size.div_ceil(dim.step));
        }
        Ok(extents)
    }

    fn failure(&self, statement: u32, detail: String) -> CpuError {
        CpuError::Run { kernel: self.kernel.name.clone(), statement, detail }
    }
}

/// Register files: integers and bools, floats up to 32 bits, f64.
const INTS: u16 = 0;
const SINGLES: u16 = 1;
const DOUBLES: u16 = 2;

fn file(class: Class) -> u16 {
    match class {
        Class::Index | Class::I32 | Class::Bool => INTS,
        Class::Float(tilewright_ir::DType::F64) => DOUBLES,
        Class::Float(_) => SINGLES,
    }
}
