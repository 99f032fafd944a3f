//! Inputs on which faults show that plain numbers hide.

use std::collections::BTreeMap;
use std::fmt;

use tilewright_ir::DType;
use tilewright_ir::entity::Id as _;
use tilewright_ir::facts::Family;
use tilewright_ir::interp::{self, InterpError};
use tilewright_ir::oracle::{Data, inputs};
use tilewright_ir::program::Access;
use tilewright_plan::mapping::Mapping;

use super::Case;

/// What is special about the first float input; the others hold numbers in −1 .. 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    /// Nothing.
    None,
    /// Its last element is NaN, and its first one infinity: they must come through every fold, and
    /// may stand nowhere else.
    NotANumber,
    /// All of it is about −200: a maximum that starts at 0 is wrong only there.
    Low,
    /// One element of each row is 200: this one of the first row, and the next ones of the others.
    /// A maximum that passes over an element shows only where that is the largest.
    Largest(u64),
    /// One element of each row is −∞: the next one of each next row.
    Infinite,
    /// Its elements are so large that their squares' sums are barely numbers.
    Large,
    /// Its elements are subnormal numbers, of few digits so that halves are exact, and −0.
    Tiny,
}

impl fmt::Display for Special {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Special::None => f.write_str("numbers in -1 .. 1"),
            Special::NotANumber => f.write_str("with NaN and infinity"),
            Special::Low => f.write_str("low values"),
            Special::Largest(at) => write!(f, "one large value a row, from {at} on"),
            Special::Infinite => f.write_str("one -infinity a row"),
            Special::Large => f.write_str("large values"),
            Special::Tiny => f.write_str("subnormal numbers and -0"),
        }
    }
}

/// Ops that divide a sum, or the distance from one: the rounding of subnormal numbers there is no
/// matter of the last place of what they give.
const DIVIDED: [&str; 4] = ["row_mean", "rmsnorm", "layernorm", "residual_layernorm"];

/// Ops with a maximum of a row.
const MAXIMUM: [&str; 6] =
    ["softmax", "masked_softmax", "causal_softmax", "log_softmax", "cross_entropy", "row_max"];

/// The exponent of a unit of which 16 are still subnormal, or 0 in a type without any.
fn tiny(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => -134,
        DType::F64 => -1040,
        DType::F16 => -23,
        DType::BF16 => -132,
        DType::I32 | DType::Bool => 0,
    }
}

impl Case {
    /// The special inputs that the case runs on, beside plain ones. With `every`, each element of
    /// a row is the largest once, else those where a chunk of all workers begins and ends.
    pub fn specials(&self, every: bool) -> Vec<Special> {
        let mut specials = Vec::new();
        // Which element a loss takes is undefined where the row has a NaN.
        if self.op != "cross_entropy" {
            specials.push(Special::NotANumber);
        }
        if !MAXIMUM.contains(&self.op) {
            return specials;
        }
        specials.push(Special::Low);
        let layouts = interp::layouts(&self.program, &self.dims).unwrap_or_default();
        let shape = layouts.first().map(|l| l.shape.clone()).unwrap_or_default();
        let [rows, columns] = *shape.as_slice() else { return specials };
        let chunk = match self.mapping {
            Some(Mapping::Rows(m)) => m.workers() * u64::from(m.vector),
            _ => 32,
        };
        let mut places: Vec<u64> = if every {
            (0..columns).step_by(rows.max(1) as usize).collect()
        } else {
            let last = columns.saturating_sub(1);
            vec![0, last, chunk - 1, columns / chunk * chunk, columns * 5 / 7]
        };
        places.retain(|at| *at < columns);
        places.sort_unstable();
        places.dedup();
        specials.extend(places.into_iter().map(Special::Largest));
        specials
    }

    /// Inputs at the ends of a type's range, beside those of [`Case::specials`]. With `subnormal`,
    /// the device keeps numbers below the least normal one.
    pub fn extremes(&self, subnormal: bool) -> Vec<Special> {
        let mut extremes = vec![Special::Infinite, Special::Large];
        let product = matches!(self.facts.family, Family::Matrix(_)) || self.op == "gemv";
        if subnormal && !product && !DIVIDED.contains(&self.op) {
            extremes.push(Special::Tiny);
        }
        extremes
    }

    /// Contents of every tensor that the program reads, in storage order, by name.
    ///
    /// # Errors
    /// A size doesn't fit its dimension.
    pub fn inputs(
        &self,
        special: Special,
        seed: u64,
    ) -> Result<BTreeMap<String, Vec<f64>>, InterpError> {
        let mut data = inputs(&self.program, &self.dims, Data::Random, seed)?;
        let layouts = interp::layouts(&self.program, &self.dims)?;
        let mut floats = (self.program.tensors.iter())
            .filter(|(_, t)| t.access != Access::Out && t.dtype.is_float());
        let Some((id, tensor)) = floats.next() else { return Ok(data) };
        let Some(values) = data.get_mut(&tensor.name) else { return Ok(data) };
        let layout = &layouts[id.index()];
        let offsets: Vec<usize> = layout.offsets().collect();
        let columns = layout.shape.last().map_or(1, |n| *n as usize).max(1);
        match special {
            Special::None => {}
            Special::NotANumber => {
                if let (Some(first), Some(last)) = (offsets.first(), offsets.last()) {
                    values[*first] = f64::INFINITY;
                    values[*last] = f64::NAN;
                }
            }
            Special::Low => {
                for at in offsets {
                    values[at] = tensor.dtype.round(values[at] - 200.0);
                }
            }
            Special::Largest(at) => {
                for (r, row) in offsets.chunks(columns).enumerate() {
                    values[row[(at as usize + r) % row.len()]] = 200.0;
                }
            }
            Special::Infinite => {
                for (r, row) in offsets.chunks(columns).enumerate() {
                    values[row[r % row.len()]] = f64::NEG_INFINITY;
                }
            }
            Special::Large => {
                // A sum of 2^24 squares is in the range of the type that computes, and a value is
                // in that of its own.
                let factor = f64::powi(2.0, if tensor.dtype == DType::F16 { 15 } else { 50 });
                for at in offsets {
                    values[at] = tensor.dtype.round(values[at] * factor);
                }
            }
            Special::Tiny => {
                let unit = f64::powi(2.0, tiny(tensor.dtype));
                for (i, at) in offsets.into_iter().enumerate() {
                    let few = (values[at] * 16.0).round() * unit;
                    values[at] = if i % 3 == 2 { -0.0 } else { few };
                }
            }
        }
        Ok(data)
    }
}
