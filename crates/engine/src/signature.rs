//! The launch contract of a program: which tensors, sizes and scalars a launch must bring, and
//! the check that it did. What the compiler didn't prove is a precondition here.
//!
//! The check allocates nothing, so that it costs a few nanoseconds per tensor.

use crate::launch_error::LaunchError;
use crate::tensor::TensorArg;
use tilewright_ir::DType;
use tilewright_ir::entity::Id;
use tilewright_ir::program::{Access, DimId, DimKind, Extent, Program, Strides};

/// Most tensors, scalars and symbolic dimensions (each) of one launch.
pub const MAX_ITEMS: usize = 16;
/// Most dimensions of one tensor.
pub const MAX_RANK: usize = 8;

/// Sizes of the symbolic dimensions, in the order of [`Signature::dims`].
pub type Sizes = [Option<u64>; MAX_ITEMS];

/// A size: known, or a symbolic dimension by position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Size {
    Const(u64),
    Dim(usize),
}

/// A symbolic dimension of a launch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DimSignature {
    /// In the program.
    pub id: DimId,
    /// Name.
    pub name: String,
    /// The size is a multiple of this.
    pub divisor: u64,
    /// The size is at most this.
    pub max: u64,
}

/// A tensor of a launch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorSignature {
    /// Name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Direction.
    pub access: Access,
    /// Required alignment of the first element, in bytes.
    pub align: u64,
    shape: Vec<Size>,
    strides: Option<Vec<Size>>,
}

/// A scalar of a launch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScalarSignature {
    /// Name.
    pub name: String,
    /// Type.
    pub dtype: DType,
    /// Whether it may not be zero.
    pub nonzero: bool,
}

/// Everything that a launch of one program must bring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signature {
    /// Tensors, in launch order.
    pub tensors: Vec<TensorSignature>,
    /// Symbolic dimensions.
    pub dims: Vec<DimSignature>,
    /// Run-time scalars, in launch order.
    pub scalars: Vec<ScalarSignature>,
}

impl Signature {
    /// The contract of a program. Blocks count with their bound or default extent.
    ///
    /// # Errors
    /// [`LaunchError::TooMany`] when the program has more tensors, scalars, dimensions or axes
    /// per tensor than a launch can carry.
    pub fn of(program: &Program) -> Result<Self, LaunchError> {
        let mut dims: Vec<DimSignature> = Vec::new();
        let mut position = vec![usize::MAX; program.dims.len()];
        for (id, dim) in program.dims.iter() {
            if let DimKind::Symbolic { divisor, max } = dim.kind {
                position[id.index()] = dims.len();
                dims.push(DimSignature { id, name: dim.name.clone(), divisor, max });
            }
        }
        let size = |extent: Extent| match (program.known(extent), extent) {
            (Some(n), _) | (None, Extent::Const(n)) => Size::Const(n),
            (None, Extent::Dim(d)) => Size::Dim(position[d.index()]),
        };
        let tensors: Vec<TensorSignature> = program
            .tensors
            .iter()
            .map(|(_, t)| TensorSignature {
                name: t.name.clone(),
                dtype: t.dtype,
                access: t.access,
                align: t.align,
                shape: t.shape.iter().map(|e| size(*e)).collect(),
                strides: match &t.strides {
                    Strides::Packed => None,
                    Strides::Explicit(s) => Some(s.iter().map(|e| size(*e)).collect()),
                },
            })
            .collect();
        let scalars: Vec<ScalarSignature> = program
            .scalars
            .iter()
            .map(|(_, s)| ScalarSignature {
                name: s.name.clone(),
                dtype: s.dtype,
                nonzero: s.nonzero,
            })
            .collect();
        let rank = tensors.iter().map(|t| t.shape.len()).max().unwrap_or(0);
        for (what, count, limit) in [
            ("tensors", tensors.len(), MAX_ITEMS),
            ("scalars", scalars.len(), MAX_ITEMS),
            ("symbolic dimensions", dims.len(), MAX_ITEMS),
            ("dimensions of one tensor", rank, MAX_RANK),
        ] {
            if count > limit {
                return Err(LaunchError::TooMany { what, count, limit });
            }
        }
        Ok(Signature { tensors, dims, scalars })
    }

