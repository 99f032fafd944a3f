//! The study file: what to measure, how, and what counts as success.
//!
//! ```toml
//! name = "rows"
//! device = "cpu"
//! threads = 2
//!
//! [[family]]
//! ops = ["softmax", "rmsnorm"]
//! training = ["23x769", "128x2048"]
//! holdout = ["37x1537", "256x3072"]
//!
//! [search]
//! rounds = 3
//!
//! [acceptance]
//! regret_mean = 0.03
//! ```

use crate::canonical::sha256;
use crate::case::{Case, CaseFamily, CaseSet};
use crate::error::StudyError;
use crate::protocol::{Buffers, Finals, Protocol, Remeasure};
use crate::stats::VerdictRule;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tilewright_controls::{NAMES, runs_on};

/// Largest study file.
const MAX_BYTES: u64 = 1 << 20;

/// What selects the winner of a search.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// End-to-end batches.
    #[default]
    Batch,
    /// Batches of one call.
    Single,
    /// The device's own clock.
    Device,
    /// The policy's score; times are recorded and don't matter.
    Model,
}

impl Metric {
    /// The metric of labels and verdicts where this selects winners: scores are no times, and
    /// beside them batches are measured.
    pub fn of_labels(self) -> Metric {
        match self {
            Metric::Model => Metric::Batch,
            other => other,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    #[serde(default = "cpu")]
    device: String,
    isa: Option<String>,
    #[serde(default = "one")]
    threads: u32,
    #[serde(default)]
    family: Vec<FamilyFile>,
    #[serde(default)]
    space: Space,
    #[serde(default)]
    search: SearchFile,
    #[serde(default)]
    replay: ReplayFile,
    #[serde(default)]
    controls: Vec<String>,
    #[serde(default)]
    acceptance: Acceptance,
    #[serde(default)]
    quick: Quick,
}

fn cpu() -> String {
    "cpu".to_string()
}

fn one() -> u32 {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FamilyFile {
    ops: Vec<String>,
    #[serde(default = "f32")]
    dtype: String,
    trans: Option<String>,
    #[serde(default)]
    epilogue: Vec<String>,
    training: Vec<String>,
    #[serde(default)]
    holdout: Vec<String>,
}

fn f32() -> String {
    "f32".to_string()
}

/// Widths of a group that a study states without knowing the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Widths {
    /// Of rows on a CPU all widths that its vectors come in; elsewhere the target's default.
    All,
}

/// The part of the candidate space that is searched. What isn't stated is the target's default.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Space {
    /// Unroll factors of rows.
    pub unroll: Option<Vec<u32>>,
    /// Widths of a group.
    pub threads: Option<Vec<u32>>,
    /// The same for whatever CPU the study runs on. Not beside `threads`.
    pub widths: Option<Widths>,
    /// Vector widths of rows.
    pub vector: Option<Vec<u32>>,
    /// Programs per group.
    pub pack: Option<Vec<u32>>,
    /// Blocks of products on GPUs.
    pub blocks: Option<Vec<[u64; 3]>>,
    /// Most candidates that are measured in a case, spread evenly over the space; all legal ones
    /// if `None`.
    pub cap: Option<usize>,
    /// Measure only the incumbent policy's first candidates, as many as this: a shortlist. Not
    /// beside `cap`.
    pub top: Option<usize>,
}

impl Space {
    /// Checks the counts of candidates, and that nothing is stated twice.
    fn check(&self) -> Result<(), String> {
        if self.threads.is_some() && self.widths.is_some() {
            return Err("`space.threads` and `space.widths` exclude each other: `threads` lists \
                        widths, `widths` takes what the CPU has"
                .to_string());
        }
        if self.cap.is_some() && self.top.is_some() {
            return Err("`space.cap` and `space.top` exclude each other: `cap` spreads over the \
                        space, `top` takes the policy's first"
                .to_string());
        }
        for (name, value) in [("space.cap", self.cap), ("space.top", self.top)] {
            if value == Some(0) {
                return Err(format!("`{name}` must be at least 1, not 0"));
            }
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SearchFile {
    rounds: usize,
    most_rounds: Option<usize>,
    spread: f64,
    label_quantile: f64,
    final_rounds: Option<usize>,
    finalists: usize,
    interleaved: bool,
    samples: usize,
    single_samples: usize,
    sample_ms: f64,
    warmup_ms: f64,
    deadline_ms: u64,
    metric: Metric,
    shortlist: usize,
    rotate: usize,
}

impl Default for SearchFile {
    fn default() -> Self {
        SearchFile {
            rounds: 3,
            most_rounds: None,
            spread: 0.05,
            label_quantile: 0.5,
            final_rounds: None,
            finalists: 16,
            interleaved: false,
            samples: 3,
            single_samples: 0,
            sample_ms: 5.0,
            warmup_ms: 5.0,
            deadline_ms: 20_000,
            metric: Metric::Batch,
            shortlist: 8,
            rotate: 1,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ReplayFile {
    rounds: usize,
    samples: usize,
    single_samples: usize,
    sample_ms: f64,
    warmup_ms: f64,
    deadline_ms: u64,
    time_quantile: f64,
    interleaved: bool,
}

impl Default for ReplayFile {
    fn default() -> Self {
        ReplayFile {
            rounds: 14,
            samples: 9,
            single_samples: 9,
            sample_ms: 10.0,
            warmup_ms: 20.0,
            deadline_ms: 30_000,
            time_quantile: 0.5,
            interleaved: true,
        }
    }
}

/// What `--quick` changes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Quick {
    training: usize,
    holdout: usize,
    ops: usize,
    cap: usize,
    samples: usize,
    sample_ms: f64,
    warmup_ms: f64,
}

impl Default for Quick {
    fn default() -> Self {
        Quick {
            training: 5,
            holdout: 2,
            ops: 1,
            cap: 24,
            samples: 3,
            sample_ms: 1.0,
            warmup_ms: 1.0,
        }
    }
}

/// Limits that the results must keep. A rule that isn't stated isn't applied.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Acceptance {
    /// Mean regret of the challenger over hold-out cases, at most.
    pub regret_mean: Option<f64>,
    /// Largest regret of the challenger, at most.
    pub regret_max: Option<f64>,
    /// Mean regret of the best of the model's first three, at most.
    pub regret_top3: Option<f64>,
    /// Share of hold-out labels inside their interval, at least.
    pub coverage: Option<f64>,
    /// Median half-width of the intervals relative to the prediction, at most.
    pub half_width: Option<f64>,
    /// Share of hold-out cases in which the model abstains, at most.
    pub abstention: Option<f64>,
    /// Accepted challengers that lose beyond the floor, at most.
    pub guard_losers: Option<f64>,
    /// Share of wins beyond the floor that the guard accepts, at least.
    pub wins_kept: Option<f64>,
    /// Candidates measured in every training case, at least.
    pub candidates: Option<f64>,
    /// Smallest over training cases of the median label over the best label, at least.
    pub median_over_best: Option<f64>,
}

impl Acceptance {
    /// The stated rules: name, limit, whether the limit is the largest allowed value.
    pub fn rules(&self) -> Vec<(&'static str, f64, bool)> {
        [
            ("regret_mean", self.regret_mean, true),
            ("regret_max", self.regret_max, true),
            ("regret_top3", self.regret_top3, true),
            ("coverage", self.coverage, false),
            ("half_width", self.half_width, true),
            ("abstention", self.abstention, true),
            ("guard_losers", self.guard_losers, true),
            ("wins_kept", self.wins_kept, false),
            ("candidates", self.candidates, false),
            ("median_over_best", self.median_over_best, false),
        ]
        .into_iter()
        .filter_map(|(name, limit, largest)| limit.map(|l| (name, l, largest)))
        .collect()
    }
}

/// A study, checked.
#[derive(Clone, PartialEq, Debug)]
pub struct Study {
    /// Its name.
    pub name: String,
    /// The text of its file.
    pub text: String,
    /// Whether `--quick` was asked for.
    pub quick: bool,
    /// Device: `cpu`, `cuda:0`, …
    pub device: String,
    /// Forced instruction set of a CPU.
    pub isa: Option<String>,
    /// Most threads of a launch.
    pub threads: u32,
    /// Training cases, then hold-out cases.
    pub cases: Vec<Case>,
    /// Searched space.
    pub space: Space,
    /// Protocol of searches.
    pub search: Protocol,
    /// What selects a search's winner.
    pub metric: Metric,
    /// Largest shortlist.
    pub shortlist: usize,
    /// Protocol of replays.
    pub replay: Protocol,
    /// Controls by name.
    pub controls: Vec<String>,
    /// Acceptance rules.
    pub acceptance: Acceptance,
    /// When a verdict is given.
    pub verdict: VerdictRule,
}

impl Study {
    /// Reads a study file.
    ///
    /// # Errors
    /// It can't be read; a fault of its text, with line and column where TOML gives them.
    pub fn read(path: &Path, quick: bool) -> Result<Self, StudyError> {
        let size = std::fs::metadata(path).map_err(|e| StudyError::io("read", path, e))?.len();
        let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().to_string());
        if size > MAX_BYTES {
            let message = format!("{size} bytes, a study file has at most {MAX_BYTES}");
            return Err(StudyError::File { file: name, message });
        }
        let text = std::fs::read_to_string(path).map_err(|e| StudyError::io("read", path, e))?;
        Study::parse(&text, quick).map_err(|message| StudyError::File { file: name, message })
    }

    /// Parses the text of a study file.
    ///
    /// # Errors
    /// What is wrong, with its place.
    pub fn parse(text: &str, quick: bool) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_string())?;
        let sane = !file.name.is_empty()
            && file.name.len() <= 80
            && file.name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if !sane {
            return Err("`name` must be 1 to 80 of a-z A-Z 0-9 - _ .".to_string());
        }
        if file.threads == 0 {
            return Err("`threads` must be at least 1".to_string());
        }
        let cases = cases(&file, quick)?;
        let (s, r, q) = (&file.search, &file.replay, &file.quick);
        let ms = |name: &str, value: f64| -> Result<u64, String> {
            if (0.0..=600_000.0).contains(&value) {
                Ok((value * 1e6) as u64)
            } else {
                Err(format!("`{name}` must be 0 to 600000 milliseconds, not {value}"))
            }
        };
        let counts = [
            ("search.rounds", s.rounds, 1, 100),
            ("search.samples", s.samples, 1, 1000),
            ("search.single_samples", s.single_samples, 0, 1000),
            ("search.shortlist", s.shortlist, 1, 10_000),
            ("search.rotate", s.rotate, 1, 1000),
            ("search.finalists", s.finalists, 1, 1000),
            ("replay.rounds", r.rounds, 1, 1000),
            ("replay.samples", r.samples, 1, 1000),
            ("replay.single_samples", r.single_samples, 0, 1000),
        ];
        for (name, value, least, most) in counts {
            if !(least..=most).contains(&value) {
                return Err(format!("`{name}` must be {least} to {most}, not {value}"));
            }
        }
        if s.metric == Metric::Single && s.single_samples == 0 {
            return Err("metric `single` needs `search.single_samples`".to_string());
        }
        if s.metric == Metric::Device && file.device == "cpu" {
            return Err("metric `device` needs a device with a clock of its own, not `cpu`".into());
        }
        if !(s.spread > 0.0 && s.spread <= 1.0) {
            return Err(format!("`search.spread` must be above 0 and at most 1, not {}", s.spread));
        }
        for (name, q) in
            [("search.label_quantile", s.label_quantile), ("replay.time_quantile", r.time_quantile)]
        {
            if !(0.1..=0.75).contains(&q) {
                return Err(format!("`{name}` must be 0.1 to 0.75, not {q}"));
            }
        }
        let unlike_median = |q: f64| (q != 0.5).then_some(q);
        let remeasure = match s.most_rounds {
            Some(most) if most < s.rounds || most > 100 => {
                return Err(format!(
                    "`search.most_rounds` must be `search.rounds` ({}) to 100, not {most}",
                    s.rounds
                ));
            }
            Some(most) if most > s.rounds => Some(Remeasure { rounds: most, spread: s.spread }),
            _ => None,
        };
        let finals = match s.final_rounds {
            Some(rounds) if rounds < s.rounds || rounds > 100 => {
                return Err(format!(
                    "`search.final_rounds` must be `search.rounds` ({}) to 100, not {rounds}",
                    s.rounds
                ));
            }
            Some(rounds) if rounds > s.rounds => Some(Finals { rounds, candidates: s.finalists }),
            _ => None,
        };
        let buffers = if s.rotate > 1 { Buffers::Rotated } else { Buffers::Warm };
        let mut search = Protocol {
            warmup_ns: ms("search.warmup_ms", s.warmup_ms)?,
            sample_ns: ms("search.sample_ms", s.sample_ms)?,
            samples: s.samples,
            single_samples: s.single_samples,
            rounds: s.rounds,
            deadline_ms: s.deadline_ms,
            buffers,
            sets: s.rotate,
            interleaved: s.interleaved,
            label_quantile: unlike_median(s.label_quantile),
            remeasure,
            finals,
            time_quantile: None,
        };
        let mut replay = Protocol {
            warmup_ns: ms("replay.warmup_ms", r.warmup_ms)?,
            sample_ns: ms("replay.sample_ms", r.sample_ms)?,
            samples: r.samples,
            single_samples: r.single_samples,
            rounds: r.rounds,
            deadline_ms: r.deadline_ms,
            buffers,
            sets: s.rotate,
            interleaved: r.interleaved,
            label_quantile: None,
            remeasure: None,
            finals: None,
            time_quantile: unlike_median(r.time_quantile),
        };
        let mut space = file.space.clone();
        space.check()?;
        if quick {
            for protocol in [&mut search, &mut replay] {
                protocol.warmup_ns = protocol.warmup_ns.min(ms("quick.warmup_ms", q.warmup_ms)?);
                protocol.sample_ns = protocol.sample_ns.min(ms("quick.sample_ms", q.sample_ms)?);
                protocol.samples = protocol.samples.min(q.samples.max(1));
                protocol.single_samples = protocol.single_samples.min(q.samples);
            }
            let most = q.cap.max(1);
            match &mut space.top {
                Some(top) => *top = (*top).min(most),
                None => space.cap = Some(space.cap.map_or(most, |c| c.min(most))),
            }
        }
        check_controls(&file)?;
        Ok(Study {
            name: file.name,
            text: text.to_string(),
            quick,
            device: file.device,
            isa: file.isa,
            threads: file.threads,
            cases,
            space,
            search,
            metric: s.metric,
            shortlist: s.shortlist,
            replay,
            controls: file.controls,
            acceptance: file.acceptance,
            verdict: VerdictRule::default(),
        })
    }

    /// Hash of the file as it is kept in a record.
    pub fn hash(&self) -> String {
        sha256(self.text.as_bytes())
    }

    /// Cases of a set, in order.
    pub fn set(&self, set: CaseSet) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(move |c| c.set == set)
    }
}

/// The device is of a known kind; controls are known, listed once, and run on it.
fn check_controls(file: &File) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    let kind = file.device.split(':').next().unwrap_or_default();
    if !["cpu", "cuda", "metal"].contains(&kind) {
        return Err(format!("unknown device `{}`: use cpu, cuda, cuda:N or metal", file.device));
    }
    for name in &file.controls {
        if !NAMES.contains(&name.as_str()) {
            return Err(format!("unknown control `{name}`: use {}", NAMES.join(", ")));
        }
        if !seen.insert(name) {
            return Err(format!("control `{name}` is listed twice"));
        }
        if !runs_on(name, kind) {
            return Err(format!("control `{name}` doesn't run on the study's device `{kind}`"));
        }
    }
    Ok(())
}

