//! Drives the workers and prints the table.

use std::time::Duration;

use tilewright_bench::libraries::PEERS;
use tilewright_bench::process::Worker;
use tilewright_bench::stats::{median, spread};

use crate::worker::OURS;

/// Shapes (M, N, K) that are measured unless others are named.
const SHAPES: [[usize; 3]; 11] = [
    [32, 32, 32],
    [128, 128, 128],
    [512, 512, 512],
    [1024, 1024, 1024],
    [256, 1024, 128],
    [1024, 128, 256],
    [127, 193, 61],
    [513, 257, 129],
    [1, 4096, 4096],
    [8, 4096, 4096],
    [4096, 4096, 16],
];

/// Fewest rounds.
const ROUNDS: usize = 14;
/// The part of the best other library's speed that is asked for.
const WANTED: f64 = 0.90;
/// A pause between libraries: their idle threads poll for a while before they sleep.
const PAUSE: Duration = Duration::from_millis(25);

/// What to measure.
pub struct Options {
    threads: Vec<usize>,
    shapes: Vec<[usize; 3]>,
    rounds: usize,
    batch_ms: f64,
}

impl Options {
    /// Reads the command line. What `cargo bench` itself adds is ignored.
    ///
    /// # Errors
    /// An unknown option, or a value that isn't what it takes.
    pub fn parse(args: &[String]) -> Result<Options, String> {
        let mut options =
            Options { threads: vec![1, 2], shapes: SHAPES.to_vec(), rounds: ROUNDS, batch_ms: 2.0 };
        let mut args = args.iter().filter(|arg| *arg != "--bench");
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} takes a value"));
            match arg.as_str() {
                "--threads" => options.threads = list(value()?, |t| t.parse().ok())?,
                "--shapes" => options.shapes = list(value()?, shape)?,
                "--rounds" => options.rounds = one::<usize>(value()?)?.max(ROUNDS),
                "--batch-ms" => options.batch_ms = one(value()?)?,
                // A filter, as other benchmarks take it: nothing of that name is here.
                _ if !arg.starts_with("--") => options.shapes.clear(),
                _ => {
                    return Err(format!(
                        "unknown option {arg}: use --threads, --shapes, --rounds or --batch-ms"
                    ));
                }
            }
        }
        Ok(options)
    }
}

