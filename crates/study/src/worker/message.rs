//! What a study and its workers say to each other.

use crate::case::Case;
use crate::protocol::{Protocol, Samples};
use crate::spec::Space;
use serde::{Deserialize, Serialize};

/// Which inputs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataKind {
    /// Sums of them are exact.
    Dyadic,
    /// The whole mantissa is used.
    Random,
}

impl DataKind {
    /// Both, in the order of checks.
    pub const ALL: [DataKind; 2] = [DataKind::Dyadic, DataKind::Random];

    /// The name in records.
    pub fn name(self) -> &'static str {
        match self {
            DataKind::Dyadic => "dyadic",
            DataKind::Random => "random",
        }
    }

    /// The oracle's.
    pub fn data(self) -> tilewright_ir::oracle::Data {
        match self {
            DataKind::Dyadic => tilewright_ir::oracle::Data::Dyadic,
            DataKind::Random => tilewright_ir::oracle::Data::Random,
        }
    }
}

/// To a worker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// Plan a case and make its tensors; whatever was open before is closed.
    Open {
        /// The case.
        case: Case,
        /// Its space.
        space: Space,
        /// Seed of the inputs.
        seed: u64,
        /// Copies of the tensors; with none the case can be compiled, not run.
        sets: usize,
    },
    /// Take the tensors of a case from files (controls).
    OpenControl {
        /// The case.
        case: Case,
        /// Files of the dyadic inputs, raw, in order.
        dyadic: Vec<String>,
        /// Files of the random inputs.
        random: Vec<String>,
        /// Elements of each input.
        lengths: Vec<usize>,
        /// Elements of the output.
        output: usize,
        /// Copies of the tensors.
        sets: usize,
    },
    /// Lower and compile candidates. One `Compiled` or `Rejected` each, then `Done`.
    Compile {
        /// Where to keep each, and its index in the space.
        slots: Vec<[usize; 2]>,
        /// Threads.
        jobs: usize,
        /// Hash the listing of the generated code, too.
        listing: bool,
    },
    /// Run once on poisoned outputs and write them to a file.
    Check {
        /// Which compiled candidate; null for a control.
        slot: Option<usize>,
        /// Which inputs.
        data: DataKind,
        /// Where to write the output, raw.
        file: String,
    },
    /// A whole measurement.
    Measure {
        /// As above.
        slot: Option<usize>,
        /// Settings.
        protocol: Protocol,
    },
    /// A measurement up to its first sample.
    Start {
        /// As above.
        slot: Option<usize>,
        /// Settings.
        protocol: Protocol,
    },
    /// One batch after an untimed call.
    Batch {
        /// As above.
        slot: Option<usize>,
        /// Calls.
        repetitions: u64,
    },
    /// One batch by the device's own clock, after an untimed one.
    DeviceBatch {
        /// As above.
        slot: Option<usize>,
        /// Calls.
        repetitions: u64,
    },
    /// End.
    Exit,
}

/// From a worker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// The worker is ready. Controls say what they are.
    Ready {
        /// Version of a control.
        version: Option<String>,
    },
    /// The worker can't do it at all, for this reason.
    Unavailable {
        /// Why, in one sentence.
        reason: String,
    },
    /// A case is open.
    Opened {
        /// Allocating and filling the tensors.
        upload_ns: u64,
        /// Whether a control's output is preallocated.
        preallocated: bool,
    },
    /// A candidate is compiled.
    Compiled {
        /// Where it was to be kept.
        slot: usize,
        /// Lowering and code generation.
        compile_ns: u64,
        /// Hash of the kernel text.
        kernel_sha256: String,
        /// Hash of the listing.
        artifact_sha256: Option<String>,
    },
    /// A candidate can't be compiled.
    Rejected {
        /// Where it was to be kept.
        slot: usize,
        /// The rule, if it is one.
        rule: Option<String>,
        /// Why.
        message: String,
    },
    /// A list of replies is over.
    Done,
    /// A run on poisoned outputs.
    Checked {
        /// No guard zone was overwritten.
        guards_intact: bool,
        /// No input changed.
        inputs_unchanged: bool,
    },
    /// Samples.
    Measured {
        /// They.
        samples: Samples,
    },
    /// One batch.
    Time {
        /// Nanoseconds.
        ns: u64,
    },
    /// The request failed; the worker lives on.
    Failed {
        /// Why.
        message: String,
    },
}

impl Reply {
    /// Whether the worker owes nothing more after it, until it is asked again.
    pub fn is_last(&self) -> bool {
        !matches!(self, Reply::Compiled { .. } | Reply::Rejected { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_their_text() {
        let request = Request::Batch { slot: Some(3), repetitions: 7 };
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(text, r#"{"do":"batch","slot":3,"repetitions":7}"#);
        assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);
        let reply = Reply::Checked { guards_intact: true, inputs_unchanged: false };
        let text = serde_json::to_string(&reply).unwrap();
        assert_eq!(serde_json::from_str::<Reply>(&text).unwrap(), reply);
    }
}
