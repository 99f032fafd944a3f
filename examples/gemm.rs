//! A matrix product with a fused epilogue, launched many times.
//!
//! `cargo run --release --example gemm`

use tilewright::ops::EpilogueStep::{Bias, Gelu};
use tilewright::timing::{TimingOptions, measure};
use tilewright::{DType, LaunchOptions, ops};

fn main() -> Result<(), tilewright::Error> {
    let cpu = tilewright::cpu()?;
    let (m, n, k) = (256, 1024, 128);

    // C = gelu(A·B + bias), one kernel.
    let planned = ops::gemm(m, n, k, DType::F32).epilogue(&[Bias, Gelu]).plan(&cpu)?;
    println!("{}", planned.explain());
    let product = planned.compile()?;

    let a: Vec<f32> = (0..m * k).map(|i| (i % 13) as f32 - 6.0).collect();
    let b: Vec<f32> = (0..k * n).map(|i| (i % 7) as f32 / 7.0).collect();
    let bias = vec![0.5f32; n as usize];
    let mut c = vec![0.0f32; (m * n) as usize];

    // `bind` checks the launch once; each launch after that is the kernel alone.
    let mut bound = product.bind(&LaunchOptions::default(), &[&a, &b, &bias], [&mut c])?;
    let timing = measure(&TimingOptions::default(), || bound.launch())?;
    let flops = 2.0 * (m * n * k) as f64;
    println!(
        "{m}x{n}x{k}: {:.1} µs, {:.0} GFLOP/s",
        timing.median_us(),
        flops / timing.median_us() / 1e3
    );
    println!("c[0] = {}", c[0]);
    Ok(())
}
