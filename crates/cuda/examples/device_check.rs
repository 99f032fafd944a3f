//! What a GPU does as a device of the engine: every op checked whole against the float64 oracle,
//! and what the host pays.
//!
//! `device_check facts` says what the driver tells; `check` runs every op in every type that it
//! takes over shapes at the thresholds; `gemm` runs products of all storages, ragged, unaligned,
//! batched, with epilogues; `few` is a short list for a memory checker; `host` prints times of PTX
//! generation, from a ready context to a checked result, and of launches.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use cudarc::driver::result;
use tilewright_cuda::{CudaDevice, PtxTarget, emit};
use tilewright_engine::check::{LaunchValues, run_checked};
use tilewright_engine::timing::{TimingOptions, measure_bound};
use tilewright_engine::{Engine, LaunchOptions, Plan, PlanOptions, inputs};
use tilewright_ir::ops::{EpilogueStep, OpRequest, ShapeForm, Trans, catalog};
use tilewright_ir::{DType, Program};
use tilewright_runtime::{Buffer, Device, DeviceBuffer};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Checks that run at the same time.
const THREADS: usize = 12;

/// One thing to check.
struct Case {
    name: String,
    program: Program,
    scalars: Vec<(String, f64)>,
}

fn case(op: &str, request: OpRequest) -> Result<Case, Error> {
    let mut name = format!("{op} {:?} {}", request.shape, request.dtype);
    if request.trans != Trans::Nn {
        name.push_str(&format!(" {:?}", request.trans));
    }
    if request.strided {
        name.push_str(" strided");
    }
    if !request.epilogue.is_empty() || request.beta != 0.0 {
        name.push_str(&format!(" beta {} {:?}", request.beta, request.epilogue));
    }
    let program = tilewright_ir::ops::build(op, &request)?;
    let scalars = program.scalars.iter().map(|(_, s)| (s.name.clone(), 0.5)).collect();
    Ok(Case { name, program, scalars })
}

/// Sizes of the dimensions that a strided program leaves open: rows padded by 3 elements.
fn values(case: &Case) -> LaunchValues {
    let mut dims = Vec::new();
    for (_, tensor) in case.program.tensors.iter() {
        let tilewright_ir::program::Strides::Explicit(strides) = &tensor.strides else { continue };
        let mut packed = 1;
        for (extent, stride) in tensor.shape.iter().zip(strides).rev() {
            if let tilewright_ir::program::Extent::Dim(d) = stride
                && case.program.known(*stride).is_none()
            {
                packed += 3;
                let name = case.program.dims[*d].name.clone();
                if !dims.iter().any(|(n, _)| *n == name) {
                    dims.push((name, packed));
                }
            }
            packed *= case.program.known(*extent).unwrap_or(1);
        }
    }
    LaunchValues { dims, scalars: case.scalars.clone() }
}

/// Checks one case; the plan in words and the time of a launch.
fn check(engine: &Engine, case: &Case, time: bool) -> Result<(String, Option<f64>), Error> {
    let values = values(case);
    let sizes = values.dims.iter().cloned().collect();
    let options = PlanOptions { sizes, ..PlanOptions::default() };
    let plan = engine.plan(&case.program, &options)?;
    let compiled = engine.compile(&plan)?;
    let contents = inputs::random(&case.program, &values, 7)?;
    let mut run = run_checked(&compiled, &values, contents.inputs, contents.initial)?;
    if let Some(complaint) = run.report.complaint() {
        return Err(format!("WRONG under {}: {complaint}", compiled.describe()).into());
    }
    let us = if time {
        let mut bound = [run.bind(&compiled, &values)?];
        Some(measure_bound(&TimingOptions::default(), &mut bound)?.median_us())
    } else {
        None
    };
    let report = compiled.handle().executable().report();
    let words = format!(
        "{} ({} registers, {} spilled bytes, {} groups a core, {} rejected)",
        compiled.describe(),
        report.registers.unwrap_or(0),
        report.spills,
        report.groups_per_core.unwrap_or(0),
        compiled.rejected().len()
    );
    Ok((words, us))
}