    /// Finds every symbolic size from the given tensors and checks all preconditions: types,
    /// shapes, divisors, bounds, strides, lengths, alignment, and that no output overlaps another
    /// tensor. `sizes` holds the sizes that the caller stated.
    ///
    /// A size is taken from the first of: the caller, a tensor with a stated shape, a packed
    /// tensor whose length leaves it as the only unknown. A stride that nobody stated is the
    /// packed one.
    ///
    /// # Errors
    /// The first broken precondition.
    pub fn resolve(&self, tensors: &[TensorArg], sizes: &mut Sizes) -> Result<(), LaunchError> {
        self.count(tensors)?;
        for (sig, arg) in self.tensors.iter().zip(tensors) {
            self.take_stated(sig, arg, sizes)?;
        }
        // Each pass either finds a size or is the last one.
        while self.infer_one(tensors, sizes) {}
        for (sig, arg) in self.tensors.iter().zip(tensors) {
            self.take_strides(sig, arg, sizes)?;
        }
        for (dim, size) in self.dims.iter().zip(sizes.iter()) {
            let Some(value) = *size else { return Err(self.unknown(tensors, sizes)) };
            if !value.is_multiple_of(dim.divisor) {
                let (dim, divisor) = (dim.name.clone(), dim.divisor);
                return Err(LaunchError::Divisor { dim, divisor, value });
            }
            if value > dim.max {
                let (dim, max) = (dim.name.clone(), dim.max);
                return Err(LaunchError::TooLarge { dim, max, value });
            }
        }
        let mut ranges = [(0usize, 0usize); MAX_ITEMS];
        for ((sig, arg), range) in self.tensors.iter().zip(tensors).zip(&mut ranges) {
            *range = self.check_tensor(sig, arg, sizes)?;
        }
        self.check_aliases(&ranges)
    }

    /// Checks one scalar value and rounds it to the scalar's type.
    ///
    /// # Errors
    /// [`LaunchError::ZeroScalar`] when it must not be zero and is, after rounding.
    pub fn scalar(&self, index: usize, value: f64) -> Result<f64, LaunchError> {
        let sig = &self.scalars[index];
        let rounded = sig.dtype.round(value);
        if sig.nonzero && rounded == 0.0 {
            return Err(LaunchError::ZeroScalar { scalar: sig.name.clone(), value });
        }
        Ok(rounded)
    }

    fn count(&self, tensors: &[TensorArg]) -> Result<(), LaunchError> {
        if tensors.len() != self.tensors.len() {
            let names: Vec<&str> = self.tensors.iter().map(|t| t.name.as_str()).collect();
            return Err(LaunchError::Count {
                expected: self.tensors.len(),
                found: tensors.len(),
                names: names.join(", "),
            });
        }
        Ok(())
    }

    /// Takes sizes from a tensor's stated shape.
    fn take_stated(
        &self,
        sig: &TensorSignature,
        arg: &TensorArg,
        sizes: &mut Sizes,
    ) -> Result<(), LaunchError> {
        if arg.dtype != sig.dtype {
            return Err(LaunchError::DType {
                tensor: sig.name.clone(),
                expected: sig.dtype,
                found: arg.dtype,
            });
        }
        for stated in [arg.shape, arg.strides].into_iter().flatten() {
            if stated.len() != sig.shape.len() {
                return Err(LaunchError::Rank {
                    tensor: sig.name.clone(),
                    expected: sig.shape.len(),
                    found: stated.len(),
                });
            }
        }
        for (axis, (size, found)) in sig.shape.iter().zip(arg.shape.unwrap_or(&[])).enumerate() {
            let (expected, dim) = match *size {
                Size::Const(n) => (n, None),
                Size::Dim(d) => (*sizes[d].get_or_insert(*found), Some(d)),
            };
            if expected != *found {
                return Err(LaunchError::Size {
                    tensor: sig.name.clone(),
                    axis,
                    dim: dim.map(|d| self.dims[d].name.clone()),
                    expected,
                    found: *found,
                });
            }
        }
        Ok(())
    }

    /// Finds one unknown size from the length of a packed tensor. Returns whether it did.
    fn infer_one(&self, tensors: &[TensorArg], sizes: &mut Sizes) -> bool {
        for (sig, arg) in self.tensors.iter().zip(tensors) {
            if let Some((dim, unit)) = lone_unknown(sig, arg, sizes)
                && (arg.len as u64).is_multiple_of(unit)
            {
                sizes[dim] = Some(arg.len as u64 / unit);
                return true;
            }
        }
        false
    }

    /// Why a size is unknown: a tensor whose length doesn't divide, or nothing that tells.
    fn unknown(&self, tensors: &[TensorArg], sizes: &Sizes) -> LaunchError {
        for (sig, arg) in self.tensors.iter().zip(tensors) {
            if let Some((dim, unit)) = lone_unknown(sig, arg, sizes) {
                let (tensor, dim) = (sig.name.clone(), self.dims[dim].name.clone());
                return LaunchError::Ragged { tensor, dim, len: arg.len as u64, unit };
            }
        }
        let unknown = self.dims.iter().zip(sizes).find(|(_, size)| size.is_none());
        let dim = unknown.map(|(dim, _)| dim.name.clone()).unwrap_or_default();
        LaunchError::UnknownSize { dim }
    }

    /// Takes sizes that only occur as strides: stated, or else the packed ones.
    fn take_strides(
        &self,
        sig: &TensorSignature,
        arg: &TensorArg,
        sizes: &mut Sizes,
    ) -> Result<(), LaunchError> {
        let Some(strides) = &sig.strides else { return Ok(()) };
        let mut packed = Some(1u64);
        for axis in (0..sig.shape.len()).rev() {
            let found = arg.strides.map(|s| s[axis]).or(packed);
            if let (Size::Dim(d), Some(found)) = (strides[axis], found) {
                sizes[d].get_or_insert(found);
            }
            let extent = value(sig.shape[axis], sizes);
            packed = packed.zip(extent).and_then(|(p, n)| p.checked_mul(n));
        }
        Ok(())
    }

