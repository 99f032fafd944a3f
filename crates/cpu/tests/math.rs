//! Elementary functions: accuracy over dense samples, and the limits.

#![cfg(target_arch = "x86_64")]

mod common;

use common::*;
use tilewright_ir::DType;
use tilewright_ir::program::MapOp;
use tilewright_kernel::kernel::*;
use tilewright_plan::mapping::CpuIsa;

/// `y[i] = op(x[i])` over any number of elements.
fn unary(op: MapOp, dtype: DType, lanes: u32, len: usize) -> Kernel {
    let mut b = single(op.name(), lanes);
    let (x, y) = (input(&mut b, "x", dtype), output(&mut b, "y", dtype));
    let (lo, hi) = (b.int(0), b.int(len as i64));
    let open = b.begin_for(lo, hi, u64::from(lanes), 1, &[]);
    let at = open.index();
    let left = b.sub(hi, at);
    let guard = Some(Guard::count(left, 0.0));
    let v = b.load1(Place::strided(x, at, 1), guard);
    let r = b.map(op, &[v]);
    b.store(Place::strided(y, at, 1), &[r], guard);
    b.end_for(open, &[]);
    b.finish()
}

fn samples_f32() -> Vec<f32> {
    // Every exponent, with mantissas spread over the range, both signs.
    let mut xs = Vec::new();
    for exponent in 0..255u32 {
        for k in 0..96u32 {
            let mantissa =
                (k.wrapping_mul(0x9e37_79b9) ^ exponent.wrapping_mul(0x85eb_ca6b)) & 0x7f_ffff;
            let bits = exponent << 23 | mantissa;
            xs.push(f32::from_bits(bits));
            xs.push(f32::from_bits(bits | 1 << 31));
        }
    }
    // Densely where the functions change.
    for i in -60_000..60_000 {
        xs.push(i as f32 * 0.001_733);
        xs.push(1.0 + i as f32 * 1e-6);
        xs.push(i as f32 * 7.7e-5);
    }
    xs.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE]);
    xs.extend([f32::from_bits(1), f32::MAX, f32::MIN, 88.722_84, 88.723, -87.34, -103.9, -104.1]);
    xs.extend([0.625, 0.93, 0.929_999_9, 4.0, 3.999, 9.01, 9.02]);
    xs
}

fn reference(op: MapOp, x: f64) -> f64 {
    match op {
        MapOp::Exp => libm::exp(x),
        MapOp::Log => libm::log(x),
        MapOp::Tanh => libm::tanh(x),
        MapOp::Erf => libm::erf(x),
        _ => x.sqrt(),
    }
}

fn worst(op: MapOp, dtype: DType, isa: CpuIsa, lanes: u32, xs: &[f64]) -> (f64, f64) {
    let kernel = unary(op, dtype, lanes, xs.len());
    let out = run(&kernel, isa, &[Data::Buffer(dtype, xs.to_vec()), Data::out(dtype, xs.len())]);
    let mut worst = (0.0, 0.0);
    for (x, y) in xs.iter().zip(out[1].data()) {
        let want = reference(op, *x);
        let error = ulps(dtype, *y, want);
        if error > worst.0 || error.is_nan() {
            worst = (error, *x);
        }
    }
    worst
}

#[test]
fn f32_functions_are_accurate_everywhere() {
    let xs: Vec<f64> = samples_f32().into_iter().map(f64::from).collect();
    for isa in isas() {
        let lanes = isa.vector_bytes() as u32 / 4;
        for op in [MapOp::Exp, MapOp::Log, MapOp::Tanh, MapOp::Erf, MapOp::Sqrt] {
            let (error, at) = worst(op, DType::F32, isa, lanes, &xs);
            println!("{isa:?} {} f32: {error} ulp at {at:e}", op.name());
            assert!(error <= 2.0, "{isa:?} {}: {error} ulp at {at:e}", op.name());
        }
    }
}

#[test]
fn f64_functions_are_accurate_everywhere() {
    let mut xs: Vec<f64> = samples_f32().into_iter().map(f64::from).collect();
    for exponent in 0..2047u64 {
        for k in 0..16u64 {
            let mantissa = k.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 12;
            xs.push(f64::from_bits(exponent << 52 | mantissa));
            xs.push(f64::from_bits(1 << 63 | exponent << 52 | mantissa));
        }
    }
    for i in -20_000..20_000 {
        xs.push(f64::from(i) * 0.037_233_1);
    }
    for isa in isas() {
        let lanes = isa.vector_bytes() as u32 / 8;
        for op in [MapOp::Exp, MapOp::Log, MapOp::Tanh, MapOp::Erf, MapOp::Sqrt] {
            let (error, at) = worst(op, DType::F64, isa, lanes, &xs);
            println!("{isa:?} {} f64: {error} ulp at {at:e}", op.name());
            assert!(error <= 2.0, "{isa:?} {}: {error} ulp at {at:e}", op.name());
        }
    }
}