fn check_all(engine: &Engine, cases: &[Case], threads: usize, time: bool) -> usize {
    let start = Instant::now();
    let next = AtomicUsize::new(0);
    let lines = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = check(engine, case, time);
                    if let Ok(mut lines) = lines.lock() {
                        lines.push((case.name.clone(), outcome.map_err(|e| e.to_string())));
                    }
                }
            });
        }
    });
    let mut lines = lines.into_inner().unwrap_or_default();
    lines.sort_by(|a, b| a.0.cmp(&b.0));
    let mut failures = 0;
    let mut expected = 0;
    for (name, outcome) in &lines {
        match outcome {
            Ok((words, Some(us))) => println!("ok    {name}: {us:.2} us, {words}"),
            Ok((words, None)) if std::env::var_os("VERBOSE").is_some() => {
                println!("ok    {name}: {words}");
            }
            Ok(_) => {}
            // Functions that f64 doesn't have there are refused by their rule.
            Err(message) if name.contains(" f64") && message.contains("ptx-codegen") => {
                expected += 1;
            }
            Err(message) => {
                failures += 1;
                println!("FAIL  {name}: {message}");
            }
        }
    }
    println!(
        "{} checked whole, {failures} failed, {expected} refused by rule, {:.1} s",
        lines.len() - failures - expected,
        start.elapsed().as_secs_f64()
    );
    failures
}

/// Every op in every type over ragged and aligned shapes.
fn all_ops() -> Result<Vec<Case>, Error> {
    let rows: &[&[u64]] = &[
        &[1, 1],
        &[5, 31],
        &[3, 33],
        &[23, 769],
        &[37, 1537],
        &[64, 2048],
        &[9, 8193],
        &[4, 12289],
        &[2, 40000],
    ];
    let products: &[&[u64]] = &[&[1, 1, 1], &[7, 5, 3], &[127, 193, 61], &[256, 128, 64]];
    let batches: &[&[u64]] = &[&[1, 1, 1, 1], &[3, 65, 33, 17], &[2, 64, 64, 32]];
    let mut cases = Vec::new();
    for op in catalog() {
        for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
            let shapes = match op.form {
                ShapeForm::Rows => rows,
                ShapeForm::Matrix => products,
                ShapeForm::BatchedMatrix => batches,
            };
            for shape in shapes {
                cases.push(case(op.name, OpRequest::shaped(dtype, shape))?);
            }
        }
    }
    Ok(cases)
}

/// Products in f32: the reference's shapes, ragged and unaligned ones, thin ones, every storage,
/// batches, epilogues, padded rows.
fn products() -> Result<Vec<Case>, Error> {
    let mut cases = Vec::new();
    let f32 = |shape: &[u64]| OpRequest::shaped(DType::F32, shape);
    for shape in [
        [32, 32, 32],
        [128, 128, 128],
        [127, 193, 61],
        [256, 1024, 128],
        [513, 257, 129],
        [1024, 128, 256],
        [512, 512, 512],
        [1024, 1024, 1024],
        [2048, 2048, 2048],
        [16, 4096, 4096],
        [64, 4096, 4096],
        [4096, 4096, 64],
        [1, 4096, 1024],
        [4095, 1025, 1023],
        [33, 1, 999],
        [1, 1, 4097],
    ] {
        cases.push(case("gemm", f32(&shape))?);
    }
    for trans in [Trans::Nt, Trans::Tn, Trans::Tt] {
        for shape in [[127, 193, 61], [256, 256, 256], [1024, 512, 256], [65, 1027, 33]] {
            cases.push(case("gemm", OpRequest { trans, ..f32(&shape) })?);
        }
        cases.push(case("bgemm", OpRequest { trans, ..f32(&[3, 65, 130, 47]) })?);
    }
    for shape in [[7, 33, 65, 129], [16, 128, 128, 64], [2, 512, 256, 128]] {
        cases.push(case("bgemm", f32(&shape))?);
    }
    use EpilogueStep::{Bias, Gelu, Relu, Residual, Scale, Silu};
    for epilogue in [vec![Bias, Relu], vec![Scale, Bias, Residual, Gelu], vec![Silu]] {
        for shape in [[127, 193, 61], [512, 256, 128]] {
            let request = OpRequest { epilogue: epilogue.clone(), beta: 0.5, ..f32(&shape) };
            cases.push(case("gemm", request)?);
        }
    }
    for shape in [[127, 193, 61], [256, 256, 128]] {
        cases.push(case("gemm", OpRequest { strided: true, ..f32(&shape) })?);
    }
    Ok(cases)
}

