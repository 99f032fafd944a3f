//! How much of what can be wrong with a text the emulation finds: faults of every kind at every
//! place of some kernels, and the list of those that nothing finds, each with the reason why it
//! does no harm (`mutants.txt`, read and written by [`crate::survivors`]).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tilewright_metal::cases::{Case, cases};

use crate::address;
use crate::build::{Build, Tool, clang, compiler, program};
use crate::mutate::{Mutant, mutants};
use crate::selftest::{Example, LAYERNORM};
use crate::source::{Named, unit};
use crate::suite;
use crate::survivors::{Entry, Killer, List, Section, hash};

/// The kernels: every realisation, and a hand-written one that has shuffles.
const KERNELS: [&str; 10] = [
    "softmax-f32-2x301-t64-v2-u1-p1-reload",
    "log_softmax-f32-3x65-t64-v1-u1-p1-cache",
    "layernorm-bf16-3x769-t96-v4-u1-p1-reload",
    "layernorm-f32-2x300-t64-v2-u1-p1-reload",
    "gemm-f32-33x65x61-fragments-b32x32x32-t64",
    "gemm-bf16-64x64x64-fragments-b32x32x32-t64",
    "gemm-f32-33x65x61-tensors-b32x32x32-t64",
    "gemm-f32-64x64x64-tensors-b32x32x32-t64-bias-relu",
    "row_sum-f32-3x40-general",
    "row_max-f32-3x303-generic",
];

/// Mutants per translation unit.
const BATCH: usize = 16;

/// What is mutated.
enum Subject {
    /// A kernel with the sizes that it is launched on: one of a launch's own sizes has several.
    Cases(Vec<Case>),
    Example(Example),
}

impl Subject {
    fn name(&self) -> &str {
        match self {
            Subject::Cases(cases) => &cases[0].id,
            Subject::Example(example) => example.name,
        }
    }

    fn text(&self) -> &str {
        match self {
            Subject::Cases(cases) => &cases[0].module.text,
            Subject::Example(example) => example.text,
        }
    }

    /// Runs a mutant that is built under a name.
    fn check(&self, id: &str, program: &Path, build: Build) -> Result<(), String> {
        match self {
            Subject::Cases(cases) => cases.iter().try_for_each(|case| {
                let case = Case { id: id.to_string(), ..case.clone() };
                let scale = suite::Scale { few: false, thorough: true, seconds: 3 };
                suite::check(&case, program, build, scale)
            }),
            Subject::Example(example) => example.check(id, program, build),
        }
    }
}

fn subjects() -> Vec<Subject> {
    let all = cases().unwrap();
    let mut found = Vec::new();
    for name in KERNELS {
        let first = all.iter().find(|c| c.id == name).unwrap_or_else(|| panic!("no case {name}"));
        let others = all.iter().filter(|c| c.id != name && c.module == first.module);
        found.push(Subject::Cases([first].into_iter().chain(others).cloned().collect()));
    }
    found.push(Subject::Example(LAYERNORM));
    found
}

/// A mutant of a subject, and what became of it.
struct Trial<'a> {
    subject: &'a Subject,
    mutant: Mutant,
    id: String,
    killer: Option<Killer>,
}

impl Trial<'_> {
    /// What the committed list calls it.
    fn entry(&self) -> Entry {
        let Mutant { line, kind, what, .. } = &self.mutant;
        Entry { line: *line, kind: kind.to_string(), what: what.clone() }
    }
}

/// Runs `work` on the parts, on all cores.
fn in_parallel<T: Send>(parts: Vec<T>, work: impl Fn(T) + Sync) {
    let workers = std::thread::available_parallelism().map_or(2, |n| n.get());
    let parts: Vec<Mutex<Option<T>>> = parts.into_iter().map(|p| Mutex::new(Some(p))).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Some(part) = part.lock().unwrap().take() {
                        work(part);
                    }
                }
            });
        }
    });
}

