//! Puts a program and its bindings together: sizes, layouts, preconditions of the launch.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::entity::Id;
use crate::interp::{Bindings, InterpError};
use crate::parallel;
use crate::program::*;
use crate::types::DType;
use crate::verify::verify;

/// Most elements of a tensor.
const MAX_TENSOR: u64 = 1 << 32;

/// Sizes and strides of a tensor at a launch, in elements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Sizes, outermost first.
    pub shape: Vec<u64>,
    /// Strides.
    pub strides: Vec<u64>,
}

impl Layout {
    /// Number of elements.
    pub fn len(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Length of the storage: the last element's offset plus one, or 0.
    pub fn span(&self) -> u64 {
        match self.is_empty() {
            true => 0,
            false => {
                1 + self.shape.iter().zip(&self.strides).map(|(n, s)| (n - 1) * s).sum::<u64>()
            }
        }
    }

    /// Whether storage order is row-major order without gaps.
    pub fn is_packed(&self) -> bool {
        self.is_empty() || self.strides == packed(&self.shape)
    }

    /// Offsets of the elements in row-major order.
    pub fn offsets(&self) -> impl Iterator<Item = usize> + '_ {
        let packed = self.is_packed();
        (0..self.len()).map(move |n| match packed {
            true => n as usize,
            false => self.offset(&self.index(n)) as usize,
        })
    }

    /// The index of the `n`th element in row-major order.
    pub fn index(&self, n: u64) -> Vec<u64> {
        let mut rest = n;
        let mut index = vec![0; self.shape.len()];
        for (at, size) in self.shape.iter().enumerate().rev() {
            index[at] = rest % (*size).max(1);
            rest /= (*size).max(1);
        }
        index
    }

    /// The offset of an index.
    pub fn offset(&self, index: &[u64]) -> u64 {
        index.iter().zip(&self.strides).map(|(i, s)| i * s).sum()
    }

    /// An index whose element is at `offset`, for messages.
    pub fn index_at(&self, offset: u64) -> Vec<u64> {
        let mut order: Vec<usize> = (0..self.shape.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(self.strides[*at]));
        let mut rest = offset;
        let mut index = vec![0; self.shape.len()];
        for at in order {
            let stride = self.strides[at].max(1);
            index[at] = (rest / stride).min(self.shape[at].saturating_sub(1));
            rest -= index[at] * stride;
        }
        index
    }
}

/// Row-major strides. Saturating: an overlong tensor is rejected by its size.
fn packed(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1u64; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at].saturating_mul(shape[at].max(1));
    }
    strides
}

/// A program with its launch arguments.
pub struct Launch<'a> {
    /// The program with every dimension static.
    pub program: Cow<'a, Program>,
    /// Layouts of the tensors.
    pub layouts: Vec<Layout>,
    /// Values of the scalars.
    pub scalars: Vec<f64>,
    /// Contents of the tensors that are read; empty for the others.
    pub inputs: Vec<&'a [f64]>,
}

impl Launch<'_> {
    /// The size of an extent.
    pub fn size(&self, extent: Extent) -> u64 {
        size(&self.program, extent)
    }
}

/// Sizes of blocks are their defaults; no dimension is symbolic once bound.
fn size(program: &Program, extent: Extent) -> u64 {
    program.known(extent).unwrap_or(0)
}

fn bind_dims(program: &Program, dims: &BTreeMap<String, u64>) -> Result<Program, InterpError> {
    let mut bound = program.clone();
    for (name, value) in dims {
        bound.bind(name, *value)?;
    }
    bound.bind_default_blocks();
    for (_, dim) in bound.dims.iter() {
        if let DimKind::Symbolic { .. } = dim.kind {
            return Err(InterpError::MissingDim { name: dim.name.clone() });
        }
    }
    Ok(bound)
}

fn layout(program: &Program, tensor: &Tensor) -> Result<Layout, InterpError> {
    let shape: Vec<u64> = tensor.shape.iter().map(|e| size(program, *e)).collect();
    let strides = match &tensor.strides {
        Strides::Packed => packed(&shape),
        Strides::Explicit(strides) => strides.iter().map(|e| size(program, *e)).collect(),
    };
    let layout = Layout { shape, strides };
    // In u128 neither can overflow: at most 8 sizes and strides of at most 2^48 each… except a
    // product of 8 sizes, hence saturating.
    let count = layout.shape.iter().fold(1u128, |n, s| n.saturating_mul(*s as u128));
    let span: u128 = match layout.is_empty() {
        true => 0,
        false => {
            let terms = layout.shape.iter().zip(&layout.strides);
            1 + terms.map(|(n, s)| (*n as u128 - 1) * *s as u128).sum::<u128>()
        }
    };
    let amount = count.max(span);
    if amount > MAX_TENSOR as u128 && !layout.is_empty() {
        let what = format!("the number of elements of `{}`", tensor.name);
        return Err(InterpError::TooLarge { what, amount, limit: MAX_TENSOR });
    }
    Ok(layout)
}