/// A few cases of each kind of kernel.
fn few() -> Result<Vec<Case>, Error> {
    let mut cases = Vec::new();
    for (op, shape) in [
        ("softmax", &[5u64, 769][..]),
        ("softmax", &[3, 12289]),
        ("layernorm", &[9, 1537]),
        ("rmsnorm", &[7, 33]),
        ("cross_entropy", &[5, 129]),
        ("gelu", &[3, 1025]),
        ("row_sum", &[2, 40000]),
        ("gemv", &[33, 257]),
    ] {
        for dtype in [DType::F32, DType::BF16] {
            cases.push(case(op, OpRequest::shaped(dtype, shape))?);
        }
    }
    for shape in [[33, 65, 17], [128, 128, 128], [65, 70, 1030]] {
        cases.push(case("gemm", OpRequest::shaped(DType::F32, &shape))?);
    }
    cases.push(case("bgemm", OpRequest::shaped(DType::BF16, &[2, 9, 7, 5]))?);
    Ok(cases)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What the host pays.
fn host(device: CudaDevice) -> Result<(), Error> {
    let context = device.context().clone();
    let engine = Engine::new(std::sync::Arc::new(device));

    // From a ready context to a checked result.
    let program = case("softmax", OpRequest::shaped(DType::F32, &[1024, 4096]))?.program;
    let none = LaunchValues::default();
    let contents = inputs::random(&program, &none, 1)?;
    let start = Instant::now();
    let plan = engine.plan(&program, &PlanOptions::default())?;
    let planned = start.elapsed().as_secs_f64() * 1e3;
    let compiled = engine.compile(&plan)?;
    let assembled = start.elapsed().as_secs_f64() * 1e3;
    let run = run_checked(&compiled, &none, contents.inputs, contents.initial)?;
    let checked = start.elapsed().as_secs_f64() * 1e3;
    println!(
        "softmax 1024x4096 f32: planned after {planned:.1} ms, assembled after {assembled:.1} ms, \
         checked ({}) after {checked:.1} ms",
        run.report.passed()
    );

    // PTX generation.
    let mut times = Vec::new();
    for case in all_ops()?.iter().chain(&products()?) {
        let options = PlanOptions {
            sizes: values(case).dims.into_iter().collect(),
            ..PlanOptions::default()
        };
        let plan = Plan::new(&case.program, engine.target(), &options)?;
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

fn main() -> Result<(), Error> {
    let mode = std::env::args().nth(1).unwrap_or_else(|| "check".to_string());
    let device = CudaDevice::open(0)?;
    let failures = match mode.as_str() {
        "facts" => {
            println!("{:?}", device.context().facts());
            println!("{}", serde_json::to_string(device.target())?);
            println!("{:?}", device.capabilities());
            println!("{:?}", device.roofline(DType::F32, 1));
            0
        }
        "host" => {
            host(device)?;
            0
        }
        _ => {
            let engine = Engine::new(std::sync::Arc::new(device));
            match mode.as_str() {
                "check" => check_all(&engine, &all_ops()?, THREADS, false),
                "gemm" => check_all(&engine, &products()?, 1, true),
                "few" => check_all(&engine, &few()?, 1, false),
                other => return Err(format!("no mode `{other}`").into()),
            }
        }
    };
    if failures > 0 { Err(format!("{failures} failed").into()) } else { Ok(()) }
}
