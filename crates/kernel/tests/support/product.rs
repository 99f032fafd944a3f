//! What tests of matrix products on CPUs share: sizes, scalars, inputs with the oracle's outputs, and
//! the comparison.

use std::collections::BTreeMap;
use std::fmt::Debug;

use tilewright_ir::DType;
use tilewright_ir::interp::{self, Bindings, Output};
use tilewright_ir::ops::GemmSpec;
use tilewright_ir::oracle::{self, Data};
use tilewright_ir::program::Program;

/// Value of a run-time scalar.
pub fn scalar(name: &str) -> f64 {
    match name {
        "alpha" => -1.75,
        "beta" => 0.6875,
        _ => 1.3125,
    }
}

/// The program of a product, and the sizes that are known at launch only.
pub fn program(
    spec: &GemmSpec,
    size: [u64; 3],
    symbolic: [bool; 3],
    batch: u64,
) -> (Program, BTreeMap<String, u64>) {
    let sizes = [0, 1, 2].map(|d| (!symbolic[d]).then_some(size[d]));
    let program = spec.sized(sizes).expect("a valid product");
    let mut dims: BTreeMap<String, u64> = (["m", "n", "k"].iter().zip(size))
        .zip(symbolic)
        .filter(|(_, symbolic)| *symbolic)
        .map(|((name, size), _)| (name.to_string(), size))
        .collect();
    if spec.batch {
        dims.insert("batch".to_string(), batch);
    }
    (program, dims)
}

/// Random inputs by name, and what the output should be.
pub fn contents(
    program: &Program,
    dims: &BTreeMap<String, u64>,
    seed: u64,
) -> (BTreeMap<String, Vec<f64>>, Output) {
    let contents = oracle::inputs(program, dims, Data::Random, seed).expect("inputs");
    let mut bindings = Bindings::new();
    for (name, size) in dims {
        bindings = bindings.dim(name, *size);
    }
    for (_, s) in program.scalars.iter() {
        bindings = bindings.scalar(&s.name, scalar(&s.name));
    }
    for (name, data) in &contents {
        bindings = bindings.tensor(name, data.clone());
    }
    let mut outputs = interp::magnitude(program, &bindings).expect("the oracle");
    (contents, outputs.remove(0))
}

/// Compares an output with what it should be, for sums of `k` products.
pub fn compare(case: &impl Debug, spec: &GemmSpec, k: u64, expected: &Output, actual: &[f64]) {
    let (compute, out) = (spec.dtype.accumulator(), spec.output);
    let factor = (8.0 + (k as f64).sqrt()) * compute.unit_roundoff();
    for at in expected.layout.offsets() {
        let (reference, size) = (expected.data[at], expected.magnitude[at]);
        // Half a step of subnormal numbers is what rounding costs there.
        let tiny = if out == DType::F16 { f64::powi(2.0, -25) } else { 0.0 };
        let bound = factor * size + out.unit_roundoff() * reference.abs() + tiny;
        let error = (actual[at] - reference).abs();
        assert!(error <= bound, "{case:?}: {} for {reference} at {at}, bound {bound}", actual[at]);
    }
}
