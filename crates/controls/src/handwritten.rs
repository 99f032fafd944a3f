//! Rows as a programmer writes them: plain loops over arrays of lanes that the compiler turns
//! into vector code, once for each instruction set.

use crate::{Control, ControlError, Prepared, Problem, check_lengths};
use rayon::prelude::*;

/// Lanes of an accumulator: a full vector of the widest set.
const LANES: usize = 16;
/// Independent accumulators of a reduction.
const CHAINS: usize = 4;
/// Elements of one step of a reduction.
const STEP: usize = LANES * CHAINS;
const EPS: f32 = 1e-5;

/// Rust loops, rows shared by a thread pool of their own.
pub(crate) struct Handwritten {
    pool: std::sync::Arc<rayon::ThreadPool>,
}

impl Handwritten {
    /// With that many threads.
    pub(crate) fn new(threads: usize) -> Result<Self, ControlError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads.max(1))
            .build()
            .map_err(|e| ControlError::Missing(e.to_string()))?;
        Ok(Handwritten { pool: std::sync::Arc::new(pool) })
    }
}

#[derive(Clone, Copy)]
enum Op {
    Softmax,
    RmsNorm,
    LayerNorm,
}

impl Control for Handwritten {
    fn version(&self) -> Option<String> {
        None
    }

    fn prepare(&self, problem: &Problem) -> Result<Box<dyn Prepared>, ControlError> {
        let op = match problem.op.as_str() {
            "softmax" => Op::Softmax,
            "rmsnorm" => Op::RmsNorm,
            "layernorm" => Op::LayerNorm,
            _ => return Err(problem.unsupported()),
        };
        let &[rows, cols] = &problem.shape[..] else { return Err(problem.unsupported()) };
        let threads = problem.threads.max(1);
        Ok(Box::new(Rows { op, rows, cols, threads, pool: self.pool.clone() }))
    }
}

struct Rows {
    op: Op,
    rows: usize,
    cols: usize,
    threads: usize,
    pool: std::sync::Arc<rayon::ThreadPool>,
}

impl Prepared for Rows {
    fn call(&mut self, inputs: &[&[f32]], output: &mut [f32]) -> Result<(), ControlError> {
        let (size, cols) = (self.rows * self.cols, self.cols);
        let vectors = match self.op {
            Op::Softmax => 0,
            Op::RmsNorm => 1,
            Op::LayerNorm => 2,
        };
        let mut expected = vec![size];
        expected.resize(1 + vectors, cols);
        check_lengths(inputs, &expected, output, size)?;
        if size == 0 {
            return Ok(());
        }
        let (op, params) = (self.op, &inputs[1..]);
        let one = |x: &[f32], y: &mut [f32]| row(op, x, params, y);
        if self.threads == 1 {
            inputs[0].chunks(cols).zip(output.chunks_mut(cols)).for_each(|(x, y)| one(x, y));
        } else {
            // A few pieces a thread balance the load without much splitting.
            let rows = self.rows.div_ceil(self.threads * 4).max(1) * cols;
            let pieces = output.par_chunks_mut(rows).zip(inputs[0].par_chunks(rows));
            self.pool.install(|| {
                pieces.for_each(|(y, x)| {
                    x.chunks(cols).zip(y.chunks_mut(cols)).for_each(|(x, y)| one(x, y));
                });
            });
        }
        Ok(())
    }
}

/// Computes a row with the widest instruction set that the machine has.
fn row(op: Op, x: &[f32], params: &[&[f32]], y: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the machine has the features.
            return unsafe { row_avx512(op, x, params, y) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the machine has the features.
            return unsafe { row_avx2(op, x, params, y) };
        }
    }
    row_generic(op, x, params, y)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn row_avx512(op: Op, x: &[f32], params: &[&[f32]], y: &mut [f32]) {
    row_generic(op, x, params, y)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn row_avx2(op: Op, x: &[f32], params: &[&[f32]], y: &mut [f32]) {
    row_generic(op, x, params, y)
}

#[inline(always)]
fn row_generic(op: Op, x: &[f32], params: &[&[f32]], y: &mut [f32]) {
    let n = x.len() as f32;
    match op {
        Op::Softmax => {
            let max = fold(x, f32::NEG_INFINITY, |a, v| if v > a { v } else { a });
            for (e, v) in y.iter_mut().zip(x) {
                *e = exp(*v - max);
            }
            let scale = 1.0 / fold(y, 0.0, |a, v| a + v);
            y.iter_mut().for_each(|e| *e *= scale);
        }
        Op::RmsNorm => {
            let scale = 1.0 / (fold(x, 0.0, |a, v| a + v * v) / n + EPS).sqrt();
            for ((out, v), g) in y.iter_mut().zip(x).zip(params[0]) {
                *out = *v * scale * *g;
            }
        }
        Op::LayerNorm => {
            let mean = fold(x, 0.0, |a, v| a + v) / n;
            let variance = fold(x, 0.0, |a, v| a + (v - mean) * (v - mean)) / n;
            let scale = 1.0 / (variance + EPS).sqrt();
            for (((out, v), g), b) in y.iter_mut().zip(x).zip(params[0]).zip(params[1]) {
                *out = (*v - mean) * scale * *g + *b;
            }
        }
    }
}

/// Folds a row into independent lanes, and the lanes into one value. `step(a, v)` takes an
/// element; lanes are combined by sum, or by maximum where `identity` is −∞.
#[inline(always)]
fn fold(x: &[f32], identity: f32, step: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [identity; STEP];
    let chunks = x.chunks_exact(STEP);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane = step(*lane, *v);
        }
    }
    for (lane, v) in lanes.iter_mut().zip(rest) {
        *lane = step(*lane, *v);
    }
    let maximum = identity == f32::NEG_INFINITY;
    lanes.iter().fold(identity, |a, v| if maximum { a.max(*v) } else { a + *v })
}

/// e^x for x ≤ 0, to about one unit in the last place; 0 below −87. Cody-Waite reduction by
/// ln 2 and the polynomial of Cephes `expf`.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x < -87.0 { -87.0 } else { x };
    // Adding and taking away 1.5·2^23 rounds to an integer.
    const ROUND: f32 = 12_582_912.0;
    let n = (clamped * LOG2_E + ROUND) - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.987_569_2e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 0.166_666_66;
    p = p * r + 0.5;
    let value = p * r * r + r + 1.0;
    let scale = f32::from_bits(((n as i32 + 127) << 23) as u32);
    if x < -87.0 { 0.0 } else { value * scale }
}