/// Builds what compiles of some mutants; those that don't are killed.
fn build(tool: &Tool, trials: &mut [&mut Trial<'_>], build: Build) -> Option<PathBuf> {
    loop {
        let alive: Vec<Named<'_>> = trials
            .iter()
            .filter(|t| t.killer.is_none())
            .map(|t| Named { id: t.id.clone(), text: &t.mutant.text })
            .collect();
        if alive.is_empty() {
            return None;
        }
        let alone = alive.len() == 1;
        let message = match unit(&alive).and_then(|text| program(tool, &text, build)) {
            Ok(program) => return Some(program),
            Err(message) => message,
        };
        let mut blamed = 0;
        for trial in trials.iter_mut().filter(|t| t.killer.is_none()) {
            // A message names the file that the text was said to be, or the kernel.
            let named = [
                format!("{}.metal:", trial.id),
                format!("{}: ", trial.id),
                format!("{}:", trial.id),
            ];
            if alone || named.iter().any(|n| message.contains(n.as_str())) {
                trial.killer = Some(Killer::Compiler);
                blamed += 1;
            }
        }
        assert!(blamed > 0, "a build fails and no mutant is to blame:\n{message}");
    }
}

/// Tries everything on the mutants, the cheap things first.
fn try_all(tool: &Tool, clang: &Tool, trials: &mut [Trial<'_>]) {
    in_parallel(trials.chunks_mut(BATCH).collect(), |batch: &mut [Trial<'_>]| {
        for trial in batch {
            if address::check(clang, &trial.mutant.text).is_err() {
                trial.killer = Some(Killer::Compiler);
            }
        }
    });
    for (stage, killer) in [
        (Build::Plain, Killer::Results),
        (Build::Checked, Killer::Sanitizers),
        (Build::Races, Killer::Races),
    ] {
        let mut alive: Vec<&mut Trial<'_>> =
            trials.iter_mut().filter(|t| t.killer.is_none()).collect();
        alive.sort_by_key(|t| t.subject.name());
        let batches = alive.chunks_mut(BATCH).collect();
        in_parallel(batches, |batch: &mut [&mut Trial<'_>]| {
            let Some(program) = build(tool, batch, stage) else { return };
            for trial in batch.iter_mut().filter(|t| t.killer.is_none()) {
                if trial.subject.check(&trial.id, &program, stage).is_err() {
                    trial.killer = Some(killer);
                }
            }
            let _ = std::fs::remove_file(program);
        });
    }
}

fn trials(subjects: &[Subject]) -> Vec<Trial<'_>> {
    let mut all = Vec::new();
    for (s, subject) in subjects.iter().enumerate() {
        for (m, mutant) in mutants(subject.text()).into_iter().enumerate() {
            all.push(Trial { subject, mutant, id: format!("mutant-{s}-{m}"), killer: None });
        }
    }
    all
}

/// What became of the mutants of one kernel; survivors have the reasons of the committed list.
fn section(subject: &Subject, trials: &[Trial<'_>], known: &List) -> Section {
    let mut section = Section::new(subject.name(), hash(subject.text()));
    for trial in trials {
        section.count(trial.mutant.kind, trial.killer);
        if trial.killer.is_none() {
            let entry = trial.entry();
            let reason = known.reason(subject.name(), subject.text(), &entry);
            section.survivors.push((entry, reason.unwrap_or("?").to_string()));
        }
    }
    section
}

/// All mutants, kernel by kernel: exactly those of the committed list survive, each with its
/// reason. `TILEWRIGHT_MUTATE` names the kernels to take, by a part of their names; with
/// `TILEWRIGHT_BLESS=1` what comes out replaces what the list says of them.
#[test]
#[ignore = "minutes; run it when the emitter, the kernels or the emulator change"]
fn every_mutant() {
    let (Some(tool), Some(clang)) = (compiler(), clang()) else { return };
    let bless = std::env::var_os("TILEWRIGHT_BLESS").is_some_and(|v| v == "1");
    let asked = std::env::var("TILEWRIGHT_MUTATE").unwrap_or_default();
    let mut list = List::read();
    let subjects = subjects();
    let exact = subjects.iter().any(|s| s.name() == asked);
    let wanted = |name: &str| if exact { name == asked } else { name.contains(&asked) };
    for subject in subjects.iter().filter(|s| wanted(s.name())) {
        let start = std::time::Instant::now();
        let mut trials = trials(std::slice::from_ref(subject));
        try_all(tool, clang, &mut trials);
        let found = section(subject, &trials, &list);
        eprintln!("{}: {} in {:.0?}", found.name, found.total(), start.elapsed());
        if bless {
            list.put(found);
            list.sections.retain(|section| subjects.iter().any(|s| s.name() == section.name));
            list.write();
        } else {
            let committed = list.sections.iter().find(|s| s.name == found.name);
            assert_eq!(Some(&found), committed, "what mutants.txt says of this kernel is old");
        }
    }
    list.judge();
}

/// Every so many mutants of each kernel: what survives is in the committed list.
fn sample(step: usize, offset: usize) {
    let (Some(tool), Some(clang)) = (compiler(), clang()) else { return };
    let (subjects, known) = (subjects(), List::read());
    let mut trials: Vec<Trial<'_>> =
        trials(&subjects).into_iter().skip(offset).step_by(step).collect();
    try_all(tool, clang, &mut trials);
    let strange: Vec<String> = trials
        .iter()
        .filter(|t| t.killer.is_none())
        .filter(|t| known.reason(t.subject.name(), t.subject.text(), &t.entry()).is_none())
        .map(|t| format!("{}:{}", t.subject.name(), t.entry()))
        .collect();
    assert!(
        strange.is_empty(),
        "these mutants survive, and no reason is known:\n{}",
        strange.join("\n")
    );
}

#[test]
#[ignore = "a minute or two; `.ci/run` runs it"]
fn a_sample_of_mutants() {
    sample(7, 3);
}

#[test]
fn a_few_mutants() {
    sample(97, 11);
}

/// The list speaks of these kernels, every survivor in it has a reason and is one of the mutants
/// of its text, and enough are killed, of enough kinds.
#[test]
fn the_list_is_of_these_mutants() {
    let (subjects, list) = (subjects(), List::read());
    list.judge();
    let names: Vec<&str> = subjects.iter().map(Subject::name).collect();
    for section in &list.sections {
        assert!(names.contains(&section.name.as_str()), "no such kernel: {}", section.name);
    }
    for subject in &subjects {
        let name = subject.name();
        let section = list.sections.iter().find(|s| s.name == name);
        let section = section.unwrap_or_else(|| panic!("mutants.txt doesn't speak of {name}"));
        if section.text != hash(subject.text()) {
            eprintln!("{name}: the text has changed since mutants.txt was made; renew it");
            continue;
        }
        let trials = trials(std::slice::from_ref(subject));
        assert_eq!(section.total().mutants(), trials.len(), "{name}: the operators have changed");
        let entries: BTreeSet<Entry> = trials.iter().map(Trial::entry).collect();
        for (entry, _) in &section.survivors {
            assert!(entries.contains(entry), "{name}: no such mutant: {entry}");
        }
    }
}
