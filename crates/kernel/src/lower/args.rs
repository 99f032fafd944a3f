//! Kernel arguments of a program: its tensors, its scalars and its symbolic dimensions, in that
//! order, and the sizes and strides that they give.

use std::collections::HashMap;

use tilewright_ir::Program;
use tilewright_ir::entity::Id;
use tilewright_ir::program::{DimId, DimKind, Extent, ScalarId, Strides, TensorId};

use crate::builder::KernelBuilder;
use crate::kernel::{ArgId, ArgSource, Elem, Size, ValueId};

/// The arguments of a kernel by what they are in the program.
#[derive(Debug)]
pub(super) struct Args {
    tensors: Vec<ArgId>,
    scalars: Vec<ArgId>,
    dims: HashMap<DimId, ArgId>,
}

impl Args {
    /// Declares every tensor, scalar and symbolic dimension of the program.
    pub fn declare(b: &mut KernelBuilder, program: &Program) -> Args {
        let mut taken: Vec<String> = Vec::new();
        let mut unique = |name: &str| {
            let mut name = name.to_string();
            while taken.contains(&name) {
                name.push('_');
            }
            taken.push(name.clone());
            name
        };
        let mut args = Args { tensors: Vec::new(), scalars: Vec::new(), dims: HashMap::new() };
        for (id, t) in program.tensors.iter() {
            let name = unique(&t.name);
            let source = ArgSource::Tensor(id);
            args.tensors.push(b.buffer(&name, t.dtype, t.access, t.align, source));
        }
        for (id, s) in program.scalars.iter() {
            let name = unique(&s.name);
            args.scalars.push(b.number(&name, Elem::Data(s.dtype), ArgSource::Scalar(id)));
        }
        for (id, d) in program.dims.iter() {
            if let DimKind::Symbolic { .. } = d.kind {
                let name = unique(&d.name);
                args.dims.insert(id, b.number(&name, Elem::Index, ArgSource::Dim(id)));
            }
        }
        args
    }

    /// The buffer of a tensor.
    pub fn tensor(&self, tensor: TensorId) -> ArgId {
        self.tensors[tensor.index()]
    }

    /// The argument of a scalar.
    pub fn scalar(&self, scalar: ScalarId) -> ArgId {
        self.scalars[scalar.index()]
    }

    /// A size, known now or at launch.
    pub fn size(&self, program: &Program, extent: Extent) -> Size {
        match (program.known(extent), extent) {
            (Some(n), _) | (None, Extent::Const(n)) => Size::Const(n),
            (None, Extent::Dim(d)) => match self.dims.get(&d) {
                Some(arg) => Size::Arg(*arg),
                // Every dimension that isn't known is symbolic, so it has an argument.
                None => Size::Const(0),
            },
        }
    }

    /// The index value of a size.
    pub fn extent(&self, b: &mut KernelBuilder, program: &Program, extent: Extent) -> ValueId {
        let size = self.size(program, extent);
        b.size(size)
    }

    /// The stride of a tensor's dimension in elements.
    pub fn stride(
        &self,
        b: &mut KernelBuilder,
        program: &Program,
        tensor: TensorId,
        dim: usize,
    ) -> ValueId {
        let t = &program.tensors[tensor];
        match &t.strides {
            Strides::Explicit(strides) => self.extent(b, program, strides[dim]),
            Strides::Packed => {
                let mut stride = b.int(1);
                for extent in t.shape[dim + 1..].iter().rev() {
                    let extent = self.extent(b, program, *extent);
                    stride = b.mul(stride, extent);
                }
                stride
            }
        }
    }
}

/// A number that the stride of a tensor's dimension is surely a multiple of.
pub(super) fn stride_divisor(program: &Program, tensor: TensorId, dim: usize) -> u64 {
    let t = &program.tensors[tensor];
    match &t.strides {
        Strides::Explicit(strides) => program.divisor(strides[dim]),
        Strides::Packed => {
            t.shape[dim + 1..].iter().map(|e| program.divisor(*e)).fold(1, u64::saturating_mul)
        }
    }
}
