//! How much of what can be wrong with a text the emulation finds: faults of every kind at every
//! place of some kernels, and the list of those that nothing finds, each with the reason why it
//! does no harm (`mutants.txt`; TILEWRIGHT_BLESS=1 rewrites its numbers).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest, Sha256};
use tilewright_metal::cases::{Case, cases};

use crate::address;
use crate::build::{Build, Tool, clang, compiler, program};
use crate::mutate::{Mutant, OPERATORS, mutants};
use crate::selftest::{Example, LAYERNORM};
use crate::source::{Named, unit};
use crate::suite;

/// The kernels: every realisation, and a hand-written one that has shuffles.
const KERNELS: [&str; 8] = [
    "softmax-f32-2x300-t64-v2-u1-p1-reload",
    "log_softmax-f32-3x65-t64-v1-u1-p1-cache",
    "layernorm-bf16-3x769-t96-v4-u1-p1-reload",
    "gemm-f32-33x65x61-fragments-b32x32x32-t64",
    "gemm-bf16-64x64x64-fragments-b32x32x32-t64",
    "gemm-f32-33x65x61-tensors-b32x32x32-t64",
    "gemm-f32-64x64x64-tensors-b32x32x32-t64-bias-relu",
    "row_sum-f32-3x40-general",
];

/// Mutants per translation unit.
const BATCH: usize = 16;

/// What is mutated.
enum Subject {
    Case(Box<Case>),
    Example(Example),
}

impl Subject {
    fn name(&self) -> &str {
        match self {
            Subject::Case(case) => &case.id,
            Subject::Example(example) => example.name,
        }
    }

    fn text(&self) -> &str {
        match self {
            Subject::Case(case) => &case.module.text,
            Subject::Example(example) => example.text,
        }
    }

    /// Runs a mutant that is built under a name.
    fn check(&self, id: &str, program: &Path, build: Build) -> Result<(), String> {
        match self {
            Subject::Case(case) => {
                let mut case = case.as_ref().clone();
                case.id = id.to_string();
                suite::check(&case, program, build, suite::Scale { few: false, seconds: 10 })
            }
            Subject::Example(example) => example.check(id, program, build),
        }
    }
}

fn subjects() -> Vec<Subject> {
    let all = cases().unwrap();
    let mut found = Vec::new();
    for name in KERNELS {
        let case = all.iter().find(|c| c.id == name);
        found.push(Subject::Case(Box::new(
            case.unwrap_or_else(|| panic!("no case {name}")).clone(),
        )));
    }
    found.push(Subject::Example(LAYERNORM));
    found
}

/// What found a mutant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Killer {
    /// A compiler, or the check of address spaces.
    Compiler,
    /// A wrong result or a fault, in the plain build.
    Results,
    /// Address or undefined-behaviour sanitizer.
    Sanitizers,
    /// The race detector.
    Races,
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
    fn entry(&self) -> String {
        format!(
            "{}:{}: {}: {}",
            self.subject.name(),
            self.mutant.line,
            self.mutant.kind,
            self.mutant.what
        )
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

fn list() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emulation/mutants.txt")
}

/// The committed list.
#[derive(Default)]
struct Known {
    /// Reasons of survivors.
    reasons: BTreeMap<String, String>,
    /// Kernels with the hash of the text that was mutated.
    texts: BTreeMap<String, String>,
}

impl Known {
    fn read() -> Known {
        let text = std::fs::read_to_string(list()).unwrap_or_default();
        let mut known = Known::default();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(entry) = line.strip_prefix("survivor ") {
                let reason = lines.next().and_then(|l| l.strip_prefix("    harmless: "));
                known.reasons.insert(entry.to_string(), reason.unwrap_or("?").to_string());
            } else if let Some((name, rest)) =
                line.strip_prefix("kernel ").and_then(|l| l.split_once(", text "))
            {
                let hash = rest.split(':').next().unwrap_or("");
                known.texts.insert(name.to_string(), hash.to_string());
            }
        }
        known
    }

    /// Whether the list speaks of this text. One of an older text says little, and is to be
    /// renewed by `every_mutant`.
    fn speaks_of(&self, subject: &Subject) -> bool {
        let same = self.texts.get(subject.name()) == Some(&hash(subject.text()));
        if !same {
            eprintln!("{}: the text has changed since mutants.txt was made", subject.name());
        }
        same
    }
}

/// A short hash of a text.
fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(6).map(|b| format!("{b:02x}")).collect()
}