/// Layouts of the tensors of a program, in launch order, for given dimensions.
///
/// # Errors
/// The program isn't valid, or a dimension is missing or doesn't fit.
pub fn layouts(
    program: &Program,
    dims: &BTreeMap<String, u64>,
) -> Result<Vec<Layout>, InterpError> {
    verify(program).map_err(InterpError::Invalid)?;
    let bound = bind_dims(program, dims)?;
    bound.tensors.iter().map(|(_, t)| layout(&bound, t)).collect()
}

fn holds(dtype: DType, value: f64) -> bool {
    match dtype {
        DType::F64 => true,
        _ => {
            dtype.round(value).to_bits() == value.to_bits() || (dtype.is_float() && value.is_nan())
        }
    }
}

/// Checks every precondition.
pub fn bind<'a>(
    program: &'a Program,
    bindings: &'a Bindings<'_>,
) -> Result<Launch<'a>, InterpError> {
    verify(program).map_err(InterpError::Invalid)?;
    let bound = bind_dims(program, &bindings.dims)?;
    for (_, index) in bound.indices.iter() {
        if size(&bound, index.step) == 0 {
            return Err(InterpError::ZeroStep { name: index.name.clone() });
        }
    }
    let readable =
        |name: &str| bound.tensors.iter().any(|(_, t)| t.name == *name && t.access != Access::Out);
    let scalar = |name: &str| bound.scalars.iter().any(|(_, s)| s.name == *name);
    let mut unknown = bindings.tensors.keys().filter(|n| !readable(n));
    let mut unknown =
        unknown.next().into_iter().chain(bindings.scalars.keys().filter(|n| !scalar(n)));
    if let Some(name) = unknown.next() {
        return Err(InterpError::UnknownName { name: name.clone() });
    }

    let mut scalars = Vec::new();
    for (_, scalar) in bound.scalars.iter() {
        let name = || scalar.name.clone();
        let Some(value) = bindings.scalars.get(&scalar.name).copied() else {
            return Err(InterpError::MissingScalar { name: name() });
        };
        if !holds(scalar.dtype, value) {
            return Err(InterpError::ScalarValue { name: name(), value, dtype: scalar.dtype });
        }
        if scalar.nonzero && value == 0.0 {
            return Err(InterpError::ZeroScalar { name: name() });
        }
        scalars.push(value);
    }

    let mut layouts = Vec::new();
    let mut inputs: Vec<&[f64]> = Vec::new();
    for (id, tensor) in bound.tensors.iter() {
        let layout = layout(&bound, tensor)?;
        debug_assert_eq!(id.index(), layouts.len());
        let name = || tensor.name.clone();
        let data: &[f64] = match bindings.tensors.get(&tensor.name) {
            _ if tensor.access == Access::Out => &[],
            Some(data) => data,
            None => return Err(InterpError::MissingTensor { name: name() }),
        };
        if tensor.access != Access::Out {
            let (want, found) = (layout.span(), data.len() as u64);
            if want != found {
                return Err(InterpError::TensorLength { name: name(), want, found });
            }
            let dtype = tensor.dtype;
            // Gaps between rows are never read, so whatever is there is fine.
            let wrong = match layout.is_packed() {
                true => {
                    let first = |at: usize, part: &[f64]| {
                        part.iter().position(|x| !holds(dtype, *x)).map(|n| at + n)
                    };
                    parallel::parts(data, first).into_iter().flatten().next()
                }
                false => layout.offsets().find(|at| !holds(dtype, data[*at])),
            };
            if let Some(offset) = wrong {
                let value = data[offset];
                return Err(InterpError::InputValue { name: name(), offset, value, dtype });
            }
        }
        layouts.push(layout);
        inputs.push(data);
    }
    Ok(Launch { program: Cow::Owned(bound), layouts, scalars, inputs })
}