    /// Checks strides, length and alignment; returns the byte range that the tensor occupies.
    fn check_tensor(
        &self,
        sig: &TensorSignature,
        arg: &TensorArg,
        sizes: &Sizes,
    ) -> Result<(usize, usize), LaunchError> {
        let too_large = || LaunchError::Overflow { tensor: sig.name.clone() };
        let mut packed = 1u64;
        let mut last = 0u64;
        let empty = sig.shape.iter().any(|size| value(*size, sizes) == Some(0));
        for axis in (0..sig.shape.len()).rev() {
            let extent = value(sig.shape[axis], sizes).unwrap_or(0);
            let stride = match &sig.strides {
                None => packed,
                Some(strides) => value(strides[axis], sizes).unwrap_or(0),
            };
            if let Some(found) = arg.strides.map(|s| s[axis])
                && found != stride
                && extent > 1
            {
                return Err(LaunchError::Stride {
                    tensor: sig.name.clone(),
                    axis,
                    expected: stride,
                    found,
                });
            }
            // Rows of an output that overlap would make two program instances write one element.
            if sig.access != Access::In && !empty && extent > 1 && stride <= last {
                return Err(LaunchError::Overlap { tensor: sig.name.clone(), axis, stride });
            }
            let reach = extent.saturating_sub(1).checked_mul(stride);
            last = reach.and_then(|r| r.checked_add(last)).ok_or_else(too_large)?;
            packed = if empty { 0 } else { packed.checked_mul(extent).ok_or_else(too_large)? };
        }
        let needs = if empty { 0 } else { last.checked_add(1).ok_or_else(too_large)? };
        // A slice without a shape holds exactly the packed tensor; anything else is a mistake
        // that would otherwise pass unseen.
        let exact = arg.shape.is_none() && arg.strides.is_none();
        let has = arg.len as u64;
        if has < needs || (exact && has != needs) {
            return Err(LaunchError::Length { tensor: sig.name.clone(), needs, has });
        }
        let address = arg.ptr as usize;
        if needs > 0 && !(address as u64).is_multiple_of(sig.align.max(1)) {
            return Err(LaunchError::Misaligned {
                tensor: sig.name.clone(),
                align: sig.align,
                address,
            });
        }
        // `needs` elements are inside a slice that exists, so the product can't overflow.
        Ok((address, address.wrapping_add((needs * sig.dtype.bytes()) as usize)))
    }

    fn check_aliases(&self, ranges: &[(usize, usize)]) -> Result<(), LaunchError> {
        for (i, output) in self.tensors.iter().enumerate() {
            if output.access == Access::In {
                continue;
            }
            for (j, other) in self.tensors.iter().enumerate() {
                let overlaps = ranges[i].0 < ranges[j].1 && ranges[j].0 < ranges[i].1;
                if i != j && overlaps {
                    return Err(LaunchError::Alias {
                        output: output.name.clone(),
                        other: other.name.clone(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Number of elements that tensor `index` spans, first to last, for resolved sizes. 0 where
    /// a size is unknown or the product overflows.
    pub fn span(&self, index: usize, sizes: &Sizes) -> u64 {
        let sig = &self.tensors[index];
        let mut packed = 1u64;
        let mut last = 0u64;
        for axis in (0..sig.shape.len()).rev() {
            let Some(extent) = value(sig.shape[axis], sizes) else { return 0 };
            if extent == 0 {
                return 0;
            }
            let stride = match &sig.strides {
                None => packed,
                Some(strides) => value(strides[axis], sizes).unwrap_or(packed),
            };
            let Some(reach) = (extent - 1).checked_mul(stride) else { return 0 };
            let (Some(l), Some(p)) = (last.checked_add(reach), packed.checked_mul(extent)) else {
                return 0;
            };
            (last, packed) = (l, p);
        }
        last + 1
    }

    /// Shape of tensor `index` for resolved sizes.
    pub fn shape(&self, index: usize, sizes: &Sizes) -> Vec<u64> {
        self.tensors[index].shape.iter().map(|s| value(*s, sizes).unwrap_or(0)).collect()
    }
}

fn value(size: Size, sizes: &Sizes) -> Option<u64> {
    match size {
        Size::Const(n) => Some(n),
        Size::Dim(d) => sizes[d],
    }
}

/// The only unknown size of a tensor given without shape and strides, and the product of the
/// others if it isn't zero. Two unknowns, even the same one twice, leave a length ambiguous.
fn lone_unknown(sig: &TensorSignature, arg: &TensorArg, sizes: &Sizes) -> Option<(usize, u64)> {
    if arg.shape.is_some() || arg.strides.is_some() {
        return None;
    }
    let mut unknown = None;
    let mut product = 1u64;
    for size in &sig.shape {
        match (size, value(*size, sizes)) {
            (_, Some(n)) => product = product.checked_mul(n)?,
            (Size::Dim(d), None) if unknown.is_none() => unknown = Some(*d),
            _ => return None,
        }
    }
    unknown.filter(|_| product > 0).map(|dim| (dim, product))
}
