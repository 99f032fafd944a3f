//! Engines for every instruction set of this machine.
#![allow(dead_code)]

use tilewright::check::{CheckReport, LaunchValues, run_checked};
use tilewright::{CpuIsa, CpuOptions, Engine, Error, Program, Task, inputs};

/// The instruction sets that this machine can be made to use.
pub fn isas() -> Vec<CpuIsa> {
    [CpuIsa::Avx512, CpuIsa::Avx2, CpuIsa::Portable]
        .into_iter()
        .filter(|isa| open(*isa).is_ok())
        .collect()
}

fn open(isa: CpuIsa) -> Result<Engine, Error> {
    tilewright::cpu_with(CpuOptions { isa: Some(isa), ..CpuOptions::default() })
}

/// An engine for an instruction set.
pub fn engine(isa: CpuIsa) -> Engine {
    open(isa).unwrap()
}

/// Plans, compiles and checks a program on random data.
pub fn check(
    engine: &Engine,
    program: Program,
    values: &LaunchValues,
    seed: u64,
) -> Result<CheckReport, Error> {
    let mut task = Task::new(program.clone());
    for (name, size) in &values.dims {
        task = task.size(name, *size);
    }
    let compiled = task.plan(engine)?.compile()?;
    let contents = inputs::random(&program, values, seed)?;
    Ok(run_checked(&compiled, values, contents.inputs, contents.initial)?.report)
}
