//! Seeded inputs in buffers, ready for a launch; the values are the oracle's.

use crate::check::LaunchValues;
use crate::error::EngineError;
use std::collections::BTreeMap;
use tilewright_ir::Program;
use tilewright_ir::oracle::{self, Data};
use tilewright_ir::program::Access;
use tilewright_runtime::Buffer;

/// Contents for the tensors of a program.
#[derive(Debug)]
pub struct Contents {
    /// Of the tensors that are only read, in order.
    pub inputs: Vec<Buffer>,
    /// Of the tensors that are read and written, in order.
    pub initial: Vec<Buffer>,
}

/// Random contents for every tensor that a program reads; see [`oracle::inputs`]. Each spans its
/// tensor; gaps between strided rows hold NaN (in integers: −1), so that a kernel that reads them
/// is found out.
///
/// # Errors
/// A size is missing or unfit, or memory is short.
pub fn random(
    program: &Program,
    values: &LaunchValues,
    seed: u64,
) -> Result<Contents, EngineError> {
    let dims = values.dims.iter().cloned().collect();
    let all = oracle::inputs(program, &dims, Data::Random, seed)
        .map_err(|e| EngineError::Oracle(e.to_string()))?;
    of(program, &all)
}

/// The same of values that are stated: in storage order, by the names of the tensors.
///
/// # Errors
/// Memory is short.
pub fn of(program: &Program, all: &BTreeMap<String, Vec<f64>>) -> Result<Contents, EngineError> {
    let mut contents = Contents { inputs: Vec::new(), initial: Vec::new() };
    for (_, tensor) in program.tensors.iter() {
        let Some(data) = all.get(&tensor.name) else { continue };
        let buffer = Buffer::from_f64(tensor.dtype, data)?;
        match tensor.access {
            Access::InOut => contents.initial.push(buffer),
            Access::In | Access::Out => contents.inputs.push(buffer),
        }
    }
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_ir::DType;
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
