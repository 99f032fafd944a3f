//! Seeded inputs for any program.

use std::collections::BTreeMap;

use crate::entity::Id;
use crate::interp::{InterpError, Layout, layouts};
use crate::program::*;
use crate::types::DType;

/// How input values are made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Data {
    /// Floats uniform in [−1, 1] with a full mantissa, rounded to the dtype. i32 tensors whose
    /// values index a dimension are uniform over it, others are 0 or 1.
    #[default]
    Random,
    /// The reference system's dyadic values, on which sums are exact: element i is
    /// ((i·s + 17) mod 127 − 63) / 64 with s = 5 for the first float tensor and 11 for the others.
    /// i32 tensors whose values index a dimension of size N hold (13·i + 7) mod N, others i mod 2.
    Dyadic,
}

/// A small generator (SplitMix64).
#[derive(Clone, Debug)]
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

    /// Uniform in [−1, 1): a multiple of 2^−52.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * f64::powi(2.0, -52) - 1.0
    }

    /// Uniform in 0..n, or 0 for n = 0; the bias is below n / 2^64.
    pub fn below(&mut self, n: u64) -> u64 {
        ((self.bits() as u128 * n as u128) >> 64) as u64
    }
}

/// Contents of every tensor that the program reads, in storage order, by name. What strides leave
/// between rows is NaN (i32: −1): nothing may read it.
///
/// # Errors
/// As [`layouts`].
pub fn inputs(
    program: &Program,
    dims: &BTreeMap<String, u64>,
    data: Data,
    seed: u64,
) -> Result<BTreeMap<String, Vec<f64>>, InterpError> {
    let layouts = layouts(program, dims)?;
    let mut all = BTreeMap::new();
    let mut floats = 0;
    for (id, tensor) in program.tensors.iter().filter(|(_, t)| t.access != Access::Out) {
        let layout = &layouts[id.index()];
        let (float, dtype) = (tensor.dtype.is_float(), tensor.dtype);
        let mut values = vec![if float { f64::NAN } else { -1.0 }; layout.span() as usize];
        let limit = index_limit(program, &layouts, id);
        let mut random = Random::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ id.index() as u64);
        let factor: u64 = if floats == 0 { 5 } else { 11 };
        floats += float as usize;
        for (i, at) in (0u64..).zip(layout.offsets()) {
            values[at] = match data {
                Data::Random if float => dtype.round(random.unit()),
                Data::Random => random.below(limit.unwrap_or(2)) as f64,
                Data::Dyadic if float => dyadic(i, factor),
                Data::Dyadic => match limit {
                    Some(n) => {
                        i.wrapping_mul(13).wrapping_add(7).checked_rem(n).unwrap_or(0) as f64
                    }
                    None => (i % 2) as f64,
                },
            };
        }
        all.insert(tensor.name.clone(), values);
    }
    Ok(all)
}

/// ((i·factor + 17) mod 127 − 63) / 64.
fn dyadic(i: u64, factor: u64) -> f64 {
    ((i.wrapping_mul(factor).wrapping_add(17) % 127) as f64 - 63.0) / 64.0
}

/// The smallest size of a dimension that the values of a tensor index, if they index any.
fn index_limit(program: &Program, layouts: &[Layout], tensor: TensorId) -> Option<u64> {
    if program.tensors[tensor].dtype != DType::I32 {
        return None;
    }
    let gathers = program.ops.iter().filter_map(|(_, data)| match &data.op {
        Op::Load { tensor, coords, .. } => Some((&layouts[tensor.index()], coords)),
        _ => None,
    });
    let sizes = gathers.flat_map(|(layout, coords)| {
        coords.iter().zip(&layout.shape).filter_map(|(coord, size)| {
            coord.gather.filter(|v| comes_from(program, *v, tensor)).map(|_| *size)
        })
    });
    sizes.min()
}

/// Whether a value is loaded from a tensor, and no more than broadcast or reindexed since.
fn comes_from(program: &Program, value: ValueId, tensor: TensorId) -> bool {
    let mut value = value;
    // Definitions come first in a verified program, so this ends.
    loop {
        match program.definition(value).map(|op| &program.ops[op].op) {
            Some(Op::Load { tensor: found, .. }) => return *found == tensor,
            Some(Op::Broadcast(v) | Op::Cast(v) | Op::Reindex { value: v, .. }) => value = *v,
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::read;

    fn program() -> Program {
        read(
            "program p {\ndim n: symbolic max 1000\ndim ld: symbolic max 1000\n\
             in x: f32[3, n] strides [ld, 1]\nin g: bf16[n]\nin label: i32[3]\nin mask: i32[n]\n\
             out y: f32[3]\ngrid r: 3 step 1\n%l = load label[r]\n%x = load x[r, %l]\n\
             store y[r], %x\n}\n",
        )
        .unwrap()
    }

    fn dims(n: u64, ld: u64) -> BTreeMap<String, u64> {
        [("n".to_string(), n), ("ld".to_string(), ld)].into()
    }

    #[test]
    fn random_values_fit_their_use() {
        let all = inputs(&program(), &dims(500, 503), Data::Random, 1).unwrap();
        let x = &all["x"];
        assert_eq!(x.len(), 2 * 503 + 500);
        assert!(
            x[500..503].iter().all(|v| v.is_nan()) && x[503..1003].iter().all(|v| v.abs() <= 1.0)
        );
        // All bits of the mantissa are in use.
        assert!(x[..500].iter().any(|v| (*v as f32).to_bits() & 1 == 1 && *v == *v as f32 as f64));
        assert!(all["g"].iter().all(|v| DType::BF16.round(*v) == *v));
        assert!(all["label"].iter().all(|v| (0.0..500.0).contains(v)));
        assert!(all["mask"].contains(&0.0) && all["mask"].contains(&1.0));
        assert!(all["mask"].iter().all(|v| *v == 0.0 || *v == 1.0));
        assert_eq!(all["g"], inputs(&program(), &dims(500, 503), Data::Random, 1).unwrap()["g"]);
        assert_ne!(all["g"], inputs(&program(), &dims(500, 503), Data::Random, 2).unwrap()["g"]);
    }

    #[test]
    fn dyadic_values_are_the_reference_systems() {
        let all = inputs(&program(), &dims(200, 200), Data::Dyadic, 1).unwrap();
        assert_eq!(
            all["x"][..3],
            [(17.0 - 63.0) / 64.0, (22.0 - 63.0) / 64.0, (27.0 - 63.0) / 64.0]
        );
        assert_eq!(all["x"][22], ((22 * 5 + 17 - 127) as f64 - 63.0) / 64.0);
        assert_eq!(all["g"][1], (28.0 - 63.0) / 64.0);
        assert_eq!(all["label"], [7.0, 20.0, 33.0]);
        assert_eq!(all["mask"][..3], [0.0, 1.0, 0.0]);
    }
}
