//! FP32 matrix products against OpenBLAS and the crates `gemm` and `matrixmultiply`, and the time
//! to generate a kernel.
//!
//! Every library runs in a worker process of its own. For each shape and number of threads the
//! libraries are timed in turn, the fastest of four batches each, over at least 14 rounds; a round's ratio is the time
//! of the best other library over ours. Two Tilewright workers that are equal in everything give
//! the A/A spread: what a ratio moves by chance.
//!
//! `cargo bench -p tilewright-bench --bench gemm -- [--threads 1,2] [--shapes 32x32x32,…]
//! [--rounds 14] [--batch-ms 2]`

mod driver;
mod worker;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args.first().map(String::as_str) {
        Some(tilewright_bench::process::WORKER) => worker::run(&args[1..]),
        _ => driver::Options::parse(&args).and_then(|options| driver::run(&options)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
