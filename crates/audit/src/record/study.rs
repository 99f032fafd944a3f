//! study.toml, read as `docs/formats/study.md` says: the cases, protocols and rules that a record of it
//! must have.

use super::types::{Finals, Protocol, Remeasure};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Largest setting in milliseconds.
const MAX_MS: f64 = 600_000.0;

/// Names of the acceptance rules.
pub const ACCEPTANCE: [&str; 10] = [
    "regret_mean",
    "regret_max",
    "regret_top3",
    "coverage",
    "half_width",
    "abstention",
    "guard_losers",
    "wins_kept",
    "candidates",
    "median_over_best",
];

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    #[serde(default = "cpu")]
    device: String,
    #[serde(default)]
    isa: Option<String>,
    #[serde(default = "one")]
    threads: u64,
    #[serde(default)]
    family: Vec<Block>,
    #[serde(default)]
    space: Space,
    #[serde(default)]
    search: Settings,
    #[serde(default)]
    replay: Settings,
    #[serde(default)]
    controls: Vec<String>,
    #[serde(default)]
    acceptance: BTreeMap<String, f64>,
    #[serde(default)]
    quick: Quick,
}

fn cpu() -> String {
    "cpu".to_string()
}

fn one() -> u64 {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Block {
    ops: Vec<String>,
    #[serde(default = "f32")]
    dtype: String,
    #[serde(default)]
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

/// The searched space.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Space {
    pub unroll: Option<Vec<u64>>,
    pub threads: Option<Vec<u64>>,
    pub widths: Option<String>,
    pub vector: Option<Vec<u64>>,
    pub pack: Option<Vec<u64>>,
    pub blocks: Option<Vec<[u64; 3]>>,
    pub cap: Option<u64>,
    pub top: Option<u64>,
}

/// The tables `search` and `replay`. `most_rounds`, `spread`, `label_quantile`, `final_rounds`, `finalists`, `metric`,
/// `shortlist` and `rotate` are of the first alone, `time_quantile` of the second.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    rounds: Option<usize>,
    most_rounds: Option<usize>,
    spread: Option<f64>,
    label_quantile: Option<f64>,
    final_rounds: Option<usize>,
    finalists: Option<usize>,
    time_quantile: Option<f64>,
    samples: Option<usize>,
    single_samples: Option<usize>,
    sample_ms: Option<f64>,
    warmup_ms: Option<f64>,
    deadline_ms: Option<u64>,
    metric: Option<String>,
    shortlist: Option<u64>,
    rotate: Option<u64>,
    interleaved: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Quick {
    training: usize,
    holdout: usize,
    ops: usize,
    cap: u64,
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

/// A case that the file asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct DueCase {
    pub id: String,
    pub family: &'static str,
    pub op: String,
    pub dtype: String,
    pub shape: Vec<u64>,
    pub trans: Option<String>,
    pub epilogue: Vec<String>,
    pub threads: u64,
}

/// What a record of the study must have.
#[derive(Clone, PartialEq, Debug)]
#[expect(missing_docs, reason = "the format names the fields")]
pub struct Study {
    pub name: String,
    pub device: String,
    pub isa: Option<String>,
    pub training: Vec<DueCase>,
    pub holdout: Vec<DueCase>,
    pub space: Space,
    pub search: Protocol,
    pub replay: Protocol,
    pub metric: String,
    pub shortlist: u64,
    pub controls: Vec<String>,
    pub acceptance: BTreeMap<String, f64>,
}

impl Study {
    /// Reads the file as a record that is `quick` or not was made from it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str, quick: bool) -> Result<Study, String> {
        let file: File = toml::from_str(text).map_err(|e| e.message().to_string())?;
        if file.name.is_empty() || file.family.is_empty() {
            return Err("it has no name or no [[family]]".to_string());
        }
        if let Some(unknown) = file.acceptance.keys().find(|k| !ACCEPTANCE.contains(&k.as_str())) {
            return Err(format!("there is no acceptance rule {unknown:?}"));
        }
        let (search, replay) = (&file.search, &file.replay);
        let misplaced = replay.metric.is_some()
            || replay.shortlist.is_some()
            || replay.rotate.is_some()
            || replay.most_rounds.is_some()
            || replay.spread.is_some()
            || replay.label_quantile.is_some()
            || replay.final_rounds.is_some()
            || replay.finalists.is_some();
        if misplaced {
            return Err("a setting of `search` in `replay`".to_string());
        }
        if search.time_quantile.is_some() {
            return Err("a setting of `replay` in `search`".to_string());
        }
        let sets = search.rotate.unwrap_or(1);
        let q = quick.then_some(&file.quick);
        Ok(Study {
            training: cases(&file, true, quick)?,
            holdout: cases(&file, false, quick)?,
            space: space(&file.space, q)?,
            search: search.protocol(
                [3, 3, 0],
                [5.0, 5.0],
                20_000,
                search.interleaved.unwrap_or(false),
                sets,
                q,
            )?,
            replay: replay.protocol(
                [14, 9, 9],
                [10.0, 20.0],
                30_000,
                replay.interleaved.unwrap_or(true),
                sets,
                q,
            )?,
            metric: search.metric.clone().unwrap_or_else(|| "batch".to_string()),
            shortlist: search.shortlist.unwrap_or(8),
            controls: file.controls,
            acceptance: file.acceptance,
            name: file.name,
            device: file.device,
            isa: file.isa,
        })
    }
}