fn one<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` isn't a number that fits"))
}

fn list<T>(text: &str, item: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, String> {
    let each = |part| item(part).ok_or_else(|| format!("`{part}` in `{text}` doesn't fit"));
    text.split(',').map(each).collect()
}

fn shape(text: &str) -> Option<[usize; 3]> {
    let sizes: Vec<usize> = text.split('x').map(|s| s.parse().ok()).collect::<Option<_>>()?;
    sizes.try_into().ok()
}

/// A library that takes part, with its times of one shape in microseconds per call.
struct Entry {
    name: &'static str,
    worker: Worker,
    ready: bool,
    times: Vec<f64>,
}

/// Measures everything and prints it.
///
/// # Errors
/// Tilewright itself fails. A library that is missing, or fails, is said and left out.
pub fn run(options: &Options) -> Result<(), String> {
    let mut below = Vec::new();
    let mut rows = 0;
    for &threads in &options.threads {
        let mut entries = start(threads)?;
        println!();
        println!("{}", header(&entries, threads));
        for &shape in &options.shapes {
            let [m, n, k] = shape;
            let generation = prepare(&mut entries, shape, options.batch_ms)?;
            measure(&mut entries, options.rounds)?;
            let (text, good) = row(&entries, shape, threads, generation);
            println!("{text}");
            rows += 1;
            if !good {
                below.push(format!("{m}x{n}x{k} on {threads}"));
            }
        }
    }
    println!();
    println!(
        "at least {WANTED} of the best (on several threads less the A/A spread): {} of {rows}{}",
        rows - below.len(),
        if below.is_empty() { String::new() } else { format!("; below: {}", below.join(", ")) }
    );
    Ok(())
}

/// Starts the workers; ours twice.
fn start(threads: usize) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    for name in [OURS].into_iter().chain(PEERS).chain([OURS]) {
        let started = Worker::start(name, threads).and_then(|mut worker| {
            let version = worker.ask("version")?;
            Ok((worker, version))
        });
        match started {
            Ok((worker, version)) => {
                println!("{name}, {threads} thread(s): {version}");
                entries.push(Entry { name, worker, ready: false, times: Vec::new() });
            }
            Err(e) if name == OURS => return Err(format!("{OURS}: {e}")),
            Err(e) => println!("{name} is left out: {e}"),
        }
    }
    Ok(entries)
}

/// Prepares a shape everywhere; microseconds to plan and to generate.
fn prepare(entries: &mut [Entry], [m, n, k]: [usize; 3], ms: f64) -> Result<[f64; 2], String> {
    let mut generation = [f64::NAN; 2];
    for entry in entries {
        entry.times.clear();
        let answer = entry.worker.ask(&format!("shape {m} {n} {k} {ms}"));
        entry.ready = answer.is_ok();
        match answer {
            Ok(text) if entry.name == OURS => {
                let numbers: Vec<f64> =
                    text.split(' ').skip(1).filter_map(|w| w.parse().ok()).collect();
                if let [planning, generating] = numbers.as_slice() {
                    generation = [*planning, *generating];
                }
            }
            Ok(_) => {}
            Err(e) if entry.name == OURS => return Err(format!("{OURS}, {m}x{n}x{k}: {e}")),
            Err(e) => println!("{} is left out of {m}x{n}x{k}: {e}", entry.name),
        }
        std::thread::sleep(PAUSE);
    }
    Ok(generation)
}

/// Rounds of one batch each. Every other round goes backward, so that neighbours change.
fn measure(entries: &mut [Entry], rounds: usize) -> Result<(), String> {
    for round in 0..rounds {
        let count = entries.len();
        for step in 0..count {
            let at = if round % 2 == 0 { step } else { count - 1 - step };
            let entry = &mut entries[at];
            if !entry.ready {
                continue;
            }
            let answer = entry.worker.ask("time").map_err(|e| format!("{}: {e}", entry.name))?;
            let time: f64 = answer.parse().map_err(|_| format!("{}: {answer}", entry.name))?;
            entry.times.push(time);
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

fn header(entries: &[Entry], threads: usize) -> String {
    let mut text = format!("{threads} thread(s)\n{:>15} {:>11}", "MxNxK", OURS);
    for entry in peers(entries) {
        text.push_str(&format!(" {:>14}", entry.name));
    }
    text.push_str(&format!(
        " {:>8} {:>7} {:>7} {:>7} {:>8} {:>9}",
        "GFLOP/s", "ratio", "spread", "A/A", "plan", "generate"
    ));
    text.push_str("\n(microseconds per call, medians; ratio: best other library over tilewright)");
    text
}

fn peers(entries: &[Entry]) -> impl Iterator<Item = &Entry> {
    entries.iter().filter(|entry| entry.name != OURS)
}

/// The line of a shape, and whether it is as good as wanted.
fn row(
    entries: &[Entry],
    [m, n, k]: [usize; 3],
    threads: usize,
    [planning, generating]: [f64; 2],
) -> (String, bool) {
    let mut own = entries.iter().filter(|entry| entry.name == OURS);
    let (Some(ours), again) = (own.next(), own.next()) else {
        return ("nothing was measured".to_string(), false);
    };
    let time = median(&ours.times);
    let mut text = format!("{:>15} {time:>11.3}", format!("{m}x{n}x{k}"));
    let mut best: Option<&Entry> = None;
    for peer in peers(entries) {
        if !peer.ready {
            text.push_str(&format!(" {:>14}", "-"));
            continue;
        }
        text.push_str(&format!(" {:>14.3}", median(&peer.times)));
        if best.is_none_or(|best| median(&peer.times) < median(&best.times)) {
            best = Some(peer);
        }
    }
    let over = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a / b).collect::<Vec<f64>>();
    let ratios = best.map(|best| over(&best.times, &ours.times)).unwrap_or_default();
    let chance = spread(&over(&again.map_or(Vec::new(), |e| e.times.clone()), &ours.times));
    let flops = 2.0 * m as f64 * n as f64 * k as f64;
    let ratio = median(&ratios);
    let wanted = if threads > 1 { WANTED - chance } else { WANTED };
    // Without another library there is nothing to be slower than.
    let good = ratios.is_empty() || ratio >= wanted;
    text.push_str(&format!(
        " {:>8.1} {ratio:>7.3} {:>7.3} {chance:>7.3} {planning:>8.0} {generating:>9.0}{}",
        flops / time / 1e3,
        spread(&ratios),
        if good { "" } else { "  below" }
    ));
    (text, good)
}