/// The list's text: numbers by kernel and by kind, then survivors.
fn summary(trials: &[Trial<'_>], reasons: &BTreeMap<String, String>) -> String {
    let mut out = String::from(
        "Mutants of emitted texts: what was tried, what found it, and what nothing found.\n\n",
    );
    let count = |test: &dyn Fn(&Trial<'_>) -> bool| trials.iter().filter(|t| test(t)).count();
    // Writing to a String cannot fail.
    let _ =
        writeln!(out, "all: {} mutants, {} killed", trials.len(), count(&|t| t.killer.is_some()));
    for killer in [Killer::Compiler, Killer::Results, Killer::Sanitizers, Killer::Races] {
        let _ = writeln!(out, "by {killer:?}: {}", count(&|t| t.killer == Some(killer)));
    }
    out.push('\n');
    let kernels: BTreeMap<&str, &str> =
        trials.iter().map(|t| (t.subject.name(), t.subject.text())).collect();
    for (name, text) in kernels {
        let mine = |t: &Trial<'_>| t.subject.name() == name;
        let killed = count(&|t| mine(t) && t.killer.is_some());
        let (hash, all) = (hash(text), count(&mine));
        let _ = writeln!(out, "kernel {name}, text {hash}: {all} mutants, {killed} killed");
    }
    out.push('\n');
    for (kind, _) in OPERATORS {
        let mine = |t: &Trial<'_>| t.mutant.kind == kind;
        let killed = count(&|t| mine(t) && t.killer.is_some());
        let _ = writeln!(out, "kind {kind}: {} mutants, {killed} killed", count(&mine));
    }
    out.push('\n');
    for trial in trials.iter().filter(|t| t.killer.is_none()) {
        let entry = trial.entry();
        let reason = reasons.get(&entry).map_or("?", String::as_str);
        let _ = writeln!(out, "survivor {entry}\n    harmless: {reason}");
    }
    out
}

/// All of them; the committed list is what comes out.
#[test]
#[ignore = "many minutes; run it when the emitter, the kernels or the emulator change"]
fn every_mutant() {
    let (Some(tool), Some(clang)) = (compiler(), clang()) else { return };
    let subjects = subjects();
    let mut trials = trials(&subjects);
    try_all(tool, clang, &mut trials);
    let text = summary(&trials, &Known::read().reasons);
    if std::env::var_os("TILEWRIGHT_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(list(), &text).unwrap();
    }
    let killed = trials.iter().filter(|t| t.killer.is_some()).count();
    assert!(killed * 100 >= trials.len() * 95, "{killed} of {} mutants are killed", trials.len());
    assert!(!text.contains("harmless: ?"), "survivors without a reason:\n{text}");
    assert_eq!(text, std::fs::read_to_string(list()).unwrap_or_default());
    let kinds: BTreeSet<&str> =
        trials.iter().filter(|t| t.killer.is_some()).map(|t| t.mutant.kind).collect();
    assert!(kinds.len() >= 20, "{} kinds", kinds.len());
}

/// Every so many of them: 95 % are killed, and a survivor is in the committed list unless that is
/// of an older text.
fn sample(step: usize, offset: usize) {
    let (Some(tool), Some(clang)) = (compiler(), clang()) else { return };
    let (subjects, known) = (subjects(), Known::read());
    let mut trials: Vec<Trial<'_>> =
        trials(&subjects).into_iter().skip(offset).step_by(step).collect();
    try_all(tool, clang, &mut trials);
    let survivors: Vec<&Trial<'_>> = trials.iter().filter(|t| t.killer.is_none()).collect();
    let strange: Vec<String> = survivors
        .iter()
        .filter(|t| !known.reasons.contains_key(&t.entry()) && known.speaks_of(t.subject))
        .map(|t| t.entry())
        .collect();
    assert!(strange.is_empty(), "these mutants survive:\n{}", strange.join("\n"));
    assert!(
        survivors.len() * 20 <= trials.len(),
        "{} of {} mutants survive",
        survivors.len(),
        trials.len()
    );
}

#[test]
#[ignore = "a minute; for CI once every survivor has its reason"]
fn a_sample_of_mutants() {
    sample(7, 3);
}

#[test]
#[ignore = "2 of its 13 mutants survive, and no reason is written yet"]
fn a_few_mutants() {
    sample(97, 11);
}

/// Every survivor of the list has a reason, and is one of the mutants of its text.
#[test]
fn the_list_is_of_these_mutants() {
    let (subjects, known) = (subjects(), Known::read());
    let entries: BTreeSet<String> = trials(&subjects).iter().map(Trial::entry).collect();
    for (entry, reason) in &known.reasons {
        assert!(!reason.contains('?'), "no reason: {entry}");
        let of = subjects.iter().find(|s| entry.starts_with(&format!("{}:", s.name())));
        let of = of.unwrap_or_else(|| panic!("no such kernel: {entry}"));
        assert!(entries.contains(entry) || !known.speaks_of(of), "no such mutant: {entry}");
    }
}
