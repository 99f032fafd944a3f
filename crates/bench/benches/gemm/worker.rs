//! A worker: one library, one number of threads. Commands: `version`; `shape M N K MS` prepares a
//! shape, checks the result and settles how many calls make a batch of MS milliseconds; `time`
//! runs batches and answers with the fastest one's microseconds per call.

use std::io::{BufRead, Write};
use std::time::Instant;

use tilewright::{CpuOptions, DType, Engine, LaunchOptions, ops};
use tilewright_bench::Floats;
use tilewright_bench::libraries::{self, Multiply, Shape};
use tilewright_bench::stats::median;

/// Batches of one answer, of which the fastest counts: on a busy machine the others are those in
/// which somebody else had the core.
const BATCHES: u32 = 4;

/// What our own library is called.
pub const OURS: &str = "tilewright";

/// Runs the worker of a library (`args`: name and number of threads) until its input ends.
///
/// # Errors
/// The library can't be had, or the pipe broke.
pub fn run(args: &[String]) -> Result<(), String> {
    let [name, threads] = args else { return Err("a worker takes a name and threads".into()) };
    let threads: usize = threads.parse().map_err(|_| "threads is a number".to_string())?;
    let mut commands = Commands::default();
    if name == OURS {
        let options = CpuOptions { threads: Some(threads), ..CpuOptions::default() };
        let engine = tilewright::cpu_with(options);
        let engine = answered(&mut commands, engine.map_err(|e| e.to_string()))?;
        let version = format!("{:?}", engine.device().capabilities());
        while let Some(command) = commands.next(&version)? {
            ours(&engine, &mut commands, command)?;
        }
        return Ok(());
    }
    let mut peer = answered(&mut commands, libraries::peer(name, threads))?;
    let version = peer.version();
    while let Some(command) = commands.next(&version)? {
        theirs(peer.as_mut(), &mut commands, command)?;
    }
    Ok(())
}

/// Hands a failure to start to whoever asks first.
fn answered<T>(commands: &mut Commands, outcome: Result<T, String>) -> Result<T, String> {
    outcome.map_err(|message| {
        let one_line = message.replace('\n', " ");
        if commands.read().is_ok() {
            commands.answer(&format!("error {one_line}"));
        }
        one_line
    })
}

/// A shape to prepare and the length of a batch in microseconds.
#[derive(Clone, Copy)]
struct Prepare {
    shape: Shape,
    batch: f64,
}

/// The input, with one command that was read ahead.
#[derive(Default)]
struct Commands {
    ahead: Option<Prepare>,
}

impl Commands {
    fn read(&mut self) -> Result<Option<String>, String> {
        let mut line = String::new();
        let count = std::io::stdin().lock().read_line(&mut line).map_err(|e| e.to_string())?;
        Ok((count > 0).then(|| line.trim().to_string()))
    }

    fn answer(&self, text: &str) {
        println!("{text}");
        // Where nobody listens any more the next read ends the worker.
        let _ = std::io::stdout().flush();
    }

    /// The next shape; `None` at the end.
    fn next(&mut self, version: &str) -> Result<Option<Prepare>, String> {
        if let Some(prepare) = self.ahead.take() {
            return Ok(Some(prepare));
        }
        while let Some(line) = self.read()? {
            match prepare(&line) {
                Some(prepare) => return Ok(Some(prepare)),
                None if line == "version" => self.answer(version),
                None => self.answer(&format!("error unknown command `{line}`")),
            }
        }
        Ok(None)
    }

    /// Answers `time` commands with microseconds per call, until another shape comes.
    fn serve(&mut self, calls: u32, mut call: impl FnMut()) -> Result<(), String> {
        while let Some(line) = self.read()? {
            if line == "time" {
                // One call to bring back what the others pushed out of the caches.
                call();
                let mut best = f64::INFINITY;
                for _ in 0..BATCHES {
                    let start = Instant::now();
                    for _ in 0..calls {
                        call();
                    }
                    best = best.min(start.elapsed().as_secs_f64() * 1e6 / f64::from(calls));
                }
                self.answer(&best.to_string());
            } else if let Some(prepare) = prepare(&line) {
                self.ahead = Some(prepare);
                return Ok(());
            } else {
                self.answer(&format!("error unknown command `{line}`"));
            }
        }
        Ok(())
    }
}

fn prepare(line: &str) -> Option<Prepare> {
    let words: Vec<&str> = line.split(' ').collect();
    let ["shape", m, n, k, ms] = words.as_slice() else { return None };
    let shape = [m.parse().ok()?, n.parse().ok()?, k.parse().ok()?];
    Some(Prepare { shape, batch: ms.parse::<f64>().ok()? * 1e3 })
}

/// Operands of a shape.
struct Operands {
    a: Floats,
    b: Floats,
    c: Floats,
}

impl Operands {
    fn new([m, n, k]: Shape) -> Operands {
        let mut c = Floats::zeros(m * n);
        c.as_mut_slice().fill(f32::NAN);
        Operands { a: Floats::random(m * k, 1), b: Floats::random(k * n, 2), c }
    }
}

