//! What selection knows of a kernel value: how it is held in virtual registers.

use tilewright_ir::DType;

use super::lir::{Cc, V};

/// A sum of registers times coefficients, plus a constant, plus the lane number times a
/// coefficient. Index arithmetic stays in this form until an address or a register needs it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ix {
    /// Registers with nonzero coefficients, by register.
    pub terms: Vec<(V, i64)>,
    /// The constant.
    pub konst: i64,
    /// Coefficient of the lane number.
    pub lane: i64,
}

impl Ix {
    /// A constant.
    pub fn konst(konst: i64) -> Ix {
        Ix { konst, ..Ix::default() }
    }

    /// A register.
    pub fn reg(v: V) -> Ix {
        Ix { terms: vec![(v, 1)], ..Ix::default() }
    }

    /// The value if nothing varies.
    pub fn known(&self) -> Option<i64> {
        (self.terms.is_empty() && self.lane == 0).then_some(self.konst)
    }

    /// The register if the value is one register and nothing else.
    pub fn single(&self) -> Option<V> {
        match self.terms[..] {
            [(v, 1)] if self.konst == 0 && self.lane == 0 => Some(v),
            _ => None,
        }
    }

    /// `self + other·factor`.
    pub fn plus(&self, other: &Ix, factor: i64) -> Ix {
        let mut terms = self.terms.clone();
        for (v, c) in &other.terms {
            let c = c.wrapping_mul(factor);
            match terms.binary_search_by_key(v, |t| t.0) {
                Ok(at) => terms[at].1 = terms[at].1.wrapping_add(c),
                Err(at) => terms.insert(at, (*v, c)),
            }
        }
        terms.retain(|t| t.1 != 0);
        Ix {
            terms,
            konst: self.konst.wrapping_add(other.konst.wrapping_mul(factor)),
            lane: self.lane.wrapping_add(other.lane.wrapping_mul(factor)),
        }
    }

    /// The sum with a constant.
    pub fn offset(&self, konst: i64) -> Ix {
        Ix { konst: self.konst.wrapping_add(konst), ..self.clone() }
    }

    /// The product with a constant.
    pub fn times(&self, factor: i64) -> Ix {
        Ix::default().plus(self, factor)
    }

    /// Without the lane's part.
    pub fn uniform(&self) -> Ix {
        Ix { lane: 0, ..self.clone() }
    }
}

/// A bool that is the same for all lanes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Flag {
    /// Known.
    Known(bool),
    /// A comparison that is made where it is needed.
    Compare(Cc, Ix, Ix),
    /// 0 or 1 in a general register.
    Reg(V),
}

/// A bool per lane. With AVX-512 one mask register, in which bits beyond the lanes are 0. With
/// AVX2 vector registers with 32 equal bits per lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mask {
    /// The registers.
    pub parts: Vec<V>,
}

/// Elements of a data type in vector registers.
#[derive(Clone, PartialEq, Debug)]
pub struct Data {
    /// Element type.
    pub dtype: DType,
    /// Registers: lanes in order. A uniform value has one, with all elements equal.
    pub parts: Vec<V>,
    /// Whether all lanes are equal.
    pub uniform: bool,
    /// The value if it is a literal.
    pub literal: Option<f64>,
}

impl Data {
    /// The register with part `n`.
    pub fn part(&self, n: usize) -> V {
        if self.uniform { self.parts[0] } else { self.parts[n] }
    }
}

/// A kernel value.
#[derive(Clone, PartialEq, Debug)]
pub enum Val {
    /// An index that is affine in the lane number.
    Index(Ix),
    /// An index per lane: 64-bit elements in vector registers.
    IndexLanes(Vec<V>),
    /// A bool for all lanes.
    Flag(Flag),
    /// A bool per lane.
    Mask(Mask),
    /// Data.
    Data(Data),
    /// A register-tile fragment, by number.
    Fragment(usize),
}

/// Which lanes take part in a memory access.
#[derive(Clone, PartialEq, Debug)]
pub enum Active {
    /// All.
    All,
    /// None.
    Nobody,
    /// All or none.
    Flag(Flag),
    /// Those of a mask.
    Mask(Mask),
}
