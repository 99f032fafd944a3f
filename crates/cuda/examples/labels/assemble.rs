//! Kernels of all candidates, lowered and assembled ahead of the device by several threads.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use tilewright_cuda::{Ptx, PtxTarget, emit_for};
use tilewright_kernel::kernel::Kernel;
use tilewright_kernel::lower::{Options, lower};
use tilewright_plan::Target;
use tilewright_plan::mapping::Mapping;

use crate::Error;
use crate::subject::Case;

/// The launches of a candidate with their machine code.
pub type Outcome = Result<Vec<(Kernel, Ptx, Vec<u8>)>, String>;

/// Lowers a candidate: kernels and their text as the runtime makes it for a device that takes
/// `limit`.
fn texts(case: &Case, mapping: &Mapping, limit: PtxTarget) -> Result<Vec<(Kernel, Ptx)>, Error> {
    let options = Options::for_target(&Target::nvidia_h200());
    let lowered = lower(&case.program, &case.facts, mapping, &options)?;
    let emitted = |kernel: Kernel| Ok(emit_for(&kernel, limit).map(|ptx| (kernel, ptx))?);
    lowered.launches.into_iter().map(emitted).collect()
}

/// Machine code of a text.
fn assemble(ptx: &Ptx, ptxas: &Path, sm: u32, stem: &Path) -> Result<Vec<u8>, Error> {
    let (from, to) = (stem.with_extension("ptx"), stem.with_extension("cubin"));
    std::fs::write(&from, &ptx.text)?;
    let out =
        Command::new(ptxas).arg(format!("-arch=sm_{sm}")).arg(&from).arg("-o").arg(&to).output()?;
    if !out.status.success() {
        let words = String::from_utf8_lossy(&out.stderr).chars().take(300).collect::<String>();
        return Err(format!("ptxas: {words}").into());
    }
    let image = std::fs::read(&to)?;
    let _ = (std::fs::remove_file(&from), std::fs::remove_file(&to));
    Ok(image)
}

fn outcome(case: &Case, mapping: &Mapping, ptxas: &Path, limit: PtxTarget, stem: &Path) -> Outcome {
    let build = || -> Result<Vec<(Kernel, Ptx, Vec<u8>)>, Error> {
        let mut out = Vec::new();
        for (kernel, ptx) in texts(case, mapping, limit)? {
            let image = assemble(&ptx, ptxas, limit.sm, stem)?;
            out.push((kernel, ptx, image));
        }
        Ok(out)
    };
    build().map_err(|e| e.to_string())
}

/// Finished candidates of one case.
#[derive(Default)]
struct Done {
    outcomes: Vec<Option<Outcome>>,
    count: usize,
}

/// The threads and what they have made.
pub struct Assembly {
    done: Arc<Vec<(Mutex<Done>, Condvar)>>,
    stop: Arc<AtomicBool>,
}

impl Assembly {
    /// Starts assembling, first case first.
    pub fn start(cases: Arc<Vec<Case>>, ptxas: PathBuf, limit: PtxTarget) -> Assembly {
        let done: Arc<Vec<(Mutex<Done>, Condvar)>> = Arc::new(
            cases
                .iter()
                .map(|case| {
                    let outcomes = case.mappings.iter().map(|_| None).collect();
                    (Mutex::new(Done { outcomes, count: 0 }), Condvar::new())
                })
                .collect(),
        );
        let jobs: Arc<Vec<(usize, usize)>> = Arc::new(
            cases
                .iter()
                .enumerate()
                .flat_map(|(c, case)| (0..case.mappings.len()).map(move |m| (c, m)))
                .collect(),
        );
        let next = Arc::new(AtomicUsize::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let cores = std::thread::available_parallelism().map_or(2, |n| n.get());
        // One core drives the device.
        for worker in 0..cores.saturating_sub(1).max(1) {
            let (cases, done, jobs, next, stop, ptxas) = (
                cases.clone(),
                done.clone(),
                jobs.clone(),
                next.clone(),
                stop.clone(),
                ptxas.clone(),
            );
            std::thread::spawn(move || {
                let name = format!("labels-{}-{worker}", std::process::id());
                let stem = std::env::temp_dir().join(name);
                while !stop.load(Ordering::Relaxed) {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&(c, m)) = jobs.get(job) else { return };
                    let made = outcome(&cases[c], &cases[c].mappings[m], &ptxas, limit, &stem);
                    let (lock, ready) = &done[c];
                    if let Ok(mut done) = lock.lock() {
                        done.outcomes[m] = Some(made);
                        done.count += 1;
                    }
                    ready.notify_all();
                }
            });
        }
        Assembly { done, stop }
    }

    /// Waits for all candidates of a case and takes them.
    pub fn wait(&self, case: usize) -> Vec<Outcome> {
        let (lock, ready) = &self.done[case];
        let Ok(mut done) = lock.lock() else { return Vec::new() };
        while done.count < done.outcomes.len() {
            match ready.wait(done) {
                Ok(again) => done = again,
                Err(_) => return Vec::new(),
            }
        }
        let lost = || Err("it was not assembled".to_string());
        done.outcomes.iter_mut().map(|o| o.take().unwrap_or_else(lost)).collect()
    }

    /// Ends the threads after what they are at.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Assembles a few candidates of every case, and says how many there are and what one takes.
pub fn dry(cases: &[Case], ptxas: &Path, few: usize) -> Result<(), Error> {
    let stem = std::env::temp_dir().join(format!("labels-{}", std::process::id()));
    let (mut all, mut expected) = (0, 0.0);
    for case in cases {
        let count = case.mappings.len();
        let step = (count / few.max(1)).max(1);
        let (mut seconds, mut tried, mut bytes, mut failed) = (0.0, 0, 0, Vec::new());
        for mapping in case.mappings.iter().step_by(step).take(few) {
            let started = Instant::now();
            match outcome(case, mapping, ptxas, PtxTarget::DEPENDENT_LAUNCHES, &stem) {
                Ok(made) => bytes += made.iter().map(|(_, _, image)| image.len()).sum::<usize>(),
                Err(error) => failed.push(error),
            }
            seconds += started.elapsed().as_secs_f64();
            tried += 1;
        }
        let each = seconds / f64::from(tried.max(1));
        println!(
            "{:28} {} {count} candidates of {}, {each:.2} s and {} bytes each, {} failed {}",
            case.id,
            case.set,
            case.space,
            bytes / tried.max(1) as usize,
            failed.len(),
            failed.first().map_or("", String::as_str)
        );
        all += count;
        expected += each * count as f64;
    }
    println!("{all} candidates, {expected:.0} s on one core");
    Ok(())
}
