//! What a self-test found. The schema is `schemas/self-test.schema.json`.

use super::SelfTestArgs;
use super::worker::Lost;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tilewright_plan::Target;
use tilewright_runtime::{Capabilities, Device};

/// How a case ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Every element is within its bound and nothing else was touched.
    Passed,
    /// It ran and its result is wrong.
    Wrong,
    /// The device lacks what the kernel needs, by a named rule.
    Refused,
    /// It couldn't be compiled or run.
    Failed,
    /// It ended its process.
    Crashed,
    /// It didn't end in time.
    TimedOut,
}

/// One case.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Case {
    /// Its name in the list.
    pub id: String,
    /// How it ended.
    pub verdict: Verdict,
    /// Why it didn't pass.
    pub detail: Option<String>,
    /// The plan in one line, or where the kernel comes from.
    pub plan: Option<String>,
    /// Largest error relative to its bound; at most 1 in a case that passed.
    pub error_ratio: Option<f64>,
    /// Inputs that it ran on: plain numbers, then special ones.
    pub inputs: Option<u64>,
    /// Elements that were compared.
    pub elements: Option<u64>,
    /// Time to compile, in milliseconds.
    pub compile_ms: Option<f64>,
    /// Median time of a launch in a short batch, in microseconds.
    pub launch_us: Option<f64>,
    /// Whose clock that is: `device` or `host`.
    pub clock: Option<String>,
}

impl Case {
    /// A case that ended so before it gave a result.
    pub fn ended(id: &str, verdict: Verdict, detail: Option<String>) -> Self {
        Case {
            id: id.to_string(),
            verdict,
            detail,
            plan: None,
            error_ratio: None,
            inputs: None,
            elements: None,
            compile_ms: None,
            launch_us: None,
            clock: None,
        }
    }

    /// A case whose process gave no result.
    pub fn lost(id: &str, lost: Lost) -> Self {
        match lost {
            Lost::Ended(how) => Case::ended(id, Verdict::Crashed, Some(how)),
            Lost::Late(after) => Case::ended(
                id,
                Verdict::TimedOut,
                Some(format!("no result within {} s", after.as_secs())),
            ),
        }
    }
}

/// The system that it ran under.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct System {
    /// `macos`, `linux`, …
    pub os: String,
    /// Its version, if it tells it.
    pub version: Option<String>,
    /// `aarch64`, `x86_64`, …
    pub arch: String,
}

impl System {
    fn here() -> Self {
        let version = match std::env::consts::OS {
            "macos" => std::process::Command::new("/usr/bin/sw_vers")
                .arg("-productVersion")
                .output()
                .ok()
                .and_then(|told| String::from_utf8(told.stdout).ok()),
            _ => std::fs::read_to_string("/proc/sys/kernel/osrelease").ok(),
        };
        System {
            os: std::env::consts::OS.to_string(),
            version: version.map(|v| v.trim().to_string()).filter(|v| !v.is_empty()),
            arch: std::env::consts::ARCH.to_string(),
        }
    }
}

/// How many cases ended how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub struct Totals {
    pub cases: usize,
    pub passed: usize,
    pub wrong: usize,
    pub refused: usize,
    pub failed: usize,
    pub crashed: usize,
    pub timed_out: usize,
}

/// The list that was run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct List {
    /// Whether it was the few cases that stand for all.
    pub brief: bool,
    /// Text that the names had to hold.
    pub filter: Option<String>,
    /// SHA-256 over the names, one a line: equal lists have equal hashes.
    pub sha256: String,
}

/// A report.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    /// Version of this program.
    tilewright: &'static str,
    /// When it started, in seconds since 1970.
    unix_s: u64,
    /// How long it took.
    seconds: f64,
    system: System,
    device: Capabilities,
    target: Target,
    target_sha256: String,
    list: List,
    totals: Totals,
    /// Every case, in the order of the list.
    pub cases: Vec<Case>,
    #[serde(skip)]
    start: Instant,
}

impl Report {
    /// A report without cases.
    pub fn new(args: &SelfTestArgs, device: &Arc<dyn Device>, names: &[String]) -> Self {
        let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let joined: String = names.iter().map(|name| format!("{name}\n")).collect();
        Report {
            schema: "tilewright-self-test-v1",
            tilewright: env!("CARGO_PKG_VERSION"),
            unix_s,
            seconds: 0.0,
            system: System::here(),
            device: device.capabilities().clone(),
            target: device.target().clone(),
            target_sha256: device.target().hash().to_string(),
            list: List {
                brief: args.brief,
                filter: args.case.clone(),
                sha256: tilewright_study::canonical::sha256(joined.as_bytes()),
            },
            totals: Totals::default(),
            cases: Vec::with_capacity(names.len()),
            start: Instant::now(),
        }
    }

    /// Counts, once all cases are there.
    pub fn finish(&mut self) {
        self.seconds = self.start.elapsed().as_secs_f64();
        let count = |verdict| self.cases.iter().filter(|c| c.verdict == verdict).count();
        self.totals = Totals {
            cases: self.cases.len(),
            passed: count(Verdict::Passed),
            wrong: count(Verdict::Wrong),
            refused: count(Verdict::Refused),
            failed: count(Verdict::Failed),
            crashed: count(Verdict::Crashed),
            timed_out: count(Verdict::TimedOut),
        };
    }

    /// What is wrong, in one sentence; `None` if nothing is. What a device lacks is no fault.
    pub fn complaint(&self) -> Option<String> {
        let Totals { cases, passed, refused, .. } = self.totals;
        match cases - passed - refused {
            0 if passed == 0 => Some("no case could run on this device".to_string()),
            0 => None,
            bad => Some(format!("{bad} of {cases} cases failed")),
        }
    }

    /// The summary for people.
    pub fn text(&self, written: &Path) -> String {
        /// Cases that are shown before the rest is only counted.
        const SHOWN: usize = 20;
        let mut out = format!(
            "{} on {} {}\n",
            self.device.model,
            self.system.os,
            self.system.version.as_deref().unwrap_or("")
        );
        let Totals { cases, passed, wrong, refused, failed, crashed, timed_out } = self.totals;
        out.push_str(&format!("{passed} of {cases} cases passed in {:.0} s", self.seconds));
        let others = [
            (wrong, "wrong"),
            (failed, "failed"),
            (crashed, "crashed"),
            (timed_out, "timed out"),
            (refused, "refused by a rule"),
        ];
        for (count, how) in others.iter().filter(|(count, _)| *count > 0) {
            out.push_str(&format!(", {count} {how}"));
        }
        let worst = self.cases.iter().filter(|c| c.verdict == Verdict::Passed);
        if let Some(worst) = worst.filter_map(|c| c.error_ratio).reduce(f64::max) {
            out.push_str(&format!("; largest error {worst:.2} of its bound"));
        }
        out.push('\n');
        let bad: Vec<&Case> = self
            .cases
            .iter()
            .filter(|c| !matches!(c.verdict, Verdict::Passed | Verdict::Refused))
            .collect();
        for case in bad.iter().take(SHOWN) {
            out.push_str(&format!("  {}: {}\n", case.id, case.detail.as_deref().unwrap_or("?")));
        }
        if bad.len() > SHOWN {
            out.push_str(&format!("  and {} more\n", bad.len() - SHOWN));
        }
        out.push_str(&format!("report: {}\n", written.display()));
        out
    }
}
