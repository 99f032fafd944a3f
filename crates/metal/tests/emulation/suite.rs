//! The suite: every case in every build, against the interpreter.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tilewright_metal::cases::{Case, Realisation, Special, cases, full_size_products};

use crate::address;
use crate::build::{Build, clang, compiler, program};
use crate::judge::task;
use crate::launch::{HIGHEST, LOWEST, Order, SHUFFLED, run};
use crate::source::{Named, unit};

/// Kernels per translation unit.
const BATCH: usize = 12;

/// The program of each build that holds some cases.
fn programs(cases: &[&Case], builds: &[Build]) -> Result<Vec<PathBuf>, String> {
    let Some(tool) = compiler() else { return Err("no compiler".to_string()) };
    let named: Vec<Named<'_>> =
        cases.iter().map(|c| Named { id: c.id.clone(), text: &c.module.text }).collect();
    let text = unit(&named)?;
    builds.iter().map(|build| program(tool, &text, *build)).collect()
}

/// Lane orders of a build. Values depend on the order; what the sanitizers look for doesn't.
fn orders(build: Build, few: bool) -> &'static [Order] {
    match build {
        Build::Plain if few => &[LOWEST, HIGHEST],
        Build::Plain => &[LOWEST, HIGHEST, SHUFFLED],
        Build::Checked => &[HIGHEST],
        Build::Races => &[LOWEST],
    }
}

/// How much of a case is run.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Only a few groups.
    pub few: bool,
    /// Each element of a row is the largest once; else only those at borders are.
    pub thorough: bool,
    /// Seconds that a launch may take.
    pub seconds: u32,
}

/// Runs a case in a build.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(case: &Case, program: &Path, build: Build, scale: Scale) -> Result<(), String> {
    let few = scale.few;
    let judge = |special, seed, orders: &[Order]| -> Result<(), String> {
        let mut task = task(case, special, seed, few)?;
        task.launch.limit = scale.seconds;
        let results = run(program, build, &task.launch, orders).map_err(|f| f.to_string())?;
        task.judge(case, &results)
    };
    judge(Special::None, 1, orders(build, few)).map_err(|e| format!("{build:?} build: {e}"))?;
    if build == Build::Plain && !few {
        let extremes = if scale.thorough { case.extremes(true) } else { Vec::new() };
        for special in case.specials(scale.thorough).into_iter().chain(extremes) {
            judge(special, 2, &[HIGHEST]).map_err(|e| format!("{special}: {e}"))?;
        }
    }
    Ok(())
}

/// All complaints of some cases in some builds, on all groups or on a `few`; kernels of one
/// realisation share a translation unit.
fn complaints(cases: &[&Case], builds: &[Build], few: bool) -> Vec<String> {
    let mut sorted = cases.to_vec();
    sorted.sort_by_key(|c| c.realisation);
    let batches: Vec<&[&Case]> = sorted
        .chunk_by(|a, b| a.realisation == b.realisation)
        .flat_map(|same| same.chunks(BATCH))
        .collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let spent = Mutex::new((Duration::ZERO, Duration::ZERO));
    let workers = std::thread::available_parallelism().map_or(2, |n| n.get()).min(batches.len());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (messages, times) = one_batch(batch, builds, few);
                    found.lock().unwrap().extend(messages);
                    let mut spent = spent.lock().unwrap();
                    *spent = (spent.0 + times.0, spent.1 + times.1);
                }
            });
        }
    });
    let (building, running) = *spent.lock().unwrap();
    eprintln!("{} cases: {building:.1?} of building, {running:.1?} of running", cases.len());
    found.into_inner().unwrap()
}

/// Complaints of some cases, and the time that building and running took.
fn one_batch(batch: &[&Case], builds: &[Build], few: bool) -> (Vec<String>, (Duration, Duration)) {
    let mut messages = Vec::new();
    if let Some(clang) = clang() {
        for case in batch {
            if let Err(e) = address::check(clang, &case.module.text) {
                messages.push(format!("{}: address spaces: {e}", case.id));
            }
        }
    }
    let start = Instant::now();
    let programs = programs(batch, builds);
    let built = start.elapsed();
    match programs {
        Err(e) => messages.push(format!("{} and others: {e}", batch[0].id)),
        Ok(programs) => {
            for case in batch {
                for (build, program) in builds.iter().zip(&programs) {
                    if let Err(e) =
                        check(case, program, *build, Scale { few, thorough: false, seconds: 120 })
                    {
                        messages.push(format!("{}: {e}", case.id));
                        break;
                    }
                }
            }
        }
    }
    (messages, (built, start.elapsed() - built))
}

fn report(complaints: &[String], of: usize) {
    assert!(
        complaints.is_empty(),
        "{} of {of} cases fail:\n{}",
        complaints.len(),
        complaints.join("\n")
    );
}

#[test]
fn a_few_kernels_of_every_kind() {
    if compiler().is_none() {
        return;
    }
    let all = cases().unwrap();
    let brief: Vec<&Case> = all.iter().filter(|c| c.brief).collect();
    for realisation in
        [Realisation::Rows, Realisation::Fragments, Realisation::Tensors, Realisation::General]
    {
        assert!(brief.iter().any(|c| c.realisation == realisation), "{realisation:?}");
    }
    report(&complaints(&brief, &Build::ALL, false), brief.len());
}

#[test]
#[ignore = "minutes; `.ci/run` runs it"]
fn every_kernel() {
    if compiler().is_none() {
        return;
    }
    let all = cases().unwrap();
    let cases: Vec<&Case> = all.iter().collect();
    report(&complaints(&cases, &Build::ALL, false), cases.len());
}

/// Every legal product of the reference's search at full size in M and N, at its first, its last,
/// an edge and an interior group. Results only: the smaller cases of the same code are where the
/// sanitizers look.
#[test]
#[ignore = "minutes; `.ci/run` runs it"]
fn full_size_products_at_four_groups() {
    if compiler().is_none() {
        return;
    }
    let mut all = full_size_products("matrix-mpp-v2").unwrap();
    assert_eq!(all.len(), 145, "the legal candidates of the reference's search");
    // The other way to multiply.
    all.extend(full_size_products("matrix-simdgroup-v1").unwrap());
    let cases: Vec<&Case> = all.iter().collect();
    report(&complaints(&cases, &[Build::Plain], true), cases.len());
}

/// Names are unique: a launch finds its kernel by them.
#[test]
fn names_are_unique() {
    let all = cases().unwrap();
    let mut names: Vec<&str> = all.iter().map(|c| c.id.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all.len());
    eprintln!("{} cases, {} brief", all.len(), all.iter().filter(|c| c.brief).count());
}
