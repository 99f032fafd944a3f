//! Seeded random inputs that fit a program: full-mantissa floats in [−1, 1), and integers that
//! are valid where the program uses them (indices inside the gathered dimension, else 0 or 1).

use crate::check::LaunchValues;
use crate::error::EngineError;
use tilewright_ir::DType;
use tilewright_ir::entity::Id;
use tilewright_ir::interp::layouts;
use tilewright_ir::program::{Access, Coord, Extent, Op, Program, TensorId, ValueId};
use tilewright_runtime::Buffer;

/// A small counter-based generator (SplitMix64): element i of a stream depends on the seed and i
/// alone.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Random { state: seed }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [−1, 1), a multiple of 2^−52.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * f64::powi(2.0, -52) - 1.0
    }

    /// Uniform in 0..n; 0 for n = 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // The high half of a product is uniform up to a bias below n/2^64.
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }
}

/// Contents for the tensors of a program.
#[derive(Debug)]
pub struct Contents {
    /// Of the tensors that are only read, in order.
    pub inputs: Vec<Buffer>,
    /// Of the tensors that are read and written, in order.
    pub initial: Vec<Buffer>,
}

/// Random contents for every tensor that a program reads. Each spans its tensor; gaps between
/// strided rows hold NaN (in integers: −1), so that a kernel that reads them is found out.
///
/// # Errors
/// A size is missing or unfit, or memory is short.
pub fn random(
    program: &Program,
    values: &LaunchValues,
    seed: u64,
) -> Result<Contents, EngineError> {
    let dims = values.dims.iter().cloned().collect();
    let layouts = layouts(program, &dims).map_err(|e| EngineError::Oracle(e.to_string()))?;
    let mut contents = Contents { inputs: Vec::new(), initial: Vec::new() };
    for ((id, tensor), layout) in program.tensors.iter().zip(&layouts) {
        if tensor.access == Access::Out {
            continue;
        }
        let mut random = Random::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ id.index() as u64);
        let len = usize::try_from(layout.span()).unwrap_or(usize::MAX);
        let mut buffer = Buffer::zeros(tensor.dtype, len)?;
        let gap = if tensor.dtype == DType::I32 { -1.0 } else { f64::NAN };
        let mut data = vec![gap; len];
        let limit = index_limit(program, values, id);
        for at in layout.offsets() {
            data[at] = match (tensor.dtype, limit) {
                (DType::I32, Some(limit)) => random.below(limit) as f64,
                (DType::I32, None) => random.below(2) as f64,
                (dtype, _) => dtype.round(random.unit()),
            };
        }
        buffer.write_f64(&data)?;
        match tensor.access {
            Access::InOut => contents.initial.push(buffer),
            Access::In | Access::Out => contents.inputs.push(buffer),
        }
    }
    Ok(contents)
}

/// The smallest size of a dimension that the elements of a tensor index, if they index any.
fn index_limit(program: &Program, values: &LaunchValues, tensor: TensorId) -> Option<u64> {
    let size = |extent: Extent| {
        program.known(extent).or_else(|| {
            let Extent::Dim(d) = extent else { return None };
            let name = &program.dims[d].name;
            values.dims.iter().find(|(n, _)| n == name).map(|(_, v)| *v)
        })
    };
    let mut limit: Option<u64> = None;
    for (_, op) in program.ops.iter() {
        let Op::Load { tensor: gathered, coords, .. } = &op.op else { continue };
        for (Coord { gather, .. }, extent) in coords.iter().zip(&program.tensors[*gathered].shape) {
            if let Some(index) = gather
                && comes_from(program, *index, tensor)
                && let Some(size) = size(*extent)
            {
                limit = Some(limit.map_or(size, |l| l.min(size)));
            }
        }
    }
    limit
}

/// Whether a value is loaded from a tensor, possibly broadcast, cast or reindexed since.
fn comes_from(program: &Program, value: ValueId, tensor: TensorId) -> bool {
    match program.definition(value).map(|op| &program.ops[op].op) {
        Some(Op::Load { tensor: t, .. }) => *t == tensor,
        Some(Op::Cast(v) | Op::Broadcast(v) | Op::Reindex { value: v, .. }) => {
            comes_from(program, *v, tensor)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_ir::ops::{OpRequest, build};

    #[test]
    fn floats_use_the_whole_mantissa_and_lie_in_range() {
        let program = build("add", &OpRequest::shaped(DType::F32, &[16, 64])).unwrap();
        let contents = random(&program, &LaunchValues::default(), 1).unwrap();
        let a = contents.inputs[0].as_slice::<f32>().unwrap();
        let b = contents.inputs[1].as_slice::<f32>().unwrap();
        assert!(a.iter().all(|x| (-1.0..=1.0).contains(x)));
        assert!(a.iter().any(|x| x.to_bits() & 1 == 1), "the last bit is used");
        assert_ne!(a, b);
        let mean: f32 = a.iter().sum::<f32>() / a.len() as f32;
        assert!(mean.abs() < 0.1, "{mean}");
        let again = random(&program, &LaunchValues::default(), 1).unwrap();
        assert_eq!(again.inputs[0].as_bytes(), contents.inputs[0].as_bytes());
        let other = random(&program, &LaunchValues::default(), 2).unwrap();
        assert_ne!(other.inputs[0].as_bytes(), contents.inputs[0].as_bytes());
    }

    #[test]
    fn labels_are_columns_and_masks_are_flags() {
        let program = build("cross_entropy", &OpRequest::shaped(DType::F32, &[200, 7])).unwrap();
        let contents = random(&program, &LaunchValues::default(), 1).unwrap();
        let labels = contents.inputs[1].as_slice::<i32>().unwrap();
        assert!((0..7).all(|l| labels.contains(&l)) && labels.iter().all(|l| (0..7).contains(l)));
        let program = build("masked_softmax", &OpRequest::shaped(DType::F32, &[9, 7])).unwrap();
        let contents = random(&program, &LaunchValues::default(), 1).unwrap();
        let mask = contents.inputs[1].as_slice::<i32>().unwrap();
        assert!(mask.contains(&0) && mask.contains(&1));
        assert!(mask.iter().all(|m| (0..2).contains(m)));
    }

    #[test]
    fn gaps_hold_nan() {
        let request = OpRequest { strided: true, ..OpRequest::shaped(DType::F32, &[3, 4]) };
        let program = build("relu", &request).unwrap();
        let dims = vec![("ldx".to_string(), 6), ("ldy".to_string(), 4)];
        let values = LaunchValues { dims, scalars: vec![] };
        let contents = random(&program, &values, 1).unwrap();
        let x = contents.inputs[0].to_f64();
        assert_eq!(x.len(), 16);
        let nan: Vec<usize> = (0..16).filter(|i| x[*i].is_nan()).collect();
        assert_eq!(nan, [4, 5, 10, 11]);
    }
}
