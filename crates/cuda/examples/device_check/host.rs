//! What the host pays.

use cudarc::driver::result;
use std::time::Instant;
use tilewright_cuda::{CudaDevice, PtxTarget, emit};
use tilewright_engine::check::{self, LaunchValues, compile_checked};
use tilewright_engine::{Engine, LaunchOptions, Plan, PlanOptions, inputs};
use tilewright_ir::DType;
use tilewright_ir::ops::OpRequest;
use tilewright_plan::Target;
use tilewright_runtime::{Buffer, DeviceBuffer};

use crate::Error;
use crate::cases::{all_ops, case, products, values};

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Times of PTX generation: the kernels of the default plans of every op and product. It needs no
/// device.
pub fn emission(target: &Target) -> Result<(), Error> {
    let mut times = Vec::new();
    for case in all_ops()?.iter().chain(&products()?) {
        let options = PlanOptions {
            sizes: values(case).dims.into_iter().collect(),
            ..PlanOptions::default()
        };
        let plan = Plan::new(&case.program, target, &options)?;
        let lowered = match plan.ranking.chosen() {
            Some(best) if plan.general.is_none() => plan.lower(best)?,
            _ => plan.lower_general()?,
        };
        for kernel in &lowered.launches {
            let start = Instant::now();
            let made = emit(kernel, PtxTarget::BASE);
            let ms = start.elapsed().as_secs_f64() * 1e3;
            if made.is_ok() {
                times.push((ms, case.name.clone()));
            }
        }
    }
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((worst, name)) = times.last() {
        println!(
            "PTX of {} kernels: median {:.3} ms, longest {worst:.3} ms ({name})",
            times.len(),
            times[times.len() / 2].0
        );
    }
    Ok(())
}

/// What the host pays.
pub fn host(device: CudaDevice) -> Result<(), Error> {
    let context = device.context().clone();
    let engine = Engine::new(std::sync::Arc::new(device));

    // From a ready context to a checked result.
    let program = case("softmax", OpRequest::shaped(DType::F32, &[1024, 4096]))?.program;
    let none = LaunchValues::default();
    let contents = inputs::random(&program, &none, 1)?;
    let start = Instant::now();
    let plan = engine.plan(&program, &PlanOptions::default())?;
    let planned = start.elapsed().as_secs_f64() * 1e3;
    let (_, run) = compile_checked(&engine, &plan, &none, contents.inputs, contents.initial)?;
    let checked = start.elapsed().as_secs_f64() * 1e3;
    println!(
        "softmax 1024x4096 f32: planned after {planned:.1} ms, checked ({}) after {checked:.1} ms",
        run.report.passed()
    );

    // Its parts, each alone: what runs at the same time above.
    let ms = |start: Instant| start.elapsed().as_secs_f64() * 1e3;
    for _ in 0..2 {
        let contents = inputs::random(&program, &none, 1)?;
        let start = Instant::now();
        let compiled = engine.compile(&plan)?;
        let assembled = ms(start);
        let start = Instant::now();
        let reference = check::reference(&program, &none, &contents.inputs, &contents.initial)?;
        let known = ms(start);
        let start = Instant::now();
        check::run_against(&compiled, &reference, &none, contents.inputs, contents.initial)?;
        println!(
            "  alone: assembled in {assembled:.1} ms, oracle {known:.1} ms, copies there and back \
             with launch and comparison {:.1} ms",
            ms(start)
        );
    }

    emission(engine.target())?;

    // A launch through a bound handle beside the driver's own call.
    let program = case("softmax", OpRequest::shaped(DType::F32, &[4, 32]))?.program;
    let compiled = engine.compile(&engine.plan(&program, &PlanOptions::default())?)?;
    let queue = engine.device().queue().ok_or("no queue")?.clone();
    let x = DeviceBuffer::from_host(&queue, &Buffer::zeros(DType::F32, 128)?)?;
    let mut y = DeviceBuffer::new(&queue, DType::F32, 128)?;
    let kernel = &compiled.launches()[0];
    let function = context.load(&emit(kernel, PtxTarget::BASE)?)?;
    let threads = 32 * kernel.subgroups;
    let mut words: Vec<u64> = kernel
        .args
        .iter()
        .map(|(_, arg)| if arg.name == "x" { x.address() as u64 } else { y.address() as u64 })
        .collect();
    let mut params: Vec<*mut std::ffi::c_void> =
        words.iter_mut().map(|w| std::ptr::from_mut(w).cast()).collect();
    let mut bound = compiled.bind(&LaunchOptions::default(), &[&x], [&mut y])?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        const LAUNCHES: u32 = 100;
        let start = Instant::now();
        for _ in 0..LAUNCHES {
            bound.enqueue()?;
        }
        ours.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(LAUNCHES));
        bound.wait()?;
        let start = Instant::now();
        for _ in 0..LAUNCHES {
            // SAFETY: the words are the kernel's parameters; x and y hold 128 elements.
            unsafe {
                result::launch_kernel(
                    function.raw(),
                    (4, 1, 1),
                    (threads, 1, 1),
                    kernel.shared_bytes() as u32,
                    context.stream(),
                    &mut params,
                )
            }
            .map_err(|e| format!("{e:?}"))?;
        }
        theirs.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(LAUNCHES));
        context.synchronize()?;
    }
    let (ours, theirs) = (median(ours), median(theirs));
    println!(
        "launch: {ours:.0} ns through a bound handle, {theirs:.0} ns by cuLaunchKernel alone, \
         {:.0} ns beyond it",
        ours - theirs
    );
    let mut sync = Vec::new();
    for _ in 0..500 {
        let start = Instant::now();
        bound.launch()?;
        sync.push(start.elapsed().as_secs_f64() * 1e6);
    }
    println!("launch and wait: {:.1} us", median(sync));
    drop(bound);
    let (x, mut y) = (vec![0f32; 128], vec![0f32; 128]);
    let mut staged = Vec::new();
    for _ in 0..200 {
        let start = Instant::now();
        compiled.run(&[&x], &mut y)?;
        staged.push(start.elapsed().as_secs_f64() * 1e6);
    }
    println!("run on host tensors of 512 bytes: {:.1} us", median(staged));
    Ok(())
}