/// Shapes of a family in a set. A quick run looks at no hold-out shape while training shapes are
/// left to stand in for them: a hold-out that trials have seen isn't one.
fn shapes<'a>(
    file: &File,
    family: &'a FamilyFile,
    set: CaseSet,
    quick: bool,
) -> Box<dyn Iterator<Item = &'a String> + 'a> {
    let (training, holdout) = (family.training.iter(), family.holdout.iter());
    let most = file.quick.training.max(1);
    match (set, quick) {
        (CaseSet::Training, false) => Box::new(training),
        (CaseSet::Training, true) => Box::new(training.take(most)),
        (CaseSet::Holdout, true) if !family.holdout.is_empty() => {
            Box::new(training.skip(most).chain(holdout).take(file.quick.holdout.max(1)))
        }
        (CaseSet::Holdout, _) => Box::new(holdout),
    }
}

fn cases(file: &File, quick: bool) -> Result<Vec<Case>, String> {
    if file.family.is_empty() {
        return Err("there is no [[family]]".to_string());
    }
    let mut cases: Vec<Case> = Vec::new();
    for set in [CaseSet::Training, CaseSet::Holdout] {
        let mut ordinal = 0;
        for family in &file.family {
            let ops = if quick { file.quick.ops.max(1) } else { usize::MAX };
            for shape in shapes(file, family, set, quick) {
                for op in family.ops.iter().take(ops) {
                    let mut case = Case::new(op, &family.dtype, shape, set, file.threads)?;
                    case.set_options(family.trans.as_deref(), &family.epilogue)?;
                    case.ordinal = ordinal;
                    ordinal += 1;
                    cases.push(case);
                }
            }
        }
    }
    let mut trained: BTreeMap<CaseFamily, BTreeSet<&[u64]>> = BTreeMap::new();
    for case in cases.iter().filter(|c| c.set == CaseSet::Training) {
        trained.entry(case.family).or_default().insert(&case.shape);
    }
    let spilled = |case: &&Case| {
        case.set == CaseSet::Holdout
            && trained.get(&case.family).is_some_and(|s| s.contains(&case.shape[..]))
    };
    if let Some(both) = cases.iter().find(spilled) {
        return Err(format!("the shape of hold-out case {} is a training shape, too", both.id));
    }
    let mut ids = BTreeSet::new();
    if let Some(twice) = cases.iter().find(|c| !ids.insert(&c.id)) {
        return Err(format!("case {} occurs twice", twice.id));
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = \"t\"\nthreads = 2\n[[family]]\nops = [\"softmax\", \"rmsnorm\"]\n\
        training = [\"3x7\", \"4x8\"]\nholdout = [\"5x9\"]\n[[family]]\nops = [\"gemm\"]\n\
        training = [\"3x7x2\"]\nholdout = [\"8x8x8\"]\n[acceptance]\nregret_mean = 0.03\n";

    #[test]
    fn a_study_has_its_cases_in_order() {
        let study = Study::parse(TEXT, false).unwrap();
        let ids: Vec<&str> = study.cases.iter().map(|c| c.id.as_str()).collect();
        let expected = [
            "softmax-f32-3x7",
            "rmsnorm-f32-3x7",
            "softmax-f32-4x8",
            "rmsnorm-f32-4x8",
            "gemm-f32-3x7x2",
            "softmax-f32-5x9",
            "rmsnorm-f32-5x9",
            "gemm-f32-8x8x8",
        ];
        assert_eq!(ids, expected);
        assert_eq!(study.cases[7].ordinal, 2);
        assert_eq!(study.acceptance.rules(), [("regret_mean", 0.03, true)]);
        assert_eq!(study.hash(), sha256(TEXT.as_bytes()));
        assert!(Study::parse(TEXT, true).unwrap().cases.len() < study.cases.len());
    }

    #[test]
    fn shipped_studies_are_studies() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies");
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            for quick in [false, true] {
                let study = Study::read(&entry.as_ref().unwrap().path(), quick).unwrap();
                // One that is only searched has no hold-out.
                assert!(study.set(CaseSet::Training).count() > 0, "{}", study.name);
                names.push(study.name);
            }
        }
        assert!(names.iter().any(|name| name.starts_with("cuda")), "{names:?}");
    }

    /// The rule that the study file states, word by word.
    #[test]
    fn hold_out_shapes_follow_their_rule() {
        use crate::canonical::derive;
        let draw = |text: String, low: f64, high: f64| {
            let u = derive(&text) as f64 / 2f64.powi(64);
            (low * (high / low).powf(u) + 0.5).floor() as u64
        };
        let round_up =
            |i: u64, n: u64| if i.is_multiple_of(2) { n.next_multiple_of(16) } else { n };
        let attempt = |family: &str, set: u64, i: u64| -> Option<Vec<u64>> {
            let draw = |name: &str, low, high| {
                draw(format!("cpu-rows-gemm/{set}/{family}/{i}/{name}"), low, high)
            };
            let (shape, range) = if family == "rows" {
                let columns = round_up(i, draw("columns", 33.0, 16384.0));
                (vec![draw("rows", 1.0, 2048.0), columns], 6_000..=300_000)
            } else {
                let n = round_up(i, draw("n", 32.0, 1500.0));
                (vec![draw("m", 1.0, 1024.0), n, draw("k", 32.0, 2000.0)], 32_768..=512u64.pow(3))
            };
            range.contains(&shape.iter().product()).then_some(shape)
        };
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies/cpu-rows-gemm.toml");
        let text = std::fs::read_to_string(path).unwrap();
        let number = text.split("is set ").nth(1).and_then(|t| t.split('.').next()).unwrap();
        let study = Study::parse(&text, false).unwrap();
        for (name, family) in [("rows", CaseFamily::Rows), ("gemm", CaseFamily::Matrix)] {
            let of = |set| {
                let cases = study.set(set).filter(|c| c.family == family);
                let mut shapes: Vec<Vec<u64>> = cases.map(|c| c.shape.clone()).collect();
                shapes.dedup();
                shapes
            };
            // Set 1 is older than the rule.
            let mut used = of(CaseSet::Training);
            let spent = text.lines().filter(|l| l.starts_with("#   ")).flat_map(|l| l.split(' '));
            used.extend(spent.filter_map(|word| {
                word.split('x').map(|n| n.parse().ok()).collect::<Option<Vec<u64>>>()
            }));
            let mut due = Vec::new();
            for set in 2..=number.parse().unwrap() {
                due.clear();
                for shape in (0..).filter_map(|i| attempt(name, set, i)) {
                    if !used.contains(&shape) {
                        used.push(shape.clone());
                        due.push(shape);
                    }
                    if due.len() == 12 {
                        break;
                    }
                }
            }
            assert_eq!(of(CaseSet::Holdout), due, "{name}");
        }
    }

    #[test]
    fn a_quick_study_holds_out_training_shapes_as_long_as_there_are_any() {
        let text = "name = \"t\"\n[[family]]\nops = [\"softmax\"]\n\
            training = [\"3x7\", \"4x8\", \"5x9\"]\nholdout = [\"6x10\", \"7x11\"]\n";
        let shapes = |training: usize| {
            let text = format!("{text}[quick]\ntraining = {training}\n");
            let study = Study::parse(&text, true).unwrap();
            let of = |set| study.set(set).map(|c| c.shape[0]).collect::<Vec<_>>();
            (of(CaseSet::Training), of(CaseSet::Holdout))
        };
        assert_eq!(shapes(1), (vec![3], vec![4, 5]));
        assert_eq!(shapes(2), (vec![3, 4], vec![5, 6]));
        assert_eq!(shapes(3), (vec![3, 4, 5], vec![6, 7]));
        let searched = text.replace("holdout = [\"6x10\", \"7x11\"]\n", "");
        let study = Study::parse(&searched, true).unwrap();
        assert_eq!(study.set(CaseSet::Holdout).count(), 0);
    }

    #[test]
    fn a_quick_study_shortens_the_shortlist_or_the_cap() {
        let counts = |space: &str| {
            let text = format!("{TEXT}[space]\n{space}\n[quick]\ncap = 5\n");
            let space = Study::parse(&text, true).unwrap().space;
            (space.cap, space.top)
        };
        assert_eq!(counts(""), (Some(5), None));
        assert_eq!(counts("cap = 3"), (Some(3), None));
        assert_eq!(counts("cap = 7"), (Some(5), None));
        assert_eq!(counts("top = 3"), (None, Some(3)));
        assert_eq!(counts("top = 7"), (None, Some(5)));
    }

    #[test]
    fn further_rounds_are_only_where_there_are_more_than_planned() {
        let further = |search: &str| {
            Study::parse(&format!("{TEXT}[search]\n{search}\n"), false).unwrap().search.remeasure
        };
        assert_eq!(further("rounds = 5"), None);
        assert_eq!(further("rounds = 5\nmost_rounds = 5"), None);
        let some = further("rounds = 5\nmost_rounds = 9\nspread = 0.1");
        assert_eq!(some, Some(Remeasure { rounds: 9, spread: 0.1 }));
        let finals = |search: &str| {
            let text = format!("{TEXT}[search]\n{search}\n[replay]\ntime_quantile = 0.2\n");
            let study = Study::parse(&text, false).unwrap();
            assert_eq!((study.replay.time_quantile, study.search.time_quantile), (Some(0.2), None));
            (study.search.finals, study.search.most_rounds())
        };
        assert_eq!(finals("rounds = 5"), (None, 5));
        assert_eq!(finals("rounds = 5\nfinal_rounds = 5"), (None, 5));
        let (some, most) = finals("rounds = 5\nfinal_rounds = 12\nfinalists = 7\nmost_rounds = 9");
        assert_eq!((some, most), (Some(Finals { rounds: 12, candidates: 7 }), 12));
    }

    #[test]
    fn faults_are_named_with_their_place() {
        let fault = |from: &str, to: &str| {
            assert!(TEXT.contains(from));
            Study::parse(&TEXT.replacen(from, to, 1), false).unwrap_err()
        };
        let error = fault("threads = 2", "treads = 2");
        assert!(error.contains("line 2") && error.contains("treads"), "{error}");
        assert!(fault("\"3x7\"", "\"3y7\"").contains("3y7"));
        assert!(fault("\"softmax\"", "\"softmix\"").contains("softmix"));
        assert!(fault("\"5x9\"", "\"3x7\"").contains("training shape"));
        assert!(fault("\"4x8\"", "\"3x7\"").contains("twice"));
        assert!(fault("name = \"t\"", "name = \"../t\"").contains("name"));
        assert!(fault("threads = 2", "threads = 0").contains("threads"));
        assert!(fault("[acceptance]", "[search]\nrounds = 0\n[acceptance]").contains("rounds"));
        for (search, word) in [
            ("rounds = 5\nmost_rounds = 4", "`search.rounds` (5) to 100, not 4"),
            ("spread = 0.0", "above 0"),
            ("spread = nan", "above 0"),
            ("label_quantile = 0.09", "0.1 to 0.75, not 0.09"),
            ("rounds = 5\nfinal_rounds = 4", "`search.rounds` (5) to 100, not 4"),
            ("finalists = 0", "`search.finalists` must be 1 to 1000, not 0"),
        ] {
            let error = fault("[acceptance]", &format!("[search]\n{search}\n[acceptance]"));
            assert!(error.contains(word), "{error}");
        }
        let both = fault("[acceptance]", "[space]\ncap = 4\ntop = 4\n[acceptance]");
        assert!(both.contains("exclude"), "{both}");
        let both = fault("[acceptance]", "[space]\nthreads = [8]\nwidths = \"all\"\n[acceptance]");
        assert!(both.contains("exclude") && both.contains("`space.widths`"), "{both}");
        assert!(fault("[acceptance]", "[space]\nwidths = \"most\"\n[acceptance]").contains("most"));
        for name in ["cap", "top"] {
            let zero = fault("[acceptance]", &format!("[space]\n{name} = 0\n[acceptance]"));
            assert!(zero.contains(&format!("`space.{name}` must be at least 1")), "{zero}");
        }
        assert!(Study::parse("name = \"t\"", false).unwrap_err().contains("family"));
        let control =
            |names: &str| fault("threads = 2", &format!("threads = 2\ncontrols = [{names}]"));
        assert!(control("\"cudnn\"").contains("unknown control `cudnn`"));
        assert!(control("\"mkl\", \"mkl\"").contains("twice"));
        assert!(control("\"cublas\"").contains("doesn't run on the study's device `cpu`"));
    }
}
