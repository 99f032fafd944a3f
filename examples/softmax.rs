//! One compiled softmax for any number of rows, packed or padded.
//!
//! `cargo run --release --example softmax`

use tilewright::{DType, View, ViewMut, ops};

fn main() -> Result<(), tilewright::Error> {
    let cpu = tilewright::cpu()?;

    // Planned for 1024 rows of 1000 columns; the number of rows stays open.
    let softmax = ops::softmax(1024, 1000, DType::F32).plan(&cpu)?.compile()?;

    for rows in [1, 37, 4096] {
        let x: Vec<f32> = (0..rows * 1000).map(|i| (i % 17) as f32 * 0.25).collect();
        let mut y = vec![0.0f32; rows * 1000];
        softmax.run(&[&x], &mut y)?;
        let sum: f32 = y[..1000].iter().sum();
        println!("{rows:>5} rows: the first one sums to {sum:.6}");
    }

    // Rows that lie 1024 elements apart: give the shape and the strides.
    let x = vec![1.0f32; 8 * 1024];
    let mut y = vec![0.0f32; 8 * 1024];
    let (shape, strides) = ([8, 1000], [1024, 1]);
    softmax.run(
        &[&View::strided(&x, &shape, &strides)],
        &mut ViewMut::strided(&mut y, &shape, &strides),
    )?;
    println!("padded rows: y[0] = {}, untouched padding y[1000] = {}", y[0], y[1000]);

    // What doesn't fit is refused before anything runs.
    let refused = softmax.run(&[&vec![1.0f32; 1001]], &mut vec![0.0f32; 1001]);
    println!("1001 elements: {}", refused.unwrap_err());
    Ok(())
}