fn nanoseconds(ms: f64) -> Result<u64, String> {
    match (0.0..=MAX_MS).contains(&ms) {
        true => Ok((ms * 1e6) as u64),
        false => Err(format!("{ms} milliseconds")),
    }
}

impl Settings {
    /// The protocol; `counts` are the defaults of rounds, samples and single samples, `times`
    /// those of sample and warm-up in milliseconds.
    fn protocol(
        &self,
        counts: [usize; 3],
        times: [f64; 2],
        deadline_ms: u64,
        interleaved: bool,
        sets: u64,
        quick: Option<&Quick>,
    ) -> Result<Protocol, String> {
        let rounds = self.rounds.unwrap_or(counts[0]);
        let spread = self.spread.unwrap_or(0.05);
        let most = self.most_rounds.unwrap_or(rounds);
        let quantile = |q: Option<f64>, what: &str| match q.unwrap_or(0.5) {
            0.5 => Ok(None),
            q if (0.1..=0.75).contains(&q) => Ok(Some(q)),
            q => Err(format!("{what} are the quantile {q}")),
        };
        let finals = self.final_rounds.unwrap_or(rounds);
        if finals < rounds || finals > 100 || self.finalists == Some(0) {
            return Err(format!("{finals} rounds of finalists, of {rounds}"));
        }
        if most < rounds || most > 100 || !(spread > 0.0 && spread <= 1.0) {
            return Err(format!("{most} rounds at most, of {rounds}, at a spread of {spread}"));
        }
        let mut protocol = Protocol {
            label_quantile: quantile(self.label_quantile, "labels")?,
            time_quantile: quantile(self.time_quantile, "times")?,
            finals: (finals > rounds)
                .then_some(Finals { rounds: finals, candidates: self.finalists.unwrap_or(16) }),
            remeasure: (most > rounds).then_some(Remeasure { rounds: most, spread }),
            rounds,
            samples: self.samples.unwrap_or(counts[1]),
            single_samples: self.single_samples.unwrap_or(counts[2]),
            sample_ns: nanoseconds(self.sample_ms.unwrap_or(times[0]))?,
            warmup_ns: nanoseconds(self.warmup_ms.unwrap_or(times[1]))?,
            deadline_ms: self.deadline_ms.unwrap_or(deadline_ms),
            buffers: if sets > 1 { "rotated" } else { "warm" }.to_string(),
            sets,
            interleaved,
        };
        if let Some(quick) = quick {
            protocol.sample_ns = protocol.sample_ns.min(nanoseconds(quick.sample_ms)?);
            protocol.warmup_ns = protocol.warmup_ns.min(nanoseconds(quick.warmup_ms)?);
            protocol.samples = protocol.samples.min(quick.samples.max(1));
            protocol.single_samples = protocol.single_samples.min(quick.samples);
        }
        Ok(protocol)
    }
}

fn space(space: &Space, quick: Option<&Quick>) -> Result<Space, String> {
    let mut space = space.clone();
    if space.cap.is_some() && space.top.is_some() {
        return Err("`cap` beside `top`".to_string());
    }
    if space.threads.is_some() && space.widths.is_some() {
        return Err("`threads` beside `widths`".to_string());
    }
    if let Some(other) = space.widths.as_ref().filter(|w| *w != "all") {
        return Err(format!("`widths` is {other:?}"));
    }
    if let Some(quick) = quick {
        let most = quick.cap.max(1);
        match &mut space.top {
            Some(top) => *top = (*top).min(most),
            None => space.cap = Some(space.cap.map_or(most, |cap| cap.min(most))),
        }
    }
    Ok(space)
}