/// Compares every element with a float64 product.
fn check([m, n, k]: Shape, a: &[f32], b: &[f32], c: &[f32]) -> Result<(), String> {
    let factor = (8.0 + (k as f64).sqrt()) * f64::powi(2.0, -24);
    let mut sums = vec![0.0_f64; n];
    let mut sizes = vec![0.0_f64; n];
    for row in 0..m {
        sums.fill(0.0);
        sizes.fill(0.0);
        for (l, factor) in a[row * k..][..k].iter().enumerate() {
            let factor = f64::from(*factor);
            for ((sum, size), b) in sums.iter_mut().zip(&mut sizes).zip(&b[l * n..][..n]) {
                let product = factor * f64::from(*b);
                *sum += product;
                *size += product.abs();
            }
        }
        for (column, (sum, size)) in sums.iter().zip(&sizes).enumerate() {
            let actual = f64::from(c[row * n + column]);
            let error = (actual - sum).abs();
            if error.is_nan() || error > factor * size {
                return Err(format!("{actual} instead of {sum} at row {row}, column {column}"));
            }
        }
    }
    Ok(())
}

/// How many calls take about `batch` microseconds.
fn calls(batch: f64, mut call: impl FnMut()) -> u32 {
    let mut count = 1_u32;
    loop {
        let start = Instant::now();
        for _ in 0..count {
            call();
        }
        let took = start.elapsed().as_secs_f64() * 1e6;
        if took >= batch / 4.0 || count >= 1 << 20 {
            return ((batch / took * f64::from(count)).ceil() as u32).clamp(1, 1 << 22);
        }
        count *= 4;
    }
}

fn theirs(
    peer: &mut dyn Multiply,
    commands: &mut Commands,
    Prepare { shape, batch }: Prepare,
) -> Result<(), String> {
    let mut x = Operands::new(shape);
    let (a, b) = (x.a.as_slice(), x.b.as_slice());
    peer.multiply(shape, a, b, x.c.as_mut_slice());
    if let Err(wrong) = check(shape, a, b, x.c.as_slice()) {
        commands.answer(&format!("error wrong result: {wrong}"));
        return Ok(());
    }
    let c = x.c.as_mut_slice();
    let count = calls(batch, || peer.multiply(shape, a, b, c));
    commands.answer("ready");
    commands.serve(count, || peer.multiply(shape, a, b, c))
}

/// Ours through the public library. The answer to `shape` also says how long planning and
/// generating the kernel took, in microseconds.
fn ours(
    engine: &Engine,
    commands: &mut Commands,
    Prepare { shape, batch }: Prepare,
) -> Result<(), String> {
    let failed = |e: &dyn std::fmt::Display| e.to_string().replace('\n', " ");
    let [m, n, k] = shape.map(|size| size as u64);
    let start = Instant::now();
    let planned = match ops::gemm(m, n, k, DType::F32).plan(engine) {
        Ok(planned) => planned,
        Err(e) => {
            commands.answer(&format!("error {}", failed(&e)));
            return Ok(());
        }
    };
    let planning = start.elapsed().as_secs_f64() * 1e6;
    let mut generating = Vec::new();
    let mut compiled = None;
    for _ in 0..7 {
        // A new engine on the same device has an empty cache.
        let fresh = Engine::new(engine.device().clone());
        let plan = planned.plan().clone();
        let start = Instant::now();
        let code = fresh.compile(&plan);
        generating.push(start.elapsed().as_secs_f64() * 1e6);
        match code {
            Ok(code) => compiled = Some(code),
            Err(e) => {
                commands.answer(&format!("error {}", failed(&e)));
                return Ok(());
            }
        }
    }
    let Some(compiled) = compiled else { return Ok(()) };
    let mut x = Operands::new(shape);
    let (a, b) = (x.a.as_slice(), x.b.as_slice());
    let run = compiled.run(&[&a, &b], &mut x.c.as_mut_slice());
    let outcome = run.map_err(|e| failed(&e)).and_then(|()| {
        check(shape, a, b, x.c.as_slice()).map_err(|wrong| format!("wrong result: {wrong}"))
    });
    if let Err(message) = outcome {
        commands.answer(&format!("error {message}"));
        return Ok(());
    }
    let mut c = x.c.as_mut_slice();
    let bound = compiled.bind(&LaunchOptions::default(), &[&a, &b], [&mut c]);
    let mut bound = bound.map_err(|e| failed(&e))?;
    let mut failure = None;
    let mut call = || {
        if let Err(e) = bound.launch() {
            failure.get_or_insert(e.to_string());
        }
    };
    let count = calls(batch, &mut call);
    commands.answer(&format!("ready {planning} {}", median(&generating)));
    commands.serve(count, &mut call)?;
    match failure {
        Some(message) => Err(message),
        None => Ok(()),
    }
}