/// The cases of a set, in order.
fn cases(file: &File, training: bool, quick: bool) -> Result<Vec<DueCase>, String> {
    let mut out = Vec::new();
    let limit = |n: usize| if quick { n.max(1) } else { usize::MAX };
    for block in &file.family {
        let trained = limit(file.quick.training);
        let shapes: Vec<&String> = if training {
            block.training.iter().take(trained).collect()
        } else if block.holdout.is_empty() {
            Vec::new()
        } else {
            // Training shapes that a quick run leaves over stand in for the hold-out.
            let left = block.training.iter().skip(trained);
            left.chain(&block.holdout).take(limit(file.quick.holdout)).collect()
        };
        for text in shapes {
            let sizes = text.split('x').map(|n| n.parse::<u64>().ok());
            let shape: Vec<u64> =
                sizes.collect::<Option<_>>().ok_or_else(|| format!("the shape {text:?}"))?;
            let family = match shape.len() {
                2 => "rows",
                3 => "matrix",
                _ => return Err(format!("the shape {text:?}")),
            };
            for op in block.ops.iter().take(limit(file.quick.ops)) {
                let trans = block.trans.clone().filter(|t| t != "nn");
                let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
                let mut parts = vec![op.clone(), block.dtype.clone(), sizes.join("x")];
                parts.extend(trans.clone());
                parts.extend(block.epilogue.iter().cloned());
                out.push(DueCase {
                    id: parts.join("-"),
                    family,
                    op: op.clone(),
                    dtype: block.dtype.clone(),
                    shape: shape.clone(),
                    trans,
                    epilogue: block.epilogue.clone(),
                    threads: file.threads,
                });
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = \"t\"\nthreads = 2\n[[family]]\nops = [\"softmax\", \"rmsnorm\"]\n\
        training = [\"3x7\", \"4x8\"]\nholdout = [\"5x9\"]\n[[family]]\nops = [\"gemm\"]\n\
        trans = \"nt\"\nepilogue = [\"bias\"]\ntraining = [\"3x7x2\"]\n";

    #[test]
    fn cases_and_settings_are_those_of_the_format() {
        let study = Study::parse(TEXT, false).unwrap();
        let ids = |cases: &[DueCase]| cases.iter().map(|c| c.id.clone()).collect::<Vec<_>>();
        assert_eq!(
            ids(&study.training),
            [
                "softmax-f32-3x7",
                "rmsnorm-f32-3x7",
                "softmax-f32-4x8",
                "rmsnorm-f32-4x8",
                "gemm-f32-3x7x2-nt-bias"
            ]
        );
        assert_eq!(ids(&study.holdout), ["softmax-f32-5x9", "rmsnorm-f32-5x9"]);
        assert_eq!((study.search.rounds, study.replay.rounds), (3, 14));
        assert_eq!((study.search.sample_ns, study.replay.warmup_ns), (5_000_000, 20_000_000));
        let further =
            format!("{TEXT}[search]\nmost_rounds = 9\nspread = 0.1\ninterleaved = true\n");
        let search = Study::parse(&further, false).unwrap().search;
        let due = Remeasure { rounds: 9, spread: 0.1 };
        assert_eq!((search.remeasure, search.rounds, search.interleaved), (Some(due), 3, true));
        let quick = Study::parse(&format!("{TEXT}[quick]\ntraining = 1\ncap = 7\n"), true).unwrap();
        assert_eq!(ids(&quick.training), ["softmax-f32-3x7", "gemm-f32-3x7x2-nt-bias"]);
        assert_eq!(ids(&quick.holdout), ["softmax-f32-4x8", "softmax-f32-5x9"]);
        assert_eq!((quick.space.cap, quick.replay.samples), (Some(7), 3));
        assert_eq!(quick.search.sample_ns, 1_000_000);
    }

    #[test]
    fn what_no_study_file_has_is_a_fault() {
        let fault = |more: &str| Study::parse(&format!("{TEXT}{more}"), false).unwrap_err();
        assert!(fault("[seach]\nrounds = 1\n").contains("seach"));
        assert!(fault("[search]\nrounds = 4\nmost_rounds = 3\n").contains("3 rounds at most"));
        assert!(fault("[search]\nspread = 0.0\n").contains("spread of 0"));
        assert!(fault("[search]\nlabel_quantile = 0.09\n").contains("quantile 0.09"));
        assert!(fault("[replay]\nmost_rounds = 20\n").contains("in `replay`"));
        assert!(fault("[replay]\nmetric = \"batch\"\n").contains("in `replay`"));
        assert!(fault("[space]\ncap = 1\ntop = 1\n").contains("beside"));
        assert!(fault("[space]\nthreads = [8]\nwidths = \"all\"\n").contains("beside"));
        assert!(fault("[space]\nwidths = \"most\"\n").contains("most"));
        assert!(fault("[acceptance]\nluck = 1.0\n").contains("luck"));
        assert!(fault("[search]\nsample_ms = -1.0\n").contains("milliseconds"));
        let shape = TEXT.replace("4x8", "4by8");
        assert!(Study::parse(&shape, false).unwrap_err().contains("4by8"));
        assert!(Study::parse("name = \"t\"\n", false).is_err());
    }
}
